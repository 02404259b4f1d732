"""Ask an API server which resources it serves: in two requests if it can, else group version by group version.

A group version that cannot be read breaks only itself: it keeps what it served last, and the result says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from informers.api.calls import Response
from informers.meta.errors import APIError, InformersError, NotFoundError, printable
from informers.meta.resources import GVR, Resource

# Sends one discovery request: a path and what to accept.
Get = Callable[[str, str], Response]

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
LEGACY: Final = "application/json"
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Version:
    """What one group version serves. A stale one is not known to be up to date."""

    version: str
    resources: tuple[Resource, ...]
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """One API group; its versions in the server's order of preference."""

    name: str
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a server serves: groups in its order, the core group first; and which group versions could not be read."""

    groups: tuple[Group, ...] = ()
    problems: Mapping[str, InformersError] = field(default_factory=dict, compare=False)

    def last_known(self, group: str, version: str) -> tuple[Resource, ...]:
        """Return what a group version served when it was last read."""
        for each in self.groups:
            for known in each.versions:
                if (each.name, known.version) == (group, version):
                    return known.resources
        return ()


def read_discovery(get: Get, known: Discovery) -> Discovery:
    """Read what is served; `known` is what stays in place of what cannot be read.

    The content type of each answer decides how it is read. Raises what `get` raises when an index cannot be read.
    """
    groups: list[Group] = []
    problems: dict[str, InformersError] = {}
    for index in ("/api", "/apis"):
        try:
            response = get(index, AGGREGATED)
        except NotFoundError:
            continue  # a server without the core group, or without any other
        if _is_aggregated(response):
            found = _read_aggregated(response, known, problems)
        else:
            found = _read_by_version(response, get, known, problems, is_core=index == "/api")
        groups += found
    return Discovery(tuple(groups), problems)


class _Kind(msgspec.Struct):
    kind: str = ""


class _Subresource(msgspec.Struct):
    subresource: str = ""


class _AggregatedResource(msgspec.Struct, rename="camel"):
    resource: str = ""
    response_kind: _Kind | None = None
    scope: str = ""
    singular_resource: str = ""
    verbs: list[str] | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None
    subresources: list[_Subresource] | None = None


class _AggregatedVersion(msgspec.Struct):
    version: str = ""
    resources: list[_AggregatedResource] | None = None
    freshness: str = ""


class _Named(msgspec.Struct):
    name: str = ""


class _AggregatedGroup(msgspec.Struct):
    metadata: _Named = msgspec.field(default_factory=_Named)
    versions: list[_AggregatedVersion] | None = None


class _AggregatedList(msgspec.Struct):
    items: list[_AggregatedGroup] | None = None


class _ListedVersion(msgspec.Struct):
    version: str = ""


class _ListedGroup(msgspec.Struct, rename="camel"):
    name: str = ""
    versions: list[_ListedVersion] | None = None
    preferred_version: _ListedVersion | None = None


class _GroupList(msgspec.Struct):
    groups: list[_ListedGroup] | None = None


class _CoreVersions(msgspec.Struct):
    versions: list[str] | None = None


class _ListedResource(msgspec.Struct, rename="camel"):
    name: str = ""
    singular_name: str = ""
    namespaced: bool = False
    kind: str = ""
    verbs: list[str] | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None


class _ResourceList(msgspec.Struct):
    resources: list[_ListedResource] | None = None


_T = TypeVar("_T")


def _decode(response: Response, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.json.decode(response.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        msg = f"the answer is not a {kind.__name__.strip('_')}"
        raise APIError(msg, status=response.status, verb="discovery", where=where) from None


def _is_aggregated(response: Response) -> bool:
    parameters = response.headers.get("content-type", "").replace(" ", "").split(";")
    return "as=APIGroupDiscoveryList" in parameters and "v=v2" in parameters


def _read_aggregated(response: Response, known: Discovery, problems: dict[str, InformersError]) -> Sequence[Group]:
    groups = []
    for item in _decode(response, _AggregatedList, "aggregated discovery").items or ():
        group = item.metadata.name
        versions = []
        for each in item.versions or ():
            resources = tuple(
                _aggregated_resource(group, each.version, found)
                for found in each.resources or ()
                if found.resource and found.response_kind and found.response_kind.kind
            )
            is_stale = each.freshness == "Stale"
            if is_stale:
                problems[_group_version(group, each.version)] = _stale(group, each.version)
                resources = resources or known.last_known(group, each.version)
            versions.append(Version(each.version, resources, is_stale))
        groups.append(Group(group, tuple(versions)))
    return groups


def _aggregated_resource(group: str, version: str, found: _AggregatedResource) -> Resource:
    assert found.response_kind is not None
    return Resource(
        gvr=GVR(group, version, found.resource),
        kind=found.response_kind.kind,
        singular=found.singular_resource or found.response_kind.kind.lower(),
        namespaced=found.scope == "Namespaced",
        short_names=tuple(found.short_names or ()),
        categories=tuple(found.categories or ()),
        verbs=frozenset(found.verbs or ()),
        subresources=frozenset(each.subresource for each in found.subresources or ()),
    )


def _read_by_version(
    response: Response, get: Get, known: Discovery, problems: dict[str, InformersError], *, is_core: bool
) -> Sequence[Group]:
    """Read the documents of the group versions that an index names, a few at a time."""
    from concurrent.futures import ThreadPoolExecutor  # for old servers only

    if is_core:
        wanted = [("", version) for version in _decode(response, _CoreVersions, "/api").versions or ()]
    else:
        wanted = [
            (group.name, version)
            for group in _decode(response, _GroupList, "/apis").groups or ()
            for version in _ordered(group)
        ]

    def read(wanted: tuple[str, str]) -> Version | InformersError:
        group, version = wanted
        path = GVR(group, version, "").path
        try:
            return Version(version, _listed_resources(group, version, _decode(get(path, LEGACY), _ResourceList, path)))
        except InformersError as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="discovery") as pool:
        found = list(pool.map(read, wanted))

    versions: dict[str, list[Version]] = {}
    for (group, version), result in zip(wanted, found, strict=True):
        present = versions.setdefault(group, [])
        if isinstance(result, Version):
            present.append(result)
        elif not isinstance(result, NotFoundError):  # gone since the index was read
            problems[_group_version(group, version)] = result
            present.append(Version(version, known.last_known(group, version), is_stale=True))
    return [Group(name, tuple(present)) for name, present in versions.items()]


def _ordered(group: _ListedGroup) -> Sequence[str]:
    names = [each.version for each in group.versions or ()]
    preferred = group.preferred_version.version if group.preferred_version else ""
    return sorted(names, key=lambda name: name != preferred)


def _listed_resources(group: str, version: str, found: _ResourceList) -> tuple[Resource, ...]:
    subresources: dict[str, set[str]] = {}
    for each in found.resources or ():
        name, slash, subresource = each.name.partition("/")
        if slash:
            subresources.setdefault(name, set()).add(subresource)
    return tuple(
        Resource(
            gvr=GVR(group, version, each.name),
            kind=each.kind,
            singular=each.singular_name or each.kind.lower(),
            namespaced=each.namespaced,
            short_names=tuple(each.short_names or ()),
            categories=tuple(each.categories or ()),
            verbs=frozenset(each.verbs or ()),
            subresources=frozenset(subresources.get(each.name, ())),
        )
        for each in found.resources or ()
        if each.name and each.kind and "/" not in each.name
    )


def _group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


def _stale(group: str, version: str) -> InformersError:
    name = printable(_group_version(group, version), limit=300)
    return InformersError(f"{name}: the API server cannot reach the service behind it")
