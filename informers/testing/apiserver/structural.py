"""Hold custom resources to the schema of their CRD: prune, default, validate.

The rules are those of apiextensions-apiserver pkg/apiserver/schema (structural schemas) and pkg/apiserver/validation.
CEL rules (`x-kubernetes-validations`) are kept in the CRD and not evaluated.
"""

from __future__ import annotations

import base64
import binascii
import functools
import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from informers.testing.apiserver import names, schemas
from informers.testing.apiserver.statuses import (
    Cause,
    bad_type,
    bad_value,
    duplicate,
    not_supported,
    required,
    show,
    too_long,
    too_many,
)

_META_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata"})
_NOTHING: Final = object()


@dataclass(slots=True, eq=False)
class Structural:
    """One schema of a CRD, read once."""

    type: str = ""
    properties: dict[str, Structural] = field(default_factory=dict)
    additional: Structural | None = None
    allows_additional: bool = False
    items: Structural | None = None
    nullable: bool = False
    default: Any = _NOTHING
    preserves: bool = False
    is_embedded: bool = False
    is_int_or_string: bool = False
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    map_type: str = ""
    rules: tuple[Callable[[Any, str], Sequence[Cause]], ...] = ()
    has_defaults: bool = False
    """Whether it or anything inside has a default."""
    has_rules: bool = True
    """False when nothing in it could ever be wrong."""
    is_open: bool = False
    """True when nothing in it is ever pruned."""
    has_special_lists: bool = False
    has_embedded: bool = False

    @property
    def has_default(self) -> bool:
        """Tell whether this very place has a default."""
        return self.default is not _NOTHING


def compile_schema(schema: Mapping[str, Any] | None) -> Structural:
    """Read an OpenAPI v3 schema of a CRD; None is the schema that says nothing."""
    return _compile(schema or {})


def _compile(schema: Mapping[str, Any]) -> Structural:
    s = Structural(
        type=schema.get("type", ""),
        nullable=bool(schema.get("nullable")),
        preserves=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
        is_embedded=bool(schema.get("x-kubernetes-embedded-resource")),
        is_int_or_string=bool(schema.get("x-kubernetes-int-or-string")),
        list_type=schema.get("x-kubernetes-list-type") or "",
        list_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        map_type=schema.get("x-kubernetes-map-type") or "",
    )
    if schema.get("default") is not None:
        s.default = schema["default"]
    s.properties = {name: _compile(each) for name, each in (schema.get("properties") or {}).items()}
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        s.additional, s.allows_additional = _compile(additional), True
    elif additional is True:
        s.allows_additional = True
    if isinstance(schema.get("items"), Mapping):
        s.items = _compile(schema["items"])
    s.rules = tuple(_rules(schema))
    children = [*s.properties.values(), *(each for each in (s.additional, s.items) if each is not None)]
    s.has_defaults = s.has_default or any(child.has_defaults for child in children)
    s.has_rules = bool(s.rules or s.type or s.is_embedded or s.is_int_or_string) or any(
        child.has_rules for child in children
    )
    s.has_embedded = s.is_embedded or any(child.has_embedded for child in children)
    s.has_special_lists = s.list_type in {"set", "map"} or any(child.has_special_lists for child in children)
    return s


# --- pruning ---


def prune(value: Any, s: Structural, *, unknown: list[str] | None = None) -> None:
    """Remove, in place, what the schema of a whole object does not name; paths are appended to `unknown`."""
    found: list[str] = []
    _prune(value, s, "", found, is_root=True)
    if unknown is not None:
        unknown.extend(sorted(found))


def prune_value(value: Any, s: Structural) -> None:
    """Remove, in place, what the schema of a part of an object does not name."""
    _prune(value, s, "", [])


