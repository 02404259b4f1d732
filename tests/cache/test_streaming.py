"""What is there comes as the beginning of a watch; and what follows when it does not."""

from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from informers import metrics
from informers.api.calls import LineTooLong
from informers.backoff import Backoff
from informers.cache.factory import InformerFactory, InformerSet
from informers.cache.listwatch import Initial, Selection, WatchOptions
from informers.cache.store import Delta, StoreWriter
from informers.cache.streaming import is_new_enough
from informers.meta.errors import APIError, ConnectError, ConnectionLost, RequestTimeout, api_error
from informers.meta.objects import Object
from informers.meta.resources import GVR
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.cache.conftest import FakeMapper, FakeServer, FakeStream

CONFIGMAPS = GVR("", "v1", "configmaps")
TOO_LARGE = {"reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "m"}]}}
NEW = b'{"major":"1","minor":"36"}'


class Local:
    """One cluster's informers, and what one handler was told."""

    def __init__(self, server: FakeServer, mapper: FakeMapper, clock: FakeClock, **options: Any) -> None:
        chosen = {"initial": "stream", "backoff": Backoff(0.8, 30.0, jitter=0.0), **options}
        self.clock = clock
        self.server = server
        self.factory = InformerFactory(
            "",
            server,  # type: ignore[arg-type] # a fake with the methods that are used
            server,  # type: ignore[arg-type] # as above
            mapper,  # type: ignore[arg-type] # as above
            options=WatchOptions(**chosen),
            clock=clock,
            on_thread_death=lambda error: None,
        )
        self.changed = threading.Condition()
        self.deltas: list[Delta] = []
        self.factory.start()

    def follow(self, **options: Any) -> InformerSet:
        informers = self.factory.follow(Selection(CONFIGMAPS, **options))
        informers.on_change(self.wake)
        informers.add_handler(self.tell)
        for store in informers.stores():
            store.on_advance(self.wake)
        return informers

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def tell(self, delta: Delta) -> None:
        with self.changed:
            self.deltas.append(delta)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 60), (self.deltas, self.server.requests)

    def pause(self, seconds: float) -> None:
        """Wait until somebody waits for exactly so long, then let it come."""
        self.clock.block_until_waiting(due_in=seconds + 0.001)
        assert not self.clock._waiting_now(seconds - 0.001), "a shorter pause"
        self.clock.advance(seconds + 0.001)

    def told(self) -> list[tuple[str, str]]:
        return [(_word(delta), delta.ref.name) for delta in self.deltas]

    def close(self) -> None:
        self.factory.stop()
        for stream in self.server.streams:
            stream.end()
        assert self.factory.join(60) == []


def _word(delta: Delta) -> str:
    if delta.new is None:
        return "tombstone" if delta.tombstone else "deleted"
    if delta.old is None:
        return "initial" if delta.initial else "added"
    return "modified"


@pytest.fixture
def initial() -> Initial:
    return "stream"


@pytest.fixture
def local(server: FakeServer, mapper: FakeMapper, clock: FakeClock, initial: Initial) -> Iterator[Local]:
    made = Local(server, mapper, clock, initial=initial)
    yield made
    made.close()


