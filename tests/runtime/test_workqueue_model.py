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
KEYS = [
    ObjectRef(CONFIGMAPS, namespace, f"n{number}", cluster)
    for number in range(2)
    for cluster in ("", "b")
    for namespace in ("x", "y")
]

keys = st.sampled_from(KEYS[:6])
clusters = st.sampled_from(["", "b"])
priorities = st.sampled_from([NORMAL, WIDE, INITIAL])
seconds = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 3.5, 7.0])


class QueueMachine(RuleBasedStateMachine):
    """The model keeps plain lists and looks through all of them each time."""

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.queue = WorkQueue(clock=self.clock, retry=Backoff(1.0, 4.0, jitter=0.0))
        self.ready: list[tuple[int, ObjectRef]] = []  # in order of arrival
        self.suspended: dict[str, None] = {}  # in the order in which they were
        # When each class, cluster of a class and namespace of a cluster last had its turn, or came to have keys.
        self.last_turn: dict[tuple[object, ...], int] = {}
        self.turn = 0
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
        self.model_remove(key)
        self.model_place(key, priority)

    def model_place(self, key: ObjectRef, priority: int) -> None:
        self.ready.append((priority, key))
        for group in self.groups((priority, key)):
            self.model_turn(group, only_if_new=True)

    def model_turn(self, group: tuple[object, ...], *, only_if_new: bool = False) -> None:
        if not only_if_new or group not in self.last_turn:
            self.turn += 1
            self.last_turn[group] = self.turn

    def model_remove(self, key: ObjectRef) -> None:
        self.ready = [one for one in self.ready if one[1] != key]
        self.model_clean_up()

    def model_clean_up(self) -> None:
        present = {group for one in self.ready for group in self.groups(one)}
        self.last_turn = {group: turn for group, turn in self.last_turn.items() if group in present}

    def groups(self, one: tuple[int, ObjectRef]) -> list[tuple[object, ...]]:
        """What has turns: a class, a cluster in it, a namespace in that; a suspended cluster is in no class."""
        priority, key = one
        inside = (priority, key.cluster, key.namespace)
        return [inside] if key.cluster in self.suspended else [(priority,), inside[:2], inside]

    def available(self) -> list[tuple[int, ObjectRef]]:
        return [one for one in self.ready if one[1].cluster not in self.suspended]

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
        ready = self.available()
        classes = sorted({priority for priority, _ in ready}, reverse=True)
        chosen = classes[0]
        self.turns = self.turns + 1 if len(classes) > 1 else 0
        if self.turns == 10:
            self.turns = 0
            chosen = min(classes[1:], key=lambda priority: self.last_turn[(priority,)])
            self.model_turn((chosen,))
        ready = [one for one in ready if one[0] == chosen]
        cluster = min((key.cluster for _, key in ready), key=lambda name: self.last_turn[chosen, name])
        ready = [one for one in ready if one[1].cluster == cluster]
        namespace = min((key.namespace for _, key in ready), key=lambda name: self.last_turn[chosen, cluster, name])
        choice = next(one for one in ready if one[1].namespace == namespace)
        self.model_turn((chosen, cluster))
        self.model_turn((chosen, cluster, namespace))
        self.model_remove(choice[1])
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

    @precondition(lambda self: not self.is_shut)
    @rule(cluster=clusters)
    def suspend(self, cluster: str) -> None:
        self.queue.suspend(cluster)
        self.suspended.setdefault(cluster)
        self.model_clean_up()

    @rule(cluster=clusters)
    def resume(self, cluster: str) -> None:
        self.queue.resume(cluster)
        self.model_resume(cluster)

    def model_resume(self, cluster: str) -> None:
        self.suspended.pop(cluster, None)
        for one in self.ready:
            for group in self.groups(one):
                self.model_turn(group, only_if_new=True)

    @precondition(lambda self: self.available())
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
            self.model_place(key, self.again.pop(key))

    @rule()
    def shut_down(self) -> None:
        self.queue.shut_down()
        for cluster in list(self.suspended):
            self.model_resume(cluster)
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
            self.shut_down()
            while self.ready or self.processing:
                if self.ready:
                    self.get()
                for key in sorted(self.processing):
                    self.queue.done(key)
                    self.processing.remove(key)
                    if key in self.again:
                        self.model_place(key, self.again.pop(key))
            assert self.queue.get() is None


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(stateful_step_count=40, deadline=None)


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns after nearly every step of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.usefixtures("eager_switching")
def test_each_key_added_after_its_last_start_is_started_again_and_never_twice_at_once(most: int | None) -> None:
    """Of one cluster, `most` are with workers at once."""
    queue = WorkQueue(clock=SystemClock(), most_of_a_cluster=most)
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
        for number in range(1, 101):
            versions[key] = number
            if number % 10 == 0:
                queue.suspend(key.cluster)
                queue.resume(key.cluster)
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
