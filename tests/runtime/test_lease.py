"""What is decided about a Lease: only from what was seen, and when on one's own monotonic clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from informers.runtime.lease import (
    Lease,
    Look,
    Lose,
    Rest,
    Step,
    Terms,
    View,
    Write,
    Yield,
    decide,
    failed,
    looked,
    micro_time,
    released,
    wrote,
)

WALL = datetime(2024, 5, 17, 12, tzinfo=UTC)
TERMS = Terms(identity="me", lease_duration=15.0, renew_deadline=10.0, retry_period=2.0)


def lease(holder: str = "other", *, version: str = "7", renewed: str = "r1", **spec: Any) -> Lease:
    given = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 3, **spec}
    return Lease({"metadata": {"name": "l", "uid": "u", "resourceVersion": version}, "spec": given})


def step(view: View, now: float, wall: datetime = WALL) -> Step:
    return decide(view, TERMS, now=now, wall=wall, name="l", namespace="ns")


def look(view: View, found: Lease | None, now: float) -> View:
    return looked(view, TERMS, found, now=now, pause=1.0)


def written(view: View, now: float, wall: datetime = WALL) -> Write:
    found = step(view, now, wall)
    assert isinstance(found, Write)
    return found


def stored(write: Write, version: str = "8") -> Lease:
    """Return what the server has after a write."""
    metadata = {"uid": "u", **write.body["metadata"], "resourceVersion": version}
    return Lease({**write.body, "metadata": metadata})


def leading(at: float = 100.0, found: Lease | None = None) -> View:
    """Return the view of who has taken a free lease at `at`."""
    view = look(View(), found or lease(""), at)
    return wrote(view, TERMS, stored(written(view, at)), sent=at, now=at, pause=1.0)


def fail(view: View, write: Write | None, now: float, **how: Any) -> View:
    given = {"is_answer": True, "is_conflict": False, **how}
    return failed(view, TERMS, write, sent=now, now=now, pause=1.0, **given)


# A candidate.


def test_the_first_thing_is_to_look() -> None:
    assert step(View(), 100.0) == Look()


def test_a_lease_that_is_not_there_is_made() -> None:
    found = written(look(View(), None, 100.0), 100.0)

    assert found.body == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "ns"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": "2024-05-17T12:00:00.000000Z",
            "renewTime": "2024-05-17T12:00:00.000000Z",
            "leaseTransitions": 0,
        },
    }


def test_a_lease_without_a_holder_is_free_at_once_and_what_else_it_says_is_kept() -> None:
    released_one = lease("", leaseDurationSeconds=1, strategy="S", later="field")
    labelled = Lease({**released_one.body, "metadata": {**released_one.body["metadata"], "labels": {"a": "b"}}})

    found = written(look(View(), labelled, 100.0), 100.0)

    assert found.body["metadata"] == labelled.body["metadata"]
    assert found.body["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2024-05-17T12:00:00.000000Z",
        "renewTime": "2024-05-17T12:00:00.000000Z",
        "leaseTransitions": 4,
        "strategy": "S",
        "later": "field",
    }


def test_a_held_lease_is_looked_at_again_and_taken_when_it_did_not_change_for_its_duration() -> None:
    view = look(View(), lease(), 100.0)

    assert step(view, 100.0) == Rest(101.0)
    assert step(view, 101.0) == Look()
    view = look(view, lease(), 114.5)
    assert step(view, 114.5) == Rest(115.0), "not later than it can be taken"
    assert written(look(view, lease(), 115.0), 115.0).version == "7"


def test_the_time_counts_from_the_last_change_that_was_seen() -> None:
    view = look(look(View(), lease(), 100.0), lease(renewed="r2", version="8"), 110.0)

    assert isinstance(step(look(view, lease(renewed="r2", version="8"), 124.9), 124.9), Rest)
    assert isinstance(step(look(view, lease(renewed="r2", version="8"), 125.0), 125.0), Write)


def test_labels_that_change_renew_nothing() -> None:
    view = look(look(View(), lease(), 100.0), lease(version="9"), 110.0)

    assert written(look(view, lease(version="9"), 115.0), 115.0).version == "9"


@pytest.mark.parametrize("wall", [WALL - timedelta(days=9000), WALL + timedelta(days=9000)])
def test_clocks_on_walls_do_not_matter(wall: datetime) -> None:
    """The holder's times may be long past or far ahead."""
    other = lease(renewed=micro_time(wall), acquireTime=micro_time(wall))

    view = look(View(), other, 100.0)

    assert isinstance(step(look(view, other, 114.9), 114.9, wall), Rest)
    assert isinstance(step(look(view, other, 115.0), 115.0, wall), Write)


@pytest.mark.parametrize(
    ("published", "waits"), [(40, 40.0), (3, 3.0), (0, 15.0), (-1, 15.0), (None, 15.0), ("x", 15.0)]
)
def test_what_the_holder_published_is_waited_for(published: Any, waits: float) -> None:
    other = lease(leaseDurationSeconds=published)
    view = look(View(), other, 100.0)

    assert isinstance(step(look(view, other, 99.9 + waits), 99.9 + waits), Rest)
    assert isinstance(step(look(view, other, 100.0 + waits), 100.0 + waits), Write)


