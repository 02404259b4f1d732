"""An elector leads while the lease is its own, whatever the server does; and ends in time, whatever hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from informers import metrics
from informers.api.calls import Cancel
from informers.api.client import Client
from informers.api.clusters import Clusters
from informers.api.fence import FenceKeeper
from informers.api.transport import Transport
from informers.clock import Clock, Stop, SystemClock
from informers.meta.errors import ConfigError, ConnectError, ConnectionLost
from informers.meta.resources import ObjectRef
from informers.runtime.leaderelection import LEASES, LeaderElection, LeaderElector, LeaseClient, Leases
from informers.runtime.lease import Lease, Terms
from informers.testing.apiserver import APIServer
from informers.testing.clock import FakeClock

REF = ObjectRef(LEASES, "default", "l")
PATIENCE = 60.0
QUICK = Terms(identity="me", lease_duration=4.0, renew_deadline=3.0, retry_period=0.2)
USUAL = Terms(identity="me", lease_duration=15.0, renew_deadline=10.0, retry_period=2.0)


class Election:
    """An elector with its two threads, and what it has told."""

    def __init__(
        self, leases: Leases, terms: Terms, clock: Clock, *, release: bool = True, ref: ObjectRef = REF
    ) -> None:
        self.clock = clock
        self.stop = Stop(clock)
        self.keeper = FenceKeeper(clock)
        self.fence = self.keeper.fence
        self.changed = threading.Condition()  # guards the next two
        self.told: list[str] = []
        self.error: BaseException | None = None
        self.elector = LeaderElector(
            leases,
            ref,
            terms,
            keeper=self.keeper,
            clock=clock,
            release=release,
            taken=lambda: self.tell("taken"),
            lost=lambda error: self.tell(str(error)),
            end_process=lambda: self.tell("end of the process"),
        )
        self.threads = [
            threading.Thread(target=self._run, name="elector", daemon=True),
            threading.Thread(target=self.elector.watch, name="elector/deadline", daemon=True),
        ]

    def _run(self) -> None:
        try:
            self.elector.run(self.stop)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def tell(self, what: str) -> None:
        with self.changed:
            self.told.append(what)
            self.changed.notify_all()

    def until_told(self, *whats: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.told) >= len(whats), PATIENCE), self.told
            assert self.told == list(whats)

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def end(self, *, work_has_ended: bool = True) -> None:
        """Stop it in order, and wait until it has ended."""
        self.stop.set()
        self.elector.finish(work_has_ended=work_has_ended)
        self.join()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread.name


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for what something else brings about."""
    clock, pause = SystemClock(), threading.Event()
    end = clock.monotonic() + PATIENCE
    while not holds():
        assert clock.monotonic() < end, what
        pause.wait(0.01)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


