from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from informers.api.kubeconfig import ClientConfig, ExecPlugin, Impersonation, load_in_cluster, load_kubeconfig
from informers.meta.errors import ConfigError

if TYPE_CHECKING:
    from tests.api.conftest import Certificates

S3CRET = "s3cret-value"


def kubeconfig(**changes: Any) -> dict[str, Any]:
    """A kubeconfig that works, with changes to its cluster, user or context, or at the top."""
    found: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443", **changes.pop("cluster", {})}}],
        "users": [{"name": "u", "user": {**changes.pop("user", {"token": S3CRET})}}],
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u", **changes.pop("context", {})}}],
    }
    return {**found, **changes}


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(content: object, name: str = "config") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return make


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBE_INFORMERS_SERVICEACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def loaded(path: Path) -> ClientConfig:
    return load_kubeconfig([path])


def test_server_and_token_are_found(write: Write) -> None:
    path = write(kubeconfig(context={"namespace": "team"}))

    config = loaded(path)

    assert (config.server, config.namespace, config.token) == ("https://127.0.0.1:6443", "team", S3CRET)
    assert config.source == f"kubeconfig {path}: context dev"


def test_everything_a_cluster_and_user_can_say_is_read(
    write: Write, certificates: Certificates, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("from-file\n")
    pem = base64.encodebytes(certificates.ca).decode()  # in lines, as some tools write it
    config = loaded(
        write(
            kubeconfig(
                cluster={
                    "certificate-authority-data": pem,
                    "tls-server-name": "kube.test",
                    "proxy-url": f"http://ann:{S3CRET}@proxy:3128",
                    "insecure-skip-tls-verify": True,
                },
                user={
                    "token": "ignored",
                    "tokenFile": "token",
                    "username": "ann",
                    "password": S3CRET,
                    "client-certificate": str(certificates.cert_file),
                    "client-key-data": base64.b64encode(certificates.key_file.read_bytes()).decode(),
                    "as": "bob",
                    "as-uid": "7",
                    "as-groups": ["g1", "g2"],
                    "as-user-extra": {"reason": ["a", "b"]},
                },
            )
        )
    )

    assert config == ClientConfig(
        server="https://127.0.0.1:6443",
        token_file=str(tmp_path / "token"),
        username="ann",
        password=S3CRET,
        cert_file=str(certificates.cert_file),
        key_data=certificates.key_file.read_bytes(),
        ca_data=certificates.ca,
        server_name="kube.test",
        proxy_url=f"http://ann:{S3CRET}@proxy:3128",
        insecure=True,
        impersonation=Impersonation("bob", ("g1", "g2"), "7", (("reason", "a"), ("reason", "b"))),
        source=config.source,
    )
    assert S3CRET not in repr(config)
    assert "BEGIN" not in repr(config)


def test_relative_paths_are_relative_to_their_file(write: Write, certificates: Certificates, tmp_path: Path) -> None:
    for name in ("ca.crt", "server.crt", "server.key"):
        write((certificates.ca_file.parent / name).read_text(), f"pki/{name}")
    path = write(
        kubeconfig(
            cluster={"certificate-authority": "../pki/ca.crt"},
            user={"client-certificate": "../pki/server.crt", "client-key": str(tmp_path / "pki/server.key")},
        ),
        "conf/config",
    )

    config = loaded(path)

    assert Path(config.ca_file).resolve() == tmp_path / "pki/ca.crt"
    assert Path(config.cert_file).resolve() == tmp_path / "pki/server.crt"


def test_of_several_files_the_first_wins_and_parts_may_come_from_different_ones(write: Write) -> None:
    first = kubeconfig(users=[], **{"current-context": ""})
    second = kubeconfig(cluster={"server": "https://other"}, user={"token": "two"})
    third = kubeconfig(user={"token": "three"}, **{"current-context": "nope"})

    config = load_kubeconfig([write(first, "1"), write(second, "2"), write(third, "3")])

    assert (config.server, config.token) == ("https://127.0.0.1:6443", "two")


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "login"}


def test_exec_plugin_is_read_with_what_the_cluster_has_to_tell_it(write: Write, tmp_path: Path) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    plugin = {
        **EXEC,
        "command": "bin/login",
        "args": ["--for", S3CRET],
        "env": [{"name": "PASSWORD", "value": S3CRET}],
        "installHint": "get it there",
        "provideClusterInfo": True,
        "interactiveMode": "IfAvailable",
    }

    config = loaded(write(kubeconfig(cluster={"extensions": [extension]}, user={"exec": plugin})))

    assert config.exec == ExecPlugin(
        command=str(tmp_path / "bin/login"),
        args=("--for", S3CRET),
        env=(("PASSWORD", S3CRET),),
        install_hint="get it there",
        provide_cluster_info=True,
        cluster_extension='{"audience": "a"}',
    )
    assert S3CRET not in repr(config)


def test_exec_plugin_without_a_folder_is_looked_for_in_path(write: Write) -> None:
    config = loaded(write(kubeconfig(user={"exec": EXEC})))

    assert config.exec is not None
    assert (config.exec.command, config.exec.provide_cluster_info) == ("login", False)


