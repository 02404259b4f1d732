"""Decide what is kept of an object that came in: its exact bytes, less what nobody asked for.

`managedFields` are cut out of the bytes, not decoded and encoded again, so numbers, escapes and the order of keys
stay as the server wrote them. The surprising thing is how often the cut must be doubted: the same bytes can stand
elsewhere in the object, or the key can be spelled with escapes; then a scanner finds the member by its place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from informers import metrics
from informers.cache.listwatch import Item, ReceivedEnvelope, Transform, read_item
from informers.cache.scanning import SPACES, members, skip_space
from informers.logs import Throttle, fields
from informers.meta.objects import JSON, Bodies, Envelope, Object
from informers.meta.resources import GVR, ObjectRef

_log = logging.getLogger(__name__)
_transform_errors = metrics.counter(
    "informers_transform_errors_total", "Objects kept as metadata because a transform raised", ("cluster", "resource")
)


class _RawMetadata(msgspec.Struct, gc=False):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_decode_raw_metadata: Final = msgspec.json.Decoder(_RawMetadata).decode
_encode: Final = msgspec.json.encode

_MEMBER: Final = b'"managedFields"'
_SPACE: Final = b" \t\r\n"


class Keeper:
    """Makes entries of one informer from received bytes.

    Attributes:
        kind: the kind of the objects; learnt from lists, or given for resources whose lists do not tell.
    """

    def __init__(
        self,
        gvr: GVR,
        *,
        cluster: str,
        metadata_only: bool = False,
        keep_managed_fields: bool = False,
        transform: Transform | None = None,
        bodies: Bodies,
        throttle: Throttle,
        kind: str = "",
    ) -> None:
        self.kind = kind
        self._gvr = gvr
        self._cluster = cluster
        self._metadata_only = metadata_only
        self._keep_managed_fields = keep_managed_fields
        self._transform = transform
        self._bodies = bodies
        self._throttle = throttle
        self._api_version = gvr.group_version
        self._own_head_of: str | None = None
        self._own_head_text = b""
        self._namespaces: dict[str, str] = {}  # one string for each namespace, however many objects are in it

    def needs_kind(self) -> bool:
        """Tell whether the kind must be found out, because answers will carry metadata alone."""
        return self._metadata_only and not self.kind

    def keep(self, item: Item) -> Object:
        """Make the entry for one received object; nothing of it refers to the answer that it came in.

        A transform that raises leaves the metadata. The item is used up: its `managed_fields` are taken out.
        """
        envelope = _envelope_of(item)
        if self._metadata_only:
            obj = self.keep_metadata(item)
        else:
            data = self._with_kind(self._strip(bytes(item.raw), envelope), envelope)
            obj = self._object(data, envelope)
        return obj if self._transform is None else self._transformed(obj, envelope)

    def keep_metadata(self, item: Item) -> Object:
        """Make the entry for one received object, of its metadata alone. The item is used up, as by `keep`."""
        return self._metadata_entry(item.raw, _envelope_of(item))

    def _metadata_entry(self, raw: msgspec.Raw | bytes, envelope: ReceivedEnvelope) -> Object:
        metadata = bytes(_decode_raw_metadata(raw).metadata)
        return self._object(self._strip(b"%b%b}" % (self._head(envelope), metadata), envelope), envelope)

    def has_other_kind(self, envelope: Envelope) -> bool:
        """Tell whether this is an object of another kind than this informer follows."""
        kind = envelope.kind
        if not kind or not self.kind or kind == self.kind:
            return False
        return kind != "PartialObjectMetadata"

    def _strip(self, data: bytes, envelope: ReceivedEnvelope) -> bytes:
        managed = envelope.metadata.managed_fields
        if managed is msgspec.UNSET or self._keep_managed_fields:
            return data
        return without_managed_fields(data, bytes(managed))

    def _real_type(self, envelope: Envelope) -> tuple[str, str]:
        if not envelope.kind or envelope.kind == "PartialObjectMetadata":
            return self._api_version, self.kind
        if envelope.kind == self.kind:
            return envelope.api_version or self._api_version, self.kind
        return envelope.api_version or self._api_version, envelope.kind

    def _with_kind(self, data: bytes, envelope: Envelope) -> bytes:
        """Put in `apiVersion` and `kind`, which items of a list leave out."""
        if envelope.kind == "PartialObjectMetadata":
            metadata = bytes(_decode_raw_metadata(data).metadata)
            return b"%b%b}" % (self._head(envelope), metadata)
        if envelope.kind and envelope.api_version:
            return data
        if not (envelope.kind or envelope.api_version) and data.startswith(b'{"'):
            return b"".join((self._own_head(), memoryview(data)[1:]))
        api_version, kind = self._real_type(envelope)
        added = [] if envelope.api_version else [b'"apiVersion":%b' % _encode(api_version)]
        if not envelope.kind and kind:
            added.append(b'"kind":%b' % _encode(kind))
        return b"{%b,%b" % (b",".join(added), data.lstrip(_SPACE)[1:]) if added else data

    def _own_head(self) -> bytes:
        """How an item of a list begins once it says what it is; made once for each kind, as lists are long."""
        if self._own_head_of != self.kind:
            self._own_head_of = self.kind
            kind = b'"kind":%b,' % _encode(self.kind) if self.kind else b""
            self._own_head_text = b'{"apiVersion":%b,%b' % (_encode(self._api_version), kind)
        return self._own_head_text

    def _head(self, envelope: Envelope) -> bytes:
        api_version, kind = self._real_type(envelope)
        return b'{"apiVersion":%b,"kind":%b,"metadata":' % (_encode(api_version), _encode(kind))

    def _object(self, data: bytes, envelope: ReceivedEnvelope) -> Object:
        meta = envelope.metadata
        msgspec.structs.force_setattr(meta, "managed_fields", msgspec.UNSET)  # a slice of the answer
        namespace = ""
        if meta.namespace:
            namespace = self._namespaces.setdefault(meta.namespace, meta.namespace)
            msgspec.structs.force_setattr(meta, "namespace", namespace)
        ref = ObjectRef(self._gvr, namespace, meta.name, self._cluster)
        api_version, kind = self._real_type(envelope)
        return Object(
            ref,
            data,
            meta,
            api_version=self._api_version if api_version == self._api_version else api_version,
            kind=self.kind if kind == self.kind else kind,
            bodies=self._bodies,
        )

    def _transformed(self, obj: Object, envelope: ReceivedEnvelope) -> Object:
        assert self._transform is not None
        # The view given to the transform decodes for itself, as the store does not hold it.
        view = Object(obj.ref, obj.raw, envelope.metadata, api_version=obj.api_version, kind=obj.kind)
        try:
            result = self._transform(view)
            if result is None:
                return self._metadata_entry(obj.raw, envelope)
            if result is view.body:
                return obj  # nothing was changed: numbers and escapes stay as they came, and nothing is encoded
            data = _encode(self._identified(result, obj))
            return self._object(data, _envelope_of(read_item(msgspec.Raw(data))))
        except Exception as error:  # noqa: BLE001 - one object that a transform cannot take must not stop the others
            _transform_errors.add(cluster=self._cluster, resource=str(self._gvr))
            if self._throttle.allow(("transform", obj.ref)):
                _log.warning(
                    "transform failed, keeping metadata only",
                    extra=fields(ref=str(obj.ref), error=type(error).__name__),
                )
            return self._metadata_entry(obj.raw, envelope)

    @staticmethod
    def _identified(result: Mapping[str, JSON], obj: Object) -> dict[str, JSON]:
        """Put back what names an object, if a transform dropped it."""
        given = result.get("metadata")
        metadata = dict(given) if isinstance(given, Mapping) else {}
        metadata.pop("namespace", None)
        metadata |= {"name": obj.name, "uid": obj.uid, "resourceVersion": obj.resource_version}
        if obj.namespace:
            metadata["namespace"] = obj.namespace
        return {"apiVersion": obj.api_version, "kind": obj.kind, **result, "metadata": metadata}


def _envelope_of(item: Item) -> ReceivedEnvelope:
    if item.envelope is None:
        msg = f"{len(memoryview(item.raw))} bytes that are not an object with metadata"
        raise ValueError(msg)
    return item.envelope


def without_managed_fields(data: bytes, managed: bytes) -> bytes:
    """Return the JSON of an object without `metadata.managedFields`, whose value is `managed`.

    Every other byte stays as it is.
    """
    start = data.find(_MEMBER)
    value = skip_space(data, start + len(_MEMBER))
    value = skip_space(data, value + 1) if data[value : value + 1] == b":" else -1
    cut = None
    if start > 0 and value > 0 and data[value : value + len(managed)] == managed:
        cut = _cut(data, start, value + len(managed))
    if cut is None:
        return _without_managed_fields_by_place(data)
    # If what is left does not have the word, nor escapes that can spell it, this was the member that was meant.
    if (b"managedFields" not in cut and not _has_escapes(cut)) or not _has_managed_fields(cut):
        return cut
    return _without_managed_fields_by_place(data)


def _has_escapes(data: bytes) -> bool:
    return b"\\" in data and b"\\u" in data  # looking for one byte is ten times as fast


def _has_managed_fields(data: bytes) -> bool:
    return _envelope_of(read_item(msgspec.Raw(data))).metadata.managed_fields is not msgspec.UNSET


def _cut(data: bytes, start: int, end: int) -> bytes | None:
    """Cut one member and its comma out of an object; None where the bytes around are none of an object's."""
    end = skip_space(data, end)
    while data[start - 1 : start] in SPACES:
        start -= 1
    before, after = data[start - 1 : start], data[end : end + 1]
    if after == b"," and before in {b"{", b","}:
        return data[:start] + data[end + 1 :]
    if after == b"}" and before == b",":
        return data[: start - 1] + data[end:]
    if after == b"}" and before == b"{":
        return data[:start] + data[end:]
    return None


def _without_managed_fields_by_place(data: bytes) -> bytes:
    kept = bytearray()
    done = 0
    for name, value, _ in members(data, 0):
        if name != "metadata" or data[value : value + 1] != b"{":
            continue
        inside = list(members(data, value))
        gone = [name == "managedFields" for name, _, _ in inside]
        if not any(gone):
            continue
        starts = _member_starts(data, value)
        left = [(start, end) for start, (_, _, end), out in zip(starts, inside, gone, strict=True) if not out]
        kept += data[done : value + 1]
        kept += b",".join(data[start:end] for start, end in left)
        done = inside[-1][2]
        # What stands between the last value and the closing brace is space.
    kept += data[done:]
    return bytes(kept)


def _member_starts(data: bytes, start: int) -> list[int]:
    """Return where the names of the members of the object at `start` begin."""
    found = []
    position = skip_space(data, start + 1)
    for _, _, end in members(data, start):
        found.append(position)
        position = skip_space(data, skip_space(data, end) + 1)
    return found
