"""The queue's promises, one by one; all time is the test's."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from informers.backoff import Backoff
from informers.clock import SystemClock
from informers.meta.errors import ConfigError, InformersError
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.workqueue import INITIAL, NORMAL, WIDE, Item, WorkQueue
from informers.testing.clock import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")


def key(name: str, cluster: str = "", namespace: str = "default") -> ObjectRef:
    return ObjectRef(CONFIGMAPS, namespace, name, cluster)


A, B, C, D = map(key, "abcd")


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue:
    return WorkQueue(clock=clock)


def take(queue: WorkQueue) -> Item:
    item = queue.get()
    assert item is not None
    return item


def take_all(queue: WorkQueue) -> list[ObjectRef]:
    """Take and give back everything that is ready."""
    taken = []
    while not queue.is_idle():
        item = take(queue)
        queue.done(item.key)
        taken.append(item.key)
    return taken


class Worker:
    """A thread that takes one item."""

    def __init__(self, queue: WorkQueue, finished: SimpleQueue[Item | None] | None = None) -> None:
        self.got: list[Item | None] = []
        self._queue = queue
        self._finished: SimpleQueue[Item | None] = finished or SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.got.append(self._queue.get())
        self._finished.put(self.got[0])

    def join(self) -> Item | None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the worker still waits"
        return self.got[0]

    def is_waiting(self) -> bool:
        return self._thread.is_alive()


def test_keys_come_out_in_the_order_they_came_in(queue: WorkQueue) -> None:
    for one in (B, A, C):
        queue.add(one)

    assert take_all(queue) == [B, A, C]


def test_adding_a_key_that_waits_changes_nothing(queue: WorkQueue) -> None:
    for one in (A, B, A, A):
        queue.add(one)

    assert len(queue) == 2
    assert take_all(queue) == [A, B]


def test_item_added_while_processing_is_processed_once_more(queue: WorkQueue) -> None:
    queue.add(A)
    take(queue)

    queue.add(A)
    queue.add(A)
    queue.add(B)

    assert take(queue).key == B, "a key that is being processed is skipped, not waited for"
    queue.done(A)
    assert take_all_but_processing(queue) == [A]


def take_all_but_processing(queue: WorkQueue) -> list[ObjectRef]:
    taken = []
    while len(queue):
        item = take(queue)
        queue.done(item.key)
        taken.append(item.key)
    return taken


def test_a_key_given_back_unchanged_is_not_processed_again(queue: WorkQueue) -> None:
    queue.add(A)
    queue.done(take(queue).key)

    assert queue.is_idle()
    assert not queue.holds(A)


def test_giving_back_what_no_worker_has_raises(queue: WorkQueue) -> None:
    queue.add(A)

    with pytest.raises(InformersError, match=r"done configmaps\.v1 default/a: no worker has it"):
        queue.done(A)


def test_get_waits_for_a_key(queue: WorkQueue, clock: FakeClock) -> None:
    worker = Worker(queue)
    clock.block_until_waiting()

    queue.add(A)

    item = worker.join()
    assert item is not None
    assert item.key == A


def test_after_shut_down_what_is_in_order_is_handed_out_and_nothing_is_added(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add_after(B, 5)

    queue.shut_down()
    queue.add(C)
    queue.add_many([C])
    queue.add_after(C, 5)
    queue.add_rate_limited(C)

    assert take(queue).key == A
    assert queue.get() is None
    assert queue.get() is None
    assert not queue.holds(C)


def test_what_was_added_while_processing_before_shut_down_is_handed_out(queue: WorkQueue) -> None:
    queue.add(A)
    take(queue)
    queue.add(A)

    queue.shut_down()
    queue.done(A)

    assert take(queue).key == A


def test_shut_down_can_drop_what_waits(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add(B)
    take(queue)
    queue.add(A)

    queue.shut_down(drop=True)
    queue.done(A)

    assert queue.get() is None
    assert queue.is_idle()


def test_shut_down_leaves_no_thread_waiting(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 100)
    workers = [Worker(queue) for _ in range(3)]
    clock.block_until_waiting(3)

    queue.shut_down()

    assert [worker.join() for worker in workers] == [None] * 3


def test_draining_waits_until_all_is_taken_and_given_back(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A)
    queue.add(B)
    take(queue)
    drainer = threading.Thread(target=queue.shut_down, kwargs={"drain": True}, daemon=True)
    drainer.start()
    clock.block_until_waiting()

    queue.done(A)
    assert drainer.is_alive()
    take(queue)
    assert drainer.is_alive()
    queue.done(B)

    drainer.join(60)
    assert not drainer.is_alive()


def test_draining_what_is_empty_returns_at_once(queue: WorkQueue) -> None:
    queue.shut_down(drain=True)

    assert queue.get() is None


def test_a_delayed_key_comes_when_it_is_due_and_not_before(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 10)
    worker = Worker(queue)
    clock.block_until_waiting()
    clock.advance(9.9)
    assert worker.is_waiting()

    clock.advance(0.1)

    item = worker.join()
    assert item is not None
    assert item.key == A


def test_the_earliest_due_time_of_a_key_counts(queue: WorkQueue, clock: FakeClock) -> None:
    for seconds in (10, 5, 5.5, 20):
        queue.add_after(A, seconds)
    clock.advance(5)

    assert take_all(queue) == [A]
    clock.advance(100)
    assert queue.is_idle(), "the later times are gone"


@pytest.mark.parametrize("seconds", [0, -1, -math.inf])
def test_no_delay_adds_at_once(queue: WorkQueue, seconds: float) -> None:
    queue.add_after(A, seconds)

    assert take_all(queue) == [A]


def test_a_delay_that_is_not_a_number_raises(queue: WorkQueue) -> None:
    with pytest.raises(ConfigError, match="want seconds, got nan"):
        queue.add_after(A, math.nan)


def test_adding_now_takes_the_later_time_away(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 10)
    queue.add(A)

    assert take_all(queue) == [A]
    clock.advance(10)
    assert queue.is_idle()


def test_a_time_given_while_processing_is_kept(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A)
    take(queue)
    queue.add_after(A, 10)
    queue.done(A)
    assert queue.is_idle()

    clock.advance(10)

    assert take_all(queue) == [A]


def test_a_key_that_becomes_due_while_processing_is_processed_once_more(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A)
    take(queue)
    queue.add_after(A, 10)
    clock.advance(10)
    assert len(queue) == 0

    queue.done(A)

    assert take_all(queue) == [A]


def test_a_jump_of_the_wall_clock_changes_nothing(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 10)

    clock.jump_wall(1e6)
    assert queue.is_idle()
    clock.jump_wall(-1e7)
    clock.advance(10)

    assert take_all(queue) == [A]


def test_keys_becoming_due_are_placed_by_the_time_they_became_due(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 3)
    queue.add_after(B, 1)
    clock.advance(2)
    queue.add(C)
    clock.advance(2)
    queue.add(D)

    assert take_all(queue) == [B, C, A, D]


def test_an_earlier_due_time_wakes_a_worker_that_waits_for_a_later_one(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 100)
    workers = [Worker(queue) for _ in range(2)]
    clock.block_until_waiting(2)

    queue.add_after(B, 10)
    clock.block_until_waiting(1, due_in=10)
    clock.advance(10)
    clock.block_until_waiting(1, due_in=90)  # the other one watches the time now
    clock.advance(90)

    assert {item.key for worker in workers if (item := worker.join())} == {A, B}


def test_the_worker_that_watches_the_time_hands_the_watch_over_when_it_gets_a_key(
    queue: WorkQueue, clock: FakeClock
) -> None:
    queue.add_after(A, 100)
    finished: SimpleQueue[Item | None] = SimpleQueue()
    first = Worker(queue, finished)
    clock.block_until_waiting(1, due_in=100)
    second = Worker(queue, finished)
    clock.block_until_waiting(2)

    queue.add(B)
    finished.get(timeout=60)
    clock.block_until_waiting(1, due_in=100)
    clock.advance(100)

    assert {item.key for worker in (first, second) if (item := worker.join())} == {A, B}


def test_all_that_is_due_at_once_wakes_as_many_workers(queue: WorkQueue, clock: FakeClock) -> None:
    workers = [Worker(queue) for _ in range(3)]
    clock.block_until_waiting(3)
    for one in (A, B, C):
        queue.add_after(one, 5)
    clock.block_until_waiting(3)
    clock.block_until_waiting(1, due_in=5)

    clock.advance(5)

    assert {item.key for worker in workers if (item := worker.join())} == {A, B, C}


def test_whoever_watched_the_time_wakes_the_others() -> None:
    """The clock of the machine wakes one thread only, other than the test's."""
    queue = WorkQueue(clock=SystemClock())
    workers = [Worker(queue) for _ in range(3)]

    for one in (A, B, C):
        queue.add_after(one, 0.02)

    assert {item.key for worker in workers if (item := worker.join())} == {A, B, C}


