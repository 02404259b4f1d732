"""Keep rules that feed themselves from being written, and wake targets whose rules are freed or caught by others' changes.

Whoever looks at a target first looks at what feeds it: sources that are targets themselves are told to the graph before
the first of a ring could be written. So it does not matter in which order new targets are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock

from controllers.copier.consent import CrossNamespace, Target, consenting_entry, crosses_border
from controllers.copier.cycles import CycleGraph, Edge, tell
from controllers.copier.evaluation import ask_all, edges_of, plan, whom_of
from controllers.copier.guards import Guard
from controllers.copier.problems import RuleError
from controllers.copier.readiness import was_looked_at
from controllers.copier.rules import ALLOW_COPY_TO, has_rules, parse_rules
from controllers.copier.sources import Mappers, PendingError, Policy, Snapshot, is_same_object
from controllers.copier.turns import Turn
from informers import Lister, NotSyncedError, Object, ObjectRef, StaleCacheError


class Rings:
    """Finds rings among the rules of all targets; from any thread.

    Attributes:
        wake: has a target looked at again; it may only enqueue.
    """

    def __init__(self, targets: Sequence[Lister], mapper: Mappers, policy: Policy, guard: Guard) -> None:
        self.wake: Callable[[ObjectRef], object] = lambda _ref: None
        self._targets = tuple(targets)
        self._mapper = mapper
        self._policy = policy
        self._guard = guard
        self._graph = CycleGraph()
        self._lock = Lock()  # guards _waiting
        self._waiting: set[ObjectRef] = set()  # for the first list of something that may feed them

    def listen(self) -> None:
        """Wake who waits for a first list when one has come."""
        for lister in self._targets:
            for source in lister.sources().values():
                source.on_change(self.look_again)

    def find(
        self, whom: Target, allowed: Sequence[Turn], *, turns: Sequence[Turn], version: str, may_wait: bool
    ) -> Mapping[str, RuleError | PendingError]:
        """Take note of a target's rules, and say which of them must not be written: never, or before more is known.

        `turns` are all its rules, `version` is the target's.
        """
        edges = edges_of(allowed)
        is_sure = self._is_all_listed()
        is_quiet = any(turn.is_quiet for turn in turns)
        if is_quiet:  # more is known of it as one of the targets that feed others
            with suppress(NotSyncedError):
                self._sources_of(whom.ref, whom.ref, [])
        else:
            self._note(whom, edges, looked_at=whom.ref)
        unsure, noted = self._look_upstream(whom.ref, edges)
        if is_sure:  # and what feeds them all is in the graph by now
            for ref, known in noted if is_quiet else (*noted, (whom.ref, version)):
                self._graph.confirm(ref, known)
        found: dict[str, RuleError | PendingError] = {}
        if may_wait:
            found.update((edge.rule, PendingError()) for edge in edges if edge.source in unsure)
        sources = {edge.rule: edge.source for edge in edges}
        for rule, ring in self._graph.refused(whom.ref).items():
            found[rule] = RuleError("Cycle", tell(ring, partial(self._name, whom, sources.get(rule))))
        return found

    def forget(self, ref: ObjectRef) -> None:
        """Take the rules of a target out."""
        for each in self._graph.forget(ref):
            self.wake(each)

    def _note(self, whom: Target, edges: Iterable[Edge], *, looked_at: ObjectRef) -> None:
        """Tell the graph of a target, and wake the others of which that changes the verdict, but for `looked_at`."""
        for each in self._graph.replace(whom.ref, whom.resource.kind, edges):
            if each != looked_at:
                self.wake(each)

    def _look_upstream(
        self, target: ObjectRef, edges: Sequence[Edge]
    ) -> tuple[Collection[ObjectRef], Sequence[tuple[ObjectRef, str]]]:
        """Tell the graph of all targets that feed these rules and that it does not know as they are.

        Returns of what feeds them all of which it is not known yet whether it is a target, and all that this feeds;
        `target` waits for that. Besides, the targets that the graph was told of, each with its version.
        """
        noted: list[tuple[ObjectRef, str]] = []
        readers: dict[ObjectRef, list[ObjectRef]] = {}
        unknown: list[ObjectRef] = []
        seen = {edge.source for edge in edges}
        pending = list(seen)
        while pending:
            ref = pending.pop()
            try:
                sources = self._sources_of(ref, target, noted)
            except NotSyncedError:
                unknown.append(ref)
                continue
            for source in sources:
                readers.setdefault(source, []).append(ref)
            pending.extend(sources - seen)
            seen |= sources
        unsure: set[ObjectRef] = set()
        while unknown:
            if (ref := unknown.pop()) not in unsure:
                unsure.add(ref)
                unknown.extend(readers.get(ref, ()))
        return unsure, noted

    def _sources_of(self, ref: ObjectRef, target: ObjectRef, noted: list[tuple[ObjectRef, str]]) -> set[ObjectRef]:
        """Return what feeds a target; the graph knows it as it is then.

        Raises `NotSyncedError` when that is not known yet; `target` waits for it.
        """
        found = self._target_or_wait(ref, target)
        if found is None or not self._is_target(found):
            return set()
        if self._graph.version_of(ref) == found.resource_version:
            return set()  # what feeds it was looked at
        whom = whom_of(found, self._mapper, self._policy)
        snapshot = Snapshot(self._target, found, may_wait=True)
        turns = plan(parse_rules(found.annotations), whom, self._mapper, self._policy, may_wait=True)
        upstream = edges_of(ask_all(turns, whom, snapshot, self._policy))
        self._note(whom, upstream, looked_at=target)
        if not any(turn.is_quiet for turn in turns):
            noted.append((ref, found.resource_version))
        if self._version_now(ref) != found.resource_version:
            self.wake(found.ref)  # whoever looked at it meanwhile knew better
        if any(turn.is_quiet and turn.source is None for turn in turns):
            raise self._wait(ref, target)
        return {edge.source for edge in upstream} | {turn.source for turn in turns if turn.is_quiet and turn.source}

    def _is_all_listed(self) -> bool:
        """Tell whether no kind of targets is waited for; what the graph is told before is looked at again each time."""
        return all(was_looked_at(each, cluster) for each in self._targets for cluster in each.sources())

    def _target_or_wait(self, ref: ObjectRef, waiting: ObjectRef) -> Object | None:
        """Return a target; raise `NotSyncedError` when `waiting` will be woken as soon as more is known."""
        for _ in range(2):  # once more when it is sure that news would wake
            try:
                return self._target(ref)
            except StaleCacheError:
                return None
            except NotSyncedError as error:
                if error.problem is not None or error.known is not None:
                    return None
                unknown = self._wait(ref, waiting)
        raise unknown

    def _wait(self, ref: ObjectRef, waiting: ObjectRef) -> NotSyncedError:
        """Have `waiting` woken as soon as more is known, and say what of."""
        with self._lock:
            self._waiting.add(waiting)
        return _not_listed(ref)

    def look_again(self) -> None:
        """Wake all who wait."""
        with self._lock:
            woken, self._waiting = self._waiting, set()
        for ref in woken:
            self.wake(ref)

    def _is_target(self, found: Object) -> bool:
        if found.deletion_timestamp or not has_rules(found.annotations):
            return False
        return self._guard.why_not(found.ref) is None

    def _target(self, ref: ObjectRef) -> Object | None:
        for lister in self._targets:
            followed = _as_followed(ref, lister)
            if lister.follows(followed):
                return lister.find(followed)
        if any(_may_follow_yet(lister, ref) for lister in self._targets):
            raise _not_listed(ref)
        return None

    def _version_now(self, ref: ObjectRef) -> str:
        try:
            found = self._target(ref)
        except (NotSyncedError, StaleCacheError):
            return ""
        return "" if found is None else found.resource_version

    def _name(self, whom: Target, source: ObjectRef | None, ref: ObjectRef) -> str | None:
        """Return what an object is called, None if who reads about the target is not to know of it."""
        may_know = (
            (source is not None and is_same_object(ref, source))
            or not crosses_border(ref, whom.ref)
            or self._policy.cross_namespace is CrossNamespace.ALLOW
            or self._consents(ref, whom)
        )
        return self._policy.instance(ref, seen_from=whom.ref.cluster) if may_know else None

    def _consents(self, ref: ObjectRef, whom: Target) -> bool:
        try:
            found = self._target(ref)
        except (NotSyncedError, StaleCacheError):
            return False
        if found is None:
            return False
        return consenting_entry(found.annotations.get(ALLOW_COPY_TO), whom, source_cluster=ref.cluster) is not None


def _as_followed(ref: ObjectRef, lister: Lister) -> ObjectRef:
    """Name an object as one of the version of its kind in which targets are followed."""
    source = lister.sources().get(ref.cluster)
    gvr = None if source is None else source.gvr()
    if gvr is None or (gvr.group, gvr.resource) != (ref.gvr.group, ref.gvr.resource):
        return ref
    return replace(ref, gvr=gvr)


def _may_follow_yet(lister: Lister, ref: ObjectRef) -> bool:
    """Tell whether targets of this kind may come to be followed in a moment: what the kind's name means is not said yet."""
    source = lister.sources().get(ref.cluster)
    if source is None or was_looked_at(lister, ref.cluster):
        return False
    gvr = source.gvr()
    return gvr is None or (gvr.group, gvr.resource) == (ref.gvr.group, ref.gvr.resource)


def _not_listed(ref: ObjectRef) -> NotSyncedError:
    return NotSyncedError("its first list is not complete", cluster=ref.cluster, gvr=ref.gvr)
