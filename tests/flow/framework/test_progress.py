"""A stream that is not silent and yet brings nothing: asked how far it is, the server tells, and the stream is replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from informers import Backoff, WatchOptions

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

CHECKED = WatchOptions(silence=1.0, progress_check=0.3, backoff=Backoff(0.05, 0.4))


def test_a_stream_that_has_fallen_behind_is_replaced(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    follower = stage.follow(watch=CHECKED)
    follower.until_watching()
    first = stage.watches()[-1]
    slow = stage.faults.slow(bps=500, verb="watch", resource="configmaps", existing=True, times=1)
    follower.until(lambda: slow.hits, "slowed down")

    large = "x" * 200_000  # takes minutes to come, byte by byte
    stage.put("large", large)
    follower.until(lambda: stage.log.lines("watch has fallen behind, replacing it"), "noticed")
    follower.until_value("large", large)

    assert stage.watches()[-1].connection != first.connection
    asked = [request.query for request in stage.lists()]
    assert asked
    assert all(query == {"limit": "1"} for query in asked)


def test_a_stream_that_keeps_up_is_left_alone(breakable: Stage) -> None:
    stage = breakable
    follower = stage.follow(watch=WatchOptions(silence=60, progress_check=0.05))
    follower.until_watching()
    for number in range(5):
        stage.put("a", str(number))
        follower.until_value("a", str(number))
    before = len(stage.lists())
    follower.until(lambda: len(stage.lists()) >= before + 3, "asked again and again")

    assert len(stage.watches()) == 1
    assert not stage.log.lines("watch has fallen behind, replacing it")
