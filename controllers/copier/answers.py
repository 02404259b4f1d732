"""What an answer to a PATCH means for the rules it carried. Pure.

The server's own words are never used: they may quote the object. Status, reason, field names and the name of a
webhook are all there is to say.
"""

from __future__ import annotations

from typing import Final

from controllers.copier.metering import Sent
from controllers.copier.problems import RuleError
from informers import APIError, ConflictError, NotFoundError, ObjectRef, TooManyRequestsError, TransportError

_CONTENT: Final = frozenset({400, 413, 415, 422})


def is_other_object(error: APIError) -> bool:
    """Tell whether the target is not the object that was looked at any more, said as 422 instead of 409."""
    return error.status == 422 and any(cause.field == "metadata.uid" for cause in error.causes)


def may_be_failed_test(error: APIError) -> bool:
    """Tell whether this may be a failed `test` of a JSON patch, which cannot be told from a refusal without causes."""
    return error.status == 422 and not error.causes and not error.denied_by


def is_forbidden(error: APIError) -> bool:
    """Tell whether authorisation, not the content, is the trouble."""
    return error.status == 403 and not error.denied_by


def forbidden(ref: ObjectRef) -> RuleError:
    """Say which right is missing."""
    where = f" in namespace {ref.namespace}" if ref.namespace else ""
    group = f".{ref.gvr.group}" if ref.gvr.group else ""
    return RuleError("Forbidden", f"RBAC must allow: patch {ref.gvr.resource}{group}{where}")


def without_words(error: APIError) -> APIError:
    """Say the same without what the server said, which may quote the object; this is for logs."""
    return type(error)(
        status=error.status,
        reason=error.reason,
        retry_after=error.retry_after,
        ref=error.ref,
        verb=error.verb,
        cluster=error.cluster,
        where=error.where,
    )


def refusal(error: APIError, *, target_is_immutable: bool) -> RuleError | None:
    """Say why the content of a patch was refused; None when the answer is about something else."""
    if error.denied_by:
        return RuleError("AdmissionDenied", f"denied by {error.denied_by}")
    if error.status not in _CONTENT:
        return None
    causes = ", ".join(f"{cause.field or 'object'}: {cause.reason or 'refused'}" for cause in error.causes)
    text = f"the server answered {error.status} {error.reason}".rstrip() + (f": {causes}" if causes else "")
    if error.status == 413:
        return RuleError("TooLarge", text)
    # A cause for an immutable field has the reason of any other; the server's wording is all there is to
    # tell it by. A field may be called `immutable`, so the word alone says nothing.
    is_immutable = target_is_immutable or any("is immutable" in cause.message for cause in error.causes)
    return RuleError("Immutable" if is_immutable and error.status == 422 else "Invalid", text)


def sent_as(problem: APIError | TransportError) -> Sent:
    """Say under which result a PATCH that failed is counted."""
    if not isinstance(problem, APIError):
        return Sent.ERROR
    if problem.denied_by:
        return Sent.DENIED
    if is_other_object(problem) or isinstance(problem, ConflictError):
        return Sent.CONFLICT
    if is_forbidden(problem):
        return Sent.FORBIDDEN
    if isinstance(problem, NotFoundError):
        return Sent.GONE
    if isinstance(problem, TooManyRequestsError) or (problem.status == 503 and problem.retry_after is not None):
        return Sent.THROTTLED
    return Sent.INVALID if problem.status in _CONTENT else Sent.ERROR
