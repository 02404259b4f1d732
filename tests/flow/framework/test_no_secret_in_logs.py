"""Values of Secrets, tokens and annotations of values are in no line of a log, whatever goes wrong with them."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from informers import GVR, Backoff, InformersError, Request, Selection, WatchOptions

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Follower, Stage

pytestmark = pytest.mark.lists

SECRETS = GVR("", "v1", "secrets")
# Parts of these are what the net of all stories looks for.
VALUE = "value-marked-9f27c1e4"
TOKEN = "token-marked-9f27c1e4"
ANNOTATION = "example.com/value"


def fill(stage: Stage) -> None:
    stage.put_secret("s", VALUE)
    stage.put("c", VALUE, annotations={ANNOTATION: VALUE})


def follow(stage: Stage, **options: Any) -> Follower:
    secrets = Selection(SECRETS, namespaces=(stage.namespace,))
    return stage.follow(secrets, stage.configmaps(), start=False, **options)


def add_writer(follower: Follower, stage: Stage, failures: list[str]) -> None:
    """Copy the Secret's value about, right and wrong, and remember what errors say."""

    def reconcile(request: Request) -> None:
        client = follower.manager.client
        found = follower.listers[0].get("s", stage.namespace)
        value = base64.b64decode(str(found.get("data", "v"))).decode()
        writes: list[Callable[[], object]] = [
            lambda: client.patch(stage.ref("c"), {"data": {"v": value}}, field_manager="story"),
            lambda: client.patch(stage.ref("c"), {"data": {"v": {"wrong": value}}}, field_manager="story"),
            lambda: client.patch(found.ref, {"data": {"v": value + "!"}}, field_manager="story"),
            lambda: client.patch(found.ref, {"type": value}, field_manager="story"),
            lambda: client.patch(found.ref, {"metadata": {"labels": {"a": value + "/!"}}}, field_manager="story"),
            lambda: client.create(
                SECRETS,
                {"metadata": {"name": "s"}, "stringData": {"v": value}},
                namespace=stage.namespace,
                field_manager="story",
            ),
            lambda: client.update(found.ref, {**found.thaw(), "kind": value}, field_manager="story"),
            lambda: client.patch(
                found.ref, [{"op": "test", "path": "/data/v", "value": value}], kind="json", field_manager="story"
            ),
        ]
        for write in writes:
            try:
                write()
            except InformersError as error:
                failures.append(f"{error} {error!r}")
        client.create(SECRETS, {"data": {"v": value}}, namespace="absent", field_manager="story")

    follower.manager.add_controller(
        "copy", reconcile, primary=Selection(SECRETS, namespaces=(stage.namespace,)), retry=Backoff(0.01, 0.05)
    )


def test_writes_that_are_refused_show_no_value(stage: Stage) -> None:
    fill(stage)
    failures: list[str] = []
    follower = follow(stage)
    add_writer(follower, stage, failures)
    stage.opened.enter_context(follower)

    follower.until(lambda: len(failures) >= 12, "refused again and again")
    follower.stop()

    assert stage.log.lines("reconcile failed, will try again")
    assert not [text for text in failures if VALUE in text]
    assert VALUE not in stage.log.getvalue()
    assert VALUE not in repr(follower.deltas()) + repr(follower.listers[0].list())


