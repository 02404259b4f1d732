"""Every exception of the framework, and the one function that makes them from what a server said.

::

    InformersError
    ├─ ConfigError               options, kubeconfig, names (exit status 2)
    ├─ APIError                  the server answered, and not with what was asked for
    │  ├─ BadRequestError 400 · UnauthorizedError 401 · ForbiddenError 403 · NotFoundError 404
    │  ├─ ConflictError 409 ─ AlreadyExistsError · ExpiredError 410 · InvalidError 422
    │  └─ TooManyRequestsError 429 · ServerError 5xx
    ├─ TransportError            no answer
    │  └─ ConnectError (refused, DNS, TLS) · ConnectionLost · RequestTimeout
    ├─ UnknownKindError · AmbiguousKindError
    ├─ NotSyncedError · StaleCacheError · NotSeenError
    ├─ NotLeaderError · LeadershipLostError
    └─ TerminalError             raised by a reconciler: do not retry

What is surprising: the text of an `APIError` leaves the server's message out wherever a server quotes
the object in it (facts seen on a real one: a 422 for a wrong type quotes the whole object, values included).
`.message` holds it all, for a program that redacts it itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from informers.meta.objects import Object
    from informers.meta.resources import GVR, ObjectRef

_MESSAGE_LIMIT: Final = 300
_LONGEST_WAIT: Final = 10**9  # JSON numbers may be longer than a float can hold
_READS: Final = frozenset({"get", "list", "watch", "discovery", "openapi", "version"})
# Answers to writes whose message names the object but never quotes its content.
_QUIET_STATUSES: Final = frozenset({401, 403, 404, 409, 410, 429})
_DENIED_BY: Final = (
    re.compile(r'admission webhook "([^"]{1,253})"'),
    re.compile(r"ValidatingAdmissionPolicy '([^']{1,253})'"),
)


class InformersError(Exception):
    """The root of everything this framework raises on purpose."""


class ConfigError(InformersError):
    """Say that an option, a kubeconfig or a name cannot be used; programs end with status 2."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `details.causes` of a Status: what kind of fault, at which field, the server's text."""

    reason: str
    field: str
    message: str


class APIError(InformersError):
    """Say that the API server answered with something else than what was asked for.

    Attributes:
        status: the HTTP status, 0 when there was no request (a read of the cache).
        reason: the Status' reason (`Conflict`, `Expired`, …).
        message: the server's full text; it may quote the object, so never log it.
        causes: `details.causes` of the Status.
        retry_after: seconds that the server asked to wait, or None.
        ref: the object or resource the request was about, as far as known.
        verb: get, list, watch, create, update, patch, delete, deletecollection, discovery, openapi, version.
        denied_by: the admission webhook or policy that refused, else "".
        details_kind: `details.kind` of the Status.
    """

    default_status = 0

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        reason: str = "",
        causes: Sequence[Cause] = (),
        retry_after: float | None = None,
        ref: ObjectRef | GVR | None = None,
        verb: str = "",
        cluster: str = "",
        where: str = "",
        found: str = "",
    ) -> None:
        self.status = self.default_status if status is None else status
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.retry_after = retry_after
        self.ref = ref
        self.verb = verb
        self.cluster = cluster
        self.where = where
        self.denied_by = _find_denier(message)
        self._found = found  # our own words, which quote nothing, in place of the server's
        super().__init__(self._text())

    def _text(self) -> str:
        wanted = " ".join(part for part in (self.verb, self.where or (str(self.ref) if self.ref else "")) if part)
        found = " ".join(part for part in (str(self.status) if self.status else "", self.reason) if part)
        cluster = f" (cluster {self.cluster})" if self.cluster else ""
        told = self._told()
        return ": ".join(part for part in (f"{wanted}{cluster}", found, told) if part) or type(self).__name__

    def _told(self) -> str:
        """Our own words, else what may be shown of the server's."""
        if self._found:
            return self._found
        if self.status == 0:
            return self.message
        secret = _is_about_secrets(self.ref, self.where)
        quiet = self.verb in _READS or self.status in _QUIET_STATUSES or self.status >= 500
        if quiet and not secret and not self.denied_by:
            return printable(self.message, limit=_MESSAGE_LIMIT)
        parts = [_cause_text(cause) for cause in self.causes]
        if self.denied_by:
            parts.append(f"denied by {printable(self.denied_by, limit=253)}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class BadRequestError(APIError):
    """400: the server could not read the request."""

    default_status = 400


class UnauthorizedError(APIError):
    """401: the server does not know who we are."""

    default_status = 401


class ForbiddenError(APIError):
    """403: the server knows who we are, and we may not."""

    default_status = 403


class NotFoundError(APIError):
    """404, or (status 0) a key that a cache does not hold."""


class ConflictError(APIError):
    """409: the object has changed since it was read; read again and decide again."""

    default_status = 409


class AlreadyExistsError(ConflictError):
    """409 on create: the name is taken."""


class ExpiredError(APIError):
    """410: the resourceVersion or continue token is older than the server's history."""

    default_status = 410


class InvalidError(APIError):
    """422: the object or patch was understood and refused; `.causes` says at which fields."""

    default_status = 422


class TooManyRequestsError(APIError):
    """429: ask again after `.retry_after`."""

    default_status = 429


class ServerError(APIError):
    """5xx: the server failed; the outcome of a write is unknown."""

    default_status = 500


class TransportError(InformersError):
    """No answer: the request may or may not have reached the server."""


class ConnectError(TransportError):
    """No connection: refused, no such host, TLS failed. Nothing was sent."""


class ConnectionLost(TransportError):  # noqa: N818 - the field's word, and part of the public API
    """The connection ended before the answer did."""


class RequestTimeout(TransportError):  # noqa: N818 - the field's word, and part of the public API
    """The answer did not come in time."""


class UnknownKindError(InformersError):
    """No resource of the cluster has this name; `.candidates` are near ones, or the versions that are served."""

    def __init__(self, message: str, *, text: str = "", candidates: Sequence[str] = ()) -> None:
        self.text = text
        self.candidates = tuple(candidates)
        super().__init__(message)


class AmbiguousKindError(InformersError):
    """Several groups have a resource of this name; `.candidates` lists them in the long form."""

    def __init__(self, message: str, *, text: str = "", candidates: Sequence[str] = ()) -> None:
        self.text = text
        self.candidates = tuple(candidates)
        super().__init__(message)


class NotSyncedError(InformersError):
    """The cache has not seen its first list (or this object's body) yet; a worker parks the key until it has.

    Attributes:
        problem: why there is no list, where that is known.
        known: the metadata of the object, where only its body is missing.
        cluster: of the informer that has not synced; None when the error names none.
        gvr: what that informer follows; None when nobody knows yet what a resource's name stands for.
    """

    def __init__(
        self,
        message: str = "",
        *,
        problem: InformersError | None = None,
        known: Object | None = None,
        cluster: str | None = None,
        gvr: GVR | None = None,
    ) -> None:
        self.problem = problem
        self.known = known
        self.cluster = cluster
        self.gvr = gvr
        super().__init__(message)


class StaleCacheError(InformersError):
    """The cache has not heard from the server for longer than the selection allows."""


class NotSeenError(InformersError):
    """The cache did not show a resourceVersion within the time given."""


class NotLeaderError(InformersError):
    """The fence is closed: nothing was sent."""


class LeadershipLostError(InformersError):
    """The lease was lost; the process ends."""


class TerminalError(InformersError):
    """Raised by a reconciler: trying again cannot help before something changes."""


_BY_STATUS: Final[Mapping[int, type[APIError]]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    422: InvalidError,
    429: TooManyRequestsError,
}
# For Status objects that carry a reason but no code. Source: apimachinery pkg/apis/meta/v1/types.go.
_STATUS_BY_REASON: Final[Mapping[str, int]] = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "NotAcceptable": 406,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Gone": 410,
    "Expired": 410,
    "RequestEntityTooLarge": 413,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "ServiceUnavailable": 503,
    "ServerTimeout": 504,
    "Timeout": 504,
}


