"""Find the parts of JSON by their place, however deep it is nested; slower than decoding.

Of valid JSON only: of anything else some parts are found, or `ValueError` is raised.

The decoder goes down as deep as Python's recursion limit, a server's encoder ten times as deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

SPACES: Final = frozenset({b" ", b"\t", b"\r", b"\n"})
# A string, or a bracket; what stands between two of them cannot begin or end a value that holds others.
_STRING: Final = rb'"(?:[^"\\]|\\.)*"'
_STRUCTURE: Final = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_SCALAR: Final = re.compile(_STRING + rb"|[^\s,\]}]+", re.DOTALL)
_decode_string: Final = msgspec.json.Decoder(str).decode


def members(data: bytes, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of the value of each member of the object that begins at `start`; valid JSON only."""
    position = skip_space(data, skip_space(data, start) + 1)
    while data[position : position + 1] == b'"':
        name_end = _end_of_scalar(data, position)
        value = skip_space(data, skip_space(data, name_end) + 1)
        end = end_of_value(data, value)
        yield _decode_string(data[position:name_end]), value, end
        position = skip_space(data, skip_space(data, end) + 1)


def elements(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each element of the array that begins at `start`; nothing if no array does."""
    if data[start : start + 1] != b"[":
        return
    position = skip_space(data, start + 1)
    while data[position : position + 1] not in {b"]", b""}:
        end = end_of_value(data, position)
        yield position, end
        position = skip_space(data, end)
        if data[position : position + 1] == b",":
            position = skip_space(data, position + 1)


def end_of_value(data: bytes, start: int) -> int:
    """Return where the value that begins at `start` ends."""
    if data[start : start + 1] not in {b"{", b"["}:
        return _end_of_scalar(data, start)
    depth = 0
    for token in _STRUCTURE.finditer(data, start):
        if token[0] in {b"{", b"["}:
            depth += 1
        elif token[0] in {b"}", b"]"}:
            depth -= 1
            if depth == 0:
                return token.end()
    msg = "the JSON ends inside a value"
    raise ValueError(msg)


def _end_of_scalar(data: bytes, start: int) -> int:
    scalar = _SCALAR.match(data, start)
    if scalar is None:
        msg = "the JSON ends where a value should be"
        raise ValueError(msg)
    return scalar.end()


def skip_space(data: bytes, position: int) -> int:
    """Return the first place from `position` on that is no white space."""
    while data[position : position + 1] in SPACES:
        position += 1
    return position
