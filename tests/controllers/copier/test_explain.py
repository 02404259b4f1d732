"""explain decides as the controller does, from what its caller may read, and gives away no more than an Event would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from controllers import copier
from controllers.__main__ import parse_arguments, run
from controllers.copier.explain import CachedFind, check_reachable, explain
from controllers.copier.offline import built_in_kinds
from controllers.copier.rules import PREFIX
from informers import (
    GVR,
    Client,
    ConfigError,
    ConnectError,
    ForbiddenError,
    InformersError,
    Manager,
    NotFoundError,
    NotSyncedError,
    Object,
    ObjectRef,
    Resource,
)

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")


class World:
    """A cluster of built-in kinds, asked with GET only."""

    def __init__(self) -> None:
        self.objects: dict[ObjectRef, dict[str, Any]] = {}
        self.refused: dict[GVR, InformersError] = {}
        self.asked: list[ObjectRef] = []
        self.kinds = built_in_kinds()
        self.unreachable: dict[str, InformersError] = {}
        self.names: dict[str, str] = {}

    def put(self, gvr: GVR, key: str, **content: Any) -> ObjectRef:
        namespace, _, name = key.rpartition("/")
        ref = ObjectRef(gvr, namespace, name)
        kind = self.kinds.resource(gvr).kind
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": "u",
            "resourceVersion": "1",
            **content.pop("metadata", {}),
        }
        self.objects[ref] = {"apiVersion": gvr.group_version, "kind": kind, "metadata": metadata, **content}
        return ref

    # The manager.

    @property
    def client(self) -> Client:
        return cast("Client", self)

    def get(self, ref: ObjectRef) -> Object:
        self.asked.append(ref)
        if ref.gvr in self.refused:
            raise self.refused[ref.gvr]
        if ref not in self.objects:
            raise NotFoundError("none", ref=ref)
        return Object.parse(json.dumps(self.objects[ref]).encode(), ref.gvr)

    def mapper(self, cluster: str) -> Any:
        if cluster in self.unreachable:
            return Unreachable(self.unreachable[cluster])
        return self.kinds

    def clusters(self) -> list[str]:
        return list(self.names.values()) or [""]

    def lease(self) -> None:
        return None

    def cluster_names(self) -> dict[str, str]:
        return self.names


class Unreachable:
    """The mapper of a cluster that does not answer."""

    def __init__(self, error: InformersError) -> None:
        self.error = error

    def resources(self) -> list[Resource]:
        raise self.error

    resolve = resource = lambda self, _what: self.resources()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def ask(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Explain these manifests (or, without any, what the words name) and return the JSON report."""

    def asked(*manifests: dict[str, Any], words: tuple[str, ...] = (), status: int | None = None) -> dict[str, Any]:
        file = tmp_path / "file.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        flags = ["-f", str(file)] if manifests else []
        options = parse_arguments(copier, copier.PROGRAM, ["explain", *flags, *words, "-ojson"])
        policy = copier.policy_of(options, world.names)
        found = explain(cast("Manager", world), options, policy)
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert status is None or found == status
        return report

    return asked


def target(rules: dict[str, str], name: str = "t", namespace: str | None = "dev", **content: Any) -> dict[str, Any]:
    kind, version = content.pop("kind", "ConfigMap"), content.pop("apiVersion", "v1")
    annotations = {PREFIX + key: text for key, text in rules.items()}
    metadata = {"name": name, "annotations": annotations} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def the_rule(report: dict[str, Any]) -> dict[str, Any]:
    ((rule,),) = [each["rules"] for each in report["targets"]]
    return cast("dict[str, Any]", rule)


Ask = Callable[..., dict[str, Any]]


def test_a_report_is_the_same_with_and_without_a_source_that_gives_no_consent(world: World, ask: Ask) -> None:
    asked = target({"replace-data.k": "secret:prod/db:data.password"})
    without = ask(asked, status=1)

    world.put(SECRETS, "prod/db", type="kubernetes.io/service-account-token", data={"password": "czNjcjN0"})
    with_ = ask(asked, status=1)
    world.put(SECRETS, "prod/db", metadata={"annotations": {f"{PREFIX}allow-copy-to": "other"}}, data={})
    with_other = ask(asked, status=1)

    assert without == with_ == with_other
    assert the_rule(without)["reason"] == "ConsentMissing"


