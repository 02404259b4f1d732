"""A selection of metadata alone sees every change, keeps little, and never shows what it was asked for as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from informers import GVR, InformersError, Selection

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

CONTENT = 100_000
PATIENCE = 60.0


def test_every_change_is_seen_and_no_content_is_kept(stage: Stage) -> None:
    for number in range(5):
        stage.put(f"c{number}", "x" * CONTENT)
    follower = stage.follow(stage.configmaps(metadata_only=True))
    follower.until_watching()
    assert len(follower.lister.list()) == 5

    version = stage.put("c1", "y" * CONTENT)
    follower.lister.wait_seen(stage.ref("c1"), version, timeout=PATIENCE)
    stage.put("c2", "y" * CONTENT, labels={"a": "b"})
    follower.until(lambda: follower.lister.get("c2", stage.namespace).labels == {"a": "b"}, "labels are seen")
    stage.delete("c3")
    stage.put("new", "x")
    follower.until(lambda: {"c3", "new"} & {told.name for told in follower.told()[7:]} == {"c3", "new"}, "told")

    found = follower.lister.list()
    assert {obj.name for obj in found} == {"c0", "c1", "c2", "c4", "new"}
    assert {(obj.kind, obj.api_version, obj.body["kind"]) for obj in found} == {("ConfigMap", "v1", "ConfigMap")}
    assert all("data" not in obj.body and b"PartialObjectMetadata" not in obj.raw for obj in found)
    assert sum(store.size() for store in follower.sets[0].stores()) < 5 * 2500
    assert {delta.new.kind for delta in follower.deltas() if delta.new is not None} == {"ConfigMap"}


def test_what_is_read_live_is_whole(stage: Stage) -> None:
    stage.put("a", "value")
    follower = stage.follow(stage.configmaps(metadata_only=True))
    follower.until_watching()
    (cached,) = follower.lister.list()

    live = follower.manager.client.get(cached.ref)

    assert live.get("data", "v") == "value"
    assert live.resource_version == cached.resource_version
    partial = follower.manager.client.get(cached.ref, metadata_only=True)
    assert (partial.ref, partial.get("data")) == (cached.ref, None)
    listed = list(follower.manager.client.list(cached.ref.gvr, namespace=stage.namespace, metadata_only=True))
    assert [(obj.ref, obj.get("data")) for obj in listed] == [(cached.ref, None)]


@pytest.mark.parametrize("starts", ["empty", "filled"])
def test_the_kind_of_a_custom_resource_is_the_real_one(stage: Stage, starts: str) -> None:
    group = f"{stage.namespace}.example.com"
    gvr = GVR(group, "v1", "gadgets")
    crds = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd: dict[str, Any] = {
        "metadata": {"name": f"gadgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Gadget", "plural": "gadgets"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    stage.client.create(crds, crd, field_manager="everybody")
    body: dict[str, Any] = {
        "apiVersion": gvr.group_version,
        "kind": "Gadget",
        "metadata": {"name": "g"},
        "spec": {"a": 1},
    }
    follower = stage.follow(Selection(gvr, namespaces=(stage.namespace,), metadata_only=True), start=False)

    def make() -> bool:
        try:
            stage.client.create(gvr, body, namespace=stage.namespace, field_manager="everybody")
        except InformersError:
            return False
        return True

    if starts == "filled":
        follower.until(make, "served, and made")
    stage.opened.enter_context(follower)
    if starts == "empty":
        follower.until(make, "served, and made")
    follower.until(lambda: len(follower.read()) == 1, "seen")

    (found,) = follower.read()
    assert (found.kind, found.api_version) == ("Gadget", f"{group}/v1")
    assert "spec" not in found.body
    stage.client.delete(found.ref)
    follower.until(lambda: not follower.read(), "gone")
