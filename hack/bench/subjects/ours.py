"""`informers`: a Manager whose informer has one handler, as the peers' informers have.

A handler is what our own controllers use inside; programs use `add_controller`, which `"controller": true` measures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from hack.bench.subjects.probe import SENT, Probe, spec
from informers import (
    GVR,
    Backoff,
    Clusters,
    InformersError,
    Manager,
    NotFoundError,
    Object,
    Request,
    Selection,
    SystemClock,
    WatchOptions,
    configure_logging,
)
from informers.cache.store import Delta
from informers.runtime.workqueue import WorkQueue


class Program:
    """A manager that counts."""

    def __init__(self, probe: Probe, wanted: dict[str, Any]) -> None:
        configure_logging(level=wanted.get("log", "error"))
        self._probe = probe
        self._looks = wanted.get("marks", False)
        options: dict[str, Any] = dict(wanted.get("watch", {}))
        if "backoff" in options:
            options["backoff"] = Backoff(*options["backoff"])
        self.manager = Manager(
            Clusters.load(wanted["kubeconfig"], contexts=wanted.get("contexts", ())),
            name="bench",
            watch=WatchOptions(**options),
        )
        selections = [
            Selection(
                _gvr(resource),
                namespaces=(namespace,) if namespace else (),
                label_selector=wanted.get("labels", ""),
                metadata_only=wanted.get("metadata_only", False),
                transform=_drop if wanted.get("drop") else None,
                page_size=wanted.get("page_size"),
            )
            for resource in wanted.get("resources") or [wanted["resource"]]
            for namespace in wanted.get("each_namespace") or [wanted.get("namespace")]
        ]
        self._listers = [self.manager.lister(selection) for selection in selections]
        for lister in self._listers if wanted.get("indexes") else ():
            lister.add_index("app", _app)
            lister.add_index("owner", _owner)
        self._queue: WorkQueue | None = WorkQueue(clock=SystemClock()) if wanted.get("queue") else None
        for selection in selections:
            if wanted.get("controller"):
                self._burn = wanted.get("burn", 0.0)
                self.manager.add_controller(
                    "bench", self._reconcile, primary=selection, workers=wanted.get("workers", 1)
                )
            else:
                for informers in self.manager._follow(selection, required=True).values():
                    informers.add_handler(self._tell)

    def start(self) -> None:
        """Begin to follow, on a thread."""
        if self._queue is not None:
            threading.Thread(target=self._drain, args=(self._queue,), daemon=True).start()
        threading.Thread(target=self._run, daemon=True).start()

    def has(self, namespace: str, name: str) -> bool:
        """Tell whether the cache has it."""
        try:
            self._listers[0].get(name, namespace)
        except NotFoundError:
            return False
        return True

    def stop(self) -> None:
        """Stop and wait for it."""
        self._stopped.clear()
        self.manager.stop("bench")
        self._stopped.wait(30)

    _stopped = threading.Event()

    def _run(self) -> None:
        try:
            self.manager.run()
        except InformersError as error:
            self._probe.end(f"{type(error).__name__}: {error}"[:200])
        self._stopped.set()

    def _tell(self, delta: Delta) -> None:
        kind = "deleted" if delta.new is None else "modified" if delta.old is not None else "added"
        if self._looks:
            found = delta.new or delta.old
            if found is not None:
                self._probe.marked(found.annotations)
            if delta.new is None:
                self._probe.gone(delta.ref.name)
        self._probe.seen(kind)
        if self._queue is not None:
            self._queue.add(delta.ref)

    def _drain(self, queue: WorkQueue) -> None:
        while (item := queue.get()) is not None:
            queue.done(item.key)

    def _reconcile(self, request: Request) -> None:
        if self._looks:
            found = self._listers[0].find(request.ref)
            if found is not None and SENT in found.annotations:
                self._probe.marked(found.annotations)
        self._probe.seen("reconciled")


def _gvr(resource: str) -> GVR:
    plural, _, group = resource.partition(".")
    return GVR(group, "v1", plural)


def _app(obj: Object) -> Iterable[str]:
    return (obj.labels.get("app", ""),)


def _owner(obj: Object) -> Iterable[str]:
    return (owner.uid for owner in obj.owners)


def _drop(_obj: Object) -> None:
    return None


if __name__ == "__main__":
    _probe = Probe()
    _probe.serve(Program(_probe, spec()))
