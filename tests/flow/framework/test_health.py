"""Health and metrics tell the truth: of a cache that is filled, behind, cut off; of work that hangs; of a thread that dies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from informers import HTTPOptions, LeaderElection, Request, Stop, metrics

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

ANYWHERE = HTTPOptions("127.0.0.1:0")
SYNC = "/readyz/" + quote("sync configmaps.v1")
IN_HOME = {"cluster": "", "resource": "configmaps.v1"}


def get(follower: Follower, path: str) -> tuple[int, str]:
    """Ask a program over HTTP; return status and body."""
    http = follower.manager._http
    assert http is not None
    follower.until(http.port, "it listens")
    try:
        with urlopen(f"http://127.0.0.1:{http.port()}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def scraped(follower: Follower) -> Mapping[str, Sequence[tuple[Mapping[str, str], float]]]:
    """Return every sample by name."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(get(follower, "/metrics")[1]):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found


def number(follower: Follower, name: str, **labels: str) -> float | None:
    """Return one number, None if it is not there."""
    for found, value in scraped(follower).get(f"informers_{name}", ()):
        if labels.items() <= found.items():
            return value
    return None


def test_a_cache_that_is_filled_is_ready_and_its_numbers_are_right(stage: Stage) -> None:
    stage.put("a", "1")
    stage.put("b", "1")
    follower = stage.follow(http=ANYWHERE)

    follower.until(lambda: get(follower, SYNC) == (200, "ok\n"), "synced and watching")
    stage.put("c", "1")
    follower.until_value("c", "1")

    assert get(follower, "/livez") == (200, "ok\n")
    assert get(follower, "/healthz") == (200, "OK\n")
    assert number(follower, "watching", **IN_HOME) == 1
    assert number(follower, "state", state="watching", **IN_HOME) == 1
    assert number(follower, "store_objects", **IN_HOME) == len(follower.values())
    assert (number(follower, "store_rv", **IN_HOME) or 0) > 0
    assert (number(follower, "last_event_age_seconds", **IN_HOME) or 0) < 60
    assert (number(follower, "list_seconds_count", **IN_HOME) or 0) >= 1
    assert (number(follower, "request_seconds_count", cluster="", verb="watch") or 0) >= 1
    assert (number(follower, "connections_open", cluster="") or 0) >= 1
    assert (number(follower, "threads", owner="informers") or 0) >= 2
    follower.stop()
    gone = {
        (series.name, key) for series in metrics.all_series() for key, _ in series.samples() if "configmaps.v1" in key
    }
    assert gone == set()


def test_a_server_that_is_away_makes_nobody_unlive(stage: Stage) -> None:
    stage.put("a", "1")
    relay = stage.server.relay()
    follower = stage.follow(kubeconfig=relay.kubeconfig, http=ANYWHERE)
    follower.until_watching()

    relay.refuse()
    follower.until(lambda: number(follower, "watching", **IN_HOME) == 0, "the watch is lost")
    follower.until(lambda: (number(follower, "requests_total", code="error", verb="watch") or 0) >= 2, "it tries again")

    assert get(follower, "/livez") == (200, "ok\n")
    assert get(follower, "/readyz")[0] == 200
    relay.heal()
    follower.until(lambda: number(follower, "watching", **IN_HOME) == 1, "the watch is back")


def test_a_cache_that_is_behind_is_unready_if_that_matters(stage: Stage) -> None:
    relay = stage.server.relay()
    follower = stage.follow(kubeconfig=relay.kubeconfig, http=HTTPOptions("127.0.0.1:0", max_age=1))
    follower.until_synced()

    relay.refuse()
    follower.until(lambda: "the server was not heard of for" in get(follower, SYNC)[1], "it is behind")

    assert get(follower, SYNC)[0] == 503
    assert get(follower, "/healthz")[1].startswith("NOT READY\n")
    assert get(follower, "/livez") == (200, "ok\n")


