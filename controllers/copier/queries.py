"""Say where in a source a value is: by a path, or else by a JMESPath expression. Pure.

JMESPath sees the source without its managed fields and its last applied configuration, and has the standard
functions. What surprises: whoever may annotate a target may write any expression, so what one may cost is bounded;
and nothing the library says is passed on, as it quotes values. A number that is only passed along keeps its text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import jmespath
from jmespath import exceptions, functions, lexer, visitor

from controllers.copier.paths import Key, NoPathError, Path, foreign_hint, parse_path
from controllers.copier.problems import RuleError, malformed
from controllers.copier.values import MAX_BYTES, MAX_DEPTH, Number, Plain, encode, without_tracking

MAX_TEXT: Final = 4096
# Expressions in expressions: what walks through them takes some frames of the stack for each.
MAX_LEVELS: Final = 100
# A step is one part of an expression for one element, or 64 characters of text: far more than a look-up takes.
MAX_STEPS: Final = 250_000

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERAL: Final = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_MAX_DIGITS: Final = 1000
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_WORD: Final = re.compile(r"[a-z_]{1,32}")

# What the library hands around: values as `json` reads them, and what `&name` gives. It is checked when it comes out.
_Data: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Query:
    """A JMESPath expression; equal texts are equal queries."""

    text: str = field(repr=False)
    prefix: Path | None = field(compare=False)  # nothing outside of this is read; None: anything may be
    _parsed: jmespath.parser.ParsedResult = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def search(self, document: Mapping[str, Plain]) -> Plain:
        """Evaluate the expression on a source; null where it finds nothing.

        Raises `RuleError` (`JMESPathFailed`, `TypeMismatch`, `TooLarge`) with the sort of fault, and no value.
        """
        budget = _Budget(MAX_STEPS)
        try:
            data = _data(_visible(document))
            found = _Interpreter(budget).visit(self._parsed.parsed, data)
            plain = _plain(found, _Budget(MAX_BYTES))
            return without_tracking(plain) if _are_labels(found, data) else plain
        except _FaultError as fault:
            raise RuleError("JMESPathFailed", fault.text) from None
        except RecursionError:
            raise RuleError("JMESPathFailed", "the expression, or what it is applied to, is nested too deep") from None


def parse_source_path(text: str) -> Path | Query:
    """Read a path; what is none is compiled as JMESPath.

    Raises `RuleError` (`MalformedRule`), for what is neither with the position of the one that came further.
    """
    try:
        return parse_path(text)
    except NoPathError as error:
        no_path = error
    if len(text) > MAX_TEXT:
        raise malformed(f"path: want at most {MAX_TEXT} characters of JMESPath, found {len(text)}")
    try:
        _check_literals(text)
        parsed = jmespath.compile(text)
    except (exceptions.JMESPathError, RecursionError, ValueError, Warning) as error:
        position = getattr(error, "lex_position", 0)
        if position > no_path.position:
            hint = foreign_hint(text)
            raise malformed(f"path at position {position}: it is neither plain nor JMESPath{hint}") from None
        raise malformed(f"{no_path.text}; it is not JMESPath either") from None
    called = [node["value"] for node in _nodes_of(parsed.parsed) if node["type"] == "function_expression"]
    for name in called:
        if name not in _Functions.FUNCTION_TABLE:
            which = name if _WORD.fullmatch(name) else "a function"
            raise malformed(f"path: {which} is none of JMESPath's functions")
    fields, _ = _leading_fields(parsed.parsed)
    return Query(text, Path(tuple(map(Key, fields))) if fields else None, parsed)


def _check_literals(text: str) -> None:
    """Raise `LexerError` for a literal that is no JSON, which the library takes for text and warns of."""
    for token in lexer.Lexer().tokenize(text):
        if token["type"] == "literal" and (literal := _LITERAL.match(text, token["start"])):
            try:
                json.loads(literal[1].replace("\\`", "`"))
            except ValueError:
                raise exceptions.LexerError(token["start"], "", "want JSON") from None


def _nodes_of(root: _Data) -> Iterator[_Data]:
    """Yield the parts of an expression. Raises `RuleError` if they are nested too deep; that does not depend on the stack."""
    pending = [(root, 1)]
    while pending:
        node, level = pending.pop()
        if level > MAX_LEVELS:
            raise malformed(f"path: want at most {MAX_LEVELS} levels of JMESPath")
        yield node
        # The children of a slice are numbers.
        pending.extend((child, level + 1) for child in node["children"] if isinstance(child, dict))


def _leading_fields(node: _Data) -> tuple[Sequence[str], bool]:
    """Name the fields that an expression steps through first, and tell whether that is all it does."""
    match node["type"]:
        case "field":
            return [node["value"]], True
        case "current" | "identity":
            return [], True
        case "subexpression" | "index_expression" | "pipe":
            found: list[str] = []
            for child in node["children"]:
                fields, is_all = _leading_fields(child)
                found += fields
                if not is_all:
                    return found, False
            return found, True
        case "projection" | "filter_projection" | "value_projection" | "flatten":
            return _leading_fields(node["children"][0])[0], False
        case _:
            return [], False


# --- in and out --------------------------------------------------------------------------------------------------


class _Integer(int):
    """An integer that knows the text it was read from; the library tells types by their names."""

    text: str


class _Float(float):
    text: str


_Integer.__name__ = "int"
_Float.__name__ = "float"


def _visible(document: Mapping[str, Plain]) -> Mapping[str, Plain]:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return document
    metadata = {key: value for key, value in metadata.items() if key != "managedFields"}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return {**document, "metadata": metadata}


def _are_labels(found: _Data, data: _Data) -> bool:
    """Tell whether these are all labels as they are, by whatever way they were reached, not a map that names some."""
    metadata = data.get("metadata")
    return isinstance(found, dict) and isinstance(metadata, dict) and found is metadata.get("labels")


def _data(plain: object) -> _Data:
    match plain:
        case Number(text):
            return _number(text)
        case Mapping():
            return {key: _data(value) for key, value in plain.items()}
        case list():
            return [_data(value) for value in plain]
        case _:
            return plain


def _number(text: str) -> _Integer | _Float:
    is_integer = not any(char in text for char in ".eE") and len(text) <= _MAX_DIGITS
    number = _Integer(text) if is_integer else _Float(text)
    number.text = text
    return number


def _plain(data: _Data, budget: _Budget) -> Plain:
    """Turn a result into what can be copied, as long as it is not larger than that."""
    room = MAX_BYTES

    def walk(data: _Data, depth: int) -> Plain:
        nonlocal room
        budget.spend(1)
        room -= 1 + (len(data) if isinstance(data, str) else 0)
        if room < 0:
            raise RuleError("TooLarge", f"the value is larger than {MAX_BYTES} bytes of JSON")
        match data:
            case None | bool():
                return data
            case str():
                if _SURROGATE.search(data):
                    raise _FaultError("the result has half a character (a lone surrogate) in it")
                return data
            case int() | float():
                return _as_number(data)
            case list() | dict() if depth == 0:
                raise RuleError("TypeMismatch", f"the value is nested deeper than {MAX_DEPTH}")
            case list():
                return [walk(each, depth - 1) for each in data]
            case dict():
                return {str(walk(key, depth)): walk(each, depth - 1) for key, each in data.items()}
            case _:
                raise _FaultError("the result is an expression, not a value")

    return walk(data, MAX_DEPTH)


def _as_number(data: _Data) -> Number:
    if isinstance(data, _Integer | _Float):
        return Number(data.text)
    if isinstance(data, float) and not math.isfinite(data):
        raise _FaultError("the result has a number in it that JSON does not know")
    try:
        return Number(repr(data))
    except ValueError:
        raise _FaultError("the result has an integer of too many digits in it") from None


# --- evaluation --------------------------------------------------------------------------------------------------


class _FaultError(Exception):
    """What went wrong in an evaluation, in words of ours."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _Budget:
    """How many more steps an evaluation may take."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _FaultError(f"the expression takes more than {self._limit} steps")


def _size(data: _Data) -> int:
    """The steps it takes to look at a value, not at what is in it."""
    return len(data) >> 6 if isinstance(data, str) else len(data) if isinstance(data, list | dict) else 0


class _Interpreter(visitor.TreeInterpreter):
    """Evaluates an expression step by step, as long as the budget lasts."""

    def __init__(self, budget: _Budget) -> None:
        super().__init__(visitor.Options(custom_functions=_Functions(budget)))
        self._budget = budget

    def visit(self, node: _Data, *args: _Data, **kwargs: _Data) -> _Data:
        self._budget.spend(1)
        found = super().visit(node, *args, **kwargs)
        if isinstance(found, str):
            self._budget.spend(_size(found))
        return found

    def visit_comparator(self, node: _Data, value: _Data) -> _Data:
        """Compare as the specification says; the library takes nested `true` for 1, and does not end for all values."""
        one, other = (self.visit(child, value) for child in node["children"])
        match node["value"]:
            case "eq":
                return _are_equal(one, other, self._budget)
            case "ne":
                return not _are_equal(one, other, self._budget)
            case order:
                both_numbers = _is_number(one) and _is_number(other)
                both_texts = isinstance(one, str) and isinstance(other, str)
                return self.COMPARATOR_FUNC[order](one, other) if both_numbers or both_texts else None

    def visit_flatten(self, node: _Data, value: _Data) -> _Data:
        """Flatten a list; what it will hold is paid for before it is made."""
        base = self.visit(node["children"][0], value)
        if not isinstance(base, list):
            return None
        self._budget.spend(sum(len(each) if isinstance(each, list) else 1 for each in base))
        return [inner for each in base for inner in (each if isinstance(each, list) else [each])]


def _is_number(data: _Data) -> bool:
    return not isinstance(data, bool) and isinstance(data, int | float)


def _are_equal(one: _Data, other: _Data, budget: _Budget) -> bool:
    budget.spend(1)
    match one, other:
        case (dict(), dict()):
            return len(one) == len(other) and all(
                key in other and _are_equal(value, other[key], budget) for key, value in one.items()
            )
        case (list(), list()):
            return len(one) == len(other) and all(
                _are_equal(left, right, budget) for left, right in zip(one, other, strict=True)
            )
        case _:
            if _is_number(one) and _is_number(other):
                return bool(one == other)
            return type(one) is type(other) and bool(one == other)


class _Functions(functions.Functions):
    """The standard functions; each call is paid for by the size of what it is given, before it is made."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget

    def call_function(self, function_name: str, resolved_args: _Data) -> _Data:
        """Call a function. Raises `_FaultError` that names it and says what sort of fault there is."""
        for each in resolved_args:
            self._budget.spend(_size(each) + (sum(map(_size, each)) if isinstance(each, list) else 0))
        try:
            return super().call_function(function_name, resolved_args)
        except exceptions.JMESPathTypeError as error:
            wanted = " or ".join(error.expected_types)
            raise _FaultError(f"{function_name}(): invalid type, want {wanted}, found {error.actual_type}") from None
        except exceptions.ArityError as error:
            raise _FaultError(
                f"{function_name}(): invalid number of arguments, want {error.expected_arity}, "
                f"found {error.actual_arity}"
            ) from None
        except (TypeError, ValueError, ArithmeticError):
            # Texts among numbers, the ceiling of infinity, more digits than an integer may have.
            raise _FaultError(f"{function_name}(): invalid value") from None

    @functions.signature({"types": ["string"]}, {"types": ["array-string"]})
    def _func_join(self, separator: str, array: Sequence[str]) -> str:
        self._budget.spend(len(separator) * len(array) >> 6)
        return separator.join(array)

    @functions.signature({"types": ["array", "string"]}, {"types": []})
    def _func_contains(self, subject: _Data, search: _Data) -> bool:
        if isinstance(subject, str):
            return isinstance(search, str) and search in subject
        return any(_are_equal(each, search, self._budget) for each in subject)

    @functions.signature({"types": []})
    def _func_to_string(self, data: _Data) -> str:
        """Write JSON, numbers with their own text; the library writes the address of an expression."""
        return data if isinstance(data, str) else encode(_plain(data, self._budget)).decode()

    @functions.signature({"types": []})
    def _func_to_number(self, data: _Data) -> _Data:
        """Read JSON's numbers; the library takes `1_000`, `inf` and digits of all scripts for numbers."""
        if _is_number(data):
            return data
        return _number(data) if isinstance(data, str) and _NUMBER.fullmatch(data) else None
