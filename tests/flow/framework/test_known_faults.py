"""What went wrong in other clients does not go wrong here: each story names the report that told of it first."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from informers import (
    GVR,
    Backoff,
    ForbiddenError,
    InformersError,
    NotFoundError,
    ObjectRef,
    Request,
    RequestTimeout,
    Selection,
    StaleCacheError,
    WatchOptions,
)
from informers.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.flow.framework.conftest import Stage

pytestmark = pytest.mark.lists

SECRETS = GVR("", "v1", "secrets")
QUICK = WatchOptions(backoff=Backoff(0.03, 0.12))


def hold(stage: Stage, resource: str) -> Any:
    """Hold back what happens from now on, on the streams that are open."""
    return stage.faults.delay(seconds=300, what="events", verb="watch", resource=resource, existing=True, times=1)


def test_every_watch_asks_for_what_keeps_quiet_kinds_alive(breakable: Stage) -> None:
    """Bookmarks, an end of its own, a version to start from, and no limit."""
    stage = breakable
    follower = stage.follow(
        stage.configmaps(),
        stage.configmaps(metadata_only=True, label_selector="a"),
        Selection("secret", namespaces=(stage.namespace,)),
        start=False,
    )
    graph = follower.manager.dependency_graph(namespaces=(stage.namespace,))

    def reconcile(request: Request) -> None:
        graph.replace(request.ref, [ObjectRef(GVR("", "v1", "services"), stage.namespace, "s")])

    follower.manager.add_controller("look", reconcile, primary=stage.configmaps(), dependencies=graph)
    stage.put("a", "1")
    stage.opened.enter_context(follower)

    def watched() -> set[str]:
        return {request.resource for request in stage.embedded.requests(verb="watch", client="story*")}

    follower.until(lambda: {"configmaps", "secrets", "services"} <= watched() and len(watched()) == 5, "all are open")

    for request in stage.embedded.requests(verb="watch", client="story*"):
        query = dict(request.query)
        assert query.pop("allowWatchBookmarks") == "true"
        assert 300 <= int(query.pop("timeoutSeconds")) <= 600
        assert int(query.pop("resourceVersion")) > 0
        assert query.pop("watch") in {"1", "true"}
        assert set(query) <= {"labelSelector"}


def test_a_cache_that_cannot_be_kept_up_says_so_is_refused_when_old_and_is_never_given_up(
    perform: Callable[..., Stage],
) -> None:
    """jupyterhub/kubespawner#938: after some failures it gave up, and served its frozen cache on."""
    stage = perform(bookmark_every=0.1)
    stage.put("a", "1")
    follower = stage.follow(stage.configmaps(max_staleness=1.0), stage.configmaps(), watch=QUICK)
    follower.until_watching(0)
    follower.until_watching(1)
    failing = stage.faults.status(code=503, resource="configmaps", verb=["list", "watch"], client="story*")
    stage.faults.close("RST", resource="configmaps")

    def is_refused() -> bool:
        try:
            follower.listers[0].get("a", stage.namespace)
        except StaleCacheError:
            return True
        return False

    follower.until(is_refused, "too old to be read")
    hits = failing.hits
    follower.until(lambda: failing.hits >= hits + 3, "it goes on trying")
    assert follower.listers[1].get("a", stage.namespace).get("data", "v") == "1"
    assert "503" in str(follower.listers[0].problem())
    assert follower.listers[0].age() > 1.0
    stage.put("a", "2")

    failing.remove()
    follower.until(lambda: not is_refused(), "fresh again")
    follower.until_value("a", "2")
    follower.until(lambda: follower.listers[0].problem() is None, "well")


