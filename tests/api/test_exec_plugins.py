"""Programs that say who we are: run once for everybody, when needed, and never in the way of others."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from informers.api.calls import Cancel, NotSent, Response
from informers.api.kubeconfig import ClientConfig, ExecPlugin
from informers.api.transport import Transport
from informers.meta.errors import ConnectError, ConnectionLost, UnauthorizedError
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.api.conftest import Certificates, Connection, Serve

    Connect = Callable[..., Transport]

V1 = "client.authentication.k8s.io/v1"
S3CRET = "s3cret-value"


class Program:
    """A shell script that prints what is in a file, and leaves a line for each of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "login"
        self.says(token="one")
        self.script(f"cat {folder}/answer")

    def script(self, text: str) -> None:
        self.path.write_text(f"#!/bin/sh\necho run >> {self.folder}/runs\n{text}\n")
        self.path.chmod(0o700)

    def says(self, *, expires: datetime | None = None, **status: Any) -> None:
        if expires is not None:
            status["expirationTimestamp"] = expires.isoformat().replace("+00:00", "Z")
        self.answer({"apiVersion": V1, "kind": "ExecCredential", "status": status})

    def answer(self, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / "answer").write_text(text)

    def runs(self) -> int:
        runs = self.folder / "runs"
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    def config(self, server: str, **options: Any) -> ClientConfig:
        plugin = ExecPlugin(command=str(self.path), **options)
        return ClientConfig(server=server, exec=plugin, source="kubeconfig k: context c")


class Guarded:
    """A server that lets the bearers of some tokens in."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = set(tokens)
        self.gate: threading.Barrier | None = None

    def __call__(self, connection: Connection) -> None:
        while asked := connection.read():
            is_good = asked.headers.get("authorization", "").removeprefix("Bearer ") in self.tokens
            if not is_good and self.gate is not None:
                self.gate.wait(60)
            connection.answer({} if is_good else {"kind": "Status", "code": 401}, status=200 if is_good else 401)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def get(transport: Transport, timeout: float = 30) -> Response:
    return transport.request("GET", "/x", timeout=timeout)


def at_once(count: int, ask: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result(60) for future in [pool.submit(ask) for _ in range(count)]]


def test_program_is_run_once_for_all_threads_and_not_before_it_is_needed(
    serve: Serve, connect: Connect, program: Program
) -> None:
    server = serve(Guarded("one"))
    transport = connect(program.config(server.url))
    assert program.runs() == 0

    at_once(8, lambda: get(transport))

    assert program.runs() == 1
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer one"}


@contextmanager
def typed(text: str) -> Iterator[None]:
    """Have this process's own standard input hold a text."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    kept = os.dup(0)
    os.dup2(reader, 0)
    os.close(reader)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_program_is_told_about_the_cluster_and_cannot_ask_anybody_anything(
    serve: Serve, connect: Connect, program: Program, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "seen")
    program.script(
        f'cd {program.folder}; printf %s "$KUBERNETES_EXEC_INFO" > info; echo "$1 $2 $GIVEN $FROM_OUTSIDE" > words\n'
        "cat > stdin; (: < /dev/tty) 2> /dev/null && echo yes > tty; cat answer"
    )
    server = serve(Guarded("one"))
    config = replace(
        program.config(
            server.url,
            args=("a b", "c"),
            env=(("GIVEN", "given"),),
            provide_cluster_info=True,
            cluster_extension='{"audience": "x"}',
        ),
        ca_file=str(certificates.ca_file),
        server_name="server.test",
    )

    with typed("secret\n"):
        get(connect(config))

    info = json.loads((program.folder / "info").read_text())
    authority = info["spec"]["cluster"].pop("certificate-authority-data")
    assert info == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {"server": server.url, "tls-server-name": "server.test", "config": {"audience": "x"}},
        },
    }
    assert base64.b64decode(authority) == certificates.ca
    assert (program.folder / "words").read_text() == "a b c given seen\n"
    assert (program.folder / "stdin").read_text() == ""
    assert not (program.folder / "tty").exists()


def test_program_is_told_nothing_of_the_cluster_unless_it_wants_to(
    serve: Serve, connect: Connect, program: Program
) -> None:
    program.script(f'printf %s "$KUBERNETES_EXEC_INFO" > {program.folder}/info; cat {program.folder}/answer')

    get(connect(program.config(serve(Guarded("one")).url)))

    assert json.loads((program.folder / "info").read_text())["spec"] == {"interactive": False}


