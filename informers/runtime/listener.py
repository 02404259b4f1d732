"""Answer short HTTP questions on one thread: GET and HEAD, one request a connection, never in anybody's way.

For probes and scrapes, which come from few places and are answered from memory. So there is no thread for each
connection and no connection that stays: at most 16 are open, each for at most 5 seconds, and when one more comes the
oldest goes. Who sends slowly, or too much, costs a buffer of some kilobytes for that time.

What is surprising: the answer is made on this thread, so one that takes long keeps the next one waiting.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from informers.clock import Clock, Stop
from informers.logs import fields
from informers.meta.addresses import Address

_log = logging.getLogger(__name__)

CONNECTIONS: Final = 16
SECONDS: Final = 5.0  # from accepting to closing
LINE: Final = 8 << 10  # of the request
HEAD: Final = 32 << 10
BIND_AGAIN: Final = 30.0

_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Question:
    """One request: its path decoded, its query by name, and which media types are welcome."""

    method: str
    path: str
    query: Mapping[str, str]
    accept: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    allow: str = ""


def text(status: int, body: str, *, allow: str = "") -> Answer:
    """Return an answer of lines."""
    return Answer(status, f"{body}\n".encode(), allow=allow)


class Listener:
    """Listen at an address until stopped, whatever happens there; `run` is for one thread."""

    def __init__(self, address: Address, answer: Callable[[Question], Answer], *, clock: Clock) -> None:
        self._address = address
        self._answer = answer
        self._clock = clock
        self._port = 0  # written by the one thread
        self._told = ""

    def port(self) -> int:
        """Return the port that is listened at, 0 while there is none."""
        return self._port

    def run(self, stop: Stop) -> None:
        """Listen until stopped. What cannot be bound is tried again each 30 seconds."""
        reader, writer = socket.socketpair()
        with closing(reader), closing(writer):
            stop.on_set(lambda: _wake(writer))
            while not stop.is_set():
                try:
                    with closing(_bind(self._address)) as listening:
                        self._tell_bound(listening)
                        _Service(listening, reader, self._answer, self._clock, stop).run()
                except OSError as error:
                    self._tell_failed(error)
                    stop.wait(BIND_AGAIN)
                finally:
                    self._port = 0
            reader.recv(1)  # who gives the signal has woken us, and does not touch the socket any more

    def _tell_bound(self, listening: socket.socket) -> None:
        self._port = int(listening.getsockname()[1])
        self._told = ""
        _log.info("listening", extra=fields(address=str(self._address), port=self._port))

    def _tell_failed(self, error: OSError) -> None:
        if error.errno is None or isinstance(error, socket.gaierror):
            cause = error.strerror or type(error).__name__
        else:
            cause = os.strerror(error.errno)  # the library may have put the address into the text
        level = logging.DEBUG if cause == self._told else logging.ERROR
        self._told = cause
        _log.log(level, "cannot listen, will try again", extra=fields(address=str(self._address), error=cause))


def _wake(writer: socket.socket) -> None:
    with suppress(OSError):
        writer.send(b"\0")


def _bind(address: Address) -> socket.socket:
    """Return a socket that listens. Raises `OSError`."""
    if not address.host:
        return _bind_all(address.port)
    failed: OSError | None = None
    for family, _, _, _, where in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        try:
            return socket.create_server(where, family=family, backlog=CONNECTIONS)
        except OSError as error:
            failed = failed or error
    raise failed or OSError(errno.EADDRNOTAVAIL, "no such address")


def _bind_all(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=CONNECTIONS)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
    return socket.create_server(("", port), backlog=CONNECTIONS)


class _Connection:
    """One that asks: what it has sent so far, what is still to be sent to it, and until when it may stay."""

    __slots__ = ("is_done", "received", "socket", "to_send", "until")

    def __init__(self, accepted: socket.socket, until: float) -> None:
        self.socket = accepted
        self.until = until
        self.received = bytearray()
        self.to_send = memoryview(b"")
        self.is_done = False  # all is sent; what still comes is thrown away


class _Service:
    """All connections of one bound socket."""

    def __init__(
        self,
        listening: socket.socket,
        waker: socket.socket,
        answer: Callable[[Question], Answer],
        clock: Clock,
        stop: Stop,
    ) -> None:
        self._listening = listening
        self._waker = waker
        self._answer = answer
        self._clock = clock
        self._stop = stop
        self._selector = selectors.DefaultSelector()
        self._open: dict[_Connection, None] = {}  # the oldest first

    def run(self) -> None:
        """Serve until stopped; raises `OSError` when the socket is of no more use."""
        self._listening.setblocking(False)
        try:
            self._selector.register(self._listening, selectors.EVENT_READ)
            self._selector.register(self._waker, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in self._selector.select(self._wait()):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif isinstance(key.data, _Connection) and key.data in self._open:
                        self._go_on(key.data)
                self._close_late()
        finally:
            for connection in list(self._open):
                self._close(connection)
            self._selector.close()

    def _wait(self) -> float | None:
        if not self._open:
            return None
        return max(0.0, next(iter(self._open)).until - self._clock.monotonic())

    def _close_late(self) -> None:
        now = self._clock.monotonic()
        for connection in list(self._open):
            if connection.until > now:
                break
            self._close(connection)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Without a file descriptor to spare it would fail again at once.
            _log.debug("cannot accept", extra=fields(error=error.strerror))
            if self._open:
                self._close(next(iter(self._open)))
            else:
                self._stop.wait(1.0)
            return
        accepted.setblocking(False)
        if len(self._open) >= CONNECTIONS:
            self._close(next(iter(self._open)))
        connection = _Connection(accepted, self._clock.monotonic() + SECONDS)
        self._open[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._go_on(connection)

    def _go_on(self, connection: _Connection) -> None:
        try:
            if connection.to_send:
                self._send(connection)
            else:
                self._receive(connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._close(connection)

    def _receive(self, connection: _Connection) -> None:
        data = connection.socket.recv(HEAD)
        if not data:
            self._close(connection)
            return
        if connection.is_done:
            return
        connection.received += data
        question = _read(bytes(connection.received))
        if question is None:
            return
        connection.received.clear()
        answer = question if isinstance(question, Answer) else self._ask(question)
        is_head = isinstance(question, Question) and question.method == "HEAD"
        connection.to_send = memoryview(_encode(answer, with_body=not is_head))
        self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        sent = connection.socket.send(connection.to_send)
        connection.to_send = connection.to_send[sent:]
        if not connection.to_send:
            # Closed with something unread, the connection would be reset, and the answer lost with it.
            connection.is_done = True
            connection.socket.shutdown(socket.SHUT_WR)
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _close(self, connection: _Connection) -> None:
        self._open.pop(connection, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _ask(self, question: Question) -> Answer:
        try:
            return self._answer(question)
        except Exception:  # noqa: BLE001 - one question that cannot be answered must not end the others
            _log.exception("no answer", extra=fields(path=question.path))
            return text(500, "internal error")


def _read(received: bytes) -> Question | Answer | None:
    """Return what is asked, or what is wrong with it; None while it is not complete."""
    line_end = received.find(b"\n", 0, LINE)
    if line_end < 0:
        return text(414, "the request line is too long") if len(received) >= LINE else None
    ends = [end for mark in (b"\r\n\r\n", b"\n\n") if (end := received.find(mark, 0, HEAD)) >= 0]
    if not ends:
        return text(431, "the request has too many headers") if len(received) >= HEAD else None
    line, *headers = [one.rstrip("\r") for one in received[: min(ends)].decode("latin-1").split("\n")]
    match line.split(" "):
        case [method, target, "HTTP/1.0" | "HTTP/1.1"] if method and target:
            accepts = [value.strip() for name, _, value in (one.partition(":") for one in headers) if _is_accept(name)]
            return _question(method, target, ", ".join(accepts))
        case _:
            return text(400, "no request of HTTP/1.1")


def _is_accept(name: str) -> bool:
    return name.lower() == "accept"


def _question(method: str, target: str, accept: str) -> Question | Answer:
    try:
        parts = urlsplit(target if not target.startswith("//") else f"/{target.lstrip('/')}")
    except ValueError:
        return text(400, "no such URL")
    query = dict(parse_qsl(parts.query, keep_blank_values=True, errors="replace"))
    return Question(method, unquote(parts.path, errors="replace"), query, accept)


def _encode(answer: Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-cache, private",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *([f"Allow: {answer.allow}"] if answer.allow else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (answer.body if with_body else b"")
