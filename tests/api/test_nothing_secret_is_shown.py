"""Whatever goes wrong, no token, header, body or value is in an error's text, its traceback, a `repr` or a log line."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from informers.api.calls import Cancel
from informers.api.client import Client
from informers.api.fence import Fence
from informers.api.kubeconfig import ClientConfig
from informers.api.transport import Transport
from informers.meta.errors import InformersError
from informers.meta.resources import GVR, ObjectRef

if TYPE_CHECKING:
    from tests.api.conftest import Certificates, Connection, Serve

    Connect = Callable[..., Transport]
    Act = Callable[[Transport, Client], object]
    Play = Callable[[Connection], None]

MARK = "marked-9f27c1e4"
SECRET = ObjectRef(GVR("", "v1", "secrets"), "a", "s")
CONFIGMAP = ObjectRef(GVR("", "v1", "configmaps"), "a", "c")
BODY = {"metadata": {"name": "s"}, "data": {"v": MARK}}


def stream(transport: Transport, _: Client) -> object:
    with transport.open_stream("/x", silence=5, deadline=5, cancel=Cancel(), ref=SECRET) as opened:
        return list(opened.lines())


READS: dict[str, Act] = {
    "get": lambda _, client: client.get(SECRET),
    "list": lambda _, client: list(client.list(SECRET.gvr)),
    "stream": stream,
}
WRITES: dict[str, Act] = {
    "create": lambda _, client: client.create(SECRET.gvr, BODY, namespace="a", field_manager="m"),
    "update": lambda _, client: client.update(SECRET, BODY, field_manager="m"),
    "patch": lambda _, client: client.patch(SECRET, BODY, field_manager="m"),
    "apply": lambda _, client: client.patch(SECRET, BODY, kind="apply", field_manager="m"),
    "delete": lambda _, client: client.delete(SECRET),
}
INVALID: dict[str, Act] = {
    "patch of another kind": lambda _, client: client.patch(CONFIGMAP, BODY, field_manager="m"),
    "create of another kind": lambda _, client: client.create(CONFIGMAP.gvr, BODY, namespace="a", field_manager="m"),
}


def status(code: int, reason: str) -> bytes:
    cause = {"reason": "FieldValueInvalid", "field": "data.v", "message": f'Invalid value: "{MARK}"'}
    details = {"causes": [cause], "kind": "secrets"}
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": MARK, "details": details}).encode()


def answer(code: int, body: bytes, **headers: str) -> Play:
    def play(connection: Connection) -> None:
        while connection.read():
            connection.answer(
                body, status=code, headers={name.replace("_", "-"): each for name, each in headers.items()}
            )

    return play


def raw(data: bytes) -> Play:
    def play(connection: Connection) -> None:
        connection.read()
        connection.send(data)

    return play


HTML = f"<html>{MARK}</html>".encode()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWERS: dict[str, Play] = {
    **{
        f"status {code}": answer(code, status(code, reason))
        for code, reason in (
            (400, "BadRequest"), (401, "Unauthorized"), (403, "Forbidden"), (404, "NotFound"), (409, "Conflict"),
            (410, "Expired"), (422, "Invalid"), (429, "TooManyRequests"), (500, "InternalError"), (503, ""),
        )
    },
    "plain text": answer(500, MARK.encode(), Content_Type="text/plain"),
    "page": answer(502, HTML, Content_Type="text/html"),
    "page that is all right": answer(200, HTML, Content_Type="text/html"),
    "redirect": answer(302, b"", Location=f"http://127.0.0.1:1/?token={MARK}"),
    "no JSON": answer(200, MARK.encode()),
    "half of a JSON": answer(200, f'{{"data": "{MARK}'.encode()),
    "a list of texts": answer(200, f'["{MARK}"]'.encode()),
    "a text": answer(200, f'"{MARK}"'.encode()),
    "a status that is all right": answer(200, status(200, "")),
    "a table": answer(200, json.dumps({"kind": "Table", "rows": [{"cells": [MARK]}]}).encode()),
    "an object without a name": answer(200, json.dumps({"kind": "Secret", "data": {"v": MARK}}).encode()),
    "an object with odd metadata": answer(200, json.dumps({"kind": "Secret", "metadata": MARK}).encode()),
    "a list with odd items": answer(200, json.dumps({"kind": "SecretList", "metadata": {}, "items": [MARK]}).encode()),
    "a warning": answer(403, status(403, "Forbidden"), Warning=f'299 - "{MARK}"'),
    "a retry that cannot be read": answer(429, status(429, ""), Retry_After=MARK),
    "no HTTP": raw(f"{MARK}\r\n\r\n".encode()),
    "an odd status line": raw(f"HTTP/1.1 {MARK}\r\n\r\n".encode()),
    "an odd header": raw(OK + f"X {MARK}\r\nContent-Length: {MARK}\r\n\r\n".encode()),
    "an odd length": raw(OK + f"Content-Length: {MARK}\r\n\r\n".encode()),
    "an odd chunk": raw(OK + f"Transfer-Encoding: chunked\r\n\r\n{MARK}\r\n".encode()),
    "an odd coding": raw(OK + f"Content-Encoding: {MARK}\r\nContent-Length: 0\r\n\r\n".encode()),
    "a cut": raw(OK + f'Content-Length: 1000\r\n\r\n{{"data": "{MARK}'.encode()),
}  # fmt: skip


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture) -> Callable[[Callable[[], object]], str]:
    """Return everything that anybody may get to see of an act that fails."""
    caplog.set_level(logging.DEBUG)

    def look(act: Callable[[], object]) -> str:
        with pytest.raises(InformersError) as raised:
            act()
        seen = [repr(raised.value), str(raised.value), *traceback.format_exception(raised.value)]
        cause: BaseException | None = raised.value
        while cause is not None:
            seen.append(repr(cause))
            cause = cause.__cause__
        seen += [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
        return "\n".join(seen)

    return look


@pytest.mark.parametrize("play", ANSWERS.values(), ids=ANSWERS)
def test_nothing_of_a_secret_is_shown_whatever_the_answer(
    play: Play, serve: Serve, connect: Connect, shown: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    transport = connect(ClientConfig(server=serve(play).url, token=f"token-{MARK}"))
    client = Client({"": transport}, fence=Fence())

    for name, act in {**READS, **WRITES}.items():
        seen = ""
        with suppress(pytest.fail.Exception):  # not every one of these is wrong for every call
            seen = shown(lambda act=act: act(transport, client))
        assert MARK not in seen, f"{name}: {seen}"
        assert MARK not in caplog.text


@pytest.mark.parametrize("code", [400, 422])
@pytest.mark.parametrize("act", INVALID.values(), ids=INVALID)
def test_nothing_of_a_refused_write_is_shown(
    code: int, act: Act, serve: Serve, connect: Connect, shown: Callable[..., str]
) -> None:
    transport = connect(ClientConfig(server=serve(answer(code, status(code, "Invalid"))).url, token=f"token-{MARK}"))

    assert MARK not in shown(lambda: act(transport, Client({"": transport}, fence=Fence())))


def test_nothing_of_a_password_or_a_token_file_is_shown(
    serve: Serve, connect: Connect, shown: Callable[..., str], tmp_path: Path
) -> None:
    server = serve(answer(401, status(401, "Unauthorized")))
    token = tmp_path / "token"
    token.write_text(MARK)
    config = ClientConfig(server=server.url, token_file=str(token))
    transport = connect(config)
    token.write_text(f"{MARK} {MARK}")  # no token any more

    seen = shown(lambda: transport.request("GET", "/x", timeout=30, ref=SECRET))
    seen += shown(
        lambda: connect(ClientConfig(server=server.url, username="u", password=MARK)).request(
            "GET", "/x", timeout=30, ref=SECRET
        )
    )

    assert MARK not in seen
    assert MARK not in repr((config, transport.credentials.current(1e9, Cancel())))


def test_nothing_of_a_proxy_is_shown(
    serve: Serve, connect: Connect, shown: Callable[..., str], certificates: Certificates
) -> None:
    refusing = serve(raw(f"HTTP/1.1 407 {MARK}\r\nX-Token: {MARK}\r\nContent-Length: 0\r\n\r\n".encode()))
    gone = serve(lambda connection: None)
    gone.stop()
    for proxy in (refusing, gone):
        config = ClientConfig(server="https://kube.test", proxy_url=f"http://u:{MARK}@127.0.0.1:{proxy.port}")
        transport = connect(replace(config, ca_data=certificates.ca))

        assert MARK not in shown(lambda transport=transport: transport.request("GET", "/x", timeout=30, ref=SECRET))


def test_nothing_of_what_cannot_be_sent_is_shown(serve: Serve, connect: Connect, shown: Callable[..., str]) -> None:
    transport = connect(ClientConfig(server=serve(answer(200, b"{}")).url, token=f"token-{MARK}"))

    seen = shown(
        lambda: transport.request(
            "POST", "/x", timeout=30, body=MARK.encode(), content_type=f"a\r\nX: {MARK}", ref=SECRET
        )
    )
    seen += shown(lambda: transport.request("GET", "/x", timeout=30, query=[("token", f"{MARK}\ud800")], ref=SECRET))
    seen += shown(lambda: transport.request("GET", "/x", timeout=30, accept=f"{MARK}\n", ref=SECRET))

    assert MARK not in seen
