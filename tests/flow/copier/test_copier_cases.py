"""What rules do, case by case. One copier plays all of them at once, each with objects of its own.

A case is a generator: it acts as people do, and yields what it waits for. Its docstring-like name is the fact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from informers import GVR, InvalidError, ObjectRef
from tests.flow.copier.conftest import PREFIX

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Program, Story

# What a case waits for, and how to say that it did not come.
Wait: TypeAlias = tuple[Callable[[], object], str]
DEPLOYMENTS = GVR("apps", "v1", "deployments")
NAMESPACES = GVR("", "v1", "namespaces")


@dataclass
class Case:
    """The objects of one case, and what the copier did with them."""

    story: Story
    name: str
    program: Program | None = None

    def of(self, name: str) -> str:
        """Name an object so that no other case has it."""
        return f"{self.name}-{name}"

    def rules(self, rules: Mapping[str, str | None]) -> dict[str, str | None]:
        return {
            key: text and text.replace(":~", f":{self.name}-").replace("/~", f"/{self.name}-")
            for key, text in rules.items()
        }

    def configmap(
        self,
        name: str,
        data: Mapping[str, str | None] | None = None,
        rules: Mapping[str, str | None] | None = None,
        **more: Any,
    ) -> ObjectRef:
        return self.story.configmap(self.of(name), data=data, rules=self.rules(rules or {}), **more)

    def deployment(self, name: str, rules: Mapping[str, str | None]) -> ObjectRef:
        labels = {"app": self.of(name)}
        annotations = {PREFIX + key: text for key, text in self.rules(rules).items()}
        container = {"name": "app", "image": "example.com/app:1"}
        spec = {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "side", "image": "x"}, container]},
            },
        }
        metadata = {"name": self.of(name), "annotations": annotations}
        return self.story.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    def data(self, name: str) -> Any:
        return self.story.data(self.of(name))

    def has(self, name: str, data: Mapping[str, str]) -> Wait:
        return lambda: self.data(name) == data, f"{self.of(name)} has {data}"

    def is_told(self, name: str, *reasons: str) -> Wait:
        return (
            lambda: sorted(self.story.reasons(self.of(name))) == sorted(reasons),
            f"{self.of(name)} is told {reasons}",
        )

    def writes(self, ref: ObjectRef) -> int:
        assert self.program is not None
        return self.program.targets_of("patched").count(str(ref))

    def looks(self, ref: ObjectRef) -> int:
        assert self.program is not None
        return self.program.targets_of("in sync").count(str(ref)) + self.writes(ref)

    def version(self, ref: ObjectRef) -> str:
        found: str = self.story.content(ref)["metadata"]["resourceVersion"]
        return found

    def touch(self, ref: ObjectRef, text: str) -> None:
        """Change what nobody copies."""
        self.story.client.patch(ref, {"metadata": {"annotations": {"example.com/touched": text}}}, field_manager="test")

    def quiet(self) -> Iterator[Wait]:
        """Wait until the copier, which has one worker, has dealt with all that happened to ConfigMaps so far."""
        assert self.program is not None
        mark = str(len(self.program.lines()))
        self.configmap("probe-source", {"n": mark})
        self.configmap(
            "probe", rules={"replace-data.n": "configmap:~probe-source:data.n", "replace-data.m": f'json:"{mark}"'}
        )
        yield self.has("probe", {"n": mark, "m": mark})


def two_rules_of_one_source_and_a_constant_follow(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"a": "1", "b": "2"})
    rules = {"replace-data.a": "configmap:~s:data.a", "replace-data.b": "cm:~s:data.b", "replace-data.c": 'json:"3"'}
    target = case.configmap("t", {"own": "x"}, rules)
    yield case.has("t", {"own": "x", "a": "1", "b": "2", "c": "3"})
    yield lambda: case.writes(target) == 1, "one write for all"

    case.configmap("s", {"b": "20"})
    yield case.has("t", {"own": "x", "a": "1", "b": "20", "c": "3"})
    case.configmap("t", {"a": "drift", "c": "drift"})
    yield case.has("t", {"own": "x", "a": "1", "b": "20", "c": "3"})
    yield lambda: case.writes(target) == 3, "one more for each change"


def only_a_change_of_the_copied_value_is_a_write(case: Case) -> Iterator[Wait]:
    source = case.configmap("s", {"k": "1", "other": "1"})
    target = case.configmap("t", {"other": "z"}, {"replace-data.k": "configmap:~s:data.k"})
    yield case.has("t", {"k": "1", "other": "z"})
    yield from case.quiet()
    version = case.version(target)

    case.configmap("s", {"other": "2"})
    case.touch(source, "1")
    yield from case.quiet()
    assert case.version(target) == version
    case.configmap("s", {"k": "2", "other": "3"})
    yield case.has("t", {"k": "2", "other": "z"})
    yield lambda: case.writes(target) == 2, "one write for the one change"


def a_source_is_never_written_and_a_target_in_sync_never_again(case: Case) -> Iterator[Wait]:
    source = case.configmap("s", {"k": "1"})
    target = case.configmap("t", rules={"replace-data.k": "configmap:~s:data.k"})
    yield case.has("t", {"k": "1"})
    for number in range(3):
        case.touch(source, str(number))
        case.touch(target, str(number))
        versions = case.version(source), case.version(target)
        yield from case.quiet()
        assert (case.version(source), case.version(target)) == versions
    assert case.writes(target) == 1


def an_edited_rule_follows_its_new_source_only(case: Case) -> Iterator[Wait]:
    case.configmap("s1", {"k": "1"})
    case.configmap("s2", {"k": "2"})
    target = case.configmap("t", rules={"replace-data.k": "configmap:~s1:data.k"})
    yield case.has("t", {"k": "1"})
    case.configmap("t", rules={"replace-data.k": "configmap:~s2:data.k"})
    yield case.has("t", {"k": "2"})
    yield from case.quiet()

    looks = case.looks(target)
    case.configmap("s1", {"k": "changed"})
    yield from case.quiet()
    assert case.data("t") == {"k": "2"}
    assert case.looks(target) == looks


def a_removed_rule_writes_no_more_and_leaves_its_value(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"k": "1"})
    case.configmap("t", rules={"replace-data.k": "configmap:~s:data.k"})
    yield case.has("t", {"k": "1"})
    case.configmap("t", rules={"replace-data.k": None})
    yield from case.quiet()

    case.configmap("s", {"k": "2"})
    yield from case.quiet()
    assert case.data("t") == {"k": "1"}


def what_is_no_rule_is_told_and_disturbs_no_other(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"k": "1"})
    bad = [
        "secret",
        "secret:x",
        "",
        " ",
        ":",
        "::",
        "json",
        "json:",
        "json:{",
        "clusterrole:system:node:rules",
        "a b:c:d",
    ]
    rules = {f"replace-data.bad-{number}": text for number, text in enumerate(bad)}
    case.configmap(
        "t", rules={**rules, "replace-data.e": "configmap:~s:data.k", "replace-status": "json:{}", "copy-x": "y"}
    )
    yield case.has("t", {"e": "1"})
    yield case.is_told("t", "Copied", "DeniedDestination", "MalformedRule")
    assert case.program is not None
    told = {
        line["rule"]: line["reason"]
        for line in case.program.lines("rule state changed")
        if line["name"] == case.of("t")
    }
    assert told == {**dict.fromkeys([*rules, "copy-x"], "MalformedRule"), "replace-status": "DeniedDestination"}

    case.configmap("t", rules={"replace-data.bad-0": "configmap:~s:data.k"})
    yield case.has("t", {"bad-0": "1", "e": "1"})


def what_is_missing_is_told_and_copied_at_first_sight(case: Case) -> Iterator[Wait]:
    rules = {"replace-data.k": "configmap:~later:data.k", "replace-data.l": "configmap:~there:data.l"}
    case.configmap("there", {"other": "x"})
    case.configmap("t", rules=rules)
    yield case.is_told("t", "SourceMissing", "SourcePathMissing")

    case.configmap("later", {"k": "1"})
    case.configmap("there", {"l": "2"})
    yield case.has("t", {"k": "1", "l": "2"})
    yield lambda: "Copied" in case.story.reasons(case.of("t")), "that it works is told"


def a_deleted_source_leaves_its_value_and_may_come_back(case: Case) -> Iterator[Wait]:
    source = case.configmap("s", {"k": "1"})
    case.configmap("t", rules={"replace-data.k": "configmap:~s:data.k"})
    yield case.has("t", {"k": "1"})
    case.story.remove(source)
    yield lambda: "SourceMissing" in case.story.reasons(case.of("t")), "the missing source is told"
    assert case.data("t") == {"k": "1"}

    case.configmap("s", {"k": "2"})
    yield case.has("t", {"k": "2"})


def a_deleted_target_stays_deleted_and_a_new_one_is_filled(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"k": "1"})
    target = case.configmap("t", rules={"replace-data.k": "configmap:~s:data.k"})
    yield case.has("t", {"k": "1"})
    case.story.remove(target)
    case.configmap("s", {"k": "2"})
    yield from case.quiet()
    assert case.story.content(target) == {}

    case.configmap("t", rules={"replace-data.k": "configmap:~s:data.k"})
    yield case.has("t", {"k": "2"})


def an_object_copied_onto_itself_is_never_written(case: Case) -> Iterator[Wait]:
    target = case.configmap("t", {"x": "1"}, {"replace-data": "configmap:~t:data"})
    version = case.version(target)
    yield case.is_told("t", "SelfReference")
    yield from case.quiet()
    assert case.version(target) == version


def dotted_keys_are_read_in_every_spelling(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"ca.crt": "c"})
    rules = {
        "replace-data.a": 'configmap:~s:data["ca.crt"]',
        "replace-data.b": "configmap:~s:data[ca.crt]",
        "replace-data.c": r"configmap:~s:data.ca\.crt",
        "replace-data.d": "configmap:~s:data['ca.crt']",
        "replace-data.ca.crt": "configmap:~s:data.ca.crt",
    }
    case.configmap("t", rules=rules)
    yield case.has("t", {"a": "c", "b": "c", "c": "c", "d": "c", "ca.crt": "c"})


def a_kind_is_found_by_every_name_that_it_has(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"k": "1"})
    names = [
        "configmaps",
        "configmap",
        "cm",
        "ConfigMap",
        "CONFIGMAPS",
        "configmaps.v1",
        "configmap.core",
        "cm.v1.core",
        "cm.v1.",
    ]
    rules = {f"replace-data.k{number}": f"{name}:~s:data.k" for number, name in enumerate(names)}
    case.configmap("t", rules={**rules, "replace-data.sub": "deployments/scale:x:spec.replicas"})
    yield case.has("t", {f"k{number}": "1" for number in range(len(names))})
    yield lambda: set(case.story.reasons(case.of("t"))) & {"UnknownKind", "MalformedRule"}, "a subresource is no kind"


def a_cluster_scoped_source_is_read_with_its_consent(case: Case) -> Iterator[Wait]:
    space = ObjectRef(NAMESPACES, "", case.story.namespace)
    case.configmap("t", rules={"replace-data.k": f"namespace:{space.name}:metadata.name"})
    yield case.is_told("t", "ConsentMissing")

    consent = {f"{PREFIX}allow-copy-to": f"{space.name}/ConfigMap/{case.of('t')}"}
    case.story.client.patch(space, {"metadata": {"annotations": consent}}, field_manager="test")
    yield case.has("t", {"k": space.name})


def consent_may_come_late_and_go_again(case: Case) -> Iterator[Wait]:
    (other,) = case.story.namespaces
    case.configmap("db", {"k": "1"}, namespace=other)
    case.configmap("t", rules={"replace-data.k": f"configmap:{other}/~db:data.k"})
    yield case.is_told("t", "ConsentMissing")
    assert case.data("t") == {}

    case.configmap("db", namespace=other, allow=f"{case.story.namespace}/ConfigMap/{case.of('t')}")
    yield case.has("t", {"k": "1"})
    case.configmap("db", namespace=other, allow="somebody|else")
    yield from case.quiet()
    case.configmap("db", {"k": "2"}, namespace=other)
    yield from case.quiet()
    assert case.data("t") == {"k": "1"}
    assert case.program is not None
    mine = [line for line in case.program.lines("rule state changed") if line["name"] == case.of("t")]
    assert [line.get("reason", "") for line in mine] == ["ConsentMissing", "", "ConsentMissing"]
    assert "needs the source owner's consent" in mine[0]["why"]


def without_consent_nothing_tells_whether_a_source_is_there(case: Case) -> Iterator[Wait]:
    (other,) = case.story.namespaces
    case.configmap("yes", {"k": "1"}, namespace=other)
    targets = {"yes": "t1", "not": "t2"}
    for name, target in targets.items():
        rules = {
            "replace-data.k": f"configmap:{other}/~{name}:data.k",
            "replace-data.l": f"secret:{other}/~{name}:data.l",
        }
        case.configmap(target, rules=rules)
        yield case.is_told(target, "ConsentMissing")
    yield from case.quiet()

    def told(name: str, target: str) -> str:
        assert case.program is not None
        mine = [
            line for line in case.program.lines() if line.get("name") == case.of(target) and line["level"] != "debug"
        ]
        lines = [[line.get(key) for key in ("level", "msg", "rule", "state", "reason", "why")] for line in mine]
        events = [[event["reason"], event["message"]] for event in case.story.events(case.of(target))]
        return json.dumps([lines, events]).replace(f"-{name} ", "-NAME ").replace(f"-{target}", "-TARGET")

    assert told("yes", "t1") == told("not", "t2")


def what_names_or_owns_an_object_is_never_written(case: Case) -> Iterator[Wait]:
    refused = [
        *("apiVersion", "kind", "metadata", "metadata.name", "metadata.uid", "metadata.ownerReferences", "status"),
        *("metadata.finalizers", "metadata.managedFields", "metadata.annotations", "status.phase"),
    ]
    rules: dict[str, str | None] = {f"replace-{path}": 'json:"x"' for path in refused}
    spelt = [
        'metadata["annotations"]',
        r"metadata.annotations.k8s-copier\.fig\.org/rules",
        '["metadata"]["name"]',
        "[kind]",
    ]
    rules["rules"] = "".join(f"- {{to: '{path}', value: x}}\n" for path in spelt)
    target = case.configmap("t", {"own": "x"}, {**rules, "replace-metadata.labels.good": 'json:"x"'})
    yield lambda: case.story.content(target)["metadata"].get("labels") == {"good": "x"}, "the good one is written"
    yield case.is_told("t", "Copied", "DeniedDestination")
    assert case.program is not None
    told = [line for line in case.program.lines("rule state changed") if line["name"] == case.of("t")]
    assert len(told) == len(refused) + len(spelt)
    assert {line["reason"] for line in told} == {"DeniedDestination"}


def an_equal_number_is_no_write_and_a_list_element_is_named_in_the_long_form(case: Case) -> Iterator[Wait]:
    equal = case.deployment("equal", {"replace-spec.replicas": "json:3"})
    version = case.version(equal)
    case.configmap("s", {"image": "example.com/app:2"})
    to = 'spec.template.metadata.annotations["example.com/a-name-that-is-far-too-long-for-an-annotation"]'
    rules = f"""
