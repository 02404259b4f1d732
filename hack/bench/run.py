"""How much is measured, how often, and what happens when something cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hack.bench.host import is_there
from hack.bench.report import Table


class Unmeasured(Exception):  # noqa: N818 - it is no error: the table says so
    """Says why a subject has no figure."""


@dataclass
class Run:
    """One run of benchmarks.

    Attributes:
        patience: seconds after which a subject that does not get there is given up.
    """

    is_quick: bool = False
    repetitions: int = 3
    only: Sequence[str] = ()
    patience: float = 120.0
    _given_up: set[tuple[str, str]] = field(default_factory=set)

    def size(self, full: int, quick: int) -> int:
        """Choose a number."""
        return quick if self.is_quick else full

    def each(self, table: Table, rows: Sequence[str], subject_of: Callable[[str], str]) -> Iterator[str]:
        """Yield the rows of a table, all of them in turn, as often as there are repetitions.

        So what disturbs the machine for a while disturbs all subjects.
        """
        wanted = [row for row in rows if not self.only or subject_of(row) in self.only]
        for row in wanted:
            if why := is_there(subject_of(row)):
                table.cannot(row, why)
                self._given_up.add((table.name, row))
        for _ in range(self.repetitions):
            for row in wanted:
                if (table.name, row) not in self._given_up:
                    yield row

    @contextmanager
    def measured(self, table: Table, row: str) -> Iterator[None]:
        """Measure one row once; what cannot be is told in the table, and not tried again."""
        print(f"  {table.name}: {row}", file=sys.stderr, flush=True)
        try:
            yield
        except (Unmeasured, TimeoutError, RuntimeError) as error:
            table.cannot(row, str(error))
            self._given_up.add((table.name, row))
