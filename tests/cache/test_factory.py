from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from informers.cache.factory import InformerFactory, InformerSet
from informers.cache.informer import Informer
from informers.cache.listwatch import Selection, WatchOptions
from informers.cache.store import Delta
from informers.meta.errors import (
    ConfigError,
    ConnectionLost,
    ForbiddenError,
    NotFoundError,
    NotSyncedError,
    UnknownKindError,
)
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef, Resource
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.cache.conftest import FakeMapper, FakeServer

V1, V2 = GVR("example.com", "v1", "widgets"), GVR("example.com", "v2", "widgets")


def widgets(gvr: GVR = V1, *, namespaced: bool = True) -> Resource:
    return Resource(gvr, "Widget", "widget", namespaced=namespaced)


@pytest.fixture
def factory(server: FakeServer, mapper: FakeMapper, clock: FakeClock) -> Iterator[InformerFactory]:
    server.gvr = V1
    server.kind = "Widget"
    made = InformerFactory(
        "",
        server,  # type: ignore[arg-type] # a fake with the methods that are used
        server,  # type: ignore[arg-type] # as above
        mapper,  # type: ignore[arg-type] # as above
        options=WatchOptions(initial="list"),
        clock=clock,
        on_thread_death=lambda error: None,
    )
    yield made
    made.stop()
    assert made.join(60) == []


def wait_for(informers: InformerSet, condition: Callable[[], bool]) -> None:
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    take_off = informers.on_change(wake)
    with changed:
        assert changed.wait_for(condition, 60), (informers.state(), informers.problem())
    take_off()


def test_nothing_starts_before_the_factory_does(factory: InformerFactory, server: FakeServer) -> None:
    informers = factory.follow(Selection(V1))
    assert server.requests == []
    assert informers.state() == "pending"

    factory.start()

    server.wait_stream()
    assert factory.sets() == (informers,)


def test_a_name_is_followed_once_it_resolves(factory: InformerFactory, server: FakeServer, mapper: FakeMapper) -> None:
    server.put("a")
    factory.start()
    informers = factory.follow(Selection("widget"))
    seen: list[Delta] = []
    registration = informers.add_handler(seen.append)
    informers.add_index("names", lambda obj: (obj.name,))
    wait_for(informers, lambda: informers.state() == "unserved")
    assert isinstance(informers.problem(), UnknownKindError)
    assert (informers.gvr(), informers.stores(), informers.has_synced()) == (None, (), False)

    mapper.change(widgets())

    server.wait_stream()
    wait_for(informers, lambda: informers.has_synced() and registration.has_synced())
    assert informers.gvr() == V1
    assert [delta.ref.name for delta in seen] == ["a"]
    assert informers.lister().index_values("names") == ["a"]


