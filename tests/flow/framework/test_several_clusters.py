"""One program works with several clusters, and what is wrong with one of them is nobody else's trouble."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import yaml

from informers import (
    GVR,
    AlreadyExistsError,
    Backoff,
    Clusters,
    Lister,
    Manager,
    NotFoundError,
    NotSyncedError,
    ObjectRef,
    Request,
    Selection,
    SystemClock,
    WatchOptions,
)

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
NAMESPACES = GVR("", "v1", "namespaces")
PATIENCE = 60.0
STOPS = 10.0  # far below what the calls in flight would take, far above what a busy machine needs
AWAY = "away"
WATCH = WatchOptions(backoff=Backoff(0.05, 0.4))

Seen = tuple[str, str, str]  # cluster, name, value


class Program:
    """A manager of several clusters, with a controller that notes what it sees; a context manager."""

    def __init__(
        self,
        kubeconfigs: Mapping[str, Path],
        namespace: str,
        directory: Path,
        *,
        what: Selection | str | None = None,
        reconcile: Callable[[Program, Request], None] | None = None,
        **options: Any,
    ) -> None:
        path = directory / "several.kubeconfig"
        path.write_text(yaml.safe_dump(merged(kubeconfigs)))
        clusters = Clusters.load(path, contexts=list(kubeconfigs))
        self.manager = Manager(clusters, name="story", watch=WATCH, tune_gc=False, shutdown_grace=PATIENCE)
        self.selection = what or Selection(CONFIGMAPS, namespaces=(namespace,))
        self.lister: Lister = self.manager.lister(self.selection)
        self.graph = self.manager.dependency_graph(namespaces=(namespace,))
        self._reconcile = reconcile
        self._changed = threading.Condition()  # guards seen
        self.seen: list[Seen] = []
        self.controller = self.manager.add_controller(
            "story", self.reconcile, primary=self.selection, dependencies=self.graph, **options
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="program")

    def reconcile(self, request: Request) -> None:
        found = self.lister.find(request.ref)
        value = "" if found is None else str(found.get("data", "v", default=""))
        self.note(request.ref.cluster, request.ref.name, value)
        if self._reconcile is not None:
            self._reconcile(self, request)

    def note(self, *seen: str) -> None:
        cluster, name, value = seen
        with self._changed:
            self.seen.append((cluster, name, value))
            self._changed.notify_all()

    def until_seen(self, *wanted: Seen) -> None:
        self.until(lambda: set(wanted) <= set(self.seen), f"{wanted} not among {self.seen[-10:]}")

    def until(self, holds: Callable[[], object], what: str) -> None:
        clock = SystemClock()
        end = clock.monotonic() + PATIENCE
        with self._changed:
            while not holds():
                assert self.error is None, f"the manager ended with {self.error!r}"
                assert clock.monotonic() < end, what
                self._changed.wait(0.05)

    def _run(self) -> None:
        try:
            self.manager.run()
        except BaseException as error:  # noqa: BLE001 - the story looks at it
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> float:
        """Stop it, which must go well; return how many seconds that took."""
        clock = SystemClock()
        began = clock.monotonic()
        self.manager.stop("the story is over")
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the manager does not stop"
        assert self.error is None, f"the manager ended with {self.error!r}"
        return clock.monotonic() - began


def merged(kubeconfigs: Mapping[str, Path]) -> Mapping[str, Any]:
    """Return one kubeconfig with a context for each of these; the first is the current one."""
    found: dict[str, Any] = {"clusters": [], "users": [], "contexts": [], "current-context": next(iter(kubeconfigs))}
    for name, path in kubeconfigs.items():
        config = yaml.safe_load(path.read_text())
        found["clusters"].append({"name": name, "cluster": config["clusters"][0]["cluster"]})
        found["users"].append({"name": name, "user": config["users"][0]["user"]})
        found["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    return found


@pytest.fixture
def home(perform: Callable[..., Stage], stage: Stage) -> Stage:
    """The home cluster, an embedded server; the other one has a namespace of the same name."""
    made = perform()
    made.client.create(NAMESPACES, {"metadata": {"name": stage.namespace}}, field_manager="everybody")
    return made


def put(where: Stage, namespace: str, name: str, value: str) -> None:
    """Create a ConfigMap with this `data.v` in a namespace that two clusters have, or change it."""
    body = {"metadata": {"name": name}, "data": {"v": value}}
    try:
        where.client.create(CONFIGMAPS, body, namespace=namespace, field_manager="everybody")
    except AlreadyExistsError:
        where.client.patch(ObjectRef(CONFIGMAPS, namespace, name), body, field_manager="everybody")


def test_a_cluster_that_is_down_at_the_start_joins_later_and_goes_again(home: Stage, stage: Stage) -> None:
    namespace = stage.namespace
    put(home, namespace, "a", "1")
    relay = stage.server.relay()
    relay.refuse()
    kubeconfigs = {"home": home.server.kubeconfig, AWAY: relay.kubeconfig}
    with Program(kubeconfigs, namespace, stage.directory) as program:
        lister = program.lister
        program.until_seen(("", "a", "1"))
        program.until(lambda: lister.problem(AWAY) is not None, "refused")
        assert program.manager.cluster_names() == {"home": "", AWAY: AWAY}
        assert program.manager.ready_problems() == {}
        assert (lister.has_synced(""), lister.has_synced(AWAY), lister.has_synced()) == (True, False, False)
        assert [(one.cluster, one.name) for one in lister.list()] == [("", "a")]
        with pytest.raises(NotSyncedError, match=f"cluster {AWAY}"):
            lister.list(cluster=AWAY)
        put(home, namespace, "a", "2")
        program.until_seen(("", "a", "2"))

        put(stage, namespace, "a", "there")
        relay.heal()
        program.until_seen((AWAY, "a", "there"))
        program.until(lambda: lister.state(AWAY) == "watching", "watching")
        assert lister.has_synced()
        assert [(one.cluster, one.get("data", "v")) for one in lister.list()] == [("", "2"), (AWAY, "there")]

        relay.refuse()
        program.until(lambda: lister.state(AWAY) != "watching", "down again")
        put(home, namespace, "a", "3")
        program.until_seen(("", "a", "3"))
        assert lister.get("a", namespace, cluster=AWAY).get("data", "v") == "there"
        relay.heal()
        put(stage, namespace, "a", "back")
        program.until_seen((AWAY, "a", "back"))

        relay.freeze()
        put(home, namespace, "a", "4")
        program.until_seen(("", "a", "4"))
        assert program.stop() < STOPS
    relay.heal()  # frozen, it does not see that a connection is closed
    program.until(lambda: relay.connections() == 0, "all connections are closed")


def test_a_cluster_that_is_frozen_at_the_start_holds_up_nobody(home: Stage, stage: Stage) -> None:
    """It does not even say which kinds it serves."""
    namespace = stage.namespace
    put(home, namespace, "a", "1")
    relay = stage.server.relay()
    relay.freeze()
    kubeconfigs = {AWAY: relay.kubeconfig, "home": home.server.kubeconfig}
    what = Selection("cm", namespaces=(namespace,))
    with Program(kubeconfigs, namespace, stage.directory, what=what) as program:
        program.until_seen(("home", "a", "1"))
        put(home, namespace, "a", "2")
        program.until_seen(("home", "a", "2"))
        assert program.lister.state("") == "pending"  # the home cluster is the one that hangs, this time

        put(stage, namespace, "a", "there")
        relay.heal()
        relay.reset()
        program.until_seen(("", "a", "there"))

        relay.freeze()
        assert program.stop() < STOPS
    relay.heal()  # frozen, it does not see that a connection is closed
    program.until(lambda: relay.connections() == 0, "all connections are closed")


def test_nobody_waits_at_the_stop_for_a_cluster_that_hangs_in_discovery(home: Stage, stage: Stage) -> None:
    put(home, stage.namespace, "a", "1")
    relay = stage.server.relay()
    relay.freeze()
    kubeconfigs = {"home": home.server.kubeconfig, AWAY: relay.kubeconfig}
    what = Selection("cm", namespaces=(stage.namespace,))
    with Program(kubeconfigs, stage.namespace, stage.directory, what=what) as program:
        program.until_seen(("", "a", "1"))
        program.until(lambda: relay.connections() > 0, "asked what it serves")
        assert program.stop() < STOPS
    relay.heal()  # frozen, it does not see that a connection is closed
    program.until(lambda: relay.connections() == 0, "all connections are closed")


def test_a_cluster_that_refuses_us_and_one_that_serves_other_kinds_hold_up_nobody(
    perform: Callable[..., Stage], tmp_path: Path
) -> None:
    home, refusing, other = perform(), perform(tokens=["right=admin"]), perform()
    config = yaml.safe_load(refusing.server.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    stranger = tmp_path / "stranger.kubeconfig"
    stranger.write_text(yaml.safe_dump(config))
    home.embedded.define(WIDGETS)
    home.client.create(WIDGET, widget("a"), namespace="default", field_manager="everybody")
    kubeconfigs = {"home": home.server.kubeconfig, "refusing": stranger, "other": other.server.kubeconfig}
    with Program(kubeconfigs, "default", tmp_path, what="widgets") as program:
        program.until_seen(("", "a", ""))
        program.until(lambda: program.lister.state("other") == "unserved", "unserved")
        assert not program.lister.has_synced("refusing")

        other.embedded.define(WIDGETS)
        other.client.create(WIDGET, widget("b"), namespace="default", field_manager="everybody")
        program.until_seen(("other", "b", ""))

        assert program.stop() < STOPS


WIDGET = GVR("example.com", "v1", "widgets")
WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def widget(name: str) -> Mapping[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}}


def follow_source(source: ObjectRef) -> Callable[[Program, Request], None]:
    """Have each ConfigMap depend on one Secret, and note that Secret's value."""

    def look(program: Program, request: Request) -> None:
        program.graph.replace(request.ref, [source])
        try:
            found = program.graph.lister(source).get(source.name, source.namespace, cluster=source.cluster)
        except NotFoundError:
            value = "absent"
        else:
            value = str(found.get("data", "v"))
        program.note(request.ref.cluster, "source", value)

    return look


