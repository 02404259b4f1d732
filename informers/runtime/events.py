"""EventRecorder: tell people, by Kubernetes Events on an object, what was done with it; never in anybody's way.

`event()` only puts a note into a buffer. One thread sends: it counts repetitions into one Event, folds a flood of
different notes, and holds back an object that has too much to say. What cannot be sent is dropped and counted.

What is surprising: an Event of which nothing new is heard for ten minutes is over; the same note is a new one then.
"""

from __future__ import annotations

import logging
import math
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, Literal, Protocol, TypeAlias

from cachetools import TTLCache

from informers import metrics
from informers.backoff import Backoff
from informers.clock import Clock
from informers.logs import Throttle, fields
from informers.meta.errors import (
    AlreadyExistsError,
    APIError,
    ForbiddenError,
    InformersError,
    NotFoundError,
    NotLeaderError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from informers.meta.objects import JSON, Object
from informers.meta.resources import GVR, ObjectRef

_log = logging.getLogger(__name__)

EventType: TypeAlias = Literal["Normal", "Warning"]

_NEW: Final = GVR("events.k8s.io", "v1", "events")
_CORE: Final = GVR("", "v1", "events")
_COMBINED: Final = "(combined from similar events)"
_TYPES: Final = frozenset({"Normal", "Warning"})

_BUFFER: Final = 1000
# In bytes, as the API server counts.
_NOTE: Final = 1024
_TEXT: Final = 128
_OVER: Final = 600.0  # seconds after which a series is over, and a namespace is tried again
_SERIES_PAUSE: Final = 60.0
_DIFFERENT_NOTES: Final = 25
_BURST: Final = 25.0
_REFILL: Final = 300.0  # seconds for one more
_FULL: Final = _BURST * _REFILL  # seconds until an object may say as much as one that has said nothing
_KNOWN: Final = 4096  # objects remembered
_CALL: Final = 2.0  # seconds for one request, so that a stop is not held up for longer
_FLUSH: Final = 2.0
_TRIES: Final = 10
_RETRY: Final = Backoff(base=1.0, cap=30.0)

_sent = metrics.counter("informers_events_sent_total", "Events created or counted up on the server")
_REASONS: Final = ("failed", "fenced", "forbidden", "not found", "overflow", "rate", "refused", "stopped")
_dropped = metrics.counter(
    "informers_events_dropped_total", "Events that were not sent", ("reason",), known={"reason": _REASONS}
)


class Writer(Protocol):
    """What writes Events; a `Client`."""

    def create(
        self,
        gvr: GVR,
        body: Mapping[str, JSON],
        *,
        namespace: str = "",
        cluster: str = "",
        field_manager: str,
        timeout: float | None = None,
    ) -> Object:
        """Create an object."""
        ...

    def patch(
        self, ref: ObjectRef, patch: Mapping[str, JSON], *, field_manager: str, timeout: float | None = None
    ) -> Object:
        """Change an object."""
        ...


class Opening(Protocol):
    """What says whether anything may be written; a `Fence`."""

    def is_open(self) -> bool:
        """Tell whether a write may be sent now."""
        ...


@dataclass(frozen=True, slots=True)
class _About:
    """Whom an Event is about, as Events say it."""

    ref: ObjectRef
    kind: str
    api_version: str
    uid: str
    resource_version: str

    @property
    def namespace(self) -> str:
        """Where its Events are."""
        return self.ref.namespace or "default"

    def body(self) -> Mapping[str, JSON]:
        ref = self.ref
        told = {
            "apiVersion": self.api_version or ref.gvr.group_version,
            "kind": self.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        }
        return {name: value for name, value in told.items() if value}


@dataclass(frozen=True, slots=True)
class _Note:
    """What a caller said, and when."""

    about: _About
    related: _About | None
    type: str
    reason: str
    note: str
    action: str
    at: datetime


@dataclass(slots=True, eq=False)
class _Series:
    """One Event: what it says, how often it was said, and what of that the server knows."""

    said: _Note
    name: str
    seen: float  # when it was said last
    next_call: float
    last: datetime
    count: int = 1
    told: int = 0  # the count that the server knows; 0 = it has no Event
    api: GVR | None = None  # by which the Event was made
    tries: int = 0


@dataclass(slots=True, eq=False)
class _Known:
    """What was said of one object in the last ten minutes."""

    series: dict[tuple[str, ...], _Series] = field(default_factory=dict)
    notes: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)  # type and reason -> note -> when


