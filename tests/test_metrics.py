from collections.abc import Callable
from typing import Literal

import pytest

from informers import metrics
from informers.meta.errors import ConfigError


def test_a_counter_keeps_a_number_for_each_combination_of_labels() -> None:
    lists = metrics.counter("test_lists_total", "lists", ("cluster", "resource"))

    lists.add(cluster="", resource="pods.v1")
    lists.add(2, cluster="", resource="secrets.v1")
    lists.add(cluster="", resource="pods.v1")

    assert lists.value(cluster="", resource="pods.v1") == 2
    assert lists.value(cluster="b", resource="pods.v1") == 0
    assert lists.total() == 4
    assert dict(lists.samples()) == {("", "pods.v1"): 2, ("", "secrets.v1"): 2}


def test_a_gauge_is_set_and_its_series_goes_with_what_it_counts() -> None:
    objects = metrics.gauge("test_objects", "objects", ("resource",))
    objects.set(5, resource="pods.v1")
    objects.add(-1, resource="pods.v1")
    assert objects.value(resource="pods.v1") == 4

    objects.remove(resource="pods.v1")

    assert objects.samples() == ()


def test_what_ends_after_its_series_was_removed_does_not_bring_it_back() -> None:
    connections = metrics.gauge("test_connections", "connections", ("cluster",))
    let_go = metrics.hold(cluster="gone")
    connections.add(cluster="gone")
    let_go()

    connections.add(-1, cluster="gone")

    assert connections.samples() == ()


def test_one_name_is_one_series() -> None:
    first = metrics.counter("test_one_total", "one", ("a",))

    assert metrics.counter("test_one_total", "one", ("a",)) is first
    assert first in set(metrics.all_series())
    with pytest.raises(ConfigError, match="already a Counter"):
        metrics.gauge("test_one_total", "one", ("a",))
    with pytest.raises(ConfigError, match="already a Counter"):
        metrics.counter("test_one_total", "one", ("b",))


@pytest.mark.parametrize("labels", [{}, {"b": "1"}, {"a": "1", "b": "2"}])
def test_labels_must_be_the_ones_declared(labels: dict[str, str]) -> None:
    series = metrics.counter("test_labels_total", "labels", ("a",))

    with pytest.raises(ConfigError, match="test_labels_total"):
        series.add(**labels)


def test_what_is_known_beforehand_is_there_with_zero() -> None:
    results = metrics.counter("test_results_total", "results", ("result",))
    seconds = metrics.histogram("test_known_seconds", "seconds", ("result",))

    for result in ("success", "error"):
        results.declare(result=result)
        seconds.declare(result=result)
    results.add(result="error")
    results.declare(result="error")

    assert dict(results.samples()) == {("success",): 0, ("error",): 1}
    assert [(key, found.count) for key, found in seconds.samples()] == [(("success",), 0), (("error",), 0)]


def test_a_histogram_counts_what_is_not_above_each_border() -> None:
    seconds = metrics.histogram("test_seconds", "seconds", ("verb",), buckets=(0.1, 1, 10))

    for value in (0.05, 0.1, 0.5, 20):
        seconds.observe(value, verb="get")

    found = seconds.value(verb="get")
    assert found.buckets == {0.1: 2, 1.0: 3, 10.0: 3}
    assert found.count == 4
    assert found.sum == pytest.approx(20.65)
    assert seconds.samples() == ((("get",), found),)
    seconds.remove(verb="get")
    assert seconds.samples() == ()
    assert seconds.value(verb="get").count == 0


def test_a_number_is_computed_when_it_is_asked_for_until_its_owner_ends() -> None:
    age = metrics.gauge("test_age_seconds", "age", ("resource",))
    now = 3.0
    end = age.follow(lambda: now, resource="pods.v1")
    assert age.value(resource="pods.v1") == 3

    now = 4.0
    assert age.samples() == ((("pods.v1",), 4.0),)

    end()
    end()
    assert age.samples() == ()


def test_a_number_may_be_absent() -> None:
    age = metrics.gauge("test_absent_seconds", "age")
    end = age.follow(lambda: None)

    assert age.samples() == ()
    end()


