r"""Paths into JSON documents: parse, print, read and write.

`spec.replicas` is plain; `data.tls\.crt`, `data["tls.crt"]`, `data['tls.crt']` and `data[tls.crt]` say one key
exactly; `[3]` is a list index and `[name=app]` the list element whose `name` is `app`.

What surprises: a plain path has several readings, because the dots in it may belong to a key. Where there is a
document, the reading with the longest keys that exist wins; below maps of strings (`data` of a ConfigMap, labels,
annotations) the rest of a plain path is always one key. A path that has been read is a *place*: exact steps only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from controllers.copier.problems import RuleError, malformed
from controllers.copier.values import Number, Plain, describe

MAX_TEXT: Final = 1024
MAX_STEPS: Final = 64
MAX_INDEX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A plain word of a path; with its plain neighbours it may be part of one dotted key."""

    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """Exactly this key of a map."""

    name: str


@dataclass(frozen=True, slots=True)
class Index:
    """The element of a list with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Selector:
    """The one element of a list whose `key` has this value; unquoted, a number or boolean may match too."""

    key: str
    value: str
    quoted: bool = False


Step: TypeAlias = Segment | Key | Index | Selector
PlaceStep: TypeAlias = Key | Index | Selector
Place: TypeAlias = tuple[PlaceStep, ...]
# Maps of strings, by the keys that lead to them: a dotted key below them has one reading.
StringMaps: TypeAlias = frozenset[tuple[str, ...]]

NO_STRING_MAPS: Final[StringMaps] = frozenset()
_ELSEWHERE: Final = ("", "")  # keys passed that lead to no map of strings


@dataclass(frozen=True, slots=True)
class Path:
    """A parsed path. `parse_path(str(path)) == path` for every path."""

    steps: tuple[Step, ...]
    _hash: int = field(init=False, repr=False, compare=False)  # known once: paths are keys of what is asked very often

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.steps))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return _format(self.steps)

    @property
    def weight(self) -> int:
        """A number that is smaller for a path than for every path below it, in every reading of both."""
        return sum(_words_in(step) for step in self.steps)


def _words_in(step: Step) -> int:
    return step.name.count(".") + 1 if isinstance(step, Key) else 1


def show(place: Place) -> str:
    """Print a place for people: plain where that is unambiguous (`spec.replicas`, `data["tls.crt"]`)."""
    return _format(
        tuple(Segment(step.name) if isinstance(step, Key) and _WORD.fullmatch(step.name) else step for step in place)
    )


# --- text --------------------------------------------------------------------------------------------------------

_WORD: Final = re.compile(r"[A-Za-z0-9_/-]+")
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9_/-]|\\.)+", re.DOTALL)
_BARE: Final = re.compile(r"[A-Za-z0-9_./-]+")
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_FROM_THE_END: Final = re.compile(r"-[0-9]+")
_DOUBLE_QUOTED: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_SINGLE_QUOTED: Final = re.compile(r"'((?:[^'\\]|\\['\\])*)'")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
# Signs of the grammar may be named in an error; anything else could be a part of a value in the wrong place.
_SIGNS: Final = frozenset(".[]=\"'\\*")


# How other tools begin a path: jq and kubectl with a dot, JSONPath with $ and braces.
_FOREIGN: Final = re.compile(r"\.|\$|\{\s*[.$]")


class NoPathError(RuleError):
    """A text that is no path, and how far it could be one."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__("MalformedRule", text)
        self.position = position


def foreign_hint(text: str) -> str:
    """Say how paths are written here, if a text begins as those of other tools do."""
    return "; a path begins with a key, as in data.k, without . $ or { before it" if _FOREIGN.match(text) else ""


def parse_path(text: str) -> Path:
    """Read a path.

    Raises `RuleError` (`MalformedRule`): `NoPathError` with the position of the fault, or that the path is beyond a
    limit; the text itself is not quoted.
    """
    if surrogate := _SURROGATE.search(text):
        raise malformed(f"path: found half a character (a lone surrogate) at position {surrogate.start()}")
    return Path(tuple(_PathReader(text).steps()))


