"""An embedded API server of the test's own, and a client so small that it hides nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse  # noqa: TID251 - these tests look at HTTP itself
from typing import Any
from urllib.parse import urlsplit

import pytest

from informers.testing.apiserver import APIServer

PATIENCE = 60.0


class Answer:
    """What came back: status, headers, and the body as JSON if it is."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.raw = response.read()
        try:
            self.body: Any = json.loads(self.raw)
        except ValueError:
            self.body = self.raw

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def rv(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])


class Stream:
    """An open watch, read line by line."""

    def __init__(self, connection: HTTPConnection, path: str, headers: dict[str, str]) -> None:
        self.connection = connection
        connection.request("GET", path, headers=headers)
        self.response = connection.getresponse()

    def line(self) -> bytes:
        return self.response.readline()

    def event(self) -> Any:
        """Return the next event as (type, object); None at a clean end."""
        line = self.line()
        if not line:
            return None
        event = json.loads(line)
        return event["type"], event["object"]

    def names(self, count: int) -> list[str]:
        """Return the next events as `TYPE name`."""
        events = [self.event() for _ in range(count)]
        return [f"{word} {obj['metadata'].get('name', '')}".strip() for word, obj in events]

    def rest(self) -> list[Any]:
        """Return all events up to a clean end."""
        return list(iter(self.event, None))

    def close(self) -> None:
        self.response.close()
        self.connection.close()


class Client:
    """Asks one server over one kept-alive connection; each watch has a connection of its own."""

    def __init__(self, server: APIServer, undo: ExitStack) -> None:
        self.server = server
        self._undo = undo
        self._address = urlsplit(server.url).netloc
        self.connection = self.connect()

    def connect(self, address: str = "") -> HTTPConnection:
        connection = HTTPConnection(address or self._address, timeout=PATIENCE)
        self._undo.callback(connection.close)
        return connection

    def socket(self) -> socket.socket:
        host, port = self._address.rsplit(":", 1)
        return self._undo.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = {"User-Agent": "tester/1", **(headers or {})}
        if body is not None:
            sent["Content-Type"] = content_type
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method, path, body=data, headers=sent)
        return Answer(self.connection.getresponse())

    def patch(self, path: str, body: Any, kind: str = "merge") -> Answer:
        return self.ask("PATCH", path, body, content_type=f"application/{kind}-patch+json")

    def watch(self, path: str, headers: dict[str, str] | None = None) -> Stream:
        stream = Stream(self.connect(), path, {"User-Agent": "tester/1", **(headers or {})})
        self._undo.callback(stream.close)
        return stream

    def control(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Ask the control API."""
        assert self.server.control_url is not None
        connection = self.connect(urlsplit(self.server.control_url).netloc)
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers or {})
        return Answer(connection.getresponse())


@pytest.fixture
def start() -> Iterator[Callable[..., Client]]:
    """Start a server with options; returns a client of it."""
    with ExitStack() as undo:

        def begin(**options: Any) -> Client:
            return Client(undo.enter_context(APIServer(**options)), undo)

        yield begin


@pytest.fixture
def api(start: Callable[..., Client]) -> Client:
    """A client of a server with the usual options."""
    return start()


@pytest.fixture
def client_of() -> type[Client]:
    """Make a client of a server that the test has."""
    return Client
