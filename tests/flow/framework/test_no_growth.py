"""A program that lives for long with what every API server does to those who follow it stays as large as it was.

It has a process of its own, as the server and the story need memory too. Its size is read from outside, as by whoever
sets its memory limit; what only the program can tell it writes to stdout, a line now and then.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

import pytest

from informers import SystemClock

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Process, Stage

PATIENCE = 120.0
MARK = "marked-9f27c1e4"  # no log may show it: `perform` looks for it
SPACES = ("a", "b")
WIDGETS = "widgets.example.com"
KINDS = {"configmaps": ("v1", "ConfigMap"), "secrets": ("v1", "Secret"), WIDGETS: ("example.com/v1", "Widget")}
TOKEN_LASTS = 60.0
# What a line through the second half of half an hour may rise by. Memory comes in pages, and Python's allocator asks for
# an arena of 1 MiB at a time, so less than one is noise; and it is 25 bytes for each change, 300 for each time that
# all streams are cut. What is looked at in the middle of work goes up and down: by 200 objects and by 4 files.
GROWTH = 1 << 20
MORE_OBJECTS = 3000
MORE_FILES = 8
# Warnings that tell how busy the machine is, the second where history lasts for a second.
BUSY = {"slow handler", "lists take longer than the server keeps history, listing in pages"}
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: churn
contexts: [{{name: churn, context: {{cluster: churn, user: churn}}}}]
clusters: [{{name: churn, cluster: {{server: "{server}"}}}}]
users: [{{name: churn, user: {{tokenFile: "{token}"}}}}]
"""

PROGRAM = """
import gc
import json
import sys
import threading
from collections import Counter

from informers import (
    GVR, Backoff, Clusters, ConflictError, Manager, NotFoundError, Selection, WatchOptions, configure_logging
)

CONFIGMAPS, SECRETS = GVR("", "v1", "configmaps"), GVR("", "v1", "secrets")
configure_logging(level="info")
watch = WatchOptions(backoff=Backoff(0.05, 0.4), timeout=5, idle_stop=1)
manager = Manager(Clusters.load(sys.argv[1]), name="program", watch=watch)


def shout(obj):
    return {"data": {"v": obj.get("data", "v", default="") + "!"}}


def value(obj):
    return obj.get("data", "v", default="")


class View:
    def __init__(self, **options):
        known = set(manager.informers()[""])
        self.lister = manager.lister(Selection(**options))
        (self.informers,) = set(manager.informers()[""]) - known
        self.lister.add_index("value", lambda obj: [value(obj)])
        self.told = {}  # of one thread for each namespace
        self.informers.add_handler(self.note)

    def note(self, delta):
        if delta.new is None:
            self.told.pop(delta.ref, None)
        else:
            self.told[delta.ref] = [delta.new.resource_version, value(delta.new)]

    def shown(self):
        held = {f"{obj.namespace}/{obj.name}": [obj.resource_version, value(obj)] for obj in self.lister.list()}
        told = {f"{ref.namespace}/{ref.name}": shown for ref, shown in self.told.copy().items()}
        return {"held": held, "told": told, "values": list(self.lister.index_values("value"))}


views = {
    "plain": View(resource=CONFIGMAPS),
    "metadata": View(resource=CONFIGMAPS, metadata_only=True),
    "red": View(resource=CONFIGMAPS, label_selector="colour=red"),
    "transformed": View(resource=CONFIGMAPS, transform=shout),
    "paged": View(resource=CONFIGMAPS, page_size=20),
    "apart": View(resource=CONFIGMAPS, namespaces=("a", "b")),
    "widgets": View(resource="widgets.example.com"),
}
graph = manager.dependency_graph()
lister = views["plain"].lister


def reconcile(request):
    found = lister.find(request.ref)
    if found is None:
        graph.forget(request.ref)
        return
    source, seen = found.annotations.get("source", ""), ""
    if source:
        secret = request.ref.sibling(SECRETS, name=source)
        graph.replace(request.ref, [secret])
        shown = graph.lister(secret).find(secret)
        seen = "" if shown is None else shown.resource_version
    else:
        graph.replace(request.ref, [])
    wanted = value(found) + " " + seen
    if found.annotations.get("seen") != wanted:
        metadata = {"resourceVersion": found.resource_version, "uid": found.uid, "annotations": {"seen": wanted}}
        try:
            manager.client.patch(request.ref, {"metadata": metadata}, field_manager="program")
        except (ConflictError, NotFoundError):
            return  # it has changed or gone, which the cache will tell


controller = manager.add_controller("program", reconcile, primary=CONFIGMAPS, dependencies=graph, workers=3)


def report(stop):
    while not stop.wait(float(sys.argv[2])):
        line = {
            "objects": len(gc.get_objects()) + gc.get_freeze_count(),
            "blocks": sys.getallocatedblocks(),
            "threads": Counter(thread.name.partition("/")[0] for thread in threading.enumerate()),
            "remembered": [len(graph._dependencies), len(controller._own), len(controller.queue._failures)],
            "views": {name: view.shown() for name, view in views.items()},
        }
        print(json.dumps(line), flush=True)


manager.add_runnable("report", report)
manager.run()
"""


