"""Rules, sources, targets, consent, rivals, refusals and restarts in any order: in the end all is as the rules say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controllers.copier.namespaces import NAMESPACES
from controllers.copier.problems import State
from controllers.copier.rules import PREFIX, Fate, parse_rules
from informers import ConflictError, ObjectRef, ServerError
from tests.controllers.copier.conftest import CONFIGMAPS, World, refused

TARGETS = [ObjectRef(CONFIGMAPS, "a", name) for name in ("t1", "t2")]
SOURCES = [ObjectRef(CONFIGMAPS, "a", "s"), ObjectRef(CONFIGMAPS, "b", "s")]
ORIGINS = {"configmap:s:data.k": SOURCES[0], "configmap:b/s:data.k": SOURCES[1]}
NAMES = ("replace-data.x", "replace-data.y", "merge-data")
VALUES = st.sampled_from(["1", "2", "3"])


class Life(RuleBasedStateMachine):
    """A cluster to which things happen, and a copier that looks at each target now and then."""

    @initialize(on_missing=st.sampled_from(Fate), on_removed=st.sampled_from(Fate))
    def start(self, on_missing: Fate, on_removed: Fate) -> None:
        self.world = World(on_source_missing=on_missing, on_rule_removed=on_removed)
        for namespace in ("a", "b"):
            self.world.put(NAMESPACES, "", namespace)

    # --- what happens ---

    @rule(source=st.sampled_from(SOURCES), value=VALUES, has_consent=st.booleans())
    def put_source(self, source: ObjectRef, value: str, has_consent: bool) -> None:
        self.world.source("s", source.namespace, allow="a/ConfigMap/*" if has_consent else None, k=value)

    @rule(source=st.sampled_from(SOURCES))
    def delete_source(self, source: ObjectRef) -> None:
        self.world.objects.pop(source, None)

    @rule(where=st.sampled_from(TARGETS), name=st.sampled_from(NAMES[:2]), origin=st.sampled_from(sorted(ORIGINS)))
    def add_rule(self, where: ObjectRef, name: str, origin: str) -> None:
        self._annotate(where, name, origin)

    @rule(where=st.sampled_from(TARGETS), keys=st.dictionaries(st.sampled_from("mno"), VALUES, min_size=1))
    def add_merge(self, where: ObjectRef, keys: dict[str, str]) -> None:
        entries = ",".join(f'"{key}":"{value}"' for key, value in sorted(keys.items()))
        self._annotate(where, "merge-data", f"json:{{{entries}}}")

    @rule(where=st.sampled_from(TARGETS), name=st.sampled_from(NAMES))
    def break_rule(self, where: ObjectRef, name: str) -> None:
        self._annotate(where, name, "json:{")

    @rule(where=st.sampled_from(TARGETS), name=st.sampled_from(NAMES))
    def drop_rule(self, where: ObjectRef, name: str) -> None:
        if where in self.world.objects:
            self.world.drop_rules(where, name)

    @rule(where=st.sampled_from(TARGETS), key=st.sampled_from("xymn"), value=VALUES)
    def write_as_rival(self, where: ObjectRef, key: str, value: str) -> None:
        if where in self.world.objects:
            self.world.touch(where, data={key: value})

    @rule(where=st.sampled_from(TARGETS))
    def delete_target(self, where: ObjectRef) -> None:
        self.world.objects.pop(where, None)
        self.world.owners.pop(where, None)

    @rule(answer=st.sampled_from([refused(409), refused(422), ServerError("boom", status=500)]))
    def refuse_once(self, answer: Any) -> None:
        self.world.answers = [answer]

    @rule(seconds=st.sampled_from([0.5, 2.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule()
    def look(self) -> None:
        for target in TARGETS:
            self._look(target)

    @rule()
    def restart(self) -> None:
        self.world = self.world.restarted()

    def _annotate(self, target: ObjectRef, name: str, text: str) -> None:
        if target not in self.world.objects:
            self.world.put(CONFIGMAPS, target.namespace, target.name, metadata={"annotations": {}}, data={"own": "x"})
        self.world.touch(target, "test", metadata={"annotations": {PREFIX + name: text}})

    def _look(self, target: ObjectRef) -> float | None:
        try:
            return self.world.look(target).requeue_after
        except (ConflictError, ServerError):
            return 0.0

    # --- what holds ---

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def only_targets_are_written(self) -> None:
        assert set(self.world.patched) <= set(TARGETS)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.answers = []
        for target in TARGETS:
            if target in self.world.objects:  # what was refused is tried again when the target changes
                self.world.touch(target, "test", metadata={"labels": {"touched": "yes"}})
            self._settle(target)
            self._check(target)
        again = self.world.restarted()
        for target in TARGETS:
            again.look(target)
            again.clock.advance(2)
            again.look(target)
        assert not again.patches

    def _settle(self, target: ObjectRef) -> None:
        """Look until nothing is to be done any more; nobody else writes meanwhile."""
        for _ in range(20):
            sent = len(self.world.patches)
            wait = self._look(target)
            if wait is None and len(self.world.patches) == sent:
                return
            self.world.clock.advance(wait or 0)
        raise AssertionError("it never settles")

    def _check(self, target: ObjectRef) -> None:
        live = self.world.objects.get(target)
        if live is None:
            assert not self.world.copier.memories.knows(target, "")
            return
        memory = self.world.copier.memories.of(target, live["metadata"]["uid"])
        for each in parse_rules(live["metadata"]["annotations"]).rules:
            state, _ = memory.reported.get(each.identity, (State.SYNCED, ""))
            text = live["metadata"]["annotations"][PREFIX + each.id]
            source = self.world.objects.get(ORIGINS[text]) if text in ORIGINS else None
            allowed = text == "configmap:s:data.k" or (source is not None and source["metadata"]["annotations"])
            if text in ORIGINS and (source is None or not allowed):
                assert state is State.WAITING
            elif state is State.SYNCED:
                self._check_written(live["data"], each.id, source["data"]["k"] if source else text)

    def _check_written(self, data: dict[str, str], name: str, value: str) -> None:
        if name == "merge-data":
            for part in value.removeprefix("json:{").removesuffix("}").split(","):
                key, _, wanted = part.replace('"', "").partition(":")
                assert data[key] == wanted
        else:
            assert data[name.removeprefix("replace-data.")] == value


def test_in_the_end_all_is_as_the_rules_say_or_it_is_said_why_not() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[*HealthCheck]),
    )


@pytest.mark.slow
def test_in_the_end_all_is_as_the_rules_say_in_many_more_lives() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=2000, stateful_step_count=50, deadline=None, suppress_health_check=[*HealthCheck]
        ),
    )
