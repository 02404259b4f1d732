"""From what a target is and what its rules say to one patch, or to none. Pure.

`fold` applies all rules to one snapshot, broader paths first, so that the more specific rule wins, and on one path
`replace` before `merge` before `strategic-merge`; a rule that cannot deliver keeps the live value of its path. `build_patch` makes the smallest request that turns live into
wanted and that the server refuses if the target is not the one that was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Literal, TypeAlias

from controllers.copier.kinds import is_core, string_maps_of
from controllers.copier.memory import Leaf, Mark
from controllers.copier.merge import (
    Fields,
    MergeRules,
    keep_assigned,
    keep_live,
    merge,
    merge_strategically,
    named_places,
)
from controllers.copier.paths import (
    ABSENT,
    Absent,
    Index,
    Key,
    Path,
    Place,
    Places,
    Selector,
    check_writable,
    concrete,
    is_selected,
    locate,
    look,
    put,
    show,
    take,
)
from controllers.copier.persisted import accept, is_same
from controllers.copier.problems import RuleError
from controllers.copier.quantities import is_same_amount
from controllers.copier.rules import Operation
from controllers.copier.values import (
    Number,
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

# On one path the later one builds on what the ones before have made.
_OPERATIONS: Final = (Operation.REMOVE, Operation.REPLACE, Operation.MERGE, Operation.STRATEGIC_MERGE)
MERGES: Final = frozenset({Operation.MERGE, Operation.STRATEGIC_MERGE})

Document: TypeAlias = dict[str, Plain]
Concrete: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """One rule with the value it would write; None keeps what is there. A rule that removes has any value."""

    rule: str
    to: Path
    value: Value | None
    operation: Operation = Operation.REPLACE
    excepts: tuple[Path, ...] = ()  # below `to`: what is there stays
    marks: Mapping[Leaf, Mark] = field(default_factory=dict)  # what the server is known to make of it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a wish: where it pointed, whether the target has to change for it, or why it cannot be met."""

    wish: Wish
    place: Place
    error: RuleError | None = None
    changes: bool = False
    marks: Mapping[Leaf, Mark] = field(default_factory=dict)  # those that are true of the target as it is


@dataclass(frozen=True, slots=True)
class Folded:
    """The target as it should be, and what became of each wish, in the order in which they were applied."""

    wanted: Document
    outcomes: Sequence[Outcome]
    dropped: Sequence[Place] = ()  # what was taken away without a rule that says so
    keyed: Mapping[Fields, str] = field(default_factory=dict)  # lists merged by a key of their elements, or by value

    @property
    def changed(self) -> Sequence[Place]:
        """The places for which the target has to change."""
        return (*(each.place for each in self.outcomes if each.changes), *self.dropped)


def fold(
    live: Document,
    wishes: Iterable[Wish],
    gvr: GVR,
    *,
    schema: MergeRules | None = None,
    drops: Iterable[Place] = (),
) -> Folded:
    """Apply all wishes to a copy of `live`, then take away `drops` that no wish is about; the order given is no matter.

    `schema` is asked only for a strategic merge, and about two amounts that are equal and written in different ways.
    """
    return _Fold(live, gvr, schema).run(wishes, drops)


class _Removed(Number):
    """Stands in a list where an element was taken away, so that the others keep their numbers until the end."""

    __slots__ = ()


