"""Decide what to do about a Lease, from what was seen of it and when. Pure: no clock, no thread, no request.

A `View` is all that one elector knows. `decide()` says what is to be done now; `looked()`, `wrote()` and `failed()`
say what is known afterwards. All times are one's own monotonic seconds: those in the record are written for people,
and never compared with any clock.

- A holder leads for as long as its renewals were carried out, counted from when they were *sent*.
- Everybody else counts from when they *saw* the record change, and waits for as long as the holder has published.

So the holder's time is over before anybody else's has begun, whatever the clocks on the walls say and however long a
request was on its way. What is needed is only that two monotonic clocks run at nearly the same speed.

What is surprising: each of our writes has a `renewTime` of its own, a microsecond later where the clock on the wall
stands still or has jumped. One with the same text as before would change nothing on the server, and nobody would see
it. And by this text a write is known again whose answer was lost, or was a conflict although it was carried out.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

_RELEASED: Final = 1  # seconds that a released record is good for; 0 is not allowed
_RETRY_AFTER: Final = 30.0  # nobody waits longer than this because a server says so
_TRIES: Final = 16
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Who we are, how long a renewal is good for, until when the next has to come, and how often it is tried."""

    identity: str
    lease_duration: float
    renew_deadline: float
    retry_period: float


@dataclass(frozen=True, slots=True)
class Lease:
    """One state of the record, as the server has it; reads what is missing or odd as nothing."""

    body: Mapping[str, Any]

    @property
    def spec(self) -> Mapping[str, Any]:
        """What it says."""
        return _mapping(self.body.get("spec"))

    @property
    def holder(self) -> str:
        """Who holds it, `""` if nobody does."""
        return _text(self.spec.get("holderIdentity"))

    @property
    def preferred(self) -> str:
        """Who should hold it, `""` if that is all the same."""
        return _text(self.spec.get("preferredHolder"))

    @property
    def renewed(self) -> str:
        """When it was renewed, by the holder's clock on the wall."""
        return _text(self.spec.get("renewTime"))

    @property
    def transitions(self) -> int:
        """How often it went from one holder to another."""
        found = self.spec.get("leaseTransitions")
        return found if isinstance(found, int) and found > 0 else 0

    @property
    def version(self) -> str:
        """The resourceVersion."""
        return _text(_mapping(self.body.get("metadata")).get("resourceVersion"))

    def duration(self, default: float) -> float:
        """For how many seconds after a change the holder wants to be alone."""
        found = self.spec.get("leaseDurationSeconds")
        return float(found) if isinstance(found, int | float) and 0 < found < math.inf else default

    def says_the_same(self, other: Lease) -> bool:
        """Tell whether nothing was renewed in between: labels may differ, as nobody renews by changing those."""
        return self._uid() == other._uid() and self.spec == other.spec

    def _uid(self) -> str:
        return _text(_mapping(self.body.get("metadata")).get("uid"))


@dataclass(frozen=True, slots=True)
class Try:
    """A write of ours of which nobody knows whether it was carried out; it can be only while `version` is current."""

    renewed: str
    sent: float
    version: str


@dataclass(frozen=True, slots=True)
class View:
    """All that one elector knows.

    Attributes:
        lease: the record as last seen, None before that.
        is_there: whether it was there when last looked at.
        held_until: when it may be taken from its holder.
        renewed_at: when the last renewal was sent that is known to have been carried out; None = not leading.
        tries: own writes that may have been carried out.
        is_current: whether the next thing to do is a write, based on `lease`.
        rest_until: when the next thing is to be done.
        retry_at: when the next write may be tried, after one that failed.
        failures: how many requests in a row have failed.
        lost: why leadership is over.
    """

    lease: Lease | None = None
    is_there: bool = False
    held_until: float = -math.inf
    renewed_at: float | None = None
    tries: tuple[Try, ...] = ()
    is_current: bool = False
    rest_until: float = -math.inf
    retry_at: float = -math.inf
    failures: int = 0
    lost: str = ""

    @property
    def is_leading(self) -> bool:
        """Tell whether the lease was taken, and is not known to be lost."""
        return self.renewed_at is not None and not self.lost

    @property
    def holder(self) -> str:
        """Who held it when it was last looked at."""
        return self.lease.holder if self.lease is not None and self.is_there else ""

    @property
    def version(self) -> str:
        """The resourceVersion that a write is based on."""
        return self.lease.version if self.lease is not None and self.is_there else ""


