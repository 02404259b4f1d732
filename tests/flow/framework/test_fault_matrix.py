"""Every fault in every phase of following: what is asked then, how soon and how often, and what handlers are told.

A row of a table says where a fault strikes and what the server's log shows afterwards, in words:

    list 0/500 503 ~ list 0/500 200, watch now 200

is a list with `resourceVersion=0` and `limit=500` that was answered 503, after a backoff the same answered 200, at
once a watch from the present version. Versions are `0`, `-` (none asked for), `seen` (how far the cache was when the
fault struck) and `now` (the server's, after all that happened meanwhile); `>` is a page to continue with; status 0 is
no answer. What separates two requests is what has to pass between them: `, ` nothing, ` ~ ` the backoff, which doubles
with each, ` ^ ` its longest, ` ~1s~ ` what the server asked for.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from informers import Backoff, SystemClock, WatchOptions

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

pytestmark = pytest.mark.lists

BASE, LONGEST = 0.03, 0.12
BACKOFF = Backoff(BASE, LONGEST)
HTML: Mapping[str, Any] = {"code": 200, "body": "<html>welcome</html>", "headers": {"Content-Type": "text/html"}}
SOON = {"Retry-After": "1"}
TOO_LARGE: Mapping[str, Any] = {
    "code": 504,
    "reason": "Timeout",
    "message": "Too large resource version: 99999999, current: 1",
}


@dataclass(frozen=True)
class Row:
    """A fault, as the control API takes it, and what is asked from then on."""

    fault: Mapping[str, Any]
    asked: str
    alarms: int = 0  # lines that a person sees

    def __str__(self) -> str:
        return " ".join(str(value)[:40] for value in self.fault.values() if not isinstance(value, Mapping))


def row(word: str, asked: str, alarms: int = 0, **parameters: Any) -> Row:
    return Row({"do": word, "times": 1, **parameters}, asked, alarms)


def words(requests: Sequence[Any], names: Mapping[str, str]) -> list[str]:
    """Tell what was asked, in the words of a table."""
    told = []
    for request in requests:
        query = request.query
        version = names.get(query.get("resourceVersion", ""), query.get("resourceVersion", ""))
        place = ">" if "continue" in query else version or "-"
        limit = f"/{query['limit']}" if "limit" in query else ""
        told.append(f"{request.verb} {place}{limit} {request.status}")
    return told


def check(row: Row, spoken: Sequence[str], requests: Sequence[Any], struck: float = 0.0) -> None:
    """Hold the server's log against a row: what was asked, and what passed in between at least."""
    text = row.asked if row.asked[0] in "~^" else f", {row.asked}"
    parts = re.split(r"\s*(~\d+s~|~|\^|,)\s*", text)[1:]

    assert spoken == parts[1::2]

    at = [struck, *(request.started for request in requests)]
    failures = 0
    for pause, (earlier, later) in zip(parts[0::2], itertools.pairwise(at), strict=True):
        match pause:
            case ",":
                continue
            case "^":
                least = LONGEST
            case "~":
                least = min(LONGEST, BASE * 2**failures)
                failures += 1
            case _:
                least = float(pause.strip("~s"))
                failures += 1
        assert later - earlier >= least * 0.99, (pause, later - earlier)


def told(follower: Follower) -> list[str]:
    return [f"{each.word} {each.name}" for each in follower.told()]


def version(stage: Stage) -> str:
    return str(stage.embedded.state()["resourceVersion"])


def log_of(stage: Stage) -> Sequence[Any]:
    """Return the lists and watches of ConfigMaps by the program, in order."""
    return stage.embedded.requests(verb=["list", "watch"], resource="configmaps", client="story*")


def alarms(stage: Stage) -> int:
    return len([line for line in stage.log.alarms() if line["level"] == "warning"])


def strike(stage: Stage, row: Row, verb: str, **more: Any) -> Any:
    match = {"verb": verb, "resource": "configmaps", "client": "story*", **more.pop("match", {})}
    return stage.faults.add({**row.fault, "match": match, **more})


