"""No spelling of a path reaches what no rule may write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.destinations import check_allowed
from controllers.copier.kinds import check_resource_text, is_full_form, is_guarded
from controllers.copier.paths import parse_path
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


@pytest.mark.parametrize("group", ["rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io"])
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
