"""Kinds that come, go, and share a name, and kinds without namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from informers import GVR, ObjectRef

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Story


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
