"""Find the resource that a text, a kind or a GVR means in one cluster, and follow what that cluster serves.

`"deploy"`, `"Deployment"`, `"deployments.v1.apps"` and `"deployments.apps"` all mean one `Resource`. Nothing is asked
before the first question. A name that is not known reloads what is served, once, before it is called unknown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote

import msgspec
from cachetools import LRUCache

from informers.api.calls import Cancel, Response
from informers.api.discovery import Discovery, Group, read_discovery
from informers.api.transport import Transport
from informers.backoff import Backoff
from informers.clock import Clock, Stop
from informers.logs import Throttle, fields
from informers.meta.errors import (
    AmbiguousKindError,
    APIError,
    ConfigError,
    InformersError,
    NotFoundError,
    NotSyncedError,
    UnknownKindError,
    printable,
)
from informers.meta.objects import JSON
from informers.meta.resources import GVK, GVR, Resource, is_version

_log = logging.getLogger(__name__)

_TIMEOUT: Final = 30.0
_PERIOD: Final = 60.0  # between reloads while nobody follows CRDs and APIServices
_SETTLE: Final = 1.0  # what is served trails the CRD that says so: look once more
_SPACING: Final = 0.2  # between reloads, however often it is invalidated
_MISS_SECONDS: Final = 10.0
_INDEX_SECONDS: Final = 30.0
_INDEX_MISS_SECONDS: Final = 3.0  # what is published trails what is served
_LONGEST_TEXT: Final = 253
_MOST_SERVED: Final = 8  # named to who asked for another version
_FAILED: Final = Backoff(1.0, 30.0)
_STALE: Final = Backoff(5.0, 60.0)


class RESTMapper:
    """What one cluster serves. Use it from any thread; its first use starts it.

    Methods raise `UnknownKindError` and `AmbiguousKindError`, and what the transport raises when nothing is known
    about the cluster yet because it cannot be asked.

    Attributes:
        on_first_use: called once, before the first load.
    """

    def __init__(self, transport: Transport, *, clock: Clock | None = None) -> None:
        self.on_first_use: Callable[[], None] = lambda: None
        self._transport = transport
        self._clock = clock or transport.clock
        self._warnings = Throttle(self._clock)
        self._loads = _SingleFlight[bool](self._clock)
        self._indexes = _SingleFlight[Mapping[str, JSON]](self._clock)
        self._texts = _SingleFlight[bytes](self._clock)
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._present = Discovery()
        self._answers: LRUCache[str, Resource] = LRUCache(4096)  # from _present
        self._has_loaded = False
        self._was_used = False
        self._is_invalid = False
        self._is_followed = False
        self._runs = 0
        self._stop: Stop | None = None
        self._failure: tuple[InformersError, float] | None = (
            None  # why the last load failed, and until when that counts
        )
        self._failures = 0
        self._unknown_until = float("-inf")  # until when a name that is not known is unknown: nothing is asked
        self._listeners: dict[object, Callable[[], None]] = {}
        self._index: tuple[Mapping[str, str], float] | None = None  # group version -> URL, and when it was read
        # by URL, which holds a hash of the document; as text, because a core document is tens of MB when it is decoded
        self._openapi: LRUCache[str, bytes] = LRUCache(8)

    @property
    def followed(self) -> bool:
        """Whether somebody calls `invalidate()` on every change; it is not reloaded every minute then."""
        with self._changed:
            return self._is_followed

    @followed.setter
    def followed(self, is_followed: bool) -> None:
        with self._changed:
            was_followed, self._is_followed = self._is_followed, is_followed
        if was_followed and not is_followed:
            self.invalidate()  # what happened meanwhile may have been missed

    def resolve(self, text: str, *, ask: bool = True) -> Resource:
        """Return what `NAME`, `NAME.VERSION`, `NAME.VERSION.GROUP` or `NAME.GROUP` means, ignoring case.

        NAME is a plural, singular, kind or short name. The second part is a version if it looks like one. The core
        group is `core`, or nothing after the last dot (`services.v1.`, `services.`). Core wins over other groups; then a plural wins
        over a singular, a kind and a short name, in this order; `extensions` loses.

        Without `ask` the server is not asked and not waited for, as it may not answer for long: it counts what is known,
        and `NotSyncedError` is raised while nothing is.

        Raises `ConfigError` for what cannot be such a text.
        """
        wanted = _parse(text)
        return self._find(text.lower(), lambda known: _resolved(known, wanted, text), ask=ask)

    def resource(self, what: GVR | GVK) -> Resource:
        """Return the resource of exactly this group, version, and plural or kind."""
        return self._find(repr(what), lambda known: _exact(known, what))

    def resources(self) -> Sequence[Resource]:
        """Return everything that is served: core first, versions in the server's order of preference."""
        return tuple(_resources_of(self._ensure_loaded()))

    def problems(self) -> Mapping[str, InformersError]:
        """Return why some group versions could not be read: `GROUP/VERSION` to the error."""
        return dict(self._ensure_loaded().problems)

    def openapi(self, group: str, version: str) -> Mapping[str, JSON]:
        """Return the OpenAPI v3 document of a group version. Raises `UnknownKindError` if there is none.

        It is read from the server once for each hash, and decoded anew each time: keep what you need of it.
        """
        url = self.openapi_hash(group, version)
        with self._changed:
            known = self._openapi.get(url)
        if known is not None:
            return _decoded(known)
        try:
            text, _ = self._texts.run(url, lambda: self._read_document(url))
        except NotFoundError as error:
            raise _no_openapi(group, version) from error
        with self._changed:
            self._openapi[url] = text
        return _decoded(text)

    def openapi_hash(self, group: str, version: str) -> str:
        """Return what is another text when the OpenAPI document of a group version is another; cheap to ask for.

        Raises `UnknownKindError` if there is none.
        """
        key = f"apis/{group}/{version}" if group else f"api/{version}"
        url = self._openapi_index(_INDEX_SECONDS).get(key) or self._openapi_index(_INDEX_MISS_SECONDS).get(key)
        if url is None:
            raise _no_openapi(group, version)
        return url

    def has_loaded(self) -> bool:
        """Tell whether it is known what the cluster serves; asks nothing."""
        with self._changed:
            return self._has_loaded

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called whenever what is served has changed; returns a function that takes it off.

        It is called on the thread that reloaded, with no lock held.
        """
        token = object()
        with self._changed:
            self._listeners[token] = listener

        def take_off() -> None:
            with self._changed:
                self._listeners.pop(token, None)

        return take_off

    def invalidate(self, group: str | None = None) -> None:  # noqa: ARG002 - one load tells of all groups
        """Have it reloaded soon: on the thread of `run()`, or by the next question if nobody runs it."""
        with self._changed:
            self._is_invalid = True
            self._index = None
            self._unknown_until = float("-inf")
            self._changed.notify_all()

    def run(self, stop: Stop) -> None:
        """Load, then reload when invalidated, every minute unless followed, and sooner while something is broken."""
        with self._changed:
            self._runs += 1
            self._stop = stop
        take_off = stop.on_set(self._wake)
        try:
            while not stop.is_set():
                with self._changed:
                    was_invalid, self._is_invalid = self._is_invalid, False
                self._reload_or_warn(stop)
                self._wait_for_work(stop, _SETTLE if was_invalid else self._pause())
        finally:
            take_off()
            with self._changed:
                self._runs -= 1
                if self._stop is stop:
                    self._stop = None

    def _wait_for_work(self, stop: Stop, seconds: float | None) -> None:
        """Wait until something was invalidated, though not for long after the last load, or `seconds` have passed."""
        now = self._clock.monotonic()
        soonest, latest = now + _SPACING, None if seconds is None else now + seconds
        with self._changed:
            while not stop.is_set():
                until = soonest if self._is_invalid else latest
                left = None if until is None else until - self._clock.monotonic()
                if left is not None and left <= 0:
                    return
                self._clock.wait(self._changed, left)

    def _pause(self) -> float | None:
        """How long until the next load, if nothing changes: None = for ever."""
        with self._changed:
            if not self._has_loaded or self._failure is not None:
                return _FAILED.delay(max(self._failures - 1, 0))
            if self._present.problems:
                self._failures += 1
                return _STALE.delay(self._failures - 1)
            self._failures = 0
            return None if self._is_followed else _PERIOD

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _find(self, key: str, find: Callable[[Discovery], Resource], *, ask: bool = True) -> Resource:
        """Answer from what is known; on a miss, reload once and try again, if that is wanted."""
        known = self._ensure_loaded() if ask else self._loaded()
        with self._changed:
            answer = self._answers.get(key) if known is self._present else None
        if answer is not None:
            return answer
        try:
            return self._remembered(key, find(known), known)
        except UnknownKindError:
            if not ask or not self._may_look_again():
                raise
        try:
            self._reload()
        except InformersError:
            with self._changed:
                self._unknown_until = float("-inf")  # nobody knows
            raise
        with self._changed:
            known = self._present
        return self._remembered(key, find(known), known)

    def _remembered(self, key: str, answer: Resource, known: Discovery) -> Resource:
        with self._changed:
            if known is self._present:
                self._answers[key] = answer
        return answer

    def _may_look_again(self) -> bool:
        """Tell whether a miss is worth a reload: one in ten seconds is, and waiting for one that is on its way.

        Raises what keeps us from it.
        """
        now = self._clock.monotonic()
        if self._loads.is_flying("discovery"):
            return True
        with self._changed:
            if now < self._unknown_until:
                return False
            self._raise_recent_failure_locked(now)
            self._unknown_until = now + _MISS_SECONDS
            return True

    def _raise_recent_failure_locked(self, now: float) -> None:
        if self._failure is not None and now < self._failure[1]:
            raise self._failure[0].with_traceback(None)

    def _ensure_loaded(self) -> Discovery:
        self._announce_use()
        with self._changed:
            has_loaded = self._has_loaded
            if not has_loaded:
                self._raise_recent_failure_locked(self._clock.monotonic())
            must_reload = has_loaded and self._is_invalid and not self._runs
            if must_reload:
                self._is_invalid = False
        if not has_loaded:
            self._reload()
        elif must_reload:
            self._reload_or_warn()
        with self._changed:
            return self._present

    def _loaded(self) -> Discovery:
        self._announce_use()
        with self._changed:
            if self._has_loaded:
                return self._present
        cluster = self._transport.cluster
        msg = f"what {f'cluster {cluster}' if cluster else 'the cluster'} serves is not known yet"
        raise NotSyncedError(msg, cluster=cluster)

    def _announce_use(self) -> None:
        with self._changed:
            is_first, self._was_used = not self._was_used, True
        if is_first:
            self.on_first_use()

    def _reload_or_warn(self, stop: Stop | None = None) -> None:
        try:
            self._reload()
        except InformersError as error:
            if not (stop is not None and stop.is_set()) and self._warnings.allow(type(error).__name__):
                _log.warning(
                    "discovery failed, trying again", extra=fields(cluster=self._transport.cluster, problem=str(error))
                )

    def _reload(self) -> None:
        """Read what is served; when several threads want that, one does it and the others wait for it."""
        has_changed, is_mine = self._loads.run("discovery", self._load)
        if not (has_changed and is_mine):
            return
        with self._changed:
            listeners = list(self._listeners.values())
        for listener in listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 - one listener must not keep the others from learning of the change
                _log.exception("listener failed")

    def _load(self) -> bool:
        """Read what is served, and tell whether it has changed."""
        with self._changed:
            known = self._present
        try:
            found = read_discovery(lambda path, accept: self._get(path, accept, "discovery"), known)
        except InformersError as error:
            with self._changed:
                self._failures += 1
                self._failure = (error, self._clock.monotonic() + _FAILED.delay(self._failures - 1))
            raise
        with self._changed:
            has_changed = found != self._present or not self._has_loaded
            self._present = found
            self._answers.clear()
            self._index = None
            self._has_loaded = True
            if self._failure is not None:
                self._failure, self._failures = None, 0
            if has_changed:
                self._index = None
        for name, problem in found.problems.items():
            if self._warnings.allow(name):
                _log.warning(
                    "a group version could not be read",
                    extra=fields(cluster=self._transport.cluster, group_version=name, problem=str(problem)),
                )
        return has_changed

    def _openapi_index(self, longest: float) -> Mapping[str, str]:
        """Return the URLs of all documents, read no longer ago than `longest` seconds."""
        now = self._clock.monotonic()
        with self._changed:
            if self._index is not None and now < self._index[1] + longest:
                return self._index[0]
        try:
            index, _ = self._indexes.run("/openapi/v3", self._read_index)
        except NotFoundError:
            index = {}
        urls = {name: url for name, url in index.items() if isinstance(url, str)}
        with self._changed:
            self._index = (urls, now)
        return urls

    def _read_index(self) -> Mapping[str, JSON]:
        # kube-apiserver calls the index text/plain.
        paths = _document_in(self._get("/openapi/v3", "application/json, */*", "openapi")).get("paths")
        found: dict[str, JSON] = {}
        for name, entry in (paths if isinstance(paths, dict) else {}).items():
            url = entry.get("serverRelativeURL") if isinstance(entry, dict) else None
            found[name] = (
                url if isinstance(url, str) and url.startswith("/") and url.isascii() else f"/openapi/v3/{quote(name)}"
            )
        return found

    def _read_document(self, url: str) -> bytes:
        response = self._get(url, "application/json", "openapi")
        _document_in(response)  # what is no document is not kept
        return response.body

    def _get(self, path: str, accept: str, verb: str) -> Response:
        cancel = Cancel()
        with self._changed:
            stop = self._stop
        take_off = stop.on_set(cancel.cancel) if stop is not None else None
        try:
            return self._transport.request(
                "GET",
                path,
                accept=accept,
                timeout=_TIMEOUT,
                cancel=cancel,
                unlimited=True,
                verb=verb,
                where=path,
                part="discovery",
            )
        finally:
            if take_off is not None:
                take_off()


_T = TypeVar("_T")


class _Flight(Generic[_T]):
    def __init__(self) -> None:
        self.result: _T | None = None
        self.error: BaseException | None = None
        self.is_done = False


class _SingleFlight(Generic[_T]):
    """Runs one function at a time for a key; who asks meanwhile gets the result of that run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._landed = threading.Condition(threading.Lock())  # guards _flights and their results
        self._flights: dict[str, _Flight[_T]] = {}

    def run(self, key: str, function: Callable[[], _T]) -> tuple[_T, bool]:
        """Return the result, and whether this thread made it; raises what the function raised."""
        with self._landed:
            flight = self._flights.get(key)
            is_mine = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight()
        if is_mine:
            self._fly(key, flight, function)
        with self._landed:
            while not flight.is_done:
                self._clock.wait(self._landed, None)
        if flight.error is not None:
            raise flight.error.with_traceback(None) if not is_mine else flight.error
        return flight.result, is_mine  # type: ignore[return-value] # without an error there is a result

    def is_flying(self, key: str) -> bool:
        """Tell whether a run is going on."""
        with self._landed:
            return key in self._flights

    def _fly(self, key: str, flight: _Flight[_T], function: Callable[[], _T]) -> None:
        try:
            flight.result = function()
        except BaseException as error:  # noqa: BLE001 - handed to everybody who waits
            flight.error = error
        with self._landed:
            flight.is_done = True
            del self._flights[key]
            self._landed.notify_all()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a text asks for; None = any."""

    name: str
    version: str | None
    group: str | None


def _parse(text: str) -> _Wanted:
    """Read `NAME`, `NAME.VERSION`, `NAME.VERSION.GROUP` or `NAME.GROUP`."""
    lower = text.lower()
    if len(text) > _LONGEST_TEXT or any(char.isspace() or not char.isprintable() for char in text):
        msg = f"{printable(text, limit=80)!r} names no resource: want at most {_LONGEST_TEXT} characters, none of them blank"
        raise ConfigError(msg)
    name, has_more, rest = lower.partition(".")
    second, has_group, after = rest.partition(".")
    version: str | None = None
    group: str | None = None
    if has_more and is_version(second):
        version = second
        group = after if has_group else None
        parts = [name, *(after.split(".") if after else [])]
    elif has_more:
        group = rest
        parts = [name, *(rest.split(".") if rest else [])]
    else:
        parts = [name]
    if not all(parts):
        msg = f"{printable(text, limit=80)!r} names no resource: want NAME, NAME.VERSION, NAME.VERSION.GROUP or NAME.GROUP"
        raise ConfigError(msg)
    return _Wanted(name, version, "" if group == "core" else group)


def _resolved(known: Discovery, wanted: _Wanted, text: str) -> Resource:
    matches: list[tuple[int, Resource]] = []
    for group in known.groups:
        if wanted.group is None or group.name.lower() == wanted.group:
            matches += _best_in_group(group, wanted)
    core = [match for match in matches if not match[1].gvr.group]
    others = [match for match in matches if match[1].gvr.group != "extensions"]
    found = _best(core or others or matches)
    if not found:
        raise _unknown(known, wanted, text)
    if len(found) > 1:
        candidates = sorted(str(each.gvr) for each in found)
        msg = f"{printable(text, limit=80)!r} can mean {' or '.join(candidates)}: name one of them in full"
        raise AmbiguousKindError(msg, text=text, candidates=candidates)
    return found[0]


def _best_in_group(group: Group, wanted: _Wanted) -> Sequence[tuple[int, Resource]]:
    """The resources of a group that match best, each in its preferred version: not stale if possible."""
    matches: dict[str, tuple[int, Resource]] = {}
    for version in sorted(group.versions, key=lambda each: each.is_stale):
        if wanted.version is not None and version.version.lower() != wanted.version:
            continue
        for resource in version.resources:
            how = _how_it_matches(resource, wanted.name)
            if how is not None and resource.gvr.resource not in matches:
                matches[resource.gvr.resource] = (how, resource)
    return list(matches.values())


def _how_it_matches(resource: Resource, name: str) -> int | None:
    """0 = plural, 1 = singular, 2 = kind, 3 = short name, None = not at all."""
    if resource.gvr.resource.lower() == name:
        return 0
    if resource.singular.lower() == name:
        return 1
    if resource.kind.lower() == name:
        return 2
    return 3 if any(short.lower() == name for short in resource.short_names) else None


def _best(matches: Sequence[tuple[int, Resource]]) -> list[Resource]:
    best = min((how for how, _ in matches), default=0)
    return [resource for how, resource in matches if how == best]


def _exact(known: Discovery, what: GVR | GVK) -> Resource:
    for resource in _resources_of(known):
        if what in (resource.gvr, resource.gvk):
            return resource
    msg = f"the cluster serves no {printable(str(what), limit=300)}{_reservations(known)}"
    raise UnknownKindError(msg, text=str(what))


def _unknown(known: Discovery, wanted: _Wanted, text: str) -> UnknownKindError:
    if served := _served_otherwise(known, wanted):
        msg = f"no such resource {printable(text, limit=80)!r}; served are {', '.join(served)}{_reservations(known)}"
        return UnknownKindError(msg, text=text, candidates=served)

    from difflib import get_close_matches  # seldom needed

    names: dict[str, str] = {}
    for resource in _resources_of(known):
        long = f"{resource.gvr.resource}.{resource.gvr.group}" if resource.gvr.group else resource.gvr.resource
        for name in (resource.gvr.resource, resource.singular, *resource.short_names):
            names.setdefault(name.lower(), long)
    near = list(dict.fromkeys(names[name] for name in get_close_matches(wanted.name, names, n=6)))[:3]
    hint = f"; near names: {', '.join(near)}" if near else ""
    msg = f"no such resource {printable(text, limit=80)!r}{hint}{_reservations(known)}"
    return UnknownKindError(msg, text=text, candidates=near)


def _served_otherwise(known: Discovery, wanted: _Wanted) -> Sequence[str]:
    """Name what is called so and is served in other versions than was asked for."""
    if wanted.version is None:
        return ()
    groups = [group for group in known.groups if wanted.group is None or group.name.lower() == wanted.group]
    versions = [version for group in groups for version in group.versions]
    found = [
        each for version in versions for each in version.resources if _how_it_matches(each, wanted.name) is not None
    ]
    return [str(each.gvr) for each in found[:_MOST_SERVED]]


def _reservations(known: Discovery) -> str:
    names = sorted(known.problems)
    return f" (not readable now: {', '.join(printable(name, limit=100) for name in names[:5])})" if names else ""


def _resources_of(known: Discovery) -> Iterable[Resource]:
    for group in known.groups:
        for version in group.versions:
            yield from version.resources


def _no_openapi(group: str, version: str) -> UnknownKindError:
    name = f"{group}/{version}" if group else version
    return UnknownKindError(f"the cluster has no OpenAPI document of {printable(name, limit=300)}", text=name)


def _decoded(text: bytes) -> Mapping[str, JSON]:
    document: Mapping[str, JSON] = msgspec.json.decode(text, type=dict)
    return document


def _document_in(response: Response) -> Mapping[str, JSON]:
    try:
        return _decoded(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        msg = "the answer is not a JSON document"
        raise APIError(msg, status=response.status, verb="openapi", where="/openapi/v3") from None
