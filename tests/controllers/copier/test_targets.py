"""A target's kind that cannot be worked with ends the program only if it is so wherever somebody answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import cast

import pytest

from controllers.copier.targets import TargetKinds, why_off
from informers import (
    GVR,
    AmbiguousKindError,
    Resource,
    RESTMapper,
    Stop,
    UnknownKindError,
)
from informers.testing import FakeClock

KINDS = {
    "configmap": GVR("", "v1", "configmaps"),
    "serviceaccounts": GVR("", "v1", "serviceaccounts"),
    "serviceaccounts.v1.core": GVR("", "v1", "serviceaccounts"),
}
AMBIGUOUS = "widget may be widgets.v1.a.io or widgets.v1.b.io; write one of these"
GUARDED = "serviceaccounts is a kind that gives power over others; to mean it, write serviceaccounts.v1.core"


class Mapper:
    """What one cluster serves; `widget` is two kinds where it `is_split`, and not served elsewhere."""

    def __init__(self, *, is_split: bool = False, answers: bool = True) -> None:
        self.is_split, self.answers = is_split, answers
        self.listeners: list[Callable[[], None]] = []

    def resolve(self, text: str) -> Resource:
        if text == "widget" and self.is_split:
            raise AmbiguousKindError("two", candidates=("widgets.v1.a.io", "widgets.v1.b.io"))
        if text not in KINDS:
            raise UnknownKindError("none", text=text)
        return Resource(KINDS[text], "Kind", "kind", namespaced=True)

    def has_loaded(self) -> bool:
        return self.answers

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def change(self, *, is_split: bool = False, answers: bool = True) -> None:
        self.is_split, self.answers = is_split, answers
        for listener in self.listeners:
            listener()


def kinds(
    clock: FakeClock, mappers: Mapping[str, Mapper], *texts: str, end: Callable[[str], object] | None = None
) -> TargetKinds:
    return TargetKinds(
        texts, cast("Mapping[str, RESTMapper]", mappers), lambda cluster: cluster or "home", clock, end=end
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [("configmap", None), ("widget", AMBIGUOUS), ("serviceaccounts", GUARDED), ("serviceaccounts.v1.core", None)],
)
def test_a_kind_is_off_if_its_name_is_ambiguous_or_too_powerful(text: str, why: str | None) -> None:
    assert why_off(cast("RESTMapper", Mapper(is_split=True)), text) == why


def test_a_kind_that_is_too_powerful_is_a_target_by_the_name_that_the_refusal_gives() -> None:
    mapper = cast("RESTMapper", Mapper())

    why = why_off(mapper, "serviceaccounts")

    assert why is not None
    assert why_off(mapper, why.rpartition(" ")[2]) is None


@pytest.mark.parametrize(
    ("mappers", "text", "why"),
    [
        ({"": Mapper(is_split=True), "b": Mapper(is_split=True)}, "widget", AMBIGUOUS),
        ({"": Mapper(), "b": Mapper()}, "serviceaccounts", GUARDED),
    ],
)
def test_a_kind_that_is_off_in_all_clusters_ends_the_program(
    clock: FakeClock, mappers: Mapping[str, Mapper], text: str, why: str
) -> None:
    stop = Stop(clock)
    watched = kinds(clock, mappers, "configmap", text, end=lambda _reason: stop.set())

    watched.run(stop)

    assert watched.verdict == f"--target: {why}"
    assert not any(mapper.listeners for mapper in mappers.values())


def test_a_kind_that_is_off_in_some_clusters_is_one_line_each_and_the_rest_works(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, eventually: Callable[[Callable[[], object]], None]
) -> None:
    mappers = {"": Mapper(is_split=True), "b": Mapper()}
    stop = Stop(clock)
    caplog.set_level("INFO", logger="controllers")
    watched = kinds(clock, mappers, "widget", "configmap", end=lambda _reason: stop.set())
    thread = Thread(target=watched.run, args=(stop,), daemon=True)

    thread.start()
    eventually(lambda: len(caplog.records) == 1)
    mappers["b"].change(is_split=True)
    eventually(lambda: len(caplog.records) == 2)
    mappers[""].change()
    mappers[""].change(is_split=True)
    eventually(lambda: caplog.records[-1].levelname == "ERROR")
    stop.set()
    thread.join()

    assert not watched.verdict
    told = [(line.levelname, line.message, vars(line)["informers_fields"]["cluster"]) for line in caplog.records]
    assert told[:2] == [("ERROR", "target is off", "home"), ("ERROR", "target is off", "b")]
    assert not any(mapper.listeners for mapper in mappers.values())


def test_clusters_that_do_not_answer_are_not_waited_for_long(clock: FakeClock) -> None:
    mappers = {"": Mapper(is_split=True), "b": Mapper(answers=False)}
    stop = Stop(clock)
    watched = kinds(clock, mappers, "widget", end=lambda _reason: stop.set())
    thread = Thread(target=watched.run, args=(stop,), daemon=True)

    thread.start()
    clock.block_until_waiting()
    assert not watched.verdict
    clock.advance(10.0)
    thread.join()

    assert watched.verdict == f"--target: {AMBIGUOUS}"


def test_one_cluster_that_did_not_answer_at_the_start_is_told_of_later_and_goes_on(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, eventually: Callable[[Callable[[], object]], None]
) -> None:
    mappers = {"": Mapper(answers=False)}
    stop = Stop(clock)
    thread = Thread(target=kinds(clock, mappers, "widget").run, args=(stop,), daemon=True)

    thread.start()
    eventually(lambda: mappers[""].listeners)
    mappers[""].change(is_split=True)
    eventually(lambda: caplog.records)
    stop.set()
    thread.join()

    assert [line.message for line in caplog.records] == ["target is off"]
