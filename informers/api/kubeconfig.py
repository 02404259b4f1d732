"""Find a cluster and who we are there: a kubeconfig, or the service account of the pod we run in.

Every fault is a `ConfigError` that names the file, the context and the field. No credential is ever in a text
or a `repr`. In a pod neither a kubeconfig nor the library that reads one is loaded.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from informers.meta.errors import ConfigError, printable

EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"

_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_HOST: Final = "KUBERNETES_SERVICE_HOST"
_PORT: Final = "KUBERNETES_SERVICE_PORT"


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Whom to act as, if the cluster lets us."""

    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """A program that says who we are; arguments and environment may hold secrets and are left out of the `repr`."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_version: str = EXEC_VERSIONS[0]
    install_hint: str = ""
    provide_cluster_info: bool = False
    cluster_extension: str = field(default="", repr=False)  # JSON, for the plugin alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Where a cluster is and who we are there; credentials are left out of its `repr`.

    Data (`ca_data`, `cert_data`, `key_data`: PEM) wins over the file of the same purpose. A `token_file` wins over
    `token` and is read again from time to time, as are certificate files. An empty `proxy_url` means: as the
    environment says. A program (`exec`) is asked only where no other credential is given.
    Raises `ConfigError` when `server` or `proxy_url` is not a usable URL, or parts do not fit together.
    """

    server: str
    namespace: str = "default"
    token: str = field(default="", repr=False)
    token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    cert_file: str = ""
    key_file: str = ""
    cert_data: bytes = field(default=b"", repr=False)
    key_data: bytes = field(default=b"", repr=False)
    ca_file: str = ""
    ca_data: bytes = field(default=b"", repr=False)
    insecure: bool = False
    strict_x509: bool = True
    server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    impersonation: Impersonation = Impersonation()
    exec: ExecPlugin | None = None
    source: str = "configuration"

    def __post_init__(self) -> None:
        _check_url(self.server, f"{self.source}: server", schemes=("http", "https"))
        if self.proxy_url:
            check_proxy_url(self.proxy_url, f"{self.source}: proxy-url")
        if bool(self.cert_file or self.cert_data) != bool(self.key_file or self.key_data):
            msg = f"{self.source}: client-certificate and client-key belong together, found only one of them"
            raise ConfigError(msg)
        if self.token and not is_token(self.token):
            msg = f"{self.source}: token holds characters that no token has"
            raise ConfigError(msg)
        for name, text in (("username", self.username), ("password", self.password)):
            if not is_unicode(text):
                msg = f"{self.source}: {name} holds half of a character"
                raise ConfigError(msg)
        if self.server_name and not _is_host_name(self.server_name):
            msg = f"{self.source}: tls-server-name {printable(self.server_name, limit=80)!r} is not a host name"
            raise ConfigError(msg)
        person = self.impersonation
        extra = [text for pair in person.extra for text in pair]
        if not all(map(_is_header_text, (person.user, *person.groups, person.uid, *extra))):
            msg = f"{self.source}: as, as-groups, as-uid and as-user-extra must not hold control characters"
            raise ConfigError(msg)
        if not person.user and (person.groups or person.uid or person.extra):
            msg = f"{self.source}: as-groups, as-uid and as-user-extra need as"
            raise ConfigError(msg)


def is_token(text: str) -> bool:
    """Tell whether `text` can stand in an Authorization header."""
    return bool(text) and text.isascii() and all("!" <= char <= "~" for char in text)


def is_unicode(text: str) -> bool:
    """Tell whether `text` can be sent: halves of surrogate pairs, as JSON and YAML can name them, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_token(path: str) -> str:
    """Read a token file, white space stripped; raise `ConfigError` when it cannot be read or holds no token."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        msg = f"token file {path}: {_reason(error)}"
        raise ConfigError(msg) from None
    if not is_token(token):
        msg = f"token file {path}: {'holds characters that no token has' if token else 'is empty'}"
        raise ConfigError(msg)
    return token


