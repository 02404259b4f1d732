"""How the program starts and ends: what it refuses to start with, what it waits for, and which status it ends with."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.flow.copier.conftest import Story


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("serviceaccounts", "to mean it, write serviceaccounts.v1"),
        ("clusterrole", "to mean it, write clusterroles.v1.rbac.authorization.k8s.io"),
    ],
)
def test_a_guarded_kind_is_a_target_only_in_its_full_form(story: Story, target: str, cause: str) -> None:
    program = story.start(f"--target={target}")

    assert program.process.wait(30) == 2
    last = program.log.read_text().splitlines()[-1]
    assert last.startswith(f"k8s-copier: --target: {target} is a kind that gives power over others")
    assert cause in last


def test_an_ambiguous_target_is_told_with_its_candidates(story: Story) -> None:
    plural = f"things{story.namespace.replace('-', '')}"
    groups = [f"{letter}.{story.namespace}.example.io" for letter in "ab"]
    crds = [crd(group, plural) for group in groups]
    for each in crds:
        story.serve(each)

    program = story.start(f"--target={plural}")

    assert program.process.wait(30) == 2
    last = program.log.read_text().splitlines()[-1]
    assert all(f"{plural}.v1.{group}" in last for group in groups)
    for each in crds:
        story.remove(story.ref("CustomResourceDefinition", each["metadata"]["name"]))


def crd(group: str, plural: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": plural.title(),
                "listKind": f"{plural.title()}List",
                "plural": plural,
                "singular": plural,
            },
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def test_a_guarded_kind_in_its_full_form_is_written(story: Story) -> None:
    name = f"{story.namespace}-role"
    rule = {"k8s-copier.fig.org/replace-metadata.labels.x": 'json:"y"'}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "annotations": rule},
        "rules": [],
    }
    ref = story.apply(role)
    story.start("--target=clusterroles.v1.rbac.authorization.k8s.io")

    story.until(lambda: story.content(ref)["metadata"].get("labels") == {"x": "y"}, "written")
    story.remove(ref)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(story: Story, number: int) -> None:
    story.configmap("t", rules={"replace-data.k": 'json:"v"'})
    program = story.start("--target=configmap")
    story.until(lambda: story.data("t") == {"k": "v"}, "written")

    program.process.send_signal(number)

    assert program.process.wait(10) == 0


def test_a_server_that_is_not_there_yet_is_waited_for(story: Story) -> None:
    relay = story.server.relay()
    relay.refuse()
    story.configmap("t", rules={"replace-data.k": 'json:"v"'})
    program = story.start("--target=configmap", kubeconfig=relay.kubeconfig)
    story.until(lambda: program.lines("kinds cannot be discovered yet"), "it has tried")

    relay.heal()

    story.until(lambda: story.data("t") == {"k": "v"}, "written")
    program.stop()


COUNTER = '''
"""Write on every Namespace how many ConfigMaps it holds."""

from dataclasses import dataclass

from informers import GVR, Client, Lister, Result

NAMESPACES = GVR("", "v1", "namespaces")
CONFIGMAPS = GVR("", "v1", "configmaps")
COUNT = "example.com/configmaps"


def add_arguments(parser):
    """Declare this controller's own options and defaults; the shared flags are there already."""
    parser.set_defaults(workers=2)


def setup(manager, options):
    """Look at a Namespace again when it, or a ConfigMap in it, changes."""
    counter = ConfigMapCounter(
        client=manager.client,
        namespaces=manager.lister(NAMESPACES),
        configmaps=manager.lister(CONFIGMAPS),
    )
    manager.add_controller(
        "configmap-counter",
        counter.reconcile,
        primary=NAMESPACES,
        watches={CONFIGMAPS: namespace_of},
        workers=options.workers,
    )


def namespace_of(obj):
    """Name the Namespace that a namespaced object lives in."""
    yield obj.ref.sibling(NAMESPACES, namespace="", name=obj.namespace)


@dataclass(frozen=True, slots=True)
class ConfigMapCounter:
    """Keep one annotation equal to what the cache counts."""

    client: Client
    namespaces: Lister
    configmaps: Lister

    def reconcile(self, request):
        """Patch the Namespace if its annotation is not the present count."""
        namespace = self.namespaces.find(request.ref)
        if namespace is None:
            return Result()

        inside = self.configmaps.list(namespace.name, cluster=request.ref.cluster)
        wanted = str(len(inside))
        if namespace.annotations.get(COUNT) != wanted:
            self.client.patch(
                request.ref,
                {"metadata": {"annotations": {COUNT: wanted}}},
                field_manager="configmap-counter",
            )
        return Result()
'''
RUN = """
import sys

import controllers
from controllers.__main__ import main

controllers.__path__.append(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


def test_a_fourth_controller_is_one_file(embedded_story: Story, tmp_path: Path) -> None:
    import subprocess
    import sys

    story = embedded_story
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "configmap_counter.py").write_text(COUNTER)
    run = [sys.executable, "-c", RUN, str(folder)]
    listed = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True, timeout=30)
    assert "configmap_counter  Write on every Namespace how many ConfigMaps it holds." in listed.stdout

    command = [*run, "configmap_counter", f"--kubeconfig={story.server.kubeconfig}"]
    with (tmp_path / "counter.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        space = story.ref("Namespace", story.namespace)

        def count() -> str | None:
            found: dict[str, str] = story.content(space)["metadata"].get("annotations") or {}
            return found.get("example.com/configmaps")

        story.until(lambda: count() == "0", "the empty namespace is counted")
        story.configmap("one")
        story.configmap("two")
        story.until(lambda: count() == "2", "two are counted")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)
