"""Make the TLS context that connections to one server are opened with, and a new one when its files have changed.

Files are looked at every five minutes, and at once when a certificate was refused. What cannot be used (a key that
does not belong to its certificate yet, half a file) changes nothing: the old context stays, and the files are looked
at again soon.

What is surprising: files are read before and after they are loaded, as what is compared must be what was loaded.
"""

from __future__ import annotations

import logging
import ssl  # noqa: TID251 - one of the two modules that know TLS
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from informers.api.execplugins import ClientCertificate
from informers.api.kubeconfig import ClientConfig
from informers.clock import Clock
from informers.logs import Throttle, fields
from informers.meta.errors import ConfigError, ConnectError

_log = logging.getLogger(__name__)

_PERIOD: Final = 300.0  # between looks at files
_SOON: Final = 10.0  # after files that could not be used
_READS: Final = 3  # of files that change while they are read


@dataclass(frozen=True, slots=True)
class Made:
    """A context and its number: a higher one was made later."""

    context: ssl.SSLContext
    number: int


class TLSContexts:
    """The context of one cluster, as of now. Use it from any thread.

    Raises `ConfigError` when what the configuration names cannot be used at the start.
    """

    def __init__(self, config: ClientConfig, *, cluster: str, clock: Clock) -> None:
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._warnings = Throttle(clock)
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._is_looking = False
        self._shown: ClientCertificate | None = None
        self._content, context = _load(config)
        self._due = clock.monotonic() + _PERIOD
        self._present = Made(context, 1)

    def current(self, shown: ClientCertificate | None = None) -> Made:
        """Return the context to connect with; `shown` is a certificate that takes the place of the configured one.

        Raises `ConnectError` when that certificate cannot be used.
        """
        with self._changed:
            present = self._present
            is_due = self._has_files() and self._clock.monotonic() >= self._due
            is_other = shown is not None and shown != self._shown
        if not (is_due or is_other):
            return present
        return self._look(present, shown)

    def look_again(self, used: int) -> bool:
        """Look at the files now, as what number `used` brought was refused; tell whether there is a newer context."""
        with self._changed:
            present = self._present
        if present.number > used:
            return True
        return self._has_files() and self._look(present, None).number > used

    def _has_files(self) -> bool:
        return bool(_paths(self._config))

    def _look(self, old: Made, shown: ClientCertificate | None) -> Made:
        """Look, unless somebody has since `old`; who comes meanwhile waits for that one look."""
        with self._changed:
            while self._is_looking:
                self._clock.wait(self._changed, None)
            if self._present is not old and (shown is None or shown == self._shown):
                return self._present
            self._is_looking = True
            content, before = self._content, self._shown
        shown = shown or before
        problem: ConfigError | None = None
        context: ssl.SSLContext | None = None
        try:
            if shown != before or _read(self._config) != content:
                content, context = _load(self._config, shown)
        except ConfigError as error:
            problem = error
        finally:
            with self._changed:
                self._is_looking = False
                self._due = self._clock.monotonic() + (_PERIOD if problem is None else _SOON)
                if context is not None:
                    self._content, self._shown = content, shown
                    self._present = Made(context, self._present.number + 1)
                present = self._present
                self._changed.notify_all()
        if problem is not None and shown != before:
            raise ConnectError(str(problem))  # the old one is nobody's any more
        if problem is not None and self._warnings.allow(str(problem)):
            _log.warning(
                "certificates not read, keeping the old ones", extra=fields(cluster=self._cluster, problem=str(problem))
            )
        if context is not None:
            _log.info("certificates have changed", extra=fields(cluster=self._cluster))
        return present


def _paths(config: ClientConfig) -> tuple[str, ...]:
    """The files that a context is made of; data wins over a file of the same purpose."""
    named = (
        "" if config.ca_data or config.insecure else config.ca_file,
        "" if config.cert_data else config.cert_file,
        "" if config.key_data else config.key_file,
    )
    return tuple(path for path in named if path)


def _read(config: ClientConfig) -> tuple[bytes, ...]:
    found = []
    for path in _paths(config):
        try:
            found.append(Path(path).read_bytes())
        except OSError as error:
            msg = f"{config.source}: {path}: {error.strerror or 'cannot be read'}"
            raise ConfigError(msg) from None
    return tuple(found)


def _load(config: ClientConfig, shown: ClientCertificate | None = None) -> tuple[tuple[bytes, ...], ssl.SSLContext]:
    """Return a context, and the content of the files that it was made of."""
    if shown is not None:
        config = replace(config, cert_data=shown.cert, key_data=shown.key, cert_file="", key_file="")
    for _ in range(_READS):
        content = _read(config)
        context = _build(config)
        if _read(config) == content:
            return content, context
    msg = f"{config.source}: {', '.join(_paths(config))}: change while they are read"
    raise ConfigError(msg)


def _build(config: ClientConfig) -> ssl.SSLContext:
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
        what = "certificate-authority-data" if config.ca_data else config.ca_file
        msg = f"{config.source}: certificate authority {what}: {_reason(error)}"
        raise ConfigError(msg) from None


def _load_client_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    # The ssl module takes keys from files only; ours stand there, for us alone, no longer than it reads them.
    try:
        if not (config.cert_data or config.key_data):
            _load_chain(context, config.cert_file, config.key_file)
            return
        import tempfile  # costs memory in each process, and in a pod there is no client certificate

        with tempfile.TemporaryDirectory(prefix="kube-informers-") as folder:
            cert = _as_file(config.cert_data, config.cert_file, Path(folder) / "cert")
            key = _as_file(config.key_data, config.key_file, Path(folder) / "key")
            _load_chain(context, cert, key)
    except (OSError, ValueError) as error:
        what = "client-certificate-data" if config.cert_data else config.cert_file
        msg = f"{config.source}: client certificate {what} and its key: {_reason(error)}"
        raise ConfigError(msg) from None


def _load_chain(context: ssl.SSLContext, cert: str, key: str) -> None:
    context.load_cert_chain(cert, key, password=lambda: "")  # without one it would ask on the terminal


def _as_file(data: bytes, path: str, temporary: Path) -> str:
    if not data:
        return path
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    return str(temporary)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "holds none that can be read"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
