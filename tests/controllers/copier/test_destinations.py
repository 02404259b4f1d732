"""No spelling of a path reaches what no rule may write."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.destinations import check_allowed
from controllers.copier.kinds import check_resource_text, is_full_form, is_guarded, string_maps_of
from controllers.copier.paths import locate, parse_path, put, take
from controllers.copier.problems import RuleError
from informers import GVR, ConfigError
from informers.api.restmapper import _parse

SECRETS = GVR("", "v1", "secrets")
WIDGETS = GVR("example.io", "v1", "widgets")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "apiVersion",
            "kind",
            "metadata",
            "metadata.name",
            "metadata.generateName",
            "metadata.namespace",
            "metadata.uid",
        ),
        *(
            "metadata.resourceVersion",
            "metadata.generation",
            "metadata.creationTimestamp",
            "metadata.deletionTimestamp",
        ),
        *(
            "metadata.deletionGracePeriodSeconds",
            "metadata.managedFields",
            "metadata.ownerReferences",
            "metadata.selfLink",
        ),
        *("metadata.finalizers", "metadata.annotations", "status", "status.phase", "metadata.ownerReferences[0].uid"),
        *('metadata["name"]', '["metadata"].name', "metadata['finalizers'][0]", r"\metadata.uid", '["status"]["x"]'),
        *(
            "metadata.annotations.k8s-copier.fig.org/replace-a",
            'metadata.annotations["k8s-copier.fig.org/allow-copy-to"]',
        ),
        "metadata.annotations.kubectl.kubernetes.io/last-applied-configuration",
        r"metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration",
    ],
)
def test_a_protected_place_is_denied_in_every_spelling(text: str) -> None:
    with pytest.raises(RuleError, match="DeniedDestination"):
        check_allowed(parse_path(text), WIDGETS)


@pytest.mark.parametrize(
    "text",
    [
        "spec",
        "data.status",
        "metadata.labels",
        "metadata.labels.name",
        "metadata.annotations.example.com/a",
        "spec.kind",
    ],
)
def test_other_places_are_allowed(text: str) -> None:
    check_allowed(parse_path(text), WIDGETS)


def test_string_data_is_denied_for_secrets_only() -> None:
    check_allowed(parse_path("stringData.k"), WIDGETS)

    with pytest.raises(RuleError, match="write data"):
        check_allowed(parse_path("stringData.k"), SECRETS)


@pytest.mark.parametrize(
    "group",
    [
        *("rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io"),
        *("apiregistration.k8s.io", "certificates.k8s.io"),
    ],
)
def test_kinds_that_give_power_are_guarded(group: str) -> None:
    assert is_guarded(GVR(group, "v1", "things"))
    assert is_guarded(GVR("", "v1", "serviceaccounts"))
    assert not is_guarded(SECRETS)
    assert not is_guarded(GVR("example.io", "v1", "serviceaccounts"))


def test_only_resource_version_group_is_the_full_form() -> None:
    full = ["roles.v1.rbac.authorization.k8s.io", "serviceaccounts.v1.", "serviceaccounts.v1.core"]
    short = ["roles", "roles.v1", "roles.rbac.authorization.k8s.io", "serviceaccounts.", "serviceaccounts.core"]

    assert all(map(is_full_form, full))
    assert not any(map(is_full_form, short))


@pytest.mark.parametrize(
    "text", ["secret", "deployments.v1.apps", "services.v1.", "services.V1.", "services.", "services.core", "A.b-c.io"]
)
def test_a_kind_in_one_of_its_forms_is_taken(text: str) -> None:
    check_resource_text(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "a..b", ".a", "-a", "a_b", "a.v1..", "a.b.", "a.v1.b.", ".", "x" * 254, "apps/v1/deployments"],
)
def test_other_text_is_no_kind(text: str) -> None:
    with pytest.raises(ConfigError):
        check_resource_text(text)


def test_a_kind_as_urls_have_it_gets_the_right_form_as_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"write deployments\.v1\.apps"):
        check_resource_text("apps/v1/deployments")


@settings(deadline=None)  # the machine may be busy
@given(st.one_of(st.text(max_size=20), st.text("a.v1-/B", max_size=12)))
def test_every_text_that_is_taken_for_a_kind_is_one_for_the_mapper(text: str) -> None:
    try:
        check_resource_text(text)
    except ConfigError:
        return

    assert _parse(text).name


# --- whatever a path comes to mean -------------------------------------------------------------------------------

WORDS = (
    *(
        "metadata",
        "name",
        "uid",
        "annotations",
        "labels",
        "finalizers",
        "status",
        "kind",
        "spec",
        "data",
        "stringData",
        "x",
    ),
    *(
        "metadata.name",
        "annotations.k8s-copier.fig.org/replace-a",
        "k8s-copier.fig.org/replace-a",
        "fig",
        "org/replace-a",
    ),
    *("kubectl.kubernetes.io/last-applied-configuration", "k8s-copier"),
)


def plain(word: str) -> str:
    return "." + word


def escaped(word: str) -> str:
    return "." + word.replace(".", r"\.")


def quoted(word: str) -> str:
    return f"[{json.dumps(word)}]"


def in_single_quotes(word: str) -> str:
    return f"['{word}']"


def bare(word: str) -> str:
    return f"[{word}]"


SPELLINGS = st.sampled_from([plain, escaped, quoted, in_single_quotes, bare])
PROTECTED = (
    *(("metadata",), ("metadata", "uid"), ("metadata", "finalizers"), ("metadata", "annotations"), ("status",)),
    *(("stringData",), ("kind",), ("metadata", "annotations", "k8s-copier.fig.org/replace-a")),
    ("metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"),
)
# What leads to a protected place if it is spelt so that one does not see it, and what leads anywhere.
KEYS = st.builds(
    lambda keys, more: (*keys, *more), st.sampled_from(PROTECTED), st.lists(st.sampled_from(WORDS), max_size=1)
) | st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(tuple)


def spelt(keys: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.tuples(*(st.builds(lambda spell, key: spell(key), SPELLINGS, st.just(key)) for key in keys))


TEXTS = KEYS.flatmap(spelt)
PLAINS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["a", None]),
    lambda inside: st.dictionaries(st.sampled_from(WORDS), inside, max_size=3) | st.lists(inside, max_size=2),
    max_leaves=8,
)
DOCUMENTS = st.builds(
    lambda document, metadata, annotations: {
        "apiVersion": "v1",
        **document,
        "metadata": {"name": "t", "uid": "u", **metadata, "annotations": annotations},
    },
    st.dictionaries(st.sampled_from(WORDS), PLAINS, max_size=3),
    st.dictionaries(st.sampled_from(WORDS), PLAINS, max_size=3),
    st.dictionaries(st.sampled_from(WORDS), st.just("a"), max_size=3),
)


def protected_part(document: dict[str, Any]) -> dict[str, Any]:
    """Return what no rule may touch, without any of the code that judges paths."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    return {
        **{key: document.get(key, "absent") for key in ("apiVersion", "kind", "status", "stringData")},
        "metadata": {key: value for key, value in metadata.items() if key in {"name", "uid", "finalizers"}},
        "annotations": {
            name: text
            for name, text in annotations.items()
            if name.startswith("k8s-copier.fig.org/") or name == "kubectl.kubernetes.io/last-applied-configuration"
        },
    }


@settings(deadline=None)  # the machine may be busy
@given(TEXTS, DOCUMENTS, st.booleans())
def test_a_path_that_is_allowed_never_comes_to_mean_a_protected_place(
    parts: tuple[str, ...], document: dict[str, Any], removes: bool
) -> None:
    try:
        path = parse_path("".join(parts).removeprefix("."))
        check_allowed(path, SECRETS)
    except RuleError:
        return
    before = protected_part(document)

    changed = json.loads(json.dumps(document))
    place = locate(changed, path, string_maps_of(SECRETS))
    with suppress(RuleError):
        if removes:
            take(changed, place)
        else:
            put(changed, place, {"name": "other", "annotations": {}})

    assert protected_part(changed) == before


def test_most_words_can_be_written_in_some_place() -> None:
    allowed = {
        word
        for word in WORDS
        for parent in ("spec", "metadata.labels", "data")
        if is_allowed(f"{parent}{quoted(word)}") and is_allowed(f"{parent}{bare(word)}")
    }

    assert allowed == set(WORDS)


def is_allowed(text: str) -> bool:
    try:
        check_allowed(parse_path(text), SECRETS)
    except RuleError:
        return False
    return True
