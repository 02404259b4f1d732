"""Small scripted servers: a function per connection says what happens, byte by byte."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import socket
import ssl  # noqa: TID251 - the other end of our TLS
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from informers.api.kubeconfig import ClientConfig
from informers.api.transport import Transport


@dataclass(frozen=True)
class Asked:
    """One request as the server read it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Connection:
    """The server's end of one connection."""

    def __init__(self, server: Server, sock: socket.socket, number: int) -> None:
        self.server = server
        self.sock = sock
        self.number = number
        self._got = b""

    def read(self) -> Asked | None:
        """Read one request, None when the client has closed."""
        while b"\r\n\r\n" not in self._got:
            block = self.sock.recv(65536)
            if not block:
                return None
            self._got += block
        head, _, self._got = self._got.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        length = int(headers.get("content-length", "0"))
        while len(self._got) < length:
            self._got += self.sock.recv(65536)
        body, self._got = self._got[:length], self._got[length:]
        asked = Asked(method, target, headers, body)
        with self.server.changed:
            self.server.asked.append(asked)
            self.server.changed.notify_all()
        return asked

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, body: object = None, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send a whole JSON answer."""
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        given = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self.send(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + data)

    def open_chunked(self, **headers: str) -> None:
        """Send the head of a chunked answer."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
            + lines.encode()
            + b"\r\n"
        )

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end_chunks(self) -> None:
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Abort: the client sees ECONNRESET."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def freeze(self) -> None:
        """Do nothing more, until the test is over."""
        self.server.frozen.release()
        self.server.over.wait(30)

    def wait_closed(self) -> bool:
        """Tell whether the client closes the connection."""
        self.sock.settimeout(10)
        try:
            return self.sock.recv(65536) == b""
        except ConnectionError:
            return True


Play = Callable[[Connection], None]


@dataclass
class Server:
    """A listening socket whose connections a function plays."""

    play: Play
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    accepted: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    over: threading.Event = field(default_factory=threading.Event)
    frozen: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    open: set[socket.socket] = field(default_factory=set)
    failed: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, name="scripted-server", daemon=True)]
        self._threads[0].start()

    def wait_asked(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= count, 60)

    def stop(self) -> None:
        self.over.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self.changed:
            for sock in self.open:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not self.failed, self.failed

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            with self.changed:
                self.accepted += 1
                self.open.add(sock)
                number = self.accepted
            thread = threading.Thread(
                target=self._serve, args=(sock, number), name=f"scripted-server-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        wrapped = sock
        try:
            if self.tls is not None:
                wrapped = self.tls.wrap_socket(sock, server_side=True)
                with self.changed:
                    self.open.discard(sock)
                    self.open.add(wrapped)
            self.play(Connection(self, wrapped, number))
        except OSError:
            pass  # the client went away, as many tests have it do
        except BaseException as error:  # noqa: BLE001 - told when the server stops
            self.failed.append(error)
        finally:
            wrapped.close()
            with self.changed:
                self.open.discard(sock)
                self.open.discard(wrapped)


class Serve(Protocol):
    def __call__(self, play: Play, *, tls: ssl.SSLContext | None = None) -> Server: ...


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start scripted servers; they are stopped, and their threads joined, when the test is over."""
    servers: list[Server] = []

    def start(play: Play, *, tls: ssl.SSLContext | None = None) -> Server:
        servers.append(Server(play, tls=tls))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Transport]]:
    """Make transports; they are closed when the test is over. No proxy of the machine gets in the way."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made: list[Transport] = []

    def make(config: ClientConfig | str, **options: object) -> Transport:
        given = ClientConfig(server=config) if isinstance(config, str) else config
        made.append(Transport(given, **options))  # type: ignore[arg-type] # a test says which
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@dataclass(frozen=True)
class Certificates:
    """A CA, and a certificate for 127.0.0.1 and localhost that it signed."""

    ca: bytes
    cert_file: Path
    key_file: Path

    @property
    def ca_file(self) -> Path:
        return self.cert_file.with_name("ca.crt")

    def server_context(self, *, wants_client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_file, self.key_file)
        if wants_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cafile=str(self.ca_file))
        return context


def make_certificates(folder: Path, *, is_strict: bool = True) -> Certificates:
    """Make a CA and a certificate; not `is_strict`: as old tools made them, without key identifiers."""
    name = "server.test"
    now = dt.datetime.now(dt.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def builder(common: str, issuer: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
        )

    ca = builder("test-ca", "test-ca", ca_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    leaf = builder(name, "test-ca", key.public_key()).add_extension(
        x509.SubjectAlternativeName(
            [x509.DNSName(name), x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        ),
        critical=False,
    )
    if is_strict:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        ca = ca.add_extension(usage, critical=True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
        )
        leaf = leaf.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    ca_pem = ca.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    made = Certificates(ca_pem, folder / "server.crt", folder / "server.key")
    made.cert_file.write_bytes(leaf.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    made.key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    made.ca_file.write_bytes(ca_pem)
    return made


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def certificate_maker(tmp_path: Path) -> Callable[..., Certificates]:
    """Make certificates of the test's own."""

    def make(*, folder: Path = tmp_path, **options: bool) -> Certificates:
        return make_certificates(folder, **options)

    return make
