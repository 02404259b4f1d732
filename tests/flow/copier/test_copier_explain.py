"""explain and --dry-run say what the copier would do, as files that a person can read, and change nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from controllers import copier
from controllers.__main__ import build_manager, parse_arguments
from informers import GVR

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Story

GOLDEN = Path(__file__).parent / "golden"
SECRET = "UzNDUjNU"
LEASES = GVR("coordination.k8s.io", "v1", "leases")
LOOKED_AT = (*(GVR("", "v1", name) for name in ("configmaps", "secrets", "events")), LEASES)


@dataclass
class Told:
    """One call of the program in this process."""

    status: int
    text: str


@dataclass
class Stage:
    """The golden files' objects on a server, in namespaces of the story's own."""

    story: Story
    prod: str
    capsys: pytest.CaptureFixture[str]

    def moved(self, text: str) -> str:
        """Turn the names of the golden files into this story's."""
        return re.sub(r"\bprod\b", self.prod, re.sub(r"\bdev\b", self.story.namespace, text))

    def golden(self, name: str) -> str:
        return self.moved((GOLDEN / name).read_text())

    def ask(self, *words: str) -> Told:
        """Call the program as its command line does, but for the process."""
        flags = [*words, f"--kubeconfig={self.story.server.kubeconfig}"]
        options = parse_arguments(copier, copier.PROGRAM, flags)
        manager = build_manager(copier.PROGRAM, vars(options))
        copier.setup(manager, options)
        status = copier.main(manager, options)
        return Told(status, self.capsys.readouterr().out)

    def versions(self) -> dict[str, str]:
        """Return the resourceVersion of each object that a report might have touched."""
        found: dict[str, str] = {}
        for gvr in LOOKED_AT:
            for namespace in (self.story.namespace, self.prod, *(["default"] if gvr == LEASES else [])):
                found |= {
                    str(each.ref): each.resource_version for each in self.story.client.list(gvr, namespace=namespace)
                }
        return found


@pytest.fixture
def stage(story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Stage:
    made = Stage(story, story.another_namespace(), capsys)
    (tmp_path / "targets.yaml").write_text(made.golden("targets.yaml"))
    for document in yaml.safe_load_all(made.golden("targets.yaml")):
        for manifest in document.get("items", [document]):
            story.apply(manifest)
    return made


def test_reports_tell_what_would_be_done_and_why_not_and_change_nothing(stage: Stage, tmp_path: Path) -> None:
    before = stage.versions()
    scope = f"--namespace={stage.story.namespace},{stage.prod}"

    explained = stage.ask("explain", "--filename", str(tmp_path / "targets.yaml"))
    tried = stage.ask("--dry-run", "--target=configmap", scope)
    explained_json = stage.ask("explain", "-f", str(tmp_path / "targets.yaml"), "-o=json")
    tried_json = stage.ask("--dry-run", "--target=configmap", scope, "--output=json")
    one = stage.ask("explain", "cm", f"{stage.story.namespace}/fixed")

    assert explained.text == stage.golden("explained.txt")
    assert tried.text == stage.golden("tried.txt")
    assert json.loads(explained_json.text) == json.loads(stage.golden("explained.json"))
    assert json.loads(tried_json.text) == json.loads(stage.golden("tried.json"))
    assert one.text == stage.golden("one.txt")
    assert [told.status for told in (explained, tried, explained_json, tried_json, one)] == [1, 1, 1, 1, 0]
    assert all(SECRET not in told.text for told in (explained, tried, explained_json, tried_json, one))
    assert stage.versions() == before
