"""Know the shape of every kind: fields, types, merge keys, list types; and read a value as the server would.

A shape is a `Node`. Those of built-in kinds come from schemas.json.gz, which hack/update-schemas extracts from a
real API server; those of custom resources are made from their CRD (see structural.py).

What is surprising: a real server reads built-in objects into Go structs and prints those. So a null is the same as
nothing, an empty list disappears, and a field that is not a pointer is printed although nobody set it. `decode` does
that; custom resources keep what they were given.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final

from informers.testing.apiserver import quantities

_REF: Final = "#/components/schemas/"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
# Extensions of the shipped data that no server publishes.
OWN_EXTENSIONS: Final = frozenset({"x-zero"})


@dataclass(slots=True, eq=False)
class Node:
    """The shape of one value.

    `kind` is struct, map, list, string, integer, number, boolean, bytes, time, microtime, duration, quantity, intstr
    or any. `fields` belongs to a struct (and to a map with known keys, in a custom resource); `element` to a map or list.
    """

    kind: str
    name: str = ""
    """What Go calls the type; it stands in error texts."""
    fields: dict[str, Field] = field(default_factory=dict)
    element: Field | None = None
    list_type: str = "atomic"
    """atomic, set or map, of a list."""
    list_keys: tuple[str, ...] = ()
    map_type: str = "granular"
    """atomic or granular, of a struct or map."""
    shown: tuple[str, ...] = ()
    """Fields of a struct that are printed although they are absent."""
    format: str = ""
    gvks: tuple[tuple[str, str, str], ...] = ()
    untyped_rest: bool = False
    """Whether keys that `fields` does not name are taken as they are."""


@dataclass(slots=True, eq=False)
class Field:
    """One place in a shape: what may stand there, and how patches and zero values treat it there."""

    node: Node
    zero: str = ""
    """What is printed for an empty value: "" nothing, `keep` itself, `zero` the zero value, `null` null."""
    strategies: frozenset[str] = frozenset()
    """Of a strategic merge patch: merge, replace, retainKeys."""
    merge_key: str = ""
    default: Any = None
    """A default that the server publishes, other than the zero value."""
    enum: tuple[Any, ...] = ()
    is_required: bool = False


class DecodeError(Exception):
    """Say that a value cannot be read into the type that stands at its place."""


@cache
def published() -> Mapping[str, Any]:
    """Load the shipped data: `version` of the server it is from, `schemas` by definition name."""
    raw = resources.files("informers.testing.apiserver").joinpath("schemas.json.gz").read_bytes()
    loaded: dict[str, Any] = json.loads(gzip.decompress(raw))
    return loaded


@cache
def _definitions() -> Mapping[tuple[str, str, str], str]:
    """Map group, version and kind to the definition's name."""
    found = {}
    for name, schema in published()["schemas"].items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            found[gvk["group"], gvk["version"], gvk["kind"]] = name
    return found


def definition_name(group: str, version: str, kind: str) -> str | None:
    """Name the published definition of a built-in kind."""
    return _definitions().get((group, version, kind))


@cache
def builtin(group: str, version: str, kind: str) -> Node:
    """Get the shape of a built-in kind."""
    name = definition_name(group, version, kind)
    if name is None:
        raise KeyError((group, version, kind))
    return _compiled(name)


def object_meta() -> Node:
    """Get the shape of `metadata`."""
    return _compiled(_META + "ObjectMeta")


def delete_options() -> Node:
    """Get the shape of `DeleteOptions`."""
    return _compiled(_META + "DeleteOptions")


_nodes: dict[str, Node] = {}

_SPECIAL: Final[Mapping[str, str]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intstr",
    _META + "Time": "time",
    _META + "MicroTime": "microtime",
    _META + "Duration": "duration",
    _META + "FieldsV1": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray": "any",
}


def _compiled(name: str) -> Node:
    found = _nodes.get(name)
    if found is None:
        short = name.rpartition(".")[2]
        if name in _SPECIAL:
            return _nodes.setdefault(name, Node(_SPECIAL[name], name=short))
        schema = published()["schemas"][name]
        found = Node("struct", name=short)
        _nodes[name] = found  # before its fields: types refer to themselves
        _fill_struct(found, schema)
    return found


def _fill_struct(node: Node, schema: Mapping[str, Any]) -> None:
    node.map_type = schema.get("x-kubernetes-map-type", "granular")
    node.gvks = tuple((g["group"], g["version"], g["kind"]) for g in schema.get("x-kubernetes-group-version-kind", ()))
    required = frozenset(schema.get("required", ()))
    for name, prop in schema.get("properties", {}).items():
        node.fields[name] = _field(prop, is_required=name in required)
    node.shown = tuple(name for name, each in node.fields.items() if each.zero in {"zero", "null"})


