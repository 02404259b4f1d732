"""Keep rules that feed themselves from being written, and wake targets whose rules are freed or caught by others' changes.

Whoever looks at a target first looks at what feeds it: sources that are targets themselves are told to the graph before
the first of a ring could be written. So it does not matter in which order new targets are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock

from controllers.copier.consent import CrossNamespace, Target, consenting_entry, crosses_border
from controllers.copier.cycles import CycleGraph, Edge, tell
from controllers.copier.evaluation import ask_all, edges_of, plan, whom_of
from controllers.copier.guards import Guard
from controllers.copier.problems import RuleError
from controllers.copier.rules import ALLOW_COPY_TO, has_rules, parse_rules
from controllers.copier.sources import Mappers, PendingError, Policy, Snapshot
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
        self, whom: Target, allowed: Sequence[Turn], *, version: str, may_wait: bool
    ) -> Mapping[str, RuleError | PendingError]:
        """Take note of a target's rules, and say which of them must not be written: never, or before more is known.

        `version` is the target's.
        """
        edges = edges_of(allowed)
        self._note(whom, edges, version, looked_at=whom.ref)
        unknown = self._look_upstream(whom.ref, edges)
        found: dict[str, RuleError | PendingError] = {}
        if may_wait:
            found.update((edge.rule, PendingError()) for edge in edges if edge.source in unknown)
        sources = {edge.rule: edge.source for edge in edges}
        for rule, ring in self._graph.refused(whom.ref).items():
            found[rule] = RuleError("Cycle", tell(ring, partial(self._name, whom, sources.get(rule))))
        return found

    def forget(self, ref: ObjectRef) -> None:
        """Take the rules of a target out."""
        for each in self._graph.forget(ref):
            self.wake(each)

    def _note(self, whom: Target, edges: Iterable[Edge], version: str, *, looked_at: ObjectRef) -> None:
        """Tell the graph of a target, and wake the others of which that changes the verdict, but for `looked_at`."""
        for each in self._graph.replace(whom.ref, whom.resource.kind, edges, version=version):
            if each != looked_at:
                self.wake(each)

    def _look_upstream(self, target: ObjectRef, edges: Sequence[Edge]) -> set[ObjectRef]:
        """Tell the graph of all targets that feed these rules and that it does not know as they are.

        Returns the sources of `edges` of which it is not known yet whether they are targets; `target` waits for that.
        """
        direct = {edge.source for edge in edges}
        unknown: set[ObjectRef] = set()
        pending = list(direct)
        while pending:
            ref = pending.pop()
            try:
                found = self._target_or_wait(ref, target)
            except NotSyncedError:
                unknown.add(ref)
                continue
            if found is None or not self._is_target(found):
                continue
            if self._graph.version_of(ref) == found.resource_version:
                continue  # what feeds it was looked at, or is about to be, for its own sake
            whom = whom_of(found, self._mapper, self._policy)
            upstream = self._edges_of(found, whom)
            self._note(whom, upstream, found.resource_version, looked_at=target)
            pending.extend(edge.source for edge in upstream)
            if self._version_now(ref) != found.resource_version:
                self.wake(found.ref)  # whoever looked at it meanwhile knew better
        return unknown & direct

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
                with self._lock:
                    self._waiting.add(waiting)
        raise NotSyncedError("its first list is not complete", cluster=ref.cluster, gvr=ref.gvr)

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

    def _edges_of(self, target: Object, whom: Target) -> Sequence[Edge]:
        """Return the rules of another target that may have their sources, as far as those are targets themselves."""
        snapshot = Snapshot(self._target, target, may_wait=True)
        turns = plan(parse_rules(target.annotations), whom, self._mapper, self._policy)
        return edges_of(ask_all(turns, whom, snapshot, self._policy))

    def _target(self, ref: ObjectRef) -> Object | None:
        for lister in self._targets:
            if lister.follows(ref):
                return lister.find(ref)
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
            ref == source
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
