from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from informers.cache.dependencies import DependencyGraph
from informers.cache.factory import InformerFactory
from informers.cache.listwatch import Selection, WatchOptions
from informers.cache.store import Delta, Handler
from informers.meta.errors import ConfigError, NotFoundError, NotSyncedError, api_error
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef, Resource
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.cache.conftest import FakeMapper, FakeServer

CONFIGMAPS = GVR("", "v1", "configmaps")
TARGETS = GVR("example.com", "v1", "targets")


def target(name: str) -> ObjectRef:
    return ObjectRef(TARGETS, "default", name)


def source(name: str) -> ObjectRef:
    return ObjectRef(CONFIGMAPS, "default", name)


@pytest.fixture
def factory(server: FakeServer, mapper: FakeMapper, clock: FakeClock) -> Iterator[InformerFactory]:
    made = InformerFactory(
        "",
        server,  # type: ignore[arg-type] # a fake with the methods that are used
        server,  # type: ignore[arg-type] # as above
        mapper,  # type: ignore[arg-type] # as above
        options=WatchOptions(initial="list"),
        clock=clock,
        on_thread_death=lambda error: None,
    )
    made.start()
    yield made
    made.stop()
    assert made.join(60) == []


class Woken:
    """Who was woken, at which priority; a test waits for what it expects."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self._changed = threading.Condition()

    def __call__(self, dependents: Sequence[ObjectRef], priority: int) -> None:
        with self._changed:
            self.calls.append((sorted(ref.name for ref in dependents), priority))
            self._changed.notify_all()

    def wait(self, count: int) -> list[tuple[list[str], int]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, 60), self.calls
            return list(self.calls)


def hold_list(server: FakeServer) -> threading.Event:
    """Have the next list wait until the event is set."""
    go = threading.Event()

    def hold() -> None:
        assert go.wait(60)

    server.list_faults.append(hold)
    return go


def graph_of(factory: InformerFactory, **options: Any) -> tuple[DependencyGraph, Woken]:
    graph = DependencyGraph({"": factory}, clock=factory.clock, **options)
    woken = Woken()
    graph.subscribe(woken)
    return graph, woken


def test_dependents_are_woken_when_the_first_list_is_there_also_for_what_is_absent(
    factory: InformerFactory, server: FakeServer
) -> None:
    go = hold_list(server)
    graph, woken = graph_of(factory)

    graph.replace(target("t"), [source("absent")])
    with pytest.raises(NotSyncedError):
        graph.lister(source("absent")).find(source("absent"))
    go.set()

    assert woken.wait(1) == [(["t"], 0)]
    assert graph.lister(source("absent")).has_synced()
    assert graph.lister(source("absent")).find(source("absent")) is None
    with pytest.raises(NotFoundError):
        graph.lister(source("absent")).get("absent", "default")


def test_only_those_who_depend_on_it_are_woken_by_a_change(factory: InformerFactory, server: FakeServer) -> None:
    graph, woken = graph_of(factory)
    go = hold_list(server)
    graph.replace(target("a"), [source("x"), source("y")])
    graph.replace(target("b"), [source("y"), source("y")])
    go.set()
    server.wait_stream()
    woken.wait(1)
    del woken.calls[:]

    server.put("x")
    server.put("other")
    server.put("y")
    server.remove("x")

    assert woken.wait(3) == [(["a"], 0), (["a", "b"], 0), (["a"], 0)]


@pytest.mark.parametrize("wide", [0, float("nan"), 2.5])
def test_how_many_are_many_is_a_whole_number(factory: InformerFactory, wide: Any) -> None:
    with pytest.raises(ConfigError, match=f"wide: want a whole number over 0, got {wide!r}"):
        graph_of(factory, wide=wide)


def test_a_source_with_many_dependents_wakes_them_at_a_low_priority(
    factory: InformerFactory, server: FakeServer
) -> None:
    graph, woken = graph_of(factory, wide=2)
    go = hold_list(server)
    for name in ("a", "b", "c"):
        graph.replace(target(name), [source("x"), *([source("y")] if name == "a" else [])])
    go.set()
    server.wait_stream()
    woken.wait(2)
    assert sorted(woken.calls) == [(["a"], 0), (["b", "c"], -50)]
    del woken.calls[:]

    server.put("x")
    server.put("y")

    assert woken.wait(2) == [(["a", "b", "c"], -50), (["a"], 0)]


def test_edges_not_named_again_are_gone_and_nothing_empty_stays(factory: InformerFactory, server: FakeServer) -> None:
    graph, _ = graph_of(factory)
    graph.replace(target("a"), [source("x"), source("y")], kinds=[("", "widget")])

    graph.replace(target("a"), [source("y")])
    assert graph.dependents_of(source("x")) == ()
    assert graph.dependencies_of(target("a")) == (source("y"),)
    graph.forget(target("a"))

    maps = (
        graph._dependencies,
        graph._dependents,
        graph._by_kind,
        graph._texts,
        graph._by_text,
        graph._followed,
        graph._named,
        graph._verdicts,
    )
    assert [dict(each) for each in maps] == [{}] * len(maps)


def test_a_dependency_may_be_the_dependent_itself(factory: InformerFactory) -> None:
    graph, _ = graph_of(factory)

    graph.replace(source("self"), [source("self")])

    assert graph.dependents_of(source("self")) == (source("self"),)


def test_a_dependency_in_a_cluster_that_is_not_there_keeps_its_edge(factory: InformerFactory) -> None:
    graph, _ = graph_of(factory)
    elsewhere = ObjectRef(CONFIGMAPS, "default", "x", "elsewhere")

    graph.replace(target("a"), [elsewhere])

    assert graph.dependents_of(elsewhere) == (target("a"),)


# Bodies.


def test_only_what_is_referred_to_is_kept_whole(factory: InformerFactory, server: FakeServer) -> None:
    server.put("x", data={"k": "v" * 1000})
    server.put("other", data={"k": "v" * 1000})
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("x")])
    woken.wait(1)

    found = graph.lister(source("x")).find(source("x"))
    other = graph.lister(source("other")).find(source("other"))

    assert found is not None
    assert other is not None
    assert len(found.raw) > 1000 > len(other.raw)
    assert server.queries("get") == []


def test_a_reference_that_comes_later_is_completed_by_one_get(factory: InformerFactory, server: FakeServer) -> None:
    server.put("x", data={"k": "v"})
    server.put("y", data={"k": "w"})
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("x")])
    woken.wait(1)

    graph.replace(target("b"), [source("y")])
    graph.replace(target("c"), [source("y")])

    found = graph.lister(source("y")).find(source("y"))
    assert found is not None
    assert found.get("data", "k") == "w"
    assert len(server.queries("get")) == 1


@pytest.mark.parametrize("status", [403, 404, 503])
def test_what_cannot_be_completed_is_not_synced_until_it_is(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, status: int
) -> None:
    server.put("y", data={"k": "w"})
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("x")])
    woken.wait(1)
    server.get_faults.append(api_error(status, None))

    graph.replace(target("b"), [source("y")])
    with pytest.raises(NotSyncedError, match="body"):
        graph.lister(source("y")).find(source("y"))
    clock.advance(30)
    graph.replace(target("b"), [source("y")])

    found = graph.lister(source("y")).find(source("y"))
    assert found is not None
    assert found.get("data", "k") == "w"


def test_the_body_goes_with_the_last_reference_and_the_informer_after_a_while(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.put("x", data={"k": "v" * 1000})
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("x"), source("y")])
    graph.replace(target("b"), [source("y")])
    woken.wait(1)
    store = graph._followed["", CONFIGMAPS, True].demand.stores()[0]  # type: ignore[attr-defined] # an InformerSet

    graph.forget(target("a"))
    assert len(store.get("default/x").raw) < 1000
    graph.forget(target("b"))
    with pytest.raises(NotSyncedError):
        graph.lister(source("x"))
    clock.block_until_waiting(due_in=600)
    clock.advance(600)
    with server._changed:
        assert server._changed.wait_for(lambda: server.closed_streams == 1, 60)


def test_a_change_that_completing_brought_in_still_wakes_whom_its_event_wakes(
    factory: InformerFactory, server: FakeServer
) -> None:
    server.put("y", data={"k": "old"})
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("x")])
    stream = server.wait_stream()
    woken.wait(1)
    late = server.put("y", data={"k": "new"}, silent=True)

    graph.replace(target("b"), [source("y")])
    found = graph.lister(source("y")).find(source("y"))
    assert found is not None
    assert found.get("data", "k") == "new"
    stream.event("MODIFIED", late)

    assert woken.wait(2)[-1] == (["b"], 0)


# Listers that are there already.


def test_a_lister_given_is_used_in_place_of_an_informer_of_the_graphs_own(
    factory: InformerFactory, server: FakeServer
) -> None:
    lister = factory.follow(Selection(CONFIGMAPS, namespaces=("default",))).lister()
    server.wait_stream()
    graph, woken = graph_of(factory, over=[lister])

    graph.replace(target("a"), [source("x")])
    assert graph.lister(source("x")) is lister
    server.put("x")

    assert woken.wait(1)[-1] == (["a"], 0)
    assert len(server.queries("list")) == 1
    graph.replace(target("b"), [ObjectRef(CONFIGMAPS, "elsewhere", "x")])  # of a namespace that the lister has not
    server.wait_stream(2)


# States.


def test_dependents_are_woken_when_a_kind_turns_out_to_be_forbidden_and_again_when_it_heals(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.list_faults.append(api_error(403, {"reason": "Forbidden", "message": "may not list"}))
    graph, woken = graph_of(factory)

    graph.replace(target("a"), [source("x")])

    woken.wait(1)
    assert graph.lister(source("x")).state() == "forbidden"
    assert "may not list" in str(graph.lister(source("x")).problem())
    clock.block_until_waiting(due_in=45)
    clock.advance(45)
    woken.wait(2)
    server.wait_stream()
    assert graph.lister(source("x")).find(source("x")) is None


# Names.


def widgets(version: str = "v1") -> Resource:
    return Resource(GVR("example.com", version, "widgets"), "Widget", "widget", namespaced=True)


def test_who_named_a_kind_that_did_not_resolve_is_woken_when_it_does_stops_or_means_something_else(
    factory: InformerFactory, mapper: FakeMapper, clock: FakeClock
) -> None:
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [], kinds=[("", "widget"), ("elsewhere", "widget")])
    clock.block_until_waiting()
    assert woken.calls == []

    for count, known in enumerate([[widgets()], [widgets("v2")], []], start=1):
        mapper.change(*known)
        assert woken.wait(count)[-1] == (["a"], 0)

    graph.forget(target("a"))
    mapper.change(widgets())
    assert len(woken.calls) == 3


def test_a_name_that_resolved_between_look_up_and_replace_wakes_once(
    factory: InformerFactory, mapper: FakeMapper
) -> None:
    mapper.change(widgets())
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [], kinds=[("", "widget")])
    woken.wait(1)

    graph.replace(target("b"), [], kinds=[("", "widget")])
    assert woken.wait(2)[-1] == (["b"], 0)
    for _ in range(5):
        graph.replace(target("b"), [], kinds=[("", "widget")])
        graph.replace(target("a"), [], kinds=[("", "widget")])

    assert len(woken.calls) == 2


# Interleavings. A reader declares and then reads; a writer writes and then looks dependents up. Each is taken apart
# into steps, and every order of the steps is tried.


class StepDemand:
    """An informer whose writing and telling are two steps, on a store of one cell."""

    def __init__(self) -> None:
        self.value: int | None = None  # None: not synced
        self.handlers: list[Handler] = []
        self.callbacks: list[Callable[[], None]] = []

    def gvr(self) -> GVR:
        return CONFIGMAPS

    def add_handler(self, handler: Handler) -> Any:
        self.handlers.append(handler)
        owner = self

        class Handle:
            def remove(self) -> None:
                owner.handlers.remove(handler)

        return Handle()

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: None

    def has_synced(self) -> bool:
        return self.value is not None

    def verdicts(self) -> frozenset[tuple[str, bool, str]]:
        return frozenset([("", True, "")]) if self.has_synced() else frozenset()

    def refer(self, ref: ObjectRef, *, timeout: float) -> None: ...

    def unrefer(self, ref: ObjectRef) -> None: ...

    def lister(self) -> Any:
        return self

    def release(self) -> None: ...


class StepFactory:
    def __init__(self) -> None:
        self.only = StepDemand()

    def demand(self, selection: Selection, ref: ObjectRef, *, timeout: float) -> StepDemand:
        return self.only

    def follow_text(self, text: str, listener: Callable[[Any], None]) -> Callable[[], None]:
        return lambda: None


def orders(left: int, right: int) -> Iterator[str]:
    """Every way of taking `left` steps of L and `right` steps of R, each in its own order."""
    if not left and not right:
        yield ""
    if left:
        yield from (f"L{rest}" for rest in orders(left - 1, right))
    if right:
        yield from (f"R{rest}" for rest in orders(left, right - 1))


class Steps:
    """What a reader and a writer do, step by step; `is_lost` tells whether the last value was neither read nor told."""

    def __init__(self) -> None:
        factory = StepFactory()
        self._demand = factory.only
        self._graph = DependencyGraph({"": factory})
        self._read: list[int | None] = []
        self._woken_at: list[int | None] = []
        self._graph.subscribe(lambda refs, priority: self._woken_at.append(self._demand.value))
        body = b'{"metadata":{"name":"x","namespace":"default","uid":"u","resourceVersion":"1"}}'
        self._obj = Object.parse(body, CONFIGMAPS)

    def declare(self) -> None:
        self._graph.replace(target("t"), [source("x")])

    def read(self) -> None:
        self._read.append(self._demand.value)

    def write(self, value: int) -> None:
        self._demand.value = value

    def tell_synced(self) -> None:
        for callback in list(self._demand.callbacks):
            callback()

    def tell_change(self) -> None:
        for handler in list(self._demand.handlers):
            handler(Delta(self._obj.ref, self._obj, self._obj))

    def is_lost(
        self, order: str, *, is_known: bool = False, declares_first: bool = True, writes_first: bool = True
    ) -> bool:
        """Take the steps in this order; `is_known` when somebody depends on that kind already."""
        if is_known:
            self._graph.replace(target("u"), [source("y")])
        reader: list[Callable[[], None]] = [self.declare, self.read]
        change: list[Callable[[], None]] = [partial(self.write, 2), self.tell_change]
        if not declares_first:
            reader.reverse()
        if not writes_first:
            change.reverse()
        writer: list[Callable[[], None]] = [partial(self.write, 1), self.tell_synced, *change]
        steps = {"L": iter(reader), "R": iter(writer)}
        for each in order:
            next(steps[each])()
        return self._read != [2] and self._woken_at[-1:] != [2]


ORDERS = sorted(set(orders(2, 4)))


def test_every_order_of_steps_is_one_of_them() -> None:
    assert len(ORDERS) == 15


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_in_every_order_of_steps_the_last_value_is_read_or_the_reader_is_woken_after_it(
    order: str, is_known: bool
) -> None:
    assert not Steps().is_lost(order, is_known=is_known)


def test_who_reads_before_it_declares_loses_a_change_in_some_order() -> None:
    assert [order for order in ORDERS if Steps().is_lost(order, is_known=True, declares_first=False)]


def test_an_informer_that_told_before_it_wrote_would_lose_a_change_in_some_order() -> None:
    assert [order for order in ORDERS if Steps().is_lost(order, is_known=True, writes_first=False)]


# The whole, against a naive model.

targets = st.sampled_from([target(name) for name in "abc"])
sources = st.sampled_from([source(name) for name in "wxyz"])


class GraphMachine(RuleBasedStateMachine):
    """replace and forget in any order, next to a dictionary of sets."""

    def __init__(self) -> None:
        super().__init__()
        self.factory = StepFactory()
        self.graph = DependencyGraph({"": self.factory})
        self.model: dict[ObjectRef, set[ObjectRef]] = {}

    @rule(dependent=targets, dependencies=st.lists(sources))
    def replace(self, dependent: ObjectRef, dependencies: list[ObjectRef]) -> None:
        self.graph.replace(dependent, dependencies)
        self.model[dependent] = set(dependencies)

    @rule(dependent=targets)
    def forget(self, dependent: ObjectRef) -> None:
        self.graph.forget(dependent)
        self.model.pop(dependent, None)

    @invariant()
    def graph_is_the_model(self) -> None:
        for name in "abc":
            assert set(self.graph.dependencies_of(target(name))) == self.model.get(target(name), set())
        for name in "wxyz":
            wanted = {dependent for dependent, found in self.model.items() if source(name) in found}
            assert set(self.graph.dependents_of(source(name))) == wanted

    @invariant()
    def nothing_empty_stays(self) -> None:
        graph = self.graph
        assert all(edges.followed for edges in graph._dependencies.values())
        assert all(graph._dependents.values())
        assert all(graph._by_kind.values())
        edges = sum(map(len, self.model.values()))
        assert sum(followed.holds for followed in graph._followed.values()) == edges
        assert bool(self.factory.only.handlers) is bool(edges)


GraphMachine.TestCase.settings = settings(stateful_step_count=20, deadline=None)
test_the_graph_is_like_a_dictionary_of_sets = GraphMachine.TestCase


# What goes wrong on the way.


def test_dependents_in_a_namespace_that_was_forbidden_are_woken_when_it_heals_and_no_others(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.forbidden.add("bad")
    graph, woken = graph_of(factory, namespaces=("bad", "good"))
    bad, good = ObjectRef(CONFIGMAPS, "bad", "x"), ObjectRef(CONFIGMAPS, "good", "x")
    graph.replace(target("a"), [bad])
    graph.replace(target("b"), [good])
    woken.wait(1)
    server.wait_stream()
    woken.calls.clear()

    server.put("x", "bad", silent=True)
    server.forbidden.clear()
    clock.block_until_waiting(due_in=45)
    clock.advance(45)

    assert woken.wait(1) == [(["a"], 0)]
    assert graph.lister(bad).find(bad) is not None


def test_bodies_of_many_references_are_waited_for_as_long_as_that_of_one(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    for name in ("x", "y", "z"):
        server.put(name)
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("absent")])
    woken.wait(1)

    def hang() -> None:
        clock.advance(3)
        raise api_error(503, None)

    server.get_faults.extend([hang, hang, hang])
    graph.replace(target("b"), [source("x"), source("y"), source("z")])

    assert server.get_timeouts == [5.0, 2.0]
    server.get_faults.clear()
    clock.advance(8)
    graph.replace(target("b"), [source("x"), source("y"), source("z")])
    assert all(graph.lister(source(name)).find(source(name)) is not None for name in ("x", "y", "z"))


def test_a_body_that_may_not_be_read_is_asked_for_once_in_a_while_however_many_want_it(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.put("x")
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("absent")])
    woken.wait(1)
    server.get_faults.extend([api_error(403, None)] * 3)

    for n in range(20):
        graph.replace(target(f"t{n}"), [source("x")])
        with pytest.raises(NotSyncedError, match="body"):
            graph.lister(source("x")).find(source("x"))
    assert len(server.get_timeouts) == 1
    clock.advance(30)
    graph.replace(target("t0"), [source("x")])
    assert len(server.get_timeouts) == 2

    server.put("x")  # its next event brings the body too, and wakes
    assert len(woken.wait(2)[1][0]) == 20
    assert graph.lister(source("x")).find(source("x")) is not None


def test_a_reference_that_nothing_can_follow_leaves_the_other_edges_whole(
    factory: InformerFactory, server: FakeServer
) -> None:
    server.put("x", data={"k": "v"})
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("x")])
    woken.wait(1)

    with pytest.raises(ConfigError):
        graph.replace(target("a"), [source("x"), ObjectRef(GVR("", "v1", "no/such"), "default", "x"), source("y")])
    graph.forget(target("a"))

    assert graph._followed == {}
    with pytest.raises(NotSyncedError):
        graph.lister(source("x"))


class TwoMinds(StepDemand):
    """Is asked by two threads at once: the second is done before the first goes on with what it was told before."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[frozenset[tuple[str, bool, str]]] = []
        self.present = frozenset({("", False, "forbidden")})

    def verdicts(self) -> frozenset[tuple[str, bool, str]]:
        if not self.answers:
            return self.present
        old = self.answers.pop()
        self.callbacks[0]()
        return old


