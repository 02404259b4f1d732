from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from informers.api.calls import Cancel, NotSent, Response
from informers.api.kubeconfig import ClientConfig
from informers.api.proxies import is_direct
from informers.api.transport import Transport
from informers.meta.errors import APIError, ConfigError, ConnectError, ConnectionLost

if TYPE_CHECKING:
    from tests.api.conftest import Certificates, Connection, Serve

    Connect = Callable[..., Transport]


def answers(connection: Connection) -> None:
    while connection.read():
        connection.answer({})


def get(transport: Transport) -> Response:
    return transport.request("GET", "/x", timeout=30)


def test_server_is_verified_by_ca_data_or_file(serve: Serve, connect: Connect, certificates: Certificates) -> None:
    url = serve(answers, tls=certificates.server_context()).url

    for config in (
        ClientConfig(server=url, ca_data=certificates.ca),
        ClientConfig(server=url, ca_file=str(certificates.ca_file)),
    ):
        assert get(connect(config)).status == 200


def test_connection_is_kept_over_tls_too(serve: Serve, connect: Connect, certificates: Certificates) -> None:
    server = serve(answers, tls=certificates.server_context())
    transport = connect(ClientConfig(server=server.url, ca_data=certificates.ca))

    for _ in range(5):
        get(transport)

    assert server.accepted == 1


def test_cancel_ends_a_stream_over_tls_and_gives_no_ciphertext(
    serve: Serve, connect: Connect, certificates: Certificates
) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.open_chunked()
        connection.chunk(b"1\n")
        connection.freeze()

    server = serve(play, tls=certificates.server_context())
    cancel = Cancel()
    transport = connect(ClientConfig(server=server.url, ca_data=certificates.ca))
    with transport.open_stream("/x", silence=60, deadline=60, cancel=cancel) as stream:
        lines = stream.lines()
        assert next(lines) == b"1"
        timer = threading.Timer(0.05, cancel.cancel)
        timer.start()
        with pytest.raises(ConnectionLost, match="cancelled"):
            next(lines)
        timer.join()


def test_server_of_an_unknown_ca_is_refused(serve: Serve, connect: Connect, certificates: Certificates) -> None:
    url = serve(answers, tls=certificates.server_context()).url

    with pytest.raises(
        ConnectError,
        match=r"TLS with .* failed: unable to get local issuer certificate: not signed by an authority that this system",
    ):
        get(connect(url))


def test_server_of_another_ca_than_the_configured_one_names_where_that_came_from(
    serve: Serve, connect: Connect, certificates: Certificates, certificate_maker: Callable[..., Certificates]
) -> None:
    url = serve(answers, tls=certificates.server_context()).url
    other = certificate_maker()

    with pytest.raises(ConnectError, match="not signed by the certificate-authority of kubeconfig F: context c"):
        get(connect(ClientConfig(server=url, ca_data=other.ca, source="kubeconfig F: context c")))


