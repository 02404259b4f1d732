"""Merge a rule's value into what stands at its place in the target. Pure.

`merge` follows RFC 7396, where null deletes a key. `keep_live` and `keep_assigned` put back what a rule must not
take along from its source: the places it excepts, and what the API server has assigned to the target itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from controllers.copier.kinds import is_core
from controllers.copier.paths import Absent, Key, Path, Place, Selector, locate, look, put, take
from controllers.copier.problems import RuleError
from controllers.copier.values import Plain, copy
from informers import GVR, patches

_SPEC: Final[Place] = (Key("spec"),)
_ASSIGNED_TO_SERVICES: Final = ("clusterIP", "clusterIPs", "healthCheckNodePort")


def merge(document: Plain | Absent, patch: Plain) -> Plain | Absent:
    """Apply a merge patch. What is not there stays so if the patch has nothing to put into it."""
    if isinstance(document, Absent | None) and isinstance(patch, dict) and patch and _only_deletes(patch):
        return document
    merged: Plain = patches.apply_merge(None if isinstance(document, Absent) else document, patch)
    return merged


def _only_deletes(patch: Plain) -> bool:
    if isinstance(patch, dict):
        return bool(patch) and all(map(_only_deletes, patch.values()))
    return patch is None


def named_places(place: Place, patch: Plain) -> frozenset[Place]:
    """Name what a merge patch for `place` sets: every value in it that is not a map, and every empty map."""
    return frozenset(_named(place, patch))


def _named(place: Place, patch: Plain) -> Iterator[Place]:
    if not isinstance(patch, dict) or not patch:
        yield place
        return
    for key, value in patch.items():
        if value is not None:
            yield from _named((*place, Key(key)), value)


def keep_live(result: Plain, live: Plain | Absent, excepts: Iterable[Path]) -> Plain:
    """Make `result` like `live` at the excepted paths, as far as their surroundings are there."""
    around: dict[str, Plain] = {"": result}
    for path in excepts:
        present = None if isinstance(live, Absent) else live
        below = locate(present, path)
        place = (Key(""), *below)
        kept = look(present, below)
        if isinstance(kept, Absent):
            take(around, place)
            continue
        try:
            put(around, place, copy(kept))
        except RuleError:
            elements = look(around, place[:-1])
            if isinstance(place[-1], Selector) and isinstance(elements, list):
                elements.append(copy(kept))
    return around[""]


def keep_assigned(result: Plain, live: Plain | Absent, gvr: GVR, place: Place) -> Plain:
    """Keep what the server has assigned to this very object when its whole `spec` is written."""
    if place != _SPEC or not isinstance(result, dict):
        return result
    before = live if isinstance(live, dict) else {}
    if is_core(gvr, "persistentvolumeclaims"):
        _keep_keys(result, before, ("volumeName",))
    elif is_core(gvr, "services"):
        _keep_keys(result, before, _ASSIGNED_TO_SERVICES)
        own = list(_maps_in(before.get("ports")))
        for port in _maps_in(result.get("ports")):
            _keep_keys(port, _same_port(port, own), ("nodePort",))
    return result


def _keep_keys(result: dict[str, Plain], live: dict[str, Plain], keys: Iterable[str]) -> None:
    for key in keys:
        if key in live:
            result[key] = copy(live[key])
        else:
            result.pop(key, None)


def _maps_in(found: Plain) -> Iterator[dict[str, Plain]]:
    for item in found if isinstance(found, list) else ():
        if isinstance(item, dict):
            yield item


def _same_port(port: dict[str, Plain], own: Iterable[dict[str, Plain]]) -> dict[str, Plain]:
    """Find the target's port of the same name; without a name, the one of the same number and protocol."""

    def identity(one: dict[str, Plain]) -> object:
        return one.get("port"), one.get("protocol") or "TCP"

    for other in own:
        if port["name"] == other.get("name") if port.get("name") else identity(port) == identity(other):
            return other
    return {}
