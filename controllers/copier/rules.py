"""Annotations of a target become rules. Pure: whatever the text, the answer is rules and problems, never an exception.

A rule that cannot be read is data like any other: it disturbs no other rule, and where its destination is known
the value there is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

from controllers.copier.kinds import check_resource_text
from controllers.copier.paths import Path, check_destination, parse_path
from controllers.copier.problems import RuleError, malformed
from controllers.copier.values import Value, parse_constant
from informers import ConfigError

PREFIX: Final = "k8s-copier.fig.org/"
ALLOW_COPY_TO: Final = f"{PREFIX}allow-copy-to"
MAX_RULES: Final = 128
_MAX_REMEMBERED: Final = 1024

_NAME_PATH: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_NAMESPACE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_CLUSTER: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?")
_BLANK: Final = re.compile(r"\s")
_KNOWN: Final = "known are replace-PATH on a target and allow-copy-to on a source"


class Operation(StrEnum):
    """What a rule does with the value at its destination."""

    REPLACE = "replace"
    MERGE = "merge"
    STRATEGIC_MERGE = "strategic-merge"
    REMOVE = "remove"


class As(StrEnum):
    """The type that a value is converted to."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    JSON = "json"
    VALUE = "value"


class Fate(StrEnum):
    """What becomes of the target's value when the source is missing, or the rule is removed."""

    RETAIN = "retain"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: a kind as the user wrote it, an object, a path in it."""

    resource: str
    namespace: str | None  # None: none was written; "": an empty one was, beside a cluster
    name: str
    path: Path
    cluster: str | None = None  # as written; None: none was


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is done to a value between reading and writing, in this order."""

    excepts: tuple[Path, ...] = ()
    decode: bool = False
    to_type: As | None = None
    encode: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One copy: a destination, and a source or a constant (neither for a rule that removes)."""

    id: str
    operation: Operation
    to: Path
    origin: Source | Value | None
    text: str = field(repr=False)  # as it was written: a rule whose text changed is judged anew
    conversion: Conversion = Conversion()
    on_source_missing: Fate | Value | None = None  # a value stands in for the source's; None: as the flag says
    on_rule_removed: Fate | None = None  # None: as the flag says

    @property
    def identity(self) -> tuple[str, str]:
        """What makes it the same rule as before, however it is written."""
        return self.operation, str(self.to)


@dataclass(frozen=True, slots=True)
class BadRule:
    """A rule that cannot be used as it is written."""

    id: str
    to: Path | None
    error: RuleError
    operation: Operation = Operation.REPLACE

    @property
    def identity(self) -> tuple[str, str]:
        """As a rule's; without a destination, its name."""
        return ("", self.id) if self.to is None else (self.operation, str(self.to))


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules of one target."""

    rules: tuple[Rule, ...] = ()
    bad: tuple[BadRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.bad)


def has_rules(annotations: Mapping[str, str]) -> bool:
    """Tell whether an object is a target: whether one of its annotations could be a rule, good or bad."""
    return any(name.startswith(PREFIX) and name != ALLOW_COPY_TO for name in annotations)


def parse_rules(annotations: Mapping[str, str]) -> RuleSet:
    """Read every rule among `annotations`, in an order that does not depend on theirs."""
    rules: list[Rule] = []
    bad: list[BadRule] = []
    for name in sorted(annotations):
        if not name.startswith(PREFIX) or name == ALLOW_COPY_TO:
            continue
        text = annotations[name]
        parse = _parse_rule_once if len(text) <= _MAX_REMEMBERED else _parse_rule
        rule = parse(name.removeprefix(PREFIX), text)
        if isinstance(rule, Rule):
            rules.append(rule)
        else:
            bad.append(rule)
    ids = [*(rule.id for rule in rules), *(rule.id for rule in bad)]
    if len(ids) > MAX_RULES:
        error = RuleError(
            "TooManyRules", f"want at most {MAX_RULES} rules on one target, found {len(ids)}; none is applied"
        )
        return RuleSet((), tuple(BadRule(each, None, error) for each in ids))
    return RuleSet(tuple(rules), tuple(bad))


def _parse_rule(name: str, text: str) -> Rule | BadRule:
    to: Path | None = None
    try:
        to = _parse_name(name)
        return Rule(name, Operation.REPLACE, to, _parse_origin(text.strip()), text)
    except RuleError as error:
        return BadRule(name, to, error.bare())


# Thousands of targets may carry the same text, and each is looked at again and again.
_parse_rule_once = lru_cache(maxsize=2048)(_parse_rule)


def _parse_name(name: str) -> Path:
    operation, dash, words = name.partition("-")
    if operation != Operation.REPLACE or not dash:
        raise malformed(f"this annotation is not known; {_KNOWN}")
    if not _NAME_PATH.fullmatch(words) or not words[-1].isalnum():
        raise malformed(
            "want replace- followed by a path of letters, digits, '_', '-' and single dots, ending in a letter or digit"
        )
    path = parse_path(words)
    check_destination(path)
    return path


def _parse_origin(text: str) -> Source | Value:
    if text.startswith("json:"):
        return parse_constant(text.removeprefix("json:"))
    parts = text.split(":", 2)
    if len(parts) != 3 or not all(parts):
        found = len([part for part in parts if part])
        raise malformed(f"want RESOURCE:INSTANCE:PATH or json:JSON, found {found} {'part' if found == 1 else 'parts'}")
    resource, instance, path = parts
    _check_resource(resource)
    cluster, namespace, name = _parse_instance(instance)
    return Source(resource, namespace, name, _parse_source_path(path), cluster)


def _check_resource(text: str) -> None:
    try:
        check_resource_text(text)
    except ConfigError as error:
        raise malformed(f"resource: {error}") from None


def _parse_instance(text: str) -> tuple[str | None, str | None, str]:
    """Read NAME, NAMESPACE/NAME or CLUSTER/[NAMESPACE]/NAME; what was not written is None."""
    if _BLANK.search(text):
        raise malformed("instance: want NAME, NAMESPACE/NAME or CLUSTER/NAMESPACE/NAME without blanks")
    parts = text.split("/")
    if len(parts) > 3:
        raise malformed(f"instance: want NAME, NAMESPACE/NAME or CLUSTER/NAMESPACE/NAME, found {len(parts)} parts")
    name = parts[-1]
    # What cannot be a part of a URL path cannot be a name of anything.
    if not name or name in {".", ".."} or "%" in name or len(name) > 253:
        raise malformed("instance: want the name of an object")
    cluster = parts[0] if len(parts) == 3 else None
    namespace = parts[-2] if len(parts) > 1 else None
    if cluster is not None and not _CLUSTER.fullmatch(cluster):
        raise malformed("instance: want the name of a cluster before the first '/'")
    # A cluster-scoped object of a named cluster has no namespace: CLUSTER//NAME.
    if namespace is not None and not _NAMESPACE.fullmatch(namespace) and (namespace or cluster is None):
        raise malformed("instance: want a namespace before '/'")
    return cluster, namespace, name


def _parse_source_path(text: str) -> Path:
    try:
        return parse_path(text)
    except RuleError as error:
        hint = "; a name that holds a colon cannot be said in this form" if ":" in text else ""
        raise malformed(f"source {error.text}; JMESPath is not known{hint}") from None
