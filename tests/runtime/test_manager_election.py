"""Two managers and one lease: one works, the other is warm and waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from informers import metrics
from informers.api.clusters import Clusters
from informers.backoff import Backoff
from informers.cache.listwatch import WatchOptions
from informers.clock import Stop, SystemClock
from informers.meta.errors import InformersError, LeadershipLostError, NotLeaderError
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.leaderelection import LEASES, LeaderElection
from informers.runtime.manager import Manager
from informers.runtime.reconciler import Request
from informers.testing.apiserver import APIServer

CONFIGMAPS = GVR("", "v1", "configmaps")
EVENTS = GVR("events.k8s.io", "v1", "events")
LEASE = ObjectRef(LEASES, "default", "l")
PATIENCE = 20.0
TIMES: dict[str, Any] = {"lease_duration": 4.0, "renew_deadline": 3.0, "retry_period": 0.3}


@pytest.fixture
def api() -> Iterator[APIServer]:
    with APIServer() as server:
        yield server


def until(holds: Callable[[], object], what: str) -> None:
    clock, pause = SystemClock(), threading.Event()
    end = clock.monotonic() + PATIENCE
    while not holds():
        assert clock.monotonic() < end, what
        pause.wait(0.01)


class Candidate:
    """A manager with an election, on a thread of its own, and what it has reconciled."""

    def __init__(self, api: APIServer, name: str, *, election: dict[str, Any] | None = None, **options: Any) -> None:
        self.api = api
        self.name = name
        given = {"namespace": "default", "identity": name, **TIMES, **(election or {})}
        self.manager = Manager(
            Clusters.load(str(api.kubeconfig)),
            name=name,
            election=LeaderElection("l", **given),
            tune_gc=False,
            **options,
        )
        self.reconciled: list[str] = []
        self.lister = self.manager.lister(CONFIGMAPS)
        self.manager.add_controller("c", self.reconcile, primary=CONFIGMAPS)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"program/{name}", daemon=True)

    def reconcile(self, request: Request) -> None:
        if request.ref.name.startswith("x"):
            self.reconciled.append(request.ref.name)

    def _run(self) -> None:
        try:
            self.manager.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def holds(self) -> bool:
        found = self.api.objects("leases.coordination.k8s.io")
        return bool(found) and found[0]["spec"].get("holderIdentity") == self.name

    def until_leading(self) -> None:
        until(self.manager.fence.is_open, f"{self.name} leads")

    def until_standby(self) -> None:
        """Wait until it has filled its caches and read the lease."""
        until(
            lambda: self.api.requests(resource="leases.coordination.k8s.io", verb="get", client=f"{self.name}/*"),
            "",
        )

    def join(self) -> BaseException | None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "run() does not return"
        return self.error


@pytest.fixture
def start(api: APIServer) -> Iterator[Callable[..., Candidate]]:
    with ExitStack() as opened:

        def make(name: str, prepare: Callable[[Candidate], object] = lambda _: None, **options: Any) -> Candidate:
            made = Candidate(api, name, **options)
            prepare(made)
            made.thread.start()
            opened.callback(made.join)
            opened.callback(made.manager.stop)
            return made

        yield make


Start = Callable[..., Candidate]


def put(api: APIServer, name: str) -> None:
    api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})


def lease_namespaces(api: APIServer) -> list[str]:
    return [found["metadata"]["namespace"] for found in api.objects("leases.coordination.k8s.io")]


def test_in_a_pod_the_lease_is_in_its_namespace(
    api: APIServer, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}})
    for name, value in {"token": "t", "namespace": "mine"}.items():
        (tmp_path / name).write_text(value)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBE_INFORMERS_SERVICEACCOUNT", str(tmp_path))

    start("a", election={"namespace": ""}).until_leading()

    assert lease_namespaces(api) == ["mine"]


def test_elsewhere_a_lease_without_a_namespace_is_in_default_which_is_told(
    api: APIServer, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    start("a", election={"namespace": ""}).until_leading()

    assert lease_namespaces(api) == ["default"]
    assert "no namespace given for the lease" in caplog.messages


def test_a_standby_tells_how_much_waits_for_it(api: APIServer, start: Start) -> None:
    leader = start("a")
    leader.until_leading()
    put(api, "x")

    def number(name: str, **labels: str) -> float | None:
        for series in metrics.all_series():
            if series.name == f"informers_{name}" and not isinstance(series, metrics.Histogram):
                wanted = {"controller": "waiting", **labels}
                return dict(series.samples()).get(tuple(wanted[label] for label in series.labels))
        return None

    standby = start("b", lambda one: one.manager.add_controller("waiting", one.reconcile, primary=CONFIGMAPS))
    until(lambda: number("queue_depth", priority="-100") == 1, "what is there waits")

    assert number("queue_adds_total") == 1
    assert number("reconciles_total", result="success") == number("workers") == 0
    leader.manager.stop()
    standby.until_leading()
    until(lambda: number("reconciles_total", result="success") == number("workers") == 1, "it works")


def test_a_standby_follows_and_does_nothing_until_it_leads(api: APIServer, start: Start) -> None:
    leader = start("a")
    leader.until_leading()
    everywhere: list[str] = []
    only_there: list[str] = []

    def prepare(candidate: Candidate) -> None:
        candidate.manager.add_runnable("e", lambda stop: waits(stop, everywhere), leader_only=False)
        candidate.manager.add_runnable("o", lambda stop: waits(stop, only_there))

    standby = start("b", prepare)
    standby.until_standby()
    put(api, "x")
    until(lambda: standby.lister.has_synced() and len(standby.lister.list()) == 1, "the standby follows")
    until(lambda: leader.reconciled == ["x"], "the leader works")
    until(lambda: everywhere, "runs on a standby, too")
    standby.manager.events.event(ObjectRef(CONFIGMAPS, "default", "x"), type="Normal", reason="Told", note="by b")

    assert standby.reconciled == only_there == []
    assert standby.manager.ready_problems() == standby.manager.live_problems() == {}
    with pytest.raises(NotLeaderError):
        standby.manager.client.delete(ObjectRef(CONFIGMAPS, "default", "x"))
    assert standby.manager.client.get(ObjectRef(CONFIGMAPS, "default", "x")).name == "x"
    api.clear_requests()

    leader.manager.stop()

    assert leader.join() is None
    until(lambda: standby.reconciled == ["x"] and only_there, "it goes on")
    assert not api.requests(resource="configmaps")
    assert api.objects("events.events.k8s.io") == api.objects("events") == []


def waits(stop: Stop, calls: list[str]) -> None:
    calls.append("called")
    stop.wait()


def test_a_candidate_whose_caches_are_not_filled_is_none(api: APIServer, start: Start) -> None:
    fault = api.faults().add({"match": {"resource": "configmaps"}, "do": "STATUS", "code": 500})
    candidate = start("a", watch=WatchOptions(backoff=Backoff(0.05, 0.2)))
    api.wait_request(resource="configmaps", count=2, timeout=PATIENCE)

    assert not api.requests(resource="leases.coordination.k8s.io")
    fault.remove()
    candidate.until_leading()


def test_a_lost_lease_ends_the_program(api: APIServer, start: Start) -> None:
    candidate = start("a")
    candidate.until_leading()
    put(api, "x")
    until(lambda: candidate.reconciled, "it works")

    lease = api.objects("leases.coordination.k8s.io")[0]
    api.put({**lease, "spec": {**lease["spec"], "holderIdentity": "thief"}})

    error = candidate.join()
    assert isinstance(error, LeadershipLostError)
    assert "held by thief" in str(error)
    assert not candidate.manager.fence.is_open()


def test_the_lease_is_released_after_the_work_has_ended(api: APIServer, start: Start) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work(stop: Stop) -> None:
        begun.set()
        stop.wait()
        may_end.wait(PATIENCE)

    candidate = start("a", lambda made: made.manager.add_runnable("work", work))
    assert begun.wait(PATIENCE)
    candidate.manager.stop()
    renewals = len(api.requests(resource="leases.coordination.k8s.io", verb="update", status=200))
    api.wait_request(
        resource="leases.coordination.k8s.io", verb="update", status=200, count=renewals + 2, timeout=PATIENCE
    )
    assert candidate.holds(), "it renews while work goes on"

    may_end.set()

    assert candidate.join() is None
    assert not candidate.holds()


def test_work_that_goes_on_after_the_grace_keeps_the_lease(api: APIServer, start: Start) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work(_: Stop) -> None:
        begun.set()
        may_end.wait(PATIENCE)

    candidate = start("a", lambda made: made.manager.add_runnable("work", work), shutdown_grace=0.1)
    assert begun.wait(PATIENCE)

    candidate.manager.stop()

    error = candidate.join()
    assert isinstance(error, InformersError)
    assert "still running at the end: run/work" in str(error)
    assert candidate.holds()
    assert not candidate.manager.fence.is_open()
    may_end.set()


@pytest.mark.parametrize("raises", [True, False])
def test_work_that_ends_ends_the_program_and_releases_the_lease(api: APIServer, start: Start, raises: bool) -> None:
    def work(_: Stop) -> None:
        if raises:
            msg = "the work fell over"
            raise ValueError(msg)

    candidate = start("a", lambda made: made.manager.add_runnable("work", work))

    error = candidate.join()
    assert isinstance(error, ValueError if raises else InformersError)
    assert api.objects("leases.coordination.k8s.io")
    assert not candidate.holds()


def test_a_lease_that_is_lost_while_all_is_stopped_is_an_error(api: APIServer, start: Start) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work(stop: Stop) -> None:
        begun.set()
        stop.wait()
        may_end.wait(PATIENCE)

    candidate = start("a", lambda made: made.manager.add_runnable("work", work))
    assert begun.wait(PATIENCE)
    candidate.manager.stop()
    lease = api.objects("leases.coordination.k8s.io")[0]
    api.put({**lease, "spec": {**lease["spec"], "holderIdentity": "thief"}})
    until(lambda: not candidate.manager.fence.is_open(), "lost")
    may_end.set()

    assert isinstance(candidate.join(), LeadershipLostError)


def test_the_lease_has_a_connection_of_its_own_that_no_other_request_holds_up(api: APIServer, start: Start) -> None:
    """The only turn that there is for requests is taken."""
    candidate = Candidate(api, "a")
    candidate.manager.close()
    limited = Manager(
        Clusters.load(str(api.kubeconfig), max_inflight=1, qps=0.001, burst=1),
        name="limited",
        election=LeaderElection("l", "default", identity="limited", **TIMES),
        tune_gc=False,
    )
    thread = threading.Thread(target=limited.run, daemon=True)
    thread.start()
    until(limited.fence.is_open, "leads")
    api.wait_request(resource="leases.coordination.k8s.io", verb="update", count=2, timeout=PATIENCE)

    limited.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()