def test_events_in_no_order_give_no_version_to_resume_from(breakable: Stage) -> None:
    """fiaas/k8s PR 132: events of objects long gone were replayed, as it resumed from the last of the first events."""
    stage = breakable
    for name in ("c", "a", "b"):
        stage.put(name, "1")
    body = json.dumps({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": []})
    once: dict[str, Any] = {"resource": "configmaps", "client": "story*", "times": 1}
    stage.faults.status(code=200, body=body, headers={"Content-Type": "application/json"}, verb="list", **once)
    stage.faults.fin(at="stream", clean=False, at_event=2, verb="watch", **once)

    follower = stage.follow(watch=QUICK)
    follower.until(lambda: len(stage.watches()) == 2, "watched again")
    follower.until_value("b", "1")

    assert "resourceVersion" not in stage.watches()[0].query
    assert [request.query.get("resourceVersion") for request in stage.lists()] == ["0", None]
    assert sorted(each.name for each in follower.told()) == ["a", "b", "c"]
    stage.delete("a")
    follower.until_value("a", None)


def test_a_connection_that_went_dead_is_not_handed_out_again(breakable: Stage) -> None:
    """golang/go#39750"""
    stage = breakable
    stage.put("a", "1")
    client = stage.follow(start=False).manager.client
    client.get(stage.ref("a"))
    stage.faults.freeze(verb="get", resource="configmaps", client="story*", times=1)

    with pytest.raises(RequestTimeout):
        client.get(stage.ref("a"), timeout=0.3)
    client.get(stage.ref("a"))

    first, frozen, last = [
        request.connection for request in stage.embedded.requests(verb="get", client="story*", name="a")
    ]
    assert first == frozen != last


def test_what_is_forbidden_for_ten_minutes_costs_few_requests_and_one_line(breakable: Stage) -> None:
    """fabric8io/kubernetes-client#7365: thousands of tries, and memory that grew with each."""
    stage = breakable
    stage.put("a", "1")
    clock = FakeClock()
    denied = stage.faults.deny(verb="list", resource="configmaps", client="story*")
    follower = stage.follow(clock=clock, watch=WatchOptions())
    began = clock.monotonic()

    while clock.monotonic() < began + 570:  # the line may be repeated after 600
        follower.until(lambda: follower.sets[0].state() == "forbidden", "forbidden")
        with suppress(TimeoutError):
            clock.block_until_waiting(due_in=46, timeout=0.2)
        clock.advance(15)

    assert 2 <= denied.hits <= 30
    assert len(stage.log.alarms()) == 1
    assert isinstance(follower.listers[0].problem(), ForbiddenError)
    denied.remove()

    def comes() -> bool:
        clock.advance(5)
        return follower.values() == {"a": "1"}

    follower.until(comes, "it syncs when it may")


def test_two_managers_with_different_credentials_do_not_meet(perform: Callable[..., Stage], tmp_path: Path) -> None:
    stage = perform(tokens=["token-of-ann=ann", "token-of-bob=bob"])
    stage.put("a", "1")
    config = yaml.safe_load(stage.server.kubeconfig.read_text())
    (user,) = config["users"]
    user["user"]["token"] = "token-of-bob"
    other = tmp_path / "bob"
    other.write_text(yaml.safe_dump(config))
    whats = (stage.configmaps(), Selection("secret", namespaces=(stage.namespace,)))

    ann = stage.follow(*whats, name="story-ann")
    bob = stage.follow(*whats, kubeconfig=other, name="story-bob")
    for follower in (ann, bob):
        follower.until_watching(0)
        follower.until_watching(1)
        follower.manager.client.get(stage.ref("a"))

    for name in ("ann", "bob"):
        asked = stage.embedded.requests(client=f"story-{name}/*")
        assert {request.user for request in asked} == {name}
        assert {"list", "watch", "get", "discovery"} <= {request.verb for request in asked}
    connections = [{request.connection for request in stage.embedded.requests(user=name)} for name in ("ann", "bob")]
    assert not connections[0] & connections[1] - {
        request.connection for request in stage.embedded.requests(client="story/*")
    }


def test_dependents_hear_of_a_source_that_was_deleted_while_its_history_expired(breakable: Stage) -> None:
    stage = breakable
    stage.put("target", "1")
    stage.put_secret("source", "x")
    follower = stage.follow(start=False, watch=QUICK)
    graph = follower.manager.dependency_graph(namespaces=(stage.namespace,))
    source = stage.ref("source", SECRETS)
    seen: list[str] = []

    def reconcile(request: Request) -> None:
        graph.replace(request.ref, [source])
        try:
            graph.lister(source).get(source.name, source.namespace)
        except NotFoundError:
            seen.append("absent")
        except InformersError:
            raise
        else:
            seen.append("present")

    follower.manager.add_controller("follow", reconcile, primary=stage.configmaps(), dependencies=graph)
    stage.opened.enter_context(follower)
    follower.until(lambda: seen[-1:] == ["present"], "read")
    stage.embedded.wait_request(verb="watch", resource="secrets", status=200, timeout=60)

    hold(stage, "secrets")
    stage.client.delete(source)
    stage.faults.compact(resource="secrets")
    stage.faults.close("RST", resource="secrets")

    follower.until(lambda: seen[-1] == "absent", "woken by a deletion that no watch told of")


@pytest.mark.parametrize("code", [403, 429, 500, 503])
def test_discovery_that_fails_delays_only_who_needs_it(
    breakable: Stage, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = breakable
    monkeypatch.setattr("informers.api.restmapper._FAILED", Backoff(0.1, 0.2))
    stage.put("a", "1")
    stage.put_secret("s", "1")
    failing = stage.faults.status(code=code, verb="discovery", client="story*")
    follower = stage.follow(stage.configmaps(), watch=QUICK, start=False)
    follower.follow(Selection("secret", namespaces=(stage.namespace,)), required=False)
    stage.opened.enter_context(follower)
    follower.until_value("a", "1")
    follower.until(lambda: failing.hits >= 6, "tried again and again")
    assert not follower.sets[1].has_synced()
    assert follower.listers[1].problem() is not None

    at = [request.started for request in stage.embedded.requests(path="/api", client="story*")]
    # Two ask, each with pauses of its own: who needs a name, and who follows what is served.
    assert all(later - earlier >= 0.1 * 0.99 for earlier, later in zip(at, at[2:], strict=False))
    failing.remove()

    follower.until_watching(1)
    assert [obj.name for obj in follower.listers[1].list()] == ["s"]
    assert follower.listers[1].problem() is None