- {{to: "spec.template.spec.containers[name=app].image", from: {{resource: configmaps, name: {case.of("s")}, path: data.image}}}}
- {{to: '{to}', value: "yes"}}
"""
    target = case.deployment("t", {"rules": rules})

    def template() -> Any:
        return case.story.content(target)["spec"]["template"]

    images = ["x", "example.com/app:2"]
    yield lambda: [each["image"] for each in template()["spec"]["containers"]] == images, "the element is written"
    assert list(template()["metadata"]["annotations"].values()) == ["yes"]
    yield lambda: case.looks(equal) > 0, "the equal one was looked at"
    assert case.version(equal) == version


def values_are_converted_as_a_rule_says(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"n": "7", "json": '{"a": [1, null]}', "text": "é", "raw": "//79"})
    case.deployment("d", {})
    rules = """
- {to: data.text, from: {resource: deployment, name: D, path: spec.replicas}, as: string}
- {to: data.no-text, from: {resource: deployment, name: D, path: spec.replicas}}
- {to: data.json, from: {resource: deployment, name: D, path: 'spec.template.spec.containers[*].name | sort(@)'}, as: json}
- {to: data.found, from: {resource: deployment, name: D, path: "spec.template.spec.containers[?image=='x'].name | [0]"}}
- {to: data.encoded, from: {resource: configmap, name: S, path: data.text}, encode: base64}
- {to: data.decoded, value: w6k=, decode: base64}
- {to: data.undecodable, from: {resource: configmap, name: S, path: data.raw}, decode: base64}
- {to: data.default, from: {resource: configmap, name: S, path: data.none}, onSourceMissing: {default: d}}
- {to: data.hidden, from: {resource: configmap, name: S, path: 'abs(data.text)'}}
- {op: remove, to: data.gone}
- {op: merge, to: data, value: {merged: "1", gone-too: null}}
- {to: data.bad, from: {resource: configmap, name: S, path: data.n}, as: whatever}
"""
    rules = rules.replace("name: D", f"name: {case.of('d')}").replace("name: S", f"name: {case.of('s')}")
    target = case.configmap("t", {"gone": "x", "gone-too": "x", "own": "x"}, {"rules": rules})
    yield case.has(
        "t",
        {
            "own": "x",
            "text": "3",
            "json": '["app","side"]',
            "found": "side",
            "encoded": "w6k=",
            "decoded": "é",
            "default": "d",
            "merged": "1",
        },
    )
    reasons = {"DecodeFailed", "JMESPathFailed", "MalformedRule", "SourcePathMissing", "TypeMismatch"}
    yield lambda: reasons <= set(case.story.reasons(case.of("t"))), "what does not work is told"
    yield from case.quiet()
    assert case.writes(target) == 1


def an_immutable_target_takes_what_it_can_and_the_rest_is_tried_once(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"k": "1", "x": "1"})
    target = case.configmap("t", {"k": "0"})
    case.story.client.patch(target, {"immutable": True}, field_manager="test")
    case.configmap(
        "t", rules={"replace-data.k": "configmap:~s:data.k", "replace-metadata.labels.x": "configmap:~s:data.x"}
    )
    yield case.is_told("t", "Copied", "Immutable")
    assert case.story.content(target)["metadata"]["labels"] == {"x": "1"}
    yield from case.quiet()
    looks = case.looks(target)
    case.story.client.patch(target, {"metadata": {"managedFields": [{}]}}, field_manager="test")
    yield lambda: case.looks(target) > looks, "it was looked at again"
    assert case.data("t") == {"k": "0"}
    assert sorted(case.story.reasons(case.of("t"))) == ["Copied", "Immutable"]
    assert case.writes(target) == 1


def a_ring_is_refused_on_all_its_members_and_freed_when_it_is_broken(case: Case) -> Iterator[Wait]:
    case.configmap("one", {"x": "1", "own": "1"}, {"replace-data.x": "configmap:~two:data.x"})
    d = case.deployment("d", {"replace-metadata.labels.x": "configmap:~one:data.x"})
    case.configmap("two", {"x": "2"}, {"replace-data.x": "deployment:~d:metadata.labels.x"})
    for name in ("one", "d", "two"):
        yield lambda: "Cycle" in case.story.reasons(case.of(name)), f"{name} is on a ring"  # noqa: B023
    yield from case.quiet()
    assert case.data("two") == {"x": "2"}

    case.configmap("two", {"x": "3"}, {"replace-data.x": None})
    yield case.has("one", {"x": "3", "own": "1"})
    yield lambda: case.story.content(d)["metadata"].get("labels") == {"x": "3"}, "the next one follows"


def types_are_kept_and_changed_only_on_request(case: Case) -> Iterator[Wait]:
    case.deployment("d", {})
    secret = {"good": "cGxhaW4=", "bad": "/w=="}
    case.story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": case.of("s")}, "data": secret})
    source = f"resource: deployments, name: {case.of('d')}, path: spec.replicas"
    rules = f"""