def _prune(value: Any, s: Structural | None, path: str, unknown: list[str], *, is_root: bool = False) -> None:
    if s is not None and s.preserves:
        _prune_preserving(value, s, path, unknown, is_root=is_root)
    elif isinstance(value, dict):
        if s is None:
            unknown.extend(_join(path, key) for key in value)
            value.clear()
            return
        embedded = s.is_embedded or is_root
        dropped = []
        for key, each in value.items():
            if embedded and key in _META_FIELDS:
                continue
            known = s.properties.get(key)
            if known is None and s.allows_additional:
                if s.additional is not None:
                    _prune(each, s.additional, _join(path, key), unknown)
            elif known is None:
                dropped.append(key)
            elif type(each) is dict or type(each) is list:
                _prune(each, known, _join(path, key), unknown)
        for key in dropped:
            unknown.append(_join(path, key))
            del value[key]
    elif isinstance(value, list):
        items = None if s is None else s.items
        for index, each in enumerate(value):
            _prune(each, items, f"{path}[{index}]", unknown)


def _prune_preserving(value: Any, s: Structural, path: str, unknown: list[str], *, is_root: bool = False) -> None:
    """Go through what is kept whole: parts that the schema does name are pruned again."""
    if isinstance(value, dict):
        for key, each in value.items():
            if (s.is_embedded or is_root) and key in _META_FIELDS:
                continue
            known = s.properties.get(key) or s.additional
            if known is not None:
                _prune(each, known, _join(path, key), unknown)
    elif isinstance(value, list) and s.items is not None:
        for index, each in enumerate(value):
            _prune_preserving(each, s.items, f"{path}[{index}]", unknown)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


# --- defaulting ---


def default(value: Any, s: Structural) -> None:
    """Fill in defaults in place; a null where none is allowed counts as absent."""
    _drop_nulls(value, s)
    if s.has_defaults:
        _default(value, s)


def _drop_nulls(value: Any, s: Structural) -> None:
    """Remove nulls that the schema does not allow and has no default for."""
    if isinstance(value, dict):
        dropped = None
        for key, each in value.items():
            known = s.properties.get(key) or s.additional
            if known is None:
                continue
            if each is None:
                if not known.nullable and not known.has_default:
                    dropped = [*(dropped or ()), key]
            elif type(each) is dict or type(each) is list:
                _drop_nulls(each, known)
        for key in dropped or ():
            del value[key]
    elif isinstance(value, list) and s.items is not None:
        for each in value:
            _drop_nulls(each, s.items)


def _default(value: Any, s: Structural) -> None:
    if isinstance(value, dict):
        for key, known in s.properties.items():
            if known.has_default and (key not in value or (value[key] is None and not known.nullable)):
                value[key] = copy(known.default)
        for key, each in value.items():
            child = s.properties.get(key) or s.additional
            if child is None:
                continue
            if each is None and not child.nullable and child.has_default:
                value[key] = copy(child.default)
            if child.has_defaults:
                _default(value[key], child)
    elif isinstance(value, list) and s.items is not None and s.items.has_defaults:
        for index, each in enumerate(value):
            if each is None and not s.items.nullable and s.items.has_default:
                value[index] = copy(s.items.default)
            _default(value[index], s.items)


def copy(value: Any) -> Any:
    """Copy a JSON value, with numbers as Go prints them: whole ones without a fraction, huge ones as floats."""
    kind = type(value)
    if kind is str:
        return value
    if kind is dict:
        return {key: copy(each) for key, each in value.items()}
    if kind is list:
        return [copy(each) for each in value]
    if kind is float and abs(value) < _WHOLE_AS_INTEGER and value.is_integer():
        return int(value)
    if kind is int and not -_INT64 <= value < _INT64:
        return copy(float(value))
    return value


_INT64: Final = 2**63
_WHOLE_AS_INTEGER: Final = 1e21


# --- validation ---


def validate(obj: Mapping[str, Any], s: Structural) -> list[Cause]:
    """List what is wrong with a whole object, apart from its metadata."""
    causes: list[Cause] = []
    _validate_members(obj, s, "", causes, skipped=_META_FIELDS if not s.preserves else frozenset({"metadata"}))
    if s.has_embedded:
        causes.extend(_embedded_causes(obj, s, "", is_root=True))
    if s.has_special_lists:
        causes.extend(_list_causes(obj, s, ""))
    return causes


