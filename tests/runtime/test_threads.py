"""Threads have a name, a small stack and an end that is noticed; garbage is collected when nothing is to be done."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref

import msgspec
import pytest

from informers import metrics
from informers.meta.objects import freeze
from informers.process import GC_THRESHOLDS, SWITCH_INTERVAL
from informers.runtime.threads import Threads, Tuning
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


def test_a_stack_is_enough_for_a_deep_object(clock: FakeClock) -> None:
    """Python's own limit of recursion comes before the end of the stack."""
    ends = Ends(clock)
    outcomes: list[str] = []

    def read() -> None:
        with pytest.raises(RecursionError):
            msgspec.json.decode("[" * 100_000 + "]" * 100_000)
        for depth in (50, 200, 100_000):
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


def test_the_interpreter_is_tuned_for_a_while_and_put_back_after_the_last(clock: FakeClock) -> None:
    before = gc.get_threshold(), sys.getswitchinterval()
    first, second = Tuning(clock), Tuning(clock)

    with first.applied():
        with second.applied():
            inner = gc.get_threshold(), sys.getswitchinterval()
        outer = gc.get_threshold(), sys.getswitchinterval()
        first.collect()
        frozen = gc.get_freeze_count()

    assert inner == outer == (GC_THRESHOLDS, SWITCH_INTERVAL)
    assert frozen > 0
    assert (gc.get_threshold(), sys.getswitchinterval()) == before
    assert gc.get_freeze_count() == 0


def test_a_full_collection_waits_for_idleness_but_not_for_ever(clock: FakeClock) -> None:
    tuning = Tuning(clock)

    def at(seconds: float, *, is_idle: bool) -> bool:
        clock.advance(seconds)
        return tuning.collect_if_due(is_idle=is_idle)

    with tuning.applied():
        assert not at(29, is_idle=True), "not more often than each half minute"
        assert at(1, is_idle=True)
        assert not at(599, is_idle=False)
        assert at(1, is_idle=False), "at the latest after ten minutes"


def test_a_cycle_that_was_frozen_is_collected_within_the_hour(clock: FakeClock) -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    tuning = Tuning(clock)
    pauses = metrics.histogram(
        "informers_gc_pause_seconds", "", buckets=(0.0001, 0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5)
    )
    before = pauses.value().count

    with tuning.applied():
        node: Node | None = Node()
        seen = weakref.ref(node)
        tuning.collect()
        node = None
        clock.advance(1800)
        tuning.collect()
        is_kept = seen() is not None
        clock.advance(1800)
        tuning.collect()

    assert is_kept, "what is frozen is not walked"
    assert seen() is None
    assert pauses.value().count == before + 3


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
