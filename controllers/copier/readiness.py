"""Tell whether the copier has had a look at its targets, which is what makes it ready.

No single kind, and no single cluster, keeps it from that: a list that failed is over as well as one that came, and a
cluster that does not answer is not waited for while another one does. What was looked at once stays so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final, Literal, Protocol, TypeAlias

from informers import InformersError, TransportError, UnauthorizedError

_HOPELESS: Final = frozenset({"forbidden", "unserved"})

Verdict: TypeAlias = Literal["over", "waiting", "away"]


class Kind(Protocol):
    """A kind of targets, as far as its first list is concerned; a `Lister`."""

    def has_synced(self, cluster: str) -> bool:
        """Tell whether the first list was processed."""
        ...

    def state(self, cluster: str) -> str:
        """Return what the informer is at."""
        ...

    def problem(self, cluster: str) -> InformersError | None:
        """Return what is wrong, None when all is well."""
        ...


class Readiness:
    """The copier's ready check. Use it from any thread."""

    def __init__(self, kinds: Mapping[str, Kind], clusters: Sequence[str]) -> None:
        self._kinds = dict(kinds)
        self._clusters = tuple(clusters)
        self._lock = Lock()  # guards _seen
        self._seen: set[str] = set()  # clusters whose targets were looked at

    def problem(self) -> str | None:
        """Return what is waited for, None once each kind was listed or refused in every cluster that answers."""
        with self._lock:
            seen = frozenset(self._seen)
        found = {cluster: self._verdicts(cluster) for cluster in self._clusters if cluster not in seen}
        now_seen = {cluster for cluster, of in found.items() if "waiting" not in of.values() and not _is_away(of)}
        with self._lock:
            self._seen |= now_seen
        waiting = [
            f"{kind} of cluster {cluster}" if cluster else kind
            for cluster, of in found.items()
            for kind, verdict in of.items()
            if verdict == "waiting"
        ]
        if waiting:
            return f"not listed yet: {', '.join(waiting)}"
        return None if seen | now_seen else "no cluster answers"

    def _verdicts(self, cluster: str) -> Mapping[str, Verdict]:
        return {name: _verdict(kind, cluster) for name, kind in self._kinds.items()}


def _verdict(kind: Kind, cluster: str) -> Verdict:
    if kind.has_synced(cluster) or kind.state(cluster) in _HOPELESS:
        return "over"
    problem = kind.problem(cluster)
    if problem is None:
        return "waiting"
    return "away" if isinstance(problem, TransportError | UnauthorizedError) else "over"


def _is_away(verdicts: Mapping[str, Verdict]) -> bool:
    return all(verdict == "away" for verdict in verdicts.values())
