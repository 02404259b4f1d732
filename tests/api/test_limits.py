from __future__ import annotations

import threading

import pytest

from informers.api.fence import Fence
from informers.api.limits import Gate
from informers.testing.clock import FakeClock


def never() -> bool:
    return False


def at_once(gate: Gate, clock: FakeClock) -> bool:
    """Tell whether a turn is free now."""
    return gate.enter(clock.monotonic(), never)


def test_so_many_are_let_in_and_one_more_when_one_leaves(clock: FakeClock) -> None:
    gate = Gate(clock=clock, max_inflight=2, qps=0, burst=0)

    assert [at_once(gate, clock) for _ in range(3)] == [True, True, False]
    gate.leave(was_answered=True)
    assert [at_once(gate, clock) for _ in range(2)] == [True, False]


def test_who_waits_is_let_in_when_somebody_leaves(clock: FakeClock) -> None:
    gate = Gate(clock=clock, max_inflight=1, qps=0, burst=0)
    at_once(gate, clock)
    entered: list[bool] = []
    thread = threading.Thread(target=lambda: entered.append(gate.enter(clock.monotonic() + 5, never)), name="waiter")
    thread.start()
    clock.block_until_waiting()

    gate.leave(was_answered=True)

    thread.join(60)
    assert entered == [True]


def test_after_a_pause_the_number_let_in_grows_step_by_step(clock: FakeClock) -> None:
    gate = Gate(clock=clock, max_inflight=4, qps=0, burst=0)

    gate.pause(5)
    assert not at_once(gate, clock)
    clock.advance(5)

    assert [at_once(gate, clock) for _ in range(2)] == [True, False]
    gate.leave(was_answered=True)
    assert [at_once(gate, clock) for _ in range(3)] == [True, True, False]
    for _ in range(2):
        gate.leave(was_answered=True)
    assert [at_once(gate, clock) for _ in range(5)] == [True, True, True, True, False]
    for _ in range(4):
        gate.leave(was_answered=False)
    assert [at_once(gate, clock) for _ in range(5)] == [True, True, True, True, False]


def test_shorter_pause_does_not_shorten_a_longer_one(clock: FakeClock) -> None:
    gate = Gate(clock=clock, max_inflight=4, qps=0, burst=0)
    gate.pause(10)
    gate.pause(1)
    clock.advance(9)

    assert not at_once(gate, clock)


def test_rate_allows_a_burst_and_then_so_many_a_second(clock: FakeClock) -> None:
    gate = Gate(clock=clock, max_inflight=100, qps=2, burst=3)

    assert [at_once(gate, clock) for _ in range(4)] == [True, True, True, False]
    clock.advance(0.5)
    assert [at_once(gate, clock) for _ in range(2)] == [True, False]
    clock.advance(60)
    assert sum(at_once(gate, clock) for _ in range(10)) == 3


def test_no_rate_means_no_limit(clock: FakeClock) -> None:
    gate = Gate(clock=clock, max_inflight=1000, qps=0, burst=0)

    assert all(at_once(gate, clock) for _ in range(1000))


@pytest.mark.parametrize("wakes", [True, False])
def test_who_gives_up_waiting_takes_no_turn(wakes: bool, clock: FakeClock) -> None:
    gate = Gate(clock=clock, max_inflight=1, qps=0, burst=0)
    at_once(gate, clock)
    gave_up = threading.Event()
    entered: list[bool] = []
    thread = threading.Thread(
        target=lambda: entered.append(gate.enter(clock.monotonic() + 5, gave_up.is_set)), name="waiter"
    )
    thread.start()
    clock.block_until_waiting()

    if wakes:
        gave_up.set()
        gate.wake()
    else:
        clock.advance(5)

    thread.join(60)
    assert entered == [False]
    gate.leave(was_answered=True)
    assert at_once(gate, clock)


def test_fence_without_election_is_open_for_ever() -> None:
    fence = Fence()

    fence.check()
    assert fence.is_open()
    assert fence.remaining() == float("inf")
