"""Send what a target lacks, once, and live with the answer: written, written differently, refused, or out of date.

All rules of a target go in one PATCH. When the server refuses its content, the rules are sent apart, so that a bad
one holds no good one back; what was refused is not sent again before something about it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controllers.copier import answers
from controllers.copier.compute import MERGES, Document, Folded, Outcome, Patch, Wish, build_patch, fold
from controllers.copier.contest import Contest
from controllers.copier.leaving import Leaving
from controllers.copier.memory import Leaf, Memory, Settled, Stall, fingerprint
from controllers.copier.metering import Cause, Meter, Sent
from controllers.copier.ownership import managers_of, read_record
from controllers.copier.paths import Absent, Key, Path, Place, concrete, look, show
from controllers.copier.persisted import is_same, judge, not_persisted
from controllers.copier.problems import RuleError
from controllers.copier.schemas import Schema
from controllers.copier.turns import Turn
from controllers.copier.values import Plain, decode
from informers import (
    APIError,
    Client,
    Clock,
    ConflictError,
    NotFoundError,
    Object,
    ObjectRef,
    TransportError,
    fields,
)

FIELD_MANAGER: Final = "k8s-copier"  # stands in managedFields of every target: it never changes

_FORBIDDEN_WAIT: Final = (60.0, 600.0)
_DENIED_WAIT: Final = (300.0, 3600.0)
_NOT_PERSISTED_WAIT: Final = 3600.0
_FAILED_TESTS: Final = 3
_BUSY: Final = frozenset({429, 503})

_log = logging.getLogger(__name__)


class TargetGoneError(Exception):
    """The target is not there any more."""


class BusyError(Exception):
    """The server asked to be left alone for some seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"busy for {retry_after:g} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Draft:
    """A target as it is, as of one version, and as it should be."""

    ref: ObjectRef
    uid: str
    version: str
    live: Document
    wishes: Mapping[str, Wish]  # by rule
    folded: Folded
    outcomes: Mapping[str, Outcome]  # by rule
    schema: Schema

    def changes(self, turn: Turn) -> bool:
        """Tell whether the target has to change for a rule."""
        return turn.id in self.outcomes and self.outcomes[turn.id].changes


def make_draft(
    live: Document,
    target: Object,
    turns: Sequence[Turn],
    schema: Schema,
    leavings: Sequence[Leaving] = (),
    kept: Iterable[Path] = (),
) -> Draft:
    """Fold all rules over a target; a rule that does not fit it gets its error.

    What leaves is taken away; what `kept` names stays as it is.
    """
    orphans = {each.identity for each in leavings if each.drops and each.cause is Cause.SOURCE_MISSING}
    wishes = {turn.id: turn.wish for turn in turns if turn.wish is not None and turn.identity not in orphans}
    wishes |= {
        f"a rule that cannot be read, {path}": Wish(f"a rule that cannot be read, {path}", path, None) for path in kept
    }
    drops = [place for leaving in leavings for place in leaving.drops]
    draft = _drafted(target.ref, target.uid, target.resource_version, live, wishes, drops, schema)
    for turn in turns:
        if turn.id in draft.outcomes:
            outcome = draft.outcomes[turn.id]
            turn.error = turn.error or outcome.error
            turn.lack = turn.lack or not_persisted(outcome.place, outcome.marks)
    dropped = frozenset(draft.folded.dropped)
    for leaving in leavings:
        leaving.drops = tuple(place for place in leaving.drops if place in dropped)
    return draft


def _drafted(
    ref: ObjectRef,
    uid: str,
    version: str,
    live: Document,
    wishes: Mapping[str, Wish],
    drops: Iterable[Place],
    schema: Schema,
) -> Draft:
    folded = fold(live, wishes.values(), ref.gvr, schema=schema, drops=drops)
    outcomes = {outcome.wish.rule: outcome for outcome in folded.outcomes}
    return Draft(ref, uid, version, live, wishes, folded, outcomes, schema)


