"""Our threads have stacks of a known size; other people's are as they were."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from informers import threads
from informers.process import STACK


@pytest.fixture(autouse=True)
def ordinary_stacks() -> Iterator[None]:
    before = threading.stack_size(0)
    yield
    threading.stack_size(before)


class Noting(threading.Thread):
    """Notes the size of the stack that it is started with."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(daemon=True)
        self._sizes = sizes

    def start(self) -> None:
        self._sizes.append(threading.stack_size())
        super().start()


class Failing(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_a_thread_of_ours_has_its_size_of_stack_and_the_next_one_has_not() -> None:
    sizes: list[int] = []
    thread = Noting(sizes)

    threads.start(thread)
    thread.join()

    assert sizes == [STACK]
    assert threading.stack_size() == 0


def test_the_size_is_put_back_when_a_thread_cannot_start() -> None:
    with pytest.raises(RuntimeError, match="can't start"):
        threads.start(Failing())

    assert threading.stack_size() == 0


def test_starting_side_by_side_leaves_the_size_as_it_was() -> None:
    sizes: list[int] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def start_many() -> None:
        for _ in range(20):
            thread = Noting(sizes)
            threads.start(thread)
            thread.join()

    starters = [threading.Thread(target=start_many, daemon=True) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    sys.setswitchinterval(before)

    assert set(sizes) == {STACK}
    assert threading.stack_size() == 0
