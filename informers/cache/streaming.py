"""Know of which resources a cluster sends what is there as the beginning of a watch (a streaming list).

The cluster's version is asked for once, and only by who must know it; a server that does not tell it is asked for
lists. What is surprising: a server may say that it can and then cannot, for one resource or behind one proxy. So what
is refused twice, or never ends, is remembered for as long as the process runs.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Final

import msgspec

from informers import metrics
from informers.api.calls import Cancel
from informers.api.transport import Transport
from informers.cache.listwatch import Initial
from informers.clock import Clock, Stop
from informers.logs import fields
from informers.meta.errors import APIError, InformersError, TransportError
from informers.meta.resources import GVR

_log = logging.getLogger(__name__)
_unsupported = metrics.gauge(
    "informers_streaming_unsupported",
    "1 if this resource is listed because it cannot be streamed",
    ("cluster", "resource"),
)

# Streaming lists are on by default from this version of the server on: https://kep.k8s.io/3157
_SINCE: Final = (1, 34)
_ANSWER_WITHIN: Final = 5.0
_ASK_AGAIN: Final = 60.0
_REFUSALS: Final = 2
_DIGITS: Final = re.compile(r"[0-9]+")


class Streaming:
    """What one cluster can stream. Use it from any thread."""

    def __init__(self, transport: Transport, *, initial: Initial, clock: Clock) -> None:
        self._transport = transport
        self._initial = initial
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._is_new_enough: bool | None = None  # None: nobody knows
        self._is_asking = False
        self._ask_at = clock.monotonic()
        self._refusals: dict[GVR, int] = {}
        self._marked: set[GVR] = set()

    def is_offered(self, gvr: GVR, *, in_pages: bool, stop: Stop, cancel: Cancel) -> bool:
        """Tell whether to ask for a stream of this resource; `in_pages` says that it would be listed in pages.

        May ask the server for its version, or wait for another thread that does; at most 5 s, and until `stop`.
        """
        with self._changed:
            is_marked = gvr in self._marked
        if is_marked:
            # Its series went with the last informer of the resource, and the mark did not.
            _unsupported.set(1, cluster=self._transport.cluster, resource=str(gvr))
        if is_marked or self._initial == "list":
            return False
        if self._initial == "stream":
            return True
        return not in_pages and self._has_version(stop, cancel)

    def note_refusal(self, gvr: GVR) -> None:
        """Remember that a stream was refused and a list was not; the second time the resource is listed from then on."""
        with self._changed:
            self._refusals[gvr] = self._refusals.get(gvr, 0) + 1
            is_over = self._refusals[gvr] >= _REFUSALS
        if is_over:
            self.mark(gvr, "refused twice")

    def mark(self, gvr: GVR, why: str) -> None:
        """List this resource from now on."""
        with self._changed:
            is_news = gvr not in self._marked
            self._marked.add(gvr)
        if is_news:
            _unsupported.set(1, cluster=self._transport.cluster, resource=str(gvr))
            _log.warning("resource cannot be streamed, listing it from now on", extra=fields(why=why))

    def _has_version(self, stop: Stop, cancel: Cancel) -> bool:
        take_off = stop.on_set(self._wake)
        try:
            with self._changed:
                while self._is_asking and not stop.is_set():
                    self._clock.wait(self._changed, None)
                if self._is_new_enough is not None or stop.is_set() or self._clock.monotonic() < self._ask_at:
                    return bool(self._is_new_enough)
                self._is_asking = True
        finally:
            take_off()
        found: bool | None = None
        ask_at = self._clock.monotonic()
        try:
            found = self._ask(cancel)
            if found is None and not cancel.is_cancelled():
                ask_at = self._clock.monotonic() + _ASK_AGAIN
        finally:
            with self._changed:
                self._is_asking = False
                self._is_new_enough, self._ask_at = found, ask_at
                self._changed.notify_all()
        return bool(found)

    def _ask(self, cancel: Cancel) -> bool | None:
        """Ask for the version; None when that is worth another try."""
        try:
            response = self._transport.request(
                "GET",
                "/version",
                timeout=_ANSWER_WITHIN,
                cancel=cancel,
                retry_safe=True,
                unlimited=True,
                part="informer",
            )
        except (APIError, TransportError) as error:
            _log.debug("version not known, listing", extra=fields(error=str(error)))
            is_final = isinstance(error, APIError) and error.status < 500 and error.status not in {401, 429}
            return False if is_final else None
        return is_new_enough(response.body)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Version(msgspec.Struct):
    major: str = ""
    minor: str = ""


_decode_version: Final = msgspec.json.Decoder(_Version).decode


def is_new_enough(version: bytes) -> bool:
    """Tell whether a server that says this of its version streams lists unless it is told not to."""
    try:
        found = _decode_version(version)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    # Some providers put a "+" behind the minor version.
    numbers = [_DIGITS.match(text) for text in (found.major, found.minor)]
    return all(numbers) and tuple(int(each[0]) for each in numbers if each) >= _SINCE


class NeverEndingError(InformersError):
    """What was there at first was not marked as complete in time: the server does not know that it should be."""
