"""Between a reconcile's writes and its next start lies whatever can: late events, lost answers, lists of old replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import pytest

from informers import GVR, APIError, Backoff, Clusters, Manager, ObjectRef, Request, TransportError
from informers.testing import APIServer, settle

if TYPE_CHECKING:
    from informers import Controller
    from informers.testing.apiserver import Fault, Faults
    from tests.flow.framework.conftest import Follower, Stage

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
# Watches of children; that of parents has a selector, and is never late.
CHILDREN: dict[str, Any] = {"verb": "watch", "query": {"labelSelector": None}, "client": "story*"}
HELD = 60.0


class Parent:
    """Acts in the first reconcile of one object, and notes in each what its caches show when it starts."""

    def __init__(self, stage: Stage, act: Callable[[Follower], object], look: Callable[[Follower], object]) -> None:
        self.stage = stage
        self.saw: list[object] = []
        self._act = act
        self._look = look
        stage.put("parent", "1", labels={"parent": "yes"})
        # The first list is one: as the beginning of a watch it would be held back, too.
        self.follower = stage.follow(start=False, watch=stage.hasty(300, initial="list"))
        self.follower.follow(SECRETS)
        self.controller: Controller = self.follower.manager.add_controller(
            "parent",
            self._reconcile,
            primary=stage.configmaps(label_selector="parent"),
            retry=Backoff(0.01, 0.1),
        )

    def _reconcile(self, request: Request) -> None:
        self.saw.append(self._look(self.follower))
        if len(self.saw) == 1:
            self._act(self.follower)

    def start(self) -> Fault:
        """Start, with children's events held back until the fault that is returned is taken off."""
        held = self.stage.faults.delay(seconds=HELD, what="events", **CHILDREN)
        self.stage.opened.enter_context(self.follower)
        self.follower.until(lambda: len(self.saw) == 1 and self.controller.is_idle(), "acted")
        return held

    def ask_again(self) -> None:
        """Want another reconcile, which has to wait for the caches."""
        self.controller.enqueue(self.stage.ref("parent"))
        self.follower.until(self.controller.parked, "waits")

    def until_second(self) -> object:
        self.follower.until(lambda: len(self.saw) >= 2, "reconciled again")
        return self.saw[1]


def children(follower: Follower) -> list[str]:
    return [obj.name for obj in follower.lister.list(labels="child")]


def child(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"child": "yes"}}, "data": data}


def test_what_one_reconcile_made_and_deleted_is_not_alive_in_the_next(breakable: Stage) -> None:
    stage = breakable
    lags: list[Fault] = []

    def make_and_delete(follower: Follower) -> None:
        client = follower.manager.client
        made = client.create(CONFIGMAPS, child("c"), namespace=stage.namespace, field_manager="story")
        lags.append(stage.faults.lag(rv=int(made.resource_version), existing=True, **CHILDREN))
        client.delete(made.ref)

    parent = Parent(stage, make_and_delete, children)
    held = parent.start()
    parent.ask_again()

    held.remove()
    parent.follower.until(lambda: children(parent.follower) == ["c"], "the cache shows it alive")
    parent.controller.enqueue(stage.ref("parent"))
    parent.follower.until(lambda: len(parent.controller.queue) == 0, "looked at")
    saw, waits = list(parent.saw), parent.controller.parked()
    lags[0].remove()

    assert saw == [[]]
    assert waits == (stage.ref("parent"),)
    assert parent.until_second() == []


def test_what_a_write_took_out_of_a_selection_is_not_in_it_in_the_next(breakable: Stage) -> None:
    stage = breakable
    stage.put("c", "1", labels={"child": "yes", "app": "x"})

    def relabel(follower: Follower) -> None:
        body = {"metadata": {"labels": {"app": "y"}}}
        follower.manager.client.patch(stage.ref("c"), body, field_manager="story")

    parent = Parent(stage, relabel, lambda follower: [obj.name for obj in selected.list()])
    selected = parent.follower.follow(stage.configmaps(label_selector="app=x"))
    late = {**CHILDREN, "query": {"labelSelector": "app*"}}
    held = stage.faults.delay(seconds=HELD, what="events", **late)
    stage.opened.enter_context(parent.follower)
    parent.follower.until(lambda: len(parent.saw) == 1 and parent.controller.is_idle(), "acted")
    parent.ask_again()
    held.remove()

    assert parent.until_second() == []
    assert parent.saw[0] == ["c"]


