"""Put the parts together: store, kinds, faults, log and the open streams, behind one listener."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from informers.testing.apiserver import admit, exchange, statuses
from informers.testing.apiserver.calls import Call, now_text
from informers.testing.apiserver.connections import BadRequestError, Connection, Listener
from informers.testing.apiserver.faults import Fault, FaultTable, Plan
from informers.testing.apiserver.forms import Reply
from informers.testing.apiserver.kinds import Kind, Kinds
from informers.testing.apiserver.lifecycle import Lifecycle
from informers.testing.apiserver.requestlog import (
    LoggedRequest,
    RequestLog,
    check_match,
    matches,
    shown_headers,
    token_id,
)
from informers.testing.apiserver.router import HTTPRequest, route
from informers.testing.apiserver.rules import Rules
from informers.testing.apiserver.schemas import DecodeError
from informers.testing.apiserver.statuses import StatusError
from informers.testing.apiserver.storage import ChangedError, Record, Store, encode, key_of
from informers.testing.apiserver.tokens import Tokens, bearer
from informers.testing.apiserver.watches import WatchOptions, WatchStream
from informers.testing.apiserver.wire import Wire
from informers.testing.apiserver.writing import Writer

_FIRST_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")


class NotServedError(ValueError):
    """A resource is named that the server does not know."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server behaves; the command line and `APIServer` have the same names."""

    bookmark_every: float = 60.0
    history: int = 1000
    first_version: int = 1
    watch_cap: float | None = None
    watch_cache: bool = True
    aggregated_discovery: bool = True
    streaming_list: bool = True
    version: str = "1.36"


