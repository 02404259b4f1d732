"""Know what to put into `Authorization`, and learn of a new token without one request failing.

A token file is read again when its token is a minute old, and at once when the server refuses it. A program (exec
plugin) is run again when what it said has expired or is refused. However many requests want a new one at the same
time, the file is read or the program run once.

What is surprising: the program runs on a thread of its own, so that nobody waits for it beyond their own deadline,
and its answer is there for whoever comes next.
"""

from __future__ import annotations

import base64
import logging
import threading
from dataclasses import dataclass
from typing import Final

from informers import metrics
from informers.api.calls import Cancel, NotSent
from informers.api.execplugins import ClientCertificate, ExecCredential, PluginRun, name_of
from informers.api.kubeconfig import ClientConfig, read_token
from informers.backoff import Backoff
from informers.clock import Clock
from informers.logs import Throttle, fields
from informers.meta.errors import ConfigError, ConnectError

_log = logging.getLogger(__name__)
_MAX_AGE: Final = 60.0  # of a token file's content
_PATIENCE: Final = 30.0  # with a program, before who waits for it is told so
_LONGEST_RUN: Final = 120.0  # a program that takes longer is ended, and run again
_SPACING: Final = 10.0  # between runs while what the program says is refused or has expired already
_FAILED: Final = Backoff(1.0, 30.0)
_FOR_EVER: Final = float("inf")
_reloads = metrics.counter(
    "informers_token_reloads_total",
    "Token files read and exec plugins run again, because of age or a refusal",
    ("cluster",),
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A value of the Authorization header (`""` = none), a certificate to show, and when both were made, by the clock."""

    authorization: str
    read_at: float
    number: int
    good_until: float = _FOR_EVER
    certificate: ClientCertificate | None = None

    def __repr__(self) -> str:
        return f"<Credential {self.number}>"


class Credentials:
    """Who we are in one cluster, as of now."""

    def __init__(self, config: ClientConfig, *, cluster: str, clock: Clock) -> None:
        self._config = config
        self._path = config.token_file
        self._cluster = cluster
        self._clock = clock
        self._warnings = Throttle(clock)
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._is_reading = False
        self._is_closed = False
        self._run: tuple[PluginRun, float] | None = None  # the program that runs, and since when
        self._failure: tuple[ConnectError, float] | None = None  # why the last run failed, and until when that counts
        self._failures = 0
        self._accepted = -1  # the newest credential that the server has taken
        now = clock.monotonic()
        authorization = _authorization_of(config)
        self._has_plugin = config.exec is not None and not (
            self._path or authorization or config.cert_file or config.cert_data
        )
        self._present = Credential(authorization, now, 0, good_until=now if self._has_plugin else _FOR_EVER)
        if self._path:
            self._read(self._present)

    def current(self, deadline: float, cancel: Cancel) -> Credential:
        """Return what to send, made anew first if it is too old.

        Raises, when it comes from a program: `ConnectError` if that fails or takes very long, `NotSent` when
        `deadline` (by the clock) comes first, `ConnectionLost` when cancelled.
        """
        with self._changed:
            present = self._present
            is_due = self._clock.monotonic() >= present.good_until
        return self._renewed(present, deadline, cancel) if is_due else present

    def newest(self) -> int:
        """Return the number of the newest credential there is, however old."""
        with self._changed:
            return self._present.number

    def accept(self, taken: Credential) -> None:
        """Note that the server knows who that is."""
        if taken.number > self._accepted:
            with self._changed:
                self._accepted = max(self._accepted, taken.number)

    def renew(self, refused: Credential, *, known: int, deadline: float, cancel: Cancel) -> bool:
        """Make a new one after a 401; tell whether the request is worth repeating.

        `known` is what `newest()` said when the request began. A credential that was made after that is as new as can
        be, and without a file or a program there is nothing to make one of. Raises as `current()` does.
        """
        if not (self._path or self._has_plugin) or refused.number > known:
            return False
        if self._has_plugin:
            with self._changed:
                is_present = self._present.number == refused.number
                is_pointless = self._accepted < refused.number and self._age_locked() < _SPACING
            if is_present and is_pointless:
                return False  # what was refused from the first is not asked for again and again
        self._renewed(refused, deadline, cancel)
        return True

    def close(self) -> None:
        """End the program that runs, if one does, and run none from now on."""
        with self._changed:
            self._is_closed = True
            run = self._run
            self._changed.notify_all()
        if run is not None:
            run[0].kill()
            run[0].join()

    def _age_locked(self) -> float:
        return self._clock.monotonic() - self._present.read_at

    def _renewed(self, old: Credential, deadline: float, cancel: Cancel) -> Credential:
        return self._asked(old, deadline, cancel) if self._has_plugin else self._reread(old)

    # A token file.

    def _reread(self, old: Credential) -> Credential:
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
        now = self._clock.monotonic()
        present = Credential(authorization, now, old.number + 1, good_until=now + _MAX_AGE)
        with self._changed:
            self._present = present
        return present

    # A program.

    def _asked(self, old: Credential, deadline: float, cancel: Cancel) -> Credential:
        """Wait for what the program says, unless it has been asked since `old`; run it if it does not run."""
        cancel.attach(self._wake)
        while True:
            began: PluginRun | None = None
            with self._changed:
                if self._present.number != old.number:
                    return self._present
                now = self._clock.monotonic()
                self._raise_failure_locked(now)
                if self._run is None:
                    began = PluginRun(self._config, self._ended)
                    self._run = (began, now)
                run, since = self._run
            if began is not None:
                self._begin(began)
            if now - since >= _LONGEST_RUN:
                self._give_up(run)
            if now - since >= _PATIENCE:
                self._complain()
            with self._changed:
                while self._runs_locked(run) and not cancel.is_cancelled():
                    now = self._clock.monotonic()
                    if now >= min(deadline, since + _PATIENCE):
                        break
                    self._clock.wait(self._changed, min(deadline, since + _PATIENCE) - now)
            cancel.attach(self._wake)  # raises if that was why
            if self._clock.monotonic() >= deadline:
                msg = f"{name_of(self._config)}: no answer in time; nothing was sent"
                raise NotSent(msg)

    def _begin(self, run: PluginRun) -> None:
        _reloads.add(cluster=self._cluster)
        try:
            run.start()
        except RuntimeError:  # the system has no more threads
            self._forget(run)
            raise

    def _give_up(self, run: PluginRun) -> None:
        """End a program that takes too long, and do not wait even for its end."""
        self._forget(run)
        run.kill()

    def _runs_locked(self, run: PluginRun) -> bool:
        return self._run is not None and self._run[0] is run

    def _forget(self, run: PluginRun) -> None:
        with self._changed:
            if self._runs_locked(run):
                self._run = None
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _raise_failure_locked(self, now: float) -> None:
        if self._is_closed:
            msg = f"{name_of(self._config)}: not run any more"
            raise ConnectError(msg)
        if self._failure is not None and now < self._failure[1]:
            raise ConnectError(str(self._failure[0]))

    def _complain(self) -> None:
        msg = f"{name_of(self._config)}: has not answered for {_PATIENCE:g} s"
        if self._warnings.allow(msg):
            _log.warning("waiting for an exec plugin", extra=fields(cluster=self._cluster, problem=msg))
        raise ConnectError(msg)

    def _ended(self, run: PluginRun, outcome: ExecCredential | ConnectError) -> None:
        """Take what the program said; on its thread."""
        now = self._clock.monotonic()
        with self._changed:
            if not self._runs_locked(run):
                return  # it was given up
            self._run = None
            if isinstance(outcome, ConnectError):
                self._failures += 1
                self._failure = (outcome, now + _FAILED.delay(self._failures))
            else:
                self._failure, self._failures = None, 0
                self._present = Credential(
                    f"Bearer {outcome.token}" if outcome.token else "",
                    now,
                    self._present.number + 1,
                    good_until=self._good_until(outcome, now),
                    certificate=outcome.certificate,
                )
            self._changed.notify_all()
            is_closed = self._is_closed
        if isinstance(outcome, ConnectError) and not is_closed and self._warnings.allow(str(outcome)):
            _log.warning("an exec plugin failed", extra=fields(cluster=self._cluster, problem=str(outcome)))

    def _good_until(self, outcome: ExecCredential, now: float) -> float:
        if outcome.expires is None:
            return _FOR_EVER
        left = (outcome.expires - self._clock.utc_now()).total_seconds()
        return now + max(left, _SPACING)


def _authorization_of(config: ClientConfig) -> str:
    if config.token:
        return f"Bearer {config.token}"
    if config.username:
        pair = f"{config.username}:{config.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"
    return ""