class _PathReader:
    """Reads a path from left to right and knows where it is.

    A limit is judged when all of the text has proved to be a path, as what is none may be something else.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._has_large_index = False

    def steps(self) -> list[Step]:
        found = self._all_steps()
        if len(self._text) > MAX_TEXT:
            raise malformed(f"path: want at most {MAX_TEXT} characters, found {len(self._text)}")
        if len(found) > MAX_STEPS:
            raise malformed(f"path: want at most {MAX_STEPS} steps, found {len(found)}")
        if self._has_large_index:
            raise malformed(f"path: want an index of at most {MAX_INDEX}")
        return found

    def _all_steps(self) -> list[Step]:
        found = [self._bracket() if self._take("[") else self._segment()]
        while self._at < len(self._text):
            if self._take("."):
                found.append(self._segment())
            elif self._take("["):
                found.append(self._bracket())
            else:
                raise self._fault("'.' or '['")
        return found

    def _segment(self) -> Step:
        found = self._match(_SEGMENT)
        if found is None:
            raise self._fault("a key of letters, digits, '_', '-', '/'")
        if "\\" in found[0]:
            return Key(_ESCAPE.sub(r"\1", found[0]))
        return Segment(found[0])

    def _bracket(self) -> Step:
        start = self._at
        if (quoted := self._quoted()) is not None:
            step: Step = Key(quoted)
        elif (bare := self._match(_BARE)) is None:
            raise self._fault("an index, a key or KEY=VALUE")
        elif self._take("="):
            step = self._selector(bare[0])
        elif _INDEX.fullmatch(bare[0]):
            step = self._index(bare[0])
        elif bare[0].isdigit():
            self._at = start
            raise self._fault("an index without leading zeros; quote a key of digits")
        else:
            step = Key(bare[0])
        if not self._take("]"):
            raise self._fault("']'")
        return step

    def _index(self, digits: str) -> Index:
        if len(digits) > len(str(MAX_INDEX)) or int(digits) > MAX_INDEX:
            self._has_large_index = True
            return Index(MAX_INDEX)
        return Index(int(digits))

    def _selector(self, key: str) -> Selector:
        if key.isdigit():
            raise self._fault("a key that is not digits only before '='")
        if (quoted := self._quoted()) is not None:
            return Selector(key, quoted, quoted=True)
        value = self._match(_BARE)
        if value is None:
            raise self._fault("a value after '='; quote one with other characters")
        return Selector(key, value[0])

    def _quoted(self) -> str | None:
        if found := self._match(_DOUBLE_QUOTED):
            text = str(json.loads(found[0]))
            if _SURROGATE.search(text):
                raise self._fault("a quoted key without half a character (a lone surrogate)")
            return text
        if found := self._match(_SINGLE_QUOTED):
            return _ESCAPE.sub(r"\1", found[1])
        return None

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _take(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _fault(self, wanted: str) -> RuleError:
        char = self._text[self._at : self._at + 1]
        found = "the end" if not char else repr(char) if char in _SIGNS else "another character"
        hint = foreign_hint(self._text) if self._at == 0 else ""
        return NoPathError(f"path at position {self._at}: want {wanted}, found {found}{hint}", self._at)


def _format(steps: Sequence[Step]) -> str:
    out: list[str] = []
    for step in steps:
        match step:
            case Segment(text):
                out.append(f".{text}" if out else text)
            case Key(name):
                out.append(f"[{json.dumps(name)}]")
            case Index(number):
                out.append(f"[{number}]")
            case Selector(key, value, quoted):
                out.append(f"[{key}={json.dumps(value) if quoted else value}]")
    return "".join(out)


def check_destination(path: Path) -> None:
    """Raise `RuleError` (`MalformedRule`) for shapes that may be read but never written."""
    for position, step in enumerate(path.steps):
        if isinstance(step, Key) and _FROM_THE_END.fullmatch(step.name):
            raise malformed(f"destination, step {position + 1}: an index from the end cannot be written")
        if isinstance(step, Selector):
            for name, _ in _keys_at(path.steps, position + 1, (), NO_STRING_MAPS):
                if name == step.key:
                    raise malformed(f"destination, step {position + 2}: this is the key by which the element is found")


# --- readings ----------------------------------------------------------------------------------------------------


def _keys_at(
    steps: Sequence[Step], at: int, above: tuple[str, ...], string_maps: StringMaps
) -> Iterator[tuple[str, int]]:
    """Yield every key that the steps from `at` on may begin with, longest first, and where the steps go on."""
    if at >= len(steps):
        return
    step = steps[at]
    if isinstance(step, Key):
        yield step.name, at + 1
    elif isinstance(step, Segment):
        end = at + 1
        while end < len(steps) and isinstance(steps[end], Segment):
            end += 1
        words = [word.text for word in steps[at:end] if isinstance(word, Segment)]
        if above in string_maps:
            yield ".".join(words), end
        elif _leads_to_string_map(steps, at, above, string_maps):
            yield step.text, at + 1
        else:
            for count in range(len(words), 0, -1):
                yield ".".join(words[:count]), at + count


def _enter(above: tuple[str, ...], name: str, string_maps: StringMaps) -> tuple[str, ...]:
    """Remember the keys passed as long as they may still lead to a map of strings."""
    below = (*above, name)
    return below if any(keys[: len(below)] == below for keys in string_maps) else _ELSEWHERE


def _leads_to_string_map(steps: Sequence[Step], at: int, above: tuple[str, ...], string_maps: StringMaps) -> bool:
    for keys in string_maps:
        rest = keys[len(above) :]
        if rest and keys[: len(above)] == above and tuple(map(name_of, steps[at : at + len(rest)])) == rest:
            return True
    return False


def name_of(step: Step) -> str | None:
    """Return the key that a step names if it is read by itself, None for a step into a list."""
    match step:
        case Segment(text):
            return text
        case Key(name):
            return name
        case _:
            return None


def find(document: Plain, path: Path, string_maps: StringMaps = NO_STRING_MAPS) -> Place | None:
    """Return the reading of `path` in which every step exists, longest keys first; None if there is none."""
    return next(readings(document, path, string_maps), None)


def readings(document: Plain, path: Path, string_maps: StringMaps = NO_STRING_MAPS) -> Iterator[Place]:
    """Yield the readings of `path` in which every step exists, the one that counts first."""

    def walk(node: Plain, at: int, place: Place, above: tuple[str, ...]) -> Iterator[Place]:
        if at == len(path.steps):
            yield place
            return
        step = path.steps[at]
        if isinstance(step, Index | Selector):
            try:
                child = _element(node, step)
            except _StuckError:
                return
            yield from walk(child, at + 1, (*place, step), _ELSEWHERE)
        elif isinstance(node, dict):
            for name, following in _keys_at(path.steps, at, above, string_maps):
                if name in node:
                    yield from walk(node[name], following, (*place, Key(name)), _enter(above, name, string_maps))

    return walk(document, 0, (), ())


def locate(document: Plain, path: Path, string_maps: StringMaps = NO_STRING_MAPS) -> Place:
    """Return the one place that `path` means in `document`, whether it exists there or not.

    The reading that exists completely wins; without one, existing keys are taken longest first, and the rest is
    split at every dot.
    """
    complete = find(document, path, string_maps)
    if complete is not None:
        return complete
    place: list[PlaceStep] = []
    above: tuple[str, ...] = ()
    node, at = document, 0
    while at < len(path.steps):
        step = path.steps[at]
        if isinstance(step, Index | Selector):
            try:
                node = _element(node, step)
            except _StuckError:
                node = None
            place.append(step)
            above, at = _ELSEWHERE, at + 1
            continue
        options = list(_keys_at(path.steps, at, above, string_maps))
        inside = node if isinstance(node, dict) else {}
        name, at = next(((name, after) for name, after in options if name in inside), options[-1])
        node = inside.get(name)
        place.append(Key(name))
        above = _enter(above, name, string_maps)
    return tuple(place)


# --- reading and writing -----------------------------------------------------------------------------------------


class _StuckError(Exception):
    """A step that cannot be made: the reason if it is a source's, the reason if it is a destination's, and what was found."""

    def __init__(self, source: str, destination: str, text: str) -> None:
        super().__init__(text)
        self.source = source
        self.destination = destination
        self.text = text


class Absent:
    """What stands at a place that does not exist: not even null."""


ABSENT: Final = Absent()


def _element(node: Plain, step: Index | Selector) -> Plain:
    return _elements(node)[_position(node, step)]


def _elements(node: Plain) -> list[Plain]:
    if node is None:
        raise _StuckError("SourcePathMissing", "ElementNotFound", "want a list, found nothing")
    if not isinstance(node, list):
        raise _StuckError("WrongContainer", "WrongContainer", f"want a list, found a {_sort_of(node)}")
    return node


def _position(node: Plain, step: Index | Selector) -> int:
    elements = _elements(node)
    if isinstance(step, Index):
        if step.number >= len(elements):
            size = f"{len(elements)} {'item' if len(elements) == 1 else 'items'}"
            raise _StuckError("SourcePathMissing", "IndexOutOfRange", f"found a list of {size}")
        return step.number
    matching = [position for position, element in enumerate(elements) if is_selected(element, step)]
    if not matching:
        raise _StuckError("SourcePathMissing", "ElementNotFound", "no element of the list matches")
    if len(matching) > 1:
        raise _StuckError("ElementAmbiguous", "ElementAmbiguous", f"{len(matching)} elements of the list match")
    return matching[0]


def is_selected(element: Plain, selector: Selector) -> bool:
    """Tell whether a list's element is the one that `selector` names."""
    if not isinstance(element, dict):
        return False
    match element.get(selector.key):
        case str() as text:
            return text == selector.value
        case bool() as flag:
            return not selector.quoted and selector.value == ("true" if flag else "false")
        case Number(text):
            return not selector.quoted and selector.value == text
        case _:
            return False


