"""Tell the time and wait: monotonic seconds, aware UTC, a wait on a condition, and a stop signal.

Everything that waits does so through a `Clock`, so a test can drive it with `informers.testing.FakeClock`.
The one surprising thing: a wait may end early without a reason, as a condition's may; look again, then wait again.
"""

from __future__ import annotations

import logging
import threading
import time  # noqa: TID251 - this is the place where time comes in
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

_log = logging.getLogger(__name__)
_LONGEST: Final = threading.TIMEOUT_MAX


class Clock(Protocol):
    """What time it is, and waiting for it to pass."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow; their zero means nothing."""
        ...

    def utc_now(self) -> datetime:
        """Return the present date and time, aware and in UTC; it may jump."""
        ...

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait for a notification of `condition`, which the caller holds; False when `timeout` seconds passed."""
        ...


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def utc_now(self) -> datetime:
        """Return the present date and time in UTC."""
        return datetime.now(UTC)

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait for a notification of `condition`, which the caller holds; False when `timeout` seconds passed."""
        if timeout is None or timeout >= _LONGEST:
            return condition.wait()
        return condition.wait(max(timeout, 0.0))


class Stop:
    """A signal that is given once: an event that waits through a clock and can call back.

    Not for signal handlers: `set()` takes a lock that the interrupted thread may hold.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._changed = threading.Condition(threading.Lock())  # guards _is_set and _callbacks
        self._is_set = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def set(self) -> None:
        """Give the signal: wake who waits, then run the callbacks on this thread, with no lock held."""
        with self._changed:
            if self._is_set:
                return
            self._is_set = True
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
            self._changed.notify_all()
        for callback in callbacks:
            _call(callback)

    def is_set(self) -> bool:
        """Tell whether the signal was given."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the signal is given or `timeout` seconds passed; tell whether it was given."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            while not self._is_set:
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    break
                self._clock.wait(self._changed, left)
            return self._is_set

    def on_set(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once by the thread that gives the signal, or now if it was given.

        Returns a function that takes it off again; that never waits and may be called twice.
        """
        token = object()
        with self._changed:
            is_set = self._is_set
            if not is_set:
                self._callbacks[token] = callback
        if is_set:
            _call(callback)

        def take_off() -> None:
            with self._changed:
                self._callbacks.pop(token, None)

        return take_off


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - one callback must not keep the others from learning of the stop
        _log.exception("callback failed")
