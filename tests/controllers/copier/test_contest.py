"""A field that somebody else writes too: corrected at once a few times, then ever less often, until there is peace."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controllers.copier.contest import CALM, FLIPS, Contest
from controllers.copier.rules import PREFIX
from informers import ForbiddenError, ObjectRef
from tests.controllers.copier.conftest import CONFIGMAPS, World

RULES = {"replace-data.user": "configmap:s:data.user"}


def fight(world: World, target: ObjectRef, *, seconds: float, pause: float = 0.0) -> list[float]:
    """Have a rival undo each write after a pause, for so long; return when the copier wrote."""
    start = world.clock.monotonic()
    written: list[float] = []
    while world.clock.monotonic() < start + seconds:
        sent = len(world.patches)
        wait = world.look(target).requeue_after
        if len(world.patches) > sent:
            written.append(world.clock.monotonic() - start)
            world.clock.advance(pause)
            world.touch(target, data={"user": f"rival-{len(written)}"})
        else:
            assert wait is not None
            world.clock.advance(wait)
    return written


def most_in_a_minute(written: list[float]) -> int:
    return max((sum(1 for other in written if at <= other < at + 60) for at in written), default=0)


def contested() -> tuple[World, ObjectRef]:
    """Return a target whose field was just undone for the sixth time within a minute."""
    world = World()
    world.source(user="old")
    target = world.target(RULES, data={"user": "", "host": "keep-me"})
    for number in range(FLIPS + 1):
        world.look(target)
        world.touch(target, data={"user": f"rival-{number}"})
    world.look(target)
    return world, target


def test_a_fight_is_bounded_and_told_once_with_the_rivals_name() -> None:
    world = World()
    world.source(user="old")
    target = world.target(RULES, data={"user": "", "host": "keep-me"})

    written = fight(world, target, seconds=4 * 3600)

    assert sum(1 for at in written if at < 60) <= 10
    assert most_in_a_minute([at for at in written if at >= 60]) <= 6
    assert sum(1 for at in written if at >= 3600) <= 3 * 3600 / 600 + 1
    assert world.reasons() == ["Copied", "Contested"]
    assert (
        world.events[-1][2] == "rule replace-data.user: data.user: rival changes it each time; the next try is in 10 s"
    )
    assert world.objects[target]["data"]["host"] == "keep-me"
    assert world.reads == 1


def test_the_writes_of_a_contested_rule_are_held_for_ten_seconds_then_twice_as_long_each_time() -> None:
    world = World()
    world.source(user="old")
    target = world.target(RULES)

    written = fight(world, target, seconds=3000)

    waits = [round(later - earlier) for earlier, later in pairwise(written)]
    assert waits == [0] * FLIPS + [10, 20, 40, 80, 160, 320, 600, 600, 600]


@pytest.mark.parametrize("pause", [9.0, 11.0, 13.0, 31.0])
def test_whoever_undoes_it_slowly_is_corrected_within_the_bound(pause: float) -> None:
    world = World()
    world.source(user="old")
    target = world.target(RULES)

    written = fight(world, target, seconds=3600, pause=pause)

    assert most_in_a_minute(written) <= 6
    assert ("Contested" in world.reasons()) == (60 / pause > FLIPS)


def test_other_rules_of_a_contested_target_are_not_slowed() -> None:
    world, target = contested()
    world.source("s2", k="1")
    annotations = {f"{PREFIX}replace-data.k": "configmap:s2:data.k"}
    world.touch(target, "test", metadata={"annotations": annotations})

    world.look(target)

    assert world.objects[target]["data"]["k"] == "1"
    assert world.objects[target]["data"]["user"] == f"rival-{FLIPS}"


@pytest.mark.parametrize("is_rule", [True, False])
def test_a_new_value_or_an_edited_rule_is_written_at_once_but_once(is_rule: bool) -> None:
    world, target = contested()
    sent = len(world.patches)
    if is_rule:
        annotations = {f"{PREFIX}replace-data.user": "configmap:a/s:data.user"}
        world.touch(target, "test", metadata={"annotations": annotations})
    else:
        world.source(user="new")
    world.look(target)
    assert world.objects[target]["data"]["user"] == ("old" if is_rule else "new")

    world.touch(target, data={"user": "rival again"})
    world.look(target)
    world.look(target)

    assert len(world.patches) == sent + 1
    assert world.reasons().count("Contested") == 1


def test_ten_minutes_without_a_flip_end_a_contest() -> None:
    world, target = contested()
    world.clock.advance(10)
    assert world.look(target).requeue_after == pytest.approx(CALM)
    world.clock.advance(CALM - 1)
    world.look(target)
    assert world.reasons() == ["Copied", "Contested"]

    world.clock.advance(1)
    world.look(target)
    assert world.reasons() == ["Copied", "Contested", "Recovered"]

    world.touch(target, data={"user": "rival"})
    world.look(target)
    assert world.objects[target]["data"]["user"] == "old"


def test_a_contested_rule_without_its_source_is_not_looked_at_all_the_time() -> None:
    world, target = contested()
    del world.objects[ObjectRef(CONFIGMAPS, "a", "s")]
    world.clock.advance(30)

    assert world.look(target).requeue_after is None


def test_a_rival_that_may_not_be_asked_for_is_nobody_known() -> None:
    world = World()
    world.source(user="old")
    target = world.target(RULES)
    world.read_errors = [ForbiddenError("no", status=403, reason="Forbidden")]

    fight(world, target, seconds=5)

    assert "another field manager, nobody knows which, changes it each time" in world.events[-1][2]


def test_a_conflict_in_between_is_no_flip() -> None:
    world = World()
    world.source(user="old")
    target = world.target(RULES)
    world.look(target)
    for number in range(FLIPS):
        world.touch(target, data={"user": f"rival-{number}"})
        world.look(target)
        for _ in range(20):
            world.touch(target, data={"other": "x"})
            world.look(target)

    assert world.objects[target]["data"]["user"] == "old"
    assert "Contested" not in world.reasons()


def test_a_path_that_is_kept_absent_and_a_merge_can_be_contested_too() -> None:
    world = World()
    world.source(user="old")
    target = world.target(
        {"rules": "- {op: remove, to: data.gone}", "merge-data": "configmap:s:data"}, data={"gone": ""}
    )
    for number in range(FLIPS + 1):
        world.look(target)
        world.touch(target, data={"user": f"rival-{number}", "gone": "back", f"other-{number}": "x"})

    world.look(target)

    (note,) = [note for _, reason, note in world.events if reason == "Contested"]
    assert "rule merge-data: data: rival" in note
    assert "rule rules[0] data.gone: data.gone: rival" in note
    assert world.reads == 1


@settings(deadline=None)  # the machine may be busy
@example([60.0, *[0.0] * 6])
@given(st.lists(st.floats(0, 1500), min_size=1, max_size=60))
def test_no_minute_sees_more_writes_than_promised(pauses: list[float]) -> None:
    contest, now = Contest(), 0.0
    contest.wrote(b"same", now)
    written, contested = [0.0], []
    for pause in pauses:
        now += pause
        assert contest.is_flip(b"same")
        contest.flip(now)
        if contest.is_held(b"same", now):
            now = contest.held_until
        contest.wrote(b"same", now)
        written.append(now)
        if contest.is_on:
            contested.append(now)

    # A fight may break out at any time; from when it is known to be one, it costs little.
    assert most_in_a_minute(written) <= 10
    assert all(sum(1 for other in written if at < other < at + 60) <= 5 for at in contested)
