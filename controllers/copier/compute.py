"""From what a target is and what its rules say to one patch, or to none. Pure.

`fold` applies all rules to one snapshot, broader paths first, so that the more specific rule wins; a rule that
cannot deliver keeps the live value of its path. `build_patch` makes the smallest request that turns live into
wanted and that the server refuses if the target is not the one that was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal, TypeAlias

from controllers.copier.kinds import is_core, string_maps_of
from controllers.copier.paths import (
    ABSENT,
    Absent,
    Index,
    Key,
    Path,
    Place,
    Selector,
    concrete,
    is_selected,
    locate,
    look,
    put,
    show,
    take,
)
from controllers.copier.problems import RuleError
from controllers.copier.rules import Operation
from controllers.copier.values import (
    Plain,
    Value,
    check_string_map_entry,
    copy,
    describe,
    encode,
    equal,
    has_null,
    with_own_tracking,
)
from informers import GVR

MAX_OPERATIONS: Final = 10_000
MAX_BODY: Final = 3 * 1024 * 1024

_LABELS: Final[Place] = (Key("metadata"), Key("labels"))
_ANNOTATIONS: Final[Place] = (Key("metadata"), Key("annotations"))
_DATA: Final[Place] = (Key("data"),)
_BINARY_DATA: Final[Place] = (Key("binaryData"),)

Document: TypeAlias = dict[str, Plain]
Concrete: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """One rule with the value it would write; None keeps what is there."""

    rule: str
    to: Path
    value: Value | None
    operation: Operation = Operation.REPLACE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a wish: where it pointed, whether the target has to change for it, or why it cannot be met."""

    wish: Wish
    place: Place
    error: RuleError | None = None
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Folded:
    """The target as it should be, and what became of each wish, in the order in which they were applied."""

    wanted: Document
    outcomes: Sequence[Outcome]


def fold(live: Document, wishes: Iterable[Wish], gvr: GVR) -> Folded:
    """Apply all wishes to a copy of `live`; the result does not depend on their order."""
    wanted = copy(live)
    assert isinstance(wanted, dict)
    outcomes: list[Outcome] = []
    for _, same_weight in groupby(sorted(wishes, key=_order), key=lambda wish: wish.to.weight):
        group = list(same_weight)
        places = {wish.rule: locate(wanted, wish.to, string_maps_of(gvr)) for wish in group}
        for wish in group:
            twins = sorted(other.rule for other in group if places[other.rule] == places[wish.rule])
            outcomes.append(_apply(wanted, live, wish, places[wish.rule], twins, gvr))
    return Folded(
        wanted,
        [
            Outcome(each.wish, each.place, each.error, _differs(live, wanted, each.place))
            if each.error is None and each.wish.value is not None
            else each
            for each in outcomes
        ],
    )


def _order(wish: Wish) -> tuple[int, str, str]:
    return wish.to.weight, str(wish.to), wish.rule


def _apply(wanted: Document, live: Document, wish: Wish, place: Place, twins: Sequence[str], gvr: GVR) -> Outcome:
    try:
        if len(twins) > 1:
            raise RuleError("DuplicateDestination", f"{show(place)} is the destination of {', '.join(twins)}")
        if wish.value is not None:
            _write(wanted, place, wish.value, gvr)
            return Outcome(wish, place)
        error = None
    except RuleError as problem:
        error = problem
    kept_at = locate(live, wish.to, string_maps_of(gvr))
    _retain(wanted, live, kept_at)
    return Outcome(wish, kept_at, error)


def _write(wanted: Document, place: Place, value: Value, gvr: GVR) -> None:
    plain = copy(value.plain)
    if place == _LABELS:
        plain = with_own_tracking(plain, _present(look(wanted, place)))
    _check_types(gvr, place, plain)
    last = place[-1]
    if isinstance(last, Selector) and not is_selected(plain, last):
        raise RuleError("TypeMismatch", f"{show(place)}: the new element would no longer have {last.key}={last.value}")
    put(wanted, place, plain)


def _retain(wanted: Document, live: Document, place: Place) -> None:
    """Make `wanted` like `live` at `place`, as far as its surroundings are still there."""
    kept = look(live, place)
    try:
        if isinstance(kept, Absent):
            take(wanted, place)
        else:
            put(wanted, place, copy(kept))
    except RuleError:
        return


def _present(found: Plain | Absent) -> Plain:
    return None if isinstance(found, Absent) else found


def _differs(live: Document, wanted: Document, place: Place) -> bool:
    before, after = look(live, place), look(wanted, place)
    if isinstance(before, Absent) or isinstance(after, Absent):
        return before is not after
    return not equal(before, after)


def _check_types(gvr: GVR, place: Place, plain: Plain) -> None:
    """Raise `RuleError` (`TypeMismatch`) for what the server is known to refuse in a map of strings."""
    for string_map in (_LABELS, _ANNOTATIONS, _DATA, _BINARY_DATA):
        is_data = string_map in {_DATA, _BINARY_DATA}
        if place[: len(string_map)] != string_map or (is_data and not is_core(gvr, "configmaps", "secrets")):
            continue
        as_base64 = is_core(gvr, "secrets") or string_map == _BINARY_DATA
        below = len(place) - len(string_map)
        if below > 1:
            raise RuleError("WrongContainer", f"{show(place)}: {show(place[:-1])} is a string, nothing is below it")
        if below == 1:
            check_string_map_entry(plain, show(place), as_base64=is_data and as_base64)
        elif not isinstance(plain, dict):
            raise RuleError("TypeMismatch", f"{show(place)}: want a map of strings, found {describe(plain)}")
        else:
            for key, entry in plain.items():
                check_string_map_entry(entry, show((*place, Key(key))), as_base64=is_data and as_base64)


