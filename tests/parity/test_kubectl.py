"""A person at kubectl sees the same on both API servers: one script, line by line, with what it prints and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from informers.testing.servers import Server

CONFIGMAP: Final = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {app: x}}
data: {k: v}
"""
CHANGED: Final = CONFIGMAP.replace("{k: v}", "{k: w, l: z}")
SECRET: Final = """
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {password: example}
"""
DEPLOYMENT: Final = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: x}}
spec:
  replicas: 0
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec: {containers: [{name: c, image: "i:1", env: [{name: A, value: "1"}], ports: [{containerPort: 80}]}]}
"""
# A kind that no other test defines: the servers are shared.
GAUGES: Final = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gauges.kubectl.example.com}
spec:
  group: kubectl.example.com
  scope: Namespaced
  names: {plural: gauges, singular: gauge, kind: Gauge, shortNames: [gg]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer, minimum: 1}}}}
"""
GAUGE: Final = """
apiVersion: kubectl.example.com/v1
kind: Gauge
metadata: {name: w}
spec: {size: 3}
"""
EMPTY: Final = """
apiVersion: v1
kind: ConfigMap
metadata: {name: empty}
data:
"""
WRONG: Final = CONFIGMAP.replace("data:", "dada:")
EDITOR: Final = "sed -i s/edited-before/edited-after/"


@dataclass(frozen=True, slots=True)
class Line:
    """One command: what it is given on standard input, and where an editor would be opened, what edits."""

    command: str
    given: str = ""
    editor: str = ""


SCRIPT: Final = (
    Line("create -f -", CONFIGMAP),
    Line("create -f -", CONFIGMAP),
    Line("create -f -", WRONG),
    Line("apply -f -", SECRET),
    Line("apply -f -", SECRET),
    Line("apply -f -", DEPLOYMENT),
    Line("apply -f -", DEPLOYMENT),
    Line("apply -f -", DEPLOYMENT.replace("i:1", "i:2")),
    Line("apply -f -", CHANGED),
    Line("diff -f -", CONFIGMAP),
    Line("get configmap,secret,deploy"),
    Line("get cm one -o yaml"),
    Line("get deploy web -o json"),
    Line("get deploy web -o wide"),
    Line("get cm -o name"),
    Line("apply -f -", EMPTY),
    Line('patch cm empty --type=merge -p {"data":{"k":"v"}}'),
    Line("apply -f -", EMPTY),
    Line("get cm empty -o jsonpath={.data}"),
    Line("delete cm empty"),
    Line("get cm one -o jsonpath={.data}"),
    Line("get cm one -o custom-columns=NAME:.metadata.name,K:.data.k"),
    Line("get cm none"),
    Line("get nothing-like-it"),
    Line("get cm -l app=x --no-headers"),
    Line("get cm -l app=y"),
    Line("get cm --field-selector metadata.name=one --show-labels"),
    Line("get cm --chunk-size=1"),
    Line("get all"),
    Line("label cm one tier=t"),
    Line("label cm one tier=u"),
    Line("label cm one tier=u --overwrite"),
    Line("label cm one tier-"),
    Line("annotate cm one note=edited-before"),
    Line("edit cm one", editor=EDITOR),
    Line("get cm one -o jsonpath={.metadata.annotations.note}"),
    Line('patch cm one --type=merge -p {"data":{"m":"1"}}'),
    Line('patch cm one --type=json -p [{"op":"remove","path":"/data/m"}]'),
    Line('patch cm one --type=json -p [{"op":"test","path":"/data/k","value":"no"}]'),
    Line(
        'patch deploy web -p {"spec":{"template":{"spec":{"containers":[{"name":"c","env":[{"name":"B","value":"2"}]}]}}}}'
    ),
    Line("get deploy web -o jsonpath={.spec.template.spec.containers[0].env}"),
    Line("set image deploy/web c=i:3"),
    Line("set env deploy/web C=3"),
    Line("rollout pause deploy/web"),
    Line("rollout resume deploy/web"),
    Line("replace -f -", CHANGED),
    Line("replace -f -", CHANGED.replace("one", "two")),
    Line("describe cm one"),
    Line("describe secret hidden"),
    Line("wait --for=jsonpath={.data.k}=w cm/one --timeout=50s"),
    Line("explain deployment.spec.strategy.type"),
    Line("explain configmap.nothing"),
    Line("create -f - --dry-run=server -o name", CONFIGMAP.replace("one", "three")),
    Line("get cm three"),
    Line('patch cm one --type=merge -p {"metadata":{"finalizers":["example.com/hold"]}}'),
    Line("delete cm one --wait=false"),
    Line('patch cm one --type=merge -p {"metadata":{"finalizers":null}}'),
    Line("wait --for=delete cm/one --timeout=50s"),
    Line("delete secret hidden none"),
    Line("delete deploy -l app=x"),
    Line("delete -f -", CONFIGMAP),
    Line("apply -f -", GAUGES),
    Line("wait --for=condition=established crd/gauges.kubectl.example.com --timeout=50s"),
    Line("apply -f -", GAUGE),
    Line("apply -f -", GAUGE.replace("3", "4")),
    Line("apply -f -", GAUGE.replace("3", "0")),
    Line("apply -f -", GAUGE.replace("size", "sise")),
    Line("get gg"),
    Line('patch gauge w --type=merge -p {"status":{"x":1}} --subresource=status'),
    Line('patch gauge w -p {"spec":{"size":5}}'),
    Line("explain gauge.spec.size"),
    Line("api-resources --api-group=kubectl.example.com"),
    Line("api-resources --api-group=rbac.authorization.k8s.io"),
    Line("api-resources --api-group=batch -o name"),
    Line("delete crd gauges.kubectl.example.com"),
    Line("get gg"),
    Line("get --raw /api/v1/namespaces/{ns}/configmaps/none"),
)


