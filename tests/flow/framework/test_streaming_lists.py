"""What is there comes as the beginning of the watch: from a server that can, one that cannot, and one that never ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from informers import WatchOptions, metrics
from informers.api.transport import Transport
from informers.cache import firstsyncs, reflector

if TYPE_CHECKING:
    from informers.cache.listwatch import Initial
    from tests.flow.framework.conftest import Follower, Stage

CONFIGMAPS = "configmaps.v1"
STREAMED = {"sendInitialEvents": "true"}


class Asked:
    """What programs of this process have asked for, in order; for a server that keeps no log."""

    def __init__(self) -> None:
        self.lists: list[Mapping[str, str]] = []
        self.watches: list[Mapping[str, str]] = []

    def streams(self) -> Sequence[Mapping[str, str]]:
        return [query for query in self.watches if "sendInitialEvents" in query]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    noted = Asked()
    request, open_stream = Transport.request, Transport.open_stream

    def note_request(self: Transport, method: str, path: str, **options: Any) -> Any:
        if options.get("verb") == "list" and path.endswith("/configmaps") and options.get("part") == "informer":
            noted.lists.append(dict(options["query"]))
        return request(self, method, path, **options)

    def note_stream(self: Transport, path: str, **options: Any) -> Any:
        if path.endswith("/configmaps"):
            noted.watches.append(dict(options["query"]))
        return open_stream(self, path, **options)

    monkeypatch.setattr(Transport, "request", note_request)
    monkeypatch.setattr(Transport, "open_stream", note_stream)
    return noted


def unsupported() -> Any:
    return metrics.gauge("informers_streaming_unsupported", "", ("cluster", "resource"))


@pytest.fixture(autouse=True)
def no_marks() -> Iterator[None]:
    unsupported().remove(cluster="", resource=CONFIGMAPS)
    yield
    unsupported().remove(cluster="", resource=CONFIGMAPS)


def is_marked() -> bool:
    return bool(unsupported().value(cluster="", resource=CONFIGMAPS))


def streams(stage: Stage) -> Sequence[Any]:
    """Return the logged requests for what is there, as streams."""
    return [request for request in stage.watches() if "sendInitialEvents" in request.query]


def put_some(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.put(name, "1")


def expire(stage: Stage, follower: Follower) -> None:
    """End the watch, and tell the next one that its version is too old."""
    before = len(stage.watches())
    stage.faults.ev(code=410, reason="Expired", verb="watch", resource="configmaps", times=1, existing=True)
    follower.until(lambda: len(stage.watches()) > before, "the watch has ended")
    follower.until_watching()


def check_alive(stage: Stage, follower: Follower) -> None:
    """Check that the cache is like the server and goes on like it."""
    assert follower.values() == stage.values()
    stage.put("a", "alive")
    follower.until_value("a", "alive")


# A server that can.


def test_what_is_there_is_sent_once_and_cut_streams_go_on_as_plain_watches(stage: Stage, asked: Asked) -> None:
    put_some(stage)
    relay = stage.server.relay()
    follower = stage.follow(kubeconfig=relay.kubeconfig)
    follower.until_watching()
    assert follower.words() == {"initial": 3}
    assert follower.values() == stage.values()

    for number, cut in enumerate([relay.reset, relay.finish, relay.reset], start=1):
        cut()
        stage.put("a", str(number + 1))
        stage.put(f"new{number}", "1")
        follower.until_value(f"new{number}", "1")
        follower.until_value("a", str(number + 1))

    assert asked.lists == []
    assert len(asked.streams()) == 1
    first, *resumed = asked.watches
    assert "resourceVersion" not in first
    assert first["resourceVersionMatch"] == "NotOlderThan"
    assert len(resumed) >= 3
    assert all("resourceVersion" in query and "resourceVersionMatch" not in query for query in resumed)
    assert follower.words() == {"initial": 3, "modified": 3, "added": 3}
    assert follower.values() == stage.values()


def test_an_empty_namespace_syncs_and_its_first_object_is_news(stage: Stage, asked: Asked) -> None:
    for known in stage.values():
        stage.delete(known)  # a real server puts a certificate into each namespace
    follower = stage.follow(stage.configmaps(label_selector="app=none"))
    follower.until_watching()
    assert follower.told() == ()

    stage.put("a", "1", labels={"app": "none"})
    follower.until_value("a", "1")

    assert follower.words() == {"added": 1}
    assert asked.lists == []


def test_metadata_alone_is_streamed_too_and_its_kind_is_the_real_one(stage: Stage, asked: Asked) -> None:
    put_some(stage)
    follower = stage.follow(stage.configmaps(metadata_only=True, label_selector="!nothing"))
    follower.until_watching()

    found = {obj.name: obj for obj in follower.read()}
    assert {"a", "b", "c"} <= set(found)
    assert {(obj.kind, obj.api_version) for obj in found.values()} == {("ConfigMap", "v1")}
    assert not any("data" in obj.body for obj in found.values())
    assert len(asked.streams()) == 1
    assert asked.lists == []


def test_watches_that_the_server_ends_do_not_have_everything_sent_again(breakable: Stage) -> None:
    """kube-rs/kube#1844."""
    stage = breakable
    put_some(stage)
    follower = stage.follow()
    follower.until_watching()
    for number in range(1, 4):
        stage.put("b", f"changed {number}")
        follower.until_value("b", f"changed {number}")
        stage.faults.close("FIN", verb="watch", resource="configmaps")
        follower.until(lambda: len(stage.watches()) == number + 1, "opened again")  # noqa: B023 - now

    assert len(streams(stage)) == 1
    assert stage.watches()[0].query["sendInitialEvents"] == "true"
    assert not stage.lists()
    assert follower.words() == {"initial": 3, "modified": 3}
    check_alive(stage, follower)


