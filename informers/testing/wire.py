"""Ask an API server plainly: one request on a connection of its own, and the answer exactly as it came.

For the test harness, which must see what a server really says; programs use `Client`.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import yaml

_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: header names are lower-case, the body is not decoded."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Wire:
    """Where a server is and who asks."""

    server: str
    ca: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @classmethod
    def of(cls, kubeconfig: Path) -> Wire:
        """Read the current context's server, CA and token."""
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config, "context", config["current-context"])
        cluster = _named(config, "cluster", context["cluster"])
        user = _named(config, "user", context["user"])
        ca = cluster.get("certificate-authority-data", "")
        file = cluster.get("certificate-authority", "")
        text = base64.b64decode(ca).decode() if ca else (kubeconfig.parent / file).read_text() if file else ""
        return cls(cluster["server"], text, user.get("token", ""))

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = _TIMEOUT,
    ) -> Answer:
        """Send one request and read its whole answer; `body` is sent as it is if bytes, else as JSON."""
        with self._connected(timeout) as connection:
            self._send(connection, method, path, query, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, _headers_of(response), response.read())

    @contextmanager
    def stream(
        self, path: str, *, query: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] | None = None
    ) -> Iterator[StreamedAnswer]:
        """Open a GET whose answer comes line by line, and close it in the end."""
        with self._connected(_TIMEOUT) as connection:
            self._send(connection, "GET", path, query, None, headers or {})
            sock = connection.sock
            response = connection.getresponse()
            try:
                yield StreamedAnswer(response.status, _headers_of(response), response, sock)
            finally:
                response.close()
                sock.close()

    @contextmanager
    def _connected(self, timeout: float) -> Iterator[http.client.HTTPConnection]:
        url = urlsplit(self.server)
        host, port = url.hostname or "127.0.0.1", url.port
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = ssl.create_default_context(cadata=self.ca or None)
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        try:
            yield connection
        finally:
            connection.close()

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: object,
        headers: Mapping[str, str],
    ) -> None:
        sent = {"Accept": "application/json", "User-Agent": "wire"}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = "application/json"
        target = f"{path}?{urlencode(query)}" if query else path
        connection.connect()  # here, so that `stream` has the socket even when the answer closes the connection
        connection.request(method, target, body=data, headers={**sent, **headers})


class StreamedAnswer:
    """An answer whose lines are read as they come."""

    def __init__(self, status: int, headers: Mapping[str, str], response: http.client.HTTPResponse, sock: Any) -> None:
        self.status = status
        self.headers = headers
        self._response = response
        self._sock = sock

    def lines(self, *, silence: float) -> Iterator[bytes]:
        """Yield whole lines until the stream ends, or nothing has come for `silence` seconds."""
        self._sock.settimeout(silence)
        while True:
            try:
                line = self._response.readline()
            except TimeoutError:
                return
            if not line:
                return
            if line.strip():
                yield line.strip()


def _headers_of(response: http.client.HTTPResponse) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in response.getheaders():
        lower = name.lower()
        found[lower] = f"{found[lower]}, {value}" if lower in found else value
    return found


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for item in config.get(f"{kind}s") or ():
        if item.get("name") == name:
            found: Mapping[str, Any] = item[kind]
            return found
    raise KeyError(f"the kubeconfig has no {kind} {name!r}")
