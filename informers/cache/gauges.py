"""What is told of an informer in numbers while it runs; read when somebody asks, so they cost nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final, Protocol, get_args

from informers import metrics
from informers.cache.reflector import State
from informers.cache.store import Store

_L: Final = ("cluster", "resource")
_STATES: Final = get_args(State)

# Several informers may follow one resource, in several namespaces or with several selectors.
_state = metrics.gauge("informers_state", "How many informers are in this state", (*_L, "state"))
_watching = metrics.gauge("informers_watching", "1 while every watch is open", _L, combine="min")
_age = metrics.gauge(
    "informers_last_event_age_seconds", "Since the server was last heard of, bookmarks included", _L, combine="max"
)
_list_items = metrics.gauge("informers_list_items", "Objects in the last list", _L)
_objects = metrics.gauge("informers_store_objects", "Objects held", _L)
_bytes = metrics.gauge("informers_store_bytes", "Bytes of JSON held", _L)
_rv = metrics.gauge("informers_store_rv", "How far the store has followed its resource", _L, combine="min")


class Told(Protocol):
    """An informer, as far as its numbers are concerned."""

    @property
    def store(self) -> Store:
        """Its objects."""
        ...

    def state(self) -> str:
        """Return one of the states."""
        ...

    def silent_for(self) -> float:
        """Return the seconds since the server was last heard of, or since the start."""
        ...

    def listed(self) -> int:
        """Return how many objects the last list had."""
        ...


@contextmanager
def shown(informer: Told, *, cluster: str, resource: str) -> Iterator[None]:
    """Have an informer's numbers told for the length of a block, and all that is counted of it be there with 0."""
    store = informer.store

    def states() -> Mapping[str, float]:
        now = informer.state()
        return {state: float(state == now) for state in _STATES}

    def rv() -> float | None:
        text = store.rv()
        return float(text) if text.isascii() and text.isdigit() else None

    with ExitStack() as undo:
        undo.callback(metrics.hold(cluster=cluster, resource=resource))
        undo.callback(_state.follow_each("state", states, cluster=cluster, resource=resource))
        for gauge, compute in (
            (_watching, lambda: float(informer.state() == "watching")),
            (_age, informer.silent_for),
            (_list_items, lambda: float(informer.listed())),
            (_objects, lambda: float(len(store))),
            (_bytes, lambda: float(store.size())),
            (_rv, rv),
        ):
            undo.callback(gauge.follow(compute, cluster=cluster, resource=resource))
        yield
