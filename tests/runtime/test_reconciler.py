"""What a reconcile may answer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from informers.runtime.reconciler import Result, requeue_after


@pytest.mark.parametrize("result", [None, Result(), Result(requeue_after=None)])
def test_an_empty_answer_asks_for_nothing(result: Result | None) -> None:
    assert requeue_after(result) is None


@pytest.mark.parametrize("seconds", [0.001, 5, 1e9])
def test_a_time_is_taken(seconds: float) -> None:
    assert requeue_after(Result(requeue_after=seconds)) == seconds


@pytest.mark.parametrize("seconds", [0, -1.0, math.inf, -math.inf, math.nan, "5", True])
def test_a_time_that_is_not_over_0_and_finite_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="want a finite number over 0"):
        requeue_after(Result(requeue_after=seconds))


@pytest.mark.parametrize("answer", [True, 5, "done", object()])
def test_another_answer_is_refused(answer: Any) -> None:
    with pytest.raises(TypeError, match="want a Result or None, got"):
        requeue_after(answer)
