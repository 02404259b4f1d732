"""An informer's numbers are right while it runs, and gone when it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from informers import metrics
from informers.backoff import Backoff
from informers.cache.factory import InformerFactory
from informers.cache.listwatch import Selection, WatchOptions
from informers.meta.resources import GVR
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.cache.conftest import FakeMapper, FakeServer

CONFIGMAPS = GVR("", "v1", "configmaps")
CLUSTER = "numbered"
LABELS = {"cluster": CLUSTER, "resource": "configmaps.v1"}


def numbers() -> Mapping[str, float]:
    """Return all numbers of this cluster, by name and other labels."""
    found = {}
    for series in metrics.all_series():
        for key, value in series.samples():
            labels = dict(zip(series.labels, key, strict=True))
            if labels.pop("cluster", None) == CLUSTER:
                labels.pop("resource", None)
                name = series.name.removeprefix("informers_")
                shown = name + "".join(f" {one}" for one in labels.values())
                found[shown] = float(value.count) if isinstance(value, metrics.Distribution) else float(value)
    return found


def until(holds: Callable[[], object]) -> None:
    tick = threading.Event()
    for _ in range(2000):
        if holds():
            return
        tick.wait(0.01)
    raise AssertionError(f"not in time: {numbers()}")


@contextmanager
def following(server: FakeServer, mapper: FakeMapper, clock: FakeClock) -> Iterator[InformerFactory]:
    factory = InformerFactory(
        CLUSTER,
        server,  # type: ignore[arg-type] # a fake with the methods that are used
        server,  # type: ignore[arg-type] # as above
        mapper,  # type: ignore[arg-type] # as above
        options=WatchOptions(backoff=Backoff(0.8, 30.0, jitter=0.0), initial="list"),
        clock=clock,
        on_thread_death=lambda _: None,
    )
    factory.start()
    try:
        yield factory
    finally:
        factory.stop()
        assert factory.join(60) == []


def test_an_informers_numbers_are_right_and_go_with_it(
    server: FakeServer, mapper: FakeMapper, clock: FakeClock
) -> None:
    server.put("a")
    server.put("b")
    with following(server, mapper, clock) as factory:
        informers = factory.follow(Selection(CONFIGMAPS), required=True)
        stream = server.wait_stream()
        until(lambda: informers.state() == "watching")
        server.put("c")
        until(lambda: len(informers.stores()[0]) == 3)
        stream.bookmark("1000")
        until(lambda: numbers()["store_rv"] == 1000)
        clock.advance(7)

        found = numbers()
        assert found["state watching"] == found["watching"] == 1
        assert sum(value for name, value in found.items() if name.startswith("state ")) == 1
        assert found["lists_total start"] == found["list_seconds"] == found["watches_total"] == 1
        assert found["list_items"] == 2
        assert found["store_objects"] == 3
        assert found["store_bytes"] == informers.stores()[0].size() > 0
        assert found["store_rv"] == 1000
        assert found["last_event_age_seconds"] == 7
        assert found["watch_events_total ADDED"] == found["watch_events_total BOOKMARK"] == 1
        for name in (
            *("lists_total expired", "relist_loops_total", "short_watches_total", "watch_silences_total"),
            *("undecodable_events_total", "oversized_events_total", "stale_events_total", "transform_errors_total"),
            *("index_errors_total", "handler_errors_total", "slow_handlers_total", "watch_events_total DELETED"),
        ):
            assert found[name] == 0, name

    assert numbers() == {}


def test_two_informers_of_one_resource_are_told_together(
    server: FakeServer, mapper: FakeMapper, clock: FakeClock
) -> None:
    server.put("a", namespace="x")
    server.put("b", namespace="y")
    with following(server, mapper, clock) as factory:
        first = factory.follow(Selection(CONFIGMAPS), required=True)
        second = factory.follow(Selection(CONFIGMAPS, metadata_only=True), required=True)
        server.wait_stream(2)
        until(lambda: first.state() == second.state() == "watching")

        assert numbers()["store_objects"] == 4
        assert numbers()["state watching"] == 2
        assert numbers()["watching"] == 1


def test_a_loop_that_hangs_in_a_handler_is_late_and_one_that_waits_for_the_server_is_not(
    server: FakeServer, mapper: FakeMapper, clock: FakeClock
) -> None:
    entered, leave = threading.Event(), threading.Event()
    with following(server, mapper, clock) as factory:
        informers = factory.follow(Selection(CONFIGMAPS), required=True)
        (informer,) = factory.informers()
        stream = server.wait_stream()
        until(lambda: informers.state() == "watching")
        clock.advance(300)
        assert informer.late() == 0, "a watch may be silent for its whole length until bookmarks come"
        stream.bookmark("1000")
        until(lambda: numbers()["watch_events_total BOOKMARK"] == 1)

        def hang(_: object) -> None:
            entered.set()
            leave.wait(60)

        informers.add_handler(hang)
        server.put("a")
        assert entered.wait(60)
        clock.advance(90 + 60)
        assert informer.late() == 0
        clock.advance(5)
        assert informer.late() == 5

        leave.set()
        until(lambda: len(informers.stores()[0]) == 1)
        server.put("b")
        until(lambda: informer.late() == 0)
