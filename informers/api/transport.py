"""Ask one cluster's API server: a request and its whole answer, or a stream of lines. The one module that knows TLS.

A request ends by its deadline, which covers everything from the first look-up to the last byte of the answer, and
any thread can end it at once through its `Cancel`. Each stream has a connection of its own; each thread that makes
ordinary requests keeps one open. A connection that failed in any way is never used again.

What is surprising: nothing here retries a stream, and a request is repeated only where the server asked for it, or
where it cannot have been carried out twice. Everything else is for the caller's backoff.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import ipaddress
import logging
import os
import re
import select
import socket
import ssl  # noqa: TID251 - this is the module that knows TLS
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec

from informers import metrics
from informers.api.credentials import Credentials
from informers.api.http1 import (
    Body,
    CutError,
    FramingError,
    Head,
    LineSplitter,
    LineTooLongError,
    build_head,
    read_head,
)
from informers.api.kubeconfig import ClientConfig, check_proxy_url
from informers.api.limits import Gate
from informers.clock import Clock, SystemClock
from informers.logs import Throttle, fields
from informers.meta.errors import (
    APIError,
    ConfigError,
    ConnectError,
    ConnectionLost,
    RequestTimeout,
    TransportError,
    api_error,
    is_too_large,
    printable,
)
from informers.meta.resources import GVR, ObjectRef

_log = logging.getLogger(__name__)

_BLOCK: Final = 1 << 16
_SMALL_BODY: Final = 1 << 14  # sent in one piece with the head
_IDLE_LIMIT: Final = 60.0
_CONNECT_LIMIT: Final = 30.0  # for opening a stream; requests have their own deadline
_REFUSAL_LIMIT: Final = 10.0  # for reading why a stream was refused
_REPEATS: Final = 10
_LONGEST_RETRY_AFTER: Final = 30.0
_LOOK_AGAIN: Final = 0.25  # a connection attempt looks this often whether it is still wanted
_READS: Final = frozenset({"GET", "HEAD"})
_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')

_requests = metrics.counter(
    "informers_requests_total", "Answers, by status; error = no answer", ("cluster", "verb", "code")
)
_connections = metrics.gauge("informers_connections_open", "Connections to API servers", ("cluster",))

_decode_any: Final = msgspec.json.Decoder().decode


class LineTooLong(TransportError):  # noqa: N818 - named as its siblings in the public tree are
    """A stream brought a line that is longer than any object can be."""


class NotSent(RequestTimeout):
    """The time was over before anything was sent: waiting for a turn, or for a connection."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. Header names are lower-case; the body's `repr` is its length."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"<Response {self.status}, {len(self.body)} bytes>"


class Cancel:
    """A handle on one call, by which another thread may end it: now, or as soon as it begins."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())  # guards _is_cancelled and _interrupt
        self._is_cancelled = False
        self._interrupt: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the call; never waits, and may be called at any time and more than once."""
        with self._changed:
            self._is_cancelled = True
            interrupt = self._interrupt
            self._changed.notify_all()
        if interrupt is not None:
            interrupt()

    def is_cancelled(self) -> bool:
        """Tell whether `cancel()` was called."""
        return self._is_cancelled

    def attach(self, interrupt: Callable[[], None]) -> None:
        """Name what ends the present step; raise `ConnectionLost` if the call was cancelled already."""
        with self._changed:
            self._interrupt = interrupt
            self._raise_if_cancelled()

    def detach(self) -> bool:
        """Leave the present step; False if the call was cancelled meanwhile, so that nothing of it may be kept."""
        with self._changed:
            self._interrupt = None
            return not self._is_cancelled

    def wait(self, clock: Clock, seconds: float) -> None:
        """Wait; raise `ConnectionLost` if the call is cancelled meanwhile."""
        until = clock.monotonic() + seconds
        with self._changed:
            while not self._is_cancelled and (left := until - clock.monotonic()) > 0:
                clock.wait(self._changed, left)
            self._raise_if_cancelled()

    def _raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            msg = "cancelled"
            raise ConnectionLost(msg)


