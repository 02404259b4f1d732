"""One informer for one selection, started on demand and shared; and what a selection means right now.

An `InformerSet` is what a controller or a lister asked for. What it means can change while the process runs: a
resource's name can come to mean another version, or nothing, and its scope is known only when discovery has told.
The informers underneath are shared between sets, and are stopped when nobody has needed them for a while.

All that takes time by itself is done by one thread of the factory, `run/informers`: resolving names, showing
everything again (resync), stopping what is idle. Nothing waits for it.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from informers import threads
from informers.api.client import Client
from informers.api.restmapper import RESTMapper
from informers.api.transport import Transport
from informers.cache.firstsyncs import FirstSyncs
from informers.cache.indexer import IndexFunc
from informers.cache.informer import Informer, InformerKey, Registration
from informers.cache.lister import Lister
from informers.cache.listwatch import Selection, WatchOptions
from informers.cache.store import Delta, Handler, Store
from informers.cache.streaming import Streaming
from informers.clock import Clock, Stop
from informers.logs import bind, fields
from informers.meta.errors import AmbiguousKindError, ConfigError, InformersError, UnknownKindError
from informers.meta.resources import GVR, ObjectRef, Resource
from informers.meta.selectors import parse_fields, parse_labels

_log = logging.getLogger(__name__)

Resolution: TypeAlias = Resource | InformersError | None

_DEFINITIONS: Final = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_SERVICES: Final = GVR("apiregistration.k8s.io", "v1", "apiservices")
# Kinds whose metadata alone is often followed by programs that need no discovery for anything else.
_KINDS: Final[Mapping[GVR, str]] = {
    GVR("", "v1", "configmaps"): "ConfigMap",
    GVR("", "v1", "secrets"): "Secret",
    GVR("", "v1", "namespaces"): "Namespace",
    GVR("", "v1", "pods"): "Pod",
    GVR("", "v1", "services"): "Service",
    GVR("", "v1", "serviceaccounts"): "ServiceAccount",
    _DEFINITIONS: "CustomResourceDefinition",
    _SERVICES: "APIService",
}
_CLUSTER_SCOPED: Final = frozenset({GVR("", "v1", "namespaces"), GVR("", "v1", "nodes"), _DEFINITIONS, _SERVICES})
_ENDING: Final = 1.0  # how long we wait for the thread of an informer that was stopped; else we look again later
# From what a person must know first to what is well.
_NOT_ALLOWED: Final = frozenset({"forbidden", "unserved"})
_HOPELESS: Final = _NOT_ALLOWED | {"stopped"}
_STATES: Final = ("stopped", "forbidden", "unserved", "pending", "syncing", "synced", "watching")


class SetRegistration:
    """A handler's place at whatever a set follows, now and later."""

    def __init__(self, owner: InformerSet, handler: Handler, resync: float) -> None:
        self.handler = handler
        self.resync = resync
        self._owner = owner
        # Guarded by the set's lock.
        self.claimed: set[Informer] = set()
        self.parts: dict[Informer, Registration] = {}
        self.is_removed = False

    def has_synced(self) -> bool:
        """Tell whether everything that was there at first has been shown to the handler."""
        return self._owner.has_shown(self)

    def remove(self) -> None:
        """Tell the handler nothing any more. Never waits; may be done twice, and from inside a callback."""
        self._owner.take_off(self)