def test_a_duration_that_becomes_shorter_ends_no_holders_time_earlier() -> None:
    view = look(look(View(), lease(), 100.0), lease(leaseDurationSeconds=1, version="8"), 101.0)

    assert isinstance(step(look(view, lease(leaseDurationSeconds=1, version="8"), 114.9), 114.9), Rest)


def test_a_lease_that_was_deleted_is_not_made_by_others_while_its_holder_may_still_work() -> None:
    view = look(look(View(), lease(), 100.0), None, 105.0)

    assert isinstance(step(view, 105.0), Rest)
    assert written(look(view, None, 115.0), 115.0).version == ""


def test_a_lease_in_our_name_is_ours_and_its_term_goes_on() -> None:
    view = look(View(), lease("me", acquireTime="a1"), 100.0)

    found = written(view, 100.0)

    assert (found.body["spec"]["acquireTime"], found.body["spec"]["leaseTransitions"]) == ("a1", 3)
    assert wrote(view, TERMS, stored(found), sent=100.0, now=100.5, pause=1.0).renewed_at == 100.0


def test_a_conflict_on_taking_is_no_failure() -> None:
    view = look(View(), lease(""), 100.0)
    view = fail(view, written(view, 100.0), 100.1, is_conflict=True)

    assert step(view, 100.1) == Look()
    view = look(view, lease("faster", version="8"), 100.2)
    assert step(view, 100.2) == Rest(101.2)
    assert view.failures == 0


def test_a_take_whose_answer_comes_too_late_leads_to_nothing_before_another_one() -> None:
    view = look(View(), lease(""), 100.0)
    view = wrote(view, TERMS, stored(written(view, 100.0)), sent=100.0, now=110.0, pause=1.0)

    assert not view.is_leading
    assert isinstance(step(view, 110.0), Write)


# A leader.


def test_a_renewal_is_sent_a_period_after_the_last_one_without_looking() -> None:
    view = leading(100.0)

    assert step(view, 100.0) == Rest(102.0)
    found = written(view, 102.0, WALL + timedelta(seconds=2))
    assert found.version == "8"
    assert found.body["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2024-05-17T12:00:00.000000Z",
        "renewTime": "2024-05-17T12:00:02.000000Z",
        "leaseTransitions": 4,
    }


@pytest.mark.parametrize("wall", [WALL, WALL - timedelta(microseconds=1)])
def test_no_renewal_says_what_is_there_already(wall: datetime) -> None:
    """A clock on the wall that stands still, or jumps back: the record must change, or nobody would see it."""
    view = leading(100.0)

    assert written(view, 102.0, wall).renewed != "2024-05-17T12:00:00.000000Z"


def test_leadership_ends_when_the_deadline_has_passed_since_the_last_renewal_was_sent() -> None:
    view = leading(100.0)

    assert not isinstance(step(view, 109.9), Lose)
    assert step(view, 110.0) == Lose("not renewed within 10 s")


def test_a_rest_of_a_leader_ends_with_its_deadline() -> None:
    view = replace(leading(100.0), rest_until=300.0)

    assert step(view, 109.0) == Rest(110.0)


def test_another_holder_ends_leadership_at_once() -> None:
    view = fail(leading(100.0), written(leading(100.0), 102.0), 102.0, is_conflict=True)

    assert step(view, 102.0) == Look()
    assert step(look(view, lease("thief", version="9"), 102.1), 102.1) == Lose("held by thief")


def test_a_renewal_that_was_carried_out_though_its_answer_was_lost_counts_from_when_it_was_sent() -> None:
    write = written(leading(100.0), 102.0, WALL + timedelta(seconds=2))
    view = fail(leading(100.0), write, 102.0, is_answer=False)

    view = look(view, stored(write, "9"), 104.0)

    assert view.renewed_at == 102.0
    assert step(view, 104.0 - 0.001) == Rest(104.0)


def test_of_two_tries_that_say_the_same_the_earlier_one_counts() -> None:
    write = written(leading(100.0), 102.0)
    view = fail(leading(100.0), write, 102.0, is_answer=False)
    view = fail(view, write, 105.0, is_answer=False)

    assert look(view, stored(write, "9"), 106.0).renewed_at == 102.0


def test_a_try_that_is_based_on_what_is_no_more_there_is_forgotten() -> None:
    """Its resourceVersion keeps it from being carried out ever after."""
    view = leading(100.0)
    view = fail(view, written(view, 102.0), 102.0, is_answer=False)
    assert len(look(view, view.lease, 103.0).tries) == 1

    assert look(view, replace_version(view, "9"), 103.0).tries == ()


def test_a_renewal_that_was_not_carried_out_is_tried_again_at_once_and_then_each_period() -> None:
    view = leading(100.0)
    view = fail(view, written(view, 102.0), 102.0, is_conflict=True)
    view = look(view, replace_version(view, "9"), 102.0)
    write = written(view, 102.0)
    assert write.version == "9"

    view = look(fail(view, write, 102.0, is_conflict=True), replace_version(view, "10"), 102.0)

    assert step(view, 102.0) == Rest(104.0)
    assert written(view, 104.0).version == "10"


