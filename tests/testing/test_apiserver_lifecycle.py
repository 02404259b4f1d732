"""Namespaces and CustomResourceDefinitions live and end as on a real server."""

from __future__ import annotations

from typing import Any

import pytest

NAMESPACES = "/api/v1/namespaces"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
NAMED = "kubernetes.io/metadata.name"


def definition(**version: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
            ],
        },
    }


def widget(name: str, version: str = "v1", **more: Any) -> dict[str, Any]:
    return {"apiVersion": f"example.com/{version}", "kind": "Widget", "metadata": {"name": name}, **more}


def wait_until_gone(api: Any, path: str) -> None:
    """Follow a collection until the one object in question is deleted."""
    collection, _, name = path.rpartition("/")
    watch = api.watch(f"{collection}?watch=1&resourceVersion=1&timeoutSeconds=10")
    for word, obj in iter(watch.event, None):
        if word == "DELETED" and obj["metadata"]["name"] == name:
            return
    pytest.fail(f"{path} is still there")


class TestNamespaces:
    """Namespaces."""

    def test_first_four_exist(self, api: Any) -> None:
        names = [item["metadata"]["name"] for item in api.ask("GET", NAMESPACES).body["items"]]

        assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]

    def test_new_one_is_active_and_labelled(self, api: Any) -> None:
        body = api.ask("POST", NAMESPACES, {"metadata": {"name": "team"}}).body

        assert body["metadata"]["labels"] == {NAMED: "team"}
        assert body["spec"] == {"finalizers": ["kubernetes"]}
        assert body["status"] == {"phase": "Active"}

    def test_nothing_is_created_in_one_that_is_absent(self, api: Any) -> None:
        answer = api.ask("POST", f"{NAMESPACES}/nope/configmaps", {"metadata": {"name": "a"}})

        assert (answer.status, answer.reason) == (404, "NotFound")
        assert answer.body["message"] == 'namespaces "nope" not found'

    def test_deleted_one_takes_its_content_with_it(self, api: Any) -> None:
        api.ask("POST", NAMESPACES, {"metadata": {"name": "team"}})
        for resource in ("configmaps", "secrets"):
            api.ask("POST", f"{NAMESPACES}/team/{resource}", {"metadata": {"name": "a"}})

        answer = api.ask("DELETE", f"{NAMESPACES}/team")
        wait_until_gone(api, f"{NAMESPACES}/team")

        assert answer.body["status"]["phase"] == "Terminating"
        assert api.server.objects("configmaps") == []
        assert api.server.objects("secrets") == []

    def test_deleted_one_waits_for_the_finalizers_of_its_content(self, api: Any) -> None:
        api.ask("POST", NAMESPACES, {"metadata": {"name": "team"}})
        maps = f"{NAMESPACES}/team/configmaps"
        api.ask("POST", maps, {"metadata": {"name": "a", "finalizers": ["example.com/x"]}})
        watch = api.watch(f"{maps}?watch=1")
        assert watch.names(1) == ["ADDED a"]

        api.ask("DELETE", f"{NAMESPACES}/team")
        assert watch.names(1) == ["MODIFIED a"]
        refused = api.ask("POST", maps, {"metadata": {"name": "b"}})
        api.patch(f"{maps}/a", {"metadata": {"finalizers": None}})

        assert (refused.status, refused.reason) == (403, "Forbidden")
        assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        wait_until_gone(api, f"{NAMESPACES}/team")

    def test_finalize_takes_its_finalizers(self, api: Any) -> None:
        api.server.put(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "team", "finalizers": ["example.com/x"]},
                "spec": {"finalizers": ["kubernetes"]},
            }
        )

        answer = api.ask(
            "PUT", f"{NAMESPACES}/team/finalize", {"metadata": {"name": "team"}, "spec": {"finalizers": []}}
        )

        assert answer.status == 200
        assert "finalizers" not in answer.body["spec"]

    def test_default_may_not_be_deleted(self, api: Any) -> None:
        answer = api.ask("DELETE", f"{NAMESPACES}/default")

        assert (answer.status, answer.reason) == (403, "Forbidden")


