"""The control API drives a server from outside; the log tells what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

MAPS = "/api/v1/namespaces/default/configmaps"


def config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, **more}


@pytest.fixture
def api(start: Any) -> Any:
    return start(control_port=0)


def test_no_control_without_being_asked(start: Any) -> None:
    assert start().server.control_url is None


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://127.0.0.1"}])
def test_web_pages_are_refused(api: Any, headers: dict[str, str]) -> None:
    assert api.control("GET", "/_state", headers=headers).status == 403


def test_fault_is_added_counted_and_removed(api: Any) -> None:
    added = api.control("POST", "/_faults", {"do": "STATUS", "code": 503, "match": {"verb": "list"}, "times": 5})
    assert api.ask("GET", MAPS).status == 503

    (shown,) = api.control("GET", "/_faults").body
    removed = api.control("DELETE", f"/_faults/{added.body['id']}")

    assert added.status == 201
    assert shown == {
        "id": added.body["id"],
        "do": "STATUS",
        "code": 503,
        "match": {"verb": "list"},
        "times": 5,
        "hits": 1,
    }
    assert removed.status == 200
    assert api.ask("GET", MAPS).status == 200
    assert api.control("DELETE", f"/_faults/{added.body['id']}").status == 404


def test_unknown_fields_are_named(api: Any) -> None:
    for path, body in (
        ("/_faults", {"do": "DENY", "bogus": 1}),
        ("/_compact", {"bogus": 1}),
        ("/_bulk", {"bogus": 1}),
        ("/_tokens", {"bogus": 1}),
    ):
        answer = api.control("POST", path, body)
        assert answer.status == 400
        assert "bogus" in answer.body["error"]


def test_what_is_not_json_is_refused(api: Any) -> None:
    connection = api.connect(api.server.control_url.removeprefix("http://"))
    connection.request("POST", "/_faults", "{nope")

    assert connection.getresponse().status == 400


def test_log_tells_who_asked_what(api: Any) -> None:
    headers = {"Authorization": "Bearer secret-text", "X-Test": "1"}
    api.ask("GET", f"{MAPS}?limit=5", headers=headers)
    api.ask("GET", "/version")

    (entry,) = api.control("GET", "/_requests?resource=configmaps&verb=list").body
    (with_headers,) = api.control("GET", "/_requests?resource=configmaps&headers=1").body

    assert entry["path"] == MAPS
    assert entry["query"] == {"limit": "5"}
    assert entry["user"] == "admin"
    assert entry["user_agent"] == "tester/1"
    assert (entry["status"], entry["ended"], entry["n"]) == (200, "done", 1)
    assert len(entry["token_id"]) == 12
    assert "headers" not in entry
    assert with_headers["headers"]["authorization"] == "Bearer"
    assert with_headers["headers"]["x-test"] == "1"
    assert "secret-text" not in str(with_headers)
    assert [each["verb"] for each in api.control("GET", "/_requests?since=1").body] == ["version"]
    assert [each["verb"] for each in api.control("GET", "/_requests?limit=1").body] == ["version"]


def test_log_can_be_waited_for_and_emptied(api: Any) -> None:
    api.ask("GET", MAPS)

    waited = api.control("GET", "/_requests/wait?verb=list&count=1&timeout=5")
    missed = api.control("GET", "/_requests/wait?verb=list&count=2&timeout=0.05")
    api.control("DELETE", "/_requests")

    assert [each["verb"] for each in waited.body] == ["list"]
    assert missed.status == 408
    assert api.control("GET", "/_requests").body == []


def test_objects_are_written_read_and_removed(api: Any) -> None:
    watch = api.watch(f"{MAPS}?watch=1")

    api.control("PUT", "/_objects", [config_map("a"), config_map("b")])
    read = api.control("GET", "/_objects?resource=configmaps&name=a")
    removed = api.control("DELETE", "/_objects?resource=configmaps&namespace=default&name=a")

    assert [each["metadata"]["name"] for each in read.body] == ["a"]
    assert removed.body == {"removed": 1}
    assert watch.names(3) == ["ADDED a", "ADDED b", "DELETED a"]
    assert api.control("DELETE", "/_objects?resource=configmaps&namespace=default&name=a").status == 404
    assert api.control("GET", "/_objects?resource=nopes").status == 400


def test_object_written_behind_the_api_can_be_changed_through_it(api: Any) -> None:
    api.server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})

    answer = api.patch("/api/v1/namespaces/default/secrets/s", {"data": {"k": "dg=="}})

    assert answer.status == 200
    assert answer.body["type"] == "Opaque"


def test_object_that_is_broken_on_purpose_stays_so(api: Any) -> None:
    api.server.put(config_map("a", data=["no map"]))

    assert api.ask("GET", f"{MAPS}/a").body["data"] == ["no map"]


def test_silent_write_reaches_no_watch(api: Any) -> None:
    watch = api.watch(f"{MAPS}?watch=1")

    api.control("PUT", "/_objects?silent=1", [config_map("a")])
    api.control("PUT", "/_objects", [config_map("b")])

    assert watch.names(1) == ["ADDED b"]
    assert api.ask("GET", f"{MAPS}/a").status == 200


def test_many_objects_are_made_and_changed(api: Any) -> None:
    made = api.control("POST", "/_bulk", {"resource": "secrets", "count": 30, "bytes": 60, "seed": 1})
    changed = api.control("POST", "/_bulk", {"resource": "secrets", "churn": 100, "for": 0.1})

    secrets = api.server.objects("secrets")
    assert made.body == {"created": 30}
    assert len(secrets) == 30
    assert len(secrets[0]["data"]["payload"]) == 80
    assert 5 <= changed.body["changed"] <= 11
    assert "example.com/churn" in secrets[0]["metadata"]["annotations"]


def test_history_expires(api: Any) -> None:
    then = api.ask("GET", MAPS).rv
    api.control("PUT", "/_objects", [config_map("a")])

    answer = api.control("POST", "/_compact", {"resource": "configmaps"})

    assert answer.body == {"rv": int(then) + 1}
    assert api.watch(f"{MAPS}?watch=1&resourceVersion={then}").event()[1]["code"] == 410


def test_streams_are_closed(api: Any) -> None:
    watch = api.watch(f"{MAPS}?watch=1")
    api.server.wait_request(verb="watch", status=200, timeout=60)

    answer = api.control("POST", "/_close", {"match": {"resource": "configmaps"}, "how": "FIN"})

    assert answer.body == {"closed": 1}
    assert watch.rest() == []
    assert api.control("POST", "/_close", {"how": "NO"}).status == 400


def test_connections_are_refused_for_a_time(api: Any) -> None:
    api.control("POST", "/_refuse", {"for": 0.2})

    with pytest.raises(ConnectionRefusedError):
        api.socket()
    assert api.control("GET", "/_state").status == 200


def test_tokens_are_made_and_revoked(api: Any, tmp_path: Path) -> None:
    made = api.control("POST", "/_tokens", {"user": "jane"}).body
    file = tmp_path / "token"
    filed = api.control("POST", "/_tokens", {"user": "joe", "file": str(file), "every": 0.05}).body
    headers = {"Authorization": f"Bearer {made['token']}"}

    known = api.ask("GET", MAPS, headers=headers)
    unknown = api.ask("GET", MAPS)
    api.control("DELETE", f"/_tokens/{made['id']}")
    revoked = api.ask("GET", MAPS, headers=headers)

    assert [each.status for each in (known, unknown, revoked)] == [200, 401, 401]
    assert api.server.requests()[0].user == "jane"
    while file.read_text() == filed["token"]:
        pass
    assert api.ask("GET", MAPS, headers={"Authorization": f"Bearer {file.read_text()}"}).status == 200
    assert file.stat().st_mode & 0o777 == 0o600


def test_state_counts(api: Any) -> None:
    api.server.put(config_map("a"))
    api.watch(f"{MAPS}?watch=1")
    api.server.wait_request(verb="watch", status=200, timeout=60)

    state = api.control("GET", "/_state").body

    assert state["streams"] == {"tester/1": 1}
    assert state["objects"] == {"configmaps": 1, "namespaces": 4}
    assert state["connections"] == 1
    assert state["resourceVersion"] == api.ask("GET", MAPS).rv
    assert state["faults"] == []


def test_unknown_endpoint_is_not_found(api: Any) -> None:
    assert api.control("GET", "/_nope").status == 404
    assert api.control("PATCH", "/_faults").status == 404


class TestWaiting:
    """`requests` and `wait_request` in the same process."""

    def test_request_is_found_by_its_parts(self, api: Any) -> None:
        api.ask("GET", f"{MAPS}?limit=5")
        api.ask("GET", "/api/v1/secrets")

        assert [each.path for each in api.server.requests(query={"limit": "*"})] == [MAPS]
        assert [each.path for each in api.server.requests(query={"limit": None})] == ["/api/v1/secrets"]
        assert len(api.server.requests(verb=["list", "watch"])) == 2

    def test_request_that_does_not_come_is_a_timeout(self, api: Any) -> None:
        with pytest.raises(TimeoutError, match="saw 0"):
            api.server.wait_request(verb="list", timeout=0.05)

    def test_unknown_field_is_refused(self, api: Any) -> None:
        with pytest.raises(ValueError, match="bogus"):
            api.server.requests(bogus=1)
