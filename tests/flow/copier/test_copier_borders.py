"""What the flags say about borders: consent within a namespace, none anywhere, or no crossing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Story


def secret(story: Story, name: str, namespace: str, *, allow: str | None = None, type_: str = "Opaque") -> None:
    annotations = {} if allow is None else {"k8s-copier.fig.org/allow-copy-to": allow}
    metadata = {"name": name, "namespace": namespace, "annotations": annotations}
    manifest: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    story.apply({**manifest, "type": type_, "data": {"k": "MQ=="}})


def test_strict_asks_consent_for_a_secret_that_leaves_for_another_kind(story: Story) -> None:
    space = story.namespace
    secret(story, "closed", space)
    secret(story, "open", space, allow=f"{space}/ConfigMap/t")
    rules = {"replace-data.closed": "secret:closed:data.k", "replace-data.open": "secret:open:data.k"}
    story.configmap("t", rules=rules)
    metadata = {"name": "same", "annotations": {"k8s-copier.fig.org/replace-data.k": "secret:closed:data.k"}}
    same = story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    program = story.start("--target=configmap,secret", "--strict")

    story.until(lambda: story.content(same).get("data") == {"k": "MQ=="}, "between Secrets no consent is asked")
    story.until(lambda: story.data("t") == {"open": "MQ=="}, "with consent it is copied")
    story.until(lambda: "ConsentMissing" in story.reasons("t"), "without it is not")

    secret(story, "closed", space, allow=space)
    story.until(lambda: story.data("t") == {"open": "MQ==", "closed": "MQ=="}, "consent is used at once")
    program.stop()


def test_allow_asks_nobody_and_deny_asks_in_vain_and_some_secrets_never_cross(story: Story) -> None:
    other = story.another_namespace()
    secret(story, "s", other)
    secret(story, "release", other, allow="*", type_="helm.sh/release.v1")
    rules = {"replace-data.k": f"secret:{other}/s:data.k", "replace-data.r": f"secret:{other}/release:data.k"}
    story.configmap("t", rules=rules)
    program = story.start("--target=configmap", "--cross-namespace=allow")
    story.until(lambda: story.data("t") == {"k": "MQ=="}, "copied without consent")
    story.until(lambda: "SourceRefused" in story.reasons("t"), "a release is not, even with consent")
    program.stop()

    secret(story, "s", other, allow="*")
    story.configmap("u", rules=rules)
    program = story.start("--target=configmap", "--cross-namespace=deny")
    story.until(lambda: story.reasons("u") == ["BorderClosed"], "refused, consent or not")
    program.stop()
    assert story.data("u") == {}
