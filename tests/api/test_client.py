from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import pytest

from informers.api.calls import Cancel, NotSent, Response
from informers.api.client import Client, Write, collection_path, lend, object_path
from informers.api.fence import Fence
from informers.api.transport import Transport
from informers.meta.errors import (
    AlreadyExistsError,
    APIError,
    ConfigError,
    ConflictError,
    ConnectError,
    ConnectionLost,
    ExpiredError,
    NotFoundError,
    NotLeaderError,
    RequestTimeout,
    ServerError,
)
from informers.meta.objects import freeze
from informers.meta.resources import GVR, ObjectRef
from informers.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.api.conftest import Asked, Connection, Serve, Server

    Connect = Callable[..., Transport]

CONFIGMAPS = GVR("", "v1", "configmaps")
DEPLOYMENTS = GVR("apps", "v1", "deployments")
NODES = GVR("", "v1", "nodes")
REF = ObjectRef(CONFIGMAPS, "default", "a")


def body(name: str = "a", *, rv: str = "7", kind: str = "ConfigMap", **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": rv}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, **more}


class Answers:
    """Answers each request with what is next in the list: a body, a status with a body, or a function."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)

    def __call__(self, connection: Connection) -> None:
        while connection.read():
            answer = self.left.pop(0)
            if callable(answer):
                answer(connection)
                return
            status, content = answer if isinstance(answer, tuple) else (200, answer)
            connection.answer(content, status=status)


@pytest.fixture
def ask(serve: Serve, connect: Connect) -> Callable[..., tuple[Client, Server]]:
    """Make a client of a server that gives these answers."""

    def make(*answers: Any, **options: Any) -> tuple[Client, Server]:
        server = serve(Answers(*answers))
        return Client({"": connect(server.url)}, **options), server

    return make


Ask = Callable[..., tuple[Client, "Server"]]


def query_of(asked: Asked) -> dict[str, str]:
    pairs = asked.target.partition("?")[2].split("&")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_paths_name_collection_object_and_subresource() -> None:
    assert collection_path(CONFIGMAPS) == "/api/v1/configmaps"
    assert collection_path(DEPLOYMENTS, "x") == "/apis/apps/v1/namespaces/x/deployments"
    assert object_path(ObjectRef(NODES, "", "system:node é"), "status") == "/api/v1/nodes/system%3Anode%20%C3%A9/status"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb"])
@pytest.mark.parametrize(
    "call",
    [
        lambda client, name: client.get(ObjectRef(CONFIGMAPS, "default", name)),
        lambda client, name: client.get(ObjectRef(GVR("", "v1", name), "default", "a")),
        lambda client, name: client.patch(ObjectRef(CONFIGMAPS, "default", name), {}, field_manager="m"),
        lambda client, name: client.delete(ObjectRef(CONFIGMAPS, "default", name)),
    ],
)
def test_name_that_no_object_has_is_refused_and_nothing_is_sent(
    call: Callable[[Client, str], object], name: str, ask: Ask
) -> None:
    client, server = ask()

    with pytest.raises(ConfigError):
        call(client, name)

    assert server.accepted == 0


@pytest.mark.parametrize("name", [".", "..", "a/b", "a%2fb"])
def test_namespace_and_subresource_that_cannot_be_are_refused(name: str, ask: Ask) -> None:
    client, server = ask()

    with pytest.raises(ConfigError):
        client.list(CONFIGMAPS, namespace=name)
    with pytest.raises(ConfigError):
        client.get(REF, subresource=name)

    assert server.accepted == 0


def test_get_returns_the_object_as_it_was_sent(ask: Ask) -> None:
    raw = b'{"kind":"ConfigMap", "apiVersion":"v1","metadata":{"name":"a","namespace":"default","managedFields":[{}]}}'
    client, server = ask(raw, raw, raw)

    obj = client.get(REF)
    client.get(REF, subresource="status")
    client.get(REF, metadata_only=True)

    assert (obj.ref, obj.raw, obj.kind) == (REF, raw, "ConfigMap")
    assert [asked.target for asked in server.asked] == [
        "/api/v1/namespaces/default/configmaps/a",
        "/api/v1/namespaces/default/configmaps/a/status",
        "/api/v1/namespaces/default/configmaps/a",
    ]
    assert server.asked[2].headers["accept"].startswith("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"kind": "Status", "metadata": {}}, "a Status"),
        ({"kind": "Table", "metadata": {}}, "a Table"),
        ({"kind": "ConfigMapList", "metadata": {}}, "a ConfigMapList"),
        ([1], "something else"),
        (b"{", "something else"),
        ({"kind": "ConfigMap"}, "a ConfigMap"),
    ],
)
def test_answer_that_is_no_object_is_an_error_that_says_what_came(answer: object, found: str, ask: Ask) -> None:
    client, _ = ask(answer)

    with pytest.raises(APIError, match=f"want an object, the answer is {found}"):
        client.get(REF)


def test_list_pages_and_fills_in_kinds(ask: Ask) -> None:
    def item(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "default"}, "data": {"k": name}}

    client, server = ask(
        {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"continue": "t/1"}, "items": [item("a"), body("b")]},
        {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [item("c")]},
    )

    found = list(client.list(CONFIGMAPS, namespace="default", labels="a in (x)", fields="metadata.name!=z", limit=2))

    assert [(obj.name, obj.kind, obj.api_version) for obj in found] == [
        ("a", "ConfigMap", "v1"),
        ("b", "ConfigMap", "v1"),
        ("c", "ConfigMap", "v1"),
    ]
    assert found[0].get("kind") == "ConfigMap"
    assert found[2].get("data", "k") == "c"
    assert [query_of(asked) for asked in server.asked] == [
        {"labelSelector": "a%20in%20%28x%29", "fieldSelector": "metadata.name%21%3Dz", "limit": "2"},
        {
            "labelSelector": "a%20in%20%28x%29",
            "fieldSelector": "metadata.name%21%3Dz",
            "limit": "2",
            "continue": "t%2F1",
        },
    ]


def test_list_whose_pages_have_expired_goes_on_in_full_and_gives_nothing_twice(ask: Ask) -> None:
    client, server = ask(
        {"kind": "ConfigMapList", "metadata": {"continue": "t"}, "items": [body("a")]},
        (410, {"kind": "Status", "reason": "Expired", "code": 410}),
        {"kind": "ConfigMapList", "metadata": {}, "items": [body("a"), body("b")]},
    )

    assert [obj.name for obj in client.list(CONFIGMAPS)] == ["a", "b"]
    assert "limit" not in query_of(server.asked[2])


def test_list_of_nothing_is_empty_and_null_items_too(ask: Ask) -> None:
    client, _ = ask({"kind": "ConfigMapList", "items": None}, {"kind": "ConfigMapList", "items": []})

    assert [*client.list(CONFIGMAPS), *client.list(CONFIGMAPS)] == []


@pytest.mark.parametrize(
    "answer", [{"kind": "Table", "items": []}, body(), {"kind": "Status"}, b"[", {"kind": "XList"}]
)
def test_answer_that_is_no_list_is_an_error_never_an_empty_list(answer: object, ask: Ask) -> None:
    client, _ = ask(answer)

    with pytest.raises(APIError, match="want a list"):
        list(client.list(CONFIGMAPS))


def test_expired_first_page_is_raised(ask: Ask) -> None:
    client, _ = ask((410, {"reason": "Expired"}))

    with pytest.raises(ExpiredError):
        list(client.list(CONFIGMAPS))


def test_create_sends_the_body_and_returns_what_was_stored(ask: Ask) -> None:
    client, server = ask((201, body("a", rv="9")))

    obj = client.create(CONFIGMAPS, body("a", rv=""), namespace="default", field_manager="me")

    assert obj.resource_version == "9"
    asked = server.asked[0]
    assert (asked.method, asked.target) == ("POST", "/api/v1/namespaces/default/configmaps?fieldManager=me")
    assert asked.headers["content-type"] == "application/json"
    assert json.loads(asked.body)["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
def test_patch_kind_decides_the_content_type(kind: Any, content_type: str, ask: Ask) -> None:
    client, server = ask(body())
    patch: Any = [{"op": "remove", "path": "/x"}] if kind == "json" else {"data": {"x": None}}

    client.patch(REF, patch, kind=kind, field_manager="me", force=kind == "apply", subresource="status")

    asked = server.asked[0]
    assert (asked.method, asked.headers["content-type"]) == ("PATCH", content_type)
    assert asked.target.startswith("/api/v1/namespaces/default/configmaps/a/status?")
    assert query_of(asked) == {"fieldManager": "me", **({"force": "true"} if kind == "apply" else {})}
    assert json.loads(asked.body) == patch


def test_bytes_are_sent_as_they_are_and_read_only_bodies_as_plain_json(ask: Ask) -> None:
    client, server = ask(body(), body(), body())

    client.patch(REF, b'{ "a" : 1.0 }', field_manager="me")
    client.update(REF, freeze(body(data={"x": [1, 2**70, 1.0, True, None]})), field_manager="me")  # type: ignore[arg-type] # a frozen mapping
    client.patch(REF, MappingProxyType({"data": MappingProxyType({"x": "y"})}), field_manager="me")

    assert server.asked[0].body == b'{ "a" : 1.0 }'
    assert json.loads(server.asked[1].body)["data"] == {"x": [1, 2**70, 1.0, True, None]}
    assert json.loads(server.asked[2].body) == {"data": {"x": "y"}}


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.patch(REF, {}, kind="yaml", field_manager="m"),
        lambda client: client.patch(REF, {}, force=True, field_manager="m"),
        lambda client: client.patch(REF, {"a": object()}, field_manager="m"),
        lambda client: client.delete(REF, propagation="None"),
        lambda client: client.get(REF, timeout=0),
        lambda client: client.get(REF, timeout=-1),
        lambda client: client.get(REF, timeout=float("inf")),
        lambda client: client.list(CONFIGMAPS, limit=-1),
        lambda client: client.get(ObjectRef(CONFIGMAPS, "default", "a", "elsewhere")),
    ],
)
def test_bad_option_is_refused_and_nothing_is_sent(call: Callable[[Client], object], ask: Ask) -> None:
    client, server = ask()

    with pytest.raises(ConfigError):
        call(client)

    assert server.accepted == 0


def test_delete_sends_preconditions_and_propagation(ask: Ask) -> None:
    client, server = ask(body(), {"kind": "Status"})

    client.delete(REF, uid="u", resource_version="7", propagation="Foreground")
    client.delete(REF)

    first, second = (json.loads(asked.body) for asked in server.asked)
    assert first["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert first["propagationPolicy"] == "Foreground"
    assert second == {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}


def test_delete_collection_sends_selectors(ask: Ask) -> None:
    client, server = ask({"kind": "Status"})

    client.delete_collection(CONFIGMAPS, namespace="default", labels="a=b")

    assert (server.asked[0].method, server.asked[0].target) == (
        "DELETE",
        "/api/v1/namespaces/default/configmaps?labelSelector=a%3Db",
    )


def test_request_passes_through_and_returns_the_answer(ask: Ask) -> None:
    client, server = ask({"gitVersion": "v1"}, {})

    answer = client.request("get", "/version")
    client.request("POST", "/apis/x", query=[("a", "b")], body={"k": 1})

    assert (answer.status, json.loads(answer.body)) == (200, {"gitVersion": "v1"})
    assert [(asked.method, asked.target) for asked in server.asked] == [("GET", "/version"), ("POST", "/apis/x?a=b")]


WRITES: list[Callable[[Client], object]] = [
    lambda client: client.create(CONFIGMAPS, body(), namespace="default", field_manager="m"),
    lambda client: client.update(REF, body(), field_manager="m"),
    lambda client: client.patch(REF, {}, field_manager="m"),
    lambda client: client.delete(REF),
    lambda client: client.delete_collection(CONFIGMAPS),
    lambda client: client.request("POST", "/x"),
]


@pytest.mark.parametrize("write", WRITES)
def test_dry_run_client_sends_dry_run_with_every_write(write: Callable[[Client], object], ask: Ask) -> None:
    client, server = ask(body(), dry_run=True)

    write(client)

    assert query_of(server.asked[0])["dryRun"] == "All"


def test_dry_run_of_one_call(ask: Ask) -> None:
    client, server = ask(body(), body())

    client.patch(REF, {}, field_manager="m", dry_run=True)
    client.delete(REF, dry_run=True)

    assert [query_of(asked).get("dryRun") for asked in server.asked] == ["All", "All"]


DELETIONS: list[Callable[[Client], object]] = [
    lambda client: client.delete(REF, uid="u"),
    lambda client: client.delete_collection(CONFIGMAPS),
    lambda client: client.request("DELETE", "/x", body={"kind": "DeleteOptions"}),
    lambda client: client.request("DELETE", "/x", body=b'{"kind": "DeleteOptions"}'),
]


@pytest.mark.parametrize("delete", DELETIONS)
def test_deletion_in_a_dry_run_says_so_in_its_body_too(delete: Callable[[Client], object], ask: Ask) -> None:
    """A real server that is given options in the body ignores those of the query, and would delete."""
    client, server = ask(body(), dry_run=True)

    delete(client)

    assert json.loads(server.asked[0].body)["dryRun"] == ["All"]


def test_deletion_that_cannot_be_made_a_trial_is_not_sent(ask: Ask) -> None:
    client, server = ask(body(), dry_run=True)

    with pytest.raises(ConfigError):
        client.request("DELETE", "/x", body=b"kind: DeleteOptions")

    assert server.asked == []


def test_deletion_says_nothing_of_a_trial_that_is_none(ask: Ask) -> None:
    client, server = ask(body())

    client.delete(REF)

    assert "dryRun" not in json.loads(server.asked[0].body)


class ClosedFence(Fence):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def remaining(self) -> float:
        return self.seconds


@pytest.mark.parametrize("seconds", [0.0, 0.9])
@pytest.mark.parametrize("write", WRITES)
def test_closed_fence_stops_every_write_before_it_is_sent(
    write: Callable[[Client], object], seconds: float, ask: Ask
) -> None:
    client, server = ask(fence=ClosedFence(seconds))

    with pytest.raises(NotLeaderError):
        write(client)

    assert server.accepted == 0


def test_reads_ask_no_fence(ask: Ask) -> None:
    client, _ = ask(body(), {"kind": "ConfigMapList", "items": []}, {}, fence=ClosedFence(0))

    client.get(REF)
    list(client.list(CONFIGMAPS))
    client.request("GET", "/version")


def hang(connection: Connection) -> None:
    connection.freeze()


def hang_up(connection: Connection) -> None:
    connection.reset()


def test_write_ends_when_the_fence_does(ask: Ask) -> None:
    client, _ = ask(hang, fence=ClosedFence(1.0))

    with pytest.raises(RequestTimeout):
        client.patch(REF, {}, field_manager="m", timeout=60)


def test_each_cluster_gets_what_its_references_name(serve: Serve, connect: Connect) -> None:
    home, other = serve(Answers(body())), serve(Answers(body(), body()))
    client = Client({"": connect(home.url), "b": connect(other.url, cluster="b")})

    obj = client.get(ObjectRef(CONFIGMAPS, "default", "a", "b"))
    client.create(CONFIGMAPS, body(), namespace="default", cluster="b", field_manager="m")

    assert obj.cluster == "b"
    assert (len(home.asked), len(other.asked)) == (0, 2)


def told(
    client: Client, call: Callable[[Client], object], *, deadline: float | None = None
) -> tuple[list[Write], BaseException | None]:
    writes: list[Write] = []
    with lend(deadline=deadline, wrote=writes.append):
        try:
            call(client)
        except (APIError, ConnectError, ConnectionLost, RequestTimeout) as error:
            return writes, error
    return writes, None


def test_lender_learns_of_each_write_with_its_version(ask: Ask) -> None:
    client, _ = ask((201, body(rv="1")), body(rv="2"), body(rv="3"), body(rv="4"))

    writes, _ = told(client, lambda client: [write(client) for write in WRITES[:4]])

    assert [(write.ref, write.obj.resource_version if write.obj else None) for write in writes] == [
        (REF, "1"),
        (REF, "2"),
        (REF, "3"),
        (REF, None),
    ]
    assert [write.deleted for write in writes] == [False, False, False, True]
    assert not any(write.lost for write in writes)


@pytest.mark.parametrize("answer", [hang_up, (500, {}), (504, {})])
@pytest.mark.parametrize("write", WRITES[:4])
def test_lender_learns_of_a_lost_answer(answer: Any, write: Callable[[Client], object], ask: Ask) -> None:
    client, _ = ask(answer)

    writes, error = told(client, write)

    assert isinstance(error, ConnectionLost | ServerError)
    assert [(each.ref, each.obj, each.lost) for each in writes] == [(REF, None, True)]


@pytest.mark.parametrize("reason", ["Conflict", "AlreadyExists"])
def test_lender_learns_of_a_conflict_that_the_outcome_is_worth_a_look(reason: str, ask: Ask) -> None:
    client, _ = ask((409, {"reason": reason}))

    writes, error = told(client, WRITES[0])

    assert isinstance(error, ConflictError)
    assert [(write.lost, write.refused) for write in writes] == [(True, True)]


@pytest.mark.parametrize("answer", [(404, {}), (422, {}), (503, {}), (429, {})])
def test_lender_learns_nothing_of_what_was_not_done(answer: Any, ask: Ask) -> None:
    client, _ = ask(answer)

    writes, error = told(client, WRITES[0])

    assert isinstance(error, APIError)
    assert writes == []


def test_lender_learns_nothing_of_reads_dry_runs_refused_connections_and_other_threads(ask: Ask) -> None:
    client, server = ask(body(), body(), body())

    def act(client: Client) -> None:
        client.get(REF)
        client.patch(REF, {}, field_manager="m", dry_run=True)
        thread = threading.Thread(target=lambda: client.patch(REF, {}, field_manager="m"), name="other")
        thread.start()
        thread.join()
        server.stop()
        client.patch(REF, {}, field_manager="m")

    writes, error = told(client, act)

    assert isinstance(error, ConnectError | ConnectionLost)
    assert [write.lost for write in writes] in ([], [True])  # the kept connection may be closed before or after sending


def test_calls_end_by_the_deadline_of_the_lender(serve: Serve, connect: Connect, clock: FakeClock) -> None:
    server = serve(Answers(hang))
    client = Client({"": connect(server.url, clock=clock)})

    _, in_time = told(client, lambda client: client.get(REF), deadline=clock.monotonic() + 0.2)
    writes, too_late = told(client, WRITES[2], deadline=clock.monotonic() - 1)

    assert isinstance(in_time, RequestTimeout)
    assert isinstance(too_late, RequestTimeout)
    assert writes == []
    assert server.accepted == 1


def test_lending_ends_with_its_block(ask: Ask) -> None:
    client, _ = ask(body(), body())
    outer: list[Write] = []

    with lend(deadline=None, wrote=outer.append):
        told(client, WRITES[2])
        client.patch(REF, {}, field_manager="m")

    assert len(outer) == 1


def test_update_with_a_version_is_repeated_on_a_dead_connection_one_without_is_not(ask: Ask) -> None:
    def once(connection: Connection) -> None:
        """End without an answer, on the connection that was kept."""

    for version, sent in (("7", 3), ("", 2)):
        client, server = ask(body(), once, body())
        client.get(REF)
        unversioned: Mapping[str, Any] = {"metadata": {"name": "a", "resourceVersion": version}}
        try:
            client.update(REF, unversioned, field_manager="m")
        except ConnectionLost:
            assert not version
        assert len(server.asked) == sent


@pytest.mark.parametrize(
    ("patch", "kind", "is_safe"),
    [
        ({"metadata": {"uid": "u"}}, "merge", True),
        ({"metadata": {"resourceVersion": "1"}}, "apply", True),
        ({"metadata": {"labels": {}}}, "merge", False),
        ([{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}], "json", True),
        ([{"op": "test", "path": "/metadata/uid", "value": "u"}], "json", True),
        ([{"op": "test", "path": "/metadata/name", "value": "u"}], "json", False),
        (b"a: yaml", "apply", False),
        (b"nonsense", "json", False),
    ],
)
def test_patch_is_repeated_only_with_a_precondition(patch: Any, kind: Any, is_safe: bool) -> None:
    from informers.api.client import _encoded, _has_precondition

    assert _has_precondition(_encoded(patch), kind) is is_safe


def test_no_value_of_a_secret_reaches_a_text_or_the_log(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    secret = GVR("", "v1", "secrets")
    ref = ObjectRef(secret, "default", "a")
    client, _ = ask((404, {"reason": "NotFound", "message": "hunter2"}), (422, {"message": "hunter2"}), b"hunter2")

    calls: list[Callable[[], object]] = [
        lambda: client.get(ref),
        lambda: client.patch(ref, {"data": {"x": "hunter2"}}, field_manager="m"),
        lambda: client.get(ref),
    ]
    texts = []
    with caplog.at_level(logging.DEBUG):
        for call in calls:
            with pytest.raises(APIError) as raised:
                call()
            texts += [str(raised.value), repr(raised.value)]

    assert "hunter2" not in "".join([*texts, caplog.text])


def test_missing_object_is_told_with_its_reference(ask: Ask) -> None:
    client, _ = ask((404, {"reason": "NotFound", "message": 'configmaps "a" not found'}))

    with pytest.raises(NotFoundError, match=r'get configmaps\.v1 default/a: 404 NotFound: configmaps "a" not found'):
        client.get(REF)


def deep(before: str, after: str) -> bytes:
    return before.encode() + b"[" * 100_000 + b"]" * 100_000 + after.encode()


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda client: client.get(REF), deep('{"kind":"ConfigMap","metadata":{"name":"a"},"data":', "}")),
        (
            lambda client: list(client.list(CONFIGMAPS)),
            deep('{"kind":"ConfigMapList","items":[{"metadata":{"name":"a"},"data":', "}]}"),
        ),
        (lambda client: client.get(REF), (500, deep('{"kind":"Status","details":', "}"))),
        (lambda client: client.get(REF), (500, b'{"details":{"retryAfterSeconds":1%s}}' % (b"0" * 400))),
        (lambda client: client.get(REF), (500, b'{"details":{"retryAfterSeconds":1%s}}' % (b"0" * 5000))),
    ],
    ids=["object", "list", "status", "long number", "longer number"],
)
def test_answer_that_cannot_be_decoded_is_an_api_error(call: Any, answer: Any, ask: Ask) -> None:
    client, _ = ask(answer)

    with pytest.raises(APIError):
        call(client)


def endless() -> dict[str, Any]:
    holder: dict[str, Any] = {}
    holder["self"] = holder
    return holder


@pytest.mark.parametrize(
    "value", [float("nan"), {"x": [1, None, float("-inf")]}, "s3cret\ud800", object(), endless(), {("s3cret",): 1}]
)
def test_body_that_is_no_json_is_a_config_error_without_its_values(value: Any, ask: Ask) -> None:
    client, server = ask()

    with pytest.raises(ConfigError) as raised:
        client.patch(REF, {"data": value}, field_manager="m")

    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert server.accepted == 0


def test_name_of_any_character_is_sent_encoded(ask: Ask) -> None:
    name = "a \u00e9\u4e2d\U0001f40d:+~?#&=;@!$'()*,\\\x00\n"
    client, server = ask(body(name))

    assert client.get(ObjectRef(CONFIGMAPS, "default", name)).name == name

    assert unquote(server.asked[0].target) == f"/api/v1/namespaces/default/configmaps/{name}"
    assert server.asked[0].target.isascii()


def test_half_a_character_in_a_name_is_a_config_error(ask: Ask) -> None:
    client, server = ask()

    with pytest.raises(ConfigError):
        client.get(ObjectRef(CONFIGMAPS, "default", "a\ud800"))
    with pytest.raises(ConfigError):
        client.get(ObjectRef(CONFIGMAPS, "\ud800", "a"))

    assert server.accepted == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "get"])
def test_raw_reads_ask_no_fence(method: str, ask: Ask) -> None:
    client, server = ask(b"", fence=ClosedFence(0))

    client.request(method, "/x")

    assert server.asked[0].method == method.upper()


class Recorder:
    """A transport that says only how long it was given."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.timeouts: list[float] = []

    def request(self, method: str, path: str, *, timeout: float, **_: object) -> Response:
        self.timeouts.append(timeout)
        raise NotFoundError


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        (lambda client: client.get(REF), 30),
        (lambda client: client.request("GET", "/x"), 30),
        (lambda client: list(client.list(CONFIGMAPS)), 60),
        (lambda client: client.create(CONFIGMAPS, body(), namespace="default", field_manager="m"), 15),
        (lambda client: client.patch(REF, {}, field_manager="m"), 15),
        (lambda client: client.delete(REF), 15),
        (lambda client: client.request("POST", "/x"), 15),
        (lambda client: client.get(REF, timeout=3), 3),
    ],
)
def test_calls_have_their_time(call: Any, seconds: float, clock: FakeClock) -> None:
    recorder = Recorder(clock)

    with pytest.raises(NotFoundError):
        call(Client({"": cast("Transport", recorder)}))

    assert recorder.timeouts == [seconds]


