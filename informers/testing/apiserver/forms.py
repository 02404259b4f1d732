"""Show objects in the form that was asked for: whole, metadata only, or as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from informers.testing.apiserver import tables
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.statuses import StatusError
from informers.testing.apiserver.storage import Record, encode

Shape = Literal["object", "partial", "table"]
_JSON: Final = frozenset({"application/json", "application/*", "*/*"})
_REPRESENTATIONS: Final = ("application/json", "application/json;stream=watch")
_PARTIAL: Final = "PartialObjectMetadata"


@dataclass(frozen=True, slots=True)
class Form:
    """How objects are shown; `include` says what a table's rows carry (None, Metadata, Object)."""

    shape: Shape = "object"
    include: str = "Metadata"

    def of_record(self, record: Record, kind: Kind) -> bytes:
        """Return one object in this form."""
        if self.shape == "object":
            return record.view(kind)
        if self.shape == "partial":
            return _partial(record, kind)
        return encode(tables.table(kind, [record.read(kind)], include_object=self.include, list_meta=_meta(record)))

    def of_event(self, record: Record, kind: Kind, *, first: bool) -> bytes:
        """Return the object of a watch event; only the first table of a watch has columns."""
        if self.shape != "table" or first:
            return self.of_record(record, kind)
        table = tables.table(kind, [record.read(kind)], include_object=self.include, list_meta=_meta(record))
        table["columnDefinitions"] = None
        return encode(table)

    def of_list(
        self, records: Sequence[Record], kind: Kind, meta: Mapping[str, Any], *, raw_items: Sequence[bytes] = ()
    ) -> bytes:
        """Return a list; `raw_items` are put into it as they are."""
        if self.shape == "table":
            objects = [record.read(kind) for record in records]
            return encode(tables.table(kind, objects, include_object=self.include, list_meta=dict(meta)))
        if self.shape == "partial":
            items = [_partial(record, kind) for record in records]
            return _list_body(f"{_PARTIAL}List", "meta.k8s.io/v1", meta, [*items, *raw_items])
        if kind.is_custom:
            # the real server prints lists of custom resources in this order, and their items with kind and apiVersion
            body = b",".join([*(record.view(kind) for record in records), *raw_items])
            head = b'{"apiVersion":%s,"items":[' % encode(kind.api_version)
            return b"".join((head, body, b'],"kind":', encode(kind.list_kind), b',"metadata":', encode(meta), b"}"))
        skipped = len(encode({"kind": kind.kind, "apiVersion": kind.api_version}))
        items = [b"{" + record.view(kind)[skipped:] for record in records]
        return _list_body(kind.list_kind, kind.api_version, meta, [*items, *raw_items])

    def bookmark(self, kind: Kind, rv: int, *, ends_initial: bool) -> bytes:
        """Return the object of a bookmark."""
        metadata: dict[str, Any] = {"resourceVersion": str(rv)}
        if ends_initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.shape == "partial":
            return encode({"kind": _PARTIAL, "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
        obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        if self.shape == "object":
            return encode(obj)
        table = tables.table(kind, [obj], include_object=self.include, list_meta={"resourceVersion": str(rv)})
        table["columnDefinitions"] = None
        return encode(table)


OBJECT: Final = Form()


def _meta(record: Record) -> dict[str, Any]:
    return {"resourceVersion": str(record.rv)}


def _partial(record: Record, kind: Kind) -> bytes:
    def build() -> bytes:
        return encode(tables.partial(record.read(kind)))

    return record.rendered((kind, "partial"), build)


def _list_body(list_kind: str, api_version: str, meta: Mapping[str, Any], items: Sequence[bytes]) -> bytes:
    head = encode({"kind": list_kind, "apiVersion": api_version, "metadata": meta})
    return b"".join((head[:-1], b',"items":[', b",".join(items), b"]}"))


# --- Accept ---


def negotiate(accept: str, *, is_list: bool = False, is_watch: bool = False, include: str = "") -> Form:
    """Choose the first form of an Accept header that can be produced. Raises a 406 `StatusError`."""
    if not accept:
        return OBJECT
    for clause in accept.split(","):
        media, parameters = _parse(clause)
        if media not in _JSON:
            continue
        wanted = parameters.get("as", "")
        if not wanted:
            return OBJECT
        if parameters.get("g", "meta.k8s.io") != "meta.k8s.io" or parameters.get("v", "v1") != "v1":
            continue
        if wanted == "Table":
            return Form("table", include or "Metadata")
        if wanted in {_PARTIAL, f"{_PARTIAL}List"}:
            _check_list(wanted, is_list=is_list, is_watch=is_watch)
            return Form("partial")
    raise _not_acceptable()


def _check_list(wanted: str, *, is_list: bool, is_watch: bool) -> None:
    if is_watch or (wanted == f"{_PARTIAL}List") == is_list:
        return
    told = "a list" if is_list else "not a list"
    raise StatusError(406, "NotAcceptable", f"you requested {wanted}, but the requested object is {told}")


def wants_aggregated(accept: str) -> bool:
    """Tell whether a discovery request asks for the aggregated form before any other JSON; raises a 406."""
    for clause in accept.split(",") if accept else ():
        media, parameters = _parse(clause)
        if media not in _JSON:
            continue
        if parameters.get("as") == "APIGroupDiscoveryList":
            if parameters.get("g") == "apidiscovery.k8s.io" and parameters.get("v") == "v2":
                return True
            continue
        return False
    if accept:
        raise _not_acceptable()
    return False


def accepts_json(accept: str) -> bool:
    """Tell whether plain JSON will do."""
    return not accept or any(_parse(clause)[0] in _JSON for clause in accept.split(","))


def _parse(clause: str) -> tuple[str, Mapping[str, str]]:
    media, *rest = (part.strip() for part in clause.split(";"))
    pairs = (part.partition("=") for part in rest)
    return media.lower(), {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _not_acceptable() -> StatusError:
    return StatusError(
        406,
        "NotAcceptable",
        f"406: Not Acceptable\n\nAvailable representations: {', '.join(_REPRESENTATIONS)}",
        details={},
    )


# --- answers ---


@dataclass(slots=True)
class Reply:
    """An answer with a body of known length."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Reply:
        """Answer with a JSON value."""
        return cls(status, encode(value))

    @classmethod
    def text(cls, text: str, status: int = 200) -> Reply:
        """Answer with plain text."""
        return cls(status, text.encode(), "text/plain; charset=utf-8")

    @classmethod
    def of_error(cls, error: StatusError) -> Reply:
        """Answer with a failure Status."""
        return cls(error.code, encode(error.to_dict()), headers=tuple(error.headers.items()))


def warning_headers(warnings: Sequence[str]) -> list[tuple[str, str]]:
    """Build a Warning header for each text."""
    return [("Warning", '299 - "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"') for text in warnings]
