"""WorkQueue: which objects to look at next. A key is never with two workers, and never queued twice.

Three sets say where a key is: *order* (ready to be handed out), *dirty* (added since it was last handed out) and
*processing* (with a worker). A key added while it is processed is dirty only; `done` puts it back in order.
There is no timer thread: due times are a heap, and `get` waits for a signal or the next due time.

The order is one of classes, by priority. Inside a class the clusters take turns, inside a cluster its namespaces do,
and inside a namespace what came first goes first: a burst in one place delays a single key of another by one turn.
To take a turn is to leave a map at its front and to come back at its end if anything is left, so no empty map stays.

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
from typing import Final, NamedTuple, TypeAlias

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


# Namespaces in the order of their turns, each with the identities of its keys in order. No map is empty.
_Lane: TypeAlias = OrderedDict[str, OrderedDict[str, None]]


class _Due(NamedTuple):
    """A key that is to be added later; `since` is None when the time itself is the reason to look."""

    key: ObjectRef
    at: float
    number: int
    priority: int
    since: float | None


class WorkQueue:
    """Keys in order of priority, then of arrival, with delays and retries; for any number of workers.

    Adding never blocks. Each `get` needs a `done`. Of one cluster never more than `most_of_a_cluster` keys are with
    workers, so that one that does not answer cannot have all workers.
    """

    def __init__(self, *, clock: Clock, retry: Backoff = RETRY, most_of_a_cluster: int | None = None) -> None:
        self._clock = clock
        self._retry = retry
        self._most = most_of_a_cluster
        self._lock = threading.Lock()  # guards all below
        self._changed = threading.Condition(self._lock)
        self._drained = threading.Condition(self._lock)
        # All by the identities of keys. The dirty set: the key, its priority, and since when. A key in _processing may
        # be here, and is then in no class.
        self._dirty: dict[str, tuple[ObjectRef, int, float]] = {}
        self._processing: set[str] = set()
        # The order: priority -> cluster -> its lane, clusters in the order of their turns. No map is empty.
        self._classes: dict[int, OrderedDict[str, _Lane]] = {}
        # The lanes of clusters that have to wait, by priority; they are in no class.
        self._suspended: dict[str, dict[int, _Lane]] = {}
        self._closed: set[str] = set()  # of these those that somebody has suspended; the others have their workers
        self._busy: dict[str, int] = {}  # keys with workers, by cluster; counted only if there is a limit
        # When each class was last chosen, or came to be, in turns; for fairness among those that are not the highest.
        self._last_turns: dict[int, int] = {}
        # A key is in _due or in _dirty, not in both. The heap may hold entries that _due no longer has.
        self._due: dict[str, _Due] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._failures: dict[str, int] = {}
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
            failures = self._failures[key.identity] = self._failures.get(key.identity, 0) + 1
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
        identity = key.identity
        with self._lock:
            if identity not in self._processing:
                msg = f"done {key}: no worker has it"
                raise InformersError(msg)
            self._processing.remove(identity)
            if self._most is not None:
                self._free_locked(key.cluster)
            if (waiting := self._dirty.get(identity)) is not None:
                self._wake_locked(self._place_locked(key, waiting[1]))
            elif self._is_shut and self._is_empty_locked():
                self._drained.notify_all()
            on_idle = tuple(self._on_idle.values()) if self._on_idle and self._is_empty_locked() else ()
        for callback in on_idle:
            callback()

    def forget(self, key: ObjectRef) -> None:
        """Count the failures of `key` from 0 again."""
        with self._lock:
            self._failures.pop(key.identity, None)

    def failures(self, key: ObjectRef) -> int:
        """Return how often `key` failed since it was last forgotten."""
        with self._lock:
            return self._failures.get(key.identity, 0)

    def suspend(self, cluster: str) -> None:
        """Keep the keys of a cluster, those of now and those to come, until `resume`; no worker gets one."""
        with self._lock:
            if not self._is_shut:
                self._closed.add(cluster)
                self._suspend_locked(cluster)

    def resume(self, cluster: str) -> None:
        """Hand out the keys of a cluster (again), in the order in which they are; may be called twice."""
        with self._lock:
            self._closed.discard(cluster)
            self._resume_locked(cluster)

    def shut_down(self, *, drain: bool = False, drop: bool = False) -> None:
        """Take nothing more; `get` hands out what is in order, then returns None.

        With `drop`, what is in order is dropped instead. With `drain`, wait until the workers have taken
        everything and given it back.
        """
        with self._lock:
            self._is_shut = True
            self._due.clear()
            self._heap.clear()
            self._most = None
            self._closed.clear()
            self._busy.clear()
            for cluster in list(self._suspended):
                self._resume_locked(cluster)
            if drop:
                self._dirty.clear()
                self._classes.clear()
                self._last_turns.clear()
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
        depths: dict[int, int] = {}
        with self._lock:
            lanes = [(priority, lane) for priority, lanes in self._classes.items() for lane in lanes.values()]
            lanes += [each for kept in self._suspended.values() for each in kept.items()]
            for priority, lane in lanes:
                depths[priority] = depths.get(priority, 0) + sum(map(len, lane.values()))
            for identity in self._processing:
                if (waiting := self._dirty.get(identity)) is not None:
                    depths[waiting[1]] = depths.get(waiting[1], 0) + 1
        return depths

    def holds(self, key: ObjectRef) -> bool:
        """Tell whether anything is remembered of `key`: waiting, due, processed, or failed."""
        with self._lock:
            places = (self._dirty, self._due, self._processing, self._failures)
            return any(key.identity in place for place in places)

    def __len__(self) -> int:
        """Return how many keys wait to be looked at now."""
        with self._lock:
            return len(self._dirty)

    def _is_empty_locked(self) -> bool:
        return not self._dirty and not self._processing

    def _add_locked(self, key: ObjectRef, priority: int, since: float) -> int:
        """Make `key` dirty; return 1 if it came into order, else 0."""
        identity = key.identity
        if self._due and (due := self._due.pop(identity, None)) is not None:
            priority = max(priority, due.priority)
            since = since if due.since is None else min(since, due.since)
        waiting = self._dirty.get(identity)
        if waiting is None:
            self._dirty[identity] = (key, priority, since)
            return 0 if identity in self._processing else self._place_locked(key, priority)
        _, before, oldest = waiting
        if priority > before:
            self._dirty[identity] = (key, priority, min(since, oldest))
            if identity not in self._processing:
                self._take_out_locked(key, before)
                self._place_locked(key, priority)
        elif since < oldest:
            self._dirty[identity] = (key, before, since)
        return 0

    def _add_due_locked(self, key: ObjectRef, at: float, priority: int, since: float | None) -> None:
        identity = key.identity
        if (waiting := self._dirty.get(identity)) is not None:
            # It is looked at before that time. Only its priority can still rise.
            self._add_locked(key, priority, waiting[2] if since is None else since)
            return
        if (known := self._due.get(identity)) is not None:
            priority = max(priority, known.priority)
            since = known.since if since is None else since if known.since is None else min(since, known.since)
            if known.at <= at:
                self._due[identity] = known._replace(priority=priority, since=since)
                return
        number = next(self._numbers)
        self._due[identity] = _Due(key, at, number, priority, since)
        heapq.heappush(self._heap, (at, number, identity))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._due):
            self._heap = [(due.at, due.number, each) for each, due in self._due.items()]
            heapq.heapify(self._heap)
        if self._idle and at < self._wake_at:
            self._changed.notify()

    def _promote_locked(self, now: float) -> int:
        """Add what has become due, in the order of those times; return how many keys came into order."""
        heap = self._heap
        ready = 0
        while heap:
            at, number, identity = heap[0]
            due = self._due.get(identity)
            if due is None or due.number != number:
                heapq.heappop(heap)  # left behind by an earlier time
            elif at <= now:
                heapq.heappop(heap)
                del self._due[identity]
                ready += self._add_locked(due.key, due.priority, at if due.since is None else due.since)
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
        chosen = self._next_class_locked()
        lanes = self._classes[chosen]
        cluster, lane = lanes.popitem(last=False)
        namespace, identities = lane.popitem(last=False)
        identity, _ = identities.popitem(last=False)
        if identities:
            lane[namespace] = identities
        if lane:
            lanes[cluster] = lane
        elif not lanes:
            self._remove_class_locked(chosen)
        key, priority, since = self._dirty.pop(identity)
        self._processing.add(identity)
        if self._most is not None:
            busy = self._busy[cluster] = self._busy.get(cluster, 0) + 1
            if busy >= self._most:
                self._suspend_locked(cluster)
        self._handed_out += 1
        return Item(key, priority, since, self._failures.get(identity, 0) if self._failures else 0)

    def _next_class_locked(self) -> int:
        """Choose the highest class, or on every tenth turn of those below the one whose last turn is longest ago."""
        classes = self._classes
        highest = max(classes)
        if len(classes) == 1:
            self._turns = 0
            return highest
        self._turns += 1
        if self._turns < _LOWER_TURN:
            return highest
        self._turns = 0
        chosen = min((one for one in classes if one != highest), key=self._last_turns.__getitem__)
        self._last_turns[chosen] = next(self._numbers)
        return chosen

    def _place_locked(self, key: ObjectRef, priority: int) -> int:
        """Put a key at the end of its namespace's keys; return 1 if a worker may take it now, else 0."""
        cluster = key.cluster
        if self._suspended and (kept := self._suspended.get(cluster)) is not None:
            if (lane := kept.get(priority)) is None:
                lane = kept[priority] = OrderedDict()
            ready = 0
        else:
            if (lanes := self._classes.get(priority)) is None:
                lanes = self._add_class_locked(priority)
            if (lane := lanes.get(cluster)) is None:
                lane = lanes[cluster] = OrderedDict()
            ready = 1
        if (identities := lane.get(key.namespace)) is None:
            identities = lane[key.namespace] = OrderedDict()
        identities[key.identity] = None
        return ready

    def _take_out_locked(self, key: ObjectRef, priority: int) -> None:
        """Take a key out of its class; the maps that this leaves empty go."""
        kept = self._suspended.get(key.cluster)
        lane = self._classes[priority][key.cluster] if kept is None else kept[priority]
        identities = lane[key.namespace]
        del identities[key.identity]
        if identities:
            return
        del lane[key.namespace]
        if lane:
            return
        if kept is not None:
            del kept[priority]
            return
        del self._classes[priority][key.cluster]
        if not self._classes[priority]:
            self._remove_class_locked(priority)

    def _free_locked(self, cluster: str) -> None:
        """Count one worker less that has a key of this cluster."""
        busy = self._busy[cluster] = self._busy[cluster] - 1
        if not busy:
            del self._busy[cluster]
        self._resume_locked(cluster)

    def _suspend_locked(self, cluster: str) -> None:
        kept = self._suspended.setdefault(cluster, {})
        for priority in list(self._classes):
            lanes = self._classes[priority]
            if (lane := lanes.pop(cluster, None)) is not None:
                kept[priority] = lane
            if not lanes:
                self._remove_class_locked(priority)

    def _resume_locked(self, cluster: str) -> None:
        """Put the lanes of a cluster back, unless there is another reason to keep them."""
        if cluster in self._closed or (self._most is not None and self._busy.get(cluster, 0) >= self._most):
            return
        ready = 0
        for priority, lane in self._suspended.pop(cluster, {}).items():
            lanes = self._classes.get(priority)
            if lanes is None:
                lanes = self._add_class_locked(priority)
            lanes[cluster] = lane
            ready += sum(map(len, lane.values()))
        self._wake_locked(ready)

    def _add_class_locked(self, priority: int) -> OrderedDict[str, _Lane]:
        made = self._classes[priority] = OrderedDict()
        self._last_turns[priority] = next(self._numbers)
        return made

    def _remove_class_locked(self, priority: int) -> None:
        del self._classes[priority]
        del self._last_turns[priority]


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
