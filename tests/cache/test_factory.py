from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from informers.cache.factory import InformerFactory, InformerSet
from informers.cache.listwatch import Selection, WatchOptions
from informers.cache.store import Delta
from informers.meta.errors import ConfigError, UnknownKindError
from informers.meta.objects import Object
from informers.meta.resources import GVR, Resource
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
        options=WatchOptions(),
        clock=clock,
        on_thread_death=lambda error: None,
    )
    yield made
    made.stop()
    assert made.join(5) == []


def wait_for(informers: InformerSet, condition: Callable[[], bool]) -> None:
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    take_off = informers.on_change(wake)
    with changed:
        assert changed.wait_for(condition, 10), (informers.state(), informers.problem())
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
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper
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
        assert go.wait(10)

    server.list_faults.append(hold)
    mapper.change(widgets(V2))
    server.wait_requests("list", 2)
    assert informers.gvr() == V1
    assert informers.has_synced()
    assert [obj.ref.gvr for obj in informers.lister().list()] == [V1]

    go.set()

    wait_for(informers, lambda: informers.gvr() == V2)
    assert [obj.ref.gvr for obj in informers.lister().list()] == [V2]
    assert seen == [(V1, True), (V2, True), (V1, False)]


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

    assert looked.wait(10)
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

    assert heard.wait(10)
    assert told == []
    assert factory.sets() == (two,)


@pytest.mark.parametrize("threads", [8])
def test_handlers_added_from_many_threads_while_names_resolve_see_every_object_once(
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper, threads: int
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

    assert [sorted(told) for told in seen] == [["a", "b", "c"]] * threads


def test_a_namespace_that_cannot_be_one_is_an_error_and_leaves_nothing_behind(factory: InformerFactory) -> None:
    with pytest.raises(ConfigError, match="a/b"):
        factory.follow(Selection(V1, namespaces=("a/b",)))

    assert factory.sets() == ()
