"""Gate: what must be in the caches before work starts; it says what is missing, and is waited for without polling.

Each cluster opens for itself, once all that was required of it has synced, is forbidden or is not served, and then
stays open. Work starts with the first cluster that opens: one that is down, slow or refuses us must not hold up the
others. Who works keeps the keys of a cluster that is not open until it is. A cluster of which nothing is required holds
up nobody, and nobody waits for it; one of which nothing has synced, as all is forbidden or not served, opens for itself
but is no reason for the others' work to start while one of these may still come.

A reconcile for an open cluster that reads one which is not is told so by `NotSyncedError`, and its key is put aside
until that has synced.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

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


class _Need(NamedTuple):
    """One informer that is waited for, and one of its handlers."""

    name: str
    informer: Syncing
    registration: Registered | None


@dataclass(slots=True, eq=False)
class _Needs:
    """What is required of one cluster; what has settled is looked at no more for opening."""

    all: list[_Need] = field(default_factory=list)
    unsettled: deque[_Need] = field(default_factory=deque)
    is_open: bool = False
    is_filled: bool = False  # something has synced


class Gate:
    """Open once everything that was required of some cluster has synced, is forbidden, or is not served."""

    def __init__(self, clock: Clock, changed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._tell_changed = changed
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._needs: dict[str, _Needs] = {}
        self._turn = 0  # how often something has changed
        self._look_at: float | None = None  # when to tell what is missing, once anybody waits
        self._throttle = Throttle(clock)

    def require(
        self, name: str, informer: Syncing, registration: Registered | None = None, *, cluster: str = ""
    ) -> None:
        """Wait for this informer, and for one of its handlers, too."""
        need = _Need(name, informer, registration)
        with self._changed:
            needs = self._needs.setdefault(cluster, _Needs())
            needs.all.append(need)
            needs.unsettled.append(need)
        informer.on_change(self.signal)
        self.signal()

    def signal(self) -> None:
        """Look again: something that matters may have changed."""
        with self._changed:
            self._turn += 1
            self._changed.notify_all()
        self._tell_changed()

    def clusters(self) -> Collection[str]:
        """Return the clusters of which anything is required."""
        with self._changed:
            return tuple(self._needs)

    def missing(self) -> Sequence[str]:
        """Return what is waited for, each with its state and why."""
        with self._changed:
            required = [need for needs in self._needs.values() for need in needs.all]
        return tuple(_described(need) for need in required if not _is_settled(need))

    def open_clusters(self) -> Collection[str]:
        """Return the clusters of which all that was required has settled, now or before."""
        with self._changed:
            waiting = [(cluster, needs) for cluster, needs in self._needs.items() if not needs.is_open]
        for _, needs in waiting:
            self._settle(needs)
        with self._changed:
            return tuple(cluster for cluster, needs in self._needs.items() if needs.is_open)

    def is_open(self) -> bool:
        """Tell whether work may start: nothing is required, some cluster's caches are filled, or none will ever be."""
        self.open_clusters()
        with self._changed:
            opened = [needs for needs in self._needs.values() if needs.is_open]
            return len(opened) == len(self._needs) or any(needs.is_filled for needs in opened)

    def _settle(self, needs: _Needs) -> None:
        """Take off what has settled, as far as the first that has not."""
        while True:
            with self._changed:
                if not needs.unsettled:
                    needs.is_open = True
                    return
                need = needs.unsettled[0]
            # Its own lock is taken by asking it, so ours is not held.
            if not _is_settled(need):
                return
            is_filled = need.informer.has_synced()
            with self._changed:
                needs.is_filled = needs.is_filled or is_filled
                if needs.unsettled and needs.unsettled[0] is need:  # another thread may have been faster
                    needs.unsettled.popleft()

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
            self.tell_if_late()

    def tell_if_late(self) -> None:
        """Log what is missing two minutes after somebody began to wait for anything, also when others work by then."""
        with self._changed:
            now = self._clock.monotonic()
            if self._look_at is None or now < self._look_at:
                return
            self._look_at = now + _PATIENCE
        if (missing := self.missing()) and self._throttle.allow(missing):
            _log.warning("waiting for caches to fill", extra=fields(missing=list(missing)))


def _is_settled(need: _Need) -> bool:
    if need.informer.has_synced() and (need.registration is None or need.registration.has_synced()):
        return True
    return need.informer.state() in _HOPELESS


def _described(need: _Need) -> str:
    problem = need.informer.problem()
    return f"{need.name}: {need.informer.state()}" + (f", {problem}" if problem else "")
