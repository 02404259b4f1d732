"""Find rules that feed each other in a ring: each would go on for ever. From any thread, without a look at any server.

A rule feeds another one when it writes, on the same object, what that one reads. Rules on a ring are refused on all
targets that take part. The graph is told a target's rules whenever they are looked at, and says whose verdict has
changed by that; what it answers does not depend on the order in which it was told.

What is surprising: a new rule is followed both ways at once, to who reads what it writes and to who writes what it
reads, and the way that ends first decides. So the thousand readers of one source cost nothing when the next one comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Final, TypeAlias

from controllers.copier.kinds import string_maps_of
from controllers.copier.paths import Key, Path, may_overlap
from informers import GVR, ObjectRef

MAX_SHOWN: Final = 8
_MAX_SEARCHED: Final = 1000  # for a ring to show; that there is one is known without it

Identity: TypeAlias = tuple[str, str, str, str, str]

_LABELS: Final = Path((Key("metadata"), Key("labels")))
_GENERATION: Final = Path((Key("metadata"), Key("generation")))
# What each write of an object changes besides what it names.
_CHANGED_BY_WRITES: Final = tuple(Path((Key("metadata"), Key(name))) for name in ("resourceVersion", "managedFields"))


def identity_of(ref: ObjectRef) -> Identity:
    """Return what is equal for references that name one object, whatever version of its kind they say."""
    return ref.cluster, ref.gvr.group, ref.gvr.resource, ref.namespace, ref.name


@dataclass(frozen=True, slots=True)
class Edge:
    """One rule, as far as rings go: it reads `path` of `source` (empty: anything), and writes `to` of its target."""

    rule: str
    to: Path
    source: ObjectRef
    path: Path


@dataclass(frozen=True, slots=True)
class Step:
    """One object of a ring, and the path that is copied from it to the step before; at first, what is written."""

    ref: ObjectRef
    kind: str
    path: Path


@dataclass(frozen=True, slots=True)
class Ring:
    """How a rule comes to feed itself: from its target back through the sources; cut where it is long."""

    steps: Sequence[Step]
    is_whole: bool


@lru_cache(maxsize=16384)
def changes(to: Path, path: Path, group: str, resource: str) -> bool:
    """Tell whether writing `to` of an object may change what is read at `path` of it, whatever the reading of both."""
    string_maps = string_maps_of(GVR(group, "", resource))
    if may_overlap(to, path, string_maps):
        return True
    # A change of labels or annotations is no new generation.
    extra = _CHANGED_BY_WRITES if may_overlap(to, _LABELS, string_maps) else (*_CHANGED_BY_WRITES, _GENERATION)
    return any(may_overlap(path, each, string_maps) for each in extra)


@dataclass(slots=True, eq=False)
class _Node:
    """One rule of one target."""

    edge: Edge
    target: Identity
    source: Identity
    ring: _Members | None = None


@dataclass(slots=True, eq=False)
class _Members:
    """Rules of which each feeds, in the end, each other one and itself."""

    nodes: set[_Node]


@dataclass(slots=True)
class _Target:
    """What the graph was told of one target."""

    ref: ObjectRef
    kind: str
    version: str
    nodes: dict[str, _Node] = field(default_factory=dict)


_Neighbours: TypeAlias = Callable[[_Node], Iterator[_Node]]
_ByPath: TypeAlias = dict[Path, dict[_Node, None]]


class CycleGraph:
    """All rules that have a source and may read it, and which of them are on a ring."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards all below; no value in either index is empty
        self._targets: dict[Identity, _Target] = {}
        self._readers: dict[Identity, _ByPath] = {}  # by what they read of an object
        self._writers: dict[Identity, _ByPath] = {}  # by what they write of an object

    def replace(self, ref: ObjectRef, kind: str, edges: Iterable[Edge], *, version: str = "") -> Sequence[ObjectRef]:
        """Make these all rules of a target; return the other targets of which a rule is refused now, or is no more.

        `version` is what the target was like; `version_of` tells it.
        """
        identity = identity_of(ref)
        wanted = {edge.rule: edge for edge in edges}
        with self._lock:
            known = self._targets.get(identity)
            before = {} if known is None else known.nodes
            gone = [node for rule, node in before.items() if wanted.get(rule) != node.edge]
            after = {rule: node for rule, node in before.items() if wanted.get(rule) == node.edge}
            new = [
                _Node(edge, identity, identity_of(edge.source)) for rule, edge in wanted.items() if rule not in after
            ]
            changed = self._take_out_locked(gone)
            changed ^= self._put_in_locked(new)
            after.update((node.edge.rule, node) for node in new)
            if after:
                self._targets[identity] = _Target(ref, kind, version, after)
            else:
                self._targets.pop(identity, None)
            # A rule that left one ring and is on another now has changed nothing for its target.
            others = {node.target for node in changed} - {identity}
            return [self._targets[each].ref for each in sorted(others) if each in self._targets]

    def forget(self, ref: ObjectRef) -> Sequence[ObjectRef]:
        """Take a target out; return what `replace` does."""
        return self.replace(ref, "", ())

    def confirm(self, ref: ObjectRef, version: str) -> None:
        """Say what a target was like when the graph was told of it, once it was told of all that feeds it too."""
        with self._lock:
            known = self._targets.get(identity_of(ref))
            if known is not None:
                known.version = version

    def version_of(self, ref: ObjectRef) -> str | None:
        """Return what a target was like when the graph was told of it, None if it was not."""
        with self._lock:
            known = self._targets.get(identity_of(ref))
            return None if known is None else known.version

    def refused(self, ref: ObjectRef) -> Mapping[str, Ring]:
        """Return the rules of a target that are on a ring, and a ring of each."""
        with self._lock:
            known = self._targets.get(identity_of(ref))
            if known is None:
                return {}
            return {rule: self._ring_locked(node) for rule, node in known.nodes.items() if node.ring is not None}

    def __len__(self) -> int:
        with self._lock:
            return sum(len(target.nodes) for target in self._targets.values())

    # --- what comes and goes -----------------------------------------------------------------------------------------

    def _take_out_locked(self, gone: Sequence[_Node]) -> set[_Node]:
        """Take rules out; return those among the others that are on no ring any more."""
        for node in gone:
            _remove(self._readers, node.source, node.edge.path, node)
            _remove(self._writers, node.target, node.edge.to, node)
        broken = {id(node.ring): node.ring for node in gone if node.ring is not None}
        freed: set[_Node] = set()
        for members in broken.values():
            left = members.nodes.difference(gone)
            for node in left:
                node.ring = None
            self._mark_rings_locked(left)
            freed |= {node for node in left if node.ring is None}
        return freed

    def _put_in_locked(self, new: Sequence[_Node]) -> set[_Node]:
        """Put rules in; return those that are on a ring now and were not, the new ones too."""
        for node in new:
            self._readers.setdefault(node.source, {}).setdefault(node.edge.path, {})[node] = None
            self._writers.setdefault(node.target, {}).setdefault(node.edge.to, {})[node] = None
        caught: set[_Node] = set()
        for node in new:
            if node.ring is None and (found := self._ring_through_locked(node)):
                caught |= {each for each in found if each.ring is None}
                members = _Members(found)
                for each in found:
                    each.ring = members
        return caught

    def _ring_through_locked(self, node: _Node) -> set[_Node]:
        """Return all rules that feed `node` and are fed by it; none if it does not feed itself."""
        ahead: set[_Node] = set()
        behind: set[_Node] = set()
        ways = (_walk(node, self._fed_by_locked, ahead), _walk(node, self._feeding_locked, behind))
        for seen, way, back in _taking_turns(ways, (ahead, behind), (self._feeding_locked, self._fed_by_locked)):
            if next(way, None) is not None:
                continue
            if node not in seen:
                return set()
            reached: set[_Node] = set()
            for _ in _walk(node, back, reached, within=seen):
                pass
            return reached
        raise AssertionError  # the turns go on until a way ends

    def _mark_rings_locked(self, nodes: set[_Node]) -> None:
        """Mark the rings among `nodes`, which were one and have lost some members (Tarjan's algorithm, unrolled)."""
        order: dict[_Node, int] = {}
        low: dict[_Node, int] = {}
        path: list[_Node] = []
        on_path: set[_Node] = set()
        for start in nodes:
            if start in order:
                continue
            work = [(start, self._fed_by_locked(start))]
            order[start] = low[start] = len(order)
            path.append(start)
            on_path.add(start)
            while work:
                node, following = work[-1]
                for other in following:
                    if other not in nodes:
                        continue
                    if other not in order:
                        order[other] = low[other] = len(order)
                        path.append(other)
                        on_path.add(other)
                        work.append((other, self._fed_by_locked(other)))
                        break
                    if other in on_path:
                        low[node] = min(low[node], order[other])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == order[node]:
                        found = set(_popped(path, node))
                        on_path -= found
                        if len(found) > 1 or node in self._fed_by_locked(node):
                            members = _Members(found)
                            for each in found:
                                each.ring = members

    # --- who feeds whom ----------------------------------------------------------------------------------------------

    def _fed_by_locked(self, node: _Node) -> Iterator[_Node]:
        """Yield who reads what `node` writes."""
        _, group, resource, _, _ = node.target
        for path, readers in self._readers.get(node.target, {}).items():
            if changes(node.edge.to, path, group, resource):
                yield from readers

    def _feeding_locked(self, node: _Node) -> Iterator[_Node]:
        """Yield who writes what `node` reads."""
        _, group, resource, _, _ = node.source
        for to, writers in self._writers.get(node.source, {}).items():
            if changes(to, node.edge.path, group, resource):
                yield from writers

    # --- telling -----------------------------------------------------------------------------------------------------

    def _ring_locked(self, node: _Node) -> Ring:
        """Return a shortest ring through `node`, or the beginning of a long one."""
        assert node.ring is not None
        came_from: dict[_Node, _Node] = {}
        asked: set[tuple[Identity, Path]] = set()  # rules that read the same have the same feeding them
        level = [node]
        last = node
        for _ in range(MAX_SHOWN):
            below: list[_Node] = []
            for each in level:
                if (read := (each.source, each.edge.path)) in asked:
                    continue
                asked.add(read)
                feeding = {other for other in self._feeding_locked(each) if other in node.ring.nodes}
                if node in feeding:
                    return Ring(self._steps_locked(_back(each, came_from, node)), is_whole=True)
                for other in sorted(feeding - came_from.keys(), key=_order):
                    came_from[other] = each
                    below.append(other)
            if not below or len(came_from) > _MAX_SEARCHED:
                break
            level, last = below, below[0]
        return Ring(self._steps_locked(_back(last, came_from, node))[:MAX_SHOWN], is_whole=False)

    def _steps_locked(self, chain: Sequence[_Node]) -> Sequence[Step]:
        first = self._targets[chain[0].target]
        steps = [Step(first.ref, first.kind, chain[0].edge.to)]
        for node in chain:
            target = self._targets[node.source]
            steps.append(Step(target.ref, target.kind, node.edge.path))
        return steps


