"""One copier serves the targets of several clusters, each from sources of its own cluster."""

from __future__ import annotations

import base64
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from informers import GVR, Client, ObjectRef
from informers.testing import APIServer
from informers.testing.clients import open_client
from informers.testing.relay import Relay
from tests.flow.copier.conftest import unmarked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flow.copier.conftest import Story

CONFIGMAPS = GVR("", "v1", "configmaps")
NAMESPACES = GVR("", "v1", "namespaces")
RULE = {"metadata": {"annotations": {"k8s-copier.fig.org/replace-data.k": "configmap:source:data.k"}}}


class Other:
    """A second cluster, with a namespace of the same name."""

    def __init__(self, client: Client, kubeconfig: Path, namespace: str) -> None:
        self.client = client
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        client.create(NAMESPACES, {"metadata": {"name": namespace}}, field_manager="test")

    def configmap(self, name: str, content: dict[str, Any]) -> None:
        body = {**content, "metadata": {**content.get("metadata", {}), "name": name}}
        self.client.create(CONFIGMAPS, body, namespace=self.namespace, field_manager="test")

    def data(self, name: str) -> Any:
        return self.client.get(ObjectRef(CONFIGMAPS, self.namespace, name)).get("data", default={})


@pytest.fixture
def other(story: Story) -> Iterator[Other]:
    with APIServer() as server, open_client(server.kubeconfig) as client:
        yield Other(client, server.kubeconfig, story.namespace)


