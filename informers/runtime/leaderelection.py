"""Lead while a Lease is ours: take it, renew it, notice in time when it is lost, and give it back at the end.

Two threads. One asks the API server, on a connection of its own and outside all limits, and may hang there. The other
only watches the clock: when the deadline has passed it tells that leadership is lost, and when the work has not ended
by the time when another process may begin, it ends this one. The fence needs neither; it is a point in time.

What is surprising: leadership that is lost is not won back. Work that has been cut off in the middle is not to be
gone on with, so the process ends, and a new one becomes a candidate. For the same reason no worker can write in a
later term than the one in which it began.

What this cannot prevent: a request that the server has received before the end and carries out after it, and a machine
that is suspended as a whole, with the clock that never stops otherwise. There the preconditions in a write help.
"""

from __future__ import annotations

import logging
import math
import platform
import random
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from informers import metrics
from informers.api.calls import Cancel, Response
from informers.api.client import collection_path, object_path
from informers.api.fence import FenceKeeper
from informers.api.transport import Transport
from informers.clock import Clock, Stop
from informers.logs import Throttle, fields
from informers.meta.errors import (
    APIError,
    ConfigError,
    ConflictError,
    LeadershipLostError,
    NotFoundError,
    TransportError,
)
from informers.meta.resources import GVR, ObjectRef
from informers.runtime.lease import (
    Lease,
    Look,
    Lose,
    Rest,
    Step,
    Terms,
    View,
    Write,
    Yield,
    decide,
    failed,
    looked,
    released,
    wrote,
)

_log = logging.getLogger(__name__)

LEASES: Final = GVR("coordination.k8s.io", "v1", "leases")
_LEAST_LIMIT: Final = 1.0
_STUCK: Final = 60.0
_LATE: Final = 5.0

_leads = metrics.gauge("informers_leader", "1 while this process leads", combine="max")
_gap = metrics.gauge(
    "informers_lease_renew_gap_seconds", "Since the last renewal was sent, while leading", combine="max"
)
_longest_gap = metrics.gauge("informers_lease_renew_gap_max_seconds", "Longest time without a renewal", combine="max")
_transitions = metrics.counter("informers_lease_transitions_total", "Changes of the lease's holder that were seen")


@dataclass(frozen=True, slots=True)
class LeaderElection:
    """Have only one process of several work at a time: the one that holds the Lease `name` in the home cluster.

    Raises `ConfigError` unless lease_duration > renew_deadline > 1.2 * retry_period > 0, lease_duration in whole
    seconds.

    Attributes:
        name: of the Lease.
        namespace: of the Lease; `""` = the pod's own, elsewhere `default`.
        lease_duration: seconds after which others may take a lease that is not renewed.
        renew_deadline: seconds without a renewal after which the leader stops, and ends with `LeadershipLostError`.
        retry_period: seconds from one renewal to the next; others look about twice as often.
        identity: who we are; `""` = the host's name and something that is different for each process.
        release: give the lease back at an orderly stop, so that another process takes over at once.
    """

    name: str
    namespace: str = ""
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    identity: str = ""
    release: bool = True

    def __post_init__(self) -> None:
        object_path(ObjectRef(LEASES, self.namespace or "default", self.name))  # complains of names that cannot be
        # Written so that NaN fails each of them.
        _check(
            "lease_duration",
            self.lease_duration,
            wanted="whole seconds, 1 or more",
            holds=1 <= self.lease_duration < math.inf and self.lease_duration == int(self.lease_duration),
        )
        _check(
            "renew_deadline",
            self.renew_deadline,
            wanted=f"seconds, less than lease_duration ({self.lease_duration:g})",
            holds=0 < self.renew_deadline < self.lease_duration,
        )
        _check(
            "retry_period",
            self.retry_period,
            wanted=f"seconds, more than 0 and less than renew_deadline / 1.2 ({self.renew_deadline / 1.2:g})",
            holds=0 < self.retry_period * 1.2 < self.renew_deadline,
        )
        _check("identity", self.identity, wanted="printable text", holds=self.identity.isprintable())

    def terms(self) -> Terms:
        """Return the times, and who we are; without an `identity` another one each time."""
        return Terms(
            identity=self.identity or f"{platform.node()}_{uuid.uuid4()}",
            lease_duration=self.lease_duration,
            renew_deadline=self.renew_deadline,
            retry_period=self.retry_period,
        )


