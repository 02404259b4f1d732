"""`kr8s`: its watch, which begins with all there is, and a dictionary of our own, as it has no cache."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import kr8s.asyncio

from hack.bench.subjects.probe import Probe, spec


class Watcher:
    """Watch from the start; the loop is the one in its documentation."""

    def __init__(self, probe: Probe, wanted: dict[str, Any]) -> None:
        self._probe = probe
        self._wanted = wanted
        self._looks = wanted.get("marks", False)
        self._objects: dict[tuple[str, str], Any] = {}

    def start(self) -> None:
        """Begin to follow, on a thread with a loop."""
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()

    def has(self, namespace: str, name: str) -> bool:
        """Tell whether the dictionary has it."""
        return (namespace, name) in self._objects

    def stop(self) -> None:
        """Do nothing: there is no way to end a watch but to end the loop."""

    async def _run(self) -> None:
        try:
            api = await kr8s.asyncio.api(kubeconfig=self._wanted["kubeconfig"])
            async for event, obj in api.async_watch(
                self._wanted["resource"], namespace=self._wanted.get("namespace") or kr8s.ALL
            ):
                self._tell(event.lower(), obj)
            self._probe.end("the watch returned")
        except Exception as error:  # noqa: BLE001 - how it ends is what is asked
            self._probe.end(f"{type(error).__name__}: {error}"[:200])

    def _tell(self, kind: str, obj: Any) -> None:
        key = (obj.namespace, obj.name)
        if kind == "deleted":
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
        if kind in {"added", "modified", "deleted"}:
            if self._looks:
                self._probe.marked(obj.annotations)
                if kind == "deleted":
                    self._probe.gone(key[1])
            self._probe.seen(kind)


if __name__ == "__main__":
    _probe = Probe()
    _probe.serve(Watcher(_probe, spec()))
