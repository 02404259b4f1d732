"""Say whether we may write now, and for how long. Every write asks; reads never do."""

from __future__ import annotations

import math

from informers.meta.errors import NotLeaderError


class Fence:
    """Open while writes may be sent. Without leader election it always is."""

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
        return math.inf
