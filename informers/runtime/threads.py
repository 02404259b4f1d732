"""Threads with an owner, a name, a stack and an end that is noticed; and a garbage collector that knows its time."""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from informers import metrics
from informers.clock import Clock
from informers.logs import fields
from informers.process import GC_LONGEST, GC_PAUSE, GC_THAW, GC_THRESHOLDS, SWITCH_INTERVAL
from informers.threads import counted, start

_log = logging.getLogger(__name__)
T = TypeVar("T")

_gc_pause = metrics.histogram(
    "informers_gc_pause_seconds",
    "How long full collections of garbage took",
    buckets=(0.0001, 0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5),
)


class Inbox(Generic[T]):
    """Messages for one thread, which a signal wakes too, whichever thread the system gives it to.

    A wait on a lock would not do: the handler of a signal runs when the main thread next does, and a signal that comes
    just before the wait, or to another thread, does not end it. A byte in a pipe does; the interpreter writes one for
    each signal (`signal.set_wakeup_fd`).
    """

    def __init__(self) -> None:
        self._messages: SimpleQueue[T] = SimpleQueue()  # its put() may be called from a signal handler
        self._lock = threading.RLock()  # guards _pipe; reentrant, as a signal's handler may interrupt its holder
        self._pipe: tuple[int, int] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make `wait()` possible, and in the main thread have signals wake it."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # a full pipe wakes as well as one byte more
        self._pipe = reader, writer
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False) if is_main else -1
        try:
            yield
        finally:
            if is_main:
                signal.set_wakeup_fd(before)
            with self._lock:
                self._pipe = None
                os.close(writer)
                os.close(reader)

    def put(self, message: T) -> None:
        """Leave a message; from any thread, and from a signal handler."""
        self._messages.put(message)
        with self._lock, suppress(BlockingIOError):
            if self._pipe is not None:
                os.write(self._pipe[1], b"\0")

    def wait(self) -> T:
        """Return the next message; blocks until there is one. Only inside `opened()`."""
        assert self._pipe is not None
        while True:
            with suppress(Empty):
                return self._messages.get_nowait()
            os.read(self._pipe[0], 4096)

    def wait_for(self, seconds: float) -> T | None:
        """Return the next message, or None when `seconds` (real ones) have passed. Only inside `opened()`."""
        assert self._pipe is not None
        if (message := self.take()) is not None:
            return message
        poller = select.poll()
        poller.register(self._pipe[0], select.POLLIN)
        if poller.poll(seconds * 1000):
            os.read(self._pipe[0], 4096)
        return self.take()

    def take(self) -> T | None:
        """Return the next message, or None; never blocks."""
        with suppress(Empty):
            return self._messages.get_nowait()
        return None


class Threads:
    """The threads of one owner, in groups that end together.

    `ended` is called on each thread at its end, with its name, its group and the error that ended it, if any.
    """

    def __init__(self, clock: Clock, ended: Callable[[str, str, BaseException | None], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._alive: dict[threading.Thread, str] = {}
        self._over: list[threading.Thread] = []

    def start(self, name: str, run: Callable[[], None], *, group: str) -> None:
        """Start a thread that runs `run`."""

        def body() -> None:
            error: BaseException | None = None
            try:
                with counted(group):
                    run()
            except BaseException as caught:  # noqa: BLE001 - how it ended is told to the owner
                error = caught
            with self._changed:
                del self._alive[thread]
                self._over.append(thread)
                self._changed.notify_all()
            self._ended(name, group, error)

        # A daemon, so that one that hangs past its grace cannot keep the process from ending.
        thread = threading.Thread(target=body, name=name, daemon=True)
        with self._changed:
            self._alive[thread] = group
        try:
            start(thread)
        except BaseException:
            # The system has no more threads: nobody is to wait for this one.
            with self._changed:
                del self._alive[thread]
            raise

    def wait(self, group: str, timeout: float) -> Sequence[str]:
        """Wait until all of a group have ended or `timeout` seconds passed; return the names of those that go on."""
        until = self._clock.monotonic() + timeout
        with self._changed:
            while left := [thread.name for thread, its in self._alive.items() if its == group]:
                wait = until - self._clock.monotonic()
                if wait <= 0:
                    break
                self._clock.wait(self._changed, wait)
        return left

    def names(self) -> Sequence[str]:
        """Return the names of those that run."""
        with self._changed:
            return tuple(thread.name for thread in self._alive)

    def join(self) -> None:
        """Join those that have ended."""
        with self._changed:
            over, self._over = self._over, []
        for thread in over:
            if thread is not threading.current_thread():
                thread.join()


class Tuning:
    """Set up the interpreter for a while, and collect garbage when nothing is to be done; see `informers.process`."""

    _lock = threading.Lock()  # guards _users and _before: the settings are the process's
    _users = 0
    _before: tuple[tuple[int, int, int], float] = ((0, 0, 0), 0.0)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = self._last_thaw = clock.monotonic()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have everything set for the length of a block."""
        with self._lock:
            if Tuning._users == 0:
                Tuning._before = gc.get_threshold(), sys.getswitchinterval()
                gc.set_threshold(*GC_THRESHOLDS)
                sys.setswitchinterval(SWITCH_INTERVAL)
            Tuning._users += 1
        try:
            yield
        finally:
            with self._lock:
                Tuning._users -= 1
                if Tuning._users == 0:
                    thresholds, interval = Tuning._before
                    gc.set_threshold(*thresholds)
                    sys.setswitchinterval(interval)
                    gc.unfreeze()

    def collect(self) -> None:
        """Collect, and take what is left out of later collections, but for one in an hour."""
        started = self._clock.monotonic()
        must_thaw = started - self._last_thaw >= GC_THAW
        if must_thaw:
            gc.unfreeze()
            self._last_thaw = started
        found = gc.collect()
        gc.freeze()
        self._last = self._clock.monotonic()
        _gc_pause.observe(self._last - started)
        seconds = round(self._last - started, 4)
        _log.debug("collected garbage", extra=fields(objects=found, seconds=seconds, thawed=must_thaw))

    def collect_if_due(self, *, is_idle: bool) -> bool:
        """Collect if it is time: soon when nothing is to be done, at the latest after ten minutes."""
        waited = self._clock.monotonic() - self._last
        if waited >= (GC_PAUSE if is_idle else GC_LONGEST):
            self.collect()
            return True
        return False
