"""A copier that runs as a process of its own against the test's server, and what a story needs to play with it.

Every value of a Secret that a story applies is marked on its way to the server, and the mark is taken off what a story
reads, so that no story has to know. What the copiers of a story printed, and every Event, is searched for the mark.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import yaml

from informers import GVR, AlreadyExistsError, Client, InformersError, NotFoundError, ObjectRef, SystemClock

if TYPE_CHECKING:
    from informers.testing.servers import Server

EXAMPLES = Path(__file__).parents[3] / "examples" / "copier"
PREFIX = "k8s-copier.fig.org/"
PATIENCE = 60.0  # for what takes a moment when nothing else runs
# Stands before every value that nobody may tell. Its length is a multiple of three, so that in base64, too, it is a
# piece of text that stands before the rest; and it may be part of a label.
MARK = "SentinelVx7Qk2z"
MARK_BASE64 = base64.b64encode(MARK.encode()).decode()

CONFIGMAPS = GVR("", "v1", "configmaps")
EVENTS = GVR("", "v1", "events")
NAMESPACES = GVR("", "v1", "namespaces")
CRDS = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")
# The kinds of manifests that stories apply; tests have no discovery of their own.
GVRS = {
    "ConfigMap": CONFIGMAPS,
    "Secret": GVR("", "v1", "secrets"),
    "Namespace": NAMESPACES,
    "Deployment": GVR("apps", "v1", "deployments"),
    "ClusterRole": GVR("rbac.authorization.k8s.io", "v1", "clusterroles"),
    "CustomResourceDefinition": CRDS,
    "Certificate": GVR("certmanager.k8s.io", "v1alpha1", "certificates"),
    "FederatedSecret": GVR("types.federation.k8s.io", "v1alpha1", "federatedsecrets"),
    "FederatedDeployment": GVR("types.federation.k8s.io", "v1alpha1", "federateddeployments"),
    "FederatedHelmRelease": GVR("types.federation.k8s.io", "v1alpha1", "federatedhelmreleases"),
    "HelmRelease": GVR("flux.weave.works", "v1beta1", "helmreleases"),
}


T = TypeVar("T")


def unmarked(value: T) -> T:
    """Take the mark out of every text of a JSON value."""
    whole = json.dumps(value)
    found: T = json.loads(whole.replace(MARK, "").replace(MARK_BASE64, "")) if is_told(whole) else value
    return found


def is_told(text: str) -> bool:
    """Tell whether a text holds the mark, or the end of it, as it is or in base64, by itself or inside something."""
    return any(piece in text for piece in PIECES)


def in_base64(text: str, before: int) -> str:
    """Return what is surely there of a text in the base64 of a longer one, in which it stands so far behind."""
    coded = base64.b64encode(b"-" * before + text.encode()).decode()
    return coded[4 if before else 0 : len(coded) // 4 * 4 - 4]


def begin(code: str = "") -> list[str]:
    """Return how Python begins a controller; `code` is run in its process before."""
    if not code:
        return ["-m", "controllers"]
    return ["-c", f"{code}\nfrom controllers.__main__ import main\nraise SystemExit(main())"]


PIECES = [MARK[-9:], *(in_base64(MARK, before) for before in range(3)), MARK_BASE64[-12:]]


@dataclass(eq=False)
class Program:
    """One `k8s-copier` process and what it logged."""

    process: subprocess.Popen[bytes]
    log: Path
    output: Path
    _lock: Lock = field(default_factory=Lock)  # guards the next two
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    def lines(self, message: str = "") -> list[dict[str, Any]]:
        """Return its log lines, or those with this message."""
        with self._lock:
            with self.log.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            self._lines += [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
            return [line for line in self._lines if message in {"", line["msg"]}]

    def targets_of(self, message: str) -> list[str]:
        """Return the targets of the log lines with this message."""
        return [line["target"] for line in self.lines(message)]

    def stop(self) -> None:
        """End it as a pod is ended."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()[-2000:]

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait(PATIENCE)


