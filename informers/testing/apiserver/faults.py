"""Break things on demand: which fault acts on which request, how often, and until when.

A fault either decides what happens to a request (the oldest that matches and has times left wins) or shapes
how it is answered (all of these combine). What each word does stands where it is done: in `exchange.py` for
answers and in `watches.py` for streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, Unpack

from informers.testing.apiserver.requestlog import MATCH_FIELDS, LoggedRequest, MatchError, check_match, matches
from informers.testing.apiserver.rules import Rule

if TYPE_CHECKING:
    from types import TracebackType

    from informers.testing.apiserver.service import Service

Place = Literal["accept", "request", "headers", "stream"]

# word → the parameters it knows
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "FREEZE": frozenset({"at"}),
    "RST": frozenset({"at"}),
    "FIN": frozenset({"at", "clean"}),
    "TRUNC": frozenset({"bytes"}),
    "SPLIT": frozenset({"every", "at"}),
    "SLOW": frozenset({"bps"}),
    "DELAY": frozenset({"seconds", "what"}),
    "STATUS": frozenset({"code", "reason", "message", "headers", "body"}),
    "EV": frozenset({"code", "reason", "message", "bare"}),
    "COMPACT": frozenset({"rv"}),
    "LAG": frozenset({"rv", "events", "mode"}),
    "NOBM": frozenset(),
    "NOEND": frozenset(),
    "BLANK": frozenset({"text"}),
    "HUGE": frozenset({"mb"}),
    "POISON": frozenset({"line", "item"}),
    "TABLE": frozenset(),
    "META": frozenset(),
    "PLAIN": frozenset(),
    "HOLDHDR": frozenset({"seconds"}),
    "IGNORE": frozenset({"params"}),
    "SHORT": frozenset(),
    "CONFLICT": frozenset({"committed"}),
    "DROPREPLY": frozenset(),
    "DENY": frozenset({"message"}),
    "NOCACHE": frozenset(),
}
_SHAPING: Final = frozenset({
    "SPLIT", "SLOW", "DELAY", "NOBM", "NOEND", "BLANK", "HOLDHDR", "PLAIN", "IGNORE", "TABLE", "META", "LAG",
    "NOCACHE", "COMPACT",
})  # fmt: skip
_CONTROL: Final = frozenset({"match", "do", "times", "skip", "for", "existing", "at_event"})
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "TRUNC": ("bytes",), "SLOW": ("bps",), "DELAY": ("seconds",), "STATUS": ("code",), "IGNORE": ("params",),
}  # fmt: skip
_WATCH: Final = frozenset({"watch"})
_LIST: Final = frozenset({"list"})
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_READS: Final = frozenset({"get", "list", "watch"})
_VERBS_OF: Final[Mapping[str, frozenset[str]]] = {
    "EV": _WATCH, "SHORT": _WATCH, "NOBM": _WATCH, "NOEND": _WATCH, "BLANK": _WATCH, "LAG": _READS, "NOCACHE": _LIST,
    "CONFLICT": _WRITES, "DROPREPLY": _WRITES,
}  # fmt: skip
_PLACES: Final = ("accept", "request", "headers", "stream")


class FaultError(ValueError):
    """A fault is described with words, fields or values that do not exist."""


@dataclass(eq=False)
class Fault:
    """One fault: what it acts on, what it does, how often it still may. A context manager that removes it at the end."""

    id: int
    word: str
    match: Mapping[str, Any]
    parameters: Mapping[str, Any]
    times: int | None
    skip: int
    until: float | None
    existing: bool
    at_event: int | None
    hits: int = 0
    _removed: bool = False
    _remove: Callable[[int], object] = field(default=lambda _id: None, repr=False)

    @property
    def is_shaping(self) -> bool:
        """Tell whether it combines with others."""
        return self.word in _SHAPING

    @property
    def place(self) -> str:
        """Where it acts: `accept`, `request`, `headers`, `stream`, or `""` for the word's own place."""
        return str(self.parameters.get("at", "")) if self.word in {"FREEZE", "RST", "FIN"} else ""

    def is_active(self) -> bool:
        """Tell whether it has been neither removed nor run out of time."""
        return not self._removed and (self.until is None or time.monotonic() < self.until)

    def remove(self) -> None:
        """Take it off; what it has done stays done."""
        self._remove(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter."""
        return self.parameters.get(name, default)

    def to_dict(self) -> dict[str, Any]:
        """Build what the control API shows."""
        shown: dict[str, Any] = {"id": self.id, "do": self.word, "match": dict(self.match), **self.parameters}
        if self.times is not None:
            shown["times"] = self.times
        if self.skip:
            shown["skip"] = self.skip
        if self.until is not None:
            shown["for"] = max(0.0, self.until - time.monotonic())
        if self.existing:
            shown["existing"] = True
        if self.at_event is not None:
            shown["at_event"] = self.at_event
        return {**shown, "hits": self.hits}


@dataclass(slots=True)
class Plan:
    """What the faults do to one request: at most one that decides, and those that shape."""

    decisive: Fault | None = None
    shaping: list[Fault] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Tell whether the request is served as if there were no faults."""
        return self.decisive is None and not self.shaping

    def shape(self, word: str) -> Fault | None:
        """Return the oldest shaping fault with this word that is still in force."""
        for fault in self.shaping:
            if fault.word == word and fault.is_active():
                return fault
        return None

    def decides(self, *words: str) -> Fault | None:
        """Return the deciding fault if it has one of these words."""
        return self.decisive if self.decisive is not None and self.decisive.word in words else None

    def takes(self, *places: str) -> Fault | None:
        """Return the deciding fault if it is FREEZE, RST or FIN at one of these places."""
        fault = self.decides("FREEZE", "RST", "FIN")
        return fault if fault is not None and fault.place in places else None


class FaultTable:
    """The faults in force."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _faults, _next and the counters of each fault
        self._faults: list[Fault] = []
        self._next = 1

    def add(self, description: Mapping[str, Any]) -> Fault:
        """Put a fault in force. Raises `FaultError` naming what is wrong with the description."""
        fault = self._parse(description)
        with self._lock:
            fault.id = self._next
            self._next += 1
            self._faults.append(fault)
        return fault

    def _parse(self, description: Mapping[str, Any]) -> Fault:
        word = str(description.get("do"))
        if word not in _WORDS:
            raise FaultError(f"unknown word {word!r}: want one of {', '.join(_WORDS)}")
        unknown = sorted(set(description) - _CONTROL - _WORDS[word])
        if unknown:
            raise FaultError(f"unknown fields for {word}: {', '.join(unknown)}")
        missing = [name for name in _NEEDED.get(word, ()) if name not in description]
        if missing:
            raise FaultError(f"{word} needs {', '.join(missing)}")
        wanted = dict(description.get("match") or {})
        try:
            check_match(wanted)
        except MatchError as error:
            raise FaultError(str(error)) from error
        parameters = {name: description[name] for name in _WORDS[word] if description.get(name) is not None}
        _check_parameters(word, parameters, wanted)
        seconds = description.get("for")
        return Fault(
            id=0,
            word=word,
            match=wanted,
            parameters=parameters,
            times=_count(description, "times"),
            skip=_count(description, "skip") or 0,
            until=None if seconds is None else time.monotonic() + float(seconds),
            existing=bool(description.get("existing", False)),
            at_event=_count(description, "at_event"),
            _remove=self.remove,
        )

    def all(self) -> Sequence[Fault]:
        """List the faults, oldest first."""
        with self._lock:
            return tuple(self._faults)

    def remove(self, fault_id: int) -> None:
        """Take one off; nothing happens when it is gone."""
        with self._lock:
            for fault in self._faults:
                if fault.id == fault_id:
                    fault._removed = True
            self._faults = [fault for fault in self._faults if fault.id != fault_id]

    def clear(self) -> None:
        """Take all off."""
        with self._lock:
            for fault in self._faults:
                fault._removed = True
            self._faults = []

    def plan(self, entry: LoggedRequest) -> Plan:
        """Decide what happens to a request, and count it."""
        plan = Plan()
        if not self._faults:
            return plan
        with self._lock:
            for fault in self._faults:
                if not _concerns(fault, entry) or not matches(fault.match, entry):
                    continue
                if (fault.is_shaping or plan.decisive is None) and _use(fault):
                    if fault.is_shaping:
                        plan.shaping.append(fault)
                    else:
                        plan.decisive = fault
        return plan

    def at_accept(self, connection: int) -> Fault | None:
        """Return the fault that acts on a connection before anything is read from it."""
        if not self._faults:
            return None
        entry = LoggedRequest(connection=connection)
        with self._lock:
            for fault in self._faults:
                if fault.place == "accept" and matches(fault.match, entry) and _use(fault):
                    return fault
        return None

    def hits_stream(self, fault: Fault, entry: LoggedRequest) -> bool:
        """Tell whether a new fault acts on a stream that is open already, and count it."""
        with self._lock:
            return _concerns(fault, entry) and matches(fault.match, entry) and _use(fault)


def _concerns(fault: Fault, entry: LoggedRequest) -> bool:
    """Tell whether a word has a meaning for this request, so that its `times` are not used up by others."""
    if fault.place == "accept":
        return False
    verbs = _VERBS_OF.get(fault.word)
    if fault.word == "POISON":
        verbs = _WATCH if "line" in fault.parameters else _LIST
    elif fault.word == "TRUNC" or fault.place == "stream" or fault.at_event is not None:
        # these are about streams, unless the match says that it means something else
        verbs = None if fault.match.get("verb") else _WATCH
    elif fault.word == "DELAY" and fault.get("what") == "events":
        verbs = _WATCH
    return verbs is None or entry.verb in verbs


def _use(fault: Fault) -> bool:
    """Count a request that matches; tell whether the fault acts on it. Needs the table's lock."""
    if not fault.is_active() or (fault.times is not None and fault.hits >= fault.times):
        return False
    if fault.skip > 0:
        fault.skip -= 1
        return False
    fault.hits += 1
    return True


def _check_parameters(word: str, parameters: Mapping[str, Any], match: Mapping[str, Any]) -> None:
    place = parameters.get("at")
    if word in {"FREEZE", "RST", "FIN"} and place is not None:
        if place not in _PLACES:
            raise FaultError(f"{word}: at is {place!r}: want one of {', '.join(_PLACES)}")
        if place == "accept" and set(match) - {"connection"}:
            raise FaultError(f"{word} at accept: nothing but the connection is known then, so match only that")
    if word == "SPLIT" and ("every" in parameters) == ("at" in parameters):
        raise FaultError("SPLIT needs every or at")
    if word == "DELAY" and parameters.get("what", "answer") not in {"answer", "events"}:
        raise FaultError(f"DELAY: what is {parameters['what']!r}: want answer or events")
    if word == "LAG":
        if ("rv" in parameters) == ("events" in parameters):
            raise FaultError("LAG needs rv or events")
        if parameters.get("mode", "stale") not in {"stale", "toolarge"}:
            raise FaultError(f"LAG: mode is {parameters['mode']!r}: want stale or toolarge")
    if word == "POISON" and ("line" in parameters) == ("item" in parameters):
        raise FaultError("POISON needs line or item")
    for name in ("bytes", "every", "bps", "code", "seconds", "mb", "rv", "events"):
        if name in parameters:
            try:
                valid = float(parameters[name]) >= 0
            except (TypeError, ValueError):
                valid = False
            if not valid or (name in {"every", "bps"} and float(parameters[name]) < 1):
                raise FaultError(f"{word}: {name} is {parameters[name]!r}: want a number that makes sense")


def _count(description: Mapping[str, Any], name: str) -> int | None:
    value = description.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FaultError(f"{name} is {value!r}: want a whole number")
    return value


class Common(TypedDict, total=False):
    """What every word takes: what it acts on, directly or as `match`, and how often."""

    match: Mapping[str, Any]
    resource: str | Sequence[str]
    verb: str | Sequence[str]
    subresource: str
    namespace: str
    name: str
    user: str
    client: str
    path: str
    query: Mapping[str, str | None]
    connection: int
    times: int
    skip: int
    for_: float
    existing: bool
    at_event: int


class Faults:
    """The vocabulary of faults, a method for each word in lower case.

    Every method takes what to act on (`resource=`, `verb=`, …, or `match=`), `times`, `skip`, `for_` (seconds),
    `existing` and `at_event`, and returns the `Fault`: its `hits` count, `remove()` takes it off, and as a context
    manager it is in force for a block.

    Where `freeze`, `rst` and `fin` act (`at`): `accept` before anything is read from a connection; `request` when the
    request has been read and nothing done; `headers` when the work is done and nothing of the answer sent (the default
    for requests); `stream` after the headers (the default for watches). Words that are about streams leave other
    requests alone, unless the match names a verb.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def add(self, description: Mapping[str, Any]) -> Fault:
        """Put a fault in force that is described as for the control API."""
        return self._service.add_fault(description)

    def all(self) -> Sequence[Fault]:
        """List the faults in force, oldest first."""
        return self._service.faults.all()

    def clear(self) -> None:
        """Take all faults off."""
        self._service.clear_faults()

    def freeze(self, *, at: Place | None = None, **common: Unpack[Common]) -> Fault:
        """Keep the connection open, read and send nothing more on it."""
        return self._do("FREEZE", common, at=at)

    def rst(self, *, at: Place | None = None, **common: Unpack[Common]) -> Fault:
        """Abort the connection."""
        return self._do("RST", common, at=at)

    def fin(self, *, at: Place | None = None, clean: bool | None = None, **common: Unpack[Common]) -> Fault:
        """Close the connection: after the final chunk, or (`clean=False`) in the middle of one."""
        return self._do("FIN", common, at=at, clean=clean)

    def trunc(self, *, bytes: int, **common: Unpack[Common]) -> Fault:  # noqa: A002 - the vocabulary's word
        """Send that many bytes of the next line, then close."""
        return self._do("TRUNC", common, bytes=bytes)

    def split(self, *, every: int | None = None, at: int | None = None, **common: Unpack[Common]) -> Fault:
        """Send each so many bytes, or what is before and after one cut, in a chunk and a segment of its own."""
        return self._do("SPLIT", common, every=every, at=at)

    def slow(self, *, bps: int, **common: Unpack[Common]) -> Fault:
        """Limit the rate of the body, in bytes a second."""
        return self._do("SLOW", common, bps=bps)

    def delay(self, *, seconds: float, what: Literal["answer", "events"] = "answer", **common: Unpack[Common]) -> Fault:
        """Hold the answer, or each event, back."""
        return self._do("DELAY", common, seconds=seconds, what=what)

    def status(
        self,
        *,
        code: int,
        reason: str | None = None,
        message: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        **common: Unpack[Common],
    ) -> Fault:
        """Answer that instead of working."""
        return self._do("STATUS", common, code=code, reason=reason, message=message, headers=headers, body=body)

    def ev(
        self,
        *,
        code: int = 500,
        reason: str | None = None,
        message: str | None = None,
        bare: bool = False,
        **common: Unpack[Common],
    ) -> Fault:
        """Send an in-stream ERROR and end the stream; `bare` leaves code and reason out."""
        return self._do("EV", common, code=code, reason=reason, message=message, bare=bare)

    def compact(self, *, rv: int | None = None, resource: str = "") -> int:
        """Expire everything before now, or `rv`, at once; return that version.

        To expire at a later request, `add({"do": "COMPACT", …})`.
        """
        return self._service.compact(resource, rv)

    def lag(
        self,
        *,
        rv: int | None = None,
        events: int | None = None,
        mode: Literal["stale", "toolarge"] = "stale",
        **common: Unpack[Common],
    ) -> Fault:
        """Serve a replica that knows only up to a version, or lags so many events behind."""
        return self._do("LAG", common, rv=rv, events=events, mode=mode)

    def nobm(self, **common: Unpack[Common]) -> Fault:
        """Send no bookmarks."""
        return self._do("NOBM", common)

    def noend(self, **common: Unpack[Common]) -> Fault:
        """Leave the annotation off the bookmark that ends the initial events."""
        return self._do("NOEND", common)

    def blank(self, *, text: str | None = None, **common: Unpack[Common]) -> Fault:
        """Send blank lines between events."""
        return self._do("BLANK", common, text=text)

    def huge(self, *, mb: float = 1.0, **common: Unpack[Common]) -> Fault:
        """Pad the next object that is sent to that size."""
        return self._do("HUGE", common, mb=mb)

    def poison(self, *, line: str | None = None, item: object = None, **common: Unpack[Common]) -> Fault:
        """Send that raw line, or put that raw item into a list."""
        return self._do("POISON", common, line=line, item=item)

    def table(self, **common: Unpack[Common]) -> Fault:
        """Answer a Table although it was not asked for."""
        return self._do("TABLE", common)

    def meta(self, **common: Unpack[Common]) -> Fault:
        """Answer full objects although only metadata was asked for."""
        return self._do("META", common)

    def plain(self, **common: Unpack[Common]) -> Fault:
        """Answer without chunks: the body ends with the connection."""
        return self._do("PLAIN", common)

    def holdhdr(self, *, seconds: float = 3600.0, **common: Unpack[Common]) -> Fault:
        """Send the response headers only with the first event, or after that time."""
        return self._do("HOLDHDR", common, seconds=seconds)

    def ignore(self, *params: str, **common: Unpack[Common]) -> Fault:
        """Act as if these query parameters had not been sent."""
        return self._do("IGNORE", common, params=list(params))

    def short(self, **common: Unpack[Common]) -> Fault:
        """End each watch at once, cleanly."""
        return self._do("SHORT", common)

    def conflict(self, *, committed: bool = False, **common: Unpack[Common]) -> Fault:
        """Answer 409 to a write, after doing it or not."""
        return self._do("CONFLICT", common, committed=committed)

    def dropreply(self, **common: Unpack[Common]) -> Fault:
        """Do the write, then close without an answer."""
        return self._do("DROPREPLY", common)

    def deny(self, *, message: str | None = None, **common: Unpack[Common]) -> Fault:
        """Answer 403."""
        return self._do("DENY", common, message=message)

    def nocache(self, **common: Unpack[Common]) -> Fault:
        """Page lists at version 0 too, as a server without a watch cache does."""
        return self._do("NOCACHE", common)

    def refuse(self, seconds: float) -> None:
        """Close the listening socket and all connections; listen again after that time."""
        self._service.refuse_connections(seconds)

    def close(self, how: Literal["FIN", "RST"] = "FIN", **match: Any) -> int:
        """End the open streams that match, now; return how many."""
        return self._service.close_streams(match, how)

    def rule(
        self,
        *,
        allow: bool,
        user: str | Sequence[str] | None = None,
        verb: str | Sequence[str] | None = None,
        resource: str | Sequence[str] | None = None,
        namespace: str | Sequence[str] | None = None,
        name: str | Sequence[str] | None = None,
    ) -> Rule:
        """Allow or forbid (403) what matches; the newest rule that matches a request decides, without one all may."""
        about = {"user": user, "verb": verb, "resource": resource, "namespace": namespace, "name": name}
        return self._service.rules.add({"allow": allow, **about})

    def remove_rule(self, rule: Rule) -> None:
        """Take a rule off; nothing happens when it is gone."""
        self._service.rules.remove(rule.id)

    def clear_rules(self) -> None:
        """Take all rules off: everybody may do everything again."""
        self._service.rules.clear()

    def rotate_tls(self, *, close: bool = False) -> str:
        """Speak with a new certificate from a new CA, and return that CA (PEM); `close` ends the connections there are.

        Connections that stay open go on with the old one. Raises `ValueError` without TLS.
        """
        return self._service.rotate_tls(close=close)

    def _do(self, word: str, common: Common, **parameters: Any) -> Fault:
        rest: dict[str, Any] = dict(common)
        match = {**rest.pop("match", {}), **{name: rest.pop(name) for name in MATCH_FIELDS if name in rest}}
        description: dict[str, Any] = {"do": word, "match": match}
        if "for_" in rest:
            description["for"] = rest.pop("for_")
        description.update(rest)
        description.update((name, value) for name, value in parameters.items() if value is not None)
        return self.add(description)