def replace_version(view: View, version: str) -> Lease:
    """Return what the server has after somebody has changed a label."""
    assert view.lease is not None
    return Lease({**view.lease.body, "metadata": {**view.lease.body["metadata"], "resourceVersion": version}})


@pytest.mark.parametrize(
    ("retry_after", "waits"), [(None, 2.0), (1.0, 2.0), (5.0, 5.0), (8.0, 2.0), (3600.0, 2.0)], ids=str
)
def test_a_server_that_has_no_time_is_asked_again_each_period_or_when_it_says_if_that_is_in_time(
    retry_after: float | None, waits: float
) -> None:
    view = leading(100.0)
    view = fail(view, written(view, 102.0), 102.0, retry_after=retry_after)

    assert step(view, 102.0) == Look()
    view = look(view, view.lease, 102.0)
    assert step(view, 102.0) == Rest(102.0 + waits)


def test_looks_that_fail_are_tried_each_period() -> None:
    view = leading(100.0)
    view = fail(view, written(view, 102.0), 102.0, is_answer=False)
    view = fail(view, None, 102.0, is_answer=False)

    assert step(view, 102.0) == Rest(104.0)
    assert step(view, 104.0) == Look()


def test_a_deleted_lease_is_made_again_by_its_holder_as_it_was() -> None:
    found = lease("", strategy="S")
    labelled = Lease({**found.body, "metadata": {**found.body["metadata"], "labels": {"a": "b"}}})
    view = leading(100.0, labelled)
    view = fail(view, written(view, 102.0), 102.0, is_conflict=True)

    write = written(look(view, None, 102.0), 102.0, WALL + timedelta(seconds=2))

    assert write.version == ""
    assert write.body["metadata"] == {"name": "l", "namespace": "ns", "labels": {"a": "b"}}
    assert write.body["spec"]["acquireTime"] == "2024-05-17T12:00:00.000000Z"
    assert write.body["spec"]["leaseTransitions"] == 4
    assert write.body["spec"]["strategy"] == "S"
    assert wrote(view, TERMS, stored(write, "11"), sent=102.0, now=102.1, pause=1.0).renewed_at == 102.0


def test_a_deleted_lease_is_not_made_again_after_the_deadline() -> None:
    view = fail(leading(100.0), written(leading(100.0), 102.0), 102.0, is_conflict=True)

    assert isinstance(step(look(view, None, 110.0), 110.0), Lose)


def test_an_emptied_lease_is_taken_again_by_who_leads() -> None:
    view = fail(leading(100.0), written(leading(100.0), 102.0), 102.0, is_conflict=True)

    view = look(view, lease("", version="9"), 102.0)

    assert view.is_leading
    assert written(view, 102.0).body["spec"]["holderIdentity"] == "me"


def test_who_is_not_preferred_does_not_renew() -> None:
    view = leading(100.0)
    write = written(view, 102.0)
    answer = stored(write, "9")
    preferring = Lease({**answer.body, "spec": {**answer.spec, "preferredHolder": "better"}})

    view = wrote(view, TERMS, preferring, sent=102.0, now=102.1, pause=1.0)

    assert step(view, 104.0) == Yield("better")


def test_who_is_preferred_gets_a_free_lease_first() -> None:
    preferring = lease("", preferredHolder="better")
    view = look(View(), preferring, 100.0)

    assert isinstance(step(view, 100.0), Rest)
    assert isinstance(step(look(View(), lease("", preferredHolder="me"), 100.0), 100.0), Write)
    taken = written(look(view, preferring, 115.0), 115.0)
    assert "preferredHolder" not in taken.body["spec"], "who was preferred has not come"


# The record.


def test_a_released_lease_is_free_and_keeps_what_else_it_says() -> None:
    given = lease("me", strategy="S", acquireTime="a1")

    found = released(given, wall=WALL)

    assert found["metadata"] == given.body["metadata"]
    assert found["spec"] == {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "renewTime": "2024-05-17T12:00:00.000000Z",
        "acquireTime": "a1",
        "leaseTransitions": 3,
        "strategy": "S",
    }


def test_times_have_six_digits() -> None:
    assert micro_time(datetime(2024, 1, 2, 3, 4, 5, 60, tzinfo=UTC)) == "2024-01-02T03:04:05.000060Z"
    east = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC).astimezone(tz=None)
    assert micro_time(east) == "2024-01-02T03:04:05.000000Z"


@pytest.mark.parametrize("body", [{}, {"spec": None}, {"spec": [], "metadata": 3}, {"spec": {"holderIdentity": 4}}])
def test_a_record_that_is_odd_says_nothing(body: dict[str, Any]) -> None:
    odd = Lease(body)

    assert (odd.holder, odd.preferred, odd.renewed, odd.transitions, odd.version) == ("", "", "", 0, "")
    assert odd.duration(15.0) == 15.0
