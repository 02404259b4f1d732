"""The embedded API server answers like a real one: the same requests, the same answers in all that clients rely on.

A case (`cases/*.yaml`) is a list of requests. What a real server answered is recorded in `golden/*.json`, one file per
file of cases (`make update-parity`); both servers are held against the record, so that neither can drift from it.

A request is written `VERB PATH: BODY`. Verbs are those of HTTP, and MERGE, JSON, STRATEGIC, APPLY (a PATCH of that
type), WATCH (a GET, as a stream) and EXPIRE (forget all history; no request). `{ns}` is the test's namespace, other words in braces are in WORDS or were saved
by an earlier request (`save: made`, then `{made.metadata.resourceVersion}`). Beside it may stand:

=========  ==========================================================================================
save       a name for the body of the answer
query      parameters, a mapping
headers    of the request, a mapping
raw        a text to send in place of a JSON body
until      a status: ask again until it is answered (what takes a moment on a real server)
events     how many events to read from a WATCH, "closed" for all until the server ends it; 1 if absent
silent     true: a WATCH on which nothing may come for a second
view       how to look at the body, a name in VIEWS; `object` if absent
look       paths in the body: compare only these
hide       paths in the body that do not matter
message    true: compare the texts of errors too
managed    true: compare managedFields too
told       response headers to compare
=========  ==========================================================================================

What differs from run to run is put into words (`<uid 1>`, `<rv 2>`, `<time>`), equal ones into equal words.
A case may carry `controllers: true` (the real server needs them) and `lacks: STATUS`: the embedded server answers its
last request with that status, because it cannot do this yet.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
import yaml

from informers.testing.apiserver import reading, watches
from informers.testing.servers import Server, borrow
from informers.testing.wire import Answer, Wire

HERE: Final = Path(__file__).parent
UPDATE: Final = os.environ.get("UPDATE_PARITY") == "1"

WORDS: Final = {
    "core": "/api/v1/namespaces/{ns}",
    "apps": "/apis/apps/v1/namespaces/{ns}",
    "batch": "/apis/batch/v1/namespaces/{ns}",
    "rbac": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}",
    "crds": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "group": "{ns}.example.com",
    "crs": "/apis/{ns}.example.com/v1/namespaces/{ns}",
    "long": "a" * 64,
    "big": "x" * (1024 * 1024),
}
PATCHES: Final = {
    "MERGE": "application/merge-patch+json",
    "JSON": "application/json-patch+json",
    "STRATEGIC": "application/strategic-merge-patch+json",
    "APPLY": "application/apply-patch+yaml",
}
VERBS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "WATCH", "EXPIRE", *PATCHES)

# What both servers serve; a real one has more.
SHARED: Final = {
    "v1": "namespaces configmaps secrets services serviceaccounts pods nodes events persistentvolumeclaims endpoints "
    "replicationcontrollers resourcequotas limitranges",
    "apps/v1": "deployments replicasets statefulsets daemonsets",
    "batch/v1": "jobs cronjobs",
    "rbac.authorization.k8s.io/v1": "roles rolebindings clusterroles clusterrolebindings",
    "coordination.k8s.io/v1": "leases",
    "events.k8s.io/v1": "events",
    "networking.k8s.io/v1": "ingresses networkpolicies",
    "policy/v1": "poddisruptionbudgets",
    "apiextensions.k8s.io/v1": "customresourcedefinitions",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One story told to both servers."""

    file: str
    title: str
    requests: Sequence[Mapping[str, Any]]
    controllers: bool = False
    lacks: int = 0


def read_cases() -> Iterator[Case]:
    for path in sorted((HERE / "cases").glob("*.yaml")):
        for item in yaml.load(path.read_text(), yaml.CSafeLoader):
            yield Case(file=path.stem, **item)


CASES: Final = tuple(read_cases())


def golden_of(file: str) -> dict[str, Any]:
    path = HERE / "golden" / f"{file}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the embedded server give up a version that does not come sooner than the 3 s of a real one."""
    for module in (reading, watches):
        monkeypatch.setattr(module, "_PATIENCE", 0.3)


