"""The README's examples are the files that the flow tests apply and run."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_examples_in_the_readme_are_the_files_that_are_tested() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "hack" / "update-readme", "--check"], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_every_manifest_and_program_in_the_readme_comes_from_a_file() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    shown = re.findall(r"^```(?:yaml|python)$", readme, re.MULTILINE)
    named = re.findall(r"^<!-- examples/\S+ -->\n```(?:yaml|python)$", readme, re.MULTILINE)

    assert len(shown) == len(named) > 0