class _Fold:
    """One target on its way to what it should be."""

    def __init__(self, live: Document, gvr: GVR, schema: MergeRules | None) -> None:
        wanted = copy(live)
        assert isinstance(wanted, dict)
        self._live = live
        self._wanted: Document = wanted
        self._gvr = gvr
        self._schema = schema
        self._keyed: dict[Fields, str] = {}
        self._string_maps = string_maps_of(gvr)
        self._gaps: dict[Place, tuple[list[Plain], int]] = {}  # list elements that were taken away

    def run(self, wishes: Iterable[Wish], drops: Iterable[Place]) -> Folded:
        """Apply the wishes, the broadest first, then the drops."""
        applied: list[tuple[Outcome, bool]] = []
        for _, same_weight in groupby(sorted(wishes, key=_order), key=lambda wish: wish.to.weight):
            group = list(same_weight)
            places = {wish.rule: locate(self._wanted, wish.to, self._string_maps) for wish in group}
            spots = {rule: _spot(self._wanted, place) for rule, place in places.items()}
            for wish in group:
                twins = _twins(wish, group, spots)
                applied.append(self._apply(wish, places[wish.rule], twins))
        if self._schema is not None and any(has_acted for _, has_acted in applied):
            self._accept_amounts(self._live, self._wanted, ())
        settled = [
            (self._accept_settled(outcome) if has_acted else outcome, has_acted) for outcome, has_acted in applied
        ]
        outcomes = [
            replace(outcome, changes=_differs(self._live, self._wanted, outcome.place)) if has_acted else outcome
            for outcome, has_acted in settled
        ]
        for elements, _ in self._gaps.values():
            elements[:] = [element for element in elements if not isinstance(element, _Removed)]
        return Folded(self._wanted, outcomes, self._drop_all(tuple(drops), outcomes), self._keyed)

    def _apply(self, wish: Wish, place: Place, twins: Sequence[str]) -> tuple[Outcome, bool]:
        """Apply one wish; tell whether it has changed anything."""
        try:
            if twins:
                raise RuleError("DuplicateDestination", f"{show(place)} is the destination of {', '.join(twins)}")
            if wish.value is not None:
                return Outcome(wish, place), self._act(wish, wish.value, place)
            error = None
        except RuleError as problem:
            error = problem
        kept_at = locate(self._live, wish.to, self._string_maps)
        self._retain(kept_at)
        return Outcome(wish, kept_at, error), False

    def _act(self, wish: Wish, value: Value, place: Place) -> bool:
        for length in range(1, len(place) + 1):
            if isinstance(look(self._wanted, place[:length]), _Removed):
                raise RuleError("ElementNotFound", f"{show(place)}: another rule removes {show(place[:length])}")
        before = look(self._wanted, place)
        if wish.operation is Operation.REMOVE:
            _check_removable(self._wanted, place)
            after: Plain | Absent = ABSENT
        else:
            after = self._result(wish, value, place, before)
        if is_same(before, after):
            return False
        if isinstance(after, Absent):
            self._take(place)
        else:
            put(self._wanted, place, after)
        return True

    def _result(self, wish: Wish, value: Value, place: Place, before: Plain | Absent) -> Plain | Absent:
        """What a wish makes of what stands at its place."""
        check_writable(self._wanted, place)
        after = self._combined(wish, value, place, before)
        if isinstance(after, Absent):
            return after
        live = look(self._live, place)
        after = keep_assigned(keep_live(after, live, wish.excepts), live, self._gvr, place)
        _check_types(self._gvr, place, after)
        last = place[-1]
        if isinstance(last, Selector) and not is_selected(after, last):
            raise RuleError(
                "TypeMismatch", f"{show(place)}: the new element would no longer have {last.key}={last.value}"
            )
        return after

    def _combined(self, wish: Wish, value: Value, place: Place, before: Plain | Absent) -> Plain | Absent:
        match wish.operation:
            case Operation.MERGE:
                return merge(before, value.plain)
            case Operation.STRATEGIC_MERGE:
                if self._schema is None:
                    raise RuleError("SchemaUnavailable", f"{show(place)}: no server tells how its lists are merged")
                after, keyed = merge_strategically(before, value.plain, place, self._schema)
                self._keyed.update(keyed)
                return after
            case _:
                after = copy(value.plain)
                return with_own_tracking(after, _present(before)) if place == _LABELS else after

    def _take(self, place: Place) -> None:
        if isinstance(place[-1], Key):
            take(self._wanted, place)
            return
        elements = look(self._wanted, place[:-1])
        position = concrete(self._wanted, place)[-1]
        assert isinstance(elements, list)
        assert isinstance(position, int)
        elements[position] = _Removed("0")
        self._gaps[place] = elements, position

    def _retain(self, place: Place) -> None:
        """Make `wanted` like `live` at `place`, as far as its surroundings are still there."""
        kept = look(self._live, place)
        try:
            if not isinstance(kept, Absent):
                put(self._wanted, place, copy(kept))
            elif not isinstance(look(self._wanted, place), Absent):
                self._take(place)
        except RuleError:
            return

    def _accept_settled(self, outcome: Outcome) -> Outcome:
        """Take for wanted what the server is known to make of it, where the target still shows that."""
        if not outcome.wish.marks:
            return outcome
        wanted = look(self._wanted, outcome.place)
        accepted, marks = accept(outcome.wish.marks, wanted, look(self._live, outcome.place))
        if isinstance(accepted, Absent):
            take(self._wanted, outcome.place)
        elif isinstance(wanted, Absent) and outcome.place in self._gaps:
            elements, position = self._gaps[outcome.place]
            elements[position] = copy(accepted)
        elif isinstance(wanted, Absent) or not equal(accepted, wanted):
            put(self._wanted, outcome.place, copy(accepted))
        return replace(outcome, marks=marks)

    def _accept_amounts(self, live: Plain, wanted: Plain, fields: Fields) -> Plain:
        """Take amounts as the target has them where it has the wanted ones, written in another way."""
        if isinstance(live, dict) and isinstance(wanted, dict):
            for key in live.keys() & wanted.keys():
                wanted[key] = self._accept_amounts(live[key], wanted[key], (*fields, key))
        elif isinstance(live, list) and isinstance(wanted, list):
            for position, pair in enumerate(zip(live, wanted, strict=False)):
                wanted[position] = self._accept_amounts(*pair, fields)
        elif (
            not equal(live, wanted)
            and is_same_amount(live, wanted)
            and fields[:-1] not in self._string_maps
            and self._is_quantity(fields)
        ):
            return live
        return wanted

    def _is_quantity(self, fields: Fields) -> bool:
        try:
            assert self._schema is not None
            return self._schema.is_quantity(fields)
        except RuleError:
            return False  # nobody knows: it is written, and what comes back is told then

    def _drop_all(self, places: Sequence[Place], outcomes: Iterable[Outcome]) -> Sequence[Place]:
        """Take away what is there and no wish is about; return what that was."""
        if not places:
            return ()
        decided = Places(place for each in outcomes for place in _decided(each, self._keyed))
        dropped: list[Place] = []
        for place in places:
            if not isinstance(look(self._wanted, place), Absent) and not decided.meet(place):
                take(self._wanted, place)
                dropped.append(place)
        return dropped