def validate_value(value: Any, s: Structural, path: str) -> list[Cause]:
    """List what is wrong with one value, such as a default."""
    causes: list[Cause] = []
    _validate(value, s, path, causes)
    return causes


def _validate(value: Any, s: Structural, path: str, causes: list[Cause]) -> None:
    if not s.has_rules:
        return
    if value is None:
        if s.nullable or not s.type:
            return
        causes.append(bad_type(path, "null", f'{path} in body must be of type {s.type}: "null"'))
        return
    if s.is_int_or_string:
        if isinstance(value, bool) or not isinstance(value, int | str):
            found = json_type(value)
            causes.append(bad_type(path, found, f'{path} in body must be of type integer,string: "{found}"'))
            return
    elif s.type and not _has_type(value, s.type):
        found = json_type(value)
        causes.append(bad_type(path, found, f'{path} in body must be of type {s.type}: "{found}"'))
        return
    for rule in s.rules:
        causes.extend(rule(value, path))
    if isinstance(value, dict):
        _validate_members(value, s, path, causes)
    elif isinstance(value, list) and s.items is not None:
        for index, each in enumerate(value):
            _validate(each, s.items, f"{path}[{index}]", causes)


def _validate_members(
    value: Mapping[str, Any], s: Structural, path: str, causes: list[Cause], skipped: frozenset[str] = frozenset()
) -> None:
    if not path:
        for rule in s.rules:
            causes.extend(rule(value, ""))
    for key, each in value.items():
        if key in skipped:
            continue
        known = s.properties.get(key) or s.additional
        if known is not None:
            _validate(each, known, _join(path, key), causes)


