"""A program is told to stop while it is idle, busy, syncing, backing off or frozen: it ends in order, and in time."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from informers import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.flow.framework.conftest import Process, Stage

GRACE = 2.0
PATIENCE = 60.0
ROOM = 10.0  # for an interpreter to end on a busy machine

PROGRAM = """
import os
import sys
import threading

from informers import GVR, Backoff, Clusters, InformersError, Manager, Selection, WatchOptions, configure_logging

kubeconfig, namespace, mode, grace, go_on = sys.argv[1:]
configure_logging(level="debug")
manager = Manager(
    Clusters.load(kubeconfig),
    name="story",
    watch=WatchOptions(backoff=Backoff(20, 30)),
    shutdown_grace=float(grace),
)
configmaps = Selection(GVR("", "v1", "configmaps"), namespaces=(namespace,))
lister = manager.lister(configmaps)
never = threading.Event()


def reconcile(request):
    if mode == "busy":
        print("begun", request.ref.name, flush=True)
        while not os.path.exists(go_on):
            never.wait(0.05)
        manager.client.patch(request.ref, {"data": {"done": "yes"}}, field_manager="story")
        print("ended", request.ref.name, flush=True)
    elif mode == "stuck":
        print("begun", request.ref.name, flush=True)
        never.wait()
    elif mode == "reading":
        print("begun", request.ref.name, flush=True)
        manager.client.get(request.ref)
    elif mode == "telling":
        found = lister.find(request.ref)
        if found is not None:
            manager.events.event(found, type="Normal", reason="Seen", note="looked at it")


manager.add_controller("work", reconcile, primary=configmaps)
if mode == "broken":
    def fall_over(stop):
        raise ValueError("the runnable fell over")

    manager.add_runnable("fall-over", fall_over)
try:
    manager.run()
except InformersError as error:
    print("failed", error, flush=True)
    sys.exit(1)
"""


def start(stage: Stage, mode: str = "idle", *, kubeconfig: Path | None = None, grace: float = GRACE) -> Process:
    where = kubeconfig or stage.server.kubeconfig
    return stage.run(str(where), stage.namespace, mode, str(grace), str(stage.directory / "go-on"), text=PROGRAM)


def end(program: Process, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
    """Send a signal; return the exit status and the seconds until the end."""
    clock = SystemClock()
    began = clock.monotonic()
    program.signal(number)
    return program.wait(), clock.monotonic() - began


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_program_ends_with_0(stage: Stage, number: signal.Signals) -> None:
    program = start(stage)
    program.until(lambda: program.lines("caches filled"), "running")

    status, seconds = end(program, number)

    assert status == 0, program.tail()
    assert seconds < 1 + ROOM
    assert [line["reason"] for line in program.lines("stopping")] == [number.name]
    assert program.lines("stopped")
    assert "Traceback" not in program.tail()


def test_a_busy_program_ends_what_it_has_begun_and_begins_nothing(stage: Stage) -> None:
    stage.put("a", "1")
    stage.put("b", "1")
    program = start(stage, "busy", grace=PATIENCE)
    program.until(lambda: "begun" in program.stdout.read_text(), "busy")

    program.signal(signal.SIGTERM)
    program.until(lambda: program.lines("stopping"), "stopping")
    (stage.directory / "go-on").touch()

    assert program.wait() == 0, program.tail()
    words = program.stdout.read_text().split()
    assert words[0::2] == ["begun", "ended"]
    done = [
        obj.name for obj in stage.client.list(stage.ref("a").gvr, namespace=stage.namespace) if obj.get("data", "done")
    ]
    assert done == [words[1]]


def test_a_program_that_does_not_end_its_work_says_so_and_fails(stage: Stage) -> None:
    stage.put("a", "1")
    program = start(stage, "stuck", grace=0.5)
    program.until(lambda: "begun" in program.stdout.read_text(), "busy")

    program.signal(signal.SIGTERM)
    program.until(lambda: program.lines("still running"), "told what still runs")

    assert program.lines("still running")[0]["threads"] == ["worker/work-1"]
    program.until(lambda: "failed" in program.stdout.read_text(), "run() has raised")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_busy_program_at_once(stage: Stage, second: signal.Signals) -> None:
    stage.put("a", "1")
    program = start(stage, "stuck", grace=60)
    program.until(lambda: "begun" in program.stdout.read_text(), "busy")
    program.signal(signal.SIGTERM)
    program.until(lambda: program.lines("stopping"), "stopping")

    status, seconds = end(program, second)

    assert status == 128 + second
    assert seconds < 1 + ROOM


@pytest.mark.parametrize("what", ["syncing", "frozen", "refused", "reading"])
def test_a_server_that_does_not_answer_delays_nothing(stage: Stage, what: str) -> None:
    stage.put("a", "1")
    relay = stage.server.relay()
    if what == "syncing":
        relay.freeze()
    elif what == "refused":
        relay.refuse()
    elif what == "reading":
        relay.slow(3000)
    program = start(stage, what, kubeconfig=relay.kubeconfig)
    if what == "frozen":
        program.until(lambda: program.lines("caches filled"), "running")
        relay.freeze()
    elif what == "refused":
        program.until(lambda: program.lines("step failed"), "backing off")
    elif what == "syncing":
        program.until(relay.connections, "asking")
    else:
        program.until(lambda: "begun" in program.stdout.read_text(), "reading", timeout=2 * PATIENCE)
        relay.freeze()

    status, seconds = end(program)

    assert status == 0, program.tail()
    assert seconds < 1 + (GRACE if what == "reading" else 0) + ROOM
    assert "Traceback" not in program.tail()


def test_a_process_that_was_suspended_goes_on_and_ends(stage: Stage) -> None:
    program = start(stage)
    program.until(lambda: program.lines("caches filled"), "running")
    program.signal(signal.SIGSTOP)
    os.kill(program.process.pid, 0)
    stage.put("a", "1")
    program.signal(signal.SIGCONT)
    program.until(lambda: program.lines("reconciled"), "it goes on")

    assert end(program)[0] == 0


def test_what_was_said_last_is_sent_before_the_end(stage: Stage) -> None:
    program = start(stage, "telling")
    program.until(lambda: program.lines("caches filled"), "running")
    stage.put("a", "1")
    program.until(lambda: program.lines("reconciled"), "it has said it")

    status, seconds = end(program)

    assert status == 0, program.tail()
    assert seconds < 1 + 2 + ROOM
    events = stage.client.list(stage.ref("x").gvr.__class__("", "v1", "events"), namespace=stage.namespace)
    assert [event.get("reason") for event in events] == ["Seen"]


def test_a_part_that_dies_ends_the_program_with_1(stage: Stage) -> None:
    program = start(stage, "broken")

    status = program.wait()

    assert status == 1
    assert program.lines("thread ended")[0]["thread"] == "run/fall-over"