class InformerSet:
    """What one `Selection` means in one cluster right now: one informer per namespace, of the resource it names.

    From `InformerFactory.follow`. `selection` and `required` are as given there. Use it from any thread; nothing
    here waits. References and stores carry the resource that is followed now; when a name comes to mean another
    version, the new informers take the old ones' place once they have synced, and handlers are told that the old
    objects are gone.
    """

    def __init__(
        self,
        factory: InformerFactory,
        selection: Selection,
        *,
        required: bool,
        only_referred: ObjectRef | None = None,
        timeout: float = 0.0,
    ) -> None:
        self.selection = selection
        self.required = required
        self._factory = factory
        self._only_referred = only_referred is not None
        self._timeout = timeout  # of reading the body of a reference that informers are begun with
        self._has_told_scope = False
        self._lock = threading.Lock()  # guards all below
        self._gvr: GVR | None = None if isinstance(selection.resource, str) else selection.resource
        self._resolution: Resolution = None
        self._active: tuple[Informer, ...] = ()
        self._next: tuple[Informer, ...] = ()  # not yet synced; take over when they are
        self._registrations: list[SetRegistration] = []
        self._indexes: dict[str, IndexFunc] = {}
        # None of them 0.
        self._references: dict[ObjectRef, int] = {} if only_referred is None else {only_referred: 1}
        self._on_change: dict[object, Callable[[], None]] = {}
        self._take_off: dict[Informer, Callable[[], None]] = {}
        self._is_released = False

    # What it follows.

    def gvr(self) -> GVR | None:
        """Return the resource that is followed now, None while the selection's text does not resolve."""
        with self._lock:
            return self._active[0].key.gvr if self._active else self._gvr

    def stores(self) -> Sequence[Store]:
        """Return the stores to read now, one for each namespace followed; none before the text resolves."""
        with self._lock:
            return tuple(informer.store for informer in self._active)

    # One namespace of several that is forbidden or not served holds none of the others up: it counts only where
    # nothing else is asked for. A `namespace` narrows these questions to the informer that follows it.

    def has_synced(self, namespace: str | None = None) -> bool:
        """Tell whether every first list that can be made was processed; False while the text does not resolve."""
        waited_for = self._waited_for(namespace)
        return bool(waited_for) and all(informer.has_synced() for informer in waited_for)

    def is_readable(self, namespace: str | None = None) -> bool:
        """Tell whether every first list that can be made is in its store; true a moment before `has_synced`."""
        waited_for = self._waited_for(namespace)
        return bool(waited_for) and all(informer.is_readable() for informer in waited_for)

    def state(self, namespace: str | None = None) -> str:
        """Return the state of the informer that is furthest behind, of those that can go on.

        pending, syncing, synced (no watch open yet), watching; forbidden, unserved or stopped only when that holds for
        all. A text that names nothing, or several things, is unserved, one not looked up yet pending.
        """
        with self._lock:
            resolution, is_released = self._resolution, self._is_released
        if is_released:
            return "stopped"
        states = [informer.state() for informer in self._covering(namespace)]
        if not states:
            return "unserved" if isinstance(resolution, UnknownKindError | AmbiguousKindError) else "pending"
        return min([each for each in states if each not in _HOPELESS] or states, key=_STATES.index)

    def problem(self, namespace: str | None = None) -> InformersError | None:
        """Return why it is not synced, or is behind, or what is wrong with some namespace; None when all is well."""
        for informer in self._covering(namespace):
            if (problem := informer.problem()) is not None:
                return problem
        with self._lock:
            return self._resolution if isinstance(self._resolution, InformersError) else None

    def age(self, namespace: str | None = None) -> float:
        """Return the seconds since the server was last heard of, of the informer that has waited longest."""
        return max((informer.age() for informer in self._waited_for(namespace)), default=math.inf)

    def verdicts(self) -> Collection[tuple[str, bool, str]]:
        """Return what is known of namespaces: which one, whether its first list was processed, and what is wrong.

        That is forbidden, unserved, or `""`. A namespace of which nothing is known is left out.
        """
        with self._lock:
            active = self._active
        found = []
        for informer in active:
            state = informer.state()
            verdict = (informer.key.namespace, informer.has_synced(), state if state in _NOT_ALLOWED else "")
            if verdict[1:] != (False, ""):
                found.append(verdict)
        return frozenset(found)

    def _covering(self, namespace: str | None) -> Sequence[Informer]:
        """Return the informers that follow this namespace; all for None, or when none does."""
        with self._lock:
            active = self._active
        return [each for each in active if namespace is not None and each.covers(namespace)] or active

    def _waited_for(self, namespace: str | None) -> Sequence[Informer]:
        covering = self._covering(namespace)
        return [each for each in covering if each.is_readable() or each.state() not in _HOPELESS] or covering

    def max_staleness(self) -> float | None:
        """Return for how many seconds without a sign of the server reading is allowed; None is for ever."""
        return self.selection.max_staleness

    def lister(self) -> Lister:
        """Return a lister of this set alone."""
        return Lister({self._factory.cluster: self}, clock=self._factory.clock)

    # Who wants to know.

    def add_handler(self, handler: Handler, *, resync: float = 0.0) -> SetRegistration:
        """Tell `handler` of each object that is there, once and as initial, then of each change, once.

        What is there is told before this returns. With `resync` (seconds, at least 1; 0 is never) everything is shown
        again each period, as a delta whose `old` and `new` are the same. Handlers run where the socket is read and may
        only enqueue. Raises `InformersError` when the set is released or the factory stopped, `ConfigError` for a
        period that is too short.
        """
        if resync and not resync >= 1:
            msg = f"resync: want 0 (never) or at least 1 second, got {resync!r}"
            raise ConfigError(msg)
        registration = SetRegistration(self, handler, resync)
        with self._lock:
            if self._is_released or self._factory.is_stopped():
                msg = f"informers of {self.selection.resource} are stopped: no handler can be added"
                raise InformersError(msg)
            self._registrations.append(registration)
        self._attach()
        return registration

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called, with no lock held, whenever `has_synced()`, `state()` or the stores may have changed.

        Returns a function that takes it off, which never waits and may be called twice.
        """
        token = object()
        with self._lock:
            self._on_change[token] = callback

        def take_off() -> None:
            with self._lock:
                self._on_change.pop(token, None)

        return take_off

    def add_index(self, name: str, func: IndexFunc) -> None:
        """Index what is there and what comes, also what this set follows later. `ConfigError` on a name in use."""
        with self._lock:
            known = self._indexes.setdefault(name, func)
            informers = (*self._active, *self._next)
        if known is not func:
            msg = f"index {name!r} of {self.selection.resource}: already there with another function"
            raise ConfigError(msg)
        for informer in informers:
            informer.add_index(name, func)

    def release(self) -> None:
        """Say that the set is needed no more; its informers stop when nobody has needed them for a while."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
            registrations, self._registrations = self._registrations, []
            informers = (*self._active, *self._next)
            references, self._references = self._references, {}
            take_off, self._take_off = list(self._take_off.values()), {}
        for registration in registrations:
            self.take_off(registration)
        for each in take_off:
            each()
        for ref, count in references.items():
            for informer in informers:
                for _ in range(count if _covers(informer, ref) else 0):
                    informer.unrefer(ref)
        self._factory.forget(self)
        for informer in informers:
            self._factory.let_go(informer)

    # Bodies only of what is referred to.

    def refer(self, ref: ObjectRef, *, timeout: float) -> None:
        """Keep the body of this object too. If only its metadata is there, read it from the server, in so many seconds."""
        with self._lock:
            if self._is_released:
                return
            self._references[ref] = self._references.get(ref, 0) + 1
            informers = (*self._active, *self._next)
        for informer in informers:
            if _covers(informer, ref):
                informer.refer(ref, timeout=timeout)

    def unrefer(self, ref: ObjectRef) -> None:
        """Take one reference back; with the last one the body goes."""
        with self._lock:
            count = self._references.get(ref, 0)
            if not count:
                return
            if count == 1:
                del self._references[ref]
            else:
                self._references[ref] = count - 1
            informers = (*self._active, *self._next)
        for informer in informers:
            if _covers(informer, ref):
                informer.unrefer(ref)

    # For the factory and for registrations.

    def has_shown(self, registration: SetRegistration) -> bool:
        """Tell whether a handler was shown all that was there at first."""
        with self._lock:
            if registration.is_removed:
                return False
        waited_for = self._waited_for(None)
        with self._lock:
            parts = [registration.parts.get(informer) for informer in waited_for]
        return bool(parts) and all(part is not None and part.has_synced() for part in parts)

    def take_off(self, registration: SetRegistration) -> None:
        """Take a handler off all informers."""
        with self._lock:
            registration.is_removed = True
            parts = list(registration.parts.values())
            if registration in self._registrations:
                self._registrations.remove(registration)
        for part in parts:
            part.remove()

    def resolve(self, resolution: Resolution) -> None:
        """Take in what discovery says of the resource; None when it has said nothing (and a GVR needs no telling)."""
        with self._lock:
            if self._is_released:
                return
            is_news = not _is_same(self._resolution, resolution)
            self._resolution = resolution
            gvr = resolution.gvr if isinstance(resolution, Resource) else self._gvr
            known = self._next or self._active
        if is_news:
            self._tell_resolution(resolution)
        if gvr is None or (isinstance(resolution, InformersError) and known):
            # A name that means nothing (any more): what was followed tells by itself that it is gone.
            self._tell_changed()
            return
        keys = self._keys(gvr, resolution if isinstance(resolution, Resource) else None)
        if keys != tuple(informer.key for informer in known):
            self._switch(gvr, tuple(self._factory.acquire(key) for key in keys))
        else:
            self._tell_changed()

    def _tell_resolution(self, resolution: Resolution) -> None:
        told = fields(cluster=self._factory.cluster, resource=str(self.selection.resource), error=str(resolution))
        if isinstance(resolution, AmbiguousKindError):
            _log.error("resource's name is ambiguous", extra=told)
        elif isinstance(resolution, UnknownKindError):
            _log.info("resource is not served; it is waited for", extra=told)

    def _keys(self, gvr: GVR, resource: Resource | None) -> tuple[InformerKey, ...]:
        selection = self.selection
        is_cluster_scoped = not resource.namespaced if resource is not None else gvr in _CLUSTER_SCOPED
        if is_cluster_scoped and selection.namespaces and not self._has_told_scope:
            self._has_told_scope = True
            _log.info("namespaces ignored: the kind is cluster-scoped", extra=fields(resource=str(gvr)))
        namespaces = ("",) if is_cluster_scoped or not selection.namespaces else selection.namespaces
        return tuple(
            InformerKey(
                gvr=gvr,
                namespace=namespace,
                label_selector=str(parse_labels(selection.label_selector)),
                field_selector=str(parse_fields(selection.field_selector)),
                metadata_only=selection.metadata_only,
                keep_managed_fields=selection.keep_managed_fields,
                transform=selection.transform,
                page_size=selection.page_size or self._factory.page_size,
                only_referred=self._only_referred,
            )
            for namespace in namespaces
        )

    def _switch(self, gvr: GVR, informers: tuple[Informer, ...]) -> None:
        """Follow these instead, from the moment when they have synced, or now if there is nothing to lose."""
        with self._lock:
            known = self._next or self._active
            if self._is_released or (known and [each.key for each in known] == [each.key for each in informers]):
                surplus = informers  # another thread was faster
            else:
                surplus, self._next = self._next, informers
                self._gvr = gvr
            references = dict(self._references)
            indexes = dict(self._indexes)
        if surplus is informers:
            for informer in surplus:
                self._factory.let_go(informer)
            return
        for informer in surplus:
            self._drop(informer, references)
        for informer in informers:
            for name, func in indexes.items():
                informer.add_index(name, func)
            for ref, count in references.items():
                for _ in range(count if _covers(informer, ref) else 0):
                    informer.refer(ref, timeout=self._timeout)
            self._listen(informer)
        self._attach()
        for informer in informers:
            self._factory.begin(informer)
        self._changed()

    def _changed(self) -> None:
        """Let the next informers take over if they can; then tell."""
        with self._lock:
            upcoming, active = self._next, self._active
        if upcoming and all(each.has_synced() or not _would_be_missed(each, active) for each in upcoming):
            self._take_over(upcoming)
        self._tell_changed()

    def _take_over(self, upcoming: tuple[Informer, ...]) -> None:
        with self._lock:
            if self._next != upcoming:
                return
            old, self._active, self._next = self._active, upcoming, ()
            registrations = list(self._registrations)
            references = dict(self._references)
        for informer in old:
            for registration in registrations if informer not in upcoming else ():
                with self._lock:
                    part = registration.parts.pop(informer, None)
                    registration.claimed.discard(informer)
                if part is not None:
                    part.remove()
                    _tell_gone(registration.handler, informer)
            self._drop(informer, references)

    def _listen(self, informer: Informer) -> None:
        off = informer.on_change(self._changed)
        with self._lock:
            # Listened to already, if a name has come back to what it meant; or released in the meantime.
            is_needed = informer not in self._take_off and not self._is_released
            if is_needed:
                self._take_off[informer] = off
        if not is_needed:
            off()

    def _drop(self, informer: Informer, references: Mapping[ObjectRef, int]) -> None:
        """Need an informer no more that was acquired once; another use of the same one by this set goes on."""
        with self._lock:
            is_used = informer in self._active or informer in self._next
            off = None if is_used else self._take_off.pop(informer, None)
        if off is not None:
            off()
        for ref, count in references.items():
            for _ in range(count if _covers(informer, ref) else 0):
                informer.unrefer(ref)
        self._factory.let_go(informer)

    def _attach(self) -> None:
        """Put every handler at every informer where it is not yet; two threads never put the same one twice."""
        while True:
            with self._lock:
                found = next(
                    (
                        (registration, informer)
                        for registration in self._registrations
                        for informer in (*self._active, *self._next)
                        if informer not in registration.claimed
                    ),
                    None,
                )
                if found is None:
                    return
                registration, informer = found
                registration.claimed.add(informer)
            try:
                part = informer.add_handler(registration.handler, resync=registration.resync)
            except InformersError:
                continue  # stopped a moment ago, with the factory
            with self._lock:
                is_removed = registration.is_removed
                registration.parts[informer] = part
            if is_removed:
                part.remove()
            self._factory.look()
            self._tell_changed()

    def _tell_changed(self) -> None:
        with self._lock:
            callbacks = tuple(self._on_change.values())
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - one that raises must not keep the others from hearing
                _log.exception("callback failed")


