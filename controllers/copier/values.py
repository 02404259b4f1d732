"""Copied values: JSON whose numbers keep their text, equality that minds types, and a wrapper that hides them.

Inside this package a JSON document is made of `dict`, `list`, `str`, `bool`, `None` and `Number`. A `Number` is
the text that stood in the document, so `0.1`, `1e3` and integers of any size arrive as they were, and `true` can
never be taken for `1`. What surprises: no Python `int` or `float` occurs.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NoReturn, TypeAlias

import msgspec

from controllers.copier.problems import RuleError, malformed

MAX_DEPTH: Final = 64
MAX_BYTES: Final = 1024 * 1024

_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")

# Keys that deployment tools use to find what they deployed: copying them would make the copy look theirs.
_TRACKING_KEYS: Final = frozenset({"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"})
_TRACKING_PREFIXES: Final = (
    "argocd.argoproj.io/",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "fluxcd.io/",
    "flux.weave.works/",
)


class Number:
    """A JSON number, as the text it was written with. Equality here is of texts; `equal` compares values."""

    # Not a dataclass: the encoder would take one for a map instead of asking how to write it.
    __match_args__ = ("text",)
    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text: Final = text

    @property
    def is_integer(self) -> bool:
        """Tell whether it is written without fraction and exponent."""
        return not any(char in self.text for char in ".eE")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return "<number>"


Plain: TypeAlias = "bool | str | Number | list[Plain] | dict[str, Plain] | None"


class Value:
    """A value on its way from source to target; printing it, in any way, shows its type only."""

    __slots__ = ("plain",)

    def __init__(self, plain: Plain) -> None:
        self.plain = plain

    def __repr__(self) -> str:
        return f"<{describe(self.plain)}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and equal(self.plain, other.plain)

    __hash__ = None  # type: ignore[assignment]  # equality goes into lists and maps; hashing would have to as well

    def __reduce__(self) -> NoReturn:
        raise TypeError("a copied value is not pickled")


def describe(plain: Plain) -> str:
    """Name the type of a value: `string`, `integer`, `number`, `boolean`, `null`, `map(3 keys)`, `list(2 items)`."""
    match plain:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case Number():
            return "integer" if plain.is_integer else "number"
        case dict():
            return f"map({len(plain)} {'key' if len(plain) == 1 else 'keys'})"
        case list():
            return f"list({len(plain)} {'item' if len(plain) == 1 else 'items'})"


def equal(one: Plain, other: Plain) -> bool:
    """Compare two values with their types: `true` is not `1`, `1` is not `1.0`, null is not an absent key."""
    match one, other:
        case (dict(), dict()):
            return len(one) == len(other) and all(key in other and equal(one[key], other[key]) for key in one)
        case (list(), list()):
            return len(one) == len(other) and all(map(equal, one, other))
        case (Number(), Number()):
            return _equal_numbers(one, other)
        case _:
            return type(one) is type(other) and one == other


def _equal_numbers(one: Number, other: Number) -> bool:
    if one.text == other.text:
        return True
    if one.is_integer != other.is_integer:
        return False
    if one.is_integer:
        # JSON integers have no leading zeros: but for the sign of zero, equal values have equal texts.
        return {one.text, other.text} == {"0", "-0"}
    return float(one.text) == float(other.text)


def copy(plain: Plain) -> Plain:
    """Return a copy that shares no map and no list."""
    match plain:
        case dict():
            return {key: copy(item) for key, item in plain.items()}
        case list():
            return [copy(item) for item in plain]
        case _:
            return plain


def decode(raw: bytes) -> dict[str, Plain]:
    """Read an object as a cache holds it, numbers as `Number`.

    Raises `RuleError` (`TypeMismatch`) if it is nested too deep to be looked at.
    """
    try:
        found = json.loads(raw, parse_int=Number, parse_float=Number)
    except RecursionError:
        raise RuleError("TypeMismatch", "the object is nested too deep to be read") from None
    if not isinstance(found, dict):
        raise TypeError("an API object is a JSON map")
    return found


def encode(plain: Plain) -> bytes:
    """Write compact JSON, numbers with the text they came with."""
    return msgspec.json.encode(plain, enc_hook=_raw_number)


def _raw_number(number: object) -> msgspec.Raw:
    if isinstance(number, Number):
        return msgspec.Raw(number.text.encode())
    raise TypeError("want a JSON value")


def has_null(plain: Plain) -> bool:
    """Tell whether null occurs anywhere inside, where a merge patch would take it for a deletion."""
    # RFC 7396 leaves lists alone; the API server's merge (evanphx/json-patch) takes nulls out of maps inside of them.
    if isinstance(plain, dict | list):
        return any(map(has_null, plain.values() if isinstance(plain, dict) else plain))
    return plain is None


def check_size(plain: Plain, *, too_deep: str) -> None:
    """Raise `RuleError` when a value is larger than may be copied; `too_deep` is the reason for depth."""
    if _is_deeper(plain, MAX_DEPTH):
        raise RuleError(too_deep, f"the value is nested deeper than {MAX_DEPTH}")
    if len(encode(plain)) > MAX_BYTES:
        raise RuleError("TooLarge", f"the value is larger than {MAX_BYTES} bytes of JSON")


def _is_deeper(plain: Plain, limit: int) -> bool:
    if isinstance(plain, dict | list):
        inner: Iterator[Plain] = iter(plain.values() if isinstance(plain, dict) else plain)
        return limit == 0 or any(_is_deeper(item, limit - 1) for item in inner)
    return False


def is_tracking_key(key: str) -> bool:
    """Tell whether a label is one by which a deployment tool finds its own objects."""
    return key in _TRACKING_KEYS or key.startswith(_TRACKING_PREFIXES)


def without_tracking(labels: Plain) -> Plain:
    """Leave out deployment tools' tracking keys of a copied map of labels."""
    if not isinstance(labels, dict):
        return labels
    return {key: value for key, value in labels.items() if not is_tracking_key(key)}