def test_a_reconcile_that_hangs_is_seen(stage: Stage) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(_: Request) -> None:
        entered.set()
        leave.wait(60)

    stage.put("a", "1")
    follower = stage.follow(start=False, http=ANYWHERE)
    follower.manager.add_controller("hanging", hang, primary=stage.configmaps(), workers=2)
    with follower:
        follower.until(entered.is_set, "a reconcile has begun")
        follower.until(
            lambda: (number(follower, "longest_running_seconds", controller="hanging") or 0) > 0, "it is seen"
        )
        assert (number(follower, "active_workers", controller="hanging") or 0) >= 1
        assert (number(follower, "unfinished_work_seconds", controller="hanging") or 0) > 0
        assert number(follower, "workers", controller="hanging") == 2
        assert number(follower, "work_seconds_count", controller="hanging") == 0
        assert get(follower, "/livez") == (200, "ok\n")

        leave.set()
        follower.until(lambda: number(follower, "active_workers", controller="hanging") == 0, "it has ended")
        follower.until(
            lambda: (number(follower, "reconciles_total", controller="hanging", result="success") or 0) >= 1, "counted"
        )
        assert (number(follower, "work_seconds_count", controller="hanging") or 0) >= 1
        assert (number(follower, "queue_adds_total", controller="hanging") or 0) >= 1
        follower.until(
            lambda: number(follower, "queue_depth", controller="hanging", priority="0") == 0, "nothing waits any more"
        )


def test_a_standby_is_ready_and_live(stage: Stage) -> None:
    election = LeaderElection("story", namespace=stage.namespace)
    first = stage.follow(election=election, http=ANYWHERE)
    first.until(first.manager.fence.is_open, "it leads")
    second = stage.follow(election=replace(election, identity="second"), http=ANYWHERE)

    second.until(lambda: get(second, "/healthz") == (200, "OK\n"), "the standby is ready")

    assert not second.manager.fence.is_open()
    assert get(second, "/livez/elector") == get(first, "/livez/elector") == (200, "ok\n")
    assert number(first, "leader") == 1
    assert (number(first, "lease_renew_gap_seconds") or 0) < 15


def test_a_thread_that_is_lost_is_told_until_the_process_has_ended(stage: Stage) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold(_: Request) -> None:
        entered.set()
        leave.wait(60)

    def die(_: Stop) -> None:
        entered.wait(60)
        raise LookupError

    stage.put("a", "1")
    follower = stage.follow(start=False, http=ANYWHERE, shutdown_grace=60.0)
    follower.manager.add_controller("held", hold, primary=stage.configmaps())
    follower.manager.add_runnable("doomed", die)
    thread = threading.Thread(target=follower._run)
    thread.start()
    try:
        tick = threading.Event()
        while get(follower, "/livez")[0] == 200:  # the end of the test's time is the limit
            tick.wait(0.02)
        assert get(follower, "/livez")[1].splitlines()[0] == "[-]thread run/doomed failed: ended"
        assert get(follower, "/healthz")[1].startswith("NOT LIVE\n")
    finally:
        leave.set()
        thread.join(60)
    assert isinstance(follower.error, LookupError)


def test_an_address_that_is_taken_is_one_error_line_and_work_goes_on(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        follower = stage.follow(http=HTTPOptions(address))
        follower.until_synced()
        stage.put("a", "1")
        follower.until_value("a", "1")
        follower.until(lambda: stage.log.lines("cannot listen, will try again"), "it is told")

    # Later tries, should the machine be that slow, are told at debug level.
    (line,) = [one for one in stage.log.lines("cannot listen, will try again") if one["level"] == "error"]
    assert (line["address"], line["error"]) == (address, "Address already in use")


def test_no_label_names_an_object(stage: Stage) -> None:
    name = "named-7b1d"
    for verb in ("added", "changed"):
        stage.put(name, verb)
    follower = stage.follow(start=False, http=ANYWHERE)
    done = threading.Event()

    def reconcile(request: Request) -> None:
        if request.ref.name == name:
            follower.manager.client.get(request.ref)
            follower.manager.events.event(request.ref, type="Normal", reason="Looked", note=f"at {name}")
            done.set()
            raise LookupError(name)

    follower.manager.add_controller("busy", reconcile, primary=stage.configmaps())
    with follower:
        follower.until(done.is_set, "it was reconciled")
        follower.until(lambda: (number(follower, "retries_total", controller="busy") or 0) >= 1, "it has failed")
        samples = scraped(follower)

    values = {value for found in samples.values() for labels, _ in found for value in labels.values()}
    assert not [value for value in values if name in value or stage.namespace == value]
    labels = {
        label for name, found in samples.items() if name.startswith("informers_") for one, _ in found for label in one
    }
    assert labels <= {
        *(
            "cluster",
            "resource",
            "controller",
            "verb",
            "code",
            "cause",
            "type",
            "state",
            "priority",
            "result",
            "reason",
        ),
        *("owner", "le"),
    }
