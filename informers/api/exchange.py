"""Ask on a connection: send a request, read the head of its answer, and say precisely why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import msgspec

from informers.api.calls import Cancel, LineTooLong, Response
from informers.api.connections import Wire, reason_of
from informers.api.fence import Fence
from informers.api.http1 import Body, CutError, FramingError, Head, LineTooLongError, read_head
from informers.clock import Clock
from informers.meta.errors import (
    APIError,
    ConnectionLost,
    RequestTimeout,
    TransportError,
    api_error,
    printable,
)
from informers.meta.resources import GVR, ObjectRef

_SMALL_BODY: Final = 1 << 14  # sent in one piece with the head
_decode_any: Final = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is asked, and how it is called in messages."""

    method: str
    target: str
    body: bytes | None = field(default=None, repr=False)
    content_type: str = ""
    accept: str
    gzip: bool = False
    may_repeat: bool = False
    verb: str
    ref: ObjectRef | GVR | None
    where: str
    cluster: str
    part: str = ""
    fence: Fence | None = None  # of a write

    @property
    def what(self) -> str:
        """The verb and what it is about, as messages begin."""
        about = self.where or str(self.ref)
        # A reference names its cluster itself.
        has_cluster = not self.where and isinstance(self.ref, ObjectRef)
        return f"{self.verb} {about}" + (f" (cluster {self.cluster})" if self.cluster and not has_cluster else "")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose head has come, and the connection that brings its body."""

    wire: Wire
    head: Head
    body: Body


class _UnansweredError(OSError):
    """The connection failed before the first byte of the answer."""


def ask(wire: Wire, call: Call, head: bytes, *, timeout: Callable[[], float]) -> Answer:
    """Send a request and read the head of its answer; `timeout` says how long the next step may take.

    Raises `NotLeaderError` when the fence of a write closes before all of it is sent; then it cannot be carried out.
    """
    received = False

    def receive() -> bytes:
        nonlocal received
        block = wire.receive(timeout())
        received = received or bool(block)
        return block

    failure: OSError | None = None
    try:
        _send(wire, call, head, timeout)
    except TimeoutError:
        raise
    except OSError as error:
        # A server that refuses a request early answers, then closes: look for the answer before giving up.
        failure = error
    try:
        answer_head, rest = read_head(receive)
    except (OSError, CutError) as error:
        cause = failure or error
        try:
            if isinstance(cause, TimeoutError | CutError) or received:
                raise cause from None
            raise _UnansweredError(cause.errno, reason_of(cause)) from error
        finally:
            del cause, failure  # their tracebacks hold this frame: only the garbage collector would free them
    return Answer(wire, answer_head, Body(answer_head, receive, rest, method=call.method))


def _send(wire: Wire, call: Call, head: bytes, timeout: Callable[[], float]) -> None:
    body = call.body or b""

    def still() -> float:
        # A thread may stand still anywhere, and go on when another process has the lease.
        if call.fence is not None:
            call.fence.check()
        return timeout()

    if len(body) <= _SMALL_BODY:
        wire.send(head + body, still)
    else:
        wire.send(head, still)
        wire.send(body, still)


def was_unanswered(error: OSError | CutError) -> bool:
    """Tell whether a connection ended before the first byte of an answer."""
    return error.at_start if isinstance(error, CutError) else isinstance(error, _UnansweredError)


class translated:  # noqa: N801 - reads as `with translated(…)`
    """Make errors of sockets, TLS and framing our own, with what was asked in front."""

    def __init__(self, what: str, cancel: Cancel) -> None:
        self._what = what
        self._cancel = cancel

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, OSError | FramingError | TransportError):
            return
        if self._cancel.is_cancelled():
            msg = f"{self._what}: cancelled"
            raise ConnectionLost(msg) from error
        if isinstance(error, TransportError):
            raise type(error)(f"{self._what}: {error}") from error.__cause__
        if isinstance(error, TimeoutError):
            msg = f"{self._what}: no answer in time"
            raise RequestTimeout(msg) from error
        if isinstance(error, LineTooLongError):
            msg = f"{self._what}: {error}"
            raise LineTooLong(msg) from error
        reason = str(error) if isinstance(error, FramingError) else reason_of(error)
        msg = f"{self._what}: connection lost: {reason}"
        raise ConnectionLost(msg) from error


def check_media_type(status: int, headers: Mapping[str, str], call: Call) -> None:
    """Refuse an answer that is not JSON where JSON was asked for: a login page, a proxy's greeting."""
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "json" not in call.accept or "*/*" in call.accept or not found or found == "application/json":
        return
    msg = f"the answer is {printable(found, limit=80)}, want application/json"
    raise APIError(msg, found=msg, status=status, verb=call.verb, ref=call.ref, cluster=call.cluster, where=call.where)


def error_of(response: Response, call: Call, retry_after: float | None) -> APIError:
    """Make the error for an answer that is not what was asked for."""
    said = _status_in(response)
    if said is None and 300 <= response.status < 400:
        said = {"message": "a redirect, which is not followed"}
    return api_error(
        response.status,
        said,
        verb=call.verb,
        ref=call.ref,
        cluster=call.cluster,
        where=call.where,
        retry_after=retry_after,
    )


def retry_after_of(response: Response, clock: Clock) -> float | None:
    """Read Retry-After: seconds, or a date; None if there is none that can be read."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # seldom needed

    try:
        return max(0.0, (parsedate_to_datetime(text) - clock.utc_now()).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _status_in(response: Response) -> Mapping[str, Any] | None:
    """Find the Status in an answer; plain text, as load balancers and request filters send it, counts as its message."""
    try:
        body = _decode_any(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if response.headers.get("content-type", "").startswith("text/plain"):
            return {"message": response.body[:1000].decode("utf-8", "replace").strip()}
        return None
    return body if isinstance(body, dict) else None


def is_json(text: bytes) -> bool:
    """Tell whether `text` is one whole JSON document."""
    try:
        _decode_any(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
