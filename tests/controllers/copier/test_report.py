"""Reports say the same to people and to machines, and steer no terminal."""

from __future__ import annotations

import json

import pytest

from controllers.copier.problems import State
from controllers.copier.report import (
    Action,
    Origin,
    PatchLine,
    Permission,
    Report,
    RuleLine,
    TargetLines,
    as_json,
    as_text,
    in_order,
    order_of,
)

NONE = "0 targets, 0 rules: 0 in sync, 0 to write, 0 waiting, 0 refused, 0 stalled, 0 contested\n"


def rule(
    action: Action = Action.NONE, state: State = State.SYNCED, reason: str | None = None, **more: object
) -> RuleLine:
    facts: dict[str, object] = {
        "id": "replace-data.k",
        "operation": "replace",
        "to": "data.k",
        "origin": Origin("configmaps.v1 dev/web", "configmaps.v1", "", "dev", "web", "data.k"),
        "is_constant": False,
        "permission": Permission(is_needed=False),
        "value": "string",
        "message": None if reason is None else "the text",
        **more,
    }
    return RuleLine(action=action, state=state, reason=reason, **facts)  # type: ignore[arg-type] # as the keywords say


def target(*rules: RuleLine, name: str = "app", cluster: str = "", patch: PatchLine | None = None) -> TargetLines:
    return TargetLines(cluster, "configmaps.v1", "ConfigMap", "dev", name, rules, patch)


def report(*rules: RuleLine, **more: object) -> Report:
    return Report("explain", [target(*rules)], **more)  # type: ignore[arg-type] # as the keywords say


def test_no_rules_are_one_line_of_zeros() -> None:
    assert as_text(Report("explain", [])) == NONE
    assert json.loads(as_json(Report("explain", []))) == {
        "version": 1,
        "mode": "explain",
        "targets": [],
        "notes": [],
        "summary": dict.fromkeys(
            ("targets", "rules", "in_sync", "write", "waiting", "refused", "stalled", "contested"), 0
        ),
    }


@pytest.mark.parametrize(
    ("line", "action"),
    [
        (rule(), "none (in sync)"),
        (rule(Action.WRITE), "write"),
        (rule(Action.REMOVE), "remove"),
        (rule(Action.WAIT, State.WAITING, "SourceMissing"), "wait (SourceMissing): the text"),
        (rule(Action.REFUSE, State.REFUSED, "Cycle"), "refuse (Cycle): the text"),
        (rule(Action.STALL, State.STALLED, "TypeMismatch"), "stall (TypeMismatch): the text"),
        (rule(Action.HOLD, State.CONTESTED, "Contested"), "hold (Contested): the text"),
        (rule(Action.WRITE, State.WAITING, "SourceMissing"), "write (SourceMissing): the text"),
        (rule(Action.WRITE, State.STALLED, "Invalid"), "write, refused by the server (Invalid): the text"),
    ],
)
def test_an_action_is_told_with_its_reason(line: RuleLine, action: str) -> None:
    assert f"    action   {action}\n" in as_text(report(line))


@pytest.mark.parametrize(
    ("permission", "text", "document"),
    [
        (Permission(), "-", {"needed": None, "given": None, "entry": None}),
        (Permission(is_needed=False), "not needed", {"needed": False, "given": None, "entry": None}),
        (Permission(is_needed=True), "needed, not given", {"needed": True, "given": False, "entry": None}),
        (
            Permission(is_needed=True, is_known=False),
            "needed, not known whether given",
            {"needed": True, "given": None, "entry": None},
        ),
        (Permission(True, "dev/*"), 'given by "dev/*"', {"needed": True, "given": True, "entry": "dev/*"}),
    ],
)
def test_consent_is_unknown_not_needed_missing_or_given(
    permission: Permission, text: str, document: dict[str, object]
) -> None:
    told = report(rule(permission=permission))

    assert f"    consent  {text}\n" in as_text(told)
    assert json.loads(as_json(told))["targets"][0]["rules"][0]["consent"] == document


@pytest.mark.parametrize(
    ("shown", "document"),
    [
        (None, None),
        ("string", {"type": "string", "count": None}),
        ("map(3 keys)", {"type": "map", "count": 3}),
        ("list(1 item)", {"type": "list", "count": 1}),
    ],
)
def test_of_a_value_the_type_is_told(shown: str | None, document: object) -> None:
    told = report(rule(value=shown))

    assert f"    value    {shown or '-'}\n" in as_text(told)
    assert json.loads(as_json(told))["targets"][0]["rules"][0]["value"] == document


def test_rules_are_counted_once_each() -> None:
    told = report(
        rule(),
        rule(Action.WRITE),
        rule(Action.REMOVE),
        rule(Action.WRITE, State.WAITING, "SourceMissing"),
        rule(Action.REFUSE, State.REFUSED, "Cycle"),
        rule(Action.STALL, State.STALLED, "Invalid"),
        rule(Action.HOLD, State.CONTESTED, "Contested"),
    )

    last = as_text(told).splitlines()[-1]
    assert last == "1 target, 7 rules: 1 in sync, 2 to write, 1 waiting, 1 refused, 1 stalled, 1 contested"


@pytest.mark.parametrize(
    ("line", "is_offline", "has_trouble"),
    [
        (rule(Action.WRITE), False, False),
        (rule(Action.WAIT, State.WAITING, "UnknownKind"), False, True),
        (rule(Action.WAIT, State.WAITING, "UnknownKind"), True, False),
        (rule(Action.WAIT, State.WAITING, "SourceUnavailable"), True, False),
        (rule(Action.REFUSE, State.REFUSED, "MalformedRule"), True, True),
    ],
)
def test_what_cannot_be_known_offline_is_no_trouble(line: RuleLine, is_offline: bool, has_trouble: bool) -> None:
    assert report(line, is_offline=is_offline).has_trouble() is has_trouble


def test_a_report_that_is_not_complete_is_trouble() -> None:
    assert report(rule(), is_complete=False).has_trouble()


def test_targets_are_sorted_by_where_they_are_and_rules_by_how_they_are_written() -> None:
    targets = [target(name="b"), target(cluster="hub"), target(name="a")]

    assert [(each.cluster, each.name) for each in in_order(targets)] == [("", "a"), ("", "b"), ("hub", "app")]
    ids = ["rules[10] x", "rules[2] y", "rules", "replace-b", "merge-z"]
    assert sorted(ids, key=order_of) == ["merge-z", "replace-b", "rules", "rules[2] y", "rules[10] x"]


def test_a_cluster_a_patch_and_notes_are_told() -> None:
    told = Report(
        "dry-run",
        [target(rule(notes=["mind this"]), cluster="hub", patch=PatchLine("json", ["data.k", "spec"]))],
        ["and that"],
    )

    lines = as_text(told).splitlines()
    assert lines[0] == "ConfigMap dev/app (configmaps.v1) in cluster hub"
    assert "    note     mind this" in lines
    assert "  patch      json: data.k, spec" in lines
    assert "note: and that" in lines


def test_signs_that_steer_a_terminal_are_shown_as_text() -> None:
    text = as_text(report(rule(to='data["\x1b[2J"]', notes=["\u202ereversed"])))

    assert '    to       data["\\x1b[2J"]\n' in text
    assert "\\u202ereversed" in text
