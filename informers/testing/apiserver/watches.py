"""Stream the changes of one resource: what is there, then what happens, bookmarks, the end; and the faults of streams."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from informers.testing.apiserver import statuses
from informers.testing.apiserver.calls import Call, forbidden_option, invalid_options, not_one_of
from informers.testing.apiserver.connections import Connection
from informers.testing.apiserver.faults import Fault, FaultTable, Plan
from informers.testing.apiserver.reading import lag_point, pad, parse_rv
from informers.testing.apiserver.requestlog import LoggedRequest
from informers.testing.apiserver.selection import Selection
from informers.testing.apiserver.statuses import Cause, StatusError
from informers.testing.apiserver.storage import Event, ExpiredError, Record, Store, encode
from informers.testing.apiserver.wire import Wire

_PATIENCE: Final = 3.0
_NOT_OLDER: Final = "NotOlderThan"
_AT_ONCE: Final = 256  # events written with one call
_DEFAULT_TIMEOUT: Final = 1800.0


class _EndedError(Exception):
    """The stream is over; `how` goes into the log."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch asked for, checked."""

    rv: int | None
    """After which version to start; None: with what is there."""
    initial: bool
    """Whether the end of the initial events is marked (a streaming list)."""
    starts_now: bool
    bookmarks: bool
    seconds: float

    @classmethod
    def of(cls, call: Call, *, cap: float | None, streaming: bool) -> WatchOptions:
        """Read the parameters. Raises the 400, 422 or 500 that the real server has for them."""
        request = call.request
        _check(call, streaming=streaming)
        text = call.parameter("resourceVersion")
        try:
            version = parse_rv(text)
        except ValueError as error:
            raise StatusError(500, "", str(error)) from None
        initial = request.has("sendInitialEvents") and request.is_set("sendInitialEvents")
        seconds = float(call.integer("timeoutSeconds")) or _DEFAULT_TIMEOUT * (1 + random.random())
        return cls(
            rv=version or None,
            initial=initial,
            starts_now=request.has("sendInitialEvents") and not initial,
            bookmarks=request.is_set("allowWatchBookmarks"),
            seconds=seconds if cap is None else min(seconds, cap),
        )