@pytest.mark.parametrize("resource", ["secrets", "configmaps"])
def test_streams_and_lists_that_cannot_be_read_show_no_value(breakable: Stage, resource: str) -> None:
    stage = breakable
    fill(stage)
    encoded = base64.b64encode(VALUE.encode()).decode()
    follower = follow(stage)
    stage.opened.enter_context(follower)
    follower.until_watching(0)
    follower.until_watching(1)
    line = json.dumps(
        {"type": "ODD", "object": {"kind": "Secret", "metadata": {"name": "s"}, "data": {"v": encoded, "w": VALUE}}}
    )
    wrong = json.dumps({"type": "ADDED", "object": {"kind": "Secret", "data": {"v": encoded}, "metadata": 5}})
    other = json.dumps(
        {
            "type": "ADDED",
            "object": {"kind": "Odd", "metadata": {"name": "s", "uid": "1", "resourceVersion": "5"}, "data": VALUE},
        }
    )
    status = json.dumps({"kind": "Status", "status": "Failure", "message": f"cannot {VALUE}", "code": 500})

    each: dict[str, Any] = {"resource": resource, "times": 1}
    faults = [
        stage.faults.poison(line=text, verb="watch", existing=True, **each)
        for text in (line[:-9], line, wrong, other, f'{{"type":"ERROR","object":{status}}}')
    ]
    follower.until(lambda: sum(fault.hits for fault in faults) == 5 or all(f.hits for f in faults), "read")
    more = [
        stage.faults.status(code=500, message=f"cannot {VALUE}", verb="list", **each),
        stage.faults.status(code=200, body=f"<p>{VALUE}", headers={"Content-Type": "text/html"}, verb="list", **each),
        stage.faults.status(code=200, body=f'{{"items": ["{VALUE}"', verb="list", **each),
        stage.faults.poison(item={"data": {"v": encoded}, "metadata": {"name": 7, "x": VALUE}}, verb="list", **each),
    ]
    stage.faults.ev(code=500, message=f"cannot {VALUE}", verb="watch", existing=True, **each)
    follower.until(lambda: all(fault.hits for fault in more), "listed")
    stage.put("c", "after")
    follower.until_value("c", "after", which=1)

    # What a server says in answer to a read may be told, but never about Secrets.
    if resource == "secrets":
        assert VALUE not in stage.log.getvalue()
        assert encoded not in stage.log.getvalue()
    else:
        told = [text for text in stage.log.getvalue().splitlines() if VALUE in text]
        assert all(f"cannot {VALUE}" in text for text in told)
        stage.log.truncate(0)
        stage.log.seek(0)


def test_transforms_and_indexes_that_fail_show_no_value(stage: Stage) -> None:
    fill(stage)

    def transform(obj: Any) -> Any:
        hidden = obj.thaw()
        raise KeyError(hidden["metadata"]["name"])

    follower = stage.follow(
        Selection(SECRETS, namespaces=(stage.namespace,), transform=transform),
        Selection(SECRETS, namespaces=(stage.namespace,)),
        start=False,
    )

    def index(obj: Any) -> Any:
        value = obj.get("data", "v")
        return [value, 1 / 0]

    follower.listers[1].add_index("value", index)
    with follower:
        follower.until_watching(0)
        follower.until_watching(1)
        stage.put_secret("s", VALUE + "2")
        follower.until(lambda: follower.words(1).get("modified"), "seen")

    assert base64.b64encode(VALUE.encode()).decode()[:-4] not in stage.log.getvalue()


def test_a_token_is_in_no_line_however_it_is_refused(perform: Callable[..., Stage]) -> None:
    stage = perform(tokens=[f"{TOKEN}=somebody"])
    fill(stage)
    follower = follow(stage, watch=WatchOptions(backoff=Backoff(0.02, 0.1)))
    stage.opened.enter_context(follower)
    follower.until_watching(0)

    refused = stage.faults.status(code=401, message=f"bad token {TOKEN}", client="story*", times=6)
    stage.faults.close("RST")
    follower.until(lambda: refused.hits == 6, "refused")
    follower.until_watching(0)
    follower.until_watching(1)
    asked = stage.embedded.requests(client="story*")

    assert asked
    assert all(request.headers["authorization"] == "Bearer" for request in asked)
    text = stage.log.getvalue().replace(f"bad token {TOKEN}", "")
    assert TOKEN not in text
    assert TOKEN not in repr(follower.manager.client) + repr(vars(follower.manager))
    stage.log.truncate(0)
    stage.log.seek(0)


def test_a_program_of_its_own_writes_no_value_to_any_output(stage: Stage) -> None:
    fill(stage)
    program = stage.run(
        str(stage.server.kubeconfig),
        stage.namespace,
        text="""
import sys
from informers import GVR, Backoff, Clusters, Manager, Selection, configure_logging

configure_logging(level="debug")
manager = Manager(Clusters.load(sys.argv[1]), name="story")
secrets = Selection(GVR("", "v1", "secrets"), namespaces=(sys.argv[2],))
lister = manager.lister(secrets)

def reconcile(request):
    found = lister.find(request.ref)
    print(found, repr(found), request)
    value = found.get("data", "v")
    manager.events.event(found, type="Normal", reason="Seen", note=f"{found} was seen")
    manager.client.patch(request.ref, {"data": {"v": {"not": value}}}, field_manager="story")

manager.add_controller("work", reconcile, primary=secrets, retry=Backoff(0.01, 0.1))
manager.run()
""",
    )
    program.until(lambda: program.lines("reconcile failed, will try again"), "it fails")
    program.signal(signal.SIGTERM)

    assert program.wait() == 0, program.tail()
    assert "secrets.v1" in program.stdout.read_text()