def crd() -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a process holds, as the system and the program tell it."""

    at: float
    rss: int  # bytes
    peak: int
    threads: int
    fds: int
    objects: int  # those that the garbage collector tracks
    blocks: int  # of memory that Python's own allocator has given out


@dataclass
class Churn:
    """A program, its server, and what everybody else does to both."""

    stage: Stage
    every: float  # seconds between looks at its size
    sizes: list[Sizes] = field(default_factory=list)
    changes: int = 0

    def __post_init__(self) -> None:
        self.server = self.stage.embedded
        self._clock = SystemClock()
        self._random = random.Random(1)
        for space in SPACES:
            self.server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        self.server.define(crd())
        self._token = self.stage.directory / "token"
        self._give_token(None)
        kubeconfig = self.stage.directory / "churn.kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(server=self.server.url, token=self._token))
        self.program: Process = self.stage.run(str(kubeconfig), str(self.every), text=PROGRAM)

    def last(self, seconds: float) -> None:
        """Change, cut, expire and renew for so long, with a look at the program now and then."""
        due: dict[Callable[[], None], float] = {
            self._cut: 0.3,
            self._expire: 1.1,
            self._renew_token: TOKEN_LASTS / 6,
            self._measure: self.every,
        }
        began = self._clock.monotonic()
        at = dict.fromkeys(due, began)
        tick = threading.Event()
        while (now := self._clock.monotonic()) - began < seconds:
            for what, each in due.items():
                if now >= at[what]:
                    at[what] = now + each
                    what()
            self._change()
            assert self.program.process.poll() is None, self.program.tail()
            tick.wait(0.01)

    def _change(self) -> None:
        choose = self._random.choice
        kind, space, name = choose(list(KINDS)), choose(SPACES), f"n{self._random.randrange(40)}"
        self.changes += 1
        if self._random.random() < 0.2:
            self._remove(kind, space, name)
        else:
            self.put(kind, space, name, colour=choose(["", "red"]), source=choose(["", "n1", "n2"]))

    def put(self, kind: str, space: str, name: str, *, colour: str = "red", source: str = "n1") -> None:
        version, word = KINDS[kind]
        metadata = {"name": name, "namespace": space, "labels": {"colour": colour}, "annotations": {"source": source}}
        value = f"{MARK}-{self.changes}" if kind == "secrets" else str(self.changes)
        self.server.put({"apiVersion": version, "kind": word, "metadata": metadata, "data": {"v": value}})

    def _remove(self, kind: str, space: str, name: str) -> None:
        try:
            self.server.remove(kind, name, space)
        except KeyError:
            return

    def _cut(self) -> None:
        self.stage.faults.close(self._random.choice(["FIN", "RST"]), client="program*")

    def _expire(self) -> None:
        # Kinds that change: on those that do not, history that lasts for a second looks like lists that take too long.
        kind = self._random.choice(list(KINDS))
        self.stage.faults.compact(resource=kind)
        self.stage.faults.close("FIN", client="program*", resource=kind)

    def _renew_token(self) -> None:
        self._give_token(TOKEN_LASTS)

    def _give_token(self, lasts: float | None) -> None:
        fresh = self._token.with_suffix(".new")
        fresh.write_text(self.server.add_token(user="program", ttl=lasts))
        fresh.replace(self._token)

    def _measure(self) -> None:
        self.server.clear_requests()
        told = self.told()
        if told is None:
            return
        process = Path(f"/proc/{self.program.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        rss, peak = (int(status[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
        now, threads = self._clock.monotonic(), int(status["Threads"])
        self.sizes.append(Sizes(now, rss, peak, threads, self.fds(), told["objects"], told["blocks"]))

    def fds(self) -> int:
        return len(list(Path(f"/proc/{self.program.process.pid}/fd").iterdir()))

    def told(self) -> dict[str, Any] | None:
        """Return what the program has told last."""
        *_, last = ["", *self.program.stdout.read_text().split("\n")[:-1]]
        return json.loads(last) if last else None

    def threads(self) -> Mapping[str, int]:
        """Return the program's threads by kind."""
        told = self.told()
        return {} if told is None else dict(told["threads"])

    def until_quiet(self) -> None:
        """Wait until the program shows what the server has, and has nothing left to do."""
        self._give_token(None)  # nobody renews it while all is quiet
        for kind in ("secrets", "configmaps"):
            self.put(kind, "a", "n1")  # something to depend on, as that takes an informer
        self.program.until(lambda: self._differs() == [], "the program shows what the server has", timeout=PATIENCE)

    def _differs(self) -> list[str]:
        """Name what is not on the program's side as it is on the server's."""
        told = self.told()
        if told is None:
            return ["nothing told yet"]
        objects = {kind: self.server.objects(kind) for kind in KINDS}
        versions = {_key(obj): obj["metadata"]["resourceVersion"] for obj in objects["secrets"]}
        unseen = []
        for obj in objects["configmaps"]:
            source = obj["metadata"]["annotations"]["source"]
            seen = versions.get(f"{obj['metadata']['namespace']}/{source}", "") if source else ""
            if obj["metadata"]["annotations"].get("seen") != f"{obj['data']['v']} {seen}":
                unseen.append(_key(obj))
        differs = [f"not reconciled: {unseen}"] if unseen else []
        dependents, *others = told["remembered"]
        if dependents > len(objects["configmaps"]) or any(others):
            differs.append(f"remembered: {told['remembered']}")
        for name, view in told["views"].items():
            end, kind = "!" if name == "transformed" else "", WIDGETS if name == "widgets" else "configmaps"
            wanted = {
                _key(obj): [obj["metadata"]["resourceVersion"], "" if name == "metadata" else obj["data"]["v"] + end]
                for obj in objects[kind]
                if name != "red" or obj["metadata"]["labels"]["colour"] == "red"
            }
            if not view["held"] == view["told"] == wanted or view["values"] != sorted({v for _, v in wanted.values()}):
                differs.append(name)
        return differs

    def table(self) -> str:
        """Show about thirty of the looks."""
        told = [f"{self.changes} changes; seconds, KiB resident and at most, threads, files, objects, blocks"]
        for sizes in self.sizes[:: len(self.sizes) // 30 + 1]:
            words = (sizes.rss >> 10, sizes.peak >> 10, sizes.threads, sizes.fds, sizes.objects, sizes.blocks)
            told.append(f"{sizes.at - self.sizes[0].at:6.0f} " + " ".join(f"{word:7}" for word in words))
        return "\n".join(told)

    def drift(self, of: Callable[[Sizes], int]) -> float:
        """Return by how much a straight line through the second half of the looks rises."""
        half = self.sizes[len(self.sizes) // 2 :]
        line = linear_regression([sizes.at for sizes in half], [of(sizes) for sizes in half])
        return line.slope * (half[-1].at - half[0].at)


def _key(obj: Mapping[str, Any]) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(1800, marks=[pytest.mark.slow, pytest.mark.timeout(2700)])], ids=["short", "long"]
)
def test_churn_with_cuts_expiry_and_new_tokens_leaves_no_trace(seconds: float, perform: Callable[..., Stage]) -> None:
    stage = perform(tokens=["everybody-else"], bookmark_every=1.0, history=200)
    churn = Churn(stage, every=min(10.0, seconds / 8))
    program = churn.program
    churn.until_quiet()
    threads = churn.threads()

    churn.last(seconds)

    churn.until_quiet()
    program.until(lambda: churn.threads() == threads, "no thread more than before", timeout=PATIENCE)
    if seconds > 60:
        print(churn.table())  # noqa: T201 - what a long run is for
        assert churn.drift(lambda sizes: sizes.rss) < GROWTH, churn.table()
        assert churn.drift(lambda sizes: sizes.objects) < MORE_OBJECTS, churn.table()
        assert {sizes.threads for sizes in churn.sizes} == {churn.sizes[0].threads}, churn.table()
        assert churn.drift(lambda sizes: sizes.fds) < MORE_FILES, churn.table()
        program.until(lambda: churn.fds() <= churn.sizes[0].fds, "idle connections are closed", timeout=PATIENCE)
    program.signal(signal.SIGTERM)
    assert program.wait(PATIENCE) == 0, program.tail()
    loud = [line for line in program.lines() if line["level"] in {"warning", "error"} or "traceback" in line]
    assert [line for line in loud if line["msg"] not in BUSY] == []
