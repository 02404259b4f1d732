"""Explain rules: read what they name with the caller's own rights, decide as the controller decides, print it, write nothing.

The rules come from manifests, or from an object of the cluster. Objects are read with GET, each once; an object that
is not in the cluster yet is what its manifest says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast

from controllers.copier.compute import Document, build_patch
from controllers.copier.consent import Target, why_unreadable
from controllers.copier.cycles import identity_of
from controllers.copier.describing import describe_look
from controllers.copier.evaluation import plan, read_all
from controllers.copier.guards import Guard
from controllers.copier.kinds import is_full_form
from controllers.copier.leaving import SECOND_LOOK, Leaving, judge, note_missing, orphaned, paths_that_stay
from controllers.copier.manifests import Manifest, read_manifests
from controllers.copier.memory import Memory
from controllers.copier.ownership import read_record
from controllers.copier.paths import look as look_at
from controllers.copier.paths import take
from controllers.copier.problems import RuleError, telling_no_value
from controllers.copier.reconciler import MANAGED_FIELDS, Look
from controllers.copier.report import Report, TargetLines, as_json, as_text, in_order
from controllers.copier.rings import Rings
from controllers.copier.rules import ALLOW_COPY_TO, PREFIX, RuleSet, has_rules, parse_rules
from controllers.copier.schemas import Schemas
from controllers.copier.sources import Find, Mappers, Policy, Snapshot
from controllers.copier.turns import Turn
from controllers.copier.values import Plain, decode, encode
from controllers.copier.writing import FIELD_MANAGER, make_draft
from informers import (
    GVK,
    GVR,
    Client,
    ConfigError,
    InformersError,
    Lister,
    Manager,
    NotFoundError,
    NotSyncedError,
    Object,
    ObjectRef,
    Resource,
    SystemClock,
)

_DEFAULT_NAMESPACE: Final = "default"
_RINGS: Final = "cycles are searched among these rules only"
_OFFLINE: Final = "no cluster was asked: what a rule reads, and who consents, is not known"


@telling_no_value()
def explain(manager: Manager, options: argparse.Namespace, policy: Policy) -> int:
    """Print what the rules in the files, or of the object, would do; return the exit status.

    Raises `ConfigError` if there is nothing to explain, or no cluster to ask.
    """
    cluster = _cluster_of_targets(manager, options)
    check_reachable(manager)
    find = CachedFind(manager.client)
    explainer = _Explainer(
        policy=policy,
        mapper=manager.mapper,
        find=find,
        live=find.get,
        schemas=Schemas(manager.mapper, SystemClock()),
        guard=Guard(manager.mapper, _in_full(options), manager.lease()),
        cluster=cluster,
        targets=options.target,
        namespace=options.namespace[0] if len(options.namespace) == 1 else _DEFAULT_NAMESPACE,
    )
    if options.asked is not None:
        cases = explainer.case_of_object(options.asked.resource, options.asked.namespace, options.asked.name)
    else:
        cases = explainer.cases_of_files(options.filename)
    return tell(explainer.report(cases), options.output)


@telling_no_value()
def explain_offline(options: argparse.Namespace, policy: Policy) -> int:
    """Print as much as can be said without a cluster; return the exit status."""
    from controllers.copier.offline import built_in_kinds

    kinds = built_in_kinds()
    explainer = _Explainer(
        policy=policy,
        mapper=lambda _cluster: kinds,
        find=_find_nothing,
        live=_find_nothing,
        schemas=Schemas(lambda _cluster: kinds, SystemClock()),
        guard=Guard(lambda _cluster: kinds, _in_full(options)),
        cluster="",
        targets=options.target,
        namespace=options.namespace[0] if len(options.namespace) == 1 else _DEFAULT_NAMESPACE,
        is_offline=True,
    )
    return tell(explainer.report(explainer.cases_of_files(options.filename)), options.output)


def tell(report: Report, form: str) -> int:
    """Print a report; return the exit status."""
    sys.stdout.write(as_json(report) if form == "json" else as_text(report))
    return int(report.has_trouble())


def check_reachable(manager: Manager) -> None:
    """Raise `ConfigError` if no cluster says what it serves."""
    problems: list[InformersError] = []
    for cluster in manager.clusters():
        try:
            manager.mapper(cluster).resources()
        except InformersError as error:
            problems.append(error)
    if len(problems) == len(manager.clusters()):
        raise ConfigError(f"no cluster can be reached: {problems[0]}")


class CachedFind:
    """Reads each object once, with GET."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[ObjectRef, Object | InformersError | None] = {}

    def __call__(self, ref: ObjectRef) -> Object | None:
        """Return an object as a cache would have it, None if it is not there. Raises `NotSyncedError`."""
        found = self.get(ref)
        if found is None:
            return None
        document = decode(found.raw)
        metadata = document.get("metadata")
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)
        return Object.parse(encode(document), ref.gvr, cluster=ref.cluster)

    def get(self, ref: ObjectRef) -> Object | None:
        """Return an object as the server has it, None if it is not there. Raises `NotSyncedError`."""
        if ref not in self._known:
            self._known[ref] = self._ask(ref)
        found = self._known[ref]
        if isinstance(found, InformersError):
            raise NotSyncedError(f"{ref} could not be read", problem=found, cluster=ref.cluster, gvr=ref.gvr)
        return found

    def _ask(self, ref: ObjectRef) -> Object | InformersError | None:
        try:
            return self._client.get(ref)
        except NotFoundError:
            return None
        except InformersError as error:
            return error


