import pytest

from informers.meta.resources import GVK, GVR, ObjectRef, Resource, is_version

DEPLOYMENTS = GVR("apps", "v1", "deployments")
SECRETS = GVR("", "v1", "secrets")


def test_resources_print_in_the_long_form_that_users_write() -> None:
    assert str(DEPLOYMENTS) == "deployments.v1.apps"
    assert str(SECRETS) == "secrets.v1"
    assert str(GVK("apps", "v1", "Deployment")) == "Deployment.v1.apps"


def test_group_versions_and_paths_follow_the_api() -> None:
    assert (DEPLOYMENTS.group_version, DEPLOYMENTS.path) == ("apps/v1", "/apis/apps/v1")
    assert (SECRETS.group_version, SECRETS.path) == ("v1", "/api/v1")
    assert Resource(DEPLOYMENTS, "Deployment", "deployment", namespaced=True).gvk == GVK("apps", "v1", "Deployment")


@pytest.mark.parametrize(
    ("api_version", "expected"), [("v1", GVK("", "v1", "X")), ("a.b/v1beta1", GVK("a.b", "v1beta1", "X"))]
)
def test_a_manifest_names_its_kind(api_version: str, expected: GVK) -> None:
    assert GVK.parse(api_version, "X") == expected
    assert expected.api_version == api_version


@pytest.mark.parametrize(
    ("text", "expected"),
    [("v1", True), ("v2beta3", True), ("v1gamma1", False), ("apps", False), ("v", False), ("v1.", False)],
)
def test_versions_are_told_from_groups(text: str, expected: bool) -> None:
    assert is_version(text) is expected


def test_a_reference_is_one_key_of_cluster_resource_namespace_and_name() -> None:
    ref = ObjectRef(DEPLOYMENTS, "default", "web")

    assert ref == ObjectRef(DEPLOYMENTS, "default", "web", "")
    assert len({ref, ObjectRef(DEPLOYMENTS, "default", "web"), ObjectRef(DEPLOYMENTS, "default", "web", "b")}) == 2
    assert ref != ObjectRef(GVR("apps", "v1beta1", "deployments"), "default", "web")
    assert ref != ObjectRef(DEPLOYMENTS, "", "default/web")


def test_references_sort_by_namespace_before_name() -> None:
    refs = [ObjectRef(SECRETS, "b", "a"), ObjectRef(SECRETS, "a-b", "z"), ObjectRef(SECRETS, "a", "z")]

    assert [ref.key for ref in sorted(refs)] == ["a/z", "a-b/z", "b/a"]


def test_a_reference_prints_with_its_cluster() -> None:
    assert str(ObjectRef(DEPLOYMENTS, "default", "web", "hub")) == "hub/deployments.v1.apps default/web"
    assert str(ObjectRef(GVR("", "v1", "nodes"), "", "n1")) == "nodes.v1 n1"


def test_a_sibling_stays_in_the_cluster() -> None:
    ref = ObjectRef(DEPLOYMENTS, "default", "web", "hub")

    assert ref.sibling(SECRETS, name="tls") == ObjectRef(SECRETS, "default", "tls", "hub")
    assert ref.sibling(GVR("", "v1", "namespaces"), namespace="", name="default").namespace == ""