def test_answer_counts_until_it_expires(serve: Serve, connect: Connect, program: Program, clock: FakeClock) -> None:
    server = serve(Guarded("one", "two"))
    program.says(token="one", expires=clock.utc_now() + timedelta(minutes=10))
    transport = connect(program.config(server.url), clock=clock)
    get(transport)
    program.says(token="two")

    clock.advance(599)
    get(transport)
    clock.advance(1)
    get(transport)
    clock.advance(1e6)
    get(transport)

    tokens = [asked.headers["authorization"].removeprefix("Bearer ") for asked in server.asked]
    assert tokens == ["one", "one", "two", "two"]
    assert program.runs() == 2


def test_answer_that_has_expired_already_does_not_run_the_program_for_each_request(
    serve: Serve, connect: Connect, program: Program, clock: FakeClock
) -> None:
    program.says(token="one", expires=clock.utc_now() - timedelta(hours=1))
    transport = connect(program.config(serve(Guarded("one")).url), clock=clock)

    get(transport)
    get(transport)
    assert program.runs() == 1
    clock.advance(10)
    get(transport)

    assert program.runs() == 2


def test_program_is_run_again_once_for_any_number_of_refusals(serve: Serve, connect: Connect, program: Program) -> None:
    guarded = Guarded("one")
    transport = connect(program.config(serve(guarded).url))
    get(transport)
    program.says(token="two")
    guarded.tokens = {"two"}
    guarded.gate = threading.Barrier(6)

    answers = at_once(6, lambda: get(transport).status)

    assert answers == [200] * 6
    assert program.runs() == 2


def test_token_that_was_never_taken_is_not_asked_for_again_and_again(
    serve: Serve, connect: Connect, program: Program, clock: FakeClock
) -> None:
    guarded = Guarded("other")
    transport = connect(program.config(serve(guarded).url), clock=clock)

    for _ in range(4):
        with pytest.raises(UnauthorizedError):
            get(transport)
    assert program.runs() == 1
    program.says(token="other")
    clock.advance(10)

    assert get(transport).status == 200
    assert program.runs() == 2