@dataclass(frozen=True, slots=True)
class Look:
    """Read the record."""


@dataclass(frozen=True, slots=True)
class Write:
    """Send this record: to replace the one it is based on, or as a new one if it has no resourceVersion."""

    body: Mapping[str, Any]
    renewed: str
    version: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Do nothing until then."""

    until: float


@dataclass(frozen=True, slots=True)
class Lose:
    """Leadership is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Yield:
    """Somebody else should lead: stop renewing, end the work, release."""

    preferred: str


Step: TypeAlias = Look | Write | Rest | Lose | Yield


def decide(view: View, terms: Terms, *, now: float, wall: datetime, name: str, namespace: str) -> Step:
    """Return what to do now."""
    if view.lost:
        return Lose(view.lost)
    until = view.rest_until
    if view.renewed_at is not None:
        deadline = view.renewed_at + terms.renew_deadline
        if now >= deadline:
            return Lose(f"not renewed within {terms.renew_deadline:g} s")
        if view.lease is not None and _is_for_another(view.lease, terms):
            return Yield(view.lease.preferred)
        until = min(until, deadline)
    if now < until:
        return Rest(until)
    if not view.is_current:
        return Look()
    return _own_record(view, terms, wall=wall, name=name, namespace=namespace)


def looked(view: View, terms: Terms, lease: Lease | None, *, now: float, pause: float) -> View:
    """Return what is known after the record was read (None: there is none); `pause` is until it is read again."""
    before = view
    sent = _known_again(view, terms, lease)
    view = replace(
        view,
        lease=lease or view.lease,
        is_there=lease is not None,
        held_until=_held_until(before, terms, lease, now=now),
    )
    view = replace(view, tries=tuple(one for one in view.tries if one.version == view.version))
    if sent is not None and (before.is_leading or now < sent + terms.renew_deadline):
        return _renewed(view, terms, sent)
    if before.is_leading:
        if lease is not None and lease.holder not in {"", terms.identity}:
            return replace(view, lost=f"held by {lease.holder}")
        return replace(view, is_current=True, rest_until=view.retry_at)
    if lease is not None and lease.holder == terms.identity:
        return replace(view, is_current=True, rest_until=view.retry_at)
    if now >= view.held_until:
        return replace(view, is_current=True, rest_until=view.retry_at)
    return replace(view, is_current=False, failures=0, retry_at=-math.inf, rest_until=min(now + pause, view.held_until))


def wrote(view: View, terms: Terms, lease: Lease, *, sent: float, now: float, pause: float) -> View:
    """Return what is known after a write that was sent at `sent` was answered with the record."""
    if lease.holder != terms.identity:
        return looked(view, terms, lease, now=now, pause=pause)
    view = replace(view, lease=lease, is_there=True, tries=(), held_until=_held_until(view, terms, lease, now=now))
    if not view.is_leading and now >= sent + terms.renew_deadline:
        # Ours, but the answer took so long that we could not be sure of it for a moment.
        return replace(view, is_current=True, rest_until=now)
    return _renewed(view, terms, sent)


def failed(
    view: View,
    terms: Terms,
    write: Write | None,
    *,
    sent: float,
    now: float,
    pause: float,
    is_answer: bool,
    is_conflict: bool,
    retry_after: float | None = None,
) -> View:
    """Return what is known after a request failed: a write, or (None) a look.

    `is_answer`: the server has refused it; `is_conflict`: because the record is another by now.
    """
    view = replace(view, failures=view.failures + 1, is_current=False)
    wait = _after_refusal(view, terms, now=now, pause=pause, retry_after=retry_after)
    if write is None:
        return replace(view, rest_until=now + wait)
    # A look is what helps now. Then the next try comes at once if the last one was only out of date, or unanswered.
    is_quick = view.failures == 1 and (is_conflict or not is_answer)
    return replace(
        view,
        tries=(*view.tries, Try(write.renewed, sent, write.version))[-_TRIES:],
        rest_until=now,
        retry_at=now if is_quick else max(now, sent + wait),
    )


