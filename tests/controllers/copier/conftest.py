"""A cluster as the copier's caches show it, in memory, for tests of its reconciler."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jsonpatch
import pytest

from controllers.copier.metering import Meter
from controllers.copier.reconciler import NAMESPACES, Copier
from controllers.copier.rules import PREFIX
from controllers.copier.sources import Policy
from controllers.copier.writing import Writer
from informers import (
    GVR,
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
    NotSyncedError,
    Object,
    ObjectRef,
    Request,
    Resource,
    RESTMapper,
    Result,
    TooManyRequestsError,
    UnknownKindError,
)
from informers.testing import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
FEDERATED_SECRETS = GVR("types.federation.k8s.io", "v1alpha1", "federatedsecrets")
WIDGETS = GVR("example.io", "v1", "widgets")
CLUSTER_ROLES = GVR("rbac.authorization.k8s.io", "v1", "clusterroles")
ALL_VERBS = frozenset({"get", "list", "watch", "patch"})

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

    def resolve(self, text: str) -> Resource:
        if text == "ambiguous":
            raise AmbiguousKindError("two", text=text, candidates=("a.v1.x", "a.v1.y"))
        if text in self.unknown or text not in RESOURCES:
            raise UnknownKindError("none", text=text)
        return RESOURCES[text]

    def resource(self, what: GVR) -> Resource:
        if self.is_lost:
            raise UnknownKindError("gone", text=str(what))
        return KINDS[what]

    def problems(self) -> Mapping[str, InformersError]:
        return {}


class World:
    """A cluster as the caches show it, and what was sent and said."""

    def __init__(self, **policy: Any) -> None:
        self.objects: dict[ObjectRef, dict[str, Any]] = {}
        self.unsynced: dict[GVR, InformersError | None] = {}
        self.incomplete: set[ObjectRef] = set()
        self.nested: dict[ObjectRef, int] = {}
        self.is_followed = True
        self.patches: list[dict[str, Any] | list[Any]] = []
        self.kinds: list[str] = []
        self.events: list[tuple[str, str, str]] = []
        self.answers: list[APIError | InformersError | Callable[[dict[str, Any]], None]] = []
        self.dependencies: dict[ObjectRef, list[ObjectRef]] = {}
        self.names: dict[ObjectRef, list[tuple[str, str]]] = {}
        self.clock = FakeClock()
        self.mapper = FakeMapper()
        self.meter = Meter()
        self.version = 0
        self.copier = Copier(
            writer=Writer(cast("Client", self), self.clock, self.meter),
            events=cast("EventRecorder", self),
            graph=cast("DependencyGraph", self),
            mapper=lambda _cluster: cast("RESTMapper", self.mapper),
            targets=[cast("Lister", self)],
            namespaces=cast("Lister", self),
            clock=self.clock,
            policy=Policy(**policy),
            meter=self.meter,
        )

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
        self.objects[ref] = {
            "apiVersion": gvr.group_version,
            "kind": KINDS[gvr].kind if gvr in KINDS else "Namespace",
            "metadata": metadata,
            **content,
        }
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

    def follows(self, ref: ObjectRef) -> bool:
        return self.is_followed and ref.gvr != NAMESPACES

    def find(self, ref: ObjectRef) -> Object | None:
        if ref.gvr in self.unsynced:
            raise NotSyncedError("not yet", problem=self.unsynced[ref.gvr])
        found = self.objects.get(ref)
        if found is None:
            return None
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

    # The client.

    def patch(self, ref: ObjectRef, patch: bytes, *, kind: str, field_manager: str) -> Object:
        assert field_manager == "k8s-copier"
        change = json.loads(patch)
        self.patches.append(change)
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
        self.objects[ref] = after
        return Object.parse(json.dumps(after).encode(), ref.gvr, cluster=ref.cluster)

    # The recorder.

    def event(self, about: Object, *, type: str, reason: str, note: str, action: str = "") -> None:  # noqa: A002
        self.events.append((type, reason, note))


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
        self.bad = bad

    def patch(self, ref: ObjectRef, patch: bytes, *, kind: str, field_manager: str) -> Object:
        if self.bad & set(json.loads(patch).get("data", {})):
            raise refused(422)
        return self.patch_anything(ref, patch, kind=kind, field_manager=field_manager)


def be_picky(world: World, bad: set[str]) -> None:
    client = cast("Client", Picky(world, bad))
    world.copier = replace(world.copier, writer=Writer(client, world.clock, world.meter))
