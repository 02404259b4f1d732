"""What is told about what is served: discovery, OpenAPI, tables, field selectors; and canonical values."""

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from informers.testing.apiserver import admit, discovery, fields, names, openapi, quantities, schemas, statuses, tables
from informers.testing.apiserver.kinds import BUILTIN_KINDS, Kind, Kinds
from informers.testing.apiserver.statuses import StatusError

CRD = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [
            {
                "name": name,
                "served": True,
                "storage": name == "v1",
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [
                    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
                    {"name": "First", "type": "integer", "jsonPath": ".spec.sizes[0]", "priority": 1},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "color": {"type": "string", "description": "what it looks like"},
                                    "sizes": {"type": "array", "items": {"type": "integer"}},
                                },
                            }
                        },
                    }
                },
            }
            for name in ("v1", "v2beta1")
        ],
    },
}


@pytest.fixture(scope="module")
def kinds() -> Kinds:
    found = Kinds()
    definition = found.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    assert definition is not None
    found.add_crd(admit.create(definition, CRD).obj)
    return found


def find(kinds: Kinds, *gvr: str) -> Kind:
    kind = kinds.find(*gvr)
    assert kind is not None
    return kind


class TestDiscovery:
    def test_aggregated_lists_every_kind_once(self, kinds: Kinds) -> None:
        documents = [discovery.aggregated(kinds, path) for path in ("/api", "/apis")]

        found = [
            (group["metadata"].get("name", ""), version["version"], resource["resource"])
            for document in documents
            for group in (document or {})["items"]
            for version in group["versions"]
            for resource in version["resources"]
        ]
        assert sorted(found) == sorted((k.gvr.group, k.gvr.version, k.gvr.resource) for k in kinds.all())
        assert discovery.aggregated(kinds, "/apis/apps") is None

    def test_aggregated_resource_says_all_about_it(self, kinds: Kinds) -> None:
        document = discovery.aggregated(kinds, "/apis")
        assert document is not None
        group = next(each for each in document["items"] if each["metadata"]["name"] == "example.com")

        resource = group["versions"][0]["resources"][0]

        assert [each["version"] for each in group["versions"]] == ["v1", "v2beta1"]
        assert resource["responseKind"] == {"group": "example.com", "version": "v1", "kind": "Widget"}
        assert (resource["scope"], resource["singularResource"], resource["shortNames"]) == (
            "Namespaced",
            "widget",
            ["wd"],
        )
        assert [each["subresource"] for each in resource["subresources"]] == ["status"]

    def test_legacy_documents_hang_together(self, kinds: Kinds) -> None:
        groups = discovery.legacy(kinds, "/apis")
        assert groups is not None
        for group in groups["groups"]:
            assert discovery.legacy(kinds, f"/apis/{group['name']}") == {
                "kind": "APIGroup",
                "apiVersion": "v1",
                **group,
            }
            for version in group["versions"]:
                listed = discovery.legacy(kinds, f"/apis/{version['groupVersion']}")
                assert listed is not None
                assert listed["groupVersion"] == version["groupVersion"]
                assert listed["resources"]
                assert listed["apiVersion"] == "v1"
        core = discovery.legacy(kinds, "/api/v1")
        assert core is not None
        assert core["groupVersion"] == "v1"
        assert {"pods", "pods/status", "configmaps"} <= {each["name"] for each in core["resources"]}

    @pytest.mark.parametrize("path", ["/apis/nope", "/apis/apps/v9", "/api/v2", "/nope", "/"])
    def test_other_paths_have_none(self, kinds: Kinds, path: str) -> None:
        assert discovery.legacy(kinds, path) is None


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


