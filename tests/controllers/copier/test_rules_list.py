"""The annotation `rules`: each item is a rule or a problem by itself."""

from __future__ import annotations

import json

import pytest

from controllers.copier.paths import parse_path
from controllers.copier.rules import (
    MAX_RULES,
    PREFIX,
    As,
    BadRule,
    Conversion,
    Fate,
    Operation,
    Rule,
    RuleSet,
    Source,
    parse_rules,
)
from controllers.copier.values import Number, Plain, Value

GOOD = "{to: data.k, from: {resource: cm, name: s, path: data.k}}"


def parse(text: str, **short: str) -> RuleSet:
    return parse_rules({f"{PREFIX}rules": text} | {f"{PREFIX}replace-{name}": each for name, each in short.items()})


def rule(item: str) -> Rule:
    found = parse(f"- {item}")
    assert not found.bad, found.bad[0].error
    return found.rules[0]


def bad(item: str) -> BadRule:
    found = parse(f"- {item}")
    assert not found.rules
    assert found.bad[0].error.reason == "MalformedRule"
    return found.bad[0]


def problem(item: str) -> str:
    return bad(item).error.text


EVERY_KEY = r"""
- to: data["tls.crt"]                                  # op: replace is the default
  from: {resource: secrets, name: web-tls, path: 'data["tls.crt"]'}
- to: data["ca.crt"]
  from: {cluster: hub, resource: configmaps.v1.core, namespace: pki, name: roots, path: data.ca\.crt}
  onSourceMissing: retain
- op: merge
  to: spec.template.metadata.labels
  value: {tier: gold, old-label: null}                  # null inside a merge deletes the key
- op: strategic-merge
  to: spec.template.spec
  from: {resource: configmaps, name: sidecar, path: data.patch}
  as: value                                             # the ConfigMap holds JSON text
- {op: remove, to: spec.paused}
- {to: spec.replicas, from: {resource: configmaps, name: sizes, path: data.replicas}, as: integer}
- {to: data.password, from: {resource: secrets, name: db, path: data.password}, decode: base64}
- {to: data.token, from: {resource: configmaps, name: plain, path: data.token}, encode: base64}
- {to: data.mode, from: {resource: configmaps, name: s, path: data.mode}, onSourceMissing: {default: slow}, onRuleRemoved: remove}
- {to: spec.template.spec, from: {resource: deployment, name: master, path: spec.template.spec}, except: [nodeName]}
"""


def test_every_key_has_its_meaning() -> None:
    found = parse(EVERY_KEY)

    assert not found.bad
    assert [each.id for each in found.rules] == [
        'rules[0] data["tls.crt"]',
        'rules[1] data["ca.crt"]',
        "rules[2] spec.template.metadata.labels",
        "rules[3] spec.template.spec",
        "rules[4] spec.paused",
        "rules[5] spec.replicas",
        "rules[6] data.password",
        "rules[7] data.token",
        "rules[8] data.mode",
        "rules[9] spec.template.spec",
    ]
    crt, ca, labels, sidecar, paused, replicas, password, token, mode, spec = found.rules
    assert crt.operation is Operation.REPLACE
    assert crt.to == parse_path('data["tls.crt"]')
    assert crt.origin == Source("secrets", None, "web-tls", parse_path('data["tls.crt"]'))
    assert (crt.conversion, crt.on_source_missing, crt.on_rule_removed) == (Conversion(), None, None)
    assert ca.origin == Source("configmaps.v1.core", "pki", "roots", parse_path(r"data.ca\.crt"), "hub")
    assert ca.on_source_missing is Fate.RETAIN
    assert labels.operation is Operation.MERGE
    assert labels.origin == Value({"tier": "gold", "old-label": None})
    assert sidecar.operation is Operation.STRATEGIC_MERGE
    assert sidecar.conversion == Conversion(to_type=As.VALUE)
    assert (paused.operation, paused.origin) == (Operation.REMOVE, None)
    assert replicas.conversion == Conversion(to_type=As.INTEGER)
    assert password.conversion == Conversion(decode=True)
    assert token.conversion == Conversion(encode=True)
    assert mode.on_source_missing == Value("slow")
    assert mode.on_rule_removed is Fate.REMOVE
    assert spec.conversion == Conversion(excepts=(parse_path("nodeName"),))


