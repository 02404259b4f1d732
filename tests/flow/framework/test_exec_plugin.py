"""A program says who we are: it is run once for all, and one that hangs holds up its own cluster only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from informers import Backoff, Clusters, LeaderElection, Manager, NotSyncedError, SystemClock, WatchOptions

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

PATIENCE = 60.0


def with_program(stage: Stage, script: str, *contexts: str) -> Path:
    """Write a kubeconfig in which these contexts ask a program who we are; without any, the current one does."""
    program = stage.directory / "login"
    program.write_text(f"#!/bin/sh\necho run >> {stage.directory}/runs\n{script}\n")
    program.chmod(0o700)
    config = yaml.safe_load(stage.server.kubeconfig.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)}
    config["users"].append({"name": "program", "user": {"exec": plugin}})
    context = {**config["contexts"][0]["context"], "user": "program"}
    config["contexts"] += [{"name": name, "context": context} for name in contexts or ("program",)]
    if not contexts:
        config["current-context"] = "program"
    path = stage.directory / "with-program"
    path.write_text(yaml.safe_dump(config))
    return path


def says(token: str) -> str:
    return f'{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "{token}"}}}}'


def runs(stage: Stage) -> int:
    return len((stage.directory / "runs").read_text().splitlines())


def until(holds: Callable[[], object]) -> None:
    clock, tick = SystemClock(), threading.Event()
    end = clock.monotonic() + PATIENCE
    while not holds():
        assert clock.monotonic() < end
        tick.wait(0.02)


def test_program_is_run_once_for_informers_writes_events_discovery_and_the_lease(perform: Any) -> None:
    stage: Stage = perform(tokens=["t-admin=admin"])
    stage.put("a", "1")
    (stage.directory / "answer").write_text(says(stage.embedded.add_token(user="admin")))
    follower = stage.follow(
        kubeconfig=with_program(stage, f"cat {stage.directory}/answer"),
        election=LeaderElection(name="story", namespace=stage.namespace),
    )
    follower.until_value("a", "1")
    until(follower.manager.fence.is_open)
    follower.manager.mapper().resolve("pods")
    follower.manager.client.patch(stage.ref("a"), {"data": {"v": "2"}}, field_manager="story")
    follower.until_value("a", "2")
    assert runs(stage) == 1

    # It is asked again when what it said is taken no longer, once.
    before = yaml.safe_load((stage.directory / "answer").read_text())["status"]["token"]
    (stage.directory / "answer").write_text(says(stage.embedded.add_token(user="admin")))
    stage.embedded.revoke_token(before)
    follower.manager.client.patch(stage.ref("a"), {"data": {"v": "3"}}, field_manager="story")
    follower.until_value("a", "3")
    assert runs(stage) == 2


def test_hanging_program_holds_up_its_own_cluster_which_says_so(perform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("informers.api.credentials._PATIENCE", 0.3)
    stage: Stage = perform(tokens=["t-admin=admin"])
    stage.put("a", "1")
    fifo = stage.directory / "fifo"
    os.mkfifo(fifo)
    path = with_program(stage, f"cat {fifo}", "far")
    clusters = Clusters.load(str(path), contexts=["embedded", "far"])
    far = next(name for name in clusters.names() if "far" in name)
    near = next(name for name in clusters.names() if "far" not in name)
    manager = Manager(clusters, name="story", watch=WatchOptions(backoff=Backoff(0.05, 0.4)), tune_gc=False)
    lister = manager.lister(stage.configmaps())
    thread = threading.Thread(target=manager.run, name="program/story")
    thread.start()
    try:
        until(lambda: lister.has_synced(near))
        assert lister.get("a", stage.namespace, cluster=near).get("data", "v") == "1"
        until(lambda: f"'{stage.directory}/login': has not answered for 0.3 s" in str(lister.problem(far)))
        with pytest.raises(NotSyncedError, match="has not answered"):
            lister.get("a", stage.namespace, cluster=far)
        until(lambda: stage.log.lines("waiting for an exec plugin"))
        assert {line["cluster"] for line in stage.log.lines("waiting for an exec plugin")} == {far}

        with fifo.open("w") as answer:
            answer.write(says("t-admin"))

        until(lambda: lister.has_synced(far))
        until(lambda: lister.problem(far) is None)
        assert runs(stage) == 1
        assert len(stage.log.lines("waiting for an exec plugin")) == 1
    finally:
        manager.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_stop_ends_a_program_that_hangs(perform: Any) -> None:
    stage: Stage = perform(tokens=["t-admin=admin"])
    follower = stage.follow(kubeconfig=with_program(stage, "exec sleep 600"))
    until((stage.directory / "runs").exists)

    follower.stop()
