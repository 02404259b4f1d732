"""`lightkube`: its list and its watch, and a dictionary of our own, as it has no cache."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import ConfigMap, Pod, Secret
from lightkube.types import on_error_retry

from hack.bench.subjects.probe import Probe, spec

_KINDS = {"added": "ADDED", "modified": "MODIFIED", "deleted": "DELETED"}


class Watcher:
    """List once, then watch; errors are tried again as the library's `on_error_retry` does."""

    def __init__(self, probe: Probe, wanted: dict[str, Any]) -> None:
        self._probe = probe
        self._client = lightkube.Client(KubeConfig.from_file(Path(wanted["kubeconfig"])))
        resource = {"secrets": Secret, "configmaps": ConfigMap, "pods": Pod}.get(wanted["resource"])
        if resource is None:
            plural, _, group = wanted["resource"].partition(".")
            resource = create_namespaced_resource(group, "v1", plural.rstrip("s").capitalize(), plural)
        self._resource = resource
        self._namespace = wanted.get("namespace") or "*"
        self._looks = wanted.get("marks", False)
        self._objects: dict[tuple[str, str], Any] = {}

    def start(self) -> None:
        """Begin to follow, on a thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def has(self, namespace: str, name: str) -> bool:
        """Tell whether the dictionary has it."""
        return (namespace, name) in self._objects

    def stop(self) -> None:
        """Close the client; a watch under way has no way to be ended."""
        self._client.close()

    def _run(self) -> None:
        try:
            listed = self._client.list(self._resource, namespace=self._namespace)
            for obj in listed:
                self._tell("added", obj)
            for event, obj in self._client.watch(
                self._resource,
                namespace=self._namespace,
                resource_version=listed.resourceVersion,
                on_error=self._failed,
            ):
                self._tell(event.lower(), obj)
            self._probe.end("the watch returned")
        except Exception as error:  # noqa: BLE001 - how it ends is what is asked
            self._probe.end(f"{type(error).__name__}: {error}"[:200])

    def _failed(self, error: Exception, count: int) -> Any:
        self._probe.seen("error")
        return on_error_retry(error, count)

    def _tell(self, kind: str, obj: Any) -> None:
        key = (obj.metadata.namespace, obj.metadata.name)
        if kind == "deleted":
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
        if kind in _KINDS:
            if self._looks:
                self._probe.marked(obj.metadata.annotations or {})
                if kind == "deleted":
                    self._probe.gone(key[1])
            self._probe.seen(kind)


if __name__ == "__main__":
    _probe = Probe()
    _probe.serve(Watcher(_probe, spec()))