def check_proxy_url(url: str, what: str) -> None:
    """Raise `ConfigError` when `url` is not that of an HTTP proxy; its user and password are never in the text."""
    _check_url(url, what, schemes=("http", "https"), may_have_user=True)


def load_in_cluster(environ: Mapping[str, str] | None = None) -> ClientConfig:
    """Use the service account of the pod we run in.

    Raises `ConfigError` that names the variable or file that is missing.
    """
    env = os.environ if environ is None else environ
    missing = missing_in_cluster(env)
    if missing:
        msg = f"in-cluster configuration: {missing}"
        raise ConfigError(msg)
    folder = _service_account(env)
    host, port = env[_HOST], env[_PORT]
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    server = f"https://{host}:{port}"
    _check_url(server, f"in-cluster configuration: server, from {_HOST} and {_PORT}", schemes=("https",))
    read_token(str(folder / "token"))
    return ClientConfig(
        server=server,
        namespace=_read_namespace(folder / "namespace"),
        token_file=str(folder / "token"),
        ca_file=_readable_pem(folder / "ca.crt", "in-cluster configuration"),
        source="in-cluster configuration",
    )


def load_kubeconfig(paths: Sequence[str | Path]) -> ClientConfig:
    """Use the current context of one kubeconfig, or of several merged: what comes first wins.

    Raises `ConfigError` that names the file, the context and the field.
    """
    return read_kubeconfig(paths).client_config()


def read_kubeconfig(paths: Sequence[str | Path]) -> Kubeconfig:
    """Read one kubeconfig, or several to be merged. Raises `ConfigError` that names the file."""
    return Kubeconfig([_read_file(Path(path)) for path in paths])


def _service_account(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("KUBE_INFORMERS_SERVICEACCOUNT") or _SERVICE_ACCOUNT)


def missing_in_cluster(environ: Mapping[str, str] | None = None) -> str:
    """Return what there would have to be if we ran in a pod; `""` when it is all there."""
    environ = os.environ if environ is None else environ
    for name in (_HOST, _PORT):
        if not environ.get(name):
            return f"{name} is not set"
    token = _service_account(environ) / "token"
    return "" if token.exists() else f"{token}: no such file"


def pod_namespace() -> str:
    """Return the namespace of the pod we run in, `""` outside of one."""
    return _read_namespace(_service_account(os.environ) / "namespace") if not missing_in_cluster() else ""


