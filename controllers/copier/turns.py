"""One rule on its way through one look at a target: read, held back, written or refused."""

from __future__ import annotations

from dataclasses import dataclass

from controllers.copier.compute import Wish
from controllers.copier.consent import Consent
from controllers.copier.memory import Identity, Settled, fingerprint
from controllers.copier.paths import Path
from controllers.copier.problems import RuleError
from controllers.copier.rules import Operation, Rule
from controllers.copier.sources import Found
from informers import ObjectRef


@dataclass(slots=True, eq=False)
class Turn:
    """One rule in one turn: what it would write, or why not."""

    id: str
    identity: Identity
    to: Path | None
    rule: Rule | None = None
    source: ObjectRef | None = None
    names: tuple[tuple[str, str], ...] = ()  # of kinds, each with the cluster in which it has to mean something
    consent: Consent | None = None  # None: it was not asked yet, as something else is wrong before
    found: Found | None = None
    error: RuleError | None = None
    lack: RuleError | None = None  # it delivers, but not what it was meant to, or not all of it arrives
    is_leaving: bool = False  # its source is missing, and what it wrote goes with it
    settled: Settled | None = None  # what the server is known to make of what it writes
    is_quiet: bool = False  # held without a word: it waits for a first list

    @property
    def problem(self) -> RuleError | None:
        """What people are told about the rule, whether it delivers or not."""
        return self.error or self.lack

    @property
    def delivers(self) -> bool:
        """Tell whether it has a value to write."""
        return self.found is not None and self.error is None and not self.is_quiet

    @property
    def wish(self) -> Wish | None:
        """What is folded: the value, or that the path is kept; None where no path is known."""
        if self.to is None:
            return None
        value = self.found.value if self.delivers and self.found is not None else None
        if self.rule is None:  # it could not be read, but what it would do to which path is known
            return Wish(self.id, self.to, value, Operation(self.identity[0]))
        marks = {} if self.settled is None else self.settled.marks
        return Wish(self.id, self.to, value, self.rule.operation, self.rule.conversion.excepts, marks)

    def attempt(self, content: bytes) -> bytes:
        """What stays equal as long as sending it again would be the same request."""
        assert self.rule is not None
        assert self.found is not None
        return fingerprint(self.rule.text, self.found.value.plain, content.hex())