def test_a_source_referenced_across_clusters_changes(home: Stage, stage: Stage) -> None:
    """The dependents are in both clusters, the source in one that is down at first, and later again."""
    namespace = stage.namespace
    source = ObjectRef(SECRETS, namespace, "source", AWAY)
    put(home, namespace, "a", "x")
    put(stage, namespace, "a", "x")
    stage.put_secret("source", "1")
    relay = stage.server.relay()
    relay.refuse()
    kubeconfigs = {"home": home.server.kubeconfig, AWAY: relay.kubeconfig}
    with Program(kubeconfigs, namespace, stage.directory, reconcile=follow_source(source)) as program:
        program.until_seen(("", "a", "x"))
        assert not [one for one in program.seen if one[1] == "source"]

        relay.heal()
        program.until_seen(("", "source", "MQ=="), (AWAY, "source", "MQ=="))

        stage.put_secret("source", "2")
        program.until_seen(("", "source", "Mg=="), (AWAY, "source", "Mg=="))
        assert {one.cluster for one in program.graph.dependents_of(source)} == {"", AWAY}

        relay.refuse()
        program.until(lambda: program.graph.lister(source).state(AWAY) != "watching", "down")
        put(home, namespace, "a", "y")
        program.until_seen(("", "a", "y"))
        assert {one.cluster for one in program.graph.dependents_of(source)} == {"", AWAY}
        stage.put_secret("source", "3")
        relay.heal()
        program.until_seen(("", "source", "Mw=="), (AWAY, "source", "Mw=="))
    assert not [one for one in program.seen if one[2] == "absent"]


