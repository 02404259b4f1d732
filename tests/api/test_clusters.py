"""Which clusters there are, what they are called, which is home; and what is the same cluster twice."""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from informers.api.clusters import Clusters, Limits
from informers.api.kubeconfig import ClientConfig
from informers.meta.errors import ConfigError

if TYPE_CHECKING:
    from tests.api.conftest import Certificates

S3CRET = "s3cret-value"


def kubeconfig(server: str = "https://127.0.0.1:6443", **changes: Any) -> dict[str, Any]:
    """A kubeconfig with one context, `dev`, that is the current one."""
    return several({"dev": (server, S3CRET)}, **{"current-context": "dev", **changes})


def several(contexts: Mapping[str, tuple[str, str]], **changes: Any) -> dict[str, Any]:
    """A kubeconfig with these contexts, each with a server and a token; none is the current one."""
    return {
        "clusters": [{"name": f"c-{name}", "cluster": {"server": server}} for name, (server, _) in contexts.items()],
        "users": [{"name": f"u-{name}", "user": {"token": token}} for name, (_, token) in contexts.items()],
        "contexts": [{"name": name, "context": {"cluster": f"c-{name}", "user": f"u-{name}"}} for name in contexts],
        **changes,
    }


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


THREE = several({name: (f"https://{name}", f"{S3CRET}-{name}") for name in ("a", "b", "c")}, **{"current-context": "b"})


def servers(clusters: Clusters) -> Mapping[str, str]:
    """Return by their values in references where the clusters are."""
    return {name: clusters.config(name).server for name in clusters.names()}


