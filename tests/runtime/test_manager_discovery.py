"""What the API serves is followed from the first use of a name on; nothing that comes in between is missed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from informers.api.clusters import Clusters
from informers.api.kubeconfig import ClientConfig
from informers.cache.listwatch import Selection
from informers.runtime.manager import Manager
from informers.testing.apiserver import APIServer

GIZMOS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gizmos.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo", "listKind": "GizmoList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.mark.parametrize("are_services_forbidden", [False, True], ids=["all allowed", "apiservices forbidden"])
def test_a_kind_that_comes_between_the_first_load_and_the_first_list_of_definitions_is_not_missed(
    are_services_forbidden: bool,
) -> None:
    with APIServer() as api:
        faults = api.faults()
        if are_services_forbidden:
            faults.deny(resource="apiservices")
        # The first list of definitions is refused, and made again a second or two later.
        faults.status(code=500, verb=["list", "watch"], resource="customresourcedefinitions", times=1)
        manager = Manager(Clusters.of({"": ClientConfig(server=api.url)}), name="discovery")
        informers = manager.informers
        lister = manager.lister(Selection("gizmos"), required=False)
        thread = threading.Thread(target=manager.run)
        changed = threading.Event()
        thread.start()
        try:
            (followed,) = [one for one in informers()[""] if one.selection.resource == "gizmos"]
            followed.on_change(lambda: changed.set() if followed.state() != "pending" else None)
            assert followed.state() != "pending" or changed.wait(60), "the first load"
            api.wait_request(resource="customresourcedefinitions", status=500, timeout=60)
            api.define(GIZMOS)

            synced = threading.Event()
            followed.on_change(lambda: synced.set() if lister.has_synced() else None)
            assert lister.has_synced() or synced.wait(40), "the next reload without a hint is a minute away"
        finally:
            manager.stop()
            thread.join(60)
    assert not thread.is_alive()
