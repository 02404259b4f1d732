"""Ask the server for one list or one watch of one selection, and give back pages and typed events.

A watch can begin with everything that is there (a streaming list): what is there comes as additions, and a marked
bookmark ends them.

Nothing is remembered between two calls, and nothing is retried: what went wrong is raised, and the reflector
decides. The one surprising thing: items are slices of the answer's bytes (`msgspec.Raw`), which keep the whole
page alive for as long as they are kept; whoever stores one copies it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, get_args

import msgspec

from informers.api.calls import Cancel, Response
from informers.api.client import collection_path
from informers.api.streams import Stream
from informers.api.transport import Transport
from informers.backoff import Backoff
from informers.cache.scanning import elements, members
from informers.meta.errors import APIError, ConfigError, InformersError, api_error, is_expired
from informers.meta.objects import JSON, Envelope, Metadata, Object
from informers.meta.options import is_whole_number
from informers.meta.resources import GVR
from informers.meta.selectors import parse_fields, parse_labels

# Gives what is kept of an object: None for its metadata alone, `obj.body` itself for the object as it came, byte by byte.
Transform: TypeAlias = Callable[[Object], Mapping[str, JSON] | None]
EventType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
Initial: TypeAlias = Literal["auto", "stream", "list"]

LIST_TIMEOUT: Final = 60.0
_PAGE: Final = 500
_END_OF_INITIAL: Final = "k8s.io/initial-events-end"
_SECRETS: Final = "secrets"
_SHOWN: Final = 200  # bytes of a line that makes no sense
_PARTIAL: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects to follow, and what to keep of them. Raises `ConfigError` for what cannot be followed.

    Attributes:
        resource: a GVR, or text (`secrets`, `deploy`, `widgets.v1.example.com`) that is resolved by discovery, now
            and again after every change of what the API serves.
        namespaces: none means all; several mean one list and watch each. Ignored on a cluster-scoped kind.
        label_selector: as kubectl's `-l`.
        field_selector: as kubectl's `--field-selector`.
        metadata_only: ask for metadata, and keep nothing else.
        keep_managed_fields: keep `metadata.managedFields`, which is dropped otherwise.
        transform: called once for each object received; what it returns is stored in place of the object, and
            None means "keep the metadata".
        page_size: force lists in pages of so many objects; None pages where that is cheap for the server.
        max_staleness: seconds after which reading raises `StaleCacheError`, when nothing was heard from the server;
            None serves whatever is there.
    """

    resource: GVR | str
    namespaces: tuple[str, ...] = ()
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False
    keep_managed_fields: bool = False
    transform: Transform | None = None
    page_size: int | None = None
    max_staleness: float | None = None

    def __post_init__(self) -> None:
        if not self.resource:
            msg = "Selection: resource: want a GVR or a resource's name, got nothing"
            raise ConfigError(msg)
        given: object = self.namespaces  # a lone text is what people write by mistake
        if not isinstance(given, Sequence) or isinstance(given, str) or not all(self.namespaces):
            msg = f"Selection: namespaces: want a tuple of names, none of them empty, got {self.namespaces!r}"
            raise ConfigError(msg)
        object.__setattr__(self, "namespaces", tuple(dict.fromkeys(self.namespaces)))
        parse_labels(self.label_selector)
        parse_fields(self.field_selector)
        if self.page_size is not None and not is_whole_number(self.page_size, least=1):
            msg = f"Selection: page_size: want a whole number over 0, got {self.page_size!r}"
            raise ConfigError(msg)
        if self.max_staleness is not None and not self.max_staleness > 0:
            msg = f"Selection: max_staleness: want more than 0 seconds, got {self.max_staleness!r}"
            raise ConfigError(msg)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How lists and watches are made; the defaults fit. Raises `ConfigError` for values that cannot work.

    Attributes:
        timeout: a watch is asked to last between this and twice this many seconds.
        silence: a stream that delivers nothing, not even a bookmark, for so many seconds is replaced.
        initial: how what is there is fetched: `stream` asks for it as the beginning of the watch, `list` as a list,
            which costs the server the memory of a whole answer. `auto` streams from servers of 1.34 or newer, unless
            pages are asked for. What turns out not to stream is listed.
        page_size: force lists in pages of so many objects, where a selection does not say.
        backoff: the waits after failures, of one informer.
        first_syncs: how many informers of a cluster may make their first list at once.
        gzip: whether lists are asked for compressed; None decides by where the server is.
        progress_check: ask every so many seconds how far the server is, and replace a watch that has not come so far
            within `silence`; 0 does not.
        idle_stop: an informer started on demand is stopped when nobody has needed it for so many seconds.
    """

    timeout: float = 300.0
    silence: float = 90.0
    initial: Initial = "auto"
    page_size: int | None = None
    backoff: Backoff = Backoff(0.8, 30.0)  # noqa: RUF009 - frozen, so all may share it
    first_syncs: int = 8
    gzip: bool | None = None
    progress_check: float = 0.0
    idle_stop: float = 600.0

    def __post_init__(self) -> None:
        _check_option("timeout", self.timeout, wanted="at least 5 seconds", holds=5 <= self.timeout < math.inf)
        _check_option("silence", self.silence, wanted="more than 0 seconds", holds=0 < self.silence < math.inf)
        if self.initial not in get_args(Initial):
            msg = f"WatchOptions: initial: want one of {', '.join(get_args(Initial))}, got {self.initial!r}"
            raise ConfigError(msg)
        if self.page_size is not None:
            _check_option(
                "page_size",
                self.page_size,
                wanted="a whole number over 0",
                holds=is_whole_number(self.page_size, least=1),
            )
        _check_option(
            "first_syncs",
            self.first_syncs,
            wanted="a whole number over 0",
            holds=is_whole_number(self.first_syncs, least=1),
        )
        check = self.progress_check
        _check_option("progress_check", check, wanted="0 or more seconds", holds=0 <= check < math.inf)
        _check_option("idle_stop", self.idle_stop, wanted="more than 0 seconds", holds=self.idle_stop > 0)


def _check_option(option: str, value: float, *, wanted: str, holds: bool) -> None:
    if not holds:
        msg = f"WatchOptions: {option}: want {wanted}, got {value!r}"
        raise ConfigError(msg)


class UndecodableError(InformersError):
    """A line of a watch is not an event. What follows on that stream cannot be trusted.

    Attributes:
        length: the line's size in bytes.
    """

    def __init__(self, message: str, *, length: int) -> None:
        self.length = length
        super().__init__(message)


class ReceivedMetadata(Metadata, frozen=True, kw_only=True, rename="camel", gc=False):
    """An object's metadata as it came. `managed_fields` is a slice of the answer; whoever keeps the rest takes it out."""

    managed_fields: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ReceivedEnvelope(Envelope, frozen=True, rename="camel", gc=False):
    """The outermost fields of an object as it came."""

    metadata: ReceivedMetadata = ReceivedMetadata()