def test_pod_loads_neither_yaml_nor_the_kubeconfig_library(pod: Path) -> None:
    code = (
        "import sys; from informers.api.clusters import Clusters; Clusters.load();"
        "print(sorted({'yaml', 'kubernetes', 'requests', 'urllib3'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "[]"


def test_explicit_file_comes_first_then_the_variable_then_the_pod_then_the_home(
    pod: Path, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("explicit", "variable", "home/.kube/config"):
        write(kubeconfig(f"https://{name.partition('/')[0]}"), name)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}{os.pathsep}{tmp_path / 'variable'}")

    assert Clusters.load(str(tmp_path / "explicit")).config().server == "https://explicit"
    assert Clusters.load().config().server == "https://variable"
    monkeypatch.delenv("KUBECONFIG")
    assert Clusters.load().config().server == "https://10.0.0.1:443"
    (pod / "token").unlink()
    assert Clusters.load().config().server == "https://home"


def test_where_it_looked_is_told_when_there_is_no_cluster(pod: Path) -> None:
    (pod / "token").unlink()

    with pytest.raises(ConfigError, match=r"KUBECONFIG is not set; in-cluster: .*token: no such file; .*\.kube/config"):
        Clusters.load()


def test_variable_that_names_only_missing_files_is_a_fault(monkeypatch: pytest.MonkeyPatch, pod: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")

    with pytest.raises(ConfigError, match="kubeconfig /no/such/file: No such file"):
        Clusters.load()


def test_source_is_logged_once_without_credentials(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Clusters.load(write(kubeconfig()))

    assert [record.message for record in caplog.records if record.name.startswith("informers")] == ["cluster found"]
    assert S3CRET not in "".join(str(record.__dict__) for record in caplog.records)


def test_options_of_loading_reach_the_config_and_the_limits(write: Write) -> None:
    clusters = Clusters.load(
        write(kubeconfig()), skip_tls_verify=True, strict_x509=False, max_inflight=3, qps=1.5, burst=4
    )

    config = clusters.config()
    assert (config.insecure, config.strict_x509) == (True, False)
    assert clusters.limits == Limits(3, 1.5, 4)
    assert clusters.names() == ("",)


def test_clusters_know_their_names_the_home_cluster_first() -> None:
    config = ClientConfig(server="https://h")
    clusters = Clusters.of({"b": config, "": config, "a": config})

    assert clusters.names() == ("", "a", "b")
    assert clusters.written_names() == {"a": "a", "b": "b"}
    with pytest.raises(ConfigError, match="no cluster is named 'c'"):
        clusters.config("c")
    with pytest.raises(ConfigError, match="at least one"):
        Clusters.of({})


def test_one_cluster_without_a_choice_has_no_name(write: Write) -> None:
    clusters = Clusters.load(write(THREE))

    assert servers(clusters) == {"": "https://b"}
    assert clusters.written_names() == {}
    assert clusters.home().server == "https://b"


def test_the_one_context_named_is_home(write: Write) -> None:
    clusters = Clusters.load(write(THREE), contexts=["c"])

    assert servers(clusters) == {"": "https://c"}
    assert clusters.written_names() == {"c": ""}
    assert clusters.home().server == "https://c"


def test_of_several_contexts_the_current_one_is_home(write: Write) -> None:
    clusters = Clusters.load(write(THREE), contexts=["c", "main=b"])

    assert servers(clusters) == {"": "https://b", "c": "https://c"}
    assert clusters.written_names() == {"c": "c", "main": ""}


def test_a_current_context_that_is_not_among_those_named_is_home_for_the_lease_only(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        clusters = Clusters.load(write(THREE), contexts=["a", "c"], strict_x509=False)

    assert servers(clusters) == {"a": "https://a", "c": "https://c"}
    assert clusters.written_names() == {"a": "a", "c": "c"}
    assert (clusters.home().server, clusters.home().strict_x509) == ("https://b", False)
    assert [record.message for record in caplog.records] == ["cluster found"] * 3
    with pytest.raises(ConfigError, match="no cluster is named ''"):
        clusters.config()


def test_without_a_current_context_several_clusters_are_worked_with_but_have_no_home(write: Write) -> None:
    clusters = Clusters.load(write({**THREE, "current-context": ""}), contexts=["a", "c"])

    assert clusters.names() == ("a", "c")
    with pytest.raises(
        ConfigError, match=r"no home cluster, which holds the Lease: kubeconfig .*: current-context is not set"
    ):
        clusters.home()


def test_a_current_context_that_leads_where_a_named_one_does_is_that_one(write: Write) -> None:
    content = several(
        {"x": ("https://a/", "t"), "y": ("https://A:443", "t"), "z": ("https://z", "t")}, **{"current-context": "y"}
    )

    clusters = Clusters.load(write(content), contexts=["x", "z"])

    assert servers(clusters) == {"": "https://a/", "z": "https://z"}
    assert clusters.written_names() == {"x": "", "z": "z"}


def test_all_contexts_are_taken_with_other_characters_as_dashes(write: Write) -> None:
    content = several(
        {"aws:eu/One": ("https://a", "t"), "kind_two": ("https://b", "t"), "x.y-z": ("https://c", "t")},
        **{"current-context": "kind_two"},
    )

    clusters = Clusters.load(write(content), all_contexts=True)

    assert servers(clusters) == {"": "https://b", "aws-eu--ne": "https://a", "x.y-z": "https://c"}
    assert clusters.written_names() == {"aws-eu--ne": "aws-eu--ne", "kind-two": "", "x.y-z": "x.y-z"}


def test_all_contexts_may_be_given_aliases(write: Write) -> None:
    content = several({"@first": ("https://a", "t"), "b": ("https://b", "t")}, **{"current-context": "b"})

    with pytest.raises(ConfigError, match="context '@first': no cluster's name can be made of it"):
        Clusters.load(write(content), all_contexts=True)
    clusters = Clusters.load(write(content), contexts=["first=@first"], all_contexts=True)

    assert servers(clusters) == {"": "https://a", "b": "https://b"}


def test_of_all_contexts_those_of_one_cluster_are_folded_with_one_warning(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    content = several(
        {
            "a": ("https://one", "t"),
            "b": ("https://one", "t"),
            "c": ("https://one:443/", "t"),
            "d": ("https://one", "another"),
            "f": ("https://two", "t"),
            "e": ("https://two", "t"),
        },
        **{"current-context": "b"},
    )

    with caplog.at_level(logging.WARNING):
        clusters = Clusters.load(write(content), all_contexts=True)

    assert clusters.written_names() == {"b": "", "d": "d", "e": "e"}
    assert [record.message for record in caplog.records] == ["contexts are the same user of the same cluster"]


def test_two_named_contexts_of_one_cluster_are_refused_by_both_names(write: Write, certificates: Certificates) -> None:
    content = several({"a": ("https://one", "t"), "b": ("https://one", "t")})
    content["clusters"][0]["cluster"]["certificate-authority"] = str(certificates.ca_file)
    content["clusters"][1]["cluster"].update(
        {"certificate-authority-data": base64.b64encode(certificates.ca).decode(), "proxy-url": "http://proxy"}
    )
    content["contexts"][1]["context"]["namespace"] = "team"

    with pytest.raises(ConfigError, match="contexts 'a' and 'b' are the same user of the same cluster"):
        Clusters.load(write(content), contexts=["a", "b"])


@pytest.mark.parametrize("other", ["user", "ca", "path"])
def test_another_user_ca_or_path_is_another_cluster(write: Write, certificates: Certificates, other: str) -> None:
    content = several({"a": ("https://one", "t"), "b": ("https://one", "t")}, **{"current-context": "a"})
    if other == "user":
        content["users"][1]["user"]["token"] = "t2"
    elif other == "ca":
        content["clusters"][1]["cluster"]["certificate-authority"] = str(certificates.ca_file)
    else:
        content["clusters"][1]["cluster"]["server"] = "https://one/k8s/B"

    assert Clusters.load(write(content), contexts=["a", "b"]).names() == ("", "b")


def test_the_name_of_a_context_wins_over_an_alias(write: Write) -> None:
    content = several({"x=a": ("https://whole", "t"), "a": ("https://part", "t"), "y=x=a": ("https://long", "t")})
    path = write(content)

    with pytest.raises(ConfigError, match="context 'x=a': 'x=a' cannot be a cluster's name"):
        Clusters.load(path, contexts=["x=a"])
    assert Clusters.load(path, contexts=["b=a"]).config().server == "https://part"
    assert Clusters.load(path, contexts=["b=x=a"]).config().server == "https://whole"


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        (["nope"], "config: no context is named 'nope', known are: a, b, c"),
        (["x=nope"], "config: no context is named 'nope'"),
        (["x="], "context 'x=': want NAME or ALIAS=NAME, found no NAME"),
        (["=a"], "context '=a': '' cannot be a cluster's name"),
        (["A=a"], "context 'A=a': 'A' cannot be a cluster's name"),
        (["a-=a"], "cannot be a cluster's name"),
        (["a" * 64 + "=a"], "cannot be a cluster's name"),
        (["a", "x=a"], "contexts 'a' and 'x=a' are the same user of the same cluster"),
        (["x=a", "x=b"], "contexts 'x=a' and 'x=b' would both be cluster 'x'"),
        (["b=a", "b"], "contexts 'b=a' and 'b' would both be cluster 'b'"),
    ],
)
def test_a_context_that_cannot_be_taken_is_told(write: Write, contexts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Clusters.load(write(THREE), contexts=contexts)

    assert S3CRET not in str(caught.value)


def test_two_contexts_whose_names_become_one_are_refused(write: Write) -> None:
    content = several({"a/b": ("https://a", "t"), "a_b": ("https://b", "t")})

    with pytest.raises(ConfigError, match="contexts 'a/b' and 'a_b' would both be cluster 'a-b'"):
        Clusters.load(write(content), all_contexts=True)


def test_a_broken_context_is_named_with_its_file_also_among_all(write: Write) -> None:
    content = several({"a": ("https://a", "t"), "b": ("", "t")})

    with pytest.raises(ConfigError, match=r"kubeconfig .*config: context b: cluster c-b: server is empty"):
        Clusters.load(write(content), all_contexts=True)


def test_contexts_come_from_all_files_and_paths_are_relative_to_theirs(
    write: Write, monkeypatch: pytest.MonkeyPatch, certificates: Certificates, tmp_path: Path
) -> None:
    first = several({"a": ("https://a", "t")})
    second = several({"a": ("https://not-this", "t"), "b": ("https://b", "t")}, **{"current-context": "b"})
    second["clusters"][1]["cluster"]["certificate-authority"] = "pki/ca.crt"
    write(certificates.ca.decode(), "two/pki/ca.crt")
    paths = [write(first, "one/config"), tmp_path / "missing", write(second, "two/config")]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))

    clusters = Clusters.load(all_contexts=True)

    assert servers(clusters) == {"": "https://b", "a": "https://a"}
    assert clusters.config().ca_file == str(tmp_path / "two/pki/ca.crt")
    with pytest.raises(ConfigError, match=r"one/config:.*two/config: no context is named 'x', known are: a, b"):
        Clusters.load(contexts=["x"])


def test_contexts_without_a_kubeconfig_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"context 'a': there is no kubeconfig: KUBECONFIG is not set; .*no such"):
        Clusters.load(contexts=["a"])
    with pytest.raises(ConfigError, match="all contexts: there is no kubeconfig"):
        Clusters.load(all_contexts=True)


def test_a_kubeconfig_without_contexts_is_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"kubeconfig .*config: there is no context"):
        Clusters.load(write({"clusters": []}), all_contexts=True)