def end_well(stage: Stage, follower: Follower, row: Row) -> None:
    """Whatever happened, the next change arrives on the stream that is open; nobody was alarmed more than once."""
    follower.until_watching()
    stage.put("last", "1")
    follower.until_value("last", "1")
    assert follower.values() == stage.values()
    assert alarms(stage) == row.alarms
    assert "error" not in stage.log.levels()


# The first list.

LISTED = "list 0/500 200, watch now 200"
AGAIN = f"list 0/500 {{}} ~ {LISTED}"

FIRST_LISTS = [
    row("STATUS", AGAIN.format(500), 1, code=500),
    row("STATUS", f"list 0/500 503 ~ list 0/500 503 ~ list 0/500 503 ~ {LISTED}", 1, code=503, times=3),
    row("STATUS", f"list 0/500 429 ~1s~ {LISTED}", code=429, headers=SOON),
    row("STATUS", f"list 0/500 503 ~1s~ {LISTED}", code=503, headers=SOON),
    row("STATUS", AGAIN.format(401), 1, code=401),
    row("STATUS", AGAIN.format(410), 1, code=410),
    row("STATUS", AGAIN.format(504), 1, **TOO_LARGE),
    row("STATUS", AGAIN.format(200), 1, **HTML),
    row("STATUS", AGAIN.format(200), 1, code=200, body="{}", headers={"Content-Type": "application/json"}),
    row("STATUS", f"list 0/500 404, {LISTED}", 1, code=404),
    row("STATUS", f"list 0/500 405, {LISTED}", 1, code=405),
    row("DENY", f"list 0/500 403 ^ list 0/500 403 ^ {LISTED}", 1, times=2),
    row("RST", AGAIN.format(0), 1, at="request"),
    row("RST", AGAIN.format(0), 1, at="headers"),
    row("FIN", AGAIN.format(0), 1, at="request"),
    row("TRUNC", AGAIN.format(200), 1, bytes=20),
    row("TABLE", AGAIN.format(200), 1),
    row("DELAY", LISTED, seconds=0.1),
    row("SLOW", LISTED, bps=20_000),
    row("SPLIT", LISTED, every=3),
    row("PLAIN", LISTED),
    row("NOCACHE", LISTED),
    row("IGNORE", LISTED, params=["limit"]),
    row("POISON", LISTED, 1, item={"metadata": {}}),
    row("COMPACT", LISTED),
]


@pytest.mark.parametrize("row", FIRST_LISTS, ids=str)
def test_first_list(breakable: Stage, row: Row) -> None:
    stage = breakable
    stage.put("a", "1")
    stage.put("b", "1")
    now, struck = version(stage), SystemClock().monotonic()
    strike(stage, row, "list")

    follower = stage.follow(watch=WatchOptions(backoff=BACKOFF))
    follower.until_watching()

    check(row, words(log_of(stage), {"0": "0", now: "now"}), log_of(stage), struck)
    assert told(follower) == ["initial a", "initial b"]
    end_well(stage, follower, row)


# A list after a break: `b` is deleted meanwhile, `a` changed, `c` new.

RELISTED = "list seen 200, watch now 200"

RELISTS = [
    row("STATUS", f"~ list seen 500 ~ {RELISTED}", 1, code=500),
    row("STATUS", f"~ list seen 503 ~ list seen 503 ~ {RELISTED}", 1, code=503, times=2),
    row("STATUS", f"~ list seen 429 ~1s~ {RELISTED}", code=429, headers=SOON),
    row("STATUS", f"~ list seen 401 ~ {RELISTED}", 1, code=401),
    row("STATUS", "~ list seen 410, list -/500 200, watch now 200", code=410),
    row("STATUS", "~ list seen 504, list -/500 200, watch now 200", **TOO_LARGE),
    row("STATUS", "~ list seen 410, list -/500 410 ~ list -/500 200, watch now 200", 1, code=410, times=2),
    row("STATUS", f"~ list seen 200 ~ {RELISTED}", 1, **HTML),
    row("STATUS", f"~ list seen 404, {RELISTED}", 1, code=404),
    row("DENY", f"~ list seen 403 ^ {RELISTED}", 1),
    row("RST", f"~ list seen 0, {RELISTED}", at="request"),
    row("FIN", f"~ list seen 0, {RELISTED}", at="headers"),
    row("TRUNC", f"~ list seen 200 ~ {RELISTED}", 1, bytes=20),
    row("TABLE", f"~ list seen 200 ~ {RELISTED}", 1),
    row("LAG", "~ list seen 504, list -/500 200, watch now 200", events=4, mode="toolarge"),
    row("DELAY", f"~ {RELISTED}", seconds=0.1),
    row("SLOW", f"~ {RELISTED}", bps=20_000),
    row("SPLIT", f"~ {RELISTED}", every=1),
    row("PLAIN", f"~ {RELISTED}"),
    row("POISON", f"~ {RELISTED}", 1, item=7),
    row("NOCACHE", f"~ {RELISTED}"),
]


