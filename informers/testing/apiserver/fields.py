"""Select objects by field: `metadata.name=a`, `type!=Opaque`; each kind knows a few fields only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from informers.meta.errors import ConfigError
from informers.meta.selectors import parse_fields
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.statuses import StatusError, bad_request

_COMMON: Final = ("metadata.name", "metadata.namespace")
_EVENT: Final = ("reason", "reportingComponent", "source", "type")
_ABOUT: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_BUILTIN: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("", "events"): (*(f"involvedObject.{name}" for name in _ABOUT), *_EVENT),
    ("events.k8s.io", "events"): (*(f"regarding.{name}" for name in _ABOUT), "reason", "reportingController", "type"),
    ("", "namespaces"): ("status.phase",),
    ("", "secrets"): ("type",),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("batch", "jobs"): ("status.successful",),
}


def known_fields(kind: Kind) -> frozenset[str]:
    """Name the fields that a kind can be selected by."""
    if kind.custom is not None:
        return frozenset((*(_COMMON if kind.namespaced else _COMMON[:1]), *kind.custom.selectable_fields))
    special = _BUILTIN.get((kind.gvr.group, kind.gvr.resource))
    if special is None:
        return frozenset(_COMMON)
    return frozenset((*(_COMMON if kind.namespaced else _COMMON[:1]), *special))


def compile(kind: Kind, text: str) -> Callable[[Mapping[str, Any]], bool]:  # noqa: A001 - read as fields.compile
    """Make the test of one field selector; raises `StatusError` 400 for a bad one or an unknown field."""
    try:
        selector = parse_fields(text)
    except ConfigError:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'") from None
    known = known_fields(kind)
    for requirement in selector.requirements:
        if requirement.field not in known:
            raise _unknown(kind, requirement.field)
    if not selector.requirements:
        return _everything
    wanted = [(each.field.split("."), each.value, each.operator == "=") for each in selector.requirements]

    def matches(obj: Mapping[str, Any]) -> bool:
        return all((value_at(obj, path) == value) == is_equal for path, value, is_equal in wanted)

    return matches


def single_name(text: str) -> str | None:
    """Give the name that a field selector asks for when it asks for exactly one, else None."""
    try:
        selector = parse_fields(text)
    except ConfigError:
        return None
    names = [each.value for each in selector.requirements if each.field == "metadata.name" and each.operator == "="]
    return names[0] if len(names) == 1 else None


def _everything(_obj: Mapping[str, Any]) -> bool:
    return True


def value_at(obj: Mapping[str, Any], path: list[str]) -> str:
    """Print the value of a field as a selector sees it; `""` when there is none."""
    found: Any = obj
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    if path in (["spec", "unschedulable"], ["spec", "hostNetwork"]):
        return "true" if found else "false"
    if path == ["source"] and isinstance(found, Mapping):
        return str(found.get("component") or obj.get("reportingComponent") or "")
    if path == ["status", "successful"]:
        return str(((obj.get("status") or {}).get("succeeded")) or 0)
    if isinstance(found, bool):
        return "true" if found else "false"
    return "" if found is None or isinstance(found, dict | list) else str(found)


def _unknown(kind: Kind, field: str) -> StatusError:
    if kind.is_custom or (kind.gvr.group, kind.gvr.resource) in _BUILTIN:
        return bad_request(f"field label not supported: {field}")
    return bad_request(f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"')
