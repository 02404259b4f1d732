"""A manager starts in order, stops in reverse, and tells what ended it; on an API server that is really there."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from informers import metrics
from informers.api.clusters import Clusters
from informers.api.kubeconfig import ClientConfig
from informers.cache.listwatch import Selection
from informers.clock import Stop
from informers.meta.errors import ConfigError, InformersError, NotFoundError
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.manager import Manager
from informers.runtime.reconciler import Request, Result
from informers.testing.apiserver import APIServer
from informers.testing.clock import FakeClock
from informers.testing.waiting import settle

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")


@pytest.fixture(scope="module")
def api() -> Iterator[APIServer]:
    with APIServer() as server:
        yield server


@pytest.fixture(autouse=True)
def empty(api: APIServer) -> None:
    """Leave no objects of an earlier test."""
    for resource in ("configmaps", "secrets"):
        for found in api.objects(resource):
            meta = found["metadata"]
            api.remove(resource, meta["name"], meta["namespace"])


class Running:
    """A manager whose `run` goes on in a thread."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.manager.run()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def end(self) -> BaseException | None:
        self.manager.stop("the test is over")
        return self.join()

    def join(self, timeout: float = 60.0) -> BaseException | None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "run() does not return"
        return self.error


@contextmanager
def running(manager: Manager) -> Iterator[Running]:
    found = Running(manager)
    try:
        yield found
    finally:
        found.end()


def manager_of(api: APIServer, **options: Any) -> Manager:
    return Manager(Clusters.load(api.kubeconfig), name="test", **options)


def wait_for_stop(stop: Stop) -> None:
    stop.wait()


def create(manager: Manager, name: str, gvr: GVR = CONFIGMAPS, **data: str) -> ObjectRef:
    body = {"metadata": {"name": name}, "data": data}
    return manager.client.create(gvr, body, namespace="default", field_manager="test").ref


class Nothing:
    """Reconciles by taking note."""

    def __init__(self) -> None:
        self.seen: list[ObjectRef] = []

    def __call__(self, request: Request) -> Result:
        self.seen.append(request.ref)
        return Result()


def test_a_controller_sees_what_is_there_and_what_changes(api: APIServer) -> None:
    manager = manager_of(api)
    reconcile = Nothing()
    manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    first = create(manager, "first")

    with running(manager):
        settle(manager)
        second = create(manager, "second")
        settle(manager)
        manager.client.delete(first)
        settle(manager)

    assert [ref for ref in reconcile.seen if ref.namespace == "default"] == [first, second, first]


def test_kinds_given_as_text_are_found_and_primaries_can_be_added_while_running(api: APIServer) -> None:
    manager = manager_of(api)
    reconcile = Nothing()
    controller = manager.add_controller("c", reconcile, primary=[], required=False)
    ref = create(manager, "x", SECRETS)

    with running(manager):
        controller.add_primary("secret")
        settle(manager)

    assert ref in reconcile.seen


def test_a_controller_does_not_start_before_every_required_cache_is_filled(api: APIServer) -> None:
    manager = manager_of(api)
    synced: list[bool] = []
    secrets = manager.lister(SECRETS)
    manager.add_controller("c", lambda _: synced.append(secrets.has_synced()), primary=CONFIGMAPS)
    create(manager, "x")

    with running(manager):
        settle(manager)

    assert synced
    assert all(synced)


def test_own_writes_are_seen_before_the_next_reconcile(
    api: APIServer, eventually: Callable[[Callable[[], object]], None]
) -> None:
    """The watch lags; whoever asks for a reconcile meanwhile gets it with the write in the cache."""
    manager = manager_of(api)
    lister = manager.lister(CONFIGMAPS)
    written: list[str] = []
    writes = threading.Event()

    def reconcile(request: Request) -> Result:
        found = lister.find(request.ref)
        if writes.is_set() and found is not None and "seen" not in found.annotations:
            patch = {"metadata": {"annotations": {"seen": "yes"}}}
            written.append(manager.client.patch(request.ref, patch, field_manager="test").resource_version)
        return Result()

    controller = manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    with running(manager):
        ref = create(manager, "x")
        settle(manager)
        api.faults().add({"match": {"resource": "configmaps", "verb": "watch"}, "do": "DELAY", "seconds": 60,
                          "what": "events", "existing": True})  # fmt: skip
        writes.set()
        controller.enqueue(ref)
        eventually(lambda: written)
        for _ in range(5):
            controller.enqueue(ref)
        eventually(controller.parked)
        api.faults().clear()
        settle(manager)

    assert len(written) == 1


