"""FakeClock: time that moves when a test says so, and wakes whoever waits for it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Final

_START: Final = datetime(2024, 5, 17, 12, 0, 0, tzinfo=UTC)


class FakeClock:
    """A clock that a test drives; safe from any thread.

    Monotonic time moves only with `advance()`; the wall clock moves along, and jumps with `set_wall()` and
    `jump_wall()`. A wait on it ends when the condition is notified or the time has come, whichever is first.
    """

    def __init__(self, start: datetime = _START) -> None:
        # Reentrant: a collection of garbage may come while it is held, and what it calls may ask for the time.
        self._changed = threading.Condition(threading.RLock())  # guards all below
        self._monotonic = 1000.0  # not 0, which code could take for "never"
        self._wall = start
        self._waiting: dict[_Waiter, None] = {}

    def monotonic(self) -> float:
        """Return the seconds that tests have let pass, from some beginning."""
        with self._changed:
            return self._monotonic

    def utc_now(self) -> datetime:
        """Return the date and time that tests have set and let pass."""
        with self._changed:
            return self._wall

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait for a notification of `condition`, which the caller holds; False when the time has come."""
        if timeout is not None and timeout <= 0:
            return condition.wait(0)
        with self._changed:
            waiter = _Waiter(condition, None if timeout is None else self._monotonic + timeout)
            self._waiting[waiter] = None
            self._changed.notify_all()
        try:
            condition.wait()
        finally:
            with self._changed:
                self._waiting.pop(waiter, None)
                has_come = waiter.due is not None and waiter.due <= self._monotonic
                self._changed.notify_all()
        return not has_come

    def advance(self, seconds: float) -> None:
        """Let time pass and wake whoever waited for it. The caller holds no condition that others wait on."""
        if not seconds >= 0:
            msg = f"time does not run backwards: {seconds}"
            raise ValueError(msg)
        with self._changed:
            self._monotonic += seconds
            self._wall += timedelta(seconds=seconds)
            due = [waiter for waiter in self._waiting if waiter.due is not None and waiter.due <= self._monotonic]
            for waiter in due:
                del self._waiting[waiter]  # it no longer counts as waiting, though it has yet to notice
        for waiter in due:
            # A waiter holds its condition from before it is entered above until it really waits,
            # so the notification cannot come too early.
            with waiter.condition:
                waiter.condition.notify_all()

    def set_wall(self, now: datetime) -> None:
        """Set the wall clock; monotonic time does not notice."""
        if now.tzinfo is None:
            msg = f"want an aware date, got {now!r}"
            raise ValueError(msg)
        with self._changed:
            self._wall = now.astimezone(UTC)

    def jump_wall(self, seconds: float) -> None:
        """Move the wall clock forwards or backwards; monotonic time does not notice."""
        with self._changed:
            self._wall += timedelta(seconds=seconds)

    def block_until_waiting(self, count: int = 1, *, due_in: float | None = None, timeout: float = 60.0) -> None:
        """Block (in real time) until at least `count` threads wait on this clock.

        With `due_in`, only those count that wait for a time at most so many seconds ahead.
        Raises `TimeoutError` after `timeout` real seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting_now(due_in) >= count, timeout):
                msg = f"wanted {count} threads waiting, found {self._waiting_now(due_in)}"
                raise TimeoutError(msg)

    def _waiting_now(self, due_in: float | None) -> int:
        if due_in is None:
            return len(self._waiting)
        latest = self._monotonic + due_in
        return sum(waiter.due is not None and waiter.due <= latest for waiter in self._waiting)


class _Waiter:
    """One wait going on; equal only to itself."""

    __slots__ = ("condition", "due")

    def __init__(self, condition: threading.Condition, due: float | None) -> None:
        self.condition = condition
        self.due = due
