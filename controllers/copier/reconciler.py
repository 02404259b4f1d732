"""Make one target what its rules say: look at it and its sources in the caches, and send one PATCH, or nothing.

Pure functions decide (`rules`, `paths`, `compute`, `consent`); here it is read, written and told. Only the
target's own paths are ever written, and only if the target still is what was looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controllers.copier.compute import Outcome
from controllers.copier.consent import Target
from controllers.copier.evaluation import plan, read_all
from controllers.copier.kinds import is_guarded
from controllers.copier.memory import Conditions, Memories, Memory, fingerprint
from controllers.copier.metering import Meter
from controllers.copier.paths import show
from controllers.copier.problems import RuleError, UnexpectedError
from controllers.copier.reports import Status, report, report_shared, warn_base64
from controllers.copier.rules import RuleSet, has_rules, parse_rules
from controllers.copier.sources import Policy, Snapshot, is_raw_base64, is_same_object
from controllers.copier.turns import Turn
from controllers.copier.values import Plain, decode
from controllers.copier.writing import BusyError, Draft, TargetGoneError, Writer, make_draft
from informers import (
    GVR,
    Clock,
    DependencyGraph,
    EventRecorder,
    InformersError,
    Lister,
    NotSyncedError,
    Object,
    ObjectRef,
    Request,
    Resource,
    RESTMapper,
    Result,
    StaleCacheError,
    fields,
)

NAMESPACES: Final = GVR("", "v1", "namespaces")

_FIRST_SYNC_WAIT: Final = 10.0
_INCOMPLETE_WAIT: Final = (5.0, 30.0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What came of one look at a target, for who wants to see it."""

    target: Object
    whom: Target
    turns: Sequence[Turn]
    draft: Draft | None  # None when the target could not be read


def _show_nobody(_look: Look) -> None:
    """Leave it at Events, logs and metrics."""


