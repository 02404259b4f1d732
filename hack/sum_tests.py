"""Sum up pytest's JUnit reports: sum_tests.py NAME=FILE…; ends with 1 if a test failed, was skipped, or did not run."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def count(report: Path) -> tuple[int, int, list[str]]:
    """Count what passed and failed in a report, and name what was skipped; no report is one failure."""
    if not report.is_file():
        return 0, 1, []
    passed, failed, skipped = 0, 0, []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - we wrote it
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            passed += 1
    if not passed + failed:
        failed = 1  # a run without a test has shown nothing
    return passed, failed, skipped


def main(arguments: list[str]) -> int:
    """Print a line for each report and one for all."""
    all_passed = all_failed = all_skipped = 0
    for argument in arguments:
        name, _, file = argument.partition("=")
        passed, failed, skipped = count(Path(file))
        for test in skipped:
            print(f"{name}: skipped {test}")
        print(f"{name}: {passed} passed, {failed} failed")
        all_passed, all_failed, all_skipped = all_passed + passed, all_failed + failed, all_skipped + len(skipped)
    print(f"{all_passed} passed, {all_failed} failed")
    return 1 if all_failed or all_skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