class FakeLeases:
    """A lease in memory; a test may have requests fail, or hang until they are cancelled or let go."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # guards all below
        self.body: Mapping[str, Any] | None = None
        self.failure: Exception | None = None
        self.instead_of_answer: Callable[[], None] | None = None  # to a write that was carried out
        self.hangs = False
        self.hanging = 0
        self.asked: list[str] = []
        self.timeouts: list[float] = []

    def get(self, *, timeout: float, cancel: Cancel) -> Lease | None:
        self._ask("get", timeout, cancel)
        return None if self.body is None else Lease(self.body)

    def write(self, body: Mapping[str, Any], *, timeout: float, cancel: Cancel) -> Lease:
        self._ask(f"write {body['spec']['holderIdentity']}", timeout, cancel)
        with self.changed:
            version = str(len(self.asked))
            self.body = {**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": version}}
            instead, self.instead_of_answer = self.instead_of_answer, None
        if instead is not None:
            instead()
            msg = "connection lost"
            raise ConnectionLost(msg)
        return Lease(self.body)

    def _ask(self, what: str, timeout: float, cancel: Cancel) -> None:
        with self.changed:
            self.asked.append(what)
            self.timeouts.append(timeout)
            self.changed.notify_all()
            if self.failure is not None:
                raise self.failure
            self.hanging += 1
        cancel.attach(self._wake)
        with self.changed:
            self.changed.wait_for(lambda: not self.hangs or cancel.is_cancelled(), PATIENCE)
            self.hanging -= 1
        if cancel.is_cancelled():
            msg = "cancelled"
            raise ConnectionLost(msg)

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def hang(self, hangs: bool) -> None:
        with self.changed:
            self.hangs = hangs
            self.changed.notify_all()

    def until_hanging(self) -> None:
        until(lambda: self.hangs and self.hanging, "a request hangs")


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


@contextmanager
def electing(leases: Leases, terms: Terms, clock: Clock, **options: Any) -> Iterator[Election]:
    found = Election(leases, terms, clock, **options)
    found.start()
    try:
        yield found
    finally:
        if isinstance(leases, FakeLeases):
            leases.hang(False)
        found.end()


# Options.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease_duration": 15.5}, "lease_duration: want whole seconds, 1 or more, got 15.5"),
        ({"lease_duration": 0.0}, "lease_duration: want whole seconds, 1 or more, got 0.0"),
        ({"lease_duration": float("nan")}, "lease_duration"),
        ({"lease_duration": float("inf")}, "lease_duration"),
        ({"renew_deadline": 15.0}, r"renew_deadline: want seconds, less than lease_duration \(15\), got 15.0"),
        ({"renew_deadline": float("nan")}, "renew_deadline"),
        ({"retry_period": 8.4}, r"retry_period: want seconds, more than 0 and less than renew_deadline / 1.2 \(8.3"),
        ({"retry_period": 0.0}, "retry_period"),
        ({"identity": "a\nb"}, "identity: want printable text"),
        ({"namespace": "a/b"}, "namespace is 'a/b'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LeaderElection("l", **options)


def test_every_process_has_an_identity_of_its_own() -> None:
    election = LeaderElection("l")

    assert election.terms().identity != election.terms().identity
    assert LeaderElection("l", identity="me").terms().identity == "me"


# The clock alone decides when it is over.


def test_a_request_that_hangs_does_not_keep_the_fence_open(leases: FakeLeases, clock: FakeClock) -> None:
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")
        assert election.fence.remaining() == 14.0
        leases.hang(True)
        clock.block_until_waiting(2, due_in=10.0)
        clock.advance(2.0)
        leases.until_hanging()

        clock.advance(7.9)
        assert election.fence.is_open()
        clock.advance(0.1)
        assert not election.fence.is_open()
        election.until_told("taken", "lease leases.v1.coordination.k8s.io default/l: not renewed within 10 s")
        assert not election.elector.is_leading()


def test_the_process_is_ended_if_work_goes_on_when_others_may_begin(leases: FakeLeases, clock: FakeClock) -> None:
    lost = "lease leases.v1.coordination.k8s.io default/l: not renewed within 10 s"
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")
        leases.hang(True)
        clock.block_until_waiting(2, due_in=10.0)
        clock.advance(10.0)
        election.until_told("taken", lost)
        clock.block_until_waiting(1, due_in=5.0)
        clock.advance(4.9)
        assert election.told == ["taken", lost]

        clock.advance(0.1)

        election.until_told("taken", lost, "end of the process")


def test_work_that_has_ended_in_time_ends_nothing_else(leases: FakeLeases, clock: FakeClock) -> None:
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")
        leases.hang(True)
        clock.block_until_waiting(2, due_in=10.0)
        clock.advance(10.0)
        election.until_told("taken", "lease leases.v1.coordination.k8s.io default/l: not renewed within 10 s")

        election.end()
        clock.advance(60.0)

        assert len(election.told) == 2
        assert leases.asked[-1] != "write ", "what is lost is not released"


def test_an_elector_that_fails_closes_the_fence_and_tells(leases: FakeLeases, clock: FakeClock) -> None:
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")
        leases.failure = ZeroDivisionError("a bug")
        clock.block_until_waiting(2, due_in=10.0)

        clock.advance(2.0)

        election.until_told("taken", "lease leases.v1.coordination.k8s.io default/l: the elector failed")
        assert not election.fence.is_open()
        election.threads[0].join(PATIENCE)
        assert isinstance(election.error, ZeroDivisionError)


def test_requests_are_limited_to_half_the_deadline(leases: FakeLeases, clock: FakeClock) -> None:
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")

    assert set(leases.timeouts) == {5.0}
    assert Election(leases, QUICK, clock).elector._limit == 1.5
    assert Election(leases, Terms(identity="i", lease_duration=2, renew_deadline=1, retry_period=0.1), clock).elector._limit == 1.0  # fmt: skip


# The end in order.


def test_a_leader_goes_on_until_its_work_has_ended_then_releases(leases: FakeLeases, clock: FakeClock) -> None:
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")
        election.stop.set()
        clock.block_until_waiting(2, due_in=10.0)
        clock.advance(2.0)
        until(lambda: leases.asked.count("write me") == 2, "renewed although a stop is wanted")

        election.elector.finish(work_has_ended=True)
        election.join()

    assert leases.asked[-1] == "write "
    assert not election.fence.is_open()
    assert election.told == ["taken"]


@pytest.mark.parametrize(("release", "work_has_ended"), [(False, True), (True, False)])
def test_what_is_not_to_be_released_is_not(
    leases: FakeLeases, clock: FakeClock, release: bool, work_has_ended: bool
) -> None:
    election = Election(leases, USUAL, clock, release=release)
    election.start()
    election.until_told("taken")

    election.end(work_has_ended=work_has_ended)

    assert leases.asked[-1] == "write me"
    assert not election.fence.is_open()


def test_a_renewal_that_hangs_does_not_hold_up_the_release(
    leases: FakeLeases, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")
        leases.hang(True)
        clock.block_until_waiting(2, due_in=10.0)
        clock.advance(2.0)
        leases.until_hanging()
        election.stop.set()
        election.elector.finish(work_has_ended=True)
        until(lambda: leases.asked[-1] == "get", "it looks what has become of it")
        leases.hang(False)
        election.join()

    assert leases.asked[-2:] == ["get", "write "]
    assert warnings_in(caplog) == [], "what we cut off ourselves is no failure"


def test_a_release_that_fails_is_tried_until_the_deadline(leases: FakeLeases, clock: FakeClock) -> None:
    election = Election(leases, USUAL, clock)
    election.start()
    election.until_told("taken")
    leases.failure = ConnectError("refused")
    election.stop.set()
    election.elector.finish(work_has_ended=True)

    began = clock.monotonic()
    while election.threads[0].is_alive():
        clock.advance(0.5)
        threading.Event().wait(0.001)
        assert clock.monotonic() < began + 60

    election.join()
    assert clock.monotonic() - began >= 10.0
    assert leases.asked.count("get") >= 4


def test_a_standby_that_stops_writes_nothing(leases: FakeLeases, clock: FakeClock) -> None:
    leases.body = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "other"}}
    with electing(leases, USUAL, clock) as election:
        clock.block_until_waiting(1, due_in=2.0)

    assert set(leases.asked) == {"get"}
    assert election.told == []
    assert not election.fence.is_open()


def test_a_candidate_whose_request_hangs_ends_at_once(leases: FakeLeases, clock: FakeClock) -> None:
    leases.hang(True)
    election = Election(leases, USUAL, clock)
    election.start()
    leases.until_hanging()

    election.stop.set()
    election.elector.finish(work_has_ended=True)
    election.join()

    assert leases.asked == ["get"]


def test_a_candidate_that_stops_while_it_takes_the_lease_gives_it_back(leases: FakeLeases, clock: FakeClock) -> None:
    election = Election(leases, USUAL, clock)
    leases.instead_of_answer = election.stop.set

    election.start()
    election.join()

    assert leases.asked == ["get", "write me", "get", "write "]
    assert election.told == []


def test_a_lease_that_was_taken_though_the_answer_was_lost_is_known_to_be_ours(
    leases: FakeLeases, clock: FakeClock
) -> None:
    leases.instead_of_answer = lambda: None
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")

        assert leases.asked == ["get", "write me", "get"]


def test_liveness_tells_of_a_leader_that_does_not_renew(leases: FakeLeases, clock: FakeClock) -> None:
    election = Election(leases, USUAL, clock)  # without the thread that watches
    election.threads.pop()
    election.start()
    election.until_told("taken")
    leases.hang(True)
    clock.block_until_waiting(1, due_in=2.0)
    clock.advance(2.0)
    leases.until_hanging()

    clock.advance(17.9)
    assert election.elector.live_problem() is None
    clock.advance(0.2)
    assert election.elector.live_problem() == "leads, but the last renewal was 20 s ago"

    election.elector.finish(work_has_ended=False)
    leases.hang(False)
    election.join()
    assert election.elector.live_problem() is None


def test_liveness_tells_of_an_elector_that_takes_no_step(leases: FakeLeases, clock: FakeClock) -> None:
    leases.hang(True)
    with electing(leases, USUAL, clock) as election:
        assert election.elector.live_problem() is None
        leases.until_hanging()

        clock.advance(89.0)
        assert election.elector.live_problem() is None
        clock.advance(2.0)
        assert election.elector.live_problem() == "no step for 91 s"


def test_numbers_tell_who_leads_and_how_long_renewals_took(leases: FakeLeases, clock: FakeClock) -> None:
    leads = metrics.gauge("informers_leader", "", combine="max")
    gap = metrics.gauge("informers_lease_renew_gap_seconds", "", combine="max")
    longest = metrics.gauge("informers_lease_renew_gap_max_seconds", "", combine="max")
    transitions = metrics.counter("informers_lease_transitions_total", "")
    before = transitions.value()
    with electing(leases, USUAL, clock) as election:
        election.until_told("taken")
        clock.block_until_waiting(2, due_in=10.0)
        clock.advance(5.0)
        until(lambda: leases.asked.count("write me") == 2, "renewed")
        until(lambda: gap.value() == 0, "known to be renewed")
        clock.advance(1.5)

        assert (leads.value(), gap.value(), longest.value()) == (1.0, 1.5, 5.0)
        assert transitions.value() == before + 1

    assert leads.samples() == ()


# On a server.


@pytest.fixture(scope="module")
def api() -> Iterator[APIServer]:
    with APIServer() as server:
        yield server


class Elected:
    """An election on a server, and an administrator."""

    def __init__(self, api: APIServer, terms: Terms = QUICK, ref: ObjectRef = REF) -> None:
        self.api = api
        self.opened = ExitStack()
        self.clock = SystemClock()
        self.transports = [Transport(Clusters.load(str(api.kubeconfig)).home(), user_agent=name) for name in "ab"]
        self.admin = Client({"": self.transports[1]})
        self.election = Election(LeaseClient(self.transports[0], ref, field_manager="test"), terms, self.clock, ref=ref)

    def start(self) -> None:
        self.election.start()
        self.opened.callback(self.election.end)

    def lead(self) -> Election:
        self.start()
        self.election.until_told("taken")
        return self.election

    def renewals(self) -> int:
        return len(self.api.requests(resource="leases.coordination.k8s.io", verb="update", status=200))

    def until_renewed(self, count: int = 2) -> None:
        """Wait for renewals that are answered from now on; the fence stays open meanwhile."""
        before = self.renewals()
        until(lambda: self.renewals() >= before + count, f"renewed; told {self.election.told}")
        assert self.election.fence.is_open()

    def spec(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.api.objects("leases.coordination.k8s.io")[0]["spec"]
        return found

    def change(self, **spec: Any) -> None:
        self.admin.patch(REF, {"spec": spec}, field_manager="admin")


@contextmanager
def elected_on(api: APIServer, terms: Terms = QUICK, ref: ObjectRef = REF) -> Iterator[Elected]:
    made = Elected(api, terms, ref)
    api.clear_requests()
    with made.opened:
        yield made
        api.faults().clear()
    for transport in made.transports:
        transport.close()
    for found in api.objects("leases.coordination.k8s.io"):
        api.remove("leases.coordination.k8s.io", found["metadata"]["name"], "default")


@pytest.fixture
def elected(api: APIServer) -> Iterator[Elected]:
    with elected_on(api) as found:
        yield found


UPDATE = {"resource": "leases.coordination.k8s.io", "verb": "update", "client": "a*"}
ANY = {"resource": "leases.coordination.k8s.io", "client": "a*"}


@pytest.mark.parametrize(
    "fault",
    [
        {"do": "FREEZE"},
        {"do": "DROPREPLY"},
        {"do": "CONFLICT", "committed": True},
        {"do": "CONFLICT", "committed": False},
        {"do": "RST"},
        {"do": "STATUS", "code": 429},
        {"do": "STATUS", "code": 429, "headers": {"Retry-After": "1"}},
        {"do": "STATUS", "code": 500},
        {"do": "STATUS", "code": 401},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_one_renewal_that_goes_wrong_is_made_good(elected: Elected, fault: dict[str, Any]) -> None:
    election = elected.lead()
    elected.api.faults().add({"match": UPDATE, "times": 1, **fault})

    elected.until_renewed()

    assert election.told == ["taken"]
    assert elected.spec()["leaseTransitions"] == 0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"do": "FREEZE"}, ""),
        ({"do": "STATUS", "code": 429}, ": 429 TooManyRequests: injected"),
        ({"do": "STATUS", "code": 503}, ": 503 ServiceUnavailable: injected"),
        ({"do": "DENY"}, ": 403 Forbidden: forbidden: injected"),
    ],
    ids=["freeze", "429", "503", "deny"],
)
def test_a_server_that_does_not_renew_ends_leadership_by_the_deadline(
    api: APIServer, fault: dict[str, Any], why: str
) -> None:
    """https://github.com/kubernetes/kubernetes/issues/44887"""
    with elected_on(api, Terms(identity="me", lease_duration=2.0, renew_deadline=1.0, retry_period=0.2)) as elected:
        election = elected.lead()
        elected.api.faults().add({"match": ANY, **fault})

        until(lambda: len(election.told) == 2, "the loss is told")
        assert election.told[1].startswith("lease leases.v1.coordination.k8s.io default/l: not renewed within 1 s")
        assert why in election.told[1]
        assert not election.fence.is_open()


