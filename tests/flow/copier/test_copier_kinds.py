"""Kinds that come, go, and share a name, and kinds without namespaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from informers import GVR, ObjectRef

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Story

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def widget_crd(group: str, plural: str = "widgets") -> dict[str, object]:
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": "Widget",
                "listKind": "WidgetList",
                "plural": plural,
                "singular": plural.removesuffix("s"),
            },
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def make_widget(story: Story, group: str, value: str, plural: str = "widgets") -> None:
    widget: dict[str, Any] = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}}
    widget["spec"] = {"k": value}
    story.client.create(GVR(group, "v1", plural), widget, namespace=story.namespace, field_manager="test")


def test_a_kind_that_appears_later_is_read_and_one_that_goes_leaves_values(story: Story) -> None:
    group = f"{story.namespace}.example.io"
    crd = widget_crd(group)
    story.configmap("t", rules={"replace-data.k": f"widgets.v1.{group}:w:spec.k"})
    story.configmap("u", rules={"replace-data.k": 'json:"v"'})
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.reasons("t") == ["UnknownKind"], "the unknown kind is reported")
    story.until(lambda: story.data("u") == {"k": "v"}, "other targets go on")

    story.serve(crd)
    make_widget(story, group, "1")
    story.until(lambda: story.data("t") == {"k": "1"}, "the kind that appeared is copied")

    story.remove(story.ref("CustomResourceDefinition", f"widgets.{group}"))
    story.quiesce(program)
    assert story.data("t") == {"k": "1"}


def test_a_source_that_vanishes_with_its_kind_takes_nothing_along(story: Story) -> None:
    group = f"{story.namespace}.example.io"
    widgets = GVR(group, "v1", "widgets")
    story.serve(widget_crd(group))
    make_widget(story, group, "1")
    # It keeps the definition from going at once, while the source is gone already.
    held: dict[str, Any] = {
        "apiVersion": f"{group}/v1",
        "kind": "Widget",
        "metadata": {"name": "x", "finalizers": ["example.io/held"]},
    }
    story.client.create(widgets, held, namespace=story.namespace, field_manager="test")
    story.configmap("t", rules={"replace-data.k": f"widgets.v1.{group}:w:spec.k"})
    source = story.configmap("s", data={"k": "1"})
    story.configmap("u", rules={"replace-data.k": "configmap:s:data.k"})
    story.start("--target=configmap", "--workers=1", "--on-source-missing=remove")
    story.until(lambda: story.data("t") == story.data("u") == {"k": "1"}, "both are copied")

    story.client.delete(story.ref("CustomResourceDefinition", f"widgets.{group}"))
    story.until(lambda: "SourceMissing" in story.reasons("t"), "the source is missed")
    story.remove(source)
    story.until(lambda: story.data("u") == {}, "what is missed later has taken its value along")

    assert story.data("t") == {"k": "1"}
    story.client.patch(ObjectRef(widgets, story.namespace, "x"), {"metadata": {"finalizers": None}}, field_manager="t")
    story.until(lambda: "UnknownKind" in story.reasons("t"), "the kind is gone")
    assert story.data("t") == {"k": "1"}


def test_a_name_that_becomes_ambiguous_stops_its_rules_until_it_is_clear_again(story: Story) -> None:
    ours, theirs = f"a.{story.namespace}.example.io", f"b.{story.namespace}.example.io"
    plural = f"gadgets{story.namespace.replace('-', '')}"
    story.serve(widget_crd(ours, plural))
    make_widget(story, ours, "1", plural)
    story.configmap("t", rules={"replace-data.k": f"{plural}:w:spec.k"})
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")

    story.serve(widget_crd(theirs, plural))
    story.until(lambda: story.reasons("t") == ["Copied", "AmbiguousKind"], "the ambiguity is reported")
    assert story.data("t") == {"k": "1"}

    story.remove(story.ref("CustomResourceDefinition", f"{plural}.{theirs}"))
    story.until(lambda: "Recovered" in story.reasons("t"), "the name is clear again")
    program.stop()
    story.remove(story.ref("CustomResourceDefinition", f"{plural}.{ours}"))


def test_cluster_scoped_sources_and_targets_work(story: Story) -> None:
    name = f"{story.namespace}-role"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"team": "blue"}},
        "rules": [],
    }
    source = story.apply(role)
    story.configmap("t", rules={"replace-data.team": f"clusterrole:{name}:metadata.labels.team"})
    space = ObjectRef(GVR("", "v1", "namespaces"), "", story.namespace)
    rule = {"k8s-copier.fig.org/replace-metadata.labels.team": f"clusterrole:{name}:metadata.labels.team"}
    story.client.patch(space, {"metadata": {"annotations": rule}}, field_manager="test")
    story.start("--target=configmap,namespace", "--cross-namespace=allow")

    story.until(lambda: story.data("t") == {"team": "blue"}, "a cluster-scoped source is read")
    story.until(lambda: story.content(space)["metadata"]["labels"].get("team") == "blue", "such a target is written")
    story.remove(source)


def test_ten_new_source_kinds_take_no_worker_away(story: Story) -> None:
    groups = [f"g{number}.{story.namespace}.example.io" for number in range(10)]
    story.in_parallel(lambda group: story.serve(widget_crd(group)), groups)
    for group in groups:
        make_widget(story, group, group)
    story.start("--target=configmap", "--workers=1")

    rules = {f"replace-data.k{number}": f"widgets.v1.{group}:w:spec.k" for number, group in enumerate(groups)}
    story.configmap("t", rules=rules)

    wanted = {f"k{number}": group for number, group in enumerate(groups)}
    story.until(lambda: story.data("t") == wanted, "all ten are copied")
    story.in_parallel(lambda group: story.remove(story.ref("CustomResourceDefinition", f"widgets.{group}")), groups)


def test_a_group_that_is_broken_at_the_start_is_named_and_harms_no_other(story: Story) -> None:
    group = f"{story.namespace}.example.io"
    story.configmap("s", data={"k": "1"})
    rules = {"replace-data.k": "configmap:s:data.k", "replace-data.w": f"widgets.v1.{group}:w:spec.k"}
    story.configmap("t", rules=rules)
    with broken(story, group):
        program = story.start("--target=configmap")
        story.until(lambda: story.data("t") == {"k": "1"}, "what needs no broken group is copied")
        story.until(lambda: "UnknownKind" in story.reasons("t"), "the other rule waits")
        (line,) = program.lines("rule state changed")
        assert f"{group}/v1" in line["why"]

    story.serve(widget_crd(group))
    make_widget(story, group, "2")
    story.until(lambda: story.data("t") == {"k": "1", "w": "2"}, "it is copied when the group is whole")
    program.stop()
    story.remove(story.ref("CustomResourceDefinition", f"widgets.{group}"))


@contextmanager
def broken(story: Story, group: str) -> Iterator[None]:
    """Have the server name a group that it cannot tell of."""
    if story.server.embedded is not None:
        faults = story.server.embedded.faults()
        story.serve(widget_crd(group))
        told = discovery(story)
        for item in told["items"]:
            if item["metadata"]["name"] == group:
                item["versions"][0].update(freshness="Stale", resources=[])
        with faults.status(code=200, path="/apis", headers={"Content-Type": AGGREGATED}, body=json.dumps(told)):
            yield
        return
    wire = story.server.wire()
    service = {"namespace": story.namespace, "name": "nobody"}
    spec = {"group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100, "service": service}
    body = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"v1.{group}"}}
    path = "/apis/apiregistration.k8s.io/v1/apiservices"
    assert wire.request("POST", path, body={**body, "spec": {**spec, "insecureSkipTLSVerify": True}}).status == 201
    try:
        story.until(
            lambda: group in {item["metadata"]["name"] for item in discovery(story)["items"]}, "the group is named"
        )
        yield
    finally:
        assert wire.request("DELETE", f"{path}/v1.{group}").status == 200


def discovery(story: Story) -> Any:
    return story.server.wire().request("GET", "/apis", headers={"Accept": AGGREGATED}).json()
