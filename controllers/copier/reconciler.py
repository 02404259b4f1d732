"""Make one target what its rules say: look at it and its sources in the caches, and send one PATCH, or nothing.

Pure functions decide (`rules`, `paths`, `compute`, `consent`); here it is read, written and told. Only the
target's own paths are ever written, and only if the target still is what was looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from controllers.copier.compute import Document, Outcome
from controllers.copier.consent import Target
from controllers.copier.evaluation import plan, read_all, whom_of
from controllers.copier.guards import Guard
from controllers.copier.kinds import is_going, may_go
from controllers.copier.leaving import (
    NOT_READABLE,
    Leaving,
    abandoned,
    departed,
    judge,
    next_missing,
    note_given,
    note_missing,
    note_rules,
    orphaned,
    paths_that_stay,
    settle,
)
from controllers.copier.memory import Conditions, Memories, Memory, fingerprint
from controllers.copier.metering import Meter
from controllers.copier.namespaces import Namespaces
from controllers.copier.outages import Outages
from controllers.copier.ownership import read_record
from controllers.copier.paths import Key, look, show, take
from controllers.copier.problems import RuleError, UnexpectedError
from controllers.copier.reports import Status, report, report_leaving, report_shared, warn_base64
from controllers.copier.rings import Rings
from controllers.copier.rules import RuleSet, has_rules, parse_rules, rules_among
from controllers.copier.schemas import Schemas
from controllers.copier.sources import Policy, Snapshot, is_same_object, missing_option, seen_from
from controllers.copier.turns import Turn
from controllers.copier.values import Plain, decode
from controllers.copier.writing import FIELD_MANAGER, BusyError, Draft, TargetGoneError, Writer, make_draft
from informers import (
    Clock,
    ConflictError,
    DependencyGraph,
    EventRecorder,
    ForbiddenError,
    InformersError,
    Lister,
    Object,
    ObjectRef,
    Request,
    RESTMapper,
    Result,
    fields,
)

_FIRST_SYNC_WAIT: Final = 10.0
_INCOMPLETE_WAIT: Final = (5.0, 30.0)
_SCHEMA_WAIT: Final = 10.0  # no event tells of another schema; that it is the same is known without asking
MANAGED_FIELDS: Final = (Key("metadata"), Key("managedFields"))

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What came of one look at a target, for who wants to see it."""

    target: Object
    whom: Target
    turns: Sequence[Turn]
    draft: Draft | None  # None when the target could not be read
    leavings: Sequence[Leaving] = ()


def show_nobody(_look: Look) -> None:
    """Leave it at Events, logs and metrics."""


