"""Measure what acts on changes, inside one process that prints one JSON line: `acting.py '{"do": "queue", …}'`."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hack.bench.subjects.probe import SENT, spec
from informers import (
    GVR,
    Clusters,
    LeaderElection,
    Manager,
    ObjectRef,
    Request,
    Selection,
    Stop,
    SystemClock,
    configure_logging,
)
from informers.runtime.workqueue import WorkQueue

CONFIGMAPS = GVR("", "v1", "configmaps")


def queue(wanted: Mapping[str, Any]) -> Mapping[str, float]:
    """Put keys through the work queue: a tenth of them twice, and one of twenty comes back once."""
    keys = [ObjectRef(CONFIGMAPS, "bench", f"cm-{n:06d}") for n in range(wanted["keys"])]
    work = WorkQueue(clock=SystemClock())
    again = set(keys[::20])

    def drain() -> None:
        while (item := work.get()) is not None:
            if item.key in again:
                again.discard(item.key)
                work.add(item.key)
            work.done(item.key)

    workers = [threading.Thread(target=drain) for _ in range(wanted["workers"])]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for start in range(0, len(keys), 1000):
        batch = keys[start : start + 1000]
        work.add_many(batch)
        work.add_many(batch[::10])
    work.shut_down(drain=True)
    for worker in workers:
        worker.join()
    return {"items / s": work.handed_out() / (time.monotonic() - began)}


def fanout(wanted: Mapping[str, Any]) -> Mapping[str, float]:
    """Change one object on which many depend, and look how long after the change all of them are enqueued."""
    manager = Manager(Clusters.load(wanted["kubeconfig"]), name="bench")
    dependents = [ObjectRef(CONFIGMAPS, "bench", f"cm-{n:06d}") for n in range(1, wanted["dependents"] + 1)]
    source = ObjectRef(CONFIGMAPS, "bench", "cm-000000")
    lister = manager.lister(CONFIGMAPS)
    graph = manager.dependency_graph(over=(lister,))
    controller = manager.add_controller("bench", lambda _request: None, primary=CONFIGMAPS, dependencies=graph)
    threading.Thread(target=manager.run, daemon=True).start()
    while not (lister.has_synced() and controller.is_idle()):
        time.sleep(0.05)
    for dependent in dependents:
        graph.replace(dependent, (source,))
    while not controller.is_idle():
        time.sleep(0.05)

    took: list[float] = []
    woken = threading.Event()

    def enqueued(refs: Any, _priority: int) -> None:
        # Told after the controller, which has enqueued by now.
        if len(refs) == len(dependents):
            took.append(time.monotonic() - float(lister.get(source.name, source.namespace).annotations[SENT]))
            woken.set()

    graph.subscribe(enqueued)
    for n in range(wanted["changes"]):
        while not controller.is_idle():
            time.sleep(0.01)
        woken.clear()
        body = {"metadata": {"annotations": {SENT: repr(time.monotonic()), "n": str(n)}}}
        manager.client.patch(source, body, field_manager="bench")
        if not woken.wait(10):
            msg = f"change {n} woke nobody"
            raise TimeoutError(msg)
    took.sort()
    return {"ms to enqueue, median": took[len(took) // 2] * 1000, "longest ms": took[-1] * 1000}


def lease(wanted: Mapping[str, Any]) -> Mapping[str, float]:
    """Hold a lease while four workers use all the CPU, an informer is flooded, and all garbage is collected again and again."""
    manager = Manager(
        Clusters.load(wanted["kubeconfig"]), name="bench", election=LeaderElection("bench", namespace="default")
    )

    def busy(_request: Request) -> None:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            sum(range(1000))

    def collect(stop: Stop) -> None:
        while not stop.wait(0.5):
            gc.collect()

    manager.add_controller("bench", busy, primary=CONFIGMAPS, workers=4)
    manager.add_runnable("collect", collect)
    threading.Timer(wanted["seconds"], manager.stop).start()
    manager.run()
    return {}


def in_cluster(wanted: Mapping[str, Any]) -> Mapping[str, float]:
    """Follow the metadata of Secrets as a program in a pod does: over TLS, without a kubeconfig."""
    from informers.api import kubeconfig

    kubeconfig._SERVICE_ACCOUNT = wanted["account"]  # type: ignore[misc] # where a pod has it, only root may write
    manager = Manager(Clusters.load(), name="bench")
    lister = manager.lister(Selection(GVR("", "v1", "secrets"), metadata_only=True))
    threading.Thread(target=manager.run, daemon=True).start()
    while not lister.has_synced():
        time.sleep(0.05)
    time.sleep(0.5)
    found = len(lister.list())
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {"objects": found, "RSS MiB": int(status.partition("VmRSS:")[2].split()[0]) / 1024}


if __name__ == "__main__":
    _wanted = spec()
    configure_logging(level="error")
    _does = {"queue": queue, "fanout": fanout, "lease": lease, "in_cluster": in_cluster}
    print(json.dumps(_does[_wanted["do"]](_wanted)))
