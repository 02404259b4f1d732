from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from informers import metrics
from informers.cache.store import Delta, Mailbox, Received, Store, StoreWriter, is_at_least
from informers.logs import Throttle
from informers.meta.errors import ConfigError
from informers.meta.objects import Object
from informers.meta.resources import GVR
from informers.meta.selectors import parse_fields, parse_labels
from informers.testing.clock import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")


def make(name: str, rv: int | str, uid: str = "", *, color: str = "", bodies: Store | None = None) -> Object:
    labels = {"color": color} if color else {}
    metadata = {"name": name, "namespace": "n", "uid": uid or f"u-{name}", "resourceVersion": str(rv), "labels": labels}
    raw = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"rv": str(rv)}})
    return Object.parse(raw.encode(), CONFIGMAPS, bodies=bodies)


def new_store(**options: Any) -> tuple[Store, StoreWriter]:
    store = Store(CONFIGMAPS, throttle=Throttle(FakeClock()), **options)
    return store, StoreWriter(store)


def fill(writer: StoreWriter, *objects: Object, rv: str = "10") -> None:
    replacement = writer.replacement()
    for obj in objects:
        if not replacement.keep_unchanged(obj.ref.key, obj.uid, obj.resource_version):
            replacement.add(Received(obj))
    writer.replace(replacement, rv)


def taken(store: Store, mailbox: Mailbox) -> list[Delta]:
    assert store.begin_draining(mailbox)
    found: list[Delta] = []
    while batch := store.take(mailbox):
        found.extend(delta for delta in batch if delta is not None)
    return found


def told(deltas: Iterable[Delta]) -> list[tuple[str, str, str]]:
    """Deltas as (name, old version, new version)."""
    return [
        (
            delta.ref.name,
            delta.old.resource_version if delta.old else "",
            delta.new.resource_version if delta.new else "",
        )
        for delta in deltas
    ]


# Versions.


@given(st.integers(1, 10**30), st.integers(1, 10**30))
def test_versions_compare_as_numbers(a: int, b: int) -> None:
    assert is_at_least(str(a), str(b)) is (a >= b)


@given(st.text(max_size=6), st.text(max_size=6))
def test_comparing_any_text_as_a_version_never_raises(a: str, b: str) -> None:
    assert is_at_least(a, b) in {True, False, None}


@pytest.mark.parametrize("rv", ["", "0", "01", "-1", "1.0", "x", "\uff11", "²", "1 ", "٣"])
def test_what_is_no_version_number_cannot_be_compared(rv: str) -> None:
    assert is_at_least(rv, "5") is None
    assert is_at_least("5", rv) is None


# A list.


def test_a_list_is_told_deletions_first_then_the_rest_in_its_order() -> None:
    store, writer = new_store()
    fill(writer, make("a", 1), make("b", 2), make("c", 3))
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)

    fill(writer, make("z", 11), make("c", 12), make("b", 2), rv="20")

    assert told(taken(store, mailbox)) == [("a", "1", ""), ("z", "", "11"), ("c", "3", "12")]
    assert store.rv() == "20"


def test_a_deletion_found_by_a_list_is_a_tombstone_with_the_last_known_state() -> None:
    store, writer = new_store()
    last = make("a", 1)
    fill(writer, last)
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)

    fill(writer)

    assert taken(store, mailbox) == [Delta(last.ref, last, None, tombstone=True)]


def test_a_list_of_unchanged_objects_tells_nothing_and_keeps_the_very_objects() -> None:
    store, writer = new_store()
    first = [make(f"o{n}", n + 1) for n in range(100)]
    fill(writer, *first)
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)

    fill(writer, *(make(f"o{n}", n + 1) for n in range(100)), rv="500")

    assert taken(store, mailbox) == []
    assert {id(obj) for obj in store.list()} == {id(obj) for obj in first}


def test_another_uid_in_a_list_is_a_deletion_and_an_addition() -> None:
    store, writer = new_store()
    fill(writer, make("a", 1, "one"), make("b", 1))
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)

    fill(writer, make("b", 9), make("a", 8, "two"))

    deltas = taken(store, mailbox)
    assert told(deltas) == [("a", "1", ""), ("b", "1", "9"), ("a", "", "8")]
    assert deltas[0].tombstone


