"""`kubernetes.informer.SharedInformer` of the official Python client."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from hack.bench.subjects.probe import Probe, spec

# Without types, for the checker: as an import of a name it would judge what it calls untyped.
kubernetes: Any = import_module("kubernetes")
informer: Any = import_module("kubernetes.informer")


class Informer:
    """One informer that counts."""

    def __init__(self, probe: Probe, wanted: dict[str, Any]) -> None:
        kubernetes.config.load_kube_config(wanted["kubeconfig"])
        core = kubernetes.client.CoreV1Api()
        namespaces = wanted.get("each_namespace") or [None]
        where = "namespaced_{}" if namespaces[0] else "{}_for_all_namespaces"
        kind = {"secrets": "secret", "configmaps": "config_map", "pods": "pod"}.get(wanted["resource"])
        if kind is None:
            plural, _, group = wanted["resource"].partition(".")
            listing = partial(kubernetes.client.CustomObjectsApi().list_cluster_custom_object, group, "v1", plural)
        else:
            listing = getattr(core, "list_" + where.format(kind))
        self._informers = [
            informer.SharedInformer(listing, namespace=namespace, label_selector=wanted.get("labels"))
            for namespace in namespaces
        ]
        looks = wanted.get("marks", False)

        def tell(kind: str, obj: Any) -> None:
            if looks and kind != "error":
                probe.marked(obj.metadata.annotations or {})
                if kind == "deleted":
                    probe.gone(obj.metadata.name)
            probe.seen(kind)

        for kind in ("added", "modified", "deleted", "error"):
            for each in self._informers:
                each.add_event_handler(kind.upper(), partial(tell, kind))

    def start(self) -> None:
        """Begin to follow."""
        for each in self._informers:
            each.start()

    def has(self, namespace: str, name: str) -> bool:
        """Tell whether the cache has it."""
        return self._informers[0].cache.get_by_key(f"{namespace}/{name}") is not None

    def stop(self) -> None:
        """Stop and join."""
        for each in self._informers:
            each.stop()


if __name__ == "__main__":
    _probe = Probe()
    _probe.serve(Informer(_probe, spec()))
