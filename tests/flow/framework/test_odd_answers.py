"""Answers that are odd, or wrong: what can be used is used, what cannot is asked for again, and the next change arrives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from informers import GVR, Backoff, Selection, WatchOptions

if TYPE_CHECKING:
    from informers.testing.apiserver import Faults
    from tests.flow.framework.conftest import Stage

pytestmark = pytest.mark.lists

STREAM: Mapping[str, Any] = {"verb": "watch", "resource": "configmaps", "existing": True}
SERVICES = GVR("", "v1", "services")
STOPS = 10.0  # a stop on a busy machine


def blank(faults: Faults) -> None:
    faults.blank(**STREAM)


def blanks(faults: Faults) -> None:
    faults.blank(text="\n \n\r\n\t\n", **STREAM)


def huge(faults: Faults) -> None:
    faults.huge(mb=1.5, times=1, **STREAM)


def no_bookmarks(faults: Faults) -> None:
    faults.nobm(**STREAM)


@pytest.mark.parametrize("fault", [blank, blanks, huge, no_bookmarks])
def test_odd_but_usable_streams_are_used(breakable: Stage, fault: Callable[[Faults], None]) -> None:
    stage = breakable
    follower = stage.follow()
    follower.until_watching()

    fault(stage.faults)
    for number in range(3):
        stage.put("a", str(number))
        follower.until_value("a", str(number))

    assert len(stage.watches()) == len(stage.lists()) == 1
    assert not stage.log.alarms()


def garbage(faults: Faults) -> None:
    faults.poison(line="this is no JSON", times=1, **STREAM)


def cut_json(faults: Faults) -> None:
    faults.poison(line='{"type":"ADDED","object":{"metadata":{"name":"x"', times=1, **STREAM)


def unknown_type(faults: Faults) -> None:
    faults.poison(line='{"type":"RENAMED","object":{"metadata":{"name":"x"}}}', times=1, **STREAM)


def a_list(faults: Faults) -> None:
    faults.poison(line="[1, 2]", times=1, **STREAM)


def error_500(faults: Faults) -> None:
    faults.ev(code=500, times=1, **STREAM)


def error_bare(faults: Faults) -> None:
    faults.ev(bare=True, times=1, **STREAM)


def error_null(faults: Faults) -> None:
    faults.poison(line='{"type":"ERROR","object":null}', times=1, **STREAM)


@pytest.mark.parametrize("fault", [garbage, cut_json, unknown_type, a_list, error_500, error_bare, error_null])
def test_what_cannot_be_understood_ends_the_watch_and_everything_is_listed_again(
    breakable: Stage, fault: Callable[[Faults], None]
) -> None:
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow()
    follower.until_watching()
    seen = follower.rv()

    fault(stage.faults)
    follower.until(lambda: len(stage.lists()) == 2, "listed again")
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert dict(stage.lists()[1].query) == {"resourceVersion": seen}
    assert follower.words() == {"initial": 1, "modified": 1}
    assert "error" not in stage.log.levels()


def event(kind: str, **metadata: str) -> str:
    obj = {"kind": kind, "apiVersion": "v1", "metadata": metadata, "data": {"v": "bad"}}
    return json.dumps({"type": "MODIFIED", "object": obj})


@pytest.mark.parametrize(
    "line",
    [
        event("Widget", name="a", namespace="{namespace}", uid="u", resourceVersion="99999999"),
        event("ConfigMap", name="b", namespace="{namespace}"),
        event("ConfigMap", namespace="{namespace}", uid="u", resourceVersion="99999999"),
        '{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":7}}',
        '{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{}}}',
    ],
)
def test_an_object_that_makes_no_sense_is_skipped_and_the_stream_goes_on(breakable: Stage, line: str) -> None:
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow()
    follower.until_watching()

    stage.faults.poison(line=line.replace("{namespace}", stage.namespace), times=1, **STREAM)
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert len(stage.watches()) == len(stage.lists()) == 1
    assert follower.values() == {"a": "2"}
    stage.faults.close("RST", resource="configmaps")
    stage.put("a", "3")
    follower.until_value("a", "3")
    assert int(stage.watches()[1].query["resourceVersion"]) < 99999999


@pytest.mark.parametrize("item", [7, None, {}, {"metadata": {"name": "x"}}, {"metadata": {"name": 5, "uid": "u"}}])
def test_an_item_that_makes_no_sense_costs_only_itself(breakable: Stage, item: object) -> None:
    stage = breakable
    stage.put("a", "1")
    fault = stage.faults.add({"do": "POISON", "match": {"verb": "list", "resource": "configmaps"}, "item": item or []})

    follower = stage.follow()
    follower.until_watching()

    assert fault.hits == 1
    assert follower.values() == {"a": "1"}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("<html>welcome</html>", "text/html"),
        ("", "application/json"),
        ('{"kind":"Status","apiVersion":"v1","status":"Success","code":200}', "application/json"),
        ('{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}', "application/json"),
        ("[]", "application/json"),
    ],
)
def test_what_is_no_list_never_empties_the_store(breakable: Stage, body: str, content_type: str) -> None:
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow()
    follower.until_watching()

    stage.faults.status(
        code=200, body=body, headers={"Content-Type": content_type}, verb="list", resource="configmaps", times=2
    )
    stage.faults.ev(code=500, times=1, **STREAM)
    follower.until(lambda: len(stage.lists()) == 4, "listed until it was one")
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert follower.words() == {"initial": 1, "modified": 1}


def test_a_table_in_place_of_a_list_or_an_event_is_not_taken_for_objects(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    fault = stage.faults.table(verb=["list", "watch"], resource="configmaps", times=2)
    follower = stage.follow()

    follower.until_value("a", "1")

    assert fault.hits == 2
    assert len(stage.lists()) == 3
    with stage.faults.table(verb="watch", resource="configmaps", existing=True):
        stage.put("a", "2")
        follower.until(lambda: stage.log.lines("object skipped: no usable metadata"), "skipped")
    stage.put("a", "3")
    follower.until_value("a", "3")

    assert [told.value for told in follower.told()] == ["1", "3"]


def test_watches_that_end_at_once_are_not_opened_for_ever(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    backoff = Backoff(0.05, 0.4)
    with stage.faults.short(verb="watch", resource="configmaps") as fault:
        follower = stage.follow(watch=WatchOptions(backoff=backoff))
        follower.until(lambda: fault.hits >= 4, "opened again and again")

        at = [request.started for request in stage.watches()]
        for number, (earlier, later) in enumerate(itertools.pairwise(at)):
            if later - earlier >= 1:
                break  # so slow a machine: the watch may have lasted long enough to be one
            assert later - earlier >= 0.05 * 2**number * 0.95
        stage.put("a", "2")
        follower.until_value("a", "2")
    assert follower.words() == {"initial": 1, "modified": 1}


def test_a_program_stops_at_once_while_watches_end_at_once(breakable: Stage) -> None:
    stage = breakable
    fault = stage.faults.short(verb="watch", resource="configmaps")
    follower = stage.follow(watch=WatchOptions(backoff=Backoff(20, 30)))
    follower.until(lambda: fault.hits, "opened")

    assert follower.stop() < STOPS


def test_a_line_over_the_limit_ends_the_watch_and_the_list_brings_what_it_said(breakable: Stage) -> None:
    stage = breakable
    follower = stage.follow(start=False)
    (transport,) = follower.manager._transports.values()
    assert transport._line_limit >= 64 * 1024 * 1024
    transport._line_limit = 1024 * 1024
    stage.opened.enter_context(follower)
    follower.until_watching()

    stage.faults.huge(mb=2, times=1, **STREAM)
    stage.put("a", "1")
    follower.until_value("a", "1")

    assert len(stage.lists()) == 2


def test_full_objects_where_metadata_was_asked_for_are_taken_without_their_content(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    stage.faults.meta(verb=["list", "watch"], resource="configmaps")
    follower = stage.follow(stage.configmaps(metadata_only=True))
    follower.until_watching()
    stage.put("b", "1")
    follower.until(lambda: len(follower.lister.list()) == 2, "both")

    assert all("data" not in obj.body and obj.kind == "ConfigMap" for obj in follower.lister.list())


def test_one_object_that_a_transform_rejects_keeps_its_metadata_and_the_others_everything(stage: Stage) -> None:
    stage.put("bad", "1")
    stage.put("good", "1")

    def transform(obj: Any) -> Any:
        if obj.name == "bad":
            raise ValueError("cannot")
        return obj.thaw()

    follower = stage.follow(Selection(stage.ref("x").gvr, namespaces=(stage.namespace,), transform=transform))
    follower.until_watching()
    stage.put("bad", "2")
    stage.put("good", "2")
    follower.until_value("good", "2")

    assert follower.values() == {"bad": "", "good": "2"}
    assert follower.words()["modified"] == 2
