"""FakeClock moves when told and wakes who waits."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from informers.clock import Clock
from informers.testing.clock import FakeClock


def start_waiting(
    clock: FakeClock, timeout: float | None, found: list[bool], condition: threading.Condition
) -> threading.Thread:
    def wait() -> None:
        with condition:
            found.append(clock.wait(condition, timeout))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_it_is_a_clock_that_stands_still() -> None:
    clock: Clock = FakeClock()

    assert clock.monotonic() == clock.monotonic()
    assert clock.utc_now() == clock.utc_now()
    assert clock.utc_now().tzinfo is UTC


def test_advancing_moves_both_clocks() -> None:
    clock = FakeClock(datetime(2024, 1, 1, tzinfo=UTC))
    before = clock.monotonic()

    clock.advance(1.5)

    assert clock.monotonic() == before + 1.5
    assert clock.utc_now() == datetime(2024, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_the_wall_clock_jumps_without_monotonic_time() -> None:
    clock = FakeClock()
    before, wall = clock.monotonic(), clock.utc_now()

    clock.jump_wall(-3600)
    jumped = clock.utc_now()
    clock.set_wall(datetime(2030, 1, 1, tzinfo=UTC))

    assert jumped == wall - timedelta(hours=1)
    assert clock.utc_now() == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.monotonic() == before


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_time_does_not_run_backwards(seconds: float) -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(seconds)


def test_a_naive_date_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        FakeClock().set_wall(datetime(2024, 1, 1))  # noqa: DTZ001 - the point


def test_a_wait_ends_when_its_time_has_come_and_not_before() -> None:
    clock, condition, found = FakeClock(), threading.Condition(), list[bool]()
    thread = start_waiting(clock, 10.0, found, condition)
    clock.block_until_waiting()
    clock.advance(9.0)
    assert thread.is_alive()

    clock.advance(1.0)

    thread.join()
    assert found == [False]


def test_a_wait_ends_with_a_notification() -> None:
    clock, condition, found = FakeClock(), threading.Condition(), list[bool]()
    thread = start_waiting(clock, None, found, condition)
    clock.block_until_waiting()

    with condition:
        condition.notify()

    thread.join()
    assert found == [True]


def test_a_wait_for_no_time_is_over_at_once() -> None:
    clock, condition = FakeClock(), threading.Condition()

    with condition:
        assert clock.wait(condition, 0.0) is False
        assert clock.wait(condition, -1.0) is False


def test_one_advance_wakes_every_condition_that_is_due() -> None:
    clock, found = FakeClock(), list[bool]()
    threads = [start_waiting(clock, wait, found, threading.Condition()) for wait in (1.0, 5.0, 10.0)]
    clock.block_until_waiting(3)

    clock.advance(10.0)

    for thread in threads:
        thread.join()
    assert found == [False] * 3


def test_blocking_until_somebody_waits_can_ask_for_how_long() -> None:
    clock, condition, found = FakeClock(), threading.Condition(), list[bool]()
    thread = start_waiting(clock, 30.0, found, condition)
    clock.block_until_waiting()

    clock.block_until_waiting(due_in=30.0)
    with pytest.raises(TimeoutError, match="wanted 1 threads waiting, found 0"):
        clock.block_until_waiting(due_in=29.0, timeout=0.01)

    clock.advance(30.0)
    thread.join()


def test_who_is_due_no_longer_counts_as_waiting() -> None:
    clock, condition, found = FakeClock(), threading.Condition(), list[bool]()
    thread = start_waiting(clock, 10.0, found, condition)
    clock.block_until_waiting()

    clock.advance(10.0)

    with pytest.raises(TimeoutError):
        clock.block_until_waiting(timeout=0)
    thread.join()


def test_the_time_can_be_asked_for_while_the_clock_is_being_asked(clock: FakeClock) -> None:
    """As by a callback of the garbage collector, which may run at any line."""
    with clock._changed:
        found = clock.monotonic()

    assert found == clock.monotonic()