def configmap(name: str, rv: int, **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": str(rv), **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"v": str(rv)}}


def names(informers: InformerSet) -> list[str]:
    return [obj.name for store in informers.stores() for obj in store.list()]


def unsupported() -> float:
    return metrics.gauge("informers_streaming_unsupported", "", ("cluster", "resource")).value(
        cluster="", resource=str(CONFIGMAPS)
    )


def lists() -> Mapping[str, float]:
    """Return how often all was asked for, by cause."""
    counter = metrics.counter("informers_lists_total", "", ("cluster", "resource", "cause"))
    return {cause: count for (_, _, cause), count in counter.samples() if count}


@pytest.fixture(autouse=True)
def no_marks() -> Iterator[None]:
    yield
    metrics.gauge("informers_streaming_unsupported", "", ("cluster", "resource")).remove(
        cluster="", resource=str(CONFIGMAPS)
    )


def sync(local: Local, *objects: dict[str, Any], rv: str = "150") -> tuple[InformerSet, FakeStream]:
    informers = local.follow()
    stream = local.server.wait_stream()
    for each in objects:
        stream.event("ADDED", each)
    stream.end_initial(rv)
    local.wait(lambda: informers.state() == "watching")
    return informers, stream


# The good case.


def test_one_object_that_is_kept_for_long_does_not_keep_what_came_with_it(local: Local, server: FakeServer) -> None:
    """As with lists: kubernetes/kubernetes#113305."""
    objects = [configmap(f"o{number}", 100 + number) for number in range(100)]
    lines = [json.dumps({"type": "ADDED", "object": each}).encode() for each in objects]
    before = [sys.getrefcount(each) for each in lines]
    informers = local.follow()
    stream = server.wait_stream()
    for line in lines:
        stream.send(line)
    stream.end_initial("250")
    local.wait(lambda: informers.state() == "watching")
    stream.wait_read()
    assert len(names(informers)) == 100

    del line
    assert [sys.getrefcount(each) for each in lines] == before


def test_what_is_there_is_collected_aside_and_the_same_stream_goes_on(local: Local, server: FakeServer) -> None:
    informers = local.follow()
    stream = server.wait_stream()
    stream.event("ADDED", configmap("b", 110))
    stream.event("ADDED", configmap("a", 105, managedFields=[{"manager": "m"}]))
    stream.event("MODIFIED", configmap("b", 120))
    stream.event("ADDED", configmap("gone", 90))
    stream.event("DELETED", configmap("gone", 121))
    stream.bookmark("130")
    stream.event("ADDED", {"kind": "Secret", "metadata": {"name": "s", "uid": "u", "resourceVersion": "1"}})
    stream.wait_read()
    assert informers.state() == "syncing"
    assert (names(informers), informers.stores()[0].rv(), local.told()) == ([], "", [])

    stream.end_initial("150")
    local.wait(lambda: informers.state() == "watching")

    assert local.told() == [("initial", "b"), ("initial", "a")]
    assert names(informers) == ["a", "b"]
    assert informers.stores()[0].rv() == "150"
    a, b = informers.stores()[0].list()
    assert (b.resource_version, b.kind, b"managedFields" in a.raw) == ("120", "ConfigMap", False)
    stream.event("MODIFIED", configmap("a", 160))
    local.wait(lambda: ("modified", "a") in local.told())
    assert informers.stores()[0].rv() == "160"
    assert [verb for verb, _, _ in server.requests] == ["watch"]


def test_a_stream_is_asked_for_without_a_version_and_may_last_as_a_watch(local: Local, server: FakeServer) -> None:
    local.follow(label_selector="a=b")
    stream = server.wait_stream()

    query = dict(stream.query)
    seconds = int(query.pop("timeoutSeconds"))
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "labelSelector": "a=b",
    }
    assert 300 <= seconds <= 600
    assert (stream.deadline, stream.silence) == (30, seconds + 10)
    stream.end_initial("150")
    local.wait(lambda: stream.silence == 90)
    assert stream.until == local.clock.monotonic() + seconds + 10


def test_an_empty_stream_syncs_and_tells_the_kind(local: Local, server: FakeServer) -> None:
    informers, stream = sync(local)

    assert informers.has_synced()
    assert local.told() == []
    stream.event("ADDED", {"kind": "Secret", "metadata": {"name": "s", "uid": "u", "resourceVersion": "151"}})
    stream.event("ADDED", configmap("a", 152))
    local.wait(lambda: bool(local.deltas))
    assert local.told() == [("added", "a")]


def test_after_any_break_the_stream_is_resumed_as_a_plain_watch(local: Local, server: FakeServer) -> None:
    _, stream = sync(local, configmap("a", 100))
    local.clock.advance(2)
    stream.end()
    second = server.wait_stream(2)
    second.bookmark("170")
    second.cut(ConnectionLost("reset"))
    local.pause(0.8)
    third = server.wait_stream(3)
    third.cut(RequestTimeout("silent"))
    local.pause(1.6)

    resumed = [server.wait_stream(number).query for number in (2, 3, 4)]
    assert [query["resourceVersion"] for query in resumed] == ["150", "170", "170"]
    assert not [query for query in resumed if "sendInitialEvents" in query]
    assert not server.queries("list")


