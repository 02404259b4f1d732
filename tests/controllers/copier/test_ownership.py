"""Whose a value is, by the server's record, and so whether it may be taken away again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.memory import fingerprint
from controllers.copier.ownership import (
    BY_NUMBER,
    CHANGED,
    NOT_OURS,
    SHARED,
    Record,
    given_places,
    managers_of,
    read_record,
    removable,
)
from controllers.copier.paths import Absent, Key, Place, locate, look, meet, parse_path, show, take
from controllers.copier.rules import Operation
from controllers.copier.values import Plain, copy, decode, encode, equal
from tests.controllers.copier.conftest import nested

US = "k8s-copier"


def record_of(*entries: Mapping[str, Any]) -> Record:
    return read_record([{"operation": "Update", **entry} for entry in entries], US)


def place_of(text: str) -> Place:
    return locate(None, parse_path(text))


def judge(
    live: dict[str, Plain], at: str, record: Record, *, others: tuple[str, ...] = (), known: bool = True
) -> tuple[list[str], dict[str, list[str]]]:
    """Ask about all that is at a place; return what goes and what stays, as text."""
    place = place_of(at)
    value = look(live, place)
    assert not isinstance(value, Absent)
    leaves = given_places(Operation.REPLACE, place, value)
    prints = {leaf: fingerprint(look(live, leaf)) if known else None for leaf in leaves}  # type: ignore[arg-type]  # there
    covered = [place_of(other) for other in others]
    verdict = removable(live, place, prints, record, is_covered=lambda leaf: any(meet(leaf, each) for each in covered))
    return [show(each) for each in verdict.drops], {
        reason: [show(each) for each in places] for reason, places in verdict.kept.items()
    }


DEPLOYMENT: dict[str, Plain] = decode(
    b"""{"spec": {"replicas": 3, "template": {"spec": {
      "containers": [
        {"name": "app", "image": "a:1", "ports": [{"containerPort": 80, "protocol": "TCP"}], "args": ["x", "y"]},
        {"name": "side", "image": "s:1", "resources": {}}
      ],
      "nodeSelector": {"disk": "ssd"}}}}}"""
)
CONTAINERS = ("spec", "template", "spec", "containers")


def in_containers(elements: Mapping[str, Any]) -> dict[str, Any]:
    return {"f:spec": {"f:template": {"f:spec": {"f:containers": elements}}}}


SIDE = 'k:{"name":"side"}'
OURS = {"manager": US, "fieldsV1": in_containers({SIDE: {".": {}, "f:name": {}, "f:image": {}, "f:resources": {}}})}


def test_a_value_that_only_the_copier_set_goes() -> None:
    live: dict[str, Plain] = {"data": {"a": "1", "b": "2"}}
    ours = {"manager": US, "fieldsV1": {"f:data": {"f:a": {}}}}
    others = {"manager": "kubectl", "fieldsV1": {"f:data": {".": {}, "f:b": {}}}}

    assert judge(live, "data", record_of(ours, others)) == (["data.a"], {NOT_OURS: ["data.b"]})


@pytest.mark.parametrize(
    "entry",
    [
        {"manager": US, "operation": "Apply", "fieldsV1": {"f:data": {"f:a": {}}}},
        {"manager": US, "subresource": "status", "fieldsV1": {"f:data": {"f:a": {}}}},
        {"manager": "other", "fieldsV1": {"f:data": {"f:a": {}}}},
        {"manager": US, "fieldsV1": {"f:data": {}, "f:other": {"f:x": {}}}, "time": 3},
        {"manager": US},
    ],
)
def test_what_is_set_in_another_way_or_by_others_is_not_the_copiers(entry: dict[str, Any]) -> None:
    rival = {"manager": "rival", "fieldsV1": {"f:data": {"f:other": {}}}}

    assert judge({"data": {"a": "1"}}, "data.a", record_of(entry, rival)) == ([], {NOT_OURS: ["data.a"]})


@pytest.mark.parametrize("operation", ["Update", "Apply"])
def test_what_somebody_else_set_to_the_same_value_is_shared(operation: str) -> None:
    fields = nested([("data", "a")])
    others = {"manager": "helm", "operation": operation, "fieldsV1": fields}

    verdict = judge({"data": {"a": "1"}}, "data.a", record_of({"manager": US, "fieldsV1": fields}, others))

    assert verdict == ([], {SHARED: ["data.a"]})


def test_whoever_made_the_empty_map_around_a_value_has_not_set_the_value() -> None:
    live: dict[str, Plain] = {"spec": {"k": "v"}}
    record = record_of(
        {"manager": US, "fieldsV1": {"f:spec": {"f:k": {}}}}, {"manager": "kubectl", "fieldsV1": {"f:spec": {}}}
    )

    assert judge(live, "spec.k", record) == (["spec.k"], {})


def test_of_what_is_one_value_to_the_server_nothing_goes_if_others_set_it() -> None:
    live: dict[str, Plain] = {"spec": {"selector": {"a": "1", "b": "2"}}}
    ours = {"manager": US, "fieldsV1": {"f:spec": {"f:selector": {}}}}
    rival = {"manager": "rival", "fieldsV1": {"f:spec": {"f:selector": {}}}}

    assert judge(live, "spec.selector.a", record_of(ours)) == (["spec.selector.a"], {})
    assert judge(live, "spec.selector.a", record_of(ours, rival)) == ([], {SHARED: ["spec.selector.a"]})


def test_an_element_of_a_list_goes_only_if_all_of_it_is_the_copiers() -> None:
    at = "spec.template.spec.containers[name=side]"
    whole = place_of(at)
    partly = {"manager": US, "fieldsV1": in_containers({SIDE: {"f:image": {}}})}
    rival = {"manager": "rival", "fieldsV1": in_containers({SIDE: {"f:resources": {"f:limits": {}}}})}

    def ask(record: Record) -> object:
        prints = {whole: fingerprint(look(DEPLOYMENT, whole))}  # type: ignore[arg-type]  # it is there
        verdict = removable(DEPLOYMENT, whole[:-1], prints, record, is_covered=lambda _: False)
        return verdict.drops or list(verdict.kept)

    assert ask(record_of(OURS)) == (whole,)
    assert ask(record_of(partly)) == [NOT_OURS]
    assert ask(record_of(OURS, rival)) == [SHARED]


def test_elements_are_known_by_all_their_keys_and_values_in_sets_by_themselves() -> None:
    at = "spec.template.spec.containers[name=app]"
    port = 'k:{"containerPort":80,"protocol":"TCP"}'
    app = {
        'k:{"name":"app"}': {"f:ports": {port: {".": {}, "f:containerPort": {}}}, "f:args": {'v:"x"': {}, "i:1": {}}}
    }
    record = record_of({"manager": "kubelet", "fieldsV1": in_containers(app)})

    for path, names in (
        (f"{at}.ports[containerPort=80].containerPort", ["kubelet"]),
        (f"{at}.ports[containerPort=80].protocol", []),
        (f"{at}.args[0]", ["kubelet"]),
        (f"{at}.args[1]", ["kubelet"]),
        (f"{at}.image", []),
        (at, ["kubelet"]),
    ):
        assert list(managers_of(record, DEPLOYMENT, place_of(path))) == names, path


def test_an_element_found_by_its_number_stays() -> None:
    record = record_of({"manager": US, "fieldsV1": {"f:spec": {"f:items": {}}}})

    assert judge({"spec": {"items": ["a"]}}, "spec.items[0]", record) == ([], {BY_NUMBER: ["spec.items[0]"]})


def test_a_map_inside_a_copied_map_goes_with_all_that_is_in_it_but_the_copied_map_stays() -> None:
    live: dict[str, Plain] = {"spec": {"a": {"x": "1", "y": {"z": "2"}}, "b": {"x": "1", "own": "2"}}}
    fields = nested([("spec", "a", "x"), ("spec", "a", "y", "z"), ("spec", "b", "x")])
    record = record_of(
        {"manager": US, "fieldsV1": fields}, {"manager": "me", "fieldsV1": nested([("spec", "b", "own")])}
    )

    drops, kept = judge(live, "spec", record)

    assert drops == ["spec.a", "spec.b.x"]
    assert kept == {NOT_OURS: ["spec.b.own"]}


def test_the_latest_of_the_others_is_named_first() -> None:
    fields = nested([("data", "a")])
    record = record_of(
        {"manager": "early", "time": "2030-01-01T00:00:00Z", "fieldsV1": fields},
        {"manager": US, "time": "2030-01-03T00:00:00Z", "fieldsV1": fields},
        {"manager": "late", "time": "2030-01-02T00:00:00Z", "fieldsV1": fields},
        {"manager": "elsewhere", "time": "2030-01-04T00:00:00Z", "fieldsV1": {"f:data": {"f:b": {}}}},
    )

    assert list(managers_of(record, {"data": {"a": "1"}}, place_of("data.a"))) == ["late", "early"]


@pytest.mark.parametrize("record", [None, "x", [], ["x"], [{"manager": 3, "fieldsV1": "x"}], [{"manager": US}]])
def test_without_a_record_nothing_is_the_copiers(record: Any) -> None:
    assert judge({"data": {"a": "1"}}, "data.a", read_record(record, US))[0] == []


def test_a_strategic_merge_gives_what_is_in_maps_and_in_elements_found_by_their_key() -> None:
    patch = decode(
        b"""{"replicas": 3, "$patch": "merge", "gone": null, "args": ["x"], "sub": {"k": {}}, "refs": [{"name": "r"}],
        "containers": [{"name": "side", "image": "s", "env": [{"name": "A", "value": "1"}]}, {"name": "x", "$patch": "delete"}]}"""
    )
    keyed: dict[tuple[str, ...], str] = {
        ("spec", "containers"): "name",
        ("spec", "containers", "env"): "name",
        ("spec", "refs"): "name",
        ("spec", "args"): "",
    }

    found = given_places(Operation.STRATEGIC_MERGE, place_of("spec"), patch, keyed)

    assert sorted(map(show, found)) == [
        "spec.containers[name=side].env[name=A].value",
        "spec.containers[name=side].image",
        "spec.refs[name=r]",
        "spec.replicas",
        "spec.sub.k",
    ]
    assert given_places(Operation.REMOVE, place_of("spec"), None) == frozenset()


@pytest.mark.parametrize(
    ("owned", "expected"),
    [
        ({SIDE: {".": {}, "f:name": {}, "f:image": {}, "f:resources": {}}}, ["[name=side]"]),
        ({SIDE: {"f:image": {}}}, ["[name=side].image"]),
        ({'k:{"name":"app"}': {"f:image": {}}}, []),
    ],
)
def test_an_element_that_a_strategic_merge_added_goes_whole_and_of_others_what_it_set(
    owned: dict[str, Any], expected: list[str]
) -> None:
    at = place_of("spec.template.spec")
    patch = decode(b'{"containers": [{"name": "side", "image": "s:1"}]}')
    keyed: dict[tuple[str, ...], str] = {CONTAINERS: "name"}
    leaves = given_places(Operation.STRATEGIC_MERGE, at, patch, keyed)
    prints = {leaf: fingerprint(look(DEPLOYMENT, leaf)) for leaf in leaves}  # type: ignore[arg-type]  # it is there
    record = record_of(
        {"manager": US, "fieldsV1": in_containers(owned)}, {"manager": "me", "fieldsV1": nested([("x", "y")])}
    )

    verdict = removable(DEPLOYMENT, at, dict(prints), record, is_covered=lambda _: False)

    assert [show(place) for place in verdict.drops] == [".".join(CONTAINERS) + each for each in expected]


NAMES = st.sampled_from("abc")
LIVE = st.recursive(
    st.sampled_from(["1", "2"]), lambda inside: st.dictionaries(NAMES, inside, min_size=1, max_size=3), max_leaves=8
)


def leaf_paths(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in leaf_paths(value, (*path, key))]
    return [path]


@settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(NAMES, LIVE, min_size=1, max_size=3), st.data())
def test_nothing_goes_that_others_set_that_changed_or_that_another_rule_is_about(
    spec: dict[str, Any], data: st.DataObject
) -> None:
    live: dict[str, Plain] = {"spec": copy(spec)}
    paths = leaf_paths(live)
    setters = {path: data.draw(st.sets(st.sampled_from([US, "me", "helm"]))) for path in paths}
    changed = data.draw(st.sets(st.sampled_from(paths)))
    given_paths = data.draw(st.sets(st.sampled_from(paths)))
    covered = data.draw(
        st.sets(st.sampled_from([path[:length] for path in paths for length in range(2, 5)]), max_size=2)
    )
    record = record_of(
        *(
            {"manager": name, "fieldsV1": nested(path for path in paths if name in setters[path])}
            for name in (US, "me", "helm")
        )
    )
    places: dict[Place, tuple[str, ...]] = {tuple(map(Key, path)): path for path in paths}
    prints: dict[Place, bytes | None] = {
        place: b"changed" if path in changed else fingerprint(look(live, place))  # type: ignore[arg-type]  # it is there
        for place, path in places.items()
        if path in given_paths
    }
    rules = [tuple(map(Key, path)) for path in covered]

    verdict = removable(
        live, (Key("spec"),), prints, record, is_covered=lambda leaf: any(meet(leaf, each) for each in rules)
    )

    after = decode(encode(live))
    for place in verdict.drops:
        take(after, place)
    gone = {path for place, path in places.items() if isinstance(look(after, place), Absent)}
    ours = {
        path
        for place, path in places.items()
        if path in given_paths
        and path not in changed
        and setters[path] == {US}
        and not any(meet(place, each) for each in rules)
    }
    assert gone == ours
    assert "spec" in after
    told = {place for places_kept in verdict.kept.values() for place in places_kept}
    silent = {place for place in prints if any(meet(place, each) for each in rules)}
    assert told == {place for place in prints if places[place] not in gone} - silent
    assert all(equal(look(live, place), look(after, place)) for place, path in places.items() if path not in gone)  # type: ignore[arg-type]  # both are there


def test_a_value_that_changed_is_said_to_have_changed() -> None:
    live: dict[str, Plain] = {"data": {"a": "new"}}
    place = place_of("data.a")
    record = record_of({"manager": "me", "fieldsV1": {"f:data": {"f:a": {}}}})

    verdict = removable(live, place, {place: fingerprint("old")}, record, is_covered=lambda _: False)

    assert verdict.kept == {CHANGED: [place]}


def test_what_was_written_in_another_version_of_the_kind_is_the_copiers_too() -> None:
    old, new = ({"manager": US, "fieldsV1": nested([("spec", name)])} for name in ("a", "b"))
    record = record_of({**old, "apiVersion": "example.io/v1beta1"}, {**new, "apiVersion": "example.io/v1"})

    assert judge({"spec": {"a": "1", "b": "2", "c": "3"}}, "spec", record) == (
        ["spec.a", "spec.b"],
        {NOT_OURS: ["spec.c"]},
    )
