"""Parts of JSON are found by their place, as a parser finds them."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from informers.cache.scanning import elements, end_of_value, members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
SPACING = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])


@given(st.dictionaries(st.text(), VALUES, max_size=5), SPACING, st.booleans())
def test_members_are_those_that_a_parser_finds(value: dict[str, Any], spacing: tuple[str, str], is_ascii: bool) -> None:
    data = json.dumps(value, separators=spacing, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")

    found = {name: json.loads(data[start:end]) for name, start, end in members(data, 0)}

    assert found == value
    assert end_of_value(data, 0) == len(data)


@given(st.lists(VALUES, max_size=6), SPACING)
def test_elements_are_those_that_a_parser_finds(value: list[Any], spacing: tuple[str, str]) -> None:
    data = json.dumps(value, separators=spacing).encode()

    assert [json.loads(data[start:end]) for start, end in elements(data, 0)] == value


def test_what_is_no_array_has_no_elements() -> None:
    assert list(elements(b"null", 0)) == []
