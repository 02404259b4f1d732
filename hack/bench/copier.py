"""Measure the copier as a process of its own: memory and CPU with many Secrets cached, and how fast a change spreads.

    python hack/bench/copier.py [--real] [--secrets 20000] [--bytes 10000] [--targets 1000]

Prints one JSON object: the growth of resident memory for each Secret that no rule names, the CPU seconds of the first
sync, and for one change of a source with many targets the seconds until the last PATCH and the number of PATCHes.
Figures are of one host and one run: compare them with another run beside it, not with those of another day.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from informers import GVR, Client, Clusters, Manager, NotFoundError, ObjectRef, SystemClock

ROOT = Path(__file__).resolve().parents[2]
CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
NAMESPACES = GVR("", "v1", "namespaces")
HUB = ObjectRef(SECRETS, "bench", "hub")
CLOCK = SystemClock()


def main() -> None:
    """Measure once and print the figures."""
    parser = argparse.ArgumentParser(description="memory, CPU and fan-out of k8s-copier")
    parser.add_argument("--real", action="store_true", help="on a real kube-apiserver (make envtest-bin)")
    parser.add_argument("--secrets", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=10_000)
    parser.add_argument("--targets", type=int, default=1_000)
    options = parser.parse_args()

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kube-informers-bench-")))
        kubeconfig = stack.enter_context(real_server() if options.real else embedded_server(folder))
        client = stack.enter_context(closing(Manager(Clusters.load(str(kubeconfig)), name="bench"))).client
        client.create(NAMESPACES, {"metadata": {"name": "bench"}}, field_manager="bench")
        create_all(client, SECRETS, [secret("hub", 100)])
        create_all(client, CONFIGMAPS, [target(0)])

        with copier(kubeconfig, folder) as program:
            wait_until(lambda: is_current(client, [0]))
            empty = memory(program)
        create_all(client, SECRETS, [secret(f"s-{n:06}", options.bytes) for n in range(options.secrets)])
        change_hub(client)
        with copier(kubeconfig, folder) as program:
            started = CLOCK.monotonic()
            wait_until(lambda: is_current(client, [0]))
            synced_seconds, synced_cpu, full = CLOCK.monotonic() - started, cpu(program), memory(program)

            create_all(client, CONFIGMAPS, [target(n) for n in range(1, options.targets)])
            wait_until(lambda: is_current(client, range(options.targets)))
            before = cpu(program)
            started = CLOCK.monotonic()
            change_hub(client)
            wait_until(lambda: is_current(client, range(options.targets)))
            spread, spread_cpu = CLOCK.monotonic() - started, cpu(program) - before

    print(
        json.dumps(
            {
                "server": "real" if options.real else "embedded",
                "secrets": options.secrets,
                "bytes": options.bytes,
                "rss_mib_without_secrets": round(empty["VmRSS"] / 1024, 1),
                "rss_mib_with_secrets": round(full["VmRSS"] / 1024, 1),
                "peak_rss_mib": round(full["VmHWM"] / 1024, 1),
                "rss_bytes_each_secret": round((full["VmRSS"] - empty["VmRSS"]) * 1024 / options.secrets),
                "sync_seconds": round(synced_seconds, 2),
                "sync_cpu_seconds": round(synced_cpu, 2),
                "targets": options.targets,
                "fan_out_seconds": round(spread, 2),
                "fan_out_cpu_seconds": round(spread_cpu, 2),
            }
        )
    )


@contextmanager
def embedded_server(folder: Path) -> Iterator[Path]:
    """Run the embedded API server in a process of its own."""
    kubeconfig = folder / "kubeconfig"
    command = [sys.executable, "-m", "informers.testing.apiserver", "--port", "0", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the line that says it is ready
            yield kubeconfig
        finally:
            process.terminate()


@contextmanager
def real_server() -> Iterator[Path]:
    """Run a real API server."""
    from informers.testing import Envtest

    with Envtest() as server:
        yield server.kubeconfig


@contextmanager
def copier(kubeconfig: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the copier for ConfigMaps as a user would."""
    command = [sys.executable, "-m", "controllers", "copier", "-t", "configmap", f"--kubeconfig={kubeconfig}"]
    with (folder / "copier.log").open("ab") as log, subprocess.Popen(command, cwd=ROOT, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


def secret(name: str, size: int) -> dict[str, Any]:
    """Make a Secret with `size` bytes of base64."""
    value = base64.b64encode(os.urandom(max(size * 3 // 4, 1))).decode()
    return {"metadata": {"name": name, "labels": {"app": "bench"}}, "data": {"value": value}}


def target(n: int) -> dict[str, Any]:
    """Make a ConfigMap that copies from the hub."""
    rule = {"k8s-copier.fig.org/replace-data.value": "secret:hub:data.value"}
    return {"metadata": {"name": f"t-{n:06}", "annotations": rule}}


def create_all(client: Client, gvr: GVR, bodies: list[dict[str, Any]]) -> None:
    """Create objects over several connections."""

    def create(body: dict[str, Any]) -> None:
        client.create(gvr, body, namespace="bench", field_manager="bench")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, bodies))


def change_hub(client: Client) -> None:
    """Give the source another value."""
    client.patch(HUB, {"data": secret("hub", 100)["data"]}, field_manager="bench")


def is_current(client: Client, numbers: range | list[int]) -> bool:
    """Tell whether these targets hold the source's value."""
    value = client.get(HUB).get("data", "value")
    if len(numbers) == 1:
        try:
            return client.get(ObjectRef(CONFIGMAPS, "bench", f"t-{numbers[0]:06}")).get("data", "value") == value
        except NotFoundError:
            return False
    found = [obj for obj in client.list(CONFIGMAPS, namespace="bench") if obj.name.startswith("t-")]
    return len(found) == len(numbers) and all(obj.get("data", "value") == value for obj in found)


def wait_until(condition: Callable[[], bool], *, timeout: float = 600.0) -> None:
    """Ask again each 50 ms, as the process under test is another one."""
    from informers import Stop

    never = Stop()
    deadline = CLOCK.monotonic() + timeout
    while not condition():
        if CLOCK.monotonic() > deadline:
            raise TimeoutError("the copier did not get there; see its log")
        never.wait(0.05)


def memory(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """Read resident memory and its peak, in KiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(value.split()[0]) for name, value in pairs if name in {"VmRSS", "VmHWM"}}


def cpu(process: subprocess.Popen[bytes]) -> float:
    """Read the CPU seconds used so far."""
    after_name = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