- {{to: data.text, from: {{{source}}}, as: string}}
- {{to: data.number, from: {{{source}}}}}
- {{to: data.plain, from: {{resource: secrets, name: {case.of("s")}, path: data.good}}, decode: base64}}
- {{to: data.bytes, from: {{resource: secrets, name: {case.of("s")}, path: data.bad}}, decode: base64}}
- {{to: data.query, from: {{resource: secrets, name: {case.of("s")}, path: "keys(data) | length(@)"}}, as: string}}
"""
    case.configmap("t", rules={"rules": rules})
    yield case.has("t", {"text": "3", "plain": "plain", "query": "2"})
    yield case.is_told("t", "Copied", "TypeMismatch", "DecodeFailed")


def elements_and_case_are_taken_as_written(case: Case) -> Iterator[Wait]:
    case.configmap("s", {"image": "x:2"})
    source = f"resource: configmaps, name: {case.of('s')}, path: data.image"
    rules = f"""
- {{to: "spec.template.spec.containers[7].image", from: {{{source}}}}}
- {{to: "spec.template.spec.containers[name=none].image", from: {{{source}}}}}
- {{to: "spec.template.spec.containers[0].image", from: {{{source}}}}}
- {{op: remove, to: spec.nothing.here}}
"""
    target = case.deployment("t", {"rules": rules, "replace-spec.minReadySeconds": "json:5"})

    def spec() -> Any:
        return case.story.content(target)["spec"]

    yield lambda: spec().get("minReadySeconds") == 5, "the case is kept"
    yield case.is_told("t", "Copied", "IndexOutOfRange", "ElementNotFound")
    assert [each["image"] for each in spec()["template"]["spec"]["containers"]] == ["x:2", "example.com/app:1"]


def a_name_too_long_for_an_annotation_is_refused_by_the_server(case: Case) -> Iterator[Wait]:
    name = f"replace-data.{'x' * 51}"
    target = case.configmap("t", rules={name[:63]: 'json:"v"'})
    yield case.has("t", {"x" * 50: "v"})
    with pytest.raises(InvalidError):
        case.configmap("t", rules={name: 'json:"v"'})
    yield lambda: case.writes(target) == 1, "nothing but the good one was written"


CASES = (
    values_are_converted_as_a_rule_says,
    a_ring_is_refused_on_all_its_members_and_freed_when_it_is_broken,
    types_are_kept_and_changed_only_on_request,
    elements_and_case_are_taken_as_written,
    a_name_too_long_for_an_annotation_is_refused_by_the_server,
    two_rules_of_one_source_and_a_constant_follow,
    only_a_change_of_the_copied_value_is_a_write,
    a_source_is_never_written_and_a_target_in_sync_never_again,
    an_edited_rule_follows_its_new_source_only,
    a_removed_rule_writes_no_more_and_leaves_its_value,
    what_is_no_rule_is_told_and_disturbs_no_other,
    what_is_missing_is_told_and_copied_at_first_sight,
    a_deleted_source_leaves_its_value_and_may_come_back,
    a_deleted_target_stays_deleted_and_a_new_one_is_filled,
    an_object_copied_onto_itself_is_never_written,
    dotted_keys_are_read_in_every_spelling,
    a_kind_is_found_by_every_name_that_it_has,
    a_cluster_scoped_source_is_read_with_its_consent,
    consent_may_come_late_and_go_again,
    without_consent_nothing_tells_whether_a_source_is_there,
    what_names_or_owns_an_object_is_never_written,
    an_equal_number_is_no_write_and_a_list_element_is_named_in_the_long_form,
    an_immutable_target_takes_what_it_can_and_the_rest_is_tried_once,
)


def test_each_case_comes_out_right(story: Story) -> None:
    story.another_namespace()
    cases = [(play, Case(story, f"c{number}")) for number, play in enumerate(CASES)]
    program = story.start("--target=configmap,deployment", "--workers=1")
    plays = {}
    for play, case in cases:
        case.program = program
        plays[play.__name__] = play(case)
    waits: dict[str, Wait] = {name: next(play) for name, play in plays.items()}

    def has_moved() -> bool:
        moved = False
        for name, (holds, _) in list(waits.items()):
            if holds():
                moved = True
                try:
                    waits[name] = next(plays[name])
                except StopIteration:
                    del waits[name]
        return moved

    while waits:
        story.until(has_moved, lambda: "; ".join(f"{name}: {what}" for name, (_, what) in waits.items()))
    assert program.process.poll() is None
