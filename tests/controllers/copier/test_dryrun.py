"""A dry run looks at each target until it was judged, no longer, and says which it could not judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controllers.copier.consent import Target
from controllers.copier.dryrun import DryRun
from controllers.copier.leaving import Leaving
from controllers.copier.metering import Cause
from controllers.copier.offline import built_in_kinds
from controllers.copier.paths import Key
from controllers.copier.problems import RuleError
from controllers.copier.reconciler import Look
from controllers.copier.report import Report
from controllers.copier.rules import PREFIX
from controllers.copier.sources import Policy
from controllers.copier.turns import Turn
from informers import (
    GVR,
    AmbiguousKindError,
    ConflictError,
    ForbiddenError,
    InformersError,
    Lister,
    Manager,
    Object,
    ObjectRef,
    Request,
    Resource,
    Result,
    ServerError,
    Stop,
    UnknownKindError,
)
from informers.testing import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")
CONFIGMAP = Resource(CONFIGMAPS, "ConfigMap", "configmap", namespaced=True)
REF = ObjectRef(CONFIGMAPS, "dev", "t")
OTHER = ObjectRef(CONFIGMAPS, "dev", "other")
REPLACE_K = ("replace", "data.k")


def look_at(*turns: Turn, leavings: Sequence[Leaving] = ()) -> Look:
    raw = b'{"metadata":{"name":"t","namespace":"dev"}}'
    return Look(Object.parse(raw, CONFIGMAPS), Target(REF, CONFIGMAP), turns, None, leavings)


class Targets:
    """The lister of the one kind of targets."""

    def __init__(self, state: str = "watching", problem: InformersError | None = None) -> None:
        self._state, self._problem = state, problem

    def state(self, _cluster: str) -> str:
        return self._state

    def has_synced(self, _cluster: str) -> bool:
        return self._state == "watching"

    def problem(self, _cluster: str) -> InformersError | None:
        return self._problem

    def list(self, *, cluster: str) -> Any:
        rules = {f"{PREFIX}replace-data.k": "json:1"}
        return [SimpleNamespace(ref=REF, annotations=rules), SimpleNamespace(ref=OTHER, annotations={})]


class Program:
    """A manager whose reconcile answers as told, once each, and whose worker is the test."""

    def __init__(self, clock: FakeClock, *answers: Result | Exception | Look) -> None:
        self.clock = clock
        kinds = built_in_kinds()
        self.trial = DryRun(lambda _cluster: kinds, Policy(), clock)
        self.answers = list(answers)
        self.once = self.trial.once(self.reconcile)
        self.reason = ""
        self.is_ended = False

    def reconcile(self, _request: Request) -> Result:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Look):
            self.trial.show(answer)
            return Result(2.0)
        return answer

    def report(self, targets: Targets | None = None) -> Report:
        listers = {"configmap": cast("Lister", targets or Targets())}
        return self.trial.run(cast("Manager", self), listers, lambda: None)

    def clusters(self) -> list[str]:
        return [""]

    def add_runnable(self, _name: str, run: Callable[[Stop], None]) -> None:
        self.wait = run

    def run(self) -> None:
        stop = Stop(self.clock)
        if self.is_ended:
            stop.set()
        self.wait(stop)

    def stop(self, reason: str) -> None:
        self.reason = reason


def test_a_target_is_looked_at_until_it_was_judged_and_then_no_more(clock: FakeClock) -> None:
    program = Program(clock, Result(10.0), ConflictError("old"), look_at(Turn("replace-data.k", REPLACE_K, None)))

    assert program.once(Request(REF)) == Result(10.0)
    with pytest.raises(ConflictError):
        program.once(Request(REF))
    assert program.once(Request(REF)) is None
    assert program.once(Request(REF)) is None  # nobody is asked

    report = program.report()
    assert (len(report.targets), report.notes, report.has_trouble()) == (1, [], False)
    assert program.reason == "each target was looked at"


def test_a_target_without_anything_to_do_is_judged(clock: FakeClock) -> None:
    program = Program(clock, Result())

    assert program.once(Request(REF)) is None

    assert program.report().targets == []


def test_what_lost_its_source_is_looked_at_twice(clock: FakeClock) -> None:
    turn = Turn("replace-data.k", REPLACE_K, None, error=RuleError("SourceMissing", "gone"), is_leaving=True)
    leaving = Leaving("replace-data.k", REPLACE_K, Cause.SOURCE_MISSING, (Key("data"), Key("k")), {})
    leaving.kept = {"not ours": [leaving.place]}
    program = Program(clock, look_at(turn), look_at(turn, leavings=[leaving]))

    assert program.once(Request(REF)) == Result(2.0)
    assert program.once(Request(REF)) is None

    (rule,) = program.report().targets[0].rules
    assert (rule.action, rule.message) == ("keep", "gone; data.k stays: not ours")


@pytest.mark.parametrize(
    ("answer", "why"), [(ServerError("no", status=500), "ServerError"), (Result(5.0), "the server is busy")]
)
def test_a_target_that_cannot_be_judged_is_told_after_some_time(
    clock: FakeClock, answer: Result | Exception, why: str
) -> None:
    program = Program(clock, Result(5.0), answer)
    program.once(Request(REF))
    clock.advance(30.0)

    assert program.once(Request(REF)) is None

    report = program.report()
    assert report.notes == [f"configmaps.v1 dev/t could not be judged: {why}"]
    assert report.has_trouble()


@pytest.mark.parametrize(
    ("targets", "note", "has_trouble"),
    [
        (Targets("unserved"), "configmap is not served yet", False),
        (
            Targets("unserved", UnknownKindError("none", candidates=("configmaps",))),
            "configmap is not served yet; perhaps configmaps",
            False,
        ),
        (
            Targets("unserved", AmbiguousKindError("two", candidates=("a.v1.x", "a.v1.y"))),
            "configmap may be a.v1.x or a.v1.y; write one of these",
            True,
        ),
        (
            Targets("forbidden", ForbiddenError("no", status=403, reason="Forbidden")),
            "configmap cannot be listed: 403 Forbidden",
            True,
        ),
        (Targets("pending"), "configmap cannot be listed: no answer", True),
    ],
)
def test_kinds_that_could_not_be_looked_at_are_told(
    clock: FakeClock, targets: Targets, note: str, has_trouble: bool
) -> None:
    report = Program(clock).report(targets)

    assert (report.notes, report.has_trouble()) == ([note], has_trouble)


def test_a_dry_run_that_is_ended_before_is_not_complete(clock: FakeClock) -> None:
    program = Program(clock)
    program.is_ended = True

    report = program.report()

    assert report.notes == ["ended before each target was looked at"]
    assert report.has_trouble()
