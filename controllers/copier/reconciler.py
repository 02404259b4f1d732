"""Make one target what its rules say: look at it and its sources in the caches, and send one PATCH, or nothing.

Pure functions decide (`rules`, `sources`, `compute`, `answers`); here it is read, sent and remembered. Only the
target's own paths are ever written, and only if the target still is what was looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controllers.copier import answers
from controllers.copier.compute import Document, Folded, Outcome, Patch, Wish, build_patch, fold
from controllers.copier.consent import Target
from controllers.copier.kinds import is_guarded, string_maps_of
from controllers.copier.memory import Identity, Memories, Memory, Settled, Stall, fingerprint
from controllers.copier.paths import Absent, Path, locate, look, show
from controllers.copier.problems import RuleError
from controllers.copier.reports import Status, report, warn_base64
from controllers.copier.rules import Rule, RuleSet, Source, has_rules, parse_rules
from controllers.copier.sources import (
    Found,
    PendingError,
    Policy,
    Snapshot,
    is_raw_base64,
    is_same_object,
    locate_source,
    read_source,
)
from controllers.copier.values import Plain, decode, equal
from informers import (
    GVR,
    APIError,
    Client,
    Clock,
    ConflictError,
    DependencyGraph,
    EventRecorder,
    InformersError,
    Lister,
    NotFoundError,
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

FIELD_MANAGER: Final = "k8s-copier"  # stands in managedFields of every target: it never changes
NAMESPACES: Final = GVR("", "v1", "namespaces")

_FIRST_SYNC_WAIT: Final = 10.0
_INCOMPLETE_WAIT: Final = 5.0
_FORBIDDEN_WAIT: Final = (60.0, 600.0)
_DENIED_WAIT: Final = (300.0, 3600.0)
_NOT_PERSISTED_WAIT: Final = 3600.0
_FAILED_TESTS: Final = 3
_BUSY: Final = frozenset({429, 503})

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Turn:
    """One rule in one turn: what it would write, or why not."""

    id: str
    identity: Identity
    to: Path | None
    rule: Rule | None = None
    source: ObjectRef | None = None
    found: Found | None = None
    error: RuleError | None = None
    is_quiet: bool = False  # held without a word: it waits for a first list

    @property
    def wish(self) -> Wish | None:
        """What is folded: the value, or that the path is kept; None where no path is known."""
        if self.to is None:
            return None
        delivers = self.found is not None and self.error is None and not self.is_quiet
        return Wish(self.id, self.to, self.found.value if delivers and self.found is not None else None)

    @property
    def kind(self) -> str:
        """The name of the source's kind as the rule has it, `""` for a constant."""
        return self.rule.origin.resource if self.rule is not None and isinstance(self.rule.origin, Source) else ""

    def attempt(self, content: bytes) -> bytes:
        """What stays equal as long as sending it again would be the same request."""
        assert self.rule is not None
        assert self.found is not None
        return fingerprint(self.rule.text, self.found.value.plain, content.hex())


