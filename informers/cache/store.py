"""Hold the objects of one selection, for one writer and any number of readers; a relist is swapped in whole.

A reader asks a `Store`, which never waits for the network or for anybody's code: its lock is held for dictionary
work only. What a writer changes and what handlers are to be told of it happen under one lock, so a handler that is
added at any moment gets each object that is there once, and each later change once, in order.

The surprising thing: a store can be told to keep bodies only of the objects somebody refers to (`StoreWriter.
keep_only_referred`). All others are metadata, and `lacks_body` tells of those whose body is wanted and not there yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol, TypeAlias

import msgspec
from cachetools import LRUCache

from informers import metrics
from informers.cache.indexer import Indexer, IndexFunc, Values, built_in
from informers.logs import Throttle, fields
from informers.meta.errors import ConfigError
from informers.meta.objects import JSON, Object
from informers.meta.resources import GVR, ObjectRef
from informers.meta.selectors import FieldSelector, LabelSelector

_log = logging.getLogger(__name__)
_BODIES: Final = 128

_LABELS: Final = ("cluster", "resource")
_stale_events = metrics.counter("informers_stale_events_total", "Objects older than what the store holds", _LABELS)
_index_errors = metrics.counter("informers_index_errors_total", "Index functions that raised", _LABELS)


@dataclass(frozen=True, slots=True)
class Delta:
    """One change of one object, as handlers are told of it.

    `old` is None for an addition, `new` is None for a deletion; for a resync both are the same object. `ref` is
    always set. A key whose uid changed is two deltas, a deletion and an addition.

    Attributes:
        tombstone: the deletion was found out by a list, so `old` is the last state known, not the final one.
        initial: the object was there when the handler was added, or is part of the first list.
    """

    ref: ObjectRef
    old: Object | None
    new: Object | None
    tombstone: bool = False
    initial: bool = False


Handler: TypeAlias = Callable[[Delta], None]


class Handle(Protocol):
    """What takes a handler off again."""

    def remove(self) -> None:
        """Tell the handler nothing any more; never waits."""
        ...


def is_at_least(rv: str, floor: str) -> bool | None:
    """Tell whether `rv` is as new as `floor`, of one resource of one cluster; None when they cannot be compared.

    Versions compare as positive decimal numbers without a leading zero; anything else, `""` and `"0"` too, is
    opaque. A version that cannot be compared must never hold anybody up.
    """
    if not (_is_number(rv) and _is_number(floor)):
        return None
    return len(rv) > len(floor) or (len(rv) == len(floor) and rv >= floor)


def _is_number(rv: str) -> bool:
    return rv.isascii() and rv.isdigit() and rv[0] != "0"


class Mailbox:
    """What one handler has not been told yet. A store fills it under its lock; one thread at a time empties it.

    A None among the deltas stands for "everything that was there at first has been told".
    """

    __slots__ = ("handler", "has_synced", "is_draining", "is_removed", "pending")

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.pending: deque[Delta | None] = deque()
        self.is_draining = False
        self.is_removed = False
        self.has_synced = False


class Store:
    """The objects of one selection in one cluster, to read; from any thread, and never waiting.

    Objects that it hands out stay as they are for as long as they are held; a change puts another in their place.
    """

    def __init__(
        self,
        gvr: GVR,
        *,
        cluster: str = "",
        namespace: str = "",
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
        throttle: Throttle,
    ) -> None:
        self.gvr = gvr
        self.cluster = cluster
        self.namespace = namespace
        self._labels = labels or LabelSelector()
        self._fields = fields or FieldSelector()
        self._throttle = throttle
        self._lock = Lock()  # guards all below
        self._items: dict[str, Object] = {}
        self._rv = ""
        self._is_filled = False
        self._indexer = Indexer()
        self._ready_indexes: set[str] = set()
        self._mailboxes: list[Mailbox] = []
        self._advance: dict[object, Callable[[], None]] = {}
        self._bodies: LRUCache[str, tuple[Object, Mapping[str, JSON]]] = LRUCache(_BODIES)
        self._bytes = 0
        # None: all bodies are kept. Else how many references there are to each key, none of them 0; less than 0 for
        # the moment in which one is taken back before it was given, by another thread.
        self._referred: dict[str, int] | None = None
        self._whole: set[str] = set()  # referred keys whose entry has its body
        self._missed: set[str] = set()  # referred keys that were read without their body, so that somebody waits for it
        # Entries that were completed from a newer state than handlers were told of, by what they were told.
        self._told: dict[str, Object] = {}

    # What there is.

    def get(self, key: str) -> Object | None:
        """Return the object at `namespace/name` (or `name`), or None."""
        with self._lock:
            return self._items.get(key)

    def look_up(self, key: str) -> tuple[Object | None, bool]:
        """Return as `get`, and whether the body is wanted and not there (`lacks_body`), as of one moment.

        A body that was not there is told of when it comes, by whatever way.
        """
        with self._lock:
            lacks_body = self._lacks_body_locked(key)
            if lacks_body:
                self._missed.add(key)
            return self._items.get(key), lacks_body

    def list(self, namespace: str | None = None) -> Sequence[Object]:
        """Return all objects, or those of one namespace, as of one moment and sorted by key."""
        if namespace is not None:
            return self.by_index("namespace", namespace)
        with self._lock:
            found = list(self._items.items())
        return [obj for _, obj in sorted(found, key=_key_of_pair)]

    def by_index(self, index: str, value: str) -> Sequence[Object]:
        """Return the objects with `value` in an index, as of one moment and sorted by key.

        Raises `ConfigError` for an index that nobody added and that is not built in.
        """
        self._ensure_index(index)
        with self._lock:
            found = [(key, self._items[key]) for key in self._indexer.keys(index, value)]
        return [obj for _, obj in sorted(found, key=_key_of_pair)]

    def index_values(self, index: str) -> Sequence[str]:
        """Return, sorted, each value that some object has in an index. Raises as `by_index`."""
        self._ensure_index(index)
        with self._lock:
            values = self._indexer.values(index)
        return sorted(values)

    def __len__(self) -> int:
        with self._lock:
            return len(self._items)

    def size(self) -> int:
        """Return how many bytes of JSON are held."""
        with self._lock:
            return self._bytes

    def rv(self) -> str:
        """Return how far the store has followed its resource: the RV of what was applied last, `""` before."""
        with self._lock:
            return self._rv

    def is_filled(self) -> bool:
        """Tell whether the first list is in the store, so that what is absent is known to be absent."""
        with self._lock:
            return self._is_filled

    def lacks_body(self, key: str) -> bool:
        """Tell whether the object at `key` is referred to and only its metadata is there."""
        with self._lock:
            return self._lacks_body_locked(key)

    def selects(self, obj: Object) -> bool:
        """Tell whether an object of this resource and cluster would be in this store, as far as can be told here.

        A field of a field selector is looked up in the object by its path, which is what servers do for all but
        a few.
        """
        if self.namespace and obj.namespace != self.namespace:
            return False
        if not self._labels.matches(obj.labels):
            return False
        wanted = {each.field: _text_at(obj, each.field) for each in self._fields.requirements}
        return self._fields.matches(wanted)

    def body_of(self, obj: Object) -> Mapping[str, JSON]:
        """Return the decoded body of `obj`; the last few that were read are remembered while they are current."""
        key = obj.ref.key
        with self._lock:
            known = self._bodies.get(key)
        if known is not None and known[0] is obj:
            return known[1]
        body = obj.decode()
        with self._lock:
            if self._items.get(key) is obj:
                self._bodies[key] = (obj, body)
        return body

    # Who wants to know.

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called, with no lock held, whenever `rv()` moved or the informer's state changed.

        It runs on the reflector's thread and may only signal. Returns a function that takes it off, which never
        waits and may be called twice.
        """
        token = object()
        with self._lock:
            self._advance[token] = callback

        def take_off() -> None:
            with self._lock:
                self._advance.pop(token, None)

        return take_off

    def subscribe(self, handler: Handler) -> Mailbox:
        """Begin to collect for `handler`: what is there now, then every later change. Nothing is called here."""
        mailbox = Mailbox(handler)
        with self._lock:
            if self._is_filled:
                mailbox.pending.extend(Delta(obj.ref, None, obj, initial=True) for obj in self._items.values())
                mailbox.pending.append(None)
            self._mailboxes.append(mailbox)
        return mailbox

    def unsubscribe(self, mailbox: Mailbox) -> None:
        """Stop to collect; what was collected is dropped. May be done twice, and from inside the handler."""
        with self._lock:
            mailbox.is_removed = True
            mailbox.pending.clear()
            if mailbox in self._mailboxes:
                self._mailboxes.remove(mailbox)

    def is_delivering(self) -> bool:
        """Tell whether some handler has not yet been told all, or is being told in this moment."""
        with self._lock:
            return any(mailbox.pending or mailbox.is_draining for mailbox in self._mailboxes)

    def mailboxes(self) -> Sequence[Mailbox]:
        """Return those that have something to tell and nobody who does it."""
        with self._lock:
            return [each for each in self._mailboxes if each.pending and not each.is_draining]

    def begin_draining(self, mailbox: Mailbox) -> bool:
        """Make the caller the one who tells; False when somebody is, who will then also tell what came since."""
        with self._lock:
            if mailbox.is_draining:
                return False
            mailbox.is_draining = True
            return True

    def take(self, mailbox: Mailbox) -> Sequence[Delta | None]:
        """Return what to tell next; nothing means that the caller is no longer the one who tells."""
        with self._lock:
            if not mailbox.pending:
                mailbox.is_draining = False
                return ()
            taken, mailbox.pending = mailbox.pending, deque()
            return taken

    def end_draining(self, mailbox: Mailbox) -> None:
        """Let another thread tell the rest, as the caller was thrown out of its handler."""
        with self._lock:
            mailbox.is_draining = False

    def show_again(self, mailbox: Mailbox) -> None:
        """Collect every object once more for one handler, as if it had just been updated (a resync)."""
        with self._lock:
            if not mailbox.is_removed:
                mailbox.pending.extend(Delta(obj.ref, obj, obj) for obj in self._items.values())

    # Indexes.

    def add_index(self, name: str, function: IndexFunc) -> None:
        """Index what is there and what comes by `function`; when this returns, the index is complete.

        Raises `ConfigError` when the name is in use with another function.
        """
        with self._lock:
            is_new = self._indexer.add(name, function)
            if not is_new and name in self._ready_indexes:
                return
            found = list(self._items.items())
        self._fill_index(name, function, found)

    def _ensure_index(self, name: str) -> None:
        with self._lock:
            if name in self._ready_indexes:
                return
            function = self._indexer.functions.get(name) or built_in(name)
            if function is None:
                msg = f"index {name!r} of {self.gvr}: nobody added it, found {sorted(self._indexer.functions)}"
                raise ConfigError(msg)
            self._indexer.add(name, function)
            found = list(self._items.items())
        self._fill_index(name, function, found)

    def _fill_index(self, name: str, function: IndexFunc, found: Iterable[tuple[str, Object]]) -> None:
        # From here on the writer keeps the index for what changes. Another view of the same state takes an object's
        # place without a change (its body has come, or gone), so what is there now is looked at until it stays.
        while True:
            values = [(key, obj, self._values_of(name, function, obj)) for key, obj in found]
            with self._lock:
                later: list[tuple[str, Object]] = []
                for key, obj, wanted in values:
                    now = self._items.get(key)
                    if now is obj:
                        self._indexer.put(key, {name: wanted})
                    elif now is not None:
                        later.append((key, now))
                if not later:
                    self._ready_indexes.add(name)
                    return
            found = later

    def _all_values_of(self, obj: Object, functions: Mapping[str, IndexFunc]) -> Values:
        return {name: self._values_of(name, function, obj) for name, function in functions.items()}

    def _values_of(self, name: str, function: IndexFunc, obj: Object) -> Sequence[str]:
        try:
            values = tuple(dict.fromkeys(function(obj)))
            if not all(isinstance(value, str) for value in values):
                msg = f"index {name!r}: want text for values"
                raise TypeError(msg)
            return values
        except Exception as error:  # noqa: BLE001 - one object that a function cannot take must not stop the others
            _index_errors.add(cluster=self.cluster, resource=str(self.gvr))
            if self._throttle.allow(("index", name, obj.ref)):
                _log.warning(
                    "index function failed",
                    extra=fields(index=name, ref=str(obj.ref), error=type(error).__name__),
                )
            return ()

    # What the writer's half shares.

    def _lacks_body_locked(self, key: str) -> bool:
        if self._referred is None:
            return False
        return self._is_referred_locked(key) and key in self._items and key not in self._whole

    def _is_referred_locked(self, key: str) -> bool:
        return self._referred is not None and self._referred.get(key, 0) > 0

    def _tell_locked(self, deltas: Sequence[Delta | None]) -> None:
        for mailbox in self._mailboxes:
            mailbox.pending.extend(deltas)

    def _set_locked(self, key: str, obj: Object, values: Values) -> None:
        old = self._items.get(key)
        self._bytes += len(obj.raw) - (len(old.raw) if old is not None else 0)
        self._items[key] = obj
        self._bodies.pop(key, None)
        self._indexer.put(key, values)

    def _remove_locked(self, key: str) -> Object:
        old = self._items.pop(key)
        self._bytes -= len(old.raw)
        self._bodies.pop(key, None)
        self._indexer.remove(key)
        self._whole.discard(key)
        self._missed.discard(key)
        return self._told.pop(key, old)


