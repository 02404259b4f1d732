"""Say no the way a Kubernetes API server does: a `Status` object with its code, reason, message and details.

Every constructor here has the name of its reason; the texts are those of the real server (apimachinery
pkg/api/errors/errors.go), because clients and people read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from informers.testing.apiserver.kinds import Kind
    from informers.testing.apiserver.router import Target

_OMITTED: Final = object()


class StatusError(Exception):
    """Carry a failure Status to whoever writes the answer; `headers` go into that answer too."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers: dict[str, str] = dict(headers or {})
        self.metadata = metadata

    def to_dict(self) -> dict[str, Any]:
        """Build the Status object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(self.metadata or {}),
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = dict(self.details)
        status["code"] = self.code
        return status


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `details.causes`: the type of fault (`FieldValueInvalid`), the field's path, the text."""

    type: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        """Build the entry; an empty part is left out, as on the server."""
        parts = {"reason": self.type, "message": self.message, "field": self.field}
        return {name: text for name, text in parts.items() if text}


# --- causes: apimachinery pkg/util/validation/field/errors.go ---


def required(path: str, detail: str = "") -> Cause:
    """Say that a value is missing."""
    return Cause("FieldValueRequired", path, _with_detail("Required value", detail))


def duplicate(path: str, value: Any) -> Cause:
    """Say that a list has a value twice."""
    return Cause("FieldValueDuplicate", path, f"Duplicate value: {show(value)}")


def bad_value(path: str, value: Any, detail: str) -> Cause:
    """Say that a value is not allowed."""
    return Cause("FieldValueInvalid", path, _with_detail(f"Invalid value: {show(value)}", detail))


def bad_type(path: str, value: Any, detail: str) -> Cause:
    """Say that a value has the wrong JSON type."""
    return Cause("FieldValueTypeInvalid", path, _with_detail(f"Invalid value: {show(value)}", detail))


def not_supported(path: str, value: Any, supported: Sequence[Any]) -> Cause:
    """Say that a value is none of those allowed."""
    detail = f"supported values: {', '.join(show(each) for each in supported)}" if supported else ""
    return Cause("FieldValueNotSupported", path, _with_detail(f"Unsupported value: {show(value)}", detail))


def not_allowed(path: str, detail: str) -> Cause:
    """Say that a field may not be set, or not be changed."""
    return Cause("FieldValueForbidden", path, _with_detail("Forbidden", detail))


def too_long(path: str, limit: int) -> Cause:
    """Say that a value has more bytes than allowed."""
    return Cause("FieldValueTooLong", path, f"Too long: may not be more than {limit} byte{'' if limit == 1 else 's'}")


def too_many(path: str, count: int, limit: int) -> Cause:
    """Say that a list or map has more items than allowed."""
    items = "item" if limit == 1 else "items"
    return Cause("FieldValueTooMany", path, f"Too many: {count}: must have at most {limit} {items}")


def immutable(path: str, value: Any) -> Cause:
    """Say that a field may not change."""
    return bad_value(path, value, "field is immutable")


def show(value: Any) -> str:
    """Print a value as the server quotes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


# --- statuses ---


def not_found(kind: Kind, name: str) -> StatusError:
    """404: no object of this name."""
    return StatusError(404, "NotFound", f"{_resource(kind)} {_quoted(name)} not found", details=_details(kind, name))


def no_such_resource() -> StatusError:
    """404: no resource is served at this path of a known group version."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(kind: Kind, name: str) -> StatusError:
    """409: the name is taken."""
    message = f"{_resource(kind)} {_quoted(name)} already exists"
    return StatusError(409, "AlreadyExists", message, details=_details(kind, name))


def generate_name_conflict(kind: Kind, name: str) -> StatusError:
    """409: every generated name that was tried is taken."""
    message = (
        f"{_resource(kind)} {_quoted(name)} already exists, "
        "the server was not able to generate a unique name for the object"
    )
    return StatusError(409, "AlreadyExists", message, details=_details(kind, name) | {"retryAfterSeconds": 1})


def conflict(kind: Kind, name: str, why: str = "") -> StatusError:
    """409: the object changed since it was read, or a precondition failed."""
    told = why or ("the object has been modified; please apply your changes to the latest version and try again")
    message = f"Operation cannot be fulfilled on {_resource(kind)} {_quoted(name)}: {told}"
    return StatusError(409, "Conflict", message, details=_details(kind, name))


def precondition_failed(kind: Kind, name: str, field: str, wanted: str, found: str) -> StatusError:
    """409: the UID or resourceVersion (`field` is `UID` or `ResourceVersion`) is another than the request wants."""
    told = f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
    return conflict(kind, name, told)


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> StatusError:
    """422: the object was understood and breaks rules, one `Cause` each."""
    head = f"{kind.kind}.{kind.gvr.group}" if kind.gvr.group else kind.kind
    return invalid_of(head, kind.gvr.group, kind.kind, name, causes)


