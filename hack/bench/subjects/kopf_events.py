"""`kopf`: an event handler, and with `"index": true` an index, which is its cache.

While an index is being filled, each object wakes all that wait, so that a few thousand objects take minutes: the
benchmarks with many objects leave it out.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import kopf

from hack.bench.subjects.probe import Probe, spec


class Operator:
    """An operator with one handler and one index."""

    def __init__(self, probe: Probe, wanted: dict[str, Any]) -> None:
        self._probe = probe
        self._wanted = wanted
        self._registry = kopf.OperatorRegistry()
        self._settings = kopf.OperatorSettings()
        self._settings.posting.enabled = False
        self._index: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flag: asyncio.Event | None = None
        looks = wanted.get("marks", False)
        plural, _, group = wanted["resource"].partition(".")

        @kopf.on.login(registry=self._registry)  # type: ignore[untyped-decorator]
        def login(**_: Any) -> Any:
            return kopf.login_with_kubeconfig(settings=self._settings)

        if wanted.get("index"):

            @kopf.index(group, "v1", plural, id="objects", registry=self._registry)  # type: ignore[untyped-decorator]
            async def index(name: str, namespace: str, body: Any, **_: Any) -> Any:
                return {(namespace, name): body}

        @kopf.on.event(group, "v1", plural, registry=self._registry)  # type: ignore[untyped-decorator]
        async def tell(type: str | None, name: str, annotations: Any, **others: Any) -> None:  # noqa: A002
            self._index = others.get("objects")
            kind = (type or "ADDED").lower()  # None is what was there at first
            if looks:
                probe.marked(annotations)
                if kind == "deleted":
                    probe.gone(name)
            probe.seen(kind)

    def start(self) -> None:
        """Begin to follow, on a thread with a loop."""
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()

    def has(self, namespace: str, name: str) -> bool | None:
        """Tell whether the index has it."""
        return None if self._index is None else (namespace, name) in self._index

    def stop(self) -> None:
        """Set the stop flag and wait for the loop's end."""
        if self._loop is not None and self._flag is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._flag.set)

    async def _run(self) -> None:
        self._loop, self._flag = asyncio.get_running_loop(), asyncio.Event()
        try:
            await kopf.operator(
                registry=self._registry,
                settings=self._settings,
                standalone=True,
                clusterwide=True,
                stop_flag=self._flag,
            )
            self._probe.end("the operator returned")
        except BaseException as error:  # noqa: BLE001 - how it ends is what is asked
            self._probe.end(f"{type(error).__name__}: {error}"[:200])


if __name__ == "__main__":
    _probe = Probe()
    _probe.serve(Operator(_probe, spec()))
