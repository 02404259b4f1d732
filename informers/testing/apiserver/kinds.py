"""Know what is served: one `Kind` for each served version of each resource, built in or defined by a CRD.

Versions of one resource share a bucket of stored objects, and so do core Events and `events.k8s.io` Events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from informers.meta.resources import GVK, GVR

if TYPE_CHECKING:
    from informers.testing.apiserver.crds import CustomVersion

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_NOT_AS_COLLECTION: Final = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
_WHILE_GOING: Final = ("delete", "deletecollection", "get", "list", "watch")
_READ_VERBS: Final = ("get", "list", "watch")


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One resource in one version: its names, its scope, what can be done with it and where it is stored.

    Two are equal only when they are the same: a CRD that changes makes new ones.
    """

    gvr: GVR
    kind: str
    list_kind: str
    singular: str
    namespaced: bool
    storage: str
    """The key of the bucket its objects are stored in: `resource.group`."""
    stored_version: str
    """The version whose form stored objects have."""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    has_status: bool = False
    has_generation: bool = False
    crd: str | None = None
    """The name of the CRD that defines it; None for built-in kinds."""
    custom: CustomVersion | None = field(default=None, repr=False)
    """What the CRD says about this version: schema, columns, selectable fields."""

    @property
    def gvk(self) -> GVK:
        """Group, version and kind."""
        return GVK(self.gvr.group, self.gvr.version, self.kind)

    @property
    def api_version(self) -> str:
        """What stands in `apiVersion` of its objects."""
        return self.gvr.group_version

    @property
    def is_custom(self) -> bool:
        """Tell whether a CRD defines it."""
        return self.crd is not None

    @property
    def subresources(self) -> tuple[str, ...]:
        """Name the subresources that are served."""
        return ("status",) if self.has_status else ()


