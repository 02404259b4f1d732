"""One copier serves the targets of several clusters, each from sources of its own cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from informers import GVR, Client, ObjectRef
from informers.testing import APIServer
from informers.testing.clients import open_client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