def test_a_version_that_expired_is_streamed_again_not_older_and_tells_only_what_changed(
    local: Local, server: FakeServer
) -> None:
    _, stream = sync(local, configmap("a", 100), configmap("b", 101), configmap("c", 102))
    del local.deltas[:]
    stream.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    local.pause(0.8)
    again = server.wait_stream(2)
    assert (again.query["sendInitialEvents"], again.query["resourceVersion"]) == ("true", "150")

    again.event("ADDED", configmap("a", 100))
    again.event("ADDED", configmap("b", 160))
    again.event("ADDED", configmap("d", 161))
    assert local.told() == []
    again.end_initial("170")
    local.wait(lambda: len(local.deltas) == 3)

    assert local.told() == [("tombstone", "c"), ("modified", "b"), ("added", "d")]
    assert not server.queries("list")
    assert lists() == {"start": 1, "expired": 1}


def test_any_other_reason_to_start_over_is_a_list(local: Local, server: FakeServer) -> None:
    _, stream = sync(local)
    stream.send(b"no JSON")
    local.pause(0.8)

    server.wait_stream(2)
    assert server.queries("list") == [{"resourceVersion": "150"}]


def test_transforms_see_each_object_once(local: Local, server: FakeServer) -> None:
    seen = []

    def transform(obj: Object) -> None:
        seen.append(obj.name)

    informers = local.follow(transform=transform)
    stream = server.wait_stream()
    stream.event("ADDED", configmap("a", 100))
    stream.end_initial("150")
    local.wait(informers.has_synced)

    assert seen == ["a"]
    assert informers.lister().get("a", "n").get("data") is None


