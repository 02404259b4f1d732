"""Do all that the controller does, once for each target, with every write sent on trial; then tell what came of it.

The targets are looked at by the controller's own reconciler; here it is noticed when each has been judged, and the
program is ended then. What the server says of a trial is what it would say of the write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from controllers.copier.describing import describe_look
from controllers.copier.reconciler import Look
from controllers.copier.report import Report, TargetLines, in_order
from controllers.copier.rules import has_rules
from controllers.copier.sources import Mappers, Policy
from informers import (
    AmbiguousKindError,
    APIError,
    Clock,
    Lister,
    Manager,
    ObjectRef,
    Reconcile,
    Request,
    Result,
    Stop,
    UnknownKindError,
)

_PATIENCE: Final = 30.0  # for a target that cannot be judged at once
_PAUSE: Final = 0.05


class DryRun:
    """What has come of the targets so far."""

    def __init__(self, mapper: Mappers, policy: Policy, clock: Clock) -> None:
        self._clock = clock
        self._mapper = mapper
        self._policy = policy
        self._lock = Lock()  # guards all below
        self._lines: dict[ObjectRef, TargetLines] = {}
        self._failed: dict[ObjectRef, str] = {}
        self._since: dict[ObjectRef, float] = {}
        self._done: set[ObjectRef] = set()
        self._notes: list[str] = []
        self._is_complete = False
        self._is_blind = False  # targets may have been missed

    def show(self, look: Look) -> None:
        """Take note of what came of a look."""
        lines = describe_look(look, self._mapper, self._policy)
        left = {leaving.identity for leaving in look.leavings}
        # What has lost its source is looked at twice before it goes.
        is_pending = any(turn.is_leaving and turn.identity not in left for turn in look.turns)
        with self._lock:
            self._lines[look.target.ref] = lines
            if not is_pending:
                self._done.add(look.target.ref)

    def once(self, reconcile: Reconcile) -> Reconcile:
        """Return the same, but that no target is looked at again once it was judged, or could not be for long."""

        def look(request: Request) -> Result | None:
            ref, now = request.ref, self._clock.monotonic()
            with self._lock:
                if ref in self._done:
                    return None
                is_over = now >= self._since.setdefault(ref, now) + _PATIENCE
            problem = "the server is busy"
            try:
                result = reconcile(request)
            except Exception as error:
                if not is_over:
                    raise
                problem, result = type(error).__name__, Result(_PATIENCE)
            with self._lock:
                asks_again = ref not in self._done and result is not None and result.requeue_after is not None
                if asks_again and not is_over:
                    return result
                if asks_again and ref not in self._lines:
                    self._failed[ref] = problem
                self._done.add(ref)
            return None

        return look

    def run(self, manager: Manager, targets: Mapping[str, Lister], why_unready: Callable[[], str | None]) -> Report:
        """Have the manager run until each target was judged, and tell what came of them."""

        def wait(stop: Stop) -> None:
            while why_unready() is not None and not stop.is_set():
                stop.wait(_PAUSE)
            wanted: set[ObjectRef] = set()
            for text, lister in targets.items():
                for cluster in manager.clusters():
                    wanted |= self._targets_in(lister, text, cluster)
            while not self._has_judged(wanted) and not stop.is_set():
                stop.wait(_PAUSE)
            if not stop.is_set():
                self._is_complete = True
                manager.stop("each target was looked at")

        manager.add_runnable("dry-run", wait)
        manager.run()
        return self._report()

    def _targets_in(self, lister: Lister, text: str, cluster: str) -> set[ObjectRef]:
        where = f" in cluster {self._policy.name_of(cluster)}" if self._policy.clusters else ""
        problem = lister.problem(cluster)
        if isinstance(problem, AmbiguousKindError):
            self._notes.append(f"{text} may be {' or '.join(problem.candidates)}{where}; write one of these")
            self._is_blind = True
        elif lister.state(cluster) == "unserved":
            near = problem.candidates if isinstance(problem, UnknownKindError) else ()
            perhaps = f"; perhaps {' or '.join(near)}" if near else ""
            self._notes.append(f"{text} is not served yet{where}{perhaps}")
        elif lister.has_synced(cluster):
            return {obj.ref for obj in lister.list(cluster=cluster) if has_rules(obj.annotations)}
        else:
            why = f"{problem.status} {problem.reason}" if isinstance(problem, APIError) else "no answer"
            self._notes.append(f"{text} cannot be listed{where}: {why}")
            self._is_blind = True
        return set()

    def _has_judged(self, wanted: set[ObjectRef]) -> bool:
        with self._lock:
            return wanted <= self._done

    def _report(self) -> Report:
        with self._lock:
            lines, failed = list(self._lines.values()), sorted(self._failed.items())
        notes = [*self._notes]
        notes += [f"{self._policy.told(ref, seen_from=ref.cluster)} could not be judged: {why}" for ref, why in failed]
        if not self._is_complete:
            notes.append("ended before each target was looked at")
        return Report(
            "dry-run", in_order(lines), notes, is_complete=self._is_complete and not (failed or self._is_blind)
        )
