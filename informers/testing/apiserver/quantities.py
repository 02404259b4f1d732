"""Write quantities (`500m`, `1Gi`) in the one form that the server stores.

Source: apimachinery pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

SYNTAX_ERROR: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SPLIT: Final = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_EXPONENT: Final = re.compile(r"[eE]([-+]?[0-9]+)")
_LARGEST: Final = 2**63 - 1
_NANO: Final = 10**9


def canonical(value: str | float) -> str:
    """Give the canonical form of a quantity; raises `ValueError` with the server's text."""
    return _canonical(value if isinstance(value, str) else _print_number(value))


def amount(value: str | float) -> Fraction:
    """Give the number that a quantity stands for; raises `ValueError` with the server's text."""
    return _parse(value if isinstance(value, str) else _print_number(value))[0]


def _print_number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    number, form = _parse(text)
    if number == 0:
        return "0"
    if form == "binary" and (abs(number) < 1024 or number.denominator != 1):
        form = "decimal"
    if form == "binary":
        return _print_binary(number.numerator)
    return _print_decimal(number, with_exponent=form == "exponent")


def _parse(text: str) -> tuple[Fraction, str]:
    """Split a quantity into its number and the form it was written in: decimal, binary or exponent."""
    found = _SPLIT.fullmatch(text)
    if found is None:
        raise ValueError(SYNTAX_ERROR)
    digits, suffix = found.groups()
    if not _NUMBER.fullmatch(digits):
        raise ValueError(SYNTAX_ERROR if digits.count(".") != 1 else "unable to parse numeric part of quantity")
    number = Fraction(digits.rstrip(".") if digits.endswith(".") else digits)
    if suffix in _BINARY:
        number, form = number * 2 ** _BINARY[suffix], "binary"
    elif suffix in _DECIMAL:
        number, form = number * Fraction(10) ** _DECIMAL[suffix], "decimal"
    elif exponent := _EXPONENT.fullmatch(suffix):
        power = int(exponent[1])
        if abs(power) > 10_000:
            raise ValueError("unable to parse quantity's suffix")
        number, form = number * Fraction(10) ** power, "exponent"
    else:
        raise ValueError("unable to parse quantity's suffix")
    nanos = number * _NANO
    if nanos.denominator != 1:  # finer than the server keeps: rounded away from zero
        whole = -(-nanos.numerator // nanos.denominator) if number > 0 else nanos.numerator // nanos.denominator
        number = Fraction(whole, _NANO)
    return max(min(number, Fraction(_LARGEST)), Fraction(-_LARGEST)), form


def _print_binary(number: int) -> str:
    for suffix, power in reversed(_BINARY.items()):
        if number % 2**power == 0:
            return f"{number >> power}{suffix}"
    return str(number)


def _print_decimal(number: Fraction, *, with_exponent: bool) -> str:
    exponent = -9
    mantissa = int(number * _NANO)
    while mantissa % 1000 == 0 and exponent < 18:
        mantissa //= 1000
        exponent += 3
    if with_exponent:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"