@pytest.mark.parametrize("case", [pytest.param(each, id=f"{each.file}: {each.title}") for each in CASES])
def test_both_servers_answer_alike(case: Case, server: Server, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if case.controllers and server.real is not None:
        with borrow(request.getfixturevalue("envtest_controllers"), tmp_path) as other:
            check(case, other)
    else:
        check(case, server)


def check(case: Case, server: Server) -> None:
    if case.lacks and server.embedded is not None:
        last = Conversation(server).run(case.requests)[-1]
        assert last["status"] == case.lacks, "the embedded server can do this now: take `lacks` off"
        return

    found = Conversation(server).run(case.requests)

    if UPDATE:
        record(case, found)
    wanted = golden_of(case.file).get(case.title)
    assert wanted is not None, "no answer of a real server is on record: make update-parity"
    differences = list(compare_answers(wanted, found))
    assert not differences, "\n".join(["other than a real API server:", *differences])


def test_each_record_belongs_to_a_case() -> None:
    recorded = {(path.stem, title) for path in (HERE / "golden").glob("*.json") for title in golden_of(path.stem)}

    assert recorded == {(case.file, case.title) for case in CASES}


def record(case: Case, found: Sequence[Any]) -> None:
    known = {each.title for each in CASES if each.file == case.file}
    kept = {title: answers for title, answers in golden_of(case.file).items() if title in known}
    text = json.dumps({**kept, case.title: found}, indent=1, sort_keys=True, ensure_ascii=False)
    (HERE / "golden" / f"{case.file}.json").write_text(text + "\n")


def compare_answers(wanted: Sequence[Any], found: Sequence[Any]) -> Iterator[str]:
    """Tell where answers differ; of one with another status, no more than that."""
    assert len(wanted) == len(found), "the case has changed since it was recorded: make update-parity"
    for index, (left, right) in enumerate(zip(wanted, found, strict=True)):
        where = f"request {index}, {left['request']}"
        if left.get("status") != right.get("status"):
            outcomes = [{key: each.get(key) for key in ("status", "body", "events")} for each in (left, right)]
            yield f"{where}: real {json.dumps(outcomes[0])[:600]}, here {json.dumps(outcomes[1])[:600]}"
        else:
            yield from compare(left, right, f"{where}: ")


def compare(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Tell each place where two values differ."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted({*wanted, *found}):
            yield from compare(wanted.get(key, ABSENT), found.get(key, ABSENT), f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for index, (left, right) in enumerate(zip(wanted, found, strict=True)):
            yield from compare(left, right, f"{path}[{index}]")
    elif wanted != found or type(wanted) is not type(found):
        yield f"{path}: real {json.dumps(wanted)[:2000]}, here {json.dumps(found)[:2000]}"


ABSENT: Final = "<absent>"
NO_STATUS: Final = "<not even a Status>"


class Conversation:
    """Requests to one server and what it answered, in words that are equal on every run."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._wire: Wire = server.wire()
        self._saved: dict[str, Any] = {"ns": server.namespace}
        self._speech = Speech(server.namespace)
        self._made: list[str] = []  # cluster-scoped objects, which the next test must not see

    def run(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        try:
            return [self._ask(Question.parse(request)) for request in requests]
        finally:
            for path in reversed(self._made):
                self._wire.request("DELETE", path)

    def _ask(self, question: Question) -> dict[str, Any]:
        path, query, body, headers = (
            self._fill(part) for part in (question.path, question.query, question.body, question.headers)
        )
        pairs = [(name, str(value)) for name, value in query.items()]
        if question.raw:
            body = self._fill(question.raw).encode()
        if question.verb == "EXPIRE":
            expire(self._server)
            return {"request": "EXPIRE"}
        if question.verb == "WATCH":
            return self._watch(question, path, pairs, headers)
        verb = "PATCH" if question.verb in PATCHES else question.verb
        if question.verb in PATCHES:
            headers = {"Content-Type": PATCHES[question.verb], **headers}
        answer = self._answer(verb, f"{path}{'?' * bool(pairs)}{urlencode(pairs)}", body, headers, question.until)
        content = content_of(answer)
        kind = "" if content == NO_STATUS or question.view == "index" else answer.headers.get("content-type", "")
        if question.save:
            self._saved[question.save] = content
        if verb == "POST" and answer.status == 201 and "namespace" not in content["metadata"]:
            self._made.append(f"{path}/{content['metadata']['name']}")
        return {
            "request": f"{question.verb} {question.path}",
            "status": answer.status,
            "type": kind,
            **{name: answer.headers.get(name, ABSENT) for name in question.told},
            "body": self._speech.tell(question, content),
        }

    def _answer(self, verb: str, path: str, body: Any, headers: Mapping[str, str], until: int) -> Answer:
        for attempt in range(200):
            answer = self._wire.request(verb, path, body=body, headers=headers)
            is_early = answer.status == 429 or (until and answer.status != until)
            if not is_early or attempt == 199:
                return answer
            threading.Event().wait(0.05)  # what a real server does meanwhile signals nothing
        raise AssertionError

    def _watch(
        self, question: Question, path: str, pairs: Sequence[tuple[str, str]], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        events: list[Any] = []
        wanted = 0 if question.silent else question.events
        with self._wire.stream(path, query=[("watch", "true"), *pairs], headers=headers) as stream:
            if stream.status == 200:
                for line in stream.lines(silence=1.0 if question.silent else 10.0):
                    events.append(json.loads(line))
                    if len(events) == wanted:
                        break
            else:
                events.extend(json.loads(line) for line in stream.lines(silence=10.0))
        if question.save:
            self._saved[question.save] = events
        return {
            "request": f"WATCH {question.path}",
            "status": stream.status,
            "type": stream.headers.get("content-type", ""),
            "events": [self._speech.tell(question, event) for event in events],
        }

    def _fill(self, value: Any) -> Any:
        """Put what was saved in place of names in braces."""
        if isinstance(value, str):
            return self._fill_text(value)
        if isinstance(value, list):
            return [self._fill(item) for item in value]
        if isinstance(value, dict):
            filled = {self._fill_text(key): self._fill(item) for key, item in value.items()}
            base = filled.pop("$base", None)
            return filled if base is None else merged(base, filled)
        return value

    def _fill_text(self, text: str) -> Any:
        whole = REFERENCE.fullmatch(text)
        if whole and whole[1].partition(".")[0] in self._saved:
            return self._value_of(whole)
        return REFERENCE.sub(self._replacement, text)

    def _replacement(self, found: re.Match[str]) -> str:
        name = found[1].partition(".")[0]
        if name in WORDS:
            return str(self._fill_text(WORDS[name]))
        return str(self._value_of(found)) if name in self._saved else found[0]

    def _value_of(self, found: re.Match[str]) -> Any:
        value: Any = self._saved
        for part in found[1].split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        return str(int(value) + int(found[2])) if found[2] else value


def content_of(answer: Answer) -> Any:
    if answer.body[:1] in {b"{", b"["}:
        return answer.json()
    return NO_STATUS if answer.status >= 400 else answer.body.decode()


def expire(server: Server) -> None:
    if server.real is not None:
        server.real.compact()
        server.real.restart()  # its caches remember
    else:
        server.faults.compact()


REFERENCE: Final = re.compile(r"\{([A-Za-z][\w.]*)([+-]\d+)?\}")


def merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    both = {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}
    return {**{key: value for key, value in base.items() if key not in patch}, **both}


@dataclass(frozen=True, slots=True)
class Question:
    """One request of a case, as written there."""

    verb: str
    path: str
    body: Any
    query: Mapping[str, Any]
    headers: Mapping[str, str]
    save: str = ""
    raw: str = ""
    until: int = 0
    events: int = 1
    silent: bool = False
    view: str = "object"
    look: Sequence[str] = ()
    hide: Sequence[str] = ()
    message: bool = False
    managed: bool = False
    told: Sequence[str] = ()

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> Question:
        rest = dict(request)
        line = next(key for key in request if key.partition(" ")[0] in VERBS)
        body = rest.pop(line)
        verb, _, path = line.partition(" ")
        if rest.get("events") == "closed":
            rest["events"] = -1
        return cls(verb, path, body, rest.pop("query", {}), rest.pop("headers", {}), **rest)


class Speech:
    """Turns answers into words that do not differ from run to run; equal values into equal words."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}

    def tell(self, question: Question, content: Any) -> Any:
        seen = VIEWS[question.view](content)
        for path in question.hide:
            parent, _, key = path.rpartition(".")
            holder = look(seen, parent.split("."))
            if isinstance(holder, dict):
                holder.pop(key, None)
        if question.look:
            seen = {path: look(seen, path.split(".")) for path in question.look}
        return self._in_words(seen, question)

    def _in_words(self, value: Any, question: Question) -> Any:
        if isinstance(value, list):
            return [self._in_words(item, question) for item in value]
        if isinstance(value, dict):
            return self._mapping(value, question)
        return self._text(value) if isinstance(value, str) else value

    def _mapping(self, value: Mapping[str, Any], question: Question) -> dict[str, Any]:
        dropped = set()
        if value.get("kind") == "Status" and value.get("status") == "Failure" and not question.message:
            dropped.add("message")
        if {"message", "reason", "field"} >= set(value) and "reason" in value and not question.message:
            dropped.add("message")  # a cause
        if not question.managed:
            dropped.add("managedFields")
        dropped.add("storageVersionHash")
        dropped.update(key for key in ("continue", "details") if not value.get(key))
        value = without_moving_versions(value)
        told = {self._text(key): self._in_words(item, question) for key, item in value.items() if key not in dropped}
        if "causes" in told:  # a real server checks some rules twice
            told["causes"] = [each for index, each in enumerate(told["causes"]) if each not in told["causes"][:index]]
        if isinstance(value.get("resourceVersion"), str):
            told["resourceVersion"] = self._version(value["resourceVersion"])
        if value.get("continue"):
            told["continue"] = "<continue>"
        if isinstance(value.get("generateName"), str) and value.get("name", "").startswith(value["generateName"]):
            told["name"] = (
                f"{value['generateName']}<5>" if len(value["name"]) == len(value["generateName"]) + 5 else "?"
            )
        return told

    def _version(self, version: str) -> str:
        if not version.isdigit():
            return version
        return self._versions.setdefault(version, f"<rv {len(self._versions) + 1}>")

    def _text(self, text: str) -> str:
        text = text.replace(self._namespace, "{ns}")
        text = re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$", "<time>", text)
        text = re.sub(r"^10\.\d+\.\d+\.\d+$", "<cluster ip>", text)
        return re.sub(
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            lambda found: self._uids.setdefault(found[0], f"<uid {len(self._uids) + 1}>"),
            text,
        )


def without_moving_versions(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put a word for the version of a list or bookmark: it also counts what others write."""
    if ("items" in value or value.get("kind") == "Table") and "resourceVersion" in (value.get("metadata") or {}):
        return {**value, "metadata": {**value["metadata"], "resourceVersion": "<list rv>"}}
    if value.get("type") == "BOOKMARK":
        metadata = {**value["object"]["metadata"], "resourceVersion": "<bookmark rv>"}
        return {**value, "object": {**value["object"], "metadata": metadata}}
    return value


def look(value: Any, path: Sequence[str]) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if first == "*" and isinstance(value, list):
        return [look(item, rest) for item in value]
    if isinstance(value, list) and first.isdigit() and int(first) < len(value):
        return look(value[int(first)], rest)
    return look(value[first], rest) if isinstance(value, dict) and first in value else ABSENT


# Views


def view_discovery(content: Any) -> Any:
    """Each shared or custom resource and its status, as discovery describes it."""
    shared = SHARED.get(content["groupVersion"], "").split()
    return {
        item["name"]: described(item)
        for item in content["resources"]
        if not shared or item["name"].removesuffix("/status") in shared
    }


def described(item: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: item[key] for key in ("kind", "singularName", "namespaced", "group", "version") if key in item}
    return {**kept, **{key: sorted(item.get(key) or ()) for key in ("verbs", "shortNames", "categories")}}


def view_aggregated(content: Any) -> Any:
    """The same from one document of all groups."""
    found: dict[str, Any] = {}
    for group in content["items"]:
        name = group["metadata"].get("name", "")
        for version in group["versions"]:
            group_version = f"{name}/{version['version']}" if name else version["version"]
            names = SHARED.get(group_version, "").split()
            for item in version["resources"]:
                if item["resource"] in names:
                    found[f"{group_version} {item['resource']}"] = aggregated(item)
    return {"kind": content["kind"], "apiVersion": content["apiVersion"], "resources": found}


def aggregated(item: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: item.get(key) for key in ("resource", "responseKind", "scope", "singularResource")}
    lists = {key: sorted(item.get(key) or ()) for key in ("verbs", "shortNames", "categories")}
    status = [
        {**sub, "verbs": sorted(sub["verbs"])} for sub in item.get("subresources", ()) if sub["subresource"] == "status"
    ]
    return {**kept, **lists, "status": status}


def view_groups(content: Any) -> Any:
    """The shared groups with the shared versions."""
    shared = {group_version.rpartition("/")[0]: group_version for group_version in SHARED}
    return {
        group["name"]: {
            "served": shared[group["name"]] in {each["groupVersion"] for each in group["versions"]},
            "preferred": group["preferredVersion"],
        }
        for group in content["groups"]
        if group["name"] in shared
    }


def view_schemas(content: Any) -> Any:
    """How lists and maps of the shared kinds merge, wherever their schemas lead."""
    schemas = content["components"]["schemas"]
    group_versions = {tuple(f"/{each}".split("/")[-2:]) if "/" in each else ("", each) for each in SHARED}
    kinds = SHARED_KINDS.split()
    waiting = [
        name
        for name, schema in schemas.items()
        for kind in schema.get("x-kubernetes-group-version-kind", ())
        if (kind["group"], kind["version"]) in group_versions and kind["kind"] in kinds
    ]
    found: dict[str, Any] = {}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for property_name, schema in (schemas[name].get("properties") or {}).items():
            extensions = {key: value for key, value in schema.items() if key in MERGING}
            if extensions:
                found.setdefault(name, {})[property_name] = extensions
            waiting.extend(references(schema))
    return found


MERGING: Final = {
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
}
SHARED_KINDS: Final = (
    "Namespace ConfigMap Secret Service ServiceAccount Pod Node Event PersistentVolumeClaim Endpoints "
    "ResourceQuota ReplicationController LimitRange Deployment ReplicaSet StatefulSet DaemonSet Job CronJob "
    "Role RoleBinding ClusterRole ClusterRoleBinding Lease Ingress NetworkPolicy PodDisruptionBudget"
)


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.rpartition("/")[2]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def view_writes(content: Any) -> Any:
    """What POST, PUT and PATCH of each shared resource say that they take."""
    found: dict[str, Any] = {}
    for path, item in content["paths"].items():
        resource = path.replace("/{name}", "").replace("/status", "").rpartition("/")[2]
        if not any(resource in names.split() for names in SHARED.values()) and "example.com" not in path:
            continue
        for verb in ("post", "put", "patch"):
            if verb in item:
                parameters = [*item.get("parameters", ()), *item[verb].get("parameters", ())]
                found[f"{verb} {path}"] = {
                    "kind": item[verb].get("x-kubernetes-group-version-kind"),
                    "parameters": sorted({each["name"] for each in parameters} & WRITING),
                    "takes": sorted(set(item[verb].get("requestBody", {}).get("content", {})) & TAKEN),
                }
    return found


TAKEN: Final = {type_ for verb, type_ in PATCHES.items() if verb != "APPLY"}  # the embedded server cannot apply yet
WRITING: Final = {"fieldValidation", "dryRun", "fieldManager", "force"}


def view_index(content: Any) -> Any:
    """The shared group versions in the index of OpenAPI documents."""
    return sorted(path for path in content["paths"] if path.removeprefix("apis/").removeprefix("api/") in SHARED)


def view_table(content: Any) -> Any:
    """Columns and cells; how old something is does not matter."""
    if content.get("kind") != "Table":
        return content
    columns = [
        {key: each.get(key) for key in ("name", "type", "format", "priority")}
        for each in content.get("columnDefinitions") or ()
    ]
    rows = [
        {
            "cells": ["<age>" if is_age(cell) else cell for cell in row["cells"]],
            "object": {key: (row.get("object") or {}).get(key) for key in ("kind", "apiVersion")},
            "keys": sorted(row.get("object") or ()),
        }
        for row in content["rows"]
    ]
    metadata = {key: bool(value) for key, value in content.get("metadata", {}).items()}
    return {
        "kind": content["kind"],
        "apiVersion": content["apiVersion"],
        "columns": columns,
        "rows": rows,
        "metadata": metadata,
    }


def is_age(cell: object) -> bool:
    return isinstance(cell, str) and re.fullmatch(r"\d+[smhd]", cell) is not None


def view_names(content: Any) -> Any:
    return [item["metadata"]["name"] for item in content["items"]] if "items" in content else content


VIEWS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "object": lambda content: content,
    "discovery": view_discovery,
    "aggregated": view_aggregated,
    "groups": view_groups,
    "schemas": view_schemas,
    "writes": view_writes,
    "index": view_index,
    "table": view_table,
    "table event": lambda content: {"type": content["type"], "object": view_table(content["object"])},
    "names": view_names,
}
