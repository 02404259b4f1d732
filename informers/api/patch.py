"""Say how to get from what is to what should be, as a patch; and apply patches. Pure: nothing given is changed.

`diff` makes a JSON merge patch (RFC 7396), `json_patch` a JSON patch (RFC 6902); `apply_merge`, `apply_json` and
`strategic_merge` apply one. Lists are values to `diff` and `json_patch`: a list that differs is sent whole.

Two things surprise. A merge patch cannot store a null, it can only delete with one; `needs_json_patch` tells when
that matters, and `diff` refuses. And values are told apart by their JSON type: `True` is not `1`, and `1` is not
`1.0`. Whatever stands in a value stays what it is: numbers are never converted, whatever their class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast

from informers.meta.errors import ConfigError

__all__ = [
    "JSONPatchTestFailed",
    "MergeRule",
    "PatchError",
    "apply_json",
    "apply_merge",
    "diff",
    "equal",
    "json_patch",
    "needs_json_patch",
    "strategic_merge",
]

Path: TypeAlias = tuple[str, ...]
_T = TypeVar("_T")


class PatchError(ConfigError):
    """Say that a patch cannot be made or applied.

    `is_malformed` tells a patch that no value could take (400 on a server) from one that does not fit this value (422).
    """

    def __init__(self, message: str, *, is_malformed: bool = False) -> None:
        super().__init__(message)
        self.is_malformed = is_malformed


class JSONPatchTestFailed(PatchError):  # noqa: N818 - it is an outcome that callers ask for, not a fault
    """Say that a `test` of a JSON patch found another value; nothing was applied."""


# --- comparing ---


def equal(a: object, b: object) -> bool:
    """Tell whether two JSON values are the same, types included: `True` is not `1`, `1` is not `1.0`."""
    if a is b:
        return True
    kind = _kind_of(a)
    if kind != _kind_of(b):
        return False
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(key in b and equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return _same_float(a, b)
    return bool(a == b)


def _same_float(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return bool(a == b) and math.copysign(1.0, a) == math.copysign(1.0, b)


def _kind_of(value: object) -> str:
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
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
        case _:
            return type(value).__qualname__


# --- making patches ---


def needs_json_patch(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether getting from `current` to `wanted` stores a null, which only a JSON patch can."""
    return next(_stored_nulls(current, wanted, ()), None) is not None


