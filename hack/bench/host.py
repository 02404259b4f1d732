"""Start what is measured on cores of its own, and talk to it line by line."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build" / "bench"
_PEERS: Final = BUILD / "peers" / "bin" / "python"
_CLIENT_GO: Final = BUILD / "client-go"
_MODULES: Final[Mapping[str, str]] = {
    "informers": "ours",
    "yardstick": "yardstick",
    "kubernetes": "kubernetes_informer",
    "kopf": "kopf_events",
    "lightkube": "lightkube_watch",
    "kr8s": "kr8s_watch",
}

OURS: Final = "informers"
CLIENT_GO: Final = "client-go"
YARDSTICK: Final = "yardstick"
PEERS: Final = ("client-go", "kubernetes", "kopf", "lightkube", "kr8s")


def cores() -> tuple[set[int], set[int]]:
    """Say on which cores servers run, and on which one what is measured: the last one, if there is more than one."""
    every = os.sched_getaffinity(0)
    measured = {max(every)}
    return every - measured or every, measured


_SERVER_CORES, _SUBJECT_CORES = cores()  # before this process pins itself
_PINNED: Final = (
    ("taskset", "-c", ",".join(map(str, _SUBJECT_CORES))) if shutil.which("taskset") and len(_SERVER_CORES) else ()
)


def pin_to_server_cores() -> None:
    """Leave the measured core alone: this process, and the servers it starts, which inherit it."""
    os.sched_setaffinity(0, _SERVER_CORES)


def python_of(subject: str) -> str:
    """Return the interpreter that has a subject."""
    return str(_PEERS if subject in PEERS else sys.executable)


def acting(wanted: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `subjects/acting.py`, which prints one line and ends."""
    command = [*_PINNED, sys.executable, "-m", "hack.bench.subjects.acting", json.dumps(wanted)]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True
    )


def once(wanted: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run `subjects/acting.py` and return what it measured. Raises `RuntimeError` if it fails, or takes too long."""
    process = acting(wanted, environment)
    try:
        out, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RuntimeError("takes more than 120 s") from None
    if process.returncode:
        raise RuntimeError("failed, see above")
    found: dict[str, float] = json.loads(out)
    return found


def is_there(subject: str) -> str:
    """Return `""` if a subject can run, else why not."""
    if subject == CLIENT_GO:
        return "" if _CLIENT_GO.exists() else "not built: there was no Go"
    if subject in PEERS:
        return "" if _PEERS.exists() else "not installed"
    return ""


_numbers = itertools.count()


class Child:
    """A subject: a library in a process of its own, see `subjects/probe.py`.

    Attributes:
        before: the snapshot before it began to follow anything.
    """

    def __init__(self, subject: str, kubeconfig: Path, spec: Mapping[str, Any]) -> None:
        text = json.dumps({"kubeconfig": str(kubeconfig), **spec})
        if subject == CLIENT_GO:
            command = [*_PINNED, str(_CLIENT_GO), text]
        else:
            python = _PEERS if subject in PEERS else Path(sys.executable)
            command = [*_PINNED, str(python), "-m", f"hack.bench.subjects.{_MODULES[subject]}", text]
        self.subject = subject
        self.log = BUILD / "logs" / f"{subject}-{next(_numbers)}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.before = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Ask one question and wait for the answer. Raises `RuntimeError` if the subject has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it left on stderr says why
        return self._answer()

    def until(self, count: str, number: int, timeout: float = 120.0) -> dict[str, Any]:
        """Wait until so many were counted, and return the snapshot then. Raises `TimeoutError`."""
        answer = self.ask("until", count=count, timeout=timeout, **{"is": number})
        if not answer["reached"]:
            counts, ended = answer["counts"], answer["ended"]
            raise TimeoutError(f"{self.subject}: {count} is not {number} after {timeout:g} s: {counts} {ended}")
        return answer

    def until_marked(self, mark: str, timeout: float) -> dict[str, Any]:
        """Wait until an object with this mark was told of; look at `reached` in the answer."""
        return self.ask("until", mark=mark, timeout=timeout)

    def stop(self, limit: float) -> float | None:
        """Ask it to stop, and return how many seconds that took; None when it takes longer than `limit`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write('{"do": "stop"}\n')
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], limit)[0]:
            return None
        seconds: float = self._answer()["seconds"]
        return seconds

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = self.log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
            raise RuntimeError(f"ended: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer
