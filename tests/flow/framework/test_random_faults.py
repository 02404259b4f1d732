"""Random writes and random faults: whatever happened, in the end every cache is what the server has, and was told so.

Hypothesis chooses the steps. On failure the seed and the steps are printed: the everyday run has always the same
ones, the long one takes a new seed each time.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from informers import (
    GVR,
    Backoff,
    Clusters,
    Manager,
    NotFoundError,
    Object,
    ObjectRef,
    Request,
    Selection,
    SystemClock,
    TransportError,
    WatchOptions,
)
from informers.cache.store import is_at_least
from informers.testing.apiserver import APIServer
from informers.testing.clients import open_client

if TYPE_CHECKING:
    from informers import DependencyGraph, Lister
    from informers.cache.factory import InformerSet
    from informers.cache.store import Delta
    from tests.flow.framework.conftest import Log

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
NAMESPACES = GVR("", "v1", "namespaces")
DEFINITIONS = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")
WIDGETS = "widgets.example.com"
PATIENCE = 60.0
MARK = "marked-9f27c1e4"  # no log may show it: `log` looks for it
PROGRAM = "model"
QUICK = Backoff(0.02, 0.3)
KINDS = ("configmaps", "secrets", WIDGETS)
SPACES = ("a", "b")
NAMES = ("w", "x", "y", "z")

Shown = tuple[str, str, str]  # uid, resourceVersion, value
Objects = Mapping[tuple[str, str], Shown]


def crd(*versions: str) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [
                {
                    "name": version,
                    "served": version in versions,
                    "storage": version == "v1",
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
                for version in ("v1", "v2")
            ],
        },
    }


# What is followed, and what of the server it has to show.


@dataclass(frozen=True, slots=True)
class View:
    """A selection, and how an object that the server has looks in it; None = not at all."""

    selection: Selection
    resource: str
    look: Callable[[dict[str, Any]], str | None]


def value_of(obj: dict[str, Any]) -> str:
    return str(obj.get("data", {}).get("v", ""))


def shout(obj: Object) -> Mapping[str, Any]:
    return {"data": {"v": f"{obj.get('data', 'v', default='')}!"}}


VIEWS: Mapping[str, View] = {
    "plain": View(Selection(CONFIGMAPS), "configmaps", value_of),
    "metadata": View(Selection(CONFIGMAPS, metadata_only=True), "configmaps", lambda obj: ""),
    "red": View(
        Selection(CONFIGMAPS, label_selector="colour=red"),
        "configmaps",
        lambda obj: value_of(obj) if obj["metadata"].get("labels", {}).get("colour") == "red" else None,
    ),
    "transformed": View(Selection(CONFIGMAPS, transform=shout), "configmaps", lambda obj: f"{value_of(obj)}!"),
    "paged": View(Selection(CONFIGMAPS, page_size=2), "configmaps", value_of),
    "apart": View(
        Selection(CONFIGMAPS, namespaces=SPACES),
        "configmaps",
        lambda obj: value_of(obj) if obj["metadata"]["namespace"] in SPACES else None,
    ),
    "custom": View(Selection(GVR("example.com", "v1", "widgets")), WIDGETS, value_of),
    "named": View(Selection(WIDGETS), WIDGETS, value_of),
}
ONE = ("plain",)
SEVERAL = tuple(VIEWS)


class Watched:
    """A view in a running program: its cache, and all that a handler was told of it."""

    def __init__(self, name: str, manager: Manager, complain: Callable[[str], None]) -> None:
        self.name = name
        self.view = VIEWS[name]
        known = set(manager.informers()[""])
        self.lister: Lister = manager.lister(self.view.selection, required=False)
        self.informers: InformerSet = next(each for each in manager.informers()[""] if each not in known)
        self.lister.add_index("value", _by_value)
        self._complain = complain
        self._lock = threading.Lock()  # guards the two below
        self._replayed: dict[ObjectRef, Shown] = {}
        self._newest: dict[ObjectRef, tuple[str, str]] = {}  # of the last uid; all of them would grow for ever
        self.informers.add_handler(self._note)

    def _note(self, delta: Delta) -> None:
        """Replay a change; complain of what does not follow from what was told before."""
        old, new, ref = delta.old, delta.new, delta.ref
        shown = [found for store in self.informers.stores() if (found := store.get(ref.key)) is not None]
        with self._lock:
            known = self._replayed.pop(ref, None)
            if not _follows(known, old, is_end=new is None):
                self._complain(f"{self.name}: told of {ref} from {old and _shown(old)}, known was {known}")
            if new is None:
                if old is not None and any(each.uid == old.uid and each.gvr == ref.gvr for each in map(_bare, shown)):
                    self._complain(f"{self.name}: told that {ref} is gone while the cache shows it")
                return
            self._replayed[ref] = _shown(new)
            uid, newest = self._newest.get(ref, ("", ""))
            if uid == new.uid and is_at_least(new.resource_version, newest) is False:
                self._complain(f"{self.name}: {ref} went back from {newest} to {new.resource_version}")
            self._newest[ref] = (new.uid, new.resource_version)
            if old is not None and old.uid != new.uid:
                self._complain(f"{self.name}: {ref} became another object in one step")

    def replayed(self) -> Objects:
        with self._lock:
            return {(ref.namespace, ref.name): shown for ref, shown in self._replayed.items()}

    def held(self) -> Objects:
        return {(obj.namespace, obj.name): _shown(obj) for store in self.informers.stores() for obj in store.list()}

    def wanted(self, server: APIServer) -> Objects:
        """Return what the server has, as this view has to show it."""
        try:
            there = server.objects(self.view.resource)
        except ValueError:
            return {}  # it is not served
        if self.view.selection.resource not in {CONFIGMAPS, WIDGETS} and not _serves(server, "v1"):
            return {}
        found: dict[tuple[str, str], Shown] = {}
        for obj in there:
            value = self.view.look(obj)
            if value is not None:
                meta = obj["metadata"]
                found[meta["namespace"], meta["name"]] = (meta["uid"], meta["resourceVersion"], value)
        return found

    def check_indexes(self) -> None:
        """Compare the indexes with ones made from scratch."""
        wanted: dict[str, list[tuple[str, str]]] = {}
        for (namespace, name), (_, _, value) in self.held().items():
            wanted.setdefault(value, []).append((namespace, name))
        assert list(self.lister.index_values("value")) == sorted(wanted), self.name
        for value, names in wanted.items():
            found = [(ref.namespace, ref.name) for ref in self.lister.keys_by_index("value", value)]
            assert sorted(found) == sorted(names), self.name


@dataclass(frozen=True, slots=True)
class _Bare:
    uid: str
    gvr: GVR


def _bare(obj: Object) -> _Bare:
    return _Bare(obj.uid, obj.ref.gvr)


def _follows(known: Shown | None, old: Object | None, *, is_end: bool) -> bool:
    """Tell whether a change from `old` is what comes after what is known; one that is watched ends in its final state."""
    if known is None or old is None:
        return known is None and old is None
    return known[0] == old.uid if is_end else known == _shown(old)


def _shown(obj: Object) -> Shown:
    return obj.uid, obj.resource_version, str(obj.get("data", "v", default=""))


def _by_value(obj: Object) -> Sequence[str]:
    return [_shown(obj)[2]]


def _serves(server: APIServer, version: str) -> bool:
    return any(
        served["name"] == version and served["served"]
        for definition in server.objects("customresourcedefinitions.apiextensions.k8s.io")
        for served in definition["spec"]["versions"]
    )


class World:
    """A server, a program that follows it and writes to it, and everybody else."""

    def __init__(self, *, views: Sequence[str], options: WatchOptions, **server_options: Any) -> None:
        self.opened = ExitStack()
        self.server = self.opened.enter_context(APIServer(**server_options))
        self.client = self.opened.enter_context(open_client(self.server.kubeconfig))
        self.faults = self.server.faults()
        self.complaints: list[str] = []
        self._clock = SystemClock()
        self._news = threading.Condition()
        for space in SPACES:
            self.put_namespace(space)
        self.server.define(crd("v1"))
        self.put("secrets", "a", "w", "first")
        self.put("configmaps", "a", "w", "first", source="w")

        self.manager = Manager(Clusters.load(str(self.server.kubeconfig)), name=PROGRAM, watch=options, tune_gc=False)
        self.watched = [Watched(name, self.manager, self.complaints.append) for name in views]
        self.worker = Worker(self.manager, self.complaints.append)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="program")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.manager.run()
        except BaseException as error:  # noqa: BLE001 - it is looked at in the end
            self.error = error

    # Everybody else.

    def put(self, kind: str, namespace: str, name: str, value: str, *, colour: str = "", source: str = "") -> None:
        if kind == "secrets":
            value = f"{MARK}-{value}"
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": {"configmaps": "ConfigMap", "secrets": "Secret"}.get(kind, "Widget"),
            "metadata": {"name": name, "namespace": namespace},
            "data": {"v": value},
        }
        if kind == WIDGETS:
            body["apiVersion"] = "example.com/v1"
        if colour:
            body["metadata"]["labels"] = {"colour": colour}
        if source:
            body["metadata"]["annotations"] = {"source": source}
        self.server.put(body)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        try:
            self.server.remove(kind, name, namespace)
        except (KeyError, ValueError):
            return

    def put_namespace(self, name: str) -> None:
        self.server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def renew_namespace(self, name: str) -> None:
        """Delete a namespace with all that is in it, and make it anew."""
        self._remove(ObjectRef(NAMESPACES, "", name))
        self.until(lambda: name not in self._namespaces(), f"namespace {name} is gone")
        self.put_namespace(name)

    def _remove(self, ref: ObjectRef) -> None:
        """Delete an object as soon as the server can be reached."""

        def is_done() -> bool:
            try:
                self.client.delete(ref)
            except TransportError:
                return False
            except NotFoundError:
                return True
            return True

        self.until(is_done, f"{ref} can be deleted")

    def break_something(self, fault: Mapping[str, Any]) -> None:
        """Put a fault in force."""
        if fault["do"] == "DENY" or fault.get("code") in {403, 404, 405}:
            self.worker.may_be_early = True
        self.faults.add(fault)

    def _namespaces(self) -> Sequence[str]:
        return [obj["metadata"]["name"] for obj in self.server.objects("namespaces")]

    def serve(self, *versions: str) -> None:
        """Have widgets served in these versions, or not at all."""
        if versions:
            self.server.define(crd(*versions))
            return
        self._remove(ObjectRef(DEFINITIONS, "", WIDGETS))
        self.until(lambda: not self._is_defined(), "the definition is gone")

    def _is_defined(self) -> bool:
        return bool(self.server.objects("customresourcedefinitions.apiextensions.k8s.io"))

    # What has to hold.

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = self._clock.monotonic() + PATIENCE
        tick = threading.Event()
        while not holds():
            assert self.error is None, f"the program ended with {self.error!r}"
            if self._clock.monotonic() > end:
                raise AssertionError(f"not within {PATIENCE:g} s: {what}")
            tick.wait(0.02)

    def heal(self, *, cut: bool) -> None:
        """End all faults; with `cut` also what they did to connections that are open."""
        self.faults.clear()
        if cut:
            self.faults.refuse(0.01)

    def check(self) -> None:
        """Wait until all is quiet, and compare everything with the server."""
        for watched in self.watched:
            self._wait_equal(watched, watched.held, "held")
            self._wait_equal(watched, watched.replayed, "told")
        self.until(self._is_worked_off, "every object was reconciled in its last state")
        for watched in self.watched:
            self._wait_equal(watched, watched.held, "held")
            self._wait_equal(watched, watched.replayed, "told")
            if watched.informers.has_synced():
                watched.check_indexes()
        assert not self.complaints, self.complaints
        try:
            self.until(lambda: not self.left_over(), "nothing is left over")
        except AssertionError as error:
            raise AssertionError(f"{self.left_over()}: {error}") from None

    def _wait_equal(self, watched: Watched, read: Callable[[], Objects], what: str) -> None:
        try:
            self.until(lambda: read() == watched.wanted(self.server), what)
        except AssertionError as error:
            state = f"{watched.informers.state()}, {watched.informers.problem()}"
            message = (
                f"{watched.name} ({state}): {what} {read()}, the server has {watched.wanted(self.server)}: {error}"
            )
            raise AssertionError(message) from None

    def _is_worked_off(self) -> bool:
        if not self.worker.controller.is_idle():
            return False
        there = {ref_of(CONFIGMAPS, obj): obj for obj in self.server.objects("configmaps")}
        secrets = {ref_of(SECRETS, obj): obj["metadata"]["resourceVersion"] for obj in self.server.objects("secrets")}
        wanted = {}
        for ref, obj in there.items():
            source = obj["metadata"].get("annotations", {}).get("source", "")
            wanted[ref] = (
                obj["metadata"]["resourceVersion"],
                secrets.get(ref.sibling(SECRETS, name=source), "") if source else "",
            )
            if obj["metadata"].get("annotations", {}).get("seen") != value_of(obj):
                return False
        return self.worker.last() == wanted and not self.worker.remembers_more_than(wanted)

    def left_over(self) -> Mapping[str, tuple[int, int]]:
        """Return of what there is more than there may be, with how many there are and may be."""
        informers = {store for each in self.manager.informers()[""] for store in each.stores()}
        threads = Counter(thread.name.partition("/")[0] for thread in threading.enumerate())
        state = self.server.state()
        # A name that has just come to mean another version has a second informer for a moment.
        allowed = len(informers) + 1
        counted = {
            "reflectors": (threads["reflector"], allowed),
            "workers": (threads["worker"], self.worker.controller.workers),
            "others": (threads["run"] + threads["events"], 3),
            "streams": (sum(state["streams"].values()), allowed),
            "connections": (state["connections"], 2 * allowed + 8),
        }
        return {name: (found, most) for name, (found, most) in counted.items() if found > most}

    def close(self) -> None:
        """Stop the program, which has to end well and at once."""
        try:
            self.manager.stop()
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), "the program does not stop"
            assert self.error is None, f"the program ended with {self.error!r}"
        finally:
            self.opened.close()


def ref_of(gvr: GVR, obj: dict[str, Any]) -> ObjectRef:
    return ObjectRef(gvr, obj["metadata"]["namespace"], obj["metadata"]["name"])


class Worker:
    """A controller that looks at each ConfigMap and the Secret it names, and writes down which value it has seen."""

    def __init__(self, manager: Manager, complain: Callable[[str], None]) -> None:
        self._client = manager.client
        self._complain = complain
        self._lister = manager.lister(CONFIGMAPS)
        self._graph: DependencyGraph = manager.dependency_graph()
        self._lock = threading.Lock()  # guards all below
        self._running: set[ObjectRef] = set()
        self._last: dict[ObjectRef, tuple[str, str]] = {}
        self._written: dict[ObjectRef, tuple[str, str]] = {}
        self.may_be_early = False  # a cache that is refused holds up nobody, so it may not show what was written
        self.controller = manager.add_controller(
            "model",
            self.reconcile,
            primary=CONFIGMAPS,
            dependencies=self._graph,
            workers=3,
            retry=Backoff(0.01, 0.2),
            timeout=20,
        )

    def last(self) -> Mapping[ObjectRef, tuple[str, str]]:
        """Return the versions of object and source that were seen last."""
        with self._lock:
            return dict(self._last)

    def remembers_more_than(self, there: Collection[ObjectRef]) -> bool:
        """Tell whether anything is kept for objects that are gone, for writes that were seen, or for failures."""
        own, queue = self.controller._own, self.controller.queue
        assert own is not None
        return bool(len(own) or queue._failures or not self._graph._dependencies.keys() <= set(there))

    def reconcile(self, request: Request) -> None:
        ref = request.ref
        with self._lock:
            if ref in self._running:
                self._complain(f"{ref} is with two workers")
            self._running.add(ref)
        try:
            self._look(ref)
        finally:
            with self._lock:
                self._running.discard(ref)

    def _look(self, ref: ObjectRef) -> None:
        found = self._lister.find(ref)
        if found is None:
            self._graph.forget(ref)
            with self._lock:
                self._last.pop(ref, None)
            return
        with self._lock:
            uid, written = self._written.get(ref, ("", ""))
        if uid == found.uid and not self.may_be_early and is_at_least(found.resource_version, written) is False:
            self._complain(f"{ref} is reconciled at {found.resource_version} after {written} was written")
        source = found.annotations.get("source", "")
        seen = ""
        if source:
            secret = ref.sibling(SECRETS, name=source)
            self._graph.replace(ref, [secret])
            shown = self._graph.lister(secret).find(secret)
            seen = "" if shown is None else shown.resource_version
        else:
            self._graph.replace(ref, [])
        with self._lock:
            self._last[ref] = (found.resource_version, seen)
        value = str(found.get("data", "v", default=""))
        if found.annotations.get("seen") != value:
            metadata: Any = {
                "resourceVersion": found.resource_version,
                "uid": found.uid,
                "annotations": {"seen": value},
            }
            try:
                made = self._client.patch(ref, {"metadata": metadata}, field_manager="model")
            except NotFoundError:
                return  # it has just been deleted, which the cache will tell
            with self._lock:
                self._written[ref] = (made.uid, made.resource_version)


# Faults: every word, at every place where it can strike.

PLACES = ("request", "headers", "stream")
READS = ("list", "watch")
LINES = (
    "garbage",
    "{}",
    "[]",
    '{"type":"ADDED"}',
    '{"type":"WHAT","object":{}}',
    '{"type":"MODIFIED","object":{"kind":"ConfigMap","metadata":{"name":"p"}}}',
    '{"type":"ADDED","object":{"kind":"Other","apiVersion":"v1","metadata":{"name":"p","uid":"u","resourceVersion":"5"}}}',
)
ITEMS: tuple[object, ...] = (17, "text", {}, {"metadata": {"name": "p"}}, {"metadata": None})
# These leave an open connection in a state that only the client's patience ends.
LASTING = {"FREEZE", "NOEND", "HOLDHDR", "SLOW"}


def on(verbs: Sequence[str], **words: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Describe a fault that strikes one or a few of the program's requests of these verbs."""
    match = st.fixed_dictionaries(
        {"client": st.just(f"{PROGRAM}*"), "verb": st.sampled_from(list(verbs))},
        optional={"resource": st.sampled_from(["configmaps", "secrets", WIDGETS])},
    )
    return st.fixed_dictionaries(
        {"match": match, "times": st.integers(1, 3), **words},
        optional={"skip": st.integers(0, 2), "existing": st.booleans()},
    )