def test_a_list_stands_beside_annotations_of_single_rules() -> None:
    found = parse(f"[{GOOD}]", a="json:1", b="json:")

    assert [each.id for each in found.rules] == ["replace-a", "rules[0] data.k"]
    assert [each.id for each in found.bad] == ["replace-b"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        *(("true", True), ("false", False), ("null", None), ("~", None), ("", None)),
        *(("7", Number("7")), ("-0.1e3", Number("-0.1e3")), ("1E+2", Number("1E+2")), ("9" * 40, Number("9" * 40))),
        *((word, word) for word in ("yes", "No", "on", "off", "010", "0x10", "0o7", "1_000", "1:30", "+1", "1.", ".5")),
        *((word, word) for word in ("2001-12-14", "2001-12-14T21:59:43Z", "True", "NULL", "nan", "inf", "<<", "=")),
        *(("'true'", "true"), ('"7"', "7"), ("'~'", "~"), ("|\n    7\n", "7\n"), ('"\\u00e9\\n"', "é\n")),
        *(("{a: [1, x], b: {}}", {"a": [Number("1"), "x"], "b": {}}), ("{<<: {a: b}}", {"<<": {"a": "b"}})),
        ('{"a":"b"}', {"a": "b"}),
    ],
)
def test_only_what_json_knows_is_more_than_text(text: str, plain: Plain) -> None:
    found = rule(f"to: data.k\n  value: {text}")

    assert found.origin == Value(plain)
    assert not isinstance(plain, Number) or isinstance(found.origin, Value)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("to: a\n  value: .nan", "line 2, column 10: want a number that JSON has"),
        ("to: a\n  value: -.Inf", "line 2, column 10: want a number that JSON has"),
        ("to: a\n  value: !!str 1", "line 2, column 10: want no tag, anchor or alias"),
        ("to: a\n  value: !!python/object/apply:os.system [x]", "line 2, column 10: want no tag, anchor or alias"),
        ("to: a\n  value: ! '1'", "line 2, column 10: want no tag, anchor or alias"),
        ("to: a\n  value: &x 1", "line 2, column 10: want no tag, anchor or alias"),
        ("to: a\n  value: *x", "line 2, column 10: want no tag, anchor or alias"),
        ("to: a\n  value: {1: x}", "line 2, column 11: want a key that is a string"),
        ("to: a\n  value: {true: x}", "line 2, column 11: want a key that is a string"),
        ("to: a\n  value: {[a]: x}", "line 2, column 11: want a key that is a string"),
        ("to: a\n  value: {b: 1, b: 2}", "line 2, column 17: want each key once"),
        ("to: a\n  value: 1\n  value: 2", "line 3, column 3: want each key once"),
    ],
)
def test_yaml_that_is_more_than_json_is_told_with_its_line_and_column(item: str, said: str) -> None:
    found = bad(item)

    assert found.error.text == said
    assert found.to == parse_path("a")


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("{to: a}", "want either from or value, found neither"),
        (f"{{value: 1, {GOOD[1:]}", "want either from or value, found both"),
        ("{value: 1}", "to: is required"),
        ("{to: [a], value: 1}", "to: want a path, found list(1 item)"),
        ("{to: 7, value: 1}", "to: want a path, found integer"),
        ("{to: a, value: 1, op: hunter2}", "op: want replace, merge, strategic-merge or remove, found another text"),
        ("{to: a, value: 1, op: [merge]}", "op: want replace, merge, strategic-merge or remove, found list(1 item)"),
        ("{to: a, value: 1, op: null}", "op: want replace, merge, strategic-merge or remove, found null"),
        ("{op: remove, to: a, value: 1}", "value: means nothing to op: remove"),
        (f"{{op: remove, {GOOD[1:]}", "from: means nothing to op: remove"),
        ("{op: remove, to: a, as: string}", "as: means nothing to op: remove"),
        ("{to: a, from: x}", "from: want a map with resource, name and path, found string"),
        ("{to: a, from: {name: s, path: data.k}}", "from.resource: is required"),
        ("{to: a, from: {resource: cm, path: data.k}}", "from.name: is required"),
        ("{to: a, from: {resource: cm, name: s}}", "from.path: is required"),
        ("{to: a, from: {resource: cm, name: 7, path: data.k}}", "from.name: want a string, found integer"),
        ("{to: a, from: {resource: cm, name: a/b, path: data.k}}", "from.name: want the name of an object"),
        ("{to: a, from: {resource: cm, name: '', path: data.k}}", "from.name: want the name of an object"),
        ("{to: a, from: {resource: cm, name: s, path: data.k, namespace: ''}}", "from.namespace: want the name of a"),
        (
            "{to: a, from: {resource: cm, name: s, path: data.k, cluster: A}}",
            "from.cluster: want the name of a cluster",
        ),
        ("{to: a, from: {resource: a/v1/b, name: s, path: k}}", "from.resource: want RESOURCE, RESOURCE.GROUP or"),
        ("{to: a, from: {resource: cm, name: s, path: data.k, kind: x}}", "from.kind: is not known; known are cluster"),
        ("{to: a, value: 1, form: x}", "form: is not known; known are as, decode, encode, except, from, onRuleRemoved"),
        ("{to: a, value: 1, 'p4ssw0rd': x}", "(a key of 8 characters): is not known"),
        ("{to: a, value: 1, except: b}", "except: want a list of paths, found string"),
        ("{to: a, value: 1, except: [b, 7]}", "except[1]: want a path, found integer"),
        ("{to: a, value: 1, except: [b, 'a..b']}", "except[1]: path at position 2"),
        ("{to: a, value: 1, except: ['l[0].b', 'l[0]']}", "except[1]: a list's element is not left out by its number"),
        ("{to: a, value: x, decode: hex}", "decode: want base64, found another text"),
        ("{to: a, value: x, encode: true}", "encode: want base64, found boolean"),
        ("{to: a, value: x, decode: base64, encode: base64}", "want decode or encode, found both"),
        (
            "{to: a, value: x, as: float}",
            "as: want string, integer, number, boolean, json or value, found another text",
        ),
        ("{to: a, value: x, as: 1}", "as: want string, integer, number, boolean, json or value, found integer"),
        ("{to: a, value: x, onSourceMissing: keep}", "onSourceMissing: want retain, remove or {default: VALUE}"),
        ("{to: a, value: x, onSourceMissing: {default: 1, b: 2}}", "onSourceMissing: want retain, remove or"),
        ("{to: a, value: x, onRuleRemoved: {default: 1}}", "onRuleRemoved: want retain (also written keep) or remove"),
        ("{to: '*', value: 1}", "to: path at position 0: want a key of letters, digits, '_', '-', '/', found '*'"),
        ("{to: '', value: 1}", "to: path at position 0"),
        ("{to: 'a[-1]', value: 1}", "an index from the end cannot be written"),
        ("{to: 'a[name=x].name', value: 1}", "this is the key by which the element is found"),
        ("{to: 'a[?b].c', value: 1}", "only sources may be JMESPath"),
        ("{op: remove, to: 'a[2]'}", "not removed by its number"),
        (
            "{to: 'a[2]', value: 1, onRuleRemoved: remove}",
            "onRuleRemoved: a list's element is not removed by its number",
        ),
        ("hunter2", "want a map, found string"),
        ("[a]", "want a map, found list(1 item)"),
    ],
)
def test_an_item_that_is_no_rule_says_which_key_is_wrong_and_quotes_nothing(item: str, said: str) -> None:
    text = problem(item)

    assert said in text
    assert "hunter2" not in text