def diff(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make the smallest JSON merge patch that turns `current` into `wanted`, or None when they are equal.

    Raises `PatchError` when that would have to store a null (see `needs_json_patch`).
    """
    null = next(_stored_nulls(current, wanted, ()), None)
    if null is not None:
        raise PatchError(f"a merge patch cannot store the null at {_pointer(null)}; use json_patch")
    return _merge_patch(current, wanted) or None


def _merge_patch(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {key: None for key in current if key not in wanted}
    for key, value in wanted.items():
        if key not in current:
            patch[key] = _copy(value)
            continue
        present = current[key]
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            if inner := _merge_patch(present, value):
                patch[key] = inner
        elif not equal(present, value):
            patch[key] = _copy(value)
    return patch


def _stored_nulls(current: object, wanted: object, path: Path) -> Iterator[Path]:
    """Find the members of objects that are null in `wanted` and not in `current`; nulls in lists are no trouble."""
    if not isinstance(wanted, Mapping):
        return
    present = current if isinstance(current, Mapping) else {}
    for key, value in wanted.items():
        if value is None:
            if key not in present or present[key] is not None:
                yield (*path, key)
        else:
            yield from _stored_nulls(present.get(key), value, (*path, key))


def json_patch(current: object, wanted: object) -> list[dict[str, Any]]:
    """Make a JSON patch that turns `current` into `wanted`; the empty list when they are equal."""
    return list(_operations(current, wanted, ()))


def _operations(current: object, wanted: object, path: Path) -> Iterator[dict[str, Any]]:
    if isinstance(current, Mapping) and isinstance(wanted, Mapping):
        for key in current:
            if key not in wanted:
                yield {"op": "remove", "path": _pointer((*path, key))}
        for key, value in wanted.items():
            if key in current:
                yield from _operations(current[key], value, (*path, key))
            else:
                yield {"op": "add", "path": _pointer((*path, key)), "value": _copy(value)}
    elif not equal(current, wanted):
        yield {"op": "replace", "path": _pointer(path), "value": _copy(wanted)}


def _pointer(path: Path) -> str:
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)


# --- applying a merge patch ---


def apply_merge(value: object, patch: object) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return _copy(patch)
    present = value if isinstance(value, Mapping) else {}
    merged = {key: _copy(each) for key, each in present.items() if key not in patch}
    out: dict[str, Any] = {}
    for key in present:  # keys keep their places
        if key in merged:
            out[key] = merged[key]
        elif patch[key] is not None:
            out[key] = apply_merge(present[key], patch[key])
    for key, each in patch.items():
        if key not in present and each is not None:
            out[key] = apply_merge(None, each)
    return out


def _copy(value: Any) -> Any:
    """Copy containers to plain ones and take everything else as it is."""
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    return value


# --- applying a JSON patch ---


def apply_json(value: object, operations: Sequence[Mapping[str, Any]], *, lenient: bool = False) -> Any:
    """Apply a JSON patch (RFC 6902), all of it or nothing.

    Numbers are equal to `test` when their values are: `1` is `1.0` there, as the RFC has it.

    With `lenient` it takes a patch as a Kubernetes API server does: `replace` adds a member that is not there, a
    missing `value` is null, `test` finds null where nothing is and tells `1` from `1.0`, and a negative index counts
    from the end.

    Raises `JSONPatchTestFailed` when a `test` finds another value, `PatchError` when the patch cannot be applied.
    """
    if not isinstance(operations, list | tuple):
        raise PatchError("want a list of operations", is_malformed=True)
    document = _copy(value)
    for number, operation in enumerate(operations):
        if not isinstance(operation, Mapping):
            raise PatchError(f"operation {number}: want an object", is_malformed=True)
        where = f"operation {number}"
        document = _apply_operation(document, _in_strict_words(document, operation) if lenient else operation, where)
    return document


def _in_strict_words(document: Any, operation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say in the RFC's words what an API server takes an operation for; what it refuses stays as it is."""
    op = operation.get("op")
    out = {**operation, **({"value": operation.get("value")} if op in {"add", "replace", "test"} else {})}
    try:
        for field in ("path", "from"):
            if field in operation:
                path = _parse_pointer(operation[field], field)
                out[field] = _pointer(
                    _from_the_start(document, path, is_added=field == "path" and op in {"add", "copy", "move"})
                )
        path = _parse_pointer(out.get("path"), "path")
        parent = _find(document, path[:-1], "")
    except PatchError:
        return operation
    is_absent = bool(path) and isinstance(parent, dict) and path[-1] not in parent
    if op == "replace" and is_absent:
        return {**out, "op": "add"}
    if op == "test":
        found = None if is_absent else _find(document, path, "")
        if not equal(found, out["value"]):
            raise JSONPatchTestFailed(f"test of {_pointer(path)!r} found another value")
        return {"op": "test", "path": "", "value": document}
    return out


def _from_the_start(document: Any, path: Path, *, is_added: bool) -> Path:
    """Count negative indexes from the start; `is_added` says that the last one names a place between items."""
    out: Path = ()
    found = document
    for part in path:
        is_last = len(out) == len(path) - 1
        if isinstance(found, list) and part[:1] == "-" and part[1:].isdigit():
            out = (*out, str(len(found) + int(part) + (is_last and is_added)))
        else:
            out = (*out, part)
        found = None if is_last else _find(found, out[-1:], "")
    return out


def _apply_operation(document: Any, operation: Mapping[str, Any], where: str) -> Any:
    op = operation.get("op")
    path = _parse_pointer(operation.get("path"), f"{where}: path")
    match op:
        case "add":
            return _add(document, path, _copy(_value_of(operation, where)), where)
        case "remove":
            return _remove(document, path, where)[0]
        case "replace":
            return _replace(document, path, _copy(_value_of(operation, where)), where)
        case "move":
            source = _parse_pointer(operation.get("from"), f"{where}: from")
            if path[: len(source)] == source and path != source:
                raise PatchError(f"{where}: cannot move {_pointer(source)} into itself")
            document, moved = _remove(document, source, where)
            return _add(document, path, moved, where)
        case "copy":
            source = _parse_pointer(operation.get("from"), f"{where}: from")
            return _add(document, path, _copy(_find(document, source, where)), where)
        case "test":
            if not _same_value(_find(document, path, where), _value_of(operation, where)):
                raise JSONPatchTestFailed(f"{where}: test of {_pointer(path)!r} found another value")
            return document
        case _:
            raise PatchError(f"{where}: no such operation as {op!r}", is_malformed=True)


def _value_of(operation: Mapping[str, Any], where: str) -> Any:
    if "value" not in operation:
        raise PatchError(f"{where}: value is missing", is_malformed=True)
    return operation["value"]


def _parse_pointer(text: object, where: str) -> Path:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f"{where}: want a JSON pointer, found {text!r}", is_malformed=True)
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def _find(document: Any, path: Path, where: str) -> Any:
    found = document
    for depth, part in enumerate(path):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list):
            found = found[_index(part, len(found) - 1, path[: depth + 1], where)]
        else:
            raise PatchError(f"{where}: nothing at {_pointer(path[: depth + 1])!r}")
    return found