def test_a_script_prints_the_same_on_both_servers(embedded: Server, real: Server, tmp_path: Path) -> None:
    assert real.real is not None
    kubectl = real.real.bin / "kubectl"

    outcomes = [play(server, kubectl, tmp_path / str(number)) for number, server in enumerate((real, embedded))]

    differences = [
        f"$ kubectl {line.command}\nreal:\n{on_real}\nembedded:\n{on_embedded}"
        for line, on_real, on_embedded in zip(SCRIPT, *outcomes, strict=True)
        if on_real != on_embedded
    ]
    assert not differences, "\n\n".join(differences)


def play(server: Server, kubectl: Path, home: Path) -> Sequence[str]:
    """Run the script, and give what each line printed and its exit status."""
    home.mkdir()
    return [run(line, server, kubectl, home) for line in SCRIPT]


def run(line: Line, server: Server, kubectl: Path, home: Path) -> str:
    words = line.command.replace("{ns}", server.namespace).split()
    done = subprocess.run(
        [str(kubectl), f"--kubeconfig={server.kubeconfig}", f"--namespace={server.namespace}", *words],
        input=line.given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "KUBE_EDITOR": line.editor, "TZ": "UTC"},
    )
    return f"{without_what_varies(done.stdout + done.stderr, server)}exit {done.returncode}"


def without_what_varies(text: str, server: Server) -> str:
    text = text.replace(server.namespace, "{ns}").replace(server.url, "{url}")
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uid>", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>", text)
    text = re.sub(r'(resourceVersion"?: )"\d+"', r"\1<version>", text)
    text = re.sub(r'Invalid value: "\{.*\}":', "Invalid value: <object>:", text)
    text = re.sub(r"/tmp/\S+", "<file>", text)
    text = re.sub(r"@@ .* @@|^(---|\+\+\+) .*$", "<place>", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=  )(\d+[smh])+\b *", "<age> ", text)  # how wide it is, too, says how fast the machine is
    text = re.sub(r"\bAGE +", "AGE ", text)
    return re.sub(r"DESCRIPTION:.*?(?=\n\n|\Z)", "DESCRIPTION", text, flags=re.DOTALL)  # the embedded server has none