def test_the_objects_of_the_first_list_are_initial_and_later_ones_are_not() -> None:
    store, writer = new_store()
    mailbox = store.subscribe(lambda delta: None)

    fill(writer, make("a", 1))
    fill(writer, make("a", 1), make("b", 2))

    assert [(delta.ref.name, delta.initial) for delta in taken(store, mailbox)] == [("a", True), ("b", False)]


def test_a_list_that_lags_does_not_take_an_object_back_in_time() -> None:
    store, writer = new_store()
    fill(writer, make("a", 50))

    fill(writer, make("a", 40), rv="60")

    found = store.get("n/a")
    assert found is not None
    assert found.resource_version == "50"


def test_an_empty_first_list_fills_the_store() -> None:
    store, writer = new_store()
    assert not store.is_filled()

    fill(writer)

    assert store.is_filled()


# Events.


def test_an_older_state_of_the_same_object_is_dropped() -> None:
    store, writer = new_store()
    fill(writer, make("a", 50), rv="50")

    assert not writer.apply(Received(make("a", 49)))

    assert [obj.resource_version for obj in store.list()] == ["50"]
    assert store.rv() == "50"


def test_a_coalesced_recreation_is_shown_as_deletion_and_addition() -> None:
    store, writer = new_store()
    fill(writer, make("a", 1, "one"))
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)

    writer.apply(Received(make("a", 12, "two")))

    assert told(taken(store, mailbox)) == [("a", "1", ""), ("a", "", "12")]


def test_a_deletion_of_a_predecessor_is_ignored() -> None:
    store, writer = new_store()
    fill(writer, make("a", 12, "two"))

    assert not writer.delete(make("a", 11, "one"))

    assert store.get("n/a") is not None


def test_a_watched_deletion_carries_the_final_state() -> None:
    store, writer = new_store()
    fill(writer, make("a", 1))
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)
    final = make("a", 15)

    writer.delete(final)

    assert taken(store, mailbox) == [Delta(final.ref, final, None)]
    assert store.rv() == "15"


def test_the_version_never_moves_backwards_with_bookmarks_but_takes_what_cannot_be_compared() -> None:
    store, writer = new_store()
    fill(writer, rv="50")

    writer.bookmark("40")
    assert store.rv() == "50"
    writer.bookmark("opaque")
    assert store.rv() == "opaque"


# Handlers.


