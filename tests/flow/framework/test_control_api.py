"""The control API drives every word from outside: a server of its own process breaks, and a program comes through."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from informers import APIError, Backoff, InformersError, WatchOptions
from informers.testing.servers import Server
from informers.testing.wire import Wire

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Log, Play, Stage

pytestmark = [pytest.mark.embedded, pytest.mark.lists]

QUICK = WatchOptions(silence=0.5, backoff=Backoff(0.05, 0.4))
WATCH: Mapping[str, Any] = {"verb": "watch", "resource": "configmaps", "client": "story*"}
LIST: Mapping[str, Any] = {"verb": "list", "resource": "configmaps", "client": "story*"}
PATCH: Mapping[str, Any] = {"verb": "patch", "resource": "configmaps"}
OPEN: Mapping[str, Any] = {"match": WATCH, "existing": True}

# What acts on a stream that is open.
ON_STREAMS: list[dict[str, Any]] = [
    {"do": "FREEZE", "at": "stream", "times": 1},
    {"do": "RST", "at": "stream", "times": 1},
    {"do": "FIN", "at": "stream", "times": 1},
    {"do": "FIN", "at": "stream", "clean": False, "times": 1},
    {"do": "TRUNC", "bytes": 30, "times": 1},
    {"do": "SPLIT", "every": 7},
    {"do": "SPLIT", "at": 70},
    {"do": "SLOW", "bps": 20000},
    {"do": "DELAY", "what": "events", "seconds": 0.2},
    {"do": "EV", "code": 410, "times": 1},
    {"do": "EV", "code": 429, "times": 1},
    {"do": "EV", "bare": True, "times": 1},
    {"do": "BLANK"},
    {"do": "HUGE", "mb": 1.5, "times": 1},
    {"do": "POISON", "line": "no JSON", "times": 1},
    {"do": "NOBM"},
    {"do": "SHORT", "times": 1},
]
# What acts on the next watch: the stream is reset, so that there is one.
ON_WATCHES: list[dict[str, Any]] = [
    {"do": "STATUS", "code": 500, "times": 2},
    {"do": "STATUS", "code": 410, "times": 1},
    {"do": "DENY", "times": 1},
    {"do": "HOLDHDR"},
    {"do": "HOLDHDR", "seconds": 0.1},
    {"do": "PLAIN"},
    {"do": "NOEND"},
    {"do": "IGNORE", "params": ["allowWatchBookmarks"]},
    {"do": "FREEZE", "times": 1},
    {"do": "RST", "at": "request", "times": 2},
    {"do": "FIN", "at": "headers", "times": 2},
    {"do": "DELAY", "seconds": 0.2, "times": 1},
    {"do": "COMPACT", "times": 1},
    {"do": "LAG", "events": 1, "times": 1, "for": 5},
]
# What acts on the next list: the stream is ended by an error that asks for one.
ON_LISTS: list[dict[str, Any]] = [
    {"do": "TABLE", "times": 1},
    {"do": "META", "times": 1},
    {"do": "NOCACHE", "times": 1},
    {"do": "LAG", "events": 1, "mode": "toolarge"},
    {"do": "POISON", "item": {"metadata": {}}, "times": 1},
    {"do": "STATUS", "code": 429, "headers": {"Retry-After": "1"}, "times": 1},
    {"do": "STATUS", "code": 200, "body": "<html>", "headers": {"Content-Type": "text/html"}, "times": 1},
    {"do": "TRUNC", "bytes": 10, "times": 1},
    {"do": "DELAY", "seconds": 0.2, "times": 1},
]
ON_WRITES: list[tuple[dict[str, Any], str, int]] = [
    ({"do": "CONFLICT"}, "1", 409),
    ({"do": "CONFLICT", "committed": True}, "2", 409),
    ({"do": "STATUS", "code": 422}, "1", 422),
    ({"do": "DROPREPLY"}, "2", 0),
]


@dataclass(frozen=True)
class Outside:
    """A server that is a process of its own, and its control API."""

    ready: Mapping[str, Any]

    def ask(self, method: str, path: str, body: object = None, *, wanted: int = 200) -> Any:
        answer = Wire(self.ready["control"]).request(method, path, body=body)
        assert answer.status == wanted, (method, path, answer.status, answer.body)
        return answer.json()

    def fault(self, description: Mapping[str, Any]) -> int:
        return int(self.ask("POST", "/_faults", description, wanted=201)["id"])

    def hits(self, fault: int) -> int:
        return next(int(each["hits"]) for each in self.ask("GET", "/_faults") if each["id"] == fault)


@contextmanager
def started(directory: Path, *options: str) -> Iterator[Outside]:
    words = ["--control-port=0", f"--kubeconfig={directory / 'kubeconfig'}", "--bookmark-every=0.1", *options]
    with (directory / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "informers.testing.apiserver", *words], stdout=subprocess.PIPE, stderr=stderr
        )
    try:
        assert process.stdout is not None
        yield Outside(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not process.stdout.read()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with started(tmp_path_factory.mktemp("outside")) as found:
        yield found


@pytest.fixture
def stage(outside: Outside, play: Play, tmp_path: Path) -> Iterator[Stage]:
    """Play in a namespace of one's own on the server outside; no fault is left."""
    namespace = f"n{abs(hash(tmp_path)) % 10**9}"
    server = Server(outside.ready["url"], Path(outside.ready["kubeconfig"]), namespace, tmp_path)
    outside.ask("PUT", "/_objects", [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}])
    with server._opened:
        yield play(server)
    outside.ask("DELETE", "/_faults")
    outside.ask("DELETE", "/_requests")