def _index(part: str, last: int, path: Path, where: str) -> int:
    if not (part.isascii() and part.isdigit()) or (len(part) > 1 and part[0] == "0") or int(part) > last:
        raise PatchError(f"{where}: no list index {_pointer(path)!r}")
    return int(part)


def _add(document: Any, path: Path, value: Any, where: str) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1], where)
    last = path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(last, len(parent), path, where), value)
    else:
        raise PatchError(f"{where}: nothing can be added at {_pointer(path)!r}")
    return document


def _remove(document: Any, path: Path, where: str) -> tuple[Any, Any]:
    removed = _find(document, path, where)
    if not path:
        return None, removed
    parent = _find(document, path[:-1], where)
    del parent[path[-1] if isinstance(parent, dict) else int(path[-1])]
    return document, removed


def _replace(document: Any, path: Path, value: Any, where: str) -> Any:
    _find(document, path, where)
    if not path:
        return value
    parent = _find(document, path[:-1], where)
    parent[path[-1] if isinstance(parent, dict) else int(path[-1])] = value
    return document


def _same_value(a: Any, b: Any) -> bool:
    """Compare as `test` does: like `equal`, but numbers by value."""
    kinds = {_kind_of(a), _kind_of(b)}
    if kinds <= {"integer", "number"}:
        return bool(a == b)
    if len(kinds) > 1:
        return False
    if isinstance(a, Mapping):
        return len(a) == len(b) and all(key in b and _same_value(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same_value, a, b))
    return bool(a == b)


# --- applying a strategic merge patch ---


@dataclass(frozen=True, slots=True)
class MergeRule:
    """What a kind says about patching one of its fields.

    `merge` tells whether lists are merged and not replaced, `replace` whether an object is replaced and not merged;
    `key` is the field that names an item of a merged list of objects, `""` for a list of scalars.
    """

    merge: bool = False
    replace: bool = False
    key: str = ""


MergeKeys: TypeAlias = Callable[[Path], "MergeRule | None"]
"""From the path of a field, without list indexes, to its rule; None when the kind says nothing about it."""

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder"
_DELETE: Final = "$deleteFromPrimitiveList"
_LANGUAGE: Final = (_DIRECTIVE, _RETAIN, _ORDER, _DELETE)
_NO_RULE: Final = MergeRule()