def test_in_a_pod_its_own_cluster_is_home_for_the_lease_only(pod: Path, write: Write) -> None:
    clusters = Clusters.load(write(THREE), contexts=["c"])

    assert servers(clusters) == {"c": "https://c"}
    assert clusters.written_names() == {"c": "c"}
    assert clusters.home().server == "https://10.0.0.1:443"


def test_in_a_pod_its_own_cluster_may_be_named(pod: Path, write: Write) -> None:
    clusters = Clusters.load(write(THREE), contexts=["in-cluster", "c"])

    assert servers(clusters) == {"": "https://10.0.0.1:443", "c": "https://c"}
    assert clusters.written_names() == {"c": "c", "in-cluster": ""}
    assert Clusters.load(contexts=["in-cluster"]).written_names() == {"in-cluster": ""}
    assert Clusters.load(write(THREE), contexts=["own=in-cluster"], all_contexts=True).written_names() == {
        "own": "",
        **{name: name for name in "abc"},
    }
    with pytest.raises(ConfigError, match="in a pod 'in-cluster' is the pod's own cluster"):
        Clusters.load(write(THREE), contexts=["in-cluster=a"])


@pytest.mark.parametrize("context", ["in-cluster", "in_cluster"])
def test_in_a_pod_no_context_is_taken_for_its_own_cluster(pod: Path, write: Write, context: str) -> None:
    path = write(several({"a": ("https://a", "t"), context: ("https://elsewhere", "t")}))

    message = f"context '{context}': in a pod 'in-cluster' is the pod's own cluster; rename"
    for contexts in ([], ["own=in-cluster"]):
        with pytest.raises(ConfigError, match=message):
            Clusters.load(path, contexts=contexts, all_contexts=True)
    if context != "in-cluster":
        written = Clusters.load(path, contexts=[f"b={context}"], all_contexts=True).written_names()
        assert written == {"a": "a", "b": "b"}


