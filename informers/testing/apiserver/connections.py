"""Listen, accept, read requests, write bytes: HTTP/1.1 with keep-alive, one thread a connection.

Closing shuts every socket down, so that no thread stays in a read or write whatever the other side does.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import parse_qsl

from informers.testing.apiserver.router import HTTPRequest

log = logging.getLogger(__name__)

BODY_LIMIT: Final = 3 * 1024 * 1024
_HEAD_LIMIT: Final = 1024 * 1024
_HANDSHAKE_SECONDS: Final = 10.0
_SMALL: Final = 65536
_ACCEPT_AGAIN: Final = 0.05
_ABORT: Final = struct.pack("ii", 1, 0)
_PHRASES: Final[Mapping[int, str]] = {status.value: status.phrase for status in HTTPStatus}


class ConnectionGoneError(Exception):
    """The client has closed the connection, or the server is closing it."""


class BadRequestError(Exception):
    """What came is not HTTP that is understood here; `status` says how to refuse it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Handler(Protocol):
    """What answers the requests of a listener."""

    def accepted(self, connection: Connection) -> bool:
        """Look at a new connection before anything is read; False: do not read from it."""
        ...

    def handle(self, request: HTTPRequest, connection: Connection) -> bool:
        """Answer a request; tell whether the connection may be used for another."""
        ...

    def refuse(self, error: BadRequestError, connection: Connection) -> None:
        """Answer what is no request."""
        ...


class Connection:
    """One accepted connection and the thread that serves it."""

    def __init__(self, listener: Listener, sock: socket.socket, peer: str, number: int) -> None:
        self.id = number
        self.peer = peer
        self.closing = threading.Event()  # set when the server closes it or the client has
        self.on_gone: Callable[[], None] | None = None
        self._listener = listener
        self._sock = sock
        self._buffer = bytearray()
        self.thread = threading.Thread(target=self._run, name=f"apiserver/connection-{number}", daemon=True)

    # --- life ---

    def _run(self) -> None:
        handler = self._listener.handler
        try:
            if handler.accepted(self):
                self._secure()
                self._serve(handler)
        except (ConnectionGoneError, OSError):
            pass
        except Exception:
            log.exception("connection failed")
        finally:
            self._listener.forget(self)
            self.close()

    def _secure(self) -> None:
        context = self._listener.tls
        if context is None:
            return
        self._sock.settimeout(_HANDSHAKE_SECONDS)
        # first the socket that `shut` knows, then the handshake that it may have to cut short
        secured = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        self._sock = secured
        if self.closing.is_set():
            raise ConnectionGoneError
        secured.do_handshake()
        self._sock.settimeout(None)

    def _serve(self, handler: Handler) -> None:
        while not self.closing.is_set():
            try:
                request = self._read_request()
            except BadRequestError as error:
                handler.refuse(error, self)
                return
            if request is None:
                return
            pipelined = bool(self._buffer)
            again = handler.handle(request, self)
            if pipelined or not again or request.headers.get("connection", "").lower() == "close":
                return

    def shut(self) -> None:
        """Wake whoever is reading from or writing to this connection; may be called from any thread."""
        self.closing.set()
        with contextlib.suppress(OSError):
            # the plain method: that of an SSL socket would take the session away from the thread that uses it
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        self._notify_gone()

    def abort(self) -> None:
        """Make the close a reset, and close."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._listener.unwatch(self)
        self.closing.set()
        self.close()

    def close(self) -> None:
        """Free the socket; only the connection's own thread calls this."""
        self._listener.unwatch(self)
        with contextlib.suppress(OSError):
            self._sock.close()

    def finish(self) -> None:
        """Send FIN after what has been written."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)

    def freeze(self) -> None:
        """Read and send nothing more, until the client or the server closes."""
        self.watch_for_end(None)
        self.closing.wait()

    def watch_for_end(self, on_gone: Callable[[], None] | None) -> None:
        """Set `closing`, and call `on_gone`, as soon as the client closes (where the platform can tell)."""
        self.on_gone = on_gone
        self._listener.watch(self)

    def stop_watching(self) -> None:
        """Take `watch_for_end` back."""
        self.on_gone = None
        self._listener.unwatch(self)

    def is_gone(self) -> None:
        """Note that the client has closed."""
        self.closing.set()
        self._notify_gone()

    def _notify_gone(self) -> None:
        callback = self.on_gone
        if callback is not None:
            callback()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    # --- reading ---

    def _read_request(self) -> HTTPRequest | None:
        head = self._read_head()
        if head is None:
            return None
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise BadRequestError(400, "malformed request line")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadRequestError(400, "malformed header")
            key = name.strip().lower()
            # repeated headers are one list, as a comma-separated one is
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        path, _, query = words[1].partition("?")
        if headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        pairs = parse_qsl(query, keep_blank_values=True) if query else ()
        return HTTPRequest(words[0], path, pairs, headers, self._read_body(headers))

    def _read_head(self) -> bytes | None:
        searched = 0
        while True:
            end = self._buffer.find(b"\r\n\r\n", searched)
            if end >= 0:
                head = bytes(self._buffer[:end]).lstrip(b"\r\n")
                del self._buffer[: end + 4]
                return head
            if len(self._buffer) > _HEAD_LIMIT:
                raise BadRequestError(431, "request header fields too large")
            searched = max(0, len(self._buffer) - 3)
            if not self._receive():
                return None

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._read_chunks()
        text = headers.get("content-length", "0")
        if not text.isdecimal():
            raise BadRequestError(400, "malformed Content-Length")
        length = int(text)
        if length > BODY_LIMIT:
            raise BadRequestError(413, f"limit is {BODY_LIMIT}")
        return self._take(length)

    def _read_chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = int(self._take_line().split(b";")[0], 16)
            if len(body) + size > BODY_LIMIT:
                raise BadRequestError(413, f"limit is {BODY_LIMIT}")
            if size == 0:
                while self._take_line():
                    pass
                return bytes(body)
            body += self._take(size)
            self._take(2)

    def _take(self, length: int) -> bytes:
        while len(self._buffer) < length:
            if not self._receive():
                raise ConnectionGoneError
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    def _take_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not self._receive():
                raise ConnectionGoneError
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _receive(self) -> bool:
        data = self._sock.recv(_SMALL)
        self._buffer += data
        return bool(data)

    # --- writing ---

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`. Raises `ConnectionGoneError`."""
        try:
            self._sock.sendall(data)
        except (OSError, ValueError) as error:
            raise ConnectionGoneError from error

    def pause(self, seconds: float) -> None:
        """Wait, unless the connection ends meanwhile. Raises `ConnectionGoneError`."""
        if self.closing.wait(seconds):
            raise ConnectionGoneError