def first_answer_then_silence(conflict: Any) -> Callable[[Connection], None]:
    def play(connection: Connection) -> None:
        connection.read()
        if connection.number == 1:
            connection.answer(body())
            connection.read()  # and hang up
        else:
            connection.answer(*conflict[:1], status=conflict[1])

    return play


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.update(REF, body(), field_manager="m"),
        lambda client: client.patch(REF, {"metadata": {"uid": "u-a"}}, field_manager="m"),
        lambda client: client.delete(REF, uid="u-a"),
        lambda client: client.delete(REF, resource_version="7"),
    ],
)
def test_lender_learns_that_a_repeated_write_may_have_been_carried_out_the_first_time(
    write: Callable[[Client], object], serve: Serve, connect: Connect
) -> None:
    server = serve(first_answer_then_silence(({"reason": "Conflict"}, 409)))
    client = Client({"": connect(server.url)})
    client.get(REF)

    writes, error = told(client, write)

    assert isinstance(error, ConflictError)
    assert [each.lost for each in writes] == [True]
    assert len(server.asked) == 3


def test_create_repeated_after_a_server_error_that_then_exists_may_be_ours(serve: Serve, connect: Connect) -> None:
    def play(connection: Connection) -> None:
        connection.read()
        connection.answer({}, status=500, headers={"Retry-After": "0"})
        connection.read()
        connection.answer({"reason": "AlreadyExists"}, status=409)

    writes, error = told(Client({"": connect(serve(play).url)}), WRITES[0])

    assert isinstance(error, AlreadyExistsError)
    assert [each.lost for each in writes] == [True]


