"""What a user can import is what `__all__` says, each name says what it promises, and importing costs little."""

import ast
import inspect
import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import pytest

import informers
from informers.version import DISTRIBUTION, VERSION


def modules_loaded_by(statement: str, *, beyond: str) -> set[str]:
    """What `statement` loads that is not loaded already by the imports named in `beyond`."""
    code = f"import sys, {beyond}; before = set(sys.modules); {statement}; print('\\n'.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", informers.__all__)
def test_every_public_name_can_be_imported_and_says_what_it_promises(name: str) -> None:
    found = getattr(informers, name)

    if inspect.isclass(found) or inspect.isfunction(found) or isinstance(found, types.ModuleType):
        assert inspect.getdoc(found), f"{name} has no docstring"


@pytest.mark.parametrize("name", informers.__all__)
def test_every_public_method_says_what_it_promises(name: str) -> None:
    found = getattr(informers, name)
    if not (inspect.isclass(found) and found.__module__.startswith("informers")):
        return

    silent = [
        attribute
        for attribute, value in vars(found).items()
        if not attribute.startswith("_") and callable(value) and not inspect.getdoc(value)
    ]

    assert silent == []


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    tree = ast.parse(Path(informers.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert imported == set(informers.__all__)
    assert dir(informers) == sorted(informers.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no public name 'Nonsense'"):
        informers.Nonsense  # noqa: B018


def test_importing_the_front_door_loads_nothing_else() -> None:
    assert modules_loaded_by("import informers", beyond="importlib, typing") == {"informers"}


def test_the_version_is_that_of_the_package() -> None:
    assert version(DISTRIBUTION) == VERSION


def test_a_program_in_a_pod_loads_nothing_to_find_its_version_or_to_write_temporary_files() -> None:
    loaded = modules_loaded_by("from informers import Clusters, Manager", beyond="ssl, msgspec")

    assert not loaded & {"importlib.metadata", "tempfile", "http.server", "kubernetes", "prometheus_client", "yaml"}