def hold(stage: Stage) -> Any:
    """Hold back what happens from now on, on the stream that is open."""
    return stage.faults.delay(seconds=300, what="events", verb="watch", resource="configmaps", existing=True, times=1)


@pytest.mark.parametrize("row", RELISTS, ids=str)
def test_list_after_a_break(breakable: Stage, row: Row) -> None:
    stage = breakable
    for name in ("a", "b", "same"):
        stage.put(name, "1")
    follower = stage.follow(watch=WatchOptions(backoff=BACKOFF))
    follower.until_watching()
    follower.forget()
    hold(stage)
    seen = follower.rv()
    stage.put("a", "2")
    stage.delete("b")
    stage.put("c", "1")
    stage.embedded.clear_requests()

    strike(stage, row, "list")
    now, struck = version(stage), SystemClock().monotonic()
    stage.faults.ev(code=410, verb="watch", resource="configmaps", existing=True, times=1)
    follower.until(lambda: len(told(follower)) == 3, "told of all that was missed")
    follower.until_watching()

    check(row, words(log_of(stage), {seen: "seen", now: "now"}), log_of(stage), struck)
    assert told(follower) == ["tombstone b", "modified a", "added c"]
    end_well(stage, follower, row)


# The second page of three.

PAGED = "list -/2 200, list >/2 200, list >/2 200, watch now 200"

PAGES = [
    row("STATUS", "list -/2 200, list >/2 410, list - 200, watch now 200", code=410),
    row("STATUS", f"list -/2 200, list >/2 500 ~ {PAGED}", 1, code=500),
    row("STATUS", "list -/2 200, list >/2 429 ~1s~ list >/2 200, list >/2 200, watch now 200", code=429, headers=SOON),
    row("STATUS", f"list -/2 200, list >/2 404, {PAGED}", 1, code=404),
    row("STATUS", f"list -/2 200, list >/2 200 ~ {PAGED}", 1, **HTML),
    row("DENY", f"list -/2 200, list >/2 403 ^ {PAGED}", 1),
    row("RST", "list -/2 200, list >/2 0, list >/2 200, list >/2 200, watch now 200", at="request"),
    row("TRUNC", f"list -/2 200, list >/2 200 ~ {PAGED}", 1, bytes=20),
    row("TABLE", f"list -/2 200, list >/2 200 ~ {PAGED}", 1),
    row("COMPACT", PAGED),
    row("DELAY", PAGED, seconds=0.1),
    row("SPLIT", PAGED, every=1),
    row("PLAIN", PAGED),
]


@pytest.mark.parametrize("row", PAGES, ids=str)
def test_second_page(breakable: Stage, row: Row) -> None:
    stage = breakable
    for number in range(5):
        stage.put(f"c{number}", "1")
    now, struck = version(stage), SystemClock().monotonic()
    strike(stage, row, "list", match={"query": {"continue": "*"}})

    follower = stage.follow(stage.configmaps(page_size=2), watch=WatchOptions(backoff=BACKOFF))
    follower.until_watching()

    check(row, words(log_of(stage), {now: "now"}), log_of(stage), struck)
    assert told(follower) == [f"initial c{number}" for number in range(5)]
    end_well(stage, follower, row)


# A watch that is to be opened.

OPENED = "list 0/500 200, watch now {}"
FROM_LIST = "list now 200, watch now 200"

