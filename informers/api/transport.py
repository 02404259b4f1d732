"""Ask one cluster's API server: a request and its whole answer, or a stream of lines.

A request ends by its deadline, which covers everything from the first look-up to the last byte of the answer, and
any thread can end it at once through its `Cancel`. Each stream has a connection of its own; each thread that makes
ordinary requests keeps one open. A connection that failed in any way is never used again.

What is surprising: nothing here retries a stream, and a request is repeated only where the server asked for it, or
where it cannot have been carried out twice. Everything else is for the caller's backoff.
"""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from informers import metrics
from informers.api.calls import NOT_CARRIED_OUT, Cancel, NotSent, OutcomeUnknown, Response
from informers.api.connections import Dialer, Wire
from informers.api.credentials import Credential, Credentials
from informers.api.exchange import Call, ask, check_media_type, error_of, retry_after_of, translated, was_unanswered
from informers.api.fence import Fence, cut
from informers.api.http1 import CutError, build_head
from informers.api.kept import KeptConnections
from informers.api.kubeconfig import ClientConfig, is_unicode
from informers.api.limits import Gate
from informers.api.streams import Patience, Stream
from informers.clock import Clock, SystemClock
from informers.logs import Throttle, fields
from informers.meta.errors import APIError, ConfigError, TransportError, is_too_large, printable
from informers.meta.resources import GVR, ObjectRef

_log = logging.getLogger(__name__)

