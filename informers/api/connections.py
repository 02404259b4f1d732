"""Open connections to one API server, through TLS and proxies. The one module that knows sockets.

Opening one ends by its time, whatever it waits for, and any thread can end it at once, then or later: `Wire.shut()`.

What is surprising: a look-up of a name has a thread of its own, as nothing can interrupt it.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import select
import socket
import ssl  # noqa: TID251 - one of the two modules that know TLS
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from informers import metrics
from informers.api.calls import Cancel, NotSent
from informers.api.execplugins import ClientCertificate
from informers.api.http1 import FramingError, build_head, read_head
from informers.api.kubeconfig import ClientConfig
from informers.api.proxies import Proxy, find_proxy
from informers.api.tls import TLSContexts
from informers.clock import Clock, SystemClock
from informers.logs import fields
from informers.meta.errors import ConnectError

_log = logging.getLogger(__name__)

_BLOCK: Final = 1 << 16
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
# X509_V_ERR_CERT_SIGNATURE_FAILURE, DEPTH_ZERO_SELF_SIGNED_CERT to UNABLE_TO_VERIFY_LEAF_SIGNATURE.
_UNKNOWN_AUTHORITY: Final = frozenset({7, 18, 19, 20, 21})
_LOOK_AGAIN: Final = 0.25  # a connection attempt looks this often whether it is still wanted
_connections = metrics.gauge("informers_connections_open", "Connections to API servers", ("cluster",))


class Dialer:
    """Opens connections to one server: addresses, proxy, TLS. One TLS context for all, until its files change.

    Without a cluster it is not an API server: no proxy is looked for, and its connections are not counted.
    """

    def __init__(self, config: ClientConfig, *, cluster: str | None, clock: Clock) -> None:
        parts = urlsplit(config.server)
        self._cluster = cluster
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._name = config.server_name or self._host
        self._tls = TLSContexts(config, cluster=cluster or "", clock=clock) if parts.scheme == "https" else None
        self._is_strict = config.strict_x509
        self._authority = f"the certificate-authority of {config.source}" if config.ca_data or config.ca_file else ""
        self._proxy = None if cluster is None else find_proxy(config, parts.scheme, self._host, self._port)
        self._proxy_tls = ssl.create_default_context() if self._proxy and self._proxy.is_https else None
        if config.insecure and self._tls is not None:
            _log.warning("TLS certificates are not verified", extra=fields(server=config.server, cluster=cluster or ""))

    def epoch(self, shown: ClientCertificate | None = None) -> int:
        """Return a number that is higher once certificates have changed: older connections are not used again then."""
        return 0 if self._tls is None else self._tls.current(shown).number

    def look_again(self, epoch: int) -> bool:
        """Look whether certificate files have changed since `epoch`, as what they hold was refused."""
        return self._tls is not None and self._tls.look_again(epoch)

    def dial(self, seconds: float, cancel: Cancel, shown: ClientCertificate | None = None) -> Wire:
        """Connect within `seconds`; raise `ConnectError`, `NotSent`, or `ConnectionLost` when cancelled.

        `shown` is a certificate that takes the place of the configured one. When the server's certificate is refused
        and the files have changed since they were read, it is tried once more with what they hold now.
        """
        until = _Countdown(seconds)
        epoch = self.epoch(shown)
        try:
            return self._dial(until, cancel, shown)
        except _RefusedError as refused:
            if not self.look_again(epoch):
                raise ConnectError(str(refused)) from refused.__cause__
        try:
            return self._dial(until, cancel, shown)
        except _RefusedError as refused:
            raise ConnectError(str(refused)) from refused.__cause__

    def _dial(self, until: _Countdown, cancel: Cancel, shown: ClientCertificate | None) -> Wire:
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
            msg = f"cannot connect to {place}: {reason_of(error)}"
            raise ConnectError(msg) from error
        is_ready = False
        is_inner = self._proxy is None
        try:
            if self._proxy:
                if self._proxy_tls is not None:
                    self._secure(wire, self._proxy_tls, self._proxy.host, until, cancel)
                self._tunnel(wire, self._proxy, until)
            is_inner = True
            if self._tls is not None:
                made = self._tls.current(shown)
                wire.epoch = made.number
                self._secure(wire, made.context, self._name, until, cancel)
            is_ready = True
            return wire
        except TimeoutError as error:
            msg = f"no connection to {place} in time; nothing was sent"
            raise NotSent(msg) from error
        except ssl.SSLError as error:
            msg = f"TLS with {place} failed: {self._tls_reason(error, is_inner=is_inner)}"
            kind = _RefusedError if is_inner and isinstance(error, ssl.SSLCertVerificationError) else ConnectError
            raise kind(msg) from error
        except (OSError, FramingError) as error:
            msg = f"cannot connect through {place}: {reason_of(error)}"
            raise ConnectError(msg) from error
        finally:
            if not is_ready:
                wire.close()

    def _connect(self, host: str, port: int, until: _Countdown, cancel: Cancel) -> Wire:
        addresses = _addresses_of(host, port, until, cancel)
        failure: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            # One dead address must not use up the time of the others.
            share = until.left() / (len(addresses) - number)
            wire = Wire(socket.socket(family, kind, protocol), self._cluster)
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
        try:
            raise failure or OSError(errno.EADDRNOTAVAIL, "no address")
        finally:
            del failure  # its traceback holds this frame: only the garbage collector would free them

    def _tunnel(self, wire: Wire, proxy: Proxy, until: _Countdown) -> None:
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

    def _secure(self, wire: Wire, context: ssl.SSLContext, name: str, until: _Countdown, cancel: Cancel) -> None:
        sock: _Socket
        if isinstance(wire.sock, socket.socket) and not isinstance(wire.sock, ssl.SSLSocket):
            sock = context.wrap_socket(wire.sock, server_hostname=name, do_handshake_on_connect=False)
        else:
            sock = _InnerTLS(wire.sock, context, name)
        wire.replace(sock)
        cancel.attach(wire.shut)
        sock.settimeout(_positive(until.left()))
        sock.do_handshake()

    def _tls_reason(self, error: ssl.SSLError, *, is_inner: bool) -> str:
        if not isinstance(error, ssl.SSLCertVerificationError):
            if error.reason in _NOT_TLS:
                return f"{error.reason}: want TLS, found something else; is the server one for http://?"
            return error.reason or "connection closed"
        # X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA to X509_V_ERR_EXTENSIONS_REQUIRE_VERSION_3: strict checks only.
        if self._is_strict and 79 <= error.verify_code <= 93:
            return (
                f"{error.verify_message}: the certificate fails strict X.509 checks, which strict_x509=False leaves out"
            )
        if error.verify_code in _UNKNOWN_AUTHORITY:
            authority = (self._authority if is_inner else "") or "an authority that this system trusts"
            return f"{error.verify_message}: not signed by {authority}"
        return error.verify_message


class _RefusedError(Exception):
    """The server's certificate is not one that we trust."""


