"""The clock of the machine, and the stop signal."""

from __future__ import annotations

import logging
import threading
from datetime import UTC

import pytest

from informers.clock import Clock, Stop, SystemClock
from informers.testing.clock import FakeClock


def test_the_system_clock_is_a_clock() -> None:
    clock: Clock = SystemClock()

    assert clock.monotonic() <= clock.monotonic()
    assert clock.utc_now().tzinfo is UTC


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.001])
def test_a_wait_that_times_out_is_false(timeout: float) -> None:
    condition = threading.Condition()

    with condition:
        assert SystemClock().wait(condition, timeout) is False


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e12, 60.0])
def test_a_notified_wait_is_true_however_long_it_would_have_waited(timeout: float | None) -> None:
    condition = threading.Condition()
    found: list[bool] = []

    def wait() -> None:
        with condition:
            entered.set()
            found.append(SystemClock().wait(condition, timeout))

    entered = threading.Event()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    entered.wait()
    with condition:  # free only once the thread waits
        condition.notify_all()
    thread.join()

    assert found == [True]


def test_stop_is_set_once_and_for_all() -> None:
    stop = Stop()
    before = stop.is_set()

    stop.set()
    stop.set()

    assert not before
    assert stop.is_set()
    assert stop.wait()
    assert stop.wait(5.0)


def test_waiting_for_stop_ends_when_the_time_has_come(clock: FakeClock) -> None:
    stop = Stop(clock)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(stop.wait(30.0)), daemon=True)
    thread.start()
    clock.block_until_waiting()
    clock.advance(29.0)
    assert thread.is_alive()

    clock.advance(1.0)

    thread.join()
    assert found == [False]


def test_waiting_for_stop_ends_when_it_is_set(clock: FakeClock) -> None:
    stop = Stop(clock)
    found: list[bool] = []

    def wait(timeout: float | None) -> None:
        found.append(stop.wait(timeout))

    threads = [threading.Thread(target=wait, args=(timeout,), daemon=True) for timeout in (None, 30.0)]
    for thread in threads:
        thread.start()
    clock.block_until_waiting(2)

    stop.set()

    for thread in threads:
        thread.join()
    assert found == [True, True]


def test_callbacks_run_once_on_the_thread_that_sets_and_outside_the_lock() -> None:
    stop = Stop()
    seen: list[tuple[str, bool, bool]] = []

    def callback() -> None:
        # Would deadlock if the lock were held.
        seen.append((threading.current_thread().name, stop.is_set(), stop.wait(0)))

    stop.on_set(callback)
    thread = threading.Thread(target=stop.set, name="setter")
    thread.start()
    thread.join()
    stop.set()

    assert seen == [("setter", True, True)]


def test_a_callback_that_comes_after_the_signal_runs_at_once() -> None:
    stop = Stop()
    stop.set()
    seen: list[str] = []

    take_off = stop.on_set(lambda: seen.append("called"))
    take_off()

    assert seen == ["called"]


def test_a_callback_taken_off_is_not_called_and_may_be_taken_off_twice() -> None:
    stop = Stop()
    seen: list[str] = []
    take_off = stop.on_set(lambda: seen.append("first"))
    stop.on_set(lambda: seen.append("second"))

    take_off()
    take_off()
    stop.set()

    assert seen == ["second"]


def test_a_callback_may_take_itself_off() -> None:
    stop = Stop()
    seen: list[str] = []

    def callback() -> None:
        take_off()
        seen.append("called")

    take_off = stop.on_set(callback)
    stop.set()

    assert seen == ["called"]


def test_a_failing_callback_does_not_keep_the_others_from_running(caplog: pytest.LogCaptureFixture) -> None:
    stop = Stop()
    seen: list[str] = []

    def fail() -> None:
        raise RuntimeError

    stop.on_set(fail)
    stop.on_set(lambda: seen.append("called"))
    with caplog.at_level(logging.ERROR):
        stop.set()

    assert seen == ["called"]
    assert "callback failed" in caplog.text
