"""The least that a Python program must do: read the bytes of one list and one watch from a socket, and `json.loads` them.

No errors are handled, nothing is kept but a dictionary. What a machine can do varies from hour to hour; a ratio to this
program does so much less. Plain HTTP only.
"""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hack.bench.subjects.probe import Probe, spec


class Reader:
    """One list and one watch."""

    def __init__(self, probe: Probe, wanted: dict[str, Any]) -> None:
        self._probe = probe
        self._looks = wanted.get("marks", False)
        kubeconfig = Path(wanted["kubeconfig"]).read_text(encoding="utf-8")
        url = urlsplit(kubeconfig.partition("server: ")[2].split()[0].strip("\"'"))
        self._address = (url.hostname, url.port)
        plural, _, group = wanted["resource"].partition(".")
        self._path = f"/apis/{group}/v1/{plural}" if group else f"/api/v1/{plural}"
        self._objects: dict[str, Any] = {}

    def start(self) -> None:
        """Begin, on a thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def has(self, namespace: str, name: str) -> bool:
        """Tell whether the dictionary has it."""
        return f"{namespace}/{name}" in self._objects

    def stop(self) -> None:
        """Do nothing: the process ends."""

    def _run(self) -> None:
        with self._asked(self._path) as answer:
            size = next(int(line.split(b":")[1]) for line in _headers(answer) if line.startswith(b"content-length"))
            listed = json.loads(answer.read(size))
        for obj in listed["items"]:
            self._take("added", obj)
        del obj
        version = listed.pop("metadata")["resourceVersion"]
        listed.clear()
        with self._asked(f"{self._path}?watch=true&resourceVersion={version}") as answer:
            _headers(answer)
            while size := int(answer.readline(), 16):
                for line in answer.read(size).splitlines():
                    event = json.loads(line)
                    self._take(event["type"].lower(), event["object"])
                answer.readline()

    def _asked(self, path: str) -> Any:
        with socket.create_connection(self._address) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return connection.makefile("rb")

    def _take(self, kind: str, obj: Any) -> None:
        metadata = obj["metadata"]
        self._objects[f"{metadata['namespace']}/{metadata['name']}"] = obj
        if self._looks:
            self._probe.marked(metadata.get("annotations") or {})
        self._probe.seen(kind)


def _headers(answer: Any) -> list[bytes]:
    return [line.lower() for line in iter(answer.readline, b"\r\n")]


if __name__ == "__main__":
    _probe = Probe()
    _probe.serve(Reader(_probe, spec()))