def test_only_one_worker_watches_the_time(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 5)
    workers = [Worker(queue) for _ in range(3)]
    clock.block_until_waiting(3)

    with pytest.raises(TimeoutError, match="found 1"):
        clock.block_until_waiting(2, due_in=5, timeout=0.01)

    queue.shut_down()
    for worker in workers:
        worker.join()


def test_many_keys_are_added_at_once_in_their_order(queue: WorkQueue) -> None:
    queue.add(B)
    queue.add_many([A, B, C, A])

    assert take_all(queue) == [B, A, C]


def test_adding_many_wakes_as_many_workers_as_there_are_keys(queue: WorkQueue, clock: FakeClock) -> None:
    finished: SimpleQueue[Item | None] = SimpleQueue()
    workers = [Worker(queue, finished) for _ in range(3)]
    clock.block_until_waiting(3)

    queue.add_many([A, B])
    for _ in range(2):
        finished.get(timeout=60)

    clock.block_until_waiting(1)
    queue.shut_down()
    assert {item.key for worker in workers if (item := worker.join())} == {A, B}


def test_adding_many_wakes_no_more_workers_than_there_are_keys() -> None:
    """A worker that is woken in vain would go back to wait: who waits is counted."""

    class Counting(FakeClock):
        woken = 0

        def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
            found = super().wait(condition, timeout)
            self.woken += 1  # the condition is held
            return found

    counting = Counting()
    queue = WorkQueue(clock=counting)
    finished: SimpleQueue[Item | None] = SimpleQueue()
    workers = [Worker(queue, finished) for _ in range(5)]
    counting.block_until_waiting(5)

    queue.add_many([A, B])
    for _ in range(2):
        finished.get(timeout=60)
    counting.block_until_waiting(3)
    woken = counting.woken
    queue.shut_down()
    for worker in workers:
        worker.join()

    assert woken == 2


