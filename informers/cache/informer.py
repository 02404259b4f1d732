"""An informer: one reflector, its store, and handlers that are told after each change.

Handlers are for this framework's own controllers: they run where the socket is read, so they may do nothing but
enqueue. Whoever wants to act on a change writes a controller. A handler is told by one thread at a time, in order,
with no lock held; when it is told of a change, the store shows it already.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from cachetools import TTLCache

from informers import metrics, threads
from informers.api.calls import Cancel
from informers.api.client import Client
from informers.api.transport import Transport
from informers.cache.entries import Keeper
from informers.cache.firstsyncs import FirstSyncs
from informers.cache.gauges import shown
from informers.cache.indexer import IndexFunc
from informers.cache.listwatch import ListWatch, Transform, WatchOptions, read_item
from informers.cache.reflector import Hooks, Reflector
from informers.cache.store import Delta, Handler, Mailbox, Store, StoreWriter, is_at_least
from informers.cache.streaming import Streaming
from informers.clock import Clock, Stop
from informers.logs import Throttle, bind, fields
from informers.meta.errors import APIError, ForbiddenError, InformersError, TransportError
from informers.meta.objects import Object
from informers.meta.resources import GVR, ObjectRef
from informers.meta.selectors import parse_fields, parse_labels

_log = logging.getLogger(__name__)

_SLOW: Final = 0.1
_REFUSED: Final = 30.0
_REMEMBERED: Final = 4096
_PROGRESS: Final = 5.0

_L: Final = ("cluster", "resource")
_handler_errors = metrics.counter("informers_handler_errors_total", "Handlers that raised", _L)
_slow_handlers = metrics.counter("informers_slow_handlers_total", "Handlers that took more than 0.1 s", _L)


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerKey:
    """What makes two selections the same informer, within one cluster."""

    gvr: GVR
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False
    keep_managed_fields: bool = False
    transform: Transform | None = None
    page_size: int | None = None
    only_referred: bool = False


class Registration:
    """A handler's place at an informer, or at all informers of a set."""

    def __init__(self, informer: Informer, mailbox: Mailbox) -> None:
        self._informer = informer
        self._mailbox = mailbox

    def has_synced(self) -> bool:
        """Tell whether everything that was there at first has been shown to the handler."""
        return self._mailbox.has_synced

    def remove(self) -> None:
        """Tell the handler nothing any more. Never waits; may be done twice, and from inside a callback."""
        self._informer.take_off(self._mailbox)


