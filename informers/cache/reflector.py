"""Keep a store like the server: list, watch, resume, start over. Never gives up, never blocks a reader.

Where the server streams what is there, the list is the beginning of the watch: it is collected aside, swapped in when
its end comes, and the same stream goes on.

The loop has one exit, the stop signal. Every way out of a list or a watch, an unexpected exception of ours
included, becomes an `Outcome`: what to do next, and how long to wait before. What an error means is decided by
pure functions at the end of this file; what is done about it, in one place.

What is surprising: a watch that ends cleanly is not always well. One that ends at once and empty is a server (or a
proxy) that would have us ask thousands of times a second, so it counts as a failure.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from informers import metrics
from informers.api.calls import Cancel, LineTooLong, NotSent
from informers.api.transport import CONNECT_LIMIT
from informers.cache.entries import Keeper
from informers.cache.firstsyncs import FirstSyncs, Turn
from informers.cache.listwatch import (
    LIST_TIMEOUT,
    Event,
    Item,
    ListWatch,
    UndecodableError,
    Watch,
    WatchOptions,
    ends_initial,
    read_item,
)
from informers.cache.pulse import Pulse
from informers.cache.silence import Silence
from informers.cache.store import Received, Replacement, StoreWriter, is_at_least
from informers.cache.streaming import NeverEndingError, Streaming
from informers.clock import Clock, Stop
from informers.logs import Throttle, fields
from informers.meta.errors import (
    APIError,
    ConnectError,
    ConnectionLost,
    InformersError,
    RequestTimeout,
    TransportError,
    is_expired,
    is_too_large,
)
from informers.meta.objects import Envelope

_log = logging.getLogger(__name__)

Step: TypeAlias = Literal["list", "watch"]
Wait: TypeAlias = Literal["none", "backoff", "cap"]
State: TypeAlias = Literal["pending", "syncing", "synced", "watching", "forbidden", "unserved", "stopped"]

_PAGE: Final = 500
_SHORT: Final = 1.0  # a watch shorter than this (seconds) was none
_SHORT_IN_A_ROW: Final = 3
_GOOD_EVENTS: Final = 10.0  # a watch that brought events for so long was healthy
_LOOPS: Final = 3  # lists in a row that were too old for a watch when they were complete
_INITIAL_WITHIN: Final = 30.0  # a streaming list ends, or something of it has come in the last
_INITIAL_PAUSE: Final = 10.0
_NO_END: Final = "no end of what was there at first, after {} events"
_CUTS: Final = 3  # streaming lists that were cut in a row, after which a list is better
_GRACE: Final = 10.0  # that a watch is let live beyond the time that it was asked for
_MANY: Final = 1 << 30  # failures, for a wait at the cap
_LIST_BUCKETS: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0)

_L: Final = ("cluster", "resource")
_lists = metrics.counter(
    "informers_lists_total",
    "How often all that is there was asked for, as a list or as a stream, by what made it necessary",
    (*_L, "cause"),
    known={
        "cause": (
            *("start", "error", "expired", "forbidden", "unserved"),
            *("oversized", "undecodable", "short watch", "unknown version"),
        )
    },
)
_list_seconds = metrics.histogram(
    "informers_list_seconds", "From asking for what is there until it is in the store", _L, buckets=_LIST_BUCKETS
)
_skipped = metrics.counter("informers_skipped_items_total", "Objects without a usable name, uid or version", _L)
_loops = metrics.counter("informers_relist_loops_total", "Lists that took longer than the server keeps history", _L)
_watches = metrics.counter("informers_watches_total", "Watches opened", _L)
_short_watches = metrics.counter("informers_short_watches_total", "Watches that ended within a second", _L)
_watch_errors = metrics.counter("informers_watch_errors_total", "Watches that failed, by status", (*_L, "code"))
_silences = metrics.counter("informers_watch_silences_total", "Streams replaced because they were silent", _L)
_events = metrics.counter(
    "informers_watch_events_total",
    "Events received",
    (*_L, "type"),
    known={"type": ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")},
)
_undecodable = metrics.counter("informers_undecodable_events_total", "Lines that were no event", _L)
_oversized = metrics.counter("informers_oversized_events_total", "Lines longer than the limit", _L)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to do next, after which wait.

    Attributes:
        wait: `none`; `backoff`, which counts as a failure; `cap`, the longest wait, for what looks permanent.
        at_least: seconds that the server asked to wait.
        cause: why the next list is made, if one is.
        state: forbidden or unserved, when that is what is wrong.
    """

    next: Step
    wait: Wait = "backoff"
    at_least: float = 0.0
    cause: str = "error"
    state: State | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Whom a reflector tells. All run on its thread, with no lock held.

    Attributes:
        deliver: the store may hold news for handlers.
        changed: state, problem or sync may have changed.
        is_served: what discovery says of this resource; None when it does not know.
        ask_discovery: the resource answered 404.
    """

    deliver: Callable[[], None]
    changed: Callable[[], None]
    is_served: Callable[[], bool | None]
    ask_discovery: Callable[[], None]


class Reflector:
    """The loop that makes a store follow the server. `run` blocks until stopped; the rest is for any thread."""

    def __init__(
        self,
        listwatch: ListWatch,
        writer: StoreWriter,
        keeper: Keeper,
        *,
        cluster: str,
        page_size: int | None,
        options: WatchOptions,
        first_syncs: FirstSyncs,
        streaming: Streaming,
        hooks: Hooks,
        throttle: Throttle,
        clock: Clock,
        stop: Stop,
    ) -> None:
        self._listwatch = listwatch
        self._writer = writer
        self._keeper = keeper
        self._page_size = page_size
        self._options = options
        self._first_syncs = first_syncs
        self._streaming = streaming
        self._hooks = hooks
        self._throttle = throttle
        self._clock = clock
        self._stop = stop
        self._labels = {"cluster": cluster, "resource": str(listwatch.gvr)}
        self._pulse = Pulse(clock)

        # Of the loop's own thread.
        self._rv = "0"  # where to go on: a list not older than this, a watch of what came after
        self._must_be_newest = False  # the server could not serve our version: list with none
        self._is_paged = False  # this resource has no watch cache, so lists in one piece are dear
        self._failures = 0
        self._short_in_a_row = 0
        self._expired_in_a_row = 0
        self._has_progressed = False  # since the last list
        self._cause = "start"
        self._cuts_in_a_row = 0  # of streaming lists
        self._silence = Silence.of(options.silence)
        self._begun: _Run | None = None  # the stream that brought what is there, to go on with

        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._cancel: Cancel | None = None
        self._is_nudged = False
        self._has_bookmarks = False  # they come for this resource, so a silent stream is dead
        self._state: State = "pending"
        self._problem: InformersError | None = None
        self._has_synced = False
        self._last_sign: float | None = None
        self._listed = 0

    # For any thread.

    def state(self) -> State:
        """Return what the loop is at."""
        with self._changed:
            return self._state

    def problem(self) -> InformersError | None:
        """Return what went wrong last, None once it went well again."""
        with self._changed:
            return self._problem

    def has_synced(self) -> bool:
        """Tell whether the first list is in the store and was shown to the handlers."""
        with self._changed:
            return self._has_synced

    def last_sign(self) -> float | None:
        """Return when the server was last heard of, on the monotonic clock; None before the first time."""
        with self._changed:
            return self._last_sign

    def listed(self) -> int:
        """Return how many objects the last list had."""
        with self._changed:
            return self._listed

    def late(self) -> float:
        """Return for how many seconds longer than it may the loop has taken no step; 0 while all is well."""
        return self._pulse.late()

    def nudge(self) -> None:
        """Look again now, if the loop waits because the resource is not served."""
        with self._changed:
            if self._state == "unserved":
                self._is_nudged = True
                self._changed.notify_all()

    def replace_stream(self) -> bool:
        """Cut the open watch, which is then resumed; False when bookmarks are not known to come, so nothing is known."""
        with self._changed:
            cancel = self._cancel if self._state == "watching" and self._has_bookmarks else None
        if cancel is not None:
            cancel.cancel()
        return cancel is not None

    # The loop.

    def run(self) -> None:
        """Follow the server until stopped."""
        take_off = self._stop.on_set(self._interrupt)
        step: Step = "list"
        try:
            self._pulse.expect(0.0)
            while not self._stop.is_set():
                outcome = self._take(step)
                if self._stop.is_set():
                    break
                step = self._prepare(step, outcome)
                self._pause(self._delay(outcome))
        finally:
            take_off()
            if self._begun is not None and self._begun.watch is not None:
                self._begun.watch.stream.close()
            self._set_state("stopped")
            self._pulse.expect(math.inf)

    def _take(self, step: Step) -> Outcome:
        """Take one step; whatever happens in it has an outcome."""
        try:
            return self._list() if step == "list" else self._watch()
        except Exception as error:  # noqa: BLE001 - the loop must outlive every fault of a server and of ours
            outcome = after_list_error(error) if step == "list" else after_watch_error(error)
            if not self._stop.is_set():
                self._note_failure(step, error, outcome)
            return outcome

    def _prepare(self, taken: Step, outcome: Outcome) -> Step:
        """Make ready for what comes next."""
        if outcome.wait == "backoff":
            self._failures += 1
        if taken == outcome.next == "watch" and self._rv in {"", "0"}:
            # With no version to go on from, a watch would hide what was deleted in between.
            self._cause = "unknown version"
            return "list"
        if outcome.next == "list":
            self._cause = outcome.cause
        return outcome.next

    def _delay(self, outcome: Outcome) -> float:
        match outcome.wait:
            case "none":
                return 0.0
            case "cap":
                return max(self._options.backoff.delay(_MANY), outcome.at_least)
            case "backoff":
                return max(self._options.backoff.delay(self._failures), outcome.at_least)

    def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            return
        self._pulse.expect(seconds)
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while not self._stop.is_set() and not self._is_nudged:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    break
                self._clock.wait(self._changed, left)
            self._is_nudged = False

    # What is there: as a stream, or as a list.

    def _list(self) -> Outcome:
        if self.has_synced():
            return self._start_over(None)
        self._pulse.expect(math.inf)  # others have their turn, each with a server that may be slow
        with self._first_syncs.turn(self._stop) as turn:
            if turn is None:
                return Outcome("list", wait="none")
            if self.state() == "pending":
                self._set_state("syncing")
            return self._start_over(turn)

    def _start_over(self, turn: Turn | None) -> Outcome:
        self._pulse.expect(LIST_TIMEOUT)
        must_list = False
        may_stream = self._may_stream()
        if self._stop.is_set():
            return Outcome("list", wait="none")
        _lists.add(1, cause=self._cause, **self._labels)
        if may_stream:
            try:
                self._stream(turn)
                return Outcome("watch", wait="none")
            except Exception as error:  # noqa: BLE001 - as in _take
                outcome = self._after_stream(error)
                if outcome is not None or self._stop.is_set():
                    return outcome or Outcome("list", wait="none")
                must_list = not isinstance(error, NeverEndingError | ConnectionLost)
        self._relist(turn)
        if must_list:
            # Only now: where a list is refused too, it is not streaming that the server cannot do.
            self._streaming.note_refusal(self._listwatch.gvr)
        return Outcome("watch", wait="none")

    def _may_stream(self) -> bool:
        """Tell whether to ask for a stream: at the start, and when our version is too old to go on from."""
        if self.has_synced() and self._cause != "expired":
            return False
        return self._streaming.is_offered(
            self._listwatch.gvr, in_pages=self._page_size is not None, stop=self._stop, cancel=self._new_cancel()
        )

    def _stream(self, turn: Turn | None) -> None:
        """Collect what is there from the beginning of a watch, and leave the watch open for the next step."""
        rv = self._rv if self._has_version() else ""
        run = self._new_run(is_ordered=False)
        replacement = self._writer.replacement()
        try:
            watch = self._open(run, rv, initial_within=_INITIAL_WITHIN)
            for event in run.incoming:
                now = self._see()
                run.events += 1
                run.last_event = now
                if event.type == "ADDED":  # what else comes says nothing about the end: changes may come for ever
                    until = max(run.started + _INITIAL_WITHIN, now + _INITIAL_PAUSE)
                    watch.stream.until = min(until, run.started + run.seconds + _GRACE)
                if turn is not None:
                    turn.renew()
                if event.type != "BOOKMARK":
                    self._collect_event(replacement, event)
                elif ends_initial(event.item):
                    self._end_initial(replacement, event.item, run, is_newest=not rv)
                    self._begun = run
                    return
            if self._clock.monotonic() - run.started >= run.seconds - _SHORT:
                raise NeverEndingError(_NO_END.format(run.events))
            msg = "the stream ended before what was there at first"
            raise ConnectionLost(msg)
        except RequestTimeout as error:
            if run.watch is None:
                raise
            if self._clock.monotonic() >= run.watch.stream.until:
                raise NeverEndingError(_NO_END.format(run.events)) from error
            self._note_silence(run)
            msg = "the stream went silent before the end of what was there at first"
            raise ConnectionLost(msg) from error
        finally:
            if self._begun is not run:
                self._judge(run)
                if run.watch is not None:
                    run.watch.stream.close()

    def _collect_event(self, replacement: Replacement, event: Event) -> None:
        _events.add(1, type=event.type, **self._labels)
        envelope = self._usable(event.item)
        if envelope is None:
            return
        if not self._keeper.kind and envelope.kind != "PartialObjectMetadata":
            self._keeper.kind = envelope.kind
        if self._has_other_kind(envelope):
            return
        if event.type == "DELETED":
            replacement.remove(_key_of(envelope))
        else:
            self._collect(replacement, event.item, envelope)

    def _end_initial(self, replacement: Replacement, bookmark: Item, run: _Run, *, is_newest: bool) -> None:
        """Swap in what was collected; from now on the stream is a watch like any other."""
        envelope = bookmark.envelope
        if envelope is None or not envelope.metadata.resource_version:
            msg = "the end of what was there at first has no version"
            raise UndecodableError(msg, length=len(memoryview(bookmark.raw)))
        _events.add(1, type="BOOKMARK", **self._labels)
        if not self._keeper.kind and envelope.kind != "PartialObjectMetadata":
            self._keeper.kind = envelope.kind
        assert run.watch is not None
        self._note_bookmark(run.watch)
        run.watch.stream.until = run.started + run.seconds + _GRACE
        run.is_ordered = True
        rv = envelope.metadata.resource_version
        self._take_over(replacement, rv, is_newest=is_newest, started=run.started)

    def _after_stream(self, error: Exception) -> Outcome | None:
        """Learn from a streaming list that failed; return what follows, None if that is a list in its place."""
        self._cuts_in_a_row = self._cuts_in_a_row + 1 if isinstance(error, ConnectionLost) else 0
        outcome = after_stream_error(error, has_version=self._has_version())
        if self._cuts_in_a_row >= _CUTS:
            outcome = None
        if self._stop.is_set():
            return outcome
        if isinstance(error, NeverEndingError):
            self._streaming.mark(self._listwatch.gvr, str(error))
        if is_expired(error) or is_too_large(error):
            self._must_be_newest = True
        if outcome is None:
            self._cuts_in_a_row = 0
            self._count(error)
            if isinstance(error, InformersError):
                _log.debug("streaming list failed, listing", extra=fields(error=str(error)))
            else:
                _log.exception("step failed unexpectedly", extra=fields(step="stream"))
            return None
        outcome = replace(outcome, cause=self._cause)
        self._note_failure("stream", error, outcome)
        return outcome

    def _has_version(self) -> bool:
        """Tell whether what we ask for must be at least as new as what we have seen."""
        return not self._must_be_newest and self._rv not in {"", "0"}

    def _relist(self, turn: Turn | None) -> None:
        if not self._has_version():
            self._list_from("" if self._must_be_newest else self._rv, turn)
        else:
            try:
                self._list_from(self._rv, turn)
            except APIError as error:
                if not (is_expired(error) or is_too_large(error)):
                    raise
                # This replica cannot serve our version, or never will: once, at once, what is newest.
                _log.debug("version not served, listing the newest", extra=fields(error=error.reason))
                self._must_be_newest = True
                self._list_from("", turn)

    def _list_from(self, rv: str, turn: Turn | None) -> None:
        started = self._clock.monotonic()
        cancel = self._new_cancel()
        self._learn_kind(cancel)
        self._pulse.expect(LIST_TIMEOUT)
        replacement = self._writer.replacement()
        list_rv = self._collect_pages(rv, replacement, cancel, turn)
        # Nothing of the answer is alive any more here, so that it is not in memory beside what handlers make of it.
        self._take_over(replacement, list_rv, is_newest=not rv or self._page_size is not None, started=started)

    def _collect_pages(self, rv: str, replacement: Replacement, cancel: Cancel, turn: Turn | None) -> str:
        """Ask for the list and keep what is in it; return the list's version."""
        list_rv = ""
        for page in self._listwatch.pages(rv=rv, cancel=cancel, page_size=self._page_size, paged=self._is_paged):
            self._see()
            if turn is not None:
                turn.renew()
            if page.is_first:
                replacement.clear()
                list_rv = page.rv
                if page.kind and page.kind != "PartialObjectMetadata":
                    self._keeper.kind = page.kind
                if page.has_more and rv == "0":
                    self._is_paged = True
            for raw in page.items:
                item = read_item(raw)
                envelope = self._usable(item)
                if envelope is not None:
                    self._collect(replacement, item, envelope)
        return list_rv

    def _take_over(self, replacement: Replacement, rv: str, *, is_newest: bool, started: float) -> None:
        """Swap in what is there, and tell of it."""
        count = len(replacement.items)
        self._writer.replace(replacement, rv, is_newest=is_newest)
        self._rv = rv
        with self._changed:
            self._listed = count
        _list_seconds.observe(self._clock.monotonic() - started, **self._labels)
        _log.debug("listed", extra=fields(items=count, rv=rv, cause=self._cause))
        self._deliver()
        self._cuts_in_a_row = 0
        self._must_be_newest = False
        self._has_progressed = False
        self._set_state("synced", problem=None, has_synced=True)

    def _learn_kind(self, cancel: Cancel) -> None:
        if self._keeper.needs_kind():
            self._keeper.kind = self._listwatch.peek(cancel=cancel, whole=True).kind

    def _collect(self, replacement: Replacement, item: Item, envelope: Envelope) -> None:
        meta = envelope.metadata
        key = _key_of(envelope)
        if not replacement.keep_unchanged(key, meta.uid, meta.resource_version):
            if self._writer.wants_body(key):
                replacement.add(Received(self._keeper.keep(item)))
            else:
                kept = self._keeper.keep_metadata(item)
                replacement.add(Received(kept, kept))

    def _usable(self, item: Item) -> Envelope | None:
        """Return the outermost fields of an object that can be stored; skip, count and log others once per key."""
        envelope = item.envelope
        if envelope is not None:
            meta = envelope.metadata
            if meta.name and meta.uid and meta.resource_version:
                return envelope
        key = "" if envelope is None else f"{envelope.metadata.namespace or ''}/{envelope.metadata.name}"
        _skipped.add(1, **self._labels)
        if self._throttle.allow(("unusable", key)):
            _log.warning("object skipped: no usable metadata", extra=fields(key=key, bytes=len(memoryview(item.raw))))
        return None

    # One watch.

    def _watch(self) -> Outcome:
        run, self._begun = self._begun, None
        if run is None:
            run = self._new_run(is_ordered=self._rv not in {"", "0"})
        try:
            with run.watch or self._open(run, self._rv) as watch:
                self._set_state("watching", problem=None)
                for event in run.incoming:
                    run.events += 1
                    run.last_event = self._see()
                    self._heed_byte(watch)
                    self._take_in(event, run, watch)
        except RequestTimeout:
            if self._clock.monotonic() < run.started + run.seconds + _GRACE:
                self._note_silence(run)
            raise
        finally:
            if self.state() == "watching":
                self._set_state("synced")
            self._judge(run)
        return self._after_clean_end(run)

    def _new_run(self, *, is_ordered: bool) -> _Run:
        seconds = int(random.uniform(self._options.timeout, 2 * self._options.timeout))
        return _Run(self._clock.monotonic(), seconds, is_ordered)

    def _open(self, run: _Run, rv: str, *, initial_within: float | None = None) -> Watch:
        cancel = self._new_cancel()
        if initial_within is not None:
            self._learn_kind(cancel)
        _watches.add(1, **self._labels)
        silence = self._limit_of_silence(run.seconds)
        self._pulse.expect(max(silence, CONNECT_LIMIT))
        watch = self._listwatch.watch(
            rv=rv,
            seconds=run.seconds,
            silence=silence,
            cancel=cancel,
            initial_within=initial_within,
        )
        run.watch, run.incoming = watch, watch.events()
        self._see()
        return watch

    def _limit_of_silence(self, seconds: int) -> float:
        longest = seconds + _GRACE
        return min(self._silence.limit, longest) if self._knows_bookmarks() else longest

    def _heed_byte(self, watch: Watch) -> None:
        if self._silence.alarms:
            self._silence = self._silence.after_byte()
            watch.stream.silence = self._silence.limit
            self._pulse.expect(self._silence.limit)

    def _note_silence(self, run: _Run) -> None:
        _silences.add(1, **self._labels)
        if self._knows_bookmarks():
            has_received = run.watch is not None and run.watch.stream.has_received
            self._silence = self._silence.after_alarm(was_answered=run.watch is not None, has_received=has_received)

    def _take_in(self, event: Event, run: _Run, watch: Watch) -> None:
        _events.add(1, type=event.type, **self._labels)
        if event.type == "BOOKMARK":
            run.is_ordered = True  # what was there at first has been sent
            self._take_bookmark(event.item, watch)
            return
        envelope = self._usable(event.item)
        if envelope is None:
            return
        if self._has_other_kind(envelope):
            return
        if event.type != "ADDED":
            run.is_ordered = True
        if event.type == "DELETED":
            self._writer.delete(self._keeper.keep(event.item), moves_rv=True)
        else:
            self._store(event.item, envelope, moves_rv=run.is_ordered)
        self._advance(envelope.metadata.resource_version, moves=run.is_ordered)
        self._deliver()

    def _has_other_kind(self, envelope: Envelope) -> bool:
        if not self._keeper.has_other_kind(envelope):
            return False
        if self._throttle.allow(("kind", envelope.kind)):
            _log.warning("event about another kind skipped", extra=fields(kind=envelope.kind))
        return True

    def _store(self, item: Item, envelope: Envelope, *, moves_rv: bool) -> None:
        meta = envelope.metadata
        if self._writer.unchanged(_key_of(envelope), meta.uid, meta.resource_version) is not None:
            if moves_rv:
                self._writer.bookmark(meta.resource_version)
            return
        metadata = self._keeper.keep_metadata(read_item(item.raw)) if self._writer.is_selective() else None
        self._writer.apply(Received(self._keeper.keep(item), metadata), moves_rv=moves_rv)

    def _take_bookmark(self, item: Item, watch: Watch) -> None:
        rv = item.envelope.metadata.resource_version if item.envelope is not None else ""
        if not rv:
            return
        self._note_bookmark(watch)
        self._writer.bookmark(rv)
        self._advance(rv, moves=True)
        self._deliver()

    def _note_bookmark(self, watch: Watch) -> None:
        if not self._knows_bookmarks():
            with self._changed:
                self._has_bookmarks = True
            watch.stream.silence = self._silence.limit
            self._pulse.expect(self._silence.limit)

    def _knows_bookmarks(self) -> bool:
        with self._changed:
            return self._has_bookmarks

    def _advance(self, rv: str, *, moves: bool) -> None:
        if moves and is_at_least(rv, self._rv) is not False:
            self._rv = rv
            self._has_progressed = True

    def _judge(self, run: _Run) -> None:
        """Learn from how a watch went; called however it ended."""
        lasted = self._clock.monotonic() - run.started
        self._short_in_a_row = self._short_in_a_row + 1 if lasted < _SHORT else 0
        if lasted < _SHORT:
            _short_watches.add(1, **self._labels)
        if lasted >= self._options.backoff.reset or run.last_event - run.started >= _GOOD_EVENTS:
            self._failures = 0

    def _after_clean_end(self, run: _Run) -> Outcome:
        lasted = self._clock.monotonic() - run.started
        return after_clean_end(lasted=lasted, events=run.events, short_in_a_row=self._short_in_a_row)

    # What went wrong.

    def _note_failure(self, step: Step | Literal["stream"], error: Exception, outcome: Outcome) -> None:
        code = str(error.status) if isinstance(error, APIError) else type(error).__name__
        if step != "list":
            _watch_errors.add(1, code=code, **self._labels)
        self._count(error)
        is_cut = isinstance(error, ConnectionLost | RequestTimeout) and step == "watch"
        # The line before the state: who waits for the state finds what is said about it.
        if is_cut or (step != "list" and (is_expired(error) or isinstance(error, ConnectionLost))):
            _log.debug("watch ended", extra=fields(error=type(error).__name__))
        elif not isinstance(error, InformersError):
            _log.exception("step failed unexpectedly", extra=fields(step=step))
        elif self._throttle.allow((step, code, outcome.state)):
            _log.warning("step failed", extra=fields(step=step, error=str(error), state=outcome.state or ""))
        if step == "watch" and is_expired(error):
            self._note_expired()
        if is_cut:
            return
        problem = error if isinstance(error, InformersError) else InformersError(f"{type(error).__name__} in the loop")
        if outcome.state is not None:
            self._set_state(outcome.state, problem=problem)
        else:
            self._clear_verdict(problem)
        if outcome.state == "unserved":
            self._note_unserved()  # after the state is set: what discovery finds out meanwhile must nudge us

    def _count(self, error: Exception) -> None:
        if isinstance(error, LineTooLong):
            _oversized.add(1, **self._labels)
        elif isinstance(error, UndecodableError):
            _undecodable.add(1, **self._labels)

    def _note_expired(self) -> None:
        self._expired_in_a_row = 0 if self._has_progressed else self._expired_in_a_row + 1
        if self._expired_in_a_row >= _LOOPS:
            self._expired_in_a_row = 0
            _loops.add(1, **self._labels)
            if self._page_size is None:
                self._page_size = _PAGE
            _log.warning("lists take longer than the server keeps history, listing in pages")

    def _note_unserved(self) -> None:
        """The resource answered 404: its objects are gone once discovery says so too."""
        self._hooks.ask_discovery()
        if self._hooks.is_served() is False and len(self._writer.store):
            self._writer.clear()
            self._deliver()
            self._hooks.changed()

    # State, and who is told of it.

    def _deliver(self) -> None:
        self._hooks.deliver()

    def _see(self) -> float:
        now = self._clock.monotonic()
        with self._changed:
            self._last_sign = now
        self._pulse.beat(now)
        return now

    def _set_state(
        self, state: State, *, problem: InformersError | None = None, has_synced: bool | None = None
    ) -> None:
        with self._changed:
            before = (self._state, self._has_synced, self._problem)
            self._state = state
            self._problem = problem
            if has_synced is not None:
                self._has_synced = has_synced
            is_news = before != (self._state, self._has_synced, self._problem)
        if is_news:
            self._hooks.changed()

    def _clear_verdict(self, problem: InformersError) -> None:
        """Remember what is wrong, in a state that says no more than how far we are."""
        self._set_state("synced" if self.has_synced() else "syncing", problem=problem)

    def _new_cancel(self) -> Cancel:
        """Make what cuts the next call. A stop that came a moment ago cuts it at once."""
        cancel = Cancel()
        with self._changed:
            self._cancel = cancel
        if self._stop.is_set():
            cancel.cancel()
        return cancel

    def _interrupt(self) -> None:
        """Run by who stops us: end a blocked read, and any wait."""
        with self._changed:
            cancel = self._cancel
            self._changed.notify_all()
        if cancel is not None:
            cancel.cancel()