class Item(msgspec.Struct, frozen=True, gc=False):
    """One object as it came: its bytes, inside the answer's, and its outermost fields; None if they make no sense."""

    raw: msgspec.Raw
    envelope: ReceivedEnvelope | None


@dataclass(frozen=True, slots=True)
class Page:
    """One answer to a list.

    Attributes:
        is_first: nothing that came before belongs to this list. A list that expires between two pages starts
            over, so a second first page can come.
        rv: the list's resourceVersion, of page 1 also on later pages; `""` when the server gave none.
        kind: the kind of the items, `""` when the list does not tell.
        has_more: another page follows.
    """

    is_first: bool
    rv: str
    kind: str
    api_version: str
    items: Sequence[msgspec.Raw]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a watch. A bookmark has an item whose envelope carries nothing but the resourceVersion."""

    type: EventType
    item: Item


# Aggregated API servers are not all written in Go, and some send null for what they do not have.
class _ListMeta(msgspec.Struct, gc=False):
    resourceVersion: str | None = None  # noqa: N815 - the wire's word
    continue_: str | None = msgspec.field(default=None, name="continue")


class _List(msgspec.Struct, gc=False):
    kind: str | None = None
    apiVersion: str | None = None  # noqa: N815 - the wire's word
    metadata: _ListMeta | None = None
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


class _Line(msgspec.Struct, gc=False):
    object: msgspec.Raw = msgspec.Raw(b"")
    type: str = ""
    kind: str = ""


class _MarkedMetadata(msgspec.Struct, gc=False):
    annotations: dict[str, str] | None = None


class _Marked(msgspec.Struct, gc=False):
    metadata: _MarkedMetadata


_decode_marked: Final = msgspec.json.Decoder(_Marked).decode
_decode_received: Final = msgspec.json.Decoder(ReceivedEnvelope).decode
_decode_list: Final = msgspec.json.Decoder(_List).decode
_decode_line: Final = msgspec.json.Decoder(_Line).decode
_NOT_JSON: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_EVENT_TYPES: Final[Mapping[str, EventType]] = {
    "ADDED": "ADDED",
    "MODIFIED": "MODIFIED",
    "DELETED": "DELETED",
    "BOOKMARK": "BOOKMARK",
}


def read_item(raw: msgspec.Raw) -> Item:
    """Read the outermost fields of one object; one that has none worth reading is an item without an envelope."""
    try:
        return Item(raw, _decode_received(raw))
    except _NOT_JSON:
        return Item(raw, None)


def ends_initial(bookmark: Item) -> bool:
    """Tell whether this bookmark says that everything that was there at first has been sent."""
    try:
        annotations = _decode_marked(bookmark.raw).metadata.annotations
    except _NOT_JSON:
        return False
    return annotations is not None and annotations.get(_END_OF_INITIAL) == "true"


def _scan_list(body: bytes) -> _List:
    """Read a list in which something is nested deeper than the decoder goes: one object must not hide the others."""
    parts = {name: (start, end) for name, start, end in members(body, 0)}
    head = {name: msgspec.Raw(body[start:end]) for name, (start, end) in parts.items() if name != "items"}
    found = _decode_list(msgspec.json.encode(head))
    if "items" in parts:
        found.items = [msgspec.Raw(body[start:end]) for start, end in elements(body, parts["items"][0])]
    return found


def _scan_line(line: bytes) -> _Line:
    """Read an event whose object is nested deeper than the decoder goes."""
    parts = {name: msgspec.Raw(line[start:end]) for name, start, end in members(line, 0)}
    found = _decode_line(msgspec.json.encode({name: raw for name, raw in parts.items() if name != "object"}))
    found.object = parts.get("object", found.object)
    return found


class ListWatch:
    """One selection of one resource of one cluster, in one namespace or in all (`namespace=""`)."""

    def __init__(
        self,
        transport: Transport,
        gvr: GVR,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        gzip: bool = False,
    ) -> None:
        self.gvr = gvr
        self._transport = transport
        self._path = collection_path(gvr, namespace)
        self._selectors = [
            (name, text)
            for name, text in (("labelSelector", label_selector), ("fieldSelector", field_selector))
            if text.strip()
        ]
        self._metadata_only = metadata_only
        self._gzip = gzip

    def pages(self, *, rv: str, cancel: Cancel, page_size: int | None = None, paged: bool = False) -> Iterator[Page]:
        """List, not older than `rv` (`""` = the newest, `"0"` = whatever the server has at hand).

        With an RV there is no limit, as servers answer such lists from memory; `paged` says that this one does not.
        A forced `page_size` sends no RV, as servers would ignore the limit. What expires between two pages is listed
        once more in full, and begins with a first page again. Raises what the transport raises, and `APIError` for
        an answer that is no list.
        """
        if page_size is not None:
            yield from self._pages("", page_size, cancel)
        elif paged or rv in {"", "0"}:
            yield from self._pages(rv, _PAGE, cancel)
        else:
            yield from self._pages(rv, None, cancel)

    def _pages(self, rv: str, limit: int | None, cancel: Cancel) -> Iterator[Page]:
        first = [("limit", str(limit))] if limit else []
        if rv:
            first.append(("resourceVersion", rv))
        page, token = self._page(first, cancel, first_rv=None)
        yield page
        has_restarted = False
        while token:
            try:
                page, token = self._page(
                    [("limit", str(limit or _PAGE)), ("continue", token)], cancel, first_rv=page.rv
                )
            except APIError as error:
                if has_restarted or not is_expired(error):
                    raise
                # The snapshot behind the pages is compacted; a list in one piece needs none.
                has_restarted = True
                page, token = self._page([("resourceVersion", rv)] if rv else [], cancel, first_rv=None)
            yield page

    def _page(self, query: list[tuple[str, str]], cancel: Cancel, *, first_rv: str | None) -> tuple[Page, str]:
        response = self._transport.request(
            "GET",
            self._path,
            query=[*query, *self._selectors],
            accept=_PARTIAL.format("List") if self._metadata_only else "application/json",
            timeout=LIST_TIMEOUT,
            gzip=self._gzip,
            cancel=cancel,
            retry_safe=True,
            verb="list",
            ref=self.gvr,
            part="informer",
        )
        return self._as_page(response, first_rv=first_rv)

    def _as_page(self, response: Response, *, first_rv: str | None) -> tuple[Page, str]:
        found = self._read_list(response.body, response.headers.get("content-type", ""))
        metadata = found.metadata or _ListMeta()
        page = Page(
            is_first=first_rv is None,
            rv=(metadata.resourceVersion or "") if first_rv is None else first_rv,
            kind=(found.kind or "").removesuffix("List"),
            api_version=found.apiVersion or "",
            items=found.items or (),
            has_more=bool(metadata.continue_),
        )
        return page, metadata.continue_ or ""

    def _read_list(self, body: bytes, content_type: str) -> _List:
        if content_type and "json" not in content_type:
            raise self._not_a_list(f"media type {content_type!r}")
        try:
            try:
                found = _decode_list(body)
            except RecursionError:
                found = _scan_list(body)
        except _NOT_JSON as error:
            raise self._not_a_list(f"{len(body)} bytes that are not the JSON of a list") from error
        if found.items is msgspec.UNSET or (found.kind and not found.kind.endswith("List")):
            raise self._not_a_list(f"kind {found.kind!r}")
        return found

    def _not_a_list(self, found: str) -> APIError:
        return APIError(
            f"want a list, found {found}", status=200, verb="list", ref=self.gvr, cluster=self._transport.cluster
        )

    def peek(self, *, cancel: Cancel, whole: bool, timeout: float = LIST_TIMEOUT) -> Page:
        """List one object, for what the answer says about the list: its kind (of `whole` objects only), its newest RV.

        Raises as `pages`.
        """
        response = self._transport.request(
            "GET",
            self._path,
            query=[("limit", "1"), *self._selectors],
            accept="application/json" if whole else _PARTIAL.format("List"),
            timeout=timeout,
            cancel=cancel,
            retry_safe=True,
            verb="list",
            ref=self.gvr,
            part="informer",
        )
        return self._as_page(response, first_rv=None)[0]

    def watch(
        self, *, rv: str, seconds: int, silence: float, cancel: Cancel, initial_within: float | None = None
    ) -> Watch:
        """Open a watch of what comes after `rv`, for so many seconds; `""` sends no version at all.

        With `initial_within` it begins with everything that is there, as of `rv` or newer, and gives up by itself after
        that many seconds; whoever sees the initial events go on moves `Watch.stream.until`.
        Returns when the server has answered. Raises what the transport raises.
        """
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds))]
        if initial_within is not None:
            query += [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]
        if rv:
            query.append(("resourceVersion", rv))
        stream = self._transport.open_stream(
            self._path,
            query=[*query, *self._selectors],
            accept=_PARTIAL.format("") if self._metadata_only else "application/json",
            silence=silence,
            deadline=seconds + 10.0 if initial_within is None else initial_within,  # whatever the server does
            cancel=cancel,
            verb="watch",
            ref=self.gvr,
            part="informer",
        )
        return Watch(stream, self.gvr, self._transport.cluster)


class Watch:
    """An open stream of events; closes when the `with` block ends."""

    def __init__(self, stream: Stream, gvr: GVR, cluster: str) -> None:
        self.stream = stream
        self._gvr = gvr
        self._cluster = cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stream.close()

    def events(self) -> Iterator[Event]:
        """Yield events until the stream ends cleanly.

        Raises `APIError` for an error inside the stream (`is_expired` tells whether a list is needed),
        `UndecodableError` for a line that is no event, and what the transport raises when the stream is cut.
        """
        for line in self.stream.lines():
            try:
                try:
                    found = _decode_line(line)
                except RecursionError:
                    found = _scan_line(line)
            except _NOT_JSON as error:
                raise self._undecodable("not the JSON of an event", line) from error
            event_type = _EVENT_TYPES.get(found.type)
            if event_type is not None:
                yield Event(event_type, read_item(found.object))
            elif found.type == "ERROR":
                raise self._error(bytes(found.object))
            elif found.kind == "Status":
                # Some servers and proxies answer 200 with a Status for a body.
                raise self._error(line)
            else:
                raise self._undecodable("an event of unknown type", line)

    def _error(self, status: bytes) -> APIError:
        try:
            body = msgspec.json.decode(status)
        except _NOT_JSON:
            body = None
        return api_error(
            0, body if isinstance(body, dict) else None, verb="watch", ref=self._gvr, cluster=self._cluster
        )

    def _undecodable(self, what: str, line: bytes) -> UndecodableError:
        shown = "" if self._gvr.resource == _SECRETS else f": {_head_of(line)!a}"
        return UndecodableError(f"watch {self._gvr}: {what}, {len(line)} bytes{shown}", length=len(line))


def _head_of(line: bytes) -> str:
    """Return how a line begins, as far as that is no object's content: content may be anybody's secret."""
    around, inside, _ = line.partition(b'"object"')
    return (around + inside)[:_SHOWN].decode(errors="replace")
