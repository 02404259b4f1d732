"""Single objects through the API: created, read, replaced, patched, deleted, by the rules of a real server."""

from __future__ import annotations

from typing import Any

import pytest

MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more.pop("metadata", {})}, **more}


def test_created_object_has_what_the_server_sets(api: Any) -> None:
    answer = api.ask("POST", MAPS, named("a", data={"k": "v"}))

    metadata = answer.body["metadata"]
    assert answer.status == 201
    assert answer.body["kind"] == "ConfigMap"
    assert answer.body["apiVersion"] == "v1"
    assert metadata["namespace"] == "default"
    assert len(metadata["uid"]) == 36
    assert metadata["creationTimestamp"].endswith("Z")
    assert int(metadata["resourceVersion"]) > 0
    assert api.ask("GET", f"{MAPS}/a").body == answer.body


def test_versions_come_from_one_counter(api: Any) -> None:
    first = api.ask("POST", MAPS, named("a"))
    second = api.ask("POST", SECRETS, named("a"))

    assert int(second.rv) == int(first.rv) + 1


def test_name_that_is_taken_is_refused(api: Any) -> None:
    api.ask("POST", MAPS, named("a"))

    answer = api.ask("POST", MAPS, named("a"))

    assert (answer.status, answer.reason) == (409, "AlreadyExists")
    assert answer.body["details"] == {"name": "a", "kind": "configmaps"}


def test_generated_names_have_five_characters_more(api: Any) -> None:
    first = api.ask("POST", MAPS, {"metadata": {"generateName": "g-"}})
    second = api.ask("POST", MAPS, {"metadata": {"generateName": "g-"}})

    names = {first.body["metadata"]["name"], second.body["metadata"]["name"]}
    assert len(names) == 2
    assert all(len(name) == 7 and name.startswith("g-") for name in names)


def test_create_with_a_version_is_refused(api: Any) -> None:
    answer = api.ask("POST", MAPS, named("a", metadata={"resourceVersion": "5"}))

    assert answer.status == 500
    assert answer.body["message"] == "resourceVersion should not be set on objects to be created"


def test_create_in_another_namespace_than_the_url_is_refused(api: Any) -> None:
    answer = api.ask("POST", MAPS, named("a", metadata={"namespace": "other"}))

    assert (answer.status, answer.reason) == (400, "BadRequest")


def test_create_without_a_namespace_in_the_url_is_not_allowed(api: Any) -> None:
    answer = api.ask("POST", "/api/v1/configmaps", named("a"))

    assert (answer.status, answer.reason) == (405, "MethodNotAllowed")


@pytest.mark.parametrize("body", [b"{x", b"[]", b'"text"'])
def test_body_that_is_no_object_is_refused(api: Any, body: bytes) -> None:
    answer = api.ask("POST", MAPS, body)

    assert (answer.status, answer.reason) == (400, "BadRequest")


def test_body_that_is_not_json_is_refused_with_advice(api: Any) -> None:
    answer = api.ask("POST", "/api/v1/namespaces", b"k8s\0", content_type="application/vnd.kubernetes.protobuf")

    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")
    assert "kubectl create -f FILE" in answer.body["message"]


def test_form_that_cannot_be_produced_is_refused(api: Any) -> None:
    answer = api.ask("GET", MAPS, headers={"Accept": "text/html"})

    assert (answer.status, answer.reason) == (406, "NotAcceptable")


def test_first_acceptable_form_is_taken(api: Any) -> None:
    accept = "application/vnd.kubernetes.protobuf, application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    api.ask("POST", MAPS, named("a", data={"k": "v"}))

    answer = api.ask("GET", f"{MAPS}/a", headers={"Accept": accept})

    assert answer.body["kind"] == "PartialObjectMetadata"
    assert "data" not in answer.body


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/nope", 404),
        ("/apis/apps/v1/nope", 404),
        (f"{MAPS}/a/nope", 404),
        ("/api/v1/configmaps/a", 404),
    ],
)
def test_resource_that_is_not_served_is_a_status(api: Any, path: str, status: int) -> None:
    answer = api.ask("GET", path)

    assert (answer.status, answer.reason) == (status, "NotFound")
    assert answer.body["message"] == "the server could not find the requested resource"


def test_path_that_is_nothing_is_plain_text(api: Any) -> None:
    for path in ("/nope", "/apis/nope.example.com/v1", "/apis/nope.example.com/v1/things"):
        answer = api.ask("GET", path)
        assert answer.status == 404
        assert answer.raw == b"404 page not found\n"


