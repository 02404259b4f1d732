"""Folding rules and building the one patch: checked by appliers that are not ours."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.compute import MAX_OPERATIONS, Document, Folded, Patch, Wish, build_patch, fold
from controllers.copier.paths import ABSENT, Key, Path, Place, locate, look, parse_path, put, show, take
from controllers.copier.problems import RuleError
from controllers.copier.rules import Operation
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
operations = st.sampled_from([Operation.REPLACE, Operation.MERGE, Operation.REMOVE])
excepts = st.lists(st.sampled_from(["a", "b", "[0].a", "[name=p]", "[name=p].v"]).map(parse_path), max_size=1).map(
    tuple
)


def wish(to: str, operation: Operation, value: Plain | Value, excepted: tuple[Path, ...] = ()) -> Wish:
    known = value if isinstance(value, Value | None) else Value(value)
    return Wish(f"{operation}-{to}", parse_path(to), known, operation, excepted)


wish_lists = st.dictionaries(
    # What is found by its number is never removed: the next element would have that number then.
    st.tuples(path_texts, operations).filter(
        lambda key: key[1] is not Operation.REMOVE or not key[0].endswith(("[0]", "[1]"))
    ),
    st.tuples(st.one_of(st.none(), values.map(Value)), excepts),
    max_size=4,
).map(lambda found: [wish(*key, *rest) for key, rest in found.items()])


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
        if isinstance(place[-1], Key) and all(isinstance(parent, dict) for parent in parents):
            assert (before is ABSENT and after is ABSENT) or equal(before, after)  # type: ignore[arg-type]  # both present


@settings(deadline=None)  # the machine may be busy
@given(documents, wish_lists, st.lists(path_texts, max_size=2))
def test_what_is_dropped_is_taken_away_and_nothing_that_a_rule_is_about(
    live: Document, asked: list[Wish], texts: list[str]
) -> None:
    drops = [locate(live, parse_path(text)) for text in texts if "[0]" not in text and "[1]" not in text]

    without, folded = fold(live, asked, WIDGETS), fold(live, asked, WIDGETS, drops=drops)

    for place in folded.dropped:
        assert look(folded.wanted, place) is ABSENT
    for outcome in folded.outcomes:
        if outcome.wish.operation is not Operation.MERGE:
            before, after = look(without.wanted, outcome.place), look(folded.wanted, outcome.place)
            assert (before is ABSENT and after is ABSENT) or equal(before, after)  # type: ignore[arg-type]  # both present
    patch = patch_of(live, folded)
    assert same_json(folded.wanted if patch is None else applied(live, patch), folded.wanted)


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


def test_an_element_is_tested_by_the_key_that_a_rule_finds_it_by() -> None:
    live = document(spec={"l": [{"port": "a"}]})
    asked = [wish("spec.l[0].w.x", Operation.REPLACE, "y"), wish("spec.l[port=a].v", Operation.REPLACE, "x")]

    patch = patch_of(live, fold(live, asked, WIDGETS))

    assert patch is not None
    assert json.loads(patch.body)[2] == {"op": "test", "path": "/spec/l/0/port", "value": "a"}


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


def test_an_element_named_in_two_ways_is_one_place() -> None:
    live = document(spec={"l": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]})
    paths = [
        "spec.l[0].image",
        "spec.l[name=a].image",
        'spec.l[name="a"].image',
        "spec.l[1].image",
        "spec.l[name=c].image",
    ]

    folded = fold(live, [wish(path, Operation.REPLACE, path) for path in paths], WIDGETS)

    errors = {str(each.wish.to): each.error.reason for each in folded.outcomes if each.error is not None}
    assert errors == dict.fromkeys(paths[:3], "DuplicateDestination") | {paths[4]: "ElementNotFound"}
    assert folded.wanted["spec"] == {"l": [{"name": "a", "image": "1"}, {"name": "b", "image": paths[3]}]}


@pytest.mark.parametrize(
    ("gvr", "path", "value", "message"),
    [
        (CONFIGMAPS, "data.k", "1", r"data\.k: want a string, found integer"),
        (CONFIGMAPS, "data", '{"a":1}', r"data\.a: want a string, found integer"),
        (CONFIGMAPS, "data", "null", "want a map of strings, found null"),
        (CONFIGMAPS, "data.k", "null", "write op: remove"),
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


def test_a_merge_keeps_what_it_does_not_name_and_a_null_in_it_deletes() -> None:
    live = document(data={"local": "mine", "old": "x", "a": "0"})

    folded = fold(live, [wish("data", Operation.MERGE, {"a": "1", "old": None, "never": None})], CONFIGMAPS)

    assert folded.wanted["data"] == {"local": "mine", "a": "1"}
    assert [each.changes for each in folded.outcomes] == [True]


@pytest.mark.parametrize("live", [document(), document(data=None)])
def test_a_merge_that_only_deletes_makes_no_map(live: Document) -> None:
    folded = fold(live, [wish("data", Operation.MERGE, {"old": None})], CONFIGMAPS)

    assert patch_of(live, folded) is None


def test_on_one_path_replace_comes_before_merge() -> None:
    live = document(spec={"m": {"old": "x"}})
    asked = [wish("spec.m", Operation.MERGE, {"b": "2", "a": None}), wish("spec.m", Operation.REPLACE, {"a": "1"})]

    assert fold(live, asked, WIDGETS).wanted["spec"] == {"m": {"b": "2"}}
    assert fold(live, asked[::-1], WIDGETS).wanted["spec"] == {"m": {"b": "2"}}


def test_a_merge_that_cannot_deliver_keeps_its_path_under_a_replace() -> None:
    live = document(spec={"m": {"old": "x"}, "n": "x"})
    asked = [wish("spec.m", Operation.MERGE, None), wish("spec", Operation.REPLACE, {"m": {"a": "1"}})]

    assert fold(live, asked, WIDGETS).wanted["spec"] == {"m": {"old": "x"}}


@pytest.mark.parametrize("other", [Operation.REPLACE, Operation.MERGE, Operation.REMOVE])
def test_remove_and_anything_else_on_one_path_are_all_refused(other: Operation) -> None:
    live = document(spec={"k": {"a": "mine"}})
    asked = [wish("spec.k", Operation.REMOVE, Value(None)), wish('spec["k"]', other, {"b": "1"})]

    folded = fold(live, asked, WIDGETS)

    assert [each.error and each.error.reason for each in folded.outcomes] == ["DuplicateDestination"] * 2
    assert folded.wanted == live


def test_removing_takes_a_key_away_and_an_absent_one_is_no_change() -> None:
    live = document(spec={"paused": True, "text": "x"})
    asked = [wish(to, Operation.REMOVE, Value(None)) for to in ("spec.paused", "spec.none", "spec.none.below")]

    folded = fold(live, asked, WIDGETS)

    assert folded.wanted["spec"] == {"text": "x"}
    assert [(each.error, each.changes) for each in folded.outcomes] == [(None, False), (None, True), (None, False)]


def test_a_removal_that_is_held_back_keeps_what_is_there() -> None:
    live = document(spec={"paused": True})

    assert fold(live, [wish("spec.paused", Operation.REMOVE, None)], WIDGETS).wanted == live


@pytest.mark.parametrize(
    ("to", "reason"), [("spec.text.below", "WrongContainer"), ("spec.l[name=twin]", "ElementAmbiguous")]
)
def test_a_removal_that_does_not_fit_the_target_says_so(to: str, reason: str) -> None:
    live = document(spec={"text": "x", "l": [{"name": "twin"}, {"name": "twin"}]})

    (outcome,) = fold(live, [wish(to, Operation.REMOVE, Value(None))], WIDGETS).outcomes

    assert outcome.error is not None
    assert outcome.error.reason == reason


def test_elements_are_removed_from_the_end_and_others_keep_their_numbers_until_then() -> None:
    live = document(spec={"l": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d", "v": "old"}]})
    asked = [
        wish("spec.l[name=a]", Operation.REMOVE, Value(None)),
        wish("spec.l[name=c]", Operation.REMOVE, Value(None)),
        wish("spec.l[3].v", Operation.REPLACE, "new"),
    ]

    folded = fold(live, asked, WIDGETS)
    patch = patch_of(live, folded)

    assert folded.wanted["spec"] == {"l": [{"name": "b"}, {"name": "d", "v": "new"}]}
    assert patch is not None
    assert json.loads(patch.body)[2:] == [
        {"op": "test", "path": "/spec/l/0/name", "value": "a"},
        {"op": "test", "path": "/spec/l/2/name", "value": "c"},
        {"op": "test", "path": "/spec/l/3/name", "value": "d"},
        {"op": "replace", "path": "/spec/l/3/v", "value": "new"},
        {"op": "remove", "path": "/spec/l/2"},
        {"op": "remove", "path": "/spec/l/0"},
    ]


def test_a_rule_into_an_element_that_another_rule_removes_says_so() -> None:
    live = document(spec={"l": [{"name": "a", "v": "old"}]})
    asked = [wish("spec.l[name=a]", Operation.REMOVE, Value(None)), wish("spec.l[0].v", Operation.REPLACE, "new")]

    folded = fold(live, asked, WIDGETS)

    assert [each.error and each.error.reason for each in folded.outcomes] == [None, "ElementNotFound"]
    assert folded.wanted["spec"] == {"l": []}


def test_what_is_excepted_stays_as_the_target_has_it() -> None:
    live = document(spec={"t": {"nodeName": "mine", "extra": "x", "l": [{"name": "p", "v": "own"}, {"name": "q"}]}})
    value: Plain = {"a": "1", "nodeName": "theirs", "other": "x", "l": [{"name": "p", "v": "x", "w": "y"}]}
    excepted = tuple(map(parse_path, ("nodeName", "other", "none", "l[name=p].v", "l[name=q]", "l[name=r].v")))

    folded = fold(live, [wish("spec.t", Operation.REPLACE, value, excepted)], WIDGETS)

    assert folded.wanted["spec"] == {
        "t": {"a": "1", "nodeName": "mine", "l": [{"name": "p", "v": "own", "w": "y"}, {"name": "q"}]}
    }


def test_a_merge_keeps_what_is_excepted_too() -> None:
    live = document(spec={"a": "mine"})

    folded = fold(live, [wish("spec", Operation.MERGE, {"a": "1", "b": "2"}, (parse_path("a"),))], WIDGETS)

    assert folded.wanted["spec"] == {"a": "mine", "b": "2"}


def test_what_the_server_assigned_to_a_service_stays_when_its_spec_is_copied() -> None:
    ports: list[Plain] = [
        {"name": "web", "port": Number("80"), "nodePort": Number("30080")},
        {"name": "dns", "port": Number("53"), "protocol": "UDP", "nodePort": Number("30053")},
    ]
    live = document(spec={"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": ports})
    value: Plain = {
        "clusterIP": "10.9.9.9",
        "healthCheckNodePort": Number("31000"),
        "ports": [
            {"name": "web", "port": Number("81"), "nodePort": Number("31111")},
            {"port": Number("53"), "protocol": "UDP", "nodePort": Number("31053")},
            {"port": Number("53"), "nodePort": Number("31054")},
        ],
    }

    folded = fold(live, [wish("spec", Operation.REPLACE, value)], GVR("", "v1", "services"))

    assert folded.wanted["spec"] == {
        "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1"],
        "ports": [
            {"name": "web", "port": Number("81"), "nodePort": Number("30080")},
            {"port": Number("53"), "protocol": "UDP", "nodePort": Number("30053")},
            {"port": Number("53")},
        ],
    }


def test_the_volume_of_a_claim_stays_when_its_spec_is_copied() -> None:
    live = document(spec={"volumeName": "mine"})
    asked = [wish("spec", Operation.REPLACE, {"volumeName": "theirs", "x": "y"})]

    assert fold(live, asked, GVR("", "v1", "persistentvolumeclaims")).wanted["spec"] == {"volumeName": "mine", "x": "y"}
    assert fold(live, asked, WIDGETS).wanted["spec"] == {"volumeName": "theirs", "x": "y"}


def test_a_drop_goes_unless_a_rule_is_about_it() -> None:
    live = document(data={"gone": "1", "named": "2", "kept": "3", "waits": "4"})
    asked = [wish("data", Operation.MERGE, {"named": "2"}), wish("data.waits", Operation.REPLACE, None)]
    drops = [(Key("data"), Key(name)) for name in ("gone", "named", "waits", "none")]

    folded = fold(live, asked, CONFIGMAPS, drops=drops)

    assert folded.wanted["data"] == {"named": "2", "kept": "3", "waits": "4"}
    assert folded.dropped == [(Key("data"), Key("gone"))]
    assert patch_of(live, folded) is not None


def test_an_element_is_dropped_by_its_key() -> None:
    live = document(spec={"l": [{"name": "a"}, {"name": "b"}]})

    folded = fold(live, [], WIDGETS, drops=[locate(live, parse_path("spec.l[name=a]"))])
    patch = patch_of(live, folded)

    assert patch is not None
    assert json.loads(patch.body)[2:] == [
        {"op": "test", "path": "/spec/l/0/name", "value": "a"},
        {"op": "remove", "path": "/spec/l/0"},
    ]


@pytest.mark.parametrize(
    ("gvr", "to", "place"),
    [
        (CONFIGMAPS, "data.tls.crt", 'data["tls.crt"]'),
        (CONFIGMAPS, "binaryData.tls.crt", 'binaryData["tls.crt"]'),
        (SECRETS, "data.tls.crt", 'data["tls.crt"]'),
        (GVR("apps", "v1", "deployments"), "metadata.labels.a.b/c", 'metadata.labels["a.b/c"]'),
        (WIDGETS, "data.tls.crt", "data.tls.crt"),
    ],
)
def test_dots_below_a_map_of_strings_belong_to_the_key_also_if_it_is_not_there(gvr: GVR, to: str, place: str) -> None:
    (outcome,) = fold(document(), [wish(to, Operation.REPLACE, "YQ==")], gvr).outcomes

    assert show(outcome.place) == place


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


def test_a_patch_of_more_operations_than_the_server_takes_is_not_built() -> None:
    live = document(spec={"l": [{"name": "a", "m": {}}]})

    def build(count: int) -> Patch | None:
        keys: Plain = {f"k{number}": "" for number in range(count)}
        return patch_of(live, fold(live, [wish("spec.l[name=a].m", Operation.REPLACE, keys)], WIDGETS))

    at_most = build(MAX_OPERATIONS - 3)  # besides, three that say for which object it is
    assert at_most is not None
    assert len(json.loads(at_most.body)) == MAX_OPERATIONS
    with pytest.raises(RuleError, match=f"TooLarge: the change takes {MAX_OPERATIONS + 1} operations"):
        build(MAX_OPERATIONS - 2)


def test_a_patch_never_shows_its_body() -> None:
    live = document(spec={})

    assert "hunter2" not in repr(patch_of(live, fold(live, wishes(spec_k='"hunter2"'), WIDGETS)))
