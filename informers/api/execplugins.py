"""Run the program that a kubeconfig names to say who we are: never interactive, on a thread of its own, ended on demand.

Arguments and environment are made by the official client's own provider. It does not run it: it would lend the
program our terminal, put what it says on stderr into errors, and wait for it for ever.

What is surprising: the program's stderr is thrown away, as it may hold what must not be logged. And it writes into a
file rather than a pipe: a pipe ends when all have closed it who were given it, and a program may leave an agent behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from informers.api.kubeconfig import ClientConfig, ExecPlugin, is_token
from informers.meta.errors import ConnectError, printable
from informers.threads import start

if TYPE_CHECKING:
    import subprocess

_VERSION: Final = re.compile(r"[a-z0-9.]{1,60}/[a-z0-9]{1,20}")
_JOIN: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate and its key, in PEM."""

    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """What a program has said: a token (`""` = none), a certificate, and until when they are good."""

    token: str = field(repr=False)
    certificate: ClientCertificate | None
    expires: datetime | None


class PluginRun:
    """One run of a program. `ended` is called on its thread, with what it said or why that cannot be used."""

    def __init__(self, config: ClientConfig, ended: Callable[[PluginRun, ExecCredential | ConnectError], None]) -> None:
        assert config.exec is not None
        self._config = config
        self._plugin = config.exec
        self._ended = ended
        self._lock = threading.Lock()  # guards _process and _is_killed
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        # A daemon: not even a killed program has to end, while the system does something for it.
        self._thread = threading.Thread(target=self._run, name="exec-plugin", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        start(self._thread)

    def kill(self) -> None:
        """End the program and all that it has started; never waits."""
        with self._lock:
            self._is_killed = True
            process = self._process
        if process is not None:
            _kill(process)

    def join(self) -> None:
        """Wait for the thread, after `kill()`."""
        with suppress(RuntimeError):  # it is only just starting; it ends at once
            self._thread.join(_JOIN)

    def _run(self) -> None:
        outcome: ExecCredential | ConnectError
        try:
            outcome = self._credential()
        except ConnectError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - who waits must hear of an end, whatever it is
            outcome = self._failed(f"cannot be run: {type(error).__name__}")
        self._ended(self, outcome)

    def _credential(self) -> ExecCredential:
        args, environment = command_of(self._config, self._plugin)
        with _unnamed_file() as output:
            return self._answered(args, environment, output)

    def _answered(self, args: list[str], environment: Mapping[str, str], output: IO[bytes]) -> ExecCredential:
        import subprocess  # for who has a plugin only

        try:
            # A session of its own has no terminal that a password could be asked for on.
            process = subprocess.Popen(  # noqa: S603 - running it is what the kubeconfig asks for
                args,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise self._failed(self._not_started(error)) from None
        with self._lock:
            self._process = process
            is_killed = self._is_killed
        if is_killed:
            _kill(process)
        process.wait()
        with self._lock:
            self._process = None
        if process.returncode < 0:
            raise self._failed(f"was ended by signal {-process.returncode}")
        if process.returncode:
            raise self._failed(f"ended with status {process.returncode}; run it by hand to see what it says")
        try:
            # Not `read`: the file's position is shared with all that still write.
            answer = os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0)
            return read_credential(answer, self._plugin.api_version)
        except ValueError as error:
            raise self._failed(str(error)) from None

    def _not_started(self, error: Exception) -> str:
        hint = f"; {printable(self._plugin.install_hint, limit=500)}" if self._plugin.install_hint else ""
        if isinstance(error, FileNotFoundError):
            where = "" if "/" in self._plugin.command else " in PATH"
            return f"there is no such program{where}{hint}"
        return f"cannot be run: {getattr(error, 'strerror', None) or type(error).__name__}{hint}"

    def _failed(self, why: str) -> ConnectError:
        return ConnectError(f"{name_of(self._config)}: {why}")


def _unnamed_file() -> IO[bytes]:
    """Open a file that nobody else can find; in memory where the system can, as a token is on no disk then."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("exec-plugin"), "w+b")
    import tempfile  # costs memory in each process, and most have no program to ask

    return tempfile.TemporaryFile()


def name_of(config: ClientConfig) -> str:
    """Name the program and where it is configured, as messages begin."""
    assert config.exec is not None
    return f"{config.source}: exec plugin {printable(config.exec.command, limit=200)!r}"


def command_of(config: ClientConfig, plugin: ExecPlugin) -> tuple[list[str], Mapping[str, str]]:
    """Return what to run and in which environment."""
    # Loaded already where there is a kubeconfig, and a plugin comes from nowhere else.
    from kubernetes.config.exec_provider import ExecProvider
    from kubernetes.config.kube_config import ConfigNode

    given = {
        "command": plugin.command,
        "apiVersion": plugin.api_version,
        "args": list(plugin.args),
        "env": [{"name": name, "value": value} for name, value in plugin.env],
    }
    provider: Any = ExecProvider(ConfigNode("exec", given), None)  # type: ignore[no-untyped-call] # it has no types
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(config, plugin)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return list(provider.args), {**provider.env, "KUBERNETES_EXEC_INFO": json.dumps(info)}


def _cluster_info(config: ClientConfig, plugin: ExecPlugin) -> Mapping[str, Any]:
    authority = config.ca_data
    if not authority and config.ca_file:
        with suppress(OSError):
            authority = Path(config.ca_file).read_bytes()
    info = {
        "server": config.server,
        "tls-server-name": config.server_name,
        "insecure-skip-tls-verify": config.insecure,
        "certificate-authority-data": b64encode(authority).decode(),
        "proxy-url": config.proxy_url,
        "config": json.loads(plugin.cluster_extension) if plugin.cluster_extension else None,
    }
    return {name: value for name, value in info.items() if value}


def read_credential(output: bytes, api_version: str) -> ExecCredential:
    """Read what a program printed; raise `ValueError` that says what is wrong with it and quotes nothing of it."""
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        msg = f"its answer of {len(output)} bytes is not JSON; want an ExecCredential of {api_version}"
        raise ValueError(msg) from None
    if not isinstance(found, dict) or found.get("kind") != "ExecCredential":
        msg = f"its answer is no ExecCredential; want one of {api_version}"
        raise ValueError(msg)
    version = found.get("apiVersion")
    if version != api_version:
        shown = version if isinstance(version, str) and _VERSION.fullmatch(version) else "another one"
        msg = f"its answer has an apiVersion that the kubeconfig does not name: want {api_version}, found {shown}"
        raise ValueError(msg)
    status = found.get("status")
    if not isinstance(status, dict):
        msg = "its answer has no status"
        raise ValueError(msg)  # noqa: TRY004 - all that is wrong with an answer is
    token, cert, key = (_text(status, name) for name in ("token", "clientCertificateData", "clientKeyData"))
    if not (token or cert or key):
        msg = "its answer has neither a token nor a certificate in its status"
        raise ValueError(msg)
    if bool(cert) != bool(key):
        msg = f"its answer has {'a certificate without a key' if cert else 'a key without a certificate'}"
        raise ValueError(msg)
    if token and not is_token(token):
        msg = "the token in its answer holds characters that no token has"
        raise ValueError(msg)
    certificate = ClientCertificate(cert.encode(), key.encode()) if cert else None
    return ExecCredential(token, certificate, _date(status))


def _text(status: Mapping[str, Any], name: str) -> str:
    value = status.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        msg = f"status.{name} in its answer is not text"
        raise ValueError(msg)  # noqa: TRY004 - as above
    return value.strip() if name == "token" else value


def _date(status: Mapping[str, Any]) -> datetime | None:
    text = _text(status, "expirationTimestamp")
    if not text:
        return None
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        date = None
    if date is None or date.tzinfo is None:
        msg = "status.expirationTimestamp in its answer is not a date as RFC 3339 writes it"
        raise ValueError(msg)
    return date


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
