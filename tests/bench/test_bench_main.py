from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hack.bench import __main__ as bench
from hack.bench.report import Table
from hack.bench.run import Run


def measured(_: Run) -> Table:
    table = Table("queue", "a queue", "wall s")
    table.add("informers", {"wall s": 1.0})
    return table


def breaks(_: Run) -> Table:
    msg = "the server is gone"
    raise ValueError(msg)


def interrupts(_: Run) -> Table:
    raise KeyboardInterrupt


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bench, "BUILD", tmp_path)
    monkeypatch.setattr(bench, "pin_to_server_cores", lambda: None)
    monkeypatch.setattr(bench, "BENCHMARKS", {"breaks": breaks, "queue": measured, "interrupts": interrupts})
    return tmp_path / "report.json"


def names(report: Path) -> list[Any]:
    return [each["name"] for each in json.loads(report.read_text(encoding="utf-8"))["benchmarks"]]


def test_a_benchmark_that_breaks_does_not_stop_the_others(report: Path) -> None:
    assert bench.main(["breaks", "queue"]) == 1

    assert names(report) == ["queue"]
    assert json.loads(report.read_text(encoding="utf-8"))["about"]["broken"] == "breaks"


def test_an_interrupted_run_leaves_what_it_has_finished(report: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.main(["queue", "interrupts"])

    assert names(report) == ["queue"]
