"""Bring the rules of one target to where they could be written: which object each reads, and what it finds there.

One order of questions for whoever asks, the controller from its caches or a report from the server: what is wrong
first is what is told. Nothing is written here, and nothing remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from controllers.copier.consent import Target
from controllers.copier.cycles import Edge
from controllers.copier.problems import RuleError
from controllers.copier.rules import Fate, Rule, RuleSet, Source
from controllers.copier.sources import (
    Found,
    Mappers,
    PendingError,
    Policy,
    Snapshot,
    ask_consent,
    check_may_leave,
    check_settles,
    cluster_of,
    locate_source,
    missing_consent,
    need_consent,
    read_source,
)
from controllers.copier.turns import Turn
from controllers.copier.values import Value
from informers import InformersError, Object, ObjectRef, Resource

# Says of rules that may have what they name which of them must not, as they feed themselves, or not yet.
FindRings: TypeAlias = Callable[[Target, Sequence[Turn]], Mapping[str, RuleError | PendingError]]
# What counts as a source that is not there. One that cannot be read may well be there.
_MISSING: Final = frozenset({"SourceMissing", "SourcePathMissing", "ConsentMissing"})


def whom_of(target: Object, mapper: Mappers, policy: Policy) -> Target:
    """Say what a target is: its kind as its cluster knows it, and what its cluster is called."""
    try:
        resource = mapper(target.cluster).resource(target.ref.gvr)
    except InformersError:
        kind = target.kind or target.ref.gvr.resource
        resource = Resource(target.ref.gvr, kind, kind.lower(), bool(target.namespace), verbs=frozenset({"patch"}))
    return Target(target.ref, resource, policy.name_of(target.cluster))


def plan(rules: RuleSet, whom: Target, mapper: Mappers, policy: Policy, *, may_wait: bool = False) -> list[Turn]:
    """Decide all that needs no source: which object each rule reads, or why it cannot work."""
    turns = [Turn(bad.id, bad.identity, bad.to, error=bad.error) for bad in rules.bad]
    for rule in rules.rules:
        turn = Turn(rule.id, rule.identity, rule.to, rule)
        try:
            if "patch" not in whom.resource.verbs:
                raise RuleError("UnsupportedKind", f"{whom.ref.gvr} has no verb patch")
            turn.names = _names_of(rule, whom, policy)
            turn.source = locate_source(rule, whom, mapper, policy)
        except RuleError as error:
            if may_wait and error.reason == "ClusterUnavailable":
                turn.is_quiet = True
            else:
                turn.error = error
        turns.append(turn)
    return turns


def _names_of(rule: Rule, whom: Target, policy: Policy) -> tuple[tuple[str, str], ...]:
    """Name what the answer depends on: what names of kinds mean in the source's cluster."""
    if not isinstance(rule.origin, Source):
        return ()
    cluster = cluster_of(rule.origin, whom, policy)
    return tuple((cluster, text) for text in (rule.origin.resource, *policy.sources))


def read_all(
    turns: Iterable[Turn],
    whom: Target,
    snapshot: Snapshot,
    policy: Policy,
    *,
    find_rings: FindRings = lambda _whom, _turns: {},
) -> None:
    """Give each rule that has no error yet its value, or the reason why there is none."""
    allowed = ask_all(turns, whom, snapshot, policy)
    rings = find_rings(whom, allowed)
    for turn in allowed:
        assert turn.rule is not None
        with _giving_up(turn, turn.rule, snapshot, policy):
            check_settles(turn.rule, turn.source, whom)
            if turn.id in rings:
                raise rings[turn.id]
            check_settles(turn.rule, snapshot.own_name(turn.source), whom)
            told = policy.told(turn.source, seen_from=whom.ref.cluster) if turn.source is not None else ""
            turn.found = read_source(turn.rule, turn.source, snapshot, told=told)
            if turn.source is not None and snapshot.is_down(turn.source.cluster):
                turn.lack = _unavailable(turn.source, policy)


def ask_all(turns: Iterable[Turn], whom: Target, snapshot: Snapshot, policy: Policy) -> list[Turn]:
    """Return the rules that may have what they name; the others get the reason why they may not."""
    allowed: list[Turn] = []
    for turn in turns:
        if turn.rule is None or turn.error is not None or turn.is_quiet:
            continue
        with _giving_up(turn, turn.rule, snapshot, policy):
            if turn.source is not None:
                # Before the content is asked for: that it cannot be read would tell that the source exists.
                turn.consent = need_consent(turn.source, whom, policy)
                if turn.consent.is_needed:
                    turn.consent = ask_consent(turn.source, whom, snapshot)
                if turn.consent.is_missing:
                    raise missing_consent(turn.source, whom, policy)
                check_may_leave(turn.source, whom, snapshot, policy)
            allowed.append(turn)
    return allowed


def edges_of(allowed: Iterable[Turn]) -> list[Edge]:
    """Say what rules copy from where, for rings to be found among them."""
    return [
        Edge(turn.id, turn.rule.to, turn.source, turn.rule.origin.reach)
        for turn in allowed
        if turn.rule is not None and turn.source is not None and isinstance(turn.rule.origin, Source)
    ]


@contextmanager
def _giving_up(turn: Turn, rule: Rule, snapshot: Snapshot, policy: Policy) -> Iterator[None]:
    """Note what keeps a rule from its value, and do for it what is to be done then."""
    try:
        yield
    except PendingError:
        turn.is_quiet = True
    except RuleError as error:
        is_lacking = error.reason in _MISSING or error.reason == "SourceUnavailable"
        if is_lacking and turn.source is not None and snapshot.is_down(turn.source.cluster):
            # What a cluster that is down had last says nothing about what it has.
            turn.error = _unavailable(turn.source, policy)
        elif error.reason in _MISSING:
            _do_without(turn, rule.on_source_missing or policy.on_source_missing, error)
        else:
            turn.error = error


def _unavailable(source: ObjectRef, policy: Policy) -> RuleError:
    return RuleError(
        "ClusterUnavailable",
        f"cluster {policy.name_of(source.cluster)} does not answer; the value it gave last is kept",
    )


def _do_without(turn: Turn, choice: Fate | Value, missing: RuleError) -> None:
    """Do what was chosen for a missing source: keep the value, take a default, or let the value go as well."""
    if isinstance(choice, Value):
        turn.found = Found(choice)
        turn.lack = _told(missing, "the default is taken")
    elif choice is Fate.REMOVE:
        turn.is_leaving = True
        turn.error = _told(missing, "what was copied is removed")
    else:
        turn.error = _told(missing, "the value is kept")


def _told(missing: RuleError, effect: str) -> RuleError:
    # What lacks consent tells the source's owner what to do, and nothing else.
    return missing if missing.reason == "ConsentMissing" else RuleError(missing.reason, f"{missing.text}; {effect}")