def test_many_keys_may_come_from_an_iterator_that_looks_at_the_queue(queue: WorkQueue) -> None:
    """It would deadlock if it ran under the lock."""

    def keys() -> Iterator[ObjectRef]:
        yield A
        queue.add(B)
        yield C

    queue.add_many(keys())

    assert take_all(queue) == [B, A, C]


def test_higher_priority_comes_first_and_first_in_first_out_within_one(queue: WorkQueue) -> None:
    queue.add(A, priority=INITIAL)
    queue.add(B, priority=WIDE)
    queue.add(C)
    queue.add(D)

    assert take_all(queue) == [C, D, B, A]


def test_a_raised_key_goes_to_the_end_of_its_new_class(queue: WorkQueue) -> None:
    queue.add(A, priority=INITIAL)
    queue.add(B)
    queue.add(A)
    queue.add(C)

    assert take_all(queue) == [B, A, C]


def test_adding_at_a_lower_priority_lowers_nothing(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add(B)
    queue.add(A, priority=INITIAL)

    item = take(queue)

    assert (item.key, item.priority) == (A, NORMAL)


def test_a_key_raised_while_processing_comes_back_at_the_higher_priority(queue: WorkQueue) -> None:
    queue.add(A, priority=INITIAL)
    take(queue)
    queue.add(A, priority=INITIAL)
    queue.add(A, priority=WIDE)
    queue.add(B, priority=INITIAL)
    queue.done(A)

    item = take(queue)

    assert (item.key, item.priority) == (A, WIDE)


def test_a_delayed_key_keeps_its_priority(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_after(A, 5, priority=INITIAL)
    queue.add_after(B, 5, priority=INITIAL)
    queue.add_after(B, 10, priority=WIDE)
    clock.advance(5)

    assert [(item.key, item.priority) for item in (take(queue), take(queue))] == [(B, WIDE), (A, INITIAL)]


def test_a_delayed_key_added_at_a_lower_priority_keeps_the_higher(queue: WorkQueue) -> None:
    queue.add_after(A, 5)
    queue.add(A, priority=INITIAL)

    assert take(queue).priority == NORMAL


def test_a_waiting_key_is_raised_by_a_delayed_add(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A, priority=INITIAL)
    queue.add_after(A, 5)

    assert take(queue).priority == NORMAL
    queue.done(A)
    clock.advance(5)
    assert queue.is_idle()


def test_every_tenth_turn_goes_to_a_lower_class(queue: WorkQueue) -> None:
    low = [key(f"low-{number}") for number in range(3)]
    queue.add_many(low, priority=INITIAL)
    queue.add_many([key(f"high-{number}") for number in range(40)])

    order = take_all(queue)

    assert [order.index(one) for one in low] == [9, 19, 29]


def test_of_several_lower_classes_none_starves(queue: WorkQueue) -> None:
    queue.add(A, priority=INITIAL)
    queue.add_many([key(f"wide-{number}") for number in range(10)], priority=WIDE)
    queue.add(B, priority=INITIAL)
    queue.add_many([key(f"high-{number}") for number in range(140)])

    order = take_all(queue)

    assert [order.index(one) for one in (A, key("wide-0"), B, key("wide-1"))] == [9, 19, 29, 39]


def test_since_is_the_time_of_the_oldest_change_not_yet_looked_at(queue: WorkQueue, clock: FakeClock) -> None:
    start = clock.monotonic()
    queue.add(A)
    clock.advance(1)
    queue.add(A)
    clock.advance(1)

    first = take(queue)
    queue.add(A)
    clock.advance(1)
    queue.add(A)
    queue.done(A)
    second = take(queue)

    assert (first.since, second.since) == (start, start + 2)


def test_since_of_a_key_put_back_is_kept(queue: WorkQueue, clock: FakeClock) -> None:
    start = clock.monotonic()
    clock.advance(5)
    queue.add_after(A, 1, since=start)
    queue.add(B)
    queue.add(B, since=start)
    clock.advance(5)

    assert [take(queue).since for _ in range(2)] == [start, start]


def test_since_of_a_due_key_is_when_it_became_due(queue: WorkQueue, clock: FakeClock) -> None:
    due = clock.monotonic() + 5
    queue.add_after(A, 5)
    clock.advance(50)

    assert take(queue).since == due


def test_retries_double_from_5_ms_to_5_minutes(queue: WorkQueue) -> None:
    delays = [queue.add_rate_limited(A) for _ in range(20)]

    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[16:] == [300.0] * 4
    assert queue.failures(A) == 20


def test_retries_follow_the_option(clock: FakeClock) -> None:
    queue = WorkQueue(clock=clock, retry=Backoff(2.0, 3.0, jitter=0.0))

    assert [queue.add_rate_limited(A) for _ in range(3)] == [2.0, 3.0, 3.0]


def test_no_number_of_failures_overflows(queue: WorkQueue) -> None:
    queue._failures[A.identity] = 10**9

    assert queue.add_rate_limited(A) == 300.0


def test_forgetting_a_key_leaves_nothing_of_it(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add_rate_limited(A)
    clock.advance(1)
    item = take(queue)
    assert item.attempt == 1

    queue.forget(A)
    queue.done(A)

    assert not queue.holds(A)
    assert queue.add_rate_limited(A) == 0.005


def test_retries_of_one_cluster_share_a_bucket(queue: WorkQueue) -> None:
    """1,000 at once, then 200 a second; another cluster has its own."""
    delays = [queue.add_rate_limited(key(f"{number}")) for number in range(1400)]

    assert delays[:1000] == [0.005] * 1000
    assert delays[1199] == pytest.approx(1.0)
    assert delays[1399] == pytest.approx(2.0)
    assert queue.add_rate_limited(key("a", cluster="b")) == 0.005


def test_the_bucket_fills_again(queue: WorkQueue, clock: FakeClock) -> None:
    for number in range(1200):
        queue.add_rate_limited(key(f"{number}"))

    clock.advance(2)

    assert queue.add_rate_limited(A) == 0.005
    clock.advance(1000)
    assert [queue.add_rate_limited(key(f"x{number}")) for number in range(1001)][-1] == pytest.approx(0.005)


def test_the_later_of_both_limits_counts(queue: WorkQueue) -> None:
    for number in range(1000):
        queue.add_rate_limited(key(f"{number}"))
    for _ in range(10):
        queue.add_rate_limited(A)

    assert queue.add_rate_limited(A) == 0.005 * 2**10


def test_heap_entries_left_behind_do_not_pile_up(queue: WorkQueue) -> None:
    for number in range(10_000):
        queue.add_after(A, 1e6 - number)

    assert len(queue._heap) <= 65


def test_the_same_key_in_two_clusters_are_two(queue: WorkQueue) -> None:
    queue.add(key("a"))
    queue.add(key("a", cluster="b"))

    assert len(queue) == 2


def test_clusters_take_turns_and_inside_a_cluster_its_namespaces(queue: WorkQueue) -> None:
    queue.add_many([key(f"{number}", namespace="many") for number in range(4)])
    queue.add_many([key("0", namespace="few"), key("0", "b"), key("1", "b")])

    order = [(one.cluster, one.namespace, one.name) for one in take_all(queue)]

    assert order == [
        ("", "many", "0"),
        ("b", "default", "0"),
        ("", "few", "0"),
        ("b", "default", "1"),
        ("", "many", "1"),
        ("", "many", "2"),
        ("", "many", "3"),
    ]


def test_a_key_of_a_quiet_cluster_or_namespace_waits_for_one_turn_of_a_busy_one(queue: WorkQueue) -> None:
    queue.add_many([key(f"{number}") for number in range(1000)])
    take(queue)

    queue.add(key("quiet", "b"))
    queue.add(key("quiet", namespace="other"))
    order = [take(queue).key for _ in range(4)]

    assert order.index(key("quiet", "b")) <= 1
    assert order.index(key("quiet", namespace="other")) <= 3


def test_turns_are_taken_inside_each_priority(queue: WorkQueue) -> None:
    queue.add_many([key("0", "b"), key("1", "b")])
    queue.add(A, priority=INITIAL)

    assert take_all(queue) == [key("0", "b"), key("1", "b"), A]


def test_clusters_and_namespaces_that_come_and_go_leave_nothing_behind(queue: WorkQueue) -> None:
    for number in range(300):
        queue.add(key("a", f"cluster-{number % 7}", f"namespace-{number}"), priority=INITIAL)
        queue.add(key("a", f"cluster-{number % 7}", f"namespace-{number}"))
    queue.suspend("cluster-1")
    queue.add(key("b", "cluster-1"), priority=INITIAL)
    queue.add(key("b", "cluster-1"))
    queue.resume("cluster-1")

    take_all(queue)

    assert not queue._classes
    assert not queue._last_turns
    assert not queue._suspended
    assert not queue._dirty


def test_keys_of_a_suspended_cluster_wait_and_keep_their_order(queue: WorkQueue) -> None:
    queue.add_many([key("0", "b"), A, key("1", "b")])

    queue.suspend("b")
    queue.suspend("b")
    queue.add(key("2", "b"))
    queue.add(key("3", "b"), priority=INITIAL)
    queue.add(key("1", "b"))
    got = take(queue)
    queue.done(got.key)

    assert got.key == A
    assert len(queue) == 4
    assert queue.depths() == {NORMAL: 3, INITIAL: 1}
    assert not queue.is_idle()
    queue.resume("b")
    queue.resume("b")
    assert take_all(queue) == [key(name, "b") for name in "0123"]


def test_a_key_raised_while_its_cluster_is_suspended_comes_with_its_new_class(queue: WorkQueue) -> None:
    queue.suspend("b")
    queue.add_many([key("0", "b"), key("1", "b")], priority=INITIAL)
    queue.add(key("1", "b"))

    queue.resume("b")

    assert take_all(queue) == [key("1", "b"), key("0", "b")]


def test_a_key_with_a_worker_when_its_cluster_is_suspended_waits_once_given_back(queue: WorkQueue) -> None:
    queue.add(key("0", "b"))
    got = take(queue)
    queue.suspend("b")
    queue.add(got.key)
    queue.done(got.key)
    queue.add(A)

    assert take(queue).key == A
    queue.resume("b")
    assert take(queue).key == got.key


def test_resuming_wakes_as_many_workers_as_there_are_keys(queue: WorkQueue, clock: FakeClock) -> None:
    queue.suspend("b")
    queue.add_many([key("0", "b"), key("1", "b")])
    workers = [Worker(queue), Worker(queue)]
    clock.block_until_waiting(2)

    queue.resume("b")

    assert {item.key for worker in workers if (item := worker.join())} == {key("0", "b"), key("1", "b")}


def test_shutting_down_ends_a_suspension_so_that_all_can_be_drained(queue: WorkQueue) -> None:
    queue.suspend("b")
    queue.add(key("0", "b"))

    queue.shut_down()
    queue.suspend("b")

    assert take_all(queue) == [key("0", "b")]
    assert queue.get() is None


def test_no_cluster_has_more_workers_than_the_limit(clock: FakeClock) -> None:
    queue = WorkQueue(clock=clock, most_of_a_cluster=2)
    queue.add_many([key(f"{number}", "b") for number in range(4)])
    first, second = take(queue), take(queue)
    worker = Worker(queue)
    clock.block_until_waiting()

    queue.add(A)
    assert worker.join() == (A, NORMAL, clock.monotonic(), 0)

    other = Worker(queue)
    clock.block_until_waiting()
    queue.done(first.key)
    got = other.join()
    assert got is not None
    assert got.key == key("2", "b")
    for each in (second.key, got.key, A):
        queue.done(each)
    assert take_all(queue) == [key("3", "b")]
    assert not queue._suspended
    assert not queue._busy


def test_a_suspended_cluster_stays_so_when_one_of_its_workers_is_free(clock: FakeClock) -> None:
    queue = WorkQueue(clock=clock, most_of_a_cluster=1)
    queue.add_many([key("0", "b"), key("1", "b")])
    first = take(queue)
    queue.suspend("b")
    queue.add(A)

    queue.done(first.key)

    assert take(queue).key == A
    queue.resume("b")
    assert take(queue).key == key("1", "b")
    queue.resume("b")
    queue.add(B)
    queue.done(A)
    assert take(queue).key == B


def test_at_a_shutdown_no_limit_keeps_keys_from_being_drained(clock: FakeClock) -> None:
    queue = WorkQueue(clock=clock, most_of_a_cluster=1)
    queue.add_many([key("0", "b"), key("1", "b")])
    take(queue)

    queue.shut_down()

    assert take(queue).key == key("1", "b")
    queue.done(key("0", "b"))
    queue.done(key("1", "b"))
    assert queue.get() is None
