from __future__ import annotations

import os
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from informers import ConfigError, ConnectError, ConnectionLost, RequestTimeout, Stop, TLSOptions, fetch

if TYPE_CHECKING:
    from tests.api.conftest import Certificates, Connection, Serve


def answers(connection: Connection) -> None:
    while connection.read():
        connection.answer({"well": "done"})


def test_request_is_sent_as_given_on_a_connection_of_its_own(serve: Serve) -> None:
    server = serve(answers)

    for _ in range(2):
        answer = fetch(
            "POST",
            f"{server.url}/reload?token=abc#part",
            headers=[("Content-Type", "application/json"), ("User-Agent", "k8s-watcher/1")],
            body=b"{}",
            timeout=30,
        )

    assert (answer.status, answer.body) == (200, b'{"well": "done"}')
    asked = server.asked[-1]
    assert (asked.method, asked.target, asked.body) == ("POST", "/reload?token=abc", b"{}")
    assert asked.headers == {
        "host": server.url.removeprefix("http://"),
        "connection": "close",
        "content-length": "2",
        "content-type": "application/json",
        "user-agent": "k8s-watcher/1",
    }
    assert server.accepted == 2


def test_request_without_a_body_has_no_length_unless_its_method_wants_one(serve: Serve) -> None:
    server = serve(answers)

    fetch("GET", server.url, timeout=30)
    fetch("POST", server.url, timeout=30)

    assert [asked.headers.get("content-length") for asked in server.asked] == [None, "0"]
    assert server.asked[0].target == "/"


@pytest.mark.parametrize("status", [204, 302, 404, 500])
def test_every_status_is_an_answer(serve: Serve, status: int) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(b"" if status == 204 else b"x", status=status, headers={"Location": "http://127.0.0.1:1/"})

    assert fetch("GET", serve(play).url, timeout=30).status == status


def test_only_the_beginning_of_a_long_answer_is_kept(serve: Serve) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        for _ in range(3):
            connection.chunk(b"x" * 40)
        connection.wait_closed()

    assert fetch("GET", serve(play).url, timeout=30, max_bytes=100).body == b"x" * 100


def test_proxies_of_the_environment_are_not_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server = serve(answers)

    # Not a loop-back name: those are direct in any case.
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: _address(server.port))
    assert fetch("GET", f"http://app.example:{server.port}/", timeout=30).status == 200


def _address(port: int) -> list[object]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


def test_every_address_of_a_name_is_tried(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(answers)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        dead = taken.getsockname()[1]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*_address(dead), *_address(server.port)])

    assert fetch("GET", "http://app.example/", timeout=30).status == 200


def test_answer_that_does_not_come_ends_by_the_time(serve: Serve) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.freeze()

    with pytest.raises(RequestTimeout, match="no answer in time"):
        fetch("GET", serve(play).url, timeout=0.2)


def test_answer_that_trickles_ends_by_the_same_time(serve: Serve) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        while not connection.server.over.wait(0.02):
            connection.chunk(b"x")

    with pytest.raises(RequestTimeout):
        fetch("GET", serve(play).url, timeout=0.3)


def test_stop_ends_a_request_at_once(serve: Serve) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.freeze()

    server = serve(play)
    stop = Stop()
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            fetch("GET", server.url, timeout=600, stop=stop)
        except ConnectionLost as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    server.frozen.acquire()
    stop.set()
    thread.join(60)

    assert len(ended) == 1
    assert "cancelled" in str(ended[0])


def test_stop_that_is_set_already_sends_nothing(serve: Serve) -> None:
    server = serve(answers)
    stop = Stop()
    stop.set()

    with pytest.raises(ConnectionLost):
        fetch("GET", server.url, timeout=30, stop=stop)

    assert server.asked == []


def test_refused_connection_says_where_and_nothing_secret() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(ConnectError) as caught:
        fetch("POST", f"http://127.0.0.1:{port}/reload?token=MARK#MARK", timeout=30)

    assert str(caught.value) == (
        f"POST http://127.0.0.1:{port}/reload: cannot connect to 127.0.0.1:{port}: Connection refused"
    )


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://h/", "http://", "http://h:0/", "http://h:x/", "http://u:MARK@h/", "http://h/a b", "http://h/ä"],
)
def test_url_that_cannot_be_asked_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^URL: want") as caught:
        fetch("GET", url, timeout=30)

    assert "MARK" not in str(caught.value)


@pytest.mark.parametrize("header", [("A", "MARK\r\nB: c"), ("A\n", "MARK")])
def test_header_that_would_become_two_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="control character") as caught:
        fetch("GET", "http://127.0.0.1:1/", headers=[header], timeout=30)

    assert "MARK" not in str(caught.value)


@pytest.mark.parametrize("method", ["", "get", "GE T", "GET\r\n"])
def test_method_that_is_none_is_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="want capital letters"):
        fetch(method, "http://127.0.0.1:1/", timeout=30)


# --- TLS ---------------------------------------------------------------------------------------------------------


def test_certificate_is_verified_with_the_given_authority(serve: Serve, certificates: Certificates) -> None:
    url = serve(answers, tls=certificates.server_context()).url

    assert fetch("GET", url, timeout=30, tls=TLSOptions(ca_file=str(certificates.ca_file))).status == 200
    assert fetch("GET", url, timeout=30, tls=TLSOptions(insecure=True)).status == 200
    with pytest.raises(ConnectError, match="not signed by an authority that this system trusts"):
        fetch("GET", url, timeout=30)


def test_server_name_takes_the_place_of_the_host(serve: Serve, certificates: Certificates) -> None:
    url = serve(answers, tls=certificates.server_context()).url

    with pytest.raises(ConnectError, match=r"GET https://127\.0\.0\.1.*TLS with .* failed: .*other\.example"):
        fetch("GET", url, timeout=30, tls=TLSOptions(ca_file=str(certificates.ca_file), server_name="other.example"))


def test_authority_file_is_read_again_once_it_has_changed(
    serve: Serve, certificates: Certificates, tmp_path: Path
) -> None:
    url = serve(answers, tls=certificates.server_context()).url
    file = tmp_path / "ca.crt"
    options = TLSOptions(ca_file=str(file))

    with pytest.raises(ConnectError, match=r"ca\.crt: No such file"):
        fetch("GET", url, timeout=30, tls=options)
    file.write_bytes(b"nothing of use")
    with pytest.raises(ConnectError, match=r"certificate authority .*ca\.crt"):
        fetch("GET", url, timeout=30, tls=options)
    file.write_bytes(certificates.ca_file.read_bytes())

    assert fetch("GET", url, timeout=30, tls=options).status == 200
    os.truncate(file, 0)
    with pytest.raises(ConnectError):
        fetch("GET", url, timeout=30, tls=options)