@dataclass(frozen=True, slots=True)
class Copier:
    """Keeps targets equal to what their rules say."""

    writer: Writer
    events: EventRecorder
    graph: DependencyGraph
    mapper: Callable[[str], RESTMapper]
    targets: Sequence[Lister]
    namespaces: Namespaces
    clock: Clock
    policy: Policy
    schemas: Schemas
    meter: Meter
    rings: Rings
    guard: Guard
    outages: Outages
    show: Callable[[Look], None] = show_nobody
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
        except BaseException as error:  # noqa: BLE001 - whatever it is, its text may hold a value, and will be logged
            raise UnexpectedError(error) from None

    def _reconcile(self, request: Request) -> Result:
        _log.debug("woken", extra=fields(target=str(request.ref)))
        target = self._target(request.ref)
        if target is None or self._is_going(target) or not self._concerns(target):
            self._forget(request.ref)
            return Result()
        why_not = self.guard.why_not(target.ref)
        if why_not is not None:
            self._forget(request.ref)
            report_shared(target, self.conditions, [RuleError("Guarded", why_not)])
            return Result()

        memory = self.memories.of(target.ref, target.uid)
        rules = parse_rules(target.annotations)
        self._remember_rules(memory, rules)
        whom = whom_of(target, self.mapper, self.policy)
        may_wait = self.clock.monotonic() - memory.waiting_since < _FIRST_SYNC_WAIT
        turns = plan(rules, whom, seen_from(target.cluster, self.mapper), self.policy, may_wait=may_wait)
        self._declare(target, turns)
        snapshot = Snapshot(
            lambda ref: self.graph.lister(ref).find(ref), target, may_wait=may_wait, is_down=self.outages.is_down
        )
        find_rings = partial(self.rings.find, turns=turns, version=target.resource_version, may_wait=may_wait)
        read_all(turns, whom, snapshot, self.policy, find_rings=find_rings)
        if not memory.is_evaluated and any(turn.is_quiet for turn in turns):
            return Result(requeue_after=_FIRST_SYNC_WAIT)
        memory.is_evaluated = True
        for source in note_missing(turns, memory, self.clock.monotonic()):
            if may_go(source.gvr):
                self.mapper(source.cluster).invalidate()  # its kind may be gone: known before the second look
        try:
            result = self._act(target, whom, turns, memory, request)
        except TargetGoneError:
            self._forget(target.ref)
            return Result()
        except BusyError as busy:
            return Result(requeue_after=busy.retry_after)
        if not rules and not memory.departed:
            self._forget(target.ref)
            return Result()
        report_shared(target, self.conditions, [turn.error for turn in turns])
        is_incomplete = snapshot.is_incomplete() or any(
            turn.error is not None and turn.error.reason == "SchemaUnavailable" for turn in turns
        )
        return self._look_at_incomplete(memory, result, is_incomplete=is_incomplete)

    def _look_at_incomplete(self, memory: Memory, result: Result, *, is_incomplete: bool) -> Result:
        """Look again soon, then less often, for what no event will tell of."""
        if not is_incomplete:
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
        return bool(target.deletion_timestamp) or self.namespaces.is_going(target.ref)

    def _concerns(self, target: Object) -> bool:
        """Tell whether a target has rules, or had some whose values are still to go."""
        return has_rules(target.annotations) or self.memories.knows(target.ref, target.uid)

    def _forget(self, ref: ObjectRef) -> None:
        self.conditions.swap(ref, frozenset())
        self.meter.forget(ref)
        if self.memories.forget(ref):
            _log.debug("forgotten", extra=fields(target=str(ref)))
        self.graph.forget(ref)
        self.rings.forget(ref)
        self.outages.forget(ref)

    def _remember_rules(self, memory: Memory, rules: RuleSet) -> None:
        """Begin to wait for first lists anew when the rules have changed, and let go of the rules that are gone."""
        texts: list[Plain] = [*(f"{rule.id} {rule.text}" for rule in rules.rules), *(bad.id for bad in rules.bad)]
        now = fingerprint(texts)
        if now != memory.rules:
            memory.rules = now
            memory.waiting_since = self.clock.monotonic()
            note_rules(memory, rules, self.policy)

    def _declare(self, target: Object, turns: Iterable[Turn]) -> None:
        """Tell what is depended on, before it is read; kinds by name too, as what a name means may change."""
        sources = {turn.source for turn in turns if turn.source and not is_same_object(turn.source, target.ref)}
        kinds = {name for turn in turns for name in turn.names}
        self.graph.replace(target.ref, sorted(sources), kinds=sorted(kinds))
        others = [ref for ref in sources if ref.cluster != target.cluster]
        self.outages.note(target.ref, [(ref, self.graph.lister(ref)) for ref in others])

    # --- acting --------------------------------------------------------------------------------------------------

    def _act(self, target: Object, whom: Target, turns: Sequence[Turn], memory: Memory, request: Request) -> Result:
        try:
            draft, leavings = self._draft(target, turns, memory)
        except (RuleError, RecursionError):
            for turn in turns:
                turn.error = turn.error or RuleError("TypeMismatch", "the target is nested too deep to be written")
            self._report(target, memory, turns, {})
            self._show(Look(target, whom, turns, None))
            return Result()
        changed = [turn for turn in turns if draft.changes(turn)]
        self._report(target, memory, [turn for turn in turns if not draft.changes(turn)], draft.outcomes)
        live = draft.live
        if changed or draft.folded.dropped:
            live = self.writer.write(draft, changed, leavings, memory)
            self._report(target, memory, changed, draft.outcomes)
            self._warn_base64(target, whom, changed, draft.outcomes, memory)
            if request.since and any(turn.error is None for turn in changed):
                self.meter.propagated(target.cluster, self.clock.monotonic() - request.since)
        else:
            _log.debug("in sync", extra=fields(target=str(target.ref)))
            # How often a target is looked at would tell of a source that may not be read that it is there, and changes.
            if not any(turn.consent is not None and turn.consent.is_missing for turn in turns):
                self.meter.in_sync(target.cluster)
        self._settle_leavings(target, leavings, memory)
        note_given(turns, draft.outcomes, draft.folded.keyed, live, memory)
        self._show(Look(target, whom, turns, draft, leavings))
        return self._next_look(turns, memory)

    def _draft(self, target: Object, turns: Sequence[Turn], memory: Memory) -> tuple[Draft, Sequence[Leaving]]:
        """Fold all rules over the target, and take away what has lost its reason to be there."""
        live = decode(target.raw)
        schema = self.schemas.of(target.ref)
        self.writer.hold_back(turns, memory, live, schema)
        staying = paths_that_stay(memory, turns)
        leavings = self._leavings(target, turns, memory, live)
        if leavings:
            found = self._look_live(target, leavings)
            if found is not None:
                target, live = found, decode(found.raw)
                record = read_record(look(live, MANAGED_FIELDS), FIELD_MANAGER)
                judge(leavings, live, record, staying, target.ref.gvr)
                take(live, MANAGED_FIELDS)
        present = {turn.identity for turn in turns}
        kept = [to for identity, to in staying.items() if identity not in present]
        draft = make_draft(live, target, turns, schema, leavings, kept)
        if self.writer.hold_changes(draft, turns, memory):
            draft = make_draft(live, target, turns, schema, leavings, kept)
        return draft, leavings

    def _leavings(self, target: Object, turns: Sequence[Turn], memory: Memory, live: Document) -> Sequence[Leaving]:
        """Name what has lost its reason to be there and may still be there."""
        if self.writer.waits_for_right(memory):
            return ()
        orphans = orphaned(turns, memory, live, target.ref.gvr, self.clock.monotonic(), self._is_staying)
        return [*departed(memory), *orphans, *abandoned(turns, memory)]

    def _is_staying(self, source: ObjectRef) -> bool | None:
        """Tell whether what a source belongs to, its kind and its namespace, is there to stay; None if nobody knows."""
        try:
            resource = self.mapper(source.cluster).resource(source.gvr)
        except InformersError:
            return None
        return False if is_going(resource) else self.namespaces.is_staying(source)

    def _look_live(self, target: Object, leavings: Sequence[Leaving]) -> Object | None:
        """Read the target from the server, who alone tells whose fields are whose; None if nobody has to know.

        Raises `ConflictError` if its rules are others by now, `TargetGoneError` if it is going.
        """
        if has_rules(target.annotations):
            present = decode(target.raw)
            for leaving in leavings:
                leaving.forget_absent(present)
        if not any(leaving.given for leaving in leavings):
            return None
        try:
            found = self.writer.read(target.ref)
        except ForbiddenError:
            for leaving in leavings:
                leaving.stay(NOT_READABLE)
            return None
        if found.uid != target.uid or rules_among(found.annotations) != rules_among(target.annotations):
            raise ConflictError("its rules are not those that were looked at", ref=target.ref, verb="get")
        if found.deletion_timestamp:
            raise TargetGoneError
        return found

    def _settle_leavings(self, target: Object, leavings: Iterable[Leaving], memory: Memory) -> None:
        notes: list[tuple[str, str, str]] = []
        for leaving in leavings:
            if leaving.drops and not leaving.is_done:
                continue  # not written: it is asked for again
            settle(leaving, memory)
            if leaving.drops:
                self.meter.removed(target.cluster, leaving.cause)
                notes.append((leaving.rule, "Removed", leaving.told_removed))
            if leaving.kept:
                notes.append((leaving.rule, "Kept", leaving.told_kept))
        report_leaving(self.events, target, notes)

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
            source = self.policy.told(turn.source, seen_from=target.cluster) if turn.source is not None else ""
            statuses.append(Status(turn.id, turn.identity, turn.problem, written, source))
        report(self.events, target, memory, statuses)

    def _warn_base64(
        self, target: Object, whom: Target, turns: Iterable[Turn], outcomes: Mapping[str, Outcome], memory: Memory
    ) -> None:
        """Tell of base64 text where it was written just now; what has stood there since long ago is told no more."""
        for turn in turns:
            if turn.found is None or turn.error is not None or turn.identity in memory.warned:
                continue
            assert turn.rule is not None
            if option := missing_option(turn.rule, turn.found, outcomes[turn.id].place, whom):
                memory.warned.add(turn.identity)
                warn_base64(self.events, target, turn.id, option)

    def _next_look(self, turns: Iterable[Turn], memory: Memory) -> Result:
        """Look again when something may be tried anew that no event will tell of."""
        now = self.clock.monotonic()
        times: list[float] = []
        second_look = next_missing(memory, now)
        if second_look is not None:
            times.append(second_look)
        forbidden = self.writer.waits_for_right(memory)
        if forbidden is not None and forbidden.retry_at is not None and (memory.departed or memory.missing):
            times.append(forbidden.retry_at)
        for turn in turns:
            if turn.is_quiet and turn.found is None:
                times.append(memory.waiting_since + _FIRST_SYNC_WAIT)
            contest = memory.contests.get(turn.identity)
            if contest is not None and contest.is_on and now < contest.next_look:
                times.append(contest.next_look)
            settled = memory.settled.get(turn.identity)
            if settled is not None and settled.has_lost:
                times.append(min(settled.retry_at, now + _SCHEMA_WAIT))
            if turn.error is None:
                continue
            known = (memory.stalls.get(turn.identity), memory.forbidden)
            times.extend(each.retry_at for each in known if each and each.error is turn.error and each.retry_at)
        return Result(requeue_after=max(min(times) - now, 0.01)) if times else Result()