def _child(node: Plain, step: PlaceStep) -> Plain | Absent:
    """Go one step; ABSENT for a key that is not there or a parent that is null."""
    if isinstance(step, Index | Selector):
        return _element(node, step)
    if node is None:
        return ABSENT
    if not isinstance(node, dict):
        hint = _list_hint(step.name) if isinstance(node, list) else ""
        raise _StuckError("WrongContainer", "WrongContainer", f"want a map, found a {_sort_of(node)}{hint}")
    return node.get(step.name, ABSENT)


def _list_hint(name: str) -> str:
    if name.isdigit():
        return "; a list takes [0], not .0"
    return "; an index from the end takes JMESPath, as in @.path[-1]" if _FROM_THE_END.fullmatch(name) else ""


def read(document: Plain, path: Path, string_maps: StringMaps = NO_STRING_MAPS) -> tuple[Plain, Place]:
    """Return the value that `path` names in a source, and its place.

    Raises `RuleError` (`SourcePathMissing`, `WrongContainer`, `ElementAmbiguous`) that names the failing step.
    """
    place = locate(document, path, string_maps)
    node: Plain | Absent = document
    for position, step in enumerate(place):
        before = node
        assert not isinstance(before, Absent)
        try:
            node = _child(before, step)
        except _StuckError as stuck:
            raise RuleError(stuck.source, _step_text(place, position, stuck.text)) from None
        if isinstance(node, Absent):
            hint = _near_key(before, place[position:])
            raise RuleError("SourcePathMissing", _step_text(place, position, f"found nothing{hint}"))
    assert not isinstance(node, Absent)
    return node, place


