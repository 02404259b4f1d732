"""History that a program still needs is gone: it lists again, hears of what was deleted once, and of nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from informers import Backoff, WatchOptions

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

pytestmark = pytest.mark.lists

MANY = 100


def told(follower: Follower) -> list[tuple[str, str]]:
    return [(each.word, each.name) for each in follower.told()]


def cut_off(stage: Stage, follower: Follower) -> Any:
    """End the watch and let no new one in, so that the program misses what happens; remove the result to let it in."""
    stage.embedded.clear_requests()
    fault = stage.faults.rst(at="request", verb="watch", resource="configmaps")
    stage.faults.close("RST", resource="configmaps")
    follower.until(lambda: fault.hits, "the watch is not let in")
    return fault


def miss_changes(stage: Stage) -> None:
    stage.put("changed", "2")
    stage.delete("deleted")
    stage.delete("again")
    stage.put("again", "2")
    stage.put("new", "2")


def heard() -> list[tuple[str, str]]:
    """Return what a list tells: deletions first, then the rest in the order of the list."""
    return [
        ("tombstone", "again"),
        ("tombstone", "deleted"),
        ("added", "again"),
        ("modified", "changed"),
        ("added", "new"),
    ]


def expire_in_stream(stage: Stage, closed: Any) -> None:
    stage.faults.compact(resource="configmaps")
    closed.remove()


def expire_as_event(stage: Stage, closed: Any) -> None:
    stage.faults.ev(code=410, verb="watch", resource="configmaps", times=1)
    closed.remove()


def expire_as_status(stage: Stage, closed: Any) -> None:
    stage.faults.status(code=410, verb="watch", resource="configmaps", times=1)
    closed.remove()


@pytest.mark.parametrize("expire", [expire_in_stream, expire_as_event, expire_as_status])
def test_deletions_are_told_once_and_nothing_of_what_is_unchanged(
    breakable: Stage, expire: Callable[[Stage, Any], None]
) -> None:
    stage = breakable
    for number in range(MANY):
        stage.put(f"c{number}", "1")
    for name in ("changed", "deleted", "again"):
        stage.put(name, "1")
    follower = stage.follow()
    follower.until_watching()
    follower.forget()
    seen = follower.rv()
    closed = cut_off(stage, follower)
    miss_changes(stage)

    expire(stage, closed)
    follower.until(lambda: len(told(follower)) >= 5, "told")
    follower.until_watching()

    assert sorted(told(follower)[:2]) == heard()[:2]
    assert told(follower)[2:] == heard()[2:]
    assert follower.values() == stage.values()
    (listed,) = stage.lists()
    assert dict(listed.query) == {"resourceVersion": seen}
    tombstones = [delta for delta in follower.deltas() if delta.tombstone]
    assert all(delta.old is not None and delta.old.get("data", "v") == "1" for delta in tombstones)
    assert not stage.log.lines("step failed")
    stage.put("c1", "after")
    follower.until_value("c1", "after")


def test_unchanged_objects_cause_no_callback_and_no_reconcile(breakable: Stage) -> None:
    stage = breakable
    for number in range(MANY):
        stage.put(f"c{number}", "1")
    follower = stage.follow(start=False)
    seen: list[str] = []
    follower.manager.add_controller("look", lambda request: seen.append(request.ref.name), primary=stage.configmaps())
    stage.opened.enter_context(follower)
    follower.until(lambda: len(seen) == len(told(follower)) == MANY, "each is looked at once")
    follower.forget()

    for round_ in range(2):
        closed = cut_off(stage, follower)
        expire_as_status(stage, closed)
        follower.until(lambda: len(stage.lists()) == 1, "listed again")
        follower.until_watching()
        stage.put("sign", str(round_))
        follower.until_value("sign", str(round_)) if round_ else follower.until(lambda: told(follower), "told")

    assert {name for _, name in told(follower)} == {"sign"}
    assert len([name for name in seen if name != "sign"]) == MANY


def test_indexes_forget_what_was_deleted_while_nobody_looked(breakable: Stage) -> None:
    stage = breakable
    stage.put("stays", "a", labels={"group": "x"})
    stage.put("deleted", "a", labels={"group": "y"})
    follower = stage.follow()
    follower.until_watching()
    follower.lister.add_index("value", lambda obj: [str(obj.labels.get("group"))])
    assert follower.lister.index_values("value") == ["x", "y"]
    closed = cut_off(stage, follower)
    stage.delete("deleted")

    expire_in_stream(stage, closed)
    follower.until(lambda: ("tombstone", "deleted") in told(follower), "told")

    assert follower.lister.index_values("value") == ["x"]
    assert not follower.lister.by_index("value", "y")


@pytest.mark.parametrize("forced", [True, False])
def test_a_list_that_expires_on_page_two_is_made_again_in_one_piece(breakable: Stage, forced: bool) -> None:
    stage = breakable
    for number in range(7 if forced else 501):
        stage.embedded.put(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"c{number:03}", "namespace": stage.namespace},
                "data": {"v": "1"},
            }
        )
    stage.faults.nocache(verb="list")
    stage.faults.status(code=410, reason="Expired", verb="list", query={"continue": "*"}, times=1)

    follower = stage.follow(stage.configmaps(page_size=3 if forced else None))
    follower.until_watching()

    assert follower.values() == stage.values()
    assert len(follower.told()) == len(stage.values())
    first, second, third = [dict(request.query) for request in stage.lists()][:3]
    assert first == ({"limit": "3"} if forced else {"limit": "500", "resourceVersion": "0"})
    assert set(second) == {"limit", "continue"}
    assert third == ({} if forced else {"resourceVersion": "0"})


def test_a_list_that_fails_after_expiry_is_made_again(breakable: Stage) -> None:
    stage = breakable
    stage.put("deleted", "1")
    follower = stage.follow()
    follower.until_watching()
    closed = cut_off(stage, follower)
    stage.delete("deleted")
    stage.faults.status(code=500, verb="list", resource="configmaps", times=2)

    expire_in_stream(stage, closed)
    follower.until_value("deleted", None)

    statuses = [request.status for request in stage.lists()]
    assert statuses == [500, 500, 200]


def test_expiry_without_end_is_listed_with_growing_pauses(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    backoff = Backoff(0.05, 0.4)
    follower = stage.follow(watch=WatchOptions(backoff=backoff))
    follower.until_watching()
    follower.forget()
    stage.embedded.clear_requests()
    fault = stage.faults.ev(code=410, verb="watch", resource="configmaps", existing=True)
    follower.until(lambda: len(stage.lists()) >= 5, "listed again and again")
    fault.remove()

    at = [request.started for request in stage.lists()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    for number, gap in enumerate(gaps, start=1):
        assert gap >= min(0.4, 0.05 * 2**number) * 0.95
    assert all("resourceVersion" in request.query for request in stage.lists()[:2])
    # A list that is too old when it is complete, three times in a row: from now on in pages.
    assert "limit" in stage.lists()[-1].query
    assert not told(follower)
    stage.put("a", "2")
    follower.until_value("a", "2")


def test_a_hundred_expiries_keep_no_connection_open(breakable: Stage) -> None:
    stage = breakable
    follower = stage.follow(watch=WatchOptions(backoff=Backoff(0.001, 0.002)))
    follower.until_watching()
    follower.until(lambda: stage.embedded.state()["connections"] > 0, "connected")
    before = stage.embedded.state()["connections"]

    fault = stage.faults.ev(code=410, verb="watch", resource="configmaps", existing=True, times=100)
    follower.until(lambda: fault.hits == 100, "a hundred times")
    stage.put("a", "1")
    follower.until_value("a", "1")

    follower.until(lambda: stage.embedded.state()["connections"] <= before + 1, "closed what it had opened")
