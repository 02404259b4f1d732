"""What is no path is JMESPath: bounded, without surprises in its numbers, and silent about values."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier import queries
from controllers.copier.paths import Key, Path, parse_path, show
from controllers.copier.problems import RuleError
from controllers.copier.queries import MAX_STEPS, Query, parse_source_path
from controllers.copier.values import MAX_BYTES, Plain, decode, encode

DOCUMENT = b"""{
    "metadata": {
        "name": "s", "managedFields": [1],
        "annotations": {"a": "b", "kubectl.kubernetes.io/last-applied-configuration": "hunter2"}},
    "data": {"k": "v", "secret": "hunter2", "tls.crt": "c"},
    "n": {"i": 7, "big": 123456789012345678901234567890, "f": 1.50, "e": 1e3, "z": -0},
    "list": [{"name": "a", "v": 1, "on": true}, {"name": "b", "v": 2.0, "on": false}]
}"""


@pytest.mark.parametrize(
    "text",
    [
        "|".join("@" * 2000),
        "||".join("a" * 1300),
        "&&".join("a" * 1300),
        "[]" * 2000,
        "@" + "[*]" * 1300,
        "!" * 4000 + "a",
    ],
)
def test_expressions_in_expressions_in_expressions_are_no_rule(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_source_path(text)

    assert caught.value.reason == "MalformedRule"


def test_a_pipe_may_be_long() -> None:
    assert search("|".join("@" * 90)) is not None


def query(text: str) -> Query:
    found = parse_source_path(text)
    assert isinstance(found, Query)
    return found


def search(text: str) -> Plain:
    return query(text).search(decode(DOCUMENT))


def fails(text: str) -> RuleError:
    with pytest.raises(RuleError) as caught:
        search(text)
    assert "hunter2" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("metadata.labels | @", ["app"]),
        ("@.metadata.labels", ["app"]),
        ("metadata.labels || `{}`", ["app"]),
        ("not_null(metadata.none, metadata.labels)", ["app"]),
        ('metadata.labels | {app: app, chart: "helm.sh/chart"}', ["app", "chart"]),
        ("metadata.labels | keys(@)", None),
    ],
)
def test_all_labels_are_copied_without_tracking_keys_but_by_name_they_are(text: str, keys: list[str] | None) -> None:
    document = {"metadata": {"labels": {"app": "x", "helm.sh/chart": "c"}}}

    found = query(text).search(decode(json.dumps(document).encode()))

    assert (list(found) if isinstance(found, dict) else None) == keys


@pytest.mark.parametrize("text", ["data.k", "list[0].v", "list[name=b].v", 'data["tls.crt"]', "a-b", "data.1"])
def test_a_path_is_tried_first(text: str) -> None:
    assert parse_source_path(text) == parse_path(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("list[?name=='b'].v | [0]", "2.0"),
        ("list[*].name", '["a","b"]'),
        ("list[-1].name | @", '"b"'),
        ("join(',', list[*].name)", '"a,b"'),
        ("@.n.big", "123456789012345678901234567890"),
        ("@.n", '{"i":7,"big":123456789012345678901234567890,"f":1.50,"e":1e3,"z":-0}'),
        ("n.to_string(f)", '"1.50"'),
        ("to_number('1.50')", "1.50"),
        ("to_number('1_0')", "null"),
        ("to_number('inf')", "null"),
        ("sum(list[*].v)", "3.0"),
        ("length(list)", "2"),
        ("list[?on].v", "[1]"),
        ("list[?v > `1`].name", '["b"]'),
        ("list[?v == `1`].name", '["a"]'),
        ("list[?v < name].name", "[]"),
        ("list[?on == `1`].name", "[]"),
        ("@ == `{}`", "false"),
        ("[n.i] == [`7.0`]", "true"),
        ("[list[0].on] == [`1`]", "false"),
        ("contains(list[*].on, `1`)", "false"),
        ("contains(data.k, `1`)", "false"),
        ("contains(data.k, 'v')", "true"),
        ("contains(data.k, 'w')", "false"),
        ("contains(list[*].v, `2`)", "true"),
        ("metadata | keys(@)", '["name","annotations"]'),
        ("@.metadata.annotations", '{"a":"b"}'),
        ("data.{a: k, b: none}", '{"a":"v","b":null}'),
        ("list[].name | [1]", '"b"'),
        ("nothing | here", "null"),
        ("list[?name=='c'] | [0]", "null"),
        ("not_null(data.none, 'd')", '"d"'),
    ],
)
def test_an_expression_gives_what_it_says(text: str, result: str) -> None:
    assert encode(search(text)).decode() == result


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("abs(data.secret)", "abs(): invalid type, want number, found string"),
        ("abs(`1`, `2`)", "abs(): invalid number of arguments, want 1, found 2"),
        ("join(',', [data.secret, `1`])", "join(): invalid type"),
        ("max_by([{a: data.secret}, {a: `1`}], &a)", "max_by(): invalid value"),
        ("ceil(to_number('1e999'))", "ceil(): invalid value"),
        ("sum(list[*].on)", "sum(): invalid type"),
        ("to_number('1e999') | [@, `1`] | sum(@)", "a number in it that JSON does not know"),
        ("`NaN`", "a number in it that JSON does not know"),
        ('`"\\ud800"`', "half a character"),
        ("&data", "the result is an expression"),
        ("to_string(&data)", "the result is an expression"),
        ("data[::0] | @", ""),
    ],
)
def test_a_fault_says_its_sort_and_its_function_and_no_value(text: str, said: str) -> None:
    if not said:
        assert search(text) is None
        return
    found = fails(text)

    assert found.reason == "JMESPathFailed"
    assert said in found.text


DOUBLING = "[@,@]|[@,@]" + "|[@,@]" * 90


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[@,@]" + "|[@,@][]" * 40, "JMESPathFailed"),
        ("'x'|join('',[@,@])" + "|join('',[@,@])" * 60, "JMESPathFailed"),
        (
            "join('" + "x" * 2000 + "',`" + json.dumps([""] * 200) + "`)|[" + "@," * 300 + "@]|join('',@)",
            "JMESPathFailed",
        ),
        (f"({DOUBLING}) == ({DOUBLING})", "JMESPathFailed"),
        (f"contains([{DOUBLING}], {DOUBLING})", "JMESPathFailed"),
        (f"to_string(({DOUBLING})[0]|[" + "@,@|" * 0 + "@])", "TypeMismatch"),
        ("list" + "[*].[@,@,@,@,@,@,@,@][]|@" * 8, "JMESPathFailed"),
        (DOUBLING, "TypeMismatch"),
        ("[@,@]" + "|[@,@]" * 40, "TooLarge"),
        ("!" * 3000 + "@", None),
    ],
)
def test_what_would_take_for_ever_is_given_up(text: str, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_STEPS", MAX_STEPS // 10)
    monkeypatch.setattr(queries, "MAX_BYTES", MAX_BYTES // 32)

    try:
        search(text)
    except RuleError as error:
        assert error.reason == (reason or "MalformedRule")  # noqa: PT017 - some are refused before they are evaluated
    else:
        assert reason is None


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a b", "data.", "list[?", "foo(@)", "`hunter2`", "`[" * 2000, "(" * 3000 + "@" + ")" * 3000),
        *("a\ud800", "'", "{a: }", '"a"(@)', "@" + " " * 4096),
    ],
)
def test_what_is_neither_path_nor_expression_is_malformed(text: str) -> None:
    with pytest.raises(RuleError, match="MalformedRule") as caught:
        parse_source_path(text)

    assert "hunter2" not in caught.value.text


@pytest.mark.parametrize("text", ["`hunter2`", "data[?k == `x y`]", "`\\``"])
def test_a_literal_that_is_no_json_is_refused_where_the_library_only_warns(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuleError, match="MalformedRule"):
            parse_source_path(text)


def test_an_expression_may_be_so_long() -> None:
    most = "@ | " + "a" * 4092

    assert isinstance(parse_source_path(most), Query)
    with pytest.raises(RuleError, match="at most 4096 characters of JMESPath, found 4097"):
        parse_source_path(most + "a")


@pytest.mark.parametrize("text", ["a" * 1025, ".".join("a" * 65), "a[10001]"])
def test_a_path_beyond_its_limits_is_no_expression(text: str) -> None:
    with pytest.raises(RuleError, match="MalformedRule: path: want"):
        parse_source_path(text)


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("list[?name=='b'].v | [0]", "list"),
        ("@.data.k.x", "data.k.x"),
        ('data."tls.crt" | [0]', 'data["tls.crt"]'),
        ("data.k | x", "data.k.x"),
        ("a.b[*].c.d", "a.b"),
        ("a.*.c", "a"),
        ("a.b[-1].c|@", "a.b"),
        ("data.k.length(@)", "data.k"),
        ("a[1:2].c", "a"),
        ("data.{x: y}.x", "data"),
        *(
            (text, None)
            for text in ("data.a || data.b", "length(data.a)", "[data.a,data.b]", "{a: data.a}.a", "*.a", "!data", "@")
        ),
        *((text, None) for text in ("`1`", "data.a == data.b", "data.a && data.b", "map(&data, list)", "[?a].b")),
    ],
)
def test_nothing_is_read_outside_of_the_leading_fields(text: str, prefix: str | None) -> None:
    found = query(text).prefix

    assert (show(found.steps) if found else None) == prefix  # type: ignore[arg-type]  # exact keys only


def test_printing_a_query_shows_its_text_and_its_repr_does_not() -> None:
    found = query("list[?name=='hunter2']")

    assert str(found) == "list[?name=='hunter2']"
    assert "hunter2" not in repr(found)
    assert found == query("list[?name=='hunter2']")


expressions = st.one_of(
    st.text(max_size=30),
    st.text("abk.[]*?|&@'`\"{}(),:=<>!- 01", max_size=25),
    st.lists(
        st.sampled_from(
            [
                "data",
                "list",
                ".",
                "[*]",
                "[]",
                "[?v>`1`]",
                "|",
                "@",
                "sort_by(",
                "&v",
                ")",
                ",",
                "`1`",
                "'x'",
                "length(",
            ]
        ),
        max_size=10,
    ).map("".join),
)


@settings(deadline=None)  # the machine may be busy
@given(expressions)
def test_any_text_is_a_source_path_or_malformed_and_any_expression_a_value_or_a_fault(text: str) -> None:
    try:
        found = parse_source_path(text)
    except RuleError as error:
        assert error.reason == "MalformedRule"  # noqa: PT017
        return
    if isinstance(found, Path):
        assert parse_path(str(found)) == found
        return

    try:
        encode(found.search(decode(DOCUMENT)))
    except RuleError as error:
        assert error.reason in {"JMESPathFailed", "TypeMismatch", "TooLarge"}  # noqa: PT017
    assert found.prefix is None or all(isinstance(step, Key) for step in found.prefix.steps)
