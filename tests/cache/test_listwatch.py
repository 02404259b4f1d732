from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informers.api.calls import Cancel
from informers.cache.listwatch import ListWatch, Selection, UndecodableError, Watch, WatchOptions
from informers.meta.errors import APIError, ConfigError
from informers.meta.resources import GVR
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.cache.conftest import FakeServer

CONFIGMAPS = GVR("", "v1", "configmaps")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"resource": ""}, "resource"),
        ({"namespaces": ("a", "")}, "namespaces"),
        ({"namespaces": "default"}, "namespaces"),
        ({"label_selector": "a in"}, "position"),
        ({"field_selector": "a>b"}, "position"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": 2.5}, "page_size"),
        ({"max_staleness": 0.0}, "max_staleness"),
        ({"max_staleness": float("nan")}, "max_staleness"),
    ],
)
def test_a_selection_that_cannot_be_followed_is_refused_where_it_is_made(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Selection(**{"resource": CONFIGMAPS, **options})


def test_duplicate_namespaces_count_once() -> None:
    assert Selection(CONFIGMAPS, namespaces=("b", "a", "b")) == Selection(CONFIGMAPS, namespaces=("b", "a"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", 4.9),
        ("timeout", float("inf")),
        ("silence", 0),
        ("first_syncs", 0),
        ("first_syncs", 2.5),
        ("page_size", 0),
        ("page_size", 2.5),
        ("progress_check", -1),
        ("idle_stop", float("nan")),
    ],
)
def test_options_out_of_range_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{option}.*{value!r}"):
        WatchOptions(**{option: value})  # type: ignore[arg-type] # one of several


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("items"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    items=st.lists(json_values, max_size=5),
    more=st.dictionaries(
        st.text(max_size=4).filter(lambda name: name not in {"kind", "metadata"}), json_values, max_size=2
    ),
    indent=st.sampled_from([None, 0, 3]),
    plain=st.booleans(),
    first=st.booleans(),
)
def test_any_list_is_split_into_the_items_that_json_finds(
    items: list[Any], more: dict[str, Any], indent: int | None, *, plain: bool, first: bool
) -> None:
    more.pop("items", None)
    more.pop("apiVersion", None)
    head = {"kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}}
    body = {"items": items, **more, **head} if first else {**head, **more, "items": items}
    text = json.dumps(body, indent=indent, ensure_ascii=plain)
    twice = text[:-1] + ',"items":' + json.dumps(items) + "}"

    for each in (text, twice):
        found = ListWatch(None, CONFIGMAPS)._read_list(each.encode(), "application/json")  # type: ignore[arg-type] # unused
        assert repr([json.loads(bytes(item)) for item in found.items or ()]) == repr(json.loads(each)["items"])


def test_another_media_type_is_an_error_that_names_it(clock: FakeClock, server: FakeServer) -> None:
    listwatch = ListWatch(server, CONFIGMAPS)  # type: ignore[arg-type] # a fake with the methods that are used

    with pytest.raises(APIError, match="text/html"):
        listwatch._read_list(b"{}", "text/html")


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[{"a":' + b"[" * 100_000,
        b'{"kind":"ConfigMapList","items":[' + b"[" * 100_000 + b"]" * 100_000 + b",",
        b'{"kind":"ConfigMapList","x":' + b"[" * 100_000 + b"]" * 100_000 + b',"y',
    ],
)
def test_what_is_cut_and_too_deep_is_no_list(server: FakeServer, body: bytes) -> None:
    listwatch = ListWatch(server, CONFIGMAPS)  # type: ignore[arg-type] # a fake with the methods that are used

    with pytest.raises(APIError, match="want a list, found"):
        listwatch._read_list(body, "application/json")


@pytest.mark.parametrize(
    "head",
    [
        b'"metadata":null',
        b'"metadata":{"resourceVersion":null,"continue":null}',
        b'"kind":null,"apiVersion":null,"metadata":{}',
        b'"metadata":{"resourceVersion":"","continue":""}',
    ],
)
def test_a_list_that_says_null_of_itself_is_one_without_a_version(server: FakeServer, head: bytes) -> None:
    server.list_faults.append(b"{%b,%b}" % (head, b'"items":[{"metadata":{"name":"a"}}]'))
    listwatch = ListWatch(server, CONFIGMAPS)  # type: ignore[arg-type] # a fake with the methods that are used

    (page,) = listwatch.pages(rv="0", cancel=Cancel())

    assert (page.rv, page.kind, page.has_more, len(page.items)) == ("", "", False, 1)


def test_one_lists_rv_is_that_of_its_first_page(server: FakeServer) -> None:
    server.list_faults.extend([server.list_body([], "7", token="T"), server.list_body([], "9")])
    listwatch = ListWatch(server, CONFIGMAPS, namespace="n")  # type: ignore[arg-type] # a fake with the methods that are used

    pages = list(listwatch.pages(rv="0", cancel=Cancel()))

    assert [(page.is_first, page.rv, page.has_more) for page in pages] == [(True, "7", True), (False, "7", False)]
    assert server.requests[0][1] == "/api/v1/namespaces/n/configmaps"


@pytest.mark.parametrize(
    ("resource", "line", "shown"),
    [
        ("configmaps", b"<html>\xff no", "'<html>\\ufffd no'"),
        ("configmaps", b'{"type":"WEIRD","object":{"data":{"k":"content"}}}', '\'{"type":"WEIRD","object"\''),
        ("configmaps", b"x" * 500, f"'{'x' * 200}'"),
        ("secrets", b'{"type":"WEIRD","object":{"data":{"k":"content"}}}', ""),
        ("secrets", b"Y29udGVudA==", ""),
        ("secrets", b'{"type":"ADDED","object":' + b'{"a":' * 100_000, ""),
        ("secrets", b'{"type":"ADDED","object":' + b"[" * 100_000 + b"]" * 100_000 + b', "', ""),
    ],
)
def test_a_line_that_is_no_event_is_told_without_anybodys_secret(resource: str, line: bytes, shown: str) -> None:
    class Lines:
        def lines(self) -> Iterator[bytes]:
            yield line

        def close(self) -> None: ...

    watch = Watch(Lines(), GVR("", "v1", resource), "")  # type: ignore[arg-type] # a fake with the methods that are used

    with pytest.raises(UndecodableError) as raised:
        list(watch.events())

    assert raised.value.length == len(line)
    assert str(raised.value).endswith(f"{len(line)} bytes: {shown}" if shown else f"{len(line)} bytes")
    assert "content" not in str(raised.value)
