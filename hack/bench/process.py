"""Measure what decides the settings of a process: garbage collector, switch interval, stacks of threads.

Run it alone on a machine that does nothing else; the figures that were decided on stand in
`informers/process.py`. Takes half a minute: `python hack/bench/process.py`.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from informers.cache.entries import Keeper
from informers.cache.listwatch import read_item
from informers.cache.store import Received, Store, StoreWriter
from informers.clock import SystemClock
from informers.logs import Throttle
from informers.meta.resources import GVR
from informers.runtime.workqueue import WorkQueue

OBJECTS = 100_000
CONFIGMAPS = GVR("", "v1", "configmaps")


def raw(number: int, version: int) -> msgspec.Raw:
    """Return a ConfigMap as the server sends it."""
    metadata = {
        "name": f"cm-{number}",
        "namespace": f"ns-{number % 100}",
        "uid": f"uid-{number}",
        "resourceVersion": str(version),
        "labels": {"app": f"app-{number % 1000}"},
    }
    return msgspec.Raw(json.dumps({"metadata": metadata, "data": {"key": "x" * 200}}).encode())


def filled(count: int) -> tuple[StoreWriter, Keeper]:
    """Return a store of so many ConfigMaps with an index on their labels."""
    throttle = Throttle(SystemClock())
    store = Store(CONFIGMAPS, throttle=throttle)
    writer = StoreWriter(store)
    keeper = Keeper(CONFIGMAPS, cluster="", bodies=store, throttle=throttle, kind="ConfigMap")
    store.add_index("app", lambda obj: (obj.labels["app"],))
    for number in range(count):
        writer.apply(Received(keeper.keep(read_item(raw(number, number + 1)))), moves_rv=True)
    return writer, keeper


def timed(call: Callable[[], object]) -> float:
    """Return how many milliseconds a call takes."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def resident() -> float:
    """Return the MiB of memory that are in use."""
    return status()["VmRSS"] / 1024


def status() -> Mapping[str, int]:
    """Return the kilobytes that the system tells of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}


def measure_collector() -> None:
    """Full collections: with nothing frozen, frozen once, frozen again after each; with all objects replaced between."""
    gc.disable()
    writer, keeper = filled(OBJECTS)
    queue = WorkQueue(clock=SystemClock())
    plain = [timed(gc.collect) for _ in range(5)]
    print(f"collector  nothing frozen: {statistics.median(plain):.1f} ms a collection, {len(gc.get_objects())} tracked")
    gc.freeze()
    frozen = [timed(gc.collect) for _ in range(5)]
    print(f"collector  frozen once, nothing changed: {statistics.median(frozen):.2f} ms")

    def replace_all(version: int) -> None:
        for number in range(OBJECTS):
            writer.apply(Received(keeper.keep(read_item(raw(number, version + number)))), moves_rv=True)
            queue.add(writer.store.list()[0].ref) if number == 0 else None

    for policy in ("once", "again"):
        pauses = []
        for turn in range(1, 4):
            replace_all(10_000_000 * turn + (500_000_000 if policy == "again" else 0))
            pauses.append(timed(gc.collect))
            if policy == "again":
                gc.freeze()
                pauses.append(timed(gc.collect))
        shown = ", ".join(f"{one:.1f}" for one in pauses)
        print(f"collector  frozen {policy}, all objects replaced between: {shown} ms; {resident():.0f} MiB")
    gc.unfreeze()
    print(f"collector  all of it once more, unfrozen: {timed(gc.collect):.1f} ms")
    gc.enable()
    gc.unfreeze()


def measure_switching() -> None:
    """How late a thread that waits for nothing but the time comes to run while two others compute; and what they do."""
    late: dict[float, list[float]] = {0.005: [], 0.001: [], 0.0005: []}
    rates: dict[float, list[float]] = {interval: [] for interval in late}
    for _ in range(5):
        for interval in late:
            sys.setswitchinterval(interval)
            found, rate = beside_two()
            late[interval] += found
            rates[interval].append(rate)
    sys.setswitchinterval(0.005)
    for interval, found in late.items():
        found.sort()
        print(
            f"switching  {interval * 1000:.1f} ms: late p50 {found[len(found) // 2]:.2f} ms,"
            f" p99 {found[len(found) * 99 // 100]:.2f} ms; work per CPU second {statistics.median(rates[interval]):.0f}"
        )


def beside_two() -> tuple[list[float], float]:
    """Wait 200 times beside two threads that compute; return how late that ended, and what they did a CPU second."""
    body = json.dumps({f"key-{n}": ["value"] * 5 for n in range(100)})
    stop, done = threading.Event(), [0, 0]

    def work(which: int) -> None:
        while not stop.is_set():
            sum(len(one) for one in json.loads(body).values())
            done[which] += 1

    workers = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    used = time.process_time()
    for one in workers:
        one.start()
    late = []
    for _ in range(200):
        due = time.perf_counter() + 0.003
        time.sleep(0.003)
        late.append((time.perf_counter() - due) * 1000)
    stop.set()
    for one in workers:
        one.join()
    return late, sum(done) / (time.process_time() - used)


def measure_stacks() -> None:
    """What 100 threads that wait cost, by the size of their stacks; each in a process of its own."""
    for size in (0, 512 * 1024, 1024 * 1024):
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import process; process.stacks({size})"
        print(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout, end="")


def stacks(size: int) -> None:
    """Start 100 threads, each of which parses something once, and tell what that took."""
    threading.stack_size(size)
    before, stop, ready = status(), threading.Event(), threading.Barrier(101)

    def wait() -> None:
        json.loads("[" * 100 + "]" * 100)
        ready.wait()
        stop.wait()

    threads = [threading.Thread(target=wait) for _ in range(100)]
    for one in threads:
        one.start()
    ready.wait()
    after = status()
    stop.set()
    for one in threads:
        one.join()
    grown = {name: (after[name] - before[name]) / 1024 for name in ("VmRSS", "VmSize")}
    shown = f"{size // 1024} KiB" if size else "of the system"
    print(f"stacks     {shown}: 100 threads take {grown['VmRSS']:.1f} MiB, {grown['VmSize']:.0f} MiB of addresses")


if __name__ == "__main__":
    measure_collector()
    measure_switching()
    measure_stacks()