class TestOpenAPI:
    def test_every_group_version_has_a_document_whose_references_hold(self, kinds: Kinds) -> None:
        paths = openapi.index(kinds)["paths"]

        assert set(paths) == {f"apis/{g}/{v}" if g else f"api/{v}" for g, v in kinds.group_versions()}
        for group, version in kinds.group_versions():
            document = openapi.document(kinds, group, version)
            assert document is not None
            known = document["components"]["schemas"]
            assert {each.removeprefix("#/components/schemas/") for each in references(document)} <= set(known)

    def test_every_kind_has_its_schema_and_writing_paths(self, kinds: Kinds) -> None:
        for kind in kinds.all():
            document = openapi.document(kinds, kind.gvr.group, kind.gvr.version)
            assert document is not None
            gvk = {"group": kind.gvr.group, "version": kind.gvr.version, "kind": kind.kind}
            schema = document["components"]["schemas"][openapi.definition_name(kind)]
            assert gvk in schema["x-kubernetes-group-version-kind"]
            inside = f"/namespaces/{{namespace}}/{kind.gvr.resource}" if kind.namespaced else f"/{kind.gvr.resource}"
            item = document["paths"][f"{kind.gvr.path}{inside}/{{name}}"]
            if "patch" in kind.verbs:
                assert item["patch"]["x-kubernetes-group-version-kind"] == gvk
                parameters = {each["name"] for each in item["patch"]["parameters"]}
                assert parameters == {"dryRun", "fieldManager", "fieldValidation", "force"}

    def test_media_types_of_patches_tell_built_in_from_custom(self, kinds: Kinds) -> None:
        content = {}
        for group, resource in (("apps", "deployments"), ("example.com", "widgets")):
            document = openapi.document(kinds, group, "v1")
            assert document is not None
            path = f"/apis/{group}/v1/namespaces/{{namespace}}/{resource}/{{name}}"
            content[resource] = set(document["paths"][path]["patch"]["requestBody"]["content"])

        assert "application/strategic-merge-patch+json" in content["deployments"]
        assert content["deployments"] - content["widgets"] == {"application/strategic-merge-patch+json"}

    def test_merge_keys_are_published_and_our_own_marks_are_not(self, kinds: Kinds) -> None:
        document = openapi.document(kinds, "apps", "v1")
        assert document is not None

        containers = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]

        assert containers["x-kubernetes-patch-merge-key"] == "name"
        assert containers["x-kubernetes-patch-strategy"] == "merge"
        assert containers["x-kubernetes-list-type"] == "map"
        assert containers["x-kubernetes-list-map-keys"] == ["name"]
        assert not any(mark in json.dumps(document) for mark in schemas.OWN_EXTENSIONS)

    def test_custom_schema_keeps_its_descriptions_and_gains_metadata(self, kinds: Kinds) -> None:
        document = openapi.document(kinds, "example.com", "v1")
        assert document is not None

        properties = document["components"]["schemas"]["com.example.v1.Widget"]["properties"]

        assert set(properties) == {"apiVersion", "kind", "metadata", "spec"}
        assert properties["spec"]["properties"]["color"]["description"] == "what it looks like"

    def test_the_hash_changes_with_the_document_only(self, kinds: Kinds) -> None:
        before = openapi.hash_of(kinds, "apps", "v1"), openapi.hash_of(kinds, "example.com", "v1")
        other = Kinds()
        changed = json.loads(json.dumps(CRD))
        changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["more"] = {"type": "string"}
        other.add_crd(admit.create(find(kinds, "apiextensions.k8s.io", "v1", "customresourcedefinitions"), changed).obj)

        assert openapi.hash_of(other, "apps", "v1") == before[0]
        assert openapi.hash_of(other, "example.com", "v1") != before[1]
        assert openapi.document(kinds, "nope", "v1") is None

    def test_version_two_holds_everything(self, kinds: Kinds) -> None:
        document = openapi.v2(kinds)

        assert document["swagger"] == "2.0"
        assert {each.removeprefix("#/definitions/") for each in references(document)} <= set(document["definitions"])
        assert "com.example.v1.Widget" in document["definitions"]