@dataclass(frozen=True, slots=True)
class _Group:
    """What is sent together or not at all."""

    turns: Sequence[Turn]
    leavings: Sequence[Leaving] = ()

    @property
    def drops(self) -> Sequence[Place]:
        return [place for leaving in self.leavings for place in leaving.drops]


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes targets, and keeps from writing what was refused or is fought over."""

    client: Client
    clock: Clock
    meter: Meter

    # --- before ---

    def read(self, ref: ObjectRef) -> Object:
        """Read a target from the server, who also tells whose fields are whose. Raises `TargetGoneError`."""
        try:
            return self.client.get(ref)
        except NotFoundError:
            raise TargetGoneError from None
        except APIError as error:
            raise answers.without_words(error) from None

    def hold_back(self, turns: Iterable[Turn], memory: Memory, live: Document, schema: Schema) -> None:
        """Keep back what the server has refused, or made something else of, as long as it would be the same again."""
        content = _content(live) if memory.stalls else b""
        for turn in turns:
            if turn.found is not None and turn.error is None:
                self._hold_stalled(turn, memory, content)
                self._hold_settled(turn, memory, schema)

    def _hold_stalled(self, turn: Turn, memory: Memory, content: bytes) -> None:
        stall = memory.stalls.get(turn.identity)
        if stall is None:
            return
        if stall.attempt != turn.attempt(content):
            del memory.stalls[turn.identity]
        elif stall.retry_at is None or self.clock.monotonic() < stall.retry_at:
            turn.error = stall.error

    def _hold_settled(self, turn: Turn, memory: Memory, schema: Schema) -> None:
        settled = memory.settled.get(turn.identity)
        if settled is None or turn.error is not None:
            return
        assert turn.rule is not None
        if settled.text != turn.rule.text:
            del memory.settled[turn.identity]
            return
        if settled.has_lost:
            present = schema.hash()
            if present and not settled.schema:  # it could not be told when it was written
                settled = memory.settled[turn.identity] = replace(settled, schema=present)
            if (present and present != settled.schema) or self.clock.monotonic() >= settled.retry_at:
                kept = {leaf: mark for leaf, mark in settled.marks.items() if not mark.is_lost}
                settled = memory.settled[turn.identity] = Settled(settled.text, kept)
        turn.settled = settled

    def waits_for_right(self, memory: Memory) -> Stall | None:
        """Return what the target may not be written for, while it is too early to ask again."""
        waiting = memory.forbidden
        if waiting is None or waiting.retry_at is None or self.clock.monotonic() >= waiting.retry_at:
            return None
        return waiting

    def hold_changes(self, draft: Draft, turns: Iterable[Turn], memory: Memory) -> bool:
        """Keep back changes that may not be made yet, or that somebody undoes each time; tell whether there are any."""
        is_any = False
        rivals = _Rivals(self, draft)
        forbidden = self.waits_for_right(memory)
        for turn in turns:
            contest = memory.contests.get(turn.identity)
            if turn.rule is None or turn.found is None:
                continue
            if draft.changes(turn) and forbidden is not None:
                turn.error = forbidden.error
            elif contest is not None:
                self._hold_contested(draft, turn, contest, rivals)
            is_any = is_any or (turn.error is not None and draft.changes(turn))
        return is_any

    def _hold_contested(self, draft: Draft, turn: Turn, contest: Contest, rivals: _Rivals) -> None:
        now = self.clock.monotonic()
        place = draft.outcomes[turn.id].place
        if draft.changes(turn) and contest.is_flip(turn.attempt(b"")):
            self.meter.flipped(draft.ref.cluster)
            if contest.flip(now):
                contest.rival = rivals.name(place)
        contest.end_if_calm(now)
        if not contest.is_on:
            return
        rival = contest.rival or "another field manager, nobody knows which,"
        seconds = max(contest.held_until - now, 0.0)
        problem = RuleError(
            "Contested", f"{show(place)}: {rival} changes it each time; the next try is in {seconds:.0f} s"
        )
        if draft.changes(turn) and contest.is_held(turn.attempt(b""), now):
            turn.error = problem
        else:
            turn.lack = turn.lack or problem

    # --- sending ---

    def write(self, draft: Draft, changed: Sequence[Turn], leavings: Sequence[Leaving], memory: Memory) -> Document:
        """Send the one PATCH of a draft and return the target as it is then.

        Rules whose content is refused get their error, and what may not leave stays. Raises `TargetGoneError`,
        `BusyError`, and what the framework tries again: a conflict, no answer, a failure.
        """
        busy_for = memory.busy_until - self.clock.monotonic()
        if busy_for > 0:
            raise BusyError(busy_for)  # something else has woken it meanwhile
        whole = _Group(changed, [leaving for leaving in leavings if leaving.drops])
        try:
            return self._send(draft, whole, memory).live
        except RuleError as problem:
            groups = _groups(draft, whole)
            if problem.reason == "Forbidden":
                self._forbid(changed, problem.bare(), memory)
            elif len(groups) == 1:
                self._refuse(whole, problem.bare(), memory, draft.live)
            else:
                return self._write_apart(draft, groups, memory)
            return draft.live

    def _write_apart(self, draft: Draft, groups: Sequence[_Group], memory: Memory) -> Document:
        """Send each group as a PATCH of its own, on top of what the ones before have made of the target."""
        refused: list[tuple[_Group, RuleError]] = []
        held = {turn.id for group in groups for turn in group.turns}
        sent = _Sent(draft.live, draft.version)
        try:
            for position, group in enumerate(groups):
                mine = {turn.id for turn in group.turns}
                wishes = {
                    rule: replace(wish, value=None) if rule in held - mine else wish
                    for rule, wish in draft.wishes.items()
                }
                part = _drafted(draft.ref, draft.uid, sent.version, sent.live, wishes, group.drops, draft.schema)
                try:
                    sent = self._send(part, group, memory)
                except RuleError as problem:
                    if problem.reason == "Forbidden":
                        rest = [turn for later in groups[position:] for turn in later.turns]
                        self._forbid(rest, problem.bare(), memory)
                        break
                    refused.append((group, problem.bare()))
        finally:
            # Judged by the target as it is in the end: what good rules wrote is no reason to try bad ones again.
            for group, reason in refused:
                self._refuse(group, reason, memory, sent.live)
        return sent.live

    def _send(self, draft: Draft, group: _Group, memory: Memory) -> _Sent:
        """Send one PATCH. Raises `RuleError` when its content is refused, or may not be sent at all."""
        patch = build_patch(draft.live, draft.folded, uid=draft.uid, resource_version=draft.version)
        if patch is None:
            return _Sent(draft.live, draft.version)
        started = self.clock.monotonic()
        try:
            answer = self._patch(draft, patch)
        except APIError as error:
            if isinstance(error, NotFoundError) and not error.denied_by:
                raise TargetGoneError from None
            # A webhook may deny with any status.
            if not error.denied_by and error.status in _BUSY and error.retry_after is not None:
                _log.warning("retrying", extra=fields(target=str(draft.ref), code=error.status))
                seconds = max(error.retry_after, 1.0)
                memory.busy_until = self.clock.monotonic() + seconds
                raise BusyError(seconds) from None
            raise self._refusal(error, draft, patch, memory) from None
        memory.failed_tests = ("", 0)
        memory.forbidden = None
        paths = sorted(show(draft.outcomes[turn.id].place) for turn in group.turns)
        paths += [leaving.name(place) for leaving in group.leavings for place in leaving.drops]
        duration = round((self.clock.monotonic() - started) * 1000)
        _log.info("patched", extra=fields(target=str(draft.ref), paths=paths, duration_ms=duration))
        live = decode(answer.raw)
        self._settle(draft, group.turns, live, memory)
        self._note_written(group, memory, draft.live, live)
        return _Sent(live, answer.resource_version)

    def _patch(self, draft: Draft, patch: Patch) -> Object:
        try:
            answer = self.client.patch(draft.ref, patch.body, kind=patch.kind, field_manager=FIELD_MANAGER)
        except (APIError, TransportError) as error:
            result = answers.sent_as(error)
            self.meter.patched(draft.ref.cluster, result)
            if result is Sent.CONFLICT:
                _log.debug("conflict", extra=fields(target=str(draft.ref)))
            raise
        self.meter.patched(draft.ref.cluster, Sent.NOOP if answer.resource_version == draft.version else Sent.OK)
        return answer

    # --- after ---

    def _refusal(self, error: APIError, draft: Draft, patch: Patch, memory: Memory) -> RuleError | APIError:
        """Say what an error is for the rules, or what the framework has to deal with."""
        if answers.is_other_object(error):
            return ConflictError("it is another object by now", ref=draft.ref, verb="patch")
        if patch.kind == "json" and answers.may_be_failed_test(error):
            version, count = memory.failed_tests
            count = count + 1 if version == draft.version else 1
            memory.failed_tests = (draft.version, count)
            if count < _FAILED_TESTS:
                return ConflictError("a test of the patch may have failed", ref=draft.ref, verb="patch")
        if answers.is_forbidden(error):
            return answers.forbidden(draft.ref)
        is_immutable = draft.live.get("immutable") is True
        return answers.refusal(error, target_is_immutable=is_immutable) or answers.without_words(error)

    def _forbid(self, changed: Iterable[Turn], problem: RuleError, memory: Memory) -> None:
        delay = _next_delay(memory.forbidden, _FORBIDDEN_WAIT)
        memory.forbidden = Stall(problem, b"", self.clock.monotonic() + delay, delay)
        for turn in changed:
            turn.error = problem

    def _refuse(self, group: _Group, problem: RuleError, memory: Memory, live: Document) -> None:
        self._stall(group.turns, problem, memory, live)
        for leaving in group.leavings:
            leaving.is_done = True
            leaving.stay(f"its removal was refused ({problem.reason})")

    def _stall(self, refused: Iterable[Turn], problem: RuleError, memory: Memory, live: Document) -> None:
        content = _content(live)
        for turn in refused:
            delay, retry_at = 0.0, None
            if problem.reason == "AdmissionDenied":
                delay = _next_delay(memory.stalls.get(turn.identity), _DENIED_WAIT)
                retry_at = self.clock.monotonic() + delay
            memory.stalls[turn.identity] = Stall(problem, turn.attempt(content), retry_at, delay)
            turn.error = problem

    def _settle(self, draft: Draft, changed: Iterable[Turn], answer: Document, memory: Memory) -> None:
        """Remember what the server made of values, where it is not what was sent."""
        for turn in changed:
            memory.stalls.pop(turn.identity, None)
            outcome = draft.outcomes[turn.id]
            if turn.rule is None:
                continue
            at = outcome.place
            before, after = look(draft.live, at), look(answer, at)
            own = None if turn.found is None or turn.rule.operation in MERGES else turn.found.value.plain
            new = judge(look(draft.folded.wanted, at), before, after, own=own)
            others = [leaf for each in draft.outcomes.values() if (leaf := _below(at, each.place, draft.folded.wanted))]
            marks = {leaf: mark for leaf, mark in new.items() if not any(leaf[: len(each)] == each for each in others)}
            marks |= outcome.marks
            memory.settled.pop(turn.identity, None)
            if not marks:
                continue
            problem = not_persisted(at, marks)
            lost_until = self.clock.monotonic() + _NOT_PERSISTED_WAIT
            memory.settled[turn.identity] = (
                Settled(turn.rule.text, marks)
                if problem is None
                else Settled(turn.rule.text, marks, draft.schema.hash(), lost_until)
            )
            turn.lack = problem or turn.lack
            if problem is not None and is_same(before, after):
                turn.error = problem

    def _note_written(self, group: _Group, memory: Memory, before: Document, answer: Document) -> None:
        now = self.clock.monotonic()
        for turn in group.turns:
            if turn.error is None:
                memory.contests.setdefault(turn.identity, Contest()).wrote(turn.attempt(b""), now)
        for leaving in group.leavings:
            leaving.is_done = True
            leaving.note_what_is_back(before, answer)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A target after a PATCH, or after none was needed."""

    live: Document
    version: str


