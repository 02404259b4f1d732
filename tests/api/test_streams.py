from __future__ import annotations

import gc
import gzip
import socket
import threading
import tracemalloc
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from informers import metrics
from informers.api.calls import Cancel, LineTooLong
from informers.api.connections import Wire
from informers.api.streams import Stream
from informers.api.transport import Transport
from informers.meta.errors import (
    APIError,
    ConnectError,
    ConnectionLost,
    ExpiredError,
    RequestTimeout,
    TooManyRequestsError,
)

if TYPE_CHECKING:
    from tests.api.conftest import Connection, Serve

    Connect = Callable[..., Transport]
    Play = Callable[[Connection], None]

EVENT = b'{"type":"ADDED","object":{}}'


def open_stream(transport: Transport, **options: Any) -> Stream:
    given = {"silence": 5.0, "deadline": 30.0, "cancel": Cancel(), **options}
    return transport.open_stream("/api/v1/configmaps", query=[("watch", "true")], **given)


def chunked(*chunks: bytes, ends: bool = True) -> Play:
    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        for chunk in chunks:
            connection.chunk(chunk)
        if ends:
            connection.end_chunks()

    return play


def counted(connection: Connection) -> None:
    connection.read()
    connection.answer(EVENT + b"\n" + EVENT + b"\n")


def until_close(connection: Connection) -> None:
    connection.read()
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + EVENT + b"\n" + EVENT + b"\n")


def gzipped(connection: Connection) -> None:
    connection.read()
    connection.open_chunked(Content_Encoding="gzip")
    packer = zlib.compressobj(wbits=31)
    for _ in range(2):
        connection.chunk(packer.compress(EVENT + b"\n") + packer.flush(zlib.Z_SYNC_FLUSH))
    connection.chunk(packer.flush())
    connection.end_chunks()


@pytest.mark.parametrize(
    "play",
    [
        chunked(EVENT + b"\n", EVENT + b"\n"),
        chunked(EVENT[:5], EVENT[5:] + b"\r\n\r\n \n" + EVENT[:1], EVENT[1:] + b"\n"),
        counted,
        until_close,
        gzipped,
    ],
    ids=["chunk per line", "cut and blank lines", "Content-Length", "until close", "gzip"],
)
def test_lines_come_whole_and_a_clean_end_is_the_end(play: Play, serve: Serve, connect: Connect) -> None:
    with open_stream(connect(serve(play).url)) as stream:
        assert not stream.has_received
        assert list(stream.lines()) == [EVENT, EVENT]
        assert stream.has_received