def named(value: object) -> str:
    return (
        " ".join(str(part) for part in value.values() if not isinstance(part, Mapping))
        if isinstance(value, dict)
        else ""
    )


@pytest.mark.parametrize("word", ON_STREAMS, ids=named)
def test_a_program_comes_through_what_happens_to_streams(
    outside: Outside, stage: Stage, word: Mapping[str, Any]
) -> None:
    follower = stage.follow(watch=QUICK)
    follower.until_watching()
    stage.wait_bookmark(follower)

    fault = outside.fault({**word, **OPEN})
    stage.put("a", "1")
    follower.until(lambda: outside.hits(fault), "it happens")
    follower.until_value("a", "1")
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert [told.value for told in follower.told() if told.name == "a"] == ["1", "2"]


@pytest.mark.parametrize("word", ON_WATCHES, ids=named)
def test_a_program_comes_through_what_happens_to_watches(
    outside: Outside, stage: Stage, word: Mapping[str, Any]
) -> None:
    follower = stage.follow(watch=QUICK)
    follower.until_watching()
    stage.wait_bookmark(follower)

    fault = outside.fault({**word, "match": WATCH})
    close = {"match": WATCH, "how": "RST"}
    follower.until(lambda: outside.ask("POST", "/_close", close)["closed"] == 1, "its stream is closed")
    stage.put("a", "1")
    follower.until(lambda: outside.hits(fault), "it happens")
    follower.until_value("a", "1")

    assert [told.value for told in follower.told() if told.name == "a"] == ["1"]


@pytest.mark.parametrize("word", ON_LISTS, ids=named)
def test_a_program_comes_through_what_happens_to_lists(outside: Outside, stage: Stage, word: Mapping[str, Any]) -> None:
    stage.put("a", "1")
    follower = stage.follow(watch=QUICK)
    follower.until_watching()

    fault = outside.fault({**word, "match": LIST})
    outside.fault({"do": "EV", "code": 500, **OPEN, "times": 1})
    follower.until(lambda: outside.hits(fault), "it happens")
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert [told.value for told in follower.told() if told.name == "a"] == ["1", "2"]


