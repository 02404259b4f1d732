"""Publish the shape of what is served as OpenAPI: v3, a document for each group version, and v2, one for all.

kubectl reads the v3 index and documents to validate (it looks for the query parameter `fieldValidation`), to choose
a kind of patch (by the media types of `patch`), and to explain.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from informers.testing.apiserver import patching, schemas
from informers.testing.apiserver.kinds import Kind, Kinds

_REF: Final = "#/components/schemas/"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."


def index(kinds: Kinds) -> dict[str, Any]:
    """Build `/openapi/v3`: where each group version's document is, under a URL that changes when it does."""
    paths = {}
    for group, version in kinds.group_versions():
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={hash_of(kinds, group, version)}"}
    return {"paths": paths}


def document(kinds: Kinds, group: str, version: str) -> dict[str, Any] | None:
    """Build the document of one group version, or None when it is not served. Do not change what you get."""
    members = _members(kinds, group, version)
    return _document(members)[0] if members else None


def hash_of(kinds: Kinds, group: str, version: str) -> str:
    """Give a hash of a group version's document: also its ETag."""
    members = _members(kinds, group, version)
    return _document(members)[1] if members else ""


def v2(kinds: Kinds) -> dict[str, Any]:
    """Build `/openapi/v2` for everything served. Do not change what you get."""
    return _v2(tuple(kinds.all()))


def _members(kinds: Kinds, group: str, version: str) -> tuple[Kind, ...]:
    return tuple(kind for kind in kinds.all() if (kind.gvr.group, kind.gvr.version) == (group, version))


@functools.lru_cache(maxsize=64)
def _document(members: tuple[Kind, ...]) -> tuple[dict[str, Any], str]:
    built = {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": schemas.published()["version"]},
        "paths": {path: item for kind in members for path, item in _paths(kind)},
        "components": {
            "schemas": _closure(members),
            "securitySchemes": {
                "BearerToken": {
                    "type": "apiKey",
                    "description": "Bearer Token authentication",
                    "name": "authorization",
                    "in": "header",
                }
            },
        },
    }
    text = json.dumps(built, sort_keys=True, separators=(",", ":"))
    return built, hashlib.sha256(text.encode()).hexdigest().upper()


# --- schemas ---


def definition_name(kind: Kind) -> str:
    """Name the schema of a kind: published, or made of the reversed group as the server does for custom ones."""
    if kind.custom is None:
        name = schemas.definition_name(kind.gvr.group, kind.gvr.version, kind.kind)
        assert name is not None
        return name
    return ".".join((*reversed(kind.gvr.group.split(".")), kind.gvr.version, kind.kind))


def _closure(members: Sequence[Kind]) -> dict[str, Any]:
    """Collect the schemas of some kinds and all that these refer to."""
    published = schemas.published()["schemas"]
    found: dict[str, Any] = {}
    todo = [_META + name for name in ("Patch", "Status", "DeleteOptions", "WatchEvent", "ObjectMeta", "ListMeta")]
    for kind in members:
        if kind.custom is not None:
            found[definition_name(kind)] = _custom_schema(kind)
            found[f"{definition_name(kind)}List"] = _list_schema(kind)
        else:
            todo.extend((definition_name(kind), f"{definition_name(kind)}List"))
    while todo:
        name = todo.pop()
        if name not in found and name in published:
            found[name] = _cleaned(name)
            todo.extend(_references(found[name]))
    return dict(sorted(found.items()))


@functools.cache
def _cleaned(name: str) -> dict[str, Any]:
    cleaned = _without_own_extensions(schemas.published()["schemas"][name])
    assert isinstance(cleaned, dict)
    return cleaned


def _without_own_extensions(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_own_extensions(each) for key, each in value.items() if key not in schemas.OWN_EXTENSIONS}
    if isinstance(value, list):
        return [_without_own_extensions(each) for each in value]
    return value


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        ref = value.get("$ref")
        if isinstance(ref, str):
            yield ref.removeprefix(_REF)
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


_API_VERSION: Final = {
    "description": "APIVersion defines the versioned schema of this representation of an object.",
    "type": "string",
}
_KIND: Final = {
    "description": "Kind is a string value representing the REST resource this object represents.",
    "type": "string",
}


def _custom_schema(kind: Kind) -> dict[str, Any]:
    assert kind.custom is not None
    schema = dict(kind.custom.schema)
    if not (schema.get("x-kubernetes-preserve-unknown-fields") and not schema.get("properties")):
        properties = {"apiVersion": _API_VERSION, "kind": _KIND, **(schema.get("properties") or {})}
        metadata = {"description": "Standard object's metadata.", "allOf": [{"$ref": f"{_REF}{_META}ObjectMeta"}]}
        schema["properties"] = {**properties, "metadata": metadata}
    schema["type"] = "object"
    schema["x-kubernetes-group-version-kind"] = [_gvk(kind)]
    return schema


def _list_schema(kind: Kind) -> dict[str, Any]:
    return {
        "description": f"{kind.list_kind} is a list of {kind.kind}",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": _API_VERSION,
            "kind": _KIND,
            "items": {"type": "array", "items": {"$ref": f"{_REF}{definition_name(kind)}"}},
            "metadata": {"allOf": [{"$ref": f"{_REF}{_META}ListMeta"}]},
        },
        "x-kubernetes-group-version-kind": [{**_gvk(kind), "kind": kind.list_kind}],
    }


def _gvk(kind: Kind) -> dict[str, str]:
    return {"group": kind.gvr.group, "version": kind.gvr.version, "kind": kind.kind}


# --- paths ---