def strategic_merge(value: object, patch: object, merge_keys: MergeKeys, *, in_place: bool = False) -> Any:
    """Apply a strategic merge patch, as the API server does it for built-in kinds.

    Objects are merged; lists are merged or replaced as `merge_keys` says of the path of their field. Known directives:
    `$patch` (replace and delete; `in_place` merge, too, which is what happens anyway), `$setElementOrder/FIELD`,
    `$deleteFromPrimitiveList/FIELD` and `$retainKeys`. The rules are those of apimachinery pkg/util/strategicpatch.

    With `in_place` the result is one to write down, not one that a server still makes its own, and the same patch does
    not change it any more: items of merged lists stay where they are and new ones go to the end, whatever order the
    patch asks for; of the patch's own language, nulls included, nothing is left, and it means the same where nothing is
    yet; each item of the patch has an item of its own, and a patch for one that several could be is refused.

    Raises `PatchError` on a patch that breaks the rules; its text names fields and types, never a value.
    """
    if not isinstance(patch, Mapping):
        raise PatchError("want an object as patch", is_malformed=True)
    present = _copy(value) if isinstance(value, Mapping) else {}
    return _Strategic(merge_keys, in_place=in_place).merge_object(present, _copy(patch), ())


class _Strategic:
    """Merges in place: it was given copies."""

    def __init__(self, merge_keys: MergeKeys, *, in_place: bool) -> None:
        self._merge_keys = merge_keys
        self._in_place = in_place

    def _rule(self, path: Path) -> MergeRule:
        return self._merge_keys(path) or _NO_RULE

    def merge_object(self, present: dict[str, Any], patch: dict[str, Any], path: Path) -> dict[str, Any]:
        if _DIRECTIVE in patch:
            match patch.pop(_DIRECTIVE):
                case "replace":
                    return self._written(patch)
                case "delete":
                    return {}
                case "merge" if self._in_place:
                    pass
                case _:
                    raise PatchError(f"$patch at {_pointer(path)!r}: want {_wanted_directives(self._in_place)}")
        if _RETAIN in patch:
            _retain(present, patch)
        self._merge_ordered_lists(present, patch, path)
        for key, value in patch.items():
            deletes = key.startswith(_DELETE)
            name = _field_of(key, _DELETE) if deletes else key
            if value is None:
                present.pop(name, None)
            elif name not in present or _kind_of(present[name]) != _kind_of(value):
                if not deletes:
                    self._set(present, name, value)
            elif isinstance(value, dict):
                inner = (*path, name)
                replaces = self._rule(inner).replace
                present[name] = self._written(value) if replaces else self.merge_object(present[name], value, inner)
            elif isinstance(value, list):
                present[name] = self._merge_list(present[name], value, (*path, name), deletes=deletes)
            else:
                present[name] = value
        return present

    def _set(self, present: dict[str, Any], name: str, value: Any) -> None:
        """Write what of a patch meets nothing that it could be merged with."""
        if self._in_place:
            kept = _without_language(value)
            keep = not _is_deleted(value) and (bool(kept) or not isinstance(value, list) or not value)
        else:
            kept, keep = _without_directives(_without_nulls(value))
        if keep:
            present[name] = kept
        else:
            present.pop(name, None)

    def _written(self, value: _T) -> _T:
        """What of a patch is written where it merges with nothing."""
        return cast("_T", _without_language(value)) if self._in_place else value

    def _merge_ordered_lists(self, present: dict[str, Any], patch: dict[str, Any], path: Path) -> None:
        """Merge the lists whose order the patch gives, and take them out of the patch."""
        for key in [key for key in patch if key.startswith(_ORDER)]:
            order = patch.pop(key)
            name = _field_of(key, _ORDER)
            if self._in_place:
                continue
            inner = (*path, name)
            rule = self._rule(inner)
            old, new = present.get(name), patch.get(name)
            if not isinstance(order, list) or not isinstance(old, list | None) or not isinstance(new, list | None):
                raise PatchError(f"{key} at {_pointer(path)!r}: want lists", is_malformed=True)
            _check_order(new or [], order, rule.key)
            if old is None and new is None:
                continue
            if new is None:
                merged = list(old or [])
            elif old is None:
                merged, _ = _without_directives(new)
            else:
                merged = self._merge_list(list(old), new, inner, deletes=False)
            present[name] = _in_order(merged, order, old or [], rule.key)
            patch.pop(name, None)

    def _merge_list(self, old: list[Any], new: list[Any], path: Path, *, deletes: bool) -> list[Any]:
        rule = self._rule(path)
        if not (rule.merge or deletes):
            return self._written(new)
        if not old and not new:
            return old
        kinds = {_kind_of(item) for item in (*old, *new)}
        if len(kinds) > 1:
            raise PatchError(f"items of different types at {_pointer(path)!r}")
        if "object" not in kinds:
            if "array" in kinds:
                raise PatchError(f"lists of lists are not supported, at {_pointer(path)!r}")
            if deletes:
                gone = _positions(new, "")
                return [item for item in old if _sameness(item) not in gone]
            if self._in_place:
                there = _positions(old, "")
                return [*old, *(item for item in _deduplicated(new) if _sameness(item) not in there)]
            return _in_order(_deduplicated([*old, *new]), new, old, "")
        if not rule.key:
            raise PatchError(f"cannot merge lists without merge key, at {_pointer(path)!r}")
        old, new, is_replaced = _apply_item_directives(old, new, rule.key, path, in_place=self._in_place)
        if is_replaced:
            return self._written(new)
        if self._in_place:
            return self._merge_items(old, new, rule.key, path)
        merged, positions = list(old), _positions(old, rule.key)
        for item in new:
            where = positions.setdefault(_sameness(_key_of(item, rule.key, path)), [len(merged)])[0]
            if where == len(merged):
                merged.append(item)
            else:
                merged[where] = self.merge_object(merged[where], item, path)
        return _in_order(merged, new, old, rule.key)

    def _merge_items(self, old: list[Any], new: list[Any], key: str, path: Path) -> list[Any]:
        """Merge each item of a patch with one that no other item of it merges with: ports may share their number."""
        merged, positions = list(old), _positions(old, key)
        items = [(item, positions.get(_sameness(_key_of(item, key, path)), [])) for item in new]
        wanted = Counter(_sameness(item[key]) for item in new)
        waiting: list[tuple[Any, list[int]]] = []
        for item, free in items:
            is_alone = len(free) < 2 and wanted[_sameness(item[key])] < 2
            where = None if is_alone else next((at for at in free if self._shows(merged[at], item, path)), None)
            if where is None:
                waiting.append((item, free))
            else:
                free.remove(where)
        for item, free in waiting:
            if len(free) > 1:
                raise PatchError(f"several items of {_pointer(path)!r} have the same {key!r}")
            if free:
                where = free.pop()
                merged[where] = self.merge_object(merged[where], item, path)
            else:
                merged.append(_without_language(item))
        return merged

    def _shows(self, present: dict[str, Any], item: dict[str, Any], path: Path) -> bool:
        return equal(self.merge_object(_copy(present), _copy(item), path), present)