OPENINGS = [
    row("STATUS", f"{OPENED.format(500)} ~ {FROM_LIST}", 1, code=500),
    row("STATUS", f"{OPENED.format(400)} ~ {FROM_LIST}", 1, code=400),
    row("STATUS", f"{OPENED.format(429)} ~1s~ watch now 200", 1, code=429, headers=SOON),
    row("STATUS", f"{OPENED.format(429)} ~ watch now 429 ~ watch now 200", 1, code=429, times=2),
    row("STATUS", f"{OPENED.format(401)} ~ watch now 200", 1, code=401),
    row("STATUS", f"{OPENED.format(410)} ~ {FROM_LIST}", code=410),
    row("STATUS", f"{OPENED.format(504)} ~ {FROM_LIST}", 1, **TOO_LARGE),
    row("STATUS", f"{OPENED.format(404)}, {FROM_LIST}", 1, code=404),
    row("STATUS", f"{OPENED.format(405)}, {FROM_LIST}", 1, code=405),
    row("STATUS", f"{OPENED.format(200)} ~ {FROM_LIST}", 1, **HTML),
    row("DENY", f"{OPENED.format(403)} ^ watch now 403 ^ watch now 200", 1, times=2),
    row("RST", f"{OPENED.format(0)} ~ watch now 0 ~ watch now 200", at="request", times=2),
    row("RST", f"{OPENED.format(0)} ~ watch now 200", at="headers"),
    row("FIN", f"{OPENED.format(0)} ~ watch now 200", at="request"),
    row("EV", f"{OPENED.format(200)} ~ {FROM_LIST}", code=410),
    row("EV", f"{OPENED.format(200)} ~ watch now 200", 1, code=429),
    row("EV", f"{OPENED.format(200)} ~ {FROM_LIST}", 1, code=500),
    row("EV", f"{OPENED.format(200)} ~ {FROM_LIST}", 1, bare=True),
    row("COMPACT", OPENED.format(200)),
    row("DELAY", OPENED.format(200), seconds=0.1),
    row("PLAIN", OPENED.format(200)),
    row("HOLDHDR", OPENED.format(200), seconds=0.1),
    row("IGNORE", OPENED.format(200), params=["allowWatchBookmarks", "timeoutSeconds"]),
    row("NOBM", OPENED.format(200)),
    row("NOEND", OPENED.format(200)),
    row("LAG", OPENED.format(200), events=0),
]


@pytest.mark.parametrize("row", OPENINGS, ids=str)
def test_watch_that_is_opened(breakable: Stage, row: Row) -> None:
    stage = breakable
    stage.put("a", "1")
    now, struck = version(stage), SystemClock().monotonic()
    strike(stage, row, "watch")

    follower = stage.follow(watch=WatchOptions(backoff=BACKOFF))
    follower.until(lambda: len(log_of(stage)) == len(re.findall("list|watch", row.asked)), "all is asked")
    follower.until_watching()

    check(row, words(log_of(stage), {"0": "0", now: "now"}), log_of(stage), struck)
    assert told(follower) == ["initial a"]
    end_well(stage, follower, row)


# A stream that is open; meanwhile `a` changes and `b` is new.

RESUMED = "~ watch seen 200"
BROKEN = "~ list seen 200, watch now 200"

STREAMS = [
    row("EV", BROKEN, code=410),
    row("EV", RESUMED, 1, code=429),
    row("EV", BROKEN, 1, code=500),
    row("EV", BROKEN, 1, code=504),
    row("EV", BROKEN, 1, bare=True),
    row("RST", RESUMED, at="stream"),
    row("FIN", RESUMED, at="stream", clean=False),
    row("TRUNC", RESUMED, bytes=0),
    row("TRUNC", RESUMED, bytes=40),
    row("POISON", BROKEN, 1, line="no JSON"),
    row("POISON", BROKEN, 1, line='{"type":"RENAMED","object":{}}'),
    row("POISON", BROKEN, 1, line=json.dumps({"kind": "Status", "status": "Failure", "code": 500})),
    row("POISON", BROKEN, line=json.dumps({"kind": "Status", "status": "Failure", "code": 410})),
]
# What leaves a stream as it is: nothing more is asked.
SHAPES = [
    {"do": "BLANK"},
    {"do": "HUGE", "mb": 1.5, "times": 1},
    {"do": "SPLIT", "every": 1},
    {"do": "SPLIT", "at": 33},
    {"do": "SLOW", "bps": 20_000},
    {"do": "DELAY", "what": "events", "seconds": 0.1},
    {"do": "NOBM"},
    {"do": "META"},
]


