"""Say whether the copier is ready: some cluster answers, and in those that do each target's kind was looked at.

What is surprising: a kind that is not served, or that may not be read, keeps nobody waiting, and neither does a cluster
that does not answer while another one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from informers import Lister, RESTMapper

_HOPELESS: Final = frozenset({"forbidden", "unserved"})


def why_unready(targets: Mapping[str, Lister], mappers: Mapping[str, RESTMapper]) -> str | None:
    """Return why the copier cannot work yet, None when it can; `mappers` has one for each cluster, `""` is home."""
    answering = [cluster for cluster, mapper in mappers.items() if mapper.has_loaded()]
    if not answering:
        return "no cluster has said yet which kinds it serves"
    waiting = [
        f"{text} (cluster {cluster})" if cluster else text
        for cluster in answering
        for text, lister in targets.items()
        if not was_looked_at(lister, cluster)
    ]
    return f"not listed yet: {', '.join(waiting)}" if waiting else None


def was_looked_at(lister: Lister, cluster: str) -> bool:
    """Tell whether all is known of a kind in a cluster that there is to know now."""
    return lister.has_synced(cluster) or lister.problem(cluster) is not None or lister.state(cluster) in _HOPELESS
