"""Rules that feed themselves are found, whatever came in which order, and let go as soon as they do not any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.cycles import CycleGraph, Edge, Ring, Step, changes, tell
from controllers.copier.paths import Path, parse_path
from informers import GVR, ObjectRef

CONFIGMAPS = GVR("", "v1", "configmaps")
WIDGETS = GVR("example.io", "v1", "widgets")


def ref(name: str, namespace: str = "a", gvr: GVR = CONFIGMAPS, cluster: str = "") -> ObjectRef:
    return ObjectRef(gvr, namespace, name, cluster)


def edge(rule: str, to: str, source: ObjectRef, path: str) -> Edge:
    return Edge(rule, parse_path(to), source, parse_path(path) if path else Path(()))


def k(source: str) -> list[Edge]:
    """One rule that copies `data.k`."""
    return [edge("k", "data.k", ref(source), "data.k")]


def ring_of(graph: CycleGraph, *names: str) -> None:
    for one, other in pairwise([*names, names[0]]):
        graph.replace(ref(one), "ConfigMap", k(other))


def refused(graph: CycleGraph, *names: str) -> set[str]:
    return {name for name in names if graph.refused(ref(name))}


def text(graph: CycleGraph, target: ObjectRef, rule: str) -> str:
    return tell(graph.refused(target)[rule], lambda each: each.key)


# --- against a fresh look ----------------------------------------------------------------------------------------

NAMES = ("t", "u", "v", "w")
TOS = ("data", "data.k", "data.l", "metadata.labels.x")
PATHS = ("data", "data.k", "data.l", "data.m", "metadata.labels", "metadata.resourceVersion", "")
# Most rules meet, so that rings share rules, lose some and stay, or fall apart.
RULES = st.builds(
    edge,
    st.sampled_from(["r", "s", "q"]),
    st.just("data") | st.sampled_from(TOS),
    st.builds(ref, st.sampled_from(NAMES)),
    st.just("data") | st.sampled_from(PATHS),
)
CHANGES = st.lists(st.tuples(st.sampled_from(NAMES), st.lists(RULES, max_size=3)), min_size=3, max_size=14)


def from_scratch(rules: Mapping[str, Iterable[Edge]]) -> dict[str, set[str]]:
    """Find what is on a ring by following each rule wherever it leads."""
    edges = {(target, each.rule): each for target, found in rules.items() for each in found}
    feeds = {
        one: {
            other
            for other, reader in edges.items()
            if reader.source.name == one[0] and changes(writer.to, reader.path, "", "configmaps")
        }
        for one, writer in edges.items()
    }
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    for start in edges:
        reached: set[tuple[str, str]] = set()
        pending = [start]
        while pending:
            for other in feeds[pending.pop()] - reached:
                reached.add(other)
                pending.append(other)
        if start in reached:
            found[start[0]].add(start[1])
    return found


@settings(deadline=None)  # the machine may be busy
@given(CHANGES)
def test_after_any_changes_exactly_the_rules_on_a_ring_are_refused_and_who_is_concerned_is_told(
    steps: list[tuple[str, list[Edge]]],
) -> None:
    graph = CycleGraph()
    rules: dict[str, dict[str, Edge]] = {}
    before = from_scratch({})
    for name, edges in steps:
        rules[name] = {each.rule: each for each in edges}

        told = graph.replace(ref(name), "ConfigMap", rules[name].values())

        after = from_scratch({target: found.values() for target, found in rules.items()})
        assert {target: set(graph.refused(ref(target))) for target in NAMES} == after
        assert {each.name for each in told} == {
            other for other in NAMES if other != name and before[other] != after[other]
        }
        before = after

    for name in NAMES:
        graph.forget(ref(name))
    assert len(graph) == 0
    assert vars_of(graph) == ({}, {}, {})


def vars_of(graph: CycleGraph) -> tuple[object, object, object]:
    return graph._targets, graph._readers, graph._writers


@settings(deadline=None)
@given(CHANGES)
def test_each_ring_that_is_shown_is_one(steps: list[tuple[str, list[Edge]]]) -> None:
    graph = CycleGraph()
    rules: dict[str, dict[str, Edge]] = {}
    for name, edges in steps:
        rules[name] = {each.rule: each for each in edges}
        graph.replace(ref(name), "ConfigMap", rules[name].values())

    for name in NAMES:
        for rule, ring in graph.refused(ref(name)).items():
            assert ring.is_whole
            assert ring.steps[0] == Step(ref(name), "ConfigMap", rules[name][rule].to)
            assert ring.steps[1].path == rules[name][rule].path
            for one, other in pairwise(ring.steps):
                edges_there = rules[one.ref.name].values()
                assert any(each.source == other.ref and each.path == other.path for each in edges_there)
            assert changes(rules[name][rule].to, ring.steps[-1].path, "", "configmaps")
            assert ring.steps[-1].ref == ref(name)


# --- what is a ring ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_members_of_a_ring_are_refused_and_the_last_to_come_names_the_others(size: int) -> None:
    graph = CycleGraph()
    names = [f"t{number}" for number in range(size)]
    told = []

    for one, other in pairwise([*names, names[0]]):
        told.append([each.name for each in graph.replace(ref(one), "ConfigMap", k(other))])

    assert told == [[]] * (size - 1) + [names[:-1]]
    assert refused(graph, *names) == set(names)


def test_a_ring_is_broken_by_an_edit_by_a_removal_and_by_who_is_not_allowed_to_read_any_more() -> None:
    for edges in (k("elsewhere"), [], [edge("k", "data.l", ref("u"), "data.k")]):
        graph = CycleGraph()
        ring_of(graph, "t", "u", "v")

        told = graph.replace(ref("t"), "ConfigMap", edges)

        assert sorted(each.name for each in told) == ["u", "v"]
        assert refused(graph, "t", "u", "v") == set()


def test_rules_beside_a_ring_go_on_also_on_the_same_targets() -> None:
    graph = CycleGraph()
    graph.replace(ref("t"), "ConfigMap", [*k("u"), edge("l", "data.l", ref("s"), "data.k")])
    graph.replace(ref("u"), "ConfigMap", k("t"))
    graph.replace(ref("after"), "ConfigMap", k("t"))

    assert set(graph.refused(ref("t"))) == {"k"}
    assert refused(graph, "after") == set()


def test_two_rings_that_share_a_rule_are_parted_when_it_goes() -> None:
    graph = CycleGraph()
    ring_of(graph, "t", "u")
    graph.replace(ref("u"), "ConfigMap", [*k("t"), edge("l", "data.l", ref("v"), "data.l")])
    graph.replace(ref("v"), "ConfigMap", [edge("l", "data.l", ref("u"), "data.l")])

    told = graph.replace(ref("t"), "ConfigMap", [])

    assert [each.name for each in told] == ["u"]
    assert set(graph.refused(ref("u"))) == {"l"}
    assert refused(graph, "v") == {"v"}


def test_two_rings_through_one_target_are_one_and_what_is_left_of_it_stays_refused() -> None:
    graph = CycleGraph()
    graph.replace(ref("t"), "ConfigMap", [edge("u", "data.u", ref("u"), "data"), edge("v", "data.v", ref("v"), "data")])
    for name in ("u", "v"):
        graph.replace(ref(name), "ConfigMap", [edge("t", "data.t", ref("t"), "data")])

    told = graph.replace(ref("u"), "ConfigMap", [])

    assert [each.name for each in told] == ["t"]
    assert set(graph.refused(ref("t"))) == {"v"}
    assert refused(graph, "v") == {"v"}


def test_what_feeds_itself_stays_refused_when_it_leaves_a_longer_ring() -> None:
    graph = CycleGraph()
    graph.replace(
        ref("t"), "ConfigMap", [edge("self", "data.k", ref("t"), "data"), edge("u", "data.l", ref("u"), "data")]
    )
    graph.replace(ref("u"), "ConfigMap", [edge("t", "data.m", ref("t"), "data.k")])
    assert set(graph.refused(ref("t"))) == {"self", "u"}

    graph.replace(ref("u"), "ConfigMap", [])

    assert set(graph.refused(ref("t"))) == {"self"}


def test_who_goes_from_one_ring_straight_into_another_is_told_nothing() -> None:
    graph = CycleGraph()
    graph.replace(ref("u"), "ConfigMap", k("t"))
    graph.replace(ref("t"), "ConfigMap", k("u"))

    told = graph.replace(ref("t"), "ConfigMap", [edge("other", "data", ref("u"), "data")])

    assert told == []
    assert refused(graph, "t", "u") == {"t", "u"}


def test_the_same_name_in_another_cluster_namespace_or_kind_is_another_object() -> None:
    for other in (ref("t", "b"), ref("t", gvr=WIDGETS), ref("t", cluster="hub")):
        graph = CycleGraph()
        graph.replace(ref("t"), "ConfigMap", k("u"))
        graph.replace(ref("u"), "ConfigMap", [edge("k", "data.k", other, "data.k")])

        assert refused(graph, "t", "u") == set()


def test_a_ring_goes_across_kinds_their_versions_and_clusters() -> None:
    graph = CycleGraph()
    widget = ref("w", gvr=WIDGETS, cluster="hub")
    older = ObjectRef(GVR("example.io", "v1beta1", "widgets"), "a", "w", "hub")
    graph.replace(ref("t"), "ConfigMap", [edge("k", "data.k", older, "spec.k")])
    graph.replace(widget, "Widget", [edge("s", "spec", ref("t"), "data")])

    assert text(graph, widget, "s") == "Widget a/w spec ← ConfigMap a/t data ← Widget a/w spec.k"


def test_what_reads_anything_of_an_object_reads_all_that_is_written_there() -> None:
    graph = CycleGraph()
    graph.replace(ref("t"), "ConfigMap", [edge("k", "data.k", ref("u"), "")])
    graph.replace(ref("u"), "ConfigMap", [edge("l", "data.l", ref("t"), "data.k")])

    assert text(graph, ref("t"), "k") == "ConfigMap a/t data.k ← ConfigMap a/u ← ConfigMap a/t data.k"


def test_versions_of_each_other_are_a_ring_as_each_write_makes_a_new_one() -> None:
    graph = CycleGraph()
    for one, other in (("t", "u"), ("u", "t")):
        graph.replace(ref(one), "ConfigMap", [edge("k", "data.k", ref(other), "metadata.resourceVersion")])

    assert refused(graph, "t", "u") == {"t", "u"}


# --- what is shown -----------------------------------------------------------------------------------------------


def test_a_ring_is_told_from_the_target_back_to_it() -> None:
    graph = CycleGraph()
    ring_of(graph, "one", "two")

    assert text(graph, ref("one"), "k") == "ConfigMap a/one data.k ← ConfigMap a/two data.k ← ConfigMap a/one data.k"


def test_of_a_long_ring_eight_objects_are_told() -> None:
    graph = CycleGraph()
    ring_of(graph, *(f"t{number:02}" for number in range(20)))

    told = text(graph, ref("t00"), "k").split(" ← ")

    assert told == [*(f"ConfigMap a/t0{number} data.k" for number in range(8)), "…"]


def test_what_a_reader_may_not_know_of_is_left_out() -> None:
    steps = [Step(ref(name), "ConfigMap", Path(parse_path("data.k").steps)) for name in ("t", "u", "x", "y", "v", "t")]

    told = tell(Ring(steps, is_whole=True), lambda each: None if each.name in {"x", "y"} else each.key)

    assert told == ("ConfigMap a/t data.k ← ConfigMap a/u data.k ← … ← ConfigMap a/v data.k ← ConfigMap a/t data.k")


# --- many --------------------------------------------------------------------------------------------------------


def test_readers_of_one_source_are_not_looked_at_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = CycleGraph()
    looked: list[object] = []
    fed_by = CycleGraph._fed_by_locked

    def noted(self: CycleGraph, node: Any) -> Iterator[Any]:
        looked.append(node)
        return fed_by(self, node)

    monkeypatch.setattr(CycleGraph, "_fed_by_locked", noted)
    for number in range(300):
        graph.replace(ref(f"t{number}"), "ConfigMap", k("hub"))
    graph.replace(ref("hub"), "ConfigMap", k("up"))

    assert len(looked) <= 2 * 301


def test_a_ring_of_many_rules_that_read_the_same_is_shown_with_one_look_at_what_feeds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = CycleGraph()
    size, rules = 10, 20
    for number in range(size):
        source = ref(f"t{(number + 1) % size}")
        edges = [edge(f"r{each}", f"data.k{each}", source, "data") for each in range(rules)]
        graph.replace(ref(f"t{number}"), "ConfigMap", edges)
    asked = 0

    def counted(*question: Any) -> bool:
        nonlocal asked
        asked += 1
        return changes(*question)

    monkeypatch.setattr("controllers.copier.cycles.changes", counted)

    assert len(graph.refused(ref("t0"))) == rules

    assert asked <= rules * 8 * rules  # for each rule eight steps, at each of them all that is written there


@pytest.mark.slow
def test_fifty_thousand_rules_in_chains_and_in_one_ring() -> None:
    graph = CycleGraph()
    names = [f"t{number}" for number in range(50_000)]
    for one, other in pairwise(names):
        graph.replace(ref(one), "ConfigMap", k(other))

    assert len(graph.replace(ref(names[-1]), "ConfigMap", k(names[0]))) == len(names) - 1
    assert len(graph.replace(ref(names[0]), "ConfigMap", ())) == len(names) - 1
    assert refused(graph, *names) == set()
