"""The three examples of the program of 2019 work as written, whatever comes first, and follow their sources."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
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
ORDERS = (
    "source, target, copier",
    "target, copier, source",
    "copier, kinds, target, source",
    "copier, source, kinds, target",
)


class Play:
    """One example on one server."""

    def __init__(self, story: Story, example: str) -> None:
        self.story = story
        self.target_kind, self.source_kind = EXAMPLES[example]
        manifests = {manifest["kind"]: manifest for manifest in story.example(example)}
        self.target: dict[str, Any] = manifests[self.target_kind]
        self.source: dict[str, Any] = manifests[self.source_kind]
        self.crds = [
            crd for crd in story.example("crds") if crd["spec"]["names"]["kind"] in {self.target_kind, self.source_kind}
        ]
        for crd in self.crds:
            story.remove(story.ref("CustomResourceDefinition", crd["metadata"]["name"]))

    def define(self, *kinds: str) -> None:
        for crd in self.crds:
            if not kinds or crd["spec"]["names"]["kind"] in kinds:
                self.story.serve(crd)

    def copied(self) -> Any:
        spec = self.story.content(self.target_ref).get("spec", {})
        return spec.get("template", {}).get("data" if self.source_kind == "Secret" else "spec")

    def wanted(self) -> Any:
        content = self.story.content(self.story.ref(self.source_kind, self.source["metadata"]["name"]))
        return content["data" if self.source_kind == "Secret" else "spec"]

    def is_copied(self) -> bool:
        return bool(self.copied()) and bool(self.copied() == self.wanted())

    @property
    def target_ref(self) -> ObjectRef:
        return self.story.ref(self.target_kind, self.target["metadata"]["name"])

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


@pytest.mark.parametrize("order", ORDERS)
def test_the_examples_work_in_every_order_follow_their_sources_and_survive_a_restart(story: Story, order: str) -> None:
    plays = [Play(story, example) for example in EXAMPLES]
    program = play_in_order(plays, order)
    for play in plays:
        story.until(play.is_copied, f"{order}: copied")

    for number in range(2, 5):
        for play in plays:
            play.rotate(number)
        for play in plays:
            story.until(play.is_copied, f"rotation {number} is copied")
    program.stop()
    before = story.patches()
    again = start(plays)
    targets = {str(play.target_ref) for play in plays}
    story.until(lambda: targets <= set(again.targets_of("in sync")), "the restarted copier has looked")
    again.stop()

    assert story.patches() == before
    for play in plays:
        assert_untouched(play)


def start(plays: Sequence[Play]) -> Program:
    return plays[0].story.start(f"--target={','.join(play.target_kind.lower() for play in plays)}")


def play_in_order(plays: Sequence[Play], order: str) -> Program:
    program: Program | None = None
    if not order.startswith("copier"):
        for play in plays:
            play.define(play.target_kind)
    for step in order.split(", "):
        if step == "copier":
            program = start(plays)
            continue
        for play in plays:
            match step:
                case "kinds":
                    play.define(play.target_kind)
                case "target":
                    play.story.apply(play.target)
                case "source":
                    if play.source_kind == "HelmRelease":
                        play.define("HelmRelease")
                    play.story.apply(play.source)
    assert program is not None
    return program


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
    start([play])
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