def test_a_pod_whose_own_cluster_cannot_be_used_still_works_with_others(pod: Path, write: Write) -> None:
    (pod / "ca.crt").unlink()

    clusters = Clusters.load(write(THREE), contexts=["c"])

    assert clusters.names() == ("c",)
    with pytest.raises(
        ConfigError, match=r"no home cluster, which holds the Lease: in-cluster configuration: .*ca\.crt"
    ):
        clusters.home()


def test_outside_a_pod_in_cluster_is_a_context_like_others(write: Write) -> None:
    content = several({"in-cluster": ("https://named-so", "t")})

    assert Clusters.load(write(content), contexts=["in-cluster"]).config().server == "https://named-so"
    with pytest.raises(ConfigError, match=r"context 'in-cluster': this is no pod \(.+\), and no context is named so"):
        Clusters.load(write(THREE), contexts=["in-cluster"])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_inflight": 0}, "max_inflight is 0, want a whole number, 1 or more"),
        ({"qps": -1.0}, "qps is -1.0, want 0"),
        ({"qps": float("nan")}, "qps is nan"),
        ({"burst": -1}, "burst is -1"),
        ({"burst": 2.5}, "burst is 2.5, want a whole number"),
        ({"max_inflight": float("inf")}, "max_inflight is inf, want a whole number"),
    ],
)
def test_limit_out_of_range_is_named_with_its_value(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Limits(**limits)
