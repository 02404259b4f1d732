"""Tell clients what is served, in both forms: aggregated (`/api`, `/apis` at once) and legacy (a document a path)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from informers.testing.apiserver.kinds import Kind, Kinds

_STATUS_VERBS = ("get", "patch", "update")


def aggregated(kinds: Kinds, path: str) -> dict[str, Any] | None:
    """Build the `APIGroupDiscoveryList` (v2) of `/api` or `/apis`; None for another path."""
    if path.strip("/") not in {"api", "apis"}:
        return None
    wants_core = path.strip("/") == "api"
    served = [kind for kind in kinds.all() if (kind.gvr.group == "") == wants_core]
    items = []
    for group, of_group in groupby(served, key=lambda kind: kind.gvr.group):
        versions = [
            {
                "version": version,
                "resources": [_aggregated_resource(kind, kinds.verbs_told(kind)) for kind in members],
                "freshness": "Current",
            }
            for version, members in groupby(of_group, key=lambda kind: kind.gvr.version)
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": versions})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated_resource(kind: Kind, verbs: Sequence[str]) -> dict[str, Any]:
    # A real server leaves group and version of its own kinds empty: they are those of the list around them.
    group, version = (kind.gvr.group, kind.gvr.version) if kind.is_custom else ("", "")
    response_kind = {"group": group, "version": version, "kind": kind.kind}
    resource: dict[str, Any] = {
        "resource": kind.gvr.resource,
        "responseKind": response_kind,
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(verbs),
    }
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    if kind.subresources:
        resource["subresources"] = [
            {"subresource": name, "responseKind": response_kind, "verbs": list(_STATUS_VERBS)}
            for name in kind.subresources
        ]
    return resource


def legacy(kinds: Kinds, path: str) -> dict[str, Any] | None:
    """Build the legacy document of `/api`, `/apis`, `/api/v1`, `/apis/GROUP` or `/apis/GROUP/VERSION`, or None."""
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = dict.fromkeys(kind.gvr.group for kind in kinds.all() if kind.gvr.group)
            found = [_group(kinds, group) for group in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
        case ["api", version]:
            return _resources(kinds, "", version)
        case ["apis", group] if any(kind.gvr.group == group for kind in kinds.all()):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, group)}
        case ["apis", group, version] if group:
            return _resources(kinds, group, version)
        case _:
            return None


def _group(kinds: Kinds, group: str) -> dict[str, Any]:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version}
        for each, version in kinds.group_versions()
        if each == group
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(kinds: Kinds, group: str, version: str) -> dict[str, Any] | None:
    members = [kind for kind in kinds.all() if (kind.gvr.group, kind.gvr.version) == (group, version)]
    if not members:
        return None
    return {
        "kind": "APIResourceList",
        **({"apiVersion": "v1"} if group else {}),  # a real server leaves it out for the core group
        "groupVersion": members[0].api_version,
        "resources": [line for kind in members for line in _legacy_lines(kind, kinds.verbs_told(kind))],
    }


def _legacy_lines(kind: Kind, verbs: Sequence[str]) -> Sequence[dict[str, Any]]:
    line: dict[str, Any] = {
        "name": kind.gvr.resource,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(verbs),
    }
    if kind.short_names:
        line["shortNames"] = list(kind.short_names)
    if kind.categories:
        line["categories"] = list(kind.categories)
    stored = hashlib.sha256(f"{kind.storage}/{kind.stored_version}/{kind.kind}".encode()).digest()[:8]
    line["storageVersionHash"] = base64.b64encode(stored).decode()
    statuses = [
        {
            "name": f"{kind.gvr.resource}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(_STATUS_VERBS),
        }
        for name in kind.subresources
    ]
    return [line, *statuses]
