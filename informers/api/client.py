"""Read and write objects of any kind, in any of the clusters: the reference names the cluster.

Every write asks the fence first, and is never sent while that is closed. A worker lends the client, for the length
of a reconcile, a deadline that its calls end by and a function that learns of each write: `lend()`.

What comes back is what the server sent, `managedFields` included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from informers.api.calls import NOT_CARRIED_OUT, NotSent, OutcomeUnknown, Response
from informers.api.fence import Fence, cut
from informers.api.kubeconfig import is_unicode
from informers.api.transport import Transport
from informers.meta.errors import (
    APIError,
    ConfigError,
    ConflictError,
    ConnectError,
    RequestTimeout,
    ServerError,
    TransportError,
    is_expired,
    printable,
)
from informers.meta.objects import JSON, Envelope, Metadata, Object, decode_envelope
from informers.meta.resources import GVR, ObjectRef

PatchKind: TypeAlias = Literal["merge", "json", "strategic", "apply"]

_READ_TIMEOUT: Final = 30.0
_WRITE_TIMEOUT: Final = 15.0
_LIST_TIMEOUT: Final = 60.0
_JSON: Final = "application/json"
_PARTIAL: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_PARTIAL_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_PATCH_TYPES: Final[Mapping[str, str]] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PRECONDITIONS: Final = frozenset({"/metadata/resourceVersion", "/metadata/uid"})
# What decoders raise for what is not JSON, or is nested without end.
_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Write:
    """One write as a worker learns of it: the object as the answer shows it, or that the answer was lost.

    `obj` is None for a deletion and when the answer was lost. A lost write may or may not have been carried out.
    One that was `refused` by a conflict is lost as well: it met a newer state than its caches show, which a write of
    its own, sent twice on the way, may have made.
    """

    ref: ObjectRef
    obj: Object | None
    deleted: bool
    lost: bool
    refused: bool = False


@dataclass(frozen=True, slots=True)
class _Lent:
    deadline: float | None
    wrote: Callable[[Write], None]
    part: str


_lent: ContextVar[_Lent | None] = ContextVar("informers_lent", default=None)
_asking: ContextVar[str] = ContextVar("informers_asking", default="client")


@contextmanager
def lend(*, deadline: float | None, wrote: Callable[[Write], None], part: str = "") -> Iterator[None]:
    """Have calls of this thread end by `deadline` (on the monotonic clock), and `wrote` learn of each write.

    `wrote` is called before the writing method returns or raises; not for dry runs. `part` is who asks, as the
    server's logs show it.
    """
    token = _lent.set(_Lent(deadline, wrote, part))
    try:
        yield
    finally:
        _lent.reset(token)


@contextmanager
def asking_as(part: str) -> Iterator[None]:
    """Have calls of this thread outside of reconciles name who asks, as the server's logs show it."""
    token = _asking.set(part)
    try:
        yield
    finally:
        _asking.reset(token)


def collection_path(gvr: GVR, namespace: str = "") -> str:
    """Return the path of a resource, in one namespace or (`""`) cluster-wide. Raises `ConfigError` for a bad name."""
    for part, value in (("version", gvr.version), ("resource", gvr.resource), ("group", gvr.group or "core")):
        _check_name(part, value, str(gvr))
    group = f"/apis/{_quoted(gvr.group)}" if gvr.group else "/api"
    inside = ""
    if namespace:
        _check_name("namespace", namespace, str(gvr))
        inside = f"/namespaces/{_quoted(namespace)}"
    return f"{group}/{_quoted(gvr.version)}{inside}/{_quoted(gvr.resource)}"


def object_path(ref: ObjectRef, subresource: str = "") -> str:
    """Return the path of an object or of a subresource of it. Raises `ConfigError` for a bad name."""
    _check_name("name", ref.name, str(ref.gvr))
    path = f"{collection_path(ref.gvr, ref.namespace)}/{_quoted(ref.name)}"
    if subresource:
        _check_name("subresource", subresource, str(ref))
        path = f"{path}/{_quoted(subresource)}"
    return path


