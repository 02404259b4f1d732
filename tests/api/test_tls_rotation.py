"""Certificates change under a transport: no request fails once the files are there, and half of one breaks nothing."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl  # noqa: TID251 - the other end of our TLS
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from informers.api.calls import Cancel, Response
from informers.api.kubeconfig import ClientConfig
from informers.api.transport import Transport
from informers.meta.errors import ConfigError, ConnectError, UnauthorizedError
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.api.conftest import Certificates, Connection, Serve

    Connect = Callable[..., Transport]
    Maker = Callable[..., Certificates]


@pytest.fixture
def make(tmp_path: Path, certificate_maker: Maker) -> Callable[[str], Certificates]:
    """Make a CA and a certificate in a folder of their own."""

    def made(name: str) -> Certificates:
        folder = tmp_path / name
        folder.mkdir()
        return certificate_maker(folder=folder)

    return made


def answer_all(connection: Connection) -> None:
    while connection.read():
        connection.answer()


def get(transport: Transport) -> Response:
    return transport.request("GET", "/x", timeout=30)


def install(certificates: Certificates, folder: Path) -> None:
    """Put a CA, a certificate and its key where a configuration looks for them."""
    for file in (certificates.ca_file, certificates.cert_file, certificates.key_file):
        shutil.copy(file, folder / file.name)


def test_request_that_meets_a_new_authority_reads_the_file_again_and_succeeds(
    serve: Serve, connect: Connect, make: Callable[[str], Certificates], tmp_path: Path
) -> None:
    old, new = make("old"), make("new")
    install(old, tmp_path)
    server = serve(answer_all, tls=old.server_context())
    transport = connect(ClientConfig(server=server.url, ca_file=str(tmp_path / "ca.crt")))
    get(transport)
    server.tls = new.server_context()

    install(new, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        answers = [future.result(60).status for future in [pool.submit(get, transport) for _ in range(4)]]

    assert answers == [200] * 4
    with transport.open_stream("/x", silence=60, deadline=60, cancel=Cancel()) as stream:
        assert stream.headers["content-type"] == "application/json"
    with pytest.raises(ConnectError, match=r"TLS with .* failed: "):
        get(connect(ClientConfig(server=server.url, ca_data=old.ca)))


def test_server_with_a_new_authority_is_refused_until_the_file_is_there(
    serve: Serve, connect: Connect, make: Callable[[str], Certificates], tmp_path: Path
) -> None:
    old, new = make("old"), make("new")
    install(old, tmp_path)
    server = serve(answer_all, tls=new.server_context())
    transport = connect(ClientConfig(server=server.url, ca_file=str(tmp_path / "ca.crt")))
    for _ in range(2):
        with pytest.raises(ConnectError, match=r"TLS with .* failed: "):
            get(transport)

    (tmp_path / "ca.crt").write_bytes(new.ca[:100])
    with pytest.raises(ConnectError, match=r"TLS with .* failed: "):
        get(transport)
    (tmp_path / "ca.crt").write_bytes(new.ca)

    assert get(transport).status == 200


def test_file_that_changed_is_found_after_five_minutes_and_idle_connections_are_closed(
    serve: Serve,
    connect: Connect,
    make: Callable[[str], Certificates],
    tmp_path: Path,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    old, new = make("old"), make("new")
    install(old, tmp_path)
    server = serve(answer_all, tls=old.server_context())
    transport = connect(ClientConfig(server=server.url, ca_file=str(tmp_path / "ca.crt")), clock=clock)
    clock.advance(250)
    get(transport)
    install(new, tmp_path)
    server.tls = new.server_context()

    clock.advance(49)
    get(transport)
    assert server.accepted == 1
    clock.advance(1)
    transport.tidy()
    assert not transport._kept._idle
    get(transport)

    assert server.accepted == 2
    assert [record.msg for record in caplog.records].count("certificates have changed") == 1


def test_file_that_stays_as_it_is_closes_nothing(
    serve: Serve, connect: Connect, certificates: Certificates, clock: FakeClock
) -> None:
    server = serve(answer_all, tls=certificates.server_context())
    transport = connect(ClientConfig(server=server.url, ca_file=str(certificates.ca_file)), clock=clock)

    for _ in range(8):
        get(transport)
        clock.advance(59)

    assert server.accepted == 1


def test_half_written_pair_changes_nothing_and_the_whole_one_is_found_soon(
    serve: Serve,
    connect: Connect,
    make: Callable[[str], Certificates],
    tmp_path: Path,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new, authority = make("old"), make("new"), make("authority")
    install(old, tmp_path)
    shown: list[bytes] = []

    def play(connection: Connection) -> None:
        while connection.read():
            shown.append(connection.sock.getpeercert(binary_form=True))  # type: ignore[attr-defined] # a TLS one
            connection.answer(headers={"Connection": "close"})

    context = authority.server_context(wants_client=True)
    for trusted in (old, new):
        context.load_verify_locations(cafile=str(trusted.ca_file))
    server = serve(play, tls=context)
    config = ClientConfig(
        server=server.url,
        ca_data=authority.ca,
        cert_file=str(tmp_path / "server.crt"),
        key_file=str(tmp_path / "server.key"),
    )
    transport = connect(config, clock=clock)
    get(transport)

    shutil.copy(new.cert_file, tmp_path / "server.crt")  # its key is still on its way
    clock.advance(300)
    get(transport)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    shutil.copy(new.key_file, tmp_path / "server.key")
    clock.advance(9)
    get(transport)
    clock.advance(1)
    get(transport)

    assert warning.msg == "certificates not read, keeping the old ones"
    assert [one == shown[0] for one in shown] == [True, True, True, False]


@pytest.mark.parametrize("broken", ["missing", "empty", "nonsense", "half"])
def test_file_that_cannot_be_used_changes_nothing(
    broken: str,
    serve: Serve,
    connect: Connect,
    make: Callable[[str], Certificates],
    tmp_path: Path,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = make("old")
    install(old, tmp_path)
    file = tmp_path / "ca.crt"
    server = serve(answer_all, tls=old.server_context())
    transport = connect(ClientConfig(server=server.url, ca_file=str(file)), clock=clock)
    content = {"empty": b"", "nonsense": b"s3cret-value", "half": old.ca[:120]}
    file.unlink() if broken == "missing" else file.write_bytes(content[broken])

    for _ in range(3):
        clock.advance(300)
        assert get(transport).status == 200

    assert "s3cret" not in caplog.text
    warnings = [record.msg for record in caplog.records]
    assert warnings[0] == "certificates not read, keeping the old ones"
    with pytest.raises(ConfigError):
        connect(ClientConfig(server=server.url, ca_file=str(file)))


def test_client_certificate_that_is_answered_401_is_read_again_and_shown_once_more(
    serve: Serve, connect: Connect, make: Callable[[str], Certificates], tmp_path: Path
) -> None:
    old, new = make("old"), make("new")
    install(old, tmp_path)
    good = ssl.PEM_cert_to_DER_cert(new.cert_file.read_text())

    def play(connection: Connection) -> None:
        while connection.read():
            is_good = connection.sock.getpeercert(binary_form=True) == good  # type: ignore[attr-defined] # a TLS one
            connection.answer(status=200 if is_good else 401)

    context = old.server_context(wants_client=True)
    context.load_verify_locations(cafile=str(new.ca_file))
    server = serve(play, tls=context)
    config = ClientConfig(
        server=server.url,
        ca_data=old.ca,
        cert_file=str(tmp_path / "server.crt"),
        key_file=str(tmp_path / "server.key"),
    )
    transport = connect(config)
    with pytest.raises(UnauthorizedError):
        get(transport)
    assert len(server.asked) == 1

    shutil.copy(new.cert_file, tmp_path / "server.crt")
    shutil.copy(new.key_file, tmp_path / "server.key")

    assert get(transport).status == 200
    assert len(server.asked) == 3


def test_idle_connections_are_closed_by_who_tidies_up_though_nothing_is_asked(
    serve: Serve, connect: Connect, clock: FakeClock
) -> None:
    server = serve(answer_all)
    transport = connect(server.url, clock=clock)
    get(transport)

    clock.advance(60)
    transport.tidy()
    kept = len(transport._kept._idle)
    clock.advance(1)
    transport.tidy()

    assert (kept, len(transport._kept._idle)) == (1, 0)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_server_that_knows_only_old_tls_is_refused(serve: Serve, connect: Connect, certificates: Certificates) -> None:
    context = certificates.server_context()
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    server = serve(answer_all, tls=context)
    address = server.url.removeprefix("https://").split(":")
    lax = ssl.create_default_context(cadata=certificates.ca.decode())
    lax.minimum_version = ssl.TLSVersion.TLSv1
    lax.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection((address[0], int(address[1])), timeout=60) as sock,
        lax.wrap_socket(sock, server_hostname=address[0]) as secured,
    ):
        assert secured.version() == "TLSv1.1"  # it would do with a client that allows it

    transport = connect(ClientConfig(server=server.url, ca_data=certificates.ca))
    with pytest.raises(ConnectError, match=r"TLS with .* failed: .*(VERSION|PROTOCOL)"):
        get(transport)
    # Not only because of how this machine's OpenSSL is set up.
    assert transport._dialer._tls is not None
    assert transport._dialer._tls.current().context.minimum_version == ssl.TLSVersion.TLSv1_2
