"""How long to wait after a number of failures in a row; pure, bounded, and never the same for everybody."""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable
from dataclasses import dataclass

from informers.meta.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow from `base` by `factor` up to `cap` seconds.

    One wait is uniform in [d, d x (1 + jitter)], but at most 1.5 x cap. What went well for `reset` seconds
    starts over (`failures_after`). Raises `ConfigError` for values that make no such waits.
    """

    base: float
    cap: float
    factor: float = 2.0
    jitter: float = 1.0
    reset: float = 60.0

    def __post_init__(self) -> None:
        # Written so that NaN fails each of them.
        _check("base", self.base, wanted="> 0", holds=0 < self.base < math.inf)
        _check("cap", self.cap, wanted=f">= base ({self.base:g})", holds=self.base <= self.cap < math.inf)
        _check("factor", self.factor, wanted=">= 1", holds=1 <= self.factor < math.inf)
        _check("jitter", self.jitter, wanted=">= 0", holds=0 <= self.jitter < math.inf)
        _check("reset", self.reset, wanted=">= 0", holds=self.reset >= 0)

    def delay(self, failures: int, random: Callable[[], float] = _random.random) -> float:
        """Return the seconds to wait after so many failures in a row; 1 is the first."""
        wait = self._nominal(failures - 1)
        longest = min(wait * (1 + self.jitter), 1.5 * self.cap)
        return min(wait + (longest - wait) * random(), longest)

    def failures_after(self, failures: int, healthy: float) -> int:
        """Return the count to go on with after `healthy` seconds without a failure: 0 once `reset` has passed."""
        return 0 if healthy >= self.reset else failures

    def _nominal(self, steps: int) -> float:
        if steps <= 0 or self.factor == 1:
            return self.base
        # The power itself would overflow after some thousand failures.
        if steps * math.log(self.factor) >= math.log(self.cap / self.base):
            return self.cap
        return min(self.base * self.factor**steps, self.cap)


def _check(option: str, value: float, *, wanted: str, holds: bool) -> None:
    if not holds:
        msg = f"Backoff: {option}: want a finite number {wanted}, got {value!r}"
        raise ConfigError(msg)
