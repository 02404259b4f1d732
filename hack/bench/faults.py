"""The same faults for everybody, side by side: what each library does when the API server misbehaves.

Each subject follows ten ConfigMaps of an embedded server of its own. Then something breaks, an object changes, and what
is broken heals. Told are facts: how often the server was asked, whether and when the change arrived, what it cost.
All subjects meet one fault at the same time, with their default settings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from hack.bench.host import OURS, PEERS, Child, is_there
from hack.bench.payloads import NAMESPACE, RESOURCES
from hack.bench.report import number, table
from hack.bench.run import Run
from hack.bench.servers import Server, filled

_PAYLOAD: Final = "cm1k"
_WATCHES: Final = {"resource": RESOURCES[_PAYLOAD], "verb": "watch"}
_CHANGE: Final = "the change"
_VICTIM: Final = "cm-000003"
_DELETED: Final = f"deleted {_VICTIM}"
_SUBJECTS: Final = (OURS, *PEERS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a server misbehaves.

    Attributes:
        begin: breaks it, while the subject's watch is open.
        broken: seconds until it heals.
        wait: seconds until we stop waiting for the change, counted from the change.
        expected: the mark of the change that is to arrive.
    """

    title: str
    begin: Callable[[Server], None]
    broken: float = 5.0
    wait: float = 20.0
    expected: str = _CHANGE


@dataclass(frozen=True, slots=True)
class Finding:
    """What one subject did."""

    requests: float
    connects: float
    cpu: float
    arrived: float | None
    waited: float
    repeated: int
    errors: int
    still_cached: bool | None
    ended: str
    stop: float | None

    def text(self) -> str:
        """Tell it in one cell."""
        parts = [f"{self.arrived:.1f} s" if self.arrived is not None else f"**never** in {self.waited:.0f} s"]
        parts.append(f"{number(max(self.requests, self.connects))}/s")
        if self.cpu >= 0.05:
            parts.append(f"{self.cpu:.0%} CPU")
        if self.repeated:
            parts.append(f"{self.repeated} told again")
        if self.still_cached:
            parts.append("still in its cache")
        if self.ended:
            parts.append("**ended**")
        if self.stop is None:
            parts.append("does not stop")
        return ", ".join(parts)


@dataclass
class FaultTable:
    """What all subjects did under all faults."""

    found: dict[str, dict[str, Finding | str]]

    def as_json(self) -> Mapping[str, Any]:
        """Return everything, for a program."""
        rows = {
            fault: {
                subject: finding
                if isinstance(finding, str)
                else {name: getattr(finding, name) for name in Finding.__slots__}
                for subject, finding in row.items()
            }
            for fault, row in self.found.items()
        }
        return {"name": "faults", "found": rows}

    def as_markdown(self) -> str:
        """Return one table, and below it how subjects ended."""
        subjects = list(dict.fromkeys(subject for row in self.found.values() for subject in row))
        rows, notes = [], []
        for fault, row in self.found.items():
            cells = [row.get(subject, "") for subject in subjects]
            rows.append([fault, *(cell if isinstance(cell, str) else cell.text() for cell in cells)])
            notes += [
                f"- {fault}, {subject}: {' '.join(finding.ended.split())}\n"
                for subject, finding in row.items()
                if not isinstance(finding, str) and finding.ended
            ]
        legend = (
            "Each cell: after how long the change made meanwhile arrived; requests (or attempts to connect) a second while "
            "it was broken; CPU of the process then; how many unchanged objects were told again.\n"
        )
        return "\n".join([table(["fault", *subjects], rows), legend, *notes])


def _status(code: int, **headers: str) -> Callable[[Server], None]:
    def begin(server: Server) -> None:
        more = {"headers": {name.replace("_", "-"): value for name, value in headers.items()}} if headers else {}
        server.fault("STATUS", _WATCHES, code=code, **more)
        _cut(server)

    return begin


def _on_new_watches(word: str, **parameters: Any) -> Callable[[Server], None]:
    def begin(server: Server) -> None:
        server.fault(word, _WATCHES, **parameters)
        _cut(server)

    return begin


def _cut(server: Server) -> None:
    server.control("POST", "/_close", {"match": _WATCHES})


def _freeze(server: Server) -> None:
    server.fault("FREEZE", _WATCHES, existing=True, times=1)


def _refuse(server: Server) -> None:
    server.control("POST", "/_refuse", {"for": 10})


def _truncate(server: Server) -> None:
    """Cut each stream in its first line; there is one for each, as an object changes all the time."""
    server.fault("TRUNC", _WATCHES, bytes=40, existing=True)


def _delete_unseen(server: Server) -> None:
    """Delete an object while nobody can watch, and let the history of it expire."""
    server.fault("STATUS", _WATCHES, code=503)
    _cut(server)
    server.control("DELETE", "/_objects", resource=RESOURCES[_PAYLOAD], namespace=NAMESPACE, name=_VICTIM)
    server.put([_configmap("tick", {})])
    server.control("POST", "/_compact", {})


def _poison(server: Server) -> None:
    """Store an object whose date is none: servers of other makes and aggregated APIs have sent such."""
    obj = _configmap("poison", {})
    server.put([{**obj, "metadata": {**obj["metadata"], "creationTimestamp": "yesterday"}}])