@dataclass(slots=True, eq=False)
class _Budget:
    """How many calls one object may cause now; remembered for longer than what was said of it."""

    filled: float
    tokens: float = _BURST

    def take(self, now: float) -> bool:
        """Take one call."""
        self.tokens = min(_BURST, self.tokens + (now - self.filled) / _REFILL)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EventRecorder:
    """Record Events about objects. Made by a `Manager`; use it from any thread.

    Each cluster has a buffer and a thread of its own: one that does not answer keeps no other's Events.
    """

    def __init__(
        self,
        client: Writer,
        *,
        program: str,
        instance: str,
        fence: Opening,
        clock: Clock,
        find: Callable[[ObjectRef], Object | None],
        kind_of: Callable[[ObjectRef], str],
        start_thread: Callable[[str, Callable[[], None]], None],
        dry_run: bool = False,
    ) -> None:
        self._make = partial(
            _Sender,
            client,
            program=program,
            instance=instance,
            fence=fence,
            clock=clock,
            kind_of=kind_of,
            dry_run=dry_run,
        )
        self._clock = clock
        self._find = find
        self._start_thread = start_thread
        self._lock = threading.Lock()  # guards all below
        self._senders: dict[str, _Sender] = {}
        self._is_started = False
        self._is_stopped = False

    def event(
        self,
        about: ObjectRef | Object,
        *,
        type: EventType,  # noqa: A002 - the field's name
        reason: str,
        note: str,
        action: str = "Reconcile",
        related: ObjectRef | None = None,
    ) -> None:
        """Say something about an object where people look for it. Never blocks, never raises.

        `reason` is one word in CamelCase, `note` a sentence for people: at most 1,024 bytes, and never a secret's
        value. What cannot be sent is dropped and counted.
        """
        try:
            said = _Note(
                about=self._describe(about),
                related=None if related is None else self._describe(related),
                type=type if type in _TYPES else "Warning",
                reason=_cut(reason, _TEXT) or "Unknown",
                note=_shortened(note, _NOTE),
                action=_cut(action, _TEXT) or "Reconcile",
                at=self._clock.utc_now(),
            )
            self._sender_of(said.about.ref.cluster).put(said)
        except Exception as error:  # noqa: BLE001 - to tell must never harm the one who tells
            _drop("failed", error)

    def start(self) -> None:
        """Send from now on; a cluster's thread starts with the first Event about one of its objects."""
        with self._lock:
            self._is_started = True
            senders = tuple(self._senders.values())
        for sender in senders:
            sender.start()

    def stop(self) -> None:
        """Send what is buffered for up to 2 s, then no more; returns at once."""
        with self._lock:
            self._is_stopped = True
            senders = tuple(self._senders.values())
        for sender in senders:
            sender.stop()

    def __len__(self) -> int:
        """Return how many notes are in the buffers."""
        with self._lock:
            senders = tuple(self._senders.values())
        return sum(map(len, senders))

    def _sender_of(self, cluster: str) -> _Sender:
        with self._lock:
            known = self._senders.get(cluster)
        if known is not None:
            return known
        made = self._make(start_thread=partial(self._begin, cluster))
        with self._lock:
            known = self._senders.setdefault(cluster, made)
            is_started, is_stopped = self._is_started, self._is_stopped
        if is_started:
            known.start()
        if is_stopped:
            known.stop()
        return known

    def _begin(self, cluster: str, run: Callable[[], None]) -> None:
        self._start_thread(cluster, run)

    def _describe(self, about: ObjectRef | Object) -> _About:
        found = about if isinstance(about, Object) else self._find(about)
        if found is not None:
            return _About(found.ref, found.kind, found.api_version, found.uid, found.resource_version)
        assert not isinstance(about, Object)
        return _About(about, "", "", "", "")


