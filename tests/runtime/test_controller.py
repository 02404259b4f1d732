"""From changes to references, from outcomes to what comes next; most of it on the test's own thread."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from informers import metrics
from informers.api.client import Write, _lent
from informers.cache.store import Delta
from informers.clock import Stop
from informers.logs import bound_fields
from informers.meta.errors import (
    AlreadyExistsError,
    ConfigError,
    ConflictError,
    ConnectionLost,
    ForbiddenError,
    InformersError,
    NotFoundError,
    NotLeaderError,
    NotSyncedError,
    TerminalError,
)
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.controller import Controller, Options, Surroundings, What
from informers.runtime.gate import Gate
from informers.runtime.reconciler import Request, Result
from informers.runtime.workqueue import INITIAL, NORMAL, WIDE, Item
from informers.testing.clock import FakeClock

WIDGETS = GVR("example.com", "v1", "widgets")
CONFIGMAPS = GVR("", "v1", "configmaps")


def ref(name: str, gvr: GVR = WIDGETS, namespace: str = "default", cluster: str = "") -> ObjectRef:
    return ObjectRef(gvr, namespace, name, cluster)


A, B = ref("a"), ref("b")


def obj(name: str = "a", gvr: GVR = WIDGETS, *, rv: str = "1", kind: str = "Widget", **metadata: Any) -> Object:
    meta = {"name": name, "namespace": "default", "resourceVersion": rv, "uid": f"uid-{name}", **metadata}
    body = {"apiVersion": gvr.group_version, "kind": kind, "metadata": meta}
    return Object.parse(json.dumps(body).encode(), gvr)


class FakeStore:
    def __init__(self) -> None:
        self.now = "100"
        self.items: dict[str, Object] = {}
        self.callbacks: list[Callable[[], None]] = []

    def rv(self) -> str:
        return self.now

    def get(self, key: str) -> Object | None:
        return self.items.get(key)

    def selects(self, found: Object) -> bool:
        return True

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback) if callback in self.callbacks else None

    def advance(self, rv: str) -> None:
        self.now = rv
        for callback in list(self.callbacks):
            callback()


class Shown:
    def has_synced(self) -> bool:
        return True


class FakeSet:
    def __init__(self, gvr: GVR) -> None:
        self.store = FakeStore()
        self.now = "watching"
        self.handlers: list[tuple[Callable[[Delta], None], float]] = []
        self.callbacks: list[Callable[[], None]] = []
        self._gvr = gvr

    def gvr(self) -> GVR:
        return self._gvr

    def state(self) -> str:
        return self.now

    def has_synced(self) -> bool:
        return self.now in {"synced", "watching"}

    def problem(self) -> InformersError | None:
        return None

    def stores(self) -> Sequence[FakeStore]:
        return (self.store,)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback) if callback in self.callbacks else None

    def add_handler(self, handler: Callable[[Delta], None], *, resync: float = 0.0) -> Shown:
        self.handlers.append((handler, resync))
        return Shown()

    def become(self, state: str) -> None:
        self.now = state
        for callback in list(self.callbacks):
            callback()

    def tell(self, old: Object | None, new: Object | None, *, initial: bool = False) -> None:
        """Change the store, then tell handlers, as an informer does."""
        changed = new or old
        assert changed is not None
        if new is None:
            self.store.items.pop(changed.ref.key, None)
        else:
            self.store.items[changed.ref.key] = new
        for handler, _ in self.handlers:
            handler(Delta(changed.ref, old, new, initial=initial))


class FakeGraph:
    def __init__(self) -> None:
        self.wake: Callable[[Sequence[ObjectRef], int], None] = lambda _refs, _priority: None
        self.forgotten: list[ObjectRef] = []

    def subscribe(self, wake: Callable[[Sequence[ObjectRef], int], None]) -> object:
        self.wake = wake
        return None

    def forget(self, dependent: ObjectRef) -> None:
        self.forgotten.append(dependent)


class World:
    """Everything around one controller."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.stop = Stop(clock)
        self.gate = Gate(clock)
        self.sets = {WIDGETS: FakeSet(WIDGETS), CONFIGMAPS: FakeSet(CONFIGMAPS)}
        self.required: dict[What, bool] = {}
        self.live: dict[ObjectRef, Object | Exception] = {}
        self.reads: list[ObjectRef] = []
        self.threads: list[threading.Thread] = []
        self.answers: list[Any] = []
        self.requests: list[Request] = []

    def follow(self, what: What, required: bool) -> Mapping[str, FakeSet]:
        self.required[what] = required
        assert isinstance(what, GVR)
        return {"": self.sets[what]}

    def get(self, ref: ObjectRef) -> Object:
        self.reads.append(ref)
        found = self.live.get(ref) or NotFoundError(status=404, ref=ref)
        if isinstance(found, Exception):
            raise found
        return found

    def start_thread(self, name: str, run: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=run, name=name, daemon=True))
        self.threads[-1].start()

    def reconcile(self, request: Request) -> Any:  # tests give wrong answers too
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer(request) if callable(answer) else answer

    def controller(self, *, graph: FakeGraph | None = None, name: str = "c", **options: Any) -> Controller:
        surroundings = Surroundings(
            client=self,
            clock=self.clock,
            stop=self.stop,
            gate=self.gate,
            follow=self.follow,
            sets=lambda cluster: tuple(self.sets.values()) if cluster == "" else (),
            start_thread=self.start_thread,
        )
        made = Controller(
            name, self.reconcile, surroundings=surroundings, options=Options(**options), dependencies=graph
        )
        made.add_primary(WIDGETS)
        return made

    @property
    def widgets(self) -> FakeSet:
        return self.sets[WIDGETS]

    @property
    def configmaps(self) -> FakeSet:
        return self.sets[CONFIGMAPS]


