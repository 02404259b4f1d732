"""The relay passes bytes on, and breaks connections as told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from informers.testing.relay import Relay

SOON = 5.0


class Echo:
    """A server that sends back each line it gets, and notes how its connections ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.endings: list[str] = []
        self.ended = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
                self.endings.append("FIN")
            except ConnectionError:
                self.endings.append("RST")
            self.ended.release()

    def close(self) -> None:
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(SOON)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def relay(echo: Echo, tmp_path: Path) -> Iterator[Relay]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump({"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{echo.port}"}}]})
    )
    with Relay(kubeconfig, directory=tmp_path) as running:
        yield running


@contextmanager
def connect(relay: Relay) -> Iterator[socket.socket]:
    port = int(relay.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as sock:
        yield sock


def ask(sock: socket.socket, data: bytes) -> bytes:
    sock.sendall(data)
    return receive(sock, len(data))


def receive(sock: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = sock.recv(65536)
        if not part:
            break
        got += part
    return got


def test_kubeconfig_names_the_relay_and_keeps_the_rest(relay: Relay) -> None:
    config = yaml.safe_load(relay.kubeconfig.read_text())

    assert config["clusters"] == [{"name": "c", "cluster": {"server": relay.url}}]
    assert relay.kubeconfig.stat().st_mode & 0o777 == 0o600


def test_bytes_pass_both_ways(relay: Relay) -> None:
    data = bytes(range(256)) * 4096  # a MiB, more than any buffer on the way

    with connect(relay) as sock:
        writer = threading.Thread(target=sock.sendall, args=(data,))
        writer.start()
        got = receive(sock, len(data))
        writer.join()

    assert got == data


def test_a_client_that_closes_closes_the_servers_side(relay: Relay, echo: Echo) -> None:
    with connect(relay) as sock:
        ask(sock, b"a")

    assert echo.ended.acquire(timeout=SOON)
    assert echo.endings == ["FIN"]


def test_reset_aborts_both_sides(relay: Relay, echo: Echo) -> None:
    with connect(relay) as sock:
        ask(sock, b"a")

        relay.reset()

        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert echo.ended.acquire(timeout=SOON)
    assert echo.endings == ["RST"]


def test_finish_ends_both_sides_in_order(relay: Relay, echo: Echo) -> None:
    with connect(relay) as sock:
        ask(sock, b"a")

        relay.finish()

        assert sock.recv(1) == b""
    assert echo.ended.acquire(timeout=SOON)
    assert echo.endings == ["FIN"]


def test_frozen_connections_are_silent_until_healed(relay: Relay) -> None:
    with connect(relay) as old, connect(relay) as new:
        ask(old, b"a")
        relay.freeze()
        old.sendall(b"b")
        new.sendall(b"c")

        for sock in (old, new):
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
        relay.heal()

        for sock, data in ((old, b"b"), (new, b"c")):
            sock.settimeout(SOON)
            assert sock.recv(1) == data


def test_new_connections_are_accepted_while_frozen(relay: Relay) -> None:
    relay.freeze()

    with connect(relay) as sock:
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ask(sock, b"a")


def test_refused_connections_fail_at_once_until_healed(relay: Relay, echo: Echo) -> None:
    with connect(relay) as sock:
        ask(sock, b"a")

        relay.refuse()

        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with pytest.raises(ConnectionRefusedError), connect(relay):
        pass
    relay.heal()
    with connect(relay) as sock:
        assert ask(sock, b"b") == b"b"


def test_slowed_answers_come_in_pieces(relay: Relay) -> None:
    relay.slow(20)  # bytes a second

    with connect(relay) as sock:
        sock.sendall(b"x" * 400)
        first = sock.recv(65536)
        relay.heal()
        rest = receive(sock, 400 - len(first))

    assert len(first) < 200
    assert len(first) + len(rest) == 400


def test_a_server_that_is_not_there_resets_the_client(relay: Relay, echo: Echo) -> None:
    echo.close()

    with pytest.raises(ConnectionResetError), connect(relay) as sock:
        sock.recv(1)


def test_connections_are_counted(relay: Relay) -> None:
    with connect(relay) as one, connect(relay) as two:
        ask(one, b"a")
        ask(two, b"b")

        assert relay.connections() == 2


def test_a_connection_that_comes_while_it_begins_to_refuse_is_closed(relay: Relay) -> None:
    class Late:
        def __init__(self, accepted: socket.socket) -> None:
            self._accepted = accepted

        def accept(self) -> tuple[socket.socket, None]:
            return self._accepted, None

    ours, theirs = socket.socketpair()
    with ours, theirs:
        relay._accept(Late(ours))  # type: ignore[arg-type]  # a listener that is no longer the relay's

        assert ours.fileno() == -1
        theirs.settimeout(SOON)
        assert theirs.recv(1) == b""
