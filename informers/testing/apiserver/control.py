"""Drive a server from outside: faults, the request log, objects behind the API, tokens. JSON in, JSON out.

It listens on loopback only, and refuses what a web page could send: a foreign `Host`, or any `Origin`.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from informers.testing.apiserver.connections import BadRequestError, Connection, ConnectionGoneError
from informers.testing.apiserver.faults import FaultError, Plan
from informers.testing.apiserver.forms import Reply
from informers.testing.apiserver.requestlog import LoggedRequest, MatchError
from informers.testing.apiserver.router import HTTPRequest
from informers.testing.apiserver.service import NotServedError, Service
from informers.testing.apiserver.storage import decode
from informers.testing.apiserver.tokens import write_secret
from informers.testing.apiserver.wire import Wire

_LOG_MATCH: Final = frozenset({
    "since", "resource", "verb", "client", "path", "namespace", "name", "user", "status", "method", "subresource",
})  # fmt: skip
_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


class _RefusedError(Exception):
    """The request is answered with an error text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Control:
    """Answers the control API's requests."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._hosts: frozenset[str] = frozenset()

    def listen(self, port: int) -> str:
        """Note where it listens; return its URL."""
        self._hosts = frozenset(f"{host}:{port}" for host in _HOSTS)
        return f"http://127.0.0.1:{port}"

    def accepted(self, connection: Connection) -> bool:
        """Read from every connection."""
        return not connection.closing.is_set()

    def refuse(self, error: BadRequestError, connection: Connection) -> None:
        """Answer what is no request."""
        self._send(Reply.of({"error": str(error)}, error.status), connection)

    def handle(self, request: HTTPRequest, connection: Connection) -> bool:
        """Answer a request."""
        try:
            reply = self._answer(request)
        except _RefusedError as refused:
            reply = Reply.of({"error": refused.text}, refused.status)
        except (FaultError, MatchError, NotServedError, ValueError, TypeError, KeyError) as error:
            reply = Reply.of({"error": str(error) or type(error).__name__}, 400)
        return self._send(reply, connection)

    def _send(self, reply: Reply, connection: Connection) -> bool:
        try:
            Wire(connection, Plan(), LoggedRequest()).reply(reply)
        except ConnectionGoneError:
            return False
        return True

    def _answer(self, request: HTTPRequest) -> Reply:
        if request.headers.get("host", "") not in self._hosts or "origin" in request.headers:
            raise _RefusedError(403, "the control API answers local programs only")
        parts = [part for part in request.path.split("/") if part]
        handler = self._handlers().get((request.method, parts[0] if parts else ""))
        if handler is None:
            raise _RefusedError(404, f"no such endpoint: {request.method} {request.path}")
        return handler(request, parts[1:])

    def _handlers(self) -> Mapping[tuple[str, str], Callable[[HTTPRequest, Sequence[str]], Reply]]:
        return {
            ("POST", "_faults"): self._add_fault,
            ("GET", "_faults"): self._list_faults,
            ("DELETE", "_faults"): self._remove_faults,
            ("GET", "_requests"): self._list_requests,
            ("DELETE", "_requests"): self._clear_requests,
            ("GET", "_objects"): self._list_objects,
            ("PUT", "_objects"): self._put_objects,
            ("DELETE", "_objects"): self._remove_objects,
            ("POST", "_bulk"): self._bulk,
            ("POST", "_compact"): self._compact,
            ("POST", "_refuse"): self._refuse,
            ("POST", "_close"): self._close,
            ("POST", "_tokens"): self._add_token,
            ("DELETE", "_tokens"): self._revoke_token,
            ("POST", "_rules"): self._add_rule,
            ("GET", "_rules"): self._list_rules,
            ("DELETE", "_rules"): self._remove_rules,
            ("POST", "_tls"): self._rotate_tls,
            ("GET", "_state"): self._state,
        }

    # --- faults ---

    def _add_fault(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        return Reply.of({"id": self._service.add_fault(_object(request)).id}, 201)

    def _list_faults(self, _request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        return Reply.of([fault.to_dict() for fault in self._service.faults.all()])

    def _remove_faults(self, _request: HTTPRequest, rest: Sequence[str]) -> Reply:
        if not rest:
            self._service.clear_faults()
        elif not rest[0].isdecimal() or not self._service.remove_fault(int(rest[0])):
            raise _RefusedError(404, f"no such fault: {rest[0]}")
        return Reply.of({})

    # --- the log ---

    def _list_requests(self, request: HTTPRequest, rest: Sequence[str]) -> Reply:
        wait = list(rest) == ["wait"]
        match = _match_of(request, {"limit", "headers"} | ({"count", "timeout"} if wait else set()))
        headers = request.is_set("headers")
        if not wait:
            limit = request.parameter("limit")
            found: Sequence[LoggedRequest] = self._service.log.find(match, limit=int(limit) if limit else None)
            return Reply.of([entry.to_dict(headers=headers) for entry in found])
        count = int(request.parameter("count") or 1)
        timeout = min(float(request.parameter("timeout") or 5), 300.0)
        waited = self._service.log.wait(match, count=count, timeout=timeout)
        if waited is None:
            raise _RefusedError(408, f"{count} such requests did not come within {timeout:g} s")
        return Reply.of([entry.to_dict(headers=headers) for entry in waited])

    def _clear_requests(self, _request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        self._service.log.clear()
        return Reply.of({})

    # --- objects ---

    def _list_objects(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        _check_query(request, {"resource", "namespace", "name"})
        namespace = request.parameter("namespace") if request.has("namespace") else None
        found = self._service.objects(request.parameter("resource"), namespace, request.parameter("name"))
        return Reply.of(found)

    def _put_objects(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        _check_query(request, {"silent"})
        body = _json(request)
        objects = body if isinstance(body, list) else [body]
        silent = request.is_set("silent")
        records = [self._service.put(_manifest(obj), silent=silent) for obj in objects]
        return Reply.of({"resourceVersions": [str(record.rv) for record in records]})

    def _remove_objects(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        _check_query(request, {"resource", "namespace", "name", "silent"})
        resource, silent = request.parameter("resource"), request.is_set("silent")
        namespace = request.parameter("namespace")
        if not resource:
            raise _RefusedError(400, "resource is missing")
        names = [request.parameter("name")]
        if not names[0]:
            found = self._service.objects(resource, namespace or None)
            pairs = [(each["metadata"]["name"], each["metadata"].get("namespace", "")) for each in found]
        else:
            pairs = [(names[0], namespace)]
        removed = sum(self._service.remove(resource, name, where, silent=silent) for name, where in pairs)
        if names[0] and not removed:
            raise _RefusedError(404, f"no such object: {resource} {namespace}/{names[0]}")
        return Reply.of({"removed": removed})

    def _bulk(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        body = _object(request)
        _check_fields(body, {"resource", "namespace", "count", "bytes", "seed", "churn", "for"})
        resource = str(body.get("resource") or "configmaps")
        namespace = str(body.get("namespace") or "default")
        kind = self._service.find_kind(resource)
        if "churn" in body:
            return Reply.of({"changed": self._churn(resource, namespace, body)})
        count, size = int(body.get("count", 1)), int(body.get("bytes", 100))
        numbers = random.Random(int(body.get("seed", 0)))
        for index in range(count):
            text = _noise(numbers, size)
            obj = _filled(kind.api_version, kind.kind, namespace, f"bulk-{index:06d}", text)
            self._service.put(obj, complete=kind.kind in {"Secret", "ConfigMap"})
        return Reply.of({"created": count})

    def _churn(self, resource: str, namespace: str, body: Mapping[str, Any]) -> int:
        """Change objects at a rate for a time; answers when that is over."""
        rate, seconds = float(body["churn"]), float(body.get("for", 1))
        kind = self._service.find_kind(resource)
        found = self._service.objects(resource, namespace if kind.namespaced else None)
        if not found or rate <= 0:
            return 0
        start, changed = time.monotonic(), 0
        while time.monotonic() - start < seconds:
            obj = found[changed % len(found)]
            metadata = obj["metadata"]
            metadata["annotations"] = {**(metadata.get("annotations") or {}), "example.com/churn": str(changed)}
            self._service.put(obj, complete=True)
            changed += 1
            if self._service.stopping.wait(max(0.0, start + changed / rate - time.monotonic())):
                break
        return changed

    # --- the rest ---

    def _compact(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        body = _object(request)
        _check_fields(body, {"resource", "rv"})
        rv = body.get("rv")
        return Reply.of({"rv": self._service.compact(str(body.get("resource") or ""), None if rv is None else int(rv))})

    def _refuse(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        body = _object(request)
        _check_fields(body, {"for"})
        self._service.refuse_connections(float(body["for"]))
        return Reply.of({})

    def _close(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        body = _object(request)
        _check_fields(body, {"match", "how"})
        how = str(body.get("how") or "FIN")
        if how not in {"FIN", "RST"}:
            raise _RefusedError(400, f"how is {how!r}: want FIN or RST")
        return Reply.of({"closed": self._service.close_streams(body.get("match") or {}, how)})

    def _add_token(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        body = _object(request)
        _check_fields(body, {"user", "ttl", "token", "file", "every"})
        user = str(body.get("user") or "admin")
        ttl = None if body.get("ttl") is None else float(body["ttl"])
        if body.get("file"):
            every = None if body.get("every") is None else float(body["every"])
            token = self._service.tokens.keep_file(Path(body["file"]), user=user, ttl=ttl, every=every)
        else:
            token = self._service.tokens.add(value=str(body.get("token") or ""), user=user, ttl=ttl)
        return Reply.of({"id": token.id, "token": token.value, "user": token.user}, 201)

    def _revoke_token(self, _request: HTTPRequest, rest: Sequence[str]) -> Reply:
        if not rest or not self._service.tokens.revoke(rest[0]):
            raise _RefusedError(404, "no such token")
        return Reply.of({})

    def _add_rule(self, request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        return Reply.of({"id": self._service.rules.add(_object(request)).id}, 201)

    def _list_rules(self, _request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        return Reply.of([rule.to_dict() for rule in self._service.rules.all()])

    def _remove_rules(self, _request: HTTPRequest, rest: Sequence[str]) -> Reply:
        if not rest:
            self._service.rules.clear()
        elif not rest[0].isdecimal() or not self._service.rules.remove(int(rest[0])):
            raise _RefusedError(404, f"no such rule: {rest[0]}")
        return Reply.of({})

    def _rotate_tls(self, request: HTTPRequest, rest: Sequence[str]) -> Reply:
        if list(rest) != ["rotate"]:
            raise _RefusedError(404, f"no such endpoint: {request.method} {request.path}")
        body = _object(request)
        _check_fields(body, {"close", "file"})
        ca = self._service.rotate_tls(close=body.get("close") is True)
        if body.get("file"):
            write_secret(Path(body["file"]), ca)
        return Reply.of({"ca": ca})

    def _state(self, _request: HTTPRequest, _rest: Sequence[str]) -> Reply:
        return Reply.of(self._service.state())


def _json(request: HTTPRequest) -> Any:
    if not request.body.strip():
        return {}
    try:
        return decode(request.body)
    except msgspec.DecodeError as error:
        raise _RefusedError(400, f"the body is not JSON: {error}") from None


def _object(request: HTTPRequest) -> dict[str, Any]:
    body = _json(request)
    if not isinstance(body, dict):
        raise _RefusedError(400, "the body must be an object")
    return body


def _manifest(obj: Any) -> Mapping[str, Any]:
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict) or not obj["metadata"].get("name"):
        raise _RefusedError(400, "each item must be an object with metadata.name")
    return obj


def _check_fields(body: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(body) - known)
    if unknown:
        raise _RefusedError(400, f"unknown fields: {', '.join(unknown)}")


def _check_query(request: HTTPRequest, known: set[str]) -> None:
    unknown = sorted({name for name, _ in request.query} - known)
    if unknown:
        raise _RefusedError(400, f"unknown parameters: {', '.join(unknown)}")


def _match_of(request: HTTPRequest, others: set[str]) -> dict[str, Any]:
    _check_query(request, set(_LOG_MATCH) | others)
    return {name: value for name, value in request.query if name in _LOG_MATCH and value}


def _noise(numbers: random.Random, size: int) -> str:
    return base64.b64encode(numbers.randbytes(size)).decode()[:size]


def _filled(api_version: str, kind: str, namespace: str, name: str, text: str) -> dict[str, Any]:
    """Build an object that carries a text where its kind has room for one."""
    obj: dict[str, Any] = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
    match kind:
        case "Secret":
            obj.update(type="Opaque", data={"payload": base64.b64encode(text.encode()).decode()})
        case "ConfigMap":
            obj["data"] = {"payload": text}
        case _:
            obj["metadata"]["annotations"] = {"example.com/payload": text}
    return obj