def test_each_object_is_asked_for_once(world: World, ask: Ask) -> None:
    source = world.put(CONFIGMAPS, "dev/s", data={"a": "1", "b": "2"})
    rules = {"replace-data.a": "configmap:s:data.a", "replace-data.b": "configmap:s:data.b"}

    ask(target(rules), target(rules, name="u"), status=0)

    assert sorted(world.asked) == sorted(
        [source, source.sibling(CONFIGMAPS, name="t"), source.sibling(CONFIGMAPS, name="u")]
    )


def test_rules_are_the_manifests_and_what_is_there_is_the_clusters(world: World, ask: Ask) -> None:
    world.put(CONFIGMAPS, "dev/t", data={"k": "live"})

    found = the_rule(ask(target({"replace-data.k": 'json:"live"'}, data={"k": "in the file"}), status=0))

    assert found["action"] == "none"


def test_an_object_that_is_not_there_is_what_its_manifest_says(ask: Ask) -> None:
    report = ask(target({"replace-data.k": 'json:"v"'}, data={"k": "v"}), status=0)

    assert the_rule(report)["action"] == "none"
    assert "configmaps.v1 dev/t is not in the cluster: taken as its manifest is" in report["notes"]


def test_a_target_that_may_not_be_read_is_what_its_manifest_says(world: World, ask: Ask) -> None:
    world.refused[CONFIGMAPS] = ForbiddenError("no", status=403)

    report = ask(target({"replace-data.k": 'json:"v"'}), status=0)

    assert "configmaps.v1 dev/t cannot be read (ForbiddenError): taken as its manifest is" in report["notes"]


def test_a_source_that_may_not_be_read_is_unavailable(world: World, ask: Ask) -> None:
    world.refused[SECRETS] = ForbiddenError("no", status=403, reason="Forbidden")

    found = the_rule(ask(target({"replace-data.k": "secret:s:data.k"}), status=1))

    assert (found["reason"], found["action"], found["value"]) == ("SourceUnavailable", "wait", None)
    assert "403 Forbidden" in found["message"]


def test_a_namespace_that_is_not_written_is_the_one_flag_or_the_default(ask: Ask) -> None:
    asked = target({"replace-data.k": 'json:"v"'}, namespace=None)

    assert ask(asked)["targets"][0]["namespace"] == "default"
    assert ask(asked, words=("-n=ops",))["targets"][0]["namespace"] == "ops"
    assert ask(asked, words=("-n=ops,dev",))["targets"][0]["namespace"] == "default"


def test_an_object_of_the_cluster_is_explained_as_its_manifest_would_be(world: World, ask: Ask) -> None:
    rules = {"replace-data.k": 'json:"v"'}
    manifest = target(rules)
    world.put(CONFIGMAPS, "dev/t", metadata={"annotations": manifest["metadata"]["annotations"]})

    from_cluster, from_file = ask(words=("cm", "dev/t")), ask(manifest)

    assert from_cluster == from_file


def test_an_object_without_rules_is_told_in_zeros(world: World, ask: Ask) -> None:
    world.put(CONFIGMAPS, "dev/t", data={"k": "v"})

    report = ask(words=("cm", "dev/t"), status=0)

    assert report["summary"]["targets"] == 0
    assert report["notes"] == ["configmaps.v1 dev/t has no rules"]


def test_a_source_that_lets_nobody_copy_for_a_fault_in_its_consent_is_told(world: World, ask: Ask) -> None:
    annotations = {f"{PREFIX}allow-copy-to": "dev, a|b"}
    world.put(CONFIGMAPS, "dev/s", metadata={"annotations": annotations})
    manifest = {**target({}), "metadata": {"name": "s", "namespace": "dev", "annotations": annotations}}

    (written, *_), (there, *_) = ask(manifest)["notes"], ask(words=("cm", "dev/s"))["notes"]

    assert written.startswith("ConfigMap dev/s lets nobody copy, as its allow-copy-to cannot be read: entry 2: want")
    assert there.startswith("configmaps.v1 dev/s lets nobody copy, as its allow-copy-to cannot be read: entry 2: want")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("cm", "dev/gone"), "configmaps.v1 dev/gone is not there"),
        (("widget", "w"), "no such resource 'widget'"),
        (("node", "dev/n"), "nodes.v1 is cluster-scoped: want NAME without a namespace"),
        (("secret", "dev/s"), "secrets.v1 dev/s cannot be read: "),
    ],
)
def test_an_object_that_cannot_be_explained_is_one_cause(
    world: World, ask: Ask, words: tuple[str, ...], cause: str
) -> None:
    world.refused[SECRETS] = ForbiddenError("no", status=403)

    with pytest.raises(ConfigError, match=cause):
        ask(words=words)


