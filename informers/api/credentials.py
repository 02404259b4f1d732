"""Know what to put into `Authorization`, and learn of a new token without one request failing.

A token file is read again when its token is a minute old, and at once when the server refuses it. However many
requests are refused at the same time, the file is read once.
"""

from __future__ import annotations

import base64
import logging
import threading
from dataclasses import dataclass
from typing import Final

from informers import metrics
from informers.api.kubeconfig import ClientConfig, read_token
from informers.clock import Clock
from informers.logs import Throttle, fields
from informers.meta.errors import ConfigError

_log = logging.getLogger(__name__)
_MAX_AGE: Final = 60.0
_reloads = metrics.counter(
    "informers_token_reloads_total", "Token files read again, because of age or a refusal", ("cluster",)
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A value of the Authorization header (`""` = none), and when it was read, by the clock."""

    authorization: str
    read_at: float
    number: int

    def __repr__(self) -> str:
        return f"<Credential {self.number}>"


class Credentials:
    """Who we are in one cluster, as of now."""

    def __init__(self, config: ClientConfig, *, cluster: str, clock: Clock) -> None:
        self._path = config.token_file
        self._cluster = cluster
        self._clock = clock
        self._warnings = Throttle(clock)
        self._changed = threading.Condition(threading.Lock())  # guards _present and _is_reading
        self._is_reading = False
        self._present = Credential(_authorization_of(config), clock.monotonic(), 0)
        if self._path:
            self._read(self._present)

    def current(self) -> Credential:
        """Return what to send, read again first if it is a minute old."""
        with self._changed:
            present = self._present
            is_due = bool(self._path) and self._clock.monotonic() - present.read_at >= _MAX_AGE
        return self._renewed(present) if is_due else present

    def newest(self) -> int:
        """Return the number of the newest credential there is, however old."""
        with self._changed:
            return self._present.number

    def renew(self, refused: Credential, *, known: int) -> bool:
        """Read again after a 401; tell whether the request is worth repeating.

        `known` is what `newest()` said when the request began. A token that was read after that is as new as can be,
        and without a file there is nothing to read.
        """
        if not self._path or refused.number > known:
            return False
        self._renewed(refused)
        return True

    def _renewed(self, old: Credential) -> Credential:
        """Read the file, unless somebody has since `old`; who comes meanwhile waits for that one reading."""
        with self._changed:
            while self._is_reading and self._present.number == old.number:
                self._clock.wait(self._changed, None)
            if self._present.number != old.number:
                return self._present
            self._is_reading = True
        try:
            return self._read(old)
        finally:
            with self._changed:
                self._is_reading = False
                self._changed.notify_all()

    def _read(self, old: Credential) -> Credential:
        _reloads.add(cluster=self._cluster)
        try:
            authorization = f"Bearer {read_token(self._path)}"
        except ConfigError as error:
            authorization = old.authorization
            if self._warnings.allow(str(error)):
                _log.warning("token not read, keeping the old one", extra=fields(problem=str(error)))
        present = Credential(authorization, self._clock.monotonic(), old.number + 1)
        with self._changed:
            self._present = present
        return present


def _authorization_of(config: ClientConfig) -> str:
    if config.token:
        return f"Bearer {config.token}"
    if config.username:
        pair = f"{config.username}:{config.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"
    return ""
