"""Change a value between reading and writing: leave parts out, decode, give it another type, encode. Pure.

Nothing is converted unasked. Errors name types and what was wanted, never the value.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Final

from controllers.copier.paths import Key, Path, Place, Selector, locate, take
from controllers.copier.problems import RuleError
from controllers.copier.rules import As, Conversion
from controllers.copier.values import Number, Plain, check_size, copy, decode_base64, describe, encode, parse_constant

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_WANTED: Final[Mapping[As, str]] = {
    As.STRING: "a string, number or boolean",
    As.INTEGER: "an integer, or a string that says one",
    As.NUMBER: "a number, or a string that says one",
    As.BOOLEAN: "a boolean, or true or false as a string",
    As.VALUE: "a string of JSON",
}


def convert(plain: Plain, conversion: Conversion) -> Plain:
    """Return the value as the rule wants it written.

    Raises `RuleError` (`TypeMismatch`, `DecodeFailed`, `TooLarge`).
    """
    if conversion.excepts:
        plain = _without(plain, conversion.excepts)
    if conversion.decode:
        plain = _decoded(plain)
    if conversion.to_type is not None:
        plain = _with_type(plain, conversion.to_type)
    if conversion.encode:
        plain = _encoded(plain)
    check_size(plain, too_deep="TypeMismatch")
    return plain


def _without(plain: Plain, excepts: Iterable[Path]) -> Plain:
    """Leave out what is excepted; what is not there is not missed."""
    around: dict[str, Plain] = {"": copy(plain)}
    # Elements of lists last, the inmost first, so that the numbers of the others stay right for what is in them.
    for place in sorted((locate(plain, path) for path in excepts), key=lambda place: (_is_element(place), -len(place))):
        take(around, (Key(""), *place))
    return around[""]


def _is_element(place: Place) -> bool:
    return isinstance(place[-1], Selector)


def _decoded(plain: Plain) -> str:
    if not isinstance(plain, str):
        raise RuleError("TypeMismatch", f"decode: want a string, found {describe(plain)}")
    raw = decode_base64(plain)
    if raw is None:
        raise RuleError("DecodeFailed", "decode: want base64 in the standard alphabet with padding")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise RuleError(
            "DecodeFailed", "decode: the bytes are not UTF-8; copy them to binaryData of a ConfigMap, without decoding"
        ) from None


def _encoded(plain: Plain) -> str:
    if not isinstance(plain, str):
        raise RuleError("TypeMismatch", f"encode: want a string, found {describe(plain)}")
    return base64.b64encode(plain.encode()).decode()


def _with_type(plain: Plain, to_type: As) -> Plain:
    match to_type, plain:
        case (As.STRING, str()) | (As.BOOLEAN, bool()) | (As.NUMBER, Number()):
            return plain
        case As.STRING, Number(text):
            return text
        case As.STRING, bool():
            return "true" if plain else "false"
        case As.INTEGER, Number() if plain.is_integer:
            return plain
        case As.INTEGER, str() if _INTEGER.fullmatch(plain):
            return Number(plain)
        case As.NUMBER, str() if _NUMBER.fullmatch(plain):
            return Number(plain)
        case As.BOOLEAN, str() if plain in _BOOLEANS:
            return _BOOLEANS[plain]
        case As.JSON, _:
            return encode(plain).decode()
        case As.VALUE, str():
            return _parsed(plain)
    raise RuleError("TypeMismatch", f"as: {to_type}: want {_WANTED[to_type]}, found {describe(plain)}")


def _parsed(text: str) -> Plain:
    try:
        return parse_constant(text).plain
    except RuleError as error:
        if error.reason == "MalformedRule":
            raise RuleError("TypeMismatch", f"as: value: {error.text}") from None
        raise
