"""What a caller holds of a call: the whole answer, the handle that ends it early, and how it can fail to be one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from informers.clock import Clock
from informers.meta.errors import ConnectionLost, RequestTimeout, TransportError

# 5xx that say the request was not carried out.
NOT_CARRIED_OUT: Final = frozenset({501, 503})


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. Header names are lower-case; the body's `repr` is its length."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"<Response {self.status}, {len(self.body)} bytes>"


class Cancel:
    """A handle on one call, by which another thread may end it: now, or as soon as it begins."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())  # guards _is_cancelled and _interrupt
        self._is_cancelled = False
        self._interrupt: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the call; never waits, and may be called at any time and more than once."""
        with self._changed:
            self._is_cancelled = True
            interrupt = self._interrupt
            self._changed.notify_all()
        if interrupt is not None:
            interrupt()

    def is_cancelled(self) -> bool:
        """Tell whether `cancel()` was called."""
        return self._is_cancelled

    def attach(self, interrupt: Callable[[], None]) -> None:
        """Name what ends the present step; raise `ConnectionLost` if the call was cancelled already."""
        with self._changed:
            self._interrupt = interrupt
            self._raise_if_cancelled()

    def detach(self) -> bool:
        """Leave the present step; False if the call was cancelled meanwhile, so that nothing of it may be kept."""
        with self._changed:
            self._interrupt = None
            return not self._is_cancelled

    def wait(self, clock: Clock, seconds: float) -> None:
        """Wait; raise `ConnectionLost` if the call is cancelled meanwhile."""
        until = clock.monotonic() + seconds
        with self._changed:
            while not self._is_cancelled and (left := until - clock.monotonic()) > 0:
                clock.wait(self._changed, left)
            self._raise_if_cancelled()

    def _raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            msg = "cancelled"
            raise ConnectionLost(msg)


class NotSent(RequestTimeout):
    """The time was over before anything was sent: waiting for a turn, or for a connection."""


class OutcomeUnknown(TransportError):  # noqa: N818 - as its siblings
    """The cause of an error: the request was sent before, and may have been carried out then."""


class LineTooLong(TransportError):  # noqa: N818 - named as its siblings in the public tree are
    """A stream brought a line that is longer than any object can be."""