class _Sender:
    """Sends the Events of one cluster."""

    def __init__(
        self,
        client: Writer,
        *,
        program: str,
        instance: str,
        fence: Opening,
        clock: Clock,
        kind_of: Callable[[ObjectRef], str],
        start_thread: Callable[[Callable[[], None]], None],
        dry_run: bool,
    ) -> None:
        self._client = client
        self._program = program
        self._controller = _qualified(program)
        self._instance = _cut(instance, _TEXT)
        self._fence = fence
        self._clock = clock
        self._kind_of = kind_of
        self._start_thread = start_thread
        self._dry_run = dry_run
        self._throttle = Throttle(clock, _OVER)
        self._changed = threading.Condition(threading.Lock())  # guards the next four
        self._buffer: deque[_Note] = deque()
        self._may_start = False
        self._is_started = False
        self._stop_at: float | None = None  # when to give up sending
        # The rest is the sending thread's own.
        self._known: TTLCache[ObjectRef, _Known] = TTLCache(_KNOWN, _OVER, timer=clock.monotonic)
        self._budgets: TTLCache[ObjectRef, _Budget] = TTLCache(_KNOWN, _FULL, timer=clock.monotonic)
        self._open: dict[_Series, None] = {}  # those the server does not know in full
        self._apis: dict[str, GVR] = {}  # by which a cluster takes Events, if not by the newer one
        # Where which verb is forbidden: cluster, namespace, create or patch.
        self._muted: TTLCache[tuple[str, str, str], None] = TTLCache(_KNOWN, _OVER, timer=clock.monotonic)

    def start(self) -> None:
        """Send from now on; the thread starts with the first Event."""
        self._start_if_needed(may_start=True)

    def stop(self) -> None:
        """Send what is buffered for up to 2 s, then no more; returns at once."""
        with self._changed:
            if self._stop_at is None:
                self._stop_at = self._clock.monotonic() + _FLUSH
            self._changed.notify_all()

    def __len__(self) -> int:
        """Return how many notes are in the buffer."""
        with self._changed:
            return len(self._buffer)

    def put(self, said: _Note) -> None:
        """Send this later, or drop it."""
        if self._dry_run:
            _log.info(
                "event",
                extra=fields(about=str(said.about.ref), type=said.type, reason=said.reason, note=said.note),
            )
            return
        if not self._fence.is_open():
            _drop("fenced")  # a standby has nothing to tell, also later
            return
        with self._changed:
            is_late = self._stop_at is not None
            is_full = len(self._buffer) >= _BUFFER
            if not is_late and not is_full:
                self._buffer.append(said)
                self._changed.notify_all()
        if is_late or is_full:
            _drop("stopped" if is_late else "overflow")
        else:
            self._start_if_needed(may_start=False)

    def _start_if_needed(self, *, may_start: bool) -> None:
        with self._changed:
            self._may_start |= may_start
            if self._is_started or not self._may_start or not self._buffer:
                return
            self._is_started = True
        try:
            self._start_thread(self._run)
        except BaseException:
            with self._changed:
                self._is_started = False  # the next Event tries again
            raise

    # On the sending thread.

    def _run(self) -> None:
        while self._take():
            self._send_due()
        self._drop_rest()

    def _take(self) -> bool:
        """Wait for something to do and take in what was said; False when it is time to end."""
        while True:
            with self._changed:
                said = self._buffer.popleft() if self._buffer else None
                if said is None:
                    now = self._clock.monotonic()
                    stop_at = self._stop_at
                    if stop_at is not None and (now >= stop_at or not self._is_unsent()):
                        return False
                    wait = min((one.next_call for one in self._open), default=math.inf) - now
                    if stop_at is not None:
                        wait = min(wait, stop_at - now)
                    if wait <= 0:
                        return True
                    self._clock.wait(self._changed, None if wait == math.inf else wait)
                    if stop_at is None and self._stop_at is not None:
                        return True
            if said is not None:
                self._take_in(said)
                return True

    def _is_unsent(self) -> bool:
        """Tell whether some Event is not on the server at all."""
        return any(one.told == 0 for one in self._open)

    def _take_in(self, said: _Note) -> None:
        """Count a note into an Event that says the same, or begin one."""
        now = self._clock.monotonic()
        known = self._known.get(said.about.ref)
        if known is None:
            known = _Known()
        self._known[said.about.ref] = known  # anew, so that it is remembered from now on
        note = self._folded(known, said, now)
        key = (said.about.uid, said.type, said.reason, said.action, note)
        series = known.series.get(key)
        if series is not None and now - series.seen < _OVER:
            series.count += 1
            series.seen = now
            series.last = said.at
            self._open[series] = None
            return
        for old_key in [one for one, old in known.series.items() if now - old.seen >= _OVER]:
            del known.series[old_key]
        if note != said.note:
            said = _Note(said.about, said.related, said.type, said.reason, note, said.action, said.at)
        series = _Series(said, _name_for(said.about.ref.name), seen=now, next_call=now, last=said.at)
        known.series[key] = series
        self._open[series] = None

    def _folded(self, known: _Known, said: _Note, now: float) -> str:
        """Return the note, or the one that stands for too many different ones."""
        notes = known.notes.setdefault((said.type, said.reason), {})
        for old in [note for note, at in notes.items() if now - at >= _OVER]:
            del notes[old]
        if said.note not in notes and len(notes) >= _DIFFERENT_NOTES:
            return _COMBINED
        notes[said.note] = now
        return said.note

    def _send_due(self) -> None:
        """Make the calls whose time has come."""
        for series in list(self._open):
            now = self._clock.monotonic()
            with self._changed:
                stop_at = self._stop_at
            if stop_at is not None and now >= stop_at:
                return  # each call to a server that does not answer would take its time
            if series.next_call <= now:
                try:
                    self._send(series, now)
                except Exception as error:  # noqa: BLE001 - what cannot be told must not end the program
                    self._give_up(series, "failed", error)

    def _send(self, series: _Series, now: float) -> None:
        if not self._fence.is_open():
            self._give_up(series, "fenced")
            return
        about = series.said.about
        where = (about.ref.cluster, about.namespace, "create" if series.told == 0 else "patch")
        if where in self._muted:
            self._give_up(series, "forbidden")
            return
        if series.tries == 0 and not self._may_call(about.ref, now):
            if series.told == 0:
                self._give_up(series, "rate")
            else:
                series.next_call = now + _REFILL
            return
        count = series.count
        try:
            if series.told == 0:
                self._create(series)
            else:
                self._count_up(series)
        except NotLeaderError as error:
            self._give_up(series, "fenced", error)
        except NotFoundError as error:
            self._after_not_found(series, error, now)
        except ForbiddenError as error:
            if not _is_terminating(error):
                self._mute(where)
            self._give_up(series, "forbidden", error)
        except (TransportError, ServerError, TooManyRequestsError) as error:
            self._try_later(series, error, now)
        except InformersError as error:
            self._give_up(series, "refused", error)
        else:
            _sent.add()
            series.told = count
            series.tries = 0
            series.next_call = now + _SERIES_PAUSE
            if series.told == series.count:
                self._open.pop(series, None)

    def _may_call(self, ref: ObjectRef, now: float) -> bool:
        budget = self._budgets.get(ref)
        if budget is None:
            budget = _Budget(filled=now)
        self._budgets[ref] = budget  # anew, so that it is remembered until it is full again
        return budget.take(now)

    def _after_not_found(self, series: _Series, error: APIError, now: float) -> None:
        if series.told == 0:
            self._give_up(series, "not found", error)
            return
        # It has expired on the server, so it is said anew.
        series.told = 0
        series.name = _name_for(series.said.about.ref.name)
        series.next_call = now

    def _try_later(self, series: _Series, error: Exception, now: float) -> None:
        series.tries += 1
        if series.tries >= _TRIES:
            self._give_up(series, "failed", error)
            return
        series.next_call = now + _RETRY.delay(series.tries)
        _log.debug("event not sent, will try again", extra=fields(error=str(error)))

    def _give_up(self, series: _Series, reason: str, error: Exception | None = None) -> None:
        self._open.pop(series, None)
        unsent = series.count - series.told
        if series.told == 0:
            # The next time it is said, it is tried anew.
            known = self._known.get(series.said.about.ref)
            if known is not None:
                known.series = {key: one for key, one in known.series.items() if one is not series}
        series.told = series.count
        series.tries = 0
        _drop(reason, error, count=unsent)

    def _drop_rest(self) -> None:
        with self._changed:
            left = len(self._buffer)
            self._buffer.clear()
        left += sum(one.count - one.told for one in self._open if one.told == 0)
        self._open.clear()
        if left:
            _drop("stopped", count=left)

    def _create(self, series: _Series) -> None:
        cluster = series.said.about.ref.cluster
        if self._apis.get(cluster) is not _CORE:
            try:
                self._create_by(_NEW, series)
            except (NotFoundError, ForbiddenError) as error:
                if _is_terminating(error):
                    raise
            else:
                return
        self._create_by(_CORE, series)
        self._apis[cluster] = _CORE

    def _create_by(self, api: GVR, series: _Series) -> None:
        about = series.said.about
        build = _new_event if api == _NEW else _core_event
        kind = about.kind or self._kind_of(about.ref)
        try:
            self._client.create(
                api,
                build(series, kind, program=self._controller, instance=self._instance),
                namespace=about.namespace,
                cluster=about.ref.cluster,
                field_manager=self._program,
                timeout=self._time_left(),
            )
        except AlreadyExistsError:
            # The name is random: it is ours, made by a request whose answer was lost.
            _log.debug("event was there already")
        series.api = api

    def _count_up(self, series: _Series) -> None:
        about = series.said.about
        api = series.api or _NEW
        if api == _NEW:
            patch: Mapping[str, JSON] = {"series": {"count": series.count, "lastObservedTime": _micro(series.last)}}
        else:
            patch = {"count": series.count, "lastTimestamp": _seconds(series.last)}
        ref = ObjectRef(api, about.namespace, series.name, about.ref.cluster)
        self._client.patch(ref, patch, field_manager=self._program, timeout=self._time_left())

    def _time_left(self) -> float:
        with self._changed:
            stop_at = self._stop_at
        return _CALL if stop_at is None else min(_CALL, max(0.1, stop_at - self._clock.monotonic()))

    def _mute(self, where: tuple[str, str, str]) -> None:
        self._muted[where] = None
        if self._throttle.allow(where):
            cluster, namespace, verb = where
            _log.info(
                "events cannot be written",
                extra=fields(cluster=cluster, namespace=namespace, missing=f"{verb} events.events.k8s.io"),
            )


