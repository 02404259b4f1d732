"""A program starts, sees what is there, follows every change; started again it finds all unchanged and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from informers import GVR, Lister, Manager, Request, Result
from informers.testing import settle

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

SEEN = "example.com/seen"


def test_what_is_there_is_told_as_initial_and_each_change_once(stage: Stage) -> None:
    for number in range(5):
        stage.put(f"c{number}", "0")

    follower = stage.follow()
    follower.until_watching()
    assert follower.words() == {"initial": 5} or follower.words() == {"added": 5}
    stage.put("c1", "1")
    stage.put("new", "1")
    stage.delete("c2")
    follower.until_value("c2", None)

    assert [(told.word, told.name) for told in follower.told()[5:]] == [
        ("modified", "c1"),
        ("added", "new"),
        ("deleted", "c2"),
    ]
    assert follower.values() == follower.replayed() == stage.values()


def test_an_empty_namespace_syncs(stage: Stage) -> None:
    follower = stage.follow()

    follower.until_synced()

    assert follower.values() == {}
    stage.put("first", "1")
    follower.until_value("first", "1")


def test_deleted_and_made_again_is_another_object(stage: Stage) -> None:
    stage.put("twice", "1")
    follower = stage.follow()
    follower.until_watching()
    before = follower.lister.get("twice", stage.namespace).uid

    stage.delete("twice")
    stage.put("twice", "2")
    follower.until_value("twice", "2")

    assert [told.word for told in follower.told()[1:]] == ["deleted", "added"]
    assert follower.lister.get("twice", stage.namespace).uid != before


def test_label_and_field_selectors_let_objects_come_and_go(stage: Stage) -> None:
    stage.put("in", "1", labels={"app": "a"})
    stage.put("out", "1", labels={"app": "b"})
    follower = stage.follow(
        stage.configmaps(label_selector="app in (a)"), stage.configmaps(field_selector="metadata.name=out")
    )
    follower.until_watching(0)
    follower.until_watching(1)
    assert follower.values(0) == {"in": "1"}
    assert follower.values(1) == {"out": "1"}

    stage.put("out", "2", labels={"app": "a"})
    follower.until_value("out", "2")
    stage.put("in", "3", labels={"app": None})
    follower.until_value("in", None)

    follower.until_value("out", "2", which=1)
    assert follower.values(0) == {"out": "2"}


def test_pages_give_the_same_as_one_list(stage: Stage) -> None:
    for number in range(7):
        stage.put(f"c{number}", str(number))

    follower = stage.follow(stage.configmaps(page_size=2))
    follower.until_watching()

    assert follower.values() == stage.values()
    assert len(follower.told()) == 7
    stage.put("c3", "changed")
    follower.until_value("c3", "changed")


def keep_annotated(follower: Follower, stage: Stage) -> None:
    """Have the manager write a copy of each ConfigMap's value to its annotations, and an Event when it does."""
    manager: Manager = follower.manager
    lister: Lister = follower.lister

    def reconcile(request: Request) -> Result | None:
        found = lister.find(request.ref)
        if found is None or found.annotations.get(SEEN) == found.get("data", "v"):
            return None
        patch = {"metadata": {"annotations": {SEEN: found.get("data", "v")}}}
        manager.client.patch(request.ref, patch, field_manager="story")
        manager.events.event(found, type="Normal", reason="Seen", note="looked at it")
        return None

    manager.add_controller("annotate", reconcile, primary=stage.configmaps(), workers=2)


def test_a_second_start_writes_nothing_and_tells_nobody(stage: Stage) -> None:
    for number in range(10):
        stage.put(f"c{number}", "1")
    first = stage.follow(start=False)
    keep_annotated(first, stage)
    with first:
        first.until(lambda: all(obj.annotations.get(SEEN) for obj in first.read()), "annotated")
        settle(first.manager)
        first.until(lambda: event_count(stage) == 10, "told")
    before = versions(stage)
    events_before = event_count(stage)

    second = stage.follow(start=False)
    keep_annotated(second, stage)
    with second:
        second.until_watching()
        settle(second.manager)

    after = versions(stage)
    assert after == before
    assert len(after) == 10
    assert event_count(stage) == events_before == 10


def versions(stage: Stage) -> Mapping[str, str]:
    found = stage.client.list(GVR("", "v1", "configmaps"), namespace=stage.namespace)
    return {obj.name: obj.resource_version for obj in found}


def event_count(stage: Stage) -> int:
    return len(list(stage.client.list(GVR("events.k8s.io", "v1", "events"), namespace=stage.namespace)))
