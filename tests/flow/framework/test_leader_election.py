"""Several processes, one of which works: it is stopped, killed, suspended or cut off, and exactly one other goes on.

Who leads makes one ConfigMap after the other. Their resourceVersions say in which order all of them were made, so that
"never two at a time" is what one can read off the server afterwards, whichever it is.
"""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from informers import GVR

if TYPE_CHECKING:
    from informers import Object
    from tests.flow.framework.conftest import Process, Stage

LEASES = GVR("coordination.k8s.io", "v1", "leases")
PATIENCE = 60.0

PROGRAM = """
import sys
import threading

from informers import GVR, Clusters, InformersError, LeaderElection, Manager, Selection, configure_logging

kubeconfig, namespace, name, mode = sys.argv[1:]
configure_logging(level="debug")
manager = Manager(
    Clusters.load(kubeconfig),
    name="story-" + name,
    election=LeaderElection(
        "story", namespace, lease_duration=6, renew_deadline=4.5, retry_period=0.5, identity=name
    ),
    shutdown_grace=30,
)
configmaps = GVR("", "v1", "configmaps")
lister = manager.lister(Selection(configmaps, namespaces=(namespace,)))
never = threading.Event()


def write(stop):
    number = 0
    while not stop.wait(0.05):
        body = {"metadata": {"name": f"{name}-{number}", "labels": {"writer": name}}}
        try:
            manager.client.create(configmaps, body, namespace=namespace, field_manager=name)
        except InformersError as error:
            print("not written:", type(error).__name__, flush=True)
        number += 1


def hang(stop):
    stop.on_set(never.wait)  # which holds up whoever says stop
    never.wait()


manager.add_runnable("write", write)
if mode == "hang":
    manager.add_runnable("hang", hang)
try:
    manager.run()
except InformersError as error:
    print("failed:", type(error).__name__, flush=True)
    sys.exit(1)
"""


def start(stage: Stage, name: str, mode: str = "", *, kubeconfig: Path | None = None) -> Process:
    """Start a candidate; it has read the lease when this returns."""
    where = kubeconfig or stage.server.kubeconfig
    started = stage.run(str(where), stage.namespace, name, mode, text=PROGRAM)
    started.until(lambda: started.lines("lease is held") or started.lines("leading"), "a candidate", timeout=PATIENCE)
    return started


def written(stage: Stage) -> list[Object]:
    """Return what programs have made, in order."""
    found = [obj for obj in stage.client.list(stage.ref("x").gvr, namespace=stage.namespace) if "writer" in obj.labels]
    return sorted(found, key=lambda obj: int(obj.resource_version))


def writers(stage: Stage) -> list[str]:
    """Return who wrote, each time that it was another one than before."""
    return [name for name, _ in itertools.groupby(obj.labels["writer"] for obj in written(stage))]


def until_writes(stage: Stage, program: Process, name: str) -> None:
    """Wait until a program has written a few times more."""

    def count() -> int:
        return sum(obj.labels["writer"] == name for obj in written(stage))

    before = count()
    program.until(lambda: count() >= before + 3, f"{name} writes", timeout=PATIENCE)


def reads(stage: Stage, name: str) -> list[int]:
    """Return the numbers of the lists and watches that a program has asked for."""
    found = stage.embedded.requests(resource="configmaps", client=f"story-{name}/*")
    return [request.n for request in found if request.verb in {"list", "watch"}]


def test_who_is_stopped_hands_over_and_who_is_killed_is_replaced(stage: Stage) -> None:
    first, second, third = (start(stage, name) for name in "abc")
    until_writes(stage, first, "a")
    before = {name: reads(stage, name) for name in "bc"} if stage.server.embedded else {}

    first.signal(signal.SIGTERM)

    assert first.wait(PATIENCE) == 0, first.tail()
    assert first.lines("lease released")
    second.until(lambda: second.lines("leading") or third.lines("leading"), "another one leads", timeout=PATIENCE)
    heir, last = ("b", "c") if second.lines("leading") else ("c", "b")
    leader, standby = (second, third) if heir == "b" else (third, second)
    until_writes(stage, leader, heir)

    leader.signal(signal.SIGKILL)
    leader.process.wait(PATIENCE)

    until_writes(stage, standby, last)
    assert writers(stage) == ["a", heir, last]
    lease = stage.client.get(stage.ref("story", LEASES))
    assert (lease.get("spec", "holderIdentity"), lease.get("spec", "leaseTransitions")) == (last, 2)
    if stage.server.embedded:
        # It has followed all along: taking over cost no list.
        assert reads(stage, last) == before[last]

    standby.signal(signal.SIGTERM)
    assert standby.wait(PATIENCE) == 0, standby.tail()
    released = stage.client.get(stage.ref("story", LEASES))
    assert released.get("spec", "holderIdentity") == ""
    assert released.get("spec", "leaseDurationSeconds") == 1


def test_who_was_suspended_wakes_up_and_writes_nothing(stage: Stage) -> None:
    first, second = start(stage, "a"), start(stage, "b")
    until_writes(stage, first, "a")

    first.signal(signal.SIGSTOP)
    until_writes(stage, second, "b")
    first.signal(signal.SIGCONT)

    assert first.wait(PATIENCE) == 1, first.tail()
    # On a machine that is too busy to stop in time it is ended.
    assert first.lines("leadership lost") or first.lines("work goes on although the lease is lost, ending the process")
    until_writes(stage, second, "b")
    assert writers(stage) == ["a", "b"]
    second.signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0, second.tail()


def test_work_that_does_not_end_when_the_server_is_cut_off_is_ended_with_its_process(stage: Stage) -> None:
    """The one thread hangs, and so does the one that would stop it."""
    relay = stage.server.relay()
    first = start(stage, "a", "hang", kubeconfig=relay.kubeconfig)
    second = start(stage, "b")
    until_writes(stage, first, "a")

    relay.freeze()

    assert first.wait(PATIENCE) == 1, first.tail()
    (last,) = first.lines("work goes on although the lease is lost, ending the process")
    assert "run/hang" in last["threads"]
    assert "failed" not in first.stdout.read_text(), "run() did not return"
    until_writes(stage, second, "b")
    assert writers(stage) == ["a", "b"]
    second.signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0, second.tail()


def test_a_dry_run_needs_no_lease(stage: Stage) -> None:
    from informers import Clusters, LeaderElection, Manager

    manager = Manager(
        Clusters.load(str(stage.server.kubeconfig)),
        name="story",
        election=LeaderElection("story", stage.namespace),
        dry_run=True,
    )

    stage.opened.callback(manager.close)
    made = manager.client.create(
        stage.ref("x").gvr, {"metadata": {"name": "x"}}, namespace=stage.namespace, field_manager="story"
    )

    assert made.name == "x"
    assert list(stage.client.list(LEASES, namespace=stage.namespace)) == []
    assert stage.values().get("x") is None