def json_type(value: Any) -> str:
    """Name a JSON type as OpenAPI does."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _has_type(value: Any, wanted: str) -> bool:
    found = json_type(value)
    if wanted == "number":
        return found in {"integer", "number"}
    if wanted == "integer" and found == "number":
        return bool(value == int(value))
    return found == wanted


Rule = Callable[[Any, str], Sequence[Cause]]


def _rules(schema: Mapping[str, Any]) -> Iterator[Rule]:
    """Make a check of each value validation of a schema."""
    if schema.get("enum") is not None:
        yield functools.partial(_check_enum, list(schema["enum"]))
    yield from _number_rules(schema)
    yield from _string_rules(schema)
    yield from _size_rules(schema)
    if names_wanted := schema.get("required"):
        yield functools.partial(_check_required, tuple(names_wanted))
    for word, check in (("allOf", _check_all), ("anyOf", _check_any), ("oneOf", _check_one)):
        if schema.get(word):
            yield functools.partial(check, [_compile(each) for each in schema[word]])
    if schema.get("not"):
        yield functools.partial(_check_not, _compile(schema["not"]))


def _check_enum(allowed: list[Any], value: Any, path: str) -> Sequence[Cause]:
    if any(type(each) is type(value) and each == value for each in allowed):
        return ()
    shown = [each if isinstance(each, str) else show(each) for each in allowed]
    return (not_supported(path, value, shown),)


def _check_required(wanted: Sequence[str], value: Any, path: str) -> Sequence[Cause]:
    if not isinstance(value, dict):
        return ()
    return [required(_join(path, name)) for name in wanted if name not in value]


def _number_rules(schema: Mapping[str, Any]) -> Iterator[Rule]:
    exclusive_max, exclusive_min = schema.get("exclusiveMaximum"), schema.get("exclusiveMinimum")
    if (limit := schema.get("maximum")) is not None:
        word = "less than" if exclusive_max else "less than or equal to"
        yield _number_rule(lambda x: x < limit if exclusive_max else x <= limit, f"should be {word} {_number(limit)}")
    if (least := schema.get("minimum")) is not None:
        word = "greater than" if exclusive_min else "greater than or equal to"
        yield _number_rule(lambda x: x > least if exclusive_min else x >= least, f"should be {word} {_number(least)}")
    if factor := schema.get("multipleOf"):
        yield _number_rule(lambda x: (x / factor).is_integer(), f"should be a multiple of {_number(factor)}")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e21 else repr(value)


def _number_rule(holds: Callable[[float], bool], text: str) -> Rule:
    def check(value: Any, path: str) -> Sequence[Cause]:
        if isinstance(value, bool) or not isinstance(value, int | float) or holds(value):
            return ()
        return (bad_value(path, value, f"{path} in body {text}"),)

    return check


def _string_rules(schema: Mapping[str, Any]) -> Iterator[Rule]:
    longest, shortest, pattern = schema.get("maxLength"), schema.get("minLength"), schema.get("pattern")
    if longest is not None or shortest is not None or pattern:
        yield functools.partial(_check_string, longest, shortest, pattern)
    name = schema.get("format") or ""
    if name in _FORMATS:
        holds = _FORMATS[name]
        yield (
            lambda value, path: (
                (bad_type(path, value, f"{path} in body must be of type {name}: {show(value)}"),)
                if isinstance(value, str) and not holds(value)
                else ()
            )
        )
    elif name in {"int32", "int64"} and schema.get("type") in {"integer", "number"}:
        limit = 2 ** (31 if name == "int32" else 63)
        yield (
            lambda value, path: (
                (bad_value(path, value, f"{path} in body should be a {name}"),)
                if isinstance(value, int) and not isinstance(value, bool) and not -limit <= value < limit
                else ()
            )
        )


def _check_string(
    longest: int | None, shortest: int | None, pattern: str | None, value: Any, path: str
) -> Sequence[Cause]:
    """Report the first of the rules that a string breaks."""
    if not isinstance(value, str):
        return ()
    if longest is not None and len(value) > longest:
        return (too_long(path, longest),)
    if shortest is not None and len(value) < shortest:
        return (bad_value(path, value, f"{path} in body should be at least {shortest} chars long"),)
    if pattern and not go_pattern(pattern).search(value):
        return (bad_value(path, value, f"{path} in body should match '{pattern}'"),)
    return ()


def _size_rules(schema: Mapping[str, Any]) -> Iterator[Rule]:
    for kind, most, least, noun in (
        (list, schema.get("maxItems"), schema.get("minItems"), "items"),
        (dict, schema.get("maxProperties"), schema.get("minProperties"), "properties"),
    ):
        if most is not None:
            yield functools.partial(_check_at_most, kind, most)
        if least is not None:
            yield functools.partial(_check_at_least, kind, least, noun)
    if schema.get("uniqueItems"):
        yield _check_unique


def _check_at_most(kind: type[Any], most: int, value: Any, path: str) -> Sequence[Cause]:
    return (too_many(path, len(value), most),) if isinstance(value, kind) and len(value) > most else ()


def _check_at_least(kind: type[Any], least: int, noun: str, value: Any, path: str) -> Sequence[Cause]:
    if not isinstance(value, kind) or len(value) >= least:
        return ()
    shown = value if kind is dict else len(value)
    return (bad_value(path, shown, f"{path} in body should have at least {least} {noun}"),)


def _check_unique(value: Any, path: str) -> Sequence[Cause]:
    if not isinstance(value, list) or len({show(each) for each in value}) == len(value):
        return ()
    return (bad_value(path, value, f"{path} in body shouldn't contain duplicates"),)


_NOWHERE: Final = "<nil>"  # what the server says of rules over whole schemas


def _faults(s: Structural, value: Any, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if path:
        _validate(value, s, path, causes)
    elif isinstance(value, dict):
        _validate_members(value, s, path, causes)
    return causes


def _check_all(choices: Sequence[Structural], value: Any, path: str) -> Sequence[Cause]:
    causes = [cause for choice in choices for cause in _faults(choice, value, path)]
    if not causes:
        return ()
    return [*causes, bad_value(_NOWHERE, "", f'"{path}" must validate all the schemas (allOf)')]


def _check_any(choices: Sequence[Structural], value: Any, path: str) -> Sequence[Cause]:
    found = [_faults(choice, value, path) for choice in choices]
    if not all(found):
        return ()
    return [bad_value(_NOWHERE, "", f'"{path}" must validate at least one schema (anyOf)'), *min(found, key=len)]


def _check_one(choices: Sequence[Structural], value: Any, path: str) -> Sequence[Cause]:
    found = [_faults(choice, value, path) for choice in choices]
    valid = sum(not causes for causes in found)
    if valid == 1:
        return ()
    told = "Found none valid" if not valid else f"Found {valid} valid alternatives"
    cause = bad_value(_NOWHERE, "", f'"{path}" must validate one and only one schema (oneOf). {told}')
    return [cause, *(min(found, key=len) if not valid else ())]


def _check_not(forbidden: Structural, value: Any, path: str) -> Sequence[Cause]:
    if _faults(forbidden, value, path):
        return ()
    return (bad_value(_NOWHERE, "", f'"{path}" must not validate the schema (not)'),)


@functools.lru_cache(maxsize=1024)
def go_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a Go regular expression (RE2), whose few differences from Python's matter here.

    Raises `re.error` on one that cannot be read.
    """
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\z", r"\1\\Z", pattern)
    for name, chars in _POSIX_CLASSES.items():
        text = text.replace(f"[:{name}:]", chars)
    # `$` is the very end in Go; in Python also the place before a last newline.
    text = re.sub(r"(?<!\\)((?:\\\\)*)\$(?![^\[]*\])", r"\1\\Z", text)
    return re.compile(text, re.ASCII)


