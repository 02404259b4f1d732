"""Each word of the fault vocabulary does what it says, to what it is aimed at, as often as it may."""

from __future__ import annotations

import json
import socket
from http.client import IncompleteRead, RemoteDisconnected  # noqa: TID251 - these tests look at HTTP itself
from typing import Any

import pytest

from informers.clock import SystemClock
from informers.testing.apiserver.faults import FaultError

monotonic = SystemClock().monotonic

MAPS = "/api/v1/namespaces/default/configmaps"
WATCH = f"{MAPS}?watch=1"
QUIET = 0.3  # how long nothing must come before we believe that nothing comes
SOON = 10.0  # what takes milliseconds, on a busy machine


def config_map(name: str, namespace: str = "default", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        **more,
    }


def raw_watch(api: Any, path: str = WATCH) -> socket.socket:
    """Open a watch on a bare socket."""
    sock: socket.socket = api.socket()
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: raw/1\r\nConnection: close\r\n\r\n".encode())
    return sock


def receive_until(sock: socket.socket, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        data = sock.recv(65536)
        assert data, f"closed before {wanted!r}: {received!r}"
        received += data
    return received


def receive_all(sock: socket.socket) -> bytes:
    received = b""
    while data := sock.recv(65536):
        received += data
    return received


def is_silent(sock: socket.socket) -> bool:
    sock.settimeout(QUIET)
    try:
        return sock.recv(65536) == b"never"
    except TimeoutError:
        return True


class TestAim:
    """Which requests a fault acts on, and how often."""

    def test_only_what_matches_is_hit(self, api: Any) -> None:
        faults = api.server.faults()
        fault = faults.status(code=503, resource="configmaps", verb="list", namespace="default")

        assert api.ask("GET", MAPS).status == 503
        assert api.ask("GET", "/api/v1/configmaps").status == 200
        assert api.ask("GET", f"{MAPS}/a").status == 404
        assert api.ask("GET", "/api/v1/secrets").status == 200
        assert fault.hits == 1

    def test_query_can_be_matched_present_and_absent(self, api: Any) -> None:
        api.server.faults().status(code=503, query={"limit": "5*", "continue": None})

        assert api.ask("GET", f"{MAPS}?limit=500").status == 503
        assert api.ask("GET", f"{MAPS}?limit=10").status == 200
        assert api.ask("GET", f"{MAPS}?limit=500&continue=x").status == 400

    def test_client_is_a_glob_on_the_user_agent(self, api: Any) -> None:
        api.server.faults().deny(client="test*")

        assert api.ask("GET", MAPS).status == 403
        assert api.ask("GET", MAPS, headers={"User-Agent": "other"}).status == 200

    def test_times_and_skip_count_requests(self, api: Any) -> None:
        api.server.faults().status(code=503, verb="list", skip=1, times=2)

        assert [api.ask("GET", MAPS).status for _ in range(4)] == [200, 503, 503, 200]

    def test_oldest_with_times_left_wins(self, api: Any) -> None:
        api.server.faults().status(code=500, times=1)
        api.server.faults().status(code=503)

        assert [api.ask("GET", MAPS).status for _ in range(3)] == [500, 503, 503]

    def test_ends_after_its_time(self, api: Any) -> None:
        api.server.faults().status(code=503, for_=0.2)
        assert api.ask("GET", MAPS).status == 503

        deadline = monotonic() + 60
        while api.ask("GET", MAPS).status == 503:
            assert monotonic() < deadline

    def test_is_gone_after_a_block(self, api: Any) -> None:
        with api.server.faults().status(code=503):
            assert api.ask("GET", MAPS).status == 503
        assert api.ask("GET", MAPS).status == 200
        assert api.server.faults().all() == ()

    def test_word_for_watches_is_not_used_up_by_lists(self, api: Any) -> None:
        api.server.faults().ev(code=410, resource="configmaps", times=1)

        api.ask("GET", MAPS)

        assert api.watch(WATCH).event()[0] == "ERROR"

    def test_log_tells_what_was_done(self, api: Any) -> None:
        api.server.faults().delay(seconds=0)
        api.server.faults().status(code=503)

        api.ask("GET", MAPS)

        entry = api.server.wait_request(ended="done", timeout=60)
        assert (entry.fault, entry.status) == ("STATUS+DELAY", 503)

    @pytest.mark.parametrize(
        ("description", "wanted"),
        [
            ({"do": "NOPE"}, "unknown word"),
            ({"do": "SLOW", "bps": 1, "bytes": 1}, "unknown fields for SLOW: bytes"),
            ({"do": "STATUS"}, "STATUS needs code"),
            ({"do": "DENY", "match": {"nope": 1}}, "unknown match fields: nope"),
            ({"do": "RST", "at": "nowhere"}, "at is 'nowhere'"),
            ({"do": "RST", "at": "accept", "match": {"verb": "list"}}, "match only that"),
            ({"do": "SPLIT"}, "SPLIT needs every or at"),
            ({"do": "DENY", "times": -1}, "times is -1"),
            ({"do": "SLOW", "bps": 0}, "bps is 0"),
        ],
    )
    def test_description_that_makes_no_sense_is_refused(
        self, api: Any, description: dict[str, Any], wanted: str
    ) -> None:
        with pytest.raises(FaultError, match=wanted):
            api.server.faults().add(description)


class TestAnswers:
    """Words for requests."""

    def test_status_answers_in_place_of_the_server(self, api: Any) -> None:
        api.server.faults().status(code=429, headers={"Retry-After": "5"}, message="later")

        answer = api.ask("POST", MAPS, config_map("a"))

        assert (answer.status, answer.reason, answer.body["message"]) == (429, "TooManyRequests", "later")
        assert answer.headers["Retry-After"] == "5"
        assert api.server.objects("configmaps") == []

    def test_status_can_have_any_body(self, api: Any) -> None:
        api.server.faults().status(code=502, body="<html>", headers={"Content-Type": "text/html"})

        answer = api.ask("GET", MAPS)

        assert (answer.status, answer.raw, answer.headers["Content-Type"]) == (502, b"<html>", "text/html")

    def test_frozen_request_is_not_answered(self, api: Any) -> None:
        api.server.faults().freeze(verb="list", times=1)
        sock = raw_watch(api, MAPS)

        api.server.wait_request(verb="list", timeout=60)

        assert is_silent(sock)
        assert api.ask("GET", MAPS).status == 200

    def test_freeze_after_the_work_hides_a_write_that_was_done(self, api: Any) -> None:
        for place, done in (("request", []), ("headers", ["b"])):
            api.server.faults().fin(at=place, verb="create", times=1)
            with pytest.raises(RemoteDisconnected):
                api.ask("POST", MAPS, config_map("b"))
            api.connection.close()
            assert [each["metadata"]["name"] for each in api.server.objects("configmaps")] == done

    def test_reset_request_is_a_reset(self, api: Any) -> None:
        api.server.faults().rst(verb="list")
        sock = raw_watch(api, MAPS)

        with pytest.raises(ConnectionResetError):
            sock.recv(1)

    def test_reset_in_the_body_comes_after_half_of_it(self, api: Any) -> None:
        api.server.faults().rst(verb="list", at="stream")
        sock = raw_watch(api, MAPS)

        assert receive_until(sock, b'{"kind":').startswith(b"HTTP/1.1 200 OK")
        with pytest.raises(ConnectionResetError):
            receive_all(sock)

    def test_frozen_connection_is_not_read(self, api: Any) -> None:
        api.server.faults().freeze(at="accept", times=1)

        sock = raw_watch(api)

        assert is_silent(sock)
        assert api.server.requests(verb="watch") == []

    def test_body_is_cut(self, api: Any) -> None:
        api.server.faults().trunc(bytes=10, verb="list")

        with pytest.raises(IncompleteRead) as caught:
            api.ask("GET", MAPS)

        assert caught.value.partial == b'{"kind":"C'

    def test_slow_body_takes_its_time(self, api: Any) -> None:
        api.server.put(config_map("a", data={"k": "v" * 2000}))
        api.server.faults().slow(bps=4000, verb="get")
        start = monotonic()

        answer = api.ask("GET", f"{MAPS}/a")

        assert answer.body["data"]["k"] == "v" * 2000
        assert monotonic() - start > 0.4

    def test_split_body_is_whole(self, api: Any) -> None:
        api.server.put(config_map("a", data={"k": "äöü€😀"}))
        api.server.faults().split(every=1, verb="get")

        assert api.ask("GET", f"{MAPS}/a").body["data"]["k"] == "äöü€😀"

    def test_answer_is_held_back(self, api: Any) -> None:
        api.server.faults().delay(seconds=0.3)
        start = monotonic()

        api.ask("GET", MAPS)

        assert monotonic() - start >= 0.3

    def test_conflict_may_have_been_committed(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().conflict(times=1)
        api.server.faults().conflict(committed=True, times=1)

        first = api.patch(f"{MAPS}/a", {"data": {"k": "1"}})
        not_done = api.server.objects("configmaps")[0]
        second = api.patch(f"{MAPS}/a", {"data": {"k": "2"}})
        done = api.server.objects("configmaps")[0]

        assert [(each.status, each.reason) for each in (first, second)] == [(409, "Conflict")] * 2
        assert "data" not in not_done
        assert done["data"] == {"k": "2"}

    def test_dropped_reply_comes_after_the_write(self, api: Any) -> None:
        api.server.faults().dropreply()

        with pytest.raises(RemoteDisconnected):
            api.ask("POST", MAPS, config_map("a"))

        assert len(api.server.objects("configmaps")) == 1

    def test_parameters_can_be_ignored(self, api: Any) -> None:
        api.server.put(config_map("a"), config_map("b"))
        api.server.faults().ignore("limit")

        assert len(api.ask("GET", f"{MAPS}?limit=1").body["items"]) == 2

    def test_metadata_can_be_answered_with_full_objects_or_a_table(self, api: Any) -> None:
        headers = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"}
        api.server.put(config_map("a", data={"k": "v"}))
        assert api.ask("GET", MAPS, headers=headers).body["kind"] == "PartialObjectMetadataList"

        with api.server.faults().meta():
            assert api.ask("GET", MAPS, headers=headers).body["items"][0]["data"] == {"k": "v"}
        with api.server.faults().table():
            assert api.ask("GET", MAPS, headers=headers).body["kind"] == "Table"

    def test_item_can_be_poisoned(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().poison(item={"metadata": None}, times=1)

        assert api.ask("GET", MAPS).body["items"][1] == {"metadata": None}

    def test_object_can_be_huge(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().huge(mb=1.5, verb="get")

        assert len(api.ask("GET", f"{MAPS}/a").raw) == 1.5 * 1024 * 1024

    def test_lists_at_version_0_can_be_paged(self, api: Any) -> None:
        api.server.put(config_map("a"), config_map("b"))
        api.server.faults().nocache()

        assert "continue" in api.ask("GET", f"{MAPS}?limit=1&resourceVersion=0").body["metadata"]

    def test_plain_body_ends_with_the_connection(self, api: Any) -> None:
        api.server.faults().plain()
        answer = api.ask("GET", MAPS)

        assert "Content-Length" not in answer.headers
        assert answer.body["items"] == []


class TestReplica:
    """LAG: a replica that knows only up to a point."""

    def test_stale_answers_the_past_to_who_takes_any_version(self, api: Any) -> None:
        api.server.put(config_map("a"))
        point = int(api.ask("GET", MAPS).rv)
        api.server.remove("configmaps", "a")
        api.server.faults().lag(rv=point)

        any_version = api.ask("GET", f"{MAPS}?resourceVersion=0")
        quorum = api.ask("GET", MAPS)

        assert [item["metadata"]["name"] for item in any_version.body["items"]] == ["a"]
        assert int(any_version.rv) == point
        assert quorum.body["items"] == []

    def test_too_large_is_said_at_once(self, api: Any) -> None:
        api.server.put(config_map("a"))
        now = api.ask("GET", MAPS).rv
        api.server.faults().lag(events=1, mode="toolarge")
        start = monotonic()

        answer = api.ask("GET", f"{MAPS}?resourceVersion={now}")

        assert answer.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
        assert monotonic() - start < 3  # a real one waits that long before it says so
        assert api.ask("GET", MAPS).status == 200

    def test_watch_waits_for_the_replica(self, api: Any) -> None:
        fault = api.server.faults().lag(rv=int(api.ask("GET", MAPS).rv), verb="watch")
        watch = api.watch(WATCH)
        api.server.put(config_map("a"))
        other = api.watch(f"{WATCH}&fieldSelector=metadata.name%3Da")
        assert api.server.wait_request(verb="watch", count=2, status=200, timeout=60)

        fault.remove()
        api.server.faults().clear()

        assert watch.names(1) == ["ADDED a"]
        assert other.names(1) == ["ADDED a"]


class TestStreams:
    """Words for watches."""

    def test_frozen_stream_sends_nothing_more_and_stays_open(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().freeze(at="stream", at_event=1)
        sock = raw_watch(api)
        receive_until(sock, b'"name":"a"')

        api.server.put(config_map("b"))

        assert is_silent(sock)

    def test_fault_can_act_on_streams_that_are_open(self, api: Any) -> None:
        sock = raw_watch(api)
        other = api.watch(WATCH)
        api.server.wait_request(verb="watch", count=2, status=200, timeout=60)

        api.server.faults().rst(at="stream", existing=True, client="raw/*")

        with pytest.raises(ConnectionResetError):
            receive_all(sock)
        api.server.put(config_map("a"))
        assert other.names(1) == ["ADDED a"]

    def test_reset_stream_is_a_reset(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().rst(verb="watch", at_event=1)
        sock = raw_watch(api)

        with pytest.raises(ConnectionResetError):
            receive_all(sock)

    def test_finished_stream_ends_after_its_last_chunk(self, api: Any) -> None:
        api.server.faults().fin(verb="watch")

        assert receive_all(raw_watch(api)).endswith(b"\r\n\r\n0\r\n\r\n")

    def test_finished_stream_can_end_in_a_chunk(self, api: Any) -> None:
        api.server.faults().fin(verb="watch", clean=False)
        watch = api.watch(WATCH)

        with pytest.raises(IncompleteRead):
            watch.response.read()

    def test_line_is_cut(self, api: Any) -> None:
        api.server.faults().trunc(bytes=20, existing=True, resource="configmaps")
        sock = raw_watch(api)
        api.server.wait_request(verb="watch", status=200, timeout=60)

        api.server.put(config_map("a"))

        assert receive_all(sock).endswith(b'14\r\n{"type":"ADDED","obj\r\n')

    def test_error_can_be_sent(self, api: Any) -> None:
        api.server.faults().ev(code=410, times=1)
        api.server.faults().ev(bare=True, message="odd", times=1)

        first, second = api.watch(WATCH).rest(), api.watch(WATCH).rest()

        assert [(word, obj["code"], obj["reason"]) for word, obj in first] == [("ERROR", 410, "Expired")]
        assert [(word, "code" in obj, "reason" in obj) for word, obj in second] == [("ERROR", False, False)]

    def test_error_can_wait_for_events(self, api: Any) -> None:
        api.server.put(config_map("a"), config_map("b"), config_map("c"))
        api.server.faults().ev(code=500, at_event=2)

        assert [word for word, _ in api.watch(WATCH).rest()] == ["ADDED", "ADDED", "ERROR"]

    def test_short_watch_ends_at_once(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().short()

        assert api.watch(WATCH).rest() == []

    def test_history_can_expire_at_once_or_at_a_request(self, api: Any) -> None:
        then = api.ask("GET", MAPS).rv
        api.server.put(config_map("a"))
        faults = api.server.faults()
        assert api.watch(f"{WATCH}&resourceVersion={then}").names(1) == ["ADDED a"]

        faults.add({"do": "COMPACT", "match": {"verb": "watch"}})
        assert api.watch(f"{WATCH}&resourceVersion={then}").event()[1]["code"] == 410

        now = api.ask("GET", MAPS).rv
        assert faults.compact() == int(now)
        faults.clear()
        api.server.put(config_map("b"))
        assert api.watch(f"{WATCH}&resourceVersion={now}").names(1) == ["ADDED b"]

    def test_bookmarks_can_be_kept_back(self, api: Any) -> None:
        api.server.faults().nobm()

        assert api.watch(f"{WATCH}&allowWatchBookmarks=true&timeoutSeconds=1").rest() == []

    def test_end_of_the_initial_events_can_be_left_unmarked(self, api: Any) -> None:
        api.server.faults().noend()
        query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

        word, obj = api.watch(f"{WATCH}&{query}").event()

        assert word == "BOOKMARK"
        assert "annotations" not in obj["metadata"]

    def test_blank_lines_come_between_events(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().blank()
        watch = api.watch(WATCH)

        assert watch.line() == b"\r\n"
        assert json.loads(watch.line())["type"] == "ADDED"

    def test_line_can_be_poisoned(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().poison(line="{nope", times=1)
        watch = api.watch(WATCH)

        assert watch.line() == b"{nope\n"
        assert json.loads(watch.line())["type"] == "ADDED"

    def test_next_object_can_be_huge(self, api: Any) -> None:
        api.server.put(config_map("a"), config_map("b"))
        api.server.faults().huge(mb=1, verb="watch", at_event=1)
        watch = api.watch(WATCH)

        assert len(watch.line()) < 1000
        assert len(watch.line()) > 1024 * 1024

    def test_every_byte_can_be_a_chunk(self, api: Any) -> None:
        api.server.put(config_map("a", data={"k": "😀"}))
        api.server.faults().split(every=1)
        sock = raw_watch(api)

        received = receive_until(sock, b'\r\n\r\n1\r\n{\r\n1\r\n"\r\n')

        assert b"chunked" in received

    def test_lines_can_be_cut_at_one_place(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().split(at=5)
        sock = raw_watch(api)

        assert b"chunked" in receive_until(sock, b'\r\n\r\n5\r\n{"typ\r\n')

    def test_events_can_be_held_back(self, api: Any) -> None:
        api.server.faults().delay(seconds=1.5, what="events", resource="configmaps")
        watch = api.watch(WATCH)
        start = monotonic()

        api.server.put(config_map("a"), config_map("b"))

        assert watch.names(2) == ["ADDED a", "ADDED b"]
        assert 1.5 <= monotonic() - start < 3  # both at the same time, not one after the other

    def test_an_event_that_is_held_back_comes_when_the_fault_goes(self, api: Any) -> None:
        watch = api.watch(WATCH)
        api.server.wait_request(verb="watch", status=200, timeout=60)

        with api.server.faults().delay(seconds=60, what="events", existing=True):
            api.server.put(config_map("a"))

        assert watch.names(1) == ["ADDED a"]

    def test_tables_come_while_the_fault_holds(self, api: Any) -> None:
        watch = api.watch(WATCH)
        api.server.wait_request(verb="watch", status=200, timeout=60)

        with api.server.faults().table(existing=True):
            api.server.put(config_map("a"))
            table = watch.event()
        api.server.put(config_map("b"))

        assert table[1]["kind"] == "Table"
        assert watch.event()[1]["kind"] == "ConfigMap"

    def test_stream_can_be_without_chunks(self, api: Any) -> None:
        api.server.put(config_map("a"))
        api.server.faults().plain()
        sock = raw_watch(api)

        head, body = receive_until(sock, b"}\n").split(b"\r\n\r\n", 1)

        assert b"chunked" not in head
        assert json.loads(body)["type"] == "ADDED"

    def test_headers_can_wait_for_the_first_event(self, api: Any) -> None:
        api.server.faults().holdhdr(seconds=60)
        sock = raw_watch(api)
        api.server.wait_request(verb="watch", status=200, timeout=60)
        sock.settimeout(QUIET)
        with pytest.raises(TimeoutError):
            sock.recv(1)

        sock.settimeout(60)
        api.server.put(config_map("a"))

        assert receive_until(sock, b'"name":"a"').startswith(b"HTTP/1.1 200 OK")

    def test_headers_can_wait_for_a_time(self, api: Any) -> None:
        api.server.faults().holdhdr(seconds=0.2)

        assert receive_until(raw_watch(api), b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK")

    def test_faults_that_shape_combine_with_one_that_decides(self, api: Any) -> None:
        api.server.put(config_map("a"))
        faults = api.server.faults()
        faults.ignore("timeoutSeconds")
        faults.blank()
        faults.freeze(at="stream", at_event=1)
        sock = raw_watch(api, f"{WATCH}&timeoutSeconds=1")

        assert b"2\r\n\r\n\r\n" in receive_until(sock, b'"name":"a"')
        assert is_silent(sock)

    def test_streams_can_be_closed_now(self, api: Any) -> None:
        watch, sock = api.watch(WATCH), raw_watch(api)
        api.server.wait_request(verb="watch", count=2, status=200, timeout=60)

        assert api.server.faults().close("RST", client="raw/*") == 1
        assert api.server.faults().close(client="tester/*") == 1

        with pytest.raises(ConnectionResetError):
            receive_all(sock)
        assert watch.rest() == []


def test_refused_connections_come_back_on_the_same_port(api: Any) -> None:
    sock = raw_watch(api)
    receive_until(sock, b"\r\n\r\n")

    api.server.faults().refuse(0.3)

    assert receive_all(sock) == b""
    with pytest.raises(ConnectionRefusedError):
        api.socket()
    deadline = monotonic() + 60
    while True:
        api.connection.close()
        try:
            answer = api.ask("GET", MAPS)
            break
        except ConnectionRefusedError:
            assert monotonic() < deadline
    assert answer.status == 200


def test_server_closes_at_once_whatever_faults_hold(start: Any) -> None:
    api = start()
    faults = api.server.faults()
    faults.freeze(verb="list")
    faults.slow(bps=1, verb="get")
    faults.delay(seconds=60, verb="deletecollection")
    faults.holdhdr(seconds=60, verb="watch")
    api.server.put(config_map("a"))
    for path in (MAPS, f"{MAPS}/a", WATCH):
        raw_watch(api, path)
    sock = api.socket()
    sock.sendall(f"DELETE {MAPS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    api.server.wait_request(count=4, timeout=60)
    begin = monotonic()

    api.server.close()

    assert monotonic() - begin < SOON
