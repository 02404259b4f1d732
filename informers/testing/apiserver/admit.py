"""Turn what a client sent into what is stored, or refuse it with the real server's words.

`create` and `update` read the body into its type (dropping or refusing unknown fields), add defaults, keep status and
spec apart, raise the generation, and validate. `read` gives a stored object the form in which one version is served.

They set nothing that names a moment or a place in history: uid, creationTimestamp, deletionTimestamp and
resourceVersion are the storage's business. (Set `metadata.uid` before `create` if the kind may be a Job: its
selector is made of it.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from informers.testing.apiserver import builtins, names, schemas, structural
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.statuses import (
    Cause,
    bad_request,
    bad_value,
    immutable,
    invalid,
    invalid_of,
    not_allowed,
)

_FROM_OLD: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is to be stored, and what the client is to be warned of (one `Warning` header each)."""

    obj: dict[str, Any]
    warnings: Sequence[str] = ()


def create(
    kind: Kind, body: Mapping[str, Any], *, field_validation: str = "Warn", raw: bytes | None = None
) -> Admitted:
    """Admit a new object. `raw` is the body's JSON text, in which duplicate fields are looked for.

    Raises `StatusError`.
    """
    obj, warnings = read_in(kind, body, field_validation=field_validation, raw=raw)
    metadata = obj["metadata"]
    for field in ("generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        metadata.pop(field, None)
    if kind.has_generation:
        metadata["generation"] = 1
    if kind.custom is not None:
        if kind.has_status:
            obj.pop("status", None)
    else:
        _drop_status(kind, obj)
        builtins.rules_of(kind.gvr.group, kind.gvr.resource).prepare(obj, None)
    _refuse(kind, obj, _causes(kind, obj, None))
    return Admitted(_as_stored(kind, obj), warnings)


def update(
    kind: Kind,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    subresource: str = "",
    field_validation: str = "Warn",
    raw: bytes | None = None,
) -> Admitted:
    """Admit what replaces a stored object; with subresource `status`, only its status is taken.

    Raises `StatusError`.
    """
    obj, warnings = read_in(kind, new, field_validation=field_validation, raw=raw)
    before = read(kind, old)
    if subresource == "status":
        obj = _only_status(obj, before)
    metadata, metadata_before = obj["metadata"], before["metadata"]
    identity = list(_identity_causes(metadata, metadata_before))
    for field in _FROM_OLD:
        if field in metadata_before:
            metadata[field] = metadata_before[field]
        else:
            metadata.pop(field, None)
    if kind.custom is None:
        if not subresource:
            _keep_status(kind, obj, before)
            builtins.rules_of(kind.gvr.group, kind.gvr.resource).prepare(obj, dict(before))
    elif kind.has_status and not subresource:
        obj.pop("status", None)
        if "status" in before:
            obj["status"] = before["status"]
    _raise_generation(kind, obj, before)
    _refuse(kind, obj, [*identity, *_causes(kind, obj, before)])
    return Admitted(_as_stored(kind, obj), warnings)


def _as_stored(kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
    """Drop what the stored version of a custom resource cannot hold."""
    custom = kind.custom
    if custom is not None and custom.stored_structural is not custom.structural:
        structural.prune(obj, custom.stored_structural)
    return obj


def read(kind: Kind, obj: Mapping[str, Any]) -> dict[str, Any]:
    """Give a stored object the form that one version serves; the object itself when that is what it has."""
    same = obj.get("apiVersion") == kind.api_version
    custom = kind.custom
    if custom is None:
        return _as_dict(obj) if same else builtins.convert_event(obj, kind.api_version)
    if same and not custom.structural.has_defaults:
        return _as_dict(obj)
    served: dict[str, Any] = structural.copy(_as_dict(obj))
    if not same:
        served["apiVersion"] = kind.api_version
        structural.prune(served, custom.structural)
    structural.default(served, custom.structural)
    return served


def _as_dict(obj: Mapping[str, Any]) -> dict[str, Any]:
    return obj if isinstance(obj, dict) else dict(obj)


# --- reading in ---


def read_in(
    kind: Kind, body: Mapping[str, Any], *, field_validation: str = "Warn", raw: bytes | None = None
) -> tuple[dict[str, Any], Sequence[str]]:
    """Read a body into the kind's type, with its defaults; give what the client is to be warned of.

    Raises `StatusError` 400 when the body is of another kind or type, or (Strict) has unknown or duplicate fields.
    """
    _check_kind(kind, body)
    strict: list[str] = []
    if raw is not None and field_validation != "Ignore":
        strict.extend(f'duplicate field "{path}"' for path in duplicate_fields(raw))
        if strict and not kind.is_custom:
            # Go reads an object that stands twice into the same place: both count.
            body = {**body, **{key: value for key, value in _joined(raw).items() if key != "metadata"}}
    unknown: list[str] = []
    try:
        obj = shape(kind, body, unknown)
    except schemas.DecodeError as error:
        raise bad_request(f"{_not_handled(kind)}: {error}") from None
    strict.extend(f'unknown field "{path}"' for path in unknown)
    if strict and field_validation == "Strict":
        raise bad_request(f"{_not_handled(kind)}: strict decoding error: {', '.join(strict)}")
    return obj, strict if field_validation != "Ignore" else ()


def shape(kind: Kind, body: Mapping[str, Any], unknown: list[str]) -> dict[str, Any]:
    """Read a body into the kind's type and add defaults; raises `schemas.DecodeError`."""
    custom = kind.custom
    if custom is not None:
        obj = _shape_custom(custom.structural, body, unknown)
    else:
        node = schemas.builtin(kind.gvr.group, kind.gvr.version, kind.kind)
        obj = schemas.decode(node, _as_dict(body), unknown=unknown)
        metadata = obj.setdefault("metadata", {})
        if (body.get("metadata") or {}).get("managedFields") == []:
            metadata["managedFields"] = []  # not the same as none: it clears the record, of built-in kinds
        builtins.rules_of(kind.gvr.group, kind.gvr.resource).fill_in(obj)
    obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind
    return obj


def _shape_custom(schema: structural.Structural, body: Mapping[str, Any], unknown: list[str]) -> dict[str, Any]:
    obj: dict[str, Any] = {key: structural.copy(value) for key, value in body.items() if key != "metadata"}
    metadata = body.get("metadata")
    missing: list[str] = []
    read = {} if metadata is None else schemas.decode(schemas.object_meta(), metadata, unknown=missing)
    unknown.extend(f"metadata.{path}" for path in missing)
    structural.prune(obj, schema, unknown=unknown)
    if schema.has_embedded:
        structural.coerce_embedded(obj, schema, unknown)
    obj["metadata"] = read
    structural.default(obj, schema)
    return obj


def _check_kind(kind: Kind, body: Mapping[str, Any]) -> None:
    version, name = body.get("apiVersion"), body.get("kind")
    if version == kind.api_version and name == kind.kind:
        return
    if kind.is_custom:
        if not name or not version:
            missing = "apiVersion" if name else "Kind"
            raise bad_request(
                f"the object provided is unrecognized (must be of type {kind.kind}): "
                f"Object '{missing}' is missing in '{_start_of(body)}'"
            )
        if version == kind.api_version:
            shown = body.get("metadata")
            given = shown.get("name", "") if isinstance(shown, Mapping) else ""
            cause = bad_value("kind", name, f"must be {kind.kind}")
            raise invalid_of(f"{name}.{kind.gvr.group}", kind.gvr.group, str(name), given, [cause])
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({kind.api_version})"
        )
    if version in (None, "", kind.api_version) and name in (None, "", kind.kind):
        return
    number = str(version or kind.api_version).rpartition("/")[2]
    head = f'{name or kind.kind} in version "{number}" cannot be handled as a {kind.kind}'
    if name not in (None, "", kind.kind):
        raise bad_request(
            f"{head}: converting ({number}.{name}) to ({kind.gvr.group or 'core'}.{kind.kind}): unknown conversion"
        )
    raise bad_request(f'{head}: no kind "{kind.kind}" is registered for version "{version}" in scheme')


def _start_of(body: Mapping[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))[:100]


def _not_handled(kind: Kind) -> str:
    return f'{kind.kind} in version "{kind.gvr.version}" cannot be handled as a {kind.kind}'


def duplicate_fields(raw: bytes) -> Sequence[str]:
    """Name the fields that stand more than once in one object of a JSON text; none when it cannot be read."""
    found = False

    def notice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        out = dict(pairs)
        found = found or len(out) != len(pairs)
        return out

    try:
        json.loads(raw, object_pairs_hook=notice)
        if not found:
            return ()
        return list(dict.fromkeys(_duplicates(json.loads(raw, object_pairs_hook=_Pairs), "")))
    except ValueError:
        return ()


def _joined(raw: bytes) -> dict[str, Any]:
    """Read a JSON text so that objects under the same key are joined; of other values the last one counts."""

    def join(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            both = isinstance(value, dict) and isinstance(out.get(key), dict)
            out[key] = {**out[key], **value} if both else value
        return out

    found: dict[str, Any] = json.loads(raw, object_pairs_hook=join)
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written, duplicates included."""


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, each in value:
            place = f"{path}.{key}" if path else key
            if key in seen:
                yield place
            seen.add(key)
            yield from _duplicates(each, place)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _duplicates(each, f"{path}[{index}]")


# --- status and spec ---


def _drop_status(kind: Kind, obj: dict[str, Any]) -> None:
    """Empty the status of a new built-in object: what a client says about it does not count."""
    if kind.has_status and "status" in obj:
        field = schemas.builtin(kind.gvr.group, kind.gvr.version, kind.kind).fields["status"]
        obj["status"] = schemas.zero_value(field.node)


def _keep_status(kind: Kind, obj: dict[str, Any], before: Mapping[str, Any]) -> None:
    if kind.has_status:
        obj.pop("status", None)
        if "status" in before:
            obj["status"] = before["status"]


def _only_status(obj: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Take the status, and of metadata what the storage looks at."""
    out = {key: value for key, value in before.items() if key != "status"}
    if "status" in obj:
        out["status"] = obj["status"]
    metadata = dict(before["metadata"])
    for field in ("resourceVersion", "managedFields", "uid", "name", "namespace"):
        if field in obj["metadata"]:
            metadata[field] = obj["metadata"][field]
        else:
            metadata.pop(field, None)
    out["metadata"] = metadata
    return out


def _raise_generation(kind: Kind, obj: dict[str, Any], before: Mapping[str, Any]) -> None:
    metadata = obj["metadata"]
    metadata.pop("generation", None)
    generation = before["metadata"].get("generation")
    if not kind.has_generation:
        if generation is not None:
            metadata["generation"] = generation
        return
    ignored = {"metadata", "status"} if kind.has_status else {"metadata"}
    changed = any(obj.get(key) != before.get(key) for key in {*obj, *before} if key not in ignored)
    metadata["generation"] = (generation or 0) + changed


# --- validation ---


def _refuse(kind: Kind, obj: Mapping[str, Any], causes: Sequence[Cause]) -> None:
    if causes and kind.storage == "events.":
        raise invalid_of(kind.kind, "", kind.kind, obj["metadata"].get("name", ""), causes)
    if causes:
        raise invalid(kind, obj["metadata"].get("name", ""), causes)


def _causes(kind: Kind, obj: dict[str, Any], before: Mapping[str, Any] | None) -> list[Cause]:
    custom = kind.custom
    rules = builtins.rules_of(kind.gvr.group, kind.gvr.resource)
    name_faults = names.subdomain_faults if custom is not None else rules.name_faults
    causes = names.metadata_causes(obj["metadata"], namespaced=kind.namespaced, name_faults=name_faults)
    if custom is not None:
        causes.extend(structural.validate(obj, custom.structural))
        return causes
    if kind.gvr.group != "apiextensions.k8s.io":
        causes.extend(names.standard_finalizer_causes(obj["metadata"].get("finalizers") or ()))
    node = schemas.builtin(kind.gvr.group, kind.gvr.version, kind.kind)
    causes.extend(rules.causes(obj, None if before is None else dict(before)))
    causes.extend(cause for cause in builtins.enum_causes(node, obj) if cause not in causes)
    return causes


def _identity_causes(metadata: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Cause]:
    for field in ("name", "namespace", "uid"):
        given = metadata.get(field)
        if given and given != before.get(field):
            yield immutable(f"metadata.{field}", given)
    if before.get("deletionTimestamp"):
        added = [each for each in metadata.get("finalizers") or () if each not in (before.get("finalizers") or ())]
        if added:
            shown = ", ".join(f'"{each}"' for each in sorted(added))
            detail = (
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{shown}}}"
            )
            yield not_allowed("metadata.finalizers", detail)
