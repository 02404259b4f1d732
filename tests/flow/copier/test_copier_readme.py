"""What the README and its reference show works as it is written: one copier plays all examples at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml

from controllers import copier
from controllers.__main__ import build_manager, parse_arguments
from controllers.copier.writing import FIELD_MANAGER
from tests.flow.copier.conftest import EXAMPLES
from tests.flow.copier.test_copier_examples import EXAMPLES as TOLD_ELSEWHERE

if TYPE_CHECKING:
    import pytest

    from informers import ObjectRef
    from tests.flow.copier.conftest import Story

GITOPS = EXAMPLES.parent / "gitops"
CONTAINERS = ("spec", "template", "spec", "containers")
# What comes of each example: of which object, at which keys (a list is shown by the names in it), which value.
WANTED: Mapping[str, Mapping[tuple[str, str], Mapping[tuple[str, ...], Any]]] = {
    "replace": {("ConfigMap", "shop"): {("data",): {"colour": "green", "host": "shop.example.com", "mode": "fast"}}},
    "merge": {
        ("ConfigMap", "garden"): {
            ("data",): {"size": "small", "own": "stays"},
            ("metadata", "labels"): {"season": "spring"},
        }
    },
    "strategic-merge": {
        ("Deployment", "web"): {
            (*CONTAINERS, "app", "image"): "example.com/app:1",
            (*CONTAINERS, "app", "env", "COLOUR", "value"): "green",
            (*CONTAINERS, "app", "env", "REGION", "value"): "eu",
            (*CONTAINERS, "proxy", "image"): "example.com/proxy:2",
        }
    },
    "rules": {
        ("Deployment", "worker"): {("spec", "replicas"): 3, (*CONTAINERS, "app", "image"): "example.com/app:2"},
    },
    "paths": {
        ("ConfigMap", "facts"): {
            ("data",): {
                "ca.crt": "a certificate",
                "first": "example.com/api:1",
                "app": "example.com/api:1",
                "all": "example.com/api:1, example.com/proxy:2",
            }
        }
    },
    "every-key": {
        ("ConfigMap", "everything"): {
            ("data",): {"user": "app", "limits": '{"cpu":2,"memory":"1Gi"}', "mode": "slow", "level": "low"},
            ("metadata", "labels"): {"team": "web", "owner": "otto"},
        },
        ("Secret", "greeting"): {("data",): {"motd": "aGVsbG8="}},
        ("Deployment", "batch"): {
            (*CONTAINERS, "app", "image"): "example.com/app:1",
            (*CONTAINERS, "log", "image"): "example.com/log:1",
            ("spec", "template", "metadata", "labels"): {"app": "batch", "tier": "gold"},
        },
    },
    "consent": {("ConfigMap", "app"): {("data",): {"host": "db.prod.example.com"}}},
    "other-cluster": {("ConfigMap", "trust"): {("data",): {"ca.crt": "a certificate", "same": "a certificate"}}},
}
# What a busy machine may be told of for a moment, and that it is over.
SLOW = {"SourceUnavailable", "SchemaUnavailable", "Recovered"}
# Warnings that the examples themselves announce.
WARNED = {"app": {"ConsentMissing"}, "everything": {"SourceMissing"}}


def examples_of(story: Story, name: str) -> list[dict[str, Any]]:
    """Return the manifests of an example, with namespaces of the story's own, which are made as they are needed."""
    found = []
    for manifest in yaml.safe_load_all(moved(story, (EXAMPLES / f"{name}.yaml").read_text())):
        if manifest["kind"] != "Namespace":
            manifest["metadata"].setdefault("namespace", story.namespace)
            found.append(manifest)
    return found


def moved(story: Story, text: str) -> str:
    """Turn the namespaces that examples name into the story's."""
    for number, name in enumerate(("prod", "dev", "pki")):
        there = story.namespaces[number]
        for before, after in (
            (f": {name}\n", f": {there}\n"),
            (f"{name}/", f"{there}/"),
            (f": {name},", f": {there},"),
        ):
            text = text.replace(before, after)
    return text


def value_at(content: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if isinstance(content, list):
            content = next((each for each in content if each["name"] == key), {})
        else:
            content = content.get(key, {})
    return content


def test_every_example_does_what_it_says(story: Story) -> None:
    for _ in range(3):
        story.another_namespace()
    targets: dict[str, ObjectRef] = {}
    for name, wanted in WANTED.items():
        for manifest in examples_of(story, name):
            ref = story.apply(manifest)
            if (manifest["kind"], ref.name) in wanted:
                targets[ref.name] = ref
    context = yaml.safe_load(story.server.kubeconfig.read_text())["current-context"]

    story.start("--target=configmap,secret,deployment", f"--context=hub={context}")

    for wanted in WANTED.values():
        for (_, name), values in wanted.items():
            for keys, value in values.items():
                story.until(
                    lambda: value_at(story.content(targets[name]), keys) == value,  # noqa: B023
                    lambda: f"{name} {keys}: {value_at(story.content(targets[name]), keys)}",  # noqa: B023
                )
    for name, ref in targets.items():
        expected = {"Copied"} | WARNED.get(name, set())
        story.until(
            lambda: expected <= set(story.reasons(name, ref.namespace)),  # noqa: B023
            lambda: f"{name}: {story.events(name, ref.namespace)}",  # noqa: B023
        )
        assert set(story.reasons(name, ref.namespace)) <= expected | SLOW


def test_the_output_of_explain_is_as_it_is_shown(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        story.another_namespace()
    for manifest in examples_of(story, "consent"):
        story.apply(manifest)
    target = story.ref("ConfigMap", "app", story.namespaces[1])
    flags = ["explain", "cm", f"{target.namespace}/{target.name}", f"--kubeconfig={story.server.kubeconfig}"]
    options = parse_arguments(copier, copier.PROGRAM, flags)
    manager = build_manager(copier.PROGRAM, vars(options))
    copier.setup(manager, options)

    status = copier.main(manager, options)

    assert capsys.readouterr().out == moved(story, (EXAMPLES / "explained.txt").read_text())
    assert status == 1


def test_no_example_is_left_out() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == {*WANTED, *TOLD_ELSEWHERE, "crds"}


def test_the_examples_for_gitops_name_the_copier_and_what_it_writes() -> None:
    argo = yaml.safe_load((GITOPS / "argo-cd.yaml").read_text())
    flux = yaml.safe_load((GITOPS / "flux.yaml").read_text())

    assert argo["spec"]["ignoreDifferences"][0] == {"group": "*", "kind": "*", "managedFieldsManagers": [FIELD_MANAGER]}
    assert argo["spec"]["syncPolicy"]["syncOptions"] == ["RespectIgnoreDifferences=true"]
    assert flux["spec"]["ignore"] == [{"paths": ["/data"], "target": {"kind": "Secret", "name": "web-tls"}}]
