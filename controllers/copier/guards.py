"""Objects that are no targets whoever annotates them: those that give power over others, and the copier's own Lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controllers.copier.cycles import identity_of
from controllers.copier.kinds import full_form, is_guarded
from controllers.copier.sources import Mappers
from informers import InformersError, ObjectRef


@dataclass(frozen=True, slots=True)
class Guard:
    """Says which objects are left alone.

    `full_targets` are kinds as the command line names them in full, which those with power over others have to be.
    """

    mapper: Mappers
    full_targets: Sequence[str] = ()
    lease: ObjectRef | None = None

    def why_not(self, ref: ObjectRef) -> str | None:
        """Return why an object is no target, None if it may be one."""
        if self.lease is not None and identity_of(ref) == identity_of(self.lease):
            return f"{ref} is the lease of this program"
        if is_guarded(ref.gvr) and not self._is_named_in_full(ref):
            return f"to mean it, write {full_form(ref.gvr)}"
        return None

    def _is_named_in_full(self, ref: ObjectRef) -> bool:
        mapper = self.mapper(ref.cluster)
        for text in self.full_targets:
            try:
                if mapper.resolve(text).gvr == ref.gvr:
                    return True
            except InformersError:
                continue
        return False