def _read_namespace(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "default"
    except (OSError, ValueError) as error:
        msg = f"in-cluster configuration: {path}: {_reason(error)}"
        raise ConfigError(msg) from None


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One named cluster, user or context, and the file it stands in."""

    path: Path
    value: Mapping[str, Any]
    what: str  # for messages: the file, and the entry's kind and name

    def text(self, key: str) -> str:
        """Return the text at `key`, `""` if it is absent."""
        value = self.value.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            msg = f"{self.what}: {key} must be text, found {_kind_of(value)}"
            raise ConfigError(msg)
        return value

    def flag(self, key: str) -> bool:
        """Return the boolean at `key`, False if it is absent."""
        value = self.value.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            msg = f"{self.what}: {key} must be true or false, found {_kind_of(value)}"
            raise ConfigError(msg)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the list of texts at `key`, empty if it is absent."""
        value = self.value.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            msg = f"{self.what}: {key} must be a list of texts"
            raise ConfigError(msg)
        return tuple(value)

    def data(self, key: str) -> bytes:
        """Return the base64 data at `key`, `b""` if it is absent."""
        text = self.text(key)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            pass
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            msg = f"{self.what}: {key} is not base64"
            raise ConfigError(msg) from None

    def file(self, key: str) -> str:
        """Return the path at `key`, relative paths taken from the kubeconfig's folder; `""` if it is absent."""
        text = self.text(key)
        if "\0" in text:
            msg = f"{self.what}: {key} is not a path"
            raise ConfigError(msg)
        return str(self.path.parent / text) if text else ""


class Kubeconfig:
    """Several kubeconfigs as one: for each name the first file that has it counts. From `read_kubeconfig`."""

    def __init__(self, files: Sequence[_File]) -> None:
        self._files = files
        self._clusters = self._entries("clusters", "cluster")
        self._users = self._entries("users", "user")
        self._contexts = self._entries("contexts", "context")

    def __str__(self) -> str:
        """Name the files."""
        return f"kubeconfig {self._names()}"

    def context_names(self) -> Sequence[str]:
        """Return the names of all contexts, sorted."""
        return sorted(self._contexts)

    def client_config(self, name: str = "") -> ClientConfig:
        """Return where the cluster of a context is, by default of the current one, and who we are there.

        Raises `ConfigError` that names the file, the context and the field.
        """
        context = self._context(name)
        cluster = self._referred(context, "cluster", self._clusters)
        user = self._referred(context, "user", self._users)
        _refuse_auth_provider(user)
        server = cluster.text("server")
        if not server:
            msg = f"{cluster.what}: server is empty"
            raise ConfigError(msg)
        ca_data = cluster.data("certificate-authority-data")
        cert_data, key_data = user.data("client-certificate-data"), user.data("client-key-data")
        token_file = user.file("tokenFile")
        if token_file:
            _check_token_file(token_file, user)
        return ClientConfig(
            server=server,
            namespace=context.text("namespace") or "default",
            token="" if token_file else user.text("token").strip(),
            token_file=token_file,
            username=user.text("username"),
            password=user.text("password"),
            cert_data=_checked_pem(cert_data, f"{user.what}: client-certificate-data"),
            cert_file="" if cert_data else _pem_file(user, "client-certificate"),
            key_data=_checked_pem(key_data, f"{user.what}: client-key-data"),
            key_file="" if key_data else _pem_file(user, "client-key"),
            ca_data=_checked_pem(ca_data, f"{cluster.what}: certificate-authority-data"),
            ca_file="" if ca_data else _pem_file(cluster, "certificate-authority"),
            insecure=cluster.flag("insecure-skip-tls-verify"),
            server_name=cluster.text("tls-server-name"),
            proxy_url=cluster.text("proxy-url"),
            impersonation=_impersonation(user),
            exec=_exec_plugin(user, cluster),
            source=context.what,
        )

    def current_context(self) -> str:
        """Return the name of the current context. Raises `ConfigError` when there is none."""
        for file in self._files:
            name = file.content.get("current-context")
            if name is not None and not isinstance(name, str):
                msg = f"kubeconfig {file.path}: current-context must be text, found {_kind_of(name)}"
                raise ConfigError(msg)
            if name and name not in self._contexts:
                msg = f"kubeconfig {file.path}: current-context: {self._no_context(name)}"
                raise ConfigError(msg)
            if name:
                return name
        msg = f"kubeconfig {self._names()}: current-context is not set"
        raise ConfigError(msg)

    def _context(self, name: str) -> _Entry:
        if not name:
            return self._contexts[self.current_context()]
        try:
            return self._contexts[name]
        except KeyError:
            msg = f"kubeconfig {self._names()}: {self._no_context(name)}"
            raise ConfigError(msg) from None

    def _no_context(self, name: str) -> str:
        known = ", ".join(printable(each, limit=80) for each in self.context_names()) or "none"
        return f"no context is named {printable(name, limit=80)!r}, known are: {known}"

    def _referred(self, context: _Entry, key: str, entries: Mapping[str, _Entry]) -> _Entry:
        name = context.text(key)
        if not name:
            msg = f"{context.what}: {key} is empty"
            raise ConfigError(msg)
        if name not in entries:
            msg = f"{context.what}: {key}: {self._names()} has no {key} named {printable(name, limit=80)!r}"
            raise ConfigError(msg)
        found = entries[name]
        place = "" if found.path == context.path else f" of {found.path}"
        return replace(found, what=f"{context.what}: {key} {printable(name, limit=80)}{place}")

    def _entries(self, plural: str, singular: str) -> dict[str, _Entry]:
        found: dict[str, _Entry] = {}
        for file in self._files:
            items = file.content.get(plural)
            if items is None:
                continue
            if not isinstance(items, list):
                msg = f"kubeconfig {file.path}: {plural} must be a list, found {_kind_of(items)}"
                raise ConfigError(msg)
            for number, item in enumerate(items):
                name = item.get("name") if isinstance(item, dict) else None
                if not isinstance(name, str) or not name:
                    found_name = "" if name in (None, "") else f" that is text, found {_kind_of(name)}"
                    msg = f"kubeconfig {file.path}: {plural}[{number}] has no name{found_name}"
                    raise ConfigError(msg)
                value = item.get(singular)
                what = f"kubeconfig {file.path}: {singular} {printable(name, limit=80)}"
                if value is not None and not isinstance(value, dict):
                    msg = f"{what}: want a mapping, found {_kind_of(value)}"
                    raise ConfigError(msg)
                found.setdefault(name, _Entry(file.path, value or {}, what))
        return found

    def _names(self) -> str:
        return os.pathsep.join(str(file.path) for file in self._files)


def _read_file(path: Path) -> _File:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        msg = f"kubeconfig {path}: {_reason(error)}"
        raise ConfigError(msg) from None
    content = _parse(text, path)
    if not isinstance(content, dict):
        msg = f"kubeconfig {path}: want a mapping, found {_kind_of(content)}"
        raise ConfigError(msg)
    return _File(path, content)


def _parse(text: str, path: Path) -> object:
    # Costly to import, and not needed in a pod.
    import yaml
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        # One file at a time, as text: given paths, it splits them at colons and lets the last current-context win.
        content: object = KubeConfigMerger(io.StringIO(text)).config  # type: ignore[no-untyped-call] # it has no types
    except ConfigException:
        msg = f"kubeconfig {path}: is empty"
        raise ConfigError(msg) from None
    except yaml.YAMLError as error:
        # Its text quotes the line, which may hold a credential.
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        is_second = getattr(error, "context", None) == "expected a single document in the stream"
        msg = f"kubeconfig {path}: {'want one YAML document, found another' if is_second else 'is not YAML'}{place}"
        raise ConfigError(msg) from None
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError, IndexError, OverflowError):
        # What PyYAML's constructors let through for odd scalars (`!!int x`, `2001-99-99`) and endless nesting.
        msg = f"kubeconfig {path}: is not YAML that can be read"
        raise ConfigError(msg) from None
    return content


