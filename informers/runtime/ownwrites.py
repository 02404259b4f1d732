"""OwnWrites: what a reconcile wrote and its caches have not shown yet, so that it never acts on a state before that.

Each write of a request is a *floor* at every store that will show it: a resourceVersion that the store has to
reach, or, for a deletion, an object that has to be gone. Floors fall by what stores show, never by hand, and the
stores say when; nothing polls.

What is surprising: a store that is not following its resource (forbidden, not served, stopped, not yet filled)
holds nobody up, and neither does a resourceVersion that cannot be compared. The floors of an object that is gone stay
until they are met, as it may come back before that, and its next reconcile would act on a cache from before the last.
They fall without anybody asking, so what is kept is never more than what was written and not seen.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from informers.api.client import Write
from informers.cache.store import is_at_least
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef

_FOLLOWING: Final = frozenset({"synced", "watching"})


class FollowedStore(Protocol):
    """What a store is asked here."""

    def rv(self) -> str:
        """Return how far it has followed its resource."""
        ...

    def get(self, key: str, /) -> Object | None:
        """Return the object at `key`, or None."""
        ...

    def selects(self, obj: Object, /) -> bool:
        """Tell whether `obj` would be in it."""
        ...

    def on_advance(self, callback: Callable[[], None], /) -> Callable[[], None]:
        """Have `callback` called after `rv()` or the informer's state moved."""
        ...


class Followed(Protocol):
    """What an informer, or a set of them, is asked here."""

    def gvr(self) -> GVR | None:
        """Return what it follows, if that is known."""
        ...

    def state(self) -> str:
        """Return pending, syncing, synced, watching, forbidden, unserved or stopped."""
        ...

    def stores(self) -> Sequence[FollowedStore]:
        """Return its stores."""
        ...


class _Floor:
    """One condition that one store has to meet; equal only to itself."""

    __slots__ = ("key", "request", "rv", "uid")

    def __init__(self, request: ObjectRef, *, rv: str = "", key: str = "", uid: str = "") -> None:
        self.request = request
        self.rv = rv  # to be reached; "" for a deletion, of
        self.key = key
        self.uid = uid


class _Mark:
    """One store and the floors it has not met."""

    __slots__ = ("deletions", "followed", "heap", "store", "take_off")

    def __init__(self, followed: Followed, store: FollowedStore) -> None:
        self.followed = followed
        self.store = store
        self.heap: list[tuple[int, str, int, _Floor]] = []  # lowest resourceVersion first
        self.deletions: dict[_Floor, None] = {}
        self.take_off: Callable[[], None] | None = None