def test_a_handler_gets_what_is_there_once_and_each_later_change_once_wherever_it_is_added() -> None:
    """The store is changed by one thread while others subscribe; each replay gives the store's content."""
    store, writer = new_store()
    fill(writer, *(make(f"o{n}", n + 1) for n in range(5)))
    start = threading.Barrier(5)
    found: list[list[Delta]] = []
    mailboxes: list[Mailbox] = []

    def subscribe() -> None:
        start.wait()
        mailboxes.extend(store.subscribe(lambda delta: None) for _ in range(20))

    threads = [threading.Thread(target=subscribe) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    for n in range(200):
        writer.apply(Received(make(f"o{n % 7}", 1000 + n)))
        if n % 9 == 0:
            writer.delete(make(f"o{n % 7}", 1000 + n))
    for thread in threads:
        thread.join()
    found = [taken(store, mailbox) for mailbox in mailboxes]

    expected = {obj.name: obj.resource_version for obj in store.list()}
    for deltas in found:
        content: dict[str, str] = {}
        for delta in deltas:
            assert (
                content.get(delta.ref.name, "") == ("" if delta.old is None else delta.old.resource_version)
                or delta.new is None
            )
            if delta.new is None:
                del content[delta.ref.name]
            else:
                assert content.get(delta.ref.name) != delta.new.resource_version
                content[delta.ref.name] = delta.new.resource_version
        assert content == expected


def test_what_was_collected_for_a_handler_taken_off_is_dropped() -> None:
    store, writer = new_store()
    fill(writer, make("a", 1))
    mailbox = store.subscribe(lambda delta: None)

    store.unsubscribe(mailbox)
    store.unsubscribe(mailbox)
    writer.apply(Received(make("a", 12)))

    assert taken(store, mailbox) == []


# Indexes.


def test_built_in_indexes_need_not_be_added() -> None:
    store, writer = new_store()
    fill(writer, make("a", 1, color="red"), make("b", 2, color="blue"))

    assert [obj.name for obj in store.by_index("label:color", "red")] == ["a"]
    assert store.index_values("namespace") == ["n"]
    assert [obj.name for obj in store.list("n")] == ["a", "b"]
    assert store.index_values("owner-uid") == []


def test_an_unknown_index_is_an_error() -> None:
    store, _ = new_store()

    with pytest.raises(ConfigError, match="'nope'"):
        store.by_index("nope", "x")


def test_the_same_name_with_another_function_is_an_error_and_with_the_same_is_not() -> None:
    store, _ = new_store()

    def function(obj: Object) -> Iterable[str]:
        return (obj.name,)

    store.add_index("x", function)

    store.add_index("x", function)
    with pytest.raises(ConfigError):
        store.add_index("x", lambda obj: (obj.name,))


def test_an_index_function_that_raises_leaves_the_object_without_values_until_its_next_change() -> None:
    store, writer = new_store()
    store.add_index("color", lambda obj: (obj.labels["color"],))

    fill(writer, make("a", 1), make("b", 2, color="red"))
    assert store.index_values("color") == ["red"]
    writer.apply(Received(make("a", 12, color="blue")))

    assert store.index_values("color") == ["blue", "red"]


def test_no_value_stays_that_no_object_has() -> None:
    store, writer = new_store()
    store.add_index("rv", lambda obj: (obj.resource_version, "all"))
    fill(writer, make("a", 1))

    for n in range(2, 1000):
        writer.apply(Received(make("a", n)))
    writer.delete(make("a", 1000))

    assert store.index_values("rv") == []
    assert store._indexer._keys["rv"] == {}
    assert store._indexer._values["rv"] == {}


def test_an_index_added_while_the_store_changes_is_complete() -> None:
    """The function itself changes the store in the middle, which is the worst moment there is."""
    store, writer = new_store()
    fill(writer, make("a", 1, color="red"), make("b", 2, color="red"))
    calls = iter(range(100))

    def color(obj: Object) -> Iterable[str]:
        match next(calls):
            case 0:
                writer.apply(Received(make("b", 12, color="blue")))
            case 2:
                writer.delete(make("a", 13))
        return (obj.labels["color"],)

    store.add_index("color", color)

    assert store.index_values("color") == ["blue"]


@pytest.mark.parametrize("is_kept", [True, False], ids=["its body has come", "its body has gone"])
def test_an_index_added_in_the_moment_when_a_body_comes_or_goes_has_that_object(*, is_kept: bool) -> None:
    store, writer = selective()
    name = "other" if is_kept else "wanted"
    changes = iter([True])

    def color(obj: Object) -> Iterable[str]:
        if obj.name == name and next(changes, False):
            if is_kept:
                writer.refer("n/other")
                writer.complete(make("other", 5))
            else:
                writer.unrefer("n/wanted", metadata_of)
        return (obj.name,)

    store.add_index("color", color)

    assert has_body(store, name) is is_kept
    assert store.index_values("color") == ["other", "wanted"]


def test_values_that_come_and_go_with_lists_leave_nothing_behind() -> None:
    """An index that keeps a bucket for each value it ever had grows for ever: kubernetes/kubernetes#84959."""
    store, writer = new_store()
    store.add_index("rv", lambda obj: [f"{obj.resource_version}-{n}" for n in range(100)])

    for n in range(50):
        fill(writer, make("a", 10 + n), make("b", 100 + n), make(f"o{n}", 10), rv=str(200 + n))
    assert len(store.index_values("rv")) == 300
    fill(writer, rv="300")

    assert store._indexer._keys["rv"] == {}
    assert store._indexer._values["rv"] == {}


# Bodies.


def test_decoded_bodies_are_shared_bounded_and_dropped_when_their_object_changes() -> None:
    store, writer = new_store()
    fill(writer, *(make(f"o{n}", n + 1, bodies=store) for n in range(300)))

    first = store.get("n/o1")
    assert first is not None
    assert first.body is first.body
    for obj in store.list():
        assert obj.body["data"] == {"rv": obj.resource_version}
    assert len(store._bodies) == 128
    last = store.list()[-1]
    writer.apply(Received(make(last.name, 999, bodies=store)))

    assert last.ref.key not in store._bodies
    assert last.get("data", "rv") == last.resource_version  # who holds the old state still reads the old state
    assert last.ref.key not in store._bodies


def test_a_store_tells_what_it_would_select() -> None:
    store, _ = new_store(
        namespace="n", labels=parse_labels("color=red"), fields=parse_fields("data.rv=7,metadata.name!=b")
    )

    assert store.selects(make("a", 7, color="red"))
    assert not store.selects(make("a", 8, color="red"))
    assert not store.selects(make("a", 7, color="blue"))
    assert not store.selects(make("b", 7, color="red"))


# Bodies only of what is referred to.


def halves(name: str, rv: int, uid: str = "") -> Received:
    whole = make(name, rv, uid)
    body = json.loads(whole.raw)
    del body["data"]
    return Received(whole, Object.parse(json.dumps(body).encode(), CONFIGMAPS))


def metadata_of(obj: Object) -> Object:
    return halves(obj.name, int(obj.resource_version), obj.uid).metadata  # type: ignore[return-value] # never None here


def selective() -> tuple[Store, StoreWriter]:
    store, writer = new_store()
    writer.keep_only_referred()
    replacement = writer.replacement()
    writer.refer("n/wanted")
    for name in ("wanted", "other"):
        replacement.add(halves(name, 5))
    writer.replace(replacement, "10")
    return store, writer


def has_body(store: Store, name: str) -> bool:
    found = store.get(f"n/{name}")
    assert found is not None
    return "data" in found.body


def test_only_what_is_referred_to_keeps_its_body() -> None:
    store, _ = selective()

    assert (has_body(store, "wanted"), has_body(store, "other")) == (True, False)
    assert not store.lacks_body("n/wanted")
    assert not store.lacks_body("n/other")


def test_a_later_reference_lacks_its_body_until_it_is_completed() -> None:
    store, writer = selective()

    assert writer.refer("n/other")
    assert store.lacks_body("n/other")
    assert writer.complete(make("other", 5))

    assert not store.lacks_body("n/other")
    assert has_body(store, "other")


def test_the_body_goes_with_the_last_reference() -> None:
    store, writer = selective()
    writer.refer("n/wanted")

    writer.unrefer("n/wanted", metadata_of)
    assert has_body(store, "wanted")
    writer.unrefer("n/wanted", metadata_of)

    assert not has_body(store, "wanted")


def test_handlers_hear_of_a_change_that_completing_brought_in_when_its_event_comes() -> None:
    store, writer = selective()
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)
    writer.refer("n/other")

    assert writer.complete(make("other", 20))
    assert taken(store, mailbox) == []
    writer.apply(halves("other", 15))  # an event on the way: the store does not go back
    assert taken(store, mailbox) == []
    writer.apply(halves("other", 20))

    assert told(taken(store, mailbox)) == [("other", "5", "20")]


