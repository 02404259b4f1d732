"""Measure this project and its peers side by side: `python -m hack.bench [--quick] [BENCHMARK…]`."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hack.bench import acting, following, program
from hack.bench.faults import faults
from hack.bench.host import BUILD, pin_to_server_cores
from hack.bench.report import Reported, write
from hack.bench.run import Run

BENCHMARKS: Final[Mapping[str, Callable[[Run], Reported]]] = {
    "sync": following.sync,
    "sync-all": following.sync_all,
    "sync-real": following.sync_real,
    "turnover": following.turnover,
    "events": following.events,
    "events-small": following.events_small,
    "latency": following.latency,
    "relist": following.relist,
    "queue": acting.queue,
    "fan-out": acting.fanout,
    "storm": acting.storm,
    "silence": acting.silence,
    "lease": acting.lease,
    "many": acting.many,
    "import": acting.imports,
    "copier": program.copier,
}
FAULTS: Final = "faults"


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for, and write the report after each benchmark, also after one that breaks."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help=f"default: all of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the objects, once: to see that it works")
    parser.add_argument("--repetitions", type=int, default=0, help="(default: 3; with --quick 1)")
    parser.add_argument("--subject", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument(
        "--report", default="report", help="the name of the files in build/bench (default: %(default)s)"
    )
    options = parser.parse_args(words)
    if unknown := sorted(set(options.names) - set(BENCHMARKS) - {FAULTS}):
        parser.error(f"no such benchmark: {', '.join(unknown)}; want one of {', '.join(BENCHMARKS)}, {FAULTS}")

    repetitions = options.repetitions or (1 if options.quick else 3)
    run = Run(options.quick, repetitions, options.subject, patience=30.0 if options.quick else 120.0)
    about = {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)),
        "repetitions": repetitions,
        "size": "quick" if options.quick else "full",
        "load at the start": round(os.getloadavg()[0], 1),
    }
    pin_to_server_cores()
    tables: list[Reported] = []
    broken: list[str] = []
    for name in options.names or BENCHMARKS:
        print(name, file=sys.stderr, flush=True)
        try:
            tables.append(faults(run) if name == FAULTS else BENCHMARKS[name](run))
        except Exception:  # noqa: BLE001 - one that breaks must not cost the figures of the others
            traceback.print_exc()
            broken.append(name)
        else:
            print(tables[-1].as_markdown(), flush=True)
        write(BUILD, options.report, tables, {**about, "broken": ", ".join(broken)} if broken else about)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
