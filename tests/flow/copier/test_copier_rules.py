"""The life of rules: they work at once, follow what changes, stop when they go, and harm nobody when they are wrong."""

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


def test_two_rules_from_one_source_and_a_constant_are_copied_and_follow(story: Story) -> None:
    story.configmap("s", data={"a": "1", "b": "2"})
    rules = {"replace-data.a": "configmap:s:data.a", "replace-data.b": "cm:s:data.b", "replace-data.c": 'json:"3"'}
    story.configmap("t", data={"own": "x"}, rules=rules)
    story.start("--target=configmap")
    story.until(lambda: story.data("t") == {"own": "x", "a": "1", "b": "2", "c": "3"}, "copied")
    story.until(lambda: story.patches() == 1, "one write is counted")

    story.configmap("s", data={"a": "1", "b": "20"})
    story.until(lambda: story.data("t")["b"] == "20", "the change is copied")
    story.configmap("t", data={"a": "drift", "c": "drift"})
    story.until(lambda: story.data("t") == {"own": "x", "a": "1", "b": "20", "c": "3"}, "drift is corrected")

    story.until(lambda: story.patches() == 3, "two more are counted")


def test_only_a_change_of_the_copied_value_is_a_write(story: Story) -> None:
    story.configmap("s", data={"k": "1", "other": "1"})
    target = story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")
    story.quiesce(program)
    version = story.content(target)["metadata"]["resourceVersion"]

    story.configmap("s", data={"other": "2"}, rules={"foreign": "x"})
    story.quiesce(program)

    assert story.content(target)["metadata"]["resourceVersion"] == version


def test_an_edited_rule_follows_its_new_source_only(story: Story) -> None:
    story.configmap("s1", data={"k": "1"})
    story.configmap("s2", data={"k": "2"})
    target = story.configmap("t", rules={"replace-data.k": "configmap:s1:data.k"})
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")

    story.configmap("t", rules={"replace-data.k": "configmap:s2:data.k"})
    story.until(lambda: story.data("t") == {"k": "2"}, "copied from the new source")
    story.quiesce(program)
    looked = program.targets_of("in sync").count(str(target))
    story.configmap("s1", data={"k": "changed"})
    story.quiesce(program)

    assert story.data("t") == {"k": "2"}
    assert program.targets_of("in sync").count(str(target)) == looked


def test_a_removed_rule_writes_no_more_and_leaves_its_value(story: Story) -> None:
    story.configmap("s", data={"k": "1"})
    target = story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")

    story.client.patch(target, {"metadata": {"annotations": None}}, field_manager="test")
    story.quiesce(program)
    story.configmap("s", data={"k": "2"})
    story.quiesce(program)

    assert story.data("t") == {"k": "1"}


def test_a_malformed_rule_is_reported_and_disturbs_no_other(story: Story) -> None:
    story.configmap("s", data={"k": "1"})
    rules = {
        "replace-data.a": "configmap",
        "replace-data.b": "",
        "replace-data.c": "json:{",
        "replace-data.d": "clusterrole:system:node:rules",
        "replace-data.e": "configmap:s:data.k",
        "reload-data": "configmap:s:data",
        "replace-status": "json:{}",
    }
    story.configmap("t", rules=rules)
    story.configmap("u", rules={"replace-data.k": "configmap:s:data.k"})
    story.start("--target=configmap")

    story.until(lambda: story.data("t") == {"e": "1"} and story.data("u") == {"k": "1"}, "the good rules are copied")
    expected = ["Copied", "DeniedDestination", "MalformedRule"]
    story.until(lambda: sorted(story.reasons("t")) == expected, "the bad ones are reported")

    story.configmap("t", rules={"replace-data.a": "configmap:s:data.k"})
    story.until(lambda: story.data("t") == {"a": "1", "e": "1"}, "a rule that was put right works")


