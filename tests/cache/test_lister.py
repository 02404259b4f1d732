from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence

import pytest

from informers.cache.lister import Lister
from informers.cache.store import Handler, Received, Store, StoreWriter
from informers.logs import Throttle
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
from informers.testing.clock import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")


class FakeSet:
    """One cluster's stores, in a state that a test sets."""

    def __init__(self, cluster: str, clock: FakeClock, *namespaces: str) -> None:
        self.cluster = cluster
        self.parts = [
            Store(CONFIGMAPS, cluster=cluster, namespace=each, throttle=Throttle(clock)) for each in namespaces or ("",)
        ]
        self.the_state = "watching"
        self.the_age = 0.0
        self.limit: float | None = None

    def fill(self, *names: str, rv: str = "10") -> None:
        for store in self.parts:
            writer = StoreWriter(store)
            replacement = writer.replacement()
            for name in names:
                namespace, _, plain = name.rpartition("/")
                if store.namespace in {"", namespace}:
                    replacement.add(Received(self.make(plain, namespace)))
            writer.replace(replacement, rv)

    def make(self, name: str, namespace: str) -> Object:
        metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "5", "labels": {"n": name}}
        return Object.parse(json.dumps({"metadata": metadata}).encode(), CONFIGMAPS, cluster=self.cluster)

    def gvr(self) -> GVR:
        return CONFIGMAPS

    def stores(self) -> Sequence[Store]:
        return self.parts

    def has_synced(self, namespace: str | None = None) -> bool:
        return self.is_readable(namespace)

    def is_readable(self, namespace: str | None = None) -> bool:
        return all(store.is_filled() for store in self.parts)

    def verdicts(self) -> Collection[tuple[str, bool, str]]:
        raise NotImplementedError

    def max_staleness(self) -> float | None:
        return self.limit

    def state(self, namespace: str | None = None) -> str:
        return self.the_state

    def problem(self, namespace: str | None = None) -> InformersError | None:
        return InformersError("the reason") if self.the_state == "forbidden" else None

    def age(self, namespace: str | None = None) -> float:
        return self.the_age

    def add_index(self, name: str, func: Callable[[Object], Iterable[str]]) -> None:
        for store in self.parts:
            store.add_index(name, func)

    def add_handler(self, handler: Handler) -> FakeSet:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        raise NotImplementedError


@pytest.fixture
def home(clock: FakeClock) -> FakeSet:
    return FakeSet("", clock)


@pytest.fixture
def lister(home: FakeSet, clock: FakeClock) -> Lister:
    return Lister({"": home}, clock=clock)


def keys(objects: Sequence[Object]) -> list[str]:
    return [f"{obj.cluster}:{obj.ref.key}" for obj in objects]


def test_reading_before_the_first_list_says_what_is_missing_and_why(lister: Lister, home: FakeSet) -> None:
    home.the_state = "forbidden"
    ref = ObjectRef(CONFIGMAPS, "n", "a")

    for read in (
        lambda: lister.get("a", "n"),
        lambda: lister.find(ref),
        lister.list,
        lambda: lister.by_index("namespace", "n"),
        lambda: lister.keys_by_index("namespace", "n"),
        lambda: lister.index_values("namespace"),
    ):
        with pytest.raises(NotSyncedError, match=r"configmaps\.v1 is forbidden, not synced: the reason"):
            read()
    assert not lister.has_synced()


def test_the_error_of_a_read_carries_why_there_is_no_list(lister: Lister, home: FakeSet) -> None:
    home.the_state = "forbidden"

    with pytest.raises(NotSyncedError) as caught:
        lister.find(ObjectRef(CONFIGMAPS, "n", "a"))

    assert str(caught.value.problem) == "the reason"
    assert caught.value.known is None
    assert (caught.value.cluster, caught.value.gvr) == ("", CONFIGMAPS)


def test_the_error_of_reading_what_lacks_its_body_carries_what_is_known(lister: Lister, home: FakeSet) -> None:
    writer = StoreWriter(home.parts[0])
    writer.keep_only_referred()
    replacement = writer.replacement()
    replacement.add(Received(home.make("a", "n"), home.make("a", "n")))
    writer.replace(replacement, "10")
    writer.refer("n/a")

    with pytest.raises(NotSyncedError) as caught:
        lister.find(ObjectRef(CONFIGMAPS, "n", "a"))

    assert caught.value.problem is None
    assert caught.value.known is not None
    assert caught.value.known.labels == {"n": "a"}
    assert (caught.value.cluster, caught.value.gvr) == ("", CONFIGMAPS)


def test_what_is_absent_is_not_found_without_a_request(lister: Lister, home: FakeSet) -> None:
    home.fill("n/a")

    with pytest.raises(NotFoundError) as caught:
        lister.get("b", "n")

    assert caught.value.status == 0
    assert "default" not in str(caught.value)
    assert "configmaps.v1 n/b" in str(caught.value)
    assert lister.find(ObjectRef(CONFIGMAPS, "n", "b")) is None
    assert lister.get("a", "n").name == "a"