class Listener:
    """A listening socket, its accept thread, and the connections that came through it."""

    def __init__(self, handler: Handler, *, host: str, port: int, tls: ssl.SSLContext | None, name: str) -> None:
        self.handler = handler
        self.tls = tls
        self._name = name
        self._host = host
        self._lock = threading.Lock()  # guards _connections, _count, _socket and _closed
        self._connections: set[Connection] = set()
        self._count = 0
        self._closed = False
        self._ending = threading.Event()
        self._socket: socket.socket | None = self._listen(port)
        self.port: int = self._socket.getsockname()[1]
        self._watcher = _EndWatcher(name)
        self._thread = self._start_accepting(self._socket)

    def _listen(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        return socket.create_server((self._host, port), family=family, backlog=512)

    def _start_accepting(self, sock: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=self._accept, args=(sock,), name=f"{self._name}/accept", daemon=True)
        thread.start()
        return thread

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, address = listening.accept()
            except OSError:
                if not self._is_listening(listening) or self._ending.wait(_ACCEPT_AGAIN):
                    return
                continue  # out of descriptors: the next attempt may work
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._closed or self._socket is not listening:
                    sock.close()
                    return
                self._count += 1
                connection = Connection(self, sock, f"{address[0]}:{address[1]}", self._count)
                self._connections.add(connection)
            connection.thread.start()

    def _is_listening(self, sock: socket.socket) -> bool:
        with self._lock:
            return self._socket is sock

    def connections(self) -> list[Connection]:
        """List the open connections."""
        with self._lock:
            return list(self._connections)

    def forget(self, connection: Connection) -> None:
        """Note that a connection ends."""
        with self._lock:
            self._connections.discard(connection)

    def watch(self, connection: Connection) -> None:
        """Watch for the client's end of a connection."""
        self._watcher.watch(connection)

    def unwatch(self, connection: Connection) -> None:
        """Watch no longer."""
        self._watcher.unwatch(connection)

    def stop_listening(self) -> None:
        """Refuse new connections and end those there are."""
        with self._lock:
            sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the accept
            sock.close()
        for connection in self.connections():
            connection.shut()

    def listen_again(self) -> None:
        """Listen on the same port again."""
        with self._lock:
            if self._closed or self._socket is not None:
                return
            self._socket = sock = self._listen(self.port)
            self._thread = self._start_accepting(sock)

    def close(self, timeout: float = 2.0) -> None:
        """Stop listening, end every connection, and join their threads."""
        self._ending.set()
        with self._lock:
            self._closed = True
        threads = [connection.thread for connection in self.connections()]
        self.stop_listening()
        threads += [connection.thread for connection in self.connections()]
        self._watcher.close()
        end = time.monotonic() + timeout
        for thread in (self._thread, *threads):
            with contextlib.suppress(RuntimeError):  # accepted, not started yet: it ends by itself
                thread.join(max(0.0, end - time.monotonic()))


class _EndWatcher:
    """Tells streams that have nothing to send that their client has gone; one thread for all of a listener."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()  # guards _watched and _is_closed
        self._watched: dict[int, Connection] = {}
        self._is_closed = False
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._wake_read, self._wake_write = socket.socketpair()
        self._thread: threading.Thread | None = None
        if self._epoll is not None:
            self._epoll.register(self._wake_read, select.EPOLLIN)
            self._thread = threading.Thread(target=self._run, name=f"{name}/ends", daemon=True)
            self._thread.start()

    def watch(self, connection: Connection) -> None:
        if self._epoll is None:
            return
        with self._lock:
            number = connection.fileno()
            if self._is_closed or number < 0 or number in self._watched:
                return  # a stream may only just be opening when everything is closed
            self._watched[number] = connection
            self._epoll.register(number, select.EPOLLRDHUP)

    def unwatch(self, connection: Connection) -> None:
        with self._lock:
            number = connection.fileno()
            if self._epoll is not None and not self._is_closed and self._watched.get(number) is connection:
                del self._watched[number]
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.unregister(number)

    def _run(self) -> None:
        assert self._epoll is not None
        while True:
            for number, _ in self._epoll.poll():
                if number == self._wake_read.fileno():
                    return
                with self._lock:
                    connection = self._watched.pop(number, None)
                    with contextlib.suppress(OSError, ValueError):
                        self._epoll.unregister(number)
                if connection is not None:
                    connection.is_gone()

    def close(self) -> None:
        self._wake_write.send(b"x")
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._is_closed = True
            if self._epoll is not None:
                self._epoll.close()
        self._wake_read.close()
        self._wake_write.close()


def head_of(status: int, headers: list[tuple[str, str]]) -> bytes:
    """Build the head of an answer."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
