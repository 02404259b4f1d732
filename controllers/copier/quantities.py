"""Compare Kubernetes quantities (`500m`, `2Gi`, `1e3`) by the amount that they stand for. Pure.

The API server stores one form of each amount: `2048Mi` comes back as `2Gi`.
Source: apimachinery pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from controllers.copier.values import Number, Plain

# Longer ones are no amounts of anything, and take long to compare.
_QUANTITY: Final = re.compile(
    r"(?P<digits>[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(?:[eE](?P<power>[+-]?[0-9]{1,3})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def is_same_amount(one: Plain, other: Plain) -> bool:
    """Tell whether both could be quantities, and would be of one amount."""
    amount = _amount(one)
    return amount is not None and amount == _amount(other)


def _amount(plain: Plain) -> Fraction | None:
    text = plain.text if isinstance(plain, Number) else plain
    found = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    number = Fraction(found["digits"].rstrip("."))
    if found["power"]:
        return number * Fraction(10) ** int(found["power"])
    suffix = found["suffix"] or ""
    return number * 2 ** _BINARY[suffix] if suffix in _BINARY else number * Fraction(10) ** _DECIMAL.get(suffix, 0)
