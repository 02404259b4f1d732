"""Guard against regressions by ratios within one run: how much less work we do than a plain program on the same bytes."""

from __future__ import annotations

import statistics

import pytest

from hack.bench.following import begin, memory, spec_of
from hack.bench.host import OURS, YARDSTICK, Child
from hack.bench.servers import filled

COUNT = 2_000
PODS = "pod5k"
TOLERANCE = 0.75
# Objects per CPU second, times those of a program that reads and decodes the same answer; 2.7 to 2.9 when written.
AS_FAST_AS = 2.7
KB_EACH = 6.0


@pytest.mark.slow
def test_a_first_list_takes_a_fraction_of_what_decoding_it_takes() -> None:
    ours, plain, sizes = [], [], []
    with filled(PODS, COUNT) as (server, _):
        for _ in range(5):
            with Child(YARDSTICK, server.kubeconfig, spec_of(YARDSTICK, PODS)) as child:
                plain.append(begin(server, child, COUNT, 60)["cpu"])
            with Child(OURS, server.kubeconfig, spec_of(f"{OURS}, list", PODS)) as child:
                ours.append(begin(server, child, COUNT, 60)["cpu"])
                sizes.append(memory(child, COUNT)["kB each"])

    ratio = statistics.median(theirs / mine for theirs, mine in zip(plain, ours, strict=True))
    assert ratio >= AS_FAST_AS * TOLERANCE, (ratio, ours, plain)
    assert statistics.median(sizes) <= KB_EACH / TOLERANCE
