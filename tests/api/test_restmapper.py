from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from informers.api.calls import Response
from informers.api.discovery import Discovery, read_discovery
from informers.api.restmapper import RESTMapper, _parse
from informers.api.transport import Transport
from informers.clock import Stop
from informers.meta.errors import (
    AmbiguousKindError,
    APIError,
    ConfigError,
    ConnectError,
    NotSyncedError,
    ServerError,
    UnknownKindError,
)
from informers.meta.resources import GVK, GVR
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.api.conftest import Connection, Serve, Server

    Connect = Callable[..., Transport]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def served(plural: str, kind: str, *short: str, singular: str = "", scope: str = "Namespaced") -> dict[str, Any]:
    return {"plural": plural, "kind": kind, "short": list(short), "singular": singular, "scope": scope}


DEPLOYMENTS = served("deployments", "Deployment", "deploy", singular="deployment")
PODS = served("pods", "Pod", "po", singular="pod")


class Fake:
    """An API server that serves what `groups` says: group -> version -> resources, as it is when asked."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, list[dict[str, Any]]]] = {
            "": {
                "v1": [PODS, served("namespaces", "Namespace", "ns", scope="Cluster"), served("events", "Event", "ev")]
            },
            "apps": {"v1": [DEPLOYMENTS], "v1beta1": [DEPLOYMENTS, served("scales", "Scale")]},
            "extensions": {"v1beta1": [DEPLOYMENTS, served("ingresses", "Ingress", "ing")]},
            "networking.k8s.io": {"v1": [served("ingresses", "Ingress", "ing")]},
            "events.k8s.io": {"v1": [served("events", "Event", "ev")]},
            "a.example.com": {"v1": [served("widgets", "Widget", "wi")], "v1alpha1": [served("pods", "Pod")]},
            "b.example.com": {"v2": [served("widgets", "Widget", "wx")]},
            "v1.example.com": {"v1": [served("gears", "Gear")]},
        }
        self.is_aggregated = True
        self.stale: set[str] = set()  # group versions
        self.broken: dict[str, int] = {}  # path -> status
        self.openapi: dict[str, tuple[str, dict[str, Any]]] = {}  # path -> hash, document
        self.hold: threading.Event | None = None
        self.held = threading.Semaphore(0)

    def __call__(self, connection: Connection) -> None:
        while asked := connection.read():
            path = asked.target.partition("?")[0]
            if self.hold is not None and path == "/apis":
                self.held.release()
                assert self.hold.wait(60)
            if path in self.broken:
                connection.answer({"kind": "Status"}, status=self.broken[path])
            elif self.is_aggregated and path in {"/api", "/apis"} and AGGREGATED in asked.headers["accept"]:
                connection.answer(self.aggregated(path), headers={"Content-Type": AGGREGATED})
            elif (answer := self.legacy(path)) is not None:
                is_index = path == "/openapi/v3"  # which kube-apiserver calls text/plain
                connection.answer(answer, headers={"Content-Type": "text/plain"} if is_index else {})
            else:
                connection.answer({"kind": "Status", "reason": "NotFound"}, status=404)

    def aggregated(self, path: str) -> dict[str, Any]:
        return {
            "kind": "APIGroupDiscoveryList",
            "items": [
                {
                    "metadata": {"name": group} if group else {"creationTimestamp": None},
                    "versions": [
                        {
                            "version": version,
                            "freshness": "Stale" if f"{group}/{version}" in self.stale else "Current",
                            "resources": [
                                {
                                    "resource": each["plural"],
                                    "responseKind": {"group": group, "version": version, "kind": each["kind"]},
                                    "scope": each["scope"],
                                    "singularResource": each["singular"],
                                    "verbs": ["get", "list"],
                                    "shortNames": each["short"],
                                    "subresources": [{"subresource": "status", "verbs": ["get"]}],
                                }
                                for each in resources
                                if f"{group}/{version}" not in self.stale
                            ],
                        }
                        for version, resources in versions.items()
                    ],
                }
                for group, versions in self.groups.items()
                if (path == "/api") == (group == "")
            ],
        }

    def legacy(self, path: str) -> dict[str, Any] | None:
        if path == "/api":
            return {"kind": "APIVersions", "versions": list(self.groups[""])}
        if path == "/apis":
            groups = [
                {
                    "name": name,
                    "versions": [{"groupVersion": f"{name}/{v}", "version": v} for v in reversed(versions)],
                    "preferredVersion": {"version": next(iter(versions))},
                }
                for name, versions in self.groups.items()
                if name
            ]
            return {"kind": "APIGroupList", "groups": groups}
        if path == "/openapi/v3":
            return {
                "paths": {
                    key: {"serverRelativeURL": f"/openapi/v3/{key}?hash={h}"} for key, (h, _) in self.openapi.items()
                }
            }
        if path.startswith("/openapi/v3/"):
            return self.openapi[path.removeprefix("/openapi/v3/")][1]
        group, _, version = path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")
        resources = self.groups.get(group, {}).get(version)
        if resources is None:
            return None
        listed: list[dict[str, Any]] = []
        for each in resources:
            whole = {
                "name": each["plural"],
                "singularName": each["singular"],
                "namespaced": each["scope"] == "Namespaced",
                "kind": each["kind"],
                "verbs": ["list", "get"],
                "shortNames": each["short"] or None,
            }
            listed += [whole, {**whole, "name": f"{each['plural']}/status"}]
        return {"kind": "APIResourceList", "resources": listed}


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def server(fake: Fake, serve: Serve) -> Server:
    return serve(fake)


@pytest.fixture
def mapper(server: Server, connect: Connect, clock: FakeClock) -> RESTMapper:
    return RESTMapper(connect(server.url, clock=clock))


def loads(server: Server) -> int:
    return sum(asked.target == "/apis" for asked in server.asked)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pods", "pods.v1"),
        ("pod", "pods.v1"),
        ("Pod", "pods.v1"),
        ("PO", "pods.v1"),
        ("namespace", "namespaces.v1"),
        ("pods.v1", "pods.v1"),
        ("pods.v1.", "pods.v1"),
        ("pods.v1.core", "pods.v1"),
        ("pods.core", "pods.v1"),
        ("pods.", "pods.v1"),
        ("pods.v1alpha1", "pods.v1alpha1.a.example.com"),
        ("pods.a.example.com", "pods.v1alpha1.a.example.com"),
        ("deploy", "deployments.v1.apps"),
        ("Deployment.v1beta1.apps", "deployments.v1beta1.apps"),
        ("deployments.apps", "deployments.v1.apps"),
        ("deployments.extensions", "deployments.v1beta1.extensions"),
        ("scales", "scales.v1beta1.apps"),
        ("ing", "ingresses.v1.networking.k8s.io"),
        ("ingress.extensions", "ingresses.v1beta1.extensions"),
        ("events", "events.v1"),
        ("ev.events.k8s.io", "events.v1.events.k8s.io"),
        ("wi", "widgets.v1.a.example.com"),
        ("widget.v2", "widgets.v2.b.example.com"),
        ("gears.v1.v1.example.com", "gears.v1.v1.example.com"),
        ("gears", "gears.v1.v1.example.com"),
    ],
)
@pytest.mark.parametrize("is_aggregated", [True, False])
def test_text_means_a_resource(
    text: str, found: str, is_aggregated: bool, mapper: RESTMapper, fake: Fake, server: Server
) -> None:
    fake.is_aggregated = is_aggregated

    resource = mapper.resolve(text)

    assert str(resource.gvr) == found
    assert resource.subresources == {"status"}
    assert resource.verbs == {"get", "list"}
    assert resource.namespaced is (resource.kind != "Namespace")
    assert resource.singular == resource.kind.lower()
    assert loads(server) == 1


def test_who_names_a_version_that_is_not_served_is_told_those_that_are(mapper: RESTMapper) -> None:
    with pytest.raises(UnknownKindError) as raised:
        mapper.resolve("deploy.v9.apps")

    assert raised.value.candidates == ("deployments.v1.apps", "deployments.v1beta1.apps")
    assert "served are deployments.v1.apps, deployments.v1beta1.apps" in str(raised.value)


def test_who_may_not_wait_is_told_what_is_known_and_asks_nothing(mapper: RESTMapper, server: Server) -> None:
    used: list[None] = []
    mapper.on_first_use = lambda: used.append(None)
    with pytest.raises(NotSyncedError):
        mapper.resolve("pods", ask=False)
    assert used
    assert loads(server) == 0

    mapper.resources()

    assert str(mapper.resolve("pods", ask=False).gvr) == "pods.v1"
    with pytest.raises(UnknownKindError):
        mapper.resolve("nothing", ask=False)
    assert loads(server) == 1


def test_both_ways_of_discovery_tell_the_same(mapper: RESTMapper, fake: Fake, connect: Connect, server: Server) -> None:
    aggregated = mapper.resources()
    fake.is_aggregated = False

    assert list(RESTMapper(connect(server.url)).resources()) == list(aggregated)
    assert mapper.problems() == {}


def test_two_groups_with_the_same_name_are_ambiguous(mapper: RESTMapper) -> None:
    with pytest.raises(AmbiguousKindError) as raised:
        mapper.resolve("widget")

    assert raised.value.candidates == ("widgets.v1.a.example.com", "widgets.v2.b.example.com")
    assert "widgets.v1.a.example.com or widgets.v2.b.example.com" in str(raised.value)


def test_plural_beats_singular_beats_kind_beats_short_name(mapper: RESTMapper, fake: Fake) -> None:
    fake.groups = {
        "short.io": {"v1": [served("as", "A", "thing")]},
        "kind.io": {"v1": [served("bs", "Thing", singular="b")]},
        "singular.io": {"v1": [served("cs", "C", singular="thing")]},
        "plural.io": {"v1": [served("thing", "D")]},
        "": {"v1": []},
    }

    for group in ("plural.io", "singular.io", "kind.io", "short.io"):
        mapper.invalidate()
        assert mapper.resolve("thing").gvr.group == group
        del fake.groups[group]


def test_core_wins_with_a_short_name_over_a_plural_elsewhere(mapper: RESTMapper, fake: Fake) -> None:
    fake.groups = {"x.io": {"v1": [served("po", "X")]}, "": {"v1": [PODS]}}

    assert mapper.resolve("po").gvr == GVR("", "v1", "pods")


@pytest.mark.parametrize(
    "text", ["", ".", "..", "pods..", ".v1", "pods..v1", "pods.v1..", "pods.v1.a..b", "a b", "a\tb", "x" * 254]
)
def test_text_that_names_nothing_is_a_config_error(text: str, mapper: RESTMapper, server: Server) -> None:
    with pytest.raises(ConfigError):
        mapper.resolve(text)

    assert server.asked == []


@settings(deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_read_or_is_a_config_error(text: str) -> None:
    try:
        wanted = _parse(text)
    except ConfigError:
        return
    assert wanted.name


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(max_size=30), st.text("podsv1.ewitgalx", max_size=20)))
def test_any_text_gives_a_resource_or_a_named_error(text: str, mapper: RESTMapper) -> None:
    with suppress(ConfigError, UnknownKindError, AmbiguousKindError):
        mapper.resolve(text)


def test_gvr_and_gvk_are_found_exactly(mapper: RESTMapper) -> None:
    assert mapper.resource(GVR("apps", "v1beta1", "deployments")).kind == "Deployment"
    assert mapper.resource(GVK("apps", "v1", "Deployment")).gvr == GVR("apps", "v1", "deployments")
    with pytest.raises(UnknownKindError):
        mapper.resource(GVR("apps", "v2", "deployments"))


def test_miss_reloads_once_and_counts_for_ten_seconds(
    mapper: RESTMapper, fake: Fake, server: Server, clock: FakeClock
) -> None:
    for _ in range(3):
        with pytest.raises(UnknownKindError) as raised:
            mapper.resolve("deploymnets")
    assert loads(server) == 2
    assert raised.value.candidates[0] == "deployments.apps"
    assert "deployments.apps" in str(raised.value)

    fake.groups["new.io"] = {"v1": [served("deploymnets", "Typo")]}
    clock.advance(10)
    assert mapper.resolve("deploymnets").gvr.group == "new.io"
    assert loads(server) == 3


def test_any_number_of_unknown_names_cause_one_reload_in_ten_seconds(
    mapper: RESTMapper, fake: Fake, server: Server, clock: FakeClock
) -> None:
    mapper.resolve("pods")

    for number in range(50):
        with pytest.raises(UnknownKindError):
            mapper.resolve(f"unknown{number}")
        with pytest.raises(UnknownKindError):
            mapper.resource(GVK("example.com", "v1", f"Unknown{number}"))
    assert loads(server) == 2
    clock.advance(10)
    for number in range(50):
        with pytest.raises(UnknownKindError):
            mapper.resolve(f"unknown{number}")
    assert loads(server) == 3

    fake.groups["new.io"] = {"v1": [served("unknown7", "Unknown7")]}
    mapper.invalidate("new.io")
    assert mapper.resolve("unknown7").gvr.group == "new.io"
    assert loads(server) == 4


def test_unknown_name_waits_for_the_reload_that_another_one_caused(
    mapper: RESTMapper, fake: Fake, server: Server
) -> None:
    mapper.resolve("pods")
    fake.hold = threading.Event()
    fake.groups["new.io"] = {"v1": [served("news", "New"), served("olds", "Old")]}
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(mapper.resolve(name).kind), name=name)
        for name in ("news", "olds")
    ]
    threads[0].start()
    assert fake.held.acquire(timeout=60)
    threads[1].start()
    fake.hold.set()
    for thread in threads:
        thread.join(60)

    assert sorted(found) == ["New", "Old"]


def test_failed_reload_leaves_a_name_not_unknown_but_not_answered(
    mapper: RESTMapper, fake: Fake, clock: FakeClock
) -> None:
    mapper.resolve("pods")
    fake.broken["/apis"] = 500

    for _ in range(3):
        with pytest.raises(ServerError):
            mapper.resolve("news")
    fake.broken.clear()
    fake.groups["new.io"] = {"v1": [served("news", "New")]}
    clock.advance(3)

    assert mapper.resolve("news").kind == "New"


def test_new_kind_is_found_at_once_by_its_first_question(mapper: RESTMapper, fake: Fake) -> None:
    mapper.resolve("pods")
    fake.groups["new.io"] = {"v1": [served("news", "New")]}

    assert mapper.resolve("news").gvr == GVR("new.io", "v1", "news")


def test_threads_that_ask_at_once_share_one_load(mapper: RESTMapper, fake: Fake, server: Server) -> None:
    fake.hold = threading.Event()
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(mapper.resolve("pods").kind), name=f"asker-{n}")
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    assert fake.held.acquire(timeout=60)

    fake.hold.set()
    for thread in threads:
        thread.join(60)

    assert results == ["Pod"] * 8
    assert loads(server) == 1


def test_first_use_is_announced_once_and_nothing_is_asked_before(mapper: RESTMapper, server: Server) -> None:
    uses: list[int] = []
    mapper.on_first_use = lambda: uses.append(len(server.asked))
    assert not mapper.has_loaded()

    mapper.resolve("pods")
    mapper.resolve("deploy")

    assert uses == [0]
    assert mapper.has_loaded()


@pytest.mark.parametrize("is_aggregated", [True, False])
def test_broken_group_version_keeps_what_it_served_and_breaks_nothing_else(
    is_aggregated: bool, mapper: RESTMapper, fake: Fake
) -> None:
    fake.is_aggregated = is_aggregated
    mapper.resolve("gears")
    fake.stale.add("v1.example.com/v1")
    fake.broken["/apis/v1.example.com/v1"] = 503
    mapper.invalidate()

    assert mapper.resolve("gears").kind == "Gear"
    assert mapper.resolve("pods").kind == "Pod"
    assert list(mapper.problems()) == ["v1.example.com/v1"]
    with pytest.raises(UnknownKindError, match=r"not readable now: v1\.example\.com/v1"):
        mapper.resolve("gearboxes")


def test_version_that_is_not_stale_is_preferred(mapper: RESTMapper, fake: Fake) -> None:
    mapper.resolve("deploy")
    fake.stale.add("apps/v1")
    mapper.invalidate()

    assert mapper.resolve("deploy").gvr.version == "v1beta1"
    assert mapper.resolve("deploy.v1.apps").gvr.version == "v1"


def test_group_version_that_vanishes_meanwhile_is_no_problem(mapper: RESTMapper, fake: Fake) -> None:
    fake.is_aggregated = False
    fake.broken["/apis/a.example.com/v1"] = 404

    assert mapper.resolve("pods.v1alpha1").gvr.group == "a.example.com"
    assert mapper.problems() == {}


def test_failed_first_load_is_told_and_not_repeated_for_a_while(
    mapper: RESTMapper, fake: Fake, server: Server, clock: FakeClock
) -> None:
    fake.broken["/apis"] = 500
    for _ in range(3):
        with pytest.raises(ServerError):
            mapper.resolve("pods")
    assert loads(server) == 1
    assert not mapper.has_loaded()

    del fake.broken["/apis"]
    clock.advance(2)
    assert mapper.resolve("pods").kind == "Pod"


def test_server_that_is_gone_is_a_connect_error(mapper: RESTMapper, server: Server) -> None:
    server.stop()

    with pytest.raises(ConnectError):
        mapper.resolve("pods")


def test_answer_that_is_no_discovery_document_is_an_error_not_an_empty_cluster(mapper: RESTMapper, fake: Fake) -> None:
    from informers.meta.errors import APIError

    fake.is_aggregated = False
    fake.groups[""] = {}
    fake.legacy = lambda path: [] if path == "/apis" else {}  # type: ignore[method-assign, assignment, return-value]  # broken on purpose

    with pytest.raises(APIError, match="GroupList"):
        mapper.resolve("pods")


class Runner:
    """Runs a mapper on a thread of its own."""

    def __init__(self, mapper: RESTMapper, clock: FakeClock) -> None:
        self.stop = Stop(clock)
        self.changes = threading.Semaphore(0)
        mapper.subscribe(self.changes.release)
        self.thread = threading.Thread(target=mapper.run, args=(self.stop,), name="run/mapper")

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.changes.acquire(timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


def wait_loaded(server: Server, clock: FakeClock, count: int) -> None:
    """Wait until the mapper has loaded so many times, and waits for the next time."""
    with server.changed:
        assert server.changed.wait_for(lambda: loads(server) >= count, 60)
    clock.block_until_waiting()
    assert loads(server) == count


def test_invalidated_mapper_reloads_at_once_looks_once_more_and_tells_of_changes_only(
    mapper: RESTMapper, fake: Fake, server: Server, clock: FakeClock
) -> None:
    with Runner(mapper, clock) as running:
        wait_loaded(server, clock, 1)
        clock.advance(0.2)
        mapper.invalidate("apps")
        wait_loaded(server, clock, 2)
        assert not running.changes.acquire(blocking=False)

        fake.groups["new.io"] = {"v1": [served("news", "New")]}
        clock.advance(1)
        assert running.changes.acquire(timeout=60)
        wait_loaded(server, clock, 3)
    assert mapper.resource(GVR("new.io", "v1", "news")).kind == "New"
    assert loads(server) == 3


def test_many_invalidations_in_a_row_are_one_reload(mapper: RESTMapper, server: Server, clock: FakeClock) -> None:
    with Runner(mapper, clock):
        wait_loaded(server, clock, 1)
        for _ in range(10):
            mapper.invalidate("apps")
        clock.block_until_waiting(due_in=0.2)
        clock.advance(0.2)
        wait_loaded(server, clock, 2)


def test_mapper_that_nobody_follows_reloads_every_minute_a_followed_one_does_not(
    mapper: RESTMapper, server: Server, clock: FakeClock
) -> None:
    with Runner(mapper, clock):
        wait_loaded(server, clock, 1)
        mapper.followed = True
        clock.advance(60)
        wait_loaded(server, clock, 2)
        clock.advance(600)
        wait_loaded(server, clock, 2)
        mapper.followed = False  # may have missed something
        wait_loaded(server, clock, 3)


def test_stale_group_is_asked_for_again_sooner(
    mapper: RESTMapper, fake: Fake, server: Server, clock: FakeClock
) -> None:
    fake.stale.add("v1.example.com/v1")
    mapper.followed = True
    with Runner(mapper, clock) as running:
        wait_loaded(server, clock, 1)
        fake.stale.clear()
        clock.advance(10)
        assert running.changes.acquire(timeout=60)
        assert mapper.problems() == {}


def test_listener_that_raises_or_asks_the_mapper_harms_nobody(mapper: RESTMapper) -> None:
    seen: list[str] = []

    def fail() -> None:
        raise ValueError

    mapper.subscribe(fail)
    mapper.subscribe(lambda: seen.append(mapper.resolve("pods").kind))
    mapper.subscribe(lambda: seen.append("never"))()

    mapper.resolve("pods")

    assert seen == ["Pod"]


def test_stop_ends_a_load_that_hangs(mapper: RESTMapper, fake: Fake, clock: FakeClock) -> None:
    fake.hold = threading.Event()
    stop = Stop(clock)
    thread = threading.Thread(target=mapper.run, args=(stop,), name="run/mapper")
    thread.start()
    assert fake.held.acquire(timeout=60)

    stop.set()

    thread.join(60)
    assert not thread.is_alive()
    fake.hold.set()


def test_openapi_document_is_read_once_for_each_hash(
    mapper: RESTMapper, fake: Fake, server: Server, clock: FakeClock
) -> None:
    fake.openapi = {"apis/apps/v1": ("1", {"n": 1}), "api/v1": ("9", {"n": 9})}
    for _ in range(3):
        assert mapper.openapi("apps", "v1") == {"n": 1}
    assert mapper.openapi("", "v1") == {"n": 9}
    assert len(server.asked) == 3

    fake.openapi["apis/apps/v1"] = ("2", {"n": 2})
    clock.advance(60)
    assert mapper.openapi("apps", "v1") == {"n": 2}
    assert mapper.openapi("", "v1") == {"n": 9}
    assert len(server.asked) == 5
    assert mapper.openapi_hash("apps", "v1") == "/openapi/v3/apis/apps/v1?hash=2"
    assert len(server.asked) == 5


def test_group_whose_openapi_comes_later_is_found_soon(mapper: RESTMapper, fake: Fake, clock: FakeClock) -> None:
    with pytest.raises(UnknownKindError):
        mapper.openapi_hash("apps", "v1")

    fake.openapi = {"apis/apps/v1": ("1", {"n": 1})}
    with pytest.raises(UnknownKindError):
        mapper.openapi_hash("apps", "v1")
    clock.advance(3)

    assert mapper.openapi_hash("apps", "v1") == "/openapi/v3/apis/apps/v1?hash=1"


def test_group_without_openapi_and_server_without_it_are_unknown(mapper: RESTMapper, fake: Fake) -> None:
    with pytest.raises(UnknownKindError):
        mapper.openapi("nope.io", "v1")
    fake.broken["/openapi/v3"] = 404
    mapper.invalidate()
    with pytest.raises(UnknownKindError):
        mapper.openapi("apps", "v1")


@pytest.mark.parametrize("is_aggregated", [True, False])
def test_group_with_a_name_that_cannot_be_asked_for_breaks_only_itself(
    is_aggregated: bool, mapper: RESTMapper, fake: Fake, clock: FakeClock
) -> None:
    fake.is_aggregated = is_aggregated
    fake.groups["b\u00e4d group"] = {"v1": [served("bads", "Bad")]}

    with Runner(mapper, clock):
        assert mapper.resolve("pods").gvr == GVR("", "v1", "pods")


def test_extensions_loses_also_with_a_better_match(mapper: RESTMapper, fake: Fake) -> None:
    fake.groups = {
        "": {},
        "extensions": {"v1beta1": [served("ing", "Other")]},
        "networking.k8s.io": {"v1": [served("ingresses", "Ingress", "ing")]},
    }

    assert mapper.resolve("ing").gvr.group == "networking.k8s.io"


@pytest.mark.parametrize("version", ["v2beta1", "v3"])
def test_discovery_of_another_version_than_ours_is_read_group_by_group(
    version: str, mapper: RESTMapper, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.is_aggregated = False
    answer = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    request = mapper._transport.request

    def relabelled(*args: Any, **options: Any) -> Response:
        got = request(*args, **options)
        return Response(got.status, {**got.headers, "content-type": answer}, got.body)

    monkeypatch.setattr(mapper._transport, "request", relabelled)

    assert mapper.resolve("pods").gvr == GVR("", "v1", "pods")


def test_discovery_has_thirty_seconds_waits_for_no_turn_and_names_itself(
    mapper: RESTMapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, object, object]] = []
    request = mapper._transport.request

    def seen(*args: Any, **options: Any) -> Response:
        asked.append((options["timeout"], options["unlimited"], options["part"]))
        return request(*args, **options)

    monkeypatch.setattr(mapper._transport, "request", seen)
    mapper.resolve("pods")

    assert set(asked) == {(30.0, True, "discovery")}


def test_at_most_four_group_versions_are_asked_for_at_once(serve: Serve, connect: Connect, fake: Fake) -> None:
    fake.is_aggregated = False
    fake.groups |= {f"g{number}.io": {"v1": []} for number in range(20)}
    lock = threading.Lock()
    meet = threading.Barrier(4)
    now, most = 0, 0

    def read(path: str, accept: str) -> Response:
        nonlocal now, most
        if path.count("/") < 2:
            return Response(200, {"content-type": "application/json"}, msgspec.json.encode(fake.legacy(path)))
        with lock:
            now += 1
            most = max(most, now)
        if "/g1" in path or "/g2" in path:  # twelve: four meet, three times
            with suppress(threading.BrokenBarrierError):
                meet.wait(60)
        with lock:
            now -= 1
        return Response(200, {"content-type": "application/json"}, msgspec.json.encode(fake.legacy(path)))

    read_discovery(read, Discovery())

    assert most == 4


def test_unknown_name_gets_at_most_three_near_ones(mapper: RESTMapper, fake: Fake) -> None:
    fake.groups["x.io"] = {"v1": [served(f"widgets{number}", f"Kind{number}") for number in range(6)]}

    with pytest.raises(UnknownKindError) as raised:
        mapper.resolve("widgets9")

    assert len(raised.value.candidates) == 3


def test_answer_nested_without_end_is_an_api_error(
    mapper: RESTMapper, fake: Fake, serve: Serve, connect: Connect
) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")

    with pytest.raises(APIError):
        RESTMapper(connect(serve(play).url)).resolve("pods")


def test_openapi_url_that_is_no_path_is_not_followed(mapper: RESTMapper, fake: Fake) -> None:
    fake.openapi["api/v1"] = ("h", {"openapi": "3"})
    whole = fake.legacy

    def elsewhere(path: str) -> dict[str, Any] | None:
        if path == "/openapi/v3":
            return {"paths": {"api/v1": {"serverRelativeURL": "http://example.com/"}}}
        return whole(path)

    fake.legacy = elsewhere  # type: ignore[method-assign]

    assert mapper.openapi("", "v1") == {"openapi": "3"}
