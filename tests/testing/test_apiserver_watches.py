"""Watches: where they start, what they show, how they end."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from informers.clock import SystemClock
from informers.testing.apiserver import watches
from informers.testing.apiserver.connections import _EndWatcher

monotonic = SystemClock().monotonic

MAPS = "/api/v1/namespaces/default/configmaps"
SOON = 10.0  # what takes milliseconds, on a busy machine
STREAMING = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


def config_map(name: str, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, **metadata},
    }


def test_without_a_version_shows_what_is_there_first(api: Any) -> None:
    api.server.put(config_map("b"), config_map("a"))

    watch = api.watch(f"{MAPS}?watch=1")
    first = watch.names(2)
    api.server.put(config_map("c"))

    assert first == ["ADDED a", "ADDED b"]
    assert watch.names(1) == ["ADDED c"]


def test_from_a_version_shows_everything_after_it(api: Any) -> None:
    api.server.put(config_map("a"))
    then = api.ask("GET", MAPS).rv
    api.server.put(config_map("b"), config_map("a", labels={"x": "1"}))
    api.server.remove("configmaps", "b")

    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={then}")

    assert watch.names(3) == ["ADDED b", "MODIFIED a", "DELETED b"]


def test_deleted_object_has_the_version_of_its_deletion(api: Any) -> None:
    api.server.put(config_map("a"))
    then = api.ask("GET", MAPS).rv
    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={then}")

    api.server.remove("configmaps", "a")

    word, obj = watch.event()
    assert word == "DELETED"
    assert int(obj["metadata"]["resourceVersion"]) == int(then) + 1


def test_other_namespaces_are_not_shown(api: Any) -> None:
    watch = api.watch(f"{MAPS}?watch=1")

    api.server.put(config_map("a", "kube-system"), config_map("b"))

    assert watch.names(1) == ["ADDED b"]


def test_object_that_stops_matching_is_deleted_and_one_that_starts_is_added(api: Any) -> None:
    api.server.put(config_map("a", labels={"x": "1"}), config_map("b"))
    then = api.ask("GET", MAPS).rv
    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={then}&labelSelector=x%3D1")

    api.server.put(config_map("a", labels={"x": "2"}), config_map("b", labels={"x": "1"}), config_map("a"))
    api.server.remove("configmaps", "b")

    first, second, third = (watch.event() for _ in range(3))
    assert [first[0], second[0], third[0]] == ["DELETED", "ADDED", "DELETED"]
    assert first[1]["metadata"]["labels"] == {"x": "1"}
    assert int(first[1]["metadata"]["resourceVersion"]) == int(then) + 1


def test_one_object_can_be_watched_by_name(api: Any) -> None:
    watch = api.watch(f"{MAPS}?watch=1&fieldSelector=metadata.name%3Db")

    api.server.put(config_map("a"), config_map("b"))

    assert watch.names(1) == ["ADDED b"]


def test_version_older_than_the_history_is_expired_in_the_stream(start: Any) -> None:
    api = start(history=2)
    then = api.ask("GET", MAPS).rv
    api.server.put(*(config_map(f"m{number}") for number in range(4)))

    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={then}")

    word, status = watch.event()
    assert watch.response.status == 200
    assert (word, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert watch.event() is None


def test_version_at_the_edge_of_the_history_is_not_expired(start: Any) -> None:
    api = start(history=2)
    api.server.put(*(config_map(f"m{number}") for number in range(4)))
    last = int(api.ask("GET", MAPS).rv)

    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={last - 2}")

    assert watch.names(2) == ["ADDED m2", "ADDED m3"]


def test_slow_watch_loses_nothing_however_short_the_history(start: Any) -> None:
    api = start(history=1)
    watch = api.watch(f"{MAPS}?watch=1")

    api.server.put(*(config_map(f"m{number}") for number in range(50)))

    assert watch.names(50) == [f"ADDED m{number}" for number in range(50)]


def test_version_in_the_future_shows_nothing_until_it_is_passed(api: Any) -> None:
    now = int(api.ask("GET", MAPS).rv)
    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={now + 2}")

    api.server.put(config_map("a"), config_map("b"), config_map("c"))

    assert watch.names(1) == ["ADDED c"]


def test_ends_cleanly_after_its_time_with_a_bookmark_near_the_end(api: Any) -> None:
    start = monotonic()
    watch = api.watch(f"{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true")

    events = watch.rest()

    assert monotonic() - start > 0.9
    assert [word for word, _ in events] == ["BOOKMARK"]
    assert events[0][1]["metadata"] == {"resourceVersion": api.ask("GET", MAPS).rv}


def test_ends_at_the_cap_of_the_server(start: Any) -> None:
    api = start(watch_cap=0.2)

    assert api.watch(f"{MAPS}?watch=1&timeoutSeconds=60").rest() == []


def test_bookmarks_come_only_when_asked_for(start: Any) -> None:
    api = start(bookmark_every=0.1)
    asked = api.watch(f"{MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1")
    not_asked = api.watch(f"{MAPS}?watch=1&timeoutSeconds=1")

    assert len(asked.rest()) >= 3
    assert not_asked.rest() == []


def test_bookmark_shows_progress_made_by_other_kinds(start: Any) -> None:
    api = start(bookmark_every=0.1)
    watch = api.watch(f"{MAPS}?watch=1&allowWatchBookmarks=true")
    api.server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})
    wanted = api.ask("GET", "/api/v1/secrets").rv

    seen = ""
    while seen != wanted:
        word, obj = watch.event()
        assert word == "BOOKMARK"
        seen = obj["metadata"]["resourceVersion"]


def test_streaming_list_ends_with_an_annotated_bookmark(api: Any) -> None:
    api.server.put(config_map("b"), config_map("a"))
    now = api.ask("GET", MAPS).rv

    watch = api.watch(f"{MAPS}?{STREAMING}")
    initial = watch.names(2)
    word, bookmark = watch.event()
    api.server.put(config_map("c"))

    assert initial == ["ADDED a", "ADDED b"]
    assert word == "BOOKMARK"
    assert bookmark == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": now, "annotations": {"k8s.io/initial-events-end": "true"}},
    }
    assert watch.names(1) == ["ADDED c"]


def test_streaming_list_of_a_version_that_does_not_come_is_too_large(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watches._PATIENCE == 3.0
    monkeypatch.setattr(watches, "_PATIENCE", 0.3)
    watch = api.watch(f"{MAPS}?{STREAMING}&resourceVersion=999999")

    word, status = watch.event()

    assert (word, status["code"]) == ("ERROR", 504)
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_initial_events_can_be_left_out(api: Any) -> None:
    api.server.put(config_map("a"))

    watch = api.watch(f"{MAPS}?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
    api.server.put(config_map("b"))

    assert watch.names(1) == ["ADDED b"]


@pytest.mark.parametrize(
    "query",
    [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
    ],
)
def test_parameters_that_do_not_go_together_are_refused(api: Any, query: str) -> None:
    answer = api.ask("GET", f"{MAPS}?watch=1&{query}")

    assert (answer.status, answer.reason) == (422, "Invalid")


def test_streaming_list_is_refused_by_a_server_that_cannot(start: Any) -> None:
    api = start(streaming_list=False)

    answer = api.ask("GET", f"{MAPS}?{STREAMING}")

    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "WatchList feature gate" in answer.body["message"]


def test_unchanged_object_sends_no_event(api: Any) -> None:
    api.ask("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={api.ask('GET', MAPS).rv}")

    api.patch(f"{MAPS}/a", {"data": {"k": "v"}})
    api.patch(f"{MAPS}/a", {"data": {"k": "w"}})

    word, obj = watch.event()
    assert (word, obj["data"]) == ("MODIFIED", {"k": "w"})


def test_five_hundred_streams_get_the_same_event_and_end_at_once(start: Any) -> None:
    api = start()
    request = f"GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    sockets = [api.socket() for _ in range(500)]
    for sock in sockets:
        sock.sendall(request)
    api.server.wait_request(count=500, verb="watch", status=200, timeout=60)

    api.server.put(config_map("a"))

    for sock in sockets:
        received = b""
        while b'"name":"a"' not in received:
            data = sock.recv(65536)
            assert data
            received += data
    begin = monotonic()
    api.server.close()
    assert monotonic() - begin < SOON


def test_client_that_goes_is_noticed_while_nothing_happens(api: Any) -> None:
    watch = api.watch(f"{MAPS}?watch=1")
    entry = api.server.wait_request(verb="watch", status=200, timeout=60)

    watch.close()

    assert api.server.wait_request(verb="watch", ended="client", timeout=60) is entry


def test_connection_serves_requests_after_a_watch_that_ended(api: Any) -> None:
    first = api.ask("GET", f"{MAPS}?watch=1&timeoutSeconds=1")
    second = api.ask("GET", MAPS)

    assert (first.status, second.status) == (200, 200)
    assert len({entry.connection for entry in api.server.requests()}) == 1


def test_a_stream_that_opens_while_everything_is_closed_is_no_error() -> None:
    watcher = _EndWatcher("test")
    watcher.close()

    with socket.socket() as sock:
        connection: Any = SimpleNamespace(fileno=sock.fileno)
        watcher.watch(connection)
        watcher.unwatch(connection)

    assert not watcher._watched
