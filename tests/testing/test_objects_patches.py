"""What patches make of objects: a table of results that a real API server gave."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from informers.testing.apiserver import admit, managedfields, patching
from informers.testing.apiserver.kinds import Kind, Kinds
from informers.testing.apiserver.statuses import StatusError

TABLE = json.loads(Path(__file__).with_name("patch_table.json").read_text())
SERVER_SET = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "name", "namespace")
MERGE, JSON = patching.MERGE_PATCH, patching.JSON_PATCH


@pytest.fixture(scope="module")
def kinds() -> Kinds:
    found = Kinds()
    definition = found.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    assert definition is not None
    for crd in TABLE["crds"]:
        found.add_crd(admit.create(definition, crd).obj)
    return found


def find(kinds: Kinds, *gvr: str) -> Kind:
    kind = kinds.find(*gvr)
    assert kind is not None
    return kind


def created(kind: Kind, body: Any) -> dict[str, Any]:
    body = copy.deepcopy(body)
    body["metadata"] |= {"name": "x", "namespace": "n", "uid": "u"}
    return admit.create(kind, body).obj


def patched(kind: Kind, current: Any, content_type: str, patch: Any, subresource: str = "") -> dict[str, Any]:
    result = patching.apply_patch(kind, admit.read(kind, current), content_type, json.dumps(patch).encode())
    return admit.update(kind, current, result, subresource=subresource).obj


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: row["name"].replace(" ", "-"))
def test_patch_gives_what_a_real_server_gave(kinds: Kinds, row: Any) -> None:
    kind = find(kinds, *row["resource"])
    current = created(kind, row["object"])
    before = copy.deepcopy(current)

    try:
        obj = patched(kind, current, row["content_type"], row["patch"], row.get("subresource", ""))
        found: Any = (200, {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k not in SERVER_SET}})
    except StatusError as error:
        found = (error.code, error.reason)

    assert found == (row["status"], row.get("result", row.get("reason")))
    assert current == before


def test_the_table_is_large_and_covers_the_three_kinds_of_patch() -> None:
    types = [row["content_type"] for row in TABLE["rows"]]

    assert len(types) >= 60
    assert min(types.count(each) for each in (MERGE, JSON, patching.STRATEGIC_PATCH)) >= 15


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        (MERGE, b"{", "error decoding patch: unexpected end of JSON input"),
        (MERGE, b'"x"', "cannot unmarshal string into Go value of type map[string]interface {}"),
        (JSON, b"{}", "cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
    ],
)
def test_body_that_is_no_patch_is_a_bad_request(kinds: Kinds, content_type: str, body: bytes, text: str) -> None:
    kind = find(kinds, "", "v1", "configmaps")
    current = created(kind, {"metadata": {}})

    with pytest.raises(StatusError) as caught:
        patching.apply_patch(kind, current, content_type, body)

    assert caught.value.code == 400
    assert text in caught.value.message


@pytest.mark.parametrize("content_type", ["text/plain", "application/apply-patch+yaml", ""])
def test_other_media_types_are_unsupported_and_the_accepted_ones_named(kinds: Kinds, content_type: str) -> None:
    kind = find(kinds, "", "v1", "configmaps")

    with pytest.raises(StatusError) as caught:
        patching.apply_patch(kind, created(kind, {"metadata": {}}), content_type, b"{}")

    assert (caught.value.code, caught.value.reason) == (415, "UnsupportedMediaType")
    assert "application/strategic-merge-patch+json" in caught.value.message


def test_strategic_patch_of_a_custom_resource_names_what_it_takes(kinds: Kinds) -> None:
    kind = find(kinds, "patchtable.example.com", "v1", "samples")

    with pytest.raises(StatusError) as caught:
        patching.apply_patch(kind, {}, patching.STRATEGIC_PATCH, b"{}")

    assert caught.value.code == 415
    assert caught.value.message.endswith(
        "accepted media types include: application/json-patch+json, application/merge-patch+json, "
        "application/apply-patch+yaml"
    )


def test_strict_patch_with_an_unknown_or_repeated_field_is_invalid(kinds: Kinds) -> None:
    kind = find(kinds, "", "v1", "configmaps")
    current = created(kind, {"metadata": {}})

    with pytest.raises(StatusError) as caught:
        patching.apply_patch(kind, current, MERGE, b'{"nope":1,"data":{"a":"1","a":"2"}}', field_validation="Strict")

    assert caught.value.code == 422
    assert 'strict decoding error: duplicate field "data.a", unknown field "nope"' in caught.value.message


def test_result_of_another_type_is_quoted_whole_as_on_a_real_server(kinds: Kinds) -> None:
    kind = find(kinds, "", "v1", "configmaps")
    current = created(kind, {"metadata": {}, "data": {"other": "kept"}})

    with pytest.raises(StatusError) as caught:
        patching.apply_patch(kind, current, MERGE, b'{"data":{"a":5}}')

    status = caught.value.to_dict()
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert "kept" in status["message"]
    assert status["message"].endswith("cannot unmarshal number into Go struct field ConfigMap.data of type string")
    assert [cause["field"] for cause in status["details"]["causes"]] == ["patch"]


class TestManagedFields:
    def test_a_creation_owns_what_it_set(self, kinds: Kinds) -> None:
        kind = find(kinds, "", "v1", "configmaps")
        obj = created(kind, {"metadata": {"labels": {"a": "b"}}, "data": {"k": "v"}})

        recorded = managedfields.record(kind, None, obj, manager="m", time="2026-01-01T00:00:00Z")

        assert recorded["metadata"]["managedFields"] == [
            {
                "manager": "m",
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:data": {".": {}, "f:k": {}},
                    "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
                },
            }
        ]
        assert "managedFields" not in obj["metadata"]

    def test_a_change_takes_the_field_from_its_owner(self, kinds: Kinds) -> None:
        kind = find(kinds, "", "v1", "configmaps")
        first = record(kind, None, created(kind, {"metadata": {}, "data": {"a": "1", "b": "1"}}), "m1")

        second = record(kind, first, patched(kind, first, MERGE, {"data": {"a": "2", "c": "1"}}), "m2")

        assert owners(second) == {
            "m1": {"f:data": {".": {}, "f:b": {}}},
            "m2": {"f:data": {"f:a": {}, "f:c": {}}},
        }

    def test_a_field_that_is_gone_belongs_to_nobody(self, kinds: Kinds) -> None:
        kind = find(kinds, "", "v1", "configmaps")
        first = record(kind, None, created(kind, {"metadata": {}, "data": {"a": "1", "b": "1"}}), "m1")

        second = record(kind, first, patched(kind, first, MERGE, {"data": {"a": None}}), "m2")

        assert owners(second) == {"m1": {"f:data": {".": {}, "f:b": {}}}}

    def test_items_are_named_by_their_keys_defaults_included(self, kinds: Kinds) -> None:
        kind = find(kinds, "apps", "v1", "deployments")
        body = next(row["object"] for row in TABLE["rows"] if row["resource"][2] == "deployments")

        fields = owners(record(kind, None, created(kind, body), "m"))["m"]

        containers = fields["f:spec"]["f:template"]["f:spec"]["f:containers"]
        assert set(containers) == {'k:{"name":"web"}', 'k:{"name":"side"}'}
        assert 'k:{"containerPort":80,"protocol":"TCP"}' in containers['k:{"name":"web"}']["f:ports"]
        assert fields["f:spec"]["f:selector"] == {}  # atomic

    def test_status_has_an_entry_of_its_own(self, kinds: Kinds) -> None:
        kind = find(kinds, "patchtable.example.com", "v1", "samples")
        body = {"apiVersion": kind.api_version, "kind": "Sample", "metadata": {}, "spec": {"size": 1}}
        first = record(kind, None, created(kind, body), "m")
        changed = patched(kind, first, MERGE, {"status": {"ready": True}}, "status")

        second = managedfields.record(
            kind, first, changed, manager="m", subresource="status", time="2026-01-02T00:00:00Z"
        )

        entries = second["metadata"]["managedFields"]
        assert [(entry["manager"], entry.get("subresource")) for entry in entries] == [("m", None), ("m", "status")]
        assert entries[1]["fieldsV1"] == {"f:status": {".": {}, "f:ready": {}}}

    @pytest.mark.parametrize("given", [[], [{}]])
    def test_an_empty_record_clears_it_and_it_stays_away(self, kinds: Kinds, given: Any) -> None:
        kind = find(kinds, "", "v1", "configmaps")
        first = record(kind, None, created(kind, {"metadata": {}, "data": {"a": "1"}}), "m")

        second = record(kind, first, patched(kind, first, MERGE, {"metadata": {"managedFields": given}}), "m")
        third = record(kind, second, patched(kind, second, MERGE, {"data": {"a": "2"}}), "m")

        assert owners(second) == {}
        assert owners(third) == {}

    def test_an_empty_list_changes_nothing_for_a_custom_resource(self, kinds: Kinds) -> None:
        kind = find(kinds, "patchtable.example.com", "v1", "samples")
        body = {"apiVersion": kind.api_version, "kind": "Sample", "metadata": {}, "spec": {"size": 1}}
        first = record(kind, None, created(kind, body), "m")

        second = record(kind, first, patched(kind, first, MERGE, {"metadata": {"managedFields": []}}), "m")

        assert second == first

    def test_a_patch_may_hand_fields_over_to_apply(self, kinds: Kinds) -> None:
        kind = find(kinds, "", "v1", "configmaps")
        first = record(kind, None, created(kind, {"metadata": {}, "data": {"a": "1"}}), "m")
        operations = [{"op": "replace", "path": "/metadata/managedFields/0/operation", "value": "Apply"}]

        second = record(kind, first, patched(kind, first, JSON, operations), "m")

        assert [entry["operation"] for entry in second["metadata"]["managedFields"]] == ["Apply"]

    def test_a_write_that_changes_nothing_leaves_the_record_alone(self, kinds: Kinds) -> None:
        kind = find(kinds, "", "v1", "configmaps")
        first = record(kind, None, created(kind, {"metadata": {}, "data": {"a": "1"}}), "m")

        second = record(kind, first, patched(kind, first, MERGE, {"data": {"a": "1"}}), "other")

        assert second == first

    def test_the_oldest_of_many_updaters_are_joined(self, kinds: Kinds) -> None:
        kind = find(kinds, "", "v1", "configmaps")
        obj = record(kind, None, created(kind, {"metadata": {}, "data": {"k0": "1"}}), "m0")

        for n in range(1, 13):
            changed = patched(kind, obj, MERGE, {"data": {f"k{n}": "1"}})
            obj = managedfields.record(kind, obj, changed, manager=f"m{n}", time=f"2026-01-01T00:00:{n:02}Z")

        entries = owners(obj)
        assert len(entries) == 10
        assert set(entries["ancient-changes"]["f:data"]) == {".", "f:k0", "f:k1", "f:k2", "f:k3"}


def record(kind: Kind, old: Any, new: Any, manager: str) -> dict[str, Any]:
    return managedfields.record(kind, old, new, manager=manager, time="2026-01-01T00:00:00Z")


def owners(obj: Any) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", ())}