def merged(path: Path, **kubeconfigs: Path) -> Path:
    """Write one kubeconfig with a context for each of these; the first is the current one."""
    found: dict[str, Any] = {"clusters": [], "users": [], "contexts": [], "current-context": next(iter(kubeconfigs))}
    for name, each in kubeconfigs.items():
        config = yaml.safe_load(each.read_text())
        found["clusters"].append({"name": name, "cluster": config["clusters"][0]["cluster"]})
        found["users"].append({"name": name, "user": config["users"][0]["user"]})
        found["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    path.write_text(yaml.safe_dump(found))
    return path


def test_targets_of_every_cluster_are_served_from_their_own_clusters_sources(story: Story, other: Other) -> None:
    kubeconfig = merged(story.directory / "several", one=story.server.kubeconfig, two=other.kubeconfig)
    story.configmap("source", data={"k": "one"})
    other.configmap("source", {"data": {"k": "two"}})
    story.configmap("t", rules={"replace-data.k": "configmap:source:data.k"})
    other.configmap("t", RULE)

    program = story.start("--target=configmap", "--context=one", "--context=second=two", kubeconfig=kubeconfig)

    story.until(lambda: (story.data("t"), other.data("t")) == ({"k": "one"}, {"k": "two"}), "written")
    story.until(lambda: {line["cluster"] for line in program.lines("patched")} == {"", "second"}, "told")
    program.stop()


def test_a_cluster_that_does_not_answer_at_the_start_holds_up_no_other(story: Story, other: Other) -> None:
    relay = story.server.relay()
    relay.freeze()
    kubeconfig = merged(story.directory / "several", one=relay.kubeconfig, two=other.kubeconfig)
    story.configmap("source", data={"k": "one"})
    other.configmap("source", {"data": {"k": "two"}})
    story.configmap("t", rules={"replace-data.k": "configmap:source:data.k"})
    other.configmap("t", RULE)

    program = story.start("--target=configmap", "--all-contexts", kubeconfig=kubeconfig)
    story.until(lambda: other.data("t") == {"k": "two"}, "the other cluster's target is written")

    assert story.data("t") == {}
    relay.heal()
    relay.reset()
    story.until(lambda: story.data("t") == {"k": "one"}, "written when the cluster has come back")
    program.stop()


SECRETS = GVR("", "v1", "secrets")
EXAMPLE = Path(__file__).parents[3] / "hack" / "deploy" / "copier" / "across-clusters.yaml"


def certificate(number: int) -> dict[str, str]:
    """Return what cert-manager writes into a Secret, at each renewal something else."""
    pair = {"tls.crt": f"certificate {number}", "tls.key": f"key {number}"}
    return {key: base64.b64encode(text.encode()).decode() for key, text in pair.items()}


def test_a_certificate_of_the_home_cluster_goes_straight_into_two_member_clusters_one_of_which_fails_on_and_off(
    story: Story, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        servers = [opened.enter_context(APIServer()) for _ in range(2)]
        clients = [opened.enter_context(open_client(server.kubeconfig)) for server in servers]
        relay = opened.enter_context(Relay(servers[1].kubeconfig, directory=tmp_path))
        kubeconfig = merged(
            story.directory / "three",
            **{"hub": story.server.kubeconfig, "member-1": servers[0].kubeconfig, "member-2": relay.kubeconfig},
        )
        source, target = yaml.safe_load_all(EXAMPLE.read_text().replace("cloud", story.namespace))
        home = story.apply({**source, "data": certificate(1)})
        for client in clients:
            client.create(NAMESPACES, {"metadata": {"name": story.namespace}}, field_manager="test")
            client.create(SECRETS, target, namespace=story.namespace, field_manager="test")

        def arrived(member: int, number: int) -> bool:
            found = clients[member].get(ObjectRef(SECRETS, story.namespace, "web-tls"))
            return unmarked(found.get("data")) == certificate(number)

        def renew(number: int) -> None:
            story.apply({**source, "data": certificate(number)})

        contexts = [f"--context={name}" for name in ("hub", "member-1", "member-2")]
        program = story.start("--target=secret", *contexts, kubeconfig=kubeconfig)
        story.until(lambda: arrived(0, 1) and arrived(1, 1), "both members have it")

        for number, (breaks, heals) in enumerate([(relay.refuse, relay.heal), (relay.freeze, relay.heal)], start=2):
            breaks()
            renew(number)
            story.until(lambda number=number: arrived(0, number), "the other member is not held up")  # type: ignore[misc]
            assert arrived(1, number - 1)
            heals()
            relay.reset()
            story.until(lambda number=number: arrived(1, number), "it is made up for")  # type: ignore[misc]

        assert unmarked(story.content(home))["metadata"]["annotations"] == source["metadata"]["annotations"]
        program.stop()


def test_the_cluster_of_a_source_may_go_away_and_come_back(story: Story, other: Other) -> None:
    relay = story.server.relay()
    kubeconfig = merged(story.directory / "several", hub=relay.kubeconfig, here=other.kubeconfig)
    source = f"configmap:hub/{story.namespace}/source"
    rules = {"k8s-copier.fig.org/replace-data.k": f"{source}:data.k"}
    story.configmap("source", data={"k": "1"}, allow=f"here/{story.namespace}/ConfigMap/t")
    other.configmap("t", {"metadata": {"annotations": rules}})
    program = story.start("--target=configmap", "--all-contexts", kubeconfig=kubeconfig)
    story.until(lambda: other.data("t") == {"k": "1"}, "copied across")

    relay.refuse()
    ref = ObjectRef(CONFIGMAPS, story.namespace, "t")
    other.client.patch(ref, {"data": {"k": "drifted"}}, field_manager="test")
    story.until(lambda: other.data("t") == {"k": "1"}, "what the source was last stays in force")
    story.configmap("source", data={"k": "2"})
    relay.heal()
    story.until(lambda: other.data("t") == {"k": "2"}, "what it became meanwhile is copied")

    story.configmap("source", allow="nobody")
    story.until(lambda: [line["reason"] for line in program.lines("rule state changed")][-1:] == ["ConsentMissing"])
    told = program.lines("rule state changed")[-1]["why"]
    assert f'"here/{story.namespace}/ConfigMap/t"' in told
    program.stop()


@pytest.mark.slow
def test_a_source_cluster_that_is_away_for_half_a_minute_is_told_of_and_so_is_its_return(
    story: Story, other: Other
) -> None:
    relay = story.server.relay()
    kubeconfig = merged(story.directory / "several", hub=relay.kubeconfig, here=other.kubeconfig)
    rule = {"k8s-copier.fig.org/replace-data.k": f"configmap:hub/{story.namespace}/source:data.k"}
    story.configmap("source", data={"k": "1"}, allow="here/*/ConfigMap/t")
    other.configmap("t", {"metadata": {"annotations": rule}})
    flags = ["--target=configmap", "--all-contexts", "--on-source-missing=remove"]
    program = story.start(*flags, kubeconfig=kubeconfig)
    story.until(lambda: other.data("t") == {"k": "1"}, "copied across")

    def reasons() -> list[str]:
        return [line["reason"] for line in program.lines("rule state changed")]

    relay.refuse()
    story.until(lambda: reasons()[-1:] == ["ClusterUnavailable"], "it counts as down", timeout=120)
    story.remove(story.ref("ConfigMap", "source"))
    assert other.data("t") == {"k": "1"}

    relay.heal()
    story.until(lambda: other.data("t") == {}, "it is back, and its source is gone, and with it the consent")
    story.until(lambda: reasons()[-1:] == ["ConsentMissing"], "that is told")
    program.stop()
