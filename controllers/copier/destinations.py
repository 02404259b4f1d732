"""Places of a target that no rule may write, in whatever spelling. Pure."""

from __future__ import annotations

from typing import Final

from controllers.copier.kinds import is_core, string_maps_of
from controllers.copier.paths import Key, Path, Segment, locate, may_overlap, name_of, show
from controllers.copier.problems import RuleError
from controllers.copier.rules import PREFIX
from informers import GVR

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_SERVER_METADATA: Final = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
)
_ANNOTATIONS: Final = ("metadata", "annotations")
# Each stands for itself, everything below it, and every parent that would overwrite it.
_PROTECTED: Final = tuple(
    Path(tuple(map(Key, keys)))
    for keys in (
        ("apiVersion",),
        ("kind",),
        *(("metadata", name) for name in _SERVER_METADATA),
        (*_ANNOTATIONS, _LAST_APPLIED),
        ("status",),
    )
)
_ROOTS: Final = frozenset({"apiVersion", "kind", "metadata", "status", "stringData"})
_STRING_DATA: Final = Path((Key("stringData"),))


def check_allowed(to: Path, gvr: GVR) -> None:
    """Raise `RuleError` (`DeniedDestination`) if some reading of `to` writes what no rule may write."""
    root = to.steps[0]
    if isinstance(root, Segment | Key) and name_of(root) not in _ROOTS:
        return  # no protected key at the root has a dot, so no longer key of some reading is one
    string_maps = string_maps_of(gvr)
    for protected in _PROTECTED:
        if may_overlap(to, protected, string_maps):
            raise _denied(protected)
    if is_core(gvr, "secrets") and may_overlap(to, _STRING_DATA, string_maps):
        raise RuleError("DeniedDestination", "stringData is never kept by the server; write data, in base64")
    # Below metadata.annotations a path has one reading, whatever the document holds.
    place = locate({}, to, string_maps)
    if place[:2] == (Key("metadata"), Key("annotations")):
        name = place[2] if len(place) > 2 else None
        if isinstance(name, Key) and name.name.startswith(PREFIX):
            raise RuleError(
                "DeniedDestination", f"annotations under {PREFIX} are rules and consent; no rule writes them"
            )


def _denied(protected: Path) -> RuleError:
    place = tuple(step for step in protected.steps if isinstance(step, Key))
    return RuleError("DeniedDestination", f"{show(place)} is not for copying, nor what holds it")
