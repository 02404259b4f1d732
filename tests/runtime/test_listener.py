"""The listener against real sockets: what it answers, what it cuts off, and that nobody who is slow is in the way."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informers.clock import Clock, Stop, SystemClock
from informers.meta.addresses import Address
from informers.runtime import listener as module
from informers.runtime.listener import BIND_AGAIN, CONNECTIONS, SECONDS, Answer, Listener, Question, text
from informers.testing.clock import FakeClock

LOCAL = Address("127.0.0.1", 0)
PATIENCE = 20.0
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Running:
    """A listener on a thread, and all that it was asked."""

    def __init__(self, address: Address, clock: Clock, answer: Callable[[Question], Answer] | None) -> None:
        self.asked: list[Question] = []
        self.stop = Stop(clock)
        self._answer = answer
        self.listener = Listener(address, self._ask, clock=clock)
        self.thread = threading.Thread(target=self.listener.run, args=(self.stop,), name="http")
        self.thread.start()

    def _ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return text(200, "fine") if self._answer is None else self._answer(question)

    def port(self) -> int:
        until(self.listener.port, "it listens")
        return self.listener.port()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port()), timeout=PATIENCE)

    def ask(self, request: bytes = GET) -> bytes:
        with self.connect() as client:
            client.sendall(request)
            return read_all(client)


def until(holds: Callable[[], object], what: str) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if holds():
            return
        tick.wait(0.01)
    raise AssertionError(f"not within {PATIENCE:g} s: {what}")


def read_all(client: socket.socket) -> bytes:
    """Read until the other side is done; a reset counts as that."""
    found = b""
    try:
        while data := client.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


@contextmanager
def listening(
    address: Address = LOCAL, *, clock: Clock | None = None, answer: Callable[[Question], Answer] | None = None
) -> Iterator[Running]:
    running = Running(address, SystemClock() if clock is None else clock, answer)
    try:
        yield running
    finally:
        running.stop.set()
        running.thread.join(PATIENCE)
        assert not running.thread.is_alive()


def test_a_question_is_read_and_its_answer_written() -> None:
    with listening() as running:
        found = running.ask(
            b"GET /readyz/sync%20a/b?verbose&x=1 HTTP/1.1\r\nHost: a\r\naccept: text/plain\r\nAccept: b/c\r\n\r\n"
        )

    head, _, body = found.partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Type: text/plain; charset=utf-8" in head
    assert b"Content-Length: 5" in head
    assert body == b"fine\n"
    assert running.asked == [Question("GET", "/readyz/sync a/b", {"verbose": "", "x": "1"}, "text/plain, b/c")]


def test_head_gets_the_head_alone() -> None:
    with listening() as running:
        found = running.ask(b"HEAD / HTTP/1.1\r\n\r\n")

    assert b"Content-Length: 5" in found
    assert found.endswith(b"\r\n\r\n")


def test_a_request_may_come_in_pieces_and_with_bare_line_feeds() -> None:
    with listening() as running, running.connect() as client:
        for byte in b"GET /a HTTP/1.0\nHost: a\n\n":
            client.sendall(bytes([byte]))
        found = read_all(client)

    assert found.startswith(b"HTTP/1.1 200 ")
    assert running.asked[0].path == "/a"


@pytest.mark.parametrize("request_", [b"hello\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n", b"\r\n\r\n"])
def test_what_is_no_request_is_refused(request_: bytes) -> None:
    with listening() as running:
        assert running.ask(request_).startswith(b"HTTP/1.1 400 ")
        assert running.asked == []


def test_long_lines_and_long_heads_are_cut_off() -> None:
    with listening() as running:
        assert running.ask(b"GET /" + b"a" * 8192).startswith(b"HTTP/1.1 414 ")
        assert running.ask(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 414 ")
        assert running.ask(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000).startswith(b"HTTP/1.1 431 ")
        assert running.ask().startswith(b"HTTP/1.1 200 ")


def test_an_answer_arrives_though_more_was_sent_than_was_read() -> None:
    with listening() as running:
        found = running.ask(b"POST / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000)

    assert found.endswith(b"fine\n")


def test_a_long_answer_is_sent_whole_to_a_slow_reader() -> None:
    body = bytes(range(256)) * 20_000
    with listening(answer=lambda _: Answer(200, body)) as running, running.connect() as client:
        client.sendall(GET)
        found = client.recv(100)
        assert running.ask().endswith(body)
        found += read_all(client)

    assert found.endswith(body)


def test_a_question_that_has_no_answer_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Question) -> Answer:
        raise LookupError

    with listening(answer=broken) as running:
        assert running.ask().startswith(b"HTTP/1.1 500 ")
        assert running.ask().startswith(b"HTTP/1.1 500 ")

    assert "no answer" in caplog.messages


def test_limits_are_those_that_are_promised() -> None:
    assert (CONNECTIONS, SECONDS, BIND_AGAIN) == (16, 5.0, 30.0)


def test_who_sends_nothing_is_cut_off_in_time(clock: FakeClock) -> None:
    with listening(clock=clock) as running, running.connect() as silent:
        running.ask()  # so the silent one was accepted
        clock.advance(SECONDS + 1)
        running.ask()

        assert read_all(silent) == b""


def test_when_there_are_too_many_the_oldest_goes_and_the_newest_is_answered() -> None:
    with listening() as running, ExitStack() as opened:
        silent = [opened.enter_context(running.connect()) for _ in range(CONNECTIONS)]
        for client in silent:
            client.sendall(b"GET / HT")
        assert running.ask().startswith(b"HTTP/1.1 200 ")

        assert read_all(silent[0]) == b""
        silent[-1].sendall(b"TP/1.1\r\n\r\n")
        assert read_all(silent[-1]).startswith(b"HTTP/1.1 200 ")


def test_it_stops_at_once_with_connections_open() -> None:
    with ExitStack() as opened:
        with listening() as running:
            clients = [opened.enter_context(running.connect()) for _ in range(3)]
            running.ask()
        assert [read_all(client) for client in clients] == [b""] * 3
        assert running.listener.port() == 0


def test_a_stop_before_the_start_is_not_lost() -> None:
    stop = Stop()
    stop.set()

    Listener(LOCAL, lambda _: text(200, ""), clock=SystemClock()).run(stop)


def test_a_port_in_use_is_told_once_and_tried_again(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="informers")

    def failures() -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.getMessage().startswith("cannot listen")]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with listening(address, clock=clock) as running:
            clock.block_until_waiting(1)
            assert [one.levelname for one in failures()] == ["ERROR"]
            assert vars(failures()[0])["informers_fields"] == {
                "address": str(address),
                "error": "Address already in use",
            }
            clock.advance(BIND_AGAIN - 1)
            clock.block_until_waiting(1)
            assert len(failures()) == 1
            clock.advance(1)
            until(lambda: len(failures()) == 2, "the second failure")
            clock.block_until_waiting(1)
            assert failures()[1].levelname == "DEBUG"
            taken.close()
            clock.advance(BIND_AGAIN)
            assert running.ask().startswith(b"HTTP/1.1 200 ")


def test_a_port_in_use_keeps_nobody_from_stopping(clock: FakeClock) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        listening(Address("127.0.0.1", taken.getsockname()[1]), clock=clock),
    ):
        clock.block_until_waiting(1)


@given(st.binary(max_size=100) | st.text(alphabet="GET /?%:[]a\r\n.1HTP", max_size=60).map(str.encode))
def test_whatever_is_sent_is_a_question_or_is_refused(received: bytes) -> None:
    found = module._read(received + b"\r\n\r\n")

    assert isinstance(found, Question) or (isinstance(found, Answer) and found.status == 400)


def test_no_host_is_every_address_of_either_family() -> None:
    with listening(Address("", 0)) as running:
        assert running.ask().startswith(b"HTTP/1.1 200 ")
        if socket.has_dualstack_ipv6():
            with socket.create_connection(("::1", running.port()), timeout=PATIENCE) as client:
                client.sendall(GET)
                assert read_all(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("has_dual_stack", [True, False])
def test_without_ipv6_it_is_ipv4(monkeypatch: pytest.MonkeyPatch, has_dual_stack: bool) -> None:
    create = socket.create_server

    def refuse(address: tuple[str, int], *, family: int = socket.AF_INET, **options: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6 here")
        return create(address, **options)  # type: ignore[arg-type]  # what was passed is passed on

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: has_dual_stack)
    monkeypatch.setattr(socket, "create_server", refuse)

    with listening(Address("", 0)) as running:
        assert running.ask().startswith(b"HTTP/1.1 200 ")


def test_a_host_that_is_none_is_told(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    with listening(Address("192.0.2.1", 0), clock=clock):
        until(lambda: caplog.records, "the failure is told")

    assert caplog.records[0].levelname == "ERROR"
