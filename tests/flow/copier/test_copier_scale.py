"""One source with many targets: all get each change, nobody else waits for them, and a kill repeats nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.flow.copier.conftest import CONFIGMAPS, PREFIX, unmarked

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Program, Story

RULE = {f"{PREFIX}replace-data.k": "secret:hub:data.k"}
WORKERS = 4
VALUES = ["MQ==", "Mg==", "Mw==", "NA=="]
MANY = [0, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("many", MANY, ids=["some", "many"])
def test_a_fan_out_loses_and_repeats_nothing_and_keeps_nobody_waiting(story: Story, many: int) -> None:
    targets = many or (200 if story.server.embedded is not None else 500)
    names = [f"t-{number:04}" for number in range(targets)]
    patience = max(60.0, targets / 5)
    make_targets(story, names)
    story.configmap("s", data={"k": "1"})
    story.configmap("aside", rules={"replace-data.k": "configmap:s:data.k"})
    set_hub(story, VALUES[0])
    program = story.start("--target=configmap")
    story.until(lambda: len(program.lines("patched")) == targets + 1, "all are filled", timeout=patience)
    assert not stale(story, VALUES[0])

    set_hub(story, VALUES[1])
    with stopped(program):
        set_hub(story, VALUES[2])
        story.configmap("s", data={"k": "2"})
    written = partial(program.targets_of, "patched")
    story.until(
        lambda: len(written()) >= 2 * targets + 1 and not stale(story, VALUES[2]),
        "all have the second change",
        timeout=patience,
    )
    story.until(lambda: story.data("aside") == {"k": "2"}, "so has the one aside", timeout=patience)
    story.until(lambda: set(program.targets_of("in sync")) >= set(written()), "all echoes are seen", timeout=patience)

    later = written()[targets + 1 :]
    assert targets <= len(later) - 1 <= 2 * targets
    assert any(target.endswith("/aside") for target in later[:-1]), "the one aside went before the last of the many"
    kill_halfway(story, program, targets, patience)


def kill_halfway(story: Story, program: Program, targets: int, patience: float) -> None:
    """Kill the copier in the midst of a change, start another, and see that it does the rest and no more."""
    before = len(program.lines("patched"))
    faults = story.server.embedded.faults() if story.server.embedded is not None else None
    some = targets // 5
    if faults is not None:  # on the real server it may happen to be done before it is killed
        faults.freeze(at="request", skip=some, verb="patch", resource="configmaps", client="k8s-copier*")
    set_hub(story, VALUES[3])
    story.until(lambda: len(program.lines("patched")) >= before + some, "some have the next", timeout=patience)
    program.kill()
    if faults is not None:
        faults.clear()
    left = left_behind(story, VALUES[3])
    again = story.start("--target=configmap")
    story.until(lambda: len(looked_at(again)) == targets + 1, "it has looked at all of them", timeout=patience)
    story.until(lambda: not stale(story, VALUES[3]), "the restarted copier did the rest", timeout=patience)
    again.stop()

    # Of the real server one cannot know whether it still works on a request of each worker when it is counted.
    assert 0 <= left - len(again.lines("patched")) <= (0 if faults is not None else WORKERS)
    if faults is not None:
        assert left == targets - some


@contextmanager
def stopped(program: Program) -> Iterator[None]:
    """Let the process stand still meanwhile."""
    os.kill(program.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(program.process.pid, signal.SIGCONT)


def left_behind(story: Story, value: str) -> int:
    """Count the targets that do not have this value, once the last requests of a killed copier are done."""
    counts = [-1, len(stale(story, value))]
    while counts[-1] != counts[-2]:
        counts.append(len(stale(story, value)))
    return counts[-1]


def make_targets(story: Story, names: list[str]) -> None:
    manifests: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": story.namespace, "annotations": RULE},
            "data": {"own": name},
        }
        for name in names
    ]
    if story.server.embedded is not None:
        story.server.embedded.put(*manifests)
    else:
        story.in_parallel(
            lambda each: story.client.create(CONFIGMAPS, each, namespace=story.namespace, field_manager="test"),
            manifests,
        )


def set_hub(story: Story, value: str) -> None:
    story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": {"k": value}})


def stale(story: Story, value: str) -> list[str]:
    """Name the targets that do not have this value."""
    found = story.client.list(CONFIGMAPS, namespace=story.namespace, limit=0)
    return [obj.name for obj in found if obj.name.startswith("t-") and unmarked(obj.get("data", "k")) != value]


def looked_at(program: Program) -> set[str]:
    return {*program.targets_of("in sync"), *program.targets_of("patched")}


def test_certificate_and_key_are_never_seen_mixed(story: Story) -> None:
    rules = {f"{PREFIX}replace-data.{key}": f"secret:cert:data.{key}" for key in ("tls.crt", "tls.key")}
    secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
    target = story.apply({**secret, "metadata": {"name": "t", "annotations": rules}, "data": {}})
    source = story.apply({**secret, "metadata": {"name": "cert"}, "data": {"tls.crt": "", "tls.key": ""}})
    program = story.start("--target=secret")

    with story.server.wire().stream(
        f"/api/v1/namespaces/{story.namespace}/secrets", query=[("watch", "1"), ("fieldSelector", "metadata.name=t")]
    ) as stream:
        for number in range(100):
            pair = {"tls.crt": f"Yw{number:02}", "tls.key": f"aw{number:02}"}
            story.client.patch(source, {"data": pair}, field_manager="test")
            if number % 10 == 9:
                story.until(lambda: story.content(target).get("data") == pair, "the tenth is copied")  # noqa: B023
        seen = observed(stream, "aw99")

    program.stop()
    assert len(seen) >= 10
    assert all(crt[2:] == key[2:] for crt, key in seen)


def observed(stream: Any, last: str) -> list[tuple[str, str]]:
    """Read the watch until it has shown the last pair."""
    found: list[tuple[str, str]] = []
    for line in stream.lines(silence=60.0):
        data = json.loads(line)["object"].get("data") or {}
        if data:
            found.append((data["tls.crt"], data["tls.key"]))
        if data.get("tls.key") == last:
            break
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_secret_that_no_rule_reads_costs_two_and_a_half_kilobytes_at_most(story: Story) -> None:
    story.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "MQ=="}})
    story.configmap("t", rules={"replace-data.k": "secret:s:data.k"})
    alone = memory_of_a_copier(story)
    body = "QUFB" * 3334  # 10 kB decoded
    number_of = 20_000
    secrets = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"bulk-{number:05}", "namespace": story.namespace},
            "data": {"k": body},
        }
        for number in range(number_of)
    ]
    if story.server.embedded is not None:
        story.server.embedded.put(*secrets)
    else:
        gvr = story.ref("Secret", "s").gvr
        story.in_parallel(
            lambda each: story.client.create(gvr, each, namespace=story.namespace, field_manager="test"), secrets
        )

    among_many = memory_of_a_copier(story)

    assert (among_many - alone) / number_of <= 2500


def memory_of_a_copier(story: Story) -> int:
    """Start a copier, wait until all that is to do is done, and return the bytes of memory that are its own."""
    story.configmap("t", data={"k": "stale"})
    program = story.start("--target=configmap", "--log-level=info")
    story.until(lambda: story.data("t") == {"k": "MQ=="}, "copied", timeout=600)
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    program.stop()
    (kilobytes,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(kilobytes) * 1024
