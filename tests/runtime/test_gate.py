"""Work starts when what it needs is in the caches, and not when that will never be."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from informers.clock import Stop
from informers.meta.errors import ForbiddenError, InformersError
from informers.runtime.gate import Gate
from informers.testing.clock import FakeClock


class Informer:
    """Has whatever state a test gives it."""

    def __init__(self, state: str = "syncing", problem: InformersError | None = None) -> None:
        self._state = state
        self._problem = problem
        self._callbacks: list[Callable[[], None]] = []

    def has_synced(self) -> bool:
        return self._state in {"synced", "watching"}

    def state(self) -> str:
        return self._state

    def problem(self) -> InformersError | None:
        return self._problem

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def become(self, state: str) -> None:
        self._state = state
        for callback in list(self._callbacks):
            callback()


class Registration:
    def __init__(self) -> None:
        self.is_shown = False

    def has_synced(self) -> bool:
        return self.is_shown


class Waiter:
    """A thread that waits at a gate."""

    def __init__(self, gate: Gate, stop: Stop) -> None:
        self.found: list[bool] = []
        self._thread = threading.Thread(target=lambda: self.found.append(gate.wait(stop)), daemon=True)
        self._thread.start()

    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> bool:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.found[0]


def test_a_gate_without_requirements_is_open(clock: FakeClock) -> None:
    gate = Gate(clock)

    assert gate.is_open()
    assert gate.wait(Stop(clock))


def test_it_opens_when_the_last_informer_has_synced(clock: FakeClock) -> None:
    gate, stop = Gate(clock), Stop(clock)
    first, second = Informer(), Informer()
    gate.require("first", first)
    gate.require("second", second)
    waiter = Waiter(gate, stop)
    clock.block_until_waiting()

    first.become("watching")
    assert waiter.is_waiting()
    assert gate.missing() == ("second: syncing",)
    second.become("synced")

    assert waiter.join()


def test_it_waits_for_the_handler_to_have_seen_everything(clock: FakeClock) -> None:
    gate = Gate(clock)
    informer, registration = Informer("watching"), Registration()
    gate.require("x", informer, registration)
    before = gate.is_open()

    registration.is_shown = True

    assert not before
    assert gate.is_open()


@pytest.mark.parametrize("state", ["forbidden", "unserved", "stopped"])
def test_what_will_not_come_delays_nobody(clock: FakeClock, state: str) -> None:
    gate = Gate(clock)
    informer = Informer()
    gate.require("x", informer)
    waiter = Waiter(gate, Stop(clock))
    clock.block_until_waiting()

    informer.become(state)

    assert waiter.join()


def test_waiting_ends_with_the_stop(clock: FakeClock) -> None:
    gate, stop = Gate(clock), Stop(clock)
    gate.require("x", Informer())
    waiter = Waiter(gate, stop)
    clock.block_until_waiting()

    stop.set()
    gate.signal()

    assert waiter.join() is False


def test_what_is_missing_is_told_after_two_minutes_with_the_reason_and_waiting_goes_on(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    gate, stop = Gate(clock), Stop(clock)
    gate.require("secrets.v1", Informer("syncing", ForbiddenError("no", status=403, verb="list")))
    gate.require("pods.v1", Informer("watching"))
    waiter = Waiter(gate, stop)
    clock.block_until_waiting(due_in=120)

    with caplog.at_level(logging.WARNING, "informers.runtime.gate"):
        clock.advance(119)
        assert caplog.records == []
        clock.advance(1)
        clock.block_until_waiting(due_in=120)

    (record,) = caplog.records
    assert record.message == "waiting for caches to fill"
    (told,) = vars(record)["informers_fields"]["missing"]
    assert told.startswith("secrets.v1: syncing, list: 403")
    assert waiter.is_waiting()
    stop.set()
    gate.signal()
    waiter.join()


def test_two_who_wait_tell_it_once(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    gate, stop = Gate(clock), Stop(clock)
    gate.require("x", Informer())
    waiters = [Waiter(gate, stop) for _ in range(2)]
    clock.block_until_waiting(2)

    with caplog.at_level(logging.WARNING, "informers.runtime.gate"):
        clock.advance(120)
        clock.block_until_waiting(2, due_in=120)

    assert len(caplog.records) == 1
    stop.set()
    gate.signal()
    for waiter in waiters:
        waiter.join()


def test_a_change_between_looking_and_waiting_is_not_lost(clock: FakeClock) -> None:
    """The informer syncs in the very moment after it was asked."""

    class Sudden(Informer):
        def state(self) -> str:
            if self._state == "syncing":
                self.become("synced")  # whoever asked gets the old answer
                return "syncing"
            return self._state

    gate = Gate(clock)
    gate.require("x", Sudden())

    assert gate.wait(Stop(clock))


def test_who_is_told_of_changes_is_told_outside_the_lock(clock: FakeClock) -> None:
    seen: list[bool] = []
    gate = Gate(clock, changed=lambda: seen.append(gate.is_open()))

    gate.require("x", Informer("synced"))

    assert seen == [True]


def test_patience_begins_with_the_waiting(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    gate, stop = Gate(clock), Stop(clock)
    gate.require("x", Informer())
    clock.advance(3600)

    with caplog.at_level(logging.WARNING, "informers.runtime.gate"):
        waiter = Waiter(gate, stop)
        clock.block_until_waiting(due_in=120)
        clock.advance(119)

    assert caplog.records == []
    stop.set()
    gate.signal()
    waiter.join()


def test_what_is_missing_is_told_again_when_it_changes_and_every_ten_minutes(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    gate, stop = Gate(clock), Stop(clock)
    first = Informer()
    gate.require("first", first)
    gate.require("second", Informer())
    waiter = Waiter(gate, stop)
    told = []

    with caplog.at_level(logging.WARNING, "informers.runtime.gate"):
        for minutes in range(2, 17, 2):
            clock.block_until_waiting(due_in=120)
            clock.advance(120)
            clock.block_until_waiting(due_in=120)
            told.append((minutes, len(caplog.records)))
            if minutes == 4:
                first.become("synced")
                clock.block_until_waiting(due_in=120)

    assert told == [(2, 1), (4, 1), (6, 2), (8, 2), (10, 2), (12, 2), (14, 2), (16, 3)]
    stop.set()
    gate.signal()
    waiter.join()


def test_each_cluster_opens_for_itself_and_stays_open(clock: FakeClock) -> None:
    gate = Gate(clock)
    home, away, more = Informer(), Informer(), Informer()
    gate.require("x", home)
    gate.require("b/x", away, cluster="b")
    gate.require("b/y", more, cluster="b")
    away.become("watching")
    assert not gate.is_open()
    assert set(gate.open_clusters()) == set()

    more.become("synced")

    assert gate.is_open()
    assert set(gate.open_clusters()) == {"b"}
    assert gate.missing() == ("x: syncing",)
    away.become("syncing")
    assert set(gate.open_clusters()) == {"b"}
    home.become("synced")
    assert set(gate.open_clusters()) == {"", "b"}


def test_a_cluster_that_is_down_holds_up_nobody_but_is_told_as_missing(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(clock)
    gate.require("x", Informer("watching"))
    gate.require("b/x", Informer(), cluster="b")

    assert gate.wait(Stop(clock))
    with caplog.at_level(logging.WARNING):
        gate.tell_if_late()
        clock.advance(121)
        gate.tell_if_late()
        gate.tell_if_late()

    assert [record.message for record in caplog.records] == ["waiting for caches to fill"]


def test_a_cluster_where_all_is_refused_is_no_reason_to_start(clock: FakeClock) -> None:
    gate = Gate(clock)
    home = Informer()
    gate.require("x", home)
    gate.require("b/x", Informer("forbidden"), cluster="b")

    before = gate.is_open()
    home.become("unserved")

    assert not before
    assert gate.is_open()  # nothing will ever come of either
