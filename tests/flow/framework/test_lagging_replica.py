"""A replica that lags answers: the store never goes back in time, and one that can never answer is asked otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

pytestmark = pytest.mark.lists


def values_told(follower: Follower, name: str) -> list[str]:
    return [told.value for told in follower.told() if told.name == name]


def test_a_relist_at_a_stale_replica_never_takes_the_store_back(breakable: Stage) -> None:
    stage = breakable
    stage.put("deleted", "1")
    stage.put("a", "1")
    old = int(stage.put("a", "2"))
    follower = stage.follow()
    follower.until_watching()
    stage.put("a", "3")
    stage.delete("deleted")
    follower.until_value("deleted", None)
    seen = follower.rv()
    stage.embedded.clear_requests()

    lagging = stage.faults.lag(rv=old, mode="stale", resource="configmaps", client="story*")
    stage.faults.ev(code=500, verb="watch", resource="configmaps", existing=True, times=1)
    follower.until(lambda: lagging.hits >= 1, "the replica was asked")
    stage.put("a", "4")
    follower.until(lambda: values_told(follower, "a")[-1] == "4" or lagging.hits >= 3, "answered otherwise")
    lagging.remove()
    follower.until_value("a", "4")

    assert stage.lists()[0].query["resourceVersion"] == seen
    assert values_told(follower, "a") == ["2", "3", "4"]
    assert [told.word for told in follower.told() if told.name == "deleted"] == ["initial", "deleted"]
    assert follower.values() == stage.values()


def test_a_watch_at_a_stale_replica_tells_nothing_old(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    old = int(stage.put("a", "2"))
    follower = stage.follow()
    follower.until_watching()
    stage.put("a", "3")
    follower.until_value("a", "3")

    with stage.faults.lag(rv=old, mode="stale", verb="watch", resource="configmaps", existing=False) as lagging:
        stage.faults.close("RST", resource="configmaps")
        follower.until(lambda: lagging.hits, "the replica was asked")
        stage.put("b", "1")
    stage.faults.close("RST", resource="configmaps")
    follower.until_value("b", "1")

    assert values_told(follower, "a") == ["2", "3"]


def test_a_version_that_is_too_large_for_a_replica_is_left_out_once(breakable: Stage) -> None:
    stage = breakable
    stage.put("a", "1")
    old = int(stage.put("a", "2"))
    follower = stage.follow()
    follower.until_watching()
    stage.put("a", "3")
    follower.until_value("a", "3")
    seen = follower.rv()
    stage.embedded.clear_requests()

    stage.faults.lag(rv=old, mode="toolarge", verb="list", resource="configmaps")
    stage.faults.ev(code=500, verb="watch", resource="configmaps", existing=True, times=1)
    stage.put("a", "4")
    follower.until_value("a", "4")

    first, second = stage.lists()
    assert dict(first.query) == {"resourceVersion": seen}
    assert "resourceVersion" not in second.query
    assert (first.status, second.status) == (504, 200)
    assert values_told(follower, "a") == ["2", "3", "4"]