def _order(wish: Wish) -> tuple[int, int, str, str]:
    return wish.to.weight, _OPERATIONS.index(wish.operation), str(wish.to), wish.rule


def _spot(document: Document, place: Place) -> Sequence[object]:
    """Name a place alike however it is said: by which elements its ways into lists lead to, where they are there."""
    spot: list[object] = list(place)
    for position, step in enumerate(place):
        if isinstance(step, Key):
            continue
        if isinstance(look(document, place[: position + 1]), Absent):
            break
        spot[position] = concrete(document, place[: position + 1])[-1]
    return spot


def _twins(wish: Wish, group: Sequence[Wish], spots: Mapping[str, Sequence[object]]) -> Sequence[str]:
    """Name the rules that cannot all have this place: of one operation, or one that removes and any other."""
    there = [other for other in group if spots[other.rule] == spots[wish.rule]]
    removes = any(other.operation is Operation.REMOVE for other in there)
    rivals = sorted(other.rule for other in there if removes or other.operation is wish.operation)
    return rivals if len(rivals) > 1 else ()


def _decided(outcome: Outcome, keyed: Mapping[Fields, str]) -> Iterable[Place]:
    """Name what a wish decides about: a merge only about what it names."""
    wish = outcome.wish
    if wish.operation not in MERGES or wish.value is None or outcome.error is not None:
        return (outcome.place,)
    named = named_places(outcome.place, wish.value.plain, keyed)
    return (*named, *((*outcome.place, *locate(None, path)) for path in wish.excepts))


def _check_removable(document: Document, place: Place) -> None:
    """Raise `RuleError` if it is not clear what to remove; nothing to remove is clear enough."""
    try:
        check_writable(document, place)
    except RuleError as error:
        if error.reason not in {"ElementNotFound", "IndexOutOfRange"}:
            raise


def _present(found: Plain | Absent) -> Plain:
    return None if isinstance(found, Absent) else found


def _differs(live: Document, wanted: Document, place: Place) -> bool:
    return not is_same(look(live, place), look(wanted, place))


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
    if equal(live, folded.wanted):
        return None
    patch = None if _goes_through_lists(live, folded) else _merge_patch(live, folded.wanted)
    if patch is not None:
        metadata = patch.setdefault("metadata", {})
        assert isinstance(metadata, dict)
        metadata |= {"uid": uid, "resourceVersion": resource_version}
        return _checked(Patch("merge", encode(patch)))
    changes = _Changes(live, folded)
    operations: list[Plain] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
        *changes.tests(),
        *changes.operations,
    ]
    if len(operations) > MAX_OPERATIONS:
        raise RuleError("TooLarge", f"the change takes {len(operations)} operations, at most {MAX_OPERATIONS} are sent")
    return _checked(Patch("json", encode(operations)))


def _goes_through_lists(live: Document, folded: Folded) -> bool:
    """Tell whether elements of lists change, and not only lists as a whole."""
    if any(isinstance(step, Index | Selector) for place in folded.changed for step in place):
        return True
    return bool(folded.keyed) and any(path in folded.keyed for path in _changed_lists(live, folded.wanted, ()))


