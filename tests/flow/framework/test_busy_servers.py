"""Servers answer 500, 429, or nothing at all: programs wait as long as they should, ask seldom, and go on by themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from informers import Backoff, NotFoundError, ServerError, SystemClock, WatchOptions, metrics

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

pytestmark = pytest.mark.lists

SLOWER = Backoff(0.05, 0.4)
STOPS = 10.0  # a stop on a busy machine


def gaps(requests: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(requests)]


@pytest.mark.parametrize(("verb", "code"), [("list", 500), ("watch", 500), ("list", 503)])
def test_failures_are_retried_with_growing_pauses(breakable: Stage, verb: str, code: int) -> None:
    stage = breakable
    stage.put("a", "1")
    stage.faults.status(code=code, verb=verb, resource="configmaps", times=4)

    follower = stage.follow(watch=WatchOptions(backoff=SLOWER))
    follower.until_watching()

    asked = stage.lists() if verb == "list" else stage.watches()
    at = [request.started for request in asked if request.status == code]
    for number, gap in enumerate(gaps(at)):
        assert gap >= 0.05 * 2**number * 0.95
    # Once a watch has failed so, everything is listed again, not older than what was seen.
    assert next(request.query.get("resourceVersion") == "0" for request in stage.lists())
    assert follower.values() == {"a": "1"}
    stage.put("a", "2")
    follower.until_value("a", "2")


def test_a_watch_that_is_refused_with_429_is_opened_again_no_earlier_than_asked(breakable: Stage) -> None:
    stage = breakable
    stage.faults.status(code=429, headers={"Retry-After": "1"}, verb="watch", resource="configmaps", times=1)
    follower = stage.follow()
    follower.until_watching()

    asked = stage.watches()
    assert all(gap >= 1.0 for gap in gaps([request.started for request in asked])[:1])
    assert len({request.query["resourceVersion"] for request in asked}) == 1
    assert len(stage.lists()) == 1


def test_retry_after_is_honoured_by_every_request(breakable: Stage) -> None:
    stage = breakable
    for name in ("read", "changed", "deleted"):
        stage.put(name, "1")
    client = stage.follow(start=False).manager.client
    gvr, where = stage.ref("a").gvr, stage.namespace
    asks: dict[str, Callable[[], object]] = {
        "list": lambda: list(client.list(gvr, namespace=where)),
        "get": lambda: client.get(stage.ref("read")),
        "patch": lambda: client.patch(stage.ref("changed"), {"data": {"v": "2"}}, field_manager="story"),
        "create": lambda: client.create(gvr, {"metadata": {"name": "n"}}, namespace=where, field_manager="story"),
        "delete": lambda: client.delete(stage.ref("deleted")),
    }
    for verb in asks:
        stage.faults.status(code=429, headers={"Retry-After": "1"}, verb=verb, resource="configmaps", times=1)

    def seconds(ask: Callable[[], object]) -> float:
        began = SystemClock().monotonic()
        ask()
        return SystemClock().monotonic() - began

    with ThreadPoolExecutor(len(asks)) as pool:
        took = dict(zip(asks, pool.map(seconds, asks.values()), strict=True))

    assert all(time >= 1.0 for time in took.values()), took
    for verb in asks:
        asked = stage.embedded.requests(verb=verb, resource="configmaps", client="story*")
        assert [request.status for request in asked][:1] == [429], verb
        assert len(asked) == 2, verb


def test_an_error_without_retry_after_reaches_the_caller_at_once(breakable: Stage) -> None:
    stage = breakable
    manager = stage.follow(start=False).manager
    stage.faults.status(code=500, verb="get", resource="configmaps", times=1)

    with pytest.raises(ServerError):
        manager.client.get(stage.ref("absent"))

    with pytest.raises(NotFoundError):
        manager.client.get(stage.ref("absent"))


def test_a_reconcile_that_meets_429_and_500_comes_to_its_end(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    stage.faults.status(code=429, headers={"Retry-After": "1"}, verb="patch", client="story*", times=1)
    stage.faults.status(code=500, verb="patch", client="story*", times=2)
    follower = stage.follow(start=False)

    def reconcile(request: object) -> None:
        if follower.lister.get("a", stage.namespace).annotations.get("done") is None:
            follower.manager.client.patch(
                stage.ref("a"), {"metadata": {"annotations": {"done": "yes"}}}, field_manager="story"
            )

    follower.manager.add_controller("mark", reconcile, primary=stage.configmaps(), retry=Backoff(0.01, 0.1))
    stage.opened.enter_context(follower)
    follower.until(lambda: stage.client.get(stage.ref("a")).annotations.get("done"), "marked")

    def answers() -> list[int]:
        asked = stage.embedded.requests(verb="patch", resource="configmaps", client="story*")
        return sorted(request.status for request in asked)

    follower.until(lambda: answers() == [200, 429, 500, 500], "answered")


def watch_errors() -> float:
    return metrics.counter("informers_watch_errors_total", "", ("cluster", "resource", "code")).total()


def test_refused_connections_are_tried_seldom_and_the_watch_goes_on_when_they_are_taken_again(stage: Stage) -> None:
    relay = stage.server.relay()
    backoff = Backoff(0.05, 0.4)
    follower = stage.follow(kubeconfig=relay.kubeconfig, watch=WatchOptions(backoff=backoff))
    follower.until_watching()
    clock = SystemClock()
    before, began = watch_errors(), clock.monotonic()

    relay.refuse()
    stage.put("a", "1")
    follower.until(lambda: watch_errors() - before >= 5, "tried")
    tries = watch_errors() - before
    waited = clock.monotonic() - began
    relay.heal()
    follower.until_value("a", "1")

    # Each wait is at least the backoff's.
    assert sum(min(0.4, 0.05 * 2**number) for number in range(int(tries) - 1)) <= waited
    assert len(stage.log.lines("listed")) == 1
    assert len(stage.log.alarms()) <= 2
    assert "error" not in stage.log.levels()


def test_a_server_that_is_not_there_at_the_start_is_waited_for(stage: Stage) -> None:
    stage.put("a", "1")
    relay = stage.server.relay()
    relay.refuse()
    follower = stage.follow(kubeconfig=relay.kubeconfig)
    follower.until(lambda: follower.sets[0].problem() is not None, "refused")
    assert not follower.sets[0].has_synced()

    relay.heal()
    follower.until_value("a", "1")

    assert follower.sets[0].problem() is None


def test_nobody_waits_for_a_backoff_at_the_stop(stage: Stage) -> None:
    relay = stage.server.relay()
    relay.refuse()
    follower = stage.follow(kubeconfig=relay.kubeconfig, watch=WatchOptions(backoff=Backoff(30, 30)))
    follower.until(lambda: follower.sets[0].problem() is not None, "refused")

    assert follower.stop() < STOPS
