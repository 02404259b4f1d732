"""Annotations of a target become rules. Pure: whatever the text, the answer is rules and problems, never an exception.

A rule stands in an annotation of its own (`replace-PATH: RESOURCE:INSTANCE:PATH`), or in the list of the annotation
`rules`. One that cannot be read is data like any other: it disturbs no other rule, and where its destination is known
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
from controllers.copier.longform import Item, read_items
from controllers.copier.paths import Index, Path, check_destination, parse_path
from controllers.copier.problems import RuleError, malformed
from controllers.copier.queries import Query, parse_source_path
from controllers.copier.values import Plain, Value, check_size, describe, encode, parse_constant
from informers import ConfigError

PREFIX: Final = "k8s-copier.fig.org/"
ALLOW_COPY_TO: Final = f"{PREFIX}allow-copy-to"
LONG_FORM: Final = "rules"  # the annotation's name, and the id of what is wrong with all of it
MAX_RULES: Final = 128
MAX_NAME: Final = 63  # the API server's, for what follows the slash in an annotation's name
_MAX_REMEMBERED: Final = 1024
_MAX_LIST_REMEMBERED: Final = 8 * 1024
_MAX_SHOWN: Final = 200
_TOO_MANY: Final = "TooManyRules"

_NAME_PATH: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_NAMESPACE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_CLUSTER: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?")
_OBJECT_NAME: Final = re.compile(r"[^\s/%]+")
_PLAIN_WORD: Final = re.compile(r"[A-Za-z]{1,24}")
_BLANK: Final = re.compile(r"\s")
_KNOWN: Final = (
    "known are replace-PATH, merge-PATH, strategic-merge-PATH and rules on a target, and allow-copy-to on a source"
)


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
    path: Path | Query
    cluster: str | None = None  # as written; None: none was

    @property
    def reach(self) -> Path:
        """The path that nothing outside of is read; for an expression that may read anything, the whole object."""
        if isinstance(self.path, Path):
            return self.path
        return self.path.prefix or Path(())


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


def rules_among(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations that could be rules."""
    return {name: text for name, text in annotations.items() if name.startswith(PREFIX) and name != ALLOW_COPY_TO}


def parse_rules(annotations: Mapping[str, str]) -> RuleSet:
    """Read every rule among `annotations`, in an order that does not depend on theirs: short forms, then the list."""
    found: list[Rule | BadRule] = []
    for name in sorted(annotations):
        short = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or name == ALLOW_COPY_TO or short == LONG_FORM:
            continue
        text = annotations[name]
        parse = _parse_rule_once if len(text) <= _MAX_REMEMBERED else _parse_rule
        found.append(parse(short, text))
    listed = annotations.get(f"{PREFIX}{LONG_FORM}")
    if listed is not None:
        found.extend((_parse_list_once if len(listed) <= _MAX_LIST_REMEMBERED else _parse_list)(listed))
    # A list that has too many by itself is one problem, and was not read any further.
    error = next((each.error for each in found if isinstance(each, BadRule) and each.error.reason == _TOO_MANY), None)
    if error is None and len(found) > MAX_RULES:
        error = RuleError(
            _TOO_MANY, f"want at most {MAX_RULES} rules on one target, found {len(found)}; none is applied"
        )
    if error is not None:
        return RuleSet((), tuple(BadRule(each.id, each.to, error, each.operation) for each in found))
    return RuleSet(
        tuple(each for each in found if isinstance(each, Rule)),
        tuple(each for each in found if isinstance(each, BadRule)),
    )


# --- the short form ----------------------------------------------------------------------------------------------


def _parse_rule(name: str, text: str) -> Rule | BadRule:
    operation: Operation = Operation.REPLACE
    to: Path | None = None
    try:
        operation, path = _parse_name(name)
        to = _parse_destination(path)
        return Rule(name, operation, to, _parse_origin(text.strip()), text)
    except RuleError as error:
        return BadRule(name, to, error.bare(), operation)


