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