def test_kinds_that_are_not_served_wait(ask: Ask) -> None:
    report = ask(
        target({"replace-spec.k": "json:1", "replace-k": "x"}, kind="Widget", apiVersion="example.io/v1"), status=1
    )

    (found,) = report["targets"]
    assert (found["resource"], found["kind"], found["name"]) == (None, "Widget", "t")
    assert {rule["reason"] for rule in found["rules"]} == {"UnknownKind", "MalformedRule"}


def test_kinds_that_give_power_are_targets_only_when_they_are_named_in_full(ask: Ask) -> None:
    role = target({"replace-rules": "json:[]"}, kind="Role", apiVersion="rbac.authorization.k8s.io/v1")

    assert the_rule(ask(role, status=1))["reason"] == "KindNotAllowed"
    assert the_rule(ask(role, words=("-t=roles",), status=1))["reason"] == "KindNotAllowed"
    assert the_rule(ask(role, words=("-t=roles.v1.rbac.authorization.k8s.io",), status=0))["action"] == "write"


def test_targets_of_other_kinds_are_left_out(ask: Ask) -> None:
    report = ask(target({"replace-data.k": 'json:"v"'}), words=("-t=secret",), status=0)

    assert report["targets"] == []
    assert report["notes"] == ["left out, as --target does not name their kinds: 1 object with rules"]


def test_a_target_whose_kind_is_not_served_is_known_by_its_word(ask: Ask) -> None:
    asked = target({"replace-spec.k": "json:1"}, kind="Widget", apiVersion="example.io/v1")

    assert the_rule(ask(asked, words=("-t=widgets.v1.example.io",)))["reason"] == "UnknownKind"
    assert ask(asked, words=("-t=gadget",))["targets"] == []


