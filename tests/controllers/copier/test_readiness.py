"""The copier is ready once it has had a look at its targets, wherever somebody answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from controllers.copier.readiness import Readiness
from informers import ConnectError, ForbiddenError, InformersError, ServerError, UnauthorizedError

AWAY = ConnectError("refused")
NO_TOKEN = UnauthorizedError("who", status=401)
BROKEN = ServerError("boom", status=500)


@dataclass
class FakeKind:
    """A kind whose state in each cluster is set by the test; where it is not, nothing has come yet."""

    problems: dict[str, InformersError] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def has_synced(self, cluster: str) -> bool:
        return self.state(cluster) in {"synced", "watching"}

    def state(self, cluster: str) -> str:
        return self.states.get(cluster, "pending")

    def problem(self, cluster: str) -> InformersError | None:
        return self.problems.get(cluster)


def test_it_waits_for_the_first_list_of_each_kind() -> None:
    maps, secrets = FakeKind(), FakeKind()
    readiness = Readiness({"configmaps": maps, "secrets": secrets}, [""])

    assert readiness.problem() == "not listed yet: configmaps, secrets"
    maps.states[""] = "watching"
    assert readiness.problem() == "not listed yet: secrets"
    secrets.states[""] = "synced"
    assert readiness.problem() is None


@pytest.mark.parametrize("state", ["forbidden", "unserved"])
def test_a_kind_that_may_not_be_listed_is_not_waited_for(state: str) -> None:
    assert Readiness({"widgets": FakeKind(states={"": state})}, [""]).problem() is None


@pytest.mark.parametrize("problem", [BROKEN, ForbiddenError("no", status=403)])
def test_a_list_that_failed_is_over(problem: InformersError) -> None:
    assert Readiness({"widgets": FakeKind(problems={"": problem})}, [""]).problem() is None


@pytest.mark.parametrize("problem", [AWAY, NO_TOKEN])
def test_it_is_not_ready_while_no_cluster_answers(problem: InformersError) -> None:
    kind = FakeKind(problems={"": problem, "b": AWAY})
    readiness = Readiness({"configmaps": kind}, ["", "b"])

    assert readiness.problem() == "no cluster answers"
    kind.states["b"] = "watching"
    assert readiness.problem() is None


def test_a_kind_that_is_cut_off_where_another_is_answered_is_over() -> None:
    kinds = {"configmaps": FakeKind(states={"": "watching"}), "secrets": FakeKind(problems={"": AWAY})}

    assert Readiness(kinds, [""]).problem() is None


def test_a_cluster_that_may_still_answer_is_waited_for_by_name() -> None:
    kind = FakeKind(states={"": "watching"})

    assert Readiness({"configmaps": kind}, ["", "b"]).problem() == "not listed yet: configmaps of cluster b"


def test_what_comes_or_goes_later_changes_nothing() -> None:
    kind = FakeKind(states={"": "unserved"})
    readiness = Readiness({"widgets": kind}, [""])
    assert readiness.problem() is None

    kind.states[""] = "pending"
    assert readiness.problem() is None
    kind.problems[""] = AWAY
    assert readiness.problem() is None