def test_threads_are_named_and_none_is_left(api: APIServer) -> None:
    before = set(threading.enumerate())
    manager = manager_of(api)
    manager.add_controller("c", Nothing(), primary="configmaps", workers=2)
    manager.add_runnable("side", wait_for_stop)

    with running(manager):
        settle(manager)
        manager.events.event(ObjectRef(CONFIGMAPS, "default", "x"), type="Normal", reason="R", note="n")
        names = {thread.name for thread in set(threading.enumerate()) - before}

    assert {"worker/c-1", "worker/c-2", "run/side", "events", "run/discovery", "reflector/configmaps"} <= names
    ours = ("worker/", "run/", "events", "reflector/")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]


def test_a_manager_runs_once_and_takes_controllers_only_before(api: APIServer) -> None:
    manager = manager_of(api)
    with running(manager):
        settle(manager)
        with pytest.raises(InformersError, match="comes too late"):
            manager.add_controller("late", Nothing(), primary=CONFIGMAPS)
        with pytest.raises(InformersError, match="comes too late"):
            manager.add_runnable("late", lambda _: None)
        manager.lister(SECRETS)
        settle(manager)

    with pytest.raises(InformersError, match="runs once"):
        manager.run()


def test_names_are_unique_and_checked(api: APIServer) -> None:
    manager = manager_of(api)
    manager.add_controller("c", Nothing(), primary=CONFIGMAPS)

    with pytest.raises(ConfigError, match="name 'c' is in use"):
        manager.add_controller("c", Nothing(), primary=CONFIGMAPS)
    with pytest.raises(ConfigError, match="want 1 to 63 printable characters"):
        manager.add_controller("a/b", Nothing(), primary=CONFIGMAPS)
    with pytest.raises(ConfigError, match="want 1 to 63 printable characters"):
        Manager(Clusters.load(api.kubeconfig), name="")
    with pytest.raises(ConfigError, match="shutdown_grace: want seconds, 0 or more, got -1"):
        Manager(Clusters.load(api.kubeconfig), name="x", shutdown_grace=-1)


def test_client_and_mapper_work_without_running(api: APIServer) -> None:
    before = set(threading.enumerate())
    manager = manager_of(api)

    kind = manager.mapper().resolve("cm").kind
    with pytest.raises(NotFoundError):
        manager.client.get(ObjectRef(CONFIGMAPS, "default", "absent"))

    manager.close()
    assert kind == "ConfigMap"
    mine = [one for one in set(threading.enumerate()) - before if not one.name.startswith("apiserver")]
    assert mine == []


def test_an_unknown_cluster_is_named(api: APIServer) -> None:
    manager = manager_of(api)

    assert manager.clusters() == ("",)
    assert manager.cluster_names() == {}
    with pytest.raises(ConfigError, match="cluster 'b': want one of ''"):
        manager.mapper("b")
    with pytest.raises(ConfigError, match="cluster 'b'"):
        manager.lister(CONFIGMAPS, clusters=["b"])


def test_a_stop_before_the_run_ends_it_at_once(api: APIServer) -> None:
    manager = manager_of(api)
    manager.stop()

    assert Running(manager).join() is None