def with_own_tracking(labels: Plain, own: Plain) -> Plain:
    """Add the tracking keys that the target has and the new map of labels does not name."""
    if not isinstance(labels, dict) or not isinstance(own, dict):
        return labels
    kept = {key: value for key, value in own.items() if is_tracking_key(key) and key not in labels}
    return {**labels, **kept}


def check_string_map_entry(plain: Plain, where: str, *, as_base64: bool) -> None:
    """Raise `RuleError` unless `plain` may stand in a map of strings (`where`), or of base64 strings."""
    if plain is None:
        raise RuleError(
            "TypeMismatch", f"{where}: want a string, found null; to remove a key, write op: remove in rules"
        )
    if not isinstance(plain, str):
        raise RuleError("TypeMismatch", f"{where}: want a string, found {describe(plain)}")
    if as_base64 and not is_base64(plain):
        raise RuleError("TypeMismatch", f"{where}: want a base64 string, found a string that is not base64")


def is_base64(text: str) -> bool:
    """Tell whether a text is base64 as the API server takes it: standard alphabet, padding, line breaks ignored."""
    return decode_base64(text) is not None


def decode_base64(text: str) -> bytes | None:
    """Return the bytes that a base64 text stands for, None if it is none."""
    joined = text.replace("\n", "").replace("\r", "")
    # The decoder alone takes more padding than there may be.
    return base64.b64decode(joined) if _BASE64.fullmatch(joined) else None


# --- strict JSON -------------------------------------------------------------------------------------------------

_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}
_WORD: Final = re.compile(r"[A-Za-z]+")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def parse_constant(text: str) -> Value:
    """Read strict JSON: no NaN, no Infinity, no repeated keys, no lone surrogates, nothing after the value.

    Raises `RuleError` (`MalformedRule`, `TooLarge`) that says where and what kind of fault, and quotes nothing.
    """
    plain = _StrictReader(text).read()
    check_size(plain, too_deep="MalformedRule")
    return Value(plain)


class _StrictReader:
    """Reads JSON from left to right and knows where it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Plain:
        if not self._text.strip(" \t\n\r"):
            raise self._fault("want a JSON value, found nothing")
        value = self._value(MAX_DEPTH)
        self._skip_blanks()
        if self._at < len(self._text):
            raise self._fault("want nothing after the JSON value")
        return value

    def _value(self, depth: int) -> Plain:
        self._skip_blanks()
        char = self._text[self._at : self._at + 1]
        if char in {"{", "["}:
            if depth == 0:
                raise self._fault(f"want at most {MAX_DEPTH} levels")
            return self._map(depth - 1) if char == "{" else self._list(depth - 1)
        if char == '"':
            return self._string()
        if word := _WORD.match(self._text, self._at):
            if word[0] not in _WORDS:
                raise self._fault("want a JSON value, found a word that is none of true, false, null")
            self._at = word.end()
            return _WORDS[word[0]]
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            return Number(number[0])
        raise self._fault("want a JSON value")

    def _map(self, depth: int) -> Plain:
        found: dict[str, Plain] = {}

        def read_entry() -> None:
            self._skip_blanks()
            start = self._at
            key = self._string()
            if key in found:
                self._at = start
                raise self._fault("want each key once")
            self._expect(":")
            found[key] = self._value(depth)

        self._entries("}", read_entry)
        return found

    def _list(self, depth: int) -> Plain:
        found: list[Plain] = []
        self._entries("]", lambda: found.append(self._value(depth)))
        return found

    def _entries(self, closing: str, read_entry: Callable[[], None]) -> None:
        self._at += 1
        if self._take(closing):
            return
        while True:
            read_entry()
            if self._take(closing):
                return
            self._expect(",")

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise self._fault("want a JSON string")
        text = str(json.loads(found[0]))
        if _SURROGATE.search(text):
            raise self._fault("want a JSON string without half a character (a lone surrogate)")
        self._at = found.end()
        return text

    def _take(self, sign: str) -> bool:
        self._skip_blanks()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._fault(f"want {sign!r}")

    def _skip_blanks(self) -> None:
        found = _BLANKS.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _fault(self, what: str) -> RuleError:
        return malformed(f"JSON at position {self._at}: {what}")