@dataclass
class Story:
    """A namespace on a server, copiers that work in it, and a client to play everybody else."""

    server: Server
    client: Client
    directory: Path
    programs: list[Program] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)  # marked values
    pages: list[str] = field(default_factory=list)  # what copiers served

    @property
    def namespace(self) -> str:
        return self.server.namespace

    # --- the copier ---

    def start(self, *flags: str, kubeconfig: Path | None = None, code: str = "") -> Program:
        """Start a copier that works in this story's namespaces; `code` is run in its process before."""
        return self.run(
            *begin(code),
            "copier",
            f"--kubeconfig={kubeconfig or self.server.kubeconfig}",
            f"--namespace={','.join([self.namespace, *self.namespaces])}",
            "--log-level=debug",
            *flags,
        )

    def run(self, *arguments: str) -> Program:
        """Start Python; what the process prints is searched in the end."""
        log = self.directory / f"copier-{len(self.programs)}.log"
        output = log.with_suffix(".out")
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        with log.open("wb") as stderr, output.open("wb") as stdout:
            process = subprocess.Popen([sys.executable, *arguments], stderr=stderr, stdout=stdout, env=environment)
        program = Program(process, log, output)
        self.programs.append(program)
        return program

    def told(self) -> dict[str, str]:
        """Return all that anybody could read who may not read Secrets: by where it stands."""
        files = [file for program in self.programs for file in (program.log, program.output)]
        found = {file.name: file.read_text() for file in files}
        if self.server.embedded is not None:
            events: list[Any] = list(self.server.embedded.objects("events"))
        else:
            spaces = [self.namespace, *self.namespaces, "default"]
            events = [event.thaw() for space in spaces for event in self.client.list(EVENTS, namespace=space)]
        return {**found, "Events": json.dumps(events), "a page": "".join(self.pages)}

    def assert_no_secret_is_told(self) -> None:
        """Fail if a marked value, a part of one, or a hash of one stands where it may not."""
        hashes = [hashlib.new(name, value.encode()).hexdigest() for value in self.secrets for name in ("md5", "sha256")]
        for where, text in self.told().items():
            assert not is_told(text), f"a Secret's value is in {where}"
            assert not any(each in text for each in hashes), f"the hash of a Secret's value is in {where}"

    def assert_targets_are_only_patched(self) -> None:
        """Fail if a copier wrote anything else than patches that merge or list changes, under its own name."""
        if self.server.embedded is None:
            return
        for request in self.server.embedded.requests(client="k8s-copier*"):
            is_own = request.resource.startswith(("events", "leases"))
            if is_own or request.method == "GET":
                continue
            assert request.verb == "patch", request
            assert request.content_type in {"application/merge-patch+json", "application/json-patch+json"}, request
            assert request.query["fieldManager"] == "k8s-copier", request
            assert not request.subresource, request

    def patches(self) -> int:
        """Count the PATCHes of targets so far: on the embedded server as it saw them, else as copiers logged them."""
        if self.server.embedded is not None:
            seen = self.server.embedded.requests(verb="patch", client="k8s-copier*")
            return len([request for request in seen if not request.resource.startswith("events")])
        return sum(len(program.lines("patched")) for program in self.programs)

    def quiesce(self, program: Program) -> None:
        """Wait until the copier (with one worker, and ConfigMaps as targets) has dealt with all that happened."""
        mark = str(len(program.lines()))
        self.configmap("probe-source", data={"n": mark})
        rules = {"replace-data.n": "configmap:probe-source:data.n", "replace-data.m": f'json:"{mark}"'}
        self.configmap("probe", rules=rules)
        self.until(lambda: self.data("probe") == {"n": mark, "m": mark}, "the probe is written")

    @staticmethod
    def until(holds: Callable[[], object], what: str | Callable[[], str] = "", *, timeout: float = PATIENCE) -> None:
        """Wait for something that another process brings about."""
        tick = Event()
        clock = SystemClock()
        end = clock.monotonic() + timeout
        while not holds():
            assert clock.monotonic() < end, f"not within {timeout:g} s: {what if isinstance(what, str) else what()}"
            tick.wait(0.02)

    # --- everybody else ---

    def ref(self, kind: str, name: str, namespace: str | None = None) -> ObjectRef:
        gvr = GVRS[kind]
        is_global = kind in {"Namespace", "ClusterRole", "CustomResourceDefinition"}
        return ObjectRef(gvr, "" if is_global else namespace or self.namespace, name)

    def apply(self, manifest: Mapping[str, Any]) -> ObjectRef:
        """Create an object, or make its content this."""
        metadata = manifest["metadata"]
        if manifest["kind"] == "Secret":
            manifest = {
                **manifest,
                "data": {key: self._marked(text) for key, text in (manifest.get("data") or {}).items()},
            }
        ref = self.ref(manifest["kind"], metadata["name"], metadata.get("namespace"))
        try:
            self.client.create(ref.gvr, dict(manifest), namespace=ref.namespace, field_manager="test")
        except AlreadyExistsError:
            present = self.client.get(ref)
            draft = {**manifest, "metadata": {**metadata, "resourceVersion": present.resource_version}}
            self.client.update(ref, draft, field_manager="test")
        return ref

    def marked(self, text: str) -> str:
        """Mark a value that is no Secret's."""
        self.secrets.add(MARK + text)
        return MARK + text

    def _marked(self, text: str) -> str:
        """Mark a Secret's value, which is base64, unless it is marked already."""
        if text.startswith(MARK_BASE64):
            return text
        self.secrets |= {MARK_BASE64 + text, MARK + base64.b64decode(text).decode(errors="replace")}
        return MARK_BASE64 + text

    def configmap(
        self,
        name: str,
        *,
        data: Mapping[str, str | None] | None = None,
        rules: Mapping[str, str | None] | None = None,
        allow: str | None = None,
        namespace: str | None = None,
    ) -> ObjectRef:
        """Create a ConfigMap or change it; what is not given stays."""
        ref = self.ref("ConfigMap", name, namespace)
        annotations = {PREFIX + key: text for key, text in (rules or {}).items()}
        if allow is not None:
            annotations[f"{PREFIX}allow-copy-to"] = allow
        content: dict[str, Any] = {"metadata": {"name": name, "annotations": annotations}}
        if data is not None:
            content["data"] = dict(data)
        try:
            self.client.patch(ref, content, field_manager="test")
        except NotFoundError:
            self.client.create(CONFIGMAPS, content, namespace=ref.namespace, field_manager="test")
        return ref

    def data(self, name: str, namespace: str | None = None) -> dict[str, str]:
        """Return the data of a ConfigMap."""
        found: dict[str, str] = self.content(self.ref("ConfigMap", name, namespace)).get("data", {})
        return found

    def content(self, ref: ObjectRef) -> Any:
        """Return an object as it is now, `{}` if it is not there."""
        try:
            return unmarked(self.client.get(ref).thaw())
        except NotFoundError:
            return {}

    def remove(self, ref: ObjectRef) -> None:
        """Delete an object and wait until it is gone."""
        try:
            self.client.delete(ref)
        except NotFoundError:
            return
        self.until(lambda: not self.content(ref), f"{ref} is gone")

    def another_namespace(self) -> str:
        """Make one more namespace, for copiers started after this."""
        name = f"{self.namespace}-{len(self.namespaces)}"
        self.client.create(NAMESPACES, {"metadata": {"name": name}}, field_manager="test")
        self.namespaces.append(name)
        return name

    def reasons(self, name: str, namespace: str | None = None) -> list[str]:
        """Return the reasons of the Events about an object, oldest first."""
        return [event["reason"] for event in self.events(name, namespace)]

    def events(self, name: str, namespace: str | None = None) -> list[dict[str, Any]]:
        """Return the Events about an object, oldest first."""
        about = [event.thaw() for event in self.client.list(EVENTS, namespace=namespace or self.namespace)]
        mine = [event for event in about if event["involvedObject"]["name"] == name]
        return sorted(mine, key=lambda event: str(event.get("eventTime")))

    def in_parallel(self, work: Callable[[Any], object], items: Sequence[Any]) -> None:
        """Do many requests, eight at a time."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, items))

    def example(self, name: str, namespace: str = "") -> list[dict[str, Any]]:
        """Return the manifests of an example, moved into this story's namespace or another one."""
        text = (EXAMPLES / f"{name}.yaml").read_text()
        text = text.replace("namespace: cloud", f"namespace: {namespace or self.namespace}")
        return [manifest for manifest in yaml.safe_load_all(text) if manifest["kind"] != "Namespace"]

    def serve(self, crd: Mapping[str, Any]) -> None:
        """Define a kind and wait until it is served."""
        self.apply(crd)
        version = crd["spec"]["versions"][0]["name"]
        gvr = GVR(crd["spec"]["group"], version, crd["spec"]["names"]["plural"])
        self.until(lambda: self._is_served(gvr), f"{gvr} is served")

    def _is_served(self, gvr: GVR) -> bool:
        try:
            list(self.client.list(gvr))
        except InformersError:
            return False
        return True


@pytest.fixture
def story(server: Server, tmp_path: Path) -> Iterator[Story]:
    """Play on the test's server; every copier started is ended."""
    yield from told_on(server, tmp_path)


@pytest.fixture
def embedded_story(tmp_path: Path) -> Iterator[Story]:
    """Play on an embedded server, which can be broken in many ways, and tells often that its streams are alive."""
    from informers.testing import APIServer
    from informers.testing.servers import borrow

    with APIServer(bookmark_every=0.5) as running, borrow(running, tmp_path) as server:
        yield from told_on(server, tmp_path)


def told_on(server: Server, directory: Path) -> Iterator[Story]:
    told = Story(server, server.client(), directory)
    try:
        yield told
        told.assert_no_secret_is_told()
        told.assert_targets_are_only_patched()
    finally:
        for program in told.programs:
            if program.process.poll() is None:
                program.kill()