def api_error(
    status: int,
    body: Mapping[str, Any] | None,
    *,
    verb: str = "",
    ref: ObjectRef | GVR | None = None,
    cluster: str = "",
    where: str = "",
    retry_after: float | None = None,
) -> APIError:
    """Make the error for an HTTP answer, or (with `status` 0) for a Status object inside a stream.

    `body` is the decoded Status, or None when there was none or it was not one. Code, reason and causes
    decide the class; text never does.
    """
    given = body if isinstance(body, Mapping) else {}
    details = given.get("details")
    details = details if isinstance(details, Mapping) else {}
    reason = _text_of(given.get("reason"))
    code = given.get("code")
    found = status or (code if isinstance(code, int) and not isinstance(code, bool) else 0)
    found = found or _STATUS_BY_REASON.get(reason, 0) or 500
    wait = details.get("retryAfterSeconds")
    if retry_after is None and isinstance(wait, int | float) and not isinstance(wait, bool) and wait > 0:
        retry_after = float(min(wait, _LONGEST_WAIT))
    return _class_for(found, reason)(
        _text_of(given.get("message")),
        status=found,
        reason=reason,
        causes=_causes_of(details.get("causes")),
        retry_after=retry_after,
        ref=ref,
        verb=verb,
        cluster=cluster,
        where=where,
    )


def is_expired(error: BaseException) -> bool:
    """Tell whether a list, page or watch failed because its resourceVersion has aged out."""
    return isinstance(error, APIError) and (error.status == 410 or error.reason in {"Expired", "Gone"})


def is_too_large(error: BaseException) -> bool:
    """Tell whether the server has not yet reached the resourceVersion that was asked for.

    A cause of type ResourceVersionTooLarge says so; servers before 1.19 say it in words only.
    """
    if not isinstance(error, APIError):
        return False
    if any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes):
        return True
    words = (error.message, *(cause.message for cause in error.causes))
    return error.reason == "Timeout" and any("Too large resource version" in text for text in words)


def printable(text: str, *, limit: int) -> str:
    """Put text of others on one line of at most `limit` characters, control characters escaped."""
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _class_for(status: int, reason: str) -> type[APIError]:
    if reason == "AlreadyExists":
        return AlreadyExistsError
    if reason in {"Expired", "Gone"}:
        return ExpiredError
    if status >= 500:
        return ServerError
    return _BY_STATUS.get(status, APIError)


def _causes_of(value: object) -> Sequence[Cause]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(
        Cause(_text_of(item.get("reason")), _text_of(item.get("field")), _text_of(item.get("message")))
        for item in value
        if isinstance(item, Mapping)
    )


def _cause_text(cause: Cause) -> str:
    immutable = " field is immutable" if "immutable" in cause.message else ""
    return printable(f"{cause.field or 'object'}: {cause.reason or 'refused'}{immutable}", limit=_MESSAGE_LIMIT)


def _find_denier(message: str) -> str:
    for pattern in _DENIED_BY:
        if found := pattern.search(message):
            return found[1]
    return ""


def _is_about_secrets(ref: ObjectRef | GVR | None, where: str) -> bool:
    gvr = getattr(ref, "gvr", ref)
    return getattr(gvr, "resource", "") == "secrets" or "secrets" in where


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""
