"""Give one test an API server, embedded or real, and a namespace of its own there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from informers.testing.relay import Relay
from informers.testing.wire import Wire

if TYPE_CHECKING:
    from informers.api.client import Client
    from informers.testing.apiserver import APIServer, Faults
    from informers.testing.envtest import Envtest


@dataclass(frozen=True)
class Server:
    """A server as a test sees it; exactly one of `embedded` and `real` is there.

    Attributes:
        kubeconfig: of an administrator.
        namespace: a fresh one.
        directory: where the test may put files.
    """

    url: str
    kubeconfig: Path
    namespace: str
    directory: Path
    embedded: APIServer | None = None
    real: Envtest | None = None
    _opened: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def faults(self) -> Faults:
        """What breaks the embedded server; for a real one there is `relay()`."""
        if self.embedded is None:
            raise TypeError("a real API server has no faults of its own: put a relay() before it")
        return self.embedded.faults()

    def client(self) -> Client:
        """Make an administrator's client; it is closed when the test ends."""
        from informers.testing.clients import open_client

        return self._opened.enter_context(open_client(self.kubeconfig))

    def wire(self) -> Wire:
        """Ask plainly, as the administrator."""
        return Wire.of(self.kubeconfig)

    def relay(self) -> Relay:
        """Put a relay before the server; its `kubeconfig` leads through it; it ends when the test does."""
        directory = self.directory / f"relay-{secrets.token_hex(4)}"
        directory.mkdir()
        return self._opened.enter_context(Relay(self.kubeconfig, directory=directory))


@contextmanager
def borrow(running: APIServer | Envtest, directory: Path) -> Iterator[Server]:
    """Yield a server for one test, with a new namespace; close in the end what the test opened on it."""
    from informers.testing.envtest import Envtest

    namespace = f"test-{secrets.token_hex(4)}"
    wire = Wire.of(running.kubeconfig)
    made = wire.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    if made.status != 201:
        raise RuntimeError(f"namespace {namespace}: {made.status}: {made.body.decode()}")
    real = running if isinstance(running, Envtest) else None
    embedded = None if isinstance(running, Envtest) else running
    with ExitStack() as opened:
        yield Server(running.url, running.kubeconfig, namespace, directory, embedded, real, opened)
