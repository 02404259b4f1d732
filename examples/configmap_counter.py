"""Write on every Namespace how many ConfigMaps it holds."""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from informers import GVR, Client, FlagParser, Lister, Manager, Object, ObjectRef, Request, Result

NAMESPACES = GVR("", "v1", "namespaces")
CONFIGMAPS = GVR("", "v1", "configmaps")
COUNT = "example.com/configmaps"


def add_arguments(parser: FlagParser) -> None:
    """Declare this controller's own options and defaults; the shared flags are there already."""
    parser.set_defaults(workers=2)


def setup(manager: Manager, options: argparse.Namespace) -> None:
    """Look at a Namespace again when it, or a ConfigMap in it, changes."""
    counter = ConfigMapCounter(manager.client, manager.lister(NAMESPACES), manager.lister(CONFIGMAPS))
    manager.add_controller(
        "configmap-counter",
        counter.reconcile,
        primary=NAMESPACES,
        watches={CONFIGMAPS: namespace_of},
        workers=options.workers,
    )


def namespace_of(obj: Object) -> Iterable[ObjectRef]:
    """Name the Namespace that a namespaced object lives in."""
    yield obj.ref.sibling(NAMESPACES, namespace="", name=obj.namespace)


@dataclass(frozen=True, slots=True)
class ConfigMapCounter:
    """Keep one annotation equal to what the cache counts."""

    client: Client
    namespaces: Lister
    configmaps: Lister

    def reconcile(self, request: Request) -> Result:
        """Patch the Namespace if its annotation is not the present count."""
        namespace = self.namespaces.find(request.ref)
        if namespace is None:
            return Result()

        wanted = str(len(self.configmaps.list(namespace.name, cluster=request.ref.cluster)))
        if namespace.annotations.get(COUNT) != wanted:
            patch = {"metadata": {"annotations": {COUNT: wanted}}}
            self.client.patch(request.ref, patch, field_manager="configmap-counter")
        return Result()
