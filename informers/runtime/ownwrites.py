"""OwnWrites: what a reconcile wrote and its caches have not shown yet, so that it never acts on a state before that.

Each write of a request is a *floor* at every store that will show it: a resourceVersion that the store has to
reach, or, for a deletion, an object that has to be gone. Floors fall by what stores show, never by hand, and the
stores say when; nothing polls. What is deleted as a collection is not waited for: which objects that were, no cache
can tell.

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

# While handlers are told of a first list its informer is still syncing, but its store can be read, and work on what
# was told may begin: so it counts. A store that holds nothing yet has no version to compare, and holds up nobody.
_FOLLOWING: Final = frozenset({"syncing", "synced", "watching"})


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

    __slots__ = ("is_gone", "key", "request", "rv", "uid")

    def __init__(self, request: ObjectRef, *, key: str, uid: str, rv: str = "", is_gone: bool = False) -> None:
        self.request = request
        self.key = key
        self.uid = uid
        self.rv = rv  # to be reached
        self.is_gone = is_gone  # the object has to be gone, too


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
            # A name that the server was to make cannot be asked for. What was refused is worth asking for where a
            # cache shows it: that is behind, or the write was done all the same.
            if write.ref.name and (not write.refused or any(self._following(write.ref))):
                with self._lock:
                    self._lost.setdefault(request, {})[write.ref] = None
        elif write.deleted:
            self.record_absent(request, write.ref)
        elif write.obj is not None:
            self._record_version(request, write.obj)

    def record_absent(self, request: ObjectRef, ref: ObjectRef) -> None:
        """Take note that the object is gone, or going; caches that show it alive, or will yet do so, are behind."""
        for followed, store in self._following(ref):
            written = self._last_written(store, ref.key)
            if written is not None:
                floor = _Floor(request, key=ref.key, uid=written.uid, rv=written.rv, is_gone=True)
            else:
                shown = store.get(ref.key)
                if shown is None or shown.deletion_timestamp is not None:
                    continue
                floor = _Floor(request, key=ref.key, uid=shown.uid, is_gone=True)
            self._add(followed, store, floor)

    def _last_written(self, store: FollowedStore, key: str) -> _Floor | None:
        """Return the newest version of an object that was written here and that the store has not reached."""
        with self._lock:
            mark = self._marks.get(store)
            found = [entry for entry in mark.heap if entry[-1].key == key] if mark is not None else []
        return max(found)[-1] if found else None

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
        rv, key = obj.resource_version, obj.ref.key
        for followed, store in self._following(obj.ref):
            # One that shows the object and does not select it any more will tell of that, too.
            if is_at_least(store.rv(), rv) is False and (store.selects(obj) or store.get(key) is not None):
                self._add(followed, store, _Floor(request, key=key, uid=obj.uid, rv=rv))

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
            if floor.is_gone:
                mark.deletions[floor] = None
            else:
                heapq.heappush(mark.heap, (len(floor.rv), floor.rv, next(self._numbers), floor))
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
        met = [floor for floor in deletions if not is_following or _is_met(floor, rv, store.get(floor.key))]
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


def _is_met(deletion: _Floor, rv: str, shown: Object | None) -> bool:
    """Tell whether a store that had reached `rv` a moment ago shows that the object is gone."""
    if deletion.rv and is_at_least(rv, deletion.rv) is False:
        return False  # it is absent because it has not come yet
    return shown is None or shown.uid != deletion.uid or shown.deletion_timestamp is not None


def _call(functions: Sequence[Callable[[], None] | None]) -> None:
    for function in functions:
        if function is not None:
            function()
