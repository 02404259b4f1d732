"""Merging by RFC 7396, checked by the RFC's own examples and pseudo code, and strategically, by what it promises."""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.compute import Document, Folded, Patch, Wish, build_patch, fold
from controllers.copier.merge import merge, named_places
from controllers.copier.paths import ABSENT, Absent, locate, parse_path, show
from controllers.copier.rules import Operation
from controllers.copier.schemas import Schema, read_kind
from controllers.copier.values import Number, Plain, Value, decode, encode, equal
from informers import GVR
from informers.testing.apiserver import openapi
from informers.testing.apiserver.kinds import Kinds

DEPLOYMENTS = GVR("apps", "v1", "deployments")
WIDGETS = GVR("example.io", "v1", "widgets")


@functools.cache
def deployments() -> Schema:
    document = openapi.document(Kinds(), "apps", "v1")
    assert document is not None
    kind = read_kind(document, DEPLOYMENTS)
    return Schema(DEPLOYMENTS, lambda: kind, str)


def plain(value: Any) -> Plain:
    """Read what a test wrote as the copier reads JSON."""
    return decode(json.dumps({"": value}).encode())[""]


# --- by RFC 7396 -------------------------------------------------------------------------------------------------

keys = st.sampled_from(["a", "b", "c"])
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["", "x"])),
    lambda inner: st.one_of(st.dictionaries(keys, inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=10,
)


def reference(target: Any, patch: Any) -> Any:
    """Merge as the RFC's pseudo code does."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = reference(result.get(name), value)
    return result


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert merge(plain(target), plain(patch)) == plain(result)


@settings(deadline=None)  # the machine may be busy
@given(values.filter(lambda found: found is not None), values)
def test_a_merge_is_the_one_of_the_rfc(target: Any, patch: Any) -> None:
    assert merge(plain(target), plain(patch)) == plain(reference(target, patch))


@settings(deadline=None)  # the machine may be busy
@given(values, values)
def test_merging_twice_is_merging_once(target: Any, patch: Any) -> None:
    once = merge(plain(target), plain(patch))

    assert merge(once, plain(patch)) == once


def test_a_number_is_merged_as_it_was_written() -> None:
    assert merge({"n": Number("1.0")}, {"m": Number("1e3")}) == {"n": Number("1.0"), "m": Number("1e3")}


def test_a_merge_names_what_it_sets_and_not_what_it_deletes() -> None:
    place = locate(None, parse_path("spec"))

    named = named_places(place, plain({"a": "1", "m": {"b": [1], "gone": None, "empty": {}}, "old": None}))

    assert sorted(map(show, named)) == ["spec.a", "spec.m.b", 'spec.m.empty[""]']


def test_a_strategic_merge_names_elements_by_their_key_and_other_lists_as_a_whole() -> None:
    patch = {
        "l": [{"name": "a", "v": 1}],
        "by-value": ["x"],
        "$deleteFromPrimitiveList/other": ["y"],
        "m": {"$retainKeys": ["x"], "x": 1},
        "replaced": [{"$patch": "replace"}, {"name": "b"}],
    }

    named = named_places((), plain(patch), {("l",): "name", ("replaced",): "name", ("by-value",): ""})

    assert sorted(map(show, named)) == ["by-value", "l[name=a].name", "l[name=a].v", "m", "other", "replaced"]


def test_a_drop_goes_beside_a_strategic_merge_that_does_not_name_it() -> None:
    live = deployment({"containers": [{"name": "old"}, {"name": "app", "image": "i"}]})
    wish = Wish(
        "r",
        parse_path("spec.template.spec"),
        Value(plain({"containers": [{"name": "app"}]})),
        Operation.STRATEGIC_MERGE,
    )
    drops = [locate(live, parse_path(f"spec.template.spec.containers[name={name}]")) for name in ("old", "app")]

    folded = fold(live, [wish], DEPLOYMENTS, schema=deployments(), drops=drops)

    assert pod_of(folded) == {"containers": [{"name": "app", "image": "i"}]}
    assert folded.dropped == drops[:1]


# --- strategically -----------------------------------------------------------------------------------------------


def merged(live: Any, patch: Any, to: str = "spec.template.spec", schema: Schema | None = None) -> Folded:
    wish = Wish("r", parse_path(to), Value(plain(patch)), Operation.STRATEGIC_MERGE)
    return fold(deployment(live), [wish], DEPLOYMENTS, schema=schema or deployments())


def deployment(pod: Any) -> Document:
    made = plain({"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"template": {"spec": pod}}})
    assert isinstance(made, dict)
    return made


def pod_of(folded: Folded) -> Any:
    assert [each.error for each in folded.outcomes] == [None]
    return json.loads(encode(folded.wanted))["spec"]["template"]["spec"]


def error_of(folded: Folded, reason: str) -> str:
    (outcome,) = folded.outcomes
    assert outcome.error is not None
    assert outcome.error.reason == reason
    return outcome.error.text


def patch_of(live: Any, folded: Folded) -> Patch | None:
    return build_patch(deployment(live), folded, uid="u", resource_version="1")


names = st.sampled_from("abcd")
env = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, names, st.sampled_from(["", "x"])),
    max_size=2,
    unique_by=lambda each: str(each["name"]),
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": names},
        optional={
            "image": st.sampled_from(["i", "j"]),
            "env": env,
            "args": st.lists(st.sampled_from(["-v", "-w"]), max_size=2),
            "ports": st.lists(st.integers(80, 82).map(lambda port: {"containerPort": port}), max_size=2, unique_by=str),
            "resources": st.just({"limits": {"memory": "1Gi"}}),
        },
    ),
    max_size=3,
    unique_by=lambda each: str(each["name"]),
)
pods = st.fixed_dictionaries({}, optional={"containers": containers, "nodeSelector": st.just({"a": "b"})})
pod_patches = st.fixed_dictionaries(
    {},
    optional={
        "containers": containers,
        "hostNetwork": st.sampled_from([True, None]),
        "nodeSelector": st.sampled_from([{"a": None}, {"c": "d"}]),
    },
)


def contains(result: Any, patch: Any, field: str = "") -> bool:
    """Tell whether a result shows everything that a patch without directives asks for."""
    if isinstance(patch, dict):
        return all(
            name not in result if value is None else contains(result.get(name, []), value, name)
            for name, value in patch.items()
        )
    if field in {"containers", "env", "ports"}:
        key = "containerPort" if field == "ports" else "name"
        return all(contains(next(each for each in result if each[key] == item[key]), item) for item in patch)
    return bool(result == patch)


@settings(deadline=None)  # the machine may be busy
@given(pods, pod_patches)
def test_a_strategic_merge_shows_its_patch_and_keeps_what_it_does_not_name(live: Any, patch: Any) -> None:
    result = pod_of(merged(live, patch))

    assert contains(result, patch)
    before = [each["name"] for each in live.get("containers", [])]
    assert [each["name"] for each in result.get("containers", [])][: len(before)] == before
    named = {each["name"] for each in patch.get("containers", [])}
    for each in live.get("containers", []):
        if each["name"] not in named:
            assert each in result["containers"]


@settings(deadline=None)  # the machine may be busy
@given(pods, pod_patches)
def test_a_strategic_merge_is_in_sync_with_itself(live: Any, patch: Any) -> None:
    once = pod_of(merged(live, patch))

    assert patch_of(once, merged(once, patch)) is None


@settings(deadline=None)  # the machine may be busy
@given(pods, pod_patches)
def test_elements_are_changed_one_by_one(live: Any, patch: Any) -> None:
    folded = merged(live, patch)
    built = patch_of(live, folded)

    if built is None:
        assert equal(deployment(live), folded.wanted)
        return
    before, change = json.loads(encode(deployment(live))), json.loads(built.body)
    after = jsonpatch.apply_patch(before, change) if built.kind == "json" else reference(before, change)
    assert after == json.loads(encode(folded.wanted))
    if built.kind == "json":
        pointers = {each["path"] for each in change}
        assert "/spec/template/spec/containers" not in pointers or "containers" not in live


SIDECAR = {"containers": [{"name": "log", "image": "log:1"}]}


def test_a_new_element_goes_to_the_end_and_a_changed_one_is_tested() -> None:
    live = {"containers": [{"name": "app", "image": "app:1"}, {"name": "other"}]}

    patch = patch_of(live, merged(live, {"containers": [{"name": "new"}, {"name": "app", "image": "app:2"}]}))

    assert patch is not None
    assert json.loads(patch.body)[2:] == [
        {"op": "test", "path": "/spec/template/spec/containers/0/name", "value": "app"},
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "app:2"},
        {"op": "add", "path": "/spec/template/spec/containers/-", "value": {"name": "new"}},
    ]


def test_defaults_of_the_server_inside_of_an_element_are_no_difference() -> None:
    live = {"containers": [{"name": "app"}, {**SIDECAR["containers"][0], "imagePullPolicy": "IfNotPresent"}]}

    assert patch_of(live, merged(live, SIDECAR)) is None


@pytest.mark.parametrize(
    ("patch", "result"),
    [
        ({"containers": [{"name": "a", "$patch": "delete"}]}, {"containers": [{"name": "b", "args": ["x"]}]}),
        (
            {"containers": [{"$patch": "replace"}, {"name": "c", "image": None}]},
            {"containers": [{"name": "c"}]},
        ),
        (
            {"containers": [{"name": "b", "$patch": "merge", "tty": True}]},
            {"containers": [{"name": "a"}, {"name": "b", "args": ["x"], "tty": True}]},
        ),
        ({"containers": [{"name": "b", "$patch": "spin"}]}, "TypeMismatch"),
        ({"nodeSelector": {"$patch": "replace", "z": "1"}}, {"nodeSelector": {"z": "1"}}),
        ({"nodeSelector": {"$patch": "merge", "z": "1"}}, {"nodeSelector": {"x": "1", "y": "2", "z": "1"}}),
        ({"nodeSelector": {"$patch": "delete"}}, {"nodeSelector": {}}),
        ({"nodeSelector": {"$retainKeys": ["y", "z"], "z": "1"}}, {"nodeSelector": {"y": "2", "z": "1"}}),
        ({"containers": [{"name": "b", "args": ["y"]}]}, {"containers": [{"name": "a"}, {"name": "b", "args": ["y"]}]}),
        ({"securityContext": {"$retainKeys": ["x"], "x": {"y": None}}}, {"securityContext": {"x": {}}}),
        (
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "tty": True}]},
            {"containers": [{"name": "a", "tty": True}, {"name": "b", "args": ["x"]}]},
        ),
    ],
)
def test_directives_say_what_a_patch_cannot(patch: Any, result: Any) -> None:
    live = {"containers": [{"name": "a"}, {"name": "b", "args": ["x"]}], "nodeSelector": {"x": "1", "y": "2"}}

    folded = merged(live, patch)

    if isinstance(result, str):
        error_of(folded, result)
    else:
        assert pod_of(folded) == {**live, **result}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"$patch": "replace", "z": "1"}, {"z": "1"}),
        ({"$patch": "merge", "z": "1"}, {"z": "1"}),
        ({"$patch": "delete", "z": "1"}, ABSENT),
        ({"x": {"$patch": "delete", "z": "1"}, "y": {"$patch": "replace", "z": "1"}}, {"y": {"z": "1"}}),
        (
            {"l": [{"name": "a", "$patch": "delete"}, {"$patch": "replace"}, {"name": "b", "$patch": "merge"}]},
            {"l": [{"name": "b"}]},
        ),
        ({"$patch": "spin"}, "TypeMismatch"),
        ({"x": {"$patch": []}}, "TypeMismatch"),
    ],
)
def test_directives_mean_the_same_where_nothing_is_yet(value: Any, written: Any) -> None:
    new = {"containers": [{"name": "new", "nodeSelector": value}]}
    for live, patch in (({}, {"nodeSelector": value}), ({}, new), ({"containers": [{"name": "old"}]}, new)):
        folded = merged(live, patch)
        if isinstance(written, str):
            error_of(folded, written)
            continue

        once = pod_of(folded)

        assert once.get("containers", [once])[-1].get("nodeSelector", ABSENT) == written
        assert patch_of(once, merged(once, patch)) is None


def test_what_is_to_be_deleted_where_nothing_is_leaves_nothing() -> None:
    for patch, to in (({"volumes": [{"name": "v", "$patch": "delete"}]}, ""), ({"a": None}, ".nodeSelector")):
        assert pod_of(merged({"x": 1}, patch, to=f"spec.template.spec{to}")) == {"x": 1}


TCP, UDP = {"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}
HTTP = {"containerPort": 80}


@pytest.mark.parametrize(
    ("live", "asked", "result"),
    [
        ([], [TCP, UDP], [TCP, UDP]),
        ([HTTP, UDP], [TCP, UDP], [HTTP, UDP, TCP]),
        ([UDP, TCP], [TCP, UDP], [UDP, TCP]),
        ([{**TCP, "name": "old"}], [{**TCP, "name": "dns"}, UDP], [{**TCP, "name": "dns"}, UDP]),
        ([TCP, UDP], [UDP], [TCP, UDP]),
    ],
)
def test_ports_of_one_number_are_each_an_element_of_its_own(live: Any, asked: Any, result: Any) -> None:
    pod = {"containers": [{"name": "a", "ports": live}]}
    patch = {"containers": [{"name": "a", "ports": asked}]}

    once = pod_of(merged(pod, patch))

    assert once["containers"][0]["ports"] == result
    assert patch_of(once, merged(once, patch)) is None


def test_items_are_deleted_from_a_list_of_strings() -> None:
    live = plain({"metadata": {"finalizers": ["a/a", "b/b", "c/c"]}})
    assert isinstance(live, dict)
    patch: Plain = {"$deleteFromPrimitiveList/finalizers": ["b/b"], "finalizers": ["d/d", "a/a"]}
    wish = Wish("r", parse_path("metadata"), Value(patch), Operation.STRATEGIC_MERGE)

    folded = fold(live, [wish], DEPLOYMENTS, schema=deployments())
    built = build_patch(live, folded, uid="u", resource_version="1")

    assert folded.wanted == {"metadata": {"finalizers": ["a/a", "c/c", "d/d"]}}
    assert built is not None
    assert json.loads(built.body)[2:] == [
        {"op": "test", "path": "/metadata/finalizers/1", "value": "b/b"},
        {"op": "remove", "path": "/metadata/finalizers/1"},
        {"op": "add", "path": "/metadata/finalizers/-", "value": "d/d"},
    ]


@pytest.mark.parametrize("live", [{}, {"containers": [{"name": "a"}]}])
def test_an_element_without_its_merge_key_is_a_type_mismatch(live: Any) -> None:
    text = error_of(merged(live, {"containers": [{"name": "a"}, {"image": "secret"}]}), "TypeMismatch")

    assert text == ("spec.template.spec.containers[1]: want a map with name, by which this list is merged, found none")


def test_an_element_that_several_could_be_is_a_type_mismatch_and_nothing_is_written() -> None:
    live = {"containers": [{"name": "a", "ports": [{"containerPort": 53, "protocol": p} for p in ("TCP", "UDP")]}]}
    patch = {"containers": [{"name": "a", "ports": [{"containerPort": 53, "name": "dns"}]}]}

    folded = merged(live, patch)

    assert "several items" in error_of(folded, "TypeMismatch")
    assert patch_of(live, folded) is None


def test_a_text_of_json_is_hinted_at_its_conversion() -> None:
    assert error_of(merged({}, "{}"), "TypeMismatch").endswith("found string; JSON in a text takes as: value")


@pytest.mark.parametrize("patch", ["text", [{"name": "a"}], None])
def test_what_is_no_map_is_not_merged(patch: Any) -> None:
    assert "want a map to merge" in error_of(merged({}, patch), "TypeMismatch")


def test_a_value_of_a_directive_is_not_told() -> None:
    text = error_of(merged({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"$patch": "hunter2"}}), "TypeMismatch")

    assert "hunter2" not in text
    assert "want replace, delete or merge" in text


def test_a_path_below_a_field_without_schema_is_unsupported() -> None:
    text = error_of(merged({}, {"a": "b"}, to="spec.template.spec.podSpec"), "StrategicMergeUnsupported")

    assert text.startswith("step 4 of spec.template.spec.podSpec: deployments.v1.apps has no such field; use merge-")


def test_a_kind_without_the_media_type_is_unsupported() -> None:
    schema = Schema(WIDGETS, lambda: read_kind({"paths": {}}, WIDGETS), str)

    text = error_of(merged({}, {"a": "b"}, schema=schema), "StrategicMergeUnsupported")

    assert "widgets.v1.example.io has no merge keys" in text


def test_a_merge_into_one_element_goes_by_its_own_keys() -> None:
    live = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}

    folded = merged(live, {"env": [{"name": "Y", "value": "2"}]}, to="spec.template.spec.containers[name=a]")

    assert pod_of(folded)["containers"][0]["env"] == [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]


# --- amounts -----------------------------------------------------------------------------------------------------


def test_an_equal_amount_written_in_another_way_is_no_difference() -> None:
    live = {"containers": [{"name": "a", "resources": {"limits": {"memory": "2Gi", "cpu": "1"}}}]}
    limits = {"memory": "2048Mi", "cpu": "1000m"}
    patch = {"containers": [{"name": "a", "resources": {"limits": limits}}, {"name": "b"}]}

    assert pod_of(merged(live, patch))["containers"] == [*live["containers"], {"name": "b"}]


def test_another_amount_is_a_difference() -> None:
    live = {"containers": [{"name": "a", "resources": {"limits": {"memory": "2Gi"}}}]}
    patch = {"containers": [{"name": "a", "resources": {"limits": {"memory": "2G"}}}]}

    assert pod_of(merged(live, patch)) == patch


def test_equal_amounts_are_different_texts_where_a_field_is_no_quantity() -> None:
    live = {"containers": [{"name": "a", "image": "1000m"}]}

    assert pod_of(merged(live, {"containers": [{"name": "a", "image": "1"}]}))["containers"][0]["image"] == "1"


def never() -> Any:
    raise AssertionError("nobody needs to know")


def test_the_schema_is_not_asked_for_when_nothing_depends_on_it() -> None:
    live: Document = {"data": {"n": "1000m"}, "spec": {"n": "1", "m": Number("2")}}
    texts = {"data.n": "1", "spec.n": "2", "spec.m": "x"}
    wishes = [Wish(text, parse_path(text), Value(value)) for text, value in texts.items()]

    folded = fold(live, wishes, GVR("", "v1", "configmaps"), schema=Schema(WIDGETS, never, never))

    assert folded.wanted == {"data": {"n": "1"}, "spec": {"n": "2", "m": "x"}}


def test_what_is_not_there_is_absent_to_a_merge() -> None:
    assert isinstance(merge(ABSENT, {"a": None}), Absent)
    assert merge(ABSENT, {}) == {}
