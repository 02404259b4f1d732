"""Keep the record of who set which field: `metadata.managedFields`, in the form FieldsV1.

A plain write gives its manager the fields that it added or changed, and takes them from all others; fields that are
gone are taken from everybody. The rules are those of apimachinery pkg/util/managedfields and of
structured-merge-diff typed/compare.go, as far as plain writes (operation Update) go.

Two things surprise. A new built-in object is compared with the empty one of its type, so what Go always prints is
owned by nobody as such (`f:spec`, but not `f:spec` itself). And an object without a record stays without one: a
server starts to keep it at the creation or never.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from informers.testing.apiserver import builtins, schemas
from informers.testing.apiserver.kinds import Kind

# A set of fields: the members of an object, each with the set of what is owned inside it. "." in a set says that
# the member itself is owned.
Fields: TypeAlias = "dict[str, Fields]"

_SELF: Final = "."
_ABSENT: Final = object()
_UNTYPED: Final = schemas.Node("any")
# What the server owns: nobody's name ever stands beside it.
# Source: apimachinery pkg/util/managedfields/internal/stripmeta.go.
_STRIPPED: Final = ("apiVersion", "kind")
_STRIPPED_META: Final = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "resourceVersion")
# What the server decides after it has noted who wrote: addresses of Services, for example.
_SERVER_SET: Final[Mapping[tuple[str, str], Sequence[tuple[str, ...]]]] = {
    ("", "namespaces"): (("spec",),),
    ("", "services"): tuple(("spec", name) for name in ("clusterIPs", "ipFamilies", "ipFamilyPolicy")),
    ("batch", "jobs"): (
        ("spec", "selector"),
        *(("spec", "template", "metadata", "labels", label) for label in builtins.JOB_LABELS),
        *(("metadata", "labels", label) for label in builtins.JOB_LABELS),
    ),
}
_MOST_UPDATERS: Final = 10
_ANCIENT: Final = "ancient-changes"


def record(
    kind: Kind,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any],
    *,
    manager: str,
    subresource: str = "",
    time: str,
) -> dict[str, Any]:
    """Give `new` with the managedFields that it has once `manager` has written it in place of `old`.

    `managedFields: [{}]` in `new` clears the record, and so does an empty list (which custom resources never get here
    with: admission drops it, and on a real server it changes nothing for them); without the field the record of
    `old` goes on; any other list is taken as the record to go on from. On a subresource `old` alone counts.
    `time` is RFC 3339 text.
    """
    out = {**new, "metadata": dict(new["metadata"])}
    given = out["metadata"].pop("managedFields", None)
    before = (old or {}).get("metadata", {}).get("managedFields")
    entries = [_Entry(each) for each in _record_to_go_on_from(given, before, subresource=subresource)]
    if entries or old is None:
        added, modified, removed = _compare_objects(kind, old, out, subresource=subresource)
        entries = _after_write(kind, entries, _union(added, modified), removed, (manager, subresource, time))
    if entries:
        out["metadata"]["managedFields"] = [entry.to_dict() for entry in entries]
    return out


def _record_to_go_on_from(
    given: Sequence[Mapping[str, Any]] | None, before: Sequence[Mapping[str, Any]] | None, *, subresource: str
) -> Sequence[Mapping[str, Any]]:
    if subresource or given is None:
        return before or ()
    if not given or (len(given) == 1 and not any(given[0].values())):
        return ()
    if all(each.get("operation") in {"Update", "Apply"} and each.get("fieldsType") == "FieldsV1" for each in given):
        return given
    return before or ()


class _Entry:
    """One entry of the list, with its fields as a set."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = {key: value for key, value in raw.items() if key != "fieldsV1"}
        self.fields: Fields = _read(raw.get("fieldsV1") or {})

    def is_update(self) -> bool:
        return bool(self.raw.get("operation") == "Update")

    def is_of(self, api_version: str, manager: str, subresource: str) -> bool:
        found = (self.raw.get("manager"), self.raw.get("apiVersion"), self.raw.get("subresource", ""))
        return self.is_update() and found == (manager, api_version, subresource)

    def order(self) -> tuple[str, ...]:
        """Sort applied entries first, then by time and name, as the server does."""
        return tuple(self.raw.get(key) or "" for key in ("operation", "time", "manager", "apiVersion", "subresource"))

    def to_dict(self) -> dict[str, Any]:
        return {**self.raw, "fieldsType": "FieldsV1", "fieldsV1": _print(self.fields)}


