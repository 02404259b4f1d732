"""Nothing is converted unasked; what is asked for happens in one order, or the rule says why not."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.conversions import convert
from controllers.copier.paths import parse_path
from controllers.copier.problems import RuleError
from controllers.copier.rules import As, Conversion
from controllers.copier.values import MAX_BYTES, Number, Plain, copy, encode, equal, parse_constant

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str), st.sampled_from(["-0", "0.10", "1e3", "1E+2", "-0.0"])
).map(Number)
values: st.SearchStrategy[Plain] = st.recursive(
    st.one_of(st.none(), st.booleans(), texts, numbers),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


def converted(text: str, **options: object) -> str:
    conversion = Conversion(**options)  # type: ignore[arg-type]  # options by their names
    return encode(convert(parse_constant(text).plain, conversion)).decode()


def refused(text: str, **options: object) -> RuleError:
    with pytest.raises(RuleError) as caught:
        converted(text, **options)
    assert "hunter2" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("to_type", "given_", "result"),
    [
        (As.STRING, '"x"', '"x"'),
        (As.STRING, "1.50", '"1.50"'),
        (As.STRING, "-0", '"-0"'),
        (As.STRING, "true", '"true"'),
        (As.STRING, "false", '"false"'),
        (As.INTEGER, "7", "7"),
        (As.INTEGER, '"-7"', "-7"),
        (As.INTEGER, '"123456789012345678901234567890"', "123456789012345678901234567890"),
        (As.NUMBER, "1.50", "1.50"),
        (As.NUMBER, '"1e3"', "1e3"),
        (As.NUMBER, '"-0.1"', "-0.1"),
        (As.BOOLEAN, "false", "false"),
        (As.BOOLEAN, '"true"', "true"),
        (As.BOOLEAN, '"false"', "false"),
        (As.JSON, '{"b": [1.50, null], "a": "x"}', r'"{\"b\":[1.50,null],\"a\":\"x\"}"'),
        (As.JSON, "null", '"null"'),
        (As.JSON, '"x"', r'"\"x\""'),
        (As.VALUE, r'" {\"b\": 1.50, \"a\": null} "', '{"b":1.50,"a":null}'),
        (As.VALUE, '"7"', "7"),
        (As.VALUE, '"null"', "null"),
    ],
)
def test_a_type_is_given_to_what_can_have_it(to_type: As, given_: str, result: str) -> None:
    assert converted(given_, to_type=to_type) == result


@pytest.mark.parametrize(
    ("to_type", "given_"),
    [
        *((As.STRING, each) for each in ("null", "{}", "[]")),
        *(
            (As.INTEGER, each)
            for each in ("1.0", "1e3", '"1.0"', '"+1"', '" 1"', '"1\\n"', '"01"', '""', '"٣"', "true", "{}")
        ),
        *((As.NUMBER, each) for each in ('"0x1"', '".5"', '"1."', '"inf"', '"NaN"', '"1_0"', "true", "null", "[]")),
        *((As.BOOLEAN, each) for each in ("0", "1", '"True"', '"yes"', '""', "null")),
        *((As.VALUE, each) for each in ("7", "true", "null", "{}", '""', '"{"', '"hunter2"', r'"{\"a\":1,\"a\":2}"')),
        (As.VALUE, f'"{"[" * 65}{"]" * 65}"'),
    ],
)
def test_anything_else_is_a_mismatch(to_type: As, given_: str) -> None:
    found = refused(given_, to_type=to_type)

    assert found.reason == "TypeMismatch"
    assert f"as: {to_type}: " in found.text


def test_a_mismatch_says_what_was_wanted_and_found() -> None:
    assert refused('"hunter2"', to_type=As.INTEGER).text == (
        "as: integer: want an integer, or a string that says one, found string"
    )
    assert refused('"{hunter2"', to_type=As.VALUE).text == "as: value: JSON at position 1: want a JSON string"


@pytest.mark.parametrize(
    ("given_", "result"), [('"w6nDqQ=="', '"éé"'), (r'"w6nD\nqQ\r\n=="', '"éé"'), ('""', '""'), ('"YWI="', '"ab"')]
)
def test_base64_is_decoded_whatever_its_lines(given_: str, result: str) -> None:
    assert converted(given_, decode=True) == result


@pytest.mark.parametrize(
    ("given_", "reason", "said"),
    [
        ('"aHVudGVyMg"', "DecodeFailed", "want base64 in the standard alphabet with padding"),
        ('"YWJj===="', "DecodeFailed", "want base64 in the standard alphabet with padding"),
        ('"a-_b"', "DecodeFailed", "want base64 in the standard alphabet with padding"),
        ('"hunter2 "', "DecodeFailed", "want base64 in the standard alphabet with padding"),
        ('"//79"', "DecodeFailed", "binaryData"),
        ("7", "TypeMismatch", "decode: want a string, found integer"),
        ("null", "TypeMismatch", "decode: want a string, found null"),
    ],
)
def test_what_cannot_be_decoded_says_why(given_: str, reason: str, said: str) -> None:
    found = refused(given_, decode=True)

    assert found.reason == reason
    assert said in found.text


def test_only_a_string_is_encoded() -> None:
    assert converted('"é"', encode=True) == '"w6k="'
    assert refused("7", encode=True).text == "encode: want a string, found integer"
    assert converted("7", to_type=As.STRING, encode=True) == '"Nw=="'


def test_the_order_is_except_decode_as_encode() -> None:
    written = base64.b64encode(b'{"b":2}').decode()

    assert converted('{"a": 1, "b": 2}', excepts=(parse_path("a"),), to_type=As.JSON, encode=True) == f'"{written}"'
    assert converted('"eyJhIjoxfQ=="', decode=True, to_type=As.VALUE) == '{"a":1}'


def test_an_excepted_element_goes_after_those_inside_of_its_neighbours() -> None:
    source = parse_constant('[{"n":"x"},{"m":[{"n":"z"}]},{"m":[{"n":"z"}]}]').plain

    found = convert(source, Conversion((parse_path("[n=x]"), parse_path("[1].m[n=z]"))))

    assert encode(found).decode() == '[{"m":[]},{"m":[{"n":"z"}]}]'


@pytest.mark.parametrize(
    ("excepts", "result"),
    [
        (["a"], '{"b.c":{"d":2},"l":[{"n":"x","v":1},{"n":"y"},3]}'),
        (["b.c.d"], '{"a":1,"b.c":{},"l":[{"n":"x","v":1},{"n":"y"},3]}'),
        (["l[n=x].v", "a"], '{"b.c":{"d":2},"l":[{"n":"x"},{"n":"y"},3]}'),
        (["l[n=x]", "l[1].n", "l[9].n"], '{"a":1,"b.c":{"d":2},"l":[{},3]}'),
        (["l[n=y]"], '{"a":1,"b.c":{"d":2},"l":[{"n":"x","v":1},3]}'),
        (["none.at.all", "a.b", "l.x", "l[n=z].v"], '{"a":1,"b.c":{"d":2},"l":[{"n":"x","v":1},{"n":"y"},3]}'),
    ],
)
def test_what_is_excepted_is_left_out_and_what_is_not_there_not_missed(excepts: list[str], result: str) -> None:
    source = parse_constant('{"a":1,"b.c":{"d":2},"l":[{"n":"x","v":1},{"n":"y"},3]}').plain
    before = copy(source)

    found = convert(source, Conversion(tuple(map(parse_path, excepts))))

    assert encode(found).decode() == result
    assert equal(source, before)


def test_what_is_too_large_after_a_conversion_is_not_copied() -> None:
    assert refused(f'"{"x" * (MAX_BYTES - 10)}"', encode=True).reason == "TooLarge"


@settings(deadline=None)  # the machine may be busy
@given(texts)
def test_decoding_undoes_encoding(text: str) -> None:
    assert convert(convert(text, Conversion(encode=True)), Conversion(decode=True)) == text


@settings(deadline=None)  # the machine may be busy
@given(values)
def test_reading_json_undoes_writing_it(value: Plain) -> None:
    again = convert(convert(value, Conversion(to_type=As.JSON)), Conversion(to_type=As.VALUE))

    assert encode(again) == encode(value)


@settings(deadline=None)  # the machine may be busy
@given(numbers)
def test_a_number_goes_through_a_string_with_its_text(number: Number) -> None:
    text = convert(number, Conversion(to_type=As.STRING))

    assert convert(text, Conversion(to_type=As.NUMBER)) == number
    assert not number.is_integer or convert(text, Conversion(to_type=As.INTEGER)) == number


conversions = st.builds(
    Conversion,
    st.lists(st.sampled_from(["a", "a.b", "[0]", "x[k=v]"]).map(parse_path), max_size=2).map(tuple),
    decode=st.booleans(),
    to_type=st.none() | st.sampled_from(As),
    encode=st.booleans(),
)


@settings(deadline=None)  # the machine may be busy
@given(values, conversions)
def test_any_value_is_converted_or_refused_and_never_changed_itself(value: Plain, conversion: Conversion) -> None:
    before = encode(value)

    try:
        convert(value, conversion)
    except RuleError as error:
        assert error.reason in {"TypeMismatch", "DecodeFailed"}  # noqa: PT017 - either is right
    assert encode(value) == before


marked = st.text(st.characters(exclude_categories=["Cs"]), max_size=6).map("hunter2{}".format)


@settings(deadline=None)  # the machine may be busy
@given(
    st.one_of(marked, marked.map(lambda text: base64.b64encode(text.encode()).decode()), marked.map('"{}'.format)),
    conversions,
)
def test_no_fault_says_what_the_value_is(value: str, conversion: Conversion) -> None:
    try:
        convert(value, conversion)
    except RuleError as error:
        told = f"{error} {error!r} {error.text}"
        assert "hunter2" not in told
        assert base64.b64encode(b"hunter2")[:8].decode() not in told
