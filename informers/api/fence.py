"""Say whether we may write now, and for how long. Every write asks; reads never do.

Asking and deciding are two types: whoever writes holds a `Fence`, and only the leader elector holds the `FenceKeeper`
that opens it. Both limits of a term are points on the monotonic clock, looked at anew whenever somebody asks. So the
fence closes in time although the thread that renews the lease hangs in a call, and although the process was stopped
and is woken later.

What is surprising: a closed fence never opens again. Who has lost the lease ends, and another process begins.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from informers.clock import Clock
from informers.meta.errors import NotLeaderError

LEAST: Final = 1.0  # seconds that a write has to have left to be sent at all
_MARGIN: Final = 1.0  # between the end of the last write and the moment when others may take the lease


def _always() -> float:
    return math.inf


class Fence:
    """Open while writes may be sent. Without leader election it always is."""

    def __init__(self, remaining: Callable[[], float] = _always) -> None:
        self._remaining = remaining

    def is_open(self) -> bool:
        """Tell whether a write may be sent now."""
        return self.remaining() > 0

    def check(self) -> None:
        """Raise `NotLeaderError` when no write may be sent now."""
        if not self.is_open():
            msg = "not the leader: nothing was sent"
            raise NotLeaderError(msg)

    def remaining(self) -> float:
        """Return how many seconds a write may still take; infinite without leader election."""
        return self._remaining()


def cut(fence: Fence, timeout: float) -> float:
    """Return how long a write may take that would like to take `timeout`.

    Raises `NotLeaderError` when the fence is closed, or so nearly over that nothing is begun any more.
    """
    remaining = fence.remaining()
    if remaining <= 0:
        fence.check()
    if remaining < LEAST:
        msg = "the lease ends within a second: nothing was sent"
        raise NotLeaderError(msg)
    return min(timeout, remaining)


class _Term(NamedTuple):
    """Until when the fence is open, and until when the last write must have ended; monotonic."""

    open_until: float
    write_until: float


class FenceKeeper:
    """The side of a fence that opens and closes it; held by the leader elector alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards changes of the two below; each is read as one value, without it
        self._term: _Term | None = None
        self._is_over = False
        self.fence = Fence(self._remaining)

    def extend(self, sent: float, *, renew_deadline: float, lease_duration: float) -> bool:
        """Open the fence, or keep it open, by a renewal of the lease that was sent at `sent`.

        Returns False, and leaves it closed, when that comes too late: its time had passed, or it was closed for good.
        """
        with self._lock:
            now = self._clock.monotonic()
            term = self._term
            if self._is_over or now >= sent + renew_deadline or (term is not None and now >= term.open_until):
                return False
            self._term = _Term(sent + renew_deadline, sent + lease_duration - _MARGIN)
            return True

    def close(self) -> None:
        """Close the fence for good."""
        with self._lock:
            self._is_over = True
            self._term = None

    def _remaining(self) -> float:
        term = self._term
        if term is None:
            return 0.0
        now = self._clock.monotonic()
        return max(0.0, term.write_until - now) if now < term.open_until else 0.0
