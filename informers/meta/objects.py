"""Object: a read-only view of one API object that is kept as bytes; `thaw()` gives a copy to change.

The body is decoded when it is first read. Metadata never needs the body, so looking at names, labels and
owners of many objects costs nothing like decoding them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

import msgspec

from informers.meta.resources import GVR, ObjectRef

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"


class OwnerReference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of `metadata.ownerReferences`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """What is read from every object on receipt: small, and nothing for the garbage collector to walk."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class Envelope(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The outermost fields of an object; the rest is skipped, not decoded."""

    metadata: Metadata = Metadata()
    api_version: str = ""
    kind: str = ""


class _RareMetadata(msgspec.Struct, rename="camel", gc=False):
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


class _RareEnvelope(msgspec.Struct, gc=False):
    metadata: _RareMetadata


decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_decode_rare: Final = msgspec.json.Decoder(_RareEnvelope).decode
_decode_any: Final = msgspec.json.Decoder().decode
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


class Bodies(Protocol):
    """Where decoded bodies are kept for a while; a store has one, an object that a client returned keeps its own."""

    def body_of(self, obj: Object, /) -> Mapping[str, JSON]:
        """Return the decoded body of `obj`, from memory if it is there."""
        ...


class Object:
    """A read-only view of one API object; cheap, and safe to keep for the length of a reconcile.

    `raw` is exactly what the store holds. Every attribute is for looking: to change something, change what
    `thaw()` returns and send a patch. `repr` and `str` never show content.
    """

    __slots__ = ("_bodies", "_body", "_meta", "_rare", "api_version", "kind", "raw", "ref")

    def __init__(
        self, ref: ObjectRef, raw: bytes, meta: Metadata, *, api_version: str, kind: str, bodies: Bodies | None = None
    ) -> None:
        self.ref = ref
        self.raw = raw
        self.api_version = api_version
        self.kind = kind
        self._meta = meta
        self._bodies = bodies
        self._body: Mapping[str, JSON] | None = None
        self._rare: _RareMetadata | None = None

    @classmethod
    def parse(cls, raw: bytes, gvr: GVR, *, cluster: str = "", bodies: Bodies | None = None) -> Object:
        """View the JSON of one object of resource `gvr`.

        Raises `msgspec.DecodeError` (or `ValidationError`) when the bytes are not an object with metadata.
        """
        envelope = decode_envelope(raw)
        meta = envelope.metadata
        ref = ObjectRef(gvr, meta.namespace or "", meta.name, cluster)
        return cls(ref, raw, meta, api_version=envelope.api_version, kind=envelope.kind, bodies=bodies)

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.ref.name

    @property
    def namespace(self) -> str:
        """`metadata.namespace`, `""` for a cluster-scoped object."""
        return self.ref.namespace

    @property
    def cluster(self) -> str:
        """The cluster it lives in, `""` for the home cluster."""
        return self.ref.cluster

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self._meta.uid

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`, an opaque text."""
        return self._meta.resource_version

    @property
    def generation(self) -> int:
        """`metadata.generation`, 0 if the kind has none."""
        return self._meta.generation or 0

    @property
    def creation_timestamp(self) -> str:
        """`metadata.creationTimestamp`, `""` if absent."""
        return self._meta.creation_timestamp or ""

    @property
    def deletion_timestamp(self) -> str | None:
        """`metadata.deletionTimestamp`: when it is set, the object is terminating."""
        return self._meta.deletion_timestamp

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`."""
        return MappingProxyType(self._meta.labels) if self._meta.labels else _EMPTY

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations`."""
        return MappingProxyType(self._read_rare().annotations or {})

    @property
    def finalizers(self) -> Sequence[str]:
        """`metadata.finalizers`."""
        return tuple(self._read_rare().finalizers or ())

    @property
    def owners(self) -> Sequence[OwnerReference]:
        """`metadata.ownerReferences`."""
        return tuple(self._read_rare().owner_references or ())

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls it, or None."""
        return next((owner for owner in self.owners if owner.controller), None)

    @property
    def body(self) -> Mapping[str, JSON]:
        """The whole object, decoded on first use; changing it, at any depth, raises `TypeError`."""
        if self._bodies is not None:
            return self._bodies.body_of(self)
        if self._body is None:
            self._body = self.decode()
        return self._body

    def decode(self) -> Mapping[str, JSON]:
        """Decode the body anew, read-only; `body` remembers it."""
        return cast("Mapping[str, JSON]", freeze(_decode_any(self.raw)))

    def get(self, *path: str | int, default: JSON = None) -> JSON:
        """Return the value at `path` in the body (`obj.get("spec", "replicas")`), or `default` where it ends."""
        value: Any = self.body
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return default
        return cast("JSON", value)

    def thaw(self) -> dict[str, Any]:
        """Return a fresh plain copy of the whole object, to change; JSON types are kept exactly."""
        return cast("dict[str, Any]", _decode_any(self.raw))

    def _read_rare(self) -> _RareMetadata:
        # Kept on the object only while somebody holds a view the store does not: see `Store`, which hands out
        # the object it holds. Annotations can be large, so a store must not keep them twice.
        if self._bodies is not None:
            return _decode_rare(self.raw).metadata
        if self._rare is None:
            self._rare = _decode_rare(self.raw).metadata
        return self._rare

    def __repr__(self) -> str:
        return f"<Object {self.ref} uid={self.uid} rv={self.resource_version}>"

    __str__ = __repr__


def owner_reference(owner: Object, *, controller: bool = True, block: bool = True) -> dict[str, JSON]:
    """Build the entry of `metadata.ownerReferences` that makes `owner` own an object."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": controller,
        "blockOwnerDeletion": block,
    }


def _refuse(_self: object, *_args: object, **_kwargs: object) -> NoReturn:
    msg = "this object is read-only, as other readers share it; change what thaw() returns"
    raise TypeError(msg)


class FrozenDict(dict[str, Any]):
    """A dictionary of a shared body: equal to a plain one, and every change raises `TypeError`."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse


class FrozenList(list[Any]):
    """A list of a shared body: equal to a plain one, and every change raises `TypeError`."""

    __slots__ = ()
    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse


def freeze(value: object) -> object:
    """Make decoded JSON read-only all the way down; scalars are returned as they are."""
    if type(value) is dict:
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if type(value) is list:
        return FrozenList(freeze(item) for item in value)
    return value
