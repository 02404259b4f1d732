"""An API server for demos and tests: real HTTP on loopback, in memory, in threads, and it breaks on demand.

kubectl works against it, and so does any client. It serves the built-in kinds that controllers meet most, CRDs
as they are created, optimistic locking, finalizers, selectors, paging, watches with history, bookmarks and
streaming lists. What it should be like is what a real kube-apiserver 1.36 does.

What it does not do:

- CEL rules (they are stored, not evaluated), admission webhooks and policies, RBAC, SubjectAccessReview;
- protobuf and YAML bodies, websockets, `exec`, `logs`, `port-forward`, `scale`, `eviction`, token requests;
- conversion between CRD versions with different schemas;
- apply patches (415), garbage collection by owner references (foreground and orphan deletions end at once);
- controllers: no Deployment makes a ReplicaSet, no Pod runs, no namespace gets a service account;
- persistence: everything is in memory and gone at the end.

`python -m informers.testing.apiserver --help` tells how it runs alone.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from informers.testing.apiserver import kubeconfigs, loading
from informers.testing.apiserver.connections import Listener
from informers.testing.apiserver.control import Control
from informers.testing.apiserver.faults import Fault, Faults
from informers.testing.apiserver.requestlog import LoggedRequest, RequestLog, token_id
from informers.testing.apiserver.service import Service, Settings
from informers.testing.apiserver.tokens import Tokens, parse_token

if TYPE_CHECKING:
    import ssl
    from types import TracebackType


_logger = logging.getLogger(__name__)


class APIServer:
    """An API server that runs from construction to `close`, or for the length of a `with` block.

    The options are those of the command line: `tokens` are texts `TOKEN[=USER][:TTL]`; `load` names folders whose
    manifests are there from the start; without `kubeconfig` one is written to a temporary folder. The control API
    listens only if `control_port` is given (0: any free port). `first_version` is where resourceVersions begin; what
    is older has expired.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        bind: str = "127.0.0.1",
        kubeconfig: Path | str | None = None,
        context: str = "embedded",
        tls: bool = False,
        tokens: Sequence[str] = (),
        control_port: int | None = None,
        load: Sequence[Path | str] = (),
        bookmark_every: float = 60.0,
        history: int = 1000,
        first_version: int = 1,
        watch_cap: float | None = None,
        watch_cache: bool = True,
        aggregated_discovery: bool = True,
        streaming_list: bool = True,
        version: str = "1.36",
        log: Path | str | None = None,
    ) -> None:
        self._closed = False
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            folder = Path(tempfile.mkdtemp(prefix="apiserver-"))
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            log_file = undo.enter_context(Path(log).open("a", encoding="utf-8")) if log is not None else None
            known = Tokens()
            for text in tokens:
                value, user, ttl = parse_token(text)
                known.add(value=value, user=user, ttl=ttl)
            self._service = Service(
                Settings(
                    bookmark_every=bookmark_every,
                    history=history,
                    first_version=first_version,
                    watch_cap=watch_cap,
                    watch_cache=watch_cache,
                    aggregated_discovery=aggregated_discovery,
                    streaming_list=streaming_list,
                    version=version,
                ),
                tokens=known,
                log=RequestLog(_line_writer(log_file)),
            )
            undo.callback(self._service.close)
            for path in load:
                loading.load(self._service, Path(path))
            self.ca: str | None = None
            """The certificate authority, in PEM; None without TLS."""
            context_tls: ssl.SSLContext | None = None
            if tls:
                from informers.testing.apiserver import certificates

                made = certificates.make(folder)
                self.ca, context_tls = made.ca, made.context
            self._folder = folder
            listener = Listener(self._service, host=bind, port=port, tls=context_tls, name="apiserver")
            undo.callback(listener.close)
            self._service.listen(listener)
            self.control_url: str | None = None
            """Where the control API listens; None if it was not asked for."""
            if control_port is not None:
                control = Control(self._service)
                control_listener = Listener(control, host="127.0.0.1", port=control_port, tls=None, name="control")
                undo.callback(control_listener.close)
                self.control_url = control.listen(control_listener.port)
            host = f"[{bind}]" if ":" in bind else bind
            self.url = f"{'https' if tls else 'http'}://{host}:{listener.port}"
            """Where the API is served."""
            self.context = context
            self.kubeconfig: Path = folder / "kubeconfig" if kubeconfig is None else Path(kubeconfig)
            """A kubeconfig whose context `context` leads here."""
            first = known.all()
            self._token = first[0].value if first else None
            self._write_kubeconfig()
            self._rotations = 0
            self._rotation = threading.Lock()  # guards _rotations, and lets one rotation happen at a time
            if tls:
                self._service.on_rotate = lambda close: self._rotate_tls(listener, close=close)
            undo.callback(self._service.begin_close)
            _logger.info(
                "serving; CEL rules of CustomResourceDefinitions are stored, not evaluated", extra={"url": self.url}
            )
            self._undo = undo.pop_all()

    def _write_kubeconfig(self) -> None:
        entry = kubeconfigs.Entry(server=self.url, ca=self.ca, token=self._token)
        kubeconfigs.write(self.kubeconfig, self.context, entry)

    def _rotate_tls(self, listener: Listener, *, close: bool) -> str:
        from informers.testing.apiserver import certificates

        with self._rotation:
            self._rotations += 1
            folder = self._folder / f"tls-{self._rotations}"
            folder.mkdir(mode=0o700)
            made = certificates.make(folder)
            self.ca, listener.tls = made.ca, made.context
            self._write_kubeconfig()
        if close:
            for connection in listener.connections():
                connection.shut()
        return made.ca

    def close(self) -> None:
        """Stop: every stream ends, every thread is joined. May be called twice."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def objects(self, resource: str = "", namespace: str | None = None) -> list[dict[str, Any]]:
        """List what is stored, of one resource (`secrets`, `widgets.example.com`) or of all."""
        return self._service.objects(resource, namespace)

    def put(self, *objects: Mapping[str, Any]) -> None:
        """Create or replace objects behind the API, unchecked, with their kind's defaults; watches are told."""
        for obj in objects:
            self._service.put(obj)

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Remove an object behind the API, finalizers or not; watches are told. Raises `KeyError` if there is none."""
        if not self._service.remove(resource, name, namespace):
            raise KeyError(f"{resource} {namespace}/{name}" if namespace else f"{resource} {name}")

    def define(self, crd: Mapping[str, Any]) -> None:
        """Create or replace a CustomResourceDefinition, checked as the API would; it is served on return."""
        loading.apply(self._service, crd)

    def faults(self) -> Faults:
        """Return the vocabulary of faults."""
        return Faults(self._service)

    def requests(self, **match: Any) -> list[LoggedRequest]:
        """List the logged requests that match: the fields of `LoggedRequest`, `client` and `path` as globs."""
        return self._service.log.find(match)

    def wait_request(self, *, timeout: float = 5.0, count: int = 1, **match: Any) -> LoggedRequest:
        """Wait until `count` requests match and return the last of these. Raises `TimeoutError`."""
        found = self._service.log.wait(match, count=count, timeout=timeout)
        if found is None:
            seen = len(self._service.log.find(match))
            raise TimeoutError(f"{count} requests like {match} within {timeout} s: saw {seen}")
        return found[count - 1]

    def clear_requests(self) -> None:
        """Forget the logged requests."""
        self._service.log.clear()

    def state(self) -> dict[str, Any]:
        """Describe the server as it is now: counter, open streams, connections, objects, faults."""
        return self._service.state()

    def add_token(self, value: str = "", *, user: str = "admin", ttl: float | None = None) -> str:
        """Take one more bearer token, made here unless given; from the first on, requests need one."""
        return self._service.tokens.add(value=value, user=user, ttl=ttl).value

    def revoke_token(self, value: str) -> None:
        """Take a bearer token no longer. Raises `KeyError` if there is none."""
        if not self._service.tokens.revoke(token_id(value)):
            raise KeyError("no such token")


def _line_writer(file: IO[str] | None) -> Any:
    if file is None:
        return None
    lock = threading.Lock()  # keeps lines whole

    def write(line: str) -> None:
        with lock:
            file.write(line + "\n")
            file.flush()

    return write


__all__ = ["APIServer", "Fault", "Faults", "LoggedRequest"]
