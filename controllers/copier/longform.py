"""Read the annotation `rules`: a YAML list, each item by itself. Pure.

The YAML is that of YAML 1.2 for JSON's data: only `true`, `false`, `null`, `~` and numbers as JSON writes them are
more than text, so `yes`, `010` and dates are strings. What surprises: a fault inside an item (an anchor, a tag, a
repeated key, too many levels) is that item's alone, and what can be read of the item is given with it, so that its
destination is known. Nothing is ever built from a tag, and a number keeps its text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controllers.copier.problems import RuleError, malformed
from controllers.copier.values import Number, Plain

MAX_BYTES: Final = 128 * 1024
# Beyond this the text as a whole is refused: readers of YAML take long, or give up, where nothing ever closes.
MAX_NESTING: Final = 900
# Beyond this an item is not read any deeper: no value may be.
_MAX_READ: Final = 100

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NO_JSON_NUMBER: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "~": None, "": None}
_UNREADABLE: Final = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
# A character as JSON escapes it in two halves, or one half alone, after backslashes that escape each other.
_HALVES: Final = re.compile(
    r"(?<!\\)((?:\\\\)*)((?:\\u[dD][89abAB][0-9a-fA-F]{2})?\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89abAB][0-9a-fA-F]{2})"
)
_HALF: Final = "\uffff"  # stands for one half alone: in YAML it can only be escaped, and is no character either
_LINE: Final = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the list: what could be read of it, and its first fault; what is at fault reads as null."""

    plain: Plain = field(repr=False)
    fault: RuleError | None = None


