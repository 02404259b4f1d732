"""Read a local copy the way a reconciler asks: by name, by namespace, by label, by index, in one cluster or in all.

Nothing here waits or talks to the server, `wait_seen` apart. What is not known yet raises `NotSyncedError`, which
a reconciler lets through: it then runs again when the copy is there. An absent object is only absent when its
informer has synced.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from informers.cache.indexer import IndexFunc
from informers.cache.store import Handle, Handler, Store, is_at_least
from informers.clock import Clock, SystemClock
from informers.meta.errors import (
    ConfigError,
    InformersError,
    NotFoundError,
    NotSeenError,
    NotSyncedError,
    StaleCacheError,
)
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef
from informers.meta.selectors import parse_labels


class Followed(Protocol):
    """What one selection means in one cluster right now; an `InformerSet`."""

    def gvr(self) -> GVR | None:
        """Return the resource that is followed now, None while its name does not resolve."""
        ...

    def stores(self) -> Sequence[Store]:
        """Return the stores to read, one for each namespace followed."""
        ...

    # A namespace narrows these questions to what follows it: one that is broken must not hide the others.

    def has_synced(self, namespace: str | None = None) -> bool:
        """Tell whether the first list was processed."""
        ...

    def is_readable(self, namespace: str | None = None) -> bool:
        """Tell whether the first list is in the store."""
        ...

    def max_staleness(self) -> float | None:
        """Return for how many seconds without a sign of the server reading is allowed."""
        ...

    def state(self, namespace: str | None = None) -> str:
        """Return what the informers are at."""
        ...

    def problem(self, namespace: str | None = None) -> InformersError | None:
        """Return why it is not synced, or is behind."""
        ...

    def age(self, namespace: str | None = None) -> float:
        """Return the seconds since the last sign of life."""
        ...

    def verdicts(self) -> Collection[tuple[str, bool, str]]:
        """Return what is known of namespaces: which one, whether its first list was processed, what is wrong."""
        ...

    def add_index(self, name: str, func: IndexFunc) -> None:
        """Index what is there and what comes."""
        ...

    def add_handler(self, handler: Handler) -> Handle:
        """Tell `handler` of what is there, then of every change."""
        ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called whenever sync, state or problem may have changed."""
        ...