@dataclass(frozen=True, slots=True)
class Copier:
    """Keeps targets equal to what their rules say."""

    client: Client
    events: EventRecorder
    graph: DependencyGraph
    mapper: Callable[[str], RESTMapper]
    targets: Sequence[Lister]
    namespaces: Lister | None
    clock: Clock
    policy: Policy
    full_targets: frozenset[GVR] = frozenset()  # guarded kinds that were named in full
    memories: Memories = field(default_factory=Memories)

    def reconcile(self, request: Request) -> Result:
        """Bring one target up to date. Raises what the framework retries: a conflict, no answer, a server's failure."""
        target = self._target(request.ref)
        if target is None or self._is_going(target) or not has_rules(target.annotations):
            self._forget(request.ref)
            return Result()
        gvr = target.ref.gvr
        if is_guarded(gvr) and gvr not in self.full_targets:
            self._forget(request.ref)
            return Result()

        memory = self.memories.of(target.ref, target.uid)
        rules = parse_rules(target.annotations)
        self._remember_rules(memory, rules)
        whom = Target(target.ref, self._resource_of(target))
        turns = self._plan(rules, whom)
        self._declare(target, turns)
        may_wait = self.clock.monotonic() - memory.waiting_since < _FIRST_SYNC_WAIT
        snapshot = Snapshot(self.graph, target, may_wait=may_wait)
        self._read(turns, whom, snapshot)
        if not memory.is_evaluated and any(turn.is_quiet for turn in turns):
            return Result(requeue_after=_FIRST_SYNC_WAIT)
        memory.is_evaluated = True
        result = self._act(target, whom, turns, memory)
        if snapshot.is_incomplete:
            return Result(requeue_after=min(_INCOMPLETE_WAIT, result.requeue_after or _INCOMPLETE_WAIT))
        return result

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

    def _forget(self, ref: ObjectRef) -> None:
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

    def _plan(self, rules: RuleSet, whom: Target) -> list[_Turn]:
        """Decide all that needs no source: which object each rule reads, or why it cannot work."""
        turns = [_Turn(bad.id, bad.identity, bad.to, error=bad.error) for bad in rules.bad]
        for rule in rules.rules:
            turn = _Turn(rule.id, rule.identity, rule.to, rule)
            try:
                if "patch" not in whom.resource.verbs:
                    raise RuleError("UnsupportedKind", f"{whom.ref.gvr} has no verb patch")
                turn.source = locate_source(rule, whom, self.mapper(whom.ref.cluster), self.policy)
            except RuleError as error:
                turn.error = error
            turns.append(turn)
        return turns

    def _declare(self, target: Object, turns: Iterable[_Turn]) -> None:
        """Tell what is depended on, before it is read; kinds by name too, as what a name means may change."""
        sources = {turn.source for turn in turns if turn.source and not is_same_object(turn.source, target.ref)}
        kinds = {(target.cluster, turn.kind) for turn in turns if turn.kind}
        self.graph.replace(target.ref, sorted(sources), kinds=sorted(kinds))

    def _read(self, turns: Iterable[_Turn], whom: Target, snapshot: Snapshot) -> None:
        for turn in turns:
            if turn.rule is None or turn.error is not None:
                continue
            try:
                turn.found = read_source(turn.rule, turn.source, whom, snapshot, self.policy)
            except PendingError:
                turn.is_quiet = True
            except RuleError as error:
                turn.error = error

    # --- acting --------------------------------------------------------------------------------------------------

    def _act(self, target: Object, whom: Target, turns: Sequence[_Turn], memory: Memory) -> Result:
        try:
            live = decode(target.raw)
        except RuleError as error:
            for turn in turns:
                turn.error = turn.error or error
            self._report(target, memory, turns, {})
            return Result()
        self._hold_refused(turns, memory, live, target.ref.gvr)
        folded = self._fold(live, turns, target.ref.gvr)
        outcomes = {outcome.wish.rule: outcome for outcome in folded.outcomes}
        changed = [turn for turn in turns if _changes(turn, outcomes)]
        self._report(target, memory, [turn for turn in turns if not _changes(turn, outcomes)], outcomes)
        self._warn_base64(target, whom, turns, outcomes, memory)
        try:
            patch = build_patch(live, folded, uid=target.uid, resource_version=target.resource_version)
        except RuleError as error:
            self._stall(changed, error, memory, _content(live))
            self._report(target, memory, changed, outcomes)
            return self._next_look(turns, memory)
        if patch is None:
            _log.debug("in sync", extra=fields(target=str(target.ref)))
            return self._next_look(turns, memory)
        return self._send(target, live, patch, folded, turns, changed, memory)

    def _fold(self, live: Document, turns: Iterable[_Turn], gvr: GVR) -> Folded:
        wishes = {turn.id: turn.wish for turn in turns}
        folded = fold(live, [wish for wish in wishes.values() if wish is not None], gvr)
        by_id = {turn.id: turn for turn in turns}
        for outcome in folded.outcomes:
            turn = by_id[outcome.wish.rule]
            turn.error = turn.error or outcome.error
        return folded

    def _hold_refused(self, turns: Iterable[_Turn], memory: Memory, live: Document, gvr: GVR) -> None:
        """Keep back what the server has refused, or made something else of, as long as it would be the same again."""
        content = _content(live) if memory.stalls else b""
        now = self.clock.monotonic()
        for turn in turns:
            if turn.found is None or turn.error is not None:
                continue
            if memory.forbidden is not None and now < (memory.forbidden.retry_at or 0.0):
                place = locate(live, turn.rule.to, string_maps_of(gvr)) if turn.rule else ()
                if not _equal(look(live, place), turn.found.value.plain):
                    turn.error = memory.forbidden.error
                continue
            stall = memory.stalls.get(turn.identity)
            if stall is not None:
                if stall.attempt != turn.attempt(content):
                    del memory.stalls[turn.identity]
                elif stall.retry_at is None or now < stall.retry_at:
                    turn.error = stall.error
                continue
            settled = memory.settled.get(turn.identity)
            if settled is None:
                continue
            sent = fingerprint(turn.found.value.plain)
            if sent != settled.sent or (settled.retry_at is not None and now >= settled.retry_at):
                del memory.settled[turn.identity]
            elif settled.error is not None:
                turn.error = settled.error
            else:
                assert turn.to is not None
                observed = look(live, locate(live, turn.to, string_maps_of(gvr)))
                turn.is_quiet = not isinstance(observed, Absent) and fingerprint(observed) == settled.observed

    def _send(
        self,
        target: Object,
        live: Document,
        patch: Patch,
        folded: Folded,
        turns: Sequence[_Turn],
        changed: Sequence[_Turn],
        memory: Memory,
    ) -> Result:
        outcomes = {outcome.wish.rule: outcome for outcome in folded.outcomes}
        paths = sorted(show(outcomes[turn.id].place) for turn in changed)
        started = self.clock.monotonic()
        try:
            answer = self.client.patch(target.ref, patch.body, kind=patch.kind, field_manager=FIELD_MANAGER)
        except NotFoundError:
            self._forget(target.ref)
            return Result()
        except APIError as error:
            if error.status in _BUSY and error.retry_after is not None:
                _log.warning("retrying", extra=fields(target=str(target.ref), code=error.status))
                return Result(requeue_after=max(error.retry_after, 1.0))
            self._judge_refusal(error, target, live, patch, memory, changed)
            self._report(target, memory, changed, outcomes)
            return self._next_look(turns, memory)
        memory.failed_tests = ("", 0)
        memory.forbidden = None
        duration = round((self.clock.monotonic() - started) * 1000)
        _log.info("patched", extra=fields(target=str(target.ref), paths=paths, duration_ms=duration))
        self._settle(changed, outcomes, live, folded, decode(answer.raw), memory)
        self._report(target, memory, changed, outcomes)
        return self._next_look(turns, memory)

    def _judge_refusal(
        self, error: APIError, target: Object, live: Document, patch: Patch, memory: Memory, changed: Sequence[_Turn]
    ) -> None:
        """Stall the rules whose content was refused; raise what the framework retries."""
        if answers.is_other_object(error):
            raise ConflictError("it is another object by now", ref=target.ref, verb="patch") from error
        if patch.kind == "json" and answers.may_be_failed_test(error):
            version, count = memory.failed_tests
            count = count + 1 if version == target.resource_version else 1
            memory.failed_tests = (target.resource_version, count)
            if count < _FAILED_TESTS:
                raise ConflictError("a test of the patch may have failed", ref=target.ref, verb="patch") from error
        if answers.is_forbidden(error):
            delay = _next_delay(memory.forbidden, _FORBIDDEN_WAIT)
            problem = answers.forbidden(target.ref)
            memory.forbidden = Stall(problem, b"", self.clock.monotonic() + delay, delay)
            for turn in changed:
                turn.error = problem
            return
        refused = answers.refusal(error, target_is_immutable=live.get("immutable") is True)
        if refused is None:
            raise error
        self._stall(changed, refused, memory, _content(live))

    def _stall(self, changed: Iterable[_Turn], error: RuleError, memory: Memory, content: bytes) -> None:
        for turn in changed:
            delay, retry_at = 0.0, None
            if error.reason == "AdmissionDenied":
                delay = _next_delay(memory.stalls.get(turn.identity), _DENIED_WAIT)
                retry_at = self.clock.monotonic() + delay
            memory.stalls[turn.identity] = Stall(error, turn.attempt(content), retry_at, delay)
            turn.error = error

    def _settle(
        self,
        changed: Iterable[_Turn],
        outcomes: Mapping[str, Outcome],
        live: Document,
        folded: Folded,
        answer: Document,
        memory: Memory,
    ) -> None:
        """Remember what the server made of values, where it is not what was sent."""
        for turn in changed:
            memory.stalls.pop(turn.identity, None)
            place = outcomes[turn.id].place
            observed = look(answer, place)
            if turn.found is None or _equal(observed, look(folded.wanted, place)):
                memory.settled.pop(turn.identity, None)
                continue
            lost = isinstance(observed, Absent) or _equal(observed, look(live, place))
            if lost:
                text = f"{show(place)}: the server accepted the write but did not keep it; see its schema and webhooks"
                turn.error = RuleError("NotPersisted", text)
            memory.settled[turn.identity] = Settled(
                fingerprint(turn.found.value.plain),
                b"" if isinstance(observed, Absent) else fingerprint(observed),
                turn.error,
                self.clock.monotonic() + _NOT_PERSISTED_WAIT if lost else None,
            )

    # --- telling -------------------------------------------------------------------------------------------------

    def _report(self, target: Object, memory: Memory, turns: Iterable[_Turn], outcomes: Mapping[str, Outcome]) -> None:
        statuses = []
        for turn in turns:
            if turn.is_quiet and turn.found is None:
                continue
            written = ""
            outcome = outcomes.get(turn.id)
            if turn.error is None and outcome is not None and outcome.changes:
                written = f"wrote {show(outcome.place)} from {turn.found}"
            statuses.append(Status(turn.id, turn.identity, turn.error, written))
        report(self.events, target, memory, statuses)

    def _warn_base64(
        self, target: Object, whom: Target, turns: Iterable[_Turn], outcomes: Mapping[str, Outcome], memory: Memory
    ) -> None:
        for turn in turns:
            if turn.found is None or turn.error is not None or turn.identity in memory.warned:
                continue
            if turn.id in outcomes and is_raw_base64(turn.found, outcomes[turn.id].place, whom):
                memory.warned.add(turn.identity)
                warn_base64(self.events, target, turn.id)

    def _next_look(self, turns: Iterable[_Turn], memory: Memory) -> Result:
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


def _changes(turn: _Turn, outcomes: Mapping[str, Outcome]) -> bool:
    return turn.id in outcomes and outcomes[turn.id].changes


def _content(live: Document) -> bytes:
    """Identify a target's content: all but what changes without anybody having changed what rules are about."""
    metadata = live.get("metadata")
    kept: dict[str, Plain] = {key: value for key, value in live.items() if key not in {"status", "metadata"}}
    if isinstance(metadata, dict):
        unstable = {"resourceVersion", "generation", "managedFields"}
        kept["metadata"] = {key: value for key, value in metadata.items() if key not in unstable}
    return fingerprint(kept)


def _equal(one: Plain | Absent, other: Plain | Absent) -> bool:
    if isinstance(one, Absent) or isinstance(other, Absent):
        return one is other
    return equal(one, other)


def _next_delay(before: Stall | None, limits: tuple[float, float]) -> float:
    first, longest = limits
    return min(before.delay * 2, longest) if before is not None and before.delay else first
