"""Ask a URL outside of the API, once: what a program tells others it tells by this.

Each request has a connection of its own, to the server itself: no proxy, no redirect, no cookie, no credential but
those given. Nothing of a URL but scheme, host, port and path is ever in an error: the rest may be a secret.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from informers.api.calls import Cancel, Response
from informers.api.connections import Dialer
from informers.api.exchange import Call, ask, translated
from informers.api.http1 import build_head
from informers.api.kubeconfig import ClientConfig
from informers.clock import Stop, SystemClock
from informers.meta.errors import ConfigError, ConnectError, ConnectionLost, printable
from informers.version import VERSION

_METHOD: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WITH_BODY: Final = frozenset({"PATCH", "POST", "PUT"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_DESTINATIONS: Final = 8  # whose TLS contexts are kept: making one reads every certificate that the system trusts


@dataclass(frozen=True, slots=True)
class TLSOptions:
    """Whom to believe, and what to show, in one request to an `https` URL.

    Without `ca_file` the system's authorities are believed. `server_name` is what the certificate must be for, and
    what is asked for (SNI), if that is not the URL's host. Files are PEM, and are read again once they have changed.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure: bool = False


def fetch(
    method: str,
    url: str,
    *,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    timeout: float,
    tls: TLSOptions = TLSOptions(),
    max_bytes: int = 65536,
    stop: Stop | None = None,
) -> Response:
    """Send one request and return the answer, whatever its status; a redirect is an answer like any other.

    `timeout` are seconds for all of it: name, every address of the name in turn, TLS, request, answer. Of the answer
    the first `max_bytes` are kept. Given `stop`, the request ends at once when it is set.
    Raises `ConfigError` for a URL, method or header that cannot be sent; `ConnectError` when nothing was sent (also
    for certificate files that cannot be used), `RequestTimeout`, `ConnectionLost`.
    """
    parts = _parse(url)
    place = _shown(parts)
    head = _head(method, parts, headers, body, place)
    cancel = Cancel()
    take_off = stop.on_set(cancel.cancel) if stop is not None else None
    try:
        with translated(f"{method} {place}", cancel):
            return _ask(_dialers.of(parts, tls), _call(method, body, place), head, timeout, max_bytes, cancel)
    finally:
        if take_off is not None:
            take_off()


def _ask(dialer: Dialer, call: Call, head: bytes, timeout: float, max_bytes: int, cancel: Cancel) -> Response:
    clock = SystemClock()
    until = clock.monotonic() + timeout
    wire = dialer.dial(timeout, cancel)
    try:
        cancel.attach(wire.shut)
        answer = ask(wire, call, head, timeout=lambda: until - clock.monotonic())
        data = io.BytesIO()
        for block, start, end in answer.body.spans():
            data.write(memoryview(block)[start : min(end, start + max_bytes - data.tell())])
            if data.tell() >= max_bytes:
                break
        if not cancel.detach():
            msg = "cancelled"
            raise ConnectionLost(msg)
        return Response(answer.head.status, answer.head.headers, data.getvalue())
    finally:
        wire.close()


def _parse(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_usable = parts.port != 0
    except ValueError:
        is_usable, parts = False, SplitResult("", "", "", "", "")
    is_plain = all("!" <= char <= "~" for char in url)
    if not (is_usable and is_plain and parts.scheme in _DEFAULT_PORTS and parts.hostname) or "@" in parts.netloc:
        msg = "URL: want http:// or https://, a host, a path in percent-encoding, and no user before the host"
        raise ConfigError(msg)
    return parts


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}{printable(parts.path, limit=200)}"


def _head(method: str, parts: SplitResult, headers: Iterable[tuple[str, str]], body: bytes | None, place: str) -> bytes:
    if not method or not _METHOD.issuperset(method):
        msg = f"method {printable(method, limit=40)!r}: want capital letters, as in POST"
        raise ConfigError(msg)
    given = list(headers)
    names = {name.lower() for name, _ in given}
    standing = [("Host", parts.netloc), ("User-Agent", f"kube-informers/{VERSION}"), ("Connection", "close")]
    if body is not None or method in _WITH_BODY:
        standing.append(("Content-Length", str(len(body or b""))))
    lines = [*(pair for pair in standing if pair[0].lower() not in names), *given]
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    try:
        return build_head(method, target, lines)
    except ValueError:
        msg = f"{method} {place}: a header holds a control character"
        raise ConfigError(msg) from None


def _call(method: str, body: bytes | None, place: str) -> Call:
    return Call(method=method, target="", body=body, accept="*/*", verb=method, ref=None, where=place, cluster="")


# --- TLS contexts ------------------------------------------------------------------------------------------------


class _Dialers:
    """What opens connections to the destinations asked last; made anew when a certificate file has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _known
        self._known: OrderedDict[tuple[str, TLSOptions], tuple[object, Dialer]] = OrderedDict()

    def of(self, parts: SplitResult, tls: TLSOptions) -> Dialer:
        """Raises `ConnectError` when the files named cannot be used."""
        key = (f"{parts.scheme}://{parts.netloc}", tls)
        stamps = tuple(map(_stamp, (tls.ca_file, tls.cert_file, tls.key_file)))
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is not None and known[0] == stamps:
            return known[1]
        dialer = _make(*key)
        with self._lock:
            self._known[key] = stamps, dialer
            while len(self._known) > _DESTINATIONS:
                self._known.popitem(last=False)
        return dialer


def _make(server: str, tls: TLSOptions) -> Dialer:
    try:
        config = ClientConfig(
            server=server,
            ca_file=tls.ca_file,
            cert_file=tls.cert_file,
            key_file=tls.key_file,
            server_name=tls.server_name,
            insecure=tls.insecure,
            source=server,
        )
        return Dialer(config, cluster=None, clock=SystemClock())
    except ConfigError as error:
        raise ConnectError(str(error)) from None


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = Path(path).stat() if path else None
    except OSError:
        return (0,)
    return () if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


_dialers: Final = _Dialers()