LATE = "done and nothing more is heard"
LOSSES: dict[str, Callable[[Faults, dict[str, Any]], object]] = {
    "done and the connection is closed": lambda faults, match: faults.dropreply(**match),
    "done and the connection is reset": lambda faults, match: faults.rst(at="headers", **match),
    LATE: lambda faults, match: faults.freeze(at="headers", **match),
    "done and refused by a conflict": lambda faults, match: faults.conflict(committed=True, **match),
    "not done and refused by a conflict": lambda faults, match: faults.conflict(committed=False, **match),
    "not done and the connection is reset": lambda faults, match: faults.rst(at="request", **match),
}


@pytest.mark.parametrize(
    ("verb", "loss"),
    [(verb, loss) for verb in ("create", "patch", "delete") for loss in LOSSES if loss != LATE or verb == "patch"],
)
def test_after_an_unknown_outcome_the_caches_show_what_came_of_it(breakable: Stage, verb: str, loss: str) -> None:
    """What the next reconcile sees is what was read live meanwhile; so it never does again what has been done."""
    stage = breakable
    is_done = loss.startswith("done")
    timeout = 3 if loss == LATE else None
    if verb != "create":
        stage.put("c", "old", labels={"child": "yes"})

    def write(follower: Follower) -> None:
        client, ref = follower.manager.client, stage.ref("c")
        if verb == "create":
            client.create(
                CONFIGMAPS, child("c", v="new"), namespace=stage.namespace, field_manager="story", timeout=timeout
            )
        elif verb == "patch":
            client.patch(ref, {"data": {"v": "new"}}, field_manager="story", timeout=timeout)
        else:
            client.delete(ref, timeout=timeout)

    outcomes: list[BaseException] = []

    def write_and_fail(follower: Follower) -> None:
        try:
            write(follower)
        except (APIError, TransportError) as error:
            outcomes.append(error)
            raise

    parent = Parent(stage, write_and_fail, lambda follower: follower.values().get("c"))
    LOSSES[loss](stage.faults, {"verb": verb, "resource": "configmaps", "client": "story*", "times": 1})
    held = stage.faults.delay(seconds=HELD, what="events", **CHILDREN)
    stage.opened.enter_context(parent.follower)
    parent.follower.until(lambda: outcomes, "the outcome is not known")
    parent.follower.until(lambda: len(parent.saw) >= 2 or parent.controller.parked(), "looked into")
    seen_early = list(parent.saw)
    held.remove()
    parent.until_second()
    settle(parent.follower.manager)

    before = None if verb == "create" else "old"
    after = None if verb == "delete" else "new"
    assert parent.saw[:2] == [before, after if is_done else before]
    assert not is_done or seen_early == [before], "it waited"
    # Other requests for this name are the story's.
    assert len(stage.embedded.requests(verb="get", name="c", client="story*")) == 1


def test_a_list_of_an_old_replica_does_not_let_the_next_reconcile_start(breakable: Stage) -> None:
    stage = breakable

    def make(follower: Follower) -> None:
        follower.manager.client.create(CONFIGMAPS, child("c"), namespace=stage.namespace, field_manager="story")

    parent = Parent(stage, make, children)
    before = int(stage.put("unrelated", "1"))
    held = parent.start()
    parent.ask_again()
    # The stream ends, history has expired, and the replica that lists is as old as the cache.
    match: dict[str, Any] = {"resource": "configmaps", "client": "story*", "query": {"labelSelector": None}}
    lag = stage.faults.lag(rv=before, verb=["list", "watch"], **match)
    stage.faults.ev(code=410, verb="watch", times=1, existing=True, **match)
    held.remove()
    parent.follower.until(
        lambda: [
            line for line in stage.log.lines("listed") if line["cause"] == "expired" and line["rv"] == str(before)
        ],
        "an old list was taken in",
    )
    parent.controller.enqueue(stage.ref("parent"))
    parent.follower.until(lambda: len(parent.controller.queue) == 0, "parked again")
    still_parked, saw = parent.controller.parked(), list(parent.saw)
    lag.remove()
    stage.embedded.faults().close(client="story*")

    assert still_parked == (stage.ref("parent"),)
    assert saw == [[]]
    assert parent.until_second() == ["c"]