def read_items(text: str, *, at_most: int) -> Sequence[Item]:
    """Read a list of items.

    Raises `RuleError`: `MalformedRule`, with line and column, if the text as a whole is no YAML list;
    `TooManyRules` if it has more than `at_most` items. The text is not quoted.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise malformed(f"want at most {MAX_BYTES} bytes, found {size}")
    if unreadable := _UNREADABLE.search(text):
        raise malformed(f"{_place_in(text, unreadable.start())}: this character cannot stand in YAML")
    return _ListReader(_with_whole_characters(text), at_most).items()


def _with_whole_characters(text: str) -> str:
    r"""Escape characters as YAML does (`\U0001F600`), which does not know JSON's two halves, where an escape is one."""
    if not _HALVES.search(text):
        return text
    # Only a text in double quotes has escapes; which are there is known when it is read with others of the same length.
    events = _parsed(_HALVES.sub(lambda found: found[1] + r"\u0041" * (len(found[2]) // 6), text))
    quoted = [(each.start_mark.index, each.end_mark.index) for each in events if getattr(each, "style", None) == '"']

    def join(found: re.Match[str]) -> str:
        before = bisect_right(quoted, (found.start(), len(text)))
        if not before or found.end() > quoted[before - 1][1]:
            return found[0]
        character: str = json.loads(f'"{found[2]}"')
        return f"{found[1]}\\U{ord(_HALF if _SURROGATE.search(character) else character):08X}"

    return _HALVES.sub(join, text)


def _place_in(text: str, position: int) -> str:
    ends = [found.end() for found in _LINE.finditer(text, 0, position)]
    return _place(len(ends), position - (ends[-1] if ends else 0))


def _place(line: int, column: int) -> str:
    return f"line {line + 1}, column {column + 1}"


@dataclass(frozen=True, slots=True)
class _Event:
    """One sign of the text: what it is, and where; a scalar with its text, and whether it stands without quotes."""

    sort: str
    line: int
    column: int
    text: str = ""
    is_plain: bool = False
    is_marked: bool = False  # with an anchor or a tag

    @property
    def place(self) -> str:
        return _place(self.line, self.column)


def _events(text: str) -> Iterator[_Event]:
    """Yield the signs of the text one by one, so that whoever reads them may stop before the end."""
    for event in _parsed(text):
        mark, sort = event.start_mark, type(event).__name__
        is_marked = bool(getattr(event, "anchor", None) or getattr(event, "tag", None))
        words = event.value if sort == "ScalarEvent" else ""
        yield _Event(sort, mark.line, mark.column, words, sort == "ScalarEvent" and not event.style, is_marked)


def _parsed(text: str) -> Iterator[Any]:
    import yaml  # when the first long form is met: most targets have none

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        where = f"{_place(at.line, at.column)}: " if at is not None else ""
        raise malformed(f"{where}this is not YAML; a text that holds one of []{{}},:# wants quotes") from None
    except (yaml.YAMLError, ValueError, OverflowError):
        # An escape that is no character, a version of more digits than a number may have.
        raise malformed("this is not YAML") from None


class _ListReader:
    """Reads the list from left to right, one item after the other."""

    def __init__(self, text: str, at_most: int) -> None:
        self._events = _events(text)
        self._at_most = at_most
        self._depth = 0
        self._fault: RuleError | None = None

    def items(self) -> Sequence[Item]:
        self._next()  # the stream
        if self._next().sort != "DocumentStartEvent":
            raise malformed("want a YAML list, found nothing")
        first = self._next()
        if first.sort != "SequenceStartEvent":
            raise malformed(f"{first.place}: want a YAML list, found {_describe(first)}")
        if first.is_marked:
            raise malformed(f"{first.place}: want a list without tag and anchor")
        found: list[Item] = []
        count = 0
        while (event := self._next()).sort != "SequenceEndEvent":
            count += 1
            self._fault = None
            plain = self._node(event)
            if count <= self._at_most:
                found.append(Item(plain, self._fault))
        self._next()  # the end of the document
        if (more := self._next()).sort == "DocumentStartEvent":
            raise malformed(f"{more.place}: want one YAML document")
        if count > self._at_most:
            raise RuleError(
                "TooManyRules",
                f"want at most {self._at_most} rules on one target, found {count} in a list; none is applied",
            )
        return found

    def _next(self) -> _Event:
        event = next(self._events)
        if event.sort in {"SequenceStartEvent", "MappingStartEvent"}:
            self._depth += 1
            if self._depth > MAX_NESTING:
                raise malformed(f"{event.place}: want at most {MAX_NESTING} levels of lists and maps")
        elif event.sort in {"SequenceEndEvent", "MappingEndEvent"}:
            self._depth -= 1
        return event

    def _node(self, event: _Event) -> Plain:
        if event.is_marked:
            self._fail(event, "want no tag, anchor or alias")
        if self._depth > _MAX_READ:
            self._fail(event, f"want at most {_MAX_READ} levels of lists and maps")
            self._skip(event)
            return None
        match event.sort:
            case "SequenceStartEvent":
                plain: Plain = self._list()
            case "MappingStartEvent":
                plain = self._map()
            case "ScalarEvent":
                plain = self._scalar(event)
            case _:
                plain = None
        return None if event.is_marked else plain

    def _skip(self, event: _Event) -> None:
        """Go to where a list or map ends that begins with this event."""
        level = self._depth - 1 if event.sort.endswith("StartEvent") else self._depth
        while self._depth > level:
            self._next()

    def _list(self) -> Plain:
        found: list[Plain] = []
        while (event := self._next()).sort != "SequenceEndEvent":
            found.append(self._node(event))
        return found

    def _map(self) -> Plain:
        found: dict[str, Plain] = {}
        while (event := self._next()).sort != "MappingEndEvent":
            key = self._key(event)
            value = self._node(self._next())
            if key is None:
                continue
            if key in found:
                self._fail(event, "want each key once")
                value = None
            found[key] = value
        return found

    def _key(self, event: _Event) -> str | None:
        key = self._node(event)
        if isinstance(key, str):
            return key
        self._fail(event, "want a key that is a string")
        return None

    def _scalar(self, event: _Event) -> Plain:
        text = event.text
        if event.is_plain:
            if text in _WORDS:
                return _WORDS[text]
            if _NUMBER.fullmatch(text):
                return Number(text)
            if _NO_JSON_NUMBER.fullmatch(text):
                self._fail(event, "want a number that JSON has")
                return None
        if _HALF in text:
            self._fail(event, "want no half of a character (a lone surrogate)")
            return None
        return text

    def _fail(self, event: _Event, what: str) -> None:
        if self._fault is None:
            self._fault = malformed(f"{event.place}: {what}")


def _describe(event: _Event) -> str:
    return {"MappingStartEvent": "a map", "ScalarEvent": "a text", "AliasEvent": "an alias"}.get(
        event.sort, "something else"
    )
