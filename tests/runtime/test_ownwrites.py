"""Floors: what a request wrote, and what its caches have to show before it is looked at again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from informers.api.client import Write
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.ownwrites import OwnWrites

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
REQUEST = ObjectRef(CONFIGMAPS, "default", "request")
OTHER = ObjectRef(CONFIGMAPS, "default", "other")
CHILD = ObjectRef(CONFIGMAPS, "default", "child")


def obj(name: str = "child", *, rv: str = "0", uid: str = "u1", cluster: str = "", **metadata: Any) -> Object:
    meta = {"name": name, "namespace": "default", "resourceVersion": rv, "uid": uid, **metadata}
    return Object.parse(json.dumps({"metadata": meta}).encode(), CONFIGMAPS, cluster=cluster)


def wrote(rv: str, **metadata: Any) -> Write:
    made = obj(rv=rv, **metadata)
    return Write(made.ref, made, deleted=False, lost=False)


DELETED = Write(CHILD, None, deleted=True, lost=False)
LOST = Write(CHILD, None, deleted=False, lost=True)


class FakeStore:
    def __init__(self, rv: str = "100", selects: Callable[[Object], bool] = lambda _: True) -> None:
        self._rv = rv
        self._selects = selects
        self.items: dict[str, Object] = {}
        self.callbacks: list[Callable[[], None]] = []

    def rv(self) -> str:
        return self._rv

    def get(self, key: str) -> Object | None:
        return self.items.get(key)

    def selects(self, found: Object) -> bool:
        return self._selects(found)

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)

        def take_off() -> None:
            if callback in self.callbacks:
                self.callbacks.remove(callback)

        return take_off

    def advance(self, rv: str | None = None, **items: Object | None) -> None:
        self._rv = rv or self._rv
        for name, found in items.items():
            if found is None:
                self.items.pop(f"default/{name}", None)
            else:
                self.items[f"default/{name}"] = found
        for callback in list(self.callbacks):
            callback()


class FakeSet:
    def __init__(self, *stores: FakeStore, gvr: GVR = CONFIGMAPS, state: str = "watching") -> None:
        self.parts = stores
        self.now = state
        self._gvr = gvr

    def gvr(self) -> GVR:
        return self._gvr

    def state(self) -> str:
        return self.now

    def stores(self) -> Sequence[FakeStore]:
        return self.parts


class Ledger:
    """Own writes over some sets, and who was woken."""

    def __init__(self, *sets: FakeSet, cluster: str = "") -> None:
        self.woken: list[ObjectRef] = []
        self.own = OwnWrites(sets=lambda name: sets if name == cluster else (), wake=self.woken.extend)


def test_a_write_that_the_store_has_not_reached_parks_the_request_until_it_has() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("105"))

    parked = ledger.own.park(REQUEST)
    store.advance("104")
    before = list(ledger.woken)
    store.advance("105")

    assert parked
    assert before == []
    assert ledger.woken == [REQUEST]
    assert not ledger.own.park(REQUEST)


def test_a_floor_is_met_by_a_later_version_without_the_object() -> None:
    """Created and deleted again during a gap: it never shows."""
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("105"))

    store.advance("110")

    assert not ledger.own.park(REQUEST)
    assert len(ledger.own) == 0
    assert not ledger.own.holds(REQUEST)


@pytest.mark.parametrize("rv", ["105", "106", "1000"])
def test_a_write_that_the_store_shows_already_leaves_nothing(rv: str) -> None:
    store = FakeStore(rv)
    ledger = Ledger(FakeSet(store))

    ledger.own.record(REQUEST, wrote("105"))

    assert ledger.own.is_clear(REQUEST)
    assert store.callbacks == []


def test_versions_compare_as_numbers_not_as_text() -> None:
    store = FakeStore("99")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("100"))
    ledger.own.record(REQUEST, wrote("1000"))
    ledger.own.park(REQUEST)

    store.advance("999")
    before = list(ledger.woken)
    store.advance("1000")

    assert before == []
    assert ledger.woken == [REQUEST]


def test_the_highest_of_several_writes_counts() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    for rv in ("105", "107", "106"):
        ledger.own.record(REQUEST, wrote(rv))
    ledger.own.park(REQUEST)

    store.advance("106")
    assert ledger.woken == []
    store.advance("107")

    assert ledger.woken == [REQUEST]


def test_every_store_that_will_show_the_write_has_to() -> None:
    first, second = FakeStore("100"), FakeStore("100")
    ledger = Ledger(FakeSet(first), FakeSet(second))
    ledger.own.record(REQUEST, wrote("105"))
    ledger.own.park(REQUEST)

    first.advance("105")
    before = list(ledger.woken)
    second.advance("105")

    assert before == []
    assert ledger.woken == [REQUEST]


def test_a_store_that_two_sets_share_counts_once() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store), FakeSet(store))

    ledger.own.record(REQUEST, wrote("105"))

    assert len(ledger.own) == 1


def test_stores_of_other_resources_selections_and_clusters_do_not_matter() -> None:
    ledger = Ledger(
        FakeSet(FakeStore("100"), gvr=SECRETS),
        FakeSet(FakeStore("100", selects=lambda found: found.labels.get("app") == "x")),
    )

    ledger.own.record(REQUEST, wrote("105"))
    ledger.own.record(REQUEST, wrote("106", cluster="b"))

    assert ledger.own.is_clear(REQUEST)


def test_a_selection_that_matches_the_written_object_matters() -> None:
    ledger = Ledger(FakeSet(FakeStore("100", selects=lambda found: found.labels.get("app") == "x")))

    ledger.own.record(REQUEST, wrote("105", labels={"app": "x"}))

    assert ledger.own.park(REQUEST)


@pytest.mark.parametrize("state", ["pending", "forbidden", "unserved", "stopped"])
def test_an_informer_that_does_not_follow_blocks_nobody(state: str) -> None:
    ledger = Ledger(FakeSet(FakeStore("100"), state=state))

    ledger.own.record(REQUEST, wrote("105"))

    assert ledger.own.is_clear(REQUEST)


def test_an_informer_that_has_nothing_yet_blocks_nobody() -> None:
    ledger = Ledger(FakeSet(FakeStore(""), state="syncing"))

    ledger.own.record(REQUEST, wrote("105"))

    assert ledger.own.is_clear(REQUEST)


def test_a_write_made_while_the_first_list_is_still_being_told_is_waited_for() -> None:
    store = FakeStore("100")
    followed = FakeSet(store, state="syncing")
    ledger = Ledger(followed)
    ledger.own.record(REQUEST, wrote("105"))

    assert ledger.own.park(REQUEST)
    followed.now = "watching"
    store.advance("105")

    assert ledger.woken == [REQUEST]


@pytest.mark.parametrize("state", ["pending", "forbidden", "unserved", "stopped"])
def test_an_informer_that_stops_following_lets_go(state: str) -> None:
    store = FakeStore("100")
    followed = FakeSet(store)
    ledger = Ledger(followed)
    ledger.own.record(REQUEST, wrote("105"))
    ledger.own.park(REQUEST)

    followed.now = state
    store.advance()

    assert ledger.woken == [REQUEST]
    assert len(ledger.own) == 0


def test_a_store_that_was_replaced_lets_go() -> None:
    store = FakeStore("100")
    followed = FakeSet(store)
    ledger = Ledger(followed)
    ledger.own.record(REQUEST, wrote("105"))

    followed.parts = ()

    assert not ledger.own.park(REQUEST)


@pytest.mark.parametrize(("held", "written"), [("abc", "105"), ("100", "xyz"), ("", "105"), ("100", ""), ("100", "0")])
def test_versions_that_cannot_be_compared_block_nobody(held: str, written: str) -> None:
    ledger = Ledger(FakeSet(FakeStore(held)))

    ledger.own.record(REQUEST, wrote(written))

    assert not ledger.own.park(REQUEST)


def test_a_store_that_comes_to_hold_an_opaque_version_lets_go() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("105"))
    ledger.own.park(REQUEST)

    store.advance("opaque")

    assert ledger.woken == [REQUEST]


def test_a_version_of_any_length_is_taken() -> None:
    ledger = Ledger(FakeSet(FakeStore("100")))

    ledger.own.record(REQUEST, wrote("9" * 5000))

    assert ledger.own.park(REQUEST)


@pytest.mark.parametrize(
    "shown",
    [None, obj(uid="u2", rv="104"), obj(uid="u1", rv="104", deletionTimestamp="2024-05-17T12:00:00Z")],
    ids=["absent", "another uid", "terminating"],
)
def test_a_deletion_is_met_when_the_object_is_absent_another_or_terminating(shown: Object | None) -> None:
    store = FakeStore("100")
    store.items["default/child"] = obj()
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, DELETED)
    parked = ledger.own.park(REQUEST)

    store.advance("103")
    before = list(ledger.woken)
    store.advance("104", child=shown)

    assert parked
    assert before == []
    assert ledger.woken == [REQUEST]


@pytest.mark.parametrize("shown", [None, obj(deletionTimestamp="2024-05-17T12:00:00Z")])
def test_a_deletion_that_shows_already_leaves_nothing(shown: Object | None) -> None:
    store = FakeStore("100")
    if shown is not None:
        store.items["default/child"] = shown
    ledger = Ledger(FakeSet(store))

    ledger.own.record(REQUEST, DELETED)

    assert ledger.own.is_clear(REQUEST)


def test_what_was_made_and_deleted_is_waited_for_until_it_has_gone_again() -> None:
    """The store that does not show it yet will show it alive for a while."""
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("105"))
    ledger.own.record(REQUEST, DELETED)
    parked = ledger.own.park(REQUEST)

    store.advance("104")
    store.advance("105", child=obj(rv="105"))
    before = list(ledger.woken)
    store.advance("106", child=None)

    assert parked
    assert before == []
    assert ledger.woken == [REQUEST]
    assert not ledger.own.holds(REQUEST)


def test_what_was_made_and_deleted_in_a_gap_never_has_to_show() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("105"))
    ledger.own.record(REQUEST, DELETED)
    ledger.own.park(REQUEST)

    store.advance("110")

    assert ledger.woken == [REQUEST]
    assert len(ledger.own) == 0


def test_what_was_deleted_made_anew_and_deleted_again_is_waited_for() -> None:
    store = FakeStore("100")
    store.items["default/child"] = obj(rv="90")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, DELETED)
    ledger.own.record(REQUEST, wrote("105", uid="u2"))
    ledger.own.record(REQUEST, DELETED)
    ledger.own.park(REQUEST)

    store.advance("104", child=None)
    store.advance("105", child=obj(rv="105", uid="u2"))
    before = list(ledger.woken)
    store.advance("106", child=None)

    assert before == []
    assert ledger.woken == [REQUEST]


def test_what_somebody_else_here_has_just_made_is_waited_for_by_who_deletes_it() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(OTHER, wrote("105"))
    ledger.own.record(REQUEST, DELETED)

    store.advance("105", child=obj(rv="105"))
    parked = ledger.own.park(REQUEST)
    store.advance("106", child=None)

    assert parked
    assert ledger.woken == [REQUEST]


def test_an_object_that_a_write_takes_out_of_a_selection_is_waited_for_until_it_has_gone() -> None:
    store = FakeStore("100", selects=lambda found: found.labels.get("app") == "x")
    store.items["default/child"] = obj(rv="90", labels={"app": "x"})
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("105", labels={"app": "y"}))
    parked = ledger.own.park(REQUEST)

    store.advance("105", child=None)

    assert parked
    assert ledger.woken == [REQUEST]


def test_a_conflict_is_asked_about_where_a_cache_shows_what_it_was_about() -> None:
    refused = Write(CHILD, None, deleted=False, lost=True, refused=True)
    followed, alone = Ledger(FakeSet(FakeStore())), Ledger(FakeSet(FakeStore(), gvr=SECRETS))

    followed.own.record(REQUEST, refused)
    alone.own.record(REQUEST, refused)

    assert followed.own.take_lost(REQUEST) == (CHILD,)
    assert alone.own.is_clear(REQUEST)


def test_a_lost_write_is_handed_out_once_to_be_read() -> None:
    ledger = Ledger(FakeSet(FakeStore()))
    ledger.own.record(REQUEST, LOST)
    ledger.own.record(REQUEST, LOST)

    assert not ledger.own.is_clear(REQUEST)
    assert ledger.own.has_lost(REQUEST)
    assert ledger.own.take_lost(OTHER) == ()
    assert ledger.own.take_lost(REQUEST) == (CHILD,)
    assert ledger.own.take_lost(REQUEST) == ()
    assert ledger.own.is_clear(REQUEST)


def test_a_lost_write_of_a_name_that_the_server_makes_cannot_be_read() -> None:
    ledger = Ledger(FakeSet(FakeStore()))

    ledger.own.record(REQUEST, Write(ObjectRef(CONFIGMAPS, "default", ""), None, deleted=False, lost=True))

    assert ledger.own.is_clear(REQUEST)


def test_floors_fall_without_anybody_asking() -> None:
    """Their number is bounded by the writes not yet seen."""
    store = FakeStore("1")
    ledger = Ledger(FakeSet(store))
    for number in range(10, 1010):
        ledger.own.record(ObjectRef(CONFIGMAPS, "default", f"r{number}"), wrote(str(number)))
    full = len(ledger.own)

    store.advance("509")
    half = len(ledger.own)
    store.advance("1009")

    assert (full, half, len(ledger.own)) == (1000, 500, 0)
    assert ledger.woken == [], "nobody was parked"
    assert ledger.own._marks == {}
    assert store.callbacks == [], "nobody listens when nothing is owed"


def test_each_parked_request_is_woken_once() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    for request in (REQUEST, OTHER):
        ledger.own.record(request, wrote("105"))
        ledger.own.park(request)
        ledger.own.park(request)

    store.advance("105")
    store.advance("106")

    assert sorted(ledger.woken) == sorted([REQUEST, OTHER])


def test_a_request_that_was_not_parked_is_not_woken() -> None:
    store = FakeStore("100")
    ledger = Ledger(FakeSet(store))
    ledger.own.record(REQUEST, wrote("105"))

    store.advance("105")

    assert ledger.woken == []


class RacingStore(FakeStore):
    """Moves on in the moment when somebody begins to listen."""

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._rv = "105"
        return super().on_advance(callback)


def test_a_store_that_moves_between_comparing_and_listening_is_not_missed() -> None:
    store = RacingStore("100")
    ledger = Ledger(FakeSet(store))

    ledger.own.record(REQUEST, wrote("105"))

    assert ledger.own.is_clear(REQUEST)
    assert store.callbacks == []


def test_a_store_that_moves_while_the_request_is_parked_is_not_missed() -> None:
    """The last look before parking moves the store, on another thread's behalf."""

    class MovesWhenAsked(FakeStore):
        def rv(self) -> str:
            if self.callbacks and self._rv == "100":
                before, self._rv = self._rv, "105"
                for callback in list(self.callbacks):
                    callback()
                return before
            return self._rv

    store = MovesWhenAsked("100")
    ledger = Ledger(FakeSet(store))

    ledger.own.record(REQUEST, wrote("105"))

    assert not ledger.own.park(REQUEST)