def _drop(reason: str, error: Exception | None = None, *, count: int = 1) -> None:
    _dropped.add(count, reason=reason)
    # Whatever else was raised is somebody's bug, and may quote anything.
    told = "" if error is None else str(error) if isinstance(error, InformersError) else type(error).__name__
    _log.debug("event dropped", extra=fields(reason=reason, error=told))


def _new_event(series: _Series, kind: str, *, program: str, instance: str) -> Mapping[str, JSON]:
    said = series.said
    body: dict[str, JSON] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": said.about.namespace},
        "eventTime": _micro(said.at),
        "type": said.type,
        "reason": said.reason,
        "action": said.action,
        "note": said.note,
        "regarding": {**said.about.body(), "kind": kind},
        "reportingController": program,
        "reportingInstance": instance,
    }
    if said.related is not None:
        body["related"] = said.related.body()
    if series.count > 1:
        body["series"] = {"count": series.count, "lastObservedTime": _micro(series.last)}
    return body


def _core_event(series: _Series, kind: str, *, program: str, instance: str) -> Mapping[str, JSON]:
    said = series.said
    body: dict[str, JSON] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": said.about.namespace},
        "type": said.type,
        "reason": said.reason,
        "action": said.action,
        "message": said.note,
        "involvedObject": {**said.about.body(), "kind": kind},
        "source": {"component": program},
        "reportingComponent": program,
        "reportingInstance": instance,
        "firstTimestamp": _seconds(said.at),
        "lastTimestamp": _seconds(series.last),
        "count": series.count,
    }
    if said.related is not None:
        body["related"] = said.related.body()
    return body


def _micro(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_terminating(error: APIError) -> bool:
    return any(cause.reason == "NamespaceTerminating" for cause in error.causes)


def _name_for(name: str) -> str:
    """Make a name that no other Event has; some objects' names (of roles) cannot be part of one."""
    base = re.sub(r"[^a-z0-9.-]+", "-", name.lower())[:230].strip(".-")
    base = re.sub(r"[.-]*\.[.-]*", ".", base)
    return f"{base or 'event'}.{random.getrandbits(64):016x}"


def _qualified(program: str) -> str:
    """Make of a program's name what the API server takes as a controller's: 1 to 63 of letters, digits and `-_.`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", program)[:63].strip("-_.") or "unnamed"


def _cut(text: str, length: int) -> str:
    """Cut at `length` bytes, which is what the API server counts, on a character border."""
    return text.encode("utf-8", "replace")[:length].decode("utf-8", "ignore")


def _shortened(text: str, length: int) -> str:
    """Cut at `length` bytes, and show that something is missing."""
    whole = _cut(text, len(text) * 4)
    return whole if len(whole.encode()) <= length else _cut(text, length - 3) + "…"
