"""API servers for the benchmarks, each in a process of its own: the embedded one, and the real one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from hack.bench.host import ROOT
from hack.bench.payloads import CRD, NAMESPACE, RESOURCES, bodies

_BATCH = 500


@dataclass
class Server:
    """Where a server is; the embedded one can be driven and asked what it saw."""

    kubeconfig: Path
    _control: HTTPConnection | None = field(default=None, repr=False)

    def control(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Ask the embedded server's control API."""
        assert self._control is not None
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        self._control.request(method, f"{path}?{urlencode(query)}" if query else path, data)
        response = self._control.getresponse()
        answer = json.loads(response.read())
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status}: {answer}")
        return answer

    def put(self, objects: Sequence[Mapping[str, Any]], *, silent: bool = False) -> None:
        """Create or replace objects behind the API."""
        more = {"silent": "1"} if silent else {}
        for start in range(0, len(objects), _BATCH):
            self.control("PUT", "/_objects", list(objects[start : start + _BATCH]), **more)

    def fault(self, word: str, match: Mapping[str, Any], **parameters: Any) -> int:
        """Put a fault in force and return its number."""
        fault: int = self.control("POST", "/_faults", {"do": word, "match": match, **parameters})["id"]
        return fault

    def heal(self) -> None:
        """Take all faults off."""
        self.control("DELETE", "/_faults")

    def is_embedded(self) -> bool:
        """Tell whether it can be asked what it saw."""
        return self._control is not None

    def forget(self) -> None:
        """Empty the log of requests, where there is one."""
        if self._control is not None:
            self.control("DELETE", "/_requests")

    def wait(self, timeout: float, *, count: int = 1, **match: str) -> None:
        """Wait until so many requests were logged. Raises `RuntimeError` when they do not come."""
        self.control("GET", "/_requests/wait", count=str(count), timeout=str(timeout), **match)

    def requests(self, **match: str) -> list[dict[str, Any]]:
        """Return the logged requests that match."""
        found: list[dict[str, Any]] = self.control("GET", "/_requests", **match)
        return found


@contextmanager
def embedded(*options: str, kubeconfig: Path | None = None) -> Iterator[Server]:
    """Run the embedded API server, with its control API, for the length of a `with`."""
    with tempfile.TemporaryDirectory(prefix="kube-informers-bench-") as folder:
        kubeconfig = kubeconfig or Path(folder) / "kubeconfig"
        command = [sys.executable, "-m", "informers.testing.apiserver", "--port=0", "--control-port=0"]
        command += [f"--kubeconfig={kubeconfig}", *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                ready = json.loads(process.stdout.readline())
                address = urlsplit(ready["control"])
                with closing(HTTPConnection(address.hostname or "", address.port, timeout=300)) as control:
                    yield Server(kubeconfig, control)
            finally:
                process.terminate()


@contextmanager
def filled(payload: str, count: int, *options: str) -> Iterator[tuple[Server, list[dict[str, Any]]]]:
    """Run the embedded server with `count` objects of a payload; yields these too."""
    objects = bodies(payload, count)
    with embedded(*options) as server:
        if RESOURCES[payload] == CRD["metadata"]["name"]:
            server.put([CRD])
        server.put([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        server.put(objects)
        server.forget()
        yield server, objects


@contextmanager
def real(payload: str, count: int) -> Iterator[Server]:
    """Run a real API server with `count` objects of a payload."""
    from concurrent.futures import ThreadPoolExecutor

    from informers import GVR
    from informers.testing import Envtest

    group_resource = RESOURCES[payload].partition(".")
    gvr = GVR(group_resource[2], "v1", group_resource[0])
    with Envtest() as server:
        client = server.client()
        namespace = {"metadata": {"name": NAMESPACE}}
        client.create(GVR("", "v1", "namespaces"), namespace, field_manager="bench")

        def create(body: Mapping[str, Any]) -> None:
            client.create(gvr, body, namespace=NAMESPACE, field_manager="bench")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, bodies(payload, count)))
        yield Server(server.kubeconfig)