CONNECT_LIMIT: Final = 30.0  # for opening a stream; requests have their own deadline
_REFUSAL_LIMIT: Final = 10.0  # for reading why a stream was refused
_REFUSAL_SIZE: Final = 1 << 20
_REPEATS: Final = 10
_FOR_EVER: Final = 1e6  # a longer timeout is none, and more than the system takes
_LONGEST_RETRY_AFTER: Final = 30.0
_READS: Final = frozenset({"GET", "HEAD"})
_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_requests = metrics.counter(
    "informers_requests_total", "Answers, by status; error = no answer", ("cluster", "verb", "code")
)
_request_seconds = metrics.histogram(
    "informers_request_seconds",
    "From a request to its whole answer, waits and repeats included; to the first byte of a stream",
    ("cluster", "verb"),
    known={"verb": ("get", "list", "watch", "create", "update", "patch", "delete")},
)


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
        credentials: Credentials | None = None,
    ) -> None:
        self.cluster = cluster
        self.clock: Clock = SystemClock() if clock is None else clock
        self.config = config
        self._line_limit = line_limit
        self._owns_credentials = credentials is None
        self._credentials = credentials or Credentials(config, cluster=cluster, clock=self.clock)
        self._dialer = Dialer(config, cluster=cluster, clock=self.clock)
        self._gate = Gate(clock=self.clock, max_inflight=max_inflight, qps=qps, burst=burst)
        self._warnings = Throttle(self.clock, period=3600.0)
        self._base = urlsplit(config.server).path.rstrip("/")
        self._user_agent = user_agent
        self._standing_headers = (
            ("Host", urlsplit(config.server).netloc),
            *_impersonation_headers(config),
        )
        self._kept = KeptConnections(self.clock)
        self._let_go = metrics.hold(cluster=cluster)
        self._lock = threading.Lock()  # guards _reads
        self._reads: set[Cancel] = set()

    @property
    def credentials(self) -> Credentials:
        """Who we are, to be shared with another transport to the same cluster: a program is run once for both."""
        return self._credentials

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
        fence: Fence | None = None,
        verb: str = "",
        ref: ObjectRef | GVR | None = None,
        where: str = "",
        part: str = "",
    ) -> Response:
        """Send one request and return its whole answer, within `timeout` seconds in all.

        `retry_safe` says that carrying it out twice does no harm, as a precondition in it would stop the second time;
        `unlimited` requests wait for no turn; `fence` is asked before every try of a write, and before each of its
        bytes goes out; `verb`, `ref` and `where` are for messages, `part` says who asks in the User-Agent. Repeated when
        the server answers 429 or 5xx with Retry-After (at most 10 times), once after a 401 with credentials read anew,
        and once on a kept-alive connection that turns out to be closed.

        Raises an `APIError` for an answer other than 2xx or of another media type than asked for, `ConnectError`
        and `NotSent` when nothing was sent, `NotLeaderError` when the fence kept it from being sent, `ConnectionLost`
        and `RequestTimeout` when the outcome is unknown.
        """
        call = Call(
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
            part=part,
            fence=fence,
        )
        started = self.clock.monotonic()
        deadline = started + min(timeout, _FOR_EVER)
        cancel = Cancel() if cancel is None else cancel
        if method in _READS:
            with self._lock:
                self._reads.add(cancel)
        try:
            with translated(call.what, cancel):
                return self._request(call, deadline, cancel, unlimited=unlimited)
        except TransportError:
            _requests.add(cluster=self.cluster, verb=call.verb, code="error")
            raise
        finally:
            _request_seconds.observe(self.clock.monotonic() - started, cluster=self.cluster, verb=call.verb)
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
        part: str = "",
    ) -> Stream:
        """Open a stream on a connection of its own; returns when the headers of the answer have come.

        It gives up after `silence` seconds without a byte, counted from when the request was sent, and ends by itself
        `deadline` seconds after this call. Outside all limits. Raises as `request` does; an `APIError` carries
        `retry_after` if the server named one. Repeated once after a 401 with credentials read anew.
        """
        call = Call(
            method="GET",
            target=self._target(path, query),
            accept=accept,
            verb=verb,
            ref=ref,
            where=where or ("" if ref else path),
            cluster=self.cluster,
            part=part,
        )
        started = self.clock.monotonic()
        until = started + min(deadline, _FOR_EVER)
        try:
            with translated(call.what, cancel):
                renewal = _Renewal(self._credentials, self._dialer)
                while True:
                    credential = self._credentials.current(until, cancel)
                    opened = self._open(call, credential, silence, until, cancel)
                    status = 200 if isinstance(opened, Stream) else opened.status
                    if renewal.helps(status, credential, until, cancel):
                        continue
                    if isinstance(opened, Stream):
                        return opened
                    raise error_of(opened, call, retry_after_of(opened, self.clock))
        except TransportError:
            _requests.add(cluster=self.cluster, verb=call.verb, code="error")
            raise
        finally:
            _request_seconds.observe(self.clock.monotonic() - started, cluster=self.cluster, verb=call.verb)
            # A cancel in the window after `_open` returned has shut the wire, as it stays attached for the
            # stream's life; a stream that never came to be has nothing attached.
            self._kept.close_stale()

    def cut_reads(self) -> None:
        """End all GETs in flight at once, as at stop; each raises `ConnectionLost`."""
        with self._lock:
            reads = list(self._reads)
        for cancel in reads:
            cancel.cancel()

    def tidy(self) -> None:
        """Do what is due though nobody asks anything: close idle connections, look at certificate files."""
        self._kept.close_stale(self._dialer.epoch())

    def close(self) -> None:
        """Close idle connections, those in use when their answer has come; end a program that makes credentials."""
        if self._owns_credentials:
            self._credentials.close()
        self._kept.close()
        self._let_go()

    def _request(self, call: Call, deadline: float, cancel: Cancel, *, unlimited: bool) -> Response:
        """Ask until there is an answer to give; an error has `OutcomeUnknown` as its cause where that is so."""
        doubt = _Doubt()
        try:
            return self._answer(call, deadline, cancel, doubt, unlimited=unlimited)
        except (APIError, TransportError) as error:
            if doubt.cause is None or call.method in _READS:
                raise
            raise error from doubt.cause

    def _answer(self, call: Call, deadline: float, cancel: Cancel, doubt: _Doubt, *, unlimited: bool) -> Response:
        renewal = _Renewal(self._credentials, self._dialer)
        repeats = 0
        while True:
            credential = self._credentials.current(deadline, cancel)
            response = self._turn(call, credential, deadline, cancel, doubt, unlimited=unlimited)
            if renewal.helps(response.status, credential, deadline, cancel):
                continue
            if response.status < 300:
                self._log_warnings(response, call)
                return _checked(response, call)
            retry_after = retry_after_of(response, self.clock)
            if retry_after is None or not (response.status == 429 or response.status >= 500):
                raise error_of(response, call, retry_after)
            wait = min(retry_after, _LONGEST_RETRY_AFTER)
            repeats += 1
            is_last = repeats > _REPEATS or self.clock.monotonic() + wait >= deadline
            # No variable holds an error: its traceback would hold the variable, and only the garbage collector frees that.
            if is_last or is_too_large(error_of(response, call, retry_after)):
                raise error_of(response, call, retry_after)
            if response.status >= 500 and response.status not in NOT_CARRIED_OUT:
                doubt.cause = OutcomeUnknown(f"answered {response.status} before")
            _log.debug("asked to wait", extra=fields(status=response.status, seconds=wait))
            cancel.wait(self.clock, wait)

    def _turn(
        self, call: Call, credential: Credential, deadline: float, cancel: Cancel, doubt: _Doubt, *, unlimited: bool
    ) -> Response:
        """Wait for a turn at the gate, then exchange request and answer once."""
        if unlimited:
            return self._exchange(call, credential, deadline, cancel, doubt)
        cancel.attach(self._gate.wake)
        if not self._gate.enter(deadline, cancel.is_cancelled):
            cancel.attach(self._gate.wake)  # raises if that was why
            msg = "no turn among the requests in flight in time; nothing was sent"
            raise NotSent(msg)
        was_answered = False
        try:
            response = self._exchange(call, credential, deadline, cancel, doubt)
            was_answered = response.status != 429
            wait = None if was_answered else retry_after_of(response, self.clock)
            if wait is not None:
                self._gate.pause(min(wait, _LONGEST_RETRY_AFTER))  # before the turn goes to who waits for one
            return response
        finally:
            self._gate.leave(was_answered=was_answered)

    def _exchange(self, call: Call, credential: Credential, deadline: float, cancel: Cancel, doubt: _Doubt) -> Response:
        if call.fence is not None:
            cut(call.fence, 0)  # it may have waited for a turn, or been asked to wait, meanwhile
        head = self._head(call, credential.authorization)
        wire = self._kept.take(self._dialer.epoch(credential.certificate))
        if wire is not None:
            try:
                return self._exchange_on(wire, call, head, deadline, cancel)
            except _StaleError:
                _log.debug("kept-alive connection was closed")
                if wire.sent:
                    doubt.cause = OutcomeUnknown("sent before, on a connection that was closed without an answer")
        wire = self._dialer.dial(self._left(deadline), cancel, credential.certificate)
        return self._exchange_on(wire, call, head, deadline, cancel)

    def _exchange_on(self, wire: Wire, call: Call, head: bytes, deadline: float, cancel: Cancel) -> Response:
        is_reused, wire.sent = wire.uses > 0, 0
        keep = False
        try:
            cancel.attach(wire.shut)
            answer = ask(wire, call, head, timeout=lambda: self._left(deadline))
            data = io.BytesIO()  # grows in place, and gives its bytes away without a copy
            for block, start, end in answer.body.spans():
                data.write(memoryview(block)[start:end])
                if answer.head.status >= 300 and data.tell() > _REFUSAL_SIZE:
                    break  # no Status is that long; the connection is not kept
            if not answer.body.is_delimited:
                cancel.attach(wire.shut)  # raises if that was the end
            keep = answer.body.is_reusable() and cancel.detach()
        except (OSError, CutError) as error:
            if is_reused and was_unanswered(error) and not cancel.is_cancelled() and (call.may_repeat or not wire.sent):
                raise _StaleError from error
            raise
        finally:
            if keep:
                self._kept.put(wire)
            else:
                wire.close()
        _requests.add(cluster=self.cluster, verb=call.verb, code=str(answer.head.status))
        return Response(answer.head.status, answer.head.headers, data.getvalue())

    def _open(
        self, call: Call, credential: Credential, silence: float, until: float, cancel: Cancel
    ) -> Stream | Response:
        """Open a connection and ask for a stream; return it, or the whole answer that refuses it."""
        wire = self._dialer.dial(min(self._left(until), CONNECT_LIMIT), cancel, credential.certificate)
        is_open = False
        try:
            cancel.attach(wire.shut)
            patience = Patience(silence, until, self.clock)

            def timeout() -> float:
                self._kept.close_stale()  # also in a program that only watches
                return patience.left()

            answer = ask(wire, call, self._head(call, credential.authorization), timeout=timeout)
            _requests.add(cluster=self.cluster, verb=call.verb, code=str(answer.head.status))
            if answer.head.status != 200:
                patience.until = min(until, self.clock.monotonic() + _REFUSAL_LIMIT)
                data = io.BytesIO()
                for block, start, end in answer.body.spans():
                    data.write(memoryview(block)[start:end])
                    if data.tell() > _REFUSAL_SIZE:
                        break
                return Response(answer.head.status, answer.head.headers, data.getvalue())
            self._log_warnings(Response(200, answer.head.headers, b""), call)
            check_media_type(answer.head.status, answer.head.headers, call)
            stream = Stream(answer, patience=patience, cancel=cancel, line_limit=self._line_limit, what=call.what)
            is_open = True
            return stream
        finally:
            if not is_open:
                cancel.detach()
                wire.close()

    def _head(self, call: Call, authorization: str) -> bytes:
        user_agent = f"{self._user_agent} ({call.part})" if call.part else self._user_agent
        headers = [
            *self._standing_headers,
            ("User-Agent", printable(user_agent, limit=500).encode("ascii", "replace").decode()),
            ("Accept", call.accept),
        ]
        headers.append(("Accept-Encoding", "gzip" if call.gzip else "identity"))
        if authorization:
            headers.append(("Authorization", authorization))
        if call.body is not None:
            headers.append(("Content-Type", call.content_type or "application/json"))
        if call.body is not None or call.method in {"POST", "PUT", "PATCH"}:
            headers.append(("Content-Length", str(len(call.body or b""))))
        if not (call.method.isascii() and call.method.isalpha()):
            msg = f"method {printable(call.method, limit=40)!r} is none"
            raise ConfigError(msg)
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
            if not all(is_unicode(text) for pair in query for text in pair):
                msg = f"query of {printable(path, limit=200)}: holds half of a character"
                raise ConfigError(msg)
            target += f"{'&' if '?' in path else '?'}{urlencode(query, quote_via=quote)}"
        return target

    def _left(self, deadline: float) -> float:
        return deadline - self.clock.monotonic()

    def _log_warnings(self, response: Response, call: Call) -> None:
        header = response.headers.get("warning")
        if header is None:
            return
        gvr = getattr(call.ref, "gvr", call.ref)
        is_secret = getattr(gvr, "resource", "") == "secrets" or "secrets" in call.where
        for found in _WARNING.finditer(header):
            text = "(about a Secret)" if is_secret else printable(found[1].replace('\\"', '"'), limit=300)
            if self._warnings.allow(text):
                _log.warning(
                    "the API server warns",
                    extra=fields(warning=text, about=str(call.ref or call.where), verb=call.verb, cluster=self.cluster),
                )


class _Renewal:
    """Whether the answer to a call is worth asking again, once, with credentials made anew."""

    def __init__(self, credentials: Credentials, dialer: Dialer) -> None:
        self._credentials = credentials
        self._dialer = dialer
        self._known = credentials.newest()
        self._epoch = dialer.epoch()
        self._is_used = False

    def helps(self, status: int, credential: Credential, deadline: float, cancel: Cancel) -> bool:
        """Note an answer; after the first 401, make credentials anew and tell whether there is anything new."""
        if status != 401:
            self._credentials.accept(credential)
            return False
        if self._is_used:
            return False
        self._is_used = True
        has_token = self._credentials.renew(credential, known=self._known, deadline=deadline, cancel=cancel)
        # An API server takes any certificate, and answers 401 to one that has expired.
        return self._dialer.look_again(self._epoch) or has_token


@dataclass(slots=True)
class _Doubt:
    """Why an earlier try of a request may have been carried out, if one may."""

    cause: OutcomeUnknown | None = None


class _StaleError(Exception):
    """A kept-alive connection was closed before any byte of the answer, and the request may be sent again."""


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


def _checked(response: Response, call: Call) -> Response:
    if response.body:
        check_media_type(response.status, response.headers, call)
    return response