def test_what_is_collected_is_what_is_kept(local: Local, server: FakeServer) -> None:
    """While it comes, no more than twice the memory is used that the store holds afterwards."""

    def lines_before(rest: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        managed = [{"manager": "m" * 3000}]
        for number in range(200):
            obj = configmap(f"c{number:04}", number + 1, managedFields=managed)
            yield json.dumps({"type": "ADDED", "object": {**obj, "data": {"v": "x" * 3000}}}).encode()
        end = {"resourceVersion": "2000", "annotations": {"k8s.io/initial-events-end": "true"}}
        yield json.dumps({"type": "BOOKMARK", "object": {"metadata": end}}).encode()
        yield from rest()

    def serve(stream: FakeStream) -> None:
        rest = stream.lines
        stream.lines = lambda: lines_before(rest)  # type: ignore[method-assign] # each line is made as it is taken

    server.openings.append(serve)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        informers = local.follow()
        local.wait(informers.has_synced)
        local.deltas.clear()
        final, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(informers.stores()[0]) == 200
    assert peak - before < 2 * (final - before)
    assert final - before > 600_000


@pytest.mark.parametrize("initial", ["auto"])
def test_a_history_that_is_too_short_for_streams_and_lists_alike_is_met_with_pages(
    local: Local, server: FakeServer
) -> None:
    server.version = NEW
    informers = local.follow()
    for number, pause in enumerate([0.8, 1.6, 3.2], start=1):
        stream = server.wait_stream(number)
        stream.end_initial("150")
        stream.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
        local.pause(pause)

    local.wait(lambda: len(server.streams) == 4 and informers.state() == "watching")
    assert [verb for verb, _, _ in server.requests] == ["version", *["watch"] * 3, "list", "watch"]
    assert server.queries("list") == [{"limit": "500"}]


# What goes wrong.


@pytest.mark.parametrize(
    "cut",
    [
        lambda stream: stream.end(),
        lambda stream: stream.cut(ConnectionLost("reset")),
        lambda stream: stream.cut(RequestTimeout("silent")),
    ],
    ids=["clean", "reset", "silent"],
)
def test_a_stream_that_ends_early_is_thrown_away_and_asked_for_again(
    local: Local, server: FakeServer, cut: Callable[[FakeStream], None]
) -> None:
    informers = local.follow()
    stream = server.wait_stream()
    stream.event("ADDED", configmap("a", 100))
    cut(stream)
    local.pause(0.8)

    again = server.wait_stream(2)
    assert (names(informers), informers.has_synced(), local.told()) == ([], False, [])
    again.event("ADDED", configmap("b", 100))
    again.end_initial("150")
    local.wait(informers.has_synced)
    assert names(informers) == ["b"]
    assert [stream.query.get("sendInitialEvents") for stream in server.streams] == ["true", "true"]
    assert stream.is_closed
    assert not server.queries("list")


def test_a_stream_that_is_always_cut_is_listed(local: Local, server: FakeServer) -> None:
    informers = local.follow()
    for number, pause in enumerate([0.8, 1.6], start=1):
        server.wait_stream(number).cut(ConnectionLost("reset"))
        local.pause(pause)
    server.wait_stream(3).cut(ConnectionLost("reset"))

    local.wait(lambda: informers.state() == "watching")
    assert len(server.queries("list")) == 1
    assert not unsupported()


@pytest.mark.parametrize(
    "error",
    [ConnectError("refused"), api_error(429, None), api_error(500, None), api_error(503, None), api_error(401, None)],
    ids=["refused", "429", "500", "503", "401"],
)
def test_a_stream_that_is_refused_for_the_moment_is_asked_for_again(
    local: Local, server: FakeServer, error: Exception
) -> None:
    server.watch_faults += [error, error, error, error]
    local.follow()
    for pause in (0.8, 1.6, 3.2, 6.4):
        local.pause(pause)

    assert server.wait_stream().query["sendInitialEvents"] == "true"
    assert not server.queries("list")
    assert not unsupported()


def test_a_server_says_how_long_to_wait(local: Local, server: FakeServer) -> None:
    server.watch_faults.append(api_error(429, None, retry_after=5.0))
    local.follow()
    local.pause(5)

    server.wait_stream()
    assert not server.queries("list")


@pytest.mark.parametrize("body", [{"reason": "Expired", "code": 410}, TOO_LARGE], ids=["expired", "too large"])
def test_a_version_that_cannot_be_served_is_left_out_at_once(
    local: Local, server: FakeServer, body: dict[str, Any]
) -> None:
    _, stream = sync(local)
    stream.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    server.watch_faults += [api_error(504, body), api_error(504, body)]
    local.pause(0.8)
    server.wait_requests("watch", 3)
    local.pause(1.6)  # without a version it is a failure like any other
    again = server.wait_stream(2)

    asked = server.queries("watch")
    assert [query.get("resourceVersion") for query in asked] == [None, "150", None, None]
    assert all(query["sendInitialEvents"] == "true" for query in asked)
    again.end_initial("200")
    local.wait(lambda: not server.queries("list") and again.silence == 90)


@pytest.mark.parametrize(
    "fault",
    [
        *(api_error(status, None) for status in (400, 403, 404, 405, 415, 422)),
        APIError("media type", status=200),
        LineTooLong("too long"),
        RequestTimeout("headers are held back"),
        lambda stream: stream.send(b"no JSON"),
        lambda stream: stream.send(b'{"kind":"ConfigMapList","metadata":{"resourceVersion":"1"},"items":[]}'),
        lambda stream: stream.end_initial(""),
    ],
    ids=["400", "403", "404", "405", "415", "422", "media", "long", "held", "garbage", "list", "no version"],
)
def test_what_cannot_be_streamed_is_listed_in_the_same_cycle_and_the_second_time_for_good(
    local: Local, server: FakeServer, fault: Exception | Callable[[FakeStream], None]
) -> None:
    def refuse() -> None:
        if isinstance(fault, Exception):
            server.watch_faults.append(fault)
        else:
            server.openings.append(fault)

    def expire() -> None:
        server.streams[-1].event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})

    refuse()
    informers = local.follow()
    local.wait(lambda: informers.state() == "watching")
    assert [verb for verb, _, _ in server.requests] == ["watch", "list", "watch"]
    assert not unsupported()

    refuse()
    expire()
    local.pause(0.8)
    server.wait_requests("watch", 4)
    assert [verb for verb, _, _ in server.requests][3:] == ["watch", "list", "watch"]
    assert unsupported()

    local.wait(lambda: informers.state() == "watching")
    expire()
    local.pause(1.6)
    server.wait_requests("watch", 5)
    assert [verb for verb, _, _ in server.requests][6:] == ["list", "watch"]


