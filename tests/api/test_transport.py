from __future__ import annotations

import gc
import gzip
import json
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from informers import metrics
from informers.api.calls import Cancel, NotSent, OutcomeUnknown, Response
from informers.api.kubeconfig import ClientConfig, Impersonation
from informers.api.limits import Gate
from informers.api.transport import Transport
from informers.meta.errors import (
    APIError,
    ConfigError,
    ConflictError,
    ConnectError,
    ConnectionLost,
    ExpiredError,
    ForbiddenError,
    NotFoundError,
    RequestTimeout,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from informers.meta.resources import GVR, ObjectRef
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.api.conftest import Connection, Serve

    Connect = Callable[..., Transport]

CONFIGMAPS = GVR("", "v1", "configmaps")
REF = ObjectRef(CONFIGMAPS, "default", "a")


def answers(connection: Connection) -> None:
    """Answer every request with an empty object."""
    while connection.read():
        connection.answer({})


def in_thread(function: Callable[[], object]) -> Callable[[], object]:
    """Run on another thread; calling the result waits for it and returns what it returned or raised."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(function())
        except Exception as error:  # noqa: BLE001 - handed over
            result.append(error)

    thread = threading.Thread(target=run, name="caller")
    thread.start()

    def wait() -> object:
        thread.join(60)
        assert not thread.is_alive()
        return result[0]

    return wait


def test_request_says_who_asks_what_and_how(serve: Serve, connect: Connect) -> None:
    server = serve(answers)
    config = ClientConfig(
        server=f"{server.url}/prefix/",
        token="t0ken",
        impersonation=Impersonation("ann", ("g1", "g2"), "u1", (("Example.com/a b", "x"),)),
    )

    connect(config, user_agent="copier/1 kube-informers/2").request(
        "POST", "/api/v1/x", query=[("a", "b=c,d e")], body=b'{"k":1}', content_type="application/json", timeout=5
    )

    asked = server.asked[0]
    assert (asked.method, asked.target, asked.body) == ("POST", "/prefix/api/v1/x?a=b%3Dc%2Cd%20e", b'{"k":1}')
    assert asked.headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": "copier/1 kube-informers/2",
        "accept": "application/json",
        "accept-encoding": "identity",
        "authorization": "Bearer t0ken",
        "content-type": "application/json",
        "content-length": "7",
        "impersonate-user": "ann",
        "impersonate-group": "g1, g2",
        "impersonate-uid": "u1",
        "impersonate-extra-example.com%2Fa%20b".lower(): "x",
    }


def test_user_and_password_are_sent_as_basic(serve: Serve, connect: Connect) -> None:
    server = serve(answers)

    connect(ClientConfig(server=server.url, username="ann", password="pw")).request("GET", "/x", timeout=30)

    assert server.asked[0].headers["authorization"] == "Basic YW5uOnB3"


def test_gzip_is_asked_for_only_on_request_and_understood(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer(gzip.compress(b'{"a":1}'), headers={"Content-Encoding": "gzip"})

    server = serve(play)
    transport = connect(server.url)

    bodies = [transport.request("GET", "/x", timeout=30, gzip=wanted).body for wanted in (True, False)]

    assert bodies == [b'{"a":1}'] * 2
    assert [asked.headers["accept-encoding"] for asked in server.asked] == ["gzip", "identity"]


@pytest.mark.parametrize("path", ["x", "/a b", "/a\r\nX: y", "/é", ""])
def test_path_that_is_none_is_refused_before_sending(path: str, serve: Serve, connect: Connect) -> None:
    server = serve(answers)

    with pytest.raises(ConfigError):
        connect(server.url).request("GET", path, timeout=30)

    assert server.accepted == 0


def test_thread_keeps_its_connection_and_threads_have_their_own(serve: Serve, connect: Connect) -> None:
    server = serve(answers)
    transport = connect(server.url)

    for _ in range(3):
        transport.request("GET", "/x", timeout=30)
    assert server.accepted == 1

    in_thread(lambda: transport.request("GET", "/x", timeout=30))()
    assert server.accepted == 2


def test_idle_connections_are_closed_after_a_minute_those_of_other_threads_too(
    serve: Serve, connect: Connect, clock: FakeClock
) -> None:
    closed: list[int] = []

    def play(connection: Connection) -> None:
        answers(connection)
        closed.append(connection.number)

    server = serve(play)
    transport = connect(server.url, clock=clock, cluster="idle")
    in_thread(lambda: transport.request("GET", "/x", timeout=30))()
    transport.request("GET", "/x", timeout=30)
    clock.advance(61)

    transport.request("GET", "/x", timeout=30)

    assert server.accepted == 3
    assert metrics.gauge("informers_connections_open", "", ("cluster",)).value(cluster="idle") == 1


def test_connection_closed_while_idle_is_replaced_also_for_a_post(serve: Serve, connect: Connect) -> None:
    closed = threading.Event()

    def play(connection: Connection) -> None:
        connection.read()
        connection.answer({})
        if connection.number == 1:
            connection.sock.close()
            closed.set()
        else:
            answers(connection)

    server = serve(play)
    transport = connect(server.url)
    transport.request("GET", "/x", timeout=30)
    assert closed.wait(60)

    transport.request("POST", "/x", body=b"{}", timeout=30)

    assert [asked.method for asked in server.asked] == ["GET", "POST"]


def closes_on_second_request(connection: Connection) -> None:
    connection.read()
    connection.answer({})
    if connection.number == 1:
        connection.read()
    else:
        answers(connection)


@pytest.mark.parametrize(("method", "retry_safe"), [("GET", False), ("HEAD", False), ("PUT", True), ("DELETE", True)])
def test_request_unanswered_on_a_kept_connection_is_sent_again_once(
    method: str, retry_safe: bool, serve: Serve, connect: Connect
) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(b"", headers={"Content-Length": "0"})
        if connection.number == 1:
            connection.read()
        else:
            connection.freeze()

    server = serve(play)
    transport = connect(server.url)
    transport.request("GET", "/first", timeout=30)

    transport.request(method, "/second", timeout=30, retry_safe=retry_safe)

    assert [asked.target for asked in server.asked] == ["/first", "/second", "/second"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_write_without_precondition_is_not_sent_twice(method: str, serve: Serve, connect: Connect) -> None:
    server = serve(closes_on_second_request)
    transport = connect(server.url)
    transport.request("GET", "/first", timeout=30)

    with pytest.raises(ConnectionLost):
        transport.request(method, "/second", timeout=30)

    assert [asked.target for asked in server.asked] == ["/first", "/second"]


def test_request_unanswered_on_a_new_connection_is_not_sent_again(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()

    server = serve(play)

    with pytest.raises(ConnectionLost, match="get /x: connection lost"):
        connect(server.url).request("GET", "/x", timeout=30)

    assert len(server.asked) == 1


def test_answer_cut_in_its_body_is_an_error_and_its_connection_is_not_used_again(
    serve: Serve, connect: Connect
) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        if connection.number == 1:
            connection.open_chunked()
            connection.chunk(b'{"items": [')
        else:
            connection.answer({})

    server = serve(play)
    transport = connect(server.url)

    with pytest.raises(ConnectionLost):
        transport.request("GET", "/x", timeout=30)
    transport.request("GET", "/x", timeout=30)

    assert server.accepted == 2


def refuses(connection: Connection) -> None:
    while connection.read():
        connection.answer({}, status=404)


def asks_to_wait(connection: Connection) -> None:
    while connection.read():
        connection.answer({}, status=503, headers={"Retry-After": "100"})


def hangs_up(connection: Connection) -> None:
    connection.read()


def breaks_off(connection: Connection) -> None:
    connection.read()
    connection.send(b"HTTP/1.1 200")


@pytest.mark.parametrize("play", [refuses, asks_to_wait, hangs_up, breaks_off, None])
def test_an_error_is_freed_as_soon_as_nobody_holds_it(
    play: Callable[[Connection], None] | None, serve: Serve, connect: Connect
) -> None:
    """Its traceback holds all that was at hand, and a busy program collects garbage seldom."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    transport = connect(nowhere if play is None else serve(play).url)

    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        with suppress(APIError, TransportError):
            transport.request("GET", "/x", timeout=30)
        gc.collect()
        left = [each.tb_frame.f_code for each in gc.garbage if isinstance(each, TracebackType)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

    assert [code.co_name for code in left if "informers/api" in code.co_filename] == []


def test_reset_is_a_lost_connection(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.reset()

    with pytest.raises(ConnectionLost):
        connect(serve(play).url).request("GET", "/x", timeout=30)


def test_refused_connection_is_told_with_host_and_port(serve: Serve, connect: Connect) -> None:
    server = serve(answers)
    server.stop()

    with pytest.raises(ConnectError, match=f"127.0.0.1:{server.port}: Connection refused"):
        connect(server.url).request("GET", "/x", timeout=30)


def freeze_accept(connection: Connection) -> None:
    connection.freeze()


def freeze_headers(connection: Connection) -> None:
    connection.read()
    connection.send(b"HTTP/1.1 200 OK\r\nX: ")
    connection.freeze()


def freeze_body(connection: Connection) -> None:
    connection.read()
    connection.open_chunked()
    connection.chunk(b'{"type": "ADDED"}\n{"type"')
    connection.freeze()


@pytest.mark.parametrize("play", [freeze_accept, freeze_headers, freeze_body])
def test_timeout_covers_the_whole_call(play: Callable[[Connection], None], serve: Serve, connect: Connect) -> None:
    with pytest.raises(RequestTimeout):
        connect(serve(play).url).request("GET", "/x", timeout=0.2)


def test_bytes_that_trickle_in_do_not_stretch_the_timeout(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.send(b"HTTP/1.1 200 OK\r\nX: ")
        while not connection.server.over.wait(0.02):
            connection.send(b"x")

    with pytest.raises(RequestTimeout):
        connect(serve(play).url).request("GET", "/x", timeout=0.3)


@pytest.mark.parametrize("play", [freeze_accept, freeze_headers, freeze_body])
def test_cancel_ends_a_request_wherever_it_waits(
    play: Callable[[Connection], None], serve: Serve, connect: Connect
) -> None:
    server = serve(play)
    transport, cancel = connect(server.url), Cancel()
    call = in_thread(lambda: transport.request("POST", "/x", timeout=60, cancel=cancel))
    assert server.frozen.acquire(timeout=60)

    cancel.cancel()

    assert isinstance(call(), ConnectionLost)


def test_call_cancelled_before_it_begins_sends_nothing(serve: Serve, connect: Connect) -> None:
    server = serve(answers)
    transport, cancel = connect(server.url), Cancel()
    cancel.cancel()

    with pytest.raises(ConnectionLost, match="cancelled"):
        transport.request("GET", "/x", timeout=30, cancel=cancel)
    with pytest.raises(ConnectionLost, match="cancelled"):
        transport.open_stream("/x", silence=5, deadline=5, cancel=cancel)

    assert server.asked == []


def test_cut_reads_ends_reads_and_leaves_writes_alone(serve: Serve, connect: Connect) -> None:
    go_on = threading.Event()

    def play(connection: Connection) -> None:
        connection.read()
        go_on.wait(60)
        connection.answer({})

    server = serve(play)
    transport = connect(server.url)
    read = in_thread(lambda: transport.request("GET", "/x", timeout=60))
    write = in_thread(lambda: transport.request("PATCH", "/x", timeout=60))
    server.wait_asked(2)

    transport.cut_reads()

    assert isinstance(read(), ConnectionLost)
    go_on.set()
    assert isinstance(write(), Response)


def status_body(code: int, reason: str, **more: object) -> dict[str, object]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, **more}


@pytest.mark.parametrize(
    ("status", "body", "error", "reason"),
    [
        (404, status_body(404, "NotFound"), NotFoundError, "NotFound"),
        (409, status_body(409, "Conflict"), ConflictError, "Conflict"),
        (410, status_body(410, "Expired"), ExpiredError, "Expired"),
        (403, b"", ForbiddenError, ""),
        (500, b"<html>no</html>", ServerError, ""),
        (502, b"[1]", ServerError, ""),
        (302, b"", APIError, ""),
    ],
)
def test_answers_other_than_2xx_become_errors(
    status: int, body: object, error: type[APIError], reason: str, serve: Serve, connect: Connect
) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(body, status=status, headers={"Location": "/elsewhere"})

    server = serve(play)

    with pytest.raises(error) as raised:
        connect(server.url, cluster="b").request("GET", "/x", timeout=30, verb="get", ref=REF)

    assert (raised.value.status, raised.value.reason, raised.value.ref) == (status, reason, REF)
    assert len(server.asked) == 1


def test_plain_text_of_an_error_is_its_message(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(b"404 page not found\n", status=404, headers={"Content-Type": "text/plain"})

    with pytest.raises(NotFoundError, match="404 page not found"):
        connect(serve(play).url).request("GET", "/x", timeout=30)


def test_answer_in_another_media_type_is_an_error_that_names_it(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer(b"<html>log in</html>", headers={"Content-Type": "text/html; charset=utf-8"})

    transport = connect(serve(play).url)

    with pytest.raises(APIError, match="text/html"):
        transport.request("GET", "/x", timeout=30)
    with pytest.raises(APIError, match="text/html"):
        transport.open_stream("/x", silence=5, deadline=5, cancel=Cancel())
    assert transport.request("GET", "/x", accept="text/html", timeout=30).body == b"<html>log in</html>"


@pytest.mark.parametrize(("status", "method"), [(429, "POST"), (429, "GET"), (503, "PATCH"), (500, "GET")])
def test_request_is_repeated_after_the_time_the_server_asks_for(
    status: int, method: str, serve: Serve, connect: Connect, clock: FakeClock
) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(status_body(status, ""), status=status, headers={"Retry-After": "5"})
        answers(connection)

    server = serve(play)
    transport = connect(server.url, clock=clock)
    call = in_thread(lambda: transport.request(method, "/x", timeout=30))
    clock.block_until_waiting()

    clock.advance(4.9)
    clock.block_until_waiting()
    assert len(server.asked) == 1
    clock.advance(0.1)

    assert isinstance(call(), Response)
    assert len(server.asked) == 2


def test_retry_after_may_be_a_date(serve: Serve, connect: Connect, clock: FakeClock) -> None:
    when = clock.utc_now().strftime("%a, %d %b %Y %H:%M:%S GMT")

    def play(connection: Connection) -> None:
        connection.read()
        connection.answer({}, status=503, headers={"Retry-After": when})
        answers(connection)

    server = serve(play)

    connect(server.url, clock=clock).request("GET", "/x", timeout=30)

    assert len(server.asked) == 2


def test_request_is_repeated_ten_times_at_most(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer({}, status=429, headers={"Retry-After": "0"})

    server = serve(play)

    with pytest.raises(TooManyRequestsError):
        connect(server.url).request("GET", "/x", timeout=30)

    assert len(server.asked) == 11


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (429, {}, {"Retry-After": "20"}),
        (429, {}, {}),
        (503, {}, {"Retry-After": "soon"}),
        (
            504,
            status_body(504, "Timeout", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}),
            {"Retry-After": "1"},
        ),
    ],
    ids=["past the timeout", "no header", "not a time", "too large resource version"],
)
def test_request_is_not_repeated(
    status: int, body: object, headers: dict[str, str], serve: Serve, connect: Connect
) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer(body, status=status, headers=headers)

    server = serve(play)

    with pytest.raises(APIError):
        connect(server.url).request("GET", "/x", timeout=10)

    assert len(server.asked) == 1


def test_429_holds_back_all_callers_of_the_cluster_but_not_the_unlimited(
    serve: Serve, connect: Connect, clock: FakeClock
) -> None:
    def play(connection: Connection) -> None:
        while asked := connection.read():
            first = asked.target == "/first" and sum(a.target == "/first" for a in connection.server.asked) == 1
            connection.answer({}, status=429 if first else 200, headers={"Retry-After": "5"} if first else {})

    server = serve(play)
    transport = connect(server.url, clock=clock)
    first = in_thread(lambda: transport.request("GET", "/first", timeout=30))
    clock.block_until_waiting()

    others = [in_thread(lambda: transport.request("POST", "/other", timeout=30)) for _ in range(3)]
    clock.block_until_waiting(4)
    transport.request("GET", "/unlimited", timeout=30, unlimited=True)
    assert [asked.target for asked in server.asked] == ["/first", "/unlimited"]
    clock.advance(5)

    assert all(isinstance(call(), Response) for call in [first, *others])


def test_requests_in_flight_are_bounded_and_who_waits_too_long_is_told_so(
    serve: Serve, connect: Connect, clock: FakeClock
) -> None:
    go_on = threading.Event()

    def play(connection: Connection) -> None:
        while connection.read():
            go_on.wait(60)
            connection.answer({})

    server = serve(play)
    transport = connect(server.url, clock=clock, max_inflight=2)
    inside = [in_thread(lambda: transport.request("GET", "/x", timeout=60)) for _ in range(2)]
    server.wait_asked(2)
    waiting = in_thread(lambda: transport.request("POST", "/y", timeout=5))
    clock.block_until_waiting()

    clock.advance(5)

    assert isinstance(waiting(), NotSent)
    go_on.set()
    assert all(isinstance(call(), Response) for call in inside)
    assert [asked.target for asked in server.asked] == ["/x", "/x"]


def test_cancel_ends_the_wait_for_a_turn_and_the_wait_that_a_server_asked_for(
    serve: Serve, connect: Connect, clock: FakeClock
) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer({}, status=429, headers={"Retry-After": "5"})

    server = serve(play)
    transport = connect(server.url, clock=clock)
    cancels = [Cancel(), Cancel()]
    asked_to_wait = in_thread(lambda: transport.request("GET", "/x", timeout=60, cancel=cancels[0]))
    clock.block_until_waiting()
    waiting = in_thread(lambda: transport.request("GET", "/y", timeout=60, cancel=cancels[1]))
    clock.block_until_waiting(2)

    for cancel in cancels:
        cancel.cancel()

    assert isinstance(asked_to_wait(), ConnectionLost)
    assert isinstance(waiting(), ConnectionLost)


def test_distinct_warnings_are_logged_once_an_hour(
    serve: Serve, connect: Connect, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer({}, headers={"Warning": r'299 - "old \"api\"", 299 - "b", 199 - "other code"'})

    transport = connect(serve(play).url, clock=clock)

    with caplog.at_level(logging.WARNING):
        for seconds in (0, 3590, 20):
            clock.advance(seconds)
            transport.request("GET", "/x", timeout=30, ref=REF)

    assert [record.message for record in caplog.records] == ["the API server warns"] * 4


def test_secret_content_in_an_answer_is_in_no_text(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(status_body(422, "Invalid", message='Invalid value: "hunter2"'), status=422)

    config = ClientConfig(server=serve(play).url, token="s3cret-token")
    transport = connect(config)

    with pytest.raises(APIError) as raised:
        transport.request("PATCH", "/x", timeout=30, verb="patch", ref=REF, body=b"s3cret-body")

    shown = f"{raised.value} {raised.value!r} {config!r} {Response(200, {}, b's3cret')!r}"
    assert "hunter2" not in shown
    assert "s3cret" not in shown


def test_answers_are_counted_by_verb_and_code(serve: Serve, connect: Connect) -> None:
    transport = connect(serve(answers).url, cluster="counted")

    transport.request("GET", "/x", timeout=30, verb="list")

    counter = metrics.counter("informers_requests_total", "", ("cluster", "verb", "code"))
    assert counter.value(cluster="counted", verb="list", code="200") == 1


def test_early_refusal_of_a_large_body_is_read(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.sock.recv(100)
        connection.answer(status_body(413, "RequestEntityTooLarge"), status=413, headers={"Connection": "close"})
        connection.wait_closed()

    with pytest.raises(APIError) as raised:
        connect(serve(play).url).request("POST", "/x", body=b"x" * 10_000, timeout=30)

    assert raised.value.status == 413


def test_host_name_is_looked_up(serve: Serve, connect: Connect) -> None:
    server = serve(answers)

    assert connect(f"http://localhost:{server.port}").request("GET", "/x", timeout=30).status == 200


def test_host_name_that_is_none_is_a_connect_error(connect: Connect) -> None:
    with pytest.raises(ConnectError, match=r"no-such-host\.invalid"):
        connect("http://no-such-host.invalid:1").request("GET", "/x", timeout=20)


def test_transport_error_leaves_nothing_of_the_standard_library(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.send(b"SSH-2.0-OpenSSH_9\r\n")

    with pytest.raises(TransportError, match="get /x: connection lost: the answer is not HTTP/1"):
        connect(serve(play).url).request("GET", "/x", timeout=30)


def test_large_body_arrives_whole(serve: Serve, connect: Connect) -> None:
    body = json.dumps(["x" * 100] * 100_000).encode()

    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        for start in range(0, len(body), 50_000):
            connection.chunk(body[start : start + 50_000])
        connection.end_chunks()

    assert connect(serve(play).url).request("GET", "/x", timeout=20).body == body


def repeats_unanswered(connection: Connection) -> None:
    """Keep the first connection after one answer, hang up on its second request; conflict on the next connection."""
    connection.read()
    if connection.number == 1:
        connection.answer({})
        connection.read()
    else:
        connection.answer(status_body(409, "Conflict"), status=409)


def test_error_after_a_repeat_tells_that_the_first_try_may_have_been_carried_out(
    serve: Serve, connect: Connect
) -> None:
    transport = connect(serve(repeats_unanswered).url)
    transport.request("GET", "/x", timeout=30)

    with pytest.raises(ConflictError) as raised:
        transport.request("PUT", "/x", timeout=30, retry_safe=True)

    assert isinstance(raised.value.__cause__, OutcomeUnknown)


def test_connection_that_timed_out_is_not_used_again(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer({})
        if connection.number == 1:
            connection.read()
            connection.freeze()
        answers(connection)

    server = serve(play)
    transport = connect(server.url)
    transport.request("GET", "/x", timeout=30)
    with pytest.raises(RequestTimeout):
        transport.request("GET", "/frozen", timeout=0.1)

    assert transport.request("GET", "/x", timeout=30).status == 200

    assert server.accepted == 2


def test_dead_peers_are_noticed_by_the_kernel(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Seen(socket.socket):
        def connect_ex(self, address: Any) -> int:
            made.append(self)
            return super().connect_ex(address)

    monkeypatch.setattr(socket, "socket", Seen)
    transport = connect(serve(answers).url)
    transport.request("GET", "/x", timeout=30)

    tcp = socket.IPPROTO_TCP
    assert made[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    wanted = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 45_000}
    present = {name: value for name, value in wanted.items() if hasattr(socket, name)}
    assert {name: made[0].getsockopt(tcp, getattr(socket, name)) for name in present} == present


def test_server_is_believed_up_to_thirty_seconds(serve: Serve, connect: Connect, clock: FakeClock) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer({}, status=503, headers={"Retry-After": "3000"})
        answers(connection)

    server = serve(play)
    transport = connect(server.url, clock=clock)
    call = in_thread(lambda: transport.request("GET", "/x", timeout=60))
    clock.block_until_waiting()

    clock.advance(30)

    assert isinstance(call(), Response)


def test_nobody_slips_in_between_a_429_and_its_pause(
    serve: Serve, connect: Connect, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer({}, status=429, headers={"Retry-After": "5"})
        answers(connection)

    left: list[bool] = []
    server = serve(play)
    transport = connect(server.url, clock=clock, max_inflight=1)
    leave = Gate.leave

    def leave_and_try(gate: Gate, *, was_answered: bool) -> None:
        leave(gate, was_answered=was_answered)
        if not was_answered:
            left.append(gate.enter(clock.monotonic(), lambda: False))

    monkeypatch.setattr(Gate, "leave", leave_and_try)
    with pytest.raises(TooManyRequestsError):
        transport.request("GET", "/x", timeout=1)

    assert left == [False]


@pytest.mark.parametrize(
    "header",
    ["Sun, 06 Nov 1994 08:49:37 -99999999999999999999", "Mon, 01 Jan 99999 00:00:00 GMT", "\xb2", "-1", "1.5", ",,"],
)
def test_retry_after_that_cannot_be_read_is_none(header: str, serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.send(
            b"HTTP/1.1 429 X\r\nContent-Length: 2\r\nRetry-After: " + header.encode("latin-1") + b"\r\n\r\n{}"
        )

    with pytest.raises(TooManyRequestsError) as raised:
        connect(serve(play).url).request("GET", "/x", timeout=30)

    assert raised.value.retry_after is None


@pytest.mark.parametrize(
    "call",
    [
        lambda transport: transport.request("GE T", "/x", timeout=30),
        lambda transport: transport.request("GET\r\nX:", "/x", timeout=30),
        lambda transport: transport.request("GET", "/x", query=[("labelSelector", "\ud800")], timeout=30),
        lambda transport: transport.request("GET", "/x", accept="a\nb", timeout=30),
    ],
    ids=["method", "method that breaks the line", "half a character", "header that breaks the line"],
)
def test_what_cannot_be_sent_is_a_config_error(call: Any, serve: Serve, connect: Connect) -> None:
    with pytest.raises(ConfigError):
        call(connect(serve(answers).url))


def test_timeout_may_be_longer_than_the_system_takes(serve: Serve, connect: Connect) -> None:
    server = serve(answers)

    assert connect(f"http://localhost:{server.port}").request("GET", "/x", timeout=1e300).status == 200


def test_warning_about_a_secret_is_hidden_in_raw_requests_too(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer({}, headers={"Warning": '299 - "unknown field hunter2"'})

    transport = connect(serve(play).url)

    with caplog.at_level(logging.DEBUG):
        transport.request("PUT", "/api/v1/namespaces/a/secrets/b", timeout=30)
        transport.request("PUT", "/x", timeout=30, ref=ObjectRef(GVR("", "v1", "secrets"), "a", "b"))

    assert [record.message for record in caplog.records].count("the API server warns") == 1
    assert "hunter2" not in str([record.__dict__ for record in caplog.records])


def test_user_agent_names_the_part_that_asks(serve: Serve, connect: Connect) -> None:
    server = serve(answers)
    transport = connect(server.url, user_agent="copier/1")

    transport.request("GET", "/x", timeout=30, part="disc\u00f6very\r\nX: y")
    transport.open_stream("/x", silence=5, deadline=5, cancel=Cancel(), part="informer").close()

    agents = [asked.headers["user-agent"] for asked in server.asked]
    assert agents == ["copier/1 (disc?very\\r\\nX: y)", "copier/1 (informer)"]


def test_error_answer_without_end_does_not_fill_the_memory(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.send(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.chunk(b"x" * 60_000)

    transport = connect(serve(play).url)

    with pytest.raises(ServerError):
        transport.request("GET", "/x", timeout=20)
    with pytest.raises(ServerError):
        transport.open_stream("/x", silence=20, deadline=20, cancel=Cancel())


def test_idle_connections_are_closed_when_a_stream_brings_something(
    serve: Serve, connect: Connect, clock: FakeClock
) -> None:
    go_on = threading.Event()

    def play(connection: Connection) -> None:
        asked = connection.read()
        if asked is not None and asked.target == "/stream":
            connection.open_chunked()
            connection.chunk(b"{}\n")
            go_on.wait(60)
            connection.chunk(b"{}\n")
            connection.end_chunks()
        else:
            connection.answer({})
            answers(connection)

    transport = connect(serve(play).url, clock=clock, cluster="tidy")
    transport.request("GET", "/x", timeout=30)
    with transport.open_stream("/stream", silence=600, deadline=600, cancel=Cancel()) as stream:
        lines = stream.lines()
        next(lines)
        clock.advance(61)
        go_on.set()
        list(lines)
        assert metrics.gauge("informers_connections_open", "", ("cluster",)).value(cluster="tidy") == 1