def test_a_reference_to_another_resource_is_not_answered_by_name(lister: Lister, home: FakeSet) -> None:
    home.fill("n/a")

    assert lister.find(ObjectRef(GVR("", "v1", "secrets"), "n", "a")) is None


def test_lists_are_sorted_by_key_and_narrowed_by_namespace_and_labels(lister: Lister, home: FakeSet) -> None:
    home.fill("n/b", "m/c", "n/a", "/global")

    assert keys(lister.list()) == [":global", ":m/c", ":n/a", ":n/b"]
    assert keys(lister.list("n")) == [":n/a", ":n/b"]
    assert keys(lister.list("")) == [":global"]
    assert keys(lister.list(labels="n in (a,c)")) == [":m/c", ":n/a"]
    with pytest.raises(ConfigError):
        lister.list(labels="!!")


def test_several_namespaces_read_as_one(clock: FakeClock) -> None:
    followed = FakeSet("", clock, "b", "a")
    followed.fill("a/x", "b/y", "b/x")
    lister = Lister({"": followed}, clock=clock)

    assert keys(lister.list()) == [":a/x", ":b/x", ":b/y"]
    assert keys(lister.list("b")) == [":b/x", ":b/y"]
    assert keys(lister.list("c")) == []
    assert lister.get("y", "b").name == "y"
    assert [lister.follows(ObjectRef(CONFIGMAPS, each, "x")) for each in ("a", "b", "c")] == [True, True, False]


def test_indexes_can_be_added_and_asked(lister: Lister, home: FakeSet) -> None:
    home.fill("n/b", "n/a")
    lister.add_index("first", lambda obj: (obj.name[0], "all"))

    assert keys(lister.by_index("first", "all")) == [":n/a", ":n/b"]
    assert [ref.name for ref in lister.keys_by_index("first", "b")] == ["b"]
    assert lister.index_values("first") == ["a", "all", "b"]


def test_one_cluster_that_is_not_synced_does_not_hide_the_others(clock: FakeClock) -> None:
    home, other = FakeSet("", clock), FakeSet("east", clock)
    home.fill("n/a")
    lister = Lister({"": home, "east": other}, clock=clock)

    assert keys(lister.list()) == [":n/a"]
    assert not lister.has_synced()
    assert lister.has_synced("")
    with pytest.raises(NotSyncedError, match="cluster east") as caught:
        lister.list(cluster="east")
    assert (caught.value.cluster, caught.value.gvr) == ("east", CONFIGMAPS)
    other.fill("n/a")
    assert keys(lister.list()) == [":n/a", "east:n/a"]
    with pytest.raises(ConfigError, match="'west'"):
        lister.list(cluster="west")


def test_a_cache_that_heard_nothing_for_too_long_is_refused_only_where_that_was_asked_for(
    lister: Lister, home: FakeSet
) -> None:
    home.fill("n/a")
    home.the_age = 1000.0
    assert lister.get("a", "n").name == "a"
    home.limit = 60.0

    for read in (lambda: lister.get("a", "n"), lister.list, lambda: lister.by_index("namespace", "n")):
        with pytest.raises(StaleCacheError, match="1000 s"):
            read()
    assert lister.age() == 1000.0
    home.the_age = math.inf
    assert lister.age("") == math.inf


def test_waiting_for_a_version_ends_when_the_store_has_passed_it(
    lister: Lister, home: FakeSet, clock: FakeClock
) -> None:
    home.fill(rv="10")
    ref = ObjectRef(CONFIGMAPS, "n", "a")
    lister.wait_seen(ref, "9")
    lister.wait_seen(ref, "opaque")
    done = threading.Event()

    def wait() -> None:
        lister.wait_seen(ref, "12")
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    clock.block_until_waiting()
    writer = StoreWriter(home.parts[0])
    writer.bookmark("11")
    for callback in writer.advance_callbacks():
        callback()
    clock.block_until_waiting()
    assert not done.is_set()
    writer.bookmark("12")
    for callback in writer.advance_callbacks():
        callback()

    thread.join(60)
    assert done.is_set()
    assert writer.advance_callbacks() == ()


def test_waiting_for_a_version_ends_after_its_time_or_when_nothing_is_to_be_expected(
    lister: Lister, home: FakeSet, clock: FakeClock
) -> None:
    home.fill(rv="10")
    ref = ObjectRef(CONFIGMAPS, "n", "a")
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            lister.wait_seen(ref, "12")
        except NotSeenError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    clock.block_until_waiting()
    clock.advance(5.0)
    thread.join(60)
    assert len(caught) == 1

    home.the_state = "unserved"
    lister.wait_seen(ref, "12")