def test_a_list_that_is_refused_too_says_nothing_about_streaming(local: Local, server: FakeServer) -> None:
    for _ in range(3):
        server.watch_faults.append(api_error(403, None))
        server.list_faults.append(api_error(403, None))
    informers = local.follow()
    for number in range(1, 4):
        server.wait_requests("list", number)
        local.wait(lambda: informers.state() == "forbidden")
        local.pause(30)

    server.wait_stream().end_initial("150")
    local.wait(lambda: informers.state() == "watching")
    assert not unsupported()


def test_a_stream_without_end_is_listed_and_the_resource_from_then_on(
    local: Local, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    began = local.clock.monotonic()
    informers = local.follow(namespaces=("a", "b"))
    streams = [server.wait_stream(), server.wait_stream(2)]
    for stream in streams:
        stream.event("ADDED", configmap("a", 100))
        stream.wait_read()
        assert stream.until == began + 30
    local.clock.advance(25)
    for stream in streams:
        stream.event("ADDED", configmap("b", 101))
        stream.wait_read()
        assert stream.until == began + 35
    local.clock.advance(5)
    for stream in streams:
        stream.event("MODIFIED", configmap("b", 119))
        stream.bookmark("120")
        stream.wait_read()
        assert stream.until == began + 35
    local.clock.advance(5)
    for stream in streams:
        stream.cut(RequestTimeout("its own deadline"))
    local.wait(lambda: informers.state() == "watching")

    assert unsupported()
    assert [query.get("sendInitialEvents") for query in server.queries("watch")] == ["true", "true", None, None]
    assert len(server.queries("list")) == 2
    lines = [record for record in caplog.records if "cannot be streamed" in record.getMessage()]
    assert len(lines) == 1


def test_a_stream_that_lasts_its_whole_time_without_an_end_has_none(local: Local, server: FakeServer) -> None:
    informers = local.follow()
    stream = server.wait_stream()
    local.clock.advance(int(stream.query["timeoutSeconds"]))
    stream.end()

    local.wait(lambda: informers.state() == "watching")
    assert unsupported()
    assert len(server.queries("list")) == 1


def test_a_stream_without_end_is_not_followed_for_longer_than_a_watch_although_objects_are_added_all_the_time(
    local: Local, server: FakeServer
) -> None:
    local.follow()
    stream = server.wait_stream()
    ends = local.clock.monotonic() + int(stream.query["timeoutSeconds"]) + 10

    local.clock.advance(int(stream.query["timeoutSeconds"]) + 5)
    stream.event("ADDED", configmap("late", 100))
    stream.wait_read()

    assert stream.until == ends


def test_a_stop_ends_a_stream_before_its_end(local: Local, server: FakeServer) -> None:
    informers = local.follow()
    stream = server.wait_stream()
    stream.event("ADDED", configmap("a", 100))

    local.factory.stop()

    assert local.factory.join(60) == []
    assert stream.is_closed
    assert (informers.has_synced(), len(server.requests)) == (False, 1)


def test_a_stop_in_the_moment_of_the_end_closes_the_stream(local: Local, server: FakeServer) -> None:
    informers = local.follow()
    informers.on_change(lambda: local.factory.stop() if informers.has_synced() else None)
    stream = server.wait_stream()

    stream.end_initial("150")

    assert local.factory.join(60) == []
    assert stream.is_closed


def test_a_stream_that_could_not_be_taken_over_is_not_gone_on_with(
    local: Local, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = StoreWriter.replace
    faults = [ZeroDivisionError("ours")]

    def fail_once(writer: StoreWriter, *arguments: Any, **options: Any) -> None:
        if faults:
            raise faults.pop()
        replace(writer, *arguments, **options)

    monkeypatch.setattr(StoreWriter, "replace", fail_once)
    server.put("a")
    informers = local.follow()
    stream = server.wait_stream()
    stream.event("ADDED", configmap("b", 100))
    stream.end_initial("150")
    local.wait(lambda: informers.state() == "watching")

    assert stream.is_closed
    assert names(informers) == ["a"]  # a list did it
    assert [verb for verb, _, _ in server.requests] == ["watch", "list", "watch"]


# Who is asked for streams.


@pytest.mark.parametrize("initial", ["auto"])
@pytest.mark.parametrize(
    ("version", "streams"),
    [
        (b'{"major":"1","minor":"36"}', True),
        (b'{"major":"1","minor":"34+"}', True),
        (b'{"major":"2","minor":"0"}', True),
        (b'{"major":"1","minor":"33"}', False),
        (b'{"major":"","minor":""}', False),
        (b"<html>", False),
        (api_error(403, None), False),
        (api_error(503, None), False),
        (ConnectError("refused"), False),
        (RequestTimeout("slow"), False),
    ],
    ids=["1.36", "1.34+", "2.0", "1.33", "empty", "html", "forbidden", "busy", "refused", "slow"],
)
def test_only_servers_that_are_new_enough_are_asked_and_the_version_once(
    local: Local, server: FakeServer, version: bytes | Exception, streams: bool
) -> None:
    server.version = version
    local.follow(namespaces=("a", "b"))
    local.follow(label_selector="x=y")

    opened = [server.wait_stream(number) for number in (1, 2, 3)]

    assert ["sendInitialEvents" in stream.query for stream in opened] == [streams] * 3
    assert len(server.queries("list")) == (0 if streams else 3)
    assert len(server.queries("version")) == 1


@pytest.mark.parametrize("initial", ["auto"])
def test_a_version_that_was_not_told_is_asked_for_again_after_a_while(local: Local, server: FakeServer) -> None:
    server.version = api_error(503, None)
    local.follow()
    stream = server.wait_stream()
    server.version = NEW
    stream.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    local.pause(0.8)
    again = server.wait_stream(2)
    assert "sendInitialEvents" not in again.query
    local.clock.advance(61)

    again.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    local.pause(0.8)

    assert "sendInitialEvents" in server.wait_stream(3).query
    assert len(server.queries("version")) == 2


def test_who_lists_pages_or_streams_anyway_asks_for_no_version(
    server: FakeServer, mapper: FakeMapper, clock: FakeClock
) -> None:
    server.version = NEW
    choices: list[dict[str, Any]] = [{"initial": "list"}, {"initial": "auto", "page_size": 7}, {"initial": "stream"}]
    for number, options in enumerate(choices):
        local = Local(server, mapper, clock, **options)
        local.follow()
        server.wait_stream(number + 1)
        local.close()

    assert [verb for verb, _, _ in server.requests] == ["list", "watch", "list", "watch", "watch"]
    assert [query.get("limit") for query in server.queries("list")] == ["500", "7"]


@pytest.mark.parametrize("initial", ["auto"])
def test_a_stop_ends_the_wait_for_a_version(local: Local, server: FakeServer) -> None:
    asked = threading.Event()
    go = threading.Event()

    def hold() -> bytes:
        asked.set()
        assert go.wait(60)
        return NEW

    server.version = hold
    local.follow(namespaces=("a", "b"))
    assert asked.wait(60)
    local.clock.block_until_waiting(2)  # the other informer, and the factory's own thread

    local.factory.stop()
    go.set()

    assert local.factory.join(60) == []
    assert [verb for verb, _, _ in server.requests] == ["version"]


def test_versions_compare_as_numbers() -> None:
    assert is_new_enough(b'{"major":"1","minor":"100"}')
    assert not is_new_enough(b'{"major":"1","minor":"9"}')
    assert not is_new_enough(b'{"major":"x","minor":"36"}')