def test_a_new_kind_is_known_soon_after_its_definition(api: APIServer) -> None:
    manager = manager_of(api)
    reconcile = Nothing()
    manager.add_controller("c", reconcile, primary="gizmos.example.com", required=False)

    with running(manager):
        settle_but_unserved(manager)
        api.define(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": "gizmos.example.com"},
                "spec": {
                    "group": "example.com",
                    "names": {"plural": "gizmos", "kind": "Gizmo"},
                    "scope": "Namespaced",
                    "versions": [
                        {
                            "name": "v1",
                            "served": True,
                            "storage": True,
                            "schema": {
                                "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                            },
                        }
                    ],
                },
            }
        )
        gizmos = GVR("example.com", "v1", "gizmos")
        synced = threading.Event()
        (informers,) = [one for one in manager.informers()[""] if one.selection.resource == "gizmos.example.com"]
        informers.on_change(lambda: synced.set() if informers.has_synced() else None)
        assert informers.has_synced() or synced.wait(60)
        body: dict[str, Any] = {"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": {"name": "g"}}
        ref = manager.client.create(gizmos, body, namespace="default", field_manager="test").ref
        settle(manager)

    assert ref in reconcile.seen
    api.remove("customresourcedefinitions", "gizmos.example.com")


def settle_but_unserved(manager: Manager) -> None:
    settle(manager)
    (informers,) = [one for one in manager.informers()[""] if isinstance(one.selection.resource, str)]
    assert informers.state() == "unserved"


# What ends it.


def test_a_runnable_that_raises_ends_the_program_with_its_error(api: APIServer) -> None:
    manager = manager_of(api)

    def fail(_stop: Stop) -> None:
        raise LookupError("gone")

    manager.add_runnable("side", fail)

    error = Running(manager).join()

    assert isinstance(error, LookupError)


def test_a_runnable_that_ends_early_ends_the_program(api: APIServer) -> None:
    manager = manager_of(api)
    manager.add_runnable("side", lambda _: None)

    error = Running(manager).join()

    assert isinstance(error, InformersError)
    assert "run/side ended" in str(error)


def test_a_runnable_that_asks_for_the_stop_and_ends_is_no_error(api: APIServer) -> None:
    manager = manager_of(api)
    manager.add_runnable("once", lambda _: manager.stop("done"))

    assert Running(manager).join() is None


def test_a_worker_that_dies_ends_the_program_and_liveness_tells(api: APIServer) -> None:
    manager = manager_of(api)

    def die(_request: Request) -> Result:
        raise SystemExit(3)

    manager.add_controller("c", die, primary=CONFIGMAPS)
    create(manager, "x")

    error = Running(manager).join()

    assert isinstance(error, SystemExit)
    assert manager.live_problems() == {"thread worker/c-1": "ended"}


