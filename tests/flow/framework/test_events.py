"""Events are folded, counted and limited; rights that are missing are told once; nobody ever waits for them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from informers import GVR, Object, SystemClock

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

NEW = GVR("events.k8s.io", "v1", "events")
CORE = GVR("", "v1", "events")
STOPS = 10.0  # a stop on a busy machine


def events(stage: Stage, gvr: GVR = NEW) -> list[Object]:
    return list(stage.client.list(gvr, namespace=stage.namespace))


def begin(stage: Stage, kubeconfig: Path | None = None) -> tuple[Follower, Object]:
    stage.put("a", "1")
    follower = stage.follow(kubeconfig=kubeconfig)
    follower.until_watching()
    return follower, follower.lister.get("a", stage.namespace)


def test_an_event_says_who_said_what_about_whom(stage: Stage) -> None:
    follower, about = begin(stage)
    note = "ü" * 1000

    follower.manager.events.event(
        about, type="Warning", reason="R" * 200, note=note, action="Act", related=stage.ref("b")
    )
    follower.until(lambda: events(stage), "there")

    (event,) = events(stage)
    assert event.get("type") == "Warning"
    assert event.get("reason") == "R" * 128
    assert event.get("action") == "Act"
    assert len(str(event.get("note")).encode()) <= 1024
    assert str(event.get("note")).startswith("ü" * 500)
    assert event.get("reportingController") == "story"
    assert event.get("regarding", "uid") == about.uid
    assert (event.get("regarding", "kind"), event.get("regarding", "name")) == ("ConfigMap", "a")
    assert event.get("related", "name") == "b"
    assert str(event.get("eventTime")).endswith("Z")


def test_the_same_said_again_is_one_event_and_one_request(stage: Stage) -> None:
    follower, about = begin(stage)
    recorder = follower.manager.events

    for _ in range(200):
        recorder.event(about, type="Normal", reason="Same", note="the same")
    recorder.event(about, type="Normal", reason="Other", note="something else")
    follower.until(lambda: len(events(stage)) == 2, "there")

    assert sorted(str(event.get("reason")) for event in events(stage)) == ["Other", "Same"]
    if stage.server.embedded is not None:
        asked = stage.embedded.requests(resource="events", client="story*", method="POST")
        assert len(asked) == 2


def test_too_many_different_notes_are_folded_and_limited(stage: Stage) -> None:
    follower, about = begin(stage)

    for number in range(100):
        follower.manager.events.event(about, type="Normal", reason="Many", note=f"number {number}")
    follower.until(lambda: len(events(stage)) == 25, "as many as one object may have at once")
    follower.stop()

    notes = {str(event.get("note")) for event in events(stage)}
    assert len(notes) == 25
    assert notes == {f"number {number}" for number in range(25)}


def test_events_about_a_cluster_wide_object_are_in_the_default_namespace(stage: Stage) -> None:
    from informers import Selection

    namespaces = Selection(GVR("", "v1", "namespaces"), field_selector=f"metadata.name={stage.namespace}")
    follower = stage.follow(namespaces)
    follower.until_watching()

    follower.manager.events.event(follower.lister.get(stage.namespace), type="Normal", reason="Wide", note="here")

    def about_ours() -> list[Object]:
        found = stage.client.list(NEW, namespace="default")
        return [event for event in found if event.get("regarding", "name") == stage.namespace]

    follower.until(about_ours, "there")
    assert [event.get("reason") for event in about_ours()] == ["Wide"]


@pytest.mark.parametrize("code", [403, 404])
def test_where_the_newer_api_is_not_to_be_had_the_older_is_used(breakable: Stage, code: int) -> None:
    stage = breakable
    follower, about = begin(stage)
    fault = stage.faults.status(code=code, path="/apis/events.k8s.io/*", client="story*")

    for number in range(3):
        follower.manager.events.event(about, type="Normal", reason="Old", note=f"number {number}")
    follower.until(lambda: len(events(stage, CORE)) == 3, "there")

    assert fault.hits == 1
    assert {str(event.get("message")) for event in events(stage, CORE)} == {f"number {number}" for number in range(3)}


def rightless(stage: Stage) -> Path:
    """Make a user who may read ConfigMaps and nothing else."""
    if stage.server.real is None:
        stage.faults.deny(resource="events", client="story*")
        return stage.server.kubeconfig
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    return stage.server.real.user(f"mute-{stage.namespace}", namespaced={stage.namespace: rules})


def test_a_right_that_is_missing_is_told_once_and_not_asked_for_again(stage: Stage) -> None:
    follower, about = begin(stage, rightless(stage))

    for number in range(20):
        follower.manager.events.event(about, type="Normal", reason="Silent", note=f"number {number}")
    follower.until(lambda: stage.log.lines("events cannot be written"), "told")
    assert follower.stop() < STOPS

    assert len(stage.log.lines("events cannot be written")) == 1
    assert events(stage) == []
    if stage.server.embedded is not None:
        assert len(stage.embedded.requests(resource="events", client="story*")) == 2
    assert "warning" not in stage.log.levels()
    assert "error" not in stage.log.levels()


def test_events_never_block_and_overflow_is_dropped(stage: Stage) -> None:
    stage.put("a", "1")
    relay = stage.server.relay()
    follower = stage.follow(kubeconfig=relay.kubeconfig)
    follower.until_watching()
    about = follower.lister.get("a", stage.namespace)
    relay.freeze()
    clock = SystemClock()
    began = clock.monotonic()
    done = threading.Event()

    def talk() -> None:
        for number in range(1000):
            follower.manager.events.event(about, type="Normal", reason=f"Reason{number}", note="talks on")
        done.set()

    talkers = [threading.Thread(target=talk, name=f"talker-{number}") for number in range(3)]
    for talker in talkers:
        talker.start()
    for talker in talkers:
        talker.join(60)

    assert done.is_set()
    assert clock.monotonic() - began < 30
    assert len(follower.manager.events) <= 1000
    assert follower.stop() < STOPS


def test_an_event_that_met_an_error_comes_later(breakable: Stage) -> None:
    stage = breakable
    follower, about = begin(stage)
    stage.faults.status(code=503, resource="events", verb="create", times=1)

    follower.manager.events.event(about, type="Normal", reason="Late", note="comes")
    follower.until(lambda: events(stage), "there")

    assert [event.get("reason") for event in events(stage)] == ["Late"]


def test_what_is_only_tried_out_writes_nothing(stage: Stage) -> None:
    stage.put("a", "1")
    before = stage.client.get(stage.ref("a")).resource_version
    follower = stage.follow(dry_run=True, start=False)
    looked: list[str] = []

    def reconcile(request: object) -> None:
        found = follower.lister.get("a", stage.namespace)
        client = follower.manager.client
        client.patch(found.ref, {"data": {"v": "2"}}, field_manager="story")
        client.create(found.ref.gvr, {"metadata": {"name": "b"}}, namespace=stage.namespace, field_manager="story")
        client.delete(found.ref)
        follower.manager.events.event(found, type="Normal", reason="Tried", note="tried out")
        looked.append("a")

    follower.manager.add_controller("try", reconcile, primary=stage.configmaps(), own_writes=False)
    with follower:
        follower.until(lambda: looked, "tried out")

    assert stage.values() == {"a": "1"}
    assert stage.client.get(stage.ref("a")).resource_version == before
    assert events(stage) == []
    assert [line["note"] for line in stage.log.lines("event")] == ["tried out"]
