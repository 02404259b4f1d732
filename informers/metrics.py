"""Count things by name. Counting costs one locked add and needs no library; who reads the numbers comes later.

Names and labels are fixed where a series is made, so that nothing is counted under two names. The numbers are the
process's, as it is a process that is scraped: two managers in one count together. What belongs to an object that may
end says so: `hold()` has all series of some label values, from the start with 0, for as long as anybody holds them;
and `follow()` has a number read when it is asked for, from as many owners as there are, which costs nothing in between.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, Generic, Literal, TypeVar

from informers.meta.errors import ConfigError

# From a millisecond to two minutes: a lookup in a cache, a request, a reconcile that waits for something.
SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)

Key = tuple[str, ...]
V = TypeVar("V")


class _Series(Generic[V]):
    """One name, with one value for each combination of label values."""

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - the field's word
        labels: Sequence[str],
        known: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self.known = {label: tuple(values) for label, values in (known or {}).items()}
        if _NAME.fullmatch(name) is None:
            msg = f"metric {name!r}: want letters, digits and _"
            raise ConfigError(msg)
        for label in self.labels:
            if _LABEL.fullmatch(label) is None or label in {"le", "quantile"}:
                msg = f"metric {name}: label {label!r}: want letters, digits and _, and neither le nor quantile"
                raise ConfigError(msg)
        if not self.known.keys() <= set(self.labels):
            msg = f"metric {name}: known values of {', '.join(self.known)}: want labels among {self.labels}"
            raise ConfigError(msg)
        self._lock = Lock()  # guards _values
        self._values: dict[Key, V] = {}

    def _nothing(self) -> V:
        raise NotImplementedError

    def declare(self, **labels: str) -> None:
        """Have this combination of label values from now on, with 0 until something is counted."""
        key = self._key(labels)
        with self._lock:
            if key not in self._values:
                self._values[key] = self._nothing()

    def declare_known(self, labels: Mapping[str, str]) -> None:
        """Declare these values with all known values of the other labels; nothing if some label has no known ones."""
        others = [label for label in self.labels if label not in labels]
        if not labels.keys() <= set(self.labels) or not self.known.keys() >= set(others):
            return
        for values in itertools.product(*(self.known[label] for label in others)):
            self.declare(**labels, **dict(zip(others, values, strict=True)))

    def remove(self, **labels: str) -> None:
        """Forget one combination of label values, as when the thing it counts is gone."""
        key = self._key(labels)
        with self._lock:
            self._values.pop(key, None)

    def drop(self, labels: Mapping[str, str]) -> None:
        """Forget all combinations in which these labels have these values; nothing if one of them is not ours."""
        if not labels.keys() <= set(self.labels):
            return
        wanted = [(self.labels.index(label), value) for label, value in labels.items()]
        with self._lock:
            for key in [key for key in self._values if all(key[at] == value for at, value in wanted)]:
                del self._values[key]

    def _key(self, labels: Mapping[str, str]) -> Key:
        try:
            key = tuple([labels[label] for label in self.labels])
        except KeyError as error:
            msg = f"metric {self.name}: label {error} is missing, want {', '.join(self.labels)}"
            raise ConfigError(msg) from None
        if len(labels) != len(key):
            msg = f"metric {self.name}: want labels {self.labels}, got {tuple(labels)}"
            raise ConfigError(msg)
        return key


Combine = Literal["sum", "max", "min"]
_COMBINE: Final[Mapping[Combine, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max, "min": min}


class _Numbers(_Series[float]):
    """A series of single numbers; what several owners tell under the same labels is combined."""

    combine: Combine = "sum"

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - the field's word
        labels: Sequence[str],
        known: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._followed: dict[object, Callable[[], Iterable[tuple[Key, float]]]] = {}  # guarded by _lock
        super().__init__(name, help, labels, known)

    def value(self, **labels: str) -> float:
        """Return the present number, 0 if there is none."""
        key = self._key(labels)
        return dict(self.samples()).get(key, 0.0)

    def total(self) -> float:
        """Return the sum over all label values."""
        return sum(value for _, value in self.samples())

    def samples(self) -> Sequence[tuple[Key, float]]:
        """Return every combination of label values and its number, as of one moment."""
        with self._lock:
            values = tuple(self._values.items())
            followed = tuple(self._followed.values())
        if not followed:
            return values
        found = {key: [value] for key, value in values}
        for compute in followed:
            for key, value in compute():
                found.setdefault(key, []).append(value)
        combine = _COMBINE[self.combine]
        return tuple((key, combine(numbers)) for key, numbers in found.items())

    def follow(self, compute: Callable[[], float | None], /, **labels: str) -> Callable[[], None]:
        """Have `compute()` called whenever the number is asked for; None = there is none at present.

        It is called on any thread with no lock held. Returns a function that ends that; the number goes with it.
        """
        key = self._key(labels)

        def one() -> Iterable[tuple[Key, float]]:
            value = compute()
            return () if value is None else ((key, value),)

        return self._follow(one)

    def follow_each(
        self, label: str, compute: Callable[[], Mapping[str, float]], /, **labels: str
    ) -> Callable[[], None]:
        """Have `compute()` called, as `follow()` does, for a number for each value of `label`."""
        self._key({**labels, label: ""})

        def each() -> Iterable[tuple[Key, float]]:
            return [(self._key({**labels, label: value}), number) for value, number in compute().items()]

        return self._follow(each)

    def _follow(self, compute: Callable[[], Iterable[tuple[Key, float]]]) -> Callable[[], None]:
        token = object()
        with self._lock:
            self._followed[token] = compute

        def end() -> None:
            with self._lock:
                self._followed.pop(token, None)

        return end

    def _nothing(self) -> float:
        return 0.0

    def add(self, value: float = 1.0, /, **labels: str) -> None:
        """Add `value`."""
        key = self._key(labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + value


class Counter(_Numbers):
    """A number that only grows; its name ends in `_total`."""

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - the field's word
        labels: Sequence[str],
        known: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(name, help, labels, known)
        if not name.endswith("_total"):
            msg = f"metric {name}: a counter's name ends in _total"
            raise ConfigError(msg)
        self.declare_known({})


class Gauge(_Numbers):
    """A number that goes up and down."""

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - the field's word
        labels: Sequence[str],
        combine: Combine = "sum",
    ) -> None:
        super().__init__(name, help, labels)
        self.combine = combine

    def add(self, value: float = 1.0, /, **labels: str) -> None:
        """Add `value`. Less than nothing of what was removed meanwhile is nothing: it does not come back below 0."""
        key = self._key(labels)
        with self._lock:
            if value >= 0 or key in self._values:
                self._values[key] = self._values.get(key, 0.0) + value

    def set(self, value: float, /, **labels: str) -> None:
        """Set the present number."""
        key = self._key(labels)
        with self._lock:
            self._values[key] = value


@dataclass(frozen=True, slots=True)
class Distribution:
    """What was observed: how many values up to each bucket's border, how many in all, and their sum."""

    buckets: Mapping[float, int]
    count: int
    sum: float


