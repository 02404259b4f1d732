"""Several electors on clocks that disagree, and a server that does its worst: never do two of them lead at a time.

Real time, which nobody in here can read, moves from event to event. Each elector has a monotonic clock that runs at a
speed of its own, and a clock on the wall that is wrong and jumps. Requests reach the server late, their answers come
late or never, are refused, or are a conflict although they were carried out; electors stand still for a while, are
stopped in order, or end at once. What is checked are the real times at which each fence was open.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from informers.api.fence import FenceKeeper
from informers.meta.errors import APIError, ConflictError, ConnectError, RequestTimeout, ServerError
from informers.meta.resources import ObjectRef
from informers.runtime.leaderelection import LEASES, LeaderElector
from informers.runtime.lease import Lease, Look, Lose, Rest, Terms, Write, Yield, released
from informers.testing.clock import FakeClock

REF: Final = ObjectRef(LEASES, "default", "l")
TERMS: Final = [(15.0, 10.0, 2.0), (3.0, 2.0, 0.5), (10.0, 8.0, 1.0), (20.0, 12.0, 9.0)]
FATES: Final = ("well", "slow", "refused", "lost", "unanswered", "late", "conflict", "conflict although done", "503")


@pytest.fixture(autouse=True, scope="module")
def no_log() -> Iterator[None]:
    """Log nothing: it takes longer than all the rest."""
    logger = logging.getLogger("informers.runtime.leaderelection")
    logger.disabled = True
    yield
    logger.disabled = False


class Server:
    """Keeps one object, as an API server does."""

    def __init__(self) -> None:
        self.body: Mapping[str, Any] | None = None
        self._versions = itertools.count(1)

    def read(self) -> Lease | None:
        return None if self.body is None else Lease(self.body)

    def write(self, body: Mapping[str, Any]) -> Lease:
        wanted = body["metadata"].get("resourceVersion")
        present = None if self.body is None else self.body["metadata"]["resourceVersion"]
        if wanted != present:
            raise ConflictError
        if self.body is not None and body["spec"] == self.body["spec"]:
            return Lease(self.body)  # what changes nothing is not written
        metadata = {**body["metadata"], "uid": "u", "resourceVersion": str(next(self._versions))}
        self.body = {**body, "metadata": metadata}
        return Lease(self.body)


@dataclass
class Term:
    """When, in real time, one fence was open, and until when a write that began then may have gone on."""

    who: str
    since: float
    until: float
    writes_until: float


@dataclass(eq=False)
class Program:
    """One process: an elector, its clock, and what it is waiting for."""

    number: int
    terms: Terms
    rate: float
    clock: FakeClock
    elector: LeaderElector
    keeper: FenceKeeper
    term: Term | None = None
    is_over: bool = False
    stands_still_until: float = 0.0
    turns: int = 0  # so that what was scheduled before does not count any more


@dataclass
class World:
    random: random.Random
    server: Server = field(default_factory=Server)
    now: float = 0.0
    is_healthy: bool = False
    programs: list[Program] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Any = field(default_factory=itertools.count)
    _names: Any = field(default_factory=itertools.count)

    # Time.

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.due, (max(when, self.now), next(self._order), do))

    def run_until(self, end: float) -> None:
        while self.due and self.due[0][0] <= end:
            when, _, do = heapq.heappop(self.due)
            self._move_to(when)
            do()
            self._look_at_fences()
        self._move_to(end)

    def _move_to(self, when: float) -> None:
        for program in self.programs:
            program.clock.advance((when - self.now) * program.rate)
        self.now = when

    # Programs.

    def start(self, number: int, times: tuple[float, float, float], rate: float) -> None:
        name = f"p{number}-{next(self._names)}"
        terms = Terms(identity=name, lease_duration=times[0], renew_deadline=times[1], retry_period=times[2])
        clock = FakeClock()
        clock.jump_wall(self.random.uniform(-1e8, 1e8))
        keeper = FenceKeeper(clock)
        elector = LeaderElector(
            None,  # type: ignore[arg-type]  # the world carries the requests itself
            REF,
            terms,
            keeper=keeper,
            clock=clock,
            release=True,
            taken=lambda: None,
            lost=lambda _: None,
            end_process=lambda: None,
        )
        program = Program(number, terms, rate, clock, elector, keeper)
        self.programs.append(program)
        self.at(self.now, lambda: self.step(program))
        self.look_around(program)

    def look_around(self, program: Program) -> None:
        """Let things happen to a program now and then that have nothing to do with the lease."""

        def happen() -> None:
            if program.is_over:
                return
            what = "nothing" if self.is_healthy else self.random.choice(("jump", "jump", "stand still", "stop", "die"))
            if what == "jump":
                jump_wall(program.clock, self.random)
            elif what == "stand still":
                program.stands_still_until = self.now + self.random.expovariate(1 / program.terms.lease_duration)
            elif what == "stop":
                self.stop(program)
            elif what == "die":
                self.end(program)
            self.at(self.now + self.random.expovariate(1 / (3 * program.terms.lease_duration)), happen)

        self.at(self.now + self.random.expovariate(1 / (3 * program.terms.lease_duration)), happen)

    def end(self, program: Program, *, work_has_ended: bool = True) -> None:
        """End a process, and begin another one in its place; its last write may go on after its fence has closed."""
        program.is_over = True
        if program.term is not None:
            program.term.until = min(program.term.until, self.now)
            if work_has_ended:
                program.term.writes_until = min(program.term.writes_until, self.now)
        program.keeper.close()
        self.programs.remove(program)
        times = (program.terms.lease_duration, program.terms.renew_deadline, program.terms.retry_period)
        self.start(program.number, times, program.rate)

    def stop(self, program: Program) -> None:
        """End a program in order: the fence is closed, then the lease is given back, if that succeeds."""
        program.keeper.close()
        view = program.elector._view
        lease = self.server.read()
        if (
            view.is_leading
            and lease is not None
            and lease.holder == program.terms.identity
            and self.random.random() < 0.8
        ):
            self.server.write(released(lease, wall=program.clock.utc_now()))
        self.end(program)

    def step(self, program: Program) -> None:
        """Have a program do what it decides to do now."""
        if program.is_over:
            return
        if self.now < program.stands_still_until:
            self.at(program.stands_still_until, lambda: self.step(program))
            return
        step = program.elector._next_step()
        match step:
            case Rest(until):
                wait = (until - program.clock.monotonic()) / program.rate
                # Never earlier than asked for, whatever the floating point says.
                self.at(self.now + wait + 1e-9 + self.lag(), lambda: self.step(program))
            case Look() | Write():
                self.ask(program, step)
            case Lose() | Yield():
                self.end(program, work_has_ended=False)

    def ask(self, program: Program, step: Look | Write) -> None:
        """Carry a request to the server and its answer back, as fate will have it."""
        fate = "well" if self.is_healthy else self.random.choices(FATES, weights=(12, 4, 1, 1, 1, 1, 1, 1, 1))[0]
        clock, rate = program.clock, program.rate
        sent = clock.monotonic()
        limit = program.elector._limit / rate
        delay = {"well": 0.0, "slow": self.random.uniform(0, limit), "late": self.random.uniform(limit, 3 * limit)}
        arrives = self.now + delay.get(fate, self.lag())
        answer: list[Lease | Exception | None] = []

        def carry_out() -> None:
            if fate in {"refused", "lost", "503", "conflict"}:
                return
            try:
                answer.append(self.server.write(step.body) if isinstance(step, Write) else self.server.read())
            except ConflictError as error:
                answer.append(error)

        def hear() -> None:
            if program.is_over:
                return
            if self.now < program.stands_still_until:
                self.at(program.stands_still_until, hear)
                return
            if fate == "refused":
                self.fail(program, step, sent, ConnectError("refused"))
            elif fate in {"lost", "unanswered", "late"}:
                self.fail(program, step, sent, RequestTimeout("no answer in time"))
            elif fate == "503":
                self.fail(program, step, sent, ServerError(status=503))
            elif isinstance(step, Write) and fate in {"conflict", "conflict although done"}:
                self.fail(program, step, sent, ConflictError())
            elif isinstance(answer[0], Exception):
                assert isinstance(answer[0], APIError)
                self.fail(program, step, sent, answer[0])
            elif isinstance(step, Look):
                program.elector._have_looked(answer[0])
            else:
                assert answer[0] is not None
                program.elector._have_written(answer[0], sent)
            self.step(program)

        if not isinstance(step, Write) and fate.startswith("conflict"):
            fate = "well"
        self.at(arrives, carry_out)
        takes = limit if fate in {"lost", "unanswered", "late"} else 0.0 if fate == "refused" else arrives - self.now
        self.at(max(arrives if takes < limit else 0.0, self.now + min(takes, limit)) + self.lag(), hear)

    def fail(self, program: Program, step: Look | Write, sent: float, error: APIError | Any) -> None:
        program.elector._take_note_of(error, step if isinstance(step, Write) else None, sent)

    def lag(self) -> float:
        return 0.0 if self.is_healthy else self.random.uniform(0, 0.05)

    # What must hold.

    def _look_at_fences(self) -> None:
        for program in self.programs:
            is_open = program.keeper.fence.is_open()
            if not is_open:
                continue
            if program.term is None:
                program.term = Term(program.terms.identity, self.now, self.now, self.now)
                self.terms.append(program.term)
            term = program.keeper._term
            assert term is not None
            own = program.clock.monotonic()
            program.term.until = self.now + (min(term.open_until, term.write_until) - own) / program.rate
            program.term.writes_until = self.now + (term.write_until - own) / program.rate


def jump_wall(clock: FakeClock, chance: random.Random) -> None:
    """Have the clock on the wall jump, best of all to a time that it has shown before."""
    if chance.random() < 0.5:
        clock.set_wall(clock.utc_now().replace(microsecond=0))
    else:
        clock.jump_wall(chance.choice([-3600, -2, -0.5, 0.5, 2, 3600]) * chance.random())


def overlaps(terms: list[Term], end: Callable[[Term], float]) -> list[tuple[Term, Term]]:
    ordered = sorted(terms, key=lambda term: term.since)
    return [
        (one, other) for one, other in itertools.pairwise(ordered) if other.since < end(one) and one.who != other.who
    ]


def play(seed: int, times: list[tuple[float, float, float]], rates: list[float], *, length: float) -> World:
    world = World(random.Random(seed))
    for number, (each, rate) in enumerate(zip(times, rates, strict=True)):
        world.start(number, each, rate)
    world.run_until(length)
    return world


Times = list[tuple[float, float, float]]
programs = st.integers(2, 4).flatmap(
    lambda count: st.tuples(
        st.lists(st.sampled_from(TERMS), min_size=count, max_size=count),
        st.lists(st.floats(0, 1), min_size=count, max_size=count),
    )
)


def check_fences(seed: int, times: Times, spread: list[float]) -> None:
    """Clocks run at speeds that differ by less than 1.2."""
    world = play(seed, times, [1 + 0.199 * each for each in spread], length=8 * max(each[0] for each in times))

    assert overlaps(world.terms, lambda term: term.until) == []


def check_writes(seed: int, times: Times, spread: list[float]) -> None:
    """Clocks run at speeds that differ by less than 1.05."""
    world = play(seed, times, [1 + 0.049 * each for each in spread], length=8 * max(each[0] for each in times))

    assert overlaps(world.terms, lambda term: term.writes_until) == []


def check_takeover(seed: int, times: Times, spread: list[float]) -> None:
    world = play(seed, times, [1 + 0.199 * each for each in spread], length=3 * max(each[0] for each in times))
    world.is_healthy = True
    for program in world.programs:
        program.stands_still_until = 0.0
    # What was asked before that may still end without an answer.
    world.run_until(world.now + max(program.elector._limit for program in world.programs) + 0.1)
    longest = max(each[0] for each in times) + 2 * max(each[2] for each in times)

    began = world.now
    world.run_until(began + longest + 0.1)

    assert any(term.until > began for term in world.terms)


@settings(max_examples=10)
@given(st.integers(0, 2**32), programs)
def test_no_two_fences_are_open_at_a_time(seed: int, chosen: tuple[Times, list[float]]) -> None:
    check_fences(seed, *chosen)


@settings(max_examples=10)
@given(st.integers(0, 2**32), programs)
def test_the_last_write_of_a_leader_ends_before_the_next_one_leads(
    seed: int, chosen: tuple[Times, list[float]]
) -> None:
    check_writes(seed, *chosen)


@settings(max_examples=10)
@given(st.integers(0, 2**32), programs)
def test_somebody_leads_soon_after_all_is_well(seed: int, chosen: tuple[Times, list[float]]) -> None:
    check_takeover(seed, *chosen)


@pytest.mark.slow
@settings(max_examples=3000)
@given(st.integers(0, 2**32), programs)
def test_all_of_that_many_times(seed: int, chosen: tuple[Times, list[float]]) -> None:
    check_fences(seed, *chosen)
    check_writes(seed, *chosen)
    check_takeover(seed, *chosen)
