"""What is set of the interpreter, and why: stacks of threads, switch interval, garbage collector.

All figures are of `hack/bench/process.py` on two cores that others used too; what matters is how they compare.

*Stacks.* 100 threads that wait take 2.5 MiB of memory with stacks of 512 KiB and with the system's 8 MiB alike: what is
not touched costs addresses, not memory (50 MiB and 800 MiB of them). So the size is decided by how deep a thread may go.
Up to Python 3.11 the limit of recursion counts what C code does too, and JSON that is nested 100,000 deep, which anybody
may put into an object, ends in a `RecursionError` with 512 KiB (not with 256). Later versions let C code go as deep as a
stack of 8 MiB allows: on 3.13 the same JSON kills the process with anything up to 1 MiB (`json`) or 2 MiB (`msgspec`).

*Switch interval.* How long a thread keeps the interpreter while others want it. Beside two threads that compute, a third
that waits for 3 ms is late, at the median and at the 99th percentile, by 13 and 105 ms with Python's 5 ms, by 5 and 33 ms
with 1 ms, and by 2 and 30 ms with 0.5 ms; what the two get done in a CPU second falls by 9 and 16 %. A reflector that
reads or an elector that renews is such a third thread, so it is 1 ms while a manager runs.

*Garbage.* The collector sees nothing of what caches hold, which is bytes, but walks the maps around them: with 100,000
objects a full collection stops everything for 100 to 400 ms. What is frozen it does not walk, and a collection takes
under 0.1 ms. Frozen once, after the first sync, that is lost again as objects are replaced: after all were, a collection
takes as long as ever. So all is frozen again after each full collection, and these are done when no work is waiting.
Frozen objects are still freed when nothing refers to them; only cycles of them are not, so once an hour everything is
thawed, collected and frozen again, at the price of one long pause. The young are collected by the interpreter itself,
seldom: after 50,000 more containers were made than freed.
"""

from __future__ import annotations

import sys
from typing import Final

STACK: Final = 512 * 1024 if sys.version_info < (3, 12) else 8 * 1024 * 1024  # bytes

SWITCH_INTERVAL: Final = 0.001

GC_THRESHOLDS: Final = (50_000, 20, 1_000_000)  # the last: never by itself
GC_PAUSE: Final = 30.0  # between full collections while nothing is to be done
GC_LONGEST: Final = 600.0  # between full collections at most, whatever is to be done
GC_THAW: Final = 3600.0  # between collections of what is frozen