def test_dry_run_answers_as_if_done_and_does_nothing(api: Any) -> None:
    api.ask("POST", MAPS, named("there", data={"k": "v"}))
    before = api.ask("GET", MAPS).body

    created = api.ask("POST", f"{MAPS}?dryRun=All", named("a"))
    patched = api.patch(f"{MAPS}/there?dryRun=All", {"data": {"k": "w"}})
    deleted = api.ask("DELETE", f"{MAPS}/there?dryRun=All")

    assert (created.status, patched.status, deleted.status) == (201, 200, 200)
    assert "resourceVersion" not in created.body["metadata"]
    assert patched.body["data"] == {"k": "w"}
    assert api.ask("GET", MAPS).body == before


@pytest.mark.parametrize("option", ["dryRun=Some", "fieldValidation=Some"])
def test_option_with_an_unknown_value_is_refused(api: Any, option: str) -> None:
    answer = api.ask("POST", f"{MAPS}?{option}", named("a"))

    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["kind"] == "CreateOptions"


def test_manager_is_the_parameter_or_the_first_part_of_the_user_agent(api: Any) -> None:
    api.ask("POST", MAPS, named("a", data={"k": "v"}))
    answer = api.patch(f"{MAPS}/a?fieldManager=other", {"data": {"l": "w"}})

    managers = [entry["manager"] for entry in answer.body["metadata"]["managedFields"]]
    assert sorted(managers) == ["other", "tester"]


