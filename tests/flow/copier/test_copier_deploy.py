"""The manifests of hack/deploy/copier give exactly the rights that are needed: each set is enough, none has one to spare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from informers import GVR, ObjectRef
from informers.testing.wire import Wire
from tests.flow.copier.conftest import Story, told_on

if TYPE_CHECKING:
    from informers.testing.servers import Server
    from tests.flow.copier.conftest import Program

DEPLOY = Path(__file__).parents[3] / "hack" / "deploy" / "copier"
RBAC = "rbac.authorization.k8s.io"
GVRS = {
    "ClusterRole": GVR(RBAC, "v1", "clusterroles"),
    "ClusterRoleBinding": GVR(RBAC, "v1", "clusterrolebindings"),
    "Role": GVR(RBAC, "v1", "roles"),
    "RoleBinding": GVR(RBAC, "v1", "rolebindings"),
    "ServiceAccount": GVR("", "v1", "serviceaccounts"),
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture
def real_story(real: Server, tmp_path: Path) -> Iterator[Story]:
    """Play on the real server, where rights are real."""
    yield from told_on(real, tmp_path)


class Account:
    """The copier's service account, in a namespace of its own, with what manifests give it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.namespace = story.another_namespace()
        self._awaited: list[dict[str, str]] = []
        self.give("service-account")
        wire = story.server.wire()
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/k8s-copier/token"
        token = wire.request("POST", path, body={"spec": {"expirationSeconds": 86400}}).json()["status"]["token"]
        self._wire = Wire(wire.server, wire.ca, token)
        config = yaml.safe_load(story.server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        self.kubeconfig = story.directory / f"{self.namespace}.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def give(self, file: str, *, namespace: str = "", without: tuple[str, str] | None = None) -> None:
        """Apply a file, in this account's namespace, but for one verb on one resource."""
        text = (DEPLOY / f"{file}.yaml").read_text()
        text = text.replace("namespace: k8s-copier", f"namespace: {self.namespace}")
        text = text.replace("namespace: default", f"namespace: {namespace or self.namespace}")
        for manifest in yaml.safe_load_all(text):
            if manifest["kind"] == "Namespace":
                continue
            metadata = manifest["metadata"]
            if not metadata.get("namespace"):  # other accounts have the same
                metadata["name"] += self.namespace
                manifest.get("roleRef", {})["name"] = metadata["name"]
            rules = manifest.get("rules", [])
            for rule in rules:
                rule["verbs"] = [v for v in rule["verbs"] if without not in {(each, v) for each in rule["resources"]}]
                self._await(rule, metadata.get("namespace", namespace or self.namespace))
            if rules:
                manifest["rules"] = [rule for rule in rules if rule["verbs"]]
            where = metadata.get("namespace", "")
            self.story.client.create(GVRS[manifest["kind"]], manifest, namespace=where, field_manager="test")

    def _await(self, rule: Any, namespace: str) -> None:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                about = {"namespace": namespace, "group": group, "resource": resource}
                names = rule.get("resourceNames", [""])
                self._awaited += [{**about, "name": name, "verb": verb} for name in names for verb in rule["verbs"]]

    def _may(self, about: dict[str, str]) -> bool:
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        answer = self._wire.request("POST", REVIEWS, body={**body, "spec": {"resourceAttributes": about}})
        return bool(answer.json()["status"]["allowed"])

    def start(self, *flags: str) -> Program:
        """Start a copier as this account, when it has all that it was given."""
        for about in self._awaited:
            self.story.until(lambda: self._may(about), f"{about} is in force")  # noqa: B023
        shared = (f"--kubeconfig={self.kubeconfig}", "--log-level=debug", "--initial-list=list")
        return self.story.run("-m", "controllers", "copier", *shared, *flags)


def troubles(program: Program) -> Counter[str]:
    """Count the lines a person gets to see of what is wrong, by what they say of which kind."""
    lines = [line for line in program.lines() if line["level"] in {"warning", "error"}]
    return Counter(
        f"{line['msg']} {line.get('resource', '')}".strip() for line in lines if line["msg"] != "slow handler"
    )


def assert_each_is_told_once(programs: Sequence[Program], *, namespaces: int = 1) -> None:
    for program in programs:
        assert program.process.poll() is None, program.lines()[-1]
        told = troubles(program)
        assert all(count <= namespaces for count in told.values()), told


def federated(story: Story, namespace: str, *, name: str = "web-tls", source: str = "web-tls") -> ObjectRef:
    """Make a target that is to hold a certificate."""
    text = (DEPLOY / "federated.yaml").read_text().replace("cloud", namespace)
    _, target = yaml.safe_load_all(
        text.replace("secret:web-tls", f"secret:{source}").replace("name: web-tls", f"name: {name}")
    )
    return story.apply(target)


def certificate(story: Story, namespace: str, name: str = "web-tls") -> None:
    source, _ = yaml.safe_load_all((DEPLOY / "federated.yaml").read_text().replace("cloud", namespace))
    source["metadata"]["name"] = name
    story.apply(source)


def template(story: Story, target: ObjectRef) -> Any:
    return story.content(target)["spec"]["template"].get("data")


FEDERATED = {"tls.crt": "Y2VydGlmaWNhdGU=", "tls.key": "a2V5"}


def test_the_role_for_federated_secrets_is_enough_and_none_of_its_rights_is_too_much(real_story: Story) -> None:
    story = real_story
    for crd in story.example("crds"):
        if crd["spec"]["names"]["kind"] == "FederatedSecret":
            story.serve(crd)
    whole = Account(story)
    whole.give("federated-secrets")
    certificate(story, whole.namespace)
    target = federated(story, whole.namespace)
    program = whole.start("--target=federatedsecret")
    story.until(lambda: template(story, target) == FEDERATED, "copied, with these rights in every namespace")
    assert_each_is_told_once([program])
    program.stop()

    lacking: dict[tuple[str, str], Account] = {}
    targets: dict[str, ObjectRef] = {}
    for missing in [("federatedsecrets", verb) for verb in ("list", "watch", "patch")] + [
        ("secrets", verb) for verb in ("get", "list", "watch")
    ]:
        account = lacking[missing] = Account(story)
        account.give("federated-secrets", without=missing)
        account.give("events")
        certificate(story, account.namespace)
        certificate(story, account.namespace, "other")
        targets[account.namespace] = federated(story, account.namespace)
    programs = {
        missing: account.start("--target=federatedsecret", f"--namespace={account.namespace}")
        for missing, account in lacking.items()
    }
    for (resource, verb), program in programs.items():
        namespace = lacking[resource, verb].namespace
        if verb == "patch":
            story.until(lambda: story.reasons("web-tls", namespace) == ["Forbidden"], "told of patch")  # noqa: B023
        elif verb == "watch":  # what is listed is used
            story.until(lambda: any(resource in told for told in troubles(program)), "told of watch")  # noqa: B023
        elif verb == "get":  # asked for only when a rule comes to read what was there before
            story.until(lambda: template(story, targets[namespace]) == FEDERATED, "copied without get")  # noqa: B023
            federated(story, namespace, name="late", source="other")
            story.until(lambda: story.reasons("late", namespace) == ["SourceUnavailable"], "told of get")  # noqa: B023
        elif resource == "secrets":
            story.until(lambda: story.reasons("web-tls", namespace) == ["SourceUnavailable"], "told of list")  # noqa: B023
        else:
            story.until(lambda: any(resource in told for told in troubles(program)), f"told of {verb}")  # noqa: B023
        assert verb in {"watch", "get"} or not program.lines("patched")
    assert_each_is_told_once(list(programs.values()))


def test_a_role_in_two_namespaces_is_enough_for_configmaps_and_no_right_on_secrets_is_needed(real_story: Story) -> None:
    story = real_story
    account = Account(story)
    spaces = [account.namespace, story.another_namespace()]
    for space in spaces:
        account.give("configmaps-in-a-namespace", namespace=space)
        story.configmap("s", namespace=space, data={"k": space})
        story.configmap("t", namespace=space, rules={"replace-data.k": "configmap:s:data.k"})
    story.configmap("u", namespace=spaces[0], rules={"replace-data.k": "secret:s:data.k", "replace-data.l": 'json:"l"'})

    program = account.start("--target=configmap", f"--namespace={','.join(spaces)}", "--leader-elect=false")

    story.until(lambda: all(story.data("t", space) == {"k": space} for space in spaces), "copied in both")
    story.until(lambda: program.lines("kind not readable"), "the one rule that reads a Secret is told of")
    story.until(lambda: story.data("u", spaces[0]) == {"l": "l"}, "the others of its target work")
    assert_each_is_told_once([program], namespaces=2)
    assert not [line for line in program.lines() if line["level"] == "error"]


def test_the_role_for_a_lease_is_enough_and_none_of_its_rights_is_too_much(real_story: Story) -> None:
    story = real_story

    def start(without: tuple[str, str] | None) -> tuple[Program, str]:
        account = Account(story)
        account.give("configmaps-in-a-namespace")
        account.give("leader-election", without=without)
        story.configmap("t", namespace=account.namespace, rules={"replace-data.k": 'json:"v"'})
        where = (f"--namespace={account.namespace}", f"--leader-elect-resource-namespace={account.namespace}")
        return account.start("--target=configmap", "--leader-elect", *where), account.namespace

    program, namespace = start(None)
    lacking = [start(("leases", verb)) for verb in ("create", "get")]
    story.until(lambda: story.data("t", namespace) == {"k": "v"}, "copied by who has the lease")
    for other, _ in lacking:
        story.until(lambda: other.lines("lease request failed"), "told")  # noqa: B023
    assert_each_is_told_once([program, *(other for other, _ in lacking)])
    assert [story.data("t", there) for _, there in lacking] == [{}, {}]


def test_with_all_optional_rights_too_there_is_nothing_to_complain_of(real_story: Story) -> None:
    story = real_story
    account = Account(story)
    for file in ("configmaps-in-a-namespace", "events", "cluster-wide"):
        account.give(file)
    story.configmap("s", namespace=account.namespace, data={"k": "1"})
    story.configmap("t", namespace=account.namespace, rules={"replace-data.k": "configmap:s:data.k"})

    program = account.start("--target=configmap", f"--namespace={account.namespace}")

    story.until(lambda: story.reasons("t", account.namespace) == ["Copied"], "copied, and an Event says so")
    program.stop()
    assert not troubles(program)


def test_every_manifest_is_applied_by_one_of_these_stories() -> None:
    files = {path.stem for path in DEPLOY.glob("*.yaml")}

    assert files == {
        *("service-account", "federated-secrets", "configmaps-in-a-namespace", "leader-election", "events"),
        *("cluster-wide", "federated", "across-clusters"),
    }