class Informer:
    """Follow one resource of one cluster, in one namespace or in all, with one thread.

    Made by an `InformerFactory`, which also starts, stops and joins it.
    """

    def __init__(
        self,
        key: InformerKey,
        *,
        cluster: str,
        client: Client,
        transport: Transport,
        kind: str,
        is_served: Callable[[], bool | None],
        ask_discovery: Callable[[], None],
        first_syncs: FirstSyncs,
        streaming: Streaming,
        options: WatchOptions,
        gzip: bool,
        clock: Clock,
        on_thread_death: Callable[[BaseException], None],
    ) -> None:
        self.key = key
        self.cluster = cluster
        self._client = client
        self._clock = clock
        self._made_at = clock.monotonic()
        self._on_thread_death = on_thread_death
        self._labels = {"cluster": cluster, "resource": str(key.gvr)}
        throttle = Throttle(clock)
        self._slow = Throttle(clock, period=60.0)
        self._throttle = throttle
        self.store = Store(
            key.gvr,
            cluster=cluster,
            namespace=key.namespace,
            labels=parse_labels(key.label_selector),
            fields=parse_fields(key.field_selector),
            throttle=throttle,
        )
        self._writer = StoreWriter(self.store)
        if key.only_referred:
            self._writer.keep_only_referred()
        self._keeper = Keeper(
            key.gvr,
            cluster=cluster,
            metadata_only=key.metadata_only,
            keep_managed_fields=key.keep_managed_fields,
            transform=key.transform,
            bodies=self.store,
            throttle=throttle,
            kind=kind,
        )
        self._stop = Stop(clock)
        self._options = options
        self._listwatch = ListWatch(
            transport,
            key.gvr,
            namespace=key.namespace,
            label_selector=key.label_selector,
            field_selector=key.field_selector,
            metadata_only=key.metadata_only,
            gzip=gzip,
        )
        self._reflector = Reflector(
            self._listwatch,
            self._writer,
            self._keeper,
            cluster=cluster,
            page_size=key.page_size,
            options=options,
            first_syncs=first_syncs,
            streaming=streaming,
            hooks=Hooks(
                deliver=self._deliver,
                changed=self._tell_changed,
                is_served=is_served,
                ask_discovery=ask_discovery,
            ),
            throttle=throttle,
            clock=clock,
            stop=self._stop,
        )
        self._lock = threading.Lock()  # guards all below
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._on_change: dict[object, Callable[[], None]] = {}
        self._resyncs: dict[Mailbox, tuple[float, float]] = {}  # period, and when it is due
        self._next_check = clock.monotonic() + options.progress_check if options.progress_check else math.inf
        # Whose body the server will not give us.
        self._refused: TTLCache[str, None] = TTLCache(_REMEMBERED, _REFUSED, timer=clock.monotonic)
        self._asking: threading.Thread | None = None  # asks the server how far it is
        self._expected: tuple[str, float] | None = None  # a version that the store must pass, and until when

    # Its life.

    def start(self) -> None:
        """Start the thread, once; not after `stop`."""
        where = f"{self.cluster}/" if self.cluster else ""
        thread = threading.Thread(target=self._run, name=f"reflector/{where}{self.key.gvr.resource}", daemon=True)
        with self._lock:
            if self._thread is not None or self._is_stopped:
                return
            self._thread = thread
        threads.start(thread)

    def stop(self) -> None:
        """Ask the thread to end, and cut what it waits for; returns at once."""
        with self._lock:
            self._is_stopped = True
        self._stop.set()

    def join(self, timeout: float | None = None) -> str:
        """Wait for its threads to end; return the name of one that is still alive, else `""`."""
        with self._lock:
            running = [thread for thread in (self._thread, self._asking) if thread is not None]
        for thread in running:
            if thread.ident is not None:
                thread.join(timeout)
        return next((thread.name for thread in running if thread.is_alive()), "")

    def free(self) -> None:
        """Give the memory of the store up, once the thread has ended and nobody reads it."""
        self._writer.free()

    def nudge(self) -> None:
        """Look again now, if the resource was not served: discovery has news."""
        self._reflector.nudge()

    def _run(self) -> None:
        try:
            with bind(**self._labels), shown(self, **self._labels), threads.counted("informers"):
                self._reflector.run()
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread must end the process
            _log.exception("reflector died", extra=fields(**self._labels))
            self._on_thread_death(error)

    # What it knows.

    def gvr(self) -> GVR:
        """Return what it follows."""
        return self.key.gvr

    def stores(self) -> Sequence[Store]:
        """Return its one store; a set of informers has several."""
        return (self.store,)

    def covers(self, namespace: str) -> bool:
        """Tell whether an object of this namespace (`""` = of none) would be in its store."""
        return self.key.namespace in {"", namespace}

    def has_synced(self) -> bool:
        """Tell whether the first list is in the store and was shown to the handlers, also when it was empty."""
        return self._reflector.has_synced()

    def is_readable(self) -> bool:
        """Tell whether the first list is in the store; true a moment before `has_synced`."""
        return self.store.is_filled()

    def is_stopped(self) -> bool:
        """Tell whether it was asked to stop."""
        with self._lock:
            return self._is_stopped

    def state(self) -> str:
        """Return pending, syncing, synced (no watch open), watching, forbidden, unserved or stopped."""
        return "stopped" if self.is_stopped() else self._reflector.state()

    def problem(self) -> InformersError | None:
        """Return what went wrong last, None once it went well again."""
        return self._reflector.problem()

    def age(self) -> float:
        """Return the seconds since the server was last heard of; inf before the first time."""
        last = self._reflector.last_sign()
        return math.inf if last is None else max(0.0, self._clock.monotonic() - last)

    def silent_for(self) -> float:
        """Return the seconds since the server was last heard of, or since the start if it never was."""
        last = self._reflector.last_sign()
        return max(0.0, self._clock.monotonic() - (self._made_at if last is None else last))

    def listed(self) -> int:
        """Return how many objects the last list had."""
        return self._reflector.listed()

    def late(self) -> float:
        """Return for how many seconds longer than it may the thread has taken no step; 0 while all is well.

        To wait for a server that is slow or away is a step, as each wait has its limit.
        """
        return self._reflector.late()

    def add_index(self, name: str, func: IndexFunc) -> None:
        """Index what is there and what comes. Raises `ConfigError` on a name in use with another func."""
        self.store.add_index(name, func)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called, with no lock held, whenever sync, state or problem may have changed.

        Returns a function that takes it off, which never waits and may be called twice.
        """
        token = object()
        with self._lock:
            self._on_change[token] = callback

        def take_off() -> None:
            with self._lock:
                self._on_change.pop(token, None)

        return take_off

    # Handlers.

    def add_handler(self, handler: Handler, *, resync: float = 0.0) -> Registration:
        """Tell `handler` of everything that is there, once and as initial, then of every change, once.

        What is there is told on this thread, before this returns, unless another thread is at it. With `resync`
        (seconds, at least 1), everything is shown again each period. Raises `InformersError` when stopped.
        """
        with self._lock:
            if self._is_stopped:
                msg = f"informer of {self.key.gvr} is stopped: no handler can be added"
                raise InformersError(msg)
        mailbox = self.store.subscribe(handler)
        if resync > 0:
            with self._lock:
                self._resyncs[mailbox] = (resync, self._clock.monotonic() + _jittered(resync))
        self._drain(mailbox)
        return Registration(self, mailbox)

    def take_off(self, mailbox: Mailbox) -> None:
        """Tell this handler nothing any more; never waits."""
        self.store.unsubscribe(mailbox)
        with self._lock:
            self._resyncs.pop(mailbox, None)

    def resync(self, now: float) -> float:
        """Show everything again to the handlers that are due; return when the next is, inf if none ever is."""
        due: list[Mailbox] = []
        with self._lock:
            for mailbox, (period, at) in self._resyncs.items():
                if at <= now:
                    due.append(mailbox)
                    self._resyncs[mailbox] = (period, now + _jittered(period))
            following = min((at for _, at in self._resyncs.values()), default=math.inf)
        for mailbox in due:
            self.store.show_again(mailbox)
            self._drain(mailbox)
        return following

    def check_progress(self, now: float) -> float:
        """If it is time, ask the server how far it is, and replace a stream that has not come so far in time.

        The server is asked on a thread of its own, so that one that is slow for a kind holds up no other kind.
        Returns when to call again, inf if never (see `WatchOptions.progress_check`).
        """
        with self._lock:
            is_due, expected = now >= self._next_check, self._expected
            if is_due:
                self._next_check = now + self._options.progress_check
            following = self._next_check
        if not is_due or self.state() != "watching":
            return following
        if expected is not None and is_at_least(self.store.rv(), expected[0]) is False:
            if now >= expected[1]:
                self._expect(None)
                if self._reflector.replace_stream():
                    _log.warning("watch has fallen behind, replacing it", extra=fields(**self._labels))
            return following
        where = f"{self.cluster}/" if self.cluster else ""
        thread = threading.Thread(
            target=self._ask_how_far, args=(now,), name=f"progress/{where}{self.key.gvr.resource}", daemon=True
        )
        with self._lock:
            if self._is_stopped or (self._asking is not None and self._asking.is_alive()):
                return following
            self._asking = thread
        threads.start(thread)
        return following

    def _ask_how_far(self, now: float) -> None:
        cancel = Cancel()
        take_off = self._stop.on_set(cancel.cancel)
        try:
            present = self._listwatch.peek(cancel=cancel, whole=False, timeout=_PROGRESS).rv
        except (APIError, TransportError) as error:
            _log.debug("progress not known", extra=fields(error=type(error).__name__, **self._labels))
            self._expect(None)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread must end the process
            self._on_thread_death(error)
        else:
            self._expect((present, now + self._options.silence))
        finally:
            take_off()

    def _expect(self, expected: tuple[str, float] | None) -> None:
        with self._lock:
            self._expected = expected

    def _deliver(self) -> None:
        """Tell handlers what lies in their mailboxes, then who waits for the store to come on."""
        for mailbox in self.store.mailboxes():
            self._drain(mailbox)
        self._tell_advanced()

    def _drain(self, mailbox: Mailbox) -> None:
        store = self.store
        if not store.begin_draining(mailbox):
            return
        try:
            while batch := store.take(mailbox):
                for delta in batch:
                    if mailbox.is_removed:
                        break
                    if delta is None:
                        mailbox.has_synced = True
                        self._tell_changed()
                    else:
                        self._tell(mailbox.handler, delta)
        except BaseException:
            store.end_draining(mailbox)
            raise

    def _tell(self, handler: Handler, delta: Delta) -> None:
        started = self._clock.monotonic()
        try:
            handler(delta)
        except Exception as error:  # noqa: BLE001 - one object that a handler cannot take must not stop the others
            _handler_errors.add(1, **self._labels)
            if self._throttle.allow(("handler", handler, delta.ref)):
                _log.error(
                    "handler failed", exc_info=True, extra=fields(ref=str(delta.ref), error=type(error).__name__)
                )
        took = self._clock.monotonic() - started
        if took > _SLOW:
            _slow_handlers.add(1, **self._labels)
            if self._slow.allow(handler):
                _log.warning("slow handler", extra=fields(ref=str(delta.ref), seconds=round(took, 3)))

    def _tell_changed(self) -> None:
        with self._lock:
            callbacks = tuple(self._on_change.values())
        _call_all(callbacks)
        self._tell_advanced()

    def _tell_advanced(self) -> None:
        _call_all(self._writer.advance_callbacks())

    # Bodies only of what is referred to.

    def refer(self, ref: ObjectRef, *, timeout: float) -> None:
        """Keep the body of this object too; if only its metadata is here, read it from the server, in so many seconds.

        What cannot be read stays as it is; a lister then raises `NotSyncedError` for it, and the next reference asks
        again. What may not be read is asked for once in half a minute, however many refer to it.
        """
        if self._writer.refer(ref.key) and timeout > 0 and not self.is_stopped():
            with self._lock:
                is_refused = ref.key in self._refused
            if not is_refused:
                self._complete(ref, timeout)

    def unrefer(self, ref: ObjectRef) -> None:
        """Take one reference back; with the last one the body goes."""
        self._writer.unrefer(ref.key, self._metadata_of)

    def _complete(self, ref: ObjectRef, timeout: float) -> None:
        try:
            found = self._client.get(ref, timeout=timeout)
        except (APIError, TransportError) as error:
            if isinstance(error, ForbiddenError):
                with self._lock:
                    self._refused[ref.key] = None
            _log.debug("object not completed", extra=fields(ref=str(ref), error=type(error).__name__))
            return
        if self._writer.complete(self._keeper.keep(read_item(msgspec.Raw(found.raw)))):
            self._deliver()

    def _metadata_of(self, obj: Object) -> Object:
        return self._keeper.keep_metadata(read_item(msgspec.Raw(obj.raw)))


def _jittered(period: float) -> float:
    return period * random.uniform(0.9, 1.1)


def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:  # noqa: BLE001 - one that raises must not keep the others from hearing
            _log.exception("callback failed")
