"""Threads have a name, a small stack and an end that is noticed; garbage is collected when nothing is to be done."""

from __future__ import annotations

import gc
import json
import threading

import pytest

from informers.meta.objects import freeze
from informers.runtime.threads import Collector, Threads
from informers.testing.clock import FakeClock


class Ends:
    def __init__(self, clock: FakeClock) -> None:
        self.seen: list[tuple[str, str, BaseException | None]] = []
        self.threads = Threads(clock, lambda name, group, error: self.seen.append((name, group, error)))


def wait_for(event: threading.Event) -> None:
    assert event.wait(60)


def test_a_thread_has_its_name_and_its_end_is_told(clock: FakeClock) -> None:
    ends = Ends(clock)
    names: list[str] = []

    ends.threads.start("worker/c-1", lambda: names.append(threading.current_thread().name), group="work")
    left = ends.threads.wait("work", 10)
    ends.threads.join()

    assert names == ["worker/c-1"]
    assert left == []
    assert ends.seen == [("worker/c-1", "work", None)]


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(3), KeyboardInterrupt()])
def test_the_error_of_a_thread_that_died_is_told(clock: FakeClock, error: BaseException) -> None:
    ends = Ends(clock)

    def die() -> None:
        raise error

    ends.threads.start("x", die, group="work")
    ends.threads.wait("work", 10)
    ends.threads.join()

    assert ends.seen == [("x", "work", error)]


def test_a_small_stack_is_enough_for_a_deep_object(clock: FakeClock) -> None:
    """Python's own limit of recursion comes before the end of the stack."""
    ends = Ends(clock)
    outcomes: list[str] = []

    def read() -> None:
        for depth in (50, 200, 5000):
            try:
                freeze(json.loads("[" * depth + "]" * depth))
                outcomes.append("read")
            except RecursionError:
                outcomes.append("refused")

    ends.threads.start("x", read, group="work")
    ends.threads.wait("work", 10)
    ends.threads.join()

    assert outcomes == ["read", "read", "refused"]
    assert ends.seen[0][2] is None


def test_waiting_names_those_that_go_on_after_its_time(clock: FakeClock) -> None:
    ends = Ends(clock)
    leave = threading.Event()
    ends.threads.start("busy", lambda: wait_for(leave), group="work")
    ends.threads.start("other", lambda: wait_for(leave), group="events")
    found: list[list[str]] = []
    waiter = threading.Thread(target=lambda: found.append(list(ends.threads.wait("work", 5))), daemon=True)
    waiter.start()
    clock.block_until_waiting()

    clock.advance(5)
    waiter.join(60)
    names = set(ends.threads.names())
    leave.set()
    ends.threads.wait("work", 10)
    ends.threads.wait("events", 10)
    ends.threads.join()

    assert found == [["busy"]]
    assert names == {"busy", "other"}


def test_the_collector_is_tuned_for_a_while_and_put_back_after_the_last(clock: FakeClock) -> None:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    first, second = Collector(clock, lambda: None), Collector(clock, lambda: None)

    with first.tuned():
        with second.tuned():
            inner = gc.get_threshold()
        outer = gc.get_threshold()
        first.freeze()
        frozen = gc.get_freeze_count()

    assert inner == outer != before
    assert frozen > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == callbacks


def test_a_full_collection_waits_for_idleness_but_not_for_ever(clock: FakeClock) -> None:
    collector = Collector(clock, lambda: None)

    def at(seconds: float, *, is_idle: bool) -> bool:
        clock.advance(seconds)
        return collector.collect_if_due(is_idle=is_idle)

    assert not at(29, is_idle=True), "not more often than each half minute"
    assert at(1, is_idle=True)
    assert not at(599, is_idle=False)
    assert at(1, is_idle=False), "at the latest after ten minutes"


def test_collections_of_the_young_ask_for_a_full_one_when_it_is_due(clock: FakeClock) -> None:
    asked: list[int] = []
    collector = Collector(clock, lambda: asked.append(1))

    with collector.tuned():
        gc.collect(1)
        early = len(asked)
        clock.advance(30)
        gc.collect(0)
        young = len(asked)
        gc.collect(1)
        gc.collect(1)

    assert (early, young, len(asked)) == (0, 0, 1)


def test_a_thread_that_cannot_be_started_is_not_waited_for(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(clock)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("informers.runtime.threads.start", refuse)

    with pytest.raises(RuntimeError, match="can't start"):
        ends.threads.start("x", lambda: None, group="work")

    assert ends.threads.names() == ()
    assert ends.threads.wait("work", 0) == []
    ends.threads.join()