@pytest.mark.parametrize("row", STREAMS, ids=str)
def test_stream_that_is_open(breakable: Stage, row: Row) -> None:
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow(watch=WatchOptions(backoff=BACKOFF))
    follower.until_watching()
    follower.forget()
    held = hold(stage)
    seen = follower.rv()
    stage.put("a", "2")
    stage.put("b", "1")
    stage.embedded.clear_requests()

    now, struck = version(stage), SystemClock().monotonic()
    strike(stage, row, "watch", existing=True)
    held.remove()
    follower.until(lambda: len(told(follower)) == 2, "told")
    follower.until_watching()

    check(row, words(log_of(stage), {seen: "seen", now: "now"}), log_of(stage), struck)
    assert told(follower) == ["modified a", "added b"]
    end_well(stage, follower, row)


@pytest.mark.parametrize("fault", SHAPES, ids=lambda fault: " ".join(map(str, fault.values())))
def test_stream_that_comes_in_another_shape(breakable: Stage, fault: Mapping[str, Any]) -> None:
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow(watch=WatchOptions(backoff=BACKOFF))
    follower.until_watching()
    stage.embedded.clear_requests()

    strike(stage, Row(fault, ""), "watch", existing=True)
    stage.put("a", "2")
    stage.put("b", "€😀")
    stage.delete("a")
    follower.until_value("a", None)

    assert log_of(stage) == []
    assert told(follower) == ["initial a", "modified a", "added b", "deleted a"]
    end_well(stage, follower, Row(fault, ""))


# A write in a reconcile. What was done all the same is told by the watch, before the backoff is over.

WRITES = [
    row("CONFLICT", "patch 409 ~ get 200, patch 200"),
    row("CONFLICT", "patch 409, get 200", committed=True),
    row("STATUS", "patch 500 ~ get 200, patch 500 ~ get 200, patch 200", 1, code=500, times=2),
    row("STATUS", "patch 429 ~1s~ patch 200", code=429, headers=SOON),
    row("STATUS", "patch 503 ~1s~ patch 200", code=503, headers=SOON),
    row("STATUS", "patch 429 ~ patch 200", 1, code=429),
    row("STATUS", "patch 401 ~ patch 200", 1, code=401),
    row("STATUS", "patch 404 ~ patch 200", 1, code=404),
    row("STATUS", "patch 422 ~ patch 200", 1, code=422),
    row("DENY", "patch 403 ~ patch 200", 1),
    row("DROPREPLY", "patch 0, get 200", 1),
    row("RST", "patch 0 ~ get 200, patch 200", 1, at="request"),
    row("RST", "patch 0, get 200", 1, at="headers"),
    row("FIN", "patch 0, get 200", 1, at="headers"),
    row("TRUNC", "patch 200, get 200", 1, bytes=20),
    row("DELAY", "patch 200", seconds=0.1),
    row("SLOW", "patch 200", bps=20_000),
    row("SPLIT", "patch 200", every=1),
    row("PLAIN", "patch 200"),
]


@pytest.mark.parametrize("row", WRITES, ids=str)
def test_write_in_a_reconcile(breakable: Stage, row: Row) -> None:
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow(start=False, watch=WatchOptions(backoff=BACKOFF))

    def reconcile(request: Any) -> None:
        if "done" not in follower.lister.get("a", stage.namespace).annotations:
            patch = {"metadata": {"annotations": {"done": "yes"}}}
            follower.manager.client.patch(request.ref, patch, field_manager="story")

    controller = follower.manager.add_controller("mark", reconcile, primary=stage.configmaps(), retry=BACKOFF)
    strike(stage, row, "patch")
    stage.opened.enter_context(follower)
    follower.until(lambda: any("done" in obj.annotations for obj in follower.read()), "done")
    follower.until(controller.is_idle, "idle")

    asked = stage.embedded.requests(verb=["patch", "get"], resource="configmaps", client="story*")
    check(row, [f"{request.verb} {request.status}" for request in asked], asked)
    assert alarms(stage) <= row.alarms
