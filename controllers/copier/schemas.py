"""Know what a kind's API server publishes about its fields: how they are merged, and which are quantities.

It is asked for a kind only when a rule needs it: OpenAPI documents are large. Of a document only that is kept which
is asked for here, until the server publishes another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from controllers.copier.merge import Fields
from controllers.copier.paths import Key, Place, show
from controllers.copier.problems import RuleError
from informers import GVR, APIError, Clock, InformersError, ObjectRef, RESTMapper, patches

STRATEGIC: Final = "application/strategic-merge-patch+json"

_REF: Final = "#/components/schemas/"
_QUANTITY: Final = f"{_REF}io.k8s.apimachinery.pkg.api.resource.Quantity"
_AGAIN: Final = 4.0  # after a failure nobody asks again for so long


@dataclass(slots=True)
class Type:
    """What may stand in a field: named fields, elements of a list or values of a map, or something without parts."""

    fields: dict[str, Field] = field(default_factory=dict)
    inner: Type | None = None  # of each element, or of each value
    is_list: bool = False
    is_open: bool = False  # anything may be in it
    is_quantity: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type, and how it is merged."""

    type: Type
    rule: patches.MergeRule | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """All that is known about a kind."""

    root: Type
    is_strategic: bool


class Schema:
    """What is published about one kind; it is looked up at the first question.

    Questions raise `RuleError` (`SchemaUnavailable`) when nobody can tell now.
    """

    def __init__(self, gvr: GVR, load: Callable[[], Kind], hash_of: Callable[[], str]) -> None:
        self._gvr = gvr
        self._load = load
        self._hash_of = hash_of
        self._kind: Kind | None = None

    def hash(self) -> str:
        """Return what is another text when something else is published; `""` when nobody can tell now."""
        return self._hash_of()

    def check_strategic(self, place: Place) -> None:
        """Raise `RuleError` (`StrategicMergeUnsupported`) unless what is at `place` can be merged strategically."""
        kind = self._known()
        if not kind.is_strategic:
            text = f"{self._gvr} has no merge keys, as custom resources have none; use merge- or a rules entry"
            raise RuleError("StrategicMergeUnsupported", text)
        node: Type | None = kind.root
        for position, step in enumerate(place):
            below = None if node is None else _step(node, step.name) if isinstance(step, Key) else _element(node)
            if below is None:
                text = (
                    f"step {position + 1} of {show(place)}: {self._gvr} has no such field; use merge- or a rules entry"
                )
                raise RuleError("StrategicMergeUnsupported", text)
            node = below.type

    def merge_rule(self, fields: Fields) -> patches.MergeRule | None:
        """Say how a field is merged; None if nothing is said about it."""
        found = self._field(fields)
        return None if found is None else found.rule

    def is_quantity(self, fields: Fields) -> bool:
        """Tell whether a field holds a quantity: an amount that may be written in several ways."""
        found = self._field(fields)
        return found is not None and found.type.is_quantity

    def _field(self, fields: Fields) -> Field | None:
        node = self._known().root
        found: Field | None = None
        for name in fields:
            while node.is_list and node.inner is not None:
                node = node.inner
            found = _step(node, name)
            if found is None:
                return None
            node = found.type
        return found

    def _known(self) -> Kind:
        if self._kind is None:
            self._kind = self._load()
        return self._kind


def _step(node: Type, name: str) -> Field | None:
    if name in node.fields:
        return node.fields[name]
    return Field(node.inner) if node.inner is not None and not node.is_list else Field(node) if node.is_open else None


def _element(node: Type) -> Field | None:
    return Field(node.inner) if node.is_list and node.inner is not None else Field(node) if node.is_open else None


