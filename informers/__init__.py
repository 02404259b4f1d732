"""Follow Kubernetes resources in memory, and act on their changes in threads.

::

    API server ─watch─▶ listwatch ─event─▶ reflector ─▶ store+indices ─delta─▶ informer ─▶ controller ─ref─▶ workqueue
         ▲                                                                    (map func,              │
         │                                                                     dependency graph)      ▼
         └────────── client.patch ◀── patch ◀────────── reconcile ◀── lister ◀───────────────────── worker

Data goes forward only. The loop closes through the API server and nowhere else: a reconciler never calls
another's queue, an informer never knows a reconciler, a store never knows who reads it.

A controller declares what it looks at, and gives a function that makes one object right::

    manager = Manager(Clusters.load(), name="configmap-counter")
    namespaces = manager.lister(GVR("", "v1", "namespaces"))
    manager.add_controller("configmap-counter", reconcile, primary=GVR("", "v1", "namespaces"))
    manager.run()

`reconcile` gets a `Request` that names an object, reads listers, and writes through `manager.client`. It is not
told what happened: it looks at what is there, and a key that changes many times before a worker looks is
reconciled once. There are no event handlers to register, on purpose: whoever wants to act on a change writes a
controller, so that nothing slow runs where the socket is read.

The stages, each of which imports only those after it: `informers.runtime` (acting), `informers.cache` (a local
copy of the cluster), `informers.api` (asking the API server), `informers.meta` (the vocabulary).
`informers.testing` has an embedded API server, a harness for a real one, and a clock that moves when told.

Names are resolved on first use, so that a program loads only what it needs. Every public object may be used from
any thread unless its docstring says otherwise.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from informers import metrics
    from informers.api import patch as patches
    from informers.api.calls import Response
    from informers.api.client import Client, PatchKind
    from informers.api.clusters import Clusters
    from informers.api.fence import Fence
    from informers.api.fetch import TLSOptions, fetch
    from informers.api.kubeconfig import ClientConfig
    from informers.api.restmapper import RESTMapper
    from informers.backoff import Backoff
    from informers.cache.dependencies import DependencyGraph
    from informers.cache.indexer import IndexFunc
    from informers.cache.lister import Lister
    from informers.cache.listwatch import Selection, Transform, WatchOptions
    from informers.clock import Clock, Stop, SystemClock
    from informers.flags import FlagParser, comma_list, duration
    from informers.logs import configure_logging, fields
    from informers.meta import selectors
    from informers.meta.errors import (
        AlreadyExistsError,
        AmbiguousKindError,
        APIError,
        BadRequestError,
        Cause,
        ConfigError,
        ConflictError,
        ConnectError,
        ConnectionLost,
        ExpiredError,
        ForbiddenError,
        InformersError,
        InvalidError,
        LeadershipLostError,
        NotFoundError,
        NotLeaderError,
        NotSeenError,
        NotSyncedError,
        RequestTimeout,
        ServerError,
        StaleCacheError,
        TerminalError,
        TooManyRequestsError,
        TransportError,
        UnauthorizedError,
        UnknownKindError,
    )
    from informers.meta.objects import JSON, Object, OwnerReference, owner_reference
    from informers.meta.resources import GVK, GVR, ObjectRef, Resource
    from informers.runtime.controller import Controller, MapFunc, Predicate
    from informers.runtime.events import EventRecorder
    from informers.runtime.health import HTTPOptions
    from informers.runtime.leaderelection import LeaderElection
    from informers.runtime.manager import Manager
    from informers.runtime.reconciler import Reconcile, Request, Result

_HOMES = {
    "informers.api.client": ("Client", "PatchKind"),
    "informers.api.clusters": ("Clusters",),
    "informers.api.fence": ("Fence",),
    "informers.api.fetch": ("TLSOptions", "fetch"),
    "informers.api.kubeconfig": ("ClientConfig",),
    "informers.api.restmapper": ("RESTMapper",),
    "informers.api.calls": ("Response",),
    "informers.backoff": ("Backoff",),
    "informers.cache.dependencies": ("DependencyGraph",),
    "informers.cache.indexer": ("IndexFunc",),
    "informers.cache.lister": ("Lister",),
    "informers.cache.listwatch": ("Selection", "Transform", "WatchOptions"),
    "informers.clock": ("Clock", "Stop", "SystemClock"),
    "informers.flags": ("FlagParser", "comma_list", "duration"),
    "informers.logs": ("configure_logging", "fields"),
    "informers.meta.errors": (
        "APIError",
        "AlreadyExistsError",
        "AmbiguousKindError",
        "BadRequestError",
        "Cause",
        "ConfigError",
        "ConflictError",
        "ConnectError",
        "ConnectionLost",
        "ExpiredError",
        "ForbiddenError",
        "InformersError",
        "InvalidError",
        "LeadershipLostError",
        "NotFoundError",
        "NotLeaderError",
        "NotSeenError",
        "NotSyncedError",
        "RequestTimeout",
        "ServerError",
        "StaleCacheError",
        "TerminalError",
        "TooManyRequestsError",
        "TransportError",
        "UnauthorizedError",
        "UnknownKindError",
    ),
    "informers.meta.objects": ("JSON", "Object", "OwnerReference", "owner_reference"),
    "informers.meta.resources": ("GVK", "GVR", "ObjectRef", "Resource"),
    "informers.runtime.controller": ("Controller", "MapFunc", "Predicate"),
    "informers.runtime.events": ("EventRecorder",),
    "informers.runtime.health": ("HTTPOptions",),
    "informers.runtime.leaderelection": ("LeaderElection",),
    "informers.runtime.manager": ("Manager",),
    "informers.runtime.reconciler": ("Reconcile", "Request", "Result"),
}
_MODULES = {"metrics": "informers.metrics", "patches": "informers.api.patch", "selectors": "informers.meta.selectors"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "GVK",
    "GVR",
    "JSON",
    "APIError",
    "AlreadyExistsError",
    "AmbiguousKindError",
    "Backoff",
    "BadRequestError",
    "Cause",
    "Client",
    "ClientConfig",
    "Clock",
    "Clusters",
    "ConfigError",
    "ConflictError",
    "ConnectError",
    "ConnectionLost",
    "Controller",
    "DependencyGraph",
    "EventRecorder",
    "ExpiredError",
    "Fence",
    "FlagParser",
    "ForbiddenError",
    "HTTPOptions",
    "IndexFunc",
    "InformersError",
    "InvalidError",
    "LeaderElection",
    "LeadershipLostError",
    "Lister",
    "Manager",
    "MapFunc",
    "NotFoundError",
    "NotLeaderError",
    "NotSeenError",
    "NotSyncedError",
    "Object",
    "ObjectRef",
    "OwnerReference",
    "PatchKind",
    "Predicate",
    "RESTMapper",
    "Reconcile",
    "Request",
    "RequestTimeout",
    "Resource",
    "Response",
    "Result",
    "Selection",
    "ServerError",
    "StaleCacheError",
    "Stop",
    "SystemClock",
    "TLSOptions",
    "TerminalError",
    "TooManyRequestsError",
    "Transform",
    "TransportError",
    "UnauthorizedError",
    "UnknownKindError",
    "WatchOptions",
    "comma_list",
    "configure_logging",
    "duration",
    "fetch",
    "fields",
    "metrics",
    "owner_reference",
    "patches",
    "selectors",
]


def __getattr__(name: str) -> object:
    """Import a public name from where it lives, on first use."""
    if name in _MODULES:
        found: object = import_module(_MODULES[name])
    elif name in _HOME_OF:
        found = getattr(import_module(_HOME_OF[name]), name)
    else:
        msg = f"module 'informers' has no public name {name!r}"
        raise AttributeError(msg)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