@pytest.mark.slow
def test_watches_that_time_out_do_not_have_everything_sent_again(stage: Stage, asked: Asked) -> None:
    """kube-rs/kube#1844, by the clock."""
    put_some(stage)
    follower = stage.follow(watch=WatchOptions(timeout=5))
    follower.until(lambda: len(asked.watches) >= 4, "three rounds")

    assert len(asked.streams()) == 1
    assert asked.lists == []
    assert follower.words() == {"initial": 3}


def test_after_expiry_what_is_there_is_streamed_again_and_only_differences_are_told(breakable: Stage) -> None:
    stage = breakable
    put_some(stage)
    follower = stage.follow()
    follower.until_watching()
    follower.forget()
    seen = follower.rv()
    closed = stage.faults.rst(at="request", verb="watch", resource="configmaps")
    stage.faults.close("RST", resource="configmaps")
    follower.until(lambda: closed.hits, "the watch is not let in")
    stage.delete("b")
    stage.put("c", "2")
    stage.put("d", "1")

    stage.faults.compact(resource="configmaps")
    closed.remove()
    follower.until(lambda: len(follower.told()) >= 3, "told")
    follower.until_watching()

    assert [(told.word, told.name) for told in follower.told()] == [
        ("tombstone", "b"),
        ("modified", "c"),
        ("added", "d"),
    ]
    again = streams(stage)[-1]
    assert again.query["resourceVersion"] == seen
    assert not stage.lists()
    check_alive(stage, follower)


# A stream that does not come to its end, and is asked for again.


@pytest.mark.parametrize(
    "break_it",
    [
        lambda faults, match: faults.rst(at="stream", at_event=2, times=1, match=match),
        lambda faults, match: faults.fin(at="stream", at_event=2, clean=False, times=1, match=match),
        lambda faults, match: faults.fin(at="stream", at_event=2, times=1, match=match),
        lambda faults, match: faults.trunc(bytes=30, at_event=1, times=1, match=match),
        lambda faults, match: faults.ev(code=410, reason="Expired", at_event=2, times=1, match=match),
        lambda faults, match: faults.ev(code=500, at_event=2, times=1, match=match),
        lambda faults, match: faults.ev(bare=True, at_event=2, times=1, match=match),
        lambda faults, match: faults.status(code=429, headers={"Retry-After": "1"}, times=1, match=match),
        lambda faults, match: faults.status(code=503, times=2, match=match),
        lambda faults, match: faults.short(times=2, match=match),
        lambda faults, match: faults.rst(at="request", times=2, match=match),
    ],
    ids=["reset", "cut", "closed", "cut line", "expired", "error", "bare", "429", "503", "short", "refused"],
)
def test_what_was_sent_of_a_broken_stream_is_thrown_away(
    breakable: Stage, break_it: Callable[[Any, Mapping[str, Any]], Any]
) -> None:
    stage = breakable
    put_some(stage)
    fault = break_it(stage.faults, {"verb": "watch", "resource": "configmaps", "query": STREAMED})
    follower = stage.follow()
    follower.until_watching()

    assert fault.hits
    assert follower.words() == {"initial": 3}
    assert not stage.lists()
    assert not is_marked()
    assert all("resourceVersion" not in request.query for request in streams(stage))
    assert len(streams(stage)) == len(stage.watches()) == fault.hits + 1
    check_alive(stage, follower)


def test_a_body_without_chunks_is_a_stream_too(breakable: Stage) -> None:
    stage = breakable
    stage.faults.plain(verb="watch", resource="configmaps")
    put_some(stage)
    follower = stage.follow()
    follower.until_watching()

    check_alive(stage, follower)
    assert len(streams(stage)) == 1
    assert not stage.lists()


# A server that cannot.