class Histogram(_Series[list[float]]):
    """How values are distributed over buckets, each of which counts what is not above its border."""

    # A value is the counts of the buckets, of what is above all of them, and the sum.

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - the field's word
        labels: Sequence[str],
        buckets: Sequence[float],
        known: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.buckets = tuple(float(one) for one in buckets)
        super().__init__(name, help, labels, known)
        if not self.buckets or any(not low < high for low, high in zip(self.buckets, self.buckets[1:], strict=False)):
            msg = f"metric {name}: buckets: want at least one number, each greater than the one before, got {buckets}"
            raise ConfigError(msg)
        self.declare_known({})

    def observe(self, value: float, /, **labels: str) -> None:
        """Count `value`."""
        key = self._key(labels)
        at = bisect_left(self.buckets, value)
        with self._lock:
            if (found := self._values.get(key)) is None:
                found = self._values[key] = self._nothing()
            found[at] += 1
            found[-1] += value

    def value(self, **labels: str) -> Distribution:
        """Return what was observed with these label values."""
        key = self._key(labels)
        with self._lock:
            found = list(self._values.get(key, ()))
        return self._distribution(found or self._nothing())

    def samples(self) -> Sequence[tuple[Key, Distribution]]:
        """Return every combination of label values and what was observed, as of one moment."""
        with self._lock:
            found = [(key, list(value)) for key, value in self._values.items()]
        return tuple((key, self._distribution(value)) for key, value in found)

    def _nothing(self) -> list[float]:
        return [0.0] * (len(self.buckets) + 2)

    def _distribution(self, counts: Sequence[float]) -> Distribution:
        below = 0
        buckets = {}
        for border, count in zip(self.buckets, counts, strict=False):
            below += int(count)
            buckets[border] = below
        return Distribution(buckets, below + int(counts[-2]), counts[-1])


