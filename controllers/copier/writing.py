"""Send what a target lacks, once, and live with the answer: written, written differently, refused, or out of date.

All rules of a target go in one PATCH. When the server refuses its content, the rules are sent apart, so that a bad
one holds no good one back; what was refused is not sent again before something about it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controllers.copier import answers
from controllers.copier.compute import Document, Folded, Outcome, Patch, Wish, build_patch, fold
from controllers.copier.kinds import string_maps_of
from controllers.copier.memory import Memory, Settled, Stall, fingerprint
from controllers.copier.metering import Meter, Sent
from controllers.copier.paths import Absent, locate, look, show
from controllers.copier.problems import RuleError
from controllers.copier.turns import Turn
from controllers.copier.values import Plain, decode, equal
from informers import (
    GVR,
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
    folded: Folded
    outcomes: Mapping[str, Outcome]  # by rule

    def changes(self, turn: Turn) -> bool:
        """Tell whether the target has to change for a rule."""
        return turn.id in self.outcomes and self.outcomes[turn.id].changes


def make_draft(live: Document, target: Object, turns: Sequence[Turn]) -> Draft:
    """Fold all rules over a target; a rule that does not fit it gets its error."""
    wishes = {turn.id: turn.wish for turn in turns}
    draft = _drafted(target.ref, target.uid, target.resource_version, live, wishes)
    for turn in turns:
        if turn.id in draft.outcomes:
            turn.error = turn.error or draft.outcomes[turn.id].error
    return draft


def _drafted(ref: ObjectRef, uid: str, version: str, live: Document, wishes: Mapping[str, Wish | None]) -> Draft:
    folded = fold(live, [wish for wish in wishes.values() if wish is not None], ref.gvr)
    return Draft(ref, uid, version, live, folded, {outcome.wish.rule: outcome for outcome in folded.outcomes})


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes targets, and keeps from writing what was refused."""

    client: Client
    clock: Clock
    meter: Meter

    # --- before ---

    def hold_back(self, turns: Iterable[Turn], memory: Memory, live: Document, gvr: GVR) -> None:
        """Keep back what the server has refused, or made something else of, as long as it would be the same again."""
        content = _content(live) if memory.stalls else b""
        for turn in turns:
            if turn.found is not None and turn.error is None and not self._is_forbidden(turn, memory, live, gvr):
                self._hold_stalled(turn, memory, content)
                self._hold_settled(turn, memory, live, gvr)

    def _is_forbidden(self, turn: Turn, memory: Memory, live: Document, gvr: GVR) -> bool:
        assert turn.to is not None
        assert turn.found is not None
        waiting = memory.forbidden
        if waiting is None or waiting.retry_at is None or self.clock.monotonic() >= waiting.retry_at:
            return False
        if not _equal(look(live, locate(live, turn.to, string_maps_of(gvr))), turn.found.value.plain):
            turn.error = waiting.error
        return True

    def _hold_stalled(self, turn: Turn, memory: Memory, content: bytes) -> None:
        stall = memory.stalls.get(turn.identity)
        if stall is None:
            return
        if stall.attempt != turn.attempt(content):
            del memory.stalls[turn.identity]
        elif stall.retry_at is None or self.clock.monotonic() < stall.retry_at:
            turn.error = stall.error

    def _hold_settled(self, turn: Turn, memory: Memory, live: Document, gvr: GVR) -> None:
        settled = memory.settled.get(turn.identity)
        if settled is None or turn.error is not None:
            return
        assert turn.to is not None
        assert turn.found is not None
        is_due = settled.retry_at is not None and self.clock.monotonic() >= settled.retry_at
        if is_due or fingerprint(turn.found.value.plain) != settled.sent:
            del memory.settled[turn.identity]
        elif settled.error is not None:
            turn.error = settled.error
        else:
            observed = look(live, locate(live, turn.to, string_maps_of(gvr)))
            turn.is_quiet = not isinstance(observed, Absent) and fingerprint(observed) == settled.observed

    # --- sending ---

    def write(self, draft: Draft, turns: Sequence[Turn], changed: Sequence[Turn], memory: Memory) -> None:
        """Send the one PATCH of a draft; rules whose content is refused get their error.

        Raises `TargetGoneError`, `BusyError`, and what the framework tries again: a conflict, no answer, a failure.
        """
        try:
            self._send(draft, changed, memory)
        except RuleError as problem:
            if problem.reason == "Forbidden":
                self._forbid(changed, problem.bare(), memory)
                return
            groups = _groups(draft, changed)
            if len(groups) == 1:
                self._stall(changed, problem.bare(), memory, draft.live)
            else:
                self._write_apart(draft, turns, groups, memory)

    def _write_apart(
        self, draft: Draft, turns: Sequence[Turn], groups: Sequence[Sequence[Turn]], memory: Memory
    ) -> None:
        """Send each group of rules as a PATCH of its own, on top of what the ones before have made of the target."""
        refused: list[tuple[Sequence[Turn], RuleError]] = []
        held = {turn.id for group in groups for turn in group}
        ref, live, version = draft.ref, draft.live, draft.version
        try:
            for group in groups:
                mine = {turn.id for turn in group}
                wishes = {
                    turn.id: Wish(turn.id, turn.to, None) if turn.to and turn.id in held - mine else turn.wish
                    for turn in turns
                }
                try:
                    answer = self._send(_drafted(ref, draft.uid, version, live, wishes), group, memory)
                except RuleError as problem:
                    refused.append((group, problem.bare()))
                else:
                    if answer is not None:
                        live, version = decode(answer.raw), answer.resource_version
        finally:
            # Judged by the target as it is in the end: what good rules wrote is no reason to try bad ones again.
            for group, reason in refused:
                self._stall(group, reason, memory, live)

    def _send(self, draft: Draft, changed: Sequence[Turn], memory: Memory) -> Object | None:
        """Send one PATCH. Raises `RuleError` when its content is refused, or may not be sent at all."""
        patch = build_patch(draft.live, draft.folded, uid=draft.uid, resource_version=draft.version)
        if patch is None:
            return None
        started = self.clock.monotonic()
        try:
            answer = self._patch(draft, patch)
        except NotFoundError as error:
            raise TargetGoneError from error
        except APIError as error:
            if error.status in _BUSY and error.retry_after is not None:
                _log.warning("retrying", extra=fields(target=str(draft.ref), code=error.status))
                raise BusyError(max(error.retry_after, 1.0)) from error
            raise self._refusal(error, draft, patch, memory) from error
        memory.failed_tests = ("", 0)
        memory.forbidden = None
        paths = sorted(show(draft.outcomes[turn.id].place) for turn in changed)
        duration = round((self.clock.monotonic() - started) * 1000)
        _log.info("patched", extra=fields(target=str(draft.ref), paths=paths, duration_ms=duration))
        self._settle(draft, changed, decode(answer.raw), memory)
        return answer

    def _patch(self, draft: Draft, patch: Patch) -> Object:
        try:
            answer = self.client.patch(draft.ref, patch.body, kind=patch.kind, field_manager=FIELD_MANAGER)
        except (APIError, TransportError) as error:
            self.meter.patched(draft.ref.cluster, answers.sent_as(error))
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
        return answers.refusal(error, target_is_immutable=draft.live.get("immutable") is True) or error

    def _forbid(self, changed: Iterable[Turn], problem: RuleError, memory: Memory) -> None:
        delay = _next_delay(memory.forbidden, _FORBIDDEN_WAIT)
        memory.forbidden = Stall(problem, b"", self.clock.monotonic() + delay, delay)
        for turn in changed:
            turn.error = problem

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
            place = draft.outcomes[turn.id].place
            observed = look(answer, place)
            if turn.found is None or _equal(observed, look(draft.folded.wanted, place)):
                memory.settled.pop(turn.identity, None)
                continue
            is_lost = isinstance(observed, Absent) or _equal(observed, look(draft.live, place))
            if is_lost:
                text = f"{show(place)}: the server accepted the write but did not keep it; see its schema and webhooks"
                turn.error = RuleError("NotPersisted", text)
            memory.settled[turn.identity] = Settled(
                fingerprint(turn.found.value.plain),
                b"" if isinstance(observed, Absent) else fingerprint(observed),
                turn.error,
                self.clock.monotonic() + _NOT_PERSISTED_WAIT if is_lost else None,
            )


def _groups(draft: Draft, changed: Sequence[Turn]) -> Sequence[Sequence[Turn]]:
    """Put together what must not be parted: rules with one source and one parent path, as a certificate and its key."""
    groups: dict[object, list[Turn]] = {}
    for turn in changed:
        parent = draft.outcomes[turn.id].place[:-1]
        groups.setdefault(turn.id if turn.source is None else (turn.source, parent), []).append(turn)
    return tuple(groups.values())


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