# Thousands of targets may carry the same text, and each is looked at again and again.
_parse_rule_once = lru_cache(maxsize=2048)(_parse_rule)


def _parse_name(name: str) -> tuple[Operation, str]:
    for operation in (Operation.REPLACE, Operation.MERGE, Operation.STRATEGIC_MERGE):
        if name.startswith(f"{operation}-"):
            break
    else:
        raise malformed(f"this annotation is not known; {_KNOWN}")
    words = name.removeprefix(f"{operation}-")
    if not _NAME_PATH.fullmatch(words) or not words[-1].isalnum():
        raise malformed(
            f"want {operation}- followed by a path of letters, digits, '_', '-' and single dots, "
            "ending in a letter or digit; the rules annotation takes every path"
        )
    if len(name) > MAX_NAME:
        raise malformed(f"name has {len(name)} characters, at most {MAX_NAME} are allowed; use the rules annotation")
    return operation, words


def _parse_destination(text: str) -> Path:
    path = parse_path(text)
    check_destination(path)
    return path


def _parse_origin(text: str) -> Source | Value:
    if text.startswith("json:"):
        return parse_constant(text.removeprefix("json:"))
    parts = text.split(":", 2)
    if len(parts) != 3 or not all(parts):
        found = len([part for part in parts if part])
        counted = f"{found} {'part' if found == 1 else 'parts'}"
        raise malformed(f"want RESOURCE:INSTANCE:PATH or json:JSON, found {counted}{_separator_hint(text)}")
    resource, instance, path = parts
    _check_resource(resource)
    cluster, namespace, name = _parse_instance(instance)
    return Source(resource, namespace, name, _parse_source_path(path), cluster)


def _separator_hint(text: str) -> str:
    if text[:1] in {"{", "[", '"'}:
        return "; write json: before a constant"
    return "; write a colon between RESOURCE and INSTANCE" if "/" in text.partition(":")[0] else ""


def _check_resource(text: str, where: str = "resource") -> None:
    try:
        check_resource_text(text)
    except ConfigError as error:
        raise malformed(f"{where}: {error}") from None


def _parse_instance(text: str) -> tuple[str | None, str | None, str]:
    """Read NAME, NAMESPACE/NAME or CLUSTER/[NAMESPACE]/NAME; what was not written is None."""
    if _BLANK.search(text):
        raise malformed("instance: want NAME, NAMESPACE/NAME or CLUSTER/NAMESPACE/NAME without blanks")
    parts = text.split("/")
    if len(parts) > 3:
        raise malformed(f"instance: want NAME, NAMESPACE/NAME or CLUSTER/NAMESPACE/NAME, found {len(parts)} parts")
    name = parts[-1]
    _check_object_name(name, "instance")
    cluster = parts[0] if len(parts) == 3 else None
    namespace = parts[-2] if len(parts) > 1 else None
    if cluster is not None and not _CLUSTER.fullmatch(cluster):
        raise malformed("instance: want the name of a cluster before the first '/'")
    # A cluster-scoped object of a named cluster has no namespace: CLUSTER//NAME.
    if namespace is not None and not _NAMESPACE.fullmatch(namespace) and (namespace or cluster is None):
        raise malformed("instance: want a namespace before '/'")
    return cluster, namespace, name


def _check_object_name(text: str, where: str) -> None:
    # What cannot be a part of a URL path cannot be a name of anything.
    if text in {".", ".."} or len(text) > 253 or not _OBJECT_NAME.fullmatch(text):
        raise malformed(f"{where}: want the name of an object")


def _parse_source_path(text: str) -> Path | Query:
    try:
        return parse_source_path(text)
    except RuleError as error:
        hint = "; a name that holds a colon takes the rules annotation" if ":" in text else ""
        raise malformed(f"source {error.text}{hint}") from None


# --- the long form -----------------------------------------------------------------------------------------------

