"""Random writes to custom resources: the rules of versions and generations hold, and watches replay to the present."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from informers.testing.apiserver import APIServer

WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "default": {},
                                "properties": {
                                    "size": {"type": "integer", "default": 1},
                                    "tags": {"type": "array", "items": {"type": "string"}},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}

specs = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(-3, 3),
        "tags": st.lists(st.sampled_from("ab"), max_size=2),
        "unknown": st.integers(0, 2),
    },
)
writes = st.tuples(
    st.sampled_from(("create", "replace", "patch", "status", "label", "delete")), st.sampled_from("xyz"), specs
)


@pytest.fixture
def widgets_server() -> Iterator[APIServer]:
    with APIServer(history=10_000) as server:
        server.define(CRD)
        yield server


def do(api: Any, step: tuple[str, str, dict[str, Any]]) -> Any:
    word, name, spec = step
    path = f"{WIDGETS}/{name}"
    body: dict[str, Any] = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}
    match word:
        case "create":
            return api.ask("POST", WIDGETS, body)
        case "replace":
            current = api.ask("GET", path).body
            body["metadata"]["resourceVersion"] = current.get("metadata", {}).get("resourceVersion", "1")
            return api.ask("PUT", path, body)
        case "patch":
            return api.patch(path, {"spec": spec})
        case "status":
            return api.patch(f"{path}/status", {"status": spec, "spec": {"size": 99}})
        case "label":
            return api.patch(path, {"metadata": {"labels": {"l": str(len(spec))}}})
    return api.ask("DELETE", path)


def check_step(before: Any, answer: Any, after: Any) -> None:
    """Compare an object before and after one write."""
    assert answer.status in {200, 201, 404, 409}
    if answer.status >= 400 or before.status == 404 or after.status == 404:
        return
    old, new = before.body, after.body
    grew = new["metadata"]["generation"] - old["metadata"]["generation"]
    assert grew == (new["spec"] != old["spec"])
    same = {**old, "metadata": {**old["metadata"], "managedFields": None}} == {
        **new,
        "metadata": {**new["metadata"], "managedFields": None, "resourceVersion": old["metadata"]["resourceVersion"]},
    }
    if same and old["metadata"].get("managedFields") == new["metadata"].get("managedFields"):
        assert old["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]
    else:
        assert int(new["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])
    assert "unknown" not in new["spec"]
    assert isinstance(new["spec"]["size"], int)
    assert new["spec"]["size"] != 99


def check_replay(api: Any, state: dict[str, Any], rv: str) -> None:
    """Apply everything after a version, up to the present, and compare."""
    present = {obj["metadata"]["name"]: obj for obj in api.server.objects("widgets.example.com")}
    stream = api.watch(f"{WIDGETS}?watch=1&resourceVersion={rv}")
    api.server.put({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "mark"}})
    for word, obj in iter(stream.event, None):
        name = obj["metadata"]["name"]
        if name == "mark" and word == "ADDED":
            break
        if word == "DELETED":
            del state[name]
        else:
            state[name] = obj
    stream.close()
    api.server.remove("widgets.example.com", "mark")
    assert state == present


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(writes, max_size=20))
def test_random_writes_keep_the_rules(
    widgets_server: APIServer, client_of: Any, steps: list[tuple[str, str, dict[str, Any]]]
) -> None:
    with ExitStack() as undo:
        api = client_of(widgets_server, undo)
        api.ask("DELETE", WIDGETS)
        seen: list[tuple[str, dict[str, Any]]] = []
        for step in steps:
            before = api.ask("GET", f"{WIDGETS}/{step[1]}")
            answer = do(api, step)
            after = api.ask("GET", f"{WIDGETS}/{step[1]}")
            check_step(before, answer, after)
            if after.status == 200:
                again = api.ask("PUT", f"{WIDGETS}/{step[1]}", after.body)
                assert json.loads(again.raw) == after.body  # pruning and defaulting have nothing left to do
            listed = api.ask("GET", WIDGETS)
            seen.append((listed.rv, {item["metadata"]["name"]: item for item in listed.body["items"]}))

        for rv, state in seen:
            check_replay(api, dict(state), rv)