def test_a_reflector_that_dies_ends_the_program(api: APIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from informers.cache.reflector import Reflector

    def die(_self: Reflector) -> None:
        raise LookupError("decoding")

    monkeypatch.setattr(Reflector, "run", die)
    manager = manager_of(api)
    manager.add_controller("c", Nothing(), primary=CONFIGMAPS)

    assert isinstance(Running(manager).join(), LookupError)


def test_what_fails_while_stopping_is_told_and_raised(api: APIServer, caplog: pytest.LogCaptureFixture) -> None:
    manager = manager_of(api)

    def fail(stop: Stop) -> None:
        stop.wait()
        raise LookupError("too late to be seen")

    manager.add_runnable("side", fail)

    error = Running(manager).end()

    assert isinstance(error, LookupError)
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.message == "thread ended"
    assert vars(record)["informers_fields"] == {"thread": "run/side"}


def test_what_the_stop_itself_cuts_off_is_no_failure(api: APIServer) -> None:
    manager = manager_of(api)
    api.faults().add({"match": {"resource": "secrets", "verb": "get"}, "do": "FREEZE"})

    def read(_stop: Stop) -> None:
        manager.client.get(ObjectRef(SECRETS, "default", "frozen"))

    manager.add_runnable("side", read)
    found = Running(manager)
    api.wait_request(resource="secrets", verb="get", timeout=60)

    error = found.end()
    api.faults().clear()

    assert error is None


def test_what_comes_too_late_for_the_stop_is_no_failure(api: APIServer) -> None:
    manager = manager_of(api)

    def follow(stop: Stop) -> None:
        stop.wait()
        manager._factories[""].stop()
        manager.lister(SECRETS)

    manager.add_runnable("side", follow)

    assert Running(manager).end() is None
    assert manager.live_problems() == {}


def test_work_that_exits_with_0_is_an_error_all_the_same(api: APIServer) -> None:
    """Raised as it is, it would end the process as if all had gone well."""
    manager = manager_of(api)

    def leave(_stop: Stop) -> None:
        sys.exit(0)

    manager.add_runnable("side", leave)

    error = Running(manager).join()

    assert isinstance(error, InformersError)
    assert isinstance(error.__cause__, SystemExit)
    assert "run/side ended" in str(error)


def test_a_stop_that_is_faster_than_discovery_is_no_error(api: APIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread follows definitions only after everything was stopped."""
    manager = manager_of(api)
    manager.lister("configmaps", required=False)
    entered, go_on = threading.Event(), threading.Event()
    discover = manager._discover

    def late(cluster: str) -> None:
        entered.set()
        assert go_on.wait(60)
        discover(cluster)

    monkeypatch.setattr(manager, "_discover", late)
    stopped = manager._factories[""].stop

    def stop() -> None:
        stopped()
        go_on.set()

    monkeypatch.setattr(manager._factories[""], "stop", stop)
    found = Running(manager)
    assert entered.wait(60)

    assert found.end() is None


def test_an_event_about_an_unknown_cluster_ends_nothing(api: APIServer) -> None:
    manager = manager_of(api)
    reconcile = Nothing()
    manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    dropped = metrics.counter("informers_events_dropped_total", "", ("reason",))
    before = dropped.value(reason="refused")

    with running(manager) as found:
        settle(manager)
        manager.events.event(ObjectRef(CONFIGMAPS, "default", "x", "nowhere"), type="Normal", reason="R", note="n")

    assert found.error is None
    assert dropped.value(reason="refused") == before + 1


def test_closing_ends_the_connections_of_a_manager_that_does_not_run(api: APIServer) -> None:
    def idle() -> int:
        return sum(len(transport._kept._idle) for transport in manager._transports.values())

    with closing(manager_of(api)) as manager:
        create(manager, "x")
        during = idle()

    assert during == 1
    assert idle() == 0
    create(manager, "y")
    assert idle() == 0, "a request after the end keeps nothing open"
    manager.close()


def test_a_reconcile_in_flight_finishes_and_waiting_keys_are_dropped(api: APIServer) -> None:
    manager = manager_of(api)
    entered, leave = threading.Event(), threading.Event()
    seen: list[str] = []

    def reconcile(request: Request) -> Result:
        entered.set()
        assert leave.wait(60)
        seen.append(request.ref.name)
        return Result()

    manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    for name in ("a", "b", "c"):
        create(manager, name)
    found = Running(manager)
    assert entered.wait(60)

    manager.stop()
    stopping = threading.Event()
    manager._stop.on_set(stopping.set)
    assert stopping.wait(60)
    leave.set()

    assert found.join() is None
    assert len(seen) == 1


def test_what_a_reconcile_says_while_the_program_stops_is_still_sent(api: APIServer) -> None:
    """Events end after the work that they tell of."""
    manager = manager_of(api)
    entered, leave = threading.Event(), threading.Event()

    def reconcile(request: Request) -> Result:
        if request.ref == ref:
            entered.set()
            assert leave.wait(60)
            manager.events.event(ref, type="Normal", reason="Last", note="said at the end")
        return Result()

    manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    ref = create(manager, "says-last")
    found = Running(manager)
    assert entered.wait(60)

    manager.stop()
    stopping = threading.Event()
    manager._stop.on_set(stopping.set)
    assert stopping.wait(60)
    leave.set()

    assert found.join() is None
    assert [one["reason"] for one in api.objects("events") if one["involvedObject"]["name"] == "says-last"] == ["Last"]


def test_what_still_runs_after_the_grace_is_named_and_raised(api: APIServer, caplog: pytest.LogCaptureFixture) -> None:
    manager = manager_of(api, shutdown_grace=0.05)
    entered, leave = threading.Event(), threading.Event()

    def hang(_stop: Stop) -> None:
        entered.set()
        assert leave.wait(60)

    manager.add_runnable("stuck", hang)
    found = Running(manager)
    assert entered.wait(60)

    error = found.end()
    leave.set()

    assert isinstance(error, InformersError)
    assert "still running at the end: run/stuck" in str(error)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["still running"]


def test_a_read_in_flight_is_cut_at_the_stop(api: APIServer) -> None:
    manager = manager_of(api)
    ref = create(manager, "x")
    reading = threading.Event()

    def reconcile(request: Request) -> Result:
        if request.ref == ref:
            reading.set()
            manager.client.get(ObjectRef(SECRETS, "default", "frozen"))
        return Result()

    manager.add_controller("c", reconcile, primary=CONFIGMAPS)
    api.faults().add({"match": {"resource": "secrets", "verb": "get"}, "do": "FREEZE"})
    found = Running(manager)
    assert reading.wait(60)
    api.wait_request(resource="secrets", verb="get", timeout=60)

    error = found.end()
    api.faults().clear()

    assert error is None


def test_stopping_does_not_wait_for_a_server_that_says_nothing() -> None:
    """It accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        port = silent.getsockname()[1]
        manager = Manager(Clusters.of({"": ClientConfig(server=f"http://127.0.0.1:{port}")}), name="test")
        manager.add_controller("c", Nothing(), primary=["configmaps", SECRETS])
        found = Running(manager)
        readable, _, _ = select.select([silent], [], [], 60)
        assert readable

        assert found.end() is None


def test_checks_are_kept_and_asked(api: APIServer) -> None:
    manager = manager_of(api)

    def broken() -> str | None:
        raise LookupError

    manager.add_ready_check("fine", lambda: None)
    manager.add_ready_check("not yet", lambda: "warming up")
    manager.add_ready_check("broken", broken)
    manager.add_live_check("hangs", lambda: "no step for 60 s")

    assert manager.ready_problems() == {"not yet": "warming up", "broken": "check raised LookupError"}
    assert manager.live_problems() == {"hangs": "no step for 60 s"}


def test_what_has_not_synced_is_not_ready(api: APIServer) -> None:
    manager = manager_of(api)
    manager.lister(CONFIGMAPS)

    assert manager.ready_problems() == {"sync configmaps.v1": "not synced: pending"}


def test_a_dry_run_leaves_the_server_unchanged(api: APIServer) -> None:
    manager = manager_of(api, dry_run=True)
    changed = manager_of(api)
    ref = create(changed, "x", key="value")

    manager.client.patch(ref, {"data": {"key": "other"}}, field_manager="test")
    manager.client.delete(ref)
    create(manager, "y")

    assert [found["metadata"]["name"] for found in api.objects("configmaps")].count("y") == 0
    assert changed.client.get(ref).get("data", "key") == "value"
    manager.close()
    changed.close()


def test_the_collector_is_tuned_while_running_only(api: APIServer) -> None:
    before = gc.get_threshold()
    manager, plain = manager_of(api), manager_of(api, tune_gc=False)
    for each in (manager, plain):
        each.add_controller("c", Nothing(), primary=CONFIGMAPS)  # so that who settles is running

    with running(manager):
        settle(manager)
        tuned = gc.get_threshold()
    with running(plain):
        settle(plain)
        untuned = gc.get_threshold()

    assert tuned != before
    assert untuned == before
    assert gc.get_threshold() == before


def test_two_managers_in_one_process_do_not_meet(api: APIServer) -> None:
    first, second = manager_of(api), manager_of(api)
    seen, other = Nothing(), Nothing()
    first.add_controller("c", seen, primary=CONFIGMAPS)
    second.add_controller("c", other, primary=CONFIGMAPS)

    with running(second):
        with running(first):
            settle(first)
        ref = create(second, "x")
        settle(second)

    assert ref in other.seen
    assert ref not in seen.seen


IMPORT = """
    import logging, signal, threading
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    import informers.runtime.manager
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert threading.active_count() == 1
    assert not logging.getLogger("informers").handlers
"""


def test_nothing_happens_at_import() -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(IMPORT)], check=True, timeout=120)


