"""What the health pages say, without a socket; and what `prometheus_client` makes of our series."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from informers import metrics
from informers.meta.errors import ConfigError
from informers.runtime.exposition import expose
from informers.runtime.health import FINE, Finding, Findings, HTTPOptions, Pages, ReadyClusters, needed_for_ready
from informers.runtime.listener import Answer, Question

BAD = Finding("not synced: syncing")
NOTED = Finding(note="a reconcile has run for 70 s")
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def pages(live: Findings | None = None, ready: Findings | None = None, **options: Any) -> Callable[..., Answer]:
    made = Pages(live=lambda: live or {}, ready=lambda: ready or {}, **options)

    def ask(path: str, *, method: str = "GET", accept: str = "", **query: str) -> Answer:
        return made.answer(Question(method, path, query, accept))

    return ask


def told(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("name", ["livez", "readyz"])
def test_what_is_well_is_ok(name: str) -> None:
    ask = pages({"thread a": FINE, "worker c": NOTED}, {"thread a": FINE, "worker c": NOTED})

    assert told(ask(f"/{name}")) == (200, "ok\n")
    assert told(ask(f"/{name}/thread a")) == (200, "ok\n")
    assert told(ask(f"/{name}", verbose="")) == (
        200,
        f"[+]thread a ok\n[+]worker c ok: a reconcile has run for 70 s\n{name} check passed\n",
    )


def test_what_fails_is_told_with_its_reason() -> None:
    ask = pages({"thread a": FINE}, {"sync a.v1": BAD, "sync b/c.v1": FINE})

    assert told(ask("/readyz")) == (503, "[-]sync a.v1 failed: not synced: syncing\nreadyz check failed\n")
    assert told(ask("/readyz", verbose="")) == (
        503,
        "[-]sync a.v1 failed: not synced: syncing\n[+]sync b/c.v1 ok\nreadyz check failed\n",
    )
    assert told(ask("/readyz/sync a.v1")) == (503, "not synced: syncing\n")
    assert told(ask("/readyz/sync b/c.v1")) == (200, "ok\n")
    assert told(ask("/livez")) == (200, "ok\n")


@pytest.mark.parametrize(
    ("live", "ready", "status", "first"),
    [
        ({"a": FINE}, {"b": FINE}, 200, "OK"),
        ({"a": FINE}, {"b": BAD}, 503, "NOT READY"),
        ({"a": BAD}, {"b": FINE}, 503, "NOT LIVE"),
        ({"a": BAD}, {"a": FINE}, 503, "NOT LIVE"),
        ({"a": BAD}, {"b": BAD}, 503, "NOT LIVE"),
    ],
)
def test_healthz_says_both_at_once(live: Findings, ready: Findings, status: int, first: str) -> None:
    ask = pages(live, ready)

    assert ask("/healthz").status == status
    assert ask("/healthz").body.decode().splitlines()[0] == first
    assert len(ask("/healthz", verbose="").body.splitlines()) == 3


@pytest.mark.parametrize("path", ["/", "/livez/none", "/healthz/a", "/metrics/a", "/Livez", "", "/livezz", "/readyz/"])
def test_other_pages_are_not_there(path: str) -> None:
    status = 200 if path == "/readyz/" else 404

    assert pages()(path, method="GET").status == status
    assert pages()(path, method="DELETE").status == (405 if path == "/readyz/" else 404)


@pytest.mark.parametrize("path", ["/livez", "/readyz/a", "/healthz", "/metrics"])
def test_only_reading_is_allowed(path: str) -> None:
    ask = pages({}, {"a": FINE})

    found = ask(path, method="POST")

    assert (found.status, found.allow) == (405, "GET, HEAD")
    assert ask(path, method="HEAD").status == 200


def test_a_reason_is_one_line_of_bounded_length() -> None:
    ask = pages({}, {"a": Finding("x\r\n[+]b ok" + "y" * 1000)})

    _, body = told(ask("/readyz"))

    assert len(body.splitlines()) == 2
    assert len(body) < 600


@pytest.mark.parametrize(
    ("clusters", "home", "b", "is_ready"),
    [
        ("home", FINE, BAD, True),
        ("home", BAD, FINE, False),
        ("any", BAD, FINE, True),
        ("any", BAD, BAD, False),
        ("all", FINE, BAD, False),
        ("all", FINE, FINE, True),
        ("home", None, FINE, True),
        ("home", None, BAD, False),
    ],
)
def test_which_clusters_must_be_ready_is_an_option(
    clusters: ReadyClusters, home: Finding | None, b: Finding, is_ready: bool
) -> None:
    by_cluster = {"b": {"sync b/a.v1": b}, "c": {"sync c/a.v1": BAD if clusters != "all" else FINE}}
    if home is not None:
        by_cluster[""] = {"sync a.v1": home}

    found = needed_for_ready(by_cluster, clusters)

    assert all(one.problem is None for one in found.values()) == is_ready
    if is_ready and b is BAD:
        assert found["sync b/a.v1"] == Finding(note="not synced: syncing")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"address": "8080"}, "address: want HOST:PORT or :PORT"),
        ({"address": ":1", "ready_clusters": "some"}, "ready_clusters: want one of home, any, all, got 'some'"),
        ({"address": ":1", "max_age": -1}, "max_age: want 0 or more seconds"),
        ({"address": ":1", "max_age": float("nan")}, "max_age"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        HTTPOptions(**options)


def test_all_series_are_exposed_with_help_and_type() -> None:
    things = metrics.counter("test_things_total", 'Things, "quoted"', ("kind",))
    size = metrics.gauge("test_size", "Size")
    seconds = metrics.histogram("test_took_seconds", "Took", ("verb",), buckets=(0.5, 1))
    things.add(3, kind='a"b\\c\n')
    size.set(2.5)
    seconds.observe(0.7, verb="get")

    answer = pages()("/metrics")
    found = {family.name: family for family in parse(answer.body.decode())}

    assert answer.content_type.startswith("text/plain; version=")
    assert found["test_things"].type == "counter"
    assert found["test_things"].documentation == 'Things, "quoted"'
    assert [(one.name, one.labels, one.value) for one in found["test_things"].samples] == [
        ("test_things_total", {"kind": 'a"b\\c\n'}, 3)
    ]
    assert [one.value for one in found["test_size"].samples] == [2.5]
    assert found["test_took_seconds"].type == "histogram"
    assert {(one.name, one.labels.get("le")): one.value for one in found["test_took_seconds"].samples} == {
        ("test_took_seconds_bucket", "0.5"): 0,
        ("test_took_seconds_bucket", "1.0"): 1,
        ("test_took_seconds_bucket", "+Inf"): 1,
        ("test_took_seconds_count", None): 1,
        ("test_took_seconds_sum", None): 0.7,
    }


def test_open_metrics_is_what_one_gets_who_asks_for_it() -> None:
    metrics.counter("test_open_total", "Open").add()

    answer = pages()("/metrics", accept=OPEN_METRICS)

    assert answer.content_type.startswith("application/openmetrics-text")
    assert any(family.name == "test_open" for family in parse_open(answer.body.decode()))  # type: ignore[no-untyped-call]  # the library has no types there


def test_a_number_that_cannot_be_computed_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    broken = metrics.gauge("test_broken", "Broken")
    metrics.gauge("test_whole", "Whole").set(1)

    def fail() -> float:
        raise LookupError

    end = broken.follow(fail)
    try:
        body = expose("").body.decode()
    finally:
        end()

    assert "test_whole 1.0" in body
    assert "test_broken" not in body
    assert "series left out" in caplog.messages


def test_metrics_may_be_turned_off() -> None:
    assert pages(metrics=False)("/metrics").status == 404


def test_the_library_is_loaded_at_the_first_scrape_and_its_global_registry_is_left_alone() -> None:
    code = """
import sys
import informers
informers.Manager, informers.HTTPOptions
assert "prometheus_client" not in sys.modules
assert "http.server" not in sys.modules
from informers.runtime.exposition import expose
expose("")
from prometheus_client import REGISTRY
print(sorted(name for one in REGISTRY.collect() for name in [one.name] if name.startswith("informers_")))
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
