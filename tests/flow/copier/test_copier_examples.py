"""The three examples of the program of 2019 work as written, whatever comes first, and follow their sources."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from informers import GVR

if TYPE_CHECKING:
    from informers import ObjectRef
    from tests.flow.copier.conftest import Program, Story

EXAMPLES = {
    "federated-secret": ("FederatedSecret", "Secret"),
    "federated-deployment": ("FederatedDeployment", "Deployment"),
    "federated-helmrelease": ("FederatedHelmRelease", "HelmRelease"),
}
# Each order is played by two sets of the three examples in two namespaces, and one copier for all.
ORDERS = [
    pytest.param("source, target, copier", "target, copier, source", id="kinds first"),
    pytest.param("copier, kinds, target, source", "copier, source, kinds, target", id="copier first"),
]


class Play:
    """One example in one namespace."""

    def __init__(self, story: Story, example: str, namespace: str = "") -> None:
        self.story = story
        self.namespace = namespace or story.namespace
        self.target_kind, self.source_kind = EXAMPLES[example]
        manifests = {manifest["kind"]: manifest for manifest in story.example(example, self.namespace)}
        self.target: dict[str, Any] = manifests[self.target_kind]
        self.source: dict[str, Any] = manifests[self.source_kind]
        self.crds = [
            crd for crd in story.example("crds") if crd["spec"]["names"]["kind"] in {self.target_kind, self.source_kind}
        ]
        for crd in self.crds:  # what a story before this one may have left
            story.remove(story.ref("CustomResourceDefinition", crd["metadata"]["name"]))

    def define(self, *kinds: str) -> None:
        for crd in self.crds:
            if not kinds or crd["spec"]["names"]["kind"] in kinds:
                self.story.serve(crd)

    def copied(self) -> Any:
        spec = self.story.content(self.target_ref).get("spec", {})
        return spec.get("template", {}).get("data" if self.source_kind == "Secret" else "spec")

    def wanted(self) -> Any:
        content = self.story.content(self.story.ref(self.source_kind, self.source["metadata"]["name"], self.namespace))
        return content["data" if self.source_kind == "Secret" else "spec"]

    def is_copied(self) -> bool:
        return bool(self.copied()) and bool(self.copied() == self.wanted())

    @property
    def target_ref(self) -> ObjectRef:
        return self.story.ref(self.target_kind, self.target["metadata"]["name"], self.namespace)

    def rotate(self, number: int) -> None:
        changed = self.source
        if self.source_kind == "Secret":
            for key in changed["data"]:
                changed["data"][key] = base64.b64encode(f"{key} {number}".encode()).decode()
        elif self.source_kind == "Deployment":
            changed["spec"]["template"]["spec"]["containers"][0]["image"] = f"example.com/cloud-image:{number}"
        else:
            changed["spec"]["values"]["image"]["tag"] = f"{number}"
        self.story.apply(changed)


@pytest.mark.parametrize(("one", "other"), ORDERS)
def test_the_examples_work_in_every_order_follow_their_sources_and_survive_a_restart(
    story: Story, one: str, other: str
) -> None:
    beside = story.another_namespace()
    plays = {one: [Play(story, each) for each in EXAMPLES], other: [Play(story, each, beside) for each in EXAMPLES]}
    program = play_in_order(story, plays)
    everything = [play for group in plays.values() for play in group]
    for play in everything:
        story.until(play.is_copied, "copied")

    for number in (2, 3):
        for play in everything:
            play.rotate(number)
        for play in everything:
            story.until(play.is_copied, f"rotation {number} is copied")
    program.stop()
    before = story.patches()
    again = start(story)
    targets = {str(play.target_ref) for play in everything}
    story.until(lambda: targets <= set(again.targets_of("in sync")), "the restarted copier has looked")
    again.stop()

    assert story.patches() == before
    for play in everything:
        assert_untouched(play)


def start(story: Story) -> Program:
    return story.start(f"--target={','.join(target.lower() for target, _ in EXAMPLES.values())}")


def play_in_order(story: Story, plays: Mapping[str, Sequence[Play]]) -> Program:
    """Play all orders up to where the copier starts, start it, and play what is left, one step of each in turn."""
    before, after = [], []
    for order, group in plays.items():
        first, _, last = order.partition("copier")
        before += [(step, group) for step in first.split(", ") if step]
        after.append([(step, group) for step in last.split(", ") if step])
    for play in (play for group in plays.values() for play in group if before):
        play.define(play.target_kind)
    for step, group in before:
        take(step, group)
    program = start(story)
    for step, group in chain.from_iterable(zip_longest(*after, fillvalue=("", []))):
        take(step, group)
    return program


def take(step: str, group: Sequence[Play]) -> None:
    for play in group:
        match step:
            case "kinds":
                play.define(play.target_kind)
            case "target":
                play.story.apply(play.target)
            case "source":
                if play.source_kind == "HelmRelease":
                    play.define("HelmRelease")
                play.story.apply(play.source)


def assert_untouched(play: Play) -> None:
    """Fail if anything but the one path of the rule is not as it was applied."""
    live = play.story.content(play.target_ref)
    applied: Mapping[str, Any] = play.target
    assert live["spec"]["placement"] == applied["spec"]["placement"]
    assert live["spec"]["template"].get("type") == applied["spec"].get("template", {}).get("type")
    assert live["metadata"]["annotations"] == applied["metadata"]["annotations"]


def test_the_helm_example_taken_literally_waits_for_the_name_in_its_rule(story: Story) -> None:
    play = Play(story, "federated-helmrelease")
    play.define()
    literal = yaml.safe_load(yaml.safe_dump(play.source))
    literal["metadata"]["name"] = "cloud-release-master"
    story.apply(literal)
    story.apply(play.target)
    start(story)
    story.until(lambda: story.reasons("cloud-release") == ["SourceMissing"], "the missing source is reported")
    assert play.copied() == {}

    story.apply(play.source)

    story.until(lambda: play.copied() == play.wanted(), "the source that appeared is copied")


def test_the_null_of_the_first_example_is_there_before_the_copy(story: Story) -> None:
    play = Play(story, "federated-secret")
    play.define()

    story.apply(play.target)

    template = story.content(play.target_ref)["spec"]["template"]
    assert template == {"type": "kubernetes.io/tls", "data": None}
    assert GVR("types.federation.k8s.io", "v1alpha1", "federatedsecrets") == play.target_ref.gvr
