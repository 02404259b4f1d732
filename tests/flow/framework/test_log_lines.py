"""What a running program logs: each line says what it is about, and who has nothing to say is silent."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from informers import Request

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

_log = logging.getLogger("controllers.story")


def from_loop(line: dict[str, Any]) -> bool:
    return str(line["logger"]) in {"informers.cache.reflector", "informers.cache.store", "informers.cache.entries"}


def test_lines_inside_a_reconcile_say_which_and_lines_of_a_loop_say_whose(stage: Stage) -> None:
    follower = stage.follow(start=False)

    def reconcile(request: Request) -> None:
        _log.info("looking")
        _log.info("looked")
        if request.attempt == 0 and request.ref.name == "b":
            raise RuntimeError

    follower.manager.add_controller("story", reconcile, primary=stage.configmaps())
    stage.put("a", "1")
    made = stage.put("b", "1")
    stage.opened.enter_context(follower)
    follower.until(lambda: len(stage.log.lines("looked")) >= 3, "both were looked at, one of them twice")
    follower.until(lambda: len(stage.log.lines("reconciled")) >= 2, "done")
    uids = {obj.name: obj.uid for obj in follower.lister.list()}

    assert made
    looking, looked = stage.log.lines("looking")[:3], stage.log.lines("looked")[:3]
    for first, second in zip(
        *(sorted(lines, key=lambda line: str(line["reconcile"])) for lines in (looking, looked)), strict=True
    ):
        assert first["reconcile"] == second["reconcile"]
        assert (first["controller"], first["cluster"], first["resource"]) == ("story", "", "configmaps.v1")
        assert first["namespace"] == stage.namespace
        assert first["uid"] == uids[first["name"]]
    assert len({line["reconcile"] for line in looking}) == 3
    assert Counter((line["name"], line["attempt"]) for line in looking) == {("a", 0): 1, ("b", 0): 1, ("b", 1): 1}
    failed = stage.log.lines("reconcile failed, will try again")
    assert [(line["name"], line["controller"], line["level"]) for line in failed] == [("b", "story", "warning")]
    loop = [line for line in stage.log.lines() if from_loop(line)]
    assert loop
    assert all({"cluster", "resource"} <= line.keys() and "reconcile" not in line for line in loop)


def test_who_has_nothing_to_do_logs_nothing_but_steps(breakable: Stage) -> None:
    """Streams end and begin again, history expires: that is no news."""
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow(watch=stage.hasty(1.0))
    follower.until_watching()
    follower.until(lambda: stage.log.lines("caches filled"), "the last line of the start")
    before = len([line for line in stage.log.lines() if line["level"] != "debug"])

    stage.embedded.wait_request(verb="watch", resource="configmaps", client="story*", count=3, timeout=20)
    stage.faults.compact()
    stage.faults.ev(code=410, verb="watch", resource="configmaps", client="story*", times=1, existing=True)
    follower.until(lambda: len(stage.log.lines("listed")) >= 2, "listed again")

    later = [line for line in stage.log.lines() if line["level"] != "debug"][before:]
    assert later == []


def test_what_goes_wrong_again_and_again_is_told_once(breakable: Stage) -> None:
    stage = breakable
    fault = stage.faults.status(code=500, verb="list", resource="configmaps", client="story*", times=6)
    stage.put("a", "1")
    follower = stage.follow(watch=stage.hasty(60, initial="list"))
    follower.until_value("a", "1")

    assert fault.hits == 6
    loud = [line for line in stage.log.lines() if line["level"] in {"warning", "error"}]
    assert [(line["msg"], line["resource"]) for line in loud] == [("step failed", "configmaps.v1")]


def test_a_name_with_control_characters_breaks_no_line(stage: Stage) -> None:
    """Values of annotations and labels are not logged at all; what a program logs itself is escaped."""
    follower = stage.follow(start=False)

    def reconcile(request: Request) -> None:
        found = follower.lister.find(request.ref)
        if found is not None:
            _log.info("seen", extra={"note": found.annotations.get("note", "")})

    follower.manager.add_controller("story", reconcile, primary=stage.configmaps())
    stage.put("a", "1", annotations={"note": 'two\nlines \x1b[31m "quoted" \u2028 \x85'})
    stage.opened.enter_context(follower)
    follower.until(lambda: stage.log.lines("seen"), "seen")

    text = stage.log.getvalue()
    assert all(line.startswith("{") for line in text.splitlines())
    assert not any(char in text for char in "\x1b\u2028\x85")
    assert stage.log.lines("seen")[0]["note"] == 'two\nlines \x1b[31m "quoted" \u2028 \x85'