class TestReplace:
    """PUT of an object."""

    def test_replaces_what_is_there(self, api: Any) -> None:
        old = api.ask("POST", MAPS, named("a", data={"k": "v"})).body

        answer = api.ask("PUT", f"{MAPS}/a", named("a", data={"l": "w"}))

        assert answer.status == 200
        assert answer.body["data"] == {"l": "w"}
        assert answer.body["metadata"]["uid"] == old["metadata"]["uid"]
        assert answer.body["metadata"]["creationTimestamp"] == old["metadata"]["creationTimestamp"]

    def test_with_an_old_version_conflicts(self, api: Any) -> None:
        old = api.ask("POST", MAPS, named("a")).body
        api.patch(f"{MAPS}/a", {"data": {"k": "v"}})

        answer = api.ask("PUT", f"{MAPS}/a", old)

        assert (answer.status, answer.reason) == (409, "Conflict")
        assert "the object has been modified" in answer.body["message"]

    def test_with_another_uid_conflicts(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        answer = api.ask("PUT", f"{MAPS}/a", named("a", metadata={"uid": "x"}))

        assert (answer.status, answer.reason) == (409, "Conflict")
        assert "Precondition failed: UID in precondition: x" in answer.body["message"]

    def test_with_another_name_is_refused(self, api: Any) -> None:
        answer = api.ask("PUT", f"{MAPS}/a", named("b"))

        assert (answer.status, answer.reason) == (400, "BadRequest")

    def test_without_a_name_is_refused(self, api: Any) -> None:
        answer = api.ask("PUT", f"{MAPS}/a", {"metadata": {}})

        assert (answer.status, answer.reason) == (400, "BadRequest")

    def test_of_what_is_not_there_is_not_found(self, api: Any) -> None:
        assert api.ask("PUT", f"{MAPS}/a", named("a")).status == 404

    def test_creates_kinds_that_may_be_created_so(self, api: Any) -> None:
        answer = api.ask("PUT", f"{LEASES}/a", named("a", spec={"holderIdentity": "me"}))

        assert answer.status == 201

    def test_needs_a_version_where_the_real_server_wants_one(self, api: Any) -> None:
        api.ask("POST", LEASES, named("a", spec={}))

        answer = api.ask("PUT", f"{LEASES}/a", named("a", spec={"holderIdentity": "me"}))

        assert (answer.status, answer.reason) == (422, "Invalid")
        assert answer.body["details"]["causes"][0]["field"] == "metadata.resourceVersion"


class TestPatch:
    """PATCH of an object."""

    def test_that_changes_nothing_keeps_the_version(self, api: Any) -> None:
        old = api.ask("POST", MAPS, named("a", data={"k": "v"}))

        answer = api.patch(f"{MAPS}/a?fieldManager=other", {"data": {"k": "v"}})

        assert answer.status == 200
        assert answer.body == old.body

    def test_of_what_is_not_there_is_not_found(self, api: Any) -> None:
        for kind in ("merge", "strategic-merge"):
            assert api.patch(f"{MAPS}/a", {}, kind).status == 404
        assert api.patch(f"{MAPS}/a", [], "json").status == 404

    def test_with_an_old_version_conflicts(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        answer = api.patch(f"{MAPS}/a", {"metadata": {"resourceVersion": "1"}, "data": {"k": "v"}})

        assert (answer.status, answer.reason) == (409, "Conflict")

    def test_in_json_can_have_a_version_as_precondition(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        patch = [{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}]
        answer = api.patch(f"{MAPS}/a", patch, "json")

        assert (answer.status, answer.reason) == (409, "Conflict")

    def test_with_another_uid_is_invalid(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        answer = api.patch(f"{MAPS}/a", {"metadata": {"uid": "x"}})

        assert (answer.status, answer.reason) == (422, "Invalid")
        assert answer.body["details"]["causes"][0]["field"] == "metadata.uid"

    def test_with_an_old_version_and_another_uid_conflicts(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        answer = api.patch(f"{MAPS}/a", {"metadata": {"uid": "x", "resourceVersion": "1"}})

        assert answer.status == 409

    def test_with_a_failing_test_is_refused_without_a_cause(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a", data={"k": "v"}))

        answer = api.patch(f"{MAPS}/a", [{"op": "test", "path": "/data/k", "value": "w"}], "json")

        assert answer.status == 422
        assert answer.body["message"] == "the server rejected our request due to an error in our request"
        assert answer.body["details"] == {}

    def test_as_apply_is_not_served_yet(self, api: Any) -> None:
        answer = api.ask("PATCH", f"{MAPS}/a?fieldManager=x", {}, content_type="application/apply-patch+yaml")

        assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")
        assert "apply patches are not served" in answer.body["message"]

    def test_of_a_deletion_is_refused(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        answer = api.patch(f"{MAPS}/a", {"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}})

        assert (answer.status, answer.reason) == (422, "Invalid")
        assert answer.body["details"]["causes"][0]["field"] == "metadata.deletionTimestamp"

    def test_with_unknown_fields_is_refused_when_strict(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        assert api.patch(f"{MAPS}/a?fieldValidation=Strict", {"nope": 1}).status == 422
        warned = api.patch(f"{MAPS}/a?fieldValidation=Warn", {"nope": 1})
        assert warned.headers["Warning"] == '299 - "unknown field \\"nope\\""'
        assert "Warning" not in api.patch(f"{MAPS}/a?fieldValidation=Ignore", {"nope": 1}).headers

    def test_of_an_unknown_type_is_refused(self, api: Any) -> None:
        assert api.ask("PATCH", f"{MAPS}/a", {}).status == 415

    def test_of_the_name_is_refused(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        answer = api.patch(f"{MAPS}/a", {"metadata": {"name": "b"}})

        assert (answer.status, answer.reason) == (400, "BadRequest")


class TestDelete:
    """DELETE of an object."""

    def test_answers_a_status(self, api: Any) -> None:
        uid = api.ask("POST", MAPS, named("a")).body["metadata"]["uid"]

        answer = api.ask("DELETE", f"{MAPS}/a")

        assert answer.status == 200
        assert answer.body["status"] == "Success"
        assert answer.body["details"] == {"name": "a", "kind": "configmaps", "uid": uid}
        assert api.ask("GET", f"{MAPS}/a").status == 404

    def test_answers_the_object_for_kinds_that_do(self, api: Any) -> None:
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        api.ask("POST", accounts, named("a"))

        assert api.ask("DELETE", f"{accounts}/a").body["kind"] == "ServiceAccount"

    @pytest.mark.parametrize("precondition", [{"uid": "x"}, {"resourceVersion": "1"}])
    def test_with_a_precondition_that_does_not_hold_conflicts(self, api: Any, precondition: dict[str, str]) -> None:
        api.ask("POST", MAPS, named("a"))

        answer = api.ask("DELETE", f"{MAPS}/a", {"preconditions": precondition})

        assert (answer.status, answer.reason) == (409, "Conflict")
        assert api.ask("GET", f"{MAPS}/a").status == 200

    def test_waits_for_finalizers(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a", metadata={"finalizers": ["example.com/x"]}))

        marked = api.ask("DELETE", f"{MAPS}/a")
        again = api.ask("DELETE", f"{MAPS}/a")
        added = api.patch(f"{MAPS}/a", {"metadata": {"finalizers": ["example.com/x", "example.com/y"]}})
        last = api.patch(f"{MAPS}/a", {"metadata": {"finalizers": None}})

        assert marked.body["metadata"]["deletionTimestamp"]
        assert again.body == marked.body
        assert (added.status, added.reason) == (422, "Invalid")
        assert last.status == 200
        assert api.ask("GET", f"{MAPS}/a").status == 404

    @pytest.mark.parametrize("policy", ["Foreground", "Orphan"])
    def test_that_needs_a_collector_ends_by_itself(self, api: Any, policy: str) -> None:
        api.ask("POST", MAPS, named("a"))
        watch = api.watch(f"{MAPS}?watch=1&resourceVersion={api.ask('GET', MAPS).rv}")

        answer = api.ask("DELETE", f"{MAPS}/a?propagationPolicy={policy}")

        assert answer.body["metadata"]["finalizers"] == [
            {"Foreground": "foregroundDeletion", "Orphan": "orphan"}[policy]
        ]
        assert watch.names(2) == ["MODIFIED a", "DELETED a"]

    def test_with_an_unknown_policy_is_refused(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a"))

        assert api.ask("DELETE", f"{MAPS}/a?propagationPolicy=Some").status == 422

    def test_of_a_collection_takes_what_is_selected(self, api: Any) -> None:
        api.ask("POST", MAPS, named("a", metadata={"labels": {"x": "1"}}))
        api.ask("POST", MAPS, named("b"))

        answer = api.ask("DELETE", f"{MAPS}?labelSelector=x%3D1")

        assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a"]
        assert [item["metadata"]["name"] for item in api.ask("GET", MAPS).body["items"]] == ["b"]

    def test_of_a_running_pod_waits_for_its_node(self, api: Any) -> None:
        pods = "/api/v1/namespaces/default/pods"
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
        assert api.ask("POST", pods, named("a", spec=spec)).status == 201

        marked = api.ask("DELETE", f"{pods}/a")
        still = api.ask("GET", f"{pods}/a")
        gone = api.ask("DELETE", f"{pods}/a?gracePeriodSeconds=0")

        assert marked.body["metadata"]["deletionGracePeriodSeconds"] == 30
        assert still.status == 200
        assert gone.status == 200
        assert api.ask("GET", f"{pods}/a").status == 404


def test_status_changes_only_through_its_subresource(api: Any) -> None:
    path = "/api/v1/namespaces/default/services"
    api.ask("POST", path, named("a", spec={"ports": [{"port": 80}]}))
    status = {"loadBalancer": {"ingress": [{"ip": "10.1.1.1"}]}}

    plain = api.patch(f"{path}/a", {"status": status})
    through = api.patch(f"{path}/a/status", {"status": status, "spec": {"sessionAffinity": "ClientIP"}})

    assert plain.body["status"] == {"loadBalancer": {}}
    assert through.body["status"]["loadBalancer"]["ingress"][0]["ip"] == "10.1.1.1"
    assert through.body["spec"]["sessionAffinity"] == "None"


def test_writers_that_race_lose_nothing(api: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    api.ask("POST", MAPS, named("a"))

    def write(number: int) -> int:
        connection = api.connect()
        body = f'{{"data": {{"k{number}": "v"}}}}'
        connection.request("PATCH", f"{MAPS}/a", body, {"Content-Type": "application/merge-patch+json"})
        status: int = connection.getresponse().status
        return status

    with ThreadPoolExecutor(8) as pool:
        statuses = set(pool.map(write, range(32)))

    assert statuses == {200}
    assert len(api.ask("GET", f"{MAPS}/a").body["data"]) == 32


def test_events_are_the_same_in_both_groups(api: Any) -> None:
    core = "/api/v1/namespaces/default/events"
    about = {"kind": "Pod", "namespace": "default", "name": "p"}
    api.ask("POST", core, named("e", involvedObject=about, message="text", reason="Why", type="Normal"))

    other = api.ask("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e").body

    assert other["apiVersion"] == "events.k8s.io/v1"
    assert other["regarding"] == about
    assert other["note"] == "text"
    assert len(api.server.objects("events")) == 1


@pytest.mark.parametrize(
    "metadata",
    ["text", [], {"name": 5}, {"namespace": []}, {"name": "a", "labels": []}, {"name": "a", "labels": {"x": 1}}],
)
def test_metadata_of_the_wrong_type_is_refused(api: Any, metadata: Any) -> None:
    answer = api.ask("POST", MAPS, {"metadata": metadata})

    assert (answer.status, answer.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    "metadata", ["text", {"resourceVersion": {}}, {"resourceVersion": 5}, {"uid": []}, {"name": {}}]
)
def test_patch_to_metadata_of_the_wrong_type_is_refused(api: Any, metadata: Any) -> None:
    api.ask("POST", MAPS, named("a"))

    patch = (
        [{"op": "replace", "path": f"/metadata/{key}", "value": value} for key, value in metadata.items()]
        if isinstance(metadata, dict)
        else [{"op": "replace", "path": "/metadata", "value": metadata}]
    )
    answer = api.patch(f"{MAPS}/a", patch, "json")

    assert answer.status in {400, 409, 422}


@pytest.mark.parametrize(
    "options",
    [
        "[]",
        "{nope",
        '{"preconditions": []}',
        '{"preconditions": 1}',
        '{"gracePeriodSeconds": "x"}',
        '{"dryRun": "Some"}',
    ],
)
def test_delete_options_that_make_no_sense_are_refused(api: Any, options: str) -> None:
    api.ask("POST", MAPS, named("a"))

    answer = api.ask("DELETE", f"{MAPS}/a", options.encode())

    assert answer.status in {400, 422}
    assert api.ask("GET", f"{MAPS}/a").status == 200