@pytest.mark.parametrize("answer", [{"kind": "Status"}, b"", b"<html>"])
def test_lender_learns_of_a_write_whose_answer_is_something_else(answer: Any, ask: Ask) -> None:
    client, _ = ask(answer)

    writes, error = told(client, lambda client: client.patch(REF, {}, field_manager="m"))

    assert isinstance(error, APIError)
    assert [each.lost for each in writes] == [True]


def test_write_that_got_no_turn_is_not_lost(serve: Serve, connect: Connect) -> None:
    server = serve(lambda connection: connection.freeze())
    transport = connect(server.url, max_inflight=1)
    client, cancel = Client({"": transport}), Cancel()
    thread = threading.Thread(
        target=lambda: told(client, lambda _: transport.request("GET", "/x", timeout=60, cancel=cancel))
    )
    thread.start()
    assert server.frozen.acquire(timeout=60)

    writes, error = told(client, lambda client: client.patch(REF, {}, field_manager="m", timeout=0.1))
    cancel.cancel()
    thread.join(60)

    assert isinstance(error, NotSent)
    assert writes == []


def test_user_agent_names_who_lends(ask: Ask) -> None:
    client, server = ask(body(), body(), {"kind": "ConfigMapList", "items": []}, {}, body())

    with lend(deadline=None, wrote=lambda write: None, part="copier"):
        client.get(REF)
        client.patch(REF, {}, field_manager="m")
        list(client.list(CONFIGMAPS))
        client.request("GET", "/x")
    client.get(REF)

    agents = [asked.headers["user-agent"] for asked in server.asked]
    assert agents == ["kube-informers (copier)"] * 4 + ["kube-informers (client)"]


