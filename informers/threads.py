"""Start threads with a stack of a size that we know: what the system gives may be too small, or differ from place to place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from informers import metrics
from informers.process import STACK

_running = metrics.gauge("informers_threads", "Threads of ours that run", ("owner",))

_lock = threading.Lock()  # guards the process's stack size, which is what a new thread gets


def start(thread: threading.Thread) -> None:
    """Start `thread` with a stack of `STACK` bytes, and leave the process's default as it was.

    Whoever starts a thread of ours does it here: two that set and restored the size side by side could leave it set.
    """
    with _lock:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)


@contextmanager
def counted(owner: str) -> Iterator[None]:
    """Count this thread as one of `owner` for the length of a block."""
    _running.add(1, owner=owner)
    try:
        yield
    finally:
        _running.add(-1, owner=owner)