def invalid_of(head: str, group: str, kind: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """422 for something that is no served kind, such as `ListOptions.meta.k8s.io`."""
    texts = list(dict.fromkeys(str(cause) for cause in causes))
    told = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    message = f"{head} {_quoted(name)} is invalid" + (f": {told}" if texts else "")
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    if causes:
        details["causes"] = [cause.to_dict() for cause in causes]
    return StatusError(422, "Invalid", message, details=details)


def rejected() -> StatusError:
    """422 without a cause: what a JSON patch whose `test` fails, or whose path is absent, is answered with."""
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", details={})


def bad_request(message: str) -> StatusError:
    """400: the request cannot be read."""
    return StatusError(400, "BadRequest", message)


def unauthorized(message: str = "Unauthorized") -> StatusError:
    """401: the server does not know who asks."""
    return StatusError(401, "Unauthorized", message)


def forbidden(kind: Kind, name: str, why: str) -> StatusError:
    """403: known and not allowed."""
    message = f"{_resource(kind)}{f' {_quoted(name)}' if name else ''} is forbidden: {why}"
    return StatusError(403, "Forbidden", message, details=_details(kind, name))


def not_permitted(user: str, verb: str, target: Target) -> StatusError:
    """403: no rule lets this user do that; the words are those of a real server's authorizer."""
    name = f" {_quoted(target.name)}" if target.name else ""
    resource = f"{target.resource}/{target.subresource}" if target.subresource else target.resource
    where = f"in the namespace {_quoted(target.namespace)}" if target.namespace else "at the cluster scope"
    message = (
        f"{target.full_resource}{name} is forbidden: User {_quoted(user)} cannot {verb} resource {_quoted(resource)} "
        f"in API group {_quoted(target.group)} {where}"
    )
    details = {"name": target.name, "group": target.group, "kind": target.resource}
    return StatusError(403, "Forbidden", message, details={key: value for key, value in details.items() if value})


def path_not_permitted(user: str, method: str, path: str) -> StatusError:
    """403: no rule lets this user ask for a page that is no resource."""
    message = f"forbidden: User {_quoted(user)} cannot {method.lower()} path {_quoted(path)}"
    return StatusError(403, "Forbidden", message, details={})


def namespace_terminating(kind: Kind, name: str, namespace: str) -> StatusError:
    """403: nothing new is created in a namespace that is going away."""
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    error = forbidden(kind, name, why)
    cause = Cause("NamespaceTerminating", "metadata.namespace", f"namespace {namespace} is being terminated")
    error.details = {**(error.details or {}), "causes": [cause.to_dict()]}
    return error


def method_not_allowed() -> StatusError:
    """405: the path is served, not with this method."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """406: no media type of `Accept` can be produced."""
    message = f"only the following media types are accepted: {', '.join(accepted)}"
    return StatusError(406, "NotAcceptable", message)


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """415: the body's media type is none of those accepted."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)


def reads_json_only() -> StatusError:
    """415 for protobuf and the like, saying what helps."""
    message = (
        "the body of the request was in an unknown format - this server reads JSON only: "
        "use `kubectl create -f FILE` in place of `kubectl create KIND`; "
        "accepted media types include: application/json"
    )
    return StatusError(415, "UnsupportedMediaType", message)


def too_large(message: str) -> StatusError:
    """413: the body has more bytes than the server reads."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {message}")


def expired(message: str = "", continue_token: str | None = None) -> StatusError:
    """410: a resourceVersion or continue token is older than the history; a fresh token may come along."""
    told = message or "The resourceVersion for the provided list is too old."
    metadata = {"continue": continue_token} if continue_token else None
    return StatusError(410, "Expired", told, metadata=metadata)


def too_old_resource_version(wanted: int | str, oldest: int | str) -> StatusError:
    """410 of a watch: it wants events that are no longer kept."""
    return StatusError(410, "Expired", f"too old resource version: {wanted} ({oldest})")


def too_large_resource_version(wanted: int | str, current: int | str) -> StatusError:
    """504: the list wants a state that this server has not reached."""
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
        headers={"Retry-After": "1"},
    )


def too_many_requests(message: str = "", retry_after: int = 1) -> StatusError:
    """429: ask again later."""
    told = message or "Too many requests, please try again later."
    headers = {"Retry-After": str(retry_after)}
    return StatusError(429, "TooManyRequests", told, details={"retryAfterSeconds": retry_after}, headers=headers)


def internal_error(message: str) -> StatusError:
    """500: the server failed."""
    text = f"Internal error occurred: {message}"
    return StatusError(500, "InternalError", text, details={"causes": [{"message": message}]})


def unavailable(message: str = "the server is currently unable to handle the request") -> StatusError:
    """503: not now."""
    return StatusError(503, "ServiceUnavailable", message)


def success(kind: Kind, name: str, uid: str) -> dict[str, Any]:
    """Build the Status that answers a finished delete."""
    details = _details(kind, name) | {"uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _resource(kind: Kind) -> str:
    gvr = kind.gvr
    return f"{gvr.resource}.{gvr.group}" if gvr.group else gvr.resource


def _details(kind: Kind, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if kind.gvr.group:
        details["group"] = kind.gvr.group
    details["kind"] = kind.gvr.resource
    return details


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
