"""Compare what was sent with what came back: kept, written in another way, or lost, value by value. Pure.

A server may write a value in its own way (`2048Mi` comes back as `2Gi`), which is in sync from then on; or it takes
a request and keeps nothing of a value, because a schema does not know it or a webhook puts it back, and then sending
it again is of no use. Inside of maps, and of lists of one length, this is told of each value by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from controllers.copier.memory import Leaf, Mark, fingerprint
from controllers.copier.paths import ABSENT, Absent, Index, Key, Place, show
from controllers.copier.problems import RuleError
from controllers.copier.values import Plain, equal

_MOST_NAMED: Final = 10


def judge(
    sent: Plain | Absent, before: Plain | Absent, after: Plain | Absent, *, own: Plain | Absent | None = None
) -> Mapping[Leaf, Mark]:
    """Mark each value that is not there as it was sent; `before` is what was there before.

    `own` is what of it the rule gives, None if it says of all that it sets or takes away. The rest was the target's
    own, and not sent to be kept; and what was left out and is there again was filled in by the server, as defaults are.
    """
    return dict(_judged(sent, before, after, (), own))


def _judged(
    sent: Plain | Absent, before: Plain | Absent, after: Plain | Absent, leaf: Leaf, own: Plain | Absent | None
) -> Iterator[tuple[Leaf, Mark]]:
    if is_same(sent, after):
        return
    below = _parts(sent, after)
    if below is None:
        is_lost = not (leaf and isinstance(own, Absent)) and _is_lost(sent, before, after)
        yield leaf, Mark(_print(sent), _print(after), is_lost=is_lost)
        return
    for step in below:
        parts = _part(sent, step), _part(before, step), _part(after, step)
        yield from _judged(*parts, (*leaf, step), None if own is None else _part(own, step))


def _is_lost(sent: Plain | Absent, before: Plain | Absent, after: Plain | Absent) -> bool:
    if isinstance(sent, Absent):
        return is_same(after, before)
    if sent is None:
        return False  # it asks for what the server makes of nothing
    if isinstance(after, Absent):
        return sent not in ({}, [])  # these are often written as nothing
    return is_same(after, before) and not is_same(sent, before)


def accept(
    marks: Mapping[Leaf, Mark], wanted: Plain | Absent, live: Plain | Absent
) -> tuple[Plain | Absent, Mapping[Leaf, Mark]]:
    """Return what is wanted with all that is marked as the target has it, and the marks that still count."""
    used: dict[Leaf, Mark] = {}
    above = {leaf[:length] for leaf in marks for length in range(len(leaf))}
    return _accepted(marks, above, wanted, live, (), used), used


def _accepted(
    marks: Mapping[Leaf, Mark],
    above: set[Leaf],
    wanted: Plain | Absent,
    live: Plain | Absent,
    leaf: Leaf,
    used: dict[Leaf, Mark],
) -> Plain | Absent:
    if is_same(wanted, live):
        return wanted
    mark = marks.get(leaf)
    if mark is not None and mark.sent == _print(wanted) and (mark.is_lost or mark.observed == _print(live)):
        used[leaf] = mark
        return live
    below = _parts(wanted, live)
    if below is None or leaf not in above:
        return wanted
    parts = {
        step: _accepted(marks, above, _part(wanted, step), _part(live, step), (*leaf, step), used) for step in below
    }
    if isinstance(wanted, list):
        return [part for part in parts.values() if not isinstance(part, Absent)]
    return {str(step): part for step, part in parts.items() if not isinstance(part, Absent)}


def not_persisted(place: Place, marks: Mapping[Leaf, Mark]) -> RuleError | None:
    """Say which values the server does not keep, None if it keeps all."""
    lost = sorted(show((*place, *_steps(leaf))) for leaf, mark in marks.items() if mark.is_lost)
    if not lost:
        return None
    more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
    return RuleError(
        "NotPersisted",
        f"{', '.join(lost[:_MOST_NAMED])}{more}: the server accepted the write but did not keep it; "
        "see its schema and webhooks",
    )


def _steps(leaf: Leaf) -> Place:
    return tuple(Key(step) if isinstance(step, str) else Index(step) for step in leaf)


def _parts(one: Plain | Absent, other: Plain | Absent) -> Sequence[str | int] | None:
    """Name the parts that two values are compared by, None if they are compared as a whole."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(dict.fromkeys((*one, *other)))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return range(len(one))
    return None


def _part(value: Plain | Absent, step: str | int) -> Plain | Absent:
    if isinstance(value, dict) and isinstance(step, str):
        return value.get(step, ABSENT)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return ABSENT


def is_same(one: Plain | Absent, other: Plain | Absent) -> bool:
    """Tell whether two values are equal, or neither is there."""
    if isinstance(one, Absent) or isinstance(other, Absent):
        return one is other
    return equal(one, other)


def _print(value: Plain | Absent) -> bytes:
    return b"" if isinstance(value, Absent) else fingerprint(value)
