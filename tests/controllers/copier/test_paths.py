"""Paths: one grammar, the longest key that exists, and no surprise for any text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.paths import (
    ABSENT,
    NO_STRING_MAPS,
    Absent,
    Index,
    Key,
    NoPathError,
    Path,
    Place,
    Places,
    Segment,
    Selector,
    Step,
    check_destination,
    check_writable,
    find,
    locate,
    look,
    may_overlap,
    meet,
    parse_path,
    put,
    read,
    show,
    take,
)
from controllers.copier.problems import RuleError
from controllers.copier.values import Number, Plain, copy, equal

CONFIGMAP = frozenset({("data",), ("binaryData",), ("metadata", "labels"), ("metadata", "annotations")})

words = st.text("abAB09_-/", min_size=1, max_size=4)
bare = st.text("abAB9_-./", min_size=1, max_size=5).filter(lambda text: not text.isdigit())
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Segment, words),
    st.builds(Key, any_text),
    st.builds(Index, st.integers(0, 10_000)),
    st.builds(Selector, bare, bare),
    st.builds(Selector, bare, any_text, st.just(value=True)),
)
paths = st.lists(steps, min_size=1, max_size=8).map(lambda found: Path(tuple(found)))

short_keys = st.sampled_from(["a", "b", "a.b", "b.a", "a.a", "a.b.a", "A"])
scalars: st.SearchStrategy[Plain] = st.one_of(st.none(), st.booleans(), st.just("x"), st.just(Number("1")))
nested_maps: st.SearchStrategy[dict[str, Plain]] = st.dictionaries(
    short_keys, st.recursive(scalars, lambda inner: st.dictionaries(short_keys, inner, max_size=3), max_leaves=12)
)
plain_paths = st.lists(st.sampled_from(["a", "b", "A"]), min_size=1, max_size=5).map(lambda w: parse_path(".".join(w)))


def _parse(text: str) -> tuple[Path | None, RuleError | None]:
    try:
        return parse_path(text), None
    except RuleError as error:
        return None, error


def _is_blocked(document: Plain, place: Place) -> bool:
    """Tell whether a scalar stands in the way of `place`."""
    above = (look(document, place[:length]) for length in range(len(place)))
    return any(node is not None and not isinstance(node, dict | Absent) for node in above)


@settings(deadline=None)  # the machine may be busy
@given(paths)
def test_a_printed_path_parses_to_the_same_path(path: Path) -> None:
    assert parse_path(str(path)) == path


@settings(deadline=None)  # the machine may be busy
@given(st.one_of(st.text(), st.text("ab.[]=\"'\\0-*", max_size=30)))
def test_any_text_is_a_path_or_the_parse_error(text: str) -> None:
    path, error = _parse(text)

    assert error is None or error.reason == "MalformedRule"
    assert path is None or parse_path(str(path)) == path


@settings(deadline=None)  # the machine may be busy
@given(st.lists(words, min_size=1, max_size=6).map(".".join))
def test_a_plain_path_prints_as_it_was_written_in_its_case(text: str) -> None:
    assert str(parse_path(text)) == text


def test_long_texts_are_refused_by_their_length() -> None:
    with pytest.raises(RuleError, match="at most 1024 characters, found 200004"):
        parse_path('["' + "x" * 200_000 + '"]')


@pytest.mark.parametrize("text", ['["' + "\\" * 200_000, "['" + "\\'" * 100_000, "a." * 100_000, "[a=" * 50_000])
def test_a_long_text_that_is_no_path_is_refused_by_its_fault(text: str) -> None:
    with pytest.raises(NoPathError, match="path at position"):
        parse_path(text)


@pytest.mark.parametrize(
    ("most", "beyond"),
    [
        ("a" * 1024, "a" * 1025),
        (".".join("a" * 64), ".".join("a" * 65)),
        ("a[10000]", "a[10001]"),
        ("a", "a[99999999]"),
    ],
)
def test_a_path_may_be_as_long_and_as_deep_as_its_limits(most: str, beyond: str) -> None:
    assert parse_path(most).steps
    with pytest.raises(RuleError, match=r"want an index of at most|want at most"):
        parse_path(beyond)


@pytest.mark.parametrize("text", ["[[" * 512, '["' * 512, "a." * 511 + "a", "[a=" * 341, "['\\'" + "\\'" * 500])
def test_texts_up_to_the_limit_are_judged_at_once(text: str) -> None:
    with pytest.raises(RuleError):
        parse_path(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("spec.replicas", (Segment("spec"), Segment("replicas"))),
        (r"data.tls\.crt", (Segment("data"), Key("tls.crt"))),
        ('data["tls.crt"]', (Segment("data"), Key("tls.crt"))),
        ("data['it\\'s']", (Segment("data"), Key("it's"))),
        ("data[ca.crt]", (Segment("data"), Key("ca.crt"))),
        ("a[3].b", (Segment("a"), Index(3), Segment("b"))),
        ("a[name=app].image", (Segment("a"), Selector("name", "app"), Segment("image"))),
        ('a[name="x y"]', (Segment("a"), Selector("name", "x y", quoted=True))),
        ("a.3", (Segment("a"), Segment("3"))),
        ("Data.camelCase", (Segment("Data"), Segment("camelCase"))),
        ('["a"]["b"]', (Key("a"), Key("b"))),
    ],
)
def test_each_form_of_a_step_is_read(text: str, wanted: tuple[Step, ...]) -> None:
    assert parse_path(text).steps == wanted


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a[", "a[]", "a[01]", "a[10001]", "a b", "a[*]", "*", "a]", 'a["b]', "a.[b]"]
)
def test_what_is_not_a_path_is_malformed(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_path(text)

    assert caught.value.reason == "MalformedRule"


def test_a_syntax_error_gives_the_position_and_quotes_nothing_of_the_text() -> None:
    with pytest.raises(RuleError, match=r"position 5: want '.' or '\[', found another character") as caught:
        parse_path("hunte\u00e92")

    assert "hunte" not in caught.value.text


@pytest.mark.parametrize("text", ["a[-1]", "a[name=x].name", 'a[name=x]["name"]', "a[name=x].name.b", "a[a.b=x].a.b"])
def test_a_destination_has_no_negative_index_and_never_writes_its_own_selector(text: str) -> None:
    with pytest.raises(RuleError, match="MalformedRule"):
        check_destination(parse_path(text))


def test_the_longest_first_key_that_leads_to_the_end_wins() -> None:
    document: Plain = {"a.b": {"c": "dotted"}, "a": {"b": {"c": "nested"}}}

    assert read(document, parse_path("a.b.c"))[0] == "dotted"
    assert read({"a.b": "dead end", "a": {"b": {"c": "nested"}}}, parse_path("a.b.c"))[0] == "nested"


@settings(deadline=None)  # the machine may be busy
@given(nested_maps, plain_paths)
def test_what_is_written_at_a_plain_path_is_read_by_the_same_text(document: dict[str, Plain], path: Path) -> None:
    place = locate(document, path)
    if _is_blocked(document, place):
        return
    put(document, place, "written")
    after = copy(document)

    assert read(document, path) == ("written", place)
    put(document, locate(document, path), "written")
    assert equal(document, after)


@settings(deadline=None)  # the machine may be busy
@given(nested_maps, plain_paths)
def test_a_reading_that_exists_is_found_and_nothing_else_is(document: dict[str, Plain], path: Path) -> None:
    found = find(document, path)

    if found is None:
        with pytest.raises(RuleError):
            read(document, path)
    else:
        assert look(document, found) is not ABSENT


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.sampled_from(["tls", "crt", "a"]), min_size=1, max_size=4))
def test_below_a_map_of_strings_the_rest_is_one_key(rest: list[str]) -> None:
    document: dict[str, Plain] = {"data": {"tls": "decoy"}}
    place = locate(document, parse_path(".".join(["data", *rest])), CONFIGMAP)
    put(document, place, "written")

    assert place == (Key("data"), Key(".".join(rest)))
    assert document["data"] == {"tls": "decoy"} | {".".join(rest): "written"}


def test_labels_and_annotations_have_one_reading_too() -> None:
    place = locate({}, parse_path("metadata.labels.app.kubernetes.io/name"), CONFIGMAP)

    assert place == (Key("metadata"), Key("labels"), Key("app.kubernetes.io/name"))


SOURCE: Plain = {
    "nothing": None,
    "text": "x",
    "list": [{"name": "a", "port": Number("80")}, {"name": "b", "on": True}, {"name": "b"}, "scalar"],
    "tls.crt": "c",
    "Case": "k",
}


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("absent", "SourcePathMissing", "step 1 of absent: found nothing"),
        ("nothing.below", "SourcePathMissing", "step 2"),
        ("text.below", "WrongContainer", "want a map, found a string"),
        ("text[0]", "WrongContainer", "want a list, found a string"),
        ("list.0", "WrongContainer", r"a list takes \[0\]"),
        ("list[9]", "SourcePathMissing", "a list of 4 items"),
        ("nothing[0]", "SourcePathMissing", "want a list, found nothing"),
        ("list[name=c]", "SourcePathMissing", "no element"),
        ("list[name=b]", "ElementAmbiguous", "2 elements"),
        ('["tls"].crt', "SourcePathMissing", r'did you mean \["tls.crt"\]'),
        ("/text", "SourcePathMissing", "keys are joined by dots"),
        ("case", "SourcePathMissing", r'did you mean \["Case"\]'),
        ('list[port="80"]', "SourcePathMissing", "no element"),
    ],
)
def test_a_source_says_which_step_failed_and_what_was_found(text: str, reason: str, message: str) -> None:
    with pytest.raises(RuleError, match=message) as caught:
        read(SOURCE, parse_path(text))

    assert caught.value.reason == reason


def test_an_unquoted_selector_matches_numbers_and_booleans() -> None:
    assert read(SOURCE, parse_path("list[port=80].name"))[0] == "a"
    assert read(SOURCE, parse_path("list[on=true].name"))[0] == "b"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("text.below", "WrongContainer"),
        ("text[0]", "WrongContainer"),
        ("list.x", "WrongContainer"),
        ("list[4]", "IndexOutOfRange"),
        ("absent[0]", "ElementNotFound"),
        ("nothing[0]", "ElementNotFound"),
        ("list[name=c].x", "ElementNotFound"),
        ("list[name=b].x", "ElementAmbiguous"),
    ],
)
def test_a_destination_says_why_nothing_can_be_written(text: str, reason: str) -> None:
    document = copy(SOURCE)
    place = locate(document, parse_path(text))

    with pytest.raises(RuleError) as caught:
        check_writable(document, place)

    assert caught.value.reason == reason


def test_a_null_list_element_becomes_a_map() -> None:
    document: dict[str, Plain] = {"a": [None, "x"]}

    put(document, locate(document, parse_path("a[0].b.c")), "v")

    assert document == {"a": [{"b": {"c": "v"}}, "x"]}


def test_missing_and_null_parents_become_maps() -> None:
    document: dict[str, Plain] = {"a": None}

    put(document, locate(document, parse_path("a.b.c")), "v")
    put(document, locate(document, parse_path("x.y")), "w")

    assert document == {"a": {"b": {"c": "v"}}, "x": {"y": "w"}}


def test_removing_what_is_absent_changes_nothing() -> None:
    document: dict[str, Plain] = {"a": {"b": "c"}, "l": [{"name": "x"}]}

    for text in ("q", "a.q", "a.b.q", "q.q", "l[3]", "l[name=y]", "a[0]"):
        take(document, locate(document, parse_path(text)))
    assert document == {"a": {"b": "c"}, "l": [{"name": "x"}]}

    take(document, locate(document, parse_path("l[name=x]")))
    take(document, locate(document, parse_path("a.b")))
    assert document == {"a": {}, "l": []}


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True),
        ("a", "a.b.c", True),
        ("a.b", "a.c", False),
        ("a.b.c", '["a.b"]', True),
        ("a.b.c", '["a.b.c"].d', True),
        ("a.b.c", '["b"]', False),
        ("a[0].x", "a[1].x", False),
        ("a[0].x", "a[0].y", False),
        ("a[0]", "a[0].y", True),
        ("a[name=x]", "a[name=y]", False),
        ("a[name=x]", "a[port=y]", True),
        ("a[name=x]", "a[0]", True),
        ("data.a.b", "data.a", False),
        ("data", "data.a", True),
    ],
)
def test_two_paths_overlap_when_one_leads_through_the_other(one: str, other: str, overlap: bool) -> None:
    maps = CONFIGMAP if one.startswith("data") else NO_STRING_MAPS

    assert may_overlap(parse_path(one), parse_path(other), maps) is overlap
    assert may_overlap(parse_path(other), parse_path(one), maps) is overlap


@settings(deadline=None)  # the machine may be busy
@given(nested_maps, plain_paths, plain_paths)
def test_paths_that_meet_in_some_document_overlap(document: dict[str, Plain], one: Path, other: Path) -> None:
    place, second = locate(document, one), locate(document, other)
    if place[: len(second)] == second or second[: len(place)] == place:
        assert may_overlap(one, other)


@settings(deadline=None)  # the machine may be busy
@given(paths, steps)
def test_a_path_below_another_weighs_more(path: Path, step: Step) -> None:
    assert Path((*path.steps, step)).weight > path.weight


def test_a_place_is_shown_plain_where_that_is_unambiguous() -> None:
    place = (Key("data"), Key("tls.crt"), Key("a"), Selector("name", "x"), Index(2))

    assert show(place) == f"data[{json.dumps('tls.crt')}].a[name=x][2]"


place_steps = st.one_of(
    st.builds(Key, st.sampled_from("ab")),
    st.builds(Index, st.integers(0, 1)),
    st.builds(Selector, st.sampled_from("kl"), st.sampled_from("01"), st.booleans()),
)
some_places = st.lists(place_steps, max_size=3).map(tuple)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(some_places, max_size=4), some_places)
def test_places_looked_up_meet_as_they_do_one_by_one(known: list[Place], place: Place) -> None:
    assert Places(known).meet(place) == any(meet(each, place) for each in known)