_KEYS: Final = frozenset(
    ("op", "to", "from", "value", "except", "decode", "as", "encode", "onSourceMissing", "onRuleRemoved")
)
_FROM_KEYS: Final = frozenset(("resource", "name", "namespace", "cluster", "path"))
_MEANINGLESS_FOR_REMOVE: Final = ("from", "value", "except", "decode", "as", "encode", "onSourceMissing")
_BASE64: Final = "base64"


def _parse_list(text: str) -> tuple[Rule | BadRule, ...]:
    try:
        items = read_items(text, at_most=MAX_RULES)
    except RuleError as error:
        return (BadRule(LONG_FORM, None, error.bare()),)
    return tuple(_parse_item(f"{LONG_FORM}[{number}]", item) for number, item in enumerate(items))


_parse_list_once = lru_cache(maxsize=128)(_parse_list)


def _parse_item(id_: str, item: Item) -> Rule | BadRule:
    plain = item.plain if isinstance(item.plain, dict) else {}
    # First what tells which rule it is, so that the value there is kept whatever else is wrong.
    word: Plain = plain.get("op", str(Operation.REPLACE))
    operation = Operation(word) if isinstance(word, str) and word in set(Operation) else None
    to: Path | None = None
    try:
        if isinstance(words := plain.get("to"), str):
            to = _parse_list_destination(words)
            id_ = f"{id_} {_shortened(str(to))}"
        if item.fault is not None:
            raise item.fault
        if not isinstance(item.plain, dict):
            raise malformed(f"want a map, found {describe(item.plain)}")
        if operation is None:
            raise malformed(f"op: want {_one_of(Operation)}, found {_another(word)}")
        _check_keys(plain, operation)
        if to is None:
            raise malformed(f"to: want a path, found {describe(plain['to'])}" if "to" in plain else "to: is required")
        if operation is Operation.REMOVE and isinstance(to.steps[-1], Index):
            raise malformed("to: a list's element is not removed by its number, which the next one takes over at once")
        return Rule(
            id_,
            operation,
            to,
            _parse_item_origin(plain, operation),
            encode(plain).decode(),
            _parse_conversion(plain),
            _parse_on_source_missing(plain, to),
            _parse_on_rule_removed(plain, to),
        )
    except RuleError as error:
        return BadRule(id_, to, error.bare(), operation or Operation.REPLACE)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _parse_list_destination(text: str) -> Path:
    try:
        return _parse_destination(text)
    except RuleError as error:
        raise malformed(f"to: {error.text}; it is a path, as only sources may be JMESPath") from None


def _check_keys(plain: Mapping[str, Plain], operation: Operation) -> None:
    _check_known(plain, _KEYS, "")
    if operation is Operation.REMOVE:
        for key in _MEANINGLESS_FOR_REMOVE:
            if key in plain:
                raise malformed(f"{key}: means nothing to op: remove")
    elif ("from" in plain) is ("value" in plain):
        raise malformed(f"want either from or value, found {'both' if 'from' in plain else 'neither'}")
    if "decode" in plain and "encode" in plain:
        raise malformed("want decode or encode, found both")


def _check_known(plain: Mapping[str, Plain], known: frozenset[str], where: str) -> None:
    for key in plain:
        if key not in known:
            # What is no plain word may be a part of a value in the wrong place.
            name = f"{where}{key}" if _PLAIN_WORD.fullmatch(key) else f"{where}(a key of {len(key)} characters)"
            raise malformed(f"{name}: is not known; known are {', '.join(sorted(known))}")


