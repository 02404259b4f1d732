"""Tokens and certificates rotate under load; nobody who uses the framework sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from informers import InformersError, ObjectRef
from informers.testing.wire import Wire

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

PATIENCE = 60.0


class Load:
    """Threads that read and write through a program's client without a pause worth the name."""

    def __init__(self, stage: Stage, follower: Follower) -> None:
        self.stage = stage
        self.client = follower.manager.client
        self.errors: list[str] = []
        self._moved = threading.Condition()  # guards _done
        self._done = [0, 0, 0]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, act), name=f"load-{number}")
            for number, act in enumerate((self._read, self._patch, self._replace))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def until_more(self) -> None:
        """Wait until each thread has had three answers more."""
        with self._moved:
            wanted = [done + 3 for done in self._done]
            assert self._moved.wait_for(
                lambda: all(done >= want for done, want in zip(self._done, wanted, strict=True)), PATIENCE
            ), self.errors

    def _run(self, number: int, act: Callable[[int], None]) -> None:
        while not self._stop.wait(0.01):
            try:
                act(number)
            except InformersError as error:
                self.errors.append(str(error))
            with self._moved:
                self._done[number] += 1
                self._moved.notify_all()

    def _read(self, _number: int) -> None:
        list(self.client.list(self.stage.ref("x").gvr, namespace=self.stage.namespace))

    def _patch(self, number: int) -> None:
        self.client.patch(self.stage.ref("patched"), {"data": {"n": str(self._done[number])}}, field_manager="load")

    def _replace(self, number: int) -> None:
        name = f"made-{self._done[number]}"
        body = {"metadata": {"name": name}}
        made = self.client.create(self.stage.ref("x").gvr, body, namespace=self.stage.namespace, field_manager="load")
        self.client.delete(ObjectRef(made.ref.gvr, made.namespace, made.name), uid=made.uid)


def install(path: Path, text: str) -> None:
    """Put a file there as the kubelet does: by rename."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def with_files(stage: Stage, token: Path, authority: Path | None = None) -> Path:
    """Write a kubeconfig that names files in place of what the server's own holds."""
    config: dict[str, Any] = yaml.safe_load(stage.server.kubeconfig.read_text())
    for cluster in config["clusters"]:
        if authority is not None:
            del cluster["cluster"]["certificate-authority-data"]
            cluster["cluster"]["certificate-authority"] = str(authority)
    for user in config["users"]:
        user["user"] = {"tokenFile": str(token)}
    path = stage.directory / "with-files"
    path.write_text(yaml.safe_dump(config))
    return path


def test_tokens_and_authorities_rotate_under_load_without_one_visible_error(perform: Any) -> None:
    stage: Stage = perform(tls=True, tokens=["t-admin=admin"])
    server, token, authority = stage.embedded, stage.directory / "token", stage.directory / "ca.crt"
    stage.put("patched", "0")
    present = server.add_token(user="admin")
    install(token, present)
    install(authority, str(server.ca))
    follower = stage.follow(kubeconfig=with_files(stage, token, authority))
    follower.until_watching()

    with Load(stage, follower) as load:
        for _ in range(4):
            load.until_more()
            before, present = present, server.add_token(user="admin")
            install(token, present)
            server.revoke_token(before)
            load.until_more()
        assert len(stage.watches()) == 1  # a stream is left alone

        for number in range(2, 5):
            # Connections that are open go on; the next one meets the new authority.
            install(authority, stage.faults.rotate_tls())
            load.until_more()
            stage.faults.close(client="story*")
            server.wait_request(verb="watch", resource="configmaps", client="story*", count=number, timeout=PATIENCE)
            load.until_more()
    follower.until_watching()

    assert load.errors == []
    assert not stage.log.alarms()
    wanted = {found["metadata"]["name"]: "" for found in server.objects("configmaps", stage.namespace)}
    follower.until(lambda: follower.values().keys() == wanted.keys(), "the cache is what the server has")
    statuses = {entry.status for entry in server.requests(client="story*")}
    assert statuses == {200, 201, 401}  # it met refusals, and nobody saw them


def test_tokens_that_a_real_server_takes_no_longer_are_replaced_without_one_visible_error(real_stage: Stage) -> None:
    stage, token = real_stage, real_stage.directory / "token"
    account = Account(stage)
    stage.put("patched", "0")
    present = account.issue("one")
    install(token, present)
    follower = stage.follow(kubeconfig=with_files(stage, token))
    follower.until_watching()

    with Load(stage, follower) as load:
        load.until_more()
        install(token, account.issue("two"))
        account.revoke("one")
        account.until_refused(present)
        load.until_more()
    stage.put("after", "1")

    follower.until_value("after", "1")
    assert load.errors == []
    assert not stage.log.alarms()
    assert follower.states()[-1] == "watching"
    assert follower.states().count("watching") == 1  # a stream is left alone


class Account:
    """A service account whose tokens end with the Secret that each is bound to."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.wire = Wire.of(stage.server.kubeconfig)
        rights = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]
        subject = {"kind": "ServiceAccount", "name": "rotating", "namespace": stage.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "rotating"}
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{stage.namespace}"
        self._post(f"/api/v1/namespaces/{stage.namespace}/serviceaccounts", {"metadata": {"name": "rotating"}})
        self._post(f"{rbac}/roles", {"metadata": {"name": "rotating"}, "rules": rights})
        self._post(f"{rbac}/rolebindings", {"metadata": {"name": "rotating"}, "subjects": [subject], "roleRef": role})

    def issue(self, name: str) -> str:
        secrets = f"/api/v1/namespaces/{self.stage.namespace}/secrets"
        secret = self._post(secrets, {"metadata": {"name": name}})
        bound = {"kind": "Secret", "apiVersion": "v1", "name": name, "uid": secret["metadata"]["uid"]}
        path = f"/api/v1/namespaces/{self.stage.namespace}/serviceaccounts/rotating/token"
        token: str = self._post(path, {"spec": {"boundObjectRef": bound}})["status"]["token"]
        return token

    def revoke(self, name: str) -> None:
        assert self.wire.request("DELETE", f"/api/v1/namespaces/{self.stage.namespace}/secrets/{name}").status == 200

    def until_refused(self, token: str) -> None:
        """Wait until the server has forgotten that it knew this token."""
        asking = Wire(self.wire.server, self.wire.ca, token)
        tick = threading.Event()
        for _ in range(600):
            if asking.request("GET", "/version").status == 401:
                return
            tick.wait(0.1)
        raise AssertionError("the token is still taken")

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.wire.request("POST", path, body=body)
        assert answer.status == 201, answer.body
        return answer.json()
