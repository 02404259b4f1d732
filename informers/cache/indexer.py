"""Index functions and the maps they fill: object to values, value to keys.

Pure data without a lock of its own: a store calls it under its lock. What an index function says is found out
before, outside every lock, because it is somebody else's code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from informers.meta.errors import ConfigError
from informers.meta.objects import Object

IndexFunc: TypeAlias = Callable[[Object], Iterable[str]]
# For each index, the values of one object.
Values: TypeAlias = Mapping[str, Sequence[str]]

_LABEL: Final = "label:"


def built_in(name: str) -> IndexFunc | None:
    """Return the index function that goes by this name everywhere, or None.

    `namespace`; `owner-uid`, of the controlling owner; `owners`, the uids of all; `label:KEY`.
    """
    if name.startswith(_LABEL) and len(name) > len(_LABEL):
        key = name.removeprefix(_LABEL)
        return lambda obj: _label_values(obj, key)
    return _BUILT_IN.get(name)


def _label_values(obj: Object, key: str) -> Iterable[str]:
    value = obj.labels.get(key)
    return () if value is None else (value,)


def _namespaces(obj: Object) -> Iterable[str]:
    return (obj.namespace,)


def _controller_uids(obj: Object) -> Iterable[str]:
    return tuple(owner.uid for owner in obj.owners if owner.controller)


def _owner_uids(obj: Object) -> Iterable[str]:
    return tuple(owner.uid for owner in obj.owners)


_BUILT_IN: Final[Mapping[str, IndexFunc]] = MappingProxyType(
    {
        "namespace": _namespaces,
        "owner-uid": _controller_uids,
        "owners": _owner_uids,
    }
)


class Indexer:
    """Several indexes over one map of objects."""

    def __init__(self) -> None:
        # Replaced, never changed: whoever computed values can tell by identity whether there are new indexes.
        self.functions: Mapping[str, IndexFunc] = {}
        self._keys: dict[str, dict[str, set[str]]] = {}  # no value maps to an empty set
        self._values: dict[str, dict[str, Sequence[str]]] = {}  # no key maps to an empty sequence

    def add(self, name: str, function: IndexFunc) -> bool:
        """Start an index, empty; False if it is there already. `ConfigError` if it is there with another function."""
        known = self.functions.get(name)
        if known is not None:
            if known is not function:
                msg = f"index {name!r}: already there with another function"
                raise ConfigError(msg)
            return False
        self.functions = {**self.functions, name: function}
        self._keys[name] = {}
        self._values[name] = {}
        return True

    def put(self, key: str, values: Values) -> None:
        """Make these the values of `key`, in every index that `values` names."""
        for name, wanted in values.items():
            held = self._values[name].get(key, ())
            if held == wanted:
                continue
            self._take_out(name, key, held)
            if wanted:
                self._values[name][key] = wanted
                for value in wanted:
                    self._keys[name].setdefault(value, set()).add(key)

    def remove(self, key: str) -> None:
        """Forget `key` in every index."""
        for name, values in self._values.items():
            self._take_out(name, key, values.get(key, ()))

    def clear(self) -> None:
        """Forget every key; the indexes stay."""
        for name in self.functions:
            self._keys[name] = {}
            self._values[name] = {}

    def keys(self, name: str, value: str) -> Collection[str]:
        """Return the keys of the objects that have `value` in index `name`; look only while the lock is held."""
        return self._keys[name].get(value, ())

    def values(self, name: str) -> Sequence[str]:
        """Return every value that some object has in index `name`."""
        return list(self._keys[name])

    def _take_out(self, name: str, key: str, held: Sequence[str]) -> None:
        if not held:
            return
        del self._values[name][key]
        keys_by_value = self._keys[name]
        for value in held:
            keys = keys_by_value[value]
            keys.discard(key)
            if not keys:
                del keys_by_value[value]
