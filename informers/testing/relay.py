"""Stand between a client and a server, and break their connections: faults for a server that has none of its own.

Bytes are passed on as they are, TLS included. The words are those of the embedded API server's fault vocabulary:
freeze, reset (RST), finish (FIN), slow, refuse. Each acts on the connections that are open, and those that hold
(freeze, slow, refuse) on new ones too, until `heal()`.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import yaml

_CHUNK: Final = 64 * 1024
_SLICE: Final = 0.05  # seconds of a slowed body that go out at once
_ABORT: Final = struct.pack("ii", 1, 0)  # linger for 0 s: closing sends RST instead of FIN


class Relay:
    """A TCP relay before the server of `kubeconfig`; a context manager.

    Attributes:
        url: where it listens.
        kubeconfig: the same as was given, except that the server is this relay.
    """

    def __init__(self, kubeconfig: Path, *, directory: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        self._clusters = [item["cluster"] for item in config["clusters"]]
        server = urlsplit(self._clusters[0]["server"])
        self._scheme = server.scheme
        self._target = (server.hostname or "127.0.0.1", server.port or 443)
        self._config = config
        self.url = ""
        self.kubeconfig = directory / "relay.kubeconfig"
        self._port = 0
        self._weather = _Weather()
        self._acceptor: threading.Thread | None = None
        self._lock = threading.Lock()  # guards _listener and _pairs
        self._listener: socket.socket | None = None
        self._pairs: set[_Pair] = set()

    def __enter__(self) -> Self:
        self._listen()
        self.url = f"{self._scheme}://127.0.0.1:{self._port}"
        for cluster in self._clusters:
            cluster["server"] = self.url
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(self._config))
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()

    def freeze(self) -> None:
        """Keep every connection open and pass nothing on, either way; new ones are accepted and stay silent."""
        self._weather.freeze()

    def slow(self, bytes_per_second: float) -> None:
        """Pass on what the server sends at this rate."""
        self._weather.slow(bytes_per_second)

    def reset(self) -> None:
        """Abort the open connections; both sides see a reset."""
        for pair in self._open_pairs():
            pair.end(abort=True)

    def finish(self) -> None:
        """Close the open connections in order; both sides see the end of the stream, wherever it stands."""
        for pair in self._open_pairs():
            pair.end(abort=False)

    def refuse(self) -> None:
        """Stop listening, so that new connections are refused, and abort the open ones."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends the accept that is waiting
            listener.close()
        if self._acceptor is not None:
            self._acceptor.join()
            self._acceptor = None
        pairs = self._open_pairs()
        self.reset()
        for pair in pairs:
            pair.join()

    def heal(self) -> None:
        """Pass everything on again, and listen again on the same port."""
        self._weather.clear()
        self._listen()

    def connections(self) -> int:
        """Count the connections that are open."""
        return len(self._open_pairs())

    def _open_pairs(self) -> list[_Pair]:
        with self._lock:
            return list(self._pairs)

    def _listen(self) -> None:
        if self._acceptor is not None:
            return
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="relay", daemon=True)
        with self._lock:
            self._listener = listener
        self._acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            pair = _Pair(client, self._target, self._weather, self._forget)
            with self._lock:
                is_late = self._listener is not listener
                if not is_late:
                    self._pairs.add(pair)
            if is_late:
                pair.end(abort=True)
                client.close()  # the pair, which would close it, never starts
                return
            pair.start()

    def _forget(self, pair: _Pair) -> None:
        with self._lock:
            self._pairs.discard(pair)


class _Weather:
    """What holds for all connections of a relay."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards all below
        self._is_frozen = False
        self._rate = 0.0  # bytes a second from the server, 0 = as fast as they come

    def freeze(self) -> None:
        with self._changed:
            self._is_frozen = True

    def slow(self, rate: float) -> None:
        with self._changed:
            self._rate = rate

    def clear(self) -> None:
        with self._changed:
            self._is_frozen = False
            self._rate = 0.0
            self._changed.notify_all()

    def wake(self) -> None:
        """Have those who wait look whether their connection is still there."""
        with self._changed:
            self._changed.notify_all()

    def pass_on(self, data: bytes, to: socket.socket, pair: _Pair, *, slowed: bool) -> None:
        """Send `data` when, and as fast as, the weather allows."""
        rest = memoryview(data)
        while rest:
            rate = self.thawed_rate(pair)
            rate = rate if slowed else 0.0
            size = max(1, int(rate * _SLICE)) if rate else len(rest)
            to.sendall(rest[:size])
            rest = rest[size:]
            if rate:
                with self._changed:
                    self._changed.wait_for(lambda: pair.has_ended, timeout=size / rate)

    def thawed_rate(self, pair: _Pair) -> float:
        """Wait until bytes may pass, and return how many a second; raises once the connection has ended."""
        with self._changed:
            self._changed.wait_for(lambda: pair.has_ended or not self._is_frozen)
            if pair.has_ended:
                raise ConnectionAbortedError
            return self._rate


class _Pair:
    """One client's connection and the one to the server that belongs to it; a thread for each way."""

    def __init__(
        self, client: socket.socket, target: tuple[str, int], weather: _Weather, ended: Callable[[_Pair], None]
    ) -> None:
        self.has_ended = False
        self._target = target
        self._weather = weather
        self._ended = ended
        self._lock = threading.Lock()  # guards _sockets and has_ended
        self._sockets = [client]
        self._there = threading.Thread(target=self._run, name="relay/there", daemon=True)

    def start(self) -> None:
        self._there.start()

    def join(self) -> None:
        self._there.join()

    def end(self, *, abort: bool) -> None:
        """Close both connections, with RST or with FIN; wakes the threads that use them."""
        with self._lock:
            self.has_ended = True
            for sock in self._sockets:
                with suppress(OSError):  # ended already
                    if abort:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
                        sock.shutdown(socket.SHUT_RD)  # wakes who reads, and says nothing to the other side
                    else:
                        sock.shutdown(socket.SHUT_RDWR)
        self._weather.wake()

    def _run(self) -> None:
        try:
            self._carry()
        finally:
            with self._lock:
                self.has_ended = True
                for sock in self._sockets:
                    sock.close()
            self._ended(self)

    def _carry(self) -> None:
        client = self._sockets[0]
        try:
            server = socket.create_connection(self._target)
        except OSError:
            self.end(abort=True)
            return
        with self._lock:
            self._sockets.append(server)
            if self.has_ended:
                return
        back = threading.Thread(target=self._pump, args=(server, client), name="relay/back", daemon=True)
        back.start()
        self._pump(client, server)
        back.join()

    def _pump(self, source: socket.socket, to: socket.socket) -> None:
        """Carry bytes one way until that side has ended; a reset ends both."""
        is_answer = to is self._sockets[0]
        try:
            while data := source.recv(_CHUNK):
                self._weather.pass_on(data, to, self, slowed=is_answer)
            self._weather.thawed_rate(self)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            if not self.has_ended:
                self.end(abort=True)
