"""Events are folded, counted and dropped; nobody waits for them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from informers import metrics
from informers.backoff import Backoff
from informers.meta.errors import (
    AlreadyExistsError,
    Cause,
    ConnectionLost,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    ServerError,
)
from informers.meta.objects import JSON, Object
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.events import EventRecorder
from informers.testing.clock import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")
NEW = GVR("events.k8s.io", "v1", "events")
CORE = GVR("", "v1", "events")
REF = ObjectRef(CONFIGMAPS, "default", "web")


def obj(name: str = "web", namespace: str = "default") -> Object:
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    return Object.parse(json.dumps(body).encode(), CONFIGMAPS)


class FakeClient:
    """Takes what is written, or raises what a test has prepared."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards all below
        self.calls: list[tuple[str, GVR, str, Mapping[str, Any]]] = []
        self.errors: dict[GVR, list[Exception]] = {}
        self.timeouts: list[float | None] = []
        self.hold: threading.Event | None = None
        self.frozen: dict[str, threading.Event] = {}  # clusters that do not answer before this is set

    def create(
        self,
        gvr: GVR,
        body: Mapping[str, JSON],
        *,
        namespace: str = "",
        cluster: str = "",
        field_manager: str,
        timeout: float | None = None,
    ) -> Object:
        if cluster in self.frozen:
            assert self.frozen[cluster].wait(60)
        return self._take("create", gvr, namespace, body, timeout)

    def patch(
        self, ref: ObjectRef, patch: Mapping[str, JSON], *, field_manager: str, timeout: float | None = None
    ) -> Object:
        return self._take("patch", ref.gvr, ref.namespace, patch, timeout)

    def _take(self, verb: str, gvr: GVR, namespace: str, body: Mapping[str, Any], timeout: float | None) -> Object:
        if self.hold is not None:
            assert self.hold.wait(60)
        with self._changed:
            self.calls.append((verb, gvr, namespace, body))
            self.timeouts.append(timeout)
            self._changed.notify_all()
            errors = self.errors.get(gvr)
            error = errors.pop(0) if errors else None
        if error is not None:
            raise error
        return obj()

    def wait(self, count: int) -> list[tuple[str, GVR, str, Mapping[str, Any]]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, 60), f"only {len(self.calls)} calls came"
            return list(self.calls)


class FakeFence:
    def __init__(self) -> None:
        self.open = True

    def is_open(self) -> bool:
        return self.open


class Recording:
    """A recorder and everything around it."""

    def __init__(self, clock: FakeClock, **options: Any) -> None:
        self.clock = clock
        self.client = FakeClient()
        self.fence = FakeFence()
        self.cached: dict[ObjectRef, Object] = {}
        self.threads: list[threading.Thread] = []
        given: dict[str, Any] = {"program": "k8s-copier", **options}
        self.recorder = EventRecorder(
            self.client,
            instance="k8s-copier-host",
            fence=self.fence,
            clock=clock,
            find=self.cached.get,
            kind_of=lambda ref: "Kind",
            start_thread=self._start,
            **given,
        )

    def _start(self, _cluster: str, run: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=run, name="events", daemon=True))
        self.threads[-1].start()

    def say(self, note: str = "a note", about: ObjectRef | Object | None = None, **fields: Any) -> None:
        given = {"type": "Normal", "reason": "Copied", **fields}
        self.recorder.event(obj() if about is None else about, note=note, **given)

    def rest(self) -> None:
        """Block until the sending thread has nothing to do now."""
        while len(self.recorder):
            self.clock.block_until_waiting()
        # Whoever took the last one out no longer counts as waiting until all is done.
        self.clock.block_until_waiting()

    def bodies(self, count: int) -> list[Mapping[str, Any]]:
        return [body for _, _, _, body in self.client.wait(count)]

    def end(self) -> None:
        self.recorder.stop()
        for thread in self.threads:
            thread.join(0.05)
        self.clock.advance(10)
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def events(clock: FakeClock) -> Iterator[Recording]:
    recording = Recording(clock)
    recording.recorder.start()
    yield recording
    recording.end()


def dropped(reason: str) -> float:
    return metrics.counter("informers_events_dropped_total", "", ("reason",)).value(reason=reason)