def _retain(present: dict[str, Any], patch: dict[str, Any]) -> None:
    """Drop what `$retainKeys` does not name; it must name everything that the patch sets."""
    keys = patch.pop(_RETAIN)
    if not isinstance(keys, list):
        raise PatchError(f"{_RETAIN}: want a list", is_malformed=True)
    for key, value in patch.items():
        if value is not None and not key.startswith((_DELETE, _ORDER)) and key not in keys:
            raise PatchError(f"{_RETAIN} does not name {key!r}, which the patch sets", is_malformed=True)
    for key in [key for key in present if key not in keys]:
        del present[key]


def _field_of(key: str, directive: str) -> str:
    head, slash, name = key.partition("/")
    if head != directive or not slash:
        raise PatchError(f"want {directive}/FIELD, found {key!r}", is_malformed=True)
    return name


def _apply_item_directives(
    old: list[Any], new: list[Any], key: str, path: Path, *, in_place: bool
) -> tuple[list[Any], list[Any], bool]:
    """Apply `$patch` of single items: delete one, or replace the whole list by the items without a directive.

    Returns what is left of both lists, and whether the second is to replace the first.
    """
    plain, gone, replace = [], set(), False
    for item in new:
        match item.get(_DIRECTIVE):
            case None:
                plain.append(item)
            case "delete":
                gone.add(_sameness(_key_of(item, key, path)))
            case "replace":
                replace = True
            case "merge" if in_place:
                plain.append(item)
            case _:
                raise PatchError(f"$patch of a list item, at {_pointer(path)!r}: want {_wanted_directives(in_place)}")
    return [each for each in old if key not in each or _sameness(each[key]) not in gone], plain, replace


