"""Turn what came of a look at a target into lines of a report. Decides nothing: what is told was decided before.

Notes tell what surprises: which of several readings of a path was taken, which other kinds have the same name, and
where the k8s-copier of 2019 did something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from controllers.copier.compute import build_patch
from controllers.copier.kinds import string_maps_of
from controllers.copier.paths import Absent, Key, Path, Segment, StringMaps, look, readings, show
from controllers.copier.problems import RuleError, State
from controllers.copier.reconciler import Look
from controllers.copier.report import Action, Origin, PatchLine, Permission, RuleLine, TargetLines, order_of
from controllers.copier.rules import LONG_FORM, Operation, Rule, Source
from controllers.copier.sources import Mappers, Policy, cluster_of, missing_option
from controllers.copier.turns import Turn
from controllers.copier.values import Plain, Value, decode, describe
from controllers.copier.writing import Draft
from informers import InformersError, ObjectRef, Resource

_ACTION_OF: Final = {
    State.WAITING: Action.WAIT,
    State.REFUSED: Action.REFUSE,
    State.STALLED: Action.STALL,
    State.CONTESTED: Action.HOLD,
}
_UNSYNCED: Final = RuleError("SourceUnavailable", "the first list of its kind is not complete")


def describe_look(look: Look, mapper: Mappers, policy: Policy) -> TargetLines:
    """Say what came of a look, rule by rule."""
    ref, resource = look.target.ref, look.whom.resource
    return TargetLines(
        cluster=policy.name_of(ref.cluster),
        resource=str(ref.gvr),
        kind=resource.kind,
        namespace=ref.namespace,
        name=ref.name,
        rules=[
            _rule_line(turn, look, mapper, policy) for turn in sorted(look.turns, key=lambda turn: order_of(turn.id))
        ],
        patch=_patch_line(look.draft, look.turns),
    )


def _rule_line(turn: Turn, look: Look, mapper: Mappers, policy: Policy) -> RuleLine:
    problem = turn.problem
    if problem is None and turn.is_quiet and turn.found is None:
        problem = _UNSYNCED
    rule = turn.rule
    operation = turn.identity[0] or None
    outcome = look.draft.outcomes.get(turn.id) if look.draft is not None else None
    to = show(outcome.place) if outcome is not None else str(turn.to) if turn.to is not None else None
    is_shown = turn.found is not None and operation != Operation.REMOVE
    return RuleLine(
        id=turn.id,
        operation=operation,
        to=to,
        origin=_origin(turn, look, mapper, policy),
        is_constant=rule is not None and isinstance(rule.origin, Value),
        permission=_permission(turn),
        value=describe(turn.found.value.plain) if turn.found is not None and is_shown else None,
        action=_action(turn, look, problem),
        state=State.SYNCED if problem is None else problem.state,
        reason=None if problem is None else problem.reason,
        message=None if problem is None else _message(turn, look, problem),
        notes=tuple(_notes(turn, look, mapper)),
    )


def _action(turn: Turn, look: Look, problem: RuleError | None) -> Action:
    if look.draft is not None and look.draft.changes(turn) and (problem is None or problem.reason != "TooLarge"):
        return Action.REMOVE if turn.identity[0] == Operation.REMOVE else Action.WRITE
    if turn.delivers or problem is None:
        return Action.NONE
    for leaving in look.leavings:
        if leaving.identity == turn.identity and (leaving.drops or leaving.kept):
            return Action.REMOVE if leaving.drops else Action.KEEP
    return _ACTION_OF[problem.state]


def _message(turn: Turn, look: Look, problem: RuleError) -> str:
    leaving = next((each for each in look.leavings if each.identity == turn.identity), None)
    return problem.text if leaving is None or not leaving.told_kept else f"{problem.text}; {leaving.told_kept}"


def _permission(turn: Turn) -> Permission:
    if turn.consent is not None:
        return Permission(turn.consent.is_needed, turn.consent.entry, is_known=turn.consent.is_known)
    has_source = turn.rule is None or isinstance(turn.rule.origin, Source)
    return Permission() if has_source else Permission(is_needed=False)


def _origin(turn: Turn, look: Look, mapper: Mappers, policy: Policy) -> Origin | None:
    if turn.rule is None or not isinstance(turn.rule.origin, Source):
        return None
    origin, target = turn.rule.origin, look.target.ref
    path = show(turn.found.place) if turn.found is not None and turn.found.place else str(origin.path)
    try:
        cluster = cluster_of(origin, look.whom, policy)
    except RuleError:
        cluster = None
    resource = None if cluster is None else _resolved(mapper, cluster, origin.resource)
    if resource is None or cluster is None:
        written = "/".join(part for part in (origin.cluster, origin.namespace, origin.name) if part is not None)
        name = origin.cluster or policy.name_of(target.cluster)
        return Origin(f"{origin.resource} {written}", None, name, origin.namespace or None, origin.name, path)
    namespace = (origin.namespace or target.namespace) if resource.namespaced else ""
    ref = ObjectRef(resource.gvr, namespace, origin.name, cluster)
    where = policy.told(ref, seen_from=target.cluster)
    return Origin(where, str(resource.gvr), policy.name_of(cluster), namespace, origin.name, path)


def _resolved(mapper: Mappers, cluster: str, text: str) -> Resource | None:
    try:
        return mapper(cluster).resolve(text)
    except InformersError:
        return None


def _patch_line(draft: Draft | None, turns: Sequence[Turn]) -> PatchLine | None:
    if draft is None:
        return None
    refused = {turn.id for turn in turns if turn.error is not None}
    paths = {show(each.place) for each in draft.folded.outcomes if each.changes and each.wish.rule not in refused}
    paths |= set(map(show, draft.folded.dropped))
    try:
        patch = build_patch(draft.live, draft.folded, uid=draft.uid, resource_version=draft.version)
    except RuleError:
        return None
    return PatchLine(patch.kind, sorted(paths)) if patch is not None and paths else None


# --- notes -------------------------------------------------------------------------------------------------------


def _notes(turn: Turn, look: Look, mapper: Mappers) -> Iterator[str]:
    rule = turn.rule
    if rule is None:
        return
    string_maps = string_maps_of(look.target.ref.gvr)
    if str(rule.to).startswith("/"):
        yield f"to: {rule.to} is one key, not a JSON pointer: keys are joined by dots"
    if look.draft is not None:
        yield from _reading_notes("to", rule.to, look.draft.live, string_maps)
        yield from _made_notes(rule.to, look.draft, turn, string_maps)
    if turn.found is not None and turn.found.source is not None and isinstance(rule.origin, Source):
        source = turn.found.source
        if isinstance(rule.origin.path, Path):
            yield from _reading_notes("from", rule.origin.path, decode(source.raw), string_maps_of(source.ref.gvr))
    if isinstance(rule.origin, Source):
        yield from _kind_notes(rule.origin, turn, mapper)
    if rule.operation is Operation.STRATEGIC_MERGE:
        yield "what leaves the source later stays in the target; only directives such as $patch: delete remove"
    if turn.found is not None and look.draft is not None and turn.error is None:
        outcome = look.draft.outcomes.get(turn.id)
        option = "" if outcome is None else missing_option(rule, turn.found, outcome.place, look.whom)
        if option:
            yield f"the data of a Secret is base64, and is copied as it is; {option}: base64 in a rules entry {option}s it"
    if not turn.id.startswith(f"{LONG_FORM}["):
        yield from _old_notes(rule, turn)


def _reading_notes(what: str, path: Path, document: Plain, string_maps: StringMaps) -> Iterator[str]:
    found = tuple(islice(readings(document, path, string_maps), 2))
    if len(found) == 2:
        yield f"{what}: {path} is {show(found[0])}, though {show(found[1])} is there too; quotes say which is meant"


def _made_notes(to: Path, draft: Draft, turn: Turn, string_maps: StringMaps) -> Iterator[str]:
    """Say so if dots of a plain path are taken for levels that are not there yet."""
    outcome = draft.outcomes.get(turn.id)
    if outcome is None or not outcome.changes or not isinstance(to.steps[-1], Segment):
        return
    place = outcome.place
    missing = 0
    while missing < len(place) and not isinstance(look(draft.live, place[: missing + 1]), Absent | None):
        missing += 1
    made = [step.name for step in place[missing:] if isinstance(step, Key)]
    names = tuple(step.name if isinstance(step, Key) else "" for step in place)
    has_one_reading = any(names[: len(keys)] == keys for keys in string_maps)
    if missing and len(made) > 1 and not has_one_reading:
        dotted = show((*place[:missing], Key(".".join(made))))
        yield f"to: {show(place[:-1])} is made, as a map; one key with dots would be {dotted}"


def _kind_notes(origin: Source, turn: Turn, mapper: Mappers) -> Iterator[str]:
    if turn.source is None or turn.source.gvr.group or "." in origin.resource:
        return
    wanted = origin.resource.lower()
    others = sorted(
        {
            str(each.gvr)
            for each in mapper(turn.source.cluster).resources()
            if each.gvr.group
            and wanted in map(str.lower, (each.gvr.resource, each.singular, each.kind, *each.short_names))
        }
    )
    if others:
        yield f"{origin.resource} is {turn.source.gvr}; also of this name, and not meant: {', '.join(others)}"


def _old_notes(rule: Rule, turn: Turn) -> Iterator[str]:
    """Say where the k8s-copier of 2019 did something else."""
    if rule.operation is not Operation.REPLACE:
        return
    if turn.consent is not None and turn.consent.is_needed:
        yield "the k8s-copier of 2019 asked for no consent"
    if isinstance(rule.origin, Value) and rule.origin.plain is None:
        yield "json:null stores a null, and did nothing in 2019; to take a value away write op: remove in rules"
    match turn.error:
        case RuleError(reason="AmbiguousKind"):
            yield "the k8s-copier of 2019 took the first of these kinds"
        case RuleError(reason="DeniedDestination") if str(rule.to).partition(".")[0] == "status":
            yield "the k8s-copier of 2019 wrote to status, again and again"
        case _:
            return
