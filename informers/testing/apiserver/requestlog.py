"""Log every request: what it asked, who asked, what was done to it, how it ended. Tests wait on it."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from threading import Condition
from typing import Any, Final

_KEPT: Final = 200_000


@dataclass(slots=True, eq=False)
class LoggedRequest:
    """One request in the log. `ended` is `open` until its answer or stream is over; `status` is 0 before the answer."""

    n: int = 0
    time: str = ""
    connection: int = 0
    client: str = ""
    user: str = ""
    user_agent: str = ""
    verb: str = ""
    method: str = ""
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    accept: str = ""
    content_type: str = ""
    request_bytes: int = 0
    status: int = 0
    response_bytes: int = 0
    events: int = 0
    seconds: float = 0.0
    ended: str = "open"
    fault: str = ""
    token_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    started: float = field(default=0.0, repr=False)
    """When it came, on the monotonic clock: for measuring the time between two requests."""

    def to_dict(self, *, headers: bool = False) -> dict[str, Any]:
        """Build what the control API shows; other headers only when asked for."""
        hidden = {"started"} if headers else {"started", "headers"}
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in hidden}


def token_id(token: str) -> str:
    """Name a token without showing it."""
    return hashlib.sha256(token.encode()).hexdigest()[:12] if token else ""


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Copy a request's headers, `Authorization` reduced to its scheme."""
    shown = dict(headers)
    if "authorization" in shown:
        shown["authorization"] = shown["authorization"].partition(" ")[0]
    return shown


# --- matching: the same words for faults and for the log ---

MATCH_FIELDS: Final = (
    "resource", "verb", "subresource", "namespace", "name", "user", "client", "path", "query", "connection",
)  # fmt: skip
_LOG_FIELDS: Final = frozenset(MATCH_FIELDS) | {
    "method", "status", "ended", "fault", "token_id", "accept", "content_type", "user_agent", "since",
}  # fmt: skip


class MatchError(ValueError):
    """A match names a field that does not exist, or gives it a value that it cannot have."""


def check_match(match: Mapping[str, Any], *, log: bool = False) -> None:
    """Raise `MatchError` if `match` has a field that nothing has."""
    unknown = sorted(set(match) - (_LOG_FIELDS if log else set(MATCH_FIELDS)))
    if unknown:
        raise MatchError(f"unknown match fields: {', '.join(unknown)}")
    query = match.get("query")
    if query is not None and not isinstance(query, Mapping):
        raise MatchError("match.query must map parameter names to globs (null: must be absent)")


def matches(match: Mapping[str, Any], entry: LoggedRequest) -> bool:
    """Tell whether a logged request has everything that `match` asks; an absent field matches anything."""
    return all(_has(entry, name, wanted) for name, wanted in match.items() if wanted is not None)


def _has(entry: LoggedRequest, name: str, wanted: Any) -> bool:
    if name == "query":
        return all(_query_has(entry.query, key, glob) for key, glob in wanted.items())
    if isinstance(wanted, (list, tuple, set, frozenset)):
        return any(_has(entry, name, each) for each in wanted)
    match name:
        case "client":
            # the User-Agent, as in faults; an address is looked for only when it looks like one
            return fnmatchcase(entry.user_agent, wanted) or fnmatchcase(entry.client, wanted)
        case "path" | "user_agent" | "accept" | "content_type":
            return fnmatchcase(getattr(entry, name), wanted)
        case "resource":
            return wanted in (entry.resource, entry.resource.partition(".")[0])
        case "since":
            return entry.n > int(wanted)
        case "connection" | "status":
            return bool(getattr(entry, name) == int(wanted))
    return bool(getattr(entry, name) == wanted)


def _query_has(query: Mapping[str, str], key: str, glob: Any) -> bool:
    if glob is None:
        return key not in query
    return key in query and fnmatchcase(query[key], str(glob))


class RequestLog:
    """The log, in the order in which requests came."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._changed = Condition()  # guards _entries and _count
        self._entries: deque[LoggedRequest] = deque(maxlen=_KEPT)
        self._count = 0
        self._write = write

    def begin(self, entry: LoggedRequest) -> None:
        """Add a request before anything is done to it."""
        entry.time = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        entry.started = time.monotonic()
        with self._changed:
            self._count += 1
            entry.n = self._count
            self._entries.append(entry)
            self._changed.notify_all()

    def answered(self, entry: LoggedRequest, status: int) -> None:
        """Note the status that was sent."""
        with self._changed:
            entry.status = status
            self._changed.notify_all()

    def end(self, entry: LoggedRequest, ended: str) -> None:
        """Note how a request ended; only the first end counts."""
        with self._changed:
            if entry.ended != "open":
                return
            entry.ended = ended
            entry.seconds = time.monotonic() - entry.started
            self._changed.notify_all()
        if self._write is not None:
            self._write(
                f"{entry.time} {entry.method} {entry.path} {entry.status} {entry.response_bytes} "
                f"{entry.seconds:.6f} {entry.ended} {entry.fault or '-'}"
            )

    def find(self, match: Mapping[str, Any], *, limit: int | None = None) -> list[LoggedRequest]:
        """List the requests that match; with `limit`, the last so many."""
        check_match(match, log=True)
        with self._changed:
            found = [entry for entry in self._entries if matches(match, entry)]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def wait(self, match: Mapping[str, Any], *, count: int, timeout: float) -> Sequence[LoggedRequest] | None:
        """Wait until `count` requests match and return them; None when they do not come in time."""
        check_match(match, log=True)
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                found = [entry for entry in self._entries if matches(match, entry)]
                if len(found) >= count:
                    return found
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def clear(self) -> None:
        """Forget all requests; the numbers go on."""
        with self._changed:
            self._entries.clear()
