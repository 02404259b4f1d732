"""What becomes of copied values when their source or their rule goes, and when somebody else writes them too."""

from __future__ import annotations

from typing import Any

from informers import ObjectRef
from tests.flow.copier.conftest import EVENTS, PREFIX, Story


def rule(to: str, source: str, **options: Any) -> str:
    words = "".join(f", {name}: {text}" for name, text in options.items())
    return f"- {{to: {to}, from: {{resource: configmap, name: {source}, path: data.v}}{words}}}\n"


def notes(story: Story, name: str, reason: str) -> list[str]:
    found = [event.thaw() for event in story.client.list(EVENTS, namespace=story.namespace)]
    return [
        event["message"] if "message" in event else event["note"]
        for event in found
        if event["involvedObject"]["name"] == name and event["reason"] == reason
    ]


def drop_rules(story: Story, target: ObjectRef, *names: str, **content: Any) -> None:
    gone = {f"{PREFIX}{name}": None for name in names}
    story.client.patch(target, {"metadata": {"annotations": gone}, **content}, field_manager="user")


def test_each_rule_decides_what_becomes_of_its_own_value(story: Story) -> None:
    story.configmap("s1", data={"v": "1"})
    story.configmap("s2", data={"v": "2"})
    story.configmap("many", data={"m": "1", "n": "2"})
    rules = (
        rule("data.kept", "s1", onSourceMissing="retain")
        + rule("data.gone", "s1", onSourceMissing="remove")
        + rule("data.default", "s1", onSourceMissing="{default: z}")
        + rule("data.other", "s2", onRuleRemoved="retain")
    )
    target = story.configmap("t", data={"own": "x"}, rules={"rules": rules})
    removed = rule("data.gone", "s2", onRuleRemoved="remove") + rule("data.touched", "s2", onRuleRemoved="remove")
    whole = "- {op: merge, to: data, from: {resource: configmap, name: many, path: data}, onRuleRemoved: remove}\n"
    second = story.configmap(
        "u", data={"own": "x"}, rules={"rules": removed + whole, "replace-data.other": "configmap:s2:data.v"}
    )
    patch = "{containers: [{name: side, image: example.com/side:1}, {name: app, env: [{name: A, value: x}]}]}"
    merging = f"- {{op: strategic-merge, to: spec.template.spec, value: {patch}, onRuleRemoved: remove}}\n"
    deployment = story.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d", "annotations": {f"{PREFIX}rules": merging}},
            "spec": {
                "selector": {"matchLabels": {"app": "d"}},
                "template": {
                    "metadata": {"labels": {"app": "d"}},
                    "spec": {"containers": [{"name": "app", "image": "example.com/app:1"}]},
                },
            },
        }
    )

    def containers() -> list[tuple[str, int]]:
        """Return each container's name, and how many variables it has."""
        found = story.content(deployment)["spec"]["template"]["spec"]["containers"]
        return [(each["name"], len(each.get("env", ()))) for each in found]

    story.start("--target=configmap,deployment")
    story.until(lambda: containers() == [("app", 1), ("side", 0)], "an element and a part of one are merged in")
    copied = {"own": "x", "kept": "1", "gone": "1", "default": "1", "other": "2"}
    story.until(lambda: story.data("t") == copied, "all rules are copied")
    merged = {"own": "x", "gone": "2", "touched": "2", "other": "2", "m": "1", "n": "2"}
    story.until(lambda: story.data("u") == merged, "those of the second target too")

    story.remove(story.ref("ConfigMap", "s1"))
    left = {"own": "x", "kept": "1", "default": "z", "other": "2"}
    story.until(lambda: story.data("t") == left, "each rule does as it says")
    story.configmap("s1", data={"v": "3"})
    back = {"own": "x", "kept": "3", "gone": "3", "default": "3", "other": "2"}
    story.until(lambda: story.data("t") == back, "all is copied again")

    story.client.patch(story.ref("ConfigMap", "many"), {"data": {"n": None}}, field_manager="test")
    story.until(lambda: "n" not in story.data("u"), "a key that left its source has left the target")
    drop_rules(story, second, "rules", "replace-data.other", data={"touched": "by a user"})
    story.until(
        lambda: story.data("u") == {"own": "x", "touched": "by a user", "other": "2"}, "removed rules take theirs"
    )
    drop_rules(story, deployment, "rules")
    story.until(lambda: containers() == [("app", 0)], "what was merged in is taken out")
    drop_rules(story, target, "rules")
    story.configmap("s2", data={"v": "new"})
    story.configmap("w", rules={"replace-data.v": "configmap:s2:data.v"})

    story.until(lambda: story.data("w") == {"v": "new"}, "a target made after that is written")
    assert story.data("t") == back
    assert story.data("u") == {"own": "x", "touched": "by a user", "other": "2"}
    expected = {"SourceMissing", "Removed"}
    story.until(lambda: expected <= set(story.reasons("t")), "what was removed is told")
    story.until(lambda: "Kept" in story.reasons("u"), "and what was kept")
    (kept,) = notes(story, "u", "Kept")
    assert "data.touched stays: it was changed since it was copied" in kept


def test_a_target_that_is_emptied_is_filled_again_a_rival_is_named_and_what_is_refused_is_told_once(
    story: Story,
) -> None:
    story.configmap("s", data={"v": "1"})
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "t", "annotations": {f"{PREFIX}replace-data.v": "configmap:s:data.v"}},
        "data": {"v": "", "own": "keep-me"},
    }
    target = story.apply(manifest)
    tls = {"tls.crt": "", "tls.key": ""}
    story.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "kubernetes.io/tls", "data": tls}
    )
    types = {f"{PREFIX}replace-type": "secret:s:type", f"{PREFIX}replace-data.x": "secret:s:data[tls.crt]"}
    metadata = {"name": "opaque", "annotations": types}
    opaque = story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"})
    # Slow or fast, the machine has all flips within the time in which they count together.
    story.start("--target=configmap,secret", code="from controllers.copier import contest; contest.WINDOW = 1e6")
    story.until(lambda: story.data("t")["v"] == "1", "copied")
    story.apply(manifest)
    story.until(lambda: story.data("t")["v"] == "1", "filled again")

    def is_told() -> bool:
        return "Contested" in story.reasons("t")

    while not is_told():
        story.client.patch(target, {"data": {"v": "rival"}}, field_manager="the-rival")
        story.until(lambda: story.data("t")["v"] == "1" or is_told(), "what the rival did is undone, or told of")

    (note,) = notes(story, "t", "Contested")
    assert "rule replace-data.v: data.v: the-rival changes it each time" in note
    assert story.data("t")["own"] == "keep-me"

    story.until(lambda: "Immutable" in story.reasons("opaque"), "a type that cannot change is told of")
    story.client.patch(story.ref("Secret", "s"), {"data": {"tls.crt": "eA=="}}, field_manager="test")
    story.until(lambda: story.content(opaque).get("data", {}).get("x") == "eA==", "the other rule goes on")
    assert story.reasons("opaque").count("Immutable") == 1