class InformerFactory:
    """The informers of one cluster. `start()` once; `stop()` asks, `join()` waits."""

    def __init__(
        self,
        cluster: str,
        client: Client,
        transport: Transport,
        mapper: RESTMapper,
        *,
        options: WatchOptions,
        clock: Clock,
        on_thread_death: Callable[[BaseException], None],
    ) -> None:
        self.cluster = cluster
        self.clock = clock
        self._client = client
        self._transport = transport
        self._mapper = mapper
        self.page_size = options.page_size  # of lists of selections that do not say
        self._options = options
        self._on_thread_death = on_thread_death
        self._gzip = _wants_gzip(transport) if options.gzip is None else options.gzip
        self._first_syncs = FirstSyncs(options.first_syncs, clock)
        self._streaming = Streaming(transport, initial=options.initial, clock=clock)
        self._stop = Stop(clock)
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._informers: dict[InformerKey, Informer] = {}
        self._users: dict[InformerKey, int] = {}
        self._idle_since: dict[InformerKey, float] = {}
        self._ending: list[Informer] = []
        self._sets: dict[InformerSet, None] = {}
        self._texts: dict[str, _Text] = {}
        self._thread: threading.Thread | None = None
        self._is_started = False
        self._must_look = False
        self._must_resolve = False
        self._has_api_changed = False
        self._uses_discovery = False
        self._retry_at = math.inf
        self._failures = 0
        self._unsubscribe: Callable[[], None] = lambda: None

    # Following.

    def follow(self, selection: Selection, *, required: bool = False) -> InformerSet:
        """Follow a selection; informers are shared with all that need the same. Never waits.

        Informers start when the factory is started, or at once if it is. Raises `InformersError` after `stop`.
        """
        return self._follow(InformerSet(self, selection, required=required))

    def demand(self, selection: Selection, ref: ObjectRef, *, timeout: float) -> InformerSet:
        """Follow a selection and keep bodies only of `ref` and of what `InformerSet.refer` names; of the rest metadata.

        `ref` counts as one reference. Its body is read from the server, in so many seconds, if the informer is there
        and has its metadata alone. Raises as `follow`.
        """
        return self._follow(InformerSet(self, selection, required=False, only_referred=ref, timeout=timeout))

    def _follow(self, made: InformerSet) -> InformerSet:
        selection = made.selection
        with self._changed:
            if self._stop.is_set():
                msg = f"informers are stopped: {selection.resource} cannot be followed"
                raise InformersError(msg)
            self._sets[made] = None
        try:
            if isinstance(selection.resource, str):
                self._track(selection.resource, made.resolve)
            else:
                made.resolve(self._known(selection.resource))
        except BaseException:
            made.release()
            raise
        return made

    def follow_text(self, text: str, listener: Callable[[Resolution], None]) -> Callable[[], None]:
        """Tell `listener` what a resource's name means, now (if it is known) and whenever that changes.

        It is called, with no lock held, with a `Resource` or with the error that resolving raised. Returns a function
        that takes it off.
        """
        return self._track(text, listener)

    def sets(self) -> Sequence[InformerSet]:
        """Return all sets that were asked for and not released."""
        with self._changed:
            return tuple(self._sets)

    def informers(self) -> Sequence[Informer]:
        """Return what the sets stand on: one for each resource, namespace and choice of what to keep."""
        with self._changed:
            return tuple(self._informers.values())

    # Life.

    def start(self) -> None:
        """Start every informer asked for, and from now on each that is asked for, at once."""
        thread = threading.Thread(
            target=self._run, name=f"run/informers/{self.cluster}" if self.cluster else "run/informers", daemon=True
        )
        with self._changed:
            if self._is_started or self._stop.is_set():
                return
            self._is_started = True
            self._thread = thread
            informers = list(self._informers.values())
        self._unsubscribe = self._mapper.subscribe(self._on_api_change)
        threads.start(thread)
        for informer in informers:
            informer.start()

    def stop(self) -> None:
        """Ask every thread to end, and cut what it waits for; returns at once."""
        self._stop.set()
        with self._changed:
            informers = list(self._informers.values())
            self._changed.notify_all()
        self._unsubscribe()
        for informer in informers:
            informer.stop()

    def join(self, timeout: float) -> list[str]:
        """Wait for all threads to end, `timeout` seconds in all; return the names of those still alive."""
        deadline = self.clock.monotonic() + timeout
        with self._changed:
            informers = [*self._informers.values(), *self._ending]
            thread = self._thread
        alive = [informer.join(max(0.0, deadline - self.clock.monotonic())) for informer in informers]
        if thread is not None and thread.ident is not None:
            thread.join(max(0.0, deadline - self.clock.monotonic()))
            alive.append(thread.name if thread.is_alive() else "")
        return [name for name in alive if name]

    def is_stopped(self) -> bool:
        """Tell whether it was asked to stop."""
        return self._stop.is_set()

    # For the sets.

    def acquire(self, key: InformerKey) -> Informer:
        """Return the informer for `key`, made if there is none, and count one more who needs it; `begin` starts it."""
        made = Informer(
            key,
            cluster=self.cluster,
            client=self._client,
            transport=self._transport,
            kind=self._kind_of(key.gvr),
            is_served=lambda: self._is_served(key.gvr),
            ask_discovery=lambda: self._ask_discovery(key.gvr),
            first_syncs=self._first_syncs,
            streaming=self._streaming,
            options=self._options,
            gzip=self._gzip,
            clock=self.clock,
            on_thread_death=self._on_thread_death,
        )
        with self._changed:
            informer = self._informers.setdefault(key, made)
            self._users[key] = self._users.get(key, 0) + 1
            self._idle_since.pop(key, None)
        return informer

    def begin(self, informer: Informer) -> None:
        """Start an informer, if it is not, and if the factory is."""
        with self._changed:
            must_start = self._is_started and not self._stop.is_set()
        if must_start:
            informer.start()
        if self._stop.is_set():
            informer.stop()
        self.look()

    def let_go(self, informer: Informer) -> None:
        """Count one less who needs this informer; it is stopped when nobody has for a while."""
        key = informer.key
        with self._changed:
            if self._informers.get(key) is not informer:
                return
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._idle_since[key] = self.clock.monotonic()
        self.look()

    def forget(self, informer_set: InformerSet) -> None:
        """Take a released set out of `sets()`."""
        with self._changed:
            self._sets.pop(informer_set, None)
        if isinstance(informer_set.selection.resource, str):
            self._untrack(informer_set.selection.resource, informer_set.resolve)

    def look(self) -> None:
        """Have the factory's thread look at what is due."""
        with self._changed:
            self._must_look = True
            self._changed.notify_all()

    # What discovery says.

    def _known(self, gvr: GVR) -> Resource | None:
        """Return what discovery has said of a resource so far; asks nothing."""
        if not self._mapper.has_loaded():
            return None
        return next((each for each in self._mapper.resources() if each.gvr == gvr), None)

    def _kind_of(self, gvr: GVR) -> str:
        known = self._known(gvr)
        return known.kind if known is not None else _KINDS.get(gvr, "")

    def _is_served(self, gvr: GVR) -> bool | None:
        if not self._mapper.has_loaded():
            return None
        return self._known(gvr) is not None

    def _ask_discovery(self, gvr: GVR) -> None:
        self._mapper.invalidate(gvr.group)
        with self._changed:
            self._must_resolve = self._must_resolve or not self._uses_discovery
            self._uses_discovery = True
            self._changed.notify_all()

    def _on_api_change(self) -> None:
        with self._changed:
            self._must_resolve = self._has_api_changed = True
            self._changed.notify_all()

    def _track(self, text: str, listener: Callable[[Resolution], None]) -> Callable[[], None]:
        with self._changed:
            tracked = self._texts.setdefault(text, _Text())
            tracked.listeners.append(listener)
            resolution = tracked.resolution
            if resolution is None:
                self._must_resolve = True
                self._changed.notify_all()
        if resolution is not None:
            listener(resolution)
        return lambda: self._untrack(text, listener)

    def _untrack(self, text: str, listener: Callable[[Resolution], None]) -> None:
        with self._changed:
            tracked = self._texts.get(text)
            if tracked is None or listener not in tracked.listeners:
                return
            tracked.listeners.remove(listener)
            if not tracked.listeners:
                del self._texts[text]

    # The factory's own thread.

    def _run(self) -> None:
        take_off = self._stop.on_set(self.look)
        try:
            with bind(cluster=self.cluster), threads.counted("informers"):
                self._loop()
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread must end the process
            self._on_thread_death(error)
        finally:
            take_off()

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self._step()
            except Exception:  # noqa: BLE001 - timers must outlive what they call
                _log.exception("step failed unexpectedly")
                self._stop.wait(1.0)

    def _step(self) -> None:
        now = self.clock.monotonic()
        with self._changed:
            self._must_look = False
            must_resolve = self._must_resolve or now >= self._retry_at
            self._must_resolve = False
            has_changed, self._has_api_changed = self._has_api_changed, False
            informers = list(self._informers.values())
        if must_resolve:
            self._resolve_all()
        for informer in informers if has_changed else ():
            informer.nudge()
        self._stop_idle(now)
        due = min((informer.resync(now) for informer in informers), default=math.inf)
        due = min([due, *(informer.check_progress(now) for informer in informers)])
        with self._changed:
            due = min([due, self._retry_at, *(at + self._options.idle_stop for at in self._idle_since.values())])
            while not (self._must_look or self._must_resolve or self._stop.is_set()):
                left = due - self.clock.monotonic()
                if left <= 0:
                    break
                self.clock.wait(self._changed, None if math.isinf(left) else left)

    def _stop_idle(self, now: float) -> None:
        with self._changed:
            keys = [key for key, at in self._idle_since.items() if now >= at + self._options.idle_stop]
            stopped = []
            for key in keys:
                del self._idle_since[key]
                stopped.append(self._informers.pop(key))
            self._ending.extend(stopped)
            ending = list(self._ending)
        for informer in stopped:
            _log.info("informer stopped, nobody needs it", extra=fields(resource=str(informer.key.gvr)))
            informer.on_change(self.look)  # its last change is that it has ended
            informer.stop()
        ended = {informer for informer in ending if not informer.join(_ENDING)}
        for informer in ended:
            informer.free()
        with self._changed:
            self._ending = [informer for informer in self._ending if informer not in ended]

    def _resolve_all(self) -> None:
        """Look at every name again, and at every set whose scope may have become known."""
        with self._changed:
            texts = list(self._texts)
            uses_discovery = self._uses_discovery = self._uses_discovery or bool(texts)
        if not uses_discovery:
            return
        is_settled = self._load_discovery()
        for text in texts:
            is_settled = self._resolve(text) and is_settled
        with self._changed:
            self._failures = 0 if is_settled else self._failures + 1
            wait = self._options.backoff.delay(self._failures)
            self._retry_at = math.inf if is_settled else self.clock.monotonic() + wait
            scoped = [each for each in self._sets if isinstance(each.selection.resource, GVR)]
        for each in scoped:
            if each.selection.namespaces and isinstance(each.selection.resource, GVR):
                known = self._known(each.selection.resource)
                if known is not None:
                    each.resolve(known)

    def _load_discovery(self) -> bool:
        try:
            self._mapper.resources()
        except InformersError as error:
            _log.debug("discovery failed", extra=fields(error=type(error).__name__))
            return False
        return True

    def _resolve(self, text: str) -> bool:
        """Tell listeners what a name means if that has changed; False when discovery could not be asked."""
        found: Resource | InformersError
        try:
            found = self._mapper.resolve(text)
        except InformersError as error:
            found = error
        with self._changed:
            tracked = self._texts.get(text)
            if tracked is None or _is_same(tracked.resolution, found):
                listeners = []
            else:
                tracked.resolution = found
                listeners = list(tracked.listeners)
        for listener in listeners:
            listener(found)
        return self._mapper.has_loaded()


