"""Keep connections open between requests: one for each thread, and none that has been idle for a minute.

No thread watches them: whoever uses the transport in any way closes what has been idle for too long, and so does the
manager's main thread now and then, for the program in which nothing happens.
"""

from __future__ import annotations

import threading
from typing import Final

from informers.api.connections import Wire
from informers.clock import Clock

_IDLE_LIMIT: Final = 60.0


class KeptConnections:
    """The idle connections of one transport. Use it from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards _idle and _is_closed
        self._idle: dict[int, Wire] = {}  # by thread; whoever takes one out owns it
        self._is_closed = False
        self._epoch = 0

    def take(self, epoch: int = 0) -> Wire | None:
        """Take this thread's connection, if there is one that still lives and was opened in `epoch` or later."""
        self.close_stale(epoch)
        with self._lock:
            wire = self._idle.pop(threading.get_ident(), None)
        if wire is not None and wire.is_readable():
            # Readable means closed: nobody sends what was not asked for.
            wire.close()
            return None
        return wire

    def put(self, wire: Wire) -> None:
        """Keep a connection for this thread's next request."""
        wire.uses += 1
        wire.idle_since = self._clock.monotonic()
        with self._lock:
            is_kept = not self._is_closed and wire.epoch >= self._epoch
            old = self._idle.get(threading.get_ident()) if is_kept else wire
            if is_kept:
                self._idle[threading.get_ident()] = wire
        if old is not None:
            old.close()

    def close_stale(self, epoch: int = 0) -> None:
        """Close what has been idle for too long or was opened before `epoch`, of threads that have ended too."""
        now = self._clock.monotonic()
        with self._lock:
            self._epoch = max(self._epoch, epoch)
            stale = [
                ident
                for ident, wire in self._idle.items()
                if now - wire.idle_since > _IDLE_LIMIT or wire.epoch < self._epoch
            ]
            wires = [self._idle.pop(ident) for ident in stale]
        for wire in wires:
            wire.close()

    def close(self) -> None:
        """Close all, and keep none from now on."""
        with self._lock:
            self._is_closed = True
            idle = list(self._idle.values())
            self._idle.clear()
        for wire in idle:
            wire.close()
