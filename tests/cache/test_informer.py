from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from informers import metrics
from informers.api.calls import Cancel, LineTooLong
from informers.backoff import Backoff
from informers.cache.factory import InformerFactory, InformerSet
from informers.cache.firstsyncs import FirstSyncs
from informers.cache.informer import Informer
from informers.cache.listwatch import Selection, WatchOptions
from informers.cache.store import Delta
from informers.clock import Stop
from informers.meta.errors import (
    APIError,
    ConnectError,
    ConnectionLost,
    InformersError,
    RequestTimeout,
    api_error,
)
from informers.meta.objects import JSON, Object
from informers.meta.resources import GVR, Resource
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.cache.conftest import FakeMapper, FakeServer

CONFIGMAPS = GVR("", "v1", "configmaps")
EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}


@pytest.fixture
def deaths() -> list[BaseException]:
    return []


@pytest.fixture
def options() -> WatchOptions:
    return WatchOptions(backoff=Backoff(0.8, 30.0, jitter=0.0))


@pytest.fixture
def factory(
    server: FakeServer, mapper: FakeMapper, clock: FakeClock, options: WatchOptions, deaths: list[BaseException]
) -> Iterator[InformerFactory]:
    made = InformerFactory(
        "",
        server,  # type: ignore[arg-type] # a fake with the methods that are used
        server,  # type: ignore[arg-type] # as above
        mapper,  # type: ignore[arg-type] # as above
        options=options,
        clock=clock,
        on_thread_death=deaths.append,
    )
    made.start()
    yield made
    made.stop()
    for stream in server.streams:
        stream.end()
    assert made.join(60) == []


class Seen:
    """A handler that remembers, and lets a test wait for what it is told."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self._changed = threading.Condition()

    def __call__(self, delta: Delta) -> None:
        with self._changed:
            self.deltas.append(delta)
            self._changed.notify_all()

    def wait(self, count: int) -> list[tuple[str, bool, bool]]:
        """Return (name, has old, has new) of each delta, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.deltas) >= count, 60), self.deltas
        return [(each.ref.name, each.old is not None, each.new is not None) for each in self.deltas]


def wait_for(informers: InformerSet, condition: Callable[[], bool]) -> None:
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    take_off = [informers.on_change(wake), *(store.on_advance(wake) for store in informers.stores())]
    with changed:
        # The clock of a test stands still; what is waited for is signalled, or is a bug.
        assert changed.wait_for(condition, 60), (informers.state(), informers.problem())
    for each in take_off:
        each()


def follow(factory: InformerFactory, **options: Any) -> InformerSet:
    return factory.follow(Selection(CONFIGMAPS, **options))


def names(informers: InformerSet) -> list[str]:
    return [obj.name for store in informers.stores() for obj in store.list()]


def let_pause_pass(clock: FakeClock, seconds: float) -> None:
    """Wait until somebody waits for exactly so long, then let it come."""
    clock.block_until_waiting(due_in=seconds + 0.001)
    assert not clock._waiting_now(seconds - 0.001), "a shorter pause"
    clock.advance(seconds + 0.001)


# The ordinary life.


def test_what_is_there_and_what_comes_is_in_the_store_and_told(factory: InformerFactory, server: FakeServer) -> None:
    server.put("a")
    informers = follow(factory)
    seen = Seen()
    informers.add_handler(seen)
    server.wait_stream()

    server.put("b")
    server.put("a")
    server.remove("b")

    assert seen.wait(4) == [("a", False, True), ("b", False, True), ("a", True, True), ("b", True, False)]
    assert names(informers) == ["a"]
    assert informers.state() == "watching"
    assert informers.stores()[0].rv() == str(server.rv)


def test_a_list_is_gone_from_memory_when_handlers_are_told_of_it(factory: InformerFactory, server: FakeServer) -> None:
    objects = [server.put(name) for name in "ab"]
    pages = [server.list_body(objects[:1], "102", token="more"), server.list_body(objects[1:], "102")]
    server.list_faults.extend(pages)
    is_watched = threading.Event()

    def version() -> bytes:
        assert is_watched.wait(60)
        return b'{"major":"1","minor":"33"}'

    server.version = version
    references: list[int] = []
    unused = [bytes(range(10))]

    informers = follow(factory)
    informers.add_handler(lambda _: references.extend(sys.getrefcount(page) for page in pages))
    is_watched.set()
    server.wait_stream()

    assert names(informers) == ["a", "b"]
    (alone,) = [sys.getrefcount(each) for each in unused]
    assert references == [alone] * 4


def test_requests_carry_what_keeps_quiet_kinds_alive(factory: InformerFactory, server: FakeServer) -> None:
    server.put("a")
    follow(factory, label_selector="x in (b,a)", field_selector="metadata.name!=z")
    stream = server.wait_stream()

    assert server.queries("list") == [
        {"resourceVersion": "0", "limit": "500", "labelSelector": "x in (a,b)", "fieldSelector": "metadata.name!=z"}
    ]
    assert stream.query["allowWatchBookmarks"] == "true"
    assert stream.query["resourceVersion"] == "101"
    assert 300 <= int(stream.query["timeoutSeconds"]) <= 600
    assert stream.deadline == int(stream.query["timeoutSeconds"]) + 10
    assert stream.silence == stream.deadline


