"""Pulse: whether a loop goes on. Each step says how long the next may take to come; who looks sees whether it is late.

To wait for a server is no fault, as each wait has its limit. To come later than that is: then the loop hangs in code of
our own, or in a handler.
"""

from __future__ import annotations

import math
import threading
from typing import Final

from informers.clock import Clock

SPARE: Final = 60.0  # beyond the longest wait, for work of our own


class Pulse:
    """The steps of one loop; `late()` is for any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the two below
        self._patience = math.inf
        self._next_by = math.inf

    def expect(self, seconds: float) -> None:
        """Take a step, after which the loop may wait for so long; inf when nothing can be said."""
        now = self._clock.monotonic()
        with self._lock:
            self._patience = seconds
            self._next_by = now + seconds + SPARE

    def beat(self, now: float) -> None:
        """Take a step after which it may wait as long as after the last one."""
        with self._lock:
            self._next_by = now + self._patience + SPARE

    def late(self) -> float:
        """Return for how many seconds the next step has been overdue; 0 while it is not."""
        now = self._clock.monotonic()
        with self._lock:
            return max(0.0, now - self._next_by)
