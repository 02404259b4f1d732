"""Look for a text of an annotation that the copier's parser does not take as it should: `make fuzz`.

With atheris (`pip install atheris`, where it can be had) the search follows the code, and takes libFuzzer's options, such
as `-max_total_time=60`; without it, hypothesis tries as many texts as `-runs=N` says. A text that fails is printed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CORPUS = Path("build/fuzz")
RUNS = "-runs="


def follow_the_code(arguments: list[str]) -> None:
    """Search with atheris, until it is told to stop."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["controllers.copier", "jmespath", "yaml"]):
        target = import_module("hack.fuzz.annotations")
    CORPUS.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.SEEDS):
        (CORPUS / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *arguments, str(CORPUS)], target.judge)
    atheris.Fuzz()


def try_at_random(arguments: list[str]) -> None:
    """Search with hypothesis, so many times."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    target = import_module("hack.fuzz.annotations")
    runs = next((int(text.removeprefix(RUNS)) for text in arguments if text.startswith(RUNS)), 10_000)
    pieces = st.lists(st.one_of(st.sampled_from(target.SEEDS), st.binary(max_size=40)), max_size=4).map(b"".join)
    settings(max_examples=runs, deadline=None)(given(pieces)(target.judge))()
    print(f"{runs} texts, no fault; atheris, which is not installed, finds more")


if __name__ == "__main__":
    search = try_at_random if find_spec("atheris") is None else follow_the_code
    search(sys.argv[1:])