def check_writable(document: Plain, place: Place) -> None:
    """Raise `RuleError` (`WrongContainer`, `IndexOutOfRange`, `Element…`) if nothing can be written at `place`."""
    node: Plain = document
    for position, step in enumerate(place):
        try:
            child = _child(node, step)
        except _StuckError as stuck:
            raise RuleError(stuck.destination, _step_text(place, position, stuck.text)) from None
        node = None if isinstance(child, Absent) else child


def look(document: Plain, place: Place) -> Plain | Absent:
    """Return what stands at `place`, ABSENT if it is not there for whatever reason."""
    node: Plain | Absent = document
    for step in place:
        try:
            node = ABSENT if isinstance(node, Absent) else _child(node, step)
        except _StuckError:
            return ABSENT
    return node


def put(document: dict[str, Plain], place: Place, value: Plain) -> None:
    """Write `value` at `place` into `document`; missing and null parents become maps, null list elements too.

    Raises `RuleError` as `check_writable` does.
    """
    check_writable(document, place)
    node: Plain = document
    for step in place[:-1]:
        if isinstance(step, Index | Selector):
            elements, position = _elements(node), _position(node, step)
            if elements[position] is None:
                elements[position] = {}
            node = elements[position]
            continue
        assert isinstance(node, dict)
        if node.get(step.name) is None:
            node[step.name] = {}
        node = node[step.name]
    last = place[-1]
    if isinstance(last, Key):
        assert isinstance(node, dict)
        node[last.name] = value
    else:
        _elements(node)[_position(node, last)] = value


def take(document: dict[str, Plain], place: Place) -> None:
    """Remove what stands at `place`; nothing happens where nothing is."""
    parent = look(document, place[:-1])
    last = place[-1]
    if isinstance(last, Key):
        if isinstance(parent, dict):
            parent.pop(last.name, None)
    elif isinstance(parent, list):
        try:
            del parent[_position(parent, last)]
        except _StuckError:
            return