@pytest.fixture
def world(clock: FakeClock) -> World:
    return World(clock)


def take(controller: Controller) -> Item:
    controller.queue.is_idle()  # takes in what is due
    assert len(controller.queue), "nothing is ready, and waiting would be for ever"
    item = controller.queue.get()
    assert item is not None
    return item


def queued(controller: Controller) -> list[tuple[ObjectRef, int]]:
    """Take everything that is ready, without reconciling it."""
    found = []
    while not controller.queue.is_idle():
        item = take(controller)
        controller.queue.done(item.key)
        found.append((item.key, item.priority))
    return found


def step(controller: Controller) -> str:
    return controller.process(take(controller))


def wrote(rv: str) -> Write:
    made = obj("child", CONFIGMAPS, rv=rv)
    return Write(made.ref, made, deleted=False, lost=False)


def writing(*writes: Write) -> Callable[[Request], None]:
    """What a reconcile does when it writes through a client."""

    def write(_request: Request) -> None:
        lent = _lent.get()
        assert lent is not None
        for one in writes:
            lent.wrote(one)

    return write


# From changes to references.


def test_a_changed_primary_is_enqueued(world: World) -> None:
    controller = world.controller()

    world.widgets.tell(None, obj("a"))
    world.widgets.tell(obj("b", rv="1"), obj("b", rv="2"))

    assert queued(controller) == [(A, NORMAL), (B, NORMAL)]


def test_a_deleted_primary_is_enqueued(world: World) -> None:
    controller = world.controller()

    world.widgets.tell(obj(), None)

    assert queued(controller) == [(A, NORMAL)]


def test_what_was_there_and_what_did_not_change_come_last(world: World) -> None:
    controller = world.controller()

    world.widgets.tell(None, obj("a"), initial=True)
    world.widgets.tell(obj("b"), obj("b"))

    assert queued(controller) == [(A, INITIAL), (B, INITIAL)]


def test_a_watched_object_enqueues_what_it_concerned_and_what_it_concerns(world: World) -> None:
    controller = world.controller()

    def named(found: Object) -> Iterable[ObjectRef]:
        yield found.ref.sibling(WIDGETS, name=found.labels["for"])

    controller.add_watch(CONFIGMAPS, named)
    world.configmaps.tell(obj("x", labels={"for": "a"}), obj("x", rv="2", labels={"for": "b"}))

    assert queued(controller) == [(A, NORMAL), (B, NORMAL)]


def test_what_one_state_leads_to_is_enqueued_though_the_other_raises(world: World) -> None:
    controller = world.controller()

    def named(found: Object) -> Iterable[ObjectRef]:
        yield found.ref.sibling(WIDGETS, name=found.labels["for"])

    controller.add_watch(CONFIGMAPS, named)
    with pytest.raises(KeyError):  # the informer logs and counts it
        world.configmaps.tell(obj("x", rv="1"), obj("x", rv="2", labels={"for": "b"}))

    assert queued(controller) == [(B, NORMAL)]


def test_references_of_other_clusters_are_taken_as_they_are(world: World) -> None:
    controller = world.controller()
    far = ref("a", cluster="b")

    controller.add_watch(CONFIGMAPS, lambda _: [far])
    world.configmaps.tell(None, obj("x"))

    assert queued(controller) == [(far, NORMAL)]


def owned(name: str = "x", *, uid: str, controller: bool = True, kind: str = "Widget", rv: str = "1") -> Object:
    owner = {"apiVersion": "example.com/v1", "kind": kind, "name": "a", "uid": uid, "controller": controller}
    return obj(name, CONFIGMAPS, kind="ConfigMap", rv=rv, ownerReferences=[owner])


def test_an_owned_object_enqueues_the_primary_that_controls_it(world: World) -> None:
    controller = world.controller()
    controller.add_owned(CONFIGMAPS)
    world.widgets.store.items["default/a"] = obj("a")

    world.configmaps.tell(None, owned(uid="uid-a"))
    added = queued(controller)
    world.configmaps.tell(owned(uid="uid-a"), None)

    assert added == [(A, NORMAL)]
    assert queued(controller) == [(A, NORMAL)]