@pytest.mark.parametrize("gvr", [CONFIGMAPS, GVR("", "v1", "secrets")])
@pytest.mark.parametrize(
    "call",
    [
        lambda client, ref: client.get(ref),
        lambda client, ref: client.patch(ref, {}, field_manager="m"),
        lambda client, ref: list(client.list(ref.gvr)),
    ],
)
@pytest.mark.parametrize(("kind", "content"), [("application/json", b'{"kind":"Table"}'), ("text/html", b"<html>")])
def test_unexpected_answer_says_what_came_for_secrets_and_writes_too(
    kind: str, content: bytes, call: Any, gvr: GVR, ask: Ask
) -> None:
    client, _ = ask(lambda connection: connection.answer(content, headers={"Content-Type": kind}))

    with pytest.raises(APIError, match=r"Table|text/html"):
        call(client, ObjectRef(gvr, "default", "a"))


class FenceThatCloses(Fence):
    """Open for the first few questions."""

    def __init__(self, answers: int) -> None:
        self.left = answers

    def remaining(self) -> float:
        self.left -= 1
        return 20.0 if self.left >= 0 else 0.0


@pytest.mark.parametrize("answers", range(1, 4))
@pytest.mark.parametrize("write", WRITES)
def test_a_fence_that_closes_on_the_way_stops_a_write_before_its_bytes(
    write: Callable[[Client], object], answers: int, ask: Ask
) -> None:
    """As when the process stands still between the first question and the first byte."""
    client, server = ask(body(), fence=FenceThatCloses(answers))

    if answers < 3:
        with pytest.raises(NotLeaderError):
            write(client)

        assert server.asked == []
    else:
        write(client)

        assert len(server.asked) == 1


@pytest.mark.parametrize("item", ['"text"', "7", "null", "[]", '{"metadata": "text"}'])
def test_list_with_an_item_that_is_no_object_says_so(item: str, ask: Ask) -> None:
    content = f'{{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {{}}, "items": [{item}]}}'.encode()
    client, _ = ask(lambda connection: connection.answer(content))

    with pytest.raises(APIError, match="an item of the answer is something else"):
        list(client.list(CONFIGMAPS))
