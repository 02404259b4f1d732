"""Count what the copier does, and how its rules are doing. No label holds a name, a namespace or a path.

Every value of every label is there from the start, with 0, for each cluster that is worked in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Final

import informers
from controllers.copier.problems import STATE_OF, RuleError, State
from informers import ObjectRef

_metrics: Final = informers.metrics


class Sent(StrEnum):
    """What came of a PATCH."""

    OK = "ok"
    NOOP = "noop"  # accepted, and nothing changed
    CONFLICT = "conflict"
    INVALID = "invalid"  # its content was refused
    DENIED = "denied"  # by an admission webhook or policy
    FORBIDDEN = "forbidden"
    GONE = "gone"
    THROTTLED = "throttled"
    ERROR = "error"


class Cause(StrEnum):
    """Why a value was taken away."""

    SOURCE_MISSING = "source_missing"
    RULE_REMOVED = "rule_removed"
    LEFT_SOURCE = "left_source"


_RULES: Final = _metrics.gauge("k8s_copier_rules", "Rules by how they are doing", ["cluster", "state"])
_PROBLEMS: Final = _metrics.gauge("k8s_copier_rule_problems", "Rules by what is wrong", ["cluster", "reason"])
_TARGETS: Final = _metrics.gauge("k8s_copier_targets", "Objects with rules", ["cluster"])
_SOURCES: Final = _metrics.gauge("k8s_copier_sources", "Objects that rules read", ["cluster"])
_PATCHES: Final = _metrics.counter(
    "k8s_copier_patches_total",
    "PATCHes of targets by what came of them",
    ["cluster", "result"],
    known={"result": tuple(Sent)},
)
_IN_SYNC: Final = _metrics.counter("k8s_copier_in_sync_total", "Looks at a target that led to no write", ["cluster"])
_REMOVALS: Final = _metrics.counter(
    "k8s_copier_removals_total", "Values taken away, by why", ["cluster", "cause"], known={"cause": tuple(Cause)}
)
_FLIPS: Final = _metrics.counter(
    "k8s_copier_flips_total", "Times that somebody else had changed what a rule keeps", ["cluster"]
)
_PROPAGATION: Final = _metrics.histogram(
    "k8s_copier_propagation_seconds", "From the oldest change not yet looked at to the answered PATCH", ["cluster"]
)
_FANOUT: Final = _metrics.gauge(
    "k8s_copier_fanout_max", "Targets of the source that has most", ["cluster"], combine="max"
)
_BY_CLUSTER: Final = (_TARGETS, _SOURCES, _IN_SYNC, _FLIPS, _PROPAGATION, _FANOUT)


@dataclass(frozen=True, slots=True)
class _Told:
    """What was last said of one target: how many rules in which state, with which reason, and what they read."""

    states: Mapping[State, int]
    reasons: Mapping[str, int]
    sources: frozenset[ObjectRef]


class Meter:
    """Counts for one process; used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards all below
        self._told: dict[ObjectRef, _Told] = {}
        self._readers: Counter[ObjectRef] = Counter()  # by source; no count is 0

    def show(self, clusters: Sequence[str]) -> None:
        """Have every series of these clusters, from now on."""
        _FANOUT.follow_each("cluster", self._fanout)
        for cluster in clusters:
            for series in _BY_CLUSTER:
                series.declare(cluster=cluster)
            for state in State:
                _RULES.declare(cluster=cluster, state=state)
            for reason in STATE_OF:
                _PROBLEMS.declare(cluster=cluster, reason=reason)
            for result in Sent:
                _PATCHES.declare(cluster=cluster, result=result)
            for cause in Cause:
                _REMOVALS.declare(cluster=cluster, cause=cause)

    def _fanout(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        with self._lock:
            for source, readers in self._readers.items():
                found[source.cluster] = max(found.get(source.cluster, 0.0), float(readers))
        return found

    # --- how things are ---

    def report(self, target: ObjectRef, rules: Iterable[RuleError | None], sources: Iterable[ObjectRef]) -> None:
        """Make this all that is known of a target: what is wrong with each of its rules (None: nothing), what they read."""
        errors = list(rules)
        states = Counter(State.SYNCED if error is None else error.state for error in errors)
        reasons = Counter(error.reason for error in errors if error is not None)
        self._swap(target, _Told(states, reasons, frozenset(sources)))

    def forget(self, target: ObjectRef) -> None:
        """Count a target no more."""
        self._swap(target, None)

    def _swap(self, target: ObjectRef, now: _Told | None) -> None:
        with self._lock:
            before = self._told.pop(target, None)
            if now is not None:
                self._told[target] = now
            if before is not None:
                self._count_locked(target.cluster, before, -1)
            if now is not None:
                self._count_locked(target.cluster, now, 1)
            if (before.sources if before is not None else None) != (now.sources if now is not None else None):
                self._count_sources_locked(before.sources if before else (), now.sources if now else ())

    def _count_locked(self, cluster: str, told: _Told, sign: int) -> None:
        _TARGETS.add(sign, cluster=cluster)
        for state, count in told.states.items():
            _RULES.add(sign * count, cluster=cluster, state=state)
        for reason, count in told.reasons.items():
            _PROBLEMS.add(sign * count, cluster=cluster, reason=reason)

    def _count_sources_locked(self, before: Collection[ObjectRef], now: Collection[ObjectRef]) -> None:
        for source in before:
            self._readers[source] -= 1
            if not self._readers[source]:
                del self._readers[source]
                _SOURCES.add(-1, cluster=source.cluster)
        for source in now:
            if source not in self._readers:
                _SOURCES.add(1, cluster=source.cluster)
            self._readers[source] += 1

    # --- what is done ---

    def patched(self, cluster: str, result: Sent) -> None:
        """Count a PATCH that was answered, or failed."""
        _PATCHES.add(cluster=cluster, result=result)

    def in_sync(self, cluster: str) -> None:
        """Count a look that led to no write."""
        _IN_SYNC.add(cluster=cluster)

    def propagated(self, cluster: str, seconds: float) -> None:
        """Tell how long a change took until it was written."""
        _PROPAGATION.observe(seconds, cluster=cluster)

    def removed(self, cluster: str, cause: Cause) -> None:
        """Count a value that was taken away."""
        _REMOVALS.add(cluster=cluster, cause=cause)

    def flipped(self, cluster: str) -> None:
        """Count that somebody else had changed what a rule keeps."""
        _FLIPS.add(cluster=cluster)