class Schemas:
    """What the servers of all clusters publish about the kinds that were asked for."""

    def __init__(self, mapper: Callable[[str], RESTMapper], clock: Clock) -> None:
        self._mapper = mapper
        self._clock = clock
        self._lock = Lock()  # guards all below
        self._kinds: dict[tuple[str, GVR], tuple[str, Kind]] = {}  # with the hash of the document they are from
        self._failures: dict[tuple[str, GVR], tuple[str, float]] = {}  # why, and until when that counts

    def of(self, ref: ObjectRef) -> Schema:
        """Return what is published about the kind of an object; nothing is asked yet."""
        return Schema(ref.gvr, lambda: self._load(ref.cluster, ref.gvr), lambda: self._hash_of(ref.cluster, ref.gvr))

    def _hash_of(self, cluster: str, gvr: GVR) -> str:
        try:
            return self._mapper(cluster).openapi_hash(gvr.group, gvr.version)
        except InformersError:
            return ""

    def _load(self, cluster: str, gvr: GVR) -> Kind:
        key = (cluster, gvr)
        with self._lock:
            why, until = self._failures.get(key, ("", 0.0))
            known_hash, known = self._kinds.get(key, ("", None))
        if why and self._clock.monotonic() < until:
            raise RuleError("SchemaUnavailable", why)
        mapper = self._mapper(cluster)
        try:
            present = mapper.openapi_hash(gvr.group, gvr.version)
            if known is None or known_hash != present:
                known = read_kind(mapper.openapi(gvr.group, gvr.version), gvr)
        except InformersError as error:
            why = _why_unavailable(gvr, error)
            with self._lock:
                self._failures[key] = why, self._clock.monotonic() + _AGAIN
            raise RuleError("SchemaUnavailable", why) from None
        with self._lock:
            self._failures.pop(key, None)
            self._kinds[key] = present, known
        return known


def _why_unavailable(gvr: GVR, error: InformersError) -> str:
    why = f"{error.status} {error.reason}".strip() if isinstance(error, APIError) else type(error).__name__
    return f"the OpenAPI of {gvr.group_version} cannot be read: {why}"


def read_kind(document: Mapping[str, Any], gvr: GVR) -> Kind:
    """Take out of a group version's document what it says about one kind.

    A kind without an entry is taken for one that cannot be merged strategically and has no fields.
    """
    item = f"{gvr.path}/namespaces/{{namespace}}/{gvr.resource}/{{name}}"
    paths = _map(document.get("paths"))
    patch = _map(_map(paths.get(item) or paths.get(f"{gvr.path}/{gvr.resource}/{{name}}")).get("patch"))
    accepted = _map(_map(patch.get("requestBody")).get("content"))
    answer = _map(_map(_map(_map(patch.get("responses")).get("200")).get("content")).get("application/json"))
    types = _Types(_map(_map(document.get("components")).get("schemas")))
    return Kind(types.type_of(_map(answer.get("schema"))), STRATEGIC in accepted)


class _Types:
    """Makes types of published schemas, each named one once: they may refer to themselves."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._named: dict[str, Type] = {}
        self._scalar = Type()

    def type_of(self, schema: Mapping[str, Any]) -> Type:
        """Make the type that a schema describes."""
        reference = _reference(schema)
        if reference is None:
            return self._fill(Type(), schema)
        if reference not in self._named:
            self._named[reference] = found = Type(is_quantity=reference == _QUANTITY)
            if not found.is_quantity:
                self._fill(found, _map(self._schemas.get(reference.removeprefix(_REF))))
        return self._named[reference]

    def _fill(self, made: Type, schema: Mapping[str, Any]) -> Type:
        for name, each in _map(schema.get("properties")).items():
            made.fields[name] = self._field_of(_map(each))
        made.is_list = schema.get("type") == "array"
        inner = schema.get("items" if made.is_list else "additionalProperties")
        made.inner = self.type_of(inner) if isinstance(inner, Mapping) else None
        made.is_open = (
            schema.get("x-kubernetes-preserve-unknown-fields") is True
            or inner is True
            or (schema.get("type") == "object" and not made.fields and made.inner is None)
        )
        is_plain = not (made.fields or made.inner or made.is_list or made.is_open)
        return self._scalar if is_plain and _reference(schema) is None else made

    def _field_of(self, schema: Mapping[str, Any]) -> Field:
        strategies = str(schema.get("x-kubernetes-patch-strategy", "")).split(",")
        key = schema.get("x-kubernetes-patch-merge-key", "")
        rule = patches.MergeRule(merge="merge" in strategies, replace="replace" in strategies, key=str(key))
        return Field(self.type_of(schema), rule if any((rule.merge, rule.replace, rule.key)) else None)


def _reference(schema: Mapping[str, Any]) -> str | None:
    """Return what a schema refers to, by itself or as the one of `allOf`."""
    alternatives: Iterable[Any] = (schema, *(schema.get("allOf") or ()))
    found = (each.get("$ref") for each in alternatives if isinstance(each, Mapping))
    return next((each for each in found if isinstance(each, str)), None)


def _map(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}
