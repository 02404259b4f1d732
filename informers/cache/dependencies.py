"""Know who must look again when what changes, and keep followed what somebody depends on.

The rule of use: `replace(dependent, dependencies)` first, reads after. Then either the read shows the new state, or
the change comes after the edge and wakes the dependent; in the other order a change can be lost. The other half of
the promise is the informers': a store is written before dependents are looked up.

The surprising thing: an absent object sends no event. So when an informer that was started for a dependency has
synced, every dependent on that kind of object is woken once, whatever the list brought.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

from informers.cache.listwatch import Selection
from informers.cache.patience import Patience
from informers.cache.store import Delta, Handle, Handler
from informers.clock import Clock, SystemClock
from informers.meta.errors import ConfigError, InformersError, NotSyncedError
from informers.meta.objects import Object
from informers.meta.options import is_whole_number
from informers.meta.resources import GVR, ObjectRef, Resource

Wake: TypeAlias = Callable[[Sequence[ObjectRef], int], None]
Resolution: TypeAlias = Resource | InformersError | None

_ORDINARY: Final = 0
_WIDE: Final = -50
_COMPLETION: Final = 5.0
_NOTHING_KNOWN: Final[frozenset[tuple[str, bool, str]]] = frozenset()


class Lookup(Protocol):
    """How a dependency is read; every `Lister` can."""

    def get(self, name: str, namespace: str = "", *, cluster: str = "") -> Object:
        """Return one object, or raise `NotFoundError`, `NotSyncedError`, `StaleCacheError`."""
        ...

    def find(self, ref: ObjectRef) -> Object | None:
        """Return the object that `ref` names, or None; raises as `get` when nothing is known yet."""
        ...

    def has_synced(self, cluster: str | None = None) -> bool:
        """Tell whether the first list was processed."""
        ...

    def age(self, cluster: str | None = None) -> float:
        """Return the seconds since the last sign of life; inf before the first."""
        ...

    def state(self, cluster: str = "") -> str:
        """Return pending, syncing, synced, watching, forbidden, unserved or stopped."""
        ...

    def problem(self, cluster: str = "") -> InformersError | None:
        """Return why it is not synced or is behind."""
        ...


class Source(Protocol):
    """What one selection means in one cluster right now; an `InformerSet`."""

    def gvr(self) -> GVR | None:
        """Return the resource that is followed now."""
        ...

    def add_handler(self, handler: Handler) -> Handle:
        """Tell `handler` of what is there, then of every change."""
        ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called whenever sync, state or problem may have changed."""
        ...

    def verdicts(self) -> Collection[tuple[str, bool, str]]:
        """Return what is known of namespaces: which one, whether its first list was processed, what is wrong.

        A namespace of which nothing is known is left out; `""` is all of them.
        """
        ...


class Demand(Source, Protocol):
    """A set that was asked for by a graph, and keeps bodies only of what is referred to."""

    def refer(self, ref: ObjectRef, *, timeout: float) -> None:
        """Keep the body of this object too; complete it if only its metadata is there, in so many seconds."""
        ...

    def unrefer(self, ref: ObjectRef) -> None:
        """Take one reference back."""
        ...

    def lister(self) -> Lookup:
        """Return what reads this set."""
        ...

    def release(self) -> None:
        """Say that the set is needed no more."""
        ...


class Over(Lookup, Protocol):
    """A lister whose informers the graph uses instead of starting its own."""

    def follows(self, ref: ObjectRef) -> bool:
        """Tell whether this object would be there if it existed."""
        ...

    def sources(self) -> Mapping[str, Source]:
        """Return what is read, by cluster."""
        ...


class Factory(Protocol):
    """Starts informers of one cluster; an `InformerFactory`."""

    def demand(self, selection: Selection, ref: ObjectRef, *, timeout: float) -> Demand:
        """Follow a selection, keeping bodies only of what is referred to: `ref` at first.

        Waits for nothing but the body of `ref`, so many seconds, if its metadata is there alone.
        """
        ...

    def follow_text(self, text: str, listener: Callable[[Resolution], None]) -> Callable[[], None]:
        """Tell `listener` what a resource's name means, now and whenever that changes; returns "no more"."""
        ...


_K = TypeVar("_K")
_V = TypeVar("_V")
_Kind: TypeAlias = tuple[str, GVR]  # cluster and resource
_Text: TypeAlias = tuple[str, str]  # cluster and a resource's name that did not resolve


@dataclass(slots=True, eq=False)
class _Followed:
    """An informer set that this graph started, and how many edges hold it."""

    key: tuple[str, GVR, bool]
    demand: Demand
    take_off: Sequence[Callable[[], None]]
    holds: int = 1


