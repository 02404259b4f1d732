"""The right to read one kind is missing, is given, is taken away: its informer says so, heals by itself, harms nobody."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from informers import Backoff, ForbiddenError, Selection, WatchOptions

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

pytestmark = pytest.mark.lists

READ = {"apiGroups": [""], "verbs": ["get", "list", "watch"]}


class Rights:
    """What the story's user may read: by RBAC on a real server, by faults on the embedded one."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._fault: Any = None
        self.kubeconfig = stage.server.kubeconfig

    def deny_secrets(self) -> None:
        self._grant("configmaps")
        if self._stage.server.embedded is not None:
            self._fault = self._stage.faults.deny(resource="secrets", client="story*")

    def allow_secrets(self) -> None:
        self._grant("configmaps", "secrets")
        if self._fault is not None:
            self._fault.remove()

    def _grant(self, *resources: str) -> None:
        envtest = self._stage.server.real
        if envtest is not None:
            rules = [{**READ, "resources": [resource]} for resource in resources]
            namespaced = {self._stage.namespace: rules}
            self.kubeconfig = envtest.user(f"reader-{self._stage.namespace}", namespaced=namespaced)

    def cut(self) -> None:
        """End the open watches, which were let in when there were other rights."""
        if self._stage.server.embedded is not None:
            self._stage.faults.close("RST", resource="secrets")


def follow_both(stage: Stage, kubeconfig: Path, **options: Any) -> Follower:
    secrets = Selection(stage.ref("x").gvr.__class__("", "v1", "secrets"), namespaces=(stage.namespace,))
    return stage.follow(stage.configmaps(), secrets, kubeconfig=kubeconfig, start=False, **options)


def run(stage: Stage, follower: Follower) -> Callable[[], int]:
    looked: list[object] = []
    follower.manager.add_controller("look", looked.append, primary=[stage.configmaps(), follower.sets[1].selection])
    stage.opened.enter_context(follower)
    return lambda: len(looked)


def warnings_about_secrets(stage: Stage) -> Sequence[Any]:
    return [line for line in stage.log.alarms() if "secrets" in str(line.get("resource"))]


def test_a_kind_that_may_not_be_read_delays_nobody_and_syncs_when_it_may(stage: Stage) -> None:
    rights = Rights(stage)
    rights.deny_secrets()
    stage.put("a", "1")
    stage.put_secret("s", "hidden")
    follower = follow_both(stage, rights.kubeconfig)
    looked = run(stage, follower)

    follower.until(lambda: looked() == 1, "the other kind is worked on")
    follower.until(lambda: follower.sets[1].state() == "forbidden", "forbidden")
    assert isinstance(follower.listers[1].problem(), ForbiddenError)
    assert not follower.listers[1].has_synced()
    follower.until(lambda: len(warnings_about_secrets(stage)) == 1, "a warning")

    rights.allow_secrets()
    follower.until(lambda: looked() == 2, "the Secret is looked at")

    follower.until_watching(0)
    follower.until_watching(1)
    assert follower.listers[1].problem() is None
    assert follower.states(0) == ("pending", "syncing", "synced", "watching")


def test_a_right_that_is_taken_away_is_told_and_what_was_read_is_kept(stage: Stage) -> None:
    rights = Rights(stage)
    rights.allow_secrets()
    stage.put_secret("s", "hidden")
    follower = follow_both(stage, rights.kubeconfig, watch=stage.hasty(5))
    run(stage, follower)
    follower.until_watching(1)

    rights.deny_secrets()
    rights.cut()
    follower.until(lambda: follower.sets[1].state() == "forbidden", "forbidden")

    assert [obj.name for obj in follower.listers[1].list()] == ["s"]
    stage.put("a", "1")
    follower.until_value("a", "1")
    stage.put_secret("t", "hidden")
    rights.allow_secrets()
    follower.until(lambda: len(follower.listers[1].list()) == 2, "followed again")
    assert {told.word for told in follower.told(1)} <= {"initial", "added"}
    assert "forbidden" not in follower.states(0)


def test_what_is_forbidden_for_ever_is_asked_for_seldom(breakable: Stage) -> None:
    stage = breakable
    denied = stage.faults.deny(resource="configmaps", verb="list")
    follower = stage.follow(watch=WatchOptions(backoff=Backoff(0.05, 0.25)))
    follower.until(lambda: denied.hits >= 4, "asked again and again")

    at = [request.started for request in stage.lists()]
    assert all(later - earlier >= 0.25 * 0.95 for earlier, later in itertools.pairwise(at))
    assert len(stage.log.alarms()) == 1
