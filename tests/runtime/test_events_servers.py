"""What the recorder sends is taken by both API servers, and what they refuse is taken as it is meant."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from informers import metrics
from informers.api.client import Client
from informers.api.fence import Fence
from informers.meta.errors import InformersError
from informers.meta.objects import JSON, Object
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.events import EventRecorder
from informers.testing.clients import open_client
from informers.testing.clock import FakeClock
from informers.testing.servers import Server

CONFIGMAPS = GVR("", "v1", "configmaps")
NEW = GVR("events.k8s.io", "v1", "events")
CORE = GVR("", "v1", "events")

_dropped = metrics.counter("informers_events_dropped_total", "", ("reason",))


class Recording:
    """A recorder that writes to a server, and what the server has then."""

    def __init__(self, server: Server, clock: FakeClock) -> None:
        self.server = server
        self.clock = clock
        self.client = server.client()
        self._opened = ExitStack()
        self._recorders: list[EventRecorder] = []
        self._threads: list[threading.Thread] = []

    def recorder(self, client: Client | None = None, *, program: str = "k8s-copier") -> EventRecorder:
        made = EventRecorder(
            client or self.client,
            program=program,
            instance="host-" + "ü" * 200,
            fence=Fence(),
            clock=self.clock,
            find=lambda _ref: None,
            kind_of=lambda _ref: "Role",
            start_thread=self._start,
        )
        made.start()
        self._recorders.append(made)
        return made

    def client_of(self, kubeconfig: Path) -> Client:
        return self._opened.enter_context(open_client(kubeconfig))

    def configmap(self, name: str = "a", **metadata: JSON) -> Object:
        body = {"metadata": {"name": name, **metadata}}
        return self.client.create(CONFIGMAPS, body, namespace=self.server.namespace, field_manager="test")

    def rest(self) -> None:
        """Block until all that was said is sent or dropped."""
        while any(len(recorder) for recorder in self._recorders):
            self.clock.block_until_waiting(timeout=60)
        self.clock.block_until_waiting(timeout=60)

    def events(self, gvr: GVR = NEW, *, namespace: str = "") -> list[Object]:
        return list(self.client.list(gvr, namespace=namespace or self.server.namespace))

    def end(self) -> None:
        for recorder in self._recorders:
            recorder.stop()
        for thread in self._threads:
            thread.join(0.05)
        self.clock.advance(10)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        self._opened.close()

    def _start(self, _cluster: str, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run, name="events", daemon=True))
        self._threads[-1].start()


@pytest.fixture
def recording(server: Server, clock: FakeClock) -> Iterator[Recording]:
    found = Recording(server, clock)
    yield found
    found.end()


def say(recorder: EventRecorder, about: Object | ObjectRef, note: str = "a note", **given: Any) -> None:
    recorder.event(about, **{"type": "Normal", "reason": "Copied", **given}, note=note)


def test_what_is_said_again_is_counted_up_once_a_minute(recording: Recording, clock: FakeClock) -> None:
    recorder, about = recording.recorder(), recording.configmap()

    for minute in range(3):
        for _ in range(minute + 1):
            say(recorder, about)
        recording.rest()
        clock.advance(60)
        recording.rest()

    (event,) = recording.events()
    assert event.get("series", "count") == 6
    assert event.get("series", "lastObservedTime") == "2024-05-17T12:02:00.000000Z"
    assert event.get("eventTime") == "2024-05-17T12:00:00.000000Z"


def test_who_may_write_only_the_older_events_writes_and_counts_those(recording: Recording, clock: FakeClock) -> None:
    server, about = recording.server, recording.configmap()
    if server.real is None:
        fault = server.faults.status(code=403, path="/apis/events.k8s.io/*")
        client = recording.client
    else:
        rules = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]
        client = recording.client_of(
            server.real.user(f"older-{server.namespace}", namespaced={server.namespace: rules})
        )
    recorder = recording.recorder(client)

    say(recorder, about, related=about.ref.sibling(CONFIGMAPS, name="b"))
    say(recorder, about)
    recording.rest()
    clock.advance(60)
    recording.rest()
    if server.real is None:
        fault.remove()

    (event,) = recording.events(CORE)
    assert event.get("count") in {2, 3}
    assert event.get("message") == "a note"
    assert event.get("involvedObject", "uid") == about.uid
    assert event.get("lastTimestamp") == "2024-05-17T12:00:00Z"
    assert event.get("reportingComponent") == "k8s-copier"


def test_texts_of_any_length_and_width_are_taken(recording: Recording) -> None:
    recorder, about = recording.recorder(), recording.configmap()

    for char in ("x", "ü", "語", "🙂", "\n", "\ud800"):
        say(recorder, about, note=char * 3000, reason="R" * 300, action=char * 300)
    say(recorder, about, note="", reason="", action="")
    recording.rest()

    found = recording.events()
    assert len(found) == 7
    assert {str(event.get("reason")) for event in found} == {"R" * 128, "Unknown"}
    assert max(len(str(event.get("action")).encode()) for event in found) == 128
    assert max(len(str(event.get("note")).encode()) for event in found) <= 1024
    assert {str(event.get("reportingInstance"))[:5] for event in found} == {"host-"}


@pytest.mark.parametrize("program", ["my program", "naïve/1", "---", "x" * 63])
def test_any_name_of_a_program_is_taken(recording: Recording, program: str) -> None:
    say(recording.recorder(program=program), recording.configmap())
    recording.rest()

    assert len(recording.events()) == 1


@pytest.mark.parametrize("name", ["system:Node_x.-y", "A" * 253, "a.b-c", ":"])
def test_objects_of_any_name_can_be_told_about(recording: Recording, name: str) -> None:
    roles = GVR("rbac.authorization.k8s.io", "v1", "roles")

    say(recording.recorder(), ObjectRef(roles, recording.server.namespace, name))
    recording.rest()

    (event,) = recording.events()
    assert event.get("regarding") == {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "namespace": recording.server.namespace,
        "name": name,
    }


def test_events_about_what_has_no_namespace_are_in_default(recording: Recording) -> None:
    roles = GVR("rbac.authorization.k8s.io", "v1", "clusterroles")
    name = f"of-{recording.server.namespace}"

    say(recording.recorder(), ObjectRef(roles, "", name))
    recording.rest()

    found = [one for one in recording.events(namespace="default") if one.get("regarding", "name") == name]
    assert len(found) == 1


def test_a_namespace_that_goes_or_is_gone_takes_none_and_is_not_asked_again(
    recording: Recording, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    about = recording.configmap(finalizers=["example.com/held"])
    namespace = ObjectRef(GVR("", "v1", "namespaces"), "", recording.server.namespace)
    recording.client.delete(namespace)
    recorder = recording.recorder()
    forbidden, absent = _dropped.value(reason="forbidden"), _dropped.value(reason="not found")

    with caplog.at_level(logging.INFO, "informers.runtime.events"):
        say(recorder, about)
        say(recorder, about, note="another")
        say(recorder, ObjectRef(CONFIGMAPS, f"never-{recording.server.namespace}", "x"))
        recording.rest()
        clock.advance(120)
        recording.rest()

    recording.client.patch(about.ref, {"metadata": {"finalizers": None}}, field_manager="test")
    assert _dropped.value(reason="forbidden") == forbidden + 2
    assert _dropped.value(reason="not found") == absent + 1
    assert caplog.records == []


def test_who_may_write_no_events_is_told_once(
    recording: Recording, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server, about = recording.server, recording.configmap()
    if server.real is None:
        server.faults.deny(resource="events", verb="create")
        client = recording.client
    else:
        client = recording.client_of(server.real.user(f"mute-{server.namespace}", namespaced={}))
    recorder = recording.recorder(client)

    with caplog.at_level(logging.INFO, "informers.runtime.events"):
        for number in range(20):
            say(recorder, about, note=str(number))
        recording.rest()

    (record,) = caplog.records
    assert vars(record)["informers_fields"] == {
        "cluster": "",
        "namespace": server.namespace,
        "missing": "create events.events.k8s.io",
    }
    with pytest.raises(InformersError):
        client.create(NEW, {"metadata": {"name": "x"}}, namespace=server.namespace, field_manager="test")
