"""Say, rule by rule, what the copier would do and why: as text for people, as JSON for machines. Pure.

Of a value only its type is ever shown, and of a source without consent nothing at all.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from controllers.copier.problems import State

_LISTED: Final = re.compile(r"rules\[([0-9]+)\]")


# What is wrong with a rule for want of a cluster.
_UNKNOWN: Final = frozenset({"UnknownKind", "SourceUnavailable", "SchemaUnavailable"})


class Action(StrEnum):
    """What is done for a rule."""

    NONE = "none"
    WRITE = "write"
    REMOVE = "remove"
    KEEP = "keep"
    WAIT = "wait"
    REFUSE = "refuse"
    STALL = "stall"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from; None where that is not known."""

    text: str  # kind and object, for people
    resource: str | None
    cluster: str
    namespace: str | None
    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.text}: {self.path}"


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a source has to consent, and what gives the consent."""

    is_needed: bool | None = None  # None: something else is wrong before that is asked
    entry: str | None = None
    is_known: bool = True  # False: nobody can tell whether it is given

    def __str__(self) -> str:
        if self.is_needed is None:
            return "-"
        if not self.is_needed:
            return "not needed"
        if not self.is_known:
            return "needed, not known whether given"
        return "needed, not given" if self.entry is None else f"given by {json.dumps(self.entry)}"


@dataclass(frozen=True, slots=True)
class RuleLine:
    """One rule."""

    id: str
    operation: str | None
    to: str | None
    origin: Origin | None
    is_constant: bool
    permission: Permission
    value: str | None  # its type
    action: Action
    state: State
    reason: str | None = None
    message: str | None = None
    notes: Sequence[str] = ()

    @property
    def is_refused_by_server(self) -> bool:
        """Tell whether it was sent on trial, and the server would not take it."""
        return self.action in {Action.WRITE, Action.REMOVE} and self.state is State.STALLED


@dataclass(frozen=True, slots=True)
class PatchLine:
    """The request that would be sent."""

    type: Literal["merge", "json"]
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class TargetLines:
    """One target."""

    cluster: str
    resource: str | None
    kind: str
    namespace: str
    name: str
    rules: Sequence[RuleLine]
    patch: PatchLine | None = None

    @property
    def order(self) -> tuple[str, ...]:
        """What targets are sorted by."""
        return self.cluster, self.resource or "", self.kind, self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told at once."""

    mode: Literal["explain", "dry-run"]
    targets: Sequence[TargetLines]
    notes: Sequence[str] = ()
    is_offline: bool = False
    is_complete: bool = True

    def has_trouble(self) -> bool:
        """Tell whether a rule does not work as it is; what cannot be known without a cluster is no trouble."""
        if not self.is_complete:
            return True
        unknown: frozenset[str] = _UNKNOWN if self.is_offline else frozenset()
        rules = [rule for target in self.targets for rule in target.rules]
        return any(rule.state is not State.SYNCED and rule.reason not in unknown for rule in rules)

    def counts(self) -> Mapping[str, int]:
        """Count targets, rules, and rules by how they are doing."""
        rules = [rule for target in self.targets for rule in target.rules]
        states = Counter(rule.state for rule in rules)
        synced = [rule for rule in rules if rule.state is State.SYNCED]
        in_sync = sum(rule.action is Action.NONE for rule in synced)
        return {
            "targets": len(self.targets),
            "rules": len(rules),
            "in_sync": in_sync,
            "write": len(synced) - in_sync,
            **{state: states[state] for state in State if state is not State.SYNCED},
        }


def in_order(targets: Iterable[TargetLines]) -> Sequence[TargetLines]:
    """Sort targets by where they are."""
    return sorted(targets, key=lambda target: target.order)


def order_of(rule_id: str) -> tuple[int, int, str]:
    """Sort rules: those with an annotation of their own by name, then those of the list by their place in it."""
    found = _LISTED.match(rule_id)
    return (1, int(found[1]), "") if found else (0, 0, rule_id)


