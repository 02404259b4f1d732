"""Decide how long a stream may be silent before it is taken for dead. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Silence:
    """How long the streams of one informer may be silent, where bookmarks are known to come.

    The limit is what was asked for. It doubles when an alarm turns out to be false: a stream was replaced because it
    was silent, and its successor, which the server answered, brings no byte for just as long. The first byte of any
    stream sets it back.

    A real API server (1.36) sends no bookmark on a watch while nothing newer than the watch's start exists, so an idle
    kind is silent at first. Measured on one: after a list the first bookmark came 120 s after the watch was opened, then
    one each minute; after a streaming list the first came within 61 s, or not within the 90 s that a stream is given by
    default. That stream was replaced once, and its successor had its bookmark after 60 s and was kept. Without this rule
    a kind whose streams are all silent for 90 s at first would be asked for anew every 90 s, for ever.

    Attributes:
        wanted: seconds that a stream may be silent.
        limit: the same as of now.
        alarms: streams replaced in a row, with no byte since the first of them.
    """

    wanted: float
    limit: float
    alarms: int = 0

    @classmethod
    def of(cls, seconds: float) -> Silence:
        """Begin with the limit that was asked for."""
        return cls(seconds, seconds)

    def after_alarm(self, *, was_answered: bool, has_received: bool) -> Silence:
        """Learn from a stream that was silent for the whole limit.

        A server that does not even answer is no sign of a false alarm: it is what alarms are for.
        """
        if has_received or not was_answered:
            return replace(self.after_byte(), alarms=1 if has_received else 0)
        return replace(self, limit=self.limit * 2 if self.alarms else self.limit, alarms=self.alarms + 1)

    def after_byte(self) -> Silence:
        """Learn that something came."""
        return self if self.alarms == 0 else Silence.of(self.wanted)