BROKEN: list[tuple[object, str]] = [
    ("", "config: is empty"),
    ("a: [", "config: is not YAML at line 1"),
    (f"token: {S3CRET}\nx: [\n: {S3CRET}", "config: is not YAML at line"),
    ("[1]", "config: want a mapping, found a list"),
    ("word", "config: want a mapping, found text"),
    ("when: 2001-99-99", "config: is not YAML that can be read"),
    ({"clusters": []}, "config: current-context is not set"),
    (kubeconfig(**{"current-context": 7}), "config: current-context must be text, found a number"),
    (kubeconfig(**{"current-context": "x"}), "config: current-context: no context is named 'x', known are: dev"),
    (kubeconfig(contexts={}), "config: contexts must be a list, found a mapping"),
    (kubeconfig(users=[{"user": {}}]), r"config: users\[0\] has no name"),
    (kubeconfig(users=[{"name": 7, "user": {}}]), r"config: users\[0\] has no name that is text, found a number"),
    (f"a: 1\n---\ntoken: {S3CRET}", "config: want one YAML document, found another at line 2"),
    (kubeconfig(users=[S3CRET]), r"config: users\[0\] has no name"),
    (kubeconfig(users=[{"name": "u", "user": S3CRET}]), "config: user u: want a mapping, found text"),
    (kubeconfig(context={"cluster": None}), "config: context dev: cluster is empty"),
    (kubeconfig(context={"user": ""}), "config: context dev: user is empty"),
    (kubeconfig(context={"user": "x"}), "config: context dev: user: .* has no user named 'x'"),
    (kubeconfig(cluster={"server": ""}), "config: context dev: cluster c: server is empty"),
    (kubeconfig(cluster={"server": 7}), "config: context dev: cluster c: server must be text, found a number"),
    (kubeconfig(cluster={"server": "ftp://x"}), "context dev: server: want http or https://HOST"),
    (kubeconfig(cluster={"server": f"https://a:{S3CRET}@x"}), "context dev: server: want"),
    (kubeconfig(cluster={"server": "https://x:99999"}), "context dev: server is not a URL"),
    (kubeconfig(cluster={"insecure-skip-tls-verify": "yes"}), "cluster c: insecure-skip-tls-verify must be true"),
    (kubeconfig(cluster={"proxy-url": f"socks5://a:{S3CRET}@x"}), "context dev: proxy-url: want http or https"),
    (
        kubeconfig(cluster={"certificate-authority": "no.crt"}),
        "cluster c: certificate-authority: .*no.crt: No such file",
    ),
    (kubeconfig(cluster={"certificate-authority": "config"}), "cluster c: certificate-authority: .*: is not PEM"),
    (kubeconfig(cluster={"certificate-authority": "a\0b"}), "cluster c: certificate-authority is not a path"),
    (kubeconfig(cluster={"certificate-authority-data": "%"}), "cluster c: certificate-authority-data is not base64"),
    (kubeconfig(cluster={"certificate-authority-data": "czNjcmV0"}), "certificate-authority-data: is not PEM"),
    (kubeconfig(user={"client-key-data": S3CRET}), "user u: client-key-data is not base64"),
    (
        kubeconfig(user={"client-certificate-data": "LS0tLS1CRUdJTiA="}),
        "client-certificate and client-key belong together",
    ),
    (kubeconfig(user={"token": f"{S3CRET}\nx"}), "context dev: token holds characters that no token has"),
    (kubeconfig(user={"token": [S3CRET]}), "user u: token must be text, found a list"),
    (kubeconfig(user={"tokenFile": "no-such"}), "user u: tokenFile: token file .*no-such: No such file"),
    (kubeconfig(user={"exec": "x"}), "user u: exec must be a mapping, found text"),
    (kubeconfig(user={"exec": {**EXEC, "command": ""}}), "user u: exec: command is empty"),
    (
        kubeconfig(user={"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
        r"user u: exec: apiVersion: want client.authentication.k8s.io/v1 or .*/v1beta1, found '.*/v1alpha1'",
    ),
    (kubeconfig(user={"exec": {"command": "x"}}), "user u: exec: apiVersion: want .*, found ''"),
    (kubeconfig(user={"exec": {**EXEC, "interactiveMode": "Always"}}), "exec: interactiveMode is Always, but nobody"),
    (kubeconfig(user={"exec": {**EXEC, "args": S3CRET}}), "user u: exec: args must be a list"),
    (kubeconfig(user={"exec": {**EXEC, "args": [f"{S3CRET}\0"]}}), "exec: command, args and env must be text"),
    (kubeconfig(user={"exec": {**EXEC, "env": {"A": S3CRET}}}), "exec: env must be a list of name and value"),
    (kubeconfig(user={"exec": {**EXEC, "env": [{"name": "A", "value": 7}]}}), "exec: env must be a list of name"),
    (kubeconfig(user={"auth-provider": {"name": "gcp"}}), "user u: auth-provider gcp is not supported, .* exec"),
    (kubeconfig(user={"auth-provider": {"config": {"id-token": S3CRET}}}), "user u: auth-provider is not supported"),
    (kubeconfig(user={"username": "a", "password": f"{S3CRET}\ud800"}), "context dev: password holds half of a char"),
    (kubeconfig(user={"as": f"{S3CRET}\nX: y"}), "context dev: as, as-groups, as-uid and as-user-extra must not"),
    (kubeconfig(user={"as": "a", "as-user-extra": {"k": [f"{S3CRET}\x7f"]}}), "context dev: as, as-groups"),
    (kubeconfig(cluster={"tls-server-name": ".a"}), "context dev: tls-server-name '.a' is not a host name"),
    (kubeconfig(cluster={"tls-server-name": "a..b"}), "context dev: tls-server-name"),
    (kubeconfig(cluster={"tls-server-name": "a\0b"}), "context dev: tls-server-name"),
    (kubeconfig(cluster={"tls-server-name": "a" * 64}), "context dev: tls-server-name"),
    (kubeconfig(user={"as-groups": "g"}), "user u: as-groups must be a list"),
    (kubeconfig(user={"as-groups": ["g"]}), "context dev: as-groups, as-uid and as-user-extra need as"),
    (kubeconfig(user={"as": "a", "as-user-extra": {"x": S3CRET}}), "user u: as-user-extra must map"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN, ids=range(len(BROKEN)))
def test_fault_names_file_and_field_and_no_credential(content: object, message: str, write: Write) -> None:
    path = write(content)

    with pytest.raises(ConfigError, match=message) as raised:
        loaded(path)

    assert str(path) in str(raised.value)
    assert S3CRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")

    with pytest.raises(ConfigError, match=r"kubeconfig .*none: No such file or directory"):
        loaded(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"kubeconfig .*: Is a directory"):
        loaded(tmp_path)
    with pytest.raises(ConfigError, match="binary: is not text"):
        loaded(tmp_path / "binary")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200))
def test_any_text_is_a_config_or_a_config_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_text(text, encoding="utf-8", errors="replace")

    with suppress(ConfigError):
        assert loaded(path).server


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just("c"), st.just("dev")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["name", "cluster", "user", "context", "server", "token", "exec", "as", "clusters", "users"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(
        st.sampled_from(["clusters", "users", "contexts", "current-context", "cluster", "user", "context"]), JSON
    )
)
def test_any_shape_is_a_config_or_a_config_error(changes: dict[str, Any], tmp_path: Path) -> None:
    parts = {
        key: value
        for key, value in changes.items()
        if key in {"cluster", "user", "context"} and isinstance(value, dict)
    }
    whole = {key: value for key, value in changes.items() if key not in {"cluster", "user", "context"}}
    path = tmp_path / "any"
    path.write_text(yaml.safe_dump(kubeconfig(**parts, **whole)))

    with suppress(ConfigError):
        assert loaded(path).server


@pytest.fixture
def pod(tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a pod finds in its file system and environment."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("pod-token\n")
    (folder / "ca.crt").write_bytes(certificates.ca)
    (folder / "namespace").write_text("team\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBE_INFORMERS_SERVICEACCOUNT", str(folder))
    return folder


def test_pod_uses_its_service_account(pod: Path) -> None:
    assert load_in_cluster() == ClientConfig(
        server="https://10.0.0.1:443",
        namespace="team",
        token_file=str(pod / "token"),
        ca_file=str(pod / "ca.crt"),
        source="in-cluster configuration",
    )


def test_address_of_a_pod_may_be_ipv6(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")

    assert load_in_cluster().server == "https://[fd00::1]:443"


def test_fault_of_a_part_in_another_file_names_the_context_and_both_files(write: Write) -> None:
    whole = kubeconfig(cluster={"server": ""})
    first = write({name: whole[name] for name in ("current-context", "contexts", "users")}, "first")
    second = write({"clusters": whole["clusters"]}, "second")

    with pytest.raises(ConfigError) as raised:
        load_kubeconfig([first, second])

    assert str(raised.value) == f"kubeconfig {first}: context dev: cluster c of {second}: server is empty"


@pytest.mark.parametrize(("host", "port"), [("a b", "443"), ("10.0.0.1", "x"), ("10.0.0.1", "99999")])
def test_address_of_a_pod_that_is_none_names_its_variables(
    pod: Path, monkeypatch: pytest.MonkeyPatch, host: str, port: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)

    with pytest.raises(ConfigError, match="from KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"):
        load_in_cluster()


@pytest.mark.parametrize("missing", ["token", "ca.crt", "namespace"])
def test_missing_file_of_a_pod_is_named(missing: str, pod: Path) -> None:
    (pod / missing).unlink()

    with pytest.raises(ConfigError, match=f"{missing}"):
        load_in_cluster()


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
def test_missing_variable_of_a_pod_is_named(missing: str, pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(missing)

    with pytest.raises(ConfigError, match=f"{missing} is not set"):
        load_in_cluster()
