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

EXAMPLE = Path(__file__).parents[3] / "examples" / "configmap_counter.py"


def add(stage: Stage) -> Path:
    """Copy the folder of controllers and add one file, the example of the README."""
    where = stage.directory / "clone"
    shutil.copytree(Path(controllers.__file__).parent, where / "controllers")
    shutil.copy(EXAMPLE, where / "controllers")
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
