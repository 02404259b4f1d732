import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informers.meta.objects import Object, OwnerReference, freeze, owner_reference
from informers.meta.resources import GVR, ObjectRef

SECRETS = GVR("", "v1", "secrets")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def parse(body: dict[str, Any], cluster: str = "") -> Object:
    return Object.parse(json.dumps(body).encode(), SECRETS, cluster=cluster)


FULL = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {
        "name": "tls",
        "namespace": "cloud",
        "uid": "u1",
        "resourceVersion": "7",
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T00:00:00Z",
        "labels": {"app": "web"},
        "annotations": {"note": "x"},
        "finalizers": ["a/b"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u0"},
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u2", "controller": True},
        ],
    },
    "data": {"k": "djE="},
}


def test_metadata_is_read_from_the_bytes() -> None:
    obj = parse(FULL, cluster="hub")

    assert obj.ref == ObjectRef(SECRETS, "cloud", "tls", "hub")
    assert (obj.name, obj.namespace, obj.cluster) == ("tls", "cloud", "hub")
    assert (obj.api_version, obj.kind) == ("v1", "Secret")
    assert (obj.uid, obj.resource_version, obj.generation) == ("u1", "7", 3)
    assert obj.creation_timestamp == "2026-01-01T00:00:00Z"
    assert obj.deletion_timestamp == "2026-01-02T00:00:00Z"
    assert (dict(obj.labels), dict(obj.annotations), list(obj.finalizers)) == ({"app": "web"}, {"note": "x"}, ["a/b"])
    assert obj.controller == OwnerReference(
        api_version="apps/v1", kind="Deployment", name="d", uid="u2", controller=True
    )
    assert [owner.name for owner in obj.owners] == ["p", "d"]


@pytest.mark.parametrize(
    "metadata", [{}, {"labels": None, "annotations": None, "finalizers": None, "generation": None}]
)
def test_missing_metadata_reads_as_empty(metadata: dict[str, Any]) -> None:
    obj = parse({"metadata": metadata})

    assert (obj.name, obj.namespace, obj.uid, obj.resource_version, obj.generation) == ("", "", "", "", 0)
    assert (obj.labels, obj.annotations, list(obj.finalizers), list(obj.owners)) == ({}, {}, [], [])
    assert (obj.creation_timestamp, obj.deletion_timestamp, obj.controller) == ("", None, None)


def test_metadata_never_decodes_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = parse(FULL)
    monkeypatch.setattr(Object, "decode", lambda self: pytest.fail("the body was decoded"))

    for attribute in ("name", "labels", "annotations", "finalizers", "owners", "controller", "generation"):
        getattr(obj, attribute)


@given(JSON)
def test_thaw_and_body_keep_json_types_exactly(value: Any) -> None:
    raw = json.dumps({"metadata": {}, "spec": value}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return
    obj = Object.parse(raw, SECRETS)

    for read in (obj.thaw(), obj.body):
        assert read == json.loads(raw)
        assert json.dumps(read) == json.dumps(json.loads(raw))


def test_thaw_gives_a_fresh_copy_each_time() -> None:
    obj = parse(FULL)

    obj.thaw()["data"]["k"] = "changed"

    assert obj.thaw()["data"] == {"k": "djE="}
    assert obj.get("data", "k") == "djE="


CHANGES: list[Callable[[Any, Any], object]] = [
    lambda mapping, _: mapping.update(x=1),
    lambda mapping, _: mapping.pop("name"),
    lambda mapping, _: mapping.setdefault("x", 1),
    lambda mapping, _: mapping.clear(),
    lambda mapping, _: mapping.__setitem__("x", 1),
    lambda mapping, _: mapping.__delitem__("name"),
    lambda mapping, _: mapping.__ior__({}),
    lambda _, items: items.append(1),
    lambda _, items: items.sort(),
    lambda _, items: items.__setitem__(0, 1),
    lambda _, items: items.__iadd__([1]),
    lambda _, items: items.clear(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_body_cannot_be_changed_at_any_depth(change: Callable[[Any, Any], object]) -> None:
    obj = parse(FULL)
    metadata: Any = obj.body["metadata"]

    with pytest.raises(TypeError, match="read-only"):
        change(metadata, metadata["finalizers"])

    assert obj.body == FULL


def test_get_follows_a_path_or_gives_the_default() -> None:
    obj = parse(FULL)

    assert obj.get("metadata", "finalizers", 0) == "a/b"
    assert obj.get("metadata", "finalizers", 5) is None
    assert obj.get("data", "k", "deeper", default="none") == "none"
    assert obj.get("spec", "replicas", default=1) == 1


def test_text_of_an_object_never_shows_content() -> None:
    obj = parse(FULL)

    assert repr(obj) == str(obj) == "<Object secrets.v1 cloud/tls uid=u1 rv=7>"


def test_owner_reference_names_the_owner() -> None:
    assert owner_reference(parse(FULL), block=False) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "name": "tls",
        "uid": "u1",
        "controller": True,
        "blockOwnerDeletion": False,
    }


def test_freeze_leaves_scalars_alone() -> None:
    assert freeze(True) is True
    assert freeze(1.0) == 1.0
