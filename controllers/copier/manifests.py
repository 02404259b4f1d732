"""Read manifests as they are written for kubectl: YAML or JSON, several documents in a file, lists of objects."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from controllers.copier.values import Number, Plain
from informers import GVK, ConfigError

# Aliases let a few lines of YAML stand for more than any memory holds.
MAX_NODES: Final = 2_000_000
_STDIN: Final = "-"
_QUOTED: Final = re.compile(r"[ ]?(['\"]).*\1")
_UNUSABLE_FLOAT: Final = re.compile(r"nan|inf")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object as a file has it."""

    document: dict[str, Plain]
    place: str  # in which file, for errors

    @property
    def kind(self) -> GVK:
        """What it is."""
        return GVK.parse(str(self.document["apiVersion"]), str(self.document["kind"]))

    @property
    def metadata(self) -> dict[str, Plain]:
        """Its metadata."""
        found = self.document["metadata"]
        assert isinstance(found, dict)
        return found

    @property
    def name(self) -> str:
        """Its name; of one that gets its name from the server, what that begins with."""
        return str(self.metadata.get("name") or self.metadata.get("generateName") or "")

    @property
    def namespace(self) -> str:
        """Its namespace, `""` where none is written."""
        return str(self.metadata.get("namespace") or "")

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        found = self.metadata.get("annotations")
        return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def read_manifests(filename: str) -> Iterator[Manifest]:
    """Yield all objects in a file, `-` for stdin. Raises `ConfigError` that says what is wrong, and where."""
    shown = "stdin" if filename == _STDIN else filename
    try:
        data = sys.stdin.buffer.read() if filename == _STDIN else Path(filename).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--filename: {shown}: {error.strerror or type(error).__name__}") from None
    except (UnicodeDecodeError, ValueError):
        raise ConfigError(f"--filename: {shown}: want a text in UTF-8") from None
    for number, document in enumerate(_documents(text, shown), start=1):
        yield from _objects(document, f"{shown}: document {number}")


def _documents(text: str, shown: str) -> Iterator[Plain]:
    budget = _Budget(shown)
    if text.lstrip()[:1] in {"{", "["}:
        try:
            found = json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=partial(_once, shown))
        except (json.JSONDecodeError, RecursionError):
            pass  # YAML has such brackets, too
        else:
            yield budget.plain(found)
            return
    yield from map(budget.plain, _yaml_documents(text, shown))


def _once(shown: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ConfigError(f"--filename: {shown}: want each key of a map once")
    return found


def _yaml_documents(text: str, shown: str) -> Iterator[Any]:
    import yaml

    try:
        yield from yaml.load_all(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        where = f" line {at.line + 1}, column {at.column + 1}:" if at is not None else ""
        # The name of a tag may well be the beginning of a password.
        problem = _QUOTED.sub("", error.problem or "this is not YAML")
        raise ConfigError(f"--filename: {shown}:{where} {problem}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        # What the library makes of a tag that does not fit its value is anything.
        raise ConfigError(f"--filename: {shown}: this is not YAML") from None


def _loader() -> Any:
    """Return a reader of plain data: dates stay text, and a key that stands twice in a map is an error."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # either is a SafeLoader
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_map(loader: Any, node: Any) -> Any:
        loader.flatten_mapping(node)
        pairs = [(loader.construct_object(key, deep=True), value) for key, value in node.value]
        seen: set[str] = set()
        for (key, _), (key_node, _) in zip(pairs, node.value, strict=True):
            if not isinstance(key, str | int | float | bool) or _key(key) in seen:
                raise yaml.MarkedYAMLError(problem="want each key once, and text", problem_mark=key_node.start_mark)
            seen.add(_key(key))
        return {key: loader.construct_object(value, deep=True) for key, value in pairs}

    Loader.add_constructor("tag:yaml.org,2002:map", construct_map)
    return Loader


class _Budget:
    """Turns what readers give into our values, as long as that stays within bounds."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._left = MAX_NODES

    def plain(self, found: Any) -> Plain:
        """Return the same as values of ours. Raises `ConfigError`."""
        try:
            return self._plain(found)
        except RecursionError:
            raise ConfigError(f"--filename: {self._shown}: this is nested too deep") from None

    def _plain(self, found: Any) -> Plain:
        self._left -= 1
        if self._left < 0:
            raise ConfigError(f"--filename: {self._shown}: this is more than {MAX_NODES} values")
        match found:
            case None | bool() | str() | Number():
                return found
            case int():
                return Number(str(found))
            case float():
                text = repr(found)
                if _UNUSABLE_FLOAT.search(text):
                    raise ConfigError(f"--filename: {self._shown}: infinities and NaN are no JSON")
                return Number(text)
            case list():
                return [self._plain(item) for item in found]
            case dict():
                return {_key(key): self._plain(item) for key, item in found.items()}
            case _:
                raise ConfigError(f"--filename: {self._shown}: want data as JSON has it, found {type(found).__name__}")


def _key(key: object) -> str:
    return json.dumps(key) if isinstance(key, bool | int | float) else str(key)


def _objects(document: Plain, place: str) -> Iterator[Manifest]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise ConfigError(f"--filename: {place}: want an object with apiVersion, kind and metadata")
    items = document.get("items")
    if isinstance(items, list) and str(document.get("kind")).endswith("List"):
        for number, item in enumerate(items, start=1):
            yield from _objects(item, f"{place}, item {number}")
        return
    problem = _problem_of(document)
    if problem:
        raise ConfigError(f"--filename: {place}: {problem}")
    yield Manifest(document, place)


def _problem_of(document: Mapping[str, Plain]) -> str:
    for key in ("apiVersion", "kind"):
        if not isinstance(document.get(key), str) or not document[key]:
            return f"want {key}, a text"
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return "want metadata, a map"
    for key in ("name", "generateName", "namespace"):
        if not isinstance(metadata.get(key) or "", str):
            return f"want metadata.{key}, a text"
    if not (metadata.get("name") or metadata.get("generateName")):
        return "want metadata.name"
    for key in ("annotations", "labels"):
        entries = metadata.get(key)
        if entries is not None and not (
            isinstance(entries, dict) and all(isinstance(value, str) for value in entries.values())
        ):
            return f"want metadata.{key}, a map of texts; a number, true and false want quotes"
    return ""