def test_handlers_hear_of_a_change_that_completing_brought_in_when_a_list_comes_instead() -> None:
    store, writer = selective()
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)
    writer.refer("n/other")
    writer.complete(make("other", 20))

    replacement = writer.replacement()
    for received in (halves("wanted", 5), halves("other", 20)):
        if not replacement.keep_unchanged(received.whole.ref.key, received.whole.uid, received.whole.resource_version):
            replacement.add(received)
    writer.replace(replacement, "30")

    assert told(taken(store, mailbox)) == [("other", "5", "20")]
    assert has_body(store, "other")


def by_reading(writer: StoreWriter) -> None:
    assert writer.complete(make("other", 5))


def by_a_list(writer: StoreWriter) -> None:
    replacement = writer.replacement()
    replacement.add(halves("wanted", 5))
    replacement.add(halves("other", 5))
    writer.replace(replacement, "30")


def by_an_event(writer: StoreWriter) -> None:
    writer.apply(halves("other", 5))


@pytest.mark.parametrize("complete", [by_reading, by_a_list, by_an_event])
@pytest.mark.parametrize("was_missed", [True, False], ids=["missed", "nobody asked"])
def test_handlers_look_again_when_a_body_comes_that_somebody_had_to_do_without(
    complete: Callable[[StoreWriter], None], was_missed: bool
) -> None:
    store, writer = selective()
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)
    writer.refer("n/other")
    if was_missed:
        assert store.look_up("n/other")[1]

    complete(writer)
    complete(writer) if complete is not by_reading else None

    assert has_body(store, "other")
    assert told(taken(store, mailbox)) == ([("other", "5", "5")] if was_missed else [])


