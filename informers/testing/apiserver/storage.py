"""Keep every object as bytes, in one order of versions, with the last events of each resource.

A bucket holds the objects of one resource (all its versions) and a chain of events. A reader that holds one
event of the chain can always go on to the next, however far the window for new readers has moved: a slow
watch loses nothing, and what nobody can reach any more is freed.
"""

from __future__ import annotations

import base64
import time
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Any, Final

import msgspec

from informers.testing.apiserver import admit
from informers.testing.apiserver.kinds import Kind

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode
_KEPT_SNAPSHOTS: Final = 4
_NO_LABELS: Final[Mapping[str, str]] = {}


class ChangedError(Exception):
    """The object is not (any more) the one that the writer started from."""


class ExpiredError(Exception):
    """The wanted version is older than the history; `oldest` is the first that is kept."""

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        self.oldest = oldest


# the order in which the real server prints metadata
_METADATA: Final = (
    "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers",
    "managedFields",
)  # fmt: skip


def _in_order(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: metadata[name] for name in _METADATA if name in metadata}


def key_of(namespace: str, name: str) -> str:
    """Name an object inside its bucket; sorted keys have the order of the real server's storage."""
    return f"{namespace}/{name}" if namespace else name


class Record:
    """One state of one object: its bytes, and what is needed to find and select it without decoding them."""

    __slots__ = ("_views", "key", "kind", "labels", "name", "namespace", "raw", "rv", "uid")

    def __init__(self, kind: Kind, obj: Mapping[str, Any], rv: int) -> None:
        metadata = _in_order({**obj["metadata"], "resourceVersion": str(rv)})
        # kind and apiVersion come first, so that a list can leave them out by cutting a prefix of known length
        ordered = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        ordered.update((name, value) for name, value in obj.items() if name not in ordered)
        self.kind = kind
        self.rv = rv
        self.namespace: str = metadata.get("namespace") or ""
        self.name: str = metadata["name"]
        self.key = key_of(self.namespace, self.name)
        self.uid: str = metadata.get("uid") or ""
        self.labels: Mapping[str, str] = metadata.get("labels") or _NO_LABELS
        self.raw: bytes = encode(ordered)
        self._views: dict[object, bytes] = {}

    def decoded(self) -> dict[str, Any]:
        """Decode the stored form; the caller owns the result."""
        obj: dict[str, Any] = decode(self.raw)
        return obj

    def read(self, kind: Kind) -> dict[str, Any]:
        """Decode the form that `kind` (a version of the same resource) has; the caller owns the result."""
        if kind is self.kind:
            return self.decoded()
        return admit.read(kind, self.decoded())

    def view(self, kind: Kind) -> bytes:
        """Return the JSON in the form that `kind` has: `kind` and `apiVersion` first."""
        if kind is self.kind:
            return self.raw
        return self.rendered(kind, lambda: encode(_head_first(kind, self.read(kind))))

    def rendered(self, form: object, build: Callable[[], bytes]) -> bytes:
        """Return what `build` makes, made once for each `form`."""
        found = self._views.get(form)
        if found is None:
            found = self._views[form] = build()
        return found

    def moved_to(self, rv: int) -> Record:
        """Make the same state at another version: what a DELETED event shows."""
        return Record(self.kind, self.decoded(), rv)


