"""Acting on changes, and a process as a whole: queue, fan-out, storms, silence, leases, many clusters, memory of imports."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from hack.bench.host import CLIENT_GO, OURS, Child, acting, once, python_of
from hack.bench.payloads import CRD, bodies
from hack.bench.report import Table
from hack.bench.run import Run, Unmeasured
from hack.bench.servers import Server, embedded, filled
from hack.bench.subjects.probe import MARK


def _whole(row: str) -> str:
    return row.partition(",")[0]


def queue(run: Run) -> Table:
    """Put keys through the work queue alone."""
    keys = run.size(100_000, 20_000)
    table = Table("queue", f"{keys:,} keys through the work queue, 10 % twice, 5 % come back", "items / s")
    rows = {f"{OURS}, {n} workers": n for n in (1, 4, 16)}
    for row in run.each(table, list(rows), _whole):
        with run.measured(table, row):
            table.add(row, once({"do": "queue", "keys": keys, "workers": rows[row]}))
    for n, limit in ((1, 150_000), (4, 100_000)):
        table.target(f"items a second, {n} workers", table.values(f"{OURS}, {n} workers", "items / s"), "≥", limit)
    return table


def fanout(run: Run) -> Table:
    """Change what many depend on."""
    count = run.size(5_000, 500)
    table = Table("fan-out", f"one ConfigMap on which {count:,} depend changes 20 times", "ms to enqueue, median")
    with filled("cm1k", count + 1) as (server, _):
        for row in run.each(table, [OURS], _whole):
            with run.measured(table, row):
                wanted = {"do": "fanout", "kubeconfig": str(server.kubeconfig), "dependents": count, "changes": 20}
                table.add(row, once(wanted))
    table.target("ms from sending the change, median", table.values(OURS, "ms to enqueue, median"), "<", 20)
    return table


def _namespaces(count: int) -> list[str]:
    return [f"ns-{n:02d}" for n in range(count)]


def _in_each(namespaces: list[str], mark: str = "") -> list[dict[str, Any]]:
    annotations = {MARK: mark} if mark else {}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "one", "namespace": namespace, "annotations": annotations},
            "data": {"a": mark},
        }
        for namespace in namespaces
    ]


def storm(run: Run) -> Table:
    """Refuse every connection for a while, with many informers in one process."""
    count, seconds = 50, run.size(20, 8)
    table = Table(
        "storm", f"{count} informers, connections are refused for {seconds} s, then healed", "attempts / s each"
    )
    namespaces = _namespaces(count)
    with embedded() as server:
        server.put([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in namespaces])
        server.put(_in_each(namespaces))
        for row in run.each(table, [OURS, CLIENT_GO, "kubernetes"], _whole):
            spec = {"resource": "configmaps", "each_namespace": namespaces, "marks": True}
            with run.measured(table, row), Child(row, server.kubeconfig, spec) as child:
                server.forget()
                child.ask("start")
                child.until("added", count, run.patience)
                server.wait(run.patience, count=count, verb="watch", resource="configmaps")
                server.forget()
                before = child.ask("snap")
                server.control("POST", "/_refuse", {"for": seconds})
                time.sleep(seconds)
                after = child.ask("snap")
                healed = time.monotonic()
                server.wait(90, count=count, verb="watch", resource="configmaps")
                recovered = time.monotonic() - healed
                times = [_seconds(each) for each in server.requests(verb="watch", resource="configmaps")]
                fullest = max(Counter(int(when * 10) for when in times).values())
                table.add(
                    row,
                    {
                        "attempts / s each": (after["connects"] - before["connects"]) / seconds / count,
                        "CPU %": 100 * (after["cpu"] - before["cpu"]) / seconds,
                        "s until all watch again": recovered,
                        "most watches opened in 0.1 s": fullest,
                    },
                )
    table.target("attempts a second of each informer", table.values(OURS, "attempts / s each"), "≤", 1)
    table.target("CPU, %", table.values(OURS, "CPU %"), "<", 5)
    table.target("seconds until all watch again", table.values(OURS, "s until all watch again"), "≤", 60)
    return table


def silence(run: Run) -> Table:
    """Let all streams go silent at once."""
    count, limit = 10, 10
    table = Table("silence", f"{count} watches fall silent; the limit is {limit} s", "s until the last change is seen")
    namespaces = _namespaces(count)
    with embedded("--bookmark-every=2") as server:
        server.put([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in namespaces])
        for n, row in enumerate(run.each(table, [OURS], _whole)):
            server.put(_in_each(namespaces))
            spec = {"resource": "configmaps", "each_namespace": namespaces, "marks": True, "watch": {"silence": limit}}
            with run.measured(table, row), Child(row, server.kubeconfig, spec) as child:
                server.forget()
                child.ask("start")
                child.until("added", count, run.patience)
                server.wait(run.patience, count=count, verb="watch", resource="configmaps")
                time.sleep(3)  # a bookmark comes
                before = child.ask("snap")
                server.fault("FREEZE", {"resource": "configmaps", "verb": "watch"}, existing=True, times=count)
                began = time.monotonic()
                server.put(_in_each(namespaces, f"round {n}"))
                after = child.until("modified", before["counts"]["modified"] + count, limit + 60)
                seen = time.monotonic() - began
                time.sleep(1)
                again = child.ask("snap")["counts"]["modified"] - after["counts"]["modified"]
                server.heal()
                table.add(row, {"s until the last change is seen": seen, "changes told twice": again})
    table.target("seconds beyond the limit", [v - limit for v in table.values(OURS, table.plot)], "≤", 10)
    table.target("changes told twice", table.values(OURS, "changes told twice"), "=", 0)
    return table


def lease(run: Run) -> Table:
    """Renew a lease in a process that has much else to do."""
    seconds = run.size(30, 12)
    title = f"a lease held for {seconds} s with four busy workers, a flood of changes, and forced collections"
    table = Table("lease", title, "longest gap s")
    with filled("cm1k", 500, "--history=100000") as (server, objects):
        for row in run.each(table, [OURS], _whole):
            with run.measured(table, row):
                server.forget()
                wanted = {"do": "lease", "kubeconfig": str(server.kubeconfig), "seconds": seconds}
                _flood_while(server, objects, wanted, seconds)
                written = [
                    _seconds(each)
                    for each in server.requests(resource="leases.coordination.k8s.io")
                    if each["verb"] in {"create", "update", "patch"}
                ]
                gaps = [after - before for before, after in itertools.pairwise(written)]
                if not gaps:
                    raise Unmeasured("the lease was not renewed")
                table.add(row, {"longest gap s": max(gaps), "renewals": len(gaps)})
    table.target("longest gap, of the renew deadline", [gap / 10 for gap in table.values(OURS, table.plot)], "<", 1 / 3)
    return table


def _seconds(request: Mapping[str, Any]) -> float:
    """Return when a request came."""
    return dt.datetime.fromisoformat(request["time"]).timestamp()


def _flood_while(server: Server, objects: list[dict[str, Any]], wanted: Mapping[str, Any], seconds: float) -> None:
    with acting(wanted) as process:
        until, n = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            n += 1
            batch = [
                {**obj, "metadata": {**obj["metadata"], "annotations": {"n": f"{n}"}}} for obj in objects[n % 10 :: 10]
            ]
            server.put(batch)
        if process.wait(30):
            raise Unmeasured("the process failed")


def many(run: Run) -> Table:
    """Follow a hundred kinds in three clusters."""
    kinds, each, contexts = run.size(100, 10), 50, ("a", "b", "c")
    table = Table("many", f"{kinds} kinds of {each} objects in {len(contexts)} clusters, one process", "wall s")
    total, streams = kinds * each * len(contexts), kinds * len(contexts)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="kube-informers-bench-") as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        resources = [f"things{n:03d}.bench.example.com" for n in range(kinds)]
        for context in contexts:
            server = stack.enter_context(embedded(f"--context={context}", kubeconfig=kubeconfig))
            for resource in resources:
                server.put([_kind(resource), *_things(resource, each)])
        for row in run.each(table, [OURS, CLIENT_GO], _whole):
            spec = {"resource": "", "resources": resources, "contexts": contexts}
            with run.measured(table, row), Child(row, kubeconfig, spec) as child:
                child.ask("start")
                after = child.until("added", total, run.patience)
                time.sleep(2)
                later = child.ask("snap")
                table.add(
                    row,
                    {
                        "wall s": after["wall"],
                        "CPU s": after["cpu"],
                        "threads": later["threads"],
                        "sockets": later["sockets"],
                        "RSS MiB": later["rss"] / 1024 / 1024,
                    },
                )
    most = streams + 10 * len(contexts)
    for what in ("threads", "sockets"):
        table.target(f"{what}, for {streams} streams", table.values(OURS, what), "≤", most)
    return table


def _kind(resource: str) -> dict[str, Any]:
    plural, _, group = resource.partition(".")
    kind = plural.rstrip("s").capitalize()
    names = {"plural": plural, "singular": plural.rstrip("s"), "kind": kind, "listKind": f"{kind}List"}
    return {**CRD, "metadata": {"name": resource}, "spec": {**CRD["spec"], "group": group, "names": names}}


def _things(resource: str, count: int) -> list[dict[str, Any]]:
    kind = _kind(resource)["spec"]["names"]["kind"]
    return [
        {
            "apiVersion": "bench.example.com/v1",
            "kind": kind,
            "metadata": {"name": f"thing-{n}", "namespace": "default"},
            "spec": {"size": n},
        }
        for n in range(count)
    ]


_IMPORTS: Final[Mapping[str, tuple[str, str]]] = {
    "python alone": (OURS, "pass"),
    OURS: (OURS, "import informers"),
    "kubernetes": ("kubernetes", "import kubernetes, kubernetes.informer"),
    "kopf": ("kopf", "import kopf"),
    "lightkube": ("lightkube", "import lightkube, lightkube.resources.core_v1"),
    "kr8s": ("kr8s", "import kr8s"),
}
_RSS: Final = "; print(open('/proc/self/status').read().partition('VmRSS:')[2].split()[0])"


def imports(run: Run) -> Table:
    """Look what a process costs that has done nothing yet, and one that does little."""
    table = Table(
        "import", "memory of a process after the import, and of one that follows 50 Secrets in a pod", "RSS MiB"
    )
    pod = f"{OURS}, in a pod"
    for row in run.each(table, list(_IMPORTS), lambda row: _IMPORTS[row][0]):
        subject, code = _IMPORTS[row]
        with run.measured(table, row):
            done = subprocess.run([python_of(subject), "-c", code + _RSS], capture_output=True, text=True, check=True)
            table.add(row, {"RSS MiB": int(done.stdout) / 1024})
    for row in run.each(table, [pod], _whole):
        with run.measured(table, row), embedded("--tls", "--token=secret=pod") as server:
            server.put([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}}, *bodies("sec4k", 50)])
            with tempfile.TemporaryDirectory(prefix="kube-informers-bench-") as account:
                environment = _pod(server, Path(account))
                table.add(row, {"RSS MiB": once({"do": "in_cluster", "account": account}, environment)["RSS MiB"]})
    table.target("import informers, MiB", table.values(OURS, "RSS MiB"), "<", 12)
    table.target("in a pod with TLS, MiB", table.values(pod, "RSS MiB"), "≤", 25)
    return table


def _pod(server: Server, account: Path) -> Mapping[str, str]:
    """Write what a pod finds of its service account, and return its environment."""
    config = yaml.safe_load(server.kubeconfig.read_text(encoding="utf-8"))
    cluster = config["clusters"][0]["cluster"]
    (account / "token").write_text(config["users"][0]["user"]["token"], encoding="utf-8")
    (account / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (account / "namespace").write_text("default", encoding="utf-8")
    url = urlsplit(cluster["server"])
    host, port = url.hostname or "", str(url.port)
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBECONFIG": "", "HOME": str(account)}