class Lister:
    """Read what one selection follows, in one cluster or several; from any thread, never waiting for the server.

    `get`, `find`, `list` and the index queries raise `NotSyncedError` before the first list is there (of the cluster
    asked for; of any cluster, when all are asked for, only those are read that are synced), and `StaleCacheError`
    when the selection has a `max_staleness` and the server was not heard of for longer. Of a selection of several
    namespaces, one that is forbidden or not served is left out when all are asked for, and raises when it is.
    """

    def __init__(self, sets: Mapping[str, Followed], *, clock: Clock | None = None) -> None:
        self._sets = dict(sets)
        self._clock: Clock = SystemClock() if clock is None else clock

    def sources(self) -> Mapping[str, Followed]:
        """Return what is read, by cluster."""
        return dict(self._sets)

    def follows(self, ref: ObjectRef) -> bool:
        """Tell whether this object would be here if it existed: its cluster, resource and namespace are followed."""
        followed = self._sets.get(ref.cluster)
        if followed is None or followed.gvr() != ref.gvr:
            return False
        return any(not store.namespace or store.namespace == ref.namespace for store in followed.stores())

    def get(self, name: str, namespace: str = "", *, cluster: str = "") -> Object:
        """Return one object. Raises `NotFoundError` (status 0) if it is not there."""
        found = self._find(f"{namespace}/{name}" if namespace else name, namespace, self._readable(cluster, namespace))
        if found is None:
            gvr = self._set(cluster).gvr()
            ref = None if gvr is None else ObjectRef(gvr, namespace, name, cluster)
            raise NotFoundError("not in the cache", ref=ref, verb="get", cluster=cluster)
        return found

    def find(self, ref: ObjectRef) -> Object | None:
        """Return the object that `ref` names, or None; also None when this lister follows another resource."""
        followed = self._readable(ref.cluster, ref.namespace)
        if followed.gvr() != ref.gvr:
            return None
        return self._find(ref.key, ref.namespace, followed)

    def list(self, namespace: str | None = None, *, labels: str = "", cluster: str | None = None) -> Sequence[Object]:
        """Return all objects, or those of a namespace or with labels that a selector matches, sorted by key."""
        selector = parse_labels(labels)
        found = _in_order(
            [
                store.list(namespace)
                for store in self._stores(cluster, namespace or None)
                if not (namespace and store.namespace) or store.namespace == namespace
            ]
        )
        if not selector.requirements:
            return found
        return [obj for obj in found if selector.matches(obj.labels)]

    def by_index(self, index: str, value: str, *, cluster: str | None = None) -> Sequence[Object]:
        """Return the objects with `value` in an index. Raises `ConfigError` for an index that is not there."""
        return _in_order([store.by_index(index, value) for store in self._stores(cluster)])

    def keys_by_index(self, index: str, value: str, *, cluster: str | None = None) -> Sequence[ObjectRef]:
        """Return the references of the objects with `value` in an index. Raises as `by_index`."""
        return [obj.ref for obj in self.by_index(index, value, cluster=cluster)]

    def index_values(self, index: str, *, cluster: str | None = None) -> Sequence[str]:
        """Return, sorted, each value that some object has in an index. Raises as `by_index`."""
        return sorted({value for store in self._stores(cluster) for value in store.index_values(index)})

    def add_index(self, name: str, func: IndexFunc) -> None:
        """Index what is there and what comes, at any time. Raises `ConfigError` on a name in use with another func."""
        for followed in self._sets.values():
            followed.add_index(name, func)

    def has_synced(self, cluster: str | None = None) -> bool:
        """Tell whether the first list was processed, in one cluster or (None) in all."""
        chosen = self._sets.values() if cluster is None else (self._set(cluster),)
        return all(followed.has_synced() for followed in chosen)

    def age(self, cluster: str | None = None) -> float:
        """Return the seconds since the last sign of life, the longest of all clusters for None; inf before the first."""
        chosen = self._sets.values() if cluster is None else (self._set(cluster),)
        return max((followed.age() for followed in chosen), default=math.inf)

    def state(self, cluster: str = "") -> str:
        """Return pending, syncing, synced (no watch open yet), watching, forbidden, unserved or stopped."""
        return self._set(cluster).state()

    def problem(self, cluster: str = "") -> InformersError | None:
        """Return why it is not synced or is behind, None when all is well."""
        return self._set(cluster).problem()

    def wait_seen(self, ref: ObjectRef, rv: str, *, timeout: float = 5.0) -> None:
        """Wait until the copy has come as far as `rv`, of the resource of `ref`.

        Returns at once when versions cannot be compared, or when nothing is to be expected because the informer is
        not synced, forbidden, unserved or stopped. Raises `NotSeenError` after `timeout` seconds.
        """
        followed = self._set(ref.cluster)
        stores = [each for each in followed.stores() if each.namespace in {"", ref.namespace}]
        signal = _Signal(self._clock)
        take_off = [store.on_advance(signal.give) for store in stores]
        deadline = self._clock.monotonic() + timeout
        try:
            while _is_behind(followed, stores, ref.namespace, rv):
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    msg = f"{ref}: the cache has not come to version {rv} within {timeout:g} s"
                    raise NotSeenError(msg)
                signal.wait(left)
        finally:
            for each in take_off:
                each()

    def _find(self, key: str, namespace: str, followed: Followed) -> Object | None:
        for store in followed.stores():
            if store.namespace and store.namespace != namespace:
                continue
            found, lacks_body = store.look_up(key)
            if found is not None and lacks_body:
                msg = f"{found.ref}: only its metadata is in the cache, its body could not be read yet"
                raise NotSyncedError(msg, known=found, cluster=found.cluster, gvr=found.ref.gvr)
            if found is not None:
                return found
        return None

    def _stores(self, cluster: str | None, namespace: str | None = None) -> Sequence[Store]:
        if cluster is not None:
            return self._readable(cluster, namespace).stores()
        readable = [each for each in self._sets.values() if each.is_readable(namespace)]
        if not readable and self._sets:
            self._readable(next(iter(self._sets)), namespace)
        for followed in readable:
            _check_staleness(followed, namespace)
        return [store for followed in readable for store in followed.stores()]

    def _readable(self, cluster: str, namespace: str | None) -> Followed:
        followed = self._set(cluster)
        if not followed.is_readable(namespace):
            problem = followed.problem(namespace)
            because = f": {problem}" if problem is not None else ""
            where = f" (cluster {cluster})" if cluster else ""
            msg = f"{followed.gvr() or 'the resource'}{where} is {followed.state(namespace)}, not synced{because}"
            raise NotSyncedError(msg, problem=problem, cluster=cluster, gvr=followed.gvr())
        _check_staleness(followed, namespace)
        return followed

    def _set(self, cluster: str) -> Followed:
        followed = self._sets.get(cluster)
        if followed is None:
            msg = f"cluster {cluster!r} is not followed here, want one of {sorted(self._sets)}"
            raise ConfigError(msg)
        return followed


class _Signal:
    """Wakes one waiting thread; given while nobody waits, it ends the next wait at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())  # guards _is_given
        self._is_given = False

    def give(self) -> None:
        with self._changed:
            self._is_given = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        with self._changed:
            if not self._is_given:
                self._clock.wait(self._changed, seconds)
            self._is_given = False


def _in_order(parts: Sequence[Sequence[Object]]) -> Sequence[Object]:
    """Put what several stores answered into one order, by cluster and key."""
    if len(parts) == 1:
        return parts[0]
    return sorted((obj for part in parts for obj in part), key=lambda obj: (obj.cluster, obj.ref.key))


def _check_staleness(followed: Followed, namespace: str | None) -> None:
    limit = followed.max_staleness()
    if limit is not None and (age := followed.age(namespace)) > limit:
        msg = f"{followed.gvr()}: nothing was heard from the server for {age:.0f} s, want at most {limit:g}"
        raise StaleCacheError(msg)


def _is_behind(followed: Followed, stores: Sequence[Store], namespace: str, rv: str) -> bool:
    if not followed.has_synced(namespace) or followed.state(namespace) in {"forbidden", "unserved", "stopped"}:
        return False
    return any(is_at_least(store.rv(), rv) is False for store in stores)
