"""WorkQueue: which objects to look at next. A key is never with two workers, and never queued twice.

Three sets say where a key is: *order* (ready to be handed out), *dirty* (added since it was last handed out) and
*processing* (with a worker). A key added while it is processed is dirty only; `done` puts it back in order.
There is no timer thread: due times are a heap, and `get` waits for a signal or the next due time.

What is surprising: a key has one time. Adding it now takes away its later due time, as the worker that gets it
decides anew when to look again.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from informers.backoff import Backoff
from informers.clock import Clock
from informers.meta.errors import ConfigError, InformersError
from informers.meta.resources import ObjectRef

NORMAL: Final = 0
WIDE: Final = -50  # dependents of what many depend on
INITIAL: Final = -100  # what was there before, and what did not change
RETRY: Final = Backoff(base=0.005, cap=300.0, jitter=0.0)

_RETRIES_PER_SECOND: Final = 200.0
_RETRY_BURST: Final = 1000.0
_LOWER_TURN: Final = 10


class Item(NamedTuple):
    """A key handed to a worker: at which priority, since when it waits, and how often it has failed in a row."""

    key: ObjectRef
    priority: int
    since: float
    attempt: int


class _Due(NamedTuple):
    """A key that is to be added later; `since` is None when the time itself is the reason to look."""

    at: float
    number: int
    priority: int
    since: float | None


class WorkQueue:
    """Keys in order of priority, then of arrival, with delays and retries; for any number of workers.

    Adding never blocks. Each `get` needs a `done`.
    """

    def __init__(self, *, clock: Clock, retry: Backoff = RETRY) -> None:
        self._clock = clock
        self._retry = retry
        self._lock = threading.Lock()  # guards all below
        self._changed = threading.Condition(self._lock)
        self._drained = threading.Condition(self._lock)
        # The dirty set: priority, and since when. A key in _processing may be here, and is then in no class.
        self._dirty: dict[ObjectRef, tuple[int, float]] = {}
        self._processing: set[ObjectRef] = set()
        # The order: priority -> keys with their numbers of arrival. No class is empty.
        self._classes: dict[int, OrderedDict[ObjectRef, int]] = {}
        # A key is in _due or in _dirty, not in both. The heap may hold entries that _due no longer has.
        self._due: dict[ObjectRef, _Due] = {}
        self._heap: list[tuple[float, int, ObjectRef]] = []
        self._failures: dict[ObjectRef, int] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._numbers = itertools.count()
        self._turns = 0  # handed out of the highest class since a lower one had a turn
        self._idle = 0  # workers that wait
        self._wake_at = math.inf  # the earliest due time that one of them waits for
        self._is_shut = False
        self._handed_out = 0
        self._added = 0
        self._on_idle: dict[object, Callable[[], None]] = {}

    def add(self, key: ObjectRef, *, priority: int = NORMAL, since: float | None = None) -> None:
        """Have `key` looked at; `since` is when its change came in, if that was earlier than now."""
        now = self._clock.monotonic()
        with self._lock:
            if self._is_shut:
                return
            self._added += 1
            ready = self._promote_locked(now)
            ready += self._add_locked(key, priority, now if since is None else since)
            self._wake_locked(ready)

    def add_many(self, keys: Iterable[ObjectRef], *, priority: int = NORMAL) -> None:
        """Have all `keys` looked at, under one lock, waking no more workers than there are keys."""
        now = self._clock.monotonic()
        keys = list(keys)  # a generator of the caller's does not run under the lock
        with self._lock:
            if self._is_shut:
                return
            self._added += len(keys)
            ready = self._promote_locked(now)
            for key in keys:
                ready += self._add_locked(key, priority, now)
            self._wake_locked(ready)

    def add_after(self, key: ObjectRef, seconds: float, *, priority: int = NORMAL, since: float | None = None) -> None:
        """Have `key` looked at after `seconds`, or when it is due already, whichever is earlier.

        Raises `ConfigError` when `seconds` is not a number.
        """
        if math.isnan(seconds):
            msg = f"add_after {key}: want seconds, got {seconds!r}"
            raise ConfigError(msg)
        if seconds <= 0:
            self.add(key, priority=priority, since=since)
            return
        now = self._clock.monotonic()
        with self._lock:
            if not self._is_shut:
                self._added += 1
                self._wake_locked(self._promote_locked(now))
                self._add_due_locked(key, now + seconds, priority, since)

    def add_rate_limited(self, key: ObjectRef, *, priority: int = NORMAL, since: float | None = None) -> float:
        """Have a key that failed looked at again, the later the more often it failed; return after how many seconds.

        All retries of one cluster share a bucket, so that a fan-out that fails does not come back all at once.
        """
        now = self._clock.monotonic()
        with self._lock:
            if self._is_shut:
                return math.inf
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            bucket = self._buckets.get(key.cluster)
            if bucket is None:
                bucket = self._buckets[key.cluster] = _Bucket(now)
            seconds = max(self._retry.delay(failures), bucket.reserve(now))
            self._added += 1
            self._wake_locked(self._promote_locked(now))
            self._add_due_locked(key, now + seconds, priority, since)
            return seconds

    def get(self) -> Item | None:
        """Wait for the next key and take it; None once the queue is shut down and empty."""
        with self._lock:
            armed = math.inf
            while True:
                now = 0.0
                if self._heap:
                    now = self._clock.monotonic()
                    if ready := self._promote_locked(now):
                        self._wake_locked(ready - 1)  # one is for this worker
                if self._classes:
                    break
                if self._is_shut:
                    return None
                armed = self._wait_locked(now)
            item = self._pop_locked()
            if armed < math.inf and self._idle and self._heap and self._wake_at == math.inf:
                # This worker leaves, so another one has to watch the time.
                self._changed.notify()
            return item

    def done(self, key: ObjectRef) -> None:
        """Give back a key that `get` handed out; if it was added meanwhile, it is in order again.

        Raises `InformersError` for a key that is not with a worker.
        """
        with self._lock:
            if key not in self._processing:
                msg = f"done {key}: no worker has it"
                raise InformersError(msg)
            self._processing.remove(key)
            if (waiting := self._dirty.get(key)) is not None:
                self._place_locked(key, waiting[0])
                self._wake_locked(1)
            elif self._is_shut and self._is_empty_locked():
                self._drained.notify_all()
            on_idle = tuple(self._on_idle.values()) if self._on_idle and self._is_empty_locked() else ()
        for callback in on_idle:
            callback()

    def forget(self, key: ObjectRef) -> None:
        """Count the failures of `key` from 0 again."""
        with self._lock:
            self._failures.pop(key, None)

    def failures(self, key: ObjectRef) -> int:
        """Return how often `key` failed since it was last forgotten."""
        with self._lock:
            return self._failures.get(key, 0)

    def shut_down(self, *, drain: bool = False, drop: bool = False) -> None:
        """Take nothing more; `get` hands out what is in order, then returns None.

        With `drop`, what is in order is dropped instead. With `drain`, wait until the workers have taken
        everything and given it back.
        """
        with self._lock:
            self._is_shut = True
            self._due.clear()
            self._heap.clear()
            if drop:
                self._dirty.clear()
                self._classes.clear()
            self._changed.notify_all()
            if self._is_empty_locked():
                self._drained.notify_all()
            while drain and not self._is_empty_locked():
                self._clock.wait(self._drained, None)

    def is_idle(self) -> bool:
        """Tell whether nothing is with a worker and nothing could be; what is due later does not count."""
        now = self._clock.monotonic()
        with self._lock:
            self._wake_locked(self._promote_locked(now))
            return self._is_empty_locked()

    def on_idle(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called, with no lock held, whenever the last key was given back and none waits.

        Returns a function that takes it off, which never waits and may be called twice.
        """
        token = object()
        with self._lock:
            self._on_idle[token] = callback

        def take_off() -> None:
            with self._lock:
                self._on_idle.pop(token, None)

        return take_off

    def handed_out(self) -> int:
        """Return how many keys were handed out so far, to tell whether anything was done since one looked."""
        with self._lock:
            return self._handed_out

    def added(self) -> int:
        """Return how often a key was added so far, now or for later, whether or not it was there already."""
        with self._lock:
            return self._added

    def depths(self) -> Mapping[int, int]:
        """Return how many keys wait to be looked at now, by priority."""
        with self._lock:
            depths = {priority: len(members) for priority, members in self._classes.items()}
            for key in self._processing:
                if (waiting := self._dirty.get(key)) is not None:
                    depths[waiting[0]] = depths.get(waiting[0], 0) + 1
        return depths

    def holds(self, key: ObjectRef) -> bool:
        """Tell whether anything is remembered of `key`: waiting, due, processed, or failed."""
        with self._lock:
            return any(key in place for place in (self._dirty, self._due, self._processing, self._failures))

    def __len__(self) -> int:
        """Return how many keys wait to be looked at now."""
        with self._lock:
            return len(self._dirty)

    def _is_empty_locked(self) -> bool:
        return not self._dirty and not self._processing

    def _add_locked(self, key: ObjectRef, priority: int, since: float) -> int:
        """Make `key` dirty; return 1 if it came into order, else 0."""
        if self._due and (due := self._due.pop(key, None)) is not None:
            priority = max(priority, due.priority)
            since = since if due.since is None else min(since, due.since)
        waiting = self._dirty.get(key)
        if waiting is None:
            self._dirty[key] = (priority, since)
            if key in self._processing:
                return 0
            self._place_locked(key, priority)
            return 1
        before, oldest = waiting
        if priority > before:
            self._dirty[key] = (priority, min(since, oldest))
            if key not in self._processing:
                self._take_out_locked(key, before)
                self._place_locked(key, priority)
        elif since < oldest:
            self._dirty[key] = (before, since)
        return 0

    def _add_due_locked(self, key: ObjectRef, at: float, priority: int, since: float | None) -> None:
        if (waiting := self._dirty.get(key)) is not None:
            # It is looked at before that time. Only its priority can still rise.
            self._add_locked(key, priority, waiting[1] if since is None else since)
            return
        if (known := self._due.get(key)) is not None:
            priority = max(priority, known.priority)
            since = known.since if since is None else since if known.since is None else min(since, known.since)
            if known.at <= at:
                self._due[key] = known._replace(priority=priority, since=since)
                return
        number = next(self._numbers)
        self._due[key] = _Due(at, number, priority, since)
        heapq.heappush(self._heap, (at, number, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._due):
            self._heap = [(due.at, due.number, known_key) for known_key, due in self._due.items()]
            heapq.heapify(self._heap)
        if self._idle and at < self._wake_at:
            self._changed.notify()

    def _promote_locked(self, now: float) -> int:
        """Add what has become due, in the order of those times; return how many keys came into order."""
        heap = self._heap
        ready = 0
        while heap:
            at, number, key = heap[0]
            due = self._due.get(key)
            if due is None or due.number != number:
                heapq.heappop(heap)  # left behind by an earlier time
            elif at <= now:
                heapq.heappop(heap)
                del self._due[key]
                ready += self._add_locked(key, due.priority, at if due.since is None else due.since)
            else:
                break
        return ready

    def _wait_locked(self, now: float) -> float:
        """Wait for a change, or for the next due time if no other worker does; return the time waited for."""
        at = self._heap[0][0] if self._heap else math.inf
        if at < self._wake_at:
            self._wake_at = at
        else:
            at = math.inf
        self._idle += 1
        self._clock.wait(self._changed, None if at == math.inf else at - now)
        self._idle -= 1
        if at == self._wake_at:
            self._wake_at = math.inf
        return at

    def _wake_locked(self, count: int) -> None:
        if count > 0 and self._idle:
            self._changed.notify(min(count, self._idle))

    def _pop_locked(self) -> Item:
        classes = self._classes
        highest = max(classes)
        if len(classes) == 1:
            self._turns = 0
            chosen = highest
        else:
            self._turns += 1
            chosen = highest
            if self._turns >= _LOWER_TURN:
                # Of the lower classes the one whose first key came first, so that none starves.
                self._turns = 0
                chosen = min(
                    (one for one in classes if one != highest), key=lambda one: next(iter(classes[one].values()))
                )
        members = classes[chosen]
        key, _ = members.popitem(last=False)
        if not members:
            del classes[chosen]
        priority, since = self._dirty.pop(key)
        self._processing.add(key)
        self._handed_out += 1
        return Item(key, priority, since, self._failures.get(key, 0) if self._failures else 0)

    def _place_locked(self, key: ObjectRef, priority: int) -> None:
        members = self._classes.get(priority)
        if members is None:
            members = self._classes[priority] = OrderedDict()
        members[key] = next(self._numbers)

    def _take_out_locked(self, key: ObjectRef, priority: int) -> None:
        members = self._classes[priority]
        del members[key]
        if not members:
            del self._classes[priority]


class _Bucket:
    """Tokens that fill up at a fixed rate; taking more than there are means waiting for them."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, now: float) -> None:
        self._tokens = _RETRY_BURST
        self._at = now

    def reserve(self, now: float) -> float:
        """Take one token and return the seconds until it is there."""
        self._tokens = min(_RETRY_BURST, self._tokens + (now - self._at) * _RETRIES_PER_SECOND) - 1
        self._at = now
        return max(0.0, -self._tokens / _RETRIES_PER_SECOND)