class OwnWrites:
    """The floors of one controller's requests.

    `sets` names the informers of a cluster; `wake` is called, with no lock held and on the thread that a store
    advances on, with parked requests whose last floor was met.
    """

    def __init__(
        self, *, sets: Callable[[str], Sequence[Followed]], wake: Callable[[Sequence[ObjectRef]], None]
    ) -> None:
        self._sets = sets
        self._wake = wake
        self._lock = threading.Lock()  # guards all below
        self._floors: dict[ObjectRef, dict[_Floor, _Mark]] = {}  # no request maps to nothing
        self._marks: dict[FollowedStore, _Mark] = {}
        self._lost: dict[ObjectRef, dict[ObjectRef, None]] = {}
        self._parked: set[ObjectRef] = set()
        self._numbers = itertools.count()

    def record(self, request: ObjectRef, write: Write) -> None:
        """Take note of a write that `request` has just made; called before the write returns to it."""
        if write.lost:
            if write.ref.name:  # a name that the server was to make cannot be asked for
                with self._lock:
                    self._lost.setdefault(request, {})[write.ref] = None
        elif write.deleted:
            self.record_absent(request, write.ref)
        elif write.obj is not None:
            self._record_version(request, write.obj)

    def record_absent(self, request: ObjectRef, ref: ObjectRef) -> None:
        """Take note that the object is gone, or going; caches that show it alive are behind."""
        for followed, store in self._following(ref):
            shown = store.get(ref.key)
            if shown is not None and shown.deletion_timestamp is None:
                self._add(followed, store, _Floor(request, key=ref.key, uid=shown.uid))

    def take_lost(self, request: ObjectRef) -> Sequence[ObjectRef]:
        """Return, once, what `request` wrote without learning the outcome; the caller reads it live."""
        if not self._lost:
            return ()
        with self._lock:
            return tuple(self._lost.pop(request, ()))

    def is_clear(self, request: ObjectRef) -> bool:
        """Tell, without asking any store, whether nothing is outstanding."""
        return request not in self._floors and request not in self._lost

    def park(self, request: ObjectRef) -> bool:
        """Remember to wake `request` when its caches show all it wrote; False if they do already."""
        with self._lock:
            marks = set(self._floors.get(request, {}).values())
        for mark in marks:
            self._look(mark)
        with self._lock:
            if request not in self._floors:
                self._parked.discard(request)
                return False
            self._parked.add(request)
            return True

    def has_lost(self, request: ObjectRef) -> bool:
        """Tell whether `request` wrote something without learning the outcome."""
        return request in self._lost

    def holds(self, request: ObjectRef) -> bool:
        """Tell whether anything is remembered of `request`."""
        with self._lock:
            return request in self._floors or request in self._lost or request in self._parked

    def __len__(self) -> int:
        """Return how many floors are not met."""
        with self._lock:
            return sum(map(len, self._floors.values()))

    def _record_version(self, request: ObjectRef, obj: Object) -> None:
        rv = obj.resource_version
        for followed, store in self._following(obj.ref):
            if store.selects(obj) and is_at_least(store.rv(), rv) is False:
                self._add(followed, store, _Floor(request, rv=rv))

    def _following(self, ref: ObjectRef) -> Iterator[tuple[Followed, FollowedStore]]:
        """Yield each store once that follows the resource of `ref` now."""
        seen: set[FollowedStore] = set()
        for followed in self._sets(ref.cluster):
            if followed.gvr() == ref.gvr and followed.state() in _FOLLOWING:
                for store in followed.stores():
                    if store not in seen:
                        seen.add(store)
                        yield followed, store

    def _add(self, followed: Followed, store: FollowedStore, floor: _Floor) -> None:
        with self._lock:
            mark = self._marks.get(store)
            if mark is None:
                mark = self._marks[store] = _Mark(followed, store)
            self._floors.setdefault(floor.request, {})[floor] = mark
            if floor.rv:
                heapq.heappush(mark.heap, (len(floor.rv), floor.rv, next(self._numbers), floor))
            else:
                mark.deletions[floor] = None
            is_new = mark.take_off is None
        if is_new:
            take_off = store.on_advance(lambda: self._look(mark))
            with self._lock:
                # Another writer may have been faster, or the floors may all have fallen.
                is_needed = mark.take_off is None and self._marks.get(store) is mark
                if is_needed:
                    mark.take_off = take_off
            if not is_needed:
                take_off()
        self._look(mark)  # what the store has shown since it was compared

    def _look(self, mark: _Mark) -> None:
        """Let the floors fall that the store meets now, and wake whom that leaves without any."""
        store = mark.store
        is_following = mark.followed.state() in _FOLLOWING and store in mark.followed.stores()
        rv = store.rv()
        with self._lock:
            deletions = tuple(mark.deletions)
        met = [floor for floor in deletions if not is_following or _is_gone(store.get(floor.key), floor.uid)]
        with self._lock:
            while mark.heap and (not is_following or is_at_least(rv, mark.heap[0][-1].rv) is not False):
                met.append(heapq.heappop(mark.heap)[-1])
            woken = []
            for floor in met:
                mark.deletions.pop(floor, None)
                floors = self._floors.get(floor.request)
                if floors is None or floors.pop(floor, None) is None or floors:
                    continue
                del self._floors[floor.request]
                if floor.request in self._parked:
                    self._parked.remove(floor.request)
                    woken.append(floor.request)
            take_off = self._retire_locked(mark)
        _call([take_off])
        if woken:
            self._wake(woken)

    def _retire_locked(self, mark: _Mark) -> Callable[[], None] | None:
        """Forget a store that owes nothing; return how to stop listening to it."""
        if mark.heap or mark.deletions or self._marks.get(mark.store) is not mark:
            return None
        del self._marks[mark.store]
        take_off, mark.take_off = mark.take_off, None
        return take_off


def _is_gone(shown: Object | None, uid: str) -> bool:
    return shown is None or shown.uid != uid or shown.deletion_timestamp is not None


def _call(functions: Sequence[Callable[[], None] | None]) -> None:
    for function in functions:
        if function is not None:
            function()
