"""CustomResourceDefinitions: which are accepted, what they define, and what they do to custom resources."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from informers.testing.apiserver import admit, crds, structural
from informers.testing.apiserver.kinds import Kind, Kinds, version_priority
from informers.testing.apiserver.statuses import StatusError

SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "name": {"type": "string", "pattern": "^x", "minLength": 2, "maxLength": 4},
        "free": {"x-kubernetes-preserve-unknown-fields": True},
        "port": {"x-kubernetes-int-or-string": True},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {
                "type": "object",
                "required": ["k"],
                "properties": {"k": {"type": "string"}, "v": {"type": "integer", "default": 3}},
            },
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "note": {"type": "string", "nullable": True},
        "nested": {
            "type": "object",
            "default": {},
            "properties": {"a": {"type": "integer", "default": 1}, "b": {"type": "boolean"}},
        },
        "few": {"type": "array", "maxItems": 2, "minItems": 1, "items": {"type": "string"}},
        "half": {"type": "number", "multipleOf": 0.5},
        "when": {"type": "string", "format": "date-time"},
        "object": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "one": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": SPEC,
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
GROUP = "example.com"
KINDS = Kinds()


def definition_kind() -> Kind:
    found = KINDS.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    assert found is not None
    return found


def crd(schema: Any = None, /, **spec: Any) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema or SCHEMA}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{spec.get('group', GROUP)}", **spec.pop("metadata", {})},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{**version, **spec.pop("version", {})}],
            **spec,
        },
    }


def defined(body: Any) -> Kinds:
    kinds = Kinds()
    kinds.add_crd(admit.create(definition_kind(), body).obj)
    return kinds


def widgets(body: Any = None, version: str = "v1") -> Kind:
    found = defined(body or crd(version={"subresources": {"status": {}}})).find(GROUP, version, "widgets")
    assert found is not None
    return found


WIDGETS = widgets()


def widget(spec: Any, **more: Any) -> dict[str, Any]:
    metadata = {"name": "w", "namespace": "n", **more.pop("metadata", {})}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": metadata, "spec": spec, **more}


def create(spec: Any, kind: Kind = WIDGETS, **more: Any) -> dict[str, Any]:
    return admit.create(kind, widget(spec, **more)).obj


def causes_of(body: Any, kind: Kind | None = None) -> list[tuple[str, str]]:
    with pytest.raises(StatusError) as caught:
        admit.create(kind or definition_kind(), body)
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    assert caught.value.details is not None
    return [(cause["field"], cause["reason"]) for cause in caught.value.details["causes"]]


class TestDefinitions:
    def test_is_served_under_all_its_names(self) -> None:
        kind = WIDGETS

        assert (kind.kind, kind.list_kind, kind.singular) == ("Widget", "WidgetList", "widget")
        assert (kind.short_names, kind.categories, kind.namespaced) == (("wd",), ("all",), True)
        assert (kind.storage, kind.crd, kind.has_status) == ("widgets.example.com", "widgets.example.com", True)

    def test_is_established_at_once(self) -> None:
        status = admit.create(definition_kind(), crd()).obj["status"]

        assert {each["type"]: each["status"] for each in status["conditions"]} == {
            "NamesAccepted": "True",
            "Established": "True",
        }
        assert status["storedVersions"] == ["v1"]
        assert status["acceptedNames"]["listKind"] == "WidgetList"

    def test_unserved_versions_are_not_served_and_removal_ends_it_all(self) -> None:
        body = crd()
        body["spec"]["versions"].append(
            {"name": "v2", "served": False, "storage": False, "schema": {"openAPIV3Schema": SCHEMA}}
        )
        kinds = defined(body)

        assert kinds.find(GROUP, "v1", "widgets") is not None
        assert kinds.find(GROUP, "v2", "widgets") is None
        kinds.remove_crd("widgets.example.com")
        assert kinds.find(GROUP, "v1", "widgets") is None
        assert kinds.find("", "v1", "pods") is not None

    def test_a_new_storage_version_is_remembered_beside_the_old_one(self) -> None:
        old = admit.create(definition_kind(), crd()).obj
        new = copy.deepcopy(old)
        new["spec"]["versions"][0]["storage"] = False
        new["spec"]["versions"].append(
            {"name": "v2", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
        )

        updated = admit.update(definition_kind(), old, new).obj

        assert updated["status"]["storedVersions"] == ["v1", "v2"]
        assert updated["metadata"]["generation"] == 2

    def test_versions_are_listed_by_priority(self) -> None:
        given = ["v1alpha1", "v2", "foo", "v1beta2", "v10", "v1", "v1beta10", "bar1"]

        assert sorted(given, key=version_priority) == [
            "v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "bar1", "foo",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("schema", "field", "reason"),
        [
            ({"properties": {"a": {"type": "string"}}}, "", "FieldValueRequired"),
            ({"type": "string"}, "", "FieldValueInvalid"),
            ({"type": "object", "properties": {"a": {}}}, "properties[a]", "FieldValueRequired"),
            ({"type": "object", "properties": {"a": {"type": "thing"}}}, "properties[a]", "FieldValueNotSupported"),
            ({"type": "object", "properties": {"a": {"type": "array"}}}, "properties[a].items", "FieldValueRequired"),
            (
                {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
                "properties[a].pattern",
                "FieldValueInvalid",
            ),
            (
                {"type": "object", "properties": {"a": {"type": "string", "default": 1}}},
                "properties[a].default",
                "FieldValueTypeInvalid",
            ),
            (
                {"type": "object", "properties": {"a": {"type": "object", "default": {"x": 1}, "properties": {"y": {"type": "string"}}}}},
                "properties[a].default",
                "FieldValueInvalid",
            ),
            (
                {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}}},
                "properties[a].uniqueItems",
                "FieldValueForbidden",
            ),
            (
                {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}}},
                "properties[a].additionalProperties",
                "FieldValueForbidden",
            ),
            (
                {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"properties": {"z": {"minLength": 1}}}]},
                "properties[z]",
                "FieldValueRequired",
            ),
            (
                {"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}}},
                "properties[a].x-kubernetes-list-map-keys",
                "FieldValueRequired",
            ),
            (
                {"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-list-type": "set"}}},
                "properties[a].type",
                "FieldValueInvalid",
            ),
            (
                {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}},
                "properties[metadata]",
                "FieldValueForbidden",
            ),
        ],
    )  # fmt: skip
    def test_bad_schema_is_invalid_at_its_place(self, schema: Any, field: str, reason: str) -> None:
        path = "spec.validation.openAPIV3Schema"
        wanted = f"{path}.{field}" if field else path

        found = causes_of(crd(schema))

        assert any((where.removesuffix(".type"), why) == (wanted.removesuffix(".type"), reason) for where, why in found)

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (crd(group="example"), "spec.group"),
            (crd(scope="Everywhere"), "spec.scope"),
            (crd(names={"plural": "widgets", "kind": "Wid_get"}), "spec.names.kind"),
            (crd(names={"plural": "widgets", "kind": "A", "listKind": "A"}), "spec.names.listKind"),
            (crd(metadata={"name": "other.example.com"}), "metadata.name"),
            (crd(version={"storage": False}), "spec.versions"),
            (crd(version={"name": "V1"}), "spec.versions[0].name"),
            (crd(version={"schema": None}), "spec.versions[0].schema.openAPIV3Schema"),
            (crd(preserveUnknownFields=True), "spec.preserveUnknownFields"),
            (crd(group="x.k8s.io"), "metadata.annotations[api-approved.kubernetes.io]"),
            (
                crd(group="x.k8s.io", metadata={"annotations": {crds.APPROVED: "because"}}),
                "metadata.annotations[api-approved.kubernetes.io]",
            ),
            (
                crd(version={"additionalPrinterColumns": [{"name": "A", "type": "thing", "jsonPath": ".a"}]}),
                "spec.additionalPrinterColumns[0].type",
            ),
            (crd(version={"selectableFields": [{"jsonPath": ".spec.nested"}]}), "spec.selectableFields[0].jsonPath"),
            (crd(version={"selectableFields": [{"jsonPath": ".spec.nope"}]}), "spec.selectableFields[0].jsonPath"),
            (crd(version={"subresources": {"scale": {"specReplicasPath": ".x"}}}), "spec.subresources.scale.specReplicasPath"),
        ],
    )  # fmt: skip
    def test_bad_definition_is_invalid_at_its_field(self, body: Any, field: str) -> None:
        assert field in [where for where, _ in causes_of(body)]

    @pytest.mark.parametrize("text", ["https://github.com/kubernetes/enhancements/pull/1", "unapproved, a test"])
    def test_approved_group_is_accepted(self, text: str) -> None:
        body = crd(group="x.k8s.io", metadata={"annotations": {crds.APPROVED: text}})

        assert admit.create(definition_kind(), body).obj["spec"]["group"] == "x.k8s.io"

    def test_rules_in_cel_are_stored_and_not_evaluated(self) -> None:
        rule = {"rule": "self.size < 0", "message": "never"}
        body = crd({**SCHEMA, "properties": {"spec": {**SPEC, "x-kubernetes-validations": [rule]}}})
        obj = admit.create(definition_kind(), body).obj

        kind = widgets(body)

        stored = obj["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        assert stored["x-kubernetes-validations"] == [rule]
        assert create({"size": 1}, kind)

    def test_names_do_not_change(self) -> None:
        old = admit.create(definition_kind(), crd()).obj
        new = copy.deepcopy(old)
        new["spec"]["names"]["kind"] = "Other"

        with pytest.raises(StatusError) as caught:
            admit.update(definition_kind(), old, new)

        assert "spec.names.kind" in caught.value.message

    def test_unknown_fields_inside_a_schema_are_found(self) -> None:
        body = crd({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "foo": 1}}}})

        with pytest.raises(StatusError) as caught:
            admit.create(definition_kind(), body, field_validation="Strict")

        assert "items.foo" in caught.value.message


class TestPruningAndDefaulting:
    def test_what_the_schema_does_not_name_is_dropped_and_told(self) -> None:
        admitted = admit.create(
            WIDGETS, widget({"size": 1, "x": 1, "map": [{"k": "a", "y": 1}]}, extra=1, metadata={"z": 1})
        )

        assert admitted.obj["spec"] == {"size": 1, "mode": "a", "map": [{"k": "a", "v": 3}], "nested": {"a": 1}}
        assert list(admitted.warnings) == [
            'unknown field "metadata.z"',
            'unknown field "extra"',
            'unknown field "spec.map[0].y"',
            'unknown field "spec.x"',
        ]

    def test_strict_refuses_it(self) -> None:
        with pytest.raises(StatusError) as caught:
            admit.create(WIDGETS, widget({"size": 1, "x": 1}), field_validation="Strict")

        assert caught.value.code == 400
        assert caught.value.message == (
            'Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.x"'
        )

    def test_free_parts_keep_everything_nulls_too(self) -> None:
        free: dict[str, Any] = {"a": None, "b": [None, {"c": 1}], "d": {}}

        assert create({"size": 1, "free": free})["spec"]["free"] == free

    def test_nulls_are_kept_where_allowed_and_count_as_absent_elsewhere(self) -> None:
        spec = create({"size": 1, "note": None, "mode": None, "name": None, "nested": {"a": None}})["spec"]

        assert spec == {"size": 1, "note": None, "mode": "a", "nested": {"a": 1}}

    def test_metadata_of_embedded_objects_is_read_as_metadata(self) -> None:
        inner = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n", "foo": 1}, "any": {"thing": 1}}

        found = create({"size": 1, "object": inner})["spec"]["object"]

        assert found == {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "any": {"thing": 1}}

    def test_defaults_added_later_show_on_read(self) -> None:
        stored = create(
            {"size": 1},
            widgets(
                crd(
                    {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
                    }
                )
            ),
        )

        assert admit.read(WIDGETS, stored)["spec"] == {"size": 1, "mode": "a", "nested": {"a": 1}}
        assert stored["spec"] == {"size": 1}

    def test_versions_differ_in_their_name_and_schema_only(self) -> None:
        body = crd()
        other = {
            "type": "object",
            "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
        }
        body["spec"]["versions"].append(
            {"name": "v2", "served": True, "storage": False, "schema": {"openAPIV3Schema": other}}
        )
        kinds = defined(body)
        first, second = kinds.find(GROUP, "v1", "widgets"), kinds.find(GROUP, "v2", "widgets")
        assert first is not None
        assert second is not None
        stored = create({"size": 1, "note": "n"}, first)

        shown = admit.read(second, stored)

        assert (shown["apiVersion"], shown["spec"]) == ("example.com/v2", {"size": 1})
        assert first.storage == second.storage

    def test_whole_numbers_are_integers_as_in_go(self) -> None:
        spec = create({"size": 2.0, "free": [1.0, 1.5, 2**70]})["spec"]

        assert spec["size"] == 2
        assert [type(each) for each in (spec["size"], *spec["free"])] == [int, int, float, float]

    def test_status_is_dropped_on_create_where_it_is_a_subresource(self) -> None:
        plain = widgets(crd())

        assert "status" not in create({"size": 1}, status={"a": 1})
        assert create({"size": 1}, plain, status={"a": 1})["status"] == {"a": 1}

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers(-3, 12) | st.floats(-2, 2) | st.sampled_from(["a", "xy", ""]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "k", "v", "z"]), inner, max_size=3)
        ),
        max_leaves=8,
    )

    @settings(deadline=None)
    @given(st.dictionaries(st.sampled_from([*SPEC["properties"], "zz"]), json_values, max_size=5))
    def test_pruning_and_defaulting_are_idempotent_and_admission_agrees_with_itself(self, spec: Any) -> None:
        schema = structural.compile_schema(SCHEMA)
        once: Any = {"spec": structural.copy(spec)}
        structural.prune(once, schema)
        structural.default(once, schema)
        twice = copy.deepcopy(once)

        unknown: list[str] = []
        structural.prune(twice, schema, unknown=unknown)
        structural.default(twice, schema)

        assert (twice, unknown) == (once, [])
        try:
            obj: dict[str, Any] | None = create(spec)
        except StatusError as error:
            obj, code = None, error.code
        else:
            code = 201
        assert code in {201, 400, 422}
        if obj is not None:
            assert admit.update(WIDGETS, obj, obj).obj == obj
            assert admit.read(WIDGETS, obj) == obj


class TestValidation:
    @pytest.mark.parametrize(
        ("spec", "field", "reason", "text"),
        [
            ({}, "spec.size", "FieldValueRequired", "Required value"),
            ({"size": "1"}, "spec.size", "FieldValueTypeInvalid", 'must be of type integer: "string"'),
            ({"size": 1.5}, "spec.size", "FieldValueTypeInvalid", 'must be of type integer: "number"'),
            ({"size": True}, "spec.size", "FieldValueTypeInvalid", 'must be of type integer: "boolean"'),
            ({"size": 0}, "spec.size", "FieldValueInvalid", "should be greater than or equal to 1"),
            ({"size": 11}, "spec.size", "FieldValueInvalid", "should be less than or equal to 10"),
            ({"size": 1, "mode": "z"}, "spec.mode", "FieldValueNotSupported", 'supported values: "a", "b"'),
            ({"size": 1, "name": "abc"}, "spec.name", "FieldValueInvalid", "should match '^x'"),
            ({"size": 1, "name": "x"}, "spec.name", "FieldValueInvalid", "should be at least 2 chars long"),
            ({"size": 1, "name": "xxxxx"}, "spec.name", "FieldValueTooLong", "may not be more than 4 bytes"),
            ({"size": 1, "port": 1.5}, "spec.port", "FieldValueTypeInvalid", "must be of type integer,string"),
            ({"size": 1, "port": True}, "spec.port", "FieldValueTypeInvalid", "must be of type integer,string"),
            ({"size": 1, "labels": {"a": 1}}, "spec.labels.a", "FieldValueTypeInvalid", "must be of type string"),
            ({"size": 1, "set": ["a", "b", "a"]}, "spec.set[2]", "FieldValueDuplicate", 'Duplicate value: "a"'),
            ({"size": 1, "map": [{"k": "a"}, {"k": "a"}]}, "spec.map[1]", "FieldValueDuplicate", '{"k":"a"}'),
            ({"size": 1, "map": [{}]}, "spec.map[0].k", "FieldValueRequired", "Required value"),
            ({"size": 1, "few": []}, "spec.few", "FieldValueInvalid", "should have at least 1 items"),
            ({"size": 1, "few": ["a", "b", "c"]}, "spec.few", "FieldValueTooMany", "must have at most 2 items"),
            ({"size": 1, "half": 0.7}, "spec.half", "FieldValueInvalid", "should be a multiple of 0.5"),
            ({"size": 1, "when": "now"}, "spec.when", "FieldValueTypeInvalid", "must be of type date-time"),
            ({"size": 1, "object": {"x": 1}}, "spec.object.kind", "FieldValueRequired", "Required value"),
            ({"size": 1, "one": {}}, "<nil>", "FieldValueInvalid", "one and only one schema"),
            ({"size": 1, "one": {"a": "1", "b": "2"}}, "<nil>", "FieldValueInvalid", "Found 2 valid alternatives"),
            ([], "spec", "FieldValueTypeInvalid", 'must be of type object: "array"'),
        ],
    )
    def test_bad_value_is_invalid_at_its_field(self, spec: Any, field: str, reason: str, text: str) -> None:
        with pytest.raises(StatusError) as caught:
            create(spec)

        assert caught.value.code == 422
        assert caught.value.details is not None
        found = {(cause["field"], cause["reason"]): cause["message"] for cause in caught.value.details["causes"]}
        assert text in found[field, reason]

    @pytest.mark.parametrize(
        "spec", [{"size": 1, "port": "http"}, {"size": 1, "port": 80}, {"size": 10, "name": "xyz"}]
    )
    def test_good_values_pass(self, spec: Any) -> None:
        assert create(spec)["spec"].items() >= spec.items()

    def test_another_kind_or_version_is_refused(self) -> None:
        assert causes_of({**widget({"size": 1}), "kind": "Gadget"}, WIDGETS) == [("kind", "FieldValueInvalid")]
        for body in ({**widget({}), "apiVersion": "example.com/v9"}, {"metadata": {"name": "w"}, "spec": {}}):
            with pytest.raises(StatusError) as caught:
                admit.create(WIDGETS, body)
            assert caught.value.code == 400

    def test_generation_counts_all_but_metadata_and_a_separate_status(self) -> None:
        plain = widgets(crd())
        for kind, generation in ((WIDGETS, 1), (plain, 2)):
            obj = create({"size": 1}, kind)
            changed = {**obj, "status": {"x": 1}, "metadata": {**obj["metadata"], "labels": {"a": "b"}}}

            assert admit.update(kind, obj, changed).obj["metadata"]["generation"] == generation


@pytest.mark.parametrize(
    ("pattern", "matches", "fails"),
    [
        (r"^a$", "a", "a\n"),
        (r"^[[:alpha:]]+$", "abc", "ab1"),
        (r"^\d+\z", "12", "12\n"),
        (r"^[$]$", "$", "a"),
    ],
)
def test_patterns_are_read_as_go_reads_them(pattern: str, matches: str, fails: str) -> None:
    compiled = structural.go_pattern(pattern)

    assert compiled.search(matches)
    assert not compiled.search(fails)


def test_pattern_that_cannot_be_read_raises() -> None:
    with pytest.raises(re.error):
        structural.go_pattern("(")