class Service:
    """The API server without its sockets: answers requests, and does behind the API what tests ask."""

    def __init__(self, settings: Settings, *, tokens: Tokens, log: RequestLog) -> None:
        self.settings = settings
        self.tokens = tokens
        self.log = log
        self.kinds = Kinds()
        self.store = Store(history=settings.history, first_version=settings.first_version)
        self.faults = FaultTable()
        self.rules = Rules()
        self.on_rotate: Callable[[bool], str] | None = None
        self.stopping = threading.Event()
        self.watch_cap = settings.watch_cap
        self.watch_cache = settings.watch_cache
        self.streaming = settings.streaming_list
        self.aggregated_discovery = settings.aggregated_discovery
        self.lifecycle = Lifecycle(self.store, self.kinds, on_served=self._end_stale_streams)
        self.writer = Writer(self.store, self.lifecycle)
        self._lock = threading.Lock()  # guards _streams, _pages and _refusal
        self._streams: set[WatchStream] = set()
        self._pages: dict[str, tuple[int, bytes]] = {}
        self._refusal: threading.Thread | None = None
        self._listener: Listener | None = None
        for name in _FIRST_NAMESPACES:
            self.put(_namespace(name))
        self.lifecycle.start(self.writer.delete_record)

    def listen(self, listener: Listener) -> None:
        """Note the listener that requests come through."""
        self._listener = listener

    def begin_close(self) -> None:
        """Let no stream and no request wait any longer; call this before the listener is closed."""
        self.stopping.set()
        self.store.close()

    def close(self) -> None:
        """End streams, waits and threads; the listener is closed by whoever opened it."""
        self.begin_close()
        self.tokens.close()
        self.lifecycle.close()
        with self._lock:
            refusal = self._refusal
        if refusal is not None:
            refusal.join()

    # --- requests ---

    def accepted(self, connection: Connection) -> bool:
        """Let a fault act on a new connection; tell whether to read from it."""
        fault = self.faults.at_accept(connection.id)
        if fault is None:
            return True
        entry = LoggedRequest(connection=connection.id, client=connection.peer, fault=fault.word)
        self.log.begin(entry)
        Wire(connection, Plan(), entry).end_before_headers(fault)
        self.log.end(entry, "fault")
        return False

    def handle(self, request: HTTPRequest, connection: Connection) -> bool:
        """Answer a request; tell whether the connection may be used for another."""
        target = route(request, self.kinds)
        headers = request.headers
        authorization = headers.get("authorization", "")
        user = self.tokens.user_of(authorization)
        entry = LoggedRequest(
            connection=connection.id,
            client=connection.peer,
            user=user or "",
            user_agent=headers.get("user-agent", ""),
            verb=target.verb,
            method=request.method,
            path=request.path,
            query=dict(request.query),
            resource=target.full_resource,
            namespace=target.namespace,
            name=target.name,
            subresource=target.subresource,
            accept=headers.get("accept", ""),
            content_type=headers.get("content-type", ""),
            request_bytes=len(request.body),
            token_id=token_id(bearer(authorization)),
            headers=shown_headers(headers),
        )
        self.log.begin(entry)
        return exchange.serve(self, request, target, entry, user, connection)

    def refuse(self, error: BadRequestError, connection: Connection) -> None:
        """Answer what is no request."""
        entry = LoggedRequest(connection=connection.id, client=connection.peer)
        self.log.begin(entry)
        if error.status == 413:
            reply = Reply.of_error(statuses.too_large(str(error)))
        else:
            reply = Reply.of_error(StatusError(error.status, "BadRequest", str(error)))
        reply.headers = [("Connection", "close")]
        self.log.answered(entry, reply.status)
        Wire(connection, Plan(), entry).reply(reply)
        connection.finish()
        self.log.end(entry, "done")

    def version(self) -> dict[str, str]:
        """Build the answer of /version."""
        major, _, minor = self.settings.version.partition(".")
        minor = minor.partition(".")[0]
        whole = self.settings.version if self.settings.version.count(".") > 1 else f"{self.settings.version}.0"
        return {
            "major": major,
            "minor": minor,
            "emulationMajor": major,
            "emulationMinor": minor,
            "gitVersion": f"v{whole}",
            "gitCommit": "",
            "gitTreeState": "",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "",
            "compiler": "python",
            "platform": "linux/amd64",
        }

    def page(self, name: str, build: Callable[[], Any]) -> bytes:
        """Return a page that depends on what is served, built again only when that has changed."""
        revision = self.kinds.revision
        with self._lock:
            found = self._pages.get(name)
        if found is not None and found[0] == revision:
            return found[1]
        body = encode(build())
        with self._lock:
            self._pages[name] = (revision, body)
        return body

    # --- streams ---

    def new_stream(self, call: Call, options: WatchOptions, connection: Connection) -> WatchStream:
        """Prepare a watch."""
        return WatchStream(
            call,
            self.store,
            options,
            connection=connection,
            faults=self.faults,
            stopping=self.stopping,
            bookmark_every=self.settings.bookmark_every,
        )

    @contextlib.contextmanager
    def open_stream(self, stream: WatchStream) -> Iterator[None]:
        """Count a stream as open for the length of a block."""
        with self._lock:
            self._streams.add(stream)
        try:
            if self.kinds.find(*_key(stream.call.kind)) is not stream.call.kind:
                stream.expire()  # its CRD changed between the request and now
            yield
        finally:
            with self._lock:
                self._streams.discard(stream)

    def streams(self) -> Sequence[WatchStream]:
        """List the open streams."""
        with self._lock:
            return tuple(self._streams)

    def close_streams(self, match: Mapping[str, Any], how: str) -> int:
        """End the open streams that match, by FIN or RST; return how many."""
        check_match(match)
        chosen = [stream for stream in self.streams() if matches(match, stream.entry)]
        for stream in chosen:
            stream.end(how)
        return len(chosen)

    def _end_stale_streams(self) -> None:
        for stream in self.streams():
            kind = stream.call.kind
            if kind.is_custom and self.kinds.find(*_key(kind)) is not kind:
                stream.expire()

    # --- faults ---

    def add_fault(self, description: Mapping[str, Any]) -> Fault:
        """Put a fault in force, on open streams too if it says so."""
        fault = self.faults.add(description)
        fault._remove = self.remove_fault  # which also wakes the streams that it holds up
        if fault.existing:
            for stream in self.streams():
                if self.faults.hits_stream(fault, stream.entry):
                    stream.strike(fault)
        return fault

    def remove_fault(self, fault_id: int) -> bool:
        """Take a fault off; tell whether there was one."""
        found = any(fault.id == fault_id for fault in self.faults.all())
        self.faults.remove(fault_id)
        self.store.wake()
        return found

    def clear_faults(self) -> None:
        """Take all faults off."""
        self.faults.clear()
        self.store.wake()

    def compact(self, resource: str = "", rv: int | None = None) -> int:
        """Expire the history of a resource, or of all; return the version before which nothing is left."""
        storage = self.find_kind(resource).storage if resource else None
        return self.store.compact(storage=storage, rv=rv)

    def refuse_connections(self, seconds: float) -> None:
        """Stop listening and end all connections; listen again after that time."""
        listener = self._listener
        if listener is None:
            return
        with self._lock:
            previous = self._refusal
        if previous is not None and previous.is_alive():
            raise ValueError("connections are being refused already")
        listener.stop_listening()

        def listen_again() -> None:
            if not self.stopping.wait(seconds):
                listener.listen_again()

        thread = threading.Thread(target=listen_again, name="apiserver/refuse", daemon=True)
        with self._lock:
            self._refusal = thread
        thread.start()

    def rotate_tls(self, *, close: bool = False) -> str:
        """Speak with a new certificate from a new CA, which is returned; `close` ends the connections there are.

        Raises `ValueError` without TLS.
        """
        if self.on_rotate is None:
            raise ValueError("the server speaks no TLS: nothing to rotate")
        return self.on_rotate(close)

    # --- behind the API ---

    def find_kind(self, resource: str) -> Kind:
        """Find a kind by its plural, with or without group: `widgets.example.com`, `secrets`."""
        name, _, group = resource.partition(".")
        kinds = [kind for kind in self.kinds.all() if kind.gvr.resource == name]
        exact = [kind for kind in kinds if kind.gvr.group == group]
        if exact or (kinds and not group):
            return (exact or kinds)[0]
        raise NotServedError(f"no such resource {resource!r}")

    def kind_of(self, obj: Mapping[str, Any]) -> Kind:
        """Find the kind of an object by its apiVersion and kind."""
        api_version, name = obj.get("apiVersion", ""), obj.get("kind", "")
        for kind in self.kinds.all():
            if kind.api_version == api_version and kind.kind == name:
                return kind
        raise NotServedError(f"no such kind {name!r} in {api_version!r}")

    def objects(self, resource: str = "", namespace: str | None = None, name: str = "") -> list[dict[str, Any]]:
        """List what is stored."""
        if resource:
            kinds = [self.find_kind(resource)]
        else:
            kinds = list({kind.storage: kind for kind in reversed(self.kinds.all())}.values())
        found: list[dict[str, Any]] = []
        for kind in kinds:
            with self.store.lock:
                records = self.store.bucket_locked(kind).snapshot_locked(self.store.rv)
            found.extend(
                _headed(kind, record.read(kind))
                for record in records
                if (namespace is None or record.namespace == namespace) and (not name or record.name == name)
            )
        return found

    def put(self, obj: Mapping[str, Any], *, silent: bool = False, complete: bool = False) -> Record:
        """Create or replace an object without asking anybody; what the server sets is set if it is missing.

        Unless it is said to be complete, it gets its kind's defaults, without which no client could change it later.
        """
        kind = self.kind_of(obj)
        while True:
            new = {**obj, "metadata": dict(obj["metadata"])}
            if not complete:
                with contextlib.suppress(DecodeError):  # what is broken on purpose stays so
                    new = admit.shape(kind, new, [])
            metadata = new["metadata"]
            if kind.namespaced:
                metadata.setdefault("namespace", "default")
            current = self.store.find(kind, key_of(metadata.get("namespace") or "", metadata["name"]))
            before = current.decoded()["metadata"] if current is not None else {}
            for name, value in (("uid", str(uuid.uuid4())), ("creationTimestamp", now_text())):
                metadata.setdefault(name, before.get(name, value))
            if kind.has_generation:
                metadata.setdefault("generation", before.get("generation", 1))
            try:
                record = self.store.write(kind, new, expected=current, silent=silent)
            except ChangedError:
                continue
            self.lifecycle.after_write(kind, record)
            return record

    def remove(self, resource: str, name: str, namespace: str = "", *, silent: bool = False) -> bool:
        """Remove an object without asking anybody, finalizers or not; tell whether there was one."""
        kind = self.find_kind(resource)
        key = key_of((namespace or "default") if kind.namespaced else "", name)
        while True:
            record = self.store.find(kind, key)
            if record is None:
                return False
            try:
                self.store.remove(kind, record, silent=silent)
            except ChangedError:
                continue
            self.lifecycle.after_removal(kind, record)
            return True

    def is_established(self, crd: str) -> bool:
        """Tell whether what a CRD defines is served."""
        return any(kind.crd == crd for kind in self.kinds.all())

    def state(self) -> dict[str, Any]:
        """Describe the server as it is now."""
        listener = self._listener
        counts = {}
        for bucket in self.store.buckets():
            with self.store.lock:
                if bucket.records:
                    counts[bucket.storage.rstrip(".")] = len(bucket.records)
        return {
            "resourceVersion": str(self.store.rv),
            "streams": Counter(stream.entry.user_agent for stream in self.streams()),
            "connections": len(listener.connections()) if listener is not None else 0,
            "objects": counts,
            "faults": [fault.to_dict() for fault in self.faults.all()],
            "time": time.time(),
        }


def _key(kind: Kind) -> tuple[str, str, str]:
    return kind.gvr.group, kind.gvr.version, kind.gvr.resource


def _headed(kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        **{k: v for k, v in obj.items() if k not in {"apiVersion", "kind"}},
    }


def _namespace(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
