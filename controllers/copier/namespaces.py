"""Tell what is going because its namespace is: such targets are left alone, and such sources take nothing with them.

Namespaces may only be looked at where that is allowed; where it is not, that is said once, and an object's own
deletion is all there is to see.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from informers import GVR, ForbiddenError, Lister, NotSyncedError, Object, ObjectRef, StaleCacheError, fields

NAMESPACES: Final = GVR("", "v1", "namespaces")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Namespaces:
    """The namespaces of all clusters, as far as they may be seen; for any thread."""

    lister: Lister
    _lock: Lock = field(default_factory=Lock)  # guards _told
    _told: set[str] = field(default_factory=set)  # the clusters of which it was said that they may not be seen

    def is_going(self, ref: ObjectRef) -> bool:
        """Tell whether the namespace of an object is surely going."""
        if not ref.namespace:
            return False
        try:
            found = self._find(ref)
        except (NotSyncedError, StaleCacheError):
            return False  # not allowed to know, or not yet
        return found is not None and bool(found.deletion_timestamp)

    def is_staying(self, ref: ObjectRef) -> bool | None:
        """Tell whether the namespace of an object is there to stay; None while that is not known.

        Where it may never be known, it counts as staying.
        """
        if not ref.namespace:
            return True
        try:
            found = self._find(ref)
        except NotSyncedError as error:
            return True if isinstance(error.problem, ForbiddenError) else None
        except StaleCacheError:
            return None
        return found is not None and not found.deletion_timestamp

    def _find(self, ref: ObjectRef) -> Object | None:
        try:
            return self.lister.find(ref.sibling(NAMESPACES, name=ref.namespace, namespace=""))
        except NotSyncedError as error:
            if isinstance(error.problem, ForbiddenError) and self._is_news(ref.cluster):
                text = "namespaces may not be watched: only an object's own deletion is seen, not that of its namespace"
                _log.info(text, extra=fields(cluster=ref.cluster))
            raise

    def _is_news(self, cluster: str) -> bool:
        with self._lock:
            if cluster in self._told:
                return False
            self._told.add(cluster)
            return True
