"""A cluster that does not answer takes little time from those who ask it, and none from those who ask another one."""

from __future__ import annotations

from contextlib import ExitStack

from informers.cache.patience import Patience
from informers.testing import FakeClock


def test_of_those_who_ask_at_the_same_time_one_waits_for_long() -> None:
    patience = Patience(FakeClock())

    with (
        patience.waiting("far", 5) as first,
        patience.waiting("far", 5) as second,
        patience.waiting("far", 0.5) as hasty,
    ):
        assert (first, second, hasty) == (5, 1, 0.5)
        with patience.waiting("near", 5) as other:
            assert other == 5
    with patience.waiting("far", 5) as next_one:
        assert next_one == 5


def test_who_has_waited_in_vain_is_followed_by_nobody_for_four_times_as_long() -> None:
    clock = FakeClock()
    patience = Patience(clock)

    with patience.waiting("far", 5):
        clock.advance(5)
    with patience.waiting("far", 5) as seconds, patience.waiting("near", 5) as other:
        assert (seconds, other) == (0, 5)
    clock.advance(19.9)
    with patience.waiting("far", 5) as seconds:
        assert seconds == 0
    clock.advance(0.1)
    with patience.waiting("far", 5) as seconds:
        assert seconds == 5


def test_a_short_wait_in_vain_does_not_end_the_rest_after_a_long_one() -> None:
    clock = FakeClock()
    patience = Patience(clock)

    with ExitStack() as second, patience.waiting("far", 1.5):
        second.enter_context(patience.waiting("far", 5))
        clock.advance(1.5)
    clock.advance(5)
    with patience.waiting("far", 5) as seconds:
        assert seconds == 0


def test_answers_that_come_in_time_are_waited_for_again() -> None:
    clock = FakeClock()
    patience = Patience(clock)

    with patience.waiting("far", 5):
        clock.advance(4.9)
    with patience.waiting("far", 5) as seconds:
        assert seconds == 5
