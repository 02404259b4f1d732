"""Apply a patch request to a stored object: merge, JSON and strategic merge patches.

Apply patches are not served: they are answered with 415, and so are strategic merge patches of custom resources,
which have no merge keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from informers.api import patch as patches
from informers.testing.apiserver import admit, schemas
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.statuses import (
    StatusError,
    bad_request,
    bad_value,
    invalid_of,
    rejected,
    too_large,
    unsupported_media_type,
)

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_MOST_OPERATIONS: Final = 10_000


def published_types(kind: Kind) -> Sequence[str]:
    """Name the media types that a real server lists for a kind, apply patches among them."""
    return (*accepted_types(kind), APPLY_PATCH)


def accepted_types(kind: Kind) -> Sequence[str]:
    """Name the media types of the patches that a kind takes."""
    return (JSON_PATCH, MERGE_PATCH) if kind.is_custom else (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)


def apply_patch(
    kind: Kind, current: Mapping[str, Any], content_type: str, body: bytes, *, field_validation: str = "Warn"
) -> dict[str, Any]:
    """Give what `current` becomes; hand it to `admit.update` next.

    `field_validation` Strict refuses unknown and duplicate fields here, as the server does: with 422 and not 400.

    Raises `StatusError`: 400 for a body that is no such patch, 415 for another media type, 422 for a patch that
    does not fit the object, or whose result cannot be read.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in accepted_types(kind):
        is_apply = media_type.startswith("application/apply-patch")
        raise unsupported_media_type(accepted_types(kind) if is_apply else published_types(kind))
    patch = _parse(media_type, body)
    result = _apply(kind, current, media_type, patch)
    if not isinstance(result, dict):
        raise _unreadable(result, f"json: cannot unmarshal {_json_name(result)} into Go value of type {kind.kind}")
    _check_readable(kind, result, body if media_type != JSON_PATCH else None, field_validation)
    return result


def _parse(media_type: str, body: bytes) -> Any:
    try:
        patch = json.loads(body)
    except ValueError:
        raise bad_request("error decoding patch: unexpected end of JSON input") from None
    if media_type == JSON_PATCH:
        if not isinstance(patch, list) or not all(isinstance(each, dict) for each in patch):
            found = _json_name(
                patch if not isinstance(patch, list) else next(e for e in patch if not isinstance(e, dict))
            )
            raise bad_request(
                f"error decoding patch: json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
            )
        if len(patch) > _MOST_OPERATIONS:
            raise too_large(f"The allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {len(patch)}")
    elif not isinstance(patch, dict):
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {_json_name(patch)} "
            "into Go value of type map[string]interface {}"
        )
    return patch


def _json_name(value: Any) -> str:
    names = ((bool, "bool"), (str, "string"), (dict, "object"), (list, "array"), (type(None), "null"))
    return next((name for kind, name in names if isinstance(value, kind)), "number")


def _as_merged(patch: Any) -> Any:
    """Leave out null members of maps inside lists: not as RFC 7396 says, but as a real API server does it."""
    if isinstance(patch, Mapping):
        return {key: _as_merged(value) for key, value in patch.items()}
    return _without_nulls(patch) if isinstance(patch, list) else patch


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _apply(kind: Kind, current: Mapping[str, Any], media_type: str, patch: Any) -> Any:
    try:
        if media_type == JSON_PATCH:
            return patches.apply_json(current, patch, lenient=True)
        if media_type == MERGE_PATCH:
            return patches.apply_merge(current, _as_merged(patch))
        return patches.strategic_merge(current, patch, merge_keys(kind))
    except patches.PatchError as error:
        if media_type == JSON_PATCH:
            raise rejected() from None
        if error.is_malformed:
            raise bad_request(str(error)) from None
        raise StatusError(500, "", str(error)) from None


def merge_keys(kind: Kind) -> patches.MergeKeys:
    """Make the function that tells how each field of a built-in kind is merged."""
    root = schemas.builtin(kind.gvr.group, kind.gvr.version, kind.kind)

    def rule(path: tuple[str, ...]) -> patches.MergeRule | None:
        node: schemas.Node = root
        found: schemas.Field | None = None
        for name in path:
            while node.kind == "list" and node.element is not None:
                node = node.element.node
            found = node.fields.get(name) or node.element
            if found is None:
                return None
            node = found.node
        if found is None:
            return None
        return patches.MergeRule(
            merge="merge" in found.strategies, replace="replace" in found.strategies, key=found.merge_key
        )

    return rule


def _check_readable(kind: Kind, result: dict[str, Any], body: bytes | None, field_validation: str) -> None:
    """Refuse a result that the kind's type cannot hold; the server quotes the whole of it."""
    strict: list[str] = []
    if body is not None and field_validation == "Strict":
        strict.extend(f'duplicate field "{path}"' for path in admit.duplicate_fields(body))
    if result.get("apiVersion", kind.api_version) != kind.api_version or result.get("kind", kind.kind) != kind.kind:
        given = f'no kind "{result.get("kind")}" is registered for version "{result.get("apiVersion")}" in scheme'
        raise _unreadable(result, given)
    unknown: list[str] = []
    try:
        admit.shape(kind, result, unknown)
    except schemas.DecodeError as error:
        raise _unreadable(result, str(error)) from None
    if field_validation == "Strict":
        strict.extend(f'unknown field "{path}"' for path in unknown)
        if strict:
            raise _unreadable(result, f"strict decoding error: {', '.join(strict)}")


def _unreadable(result: Any, why: str) -> StatusError:
    quoted = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    return invalid_of("", "", "", "", [bad_value("patch", quoted, why)])
