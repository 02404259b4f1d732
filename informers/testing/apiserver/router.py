"""Read a request's path, method and query as what they ask for: a verb on a resource, or one of the other pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from informers.testing.apiserver.kinds import Kind, Kinds

_OBJECT_VERBS: Final = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS: Final = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}
_HEALTH: Final = frozenset({"healthz", "livez", "readyz"})


@dataclass(slots=True)
class HTTPRequest:
    """One request as it came: header names in lower case, the query as pairs."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    body: bytes = b""

    def parameter(self, name: str) -> str:
        """Return the first value of a query parameter, or `""`."""
        return next((value for key, value in self.query if key == name), "")

    def has(self, name: str) -> bool:
        """Tell whether a query parameter was sent with a value."""
        return self.parameter(name) != ""

    def is_set(self, name: str) -> bool:
        """Tell whether a boolean query parameter is on, read as the real server reads it."""
        values = [value for key, value in self.query if key == name]
        return bool(values) and values[0].lower() not in {"false", "0"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a request asks for.

    `page` is one of object, discovery, openapi, version, health, none; only an object page has a resource.
    `kind` is None when the resource is not served (then `group_served` tells which kind of 404 it is).
    """

    page: str
    verb: str
    kind: Kind | None = None
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    parts: tuple[str, ...] = field(default=())
    allowed: bool = True
    group_served: bool = True

    @property
    def full_resource(self) -> str:
        """The resource with its group, as faults and the request log name it: `widgets.example.com`, `secrets`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


def route(request: HTTPRequest, kinds: Kinds) -> Target:
    """Find what a request asks for; never fails."""
    parts = tuple(unquote(part) for part in request.path.split("/") if part)
    match parts:
        case ("version",):
            return Target("version", "version", allowed=request.method in {"GET", "HEAD"})
        case (first, *_) if first in _HEALTH:
            return Target("health", "get")
        case ("openapi", *_):
            return Target("openapi", "openapi", parts=parts)
        case ("api",) | ("apis",) | ("apis", _) | ("api", _) | ("apis", _, _):
            return Target("discovery", "discovery", parts=parts)
        case ("api", version, *rest):
            return _object_target(request, kinds, ("", version), rest)
        case ("apis", group, version, *rest):
            return _object_target(request, kinds, (group, version), rest)
    return Target("none", request.method.lower(), parts=parts)


def _has_builtin(kinds: Kinds, group: str, version: str) -> bool:
    """Tell whether a group version is one that answers with a Status what it does not have; others have no such page."""
    return any(kind.gvr.group == group and kind.gvr.version == version and not kind.is_custom for kind in kinds.all())


def _object_target(request: HTTPRequest, kinds: Kinds, group_version: tuple[str, str], rest: list[str]) -> Target:
    group, version = group_version
    namespace = name = subresource = ""
    in_namespace = False
    match rest:
        case ["namespaces", namespace, resource]:
            if group == "" and resource in {"status", "finalize"}:
                resource, namespace, name, subresource = "namespaces", "", namespace, resource
            else:
                in_namespace = True
        case ["namespaces", namespace, resource, name, *more]:
            in_namespace = True
            subresource = "/".join(more)
        case [resource, *more]:
            name = more[0] if more else ""
            subresource = "/".join(more[1:])
        case _:
            return Target("none", request.method.lower())
    kind = kinds.find(group, version, resource)
    if kind is not None and kind.namespaced and name and not in_namespace:
        kind = None  # /api/v1/secrets/NAME is no page
    if kind is not None and not kind.namespaced and in_namespace:
        kind = None
    verb = (_OBJECT_VERBS if name else _COLLECTION_VERBS).get(request.method, "")
    if verb == "list" and request.is_set("watch"):
        verb = "watch"
    allowed = verb != "" and kind is not None and verb in kind.verbs
    if kind is not None and kind.namespaced and not in_namespace and verb in {"create", "deletecollection"}:
        allowed = False
    if subresource and verb not in {"get", "update", "patch"}:
        allowed = False
    return Target(
        page="object",
        verb=verb or request.method.lower(),
        kind=kind,
        group=group,
        version=version,
        resource=resource,
        namespace=namespace if in_namespace else "",
        name=name,
        subresource=subresource,
        allowed=allowed,
        group_served=kind is not None or _has_builtin(kinds, group, version),
    )