@dataclass(slots=True)
class _Run:
    """How one watch goes."""

    started: float
    seconds: int  # that it was asked to last
    is_ordered: bool  # versions of events grow, as after a list; the first ADDED of a watch without one do not
    watch: Watch | None = None  # once the server has answered
    incoming: Iterator[Event] = field(default_factory=lambda: iter(()))
    events: int = 0
    last_event: float = 0.0


def _key_of(envelope: Envelope) -> str:
    meta = envelope.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def after_list_error(error: Exception) -> Outcome:
    """Decide what follows a list that failed."""
    if isinstance(error, APIError):
        if error.status == 403:
            return Outcome("list", wait="cap", at_least=error.retry_after or 0.0, cause="forbidden", state="forbidden")
        if error.status in {404, 405}:
            return Outcome("list", wait="cap", at_least=error.retry_after or 0.0, cause="unserved", state="unserved")
        return Outcome("list", at_least=error.retry_after or 0.0)
    return Outcome("list")


def after_stream_error(error: Exception, *, has_version: bool) -> Outcome | None:
    """Decide what follows a streaming list that failed; None is a list in its place, at once.

    `has_version` says that a version was asked for, which the server may not be able to serve.
    """
    if isinstance(error, APIError):
        wait = error.retry_after or 0.0
        if is_expired(error) or is_too_large(error):
            return Outcome("list", wait="none" if has_version else "backoff", at_least=0.0 if has_version else wait)
        if error.status in {0, 401, 408, 429} or error.status >= 500:
            return Outcome("list", at_least=wait)
        return None  # refused, or answered with something else
    if isinstance(error, LineTooLong) or (isinstance(error, RequestTimeout) and not isinstance(error, NotSent)):
        return None  # headers may be held back, by a proxy say, until more has come than will
    if isinstance(error, TransportError):
        return Outcome("list")
    return None