def answered(**changes: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": S3CRET}, **changes}


BAD_ANSWERS: list[tuple[object, str]] = [
    ("", f"its answer of 0 bytes is not JSON; want an ExecCredential of {V1}"),
    (f"token {S3CRET}", "is not JSON"),
    ([S3CRET], f"its answer is no ExecCredential; want one of {V1}"),
    (answered(kind=S3CRET), "its answer is no ExecCredential"),
    (
        answered(apiVersion="client.authentication.k8s.io/v1beta1"),
        f"want {V1}, found client.authentication.k8s.io/v1beta1",
    ),
    (answered(apiVersion=S3CRET), f"want {V1}, found another one"),
    (answered(status=None), "its answer has no status"),
    (answered(status={"secret": S3CRET}), "neither a token nor a certificate"),
    (answered(status={"token": [S3CRET]}), "status.token in its answer is not text"),
    (answered(status={"token": f"{S3CRET} x"}), "holds characters that no token has"),
    (answered(status={"clientCertificateData": S3CRET}), "a certificate without a key"),
    (answered(status={"clientKeyData": S3CRET}), "a key without a certificate"),
    (answered(status={"token": S3CRET, "expirationTimestamp": "soon"}), "is not a date as RFC 3339"),
    (answered(status={"token": S3CRET, "expirationTimestamp": "2024-01-01T00:00:00"}), "is not a date as RFC 3339"),
]


@pytest.mark.parametrize(("answer", "why"), BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
def test_answer_that_cannot_be_used_is_a_connect_error_that_says_why_and_quotes_nothing(
    answer: object, why: str, serve: Serve, connect: Connect, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    program.answer(answer)
    server = serve(Guarded("one"))

    with pytest.raises(ConnectError) as raised:
        get(connect(program.config(server.url, args=(S3CRET,), env=(("A", S3CRET),))))

    assert why in str(raised.value)
    assert str(raised.value).startswith(f"get /x: kubeconfig k: context c: exec plugin '{program.path}': ")
    assert S3CRET not in f"{raised.value!r} {caplog.text} {[vars(record) for record in caplog.records]}"
    assert not server.asked


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"echo {S3CRET} >&2; echo {S3CRET}; exit 3", "ended with status 3; run it by hand to see what it says"),
        (f"echo {S3CRET} >&2; kill -9 $$", "was ended by signal 9"),
    ],
)
def test_program_that_fails_is_told_by_its_status_and_nothing_that_it_said(
    script: str, why: str, serve: Serve, connect: Connect, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    program.script(script)

    with pytest.raises(ConnectError, match=why) as raised:
        get(connect(program.config(serve(Guarded()).url)))

    assert S3CRET not in f"{raised.value!r} {caplog.text} {[vars(record) for record in caplog.records]}"


def test_program_that_leaves_an_agent_behind_has_answered_when_it_ends(
    serve: Serve, connect: Connect, program: Program
) -> None:
    program.script(f"sleep 600 & echo $! > {program.folder}/agent; cat {program.folder}/answer")
    server = serve(Guarded("one"))

    try:
        assert get(connect(program.config(server.url))).status == 200
    finally:
        os.kill(int((program.folder / "agent").read_text()), signal.SIGKILL)


def test_long_answer_is_read_whole(serve: Serve, connect: Connect, program: Program) -> None:
    program.says(token="one", note="x" * 300_000)
    server = serve(Guarded("one"))

    assert get(connect(program.config(server.url))).status == 200


def test_program_that_is_not_there_is_told_with_the_hint(serve: Serve, connect: Connect, program: Program) -> None:
    url = serve(Guarded()).url
    plugin = ExecPlugin(command="no-such-program-anywhere", install_hint="get it from the shop")

    with pytest.raises(ConnectError, match="there is no such program in PATH; get it from the shop"):
        get(connect(ClientConfig(server=url, exec=plugin)))
    with pytest.raises(ConnectError, match=r"there is no such program$"):
        get(connect(ClientConfig(server=url, exec=ExecPlugin(command=str(program.folder / "none")))))
    with pytest.raises(ConnectError, match="cannot be run: Permission denied"):
        get(connect(ClientConfig(server=url, exec=ExecPlugin(command=str(program.folder)))))


def test_failing_program_is_tried_again_after_a_pause_for_everybody(
    serve: Serve, connect: Connect, program: Program, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    program.answer("")
    transport = connect(program.config(serve(Guarded("one")).url), clock=clock)

    for _ in range(5):
        with pytest.raises(ConnectError):
            get(transport)
    assert program.runs() == 1
    program.says(token="one")
    clock.advance(2)

    assert get(transport).status == 200
    assert program.runs() == 2
    assert [record.msg for record in caplog.records].count("an exec plugin failed") == 1


class Held:
    """A program that waits until it is let go."""

    def __init__(self, program: Program) -> None:
        self._fifo = program.folder / "fifo"
        os.mkfifo(self._fifo)
        self._program = program
        program.script(f"read line < {self._fifo}; cat {program.folder}/answer")

    def wait_begun(self) -> None:
        tick = threading.Event()
        for _ in range(6000):
            if self._program.runs():
                return
            tick.wait(0.01)
        raise AssertionError("the program does not run")

    def let_go(self) -> None:
        with self._fifo.open("w") as fifo:
            fifo.write("go\n")


@pytest.fixture
def held(program: Program) -> Held:
    return Held(program)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_program_that_hangs_is_told_after_thirty_seconds_and_holds_up_nobody_else(
    serve: Serve,
    connect: Connect,
    program: Program,
    held: Held,
    clock: FakeClock,
    pool: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = serve(Guarded("one"))
    transport = connect(program.config(server.url), clock=clock, cluster="far")
    other = connect(ClientConfig(server=server.url, token="one"), clock=clock, cluster="near")
    waiting = [pool.submit(get, transport, 60) for _ in range(3)]
    clock.block_until_waiting(3, due_in=30, timeout=60)
    assert get(other).status == 200

    clock.advance(30)

    for future in waiting:
        with pytest.raises(ConnectError, match=r"exec plugin .*: has not answered for 30 s"):
            future.result(60)
    with pytest.raises(ConnectError, match="has not answered"):
        get(transport)
    assert [record.msg for record in caplog.records] == ["waiting for an exec plugin"]
    held.let_go()
    # Once it has answered, that is there for whoever comes next.
    with ExitStack() as waited:
        waited.callback(transport.close)
        run = transport._credentials._run
        if run is not None:
            run[0]._thread.join(60)
        assert get(transport).status == 200
    assert program.runs() == 1


def test_wait_for_a_program_ends_by_the_deadline_by_cancel_and_by_close(
    serve: Serve, connect: Connect, program: Program, held: Held, clock: FakeClock, pool: ThreadPoolExecutor
) -> None:
    transport = connect(program.config(serve(Guarded("one")).url), clock=clock)
    cancel = Cancel()
    late = pool.submit(get, transport, 5)
    cancelled = pool.submit(lambda: transport.request("GET", "/x", timeout=30, cancel=cancel))
    closed = pool.submit(get, transport, 30)
    clock.block_until_waiting(3, due_in=30, timeout=60)
    held.wait_begun()

    clock.advance(5)
    cancel.cancel()

    with pytest.raises(NotSent, match="no answer in time; nothing was sent"):
        late.result(60)
    with pytest.raises(ConnectionLost, match="cancelled"):
        cancelled.result(60)
    transport.close()
    with pytest.raises(ConnectError, match=r"not run any more|ended by signal 9"):
        closed.result(60)
    assert program.runs() == 1


def test_program_that_never_answers_is_ended_and_run_again(
    serve: Serve, connect: Connect, program: Program, held: Held, clock: FakeClock
) -> None:
    transport = connect(program.config(serve(Guarded("one")).url), clock=clock)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(get, transport, 60)
        clock.block_until_waiting(1, due_in=30, timeout=60)
        held.wait_begun()
        run = transport._credentials._run
        assert run is not None
        clock.advance(30)
        with pytest.raises(ConnectError, match="has not answered"):
            first.result(60)
    clock.advance(90)
    with pytest.raises(ConnectError, match="has not answered"):
        get(transport)
    run[0]._thread.join(60)
    assert not run[0]._thread.is_alive()

    program.script(f"cat {program.folder}/answer")

    assert get(transport).status == 200
    assert program.runs() == 2


def test_certificate_of_a_program_is_shown_and_only_a_new_one_closes_connections(
    serve: Serve, connect: Connect, program: Program, certificates: Certificates, clock: FakeClock
) -> None:
    shown = threading.Semaphore(0)

    def play(connection: Connection) -> None:
        if connection.sock.getpeercert(binary_form=True):  # type: ignore[attr-defined] # it is a TLS one
            shown.release()
        while connection.read():
            connection.answer()

    server = serve(play, tls=certificates.server_context(wants_client=True))

    def says(token: str, *, more: str = "") -> None:
        program.says(
            token=token,
            clientCertificateData=certificates.cert_file.read_text() + more,
            clientKeyData=certificates.key_file.read_text(),
            expires=clock.utc_now() + timedelta(seconds=60),
        )

    says("one")
    config = replace(program.config(server.url), ca_data=certificates.ca)
    transport = connect(config, clock=clock)
    get(transport)
    get(transport)
    says("two")
    clock.advance(60)
    get(transport)
    assert (server.accepted, program.runs()) == (1, 2)

    says("two", more="\n")
    clock.advance(60)
    get(transport)

    assert (server.accepted, program.runs()) == (2, 3)
    assert [shown.acquire(timeout=60) for _ in range(2)] == [True, True]
    tokens = [asked.headers["authorization"].removeprefix("Bearer ") for asked in server.asked]
    assert tokens == ["one", "one", "two", "two"]


def test_certificate_of_a_program_that_cannot_be_used_is_told(
    serve: Serve, connect: Connect, program: Program, certificates: Certificates
) -> None:
    program.says(clientCertificateData="nonsense", clientKeyData=S3CRET)
    server = serve(lambda connection: None, tls=certificates.server_context())

    with pytest.raises(ConnectError, match="client certificate") as raised:
        get(connect(replace(program.config(server.url), ca_data=certificates.ca)))

    assert S3CRET not in f"{raised.value!r}"


def test_program_is_not_asked_where_another_credential_is_given(
    serve: Serve, connect: Connect, program: Program
) -> None:
    server = serve(Guarded("given"))

    get(connect(replace(program.config(server.url), token="given")))

    assert program.runs() == 0
