"""Controller: from changes to references, from references to reconciles, from their outcome to what comes next.

Handlers run where the socket is read and do nothing but enqueue. A reconcile runs on a worker thread with no lock
held, and for one object never twice at once. What it answers decides: done, look again later, try again, or not.

What is surprising: a reconcile is not started while a cache has not shown what the last one of that object wrote,
or while it was told of a cache that has not synced. Such a key is parked: it costs no worker, and what it waits for
wakes it.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from informers import metrics
from informers.api.client import Write, lend
from informers.backoff import Backoff
from informers.cache.listwatch import Selection
from informers.cache.store import Delta
from informers.clock import Clock, Stop
from informers.logs import Throttle, bind_source, fields
from informers.meta.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
    NotLeaderError,
    NotSyncedError,
    ServerError,
    TerminalError,
    TooManyRequestsError,
    TransportError,
)
from informers.meta.objects import Object, OwnerReference
from informers.meta.options import is_whole_number
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.gate import Gate, Registered, Syncing
from informers.runtime.ownwrites import Followed, OwnWrites
from informers.runtime.reconciler import Reconcile, Request, requeue_after
from informers.runtime.workqueue import INITIAL, NORMAL, RETRY, WIDE, Item, WorkQueue

_log = logging.getLogger(__name__)

What: TypeAlias = GVR | str | Selection
MapFunc: TypeAlias = Callable[[Object], Iterable[ObjectRef]]
Predicate: TypeAlias = Callable[[Object, Object], bool]

_OWN_WRITES: Final = Backoff(base=5.0, cap=300.0, jitter=0.0)
_UNSYNCED: Final = Backoff(base=0.5, cap=30.0, jitter=0.0)
_UNSYNCED_LONGEST: Final = 30.0
_TELL_AGAIN: Final = 600.0
_PRIORITIES: Final = 25  # told apart as a label

_reconciles = metrics.counter(
    "informers_reconciles_total",
    "Reconciles by outcome",
    ("controller", "result"),
    known={"result": ("success", "requeue", "error", "terminal", "conflict")},
)
_queue_seconds = metrics.histogram("informers_queue_seconds", "From a change to its reconcile", ("controller",))
_work_seconds = metrics.histogram("informers_work_seconds", "How long a reconcile took", ("controller",))
_queue_depth = metrics.gauge("informers_queue_depth", "Keys that wait for a worker", ("controller", "priority"))
_queue_adds = metrics.counter("informers_queue_adds_total", "Keys added to the queue", ("controller",))
_unfinished = metrics.gauge(
    "informers_unfinished_work_seconds", "How long what runs now has run, added up", ("controller",)
)
_longest = metrics.gauge(
    "informers_longest_running_seconds",
    "How long the reconcile that runs longest has run",
    ("controller",),
    combine="max",
)
_active = metrics.gauge("informers_active_workers", "Workers that reconcile now", ("controller",))
_workers = metrics.gauge("informers_workers", "Workers there are", ("controller",))
_retries = metrics.counter("informers_retries_total", "Keys put back with backoff", ("controller",))
_timeouts = metrics.counter("informers_reconcile_timeouts_total", "Reconciles past their deadline", ("controller",))
_waits = metrics.counter("informers_own_write_waits_total", "Keys parked until caches show own writes", ("controller",))
_waits_expired = metrics.counter(
    "informers_own_write_waits_expired_total", "Own writes that caches did not show in time", ("controller",)
)


class FollowedSet(Followed, Syncing, Protocol):
    """An informer set, as far as a controller is concerned."""

    def add_handler(self, handler: Callable[[Delta], None], /, *, resync: float = 0.0) -> Registered:
        """Tell `handler` of what is there, then of every change."""
        ...


class Graph(Protocol):
    """A dependency graph, as far as a controller is concerned."""

    def subscribe(self, wake: Callable[[Sequence[ObjectRef], int], None], /) -> object:
        """Have `wake` called with the dependents of what changed, and their priority."""
        ...

    def forget(self, dependent: ObjectRef, /) -> None:
        """Remove all edges of `dependent`."""
        ...


class Reader(Protocol):
    """Reads one object live, to learn the outcome of a write whose answer was lost."""

    def get(self, ref: ObjectRef, /) -> Object:
        """Return the object, or raise `NotFoundError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a manager lends its controllers."""

    client: Reader
    clock: Clock
    stop: Stop
    gate: Gate
    follow: Callable[[What, bool], Mapping[str, FollowedSet]]  # by cluster; True = required
    sets: Callable[[str], Sequence[FollowedSet]]  # all of a cluster
    start_thread: Callable[[str, Callable[[], None]], None]
    has_several_clusters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a controller works. Raises `ConfigError` for a value out of range."""

    workers: int = 1
    predicate: Predicate | None = None
    retry: Backoff = RETRY
    timeout: float | None = None
    own_writes: bool = True
    required: bool = True
    resync: float = 0.0

    def __post_init__(self) -> None:
        _check(
            "workers",
            self.workers,
            wanted="a whole number over 0",
            holds=is_whole_number(self.workers, least=1),
        )
        _check(
            "timeout", self.timeout, wanted="seconds over 0, or None", holds=self.timeout is None or self.timeout > 0
        )
        _check("resync", self.resync, wanted="seconds, 1 or more, or 0", holds=self.resync == 0 or self.resync >= 1)


def _check(option: str, value: object, *, wanted: str, holds: bool) -> None:
    if not holds:
        msg = f"add_controller: {option}: want {wanted}, got {value!r}"
        raise ConfigError(msg)


class _Told(NamedTuple):
    """What was logged last of a key that fails, and when."""

    kind: type[BaseException]
    at: float


@dataclass(slots=True)
class _Wait:
    """A parked key: how it goes back, since when it is parked, and until when before that is told, or for which syncs."""

    item: Item
    expirations: int = 0
    until: float = 0.0
    syncs: Collection[Syncing] = ()


class Controller:
    """Keep objects right by calling `reconcile` with each that may need it. Made by `Manager.add_controller`."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        surroundings: Surroundings,
        options: Options,
        dependencies: Graph | None = None,
    ) -> None:
        self.name = name
        self.workers = options.workers
        # A worker is kept for the others, if there is one to spare.
        has_spare = surroundings.has_several_clusters and options.workers > 1
        self.queue = WorkQueue(
            clock=surroundings.clock,
            retry=options.retry,
            most_of_a_cluster=options.workers - 1 if has_spare else None,
        )
        self._reconcile = reconcile
        self._around = surroundings
        self._clock = surroundings.clock
        self._options = options
        self._graph = dependencies
        self._own = OwnWrites(sets=surroundings.sets, wake=self._wake_shown) if options.own_writes else None
        self._throttle = Throttle(surroundings.clock)
        self._run_id = f"{random.getrandbits(24):06x}"
        self._runs = itertools.count(1)
        self._lock = threading.Lock()  # guards all below
        self._primaries: dict[str, list[FollowedSet]] = {}
        self._unshown: dict[ObjectRef, _Wait] = {}  # until caches show their own writes
        self._unsynced: dict[ObjectRef, _Wait] = {}  # until some cache has synced
        self._failing: dict[ObjectRef, _Told] = {}  # what was logged of keys that fail
        self._running: dict[ObjectRef, float] = {}  # what a worker has now, and since when
        self._shown: list[Callable[[], None]] = []  # each takes some series away
        self._has_workers = False
        self._watched_syncs: dict[Syncing, Callable[[], None]] = {}
        if dependencies is not None:
            dependencies.subscribe(self._enqueue_dependents)

    def __repr__(self) -> str:
        return f"<Controller {self.name}>"

    # From changes to references.

    def add_primary(self, what: What) -> None:
        """Reconcile each object of `what`, too; also while running."""
        for cluster, informers in self._around.follow(what, self._options.required).items():
            with self._lock:
                self._primaries.setdefault(cluster, []).append(informers)
            self._listen(what, cluster, informers, self._enqueue_primary, resync=self._options.resync)

    def add_watch(self, what: What, map: MapFunc) -> None:  # noqa: A002 - the option's name in add_controller
        """Reconcile what `map` makes of each changed object of `what`, before and after; also while running."""
        for cluster, informers in self._around.follow(what, self._options.required).items():
            self._listen(what, cluster, informers, partial(self._enqueue_mapped, map))

    def add_owned(self, what: What) -> None:
        """Reconcile the primary that controls each changed object of `what`."""
        self.add_watch(what, self._owners_of)

    def enqueue(self, ref: ObjectRef, *, after: float = 0.0) -> None:
        """Reconcile `ref` now or after some seconds; for runnables that learn something outside the cluster.

        A change that comes earlier takes the later time away: reconcile sees what is there then, and may answer
        with a `requeue_after`. Raises `ConfigError` when `after` is not a number.
        """
        self.queue.add_after(ref, after)

    def _listen(
        self,
        what: What,
        cluster: str,
        informers: FollowedSet,
        handler: Callable[[Delta], None],
        *,
        resync: float = 0.0,
    ) -> None:
        registration = informers.add_handler(handler, resync=resync)
        if self._options.required:
            self._around.gate.require(_shown(what, cluster), informers, registration, cluster=cluster)

    def _enqueue_primary(self, delta: Delta) -> None:
        old, new = delta.old, delta.new
        is_same = old is not None and new is not None and old.resource_version == new.resource_version
        if delta.initial or is_same:
            self.queue.add(delta.ref, priority=INITIAL)
        elif old is None or new is None or self._passes(old, new):
            self.queue.add(delta.ref)

    def _passes(self, old: Object, new: Object) -> bool:
        """Tell whether a change matters. When in doubt it does."""
        predicate = self._options.predicate
        if predicate is None or (old.deletion_timestamp is None and new.deletion_timestamp is not None):
            return True
        try:
            return bool(predicate(old, new))
        except Exception as error:  # noqa: BLE001 - a change must not be lost to somebody's bug
            if self._throttle.allow(("predicate", type(error))):
                _log.exception("predicate failed", extra=fields(controller=self.name, ref=str(new.ref)))
            return True

    def _enqueue_mapped(self, map_: MapFunc, delta: Delta) -> None:
        old, new = delta.old, delta.new
        is_same = old is not None and new is not None and old.resource_version == new.resource_version
        refs: dict[ObjectRef, None] = {}
        failed: Exception | None = None
        for obj in (new,) if is_same else (old, new):
            if obj is not None:
                try:
                    refs.update(dict.fromkeys(map_(obj)))
                except Exception as error:  # noqa: BLE001 - what the other state leads to is not lost
                    failed = error
        if refs:
            self.queue.add_many(refs, priority=INITIAL if delta.initial or is_same else NORMAL)
        if failed is not None:
            raise failed  # the informer logs and counts it

    def _owners_of(self, obj: Object) -> Iterable[ObjectRef]:
        """Name the primary that controls `obj`: it has the owner's name, and its uid."""
        owner = obj.controller
        if owner is None:
            return
        for informers in self._primaries_of(obj.cluster):
            for store in informers.stores():
                for namespace in {obj.namespace, ""}:
                    found = store.get(f"{namespace}/{owner.name}" if namespace else owner.name)
                    if found is not None and _is_owner(found, owner):
                        yield found.ref

    def _enqueue_dependents(self, dependents: Sequence[ObjectRef], priority: int) -> None:
        self.queue.add_many(dependents, priority=priority)

    # Its life.

    def start(self) -> None:
        """Start the workers; each waits until the gate is open."""
        with self._lock:
            self._has_workers = True
        for number in range(1, self.workers + 1):
            self._around.start_thread(f"worker/{self.name}-{number}", _Worker(self).run)

    def stop(self) -> None:
        """Start no reconcile any more, and let the workers end; returns at once."""
        self.queue.shut_down(drop=True)

    def close(self) -> None:
        """Take its series away, once the workers have ended."""
        with self._lock:
            shown, self._shown = self._shown, []
        for take_off in shown:
            take_off()

    def longest_running(self) -> float:
        """Return for how many seconds the reconcile that was begun first of those that run has run, 0 if none does."""
        return max(self._running_seconds(), default=0.0)

    def _running_seconds(self) -> Sequence[float]:
        now = self._clock.monotonic()
        with self._lock:
            return [max(0.0, now - since) for since in self._running.values()]

    def show(self) -> None:
        """Have its numbers told, from now on, also while there are no workers yet: keys wait on a standby, too."""
        name = self.name
        shown = [
            metrics.hold(controller=name),
            _queue_adds.follow(self.queue.added, controller=name),
            _queue_depth.follow_each("priority", self._depths, controller=name),
            _unfinished.follow(lambda: sum(self._running_seconds()), controller=name),
            _longest.follow(self.longest_running, controller=name),
            _active.follow(lambda: float(len(self._running)), controller=name),
            _workers.follow(self._worker_count, controller=name),
        ]
        with self._lock:
            self._shown = shown

    def _worker_count(self) -> float:
        with self._lock:
            return float(self.workers) if self._has_workers else 0.0

    def _depths(self) -> Mapping[str, float]:
        """Return how many keys wait, by priority: those we use ourselves, and of others the highest."""
        depths = {**dict.fromkeys((NORMAL, WIDE, INITIAL), 0), **self.queue.depths()}
        found = {str(priority): float(depths.pop(priority)) for priority in (NORMAL, WIDE, INITIAL)}
        others = sorted(depths.items(), reverse=True)
        room = _PRIORITIES - len(found)
        found.update((str(priority), float(depth)) for priority, depth in others[:room])
        if others[room:]:
            found["other"] = float(sum(depth for _, depth in others[room:]))
        return found

    def is_idle(self) -> bool:
        """Tell whether nothing is reconciled, and nothing waits for it but what is due later."""
        if not self.queue.is_idle():
            return False
        with self._lock:
            return not self._unshown and not self._unsynced

    def parked(self) -> Sequence[ObjectRef]:
        """Return the keys that wait for a cache."""
        with self._lock:
            return (*self._unshown, *self._unsynced)

    def holds(self, ref: ObjectRef) -> bool:
        """Tell whether anything is remembered of `ref`."""
        with self._lock:
            if any(ref in place for place in (self._unshown, self._unsynced, self._failing)):
                return True
        return self.queue.holds(ref) or (self._own is not None and self._own.holds(ref))

    # From references to reconciles.

    def process(self, item: Item) -> str:
        """Reconcile one key unless it has to wait, decide what comes next, and give it back; return the outcome."""
        ref = item.key
        try:
            if self._around.stop.is_set():
                return "stopped"
            if self._own is not None and not self._own.is_clear(ref) and self._must_wait(self._own, item):
                return "parked"
            outcome = self._attempt(item)
            if outcome:
                _reconciles.add(controller=self.name, result=outcome)
            return outcome
        finally:
            self.queue.done(ref)

    def _attempt(self, item: Item) -> str:
        ref = item.key
        timeout = self._options.timeout
        started = self._clock.monotonic()
        _queue_seconds.observe(max(0.0, started - item.since), controller=self.name)
        with self._lock:
            self._running[ref] = started
        try:
            deadline = None if timeout is None else started + timeout
            with lend(deadline=deadline, wrote=partial(self._record, ref), part=self.name):
                again = requeue_after(self._reconcile(Request(ref, item.attempt, item.since)))
        except (SystemExit, KeyboardInterrupt):
            raise
        except NotSyncedError as error:
            self._park_until_synced(item, error)
            return ""
        except NotLeaderError:
            self._forget(item)
            _log.debug("not the leader")
            return ""
        except TerminalError as error:
            self._forget(item)
            self._clean_up_if_gone(ref)
            _log.error("reconcile failed for good", extra=fields(error=str(error), cause=_name_of(error.__cause__)))
            return "terminal"
        except BaseException as error:  # noqa: BLE001 - a worker outlives what it calls
            return self._retry_later(item, error)
        finally:
            took = self._clock.monotonic() - started
            with self._lock:
                del self._running[ref]
            _work_seconds.observe(took, controller=self.name)
            if timeout is not None and took > timeout:
                _timeouts.add(controller=self.name)
                _log.log(
                    logging.WARNING if self._throttle.allow(("timeout", ref)) else logging.DEBUG,
                    "reconcile took longer than its timeout",
                    extra=fields(seconds=round(took, 3), timeout=timeout),
                )
        self._forget(item)
        self._clean_up_if_gone(ref)
        _log.debug("reconciled")
        if again is None:
            return "success"
        self.queue.add_after(ref, again, priority=item.priority)
        return "requeue"

    def _record(self, request: ObjectRef, write: Write) -> None:
        if self._own is not None:
            self._own.record(request, write)

    def _retry_later(self, item: Item, error: BaseException) -> str:
        ref = item.key
        if self._around.stop.is_set() and isinstance(error, TransportError):
            _log.debug("reconcile ended by the stop")
            return ""
        wait = self.queue.add_rate_limited(ref, priority=item.priority)
        _retries.add(controller=self.name)
        if isinstance(error, ConflictError):
            with self._lock:
                self._unsynced.pop(ref, None)
            _log.debug("conflict, will try again", extra=fields(error=str(error), wait=round(wait, 3)))
            return "conflict"
        now = self._clock.monotonic()
        with self._lock:
            self._unsynced.pop(ref, None)
            told = self._failing.get(ref)
            is_news = told is None or told.kind is not type(error) or now >= told.at + _TELL_AGAIN
            if is_news:
                self._failing[ref] = _Told(type(error), now)
        _log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "reconcile failed, will try again",
            exc_info=error,
            extra=fields(error=_name_of(error), wait=round(wait, 3)),
        )
        return "error"

    def _forget(self, item: Item) -> None:
        """Count failures from 0 again."""
        ref = item.key
        if item.attempt:
            self.queue.forget(ref)
        if self._failing or self._unsynced:
            with self._lock:
                self._failing.pop(ref, None)
                self._unsynced.pop(ref, None)

    def _clean_up_if_gone(self, ref: ObjectRef) -> None:
        """Forget what is known of an object that is gone and was reconciled as such."""
        if self.find_primary(ref) is not None or not self._is_known(ref):
            return
        self._throttle.forget(("timeout", ref))
        if self._own is not None and self._own.has_lost(ref):
            # Nobody else may ever ask for it again, so what it wrote is found out now.
            self.queue.add(ref)
        if self._graph is not None:
            self._graph.forget(ref)

    # Keys that wait for a cache.

    def _must_wait(self, own: OwnWrites, item: Item) -> bool:
        """Park a key whose own writes are not shown yet; tell whether it is."""
        ref = item.key
        if not self._read_lost(own, item):
            return True
        with self._lock:
            wait = self._unshown.get(ref)
            is_new = wait is None
            if wait is None:
                now = self._clock.monotonic()
                wait = self._unshown[ref] = _Wait(item, until=now + _OWN_WRITES.delay(1))
            elif item.priority > wait.item.priority:
                wait.item = wait.item._replace(priority=item.priority)
        if not own.park(ref):
            with self._lock:
                self._unshown.pop(ref, None)
            return False
        if is_new:
            _waits.add(controller=self.name)
            _log.debug("waiting for the cache to show own writes")
        now = self._clock.monotonic()
        if now >= wait.until:
            _waits_expired.add(controller=self.name)
            wait.expirations += 1
            wait.until = now + _OWN_WRITES.delay(wait.expirations + 1)
            if self._throttle.allow("own writes"):
                _log.warning("the cache does not show own writes", extra=fields(waits=wait.expirations))
        # If it was woken just now it is dirty already, and this changes nothing.
        self.queue.add_after(ref, wait.until - now, priority=wait.item.priority, since=wait.item.since)
        return True

    def _wake_shown(self, refs: Sequence[ObjectRef]) -> None:
        with self._lock:
            waits = [wait for ref in refs if (wait := self._unshown.pop(ref, None)) is not None]
        self._put_back(waits)

    def _read_lost(self, own: OwnWrites, item: Item) -> bool:
        """Read live what was written without an answer; False if that failed, and the key was put back."""
        lost = own.take_lost(item.key)
        for number, ref in enumerate(lost):
            try:
                found = self._around.client.get(ref)
            except NotFoundError:
                own.record_absent(item.key, ref)
            except (TransportError, ServerError, TooManyRequestsError) as error:
                for unread in lost[number:]:
                    own.record(item.key, Write(unread, None, deleted=False, lost=True))
                if not self._around.stop.is_set():
                    self.queue.add_rate_limited(item.key, priority=item.priority, since=item.since)
                    _log.debug("outcome of a write not known yet", extra=fields(written=str(ref), error=str(error)))
                return False
            except Exception as error:  # noqa: BLE001 - a worker outlives what it calls
                # It may not be read, so nothing can be learned of it.
                _log.debug("outcome of a write not known", extra=fields(written=str(ref), error=_name_of(error)))
            else:
                own.record(item.key, Write(found.ref, found, deleted=False, lost=False))
        return True

    def _park_until_synced(self, item: Item, error: NotSyncedError) -> None:
        """Put a key aside until the cache that the error names has synced, or for half a minute; that is no failure."""
        ref = item.key
        clusters = self._clusters() if error.cluster is None else (error.cluster,)
        waited_for = [
            informers
            for cluster in clusters
            for informers in self._around.sets(cluster)
            if error.gvr is None or informers.gvr() == error.gvr
            if not informers.has_synced() and informers.state() != "stopped"
        ]
        # One that is refused may never sync; then it is not what a body that is missing waits for.
        is_coming = any(informers.state() not in {"forbidden", "unserved"} for informers in waited_for)
        with self._lock:
            wait = self._unsynced.get(ref)
            if wait is None:
                wait = self._unsynced[ref] = _Wait(item)
            wait.expirations += 1
            wait.syncs = frozenset(waited_for)
            seconds = _UNSYNCED_LONGEST if is_coming else _UNSYNCED.delay(wait.expirations)
            new = [informers for informers in waited_for if informers not in self._watched_syncs]
        _log.debug("waiting for a cache to sync", extra=fields(error=str(error), wait=seconds))
        self.queue.add_after(ref, seconds, priority=item.priority, since=item.since)
        for informers in new:
            take_off = informers.on_change(partial(self._look_at_sync, informers))
            with self._lock:
                is_first = informers not in self._watched_syncs
                if is_first:
                    self._watched_syncs[informers] = take_off
            if not is_first:
                take_off()
        for informers in waited_for:
            self._look_at_sync(informers)

    def _look_at_sync(self, informers: Syncing) -> None:
        """Wake all keys that wait for this sync, if it has come."""
        is_over = informers.has_synced()
        if not is_over and informers.state() != "stopped":
            return
        with self._lock:
            take_off = self._watched_syncs.pop(informers, None)
            is_first = is_over and take_off is not None
            waits = [wait for wait in self._unsynced.values() if informers in wait.syncs] if is_first else []
            # They stay in _unsynced until they were reconciled: their count of tries is there.
        if take_off is not None:
            take_off()
        self._put_back(waits)

    def _put_back(self, waits: Sequence[_Wait]) -> None:
        for wait in waits:
            self.queue.add(wait.item.key, priority=wait.item.priority, since=wait.item.since)

    # What is known of primaries.

    def find_primary(self, ref: ObjectRef) -> Object | None:
        """Return the object from the caches of this controller's primaries, or None."""
        for informers in self._primaries_of(ref.cluster):
            if informers.gvr() == ref.gvr:
                for store in informers.stores():
                    if (found := store.get(ref.key)) is not None:
                        return found
        return None

    def _is_known(self, ref: ObjectRef) -> bool:
        """Tell whether an object that the caches do not have is known to be absent."""
        following = [one for one in self._primaries_of(ref.cluster) if one.gvr() == ref.gvr]
        return bool(following) and all(one.has_synced() for one in following)

    def _primaries_of(self, cluster: str) -> Sequence[FollowedSet]:
        with self._lock:
            return tuple(self._primaries.get(cluster, ()))

    def _clusters(self) -> Sequence[str]:
        with self._lock:
            return tuple(self._primaries) or ("",)

    def line_fields(self, item: Item | None, run: str) -> Mapping[str, object]:
        """Return what each line logged inside a reconcile carries."""
        if item is None:
            return {"controller": self.name}
        ref = item.key
        found = self.find_primary(ref)
        return {
            "controller": self.name,
            "cluster": ref.cluster,
            "resource": str(ref.gvr),
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": found.uid if found is not None else "",
            "reconcile": run,
            "attempt": item.attempt,
        }

    def next_run(self) -> str:
        """Return a short id for one reconcile."""
        return f"{self._run_id}-{next(self._runs)}"

    def wait_for_gate(self) -> bool:
        """Wait until work may start; False when it never will."""
        return self._around.gate.wait(self._around.stop)


class _Worker:
    """What one worker thread does; its fields are read only if a line is logged."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._item: Item | None = None
        self._run = ""

    def run(self) -> None:
        controller = self._controller
        if not controller.wait_for_gate():
            return
        queue, process = controller.queue, controller.process
        with bind_source(self._fields):
            while (item := queue.get()) is not None:
                self._item = item
                self._run = ""
                process(item)
                self._item = None

    def _fields(self) -> Mapping[str, object]:
        if self._item is not None and not self._run:
            self._run = self._controller.next_run()
        return self._controller.line_fields(self._item, self._run)


def _shown(what: What, cluster: str) -> str:
    resource = what.resource if isinstance(what, Selection) else what
    return f"{cluster}/{resource}" if cluster else str(resource)


def _is_owner(found: Object, owner: OwnerReference) -> bool:
    return found.uid == owner.uid and found.kind == owner.kind


def _name_of(error: BaseException | None) -> str:
    return "" if error is None else type(error).__name__


def check_name(name: str) -> None:
    """Raise `ConfigError` unless `name` can stand in thread names, logs and metrics."""
    if not name or not name.isprintable() or len(name) > 63 or "/" in name:
        msg = f"name {name!r}: want 1 to 63 printable characters without a slash"
        raise ConfigError(msg)
