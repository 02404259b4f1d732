"""Apply manifests from files: CRDs and Namespaces first, then the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from informers.testing.apiserver.calls import Call
from informers.testing.apiserver.faults import Plan
from informers.testing.apiserver.forms import OBJECT
from informers.testing.apiserver.requestlog import LoggedRequest
from informers.testing.apiserver.router import HTTPRequest, Target
from informers.testing.apiserver.service import NotServedError, Service
from informers.testing.apiserver.statuses import StatusError
from informers.testing.apiserver.storage import encode, key_of

_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_FIRST: Final = ("CustomResourceDefinition", "Namespace")


class LoadError(Exception):
    """A manifest cannot be applied; the text names its file and document number."""


def load(service: Service, folder: Path) -> None:
    """Apply every manifest under a folder. Raises `LoadError`."""
    if not folder.exists():
        raise LoadError(f"{folder}: no such file or folder")
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES)
    documents = [found for file in files for found in _documents(file)]
    documents.sort(key=lambda found: found[1].get("kind") not in _FIRST)  # stable: the rest keeps its order
    for where, obj in documents:
        try:
            apply(service, obj)
        except StatusError as error:
            raise LoadError(f"{where}: {error.message}") from error
        except NotServedError as error:
            raise LoadError(f"{where}: {error}") from error


def _documents(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        text = file.read_text(encoding="utf-8")
        parsed = [json.loads(text)] if file.suffix == ".json" else yaml.load_all(text, _Loader)
        for document in parsed:
            number += 1
            if document is None:
                continue
            yield from _objects(f"{file} document {number}", document)
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{file}: cannot be read") from error
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        raise LoadError(f"{file} document {number + 1}: cannot be parsed") from error


def _objects(where: str, document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(document, dict) or not document.get("kind"):
        raise LoadError(f"{where}: is no object with a kind")
    if document["kind"] == "List":
        for item in document.get("items") or ():
            yield from _objects(where, item)
        return
    if not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
        raise LoadError(f"{where}: has no metadata.name")
    yield where, document


class _Loader(yaml.SafeLoader):
    """Reads dates as text, as JSON has them."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def apply(service: Service, obj: Mapping[str, Any]) -> None:
    """Create an object, or replace the one of that name, as requests would. Raises `StatusError`, `NotServedError`."""
    kind = service.kind_of(obj)
    metadata = obj["metadata"]
    namespace = (metadata.get("namespace") or "default") if kind.namespaced else ""
    current = service.store.find(kind, key_of(namespace, metadata["name"]))
    body = dict(obj)
    if current is not None:
        body["metadata"] = {**metadata, "resourceVersion": str(current.rv)}
    method, verb = ("POST", "create") if current is None else ("PUT", "update")
    request = HTTPRequest(
        method, "", (("fieldValidation", "Ignore"),), {"user-agent": "apiserver-load/1"}, encode(body)
    )
    gvr = kind.gvr
    target = Target(
        "object",
        verb,
        kind,
        gvr.group,
        gvr.version,
        gvr.resource,
        namespace,
        "" if current is None else metadata["name"],
    )
    call = Call(request, target, kind, OBJECT, Plan(), LoggedRequest())
    if current is None:
        service.writer.create(call)
    else:
        service.writer.update(call)