@dataclass(frozen=True, slots=True)
class Copier:
    """Keeps targets equal to what their rules say."""

    writer: Writer
    events: EventRecorder
    graph: DependencyGraph
    mapper: Callable[[str], RESTMapper]
    targets: Sequence[Lister]
    namespaces: Lister | None
    clock: Clock
    policy: Policy
    meter: Meter
    show: Callable[[Look], None] = _show_nobody
    full_targets: Sequence[str] = ()  # kinds as they were named in full, which guarded ones have to be
    memories: Memories = field(default_factory=Memories)
    conditions: Conditions = field(default_factory=Conditions)

    def reconcile(self, request: Request) -> Result:
        """Bring one target up to date.

        Raises what the framework retries: a conflict, no answer, a server's failure; `UnexpectedError` for our own.
        """
        try:
            return self._reconcile(request)
        except InformersError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its text may hold a value, and will be logged
            raise UnexpectedError(error) from None

    def _reconcile(self, request: Request) -> Result:
        target = self._target(request.ref)
        if target is None or self._is_going(target) or not has_rules(target.annotations):
            self._forget(request.ref)
            return Result()
        if is_guarded(target.ref.gvr) and not self._is_named_in_full(target.ref):
            self._forget(request.ref)
            report_shared(target, self.conditions, [RuleError("Guarded", f"to mean it, write {target.ref.gvr}")])
            return Result()

        memory = self.memories.of(target.ref, target.uid)
        rules = parse_rules(target.annotations)
        self._remember_rules(memory, rules)
        whom = Target(target.ref, self._resource_of(target), self.policy.name_of(target.cluster))
        turns = plan(rules, whom, self.mapper, self.policy)
        self._declare(target, turns)
        may_wait = self.clock.monotonic() - memory.waiting_since < _FIRST_SYNC_WAIT
        snapshot = Snapshot(lambda ref: self.graph.lister(ref).find(ref), target, may_wait=may_wait)
        read_all(turns, whom, snapshot, self.policy)
        if not memory.is_evaluated and any(turn.is_quiet for turn in turns):
            return Result(requeue_after=_FIRST_SYNC_WAIT)
        memory.is_evaluated = True
        result = self._act(target, whom, turns, memory, request)
        report_shared(target, self.conditions, [turn.error for turn in turns])
        return self._look_at_incomplete(snapshot, memory, result)

    def _look_at_incomplete(self, snapshot: Snapshot, memory: Memory, result: Result) -> Result:
        """Look again soon, then less often, for what no event will tell of."""
        if not snapshot.is_incomplete():
            memory.incomplete_wait = 0.0
            return result
        first, longest = _INCOMPLETE_WAIT
        memory.incomplete_wait = min(memory.incomplete_wait * 2 or first, longest)
        return Result(requeue_after=min(memory.incomplete_wait, result.requeue_after or memory.incomplete_wait))

    # --- looking -------------------------------------------------------------------------------------------------

    def _target(self, ref: ObjectRef) -> Object | None:
        for lister in self.targets:
            if lister.follows(ref):
                return lister.find(ref)
        return None

    def _is_going(self, target: Object) -> bool:
        if target.deletion_timestamp:
            return True
        if not target.namespace or self.namespaces is None:
            return False
        try:
            namespace = self.namespaces.find(target.ref.sibling(NAMESPACES, name=target.namespace, namespace=""))
        except (NotSyncedError, StaleCacheError):
            return False  # not allowed to know, or not yet
        return namespace is not None and bool(namespace.deletion_timestamp)

    def _is_named_in_full(self, ref: ObjectRef) -> bool:
        mapper = self.mapper(ref.cluster)
        for text in self.full_targets:
            try:
                if mapper.resolve(text).gvr == ref.gvr:
                    return True
            except InformersError:
                continue
        return False

    def _forget(self, ref: ObjectRef) -> None:
        self.conditions.swap(ref, frozenset())
        self.meter.forget(ref)
        if self.memories.forget(ref):
            _log.debug("forgotten", extra=fields(target=str(ref)))
        self.graph.forget(ref)

    def _remember_rules(self, memory: Memory, rules: RuleSet) -> None:
        """Begin to wait for first lists anew when the rules have changed, and forget the rules that are gone."""
        texts: list[Plain] = [*(f"{rule.id} {rule.text}" for rule in rules.rules), *(bad.id for bad in rules.bad)]
        identities = {rule.identity for rule in rules.rules} | {bad.identity for bad in rules.bad}
        now = fingerprint(texts)
        if now != memory.rules:
            memory.rules = now
            memory.waiting_since = self.clock.monotonic()
            memory.keep_only(identities)

    def _resource_of(self, target: Object) -> Resource:
        try:
            return self.mapper(target.cluster).resource(target.ref.gvr)
        except InformersError:
            kind = target.kind or target.ref.gvr.resource
            return Resource(target.ref.gvr, kind, kind.lower(), bool(target.namespace), verbs=frozenset({"patch"}))

    def _declare(self, target: Object, turns: Iterable[Turn]) -> None:
        """Tell what is depended on, before it is read; kinds by name too, as what a name means may change."""
        sources = {turn.source for turn in turns if turn.source and not is_same_object(turn.source, target.ref)}
        kinds = {name for turn in turns for name in turn.names}
        self.graph.replace(target.ref, sorted(sources), kinds=sorted(kinds))

    # --- acting --------------------------------------------------------------------------------------------------

    def _act(self, target: Object, whom: Target, turns: Sequence[Turn], memory: Memory, request: Request) -> Result:
        try:
            live = decode(target.raw)
            self.writer.hold_back(turns, memory, live, target.ref.gvr)
            draft = make_draft(live, target, turns)
        except (RuleError, RecursionError):
            for turn in turns:
                turn.error = turn.error or RuleError("TypeMismatch", "the target is nested too deep to be written")
            self._report(target, memory, turns, {})
            self._show(Look(target, whom, turns, None))
            return Result()
        changed = [turn for turn in turns if draft.changes(turn)]
        self._report(target, memory, [turn for turn in turns if not draft.changes(turn)], draft.outcomes)
        if not changed:
            _log.debug("in sync", extra=fields(target=str(target.ref)))
            self.meter.in_sync(target.cluster)
            self._show(Look(target, whom, turns, draft))
            return self._next_look(turns, memory)
        try:
            self.writer.write(draft, turns, changed, memory)
        except TargetGoneError:
            self._forget(target.ref)
            return Result()
        except BusyError as busy:
            return Result(requeue_after=busy.retry_after)
        self._report(target, memory, changed, draft.outcomes)
        self._warn_base64(target, whom, changed, draft.outcomes, memory)
        if request.since and any(turn.error is None for turn in changed):
            self.meter.propagated(target.cluster, self.clock.monotonic() - request.since)
        self._show(Look(target, whom, turns, draft))
        return self._next_look(turns, memory)

    def _show(self, look: Look) -> None:
        told = [turn.problem for turn in look.turns if not (turn.is_quiet and turn.found is None)]
        sources = {turn.source for turn in look.turns if turn.source is not None}
        self.meter.report(look.target.ref, told, sources)
        self.show(look)

    # --- telling -------------------------------------------------------------------------------------------------

    def _report(self, target: Object, memory: Memory, turns: Iterable[Turn], outcomes: Mapping[str, Outcome]) -> None:
        statuses = []
        for turn in turns:
            if turn.is_quiet and turn.found is None:
                continue
            written = ""
            outcome = outcomes.get(turn.id)
            if turn.error is None and outcome is not None and outcome.changes:
                written = f"wrote {show(outcome.place)} from {turn.found}"
            statuses.append(Status(turn.id, turn.identity, turn.problem, written))
        report(self.events, target, memory, statuses)

    def _warn_base64(
        self, target: Object, whom: Target, turns: Iterable[Turn], outcomes: Mapping[str, Outcome], memory: Memory
    ) -> None:
        """Tell of base64 text where it was written just now; what has stood there since long ago is told no more."""
        for turn in turns:
            if turn.found is None or turn.error is not None or turn.identity in memory.warned:
                continue
            if is_raw_base64(turn.found, outcomes[turn.id].place, whom):
                memory.warned.add(turn.identity)
                warn_base64(self.events, target, turn.id)

    def _next_look(self, turns: Iterable[Turn], memory: Memory) -> Result:
        """Look again when something may be tried anew that no event will tell of."""
        now = self.clock.monotonic()
        times: list[float] = []
        for turn in turns:
            if turn.is_quiet and turn.found is None:
                times.append(memory.waiting_since + _FIRST_SYNC_WAIT)
            if turn.error is None:
                continue
            known = (memory.stalls.get(turn.identity), memory.settled.get(turn.identity), memory.forbidden)
            times.extend(each.retry_at for each in known if each and each.error is turn.error and each.retry_at)
        return Result(requeue_after=max(min(times) - now, 0.01)) if times else Result()