def released(lease: Lease, *, wall: datetime) -> Mapping[str, Any]:
    """Return the record that gives a lease away: to be had at once, by anybody."""
    spec = {
        **lease.spec,
        "holderIdentity": "",
        "leaseDurationSeconds": _RELEASED,
        "renewTime": _stamp(wall, {lease.renewed}),
    }
    return {**lease.body, "spec": spec}


def micro_time(wall: datetime) -> str:
    """Write a time as API servers want it, with six digits after the seconds."""
    return f"{wall.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _renewed(view: View, terms: Terms, sent: float) -> View:
    at = sent if view.renewed_at is None else max(sent, view.renewed_at)
    return replace(
        view,
        renewed_at=at,
        is_current=True,
        failures=0,
        rest_until=at + terms.retry_period,
        retry_at=-math.inf,
    )


def _known_again(view: View, terms: Terms, lease: Lease | None) -> float | None:
    """Return when the write was sent that this record comes from, if it is one of ours without an answer."""
    if lease is None or lease.holder != terms.identity:
        return None
    return min((one.sent for one in view.tries if one.renewed == lease.renewed), default=None)


def _held_until(view: View, terms: Terms, lease: Lease | None, *, now: float) -> float:
    """Return when a record may be taken from who holds it, never earlier than what was known of it before."""
    if lease is None or (view.is_there and view.lease is not None and lease.says_the_same(view.lease)):
        # Whoever deletes a record does not thereby end the work of who held it, who makes it again.
        return view.held_until
    own = terms.lease_duration
    if lease.holder in {"", terms.identity}:
        return now + own if not lease.holder and _is_for_another(lease, terms) else -math.inf
    return max(view.held_until, now + lease.duration(own))


def _is_for_another(lease: Lease, terms: Terms) -> bool:
    return lease.preferred not in {"", terms.identity}


def _after_refusal(view: View, terms: Terms, *, now: float, pause: float, retry_after: float | None) -> float:
    """Return how long to wait: what the server asks for, if there is time for that, else as usual."""
    usual = terms.retry_period if view.is_leading else pause
    if retry_after is None:
        return usual
    left = math.inf if view.renewed_at is None else view.renewed_at + terms.renew_deadline - now
    wanted = max(usual, min(retry_after, _RETRY_AFTER))
    return wanted if wanted < left else usual


def _own_record(view: View, terms: Terms, *, wall: datetime, name: str, namespace: str) -> Write:
    """Make the record that says that we hold the lease: renewed, taken, made, or made again."""
    lease = view.lease
    stamp = _stamp(wall, {lease.renewed if lease is not None else "", *(one.renewed for one in view.tries)})
    is_ours = view.is_leading or view.holder == terms.identity
    spec: dict[str, Any] = dict(lease.spec) if lease is not None and (view.is_there or is_ours) else {}
    if not is_ours:
        spec["acquireTime"] = stamp
        spec["leaseTransitions"] = lease.transitions + 1 if lease is not None and view.is_there else 0
        # Who was preferred has not come.
        spec.pop("preferredHolder", None)
    spec.setdefault("acquireTime", stamp)
    spec.setdefault("leaseTransitions", 0)
    spec |= {
        "holderIdentity": terms.identity,
        "leaseDurationSeconds": int(terms.lease_duration),
        "renewTime": stamp,
    }
    if lease is not None and view.is_there:
        return Write({**lease.body, "spec": spec}, stamp, lease.version)
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if lease is not None and is_ours:
        old = _mapping(lease.body.get("metadata"))
        metadata |= {key: old[key] for key in ("labels", "annotations") if key in old}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
    return Write(body, stamp, "")


def _stamp(wall: datetime, used: Container[str]) -> str:
    while (stamp := micro_time(wall)) in used:
        wall += _MICROSECOND
    return stamp


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