def test_bookmarks_shorten_the_time_that_a_stream_may_be_silent(factory: InformerFactory, server: FakeServer) -> None:
    informers = follow(factory)
    stream = server.wait_stream()

    stream.bookmark("150")
    wait_for(informers, lambda: informers.stores()[0].rv() == "150")
    assert stream.silence == 90

    stream.cut(RequestTimeout("silent"))
    let_pause_pass(factory.clock, 0.8)  # type: ignore[arg-type] # the test's clock
    resumed = server.wait_stream(2)
    assert resumed.query["resourceVersion"] == "150"
    assert resumed.silence == 90
    assert len(server.queries("list")) == 1


def test_an_empty_list_syncs(factory: InformerFactory, server: FakeServer) -> None:
    informers = follow(factory)
    registration = informers.add_handler(Seen())
    server.wait_stream()

    wait_for(informers, informers.has_synced)
    wait_for(informers, registration.has_synced)


def test_several_namespaces_are_one_list_each_and_synced_together(factory: InformerFactory, server: FakeServer) -> None:
    for namespace in ("a", "b", "c"):
        server.put("x", namespace)
    informers = follow(factory, namespaces=("a", "b", "a"))
    server.wait_stream(2)
    wait_for(informers, informers.has_synced)

    assert sorted(path for verb, path, _ in server.requests if verb == "list") == [
        "/api/v1/namespaces/a/configmaps",
        "/api/v1/namespaces/b/configmaps",
    ]
    assert [obj.ref.key for obj in informers.lister().list()] == ["a/x", "b/x"]


def test_equal_selections_share_an_informer(factory: InformerFactory, server: FakeServer) -> None:
    one = follow(factory, label_selector="a in (x,y)")
    server.wait_stream()
    two = follow(factory, label_selector="a in (y, x)", max_staleness=5.0)

    assert one.stores()[0] is two.stores()[0]
    assert follow(factory, metadata_only=True).stores()[0] is not one.stores()[0]


def test_metadata_only_is_asked_for_and_the_kind_is_the_real_one(factory: InformerFactory, server: FakeServer) -> None:
    server.put("a", data={"k": "v"})
    informers = follow(factory, metadata_only=True)
    stream = server.wait_stream()
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    stream.event(
        "ADDED", {**partial, "metadata": {"name": "b", "namespace": "n", "uid": "u", "resourceVersion": "200"}}
    )
    wait_for(informers, lambda: len(names(informers)) == 2)

    assert [accept.split(";")[1] for accept in server.accepts] == [
        "as=PartialObjectMetadataList",
        "as=PartialObjectMetadata",
    ]
    assert [dict(obj.body).keys() for obj in informers.stores()[0].list()] == [{"apiVersion", "kind", "metadata"}] * 2
    assert {(obj.api_version, obj.kind) for obj in informers.stores()[0].list()} == {("v1", "ConfigMap")}


def test_the_kind_of_an_unknown_resource_is_asked_for_once_when_only_metadata_comes(
    factory: InformerFactory, server: FakeServer
) -> None:
    server.gvr = GVR("example.com", "v1", "widgets")
    server.list_faults.append(server.list_body([], "7").replace(b"ConfigMapList", b"WidgetList"))
    server.list_faults.append(server.list_body([], "7").replace(b"ConfigMapList", b"PartialObjectMetadataList"))
    informers = factory.follow(Selection(server.gvr, metadata_only=True))
    stream = server.wait_stream()
    meta = {"name": "b", "uid": "u", "resourceVersion": "200"}
    stream.event("ADDED", {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta})
    wait_for(informers, lambda: names(informers) == ["b"])

    assert informers.stores()[0].list()[0].kind == "Widget"
    assert server.queries("list")[0] == {"limit": "1"}


# Lists.


@pytest.mark.parametrize("kept", [{}, {"metadata_only": True}, {"transform": lambda obj: obj.body}])
def test_one_object_that_is_kept_for_long_does_not_keep_the_whole_first_list(
    factory: InformerFactory, server: FakeServer, kept: dict[str, Any]
) -> None:
    """Objects that are slices of the answer would: kubernetes/kubernetes#113305, kubernetes/client-go#1138."""
    for number in range(100):
        server.put(f"o{number}")
    answer = server.list_body(list(server.objects.values()), str(server.rv))
    before = sys.getrefcount(answer)
    server.list_faults.append(answer)
    informers = follow(factory, **kept)
    stream = server.wait_stream()
    stream.wait_read()
    assert len(names(informers)) == 100

    assert sys.getrefcount(answer) == before