_POSIX_CLASSES: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\t\n\v\f\r ",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


def _quiet(parse: Callable[[str], Any], errors: type[Exception] = ValueError) -> Callable[[str], bool]:
    def holds(value: str) -> bool:
        try:
            parse(value)
        except (ValueError, errors):
            return False
        return True

    return holds


def _parse_date_time(value: str) -> None:
    if "T" not in value.upper() or datetime.fromisoformat(value).tzinfo is None:
        raise ValueError(value)


def _parse_uri(value: str) -> None:
    parts = urlsplit(value)
    if not (parts.scheme or value.startswith("/")):
        raise ValueError(value)


_DURATION: Final = re.compile(
    r"[-+]?(?:[0-9]+(?:\.[0-9]*)?(?:ns|us|µs|ms|s|m|h)|[0-9]+\s*(?:d|day|days|w|week|weeks))+|0"
)
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_HOSTNAME: Final = re.compile(r"(?=.{1,255}$)([A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?\.?)+")
# Formats that the server checks; others are for documentation only.
_FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "date": _quiet(date.fromisoformat),
    "date-time": _quiet(_parse_date_time),
    "datetime": _quiet(_parse_date_time),
    "duration": lambda value: _DURATION.fullmatch(value) is not None,
    "email": lambda value: _EMAIL.fullmatch(value) is not None,
    "hostname": lambda value: _HOSTNAME.fullmatch(value) is not None,
    "ipv4": _quiet(ipaddress.IPv4Address),
    "ipv6": _quiet(ipaddress.IPv6Address),
    "cidr": _quiet(ipaddress.ip_interface),
    "mac": lambda value: re.fullmatch(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", value) is not None,
    "uri": _quiet(_parse_uri),
    "uuid": _quiet(uuid.UUID),
    "byte": _quiet(functools.partial(base64.b64decode, validate=True), binascii.Error),
}


# --- what a schema says beyond single values ---


def _list_causes(value: Any, s: Structural, path: str) -> Iterator[Cause]:
    """Find items that a set or map has twice."""
    if isinstance(value, dict):
        for key, each in value.items():
            known = s.properties.get(key)
            if known is not None:
                yield from _list_causes(each, known, _join(path, key))
            elif s.additional is not None:
                yield from _list_causes(each, s.additional, f"{path}[{key}]")
    elif isinstance(value, list):
        if s.list_type == "set":
            yield from (duplicate(f"{path}[{index}]", value[index]) for index in _repeated(value))
        elif s.list_type == "map":
            yield from _map_causes(value, s, path)
        if s.items is not None:
            for index, each in enumerate(value):
                yield from _list_causes(each, s.items, f"{path}[{index}]")


