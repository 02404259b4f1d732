"""For tests of controllers: an API server, a clock that moves when told, and a way to wait until all is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from informers.testing.apiserver import APIServer, Faults, LoggedRequest
    from informers.testing.clock import FakeClock
    from informers.testing.envtest import Envtest
    from informers.testing.waiting import settle

__all__ = ["APIServer", "Envtest", "FakeClock", "Faults", "LoggedRequest", "settle"]

_HOMES = {
    "APIServer": "informers.testing.apiserver",
    "Envtest": "informers.testing.envtest",
    "FakeClock": "informers.testing.clock",
    "Faults": "informers.testing.apiserver",
    "LoggedRequest": "informers.testing.apiserver",
    "settle": "informers.testing.waiting",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
