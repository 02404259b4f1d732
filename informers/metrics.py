"""Count things by name. Counting costs one locked add and needs no library; who reads the numbers comes later.

Names and labels are fixed where a counter is made, so that nothing is counted under two names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TypeVar

from informers.meta.errors import ConfigError


class _Series:
    """One name, with one number for each combination of label values."""

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:  # noqa: A002 - the field's word
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self._lock = Lock()  # guards _values
        self._values: dict[tuple[str, ...], float] = {}

    def value(self, **labels: str) -> float:
        """Return the present number, 0 if nothing was counted yet."""
        key = self._key(labels)
        with self._lock:
            return self._values.get(key, 0.0)

    def total(self) -> float:
        """Return the sum over all label values."""
        with self._lock:
            return sum(self._values.values())

    def samples(self) -> Sequence[tuple[tuple[str, ...], float]]:
        """Return every combination of label values and its number, as of one moment."""
        with self._lock:
            return tuple(self._values.items())

    def remove(self, **labels: str) -> None:
        """Forget one combination of label values, as when the thing it counts is gone."""
        key = self._key(labels)
        with self._lock:
            self._values.pop(key, None)

    def add(self, value: float = 1.0, /, **labels: str) -> None:
        """Add `value`."""
        key = self._key(labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + value

    def _key(self, labels: dict[str, str]) -> tuple[str, ...]:
        try:
            key = tuple(labels[label] for label in self.labels)
        except KeyError as error:
            msg = f"metric {self.name}: label {error} is missing, want {', '.join(self.labels)}"
            raise ConfigError(msg) from None
        if len(labels) != len(key):
            msg = f"metric {self.name}: want labels {self.labels}, got {tuple(labels)}"
            raise ConfigError(msg)
        return key


class Counter(_Series):
    """A number that only grows."""


class Gauge(_Series):
    """A number that goes up and down."""

    def set(self, value: float, /, **labels: str) -> None:
        """Set the present number."""
        key = self._key(labels)
        with self._lock:
            self._values[key] = value


_S = TypeVar("_S", bound=_Series)

_registry_lock = Lock()  # guards _registry
_registry: dict[str, _Series] = {}


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:  # noqa: A002 - the field's word
    """Return the counter of this name; the same one for the same name.

    Raises `ConfigError` when the name stands for another kind of series or for other labels.
    """
    return _register(Counter(name, help, labels))


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:  # noqa: A002 - the field's word
    """Return the gauge of this name; the same one for the same name.

    Raises `ConfigError` when the name stands for another kind of series or for other labels.
    """
    return _register(Gauge(name, help, labels))


def all_series() -> Iterator[_Series]:
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