def _check(option: str, value: object, *, wanted: str, holds: bool) -> None:
    if not holds:
        msg = f"LeaderElection: {option}: want {wanted}, got {value!r}"
        raise ConfigError(msg)


class Leases(Protocol):
    """Where the record is; a `LeaseClient`. Raises `APIError` and `TransportError`."""

    def get(self, *, timeout: float, cancel: Cancel) -> Lease | None:
        """Read the record, None if there is none."""
        ...

    def write(self, body: Mapping[str, Any], *, timeout: float, cancel: Cancel) -> Lease:
        """Replace the record, or make one if `body` has no resourceVersion; return it as it is then."""
        ...


class LeaseClient:
    """Read and write one Lease, past all limits and turns that other requests wait for."""

    def __init__(self, transport: Transport, ref: ObjectRef, *, field_manager: str) -> None:
        self._transport = transport
        self._ref = ref
        self._field_manager = field_manager

    def get(self, *, timeout: float, cancel: Cancel) -> Lease | None:
        """Read the record, None if there is none."""
        try:
            answer = self._ask("GET", object_path(self._ref), "get", None, timeout=timeout, cancel=cancel)
        except NotFoundError:
            return None
        return self._lease_in(answer, "get")

    def write(self, body: Mapping[str, Any], *, timeout: float, cancel: Cancel) -> Lease:
        """Replace the record, or make one if `body` has no resourceVersion; return it as it is then."""
        if "resourceVersion" in body["metadata"]:
            method, path, verb = "PUT", object_path(self._ref), "update"
        else:
            method, path, verb = "POST", collection_path(LEASES, self._ref.namespace), "create"
        answer = self._ask(method, path, verb, msgspec.json.encode(body), timeout=timeout, cancel=cancel)
        return self._lease_in(answer, verb)

    def _ask(
        self, method: str, path: str, verb: str, body: bytes | None, *, timeout: float, cancel: Cancel
    ) -> Response:
        return self._transport.request(
            method,
            path,
            query=[] if body is None else [("fieldManager", self._field_manager)],
            body=body,
            timeout=timeout,
            cancel=cancel,
            retry_safe=method == "PUT",  # its resourceVersion stops it the second time
            unlimited=True,
            verb=verb,
            ref=self._ref,
            part="elector",
        )

    def _lease_in(self, answer: Response, verb: str) -> Lease:
        body: object = None
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            body = msgspec.json.decode(answer.body)
        if not isinstance(body, dict) or body.get("kind") != "Lease" or not Lease(body).version:
            msg = "want a Lease, the answer is something else"
            raise APIError(msg, found=msg, status=answer.status, reason="UnexpectedAnswer", verb=verb, ref=self._ref)
        return Lease(body)