def _check(call: Call, *, streaming: bool) -> None:
    causes: list[Cause] = []
    match = call.parameter("resourceVersionMatch")
    asked = call.request.has("sendInitialEvents")
    if asked and match != _NOT_OLDER:
        causes.append(_no_match(f"sendInitialEvents requires setting resourceVersionMatch to {_NOT_OLDER}"))
    if asked and not streaming:
        why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
        causes.append(forbidden_option("sendInitialEvents", why))
    if match and not asked:
        causes.append(_no_match("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
    if match and match != _NOT_OLDER:
        causes.append(not_one_of("resourceVersionMatch", match, f'"{_NOT_OLDER}"'))
    if call.parameter("continue"):
        causes.append(_no_match("resourceVersionMatch is forbidden when continue is provided"))
    if causes:
        raise invalid_options("ListOptions", causes)


def _no_match(why: str) -> Cause:
    return forbidden_option("resourceVersionMatch", why)


class WatchStream:
    """One open watch, run by its connection's thread. Others talk to it through `order` and `wake`."""

    def __init__(
        self,
        call: Call,
        store: Store,
        options: WatchOptions,
        *,
        connection: Connection,
        faults: FaultTable,
        stopping: threading.Event,
        bookmark_every: float,
    ) -> None:
        self.call = call
        self.connection = connection
        self._store = store
        self._options = options
        self._plan: Plan = call.plan
        self._entry: LoggedRequest = call.entry
        self._faults = faults
        self._stopping = stopping
        self._bookmark_every = bookmark_every
        self._bucket = store.bucket(call.kind)
        self._selection = Selection.parse(
            call.kind, call.target.namespace, call.parameter("labelSelector"), call.parameter("fieldSelector")
        )
        self._wire = Wire(connection, call.plan, call.entry)
        self._held_head: bytes | None = None  # the head, while HOLDHDR keeps it back
        self._orders: deque[Callable[[], None]] = deque()  # what others want done, done on this stream's thread
        self._last: Event
        self._first_event = True
        self._is_expiring = False
        self._min_rv = 0
        self._initial_rv = 0
        self._end_at = 0.0
        self._hold_until = 0.0
        self._decisive: deque[Fault] = deque()
        if call.plan.decisive is not None:
            self._decisive.append(call.plan.decisive)

    # --- from other threads ---

    @property
    def entry(self) -> LoggedRequest:
        """The request that opened it, in the log."""
        return self._entry

    def wake(self) -> None:
        """Make the stream look at what others want, and at its connection."""
        with self._store.lock:
            self._bucket.changed.notify_all()

    def end(self, how: str) -> None:
        """End the stream: `FIN` cleanly, `RST` by a reset."""

        def close() -> None:
            if how == "RST":
                self._wire.keeps = False
                self.connection.abort()
            else:
                self._release_head()
                self._wire.finish()
                self._wire.keeps = False
                self.connection.finish()
            raise _EndedError("fault")

        self._orders.append(close)
        self.wake()

    def expire(self) -> None:
        """End the stream cleanly because its resource is gone, after what has happened to it."""

        def note() -> None:
            self._is_expiring = True

        self._orders.append(note)
        self.wake()

    def strike(self, fault: Fault) -> None:
        """Let a new fault act on this open stream."""

        def act() -> None:
            self._entry.fault = _joined(self._entry.fault, fault.word)
            if fault.is_shaping:
                self._plan.shaping.append(fault)
            else:
                self._decisive.append(fault)

        self._orders.append(act)
        self.wake()

    # --- on the connection's thread ---

    def run(self) -> tuple[bool, str]:
        """Send the stream until it ends; tell whether the connection can be used again, and how it ended."""
        initial = self._start()
        self.connection.watch_for_end(self.wake)
        try:
            self._open()
            self._send_initial(initial)
            self._follow()
        except _EndedError as end:
            return self._wire.keeps, end.how
        finally:
            self.connection.stop_watching()

    def _start(self) -> Sequence[Record] | StatusError:
        """Find the place to start from: what to show first, or the error to send in the stream."""
        options, store = self._options, self._store
        wanted = options.rv
        self._end_at = time.monotonic() + options.seconds
        if options.initial and wanted is not None and store.rv < wanted:
            reached = store.wait_for_rv(wanted, _PATIENCE)
            if reached < wanted:
                return statuses.too_large_resource_version(wanted, reached)
        with store.lock:
            lag = self._plan.shape("LAG")
            now = store.rv if lag is None else min(store.rv, lag_point(lag, self._bucket))
            self._last = self._bucket.tail
            if options.initial or (wanted is None and not options.starts_now):
                shown = max(now, self._bucket.expired)
                records = self._bucket.snapshot_locked(shown)
                self._last = self._bucket.subscribe_locked(shown)
                self._initial_rv = now
                return self._selection.select(records)
            if wanted is not None:
                try:
                    self._last = self._bucket.subscribe_locked(wanted)
                except ExpiredError as error:
                    return statuses.too_old_resource_version(wanted, error.oldest)
                self._min_rv = wanted
        return ()

    def _open(self) -> None:
        """Send the head, or keep it back."""
        self._wire.hold_answer()
        head = self._wire.stream_head("application/json")
        held = self._plan.shape("HOLDHDR")
        if held is None:
            self._wire.raw(head)
        else:
            self._held_head = head
            self._hold_until = time.monotonic() + float(held.get("seconds", 3600))

    def _release_head(self) -> None:
        if self._held_head is not None:
            head, self._held_head = self._held_head, None
            self._wire.raw(head)

    def _send_initial(self, initial: Sequence[Record] | StatusError) -> None:
        self._obey()
        if isinstance(initial, StatusError):
            self._send_line(self._line("ERROR", encode(initial.to_dict())))
            raise self._finished()
        if self._is_simple():
            self._send_simple(b'{"type":"ADDED","object":', initial)
        else:
            since = time.monotonic()
            for record in initial:
                self._hold_event(since)
                self._send_event("ADDED", record)
        if self._options.initial and self._options.bookmarks:
            noend = self._plan.shape("NOEND") is not None
            self._send_bookmark(self._initial_rv, ends_initial=not noend)

    def _send_simple(self, head: bytes, records: Iterable[Record]) -> None:
        """Send events that no fault concerns, many with one write."""
        kind, form = self.call.kind, self.call.form
        lines: list[bytes] = []
        for record in records:
            lines.append(b"".join((head, form.of_event(record, kind, first=self._first_event), b"}\n")))
            self._first_event = False
            if len(lines) >= _AT_ONCE:
                self._flush(lines)
        self._flush(lines)

    def _flush(self, lines: list[bytes]) -> None:
        if lines:
            self._entry.events += len(lines)
            self._wire.raw(self._wire.frame_all(lines))
            lines.clear()
            if self._orders:
                self._obey()

    def _follow(self) -> NoReturn:
        next_bookmark = self._next_bookmark(time.monotonic())
        last_bookmark_due = self._end_at - min(2.0, self._options.seconds / 10)
        while True:
            self._obey()
            now = time.monotonic()
            if now >= self._end_at or (self._is_expiring and self._last.next is None):
                raise self._finished()
            if self._held_head is not None and now >= self._hold_until:
                self._release_head()
            if self._options.bookmarks and now >= min(next_bookmark, last_bookmark_due):
                if now >= last_bookmark_due:
                    last_bookmark_due = float("inf")
                next_bookmark = self._next_bookmark(now)
                self._send_progress()
                continue
            due = min(self._end_at, next_bookmark, last_bookmark_due)
            if self._held_head is not None:
                due = min(due, self._hold_until)
            event = self._next_event(due)
            if event is None:
                continue
            if self._is_simple():
                self._send_ready(event)
            else:
                self._hold_event(event.at)
                self._last = event
                self._send_change(event)

    def _next_bookmark(self, now: float) -> float:
        return now + self._bookmark_every if self._options.bookmarks else float("inf")

    def _next_event(self, due: float) -> Event | None:
        """Wait for the next event that this replica knows, until `due`; None when there is something else to do."""
        following = self._last.next
        lag = self._plan.shape("LAG")
        if following is not None and lag is None:
            return following
        with self._store.lock:
            while not self._orders and not self.connection.closing.is_set() and not self._stopping.is_set():
                following = self._last.next
                if following is not None and (lag is None or following.rv <= lag_point(lag, self._bucket)):
                    return following
                left = due - time.monotonic()
                if left <= 0:
                    break
                self._bucket.changed.wait(left)
                lag = self._plan.shape("LAG")
        return None

    def _send_ready(self, event: Event | None) -> None:
        """Send what has happened up to now, many events with one write."""
        kind, form = self.call.kind, self.call.form
        lines: list[bytes] = []
        while event is not None:
            self._last = event
            change = self._seen(event)
            if change is not None:
                word, record = change
                body = form.of_event(record, kind, first=self._first_event)
                self._first_event = False
                lines.append(b"".join((b'{"type":"', word, b'","object":', body, b"}\n")))
                if len(lines) >= _AT_ONCE:
                    break
            event = event.next
        self._flush(lines)

    def _send_change(self, event: Event) -> None:
        change = self._seen(event)
        if change is not None:
            word, record = change
            self._send_event(word.decode(), record)

    def _seen(self, event: Event) -> tuple[bytes, Record] | None:
        """Tell what a change looks like through this watch's selectors."""
        if event.rv <= self._min_rv:
            return None
        before, after, matches = event.before, event.after, self._selection.matches
        was = before is not None and matches(before)
        if after is not None and matches(after):
            return (b"MODIFIED" if was else b"ADDED", after)
        return (b"DELETED", event.departed()) if was else None

    def _send_event(self, word: str, record: Record) -> None:
        """Send one event, and let the faults that wait for one act on it."""
        body = self.call.form.of_event(record, self.call.kind, first=self._first_event)
        self._first_event = False
        blank = self._plan.shape("BLANK")
        if blank is not None:
            text = blank.get("text")
            self._send_line((text if text is not None else "\r\n").encode())
        fault = self._decisive[0] if self._decisive else None
        if fault is not None and self._is_due(fault):
            if fault.word == "HUGE":
                body = pad(body, float(fault.get("mb", 1.0)))
                self._decisive.popleft()
            elif fault.word == "TRUNC":
                self._release_head()
                self._wire.write(self._line(word, body)[: int(fault.get("bytes"))])
                self._wire.end_at(fault)
                raise _EndedError("fault")
        self._send_line(self._line(word, body))
        self._entry.events += 1
        self._obey()

    def _send_line(self, line: bytes) -> None:
        self._release_head()
        self._wire.write(line)

    def _line(self, word: str, body: bytes) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (word.encode(), body)

    def _send_progress(self) -> None:
        """Send a bookmark, if everything up to some version has been sent."""
        with self._store.lock:
            if self._last.next is not None:
                return
            rv = self._store.rv
        if rv >= self._min_rv and self._plan.shape("LAG") is None:
            self._send_bookmark(rv, ends_initial=False)

    def _send_bookmark(self, rv: int, *, ends_initial: bool) -> None:
        if self._plan.shape("NOBM") is None:
            body = self.call.form.bookmark(self.call.kind, rv, ends_initial=ends_initial)
            self._send_line(self._line("BOOKMARK", body))

    def _hold_event(self, since: float) -> None:
        """Wait as long as a DELAY fault holds an event back that happened at `since`."""
        delay = self._plan.shape("DELAY")
        if delay is None or delay.get("what", "answer") != "events":
            return
        due = since + float(delay.get("seconds"))
        while delay.is_active() and (left := due - time.monotonic()) > 0:
            with self._store.lock:
                if not self._orders and not self._stopping.is_set() and not self.connection.closing.is_set():
                    self._bucket.changed.wait(left)
            self._obey()

    # --- faults ---

    def _is_simple(self) -> bool:
        """Tell whether no fault can have anything to do with the next event."""
        return not self._decisive and not self._plan.shaping and self._held_head is None

    def _is_due(self, fault: Fault) -> bool:
        return fault.at_event is None or self._entry.events >= fault.at_event

    def _obey(self) -> None:
        """Do what others ordered and what faults want now; raise when that ends the stream."""
        while self._orders:
            self._orders.popleft()()
        if self.connection.closing.is_set():
            raise _EndedError("client")
        if self._stopping.is_set():
            self._wire.keeps = False
            raise _EndedError("done")
        while self._decisive and self._is_due(self._decisive[0]):
            if not self._strike_now(self._decisive[0]):
                return
            self._decisive.popleft()

    def _strike_now(self, fault: Fault) -> bool:
        """Let a fault act that needs no event to act on; tell whether it is done with."""
        match fault.word:
            case "FREEZE" | "RST" | "FIN":
                self._release_head()
                self._wire.end_at(fault)
                raise _EndedError("fault")
            case "EV":
                self._send_line(self._line("ERROR", encode(error_object(fault))))
                raise self._finished("fault")
            case "SHORT":
                raise self._finished("fault")
            case "POISON" if "line" in fault.parameters:
                self._send_line(str(fault.get("line")).encode() + b"\n")
                return True
            case "TRUNC" | "HUGE":
                return False  # waits for an event
        return True

    def _finished(self, how: str = "done") -> _EndedError:
        """End the body cleanly, and return what ends the stream."""
        self._release_head()
        self._wire.finish()
        return _EndedError(how)


def error_object(fault: Fault) -> dict[str, Any]:
    """Build the Status that an EV fault sends."""
    code = int(fault.get("code", 500))
    message = str(fault.get("message") or "injected error")
    if fault.get("bare", False):
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    default = {410: "Expired", 429: "TooManyRequests", 500: "InternalError", 504: "Timeout"}.get(code, "InternalError")
    return StatusError(code, str(fault.get("reason") or default), message).to_dict()


def _joined(words: str, word: str) -> str:
    return f"{words}+{word}" if words else word
