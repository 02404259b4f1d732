"""Values keep their type and the text of their numbers, and never show what they are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.problems import RuleError
from controllers.copier.values import (
    Number,
    Plain,
    Value,
    check_size,
    check_string_map_entry,
    copy,
    decode,
    describe,
    encode,
    equal,
    has_null,
    is_base64,
    parse_constant,
    with_own_tracking,
    without_tracking,
)

integers = st.integers(-(10**30), 10**30).map(str)
numbers = st.one_of(
    integers,
    st.sampled_from(["-0", "0.1", "1e3", "1E+2", "1.0", "-0.0", "123456789012345678901234567890", "1e999"]),
).map(Number)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars: st.SearchStrategy[Plain] = st.one_of(st.none(), st.booleans(), texts, numbers)
values: st.SearchStrategy[Plain] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=20,
)


def _parse(text: str) -> tuple[Value | None, RuleError | None]:
    try:
        return parse_constant(text), None
    except RuleError as error:
        return None, error


@settings(deadline=None)  # the machine may be busy
@given(values)
def test_a_value_goes_through_text_with_its_numbers_and_its_order(value: Plain) -> None:
    text = encode(value)

    again = parse_constant(text.decode()).plain

    assert encode(again) == text
    assert equal(again, value)
    if isinstance(value, dict):
        assert list(value) == list(decode(text))


@settings(deadline=None)  # the machine may be busy
@given(values, values)
def test_equality_is_reflexive_symmetric_and_minds_types(one: Plain, other: Plain) -> None:
    assert equal(one, copy(one))
    assert equal(one, other) is equal(other, one)
    if describe(one) != describe(other):
        assert not equal(one, other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("true", "1", False),
        ("1", "1.0", False),
        ('"1"', "1", False),
        ("null", "false", False),
        ("0", "-0", True),
        ("1e3", "1000.0", True),
        ("0.1", "0.10", True),
        ("9007199254740993", "9007199254740992", False),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', True),
        ("[1,2]", "[2,1]", False),
        ('{"a":null}', "{}", False),
    ],
)
def test_values_of_equal_looks_are_told_apart(one: str, other: str, same: bool) -> None:
    left, right = parse_constant(one).plain, parse_constant(other).plain

    assert equal(left, right) is equal(right, left) is same


@settings(deadline=None)  # the machine may be busy
@given(st.text(max_size=30))
def test_any_text_is_strict_json_or_malformed(text: str) -> None:
    value, error = _parse(text)

    assert error is None or error.reason == "MalformedRule"
    assert value is None or json.loads(text) == json.loads(encode(value.plain))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "NaN",
            "Infinity",
            "-Infinity",
            "[NaN]",
            '{"a":1,"a":2}',
            '"\\ud800"',
            "1 2",
            "{",
            "[1,]",
            "{'a':1}",
        ),
        *("01", "+1", ".5", "1.", "nul", "True", "[" * 65 + "]" * 65, '{"a" 1}', '"\x01"', "[" * 100_000),
    ],
)
def test_loose_json_is_malformed(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_constant(text)

    assert caught.value.reason == "MalformedRule"
    assert "position" in caught.value.text or "nested" in caught.value.text


def test_a_fault_in_a_constant_is_told_by_position_and_quotes_nothing() -> None:
    with pytest.raises(RuleError) as caught:
        parse_constant('{"password": hunter2}')

    assert "position 13" in caught.value.text
    assert "hunter2" not in caught.value.text
    assert "password" not in caught.value.text


def test_a_constant_larger_than_a_mebibyte_is_too_large() -> None:
    assert describe(parse_constant(json.dumps("x" * (1024 * 1024 - 2))).plain) == "string"
    with pytest.raises(RuleError, match="TooLarge"):
        parse_constant(json.dumps("x" * (1024 * 1024 - 1)))


def test_a_value_may_be_nested_so_deep() -> None:
    most: Plain = "x"
    for _ in range(64):
        most = [most] if isinstance(most, str) else {"k": most}

    check_size(most, too_deep="TypeMismatch")
    with pytest.raises(RuleError, match="TypeMismatch"):
        check_size([most], too_deep="TypeMismatch")
    assert describe(parse_constant("[" * 64 + "]" * 64).plain) == "list(1 item)"
    with pytest.raises(RuleError, match="MalformedRule"):
        parse_constant("[" * 65 + "]" * 65)


@settings(deadline=None)  # the machine may be busy
@given(texts.map("secret {}".format))  # longer than what a value shows of itself, and no part of it
def test_a_value_never_shows_itself(text: str) -> None:
    value = Value({"k": text, "n": Number("123456")})

    for shown in (repr(value), str(value), f"{value}", f"{value:>40}", repr([value]), repr(value.plain["n"])):  # type: ignore[index, call-overload]  # a map
        assert text not in shown
        assert "123456" not in shown


def test_types_are_described_without_values() -> None:
    described = [
        describe(decode(b'{"v":%s}' % raw)["v"]) for raw in (b"null", b"true", b"1", b"1.5", b'"s"', b"[1]", b"{}")
    ]

    assert described == ["null", "boolean", "integer", "number", "string", "list(1 item)", "map(0 keys)"]


def test_a_null_is_found_also_inside_lists() -> None:
    assert has_null([{"a": None}])
    assert has_null(None)
    assert not has_null({"a": ["", False, Number("0"), {}]})


@pytest.mark.parametrize("text", ["", "YQ==", "YWJj", "YW\nJj\r\n"])
def test_base64_is_the_standard_alphabet_with_padding(text: str) -> None:
    assert is_base64(text)


@pytest.mark.parametrize("text", ["YQ", "Y", "YQ=", "a-_b", "YQ==YQ==!", "YWJj====", "====", "YQ= =", "é"])
def test_other_text_is_not_base64(text: str) -> None:
    assert not is_base64(text)


@pytest.mark.parametrize("plain", [None, True, Number("1"), [], {}])
def test_a_map_of_strings_takes_strings_only(plain: Plain) -> None:
    with pytest.raises(RuleError, match="TypeMismatch"):
        check_string_map_entry(plain, "data.k", as_base64=False)


def test_a_null_in_a_map_of_strings_is_told_how_to_remove_a_key() -> None:
    with pytest.raises(RuleError, match="op: remove"):
        check_string_map_entry(None, "data.k", as_base64=False)


def test_deployment_tools_tracking_keys_stay_with_their_object() -> None:
    source: Plain = {"app": "x", "helm.sh/chart": "c", "argocd.argoproj.io/instance": "i"}
    own: Plain = {"old": "y", "app.kubernetes.io/instance": "mine", "fluxcd.io/sync": "s"}

    assert with_own_tracking(without_tracking(source), own) == {
        "app": "x",
        "app.kubernetes.io/instance": "mine",
        "fluxcd.io/sync": "s",
    }