AnySeries = Counter | Gauge | Histogram
_S = TypeVar("_S", Counter, Gauge, Histogram)

# Guards _registry and _held. A series' own lock may be taken under it, never the other way round: so that what is taken
# up again is not dropped by who lets go of it at the same moment.
_registry_lock = Lock()
_registry: dict[str, AnySeries] = {}
_held: dict[frozenset[tuple[str, str]], int] = {}


def counter(
    name: str,
    help: str,  # noqa: A002 - the field's word
    labels: Sequence[str] = (),
    *,
    known: Mapping[str, Sequence[str]] | None = None,
) -> Counter:
    """Return the counter of this name, which ends in `_total`; the same one for the same name.

    Values of labels that are `known` beforehand are there from the start, with 0. Raises `ConfigError` for a bad name, and when the name stands for another kind of series or for other labels.
    """
    return _register(Counter(name, help, labels, known))


def gauge(
    name: str,
    help: str,  # noqa: A002 - the field's word
    labels: Sequence[str] = (),
    *,
    combine: Combine = "sum",
) -> Gauge:
    """Return the gauge of this name; the same one for the same name.

    What several owners tell with the same labels is added up, or the greatest or the least of it is shown. Raises
    `ConfigError` for a bad name, and when the name stands for another kind of series or for other labels.
    """
    return _register(Gauge(name, help, labels, combine))


def histogram(
    name: str,
    help: str,  # noqa: A002 - the field's word
    labels: Sequence[str] = (),
    buckets: Sequence[float] = SECONDS,
    *,
    known: Mapping[str, Sequence[str]] | None = None,
) -> Histogram:
    """Return the histogram of this name; the same one for the same name. `buckets` are upper borders, ascending.

    Raises `ConfigError` for a bad name or bad buckets, and when the name stands for another kind of series, for other
    labels or other buckets.
    """
    made = Histogram(name, help, labels, buckets, known)
    found = _register(made)
    if found.buckets != made.buckets:
        msg = f"metric {name}: already a Histogram with buckets {found.buckets}"
        raise ConfigError(msg)
    return found


def hold(**labels: str) -> Callable[[], None]:
    """Have the series that carry these label values, from now on with 0; returns a function that lets go of them.

    That holds for counters and histograms whose other labels have known values. Once all who hold the same have let go,
    every series, of whatever name, in which these labels have these values is removed: what is counted for an informer
    goes with it, also under label values that nobody foresaw.
    """
    key = frozenset(labels.items())
    with _registry_lock:
        _held[key] = _held.get(key, 0) + 1
        for series in _registry.values():
            if not isinstance(series, Gauge):
                series.declare_known(labels)
    is_held = True

    def let_go() -> None:
        nonlocal is_held
        with _registry_lock:
            if not is_held:
                return
            is_held = False
            _held[key] -= 1
            if _held[key]:
                return
            del _held[key]
            for series in _registry.values():
                series.drop(labels)

    return let_go


def all_series() -> Iterator[AnySeries]:
    """Yield every series, in the order in which they were made."""
    with _registry_lock:
        found = tuple(_registry.values())
    yield from found


def _register(made: _S) -> _S:
    with _registry_lock:
        known = _registry.setdefault(made.name, made)
    if type(known) is not type(made) or known.labels != made.labels:
        msg = f"metric {made.name}: already a {type(known).__name__} with labels {known.labels}"
        raise ConfigError(msg)
    return known
