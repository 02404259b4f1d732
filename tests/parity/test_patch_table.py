"""Each row of the table of patches gives the same object on both API servers."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from informers.testing.servers import Server
from informers.testing.wire import Answer, Wire

TABLE: Final = json.loads((Path(__file__).parents[1] / "testing" / "patch_table.json").read_text())
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SET_BY_SERVER: Final = {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "managedFields"}


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: row["name"])
def test_a_patch_gives_the_same_on_both_servers(server: Server, row: Any) -> None:
    wire = server.wire()
    group, version, resource = row["resource"]
    if any(group == crd["spec"]["group"] for crd in TABLE["crds"]):
        define(wire)
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    objects = f"{path}/namespaces/{server.namespace}/{resource}"
    body = {**row["object"], "metadata": {**row["object"].get("metadata", {}), "name": "x"}}
    made = create(wire, objects, body)
    assert made.status == 201, made.body

    at = "/".join(filter(None, [objects, "x", row.get("subresource", "")]))
    answer = wire.request("PATCH", at, body=row["patch"], headers={"Content-Type": row["content_type"]})

    found = answer.json()
    assert answer.status == row["status"], found
    if answer.status == 200:
        found["metadata"] = {key: value for key, value in found["metadata"].items() if key not in SET_BY_SERVER}
        assert found == row["result"]
    else:
        assert found.get("reason", "") == row["reason"]


def define(wire: Wire) -> None:
    for crd in TABLE["crds"]:
        assert wire.request("POST", CRDS, body=crd).status in {201, 409}


def create(wire: Wire, path: str, body: Any) -> Answer:
    """Create an object; of a kind that has just been defined, as soon as it is served."""
    for _ in range(200):
        answer = wire.request("POST", path, body=body)
        if answer.status not in {404, 429}:
            break
        threading.Event().wait(0.05)  # nothing signals that it is
    return answer