def test_server_that_does_not_speak_tls_is_told(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        connection.freeze()

    server = serve(play)

    with pytest.raises(ConnectError, match="want TLS, found something else; is the server one for http://"):
        get(connect(server.url.replace("http:", "https:")))


def test_redirect_is_told_and_not_followed(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer(b"", status=302, headers={"Location": "/elsewhere"})

    server = serve(play)

    with pytest.raises(APIError, match="302: a redirect, which is not followed"):
        get(connect(server.url))
    assert len(server.asked) == 1


def test_server_name_is_checked_and_may_be_given(serve: Serve, connect: Connect, certificates: Certificates) -> None:
    url = serve(answers, tls=certificates.server_context()).url

    with pytest.raises(ConnectError, match=r"other\.test"):
        get(connect(ClientConfig(server=url, ca_data=certificates.ca, server_name="other.test")))
    assert get(connect(ClientConfig(server=url, ca_data=certificates.ca, server_name="server.test"))).status == 200


def test_insecure_verifies_nothing_and_warns_once(
    serve: Serve, connect: Connect, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(answers, tls=certificates.server_context())

    with caplog.at_level(logging.WARNING):
        transport = connect(ClientConfig(server=server.url, insecure=True))
        for _ in range(2):
            transport.close()
            get(transport)

    assert [record.message for record in caplog.records] == ["TLS certificates are not verified"]


def test_certificate_that_strict_checks_refuse_names_the_option(
    serve: Serve, connect: Connect, certificate_maker: Callable[..., Certificates]
) -> None:
    old = certificate_maker(is_strict=False)
    url = serve(answers, tls=old.server_context()).url

    with pytest.raises(ConnectError, match="strict_x509=False"):
        get(connect(ClientConfig(server=url, ca_data=old.ca)))
    assert get(connect(ClientConfig(server=url, ca_data=old.ca, strict_x509=False))).status == 200


@pytest.mark.parametrize("as_data", [True, False])
def test_client_certificate_is_shown(as_data: bool, serve: Serve, connect: Connect, certificates: Certificates) -> None:
    url = serve(answers, tls=certificates.server_context(wants_client=True)).url
    cert, key = certificates.cert_file, certificates.key_file
    config = (
        ClientConfig(server=url, ca_data=certificates.ca, cert_data=cert.read_bytes(), key_data=key.read_bytes())
        if as_data
        else ClientConfig(server=url, ca_data=certificates.ca, cert_file=str(cert), key_file=str(key))
    )

    assert get(connect(config)).status == 200


@pytest.mark.parametrize(
    "broken",
    [
        {"ca_data": b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"},
        {"cert_data": b"-----BEGIN CERTIFICATE-----\n", "key_data": b"-----BEGIN s3cret-----\n"},
    ],
)
def test_certificates_that_cannot_be_used_are_a_config_error(broken: dict[str, bytes], connect: Connect) -> None:
    with pytest.raises(ConfigError, match=r"configuration: c.*: holds none that can be read") as raised:
        connect(ClientConfig(server="https://127.0.0.1:1", **broken))  # type: ignore[arg-type] # bytes fields all

    assert "s3cret" not in str(raised.value)


def frozen_handshake(connection: Connection) -> None:
    connection.freeze()


def test_handshake_that_hangs_ends_by_the_deadline_and_by_cancel(serve: Serve, connect: Connect) -> None:
    server = serve(frozen_handshake)
    transport, cancel = connect(server.url.replace("http:", "https:")), Cancel()

    with pytest.raises(NotSent):
        transport.request("GET", "/x", timeout=0.2)

    raised: list[BaseException] = []

    def ask() -> None:
        try:
            transport.request("GET", "/x", timeout=60, cancel=cancel)
        except ConnectionLost as error:
            raised.append(error)

    assert server.frozen.acquire(timeout=60)
    thread = threading.Thread(target=ask, name="asker")
    thread.start()
    assert server.frozen.acquire(timeout=60)
    cancel.cancel()
    thread.join(60)
    assert len(raised) == 1


def test_connection_attempt_into_the_void_ends_by_the_deadline_and_by_cancel(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        # Fill the queue of connections that nobody accepts, so that the next attempt stays without an answer.
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        transport, cancel = connect(f"http://127.0.0.1:{port}"), Cancel()

        with pytest.raises(NotSent):
            transport.request("GET", "/x", timeout=0.3)
        timer = threading.Timer(0.1, cancel.cancel)
        timer.start()
        with pytest.raises(ConnectionLost):
            transport.request("GET", "/x", timeout=60, cancel=cancel)
        timer.join()
        for filler in fillers:
            filler.close()


def relay(connection: Connection, port: int) -> None:
    """Pass bytes on in both directions until one side closes."""
    with socket.create_connection(("127.0.0.1", port)) as other:
        ends = {connection.sock: other, other: connection.sock}
        while True:
            for sock in select.select(list(ends), [], [])[0]:
                while True:
                    block = sock.recv(65536)
                    if not block:
                        return
                    ends[sock].sendall(block)
                    # TLS may hold bytes back that no select tells of.
                    if not getattr(sock, "pending", int)():
                        break


def proxy(port: int, targets: list[tuple[str, str]]) -> Callable[[Connection], None]:
    """A proxy that writes down what it was asked for, and always connects to `port`."""

    def play(connection: Connection) -> None:
        asked = connection.read()
        assert asked is not None
        targets.append((f"{asked.method} {asked.target}", asked.headers.get("proxy-authorization", "")))
        connection.send(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
        with suppress(OSError):
            relay(connection, port)

    return play


def test_proxy_url_of_the_config_is_used_with_its_password(
    serve: Serve, connect: Connect, certificates: Certificates
) -> None:
    server = serve(answers, tls=certificates.server_context())
    targets: list[tuple[str, str]] = []
    between = serve(proxy(server.port, targets))
    config = ClientConfig(
        server="https://server.test:6443",
        ca_data=certificates.ca,
        proxy_url=f"http://ann:p%40ss@127.0.0.1:{between.port}",
    )
    transport = connect(config)

    assert get(transport).status == 200
    assert targets == [("CONNECT server.test:6443", "Basic YW5uOnBAc3M=")]
    transport.close()
    assert "p%40ss" not in repr(config)


def test_proxy_of_the_environment_is_used_unless_no_proxy_names_the_host(
    serve: Serve, connect: Connect, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answers, tls=certificates.server_context())
    targets: list[tuple[str, str]] = []
    between = serve(proxy(server.port, targets))
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{between.port}")
    config = ClientConfig(server="https://server.test", ca_data=certificates.ca)

    transport = connect(config)
    get(transport)
    transport.close()
    monkeypatch.setenv("NO_PROXY", "other, .test")
    with pytest.raises(ConnectError, match=r"cannot connect to server\.test:443"):
        get(connect(config))

    assert targets == [("CONNECT server.test:443", "")]


def test_https_proxy_carries_tls_inside_tls(
    serve: Serve,
    connect: Connect,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(connection: Connection) -> None:
        while asked := connection.read():
            connection.answer([asked.body.decode()] * 20)

    server = serve(play, tls=certificates.server_context())
    between = serve(proxy(server.port, []), tls=certificates.server_context())
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca_file))
    transport = connect(
        ClientConfig(
            server="https://server.test:6443",
            ca_data=certificates.ca,
            proxy_url=f"https://localhost:{between.port}",
        )
    )

    answer = transport.request("POST", "/x", body=b"x" * 100_000, timeout=10)

    assert len(answer.body) > 2_000_000
    assert get(transport).status == 200
    transport.close()


def test_proxy_that_refuses_is_told_with_its_status(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer({}, status=407)

    between = serve(play)

    with pytest.raises(ConnectError, match=r"proxy 127\.0\.0\.1:.* status 407"):
        get(connect(ClientConfig(server="https://server.test", proxy_url=between.url)))


@pytest.mark.parametrize(
    ("host", "port", "no_proxy", "expected"),
    [
        ("localhost", 443, "", True),
        ("127.0.0.9", 443, "", True),
        ("::1", 443, "", True),
        ("10.0.0.1", 443, "", False),
        ("10.0.0.1", 443, "10.0.0.0/8", True),
        ("10.0.0.1", 443, "10.0.0.1", True),
        ("10.0.0.1", 443, "10.0.0.1:443", True),
        ("10.0.0.1", 443, "10.0.0.1:6443", False),
        ("11.0.0.1", 443, "10.0.0.0/8, 192.168.0.0/16", False),
        ("fd00::1", 443, "fd00::/8", True),
        ("fd00::1", 443, "[fd00::1]:443", True),
        ("api.example.com", 443, "example.com", True),
        ("example.com", 443, "example.com", True),
        ("example.com", 443, ".example.com", False),
        ("api.Example.com", 443, "x, .example.COM ", True),
        ("api.example.com", 443, "*.example.com", True),
        ("badexample.com", 443, "example.com", False),
        ("api.example.com", 6443, "example.com:6443", True),
        ("api.example.com", 443, "example.com:6443", False),
        ("api.example.com", 443, "*", True),
        ("api.example.com", 443, ",,", False),
    ],
)
def test_no_proxy_takes_hosts_suffixes_ports_and_blocks(host: str, port: int, no_proxy: str, expected: bool) -> None:
    assert is_direct(host, port, no_proxy) is expected


@pytest.mark.parametrize("url", ["socks5://h:1", "http://", "http://h:x", "http://s3cret@h:1/?q"])
def test_proxy_url_that_cannot_be_used_is_a_config_error(
    url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="proxy-url") as raised:
        ClientConfig(server="https://h", proxy_url=url)
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(ConfigError, match="HTTPS_PROXY"):
        connect("https://server.test")

    assert "s3cret" not in str(raised.value)