def _after_write(
    kind: Kind, entries: Sequence[_Entry], set_now: Fields, removed: Fields, who: tuple[str, str, str]
) -> list[_Entry]:
    manager, subresource, time = who
    own = next((entry for entry in entries if entry.is_of(kind.api_version, manager, subresource)), None)
    gone = _union(set_now, removed)
    own_before = own.fields if own is not None else {}
    for entry in entries:
        entry.fields = _difference(entry.fields, gone)
    set_now = _without_stripped(set_now)
    out = list(entries)
    if set_now:
        if own is None:
            own = _Entry({"manager": manager, "operation": "Update", "apiVersion": kind.api_version})
            if subresource:
                own.raw["subresource"] = subresource
            out.append(own)
        own.fields = _union(_difference(own_before, removed), set_now)
        own.raw["time"] = time
    return _capped(sorted((entry for entry in out if entry.fields), key=_Entry.order))


def _capped(entries: list[_Entry]) -> list[_Entry]:
    """Join the oldest updates of each version into one entry while there are too many."""
    updates = sorted((entry for entry in entries if entry.is_update()), key=lambda entry: entry.raw.get("time") or "")
    surplus = len(updates) - _MOST_UPDATERS
    first: dict[str, _Entry] = {}
    dropped: set[int] = set()
    for entry in updates:
        if len(dropped) >= surplus:
            break
        bucket = first.setdefault(entry.raw.get("apiVersion", ""), entry)
        if bucket is not entry:
            bucket.raw = {**bucket.raw, "manager": _ANCIENT, "time": entry.raw.get("time")}
            bucket.raw.pop("subresource", None)
            bucket.fields = _union(bucket.fields, entry.fields)
            dropped.add(id(entry))
    return sorted((entry for entry in entries if id(entry) not in dropped), key=_Entry.order)


# --- what a write changed ---


def shape_of(kind: Kind) -> schemas.Node:
    """Get the shape of a kind's objects."""
    if kind.custom is not None:
        return kind.custom.node
    return schemas.builtin(kind.gvr.group, kind.gvr.version, kind.kind)


def _compare_objects(
    kind: Kind, old: Mapping[str, Any] | None, new: Mapping[str, Any], *, subresource: str
) -> tuple[Fields, Fields, Fields]:
    node = shape_of(kind)
    empty = {} if kind.is_custom else schemas.zero_value(node)
    found = _compare(node, empty if old is None else _without_record(old), dict(new))
    for fields in found:
        if kind.has_status and not subresource:
            fields.pop("f:status", None)
        for path in _SERVER_SET.get((kind.gvr.group, kind.gvr.resource), ()):
            _drop_below(fields, path)
        if kind.storage == "services.":
            _drop_decided_by_services(fields, new)
    return found


def _drop_decided_by_services(fields: Fields, service: Mapping[str, Any]) -> None:
    spec = service.get("spec") or {}
    if spec.get("clusterIP") != "None":
        _drop_below(fields, ("spec", "clusterIP"))
    for port in fields.get("f:spec", {}).get("f:ports", {}).values():
        port.pop("f:nodePort", None)


