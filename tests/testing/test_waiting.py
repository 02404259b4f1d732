"""settle() returns when all is current and done, and else says what is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from informers.api.clusters import Clusters
from informers.meta.errors import NotSyncedError
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.manager import Manager
from informers.runtime.reconciler import Request, Result
from informers.testing import waiting
from informers.testing.apiserver import APIServer
from informers.testing.waiting import settle

CONFIGMAPS = GVR("", "v1", "configmaps")
X = ObjectRef(CONFIGMAPS, "default", "x")


@pytest.fixture
def api() -> Iterator[APIServer]:
    with APIServer() as server:
        yield server


@contextmanager
def running(manager: Manager) -> Iterator[None]:
    thread = threading.Thread(target=manager.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        manager.stop()
        thread.join(60)
    assert not thread.is_alive()


def manager_of(api: APIServer) -> Manager:
    return Manager(Clusters.load(api.kubeconfig), name="test")


def put(api: APIServer, value: str) -> None:
    api.put({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "default"},
        "data": {"key": value},
    })  # fmt: skip


def test_it_returns_when_every_change_was_seen_and_reconciled(api: APIServer) -> None:
    manager = manager_of(api)
    lister = manager.lister(CONFIGMAPS)
    seen: list[object] = []

    def reconcile(request: Request) -> Result:
        if request.ref == X and (found := lister.find(X)) is not None:
            seen.append(found.get("data", "key"))
        return Result()

    manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    with running(manager):
        for number in range(5):
            put(api, str(number))
            settle(manager, 20)
            assert seen[-1] == str(number)


def test_it_waits_for_events_that_are_late(api: APIServer) -> None:
    manager = manager_of(api)
    lister = manager.lister(CONFIGMAPS)
    with running(manager):
        settle(manager, 20)
        api.faults().add(
            {"match": {"verb": "watch"}, "do": "DELAY", "seconds": 0.3, "what": "events", "existing": True}
        )

        put(api, "late")
        settle(manager, 20)

        assert lister.find(X) is not None


def test_what_is_due_later_is_not_waited_for(api: APIServer) -> None:
    manager = manager_of(api)
    manager.add_controller("c", lambda _: Result(requeue_after=3600), primary=CONFIGMAPS)
    put(api, "x")

    with running(manager):
        settle(manager, 20)


def test_a_worker_that_is_busy_is_named(api: APIServer) -> None:
    manager = manager_of(api)
    entered, leave = threading.Event(), threading.Event()

    def reconcile(_request: Request) -> Result:
        entered.set()
        assert leave.wait(60)
        return Result()

    manager.add_controller("busy", reconcile, primary=CONFIGMAPS)
    put(api, "x")
    with running(manager):
        assert entered.wait(60)
        with pytest.raises(TimeoutError, match=r"not settled after 0\.1 s: busy has 0 keys waiting, or is at one"):
            settle(manager, 0.1)
        leave.set()
        settle(manager, 20)


def test_a_cache_that_does_not_sync_is_named(api: APIServer) -> None:
    manager = manager_of(api)
    manager.lister(CONFIGMAPS)
    api.faults().add({"match": {"resource": "configmaps"}, "do": "STATUS", "code": 500})

    with running(manager), pytest.raises(TimeoutError, match=r"configmaps\.v1 is (pending|syncing)"):
        settle(manager, 0.3)


def test_a_parked_key_is_named(api: APIServer) -> None:
    manager = manager_of(api)
    parked = threading.Event()

    def reconcile(request: Request) -> Result:
        if request.ref == X:
            parked.set()
            raise NotSyncedError("not yet")
        return Result()

    controller = manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    put(api, "x")
    with running(manager):
        assert parked.wait(60)
        with pytest.raises(TimeoutError, match=r"c waits for a cache to show|c has"):
            settle(manager, 0.2)

    assert controller.name == "c"


def test_what_is_not_served_is_not_waited_for(api: APIServer) -> None:
    manager = manager_of(api)
    manager.lister("nonsense.example.com", required=False)

    with running(manager):
        settle(manager, 20)


def test_handlers_that_are_still_being_told_are_waited_for(api: APIServer) -> None:
    """The store shows the object already, and no queue has anything yet."""
    manager = manager_of(api)
    entered, leave = threading.Event(), threading.Event()

    def map_slowly(obj: Object) -> list[ObjectRef]:
        if obj.ref == X:
            entered.set()
            assert leave.wait(60)
        return []

    manager.add_controller("c", lambda _: None, primary=[], watches={CONFIGMAPS: map_slowly})
    with running(manager):
        settle(manager, 20)
        put(api, "x")
        assert entered.wait(60)
        with pytest.raises(TimeoutError, match=r"configmaps\.v1 is telling its handlers"):
            settle(manager, 0.3)
        leave.set()
        settle(manager, 20)


def test_work_that_came_while_caches_were_compared_is_waited_for(
    api: APIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(api)
    controller = manager.add_controller("c", lambda _: None, primary=[])

    def compare(_manager: Manager) -> list[str]:
        controller.enqueue(X)
        return []

    monkeypatch.setattr(waiting, "_behind", compare)

    assert waiting._busy(manager) == ["c has 1 keys waiting, or is at one"]