def test_a_reference_may_be_taken_back_before_it_is_given() -> None:
    """Two threads do it, and nobody says which is first."""
    store, writer = selective()

    writer.unrefer("n/other", metadata_of)
    assert not writer.wants_body("n/other")
    assert not writer.refer("n/other")

    assert not store.lacks_body("n/other")
    assert not writer.wants_body("n/other")
    assert writer.refer("n/other")
    assert store._referred == {"n/wanted": 1, "n/other": 1}


@pytest.mark.parametrize(
    ("rv", "uid"), [(4, ""), (5, "another"), (9, "another")], ids=["older", "other object", "successor"]
)
def test_what_does_not_complete_the_object_that_is_there_is_not_taken_in(rv: int, uid: str) -> None:
    store, writer = selective()
    writer.refer("n/other")

    assert not writer.complete(make("other", rv, uid))

    assert store.lacks_body("n/other")


def test_completing_never_brings_a_deleted_object_back() -> None:
    store, writer = selective()
    writer.refer("n/other")
    writer.delete(make("other", 12))

    assert not writer.complete(make("other", 5))

    assert store.get("n/other") is None


def test_a_reference_that_comes_while_a_list_is_collected_is_lacking_afterwards() -> None:
    """The list's bytes are gone by then; whoever refers completes it when it reads the next time."""
    store, writer = selective()
    replacement = writer.replacement()
    reduced = metadata_of(make("late", 7))
    replacement.add(Received(reduced, reduced))

    writer.refer("n/late")
    writer.replace(replacement, "20")

    assert store.lacks_body("n/late")


# The whole, against a naive model.

names = st.sampled_from(["a", "b", "c"])
uids = st.sampled_from(["u1", "u2"])
colors = st.sampled_from(["red", "blue", ""])


