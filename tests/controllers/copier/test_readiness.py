"""When the copier says that it is ready."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from controllers.copier.readiness import why_unready
from informers import ForbiddenError, InformersError


@dataclass
class FakeMapper:
    loaded: bool

    def has_loaded(self) -> bool:
        return self.loaded


@dataclass
class FakeLister:
    states: dict[str, str]
    problems: dict[str, InformersError] = field(default_factory=dict)

    def has_synced(self, cluster: str) -> bool:
        return self.states[cluster] in {"synced", "watching"}

    def state(self, cluster: str) -> str:
        return self.states[cluster]

    def problem(self, cluster: str) -> InformersError | None:
        return self.problems.get(cluster)


def asked(targets: dict[str, FakeLister], answering: dict[str, bool]) -> str | None:
    mappers = {cluster: FakeMapper(loaded) for cluster, loaded in answering.items()}
    return why_unready(cast("Any", targets), cast("Any", mappers))


def test_no_cluster_that_answers_is_not_ready() -> None:
    lister = FakeLister({"": "pending", "b": "pending"}, {"": InformersError("down")})

    assert asked({"cm": lister}, {"": False, "b": False}) == "no cluster has said yet which kinds it serves"


def test_a_cluster_that_does_not_answer_is_not_waited_for_while_another_does() -> None:
    lister = FakeLister({"": "pending", "b": "watching"})

    assert asked({"cm": lister}, {"": False, "b": True}) is None


def test_each_kind_in_each_cluster_that_answers_is_waited_for() -> None:
    targets = {"cm": FakeLister({"": "watching", "b": "syncing"}), "secret": FakeLister({"": "pending", "b": "synced"})}

    assert asked(targets, {"": True, "b": True}) == "not listed yet: secret, cm (cluster b)"


@pytest.mark.parametrize(
    ("state", "problems"), [("forbidden", {}), ("unserved", {}), ("syncing", {"": ForbiddenError("no")})]
)
def test_a_kind_whose_first_list_failed_keeps_nobody_waiting(state: str, problems: dict[str, InformersError]) -> None:
    assert asked({"cm": FakeLister({"": state}, problems)}, {"": True}) is None