class Received(msgspec.Struct, frozen=True, gc=False):
    """One received object, ready to be stored: whole, and of its metadata alone if the store may want no more."""

    whole: Object
    metadata: Object | None = None


class Replacement:
    """A list being collected, to be swapped in whole. What has not changed is recognised and not built again."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self.items: dict[str, Received] = {}

    def keep_unchanged(self, key: str, uid: str, rv: str) -> bool:
        """Take the stored object over if this is it; then its bytes need not be looked at."""
        known = self._writer.unchanged(key, uid, rv)
        if known is None:
            return False
        self.items[key] = known
        return True

    def add(self, received: Received) -> None:
        """Take one object of the list in."""
        self.items[received.whole.ref.key] = received

    def remove(self, key: str) -> None:
        """Take one object out again, as it was deleted while the rest was on its way."""
        self.items.pop(key, None)

    def clear(self) -> None:
        """Forget what came so far: the list starts over."""
        self.items = {}


class StoreWriter:
    """Changes a store. One owner, the reflector, and its one thread; `complete` and the references may come from any.

    Nothing here calls anybody: what handlers are to be told lies in their mailboxes afterwards.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def replacement(self) -> Replacement:
        """Begin to collect a list."""
        return Replacement(self)

    def unchanged(self, key: str, uid: str, rv: str) -> Received | None:
        """Return the stored object if it has this uid and RV, and nothing is missing of it."""
        store = self.store
        with store._lock:
            known = store._items.get(key)
            if known is None or known.uid != uid or known.resource_version != rv:
                return None
            if store._lacks_body_locked(key) or key in store._told:
                return None
            return Received(known, known)

    def is_selective(self) -> bool:
        """Tell whether bodies are kept only of what is referred to."""
        with self.store._lock:
            return self.store._referred is not None

    def wants_body(self, key: str) -> bool:
        """Tell whether the body of this object is kept; the answer may change until it is stored."""
        store = self.store
        with store._lock:
            return store._referred is None or store._is_referred_locked(key)

    def apply(self, received: Received, *, moves_rv: bool = True) -> bool:
        """Store one added or modified object; False when the store holds a newer state, or this one already."""
        store = self.store
        key = received.whole.ref.key
        while True:
            functions = store._indexer.functions
            obj, is_whole = self._choose(key, received)
            values = store._all_values_of(obj, functions)
            with store._lock:
                if functions is not store._indexer.functions or obj is not self._choose_locked(key, received)[0]:
                    continue  # an index or a reference came in between
                return self._apply_locked(key, obj, values, is_whole=is_whole, moves_rv=moves_rv)

    def _apply_locked(self, key: str, obj: Object, values: Values, *, is_whole: bool, moves_rv: bool) -> bool:
        store = self.store
        old = store._items.get(key)
        is_news = True
        deltas: list[Delta] = []
        if old is not None:
            if is_at_least(obj.resource_version, old.resource_version) is False:
                _stale_events.add(cluster=store.cluster, resource=str(store.gvr))
                return False
            is_news = not _is_same(old, obj)
            told = store._told.pop(key, old)
            if is_news and old.uid != obj.uid:
                store._remove_locked(key)
                deltas = [Delta(told.ref, told, None, tombstone=True), Delta(obj.ref, None, obj)]
            elif is_news or told is not old:
                deltas = [Delta(obj.ref, told, obj if is_news else old)]
        else:
            deltas = [Delta(obj.ref, None, obj)]
        if is_news or (is_whole and store._lacks_body_locked(key)):
            store._set_locked(key, obj, values)
            self._mark_whole_locked(key, is_whole=is_whole)
        if self._heals_locked(key) and not deltas:
            deltas = [_look_again(store._items[key])]
        if moves_rv:
            self._move_rv_locked(obj.resource_version)
        store._tell_locked(deltas)
        return is_news

    def delete(self, obj: Object, *, moves_rv: bool = True) -> bool:
        """Take one object out, whose final state this is; False when it is about one that is not there."""
        store = self.store
        key = obj.ref.key
        with store._lock:
            old = store._items.get(key)
            if old is not None and old.uid != obj.uid:
                if is_at_least(obj.resource_version, old.resource_version) is False:
                    return False  # about a predecessor of the same name
                told = store._remove_locked(key)
                deltas = [Delta(told.ref, told, None, tombstone=True)]
            elif old is not None:
                store._remove_locked(key)
                deltas = [Delta(obj.ref, obj, None)]
            else:
                deltas = []
            if moves_rv:
                self._move_rv_locked(obj.resource_version)
            store._tell_locked(deltas)
            return bool(deltas)

    def bookmark(self, rv: str) -> None:
        """Note that everything up to `rv` is in the store."""
        with self.store._lock:
            self._move_rv_locked(rv)

    def replace(self, replacement: Replacement, rv: str, *, is_newest: bool = False) -> None:
        """Swap a whole list in: map, indexes and RV at once; then handlers are to be told, of deletions first.

        An object keeps its newer state when the list brings an older one, unless the list `is_newest`: then the
        server has been set back, say to a backup, and what we have seen no longer holds.
        """
        store = self.store
        while True:
            functions = store._indexer.functions
            with store._lock:
                chosen = {key: self._choose_locked(key, each)[0] for key, each in replacement.items.items()}
                new = [(key, obj) for key, obj in chosen.items() if store._items.get(key) is not obj]
            values = {key: (obj, store._all_values_of(obj, functions)) for key, obj in new}
            with store._lock:
                if functions is not store._indexer.functions:
                    continue
                if self._replace_locked(replacement, values, rv, is_newest=is_newest):
                    return

    def _replace_locked(
        self, replacement: Replacement, values: Mapping[str, tuple[Object, Values]], rv: str, *, is_newest: bool
    ) -> bool:
        """Swap, or return False, with nothing changed, if somebody referred to an object in the meantime."""
        store = self.store
        old_items = store._items
        chosen = {key: self._choose_locked(key, received) for key, received in replacement.items.items()}
        for key, (obj, _) in chosen.items():
            if obj is not old_items.get(key) and (key not in values or values[key][0] is not obj):
                return False
        is_first = not store._is_filled
        deletions: list[Delta] = []
        others: list[Delta] = []
        changed: list[tuple[str, Object, bool]] = []
        new_items: dict[str, Object] = {}
        for key, (obj, is_whole) in chosen.items():
            old = old_items.get(key)
            if old is not None and (
                stands := self._stands_locked(key, old, obj, is_whole=is_whole, is_newest=is_newest)
            ):
                new_items[key] = old
                if stands == "stale":
                    _stale_events.add(cluster=store.cluster, resource=str(store.gvr))
                elif (told := store._told.pop(key, None)) is not None:
                    others.append(Delta(obj.ref, told, old))
                continue
            new_items[key] = obj
            changed.append((key, obj, is_whole))
            if old is None:
                others.append(Delta(obj.ref, None, obj, initial=is_first))
                continue
            told_or_old = store._told.pop(key, old)
            if old.uid != obj.uid:
                deletions.append(Delta(told_or_old.ref, told_or_old, None, tombstone=True))
                others.append(Delta(obj.ref, None, obj))
            elif told_or_old.resource_version != obj.resource_version:
                others.append(Delta(obj.ref, told_or_old, obj))
        for key in [key for key in old_items if key not in new_items]:
            gone = store._remove_locked(key)
            deletions.append(Delta(gone.ref, gone, None, tombstone=True))
        told_keys = {delta.ref.key for delta in others} if store._missed else set()
        for key, obj, is_whole in changed:
            store._set_locked(key, obj, values[key][1])
            self._mark_whole_locked(key, is_whole=is_whole)
            if self._heals_locked(key) and key not in told_keys:
                others.append(_look_again(obj))
        store._items = new_items  # in the order of the list
        store._rv = rv
        store._is_filled = True
        store._tell_locked([*deletions, *others, None] if is_first else [*deletions, *others])
        return True

    def _stands_locked(self, key: str, old: Object, obj: Object, *, is_whole: bool, is_newest: bool) -> str:
        """Tell whether what the store holds stays: "same", or "stale" when the list brings an older state; else ""."""
        if old is obj:
            return "same"
        if old.uid != obj.uid:
            return ""
        if is_at_least(obj.resource_version, old.resource_version) is False:
            # What was read by itself, to complete it, may be newer than any list that was on its way.
            return "" if is_newest and key not in self.store._told else "stale"
        if not _is_same(old, obj):
            return ""
        # The same state: only what completes it is news.
        return "" if is_whole and self.store._lacks_body_locked(key) else "same"

    def clear(self) -> None:
        """Take everything out, as the resource is no longer served; handlers are to be told of tombstones."""
        store = self.store
        with store._lock:
            gone = [store._remove_locked(key) for key in list(store._items)]
            store._tell_locked([Delta(obj.ref, obj, None, tombstone=True) for obj in gone])

    def free(self) -> None:
        """Give the memory up, telling nobody: the informer has ended and nobody reads it.

        Objects and their store refer to each other, so they would wait for the garbage collector, which does not look
        at what was frozen after the start.
        """
        store = self.store
        with store._lock:
            store._items, store._bytes, store._rv, store._is_filled = {}, 0, "", False
            store._indexer.clear()
            store._bodies.clear()
            store._told.clear()
            store._whole.clear()
            store._missed.clear()
            store._mailboxes.clear()

    def advance_callbacks(self) -> Sequence[Callable[[], None]]:
        """Return whom to call, after handlers, when the RV or the state has moved."""
        store = self.store
        if not store._advance:  # looked at without the lock: who comes now has read the RV after adding itself
            return ()
        with store._lock:
            return tuple(store._advance.values())

    # Bodies only of what is referred to.

    def keep_only_referred(self) -> None:
        """Keep bodies only of what `refer` names; called before anything is stored."""
        with self.store._lock:
            self.store._referred = {}

    def refer(self, key: str) -> bool:
        """Count one reference to `key`; True when its object is there without its body, which is to be completed."""
        store = self.store
        with store._lock:
            if store._referred is None:
                return False
            self._count_locked(key, 1)
            return store._is_filled and store._lacks_body_locked(key)

    def unrefer(self, key: str, metadata_of: Callable[[Object], Object]) -> None:
        """Take one reference back; with the last one the body goes.

        Each is paired with a `refer`, which may still be on its way on another thread.
        """
        store = self.store
        with store._lock:
            if store._referred is None:
                return
            self._count_locked(key, -1)
            if store._is_referred_locked(key):
                return
            store._missed.discard(key)
            obj = store._items.get(key) if key in store._whole else None
        if obj is None:
            return
        reduced = metadata_of(obj)
        with store._lock:
            if not store._is_referred_locked(key) and store._items.get(key) is obj:
                self._swap_same_locked(key, reduced, is_whole=False)

    def _count_locked(self, key: str, change: int) -> None:
        referred = self.store._referred
        assert referred is not None
        count = referred.pop(key, 0) + change
        if count:
            referred[key] = count

    def _heals_locked(self, key: str) -> bool:
        """Tell, once, whether a body has come that somebody had to do without, so that handlers are to look again."""
        store = self.store
        if key not in store._missed or key not in store._whole:
            return False
        store._missed.discard(key)
        return True

    def complete(self, obj: Object) -> bool:
        """Take in the whole state of a referred object, read from the server; False when that is not wanted (any more).

        It may be newer than what handlers were told of: they learn of it when its event comes.
        """
        store = self.store
        key = obj.ref.key
        while True:
            functions = store._indexer.functions
            values = store._all_values_of(obj, functions)
            with store._lock:
                if functions is not store._indexer.functions:
                    continue
                old = store._items.get(key)
                if old is None or old.uid != obj.uid or not store._lacks_body_locked(key):
                    return False
                if not (_is_same(old, obj) or is_at_least(obj.resource_version, old.resource_version)):
                    return False
                if not _is_same(old, obj):
                    store._told.setdefault(key, old)
                store._set_locked(key, obj, values)
                self._mark_whole_locked(key, is_whole=True)
                if self._heals_locked(key):
                    store._tell_locked([_look_again(store._told.get(key, obj))])
                return True

    def _swap_same_locked(self, key: str, obj: Object, *, is_whole: bool) -> None:
        """Put another view of the same state in; values of indexes stay as they are until its next change."""
        self.store._set_locked(key, obj, {})
        self._mark_whole_locked(key, is_whole=is_whole)

    def _mark_whole_locked(self, key: str, *, is_whole: bool) -> None:
        if self.store._referred is not None and is_whole:
            self.store._whole.add(key)
        else:
            self.store._whole.discard(key)

    def _choose(self, key: str, received: Received) -> tuple[Object, bool]:
        with self.store._lock:
            return self._choose_locked(key, received)

    def _choose_locked(self, key: str, received: Received) -> tuple[Object, bool]:
        """Return what to store of a received object, and whether that is the whole of it."""
        referred = self.store._referred
        if received.metadata is None or referred is None:
            return received.whole, True
        if received.whole is received.metadata:
            return received.whole, False
        return (received.whole, True) if self.store._is_referred_locked(key) else (received.metadata, False)

    def _move_rv_locked(self, rv: str) -> None:
        if rv and is_at_least(rv, self.store._rv) is not False:
            self.store._rv = rv


def _is_same(old: Object, new: Object) -> bool:
    return old.uid == new.uid and old.resource_version == new.resource_version


def _look_again(obj: Object) -> Delta:
    """Make the delta of an object that has not changed, as far as handlers know."""
    return Delta(obj.ref, obj, obj)


def _key_of_pair(pair: tuple[str, Object]) -> str:
    return pair[0]


def _text_at(obj: Object, path: str) -> str:
    match path:
        case "metadata.name":
            return obj.name
        case "metadata.namespace":
            return obj.namespace
    value = obj.get(*path.split("."))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