def _field(prop: Mapping[str, Any], *, is_required: bool = False) -> Field:
    strategies = prop.get("x-kubernetes-patch-strategy", "")
    default = prop.get("default")
    return Field(
        node=_node(prop),
        zero=prop.get("x-zero", ""),
        strategies=frozenset(strategies.split(",")) if strategies else frozenset(),
        merge_key=prop.get("x-kubernetes-patch-merge-key", ""),
        default=default if default not in ({}, "", 0, None) else None,
        enum=tuple(prop.get("enum", ())),
        is_required=is_required,
    )


def _node(prop: Mapping[str, Any]) -> Node:
    ref = prop.get("$ref") or next((each["$ref"] for each in prop.get("allOf", ()) if "$ref" in each), None)
    if ref is not None:
        found = _compiled(ref.removeprefix(_REF))
        if "x-kubernetes-map-type" in prop and found.kind == "struct":
            node = Node("struct", name=found.name, fields=found.fields, shown=found.shown)
            node.map_type = prop["x-kubernetes-map-type"]
            return node
        return found
    match prop.get("type"):
        case "array":
            return Node(
                "list",
                element=_field(prop["items"]),
                list_type=prop.get("x-kubernetes-list-type", "atomic"),
                list_keys=tuple(prop.get("x-kubernetes-list-map-keys", ())),
            )
        case "object" if "additionalProperties" in prop:
            node = Node("map", element=_field(prop["additionalProperties"]))
            node.map_type = prop.get("x-kubernetes-map-type", "granular")
            return node
        case "string":
            return Node("bytes") if prop.get("format") == "byte" else Node("string", format=prop.get("format", ""))
        case "integer" | "number" | "boolean" as kind:
            return Node(kind, format=prop.get("format", ""))
        case _:
            return Node("any")


# --- reading a value as the server does ---


def decode(node: Node, value: Any, *, unknown: list[str] | None = None) -> Any:
    """Give the value that a server would print after it has read this one into its own type.

    Paths of fields that the type does not have are appended to `unknown`; they are dropped.
    Raises `DecodeError` with Go's text when a value has the wrong type.
    """
    return _READERS[node.kind](node, value, _Place(node.name, ""), unknown if unknown is not None else [])


@dataclass(slots=True)
class _Place:
    struct: str
    path: str

    def inside(self, struct: str, name: str) -> _Place:
        return _Place(struct, f"{self.path}.{name}" if self.path else name)


def _read_struct(node: Node, value: Any, place: _Place, unknown: list[str]) -> Any:
    if not isinstance(value, dict):
        raise _mismatch(value, place, node)
    out: dict[str, Any] = {}
    fields = node.fields
    for name, given in value.items():
        known = fields.get(name)
        if known is None:
            unknown.append(f"{place.path}.{name}" if place.path else name)
            continue
        if given is None:
            continue
        child = known.node
        if child.kind == "string" and type(given) is str:
            if given or known.zero in {"keep", "zero"}:
                out[name] = given
            continue
        read = _READERS[child.kind](child, given, place.inside(node.name, name), unknown)
        if known.zero == "null" and child.kind == "list" and not read:
            continue  # what is stored cannot tell it from none
        if known.zero or not _is_empty(child, read):
            out[name] = read
    for name in node.shown:
        if name not in out:
            known = fields[name]
            out[name] = None if known.zero == "null" else zero_value(known.node)
    return out


def _is_empty(node: Node, value: Any) -> bool:
    """Tell whether Go's encoder leaves this value out of a field with omitempty (or omitzero, of a struct)."""
    if node.kind in {"struct", "list", "map"}:
        return not value
    if node.kind == "any":
        return value is None
    return value in ("", 0, False, None)


def zero_value(node: Node) -> Any:
    """Give what a server prints for a value nobody set."""
    match node.kind:
        case "struct":
            return _read_struct(node, {}, _Place(node.name, ""), [])
        case "string" | "bytes":
            return ""
        case "integer" | "number" | "intstr":
            return 0
        case "boolean":
            return False
        case "quantity":
            return "0"
        case "duration":
            return "0s"
        case _:
            return None


def _read_map(node: Node, value: Any, place: _Place, unknown: list[str]) -> Any:
    if not isinstance(value, dict):
        raise _mismatch(value, place, node)
    assert node.element is not None
    child = node.element.node
    if child.kind == "string":
        for given in value.values():
            if type(given) is not str:
                break
        else:
            return dict(value)
    read = _READERS[child.kind]
    out = {}
    for name, given in value.items():
        if given is None:
            out[name] = zero_value(child)
        else:
            inside = place if child.kind != "struct" else _Place(place.struct, f"{place.path}.{name}")
            out[name] = read(child, given, inside, unknown)
    return out


def _read_list(node: Node, value: Any, place: _Place, unknown: list[str]) -> Any:
    if not isinstance(value, list):
        raise _mismatch(value, place, node)
    assert node.element is not None
    child = node.element.node
    read = _READERS[child.kind]
    out = []
    for index, given in enumerate(value):
        if given is None:
            out.append(zero_value(child))
            continue
        missing: list[str] = []
        out.append(read(child, given, place, missing))
        unknown.extend(_indexed(path, place.path, index) for path in missing)
    return out


