"""The fence is open between the first renewal and its deadline, and says how long a write may take."""

from __future__ import annotations

import math

import pytest

from informers.api.fence import Fence, FenceKeeper, cut
from informers.meta.errors import NotLeaderError
from informers.testing.clock import FakeClock


def extended(keeper: FenceKeeper, sent: float, *, renew_deadline: float = 10.0, lease_duration: float = 15.0) -> bool:
    return keeper.extend(sent, renew_deadline=renew_deadline, lease_duration=lease_duration)


def test_without_election_it_is_always_open() -> None:
    fence = Fence()

    fence.check()

    assert fence.is_open()
    assert fence.remaining() == math.inf
    assert cut(fence, 15.0) == 15.0


def test_it_is_closed_before_the_first_renewal(clock: FakeClock) -> None:
    fence = FenceKeeper(clock).fence

    assert not fence.is_open()
    assert fence.remaining() == 0
    with pytest.raises(NotLeaderError, match="not the leader: nothing was sent"):
        fence.check()
    with pytest.raises(NotLeaderError, match="not the leader"):
        cut(fence, 15.0)


def test_it_counts_from_when_the_renewal_was_sent(clock: FakeClock) -> None:
    keeper = FenceKeeper(clock)
    sent = clock.monotonic()
    clock.advance(4.0)  # the answer takes its time

    assert extended(keeper, sent)

    assert keeper.fence.remaining() == 15.0 - 4.0 - 1.0
    assert cut(keeper.fence, 15.0) == 10.0
    assert cut(keeper.fence, 3.0) == 3.0


def test_it_closes_by_itself_when_the_deadline_has_come(clock: FakeClock) -> None:
    keeper = FenceKeeper(clock)
    extended(keeper, clock.monotonic())

    clock.advance(9.99)
    assert keeper.fence.is_open()
    clock.advance(0.01)
    assert not keeper.fence.is_open()
    assert keeper.fence.remaining() == 0


def test_a_write_that_would_have_less_than_a_second_is_not_begun(clock: FakeClock) -> None:
    keeper = FenceKeeper(clock)
    extended(keeper, clock.monotonic(), renew_deadline=14.5)

    clock.advance(13.0)
    assert cut(keeper.fence, 15.0) == 1.0
    clock.advance(0.25)
    assert keeper.fence.is_open()
    with pytest.raises(NotLeaderError, match="ends within a second"):
        cut(keeper.fence, 15.0)


def test_a_renewal_keeps_it_open(clock: FakeClock) -> None:
    keeper = FenceKeeper(clock)
    extended(keeper, clock.monotonic())
    clock.advance(9.0)

    assert extended(keeper, clock.monotonic())
    clock.advance(9.0)

    assert keeper.fence.remaining() == 5.0


@pytest.mark.parametrize("passed", [10.0, 60.0])
def test_what_is_over_stays_over(clock: FakeClock, passed: float) -> None:
    """A renewal whose answer comes after the deadline does not open it again."""
    keeper = FenceKeeper(clock)
    extended(keeper, clock.monotonic())
    clock.advance(passed)

    assert not extended(keeper, clock.monotonic())
    assert not keeper.fence.is_open()


def test_what_was_closed_stays_closed(clock: FakeClock) -> None:
    keeper = FenceKeeper(clock)
    extended(keeper, clock.monotonic())

    keeper.close()

    assert not keeper.fence.is_open()
    assert not extended(keeper, clock.monotonic())
    assert not keeper.fence.is_open()


def test_an_answer_to_the_first_write_that_comes_too_late_opens_nothing(clock: FakeClock) -> None:
    keeper = FenceKeeper(clock)
    sent = clock.monotonic()
    clock.advance(10.0)

    assert not extended(keeper, sent)
    assert not keeper.fence.is_open()
    assert extended(keeper, clock.monotonic()), "a later one does"
