"""A cluster as the copier's caches show it, in memory, for tests of its reconciler."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jsonpatch
import pytest

from controllers.copier.guards import Guard
from controllers.copier.metering import Meter
from controllers.copier.namespaces import NAMESPACES, Namespaces
from controllers.copier.outages import Outages
from controllers.copier.reconciler import Copier
from controllers.copier.rings import Rings
from controllers.copier.rules import PREFIX
from controllers.copier.schemas import Schemas
from controllers.copier.sources import Policy
from controllers.copier.writing import Writer
from informers import (
    GVR,
    JSON,
    AmbiguousKindError,
    APIError,
    Cause,
    Client,
    ConflictError,
    DependencyGraph,
    EventRecorder,
    ForbiddenError,
    InformersError,
    InvalidError,
    Lister,
    NotFoundError,
    NotSyncedError,
    Object,
    ObjectRef,
    Request,
    Resource,
    RESTMapper,
    Result,
    TooManyRequestsError,
    TransportError,
    UnknownKindError,
)
from informers.testing import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
FEDERATED_SECRETS = GVR("types.federation.k8s.io", "v1alpha1", "federatedsecrets")
WIDGETS = GVR("example.io", "v1", "widgets")
CLUSTER_ROLES = GVR("rbac.authorization.k8s.io", "v1", "clusterroles")
ALL_VERBS = frozenset({"get", "list", "watch", "create", "patch", "delete"})

RESOURCES = {
    "configmap": Resource(CONFIGMAPS, "ConfigMap", "configmap", namespaced=True, verbs=ALL_VERBS),
    "secret": Resource(SECRETS, "Secret", "secret", namespaced=True, verbs=ALL_VERBS),
    "federatedsecret": Resource(FEDERATED_SECRETS, "FederatedSecret", "", namespaced=True, verbs=ALL_VERBS),
    "clusterrole": Resource(CLUSTER_ROLES, "ClusterRole", "clusterrole", namespaced=False, verbs=ALL_VERBS),
    "widget": Resource(WIDGETS, "Widget", "widget", namespaced=False, verbs=ALL_VERBS),
    "review": Resource(GVR("", "v1", "reviews"), "Review", "review", namespaced=True, verbs=frozenset({"create"})),
}
KINDS = {resource.gvr: resource for resource in RESOURCES.values()}


@dataclass
class FakeMapper:
    """Knows the kinds of this module."""

    unknown: set[str] = field(default_factory=set)
    is_lost: bool = False
    schema_hash: str = ""  # "": nothing is published
    schema_error: InformersError | None = None
    is_silent: bool = False  # whoever does not ask knows nothing
    are_going: bool = False  # kinds are being taken away
    reloads: int = 0

    def resolve(self, text: str, *, ask: bool = True) -> Resource:
        if self.is_silent and not ask:
            raise NotSyncedError("nothing is known yet")
        if text == "ambiguous":
            raise AmbiguousKindError("two", text=text, candidates=("a.v1.x", "a.v1.y"))
        if text in self.unknown or text not in RESOURCES:
            raise UnknownKindError("none", text=text)
        return RESOURCES[text]

    def resource(self, what: GVR) -> Resource:
        if self.is_lost:
            raise UnknownKindError("gone", text=str(what))
        found = KINDS[what]
        return replace(found, verbs=found.verbs - {"create", "patch"}) if self.are_going else found

    def invalidate(self) -> None:
        self.reloads += 1

    def problems(self) -> Mapping[str, InformersError]:
        return {}

    def openapi_hash(self, group: str, version: str) -> str:
        if self.schema_error is not None:
            raise self.schema_error
        if not self.schema_hash:
            raise UnknownKindError("none", text=f"{group}/{version}")
        return self.schema_hash

    def openapi(self, _group: str, _version: str) -> Mapping[str, JSON]:
        return {"openapi": "3.0.0"}

    def has_loaded(self) -> bool:
        return True


class World:
    """A cluster as the caches show it, and what was sent and said."""

    def __init__(self, **policy: Any) -> None:
        self.policy = policy
        self.objects: dict[ObjectRef, dict[str, Any]] = {}
        self.unsynced: dict[GVR, InformersError | None] = {}
        self.incomplete: set[ObjectRef] = set()
        self.bare: set[ObjectRef] = set()
        self.stale: dict[ObjectRef, Object | None] = {}
        self.nested: dict[ObjectRef, int] = {}
        self.is_followed = True
        self.patches: list[dict[str, Any] | list[Any]] = []
        self.patched: list[ObjectRef] = []
        self.kinds: list[str] = []
        self.events: list[tuple[str, str, str]] = []
        self.answers: list[APIError | InformersError | Callable[[dict[str, Any]], None]] = []
        self.dependencies: dict[ObjectRef, list[ObjectRef]] = {}
        self.names: dict[ObjectRef, list[tuple[str, str]]] = {}
        self.owners: dict[ObjectRef, dict[tuple[str, ...], set[str]]] = {}
        self.reads = 0
        self.read_errors: list[InformersError] = []
        self.clock = FakeClock()
        self.mapper = FakeMapper()
        self.meter = Meter()
        self.version = 0
        self.woken: list[ObjectRef] = []
        self.silent_since: dict[str, float] = {}  # clusters whose lists and watches fail
        self.outages = Outages((), self.clock)
        self.outages.wake = self.woken.append
        guard = Guard(self.mapper_of)
        rings = Rings([cast("Lister", self)], self.mapper_of, Policy(**policy), guard)
        rings.wake = self.woken.append
        self.copier = Copier(
            writer=Writer(cast("Client", self), self.clock, self.meter),
            events=cast("EventRecorder", self),
            graph=cast("DependencyGraph", self),
            mapper=self.mapper_of,
            targets=[cast("Lister", self)],
            namespaces=Namespaces(cast("Lister", self)),
            clock=self.clock,
            policy=Policy(**policy),
            schemas=Schemas(lambda _cluster: cast("RESTMapper", self.mapper), self.clock),
            meter=self.meter,
            rings=rings,
            guard=guard,
            outages=self.outages,
        )

    def mapper_of(self, _cluster: str) -> RESTMapper:
        return cast("RESTMapper", self.mapper)

    def restarted(self) -> World:
        """Return the same cluster with a copier that has just started."""
        again = World(**self.policy)
        again.objects, again.owners, again.version = self.objects, self.owners, self.version
        again.clock.advance(self.clock.monotonic() - again.clock.monotonic())
        return again

    # What there is.

    def put(self, gvr: GVR, namespace: str, name: str, *, cluster: str = "", **content: Any) -> ObjectRef:
        ref = ObjectRef(gvr, namespace, name, cluster)
        before = self.objects.get(ref, {}).get("metadata", {})
        self.version += 1
        metadata = {
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "uid": before.get("uid", f"uid-{self.version}"),
            "resourceVersion": str(self.version),
            **content.pop("metadata", {}),
        }
        before_all = self.objects.get(ref, {})
        self.objects[ref] = {
            "apiVersion": gvr.group_version,
            "kind": KINDS[gvr].kind if gvr in KINDS else "Namespace",
            "metadata": metadata,
            **content,
        }
        self._own(ref, before_all, self.objects[ref], "test")
        return ref

    def target(
        self, rules: Mapping[str, str], *, gvr: GVR = CONFIGMAPS, namespace: str = "a", **content: Any
    ) -> ObjectRef:
        annotations = {PREFIX + name: text for name, text in rules.items()}
        labels = content.pop("labels", {})
        return self.put(gvr, namespace, "t", metadata={"annotations": annotations, "labels": labels}, **content)

    def source(self, name: str = "s", namespace: str = "a", *, allow: str | None = None, **data: str) -> ObjectRef:
        annotations = {} if allow is None else {f"{PREFIX}allow-copy-to": allow}
        return self.put(CONFIGMAPS, namespace, name, metadata={"annotations": annotations}, data=data)

    def look(self, ref: ObjectRef) -> Result:
        return self.copier.reconcile(Request(ref))

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events]

    # The lister.

    def has_synced(self, _cluster: str | None = None) -> bool:
        return True

    def sources(self) -> Mapping[str, Any]:
        return {}

    def follows(self, ref: ObjectRef) -> bool:
        return self.is_followed and ref.gvr != NAMESPACES

    def find(self, ref: ObjectRef) -> Object | None:
        if ref.gvr in self.unsynced:
            raise NotSyncedError("not yet", problem=self.unsynced[ref.gvr])
        if ref in self.stale:
            return self.stale[ref]
        found = self.objects.get(ref)
        if found is None:
            return None
        if ref in self.bare:
            found = {key: found[key] for key in ("apiVersion", "kind", "metadata")}
        if ref in self.incomplete:
            known = {key: found[key] for key in ("apiVersion", "kind", "metadata")}
            raise NotSyncedError("only metadata", known=Object.parse(json.dumps(known).encode(), ref.gvr))
        raw = json.dumps(found).encode()
        if depth := self.nested.get(ref):
            raw = raw[:-1] + b',"deep":' + b"[" * depth + b"]" * depth + b"}"
        return Object.parse(raw, ref.gvr, cluster=ref.cluster)

    # The graph.

    def replace(
        self, dependent: ObjectRef, refs: Iterable[ObjectRef], *, kinds: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.dependencies[dependent], self.names[dependent] = list(refs), list(kinds)

    def forget(self, dependent: ObjectRef) -> None:
        self.dependencies.pop(dependent, None)

    def lister(self, ref: ObjectRef) -> World:
        assert any(ref in refs for refs in self.dependencies.values()), "read before it was declared"
        return self

    # How clusters do.

    def problem(self, cluster: str = "") -> InformersError | None:
        return TransportError("no answer") if cluster in self.silent_since else None

    def age(self, cluster: str | None = None) -> float:
        return self.clock.monotonic() - self.silent_since.get(cluster or "", self.clock.monotonic())

    def state(self, cluster: str = "") -> str:
        assert cluster is not None
        return "synced"

    # The client.

    def patch(self, ref: ObjectRef, patch: bytes, *, kind: str, field_manager: str) -> Object:
        assert field_manager == "k8s-copier"
        change = json.loads(patch)
        self.patches.append(change)
        self.patched.append(ref)
        self.kinds.append(kind)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, InformersError):
            raise answer
        stored = self.objects[ref]
        after = merged(stored, change) if kind == "merge" else jsonpatch.apply_patch(stored, change)
        if answer is not None:
            answer(after)
        if after != stored:
            self.version += 1
            after["metadata"]["resourceVersion"] = str(self.version)
        self._own(ref, stored, after, field_manager)
        self.objects[ref] = after
        return Object.parse(json.dumps(after).encode(), ref.gvr, cluster=ref.cluster)

    def get(self, ref: ObjectRef) -> Object:
        """Read from the server, which also tells who set what."""
        self.reads += 1
        if self.read_errors:
            raise self.read_errors.pop(0)
        if ref not in self.objects:
            raise NotFoundError("gone", status=404)
        managers = sorted({name for names in self.owners.get(ref, {}).values() for name in names})
        record = [
            {
                "manager": manager,
                "operation": "Update",
                "time": f"2030-01-01T00:00:0{managers.index(manager)}Z",
                "fieldsV1": nested(path for path, names in self.owners[ref].items() if manager in names),
            }
            for manager in managers
        ]
        found = self.objects[ref]
        body = {**found, "metadata": {**found["metadata"], "managedFields": record}}
        return Object.parse(json.dumps(body).encode(), ref.gvr)

    def _own(self, ref: ObjectRef, before: Mapping[str, Any], after: Mapping[str, Any], manager: str) -> None:
        """Keep the record: who adds or changes a value has it alone; what is gone is nobody's."""
        was, now = leaves_of(before), leaves_of(after)
        known = self.owners.setdefault(ref, {})
        self.owners[ref] = {
            path: known.get(path, {manager}) if was.get(path) == value else {manager} for path, value in now.items()
        }

    def touch(self, ref: ObjectRef, manager: str = "rival", **content: Any) -> None:
        """Have somebody else change an object."""
        before = self.objects[ref]
        self.version += 1
        after = merged(
            before, {**content, "metadata": {**content.get("metadata", {}), "resourceVersion": str(self.version)}}
        )
        self._own(ref, before, after, manager)
        self.objects[ref] = after

    def drop_rules(self, ref: ObjectRef, *names: str, **content: Any) -> None:
        """Have a user take rules away, all of them if none is named, and change the object in the same write."""
        annotations = self.objects[ref]["metadata"].get("annotations", {})
        gone = {name: None for name in annotations if not names or name.removeprefix(PREFIX) in names}
        self.touch(ref, "test", **content, metadata={"annotations": gone})

    # The recorder.

    def event(self, about: Object, *, type: str, reason: str, note: str, action: str = "") -> None:  # noqa: A002
        self.events.append((type, reason, note))


