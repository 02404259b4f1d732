"""Answer one request: who asks, what for, which faults are in the way, then the work, then the log."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from informers.testing.apiserver import discovery, forms, openapi, reading, statuses
from informers.testing.apiserver.calls import Call
from informers.testing.apiserver.connections import Connection, ConnectionGoneError
from informers.testing.apiserver.faults import Fault, Plan
from informers.testing.apiserver.forms import Form, Reply
from informers.testing.apiserver.requestlog import LoggedRequest
from informers.testing.apiserver.router import HTTPRequest, Target
from informers.testing.apiserver.statuses import StatusError
from informers.testing.apiserver.watches import WatchOptions, WatchStream
from informers.testing.apiserver.wire import Wire

if TYPE_CHECKING:
    from informers.testing.apiserver.service import Service

log = logging.getLogger(__name__)

_GZIP_FROM: Final = 128 * 1024
_NOT_FOUND: Final = "404 page not found\n"


def serve(
    service: Service,
    request: HTTPRequest,
    target: Target,
    entry: LoggedRequest,
    user: str | None,
    connection: Connection,
) -> bool:
    """Answer a request that has been logged; tell whether the connection can be used for another."""
    plan = service.faults.plan(entry)
    if not plan.is_empty():
        words = [fault.word for fault in ([plan.decisive] if plan.decisive else []) + plan.shaping]
        entry.fault = "+".join(words)
    wire = Wire(connection, plan, entry, audit_id=request.headers.get("audit-id", ""))
    keeps, ended = False, "client"
    try:
        try:
            keeps, ended = _exchange(service, request, target, entry, user, connection, plan, wire)
        except ConnectionGoneError:
            raise
        except Exception:
            log.exception("request failed")
            service.log.answered(entry, 500)
            wire.reply(Reply.of_error(statuses.internal_error("the embedded API server failed")))
            ended = "done"
    except ConnectionGoneError:
        pass
    finally:
        service.log.end(entry, ended)
    return keeps


def _exchange(
    service: Service,
    request: HTTPRequest,
    target: Target,
    entry: LoggedRequest,
    user: str | None,
    connection: Connection,
    plan: Plan,
    wire: Wire,
) -> tuple[bool, str]:
    fault = plan.takes("request")
    if fault is not None:
        wire.end_before_headers(fault)
        return False, "fault"
    stands_in = _instead(plan)
    if stands_in is not None:
        return _reply(service, request, entry, stands_in, plan, wire)
    compact = plan.shape("COMPACT")
    if compact is not None:
        storage = target.kind.storage if target.kind is not None else None
        service.store.compact(storage=storage, rv=compact.get("rv"))
    ignore = plan.shape("IGNORE")
    if ignore is not None:
        ignored = set(ignore.get("params"))
        request = replace(request, query=[pair for pair in request.query if pair[0] not in ignored])
        if target.verb == "watch" and "watch" in ignored:
            target = replace(target, verb="list")
    is_watch = target.verb == "watch"
    conflict = plan.decides("CONFLICT")
    try:
        if user is None:
            raise statuses.unauthorized()
        if not service.rules.permits(entry):
            if target.page == "object":
                raise statuses.not_permitted(user, target.verb, target)
            raise statuses.path_not_permitted(user, request.method, request.path)
        if conflict is not None and not conflict.get("committed", False):
            raise _injected_conflict(target)
        answer = _work(service, request, target, entry, connection, plan)
        if conflict is not None:
            raise _injected_conflict(target)
    except StatusError as error:
        answer = Reply.of_error(error)
    fault = plan.takes("headers") or (None if is_watch else plan.takes("")) or plan.decides("DROPREPLY")
    if fault is not None:
        wire.end_before_headers(fault)
        return False, "fault"
    if isinstance(answer, WatchStream):
        service.log.answered(entry, 200)
        with service.open_stream(answer):
            return answer.run()
    return _reply(service, request, entry, answer, plan, wire)


def _reply(
    service: Service, request: HTTPRequest, entry: LoggedRequest, reply: Reply, plan: Plan, wire: Wire
) -> tuple[bool, str]:
    service.log.answered(entry, reply.status)
    _compress(request, reply)
    if plan.is_empty():
        # who has the answer finds the end in the log, so it is logged before the answer is sent
        entry.response_bytes = len(reply.body)
        service.log.end(entry, "done")
    try:
        wire.reply(reply, head_only=request.method == "HEAD")
    except ConnectionGoneError:
        entry.ended = "client"
        raise
    cut = plan.decides("TRUNC") or plan.takes("stream")
    return wire.keeps, "fault" if cut is not None else "done"


def _compress(request: HTTPRequest, reply: Reply) -> None:
    if len(reply.body) < _GZIP_FROM or "gzip" not in request.headers.get("accept-encoding", ""):
        return
    import gzip

    reply.body = gzip.compress(reply.body, compresslevel=1)
    reply.headers = [*reply.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]


def _instead(plan: Plan) -> Reply | None:
    """Build what a STATUS or DENY fault answers in place of the server."""
    fault = plan.decides("STATUS", "DENY")
    if fault is None:
        return None
    if fault.word == "DENY":
        return Reply.of_error(
            StatusError(403, "Forbidden", str(fault.get("message") or "forbidden: injected"), details={})
        )
    return _status_reply(fault)


def _status_reply(fault: Fault) -> Reply:
    code = int(fault.get("code"))
    headers = [(name, str(value)) for name, value in (fault.get("headers") or {}).items()]
    body = fault.get("body")
    if body is not None:
        named = next((value for name, value in headers if name.lower() == "content-type"), "text/plain; charset=utf-8")
        others = [pair for pair in headers if pair[0].lower() != "content-type"]
        return Reply(code, str(body).encode(), named, others)
    reason = fault.get("reason")
    error = StatusError(
        code, str(_REASONS.get(code, "") if reason is None else reason), str(fault.get("message") or "injected")
    )
    reply = Reply.of_error(error)
    reply.headers = headers
    return reply


_REASONS: Final = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


def _injected_conflict(target: Target) -> StatusError:
    if target.kind is None:
        return StatusError(409, "Conflict", "injected conflict", details={})
    return statuses.conflict(target.kind, target.name)


# --- the work ---


def _work(
    service: Service, request: HTTPRequest, target: Target, entry: LoggedRequest, connection: Connection, plan: Plan
) -> Reply | WatchStream:
    match target.page:
        case "object":
            return _object(service, request, target, entry, connection, plan)
        case "version":
            if not target.allowed:
                raise statuses.method_not_allowed()
            return Reply.of(service.version())
        case "health":
            return Reply.text("ok")
        case "discovery":
            return _discovery(service, request)
        case "openapi":
            return _openapi(service, request, target)
    return Reply.text(_NOT_FOUND, 404)


def _object(
    service: Service, request: HTTPRequest, target: Target, entry: LoggedRequest, connection: Connection, plan: Plan
) -> Reply | WatchStream:
    kind = target.kind
    if kind is None:
        if not target.group_served:
            return Reply.text(_NOT_FOUND, 404)
        raise statuses.no_such_resource()
    known = target.subresource in {"", *kind.subresources}
    if not known and not (kind.storage == "namespaces." and target.subresource == "finalize"):
        raise statuses.not_found(kind, target.name) if kind.is_custom else statuses.no_such_resource()
    if not target.allowed:
        raise statuses.method_not_allowed()
    call = Call(request, target, kind, _form(request, target), plan, entry)
    match target.verb:
        case "watch":
            options = WatchOptions.of(call, cap=service.watch_cap, streaming=service.streaming)
            return service.new_stream(call, options, connection)
        case "list":
            return reading.list_objects(service.store, call, watch_cache=service.watch_cache)
        case "get":
            return reading.get(service.store, call)
        case "create":
            return service.writer.create(call)
        case "update":
            return service.writer.update(call)
        case "patch":
            return service.writer.patch(call)
        case "delete":
            return service.writer.delete(call)
        case "deletecollection":
            return service.writer.delete_collection(call)
    raise statuses.method_not_allowed()


def _form(request: HTTPRequest, target: Target) -> Form:
    return forms.negotiate(
        request.headers.get("accept", ""),
        is_list=target.verb in {"list", "deletecollection"},
        is_watch=target.verb == "watch",
        include=request.parameter("includeObject"),
    )


def _discovery(service: Service, request: HTTPRequest) -> Reply:
    path = request.path.rstrip("/")
    aggregated = forms.wants_aggregated(request.headers.get("accept", "")) and service.aggregated_discovery
    kinds = service.kinds
    if aggregated and path in {"/api", "/apis"}:
        body = service.page(f"aggregated {path}", lambda: discovery.aggregated(kinds, path))
        return Reply(200, body, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
    body = service.page(path, lambda: discovery.legacy(kinds, path))
    if body != b"null":
        return Reply(200, body)
    if path.startswith("/api/"):
        raise statuses.no_such_resource()
    return Reply.text(_NOT_FOUND, 404)


def _openapi(service: Service, request: HTTPRequest, target: Target) -> Reply:
    if not forms.accepts_json(request.headers.get("accept", "")):
        raise statuses.not_acceptable(["application/json"])
    match target.parts:
        case ("openapi", "v2"):
            return Reply(200, service.page("openapi/v2", lambda: openapi.v2(service.kinds)))
        case ("openapi", "v3"):
            return Reply(200, service.page("openapi/v3", lambda: openapi.index(service.kinds)))
        case ("openapi", "v3", "api", version):
            group = ""
        case ("openapi", "v3", "apis", group, version):
            pass
        case _:
            return Reply.text(_NOT_FOUND, 404)
    if (group, version) not in service.kinds.group_versions():
        return Reply.text(_NOT_FOUND, 404)
    body = service.page(f"openapi/{group}/{version}", lambda: openapi.document(service.kinds, group, version))
    return Reply(200, body)
