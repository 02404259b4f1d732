"""Rules say who may do what, and the server's certificate changes when it is told to."""

from __future__ import annotations

import base64
import socket
import ssl  # noqa: TID251 - looks at the server's certificate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from informers.testing.apiserver import APIServer

MAPS = "/api/v1/namespaces/default/configmaps"
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def api(start: Any) -> Any:
    return start(control_port=0, tokens=["t-jane=jane", "t-root=root"])


def test_rule_forbids_one_user_one_verb_and_the_others_never_notice(api: Any) -> None:
    made = api.control("POST", "/_rules", {"user": "jane", "verb": "list", "resource": "configmaps", "allow": False})

    refused = api.ask("GET", MAPS, headers=bearer("t-jane"))

    assert made.status == 201
    assert (refused.status, refused.reason) == (403, "Forbidden")
    assert refused.body["details"] == {"kind": "configmaps"}
    assert refused.body["message"] == (
        'configmaps is forbidden: User "jane" cannot list resource "configmaps" in API group "" in the namespace "default"'
    )
    assert api.ask("GET", MAPS, headers=bearer("t-root")).status == 200
    assert api.ask("GET", f"{MAPS}/none", headers=bearer("t-jane")).status == 404
    assert api.ask("GET", "/api/v1/secrets", headers=bearer("t-jane")).status == 200


def test_newest_rule_that_matches_decides(api: Any) -> None:
    api.control("POST", "/_rules", {"user": "jane"})
    api.control("POST", "/_rules", {"user": "jane", "verb": ["get", "list"], "name": "a", "allow": True})

    api.server.put(MAP)

    assert api.ask("GET", f"{MAPS}/a", headers=bearer("t-jane")).status == 200
    refused = api.ask("GET", f"{MAPS}/b", headers=bearer("t-jane"))
    assert 'configmaps "b" is forbidden: User "jane" cannot get' in refused.body["message"]
    assert "path" in api.ask("GET", "/version", headers=bearer("t-jane")).body["message"]


def test_rules_are_listed_and_taken_off(api: Any) -> None:
    first = api.control("POST", "/_rules", {"user": "jane", "resource": "*"}).body["id"]
    api.control("POST", "/_rules", {"user": "root"})

    assert api.control("GET", "/_rules").body[0] == {"id": first, "user": "jane", "allow": False}
    assert api.control("DELETE", f"/_rules/{first}").status == 200
    assert api.control("DELETE", f"/_rules/{first}").status == 404
    assert api.ask("GET", MAPS, headers=bearer("t-jane")).status == 200
    assert api.control("DELETE", "/_rules").status == 200
    assert api.ask("GET", MAPS, headers=bearer("t-root")).status == 200


@pytest.mark.parametrize("rule", [{"bogus": 1}, {"verb": 1}, {"name": [1]}, {"allow": "no"}])
def test_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], api: Any) -> None:
    assert api.control("POST", "/_rules", rule).status == 400


def test_stream_that_is_open_outlives_a_rule_against_it(api: Any) -> None:
    stream = api.watch(f"{MAPS}?watch=true&resourceVersion=0", headers=bearer("t-jane"))
    with_rule = api.server.faults().rule(allow=False, user="jane", resource="configmaps")

    api.server.put(MAP)

    assert stream.event()[0] == "ADDED"
    assert api.ask("GET", MAPS, headers=bearer("t-jane")).status == 403
    api.server.faults().remove_rule(with_rule)
    assert api.ask("GET", MAPS, headers=bearer("t-jane")).status == 200
    api.server.faults().rule(allow=False)
    api.server.faults().clear_rules()
    assert api.ask("GET", MAPS, headers=bearer("t-jane")).status == 200


def handshake(url: str, ca: str) -> ssl.SSLSocket:
    address = urlsplit(url)
    context = ssl.create_default_context(cadata=ca)
    sock = socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)
    try:
        return context.wrap_socket(sock, server_hostname=address.hostname)
    except ssl.SSLError:
        sock.close()
        raise


def test_rotated_server_has_a_certificate_of_a_new_authority_and_says_so_in_its_kubeconfig(tmp_path: Path) -> None:
    with APIServer(tls=True) as server:
        old = server.ca
        assert old is not None
        with handshake(server.url, old) as open_before:
            new = server.faults().rotate_tls()

            with handshake(server.url, new):
                pass
            with pytest.raises(ssl.SSLCertVerificationError):
                handshake(server.url, old)
            open_before.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert open_before.recv(20).startswith(b"HTTP/1.1 200")

        cluster = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
        assert server.ca == new != old
        assert base64.b64decode(cluster["certificate-authority-data"]).decode() == new


def test_rotation_by_the_control_api_writes_the_authority_to_a_file_and_may_close_connections(
    start: Any, tmp_path: Path
) -> None:
    api = start(control_port=0, tls=True)
    with handshake(api.server.url, api.server.ca) as sock:
        file = tmp_path / "ca.crt"

        answer = api.control("POST", "/_tls/rotate", {"file": str(file), "close": True})

        assert answer.body["ca"] == file.read_text() == api.server.ca
        assert sock.recv(1) == b""
    assert api.control("POST", "/_tls/rotate", {"bogus": 1}).status == 400
    assert api.control("POST", "/_tls", {}).status == 404


def test_server_without_tls_has_nothing_to_rotate(api: Any) -> None:
    assert api.control("POST", "/_tls/rotate", {}).status == 400
    with pytest.raises(ValueError, match="no TLS"):
        api.server.faults().rotate_tls()