def _impersonation(user: _Entry) -> Impersonation:
    extra = user.value.get("as-user-extra")
    if extra is not None and not isinstance(extra, dict):
        msg = f"{user.what}: as-user-extra must be a mapping, found {_kind_of(extra)}"
        raise ConfigError(msg)
    pairs: list[tuple[str, str]] = []
    for key, values in (extra or {}).items():
        if not isinstance(key, str) or not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            msg = f"{user.what}: as-user-extra must map texts to lists of texts"
            raise ConfigError(msg)
        pairs += [(key, value) for value in values]
    return Impersonation(user.text("as"), user.texts("as-groups"), user.text("as-uid"), tuple(pairs))


def _refuse_auth_provider(user: _Entry) -> None:
    found = user.value.get("auth-provider")
    if not found:
        return
    name = found.get("name") if isinstance(found, dict) else None
    shown = f" {printable(name, limit=40)}" if isinstance(name, str) else ""
    msg = (
        f"{user.what}: auth-provider{shown} is not supported, as kubectl has not supported it since 1.26: use the exec "
        "plugin that took its place; supported are exec, token, tokenFile, client-certificate with client-key, and "
        "username with password"
    )
    raise ConfigError(msg)


def _exec_plugin(user: _Entry, cluster: _Entry) -> ExecPlugin | None:
    value = user.value.get("exec")
    if value is None:
        return None
    if not isinstance(value, dict):
        msg = f"{user.what}: exec must be a mapping, found {_kind_of(value)}"
        raise ConfigError(msg)
    found = _Entry(user.path, value, f"{user.what}: exec")
    command, version = found.text("command"), found.text("apiVersion")
    if not command or "\0" in command:
        msg = f"{found.what}: command is empty"
        raise ConfigError(msg)
    if version not in EXEC_VERSIONS:
        msg = f"{found.what}: apiVersion: want {' or '.join(EXEC_VERSIONS)}, found {printable(version, limit=80)!r}"
        raise ConfigError(msg)
    if found.text("interactiveMode") == "Always":
        msg = f"{found.what}: interactiveMode is Always, but nobody is there to answer: want Never or IfAvailable"
        raise ConfigError(msg)
    args = found.texts("args")
    pairs = _exec_environment(found)
    if not all(
        is_unicode(text) and "\0" not in text for text in (command, *args, *(t for pair in pairs for t in pair))
    ):
        msg = f"{found.what}: command, args and env must be text without NUL"
        raise ConfigError(msg)
    if "/" in command:
        command = str(found.path.parent.absolute() / command)  # as kubectl takes it: from the kubeconfig's folder
    return ExecPlugin(
        command=command,
        args=args,
        env=pairs,
        api_version=version,
        install_hint=found.text("installHint"),
        provide_cluster_info=found.flag("provideClusterInfo"),
        cluster_extension=_exec_extension(cluster),
    )