def _parse_item_origin(plain: Mapping[str, Plain], operation: Operation) -> Source | Value | None:
    if operation is Operation.REMOVE:
        return None
    if "value" in plain:
        return _constant(plain["value"])
    origin = plain["from"]
    if not isinstance(origin, dict):
        raise malformed(f"from: want a map with resource, name and path, found {describe(origin)}")
    _check_known(origin, _FROM_KEYS, "from.")
    for key in sorted(_FROM_KEYS):
        if key in origin and not isinstance(origin[key], str):
            raise malformed(f"from.{key}: want a string, found {describe(origin[key])}")
    texts = {key: text for key, text in origin.items() if isinstance(text, str)}
    for key in ("resource", "name", "path"):
        if key not in texts:
            raise malformed(f"from.{key}: is required")
    _check_resource(texts["resource"], "from.resource")
    _check_object_name(texts["name"], "from.name")
    if "namespace" in texts and not _NAMESPACE.fullmatch(texts["namespace"]):
        raise malformed("from.namespace: want the name of a namespace")
    if "cluster" in texts and not _CLUSTER.fullmatch(texts["cluster"]):
        raise malformed("from.cluster: want the name of a cluster")
    try:
        path = parse_source_path(texts["path"])
    except RuleError as error:
        raise malformed(f"from.path: {error.text}") from None
    return Source(texts["resource"], texts.get("namespace"), texts["name"], path, texts.get("cluster"))


def _parse_conversion(plain: Mapping[str, Plain]) -> Conversion:
    for key in ("decode", "encode"):
        if key in plain and plain[key] != _BASE64:
            raise malformed(f"{key}: want base64, found {_another(plain[key])}")
    to_type = plain.get("as")
    if "as" in plain and (not isinstance(to_type, str) or to_type not in set(As)):
        raise malformed(f"as: want {_one_of(As)}, found {_another(to_type)}")
    return Conversion(
        _parse_excepts(plain.get("except", [])),
        decode="decode" in plain,
        to_type=As(to_type) if isinstance(to_type, str) else None,
        encode="encode" in plain,
    )


def _parse_excepts(plain: Plain) -> tuple[Path, ...]:
    if not isinstance(plain, list):
        raise malformed(f"except: want a list of paths, found {describe(plain)}")
    paths: list[Path] = []
    for number, words in enumerate(plain):
        if not isinstance(words, str):
            raise malformed(f"except[{number}]: want a path, found {describe(words)}")
        try:
            path = parse_path(words)
        except RuleError as error:
            raise malformed(f"except[{number}]: {error.text}") from None
        if isinstance(path.steps[-1], Index):
            raise malformed(
                f"except[{number}]: a list's element is not left out by its number, which is another one's in the "
                "target and once it is left out; want a key, as in [name=app]"
            )
        paths.append(path)
    return tuple(paths)


def _parse_on_source_missing(plain: Mapping[str, Plain], to: Path) -> Fate | Value | None:
    if "onSourceMissing" not in plain:
        return None
    word = plain["onSourceMissing"]
    if isinstance(word, dict) and word.keys() == {"default"}:
        return _constant(word["default"])
    if not isinstance(word, str) or word not in set(Fate):
        raise malformed(f"onSourceMissing: want retain, remove or {{default: VALUE}}, found {_another(word)}")
    return _checked_fate("onSourceMissing", Fate(word), to)


def _parse_on_rule_removed(plain: Mapping[str, Plain], to: Path) -> Fate | None:
    if "onRuleRemoved" not in plain:
        return None
    word = plain["onRuleRemoved"]
    if word == "keep":
        return Fate.RETAIN
    if not isinstance(word, str) or word not in set(Fate):
        raise malformed(f"onRuleRemoved: want retain (also written keep) or remove, found {_another(word)}")
    return _checked_fate("onRuleRemoved", Fate(word), to)


def _checked_fate(key: str, fate: Fate, to: Path) -> Fate:
    if fate is Fate.REMOVE and isinstance(to.steps[-1], Index):
        raise malformed(f"{key}: a list's element is not removed by its number")
    return fate


def _constant(plain: Plain) -> Value:
    check_size(plain, too_deep="MalformedRule")
    return Value(plain)


def _one_of(words: type[StrEnum]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}"


def _another(plain: Plain) -> str:
    return "another text" if isinstance(plain, str) else describe(plain)