def test_an_event_says_who_what_and_about_whom(events: Recording) -> None:
    events.say("copied data.x", type="Warning", reason="Copied", action="Copy", related=REF)

    ((verb, gvr, namespace, body),) = events.client.wait(1)
    assert (verb, gvr, namespace) == ("create", NEW, "default")
    assert body["metadata"]["name"].startswith("web.")
    assert {name: value for name, value in body.items() if name != "metadata"} == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2024-05-17T12:00:00.000000Z",
        "type": "Warning",
        "reason": "Copied",
        "action": "Copy",
        "note": "copied data.x",
        "regarding": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "namespace": "default",
            "name": "web",
            "uid": "uid-web",
            "resourceVersion": "7",
        },
        "related": {"apiVersion": "v1", "namespace": "default", "name": "web"},
        "reportingController": "k8s-copier",
        "reportingInstance": "k8s-copier-host",
    }


def test_the_thread_starts_with_the_first_event(events: Recording) -> None:
    before = list(events.threads)

    events.say()
    events.client.wait(1)

    assert before == []
    assert [thread.name for thread in events.threads] == ["events"]


def test_what_was_said_before_the_start_is_sent_after_it(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.say()
    before = list(recording.threads)

    recording.recorder.start()
    recording.client.wait(1)

    assert before == []
    recording.end()


def test_a_reference_is_completed_from_a_cache(events: Recording) -> None:
    events.cached[REF] = obj()

    events.say(about=REF)

    (body,) = events.bodies(1)
    assert (body["regarding"]["kind"], body["regarding"]["uid"]) == ("ConfigMap", "uid-web")


def test_a_reference_that_no_cache_has_gets_its_kind_from_discovery(events: Recording) -> None:
    events.say(about=REF)

    (body,) = events.bodies(1)
    assert body["regarding"] == {"apiVersion": "v1", "kind": "Kind", "namespace": "default", "name": "web"}


def test_events_of_a_cluster_scoped_object_are_in_default(events: Recording) -> None:
    events.say(about=obj("node-1", namespace=""))

    ((_, _, namespace, body),) = events.client.wait(1)
    assert namespace == "default"
    assert "namespace" not in body["regarding"]


def test_long_texts_are_cut_on_a_character_border(events: Recording) -> None:
    events.say("é" * 1000, reason="R" * 200, action="ä" * 200)

    (body,) = events.bodies(1)
    assert len(body["note"].encode()) <= 1024
    assert body["note"] == "é" * 510 + "…"
    assert (body["reason"], body["action"]) == ("R" * 128, "ä" * 64), "128 bytes, as the server counts"


def test_a_note_that_fits_is_not_cut(events: Recording) -> None:
    events.say("x" * 1024)

    assert events.bodies(1)[0]["note"] == "x" * 1024


def test_an_event_name_is_one_that_the_server_takes(events: Recording) -> None:
    events.say(about=obj("system:Node_x." + "y" * 250))

    (body,) = events.bodies(1)
    name = body["metadata"]["name"]
    assert len(name) <= 253
    assert name.startswith("system-node-x.yyy")


@pytest.mark.parametrize("error", [NotFoundError(status=404), ForbiddenError(status=403)])
def test_the_core_api_is_used_once_the_other_is_refused(events: Recording, error: Exception) -> None:
    events.client.errors[NEW] = [error]

    events.say("first")
    events.say("second")

    calls = events.client.wait(3)
    assert [gvr for _, gvr, _, _ in calls] == [NEW, CORE, CORE]
    body = calls[1][3]
    assert body["apiVersion"] == "v1"
    assert body["involvedObject"]["name"] == "web"
    assert (body["message"], body["count"], body["source"]) == ("first", 1, {"component": "k8s-copier"})
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2024-05-17T12:00:00Z"


def test_the_same_note_becomes_one_event_that_is_counted_up_once_a_minute(events: Recording, clock: FakeClock) -> None:
    events.say()
    events.client.wait(1)
    for _ in range(5):
        clock.advance(11)
        events.say()
    events.rest()
    during = len(events.client.calls)
    clock.advance(5)

    _, (verb, gvr, _, patch) = events.client.wait(2)
    assert during == 1
    assert (verb, gvr) == ("patch", NEW)
    assert patch == {"series": {"count": 6, "lastObservedTime": "2024-05-17T12:00:55.000000Z"}}


def test_the_core_api_is_counted_up_in_its_own_way(events: Recording, clock: FakeClock) -> None:
    events.client.errors[NEW] = [NotFoundError(status=404)]
    events.say()
    events.client.wait(2)
    events.say()
    events.rest()
    clock.advance(60)

    _, gvr, _, patch = events.client.wait(3)[2]
    assert gvr == CORE
    assert patch == {"count": 2, "lastTimestamp": "2024-05-17T12:00:00Z"}


@pytest.mark.parametrize(
    "other", [{"type": "Warning"}, {"reason": "Other"}, {"action": "Other"}, {"note": "other"}, {"about": obj("b")}]
)
def test_whatever_differs_is_another_event(events: Recording, other: dict[str, Any]) -> None:
    events.say()
    events.say(**other)

    assert [verb for verb, _, _, _ in events.client.wait(2)] == ["create", "create"]


def test_a_note_said_again_after_ten_minutes_is_a_new_event(events: Recording, clock: FakeClock) -> None:
    events.say()
    events.client.wait(1)
    events.rest()
    clock.advance(600)
    events.say()

    assert [verb for verb, _, _, _ in events.client.wait(2)] == ["create", "create"]


def test_an_event_that_has_expired_on_the_server_is_said_anew(events: Recording, clock: FakeClock) -> None:
    events.say()
    events.client.wait(1)
    events.say()
    events.rest()
    events.client.errors[NEW] = [NotFoundError(status=404)]
    clock.advance(60)

    calls = events.client.wait(3)
    assert [verb for verb, _, _, _ in calls] == ["create", "patch", "create"]
    assert calls[2][3]["series"]["count"] == 2
    assert calls[2][3]["metadata"]["name"] != calls[0][3]["metadata"]["name"]


def test_over_25_notes_for_one_reason_are_combined(clock: FakeClock) -> None:
    """The 26th and later ones are one series; another reason is not concerned."""
    recording = Recording(clock)
    recording.recorder.start()
    for number in range(24):
        recording.say(f"note {number}")
    recording.client.wait(24)
    recording.say("note 24")
    recording.client.wait(25)
    recording.rest()
    clock.advance(301)  # one more call is allowed, and nothing is forgotten

    for number in range(25, 30):
        recording.say(f"note {number}")
    body = recording.bodies(26)[25]
    recording.rest()

    assert body["note"] == "(combined from similar events)"
    recording.end()


def test_one_object_causes_25_calls_and_then_one_each_5_minutes(events: Recording, clock: FakeClock) -> None:
    before = dropped("rate")
    for number in range(30):
        events.say("x", reason=f"R{number}")
    events.client.wait(25)
    events.rest()
    burst = len(events.client.calls)
    events.say("x", about=obj("another"))
    events.client.wait(26)
    clock.advance(300)
    events.say("y", reason="R99")
    events.say("y", reason="R98")
    events.client.wait(27)
    events.rest()

    assert burst == 25
    assert len(events.client.calls) == 27
    assert dropped("rate") == before + 6


def test_a_full_buffer_drops_and_counts(clock: FakeClock) -> None:
    recording = Recording(clock)
    before = dropped("overflow")

    for number in range(1005):
        recording.say(str(number))

    assert len(recording.recorder) == 1000
    assert dropped("overflow") == before + 5


def test_saying_something_never_raises(clock: FakeClock) -> None:
    def broken(_ref: ObjectRef) -> Object | None:
        raise LookupError

    recording = Recording(clock)
    recording.recorder._find = broken
    before = dropped("failed")

    recording.say(about=REF)
    recording.recorder.event(None, type="Normal", reason="R", note="n")  # type: ignore[arg-type]  # a caller's bug

    assert dropped("failed") == before + 2


def test_saying_something_does_not_wait_for_the_server(events: Recording) -> None:
    events.client.hold = threading.Event()

    for number in range(100):
        events.say(str(number))

    assert len(events.recorder) >= 99
    events.client.hold.set()


def test_a_failure_is_tried_again_and_an_answer_that_was_lost_made_it(events: Recording, clock: FakeClock) -> None:
    events.client.errors[NEW] = [ServerError(status=500), ConnectionLost(), AlreadyExistsError(status=409)]
    before = metrics.counter("informers_events_sent_total", "").value()

    events.say()
    events.client.wait(1)
    events.rest()
    clock.advance(2)
    events.client.wait(2)
    events.rest()
    clock.advance(4)
    calls = events.client.wait(3)
    events.rest()

    assert len({body["metadata"]["name"] for _, _, _, body in calls}) == 1, "the same one"
    assert metrics.counter("informers_events_sent_total", "").value() == before + 1


def test_what_fails_for_long_is_given_up(events: Recording, clock: FakeClock) -> None:
    events.client.errors[NEW] = [ServerError(status=500)] * 20
    before = dropped("failed")

    events.say()
    for number in range(1, 11):
        events.client.wait(number)
        events.rest()
        clock.advance(60)
    events.rest()

    assert len(events.client.calls) == 10
    assert dropped("failed") == before + 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(InvalidError(status=422), "refused"), (NotLeaderError(), "fenced")],
)
def test_what_is_refused_is_not_tried_again(events: Recording, clock: FakeClock, error: Exception, reason: str) -> None:
    events.client.errors[NEW] = [error]
    before = dropped(reason)

    events.say()
    events.client.wait(1)
    events.rest()
    clock.advance(100)
    events.rest()

    assert len(events.client.calls) == 1
    assert dropped(reason) == before + 1


