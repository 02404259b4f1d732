"""Manager: own every thread and every cluster of a program; start in order, stop in reverse, and tell what ended it.

The main thread does nothing but wait for a message: a signal, a thread that ended, a wish to stop. A signal handler
only puts such a message into a queue whose `put` may interrupt itself, so that it can never wait for a lock that
the interrupted thread holds.

What is surprising: a thread that ends before it was asked to ends the process. Half a program is worse than none.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Final, NamedTuple, TypeAlias

from informers.api.client import Client, asking_as
from informers.api.clusters import Clusters
from informers.api.fence import Fence, FenceKeeper
from informers.api.kubeconfig import pod_namespace
from informers.api.restmapper import RESTMapper
from informers.api.transport import Transport
from informers.backoff import Backoff
from informers.cache.dependencies import DependencyGraph
from informers.cache.factory import InformerFactory, InformerSet
from informers.cache.informer import Informer
from informers.cache.lister import Lister
from informers.cache.listwatch import Selection, WatchOptions
from informers.cache.store import Delta
from informers.clock import Clock, Stop, SystemClock
from informers.logs import bind, fields
from informers.meta.errors import (
    ConfigError,
    InformersError,
    LeadershipLostError,
    NotLeaderError,
    NotSyncedError,
    TransportError,
)
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.controller import (
    Controller,
    MapFunc,
    Options,
    Predicate,
    Surroundings,
    What,
    check_name,
)
from informers.runtime.events import EventRecorder
from informers.runtime.gate import Gate
from informers.runtime.health import FINE, Finding, Findings, HealthServer, HTTPOptions, needed_for_ready
from informers.runtime.leaderelection import LEASES, LeaderElection, LeaderElector, LeaseClient
from informers.runtime.reconciler import Reconcile
from informers.runtime.threads import Inbox, Threads, Tuning
from informers.runtime.workqueue import RETRY
from informers.threads import start
from informers.version import DISTRIBUTION, VERSION

_log = logging.getLogger(__name__)

Check: TypeAlias = Callable[[], str | None]

_CRDS: Final = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_APISERVICES: Final = GVR("apiregistration.k8s.io", "v1", "apiservices")

# Groups of threads, in the order in which they are stopped.
_WORK: Final = "work"
_EVENTS: Final = "events"
_ELECTOR: Final = "elector"
_SIDE: Final = "side"
_DISCOVERY: Final = "discovery"
_HTTP: Final = "http"

_EVENTS_GRACE: Final = 4.0  # 2 s to send, and one call that was begun then
_CACHE_GRACE: Final = 5.0  # for threads whose sockets were cut
_CUT_AGAIN: Final = 0.5
_TIDY: Final = 15.0  # how often the main thread, which has nothing else to do, looks after connections and garbage
_HTTP_GRACE: Final = 2.0
_LONG: Final = 60.0  # a reconcile that takes longer is told of where one looks for what is wrong
_LAST_WORDS: Final = 1.0  # for a line on a stderr that may be blocked


@dataclass(frozen=True, slots=True)
class _StopWanted:
    reason: str


@dataclass(frozen=True, slots=True)
class _SignalCame:
    number: int


@dataclass(frozen=True, slots=True)
class _ThreadEnded:
    name: str
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _CachesFilled:
    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _LeaseTaken:
    pass


@dataclass(frozen=True, slots=True)
class _LeaseLost:
    error: LeadershipLostError


_Message: TypeAlias = _StopWanted | _SignalCame | _ThreadEnded | _CachesFilled | _LeaseTaken | _LeaseLost


class _Runnable(NamedTuple):
    run: Callable[[Stop], None]
    leader_only: bool


class Manager:
    """Everything that a program of controllers runs on. Runs once.

    `client` and `mapper()` work before and without `run()`, on the caller's thread; who never calls `run()` calls
    `close()` at the end. Raises `ConfigError` for a bad name or option.

    With several clusters, work starts with the first whose caches are filled, and each other one joins when its own are:
    until then its keys wait, and nobody waits for it. Reading it raises `NotSyncedError` for it alone.

    With an `election` the caches are filled and followed at once, so that a takeover costs no list. Until the lease is
    ours nothing is reconciled, no leader-only runnable runs and no Event is sent, and every write of `client` raises
    `NotLeaderError`; after it is lost, too, and the program ends. A dry run neither takes nor needs the lease.
    """

    client: Client
    events: EventRecorder
    fence: Fence

    def __init__(
        self,
        clusters: Clusters,
        *,
        name: str,
        election: LeaderElection | None = None,
        http: HTTPOptions | None = None,
        watch: WatchOptions | None = None,
        shutdown_grace: float = 10.0,
        dry_run: bool = False,
        tune_gc: bool = True,
        clock: Clock | None = None,
    ) -> None:
        check_name(name)
        if not shutdown_grace >= 0:
            msg = f"Manager: shutdown_grace: want seconds, 0 or more, got {shutdown_grace!r}"
            raise ConfigError(msg)
        self.name = name
        self.clock: Clock = SystemClock() if clock is None else clock
        self._clusters = tuple(clusters.names())
        self._cluster_names = dict(clusters.written_names())
        self._grace = shutdown_grace
        self._tune_gc = tune_gc
        self._stop = Stop(self.clock)
        self._inbox: Inbox[_Message] = Inbox()
        self._threads = Threads(self.clock, self._thread_ended)
        self._gate = Gate(self.clock, changed=self._look_at_gate)
        self._tuning = Tuning(self.clock)
        self.fence = Fence()
        self._transports = {
            cluster: Transport(
                clusters.config(cluster),
                cluster=cluster,
                user_agent=_user_agent(name),
                clock=self.clock,
                max_inflight=clusters.limits.max_inflight,
                qps=clusters.limits.qps,
                burst=clusters.limits.burst,
            )
            for cluster in self._clusters
        }
        self._elector: LeaderElector | None = None
        self._lease_transport: Transport | None = None
        if election is not None and not dry_run:
            keeper = FenceKeeper(self.clock)
            self.fence = keeper.fence
            home = self._transports.get("")
            self._lease_transport = Transport(
                clusters.home(),
                user_agent=_user_agent(name),
                clock=self.clock,
                credentials=None if home is None else home.credentials,
            )
            self._elector = self._make_elector(election, keeper, self._lease_transport)
        self.client = Client(self._transports, fence=self.fence, dry_run=dry_run)
        self._mappers: dict[str, RESTMapper] = {}
        self._factories: dict[str, InformerFactory] = {}
        for cluster, transport in self._transports.items():
            mapper = RESTMapper(transport, clock=self.clock)
            mapper.on_first_use = partial(self._use_mapper, cluster)
            self._mappers[cluster] = mapper
            self._factories[cluster] = InformerFactory(
                cluster,
                self.client,
                transport,
                mapper,
                options=watch or WatchOptions(),
                clock=self.clock,
                on_thread_death=self._reflector_died,
            )
        self.events = EventRecorder(
            self.client,
            program=name,
            instance=self._elector.terms.identity if self._elector else f"{name}-{platform.node()}",
            fence=self.fence,
            clock=self.clock,
            find=self._find,
            kind_of=self._kind_of,
            start_thread=self._start_events,
            dry_run=dry_run,
        )
        self._surroundings = Surroundings(
            client=self.client,
            clock=self.clock,
            stop=self._stop,
            gate=self._gate,
            follow=self._follow,
            sets=self._informers,
            start_thread=lambda name, run: self._threads.start(name, run, group=_WORK),
            has_several_clusters=len(self._clusters) > 1,
        )
        self._http_options = http
        self._http_stop = Stop(self.clock)
        self._http: HealthServer | None = None
        if http is not None:
            self._http = HealthServer(http, live=self._live_findings, ready=self._ready_findings, clock=self.clock)
        self._lock = threading.Lock()  # guards all below
        self._has_run = False
        self._is_running = False
        self._is_working = False
        self._opened: set[str] = set()  # clusters whose caches are filled, as far as that can be
        self._dead: tuple[str, ...] = ()
        self._used_mappers: dict[str, None] = {}
        self._controllers: dict[str, Controller] = {}
        self._graphs: list[DependencyGraph] = []
        self._runnables: dict[str, _Runnable] = {}
        self._ready_checks: dict[str, Check] = {}
        self._live_checks: dict[str, Check] = {}

    # What there is.

    def clusters(self) -> Sequence[str]:
        """Return the values that references carry, the home cluster's `""` first."""
        return self._clusters

    def cluster_names(self) -> Mapping[str, str]:
        """Return what users write for a cluster, and the value it stands for; empty with one unnamed cluster."""
        return dict(self._cluster_names)

    def lease(self) -> ObjectRef | None:
        """Return the Lease that this program holds or waits for, in the home cluster; None without an election."""
        return None if self._elector is None else self._elector.ref

    def mapper(self, cluster: str = "") -> RESTMapper:
        """Return what knows the resources of a cluster. Raises `ConfigError` for an unknown cluster."""
        self._check_cluster(cluster)
        return self._mappers[cluster]

    def lister(
        self, what: GVR | str | Selection, *, clusters: Sequence[str] | None = None, required: bool = True
    ) -> Lister:
        """Follow a selection and return what reads it.

        What is `required` has synced in a cluster before anything of that cluster is reconciled. Also while running.
        Raises `ConfigError` for an unknown cluster or a bad selection.
        """
        chosen = self._clusters if clusters is None else tuple(clusters)
        for cluster in chosen:
            self._check_cluster(cluster)
        followed = {cluster: self._factories[cluster].follow(_selection(what), required=required) for cluster in chosen}
        if required:
            for cluster, informers in followed.items():
                resource = str(informers.selection.resource)
                self._gate.require(f"{cluster}/{resource}" if cluster else resource, informers, cluster=cluster)
        return Lister(followed, clock=self.clock)

    def dependency_graph(
        self, *, over: Sequence[Lister] = (), namespaces: Sequence[str] = (), wide: int = 100
    ) -> DependencyGraph:
        """Return a new graph, to be passed to `add_controller`; it starts informers for what nothing in `over` follows."""
        graph = DependencyGraph(
            self._factories, over=tuple(over), namespaces=tuple(namespaces), wide=wide, clock=self.clock
        )
        with self._lock:
            self._graphs.append(graph)
        return graph

    # What is to be done.

    def add_controller(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        primary: What | Sequence[What],
        watches: Mapping[What, MapFunc] | None = None,
        owns: Sequence[What] = (),
        dependencies: DependencyGraph | None = None,
        workers: int = 1,
        predicate: Predicate | None = None,
        retry: Backoff = RETRY,
        timeout: float | None = None,
        own_writes: bool = True,
        required: bool = True,
        resync: float = 0.0,
    ) -> Controller:
        """Have `reconcile` called for each object of `primary` that it may have something to do for.

        Attributes of the outcome are told in `Result`; what calls for a reconcile besides the object itself:

        Args:
            name: for thread names, logs and metrics; unique.
            reconcile: makes one object right; called by `workers` threads, never twice at once for one object.
            primary: what is reconciled; more can be added later.
            watches: for each resource, which objects a change of one of its objects concerns.
            owns: resources whose objects concern the primary that controls them.
            dependencies: a graph that reconcile keeps; what depends on what changed is reconciled.
            workers: how many reconciles run at the same time; with several clusters all but one at most for one of
                them, so that a cluster that does not answer never has them all.
            predicate: tells of an update of a primary whether it matters; additions, deletions and a first deletion
                timestamp always do.
            retry: how long after a failure a key is tried again.
            timeout: seconds that bound every call to the API server inside one reconcile.
            own_writes: wait, before the next reconcile of an object, until caches show what the last one wrote.
            required: start only when all of these resources have synced, are not served or forbidden, in each cluster
                for itself.
            resync: seconds after which each primary is looked at again though nothing changed; 0 = never.

        Raises `InformersError` after `run()`, `ConfigError` for a bad name or option.
        """
        check_name(name)
        options = Options(
            workers=workers,
            predicate=predicate,
            retry=retry,
            timeout=timeout,
            own_writes=own_writes,
            required=required,
            resync=resync,
        )
        primaries = [primary] if isinstance(primary, GVR | str | Selection) else list(primary)
        controller = Controller(
            name, reconcile, surroundings=self._surroundings, options=options, dependencies=dependencies
        )
        with self._lock:
            self._check_open_locked(name, self._controllers)
            self._controllers[name] = controller
        for what in primaries:
            controller.add_primary(what)
        for what, map_ in (watches or {}).items():
            controller.add_watch(what, map_)
        for what in owns:
            controller.add_owned(what)
        return controller

    def add_runnable(self, name: str, run: Callable[[Stop], None], *, leader_only: bool = True) -> None:
        """Have `run(stop)` called on a thread of its own, after the caches are filled; it returns once `stop` is set.

        With `leader_only` it is called when we lead, else also on a standby. One that returns or raises earlier stops
        the program. Raises `InformersError` after `run()`, `ConfigError` for a name in use.
        """
        check_name(name)
        with self._lock:
            self._check_open_locked(name, self._runnables)
            self._runnables[name] = _Runnable(run, leader_only)

    def add_ready_check(self, name: str, check: Check) -> None:
        """Be ready only while `check()` returns None; a text says why not."""
        with self._lock:
            self._ready_checks[name] = check

    def add_live_check(self, name: str, check: Check) -> None:
        """Be alive only while `check()` returns None; for runnables that can hang."""
        with self._lock:
            self._live_checks[name] = check

    def ready_problems(self) -> Mapping[str, str]:
        """Return, by name, what keeps this process from being ready; nothing when it is."""
        return _problems(self._ready_findings())

    def live_problems(self) -> Mapping[str, str]:
        """Return, by name, what is broken for good in this process; nothing when all is alive."""
        return _problems(self._live_findings())

    def _ready_findings(self) -> Findings:
        with self._lock:
            checks = dict(self._ready_checks)
        stopping = Finding("stopping") if self._stop.is_set() else FINE
        return {"shutdown": stopping, **self._sync_findings(), **_asked(checks)}

    def _sync_findings(self) -> Findings:
        """Look at what is required, each resource of each cluster for itself."""
        options = self._http_options
        by_cluster = {
            cluster: _synced(cluster, self._sets(cluster), max_age=options.max_age if options is not None else 0.0)
            for cluster in self._clusters
        }
        return needed_for_ready(by_cluster, "home" if options is None else options.ready_clusters)

    def _live_findings(self) -> Findings:
        with self._lock:
            dead = {f"thread {name}": Finding("ended") for name in self._dead}
            checks = dict(self._live_checks)
        alive = {f"thread {name}": FINE for name in self._threads.names()}
        loops: dict[str, Finding] = {}
        for cluster in self._clusters:
            for informer in self._informers(cluster):
                name = f"reflector {_in_cluster(cluster, informer.gvr())}"
                late = informer.late()
                # Of several namespaces the worst is told.
                if late > 0 or name not in loops:
                    loops[name] = Finding(f"no step for {late:.0f} s longer than it may take") if late > 0 else FINE
        busy = {
            f"worker {one.name}": Finding(note=f"a reconcile has run for {longest:.0f} s")
            for one in self.controllers()
            if (longest := one.longest_running()) > _LONG
        }
        elector: dict[str, Finding] = {}
        if self._elector is not None:
            problem = self._elector.live_problem()
            elector["elector"] = FINE if problem is None else Finding(problem)
        return {**alive, **dead, **loops, **elector, **busy, **_asked(checks)}

    # Its life.

    def run(self) -> None:
        """Start everything, block until stopped, stop everything, and raise what ended it.

        Returns after a signal (in the main thread, SIGTERM and SIGINT are handled) or `stop()`. Raises the error of a
        thread that died, `LeadershipLostError` when the lease is lost, or `InformersError` when something still runs
        after the grace. If work does not end by the time when another process may hold the lease, the process ends
        with status 1, without a return from here.
        """
        with self._lock:
            if self._has_run:
                msg = f"manager {self.name}: runs once"
                raise InformersError(msg)
            self._has_run = True
        with self._inbox.opened(), self._handled_signals(), self._tuned():
            error: BaseException | None = None
            try:
                self._start()
                error = self._supervise()
            except BaseException as caught:  # noqa: BLE001 - what was started is stopped before anybody hears of it
                error = caught
            left = self._shut_down()
            error = error or self._failed_meanwhile()
        if error is None and left:
            error = InformersError(f"manager {self.name}: still running at the end: {', '.join(left)}")
        if error is not None:
            raise error

    def stop(self, reason: str = "") -> None:
        """Ask for an orderly stop; returns at once, and may be called from anywhere, a signal handler too."""
        self._inbox.put(_StopWanted(reason))

    def close(self) -> None:
        """Close the connections of a manager that does not run: `run()` does so at its end.

        For scripts that use `client` or `mapper()` alone; may be called twice, and `with closing(manager):` does it.
        """
        for transport in self._all_transports():
            transport.close()

    def _all_transports(self) -> Sequence[Transport]:
        lease = () if self._lease_transport is None else (self._lease_transport,)
        return (*self._transports.values(), *lease)

    def controllers(self) -> Sequence[Controller]:
        """Return the controllers, in the order in which they were added."""
        with self._lock:
            return tuple(self._controllers.values())

    def informers(self) -> Mapping[str, Sequence[InformerSet]]:
        """Return what is followed, by cluster."""
        return {cluster: self._sets(cluster) for cluster in self._clusters}

    def _start(self) -> None:
        if self._http is not None:
            self._threads.start("http", partial(self._http.run, self._http_stop), group=_HTTP)
        for controller in self.controllers():
            controller.show()
            for cluster in self._gate.clusters():
                controller.queue.suspend(cluster)
        for factory in self._factories.values():
            factory.start()
        with self._lock:
            self._is_running = True
            used = tuple(self._used_mappers)
            controllers = tuple(self._controllers)
        for cluster in used:
            self._start_discovery(cluster)
        if self._elector is None:
            self._start_work()
        else:
            self._threads.start("elector/deadline", self._elector.watch, group=_ELECTOR)
            self._threads.start("elector", partial(self._run_when_open, "elector", self._elector.run), group=_ELECTOR)
        self._start_runnables(leader_only=False)
        self._look_at_gate()
        if not self._gate.clusters():
            self._inbox.put(_CachesFilled(()))  # as far as anybody waits for that
        _log.info("started", extra=fields(program=self.name, controllers=controllers))

    def _start_work(self) -> None:
        """Start what only one process of several may do."""
        with self._lock:
            self._is_working = True
        self.events.start()
        for controller in self.controllers():
            controller.start()
        self._start_runnables(leader_only=True)

    def _start_events(self, cluster: str, run: Callable[[], None]) -> None:
        name = f"events/{cluster}" if cluster else "events"
        self._threads.start(name, partial(_run_as, "events", run), group=_EVENTS)

    def _start_runnables(self, *, leader_only: bool) -> None:
        with self._lock:
            chosen = {name: one.run for name, one in self._runnables.items() if one.leader_only == leader_only}
        for name, run in chosen.items():
            group = _WORK if leader_only else _SIDE
            self._threads.start(f"run/{name}", partial(self._run_when_open, name, run), group=group)

    def _run_when_open(self, name: str, run: Callable[[Stop], None]) -> None:
        if self._gate.wait(self._stop):
            _run_as(name, lambda: run(self._stop))

    def _supervise(self) -> BaseException | None:
        """Wait for what ends the program; return its error, None if there is none."""
        while True:
            message = self._inbox.wait_for(_TIDY)
            match message:
                case None:
                    for transport in self._all_transports():
                        transport.tidy()
                    if self._tune_gc:
                        self._tuning.collect_if_due(is_idle=self._is_idle())
                    self._gate.tell_if_late()
                case _StopWanted():
                    _log.info("stopping", extra=fields(reason=message.reason))
                    return None
                case _SignalCame():
                    _log.info("stopping", extra=fields(reason=signal.Signals(message.number).name))
                    return None
                case _ThreadEnded():
                    return _told(message)
                case _CachesFilled():
                    _log.info("caches filled", extra=fields(clusters=message.clusters))
                    if self._tune_gc:
                        self._tuning.collect()
                case _LeaseTaken():
                    self._start_work()
                case _LeaseLost():
                    _log.error("leadership lost", extra=fields(reason=str(message.error)))
                    return message.error

    def _is_idle(self) -> bool:
        """Tell whether nobody works: a standby's queues are full of what it may not do."""
        with self._lock:
            is_working = self._is_working
        return not is_working or all(one.is_idle() for one in self.controllers())

    def _failed_meanwhile(self) -> BaseException | None:
        """Return what failed while everything was being stopped, the first if there is more than one."""
        failed: BaseException | None = None
        while (message := self._inbox.take()) is not None:
            # One that asked for the stop and then ended is none of these.
            if isinstance(message, _ThreadEnded) and message.error is not None:
                error = _told(message)
                failed = failed or error
            elif isinstance(message, _LeaseLost):
                _log.error("leadership lost", extra=fields(reason=str(message.error)))
                failed = failed or message.error
        return failed

    def _shut_down(self) -> Sequence[str]:
        """Stop in the reverse order of the start; return the names of threads that do not end."""
        with self._lock:
            self._is_running = False
            graphs = tuple(self._graphs)
        self._stop.set()
        self._gate.signal()
        for controller in self.controllers():
            controller.stop()
        until = self.clock.monotonic() + self._grace
        left = [*self._wait_for(_WORK, until)]
        is_over = not left
        self.events.stop()
        left += self._threads.wait(_EVENTS, _EVENTS_GRACE)
        if self._elector is not None:
            # The lease after the work: nobody else is to begin before it has ended.
            self._elector.finish(work_has_ended=is_over)
            left += self._threads.wait(_ELECTOR, self._elector.longest_stop())
        left += self._wait_for(_SIDE, until)
        for graph in graphs:
            graph.stop()
        for factory in self._factories.values():
            factory.stop()
        caches_until = self.clock.monotonic() + _CACHE_GRACE  # for all clusters: one that hangs costs no other its time
        for factory in self._factories.values():
            left += factory.join(max(0.0, caches_until - self.clock.monotonic()))
        self._cut_reads()
        left += self._threads.wait(_DISCOVERY, _CACHE_GRACE)
        self.close()
        self._http_stop.set()
        left += self._threads.wait(_HTTP, _HTTP_GRACE)
        self._threads.join()
        for controller in self.controllers():
            controller.close()
        if left:
            _log.error("still running", extra=fields(threads=left, grace=self._grace))
        else:
            _log.info("stopped", extra=fields(program=self.name))
        return left

    def _wait_for(self, group: str, until: float) -> Sequence[str]:
        """Give workers and runnables their grace; what they only read is cut, now and when they try again."""
        while True:
            self._cut_reads()
            wait = until - self.clock.monotonic()
            left = self._threads.wait(group, min(max(wait, 0.0), _CUT_AGAIN))
            if not left or wait <= 0:
                return left

    def _cut_reads(self) -> None:
        for transport in self._transports.values():
            transport.cut_reads()

    def _thread_ended(self, name: str, group: str, error: BaseException | None) -> None:
        if self._stop.is_set() and (error is None or _comes_of_stop(error)):
            return
        if error is None and group in {_WORK, _SIDE}:
            # A program that asks for the stop and then returns has asked first.
            self._inbox.put(_ThreadEnded(name, None))
            return
        with self._lock:
            self._dead = (*self._dead, name)
        self._inbox.put(_ThreadEnded(name, error))

    def _reflector_died(self, error: BaseException) -> None:
        name = threading.current_thread().name  # it is the one that dies
        with self._lock:
            self._dead = (*self._dead, name)
        self._inbox.put(_ThreadEnded(name, error))

    def _look_at_gate(self) -> None:
        """Have work done for the clusters that have opened."""
        with self._lock:
            if not self._is_running:
                return
        opened = self._gate.open_clusters()
        with self._lock:
            new = tuple(cluster for cluster in opened if cluster not in self._opened)
            self._opened.update(new)
            controllers = tuple(self._controllers.values())
        for controller in controllers if new else ():
            for cluster in new:
                controller.queue.resume(cluster)
        if new:
            self._inbox.put(_CachesFilled(new))

    # Leader election.

    def _make_elector(self, election: LeaderElection, keeper: FenceKeeper, transport: Transport) -> LeaderElector:
        namespace = election.namespace or pod_namespace()
        if not namespace:
            namespace = "default"
            _log.warning("no namespace given for the lease", extra=fields(lease=election.name, used=namespace))
        ref = ObjectRef(LEASES, namespace, election.name)
        return LeaderElector(
            LeaseClient(transport, ref, field_manager=self.name),
            ref,
            election.terms(),
            keeper=keeper,
            clock=self.clock,
            release=election.release,
            taken=lambda: self._inbox.put(_LeaseTaken()),
            lost=lambda error: self._inbox.put(_LeaseLost(error)),
            end_process=self._end_process,
        )

    def _end_process(self) -> None:
        """End at once, as another process may do the work by now; whatever hangs, also the log, is left behind."""
        thread = threading.Thread(target=self._say_last_words, name="last-words", daemon=True)
        with suppress(RuntimeError):  # the system has no more threads
            start(thread)
            thread.join(_LAST_WORDS)
        os._exit(1)

    def _say_last_words(self) -> None:
        left = self._threads.wait(_WORK, 0)
        _log.error("work goes on although the lease is lost, ending the process", extra=fields(threads=list(left)))

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        """Turn the first SIGTERM or SIGINT into a message and the second into an exit; in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        came: list[int] = []

        def handle(number: int, _frame: FrameType | None) -> None:
            if came:
                os._exit(128 + number)
            came.append(number)
            self._inbox.put(_SignalCame(number))

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None stands for a handler that was not set from Python, and cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @contextmanager
    def _tuned(self) -> Iterator[None]:
        if not self._tune_gc:
            yield
            return
        with self._tuning.applied():
            yield

    # Discovery.

    def _use_mapper(self, cluster: str) -> None:
        """Keep a mapper up to date from its first use on."""
        with self._lock:
            self._used_mappers[cluster] = None
            is_running = self._is_running
        if is_running:
            self._start_discovery(cluster)

    def _start_discovery(self, cluster: str) -> None:
        name = f"run/discovery/{cluster}" if cluster else "run/discovery"
        self._threads.start(name, partial(self._discover, cluster), group=_DISCOVERY)

    def _discover(self, cluster: str) -> None:
        mapper = self._mappers[cluster]
        factory = self._factories[cluster]
        definitions = factory.follow(Selection(_CRDS, metadata_only=True), required=False)
        services = factory.follow(Selection(_APISERVICES, metadata_only=True), required=False)

        before: frozenset[InformerSet] = frozenset()

        def look() -> None:
            nonlocal before
            following = frozenset(one for one in (definitions, services) if one.state() in {"synced", "watching"})
            mapper.followed = len(following) == 2
            new, before = following - before, following
            if new:
                # What changed between its last load and the list that has just come told nobody.
                mapper.invalidate()

        for informers in (definitions, services):
            informers.add_handler(partial(_invalidate, mapper))
            informers.on_change(look)
        look()
        with bind(cluster=cluster):
            mapper.run(self._stop)

    # What it lends.

    def _follow(self, what: What, required: bool) -> Mapping[str, InformerSet]:
        selection = _selection(what)
        return {cluster: factory.follow(selection, required=required) for cluster, factory in self._factories.items()}

    def _sets(self, cluster: str) -> Sequence[InformerSet]:
        factory = self._factories.get(cluster)
        return () if factory is None else factory.sets()

    def _informers(self, cluster: str) -> Sequence[Informer]:
        """Return what controllers wait for: each namespace for itself, so that a broken one holds up no other."""
        factory = self._factories.get(cluster)
        return () if factory is None else factory.informers()

    def _find(self, ref: ObjectRef) -> Object | None:
        """Look an object up in all caches."""
        for informers in self._sets(ref.cluster):
            if informers.gvr() == ref.gvr:
                for store in informers.stores():
                    if (found := store.get(ref.key)) is not None:
                        return found
        return None

    def _kind_of(self, ref: ObjectRef) -> str:
        self._check_cluster(ref.cluster)
        return self._mappers[ref.cluster].resource(ref.gvr).kind

    def _check_cluster(self, cluster: str) -> None:
        if cluster not in self._factories:
            known = ", ".join(repr(name) for name in self._clusters)
            msg = f"cluster {cluster!r}: want one of {known}"
            raise ConfigError(msg)

    def _check_open_locked(self, name: str, known: Mapping[str, object]) -> None:
        if self._has_run:
            msg = f"manager {self.name}: {name} comes too late, it runs already"
            raise InformersError(msg)
        if name in known:
            msg = f"manager {self.name}: name {name!r} is in use"
            raise ConfigError(msg)


def _comes_of_stop(error: BaseException) -> bool:
    """Tell whether it is what one gets for going on while all is being stopped: cut off, or late."""
    return isinstance(error, TransportError | NotSyncedError | NotLeaderError) or type(error) is InformersError


def _told(ended: _ThreadEnded) -> BaseException:
    """Log that a thread has ended, and return what is to be raised for it."""
    _log.error("thread ended", exc_info=ended.error, extra=fields(thread=ended.name))
    error = ended.error
    if error is None or (isinstance(error, SystemExit) and not error.code):
        # Raised as it is, sys.exit() on a thread would end the process as if all had gone well.
        found = InformersError(f"{ended.name} ended, though nobody had asked it to")
        found.__cause__ = error
        return found
    return error


def _run_as(part: str, run: Callable[[], None]) -> None:
    with asking_as(part):
        run()


def _selection(what: What) -> Selection:
    return what if isinstance(what, Selection) else Selection(what)


def _invalidate(mapper: RESTMapper, delta: Delta) -> None:
    """Have the group of a CRD (`widgets.example.com`) or an APIService (`v1.example.com`) read again."""
    if not delta.initial:
        mapper.invalidate(delta.ref.name.partition(".")[2])


def _in_cluster(cluster: str, what: object) -> str:
    return f"{cluster}/{what}" if cluster else str(what)


def _synced(cluster: str, followed: Sequence[InformerSet], *, max_age: float) -> Findings:
    """Tell of each required resource whether its caches are filled, and current if that matters."""
    found: dict[str, Finding] = {}
    for informers in followed:
        if not informers.required:
            continue
        name = f"sync {_in_cluster(cluster, informers.selection.resource)}"
        finding = _sync_of(informers, max_age)
        # Several may follow the same resource; the worst is told.
        if finding.problem is not None or name not in found:
            found[name] = finding
    return found


def _sync_of(informers: InformerSet, max_age: float) -> Finding:
    state, problem = informers.state(), informers.problem()
    told = f"{state}, {type(problem).__name__}" if problem is not None else state
    if not informers.has_synced():
        # Nobody waits for what is not served or forbidden, as nothing more may ever come of it.
        return Finding(note=told) if state in {"forbidden", "unserved"} else Finding(f"not synced: {told}")
    if max_age and (age := informers.age()) > max_age:
        return Finding(f"the server was not heard of for {age:.0f} s: {told}")
    return FINE if state == "watching" else Finding(note=told)


def _asked(checks: Mapping[str, Check]) -> Findings:
    found = {}
    for name, check in checks.items():
        try:
            found[name] = Finding(check())
        except Exception as error:  # noqa: BLE001 - a check that cannot tell is one that fails
            found[name] = Finding(f"check raised {type(error).__name__}")
    return found


def _problems(findings: Findings) -> Mapping[str, str]:
    return {name: found.problem for name, found in findings.items() if found.problem is not None}


def _user_agent(program: str) -> str:
    return f"{program}/{VERSION} {DISTRIBUTION}/{VERSION}"
