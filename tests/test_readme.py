"""The pages show files that other tests apply and run, name every flag and every reason, and no link leads nowhere."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from controllers import copier
from controllers.__main__ import parse_arguments
from controllers.copier.problems import STATE_OF

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "copier.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
# Reasons of Events that tell of no problem.
NEWS = {"Copied", "Recovered", "Removed", "Kept", "Base64Value"}

each_page = pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])


def test_what_the_pages_show_is_what_is_tested() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "hack" / "update-readme", "--check"], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


@each_page
def test_every_manifest_and_program_comes_from_a_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    shown = re.findall(r"^```(?:yaml|python)$", text, re.MULTILINE)
    named = re.findall(r"^<!-- (?:examples|hack/deploy)/\S+ -->\n```(?:yaml|python)$", text, re.MULTILINE)

    assert len(shown) == len(named)


@each_page
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, section = link.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), link
        if section:
            assert section in anchors_of(there), link


def anchors_of(page: Path) -> set[str]:
    """Return what GitHub makes of a page's headlines."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_reason_of_an_event_has_its_advice() -> None:
    assert words_in_table("Events") == {*STATE_OF, *NEWS}


def test_every_flag_is_listed_once_and_nothing_else() -> None:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), pytest.raises(SystemExit):
        parse_arguments(copier, copier.PROGRAM, ["--help"])
    known = set(re.findall(r"(?<=[ ,])-[a-z]\b|--[a-z][a-z-]*[a-z]|--v\b", told.getvalue()))

    assert words_in_table("Flags") == known - {"-h", "--help", "--version"}


def words_in_table(section: str) -> set[str]:
    """Return what stands in backticks in the first column of a section's table."""
    _, _, text = REFERENCE.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(words) == len(set(words)), sorted(words)
    return set(words)