def test_a_namespace_where_both_are_forbidden_is_left_alone_for_ten_minutes(
    events: Recording, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    events.client.errors = {NEW: [ForbiddenError(status=403)] * 2, CORE: [ForbiddenError(status=403)] * 2}
    with caplog.at_level(logging.INFO, "informers.runtime.events"):
        events.say("first")
        events.client.wait(2)
        events.rest()
        events.say("second")
        events.rest()
        muted = len(events.client.calls)
        events.say("elsewhere", about=obj("x", namespace="other"))
        events.client.wait(4)
        events.rest()
        clock.advance(600)
        events.say("third")
        events.client.wait(5)

    assert muted == 2
    told = [record for record in caplog.records if vars(record)["informers_fields"]["namespace"] == "default"]
    assert [(record.levelname, record.message) for record in told] == [("INFO", "events cannot be written")]


def test_a_terminating_namespace_is_neither_tried_again_nor_muted(events: Recording) -> None:
    cause = Cause("NamespaceTerminating", "metadata.namespace", "")
    events.client.errors[NEW] = [ForbiddenError(status=403, causes=[cause])]

    events.say("first")
    events.client.wait(1)
    events.rest()
    events.say("second")

    assert [gvr for _, gvr, _, _ in events.client.wait(2)] == [NEW, NEW]


def test_nothing_is_sent_while_the_fence_is_closed(events: Recording) -> None:
    events.fence.open = False
    before = dropped("fenced")

    events.say("closed")
    events.fence.open = True
    events.say("open")

    assert [body["note"] for body in events.bodies(1)] == ["open"]
    assert dropped("fenced") == before + 1


def test_nothing_is_sent_once_the_fence_is_closed(clock: FakeClock) -> None:
    recording = Recording(clock)
    before = dropped("fenced")
    recording.say("in time")
    recording.fence.open = False

    recording.recorder.start()
    recording.rest()
    recording.fence.open = True
    recording.say("open again")

    assert [body["note"] for body in recording.bodies(1)] == ["open again"]
    assert dropped("fenced") == before + 1
    recording.end()


def test_a_dry_run_only_logs(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording(clock, dry_run=True)
    recording.recorder.start()

    with caplog.at_level(logging.INFO):
        recording.say("would copy")

    assert recording.threads == []
    (record,) = caplog.records
    assert vars(record)["informers_fields"]["note"] == "would copy"


def test_what_is_buffered_at_the_stop_is_sent(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.recorder.start()
    recording.client.hold = threading.Event()
    for number in range(3):
        recording.say(str(number))

    recording.recorder.stop()
    recording.client.hold.set()
    recording.threads[0].join(60)

    assert not recording.threads[0].is_alive(), "it ends as soon as all is sent"
    assert len(recording.client.calls) == 3


def test_what_failed_is_tried_again_within_2_s_of_the_stop(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("informers.runtime.events._RETRY", Backoff(1.5, 30.0, jitter=0.0))
    recording = Recording(clock)
    recording.recorder.start()
    recording.client.errors[NEW] = [ServerError(status=500)]
    recording.client.hold = threading.Event()
    before = dropped("stopped")
    recording.say("late")

    recording.recorder.stop()
    recording.client.hold.set()
    clock.block_until_waiting(due_in=1.5)
    clock.advance(1.5)
    recording.client.wait(2)

    recording.threads[0].join(60)
    assert not recording.threads[0].is_alive(), "it ends as soon as all is sent"
    assert dropped("stopped") == before


def test_what_cannot_be_sent_within_2_s_of_the_stop_is_dropped(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.recorder.start()
    recording.client.errors[NEW] = [ServerError(status=500)] * 20
    before = dropped("stopped")
    recording.say("never")
    recording.client.wait(1)
    recording.rest()

    recording.recorder.stop()
    clock.block_until_waiting(due_in=2)
    clock.advance(2)

    recording.threads[0].join(60)
    assert not recording.threads[0].is_alive()
    assert dropped("stopped") == before + 1


def test_a_server_that_does_not_answer_holds_the_end_up_by_one_call(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.recorder.start()
    recording.client.hold = threading.Event()
    for number in range(20):
        recording.say(reason=f"Reason{number}")
    before = dropped("stopped")

    recording.recorder.stop()
    clock.advance(2)
    recording.client.hold.set()
    recording.threads[0].join(60)

    assert not recording.threads[0].is_alive()
    assert len(recording.client.calls) <= 1
    assert dropped("stopped") >= before + 19


def test_after_the_stop_nothing_is_taken(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.recorder.start()
    recording.recorder.stop()
    before = dropped("stopped")

    recording.say()

    assert recording.threads == []
    assert dropped("stopped") == before + 1


def test_no_call_takes_longer_than_a_stop_allows(events: Recording) -> None:
    events.say()
    events.client.wait(1)

    assert events.client.timeouts == [2.0]


def test_what_cannot_be_said_ends_nothing(
    events: Recording, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever an Event of a caller's makes go wrong, the next one is sent."""
    events.client.errors[NEW] = [KeyError("hunter2")]
    before = dropped("failed")

    with caplog.at_level(logging.DEBUG, "informers.runtime.events"):
        events.say("first")
        events.client.wait(1)
        events.rest()
    events.say("second")

    assert [body["note"] for body in events.bodies(2)] == ["first", "second"]
    assert dropped("failed") == before + 1
    assert [vars(record)["informers_fields"]["error"] for record in caplog.records] == ["KeyError"]


def test_who_may_create_but_not_change_events_goes_on_creating(
    events: Recording, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    events.say("same")
    events.client.wait(1)
    events.client.errors = {NEW: [ForbiddenError(status=403, verb="patch")]}
    with caplog.at_level(logging.INFO, "informers.runtime.events"):
        events.say("same")
        events.rest()
        clock.advance(60)
        events.client.wait(2)
        events.rest()
        events.say("same")
        events.rest()
        clock.advance(60)
        events.rest()
        events.say("other")

    assert [verb for verb, _, _, _ in events.client.wait(3)] == ["create", "patch", "create"]
    (told,) = [vars(record)["informers_fields"] for record in caplog.records]
    assert told["missing"] == "patch events.events.k8s.io"


def test_an_object_that_was_silent_for_a_while_has_not_earned_a_new_burst(events: Recording, clock: FakeClock) -> None:
    for number in range(25):
        events.say("x", reason=f"R{number}")
    events.client.wait(25)
    events.rest()
    clock.advance(900)
    for number in range(30, 60):
        events.say("x", reason=f"R{number}")
    events.client.wait(28)
    events.rest()

    assert len(events.client.calls) == 28, "three more after 15 minutes"


@pytest.mark.parametrize(
    ("program", "told"),
    [("my program ", "my-program"), ("naïve/1", "na-ve-1"), ("---", "unnamed"), ("x" * 63, "x" * 63)],
)
def test_a_program_is_named_as_the_server_takes_it(clock: FakeClock, program: str, told: str) -> None:
    recording = Recording(clock, program=program)
    recording.recorder.start()
    recording.say()

    (body,) = recording.bodies(1)
    assert body["reportingController"] == told
    recording.end()


def test_a_thread_that_could_not_be_started_is_started_by_the_next_event(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.recorder.start()
    start, fails = recording._start, [RuntimeError("can't start new thread")]

    def refuse_once(cluster: str, run: Callable[[], None]) -> None:
        if fails:
            raise fails.pop()
        start(cluster, run)

    recording.recorder._start_thread = refuse_once

    recording.say("first")
    recording.say("second")

    assert [body["note"] for body in recording.bodies(2)] == ["first", "second"]
    recording.end()


def test_a_cluster_that_does_not_answer_keeps_no_events_of_another(events: Recording) -> None:
    events.client.frozen["away"] = threading.Event()
    there = ObjectRef(REF.gvr, REF.namespace, REF.name, "away")

    events.say("of the frozen one", about=there)
    events.say("of home")

    assert [body["note"] for body in events.bodies(1)] == ["of home"]
    events.client.frozen["away"].set()
    assert [body["note"] for body in events.bodies(2)] == ["of home", "of the frozen one"]


def test_a_cluster_whose_first_event_comes_late_is_stopped_too(clock: FakeClock) -> None:
    recording = Recording(clock)
    recording.recorder.start()
    recording.recorder.stop()
    before = dropped("stopped")

    recording.say("too late")

    assert dropped("stopped") == before + 1
    assert recording.threads == []
