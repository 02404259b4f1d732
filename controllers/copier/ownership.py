"""What may be taken away again: only what is the copier's own. Pure.

The server keeps a record of who set which field (`metadata.managedFields`). A value goes only if that record names
the copier and nobody else, if it is still what the copier put there, and if no other rule is about it. What surprises:
an empty set in the record stands for a value that is one to the server, and for a map of which only the map itself was
set; it is the latter where anybody's set goes further down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from controllers.copier.memory import fingerprint
from controllers.copier.paths import Absent, Index, Key, Place, PlaceStep, Selector, concrete, look
from controllers.copier.rules import Operation
from controllers.copier.values import Number, Plain, equal

Fields: TypeAlias = "Mapping[str, Fields]"  # as the server writes them: f:KEY, k:{KEYS}, v:VALUE, i:INDEX, and "."

_SELF: Final = "."
_NOTHING_KEYED: Final[Mapping[tuple[str, ...], str]] = {}

CHANGED: Final = "it was changed since it was copied"
NOT_OURS: Final = "it was not set by the copier"
SHARED: Final = "it was set by others too"
BY_NUMBER: Final = "an element that is found by its number is not removed"


# --- what a rule gave --------------------------------------------------------------------------------------------


def given_places(
    operation: Operation, place: Place, plain: Plain, keyed: Mapping[tuple[str, ...], str] = _NOTHING_KEYED
) -> frozenset[Place]:
    """Name each value that a rule sets with `plain` at `place`: of a map its entries, of a list merged by a key too.

    The key by which an element is found is not among them, unless there is nothing else in the element.
    """
    if operation is Operation.REMOVE:
        return frozenset()
    return frozenset(_given(operation, place, plain, keyed, is_root=True))


def _given(
    operation: Operation, place: Place, plain: Plain, keyed: Mapping[tuple[str, ...], str], *, is_root: bool = False
) -> Iterator[Place]:
    if isinstance(plain, dict):
        for key, value in plain.items():
            is_word = operation is Operation.STRATEGIC_MERGE and key.startswith("$")
            if not is_word and (value is not None or operation is Operation.REPLACE):
                yield from _given(operation, (*place, Key(key)), value, keyed)
        if not plain and not is_root:
            yield place
    elif isinstance(plain, list) and operation is Operation.STRATEGIC_MERGE:
        key = keyed.get(tuple(step.name for step in place if isinstance(step, Key)), "")
        for element in plain if key else ():
            name = element.get(key) if isinstance(element, dict) else None
            if isinstance(element, dict) and isinstance(name, str | Number):
                found = (*place, Selector(key, name if isinstance(name, str) else name.text))
                rest: Plain = {name: value for name, value in element.items() if name != key}
                inside = list(_given(operation, found, rest, keyed, is_root=True))
                yield from inside or ([] if any(word.startswith("$") for word in element) else [found])
    else:
        yield place


# --- the server's record -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Who set which fields: one manager by plain writes, and all others with their names, the latest first."""

    ours: Fields = field(default_factory=dict)
    others: Sequence[tuple[str, Fields]] = ()


def read_record(managed_fields: Plain | Absent, manager: str) -> Record:
    """Read `metadata.managedFields`; what cannot be read belongs to nobody."""
    ours: Fields = {}
    others: list[tuple[str, str, Fields]] = []
    for entry in managed_fields if isinstance(managed_fields, list) else ():
        if not isinstance(entry, dict):
            continue
        name, time, fields = entry.get("manager"), entry.get("time"), _fields(entry.get("fieldsV1"))
        if name == manager and entry.get("operation") == "Update" and not entry.get("subresource"):
            ours = _joined(ours, fields)  # there is one for each version that was written
        else:
            others.append((time if isinstance(time, str) else "", name if isinstance(name, str) else "", fields))
    others.sort(key=lambda each: each[0], reverse=True)
    return Record(ours, [(name, fields) for _, name, fields in others])


def _fields(plain: Plain) -> Fields:
    return {name: _fields(inside) for name, inside in plain.items()} if isinstance(plain, dict) else {}


def _joined(one: Fields, other: Fields) -> Fields:
    return {**one, **{name: _joined(one.get(name, {}), inside) for name, inside in other.items()}}


def managers_of(record: Record, live: Plain, place: Place) -> Sequence[str]:
    """Name the others who have set something at `place`, the latest first."""
    _, others = _follow(record, live, place)
    return [name for (name, _), fields in zip(record.others, others, strict=True) if fields is not None]


def _follow(record: Record, live: Plain, place: Place) -> tuple[Fields | None, Sequence[Fields | None]]:
    """Go down to `place` in every set: what each says of it, None where it says nothing."""
    sets: list[Fields | None] = [record.ours, *(fields for _, fields in record.others)]
    for position, step in enumerate(place):
        goes_further = any(name != _SELF for fields in sets if fields for name in fields)
        element = look(live, place[: position + 1])
        sets = [
            None
            if fields is None
            else _inside(fields, live, place[: position + 1], step, element)
            if goes_further
            else fields
            for fields in sets
        ]
    return sets[0], sets[1:]