class Kinds:
    """Every kind served now. Safe for use from any thread; readers never wait for a slow writer."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the writers of all below; readers take them whole
        self._builtin = {_key(kind.gvr): kind for kind in BUILTIN_KINDS}
        self._served: Mapping[tuple[str, str, str], Kind] = self._builtin
        self._by_crd: dict[str, tuple[Kind, ...]] = {}
        self._going: frozenset[str] = frozenset()  # CRDs that are being deleted
        self._revision = 0

    @property
    def revision(self) -> int:
        """A number that is higher after each change of what is served."""
        return self._revision

    def all(self) -> Sequence[Kind]:
        """List every kind: built-in ones in the server's order, then custom ones by name."""
        return tuple(self._served.values())

    def find(self, group: str, version: str, resource: str) -> Kind | None:
        """Find the kind behind a URL, or None."""
        return self._served.get((group, version, resource))

    def group_versions(self) -> Sequence[tuple[str, str]]:
        """List what is served as (group, version): the core group first, a group's preferred version before others."""
        return tuple(dict.fromkeys((kind.gvr.group, kind.gvr.version) for kind in self._served.values()))

    def of_bucket(self, storage: str) -> Sequence[Kind]:
        """List the kinds whose objects are in one bucket."""
        return tuple(kind for kind in self._served.values() if kind.storage == storage)

    def add_crd(self, crd: Mapping[str, Any]) -> None:
        """Serve what a CRD defines, in place of what a CRD of this name defined before."""
        from informers.testing.apiserver import crds

        kinds = crds.kinds_of(crd)
        with self._lock:
            self._by_crd = {**self._by_crd, crd["metadata"]["name"]: kinds}
            self._publish_locked()

    def remove_crd(self, name: str) -> None:
        """Serve no longer what the CRD of this name defines; nothing happens when there is none."""
        with self._lock:
            self._by_crd = {crd: kinds for crd, kinds in self._by_crd.items() if crd != name}
            self._going -= {name}
            self._publish_locked()

    def begin_to_remove_crd(self, name: str) -> None:
        """Say of what the CRD of this name defines that nothing new is taken."""
        with self._lock:
            self._going |= {name}
            self._publish_locked()

    def verbs_told(self, kind: Kind) -> Sequence[str]:
        """Name what discovery says can be done with a kind; what is there may be changed until it is gone all the same."""
        return _WHILE_GOING if kind.crd in self._going else kind.verbs

    def _publish_locked(self) -> None:
        served = dict(self._builtin)
        custom = sorted((kind for kinds in self._by_crd.values() for kind in kinds), key=_custom_order)
        for kind in custom:
            served.setdefault(_key(kind.gvr), kind)
        self._served = served
        self._revision += 1


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Order versions as the server does, the preferred one first: v2, v1, v1beta2, v1beta1, v1alpha1, others.

    Source: apimachinery pkg/version/helpers.go.
    """
    rest = version.removeprefix("v")
    if rest == version:
        return (3, 0, 0, version)
    for stage, word in ((1, "beta"), (2, "alpha")):
        major, found, minor = rest.partition(word)
        if found and major.isdecimal() and (minor.isdecimal() or not minor):
            return (stage, -int(major), -int(minor or 0), version)
    return (0, -int(rest), 0, version) if rest.isdecimal() else (3, 0, 0, version)


def _key(gvr: GVR) -> tuple[str, str, str]:
    return (gvr.group, gvr.version, gvr.resource)


def _custom_order(kind: Kind) -> tuple[str, tuple[int, int, int, str], str]:
    return (kind.gvr.group, version_priority(kind.gvr.version), kind.gvr.resource)


def _builtin(
    group: str,
    resource: str,
    kind: str,
    *,
    short: str = "",
    categories: str = "",
    namespaced: bool = True,
    verbs: tuple[str, ...] = ALL_VERBS,
    status: bool = False,
    generation: bool = False,
    singular: str = "",
    storage: str = "",
) -> Kind:
    return Kind(
        gvr=GVR(group, "v1", resource),
        kind=kind,
        list_kind=f"{kind}List",
        singular=singular or kind.lower(),
        namespaced=namespaced,
        storage=storage or f"{resource}.{group}",
        stored_version="v1",
        short_names=tuple(short.split()),
        categories=tuple(categories.split()),
        verbs=verbs,
        has_status=status,
        has_generation=generation,
    )


BUILTIN_KINDS: Final[Sequence[Kind]] = (
    _builtin("", "configmaps", "ConfigMap", short="cm"),
    _builtin("", "endpoints", "Endpoints", short="ep"),
    _builtin("", "events", "Event", short="ev"),
    _builtin("", "limitranges", "LimitRange", short="limits"),
    _builtin("", "namespaces", "Namespace", short="ns", namespaced=False, verbs=_NOT_AS_COLLECTION, status=True),
    _builtin("", "nodes", "Node", short="no", namespaced=False, status=True),
    _builtin("", "persistentvolumeclaims", "PersistentVolumeClaim", short="pvc", status=True),
    _builtin("", "pods", "Pod", short="po", categories="all", status=True, generation=True),
    _builtin("", "replicationcontrollers", "ReplicationController", short="rc", categories="all", status=True, generation=True),
    _builtin("", "resourcequotas", "ResourceQuota", short="quota", status=True),
    _builtin("", "secrets", "Secret"),
    _builtin("", "serviceaccounts", "ServiceAccount", short="sa"),
    _builtin("", "services", "Service", short="svc", categories="all", status=True),
    _builtin("apiregistration.k8s.io", "apiservices", "APIService", categories="api-extensions", namespaced=False, verbs=_READ_VERBS),
    _builtin("apps", "daemonsets", "DaemonSet", short="ds", categories="all", status=True, generation=True),
    _builtin("apps", "deployments", "Deployment", short="deploy", categories="all", status=True, generation=True),
    _builtin("apps", "replicasets", "ReplicaSet", short="rs", categories="all", status=True, generation=True),
    _builtin("apps", "statefulsets", "StatefulSet", short="sts", categories="all", status=True, generation=True),
    _builtin("events.k8s.io", "events", "Event", short="ev", storage="events."),
    _builtin("batch", "cronjobs", "CronJob", short="cj", categories="all", status=True, generation=True),
    _builtin("batch", "jobs", "Job", categories="all", status=True, generation=True),
    _builtin("networking.k8s.io", "ingresses", "Ingress", short="ing", status=True, generation=True),
    _builtin("networking.k8s.io", "networkpolicies", "NetworkPolicy", short="netpol", generation=True),
    _builtin("policy", "poddisruptionbudgets", "PodDisruptionBudget", short="pdb", status=True, generation=True),
    _builtin("rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _builtin("rbac.authorization.k8s.io", "clusterroles", "ClusterRole", namespaced=False),
    _builtin("rbac.authorization.k8s.io", "rolebindings", "RoleBinding"),
    _builtin("rbac.authorization.k8s.io", "roles", "Role"),
    _builtin(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        short="crd crds",
        categories="api-extensions",
        namespaced=False,
        status=True,
        generation=True,
    ),
    _builtin("coordination.k8s.io", "leases", "Lease"),
)  # fmt: skip
