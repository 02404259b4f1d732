"""Backoff: bounded, growing, never the same for everybody."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informers.backoff import Backoff
from informers.meta.errors import ConfigError

finite = st.floats(min_value=1e-6, max_value=1e6)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    base = draw(finite)
    return Backoff(
        base=base,
        cap=base * draw(st.floats(min_value=1.0, max_value=1e6)),
        factor=draw(st.floats(min_value=1.0, max_value=1e3)),
        jitter=draw(st.floats(min_value=0.0, max_value=3.0)),
    )


def always(value: float) -> Callable[[], float]:
    return lambda: value


@given(
    backoffs(), st.integers(min_value=0, max_value=10**18), st.floats(min_value=0.0, max_value=1.0, exclude_max=True)
)
def test_a_wait_is_within_its_jitter_and_never_over_one_and_a_half_caps(
    backoff: Backoff, failures: int, draw: float
) -> None:
    shortest = backoff.delay(failures, always(0.0))

    wait = backoff.delay(failures, always(draw))

    assert backoff.base <= shortest <= backoff.cap
    assert shortest <= wait <= min(shortest * (1 + backoff.jitter), 1.5 * backoff.cap)


@given(backoffs(), st.integers(min_value=0, max_value=2000))
def test_waits_never_shrink_with_more_failures(backoff: Backoff, failures: int) -> None:
    assert backoff.delay(failures, always(0.0)) <= backoff.delay(failures + 1, always(0.0)) * (1 + 1e-12)


def test_waits_double_from_the_base_to_the_cap() -> None:
    backoff = Backoff(0.8, 30.0)

    waits = [backoff.delay(failures, always(0.0)) for failures in range(1, 9)]

    assert waits == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_no_failure_waits_like_the_first() -> None:
    assert Backoff(0.8, 30.0).delay(0, always(0.0)) == 0.8


def test_jitter_spreads_up_to_its_share() -> None:
    backoff = Backoff(1.0, 100.0, jitter=1.0)

    assert backoff.delay(3, always(0.0)) == 4.0
    assert backoff.delay(3, always(0.5)) == 6.0
    assert backoff.delay(3, always(1.0)) == 8.0
    assert backoff.delay(50, always(1.0)) == 150.0


def test_a_factor_of_one_never_grows() -> None:
    assert Backoff(2.0, 100.0, factor=1.0, jitter=0.0).delay(10**30) == 2.0


@pytest.mark.parametrize("healthy", [60.0, 61.0, math.inf])
def test_counting_starts_over_after_a_healthy_time(healthy: float) -> None:
    assert Backoff(1.0, 2.0, reset=60.0).failures_after(7, healthy) == 0


def test_counting_goes_on_after_a_short_success() -> None:
    assert Backoff(1.0, 2.0, reset=60.0).failures_after(7, 59.9) == 7


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"base": 0.0, "cap": 1.0}, "base"),
        ({"base": -1.0, "cap": 1.0}, "base"),
        ({"base": math.nan, "cap": 1.0}, "base"),
        ({"base": 2.0, "cap": 1.0}, "cap"),
        ({"base": 2.0, "cap": math.inf}, "cap"),
        ({"base": 1.0, "cap": 2.0, "factor": 0.5}, "factor"),
        ({"base": 1.0, "cap": 2.0, "jitter": -0.1}, "jitter"),
        ({"base": 1.0, "cap": 2.0, "reset": math.nan}, "reset"),
    ],
)
def test_a_bad_value_is_named_with_what_is_wanted(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=rf"{told}: want a finite number >=? .*, got ") as caught:
        Backoff(**options)

    assert repr(options[told]) in str(caught.value)