def test_a_verdict_that_is_older_never_stays_over_a_newer_one() -> None:
    factory = StepFactory()
    demand = factory.only = TwoMinds()
    graph = DependencyGraph({"": factory})
    woken: list[ObjectRef] = []
    graph.subscribe(lambda dependents, priority: woken.extend(dependents))
    graph.replace(target("t"), [source("a")])

    demand.answers = [frozenset({("", False, "")})]
    demand.callbacks[0]()
    woken.clear()
    demand.present = frozenset({("", False, "")})
    demand.callbacks[0]()

    assert woken == [target("t")]


def test_many_bodies_of_a_server_that_does_not_answer_hold_their_readers_once(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    names = [f"s{number}" for number in range(50)]
    for name in names:
        server.put(name)
    graph, woken = graph_of(factory)
    graph.replace(target("a"), [source("absent")])
    woken.wait(1)

    def hang() -> None:
        clock.advance(5)
        raise api_error(503, None)

    server.get_faults.extend([hang] * len(names))
    for name in names:
        graph.replace(target(name), [source(name)])
        with pytest.raises(NotSyncedError, match="body"):
            graph.lister(source(name)).find(source(name))
    assert len(server.get_timeouts) == 1

    server.get_faults.clear()
    clock.advance(20)
    for name in names:
        graph.replace(target(name), [source(name)])
        assert graph.lister(source(name)).find(source(name)) is not None