def _find_nothing(ref: ObjectRef) -> Object | None:
    raise RuleError("SourceUnavailable", f"{ref} is not looked at, as no cluster is asked")


@dataclass(frozen=True, slots=True)
class Case:
    """One object whose rules are explained."""

    target: Object
    whom: Target
    rules: RuleSet
    problem: RuleError | None = None  # what is wrong with it as a target


@dataclass(slots=True)
class _Explainer:
    """Judges the rules of some objects together."""

    policy: Policy
    mapper: Mappers
    find: Find  # what rules read
    live: Find  # targets, with all that the server knows of them
    schemas: Schemas
    guard: Guard
    cluster: str
    targets: Sequence[str]  # kinds as they were written; empty: all
    namespace: str  # of what says none
    is_offline: bool = False
    notes: list[str] = field(default_factory=list)

    # --- what is explained ---

    def cases_of_files(self, filenames: Sequence[str]) -> Sequence[Case]:
        """Find the targets among the manifests in files. Raises `ConfigError`."""
        manifests = [manifest for filename in filenames for manifest in read_manifests(filename)]
        for manifest in manifests:
            where = "/".join(part for part in (manifest.namespace, manifest.name) if part)
            self._note_consent(manifest.annotations, f"{manifest.kind.kind} {where}")
        with_rules = [manifest for manifest in manifests if has_rules(manifest.annotations)]
        wanted = [manifest for manifest in with_rules if self._is_target(manifest.kind)]
        left = len(with_rules) - len(wanted)
        if left:
            self.notes.append(f"left out, as --target does not name their kinds: {left} {_objects(left)} with rules")
        return [self._case_of(manifest) for manifest in wanted]

    def case_of_object(self, resource: str, namespace: str | None, name: str) -> Sequence[Case]:
        """Find one object in the cluster. Raises `ConfigError` if it is not there."""
        try:
            found = self.mapper(self.cluster).resolve(resource)
        except InformersError as error:
            raise ConfigError(f"explain: {error}") from None
        if namespace is not None and not found.namespaced:
            raise ConfigError(f"explain: {found.gvr} is cluster-scoped: want NAME without a namespace")
        where = (self.namespace if namespace is None else namespace) if found.namespaced else ""
        ref = ObjectRef(found.gvr, where, name, self.cluster)
        try:
            target = self.live(ref)
        except NotSyncedError as error:
            raise ConfigError(f"explain: {self._told(ref)} cannot be read: {error.problem}") from None
        if target is None:
            raise ConfigError(f"explain: {self._told(ref)} is not there")
        self._note_consent(target.annotations, self._told(ref))
        if not has_rules(target.annotations):
            self.notes.append(f"{self._told(ref)} has no rules")
            return []
        return [Case(target, self._whom(ref, found), parse_rules(target.annotations), self._problem_of(ref))]

    def _note_consent(self, annotations: Mapping[str, str], told: str) -> None:
        why = why_unreadable(annotations.get(ALLOW_COPY_TO, ""))
        if why is not None:
            self.notes.append(f"{told} lets nobody copy, as its allow-copy-to cannot be read: {why}")

    def _case_of(self, manifest: Manifest) -> Case:
        """Take the rules from a manifest, and all else from the cluster, if the object is there."""
        kind = manifest.kind
        rules = parse_rules(manifest.annotations)
        try:
            resource = self.mapper(self.cluster).resource(kind)
        except InformersError as error:
            word = kind.kind.lower()
            unknown = Resource(
                GVR(kind.group, kind.version, word), kind.kind, word, namespaced=bool(manifest.namespace)
            )
            ref = ObjectRef(unknown.gvr, manifest.namespace, manifest.name, self.cluster)
            why = "is not one of the kinds that are known offline" if self.is_offline else f"is not served: {error}"
            problem = RuleError("UnknownKind", f"the target's kind {kind} {why}")
            return Case(_parsed(manifest, ref), self._whom(ref, unknown), rules, problem)
        namespace = (manifest.namespace or self.namespace) if resource.namespaced else ""
        ref = ObjectRef(resource.gvr, namespace, manifest.name, self.cluster)
        return Case(self._live_or(manifest, ref), self._whom(ref, resource), rules, self._problem_of(ref))

    def _live_or(self, manifest: Manifest, ref: ObjectRef) -> Object:
        try:
            found = None if self.is_offline or not manifest.metadata.get("name") else self.live(ref)
        except NotSyncedError as error:
            self.notes.append(f"{self._told(ref)} cannot be read ({_shown(error.problem)}): taken as its manifest is")
            found = None
        else:
            if found is None and not self.is_offline:
                self.notes.append(f"{self._told(ref)} is not in the cluster: taken as its manifest is")
        if found is not None and found.deletion_timestamp:
            self.notes.append(f"{self._told(ref)} is being deleted: nothing will be written")
        return _parsed(manifest, ref) if found is None else _with_rules_of(manifest, found)

    def _whom(self, ref: ObjectRef, resource: Resource) -> Target:
        return Target(ref, resource, self.policy.name_of(ref.cluster))

    def _problem_of(self, ref: ObjectRef) -> RuleError | None:
        why_not = self.guard.why_not(ref)
        return None if why_not is None else RuleError("KindNotAllowed", f"{self._told(ref)} is no target: {why_not}")

    def _is_target(self, kind: GVK) -> bool:
        if not self.targets:
            return True
        try:
            gvr = self.mapper(self.cluster).resource(kind).gvr
        except InformersError:
            word = kind.kind.lower()
            return any(text.partition(".")[0].lower() in {word, f"{word}s"} for text in self.targets)
        return any(self._means(text, gvr) for text in self.targets)

    def _means(self, text: str, gvr: GVR) -> bool:
        try:
            found = self.mapper(self.cluster).resolve(text).gvr
        except InformersError:
            return False
        return (found.group, found.resource) == (gvr.group, gvr.resource)

    def _told(self, ref: ObjectRef) -> str:
        return self.policy.told(ref, seen_from=ref.cluster)

    # --- what is said of it ---

    def report(self, cases: Sequence[Case]) -> Report:
        """Judge all cases."""
        rings = Rings([cast("Lister", _Known(cases))], self.mapper, self.policy, self.guard)
        turns = [self._planned(case) for case in cases]
        targets = [self._lines(case, planned, rings) for case, planned in zip(cases, turns, strict=True)]
        if any(turn.source is not None for planned in turns for turn in planned):
            self.notes.append(_RINGS)
        if self.is_offline and targets:
            self.notes.append(_OFFLINE)
        return Report("explain", in_order(targets), tuple(self.notes), is_offline=self.is_offline)

    def _planned(self, case: Case) -> list[Turn]:
        turns = plan(case.rules, case.whom, self.mapper, self.policy)
        if case.problem is not None:
            for turn in turns:
                if turn.rule is not None:
                    turn.error = case.problem
        return turns

    def _lines(self, case: Case, turns: list[Turn], rings: Rings) -> TargetLines:
        snapshot = Snapshot(self.find, case.target, may_wait=False)
        find_rings = partial(rings.find, turns=turns, version=case.target.resource_version, may_wait=False)
        read_all(turns, case.whom, snapshot, self.policy, find_rings=find_rings)
        look = Look(case.target, case.whom, turns, None)
        if case.problem is None:
            look = self._drafted(look)
        lines = describe_look(look, self.mapper, self.policy)
        is_known = case.problem is None or case.problem.reason != "UnknownKind"
        return lines if is_known else replace(lines, resource=None)

    def _drafted(self, look: Look) -> Look:
        """Fold the rules over the target, and take away what has lost its source."""
        ref, turns = look.target.ref, look.turns
        try:
            live = decode(look.target.raw)
            leavings = self._leavings(look, live)
            take(live, MANAGED_FIELDS)
            draft = make_draft(live, look.target, turns, self.schemas.of(ref), leavings)
        except (RuleError, RecursionError):
            for turn in turns:
                turn.error = turn.error or RuleError("TypeMismatch", "the target is nested too deep to be written")
            return look
        try:
            build_patch(draft.live, draft.folded, uid=draft.uid, resource_version=draft.version)
        except RuleError as error:
            for turn in turns:
                turn.error = turn.error or (error if draft.changes(turn) else None)
        return replace(look, draft=draft, leavings=leavings)

    def _leavings(self, look: Look, live: Document) -> Sequence[Leaving]:
        memory = Memory(look.target.uid)
        note_missing(look.turns, memory, -SECOND_LOOK)  # nothing comes of a second look that the first does not show
        gvr = look.target.ref.gvr
        leavings = orphaned(look.turns, memory, live, gvr, 0.0, lambda _source: True)
        record = read_record(look_at(live, MANAGED_FIELDS), FIELD_MANAGER)
        judge(leavings, live, record, paths_that_stay(memory, look.turns), gvr)
        return leavings


