"""Know which clusters are down: where all lists and watches have failed for half a minute, without a success.

What such a cluster held last stays in force, and nothing is taken for gone that is not there any more. Targets that
read from it are looked at again when it goes down and when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final, Protocol

from informers import (
    GVR,
    AmbiguousKindError,
    Clock,
    ForbiddenError,
    InformersError,
    NotFoundError,
    ObjectRef,
    Stop,
    UnknownKindError,
)

LIMIT: Final = 30.0
_PERIOD: Final = 5.0
# Whoever answers this is not down.
_ANSWERS: Final = (AmbiguousKindError, ForbiddenError, NotFoundError, UnknownKindError)


class Following(Protocol):
    """What follows one kind; every `Lister` does."""

    def problem(self, cluster: str = "") -> InformersError | None:
        """Return what went wrong last, None once it went well again."""
        ...

    def age(self, cluster: str | None = None) -> float:
        """Return the seconds since the server was last heard of; inf before the first time."""
        ...

    def state(self, cluster: str = "") -> str:
        """Return pending, syncing, synced, watching, forbidden, unserved or stopped."""
        ...


class Outages:
    """Says of clusters that targets of other clusters read from whether they are down; from any thread.

    `everywhere` is followed in all clusters. Attributes:
        wake: has a target looked at again; it may only enqueue.
    """

    def __init__(self, everywhere: Sequence[Following], clock: Clock) -> None:
        self.wake: Callable[[ObjectRef], object] = lambda _ref: None
        self._everywhere = tuple(everywhere)
        self._clock = clock
        self._lock = Lock()  # guards all below
        self._read_from: dict[ObjectRef, frozenset[str]] = {}  # target -> other clusters; no value is empty
        self._readers: dict[str, set[ObjectRef]] = {}  # cluster -> targets; no value is empty
        self._followed: dict[str, dict[GVR, Following]] = {}  # of clusters with readers
        self._failing_since: dict[str, float] = {}  # of clusters with readers
        self._down: set[str] = set()  # of those that fail

    def note(self, target: ObjectRef, sources: Iterable[tuple[ObjectRef, Following]]) -> None:
        """Make these, each with what follows it, all that a target reads; what is of its own cluster does not count."""
        others = [(ref, followed) for ref, followed in sources if ref.cluster != target.cluster]
        clusters = frozenset(ref.cluster for ref, _ in others)
        with self._lock:
            before = self._read_from.pop(target, frozenset())
            if clusters:
                self._read_from[target] = clusters
            for cluster in clusters:
                self._readers.setdefault(cluster, set()).add(target)
            for ref, followed in others:
                self._followed.setdefault(ref.cluster, {})[ref.gvr] = followed
            for cluster in before - clusters:
                self._readers[cluster].discard(target)
                if not self._readers[cluster]:
                    del self._readers[cluster], self._followed[cluster]
                    self._failing_since.pop(cluster, None)
                    self._down.discard(cluster)

    def forget(self, target: ObjectRef) -> None:
        """Say that a target reads nothing any more."""
        self.note(target, ())

    def is_down(self, cluster: str) -> bool:
        """Tell whether a cluster is known to be down, and still is."""
        with self._lock:
            if cluster not in self._down:
                return False
            followed = self._followed_locked(cluster)
        return _is_failing(cluster, followed)

    def run(self, stop: Stop) -> None:
        """Watch the clusters."""
        while not stop.wait(_PERIOD):
            self.look()

    def look(self) -> None:
        """See how each cluster does that is read from, and wake its readers when it has gone down or is back."""
        with self._lock:
            read = {cluster: self._followed_locked(cluster) for cluster in self._readers}
        now = self._clock.monotonic()
        for cluster, followed in read.items():
            is_failing = _is_failing(cluster, followed)
            is_silent = all(each.age(cluster) >= LIMIT for each in followed if _is_begun(each, cluster))
            for ref in self._note_state(cluster, now, is_failing=is_failing, is_silent=is_silent):
                self.wake(ref)

    def _note_state(self, cluster: str, now: float, *, is_failing: bool, is_silent: bool) -> Sequence[ObjectRef]:
        with self._lock:
            if cluster not in self._readers:
                return ()
            was_down = cluster in self._down
            if not is_failing:
                self._failing_since.pop(cluster, None)
                self._down.discard(cluster)
            elif now - self._failing_since.setdefault(cluster, now) >= LIMIT and is_silent:
                self._down.add(cluster)
            return () if (cluster in self._down) == was_down else tuple(self._readers[cluster])

    def _followed_locked(self, cluster: str) -> Sequence[Following]:
        return (*self._everywhere, *self._followed.get(cluster, {}).values())


def _is_failing(cluster: str, followed: Iterable[Following]) -> bool:
    """Tell whether something that is followed fails, and nothing goes well."""
    found = False
    for each in followed:
        if not _is_begun(each, cluster):
            continue
        problem = each.problem(cluster)
        if problem is None or isinstance(problem, _ANSWERS):
            return False
        found = True
    return found


def _is_begun(followed: Following, cluster: str) -> bool:
    """Tell whether what follows a kind has something to say about its cluster."""
    state = followed.state(cluster)
    if state == "stopped" or (state in {"pending", "syncing"} and followed.problem(cluster) is None):
        return False
    return state not in {"forbidden", "unserved"}
