"""A server in memory with the transport's own methods, so that tests decide when what happens."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from informers.api.calls import Cancel, Response
from informers.api.kubeconfig import ClientConfig
from informers.clock import Clock
from informers.meta.errors import ConnectionLost, ForbiddenError, NotFoundError, UnknownKindError
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef, Resource
from informers.testing.clock import FakeClock

CONFIGMAPS = GVR("", "v1", "configmaps")


class FakeStream:
    """One watch. Tests say what comes on it, and how it ends."""

    def __init__(self, server: FakeServer, query: Mapping[str, str], silence: float, deadline: float) -> None:
        self.headers: Mapping[str, str] = {}
        self.query = query
        self.silence = silence
        self.deadline = deadline
        self.until = server.clock.monotonic() + deadline
        self.has_received = False
        self.is_closed = False
        self._server = server
        self._changed = threading.Condition()
        self._lines: deque[bytes | Exception | None] = deque()
        self._is_read_empty = False
        self._cancel: Cancel | None = None

    def begin(self, cancel: Cancel) -> None:
        cancel.attach(lambda: self.cut(ConnectionLost("cancelled")))
        self._cancel = cancel

    def send(self, line: bytes) -> None:
        self._put(line)

    def event(self, kind: str, obj: Mapping[str, Any]) -> None:
        self.send(json.dumps({"type": kind, "object": obj}).encode())

    def bookmark(self, rv: str) -> None:
        self.event("BOOKMARK", {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": rv}})

    def end_initial(self, rv: str) -> None:
        """Say that all that is there has been sent."""
        metadata = {"resourceVersion": rv, "annotations": {"k8s.io/initial-events-end": "true"}}
        self.event("BOOKMARK", {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata})

    def end(self) -> None:
        self._put(None)

    def cut(self, error: Exception) -> None:
        self._put(error)

    def wait_read(self) -> None:
        """Wait until all that was sent was taken in, and the reader waits for more."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_read_empty and not self._lines, 60)

    def _put(self, what: bytes | Exception | None) -> None:
        with self._changed:
            self._lines.append(what)
            self._changed.notify_all()

    def lines(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._is_read_empty = not self._lines
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._lines, 120)
                self._is_read_empty = False
                line = self._lines.popleft()
            if line is None:
                return
            if isinstance(line, Exception):
                raise line
            self.has_received = True
            yield line

    def close(self) -> None:
        self.is_closed = True
        if self._cancel is not None:
            self._cancel.detach()
        self._server.closed(self)


