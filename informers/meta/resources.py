"""Name resources and objects: a GVR is a URL's plural, a GVK a manifest's kind, an ObjectRef one object of one cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# What discovery and kubectl take for a version: it decides how `NAME.SECOND` is read.
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")


def is_version(text: str) -> bool:
    """Tell whether `text` looks like an API version (`v1`, `v2beta3`)."""
    return _VERSION.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class GVR:
    """Group, version and plural resource name, as they stand in URLs; the core group is `""`."""

    group: str
    version: str
    resource: str

    @property
    def group_version(self) -> str:
        """The text of `apiVersion` in objects of this resource: `apps/v1`, `v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """The path of this group version on the API server: `/apis/apps/v1`, `/api/v1`."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def __str__(self) -> str:
        return f"{self.resource}.{self.version}.{self.group}" if self.group else f"{self.resource}.{self.version}"


@dataclass(frozen=True, slots=True, order=True)
class GVK:
    """Group, version and kind, as they stand in manifests."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        """The text of `apiVersion`: `apps/v1`, `v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @classmethod
    def parse(cls, api_version: str, kind: str) -> GVK:
        """Read `apiVersion` and `kind` of a manifest."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version, kind)

    def __str__(self) -> str:
        return f"{self.kind}.{self.version}.{self.group}" if self.group else f"{self.kind}.{self.version}"


@dataclass(frozen=True, slots=True)
class Resource:
    """One line of discovery: how a resource is named, whether it is namespaced, what it can do."""

    gvr: GVR
    kind: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: frozenset[str] = frozenset()
    subresources: frozenset[str] = frozenset()

    @property
    def gvk(self) -> GVK:
        """The kind that objects of this resource have."""
        return GVK(self.gvr.group, self.gvr.version, self.kind)


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """One object of one cluster: which one, not what is in it.

    `cluster` is `""` for the home cluster; `namespace` is `""` for a cluster-scoped object.
    Equality, order and hash go over one string, `identity`, which is made once: references are keys of hot maps, and
    the hottest have the string itself as their key.
    """

    gvr: GVR = field(compare=False)
    namespace: str = field(compare=False)
    name: str = field(compare=False)
    cluster: str = field(default="", compare=False)
    identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gvr = self.gvr
        key = f"{self.cluster}\0{gvr.group}\0{gvr.version}\0{gvr.resource}\0{self.namespace}\0{self.name}"
        object.__setattr__(self, "identity", key)

    # Written out, as those that the decorator makes build tuples first.

    def __eq__(self, other: object) -> bool:
        return self.identity == other.identity if isinstance(other, ObjectRef) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.identity)

    def sibling(self, gvr: GVR, *, name: str, namespace: str | None = None) -> ObjectRef:
        """Name another object of the same cluster; without `namespace`, of the same namespace."""
        return ObjectRef(gvr, self.namespace if namespace is None else namespace, name, self.cluster)

    @property
    def key(self) -> str:
        """The key inside one resource of one cluster: `namespace/name`, or `name` if cluster-scoped."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        where = f"{self.gvr} {self.key}"
        return f"{self.cluster}/{where}" if self.cluster else where