class _Text:
    """A resource's name that somebody wants to know the meaning of."""

    __slots__ = ("listeners", "resolution")

    def __init__(self) -> None:
        self.listeners: list[Callable[[Resolution], None]] = []
        self.resolution: Resolution = None


def _is_same(before: Resolution, after: Resolution) -> bool:
    if isinstance(before, InformersError) and isinstance(after, InformersError):
        return type(before) is type(after) and str(before) == str(after)
    return before == after


def _covers(informer: Informer, ref: ObjectRef) -> bool:
    return informer.key.gvr == ref.gvr and informer.covers(ref.namespace)


def _would_be_missed(successor: Informer, active: Sequence[Informer]) -> bool:
    """Tell whether something is read now that this one, not synced yet, is to take the place of.

    A resource that is no longer served, with nothing left, is not worth waiting for a successor that may never sync.
    """
    namespace = successor.key.namespace
    return any(
        each.has_synced() and not (each.state() == "unserved" and len(each.store) == 0)
        for each in active
        if not namespace or each.covers(namespace)
    )


def _tell_gone(handler: Handler, informer: Informer) -> None:
    """Tell a handler that the objects of an informer it leaves are gone, by their old names."""
    for obj in informer.store.list():
        try:
            handler(Delta(obj.ref, obj, None, tombstone=True))
        except Exception as error:  # noqa: BLE001 - one object that a handler cannot take must not stop the others
            _log.error("handler failed", extra=fields(ref=str(obj.ref), error=type(error).__name__))


def _wants_gzip(transport: Transport) -> bool:
    """Compress lists where the network is slower than compressing: neither on this machine nor inside a cluster."""
    config = transport.config
    host = urlsplit(config.server).hostname or ""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return not is_local and config.source != "in-cluster configuration"
