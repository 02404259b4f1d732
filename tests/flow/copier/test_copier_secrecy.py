"""No value is ever told: not when it cannot be copied, not when the server quotes it, not when the copier itself breaks.

That nothing is told is searched for at the end of every story (conftest.py); here everything is told that can be.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from tests.flow.copier.conftest import MARK, MARK_BASE64, begin, is_told

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Program, Story

# Bugs, each at another place on the way of an object called like it, with all that is known there in their texts.
BUGS = """
import controllers.copier as copier
import controllers.copier.explain as explain
import controllers.copier.reconciler as reconciler

def break_(module, name, find, *kinds):
    sound = getattr(module, name)
    def broken(*args, **named):
        for kind in kinds:
            if any(find(arg) == f"{name}-{kind.__name__}".lower().replace("_", "-") for arg in args):
                try:
                    raise KeyError(str(args))
                except KeyError as error:
                    text = " ".join(str(getattr(arg, "raw", arg)) for arg in args)
                    raise kind(text) from error
        return sound(*args, **named)
    setattr(module, name, broken)

name_of = lambda arg: getattr(arg, "name", "")
break_(reconciler, "make_draft", name_of, ValueError, GeneratorExit, MemoryError)
break_(explain, "make_draft", name_of, ValueError)
break_(copier, "keep_rules", name_of, ValueError)
"""
BROKEN = (
    *("make-draft-valueerror", "make-draft-generatorexit", "make-draft-memoryerror"),
    "keep-rules-valueerror",
)


def secret(story: Story, name: str, text: str) -> None:
    data = {"k": base64.b64encode(text.encode()).decode()}
    story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})


def long_form(value: str) -> str:
    return f"""
- {{to: data.a, value: {value}}}
- {{to: data.b, value: [{value}]}}
- {{to: data.c, value: {value}, as: {value}}}
- {{to: data.d, from: {{resource: secrets, name: s, path: "abs(data.k)"}}}}
- {{to: data.e, from: {{resource: secrets, name: s, path: data.k}}, as: integer}}
- {{to: data.f, from: {{resource: secrets, name: s, path: data.k}}, decode: base64, as: value}}
- {{to: data.g, from: {{resource: configmaps, name: s, path: data.k}}, decode: base64}}
- {{op: merge, to: metadata.labels, from: {{resource: secrets, name: s, path: data}}}}
- {{op: strategic-merge, to: data, value: {{$patch: {value}}}}}
- {{to: data.h, from: {{resource: configmaps, name: none, path: data.k}}, onSourceMissing: {{default: [{value}]}}}}
- {{to: spec.{value[:3]}, value: {value}, {value}: {value}}}
- {{op: remove, to: data.i, value: {value}}}
"""


def test_everything_that_can_go_wrong_is_told_without_a_value(story: Story) -> None:
    secret(story, "s", "value")
    value = story.marked("plain")
    story.configmap("s", data={"k": value})
    rules = {
        "replace-data.good": "secret:s:data.k",
        "replace-data.path": "secret:s:data.k.deeper",
        "replace-data.element": "secret:s:data.k[0]",
        "replace-metadata.labels.x": "secret:s:data",
        "replace-data.x": value,
        "replace-data.y": f"json:{value}",
        "replace-data.z": f'json:["{value}"]',
        "merge-data.w": f'json:"{value}',
        "strategic-merge-data.v": f'json:{{"{value}": "{value}"}}',
    }
    story.configmap("t", rules=rules)
    story.configmap("list", data={"h": value}, rules={"rules": long_form(value)})
    story.configmap("no-list", rules={"rules": f"- {{to: data.k, value: {value}"})
    # The server refuses this one, and its answer quotes the whole object.
    story.configmap("quoted", data={"own": value}, rules={"replace-metadata.labels.x": "secret:s:data.k"})
    for name in BROKEN:
        story.configmap(name, data={"own": value}, rules={"replace-data.k": "secret:s:data.k"})
    program = story.start("--target=configmap", "--http-address=127.0.0.1:0", code=BUGS)

    story.until(lambda: "good" in story.data("t"), "copied")
    for name, reason in (("t", "Base64Value"), ("list", "MalformedRule"), ("no-list", "MalformedRule")):
        story.until(lambda: reason in story.reasons(name), f"{name}: {reason}")  # noqa: B023
    story.until(lambda: "Invalid" in story.reasons("quoted"), "the refusal is reported")
    for name in BROKEN:
        story.until(lambda: name in program.log.read_text(), "the bug is told of")  # noqa: B023
    port = program.lines("listening")[0]["port"]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        story.pages.append(answer.read().decode())
    program.stop()
    file = story.directory / "targets.json"
    names = ("t", "list", "no-list", "quoted")
    manifests = [story.client.get(story.ref("ConfigMap", name)).thaw() for name in names]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    reports = [report(story, "explain", f"--filename={file}"), report(story, "--dry-run", "--target=configmap")]
    broken = report(story, "explain", "configmap", f"{story.namespace}/{BROKEN[0]}", code=BUGS)

    for told in reports:
        assert told.process.wait(60) == 1
        assert "replace-data.good" in told.output.read_text()
    assert broken.process.wait(60) == 1
    assert "ValueError" in broken.log.read_text()
    assert "k8s_copier" in story.pages[0]
    assert {"ValueError", "GeneratorExit", "MemoryError"} <= set(re.findall(r"[A-Z]\w+", program.log.read_text()))


def report(story: Story, *words: str, code: str = "") -> Program:
    """Have the copier report."""
    where = (f"--kubeconfig={story.server.kubeconfig}", f"--namespace={story.namespace}")
    return story.run(*begin(code), "copier", *words, *where, "--log-level=debug")


@pytest.mark.parametrize("before", range(6))
def test_the_search_finds_a_value_in_base64_wherever_it_stands(before: int) -> None:
    coded = base64.b64encode(b"-" * before + MARK.encode() + b"-more").decode()

    assert is_told(f"x{coded}x")
    assert not is_told(coded[: len(coded) // 4 * 4 - 20])


def test_a_story_whose_copier_tells_a_value_fails(embedded_story: Story) -> None:
    story = embedded_story
    secret(story, "s", "value")
    told: dict[str, Any] = {
        "as it is": f"{MARK}value",
        "in base64": f"{MARK_BASE64}dmFsdWU=",
        "the end of it": MARK[5:],
    }

    for text in told.values():
        program = story.run("-c", f"import sys; sys.stderr.write({text!r})")
        program.process.wait(60)
        with pytest.raises(AssertionError):
            story.assert_no_secret_is_told()
        program.log.write_text("")
    hashed = "from hashlib import sha256; print(sha256(b'" + f"{MARK_BASE64}dmFsdWU=" + "').hexdigest())"
    program = story.run("-c", hashed)
    program.process.wait(60)
    with pytest.raises(AssertionError):
        story.assert_no_secret_is_told()
    program.output.write_text("")