class StoreMachine(RuleBasedStateMachine):
    """Everything that can be done to a store, in any order, next to a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.writer = new_store()
        self.model: dict[str, Object] = {}
        self.rv = 0
        self.is_filled = False
        self.replays: list[tuple[Mailbox, dict[str, Object]]] = []
        self.indexes: list[str] = []

    def next_rv(self) -> int:
        self.rv += 1
        return self.rv

    def make(self, name: str, uid: str, color: str) -> Object:
        return make(name, self.next_rv(), uid, color=color)

    @rule(items=st.dictionaries(names, st.tuples(uids, colors, st.booleans())))
    def replace(self, items: dict[str, tuple[str, str, bool]]) -> None:
        listed = [
            self.model[f"n/{name}"] if keep and f"n/{name}" in self.model else self.make(name, uid, color)
            for name, (uid, color, keep) in items.items()
        ]
        fill(self.writer, *listed, rv=str(self.next_rv()))
        self.model = {obj.ref.key: obj for obj in listed}
        self.is_filled = True

    @precondition(lambda self: self.is_filled)
    @rule(name=names, uid=uids, color=colors)
    def apply(self, name: str, uid: str, color: str) -> None:
        obj = self.make(name, uid, color)
        assert self.writer.apply(Received(obj))
        self.model[obj.ref.key] = obj

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def apply_what_is_old(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(sorted(self.model.values(), key=lambda obj: obj.ref.key)))
        if int(known.resource_version) > 1:
            assert not self.writer.apply(Received(make(known.name, int(known.resource_version) - 1, known.uid)))

    @precondition(lambda self: self.is_filled)
    @rule(name=names, uid=uids)
    def delete(self, name: str, uid: str) -> None:
        obj = self.make(name, uid, "")
        assert self.writer.delete(obj) is (obj.ref.key in self.model)
        self.model.pop(obj.ref.key, None)

    @precondition(lambda self: self.is_filled)
    @rule()
    def bookmark(self) -> None:
        self.writer.bookmark(str(self.next_rv()))

    @precondition(lambda self: len(self.indexes) < 3)
    @rule()
    def add_index(self) -> None:
        name = f"colors-{len(self.indexes)}"
        self.store.add_index(name, lambda obj: [*obj.labels.values(), *obj.labels.values(), obj.uid])
        self.indexes.append(name)

    @rule()
    def subscribe(self) -> None:
        self.replays.append((self.store.subscribe(lambda delta: None), {}))

    @rule()
    def resync(self) -> None:
        for mailbox, _ in self.replays:
            self.store.show_again(mailbox)

    @rule()
    def unserve(self) -> None:
        self.writer.clear()
        self.model = {}

    @invariant()
    def store_is_the_model(self) -> None:
        assert list(self.store.list()) == [self.model[key] for key in sorted(self.model)]
        assert len(self.store) == len(self.model)
        assert self.store.size() == sum(len(obj.raw) for obj in self.model.values())
        for key in ("n/a", "n/b", "n/c"):
            assert self.store.get(key) is self.model.get(key)

    @invariant()
    def indexes_are_what_they_would_be_from_scratch(self) -> None:
        for name in [*self.indexes, "label:color", "namespace"]:
            wanted: dict[str, list[str]] = {}
            for key, obj in sorted(self.model.items()):
                colors = [obj.labels["color"]] if "color" in obj.labels else []
                found = {"label:color": colors, "namespace": ["n"]}.get(name, [*colors, obj.uid])
                for value in found:
                    wanted.setdefault(value, []).append(key)
            assert list(self.store.index_values(name)) == sorted(wanted)
            for value, keys in wanted.items():
                assert [obj.ref.key for obj in self.store.by_index(name, value)] == keys
            assert all(self.store._indexer._keys[name].values())
            assert all(self.store._indexer._values[name].values())

    @invariant()
    def handlers_know_what_is_there(self) -> None:
        for mailbox, content in self.replays:
            for delta in taken(self.store, mailbox):
                if delta.new is None:
                    del content[delta.ref.key]
                else:
                    if delta.old is None:
                        assert delta.ref.key not in content
                    content[delta.ref.key] = delta.new
            if self.is_filled:
                assert content == self.model


StoreMachine.TestCase.settings = settings(stateful_step_count=25, deadline=None)
test_store_and_indexes_are_like_a_dictionary = StoreMachine.TestCase


def test_a_whole_state_that_comes_once_more_is_taken_in_by_who_lacks_it() -> None:
    store, writer = selective()
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)
    writer.refer("n/other")

    writer.apply(halves("other", 5))

    assert has_body(store, "other")
    assert not store.lacks_body("n/other")
    assert taken(store, mailbox) == []


# A server that was set back.


def test_the_newest_list_holds_although_what_was_seen_before_is_newer() -> None:
    store, writer = new_store()
    fill(writer, make("a", 30), make("b", 31), rv="40")
    mailbox = store.subscribe(lambda delta: None)
    taken(store, mailbox)
    replacement = writer.replacement()
    replacement.add(Received(make("a", 7)))

    writer.replace(replacement, "9", is_newest=True)

    assert told(taken(store, mailbox)) == [("b", "31", ""), ("a", "30", "7")]
    assert store.rv() == "9"
    assert writer.apply(Received(make("a", 10)))


def test_what_was_completed_while_the_newest_list_was_on_its_way_stays() -> None:
    store, writer = selective()
    writer.refer("n/other")
    replacement = writer.replacement()
    replacement.add(halves("wanted", 5))
    replacement.add(halves("other", 5))
    assert writer.complete(halves("other", 8).whole)

    writer.replace(replacement, "7", is_newest=True)

    found = store.get("n/other")
    assert found is not None
    assert found.resource_version == "8"
    assert has_body(store, "other")


def test_a_store_tells_whether_handlers_have_been_told_everything() -> None:
    store, writer = new_store()
    mailbox = store.subscribe(lambda delta: None)
    assert not store.is_delivering()

    fill(writer, make("a", 1))
    assert store.is_delivering()
    assert store.begin_draining(mailbox)
    store.take(mailbox)
    assert store.is_delivering()
    store.take(mailbox)
    assert not store.is_delivering()


def test_an_index_added_while_an_object_is_looked_at_has_that_object() -> None:
    store, writer = new_store()

    def color(obj: Object) -> Iterable[str]:
        store.add_index("names", name_of)
        return (obj.labels["color"],)

    def name_of(obj: Object) -> Iterable[str]:
        return (obj.name,)

    store.add_index("color", color)

    writer.apply(Received(make("a", 1, color="red")))

    assert store.index_values("names") == ["a"]


def test_an_index_function_that_fails_is_counted_each_time_and_told_once_for_each_object(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, writer = new_store()
    count = metrics.counter("informers_index_errors_total", "", ("cluster", "resource"))
    before = count.total()
    store.add_index("broken", lambda obj: (obj.labels["none"],))

    for name, rv in (("a", 1), ("a", 2), ("b", 3)):
        writer.apply(Received(make(name, rv)))

    assert count.total() == before + 3
    assert [record.message for record in caplog.records] == ["index function failed"] * 2