def leaves_of(node: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every value of an object that is no map, by where it stands; but not what the server itself sets."""
    if isinstance(node, dict) and node:
        found = [
            leaves_of(value, (*path, key))
            for key, value in node.items()
            if (*path, key) != ("metadata", "resourceVersion")
        ]
        return {place: value for part in found for place, value in part.items()}
    return {path: node}


def nested(paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """Return a set of fields as the server writes it."""
    fields: dict[str, Any] = {}
    for path in paths:
        inside = fields
        for name in path:
            inside = inside.setdefault(f"f:{name}", {})
    return fields


def merged(current: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@pytest.fixture
def world() -> World:
    return World()


def refused(status: int = 422, *causes: Cause, message: str = "") -> APIError:
    kind = {422: InvalidError, 403: ForbiddenError, 409: ConflictError, 429: TooManyRequestsError}.get(status, APIError)
    return kind(message, status=status, reason="Invalid" if status == 422 else "", causes=causes)


class Picky:
    """A server that refuses whatever changes one of these keys."""

    def __init__(self, world: World, bad: set[str]) -> None:
        self.patch_anything = world.patch
        self.get = world.get
        self.bad = bad

    def patch(self, ref: ObjectRef, patch: bytes, *, kind: str, field_manager: str) -> Object:
        if self.bad & set(json.loads(patch).get("data", {})):
            raise refused(422)
        return self.patch_anything(ref, patch, kind=kind, field_manager=field_manager)


def be_picky(world: World, bad: set[str]) -> None:
    client = cast("Client", Picky(world, bad))
    world.copier = replace(world.copier, writer=Writer(client, world.clock, world.meter))
