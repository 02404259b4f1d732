"""A reconcile acts on a cache that has seen its last write, however late the watch is and whatever became of the answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from informers import GVR, Backoff, Controller, NotFoundError, NotSeenError, Request, Result
from informers.testing import settle

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

pytestmark = pytest.mark.lists  # what is there is not late

LATE = 100.0  # or when the story says so
CONFIGMAPS = GVR("", "v1", "configmaps")
PATIENCE = 60.0


def children(follower: Follower) -> list[str]:
    return [obj.name for obj in follower.lister.list(labels="child")]


def delay(stage: Stage) -> Any:
    """Hold every event back but those of what is labelled `parent`, until the result is removed."""
    return stage.faults.delay(
        seconds=LATE, what="events", verb="watch", resource="configmaps", query={"labelSelector": None}
    )


def add_parent(follower: Follower, stage: Stage, *, generated: bool) -> tuple[Controller, list[Request]]:
    """Have each ConfigMap labelled `parent` own one child: created if the cache shows none."""
    seen: list[Request] = []

    def reconcile(request: Request) -> None:
        seen.append(request)
        if follower.lister.find(request.ref) is None or children(follower):
            return
        metadata = {"generateName": "child-"} if generated else {"name": "child"}
        body: dict[str, Any] = {"metadata": {**metadata, "labels": {"child": "yes"}}, "data": {"v": "new"}}
        follower.manager.client.create(CONFIGMAPS, body, namespace=stage.namespace, field_manager="story")

    controller = follower.manager.add_controller(
        "parent", reconcile, primary=stage.configmaps(label_selector="parent"), retry=Backoff(0.01, 0.1)
    )
    return controller, seen


def posts(stage: Stage) -> int:
    return len(stage.embedded.requests(verb="create", resource="configmaps", client="story*"))


def test_a_late_watch_leads_to_no_second_child(breakable: Stage) -> None:
    stage = breakable
    late = delay(stage)
    stage.put("p", "1", labels={"parent": "yes"})
    follower = stage.follow(start=False)
    controller, seen = add_parent(follower, stage, generated=True)
    stage.opened.enter_context(follower)
    follower.until(lambda: posts(stage) == 1, "created")

    stage.put("p", "2", labels={"parent": "yes"})
    follower.until(controller.parked, "held back")
    assert not children(follower)
    assert len(seen) == 1
    late.remove()
    follower.until(lambda: len(seen) >= 2, "reconciled again")

    assert len(children(follower)) == 1
    settle(follower.manager)
    assert posts(stage) == 1


def test_an_answer_that_was_lost_leads_to_no_second_child(breakable: Stage) -> None:
    stage = breakable
    late = delay(stage)
    stage.faults.dropreply(verb="create", resource="configmaps", client="story*", times=1)
    stage.put("p", "1", labels={"parent": "yes"})
    follower = stage.follow(start=False)
    controller, seen = add_parent(follower, stage, generated=False)
    stage.opened.enter_context(follower)

    follower.until(controller.parked, "held back")
    assert len(seen) == 1
    late.remove()
    follower.until(lambda: len(seen) >= 2, "tried again")

    assert children(follower) == ["child"]
    settle(follower.manager)
    assert posts(stage) == 1
    assert len(stage.embedded.requests(verb="get", name="child", client="story*")) == 1


def test_an_update_whose_answer_was_lost_is_not_done_twice(breakable: Stage) -> None:
    stage = breakable
    late = stage.faults.delay(seconds=LATE, what="events", verb="watch", resource="configmaps")
    stage.faults.dropreply(verb="patch", resource="configmaps", client="story*", times=1)
    stage.put("counter", "0")
    follower = stage.follow(start=False)
    seen: list[str] = []

    def reconcile(request: Request) -> None:
        value = str(follower.lister.get(request.ref.name, stage.namespace).get("data", "v"))
        seen.append(value)
        if value == "0":
            follower.manager.client.patch(request.ref, {"data": {"v": "1"}}, field_manager="story")

    controller = follower.manager.add_controller(
        "count", reconcile, primary=stage.configmaps(), retry=Backoff(0.01, 0.1)
    )
    stage.opened.enter_context(follower)
    follower.until(controller.parked, "held back")
    late.remove()
    follower.until(lambda: len(seen) >= 2, "tried again")
    settle(follower.manager)

    assert seen[0] == "0"
    assert set(seen[1:]) == {"1"}
    assert len(stage.embedded.requests(verb="patch", resource="configmaps", client="story*")) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_deleted_object_is_not_deleted_again(breakable: Stage, lost: bool) -> None:
    stage = breakable
    late = delay(stage)
    if lost:
        stage.faults.dropreply(verb="delete", resource="configmaps", client="story*", times=1)
    stage.put("victim", "1")
    stage.put("p", "1", labels={"parent": "yes"})
    follower = stage.follow(start=False)
    shown: list[bool] = []

    def reconcile(request: Request) -> None:
        victim = follower.lister.find(stage.ref("victim"))
        shown.append(victim is not None)
        if victim is not None:
            follower.manager.client.delete(victim.ref, uid=victim.uid)

    controller = follower.manager.add_controller(
        "delete", reconcile, primary=stage.configmaps(label_selector="parent"), retry=Backoff(0.01, 0.1)
    )
    stage.opened.enter_context(follower)
    follower.until(lambda: shown, "deleted")
    stage.put("p", "2", labels={"parent": "yes"})
    follower.until(controller.parked, "held back")
    late.remove()
    follower.until(lambda: len(shown) >= 2, "reconciled again")
    settle(follower.manager)

    assert shown == [True] + [False] * (len(shown) - 1)
    assert len(stage.embedded.requests(verb="delete", resource="configmaps", client="story*")) == 1


def test_a_cache_that_does_not_come_holds_one_key_back_and_nobody_else(breakable: Stage) -> None:
    stage = breakable
    stage.put("held", "1")
    stage.put("other", "1")
    follower = stage.follow(start=False)
    looked: list[str] = []
    writes = threading.Event()

    def reconcile(request: Request) -> None:
        looked.append(request.ref.name)
        found = follower.lister.get(request.ref.name, stage.namespace)
        if writes.is_set() and request.ref.name == "held" and found.get("data", "v") == "1":
            follower.manager.client.patch(request.ref, {"data": {"v": "2"}}, field_manager="story")

    controller = follower.manager.add_controller("look", reconcile, primary=stage.configmaps())
    stage.opened.enter_context(follower)
    follower.until(lambda: sorted(looked) == ["held", "other"], "looked at")
    looked.clear()
    stage.faults.delay(seconds=60, what="events", verb="watch", resource="configmaps", existing=True)
    writes.set()

    controller.enqueue(stage.ref("held"))
    stage.embedded.wait_request(verb="patch", resource="configmaps", client="story*", timeout=PATIENCE)
    controller.enqueue(stage.ref("held"))
    follower.until(controller.parked, "held back")
    controller.enqueue(stage.ref("other"))
    follower.until(lambda: looked == ["held", "other"], "the other is looked at")
    follower.until(lambda: controller.parked() == (stage.ref("held"),), "held back all the time")
    stage.faults.clear()
    follower.until(lambda: looked in (["held", "other", "held", "held"], ["held", "other", "held"]), "let go")

    follower.until_value("held", "2")
    settle(follower.manager)
    assert len(stage.embedded.requests(verb="patch", resource="configmaps", client="story*")) == 1


def test_what_was_written_can_be_waited_for(stage: Stage) -> None:
    follower = stage.follow()
    follower.until_watching()

    version = stage.put("a", "1")
    follower.lister.wait_seen(stage.ref("a"), version, timeout=PATIENCE)

    assert follower.values() == {"a": "1"}
    with pytest.raises(NotSeenError):
        follower.lister.wait_seen(stage.ref("a"), str(int(version) + 10**9), timeout=0.1)


def test_many_objects_count_each_to_ten_and_write_each_number_once(stage: Stage) -> None:
    """Each reconcile reads the cache and writes one more: a stale read would count a number twice or meet a conflict."""
    names = [f"c{number}" for number in range(12)]
    for name in names:
        stage.put(name, "0")
    follower = stage.follow(start=False)
    writes: list[str] = []
    conflicts: list[Exception] = []
    lock = threading.Lock()

    def reconcile(request: Request) -> Result | None:
        found = follower.lister.find(request.ref)
        if found is None or int(str(found.get("data", "v"))) >= 10:
            return None
        patch = {
            "metadata": {"resourceVersion": found.resource_version},
            "data": {"v": str(int(str(found.get("data", "v"))) + 1)},
        }
        try:
            follower.manager.client.patch(request.ref, patch, field_manager="story")
        except Exception as error:
            conflicts.append(error)
            raise
        with lock:
            writes.append(request.ref.name)
        return Result(requeue_after=0.001)

    follower.manager.add_controller("count", reconcile, primary=stage.configmaps(), workers=4)
    stage.opened.enter_context(follower)
    follower.until(lambda: set(stage.values().values()) == {"10"}, "all have counted")
    settle(follower.manager)

    assert not conflicts
    assert len(writes) == 10 * len(names)


def test_an_object_that_is_gone_is_told_apart_from_one_that_was_never_there(stage: Stage) -> None:
    stage.put("a", "1")
    follower = stage.follow()
    follower.until_watching()

    stage.delete("a")
    follower.until_value("a", None)

    with pytest.raises(NotFoundError) as caught:
        follower.lister.get("a", stage.namespace)
    assert caught.value.status == 0
