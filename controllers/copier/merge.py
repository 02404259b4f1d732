"""Merge a rule's value into what stands at its place in the target. Pure.

`merge` follows RFC 7396, where null deletes a key. `merge_strategically` merges lists, too, by the keys that the
server publishes for the kind; it never takes away what a value no longer names, only its directives do. `keep_live` and `keep_assigned` put back what a rule must not
take along from its source: the places it excepts, and what the API server has assigned to the target itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from controllers.copier.kinds import is_core
from controllers.copier.paths import Absent, Index, Key, Path, Place, Selector, locate, look, put, show, take
from controllers.copier.problems import RuleError
from controllers.copier.values import Number, Plain, copy, describe
from informers import GVR, patches

Fields: TypeAlias = tuple[str, ...]  # the keys that lead to a field, whatever list elements are between

_DELETES: Final = "$deleteFromPrimitiveList/"
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


def named_places(place: Place, patch: Plain, keyed: Mapping[Fields, str] = MappingProxyType({})) -> frozenset[Place]:
    """Name what a merge patch for `place` decides about: what it sets, down to elements of lists merged by a key.

    Of a map that it only wants to be there, an entry is named that is none: nothing in the map is decided by it.
    """
    return frozenset(_named(place, patch, keyed))


def _named(place: Place, patch: Plain, keyed: Mapping[Fields, str]) -> Iterator[Place]:
    key = keyed.get(_fields_of(place), "")
    if isinstance(patch, dict) and not _decides_all(patch):
        for name, value in patch.items():
            if value is not None:
                yield from _named((*place, Key(name.removeprefix(_DELETES))), value, keyed)
        if all(value is None for value in patch.values()):
            yield (*place, Key(""))
    elif isinstance(patch, list) and key and all(isinstance(each, dict) and not _decides_all(each) for each in patch):
        for element in patch:
            value = element.get(key) if isinstance(element, dict) else None
            step = Selector(key, value.text if isinstance(value, Number) else str(value))
            yield from _named((*place, step), element, keyed)
    else:
        yield place


def _decides_all(patch: dict[str, Plain]) -> bool:
    """Tell whether a map says what becomes of all there is, too, and not only of what it names."""
    return patch.get("$patch", "merge") != "merge" or "$retainKeys" in patch


def _fields_of(place: Place) -> Fields:
    return tuple(step.name for step in place if isinstance(step, Key))


class MergeRules(Protocol):
    """What is known of a kind's fields; as `schemas.Schema`, which says what it raises."""

    def check_strategic(self, place: Place) -> None:
        """Raise `RuleError` unless what is at `place` can be merged strategically."""

    def merge_rule(self, fields: Fields) -> patches.MergeRule | None:
        """Say how a field is merged."""

    def is_quantity(self, fields: Fields) -> bool:
        """Tell whether a field holds a quantity."""


def merge_strategically(
    document: Plain | Absent, patch: Plain, place: Place, rules: MergeRules
) -> tuple[Plain | Absent, Mapping[Fields, str]]:
    """Apply a strategic merge patch; also return the lists that it merges, with the key of their elements (`""`: none).

    Raises `RuleError` (`TypeMismatch`, and what `rules` raise).
    """
    rules.check_strategic(place)
    if not isinstance(patch, dict):
        hint = "; JSON in a text takes as: value" if isinstance(patch, str) else ""
        raise RuleError("TypeMismatch", f"{show(place)}: want a map to merge, found {describe(patch)}{hint}")
    if not isinstance(document, dict | Absent | None):
        raise RuleError("TypeMismatch", f"{show(place)}: want a map to merge into, found {describe(document)}")
    top = _fields_of(place)
    merged_lists: dict[Fields, str] = {}

    def rule_of(fields: Fields) -> patches.MergeRule | None:
        return rules.merge_rule((*top, *fields))

    for fields, elements, rule in _merged_lists(patch, (), rule_of):
        merged_lists[(*top, *fields)] = rule.key
        _check_keys(elements, rule.key, place, fields)
    try:
        result: Plain = patches.strategic_merge(
            None if isinstance(document, Absent) else document, patch, rule_of, in_place=True
        )
    except patches.PatchError as error:
        raise RuleError("TypeMismatch", f"{show(place)}: {error}") from None
    if not result and isinstance(document, Absent | None) and patch:
        return document, {}  # there is nothing to put where nothing is
    return result, merged_lists


def _merged_lists(
    patch: Plain, fields: Fields, rule_of: patches.MergeKeys
) -> Iterator[tuple[Fields, list[Plain], patches.MergeRule]]:
    """Find the lists in a patch that are merged and not replaced, each with its rule."""
    if isinstance(patch, dict):
        for key, value in patch.items():
            name = key.removeprefix(_DELETES)
            inner = (*fields, name)
            if isinstance(value, list):
                rule = rule_of(inner)
                if rule is not None and (rule.merge or key != name):
                    yield inner, value, rule
                for element in value:
                    yield from _merged_lists(element, inner, rule_of)
            else:
                yield from _merged_lists(value, inner, rule_of)


def _check_keys(elements: Iterable[Plain], key: str, place: Place, fields: Fields) -> None:
    for position, element in enumerate(elements):
        if key and isinstance(element, dict) and key not in element and element.get("$patch") != "replace":
            where = show((*place, *map(Key, fields), Index(position)))
            raise RuleError("TypeMismatch", f"{where}: want a map with {key}, by which this list is merged, found none")


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
