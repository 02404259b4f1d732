"""The target that a fuzzer drives holds for what it starts from, and for a few texts more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.rules import RuleSet
from hack.fuzz import annotations as fuzz

pieces = st.lists(st.one_of(st.sampled_from(fuzz.SEEDS), st.binary(max_size=20)), max_size=3).map(b"".join)


@pytest.mark.parametrize("seed", fuzz.SEEDS)
def test_what_the_fuzzer_starts_from_is_taken_as_it_should(seed: bytes) -> None:
    fuzz.judge(seed)


@settings(deadline=None)  # the machine may be busy
@given(pieces)
def test_any_bytes_are_taken_as_they_should(data: bytes) -> None:
    fuzz.judge(data)


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "parse_rules", lambda _annotations: RuleSet())

    with pytest.raises(AssertionError):
        fuzz.judge(b"\x00[]")