class TestTables:
    def test_secrets_show_type_and_count(self, kinds: Kinds) -> None:
        obj = {"metadata": {"name": "s"}, "type": "Opaque", "data": {"a": "", "b": ""}}

        found = tables.table(find(kinds, "", "v1", "secrets"), [obj], list_meta={"resourceVersion": "7"})

        assert [column["name"] for column in found["columnDefinitions"]] == ["Name", "Type", "Data", "Age"]
        assert found["rows"][0]["cells"] == ["s", "Opaque", 2, "<unknown>"]
        assert found["rows"][0]["object"] == tables.partial(obj)
        assert found["metadata"] == {"resourceVersion": "7"}

    @pytest.mark.parametrize(("include", "wanted"), [("Object", {"metadata": {"name": "c"}}), ("None", None)])
    def test_rows_carry_what_was_asked_for(self, kinds: Kinds, include: str, wanted: Any) -> None:
        found = tables.table(find(kinds, "", "v1", "configmaps"), [{"metadata": {"name": "c"}}], include_object=include)

        assert found["rows"][0].get("object") == wanted

    def test_a_deployment_and_a_lease(self, kinds: Kinds) -> None:
        deployment = {
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
            "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1},
        }
        lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}

        rows = [
            tables.table(find(kinds, "apps", "v1", "deployments"), [deployment])["rows"][0]["cells"],
            tables.table(find(kinds, "coordination.k8s.io", "v1", "leases"), [lease])["rows"][0]["cells"],
        ]

        assert rows == [["d", "2/3", 3, 1, "<unknown>", "c", "i", "a=b"], ["l", "me", "<unknown>"]]

    def test_custom_columns_follow_their_paths(self, kinds: Kinds) -> None:
        conditions = [{"type": "Other", "status": "x"}, {"type": "Ready", "status": "True"}]
        full = {"metadata": {"name": "w"}, "spec": {"color": "red", "sizes": [3]}, "status": {"conditions": conditions}}
        empty = {"metadata": {"name": "e"}}

        found = tables.table(find(kinds, "example.com", "v1", "widgets"), [full, empty])

        assert [column["name"] for column in found["columnDefinitions"]] == ["Name", "Color", "Ready", "First"]
        assert [row["cells"] for row in found["rows"]] == [["w", "red", "True", 3], ["e", None, None, None]]

    @pytest.mark.parametrize("kind", BUILTIN_KINDS, ids=lambda kind: str(kind.gvr))
    def test_every_kind_can_show_an_object_with_nothing_in_it(self, kind: Kind) -> None:
        found = tables.table(kind, [{"metadata": {"name": "x"}}])

        assert len(found["rows"][0]["cells"]) == len(found["columnDefinitions"])

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (10800, "3h"), (11100, "3h5m"),
            (48 * 3600, "2d"), (50 * 3600, "2d2h"), (10 * 86400, "10d"), (800 * 86400, "2y70d"), (-5, "<invalid>"),
        ],
    )  # fmt: skip
    def test_ages_read_as_in_kubectl(self, seconds: int, text: str) -> None:
        assert tables.human_duration(seconds) == text


class TestFields:
    OBJ: ClassVar[dict[str, Any]] = {
        "metadata": {"name": "a", "namespace": "n"},
        "type": "Opaque",
        "spec": {"color": "red"},
        "status": {"phase": "Active"},
    }

    @pytest.mark.parametrize(
        ("gvr", "text", "wanted"),
        [
            (("", "v1", "configmaps"), "", True),
            (("", "v1", "configmaps"), "metadata.name=a", True),
            (("", "v1", "configmaps"), "metadata.name=a,metadata.namespace!=n", False),
            (("", "v1", "secrets"), "type=Opaque", True),
            (("", "v1", "secrets"), "type!=Opaque", False),
            (("", "v1", "namespaces"), "status.phase=Active", True),
            (("", "v1", "pods"), "spec.nodeName=", True),
            (("", "v1", "nodes"), "spec.unschedulable=false", True),
            (("example.com", "v1", "widgets"), "spec.color=red", True),
        ],
    )
    def test_selectors(self, kinds: Kinds, gvr: tuple[str, str, str], text: str, wanted: bool) -> None:
        assert fields.compile(find(kinds, *gvr), text)(self.OBJ) is wanted

    @pytest.mark.parametrize(
        ("gvr", "text"),
        [
            (("", "v1", "configmaps"), "data.a=b"),
            (("", "v1", "secrets"), "data=b"),
            (("example.com", "v1", "widgets"), "spec.other=x"),
            (("", "v1", "configmaps"), "metadata.name"),
            (("", "v1", "nodes"), "metadata.namespace=x"),
        ],
    )
    def test_unknown_fields_and_garbage_are_bad_requests(
        self, kinds: Kinds, gvr: tuple[str, str, str], text: str
    ) -> None:
        with pytest.raises(StatusError) as caught:
            fields.compile(find(kinds, *gvr), text)

        assert (caught.value.code, caught.value.reason) == (400, "BadRequest")