def do(word: str, verbs: Sequence[str] = READS, **words: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return on(verbs, do=st.just(word), **words)


WRITES = ("patch",)
CODES = st.sampled_from([400, 401, 403, 404, 405, 409, 410, 422, 429, 500, 502, 503, 504])
FAULTS = st.one_of(
    do("FREEZE", ("list", "watch", "patch", "get"), at=st.sampled_from(PLACES)),
    do("RST", ("list", "watch", "patch", "get"), at=st.sampled_from(PLACES)),
    do("FIN", ("list", "watch", "patch", "get"), at=st.sampled_from(PLACES), clean=st.booleans()),
    do("TRUNC", bytes=st.integers(0, 200)),
    do("SPLIT", every=st.integers(1, 40)),
    do("SLOW", bps=st.sampled_from([5_000, 50_000])),
    do("DELAY", ("list", "watch", "patch", "get"), seconds=st.sampled_from([0.05, 0.2])),
    do("DELAY", ("watch",), seconds=st.sampled_from([0.05, 0.3]), what=st.just("events")),
    do("STATUS", ("list", "watch", "patch", "get", "discovery"), code=CODES),
    do("STATUS", code=st.sampled_from([429, 503]), headers=st.just({"Retry-After": "1"})),
    do("STATUS", code=st.just(200), body=st.sampled_from(["<html>", '{"kind":"Status","code":200}', ""])),
    do("EV", ("watch",), code=st.sampled_from([410, 429, 500, 504])),
    do("EV", ("watch",), bare=st.just(True)),
    do("COMPACT"),
    do("LAG", events=st.integers(1, 4), mode=st.sampled_from(["stale", "toolarge"])),
    do("NOBM", ("watch",)),
    do("NOEND", ("watch",)),
    do("BLANK", ("watch",), text=st.sampled_from(["\n", "\r\n", "  \n"])),
    do("HUGE", mb=st.just(0.2)),
    do("POISON", ("watch",), line=st.sampled_from(LINES)),
    do("POISON", ("list",), item=st.sampled_from(ITEMS)),
    do("TABLE", ("list",)),
    do("META"),
    do("PLAIN"),
    do("HOLDHDR", ("watch",), seconds=st.sampled_from([0.1, 5.0])),
    do(
        "IGNORE",
        params=st.lists(
            st.sampled_from(["timeoutSeconds", "limit", "sendInitialEvents", "allowWatchBookmarks"]), min_size=1
        ),
    ),
    do("SHORT", ("watch",)),
    do("CONFLICT", WRITES, committed=st.booleans()),
    do("DROPREPLY", WRITES),
    do("DENY", ("list", "watch", "patch")),
    do("NOCACHE", ("list",)),
)

kinds = st.sampled_from(["configmaps", "configmaps", "secrets", WIDGETS])
spaces = st.sampled_from(SPACES)
names = st.sampled_from(NAMES)
values = st.sampled_from(["1", "2", "3"])
colours = st.sampled_from(["", "red", "blue"])
sources = st.sampled_from(["", *NAMES])


class BrokenError(BaseException):
    """Something does not hold. It ends the run at once: a second try would take other ways through the threads."""


Step = Callable[..., None]


def step(function: Step) -> Step:
    """Write down each step, and show all of them if one fails."""

    @wraps(function)
    def take(machine: Machine, **values: Any) -> None:
        given = ", ".join(f"{name}={value!r}" for name, value in values.items())
        machine.steps.append(f"{function.__name__}({given})")
        try:
            function(machine, **values)
        except Exception as error:
            raise BrokenError("\n".join([*machine.steps, str(error)])) from error

    return take


class Machine(RuleBasedStateMachine):
    """One program and its server, from start to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None
        self.is_cut = False
        self.steps: list[str] = []

    @initialize(views=st.sampled_from([ONE, SEVERAL, SEVERAL]), initial=st.sampled_from(["auto", "list", "stream"]))
    @step
    def start(self, views: tuple[str, ...], initial: str) -> None:
        self.world = World(views=views, options=_options(initial), bookmark_every=0.3, history=200)

    @property
    def here(self) -> World:
        assert self.world is not None
        return self.world

    @rule(kind=kinds, space=spaces, name=names, value=values, colour=colours, source=sources)
    @step
    def put(self, kind: str, space: str, name: str, value: str, colour: str, source: str) -> None:
        if kind != WIDGETS or _serves(self.here.server, "v1"):
            self.here.put(kind, space, name, value, colour=colour, source=source)

    @rule(kind=kinds, space=spaces, name=names)
    @step
    def delete(self, kind: str, space: str, name: str) -> None:
        self.here.delete(kind, space, name)

    @rule(space=spaces, name=names, value=values)
    @step
    def recreate(self, space: str, name: str, value: str) -> None:
        self.here.delete("configmaps", space, name)
        self.here.put("configmaps", space, name, value)

    @rule()
    @step
    def renew_a_namespace(self) -> None:
        self.here.renew_namespace("b")

    @rule(versions=st.sampled_from([(), ("v1",), ("v1", "v2")]))
    @step
    def serve(self, versions: tuple[str, ...]) -> None:
        self.here.serve(*versions)

    @rule(faults=st.lists(FAULTS, min_size=1, max_size=4))
    @step
    def break_something(self, faults: list[dict[str, Any]]) -> None:
        for fault in faults:
            self.is_cut |= fault["do"] in LASTING
            self.here.break_something(fault)

    @rule(how=st.sampled_from(["FIN", "RST"]))
    @step
    def end_streams(self, how: Any) -> None:
        self.here.faults.close(how, client=f"{PROGRAM}*")

    @rule()
    @step
    def expire(self) -> None:
        self.here.faults.compact()

    @rule()
    @step
    def hang_up_on_everybody(self) -> None:
        try:
            self.here.faults.refuse(0.05)
        except ValueError:
            return  # it is down already

    @rule(requests=st.integers(1, 5))
    @step
    def let_some_time_pass(self, requests: int) -> None:
        seen = len(self.here.server.requests(client=f"{PROGRAM}*"))
        try:
            self.here.server.wait_request(client=f"{PROGRAM}*", count=seen + requests, timeout=0.05)
        except TimeoutError:
            return

    @precondition(lambda self: self.world is not None)
    @rule()
    @step
    def be_quiet(self) -> None:
        self.until_quiet()

    @step
    def come_to_an_end(self) -> None:
        self.until_quiet()

    def until_quiet(self) -> None:
        self.here.until(self._heal, "the server listens again")
        self.here.check()

    def _heal(self) -> bool:
        try:
            self.here.heal(cut=self.is_cut)
        except ValueError:
            return False  # it is down, and comes back by itself
        self.is_cut = False
        return True

    def teardown(self) -> None:
        if self.world is not None:
            try:
                self.come_to_an_end()
            finally:
                self.world.close()


def _options(initial: str) -> WatchOptions:
    made = WatchOptions(backoff=QUICK, silence=2.0, idle_stop=1.0)
    object.__setattr__(made, "timeout", 3.0)
    if hasattr(made, "initial"):
        object.__setattr__(made, "initial", initial)
    return made


def play(number: int | None, log: Log, **options: Any) -> None:
    """Play with these settings; with a seed of one's own, or always the same."""
    for name in ("informers", "controllers"):
        logging.getLogger(name).setLevel(logging.WARNING)
    machine: Any = Machine if number is None else seed(number)(Machine)
    chosen = settings(
        settings.get_profile("everyday"),
        derandomize=number is None,
        database=None,
        print_blob=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        **options,
    )
    try:
        run_state_machine_as_test(machine, settings=chosen)
    except BrokenError as broken:
        raise AssertionError(f"seed {number}, after\n{broken}") from broken
    errors = [line for line in log.lines() if line["level"] == "error"]
    assert not errors, f"seed {number}: {errors[:3]}"


def test_in_the_end_every_cache_is_what_the_server_has(log: Log) -> None:
    play(None, log, max_examples=8, stateful_step_count=30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_in_the_end_every_cache_is_what_the_server_has_whatever_came(log: Log) -> None:
    play(random.getrandbits(32), log, max_examples=300, stateful_step_count=50)