def _exec_environment(found: _Entry) -> tuple[tuple[str, str], ...]:
    items = found.value.get("env")
    pairs: list[tuple[str, str]] = []
    for item in items or () if isinstance(items, list | None) else (None,):
        name, value = (item.get("name"), item.get("value", "")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not name or "=" in name or not isinstance(value, str):
            msg = f"{found.what}: env must be a list of name and value, both text"
            raise ConfigError(msg)
        pairs.append((name, value))
    return tuple(pairs)


def _exec_extension(cluster: _Entry) -> str:
    """Return what the cluster has to tell plugins, as JSON; `""` if there is nothing."""
    items = cluster.value.get("extensions")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("name") == _EXEC_EXTENSION:
            try:
                return json.dumps(item.get("extension"))
            except (TypeError, ValueError, RecursionError):
                msg = f"{cluster.what}: extension {_EXEC_EXTENSION} is not JSON"
                raise ConfigError(msg) from None
    return ""


def _check_token_file(path: str, user: _Entry) -> None:
    try:
        read_token(path)
    except ConfigError as error:
        msg = f"{user.what}: tokenFile: {error}"
        raise ConfigError(msg) from None


def _pem_file(entry: _Entry, key: str) -> str:
    path = entry.file(key)
    return _readable_pem(Path(path), f"{entry.what}: {key}") if path else ""


def _readable_pem(path: Path, what: str) -> str:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        msg = f"{what}: {path}: {_reason(error)}"
        raise ConfigError(msg) from None
    _checked_pem(data or b"?", f"{what}: {path}")
    return str(path)


def _checked_pem(data: bytes, what: str) -> bytes:
    if data and b"-----BEGIN " not in data:
        msg = f"{what}: is not PEM"
        raise ConfigError(msg)
    return data


def _check_url(url: str, what: str, *, schemes: Sequence[str], may_have_user: bool = False) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        msg = f"{what} is not a URL"
        raise ConfigError(msg) from None
    if parts.scheme not in schemes:
        msg = f"{what}: want {' or '.join(schemes)}://HOST[:PORT], found {_scheme_shown(url)}"
        raise ConfigError(msg)
    if (
        not parts.hostname
        or port == 0
        or parts.query
        or parts.fragment
        or ("@" in parts.netloc and not may_have_user)
        or not all("!" <= char <= "~" for char in url)
    ):
        msg = f"{what}: want {' or '.join(schemes)}://HOST[:PORT], without user, query or white space"
        raise ConfigError(msg)


def _is_header_text(text: str) -> bool:
    return is_unicode(text) and not any(char < " " or char == "\x7f" for char in text)


def _is_host_name(text: str) -> bool:
    try:
        return (
            bool(text.encode("idna"))
            and not text.startswith(".")
            and not any(map(str.isspace, text))
            and "\0" not in text
        )
    except UnicodeError:
        return False


def _scheme_shown(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return f"{printable(scheme, limit=20)}://" if separator else "no scheme"


def _kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    names = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "is not text" if isinstance(error, UnicodeError) else "cannot be read"
