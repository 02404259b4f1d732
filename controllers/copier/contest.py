"""Keep a fight over one field short: correct it at once a few times, then ever less often. Pure but for its own state.

A flip is what the copier wrote being something else again, with neither the rule nor its value changed. After five
flips within a minute the rule is contested: its writes are held for 10 seconds, then twice as long after each flip,
up to 10 minutes. Ten minutes without a flip end it. A new value, or an edited rule, is written at once, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FLIPS: Final = 5
WINDOW: Final = 60.0
FIRST_HOLD: Final = 10.0
LONGEST_HOLD: Final = 600.0
CALM: Final = 600.0


@dataclass(slots=True)
class Contest:
    """One rule of one target, from the copier's first write of it on."""

    attempt: bytes = b""  # the rule and the value that were written last
    written_at: float = 0.0
    is_flipped: bool = False  # the last write was undone; a write is flipped once, however often it is looked at
    flips: tuple[float, ...] = ()
    hold: float = 0.0  # 0: not contested
    held_until: float = 0.0
    rival: str = ""

    def wrote(self, attempt: bytes, now: float) -> None:
        """Note a write that went well."""
        self.attempt, self.written_at, self.is_flipped = attempt, now, False

    def is_flip(self, attempt: bytes) -> bool:
        """Tell whether a write that is wanted now means that the last one was undone, which is not noted yet."""
        return attempt == self.attempt and not self.is_flipped

    def flip(self, now: float) -> bool:
        """Note that the last write was undone; tell whether that makes the rule contested."""
        self.end_if_calm(now)
        self.is_flipped = True
        self.flips = (*(at for at in self.flips if now - at < WINDOW), now)
        if self.hold:
            self.hold = min(self.hold * 2, LONGEST_HOLD)
            self.held_until = now + self.hold
        elif len(self.flips) > FLIPS:
            self.hold, self.held_until = FIRST_HOLD, now + FIRST_HOLD
            return True
        return False

    def is_held(self, attempt: bytes, now: float) -> bool:
        """Tell whether this must not be written yet."""
        return attempt == self.attempt and self.is_flipped and now < self.held_until

    @property
    def is_on(self) -> bool:
        """Tell whether the rule is contested."""
        return self.hold > 0

    @property
    def ends_at(self) -> float:
        """When a contest is over if nobody undoes the last write."""
        return self.written_at + CALM

    @property
    def next_look(self) -> float:
        """When a contested rule may be written again, or is contested no more."""
        return self.held_until if self.is_flipped else self.ends_at

    def end_if_calm(self, now: float) -> None:
        """Let the contest be over if nobody has undone the last write for long enough."""
        if self.is_on and not self.is_flipped and now >= self.ends_at:
            self.flips, self.hold, self.held_until, self.rival = (), 0.0, 0.0, ""
