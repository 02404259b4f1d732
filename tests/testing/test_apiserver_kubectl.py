"""A real kubectl works against the embedded API server.

Runs with the kubectl that `make envtest-bin` built, or else with one on the PATH; where there is none, the tests
belong to `make envtest`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from informers.testing.apiserver import APIServer
from informers.testing.envtest import ProgramMissingError, find_programs


def find_kubectl() -> str | None:
    try:
        return str(find_programs() / "kubectl")
    except ProgramMissingError:
        return shutil.which("kubectl")


KUBECTL = find_kubectl()
pytestmark = [] if KUBECTL else [pytest.mark.real]

CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {a: b}}
data: {k: v}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, minimum: 1}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
"""
WIDGET = """
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: team, finalizers: [example.com/x]}
spec: {size: 3}
"""


class Kubectl:
    """Runs kubectl with a home of its own."""

    def __init__(self, server: APIServer, home: Path) -> None:
        assert KUBECTL is not None, "kubectl is not there: run `make envtest-bin`"
        self.server = server
        self.home = home
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(server.kubeconfig)}

    def command(self, *words: str) -> list[str]:
        return [str(KUBECTL), *words]

    def run(self, *words: str, given: str = "", status: int = 0, **env: str) -> str:
        """Return what kubectl says on both streams; fail if its exit status is another than expected."""
        done = subprocess.run(
            self.command(*words),
            env={**self.env, **env},
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, f"{' '.join(words)}: {said}"
        return said


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    with APIServer(tls=True, tokens=["secret"]) as server:
        yield Kubectl(server, tmp_path)


def test_objects_are_created_applied_edited_and_deleted(kubectl: Kubectl) -> None:
    run = kubectl.run

    assert "configmap/one created" in run("create", "-f", "-", given=CONFIG_MAP)
    assert "AlreadyExists" in run("create", "-f", "-", given=CONFIG_MAP, status=1)
    assert "configmap/one configured" in run("apply", "-f", "-", given=CONFIG_MAP)
    assert "configmap/one unchanged" in run("apply", "-f", "-", given=CONFIG_MAP)
    changed = CONFIG_MAP.replace("k: v", "k: w")
    assert "+  k: w" in run("diff", "-f", "-", given=changed, status=1)
    assert "configmap/one configured" in run("apply", "-f", "-", given=changed)
    assert "configmap/one replaced" in run("replace", "-f", "-", given=CONFIG_MAP)
    assert "labeled" in run("label", "cm", "one", "x=y")
    assert "annotated" in run("annotate", "cm", "one", "x=y")
    assert "patched" in run("patch", "cm", "one", "-p", '{"data":{"p":"strategic"}}')
    assert "patched" in run("patch", "cm", "one", "--type=merge", "-p", '{"data":{"q":"merge"}}')
    assert "patched" in run("patch", "cm", "one", "--type=json", "-p", '[{"op":"add","path":"/data/r","value":"json"}]')
    assert "edited" in run("edit", "cm", "one", KUBE_EDITOR="sed -i s/strategic/edited/")
    assert json.loads(run("get", "cm", "one", "-o", "jsonpath={.data}")) == {
        "k": "v",
        "p": "edited",
        "q": "merge",
        "r": "json",
    }
    assert "deleted" in run("delete", "cm", "one", "--cascade=foreground")
    assert "NotFound" in run("get", "cm", "one", status=1)


def test_strict_validation_names_unknown_fields(kubectl: Kubectl) -> None:
    said = kubectl.run("create", "-f", "-", given=DEPLOYMENT.replace("image: i", "imag: i"), status=1)

    assert 'unknown field "spec.template.spec.containers[0].imag"' in said


def test_tables_selectors_pages_and_descriptions(kubectl: Kubectl) -> None:
    run = kubectl.run
    run("apply", "-f", "-", given=CONFIG_MAP + "---" + DEPLOYMENT)

    assert run("get", "cm").splitlines()[0].split() == ["NAME", "DATA", "AGE"]
    assert run("get", "cm", "-A", "-o", "wide").splitlines()[1].split()[:3] == ["default", "one", "1"]
    assert run("get", "deploy").splitlines()[1].split()[:4] == ["d", "0/1", "0", "0"]
    assert "No resources found" in run("get", "cm", "-l", "a=c")
    assert "configmap/one" in run("get", "cm", "--field-selector=metadata.name=one", "-o", "name")
    assert len(run("get", "ns", "--chunk-size=1").splitlines()) == 5
    assert "kind: ConfigMap" in run("get", "cm", "one", "-o", "yaml")
    assert "RollingUpdate" in run("describe", "deploy", "d")
    assert "restarted" in run("rollout", "restart", "deploy/d")
    assert json.loads(run("get", "--raw", "/api/v1/namespaces/default"))["kind"] == "Namespace"


def test_discovery_versions_and_explanations(kubectl: Kubectl) -> None:
    run = kubectl.run

    assert "Server Version: v1.36" in run("version")
    assert "deployments" in run("api-resources", "--api-group=apps")
    assert "binaryData" in run("explain", "configmap")
    assert "rollingUpdate" in run("explain", "deployment.spec.strategy")


def test_custom_resources_with_finalizers_and_namespaces(kubectl: Kubectl) -> None:
    run = kubectl.run

    run("apply", "-f", "-", given=CRD)
    run("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=5s")
    assert "created" in run("apply", "-f", "-", given=WIDGET)
    assert run("get", "wd", "-n", "team").splitlines()[1].split() == ["w", "3"]
    assert "size" in run("explain", "widget.spec")
    assert "should be greater than or equal to 1" in run(
        "patch", "wd", "w", "-n", "team", "--type=merge", "-p", '{"spec":{"size":0}}', status=1
    )
    run("delete", "ns", "team", "--wait=false")
    assert "Terminating" in run("get", "ns", "team")
    run("patch", "wd", "w", "-n", "team", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    run("wait", "--for=delete", "ns/team", "--timeout=5s")
    run("delete", "crd", "widgets.example.com")
    assert "the server could not find the requested resource" in run("get", "widgets.v1.example.com", status=1)


def test_what_is_not_served_is_said(kubectl: Kubectl) -> None:
    created = kubectl.run("create", "namespace", "foo", status=1)
    applied = kubectl.run("apply", "--server-side", "-f", "-", given=CONFIG_MAP, status=1)

    assert "use `kubectl create -f FILE`" in created
    assert "apply patches are not served" in applied


def test_changes_are_followed(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", given=CONFIG_MAP)
    with subprocess.Popen(
        kubectl.command("get", "cm", "one", "-w", "-o", "jsonpath={.data.k}{'\\n'}"),
        env=kubectl.env,
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "v\n"
        kubectl.server.wait_request(verb="watch", status=200, timeout=60)

        kubectl.run("patch", "cm", "one", "-p", '{"data":{"k":"w"}}')

        assert watching.stdout.readline() == "w\n"
        watching.terminate()
