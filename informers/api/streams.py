"""Read an answer that goes on, line by line, and tell its clean end from a cut."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from informers.api.calls import Cancel
from informers.api.exchange import Answer, is_json, translated
from informers.api.http1 import CutError, LineSplitter
from informers.clock import Clock


class Patience:
    """How long the next byte of a stream may take; see `Stream` for the two limits.

    Stream and connection both hold it. If the connection asked the stream itself, the two would hold each other, and
    each watch that ended would keep its buffers until the garbage collector came by.
    """

    __slots__ = ("_clock", "silence", "until")

    def __init__(self, silence: float, until: float, clock: Clock) -> None:
        self.silence = silence
        self.until = until
        self._clock = clock

    def left(self) -> float:
        """Return the seconds, 0 or less when the time is over."""
        return min(self.silence, self.until - self._clock.monotonic())


class Stream:
    """One answer that goes on: lines as they come. A context manager; for one thread, but for its `Cancel`.

    Attributes:
        headers: the answer's headers, names in lower case.
        has_received: whether any byte of the body has come.
    """

    def __init__(self, answer: Answer, *, patience: Patience, cancel: Cancel, line_limit: int, what: str) -> None:
        self.headers = answer.head.headers
        self.has_received = False
        self._answer = answer
        self._patience = patience
        self._cancel = cancel
        self._splitter = LineSplitter(limit=line_limit)
        self._what = what

    def lines(self) -> Iterator[bytes]:
        r"""Yield whole lines without their `\n` or `\r\n`; blank ones are skipped. Returns when the answer ends cleanly.

        Raises `ConnectionLost` when it is cut (also in the middle of a line, or of its framing), `RequestTimeout` when
        it is silent for too long or past its own deadline, `LineTooLong`.
        """
        splitter = self._splitter
        with translated(self._what, self._cancel):
            for block, start, end in self._answer.body.spans():
                self.has_received = True
                yield from splitter.feed(block, start, end)
            if not self._answer.body.is_delimited:
                self._cancel.attach(self._answer.wire.shut)  # raises if that was the end
            # An answer that is one document (a Status, say) has no \n at its end; what was cut is no document.
            if fragment := splitter.fragment():
                if not is_json(fragment):
                    msg = "closed in the middle of a line"
                    raise CutError(msg)
                yield fragment

    def close(self) -> None:
        """Close the connection; may be called more than once."""
        self._cancel.detach()
        self._answer.wire.close()

    @property
    def silence(self) -> float:
        """Seconds without a byte after which `lines()` gives up; may be changed at any time."""
        return self._patience.silence

    @silence.setter
    def silence(self, seconds: float) -> None:
        self._patience.silence = seconds

    @property
    def until(self) -> float:
        """When, on the monotonic clock, `lines()` gives up whatever comes; may be changed at any time."""
        return self._patience.until

    @until.setter
    def until(self, moment: float) -> None:
        self._patience.until = moment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
