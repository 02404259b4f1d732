"""Let only so many informers of a cluster make their first list at once, and hold nobody up behind one that hangs."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from informers.clock import Clock, Stop

_LENT_AFTER: Final = 5.0
_SPREAD: Final = 0.2


class Turn:
    """A place among the first lists; it is lent to the next who waits when nothing comes for 5 s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = 0.0
        self.renew()

    def renew(self) -> None:
        """Say that the list goes on."""
        self._until = self._clock.monotonic() + _LENT_AFTER

    def left(self) -> float:
        """Return for how many seconds the place is kept yet, 0 or less when it is not."""
        return self._until - self._clock.monotonic()


class FirstSyncs:
    """The places for first lists of one cluster; who waits in a crowd is spread."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())  # guards the two below
        self._turns: set[Turn] = set()
        self._waiting = 0

    @contextmanager
    def turn(self, stop: Stop) -> Iterator[Turn | None]:
        """Wait for a turn and hold it for the length of the block; yields None when stopped before it came."""
        turn, is_crowded = self._acquire(stop)
        try:
            if is_crowded:
                stop.wait(random.random() * _SPREAD)
            yield None if stop.is_set() else turn
        finally:
            self._release(turn)

    def _acquire(self, stop: Stop) -> tuple[Turn | None, bool]:
        take_off = stop.on_set(self._wake)
        try:
            with self._changed:
                self._waiting += 1
                try:
                    while not stop.is_set() and (wait := self._time_to_wait_locked()) > 0:
                        self._clock.wait(self._changed, wait)
                    is_crowded = self._waiting > self._limit
                finally:
                    self._waiting -= 1
                if stop.is_set():
                    return None, False
                turn = Turn(self._clock)
                self._turns.add(turn)
                return turn, is_crowded
        finally:
            take_off()

    def _time_to_wait_locked(self) -> float:
        """Return how long until a place is free, or lent; 0 or less when one is."""
        kept = sorted(left for turn in self._turns if (left := turn.left()) > 0)
        return kept[len(kept) - self._limit] if len(kept) >= self._limit else 0.0

    def _release(self, turn: Turn | None) -> None:
        with self._changed:
            if turn is not None:
                self._turns.discard(turn)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
