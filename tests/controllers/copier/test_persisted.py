"""What a server makes of what it was sent: told value by value, remembered, and not sent again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.paths import ABSENT, Absent, locate, parse_path
from controllers.copier.persisted import accept, judge, not_persisted
from controllers.copier.values import Number, Plain, decode, equal
from informers import ServerError
from tests.controllers.copier.conftest import WIDGETS, World

SPEC = locate(None, parse_path("spec"))


def plain(value: Any) -> Plain | Absent:
    return ABSENT if value is ABSENT else decode(json.dumps({"": value}).encode())[""]


def lost(sent: Any, before: Any, after: Any) -> str:
    """Say which values are lost, as people are told."""
    error = not_persisted(SPEC, judge(plain(sent), plain(before), plain(after)))
    return "" if error is None else error.text.partition(":")[0]


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["x", "y"])),
    lambda inner: st.one_of(st.dictionaries(st.sampled_from("abc"), inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=8,
)


@settings(deadline=None)  # the machine may be busy
@given(values, values, values)
def test_what_came_back_is_in_sync_from_then_on_or_lost(sent: Any, before: Any, after: Any) -> None:
    marks = judge(plain(sent), plain(before), plain(after))

    accepted, used = accept(marks, plain(sent), plain(after))

    assert not isinstance(accepted, Absent)
    assert equal(accepted, decode(json.dumps({"": after}).encode())[""])
    assert used == marks


@settings(deadline=None)  # the machine may be busy
@given(values, values)
def test_without_marks_nothing_is_accepted(wanted: Any, live: Any) -> None:
    assert accept({}, plain(wanted), plain(live)) == (plain(wanted), {})


@pytest.mark.parametrize(
    ("sent", "before", "after", "told"),
    [
        ({"a": "1"}, {}, {"a": "1"}, ""),
        ({"a": "1", "b": "2"}, {}, {"a": "1"}, "spec.b"),
        ({"a": "new", "b": "2"}, {"a": "old"}, {"a": "old", "b": "2"}, "spec.a"),
        ({"m": {"x": {"y": 1, "z": 2}}}, {}, {"m": {"x": {"z": 2}}}, "spec.m.x.y"),
        ({"l": [{"n": 1, "k": 2}]}, {}, {"l": [{"n": 1}]}, "spec.l[0].k"),
        ({"l": [1, 2]}, {"l": [1]}, {"l": [1]}, "spec.l"),
        ({"m": {"y": 1}}, ABSENT, ABSENT, "spec"),
        ("new", "old", "old", "spec"),
        ("2048Mi", "1Gi", "2Gi", ""),
        ({"a": "1"}, {}, {"a": "1", "added": "x"}, ""),
        ({"a": "1", "same": "x"}, {"same": "x"}, {"a": "1", "same": "y"}, ""),
        (ABSENT, "old", "old", "spec"),
        ({"a": "1"}, {"a": "1", "gone": "x"}, {"a": "1", "gone": "x"}, "spec.gone"),
        (None, 1, 1, ""),
        ({"null": None, "map": {}, "list": []}, {}, {}, ""),
        ({"k": None}, {}, {"k": ""}, ""),
        ({f"k{n:02}": "v" for n in range(12)}, {}, {}, ", ".join(f"spec.k{n:02}" for n in range(10)) + " and 2 more"),
    ],
)
def test_lost_is_what_was_not_there_before_and_is_not_there_now(sent: Any, before: Any, after: Any, told: str) -> None:
    assert lost(sent, before, after) == told


@pytest.mark.parametrize(
    ("own", "sent", "before", "after", "told"),
    [
        ({"a": 1}, {"a": 1}, {"a": 1, "by default": 2}, {"a": 1, "by default": 2}, ""),
        ({"l": [{"n": 1}]}, {"l": [{"n": 1}]}, {"l": [{"n": 1, "d": 1}]}, {"l": [{"n": 1, "d": 1}]}, ""),
        ({"type": "C"}, {"type": "C", "nodePort": 1}, {"type": "N", "nodePort": 1}, {"type": "C"}, ""),
        ({"l": []}, {"l": [{"excepted": 1}]}, {"l": [{"excepted": 1}]}, {"l": [{}]}, ""),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 2}, {"a": 1}, "spec.b"),
    ],
)
def test_what_a_rule_does_not_give_is_not_lost_to_it(own: Any, sent: Any, before: Any, after: Any, told: str) -> None:
    error = not_persisted(SPEC, judge(plain(sent), plain(before), plain(after), own=plain(own)))

    assert ("" if error is None else error.text.partition(":")[0]) == told


def test_a_mark_counts_for_the_value_that_was_sent_and_the_one_that_was_seen() -> None:
    marks = judge("2048Mi", "1Gi", "2Gi")

    assert accept(marks, "2048Mi", "2Gi")[0] == "2Gi"
    assert accept(marks, "2048Mi", "3Gi")[0] == "2048Mi"
    assert accept(marks, "4096Mi", "2Gi")[0] == "4096Mi"


def test_values_that_are_written_in_another_way_take_no_more_work_each_when_they_are_many() -> None:
    def calls_for(count: int) -> int:
        sent: Plain = {f"k{number}": {"mem": "2048Mi"} for number in range(count)}
        seen: Plain = {f"k{number}": {"mem": "2Gi"} for number in range(count)}
        marks = judge(sent, ABSENT, seen)
        calls = 0

        def counted(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(counted)
        try:
            assert accept(marks, sent, seen) == (seen, marks)
        finally:
            sys.setprofile(None)
        return calls

    assert calls_for(200) < 2.5 * calls_for(100)


def test_what_is_lost_is_lost_whatever_is_there() -> None:
    marks = judge("v", ABSENT, ABSENT)

    assert accept(marks, "v", "by somebody else")[0] == "by somebody else"
    assert accept(marks, "other", ABSENT)[0] == "other"
    assert accept(marks, "v", "v") == ("v", {})


def test_a_mark_shows_no_value() -> None:
    assert "hunter2" not in repr(judge("hunter2", ABSENT, ABSENT))
    assert "31337" not in repr(judge(Number("31337"), ABSENT, ABSENT))


# --- remembered --------------------------------------------------------------------------------------------------


def without(*names: str) -> Callable[[dict[str, Any]], None]:
    """Answer like a server whose schema does not know some fields of `spec`."""

    def prune(after: dict[str, Any]) -> None:
        for name in names:
            after["spec"].pop(name, None)

    return prune


def test_a_lost_key_is_told_of_and_the_others_are_kept_in_sync(world: World) -> None:
    rules = {"merge-spec": 'json:{"known": "1", "unknown": "2"}'}
    target = world.target(rules, gvr=WIDGETS, namespace="", spec={})
    world.answers = [without("unknown")]

    world.look(target)
    world.look(target)
    assert len(world.patches) == 1
    assert world.reasons() == ["Copied", "NotPersisted"]
    assert "spec.unknown: the server accepted" in world.events[1][2]

    world.objects[target]["spec"]["known"] = "drifted"
    world.look(target)

    assert world.objects[target]["spec"] == {"known": "1"}
    assert len(world.patches) == 2
    assert "unknown" not in json.dumps(world.patches[1])
    assert world.reasons() == ["Copied", "NotPersisted"]


def test_another_value_of_a_lost_key_is_tried(world: World) -> None:
    source = world.source(k="1")
    target = world.target({"replace-spec.unknown": f"configmap:{source.name}:data.k"}, gvr=WIDGETS, spec={})
    world.answers = [without("unknown"), without("unknown")]
    world.look(target)

    world.source(k="2")
    world.look(target)
    world.look(target)

    assert len(world.patches) == 2
    assert world.reasons() == ["NotPersisted"]


def test_an_edited_rule_is_tried(world: World) -> None:
    world.source("s1", k="1")
    world.source("s2", k="1")
    target = world.target({"replace-spec.unknown": "configmap:s1:data.k"}, gvr=WIDGETS, spec={})
    world.answers = [without("unknown")]
    world.look(target)

    world.target({"replace-spec.unknown": "configmap:s2:data.k"}, gvr=WIDGETS, spec={})
    world.look(target)

    assert len(world.patches) == 2
    assert world.reasons() == ["NotPersisted", "Copied"]


def test_another_schema_is_tried_soon(world: World) -> None:
    world.mapper.schema_hash = "1"
    target = world.target({"replace-spec.unknown": 'json:"v"'}, gvr=WIDGETS, namespace="", spec={})
    world.answers = [without("unknown")]
    result = world.look(target)
    assert result.requeue_after == 10

    world.mapper.schema_error = ServerError("not now", status=503)
    world.look(target)
    world.mapper.schema_error = None
    world.look(target)
    assert len(world.patches) == 1

    world.mapper.schema_hash = "2"
    world.look(target)

    assert len(world.patches) == 2
    assert world.objects[target]["spec"] == {"unknown": "v"}


def test_a_schema_that_is_known_only_after_the_write_is_not_another_one(world: World) -> None:
    world.mapper.schema_error = ServerError("not now", status=503)
    target = world.target({"replace-spec.unknown": 'json:"v"'}, gvr=WIDGETS, namespace="", spec={})
    world.answers = [without("unknown")]
    world.look(target)

    world.mapper.schema_error, world.mapper.schema_hash = None, "1"
    world.look(target)
    assert len(world.patches) == 1
    world.mapper.schema_hash = "2"
    world.look(target)

    assert len(world.patches) == 2


@pytest.mark.parametrize(
    ("rule", "patch", "reasons"),
    [("replace-spec", '{"a": 1}', ["Copied"]), ("merge-spec", '{"a": 1, "policy": null}', ["Copied", "NotPersisted"])],
)
def test_a_default_that_comes_back_is_lost_only_to_who_asked_for_it_to_go(
    world: World, rule: str, patch: str, reasons: list[str]
) -> None:
    target = world.target({rule: f"json:{patch}"}, gvr=WIDGETS, namespace="", spec={"policy": "x"})
    world.answers = [lambda after: after["spec"].update(policy="x")]

    world.look(target)
    world.look(target)

    assert world.objects[target]["spec"] == {"a": 1, "policy": "x"}
    assert len(world.patches) == 1
    assert world.reasons() == reasons


def test_without_a_schema_a_lost_value_is_tried_once_an_hour(world: World) -> None:
    target = world.target({"replace-spec.unknown": 'json:"v"'}, gvr=WIDGETS, namespace="", spec={})
    world.answers = [without("unknown"), without("unknown")]
    world.look(target)

    world.clock.advance(3599)
    world.look(target)
    assert len(world.patches) == 1
    world.clock.advance(1)
    world.look(target)
    world.look(target)

    assert len(world.patches) == 2


def test_a_lost_value_that_somebody_sets_is_in_sync(world: World) -> None:
    target = world.target({"replace-spec.unknown": 'json:"v"'}, gvr=WIDGETS, namespace="", spec={})
    world.answers = [without("unknown")]
    world.look(target)

    world.objects[target]["spec"]["unknown"] = "v"
    world.look(target)

    assert len(world.patches) == 1
    assert world.reasons() == ["NotPersisted", "Recovered"]


def test_a_removal_that_is_put_back_is_not_persisted(world: World) -> None:
    rules = {"rules": "[{op: remove, to: spec.paused}]"}
    target = world.target(rules, gvr=WIDGETS, namespace="", spec={"paused": True})
    world.answers = [lambda after: after["spec"].update(paused=True)]

    world.look(target)
    world.look(target)

    assert len(world.patches) == 1
    assert world.reasons() == ["NotPersisted"]


def test_an_element_that_is_put_back_is_not_persisted(world: World) -> None:
    elements = [{"name": "a"}, {"name": "b"}]
    rules = {"rules": "[{op: remove, to: 'spec.l[name=a]'}]"}
    target = world.target(rules, gvr=WIDGETS, namespace="", spec={"l": elements})
    world.answers = [lambda after: after["spec"].update(l=elements)]

    world.look(target)
    world.look(target)

    assert len(world.patches) == 1
    assert world.reasons() == ["NotPersisted"]


def test_only_what_drifts_is_sent_again_when_the_server_adds_defaults(world: World) -> None:
    target = world.target({"replace-spec.m": 'json:{"a": "1", "mem": "2048Mi"}'}, gvr=WIDGETS, namespace="", spec={})

    def complete(after: dict[str, Any]) -> None:
        after["spec"]["m"].update(mem="2Gi", added="x")

    world.answers = [complete]
    world.look(target)
    world.look(target)
    assert len(world.patches) == 1

    world.objects[target]["spec"]["m"]["a"] = "drifted"
    world.look(target)

    world.look(target)
    assert [each["spec"] for each in world.patches[1:]] == [{"m": {"a": "1"}}]  # type: ignore[call-overload]  # merge patches
    assert set(world.reasons()) == {"Copied"}


def test_another_schema_makes_only_what_was_lost_be_sent_again(world: World) -> None:
    world.mapper.schema_hash = "1"
    rules = {"merge-spec": 'json:{"mem": "2048Mi", "unknown": "v"}'}
    target = world.target(rules, gvr=WIDGETS, namespace="", spec={})

    def known_in_part(after: dict[str, Any]) -> None:
        after["spec"] = {"mem": "2Gi"}

    world.answers = [known_in_part]
    world.look(target)

    world.mapper.schema_hash = "2"
    world.look(target)
    world.look(target)

    assert [each["spec"] for each in world.patches[1:]] == [{"unknown": "v"}]  # type: ignore[call-overload]  # merge patches
    assert world.objects[target]["spec"] == {"mem": "2Gi", "unknown": "v"}
    assert world.reasons() == ["Copied", "NotPersisted", "Recovered"]


def test_what_a_narrower_rule_loses_is_told_of_that_rule_only(world: World) -> None:
    rules = {"merge-spec": 'json:{"known": "1"}', "replace-spec.unknown": 'json:"v"'}
    target = world.target(rules, gvr=WIDGETS, namespace="", spec={})
    world.answers = [without("unknown")]

    world.look(target)
    world.look(target)

    told = [note for _, reason, note in world.events if reason == "NotPersisted"]
    assert len(told) == 1
    assert told[0].startswith("rule replace-spec.unknown: spec.unknown: ")
    assert "rule merge-spec" not in told[0]


# --- schemas that cannot be had ----------------------------------------------------------------------------------


def test_a_strategic_merge_waits_for_the_schema_and_looks_again(world: World) -> None:
    rules = {"strategic-merge-spec": 'json:{"a": "1"}', "replace-metadata.labels.x": 'json:"y"'}
    target = world.target(rules, gvr=WIDGETS, namespace="", spec={})
    world.mapper.schema_error = ServerError("not now", status=503, reason="ServiceUnavailable")

    first, second = world.look(target), world.look(target)

    assert (first.requeue_after, second.requeue_after) == (5, 10)
    assert world.reasons() == ["SchemaUnavailable", "Copied"]
    assert len(world.patches) == 1


def test_a_strategic_merge_of_a_kind_without_merge_keys_is_refused(world: World) -> None:
    target = world.target({"strategic-merge-spec": 'json:{"a": "1"}'}, gvr=WIDGETS, namespace="", spec={})
    world.mapper.schema_hash = "1"

    result = world.look(target)

    assert result.requeue_after is None
    assert world.reasons() == ["StrategicMergeUnsupported"]
    assert world.patches == []
