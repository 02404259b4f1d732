"""Merging into what others own parts of: in sync with what a server makes of it, and told where that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from informers import GVR, ObjectRef
from tests.flow.copier.conftest import PREFIX, Story

CONTAINER = "spec.template.spec.containers[name=app]"
RULES = f"""
- {{op: strategic-merge, to: spec.template.spec, from: {{resource: configmaps, name: sidecar, path: data.patch}}, as: value}}
- {{to: "{CONTAINER}.resources.limits.memory", from: {{resource: configmaps, name: sizes, path: data.mem}}}}
- {{to: "spec.template.spec.containers[3].image", value: nothing}}
"""


def sidecar(image: str) -> dict[str, str]:
    limits = {"limits": {"memory": "2048Mi"}}
    container = {"name": "log", "image": image, "env": [{"name": "LEVEL", "value": "info"}], "resources": limits}
    return {"patch": json.dumps({"containers": [container]})}


def deployment(story: Story) -> ObjectRef:
    labels = {"app": "d"}
    pod = {"containers": [{"name": "app", "image": "app:1", "env": [{"name": "OWN", "value": "x"}]}]}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    metadata = {"name": "d", "annotations": {f"{PREFIX}rules": RULES}}
    return story.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})


def crd(story: Story, *fields: str) -> dict[str, Any]:
    spec = {"type": "object", "properties": {name: {"type": "integer"} for name in fields}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    group = f"{story.namespace}.example.com"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def widget(story: Story, **rules: str) -> ObjectRef:
    gvr = GVR(f"{story.namespace}.example.com", "v1", "widgets")
    annotations = {PREFIX + name: text for name, text in rules.items()}
    metadata = {"name": "w", "annotations": annotations}
    content: dict[str, Any] = {"apiVersion": gvr.group_version, "kind": "Widget", "metadata": metadata, "spec": {}}
    story.client.create(gvr, content, namespace=story.namespace, field_manager="test")
    return ObjectRef(gvr, story.namespace, "w")


def test_what_is_merged_is_in_sync_with_what_the_server_makes_of_it(story: Story) -> None:
    story.serve(crd(story, "camelCaseKey"))
    kinds = f"--target=configmap,deployment,widgets.v1.{story.namespace}.example.com"
    story.configmap("sidecar", data=sidecar("log:1"))
    story.configmap("sizes", data={"mem": "2048Mi"})
    target = deployment(story)
    odd = widget(
        story,
        **{
            "strategic-merge-spec": 'json:{"camelCaseKey": 2}',
            "replace-spec.unknown": "json:1",
            "replace-spec.camelCaseKey": "json:1",
        },
    )
    program = story.start(kinds, "--workers=1")

    def containers() -> Any:
        return story.content(target)["spec"]["template"]["spec"]["containers"]

    story.until(lambda: len(containers()) == 2, "the sidecar is there")
    app, log = containers()
    assert (app["image"], app["resources"]["limits"]) == ("app:1", {"memory": "2Gi"})
    assert (log["image"], log["resources"]["limits"]) == ("log:1", {"memory": "2Gi"})
    assert app["env"] == [{"name": "OWN", "value": "x"}]
    assert log["imagePullPolicy"] == "IfNotPresent"
    story.until(lambda: {"Copied", "IndexOutOfRange"} <= set(story.reasons("d")), "both are told")
    told = {"Copied", "NotPersisted", "StrategicMergeUnsupported"}
    story.until(lambda: told <= set(story.reasons("w")), "what a custom resource cannot take is told")
    assert story.content(odd)["spec"] == {"camelCaseKey": 1}

    looks = len(program.targets_of("in sync"))
    for number in range(3):
        for ref in (target, odd):
            touched = {"metadata": {"annotations": {"example.com/touched": str(number)}}}
            story.client.patch(ref, touched, field_manager="test")
    story.until(lambda: {str(target), str(odd)} <= set(program.targets_of("in sync")[looks:]), "they were looked at")
    story.quiesce(program)
    assert [program.targets_of("patched").count(str(ref)) for ref in (target, odd)] == [1, 1]

    program.stop()
    program = story.start(kinds, "--workers=1")
    story.until(lambda: str(target) in program.targets_of("in sync"), "the next one finds it in sync")
    assert str(target) not in program.targets_of("patched")

    story.configmap("sidecar", data=sidecar("log:2"))
    story.until(lambda: containers()[1]["image"] == "log:2", "the change is merged")
    assert containers()[0] == app
    program.stop()
    story.remove(story.ref("CustomResourceDefinition", f"widgets.{story.namespace}.example.com"))


@pytest.mark.slow
def test_what_a_schema_did_not_know_is_tried_under_the_next_one(story: Story) -> None:
    story.serve(crd(story, "known"))
    odd = widget(story, **{"merge-spec": 'json:{"known": 1, "later": 2}'})
    program = story.start(f"--target=widgets.v1.{story.namespace}.example.com")
    story.until(lambda: "NotPersisted" in story.reasons("w"), "it is told")
    assert story.content(odd)["spec"] == {"known": 1}

    story.apply(crd(story, "known", "later"))
    story.until(lambda: story.content(odd)["spec"] == {"known": 1, "later": 2}, "it is kept now", timeout=240)

    story.until(lambda: "Recovered" in story.reasons("w"), "that is told")
    assert program.process.poll() is None
    program.stop()
    story.remove(story.ref("CustomResourceDefinition", f"widgets.{story.namespace}.example.com"))