def test_a_list_without_a_version_opens_no_watch_with_a_made_up_one(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.list_faults.append(b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":null}')
    follow(factory)
    stream = server.wait_stream()
    assert "resourceVersion" not in stream.query

    stream.event("ADDED", server.put("b", silent=True))
    stream.event("ADDED", server.put("a", silent=True))
    stream.cut(ConnectionLost("cut"))
    let_pause_pass(clock, 0.8)

    server.wait_stream(2)
    assert server.queries("list")[-1] == {"limit": "500"}  # unordered events say nothing about where to go on


def test_additions_move_the_version_again_once_a_bookmark_has_ended_what_was_there_at_first(
    factory: InformerFactory, server: FakeServer
) -> None:
    server.list_faults.append(b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":null}')
    informers = follow(factory)
    stream = server.wait_stream()
    stream.event("ADDED", server.put("a", silent=True))
    stream.wait_read()
    assert (names(informers), informers.stores()[0].rv()) == (["a"], "")
    stream.bookmark("150")
    server.rv = 200
    stream.event("ADDED", server.put("b", silent=True))
    stream.wait_read()
    assert informers.stores()[0].rv() == "201"

    stream.end()

    assert server.wait_stream(2).query["resourceVersion"] == "201"


def test_unusable_items_are_skipped_counted_and_told_once_and_the_rest_is_used(
    factory: InformerFactory, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"}}
    bad: list[Any] = [17, None, {}, {"metadata": {"name": "x"}}, {"metadata": {"name": 5}}, {"metadata": []}]
    server.list_faults.append(
        json.dumps({"kind": "ConfigMapList", "metadata": {"resourceVersion": "9"}, "items": [*bad, good]}).encode()
    )
    count = metrics.counter("informers_skipped_items_total", "", ("cluster", "resource"))
    before = count.total()
    informers = follow(factory)
    with caplog.at_level("WARNING"):
        stream = server.wait_stream()
        assert names(informers) == ["a"]
        for _ in range(3):
            stream.event("ADDED", {"metadata": {"name": "x"}})
        server.put("last")
        wait_for(informers, lambda: "last" in names(informers))

    assert count.total() == before + len(bad) + 3
    assert [record.message for record in caplog.records].count(
        "object skipped: no usable metadata"
    ) == 3  # "", "/", "/x"


@pytest.mark.parametrize(
    "answer",
    [
        b'{"kind":"Pod","metadata":{"resourceVersion":"9"},"items":[]}',
        b'{"kind":"Table","metadata":{"resourceVersion":"9"},"rows":[]}',
        b'{"kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"9"}}',
        b'{"kind":"Status","metadata":{},"code":200}',
        b"<html></html>",
        b"",
        b"[]",
    ],
)
def test_what_is_no_list_is_never_an_empty_list(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, answer: bytes
) -> None:
    server.put("a")
    server.list_faults.append(answer)
    informers = follow(factory)
    server.wait_requests("list", 1)
    clock.block_until_waiting(due_in=0.8)
    assert not informers.has_synced()
    assert isinstance(informers.problem(), APIError)

    clock.advance(0.8)

    server.wait_stream()
    assert names(informers) == ["a"]


def test_pages_are_used_for_ever_once_a_list_from_memory_had_more(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    first, second = (
        {"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": rv}}
        for name, rv in (("a", "5"), ("b", "6"))
    )
    server.list_faults.extend([server.list_body([first], "90", token="T"), server.list_body([second], "91")])
    informers = follow(factory)
    stream = server.wait_stream()
    assert names(informers) == ["a", "b"]
    assert server.queries("list") == [{"resourceVersion": "0", "limit": "500"}, {"limit": "500", "continue": "T"}]
    assert stream.query["resourceVersion"] == "90"  # page 1's, not the last page's

    stream.event("ERROR", EXPIRED)
    let_pause_pass(clock, 0.8)
    server.wait_stream(2)

    assert server.queries("list")[-1] == {"resourceVersion": "90", "limit": "500"}


def test_a_list_that_expires_between_pages_is_made_again_in_one_piece(
    factory: InformerFactory, server: FakeServer
) -> None:
    ghost = {"metadata": {"name": "ghost", "namespace": "n", "uid": "g", "resourceVersion": "5"}}
    server.put("a")
    server.list_faults.extend([server.list_body([ghost], "90", token="T"), api_error(410, EXPIRED)])
    informers = follow(factory)
    server.wait_stream()

    assert names(informers) == ["a"]
    assert server.queries("list")[-1] == {"resourceVersion": "0"}


def test_forced_pages_send_no_version(factory: InformerFactory, server: FakeServer) -> None:
    follow(factory, page_size=7)
    server.wait_stream()

    assert server.queries("list") == [{"limit": "7"}]


TOO_LARGE = {
    "kind": "Status",
    "code": 504,
    "reason": "Timeout",
    "details": {"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1},
}


@pytest.mark.parametrize("why", [api_error(504, TOO_LARGE), api_error(410, EXPIRED)], ids=["too large", "expired"])
def test_a_version_that_a_replica_cannot_serve_is_left_out_once_and_at_once(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, why: APIError
) -> None:
    server.put("a")
    informers = follow(factory)
    stream = server.wait_stream()
    stream.event("ERROR", EXPIRED)
    server.list_faults.append(why)
    let_pause_pass(clock, 0.8)
    server.wait_stream(2)
    assert [query.get("resourceVersion") for query in server.queries("list")] == ["0", "101", None]

    server.put("b")
    wait_for(informers, lambda: names(informers) == ["a", "b"])
    server.wait_stream(2).event("ERROR", EXPIRED)
    let_pause_pass(clock, 1.6)
    server.wait_stream(3)

    assert server.queries("list")[-1] == {"resourceVersion": "102"}  # the mark is cleared


def test_a_relist_is_not_older_than_what_was_seen_and_tells_only_what_changed(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    for n in range(100):
        server.put(f"o{n:03}")
    informers = follow(factory)
    seen = Seen()
    stream = server.wait_stream()
    informers.add_handler(seen)
    del seen.deltas[:]
    server.remove("o007", silent=True)
    server.put("new", silent=True)

    stream.event("ERROR", EXPIRED)
    let_pause_pass(clock, 0.8)
    server.wait_stream(2)

    assert server.queries("list")[-1] == {"resourceVersion": "200"}
    assert seen.wait(2) == [("o007", True, False), ("new", False, True)]
    assert seen.deltas[0].tombstone


def test_streams_that_are_silent_one_after_the_other_may_be_so_for_longer_until_a_byte_comes(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    informers = follow(factory)
    stream = server.wait_stream()
    stream.bookmark("150")
    wait_for(informers, lambda: informers.stores()[0].rv() == "150")
    limits = []
    for number, pause in enumerate([0.8, 1.6, 3.2, 6.4, 12.8], start=2):
        limits.append(stream.silence)
        stream.cut(RequestTimeout("silent"))
        let_pause_pass(clock, pause)
        stream = server.wait_stream(number)
    longest = [int(each.query["timeoutSeconds"]) + 10 for each in server.streams]
    assert limits == [90, 90, 180, min(360, longest[3]), longest[4]]

    stream.bookmark("151")
    wait_for(informers, lambda: informers.stores()[0].rv() == "151")
    assert stream.silence == 90
    stream.cut(RequestTimeout("silent"))
    let_pause_pass(clock, 25.6)
    assert server.wait_stream(7).silence == 90
    assert len(server.queries("list")) == 1


# How watches end.


@pytest.mark.parametrize("code", [401, 429])
def test_a_watch_that_may_not_be_opened_now_is_opened_again_at_the_same_version(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, code: int
) -> None:
    server.watch_faults.append(api_error(code, None, retry_after=5.0))
    follow(factory)
    server.wait_requests("watch", 1)

    let_pause_pass(clock, 5)

    server.wait_stream()
    assert len(server.queries("list")) == 1


@pytest.mark.parametrize(
    "error",
    [ConnectError("refused"), ConnectionLost("reset"), RequestTimeout("no answer")],
    ids=lambda e: type(e).__name__,
)
def test_a_watch_that_does_not_open_or_is_cut_is_resumed_without_a_list(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, error: Exception
) -> None:
    server.watch_faults.append(error)
    follow(factory)
    let_pause_pass(clock, 0.8)
    stream = server.wait_stream()
    server.put("a")
    stream.cut(error)
    let_pause_pass(clock, 1.6)

    assert server.wait_stream(2).query["resourceVersion"] == "101"
    assert len(server.queries("list")) == 1


@pytest.mark.parametrize(
    "end",
    [
        lambda stream: stream.event("ERROR", {"kind": "Status", "code": 500, "reason": "InternalError"}),
        lambda stream: stream.event("ERROR", {"kind": "Status", "message": "neither code nor reason"}),
        lambda stream: stream.event("ERROR", {}),
        lambda stream: stream.send(b'{"type":"ERROR"}'),
        lambda stream: stream.send(b'{"type":"ERROR","object":17}'),
        lambda stream: stream.send(b'{"kind":"Status","code":500,"reason":"InternalError"}'),
        lambda stream: stream.send(b'{"type":"SURPRISE","object":{}}'),
        lambda stream: stream.send(b"no JSON"),
        lambda stream: stream.send(b'"text"'),
        lambda stream: stream.cut(ZeroDivisionError("ours")),
        lambda stream: stream.end(),
    ],
    ids=["500", "bare", "empty", "none", "number", "status", "unknown", "garbage", "text", "our bug", "short"],
)
def test_after_any_other_end_everything_is_listed_again_with_backoff(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, end: Callable[[Any], None], deaths: list[Any]
) -> None:
    informers = follow(factory)
    end(server.wait_stream())
    server.put("a", silent=True)
    let_pause_pass(clock, 0.8)

    server.wait_stream(2)
    assert len(server.queries("list")) == 2
    assert names(informers) == ["a"]
    assert not deaths


def test_a_watch_that_ends_after_a_second_or_with_events_is_resumed_at_once(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    informers = follow(factory)
    stream = server.wait_stream()
    server.put("a")
    wait_for(informers, lambda: names(informers) == ["a"])
    stream.end()

    second = server.wait_stream(2)
    wait_for(informers, lambda: informers.state() == "watching")
    clock.advance(1.0)
    second.end()

    server.wait_stream(3)
    assert len(server.queries("list")) == 1


def test_the_third_short_watch_in_a_row_waits_although_it_brought_events(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    follow(factory)
    for n in range(1, 4):
        stream = server.wait_stream(n)
        server.put("a")
        stream.end()
    let_pause_pass(clock, 0.8)

    server.wait_stream(4)
    assert len(server.queries("list")) == 1


def test_waits_grow_and_are_reset_by_a_watch_that_lasted(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    informers = follow(factory)
    for n, wait in enumerate([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0], start=1):
        server.wait_stream(n).cut(ConnectionLost("cut"))
        let_pause_pass(clock, wait)
    stream = server.wait_stream(9)
    wait_for(informers, lambda: informers.state() == "watching")
    clock.advance(60)
    stream.cut(ConnectionLost("cut"))

    let_pause_pass(clock, 0.8)

    server.wait_stream(10)


def test_expiry_without_end_lists_with_growing_waits_and_tells_nothing(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    for n in range(20):
        server.put(f"o{n}")
    informers = follow(factory)
    seen = Seen()
    server.wait_stream()
    informers.add_handler(seen)
    del seen.deltas[:]
    before = metrics.counter("informers_relist_loops_total", "", ("cluster", "resource")).total()

    for n, wait in enumerate([0.8, 1.6, 3.2, 6.4], start=1):
        server.wait_stream(n).event("ERROR", EXPIRED)
        let_pause_pass(clock, wait)
    server.wait_stream(5)

    assert [query.get("limit") for query in server.queries("list")] == ["500", None, None, "500", "500"]
    assert metrics.counter("informers_relist_loops_total", "", ("cluster", "resource")).total() == before + 1
    assert seen.deltas == []
    assert server.closed_streams == 4


def test_an_event_that_is_older_than_the_store_is_dropped(factory: InformerFactory, server: FakeServer) -> None:
    server.put("a")
    informers = follow(factory)
    seen = Seen()
    informers.add_handler(seen)
    stream = server.wait_stream()
    old = {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default", "uid": "uid-default/a"}}
    stream.event("MODIFIED", {**old, "metadata": {**old["metadata"], "resourceVersion": "99"}})  # type: ignore[dict-item] # plain JSON
    server.put("b")

    assert seen.wait(2) == [("a", False, True), ("b", False, True)]


@pytest.mark.parametrize(
    "obj",
    [
        {"kind": "Secret", "metadata": {"name": "x", "uid": "u", "resourceVersion": "5000"}},
        {"kind": "ConfigMap", "metadata": {"name": "x", "resourceVersion": "5000"}},
        {"kind": "ConfigMap", "metadata": {"name": ["x"], "resourceVersion": "5000"}},
        {"kind": "ConfigMap"},
    ],
    ids=["other kind", "no uid", "bad name", "no metadata"],
)
def test_an_object_that_makes_no_sense_is_skipped_and_does_not_move_the_version(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, obj: dict[str, Any]
) -> None:
    informers = follow(factory)
    stream = server.wait_stream()
    stream.event("ADDED", obj)
    server.put("a")
    wait_for(informers, lambda: names(informers) == ["a"])
    stream.cut(ConnectionLost("cut"))
    let_pause_pass(clock, 0.8)

    assert server.wait_stream(2).query["resourceVersion"] == "101"


# What looks permanent.


def test_what_is_forbidden_is_retried_seldom_says_why_once_and_heals(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.put("a")
    server.list_faults.extend([api_error(403, {"reason": "Forbidden", "message": "may not list"})] * 3)
    informers = follow(factory)
    for n in range(1, 4):
        server.wait_requests("list", n)
        wait_for(informers, lambda: informers.state() == "forbidden")
        assert "may not list" in str(informers.problem())
        let_pause_pass(clock, 30)

    server.wait_stream()
    wait_for(informers, lambda: informers.state() == "watching")
    assert informers.problem() is None
    assert names(informers) == ["a"]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == ["step failed"]


def test_a_forbidden_watch_keeps_serving_what_is_there(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.put("a")
    server.watch_faults.append(api_error(403, {"reason": "Forbidden"}))
    informers = follow(factory)
    wait_for(informers, lambda: informers.state() == "forbidden")

    assert (informers.has_synced(), names(informers)) == (True, ["a"])
    let_pause_pass(clock, 30)
    server.wait_stream()
    assert len(server.queries("list")) == 1


def test_objects_of_a_kind_that_is_gone_become_tombstones_and_come_back_with_it(
    factory: InformerFactory, server: FakeServer, mapper: FakeMapper, clock: FakeClock
) -> None:
    kind = Resource(CONFIGMAPS, "ConfigMap", "configmap", namespaced=True)
    mapper.change(kind)
    server.put("a")
    informers = follow(factory)
    seen = Seen()
    informers.add_handler(seen)
    stream = server.wait_stream()

    server.list_faults.extend([api_error(404, None), api_error(404, None)])
    stream.cut(api_error(404, None))
    let_pause_pass(clock, 0.8)
    wait_for(informers, lambda: informers.state() == "unserved" and "" in mapper.invalidated)
    assert seen.wait(1) == [("a", False, True)]  # discovery still names it: nobody knows yet that it is gone
    server.wait_requests("list", 2)
    mapper.change()

    assert seen.wait(2)[1] == ("a", True, False)
    assert seen.deltas[1].tombstone
    assert informers.state() == "unserved"
    server.list_faults.clear()  # whether one list or two have met it
    mapper.change(kind)
    assert seen.wait(3)[2] == ("a", False, True)


# Stopping.


def test_stop_ends_a_blocked_watch_and_opens_nothing_afterwards(factory: InformerFactory, server: FakeServer) -> None:
    informers = follow(factory)
    server.wait_stream()

    factory.stop()

    assert factory.join(60) == []
    assert informers.state() == "stopped"
    assert len(server.queries("watch")) == 1
    with pytest.raises(InformersError, match="stopped"):
        informers.add_handler(Seen())
    with pytest.raises(InformersError, match="stopped"):
        follow(factory)


def test_stop_during_a_list_opens_no_watch(factory: InformerFactory, server: FakeServer) -> None:
    listing, stopped = threading.Event(), threading.Event()

    def hang() -> None:
        listing.set()
        assert stopped.wait(60)

    server.list_faults.append(hang)
    follow(factory)
    assert listing.wait(60)

    factory.stop()
    stopped.set()

    assert factory.join(60) == []
    assert server.queries("watch") == []


def test_a_stop_between_request_and_answer_is_not_lost(factory: InformerFactory, server: FakeServer) -> None:
    server.watch_faults.append(factory.stop)

    follow(factory)
    server.wait_requests("watch", 1)

    assert factory.join(60) == []


def test_stop_ends_a_wait_at_the_cap(factory: InformerFactory, server: FakeServer, clock: FakeClock) -> None:
    server.list_faults.append(api_error(403, None))
    follow(factory)
    clock.block_until_waiting(due_in=30)

    factory.stop()

    assert factory.join(60) == []


def test_a_thread_that_dies_says_so(factory: InformerFactory, server: FakeServer, deaths: list[BaseException]) -> None:
    def die() -> None:
        raise SystemExit

    server.watch_faults.append(die)
    follow(factory)
    server.wait_requests("watch", 1)
    factory.stop()
    factory.join(60)

    assert [type(death) for death in deaths] == [SystemExit]


def test_first_lists_take_turns(server: FakeServer, mapper: FakeMapper, clock: FakeClock) -> None:
    factory = InformerFactory(
        "",
        server,  # type: ignore[arg-type] # a fake with the methods that are used
        server,  # type: ignore[arg-type] # as above
        mapper,  # type: ignore[arg-type] # as above
        options=WatchOptions(first_syncs=1),
        clock=clock,
        on_thread_death=lambda error: None,
    )
    go = threading.Event()

    def hold() -> None:
        assert go.wait(60)

    server.list_faults.append(hold)
    factory.follow(Selection(CONFIGMAPS, namespaces=("a", "b")))
    factory.start()
    server.wait_requests("list", 1)
    clock.block_until_waiting(2)  # the other informer, and the factory's own thread
    assert len(server.queries("list")) == 1

    go.set()

    server.wait_stream(2)
    factory.stop()
    assert factory.join(60) == []


# Handlers.


def test_a_handler_that_raises_misses_only_that_object(factory: InformerFactory, server: FakeServer) -> None:
    for name in ("a", "b", "c"):
        server.put(name)
    seen = Seen()

    def fussy(delta: Delta) -> None:
        if delta.ref.name == "b":
            raise ValueError("b")
        seen(delta)

    informers = follow(factory)
    informers.add_handler(fussy)
    other = Seen()
    informers.add_handler(other)

    assert [name for name, _, _ in seen.wait(2)] == ["a", "c"]
    assert len(other.wait(3)) == 3


def test_handlers_take_themselves_and_others_off_inside_a_callback(
    factory: InformerFactory, server: FakeServer
) -> None:
    informers = follow(factory)
    server.wait_stream()
    wait_for(informers, informers.has_synced)
    sibling_seen, watcher = Seen(), Seen()
    taken = []

    def once(delta: Delta) -> None:
        taken.append(delta.ref.name)
        for registration in registrations:
            registration.remove()
            registration.remove()

    registrations = [informers.add_handler(once), informers.add_handler(sibling_seen)]
    informers.add_handler(watcher)
    server.put("a")
    server.put("b")
    watcher.wait(2)

    assert taken == ["a"]
    assert sibling_seen.deltas == []


def test_inside_a_callback_the_store_shows_the_change_and_no_lock_is_held(
    factory: InformerFactory, server: FakeServer
) -> None:
    informers = follow(factory)
    shown: list[tuple[bool, list[str]]] = []
    seen = Seen()

    def look(delta: Delta) -> None:
        found: list[Any] = []
        # Another thread does everything that takes locks.
        thread = threading.Thread(target=lambda: found.extend([informers.lister().find(delta.ref), names(informers)]))
        thread.start()
        thread.join(60)
        informers.add_handler(lambda delta: None).remove()
        shown.append((found[0] is delta.new, found[1]))
        seen(delta)

    informers.add_handler(look)
    server.wait_stream()
    server.put("a")
    server.put("b")
    server.remove("a")
    seen.wait(3)

    assert shown == [(True, ["a"]), (True, ["a", "b"]), (True, ["b"])]


def test_a_resync_shows_everything_again_although_the_handler_raised_the_first_time(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.put("a")
    informers = follow(factory)
    server.wait_stream()
    seen = Seen()

    def fails(delta: Delta) -> None:
        seen(delta)
        raise ValueError

    wait_for(informers, informers.has_synced)
    informers.add_handler(fails, resync=10.0)
    for count in (2, 3, 4):
        clock.block_until_waiting(due_in=11.1)
        clock.advance(11.1)
        assert seen.wait(count)[-1] == ("a", True, True)
    assert seen.deltas[-1].old is seen.deltas[-1].new
    assert len(server.queries("list")) == 1


def test_a_handler_that_is_held_up_while_it_is_added_holds_up_nobody_else(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    server.put("a")
    informers = follow(factory)
    server.wait_stream()
    wait_for(informers, informers.has_synced)
    other = Seen()
    informers.add_handler(other, resync=10.0)
    inside, go = threading.Event(), threading.Event()
    held = Seen()

    def hold(delta: Delta) -> None:
        inside.set()
        assert go.wait(60)
        held(delta)

    thread = threading.Thread(target=lambda: informers.add_handler(hold, resync=10.0))
    thread.start()
    assert inside.wait(60)

    server.put("b")
    assert other.wait(2)[-1] == ("b", False, True)
    clock.block_until_waiting(due_in=11.1)
    clock.advance(11.1)
    assert other.wait(4)[2:] == [("a", True, True), ("b", True, True)]
    go.set()
    thread.join(60)

    assert held.wait(4)[:2] == [("a", False, True), ("b", False, True)]


@pytest.mark.parametrize("options", [WatchOptions(progress_check=5.0, silence=20.0)])
def test_a_watch_that_falls_behind_is_replaced_if_that_is_to_be_checked(
    factory: InformerFactory,
    server: FakeServer,
    clock: FakeClock,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    informers = follow(factory)
    stream = server.wait_stream()
    stream.bookmark("150")
    wait_for(informers, lambda: informers.stores()[0].rv() == "150")
    server.rv = 400  # no event comes, nor a bookmark

    (informer,) = factory.informers()
    for _ in range(5):
        clock.block_until_waiting(due_in=5.0)
        assert len(server.streams) == 1
        clock.advance(5.0)
        eventually(lambda: informer._expected is not None)
    clock.block_until_waiting(due_in=1.6)
    clock.advance(1.6)

    assert server.wait_stream(2).query["resourceVersion"] == "150"
    assert server.queries("list")[1] == {"limit": "1"}


@pytest.mark.parametrize("options", [WatchOptions(progress_check=5.0)])
def test_a_kind_that_does_not_tell_how_far_it_is_holds_up_no_other(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    follow(factory, namespaces=("a", "b", "c"))
    server.wait_stream(3)
    go = threading.Event()
    server.list_faults.extend([lambda: assert_set(go)] * 3)
    clock.block_until_waiting(due_in=5.0)

    clock.advance(5.0)

    asked = server.wait_requests("list", 6)[3:]
    assert asked == [{"limit": "1"}] * 3
    go.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


# On demand.


def test_an_informer_that_nobody_needs_is_stopped_after_a_while_and_started_again_on_demand(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    first = follow(factory)
    server.wait_stream()
    store = first.stores()[0]

    first.release()
    clock.block_until_waiting(due_in=600)
    clock.advance(300)
    again = follow(factory)  # in time: the same one
    assert again.stores()[0] is store
    again.release()
    clock.block_until_waiting(due_in=600)
    clock.advance(600)
    third = follow(factory)
    while third.stores()[0] is store:  # the factory's thread is about to take it out
        third.release()
        clock.block_until_waiting(due_in=600)
        clock.advance(600)
        third = follow(factory)

    server.wait_stream(2)
    wait_for(third, third.has_synced)
    assert first.state() == "stopped"


# What the numbers and the requests say.


def test_watches_last_differently_long_so_that_informers_do_not_fall_into_step(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    follow(factory)
    for n in range(1, 13):
        stream = server.wait_stream(n)
        clock.advance(2)
        stream.end()
    server.wait_stream(13)

    asked = [int(query["timeoutSeconds"]) for query in server.queries("watch")]
    assert all(300 <= seconds <= 600 for seconds in asked)
    assert len(set(asked)) > 6


def test_a_watch_that_brought_events_for_ten_seconds_was_a_good_one(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    informers = follow(factory)
    for n, wait in enumerate([0.8, 1.6, 3.2], start=1):
        server.wait_stream(n).cut(ConnectionLost("cut"))
        let_pause_pass(clock, wait)
    stream = server.wait_stream(4)
    clock.advance(10)
    server.put("a")
    wait_for(informers, lambda: names(informers) == ["a"])
    stream.cut(ConnectionLost("cut"))

    let_pause_pass(clock, 0.8)

    server.wait_stream(5)


@pytest.mark.parametrize(
    ("end", "counter"),
    [
        (lambda stream: stream.send(b"no JSON"), "informers_undecodable_events_total"),
        (lambda stream: stream.cut(LineTooLong("long")), "informers_oversized_events_total"),
    ],
)
def test_lines_that_cannot_be_taken_in_are_counted_and_followed_by_a_list(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, end: Callable[[Any], None], counter: str
) -> None:
    count = metrics.counter(counter, "", ("cluster", "resource"))
    before = count.total()
    follow(factory)

    end(server.wait_stream())
    let_pause_pass(clock, 0.8)

    server.wait_stream(2)
    assert count.total() == before + 1
    assert len(server.queries("list")) == 2


def test_what_has_not_changed_is_not_looked_at_again_in_a_list(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    for name in ("a", "b", "c"):
        server.put(name)
    looked_at: list[str] = []

    def transform(obj: Object) -> Mapping[str, JSON]:
        looked_at.append(obj.name)
        return obj.thaw()

    follow(factory, transform=transform)
    stream = server.wait_stream()
    assert looked_at == ["a", "b", "c"]
    server.put("b", silent=True)

    stream.event("ERROR", EXPIRED)
    let_pause_pass(clock, 0.8)

    server.wait_stream(2)
    assert looked_at == ["a", "b", "c", "b"]


def test_a_server_that_was_set_back_is_followed(factory: InformerFactory, server: FakeServer, clock: FakeClock) -> None:
    server.rv = 1000
    server.put("a", data={"k": "new"})
    server.put("gone")
    informers = follow(factory)
    stream = server.wait_stream()
    wait_for(informers, lambda: names(informers) == ["a", "gone"])
    server.remove("gone", silent=True)
    server.rv = 100
    server.put("a", silent=True, data={"k": "old"})
    server.list_faults.append(api_error(504, {"reason": "Timeout", "message": "Too large resource version: 1002"}))

    stream.event("ERROR", EXPIRED)
    let_pause_pass(clock, 0.8)
    server.wait_stream(2)
    assert [obj.get("data", "k") for obj in informers.stores()[0].list()] == ["old"]
    server.put("a", data={"k": "next"})

    wait_for(informers, lambda: informers.stores()[0].list()[0].get("data", "k") == "next")


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_stop_in_the_moment_before_a_call_is_made_cuts_that_call(
    factory: InformerFactory, server: FakeServer, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The call itself would take for ever: nobody is there to cut it any more."""
    made: list[Cancel] = []

    class Late(Cancel):
        def __init__(self) -> None:
            made.append(self)
            if len(made) == (1 if verb == "list" else 2):
                factory.stop()
            super().__init__()

    monkeypatch.setattr("informers.cache.reflector.Cancel", Late)

    follow(factory)

    assert factory.join(60) == []
    assert made[-1].is_cancelled()
    assert len(made) == (1 if verb == "list" else 2)


def test_first_lists_of_a_crowd_are_spread(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("informers.cache.firstsyncs.random.random", lambda: 0.5)
    turns, stop, go = FirstSyncs(1, clock), Stop(clock), threading.Event()

    def take_turn(hold: threading.Event | None = None) -> None:
        with turns.turn(stop):
            if hold is not None:
                assert hold.wait(60)

    threads = [threading.Thread(target=take_turn, args=(go,))]
    threads[0].start()
    threads += [threading.Thread(target=take_turn) for _ in range(2)]
    for thread in threads[1:]:
        thread.start()
    clock.block_until_waiting(2)
    go.set()

    let_pause_pass(clock, 0.1)

    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_an_informer_that_was_stopped_because_nobody_needs_it_frees_its_store(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    """Whatever the garbage collector does: it does not look at what was frozen."""
    server.put("a")
    informers = follow(factory)
    server.wait_stream()
    store = informers.stores()[0]
    stopped = factory.informers()[0]
    assert (len(store), store.size() > 0) == (1, True)

    informers.release()
    clock.block_until_waiting(due_in=600)
    clock.advance(600)

    assert stopped.join(60) == ""
    clock.block_until_waiting()  # the factory's thread is done with it
    assert (len(store), store.size(), store.is_filled()) == (0, 0, False)


def test_an_informer_that_takes_long_to_stop_frees_its_store_when_it_has(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that does not answer holds a thread up, say."""
    held, go, tried, freed = (threading.Event() for _ in range(4))
    join, free = Informer.join, Informer.free

    def note_join(self: Informer, timeout: float | None = None) -> str:
        left = join(self, 60.0 if tried.is_set() else 0.0)
        tried.set()
        return left

    def note_free(self: Informer) -> None:
        free(self)
        freed.set()

    monkeypatch.setattr(Informer, "join", note_join)
    monkeypatch.setattr(Informer, "free", note_free)
    informers = follow(factory)
    server.wait_stream()
    store = informers.stores()[0]

    def hold() -> None:
        held.set()
        assert_set(go)

    store.on_advance(hold)
    server.put("a")
    assert_set(held)
    informers.release()
    clock.block_until_waiting(due_in=600)
    clock.advance(600)
    assert_set(tried)
    assert not freed.is_set()

    go.set()

    assert_set(freed)
    assert (len(store), store.is_filled()) == (0, False)


def test_a_handler_that_takes_itself_off_is_not_told_the_rest_of_what_came_together(
    factory: InformerFactory, server: FakeServer, clock: FakeClock
) -> None:
    informers = follow(factory)
    stream = server.wait_stream()
    told: list[str] = []

    def handler(delta: Delta) -> None:
        told.append(delta.ref.name)
        registration.remove()

    registration = informers.add_handler(handler)
    for name in ("a", "b", "c"):
        server.put(name, silent=True)

    stream.event("ERROR", EXPIRED)
    let_pause_pass(clock, 0.8)

    server.wait_stream(2)
    assert told == ["a"]


def test_no_handler_is_added_to_an_informer_that_is_stopped(factory: InformerFactory, server: FakeServer) -> None:
    informers = follow(factory)
    server.wait_stream()
    informer = factory.informers()[0]

    factory.stop()

    for each in (informers, informer):
        with pytest.raises(InformersError, match="stopped"):
            each.add_handler(lambda delta: None)


def test_periods_of_resyncs_differ_so_that_handlers_do_not_fall_into_step(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, float]] = []

    def longest(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    informers = follow(factory)
    server.wait_stream()
    monkeypatch.setattr("informers.cache.informer.random.uniform", longest)

    informers.add_handler(lambda delta: None, resync=10.0)

    assert asked == [(0.9, 1.1)]
    let_pause_pass(clock, 11.0)


def test_a_slow_handler_is_counted_each_time_and_told_once_a_minute(
    factory: InformerFactory, server: FakeServer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    count = metrics.counter("informers_slow_handlers_total", "", ("cluster", "resource"))
    before = count.total()
    for n in range(3):
        server.put(f"o{n}")
    informers = follow(factory)
    server.wait_stream()

    informers.add_handler(lambda delta: clock.advance(0.2))
    informers.add_handler(lambda delta: clock.advance(0.05))

    assert count.total() == before + 3
    assert [record.message for record in caplog.records] == ["slow handler"]


@pytest.mark.parametrize("options", [WatchOptions(gzip=True), WatchOptions(gzip=False), WatchOptions()])
def test_lists_are_compressed_if_asked_for_and_not_on_this_machine(
    factory: InformerFactory, server: FakeServer, options: WatchOptions
) -> None:
    follow(factory)
    server.wait_stream()

    assert server.compressed == [options.gzip is True]


def test_whole_objects_are_the_second_choice_of_who_wants_metadata(
    factory: InformerFactory, server: FakeServer
) -> None:
    follow(factory, metadata_only=True)
    server.wait_stream()

    assert [accept.split(",")[1:] for accept in server.accepts] == [["application/json"]] * 2