def test_another_client_that_takes_the_lease_ends_leadership(elected: Elected) -> None:
    """https://github.com/kubernetes/kubernetes/issues/23731"""
    election = elected.lead()

    elected.change(holderIdentity="thief")

    election.until_told("taken", "lease leases.v1.coordination.k8s.io default/l: held by thief")
    assert not election.fence.is_open()
    election.end()
    assert elected.spec()["holderIdentity"] == "thief"


def test_a_lease_that_is_deleted_is_made_again(elected: Elected) -> None:
    election = elected.lead()
    acquired = elected.spec()["acquireTime"]

    elected.admin.delete(REF)

    elected.until_renewed()
    assert election.told == ["taken"]
    assert (elected.spec()["holderIdentity"], elected.spec()["acquireTime"]) == ("me", acquired)


def test_a_lease_that_is_emptied_is_filled_again(elected: Elected) -> None:
    election = elected.lead()

    elected.change(holderIdentity="")

    elected.until_renewed()
    assert election.told == ["taken"]
    assert elected.spec()["holderIdentity"] == "me"


def test_what_others_wrote_into_the_lease_is_kept(elected: Elected) -> None:
    elected.lead()

    elected.admin.patch(REF, {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}, field_manager="admin")

    elected.until_renewed()
    metadata = elected.api.objects("leases.coordination.k8s.io")[0]["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"a": "b"}, {"c": "d"})


@pytest.mark.parametrize(
    ("namespace", "fault", "line"),
    [
        ("nowhere", {}, 'create leases.v1.coordination.k8s.io nowhere/l: 404 NotFound: namespaces "nowhere" not found'),
        ("default", {"verb": "get"}, "get leases.v1.coordination.k8s.io default/l: 403 Forbidden"),
        ("default", {"verb": "create"}, "create leases.v1.coordination.k8s.io default/l: 403 Forbidden"),
    ],
    ids=["no namespace", "no right to read", "no right to create"],
)
def test_a_lease_that_cannot_be_had_is_told(
    api: APIServer, caplog: pytest.LogCaptureFixture, namespace: str, fault: dict[str, Any], line: str
) -> None:
    with elected_on(api, ref=ObjectRef(LEASES, namespace, "l")) as elected:
        if fault:
            elected.api.faults().add({"match": {**ANY, **fault}, "do": "DENY"})
        elected.start()

        until(lambda: len(elected.api.requests(resource="leases.coordination.k8s.io")) >= 4, "it is tried again")

        told = warnings_in(caplog)
        assert [record.getMessage() for record in told] == ["lease request failed"], "once, not each time"
        assert line in str(vars(told[0]))


def test_a_server_that_is_gone_for_a_moment_ends_nothing() -> None:
    with APIServer() as api, elected_on(api) as elected:
        election = elected.lead()

        api.faults().refuse(0.5)

        elected.until_renewed()
        assert election.told == ["taken"]


@pytest.mark.parametrize(
    "fault",
    [
        {"do": "FREEZE"},
        {"do": "CONFLICT", "committed": True},
        {"do": "CONFLICT", "committed": False},
        {"do": "DROPREPLY"},
        {"do": "STATUS", "code": 500},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_a_release_that_goes_wrong_is_repeated(elected: Elected, fault: dict[str, Any]) -> None:
    """https://github.com/kubernetes/client-go/issues/1417, https://github.com/kubernetes/kubernetes/pull/124588"""
    election = elected.lead()
    elected.until_renewed(1)
    election.stop.set()
    elected.api.faults().add({"match": UPDATE, "times": 1, **fault})

    election.elector.finish(work_has_ended=True)
    election.join()

    assert (elected.spec()["holderIdentity"], elected.spec()["leaseDurationSeconds"]) == ("", 1)
    assert elected.spec()["leaseTransitions"] == 0
