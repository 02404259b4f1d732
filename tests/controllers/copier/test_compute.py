"""Folding rules and building the one patch: checked by appliers that are not ours."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.compute import Document, Folded, Patch, Wish, build_patch, fold
from controllers.copier.paths import ABSENT, Key, Place, locate, look, parse_path, put, take
from controllers.copier.values import Number, Plain, Value, copy, decode, encode, equal, parse_constant
from informers import GVR

WIDGETS = GVR("example.io", "v1", "widgets")
CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")

keys = st.sampled_from(["a", "b", "c", "a.b", "x/y", "t~0"])
scalars: st.SearchStrategy[Plain] = st.one_of(
    st.none(), st.booleans(), st.sampled_from(["", "x", "1"]), st.sampled_from(["0", "1", "1.0", "1e3"]).map(Number)
)


def containers(inner: st.SearchStrategy[Plain]) -> st.SearchStrategy[Plain]:
    elements = st.builds(lambda name, value: {"name": name, "v": value}, st.sampled_from("pqr"), inner)
    return st.one_of(
        st.dictionaries(keys, inner, max_size=3), st.lists(inner, max_size=3), st.lists(elements, max_size=3)
    )


values: st.SearchStrategy[Plain] = st.recursive(scalars, containers, max_leaves=10)
documents = st.dictionaries(keys, values, max_size=3).map(lambda spec: document(spec=spec))
path_texts = st.builds(
    lambda words: "spec" + "".join(words),
    st.lists(st.sampled_from([".a", ".b", ".c", '["a.b"]', '["x/y"]', "[0]", "[1]", "[name=p]", ".v"]), max_size=4),
)
wish_lists = st.dictionaries(path_texts, st.one_of(st.none(), values.map(Value)), max_size=4).map(
    lambda found: [Wish(f"rule-{text}", parse_path(text), value) for text, value in found.items()]
)


def document(**fields: Plain) -> Document:
    return {"metadata": {"uid": "u", "resourceVersion": "1", "name": "t"}, **fields}


def patch_of(live: Document, folded: Folded) -> Patch | None:
    return build_patch(live, folded, uid="u", resource_version="1")


def apply_merge(current: Any, patch: Any) -> Any:
    """Apply a merge patch as the pseudo code of RFC 7396 does."""
    if not isinstance(patch, dict):
        return patch
    result = dict(current) if isinstance(current, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge(result.get(name), value)
    return result


def applied(live: Document, patch: Patch) -> Document:
    before, change = json.loads(encode(live)), json.loads(patch.body)
    after = apply_merge(before, change) if patch.kind == "merge" else jsonpatch.apply_patch(before, change)
    return decode(json.dumps(after).encode())


def plain(text: str) -> Plain:
    return parse_constant(text).plain


def wishes(**values: str | None) -> list[Wish]:
    return [
        Wish(f"replace-{text}", parse_path(text.replace("_", ".")), None if value is None else parse_constant(value))
        for text, value in values.items()
    ]


def same_json(one: Plain, other: Plain) -> bool:
    """Compare as the appliers see it: numbers by value, types kept."""
    return json.dumps(json.loads(encode(one)), sort_keys=True) == json.dumps(json.loads(encode(other)), sort_keys=True)


@settings(deadline=None)  # the machine may be busy
@given(documents, wish_lists)
def test_the_patch_turns_live_into_wanted(live: Document, asked: list[Wish]) -> None:
    folded = fold(live, asked, WIDGETS)

    patch = patch_of(live, folded)

    if patch is None:
        assert equal(live, folded.wanted)
    else:
        assert same_json(applied(live, patch), folded.wanted)


@settings(deadline=None)  # the machine may be busy
@given(documents, wish_lists)
def test_nothing_outside_the_rules_changes(live: Document, asked: list[Wish]) -> None:
    folded = fold(live, asked, WIDGETS)

    before, after = copy(live), copy(folded.wanted)
    for outcome in sorted(folded.outcomes, key=lambda each: -len(each.place)):
        blank(before, outcome.place)
        blank(after, outcome.place)
    assert same_json(without_empty(before), without_empty(after))


def blank(node: Plain, place: Place) -> None:
    """Cut off what a rule may write; parents made for it are empty then."""
    assert isinstance(node, dict)
    if isinstance(place[-1], Key):
        take(node, place)
    elif look(node, place) is not ABSENT:
        put(node, place, None)


def without_empty(node: Plain) -> Plain:
    if isinstance(node, dict):
        inner = {key: without_empty(value) for key, value in node.items()}
        return {key: value for key, value in inner.items() if value not in ({}, None)}
    return [without_empty(item) for item in node] if isinstance(node, list) else node


@settings(deadline=None)  # the machine may be busy
@given(documents, wish_lists, st.randoms())
def test_the_order_of_rules_does_not_matter(live: Document, asked: list[Wish], random: Any) -> None:
    shuffled = list(asked)
    random.shuffle(shuffled)

    assert encode(fold(live, asked, WIDGETS).wanted) == encode(fold(live, shuffled, WIDGETS).wanted)


@settings(deadline=None)  # the machine may be busy
@given(documents, wish_lists)
def test_applying_twice_is_applying_once(live: Document, asked: list[Wish]) -> None:
    once = fold(live, asked, WIDGETS)
    usable = [each.wish for each in once.outcomes if each.error is None and each.wish.value is not None]
    settled = fold(live, usable, WIDGETS)

    if all(each.error is None for each in settled.outcomes):
        again = fold(settled.wanted, usable, WIDGETS)
        assert patch_of(settled.wanted, again) is None


@settings(deadline=None)  # the machine may be busy
@given(documents, wish_lists)
def test_a_rule_that_cannot_deliver_keeps_its_path(live: Document, asked: list[Wish]) -> None:
    held = [wish for wish in asked if wish.value is None]
    broad = [wish for wish in asked if wish.value is not None and all(wish.to.weight < each.to.weight for each in held)]

    wanted = fold(live, [*held, *broad], WIDGETS).wanted

    for wish in held:
        place = locate(live, wish.to)
        before, after = look(live, place), look(wanted, place)
        parents = [look(wanted, place[:length]) for length in range(1, len(place))]
        if all(isinstance(parent, dict) for parent in parents):
            assert (before is ABSENT and after is ABSENT) or equal(before, after)  # type: ignore[arg-type]  # both present


@settings(deadline=None)  # the machine may be busy
@given(documents, wish_lists)
def test_a_null_to_be_stored_never_goes_into_a_merge_patch(live: Document, asked: list[Wish]) -> None:
    folded = fold(live, asked, WIDGETS)
    patch = patch_of(live, folded)

    if patch is not None and patch.kind == "merge":
        for path in nulls(json.loads(patch.body), ()):
            assert at(folded.wanted, path) is ABSENT


def nulls(node: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in nulls(value, (*path, key))]
    return [path] if node is None else []


def at(node: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(node, dict) or key not in node:
            return ABSENT
        node = node[key]
    return node


def test_in_sync_is_no_patch() -> None:
    live = document(spec={"replicas": plain("3")})

    assert patch_of(live, fold(live, wishes(spec_replicas="3"), WIDGETS)) is None


def test_a_merge_patch_has_the_difference_and_the_preconditions() -> None:
    live = document(data={"a": "1", "old": "x"})

    patch = patch_of(live, fold(live, wishes(data='{"a":"1","b":"2"}'), CONFIGMAPS))

    assert patch is not None
    assert patch.kind == "merge"
    assert json.loads(patch.body) == {
        "data": {"old": None, "b": "2"},
        "metadata": {"uid": "u", "resourceVersion": "1"},
    }


def test_labels_share_the_metadata_of_the_preconditions() -> None:
    live = document()

    patch = patch_of(live, fold(live, wishes(metadata_labels_x='"y"'), CONFIGMAPS))

    assert patch is not None
    assert json.loads(patch.body) == {"metadata": {"uid": "u", "resourceVersion": "1", "labels": {"x": "y"}}}


def test_numbers_are_sent_as_they_were_written() -> None:
    live = document(spec={})

    patch = patch_of(live, fold(live, wishes(spec_n="12345678901234567890123", spec_e="1e3"), WIDGETS))

    assert patch is not None
    assert b'"n":12345678901234567890123' in patch.body
    assert b'"e":1e3' in patch.body


def test_a_list_element_goes_by_json_patch_with_its_identity_tested() -> None:
    live = document(spec={"containers": [{"name": "a", "image": "old"}, {"name": "b"}]})
    asked = [Wish("rules[0]", parse_path("spec.containers[name=a].image"), Value("new"))]

    patch = patch_of(live, fold(live, asked, WIDGETS))

    assert patch is not None
    assert patch.kind == "json"
    assert json.loads(patch.body) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "test", "path": "/spec/containers/0/name", "value": "a"},
        {"op": "replace", "path": "/spec/containers/0/image", "value": "new"},
    ]


def test_a_null_parent_becomes_a_map() -> None:
    live = document(spec={"template": {"type": "t", "data": None}})

    patch = patch_of(live, fold(live, wishes(spec_template_data='{"k":"v"}'), WIDGETS))

    assert patch is not None
    assert patch.kind == "merge"
    assert applied(live, patch)["spec"] == {"template": {"type": "t", "data": {"k": "v"}}}


def test_a_waiting_rule_keeps_an_absent_key_absent_under_a_broader_rule() -> None:
    live = document(data={"k": "mine"})
    asked = wishes(data='{"a":"1","gone":"2"}', data_k=None, data_gone=None)

    assert fold(live, asked, CONFIGMAPS).wanted["data"] == {"a": "1", "k": "mine"}


def test_the_more_specific_rule_wins() -> None:
    live = document(spec={})
    asked = wishes(spec_template_spec_replicas="5", spec_template_spec='{"replicas":1,"x":true}')

    assert fold(live, asked, WIDGETS).wanted["spec"] == {"template": {"spec": {"replicas": Number("5"), "x": True}}}


def test_two_rules_for_one_place_are_both_refused() -> None:
    live = document(data={"a.b": "mine"})
    asked = [
        Wish("one", parse_path("data.a.b"), Value("1")),
        Wish("two", parse_path('data["a.b"]'), Value("2")),
        Wish("three", parse_path("data.c"), Value("3")),
    ]

    folded = fold(live, asked, CONFIGMAPS)

    assert folded.wanted["data"] == {"a.b": "mine", "c": "3"}
    assert {each.wish.rule for each in folded.outcomes if each.error} == {"one", "two"}
    assert {each.error.reason for each in folded.outcomes if each.error} == {"DuplicateDestination"}


@pytest.mark.parametrize(
    ("gvr", "path", "value", "message"),
    [
        (CONFIGMAPS, "data.k", "1", r"data\.k: want a string, found integer"),
        (CONFIGMAPS, "data", '{"a":1}', r"data\.a: want a string, found integer"),
        (CONFIGMAPS, "data", "null", "want a map of strings, found null"),
        (CONFIGMAPS, "data.k", "null", "does not remove"),
        (CONFIGMAPS, "binaryData.k", '"?"', "base64"),
        (SECRETS, "data.k", '"plain text"', "base64"),
        (WIDGETS, "metadata.labels.x", "true", "want a string, found boolean"),
        (WIDGETS, "metadata.annotations.x", "{}", "want a string, found map"),
    ],
)
def test_what_the_server_would_refuse_is_a_type_mismatch(gvr: GVR, path: str, value: str, message: str) -> None:
    live = document(data={"other": "kept"})

    folded = fold(live, [Wish("rule", parse_path(path), parse_constant(value))], gvr)

    (outcome,) = folded.outcomes
    assert outcome.error is not None
    with pytest.raises(type(outcome.error), match=message):
        raise outcome.error
    assert outcome.error.reason == "TypeMismatch"
    assert patch_of(live, folded) is None


def test_a_whole_map_of_labels_leaves_the_targets_tracking_keys() -> None:
    live = document()
    live["metadata"] = {"labels": {"old": "x", "app.kubernetes.io/instance": "mine"}}

    wanted = fold(live, wishes(metadata_labels='{"new":"y"}'), WIDGETS).wanted

    assert wanted["metadata"] == {"labels": {"new": "y", "app.kubernetes.io/instance": "mine"}}


def test_an_element_that_would_lose_its_selector_is_not_replaced() -> None:
    live = document(spec={"l": [{"name": "a"}]})

    folded = fold(live, [Wish("r", parse_path("spec.l[name=a]"), parse_constant('{"name":"b"}'))], WIDGETS)

    assert [each.error.reason for each in folded.outcomes if each.error] == ["TypeMismatch"]
    assert folded.wanted == live


def test_an_error_keeps_the_place_and_the_other_rules_go_on() -> None:
    live = document(spec={"list": [], "text": "x"})
    asked = [
        Wish("a", parse_path("spec.list[0].image"), Value("v")),
        Wish("b", parse_path("spec.text.below"), Value("v")),
        Wish("c", parse_path("spec.new.key"), Value("v")),
    ]

    folded = fold(live, asked, WIDGETS)

    assert {each.wish.rule: each.error and each.error.reason for each in folded.outcomes} == {
        "a": "IndexOutOfRange",
        "b": "WrongContainer",
        "c": None,
    }
    assert folded.wanted["spec"] == {"list": [], "text": "x", "new": {"key": "v"}}


def test_a_patch_too_large_for_the_server_is_not_built() -> None:
    live = document(spec={})
    big = Value("x" * (1024 * 1024))
    asked = [Wish(f"r{n}", parse_path(f"spec.k{n}"), big) for n in range(4)]

    with pytest.raises(Exception, match="TooLarge"):
        patch_of(live, fold(live, asked, WIDGETS))


def test_a_patch_never_shows_its_body() -> None:
    live = document(spec={})

    assert "hunter2" not in repr(patch_of(live, fold(live, wishes(spec_k='"hunter2"'), WIDGETS)))