class TestDefinitions:
    """CustomResourceDefinitions."""

    def test_new_kind_is_served_at_once(self, api: Any) -> None:
        created = api.ask("POST", CRDS, definition())
        answer = api.ask("POST", WIDGETS, widget("w", spec={}))

        assert created.status == 201
        assert answer.status == 201
        assert answer.body["spec"] == {"size": 1}

    def test_conditions_say_that_it_is_served(self, api: Any) -> None:
        api.ask("POST", CRDS, definition())

        status = api.ask("GET", f"{CRDS}/widgets.example.com").body["status"]

        assert {each["type"]: each["status"] for each in status["conditions"]} == {
            "NamesAccepted": "True",
            "Established": "True",
        }
        assert status["acceptedNames"]["kind"] == "Widget"
        assert status["storedVersions"] == ["v1"]

    def test_discovery_follows(self, api: Any) -> None:
        assert api.ask("GET", "/apis/example.com/v1").status == 404

        api.ask("POST", CRDS, definition())

        found = api.ask("GET", "/apis/example.com/v1").body
        assert [each["name"] for each in found["resources"]] == ["widgets"]
        assert "apis/example.com/v1" in api.ask("GET", "/openapi/v3").body["paths"]

    def test_lists_of_custom_resources_have_items_with_their_kind(self, api: Any) -> None:
        api.server.define(definition())
        api.ask("POST", WIDGETS, widget("w"))

        answer = api.ask("GET", WIDGETS)

        assert list(answer.body) == ["apiVersion", "items", "kind", "metadata"]
        assert answer.body["kind"] == "WidgetList"
        assert answer.body["items"][0]["kind"] == "Widget"

    def test_replace_needs_a_version(self, api: Any) -> None:
        api.server.define(definition())
        api.ask("POST", WIDGETS, widget("w"))

        answer = api.ask("PUT", f"{WIDGETS}/w", widget("w"))

        assert (answer.status, answer.reason) == (422, "Invalid")

    def test_body_without_a_kind_is_refused(self, api: Any) -> None:
        api.server.define(definition())

        answer = api.ask("POST", WIDGETS, {"metadata": {"name": "w"}})

        assert (answer.status, answer.reason) == (400, "BadRequest")

    def test_default_that_comes_later_is_there_on_reading(self, api: Any) -> None:
        api.server.define(definition(schema={"openAPIV3Schema": {"type": "object", "properties": {"spec": {
            "type": "object", "properties": {"size": {"type": "integer"}}}}}}))  # fmt: skip
        api.ask("POST", WIDGETS, widget("w", spec={}))
        assert api.ask("GET", f"{WIDGETS}/w").body["spec"] == {}

        api.server.define(definition())

        assert api.ask("GET", f"{WIDGETS}/w").body["spec"] == {"size": 1}
        assert api.ask("GET", WIDGETS).body["items"][0]["spec"] == {"size": 1}

    def test_one_object_is_served_in_every_version(self, api: Any) -> None:
        both = definition()
        first = both["spec"]["versions"][0]
        both["spec"]["versions"].append({**first, "name": "v2", "storage": False})
        api.server.define(both)
        api.ask("POST", WIDGETS, widget("w", spec={"size": 2}))
        other = WIDGETS.replace("/v1/", "/v2/")
        watch = api.watch(f"{other}?watch=1")

        assert api.ask("GET", f"{other}/w").body["apiVersion"] == "example.com/v2"
        assert watch.event()[1]["apiVersion"] == "example.com/v2"

        patched = api.patch(f"{other}/w", {"spec": {"size": 3}})
        assert patched.body["apiVersion"] == "example.com/v2"
        assert api.ask("GET", f"{WIDGETS}/w").body["apiVersion"] == "example.com/v1"
        assert api.ask("GET", WIDGETS).rv == patched.rv

    def test_version_that_is_no_longer_served_vanishes(self, api: Any) -> None:
        both = definition()
        first = both["spec"]["versions"][0]
        both["spec"]["versions"].append({**first, "name": "v2", "storage": False})
        api.server.define(both)
        other = WIDGETS.replace("/v1/", "/v2/")
        watch = api.watch(f"{other}?watch=1")

        both["spec"]["versions"][1]["served"] = False
        api.server.define(both)

        assert watch.event() is None
        assert api.ask("GET", other).status == 404
        assert api.ask("GET", WIDGETS).status == 200

    def test_deleted_one_takes_its_objects_and_watches_with_it(self, api: Any) -> None:
        api.server.define(definition())
        api.ask("POST", WIDGETS, widget("w"))
        watch = api.watch(f"{WIDGETS}?watch=1")
        assert watch.names(1) == ["ADDED w"]

        answer = api.ask("DELETE", f"{CRDS}/widgets.example.com")
        rest = watch.rest()
        wait_until_gone(api, f"{CRDS}/widgets.example.com")

        assert answer.body["metadata"]["deletionTimestamp"]
        assert [word for word, _ in rest] == ["DELETED"]
        assert api.ask("GET", WIDGETS).status == 404
        assert api.ask("GET", "/apis/example.com/v1").status == 404

    def test_deleted_one_waits_for_finalizers_and_takes_no_more(self, api: Any) -> None:
        api.server.define(definition())
        held = widget("w")
        held["metadata"]["finalizers"] = ["example.com/x"]
        api.ask("POST", WIDGETS, held)
        watch = api.watch(f"{WIDGETS}?watch=1")
        watch.event()

        api.ask("DELETE", f"{CRDS}/widgets.example.com")
        assert watch.names(1) == ["MODIFIED w"]
        refused = api.ask("POST", WIDGETS, widget("x"))
        api.patch(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})

        assert (refused.status, refused.reason) == (405, "MethodNotAllowed")
        wait_until_gone(api, f"{CRDS}/widgets.example.com")

    def test_one_that_comes_back_knows_nothing_of_the_past(self, api: Any) -> None:
        api.server.define(definition())
        api.ask("POST", WIDGETS, widget("w"))
        then = api.ask("GET", WIDGETS).rv
        api.ask("DELETE", f"{CRDS}/widgets.example.com")
        wait_until_gone(api, f"{CRDS}/widgets.example.com")

        api.server.define(definition())

        assert api.ask("GET", WIDGETS).body["items"] == []
        assert api.watch(f"{WIDGETS}?watch=1&resourceVersion={then}").event()[1]["code"] == 410

    def test_objects_behind_the_api_are_found_by_full_name(self, api: Any) -> None:
        api.server.define(definition())
        api.server.put({**widget("w"), "metadata": {"name": "w", "namespace": "default"}})

        (found,) = api.server.objects("widgets.example.com")
        api.server.remove("widgets.example.com", "w", "default")

        assert found["metadata"]["name"] == "w"
        assert api.server.objects("widgets.example.com") == []

    def test_names_that_another_has_are_not_accepted_until_it_is_gone(self, api: Any) -> None:
        api.server.define(definition())
        other = definition()
        other["metadata"]["name"] = "gadgets.example.com"
        other["spec"]["names"] = {"plural": "gadgets", "singular": "gadget", "kind": "Widget", "listKind": "GadgetList"}
        gadgets = WIDGETS.replace("widgets", "gadgets")

        api.ask("POST", CRDS, other)
        waiting = api.ask("GET", f"{CRDS}/gadgets.example.com").body["status"]["conditions"]
        refused = api.ask("GET", gadgets)
        api.ask("DELETE", f"{CRDS}/widgets.example.com")
        wait_until_gone(api, f"{CRDS}/widgets.example.com")
        watch = api.watch(f"{CRDS}?watch=1")
        accepted = next(
            obj for _, obj in iter(watch.event, None) if obj["status"]["acceptedNames"].get("kind") == "Widget"
        )

        assert [(each["type"], each["status"], each["reason"]) for each in waiting] == [
            ("NamesAccepted", "False", "KindConflict"),
            ("Established", "False", "NotAccepted"),
        ]
        assert refused.status == 404
        assert {each["status"] for each in accepted["status"]["conditions"]} == {"True"}
        assert api.ask("GET", gadgets).status == 200
