"""What depends on something looks again when that appears, changes or goes, whatever kind it is and whenever that comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from informers import GVR, InformersError, NotFoundError, ObjectRef, Request
from informers.testing import settle

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

SECRETS = GVR("", "v1", "secrets")


class Dependent:
    """A controller whose every ConfigMap depends on the Secret that its value names."""

    def __init__(self, stage: Stage, follower: Follower) -> None:
        self.found: dict[str, list[str]] = {}
        self._stage = stage
        self._lister = follower.lister
        self.graph = follower.manager.dependency_graph(namespaces=(stage.namespace,))
        self.controller = follower.manager.add_controller(
            "follow", self.reconcile, primary=stage.configmaps(), dependencies=self.graph, workers=2
        )

    def reconcile(self, request: Request) -> None:
        found = self._lister.find(request.ref)
        if found is None:
            self.graph.forget(request.ref)
            return
        source = ObjectRef(SECRETS, self._stage.namespace, str(found.get("data", "v")))
        self.graph.replace(request.ref, [source])
        try:
            value = str(self.graph.lister(source).get(source.name, source.namespace).get("data", "v"))
        except NotFoundError:
            value = "absent"
        self.found.setdefault(request.ref.name, []).append(value)

    def last(self, name: str) -> str:
        return self.found.get(name, [""])[-1]


def test_a_dependent_looks_again_when_its_source_appears_changes_and_goes(stage: Stage) -> None:
    stage.put("first", "source")
    stage.put("second", "source")
    stage.put("apart", "another")
    stage.put_secret("another", "x")
    follower = stage.follow(start=False)
    dependent = Dependent(stage, follower)
    stage.opened.enter_context(follower)
    follower.until(lambda: dependent.last("first") == dependent.last("second") == "absent", "looked at")
    follower.until(lambda: dependent.last("apart") not in {"", "absent"}, "looked at")
    settle(follower.manager)
    before = len(dependent.found["apart"])

    stage.put_secret("source", "1")
    follower.until(lambda: dependent.last("first") == dependent.last("second") == "MQ==", "appeared")
    stage.put_secret("source", "2")
    follower.until(lambda: dependent.last("first") == dependent.last("second") == "Mg==", "changed")
    stage.client.delete(stage.ref("source", SECRETS))
    follower.until(lambda: dependent.last("first") == dependent.last("second") == "absent", "gone")
    stage.put_secret("source", "3")
    follower.until(lambda: dependent.last("first") == dependent.last("second") == "Mw==", "back")

    settle(follower.manager)
    assert len(dependent.found["apart"]) == before
    stage.delete("first")
    follower.until(lambda: dependent.graph.dependencies_of(stage.ref("first")) == (), "forgotten")
    assert list(dependent.graph.dependents_of(stage.ref("source", SECRETS))) == [stage.ref("second")]


def test_a_dependent_that_turns_elsewhere_is_no_longer_woken(stage: Stage) -> None:
    stage.put_secret("old", "1")
    stage.put_secret("new", "1")
    stage.put("a", "old")
    follower = stage.follow(start=False)
    dependent = Dependent(stage, follower)
    stage.opened.enter_context(follower)
    follower.until(lambda: dependent.last("a") == "MQ==", "looked at")

    stage.put("a", "new")
    follower.until(lambda: list(dependent.graph.dependents_of(stage.ref("new", SECRETS))) == [stage.ref("a")], "turned")
    settle(follower.manager)
    before = len(dependent.found["a"])
    stage.put_secret("old", "2")
    settle(follower.manager)

    assert len(dependent.found["a"]) == before
    stage.put_secret("new", "2")
    follower.until(lambda: dependent.last("a") == "Mg==", "woken")


def test_a_source_whose_kind_may_not_be_read_harms_nobody_and_is_said(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "source")
    stage.put_secret("source", "1")
    denied = stage.faults.deny(resource="secrets", client="story*")
    follower = stage.follow(start=False)
    seen: list[Any] = []
    graph = follower.manager.dependency_graph(namespaces=(stage.namespace,))
    source = stage.ref("source", SECRETS)

    def reconcile(request: Request) -> None:
        graph.replace(request.ref, [source])
        lister = graph.lister(source)
        try:
            seen.append(str(lister.get(source.name, source.namespace).get("data", "v")))
        except InformersError:
            seen.append(lister.state())
            raise

    follower.manager.add_controller("follow", reconcile, primary=stage.configmaps(), dependencies=graph)
    stage.opened.enter_context(follower)
    follower.until(lambda: graph.lister(source).state() == "forbidden" if seen else False, "told")
    stage.put("b", "source")
    follower.until_value("b", "source")

    denied.remove()
    follower.until(lambda: seen[-1] == "MQ==", "read")