def _map_causes(value: Sequence[Any], s: Structural, path: str) -> Iterator[Cause]:
    for index, each in enumerate(value):
        if not isinstance(each, dict | None):
            yield bad_value(f"{path}[{index}]", each, "must be an object for an array of list-type map")
            return
    keys = [{name: each[name] for name in s.list_keys if name in (each or {})} for each in value]
    yield from (duplicate(f"{path}[{index}]", keys[index]) for index in _repeated(keys))


def _repeated(values: Sequence[Any]) -> Iterator[int]:
    """Name the first repetition of each value that stands more than once."""
    seen: dict[str, int] = {}
    for index, each in enumerate(values):
        text = f"{json_type(each)}:{json.dumps(each, sort_keys=True)}"
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 2:
            yield index


def _embedded_causes(value: Any, s: Structural, path: str, *, is_root: bool = False) -> Iterator[Cause]:
    """Check apiVersion, kind and metadata of objects inside an object."""
    if isinstance(value, dict):
        if s.is_embedded and not is_root:
            yield from _embedded_object_causes(value, path)
        for key, each in value.items():
            known = s.properties.get(key) or s.additional
            if known is not None and known.has_embedded:
                yield from _embedded_causes(each, known, _join(path, key))
    elif isinstance(value, list) and s.items is not None and s.items.has_embedded:
        for index, each in enumerate(value):
            yield from _embedded_causes(each, s.items, f"{path}[{index}]")


def _embedded_object_causes(value: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if not value.get("apiVersion"):
        yield required(f"{path}.apiVersion")
    if not value.get("kind"):
        yield required(f"{path}.kind")
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        yield from names.label_causes(metadata.get("labels") or {}, f"{path}.metadata.labels")
        yield from names.annotation_causes(metadata.get("annotations") or {}, f"{path}.metadata.annotations")


def coerce_embedded(value: Any, s: Structural, unknown: list[str], path: str = "") -> None:
    """Read the metadata of objects inside an object into its type, in place; raises `schemas.DecodeError`."""
    if isinstance(value, dict):
        if s.is_embedded and path and isinstance(value.get("metadata"), dict):
            missing: list[str] = []
            value["metadata"] = schemas.decode(schemas.object_meta(), value["metadata"], unknown=missing)
            unknown.extend(f"{path}.metadata.{each}" for each in missing)
        for key, each in value.items():
            known = s.properties.get(key) or s.additional
            if known is not None and known.has_embedded:
                coerce_embedded(each, known, unknown, _join(path, key))
    elif isinstance(value, list) and s.items is not None and s.items.has_embedded:
        for index, each in enumerate(value):
            coerce_embedded(each, s.items, unknown, f"{path}[{index}]")


def node_of(s: Structural, *, is_root: bool = False) -> schemas.Node:
    """Give the shape that a schema describes, for whoever needs to know lists and maps only."""
    if s.type == "array":
        element = node_of(s.items) if s.items is not None else schemas.Node("any")
        return schemas.Node(
            "list", element=schemas.Field(element), list_type=s.list_type or "atomic", list_keys=s.list_keys
        )
    if s.type == "object" or s.properties or is_root:
        fields = {
            name: schemas.Field(node_of(each), default=each.default if each.has_default else None)
            for name, each in s.properties.items()
        }
        node = schemas.Node("struct", fields=fields, map_type=s.map_type or "granular", untyped_rest=s.preserves)
        if s.allows_additional:
            rest = node_of(s.additional) if s.additional is not None else schemas.Node("any")
            node.element = schemas.Field(rest)
        if is_root or s.is_embedded:
            node.fields["metadata"] = schemas.Field(schemas.object_meta())
            for name in ("apiVersion", "kind"):
                node.fields[name] = schemas.Field(schemas.Node("string"))
        return node
    if s.is_int_or_string:
        return schemas.Node("intstr")
    return schemas.Node(s.type or "any")
