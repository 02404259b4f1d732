"""Following one resource: the first sync, memory, events, latency, relists."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hack.bench.host import CLIENT_GO, OURS, PEERS, YARDSTICK, Child
from hack.bench.payloads import RESOURCES
from hack.bench.report import Table
from hack.bench.run import Run, Unmeasured
from hack.bench.servers import Server, filled, real
from hack.bench.subjects.probe import MARK, SENT

_KIB: Final = 1024
_MIB: Final = 1024 * 1024

# How the first state can be asked for.
_WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    f"{OURS}, list": {"watch": {"initial": "list", "gzip": False}},
    f"{OURS}, pages of 500": {"watch": {"initial": "list", "gzip": False}, "page_size": 500},
    f"{OURS}, gzip": {"watch": {"initial": "list", "gzip": True}},
    f"{OURS}, stream": {"watch": {"initial": "stream"}},
    f"{OURS}, stream, metadata": {"watch": {"initial": "stream"}, "metadata_only": True},
    f"{OURS}, list, metadata": {"watch": {"initial": "list"}, "metadata_only": True},
    f"{OURS}, list, body dropped": {"watch": {"initial": "list"}, "drop": True},
    f"{CLIENT_GO}, body dropped": {"drop": True},
}


def spec_of(row: str, payload: str, **more: Any) -> Mapping[str, Any]:
    """Say what the subject of a row of a table follows."""
    return {"resource": RESOURCES[payload], **_WAYS.get(row, {}), **more}


def subject_of(row: str) -> str:
    """Return the subject of a row: `informers, stream` is `informers`."""
    return row.partition(",")[0]


def sync_real(run: Run) -> Table:
    """Sync many TLS Secrets from a real API server."""
    count = run.size(20_000, 2_000)
    table = Table("sync-real", f"{count:,} Secrets of 4 kB on the real API server, until all were told", "wall s")
    rows = [f"{OURS}, list", f"{OURS}, stream", *PEERS]
    with real("sec4k", count) as server:
        _sync(run, table, server, "sec4k", count, rows)
    best = _best(table, [f"{OURS}, list", f"{OURS}, stream"], "wall s")
    table.target(f"{best}: wall time, of client-go's", table.ratios(best, CLIENT_GO, "wall s"), "≤", 0.6)
    table.target(f"{best}: memory growth, of client-go's", table.ratios(best, CLIENT_GO, "kB each"), "≤", 0.2)
    return table


def sync(run: Run) -> Table:
    """Sync many Pods from the embedded API server, every way."""
    count = run.size(20_000, 2_000)
    table = Table(
        "sync", f"{count:,} Pods of 5.6 kB on the embedded API server, until all were told", "objects / CPU s"
    )
    with filled("pod5k", count) as (server, _):
        _sync(run, table, server, "pod5k", count, [*_WAYS, YARDSTICK, CLIENT_GO, "lightkube"])
    rows = (f"{OURS}, list", f"{OURS}, stream")
    table.target("objects per CPU second, list", table.values(rows[0], "objects / CPU s"), "≥", 30_000)
    table.target("kB each, list", table.values(rows[0], "kB each"), "≤", 5)
    for row in (f"{OURS}, list, metadata", f"{OURS}, list, body dropped"):
        table.target(f"kB each{row.partition('list')[2]}", table.values(row, "kB each"), "≤", 2.5)
    peaks = zip(table.values(rows[1], "peak MiB"), table.values(rows[1], "RSS MiB"), strict=True)
    table.target("peak, of the final memory, stream", [peak / final for peak, final in peaks], "≤", 2)
    return table


def sync_all(run: Run) -> Table:
    """Sync fewer Pods with every peer, as some take long."""
    count = 2_000
    table = Table(
        "sync-all", f"{count:,} Pods of 5.6 kB on the embedded API server, with every peer", "objects / CPU s"
    )
    with filled("pod5k", count) as (server, _):
        _sync(run, table, server, "pod5k", count, [f"{OURS}, list", YARDSTICK, *PEERS])
    ratios = table.ratios(f"{OURS}, list", "kubernetes", "objects / CPU s")
    table.target("objects per CPU second, times kubernetes.informer's", ratios, "≥", 10)
    return table


def _sync(run: Run, table: Table, server: Server, payload: str, count: int, rows: Sequence[str]) -> None:
    for row in run.each(table, rows, subject_of):
        with run.measured(table, row), Child(subject_of(row), server.kubeconfig, spec_of(row, payload)) as child:
            after = begin(server, child, count, run.patience)
            table.add(
                row,
                {
                    "wall s": after["wall"],
                    "CPU s": after["cpu"],
                    "objects / CPU s": count / after["cpu"],
                    **memory(child, count),
                    "longest GC pause ms": after["gc"]["longest"] * 1000,
                    **({"requests": len(server.requests())} if server.is_embedded() else {}),
                },
            )


def begin(
    server: Server, child: Child, count: int, patience: float, *, counted: str = "added", watched: str = ""
) -> dict[str, Any]:
    """Have a subject follow, and return its snapshot when it was told of all objects; and, if asked, is watching."""
    server.forget()
    child.ask("start")
    after = child.until(counted, count, patience)
    if watched:
        server.wait(patience, verb="watch", resource=watched)
    return after


def memory(child: Child, count: int) -> Mapping[str, float]:
    """Say what following so many objects costs, once the answer they came in has been freed."""
    time.sleep(0.5)
    after = child.ask("snap")
    return {
        "MiB before": child.before["rss"] / _MIB,
        "RSS MiB": after["rss"] / _MIB,
        "peak MiB": after["peak"] / _MIB,
        "kB each": (after["rss"] - child.before["rss"]) / _KIB / count,
    }


def _best(table: Table, rows: Sequence[str], measure: str) -> str:
    """Return which of our ways took least."""
    return min(rows, key=lambda row: min(table.values(row, measure) or [float("inf")]))


def turnover(run: Run) -> Table:
    """Change every object ten times over, and list twenty times; memory must stay."""
    count, rounds, lists = run.size(5_000, 500), run.size(10, 4), run.size(20, 4)
    table = Table(
        "turnover", f"memory of {count:,} ConfigMaps after {rounds} turnovers and {lists} relists", "kB each at the end"
    )
    quick = {"watch": {"initial": "list", "backoff": [0.05, 0.1]}}  # waiting between relists is not what is measured
    with filled("cm1k", count, f"--history={count * 2}") as (server, objects):
        for row in run.each(table, [OURS, CLIENT_GO, "kubernetes"], subject_of):
            spec = {**spec_of(row, "cm1k"), **(quick if row == OURS else {})}
            with run.measured(table, row), Child(row, server.kubeconfig, spec) as child:
                grown = [begin(server, child, count, run.patience)["rss"]]
                for n in range(1, rounds + 1):
                    server.put(_changed(objects, f"turn {n}"))
                    grown.append(child.until("modified", count * n, run.patience)["rss"])
                for n in range(1, lists + 1):
                    _expire(server, n, run.patience)
                last = child.ask("snap")["rss"]
                half = grown[rounds // 2]
                table.add(
                    row,
                    {
                        "kB each, synced": (grown[0] - child.before["rss"]) / _KIB / count,
                        "kB each at the end": (last - child.before["rss"]) / _KIB / count,
                        "% a turnover, second half": 100 * (grown[-1] / half - 1) / (rounds - rounds // 2),
                        "% by relists": 100 * (last / grown[-1] - 1),
                    },
                )
    table.target("growth of RSS a turnover, %", map(abs, table.values(OURS, "% a turnover, second half")), "≤", 1)
    return table


def _changed(objects: Sequence[Mapping[str, Any]], text: str) -> list[dict[str, Any]]:
    changed = []
    for obj in objects:
        metadata = obj["metadata"]
        annotations = {**metadata["annotations"], "example.com/changed": text}
        changed.append({**obj, "metadata": {**metadata, "annotations": annotations}})
    return changed


def _expire(server: Server, number: int, patience: float) -> None:
    """Let the history expire and cut the streams, so that everybody lists; wait until the new watch is open."""
    server.forget()
    # Something else changes, so that the version which everybody has is an old one.
    meta = {"name": "tick", "namespace": "default", "annotations": {MARK: f"{number}"}}
    server.put([{"apiVersion": "v1", "kind": "Secret", "metadata": meta}])
    server.control("POST", "/_compact", {})
    server.control("POST", "/_close", {"match": {}})
    deadline = time.monotonic() + patience
    while not _is_watched(server):
        if time.monotonic() > deadline:
            raise Unmeasured(f"no watch after relist {number}")
        time.sleep(0.02)


def _is_watched(server: Server) -> bool:
    """Tell whether all was listed anew, or streamed, and a watch is open."""
    log = [each for each in server.requests(resource="configmaps") if each["verb"] in {"list", "watch"}]
    is_anew = any(each["verb"] == "list" or "sendInitialEvents" in str(each["query"]) for each in log)
    return is_anew and log[-1]["verb"] == "watch" and log[-1]["ended"] == "open"


def relist(run: Run) -> Table:
    """List again although nothing has changed."""
    count = run.size(10_000, 2_000)
    table = Table("relist", f"the history expires with {count:,} unchanged ConfigMaps", "CPU s")
    with filled("cm1k", count) as (server, _):
        for row in run.each(table, [OURS, CLIENT_GO, "kubernetes", "kopf"], subject_of):
            with run.measured(table, row), Child(row, server.kubeconfig, spec_of(row, "cm1k")) as child:
                begin(server, child, count, run.patience, watched="configmaps")
                before = child.ask("snap")
                _expire(server, 1, run.patience)
                after = _settled(child)
                calls = sum(after["counts"][kind] - before["counts"][kind] for kind in ("added", "modified", "deleted"))
                table.add(row, {"CPU s": after["cpu"] - before["cpu"], "callbacks": calls})
    table.target("callbacks", table.values(OURS, "callbacks"), "=", 0)
    table.target("CPU seconds", table.values(OURS, "CPU s"), "<", 0.3)
    return table


def _settled(child: Child) -> dict[str, Any]:
    """Return a snapshot once the subject uses no more CPU."""
    before = child.ask("snap")
    while True:
        time.sleep(0.5)
        after = child.ask("snap")
        if after["cpu"] - before["cpu"] < 0.02:
            return after
        before = after


def events(run: Run) -> Table:
    """Change Pods as fast as the server can."""
    table = _events(run, "events", "pod5k", run.size(20_000, 4_000))
    table.target("events per CPU second", table.values(OURS, "events / CPU s"), "≥", 12_000)
    for peer in ("kubernetes", "kopf"):
        table.target(f"events per CPU second, times {peer}'s", table.ratios(OURS, peer, "events / CPU s"), "≥", 8)
    return table


def events_small(run: Run) -> Table:
    """Change ConfigMaps as fast as the server can: little to decode, so that what is around it shows."""
    return _events(run, "events-small", "cm1k", run.size(20_000, 4_000))


def _events(run: Run, name: str, payload: str, total: int) -> Table:
    count = 2_000
    title = f"{total:,} changes of {count:,} {RESOURCES[payload]} ({payload}), two indexes, a handler and a queue"
    table = Table(name, title, "events / CPU s")
    ways: Mapping[str, Mapping[str, Any]] = {
        OURS: {"indexes": True, "queue": True},
        f"{OURS}, a controller": {"indexes": True, "controller": True},
        CLIENT_GO: {"indexes": True, "queue": True},
    }
    with filled(payload, count, f"--history={total * 2}") as (server, objects):
        for row in run.each(table, [*ways, YARDSTICK, *PEERS[1:]], subject_of):
            spec = {**spec_of(row, payload), **ways.get(row, {})}
            with run.measured(table, row), Child(subject_of(row), server.kubeconfig, spec) as child:
                counted = "reconciled" if "controller" in spec else "added"
                begin(server, child, count, run.patience, counted=counted, watched=RESOURCES[payload])
                before = child.ask("snap")
                for n in range(total // count):
                    server.put(_changed(objects, f"{row} {n}"))
                # Several changes of an object may be one reconcile.
                is_exact = counted == "added"
                after = child.until("modified", total, run.patience) if is_exact else _settled(child)
                cpu = after["cpu"] - before["cpu"]
                table.add(row, {"wall s": after["now"] - before["now"], "CPU s": cpu, "events / CPU s": total / cpu})
    table.notes.append(
        "lightkube and kr8s keep no cache: a plain dictionary stands for it. They and the yardstick have no queue."
    )
    return table


def latency(run: Run) -> Table:
    """Change an object 200 times a second, and look how late that is seen."""
    seconds, rate = run.size(30, 4), 200
    title = f"{rate} changes a second for {seconds} s: from sending the change to the server, to reconcile or handler"
    table = Table("latency", title, "p99 ms")
    with filled("cm1k", 100, "--history=100000") as (server, objects):
        for burn in (0, 2):
            for row in run.each(table, [OURS, YARDSTICK, *PEERS], subject_of):
                name = f"{row}, busy" if burn else row
                spec = spec_of(row, "cm1k", marks=True, burn=burn, controller=True)
                with run.measured(table, name), Child(row, server.kubeconfig, spec) as child:
                    counted = "reconciled" if row == OURS else "added"
                    begin(server, child, 100, run.patience, counted=counted, watched="configmaps")
                    child.ask("forget")
                    _tick(server, objects, rate, seconds)
                    delays = _settled_delays(child)
                    table.add(name, {f"{share} ms": delays[share] * 1000 for share in ("p50", "p90", "p99")})
    for name, row, limits in (("idle", OURS, (2, 10)), ("busy", f"{OURS}, busy", (5, 30))):
        for share, limit in zip(("p50", "p99"), limits, strict=True):
            table.target(f"{share} ms, {name}", table.values(row, f"{share} ms"), "<", limit)
    table.notes.append(
        "The server's own work is in it: what the yardstick has, nobody can be faster than. busy: two threads of the "
        "same process use all the CPU they get."
    )
    return table


def _tick(server: Server, objects: Sequence[Mapping[str, Any]], rate: int, seconds: int) -> None:
    began = time.monotonic()
    for n in range(rate * seconds):
        time.sleep(max(0.0, began + n / rate - time.monotonic()))
        obj = objects[n % len(objects)]
        metadata = {**obj["metadata"], "annotations": {SENT: repr(time.monotonic())}}
        server.put([{**obj, "metadata": metadata}])


def _settled_delays(child: Child) -> Mapping[str, float]:
    time.sleep(0.5)
    delays: Mapping[str, float] = child.ask("snap")["delays"]
    if not delays:
        raise Unmeasured("saw no change")
    return delays
