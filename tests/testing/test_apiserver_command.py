"""Starting a server: the command line, the kubeconfig, manifests, tokens, TLS; and the connections it serves."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import ssl  # noqa: TID251 - these tests look at TLS itself
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPSConnection  # noqa: TID251 - these tests look at HTTP itself
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from informers.clock import SystemClock
from informers.testing.apiserver import APIServer, certificates
from informers.testing.apiserver.__main__ import main
from informers.testing.apiserver.kubeconfigs import KubeconfigError
from informers.testing.apiserver.loading import LoadError
from informers.testing.apiserver.tokens import TokenError, parse_token

monotonic = SystemClock().monotonic
MAPS = "/api/v1/namespaces/default/configmaps"
SOON = 10.0  # what takes milliseconds, on a busy machine
Start = Callable[..., "tuple[subprocess.Popen[str], dict[str, Any]]"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Start]:
    """Start the program; returns the process and what it said when it was ready."""
    started: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        command = [sys.executable, "-m", "informers.testing.apiserver", "--kubeconfig", str(tmp_path / "kc"), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline() or "{}")

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def get(url: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class TestProgram:
    """python -m informers.testing.apiserver."""

    def test_what_was_seen_of_a_server_that_ran_before_has_expired(self, run: Start) -> None:
        first, ready = run()
        seen = get(ready["url"], MAPS)[1]["metadata"]["resourceVersion"]
        first.kill()
        first.wait()

        _, again = run()
        now = get(again["url"], MAPS)[1]["metadata"]["resourceVersion"]
        status, event = get(again["url"], f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={seen}")

        assert int(now) > int(seen)
        assert (status, event["type"], event["object"]["code"]) == (200, "ERROR", 410)

    def test_says_one_line_when_ready_and_ends_on_a_signal(self, run: Start, tmp_path: Path) -> None:
        process, ready = run("--control-port", "0", "--context", "demo")
        sock = HTTPConnection(urlsplit(ready["url"]).netloc)
        sock.request("GET", f"{MAPS}?watch=1")
        sock.getresponse()
        assert get(ready["control"], "/_state")[0] == 200

        begin = monotonic()
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)

        sock.close()
        assert monotonic() - begin < SOON
        assert (process.returncode, output, errors) == (0, "", "")
        assert ready["ready"] is True
        assert ready["pid"] == process.pid
        assert ready["context"] == "demo"
        assert ready["ca"] is None
        assert ready["kubeconfig"] == str(tmp_path / "kc")

    @pytest.mark.parametrize(
        "options",
        [
            ("--nope",),
            ("--history", "0"),
            ("--history", "many"),
            ("--bookmark-every", "0"),
            ("--load", "/nope"),
            ("--token", ""),
            ("--token", "a:b"),
        ],
    )
    def test_bad_option_is_told_in_one_line(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        options: tuple[str, ...],
    ) -> None:
        monkeypatch.setattr(signal, "signal", lambda *_: None)

        with pytest.raises(SystemExit) as caught:
            main(["--kubeconfig", str(tmp_path / "kc"), *options])

        said = capsys.readouterr()
        assert (caught.value.code, said.out) == (2, "")
        assert said.err.count("\n") == 1

    def test_log_file_has_a_line_for_each_request(self, run: Start, tmp_path: Path) -> None:
        _, ready = run("--log", str(tmp_path / "log"))

        get(ready["url"], "/version")

        deadline = monotonic() + 60
        while not (text := (tmp_path / "log").read_text()):
            assert monotonic() < deadline
        assert " GET /version 200 " in text


class TestKubeconfig:
    """The kubeconfig that is written."""

    def test_leads_to_the_server(self) -> None:
        with APIServer() as server:
            config = yaml.safe_load(server.kubeconfig.read_text())
            mode = server.kubeconfig.stat().st_mode & 0o777
            assert config["clusters"] == [{"name": "embedded", "cluster": {"server": server.url}}]
            assert config["current-context"] == "embedded"
            assert mode == 0o600
        assert not server.kubeconfig.exists()

    def test_keeps_what_is_there(self, tmp_path: Path) -> None:
        path = tmp_path / "kc"
        with APIServer(kubeconfig=path, context="one") as first, APIServer(kubeconfig=path, context="two") as second:
            config = yaml.safe_load(path.read_text())
            with APIServer(kubeconfig=path, context="one") as third:
                again = yaml.safe_load(path.read_text())

        assert [each["cluster"]["server"] for each in config["clusters"]] == [first.url, second.url]
        assert config["current-context"] == again["current-context"] == "one"
        assert {each["name"]: each["cluster"]["server"] for each in again["clusters"]} == {
            "one": third.url,
            "two": second.url,
        }

    def test_that_is_none_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "kc"
        path.write_text("kind: Pod\n")

        with pytest.raises(KubeconfigError, match="is no kubeconfig"):
            APIServer(kubeconfig=path)

    def test_has_the_first_token(self) -> None:
        with APIServer(tokens=["secret=jane", "other"]) as server:
            assert yaml.safe_load(server.kubeconfig.read_text())["users"][0]["user"] == {"token": "secret"}


class TestLoading:
    """Manifests that are there from the start."""

    def test_definitions_and_namespaces_come_first(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(
            "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: team}\n"
            "---\n---\n"
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n"
        )
        sub = tmp_path / "sub"
        sub.mkdir()
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [
                    {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
                ],
            },
        }
        (sub / "z.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [crd]}))
        (sub / "notes.txt").write_text("kind: nothing")

        with APIServer(load=[tmp_path]) as server:
            (found,) = server.objects("widgets.example.com", "team")

        assert found["metadata"]["name"] == "w"

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n{", "document 2: cannot be parsed"),
            ("apiVersion: v1\nkind: ConfigMap\n", "document 1: has no metadata.name"),
            ("a: b\n", "document 1: is no object with a kind"),
            ("apiVersion: v1\nkind: Nope\nmetadata: {name: a}\n", "document 1: no such kind 'Nope'"),
            ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_}\n", 'document 1: ConfigMap "A_" is invalid'),
        ],
    )
    def test_file_that_cannot_be_applied_is_named(self, tmp_path: Path, text: str, wanted: str) -> None:
        (tmp_path / "bad.yaml").write_text(text)

        with pytest.raises(LoadError, match=wanted) as caught:
            APIServer(load=[tmp_path])

        assert "bad.yaml" in str(caught.value)


class TestTokens:
    """Who may ask."""

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("a", ("a", "admin", None)),
            ("a=jane", ("a", "jane", None)),
            ("a=jane:20", ("a", "jane", 20.0)),
            ("a:2m", ("a", "admin", 120.0)),
        ],
    )
    def test_token_is_read(self, text: str, wanted: tuple[str, str, float | None]) -> None:
        assert parse_token(text) == wanted

    @pytest.mark.parametrize("text", ["", "=jane", "a:soon"])
    def test_token_that_makes_no_sense_is_refused(self, text: str) -> None:
        with pytest.raises(TokenError):
            parse_token(text)

    def test_only_known_tokens_are_taken(self, start: Any) -> None:
        api = start(tokens=["good=jane"])

        answers = [
            api.ask("GET", MAPS, headers={"Authorization": value})
            for value in ("Bearer good", "Bearer bad", "Basic good")
        ]

        assert [answer.status for answer in answers] == [200, 401, 401]
        assert answers[1].reason == "Unauthorized"
        assert [entry.user for entry in api.server.requests()] == ["jane", "", ""]

    def test_token_that_ran_out_ends_requests_but_no_streams(self, start: Any) -> None:
        api = start(tokens=["good:0.3"])
        headers = {"Authorization": "Bearer good"}
        watch = api.watch(f"{MAPS}?watch=1", headers)

        deadline = monotonic() + 60
        while api.ask("GET", MAPS, headers=headers).status != 401:
            assert monotonic() < deadline
        api.server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})

        assert watch.names(1) == ["ADDED a"]


def ask_over_tls(server: APIServer) -> int:
    assert server.ca is not None
    connection = HTTPSConnection(
        urlsplit(server.url).netloc, context=ssl.create_default_context(cadata=server.ca), timeout=10
    )
    try:
        connection.request("GET", "/version")
        return connection.getresponse().status
    finally:
        connection.close()


class TestTLS:
    """HTTPS."""

    def test_clients_that_trust_its_authority_are_served(self) -> None:
        with APIServer(tls=True) as server:
            data = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
            assert ask_over_tls(server) == 200
            assert server.url.startswith("https://")
            assert base64.b64decode(data["certificate-authority-data"]).decode() == server.ca

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
    def test_openssl_does_when_there_is_no_cryptography(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cryptography", None)

        with APIServer(tls=True) as server:
            assert ask_over_tls(server) == 200

    def test_nothing_to_make_certificates_with_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cryptography", None)
        monkeypatch.setenv("PATH", "")

        with pytest.raises(certificates.NoCertificatesError, match="needs the Python package cryptography"):
            APIServer(tls=True)

    def test_half_open_handshake_does_not_hold_up_the_end(self) -> None:
        import socket

        server = APIServer(tls=True)
        port = urlsplit(server.url).port
        with socket.create_connection(("127.0.0.1", port)):
            while not server.state()["connections"]:
                pass
            begin = monotonic()
            server.close()
            assert monotonic() - begin < SOON


class TestConnections:
    """HTTP as it is spoken."""

    def test_connection_is_kept_and_every_answer_has_an_id(self, api: Any) -> None:
        first, second = api.ask("GET", MAPS), api.ask("GET", MAPS)

        assert len({entry.connection for entry in api.server.requests()}) == 1
        assert first.headers["Audit-Id"] != second.headers["Audit-Id"]

    def test_pipelined_request_is_refused_by_closing(self, api: Any) -> None:
        sock = api.socket()
        request = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"

        sock.sendall(request + request)

        received = b""
        while data := sock.recv(65536):
            received += data
        assert received.count(b"HTTP/1.1 200") == 1

    def test_body_that_is_too_large_is_refused(self, api: Any) -> None:
        sock = api.socket()

        sock.sendall(f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 3145729\r\n\r\n".encode())

        received = b""
        while data := sock.recv(65536):
            received += data
        assert received.startswith(b"HTTP/1.1 413")
        assert b'"RequestEntityTooLarge"' in received

    @pytest.mark.parametrize("request_line", [b"nonsense", b"GET /", b"GET / HTTP/2.0", b"GET / FTP/1"])
    def test_what_is_not_http_is_refused(self, api: Any, request_line: bytes) -> None:
        sock = api.socket()

        sock.sendall(request_line + b"\r\n\r\n")

        assert sock.recv(65536).startswith(b"HTTP/1.1 400")

    def test_chunked_request_body_is_read(self, api: Any) -> None:
        sock = api.socket()
        body = b'{"metadata": {"name": "a"}}'
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()

        sock.sendall(head + b"5\r\n" + body[:5] + b"\r\n%x\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n")

        assert sock.recv(65536).startswith(b"HTTP/1.1 201")

    def test_version_is_what_was_asked_for(self, start: Any) -> None:
        body = start(version="1.32.4").ask("GET", "/version").body

        assert (body["major"], body["minor"], body["gitVersion"]) == ("1", "32", "v1.32.4")

    @pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
    def test_health_is_ok(self, api: Any, path: str) -> None:
        assert api.ask("GET", path).raw == b"ok"

    def test_discovery_is_aggregated_only_if_asked_for_and_allowed(self, start: Any) -> None:
        accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}

        assert start().ask("GET", "/apis", headers=accept).body["kind"] == "APIGroupDiscoveryList"
        assert start().ask("GET", "/apis").body["kind"] == "APIGroupList"
        old = start(aggregated_discovery=False).ask("GET", "/apis", headers=accept)
        assert old.body["kind"] == "APIGroupList"
        assert old.headers["Content-Type"] == "application/json"

    def test_openapi_is_json_only(self, api: Any) -> None:
        protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"

        assert api.ask("GET", "/openapi/v2", headers={"Accept": protobuf}).status == 406
        assert api.ask("GET", "/openapi/v2").status == 200
        assert "api/v1" in api.ask("GET", "/openapi/v3").body["paths"]
        assert api.ask("GET", "/openapi/v3/api/v1").status == 200
        assert api.ask("GET", "/openapi/v3/apis/nope/v1").status == 404