class _Known:
    """What is explained, in place of the caches of all targets."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._targets = {identity_of(case.target.ref): case.target for case in cases}

    def sources(self) -> Mapping[str, object]:
        """Return nothing: whatever is not among these is no target."""
        return {}

    def follows(self, ref: ObjectRef) -> bool:
        """Tell whether an object is one of these."""
        return identity_of(ref) in self._targets

    def find(self, ref: ObjectRef) -> Object | None:
        """Return it."""
        return self._targets.get(identity_of(ref))


def _with_rules_of(manifest: Manifest, live: Object) -> Object:
    """Return an object as it is, but for its rules: they are the manifest's."""
    document = decode(live.raw)
    kept = {
        name: text for name, text in live.annotations.items() if name == ALLOW_COPY_TO or not name.startswith(PREFIX)
    }
    ours = {name: text for name, text in manifest.annotations.items() if name.startswith(PREFIX)}
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    metadata["annotations"] = {**kept, **ours}
    return Object.parse(encode(document), live.ref.gvr, cluster=live.cluster)


def _parsed(manifest: Manifest, ref: ObjectRef) -> Object:
    metadata: dict[str, Plain] = {**manifest.metadata, "name": ref.name}
    if ref.namespace:
        metadata["namespace"] = ref.namespace
    return Object.parse(encode({**manifest.document, "metadata": metadata}), ref.gvr, cluster=ref.cluster)


def _in_full(options: argparse.Namespace) -> Sequence[str]:
    return tuple(filter(is_full_form, options.target))


def _cluster_of_targets(manager: Manager, options: argparse.Namespace) -> str:
    """Return the cluster that targets are in: of several the first that was named, else home, else any."""
    names = manager.cluster_names()
    for text in options.contexts:
        for name in (text, text.partition("=")[0]):
            if name in names:
                return names[name]
    return manager.clusters()[0]


def _shown(problem: InformersError | None) -> str:
    return type(problem).__name__ if problem is not None else "not looked at"


def _objects(count: int) -> str:
    return "object" if count == 1 else "objects"
