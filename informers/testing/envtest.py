"""Run a real API server for tests: etcd, kube-apiserver and, if asked, kube-controller-manager, on free local ports.

`make envtest-bin` builds the programs. What is surprising: the server has no nodes and, without `controllers`,
nothing that acts on objects, so a deleted Namespace stays in phase Terminating, and a Deployment has no Pods.
"""

from __future__ import annotations

import base64
import csv
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import yaml

from informers.meta.errors import InformersError
from informers.testing.wire import Answer, Wire

if TYPE_CHECKING:
    from informers.api.client import Client

PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
Rules = Sequence[Mapping[str, Any]]

_ENV: Final = "KUBE_INFORMERS_ENVTEST_BIN"
_IN_CLONE: Final = Path(__file__).parents[2] / "hack" / "envtest" / "bin"
_USERS: Final = "envtest-users"  # the namespace of the service accounts that user() makes
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_READY_TIMEOUT: Final = 60.0
_TERM_TIMEOUT: Final = 5.0
_PORT_TRIES: Final = 3
_LOG_LINES: Final = 50
# Kills what a test run that died by force left behind: it waits for the end of a pipe that only the run holds,
# having read the process groups from it.
_REAPER: Final = 'while read -r group; do groups="$groups $group"; done; for g in $groups; do kill -9 "-$g"; done'


class EnvtestError(InformersError):
    """Say that a program is missing, ended too early, or was not ready in time."""


class ProgramMissingError(EnvtestError):
    """Say that a program has not been built: `make envtest-bin` does that."""


def find_programs(folder: Path | str | None = None) -> Path:
    """Give the folder of the programs: `folder`, else $KUBE_INFORMERS_ENVTEST_BIN, else hack/envtest/bin of the clone.

    Raises:
        ProgramMissingError: one of them is not there.
    """
    found = Path(folder or os.environ.get(_ENV) or _IN_CLONE)
    missing = [name for name in PROGRAMS if not os.access(found / name, os.X_OK)]
    if missing:
        raise ProgramMissingError(f"{found} has no {', '.join(missing)}: run `make envtest-bin`, or set {_ENV}")
    return found


