"""A connection goes dead without a word: it is noticed within the limit, and the change made meanwhile arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from informers import Backoff, SystemClock, WatchOptions, metrics

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

pytestmark = pytest.mark.lists

SILENCE = 0.5
PLENTY = 1.5  # a busy machine is never silent for so long
PATIENCE = 60.0
STOPS = 10.0  # a stop on a busy machine
ROOM = 30.0  # on a busy machine
FROM_BOOKMARKS = WatchOptions(silence=SILENCE, timeout=60, backoff=Backoff(0.05, 0.4))


def silences() -> float:
    return metrics.counter("informers_watch_silences_total", "", ("cluster", "resource")).total()


def test_a_stream_that_freezes_is_replaced_and_the_change_arrives(perform: Callable[..., Stage]) -> None:
    stage = perform(bookmark_every=0.1)
    stage.put("a", "1")
    follower = stage.follow(watch=FROM_BOOKMARKS)
    follower.until_watching()
    stage.wait_bookmark(follower)
    first = stage.watches()[-1]

    fault = stage.faults.freeze(at="stream", verb="watch", resource="configmaps", existing=True, times=1)
    follower.until(lambda: fault.hits, "frozen")
    began = SystemClock().monotonic()
    stage.put("a", "2")
    follower.until_value("a", "2")

    assert SystemClock().monotonic() - began < SILENCE + ROOM
    assert stage.watches()[-1].connection != first.connection
    assert len(stage.lists()) == 1
    assert follower.words()["modified"] == 1


def test_only_the_frozen_one_of_two_quiet_streams_is_replaced(perform: Callable[..., Stage]) -> None:
    stage = perform(bookmark_every=0.1)
    quiet, frozen = stage.configmaps(), stage.configmaps(label_selector="app=frozen")
    follower = stage.follow(quiet, frozen, watch=WatchOptions(silence=PLENTY, timeout=60, backoff=Backoff(0.05, 0.4)))
    follower.until_watching(0)
    follower.until_watching(1)
    stage.wait_bookmark(follower)
    match = {"verb": "watch", "resource": "configmaps", "query": {"labelSelector": "*frozen*"}}
    before = len(stage.watches())

    stage.faults.freeze(at="stream", existing=True, times=1, match=match)
    follower.until(lambda: len(stage.watches()) == before + 1, "replaced")

    assert "frozen" in stage.watches()[-1].query["labelSelector"]
    assert follower.sets[0].age() < PLENTY
    # Twice the limit and more goes by, seen from the other stream's bookmarks.
    stage.faults.freeze(at="stream", existing=True, times=1, match=match)
    follower.until(lambda: len(stage.watches()) == before + 2, "replaced again")
    assert ["frozen" in request.query.get("labelSelector", "") for request in stage.watches()[before:]] == [True, True]


def test_headers_that_do_not_come_count_as_silence(perform: Callable[..., Stage]) -> None:
    stage = perform(bookmark_every=0.1)
    follower = stage.follow(watch=FROM_BOOKMARKS)
    follower.until_watching()
    stage.wait_bookmark(follower)
    held = stage.faults.freeze(verb="watch", resource="configmaps", times=1)
    stage.faults.close("RST", resource="configmaps")
    follower.until(lambda: held.hits, "headers are held back")

    stage.put("a", "1")
    follower.until_value("a", "1", timeout=SILENCE + ROOM)

    assert len(stage.lists()) == 1


def test_headers_that_come_with_the_first_event_are_waited_for(perform: Callable[..., Stage]) -> None:
    stage = perform(bookmark_every=60)
    stage.faults.holdhdr(verb="watch", resource="configmaps")
    follower = stage.follow()
    stage.embedded.wait_request(verb="watch", resource="configmaps", timeout=PATIENCE)

    stage.put("a", "1")
    follower.until_value("a", "1")

    assert len(stage.watches()) == 1


@pytest.mark.slow
def test_a_watch_ends_when_its_time_is_over_whatever_the_server_does(perform: Callable[..., Stage]) -> None:
    stage = perform(bookmark_every=0.5)
    frozen, endless = {"labelSelector": "is=frozen"}, {"labelSelector": "is=endless"}
    stage.faults.nobm(verb="watch", query=frozen)
    stage.faults.ignore("timeoutSeconds", verb="watch", query=endless)
    selections = [stage.configmaps(label_selector=one["labelSelector"]) for one in (frozen, endless)]
    follower = stage.follow(*selections, watch=stage.hasty(1, silence=30.0))
    follower.until_watching(0)
    follower.until_watching(1)

    stage.faults.freeze(at="stream", verb="watch", query=frozen, existing=True, times=1)
    stage.put("a", "1", labels={"is": "frozen"})
    follower.until_value("a", "1", timeout=20 + ROOM)
    follower.until(lambda: len(stage.watches(query=endless)) == 2, "replaced", timeout=10 + ROOM)

    assert len(stage.watches(query=frozen)) == 2
    assert len(stage.lists()) == 2


def test_a_frozen_network_is_noticed_and_the_change_arrives(stage: Stage) -> None:
    stage.put("a", "1", labels={"app": "a"})
    relay = stage.server.relay()
    follower = stage.follow(
        stage.configmaps(label_selector="app=a"), kubeconfig=relay.kubeconfig, watch=stage.hasty(2, silence=1.5)
    )
    follower.until_watching()
    # A real server sends bookmarks only when it has something newer: at the end of this watch, about this one.
    stage.put("another", "1")
    follower.until(lambda: follower.states().count("watching") >= 2, "the second watch")
    before = silences()

    relay.freeze()
    stage.put("a", "2")
    follower.until(lambda: silences() > before, "noticed", timeout=2 + ROOM)
    relay.reset()
    relay.heal()
    follower.until_value("a", "2")

    assert len(stage.log.lines("listed")) == 1


def test_a_server_that_is_suspended_is_noticed_and_followed_on_when_it_goes_on(real_stage: Stage) -> None:
    stage = real_stage
    assert stage.server.real is not None
    stage.put("a", "1", labels={"app": "a"})
    follower = stage.follow(stage.configmaps(label_selector="app=a"), watch=stage.hasty(5, silence=1.5, initial="list"))
    follower.until_watching()
    stage.put("another", "1")
    follower.until(lambda: follower.states().count("watching") >= 2, "the second watch, after a bookmark")
    before = silences()

    stage.server.real.pause()
    try:
        follower.until(lambda: silences() > before, "noticed")
    finally:
        stage.server.real.resume()
    stage.put("a", "2", labels={"app": "a"})
    follower.until_value("a", "2")

    assert len(stage.log.lines("listed")) == 1
    assert follower.words() == {"initial": 1, "modified": 1}


def test_a_list_that_freezes_is_asked_for_again(stage: Stage) -> None:
    stage.put("a", "1")
    relay = stage.server.relay()
    relay.freeze()
    follower = stage.follow(kubeconfig=relay.kubeconfig)
    follower.until(lambda: relay.connections() > 0, "asking")

    relay.reset()
    relay.heal()
    follower.until_value("a", "1")


def test_a_quiet_stream_whose_bookmarks_come_is_left_alone(real_stage: Stage) -> None:
    stage = real_stage
    follower = stage.follow(watch=WatchOptions(timeout=5, silence=15.0))
    before = silences()

    follower.until(lambda: follower.states().count("watching") >= 3, "two watches have ended", timeout=25 + ROOM)

    assert silences() == before
    assert len(stage.log.lines("listed")) == 1
    assert not stage.log.alarms()


@pytest.mark.parametrize("when", ["watching", "syncing"])
def test_a_frozen_server_does_not_delay_the_stop(stage: Stage, when: str) -> None:
    relay = stage.server.relay()
    if when == "syncing":
        relay.freeze()
    follower = stage.follow(kubeconfig=relay.kubeconfig)
    if when == "watching":
        follower.until_watching()
        relay.freeze()
    else:
        follower.until(lambda: relay.connections() > 0, "asking")

    assert follower.stop() < STOPS
