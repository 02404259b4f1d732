"""Show the copier at work: an API server in memory, a certificate that is renewed, a copy that follows.

On a terminal it stays up afterwards, for kubectl; elsewhere it ends with 0 if the copy equals the certificate, else 1.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, Any

import yaml

from informers import GVK, GVR, Client, Clusters, Manager, ObjectRef, SystemClock
from informers.testing import APIServer

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "copier" / "federated-secret.yaml"
CRDS = ROOT / "examples" / "copier" / "crds.yaml"
SOURCE = ObjectRef(GVR("", "v1", "secrets"), "cloud", "cloud-secret-master")
TARGET = ObjectRef(GVR("types.federation.k8s.io", "v1alpha1", "federatedsecrets"), "cloud", "cloud-secret")
ROTATIONS = 3
PATIENCE = 20.0  # seconds for a step that takes milliseconds on an idle machine


def main() -> int:
    """Run the story once; the exit status says whether the copy is right."""
    clock = SystemClock()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kube-informers-demo-"))
        server = stack.enter_context(APIServer())
        say(f"An API server in memory answers on {server.url}.")
        manager = stack.enter_context(closing(Manager(Clusters.load(str(server.kubeconfig)), name="demo")))
        client = manager.client

        for body in (*documents(CRDS), *documents(EXAMPLE)):
            create(manager, body)
        say(
            "Applied the example: a certificate in Secret cloud/cloud-secret-master, and FederatedSecret cloud/cloud-secret,"
        )
        say("    whose annotation asks for spec.template.data = data of that Secret.")

        log = Path(folder) / "copier.log"
        with log.open("w", encoding="utf-8") as stderr, copier(server.kubeconfig, stderr) as program:
            try:
                say(f"Started k8s-copier --target=federatedsecret (process {program.pid}).")
                tell_copy(server, client, 1, since=clock.monotonic())
                for step in range(1, ROTATIONS + 1):
                    renew_certificate(client)
                    say(
                        f"Secret cloud/cloud-secret-master was renewed ({step} of {ROTATIONS}): tls.crt and tls.key are new."
                    )
                    tell_copy(server, client, 1 + step, since=clock.monotonic())

                copied = is_copied(client)
                say("Done: the copy equals the certificate." if copied else f"The copy is wrong; see {log.read_text()}")
                if sys.stdout.isatty():
                    stay_up(server.kubeconfig, program)
            finally:
                program.terminate()
                program.wait()
    return 0 if copied else 1


def say(line: str) -> None:
    """Print one line at once."""
    print(line, flush=True)


def documents(file: Path) -> list[dict[str, Any]]:
    """Read the manifests in a file."""
    return [body for body in yaml.safe_load_all(file.read_text(encoding="utf-8")) if body]


def create(manager: Manager, body: dict[str, Any]) -> None:
    """Create one manifest, whatever its kind."""
    resource = manager.mapper().resource(GVK.parse(body["apiVersion"], body["kind"]))
    namespace = body["metadata"].get("namespace", "") if resource.namespaced else ""
    manager.client.create(resource.gvr, body, namespace=namespace, field_manager="demo")


def copier(kubeconfig: Path, stderr: IO[str]) -> subprocess.Popen[str]:
    """Start the program as a user would."""
    command = [sys.executable, "-m", "controllers", "copier", "--target=federatedsecret", f"--kubeconfig={kubeconfig}"]
    return subprocess.Popen(command, cwd=ROOT, stderr=stderr, stdin=subprocess.DEVNULL, text=True)


def renew_certificate(client: Client) -> None:
    """Do what a certificate controller does: a new pair, written at once."""
    pair = {key: base64.b64encode(secrets.token_bytes(600)).decode() for key in ("tls.crt", "tls.key")}
    client.patch(SOURCE, {"data": pair}, field_manager="demo")


def tell_copy(server: APIServer, client: Client, count: int, *, since: float) -> None:
    """Wait for the copier's next PATCH, and say what it made of the target and how long it took."""
    server.wait_request(verb="patch", resource=resource_name(TARGET), status=200, count=count, timeout=PATIENCE)
    milliseconds = (SystemClock().monotonic() - since) * 1000
    same = "equals the Secret" if is_copied(client) else "does NOT equal the Secret"
    say(f"    k8s-copier sent one PATCH, {milliseconds:.0f} ms later: spec.template.data of cloud/cloud-secret {same}.")


def is_copied(client: Client) -> bool:
    """Tell whether target and source hold the same data."""
    return client.get(TARGET).get("spec", "template", "data") == client.get(SOURCE).get("data")


def resource_name(ref: ObjectRef) -> str:
    """Name a resource as the request log does."""
    return f"{ref.gvr.resource}.{ref.gvr.group}"


def stay_up(kubeconfig: Path, program: subprocess.Popen[str]) -> None:
    """Leave server and copier running for kubectl, until Ctrl-C."""
    say("")
    say("Server and copier stay up; in another terminal:")
    say(f"export KUBECONFIG={kubeconfig}")
    say("kubectl -n cloud get federatedsecret cloud-secret -o yaml")
    say('kubectl -n cloud patch secret cloud-secret-master -p \'{"stringData": {"tls.key": "mine"}}\'')
    say(
        "kubectl -n cloud annotate federatedsecret cloud-secret k8s-copier.fig.org/replace-spec.oops=nonsense; kubectl -n cloud get events"
    )
    say("Ctrl-C ends it.")
    with suppress(KeyboardInterrupt):
        program.wait()


if __name__ == "__main__":
    sys.exit(main())