class Envtest:
    """A control plane of its own in a temporary directory; a context manager, also `start()` and `stop()`.

    Attributes:
        bin: the folder of the programs.
        url: where the API server listens; the same after `restart()`.
        kubeconfig: of an administrator.
        directory: data and logs; removed by `stop()` unless something failed (see `keep_logs`).
    """

    def __init__(self, bin: Path | str | None = None, *, controllers: bool = False) -> None:  # noqa: A002
        self.bin = find_programs(bin)
        self.url = ""
        self.kubeconfig = Path()
        self.directory = Path()
        self._controllers = controllers
        self._admin_token = secrets.token_urlsafe(24)
        self._keep = False
        self._etcd_url = ""
        self._etcd: _Program | None = None
        self._apiserver: _Program | None = None
        self._manager: _Program | None = None
        self._reaper: subprocess.Popen[str] | None = None
        self._users: dict[str, dict[str, Rules]] = {}  # what each user may, by namespace ("" everywhere)
        self._clients = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.keep_logs()
        self.stop()

    # Starting and stopping

    def start(self) -> None:
        """Start everything and return when requests are answered.

        Raises:
            EnvtestError: a program ended, or the server was not ready within 60 s; the text has the last log lines.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="envtest-"))  # mode 0700
        self.kubeconfig = self.directory / "admin.kubeconfig"
        try:
            self._reaper = subprocess.Popen(
                ["/bin/sh", "-c", _REAPER], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0
            )
            self._write_credentials()
            self._start_on_free_port(self._start_etcd)
            self._start_on_free_port(self._start_apiserver)
            if self._controllers:
                self._start_controllers()
        except BaseException:
            self.keep_logs()
            self.stop()
            raise

    def stop(self) -> None:
        """End every process and remove the directory, unless its logs are to be kept."""
        self._clients.close()
        self.resume()
        for program in (self._manager, self._apiserver, self._etcd):
            if program is not None:
                program.stop()
        self._manager = self._apiserver = self._etcd = None
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.wait()
            if self._reaper.stdin is not None:
                self._reaper.stdin.close()
            self._reaper = None
        if self._keep:
            shutil.rmtree(self.directory / "etcd", ignore_errors=True)
            print(f"envtest: logs are kept in {self.directory}", file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

    def keep_logs(self) -> None:
        """Let `stop()` keep the logs and print where they are: something failed."""
        self._keep = True

    # What tests do to it

    def restart(self, *, abrupt: bool = False) -> None:
        """Stop the API server and start it again on the same port and data; `abrupt` kills it."""
        if self._apiserver is None:
            raise EnvtestError("restart: the API server has not been started")
        self._apiserver.stop(abrupt=abrupt)
        self._start_apiserver(_port_of(self.url))

    def pause(self) -> None:
        """Freeze the API server: connections stay open, nothing is read or answered."""
        if self._apiserver is not None:
            self._apiserver.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the API server go on after `pause()`."""
        if self._apiserver is not None:
            self._apiserver.signal(signal.SIGCONT)

    def compact(self) -> None:
        """Make etcd forget all history before now.

        The API server's own caches still serve the versions that they have seen; after `restart()` they no longer
        do, and older versions, watches and continue tokens are answered with 410.
        """
        etcd = Wire(self._etcd_url)
        current = etcd.request("POST", "/v3/kv/range", body={"key": base64.b64encode(b"\0").decode()})
        revision = current.json()["header"]["revision"]
        answer = etcd.request("POST", "/v3/kv/compaction", body={"revision": revision, "physical": True})
        if answer.status != 200:
            raise EnvtestError(f"compact: etcd answered {answer.status}: {answer.body.decode()}")

    # Who may ask

    def wire(self, kubeconfig: Path | None = None) -> Wire:
        """Ask plainly, as the administrator or as the user of `kubeconfig`."""
        return Wire.of(kubeconfig or self.kubeconfig)

    def client(self, kubeconfig: Path | None = None) -> Client:
        """Make a client, as the administrator or as the user of `kubeconfig`; `stop()` closes it."""
        from informers.testing.clients import open_client

        return self._clients.enter_context(open_client(kubeconfig or self.kubeconfig))

    def user(self, name: str, rules: Rules = (), *, namespaced: Mapping[str, Rules] | None = None) -> Path:
        """Make a user who may exactly this, and write a kubeconfig of theirs; called again, replace what they may.

        `rules` are RBAC policy rules for all namespaces, `namespaced` those for single ones, which must exist.
        They are in force when this returns. Like every user, this one may also read discovery and `/version`.
        The user is a service account, so it is known to the server as `system:serviceaccount:envtest-users:NAME`.
        """
        wire = self.wire()
        wanted = {"": rules, **(namespaced or {})}
        previous = self._users.get(name, {})
        if not previous:
            _make(wire, "/api/v1/namespaces", {"metadata": {"name": _USERS}})
            _make(wire, f"/api/v1/namespaces/{_USERS}/serviceaccounts", {"metadata": {"name": name}})
        for namespace in sorted({*wanted, *previous}):
            self._grant(wire, name, namespace, wanted.get(namespace, ()))
        self._users[name] = wanted

        kubeconfig = self.directory / f"user-{name}.kubeconfig"
        if not kubeconfig.exists():
            path = f"/api/v1/namespaces/{_USERS}/serviceaccounts/{name}/token"
            made = _expect(wire.request("POST", path, body={"spec": {"expirationSeconds": 86400}}), 201)
            self._write_kubeconfig(kubeconfig, name, made["status"]["token"])
        user = Wire.of(kubeconfig)
        for namespace in sorted({*wanted, *previous}):
            _wait_for(
                partial(
                    _are_in_force, user, namespace or "default", wanted.get(namespace, ()), previous.get(namespace, ())
                ),
                f"the rights of user {name} are not in force",
                timeout=10.0,
            )
        return kubeconfig

    def _grant(self, wire: Wire, name: str, namespace: str, rules: Rules) -> None:
        kind = "Role" if namespace else "ClusterRole"
        where = f"{_RBAC}/namespaces/{namespace}" if namespace else _RBAC
        role_name = f"envtest-{name}"
        role = {"metadata": {"name": role_name}, "rules": list(rules)}
        binding = {
            "metadata": {"name": role_name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "namespace": _USERS, "name": name}],
        }
        _put(wire, f"{where}/{kind.lower()}s", role)
        _put(wire, f"{where}/{kind.lower()}bindings", binding)

    # Starting, step by step

    def _start_on_free_port(self, start: Callable[[int], None]) -> None:
        # Between finding a free port and listening on it another process may take it.
        for attempt in range(1, _PORT_TRIES + 1):
            try:
                start(_free_port())
            except EnvtestError as error:
                if attempt == _PORT_TRIES or "address already in use" not in str(error):
                    raise
            else:
                return

    def _start_etcd(self, port: int) -> None:
        self._etcd_url = f"http://127.0.0.1:{port}"
        peer = f"http://127.0.0.1:{_free_port()}"
        self._etcd = self._run(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._await_answer(self._etcd, Wire(self._etcd_url), "/health")

    def _start_apiserver(self, port: int) -> None:
        self.url = f"https://127.0.0.1:{port}"
        key = self.directory / "service-accounts.pem"
        arguments = [
            f"--etcd-servers={self._etcd_url}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.directory / 'certificates'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
        ]
        if not self._controllers:
            # It holds Pods back until somebody has made the service account `default`.
            arguments.append("--disable-admission-plugins=ServiceAccount")
        self._apiserver = self._run("kube-apiserver", *arguments)
        certificate = self.directory / "certificates" / "apiserver.crt"  # with the CA that signed it, made at start
        self._await(self._apiserver, certificate.exists)
        self._write_kubeconfig(self.kubeconfig, "admin", self._admin_token)
        self._await_answer(self._apiserver, self.wire(), "/readyz")
        self._await_answer(self._apiserver, self.wire(), "/api/v1/namespaces/default")

    def _start_controllers(self) -> None:
        self._manager = self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.directory / 'service-accounts.pem'}",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            "--controllers=*,-nodeipam,-cloud-node-lifecycle,-node-route-controller,-service-lb-controller",
            "--secure-port=0",
        )
        self._await_answer(self._manager, self.wire(), "/api/v1/namespaces/default/serviceaccounts/default")

    def _run(self, name: str, *arguments: str) -> _Program:
        program = _Program(self.bin / name, arguments, self.directory / f"{name}.log")
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.write(f"{program.pid}\n")
            self._reaper.stdin.flush()
        return program

    def _await_answer(self, program: _Program, wire: Wire, path: str) -> None:
        def has_answered() -> bool:
            try:
                return wire.request("GET", path, timeout=5.0).status == 200
            except OSError:
                return False

        self._await(program, has_answered)

    def _await(self, program: _Program, is_ready: Callable[[], bool]) -> None:
        def is_ready_or_ended() -> bool:
            if (status := program.ended()) is not None:
                program.stop()
                raise EnvtestError(f"{program.name} ended with {status}:\n{program.last_lines()}")
            return is_ready()

        _wait_for(is_ready_or_ended, f"{program.name} is not ready", timeout=_READY_TIMEOUT, explain=program.last_lines)

    def _write_credentials(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        _write_private(self.directory / "service-accounts.pem", key)
        with (self.directory / "tokens.csv").open("w", newline="") as file:
            csv.writer(file).writerow([self._admin_token, "admin", "admin", "system:masters"])

    def _write_kubeconfig(self, path: Path, user: str, token: str) -> None:
        ca = (self.directory / "certificates" / "apiserver.crt").read_bytes()
        cluster = {"server": self.url, "certificate-authority-data": base64.b64encode(ca).decode()}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "envtest", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": user}}],
            "current-context": "envtest",
        }
        _write_private(path, yaml.safe_dump(config).encode())


