"""Hold requests back: so many in flight, an optional rate, and a pause for everybody when the server asks for one.

After a pause requests start one at a time, and each answer lets one more through at once, up to the limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from informers.clock import Clock


class Gate:
    """Where the ordinary requests of one cluster wait for their turn."""

    def __init__(self, *, clock: Clock, max_inflight: int, qps: float, burst: int) -> None:
        self._clock = clock
        self._most = max_inflight
        self._qps = qps
        self._burst = float(max(burst, 1))
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._allowed = max_inflight  # at once; grows back to _most after a pause
        self._inside = 0
        self._paused_until = float("-inf")
        self._tokens = self._burst
        self._filled_at = clock.monotonic()

    def enter(self, deadline: float, gave_up: Callable[[], bool]) -> bool:
        """Wait for a turn; False, and nothing taken, when `deadline` (by the clock) came first or the caller gave up."""
        with self._changed:
            while not gave_up():
                now = self._clock.monotonic()
                wait = self._wait_locked(now)
                if wait == 0:
                    self._inside += 1
                    return True
                left = deadline - now
                if left <= 0:
                    return False
                self._clock.wait(self._changed, left if wait is None else min(wait, left))
            return False

    def leave(self, *, was_answered: bool) -> None:
        """Give the turn back; an answer that did not ask for a pause lets one more through."""
        with self._changed:
            self._inside -= 1
            if was_answered and self._allowed < self._most:
                self._allowed += 1
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Let nobody in for `seconds`, and then few at first."""
        with self._changed:
            self._paused_until = max(self._paused_until, self._clock.monotonic() + seconds)
            self._allowed = 1

    def wake(self) -> None:
        """Have everybody who waits look again whether they gave up."""
        with self._changed:
            self._changed.notify_all()

    def _wait_locked(self, now: float) -> float | None:
        """How long to wait before looking again: 0 = go (a token of the rate is taken), None = until somebody leaves."""
        if now < self._paused_until:
            return self._paused_until - now
        if self._inside >= self._allowed:
            return None
        if self._qps <= 0:
            return 0
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._qps)
        self._filled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._qps
        self._tokens -= 1
        return 0
