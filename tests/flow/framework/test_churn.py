"""Hundreds of ends of streams of every kind: threads, sockets and the store are afterwards as they were before."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from informers import Backoff, WatchOptions

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

pytestmark = pytest.mark.lists

HASTY = WatchOptions(backoff=Backoff(0.001, 0.002))


def sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the directory of open files changes while it is read
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")  # noqa: PTH115 - as above
        except OSError:
            continue
    return found


def test_hundreds_of_ends_leave_nothing_behind(breakable: Stage) -> None:
    stage = breakable
    for number in range(20):
        stage.put(f"c{number}", "1")
    follower = stage.follow(watch=HASTY)
    follower.until_watching()
    stage.embedded.wait_request(verb="watch", resource="configmaps")
    before_threads, before_sockets = threading.active_count(), sockets()
    before_connections = stage.embedded.state()["connections"]

    faults = [
        stage.faults.short(verb="watch", resource="configmaps", times=100, existing=True),
        stage.faults.ev(code=410, verb="watch", resource="configmaps", times=60),
        stage.faults.ev(code=500, verb="watch", resource="configmaps", times=60),
        stage.faults.rst(at="request", verb="watch", resource="configmaps", times=60),
        stage.faults.rst(at="headers", verb="watch", resource="configmaps", times=60),
        stage.faults.fin(at="stream", clean=False, verb="watch", resource="configmaps", times=60),
        stage.faults.status(code=503, verb="list", resource="configmaps", times=30),
    ]
    for number in range(40):
        stage.put(f"c{number % 20}", str(number))
    follower.until(lambda: all(fault.hits == fault.times for fault in faults), "all faults have happened")
    stage.delete("c0")
    follower.until(lambda: follower.replayed() == stage.values(), "as on the server")

    assert follower.values() == stage.values()
    follower.until(lambda: stage.embedded.state()["connections"] <= before_connections + 1, "connections are closed")
    follower.until(lambda: sockets() <= before_sockets + 2, "sockets are closed")
    follower.until(lambda: threading.active_count() <= before_threads + 1, "no thread is left")
    assert "error" not in stage.log.levels()


def test_cuts_on_the_way_leave_nothing_behind(stage: Stage) -> None:
    relay = stage.server.relay()
    follower = stage.follow(kubeconfig=relay.kubeconfig, watch=HASTY)
    follower.until_watching()
    stage.put("a", "0")
    follower.until_value("a", "0")
    before_threads, before_sockets = threading.active_count(), sockets()

    for number in range(1, 101):
        relay.reset() if number % 2 else relay.finish()
        stage.put("a", str(number))
    follower.until_value("a", "100")

    assert follower.replayed() == stage.values()
    follower.until(lambda: relay.connections() <= 2, "connections are closed")
    follower.until(lambda: sockets() <= before_sockets + 2, "sockets are closed")
    follower.until(lambda: threading.active_count() <= before_threads + 1, "no thread is left")
    assert len(stage.log.lines("listed")) == 1


def test_a_stopped_program_leaves_no_socket(stage: Stage) -> None:
    stage.put("a", "1")
    client = stage.client.get(stage.ref("a"))
    before = sockets()

    for _ in range(3):
        follower = stage.follow()
        follower.until_watching()
        follower.manager.client.get(client.ref)
        follower.stop()

    stage_sockets = sockets()
    follower.until(lambda: sockets() <= before + (1 if stage.server.embedded else 0), f"{stage_sockets} of {before}")
