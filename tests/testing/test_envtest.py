"""The real API server's harness keeps what it promises."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from informers import GVR, ForbiddenError
from informers.testing.envtest import PROGRAMS, Envtest, EnvtestError, ProgramMissingError, Rules, find_programs
from informers.testing.servers import Server
from informers.testing.wire import Wire

READ_SECRETS: Rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]
READ_CONFIGMAPS: Rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]


def write_programs(folder: Path, script: str) -> Path:
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def status_of(wire: Wire, path: str) -> int:
    return wire.request("GET", path).status


def test_missing_programs_are_named_with_the_way_to_get_them(tmp_path: Path) -> None:
    write_programs(tmp_path, "exit 0")
    (tmp_path / "etcd").unlink()

    with pytest.raises(ProgramMissingError, match=r"has no etcd: run `make envtest-bin`"):
        find_programs(tmp_path)


def test_programs_are_found_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_programs(tmp_path, "exit 0")
    monkeypatch.setenv("KUBE_INFORMERS_ENVTEST_BIN", str(tmp_path))

    assert find_programs() == tmp_path


def test_a_program_that_ends_early_fails_the_start_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control_plane = Envtest(write_programs(tmp_path, "echo first; echo last words >&2; exit 3"))

    with pytest.raises(EnvtestError, match=r"(?s)etcd ended with 3:.*first.*last words"):
        control_plane.start()

    assert f"logs are kept in {control_plane.directory}" in capsys.readouterr().err
    assert (control_plane.directory / "etcd.log").read_text() == "first\nlast words\n"


def test_the_directory_is_private_and_removed_in_the_end(envtest: Envtest) -> None:
    with Envtest(envtest.bin) as another:
        directory = another.directory
        assert directory.stat().st_mode & 0o777 == 0o700
        assert another.kubeconfig.stat().st_mode & 0o777 == 0o600

    assert not directory.exists()


def test_a_user_may_exactly_what_the_rules_say(envtest: Envtest) -> None:
    user = envtest.wire(envtest.user("reader", READ_SECRETS))

    assert status_of(user, "/api/v1/secrets") == 200
    assert status_of(user, "/api/v1/namespaces/default/secrets/none") == 404
    assert status_of(user, "/api/v1/configmaps") == 403
    assert user.request("DELETE", "/api/v1/namespaces/default/secrets/none").status == 403


def test_rights_in_one_namespace_hold_there_only(envtest: Envtest) -> None:
    user = envtest.wire(envtest.user("local", namespaced={"default": READ_SECRETS}))

    assert status_of(user, "/api/v1/namespaces/default/secrets") == 200
    assert status_of(user, "/api/v1/namespaces/kube-system/secrets") == 403
    assert status_of(user, "/api/v1/secrets") == 403


def test_rights_are_replaced_at_once_and_the_kubeconfig_stays(envtest: Envtest) -> None:
    kubeconfig = envtest.user("changing", READ_SECRETS)
    user = envtest.wire(kubeconfig)

    assert envtest.user("changing", READ_CONFIGMAPS) == kubeconfig

    assert status_of(user, "/api/v1/namespaces/default/secrets/none") == 403
    assert status_of(user, "/api/v1/namespaces/default/configmaps/none") == 404


def test_a_client_asks_as_the_administrator_or_as_a_user(envtest: Envtest) -> None:
    secrets = GVR("", "v1", "secrets")
    reader = envtest.client(envtest.user("client-reader", READ_CONFIGMAPS))

    assert list(envtest.client().list(secrets, namespace="default")) == []
    with pytest.raises(ForbiddenError):
        list(reader.list(secrets, namespace="default"))


@pytest.mark.parametrize("abrupt", [False, True])
def test_restart_keeps_port_and_data(real: Server, envtest: Envtest, abrupt: bool) -> None:
    path = f"/api/v1/namespaces/{real.namespace}/configmaps"
    real.wire().request("POST", path, body={"metadata": {"name": "kept"}})
    url = envtest.url

    envtest.restart(abrupt=abrupt)

    assert envtest.url == url
    assert status_of(real.wire(), f"{path}/kept") == 200


def test_a_paused_server_is_silent_until_resumed(envtest: Envtest) -> None:
    envtest.pause()
    try:
        with pytest.raises(TimeoutError):
            envtest.wire().request("GET", "/version", timeout=0.5)
    finally:
        envtest.resume()

    assert status_of(envtest.wire(), "/version") == 200


def test_history_before_a_compaction_is_gone_after_a_restart(real: Server, envtest: Envtest) -> None:
    wire = real.wire()
    path = f"/api/v1/namespaces/{real.namespace}/configmaps"
    before = wire.request("GET", path).json()["metadata"]["resourceVersion"]
    wire.request("POST", path, body={"metadata": {"name": "a"}})

    envtest.compact()
    envtest.restart()

    with wire.stream(path, query=[("watch", "true"), ("resourceVersion", before)]) as watch:
        line = next(iter(watch.lines(silence=60.0)))
    assert b'"type":"ERROR"' in line
    assert b'"code":410' in line


def test_a_relay_before_a_real_server_carries_tls(real: Server) -> None:
    relay = real.relay()

    assert status_of(Wire.of(relay.kubeconfig), "/version") == 200


def test_controllers_clean_up_namespaces_and_make_pods(envtest_controllers: Envtest) -> None:
    wire = envtest_controllers.wire()
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    wire.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "worked"}})
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    deployment = {"metadata": {"name": "d"}, "spec": spec}
    made = wire.request("POST", "/apis/apps/v1/namespaces/worked/deployments", body=deployment)
    assert made.status == 201, made.body

    with wire.stream("/api/v1/namespaces/worked/pods", query=[("watch", "true")]) as pods:
        assert next(iter(pods.lines(silence=100.0))).startswith(b'{"type":"ADDED"')
    query = [("watch", "true"), ("fieldSelector", "metadata.name=worked")]
    with wire.stream("/api/v1/namespaces", query=query) as namespaces:
        wire.request("DELETE", "/api/v1/namespaces/worked")
        assert any(line.startswith(b'{"type":"DELETED"') for line in namespaces.lines(silence=100.0))


RUN = """
import sys
from informers.testing.envtest import Envtest

control_plane = Envtest()
control_plane.start()
print(control_plane._etcd.pid, control_plane._apiserver.pid, control_plane.directory, flush=True)
sys.stdin.read()
"""


def test_a_run_that_is_killed_leaves_no_process(envtest: Envtest) -> None:
    environment = {**os.environ, "KUBE_INFORMERS_ENVTEST_BIN": str(envtest.bin)}
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        etcd, apiserver, directory = run.stdout.readline().split()
        handles = [os.pidfd_open(int(pid)) for pid in (etcd, apiserver)]

        run.kill()

    for handle in handles:
        ended, _, _ = select.select([handle], [], [], 60.0)
        assert ended == [handle]
        os.close(handle)
    shutil.rmtree(directory)