# --- text --------------------------------------------------------------------------------------------------------


def as_text(report: Report) -> str:
    """Write a report for people."""
    lines: list[str] = []
    for target in report.targets:
        lines += [_heading(target), *(line for rule in target.rules for line in _rule_lines(rule))]
        if target.patch is not None:
            lines.append(f"  patch      {target.patch.type}: {', '.join(target.patch.paths)}")
    lines += [f"note: {note}" for note in report.notes]
    counts = report.counts()
    targets, rules = (f"{counts[what]} {what if counts[what] != 1 else what[:-1]}" for what in ("targets", "rules"))
    troubles = ", ".join(f"{counts[state]} {state}" for state in State if state is not State.SYNCED)
    lines.append(f"{targets}, {rules}: {counts['in_sync']} in sync, {counts['write']} to write, {troubles}")
    return "".join(f"{_printable(line)}\n" for line in lines)


def _printable(line: str) -> str:
    """Keep what a manifest says from steering the terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def _heading(target: TargetLines) -> str:
    where = "/".join(part for part in (target.namespace, target.name) if part)
    cluster = f" in cluster {target.cluster}" if target.cluster else ""
    return f"{target.kind} {where} ({target.resource or 'kind not known'}){cluster}"


def _rule_lines(rule: RuleLine) -> Iterable[str]:
    yield f"  {rule.id}"
    source = "a constant" if rule.is_constant else "-" if rule.origin is None else str(rule.origin)
    rows = {
        "to": rule.to or "-",
        "from": source,
        "consent": str(rule.permission),
        "value": rule.value or "-",
        "action": _shown_action(rule),
    }
    for name, text in rows.items():
        yield f"    {name:<8} {text}"
    for note in rule.notes:
        yield f"    {'note':<8} {note}"


def _shown_action(rule: RuleLine) -> str:
    if rule.reason is None:
        return "none (in sync)" if rule.action is Action.NONE else str(rule.action)
    verdict = ", refused by the server" if rule.is_refused_by_server else ""
    return f"{rule.action}{verdict} ({rule.reason}): {rule.message}"


# --- JSON --------------------------------------------------------------------------------------------------------


def as_json(report: Report) -> str:
    """Write a report for machines: one object, every key always there, null for what is not known."""
    document = {
        "version": 1,
        "mode": report.mode,
        "targets": [_target_json(target) for target in report.targets],
        "notes": list(report.notes),
        "summary": report.counts(),
    }
    return json.dumps(document, indent=2) + "\n"


def _target_json(target: TargetLines) -> Mapping[str, object]:
    patch = target.patch
    return {
        "cluster": target.cluster,
        "resource": target.resource,
        "kind": target.kind,
        "namespace": target.namespace,
        "name": target.name,
        "rules": [_rule_json(rule) for rule in target.rules],
        "patch": None if patch is None else {"type": patch.type, "paths": list(patch.paths)},
    }


def _rule_json(rule: RuleLine) -> Mapping[str, object]:
    origin, needed = rule.origin, rule.permission.is_needed
    return {
        "id": rule.id,
        "op": rule.operation,
        "to": rule.to,
        "from": None
        if origin is None
        else {
            "cluster": origin.cluster,
            "resource": origin.resource,
            "namespace": origin.namespace,
            "name": origin.name,
            "path": origin.path,
        },
        "consent": {
            "needed": needed,
            "given": rule.permission.entry is not None if needed and rule.permission.is_known else None,
            "entry": rule.permission.entry,
        },
        "value": None if rule.value is None else _value_json(rule.value),
        "action": rule.action,
        "state": rule.state,
        "reason": rule.reason,
        "message": rule.message,
        "notes": list(rule.notes),
    }


def _value_json(shown: str) -> Mapping[str, object]:
    sort, _, rest = shown.partition("(")
    return {"type": sort, "count": int(rest.partition(" ")[0]) if rest else None}
