from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from informers.meta.errors import ConfigError
from informers.meta.selectors import (
    FieldRequirement,
    FieldSelector,
    LabelSelector,
    Operator,
    Requirement,
    parse_fields,
    parse_labels,
)

NAME = st.from_regex(r"[a-z0-9]([-a-z0-9_.]{0,8}[a-z0-9])?", fullmatch=True)
KEY = st.one_of(NAME, st.builds("{}/{}".format, st.from_regex(r"[a-z0-9]{1,5}(\.[a-z]{1,3})?", fullmatch=True), NAME))
VALUE = NAME | st.just("")


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    operator: Operator = draw(st.sampled_from(("=", "!=", "in", "notin", "exists", "!", ">", "<")))
    values: tuple[str, ...] = ()
    if operator in {"=", "!="}:
        values = (draw(VALUE),)
    elif operator in {">", "<"}:
        values = (str(draw(st.integers(-99, 99))),)
    elif operator in {"in", "notin"}:
        values = tuple(sorted(draw(st.sets(VALUE, min_size=1, max_size=3))))
    return Requirement(draw(KEY), operator, values)


LABELS = st.lists(requirements(), max_size=4).map(lambda found: LabelSelector(tuple(found)))
FIELDS = st.lists(
    st.builds(
        FieldRequirement,
        st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5})?", fullmatch=True),
        st.sampled_from(("=", "!=")),
        st.text(alphabet="abc,=\\!.1 x", max_size=6).map(str.strip),
    ),
    max_size=3,
).map(lambda found: FieldSelector(tuple(found)))


@given(LABELS)
def test_label_selectors_parse_as_they_print(selector: LabelSelector) -> None:
    assert parse_labels(str(selector)) == selector


@given(FIELDS)
@example(FieldSelector((FieldRequirement("a", "=", "\\"), FieldRequirement("b", "!=", ",=\\,"))))
def test_field_selectors_parse_as_they_print(selector: FieldSelector) -> None:
    assert parse_fields(str(selector)) == selector


@given(st.text(max_size=30) | st.text(alphabet="a=!,()in notx./- \\", max_size=20))
def test_any_text_is_a_selector_or_a_config_error(text: str) -> None:
    for parse in (parse_labels, parse_fields):
        with suppress(ConfigError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (b,c)", {"a": "c"}, True),
        ("a in (b,c)", {}, False),
        ("a notin (b,c)", {}, True),
        ("a notin (b, c)", {"a": "b"}, False),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("! a", {}, True),
        ("a=", {"a": ""}, True),
        ("a,b=c,!d", {"a": "1", "b": "c"}, True),
        ("a,b=c,!d", {"a": "1", "b": "c", "d": ""}, False),
        ("example.com/role in (x)", {"example.com/role": "x"}, True),
        ("a>1", {"a": "2"}, True),
        ("a>1", {"a": "1"}, False),
        ("a < 10", {"a": "9"}, True),
        ("a<1", {"a": "x"}, False),
        ("a>-1", {}, False),
        ("in", {"in": "1"}, True),
        ("notin notin (in)", {"notin": "x"}, True),
    ],
)
def test_labels_match_as_on_the_server(text: str, labels: Mapping[str, str], expected: bool) -> None:
    assert parse_labels(text).matches(labels) is expected


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a=b,", 4),
        (",a", 0),
        ("a in b", 5),
        ("a in (b", 7),
        ("a b", 2),
        ("-a=b", 0),
        ("a=b c", 4),
        ("a=" + "x" * 64, 2),
        ("a in ()x", 7),
        ("a>b", 2),
        ("a<", 2),
    ],
)
def test_a_malformed_label_selector_says_where(text: str, position: int) -> None:
    with pytest.raises(ConfigError, match=f"at position {position}, found"):
        parse_labels(text)


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("", {"metadata.name": "x"}, True),
        ("metadata.name=x", {"metadata.name": "x"}, True),
        ("metadata.name==x,type!=Opaque", {"metadata.name": "x", "type": "Opaque"}, False),
        ("type!=Opaque", {}, True),
        (r"a=b\,c", {"a": "b,c"}, True),
    ],
)
def test_fields_match_as_on_the_server(text: str, fields: Mapping[str, str], expected: bool) -> None:
    assert parse_fields(text).matches(fields) is expected


@pytest.mark.parametrize("text", ["a", "=b", "a=b,", "a=b=c", "a=b\\", "a>b"])
def test_a_malformed_field_selector_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="field selector"):
        parse_fields(text)
