"""Open a Client on a kubeconfig for the length of a `with`: what tests and the harness ask servers with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from informers.api.client import Client
from informers.api.clusters import Clusters
from informers.api.fence import Fence
from informers.api.transport import Transport


@contextmanager
def open_client(kubeconfig: Path) -> Iterator[Client]:
    """Yield a client of the kubeconfig's current context, and close its connections in the end."""
    transport = Transport(Clusters.load(str(kubeconfig)).config(""))
    try:
        yield Client({"": transport}, fence=Fence())
    finally:
        transport.close()
