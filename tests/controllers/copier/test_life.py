"""What becomes of values whose source is missing, whose rule is gone, or which left their source."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from controllers.copier.namespaces import NAMESPACES
from controllers.copier.rules import PREFIX, Fate
from informers import (
    ConflictError,
    ForbiddenError,
    NotSyncedError,
    ObjectRef,
    ServerError,
)
from tests.controllers.copier.conftest import CONFIGMAPS, WIDGETS, World, be_picky, refused

SOURCE = ObjectRef(CONFIGMAPS, "a", "s")


@pytest.fixture
def removing() -> World:
    """A copier that removes what has lost its source or its rule, in a namespace that is there to stay."""
    return removing_world()


def removing_world() -> World:
    world = World(on_source_missing=Fate.REMOVE, on_rule_removed=Fate.REMOVE)
    world.put(NAMESPACES, "", "a")
    return world


def data(world: World, target: ObjectRef) -> Any:
    return world.objects[target].get("data")


def lose(world: World, target: ObjectRef, source: ObjectRef = SOURCE) -> None:
    """Delete a source, and let the copier look at once and after the time in which it may come back."""
    del world.objects[source]
    assert world.look(target).requeue_after == pytest.approx(2)
    world.clock.advance(2)
    world.look(target)


# --- a missing source ------------------------------------------------------------------------------------------------


def test_a_value_goes_with_its_source_after_a_second_look(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k"}, data={"own": "x"})
    removing.look(target)
    del removing.objects[SOURCE]

    assert removing.look(target).requeue_after == pytest.approx(2)
    removing.clock.advance(1.5)
    assert removing.look(target).requeue_after == pytest.approx(0.5)
    assert data(removing, target) == {"own": "x", "k": "1"}
    removing.clock.advance(0.5)
    removing.look(target)
    removing.look(target)

    assert data(removing, target) == {"own": "x"}
    assert removing.reasons() == ["Copied", "SourceMissing", "Removed"]
    assert removing.events[-1] == ("Normal", "Removed", "rule replace-data.k: removed data.k: its source is missing")
    assert len(removing.patches) == 2
    assert removing.reads == 1


def test_what_stays_without_its_source_is_asked_about_and_told_once(removing: World) -> None:
    target = removing.target({"replace-data.k": "configmap:s:data.k"}, data={"k": "mine"})
    for _ in range(4):
        removing.look(target)
        removing.clock.advance(2)

    assert data(removing, target) == {"k": "mine"}
    assert removing.reasons() == ["SourceMissing", "Kept"]
    assert removing.reads == 1


def test_a_source_that_comes_back_in_time_takes_nothing_along(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k"})
    removing.look(target)
    del removing.objects[SOURCE]
    removing.look(target)
    removing.clock.advance(1.9)
    removing.source(k="1")
    removing.look(target)
    removing.clock.advance(1)

    removing.look(target)

    assert data(removing, target) == {"k": "1"}
    assert len(removing.patches) == 1
    assert removing.reads == 0


def test_a_missing_path_is_a_missing_source_and_a_value_that_comes_back_is_copied_again(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k"})
    removing.look(target)
    removing.source(other="1")
    removing.look(target)
    removing.clock.advance(2)
    removing.look(target)
    assert not data(removing, target)

    removing.source(k="1")
    removing.look(target)

    assert data(removing, target) == {"k": "1"}
    assert removing.reasons() == ["Copied", "SourcePathMissing", "Removed", "Recovered"]


def test_a_value_goes_with_its_source_each_time(removing: World) -> None:
    target = removing.target({"replace-data.k": "configmap:s:data.k"})
    for value in "12":
        removing.source(k=value)
        removing.look(target)
        assert data(removing, target) == {"k": value}

        lose(removing, target)

        assert data(removing, target) == {}


def test_only_the_value_of_the_source_that_is_missing_goes(removing: World) -> None:
    removing.source(v="1")
    removing.source("s2", v="2")
    target = removing.target({"replace-data.k1": "configmap:s:data.v", "replace-data.k2": "configmap:s2:data.v"})
    removing.look(target)

    lose(removing, target)

    assert data(removing, target) == {"k2": "2"}


def test_copies_and_removals_are_one_patch(removing: World) -> None:
    removing.source(v="1")
    removing.source("s2", v="2")
    target = removing.target({"replace-data.k1": "configmap:s:data.v", "replace-data.k2": "configmap:s2:data.v"})
    removing.look(target)
    del removing.objects[SOURCE]
    removing.look(target)
    removing.clock.advance(2)
    removing.source("s2", v="3")

    removing.look(target)

    patch = removing.patches[-1]
    assert isinstance(patch, dict)
    assert patch["data"] == {"k1": None, "k2": "3"}
    assert len(removing.patches) == 2


def test_a_kind_that_cannot_be_read_is_not_a_missing_source(removing: World) -> None:
    removing.put(WIDGETS, "", "w", spec={"k": "1"})
    target = removing.target({"replace-spec.k": "widget:w:spec.k"}, gvr=WIDGETS, namespace="")
    removing.look(target)
    removing.unsynced = {CONFIGMAPS: None}
    removing.mapper.unknown.add("widget")

    for _ in range(3):
        removing.look(target)
        removing.clock.advance(5)

    assert removing.objects[target]["spec"] == {"k": "1"}


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_source_that_vanishes_with_its_namespace_takes_nothing_along(removing: World, is_gone: bool) -> None:
    world = removing
    other = world.put(NAMESPACES, "", "b")
    source = world.source(namespace="b", allow="a", k="1")
    target = world.target({"replace-data.k": "configmap:b/s:data.k"})
    world.look(target)
    world.put(NAMESPACES, "", "b", metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"})
    del world.objects[source]
    if is_gone:
        del world.objects[other]

    world.look(target)
    world.clock.advance(2)
    world.look(target)

    assert data(world, target) == {"k": "1"}
    assert world.reads == 0


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_source_that_vanishes_with_its_kind_takes_nothing_along(removing: World, is_gone: bool) -> None:
    source = removing.put(WIDGETS, "", "w", metadata={"annotations": {f"{PREFIX}allow-copy-to": "a"}}, spec={"k": "1"})
    target = removing.target({"replace-data.k": "widget:w:spec.k"})
    removing.look(target)
    del removing.objects[source]  # as its kind's other objects, and later the kind itself

    removing.look(target)
    assert removing.mapper.reloads == 1, "whether the kind is still served is asked at once"
    if is_gone:
        removing.mapper.unknown.add("widget")
    else:
        removing.mapper.are_going = True
    for _ in range(2):
        removing.clock.advance(2)
        removing.look(target)

    assert data(removing, target) == {"k": "1"}
    assert removing.reads == 0
    assert removing.mapper.reloads == 1


def test_while_namespaces_are_listed_nothing_is_removed_and_without_that_right_it_is(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k"})
    removing.look(target)
    removing.unsynced = {NAMESPACES: None}
    lose(removing, target)
    removing.clock.advance(2)
    removing.look(target)
    assert data(removing, target) == {"k": "1"}

    removing.unsynced = {NAMESPACES: ForbiddenError("no", reason="Forbidden", verb="list", ref=NAMESPACES)}
    removing.clock.advance(2)
    removing.look(target)

    assert data(removing, target) == {}


def test_that_namespaces_may_not_be_watched_is_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    targets = [
        world.put(CONFIGMAPS, "a", name, metadata={"annotations": {f"{PREFIX}replace-data.k": 'json:"v"'}})
        for name in "xyz"
    ]
    world.unsynced = {NAMESPACES: ForbiddenError("no", reason="Forbidden", verb="list", ref=NAMESPACES)}

    with caplog.at_level("INFO"):
        for target in targets * 2:
            world.look(target)

    (line,) = [record for record in caplog.records if record.message.startswith("namespaces may not be watched")]
    assert line.levelname == "INFO"


def test_lack_of_consent_is_a_missing_source_whether_there_is_one_or_not() -> None:
    told = []
    for is_there in (True, False):
        world = removing_world()
        world.put(NAMESPACES, "", "b")
        source = world.source(namespace="b", allow="a", k="1")
        target = world.target({"replace-data.k": "configmap:b/s:data.k"})
        world.look(target)
        world.source(namespace="b", k="1")
        if not is_there:
            del world.objects[source]
        world.look(target)
        world.clock.advance(2)
        world.look(target)
        assert data(world, target) == {}
        told.append(world.events)

    assert told[0] == told[1]


def test_a_default_stands_in_for_a_missing_source(world: World) -> None:
    world.source(k="1")
    rules = "- {to: data.k, from: {resource: configmap, name: s, path: data.k}, onSourceMissing: {default: z}}"
    target = world.target({"rules": rules})
    world.look(target)
    del world.objects[SOURCE]
    world.look(target)
    world.look(target)
    assert data(world, target) == {"k": "z"}

    world.source(k="2")
    world.look(target)

    assert data(world, target) == {"k": "2"}
    assert world.reasons() == ["Copied", "SourceMissing", "Recovered"]
    assert world.events[1][2].endswith("the default is taken")


@pytest.mark.parametrize(("policy", "left"), [("retain", {"k": "1"}), ("remove", {}), ("{default: z}", {"k": "z"})])
def test_a_rule_says_itself_what_a_missing_source_means(world: World, policy: str, left: dict[str, str]) -> None:
    world.put(NAMESPACES, "", "a")
    world.source(k="1")
    rules = f"- {{to: data.k, from: {{resource: configmap, name: s, path: data.k}}, onSourceMissing: {policy}}}"
    target = world.target({"rules": rules})
    world.look(target)
    del world.objects[SOURCE]
    world.look(target)
    world.clock.advance(2)

    world.look(target)

    assert data(world, target) == left


def test_after_a_restart_what_is_the_copiers_alone_goes_with_its_source(removing: World) -> None:
    removing.source(k="1")
    rules = {"replace-data.k": "configmap:s:data.k", "replace-data.l": "configmap:s:data.k"}
    target = removing.target(rules, data={"l": "mine"})
    removing.drop_rules(target, "replace-data.l")
    removing.look(target)
    again = removing.restarted()
    del again.objects[SOURCE]
    again.touch(target, "test", metadata={"annotations": {f"{PREFIX}replace-data.l": "configmap:s:data.k"}})
    again.look(target)
    again.clock.advance(2)

    again.look(target)

    assert data(again, target) == {"l": "mine"}
    assert again.reasons() == ["SourceMissing", "Removed", "Kept"]
    assert again.events[-1][2] == "rule replace-data.l: data.l stays: it was not set by the copier"


def test_a_source_made_anew_is_judged_anew_and_an_equal_value_is_not_written_again(world: World) -> None:
    source = world.source(namespace="b", allow="a", k="1")
    target = world.target({"replace-data.k": "configmap:b/s:data.k"})
    world.look(target)

    del world.objects[source]
    world.source(namespace="b", k="2")
    world.look(target)
    assert data(world, target) == {"k": "1"}
    assert world.reasons() == ["Copied", "ConsentMissing"]

    del world.objects[source]
    world.source(namespace="b", allow="a", k="1")
    world.look(target)
    assert len(world.patches) == 1


def test_a_source_that_is_being_deleted_still_counts(removing: World) -> None:
    removing.put(CONFIGMAPS, "a", "s", metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"}, data={"k": "1"})
    target = removing.target({"replace-data.k": "configmap:s:data.k"})

    removing.look(target)

    assert data(removing, target) == {"k": "1"}


# --- a rule that is gone ---------------------------------------------------------------------------------------------


def test_a_removed_rule_takes_along_only_what_it_gave(removing: World) -> None:
    removing.source(k="1", l="2")
    rules = {"replace-data.k": "configmap:s:data.k", "replace-data.l": "configmap:s:data.l"}
    target = removing.target(rules, data={"own": "x"})
    removing.look(target)

    removing.drop_rules(target, "replace-data.k")
    removing.look(target)
    removing.look(target)

    assert data(removing, target) == {"own": "x", "l": "2"}
    assert removing.events[-1] == ("Normal", "Removed", "rule replace-data.k: removed data.k: its rule was removed")
    assert len(removing.patches) == 2


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_last_rule_takes_its_value_along_and_is_forgotten(removing: World, is_whole: bool) -> None:
    target = removing.target({"replace-data.copy": "configmap:t:data.orig"}, data={"orig": "1"})
    removing.look(target)
    removing.drop_rules(target)
    if not is_whole:
        removing.bare.add(target)  # as the caches keep objects without rules

    removing.look(target)

    assert data(removing, target) == {"orig": "1"}
    assert len(removing.copier.memories) == 0
    assert target not in removing.dependencies
    assert removing.reasons() == ["Copied", "Removed"]


def test_a_value_that_was_there_before_the_rule_is_not_the_copiers(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'}, data={"k": "v"})
    removing.look(target)

    removing.drop_rules(target)
    removing.look(target)

    assert data(removing, target) == {"k": "v"}
    assert removing.events == [
        ("Warning", "Kept", "rule replace-data.k: data.k stays: it was not set by the copier"),
    ]
    assert not removing.patches


def test_a_value_changed_in_the_write_that_drops_the_rule_stays(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k"})
    removing.look(target)

    removing.drop_rules(target, data={"k": "changed"})
    removing.look(target)

    assert data(removing, target) == {"k": "changed"}
    assert removing.events[-1][1:] == ("Kept", "rule replace-data.k: data.k stays: it was changed since it was copied")


def test_a_value_that_somebody_else_set_too_stays(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.owners[target]["data", "k"].add("rival")

    removing.drop_rules(target)
    removing.look(target)

    assert data(removing, target) == {"k": "v"}
    assert removing.events[-1][2] == "rule replace-data.k: data.k stays: it was set by others too"


def test_of_a_copied_map_only_what_is_the_copiers_goes_and_the_map_stays(removing: World) -> None:
    removing.source(a="1", b="2", c="3")
    target = removing.target({"replace-data": "configmap:s:data"}, data={"a": "1"})
    removing.look(target)
    removing.touch(target, data={"b": "2"})
    removing.owners[target]["data", "b"].add("rival")

    removing.drop_rules(target, data={"late": "x"})
    removing.look(target)

    assert data(removing, target) == {"a": "1", "b": "2", "late": "x"}
    assert removing.reasons() == ["Copied", "Removed", "Kept"]

    other = removing_world()
    other.source(a="1")
    emptied = other.target({"replace-data": "configmap:s:data"})
    other.look(emptied)
    other.drop_rules(emptied)
    other.look(emptied)
    assert data(other, emptied) == {}


def test_what_another_rule_is_about_is_left_to_that_rule(removing: World) -> None:
    removing.source(a="1", b="2")
    rules = {"replace-data": "configmap:s:data", "replace-data.b": 'json:"9"'}
    target = removing.target(rules)
    removing.look(target)

    removing.drop_rules(target, "replace-data")
    removing.look(target)
    assert data(removing, target) == {"b": "9"}

    removing.touch(
        target, "test", metadata={"annotations": {f"{PREFIX}replace-data.b": None, f"{PREFIX}merge-data.b": 'json:"8"'}}
    )
    removing.look(target)
    assert data(removing, target) == {"b": "8"}
    assert "Kept" not in removing.reasons()


def test_where_another_rules_path_leads_through_nothing_goes(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"', "merge-data": 'json:{"m": "1"}'})
    removing.look(target)

    removing.drop_rules(target, "replace-data.k")
    removing.look(target)

    assert data(removing, target) == {"k": "v", "m": "1"}
    assert removing.reasons() == ["Copied"]


def test_a_rule_that_is_back_before_its_value_went_keeps_it(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"', "replace-data.l": 'json:"w"'})
    removing.look(target)
    removing.drop_rules(target, "replace-data.k")
    removing.read_errors = [ServerError("boom", status=500)]
    with pytest.raises(ServerError):
        removing.look(target)
    removing.touch(target, "test", metadata={"annotations": {f"{PREFIX}replace-data.k": 'json:"v"'}})

    removing.look(target)

    assert data(removing, target) == {"k": "v", "l": "w"}
    assert removing.reads == 1


def test_a_rule_with_another_destination_leaves_the_old_one(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.old": "configmap:s:data.k"})
    removing.look(target)

    annotations = {f"{PREFIX}replace-data.old": None, f"{PREFIX}replace-data.new": "configmap:s:data.k"}
    removing.touch(target, "test", metadata={"annotations": annotations})
    removing.look(target)

    assert data(removing, target) == {"new": "1"}
    assert len(removing.patches) == 2


def test_a_rule_moved_to_the_list_is_the_same_rule(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k"})
    removing.look(target)

    rules = "- {to: data.k, from: {resource: configmap, name: s, path: data.k}}"
    annotations = {f"{PREFIX}replace-data.k": None, f"{PREFIX}rules": rules}
    removing.touch(target, "test", metadata={"annotations": annotations})
    removing.look(target)

    assert data(removing, target) == {"k": "1"}
    assert removing.reads == 0


@pytest.mark.parametrize("broken", ["not: a list", "- {to: data.k}", "- {to: , value: 1}"])
def test_a_rule_that_has_become_malformed_is_not_gone(removing: World, broken: str) -> None:
    removing.source(k="1", l="2")
    rules = "- {to: data.k, from: {resource: configmap, name: s, path: data.k}}"
    target = removing.target({"rules": rules})
    removing.look(target)

    removing.touch(
        target,
        "test",
        metadata={"annotations": {f"{PREFIX}rules": broken, f"{PREFIX}replace-data": "configmap:s:data"}},
    )
    removing.source(k="changed", l="2")
    removing.look(target)
    assert data(removing, target) == {"k": "1", "l": "2"}

    removing.drop_rules(target, "rules")
    removing.look(target)
    assert data(removing, target) == {"k": "changed", "l": "2"}


def test_too_many_rules_are_not_removed_rules(removing: World) -> None:
    target = removing.target({f"replace-data.k{number}": 'json:"v"' for number in range(128)})
    removing.look(target)

    annotations = {f"{PREFIX}replace-data.one-more": 'json:"v"'}
    removing.touch(target, "test", metadata={"annotations": annotations})
    removing.look(target)

    assert len(data(removing, target)) == 128
    assert removing.reasons() == ["Copied", "TooManyRules"]


def test_a_rule_keeps_the_word_it_had_last_when_it_goes(world: World) -> None:
    item = "- {{to: data.k, value: v, onRuleRemoved: {}}}"
    target = world.target({"rules": item.format("retain")})
    world.look(target)
    world.touch(target, "test", metadata={"annotations": {f"{PREFIX}rules": item.format("remove")}})
    world.look(target)
    assert len(world.patches) == 1

    world.drop_rules(target)
    world.look(target)

    assert data(world, target) == {}


def test_a_rule_that_was_removed_while_nobody_looked_leaves_its_value(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"', "replace-data.l": 'json:"w"'})
    removing.look(target)
    again = removing.restarted()
    again.drop_rules(target, "replace-data.k")

    again.look(target)

    assert data(again, target) == {"k": "v", "l": "w"}
    assert again.reads == 0


def test_without_the_right_to_get_the_target_nothing_goes(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    removing.read_errors = [ForbiddenError("no", status=403, reason="Forbidden")]

    removing.look(target)
    removing.look(target)

    assert data(removing, target) == {"k": "v"}
    assert removing.reads == 1
    assert removing.reasons() == ["Copied", "Kept"]
    assert "may not get the target" in removing.events[-1][2]


def test_a_read_that_fails_and_a_conflict_are_tried_again(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    removing.read_errors = [ServerError("boom", status=500)]
    with pytest.raises(ServerError):
        removing.look(target)
    removing.answers = [refused(409)]
    with pytest.raises(type(refused(409))):
        removing.look(target)

    removing.look(target)

    assert data(removing, target) == {}
    assert removing.reasons() == ["Copied", "Removed"]


def test_a_removal_that_is_refused_is_not_repeated_and_holds_no_copy_back(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.bad": "configmap:s:data.k", "replace-data.good": "configmap:s:data.k"})
    removing.look(target)
    be_picky(removing, {"bad"})
    removing.drop_rules(target, "replace-data.bad")
    removing.source(k="2")

    removing.look(target)
    removing.look(target)

    assert data(removing, target) == {"bad": "1", "good": "2"}
    assert removing.reasons() == ["Copied", "Kept"]
    assert removing.events[-1][2] == "rule replace-data.bad: data.bad stays: its removal was refused (Invalid)"


def test_a_removal_that_a_webhook_undoes_is_told_as_kept_and_not_repeated(removing: World) -> None:
    removing.source(k="1")
    rules = {"replace-data.k": "configmap:s:data.k", "replace-data.l": "configmap:s:data.k"}
    target = removing.target({"rules": "[]", **rules})
    removing.look(target)
    removing.drop_rules(target, *rules)
    removing.answers = [lambda after: after["data"].update(k="1")]

    removing.look(target)
    removing.look(target)

    assert data(removing, target) == {"k": "1"}
    assert len(removing.patches) == 2
    assert [(reason, note.split(":")[1]) for _, reason, note in removing.events[1:]] == [
        ("Kept", " data.k stays"),
        ("Removed", " removed data.l"),
    ]


def test_a_removal_is_judged_by_the_rules_that_the_server_has_now(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    removing.stale[target] = removing.find(target)
    removing.touch(target, "test", metadata={"annotations": {f"{PREFIX}replace-data.k": 'json:"v"'}})

    with pytest.raises(ConflictError):
        removing.look(target)
    removing.stale.clear()
    removing.look(target)

    assert data(removing, target) == {"k": "v"}
    assert len(removing.patches) == 1


def test_a_removal_spares_what_was_made_anew_under_the_same_name(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    removing.stale[target] = removing.find(target)
    removing.objects[target]["metadata"]["uid"] = "another"

    with pytest.raises(ConflictError):
        removing.look(target)

    assert data(removing, target) == {"k": "v"}
    assert len(removing.patches) == 1


def test_a_target_that_is_seen_to_be_going_when_a_removal_is_due_is_not_written(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    removing.stale[target] = removing.find(target)
    removing.objects[target]["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"

    removing.look(target)

    assert len(removing.patches) == 1
    assert removing.reasons() == ["Copied"]
    assert len(removing.copier.memories) == 0


def test_a_missing_right_to_patch_keeps_a_removal_for_later(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    removing.answers = [refused(403)]

    assert removing.look(target).requeue_after == pytest.approx(60)
    assert removing.look(target).requeue_after == pytest.approx(60)
    removing.clock.advance(60)
    removing.look(target)

    assert data(removing, target) == {}
    assert len(removing.copier.memories) == 0


def test_a_missing_right_to_patch_keeps_for_later_what_goes_with_its_source(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k"})
    removing.look(target)
    removing.answers = [refused(403)]
    lose(removing, target)
    assert removing.look(target).requeue_after == pytest.approx(60)

    removing.clock.advance(60)
    removing.look(target)

    assert data(removing, target) == {}


def test_what_is_left_to_another_rule_is_not_said_to_be_refused(removing: World) -> None:
    removing.source(k="1")
    target = removing.target({"replace-data": "configmap:s:data", "replace-data.k": "configmap:s:data.k"})
    removing.look(target)
    be_picky(removing, {"k"})
    removing.source(k="2")
    removing.drop_rules(target, "replace-data")

    removing.look(target)

    assert removing.reasons() == ["Copied", "Invalid"]


def test_a_target_deleted_while_a_removal_is_due_is_forgotten(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    found = removing.find(target)
    del removing.objects[target]
    removing.stale[target] = found

    removing.look(target)

    assert len(removing.copier.memories) == 0


# --- a key that left its source --------------------------------------------------------------------------------------


def test_a_key_that_a_merge_rule_gave_and_names_no_more_goes_and_others_stay(world: World) -> None:
    world.source(a="1", b="2")
    target = world.target({"merge-data": "configmap:s:data"}, data={"local": "mine"})
    world.look(target)
    assert data(world, target) == {"local": "mine", "a": "1", "b": "2"}

    world.source(a="1")
    world.look(target)
    world.look(target)

    assert data(world, target) == {"local": "mine", "a": "1"}
    assert world.events[-1] == ("Normal", "Removed", "rule merge-data: removed data.b: it is no longer in the source")
    assert len(world.patches) == 2
    assert world.reads == 1


def test_keys_that_leave_take_no_more_work_each_when_they_are_many() -> None:
    def calls_for(count: int) -> int:
        world = World()
        calls = 0

        def counted(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        world.source(**{f"k{number}": "v" for number in range(count)})
        target = world.target({"merge-data": "configmap:s:data"}, data={"own": "x"})
        world.look(target)
        world.source(**{f"k{number}": "v" for number in range(0, count, 2)})
        sys.setprofile(counted)
        try:
            world.look(target)
        finally:
            sys.setprofile(None)
        assert len(data(world, target)) == count // 2 + 1
        return calls

    assert calls_for(400) < 2.5 * calls_for(200)


def test_after_a_restart_nothing_goes_that_another_rule_may_have_left(world: World) -> None:
    world.source(a="1", b="2")
    target = world.target({"merge-data": "configmap:s:data", "replace-data.x": 'json:"1"'}, data={"local": "mine"})
    world.look(target)
    world.drop_rules(target, "replace-data.x")
    world.look(target)
    world.source(a="1", b="2", c="3")
    again = world.restarted()

    again.look(target)
    again.look(target)

    assert data(again, target) == {"local": "mine", "a": "1", "b": "2", "c": "3", "x": "1"}
    assert again.reads == 0


def test_a_key_that_was_there_before_the_merge_rule_stays(world: World) -> None:
    world.source(a="1", b="2")
    target = world.target({"merge-data": "configmap:s:data"}, data={"b": "2"})
    world.look(target)

    world.source(a="1")
    world.look(target)
    world.look(target)

    assert data(world, target) == {"a": "1", "b": "2"}
    assert world.reasons() == ["Copied", "Kept"]
    assert world.reads == 1


@pytest.mark.parametrize(
    ("after", "left"),
    [
        ({}, {"own": "x"}),
        ({"m": {}}, {"own": "x", "m": {}}),
        ({"m": {"a": "1"}}, {"own": "x", "m": {"a": "1"}}),
        ({"m": {"new": {}}}, {"own": "x", "m": {"new": {}}}),
        ({"m": None}, {"own": "x"}),
    ],
)
def test_the_last_key_of_a_map_goes_like_any_other(world: World, after: dict[str, Any], left: dict[str, Any]) -> None:
    world.put(WIDGETS, "", "w", spec={"m": {"a": "1", "n": {"b": "2"}}})
    annotations = {f"{PREFIX}merge-spec": "widget:w:spec"}
    target = world.put(WIDGETS, "", "t", metadata={"annotations": annotations}, spec={"own": "x"})
    world.look(target)

    world.put(WIDGETS, "", "w", spec=after)
    world.look(target)
    world.look(target)

    assert world.objects[target]["spec"] == left
    assert len(world.patches) == 2


def test_in_a_map_that_another_rule_goes_into_each_key_goes_by_itself(removing: World) -> None:
    removing.put(WIDGETS, "", "w", spec={"a": "1"})
    rules = {f"{PREFIX}merge-spec": 'json:{"m": {"a": "1"}}', f"{PREFIX}replace-spec.m.b": "widget:none:spec.b"}
    target = removing.put(WIDGETS, "", "t", metadata={"annotations": rules})
    removing.look(target)
    removing.drop_rules(target, "merge-spec")

    removing.look(target)

    assert removing.objects[target]["spec"] == {"m": {}}


def test_a_key_that_an_edited_merge_rule_names_no_more_goes(world: World) -> None:
    target = world.target({"merge-data": 'json:{"a": "1", "b": "2"}'}, data={"c": "3"})
    world.look(target)

    world.touch(target, "test", metadata={"annotations": {f"{PREFIX}merge-data": 'json:{"a": "1"}'}})
    world.look(target)

    assert data(world, target) == {"a": "1", "c": "3"}


def test_a_key_that_another_rule_took_over_stays(world: World) -> None:
    world.source(a="1", b="2")
    target = world.target({"merge-data": "configmap:s:data"})
    world.look(target)

    world.touch(target, "test", metadata={"annotations": {f"{PREFIX}replace-data.b": 'json:"9"'}})
    world.source(a="1")
    world.look(target)

    assert data(world, target) == {"a": "1", "b": "9"}


def test_when_the_whole_source_of_a_merge_rule_is_missing_the_policy_decides(world: World) -> None:
    world.source(a="1")
    target = world.target({"merge-data": "configmap:s:data"})
    world.look(target)
    del world.objects[SOURCE]

    world.look(target)

    assert data(world, target) == {"a": "1"}


def test_of_a_removed_merge_rule_only_its_own_keys_go(removing: World) -> None:
    removing.source(a="1")
    target = removing.target({"merge-data": "configmap:s:data"}, data={"local": "mine"})
    removing.look(target)

    removing.drop_rules(target)
    removing.look(target)

    assert data(removing, target) == {"local": "mine"}


def test_what_is_remembered_goes_with_the_rules(removing: World) -> None:
    removing.source(a="1")
    target = removing.target({"merge-data": "configmap:s:data", "replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target, "merge-data")
    removing.look(target)

    memory = removing.copier.memories.of(target, removing.objects[target]["metadata"]["uid"])
    known = (memory.lived, memory.given, memory.contests, memory.reported)
    assert [set(each) for each in known] == [{("replace", "data.k")}] * 4
    assert not memory.departed
    assert not memory.missing


def test_targets_that_come_and_go_leave_nothing_behind(removing: World) -> None:
    removing.source(k="1")
    rules = {f"{PREFIX}replace-data.k": "configmap:s:data.k", f"{PREFIX}replace-data.l": "secret:none:data.k"}
    for number in range(50):
        target = removing.put(CONFIGMAPS, "a", f"t{number}", metadata={"annotations": rules})
        removing.look(target)
        if number % 2:
            removing.drop_rules(target)
        else:
            del removing.objects[target]
        removing.look(target)

    assert len(removing.copier.memories) == 0
    assert len(removing.copier.conditions) == 0
    assert not removing.dependencies


def test_what_is_taken_away_is_counted_by_why(removing: World, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    monkeypatch.setattr(removing.meter, "removed", lambda _cluster, cause: counted.append(cause))
    removing.source(k="1", m="1")
    target = removing.target({"replace-data.k": "configmap:s:data.k", "merge-metadata.labels": "configmap:s:data"})
    removing.look(target)
    removing.source(k="1")
    removing.look(target)
    removing.drop_rules(target, "merge-metadata.labels")
    removing.look(target)

    lose(removing, target)

    assert counted == ["left_source", "rule_removed", "source_missing"]


def test_a_target_that_cannot_be_looked_at_keeps_its_departed_rules(removing: World) -> None:
    target = removing.target({"replace-data.k": 'json:"v"'})
    removing.look(target)
    removing.drop_rules(target)
    removing.unsynced = {CONFIGMAPS: None}
    with pytest.raises(NotSyncedError):
        removing.look(target)
    removing.unsynced = {}

    removing.look(target)

    assert data(removing, target) == {}
