"""An informer against a server that misbehaves, over real connections."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from informers.api.client import Client
from informers.api.kubeconfig import ClientConfig
from informers.api.restmapper import RESTMapper
from informers.api.transport import Transport
from informers.backoff import Backoff
from informers.cache import reflector
from informers.cache.factory import InformerFactory, InformerSet
from informers.cache.listwatch import Initial, Selection, WatchOptions
from informers.cache.store import Delta
from informers.clock import Stop, SystemClock
from informers.meta.resources import GVR
from informers.testing.apiserver import APIServer
from informers.testing.apiserver.faults import Faults

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
WIDGETS = GVR("example.com", "v1", "widgets")
LIMIT = 60.0


@pytest.fixture
def api() -> Iterator[APIServer]:
    with APIServer(bookmark_every=0.2) as running:
        yield running


@pytest.fixture
def faults(api: APIServer) -> Faults:
    return api.faults()


class Local:
    """One cluster's informers, and what one handler was told."""

    def __init__(self, api: APIServer, *, initial: Initial = "list", silence: float = 2.0) -> None:
        self.deaths: list[BaseException] = []
        self.transport = Transport(ClientConfig(server=api.url))
        self.mapper = RESTMapper(self.transport)
        self.factory = InformerFactory(
            "",
            Client({"": self.transport}),
            self.transport,
            self.mapper,
            options=WatchOptions(timeout=20.0, silence=silence, initial=initial, backoff=Backoff(0.02, 0.2)),
            clock=SystemClock(),
            on_thread_death=self.deaths.append,
        )
        self.changed = threading.Condition()
        self.deltas: list[Delta] = []
        self.factory.start()

    def follow(self, resource: GVR | str = CONFIGMAPS, **options: Any) -> InformerSet:
        informers = self.factory.follow(Selection(resource, namespaces=("default",), **options))
        informers.on_change(self.wake)
        informers.add_handler(self.tell)
        for store in informers.stores():
            store.on_advance(self.wake)
        return informers

    def tell(self, delta: Delta) -> None:
        with self.changed:
            self.deltas.append(delta)
            self.changed.notify_all()

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, LIMIT), self.deltas

    def close(self) -> None:
        self.factory.stop()
        assert self.factory.join(60) == []
        self.transport.close()
        assert self.deaths == []


@pytest.fixture
def initial() -> Initial:
    """Most of what is asked for here is told by lists."""
    return "list"


@pytest.fixture
def local(api: APIServer, initial: Initial) -> Iterator[Local]:
    made = Local(api, initial=initial)
    yield made
    made.close()


def configmap(name: str, value: str = "v", **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"value": value}}


def names(informers: InformerSet) -> set[str]:
    return {obj.name for store in informers.stores() for obj in store.list()}


def is_like_server(informers: InformerSet, api: APIServer, resource: str = "configmaps") -> bool:
    wanted = {(obj["metadata"]["name"], obj["metadata"]["resourceVersion"]) for obj in api.objects(resource, "default")}
    return {(obj.name, obj.resource_version) for store in informers.stores() for obj in store.list()} == wanted


def synced(local: Local, informers: InformerSet) -> None:
    local.wait(lambda: informers.state() == "watching")


def wait_bookmark(api: APIServer, local: Local, informers: InformerSet) -> None:
    """Wait until a bookmark has come, so that a silent stream is known to be dead."""
    store = informers.stores()[0]
    before = store.rv()
    api.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x", "namespace": "default"}})
    local.wait(lambda: store.rv() != before)


def test_a_stream_that_went_silent_is_replaced_and_what_happened_meanwhile_arrives(
    api: APIServer, faults: Faults, local: Local
) -> None:
    informers = local.follow()
    synced(local, informers)
    wait_bookmark(api, local, informers)
    before = informers.stores()[0].rv()
    frozen = api.wait_request(verb="watch", resource="configmaps", timeout=60).connection
    faults.freeze(at="stream", verb="watch", resource="configmaps", times=1, existing=True)

    api.put(configmap("a"))

    local.wait(lambda: bool(local.deltas))
    assert names(informers) == {"a"}
    assert len(api.requests(verb="list", resource="configmaps")) == 1
    again = api.requests(verb="watch", resource="configmaps")[-1]
    assert again.connection != frozen
    assert again.query["resourceVersion"] >= before
    assert [delta.ref.name for delta in local.deltas] == ["a"]