class TestQuantities:
    @pytest.mark.parametrize(
        ("given", "canonical"),
        [
            ("1000m", "1"), ("0.5", "500m"), ("1500m", "1500m"), ("1000", "1k"), ("1024", "1024"), ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"), ("0.1Gi", "107374182400m"), ("1e3", "1e3"), ("0", "0"), ("-5", "-5"), (".5", "500m"),
            ("100000", "100k"), ("1.0000000001", "1000000001n"), ("1E", "1E"), (5, "5"), (0.5, "500m"),
        ],
    )  # fmt: skip
    def test_one_form_for_each(self, given: Any, canonical: str) -> None:
        assert quantities.canonical(given) == canonical

    @pytest.mark.parametrize("given", ["", "x", "1x", "1 Gi", "1.2.3", "1KiB", "--1", "1e", "."])
    def test_garbage_is_refused(self, given: str) -> None:
        with pytest.raises(ValueError, match="quantit"):
            quantities.canonical(given)

    @settings(deadline=None)
    @given(st.integers(0, 10**12), st.sampled_from(["n", "u", "m", "", "k", "M", "Ki", "Mi", "Gi"]))
    def test_canonical_form_is_canonical_and_the_same_amount(self, number: int, suffix: str) -> None:
        text = quantities.canonical(f"{number}{suffix}")

        assert quantities.canonical(text) == text
        assert quantities.amount(text) == quantities.amount(f"{number}{suffix}")


class TestNames:
    @pytest.mark.parametrize("good", ["a", "a-b", "a.b", "1", "a" * 253])
    def test_subdomains(self, good: str) -> None:
        assert not names.subdomain_faults(good)

    @pytest.mark.parametrize("bad", ["", "A", "-a", "a-", "a..b", "a_b", "a" * 254, "a/b"])
    def test_bad_subdomains(self, bad: str) -> None:
        assert names.subdomain_faults(bad)

    @pytest.mark.parametrize("good", ["a", "A.b_c-d", "example.com/Name", "a" * 63])
    def test_qualified_names(self, good: str) -> None:
        assert not names.qualified_faults(good)

    @pytest.mark.parametrize("bad", ["", "/a", "a/", "a/b/c", "a b", "A/b", "-a", "a" * 64])
    def test_bad_qualified_names(self, bad: str) -> None:
        assert names.qualified_faults(bad)


class TestStatuses:
    KIND = BUILTIN_KINDS[0]

    @pytest.mark.parametrize(
        ("error", "code", "reason"),
        [
            (statuses.not_found(KIND, "x"), 404, "NotFound"),
            (statuses.already_exists(KIND, "x"), 409, "AlreadyExists"),
            (statuses.conflict(KIND, "x"), 409, "Conflict"),
            (statuses.invalid(KIND, "x", [statuses.required("a")]), 422, "Invalid"),
            (statuses.rejected(), 422, "Invalid"),
            (statuses.bad_request("m"), 400, "BadRequest"),
            (statuses.unauthorized(), 401, "Unauthorized"),
            (statuses.forbidden(KIND, "x", "no"), 403, "Forbidden"),
            (statuses.namespace_terminating(KIND, "x", "n"), 403, "Forbidden"),
            (statuses.method_not_allowed(), 405, "MethodNotAllowed"),
            (statuses.not_acceptable(["application/json"]), 406, "NotAcceptable"),
            (statuses.reads_json_only(), 415, "UnsupportedMediaType"),
            (statuses.too_large("limit is 3145728"), 413, "RequestEntityTooLarge"),
            (statuses.expired(), 410, "Expired"),
            (statuses.too_large_resource_version(9, 1), 504, "Timeout"),
            (statuses.too_many_requests(), 429, "TooManyRequests"),
            (statuses.internal_error("m"), 500, "InternalError"),
            (statuses.unavailable(), 503, "ServiceUnavailable"),
        ],
    )
    def test_code_and_reason_go_together(self, error: StatusError, code: int, reason: str) -> None:
        status = error.to_dict()

        assert (status["kind"], status["status"], status["code"], status["reason"]) == (
            "Status",
            "Failure",
            code,
            reason,
        )
        assert status["message"]

    def test_details_say_which_object_and_why(self) -> None:
        status = statuses.namespace_terminating(self.KIND, "x", "n").to_dict()
        fresh = statuses.expired(continue_token="t").to_dict()
        ahead = statuses.too_large_resource_version(9, 1)

        assert status["details"]["kind"] == "configmaps"
        assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        assert fresh["metadata"] == {"continue": "t"}
        assert ahead.headers["Retry-After"] == "1"
        assert ahead.to_dict()["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