def test_a_burst_on_a_cluster_delays_no_key_of_another(home: Stage, stage: Stage) -> None:
    namespace = stage.namespace
    put(stage, namespace, "first", "x")
    may_go_on = threading.Event()

    def hold(program: Program, request: Request) -> None:
        assert may_go_on.wait(PATIENCE)

    kubeconfigs = {"home": home.server.kubeconfig, AWAY: stage.server.kubeconfig}
    with Program(kubeconfigs, namespace, stage.directory, reconcile=hold) as program:
        program.until_seen((AWAY, "first", "x"))  # the only worker is busy now
        for number in range(60):
            put(stage, namespace, f"burst-{number}", "x")
        program.until(lambda: len(program.controller.queue) >= 60, "the burst waits")
        put(home, namespace, "single", "x")
        program.until(lambda: program.controller.queue.holds(ObjectRef(CONFIGMAPS, namespace, "single")), "it waits")
        before = len(program.seen)

        may_go_on.set()
        program.until_seen(("", "single", "x"))

        order = [name for _, name, _ in program.seen[before:]]
        assert order.index("single") <= 1


def test_reconciles_that_hang_in_one_cluster_leave_a_worker_for_another(home: Stage, stage: Stage) -> None:
    namespace = stage.namespace
    is_frozen = threading.Event()

    def ask(program: Program, request: Request) -> None:
        if is_frozen.is_set() and request.ref.cluster == AWAY:
            program.note(AWAY, "hangs", request.ref.name)
            program.manager.client.get(request.ref)

    put(home, namespace, "a", "1")
    put(stage, namespace, "a", "1")
    relay = stage.server.relay()
    kubeconfigs = {"home": home.server.kubeconfig, AWAY: relay.kubeconfig}
    with Program(kubeconfigs, namespace, stage.directory, reconcile=ask, workers=2) as program:
        program.until_seen(("", "a", "1"), (AWAY, "a", "1"))
        relay.freeze()
        is_frozen.set()
        for number in range(5):
            program.controller.enqueue(ObjectRef(CONFIGMAPS, namespace, f"n{number}", AWAY))
        program.until_seen((AWAY, "hangs", "n0"))

        put(home, namespace, "a", "2")
        program.until_seen(("", "a", "2"))
        put(home, namespace, "a", "3")
        program.until_seen(("", "a", "3"))

        assert program.stop() < STOPS