def test_an_item_that_is_wrong_keeps_its_destination_and_its_operation() -> None:
    found = bad("{op: merge, to: spec.x, values: 1}")

    assert (found.id, found.identity) == ("rules[0] spec.x", ("merge", "spec.x"))


def test_one_bad_item_disturbs_no_other() -> None:
    items = [GOOD, "*x", "{op: x}", "{to: a, to: b, value: 1}", "!!str x", GOOD.replace("k", "l"), "{[a]: b}", "null"]

    found = parse("\n".join(f"- {item}" for item in items))

    assert [each.id for each in found.rules] == ["rules[0] data.k", "rules[5] data.l"]
    assert [each.id for each in found.bad] == ["rules[1]", "rules[2]", "rules[3]", "rules[4]", "rules[6]", "rules[7]"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "want a YAML list, found nothing"),
        ("# nothing\n", "want a YAML list, found nothing"),
        ("~", "line 1, column 1: want a YAML list, found a text"),
        ("\n  to: a\n", "line 2, column 3: want a YAML list, found a map"),
        ("- {to: a\n- x", ", column 1: this is not YAML"),
        ("- [a}", "line 1, column 5: this is not YAML"),
        ("- {to: a[name=b], value: 1}", "this is not YAML; a text that holds one of []{},:# wants quotes"),
        ("- a\n---\n- b", "line 2, column 1: want one YAML document"),
        ("&x [a]", "line 1, column 1: want a list without tag and anchor"),
        ("!!set [a]", "line 1, column 1: want a list without tag and anchor"),
        ("- a\n- b\x00", "line 2, column 4: this character cannot stand in YAML"),
        ("- a\r\n- \ud800", "line 2, column 3: this character cannot stand in YAML"),
        ('- "\\UFFFFFFFF"', "this is not YAML"),
        ("%YAML 9.9\n--- []", "this is not YAML"),
        (f"%YAML 1.{'1' * 5000}\n--- []", "this is not YAML"),
        ("[" * 100_000, "line 1, column "),
        ("[\n" * 60_000, "want at most 900 levels of lists and maps"),
        ("- " * 60_000, "line 1, column "),
        ("- [hunter2, 'hunter2", "this is not YAML"),
    ],
)
def test_a_text_that_is_no_list_is_one_problem_and_other_annotations_go_on(text: str, said: str) -> None:
    found = parse(text, a="json:1")

    assert [each.id for each in found.rules] == ["replace-a"]
    assert [(each.id, each.error.reason) for each in found.bad] == [("rules", "MalformedRule")]
    assert said in found.bad[0].error.text
    assert "hunter2" not in found.bad[0].error.text


