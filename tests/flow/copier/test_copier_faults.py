"""Whatever breaks between the copier and the server, every value arrives, and nobody's write is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

if TYPE_CHECKING:
    from informers.testing import Faults
    from informers.testing.relay import Relay
    from tests.flow.copier.conftest import Story

WATCHES: Any = {"verb": "watch", "client": "k8s-copier*"}


def test_writes_that_fail_are_made_again_and_the_time_asked_for_is_given(embedded_story: Story) -> None:
    story = embedded_story
    server = story.server.embedded
    assert server is not None
    faults = server.faults()
    patch: Any = {"verb": "patch", "resource": "configmaps", "client": "k8s-copier*"}
    faults.conflict(times=1, name="conflict", **patch)
    faults.conflict(times=1, committed=True, name="conflict-done", **patch)
    faults.status(code=500, times=2, name="500", **patch)
    faults.status(code=429, headers={"Retry-After": "2"}, times=1, name="429", **patch)
    faults.status(code=503, headers={"Retry-After": "1"}, times=1, name="503", **patch)
    faults.dropreply(times=1, name="no-reply", **patch)
    faults.rst(at="request", times=1, name="rst", **patch)
    faults.fin(at="headers", times=1, name="fin", **patch)
    waits = {"conflict": 0, "conflict-done": 0, "500": 0, "429": 2, "503": 1, "no-reply": 0, "rst": 0, "fin": 0}
    story.configmap("s", data={"k": "1"})
    for name in waits:
        story.configmap(name, rules={"replace-data.k": "configmap:s:data.k"})

    program = story.start("--target=configmap", "--workers=1")
    for name in waits:
        story.until(partial(is_copied, story, name), f"{name}: copied")
    story.quiesce(program)

    tries = {name: server.requests(name=name, **patch) for name in waits}
    for name, seconds in waits.items():
        assert tries[name][-1].started - tries[name][0].started >= seconds, name
    assert [len(tries[name]) for name in ("conflict", "500", "429")] == [2, 3, 2]
    assert not program.lines("rule state changed")
    story.quiesce(program)
    assert {name: server.requests(name=name, **patch) for name in waits} == tries


@pytest.mark.parametrize(
    "breaks",
    [
        lambda faults: faults.close("FIN", **WATCHES),
        lambda faults: faults.close("RST", **WATCHES),
        lambda faults: faults.trunc(bytes=40, existing=True, times=4, **WATCHES),
        lambda faults: (faults.compact(), faults.close("RST", **WATCHES)),
        lambda faults: faults.ev(code=410, reason="Expired", existing=True, times=4, **WATCHES),
        lambda faults: (
            faults.status(code=500, times=3, verb=["list", "watch"], client="k8s-copier*")
            and faults.close("RST", **WATCHES)
        ),
        lambda faults: faults.poison(line="{", existing=True, times=4, **WATCHES),
        lambda faults: faults.refuse(1.0),
    ],
    ids=["FIN", "RST", "cut line", "410", "ERROR 410", "500", "poison", "refused"],
)
def test_a_change_during_trouble_with_lists_and_watches_arrives(
    embedded_story: Story, breaks: Callable[[Faults], object]
) -> None:
    story = embedded_story
    server = story.server.embedded
    assert server is not None
    story.configmap("s", data={"k": "1"})
    story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    story.configmap("gone", rules={"replace-data.k": "configmap:s:data.k"})
    story.start("--target=configmap")
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")

    breaks(server.faults())
    hub = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s", "namespace": story.namespace}}
    server.put({**hub, "data": {"k": "2"}})
    server.remove("configmaps", "gone", story.namespace)

    story.until(lambda: target_data(story) == {"k": "2"}, "the change is copied")
    assert not server.objects("configmaps", story.namespace) or "gone" not in names(story)


def test_a_stream_that_fell_silent_is_replaced(embedded_story: Story) -> None:
    story = embedded_story
    server = story.server.embedded
    assert server is not None
    story.configmap("s", data={"k": "1"})
    story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    program = story.start("--target=configmap", "--watch-silence=2s")
    story.until(lambda: program.lines("in sync"), "copied, and the copy was seen")
    # Nothing happens now, so what comes on a stream is a bookmark: by these a silent stream is told from a quiet one.
    before = received(story)
    story.until(lambda: all(count > before.get(n, 0) for n, count in received(story).items()), "all have bookmarks")

    with server.faults().freeze(at="stream", existing=True, **WATCHES):
        story.configmap("s", data={"k": "2"})

    story.until(lambda: story.data("t") == {"k": "2"}, "the change is copied")


def received(story: Story) -> dict[int, int]:
    """Return how many bytes came on each stream that is open."""
    assert story.server.embedded is not None
    return {watch.n: watch.response_bytes for watch in story.server.embedded.requests(ended="open", **WATCHES)}


def is_copied(story: Story, name: str) -> bool:
    return story.data(name) == {"k": "1"}


def target_data(story: Story) -> object:
    """Read the target behind the API, which may be out of order just now."""
    assert story.server.embedded is not None
    found = story.server.embedded.objects("configmaps", story.namespace)
    return next(obj.get("data") for obj in found if obj["metadata"]["name"] == "t")


def names(story: Story) -> list[str]:
    assert story.server.embedded is not None
    return [obj["metadata"]["name"] for obj in story.server.embedded.objects("configmaps", story.namespace)]


def test_a_broken_line_to_the_server_delays_a_change_and_loses_nothing(story: Story) -> None:
    relay: Relay = story.server.relay()
    story.configmap("s", data={"k": "1"})
    story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    program = story.start("--target=configmap", "--watch-silence=2s", kubeconfig=relay.kubeconfig)
    story.until(lambda: story.data("t") == {"k": "1"}, "copied")

    for word in ("reset", "finish", "freeze", "refuse"):
        getattr(relay, word)()
        story.configmap("s", data={"k": word})
        story.configmap(word, rules={"replace-data.k": "configmap:s:data.k"})
        relay.heal()
        wanted = {"k": word}
        story.until(lambda: story.data("t") == wanted, f"{word}: the change is copied")  # noqa: B023
        story.until(lambda: story.data(word) == wanted, f"{word}: the new target is filled")  # noqa: B023
    program.stop()


def test_three_sources_and_a_rival_write_one_target_and_nothing_is_lost(story: Story) -> None:
    for name in ("s1", "s2", "s3"):
        story.configmap(name, data={"v": "0"})
    rules = {f"replace-data.k{number}": f"configmap:s{number}:data.v" for number in (1, 2, 3)}
    story.configmap("t", rules=rules)
    program = story.start("--target=configmap")
    story.until(lambda: len(story.data("t")) == 3, "copied")

    def write_as_rival() -> None:
        for number in range(50):
            story.configmap("t", data={"other": str(number)})

    rival = Thread(target=write_as_rival, name="rival")
    rival.start()
    for value in range(1, 11):
        for name in ("s1", "s2", "s3"):
            story.configmap(name, data={"v": str(value)})
    rival.join()

    wanted = {"k1": "10", "k2": "10", "k3": "10", "other": "49"}
    story.until(lambda: story.data("t") == wanted, "all values arrived, and the rival's last one is there")
    assert not program.lines("rule state changed")


def test_rules_sources_and_targets_that_come_and_go_from_many_sides_end_in_sync(story: Story) -> None:
    program = story.start("--target=configmap")

    def play(side: int) -> None:
        for turn in range(6):
            source, target = f"s-{side}", f"t-{side}"
            story.configmap(source, data={"k": f"{side}.{turn}"})
            story.configmap(target, rules={"replace-data.k": f"configmap:{source}:data.k"})
            if turn % 3 == 1:
                story.client.delete(story.ref("ConfigMap", target))
            if turn % 3 == 2:
                story.client.delete(story.ref("ConfigMap", source))
        story.configmap(source, data={"k": f"{side}.last"})

    story.in_parallel(play, range(16))

    story.until(lambda: all(story.data(f"t-{side}") == {"k": f"{side}.last"} for side in range(16)), "all in sync")
    program.stop()
    assert not [line for line in program.lines() if line["level"] == "error"]


def test_it_is_live_but_not_ready_until_a_server_answers(story: Story) -> None:
    relay: Relay = story.server.relay()
    relay.refuse()
    program = story.start("--target=configmap", "--http-address=127.0.0.1:0", kubeconfig=relay.kubeconfig)
    story.until(lambda: program.lines("listening"), "it listens")
    port = program.lines("listening")[0]["port"]

    story.until(
        lambda: probe(port, "/readyz/targets") == (503, "no cluster has said yet which kinds it serves\n"),
        "nobody answers",
    )
    assert probe(port, "/livez") == (200, "ok\n")
    relay.heal()
    story.until(lambda: probe(port, "/readyz") == (200, "ok\n"), "targets were looked at")
    program.stop()


def probe(port: int, path: str) -> tuple[int, str]:
    """Ask the copier how it does."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