def test_an_object_that_changes_its_owner_enqueues_both(world: World) -> None:
    controller = world.controller()
    controller.add_owned(CONFIGMAPS)
    world.widgets.store.items.update({"default/a": obj("a"), "default/b": obj("b")})
    before = owned(uid="uid-a")
    owner = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "b", "uid": "uid-b", "controller": True}
    after = obj("x", CONFIGMAPS, rv="2", ownerReferences=[owner])

    world.configmaps.tell(before, after)

    assert queued(controller) == [(A, NORMAL), (B, NORMAL)]


@pytest.mark.parametrize(
    "child",
    [owned(uid="of-the-one-before"), owned(uid="uid-a", controller=False), owned(uid="uid-a", kind="Gadget"), obj("x")],
    ids=["another uid", "not the controller", "another kind", "no owner"],
)
def test_whoever_does_not_control_it_is_not_enqueued(world: World, child: Object) -> None:
    controller = world.controller()
    controller.add_owned(CONFIGMAPS)
    world.widgets.store.items["default/a"] = obj("a")

    world.configmaps.tell(None, child)

    assert queued(controller) == []


def test_dependents_are_enqueued_at_the_priority_of_their_graph(world: World) -> None:
    graph = FakeGraph()
    controller = world.controller(graph=graph)

    graph.wake([A, B], WIDE)

    assert queued(controller) == [(A, WIDE), (B, WIDE)]


def test_a_predicate_filters_updates_of_the_primary(world: World) -> None:
    seen: list[tuple[str, str]] = []

    def predicate(old: Object, new: Object) -> bool:
        seen.append((old.resource_version, new.resource_version))
        return new.resource_version == "3"

    controller = world.controller(predicate=predicate)
    world.widgets.tell(obj(rv="1"), obj(rv="2"))
    filtered = queued(controller)
    world.widgets.tell(obj(rv="2"), obj(rv="3"))

    assert filtered == []
    assert queued(controller) == [(A, NORMAL)]
    assert seen == [("1", "2"), ("2", "3")]


@pytest.mark.parametrize(
    ("old", "new"),
    [(None, obj()), (obj(), None), (obj(rv="1"), obj(rv="2", deletionTimestamp="2024-05-17T12:00:00Z"))],
    ids=["addition", "deletion", "first deletion timestamp"],
)
def test_a_predicate_never_hides(world: World, old: Object | None, new: Object | None) -> None:
    controller = world.controller(predicate=lambda _old, _new: False)

    world.widgets.tell(old, new)

    assert queued(controller) == [(A, NORMAL)]


def test_a_predicate_may_hide_a_later_change_of_a_terminating_object(world: World) -> None:
    controller = world.controller(predicate=lambda _old, _new: False)
    gone = "2024-05-17T12:00:00Z"

    world.widgets.tell(obj(rv="1", deletionTimestamp=gone), obj(rv="2", deletionTimestamp=gone))

    assert queued(controller) == []


def test_a_predicate_that_raises_lets_the_change_pass(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_old: Object, _new: Object) -> bool:
        raise LookupError

    controller = world.controller(predicate=broken)
    for number in range(5):
        world.widgets.tell(obj(rv=str(number)), obj(rv=str(number + 1)))

    assert queued(controller) == [(A, NORMAL)]
    assert [record.message for record in caplog.records] == ["predicate failed"], "told once"


def test_a_runnable_can_enqueue_now_or_later(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    controller.enqueue(A)
    controller.enqueue(B, after=5)

    now = queued(controller)
    clock.advance(5)

    assert now == [(A, NORMAL)]
    assert queued(controller) == [(B, NORMAL)]


def test_resync_is_asked_for_primaries(world: World) -> None:
    controller = world.controller(resync=30.0)
    controller.add_watch(CONFIGMAPS, lambda _: ())

    assert [period for _, period in world.widgets.handlers] == [30.0]
    assert [period for _, period in world.configmaps.handlers] == [0.0]


@pytest.mark.parametrize("required", [True, False])
def test_only_what_is_required_is_waited_for(world: World, required: bool) -> None:
    world.widgets.now = "syncing"

    world.controller(required=required)

    assert world.required == {WIDGETS: required}
    assert world.gate.is_open() is not required


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 2.5}, "workers"),
        ({"timeout": 0}, "timeout"),
        ({"resync": 0.5}, "resync"),
        ({"resync": -1}, "resync"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"{told}: want .*, got"):
        Options(**options)


# From outcomes to what comes next.


@pytest.mark.parametrize("answer", [None, Result()])
def test_success_leaves_nothing_behind(world: World, answer: Result | None) -> None:
    controller = world.controller()
    world.answers = [answer]
    controller.enqueue(A)

    assert step(controller) == "success"
    assert controller.is_idle()
    assert not controller.holds(A)