@pytest.mark.parametrize(
    ("item", "value"),
    [
        (r'{to: a, value: "\ud83d\ude00\uD83D\uDE01x"}', "\U0001f600\U0001f601x"),
        (r'{to: a, value: "\\\ud83d\ude00\\ud83d"}', "\\\U0001f600\\ud83d"),
        (r"{to: a, value: '\ud83d\ude00'}", r"\ud83d\ude00"),
        (r"{to: a, value: \ud83d\ude00}", r"\ud83d\ude00"),
        (r"""{"to": "a", 'value': 'x "\ud83d\ude00"'}""", r'x "\ud83d\ude00"'),
    ],
)
def test_a_character_may_be_escaped_in_two_halves_as_json_does(item: str, value: str) -> None:
    assert rule(item).origin == Value(value)


def test_half_a_character_is_no_character() -> None:
    for half in (r"\ud83d", r"x\ude00", r"\ud83d\ud83d\ude00", r"\\\ud83d", r"\ude00\ud83d"):
        found = parse(f'- {{to: a, value: "{half}"}}\n- {GOOD}')

        assert [each.id for each in found.rules] == ["rules[1] data.k"]
        assert [each.id for each in found.bad] == ["rules[0] a"]
        assert found.bad[0].error.text == "line 1, column 18: want no half of a character (a lone surrogate)"


def test_an_empty_list_has_no_rules() -> None:
    assert not parse("[]")


@pytest.mark.parametrize(
    ("levels", "reason"), [(64, None), (65, "MalformedRule"), (200, "MalformedRule"), (800, "MalformedRule")]
)
@pytest.mark.parametrize("where", ["value: DEEP", "value: 1, onSourceMissing: {default: DEEP}"])
def test_a_constant_may_be_nested_so_deep(levels: int, reason: str | None, where: str) -> None:
    deep = where.replace("DEEP", "[" * levels + "]" * levels)

    found = parse(f"[{{to: a, {deep}}}, {GOOD}]")

    assert [each.id for each in found.rules][-1] == "rules[1] data.k"
    assert [each.error.reason for each in found.bad] == ([reason] if reason else [])


def test_the_annotation_may_be_128_kib() -> None:
    room = 128 * 1024 - len("[{to: a, value: ''}]")

    assert not parse(f"[{{to: a, value: '{'é' * (room // 2)}{'x' * (room % 2)}'}}]").bad
    assert "want at most 131072 bytes, found 131073" in (
        parse(f"[{{to: a, value: '{'x' * (room + 1)}'}}]").bad[0].error.text
    )


def test_a_list_of_too_many_rules_is_none_and_neither_are_the_others() -> None:
    limit, beyond = (parse(json.dumps([{"to": f"k{n}", "value": n} for n in range(many)])) for many in (128, 129))
    together = parse(json.dumps([{"to": f"k{n}", "value": n} for n in range(MAX_RULES)]), a="json:1")
    beside = parse(json.dumps([{"to": f"k{n}", "value": n} for n in range(MAX_RULES + 1)]), a="json:1")

    assert len(limit.rules) == MAX_RULES
    for found in (beyond, together, beside):
        assert not found.rules
        assert {each.error.reason for each in found.bad} == {"TooManyRules"}
        assert "129" in found.bad[0].error.text


def test_names_that_the_short_form_cannot_say_are_said_here() -> None:
    found = rule("{to: a, from: {resource: clusterrole, name: 'system:node', path: rules}}")

    assert found.origin == Source("clusterrole", None, "system:node", parse_path("rules"))


def test_the_text_of_a_rule_is_that_of_its_item_alone_and_minds_every_option() -> None:
    first, second = parse(f"[{{to: a, value: 1}}, {GOOD}]").rules
    (moved,) = parse(f"- {GOOD}").rules
    (other,) = parse(f"- {GOOD[:-1]}, as: string}}").rules

    assert moved.text == second.text
    assert moved.text != other.text
    assert first.text != second.text
    assert moved.identity == second.identity


def test_printing_a_rule_of_the_list_shows_no_constant() -> None:
    assert "hunter2" not in repr(rule("{to: a, value: hunter2, onSourceMissing: {default: hunter2}}"))


def test_a_long_destination_is_shortened_where_the_rule_is_named() -> None:
    found = rule(f"{{to: {'abcdef.' * 50}b, value: 1}}")

    assert len(found.id) < 220
    assert len(str(found.to)) == 351
