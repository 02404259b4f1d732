"""What every Python subject shares: count what the library tells, and answer the harness's questions about it.

A subject is a process of its own. It reads one JSON object a line on stdin and answers each with one on stdout:

    {"do": "start"}                                          begin to follow
    {"do": "until", "count": "added", "is": 20000, "timeout": 60}   wait; answers with a snapshot
    {"do": "until", "mark": "m1", "timeout": 60}             wait until an object with this mark was told
    {"do": "snap"}                                           a snapshot
    {"do": "has", "name": "a", "namespace": "b"}             is it in the cache?
    {"do": "stop"}                                           end in an orderly way

Only the standard library is used, so that what is measured is the library under test.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

MARK = "bench/mark"  # the annotation that tells one change from another
SENT = "bench/sent"  # the annotation with the monotonic time at which a change was made


class Subject(Protocol):
    """A library under test, made to follow one resource."""

    def start(self) -> None:
        """Begin to follow; returns at once."""

    def has(self, namespace: str, name: str) -> bool | None:
        """Tell whether the cache holds an object; None if the library has no cache."""

    def stop(self) -> None:
        """End in an orderly way."""


class Probe:
    """Counts what is told, remembers when, and measures this process."""

    def __init__(self) -> None:
        self.counts = {"added": 0, "modified": 0, "deleted": 0, "error": 0, "reconciled": 0}
        self.marks: dict[str, float] = {}
        self.delays: list[float] = []
        self.ended = ""  # why the library stopped following, if it did by itself
        self.extra: Callable[[], Mapping[str, Any]] = dict
        self._goal: tuple[str, int] = ("", 0)
        self._reached = threading.Event()
        self._changed = threading.Condition()
        self._connects = 0
        self._pauses: list[float] = []
        self._pause_began = 0.0
        self._began, self._cpu, self._system = time.monotonic(), 0.0, 0.0
        gc.callbacks.append(self._collecting)
        sys.addaudithook(self._audit)

    # Told by the subject's handlers.

    def seen(self, kind: str) -> None:
        """Count one event; on one thread at a time for each kind."""
        count = self.counts[kind] + 1
        self.counts[kind] = count
        if count == self._goal[1] and kind == self._goal[0]:
            self._reached.set()

    def marked(self, annotations: Mapping[str, str]) -> None:
        """Look at an object's annotations for a mark and for the time at which it was sent."""
        if (mark := annotations.get(MARK)) is not None and mark not in self.marks:
            with self._changed:
                self.marks[mark] = time.monotonic()
                self._changed.notify_all()
        if (sent := annotations.get(SENT)) is not None:
            self.delays.append(time.monotonic() - float(sent))

    def gone(self, name: str) -> None:
        """Note that an object was told to be deleted."""
        with self._changed:
            self.marks.setdefault(f"deleted {name}", time.monotonic())
            self._changed.notify_all()

    def end(self, why: str) -> None:
        """Note that the library follows no longer."""
        self.ended = why
        with self._changed:
            self._changed.notify_all()

    # Asked by the harness.

    def serve(self, subject: Subject) -> None:
        """Answer on stdout until stdin ends or `stop`."""
        self._say(self.snapshot())
        for line in sys.stdin:
            question = json.loads(line)
            match question["do"]:
                case "start":
                    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
                    self._began, self._cpu = time.monotonic(), time.process_time()
                    self._system = resource.getrusage(resource.RUSAGE_SELF).ru_stime
                    subject.start()
                    for _ in range(spec().get("burn", 0)):
                        threading.Thread(target=_burn, daemon=True).start()
                    self._say({})
                case "until":
                    self._say(self._until(question))
                case "snap":
                    self._say(self.snapshot())
                case "has":
                    self._say({"has": subject.has(question["namespace"], question["name"])})
                case "forget":
                    self.delays.clear()
                    self._say({})
                case "stop":
                    began = time.monotonic()
                    subject.stop()
                    self._say({"seconds": time.monotonic() - began})
                    break
        os._exit(0)  # whatever threads a library has left

    def snapshot(self) -> dict[str, Any]:
        """Describe this process and what it has been told so far."""
        status = dict(line.split(":", 1) for line in _lines("/proc/self/status"))
        delays = sorted(self.delays)
        return {
            "counts": dict(self.counts),
            "marks": dict(self.marks),
            "ended": self.ended,
            "now": time.monotonic(),
            "wall": time.monotonic() - self._began,
            "cpu": time.process_time() - self._cpu,
            "rss": int(status["VmRSS"].split()[0]) * 1024,
            "peak": int(status["VmHWM"].split()[0]) * 1024,
            "threads": int(status["Threads"]),
            "sockets": sum(_is_socket(each) for each in Path("/proc/self/fd").iterdir()),
            "connects": self._connects,
            "gc": {"pauses": len(self._pauses), "longest": max(self._pauses, default=0.0), "total": sum(self._pauses)},
            "delays": {f"p{share}": delays[len(delays) * share // 100] for share in (50, 90, 99)} if delays else {},
            "system": resource.getrusage(resource.RUSAGE_SELF).ru_stime - self._system,
            **self.extra(),
        }

    def _until(self, question: Mapping[str, Any]) -> dict[str, Any]:
        timeout = float(question["timeout"])
        if (mark := question.get("mark")) is not None:
            with self._changed:
                reached = self._changed.wait_for(lambda: mark in self.marks, timeout)
        else:
            self._reached.clear()
            self._goal = (question["count"], question["is"])
            reached = self.counts[question["count"]] >= question["is"] or self._reached.wait(timeout)
        return {"reached": bool(reached), **self.snapshot()}

    def _say(self, answer: Mapping[str, Any]) -> None:
        print(json.dumps(answer), flush=True)

    def _collecting(self, phase: str, _info: Mapping[str, int]) -> None:
        if phase == "start":
            self._pause_began = time.monotonic()
        else:
            self._pauses.append(time.monotonic() - self._pause_began)

    def _audit(self, event: str, _arguments: object) -> None:
        if event == "socket.connect":
            self._connects += 1


def spec() -> dict[str, Any]:
    """Read what the harness wants followed: `kubeconfig`, `resource` and options."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    return wanted


def _burn() -> None:
    """Use all the CPU that this thread gets, as a busy worker does."""
    while True:
        sum(range(1000))


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _is_socket(file: Path) -> bool:
    try:
        return file.readlink().name.startswith("socket:")
    except OSError:
        return False  # closed meanwhile
