"""A controller is one file: added to the folder and named on the command line, it does its job."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import controllers
from informers import GVR, ObjectRef

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

COUNT = "example.com/configmaps"

CONTROLLER = '''"""Write on every Namespace how many ConfigMaps it holds."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from informers import GVR, Client, FlagParser, Lister, Manager, Object, ObjectRef, Request, Result

NAMESPACES = GVR("", "v1", "namespaces")
CONFIGMAPS = GVR("", "v1", "configmaps")
COUNT = "example.com/configmaps"


def add_arguments(parser: FlagParser) -> None:
    """Declare this controller's own options and defaults; the shared flags are there already."""
    parser.set_defaults(workers=2)


def setup(manager: Manager, options: argparse.Namespace) -> None:
    """Look at a Namespace again when it, or a ConfigMap in it, changes."""
    counter = ConfigMapCounter(
        client=manager.client,
        namespaces=manager.lister(NAMESPACES),
        configmaps=manager.lister(CONFIGMAPS),
    )
    manager.add_controller(
        "configmap-counter",
        counter.reconcile,
        primary=NAMESPACES,
        watches={CONFIGMAPS: namespace_of},
        workers=options.workers,
    )


def namespace_of(obj: Object) -> Iterable[ObjectRef]:
    """Name the Namespace that a namespaced object lives in."""
    yield obj.ref.sibling(NAMESPACES, namespace="", name=obj.namespace)


@dataclass(frozen=True, slots=True)
class ConfigMapCounter:
    """Keep one annotation equal to what the cache counts."""

    client: Client
    namespaces: Lister
    configmaps: Lister

    def reconcile(self, request: Request) -> Result:
        """Patch the Namespace if its annotation is not the present count."""
        namespace = self.namespaces.find(request.ref)
        if namespace is None:
            return Result()

        inside = self.configmaps.list(namespace.name, cluster=request.ref.cluster)
        wanted = str(len(inside))
        if namespace.annotations.get(COUNT) != wanted:
            self.client.patch(
                request.ref,
                {"metadata": {"annotations": {COUNT: wanted}}},
                field_manager="configmap-counter",
            )
        return Result()
'''


def add(stage: Stage) -> Path:
    """Copy the folder of controllers and add one file."""
    where = stage.directory / "clone"
    shutil.copytree(Path(controllers.__file__).parent, where / "controllers")
    (where / "controllers" / "configmap_counter.py").write_text(CONTROLLER)
    return where


def count(stage: Stage) -> str | None:
    namespace = stage.client.get(ObjectRef(GVR("", "v1", "namespaces"), "", stage.namespace))
    return namespace.annotations.get(COUNT)


def test_a_file_that_is_added_is_found_and_does_its_job(stage: Stage) -> None:
    directory = add(stage)
    listed = stage.run("controllers", "--help", directory=directory)
    stage.put("a", "1")
    program = stage.run(
        "controllers",
        "configmap_counter",
        f"--kubeconfig={stage.server.kubeconfig}",
        "--log-level=debug",
        directory=directory,
    )

    program.until(lambda: count(stage) == "1", "counted")
    stage.put("b", "1")
    program.until(lambda: count(stage) == "2", "counted again")
    stage.delete("a")
    program.until(lambda: count(stage) == "1", "counted again")
    program.signal(signal.SIGTERM)

    assert program.wait() == 0, program.tail()
    assert listed.wait() == 0
    assert "configmap_counter  Write on every Namespace how many ConfigMaps it holds." in listed.stdout.read_text()