def _wanted_directives(in_place: bool) -> str:
    return "replace, delete or merge" if in_place else "replace or delete"


def _key_of(item: Mapping[str, Any], key: str, path: Path) -> Any:
    if key not in item:
        raise PatchError(f"an item has no {key!r}, which names the items of {_pointer(path)!r}")
    return item[key]


def _sameness(value: Any) -> Hashable:
    """Return what is equal for values that are the same to `test` and for no others: what to look one up by."""
    if isinstance(value, Mapping):
        return frozenset((key, _sameness(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_sameness, value))
    kind = _kind_of(value)
    return ("number" if kind == "integer" else kind, value)


def _positions(items: Sequence[Any], key: str) -> dict[Hashable, list[int]]:
    """Say where the items of each value of the merge key are, or of each scalar without a key."""
    found: dict[Hashable, list[int]] = {}
    for position, item in enumerate(items):
        if not key or (isinstance(item, Mapping) and key in item):
            found.setdefault(_sameness(item[key] if key else item), []).append(position)
    return found


def _deduplicated(items: Sequence[Any]) -> list[Any]:
    return [items[positions[0]] for positions in _positions(items, "").values()]


def _identity(item: Any, key: str) -> Any:
    return item.get(key) if key and isinstance(item, Mapping) else item


def _in_order(merged: list[Any], order: Sequence[Any], server_order: Sequence[Any], key: str) -> list[Any]:
    """Sort a merged list: items of the patch as `order` has them, the server's own as they stood, relative to them."""
    ordered, stood_at = _positions(order, key), _positions(server_order, key)
    place = {id(item): ordered.get(_sameness(_identity(item, key)), [None])[0] for item in merged}
    stood = {id(item): stood_at.get(_sameness(_identity(item, key)), [None])[0] for item in merged}
    patched = sorted((item for item in merged if place[id(item)] is not None), key=lambda item: place[id(item)] or 0)
    own = sorted((item for item in merged if place[id(item)] is None), key=lambda item: stood[id(item)] or 0)
    out: list[Any] = []
    while own and patched:
        left, right = stood[id(own[0])], stood[id(patched[0])]
        out.append((own if left is not None and right is not None and left < right else patched).pop(0))
    return [*out, *own, *patched]


def _check_order(items: Sequence[Any], order: Sequence[Any], key: str) -> None:
    """See that a patch's list has its items in the order that the patch gives for it."""
    if not items or not order:
        return
    wanted = [item for item in items if not (isinstance(item, Mapping) and _DIRECTIVE in item)]
    rest = iter(order)
    for item in wanted:
        if not any(_same_value(_identity(each, key), _identity(item, key)) for each in rest):
            raise PatchError(f"the order in the patch's list does not match its {_ORDER} list")


def _without_nulls(value: Any) -> Any:
    """Drop null members of objects; a null in a list stays."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _without_directives(value: Any) -> tuple[Any, bool]:
    """Drop objects that carry `$patch`; the second value says whether this one stays."""
    if isinstance(value, dict):
        if _DIRECTIVE in value:
            return None, False
        kept = ((key, *_without_directives(each)) for key, each in value.items())
        return {key: each for key, each, keep in kept if keep}, True
    if isinstance(value, list):
        return [each for each, keep in map(_without_directives, value) if keep], True
    return value, True


def _is_deleted(value: Any) -> bool:
    return isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"


def _without_language(value: Any) -> Any:
    """Keep of a patch what it says to write where nothing is: no nulls and deleted objects, no directives."""
    if isinstance(value, dict):
        if value.get(_DIRECTIVE, "merge") not in ("replace", "delete", "merge"):
            raise PatchError(f"$patch: want {_wanted_directives(in_place=True)}")
        return {
            key: _without_language(each)
            for key, each in value.items()
            if each is not None and not _is_deleted(each) and not key.startswith(_LANGUAGE)
        }
    if isinstance(value, list):
        return [_without_language(each) for each in value if not _is_marker(each)]
    return value


def _is_marker(item: Any) -> bool:
    """Tell whether an item of a list says what becomes of others, and is none itself."""
    return isinstance(item, dict) and item.get(_DIRECTIVE) in ("replace", "delete")
