"""What was measured, as a table with a plot: medians with their spread, ratios, and targets met or not."""

from __future__ import annotations

import json
import operator
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

_HOLDS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "≤": operator.le, "≥": operator.ge, "<": operator.lt, "=": operator.eq,
}  # fmt: skip
_BAR: Final = 40


class Reported(Protocol):
    """What a benchmark found."""

    def as_json(self) -> Mapping[str, Any]:
        """Return everything, for a program."""

    def as_markdown(self) -> str:
        """Return everything, for a person."""


@dataclass(frozen=True, slots=True)
class Target:
    """One promise: what was measured in each repetition, and how it must compare."""

    text: str
    values: Sequence[float]
    holds: str
    limit: float

    def is_met(self) -> bool | None:
        """Tell whether the median keeps the promise; None if nothing was measured."""
        return _HOLDS[self.holds](statistics.median(self.values), self.limit) if self.values else None


@dataclass
class Table:
    """The figures of one benchmark, by subject and measure, one for each repetition.

    Attributes:
        plot: the measure that is drawn.
    """

    name: str
    title: str
    plot: str
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, subject: str, figures: Mapping[str, float]) -> None:
        """Take the figures of one repetition in."""
        row = self.figures.setdefault(subject, {})
        for measure, value in figures.items():
            row.setdefault(measure, []).append(value)

    def cannot(self, subject: str, why: str) -> None:
        """Say why there are no figures of a subject."""
        self.missing[subject] = " ".join(why.split())

    def values(self, subject: str, measure: str) -> Sequence[float]:
        """Return one figure for each repetition; none if the subject could not run."""
        return self.figures.get(subject, {}).get(measure, ())

    def ratios(self, subject: str, other: str, measure: str) -> Sequence[float]:
        """Return how many times the other's figure a subject's is, within each repetition."""
        pairs = zip(self.values(subject, measure), self.values(other, measure), strict=False)
        return [mine / theirs for mine, theirs in pairs if theirs]

    def target(self, text: str, values: Iterable[float], holds: str, limit: float) -> None:
        """Compare with what was promised."""
        self.targets.append(Target(text, list(values), holds, limit))

    def as_json(self) -> Mapping[str, Any]:
        """Return everything, for a program."""
        return {
            "name": self.name,
            "title": self.title,
            "figures": self.figures,
            "missing": self.missing,
            "targets": [
                {
                    "text": each.text,
                    "values": each.values,
                    "holds": each.holds,
                    "limit": each.limit,
                    "met": each.is_met(),
                }
                for each in self.targets
            ],
            "notes": self.notes,
        }

    def as_markdown(self) -> str:
        """Return everything, for a person."""
        measures = list(dict.fromkeys(name for row in self.figures.values() for name in row))
        parts = [f"## {self.name}: {self.title}\n"]
        if measures:
            rows = [
                [subject, *(shown(row.get(name, ())) for name in measures)] for subject, row in self.figures.items()
            ]
            parts += [table(["", *measures], rows), self._plot()]
        if self.targets:
            rows = [
                [each.text, shown(each.values), f"{each.holds} {number(each.limit)}", _VERDICT[each.is_met()]]
                for each in self.targets
            ]
            parts.append(table(["target", "measured", "wanted", "met"], rows))
        parts += [f"- {subject}: {why}\n" for subject, why in self.missing.items()]
        parts += [f"{note}\n" for note in self.notes]
        return "\n".join(parts)

    def _plot(self) -> str:
        """Draw one bar for each subject."""
        medians = {
            subject: statistics.median(row[self.plot]) for subject, row in self.figures.items() if self.plot in row
        }
        if not medians:
            return ""
        width, top = max(map(len, medians)), max(medians.values()) or 1.0
        lines = [
            f"{subject:{width}} {'█' * round(_BAR * value / top) or '▏'} {number(value)}"
            for subject, value in medians.items()
        ]
        return "\n".join(["```text", self.plot, *lines, "```\n"])


_VERDICT: Final[Mapping[bool | None, str]] = {True: "yes", False: "**no**", None: "not measured"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def shown(values: Sequence[float]) -> str:
    """Write a median, with the spread if there is one."""
    if not values:
        return "-"
    low, middle, high = number(min(values)), number(statistics.median(values)), number(max(values))
    return middle if low == high else f"{middle} ({low}…{high})"


def number(value: float) -> str:
    """Write a number with three digits that matter."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write(folder: Path, name: str, tables: Sequence[Reported], about: Mapping[str, Any]) -> None:
    """Write NAME.json and NAME.md."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"python": platform.python_version(), "machine": platform.machine(), **about}
    document = {"about": facts, "benchmarks": [each.as_json() for each in tables]}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    head = f"# {name}\n\n" + ", ".join(f"{key}: {value}" for key, value in facts.items()) + "\n"
    text = "\n".join([head, *(each.as_markdown() for each in tables)])
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
