"""Gate: what must be in the caches before work starts; it says what is missing, and is waited for without polling."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from informers.clock import Clock, Stop
from informers.logs import Throttle, fields
from informers.meta.errors import InformersError

_log = logging.getLogger(__name__)
_PATIENCE: Final = 120.0
# Nothing more will come of these without a person, so nobody waits for them.
_HOPELESS: Final = frozenset({"forbidden", "unserved", "stopped"})


class Syncing(Protocol):
    """What can be waited for: an informer, as far as a gate is concerned."""

    def has_synced(self) -> bool:
        """Tell whether the first list is in the store."""
        ...

    def state(self) -> str:
        """Return pending, syncing, synced, watching, forbidden, unserved or stopped."""
        ...

    def problem(self) -> InformersError | None:
        """Return why it is not synced, if known."""
        ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called whenever one of the above may have changed."""
        ...


class Registered(Protocol):
    """A handler's place at an informer."""

    def has_synced(self) -> bool:
        """Tell whether everything that was there at first has been shown to the handler."""
        ...


class Gate:
    """Open once everything that was required has synced, is forbidden, or is not served."""

    def __init__(self, clock: Clock, changed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._tell_changed = changed
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._required: list[tuple[str, Syncing, Registered | None]] = []
        self._turn = 0  # how often something has changed
        self._look_at: float | None = None  # when to tell what is missing, once anybody waits
        self._throttle = Throttle(clock)

    def require(self, name: str, informer: Syncing, registration: Registered | None = None) -> None:
        """Wait for this informer, and for one of its handlers, too."""
        with self._changed:
            self._required.append((name, informer, registration))
        informer.on_change(self.signal)
        self.signal()

    def signal(self) -> None:
        """Look again: something that matters may have changed."""
        with self._changed:
            self._turn += 1
            self._changed.notify_all()
        self._tell_changed()

    def missing(self) -> Sequence[str]:
        """Return what is waited for, each with its state and why."""
        return tuple(_described(name, informer) for name, informer, _ in self._waited_for())

    def is_open(self) -> bool:
        """Tell whether nothing is waited for."""
        return not self._waited_for()

    def wait(self, stop: Stop) -> bool:
        """Wait until the gate is open (True) or `stop` is set (False); tell after two minutes what is missing.

        That is told again when it has changed, and every ten minutes.
        """
        with self._changed:
            if self._look_at is None:
                self._look_at = self._clock.monotonic() + _PATIENCE
        while True:
            with self._changed:
                turn = self._turn
            if stop.is_set():
                return False
            if self.is_open():
                return True
            with self._changed:
                left = self._look_at - self._clock.monotonic()
                # What changed since we looked is looked at first.
                if self._turn == turn and left > 0:
                    self._clock.wait(self._changed, left)
                is_late = self._look_at <= self._clock.monotonic()
                if is_late:
                    self._look_at = self._clock.monotonic() + _PATIENCE
            if is_late and (missing := self.missing()) and self._throttle.allow(missing):
                _log.warning("waiting for caches to fill", extra=fields(missing=list(missing)))

    def _waited_for(self) -> Sequence[tuple[str, Syncing, Registered | None]]:
        with self._changed:
            required = tuple(self._required)
        return [one for one in required if not _is_settled(one[1], one[2])]


def _is_settled(informer: Syncing, registration: Registered | None) -> bool:
    if informer.has_synced() and (registration is None or registration.has_synced()):
        return True
    return informer.state() in _HOPELESS


def _described(name: str, informer: Syncing) -> str:
    problem = informer.problem()
    return f"{name}: {informer.state()}" + (f", {problem}" if problem else "")