@pytest.mark.parametrize(("word", "value", "status"), ON_WRITES, ids=named)
def test_what_happens_to_a_write_is_told_and_seen(
    outside: Outside, stage: Stage, word: Mapping[str, Any], value: str, status: int
) -> None:
    stage.put("a", "1")
    follower = stage.follow(watch=QUICK)
    follower.until_value("a", "1")

    outside.fault({**word, "match": PATCH, "times": 1})
    with pytest.raises(InformersError) as caught:
        stage.client.patch(stage.ref("a"), {"data": {"v": "2"}}, field_manager="everybody")

    assert (caught.value.status if isinstance(caught.value, APIError) else 0) == status
    stage.put("b", "1")
    follower.until_value("b", "1")
    assert follower.values()["a"] == value


def test_refused_connections_and_expired_history_are_made_from_outside(outside: Outside, stage: Stage) -> None:
    follower = stage.follow(watch=QUICK)
    follower.until_watching()

    outside.ask("POST", "/_refuse", {"for": 0.3})
    follower.until(lambda: stage.log.lines("watch ended"), "noticed")
    outside.ask("POST", "/_compact", {"resource": "configmaps"})
    follower.until(lambda: outside.ask("GET", "/_state"), "it listens again")
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": stage.namespace},
        "data": {"v": "1"},
    }
    outside.ask("PUT", "/_objects", [manifest])
    follower.until_value("a", "1")
    outside.ask("DELETE", f"/_objects?resource=configmaps&namespace={stage.namespace}&name=a")
    follower.until_value("a", None)

    shown = outside.ask("GET", f"/_objects?resource=configmaps&namespace={stage.namespace}")
    assert shown == []


def test_many_objects_are_made_and_changed_from_outside(outside: Outside, stage: Stage) -> None:
    follower = stage.follow(watch=QUICK)
    follower.until_watching()

    many = {"resource": "configmaps", "namespace": stage.namespace, "count": 300, "bytes": 200, "seed": 7}
    assert outside.ask("POST", "/_bulk", many) == {"created": 300}
    follower.until(lambda: len(follower.read()) == 300, "all are seen")
    churn = {"resource": "configmaps", "namespace": stage.namespace, "churn": 200, "for": 0.5}
    changed = outside.ask("POST", "/_bulk", churn)["changed"]
    follower.until(lambda: follower.words().get("modified", 0) == changed, "all changes are seen")

    assert changed > 0


def test_the_log_tells_what_programs_asked_but_no_credential(tmp_path: Path, play: Play, log: Log) -> None:
    token = "token-of-marked-9f27c1e4"
    with started(tmp_path, f"--token={token}=somebody") as outside:
        server = Server(outside.ready["url"], Path(outside.ready["kubeconfig"]), "default", tmp_path)
        with server._opened:
            stage = play(server)
            follower = stage.follow(watch=QUICK)
            follower.until_watching()
            (listed,) = outside.ask("GET", "/_requests/wait?verb=list&resource=configmaps&client=story*&timeout=60")
            assert listed["user"] == "somebody"
            assert listed["query"] == {"limit": "500", "resourceVersion": "0"}

            # Another token is given, the first is taken away: the stream lives on, new requests are refused.
            made = outside.ask("POST", "/_tokens", {"user": "other"}, wanted=201)
            outside.ask("DELETE", f"/_tokens/{listed['token_id']}")
            outside.ask("POST", "/_close", {"match": WATCH, "how": "RST"})
            follower.until(lambda: follower.sets[0].problem() is not None, "refused")
            assert type(follower.sets[0].problem()).__name__ == "UnauthorizedError"
            assert made["token"] not in log.getvalue()
            text = json.dumps(outside.ask("GET", "/_requests?headers=1"))
            follower.stop()
    assert token not in text
    assert base64.b64encode(token.encode()).decode() not in text
    assert token not in (tmp_path / "stderr").read_text()