def test_what_was_made_and_deleted_in_a_gap_holds_nobody_up(breakable: Stage) -> None:
    stage = breakable

    def make(follower: Follower) -> None:
        follower.manager.client.create(CONFIGMAPS, child("c"), namespace=stage.namespace, field_manager="story")

    parent = Parent(stage, make, children)
    parent.start()
    parent.ask_again()
    broken = stage.faults.status(code=503, verb=["list", "watch"], resource="configmaps", client="story*")
    stage.embedded.faults().close("RST", client="story*")
    stage.delete("c")
    stage.embedded.faults().compact()
    stage.faults.clear()

    assert not broken.is_active()
    assert parent.until_second() == []


def test_many_writes_of_many_kinds_are_all_shown(breakable: Stage) -> None:
    stage = breakable
    names = [f"c{number}" for number in range(5)]

    def make(follower: Follower) -> None:
        client = follower.manager.client
        for name in names:
            client.create(CONFIGMAPS, child(name), namespace=stage.namespace, field_manager="story")
            client.create(SECRETS, child(name), namespace=stage.namespace, field_manager="story")
        client.delete(stage.ref(names[0]))
        client.patch(stage.ref(names[1]), {"metadata": {"labels": {"child": "changed"}}}, field_manager="story")

    def look(follower: Follower) -> object:
        secrets = [obj.name for obj in follower.listers[1].list(labels="child")]
        changed = [obj.name for obj in follower.lister.list(labels="child=changed")]
        return children(follower), secrets, changed

    parent = Parent(stage, make, look)
    held = parent.start()
    parent.ask_again()
    only_secrets = stage.faults.delay(seconds=HELD, what="events", resource="secrets", existing=True, **CHILDREN)
    held.remove()
    parent.follower.until(lambda: children(parent.follower) == names[1:], "one kind is shown")
    before = list(parent.saw)
    only_secrets.remove()

    assert before == [([], [], [])], "one kind of two is not enough"
    assert parent.until_second() == (names[1:], names, names[1:2])


def test_what_was_written_to_another_cluster_is_shown_there(breakable: Stage) -> None:
    stage = breakable
    saw: list[list[str]] = []
    with APIServer() as far:
        clusters = Clusters.of({"": _config(stage.embedded), "far": _config(far)})
        manager = Manager(clusters, name="story", watch=stage.hasty(300, initial="list"), tune_gc=False)
        lister = manager.lister(CONFIGMAPS)

        def reconcile(request: Request) -> None:
            if request.ref.cluster or request.ref.name != "parent":
                return
            saw.append([obj.name for obj in lister.list(labels="child", cluster="far")])
            if len(saw) == 1:
                manager.client.create(CONFIGMAPS, child("c"), namespace="default", cluster="far", field_manager="story")

        controller = manager.add_controller("parent", reconcile, primary=CONFIGMAPS, retry=Backoff(0.01, 0.1))
        stage.put("parent", "1")
        parent = ObjectRef(CONFIGMAPS, stage.namespace, "parent")
        held = far.faults().delay(seconds=HELD, what="events", verb="watch", resource="configmaps")
        with _Running(manager, stage) as running:
            running.until(lambda: len(saw) == 1 and controller.is_idle(), "acted")
            controller.enqueue(parent)
            running.until(controller.parked, "waits")
            waits = (list(saw), controller.parked())
            held.remove()
            running.until(lambda: len(saw) == 2, "reconciled again")

    assert waits == ([[]], (parent,))
    assert saw == [[], ["c"]]


def _config(server: APIServer) -> Any:
    return Clusters.load(str(server.kubeconfig)).config("")


class _Running:
    """A manager on a thread of its own."""

    def __init__(self, manager: Manager, stage: Stage) -> None:
        self._manager = manager
        self._stage = stage

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._manager.run, name="program")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def until(self, holds: Callable[[], object], what: str) -> None:
        tick = threading.Event()
        for _ in range(1000):
            if holds():
                return
            tick.wait(0.02)
        raise AssertionError(what)
