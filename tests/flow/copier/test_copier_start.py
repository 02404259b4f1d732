"""How the program starts and ends: what it refuses to start with, what it waits for, and which status it ends with."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Story


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("serviceaccounts", "to mean it, write serviceaccounts.v1.core"),
        ("clusterrole", "to mean it, write clusterroles.v1.rbac.authorization.k8s.io"),
    ],
)
def test_a_guarded_kind_is_a_target_only_in_its_full_form(story: Story, target: str, cause: str) -> None:
    program = story.start(f"--target={target}")

    assert program.process.wait(60) == 2
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

    assert program.process.wait(60) == 2
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


def guarded(story: Story) -> dict[str, Any]:
    rule = {"k8s-copier.fig.org/replace-metadata.labels.x": 'json:"y"'}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{story.namespace}-role", "annotations": rule},
        "rules": [],
    }


def test_a_guarded_kind_in_its_full_form_is_written(story: Story) -> None:
    ref = story.apply(guarded(story))
    story.start("--target=clusterroles.v1.rbac.authorization.k8s.io")

    story.until(lambda: story.content(ref)["metadata"].get("labels") == {"x": "y"}, "written")
    story.remove(ref)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(story: Story, number: int) -> None:
    story.configmap("t", rules={"replace-data.k": 'json:"v"'})
    program = story.start("--target=configmap")
    story.until(lambda: story.data("t") == {"k": "v"}, "written")

    program.process.send_signal(number)

    assert program.process.wait(60) == 0


def test_a_misspelt_target_is_told_with_near_names(story: Story) -> None:
    program = story.start("--target=confgmap")

    story.until(lambda: program.lines("target is not served; it is waited for"), "told")

    (line,) = program.lines("target is not served; it is waited for")
    assert line["target"] == "confgmap"
    assert "configmaps" in line["perhaps"]
    program.stop()


def test_a_server_that_is_not_there_yet_is_waited_for(story: Story) -> None:
    relay = story.server.relay()
    relay.refuse()
    story.configmap("t", rules={"replace-data.k": 'json:"v"'})
    role = story.apply(guarded(story))
    targets = "configmap,clusterroles.v1.rbac.authorization.k8s.io"
    program = story.start(f"--target={targets}", kubeconfig=relay.kubeconfig)
    story.until(lambda: program.lines("kinds cannot be discovered yet; this is tried again"), "it has tried")

    relay.heal()

    story.until(lambda: story.data("t") == {"k": "v"}, "written")
    story.until(lambda: story.content(role)["metadata"].get("labels") == {"x": "y"}, "written, as it is named in full")
    program.stop()
    story.remove(role)


def test_a_restart_in_sync_tells_nothing_of_what_was_copied_long_ago(story: Story) -> None:
    story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "dg=="}})
    story.configmap("t", rules={"replace-data.k": "secret:s:data.k"})
    first = story.start("--target=configmap")
    story.until(lambda: set(story.reasons("t")) == {"Base64Value", "Copied"}, "reported")
    first.stop()
    before = sorted(story.reasons("t")), story.patches()

    again = story.start("--target=configmap")
    story.until(lambda: again.targets_of("in sync"), "the restarted copier has looked")
    again.stop()

    assert (sorted(story.reasons("t")), story.patches()) == before


def test_it_is_ready_when_a_cluster_has_answered(story: Story) -> None:
    relay = story.server.relay()
    relay.refuse()
    program = story.start("--target=configmap", "--http-address=127.0.0.1:0", kubeconfig=relay.kubeconfig)
    story.until(lambda: program.lines("listening"), "it listens")
    port = program.lines("listening")[0]["port"]
    status, told = ready(port)
    assert status == 503
    assert "no cluster has said yet which kinds it serves" in told

    relay.heal()

    story.until(lambda: ready(port)[0] == 200, "ready")
    program.stop()


def ready(port: int) -> tuple[int, str]:
    """Ask as a probe does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz?verbose", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
