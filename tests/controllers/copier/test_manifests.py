"""Manifests are read as kubectl reads them, and what is wrong with a file is said with its place."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from controllers.copier import manifests
from controllers.copier.manifests import read_manifests
from controllers.copier.values import encode
from informers import GVK, ConfigError

OBJECT = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}"


def names(file: Path, text: str) -> list[str]:
    file.write_text(text)
    return [manifest.name for manifest in read_manifests(str(file))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.yaml"


def test_documents_and_lists_are_all_read(file: Path) -> None:
    text = f"""
---
{OBJECT}}}
---
# nothing
---
apiVersion: v1
kind: List
items:
- {OBJECT.replace("a}", "b}")}}}
- apiVersion: v1
  kind: ConfigMapList
  items: [{OBJECT.replace("a}", "c}")}}}]
"""
    assert names(file, text) == ["a", "b", "c"]


def test_json_is_read_with_its_tabs(file: Path) -> None:
    assert names(file, '{"apiVersion": "v1",\n\t"kind": "Secret", "metadata": {"generateName": "x-"}}') == ["x-"]


def test_numbers_and_dates_stay_what_they_are(file: Path) -> None:
    file.write_text(f"{OBJECT}, spec: {{at: 2020-01-01, n: 1.50, big: 123456789012345678901, on: true}}}}")

    (manifest,) = read_manifests(str(file))

    assert manifest.kind == GVK("", "v1", "ConfigMap")
    assert encode(manifest.document["spec"]) == b'{"at":"2020-01-01","n":1.5,"big":123456789012345678901,"true":true}'


def test_stdin_is_a_file_called_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{OBJECT}}}".encode())))

    assert [manifest.name for manifest in read_manifests("-")] == ["a"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a: [", "line "),
        ("[1, 2]", "document 1: want an object"),
        ("kind: A", "document 1: want apiVersion, a text"),
        ("{apiVersion: v1, metadata: {name: a}}", "document 1: want kind, a text"),
        ("{apiVersion: v1, kind: A}", "document 1: want metadata, a map"),
        ("{apiVersion: v1, kind: A, metadata: {}}", "document 1: want metadata.name"),
        ("{apiVersion: v1, kind: A, metadata: {name: 1}}", "document 1: want metadata.name, a text"),
        (
            f"{OBJECT}}}\n---\n{OBJECT[:-1]}, annotations: {{x: 1}}}}}}",
            "document 2: want metadata.annotations, a map of texts",
        ),
        (f"{OBJECT}, x: 1, x: 2}}", "want each key once"),
        ('{"apiVersion": "v1", "apiVersion": "v1"}', "want each key of a map once"),
        (f"{OBJECT}, x: .nan}}", "no JSON"),
        (f"{OBJECT}, x: !!python/name:os.system ''}}", "line 1, column "),
        (f"{OBJECT}, x: !!binary aGk=}}", "found bytes"),
        ("kind: List\nitems: [1]", "document 1, item 1: want an object"),
        ("[" * 5000, "nest"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(file: Path, text: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.yaml") as caught:
        names(file, text)

    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        *("!hunter2 x", "*hunter2", "!!int hunter2", "!!bool hunter2", "!!timestamp hunter2", "!!binary hunter2"),
        *("!!timestamp 2020-13-45", "!!omap [hunter2]", "!!python/name:hunter2 x", "%hunter2", '"hunter2\\q"'),
    ],
)
def test_what_a_file_says_that_cannot_be_read_is_not_repeated(file: Path, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        names(file, f"{OBJECT}, data: {{k: {value}}}}}")

    assert "hunter2" not in str(caught.value)


def test_aliases_cannot_fill_the_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_NODES", 1000)
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]

    with pytest.raises(ConfigError, match="more than 1000 values"):
        names(file, "\n".join(lines))


def test_a_file_that_is_not_there_or_no_text_is_said(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        list(read_manifests(str(file)))
    with pytest.raises(ConfigError, match="Is a directory"):
        list(read_manifests(str(tmp_path)))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="want a text in UTF-8"):
        list(read_manifests(str(file)))