class _Program:
    """One process with a process group and a log file of its own."""

    def __init__(self, path: Path, arguments: Sequence[str], log: Path) -> None:
        self.name = path.name
        self._log = log
        with log.open("ab") as output:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [str(path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                cwd=log.parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> int | None:
        """Give the exit status, or None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group, if the process still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def stop(self, *, abrupt: bool = False) -> None:
        """End the process: by TERM, and after 5 s by KILL."""
        self.signal(signal.SIGKILL if abrupt else signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process would not see TERM
        try:
            self._process.wait(_TERM_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def last_lines(self) -> str:
        """Give the end of the log."""
        with self._log.open(errors="replace") as file:
            return "".join(deque(file, maxlen=_LOG_LINES))


def _are_in_force(wire: Wire, namespace: str, wanted: Rules, previous: Rules) -> bool:
    """Tell whether the server's authorizer has seen what was granted and what was taken away."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    answer = wire.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body=review)
    if answer.status != 201:
        return False
    status = answer.json()["status"]
    found = {_rule_key(rule) for rule in (*status["resourceRules"], *status["nonResourceRules"])}
    now = {_rule_key(rule) for rule in wanted}
    return now <= found and not ({_rule_key(rule) for rule in previous} - now) & found


def _rule_key(rule: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(sorted((name, tuple(sorted(values))) for name, values in rule.items() if values))


def _make(wire: Wire, path: str, body: Mapping[str, Any]) -> None:
    answer = wire.request("POST", path, body=body)
    if answer.status not in {201, 409}:
        raise EnvtestError(f"POST {path}: {answer.status}: {answer.body.decode()}")


def _put(wire: Wire, path: str, body: Mapping[str, Any]) -> None:
    """Create, or replace what is there."""
    answer = wire.request("POST", path, body=body)
    if answer.status == 409:
        _expect(wire.request("PUT", f"{path}/{body['metadata']['name']}", body=body), 200)
    else:
        _expect(answer, 201)


def _expect(answer: Answer, status: int) -> Any:
    if answer.status != status:
        raise EnvtestError(f"the server answered {answer.status} instead of {status}: {answer.body.decode()}")
    return answer.json()


def _wait_for(
    is_done: Callable[[], bool], problem: str, *, timeout: float, explain: Callable[[], str] = lambda: ""
) -> None:
    # Other processes signal nothing that could be waited on, so they are asked again and again.
    pause = threading.Event()
    end = time.monotonic() + timeout
    while not is_done():
        if time.monotonic() > end:
            raise EnvtestError(f"{problem} after {timeout:g} s\n{explain()}".rstrip())
        pause.wait(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
