"""The copier as users run it: memory with many Secrets, how fast a change spreads, and what a restart writes."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hack.bench.host import BUILD, OURS, ROOT
from hack.bench.payloads import CRD, NAMESPACE, bodies
from hack.bench.report import Table
from hack.bench.run import Run, Unmeasured
from hack.bench.servers import Server, embedded

_RULE: Final = "k8s-copier.fig.org/replace-spec.data"
_TARGETS: Final = "widgets.bench.example.com"
_WRITES: Final = frozenset({"create", "update", "patch", "delete"})


def copier(run: Run) -> Table:
    """Run the copier, change its source, and restart it."""
    targets, secrets = run.size(1_000, 200), run.size(20_000, 1_000)
    title = f"k8s-copier with {targets:,} targets of one Secret, restarted with {secrets:,} more Secrets"
    table = Table("copier", title, "s until a change is in all targets")
    for row in run.each(table, [OURS], str):
        with run.measured(table, row), embedded("--history=100000") as server:
            server.put([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, CRD, _hub("one")])
            server.put([_target(n) for n in range(targets)])
            with _program(server) as process:
                _wait_until_current(server, "one", run.patience)
                before = _memory(process)
                server.forget()
                began = time.monotonic()
                server.put([_hub("two")])
                _wait_until_current(server, "two", run.patience)
                took = time.monotonic() - began
                patches = len(server.requests(verb="patch", resource=_TARGETS))
            server.put(bodies("sec4k", secrets))
            server.forget()
            with _program(server) as process:
                server.wait(run.patience, verb="watch", resource="secrets")
                server.wait(run.patience, verb="watch", resource=_TARGETS)
                _wait_until_quiet(process)
                after = _memory(process)
                writes = [each for each in server.requests() if each["verb"] in _WRITES]
            table.add(
                row,
                {
                    "s until a change is in all targets": took,
                    "patches for it": patches,
                    "MiB": before,
                    "kB for each unused Secret": (after - before) * 1024 / secrets,
                    "writes after the restart": len(writes),
                },
            )
    table.target("writes and Events after a restart", table.values(OURS, "writes after the restart"), "=", 0)
    return table


@contextmanager
def _program(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "controllers", "copier", "-t", _TARGETS, f"--kubeconfig={server.kubeconfig}"]
    (BUILD / "logs").mkdir(parents=True, exist_ok=True)
    log = BUILD / "logs" / "copier.log"
    with log.open("wb") as file, subprocess.Popen(command, cwd=ROOT, stderr=file) as process:
        try:
            yield process
        finally:
            process.terminate()


def _hub(text: str) -> dict[str, Any]:
    metadata = {"name": "hub", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"value": _encoded(text)}}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _target(n: int) -> dict[str, Any]:
    annotations = {_RULE: "secret:hub:data"}
    metadata = {"name": f"t-{n:06d}", "namespace": NAMESPACE, "annotations": annotations}
    return {"apiVersion": "bench.example.com/v1", "kind": "Widget", "metadata": metadata, "spec": {}}


def _wait_until_current(server: Server, text: str, patience: float) -> None:
    until = time.monotonic() + patience
    while True:
        found: Sequence[dict[str, Any]] = server.control("GET", "/_objects", resource=_TARGETS, namespace=NAMESPACE)
        if all(obj["spec"].get("data") == {"value": _encoded(text)} for obj in found):
            return
        if time.monotonic() > until:
            raise Unmeasured("the copier did not get there: see build/bench/logs/copier.log")
        time.sleep(0.05)


def _wait_until_quiet(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has used hardly any CPU for two seconds."""
    before = -1.0
    while (now := _cpu(process)) - before > 0.05:
        before = now
        time.sleep(2)


def _cpu(process: subprocess.Popen[bytes]) -> float:
    after_name = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: subprocess.Popen[bytes]) -> float:
    """Read resident memory, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
