"""settle(): return when everything that a manager follows is current and everything that it does is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from informers.cache.factory import InformerSet
from informers.cache.store import Store
from informers.meta.errors import InformersError
from informers.runtime.manager import Manager

_SYNCING: Final = frozenset({"pending", "syncing"})
_FOLLOWING: Final = frozenset({"synced", "watching"})
# A server does not say that it has nothing more to say: while its list and a store differ, it is asked again.
_ASK_AGAIN: Final = 0.05
_SHOWN: Final = 5


def settle(manager: Manager, timeout: float = 60.0) -> None:
    """Block until informers show what the server has, queues are empty but for what is due later, and workers idle.

    What is forbidden or not served is not waited for. Raises `TimeoutError`, which tells what is still busy, after
    `timeout` seconds of real time.
    """
    deadline = time.monotonic() + timeout
    news = _News()
    try:
        while True:
            turn = news.turn()
            news.listen(manager)
            busy = _busy(manager)
            if not busy:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                msg = f"not settled after {timeout:g} s: {'; '.join(busy)}"
                raise TimeoutError(msg)
            news.wait(turn, min(left, _ASK_AGAIN))
    finally:
        news.close()


class _News:
    """Whether anything has happened since one looked."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards _turn
        self._turn = 0
        self._take_off: dict[object, Callable[[], None]] = {}

    def listen(self, manager: Manager) -> None:
        """Hear of everything that the manager has by now."""
        for sets in manager.informers().values():
            for informers in sets:
                self._add(informers, informers.on_change)
                for store in informers.stores():
                    self._add(store, store.on_advance)
        for controller in manager.controllers():
            self._add(controller, controller.queue.on_idle)

    def turn(self) -> int:
        with self._changed:
            return self._turn

    def wait(self, turn: int, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn != turn, timeout)

    def close(self) -> None:
        for take_off in self._take_off.values():
            take_off()

    def _add(self, key: object, subscribe: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        if key not in self._take_off:
            self._take_off[key] = subscribe(self._hear)

    def _hear(self) -> None:
        with self._changed:
            self._turn += 1
            self._changed.notify_all()


def _busy(manager: Manager) -> Sequence[str]:
    """Return what is not done or not current, in words; first what is cheap to find out."""
    before = _handed_out(manager)
    found = _unsynced(manager) or _working(manager) or _behind(manager)
    if found:
        return found
    # What the lists have shown to be there was handed to the controllers before this.
    found = _working(manager)
    if not found and _handed_out(manager) != before:
        found = ["a reconcile has just ended"]
    return found


def _unsynced(manager: Manager) -> list[str]:
    return [
        f"{_name(informers)} is {informers.state()}"
        for sets in manager.informers().values()
        for informers in sets
        if informers.state() in _SYNCING or (informers.state() in _FOLLOWING and not informers.has_synced())
    ]


def _working(manager: Manager) -> list[str]:
    found = []
    for controller in manager.controllers():
        if parked := controller.parked():
            found.append(f"{controller.name} waits for a cache to show {_listed([str(ref) for ref in parked])}")
        elif not controller.is_idle():
            found.append(f"{controller.name} has {len(controller.queue)} keys waiting, or is at one")
    return found


def _behind(manager: Manager) -> list[str]:
    """Compare each store with a fresh list."""
    found = []
    for sets in manager.informers().values():
        for informers in sets:
            found += [
                text
                for store in informers.stores()
                if informers.state(store.namespace or None) in _FOLLOWING
                if (text := _difference(manager, informers, store))
            ]
    return found


def _difference(manager: Manager, informers: InformerSet, store: Store) -> str:
    selection = informers.selection
    try:
        listed = {
            obj.ref.key: obj.resource_version
            for obj in manager.client.list(
                store.gvr,
                namespace=store.namespace or None,
                labels=selection.label_selector,
                fields=selection.field_selector,
                metadata_only=True,
                cluster=store.cluster,
            )
        }
    except InformersError as error:
        return f"{_name(informers)} cannot be listed: {error}"
    held = {obj.ref.key: obj.resource_version for obj in store.list()}
    if differing := sorted(key for key in listed.keys() | held.keys() if listed.get(key) != held.get(key)):
        return f"{_name(informers)} is behind at {_listed(differing)}"
    if store.is_delivering():
        return f"{_name(informers)} is telling its handlers"
    return ""


def _handed_out(manager: Manager) -> int:
    return sum(controller.queue.handed_out() for controller in manager.controllers())


def _name(informers: InformerSet) -> str:
    return str(informers.selection.resource)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
