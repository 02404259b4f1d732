"""A running manager's health, asked over HTTP; against the embedded API server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from informers import GVR, Clusters, HTTPOptions, Manager, Request, Stop
from informers.cache.reflector import Reflector
from informers.testing.apiserver import APIServer

CONFIGMAPS = GVR("", "v1", "configmaps")
PATIENCE = 20.0
ANYWHERE = HTTPOptions("127.0.0.1:0")


class Program:
    """A manager that runs on a thread, and its pages."""

    def __init__(self, kubeconfig: Path, http: HTTPOptions = ANYWHERE, **options: Any) -> None:
        self.manager = Manager(Clusters.load(kubeconfig), name="test", http=http, tune_gc=False, **options)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.manager.run()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body."""
        assert self.manager._http is not None
        until(self.manager._http.port, "it listens")
        url = f"http://127.0.0.1:{self.manager._http.port()}{path}"
        try:
            with urlopen(url, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        self.manager.stop("the test is over")
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def until(holds: Callable[[], object], what: str) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if holds():
            return
        tick.wait(0.02)
    raise AssertionError(f"not within {PATIENCE:g} s: {what}")


@pytest.fixture
def api() -> Iterator[APIServer]:
    with APIServer() as running:
        yield running


def test_a_program_that_is_well_says_so(api: APIServer) -> None:
    program = Program(api.kubeconfig)
    program.manager.add_controller("c", lambda _: None, primary=CONFIGMAPS)

    with program.running():
        until(lambda: program.get("/readyz") == (200, "ok\n"), "ready")
        assert program.get("/livez") == (200, "ok\n")
        assert program.get("/healthz") == (200, "OK\n")
        _, body = program.get("/livez?verbose")
        assert {"[+]thread http ok", "[+]thread worker/c-1 ok", "livez check passed"} <= set(body.splitlines())
        until(lambda: "[+]sync configmaps.v1 ok\n" in program.get("/readyz?verbose")[1], "watching")
        assert program.get("/readyz/sync%20configmaps.v1") == (200, "ok\n")
        assert program.get("/metrics")[1].count("# TYPE informers_requests_total counter") == 1
    assert program.error is None


def test_before_the_first_sync_it_is_live_and_not_ready(api: APIServer) -> None:
    api.faults().status(code=503, verb=["list", "watch"], resource="configmaps")
    program = Program(api.kubeconfig)
    program.manager.lister(CONFIGMAPS)

    with program.running():
        until(lambda: "ServerError" in program.get("/readyz")[1], "the refusal is told")
        assert program.get("/readyz") == (
            503,
            "[-]sync configmaps.v1 failed: not synced: syncing, ServerError\nreadyz check failed\n",
        )
        assert program.get("/livez") == (200, "ok\n")
        assert program.get("/healthz")[1].startswith("NOT READY\n")


def test_what_is_forbidden_or_not_required_keeps_nobody_from_being_ready(api: APIServer) -> None:
    api.faults().status(code=503, verb=["list", "watch"], resource="configmaps")
    api.faults().status(code=403, verb=["list", "watch"], resource="secrets")
    program = Program(api.kubeconfig)
    program.manager.lister(CONFIGMAPS, required=False)
    program.manager.lister("secrets")

    with program.running():
        until(lambda: program.get("/readyz")[0] == 200, "ready")
        assert program.get("/readyz?verbose")[1].splitlines() == [
            "[+]shutdown ok",
            "[+]sync secrets ok: forbidden, ForbiddenError",
            "readyz check passed",
        ]


def test_a_dead_thread_is_not_live_until_the_process_has_ended(api: APIServer) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hold(_: Request) -> None:
        begun.set()
        may_end.wait(PATIENCE)

    def die(_: Stop) -> None:
        begun.wait(PATIENCE)
        raise LookupError

    program = Program(api.kubeconfig, shutdown_grace=60.0)
    program.manager.add_controller("c", hold, primary=CONFIGMAPS)
    program.manager.add_runnable("doomed", die)
    program.manager.client.create(CONFIGMAPS, {"metadata": {"name": "x"}}, namespace="default", field_manager="test")

    with program.running():
        until(lambda: program.get("/livez")[0] == 503, "not live")
        assert program.get("/livez")[1].splitlines()[0] == "[-]thread run/doomed failed: ended"
        assert program.get("/readyz")[1].splitlines()[0] == "[-]shutdown failed: stopping"
        may_end.set()
    assert isinstance(program.error, LookupError)


def test_a_reflector_that_dies_ends_the_process_and_is_told_by_name(
    api: APIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hold(_: Request) -> None:
        begun.set()
        may_end.wait(PATIENCE)

    def die(*_: object) -> None:
        raise SystemExit

    program = Program(api.kubeconfig, shutdown_grace=60.0)
    program.manager.add_controller("c", hold, primary=CONFIGMAPS)
    program.manager.client.create(CONFIGMAPS, {"metadata": {"name": "x"}}, namespace="default", field_manager="test")
    monkeypatch.setattr(Reflector, "_after_clean_end", die)

    with program.running():
        assert begun.wait(PATIENCE)
        api.faults().close("FIN", resource="configmaps")
        until(lambda: program.get("/livez")[0] == 503, "not live")
        assert program.get("/livez")[1].splitlines()[0] == "[-]thread reflector/configmaps failed: ended"
        may_end.set()
    assert str(program.error) == "reflector/configmaps ended, though nobody had asked it to"


def test_checks_of_the_program_are_asked(api: APIServer) -> None:
    program = Program(api.kubeconfig)
    program.manager.add_ready_check("warm", lambda: "warming up")
    program.manager.add_live_check("moves", lambda: "no step for 60 s")

    with program.running():
        assert program.get("/readyz")[1].splitlines()[0] == "[-]warm failed: warming up"
        assert program.get("/livez/moves") == (503, "no step for 60 s\n")


def test_a_port_in_use_stops_nothing(api: APIServer, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        program = Program(api.kubeconfig, HTTPOptions(f"127.0.0.1:{taken.getsockname()[1]}"))
        lister = program.manager.lister(CONFIGMAPS)

        with program.running():
            until(lister.has_synced, "synced")
            until(lambda: "cannot listen, will try again" in caplog.messages, "the failure is told")
    assert program.error is None


def test_http_ends_last(api: APIServer) -> None:
    ended: list[str] = []
    program = Program(api.kubeconfig, HTTPOptions("127.0.0.1:0"))

    def run(stop: Stop) -> None:
        stop.wait()
        ended.append(program.get("/livez")[1])
        ended.append(program.get("/readyz")[1].splitlines()[0])

    program.manager.add_runnable("late", run)
    with program.running():
        until(lambda: "[+]thread run/late ok" in program.get("/livez?verbose")[1], "it runs")

    assert ended == ["ok\n", "[-]shutdown failed: stopping"]
    assert program.error is None
    assert "http" not in [thread.name for thread in threading.enumerate()]


def test_a_reflector_that_hangs_is_not_live(api: APIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(api.kubeconfig)
    program.manager.lister(CONFIGMAPS)

    with program.running():
        until(lambda: "[+]reflector configmaps.v1 ok" in program.get("/livez?verbose")[1], "it is well")
        monkeypatch.setattr("informers.cache.informer.Informer.late", lambda _: 7.0)
        assert program.get("/livez") == (
            503,
            "[-]reflector configmaps.v1 failed: no step for 7 s longer than it may take\nlivez check failed\n",
        )


def test_a_reconcile_that_takes_long_is_told_and_no_failure(api: APIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("informers.runtime.manager._LONG", 0.0)
    entered, leave = threading.Event(), threading.Event()

    def hold(_: Request) -> None:
        entered.set()
        leave.wait(PATIENCE)

    program = Program(api.kubeconfig)
    program.manager.add_controller("c", hold, primary=CONFIGMAPS)
    program.manager.client.create(CONFIGMAPS, {"metadata": {"name": "x"}}, namespace="default", field_manager="test")

    with program.running():
        until(entered.is_set, "a reconcile has begun")
        until(lambda: "[+]worker c ok: a reconcile has run for" in program.get("/livez?verbose")[1], "it is told")
        assert program.get("/livez") == (200, "ok\n")
        leave.set()