def after_watch_error(error: Exception) -> Outcome:
    """Decide what follows a watch that could not be opened, was cut, or ended with an error inside."""
    if isinstance(error, APIError):
        wait = error.retry_after or 0.0
        if is_expired(error) or is_too_large(error):
            return Outcome("list", at_least=wait, cause="expired")
        match error.status:
            case 401 | 429:
                return Outcome("watch", at_least=wait)
            case 403:
                return Outcome("watch", wait="cap", at_least=wait, state="forbidden")
            case 404 | 405:
                # Found out by a list, which asks discovery.
                return Outcome("list", at_least=wait, cause="unserved", state="unserved")
            case _:
                return Outcome("list", at_least=wait)
    if isinstance(error, LineTooLong):
        return Outcome("list", cause="oversized")
    if isinstance(error, ConnectError | ConnectionLost | RequestTimeout | TransportError):
        # Cut, silent or refused: nothing says that our version is too old.
        return Outcome("watch")
    if isinstance(error, UndecodableError):
        return Outcome("list", cause="undecodable")
    return Outcome("list")


def after_clean_end(*, lasted: float, events: int, short_in_a_row: int) -> Outcome:
    """Decide what follows a watch that ended well, after so many seconds with so many events.

    `short_in_a_row` counts watches, this one included, of under a second.
    """
    if lasted < _SHORT and not events:
        return Outcome("list", cause="short watch")
    if short_in_a_row >= _SHORT_IN_A_ROW:
        return Outcome("watch")
    return Outcome("watch", wait="none")