def _changed_lists(live: Plain, wanted: Plain, path: Fields) -> Iterator[Fields]:
    """Name the lists that differ, as far as maps lead to them."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        for key in live.keys() & wanted.keys():
            yield from _changed_lists(live[key], wanted[key], (*path, key))
    elif isinstance(live, list) and isinstance(wanted, list) and not equal(live, wanted):
        yield path


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


class _Changes:
    """The operations of a JSON patch; a list is one value except for the elements that rules and merges change.

    Elements of one list change where they stand, then those that go are removed from the end, then new ones are added.
    """

    def __init__(self, live: Document, folded: Folded) -> None:
        self._live = live
        self._keyed = folded.keyed
        self._elements: dict[Concrete, str] = {}  # every element that is addressed, and the key it goes by
        self._removed: set[Concrete] = set()
        for place in folded.changed:
            self._address(place, folded.wanted)
        self._addressed = frozenset(self._elements)
        self.operations: Sequence[Plain] = tuple(self._between(live, folded.wanted, ()))

    def tests(self) -> Iterator[Plain]:
        """Yield a test for each element addressed: that it is the one that was looked at."""
        for element, key in self._elements.items():
            yield from _identity_tests(self._live, element, key)

    def _address(self, place: Place, wanted: Document) -> None:
        for position, step in enumerate(place):
            above = place[: position + 1]
            if isinstance(step, Key) or isinstance(look(self._live, above), Absent):
                continue
            element = concrete(self._live, above)
            self._elements[element] = self._elements.get(element) or (step.key if isinstance(step, Selector) else "")
            if isinstance(step, Selector) and isinstance(look(wanted, above), Absent):
                self._removed.add(element)

    def _between(self, live: Plain, wanted: Plain, path: Concrete) -> Iterator[Plain]:
        if equal(live, wanted):
            return
        if isinstance(live, dict) and isinstance(wanted, dict):
            for key in live:
                if key not in wanted:
                    yield {"op": "remove", "path": _pointer((*path, key))}
            for key, value in wanted.items():
                if key in live:
                    yield from self._between(live[key], value, (*path, key))
                else:
                    yield {"op": "add", "path": _pointer((*path, key)), "value": value}
        elif isinstance(live, list) and isinstance(wanted, list):
            yield from self._between_lists(live, wanted, path)
        else:
            yield {"op": "replace", "path": _pointer(path), "value": wanted}

    def _between_lists(self, live: list[Plain], wanted: list[Plain], path: Concrete) -> Iterator[Plain]:
        key = self._keyed.get(tuple(step for step in path if isinstance(step, str)))
        staying = self._staying(live, wanted, path) if key is None else _staying_by_key(live, wanted, key)
        if staying is None:
            yield {"op": "replace", "path": _pointer(path), "value": wanted}
            return
        for position, after in zip(staying, wanted, strict=False):
            if key and not equal(live[position], after):
                self._elements.setdefault((*path, position), key)
            yield from self._between(live[position], after, (*path, position))
        for position in sorted(set(range(len(live))) - set(staying), reverse=True):
            self._elements.setdefault((*path, position), key or "")
            yield {"op": "remove", "path": _pointer((*path, position))}
        for added in wanted[len(staying) :]:
            yield {"op": "add", "path": _pointer((*path, "-")), "value": added}

    def _staying(self, live: list[Plain], wanted: list[Plain], path: Concrete) -> Sequence[int] | None:
        """Name the positions that stay when only elements that rules lead to change; None if others change too."""
        staying = [position for position in range(len(live)) if (*path, position) not in self._removed]
        if len(staying) != len(wanted):
            return None
        pairs = zip(staying, wanted, strict=True)
        is_known = all(equal(live[at], after) or (*path, at) in self._addressed for at, after in pairs)
        return staying if is_known else None


def _staying_by_key(live: list[Plain], wanted: list[Plain], key: str) -> Sequence[int] | None:
    """Name the positions of the elements that stay, in order and before all new ones; None if it is not as simple."""
    before, after = [_identity(each, key) for each in live], [_identity(each, key) for each in wanted]
    if None in before or None in after or len(set(before)) < len(before) or len(set(after)) < len(after):
        return None
    remaining = set(after)
    staying = [position for position, each in enumerate(before) if each in remaining]
    return staying if after[: len(staying)] == [before[position] for position in staying] else None


def _identity(element: Plain, key: str) -> str | Number | bool | None:
    """What an element of a list goes by: the value of `key`, without a key the element itself; None if by nothing."""
    found = element.get(key) if key and isinstance(element, dict) else element
    return None if isinstance(found, dict | list) or (key and found is element) else found


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


def _pointer(path: Concrete) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
