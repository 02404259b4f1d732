"""Lists: versions, pages, selectors, and what is expired."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from informers.clock import SystemClock
from informers.testing.apiserver import reading

monotonic = SystemClock().monotonic

MAPS = "/api/v1/namespaces/default/configmaps"
ALL_MAPS = "/api/v1/configmaps"


def config_map(name: str, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, **metadata},
    }


def names(answer: Any) -> list[str]:
    return [item["metadata"]["name"] for item in answer.body["items"]]


def test_items_come_in_key_order_across_namespaces(api: Any) -> None:
    api.server.put(
        config_map("b", "kube-system"),
        config_map("b"),
        config_map("a", "kube-public"),
        config_map("a.b"),
        config_map("a"),
    )

    answer = api.ask("GET", ALL_MAPS)

    keys = [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in answer.body["items"]]
    assert keys == ["default/a", "default/a.b", "default/b", "kube-public/a", "kube-system/b"]


def test_namespace_whose_name_begins_like_another_is_not_mixed_up(api: Any) -> None:
    for namespace in ("team", "team-a", "team.b", "team0"):
        api.server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        api.server.put(config_map(namespace, namespace))

    assert names(api.ask("GET", "/api/v1/namespaces/team/configmaps")) == ["team"]


def test_items_of_built_in_kinds_have_no_kind(api: Any) -> None:
    api.server.put(config_map("a"))

    answer = api.ask("GET", MAPS)

    assert answer.body["kind"] == "ConfigMapList"
    assert answer.body["apiVersion"] == "v1"
    assert set(answer.body["items"][0]) == {"metadata"}


def test_list_of_nothing_has_the_present_version(api: Any) -> None:
    api.server.put(config_map("a", "kube-system"))

    answer = api.ask("GET", MAPS)

    assert answer.body["items"] == []
    assert int(answer.rv) >= int(api.ask("GET", ALL_MAPS).body["items"][0]["metadata"]["resourceVersion"])


def test_label_selectors_select(api: Any) -> None:
    api.server.put(config_map("a", labels={"x": "1"}), config_map("b", labels={"x": "2"}), config_map("c"))

    assert names(api.ask("GET", f"{MAPS}?labelSelector=x%3D1")) == ["a"]
    assert names(api.ask("GET", f"{MAPS}?labelSelector=x+in+(1,2)")) == ["a", "b"]
    assert names(api.ask("GET", f"{MAPS}?labelSelector=!x")) == ["c"]


def test_field_selectors_select_by_name_and_namespace(api: Any) -> None:
    api.server.put(config_map("a"), config_map("b"), config_map("a", "kube-system"))

    assert names(api.ask("GET", f"{MAPS}?fieldSelector=metadata.name%3Da")) == ["a"]
    assert names(api.ask("GET", f"{ALL_MAPS}?fieldSelector=metadata.namespace%3Ddefault")) == ["a", "b"]


@pytest.mark.parametrize(
    "query", ["labelSelector=a%3Db%3Dc", "fieldSelector=nope%3D1", "resourceVersion=abc", "limit=x", "continue=abc"]
)
def test_parameter_that_cannot_be_read_is_refused(api: Any, query: str) -> None:
    answer = api.ask("GET", f"{MAPS}?{query}")

    assert (answer.status, answer.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    "query",
    [
        "resourceVersion=1&resourceVersionMatch=Some",
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "sendInitialEvents=true",
    ],
)
def test_parameters_that_do_not_go_together_are_refused(api: Any, query: str) -> None:
    answer = api.ask("GET", f"{MAPS}?{query}")

    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["details"]["kind"] == "ListOptions"


def test_version_in_the_future_is_waited_for(api: Any) -> None:
    import threading

    wanted = int(api.ask("GET", MAPS).rv) + 1
    later = threading.Timer(0.1, lambda: api.server.put(config_map("a")))
    later.start()

    answer = api.ask("GET", f"{MAPS}?resourceVersion={wanted}")

    later.join()
    assert answer.status == 200
    assert names(answer) == ["a"]


def test_version_that_does_not_come_is_too_large(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading._PATIENCE == 3.0
    monkeypatch.setattr(reading, "_PATIENCE", 0.3)
    start = monotonic()

    answer = api.ask("GET", f"{MAPS}?resourceVersion=999999")

    assert monotonic() - start > 0.25
    assert (answer.status, answer.reason) == (504, "Timeout")
    assert answer.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert answer.headers["Retry-After"] == "1"


class TestPages:
    """limit and continue."""

    def test_show_one_state_whatever_happens_meanwhile(self, api: Any) -> None:
        api.server.put(*(config_map(f"m{number}") for number in range(5)))

        first = api.ask("GET", f"{MAPS}?limit=2")
        api.server.put(config_map("m22"))
        api.server.remove("configmaps", "m3")
        second = api.ask("GET", f"{MAPS}?limit=2&continue={first.body['metadata']['continue']}")
        third = api.ask("GET", f"{MAPS}?limit=2&continue={second.body['metadata']['continue']}")

        assert [names(page) for page in (first, second, third)] == [["m0", "m1"], ["m2", "m3"], ["m4"]]
        assert [page.body["metadata"].get("remainingItemCount") for page in (first, second, third)] == [3, 1, None]
        assert first.rv == second.rv == third.rv
        assert "continue" not in third.body["metadata"]

    def test_have_no_count_with_a_selector(self, api: Any) -> None:
        api.server.put(*(config_map(f"m{number}", labels={"x": "1"}) for number in range(3)))

        page = api.ask("GET", f"{MAPS}?limit=2&labelSelector=x")

        assert "continue" in page.body["metadata"]
        assert "remainingItemCount" not in page.body["metadata"]

    def test_after_the_history_is_gone_are_expired_and_a_token_leads_on(self, api: Any) -> None:
        api.server.put(*(config_map(f"m{number}") for number in range(3)))
        token = api.ask("GET", f"{MAPS}?limit=1").body["metadata"]["continue"]
        api.server.put(config_map("m4"))
        api.server.faults().compact()

        expired = api.ask("GET", f"{MAPS}?limit=1&continue={token}")
        rest = api.ask("GET", f"{MAPS}?continue={expired.body['metadata']['continue']}")

        assert (expired.status, expired.reason) == (410, "Expired")
        assert names(rest) == ["m1", "m2", "m4"]

    def test_with_a_version_are_refused(self, api: Any) -> None:
        api.server.put(config_map("a"), config_map("b"))
        token = api.ask("GET", f"{MAPS}?limit=1").body["metadata"]["continue"]

        assert api.ask("GET", f"{MAPS}?continue={token}&resourceVersion=5").status == 400

    def test_are_not_made_at_version_0(self, api: Any) -> None:
        api.server.put(config_map("a"), config_map("b"))

        assert names(api.ask("GET", f"{MAPS}?limit=1&resourceVersion=0")) == ["a", "b"]

    def test_are_made_at_version_0_without_a_watch_cache(self, start: Any) -> None:
        api = start(watch_cache=False)
        api.server.put(config_map("a"), config_map("b"))

        assert names(api.ask("GET", f"{MAPS}?limit=1&resourceVersion=0")) == ["a"]


def test_exact_version_shows_the_past(api: Any) -> None:
    api.server.put(config_map("a"), config_map("b"))
    then = api.ask("GET", MAPS).rv
    api.server.put(config_map("c"), config_map("a", labels={"x": "1"}))
    api.server.remove("configmaps", "b")

    past = api.ask("GET", f"{MAPS}?resourceVersion={then}&resourceVersionMatch=Exact")

    assert names(past) == ["a", "b"]
    assert "labels" not in past.body["items"][0]["metadata"]
    assert past.rv == then


def test_exact_version_before_the_history_is_expired(start: Any) -> None:
    api = start(history=2)
    then = api.ask("GET", MAPS).rv
    api.server.put(*(config_map(f"m{number}") for number in range(4)))

    answer = api.ask("GET", f"{MAPS}?resourceVersion={then}&resourceVersionMatch=Exact")

    assert (answer.status, answer.reason) == (410, "Expired")


def test_large_list_is_compressed_when_accepted(api: Any) -> None:
    api.server.put({**config_map("a"), "data": {"k": "v" * 200_000}})

    plain = api.ask("GET", MAPS)
    packed = api.ask("GET", MAPS, headers={"Accept-Encoding": "gzip"})

    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.raw) < 10_000
    assert json.loads(gzip.decompress(packed.raw)) == plain.body


def test_objects_behind_the_api_can_be_read(api: Any) -> None:
    api.ask("POST", MAPS, {"metadata": {"name": "a"}})

    (found,) = api.server.objects("configmaps", "default")

    assert found["kind"] == "ConfigMap"
    assert found["metadata"]["name"] == "a"
    assert {each["kind"] for each in api.server.objects()} == {"ConfigMap", "Namespace"}


def test_list_that_waits_for_a_version_does_not_hold_up_the_end(api: Any) -> None:
    sock = api.socket()
    sock.sendall(f"GET {MAPS}?resourceVersion=999999 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    api.server.wait_request(verb="list", timeout=60)
    begin = monotonic()

    api.server.close()

    assert monotonic() - begin < 3  # the time that it would wait
