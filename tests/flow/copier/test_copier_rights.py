"""Exactly the rights that are needed are enough, and a right that is missing is one trouble that is told once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.flow.copier.conftest import PREFIX, Story

if TYPE_CHECKING:
    from informers.testing.servers import Server


def right(*verbs: str, resource: str, group: str = "") -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


SECRETS = right("get", "list", "watch", "patch", resource="secrets")
EVENTS = right("create", "patch", resource="events")
NEW_EVENTS = right("create", "patch", resource="events", group="events.k8s.io")


@pytest.fixture
def real_story(real: Server, tmp_path: Path) -> Iterator[Story]:
    """Play on the real server, where rights are real."""
    from tests.flow.copier.conftest import told_on

    yield from told_on(real, tmp_path)


def user(story: Story, rights: Sequence[Any]) -> Path:
    """Make a user who may do this in the story's namespace, and nothing anywhere else."""
    assert story.server.real is not None
    return story.server.real.user(f"copier-{story.namespace}", namespaced={story.namespace: rights})


def make(story: Story, name: str, data: dict[str, str], rules: dict[str, str] | None = None) -> Any:
    annotations = {PREFIX + key: text for key, text in (rules or {}).items()}
    metadata = {"name": name, "annotations": annotations}
    return story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def value(story: Story, name: str) -> Any:
    return story.content(story.ref("Secret", name)).get("data", {}).get("k")


def holds(story: Story, wanted: str) -> bool:
    return bool(value(story, "t") == wanted)


def troubles(program: Any) -> Counter[str]:
    """Count the lines a person gets to see of what is wrong, by what they say of which kind."""
    lines = [
        line for line in program.lines() if line["level"] in {"warning", "error"} and line["msg"] != "slow handler"
    ]
    return Counter(f"{line['msg']} {line.get('resource', '')}".strip() for line in lines)


def test_a_role_in_one_namespace_is_enough_and_says_each_other_trouble_once(real_story: Story) -> None:
    story = real_story
    make(story, "s", {"k": "MQ=="})
    make(story, "t", {}, {"replace-data.k": "secret:s:data.k"})
    program = story.start("--target=secret", kubeconfig=user(story, [SECRETS]))
    story.until(lambda: value(story, "t") == "MQ==", "copied")

    for number in range(2, 8):
        make(story, "s", {"k": f"{number}Q=="})
        story.until(partial(holds, story, f"{number}Q=="), "the change is copied")
    program.stop()

    told = troubles(program)
    assert all(count == 1 for count in told.values()), told
    assert not [line for line in program.lines() if line["level"] == "error"]
    assert len(program.lines("patched")) == 7


@pytest.mark.parametrize("missing", ["list", "watch", "patch"])
def test_a_missing_right_is_told_once_and_used_when_it_is_given(real_story: Story, missing: str) -> None:
    story = real_story
    rights = {**SECRETS, "verbs": [verb for verb in SECRETS["verbs"] if verb != missing]}
    for name in ("t1", "t2", "t3"):
        make(story, name, {}, {"replace-data.k": 'json:"MQ=="'})
    kubeconfig = user(story, [rights, EVENTS, NEW_EVENTS])
    # A server that streams what is there asks for the right to watch alone.
    program = story.start("--target=secret", "--initial-list=list", kubeconfig=kubeconfig)

    if missing == "patch":
        story.until(lambda: all(story.reasons(name) == ["Forbidden"] for name in ("t1", "t2", "t3")), "reported")
        story.until(lambda: program.lines("not allowed to write"), "told")
        assert len(program.lines("not allowed to write")) == 1
    else:
        story.until(lambda: any("secrets" in told for told in troubles(program)), "a person is told")
        assert not program.lines("patched") or missing == "watch"
    told = troubles(program)
    assert all(count == 1 for count in told.values()), told
    assert program.process.poll() is None

    user(story, [SECRETS, EVENTS, NEW_EVENTS])
    if missing == "patch":
        program.stop()  # it would wait for a minute
        program = story.start("--target=secret", kubeconfig=kubeconfig)
    story.until(lambda: all(value(story, name) == "MQ==" for name in ("t1", "t2", "t3")), "written", timeout=120)
    program.stop()


def test_without_the_right_to_get_values_are_copied_and_what_needs_it_is_told_and_made_up_for(
    real_story: Story,
) -> None:
    story = real_story
    rights = {**SECRETS, "verbs": [verb for verb in SECRETS["verbs"] if verb != "get"]}
    kubeconfig = user(story, [rights, EVENTS, NEW_EVENTS])
    for name in ("s", "late"):
        make(story, name, {"k": "MQ=="})
    leaving = "[{to: data.l, from: {resource: secrets, name: s, path: data.k}, onRuleRemoved: remove}]"
    make(story, "t", {}, {"replace-data.k": "secret:s:data.k", "rules": leaving})
    program = story.start("--target=secret", kubeconfig=kubeconfig)
    story.until(lambda: value(story, "t") == "MQ==", "what is listed is copied")
    make(story, "s", {"k": "Mg=="})
    story.until(lambda: value(story, "t") == "Mg==", "and followed")

    make(story, "u", {}, {"replace-data.k": "secret:late:data.k"})
    story.until(lambda: story.reasons("u") == ["SourceUnavailable"], "a body that came too late is not to be had")
    annotations = {f"{PREFIX}rules": None}
    story.client.patch(story.ref("Secret", "t"), {"metadata": {"annotations": annotations}}, field_manager="test")
    story.until(lambda: "Kept" in story.reasons("t"), "nobody knows whose the value is, so it stays")
    assert story.content(story.ref("Secret", "t"))["data"]["l"] == "Mg=="
    told = troubles(program)
    assert all(count == 1 for count in told.values()), told

    user(story, [SECRETS, EVENTS, NEW_EVENTS])
    story.until(lambda: value(story, "u") == "MQ==", "with the right it is read", timeout=120)
    program.stop()