def _inside(fields: Fields, live: Plain, place: Place, step: PlaceStep, element: Plain | Absent) -> Fields | None:
    if isinstance(step, Key):
        return fields.get(f"f:{step.name}")
    if isinstance(element, Absent):
        return None
    position = concrete(live, place)[-1] if isinstance(live, dict) else -1
    assert isinstance(position, int)
    return _of_element(fields, element, position)


def _of_element(fields: Fields, element: Plain, position: int) -> Fields | None:
    return next((inside for name, inside in fields.items() if _names(name, element, position)), None)


def _names(name: str, element: Plain, position: int) -> bool:
    """Tell whether a member of a set stands for this element of a list."""
    sort, _, text = name.partition(":")
    if sort == "i":
        return text == str(position)
    if sort not in {"k", "v"}:
        return False
    try:
        wanted: Plain = json.loads(text, parse_int=Number, parse_float=Number)
    except ValueError:
        return False
    if sort == "v":
        return equal(wanted, element)
    return (
        isinstance(wanted, dict)
        and isinstance(element, dict)
        and all(key in element and equal(value, element[key]) for key, value in wanted.items())
    )


def _has_whole(fields: Fields, node: Plain) -> bool:
    """Tell whether a set holds every field of a value."""
    if not fields:
        return True
    match node:
        case dict():
            parts = [(fields.get(f"f:{key}"), value) for key, value in node.items()]
        case list():
            parts = [(_of_element(fields, element, position), element) for position, element in enumerate(node)]
        case _:
            return False
    return all(inside is not None and _has_whole(inside, value) for inside, value in parts)


# --- the decision ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What goes, and what stays for which reason."""

    drops: tuple[Place, ...] = ()
    kept: Mapping[str, Sequence[Place]] = field(default_factory=dict)


def removable(
    live: Mapping[str, Plain],
    place: Place,
    given: Mapping[Place, bytes | None],
    record: Record,
    *,
    is_covered: Callable[[Place], bool],
) -> Verdict:
    """Decide about all that a rule gave at `place`: each value with its fingerprint, None where none is known.

    What is not there, or what another rule is about, is no matter. The map at `place` itself stays, even if empty; a
    map inside of it goes when nothing is left in it, an element of a list when every field of it is the copier's.
    """
    document = dict(live)
    drops: set[Place] = set()
    kept: dict[str, list[Place]] = {}
    for leaf in sorted(given, key=str):
        value = look(document, leaf)
        if isinstance(value, Absent) or is_covered(leaf):
            continue
        reason = _why_kept(document, leaf, value, given[leaf], record)
        if reason:
            kept.setdefault(reason, []).append(leaf)
        else:
            drops.add(leaf)
    return Verdict(tuple(sorted(_collapsed(document, place, drops, given, record, is_covered), key=str)), kept)


def _why_kept(live: dict[str, Plain], leaf: Place, value: Plain, known: bytes | None, record: Record) -> str:
    if isinstance(leaf[-1], Index):
        return BY_NUMBER
    if known is not None and fingerprint(value) != known:
        return CHANGED
    ours, others = _follow(record, live, leaf)
    if not record.ours or ours is None or not _has_whole(ours, value):
        return NOT_OURS
    if any(fields is not None for fields in others):
        return SHARED
    return ""


def _collapsed(
    live: dict[str, Plain],
    root: Place,
    drops: Iterable[Place],
    given: Iterable[Place],
    record: Record,
    is_covered: Callable[[Place], bool],
) -> set[Place]:
    """Let a map or an element go as a whole where all of it goes, and nobody else has set it; never what is at `root`."""
    found = set(drops)
    asked = list(given)
    for length in range(max(map(len, found), default=0) - 1, len(root), -1):
        below: dict[Place, set[Place]] = {}
        for place in found:
            if len(place) > length:
                below.setdefault(place[:length], set()).add(place)
        for parent, inside in below.items():
            if _goes_whole(live, parent, inside, asked, record) and not is_covered(parent):
                found = (found - inside) | {parent}
    return found


def _goes_whole(
    live: dict[str, Plain], parent: Place, inside: Iterable[Place], given: Iterable[Place], record: Record
) -> bool:
    node = look(live, parent)
    ours, others = _follow(record, live, parent)
    if isinstance(node, Absent) or any(fields is not None for fields in others):
        return False
    if isinstance(parent[-1], Selector):
        # The server has filled in what was not said; that it did so for the copier is in its record.
        asked = [
            place for place in given if place[: len(parent)] == parent and not isinstance(look(live, place), Absent)
        ]
        goes = all(any(place[: len(each)] == each for each in inside) for place in asked)
        return goes and ours is not None and _has_whole(ours, node)
    return isinstance(node, dict) and {(*parent, Key(key)) for key in node} <= set(inside)