def test_objects_of_one_name_in_two_clusters_never_meet(home: Stage, stage: Stage) -> None:
    namespace = stage.namespace

    def mark(program: Program, request: Request) -> None:
        found = program.lister.find(request.ref)
        if found is not None and "seen-in" not in found.annotations:
            where = request.ref.cluster or "home"
            patch = {"metadata": {"annotations": {"seen-in": where}}}
            program.manager.client.patch(request.ref, patch, field_manager="story")
            program.manager.events.event(found, type="Normal", reason="Marked", note=f"marked in {where}")

    put(home, namespace, "a", "1")
    put(stage, namespace, "a", "2")
    kubeconfigs = {"home": home.server.kubeconfig, AWAY: stage.server.kubeconfig}
    with Program(kubeconfigs, namespace, stage.directory, reconcile=mark) as program:
        program.until(lambda: marks(program.lister) == {"": "home", AWAY: AWAY}, "marked")

        for where, name in ((home, "home"), (stage, AWAY)):
            program.until(lambda: len(notes(where, namespace)) == 1, "told")  # noqa: B023 - now
            assert notes(where, namespace) == [f"marked in {name}"]
        refs = program.lister.keys_by_index("namespace", namespace)
        assert refs == [ObjectRef(CONFIGMAPS, namespace, "a", cluster) for cluster in ("", AWAY)]
    lines = stage.log.lines("reconciled")
    assert {line["cluster"] for line in lines} == {"", AWAY}
    assert all(line["name"] == "a" for line in lines)


def marks(lister: Lister) -> Mapping[str, str]:
    if not lister.has_synced():
        return {}
    return {one.cluster: one.annotations.get("seen-in", "") for one in lister.list()}


def notes(where: Stage, namespace: str) -> Sequence[str]:
    return [
        str(one.get("note")) for one in where.client.list(GVR("events.k8s.io", "v1", "events"), namespace=namespace)
    ]
