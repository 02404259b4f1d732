"""Annotations become rules and problems, never an exception, and one bad rule disturbs no other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.paths import Key, Path, Segment, parse_path
from controllers.copier.rules import (
    MAX_RULES,
    PREFIX,
    BadRule,
    Operation,
    Rule,
    RuleSet,
    Source,
    has_rules,
    parse_rules,
)
from controllers.copier.values import Number, Value

names = st.one_of(
    st.text(max_size=20),
    st.text("ab.-_", max_size=10).map(lambda text: f"{PREFIX}replace-{text}"),
    st.sampled_from(
        ["merge-a", "rules", "rules", "rules", "strategic-merge-a.b", "replace-", "replace", "allow-copy-to"]
    ).map(lambda text: PREFIX + text),
)
ITEMS = (
    "{to: a, value: 1}",
    "{to: 'b[0]', from: {resource: cm, name: s, path: data.k}, as: integer}",
    "{op: remove, to: c}",
    "{op: merge, to: a, value: {b: null}, onSourceMissing: {default: &x [1]}}",
    "{to: d, to: e, value: *x}",
    "!!set {a, b}",
    "{to: [",
    "'",
    "9" * 5000,
    "[" * 70 + "]" * 70,
    "{" * 300,
    "{to: f, value: " + "[" * 65 + "]" * 65 + "}",
    "? a",
    "---",
)
lists = st.lists(st.sampled_from(ITEMS), max_size=4).map(lambda items: "".join(f"- {item}\n" for item in items))
texts = st.one_of(
    st.text(max_size=40),
    st.text("-[]{}:, \n'\"&*!|>#?%@~ato1", max_size=30),
    lists,
    st.tuples(lists, st.integers(0, 200)).map(lambda cut: cut[0][: cut[1]]),
    st.text(max_size=20).map(lambda text: f"json:{text}"),
    st.integers(0, 10**60).map(lambda number: f"json:{number}"),
    st.sampled_from(["json:" + "[" * 5000, "secret:a/b:data", "a:b:c:d", "json:1e999999", " secret : a : b "]),
)
annotation_maps = st.dictionaries(names, texts, max_size=6)


def everything(found: RuleSet) -> list[Rule | BadRule]:
    return [*found.rules, *found.bad]


def only(annotations: dict[str, str]) -> Rule | BadRule:
    found = parse_rules({PREFIX + name: text for name, text in annotations.items()})
    (each,) = everything(found)
    return each


def problem(name: str, text: str) -> str:
    found = only({name: text})
    assert isinstance(found, BadRule)
    assert found.error.reason == "MalformedRule"
    return found.error.text


@settings(deadline=None)  # the machine may be busy
@given(annotation_maps)
def test_any_annotations_give_rules_and_problems(annotations: dict[str, str]) -> None:
    found = parse_rules(annotations)

    ids = {each.id for each in everything(found)}
    listed = {each for each in ids if each == "rules" or each.startswith("rules[")}
    names = {name.removeprefix(PREFIX) for name in annotations if name.startswith(PREFIX)} - {"allow-copy-to"}
    assert ids - listed == names - {"rules"}
    assert "rules" in names or not listed
    assert bool(names) is has_rules(annotations)
    assert {each.error.reason for each in found.bad} <= {"MalformedRule", "TooLarge"}


@settings(deadline=None)  # the machine may be busy
@given(annotation_maps, names, texts)
def test_one_more_entry_changes_nothing_about_the_others(annotations: dict[str, str], name: str, text: str) -> None:
    annotations.pop(name, None)

    before, after = parse_rules(annotations), parse_rules(annotations | {name: text})

    assert set(map(repr, before.rules)) <= set(map(repr, after.rules))
    assert {each.id: each.error.text for each in before.bad}.items() <= {
        each.id: each.error.text for each in after.bad
    }.items()


@settings(deadline=None)  # the machine may be busy
@given(annotation_maps)
def test_the_order_of_annotations_does_not_matter(annotations: dict[str, str]) -> None:
    backwards = dict(reversed(annotations.items()))

    assert parse_rules(annotations).rules == parse_rules(backwards).rules


def test_both_value_forms_are_read() -> None:
    found = parse_rules(
        {
            f"{PREFIX}replace-spec.template.data": " secret:cloud/master:data\n",
            f"{PREFIX}replace-spec.replicas": "json: 3",
            f"{PREFIX}allow-copy-to": "dev",
            "other": "annotation",
        }
    )

    replicas, data = found.rules
    assert data.to == parse_path("spec.template.data")
    assert data.origin == Source("secret", "cloud", "master", parse_path("data"))
    assert replicas.origin == Value(Number("3"))
    assert not found.bad


@pytest.mark.parametrize("operation", [Operation.REPLACE, Operation.MERGE, Operation.STRATEGIC_MERGE])
def test_every_operation_with_a_value_has_a_name(operation: Operation) -> None:
    rule = only({f"{operation}-spec.strategic-merge-a": 'json:{"a": null}'})

    assert isinstance(rule, Rule)
    assert rule.operation is operation
    assert rule.to == parse_path("spec.strategic-merge-a")
    assert rule.identity == (operation, "spec.strategic-merge-a")


@pytest.mark.parametrize(("prefix", "most"), [("replace-", 55), ("merge-", 57), ("strategic-merge-", 47)])
def test_a_name_longer_than_the_server_takes_is_sent_to_the_long_form(prefix: str, most: int) -> None:
    longer = "a" * (most + 1)

    assert isinstance(only({prefix + "a" * most: "json:1"}), Rule)
    assert problem(prefix + longer, "json:1") == (
        "name has 64 characters, at most 63 are allowed; use the rules annotation"
    )


def test_a_source_path_keeps_its_colons_inside_quotes() -> None:
    rule = only({"replace-a": 'configmap:s:data["a:b"]'})

    assert isinstance(rule, Rule)
    assert isinstance(rule.origin, Source)
    assert rule.origin.path == Path((Segment("data"), Key("a:b")))


@pytest.mark.parametrize("text", ["", "secret", "secret:x", "::", "secret::data", "secret:x:", ":x:data"])
def test_a_short_value_says_what_is_wanted(text: str) -> None:
    assert "want RESOURCE:INSTANCE:PATH or json:JSON, found" in problem("replace-data.a", text)


def test_the_number_of_parts_found_is_told() -> None:
    assert problem("replace-data.a", "configmap") == "want RESOURCE:INSTANCE:PATH or json:JSON, found 1 part"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"a": 1}', "write json: before a constant"),
        ('"text"', "write json: before a constant"),
        ("configmap/s:data.k", "write a colon between RESOURCE and INSTANCE"),
        ("configmap:s:.data.k", "a path begins with a key, as in data.k, without . $ or { before it"),
        ("configmap:s:$.data.k", "a path begins with a key, as in data.k, without . $ or { before it"),
        ("configmap:s:{.data.k}", "a path begins with a key, as in data.k, without . $ or { before it"),
    ],
)
def test_what_is_written_as_for_another_tool_is_told_how_to_write(text: str, hint: str) -> None:
    assert hint in problem("replace-data.a", text)


@pytest.mark.parametrize(
    "name", ["reload-x", "replace", "merge", "Replace-a", "x", "rules.x", "remove-data", "merge.a"]
)
def test_other_names_under_the_prefix_are_not_known_and_the_known_ones_are_listed(name: str) -> None:
    text = problem(name, "json:{}")

    assert "not known" in text
    assert "known are replace-PATH, merge-PATH, strategic-merge-PATH and rules on a target" in text
    assert "allow-copy-to" in text


@pytest.mark.parametrize("name", ["replace-", "replace-.a", "replace-a.", "replace-a..b", "replace-a-", "replace-a_"])
def test_a_name_that_holds_no_path_is_malformed(name: str) -> None:
    problem(name, "json:1")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "cluster/ns/x:y:z",
            "configmap:c/d/n/x:data",
            "configmap:a b:data",
            "configmap:NS/x:data",
            "config map:x:data",
        ),
        *("configmap:../x:data", "configmap:n/..:data", "configmap:n/:data", "configmap:/x:data", "a..b:x:data"),
        *("configmap:C/n/x:data", "configmap:/n/x:data", "configmap:c/N/x:data", "configmap:c/n/:data"),
        *("configmap:n/a%2fb:data", "-a:x:data", f"configmap:{'x' * 254}:data"),
    ],
)
def test_what_cannot_be_a_kind_or_an_object_is_malformed(text: str) -> None:
    problem("replace-data.a", text)


def test_a_kind_in_the_order_of_urls_gets_a_hint() -> None:
    assert "write deployments.v1.apps" in problem("replace-a", "apps/v1/deployments:x:spec")


def test_what_is_no_path_is_jmespath() -> None:
    rule = only({"replace-data.a": "configmap:s:data.list[?name == 'a:b'].value | [0]"})

    assert isinstance(rule, Rule)
    assert isinstance(rule.origin, Source)
    assert str(rule.origin.path) == "data.list[?name == 'a:b'].value | [0]"
    assert rule.origin.reach == Path((Key("data"), Key("list")))


@pytest.mark.parametrize(
    ("path", "position"), [("data[?hunter2 == `1`)", 20), ("data..hunter2", 5), ("data[hunter2'", 12), ("hunter2 *", 8)]
)
def test_what_is_neither_is_reported_with_the_position_of_the_one_that_came_further(path: str, position: int) -> None:
    text = problem("replace-data.a", f"configmap:s:{path}")

    assert f"source path at position {position}: " in text
    assert "JMESPath" in text
    assert "hunter2" not in text


def test_a_name_with_a_colon_gets_a_hint() -> None:
    assert "holds a colon" in problem("replace-d", "clusterrole:system:node:rules")


def test_a_malformed_constant_is_not_quoted() -> None:
    text = problem("replace-data.a", "json:hunter2")

    assert "position 0" in text
    assert "hunter2" not in text


def test_a_bad_rule_with_a_good_name_has_a_destination() -> None:
    bad = only({"replace-data.c": "json:{"})

    assert isinstance(bad, BadRule)
    assert bad.to == parse_path("data.c")


def test_the_same_rule_in_other_words_has_the_same_identity() -> None:
    good, bad = only({"replace-a.b": "json:1"}), only({"replace-a.b": "json:"})

    assert good.identity == bad.identity


def test_the_same_text_is_read_once_and_a_long_one_is_not_kept() -> None:
    name, text = f"{PREFIX}replace-data.k", 'json:"' + "x" * 2000 + '"'

    assert parse_rules({name: "configmap:s:data.k"}).rules[0] is parse_rules({name: "configmap:s:data.k"}).rules[0]
    assert parse_rules({name: text}).rules[0] is not parse_rules({name: text}).rules[0]


def test_too_many_rules_are_none() -> None:
    limit = parse_rules({f"{PREFIX}replace-data.k{n}": "json:1" for n in range(MAX_RULES)})
    beyond = parse_rules({f"{PREFIX}replace-data.k{n}": "json:1" for n in range(MAX_RULES + 1)})

    assert len(limit.rules) == MAX_RULES
    assert not beyond.rules
    assert {each.error.reason for each in beyond.bad} == {"TooManyRules"}
    assert parse_path("data.k7") in {each.to for each in beyond.bad}


def test_printing_a_rule_shows_no_constant() -> None:
    assert "hunter2" not in repr(only({"replace-a": 'json:"hunter2"'}))


@pytest.mark.parametrize(
    ("instance", "cluster", "namespace"),
    [("x", None, None), ("n/x", None, "n"), ("c/n/x", "c", "n"), ("c.d-1//x", "c.d-1", "")],
)
def test_an_instance_has_up_to_three_parts(instance: str, cluster: str | None, namespace: str | None) -> None:
    rule = only({"replace-data.a": f"configmap:{instance}:data.b"})

    assert isinstance(rule, Rule)
    assert isinstance(rule.origin, Source)
    assert (rule.origin.cluster, rule.origin.namespace, rule.origin.name) == (cluster, namespace, "x")
