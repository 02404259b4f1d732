"""Say how long to wait for answers of a cluster, so that one that gives none takes little from whoever waits.

Of those who ask one cluster at the same time, one waits for as long as it wants, and the others briefly. When a time
has passed in vain nobody waits at all for four times as long. Other clusters are not concerned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from informers.clock import Clock

_BRIEFLY: Final = 1.0
_REST: Final = 4.0


class Patience:
    """How long to wait for which cluster; from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all below
        self._waited_for: set[str] = set()  # by somebody who waits for long
        self._resting: dict[str, float] = {}  # clusters, and until when nobody waits for them

    @contextmanager
    def waiting(self, cluster: str, longest: float) -> Iterator[float]:
        """Give the seconds to wait for a cluster's answers inside the block; 0: do not ask."""
        begun = self._clock.monotonic()
        with self._lock:
            is_resting = begun < self._resting.get(cluster, begun)
            is_first = not is_resting and cluster not in self._waited_for
            if is_first:
                self._waited_for.add(cluster)
        seconds = 0.0 if is_resting else longest if is_first else min(longest, _BRIEFLY)
        try:
            yield seconds
        finally:
            now = self._clock.monotonic()
            with self._lock:
                if is_first:
                    self._waited_for.discard(cluster)
                if 0 < seconds <= now - begun:
                    until = now + _REST * seconds
                    self._resting[cluster] = max(until, self._resting.get(cluster, until))
