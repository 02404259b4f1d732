"""The API server goes away and comes back in the middle of watch, list and write: everything is as it should be afterwards."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from informers import Backoff, ConflictError, InformersError, Request, ServerError, SystemClock, TransportError

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

DONE = "example.com/done"
PATIENCE = 60.0


def add_writer(follower: Follower, stage: Stage) -> None:
    """Write every ConfigMap's value to its annotation, whatever is in the way."""

    def reconcile(request: Request) -> None:
        found = follower.lister.find(request.ref)
        if found is not None and found.annotations.get(DONE) != found.get("data", "v"):
            patch = {"metadata": {"annotations": {DONE: found.get("data", "v")}}}
            follower.manager.client.patch(request.ref, patch, field_manager="story")

    follower.manager.add_controller(
        "mark", reconcile, primary=stage.configmaps(), retry=Backoff(0.02, 0.2), timeout=5.0, workers=2
    )


def is_done(stage: Stage, value: str) -> bool:
    found = list(stage.client.list(stage.ref("x").gvr, namespace=stage.namespace))
    return bool(found) and all(obj.annotations.get(DONE) == value == obj.get("data", "v") for obj in found)


def insist(stage: Stage, name: str, value: str) -> None:
    """Write as somebody who tries until it works."""
    pause = threading.Event()
    clock = SystemClock()
    end = clock.monotonic() + 2 * PATIENCE
    while clock.monotonic() < end:
        try:
            stage.put(name, value)
        except (TransportError, ServerError, ConflictError):
            pause.wait(0.05)
        else:
            return
    raise AssertionError("the server does not come back")


def test_connections_are_refused_in_the_middle_of_everything(stage: Stage) -> None:
    """What a restart looks like from outside, for both servers."""
    for number in range(20):
        stage.put(f"c{number}", "1")
    relay = stage.server.relay()
    follower = stage.follow(kubeconfig=relay.kubeconfig, start=False)
    add_writer(follower, stage)
    stage.opened.enter_context(follower)
    follower.until(lambda: any(obj.annotations.get(DONE) for obj in follower.read()), "writing")

    for round_ in range(2, 5):
        relay.refuse()
        for number in range(20):
            stage.put(f"c{number}", str(round_))
        relay.heal()
        value = str(round_)
        follower.until(lambda: is_done(stage, value), "all written")  # noqa: B023 - now

    follower.until(lambda: all(obj.annotations.get(DONE) == "4" for obj in follower.read()), "seen")
    follower.until(lambda: follower.replayed() == stage.values(), "told")
    assert follower.values() == stage.values()


def test_the_embedded_server_comes_back_while_everybody_works(breakable: Stage) -> None:
    stage = breakable
    for number in range(20):
        stage.put(f"c{number}", "1")
    follower = stage.follow(start=False)
    add_writer(follower, stage)
    stage.opened.enter_context(follower)
    follower.until_watching()

    stage.faults.refuse(0.5)
    for number in range(20):
        insist(stage, f"c{number}", "2")
    follower.until(lambda: is_done(stage, "2"), "all written")

    follower.until(lambda: follower.values() == stage.values(), "seen")
    assert follower.manager.live_problems() == {}


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_real_server_is_killed_and_its_history_is_gone_when_it_comes_back(private: Stage) -> None:
    """A watch cut by the end of the server, writes in flight, and afterwards 410 for every version seen before."""
    stage = private
    envtest = stage.server.real
    assert envtest is not None
    for number in range(20):
        stage.put(f"c{number}", "1")
    stage.put("deleted", "1")
    relay = stage.server.relay()
    follower = stage.follow(start=False)
    add_writer(follower, stage)
    apart = stage.follow(kubeconfig=relay.kubeconfig)
    stage.opened.enter_context(follower)
    follower.until(lambda: is_done(stage, "1"), "all written")
    apart.until_watching()
    apart.until(lambda: apart.values() == stage.values(), "seen")
    apart.forget()
    seen_apart = apart.rv()

    relay.refuse()
    stage.delete("deleted")
    restarting = threading.Thread(target=lambda: envtest.restart(abrupt=True), name="restart")
    restarting.start()
    for number in range(20):
        insist(stage, f"c{number}", "2")
    restarting.join()
    follower.until(lambda: is_done(stage, "2"), "all written", timeout=2 * PATIENCE)
    envtest.compact()
    envtest.restart()
    relay.heal()
    apart.until(lambda: apart.values() == stage.values(), "seen", timeout=2 * PATIENCE)
    apart.until(lambda: [told.name for told in apart.told() if told.word == "tombstone"] == ["deleted"], "told")

    causes = [line["cause"] for line in stage.log.lines("listed")]
    assert "expired" in causes
    assert any(line["rv"] != seen_apart for line in stage.log.lines("listed"))
    assert follower.manager.live_problems() == {}
    stage.put("after", "1")
    apart.until_value("after", "1")
    follower.until(lambda: follower.values() == stage.values(), "seen")
    assert not isinstance(apart.error, InformersError)