@pytest.mark.parametrize(("combine", "want"), [("sum", 7), ("max", 4), ("min", 3)])
def test_what_several_owners_tell_is_combined(combine: Literal["sum", "max", "min"], want: float) -> None:
    found = metrics.gauge(f"test_combined_{combine}", "combined", ("resource",), combine=combine)
    ends = [found.follow(lambda: 3.0, resource="pods.v1"), found.follow(lambda: 4.0, resource="pods.v1")]

    assert dict(found.samples()) == {("pods.v1",): want}

    ends[1]()
    assert dict(found.samples()) == {("pods.v1",): 3}
    ends[0]()


def test_a_number_for_each_value_of_a_label_is_computed() -> None:
    state = metrics.gauge("test_state", "state", ("resource", "state"))
    end = state.follow_each("state", lambda: {"listing": 0, "watching": 1}, resource="pods.v1")

    assert dict(state.samples()) == {("pods.v1", "listing"): 0, ("pods.v1", "watching"): 1}
    end()
    with pytest.raises(ConfigError, match="test_state"):
        state.follow_each("other", dict, resource="pods.v1")


def test_series_go_when_the_last_who_holds_their_labels_lets_go() -> None:
    events = metrics.counter("test_events_total", "events", ("cluster", "resource", "type"))
    seconds = metrics.histogram("test_list_seconds", "seconds", ("cluster", "resource"))
    others = metrics.counter("test_others_total", "others", ("controller",))
    first = metrics.hold(cluster="", resource="pods.v1")
    second = metrics.hold(resource="pods.v1", cluster="")
    events.add(cluster="", resource="pods.v1", type="ADDED")
    events.add(cluster="", resource="secrets.v1", type="ADDED")
    events.add(cluster="b", resource="pods.v1", type="ADDED")
    seconds.observe(1, cluster="", resource="pods.v1")
    others.add(controller="a")

    first()
    first()
    assert len(events.samples()) == 3

    second()
    assert {key for key, _ in events.samples()} == {("", "secrets.v1", "ADDED"), ("b", "pods.v1", "ADDED")}
    assert seconds.samples() == ()
    assert len(others.samples()) == 1


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: metrics.counter("test_without_end", ""), "ends in _total"),
        (lambda: metrics.counter("test no total", ""), "letters, digits"),
        (lambda: metrics.gauge("test_label", "", ("le",)), "le"),
        (lambda: metrics.gauge("test_label", "", ("a-b",)), "a-b"),
        (lambda: metrics.histogram("test_no_buckets", "", buckets=()), "buckets"),
        (lambda: metrics.histogram("test_odd_buckets", "", buckets=(2, 1)), "buckets"),
    ],
)
def test_a_bad_name_or_bucket_is_refused(make: Callable[[], object], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        make()


def test_one_histogram_has_one_set_of_buckets() -> None:
    metrics.histogram("test_buckets", "", buckets=(1, 2))

    with pytest.raises(ConfigError, match="already a Histogram with buckets"):
        metrics.histogram("test_buckets", "", buckets=(1, 3))


def test_holding_labels_declares_what_is_known_of_the_others() -> None:
    kinds = metrics.counter("test_kinds_total", "", ("resource", "type"), known={"type": ("ADDED", "DELETED")})
    codes = metrics.counter("test_codes_total", "", ("resource", "code"))
    plain = metrics.counter("test_plain_total", "", ("resource",))
    alone = metrics.counter("test_alone_total", "")
    complete = metrics.counter("test_complete_total", "", ("reason",), known={"reason": ("a", "b")})
    seconds = metrics.histogram("test_held_seconds", "", ("resource",))
    assert alone.samples() == (((), 0.0),)
    assert dict(complete.samples()) == {("a",): 0, ("b",): 0}

    let_go = metrics.hold(resource="pods.v1")

    assert dict(kinds.samples()) == {("pods.v1", "ADDED"): 0, ("pods.v1", "DELETED"): 0}
    assert codes.samples() == ()
    assert dict(plain.samples()) == {("pods.v1",): 0}
    assert seconds.value(resource="pods.v1").count == 0
    assert len(seconds.samples()) == 1
    let_go()
    assert (kinds.samples(), plain.samples(), seconds.samples()) == ((), (), ())


def test_a_counter_may_be_computed_too() -> None:
    adds = metrics.counter("test_adds_total", "", ("controller",))
    end = adds.follow(lambda: 7.0, controller="a")

    assert adds.value(controller="a") == 7
    end()
    assert adds.samples() == ()
