"""What a look is told as: one line and one count for each decision, and nothing again while nothing changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import informers
from informers import ConflictError, Request

if TYPE_CHECKING:
    from tests.controllers.copier.conftest import World

SERIES = {one.name: one for one in informers.metrics.all_series()}


class Counted:
    """What was counted since this was made; series are the process', so only differences say something."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for name, series in SERIES.items():
            for key, value in series.samples() if name.startswith("k8s_copier_") else ():
                if key[0] == "":  # the cluster that this world is
                    number = value if isinstance(value, float | int) else value.count
                    found[name.removeprefix("k8s_copier_"), *key[1:]] = number
        return found

    def since(self) -> dict[tuple[str, ...], float]:
        now = self._now()
        return {key: now[key] - self._before.get(key, 0) for key in now if now[key] != self._before.get(key, 0)}


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    return {"message": record.message, **vars(record)["informers_fields"]}


def test_a_copy_and_a_problem_are_counted_and_gone_with_their_target(world: World) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k", "replace-data.m": "configmap:gone:data.k"})
    counted = Counted()

    world.copier.reconcile(Request(target, since=world.clock.monotonic() - 0.5))
    world.look(target)

    assert counted.since() == {
        ("targets",): 1,
        ("sources",): 2,
        ("rules", "synced"): 1,
        ("rules", "waiting"): 1,
        ("rule_problems", "SourceMissing"): 1,
        ("patches_total", "ok"): 1,
        ("propagation_seconds",): 1,
        ("in_sync_total",): 1,
    }

    del world.objects[target]
    world.look(target)
    gone = counted.since()
    assert ("targets",) not in gone
    assert ("rule_problems", "SourceMissing") not in gone


def test_the_state_of_a_rule_counts_the_same_with_and_without_a_source_that_gives_no_consent(world: World) -> None:
    target = world.target({"replace-data.k": "configmap:b/s:data.k"})
    counted = Counted()
    world.look(target)
    without = counted.since()

    world.source("s", "b", k="1")
    world.look(target)

    assert counted.since() == without  # nor are its looks, which a change of the source would bring about


def test_a_conflict_is_counted_and_no_news_for_people(world: World, caplog: pytest.LogCaptureFixture) -> None:
    target = world.target({"replace-data.k": 'json:"v"'})
    world.answers.append(ConflictError("old", status=409))
    counted = Counted()
    caplog.set_level("DEBUG", logger="controllers")

    with pytest.raises(ConflictError):
        world.look(target)

    assert counted.since()["patches_total", "conflict"] == 1
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "woken"),
        ("DEBUG", "conflict"),
    ]


def test_a_line_says_which_rule_of_which_target_reads_what_and_why_not(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    target = world.target({"replace-data.k": "configmap:gone:data.k"})
    caplog.set_level("INFO", logger="controllers")

    world.look(target)
    world.look(target)

    (line,) = map(line_of, caplog.records)
    assert line["message"] == "rule state changed"
    facts = {key: line[key] for key in ("target", "rule", "source", "state", "reason", "why")}
    assert facts == {
        "target": "configmaps.v1 a/t",
        "rule": "replace-data.k",
        "source": "configmaps.v1 a/gone",
        "state": "waiting",
        "reason": "SourceMissing",
        "why": "configmaps.v1 a/gone does not exist; the value is kept",
    }


def test_a_write_is_one_line_with_its_paths(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.source(k="1")
    target = world.target({"replace-data.k": "configmap:s:data.k", "replace-metadata.labels.a": 'json:"b"'})
    caplog.set_level("INFO", logger="controllers")

    world.look(target)

    (line,) = map(line_of, caplog.records)
    assert (line["message"], line["target"]) == ("patched", "configmaps.v1 a/t")
    assert line["paths"] == ["data.k", "metadata.labels.a"]
    assert line["duration_ms"] == 0