def _connect_socket(wire: Wire, address: Any, until: _Countdown, cancel: Cancel) -> None:
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
        raise failed.pop()  # no variable holds it: its traceback would hold the variable
    if not found:
        raise TimeoutError
    return found[0]


class _Countdown:
    """Real seconds that are left for connecting; sockets know no other clock."""

    def __init__(self, seconds: float) -> None:
        self._clock = SystemClock()
        self._until = self._clock.monotonic() + seconds

    def left(self) -> float:
        return self._until - self._clock.monotonic()


class Wire:
    """One connection. One thread uses it; any thread may shut it."""

    def __init__(self, sock: _Socket, cluster: str | None) -> None:
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
        self.epoch = 0  # which certificates it was opened with
        if cluster is not None:
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
        if not was_closed and self._cluster is not None:
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
        return _received(self._sock)

    def is_readable(self) -> bool:
        """Tell whether a read would return at once: bytes, the end, or an error."""
        poller = select.poll()
        poller.register(self._sock.fileno(), select.POLLIN)
        return bool(poller.poll(0))


class _InnerTLS:
    """TLS inside another TLS connection, as an https proxy needs it. Has what `Wire` uses of a socket."""

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

    def recv_into(self, buffer: memoryview) -> int:
        try:
            size: int = self._run(lambda: self._tls.read(len(buffer), buffer))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0
        return size

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
                if block := _received(self.outer):
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


class _Buffer(threading.local):
    """Where a thread receives."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_BLOCK))


_buffer: Final = _Buffer()


def _received(sock: _Socket) -> bytes:
    """Receive, and copy what came. `recv()` cuts a block of full size down to what came.

    The rest of that block is then a gap just too small for the next one: memory of a program that follows changes
    would grow for hours, most of it gaps.
    """
    size = sock.recv_into(_buffer.view)
    return bytes(_buffer.view[:size])


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


def reason_of(error: Exception) -> str:
    """Say in a few words what went wrong; never quotes content."""
    if isinstance(error, FramingError):
        return str(error)
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS failed"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
