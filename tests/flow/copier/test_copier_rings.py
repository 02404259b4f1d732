"""Objects that copy from each other are left alone, all of them, until somebody breaks the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Program, Story


def refusals(program: Program, name: str) -> int:
    """Count how often a rule of a target came to be refused as one of a ring."""
    lines = program.lines("rule state changed")
    return sum(line["reason"] == "Cycle" and line["target"].endswith(f"/{name}") for line in lines)


def test_a_ring_is_never_written_and_goes_on_when_it_is_broken_by_an_edit_or_a_removal(story: Story) -> None:
    names = ("one", "two", "three")
    for name, source in zip(names, ("two", "three", "one"), strict=True):
        story.configmap(name, data={"k": name}, rules={"replace-data.k": f"configmap:{source}:data.k"})
    story.configmap("free", data={"k": "free", "l": "free"})
    story.configmap("two", rules={"replace-data.l": "configmap:free:data.l"})

    program = story.start("--target=configmap")
    story.until(lambda: all(refusals(program, name) for name in names), "all three are refused")
    story.until(lambda: story.data("two") == {"k": "two", "l": "free"}, "the rule beside the ring is not")
    story.until(lambda: story.patches() == 1, "which is all that was written")
    assert [story.data(name)["k"] for name in names] == list(names)
    ring = " ← ".join(f"ConfigMap {story.namespace}/{name} data.k" for name in (*names, "one"))
    (told,) = (line for line in program.lines("rule state changed") if line["target"].endswith("/one"))
    assert told["why"] == ring

    story.configmap("three", rules={"replace-data.k": "configmap:free:data.k"})
    story.until(lambda: [story.data(name)["k"] for name in names] == ["free"] * 3, "an edit breaks it")

    story.configmap("three", rules={"replace-data.k": "configmap:one:data.k"})
    story.until(lambda: all(refusals(program, name) > 1 for name in names), "it is closed again")

    story.remove(story.ref("ConfigMap", "two"))
    story.configmap("one", data={"k": "mine"})
    story.until(lambda: story.data("three") == {"k": "mine"}, "a removal breaks it")
    story.until(lambda: story.reasons("one")[-1:] == ["SourceMissing"], "and the first has lost its source")
    assert story.data("one") == {"k": "mine"}
    program.stop()


# Kinds that are both source and target are followed by two watches: when the one that brings the withdrawal to the other
# target's look is much later than the other, the ring was once, on a busy machine, not seen to be over.
@pytest.mark.slow
def test_a_ring_across_kinds_and_namespaces_ends_with_the_consent_to_it(story: Story) -> None:
    there = story.another_namespace()
    here = story.namespace
    secret = story.ref("Secret", "s", there)
    annotations = {
        "k8s-copier.fig.org/replace-data.k": f"configmap:{here}/t:data.k",
        "k8s-copier.fig.org/allow-copy-to": here,
    }
    metadata = {"name": "s", "namespace": there, "annotations": annotations}
    story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"k": "c2VjcmV0"}})
    story.configmap("t", data={"k": "cGxhaW4="}, rules={"replace-data.k": f"secret:{there}/s:data.k"}, allow=there)

    program = story.start("--target=configmap,secret")
    story.until(lambda: refusals(program, "t") and refusals(program, "s"), "both are refused")
    assert story.patches() == 0

    story.client.patch(
        secret, {"metadata": {"annotations": {"k8s-copier.fig.org/allow-copy-to": None}}}, field_manager="test"
    )
    story.until(lambda: story.content(secret)["data"] == {"k": "cGxhaW4="}, "the other one is free")

    assert story.data("t") == {"k": "cGxhaW4="}
    story.until(lambda: story.reasons("t")[-1:] == ["ConsentMissing"], "the first lacks consent")
    program.stop()
