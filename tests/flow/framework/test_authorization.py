"""Whatever a program asks, it says who it is: the header is there on every path, and the part that asks is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from informers import GVR, LeaderElection, Selection

if TYPE_CHECKING:
    from informers import Request
    from tests.flow.framework.conftest import Stage

NAMESPACES = GVR("", "v1", "namespaces")
PATIENCE = 60.0

# verb, resource, and the part that the User-Agent names
ASKED = {
    ("watch", "configmaps", "informer"),
    ("list", "namespaces", "informer"),
    ("get", "configmaps", "writer"),
    ("create", "configmaps", "writer"),
    ("update", "configmaps", "writer"),
    ("patch", "configmaps", "writer"),
    ("delete", "configmaps", "writer"),
    ("deletecollection", "configmaps", "client"),
    ("list", "secrets", "client"),
    ("create", "events.events.k8s.io", "events"),
    ("create", "leases.coordination.k8s.io", "elector"),
    ("update", "leases.coordination.k8s.io", "elector"),
    ("discovery", "", "discovery"),
    ("openapi", "", "discovery"),
    ("version", "", "client"),
}


def test_every_request_says_who_we_are_and_which_part_asks(perform: Any) -> None:
    stage: Stage = perform(tokens=["t-admin=admin", "t-program=program"])
    path = stage.directory / "program"
    path.write_text(stage.server.kubeconfig.read_text().replace("t-admin", "t-program"))
    follower = stage.follow(
        Selection("configmaps", namespaces=(stage.namespace,)),
        kubeconfig=path,
        start=False,
        election=LeaderElection(name="story", namespace=stage.namespace, retry_period=0.2),
    )
    follower.follow(NAMESPACES)
    manager = follower.manager
    client = manager.client
    reconciled: list[Request] = []

    def reconcile(request: Request) -> None:
        if request.ref.name != "a":
            return
        made = client.create(
            request.ref.gvr, {"metadata": {"name": "b"}}, namespace=stage.namespace, field_manager="story"
        )
        client.patch(made.ref, {"data": {"v": "1"}}, field_manager="story")
        client.update(made.ref, {**client.get(made.ref).thaw(), "data": {"v": "2"}}, field_manager="story")
        client.delete(made.ref)
        manager.events.event(request.ref, type="Normal", reason="Done", note="done")
        reconciled.append(request)

    manager.add_controller("writer", reconcile, primary=stage.configmaps())
    stage.put("a", "1")
    # What cannot be streamed is listed.
    stage.faults.status(code=400, verb="watch", resource="namespaces", query={"sendInitialEvents": "*"})
    stage.opened.enter_context(follower)
    follower.until(lambda: reconciled, "reconciled")
    list(client.list(GVR("", "v1", "secrets"), namespace=stage.namespace))
    client.delete_collection(stage.ref("x").gvr, namespace=stage.namespace, labels="none=such")
    client.request("GET", "/version")
    manager.mapper().openapi("", "v1")
    for verb, resource in (
        ("watch", "configmaps"),
        ("create", "events.events.k8s.io"),
        ("update", "leases.coordination.k8s.io"),
    ):
        stage.embedded.wait_request(verb=verb, resource=resource, client="story*", timeout=PATIENCE)

    asked = stage.embedded.requests(client="story*")

    found = {(entry.verb, entry.resource, entry.user_agent.partition("(")[2].rstrip(")")) for entry in asked}
    assert found >= ASKED
    assert {entry.user for entry in asked} == {"program"}
    assert {entry.headers.get("authorization") for entry in asked} == {"Bearer"}
    assert all(entry.user_agent.startswith("story/") and " kube-informers/" in entry.user_agent for entry in asked)
    assert 401 not in {entry.status for entry in asked}