def _without_record(obj: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


def _drop_below(fields: Fields, path: Sequence[str]) -> None:
    for name in path[:-1]:
        fields = fields.get(f"f:{name}") or {}
    fields.pop(f"f:{path[-1]}", None)


def _without_stripped(fields: Fields) -> Fields:
    out = {step: inner for step, inner in fields.items() if step.removeprefix("f:") not in _STRIPPED}
    if "f:metadata" in out:
        stripped = {_SELF, *(f"f:{name}" for name in _STRIPPED_META)}
        kept = {step: inner for step, inner in out["f:metadata"].items() if step not in stripped}
        out = {**out, "f:metadata": kept} if kept else {k: v for k, v in out.items() if k != "f:metadata"}
    return {step: inner for step, inner in out.items() if inner or step == _SELF}


def _compare(node: schemas.Node, old: Any, new: Any) -> tuple[Fields, Fields, Fields]:
    """Compare two values at one place, either of them perhaps absent: what is added, modified, removed in and below it."""
    if _is_leaf(node, old, new):
        return _compare_leaf(old, new)
    found: tuple[Fields, Fields, Fields] = ({}, {}, {})
    before, after = dict(_members(node, old)), dict(_members(node, new))
    for step in dict.fromkeys((*before, *after)):
        then, now = before.get(step, _ABSENT), after.get(step, _ABSENT)
        if then is now:
            continue
        for into, inside in zip(found, _compare(_child(node, step), then, now), strict=True):
            if inside:
                into[step] = inside
    if old is _ABSENT:
        found[0][_SELF] = {}
    elif new is _ABSENT:
        found[2][_SELF] = {}
    return found


def _compare_leaf(old: Any, new: Any) -> tuple[Fields, Fields, Fields]:
    itself: Fields = {_SELF: {}}
    if old is _ABSENT:
        return itself, {}, {}
    if new is _ABSENT:
        return {}, {}, itself
    return {}, ({} if _is_same(old, new) else itself), {}


def _is_same(old: Any, new: Any) -> bool:
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)


def _is_leaf(node: schemas.Node, old: Any, new: Any) -> bool:
    """Tell whether a place is owned as a whole: scalars, atomic maps and lists, and whatever is empty both times."""
    present = [value for value in (old, new) if value is not _ABSENT and value is not None]
    if not any(present) or len({type(value) for value in present}) > 1:
        return True
    value = present[0]
    if isinstance(value, dict):
        return node.map_type == "atomic"
    if isinstance(value, list):
        return node.kind != "list" or node.list_type == "atomic"
    return True


def _members(node: schemas.Node, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"f:{name}", each
    elif isinstance(value, list):
        for each in value:
            yield _item_step(node, each), each


def _child(node: schemas.Node, step: str) -> schemas.Node:
    if node.kind == "list":
        return node.element.node if node.element is not None else _UNTYPED
    known = node.fields.get(step[2:]) or node.element
    return known.node if known is not None else _UNTYPED


def _item_step(node: schemas.Node, item: Any) -> str:
    """Name an item of a set by its value, of a map by its keys, defaults included."""
    if node.list_type == "set":
        return f"v:{_compact(item)}"
    known = node.element.node.fields if node.element is not None else {}
    keys: dict[str, Any] = {}
    for name in sorted(node.list_keys):
        if isinstance(item, dict) and name in item:
            keys[name] = item[name]
        elif name in known and known[name].default is not None:
            keys[name] = known[name].default
    return f"k:{_compact(keys)}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- sets of fields ---


def _read(fields: Mapping[str, Any]) -> Fields:
    """Read FieldsV1, where a member with nothing inside is owned itself."""
    out: Fields = {}
    for step, inner in fields.items():
        out[step] = {} if step == _SELF else _read(inner) if inner else {_SELF: {}}
    return out


def _print(fields: Fields) -> dict[str, Any]:
    out: dict[str, Any] = {_SELF: {}} if _SELF in fields else {}
    for step in sorted(step for step in fields if step != _SELF):
        inner = fields[step]
        out[step] = {} if set(inner) == {_SELF} else _print(inner)
    return out


def _union(a: Fields, b: Fields) -> Fields:
    out = dict(a)
    for step, inner in b.items():
        out[step] = _union(out[step], inner) if step in out else inner
    return out


def _difference(a: Fields, b: Fields) -> Fields:
    """Take from `a` what `b` has; members with nothing left go."""
    out: Fields = {}
    for step, inner in a.items():
        if step not in b:
            out[step] = inner
        elif step != _SELF and (rest := _difference(inner, b[step])):
            out[step] = rest
    return out