class Client:
    """One client for all clusters; the reference, or `cluster`, names the one. Use it from any thread.

    All methods raise an `APIError` for what the server refuses, a `TransportError` when no answer came, and
    `ConfigError` (nothing is sent) for a name that cannot be one, an unknown cluster or a bad option. Writing methods
    raise `NotLeaderError` (nothing is sent) while the fence is closed. A `timeout` covers the whole call; default
    30 s for reads, 15 s for writes, 60 s for each page of a list.
    """

    def __init__(
        self, transports: Mapping[str, Transport], *, fence: Fence | None = None, dry_run: bool = False
    ) -> None:
        self._transports = dict(transports)
        self._fence = fence or Fence()
        self._dry_run = dry_run

    def get(
        self, ref: ObjectRef, *, subresource: str = "", metadata_only: bool = False, timeout: float | None = None
    ) -> Object:
        """Read one object; with `metadata_only` the server sends a `PartialObjectMetadata`, if it can."""
        transport = self._transport(ref.cluster)
        response = transport.request(
            "GET",
            object_path(ref, subresource),
            accept=_PARTIAL if metadata_only else _JSON,
            timeout=_time_for(transport, timeout, _READ_TIMEOUT),
            verb="get",
            ref=ref,
            part=_part(),
        )
        return _object_in(response, ref.gvr, ref, verb="get", cluster=ref.cluster)

    def list(
        self,
        gvr: GVR,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        limit: int = 500,
        metadata_only: bool = False,
        cluster: str = "",
        timeout: float | None = None,
    ) -> Iterator[Object]:
        """Read all objects, `limit` at a time (0 = all at once), as the iterator is advanced.

        When the server has forgotten the snapshot between two pages, the rest comes from one list in full; no object
        comes twice.
        """
        if limit < 0:
            msg = f"limit is {limit}, want 0 (no limit) or more"
            raise ConfigError(msg)
        transport = self._transport(cluster)
        path = collection_path(gvr, namespace or "")
        _time_for(transport, timeout, _LIST_TIMEOUT)  # complain now, not when the iterator is advanced
        selectors = [("labelSelector", labels)] * bool(labels) + [("fieldSelector", fields)] * bool(fields)

        def page(limit: int, token: str) -> _List:
            paging = [("limit", str(limit))] * bool(limit) + [("continue", token)] * bool(token)
            response = transport.request(
                "GET",
                path,
                query=[*selectors, *paging],
                accept=_PARTIAL_LIST if metadata_only else _JSON,
                timeout=_time_for(transport, timeout, _LIST_TIMEOUT),
                verb="list",
                ref=gvr,
                where=f"{gvr} in {namespace}" if namespace else "",
                part=_part(),
            )
            return _list_in(response, gvr, cluster)

        return _all_pages(page, limit, gvr, cluster)

    def create(
        self,
        gvr: GVR,
        body: Mapping[str, JSON] | bytes,
        *,
        namespace: str = "",
        cluster: str = "",
        field_manager: str,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Object:
        """Create an object and return it as stored. Raises `AlreadyExistsError` if the name is taken."""
        data = _encoded(body)
        name = _metadata_of(data).name
        return self._write(
            "POST",
            collection_path(gvr, namespace),
            ObjectRef(gvr, namespace, name, cluster),
            body=data,
            content_type=_JSON,
            field_manager=field_manager,
            dry_run=dry_run,
            timeout=timeout,
            verb="create",
        )

    def update(
        self,
        ref: ObjectRef,
        body: Mapping[str, JSON] | bytes,
        *,
        subresource: str = "",
        field_manager: str,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Object:
        """Replace an object and return it as stored. Raises `ConflictError` if its resourceVersion has moved on."""
        data = _encoded(body)
        meta = _metadata_of(data)
        return self._write(
            "PUT",
            object_path(ref, subresource),
            ref,
            body=data,
            content_type=_JSON,
            field_manager=field_manager,
            dry_run=dry_run,
            timeout=timeout,
            retry_safe=bool(meta.resource_version or meta.uid),
            verb="update",
        )

    def patch(
        self,
        ref: ObjectRef,
        patch: Mapping[str, JSON] | Sequence[JSON] | bytes,
        *,
        kind: PatchKind = "merge",
        subresource: str = "",
        field_manager: str,
        force: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Object:
        """Change an object and return it as stored; bytes are sent as they are.

        `force` is for `kind="apply"`: take over fields that others own. Raises `ConflictError` when a precondition
        in the patch does not hold, or others own what is applied; `InvalidError`; `NotFoundError`.
        """
        if kind not in _PATCH_TYPES:
            msg = f"patch kind is {kind!r}, want one of {', '.join(_PATCH_TYPES)}"
            raise ConfigError(msg)
        if force and kind != "apply":
            msg = f"force is for patches of kind 'apply', this is {kind!r}"
            raise ConfigError(msg)
        data = _encoded(patch)
        return self._write(
            "PATCH",
            object_path(ref, subresource),
            ref,
            body=data,
            content_type=_PATCH_TYPES[kind],
            query=[("force", "true")] if force else [],
            field_manager=field_manager,
            dry_run=dry_run,
            timeout=timeout,
            retry_safe=_has_precondition(data, kind),
            verb="patch",
        )

    def delete(
        self,
        ref: ObjectRef,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Delete an object, only if it still has this uid and resourceVersion where they are given.

        Raises `NotFoundError` if it is not there, `ConflictError` if it is another one by now.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        is_dry = dry_run or self._dry_run
        given = {key: value for key, value in preconditions.items() if value}
        options = _delete_options(propagation, given, is_dry=is_dry)
        call = _WriteCall(
            "DELETE",
            object_path(ref),
            ref,
            body=_encoded(options),
            query=self._write_query("", dry_run=dry_run),
            timeout=timeout,
            retry_safe=bool(uid or resource_version),
            is_dry=is_dry,
            verb="delete",
        )
        self._send(call)
        call.tell(Write(ref, None, deleted=True, lost=False))

    def delete_collection(
        self,
        gvr: GVR,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        cluster: str = "",
        timeout: float | None = None,
    ) -> None:
        """Delete all objects of a resource that the selectors match."""
        selectors = [("labelSelector", labels)] * bool(labels) + [("fieldSelector", fields)] * bool(fields)
        call = _WriteCall(
            "DELETE",
            collection_path(gvr, namespace),
            ObjectRef(gvr, namespace, "", cluster),
            body=_encoded(_delete_options("Background", {}, is_dry=self._dry_run)),
            query=[*selectors, *self._write_query("", dry_run=False)],
            timeout=timeout,
            is_dry=True,  # which objects it was is not known, so nobody is told
            verb="deletecollection",
        )
        self._send(call)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, JSON] | bytes | None = None,
        content_type: str = "",
        accept: str = _JSON,
        cluster: str = "",
        timeout: float | None = None,
    ) -> Response:
        """Send any request; what is not GET, HEAD or OPTIONS counts as a write, and gets `dryRun` in a dry run."""
        transport = self._transport(cluster)
        method = method.upper()
        is_read = method in _SAFE_METHODS
        seconds = _time_for(transport, timeout, _READ_TIMEOUT if is_read else _WRITE_TIMEOUT)
        if not is_read:
            seconds = cut(self._fence, seconds)
            query = [*query, *self._write_query("", dry_run=False)]
            if self._dry_run and method == "DELETE" and body is not None:
                body = _dry_options(body)
        return transport.request(
            method,
            path,
            query=query,
            body=None if body is None else _encoded(body),
            content_type=content_type,
            accept=accept,
            timeout=seconds,
            fence=None if is_read else self._fence,
            part=_part(),
        )

    def _write(
        self,
        method: str,
        path: str,
        ref: ObjectRef,
        *,
        body: bytes,
        content_type: str,
        query: Sequence[tuple[str, str]] = (),
        field_manager: str,
        dry_run: bool,
        timeout: float | None,
        retry_safe: bool = False,
        verb: str,
    ) -> Object:
        """Send a write that is answered with the object, and tell of it."""
        call = _WriteCall(
            method,
            path,
            ref,
            body=body,
            content_type=content_type,
            query=[*query, *self._write_query(field_manager, dry_run=dry_run)],
            timeout=timeout,
            retry_safe=retry_safe,
            is_dry=dry_run or self._dry_run,
            verb=verb,
        )
        response = self._send(call)
        try:
            obj = _object_in(response, ref.gvr, ref, verb=verb, cluster=ref.cluster)
        except APIError:
            call.tell(Write(ref, None, deleted=False, lost=True))
            raise
        call.tell(Write(obj.ref, obj, deleted=False, lost=False))
        return obj

    def _send(self, call: _WriteCall) -> Response:
        """Send a write through the fence; tell if its answer was lost."""
        transport = self._transport(call.ref.cluster)
        timeout = cut(self._fence, _time_for(transport, call.timeout, _WRITE_TIMEOUT))
        try:
            return transport.request(
                call.method,
                call.path,
                query=call.query,
                body=call.body,
                content_type=call.content_type,
                timeout=timeout,
                retry_safe=call.retry_safe,
                fence=self._fence,
                verb=call.verb,
                ref=call.ref if call.ref.name else None,
                where="" if call.ref.name else _shown_collection(call.ref),
                part=_part(),
            )
        except (TransportError, APIError) as error:
            is_unknown = _is_outcome_unknown(error)
            if is_unknown or isinstance(error, ConflictError):
                is_deletion = call.method == "DELETE"
                call.tell(Write(call.ref, None, deleted=is_deletion, lost=True, refused=not is_unknown))
            raise

    def _write_query(self, field_manager: str, *, dry_run: bool) -> Sequence[tuple[str, str]]:
        query = [("fieldManager", field_manager)] if field_manager else []
        if dry_run or self._dry_run:
            query.append(("dryRun", "All"))
        return query

    def _transport(self, cluster: str) -> Transport:
        try:
            return self._transports[cluster]
        except KeyError:
            known = ", ".join(repr(name) for name in self._transports)
            msg = f"no cluster is named {printable(cluster, limit=80)!r}, known are {known}"
            raise ConfigError(msg) from None


@dataclass(frozen=True, slots=True)
class _WriteCall:
    """One write, on its way."""

    method: str
    path: str
    ref: ObjectRef  # the name is "" where it is not known: generateName, collections
    body: bytes = field(repr=False)
    content_type: str = _JSON
    query: Sequence[tuple[str, str]] = ()
    timeout: float | None = None
    retry_safe: bool = False
    is_dry: bool = False
    verb: str = ""

    def tell(self, write: Write) -> None:
        """Tell whoever lent us a function for it."""
        lent = _lent.get()
        if lent is not None and not self.is_dry and write.ref.name:
            lent.wrote(write)


class _ListMetadata(msgspec.Struct, frozen=True, kw_only=True, rename={"token": "continue"}):
    token: str | None = None


class _List(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    kind: str = ""
    api_version: str = ""
    metadata: _ListMetadata = _ListMetadata()
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


_decode_list: Final = msgspec.json.Decoder(_List).decode
_decode_any: Final = msgspec.json.Decoder().decode


def _encode_other(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    msg = f"a {type(value).__name__} is not JSON"
    raise ConfigError(msg)


_encoder: Final = msgspec.json.Encoder(enc_hook=_encode_other)


def _encoded(body: Mapping[str, Any] | Sequence[Any] | bytes) -> bytes:
    if isinstance(body, bytes):
        return body
    try:
        data = _encoder.encode(body)
        if b"null" in data and _holds_no_number(body):
            # msgspec would write null, which in a merge patch deletes a key.
            msg = "the body cannot be written as JSON: it holds NaN or an infinity"
            raise ConfigError(msg)
        return data
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # Half a surrogate pair, a mapping that holds itself, ...; the error's text may quote a value.
        msg = f"the body cannot be written as JSON: {type(error).__name__}"
        raise ConfigError(msg) from None


def _holds_no_number(value: object) -> bool:
    """Tell whether a float that JSON cannot write is somewhere in `value`."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_holds_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_no_number, value))


def _metadata_of(body: bytes) -> Metadata:
    try:
        return decode_envelope(body).metadata
    except _NOT_JSON:
        # YAML, or no object at all: the server will say.
        return Envelope().metadata


def _has_precondition(body: bytes, kind: PatchKind) -> bool:
    """Tell whether a patch fails if it was carried out already, or the object is another one by now."""
    if kind != "json":
        meta = _metadata_of(body)
        return bool(meta.resource_version or meta.uid)
    try:
        operations = _decode_any(body)
    except _NOT_JSON:
        return False
    return isinstance(operations, list) and any(
        isinstance(each, dict) and each.get("op") in {"test", "replace"} and each.get("path") in _PRECONDITIONS
        for each in operations
    )


def _delete_options(propagation: str, preconditions: Mapping[str, str], *, is_dry: bool) -> Mapping[str, JSON]:
    if propagation not in {"Background", "Foreground", "Orphan"}:
        msg = f"propagation is {printable(propagation, limit=40)!r}, want Background, Foreground or Orphan"
        raise ConfigError(msg)
    options: dict[str, JSON] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
    if preconditions:
        options["preconditions"] = dict(preconditions)
    return _dry_options(options) if is_dry else options


def _dry_options(body: Mapping[str, JSON] | bytes) -> Mapping[str, JSON]:
    """Say in the body of a deletion that it is a trial: a server that is given options there ignores the query's.

    Raises `ConfigError` for a body that has no room for it.
    """
    try:
        options = msgspec.json.decode(body, type=dict[str, Any]) if isinstance(body, bytes) else dict(body)
    except msgspec.MsgspecError as error:
        msg = (
            f"a deletion in a dry run: want DeleteOptions in JSON as the body, got {len(body)} bytes of something else"
        )
        raise ConfigError(msg) from error
    return {**options, "dryRun": ["All"]}


def _all_pages(page: Callable[[int, str], _List], limit: int, gvr: GVR, cluster: str) -> Iterator[Object]:
    seen: set[str] = set()
    present, token = page(limit, ""), ""
    while True:
        for obj in _objects_in(present, gvr, cluster):
            if obj.ref.key not in seen:
                seen.add(obj.ref.key)
                yield obj
        token = present.metadata.token or ""
        if not token:
            return
        try:
            present = page(limit, token)
        except APIError as error:
            if not is_expired(error):
                raise
            present = page(0, "")


def _objects_in(found: _List, gvr: GVR, cluster: str) -> Iterator[Object]:
    items = found.items or ()
    kind = found.kind.removesuffix("List")
    # Items of most lists leave out what the list says for all of them.
    missing = b'{"kind":%b,"apiVersion":%b,' % (_encoder.encode(kind), _encoder.encode(found.api_version))
    for item in items:
        raw = bytes(item)
        try:
            obj = Object.parse(raw, gvr, cluster=cluster)
            if not obj.kind and not obj.api_version:
                obj = Object.parse(missing + raw.lstrip()[1:], gvr, cluster=cluster)
        except _NOT_JSON:
            msg = "want a list of objects, an item of the answer is something else"
            raise APIError(
                msg, found=msg, status=200, reason="UnexpectedAnswer", verb="list", ref=gvr, cluster=cluster
            ) from None
        yield obj


def _list_in(response: Response, gvr: GVR, cluster: str) -> _List:
    try:
        found = _decode_list(response.body)
    except _NOT_JSON:
        found = _List()
    if not found.kind.endswith("List") or found.items is msgspec.UNSET:
        raise _unwanted(response, found.kind, "a list", verb="list", ref=gvr, cluster=cluster)
    return found


def _object_in(response: Response, gvr: GVR, ref: ObjectRef, *, verb: str, cluster: str) -> Object:
    try:
        obj = Object.parse(response.body, gvr, cluster=cluster)
    except _NOT_JSON:
        raise _unwanted(response, "", "an object", verb=verb, ref=ref, cluster=cluster) from None
    if obj.kind in {"", "Status", "Table"} or obj.kind.endswith("List") or not obj.name:
        raise _unwanted(response, obj.kind, "an object", verb=verb, ref=ref, cluster=cluster)
    return obj


def _unwanted(response: Response, kind: str, wanted: str, *, verb: str, ref: ObjectRef | GVR, cluster: str) -> APIError:
    found = f"a {printable(kind, limit=80)}" if kind else "something else"
    msg = f"want {wanted}, the answer is {found}"
    return APIError(
        msg, found=msg, status=response.status, reason="UnexpectedAnswer", verb=verb, ref=ref, cluster=cluster
    )


def _is_outcome_unknown(error: TransportError | APIError) -> bool:
    if isinstance(error.__cause__, OutcomeUnknown):
        return True  # it was sent more than once: this is what came of the last time
    if isinstance(error, APIError):
        if error.status < 300:
            return True  # accepted, and answered with something else than asked for
        return isinstance(error, ServerError) and error.status not in NOT_CARRIED_OUT
    return not isinstance(error, ConnectError | NotSent)


def _part() -> str:
    lent = _lent.get()
    return (lent.part if lent is not None else "") or _asking.get()


def _time_for(transport: Transport, timeout: float | None, default: float) -> float:
    """Return how long a call may take: what the caller says, and never past the deadline lent by a worker."""
    seconds = default if timeout is None else timeout
    if not 0 < seconds < math.inf:
        msg = f"timeout is {seconds}, want more than 0 seconds"
        raise ConfigError(msg)
    lent = _lent.get()
    if lent is not None and lent.deadline is not None:
        left = lent.deadline - transport.clock.monotonic()
        if left <= 0:
            msg = "the time of this reconcile is over: nothing was sent"
            raise RequestTimeout(msg)
        seconds = min(seconds, left)
    return seconds


def _shown_collection(ref: ObjectRef) -> str:
    return f"{ref.gvr} in {ref.namespace}" if ref.namespace else str(ref.gvr)


def _check_name(what: str, name: str, where: str) -> None:
    # As the API server does for path segments: apimachinery pkg/api/validation/path/name.go.
    if not name or name in {".", ".."} or "/" in name or "%" in name or not is_unicode(name):
        msg = f"{where}: {what} is {printable(name, limit=80)!r}, which no object can have"
        raise ConfigError(msg)


def _quoted(name: str) -> str:
    return quote(name, safe="")