def tell(ring: Ring, name: Callable[[ObjectRef], str | None]) -> str:
    """Write a ring for a reader; `name` gives an object's name, None for one that the reader may not know of."""
    shown = list(ring.steps[:MAX_SHOWN])
    parts: list[str] = []
    for step in shown:
        called = name(step.ref)
        part = "…" if called is None else f"{step.kind} {called}{f' {step.path}' if step.path.steps else ''}"
        if part != "…" or parts[-1:] != ["…"]:
            parts.append(part)
    if (not ring.is_whole or len(ring.steps) > len(shown)) and parts[-1] != "…":
        parts.append("…")
    return " ← ".join(parts)


def _walk(
    start: _Node, neighbours: _Neighbours, seen: set[_Node], *, within: Collection[_Node] | None = None
) -> Iterator[_Node]:
    """Go wherever `neighbours` lead, and note in `seen` where one comes; `start` only if the way leads back to it."""
    pending = [start]
    while pending:
        for node in neighbours(pending.pop()):
            if node not in seen and (within is None or node in within):
                seen.add(node)
                if node is not start:
                    pending.append(node)
            yield node


def _taking_turns(
    ways: tuple[Iterator[_Node], ...], seen: tuple[set[_Node], ...], back: tuple[_Neighbours, ...]
) -> Iterator[tuple[set[_Node], Iterator[_Node], _Neighbours]]:
    while True:
        yield from zip(seen, ways, back, strict=True)


def _back(node: _Node, came_from: Mapping[_Node, _Node], first: _Node) -> list[_Node]:
    """Return the way from `first` to `node`."""
    found = [node]
    while found[-1] is not first:
        found.append(came_from[found[-1]])
    return found[::-1]


def _popped(path: list[_Node], until: _Node) -> Iterator[_Node]:
    while True:
        node = path.pop()
        yield node
        if node is until:
            return


def _order(node: _Node) -> tuple[Identity, str]:
    return node.target, node.edge.rule


def _remove(index: dict[Identity, _ByPath], key: Identity, path: Path, node: _Node) -> None:
    by_path = index[key]
    del by_path[path][node]
    if not by_path[path]:
        del by_path[path]
    if not by_path:
        del index[key]