def _configmap(name: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


FAULTS: Final[Sequence[Fault]] = (
    Fault("the stream goes silent (FREEZE)", _freeze, broken=0, wait=130),
    Fault("a watch is never answered (FREEZE)", _on_new_watches("FREEZE", at="headers", times=1), broken=0, wait=130),
    Fault("410 as an answer", _status(410)),
    Fault("410 as an event", _on_new_watches("EV", code=410, reason="Expired")),
    Fault("an error event 500", _on_new_watches("EV", code=500)),
    Fault("an error event without code and reason", _on_new_watches("EV", bare=True)),
    Fault("lines that are cut (TRUNC)", _truncate),
    Fault("refused connections, 10 s", _refuse, broken=10, wait=60),
    Fault("a deletion during a gap, history expired", _delete_unseen, expected=_DELETED),
    Fault("blank lines (BLANK)", _on_new_watches("BLANK")),
    Fault("an object with a date that is none", _poison),
    Fault("watches that end at once (SHORT)", _on_new_watches("SHORT")),
    Fault("500 as an answer", _status(500)),
    Fault("429 with Retry-After: 5", _status(429, Retry_After="5"), broken=10, wait=30),
)


def faults(run: Run) -> FaultTable:
    """Let everybody meet every fault."""
    subjects = [one for one in _SUBJECTS if not run.only or one in run.only]
    found: dict[str, dict[str, Finding | str]] = {}

    def meet(fault: Fault) -> None:
        print(f"  {fault.title}", file=sys.stderr, flush=True)
        with ThreadPoolExecutor(len(subjects)) as pool:
            found[fault.title] = dict(
                zip(subjects, pool.map(lambda subject: _meet(run, fault, subject), subjects), strict=True)
            )

    quiet = [fault for fault in FAULTS if not fault.broken]  # minutes of waiting, which costs nobody anything
    with ThreadPoolExecutor(len(quiet)) as beside:
        waiting = [beside.submit(meet, fault) for fault in quiet]
        for fault in FAULTS:
            if fault.broken:
                meet(fault)
        for each in waiting:
            each.result()
    return FaultTable({fault.title: found[fault.title] for fault in FAULTS})


def _meet(run: Run, fault: Fault, subject: str) -> Finding | str:
    if why := is_there(subject):
        return why
    spec = {"resource": RESOURCES[_PAYLOAD], "marks": True, "index": True}
    try:
        with (
            filled(_PAYLOAD, 10, "--bookmark-every=5") as (server, objects),
            Child(subject, server.kubeconfig, spec) as child,
        ):
            child.ask("start")
            child.until("added", 10, 60)
            server.wait(60, resource=RESOURCES[_PAYLOAD], verb="watch")
            time.sleep(6)  # a bookmark comes meanwhile, and a quiet stream is what most of a day is
            return _observe(run, fault, server, child, objects)
    except (RuntimeError, TimeoutError) as error:
        return f"not measured: {error}"


def _observe(run: Run, fault: Fault, server: Server, child: Child, objects: Sequence[Mapping[str, Any]]) -> Finding:
    server.forget()
    before = child.ask("snap")
    fault.begin(server)
    began = time.monotonic()
    if fault.begin is _refuse:
        time.sleep(0.1)  # the control API stays open
    changed = _marked(objects[0])
    server.put([changed])
    if fault.begin is _truncate:
        _keep_changing(server, fault.broken)
    time.sleep(max(0.0, began + fault.broken - time.monotonic()))
    broken = child.ask("snap")
    requests = len(server.requests(resource=RESOURCES[_PAYLOAD]))
    if fault.broken:
        server.heal()
    limit = min(fault.wait, 30.0) if run.is_quick else fault.wait
    after = child.until_marked(fault.expected, max(0.0, began + limit - time.monotonic()))
    window = max(fault.broken, 1.0)
    if not fault.broken:
        broken, window = after, max(after["now"] - before["now"], 1.0)
        requests = len(server.requests(resource=RESOURCES[_PAYLOAD]))
    told = sum(after["counts"][kind] - before["counts"][kind] for kind in ("added", "modified"))
    caused = 1 + (fault.expected == _DELETED or fault.begin is _poison)
    is_counted = fault.begin is not _truncate
    return Finding(
        requests=requests / window,
        connects=(broken["connects"] - before["connects"]) / window if fault.begin is _refuse else 0.0,
        cpu=(broken["cpu"] - before["cpu"]) / window,
        arrived=after["marks"][fault.expected] - began if after["reached"] else None,
        waited=time.monotonic() - began,
        repeated=max(0, told - caused) if is_counted else 0,
        errors=after["counts"]["error"] - before["counts"]["error"],
        still_cached=fault.expected == _DELETED and child.ask("has", namespace=NAMESPACE, name=_VICTIM)["has"],
        ended=after["ended"],
        stop=child.stop(5.0),
    )


def _marked(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "annotations": {"bench/mark": _CHANGE}}}


def _keep_changing(server: Server, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        server.put([_configmap("busy", {"at": str(time.monotonic())})])
        time.sleep(0.1)