class FakeServer:
    """Objects of one resource, lists and watches of them, and a queue of faults for the next answers."""

    def __init__(self, clock: Clock) -> None:
        self.cluster = ""
        self.clock = clock
        self.config = ClientConfig(server="http://127.0.0.1:1")
        self.gvr = CONFIGMAPS
        self.kind = "ConfigMap"
        self._changed = threading.Condition(threading.RLock())
        self.rv = 100
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.times: list[float] = []
        self.accepts: list[str] = []
        self.compressed: list[bool] = []  # of lists, whether they may be
        self.streams: list[FakeStream] = []
        self.closed_streams = 0
        self.openings: deque[Callable[[FakeStream], None]] = deque()  # what is done to the next streams at once
        self.list_faults: deque[Exception | bytes | Callable[[], None]] = deque()
        self.watch_faults: deque[Exception | Callable[[], None]] = deque()
        self.get_faults: deque[Exception | Callable[[], None]] = deque()
        self.get_timeouts: list[float | None] = []
        self.forbidden: set[str] = set()  # namespaces
        self.version: bytes | Exception | Callable[[], bytes] = b'{"major":"1","minor":"33"}'

    # What is there.

    def put(self, name: str, namespace: str = "default", *, silent: bool = False, **more: Any) -> dict[str, Any]:
        """Create or change an object; open watches hear of it unless it is done silently."""
        with self._changed:
            self.rv += 1
            key = f"{namespace}/{name}" if namespace else name
            old = self.objects.get(key)
            metadata = {"name": name, "uid": f"uid-{key}", **more.pop("metadata", {})}
            if namespace:
                metadata["namespace"] = namespace
            metadata["resourceVersion"] = str(self.rv)
            obj = {"apiVersion": self.gvr.group_version, "kind": self.kind, "metadata": metadata, **more}
            self.objects[key] = obj
            if not silent:
                self._tell("ADDED" if old is None else "MODIFIED", obj)
            return obj

    def remove(self, name: str, namespace: str = "default", *, silent: bool = False) -> None:
        with self._changed:
            self.rv += 1
            obj = self.objects.pop(f"{namespace}/{name}" if namespace else name)
            if not silent:
                final = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.rv)}}
                self._tell("DELETED", final)

    def _tell(self, kind: str, obj: Mapping[str, Any]) -> None:
        for stream in self.streams:
            if not stream.is_closed:
                stream.event(kind, obj)

    def closed(self, stream: FakeStream) -> None:
        with self._changed:
            self.closed_streams += 1
            self._changed.notify_all()

    # What tests wait for.

    def wait_stream(self, count: int = 1) -> FakeStream:
        """Wait until that many watches were opened, and return the last of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.streams) >= count, 60), f"want {count} streams"
            return self.streams[count - 1]

    def wait_requests(self, verb: str, count: int) -> list[dict[str, str]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.queries(verb)) >= count, 60), (verb, self.requests)
            return self.queries(verb)

    def queries(self, verb: str) -> list[dict[str, str]]:
        with self._changed:
            return [query for found, _, query in self.requests if found == verb]

    def _log(self, verb: str, path: str, query: Sequence[tuple[str, str]]) -> None:
        with self._changed:
            self.requests.append((verb, path, dict(query)))
            self.times.append(self.clock.monotonic())
            self._changed.notify_all()

    # The transport.

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        accept: str = "application/json",
        timeout: float,
        gzip: bool = False,
        cancel: Cancel | None = None,
        retry_safe: bool = False,
        unlimited: bool = False,
        verb: str = "",
        ref: object = None,
        part: str = "",
    ) -> Response:
        if path == "/version":
            return self._version()
        if not path.endswith(f"/{self.gvr.resource}"):
            raise ForbiddenError(verb=verb, where=path)
        self._log(verb, path, query)
        self.accepts.append(accept)
        self.compressed.append(gzip)
        fault = self.list_faults.popleft() if self.list_faults else None
        if isinstance(fault, bytes):
            return Response(200, {"content-type": "application/json"}, fault)
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            if cancel is not None and (not cancel.is_cancelled()):
                fault()
            if cancel is not None and cancel.is_cancelled():
                msg = "cancelled"
                raise ConnectionLost(msg)
        with self._changed:
            inside = path.split("/namespaces/")[1].partition("/")[0] if "/namespaces/" in path else None
            if inside in self.forbidden:
                raise ForbiddenError(f"{inside} is forbidden", status=403, verb=verb)
            found = [obj for key, obj in sorted(self.objects.items()) if inside is None or key.startswith(f"{inside}/")]
            return Response(200, {"content-type": "application/json"}, self.list_body(found, str(self.rv)))

    def _version(self) -> Response:
        self._log("version", "/version", [])
        version = self.version if isinstance(self.version, bytes | Exception) else self.version()
        if isinstance(version, Exception):
            raise version
        return Response(200, {}, version)

    def list_body(self, items: Sequence[Mapping[str, Any]], rv: str, *, token: str = "") -> bytes:
        metadata = {"resourceVersion": rv, **({"continue": token} if token else {})}
        bare = [{name: value for name, value in item.items() if name not in {"kind", "apiVersion"}} for item in items]
        body = {"kind": f"{self.kind}List", "apiVersion": "v1", "metadata": metadata, "items": bare}
        return json.dumps(body).encode()

    def open_stream(
        self,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        accept: str = "",
        silence: float,
        deadline: float,
        cancel: Cancel,
        verb: str = "watch",
        ref: object = None,
        part: str = "",
    ) -> FakeStream:
        self._log(verb, path, query)
        self.accepts.append(accept)
        fault = self.watch_faults.popleft() if self.watch_faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            fault()
        stream = FakeStream(self, dict(query), silence, deadline)
        stream.begin(cancel)
        if self.openings:
            self.openings.popleft()(stream)
        with self._changed:
            self.streams.append(stream)
            self._changed.notify_all()
        return stream

    # The client.

    def get(self, ref: ObjectRef, *, timeout: float | None = None) -> Object:
        self._log("get", str(ref), [])
        self.get_timeouts.append(timeout)
        fault = self.get_faults.popleft() if self.get_faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            fault()
        with self._changed:
            obj = self.objects.get(ref.key)
        if obj is None:
            raise NotFoundError(status=404, ref=ref, verb="get")
        return Object.parse(json.dumps(obj).encode(), ref.gvr, cluster=ref.cluster)


class FakeMapper:
    """Discovery as tests want it."""

    def __init__(self) -> None:
        self.known: list[Resource] = []
        self.is_loaded = True
        self.listeners: list[Callable[[], None]] = []
        self.invalidated: list[str | None] = []
        self.followed = False
        self.on_invalidate: Callable[[], None] = lambda: None

    def has_loaded(self) -> bool:
        return self.is_loaded

    def resources(self) -> Sequence[Resource]:
        return tuple(self.known)

    def resolve(self, text: str) -> Resource:
        for each in self.known:
            if text in {each.singular, each.gvr.resource, str(each.gvr)}:
                return each
        msg = f"no such resource {text!r}"
        raise UnknownKindError(msg, text=text)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)

        def take_off() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        return take_off

    def invalidate(self, group: str | None = None) -> None:
        self.invalidated.append(group)
        self.on_invalidate()

    def change(self, *known: Resource) -> None:
        self.known = list(known)
        for listener in list(self.listeners):
            listener()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> FakeServer:
    return FakeServer(clock)


@pytest.fixture
def mapper() -> FakeMapper:
    return FakeMapper()
