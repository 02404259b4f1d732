"""One source with a thousand targets: each gets one write for each change, also when the copier is killed halfway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from informers import Object

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Story

TARGETS = 1000
RULE = {"k8s-copier.fig.org/replace-data.k": "secret:hub:data.k"}
VALUES = ["MQ==", "Mg==", "Mw==", "NA=="]


@pytest.mark.timeout(600)
def test_a_thousand_targets_are_written_once_for_each_change_and_a_kill_loses_and_repeats_nothing(story: Story) -> None:
    names = [f"t-{number:04}" for number in range(TARGETS)]
    story.in_parallel(lambda name: make_target(story, name), names)
    set_hub(story, VALUES[0])
    program = story.start("--target=configmap")
    story.until(lambda: not stale(story, VALUES[0]), "all are filled", timeout=90)
    assert story.patches() == TARGETS

    set_hub(story, VALUES[1])
    story.until(lambda: not stale(story, VALUES[1]), "all have the change", timeout=90)
    story.until(lambda: len(program.lines("patched")) == 2 * TARGETS, "all is logged")
    assert story.patches() == 2 * TARGETS

    set_hub(story, VALUES[2])
    story.until(lambda: len(program.lines("patched")) >= 2 * TARGETS + 100, "some have the next", timeout=90)
    program.kill()
    left = left_behind(story, VALUES[2])
    assert 0 < left < TARGETS
    before = story.patches()
    again = story.start("--target=configmap")
    story.until(lambda: not stale(story, VALUES[2]), "the restarted copier did the rest", timeout=90)
    story.until(lambda: len(looked_at(again.lines())) == TARGETS, "it has looked at all of them", timeout=90)
    again.stop()

    assert len(again.lines("patched")) == left
    assert story.patches() - before == left
    if story.server.embedded is not None:
        assert before == 3 * TARGETS - left


def left_behind(story: Story, value: str) -> int:
    """Count the targets that do not have this value, once the last requests of a killed copier are done."""
    counts = [-1, len(stale(story, value))]
    while counts[-1] != counts[-2]:
        counts.append(len(stale(story, value)))
    return counts[-1]


def make_target(story: Story, name: str) -> Object:
    from informers import GVR

    manifest: dict[str, Any] = {"metadata": {"name": name, "annotations": RULE}, "data": {"own": name}}
    return story.client.create(GVR("", "v1", "configmaps"), manifest, namespace=story.namespace, field_manager="test")


def set_hub(story: Story, value: str) -> None:
    story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": {"k": value}})


def stale(story: Story, value: str) -> list[str]:
    """Name the targets that do not have this value."""
    from informers import GVR

    found = story.client.list(GVR("", "v1", "configmaps"), namespace=story.namespace, limit=0)
    return [obj.name for obj in found if obj.name.startswith("t-") and obj.get("data", "k") != value]


def looked_at(lines: list[dict[str, Any]]) -> set[str]:
    return {line["target"] for line in lines if line["msg"] in {"in sync", "patched"}}


@pytest.mark.parametrize("pairs", [20])
def test_certificate_and_key_are_never_seen_mixed(story: Story, pairs: int) -> None:
    rules = {"k8s-copier.fig.org/replace-data": "secret:cert:data"}
    secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
    target = story.apply({**secret, "metadata": {"name": "t", "annotations": rules}, "data": {}})
    program = story.start("--target=secret")

    with story.server.wire().stream(
        f"/api/v1/namespaces/{story.namespace}/secrets", query=[("watch", "1"), ("fieldSelector", "metadata.name=t")]
    ) as stream:
        for number in range(10, 10 + pairs):
            pair = {"tls.crt": f"Yw{number}", "tls.key": f"aw{number}"}
            story.apply({**secret, "metadata": {"name": "cert"}, "data": pair})
        last = 9 + pairs
        story.until(lambda: story.content(target).get("data", {}).get("tls.key") == f"aw{last}", "the last is copied")
        seen = observed(stream, f"aw{last}")

    program.stop()
    assert all(crt[2:] == key[2:] for crt, key in seen)


def observed(stream: Any, last: str) -> list[tuple[str, str]]:
    """Read the watch until it has shown the last pair."""
    import json

    found: list[tuple[str, str]] = []
    for line in stream.lines(silence=60.0):
        data = json.loads(line)["object"].get("data") or {}
        if data:
            found.append((data["tls.crt"], data["tls.key"]))
        if data.get("tls.key") == last:
            break
    return found