class Stream:
    """One answer that goes on: lines as they come. A context manager; for one thread, but for its `Cancel`.

    Attributes:
        headers: the answer's headers, names in lower case.
        silence: seconds without a byte after which `lines()` gives up; may be changed at any time.
        has_received: whether any byte of the body has come.
    """

    def __init__(
        self, answer: _Answer, *, silence: float, until: float, clock: Clock, cancel: Cancel, line_limit: int, what: str
    ) -> None:
        self.headers = answer.head.headers
        self.silence = silence
        self.has_received = False
        self._answer = answer
        self._until = until
        self._clock = clock
        self._cancel = cancel
        self._splitter = LineSplitter(limit=line_limit)
        self._what = what

    def lines(self) -> Iterator[bytes]:
        r"""Yield whole lines without their `\n` or `\r\n`; blank ones are skipped. Returns when the answer ends cleanly.

        Raises `ConnectionLost` when it is cut (also in the middle of a line, or of its framing), `RequestTimeout` when
        it is silent for too long or past its own deadline, `LineTooLong`.
        """
        splitter = self._splitter
        with _translated(self._what, self._cancel):
            for block, start, end in self._answer.body.spans():
                self.has_received = True
                yield from splitter.feed(block, start, end)
            if not self._answer.body.is_delimited:
                self._cancel.attach(self._answer.wire.shut)  # raises if that was the end
            # An answer that is one document (a Status, say) has no \n at its end; what was cut is no document.
            if fragment := splitter.fragment():
                if not _is_json(fragment):
                    msg = "closed in the middle of a line"
                    raise CutError(msg)
                yield fragment

    def close(self) -> None:
        """Close the connection; may be called more than once."""
        self._cancel.detach()
        self._answer.wire.close()

    def receive_timeout(self) -> float:
        """Return how long the next byte may take, 0 or less when the time is over."""
        return min(self.silence, self._until - self._clock.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transport:
    """One cluster's connections, credentials and limits. Use it from any thread.

    Raises `ConfigError` when certificates or the proxy named in `config` or the environment cannot be used.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        cluster: str = "",
        user_agent: str = "kube-informers",
        clock: Clock | None = None,
        max_inflight: int = 32,
        qps: float = 0.0,
        burst: int = 0,
        line_limit: int = 64 << 20,
    ) -> None:
        self.cluster = cluster
        self.clock: Clock = SystemClock() if clock is None else clock
        self.config = config
        self._line_limit = line_limit
        self._credentials = Credentials(config, cluster=cluster, clock=self.clock)
        self._dialer = _Dialer(config, cluster=cluster)
        self._gate = Gate(clock=self.clock, max_inflight=max_inflight, qps=qps, burst=burst)
        self._warnings = Throttle(self.clock, period=3600.0)
        self._base = urlsplit(config.server).path.rstrip("/")
        self._standing_headers = (
            ("Host", urlsplit(config.server).netloc),
            ("User-Agent", printable(user_agent, limit=500).encode("ascii", "replace").decode()),
            *_impersonation_headers(config),
        )
        self._lock = threading.Lock()  # guards _idle, _reads and _is_closed
        self._idle: dict[int, _Wire] = {}  # by thread; whoever takes one out owns it
        self._reads: set[Cancel] = set()
        self._is_closed = False

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        content_type: str = "",
        accept: str = "application/json",
        timeout: float,
        gzip: bool = False,
        cancel: Cancel | None = None,
        retry_safe: bool = False,
        unlimited: bool = False,
        verb: str = "",
        ref: ObjectRef | GVR | None = None,
        where: str = "",
    ) -> Response:
        """Send one request and return its whole answer, within `timeout` seconds in all.

        `retry_safe` says that carrying it out twice does no harm, as a precondition in it would stop the second time;
        `unlimited` requests wait for no turn; `verb`, `ref` and `where` are for messages. Repeated when the server
        answers 429 or 5xx with Retry-After (at most 10 times), once after a 401 with credentials read anew, and once
        on a kept-alive connection that turns out to be closed.

        Raises an `APIError` for an answer other than 2xx or of another media type than asked for, `ConnectError`
        and `NotSent` when nothing was sent, `ConnectionLost` and `RequestTimeout` when the outcome is unknown.
        """
        call = _Call(
            method=method,
            target=self._target(path, query),
            body=body,
            content_type=content_type,
            accept=accept,
            gzip=gzip,
            may_repeat=retry_safe or method in _READS,
            verb=verb or method.lower(),
            ref=ref,
            where=where or ("" if ref else path),
            cluster=self.cluster,
        )
        deadline = self.clock.monotonic() + timeout
        cancel = Cancel() if cancel is None else cancel
        if method in _READS:
            with self._lock:
                self._reads.add(cancel)
        try:
            with _translated(call.what, cancel):
                return self._request(call, deadline, cancel, unlimited=unlimited)
        except TransportError:
            _requests.add(cluster=self.cluster, verb=call.verb, code="error")
            raise
        finally:
            cancel.detach()
            with self._lock:
                self._reads.discard(cancel)

    def open_stream(
        self,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        accept: str = "application/json",
        silence: float,
        deadline: float,
        cancel: Cancel,
        verb: str = "watch",
        ref: ObjectRef | GVR | None = None,
        where: str = "",
    ) -> Stream:
        """Open a stream on a connection of its own; returns when the headers of the answer have come.

        It gives up after `silence` seconds without a byte, counted from when the request was sent, and ends by itself
        `deadline` seconds after this call. Outside all limits. Raises as `request` does; an `APIError` carries
        `retry_after` if the server named one. Repeated once after a 401 with credentials read anew.
        """
        call = _Call(
            method="GET",
            target=self._target(path, query),
            accept=accept,
            verb=verb,
            ref=ref,
            where=where or ("" if ref else path),
            cluster=self.cluster,
        )
        until = self.clock.monotonic() + deadline
        try:
            with _translated(call.what, cancel):
                known = self._credentials.newest()
                while True:
                    credential = self._credentials.current()
                    opened = self._open(call, credential.authorization, silence, until, cancel)
                    if isinstance(opened, Stream):
                        return opened
                    if opened.status != 401 or not self._credentials.renew(credential, known=known):
                        raise _error_of(opened, call, self._retry_after(opened))
                    known = -1
        except TransportError:
            _requests.add(cluster=self.cluster, verb=call.verb, code="error")
            raise
        finally:
            # A cancel in the window after `_open` returned has shut the wire, as it stays attached for the
            # stream's life; a stream that never came to be has nothing attached.
            self._close_stale()

    def cut_reads(self) -> None:
        """End all GETs in flight at once, as at stop; each raises `ConnectionLost`."""
        with self._lock:
            reads = list(self._reads)
        for cancel in reads:
            cancel.cancel()

    def close(self) -> None:
        """Close idle connections; those in use are closed when their answer has come."""
        with self._lock:
            self._is_closed = True
            idle = list(self._idle.values())
            self._idle.clear()
        for wire in idle:
            wire.close()

    def _request(self, call: _Call, deadline: float, cancel: Cancel, *, unlimited: bool) -> Response:
        known = self._credentials.newest()
        repeats = 0
        while True:
            credential = self._credentials.current()
            response = self._turn(call, credential.authorization, deadline, cancel, unlimited=unlimited)
            if response.status < 300:
                self._log_warnings(response, call)
                return _checked(response, call)
            if response.status == 401 and self._credentials.renew(credential, known=known):
                known = -1  # once
                continue
            retry_after = self._retry_after(response)
            error = _error_of(response, call, retry_after)
            if retry_after is None or not (response.status == 429 or response.status >= 500) or is_too_large(error):
                raise error
            wait = min(retry_after, _LONGEST_RETRY_AFTER)
            if response.status == 429 and not unlimited:
                self._gate.pause(wait)
            repeats += 1
            if repeats > _REPEATS or self.clock.monotonic() + wait >= deadline:
                raise error
            _log.debug("asked to wait", extra=fields(status=response.status, seconds=wait))
            cancel.wait(self.clock, wait)

    def _turn(self, call: _Call, authorization: str, deadline: float, cancel: Cancel, *, unlimited: bool) -> Response:
        """Wait for a turn at the gate, then exchange request and answer once."""
        if unlimited:
            return self._exchange(call, authorization, deadline, cancel)
        cancel.attach(self._gate.wake)
        if not self._gate.enter(deadline, cancel.is_cancelled):
            cancel.attach(self._gate.wake)  # raises if that was why
            msg = "no turn among the requests in flight in time; nothing was sent"
            raise NotSent(msg)
        was_answered = False
        try:
            response = self._exchange(call, authorization, deadline, cancel)
            was_answered = response.status != 429
            return response
        finally:
            self._gate.leave(was_answered=was_answered)

    def _exchange(self, call: _Call, authorization: str, deadline: float, cancel: Cancel) -> Response:
        head = self._head(call, authorization)
        wire = self._take_idle()
        if wire is not None:
            try:
                return self._exchange_on(wire, call, head, deadline, cancel)
            except _StaleError:
                _log.debug("kept-alive connection was closed")
        wire = self._dialer.dial(self._left(deadline), cancel)
        return self._exchange_on(wire, call, head, deadline, cancel)

    def _exchange_on(self, wire: _Wire, call: _Call, head: bytes, deadline: float, cancel: Cancel) -> Response:
        is_reused, wire.sent = wire.uses > 0, 0
        keep = False
        try:
            cancel.attach(wire.shut)
            answer = _ask(wire, call, head, timeout=lambda: self._left(deadline))
            data = io.BytesIO()  # grows in place, and gives its bytes away without a copy
            for block, start, end in answer.body.spans():
                data.write(memoryview(block)[start:end])
            if not answer.body.is_delimited:
                cancel.attach(wire.shut)  # raises if that was the end
            keep = answer.body.is_reusable() and cancel.detach()
        except (OSError, CutError) as error:
            if (
                is_reused
                and _was_unanswered(error)
                and not cancel.is_cancelled()
                and (call.may_repeat or not wire.sent)
            ):
                raise _StaleError from error
            raise
        finally:
            if keep:
                self._keep(wire)
            else:
                wire.close()
        _requests.add(cluster=self.cluster, verb=call.verb, code=str(answer.head.status))
        return Response(answer.head.status, answer.head.headers, data.getvalue())

    def _open(self, call: _Call, authorization: str, silence: float, until: float, cancel: Cancel) -> Stream | Response:
        """Open a connection and ask for a stream; return it, or the whole answer that refuses it."""
        wire = self._dialer.dial(min(self._left(until), _CONNECT_LIMIT), cancel)
        is_open = False
        try:
            cancel.attach(wire.shut)
            stream: Stream | None = None

            def timeout() -> float:
                return min(silence, self._left(until)) if stream is None else stream.receive_timeout()

            answer = _ask(wire, call, self._head(call, authorization), timeout=timeout)
            _requests.add(cluster=self.cluster, verb=call.verb, code=str(answer.head.status))
            if answer.head.status != 200:
                until = min(until, self.clock.monotonic() + _REFUSAL_LIMIT)
                data = b"".join(block[start:end] for block, start, end in answer.body.spans())
                return Response(answer.head.status, answer.head.headers, data)
            self._log_warnings(Response(200, answer.head.headers, b""), call)
            _check_media_type(answer.head.status, answer.head.headers, call)
            stream = Stream(
                answer,
                silence=silence,
                until=until,
                clock=self.clock,
                cancel=cancel,
                line_limit=self._line_limit,
                what=call.what,
            )
            is_open = True
            return stream
        finally:
            if not is_open:
                cancel.detach()
                wire.close()

    def _head(self, call: _Call, authorization: str) -> bytes:
        headers = [*self._standing_headers, ("Accept", call.accept)]
        headers.append(("Accept-Encoding", "gzip" if call.gzip else "identity"))
        if authorization:
            headers.append(("Authorization", authorization))
        if call.body is not None:
            headers.append(("Content-Type", call.content_type or "application/json"))
        if call.body is not None or call.method in {"POST", "PUT", "PATCH"}:
            headers.append(("Content-Length", str(len(call.body or b""))))
        try:
            return build_head(call.method, call.target, headers)
        except ValueError as error:
            msg = f"{call.what}: {error}"
            raise ConfigError(msg) from None

    def _target(self, path: str, query: Sequence[tuple[str, str]]) -> str:
        if not path.startswith("/") or not all("!" <= char <= "~" for char in path):
            msg = f"path {printable(path, limit=200)!r}: want one that starts with '/' and is percent-encoded"
            raise ConfigError(msg)
        target = f"{self._base}{path}"
        if query:
            target += f"{'&' if '?' in path else '?'}{urlencode(query, quote_via=quote)}"
        return target

    def _left(self, deadline: float) -> float:
        return deadline - self.clock.monotonic()

    def _take_idle(self) -> _Wire | None:
        """Take this thread's kept-alive connection, if there is one that still lives."""
        with self._lock:
            wire = self._idle.pop(threading.get_ident(), None)
        self._close_stale()
        if wire is None:
            return None
        if self.clock.monotonic() - wire.idle_since > _IDLE_LIMIT or wire.is_readable():
            # Readable means closed: nobody sends what was not asked for.
            wire.close()
            return None
        return wire

    def _keep(self, wire: _Wire) -> None:
        wire.uses += 1
        wire.idle_since = self.clock.monotonic()
        with self._lock:
            old = wire if self._is_closed else self._idle.get(threading.get_ident())
            if not self._is_closed:
                self._idle[threading.get_ident()] = wire
        if old is not None:
            old.close()

    def _close_stale(self) -> None:
        """Close what has been idle for too long, of threads that have ended too."""
        now = self.clock.monotonic()
        with self._lock:
            stale = [ident for ident, wire in self._idle.items() if now - wire.idle_since > _IDLE_LIMIT]
            wires = [self._idle.pop(ident) for ident in stale]
        for wire in wires:
            wire.close()

    def _retry_after(self, response: Response) -> float | None:
        """Read Retry-After: seconds, or a date; None if there is none that can be read."""
        text = response.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        if not text:
            return None
        from email.utils import parsedate_to_datetime  # seldom needed

        try:
            return max(0.0, (parsedate_to_datetime(text) - self.clock.utc_now()).total_seconds())
        except (ValueError, TypeError):
            return None

    def _log_warnings(self, response: Response, call: _Call) -> None:
        header = response.headers.get("warning")
        if header is None:
            return
        gvr = getattr(call.ref, "gvr", call.ref)
        is_secret = getattr(gvr, "resource", "") == "secrets"
        for found in _WARNING.finditer(header):
            text = "(about a Secret)" if is_secret else printable(found[1].replace('\\"', '"'), limit=300)
            if self._warnings.allow(text):
                _log.warning(
                    "the API server warns",
                    extra=fields(warning=text, about=str(call.ref or call.where), verb=call.verb, cluster=self.cluster),
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What is asked, and how it is called in messages."""

    method: str
    target: str
    body: bytes | None = None
    content_type: str = ""
    accept: str
    gzip: bool = False
    may_repeat: bool = False
    verb: str
    ref: ObjectRef | GVR | None
    where: str
    cluster: str

    @property
    def what(self) -> str:
        about = self.where or str(self.ref)
        # A reference names its cluster itself.
        has_cluster = not self.where and isinstance(self.ref, ObjectRef)
        return f"{self.verb} {about}" + (f" (cluster {self.cluster})" if self.cluster and not has_cluster else "")


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer whose head has come, and the connection that brings its body."""

    wire: _Wire
    head: Head
    body: Body


class _StaleError(Exception):
    """A kept-alive connection was closed before any byte of the answer, and the request may be sent again."""


class _UnansweredError(OSError):
    """The connection failed before the first byte of the answer."""


def _ask(wire: _Wire, call: _Call, head: bytes, *, timeout: Callable[[], float]) -> _Answer:
    """Send a request and read the head of its answer; `timeout` says how long the next step may take."""
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
        if isinstance(cause, TimeoutError | CutError) or received:
            raise cause from None
        raise _UnansweredError(cause.errno, _reason(cause)) from error
    return _Answer(wire, answer_head, Body(answer_head, receive, rest, method=call.method))


def _send(wire: _Wire, call: _Call, head: bytes, timeout: Callable[[], float]) -> None:
    body = call.body or b""
    if len(body) <= _SMALL_BODY:
        wire.send(head + body, timeout)
    else:
        wire.send(head, timeout)
        wire.send(body, timeout)


def _was_unanswered(error: OSError | CutError) -> bool:
    return error.at_start if isinstance(error, CutError) else isinstance(error, _UnansweredError)


class _translated:  # noqa: N801 - reads as `with translated(…)`
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
        reason = str(error) if isinstance(error, FramingError) else _reason(error)
        msg = f"{self._what}: connection lost: {reason}"
        raise ConnectionLost(msg) from error


class _Wire:
    """One connection. One thread uses it; any thread may shut it."""

    def __init__(self, sock: _Socket, cluster: str) -> None:
        self._sock = sock
        self._cluster = cluster
        self._lock = (
            threading.Lock()
        )  # guards _is_shut and _is_closed, and keeps a descriptor from being shut that is another's by now
        self._is_shut = False
        self._is_closed = False
        self.uses = 0
        self.sent = 0  # bytes of the present request
        self.idle_since = 0.0
        _connections.add(cluster=cluster)

    @property
    def sock(self) -> _Socket:
        """What carries the bytes now."""
        return self._sock

    def replace(self, sock: _Socket) -> None:
        """Go on over `sock`, which stands for the same connection, with TLS around it."""
        with self._lock:
            self._sock = sock
            if self._is_shut:
                _shut(sock)

    def shut(self) -> None:
        """End it from another thread: whoever reads or writes sees it closed. Never waits."""
        with self._lock:
            self._is_shut = True
            if not self._is_closed:
                _shut(self._sock)

    def close(self) -> None:
        """Free it; may be called more than once."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            if not was_closed:
                self._sock.close()
        if not was_closed:
            _connections.add(-1, cluster=self._cluster)

    def send(self, data: bytes, timeout: Callable[[], float]) -> None:
        """Send all of `data`; `timeout()` is how long each step may take."""
        view = memoryview(data)
        while view:
            self._sock.settimeout(_positive(timeout()))
            sent = self._sock.send(view)
            self.sent += sent
            view = view[sent:]

    def receive(self, timeout: float) -> bytes:
        """Return what has come, waiting up to `timeout` seconds for the first byte; `b""` at the end."""
        self._sock.settimeout(_positive(timeout))
        return self._sock.recv(_BLOCK)

    def is_readable(self) -> bool:
        """Tell whether a read would return at once: bytes, the end, or an error."""
        poller = select.poll()
        poller.register(self._sock.fileno(), select.POLLIN)
        return bool(poller.poll(0))


class _Dialer:
    """Opens connections to one server: addresses, proxy, TLS. One TLS context for all of them."""

    def __init__(self, config: ClientConfig, *, cluster: str) -> None:
        parts = urlsplit(config.server)
        self._cluster = cluster
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._name = config.server_name or self._host
        self._tls = _tls_context(config) if parts.scheme == "https" else None
        self._is_strict = config.strict_x509
        self._proxy = _find_proxy(config, parts.scheme, self._host, self._port)
        self._proxy_tls = ssl.create_default_context() if self._proxy and self._proxy.is_https else None
        if config.insecure and self._tls is not None:
            _log.warning("TLS certificates are not verified", extra=fields(server=config.server, cluster=cluster))

    def dial(self, seconds: float, cancel: Cancel) -> _Wire:
        """Connect within `seconds`; raise `ConnectError`, `NotSent`, or `ConnectionLost` when cancelled."""
        until = _Countdown(seconds)
        host, port = (self._proxy.host, self._proxy.port) if self._proxy else (self._host, self._port)
        place = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
        if self._proxy:
            place = f"proxy {place}"
        try:
            wire = self._connect(host, port, until, cancel)
        except TimeoutError as error:
            msg = f"no connection to {place} in time; nothing was sent"
            raise NotSent(msg) from error
        except OSError as error:
            msg = f"cannot connect to {place}: {_reason(error)}"
            raise ConnectError(msg) from error
        is_ready = False
        try:
            if self._proxy:
                if self._proxy_tls is not None:
                    self._secure(wire, self._proxy_tls, self._proxy.host, until, cancel)
                self._tunnel(wire, self._proxy, until)
            if self._tls is not None:
                self._secure(wire, self._tls, self._name, until, cancel)
            is_ready = True
            return wire
        except TimeoutError as error:
            msg = f"no connection to {place} in time; nothing was sent"
            raise NotSent(msg) from error
        except ssl.SSLError as error:
            msg = f"TLS with {place} failed: {self._tls_reason(error)}"
            raise ConnectError(msg) from error
        except (OSError, FramingError) as error:
            msg = f"cannot connect through {place}: {_reason(error)}"
            raise ConnectError(msg) from error
        finally:
            if not is_ready:
                wire.close()

    def _connect(self, host: str, port: int, until: _Countdown, cancel: Cancel) -> _Wire:
        addresses = _addresses_of(host, port, until, cancel)
        failure: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            # One dead address must not use up the time of the others.
            share = until.left() / (len(addresses) - number)
            wire = _Wire(socket.socket(family, kind, protocol), self._cluster)
            is_connected = False
            try:
                _connect_socket(wire, address, _Countdown(share), cancel)
                is_connected = True
                return wire
            except OSError as error:
                failure = error
            finally:
                if not is_connected:
                    wire.close()
        raise failure or OSError(errno.EADDRNOTAVAIL, "no address")

    def _tunnel(self, wire: _Wire, proxy: _Proxy, until: _Countdown) -> None:
        host = f"[{self._host}]" if ":" in self._host else self._host
        target = f"{host}:{self._port}"
        headers = [("Host", target)]
        if proxy.authorization:
            headers.append(("Proxy-Authorization", proxy.authorization))
        wire.send(build_head("CONNECT", target, headers), until.left)
        # The server speaks second, so nothing of its bytes can have come with the proxy's answer.
        head, _rest = read_head(lambda: wire.receive(until.left()))
        if not 200 <= head.status < 300:
            msg = f"the proxy refused the tunnel with status {head.status}"
            raise FramingError(msg)

    def _secure(self, wire: _Wire, context: ssl.SSLContext, name: str, until: _Countdown, cancel: Cancel) -> None:
        sock: _Socket
        if isinstance(wire.sock, socket.socket) and not isinstance(wire.sock, ssl.SSLSocket):
            sock = context.wrap_socket(wire.sock, server_hostname=name, do_handshake_on_connect=False)
        else:
            sock = _InnerTLS(wire.sock, context, name)
        wire.replace(sock)
        cancel.attach(wire.shut)
        sock.settimeout(_positive(until.left()))
        sock.do_handshake()

    def _tls_reason(self, error: ssl.SSLError) -> str:
        if not isinstance(error, ssl.SSLCertVerificationError):
            return error.reason or "connection closed"
        # X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA to X509_V_ERR_EXTENSIONS_REQUIRE_VERSION_3: strict checks only.
        if self._is_strict and 79 <= error.verify_code <= 93:
            return (
                f"{error.verify_message}: the certificate fails strict X.509 checks, which strict_x509=False leaves out"
            )
        return error.verify_message


class _InnerTLS:
    """TLS inside another TLS connection, as an https proxy needs it. Has what `_Wire` uses of a socket."""

    def __init__(self, outer: _Socket, context: ssl.SSLContext, name: str) -> None:
        self.outer = outer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    def do_handshake(self) -> None:
        self._run(self._tls.do_handshake)

    def send(self, data: memoryview) -> int:
        sent: int = self._run(lambda: self._tls.write(data))
        return sent

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._run(lambda: self._tls.read(size))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        return data

    def settimeout(self, seconds: float | None) -> None:
        self.outer.settimeout(seconds)

    def fileno(self) -> int:
        return self.outer.fileno()

    def close(self) -> None:
        self.outer.close()

    def _run(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                if block := self.outer.recv(_BLOCK):
                    self._incoming.write(block)
                else:
                    self._incoming.write_eof()
            else:
                self._flush()
                return result

    def _flush(self) -> None:
        data = memoryview(self._outgoing.read())
        while data:
            data = data[self.outer.send(data) :]


_Socket = socket.socket | ssl.SSLSocket | _InnerTLS


class _Countdown:
    """Real seconds that are left for connecting; sockets know no other clock."""

    def __init__(self, seconds: float) -> None:
        self._clock = SystemClock()
        self._until = self._clock.monotonic() + seconds

    def left(self) -> float:
        return self._until - self._clock.monotonic()


def _connect_socket(wire: _Wire, address: Any, until: _Countdown, cancel: Cancel) -> None:
    sock = wire.sock
    assert isinstance(sock, socket.socket)
    _keep_alive(sock)
    cancel.attach(wire.shut)
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code in {errno.EINPROGRESS, errno.EWOULDBLOCK}:
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        # Not every system wakes a poll when another thread shuts a socket that is connecting: look again now and then.
        while not poller.poll(min(_positive(until.left()), _LOOK_AGAIN) * 1000):
            cancel.attach(wire.shut)
        cancel.attach(wire.shut)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice a dead peer, and send small writes at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPALIVE", 30),  # macOS' name for it
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 45_000),
    ):
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _addresses_of(host: str, port: int, until: _Countdown, cancel: Cancel) -> Sequence[tuple[Any, ...]]:
    """Look a name up on a thread of its own, as that cannot be interrupted and may take half a minute."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    found: list[Sequence[tuple[Any, ...]]] = []
    failed: list[OSError] = []
    done = threading.Event()

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            failed.append(error)
        except UnicodeError:
            failed.append(OSError(errno.EINVAL, "not a host name"))
        finally:
            done.set()

    cancel.attach(done.set)
    thread = threading.Thread(target=look_up, name=f"resolve/{host}", daemon=True)
    thread.start()
    done.wait(max(0.0, until.left()))
    cancel.attach(done.set)
    if failed or found:
        thread.join()
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError
    return found[0]


@dataclass(frozen=True, slots=True)
class _Proxy:
    host: str
    port: int
    is_https: bool
    authorization: str


def _find_proxy(config: ClientConfig, scheme: str, host: str, port: int) -> _Proxy | None:
    """Follow `proxy-url`, else HTTPS_PROXY or HTTP_PROXY unless NO_PROXY names the host or it is this machine."""
    url, what = config.proxy_url, f"{config.source}: proxy-url"
    if not url:
        name = f"{scheme}_proxy"
        url, what = os.environ.get(name) or os.environ.get(name.upper(), ""), name.upper()
        if not url or _is_direct(host, port, os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")):
            return None
        url = url if "://" in url else f"http://{url}"
        check_proxy_url(url, what)
    parts = urlsplit(url)
    authorization = ""
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    is_https = parts.scheme == "https"
    return _Proxy(parts.hostname or "", parts.port or (443 if is_https else 80), is_https, authorization)


def _is_direct(host: str, port: int, no_proxy: str) -> bool:
    """Tell whether NO_PROXY covers a host: names and their subdomains, addresses, CIDR blocks, each with `:PORT`, or `*`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host.lower() == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host.lower(), port, address) for entry in no_proxy.split(","))


def _covers(entry: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if entry == "*":
        return True
    if not entry:
        return False
    if address is not None:
        with contextlib.suppress(ValueError):
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    name, colon, wanted_port = entry.rpartition(":")
    if colon and wanted_port.isdigit():
        if int(wanted_port) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return entry == host
    bare = entry.removeprefix("*").removeprefix(".")
    if entry.startswith((".", "*.")):
        return host.endswith(f".{bare}")
    return host == bare or host.endswith(f".{bare}")


def _tls_context(config: ClientConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        # The same on every version of Python, whose defaults differ here. Any certificate given is trusted as a root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if config.strict_x509:
            context.verify_flags |= ssl.VERIFY_X509_STRICT
        else:
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        _load_ca(context, config)
    if config.cert_data or config.cert_file:
        _load_client_certificate(context, config)
    return context


def _load_ca(context: ssl.SSLContext, config: ClientConfig) -> None:
    if not config.ca_data and not config.ca_file:
        context.load_default_certs()
        return
    try:
        if config.ca_data:
            context.load_verify_locations(cadata=config.ca_data.decode("ascii", "replace"))
        else:
            context.load_verify_locations(cafile=config.ca_file)
    except (OSError, ValueError) as error:
        what = config.ca_file or "certificate-authority-data"
        msg = f"{config.source}: certificate authority {what}: {_reason(error)}"
        raise ConfigError(msg) from None


def _load_client_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    # The ssl module takes keys from files only; ours stand there, for us alone, no longer than it reads them.
    try:
        with tempfile.TemporaryDirectory(prefix="kube-informers-") as folder:
            cert = _as_file(config.cert_data, config.cert_file, Path(folder) / "cert")
            key = _as_file(config.key_data, config.key_file, Path(folder) / "key")
            context.load_cert_chain(cert, key, password=lambda: "")  # without one it would ask on the terminal
    except (OSError, ValueError) as error:
        what = config.cert_file or "client-certificate-data"
        msg = f"{config.source}: client certificate {what} and its key: {_reason(error)}"
        raise ConfigError(msg) from None


def _as_file(data: bytes, path: str, temporary: Path) -> str:
    if not data:
        return path
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    return str(temporary)


def _impersonation_headers(config: ClientConfig) -> Iterator[tuple[str, str]]:
    person = config.impersonation
    if not person.user:
        return
    yield "Impersonate-User", person.user
    for group in person.groups:
        yield "Impersonate-Group", group
    if person.uid:
        yield "Impersonate-Uid", person.uid
    for key, value in person.extra:
        yield f"Impersonate-Extra-{quote(key.lower(), safe='')}", value


def _checked(response: Response, call: _Call) -> Response:
    if response.body:
        _check_media_type(response.status, response.headers, call)
    return response


def _check_media_type(status: int, headers: Mapping[str, str], call: _Call) -> None:
    """Refuse an answer that is not JSON where JSON was asked for: a login page, a proxy's greeting."""
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "json" not in call.accept or "*/*" in call.accept or not found or found == "application/json":
        return
    msg = f"the answer is {printable(found, limit=80)}, want application/json"
    raise APIError(msg, status=status, verb=call.verb, ref=call.ref, cluster=call.cluster, where=call.where)


def _error_of(response: Response, call: _Call, retry_after: float | None) -> APIError:
    return api_error(
        response.status,
        _status_in(response),
        verb=call.verb,
        ref=call.ref,
        cluster=call.cluster,
        where=call.where,
        retry_after=retry_after,
    )


def _status_in(response: Response) -> Mapping[str, Any] | None:
    """Find the Status in an answer; plain text, as load balancers and request filters send it, counts as its message."""
    try:
        body = _decode_any(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if response.headers.get("content-type", "").startswith("text/plain"):
            return {"message": response.body[:1000].decode("utf-8", "replace").strip()}
        return None
    return body if isinstance(body, dict) else None


def _is_json(text: bytes) -> bool:
    try:
        _decode_any(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _shut(sock: _Socket) -> None:
    while isinstance(sock, _InnerTLS):
        sock = sock.outer
    with contextlib.suppress(OSError):
        # Not SSLSocket.shutdown: it takes the TLS away under a reader, who would then read ciphertext as content.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise TimeoutError
    return min(seconds, 1e6)


def _reason(error: Exception) -> str:
    if isinstance(error, FramingError):
        return str(error)
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS failed"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