def test_a_request_names_the_object_and_how_often_it_failed(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.answers = [RuntimeError(), RuntimeError(), None]
    came = clock.monotonic()
    controller.enqueue(A)

    for _ in range(3):
        step(controller)
        clock.advance(1)
    controller.enqueue(A)
    step(controller)

    assert [request.attempt for request in world.requests] == [0, 1, 2, 0]
    assert {request.ref for request in world.requests} == {A}
    assert world.requests[0].since == came


def test_requeue_after_looks_again_then(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.answers = [Result(requeue_after=60)]
    controller.queue.add(A, priority=INITIAL)

    outcome = step(controller)
    clock.advance(59)
    before = queued(controller)
    clock.advance(1)

    assert outcome == "requeue"
    assert before == []
    assert queued(controller) == [(A, INITIAL)], "at the priority it had"


def test_requeue_after_forgets_failures(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.answers = [RuntimeError(), Result(requeue_after=60)]
    controller.enqueue(A)

    step(controller)
    clock.advance(1)
    step(controller)

    assert controller.queue.failures(A) == 0


@pytest.mark.parametrize("answer", [Result(requeue_after=0), Result(requeue_after=float("nan")), "yes", 5])
def test_a_wrong_answer_counts_as_a_failure(world: World, answer: object) -> None:
    controller = world.controller()
    world.answers = [answer]
    controller.enqueue(A)

    assert step(controller) == "error"
    assert controller.queue.failures(A) == 1


@pytest.mark.parametrize("error", [RuntimeError("x"), GeneratorExit(), BaseException()])
def test_an_exception_is_logged_and_tried_again_later(
    world: World, clock: FakeClock, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    controller = world.controller()
    world.answers = [error]
    controller.queue.add(A, priority=INITIAL)

    outcome = step(controller)
    before = queued(controller)
    clock.advance(0.005)

    assert outcome == "error"
    assert [record.message for record in caplog.records] == ["reconcile failed, will try again"]
    assert before == []
    assert queued(controller) == [(A, INITIAL)]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_process_ends_the_worker_and_the_key_is_given_back(
    world: World, error: type[BaseException]
) -> None:
    controller = world.controller()
    world.answers = [error()]
    controller.enqueue(A)

    with pytest.raises(error):
        step(controller)

    assert controller.queue.is_idle()


def test_failures_of_a_key_are_told_once_a_state_and_ten_minutes(
    world: World, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    controller = world.controller()
    world.answers = [RuntimeError(), RuntimeError(), ValueError(), ValueError(), ValueError(), None, ValueError()]
    controller.enqueue(A)

    told = []
    for wait in (10, 10, 10, 601, 10, 10, 10):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            step(controller)
        told.append(len(caplog.records))
        clock.advance(wait)
        controller.enqueue(A)

    assert told == [1, 0, 1, 0, 1, 0, 1]


def test_a_terminal_error_is_told_and_not_tried_again(
    world: World, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    controller = world.controller()
    world.answers = [RuntimeError(), TerminalError("no such field")]
    controller.enqueue(A)
    step(controller)
    clock.advance(1)

    outcome = step(controller)
    clock.advance(1000)

    assert outcome == "terminal"
    assert caplog.records[-1].levelname == "ERROR"
    assert queued(controller) == []
    assert not controller.holds(A)


@pytest.mark.parametrize("error", [ConflictError(status=409), AlreadyExistsError(status=409)])
def test_a_conflict_is_tried_again_without_a_word(
    world: World, clock: FakeClock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    controller = world.controller()
    world.answers = [error]
    controller.enqueue(A)

    with caplog.at_level(logging.INFO):
        outcome = step(controller)
    clock.advance(0.005)

    assert outcome == "conflict"
    assert caplog.records == []
    assert queued(controller) == [(A, NORMAL)]


def test_who_does_not_lead_drops_the_key_and_counts_no_error(world: World, clock: FakeClock) -> None:
    controller = world.controller(name="not-leading")
    world.answers = [NotLeaderError()]
    controller.enqueue(A)

    step(controller)
    clock.advance(1000)

    assert queued(controller) == []
    assert not controller.holds(A)
    assert counted("not-leading") == {}


def counted(controller: str) -> dict[str, float]:
    """Return the reconciles of a controller by outcome."""
    series = metrics.counter("informers_reconciles_total", "", ("controller", "result"))
    return {labels[1]: value for labels, value in series.samples() if labels[0] == controller}


def test_outcomes_are_counted(world: World, clock: FakeClock) -> None:
    controller = world.controller(name="counting")
    world.answers = [
        None,
        Result(requeue_after=5),
        RuntimeError(),
        TerminalError(),
        ConflictError(status=409),
        NotSyncedError(),
    ]
    for number in range(6):
        controller.enqueue(ref(str(number)))
        step(controller)

    assert counted("counting") == {"success": 1, "requeue": 1, "error": 1, "terminal": 1, "conflict": 1}


def test_a_timeout_is_lent_to_every_call_inside(world: World, clock: FakeClock) -> None:
    deadlines: list[float | None] = []

    def note(_request: Request) -> None:
        lent = _lent.get()
        assert lent is not None
        deadlines.append(lent.deadline)

    for timeout in (None, 5.0):
        controller = world.controller(timeout=timeout)
        world.answers = [note]
        controller.enqueue(A)
        step(controller)

    assert deadlines == [None, clock.monotonic() + 5.0]
    assert _lent.get() is None


def test_running_past_the_timeout_is_counted_and_told(
    world: World, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    controller = world.controller(name="slow", timeout=5.0)
    world.answers = [lambda _: clock.advance(4.9), lambda _: clock.advance(5.1)]
    series = metrics.counter("informers_reconcile_timeouts_total", "", ("controller",))

    controller.enqueue(A)
    step(controller)
    in_time = series.value(controller="slow")
    controller.enqueue(A)
    step(controller)

    assert in_time == 0
    assert series.value(controller="slow") == 1
    assert [record.message for record in caplog.records] == ["reconcile took longer than its timeout"]


def test_an_object_that_always_takes_too_long_is_told_once_in_ten_minutes_and_forgotten_with_it(
    world: World, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    controller = world.controller(timeout=5.0)
    world.widgets.store.items["default/a"] = obj("a")
    world.answers = [lambda _: clock.advance(6)] * 3

    def look() -> list[str]:
        caplog.clear()
        controller.enqueue(A)
        step(controller)
        return [record.levelname for record in caplog.records]

    with caplog.at_level(logging.WARNING):
        first, second = look(), look()
        clock.advance(600)
        third = look()
        world.widgets.store.items.clear()
        look()

    assert (first, second, third) == (["WARNING"], [], ["WARNING"])
    assert len(controller._throttle) == 0


def test_nothing_starts_after_the_stop(world: World) -> None:
    controller = world.controller()
    controller.enqueue(A)
    item = take(controller)

    world.stop.set()

    assert controller.process(item) == "stopped"
    assert world.requests == []


def test_a_stop_drops_what_waits_to_be_reconciled(world: World) -> None:
    controller = world.controller()
    controller.enqueue(A)
    controller.enqueue(B, after=5)

    controller.stop()

    assert controller.queue.get() is None
    assert not controller.holds(A)
    assert not controller.holds(B)


def test_what_fails_by_the_stop_is_no_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    controller = world.controller(name="stopping")

    def cut(_request: Request) -> None:
        world.stop.set()
        raise ConnectionLost

    world.answers = [cut]
    controller.enqueue(A)
    with caplog.at_level(logging.INFO):
        step(controller)

    assert caplog.records == []
    assert counted("stopping") == {}


def test_the_last_reconcile_of_a_deleted_object_leaves_nothing(world: World, clock: FakeClock) -> None:
    graph = FakeGraph()
    controller = world.controller(graph=graph)
    world.widgets.store.items["default/a"] = obj("a")
    world.answers = [RuntimeError(), RuntimeError()]
    controller.enqueue(A)
    for _ in range(2):
        step(controller)
        clock.advance(1)
    assert graph.forgotten == []
    world.widgets.store.items.clear()

    step(controller)

    assert graph.forgotten == [A]
    assert not controller.holds(A)
    assert len(controller._throttle) == 0
    assert controller._failing == {}


def test_edges_of_an_object_that_is_there_or_not_known_to_be_gone_are_kept(world: World) -> None:
    graph = FakeGraph()
    controller = world.controller(graph=graph)
    world.widgets.store.items["default/a"] = obj("a")
    controller.enqueue(A)
    step(controller)
    world.widgets.now = "syncing"
    world.widgets.store.items.clear()
    controller.enqueue(A)
    step(controller)

    assert graph.forgotten == []


def test_a_controller_can_keep_the_text_of_its_own_mistakes_out_of_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What an exception of its own quotes may be a secret: it raises another one, that tells the type and the place."""

    def careful(_request: Request) -> None:
        try:
            int("hunter" + str(2))
        except ValueError as error:
            place = f"{type(error).__name__} in careful"
        raise InformersError(place)

    controller = world.controller()
    world.answers = [careful]
    controller.enqueue(A)
    with caplog.at_level(logging.DEBUG):
        step(controller)

    assert "ValueError in careful" in caplog.text
    assert "hunter2" not in caplog.text


# Own writes.


def test_no_reconcile_starts_before_the_cache_shows_the_last_ones_writes(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    came = clock.monotonic()
    controller.queue.add(A, priority=INITIAL)

    parked = step(controller)
    again = queued(controller)
    clock.advance(1)
    world.configmaps.store.advance("105")
    outcome = step(controller)

    assert parked == "parked"
    assert again == [], "nothing polls"
    assert outcome == "success"
    assert len(world.requests) == 2
    assert world.requests[1].since == came, "measured from when the change came in"
    assert controller.is_idle()


def test_an_object_that_comes_back_waits_for_what_was_written_when_it_had_gone(world: World) -> None:
    """Its children are being deleted; the cache still shows them."""
    controller = world.controller()
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)  # gone
    step(controller)

    world.widgets.tell(None, obj("a", uid="another"))
    came_back = step(controller)
    world.configmaps.store.advance("105")
    shown = step(controller)

    assert (came_back, shown) == ("parked", "success")


def test_what_an_object_wrote_that_is_gone_is_forgotten_once_it_is_shown(world: World) -> None:
    controller = world.controller()
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    before = controller.holds(A)

    world.configmaps.store.advance("105")

    assert before
    assert not controller.holds(A)
    assert controller._own is not None
    assert len(controller._own) == 0
    assert world.configmaps.store.callbacks == []


def test_other_keys_go_on_meanwhile(world: World) -> None:
    controller = world.controller()
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)
    controller.enqueue(B)

    assert [step(controller), step(controller)] == ["parked", "success"]


def test_a_parked_key_is_not_idle(world: World) -> None:
    controller = world.controller()
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)
    step(controller)

    assert not controller.is_idle()
    assert controller.parked() == (A,)


def test_changes_of_a_parked_key_park_it_again_and_raise_it(world: World) -> None:
    controller = world.controller()
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    controller.queue.add(A, priority=INITIAL)
    step(controller)

    controller.queue.add(A)
    again = step(controller)
    world.configmaps.store.advance("105")

    assert again == "parked"
    assert queued(controller) == [(A, NORMAL)]


def test_waits_and_times_of_keys_are_counted(world: World, clock: FakeClock) -> None:
    controller = world.controller(name="timed")
    waits = metrics.counter("informers_own_write_waits_total", "", ("controller",))
    queue_seconds, work_seconds = (
        metrics.histogram(f"informers_{name}_seconds", "", ("controller",)) for name in ("queue", "work")
    )
    world.answers = [writing(wrote("105")), lambda _: clock.advance(3)]
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)
    clock.advance(2)

    assert step(controller) == "parked"
    world.configmaps.store.advance("105")
    assert step(controller) == "success"

    assert waits.value(controller="timed") == 1
    assert (queue_seconds.value(controller="timed").count, queue_seconds.value(controller="timed").sum) == (2, 2)
    assert (work_seconds.value(controller="timed").count, work_seconds.value(controller="timed").sum) == (2, 3)


def test_a_write_that_does_not_show_is_counted_after_5_s_and_still_waited_for(world: World, clock: FakeClock) -> None:
    controller = world.controller(name="unshown")
    series = metrics.counter("informers_own_write_waits_expired_total", "", ("controller",))
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)
    step(controller)

    clock.advance(4.9)
    before = (series.value(controller="unshown"), len(queued(controller)))
    clock.advance(0.1)
    outcome = step(controller)
    clock.advance(9.9)
    meanwhile = queued(controller)
    clock.advance(0.1)
    later = step(controller)
    world.configmaps.store.advance("105")

    assert list(before) == [0, 0]
    assert (outcome, later) == ("parked", "parked")
    assert meanwhile == [], "with backoff"
    assert series.value(controller="unshown") == 2
    assert len(world.requests) == 1, "never reconciled before"
    assert step(controller) == "success"


def test_a_cache_that_does_not_follow_blocks_nobody(world: World) -> None:
    controller = world.controller()
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    world.configmaps.now = "forbidden"
    controller.enqueue(A)

    assert step(controller) == "success"


def test_own_writes_can_be_left_out(world: World) -> None:
    controller = world.controller(own_writes=False)
    world.answers = [writing(wrote("105"))]
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)

    assert step(controller) == "success"


LOST = Write(ref("child", CONFIGMAPS), None, deleted=False, lost=True)


def test_a_lost_answer_is_read_live_once_and_becomes_a_floor(world: World) -> None:
    controller = world.controller()
    world.widgets.store.items["default/a"] = obj("a")
    world.answers = [writing(LOST)]
    world.live[LOST.ref] = obj("child", CONFIGMAPS, rv="105")
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)

    parked = step(controller)
    controller.enqueue(A)
    still = step(controller)
    world.configmaps.store.advance("105")
    outcome = step(controller)

    assert (parked, still, outcome) == ("parked", "parked", "success")
    assert world.reads == [LOST.ref]


def test_a_lost_answer_whose_object_is_absent_waits_for_its_absence(world: World) -> None:
    controller = world.controller()
    world.widgets.store.items["default/a"] = obj("a")
    world.answers = [writing(LOST)]
    world.configmaps.store.items["default/child"] = obj("child", CONFIGMAPS)
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)

    parked = step(controller)
    del world.configmaps.store.items["default/child"]
    world.configmaps.store.advance("101")

    assert parked == "parked"
    assert step(controller) == "success"


def test_a_lost_answer_that_cannot_be_read_now_is_read_later(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.widgets.store.items["default/a"] = obj("a")
    world.answers = [writing(LOST)]
    world.live[LOST.ref] = ConnectionLost()
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)

    parked = step(controller)
    world.live[LOST.ref] = obj("child", CONFIGMAPS, rv="100")
    clock.advance(0.005)

    assert parked == "parked"
    assert step(controller) == "success"
    assert world.reads == [LOST.ref] * 2


@pytest.mark.parametrize("error", [ForbiddenError(status=403), ConfigError("no such cluster"), LookupError("a bug")])
def test_a_lost_answer_that_cannot_ever_be_read_blocks_nobody_and_ends_no_worker(
    world: World, error: Exception
) -> None:
    controller = world.controller()
    world.widgets.store.items["default/a"] = obj("a")
    world.answers = [writing(LOST)]
    world.live[LOST.ref] = error
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)

    assert step(controller) == "success"


def test_the_lost_answer_of_an_object_that_is_gone_is_found_out_without_another_change(world: World) -> None:
    controller = world.controller()
    world.answers = [writing(LOST)]
    world.live[LOST.ref] = obj("child", CONFIGMAPS, rv="105")
    controller.enqueue(A)
    step(controller)

    parked = step(controller)
    world.configmaps.store.advance("105")
    outcome = step(controller)

    assert (parked, outcome) == ("parked", "success")
    assert not controller.holds(A)


# Caches that have not synced.


def test_a_cache_that_has_not_synced_parks_the_key_until_it_has(world: World) -> None:
    controller = world.controller(name="unsynced")
    world.configmaps.now = "syncing"
    world.answers = [NotSyncedError("configmaps")]
    controller.enqueue(A)

    step(controller)
    before = (queued(controller), controller.is_idle(), controller.parked())
    world.configmaps.become("watching")
    outcome = step(controller)

    assert before == ([], False, (A,))
    assert outcome == "success"
    assert counted("unsynced") == {"success": 1}, "it was no failure"
    assert world.requests[1].attempt == 0
    assert controller.is_idle()
    assert world.configmaps.callbacks == [], "nobody listens any more"


def test_all_keys_parked_for_a_sync_are_woken_by_it(world: World) -> None:
    controller = world.controller()
    world.configmaps.now = "syncing"
    world.answers = [NotSyncedError()] * 3
    for one in (A, B, ref("c")):
        controller.enqueue(one)
        step(controller)

    world.configmaps.become("watching")

    assert {key for key, _ in queued(controller)} == {A, B, ref("c")}


def test_a_sync_wakes_only_the_keys_that_wait_for_it(world: World) -> None:
    controller = world.controller()
    world.configmaps.now = world.widgets.now = "syncing"
    world.answers = [NotSyncedError(cluster="", gvr=CONFIGMAPS), NotSyncedError(cluster="", gvr=WIDGETS)]
    for one in (A, B):
        controller.enqueue(one)
        step(controller)

    world.configmaps.become("watching")
    first = queued(controller)
    world.widgets.become("watching")

    assert [key for key, _ in first] == [A]
    assert [key for key, _ in queued(controller)] == [B]


def test_a_key_that_comes_to_wait_for_another_sync_is_woken_by_that(world: World) -> None:
    controller = world.controller()
    world.configmaps.now = world.widgets.now = "syncing"
    world.answers = [NotSyncedError(cluster="", gvr=CONFIGMAPS), NotSyncedError(cluster="", gvr=WIDGETS)]
    controller.enqueue(A)
    step(controller)
    world.configmaps.become("watching")
    step(controller)

    world.widgets.become("watching")

    assert [key for key, _ in queued(controller)] == [A]
    assert world.configmaps.callbacks == []


def test_what_another_cluster_lacks_is_waited_for_there(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.configmaps.now = "syncing"
    world.answers = [NotSyncedError(cluster="b", gvr=CONFIGMAPS)]
    controller.enqueue(A)
    step(controller)

    world.configmaps.become("watching")
    at_once = queued(controller)
    clock.advance(0.5)

    assert at_once == [], "the sync in the home cluster is not what it waits for"
    assert step(controller) == "success"


def test_a_parked_key_is_tried_after_half_a_minute_in_any_case(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.configmaps.now = "syncing"
    world.answers = [NotSyncedError()]
    controller.enqueue(A)
    step(controller)

    clock.advance(29)
    before = queued(controller)
    clock.advance(1)

    assert before == []
    assert step(controller) == "success"


def test_a_body_that_is_missing_while_all_has_synced_is_looked_for_soon(world: World, clock: FakeClock) -> None:
    controller = world.controller()
    world.answers = [NotSyncedError()] * 2
    controller.enqueue(A)
    step(controller)

    clock.advance(0.5)
    step(controller)
    clock.advance(0.5)
    before = queued(controller)
    clock.advance(0.5)

    assert before == []
    assert step(controller) == "success"


@pytest.mark.parametrize("state", ["forbidden", "unserved"])
def test_a_kind_that_is_refused_does_not_slow_down_the_wait_for_a_body(
    world: World, clock: FakeClock, state: str
) -> None:
    controller = world.controller()
    world.configmaps.now = state
    world.answers = [NotSyncedError()]
    controller.enqueue(A)
    step(controller)

    clock.advance(0.5)
    clock.advance(0.5)

    assert step(controller) == "success"


def test_a_sync_between_looking_and_listening_is_not_missed(world: World) -> None:
    class Sudden(FakeSet):
        def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
            self.become("watching")
            return super().on_change(callback)

    world.sets[CONFIGMAPS] = Sudden(CONFIGMAPS)
    world.configmaps.now = "syncing"
    controller = world.controller()
    world.answers = [NotSyncedError()]
    controller.enqueue(A)

    step(controller)

    assert step(controller) == "success"
    assert world.configmaps.callbacks == []


@pytest.mark.parametrize("error", [RuntimeError(), ConflictError(status=409)])
def test_a_parked_key_that_fails_then_is_parked_no_more(world: World, error: Exception) -> None:
    controller = world.controller()
    world.configmaps.now = "syncing"
    world.answers = [NotSyncedError(), error]
    controller.enqueue(A)
    step(controller)
    controller.enqueue(A)
    step(controller)

    assert controller.parked() == ()


def test_a_reconcile_that_hangs_delays_neither_the_informer_nor_another_controller(world: World) -> None:
    """Memory is bounded by the keys, however many events come."""
    entered, leave = threading.Event(), threading.Event()

    def hold(_request: Request) -> None:
        entered.set()
        assert leave.wait(60)

    stuck = world.controller(name="stuck")
    current = world.controller(name="current")
    world.answers = [hold]
    stuck.start()
    world.widgets.tell(None, obj("n0"))
    assert entered.wait(60)

    for number in range(10_000):
        world.widgets.tell(obj(f"n{number % 100}", rv=str(number)), obj(f"n{number % 100}", rv=str(number + 1)))
    seen = queued(current)
    waiting = len(stuck.queue)
    leave.set()
    stuck.queue.shut_down(drain=True)
    world.threads[0].join(60)

    assert len(seen) == 100
    assert waiting == 100


# Threads and lines.


def test_workers_have_names_wait_for_the_gate_and_end_with_the_queue(world: World, clock: FakeClock) -> None:
    world.widgets.now = "syncing"
    done = threading.Event()
    controller = world.controller(workers=2)
    world.answers = [lambda _: done.set()]
    controller.enqueue(A)
    controller.start()
    clock.block_until_waiting(2)
    before = list(world.requests)

    world.widgets.become("watching")
    assert done.wait(60)
    controller.stop()
    for thread in world.threads:
        thread.join(60)

    assert before == []
    assert [thread.name for thread in world.threads] == ["worker/c-1", "worker/c-2"]
    assert not any(thread.is_alive() for thread in world.threads)


def test_workers_that_wait_for_the_gate_end_with_the_stop(world: World, clock: FakeClock) -> None:
    world.widgets.now = "syncing"
    controller = world.controller()
    controller.start()
    clock.block_until_waiting()

    world.stop.set()
    world.gate.signal()

    world.threads[0].join(60)
    assert not world.threads[0].is_alive()


def test_a_key_is_never_in_two_workers_and_changes_meanwhile_lead_to_one_more(world: World) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold(_request: Request) -> None:
        entered.set()
        assert leave.wait(60)

    controller = world.controller(workers=2)
    world.answers = [hold]
    controller.start()
    world.widgets.tell(None, obj(rv="1"))
    assert entered.wait(60)

    for number in range(2, 5):
        world.widgets.tell(obj(rv=str(number - 1)), obj(rv=str(number)))
    during = len(world.requests)
    leave.set()
    controller.queue.shut_down(drain=True)
    for thread in world.threads:
        thread.join(60)

    assert during == 1
    assert len(world.requests) == 2


def test_every_line_inside_a_reconcile_names_it_and_none_after(world: World, clock: FakeClock) -> None:
    found: list[dict[str, object]] = []

    def look(_request: Request) -> None:
        found.append(bound_fields())
        found.append(bound_fields())

    controller = world.controller(name="naming")
    world.widgets.store.items["default/a"] = obj("a")
    world.answers = [look, look]
    controller.enqueue(A)
    controller.start()
    controller.enqueue(B)
    controller.queue.shut_down(drain=True)
    for thread in world.threads:
        thread.join(60)

    first, again, second, _ = found
    assert first == again
    assert {name: first[name] for name in first if name != "reconcile"} == {
        "controller": "naming",
        "cluster": "",
        "resource": "widgets.v1.example.com",
        "namespace": "default",
        "name": "a",
        "uid": "uid-a",
        "attempt": 0,
    }
    assert (second["name"], second["uid"]) == ("b", "")
    assert first["reconcile"] != second["reconcile"]
    assert bound_fields() == {}
