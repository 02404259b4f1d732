"""The contract with a controller's code: make the object that a request names right, whatever happened to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from informers.meta.resources import ObjectRef


@dataclass(frozen=True, slots=True)
class Request:
    """Which object to look at; which event led here is not told, as only what is there now counts.

    Attributes:
        ref: the object; it may be gone.
        attempt: how often it failed since it last went well.
        since: when the oldest change not yet looked at came in, in monotonic seconds, for measuring.
    """

    ref: ObjectRef
    attempt: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile that went well asks for: look again after `requeue_after` seconds, or not (None).

    Failing is raising. A `requeue_after` that is not over 0 and finite counts as a failure.
    """

    requeue_after: float | None = None


Reconcile: TypeAlias = Callable[[Request], Result | None]


def requeue_after(result: object) -> float | None:
    """Return when to look again, or None.

    Raises `TypeError` or `ValueError` for an answer that a reconcile may not give.
    """
    if result is None:
        return None
    if not isinstance(result, Result):
        msg = f"reconcile: want a Result or None, got {type(result).__name__}"
        raise TypeError(msg)
    seconds: object = result.requeue_after
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
        msg = f"reconcile: requeue_after: want a finite number over 0, got {seconds!r}"
        raise ValueError(msg)
    return float(seconds)
