"""The store: one order of versions, snapshots of the past, chains of events that lose nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informers.testing.apiserver.kinds import Kind, Kinds
from informers.testing.apiserver.storage import (
    Bucket,
    ChangedError,
    Continuation,
    Event,
    ExpiredError,
    Record,
    Store,
)

NAMES = ("a", "a.b", "b", "c")


def kind() -> Kind:
    found = Kinds().find("", "v1", "configmaps")
    assert found is not None
    return found


MAPS = kind()


def obj(name: str, value: str = "", namespace: str = "default") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name},
        "data": {"v": value},
    }


def bucket_of(store: Store) -> Bucket:
    return store.bucket(MAPS)


def snapshot(store: Store, rv: int) -> dict[str, bytes]:
    with store.lock:
        return {record.key: record.raw for record in store.bucket_locked(MAPS).snapshot_locked(rv)}


def replay(state: dict[str, bytes], event: Event | None) -> dict[str, bytes]:
    """Apply every event from one on."""
    while event is not None:
        if event.after is not None:
            state[event.after.key] = event.after.raw
        else:
            assert event.before is not None
            del state[event.before.key]
        event = event.next
    return state


def test_write_from_an_old_state_is_refused() -> None:
    store = Store()
    old = store.write(MAPS, obj("a"), expected=None)
    store.write(MAPS, obj("a", "new"), expected=old)

    with pytest.raises(ChangedError):
        store.write(MAPS, obj("a"), expected=None)
    with pytest.raises(ChangedError):
        store.write(MAPS, obj("a", "newer"), expected=old)
    with pytest.raises(ChangedError):
        store.remove(MAPS, old)


def test_refused_write_uses_no_version() -> None:
    store = Store()

    def refuse() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it is ours
        store.write(MAPS, obj("a"), expected=None, check=refuse)

    assert store.rv == 1
    assert store.write(MAPS, obj("a"), expected=None).rv == 2


def test_stored_bytes_begin_with_the_kind() -> None:
    record = Record(MAPS, {"data": {}, "metadata": {"name": "a"}, "apiVersion": "v1", "kind": "ConfigMap"}, 7)

    assert (
        record.raw == b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"},"data":{}}'
    )


def test_wait_for_a_version_ends_when_it_is_reached_or_the_store_closes() -> None:
    store = Store()
    store.write(MAPS, obj("a"), expected=None)

    assert store.wait_for_rv(2, 10) == 2
    store.close()
    assert store.wait_for_rv(99, 10) == 2


def test_compaction_of_one_bucket_leaves_others() -> None:
    store = Store()
    secrets = Kinds().find("", "v1", "secrets")
    assert secrets is not None
    store.write(MAPS, obj("a"), expected=None)
    store.write(secrets, obj("a"), expected=None)

    store.compact(storage=secrets.storage)

    with store.lock:
        assert store.bucket_locked(MAPS).subscribe_locked(1).next is not None
        with pytest.raises(ExpiredError) as caught:
            store.bucket_locked(secrets).subscribe_locked(1)
    assert caught.value.oldest == 3


def test_continue_token_is_read_as_it_was_printed() -> None:
    token = Continuation(7, "default/a\0").token()

    assert Continuation.parse(token) == Continuation(7, "default/a\0")


@pytest.mark.parametrize("token", ["", "x", "eyJ2IjoibWV0YSJ9", "e30", "////", "é"])
def test_continue_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="not valid"):
        Continuation.parse(token)


steps = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(("write", "remove", "compact"))), max_size=40)


@given(steps=steps, history=st.integers(1, 10))
def test_every_version_that_is_kept_replays_to_the_present(steps: list[tuple[str, str]], history: int) -> None:
    store = Store(history=history)
    past = {store.rv: snapshot(store, store.rv)}
    tails = {store.rv: bucket_of(store).tail}
    for number, (name, step) in enumerate(steps):
        current = store.find(MAPS, f"default/{name}")
        if step == "compact":
            store.compact()
        elif step == "write":
            store.write(MAPS, obj(name, str(number)), expected=current)
        elif current is not None:
            store.remove(MAPS, current)
        past[store.rv] = snapshot(store, store.rv)
        tails[store.rv] = bucket_of(store).tail

    present = snapshot(store, store.rv)
    bucket = bucket_of(store)
    for rv, state in past.items():
        assert replay(dict(state), tails[rv].next) == present  # who holds an event loses nothing
        if rv < bucket.expired:
            with store.lock, pytest.raises(ExpiredError):
                bucket.subscribe_locked(rv)
            continue
        assert snapshot(store, rv) == state
        with store.lock:
            start = bucket.subscribe_locked(rv)
        assert replay(dict(state), start.next) == present
    assert list(present) == sorted(present)
    with store.lock:
        assert len(bucket._window) - bucket._first <= history
