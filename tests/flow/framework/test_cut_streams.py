"""Streams end in the middle of a line, a chunk, a character: nothing is lost, nothing is told twice, nobody is alarmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from informers import Backoff, WatchOptions

if TYPE_CHECKING:
    from informers.testing.apiserver import Faults
    from informers.testing.relay import Relay
    from tests.flow.framework.conftest import Stage

pytestmark = pytest.mark.lists

WIDE = "é€😀"  # two, three and four bytes
HASTY = WatchOptions(backoff=Backoff(0.001, 0.002))


@pytest.mark.parametrize("kept", [0, 1, 20, 200])
def test_a_cut_line_is_sent_again_by_the_next_watch(breakable: Stage, kept: int) -> None:
    stage = breakable
    follower = stage.follow()
    follower.until_watching()
    seen = follower.rv()

    stage.faults.trunc(bytes=kept, verb="watch", resource="configmaps", existing=True, times=1)
    stage.put("a", WIDE)
    follower.until_value("a", WIDE)

    assert follower.words() == {"added": 1}
    assert len(stage.lists()) == 1
    assert stage.watches()[1].query["resourceVersion"] == seen
    assert not stage.log.alarms()


def test_each_byte_in_a_chunk_of_its_own_gives_the_same(breakable: Stage) -> None:
    stage = breakable
    stage.faults.split(every=1, verb=["watch", "list"], resource="configmaps")
    stage.put("listed", WIDE)
    follower = stage.follow()
    follower.until_watching()

    stage.put("a", WIDE)
    follower.until_value("a", WIDE)

    assert follower.values() == {"listed": WIDE, "a": WIDE}
    assert len(stage.watches()) == 1


def test_a_cut_at_every_offset_of_a_line_gives_the_same(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "0")
    follower = stage.follow()
    follower.until_watching()
    stage.put("a", f"{WIDE}0")
    follower.until_value("a", f"{WIDE}0")
    line = len(follower.lister.get("a", stage.namespace).raw) + 400  # what was stripped, and around it

    for offset in range(1, line, 1 if line < 200 else 7):
        with stage.faults.split(at=offset, verb="watch", resource="configmaps", existing=True):
            stage.put("a", f"{WIDE}{offset}")
            follower.until_value("a", f"{WIDE}{offset}")

    assert len(stage.watches()) == 1
    assert follower.words()["modified"] == len(range(1, line, 1 if line < 200 else 7)) + 1


def clean(faults: Faults) -> None:
    faults.fin(at="stream", clean=True, verb="watch", resource="configmaps", existing=True, times=1)


def in_a_chunk(faults: Faults) -> None:
    faults.fin(at="stream", clean=False, verb="watch", resource="configmaps", existing=True, times=1)


def by_reset(faults: Faults) -> None:
    faults.rst(at="stream", verb="watch", resource="configmaps", existing=True, times=1)


@pytest.mark.parametrize("end", [clean, in_a_chunk, by_reset])
def test_however_a_stream_ends_the_next_goes_on_where_it_stood(breakable: Stage, end: Callable[[Faults], None]) -> None:
    stage = breakable
    follower = stage.follow()
    follower.until_watching()
    stage.put("a", "1")
    follower.until_value("a", "1")

    end(stage.faults)
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert follower.words() == {"added": 1, "modified": 1}
    assert len(stage.lists()) == 1
    assert stage.watches()[1].connection != stage.watches()[0].connection
    assert not stage.log.alarms()


@pytest.mark.parametrize("bound", [64, 256])
def test_a_body_without_chunks_is_taken(breakable: Stage, bound: int) -> None:
    stage = breakable
    stage.faults.plain(verb=["watch", "list"], resource="configmaps")
    stage.put("listed", "x" * bound)
    follower = stage.follow()
    follower.until_watching()

    stage.put("a", "1")
    follower.until_value("a", "1")
    stage.faults.fin(at="stream", verb="watch", resource="configmaps", existing=True, times=1)
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert follower.values() == stage.values()


def resetting(relay: Relay) -> None:
    relay.reset()


def finishing(relay: Relay) -> None:
    relay.finish()


@pytest.mark.parametrize("cut", [resetting, finishing])
def test_lines_cut_again_and_again_while_objects_change_lose_nothing(
    stage: Stage, cut: Callable[[Relay], None]
) -> None:
    relay = stage.server.relay()
    stage.put("deleted", "0")
    follower = stage.follow(kubeconfig=relay.kubeconfig, watch=HASTY)
    follower.until_watching()

    for number in range(30):
        stage.put(f"c{number % 7}", str(number))
        if number % 3 == 0:
            cut(relay)
        if number == 15:
            stage.delete("deleted")
    follower.until(lambda: follower.replayed() == stage.values(), "the same as the server")

    assert follower.values() == stage.values()
    assert [told.word for told in follower.told() if told.name == "deleted"][-1] in {"deleted", "tombstone"}
    assert "error" not in stage.log.levels()


def test_a_list_that_is_cut_is_asked_for_again(stage: Stage) -> None:
    for number in range(20):
        stage.put(f"c{number}", "x" * 1000)
    relay = stage.server.relay()
    relay.slow(4000)
    follower = stage.follow(kubeconfig=relay.kubeconfig)
    follower.until(lambda: relay.connections() > 0, "asking")

    relay.reset()
    relay.heal()
    follower.until_synced()

    assert follower.values() == stage.values()
    assert len(follower.told()) == 20