# --- patches -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patch:
    """One request: what kind of patch, and its body, which no one prints."""

    kind: Literal["merge", "json"]
    body: bytes

    def __repr__(self) -> str:
        return f"<Patch {self.kind} {len(self.body)} bytes>"


def build_patch(live: Document, folded: Folded, *, uid: str, resource_version: str) -> Patch | None:
    """Return the request that makes the target as wanted, only if it still is as it was looked at; None if it is.

    Raises `RuleError` (`TooLarge`) when it would be larger than the server takes.
    """
    wanted = folded.wanted
    changed = [each.place for each in folded.outcomes if each.changes]
    if equal(live, wanted):
        return None
    through_lists = any(isinstance(step, Index | Selector) for place in changed for step in place)
    patch = None if through_lists else _merge_patch(live, wanted)
    if patch is not None:
        metadata = patch.setdefault("metadata", {})
        assert isinstance(metadata, dict)
        metadata |= {"uid": uid, "resourceVersion": resource_version}
        return _checked(Patch("merge", encode(patch)))
    elements = _addressed_elements(live, changed)
    operations: list[Plain] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
        *(test for element, key in elements.items() for test in _identity_tests(live, element, key)),
        *_operations(live, wanted, (), frozenset(elements)),
    ]
    if len(operations) > MAX_OPERATIONS:
        raise RuleError("TooLarge", f"the change takes {len(operations)} operations, at most {MAX_OPERATIONS} are sent")
    return _checked(Patch("json", encode(operations)))


def _checked(patch: Patch) -> Patch:
    if len(patch.body) > MAX_BODY:
        raise RuleError("TooLarge", f"the change takes {len(patch.body)} bytes, at most {MAX_BODY} are sent")
    return patch


def _merge_patch(live: Document, wanted: Document) -> Document | None:
    """Return only the keys that differ, null for those to delete; None when a null would have to be stored."""
    patch: Document = {key: None for key in live if key not in wanted}
    for key, value in wanted.items():
        before = live.get(key, ABSENT)
        if not isinstance(before, Absent) and equal(before, value):
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            inner = _merge_patch(before, value)
            if inner is None:
                return None
            patch[key] = inner
        elif has_null(value):
            return None
        else:
            patch[key] = value
    return patch


def _addressed_elements(live: Document, changed: Sequence[Place]) -> Mapping[Concrete, str]:
    """Name every list element that a rule leads through, where the live target has it, and the key it goes by."""
    found: dict[Concrete, str] = {}
    for place in changed:
        for position, step in enumerate(place):
            above = place[: position + 1]
            if isinstance(step, Index | Selector) and not isinstance(look(live, above), Absent):
                key = step.key if isinstance(step, Selector) else ""
                found[concrete(live, above)] = found.get(concrete(live, above)) or key
    return found


def _identity_tests(live: Document, element: Concrete, key: str) -> Iterator[Plain]:
    """Test that the element at this position is the one that was looked at, if it goes by a key or is a scalar."""
    found = _at(live, element)
    if isinstance(found, dict):
        key = key or next((name for name in ("name", "key", "id") if isinstance(found.get(name), str)), "")
        if key:
            yield {"op": "test", "path": _pointer((*element, key)), "value": found[key]}
    elif not isinstance(found, list):
        yield {"op": "test", "path": _pointer(element), "value": found}


def _at(document: Plain, path: Concrete) -> Plain:
    node = document
    for step in path:
        if isinstance(step, int):
            assert isinstance(node, list)
            node = node[step]
        else:
            assert isinstance(node, dict)
            node = node[step]
    return node


def _operations(live: Plain, wanted: Plain, path: Concrete, elements: frozenset[Concrete]) -> Iterator[Plain]:
    """Yield the changes, parents first; a list is one value except for the elements that rules lead through."""
    if equal(live, wanted):
        return
    if isinstance(live, dict) and isinstance(wanted, dict):
        for key in live:
            if key not in wanted:
                yield {"op": "remove", "path": _pointer((*path, key))}
        for key, value in wanted.items():
            if key in live:
                yield from _operations(live[key], value, (*path, key), elements)
            else:
                yield {"op": "add", "path": _pointer((*path, key)), "value": value}
    elif isinstance(live, list) and isinstance(wanted, list) and _is_elementwise(live, wanted, path, elements):
        for position, (before, after) in enumerate(zip(live, wanted, strict=True)):
            yield from _operations(before, after, (*path, position), elements)
    else:
        yield {"op": "replace", "path": _pointer(path), "value": wanted}


def _is_elementwise(live: list[Plain], wanted: list[Plain], path: Concrete, elements: frozenset[Concrete]) -> bool:
    return len(live) == len(wanted) and all(
        equal(before, after) or (*path, position) in elements
        for position, (before, after) in enumerate(zip(live, wanted, strict=True))
    )


def _pointer(path: Concrete) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
