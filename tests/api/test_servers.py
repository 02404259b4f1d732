"""The client and the mapper against API servers as they are, embedded and real."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from informers.api.calls import Cancel
from informers.api.client import Client, collection_path
from informers.api.kubeconfig import load_kubeconfig
from informers.api.restmapper import RESTMapper
from informers.api.transport import Transport
from informers.meta.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnknownKindError,
    is_expired,
)
from informers.meta.resources import GVR, ObjectRef

if TYPE_CHECKING:
    from informers.testing.servers import Server

CONFIGMAPS = GVR("", "v1", "configmaps")


@pytest.fixture
def transport(server: Server) -> Iterator[Transport]:
    with closing(Transport(load_kubeconfig([server.kubeconfig]))) as transport:
        yield transport


@pytest.fixture
def client(transport: Transport) -> Client:
    return Client({"": transport})


def configmap(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_object_lives_from_create_to_delete(server: Server, client: Client) -> None:
    made = client.create(CONFIGMAPS, configmap("a", k="1"), namespace=server.namespace, field_manager="tests")
    assert made.ref == ObjectRef(CONFIGMAPS, server.namespace, "a")
    with pytest.raises(AlreadyExistsError):
        client.create(CONFIGMAPS, configmap("a"), namespace=server.namespace, field_manager="tests")

    patched = client.patch(made.ref, {"data": {"k": "2"}}, field_manager="tests")
    assert patched.get("data", "k") == "2"
    draft = made.thaw()
    with pytest.raises(ConflictError):
        client.update(made.ref, draft, field_manager="tests")
    draft["metadata"]["resourceVersion"] = patched.resource_version
    assert client.update(made.ref, draft, field_manager="tests").get("data", "k") == "1"
    assert client.get(made.ref, metadata_only=True).kind == "PartialObjectMetadata"

    with pytest.raises(ConflictError):
        client.delete(made.ref, uid="another")
    client.delete(made.ref, uid=made.uid)
    with pytest.raises(NotFoundError):
        client.get(made.ref)


def test_refused_write_quotes_no_value(server: Server, client: Client) -> None:
    made = client.create(CONFIGMAPS, configmap("b", k="hunter2"), namespace=server.namespace, field_manager="tests")

    with pytest.raises(InvalidError) as raised:
        client.patch(made.ref, {"data": {"n": 7}}, field_manager="tests")

    assert "hunter2" not in str(raised.value)


def test_dry_run_changes_nothing(server: Server, transport: Transport, client: Client) -> None:
    rehearsal = Client({"": transport}, dry_run=True)

    rehearsal.create(CONFIGMAPS, configmap("c"), namespace=server.namespace, field_manager="tests")

    with pytest.raises(NotFoundError):
        client.get(ObjectRef(CONFIGMAPS, server.namespace, "c"))


def test_list_comes_in_pages(server: Server, client: Client) -> None:
    for number in range(5):
        client.create(CONFIGMAPS, configmap(f"p{number}"), namespace=server.namespace, field_manager="tests")

    found = list(client.list(CONFIGMAPS, namespace=server.namespace, fields="metadata.name!=kube-root-ca.crt", limit=2))

    assert [obj.name for obj in found] == [f"p{number}" for number in range(5)]
    assert {(obj.kind, obj.api_version) for obj in found} == {("ConfigMap", "v1")}


def test_watch_brings_events_and_ends_when_it_is_cancelled(
    server: Server, transport: Transport, client: Client
) -> None:
    cancel = Cancel()
    stream = transport.open_stream(
        collection_path(CONFIGMAPS, server.namespace),
        query=[("watch", "true"), ("fieldSelector", "metadata.name=w"), ("timeoutSeconds", "60")],
        silence=30,
        deadline=60,
        cancel=cancel,
    )
    with stream:
        client.create(CONFIGMAPS, configmap("w"), namespace=server.namespace, field_manager="tests")
        event = json.loads(next(stream.lines()))
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "w")
        threading.Timer(0.05, cancel.cancel).start()
        with pytest.raises(Exception, match="cancelled"):
            list(stream.lines())


def test_watch_ends_cleanly_after_its_time(server: Server, transport: Transport) -> None:
    with transport.open_stream(
        collection_path(CONFIGMAPS, server.namespace),
        query=[("watch", "true"), ("fieldSelector", "metadata.name=none"), ("timeoutSeconds", "1")],
        silence=30,
        deadline=60,
        cancel=Cancel(),
    ) as stream:
        assert list(stream.lines()) == []


def test_continue_token_that_is_none_is_told_from_an_expired_one(server: Server, transport: Transport) -> None:
    with pytest.raises(Exception, match="list configmaps") as raised:
        transport.request(
            "GET",
            collection_path(CONFIGMAPS, server.namespace),
            query=[("limit", "1"), ("continue", "nonsense")],
            timeout=10,
            verb="list",
            ref=CONFIGMAPS,
        )

    assert not is_expired(raised.value)


@pytest.mark.parametrize(
    ("text", "gvr"),
    [
        ("cm", "configmaps.v1"),
        ("Deployment", "deployments.v1.apps"),
        ("deploy.apps", "deployments.v1.apps"),
        ("events", "events.v1"),
        ("crd", "customresourcedefinitions.v1.apiextensions.k8s.io"),
        ("lease.v1.coordination.k8s.io", "leases.v1.coordination.k8s.io"),
    ],
)
def test_kinds_are_found_by_discovery(text: str, gvr: str, transport: Transport) -> None:
    assert str(RESTMapper(transport).resolve(text).gvr) == gvr


def test_unknown_kind_gets_near_names(transport: Transport) -> None:
    with pytest.raises(UnknownKindError) as raised:
        RESTMapper(transport).resolve("deploymnt")

    assert "deployments.apps" in raised.value.candidates


def test_openapi_tells_merge_keys_of_containers(transport: Transport) -> None:
    document: Any = RESTMapper(transport).openapi("", "v1")

    containers = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    with pytest.raises(UnknownKindError):
        RESTMapper(transport).openapi("no.such.group", "v1")