def _paths(kind: Kind) -> Iterator[tuple[str, dict[str, Any]]]:
    base, name = kind.gvr.path, kind.gvr.resource
    parameters = [_path_parameter("namespace")] if kind.namespaced else []
    home = f"{base}/namespaces/{{namespace}}/{name}" if kind.namespaced else f"{base}/{name}"
    if kind.namespaced:
        yield f"{base}/{name}", {"get": _operation(kind, "list")}
    collection = {"get": _operation(kind, "list")}
    if "create" in kind.verbs:
        collection["post"] = _operation(kind, "post")
    if "deletecollection" in kind.verbs:
        collection["delete"] = _operation(kind, "deletecollection")
    yield home, {**collection, "parameters": parameters}
    inside = [_path_parameter("name"), *parameters]
    methods = (("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete"))
    item = {method: _operation(kind, method) for verb, method in methods if verb in kind.verbs}
    yield f"{home}/{{name}}", {**item, "parameters": inside}
    for subresource in kind.subresources:
        item = {method: _operation(kind, method) for method in ("get", "put", "patch")}
        yield f"{home}/{{name}}/{subresource}", {**item, "parameters": inside}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}


def _query(name: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": True}}


_LIST_PARAMETERS: Final = (
    *(
        _query(name)
        for name in ("continue", "fieldSelector", "labelSelector", "resourceVersion", "resourceVersionMatch")
    ),
    *(_query(name, "boolean") for name in ("allowWatchBookmarks", "sendInitialEvents", "watch")),
    *(_query(name, "integer") for name in ("limit", "timeoutSeconds")),
)
_WRITE_PARAMETERS: Final = tuple(_query(name) for name in ("dryRun", "fieldManager", "fieldValidation"))
_DELETE_PARAMETERS: Final = (
    _query("dryRun"),
    _query("gracePeriodSeconds", "integer"),
    _query("orphanDependents", "boolean"),
    _query("propagationPolicy"),
)


def _operation(kind: Kind, action: str) -> dict[str, Any]:
    whole = {"$ref": f"{_REF}{definition_name(kind)}"}
    answer: Mapping[str, Any] = whole
    operation: dict[str, Any] = {"x-kubernetes-action": action, "x-kubernetes-group-version-kind": _gvk(kind)}
    match action:
        case "list":
            answer = {"$ref": f"{_REF}{definition_name(kind)}List"}
            operation["parameters"] = list(_LIST_PARAMETERS)
        case "post" | "put":
            operation["parameters"] = list(_WRITE_PARAMETERS)
            operation["requestBody"] = {"content": {"*/*": {"schema": whole}}, "required": True}
        case "patch":
            operation["parameters"] = [*_WRITE_PARAMETERS, _query("force", "boolean")]
            patch = {"schema": {"$ref": f"{_REF}{_META}Patch"}}
            content = dict.fromkeys(sorted(patching.accepted_types(kind)), patch)
            operation["requestBody"] = {"content": content, "required": True}
        case "delete" | "deletecollection":
            answer = {"$ref": f"{_REF}{_META}Status"}
            operation["parameters"] = list(_DELETE_PARAMETERS)
            options = {"schema": {"$ref": f"{_REF}{_META}DeleteOptions"}}
            operation["requestBody"] = {"content": {"*/*": options}}
    ok = {"description": "OK", "content": {"application/json": {"schema": answer}}}
    operation["responses"] = {"200": ok, "401": {"description": "Unauthorized"}}
    return operation


# --- version 2 ---


@functools.lru_cache(maxsize=4)
def _v2(members: tuple[Kind, ...]) -> dict[str, Any]:
    definitions = {name: _to_v2(schema) for name, schema in _closure(members).items()}
    paths = {path: _path_to_v2(item) for kind in members for path, item in _paths(kind)}
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": schemas.published()["version"]},
        "paths": paths,
        "definitions": definitions,
    }


def _to_v2(schema: Any) -> Any:
    """Write a v3 schema in v2's words: other references, no oneOf."""
    if isinstance(schema, list):
        return [_to_v2(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            out[key] = {name: _to_v2(each) for name, each in value.items()}  # a property may be called $ref, or not
        elif key == "$ref":
            out[key] = value.replace(_REF, "#/definitions/")
        elif key == "allOf" and len(value) == 1 and "$ref" in value[0]:
            out["$ref"] = value[0]["$ref"].replace(_REF, "#/definitions/")
        elif key == "oneOf" and not out.get("type"):
            out["type"] = "string"
        elif key not in {"oneOf", "anyOf", "not", "nullable"}:
            out[key] = _to_v2(value)
    return out


def _path_to_v2(item: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for method, operation in item.items():
        if method == "parameters":
            out[method] = [_parameter_to_v2(each) for each in operation]
            continue
        copied = {key: value for key, value in operation.items() if key not in {"requestBody", "responses"}}
        copied["parameters"] = [_parameter_to_v2(each) for each in operation.get("parameters", ())]
        if body := operation.get("requestBody"):
            media_types = list(body["content"])
            schema = next(iter(body["content"].values()))["schema"]
            copied["consumes"] = media_types
            copied["parameters"].append({"name": "body", "in": "body", "schema": _to_v2(schema)})
        answers = operation["responses"].items()
        copied["responses"] = {code: _response_to_v2(answer) for code, answer in answers}
        out[method] = copied
    return out


def _parameter_to_v2(parameter: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in parameter.items() if key != "schema"}, **parameter["schema"]}


def _response_to_v2(answer: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"description": answer["description"]}
    for content in answer.get("content", {}).values():
        out["schema"] = _to_v2(content["schema"])
    return out
