"""Stand between a client and a server, and break their connections: faults for a server that has none of its own.

Bytes are passed on as they are, TLS included. The words are those of the embedded API server's fault vocabulary:
freeze, reset (RST), finish (FIN), slow, refuse. Each acts on the connections that are open, and those that hold
(freeze, slow, refuse) on new ones too, until `heal()`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import yaml

T = TypeVar("T")

_CHUNK: Final = 64 * 1024
_SLICE: Final = 0.05  # seconds of a slowed body that go out at once
_CALL_TIMEOUT: Final = 10.0


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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay")
        # What follows belongs to the loop's thread.
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._pairs: set[_Pair] = set()
        self._weather = _Weather()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._listen())
        except BaseException:
            self._end_thread()
            raise
        self.url = f"{self._scheme}://127.0.0.1:{self._port}"
        for cluster in self._clusters:
            cluster["server"] = self.url
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(self._config))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._end())
        finally:
            self._end_thread()

    def freeze(self) -> None:
        """Keep every connection open and pass nothing on, either way; new ones are accepted and stay silent."""
        self._do(self._weather.freeze)

    def slow(self, bytes_per_second: float) -> None:
        """Pass on what the server sends at this rate."""
        self._do(lambda: self._weather.slow(bytes_per_second))

    def reset(self) -> None:
        """Abort the open connections; both sides see a reset."""
        self._do(lambda: self._end_all(_Pair.reset))

    def finish(self) -> None:
        """Close the open connections in order; both sides see the end of the stream, wherever it stands."""
        self._do(lambda: self._end_all(_Pair.finish))

    def refuse(self) -> None:
        """Stop listening, so that new connections are refused, and abort the open ones."""
        self._call(self._refuse())

    def heal(self) -> None:
        """Pass everything on again, and listen again on the same port."""
        self._do(self._weather.clear)
        self._call(self._listen())

    def connections(self) -> int:
        """Count the connections that are open."""
        return self._do(lambda: len(self._pairs))

    # On the caller's thread

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT)

    def _do(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            return act()

        return self._call(run())

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the loop's thread

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=_CHUNK)
            self._port = self._listener.sockets[0].getsockname()[1]

    def _end_all(self, end: Callable[[_Pair], None]) -> None:
        for pair in list(self._pairs):
            end(pair)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._drop_all()

    async def _end(self) -> None:
        self._weather.clear()
        await self._refuse()

    async def _drop_all(self) -> None:
        pairs = list(self._pairs)
        self._end_all(_Pair.reset)
        await asyncio.gather(*(pair.ended.wait() for pair in pairs))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = _Pair(self._weather, writer)
        self._pairs.add(pair)
        try:
            await pair.relay(reader, self._target)
        finally:
            self._pairs.discard(pair)
            pair.ended.set()


class _Weather:
    """What holds for all connections of a relay."""

    def __init__(self) -> None:
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._rate = 0.0  # bytes a second from the server, 0 = as fast as they come

    def freeze(self) -> None:
        self._thawed.clear()

    def slow(self, rate: float) -> None:
        self._rate = rate

    def clear(self) -> None:
        self._thawed.set()
        self._rate = 0.0

    async def has_thawed(self) -> None:
        await self._thawed.wait()

    async def pass_on(self, data: bytes, writer: asyncio.StreamWriter, *, slowed: bool) -> None:
        """Write `data` when, and as fast as, the weather allows."""
        while data:
            await self.has_thawed()
            rate = self._rate if slowed else 0.0
            size = max(1, int(rate * _SLICE)) if rate else len(data)
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]
            if rate:
                await asyncio.sleep(size / rate)


class _Pair:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, weather: _Weather, client: asyncio.StreamWriter) -> None:
        self.ended = asyncio.Event()
        self._weather = weather
        self._writers = [client]
        self._work: asyncio.Task[Any] | None = None

    def reset(self) -> None:
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            with suppress(OSError):  # closed already
                # Linger for 0 s: closing sends RST instead of FIN.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._cancel()

    def finish(self) -> None:
        for writer in self._writers:
            writer.close()
        self._cancel()

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def relay(self, reader: asyncio.StreamReader, target: tuple[str, int]) -> None:
        """Carry bytes both ways until both sides have ended, or one is broken."""
        self._work = asyncio.ensure_future(self._carry(reader, target))
        with suppress(asyncio.CancelledError, OSError):
            await self._work
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, target: tuple[str, int]) -> None:
        client = self._writers[0]
        try:
            answers, server = await asyncio.open_connection(*target, limit=_CHUNK)
        except OSError:
            self.reset()
            return
        self._writers.append(server)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, server, slowed=False))
                pumps.create_task(self._pump(answers, client, slowed=True))
        except* OSError:  # one side was reset, so is the other
            self.reset()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slowed: bool) -> None:
        while data := await reader.read(_CHUNK):
            await self._weather.pass_on(data, writer, slowed=slowed)
        await self._weather.has_thawed()
        with suppress(OSError):
            writer.write_eof()