@dataclass(slots=True, eq=False)
class _Edges:
    """All that one dependent depends on, by what follows it; filled in by one thread, then left as it is."""

    followed: dict[ObjectRef, _Followed | None]
    is_complete: bool = False


@dataclass(slots=True, eq=False)
class _Named:
    """A resource's name that is looked at again, and how many dependents hold it."""

    take_off: Callable[[], None]
    holds: int = 1


class DependencyGraph:
    """Who depends on what; from any thread.

    References may be of any cluster in `factories`. What no lister in `over` follows is followed on demand, in
    `namespaces` or in all. A source with more than `wide` dependents wakes them at a low priority, so that objects
    which changed themselves go first.
    """

    def __init__(
        self,
        factories: Mapping[str, Factory],
        *,
        over: Sequence[Over] = (),
        namespaces: Sequence[str] = (),
        wide: int = 100,
        clock: Clock | None = None,
    ) -> None:
        if not is_whole_number(wide, least=1):
            msg = f"dependency graph: wide: want a whole number over 0, got {wide!r}"
            raise ConfigError(msg)
        self._factories = dict(factories)
        self._over = tuple(over)
        self._namespaces = tuple(namespaces)
        self._wide = wide
        self._clock: Clock = SystemClock() if clock is None else clock
        self._patience = Patience(self._clock)
        self._lock = threading.Lock()  # guards all below; no value in any of the maps is empty
        self._dependencies: dict[ObjectRef, _Edges] = {}
        self._dependents: dict[ObjectRef, set[ObjectRef]] = {}
        self._by_kind: dict[_Kind, set[ObjectRef]] = {}  # the dependencies of a kind
        self._texts: dict[ObjectRef, Mapping[_Text, _Named | None]] = {}
        self._by_text: dict[_Text, set[ObjectRef]] = {}  # the dependents that named it
        self._followed: dict[tuple[str, GVR, bool], _Followed] = {}
        self._named: dict[_Text, _Named] = {}
        self._resolved: set[_Text] = set()  # names that do resolve now
        self._verdicts: dict[object, frozenset[tuple[str, bool, str]]] = {}
        self._wakes: dict[object, Wake] = {}
        self._take_off: list[Callable[[], None]] = []
        for lister in self._over:
            for cluster, source in lister.sources().items():
                self._take_off.extend(self._attach(object(), cluster, source, frozenset(source.verdicts())))

    def replace(
        self, dependent: ObjectRef, dependencies: Iterable[ObjectRef], *, kinds: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Make these all that `dependent` depends on; then read.

        Starts informers for what nothing follows yet, without waiting for them. Objects whose bodies were not kept so
        far are read from the server, which may take up to 5 s for all of them, and less of a cluster that does not answer;
        reading one that did not come raises `NotSyncedError`, and a later call of this method asks again. `kinds` are pairs of a cluster and a resource's name
        that did not resolve: the dependent is woken when it does, or comes to mean something else.
        """
        edges = _Edges(dict.fromkeys(dependencies))
        named = {text: self._hold_text(text) for text in dict.fromkeys(kinds)}
        with self._lock:
            before = self._swap_edges_locked(dependent, edges)
            named_before = self._swap_texts_locked(dependent, named)
            is_late = any(text in self._resolved and text not in named_before for text in named)
        # After the edges are there, so that whatever an informer finds out at once reaches the dependent.
        deadline = self._clock.monotonic() + _COMPLETION
        try:
            for ref in edges.followed:
                edges.followed[ref] = self._hold(ref, deadline)
        finally:
            self._settle(dependent, edges, before, named_before)
        if is_late:
            # It came to mean something between the caller's look at it and this call. Only a name that is new to the
            # dependent counts: one that names what does resolve, each time, would be woken for ever.
            self._wake([dependent], _ORDINARY)

    def _settle(
        self, dependent: ObjectRef, edges: _Edges, before: _Edges, named_before: Mapping[_Text, _Named | None]
    ) -> None:
        """Let go of what the edges before held, and of what these hold if others have taken their place meanwhile."""
        with self._lock:
            edges.is_complete = True
            is_current = not edges.followed or self._dependencies.get(dependent) is edges
            let_go = [before] if before.is_complete else []  # else the thread that completes it does it
        for each in let_go if is_current else [*let_go, edges]:
            for ref, followed in each.followed.items():
                if followed is not None:
                    self._let_go(ref, followed)
        for text, name in named_before.items():
            if name is not None:
                self._let_go_text(text, name)

    def forget(self, dependent: ObjectRef) -> None:
        """Take out all that `dependent` depends on."""
        self.replace(dependent, ())

    def lister(self, ref: ObjectRef) -> Lookup:
        """Return what reads this reference, which `replace` has named before; starts nothing.

        Raises `NotSyncedError` when nothing follows it.
        """
        over = self._over_for(ref)
        if over is not None:
            return over
        with self._lock:
            followed = self._followed.get(_key_of(ref))
        if followed is None:
            msg = f"{ref}: nothing follows it, as no dependent names it"
            raise NotSyncedError(msg, cluster=ref.cluster, gvr=ref.gvr)
        return followed.demand.lister()

    def dependents_of(self, ref: ObjectRef) -> Sequence[ObjectRef]:
        """Return who depends on `ref`."""
        with self._lock:
            return tuple(self._dependents.get(ref, ()))

    def dependencies_of(self, dependent: ObjectRef) -> Sequence[ObjectRef]:
        """Return what `dependent` depends on."""
        with self._lock:
            edges = self._dependencies.get(dependent)
            return () if edges is None else tuple(edges.followed)

    def subscribe(self, wake: Wake) -> Callable[[], None]:
        """Have `wake(dependents, priority)` called, with no lock held, for those who must look again.

        It runs on the thread that learnt of the change, and may only enqueue. Returns a function that takes it off.
        """
        token = object()
        with self._lock:
            self._wakes[token] = wake

        def take_off() -> None:
            with self._lock:
                self._wakes.pop(token, None)

        return take_off

    def stop(self) -> None:
        """Let everything go: edges, informers, handlers."""
        with self._lock:
            dependents = {*self._dependencies, *self._texts}
        for dependent in dependents:
            self.forget(dependent)
        for take_off in self._take_off:
            take_off()

    # Edges.

    def _swap_edges_locked(self, dependent: ObjectRef, edges: _Edges) -> _Edges:
        before = self._dependencies.pop(dependent, _Edges({}, is_complete=True))
        if edges.followed:
            self._dependencies[dependent] = edges
        for ref in edges.followed:
            if ref not in before.followed:
                self._dependents.setdefault(ref, set()).add(dependent)
                self._by_kind.setdefault((ref.cluster, ref.gvr), set()).add(ref)
        for ref in before.followed:
            if ref not in edges.followed:
                _take_out(self._dependents, ref, dependent)
                if ref not in self._dependents:
                    _take_out(self._by_kind, (ref.cluster, ref.gvr), ref)
        return before

    def _swap_texts_locked(
        self, dependent: ObjectRef, named: Mapping[_Text, _Named | None]
    ) -> Mapping[_Text, _Named | None]:
        before = self._texts.pop(dependent, {})
        if named:
            self._texts[dependent] = named
        for text in named:
            self._by_text.setdefault(text, set()).add(dependent)
        for text in before:
            if text not in named:
                _take_out(self._by_text, text, dependent)
        return before

    # What follows a dependency.

    def _over_for(self, ref: ObjectRef) -> Over | None:
        return next((lister for lister in self._over if lister.follows(ref)), None)

    def _hold(self, ref: ObjectRef, deadline: float) -> _Followed | None:
        """Have something follow `ref`; None when somebody else's informer does, or its cluster is unknown."""
        factory = self._factories.get(ref.cluster)
        if factory is None or self._over_for(ref) is not None:
            return None
        followed = self._held_already(ref)
        if followed is None:
            return self._follow(ref, factory, deadline)
        with self._patience.waiting(ref.cluster, self._left(deadline)) as seconds:
            followed.demand.refer(ref, timeout=seconds)
        return followed

    def _held_already(self, ref: ObjectRef) -> _Followed | None:
        with self._lock:
            followed = self._followed.get(_key_of(ref))
            if followed is not None:
                followed.holds += 1
            return followed

    def _follow(self, ref: ObjectRef, factory: Factory, deadline: float) -> _Followed:
        namespaces = self._namespaces if ref.namespace else ()
        with self._patience.waiting(ref.cluster, self._left(deadline)) as seconds:
            demand = factory.demand(Selection(ref.gvr, namespaces=namespaces), ref, timeout=seconds)
        # Published only when its changes reach us: whoever finds it there may read at once.
        token = object()
        made = _Followed(_key_of(ref), demand, self._attach(token, ref.cluster, demand, _NOTHING_KNOWN))
        with self._lock:
            known = self._followed.setdefault(made.key, made)
            if known is not made:
                known.holds += 1
        if known is not made:
            with self._patience.waiting(ref.cluster, self._left(deadline)) as seconds:
                known.demand.refer(ref, timeout=seconds)
            _end(made)
        else:
            self._on_change(token, ref.cluster, demand)  # it may have synced before we listened
        return known

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    def _let_go(self, ref: ObjectRef, followed: _Followed) -> None:
        followed.demand.unrefer(ref)
        with self._lock:
            followed.holds -= 1
            is_over = not followed.holds
            if is_over:
                del self._followed[followed.key]
        if is_over:
            _end(followed)

    def _attach(
        self, token: object, cluster: str, source: Source, verdict: frozenset[tuple[str, bool, str]]
    ) -> Sequence[Callable[[], None]]:
        with self._lock:
            self._verdicts[token] = verdict
        off_change = source.on_change(lambda: self._on_change(token, cluster, source))
        registration = source.add_handler(self._on_delta)

        def forget() -> None:
            with self._lock:
                self._verdicts.pop(token, None)

        return (registration.remove, off_change, forget)

    # Names that did not resolve.

    def _hold_text(self, text: _Text) -> _Named | None:
        cluster, name = text
        factory = self._factories.get(cluster)
        if factory is None:
            return None
        with self._lock:
            named = self._named.get(text)
            if named is not None:
                named.holds += 1
                return named
        made = _Named(factory.follow_text(name, lambda resolution: self._on_resolution(text, resolution)))
        with self._lock:
            known = self._named.setdefault(text, made)
            if known is not made:
                known.holds += 1
        if known is not made:
            made.take_off()
        return known

    def _let_go_text(self, text: _Text, named: _Named) -> None:
        with self._lock:
            named.holds -= 1
            is_over = not named.holds
            if is_over:
                del self._named[text]
                self._resolved.discard(text)
        if is_over:
            named.take_off()

    # What happens.

    def _on_delta(self, delta: Delta) -> None:
        if delta.initial:
            return  # whoever depends on it is woken when the first list is complete
        with self._lock:
            dependents = list(self._dependents.get(delta.ref, ()))
        if dependents:
            self._wake(dependents, self._priority(len(dependents)))

    def _on_change(self, token: object, cluster: str, source: Source) -> None:
        """Wake who depends on what is known better now; runs on any thread, also on two at once."""
        while True:
            verdicts = frozenset(source.verdicts())
            self._note_verdicts(token, cluster, source.gvr(), verdicts)
            # Another thread may have noted newer ones between our look and our note: the last note has to be true.
            if frozenset(source.verdicts()) == verdicts:
                return

    def _note_verdicts(
        self, token: object, cluster: str, gvr: GVR | None, verdicts: frozenset[tuple[str, bool, str]]
    ) -> None:
        with self._lock:
            news = verdicts ^ self._verdicts.get(token, verdicts)
            if not news or gvr is None:
                return
            self._verdicts[token] = verdicts
            namespaces = {namespace for namespace, _, _ in news}
            found = [
                list(self._dependents[ref])
                for ref in self._by_kind.get((cluster, gvr), ())
                if "" in namespaces or ref.namespace in namespaces
            ]
        narrow = {each for dependents in found if len(dependents) <= self._wide for each in dependents}
        wide = {each for dependents in found for each in dependents} - narrow
        if narrow:
            self._wake(list(narrow), _ORDINARY)
        if wide:
            self._wake(list(wide), _WIDE)

    def _on_resolution(self, text: _Text, resolution: Resolution) -> None:
        does_resolve = isinstance(resolution, Resource)
        with self._lock:
            did_resolve = text in self._resolved
            if does_resolve:
                self._resolved.add(text)
            else:
                self._resolved.discard(text)
            dependents = list(self._by_text.get(text, ())) if does_resolve or did_resolve else []
        if dependents:
            self._wake(dependents, self._priority(len(dependents)))

    def _wake(self, dependents: Sequence[ObjectRef], priority: int) -> None:
        with self._lock:
            wakes = tuple(self._wakes.values())
        for wake in wakes:
            wake(dependents, priority)

    def _priority(self, dependents: int) -> int:
        return _WIDE if dependents > self._wide else _ORDINARY


def _key_of(ref: ObjectRef) -> tuple[str, GVR, bool]:
    return ref.cluster, ref.gvr, bool(ref.namespace)


def _end(followed: _Followed) -> None:
    for take_off in followed.take_off:
        take_off()
    followed.demand.release()


def _take_out(sets: dict[_K, set[_V]], key: _K, value: _V) -> None:
    found = sets.get(key)
    if found is None:
        return
    found.discard(value)
    if not found:
        del sets[key]
