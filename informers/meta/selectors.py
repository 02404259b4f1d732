"""Label and field selectors: parse, match, print. Parsing and printing are inverse.

The grammar is the API server's (apimachinery pkg/labels/selector.go, pkg/fields/selector.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from informers.meta.errors import ConfigError

Operator = Literal["=", "!=", "in", "notin", "exists", "!", ">", "<"]

_KEY: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]{0,251}[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_WORD: Final = re.compile(r"[^\s,()=!<>]+")
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_SPACE: Final = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether `labels` meet this condition; an absent label meets `!=` and `notin`, as on the server."""
        match self.operator:
            case "exists":
                return self.key in labels
            case "!":
                return self.key not in labels
            case "=" | "in":
                return self.key in labels and labels[self.key] in self.values
            case "!=" | "notin":
                return self.key not in labels or labels[self.key] not in self.values
            case ">" | "<":
                found = labels.get(self.key, "")
                if not _NUMBER.fullmatch(found):
                    return False
                return int(found) > int(self.values[0]) if self.operator == ">" else int(found) < int(self.values[0])

    def __str__(self) -> str:
        match self.operator:
            case "exists":
                return self.key
            case "!":
                return f"!{self.key}"
            case "=" | "!=" | ">" | "<":
                return f"{self.key}{self.operator}{self.values[0]}"
            case "in" | "notin":
                return f"{self.key} {self.operator} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions on labels, all of which must hold; none selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether every condition holds."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """One condition on one field, named by its path (`metadata.name`)."""

    field: str
    operator: Literal["=", "!="]
    value: str

    def __str__(self) -> str:
        escaped = self.value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
        return f"{self.field}{self.operator}{escaped}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Conditions on fields, all of which must hold; which fields a kind knows is the server's business."""

    requirements: tuple[FieldRequirement, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Tell whether every condition holds; an absent field reads as `""`, as on the server."""
        return all((fields.get(each.field, "") == each.value) == (each.operator == "=") for each in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


def parse_labels(text: str) -> LabelSelector:
    """Read a label selector: `a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x,y)`, `a`, `!a`, `a>1`, `a<1`, with commas.

    Raises `ConfigError` with the position of the fault.
    """
    return LabelSelector(tuple(_Reader(text).requirements()))


def parse_fields(text: str) -> FieldSelector:
    r"""Read a field selector: `a=b`, `a==b`, `a!=b`, joined by commas; `\` escapes `\`, `,` and `=` in a value.

    Raises `ConfigError` with the position of the fault.
    """
    found: list[FieldRequirement] = []
    if not text.strip():
        return FieldSelector()
    position = 0
    for term in _split_terms(text):
        head = re.match(r"\s*([^\s=!,\\]+)\s*(==|!=|=)", term)
        if head is None:
            raise _fault("field selector", text, position, "FIELD=VALUE or FIELD!=VALUE")
        value = _unescape(term[head.end() :].strip(), text, position + head.end())
        found.append(FieldRequirement(head[1], "!=" if head[2] == "!=" else "=", value))
        position += len(term) + 1
    return FieldSelector(tuple(found))


class _Reader:
    """Reads a label selector from left to right and knows where it is."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def requirements(self) -> list[Requirement]:
        self._skip_space()
        if self._at_end():
            return []
        found = [self._requirement()]
        while not self._at_end():
            self._expect(",")
            found.append(self._requirement())
        return found

    def _requirement(self) -> Requirement:
        if self._take("!"):
            return Requirement(self._key(), "!")
        key = self._key()
        if self._at_end() or self._peek() == ",":
            return Requirement(key, "exists")
        for sign, operator in (("==", "="), ("!=", "!="), ("=", "=")):
            if self._take(sign):
                return Requirement(key, "!=" if operator == "!=" else "=", (self._value(),))
        for sign in (">", "<"):
            if self._take(sign):
                return Requirement(key, ">" if sign == ">" else "<", (self._number(),))
        start = self.position
        word = self._word()
        if word not in {"in", "notin"}:
            raise _fault("label selector", self.text, start, "one of =, ==, !=, in, notin, >, <")
        return Requirement(key, "in" if word == "in" else "notin", self._value_list())

    def _value_list(self) -> tuple[str, ...]:
        self._expect("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._expect(")")
        return tuple(sorted(set(values)))

    def _key(self) -> str:
        start = self.position
        word = self._word()
        if not _KEY.fullmatch(word):
            raise _fault("label selector", self.text, start, "a label key")
        return word

    def _value(self) -> str:
        start = self.position
        word = self._word()
        if not _VALUE.fullmatch(word):
            raise _fault(
                "label selector", self.text, start, "a label value of at most 63 letters, digits, '-', '_', '.'"
            )
        return word

    def _number(self) -> str:
        start = self.position
        word = self._word()
        if not _NUMBER.fullmatch(word):
            raise _fault("label selector", self.text, start, "a whole number")
        return word

    def _word(self) -> str:
        self._skip_space()
        found = _WORD.match(self.text, self.position)
        if found is None:
            return ""
        self.position = found.end()
        self._skip_space()
        return found[0]

    def _take(self, sign: str) -> bool:
        self._skip_space()
        if not self.text.startswith(sign, self.position):
            return False
        self.position += len(sign)
        self._skip_space()
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise _fault("label selector", self.text, self.position, repr(sign))

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _at_end(self) -> bool:
        return self.position >= len(self.text)

    def _skip_space(self) -> None:
        found = _SPACE.match(self.text, self.position)
        self.position = found.end() if found else self.position


def _split_terms(text: str) -> list[str]:
    """Split at commas that are not escaped."""
    terms, start, escaped = [], 0, False
    for position, char in enumerate(text):
        if char == "," and not escaped:
            terms.append(text[start:position])
            start = position + 1
        escaped = char == "\\" and not escaped
    return [*terms, text[start:]]


def _unescape(value: str, text: str, position: int) -> str:
    out: list[str] = []
    chars = iter(enumerate(value))
    for offset, char in chars:
        if char == "\\":
            following = next(chars, None)
            if following is None or following[1] not in "\\,=":
                raise _fault("field selector", text, position + offset, r"\\, \, or \= after a backslash")
            out.append(following[1])
        elif char == "=":
            raise _fault("field selector", text, position + offset, r"\= for an equals sign inside a value")
        else:
            out.append(char)
    return "".join(out)


def _fault(what: str, text: str, position: int, wanted: str) -> ConfigError:
    found = repr(text[position : position + 20]) if position < len(text) else "the end"
    return ConfigError(f"{what} {text!r}: want {wanted} at position {position}, found {found}")
