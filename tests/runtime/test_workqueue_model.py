"""The queue against a naive model, and against real threads."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from informers.backoff import Backoff
from informers.clock import SystemClock
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.workqueue import INITIAL, NORMAL, WIDE, WorkQueue
from informers.testing.clock import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")
KEYS = [ObjectRef(CONFIGMAPS, "default", f"n{number}", cluster) for number in range(3) for cluster in ("", "b")]

keys = st.sampled_from(KEYS[:4])
priorities = st.sampled_from([NORMAL, WIDE, INITIAL])
seconds = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 3.5, 7.0])


class QueueMachine(RuleBasedStateMachine):
    """The model keeps plain lists and looks through all of them each time."""

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.queue = WorkQueue(clock=self.clock, retry=Backoff(1.0, 4.0, jitter=0.0))
        self.ready: list[tuple[int, ObjectRef]] = []  # in order of arrival
        self.again: dict[ObjectRef, int] = {}  # dirty while processing
        self.processing: set[ObjectRef] = set()
        self.due: list[tuple[float, int, ObjectRef]] = []
        self.failures: Counter[ObjectRef] = Counter()
        self.turns = 0
        self.is_shut = False

    def model_add(self, key: ObjectRef, priority: int) -> None:
        priority = max([priority, *(known for _, known, other in self.due if other == key)])
        self.due = [one for one in self.due if one[2] != key]
        if key in self.processing:
            self.again[key] = max(priority, self.again.get(key, priority))
            return
        known = [before for before, other in self.ready if other == key]
        if known and known[0] >= priority:
            return
        self.ready = [one for one in self.ready if one[1] != key]
        self.ready.append((priority, key))

    def model_add_after(self, key: ObjectRef, wait: float, priority: int) -> None:
        if wait <= 0 or key in self.again or any(other == key for _, other in self.ready):
            self.model_add(key, priority)
            return
        same = [one for one in self.due if one[2] == key]
        at = min([self.clock.monotonic() + wait, *(before for before, _, _ in same)])
        priority = max([priority, *(before for _, before, _ in same)])
        if same and same[0][0] == at:
            self.due[self.due.index(same[0])] = (at, priority, key)
        else:
            self.due = [one for one in self.due if one[2] != key]
            self.due.append((at, priority, key))

    def model_next(self) -> ObjectRef:
        classes = sorted({priority for priority, _ in self.ready}, reverse=True)
        if len(classes) == 1:
            self.turns = 0
            choice = self.ready[0]
        else:
            self.turns += 1
            wanted = [one for one in self.ready if one[0] == classes[0]]
            if self.turns == 10:
                self.turns = 0
                wanted = [one for one in self.ready if one[0] != classes[0]]
            choice = wanted[0]
        self.ready.remove(choice)
        return choice[1]

    @rule(key=keys, priority=priorities)
    def add(self, key: ObjectRef, priority: int) -> None:
        self.queue.add(key, priority=priority)
        if not self.is_shut:
            self.model_add(key, priority)

    @rule(many=st.lists(keys, max_size=6), priority=priorities)
    def add_many(self, many: list[ObjectRef], priority: int) -> None:
        self.queue.add_many(many, priority=priority)
        if not self.is_shut:
            for key in many:
                self.model_add(key, priority)

    @rule(key=keys, wait=seconds, priority=priorities)
    def add_after(self, key: ObjectRef, wait: float, priority: int) -> None:
        self.queue.add_after(key, wait, priority=priority)
        if not self.is_shut:
            self.model_add_after(key, wait, priority)

    @rule(key=keys, priority=priorities)
    def add_rate_limited(self, key: ObjectRef, priority: int) -> None:
        wait = self.queue.add_rate_limited(key, priority=priority)
        if not self.is_shut:
            self.failures[key] += 1
            assert wait == min(2.0 ** (self.failures[key] - 1), 4.0)
            self.model_add_after(key, wait, priority)

    @rule(key=keys)
    def forget(self, key: ObjectRef) -> None:
        self.queue.forget(key)
        del self.failures[key]

    @rule(wait=st.sampled_from([0.25, 0.5, 1.0, 4.0]))
    def advance(self, wait: float) -> None:
        self.clock.advance(wait)
        now = self.clock.monotonic()
        for _, priority, key in sorted((one for one in self.due if one[0] <= now), key=lambda one: one[0]):
            self.model_add(key, priority)

    @precondition(lambda self: self.ready)
    @rule()
    def get(self) -> None:
        wanted = self.model_next()

        item = self.queue.get()

        assert item is not None
        assert item.key == wanted
        assert item.key not in self.processing
        assert item.attempt == self.failures[item.key]
        self.processing.add(item.key)

    @precondition(lambda self: self.processing)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.processing)))
        self.queue.done(key)
        self.processing.remove(key)
        if key in self.again:
            self.ready.append((self.again.pop(key), key))

    @rule()
    def shut_down(self) -> None:
        self.queue.shut_down()
        self.is_shut = True
        self.due = []

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "queue"):
            idle = self.queue.is_idle()  # takes in what is due
            assert idle == (not self.ready and not self.processing)
            assert len(self.queue) == len(self.ready) + len(self.again)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.shut_down()
            while self.ready or self.processing:
                if self.ready:
                    self.get()
                    self.processing.clear()
                for key in list(self.queue._processing):
                    self.queue.done(key)
                    if key in self.again:
                        self.ready.append((self.again.pop(key), key))
                self.processing.clear()
            assert self.queue.get() is None


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns after nearly every step of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_each_key_added_after_its_last_start_is_started_again_and_never_twice_at_once() -> None:
    queue = WorkQueue(clock=SystemClock())
    versions = dict.fromkeys(KEYS, 0)  # what a change sets; each key has one writer
    seen = dict.fromkeys(KEYS, 0)
    running: Counter[ObjectRef] = Counter()
    overlaps: list[ObjectRef] = []

    def work() -> None:
        while (item := queue.get()) is not None:
            running[item.key] += 1
            if running[item.key] != 1:
                overlaps.append(item.key)
            seen[item.key] = versions[item.key]
            running[item.key] -= 1
            queue.done(item.key)

    def change(key: ObjectRef) -> None:
        for number in range(1, 201):
            versions[key] = number
            if number % 3 == 0:
                queue.add_after(key, 0.0005)
            elif number % 3 == 1:
                queue.add_many([key], priority=INITIAL)
            else:
                queue.add(key)
        queue.add(key)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    changers = [threading.Thread(target=change, args=(key,), daemon=True) for key in KEYS]
    for thread in (*workers, *changers):
        thread.start()
    for thread in changers:
        thread.join()
    queue.shut_down(drain=True)
    for thread in workers:
        thread.join()

    assert overlaps == []
    assert seen == versions


@pytest.mark.usefixtures("eager_switching")
def test_shutdown_at_any_moment_of_a_hand_over_leaves_no_thread_waiting() -> None:
    for _ in range(300):
        queue = WorkQueue(clock=SystemClock())
        barrier = threading.Barrier(3)

        def get(queue: WorkQueue = queue, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            while (item := queue.get()) is not None:
                queue.done(item.key)

        def add(queue: WorkQueue = queue, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            queue.add(KEYS[0])
            queue.add_after(KEYS[1], 0.0001)

        threads = [threading.Thread(target=get, daemon=True), threading.Thread(target=add, daemon=True)]
        for thread in threads:
            thread.start()
        barrier.wait()
        queue.shut_down(drain=True)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