def _indexed(path: str, parent: str, index: int) -> str:
    return f"{parent}[{index}]{path[len(parent) :]}"


def _read_string(node: Node, value: Any, place: _Place, _unknown: list[str]) -> Any:
    if not isinstance(value, str):
        raise _mismatch(value, place, node)
    return value


_INT_RANGES: Final = {"int32": 2**31, "int64": 2**63, "": 2**63}


def _read_integer(node: Node, value: Any, place: _Place, _unknown: list[str]) -> Any:
    limit = _INT_RANGES.get(node.format, 2**63)
    if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
        raise _mismatch(value, place, node)
    return value


def _read_number(node: Node, value: Any, place: _Place, _unknown: list[str]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(value, place, node)
    return value


def _read_boolean(node: Node, value: Any, place: _Place, _unknown: list[str]) -> Any:
    if not isinstance(value, bool):
        raise _mismatch(value, place, node)
    return value


def _read_bytes(node: Node, value: Any, place: _Place, _unknown: list[str]) -> Any:
    if not isinstance(value, str):
        raise _mismatch(value, place, node)
    try:
        # Go skips line ends and nothing else.
        decoded = base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"illegal base64 data at input byte {_bad_base64_at(value)}") from None
    return base64.b64encode(decoded).decode()


_BASE64: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


def _bad_base64_at(value: str) -> int:
    """Find the byte that Go's decoder complains about."""
    digits = 0
    for position, char in enumerate(value):
        if char in "\r\n":
            continue
        if char == "=":
            rest = value[position:].replace("\r", "").replace("\n", "")
            if digits % 4 == 2 and rest.startswith("=="):
                return position + 2
            return position if digits % 4 < 2 else position + 1
        if char not in _BASE64:
            return position
        digits += 1
    return digits // 4 * 4 if digits % 4 else len(value)


_MICROS: Final = re.compile(r"\.[0-9]{6}(?:Z|[-+][0-9]{2}:[0-9]{2})$")


def _read_time(node: Node, value: Any, place: _Place, _unknown: list[str]) -> Any:
    if not isinstance(value, str):
        raise _mismatch(value, place, node)
    try:
        moment = datetime.fromisoformat(value)
        if "T" not in value or moment.tzinfo is None or (node.kind == "microtime" and not _MICROS.search(value)):
            raise ValueError  # Go's RFC 3339 wants these
    except ValueError:
        shown = json.dumps(value)
        layout = "2006-01-02T15:04:05Z07:00" if node.kind == "time" else "2006-01-02T15:04:05.000000Z07:00"
        raise DecodeError(f'parsing time {shown} as "{layout}": cannot parse {shown} as "2006"') from None
    utc = moment.astimezone(UTC)
    if node.kind == "microtime":
        return utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return utc.strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_quantity(_node: Node, value: Any, _place: _Place, _unknown: list[str]) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DecodeError(quantities.SYNTAX_ERROR)
    try:
        return quantities.canonical(value)
    except ValueError as error:
        raise DecodeError(str(error)) from None


def _read_intstr(node: Node, value: Any, place: _Place, _unknown: list[str]) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _mismatch(value, place, node)
    return value


_SCHEMA_PROPS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"


def _read_any(node: Node, value: Any, place: _Place, unknown: list[str]) -> Any:
    if node.name.startswith("JSONSchemaPropsOr") and isinstance(value, dict):
        return _read_struct(_compiled(_SCHEMA_PROPS), value, place, unknown)
    return value


_READERS: Final[Mapping[str, Callable[[Node, Any, _Place, list[str]], Any]]] = {
    "struct": _read_struct,
    "map": _read_map,
    "list": _read_list,
    "string": _read_string,
    "duration": _read_string,
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "bytes": _read_bytes,
    "time": _read_time,
    "microtime": _read_time,
    "quantity": _read_quantity,
    "intstr": _read_intstr,
    "any": _read_any,
}


def _mismatch(value: Any, place: _Place, node: Node) -> DecodeError:
    found = _json_type(value)
    if found == "number" and node.kind == "integer":
        found = f"number {json.dumps(value)}"
    where = f"Go struct field {place.struct}.{place.path}" if place.path else "Go value"
    return DecodeError(f"json: cannot unmarshal {found} into {where} of type {_go_type(node)}")


def _json_type(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"


def _go_type(node: Node) -> str:
    match node.kind:
        case "struct":
            prefix = "v1."
            return prefix + node.name
        case "map":
            assert node.element is not None
            return f"map[string]{_go_type(node.element.node)}"
        case "list":
            assert node.element is not None
            return f"[]{_go_type(node.element.node)}"
        case "integer":
            return node.format or "int64"
        case "number":
            return "float64"
        case "boolean":
            return "bool"
        case "bytes":
            return "[]uint8"
        case _:
            return "string"
