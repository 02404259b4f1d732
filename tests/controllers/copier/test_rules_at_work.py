"""Rules of the list from annotation to PATCH: sources, conversions, and what is said when they fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.copier.conftest import CLUSTER_ROLES, FEDERATED_SECRETS, SECRETS, World


def looked_at(world: World, rule: str, **content: Any) -> dict[str, Any]:
    """Return what becomes of a target with this rule; a second look sends nothing."""
    target = world.target({"rules": f"- {rule}"}, gvr=FEDERATED_SECRETS, **content)
    world.look(target)
    sent = len(world.patches)

    world.look(target)

    assert len(world.patches) == sent <= 1
    return world.objects[target]


def said(world: World) -> tuple[str, str]:
    ((_, reason, text),) = world.events
    assert "hunter2" not in text
    return reason, text


@pytest.mark.parametrize(
    ("options", "text", "result"),
    [
        ("as: integer", "3", 3),
        ("as: number", "1.50", 1.5),
        ("as: boolean", "true", True),
        ("as: value", '{"b": [1, null]}', {"b": [1, None]}),
        ("as: json", "x", '"x"'),
        ("encode: base64", "é", "w6k="),
        ("decode: base64", "w6k=", "é"),
        ("decode: base64, as: value", "WzFd", [1]),
    ],
)
def test_a_value_is_converted_as_the_rule_says(world: World, options: str, text: str, result: object) -> None:
    world.source(k=text)

    found = looked_at(world, f"{{to: spec.k, from: {{resource: configmap, name: s, path: data.k}}, {options}}}")

    assert found["spec"] == {"k": result}


def test_a_constant_is_converted_too(world: World) -> None:
    assert looked_at(world, "{to: spec.k, value: {b: 1}, as: json}")["spec"] == {"k": '{"b":1}'}


def test_what_is_excepted_stays_as_the_target_has_it(world: World) -> None:
    world.put(FEDERATED_SECRETS, "a", "s", spec={"node": "theirs", "image": "new", "own": {"ip": "theirs", "port": 1}})

    found = looked_at(
        world,
        "{to: spec, from: {resource: federatedsecret, name: s, path: spec}, except: [node, own.ip, not.there]}",
        spec={"node": "mine", "image": "old"},
    )

    assert found["spec"] == {"node": "mine", "image": "new", "own": {"port": 1}}


@pytest.mark.parametrize(
    ("rule", "reason", "text"),
    [
        ("{to: spec.k, value: hunter2, as: integer}", "TypeMismatch", "the value: as: integer: want an integer, or a"),
        ("{to: spec.k, from: FROM, as: integer}", "TypeMismatch", "data.k: as: integer: want an integer, or a string"),
        ("{to: spec.k, from: FROM, decode: base64}", "DecodeFailed", "data.k: decode: want base64 in the standard"),
        ("{to: spec.k, from: FROM, as: value}", "TypeMismatch", "data.k: as: value: JSON at position 0: want a JSON"),
        ("{to: spec.k, from: {resource: configmap, name: s, path: 'abs(data.k)'}}", "JMESPathFailed", "abs(): invalid"),
        (
            "{to: spec.k, from: {resource: configmap, name: s, path: 'data.k | [0]'}}",
            "SourcePathMissing",
            "the JMESPath expression finds",
        ),
    ],
)
def test_a_value_that_cannot_be_had_is_told_without_it(world: World, rule: str, reason: str, text: str) -> None:
    world.source(k="hunter2")

    found = looked_at(world, rule.replace("FROM", "{resource: configmap, name: s, path: data.k}"), spec={"k": "kept"})

    assert found["spec"] == {"k": "kept"}
    assert said(world)[0] == reason
    assert f"rule rules[0] spec.k: {text}" in said(world)[1]


def test_a_number_keeps_its_text_through_jmespath(world: World) -> None:
    world.put(FEDERATED_SECRETS, "a", "s", spec={"list": [{"name": "x", "size": 12345678901234567890}]})

    looked_at(
        world, "{to: spec.k, from: {resource: federatedsecret, name: s, path: 'spec.list[?name==`\"x\"`].size | [0]'}}"
    )

    assert world.patches[0]["spec"] == {"k": 12345678901234567890}  # type: ignore[call-overload]  # a merge patch


def test_jmespath_over_the_target_itself_settles_only_where_it_reads_something_else(world: World) -> None:
    reads_all = "{to: spec.k, from: {resource: federatedsecret, name: t, path: 'length(spec)'}}"
    reads_other = "{to: spec.k, from: {resource: federatedsecret, name: t, path: 'other.list | length(@)'}}"

    looked_at(world, reads_all)
    found = looked_at(world, reads_other, other={"list": [1, 2]})

    assert [reason for _, reason, _ in world.events] == ["SelfReference", "Copied"]
    assert "changes any of its fields, which is read for it" in world.events[0][2]
    assert found["spec"] == {"k": 2}


def test_a_cluster_scoped_source_is_named_without_a_namespace(world: World) -> None:
    world.put(
        CLUSTER_ROLES,
        "",
        "system:node",
        metadata={"annotations": {"k8s-copier.fig.org/allow-copy-to": "a"}},
        rules=[{"verbs": ["get"]}],
    )

    found = looked_at(world, "{to: spec.k, from: {resource: clusterrole, name: 'system:node', path: rules}}")

    assert found["spec"] == {"k": [{"verbs": ["get"]}]}


def test_an_integer_that_is_there_already_is_not_written(world: World) -> None:
    target = world.target(
        {"replace-spec.n": "json:3", "replace-spec.z": "json:-0"}, gvr=FEDERATED_SECRETS, spec={"n": 3, "z": 0}
    )

    world.look(target)

    assert not world.patches
    assert not world.events


def test_a_rule_that_removes_keeps_its_path_away(world: World) -> None:
    found = looked_at(world, "{op: remove, to: spec.paused}", spec={"paused": True, "k": 1})

    assert found["spec"] == {"k": 1}
    assert said(world)[0] in {"Copied", "Removed"}


def test_a_default_is_not_converted(world: World) -> None:
    found = looked_at(
        world,
        "{to: spec.k, from: {resource: secret, name: none, path: data.k}, decode: base64, "
        "onSourceMissing: {default: plain}}",
    )

    assert found["spec"] == {"k": "plain"}


def test_a_map_of_a_secret_goes_whole_without_a_warning(world: World) -> None:
    world.put(SECRETS, "a", "s", data={"k": "aHVudGVyMg=="})

    looked_at(world, "{to: spec.template.data, from: {resource: secret, name: s, path: data}}")

    assert said(world)[0] == "Copied"
