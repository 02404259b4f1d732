"""The list of metrics that users read is what the code counts."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_list_of_metrics_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "hack" / "update-metrics"), "--check"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