def concrete(document: Plain, place: Place) -> tuple[str | int, ...]:
    """Name the keys and list positions of a place that exists in `document`."""
    found: list[str | int] = []
    node: Plain | Absent = document
    for step in place:
        if isinstance(step, Key):
            found.append(step.name)
        else:
            assert not isinstance(node, Absent)
            found.append(_position(node, step))
        node = ABSENT if isinstance(node, Absent) else _child(node, step)
    return tuple(found)


def _step_text(place: Place, position: int, text: str) -> str:
    return f"step {position + 1} of {show(place)}: {text}"


def _near_key(node: Plain, steps: Place) -> str:
    """Hint at a key that was probably meant: the same in other case, or one with dots."""
    if not isinstance(node, dict) or not isinstance(steps[0], Key):
        return ""
    wanted = steps[0].name
    names = [step.name for step in steps if isinstance(step, Key)]
    joined = {".".join(names[:count]) for count in range(2, len(names) + 1)}
    for key in sorted(node):
        if key.lower() == wanted.lower() or key in joined or ("." in key and key.startswith(f"{wanted}.")):
            return f"; did you mean [{json.dumps(key)}]?"
    return "; keys are joined by dots" if wanted.startswith("/") else ""


def _sort_of(node: Plain) -> str:
    return describe(node).partition("(")[0]


# --- overlap -----------------------------------------------------------------------------------------------------


def may_overlap(one: Path, other: Path, string_maps: StringMaps = NO_STRING_MAPS) -> bool:
    """Tell whether, in some reading of both, the paths are equal or one leads through the other."""
    seen: set[tuple[int, int, tuple[str, ...]]] = set()

    def walk(at: int, other_at: int, above: tuple[str, ...]) -> bool:
        if at == len(one.steps) or other_at == len(other.steps):
            return True
        if (at, other_at, above) in seen:
            return False
        seen.add((at, other_at, above))
        step, other_step = one.steps[at], other.steps[other_at]
        if isinstance(step, Index | Selector) or isinstance(other_step, Index | Selector):
            same_sort = not isinstance(step, Segment | Key) and not isinstance(other_step, Segment | Key)
            # An index against a key: one of the two is wrong about the container, so nothing is ruled out.
            return not same_sort or (not _are_apart(step, other_step) and walk(at + 1, other_at + 1, _ELSEWHERE))
        other_keys: Mapping[str, int] = dict(_keys_at(other.steps, other_at, above, string_maps))
        return any(
            walk(after, other_keys[name], _enter(above, name, string_maps))
            for name, after in _keys_at(one.steps, at, above, string_maps)
            if name in other_keys
        )

    return walk(0, 0, ())


def meet(one: Place, other: Place) -> bool:
    """Tell whether two places of one object are equal, or one leads through the other."""
    for step, other_step in zip(one, other, strict=False):
        if isinstance(step, Key) and isinstance(other_step, Key):
            if step != other_step:
                return False
        elif _are_apart(step, other_step):
            return False
    return True


class Places:
    """Places of one object, looked up and not gone through: whether any of them meets another one."""

    __slots__ = ("_inner", "_is_end")

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._is_end = False  # one of the places ends here
        self._inner: dict[object, dict[str | int, Places]] = {}  # by the sort of step, then by what it says
        for place in places:
            node = self
            for step in place:
                sort, says = _sorted(step)
                node = node._inner.setdefault(sort, {}).setdefault(says, Places())
            node._is_end = True

    def meet(self, place: Place) -> bool:
        """Tell whether one of them and `place` are equal, or one leads through the other."""
        if self._is_end or not place:
            return self._is_end or bool(self._inner)
        sort, says = _sorted(place[0])
        for each, nodes in self._inner.items():
            if each != sort:  # what they reach may be the same
                if any(node.meet(place[1:]) for node in nodes.values()):
                    return True
            elif says in nodes and nodes[says].meet(place[1:]):
                return True
        return False


def _sorted(step: PlaceStep) -> tuple[object, str | int]:
    match step:
        case Key(name):
            return Key, name
        case Index(number):
            return Index, number
        case Selector(key, value):
            return (Selector, key), value


def _are_apart(step: Step, other: Step) -> bool:
    """Tell whether two steps into one list never reach the same element."""
    match step, other:
        case (Index(number), Index(second)):
            return number != second
        case (Selector(key, value), Selector(second_key, second_value)):
            return key == second_key and value != second_value
        case _:
            return False
