"""Tell people how rules are doing: one Event and one line for each change of a rule's state or reason, never a value."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from controllers.copier.memory import Conditions, Identity, Memory
from controllers.copier.problems import RuleError, State
from informers import EventRecorder, Object, fields

MAX_NOTE: Final = 1000
# What many targets suffer from at once, and the line that tells of it once for all of them.
SHARED: Final[Mapping[str, str]] = {
    "Forbidden": "not allowed to write",
    "Guarded": "target is left alone, as it gives power over others",
    "SourceUnavailable": "kind not readable",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Status:
    """How one rule is doing after this turn."""

    rule: str
    identity: Identity
    error: RuleError | None = None
    written: str = ""  # what was written and from where, if it was
    source: str = ""  # what it reads, as far as that is known

    @property
    def state(self) -> State:
        """The state to report."""
        return State.SYNCED if self.error is None else self.error.state

    @property
    def reason(self) -> str:
        """The reason to report, `""` for a rule in sync."""
        return "" if self.error is None else self.error.reason


@dataclass(frozen=True, slots=True)
class _Note:
    type: Literal["Normal", "Warning"]
    reason: str
    rule: str
    text: str


def report(events: EventRecorder, target: Object, memory: Memory, statuses: Iterable[Status]) -> None:
    """Tell what has changed since the last report about each of these rules."""
    notes: list[_Note] = []
    for status in statuses:
        before = memory.reported.get(status.identity)
        after = (status.state, status.reason)
        memory.reported[status.identity] = after
        if status.written and status.identity not in memory.copied:
            memory.copied.add(status.identity)
            notes.append(_Note("Normal", "Copied", status.rule, status.written))
        if before == after:
            continue
        if status.error is not None:
            notes.append(_Note("Warning", status.reason, status.rule, status.error.text))
            _log_change(logging.DEBUG if status.reason in SHARED else logging.WARNING, target, status)
        elif before is not None:
            if not status.written or not notes or notes[-1].rule != status.rule:
                notes.append(_Note("Normal", "Recovered", status.rule, f"works again after {before[1]}"))
            _log_change(logging.INFO, target, status)
    _send(events, target, notes)


def report_leaving(events: EventRecorder, target: Object, notes: Iterable[tuple[str, str, str]]) -> None:
    """Tell what was taken away (`Removed`) and what stays though it lost its reason (`Kept`): rule, reason and text."""
    told = []
    for rule, reason, text in notes:
        told.append(_Note("Normal" if reason == "Removed" else "Warning", reason, rule, text))
        _log.info(reason.lower(), extra=fields(target=str(target.ref), rule=rule, why=text))
    _send(events, target, told)


def report_shared(target: Object, conditions: Conditions, statuses: Iterable[RuleError | None]) -> None:
    """Tell what is wrong for this target and for many others, if no one was told yet."""
    suffered = frozenset((error.reason, error.text) for error in statuses if error and error.reason in SHARED)
    for reason, cause in sorted(conditions.swap(target.ref, suffered)):
        level = logging.ERROR if reason == "Guarded" else logging.WARNING
        _log.log(level, SHARED[reason], extra=fields(cluster=target.cluster, reason=reason, cause=cause))


def warn_base64(events: EventRecorder, target: Object, rule: str, option: str) -> None:
    """Say that base64 text was copied as it is, or text to where base64 is expected, and what to do about it."""
    text = f"the data of a Secret is base64, and the value is copied as it is; {option}: base64 in a rules entry {option}s it"
    _send(events, target, [_Note("Warning", "Base64Value", rule, text)])


def _log_change(level: int, target: Object, status: Status) -> None:
    facts = {"target": str(target.ref), "rule": status.rule, "state": str(status.state), "reason": status.reason}
    if status.source:
        facts["source"] = status.source
    if status.error is not None:
        facts["why"] = status.error.text
    _log.log(level, "rule state changed", extra=fields(**facts))


def _send(events: EventRecorder, target: Object, notes: Sequence[_Note]) -> None:
    """Send one Event for each reason; rules that share it share the Event."""
    by_reason: dict[str, list[_Note]] = {}
    for note in notes:
        by_reason.setdefault(note.reason, []).append(note)
    for reason, together in by_reason.items():
        text = "; ".join(f"rule {note.rule}: {note.text}" for note in together)
        events.event(target, type=together[0].type, reason=reason, note=_cut(text), action="Copy")


def _cut(text: str) -> str:
    data = text.encode()
    return text if len(data) <= MAX_NOTE else data[: MAX_NOTE - 3].decode(errors="ignore") + "…"
