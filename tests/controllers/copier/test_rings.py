"""Rings of targets: none of their rules is written, and as soon as one goes, the others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from controllers.copier.guards import Guard
from controllers.copier.reconciler import Copier
from controllers.copier.rings import Rings
from controllers.copier.rules import PREFIX
from controllers.copier.sources import Policy
from informers import GVR, Lister, NotSyncedError, Object, ObjectRef, Request
from tests.controllers.copier.conftest import CLUSTER_ROLES, CONFIGMAPS, RESOURCES, SECRETS, WIDGETS, World


def configmap(world: World, name: str, rules: Mapping[str, str], namespace: str = "a", **data: str) -> ObjectRef:
    annotations = {PREFIX + key: text for key, text in rules.items()}
    return world.put(CONFIGMAPS, namespace, name, metadata={"annotations": annotations}, data=data)


class Followed:
    """A kind that is followed in one of its versions."""

    def __init__(self, gvr: GVR | None) -> None:
        self.gvr = lambda: gvr


def late(world: World, *kinds: GVR, is_resolved: bool = True) -> tuple[Copier, set[GVR], Rings]:
    """Return a copier that has not listed targets of these kinds yet, and the kinds that it has listed."""
    listed: set[GVR] = set()

    class Targets(World):
        def sources(self) -> Mapping[str, Any]:
            return {"": Followed(next(iter(kinds)) if is_resolved or self.has_synced() else None)}

        def follows(self, ref: ObjectRef) -> bool:
            return is_resolved or ref.gvr not in kinds or self.has_synced()

        def has_synced(self, _cluster: str | None = None) -> bool:
            return listed.issuperset(kinds)

        def find(self, ref: ObjectRef) -> Object | None:
            if ref.gvr in kinds and ref.gvr not in listed:
                raise NotSyncedError("not yet")
            return world.find(ref)

    rings = Rings([cast("Lister", Targets())], world.mapper_of, Policy(), Guard(world.mapper_of))
    rings.wake = world.woken.append
    return replace(world.copier, rings=rings), listed, rings


def test_two_that_copy_from_each_other_are_refused_before_one_is_written(world: World) -> None:
    one = configmap(world, "one", {"replace-data.x": "configmap:two:data.x"}, x="1")
    two = configmap(world, "two", {"replace-data.x": "configmap:one:data.x"}, x="2")

    world.look(one)
    world.look(two)

    assert not world.patches
    assert world.reasons() == ["Cycle", "Cycle"]
    assert [note for _, _, note in world.events] == [
        f"rule replace-data.x: {' ← '.join(f'ConfigMap a/{name} data.x' for name in ring)}"
        for ring in (("one", "two", "one"), ("two", "one", "two"))
    ]
    assert not world.woken


@pytest.mark.parametrize("size", [3, 5])
def test_a_longer_ring_is_seen_from_each_of_its_members_and_what_is_beside_it_goes_on(world: World, size: int) -> None:
    world.source(l="v")
    members = [
        configmap(
            world,
            f"t{number}",
            {"replace-data.k": f"configmap:t{(number + 1) % size}:data.k", "replace-data.l": "configmap:s:data.l"},
            k=str(number),
        )
        for number in range(size)
    ]

    for member in members:
        world.look(member)

    assert [world.objects[member]["data"] for member in members] == [{"k": str(n), "l": "v"} for n in range(size)]
    assert world.reasons().count("Cycle") == size


def test_an_edit_of_one_member_frees_the_others_and_has_them_looked_at(world: World) -> None:
    one = configmap(world, "one", {"replace-data.x": "configmap:two:data.x"}, x="1")
    two = configmap(world, "two", {"replace-data.x": "configmap:one:data.x"}, x="2")
    world.look(one)
    world.look(two)
    world.woken.clear()

    configmap(world, "two", {}, x="2")
    world.look(two)

    assert world.woken == [one]
    world.look(one)
    assert world.objects[one]["data"] == {"x": "2"}
    assert world.reasons()[-1] == "Copied"


def test_a_member_that_is_deleted_frees_the_others(world: World) -> None:
    one = configmap(world, "one", {"replace-data.x": "configmap:two:data.x"}, x="1")
    two = configmap(world, "two", {"replace-data.x": "configmap:one:data.x"}, x="2")
    world.look(one)
    world.woken.clear()

    del world.objects[two]
    world.look(two)

    assert world.woken == [one]
    world.look(one)
    assert world.reasons() == ["Cycle", "SourceMissing"]


def test_consent_that_is_withdrawn_frees_the_others_and_consent_that_comes_back_closes_the_ring(world: World) -> None:
    def member(name: str, namespace: str, source: str, allow: str, x: str) -> ObjectRef:
        annotations = {f"{PREFIX}replace-data.x": f"configmap:{source}:data.x", f"{PREFIX}allow-copy-to": allow}
        return world.put(CONFIGMAPS, namespace, name, metadata={"annotations": annotations}, data={"x": x})

    one = member("one", "a", "b/two", "b", "1")
    two = member("two", "b", "a/one", "a", "2")
    world.look(one)
    world.look(two)
    assert world.reasons() == ["Cycle", "Cycle"]
    world.woken.clear()

    member("two", "b", "a/one", "nobody", "2")
    world.look(one)

    assert world.reasons()[-1] == "ConsentMissing"
    assert world.woken == [two]
    world.look(two)
    assert world.objects[two]["data"] == {"x": "1"}

    member("two", "b", "a/one", "a", "2")
    world.look(one)
    world.look(two)
    assert world.reasons()[-2:] == ["Cycle", "Cycle"]
    assert len(world.patches) == 1


def test_a_ring_names_only_what_its_reader_may_know(world: World) -> None:
    def member(namespace: str, source: str) -> ObjectRef:
        allow = {"a": "c", "b": "a", "c": "b"}[namespace]
        annotations = {f"{PREFIX}replace-data.x": f"configmap:{source}:data.x", f"{PREFIX}allow-copy-to": allow}
        return world.put(CONFIGMAPS, namespace, "t", metadata={"annotations": annotations}, data={"x": namespace})

    here = member("a", "b/t")
    member("b", "c/t")
    member("c", "a/t")

    world.look(here)

    assert world.events[0][2] == (
        "rule replace-data.x: ConfigMap a/t data.x ← ConfigMap b/t data.x ← … ← ConfigMap a/t data.x"
    )


def test_a_guarded_object_is_in_no_ring(world: World) -> None:
    guarded = {f"{PREFIX}replace-rules": "widget:w:spec.k"}
    world.put(CLUSTER_ROLES, "", "r", metadata={"annotations": guarded}, rules=[])
    annotations = {f"{PREFIX}replace-spec.k": "clusterrole:r:rules"}
    widget = world.put(WIDGETS, "", "w", metadata={"annotations": annotations}, spec={})

    world.look(widget)

    assert world.objects[widget]["spec"] == {"k": []}


def test_what_may_feed_a_target_is_waited_for_and_its_first_list_wakes(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    is_listed = False

    class Targets(World):
        def find(self, ref: ObjectRef) -> Object | None:
            if not is_listed and ref.name != "t":
                raise NotSyncedError("not yet")
            return world.find(ref)

    listers = [cast("Lister", Targets())]
    rings = Rings(listers, world.mapper_of, Policy(), Guard(world.mapper_of))
    rings.wake = world.woken.append
    copier = replace(world.copier, rings=rings)

    assert copier.reconcile(Request(target)).requeue_after == pytest.approx(10)
    assert not world.patches
    assert not world.events

    is_listed = True
    rings.look_again()
    assert world.woken == [target]
    copier.reconcile(Request(target))
    assert world.objects[target]["data"] == {"k": "1"}


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one"), ("two", "one", "two", "one")])
@pytest.mark.parametrize("namespace", ["a", "b"])
@pytest.mark.parametrize("is_resolved", [True, False])
def test_a_ring_through_a_kind_whose_first_list_is_not_there_yet_is_waited_for_from_however_far(
    world: World, order: Sequence[str], namespace: str, *, is_resolved: bool
) -> None:
    allow = {f"{PREFIX}allow-copy-to": "a,b"}
    rule = {f"{PREFIX}replace-data.k": "configmap:a/one:data.k", **allow}
    world.put(SECRETS, namespace, "s", metadata={"annotations": rule}, data={"k": "c2VjcmV0"})
    members = {}
    for name, source in (("one", "configmap:a/two"), ("two", f"secret:{namespace}/s")):
        annotations = {f"{PREFIX}replace-data.k": f"{source}:data.k", **allow}
        members[name] = world.put(CONFIGMAPS, "a", name, metadata={"annotations": annotations}, data={"k": name})
    copier, listed, rings = late(world, SECRETS, is_resolved=is_resolved)

    for name in order:
        assert copier.reconcile(Request(members[name])).requeue_after == pytest.approx(10)
    assert not world.patches
    assert not world.events

    listed.add(SECRETS)
    rings.look_again()
    assert set(world.woken) == {members[name] for name in order}
    for member in members.values():
        copier.reconcile(Request(member))
    assert not world.patches
    assert world.reasons() == ["Cycle", "Cycle"]


def test_a_member_that_is_named_by_another_version_of_its_kind_is_known_as_a_target(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(WIDGETS, version="v2")
    monkeypatch.setitem(RESOURCES, "newer", replace(RESOURCES["widget"], gvr=newer))
    for gvr in (WIDGETS, newer):  # one object, in two caches
        annotations = {f"{PREFIX}replace-spec.k": "configmap:a/t:data.k", f"{PREFIX}allow-copy-to": "*"}
        world.put(gvr, "", "w", metadata={"annotations": annotations}, spec={"k": "1"})
    annotations = {f"{PREFIX}replace-data.k": "newer:w:spec.k", f"{PREFIX}allow-copy-to": "/widget/*"}
    target = world.put(CONFIGMAPS, "a", "t", metadata={"annotations": annotations}, data={"k": "2"})

    class Targets(World):
        def follows(self, ref: ObjectRef) -> bool:
            return ref.gvr != newer

        def sources(self) -> Mapping[str, Any]:
            return {"": Followed(WIDGETS)}

    listers = [cast("Lister", Targets())]
    listers[0].find = world.find  # type: ignore[method-assign]
    rings = Rings(listers, world.mapper_of, Policy(), Guard(world.mapper_of))

    replace(world.copier, rings=rings).reconcile(Request(target))

    assert not world.patches
    assert world.reasons() == ["Cycle"]
    assert world.events[0][2].endswith("ConfigMap a/t data.k ← Widget w spec.k ← ConfigMap a/t data.k")


@pytest.mark.parametrize(("path", "reasons"), [("data", ["SelfReference"]), ("data.m", ["Copied"])])
def test_a_target_that_is_its_own_source_under_another_clusters_name_is_known_by_its_uid(
    path: str, reasons: Sequence[str]
) -> None:
    world = World(clusters={"here": "", "alias": "alias"})
    rules = f"[{{to: data.n, from: {{cluster: alias, resource: configmap, name: t, path: {path}}}, as: json}}]"
    annotations = {f"{PREFIX}rules": rules, f"{PREFIX}allow-copy-to": "here/a/ConfigMap/t"}
    metadata = {"uid": "one", "annotations": annotations}
    world.put(CONFIGMAPS, "a", "t", cluster="alias", metadata=metadata, data={"m": "1"})
    target = world.put(CONFIGMAPS, "a", "t", metadata=metadata, data={"m": "1"})

    world.look(target)

    assert world.reasons() == reasons
    assert len(world.patches) == reasons.count("Copied")


def test_a_look_that_waits_for_a_source_takes_no_rule_out_of_a_ring(world: World) -> None:
    allow = {f"{PREFIX}allow-copy-to": "a,b"}
    secret = {f"{PREFIX}replace-data.k": "configmap:a/one:data.k", **allow}
    member = world.put(SECRETS, "b", "s", metadata={"annotations": secret}, data={"k": "c2VjcmV0"})
    configmap_rule = {f"{PREFIX}replace-data.k": "secret:b/s:data.k", **allow}
    one = world.put(CONFIGMAPS, "a", "one", metadata={"annotations": configmap_rule}, data={"k": "1"})

    class Targets(World):
        def find(self, ref: ObjectRef) -> Object | None:
            held, world.unsynced = world.unsynced, {}
            try:
                return world.find(ref)
            finally:
                world.unsynced = held

    rings = Rings([cast("Lister", Targets())], world.mapper_of, Policy(), Guard(world.mapper_of))
    rings.wake = world.woken.append
    copier = replace(world.copier, rings=rings)

    world.unsynced = {CONFIGMAPS: None}  # as a source
    copier.reconcile(Request(member))
    assert not world.events
    world.unsynced = {}
    copier.reconcile(Request(one))

    assert not world.patches
    assert world.reasons() == ["Cycle"]

    world.woken.clear()
    world.unsynced = {CONFIGMAPS: None}
    copier.reconcile(Request(member))
    assert not world.woken