# Signals, in a process of its own.

PROGRAM = """
    import signal, sys, threading
    from informers.api.clusters import Clusters
    from informers.runtime.manager import Manager
    from informers.meta.resources import GVR

    def old(number, frame):
        pass

    signal.signal(signal.SIGTERM, old)
    hup = signal.getsignal(signal.SIGHUP)
    manager = Manager(Clusters.load(sys.argv[1]), name="program", shutdown_grace=float(sys.argv[3]))
    manager.lister(GVR("", "v1", "configmaps"))

    def side(stop):
        print("ready", flush=True)
        assert signal.getsignal(signal.SIGHUP) is hup
        if sys.argv[2] == "die":
            raise SystemError("died")
        stop.wait()
        if sys.argv[2] == "hang":
            print("hanging", flush=True)
            threading.Event().wait()

    manager.add_runnable("side", side)
    manager.run()
    assert signal.getsignal(signal.SIGTERM) is old, "handlers are put back"
    print("ended", flush=True)
"""


class Program:
    def __init__(self, api: APIServer, mode: str, tmp_path: Path, *, grace: float = 10.0) -> None:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(PROGRAM))
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(api.kubeconfig), mode, str(grace)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        if self.line() != "ready\n":
            pytest.fail(f"the program did not start: {self.end()}")

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        out, err = self._process.communicate(timeout=60)
        return self._process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_stops_in_order_with_status_0(api: APIServer, tmp_path: Path, number: int) -> None:
    program = Program(api, "wait", tmp_path)

    program.signal(number)

    assert program.end() == (0, "ended\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_at_once(api: APIServer, tmp_path: Path, number: int) -> None:
    program = Program(api, "hang", tmp_path, grace=60)

    program.signal(signal.SIGTERM)
    assert program.line() == "hanging\n"
    program.signal(number)

    assert program.end()[0] == 128 + number


def test_a_dead_thread_ends_the_process_with_an_error(api: APIServer, tmp_path: Path) -> None:
    status, out, err = Program(api, "die", tmp_path).end()

    assert status == 1
    assert out == ""
    assert err.rstrip().endswith("SystemError: died")


def test_what_hangs_past_the_grace_ends_the_process_with_an_error(api: APIServer, tmp_path: Path) -> None:
    program = Program(api, "hang", tmp_path, grace=0.05)

    program.signal(signal.SIGTERM)
    status, _, err = program.end()

    assert status == 1
    assert "still running at the end: run/side" in err


def test_in_another_thread_no_handler_is_installed(api: APIServer) -> None:
    before = signal.getsignal(signal.SIGTERM)
    manager = manager_of(api)

    with running(manager):
        settle(manager)
        during = signal.getsignal(signal.SIGTERM)

    assert during is before


def test_a_metadata_only_selection_can_be_a_primary(api: APIServer) -> None:
    manager = manager_of(api)
    reconcile = Nothing()
    manager.add_controller("c", reconcile, primary=Selection(SECRETS, metadata_only=True))
    ref = create(manager, "x", SECRETS)

    with running(manager):
        settle(manager)

    assert ref in reconcile.seen


def test_a_program_without_texts_uses_no_discovery(api: APIServer) -> None:
    since = len(api.requests())
    manager = manager_of(api)
    manager.add_controller("c", Nothing(), primary=Selection(SECRETS, metadata_only=True))

    with running(manager):
        settle(manager)

    assert [one.path for one in api.requests()[since:] if one.verb in {"discovery", "openapi"}] == []


def test_idle_connections_are_closed_though_nothing_happens(
    api: APIServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("informers.runtime.manager._TIDY", 0.01)
    manager = Manager(Clusters.load(str(api.kubeconfig)), name="idle", clock=clock, tune_gc=False)
    (transport,) = manager._transports.values()
    with running(manager):
        list(manager.client.list(CONFIGMAPS))
        before = len(transport._kept._idle)
        looked = threading.Semaphore(0)
        tidy = transport.tidy

        def told() -> None:
            tidy()
            looked.release()

        monkeypatch.setattr(transport, "tidy", told)
        clock.advance(61)
        assert looked.acquire(timeout=20)
        assert looked.acquire(timeout=20)  # the first may have begun before

        assert (before, len(transport._kept._idle)) == (1, 0)