def test_a_name_that_comes_to_mean_another_version_is_read_from_the_old_one_until_the_new_one_has_synced(
    factory: InformerFactory,
    server: FakeServer,
    mapper: FakeMapper,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    server.put("a")
    mapper.change(widgets())
    factory.start()
    informers = factory.follow(Selection("widget"))
    seen: list[tuple[GVR, bool]] = []
    informers.add_handler(lambda delta: seen.append((delta.ref.gvr, delta.new is not None)))
    server.wait_stream()
    wait_for(informers, informers.has_synced)
    go = threading.Event()

    def hold() -> None:
        assert go.wait(60)

    server.list_faults.append(hold)
    mapper.change(widgets(V2))
    server.wait_requests("list", 2)
    assert informers.gvr() == V1
    assert informers.has_synced()
    assert [obj.ref.gvr for obj in informers.lister().list()] == [V1]

    go.set()

    wait_for(informers, lambda: informers.gvr() == V2)
    assert [obj.ref.gvr for obj in informers.lister().list()] == [V2]
    eventually(lambda: seen == [(V1, True), (V2, True), (V1, False)])


def test_a_name_that_means_nothing_any_more_keeps_its_informer_which_finds_out_by_itself(
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper
) -> None:
    mapper.change(widgets())
    factory.start()
    informers = factory.follow(Selection("widget"))
    server.wait_stream()
    wait_for(informers, informers.has_synced)
    looked = threading.Event()
    informers.on_change(looked.set)

    mapper.change()

    assert looked.wait(60)
    assert informers.gvr() == V1
    assert isinstance(informers.problem(), UnknownKindError)


def test_namespaces_are_ignored_on_a_kind_that_has_none(
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper
) -> None:
    mapper.change(widgets(namespaced=False))
    server.put("a", "")
    factory.start()
    by_name = factory.follow(Selection("widget", namespaces=("x", "y")))
    by_gvr = factory.follow(Selection(V1, namespaces=("x",)))
    server.wait_stream()
    wait_for(by_name, by_name.has_synced)

    assert {path for _, path, _ in server.requests} == {"/apis/example.com/v1/widgets"}
    assert by_gvr.stores()[0] is by_name.stores()[0]


def test_the_scope_of_a_kind_is_looked_at_again_when_discovery_tells(
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper
) -> None:
    mapper.is_loaded = False
    server.put("a", "")
    factory.start()
    informers = factory.follow(Selection(V1, namespaces=("x",)))
    server.wait_stream()
    wait_for(informers, informers.has_synced)
    assert list(informers.lister().list()) == []
    factory._ask_discovery(V1)

    mapper.is_loaded = True
    mapper.change(widgets(namespaced=False))

    wait_for(informers, lambda: len(informers.lister().list()) == 1)


def test_discovery_is_asked_nothing_as_long_as_all_is_given_and_served(
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper
) -> None:
    mapper.is_loaded = False
    mapper.resources = mapper.resolve = None  # type: ignore[assignment,method-assign] # to be called is to fail
    factory.start()

    informers = factory.follow(Selection(V1, namespaces=("x",)))
    server.wait_stream()

    wait_for(informers, informers.has_synced)
    assert mapper.invalidated == []


def test_an_index_cannot_have_two_functions(factory: InformerFactory) -> None:
    informers = factory.follow(Selection(V1))

    def function(obj: Object) -> tuple[str, ...]:
        return ()

    informers.add_index("x", function)
    informers.add_index("x", function)
    with pytest.raises(ConfigError, match="'x'"):
        informers.add_index("x", lambda obj: ())


def test_a_resync_shorter_than_a_second_is_an_error(factory: InformerFactory) -> None:
    with pytest.raises(ConfigError, match="resync"):
        factory.follow(Selection(V1)).add_handler(lambda delta: None, resync=0.5)


def test_a_released_set_is_told_nothing_while_others_go_on(factory: InformerFactory, server: FakeServer) -> None:
    factory.start()
    one, two = factory.follow(Selection(V1)), factory.follow(Selection(V1))
    server.wait_stream()
    wait_for(two, two.has_synced)
    told: list[str] = []
    heard = threading.Event()
    one.add_handler(lambda delta: told.append("one"))
    two.add_handler(lambda delta: heard.set())

    one.release()
    one.release()
    server.put("a")

    assert heard.wait(60)
    assert told == []
    assert factory.sets() == (two,)


@pytest.mark.parametrize("threads", [8])
def test_handlers_added_from_many_threads_while_names_resolve_see_every_object_once(
    factory: InformerFactory,
    server: FakeServer,
    mapper: FakeMapper,
    threads: int,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    for name in ("a", "b", "c"):
        server.put(name)
    factory.start()
    informers = factory.follow(Selection("widget"))
    start = threading.Barrier(threads + 1)
    seen: list[list[str]] = [[] for _ in range(threads)]

    def add(told: list[str]) -> None:
        start.wait()
        informers.add_handler(lambda delta: told.append(delta.ref.name))

    adding = [threading.Thread(target=add, args=(told,)) for told in seen]
    for thread in adding:
        thread.start()
    start.wait()
    mapper.change(widgets())
    for thread in adding:
        thread.join()
    registration = informers.add_handler(lambda delta: None)
    wait_for(informers, lambda: informers.has_synced() and registration.has_synced())

    eventually(lambda: [sorted(told) for told in seen] == [["a", "b", "c"]] * threads)


def test_a_namespace_that_cannot_be_one_is_an_error_and_leaves_nothing_behind(factory: InformerFactory) -> None:
    with pytest.raises(ConfigError, match="a/b"):
        factory.follow(Selection(V1, namespaces=("a/b",)))

    assert factory.sets() == ()


# Several namespaces, one of which is broken.


@pytest.fixture
def half_forbidden(factory: InformerFactory, server: FakeServer, clock: FakeClock) -> InformerSet:
    """Namespace `good` is followed, `bad` is forbidden."""
    server.put("x", "good")
    server.put("y", "bad")
    server.forbidden.add("bad")
    factory.start()
    informers = factory.follow(Selection(V1, namespaces=("bad", "good")))
    server.wait_stream()
    wait_for(informers, lambda: informers.state("bad") == "forbidden" and informers.state("good") == "watching")
    return informers


def test_a_forbidden_namespace_does_not_hide_how_far_the_others_are(half_forbidden: InformerSet) -> None:
    seen: list[str] = []
    registration = half_forbidden.add_handler(lambda delta: seen.append(delta.ref.key))

    assert half_forbidden.state() == "watching"
    assert half_forbidden.has_synced()
    assert registration.has_synced()
    assert seen == ["good/x"]
    assert "bad is forbidden" in str(half_forbidden.problem())
    assert (half_forbidden.has_synced("bad"), half_forbidden.has_synced("good")) == (False, True)
    assert half_forbidden.age() == 0


def test_a_forbidden_namespace_is_not_an_empty_one_and_hides_no_other(
    half_forbidden: InformerSet, clock: FakeClock, server: FakeServer
) -> None:
    lister = half_forbidden.lister()

    assert lister.get("x", "good").name == "x"
    assert [obj.ref.key for obj in lister.list()] == ["good/x"]
    assert [obj.ref.key for obj in lister.list("good")] == ["good/x"]
    for read in (lambda: lister.get("y", "bad"), lambda: lister.list("bad")):
        with pytest.raises(NotSyncedError, match=r"is forbidden, not synced.*bad is forbidden"):
            read()

    server.forbidden.clear()
    clock.block_until_waiting(due_in=45)
    clock.advance(45)
    wait_for(half_forbidden, lambda: half_forbidden.has_synced("bad"))
    assert [obj.ref.key for obj in lister.list()] == ["bad/y", "good/x"]


def test_a_set_is_not_synced_while_a_namespace_that_may_be_listed_is_not(
    factory: InformerFactory, server: FakeServer
) -> None:
    server.forbidden.add("bad")
    go = threading.Event()

    def hold() -> None:
        assert go.wait(60)

    factory.start()
    informers = factory.follow(Selection(V1, namespaces=("bad",)))
    wait_for(informers, lambda: informers.state() == "forbidden")  # alone, it is what there is to tell
    server.list_faults.append(hold)
    both = factory.follow(Selection(V1, namespaces=("bad", "good")))

    assert both.state() in {"pending", "syncing"}
    assert not both.has_synced()
    go.set()
    wait_for(both, both.has_synced)


def test_a_forbidden_namespace_is_one_informer_of_which_nothing_is_expected(
    half_forbidden: InformerSet, factory: InformerFactory
) -> None:
    states = {informer.key.namespace: informer.state() for informer in factory.informers()}

    assert states == {"bad": "forbidden", "good": "watching"}
    assert {informer.gvr() for informer in factory.informers()} == {V1}
    assert [store.namespace for informer in factory.informers() for store in informer.stores()] == ["bad", "good"]


# Names that change their meaning.


def test_a_version_that_is_gone_is_given_up_although_the_next_one_may_not_be_listed(
    factory: InformerFactory,
    server: FakeServer,
    mapper: FakeMapper,
    clock: FakeClock,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    server.put("a")
    mapper.change(widgets())
    factory.start()
    informers = factory.follow(Selection("widget"))
    seen: list[tuple[GVR, bool]] = []
    informers.add_handler(lambda delta: seen.append((delta.ref.gvr, delta.new is not None)))
    stream = server.wait_stream()
    wait_for(informers, informers.has_synced)
    server.list_faults.append(ForbiddenError("v2 is forbidden", status=403))
    mapper.change(widgets(V2))
    server.wait_requests("list", 2)
    assert [obj.name for obj in informers.lister().list()] == ["a"]

    server.list_faults.append(NotFoundError(status=404))
    stream.cut(NotFoundError(status=404))
    for _ in range(100):
        if informers.gvr() == V2:
            break
        # The old version may pause once more, or be let go before it does.
        with suppress(TimeoutError):
            clock.block_until_waiting(due_in=1.6, timeout=0.1)
            clock.advance(1.6)

    wait_for(informers, lambda: informers.gvr() == V2)
    eventually(lambda: seen == [(V1, True), (V1, False)])
    assert informers.state() == "forbidden"
    with pytest.raises(NotSyncedError, match="v2 is forbidden"):
        informers.lister().list()


def test_a_name_that_comes_back_to_what_it_meant_goes_on_with_what_is_there(
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper
) -> None:
    server.put("a")
    mapper.change(widgets())
    factory.start()
    informers = factory.follow(Selection("widget"))
    seen: list[Delta] = []
    informers.add_handler(seen.append)
    stream = server.wait_stream()
    wait_for(informers, informers.has_synced)
    first = factory.informers()[0]
    go = threading.Event()

    def hold() -> None:
        assert go.wait(60)

    server.list_faults.append(hold)
    mapper.change(widgets(V2))
    server.wait_requests("list", 2)
    mapper.change(widgets())
    wait_for(informers, lambda: len(informers._next) == 0)
    changes: list[str] = []
    informers.on_change(lambda: changes.append(informers.state()))
    stream.cut(ConnectionLost("cut"))
    wait_for(informers, lambda: "synced" in changes)
    go.set()

    assert informers.gvr() == V1
    assert [delta.ref.gvr for delta in seen] == [V1]
    assert len(first._on_change) == 1
    informers.release()
    assert len(first._on_change) == 0


def test_a_reference_that_is_taken_back_during_a_switch_keeps_no_body(
    factory: InformerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = ObjectRef(V1, "default", "a")
    informers = factory.demand(Selection(V1, namespaces=("default",)), ref, timeout=0)
    informers.add_index("names", lambda obj: (obj.name,))
    add_index = Informer.add_index

    def take_back(informer: Informer, name: str, func: Any) -> None:
        informers.unrefer(ref)  # as another thread may, before the switch has passed the reference on
        add_index(informer, name, func)

    monkeypatch.setattr(Informer, "add_index", take_back)
    informers.resolve(widgets(namespaced=False))

    (informer,) = (each for each in factory.informers() if each.key.namespace == "")
    assert informer.store._referred == {}


def test_a_set_that_was_released_refers_to_nothing_any_more(factory: InformerFactory) -> None:
    ref = ObjectRef(V1, "default", "a")
    informers = factory.demand(Selection(V1), ref, timeout=0)
    (informer,) = factory.informers()

    informers.release()
    informers.unrefer(ref)
    informers.refer(ref, timeout=0)

    assert informer.store._referred == {}
