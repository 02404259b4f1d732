"""A cluster that is down keeps what it gave in force: nothing is taken for gone, and readers are woken when that ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from controllers.copier.outages import Outages
from controllers.copier.rules import PREFIX, Fate
from informers import GVR, ForbiddenError, InformersError, ObjectRef, TransportError
from informers.testing import FakeClock
from tests.controllers.copier.conftest import CONFIGMAPS, World

SEVERAL = {"here": "", "hub": "hub"}
HERE = ObjectRef(CONFIGMAPS, "a", "t")
THERE = ObjectRef(CONFIGMAPS, "a", "s", "hub")
SECRET_THERE = ObjectRef(GVR("", "v1", "secrets"), "a", "s", "hub")
BROKEN = TransportError("no answer")


@dataclass
class Fake:
    """What follows a kind, as it does."""

    state_: str = "watching"
    problem_: InformersError | None = None
    age_: float = 0.0

    def problem(self, cluster: str = "") -> InformersError | None:
        return self.problem_ if cluster == "hub" else None

    def age(self, cluster: str | None = None) -> float:
        return self.age_ if cluster == "hub" else 0.0

    def state(self, cluster: str = "") -> str:
        return self.state_ if cluster == "hub" else "watching"


def watched(*everywhere: Fake, clock: FakeClock) -> tuple[Outages, list[ObjectRef]]:
    outages = Outages(everywhere, clock)
    woken: list[ObjectRef] = []
    outages.wake = woken.append
    return outages, woken


def test_a_cluster_is_down_when_all_has_failed_for_half_a_minute_and_its_readers_are_woken() -> None:
    clock, kind = FakeClock(), Fake()
    outages, woken = watched(clock=clock)
    outages.note(HERE, [(THERE, kind)])
    kind.problem_, kind.age_ = BROKEN, 29.0
    outages.look()
    clock.advance(29)
    kind.age_ = 58.0
    outages.look()
    assert not outages.is_down("hub")

    clock.advance(1)
    kind.age_ = 59.0
    outages.look()

    assert outages.is_down("hub")
    assert woken == [HERE]
    outages.look()
    assert woken == [HERE]

    kind.problem_ = None
    assert not outages.is_down("hub")
    outages.look()
    assert woken == [HERE, HERE]


def test_a_success_meanwhile_begins_the_half_minute_anew() -> None:
    clock, kind = FakeClock(), Fake(problem_=BROKEN, age_=100.0)
    outages, _ = watched(clock=clock)
    outages.note(HERE, [(THERE, kind)])
    outages.look()
    clock.advance(29)
    kind.problem_ = None
    outages.look()
    kind.problem_ = BROKEN
    outages.look()
    clock.advance(29)

    outages.look()

    assert not outages.is_down("hub")


def test_a_success_that_nobody_saw_counts_as_well() -> None:
    clock, kind = FakeClock(), Fake(problem_=BROKEN, age_=100.0)
    outages, _ = watched(clock=clock)
    outages.note(HERE, [(THERE, kind)])
    outages.look()
    clock.advance(40)
    kind.age_ = 5.0

    outages.look()

    assert not outages.is_down("hub")


@pytest.mark.parametrize(
    ("other", "is_down"),
    [
        (Fake(), False),
        (Fake(problem_=ForbiddenError("no", status=403)), False),
        (Fake("forbidden", ForbiddenError("no", status=403)), True),
        (Fake("unserved"), True),
        (Fake("stopped"), True),
        (Fake("pending"), True),
        (Fake("syncing", BROKEN, inf), True),
    ],
)
def test_what_goes_well_there_or_is_answered_shows_that_it_is_not_down(other: Fake, is_down: bool) -> None:
    clock = FakeClock()
    outages, _ = watched(other, clock=clock)
    outages.note(HERE, [(THERE, Fake(problem_=BROKEN, age_=100.0))])
    outages.look()
    clock.advance(30)

    outages.look()

    assert outages.is_down("hub") is is_down


def test_what_is_read_in_the_own_cluster_and_what_is_read_no_more_is_not_watched() -> None:
    clock, kind = FakeClock(), Fake(problem_=BROKEN, age_=100.0)
    outages, woken = watched(clock=clock)
    outages.note(ObjectRef(CONFIGMAPS, "a", "t", "hub"), [(THERE, kind)])
    outages.note(HERE, [(THERE, kind), (SECRET_THERE, kind)])
    outages.forget(HERE)
    for _ in range(3):
        outages.look()
        clock.advance(30)

    assert not outages.is_down("hub")
    assert not woken
    assert not any(vars(outages)[name] for name in ("_read_from", "_readers", "_followed", "_failing_since", "_down"))


# --- what it means for rules -------------------------------------------------------------------------------------


def hub_source(world: World, **data: str) -> ObjectRef:
    annotations = {f"{PREFIX}allow-copy-to": "here/a/ConfigMap/t"}
    return world.put(CONFIGMAPS, "a", "s", cluster="hub", data=data, metadata={"annotations": annotations})


def cut_off(world: World) -> None:
    world.silent_since["hub"] = world.clock.monotonic()
    world.outages.look()
    world.clock.advance(30)
    world.outages.look()


def several(**policy: Any) -> World:
    return World(clusters=SEVERAL, **policy)


RULE = {"replace-data.k": "configmap:hub/a/s:data.k"}


def test_the_last_value_stays_in_force_while_the_sources_cluster_is_down() -> None:
    world = several()
    hub_source(world, k="1")
    target = world.target(RULE)
    world.look(target)

    cut_off(world)
    assert world.woken == [target]
    world.touch(target, data={"k": "drifted"})
    world.look(target)

    assert world.objects[target]["data"] == {"k": "1"}
    assert world.reasons() == ["Copied", "ClusterUnavailable"]
    assert "cluster hub does not answer" in world.events[-1][2]

    del world.silent_since["hub"]
    world.outages.look()
    assert world.woken == [target, target]
    hub_source(world, k="2")
    world.look(target)
    assert world.objects[target]["data"] == {"k": "2"}
    assert world.reasons()[2:] == ["Recovered"]


def test_nothing_is_removed_because_of_a_cluster_that_is_down_whatever_the_policy() -> None:
    world = several(on_source_missing=Fate.REMOVE)
    source = hub_source(world, k="1")
    target = world.target(RULE)
    world.look(target)
    cut_off(world)

    del world.objects[source]
    for _ in range(2):
        world.look(target)
        world.clock.advance(60)

    assert world.objects[target]["data"] == {"k": "1"}
    assert world.reasons() == ["Copied", "ClusterUnavailable"]


def test_what_is_told_of_a_cluster_that_is_down_is_the_same_with_and_without_the_source() -> None:
    told = []
    for exists in (True, False):
        world = several()
        target = world.target(RULE)
        if exists:
            world.put(CONFIGMAPS, "a", "s", cluster="hub", data={"k": "1"}, metadata={"annotations": {}})
        world.look(target)
        cut_off(world)
        world.look(target)
        told.append(json.dumps([world.events, world.patches]).replace("uid-2", "uid-1"))

    assert told[0] == told[1]
    assert "ClusterUnavailable" in told[0]


def test_a_cluster_that_has_said_nothing_yet_is_waited_for_without_a_word_and_then_told_of() -> None:
    world = several()
    world.mapper.is_silent = True
    target = world.target({**RULE, "replace-data.c": 'json:"v"'})

    result = world.look(target)

    assert result.requeue_after == pytest.approx(10)
    assert not world.patches
    assert not world.events
    assert world.names[target] == [("hub", "configmap")]

    world.clock.advance(10)
    world.look(target)
    assert world.objects[target]["data"] == {"c": "v"}
    assert sorted(world.reasons()) == ["ClusterUnavailable", "Copied"]
    assert "cluster hub has not said yet which kinds it serves" in str(world.events)

    world.mapper.is_silent = False
    hub_source(world, k="1")
    world.look(target)
    assert world.objects[target]["data"] == {"c": "v", "k": "1"}