def _head_first(kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
    head = {"kind": kind.kind, "apiVersion": kind.api_version}
    head.update((name, value) for name, value in obj.items() if name not in head)
    return head


class Event:
    """One change of one object, and the way to the next."""

    __slots__ = ("_departed", "after", "at", "before", "next", "rv")

    def __init__(self, rv: int, before: Record | None, after: Record | None) -> None:
        self.rv = rv
        self.before = before
        self.after = after
        self.at = time.monotonic()
        self.next: Event | None = None
        self._departed: Record | None = None

    def departed(self) -> Record:
        """Return the last state that matched, at the version of this event."""
        if self._departed is None:
            assert self.before is not None
            self._departed = self.before.moved_to(self.rv)
        return self._departed


@dataclass(slots=True)
class Subscription:
    """Where a watch starts: what is there, and the event after which it goes on."""

    initial: Sequence[Record]
    last: Event
    rv: int


class Bucket:
    """The objects of one resource and their recent history. Every method needs the store's lock."""

    def __init__(self, storage: str, lock: Lock, *, history: int, born: int) -> None:
        self.storage = storage
        self.changed = Condition(lock)
        self.records: dict[str, Record] = {}
        self.keys: list[str] = []  # sorted; the keys of `records`
        self.expired = born  # a watch from an older version than this is refused
        self.last_rv = born
        self.tail = Event(born, None, None)
        self._history = history
        self._window: list[Event] = []
        self._first = 0  # what stands before it in _window is expired
        self._snapshots: OrderedDict[int, Sequence[Record]] = OrderedDict()

    def record_locked(self, event: Event) -> None:
        """Take an event in: the maps, the chain, the window."""
        record = event.after
        if record is None:
            assert event.before is not None
            del self.records[event.before.key]
            del self.keys[bisect_left(self.keys, event.before.key)]
        else:
            if event.before is None:
                insort(self.keys, record.key)
            self.records[record.key] = record
        self.last_rv = event.rv
        self.tail.next = event
        self.tail = event
        self._window.append(event)
        if len(self._window) - self._first > self._history:
            self.expired = self._window[self._first].rv
            self._first += 1
        if self._first > self._history:
            del self._window[: self._first]
            self._first = 0
        self.changed.notify_all()

    def expire_locked(self, rv: int) -> None:
        """Forget the history up to and including `rv`."""
        self.expired = max(self.expired, rv)
        self._first = bisect_right(self._window, rv, lo=self._first, key=lambda event: event.rv)

    def subscribe_locked(self, after: int) -> Event:
        """Find the event to go on from for a watch that has seen everything up to `after`.

        Raises `ExpiredError` when the history does not reach back that far.
        """
        if after < self.expired:
            raise ExpiredError(self.expired)
        position = bisect_right(self._window, after, lo=self._first, key=lambda event: event.rv)
        if position == len(self._window):
            return self.tail
        start = Event(after, None, None)
        start.next = self._window[position]
        return start

    def rv_before_locked(self, events: int) -> int:
        """Return the version that a replica has which lags this many events behind."""
        kept = len(self._window) - self._first
        if events <= 0 or kept == 0:
            return self.last_rv
        return self.expired if events >= kept else self._window[-events - 1].rv

    def snapshot_locked(self, rv: int) -> Sequence[Record]:
        """List what was there at `rv`, in key order.

        Raises `ExpiredError` when the history does not reach back that far.
        """
        if rv >= self.last_rv:
            rv = self.last_rv
        elif rv < self.expired:
            raise ExpiredError(self.expired)
        found = self._snapshots.get(rv)
        if found is None:
            found = self._snapshots[rv] = self._past_locked(rv)
            if len(self._snapshots) > _KEPT_SNAPSHOTS:
                self._snapshots.popitem(last=False)
        return found

    def _past_locked(self, rv: int) -> Sequence[Record]:
        if rv == self.last_rv:
            records = self.records
            return [records[key] for key in self.keys]
        past = dict(self.records)
        for event in reversed(self._window[self._first :]):
            if event.rv <= rv:
                break
            if event.before is not None:
                past[event.before.key] = event.before
            elif event.after is not None:
                del past[event.after.key]
        return [past[key] for key in sorted(past)]


class Store:
    """All buckets under one counter and one lock."""

    def __init__(self, *, history: int = 1000, first_version: int = 1) -> None:
        self.lock = Lock()  # guards rv, _buckets, _closed and everything in the buckets
        self.rv = first_version
        self._born = first_version if first_version > 1 else 0
        self._advanced = Condition(self.lock)
        self._closed = False
        self._history = history
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, kind: Kind) -> Bucket:
        """Return the bucket that a kind's objects are in."""
        with self.lock:
            return self.bucket_locked(kind)

    def bucket_locked(self, kind: Kind) -> Bucket:
        """Return the bucket that a kind's objects are in; the first call makes it."""
        found = self._buckets.get(kind.storage)
        if found is None:
            born = self.rv if kind.is_custom else self._born
            found = Bucket(kind.storage, self.lock, history=self._history, born=born)
            self._buckets[kind.storage] = found
        return found

    def buckets(self) -> Sequence[Bucket]:
        """List the buckets there are."""
        with self.lock:
            return tuple(self._buckets.values())

    def drop(self, storage: str) -> None:
        """Forget a bucket: its resource is no longer served."""
        with self.lock:
            found = self._buckets.pop(storage, None)
            if found is not None:
                found.changed.notify_all()

    def find(self, kind: Kind, key: str) -> Record | None:
        """Find the present state of an object."""
        with self.lock:
            return self.bucket_locked(kind).records.get(key)

    def write(
        self,
        kind: Kind,
        obj: Mapping[str, Any],
        *,
        expected: Record | None,
        check: Callable[[], None] | None = None,
        silent: bool = False,
    ) -> Record:
        """Store a state of an object if `expected` is still the present one (None: if there is none).

        `check` is called with the lock held and may refuse by raising; `silent` tells no watch.
        Raises `ChangedError`.
        """
        metadata = obj["metadata"]
        key = key_of(metadata.get("namespace") or "", metadata["name"])
        with self.lock:
            if check is not None:
                check()
            bucket = self.bucket_locked(kind)
            if bucket.records.get(key) is not expected:
                raise ChangedError(key)
            record = Record(kind, obj, self.rv + 1)
            self.rv += 1
            self._take_locked(bucket, Event(self.rv, expected, record), silent=silent)
            return record

    def remove(
        self, kind: Kind, expected: Record, *, last: Mapping[str, Any] | None = None, silent: bool = False
    ) -> Record:
        """Remove an object if `expected` is still the present state; `last` is what its DELETED event shows.

        Returns the removed state at the version of the removal. Raises `ChangedError`.
        """
        with self.lock:
            bucket = self.bucket_locked(kind)
            if bucket.records.get(expected.key) is not expected:
                raise ChangedError(expected.key)
            self.rv += 1
            shown = expected if last is None else Record(kind, last, expected.rv)
            event = Event(self.rv, shown, None)
            self._take_locked(bucket, event, silent=silent)
            return event.departed()

    def _take_locked(self, bucket: Bucket, event: Event, *, silent: bool) -> None:
        bucket.record_locked(event)
        self._advanced.notify_all()
        if silent:
            # whoever is watching goes past it without a word; a watch that starts later is told to list
            event.before = event.after = None
            bucket.expire_locked(event.rv)

    def compact(self, *, storage: str | None = None, rv: int | None = None) -> int:
        """Expire the history before `rv` (default: before now) of one bucket or of all; return that version."""
        with self.lock:
            point = self.rv if rv is None else min(rv, self.rv)
            for bucket in self._buckets.values():
                if storage is None or bucket.storage == storage:
                    bucket.expire_locked(point)
            return point

    def wait_for_rv(self, rv: int, timeout: float) -> int:
        """Wait until the counter has reached `rv`, or for `timeout`; return the counter."""
        end = time.monotonic() + timeout
        with self.lock:
            while self.rv < rv and not self._closed and (left := end - time.monotonic()) > 0:
                self._advanced.wait(left)
            return self.rv

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self.lock:
            self._closed = True
            self._advanced.notify_all()
            for bucket in self._buckets.values():
                bucket.changed.notify_all()

    def wake(self) -> None:
        """Let every watch look again at what it waits for."""
        with self.lock:
            for bucket in self._buckets.values():
                bucket.changed.notify_all()


# --- continue tokens, in the real server's form ---


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a paged list goes on: at which version (-1: at any), from which key."""

    rv: int
    start: str

    def token(self) -> str:
        """Print it as a continue token."""
        text = encode({"v": "meta.k8s.io/v1", "rv": self.rv, "start": self.start})
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    @classmethod
    def parse(cls, token: str) -> Continuation:
        """Read a continue token. Raises `ValueError`."""
        try:
            padded = token + "=" * (-len(token) % 4)
            parts = decode(base64.urlsafe_b64decode(padded))
            if parts["v"] != "meta.k8s.io/v1":
                raise ValueError("version")
            return cls(int(parts["rv"]), str(parts["start"]))
        except (ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise ValueError("continue key is not valid") from error