def test_a_quiet_stream_with_bookmarks_is_not_replaced(api: APIServer, faults: Faults, local: Local) -> None:
    quiet, frozen = local.follow(SECRETS), local.follow()
    synced(local, quiet)
    synced(local, frozen)
    wait_bookmark(api, local, frozen)
    faults.freeze(at="stream", verb="watch", resource="configmaps", times=1, existing=True)

    api.wait_request(verb="watch", resource="configmaps", count=2, timeout=60)

    assert len(api.requests(verb="watch", resource="secrets")) == 1
    assert quiet.age() < 2.0


def test_headers_that_never_come_are_silence_too(api: APIServer, faults: Faults) -> None:
    local = Local(api, silence=0.5)
    informers = local.follow()
    synced(local, informers)
    wait_bookmark(api, local, informers)
    faults.freeze(at="headers", verb="watch", resource="configmaps", times=1)
    faults.fin(at="stream", verb="watch", resource="configmaps", times=1, existing=True, clean=False)
    api.put(configmap("b"))

    local.wait(lambda: names(informers) == {"b"})
    assert len(api.requests(verb="watch", resource="configmaps")) >= 3
    assert len(api.requests(verb="list", resource="configmaps")) == 1
    local.close()


@pytest.mark.parametrize("how", ["fin", "unclean", "rst", "trunc"])
def test_a_cut_stream_is_resumed_without_a_list_or_a_line_in_the_log(
    api: APIServer, faults: Faults, local: Local, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    informers = local.follow()
    synced(local, informers)
    caplog.set_level(logging.INFO)
    match how:
        case "fin":
            faults.fin(verb="watch", resource="configmaps", times=1, existing=True, at_event=1)
        case "unclean":
            faults.fin(verb="watch", resource="configmaps", times=1, existing=True, clean=False)
        case "rst":
            faults.rst(at="stream", verb="watch", resource="configmaps", times=1, existing=True)
        case "trunc":
            faults.trunc(bytes=20, resource="configmaps", times=1, existing=True)

    for n in range(5):
        api.put(configmap(f"o{n}"))

    local.wait(lambda: is_like_server(informers, api) and len(local.deltas) >= 5)
    api.wait_request(verb="watch", resource="configmaps", count=2, timeout=60)
    assert len(api.requests(verb="list", resource="configmaps")) == 1
    said = [record.getMessage() for record in caplog.records if record.name.startswith("informers.cache")]
    assert [text for text in said if text != "slow handler"] == []
    assert sorted(delta.ref.name for delta in local.deltas) == ["o0", "o1", "o2", "o3", "o4"]


def test_410_is_the_same_in_the_status_line_and_in_the_stream(api: APIServer, faults: Faults, local: Local) -> None:
    for n in range(100):
        api.put(configmap(f"o{n}"))
    informers = local.follow()
    local.wait(lambda: len(local.deltas) == 100)
    synced(local, informers)
    del local.deltas[:]

    faults.status(code=410, reason="Expired", verb="watch", resource="configmaps", times=1)
    faults.ev(code=410, reason="Expired", resource="configmaps", times=1, existing=True)
    api.wait_request(verb="list", resource="configmaps", count=3, timeout=60)
    api.put(configmap("new"))
    local.wait(lambda: bool(local.deltas))

    lists = api.requests(verb="list", resource="configmaps")
    assert [request.query.get("limit") for request in lists] == ["500", None, None]
    assert all(int(request.query["resourceVersion"]) >= 100 for request in lists[1:])
    assert [delta.ref.name for delta in local.deltas] == ["new"]


def test_what_was_deleted_while_history_expired_is_told_once_and_left_out_of_indexes(
    api: APIServer, faults: Faults, local: Local
) -> None:
    for name in ("a", "b"):
        api.put(configmap(name, labels={"n": name}))
    informers = local.follow()
    local.wait(lambda: names(informers) == {"a", "b"})
    synced(local, informers)
    assert informers.lister().index_values("label:n") == ["a", "b"]
    with faults.freeze(at="stream", verb="watch", resource="configmaps", existing=True):
        api.wait_request(verb="watch", resource="configmaps", timeout=60)
        api.remove("configmaps", "a", "default")
        faults.compact(resource="configmaps")
        faults.close(verb="watch", resource="configmaps")

    local.wait(lambda: any(delta.new is None for delta in local.deltas))

    assert names(informers) == {"b"}
    deleted = [delta for delta in local.deltas if delta.new is None]
    assert [(delta.ref.name, delta.tombstone) for delta in deleted] == [("a", True)]
    assert informers.lister().index_values("label:n") == ["b"]


def test_a_replica_that_lags_never_takes_the_store_back(api: APIServer, faults: Faults, local: Local) -> None:
    api.put(configmap("gone"))
    informers = local.follow()
    synced(local, informers)
    api.remove("configmaps", "gone", "default")
    local.wait(lambda: names(informers) == set())
    old = int(informers.stores()[0].rv()) - 1
    faults.lag(rv=old, mode="toolarge", verb="list", resource="configmaps", times=1)

    faults.ev(code=410, reason="Expired", resource="configmaps", times=1, existing=True)
    api.wait_request(verb="list", resource="configmaps", count=3, timeout=60)
    api.put(configmap("new"))
    local.wait(lambda: local.deltas[-1].ref.name == "new")
    assert names(informers) == {"new"}

    lists = api.requests(verb="list", resource="configmaps")
    assert int(lists[1].query["resourceVersion"]) > old
    assert "resourceVersion" not in lists[2].query
    assert [delta.ref.name for delta in local.deltas if delta.new is not None] == ["gone", "new"]


@pytest.mark.parametrize("every", [1, 7])
def test_characters_may_be_cut_anywhere(api: APIServer, faults: Faults, local: Local, every: int) -> None:
    faults.split(every=every, verb="watch", resource="configmaps")
    informers = local.follow()
    synced(local, informers)
    value = "aé€😀" * 3

    api.put(configmap("a", value))

    local.wait(lambda: names(informers) == {"a"})
    assert informers.lister().get("a", "default").get("data", "value") == value


def test_blank_lines_are_nothing_and_the_stream_goes_on(api: APIServer, faults: Faults, local: Local) -> None:
    faults.blank(verb="watch", resource="configmaps")
    informers = local.follow()
    synced(local, informers)
    api.put(configmap("a"))
    api.put(configmap("b"))

    local.wait(lambda: names(informers) == {"a", "b"})

    assert len(api.requests(verb="watch", resource="configmaps")) == 1


def test_large_objects_come_through(api: APIServer, faults: Faults, local: Local) -> None:
    informers = local.follow()
    synced(local, informers)
    faults.huge(mb=1.5, resource="configmaps", verb="watch", times=1, existing=True)

    api.put(configmap("a"))

    local.wait(lambda: names(informers) == {"a"})


# Nested as deep as a server's encoder goes, and deeper than a decoder in Python does.
NESTED = '{"a":' * 9_000 + "1" + "}" * 9_000
DEEP = '{"metadata":{"name":"deep","uid":"u","resourceVersion":"9"},"spec":' + NESTED + "}"


@pytest.mark.parametrize("initial", ["list", "stream"])
@pytest.mark.parametrize(
    "fault",
    [
        lambda faults: faults.status(code=500, verb="list", resource="configmaps", times=2),
        lambda faults: faults.status(code=429, headers={"Retry-After": "1"}, verb="list", resource="configmaps", times=1),
        lambda faults: faults.table(verb="list", resource="configmaps", times=2),
        lambda faults: faults.rst(at="headers", verb="list", resource="configmaps", times=2),
        lambda faults: faults.fin(at="request", verb="list", resource="configmaps", times=2),
        lambda faults: faults.status(code=503, body="<html>", verb="list", resource="configmaps", times=2),
        lambda faults: faults.poison(line="no JSON", resource="configmaps", times=2),
        lambda faults: faults.poison(line='{"type":"ERROR","object":{}}', resource="configmaps", times=2),
        lambda faults: faults.poison(item='{"metadata":{"name":7}}', resource="configmaps", times=1),
        lambda faults: faults.poison(item=DEEP, resource="configmaps", times=1),
        lambda faults: faults.poison(line='{"type":"MODIFIED","object":' + DEEP + "}", resource="configmaps", times=1),
        lambda faults: faults.ev(code=500, resource="configmaps", times=2),
        lambda faults: faults.ev(bare=True, resource="configmaps", times=2),
        lambda faults: faults.short(resource="configmaps", times=4),
        lambda faults: faults.plain(resource="configmaps"),
        lambda faults: faults.holdhdr(seconds=0.5, verb="watch", resource="configmaps"),
        lambda faults: faults.nocache(resource="configmaps"),
        lambda faults: faults.nobm(verb="watch", resource="configmaps"),
        lambda faults: faults.status(code=504, verb="watch", resource="configmaps", times=2),
        lambda faults: faults.deny(verb="watch", resource="configmaps", times=2),
    ],
    ids=[
        "list 500", "list 429", "table", "list rst", "list fin", "list html", "garbage", "empty error", "bad item", "deep item", "deep event",
        "ev 500", "ev bare", "short", "plain", "held headers", "no cache", "no bookmarks", "watch 504", "watch denied",
    ],
)  # fmt: skip
def test_after_any_fault_the_store_is_like_the_server(
    api: APIServer,
    faults: Faults,
    local: Local,
    fault: Callable[[Faults], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reflector, "_INITIAL_WITHIN", 1.0)  # a stream whose end never comes is not waited for long
    monkeypatch.setattr(reflector, "_INITIAL_PAUSE", 1.0)
    for n in range(3):
        api.put(configmap(f"o{n}"))
    fault(faults)
    informers = local.follow()
    api.wait_request(resource="configmaps", timeout=60)

    api.put(configmap("o1", "changed"))
    api.put(configmap("new"))
    api.remove("configmaps", "o2", "default")

    local.wait(lambda: is_like_server(informers, api) and informers.has_synced())
    local.wait(lambda: replayed(local) == {obj.name: obj.resource_version for obj in informers.stores()[0].list()})


def test_metadata_is_kept_alone_although_the_server_sends_whole_objects(
    api: APIServer, faults: Faults, local: Local
) -> None:
    faults.meta(resource="configmaps")
    api.put(configmap("a", "x" * 1000))
    informers = local.follow(metadata_only=True)
    synced(local, informers)
    api.put(configmap("b", "x" * 1000))

    local.wait(lambda: names(informers) == {"a", "b"})

    for obj in informers.stores()[0].list():
        assert len(obj.raw) < 1000
        assert (obj.kind, obj.api_version, "data" in obj.body) == ("ConfigMap", "v1", False)


def test_a_partial_object_is_stored_under_its_real_kind(api: APIServer, local: Local) -> None:
    api.put(configmap("a"))
    informers = local.follow(metadata_only=True)
    synced(local, informers)
    api.put(configmap("b"))
    local.wait(lambda: names(informers) == {"a", "b"})

    assert all("PartialObjectMetadata" not in obj.raw.decode() for obj in informers.stores()[0].list())
    assert {obj.kind for obj in informers.stores()[0].list()} == {"ConfigMap"}
    assert "as=PartialObjectMetadata;" in api.requests(verb="watch", resource="configmaps")[0].accept


def test_connections_are_closed_before_new_ones_are_opened(
    api: APIServer, faults: Faults, local: Local, eventually: Callable[[Callable[[], object]], None]
) -> None:
    informers = local.follow()
    synced(local, informers)
    faults.ev(code=410, reason="Expired", resource="configmaps", times=6, existing=True)
    threads = threading.active_count()
    api.wait_request(verb="watch", resource="configmaps", count=7, timeout=60)
    synced(local, informers)

    assert len(api.requests(verb="list", resource="configmaps")) == 7
    eventually(lambda: api.state()["connections"] <= 3)
    eventually(lambda: threading.active_count() <= threads + 2)


def test_errors_are_followed_by_waits(api: APIServer, faults: Faults) -> None:
    transport = Transport(ClientConfig(server=api.url))
    faults.status(code=500, verb="watch", resource="configmaps")
    factory = InformerFactory(
        "",
        Client({"": transport}),
        transport,
        RESTMapper(transport),
        options=WatchOptions(initial="list"),
        clock=SystemClock(),
        on_thread_death=lambda error: None,
    )
    factory.start()
    factory.follow(Selection(CONFIGMAPS))
    api.wait_request(verb="watch", resource="configmaps", count=2, timeout=60)

    factory.stop()

    # 0.8 s at least after the first, 1.6 s after the second: whoever retries at once makes hundreds.
    at = [request.started for request in api.requests(verb="watch")]
    assert all(later - earlier >= wait for earlier, later, wait in zip(at, at[1:], [0.8, 1.6, 3.2], strict=False))
    assert len(api.requests(verb="list")) <= len(at)
    assert factory.join(60) == []
    transport.close()


def test_the_server_may_refuse_connections_for_a_while(api: APIServer, faults: Faults, local: Local) -> None:
    informers = local.follow()
    synced(local, informers)

    faults.refuse(seconds=0.5)
    api.put(configmap("a"))

    local.wait(lambda: names(informers) == {"a"})
    assert informers.has_synced()


@pytest.mark.parametrize("at", ["accept", "request", "headers"])
def test_stop_ends_a_list_in_progress_at_once_and_no_watch_is_opened(api: APIServer, faults: Faults, at: Any) -> None:
    if at == "accept":
        faults.freeze(at=at)
    else:
        faults.freeze(at=at, verb="list")
    local = Local(api)
    local.follow()
    if at != "accept":
        api.wait_request(verb="list", resource="configmaps", timeout=60)

    local.factory.stop()

    assert local.factory.join(60) == []
    assert api.requests(verb="watch") == []
    local.close()


def test_stop_ends_a_frozen_watch_at_once(api: APIServer, faults: Faults) -> None:
    local = Local(api, silence=60)
    synced(local, local.follow())
    faults.freeze(at="stream", verb="watch", existing=True)

    local.factory.stop()

    assert local.factory.join(60) == []
    local.close()


def replayed(local: Local) -> dict[str, str]:
    """Return the versions that somebody knows who knows what was told."""
    content: dict[str, str] = {}
    for delta in list(local.deltas):
        if delta.new is None:
            del content[delta.ref.name]
        else:
            content[delta.ref.name] = delta.new.resource_version
    return content


def definition(*, versions: tuple[str, ...] = ("v1",)) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [
                {"name": name, "served": True, "storage": name == versions[0], "schema": schema} for name in versions
            ],
        },
    }


def widget(name: str) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "namespace": "default"}}


def test_a_kind_that_goes_takes_its_objects_along_and_brings_them_when_it_returns(api: APIServer, local: Local) -> None:
    api.define(definition())
    api.put(widget("a"))
    stop = Stop()
    runner = threading.Thread(target=local.mapper.run, args=(stop,))
    runner.start()
    by_gvr, by_name = local.follow(WIDGETS), local.follow("widget")
    local.wait(lambda: names(by_gvr) == names(by_name) == {"a"})

    api.remove("customresourcedefinitions.apiextensions.k8s.io", "widgets.example.com")
    local.mapper.invalidate("example.com")
    local.wait(lambda: names(by_gvr) == set() and by_gvr.state() == "unserved")
    local.wait(lambda: any(delta.new is None for delta in local.deltas))
    assert all(delta.tombstone for delta in local.deltas if delta.new is None)
    local.wait(lambda: by_name.state() == "unserved")

    api.define(definition())
    api.put(widget("b"))
    local.mapper.invalidate("example.com")
    local.wait(lambda: names(by_gvr) == names(by_name) == {"b"})
    stop.set()
    runner.join(60)