@dataclass(slots=True)
class _Rivals:
    """Tells who else has written a target: asked of the server once, when somebody is to be named."""

    writer: Writer
    draft: Draft
    _seen: Document | None = None

    def name(self, place: Place) -> str:
        """Name the field manager that has set what is at `place`, the latest; `""` if the server does not tell."""
        if self._seen is None:
            try:
                self._seen = decode(self.writer.read(self.draft.ref).raw)
            except APIError:
                self._seen = {}
        metadata = self._seen.get("metadata")
        managed = metadata.get("managedFields") if isinstance(metadata, dict) else None
        return next(iter(managers_of(read_record(managed, FIELD_MANAGER), self._seen, place)), "")


def _groups(draft: Draft, whole: _Group) -> Sequence[_Group]:
    """Part what may be parted; rules with one source and one parent path stay together, as a certificate and its key."""
    groups: dict[object, list[Turn]] = {}
    for turn in whole.turns:
        parent = draft.outcomes[turn.id].place[:-1]
        groups.setdefault(turn.id if turn.source is None else (turn.source, parent), []).append(turn)
    return (*map(_Group, groups.values()), *(_Group((), [leaving]) for leaving in whole.leavings))


def _below(place: Place, other: Place, document: Document) -> Leaf:
    """Name where a place is below another one, as far as that can be told; `()` if it is not."""
    leaf: list[str | int] = []
    for position in range(len(place), len(other) if other[: len(place)] == place else 0):
        step = other[position]
        if isinstance(step, Key):
            leaf.append(step.name)
        elif isinstance(look(document, other[: position + 1]), Absent):
            break
        else:
            leaf.append(concrete(document, other[: position + 1])[-1])
    return tuple(leaf)


def _content(live: Document) -> bytes:
    """Identify a target's content: all but what changes without anybody having changed what rules are about."""
    metadata = live.get("metadata")
    kept: dict[str, Plain] = {key: value for key, value in live.items() if key not in {"status", "metadata"}}
    if isinstance(metadata, dict):
        unstable = {"resourceVersion", "generation", "managedFields"}
        kept["metadata"] = {key: value for key, value in metadata.items() if key not in unstable}
    return fingerprint(kept)


def _next_delay(before: Stall | None, limits: tuple[float, float]) -> float:
    first, longest = limits
    return min(before.delay * 2, longest) if before is not None and before.delay else first