@pytest.mark.parametrize("code", [400, 403, 404, 405, 415, 422])
def test_a_refused_stream_is_a_list_in_the_same_cycle(breakable: Stage, code: int) -> None:
    stage = breakable
    put_some(stage)
    match = {"verb": "watch", "resource": "configmaps", "query": STREAMED}
    stage.faults.status(code=code, times=1, match=match)
    follower = stage.follow()
    follower.until_watching()

    assert [request.query.get("resourceVersion") for request in stage.lists()] == ["0"]
    assert not is_marked()
    assert not stage.log.lines("step failed")
    check_alive(stage, follower)
    expire(stage, follower)
    assert len(streams(stage)) == 2
    assert len(stage.lists()) == 1


def test_a_server_that_knows_no_streams_is_asked_twice(perform: Callable[..., Stage]) -> None:
    stage = perform(streaming_list=False)
    put_some(stage)
    follower = stage.follow()
    follower.until_watching()
    assert [request.status for request in streams(stage)] == [422]
    for number in range(2, 5):
        expire(stage, follower)
        follower.until(lambda: len(stage.lists()) == number, "listed")  # noqa: B023 - now
        follower.until_watching()

    assert len(streams(stage)) == 2
    assert is_marked()
    assert len(stage.log.lines("resource cannot be streamed, listing it from now on")) == 1
    check_alive(stage, follower)


def test_an_older_server_is_asked_for_lists_and_once_for_its_version(perform: Callable[..., Stage]) -> None:
    stage = perform(version="1.33")
    put_some(stage)
    follower = stage.follow(stage.configmaps(), stage.configmaps(label_selector="!x"))
    follower.until_watching(0)
    follower.until_watching(1)

    assert len(stage.embedded.requests(path="/version", client="story*")) == 1
    assert len(stage.lists()) == 2
    assert not streams(stage)


def test_a_version_that_nobody_may_know_means_lists(perform: Callable[..., Stage]) -> None:
    stage = perform()
    stage.faults.deny(path="/version")
    put_some(stage)
    follower = stage.follow()
    follower.until_watching()

    assert len(stage.lists()) == 1
    assert not streams(stage)
    check_alive(stage, follower)


# A server that never ends it.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less long for the end than a program does."""
    monkeypatch.setattr(reflector, "_INITIAL_WITHIN", 1.5)
    monkeypatch.setattr(reflector, "_INITIAL_PAUSE", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "never_end",
    [
        lambda faults: faults.noend(verb="watch", resource="configmaps"),
        lambda faults: faults.nobm(verb="watch", resource="configmaps"),
        lambda faults: faults.ignore("sendInitialEvents", "resourceVersionMatch", verb="watch"),
    ],
    ids=["not marked", "no bookmarks", "ignored"],
)
def test_a_stream_whose_end_is_never_marked_is_a_list_for_good(
    perform: Callable[..., Stage], never_end: Callable[[Any], Any]
) -> None:
    """antrea-io/antrea#8123, kubernetes/kubernetes#122805, kubernetes/kubernetes#135895."""
    stage = perform(bookmark_every=0.05)
    put_some(stage)
    never_end(stage.faults)
    follower = stage.follow()
    follower.until_watching()

    assert follower.words() == {"initial": 3}
    assert len(streams(stage)) == 1
    assert len(stage.lists()) == 1
    assert is_marked()
    check_alive(stage, follower)
    expire(stage, follower)
    follower.until(lambda: len(stage.lists()) == 2, "listed")
    assert len(streams(stage)) == 1
    assert len(stage.log.lines("resource cannot be streamed, listing it from now on")) == 1


@pytest.mark.parametrize("initial", ["stream", "list"])
def test_kinds_whose_first_list_hangs_hold_up_no_other(
    breakable: Stage, monkeypatch: pytest.MonkeyPatch, initial: Initial
) -> None:
    stage = breakable
    monkeypatch.setattr(firstsyncs, "_LENT_AFTER", 0.2)
    stage.put("a", "1", labels={"app": "good"})
    match = {"resource": "configmaps", "query": {"labelSelector": "hangs"}}
    hanging = stage.faults.freeze(at="headers", verb=["list", "watch"], match=match)
    watch = WatchOptions(first_syncs=2, initial=initial)
    follower = stage.follow(*[stage.configmaps(label_selector="hangs", page_size=n) for n in (1, 2, 3)], watch=watch)
    follower.until(lambda: hanging.hits >= 2, "they hang")

    follower.follow(stage.configmaps(label_selector="app=good"))
    follower.until_watching(3)

    assert follower.words(3) == {"initial": 1}
    assert not any(informers.has_synced() for informers in follower.sets[:3])


def test_forced_pages_are_lists(breakable: Stage) -> None:
    stage = breakable
    put_some(stage)
    follower = stage.follow(watch=WatchOptions(page_size=2))
    follower.until_watching()

    assert [request.query.get("limit") for request in stage.lists()] == ["2", "2"]
    assert not streams(stage)
    assert follower.values() == stage.values()
