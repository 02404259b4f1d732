from __future__ import annotations

import math

from informers.cache.pulse import SPARE, Pulse
from informers.testing.clock import FakeClock


def test_a_step_may_take_its_longest_wait_and_a_minute(clock: FakeClock) -> None:
    pulse = Pulse(clock)
    assert pulse.late() == 0

    pulse.expect(30)
    clock.advance(30 + SPARE)
    assert pulse.late() == 0

    clock.advance(5)
    assert pulse.late() == 5

    pulse.beat(clock.monotonic())
    clock.advance(31 + SPARE)
    assert pulse.late() == 1

    pulse.expect(math.inf)
    clock.advance(1e6)
    assert pulse.late() == 0