class LeaderElector:
    """Follow a Lease and open the fence while it is ours. `run` and `watch` each want a thread.

    `taken` is called once, when we lead; `lost` once, when we no longer do or should not; both on one of the two
    threads, and they must not block. `end_process` is called if the work has not ended (`finish()`) by the time when
    another process may lead.
    """

    def __init__(
        self,
        leases: Leases,
        ref: ObjectRef,
        terms: Terms,
        *,
        keeper: FenceKeeper,
        clock: Clock,
        release: bool,
        taken: Callable[[], None],
        lost: Callable[[LeadershipLostError], None],
        end_process: Callable[[], None],
    ) -> None:
        self._leases = leases
        self._ref = ref
        self._terms = terms
        self._limit = max(_LEAST_LIMIT, terms.renew_deadline / 2)
        self._keeper = keeper
        self._clock = clock
        self._release = release
        self._tell_taken = taken
        self._tell_lost = lost
        self._end_process = end_process
        self._throttle = Throttle(clock)
        # Of the thread that asks.
        self._view = View()
        self._last_holder = ""
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._cancel: Cancel | None = None  # of the request that is on its way
        self._renewed_at: float | None = None  # while leading
        self._failure = ""  # the last one since the last renewal
        self._longest_gap = 0.0
        self._stepped_at: float | None = None  # while steps are to be expected
        self._has_told = False  # that leadership is over, or should be
        self._end_at: float | None = None  # when work has to have ended, once leadership is lost
        self._is_finishing = False
        self._work_has_ended = False

    @property
    def terms(self) -> Terms:
        """Who we are, and by which times we go."""
        return self._terms

    @property
    def ref(self) -> ObjectRef:
        """The Lease, in the home cluster."""
        return self._ref

    def is_leading(self) -> bool:
        """Tell whether we lead, as far as we know."""
        with self._changed:
            return self._is_leading_locked()

    def finish(self, *, work_has_ended: bool) -> None:
        """End, and release the lease if it is ours, unless work goes on all the same; returns at once."""
        with self._changed:
            self._is_finishing = True
            self._work_has_ended |= work_has_ended
            cancel = self._cancel
            self._changed.notify_all()
        if cancel is not None:
            cancel.cancel()

    def longest_stop(self) -> float:
        """Return for how many seconds after `finish()` the threads may go on."""
        return self._terms.renew_deadline + self._limit

    def live_problem(self) -> str | None:
        """Return what is wrong with the elector for good, None if it is well."""
        now = self._clock.monotonic()
        with self._changed:
            renewed_at = self._renewed_at if self._is_leading_locked() else None
            stepped_at = None if self._is_finishing else self._stepped_at
        if renewed_at is not None and now - renewed_at > self._terms.lease_duration + _LATE:
            return f"leads, but the last renewal was {now - renewed_at:.0f} s ago"
        longest = max(self._limit, self._terms.retry_period, 30.0)
        if stepped_at is not None and now - stepped_at > longest + _STUCK:
            return f"no step for {now - stepped_at:.0f} s"
        return None

    def _is_leading_locked(self) -> bool:
        return self._renewed_at is not None and self._end_at is None and not self._is_finishing

    # The thread that asks.

    def run(self, stop: Stop) -> None:
        """Be a candidate, then lead; once `stop` is set, a candidate ends at once, a leader when told to `finish()`."""
        with ExitStack() as undo:
            undo.callback(stop.on_set(self._hurry))
            undo.callback(_leads.follow(lambda: float(self.is_leading())))
            undo.callback(_gap.follow(self._present_gap))
            undo.callback(_longest_gap.follow(lambda: max(self._longest_gap, self._present_gap() or 0.0)))
            try:
                self._follow(stop)
                self._give_back()
            except BaseException as error:
                self._lose("the elector failed", error)
                raise
            finally:
                self._keeper.close()
                with self._changed:
                    self._stepped_at = None
                    self._is_finishing = True
                    self._changed.notify_all()

    def _follow(self, stop: Stop) -> None:
        """Do one step after the other until it is time to finish."""
        while not self._is_over(stop):
            with self._changed:
                self._stepped_at = self._clock.monotonic()
            step = self._next_step()
            match step:
                case Rest(until):
                    self._rest(until, stop)
                case Look():
                    self._look(stop)
                case Write():
                    self._write(step, stop)
                case Lose(reason):
                    if self._view.lost:
                        self._lose(reason)
                    else:
                        self._expire()
                    self._wait_for_finish()
                case Yield(preferred):
                    self._tell(f"{preferred} is preferred")
                    self._wait_for_finish()

    def _next_step(self) -> Step:
        return decide(
            self._view,
            self._terms,
            now=self._clock.monotonic(),
            wall=self._clock.utc_now(),
            name=self._ref.name,
            namespace=self._ref.namespace,
        )

    def _is_over(self, stop: Stop) -> bool:
        if stop.is_set() and self._view.renewed_at is None:
            return True
        with self._changed:
            return self._is_finishing

    def _rest(self, until: float, stop: Stop) -> None:
        with self._changed:
            while not self._is_finishing and self._end_at is None:
                left = until - self._clock.monotonic()
                if left <= 0 or (stop.is_set() and self._view.renewed_at is None):
                    return
                self._clock.wait(self._changed, left)
        self._wait_for_finish()

    def _wait_for_finish(self) -> None:
        with self._changed:
            self._stepped_at = None
            while not self._is_finishing:
                self._clock.wait(self._changed, None)

    def _look(self, stop: Stop) -> None:
        sent = self._clock.monotonic()
        try:
            lease = self._leases.get(timeout=self._limit, cancel=self._cancellable(stop))
        except (APIError, TransportError) as error:
            self._take_note_of(error, None, sent)
        else:
            self._have_looked(lease)

    def _write(self, step: Write, stop: Stop) -> None:
        sent = self._clock.monotonic()
        try:
            lease = self._leases.write(step.body, timeout=self._limit, cancel=self._cancellable(stop))
        except (APIError, TransportError) as error:
            self._take_note_of(error, step, sent)
        else:
            self._have_written(lease, sent)

    def _have_looked(self, lease: Lease | None) -> None:
        now = self._clock.monotonic()
        self._take_in(looked(self._view, self._terms, lease, now=now, pause=self._pause()))

    def _have_written(self, lease: Lease, sent: float) -> None:
        now = self._clock.monotonic()
        self._take_in(wrote(self._view, self._terms, lease, sent=sent, now=now, pause=self._pause()))

    def _take_note_of(self, error: APIError | TransportError, step: Write | None, sent: float) -> None:
        """Go on after a request that failed."""
        with self._changed:
            cancel, self._cancel = self._cancel, None
            is_cut = cancel is not None and cancel.is_cancelled()
            if not is_cut:
                self._failure = str(error)
        is_answer = isinstance(error, APIError)
        # Of a record that is another or not there any more the next look tells. One that cannot be made, as there is
        # no such namespace, is something else.
        is_replacing = step is not None and bool(step.version)
        is_conflict = isinstance(error, ConflictError) or (is_replacing and isinstance(error, NotFoundError))
        retry_after = error.retry_after if isinstance(error, APIError) else None
        self._view = failed(
            self._view,
            self._terms,
            step,
            sent=sent,
            now=self._clock.monotonic(),
            pause=self._pause(),
            is_answer=is_answer,
            is_conflict=is_conflict,
            retry_after=retry_after,
        )
        told = fields(lease=str(self._ref), error=str(error), leading=self._view.is_leading)
        if is_cut or is_conflict or not self._throttle.allow(type(error).__name__):
            _log.debug("lease request failed", extra=told)
        else:
            _log.warning("lease request failed", extra=told)

    def _take_in(self, view: View) -> None:
        """Go on with what was learned; open the fence, or keep it open, if the lease is ours."""
        with self._changed:
            self._cancel = None
        before, self._view = self._view, view
        self._note_holder(view.holder)
        renewed_at = view.renewed_at
        if renewed_at is None or renewed_at == before.renewed_at:
            return
        is_first = before.renewed_at is None
        terms = self._terms
        if self._keeper.extend(
            renewed_at, renew_deadline=terms.renew_deadline, lease_duration=terms.lease_duration
        ) and self._note_renewal(renewed_at):
            _log.debug("lease renewed", extra=fields(lease=str(self._ref)))
            if is_first:
                _log.info("leading", extra=fields(lease=str(self._ref), identity=terms.identity))
                self._tell_taken()
        elif not is_first:
            self._lose("renewed too late")
            self._view = View(lost="renewed too late", lease=view.lease, is_there=True, renewed_at=before.renewed_at)
        else:
            # Ours, though not in time to lead by that; the next renewal will do.
            self._view = View(lease=view.lease, is_there=True, is_current=True)

    def _note_holder(self, holder: str) -> None:
        if holder in {"", self._last_holder}:
            return
        is_ours = holder == self._terms.identity
        if self._last_holder or is_ours:
            _transitions.add()
        self._last_holder = holder
        if not is_ours:
            _log.info("lease is held", extra=fields(lease=str(self._ref), holder=holder))

    def _note_renewal(self, renewed_at: float) -> bool:
        """Have the deadline moved; False if it has struck before that."""
        with self._changed:
            if self._end_at is not None:
                return False
            if self._renewed_at is not None:
                self._longest_gap = max(self._longest_gap, renewed_at - self._renewed_at)
            self._renewed_at = renewed_at
            self._failure = ""
            self._changed.notify_all()
            return True

    def _cancellable(self, stop: Stop) -> Cancel:
        """Make the handle by which the next request is ended when there is no time for it any more."""
        cancel = Cancel()
        with self._changed:
            self._cancel = cancel
            is_late = self._is_finishing or (stop.is_set() and self._view.renewed_at is None)
        if is_late:
            cancel.cancel()
        return cancel

    def _hurry(self) -> None:
        """Wake a candidate, wherever it is, as it has nothing to do any more."""
        with self._changed:
            cancel = self._cancel if self._renewed_at is None else None
            self._changed.notify_all()
        if cancel is not None:
            cancel.cancel()

    def _pause(self) -> float:
        return self._terms.retry_period * random.uniform(0.5, 0.8)

    def _present_gap(self) -> float | None:
        with self._changed:
            renewed_at = self._renewed_at if self._is_leading_locked() else None
        return None if renewed_at is None else self._clock.monotonic() - renewed_at

    # The end.

    def _lose(self, reason: str, cause: BaseException | None = None) -> None:
        """Leadership is over; does nothing for who never led, or has given it up already."""
        self._keeper.close()
        with self._changed:
            if self._renewed_at is None or self._end_at is not None or self._is_finishing:
                return
            self._end_at = self._clock.monotonic() + self._terms.lease_duration - self._terms.renew_deadline
            self._changed.notify_all()
        self._tell(reason, cause)

    def _tell(self, reason: str, cause: BaseException | None = None) -> None:
        with self._changed:
            is_first, self._has_told = not self._has_told, True
        if is_first:
            error = LeadershipLostError(f"lease {self._ref}: {reason}")
            error.__cause__ = cause
            self._tell_lost(error)

    def _give_back(self) -> None:
        """Release the lease if it is ours, or may be: a write that was cut off can have been carried out."""
        self._keeper.close()
        view = self._view
        with self._changed:
            self._stepped_at = None
            was_leading = self._renewed_at is not None
            may_release = self._release and self._end_at is None and (self._work_has_ended or not was_leading)
        is_ours = view.is_leading or view.holder == self._terms.identity
        if not may_release or not (is_ours or view.tries):
            return
        lease = view.lease if is_ours and view.is_current else None
        until = self._clock.monotonic() + self._terms.renew_deadline
        failures = 0
        while (left := until - self._clock.monotonic()) > 0:
            timeout = min(self._limit, left)
            try:
                lease = lease or self._leases.get(timeout=timeout, cancel=Cancel())
                if lease is None or lease.holder != self._terms.identity:
                    return
                body = released(lease, wall=self._clock.utc_now())
                self._leases.write(body, timeout=timeout, cancel=Cancel())
            except (APIError, TransportError) as error:
                lease = None
                failures += 1
                _log.debug("lease not released yet", extra=fields(lease=str(self._ref), error=str(error)))
                if failures > 1 or not isinstance(error, ConflictError):
                    self._wait(min(self._pause(), left))
            else:
                _log.info("lease released", extra=fields(lease=str(self._ref)))
                return
        _log.warning("lease not released", extra=fields(lease=str(self._ref)))

    def _wait(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        with self._changed:
            while (left := until - self._clock.monotonic()) > 0:
                self._clock.wait(self._changed, left)

    # The thread that watches the clock.

    def watch(self) -> None:
        """Tell when the deadline has passed, and end the process if the work does not end in time after that."""
        while (act := self._next_alarm()) is not None:
            act()

    def _next_alarm(self) -> Callable[[], None] | None:
        """Wait until there is something to do that only the clock tells; None when there never will be."""
        with self._changed:
            while True:
                if self._end_at is not None and not self._work_has_ended:
                    due, act = self._end_at, self._end
                elif self._is_finishing:
                    return None
                elif self._renewed_at is not None and self._end_at is None:
                    due, act = self._renewed_at + self._terms.renew_deadline, self._expire
                else:
                    due, act = math.inf, self._end
                left = due - self._clock.monotonic()
                if left <= 0:
                    return act
                self._clock.wait(self._changed, None if left == math.inf else left)

    def _expire(self) -> None:
        with self._changed:
            why = f": {self._failure}" if self._failure else ""
        self._lose(f"not renewed within {self._terms.renew_deadline:g} s{why}")

    def _end(self) -> None:
        self._end_process()
        with self._changed:
            self._work_has_ended = True  # nothing more can be done about it
