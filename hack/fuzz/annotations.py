"""What must hold for every text of an annotation: the copier's parser gives rules and problems, never an exception.

A good rule beside it is not disturbed, what was read prints and parses to the same, and a value that cannot be had is
refused in a known way.
"""

from __future__ import annotations

from controllers.copier.conversions import convert
from controllers.copier.paths import Path, parse_path
from controllers.copier.problems import RuleError
from controllers.copier.queries import Query
from controllers.copier.rules import PREFIX, Rule, RuleSet, Source, parse_rules
from controllers.copier.values import Value, decode, encode

NAMES = ("rules", "replace-spec.a", "merge-spec.a", "strategic-merge-spec.a", "allow-copy-to")
NEIGHBOUR = {f"{PREFIX}replace-data.neighbour": "configmap:s:data.k"}
DOCUMENT = decode(
    b'{"metadata": {"name": "s"}, "data": {"k": "v", "n": 1.50}, "list": [{"name": "a", "v": [1, null]}]}'
)
SEEDS = (
    b'\x00- {to: data["tls.crt"], from: {resource: secrets, name: s, path: \'data["tls.crt"]\'}, as: integer}',
    b"\x00- op: merge\n  to: spec.l[name=a].b\n  value: {a: null, b: [1, 2e3, \"\\u00e9\", 'x']}\n  onSourceMissing: {default: 1}",
    b"\x00- &a !!str x\n- *a\n- {op: remove, to: a.b[2], except: [c.d]}\n---\n[~, .nan, 0x10]",
    b"\x01secret:ns/name:data.tls\\.crt",
    b"\x01configmap:c/ns/name:list[?v[0] == `1`].name | sort(@) | join(',', @)",
    b'\x02json:{"a": [1.50, true, null, "\\ud83d\\ude00"], "b": -0}',
    b"\x05replace-a..b\nconfigmap:s",
)


def judge(data: bytes) -> None:
    """Read one annotation, its name and its text made of `data`, beside a good rule."""
    which, text = data[:1], data[1:].decode("utf-8", "replace")
    if which and which[0] < len(NAMES):
        name = NAMES[which[0]]
    else:
        name, _, text = text.partition("\n")
    if name == "replace-data.neighbour":
        return

    found = parse_rules({f"{PREFIX}{name}": text} | NEIGHBOUR)

    assert found == parse_rules({f"{PREFIX}{name}": text} | NEIGHBOUR), "the same text is read the same way"
    _check(found)


def _check(found: RuleSet) -> None:
    reasons = {bad.error.reason for bad in found.bad}
    assert reasons <= {"MalformedRule", "TooManyRules", "TooLarge"}, reasons
    assert "TooManyRules" in reasons or "replace-data.neighbour" in {rule.id for rule in found.rules}
    for rule in found.rules:
        assert parse_path(str(rule.to)) == rule.to
        _apply(rule)


def _apply(rule: Rule) -> None:
    """Have the rule read and converted, which may fail in known ways only."""
    try:
        if isinstance(rule.origin, Value):
            encode(convert(rule.origin.plain, rule.conversion))
        elif isinstance(rule.origin, Source) and isinstance(rule.origin.path, Query):
            encode(convert(rule.origin.path.search(DOCUMENT), rule.conversion))
        elif isinstance(rule.origin, Source):
            assert isinstance(rule.origin.path, Path)
            assert parse_path(str(rule.origin.path)) == rule.origin.path
    except RuleError as error:
        assert error.reason in {"TypeMismatch", "DecodeFailed", "JMESPathFailed", "TooLarge"}, error.reason  # noqa: PT017
