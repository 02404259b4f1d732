from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from informers.cache.firstsyncs import FirstSyncs
from informers.clock import Stop

if TYPE_CHECKING:
    from informers.testing.clock import FakeClock


class Crowd:
    """Threads that ask for a turn and keep it until told."""

    def __init__(self, turns: FirstSyncs, stop: Stop) -> None:
        self.turns = turns
        self.stop = stop
        self.go = threading.Event()
        self.got: list[str] = []
        self.changed = threading.Condition()
        self.threads: list[threading.Thread] = []

    def ask(self, name: str) -> None:
        thread = threading.Thread(target=self._take, args=(name,))
        self.threads.append(thread)
        thread.start()

    def _take(self, name: str) -> None:
        with self.turns.turn(self.stop) as turn:
            with self.changed:
                self.got.append(name if turn is not None else f"{name} stopped")
                self.changed.notify_all()
            assert self.go.wait(60)

    def wait(self, *names: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(self.got) == set(names), 60), self.got

    def end(self) -> None:
        self.go.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


def test_a_place_where_nothing_comes_for_five_seconds_is_lent(clock: FakeClock) -> None:
    crowd = Crowd(FirstSyncs(2, clock), Stop(clock))
    crowd.ask("a")
    crowd.wait("a")
    clock.advance(3)
    crowd.ask("b")
    crowd.wait("a", "b")
    crowd.ask("c")
    clock.block_until_waiting(due_in=2)

    clock.advance(2)
    crowd.wait("a", "b", "c")

    crowd.end()


def test_a_list_that_goes_on_keeps_its_place(clock: FakeClock) -> None:
    turns, stop = FirstSyncs(1, clock), Stop(clock)
    crowd = Crowd(turns, stop)
    with turns.turn(stop) as turn:
        assert turn is not None
        crowd.ask("late")
        for _ in range(5):
            clock.block_until_waiting(due_in=5)
            turn.renew()
            clock.advance(4)
        clock.block_until_waiting(due_in=1)
        assert crowd.got == []
    crowd.wait("late")

    crowd.end()


def test_a_stop_ends_the_wait(clock: FakeClock) -> None:
    stop = Stop(clock)
    crowd = Crowd(FirstSyncs(1, clock), stop)
    crowd.ask("a")
    crowd.wait("a")
    crowd.ask("b")
    clock.block_until_waiting()

    stop.set()

    crowd.wait("a", "b stopped")
    crowd.end()
