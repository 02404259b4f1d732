"""One look at one target: what is sent, what is said, and that nothing is sent or said twice."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier import concerns_rules, keep_rules
from controllers.copier.consent import CrossNamespace
from controllers.copier.guards import Guard
from controllers.copier.namespaces import NAMESPACES
from controllers.copier.problems import UnexpectedError
from controllers.copier.rules import PREFIX, Fate
from controllers.copier.sources import Policy
from informers import (
    GVR,
    APIError,
    Cause,
    ConflictError,
    ForbiddenError,
    InformersError,
    NotFoundError,
    NotSyncedError,
    Object,
    ObjectRef,
    Request,
    Result,
    ServerError,
    TransportError,
)
from tests.controllers.copier.conftest import (
    CLUSTER_ROLES,
    CONFIGMAPS,
    FEDERATED_SECRETS,
    SECRETS,
    WIDGETS,
    World,
    be_picky,
    refused,
)


def test_a_value_is_copied_with_one_patch_and_then_nothing_is_sent(world: World) -> None:
    source = world.source(k="1", other="x")
    target = world.target({"replace-data.k": "configmap:s:data.k"}, data={"other": "z"})

    world.look(target)
    world.look(target)

    assert world.patches == [{"data": {"k": "1"}, "metadata": {"uid": "uid-2", "resourceVersion": "2"}}]
    assert world.events == [
        ("Normal", "Copied", f"rule replace-data.k: wrote data.k from {source} (resourceVersion 1)"),
    ]


def test_a_value_that_is_there_already_costs_no_write_and_no_event(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"}, data={"k": "1"})

    world.look(target)

    assert not world.patches
    assert not world.events


def test_several_rules_are_one_patch(world: World) -> None:
    world.source(k="1", l="2")
    rules = {
        "replace-data.k": "configmap:s:data.k",
        "replace-data.l": "configmap:s:data.l",
        "replace-data.c": 'json:"3"',
    }
    target = world.target(rules)

    world.look(target)

    (patch,) = world.patches
    assert isinstance(patch, dict)
    assert patch["data"] == {"k": "1", "l": "2", "c": "3"}
    assert world.reasons() == ["Copied"]


def test_later_changes_are_copied_and_only_logged(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.look(target)

    world.source(k="2")
    world.look(target)

    assert world.objects[target]["data"] == {"k": "2"}
    assert world.reasons() == ["Copied"]


def test_a_change_of_other_keys_of_the_source_sends_nothing(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.look(target)

    world.source(k="1", other="new")
    world.look(target)

    assert len(world.patches) == 1


def test_drift_is_corrected(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.look(target)
    world.objects[target]["data"]["k"] = "drifted"

    world.look(target)

    assert world.objects[target]["data"] == {"k": "v"}


def test_an_integer_constant_equal_to_the_live_integer_is_in_sync(world: World) -> None:
    target = world.target({"replace-spec.replicas": "json:3"}, gvr=WIDGETS, namespace="", spec={"replicas": 3})

    world.look(target)

    assert not world.patches


def test_two_values_of_one_source_are_of_one_version(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.source(crt="1", key="1")
    target = world.target({"replace-data.crt": "configmap:s:data.crt", "replace-data.key": "configmap:s:data.key"})
    find = World.find

    def find_and_rotate(self: World, ref: ObjectRef) -> Object | None:
        found = find(self, ref)
        if ref.name == "s":
            world.source(crt=str(world.version), key=str(world.version))
        return found

    monkeypatch.setattr(World, "find", find_and_rotate)
    world.look(target)

    assert world.objects[target]["data"]["crt"] == world.objects[target]["data"]["key"]


def test_a_rule_that_comes_back_is_a_new_one(world: World) -> None:
    bad = {"replace-data.k": "configmap:s:data.k"}
    target = world.target({**bad, "replace-data.c": 'json:"v"'})
    world.look(target)
    world.target({"replace-data.c": 'json:"v"'}, data={"c": "v"})
    world.look(target)
    world.target({**bad, "replace-data.c": 'json:"v"'}, data={"c": "v"})
    world.look(target)

    assert sorted(world.reasons()) == ["Copied", "SourceMissing", "SourceMissing"]


def test_what_is_read_was_declared_before(world: World) -> None:
    source = world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k", "replace-data.n": "nothing:x:data"})

    world.look(target)

    assert world.dependencies[target] == [source]
    assert world.names[target] == [("", "configmap"), ("", "nothing")]


def test_an_edited_rule_lets_go_of_its_old_source(world: World) -> None:
    world.source("s1", k="1")
    second = world.source("s2", k="2")
    world.look(world.target({"replace-data.k": "configmap:s1:data.k"}))

    target = world.target({"replace-data.k": "configmap:s2:data.k"}, data={"k": "1"})
    world.look(target)

    assert world.dependencies[target] == [second]
    assert world.objects[target]["data"] == {"k": "2"}


def test_a_removed_rule_leaves_its_value_and_no_trace(world: World) -> None:
    world.source(k="1")
    world.look(world.target({"replace-data.k": "configmap:s:data.k"}))

    target = world.target({}, data={"k": "1"})
    world.look(target)

    assert world.objects[target]["data"] == {"k": "1"}
    assert target not in world.dependencies
    assert len(world.copier.memories) == 0


def test_a_deleted_target_is_forgotten(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.look(target)
    del world.objects[target]

    world.look(target)

    assert target not in world.dependencies
    assert len(world.copier.memories) == 0
    assert len(world.patches) == 1


def test_a_target_made_anew_under_the_same_name_owes_nothing_to_the_one_before(world: World) -> None:
    rules = {"replace-data.k": 'json:"v"', "replace-data.l": "configmap:s:data.k"}
    target = world.target(rules)
    world.look(target)
    del world.objects[target]
    world.target(rules)
    world.look(target)

    assert world.objects[target]["data"] == {"k": "v"}
    assert sorted(world.reasons()) == ["Copied", "Copied", "SourceMissing", "SourceMissing"]


def test_a_target_that_is_going_is_left_alone(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.objects[target]["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"

    world.look(target)

    assert not world.patches
    assert not world.events


def test_a_target_in_a_namespace_that_is_going_is_left_alone(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.put(NAMESPACES, "", "a", metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"})

    world.look(target)

    assert not world.patches


def test_a_missing_source_keeps_the_value_and_is_said_once(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.look(target)
    del world.objects[ObjectRef(CONFIGMAPS, "a", "s")]

    world.look(target)
    world.look(target)

    assert world.objects[target]["data"] == {"k": "1"}
    assert world.reasons() == ["Copied", "SourceMissing"]


def test_a_source_that_comes_back_is_copied_and_said(world: World) -> None:
    target = world.target({"replace-data.k": "configmap:s:data.k"}, data={"k": "1"})
    world.look(target)

    world.source(k="1")
    world.look(target)

    assert not world.patches
    assert world.events[1:] == [("Normal", "Recovered", "rule replace-data.k: works again after SourceMissing")]


def test_a_missing_path_names_the_step(world: World) -> None:
    world.source(**{"tls.crt": "c"})
    target = world.target({"replace-data.k": "configmap:s:data.crt"})

    world.look(target)

    ((_, reason, note),) = world.events
    assert reason == "SourcePathMissing"
    assert "step 2 of data.crt: found nothing" in note
    assert note.endswith("the value is kept")


def test_one_bad_rule_disturbs_no_other(world: World) -> None:
    world.source(k="1")
    rules = {
        "replace-data.a": "configmap",
        "replace-data.b": "configmap:s",
        "replace-data.c": "json:{",
        "replace-data.d": "clusterrole:system:node:rules",
        "replace-data.e": "configmap:s:data.k",
        "reload-data": "json:{}",
    }
    target = world.target(rules)

    world.look(target)
    world.look(target)

    assert world.objects[target]["data"] == {"e": "1"}
    assert sorted(world.reasons()) == ["Copied", "MalformedRule"]
    (note,) = [note for _, reason, note in world.events if reason == "MalformedRule"]
    assert all(f"rule replace-data.{name}: " in note for name in "abcd")
    assert "rule reload-data: this annotation is not known" in note


def test_an_event_about_many_rules_is_cut_to_what_a_server_takes(world: World) -> None:
    world.look(world.target({f"replace-data.k{number}": "configmap" for number in range(100)}))

    ((_, _, note),) = world.events
    assert len(note.encode()) <= 1000
    assert note.startswith("rule replace-data.k0: want")
    assert note.endswith("…")


def test_the_state_of_an_unknown_kind_waits_under_its_name(world: World) -> None:
    world.mapper.unknown.add("configmap")
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.look(target)
    assert world.reasons() == ["UnknownKind"]
    assert world.names[target] == [("", "configmap")]

    world.mapper.unknown.clear()
    world.look(target)

    assert world.objects[target]["data"] == {"k": "1"}
    assert world.names[target] == [("", "configmap")]


@pytest.mark.parametrize(
    ("rule", "reason", "text"),
    [
        ("ambiguous:x:spec", "AmbiguousKind", "a.v1.x or a.v1.y"),
        ("review:x:spec", "UnsupportedKind", "no verb list"),
        ("clusterrole:n/x:rules", "MalformedRule", "cluster-scoped"),
        ("configmap:t:data", "SelfReference", "data.k"),
        ("configmap:t:data.k", "SelfReference", "data.k"),
    ],
)
def test_a_source_that_cannot_be_is_refused(world: World, rule: str, reason: str, text: str) -> None:
    target = world.target({"replace-data.k": rule}, data={"x": "1"})

    world.look(target)

    assert world.reasons() == [reason]
    assert text in world.events[0][2]
    assert not world.patches


def test_a_cluster_scoped_target_needs_a_namespace_for_its_source(world: World) -> None:
    target = world.target({"replace-spec.k": "configmap:s:data.k"}, gvr=WIDGETS, namespace="")

    world.look(target)

    assert world.reasons() == ["MalformedRule"]
    assert "NAMESPACE/NAME" in world.events[0][2]


def test_another_path_of_the_target_itself_may_be_copied(world: World) -> None:
    target = world.target({"replace-data.copy": "configmap:t:data.orig"}, data={"orig": "1"})

    world.look(target)
    world.look(target)

    assert world.objects[target]["data"] == {"orig": "1", "copy": "1"}
    assert len(world.patches) == 1


@pytest.mark.parametrize(
    ("to", "path", "reasons"),
    [
        ("data.k", "metadata.resourceVersion", ["SelfReference"]),
        ("data.k", "metadata.managedFields", ["SelfReference"]),
        ("data.k", "metadata", ["SelfReference"]),
        ("data.k", "metadata.generation", ["SelfReference"]),
        ("metadata.labels.k", "metadata.resourceVersion", ["SelfReference"]),
        ("metadata.labels.k", "metadata.uid", ["Copied"]),
        ("data.k", "metadata.name", ["Copied"]),
    ],
)
def test_what_every_write_changes_is_not_copied_into_the_object_itself(
    world: World, to: str, path: str, reasons: list[str]
) -> None:
    target = world.target({f"replace-{to}": f"configmap:t:{path}"})

    world.look(target)
    world.look(target)

    assert world.reasons() == reasons
    assert len(world.patches) == reasons.count("Copied")


def test_a_denied_destination_is_never_written(world: World) -> None:
    target = world.target({"replace-status": "json:{}", "replace-metadata.finalizers": "json:[]"})

    world.look(target)

    assert not world.patches
    assert world.reasons() == ["DeniedDestination"]


def test_guarded_kinds_are_left_alone_unless_named_in_full() -> None:
    world = World()
    target = world.target({"replace-rules": "json:[]"}, gvr=CLUSTER_ROLES, namespace="")
    world.look(target)
    assert not world.patches

    named = replace(world.copier, guard=Guard(world.mapper_of, ("not.v1.served", "clusterrole")))
    named.reconcile(Request(target))

    assert len(world.patches) == 1


def test_the_lease_of_the_copier_itself_is_left_alone(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    older = ObjectRef(GVR("", "v1beta1", "configmaps"), "a", "t")
    careful = replace(world.copier, guard=Guard(world.mapper_of, (), older))

    careful.reconcile(Request(target))

    assert not world.patches
    assert not world.events


# --- borders ---------------------------------------------------------------------------------------------------------


def test_another_namespace_needs_consent_which_may_come_and_go(world: World) -> None:
    target = world.target({"replace-data.k": "configmap:b/s:data.k"})
    world.source(namespace="b", k="1")
    world.look(target)
    assert world.reasons() == ["ConsentMissing"]

    world.source(namespace="b", allow="a/ConfigMap/t", k="1")
    world.look(target)
    assert world.objects[target]["data"] == {"k": "1"}

    world.source(namespace="b", allow="c", k="2")
    world.look(target)
    assert world.objects[target]["data"] == {"k": "1"}
    assert world.reasons() == ["ConsentMissing", "Copied", "ConsentMissing"]


def test_without_consent_nothing_tells_whether_the_source_exists() -> None:
    told = []
    for prepare in (
        lambda world: None,
        lambda world: world.source(namespace="b", k="1"),
        lambda world: world.source(namespace="b", other="1"),
    ):
        world = World()
        prepare(world)
        world.look(world.target({"replace-data.k": "configmap:b/s:data.k"}))
        told.append(world.events)

    assert told[0] == told[1] == told[2]


def test_allow_asks_for_no_consent_and_deny_takes_none() -> None:
    for mode, expected in ((CrossNamespace.ALLOW, "Copied"), (CrossNamespace.DENY, "BorderClosed")):
        world = World(cross_namespace=mode)
        world.source(namespace="b", allow="a", k="1")
        world.look(world.target({"replace-data.k": "configmap:b/s:data.k"}))
        assert world.reasons() == [expected]


def test_secrets_that_give_access_stay_even_with_consent(world: World) -> None:
    annotations = {f"{PREFIX}allow-copy-to": "*"}
    token = "kubernetes.io/service-account-token"
    world.put(SECRETS, "b", "s", metadata={"annotations": annotations}, type=token, data={"token": "eA=="})

    world.look(world.target({"replace-data.k": "secret:b/s:data.token"}))

    assert world.reasons() == ["SourceRefused"]
    assert not world.patches


def test_sources_outside_the_namespaces_watched_are_refused() -> None:
    world = World(namespaces=frozenset({"a"}), cross_namespace=CrossNamespace.ALLOW)

    world.look(world.target({"replace-data.k": "configmap:b/s:data.k"}))

    assert world.reasons() == ["OutOfScope"]


@pytest.mark.parametrize("allowed", [("configmap",), ("widget", "configmap"), ("unknown", "ambiguous", "configmap")])
def test_a_kind_that_is_in_the_list_of_sources_may_be_read(allowed: tuple[str, ...]) -> None:
    world = World(sources=allowed)
    world.source(k="1")

    world.look(world.target({"replace-data.k": "configmap:s:data.k"}))

    assert world.reasons() == ["Copied"]


@pytest.mark.parametrize("allowed", [("secret",), ("unknown",), ("ambiguous",)])
def test_a_kind_that_is_not_in_the_list_of_sources_is_refused_and_constants_are_not(allowed: tuple[str, ...]) -> None:
    world = World(sources=allowed)
    world.source(k="1")

    target = world.target({"replace-data.k": "configmap:s:data.k", "replace-data.c": 'json:"v"'})
    world.look(target)

    assert sorted(world.reasons()) == ["Copied", "KindNotAllowed"]
    assert world.objects[target]["data"] == {"c": "v"}


def test_what_a_listed_kind_means_is_followed_as_what_the_rules_kind_means() -> None:
    world = World(sources=("widget",))

    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.look(target)

    assert sorted(world.names[target]) == [("", "configmap"), ("", "widget")]


def test_strictly_a_secrets_value_needs_consent_to_become_another_kind_in_its_namespace() -> None:
    world = World(strict=True)
    world.put(SECRETS, "a", "s", data={"k": "MQ=="})
    target = world.target({"replace-data.k": "secret:s:data.k"})

    world.look(target)

    assert world.reasons() == ["ConsentMissing"]
    annotations = {f"{PREFIX}allow-copy-to": "a/ConfigMap/t"}
    world.put(SECRETS, "a", "s", data={"k": "MQ=="}, metadata={"annotations": annotations})
    world.look(target)
    assert world.objects[target]["data"] == {"k": "MQ=="}


def test_strictly_secrets_among_themselves_and_other_kinds_need_no_consent_in_their_namespace() -> None:
    world = World(strict=True)
    world.put(SECRETS, "a", "s", data={"k": "MQ=="})
    world.source("c", k="1")

    secret = world.target({"replace-data.k": "secret:s:data.k"}, gvr=SECRETS)
    configmap = world.target({"replace-data.k": "configmap:c:data.k"})
    world.look(secret)
    world.look(configmap)

    assert world.reasons() == ["Copied", "Copied"]


def told_of(world: World, caplog: pytest.LogCaptureFixture, rules: Mapping[str, str]) -> list[object]:
    """Return all that is said and done about a target, in two looks with some time between."""
    target = world.put(
        CONFIGMAPS, "a", "t", metadata={"annotations": {PREFIX + key: text for key, text in rules.items()}}
    )
    caplog.clear()
    with caplog.at_level("DEBUG"):
        first = world.look(target)
        world.clock.advance(60)
        second = world.look(target)
    lines = [(record.msg, getattr(record, "fields", None)) for record in caplog.records]
    metrics = world.copier.memories.of(target, world.objects[target]["metadata"]["uid"]).reported
    return [first, second, world.events, world.patches, lines, metrics]


@pytest.mark.parametrize(
    "there",
    [
        {"data": {"token": "MQ=="}},
        {"data": {}},
        {"data": {"token": "MQ=="}, "type": "kubernetes.io/service-account-token"},
        {"data": {"token": "MQ=="}, "type": "helm.sh/release.v1"},
        {"data": {"token": "MQ=="}, "allow": "b"},
        {"data": {"token": "MQ=="}, "allow": "a|b"},
        {"data": {"token": "MQ=="}, "incomplete": True},
        {"data": None, "rules": {"replace-data.x": "configmap:a/t:data.k"}},
    ],
)
@pytest.mark.parametrize("fate", [Fate.RETAIN, Fate.REMOVE])
def test_without_consent_nothing_tells_whether_the_source_exists_and_what_it_is(
    there: dict[str, Any], fate: Fate, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {"replace-data.k": "secret:b/s:data.token", "replace-data.l": "secret:b/s:data.token.[0]"}
    without = told_of(World(on_source_missing=fate), caplog, rules)
    world = World(on_source_missing=fate)
    annotations = {PREFIX + key: text for key, text in there.get("rules", {}).items()}
    if "allow" in there:
        annotations[f"{PREFIX}allow-copy-to"] = there["allow"]
    source = world.put(
        SECRETS,
        "b",
        "s",
        metadata={"annotations": annotations},
        data=there["data"],
        type=there.get("type", "Opaque"),
    )
    if there.get("incomplete"):
        world.incomplete.add(source)
    world.version = 0  # so that the target is the same in both worlds

    with_it = told_of(world, caplog, rules)

    assert with_it == without
    assert "ConsentMissing" in str(without)


def test_looks_are_not_counted_while_consent_is_missing_as_a_source_that_is_there_calls_for_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    monkeypatch.setattr(world.meter, "in_sync", looks.append)
    source = world.source(namespace="b", k="1")
    target = world.target({"replace-data.k": "configmap:b/s:data.k"})

    world.look(target)
    world.look(target)
    assert looks == []

    world.touch(source, metadata={"annotations": {f"{PREFIX}allow-copy-to": "a"}})
    world.look(target)
    world.look(target)
    assert looks == [""]


# --- several clusters ------------------------------------------------------------------------------------------------

SEVERAL = {"here": "", "hub": "hub"}


def test_a_source_of_another_cluster_is_copied_with_its_consent() -> None:
    world = World(clusters=SEVERAL)
    annotations = {f"{PREFIX}allow-copy-to": "here/a/ConfigMap/t"}
    world.put(CONFIGMAPS, "cloud", "s", cluster="hub", data={"k": "1"}, metadata={"annotations": annotations})

    target = world.target({"replace-data.k": "configmap:hub/cloud/s:data.k"})
    world.look(target)

    assert world.objects[target]["data"] == {"k": "1"}
    assert world.dependencies[target] == [ObjectRef(CONFIGMAPS, "cloud", "s", "hub")]
    assert world.names[target] == [("hub", "configmap")]
    assert world.events[0][2].endswith("from configmaps.v1 hub/cloud/s (resourceVersion 1)")


def test_consent_that_is_missing_across_clusters_is_asked_for_by_the_clusters_name() -> None:
    world = World(clusters=SEVERAL)
    world.put(CONFIGMAPS, "a", "s", cluster="hub", data={"k": "1"}, metadata={"annotations": {}})

    world.look(world.target({"replace-data.k": "configmap:hub/a/s:data.k"}))

    assert world.reasons() == ["ConsentMissing"]
    assert world.events[0][2] == (
        "rule replace-data.k: reading configmaps hub/a/s for ConfigMap a/t needs the source owner's consent: "
        'add "here/a/ConfigMap/t" to its annotation k8s-copier.fig.org/allow-copy-to'
    )


def test_the_own_cluster_may_be_named() -> None:
    world = World(clusters=SEVERAL)
    world.source(k="1")

    target = world.target({"replace-data.k": "configmap:here/a/s:data.k"})
    world.look(target)

    assert world.objects[target]["data"] == {"k": "1"}


def test_a_cluster_scoped_source_of_another_cluster_has_an_empty_namespace() -> None:
    world = World(clusters=SEVERAL, cross_namespace=CrossNamespace.ALLOW)
    world.put(WIDGETS, "", "w", cluster="hub", spec={"k": "1"})

    target = world.target({"replace-data.k": "widget:hub//w:spec.k", "replace-data.l": "configmap:hub//s:data.k"})
    world.look(target)

    assert world.objects[target]["data"] == {"k": "1"}
    assert sorted(world.reasons()) == ["Copied", "MalformedRule"]


def test_a_cluster_that_is_not_known_is_told_with_those_that_are() -> None:
    world = World(clusters=SEVERAL)

    world.look(world.target({"replace-data.k": "configmap:huh/a/s:data.k"}))

    assert world.events == [
        ("Warning", "UnknownCluster", "rule replace-data.k: no cluster is called huh; known are here, hub")
    ]


def test_a_cluster_cannot_be_named_where_there_is_one_only(world: World) -> None:
    world.look(world.target({"replace-data.k": "configmap:hub/a/s:data.k"}))

    assert world.reasons() == ["MalformedRule"]


def test_another_cluster_is_a_border_that_may_be_closed() -> None:
    world = World(clusters=SEVERAL, cross_namespace=CrossNamespace.DENY)
    annotations = {f"{PREFIX}allow-copy-to": "*/*/*/*"}
    world.put(CONFIGMAPS, "a", "s", cluster="hub", data={"k": "1"}, metadata={"annotations": annotations})

    world.look(world.target({"replace-data.k": "configmap:hub/a/s:data.k"}))

    assert world.reasons() == ["BorderClosed"]
    assert "hub/a/s is in another cluster" in world.events[0][2]


# --- first sync ------------------------------------------------------------------------------------------------------


def test_a_new_target_waits_for_the_first_list_of_its_sources(world: World) -> None:
    target = world.target({"replace-data.k": "widget:s:spec.k", "replace-data.c": 'json:"v"'})
    world.unsynced = {WIDGETS: None}
    copier = replace(world.copier, policy=Policy(cross_namespace=CrossNamespace.ALLOW))

    result = copier.reconcile(Request(target))

    assert result.requeue_after == pytest.approx(10)
    assert not world.patches
    assert not world.events

    world.clock.advance(10)
    copier.reconcile(Request(target))

    assert world.objects[target]["data"] == {"c": "v"}
    assert sorted(world.reasons()) == ["Copied", "SourceUnavailable"]


def test_a_kind_that_may_not_be_read_is_reported_at_once(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "secret:s:data.k", "replace-data.c": 'json:"v"'})
    world.unsynced = {SECRETS: ForbiddenError("no", reason="Forbidden", verb="list", ref=SECRETS)}

    world.look(target)

    assert world.objects[target]["data"] == {"c": "v"}
    (note,) = [note for _, reason, note in world.events if reason == "SourceUnavailable"]
    assert "secrets.v1 in namespace a cannot be read: 403 Forbidden" in note


def test_a_source_known_by_its_metadata_alone_is_looked_at_again_soon(world: World) -> None:
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.incomplete = {world.source(k="1")}

    waits = [world.look(target).requeue_after for _ in range(5)]
    assert waits == [5, 10, 20, 30, 30]
    assert world.reasons() == ["SourceUnavailable"]

    world.incomplete = set()
    assert world.look(target) == Result()
    assert world.objects[target]["data"] == {"k": "1"}


def test_without_consent_an_incomplete_source_looks_like_an_absent_one() -> None:
    told = []
    for is_there in (True, False):
        world = World()
        if is_there:
            world.incomplete = {world.source(namespace="b", k="1")}
        world.look(world.target({"replace-data.k": "configmap:b/s:data.k"}))
        told.append(world.events)

    assert told[0] == told[1]


def test_with_consent_an_incomplete_source_is_not_said_to_lack_it(world: World) -> None:
    world.incomplete = {world.source(namespace="b", allow="a", k="1")}

    world.look(world.target({"replace-data.k": "configmap:b/s:data.k"}))

    assert world.reasons() == ["SourceUnavailable"]


def test_what_cannot_be_read_for_many_targets_is_logged_once_until_it_is_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("t1", "t2", "t3")
    rules = {f"{PREFIX}replace-data.k": "secret:s:data.k"}
    targets = [world.put(CONFIGMAPS, "a", name, metadata={"annotations": rules}) for name in names]

    def look() -> list[str]:
        caplog.clear()
        for target in targets:
            world.look(target)
        return [record.message for record in caplog.records]

    with caplog.at_level("INFO"):
        world.unsynced = {SECRETS: ForbiddenError("no", reason="Forbidden", verb="list", ref=SECRETS)}
        assert look() == ["kind not readable"]
        assert look() == []

        world.unsynced = {}
        world.put(SECRETS, "a", "s", data={"k": "eA=="})
        assert "kind not readable" not in look()

        world.unsynced = {SECRETS: ForbiddenError("no", reason="Forbidden", verb="list", ref=SECRETS)}
        assert look() == ["kind not readable"]
    assert world.reasons().count("SourceUnavailable") == 2 * len(names)


def test_what_was_wrong_for_a_target_that_is_gone_is_forgotten(world: World) -> None:
    target = world.target({"replace-data.k": "secret:s:data.k"})
    world.unsynced = {SECRETS: ForbiddenError("no", reason="Forbidden", verb="list", ref=SECRETS)}
    world.look(target)
    assert len(world.copier.conditions) == 1

    del world.objects[target]
    world.unsynced = {}
    world.look(target)

    assert len(world.copier.conditions) == 0


def test_a_fault_of_ours_is_told_by_type_and_place_without_its_text(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers = [lambda after: cast("None", after["SENTINEL"])]

    with pytest.raises(UnexpectedError, match=r"^KeyError at .*:\d+ in ") as caught:
        world.look(target)

    assert "SENTINEL" not in "".join(traceback.format_exception(caught.value))


def test_a_kind_that_discovery_lost_is_called_as_the_object_says(world: World) -> None:
    target = world.target({"replace-data.k": "configmap:b/s:data.k"})
    world.mapper.is_lost = True

    world.look(target)

    assert 'add "a/ConfigMap/t"' in world.events[0][2]


def test_a_target_that_cannot_be_patched_is_refused(world: World) -> None:
    gvr = GVR("", "v1", "reviews")
    target = world.target({"replace-spec.k": "json:1"}, gvr=gvr)

    world.look(target)

    assert world.reasons() == ["UnsupportedKind"]


@pytest.mark.parametrize("depth", [500, 900])
def test_a_target_nested_too_deep_is_reported(world: World, depth: int) -> None:
    target = world.target({"replace-spec.k": "json:1"}, gvr=WIDGETS, namespace="")
    world.nested = {target: depth}

    world.look(target)

    assert world.reasons() == ["TypeMismatch"]


def test_a_target_that_is_nobodys_any_more_is_forgotten(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.look(target)
    world.is_followed = False

    world.look(target)

    assert len(world.copier.memories) == 0


def test_only_objects_with_rules_are_kept_whole_and_looked_at(world: World) -> None:
    rules, plain = world.find(world.target({"replace-data.k": 'json:"v"'})), world.find(world.source(allow="a", k="1"))
    assert rules is not None
    assert plain is not None

    assert keep_rules(rules) is rules.body
    assert keep_rules(plain) is None
    assert concerns_rules(rules, plain)
    assert concerns_rules(None, rules)
    assert not concerns_rules(plain, None)


def test_a_target_that_is_not_synced_parks_its_request(world: World) -> None:
    target = world.target({"replace-data.c": 'json:"v"'})
    world.unsynced = {CONFIGMAPS: None}

    with pytest.raises(NotSyncedError):
        world.look(target)


# --- what the server answers -----------------------------------------------------------------------------------------


def test_a_conflict_is_left_to_the_framework_and_not_reported(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers = [refused(409)]

    with pytest.raises(ConflictError):
        world.look(target)
    world.look(target)

    assert world.reasons() == ["Copied"]


def test_a_target_that_is_another_object_by_now_is_a_conflict(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers = [refused(422, Cause("FieldValueInvalid", "metadata.uid", "field is immutable"))]

    with pytest.raises(ConflictError):
        world.look(target)


def test_a_target_that_is_gone_is_forgotten_and_never_made(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers = [NotFoundError("gone", status=404)]

    assert world.look(target) == Result()
    assert not world.events
    assert len(world.copier.memories) == 0


@pytest.mark.parametrize(
    "error",
    [
        *(ServerError("boom", status=status) for status in (500, 502, 503, 504)),
        *(APIError("no", status=status) for status in (401, 405, 429)),
        TransportError("cut"),
    ],
)
def test_an_unknown_outcome_is_left_to_the_framework(world: World, error: InformersError) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers = [error]

    with pytest.raises(type(error)):
        world.look(target)
    assert not world.events


@pytest.mark.parametrize("status", [401, 405, 409, 410, 429, 500, 503])
@pytest.mark.parametrize("is_read", [False, True])
def test_what_is_left_to_the_framework_holds_nothing_that_the_server_said(status: int, is_read: bool) -> None:
    world = World(on_rule_removed=Fate.REMOVE)
    target = world.target({"replace-data.k": 'json:"v"'})
    kind = {409: ConflictError, 500: ServerError, 503: ServerError}.get(status, APIError)
    error = kind("cannot do with hunter2", status=status, ref=target, verb="patch")
    if is_read:
        world.look(target)
        world.drop_rules(target)
        world.read_errors = [error]
    else:
        world.answers = [error]

    with pytest.raises(kind) as raised:
        world.look(target)

    told = "".join(traceback.format_exception(raised.value))
    assert f"{status}" in told
    assert str(target) in told
    assert "hunter2" not in told


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_given_the_time_it_asks_for(world: World, status: int) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers = [APIError("busy", status=status, retry_after=7.0)]

    assert world.look(target).requeue_after == 7.0

    world.clock.advance(4.0)
    world.touch(target, metadata={"labels": {"woken": "by-this"}})
    assert world.look(target).requeue_after == pytest.approx(3.0)
    assert len(world.patches) == 1
    world.clock.advance(3.0)
    world.look(target)
    assert world.reasons() == ["Copied"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 503])
def test_a_denial_is_one_whatever_its_status_says(world: World, status: int) -> None:
    kind = {404: NotFoundError, 409: ConflictError}.get(status, APIError)
    denial = kind('admission webhook "deny.example.com" denied: hunter2', status=status, retry_after=5.0)
    target = world.target({"replace-data.bad": 'json:"v"', "replace-data.good": 'json:"w"'})
    world.answers = [denial, denial]

    assert world.look(target).requeue_after == 300.0

    assert world.objects[target]["data"] == {"good": "w"}
    assert world.events[0] == ("Warning", "AdmissionDenied", "rule replace-data.bad: denied by deny.example.com")


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (
            refused(422, Cause("FieldValueInvalid", "spec.x", 'Invalid value: "hunter2"')),
            "Invalid",
            "spec.x: FieldValueInvalid",
        ),
        (
            refused(422, Cause("FieldValueTypeInvalid", "immutable", "ConfigMap.immutable of type bool")),
            "Invalid",
            "immutable: FieldValueTypeInvalid",
        ),
        (
            refused(422, Cause("FieldValueForbidden", "data", "field is immutable")),
            "Immutable",
            "data: FieldValueForbidden",
        ),
        (refused(400, message="hunter2"), "Invalid", "400"),
        (refused(413), "TooLarge", "413"),
        (refused(415), "Invalid", "415"),
        (
            refused(403, message='admission webhook "deny.example.com" denied: hunter2'),
            "AdmissionDenied",
            "deny.example.com",
        ),
    ],
)
def test_refused_content_is_said_once_and_never_sent_again(
    world: World, error: APIError, reason: str, text: str
) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.answers = [error]

    world.look(target)
    world.look(target)
    world.objects[target]["status"] = {"phase": "busy"}
    world.objects[target]["metadata"] |= {"resourceVersion": "77", "generation": 9}
    world.look(target)

    assert len(world.patches) == 1
    ((_, said, note),) = world.events
    assert said == reason
    assert text in note
    assert "hunter2" not in note


def test_what_is_remembered_of_a_refusal_holds_on_to_nothing_that_was_worked_on(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k", "replace-data.l": "configmap:s:data.k"})
    world.answers = [refused(422, message="SENTINEL"), refused(422)]

    world.look(target)

    (uid,) = (world.objects[target]["metadata"]["uid"],)
    stalls = world.copier.memories.of(target, uid).stalls.values()
    assert stalls
    held = [(each.error.__traceback__, each.error.__cause__, each.error.__context__) for each in stalls]
    assert held == [(None, None, None)] * 2


def test_a_stalled_rule_is_tried_again_when_source_rule_or_target_change(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.answers = [refused(422), refused(422), refused(422)]
    world.look(target)

    world.source(k="2")
    world.look(target)
    world.look(target)
    assert len(world.patches) == 2

    world.objects[target]["data"] = {"other": "x"}
    world.look(target)
    world.look(target)
    assert len(world.patches) == 3

    annotations = world.objects[target]["metadata"]["annotations"]
    annotations[f"{PREFIX}replace-data.k"] = "configmap:a/s:data.k"
    world.look(target)
    assert len(world.patches) == 4
    assert world.reasons() == ["Invalid", "Copied"]


def test_a_stalled_rule_is_tried_again_when_a_label_of_the_target_changes(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers = [refused(422)]
    world.look(target)

    world.touch(target, metadata={"labels": {"other": "x"}})
    world.look(target)

    assert world.reasons() == ["Invalid", "Copied"]


def test_a_refused_rule_holds_no_good_one_back_and_is_not_sent_again(world: World) -> None:
    be_picky(world, {"bad"})
    world.source(k="1")
    rules = {"replace-data.bad": "configmap:s:data.k", "replace-data.good": 'json:"v"', "replace-data.more": 'json:"w"'}
    target = world.target(rules)

    world.look(target)
    world.look(target)

    assert world.objects[target]["data"] == {"good": "v", "more": "w"}
    assert len(world.patches) == 2
    assert world.reasons() == ["Invalid", "Copied"]


@settings(deadline=None)  # the machine may be busy
@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef"), min_size=1))
def test_exactly_the_groups_with_something_bad_stall_and_no_group_is_parted(bad: set[str], wanted: set[str]) -> None:
    world = World()
    be_picky(world, bad)
    world.source("pair", a="1", b="1")
    # a and b come from one source; each of the others is a constant of its own.
    rules = {f"replace-data.{key}": f"configmap:pair:data.{key}" for key in wanted & set("ab")}
    rules |= {f"replace-data.{key}": 'json:"1"' for key in wanted - set("ab")}
    target = world.target(rules)

    world.look(target)

    stalled = wanted & bad
    if wanted & set("ab") & bad:
        stalled |= wanted & set("ab")
    assert set(world.objects[target].get("data", {})) == wanted - stalled
    sent = len(world.patches)
    world.look(target)
    assert len(world.patches) == sent


def test_an_admission_denial_is_tried_again_later_and_later(world: World) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    denied = refused(403, message='admission webhook "w" denied the request')
    world.answers = [denied, denied]

    assert world.look(target).requeue_after == pytest.approx(300)
    world.clock.advance(300)
    assert world.look(target).requeue_after == pytest.approx(600)
    assert world.look(target).requeue_after == pytest.approx(600)
    assert len(world.patches) == 2


def test_a_missing_right_is_named_and_tried_again_slowly(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.answers = [refused(403), refused(403)]

    assert world.look(target).requeue_after == pytest.approx(60)
    world.source(k="2")
    world.look(target)
    assert len(world.patches) == 1
    assert "RBAC must allow: patch configmaps in namespace a" in world.events[0][2]

    world.clock.advance(60)
    assert world.look(target).requeue_after == pytest.approx(120)
    world.clock.advance(120)
    world.look(target)
    assert world.objects[target]["data"] == {"k": "2"}
    assert world.reasons() == ["Forbidden", "Copied"]


def test_a_right_that_is_taken_away_again_is_waited_for_as_at_first(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k"})
    world.answers = [refused(403), refused(403)]
    assert world.look(target).requeue_after == pytest.approx(60)
    world.clock.advance(60)
    assert world.look(target).requeue_after == pytest.approx(120)
    world.clock.advance(120)
    world.look(target)
    assert world.objects[target]["data"] == {"k": "1"}

    world.source(k="2")
    world.answers = [refused(403)]

    assert world.look(target).requeue_after == pytest.approx(60)


def test_while_a_right_is_missing_what_is_in_sync_is_not_said_to_lack_it(world: World) -> None:
    target = world.target({"merge-data": 'json:{"a": "1"}', "replace-data.k": 'json:"v"'}, data={"a": "1", "b": "2"})
    world.answers = [refused(403)]
    world.look(target)
    world.look(target)
    assert [note for _, reason, note in world.events if reason == "Forbidden" and "merge-data" in note] == []
    assert len(world.patches) == 1


def test_a_right_that_goes_while_rules_are_sent_apart_is_asked_for_again(world: World) -> None:
    target = world.target({"replace-data.a": 'json:"1"', "replace-data.b": 'json:"2"'})
    world.answers = [refused(422), refused(403)]
    assert world.look(target).requeue_after == pytest.approx(60)

    world.clock.advance(600)
    world.look(target)

    assert world.objects[target]["data"] == {"a": "1", "b": "2"}


def test_a_missing_right_is_logged_once_for_all_objects_of_a_kind_in_a_namespace(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {f"{PREFIX}replace-data.k": 'json:"v"'}
    targets = [world.put(CONFIGMAPS, place, name, metadata={"annotations": rules}) for place in "ab" for name in "xyz"]
    world.answers = [refused(403) for _ in targets]

    with caplog.at_level("INFO"):
        for target in targets:
            world.look(target)

    assert [record.message for record in caplog.records] == ["not allowed to write"] * 2
    assert world.reasons() == ["Forbidden"] * len(targets)


def test_a_value_the_server_writes_in_its_own_way_is_in_sync(world: World) -> None:
    target = world.target({"replace-spec.mem": 'json:"2048Mi"'}, gvr=WIDGETS, namespace="", spec={"mem": "1Gi"})
    world.answers = [lambda after: after["spec"].update(mem="2Gi")]
    world.look(target)

    for generation in range(20):
        world.objects[target]["metadata"]["generation"] = generation
        world.look(target)
    assert len(world.patches) == 1

    world.objects[target]["spec"]["mem"] = "drifted"
    world.look(target)
    assert len(world.patches) == 2


def test_a_value_the_server_does_not_keep_is_reported_and_not_sent_again(world: World) -> None:
    target = world.target({"replace-spec.unknown": 'json:"v"'}, gvr=WIDGETS, namespace="", spec={})
    world.answers = [lambda after: after["spec"].pop("unknown")]

    world.look(target)
    world.look(target)

    assert len(world.patches) == 1
    assert world.reasons() == ["NotPersisted"]


def test_a_null_to_be_stored_goes_by_json_patch(world: World) -> None:
    target = world.target({"replace-spec.k": "json:null"}, gvr=WIDGETS, namespace="", spec={})

    world.look(target)
    world.look(target)

    assert world.kinds == ["json"]
    assert world.objects[target]["spec"] == {"k": None}


def test_a_failed_test_of_a_json_patch_counts_as_a_conflict_until_the_third_time(world: World) -> None:
    target = world.target({"replace-spec.k": "json:null"}, gvr=WIDGETS, namespace="", spec={})
    world.answers = [refused(422), refused(422), refused(422)]

    for _ in range(2):
        with pytest.raises(ConflictError):
            world.look(target)
    world.look(target)

    assert world.reasons() == ["Invalid"]


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_raw_base64_is_copied_with_a_warning_said_once(world: World) -> None:
    world.put(SECRETS, "a", "s", data={"k": "aHVudGVyMg=="})
    target = world.target({"replace-data.k": "secret:s:data.k"})

    world.look(target)
    world.look(target)

    assert world.objects[target]["data"] == {"k": "aHVudGVyMg=="}
    assert sorted(world.reasons()) == ["Base64Value", "Copied"]
    (note,) = [note for _, reason, note in world.events if reason == "Base64Value"]
    assert "decode: base64 in a rules entry decodes it" in note


def test_what_goes_to_a_secret_as_it_is_is_told_how_to_encode_it(world: World) -> None:
    world.source(k="aHVu")
    target = world.target({"replace-data.k": "configmap:s:data.k"}, gvr=SECRETS)

    world.look(target)

    (note,) = [note for _, reason, note in world.events if reason == "Base64Value"]
    assert "encode: base64 in a rules entry encodes it" in note


@pytest.mark.parametrize(
    "rule",
    [
        "{to: data.k, from: {resource: secret, name: s, path: data.k}, decode: base64}",
        "{to: data.k, from: {resource: secret, name: s, path: 'data.k | @'}}",
    ],
)
def test_who_says_what_becomes_of_base64_is_not_warned(world: World, rule: str) -> None:
    world.put(SECRETS, "a", "s", data={"k": "aHVudGVyMg=="})
    target = world.target({"rules": f"- {rule}"})

    world.look(target)

    assert world.objects[target]["data"]["k"] in {"hunter2", "aHVudGVyMg=="}
    assert world.reasons() == ["Copied"]


def test_raw_base64_that_was_there_already_is_not_told_of(world: World) -> None:
    world.put(SECRETS, "a", "s", data={"k": "aHVudGVyMg=="})
    target = world.target({"replace-data.k": "secret:s:data.k"}, data={"k": "aHVudGVyMg=="})

    world.look(target)

    assert world.patches == []
    assert world.reasons() == []


def test_raw_base64_that_could_not_be_written_is_not_told_of(world: World) -> None:
    world.put(SECRETS, "a", "s", data={"k": "aHVudGVyMg=="})
    target = world.target({"replace-data.k": "secret:s:data.k"})
    world.answers = [refused(422)]

    world.look(target)

    assert world.reasons() == ["Invalid"]


@pytest.mark.parametrize("rule", ["secret:s:data.k", "secret:s:data", "configmap:s:data.k"])
def test_between_kinds_that_speak_base64_and_for_whole_maps_there_is_no_warning(world: World, rule: str) -> None:
    world.put(SECRETS, "a", "s", data={"k": "aHVudGVyMg=="})
    world.source(k="plain")
    gvr = FEDERATED_SECRETS if rule.endswith(".k") and rule.startswith("secret") else CONFIGMAPS
    path = "data" if rule.endswith("data") else "data.k"

    world.look(world.target({f"replace-{path}": rule}, gvr=gvr))

    assert world.reasons() == ["Copied"]


def test_no_event_and_no_line_holds_a_value(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="controllers")
    mark = "U0VOVElORUwtVkFMVUU="
    world.put(SECRETS, "a", "s", data={"k": mark})
    rules = {
        "replace-data.k": "secret:s:data.k",
        "replace-binaryData.k": "secret:s:data",
        "replace-metadata.labels": f'json:{{"x":["{mark}"]}}',
        "replace-data.x": mark,
        "replace-data.y": f"json:{mark}",
    }

    world.look(world.target(rules))

    assert mark not in repr(world.events)
    assert mark not in repr([vars(record) for record in caplog.records])


def test_labels_copied_as_a_whole_leave_out_deployment_tools_keys(world: World) -> None:
    world.put(CONFIGMAPS, "a", "s", metadata={"labels": {"x": "1", "app.kubernetes.io/instance": "other"}})
    rules = {"replace-metadata.labels": "configmap:s:metadata.labels"}
    target = world.target(rules, labels={"y": "2", "app.kubernetes.io/instance": "mine"})

    world.look(target)
    world.look(target)

    assert world.objects[target]["metadata"]["labels"] == {"x": "1", "app.kubernetes.io/instance": "mine"}
    assert len(world.patches) == 1