def test_consent_may_come_late_and_go_again(story: Story) -> None:
    other = story.another_namespace()
    story.configmap("db", namespace=other, data={"k": "1"})
    story.configmap("t", rules={"replace-data.k": f"configmap:{other}/db:data.k"})
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.reasons("t") == ["ConsentMissing"], "missing consent is reported")
    assert story.data("t") == {}

    story.configmap("db", namespace=other, allow=f"{story.namespace}/ConfigMap/t")
    story.until(lambda: story.data("t") == {"k": "1"}, "consent is used at once")
    story.configmap("db", namespace=other, allow="somebody|else")
    story.quiesce(program)
    story.configmap("db", namespace=other, data={"k": "2"})
    story.quiesce(program)

    assert story.data("t") == {"k": "1"}
    said = [line.get("reason", "") for line in program.lines("rule state changed")]
    assert said == ["ConsentMissing", "", "ConsentMissing"]
    assert "needs the source owner's consent" in program.lines("rule state changed")[0]["why"]


def test_a_deleted_source_leaves_its_value_and_may_come_back(story: Story) -> None:
    source = story.configmap("s", data={"k": "1"})
    story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    story.start("--target=configmap")
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")

    story.remove(source)
    story.until(lambda: "SourceMissing" in story.reasons("t"), "the missing source is reported")
    assert story.data("t") == {"k": "1"}

    story.configmap("s", data={"k": "2"})
    story.until(lambda: story.data("t") == {"k": "2"}, "the source that came back is copied")


def test_a_deleted_target_stays_deleted_and_a_new_one_is_filled(story: Story) -> None:
    story.configmap("s", data={"k": "1"})
    target = story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")

    story.remove(target)
    story.configmap("s", data={"k": "2"})
    story.quiesce(program)
    assert story.content(target) == {}
    assert program.process.poll() is None

    story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    story.until(lambda: story.data("t") == {"k": "2"}, "the new target is filled")


def test_an_object_copied_onto_itself_is_never_written(story: Story) -> None:
    target = story.configmap("t", data={"x": "1"}, rules={"replace-data": "configmap:t:data"})
    version = story.content(target)["metadata"]["resourceVersion"]
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: story.reasons("t") == ["SelfReference"], "the self-reference is reported")
    story.quiesce(program)

    assert story.content(target)["metadata"]["resourceVersion"] == version


def test_dotted_keys_are_read_in_every_spelling(story: Story) -> None:
    story.configmap("s", data={"ca.crt": "c"})
    rules = {
        "replace-data.a": 'configmap:s:data["ca.crt"]',
        "replace-data.b": "configmap:s:data[ca.crt]",
        "replace-data.c": r"configmap:s:data.ca\.crt",
        "replace-data.ca.crt": "configmap:s:data.ca.crt",
    }
    story.configmap("t", rules=rules)
    story.start("--target=configmap")

    story.until(lambda: story.data("t") == {"a": "c", "b": "c", "c": "c", "ca.crt": "c"}, "all four are copied")


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


def test_an_immutable_target_takes_what_it_can_and_the_rest_is_tried_and_reported_once(story: Story) -> None:
    story.configmap("s", data={"k": "1", "x": "1"})
    rules = {"replace-data.k": "configmap:s:data.k", "replace-metadata.labels.x": "configmap:s:data.x"}
    target = story.configmap("t", data={"k": "0"}, rules=rules)
    story.client.patch(target, {"immutable": True}, field_manager="test")
    program = story.start("--target=configmap", "--workers=1")
    story.until(lambda: sorted(story.reasons("t")) == ["Copied", "Immutable"], "both are reported")
    assert story.content(target)["metadata"]["labels"] == {"x": "1"}

    story.quiesce(program)
    looked = program.targets_of("in sync").count(str(target))
    story.client.patch(target, {"metadata": {"managedFields": [{}]}}, field_manager="test")
    story.until(lambda: program.targets_of("in sync").count(str(target)) > looked, "it was looked at again")

    assert story.data("t") == {"k": "0"}
    assert sorted(story.reasons("t")) == ["Copied", "Immutable"]
    assert program.targets_of("patched").count(str(target)) == 1