def test_each_line_comes_as_soon_as_it_is_there(serve: Serve, connect: Connect) -> None:
    go_on = threading.Event()

    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked(Content_Encoding="gzip")
        packer = zlib.compressobj(wbits=31)
        connection.chunk(packer.compress(EVENT + b"\n") + packer.flush(zlib.Z_SYNC_FLUSH))
        assert go_on.wait(60)
        connection.chunk(packer.compress(b"2\n") + packer.flush())
        connection.end_chunks()

    with open_stream(connect(serve(play).url)) as stream:
        lines = stream.lines()
        assert next(lines) == EVENT
        go_on.set()
        assert list(lines) == [b"2"]


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Have nothing freed but by its last reference going."""
    gc.disable()

    yield

    gc.enable()


@pytest.mark.parametrize("ends", [True, False], ids=["clean", "cut"])
def test_a_stream_that_has_ended_is_freed_with_its_buffers_at_once(
    ends: bool, serve: Serve, connect: Connect, uncollected: None
) -> None:
    """Watches end all the time, and a busy program collects garbage seldom."""
    transport = connect(serve(chunked(EVENT + b"\n", ends=ends)).url)
    with open_stream(transport) as stream:
        lines = stream.lines()
        next(lines)
        body = stream._answer.body
        parts = [weakref.ref(part) for part in (stream, stream._answer.wire, body, body._framing, stream._splitter)]
        with suppress(ConnectionLost):
            next(lines, None)

    del stream, lines, body

    assert [part() for part in parts] == [None] * len(parts)


def test_what_comes_takes_as_much_memory_as_it_is_long() -> None:
    """A block of full size that is cut down leaves a gap that the next one does not fit into."""
    near, far = socket.socketpair()
    with near, far:
        wire = Wire(near, "")
        far.sendall(EVENT)
        wire.receive(30)
        far.sendall(EVENT)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            assert wire.receive(30) == EVENT
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        wire.close()

    assert most - before < 4096


@pytest.mark.parametrize("answer", [b'{"kind":"Status","code":410}', b"\n" + EVENT])
def test_one_document_without_a_line_end_is_a_line(answer: bytes, serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(answer)

    with open_stream(connect(serve(play).url)) as stream:
        assert list(stream.lines()) == [answer.strip()]


def fin_in_chunk(connection: Connection) -> None:
    connection.read()
    connection.open_chunked()
    connection.chunk(EVENT + b"\n")
    connection.send(b"ff\r\n" + EVENT[:7])


def fin_in_until_close(connection: Connection) -> None:
    connection.read()
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n" + EVENT + b"\n" + EVENT[:7])


@pytest.mark.parametrize(
    "play",
    [
        chunked(EVENT + b"\n", ends=False),
        chunked(EVENT + b"\n", EVENT[:7]),
        chunked(EVENT + b"\n", EVENT[:7], ends=False),
        fin_in_chunk,
        fin_in_until_close,
    ],
    ids=["no final chunk", "fragment before a clean end", "fragment", "in a chunk", "until close"],
)
def test_cut_is_told_from_a_clean_end_and_its_fragment_is_dropped(play: Play, serve: Serve, connect: Connect) -> None:
    with open_stream(connect(serve(play).url)) as stream:
        lines = stream.lines()
        assert next(lines) == EVENT
        with pytest.raises(ConnectionLost) as raised:
            next(lines)

    assert "ADDED" not in str(raised.value)


def test_reset_is_a_lost_connection(serve: Serve, connect: Connect) -> None:
    seen = threading.Event()

    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        connection.chunk(EVENT + b"\n")
        assert seen.wait(60)
        connection.reset()

    with open_stream(connect(serve(play).url)) as stream:
        lines = stream.lines()
        next(lines)
        seen.set()
        with pytest.raises(ConnectionLost):
            next(lines)


def test_broken_chunk_framing_and_broken_gzip_are_lost_connections(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        if connection.number == 1:
            connection.open_chunked()
            connection.send(b"zz\r\n")
        else:
            connection.open_chunked(Content_Encoding="gzip")
            connection.chunk(gzip.compress(EVENT)[:-8])
            connection.end_chunks()

    transport = connect(serve(play).url)
    for _ in range(2):
        with open_stream(transport) as stream, pytest.raises(ConnectionLost):
            list(stream.lines())


def freeze_accept(connection: Connection) -> None:
    connection.freeze()


def freeze_headers(connection: Connection) -> None:
    connection.read()
    connection.freeze()


def freeze_stream(connection: Connection) -> None:
    connection.read()
    connection.open_chunked()
    connection.chunk(EVENT)  # not even a line
    connection.freeze()


@pytest.mark.parametrize("play", [freeze_headers, freeze_stream])
@pytest.mark.parametrize("limits", [{"silence": 0.2}, {"deadline": 0.2}])
def test_silence_and_own_deadline_end_a_stream_before_and_after_its_headers(
    play: Play, limits: dict[str, float], serve: Serve, connect: Connect
) -> None:
    transport = connect(serve(play).url)

    with pytest.raises(RequestTimeout), open_stream(transport, **limits) as stream:
        list(stream.lines())


def test_silence_may_be_changed_between_lines(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        connection.chunk(EVENT + b"\n")
        connection.freeze()

    with open_stream(connect(serve(play).url), silence=60) as stream:
        lines = stream.lines()
        next(lines)
        stream.silence = 0.1
        with pytest.raises(RequestTimeout):
            next(lines)


def test_bytes_that_are_no_line_yet_break_the_silence(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        for _ in range(10):
            connection.chunk(b" ")
            connection.server.over.wait(0.05)
        connection.chunk(EVENT + b"\n")
        connection.end_chunks()

    with open_stream(connect(serve(play).url), silence=0.3) as stream:
        assert [line.strip() for line in stream.lines()] == [EVENT]


@pytest.mark.parametrize("play", [freeze_accept, freeze_headers, freeze_stream])
def test_cancel_ends_a_stream_wherever_it_waits(play: Play, serve: Serve, connect: Connect) -> None:
    server = serve(play)
    transport, cancel = connect(server.url), Cancel()
    raised: list[BaseException] = []

    def follow() -> None:
        try:
            with open_stream(transport, silence=60, deadline=60, cancel=cancel) as stream:
                list(stream.lines())
        except ConnectionLost as error:
            raised.append(error)

    thread = threading.Thread(target=follow, name="follower")
    thread.start()
    assert server.frozen.acquire(timeout=60)

    cancel.cancel()

    thread.join(60)
    assert not thread.is_alive()
    assert len(raised) == 1


def test_cancel_between_headers_and_first_read_is_not_lost(serve: Serve, connect: Connect) -> None:
    cancel = Cancel()
    for play in (until_close, freeze_stream):
        cancel = Cancel()
        with open_stream(connect(serve(play).url), silence=60, cancel=cancel) as stream:
            cancel.cancel()
            with pytest.raises(ConnectionLost):
                list(stream.lines())


def test_line_over_the_limit_ends_the_stream(serve: Serve, connect: Connect) -> None:
    play = chunked(EVENT + b"\n", b"x" * 600, b"x" * 600 + b"\n")

    with open_stream(connect(serve(play).url, line_limit=1000)) as stream:
        lines = stream.lines()
        assert next(lines) == EVENT
        with pytest.raises(LineTooLong):
            next(lines)


def test_line_of_many_megabytes_in_small_pieces_arrives(serve: Serve, connect: Connect) -> None:
    line = b"[" + b"0," * 2_000_000 + b"0]"

    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        framed = b"".join(
            b"%x\r\n%s\r\n" % (len(piece), piece)
            for piece in (line[start : start + 100] for start in range(0, len(line), 100))
        )
        connection.send(framed + b"1\r\n\n\r\n")
        connection.end_chunks()

    with open_stream(connect(serve(play).url)) as stream:
        assert list(stream.lines()) == [line]


@pytest.mark.parametrize(
    ("status", "headers", "error", "retry_after"),
    [
        (410, {}, ExpiredError, None),
        (429, {"Retry-After": "7"}, TooManyRequestsError, 7.0),
        (204, {}, APIError, None),
    ],
)
def test_refused_stream_raises_the_error_at_once(
    status: int,
    headers: dict[str, str],
    error: type[APIError],
    retry_after: float | None,
    serve: Serve,
    connect: Connect,
) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(b"" if status == 204 else b'{"kind":"Status"}', status=status, headers=headers)

    server = serve(play)

    with pytest.raises(error) as raised:
        open_stream(connect(server.url))

    assert raised.value.retry_after == retry_after
    assert len(server.asked) == 1


def test_refusal_that_never_ends_does_not_hold_the_caller(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.send(b"HTTP/1.1 500 X\r\nContent-Length: 100\r\n\r\n")
        connection.freeze()

    with pytest.raises(RequestTimeout):
        open_stream(connect(serve(play).url), silence=0.2)


def test_refused_connection_is_a_connect_error(serve: Serve, connect: Connect) -> None:
    server = serve(freeze_accept)
    server.stop()

    with pytest.raises(ConnectError):
        open_stream(connect(server.url))


def test_streams_have_connections_of_their_own_and_close_them(serve: Serve, connect: Connect) -> None:
    open_now = metrics.gauge("informers_connections_open", "", ("cluster",))

    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        connection.chunk(EVENT + b"\n")
        assert connection.wait_closed()

    server = serve(play)
    transport = connect(server.url, cluster="streams")
    for _ in range(20):
        with open_stream(transport) as stream:
            next(stream.lines())
            assert open_now.value(cluster="streams") == 1

    assert server.accepted == 20
    assert open_now.value(cluster="streams") == 0


def test_stream_sends_the_authorization_and_never_asks_for_gzip(serve: Serve, connect: Connect) -> None:
    from informers.api.kubeconfig import ClientConfig

    server = serve(counted)

    with open_stream(connect(ClientConfig(server=server.url, token="abc"))) as stream:
        list(stream.lines())

    headers = server.asked[0].headers
    assert (headers["authorization"], headers["accept-encoding"]) == ("Bearer abc", "identity")


def test_stream_that_never_falls_silent_ends_by_its_own_deadline(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        while not connection.server.over.wait(0.01):
            connection.chunk(EVENT + b"\n")

    with (
        open_stream(connect(serve(play).url), deadline=0.3) as stream,
        pytest.raises(RequestTimeout),
    ):
        list(stream.lines())


def test_streams_wait_for_no_turn(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        asked = connection.read()
        if asked is not None and "watch" in asked.target:
            connection.answer(EVENT)
        else:
            connection.freeze()

    server = serve(play)
    transport, cancel = connect(server.url, max_inflight=1), Cancel()

    def request() -> None:
        with pytest.raises(ConnectionLost):
            transport.request("GET", "/x", timeout=60, cancel=cancel)

    thread = threading.Thread(target=request, name="ordinary")
    thread.start()
    assert server.frozen.acquire(timeout=60)

    with open_stream(transport, deadline=5) as stream:
        assert list(stream.lines()) == [EVENT]

    cancel.cancel()
    thread.join(60)
