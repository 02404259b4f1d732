from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from informers import metrics
from informers.api.calls import Cancel, Response
from informers.api.kubeconfig import ClientConfig
from informers.api.transport import Transport
from informers.meta.errors import UnauthorizedError
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.api.conftest import Connection, Serve

    Connect = Callable[..., Transport]


class Guarded:
    """A server that lets one token in, as it is when asked."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.gate: threading.Barrier | None = None

    def __call__(self, connection: Connection) -> None:
        while asked := connection.read():
            is_good = asked.headers.get("authorization") == f"Bearer {self.token}"
            if not is_good and self.gate is not None:
                self.gate.wait(60)
            connection.answer({} if is_good else {"kind": "Status", "code": 401}, status=200 if is_good else 401)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(" one\n")
    return path


def reloads(cluster: str) -> float:
    return metrics.counter("informers_token_reloads_total", "", ("cluster",)).value(cluster=cluster)


def used(server: object) -> list[str]:
    return [asked.headers.get("authorization", "") for asked in server.asked]  # type: ignore[attr-defined] # a Server


def get(transport: Transport) -> Response:
    return transport.request("GET", "/x", timeout=30)


def test_token_file_is_read_again_after_a_minute(
    serve: Serve, connect: Connect, clock: FakeClock, token_file: Path
) -> None:
    server = serve(Guarded("one"))
    transport = connect(ClientConfig(server=server.url, token_file=str(token_file)), clock=clock)
    get(transport)
    token_file.write_text("two")
    clock.advance(59)
    get(transport)

    clock.advance(1)
    with pytest.raises(UnauthorizedError):
        get(transport)

    assert used(server)[:3] == ["Bearer one", "Bearer one", "Bearer two"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_refused_token_is_read_again_and_the_request_repeated_once(
    method: str, serve: Serve, connect: Connect, token_file: Path
) -> None:
    guarded = Guarded("one")
    server = serve(guarded)
    transport = connect(ClientConfig(server=server.url, token_file=str(token_file)))
    get(transport)
    token_file.write_text("two\n")
    guarded.token = "two"

    assert transport.request(method, "/x", timeout=30).status == 200
    assert used(server) == ["Bearer one", "Bearer one", "Bearer two"]


def test_stream_that_is_refused_reads_the_token_again_too(serve: Serve, connect: Connect, token_file: Path) -> None:
    guarded = Guarded("two")
    server = serve(guarded)
    transport = connect(ClientConfig(server=server.url, token_file=str(token_file)))
    token_file.write_text("two\n")

    with transport.open_stream("/x", silence=5, deadline=5, cancel=Cancel()) as stream:
        assert list(stream.lines()) == [b"{}"]

    assert used(server) == ["Bearer one", "Bearer two"]


def test_token_that_stays_refused_is_an_error_after_one_repeat(
    serve: Serve, connect: Connect, token_file: Path
) -> None:
    server = serve(Guarded("other"))

    with pytest.raises(UnauthorizedError):
        get(connect(ClientConfig(server=server.url, token_file=str(token_file))))

    assert used(server) == ["Bearer one", "Bearer one"]


def test_token_read_for_this_very_request_is_not_read_again(
    serve: Serve, connect: Connect, clock: FakeClock, token_file: Path
) -> None:
    server = serve(Guarded("other"))
    transport = connect(ClientConfig(server=server.url, token_file=str(token_file)), clock=clock)
    clock.advance(60)

    with pytest.raises(UnauthorizedError):
        get(transport)

    assert len(server.asked) == 1


def test_fixed_token_that_is_refused_is_an_error_at_once(serve: Serve, connect: Connect) -> None:
    server = serve(Guarded("other"))

    with pytest.raises(UnauthorizedError):
        get(connect(ClientConfig(server=server.url, token="one")))

    assert len(server.asked) == 1


def test_requests_refused_at_the_same_time_cause_one_reading(serve: Serve, connect: Connect, token_file: Path) -> None:
    guarded = Guarded("two")
    guarded.gate = threading.Barrier(8)
    server = serve(guarded)
    transport = connect(ClientConfig(server=server.url, token_file=str(token_file)), cluster="at-once")
    token_file.write_text("two")
    before = reloads("at-once")
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(get(transport).status), name=f"asker-{n}") for n in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert results == [200] * 8
    assert reloads("at-once") - before == 1


@pytest.mark.parametrize("content", [None, "", " \n", "two\r\nX-Evil: y", "zwei Wörter"])
def test_token_file_that_cannot_be_used_keeps_the_old_token_and_warns(
    content: str | None,
    serve: Serve,
    connect: Connect,
    clock: FakeClock,
    token_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = serve(Guarded("one"))
    transport = connect(ClientConfig(server=server.url, token_file=str(token_file)), clock=clock)
    token_file.unlink()
    if content is not None:
        token_file.write_text(content)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.advance(60)
            assert get(transport).status == 200

    assert used(server) == ["Bearer one"] * 3
    assert [record.message for record in caplog.records] == ["token not read, keeping the old one"]
    assert "Evil" not in caplog.text