def test_an_object_that_is_being_deleted_is_told(world: World, ask: Ask) -> None:
    world.put(CONFIGMAPS, "dev/t", metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"})

    assert (
        "configmaps.v1 dev/t is being deleted: nothing will be written"
        in ask(target({"replace-data.k": 'json:"v"'}))["notes"]
    )


def test_the_flags_decide_as_for_the_controller(ask: Ask) -> None:
    asked = target({"replace-data.k": "secret:prod/db:data.password"})

    assert the_rule(ask(asked, words=("--cross-namespace=deny",)))["reason"] == "BorderClosed"
    assert the_rule(ask(asked, words=("-n=dev",)))["reason"] == "OutOfScope"
    assert the_rule(ask(asked, words=("--source=cm",)))["reason"] == "KindNotAllowed"
    assert the_rule(ask(asked, words=("--cross-namespace=allow",)))["reason"] == "SourceMissing"


OURS = {
    "manager": "k8s-copier",
    "operation": "Update",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:data": {"f:k": {}}},
}


@pytest.mark.parametrize(
    ("owners", "action", "paths"),
    [([OURS], "remove", ["data.k"]), ([], "keep", None), ([OURS, {**OURS, "manager": "kubectl"}], "keep", None)],
)
def test_what_goes_with_its_source_goes_only_if_it_is_the_copiers(
    world: World, ask: Ask, owners: list[dict[str, Any]], action: str, paths: list[str] | None
) -> None:
    world.put(CONFIGMAPS, "dev/t", data={"k": "old"}, metadata={"managedFields": owners})

    report = ask(target({"replace-data.k": "configmap:gone:data.k"}), words=("--on-source-missing=remove",), status=1)

    found = the_rule(report)
    assert (found["action"], found["reason"]) == (action, "SourceMissing")
    assert (report["targets"][0]["patch"] or {}).get("paths") == paths
    assert ("stays" in found["message"]) is (action == "keep")


def test_a_default_in_place_of_a_missing_source_is_written_and_told(ask: Ask) -> None:
    rules = "[{to: data.k, from: {resource: cm, name: gone, path: data.k}, onSourceMissing: {default: slow}}]"

    found = the_rule(ask(target({"rules": rules}), status=1))

    assert (found["action"], found["state"], found["value"]) == ("write", "waiting", {"type": "string", "count": None})
    assert found["message"].endswith("the default is taken")


def test_rules_that_feed_each_other_are_refused_on_all_targets_of_the_file(ask: Ask) -> None:
    report = ask(
        target({"replace-data.x": "configmap:two:data.x"}, name="one"),
        target({"replace-data.x": "configmap:one:data.x"}, name="two"),
        target({"replace-data.x": "configmap:one:data.x"}, name="three"),
        status=1,
    )

    reasons = {each["name"]: rule["reason"] for each in report["targets"] for rule in each["rules"]}
    assert reasons == {"one": "Cycle", "two": "Cycle", "three": "SourceMissing"}
    assert "cycles are searched among these rules only" in report["notes"]


def test_a_ring_is_one_of_the_rules_in_the_file_not_of_those_before(world: World, ask: Ask) -> None:
    annotations = {f"{PREFIX}replace-data.x": "configmap:two:data.x"}
    world.put(CONFIGMAPS, "dev/one", metadata={"annotations": annotations}, data={"x": "1"})

    report = ask(
        target({"replace-data.y": 'json:"1"'}, name="one"),
        target({"replace-data.x": "configmap:one:data.x"}, name="two"),
        status=0,
    )

    assert report["summary"]["write"] == 2


def test_a_change_that_is_too_large_to_be_sent_is_told(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controllers.copier.compute.MAX_BODY", 10)

    report = ask(target({"replace-data.k": 'json:"v"'}), status=1)

    assert (the_rule(report)["action"], the_rule(report)["reason"]) == ("stall", "TooLarge")
    assert report["targets"][0]["patch"] is None


# --- notes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "content", "note"),
    [
        ({"replace-data.k": "cm:prod/s:data.k"}, {}, "the k8s-copier of 2019 asked for no consent"),
        ({"replace-spec.k": "json:null"}, {}, "json:null stores a null, and did nothing in 2019"),
        ({"replace-status.k": "json:1"}, {}, "the k8s-copier of 2019 wrote to status"),
        ({"replace-data.k": "secret:s:data.k"}, {}, "decode: base64 in a rules entry decodes it"),
        ({"strategic-merge-spec": "json:{}"}, {}, "what leaves the source later stays in the target"),
        (
            {"replace-spec.a.b": "json:1"},
            {"spec": {}},
            'to: spec.a is made, as a map; one key with dots would be spec["a.b"]',
        ),
        (
            {"replace-spec.a.b": "json:1"},
            {"spec": {"a.b": 0, "a": {"b": 0}}},
            'to: spec.a.b is spec["a.b"], though spec.a.b is there too; quotes say which is meant',
        ),
        (
            {"replace-spec.x": "deployment:d:spec.a.b"},
            {},
            'from: spec.a.b is spec["a.b"], though spec.a.b is there too; quotes say which is meant',
        ),
        (
            {"rules": "[{to: /data/k, value: v}]"},
            {},
            "to: /data/k is one key, not a JSON pointer: keys are joined by dots",
        ),
        (
            {"replace-data.k": "event:e:metadata.name"},
            {},
            "event is events.v1; also of this name, and not meant: events.v1.events",
        ),
    ],
)
def test_what_surprises_is_noted(
    world: World, ask: Ask, rules: dict[str, str], content: dict[str, Any], note: str
) -> None:
    world.put(SECRETS, "dev/s", data={"k": "aGk="})
    world.put(GVR("apps", "v1", "deployments"), "dev/d", spec={"a.b": 1, "a": {"b": 2}})

    notes = the_rule(ask(target(rules, **content)))["notes"]

    assert [each for each in notes if note in each]


@pytest.mark.parametrize(
    ("rules", "content"),
    [
        ({"replace-data.a.b": 'json:"v"'}, {"data": {}}),
        ({"replace-metadata.labels.a": 'json:"v"'}, {}),
        ({"rules": '[{to: \'spec["a"]["b"]\', value: 1}]'}, {"spec": {}}),
        ({"rules": "[{to: spec.k, value: null}]"}, {"spec": {}}),
        ({"replace-data.k": "secret:s:data"}, {"data": {}}),
        ({"replace-data.k": "events.v1:e:metadata.name"}, {}),
    ],
)
def test_what_does_not_surprise_is_not_noted(
    world: World, ask: Ask, rules: dict[str, str], content: dict[str, Any]
) -> None:
    world.put(SECRETS, "dev/s", data={"k": "aGk="})

    assert the_rule(ask(target(rules, **content)))["notes"] == []


def test_ambiguous_kinds_are_noted_with_what_2019_did(world: World, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "controllers.copier.offline._TABLE",
        {
            "v1": "configmaps ConfigMap",
            "a.io/v1": "widgets Widget",
            "b.io/v1": "widgets Widget",
        },
    )
    world.kinds = built_in_kinds()

    found = the_rule(ask(target({"replace-data.k": "widget:w:spec.k"}), status=1))

    assert (found["reason"], found["notes"]) == (
        "AmbiguousKind",
        ["the k8s-copier of 2019 took the first of these kinds"],
    )


# --- clusters ----------------------------------------------------------------------------------------------------


def test_without_any_cluster_that_answers_nothing_is_explained(world: World) -> None:
    world.unreachable[""] = ConnectError("nobody listens")

    with pytest.raises(ConfigError, match="no cluster can be reached: nobody listens"):
        check_reachable(cast("Manager", world))


def test_one_cluster_that_answers_is_enough(world: World) -> None:
    world.names = {"hub": "", "member": "member"}
    world.unreachable["member"] = ConnectError("nobody listens")

    check_reachable(cast("Manager", world))


def test_of_several_clusters_targets_are_in_the_first_that_is_named(world: World, ask: Ask) -> None:
    world.names = {"hub": "", "member": "member"}
    asked = target({"replace-data.k": "configmap:hub/dev/s:data.k"})

    report = ask(asked, words=("--context=member=some-name", "--context=hub"))

    (found,) = report["targets"]
    assert found["cluster"] == "member"
    assert found["rules"][0]["from"]["cluster"] == "hub"
    assert found["rules"][0]["reason"] == "ConsentMissing"
    assert '"member/dev/ConfigMap/t"' in found["rules"][0]["message"]


def test_what_is_read_is_as_caches_have_it(world: World) -> None:
    ref = world.put(CONFIGMAPS, "dev/s", metadata={"managedFields": [{"manager": "x"}]})
    find = CachedFind(world.client)

    found = find(ref)

    assert found is not None
    assert "managedFields" not in found.get("metadata")  # type: ignore[operator] # a map
    assert find(ref.sibling(CONFIGMAPS, name="gone")) is None
    world.refused[SECRETS] = ForbiddenError("no", status=403)
    with pytest.raises(NotSyncedError):
        find(ref.sibling(SECRETS, name="s"))


# --- without a cluster -------------------------------------------------------------------------------------------


def offline(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    options = parse_arguments(copier, copier.PROGRAM, ["explain", "--offline", *words])
    status = copier.run_offline(options)
    assert status is not None
    return status, capsys.readouterr().out


def test_offline_all_is_checked_that_needs_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.yaml"
    rules = {
        "replace-data.a": 'json:"v"',
        "replace-data.b": "secret:s:data.k",
        "replace-data.c": "widget:w:spec.k",
    }
    file.write_text(
        yaml.safe_dump_all([target(rules), target({"replace-x": "json:1"}, kind="Widget", apiVersion="e.io/v1")])
    )

    status, text = offline(capsys, "-f", str(file), "-ojson")

    report = json.loads(text)
    reasons = [rule["reason"] for each in report["targets"] for rule in each["rules"]]
    assert (status, reasons) == (0, ["UnknownKind", None, "SourceUnavailable", "UnknownKind"])
    assert any("no cluster was asked" in note for note in report["notes"])

    file.write_text(yaml.safe_dump(target({**rules, "replace-data.d": "x"})))
    assert offline(capsys, "-f", str(file))[0] == 1


def test_offline_it_is_known_who_has_to_consent_but_not_who_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    rules = {"replace-data.a": "secret:s:data.k", "replace-data.b": "secret:other/s:data.k"}
    file.write_text(yaml.safe_dump(target(rules)))

    _, text = offline(capsys, "-f", str(file), "-ojson")

    assert [rule["consent"] for rule in json.loads(text)["targets"][0]["rules"]] == [
        {"needed": False, "given": None, "entry": None},
        {"needed": True, "given": None, "entry": None},
    ]


def test_offline_says_what_the_server_would_refuse_about_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    name = "replace-spec.template.spec.securityContext.seLinuxOptions.levelXY"
    file.write_text(yaml.safe_dump(target({name: "json:1"})))

    status, text = offline(capsys, "-f", str(file))

    assert status == 1
    assert "name has 65 characters, at most 63 are allowed; use the rules annotation" in text


def test_offline_no_kubeconfig_is_needed_and_a_file_that_is_not_there_is_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("informers.configure_logging", lambda **_how: None)  # the test's own stays
    words = [f"--kubeconfig={tmp_path / 'absent'}", "--offline", f"--filename={tmp_path / 'gone'}"]

    assert run("copier", ["explain", *words]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"k8s-copier: --filename: {tmp_path / 'gone'}: No such file or directory"
