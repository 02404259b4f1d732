"""What a server publishes about its kinds: read alike from the embedded and the real one, once, when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest

from controllers.copier.paths import locate, parse_path
from controllers.copier.problems import RuleError, State
from controllers.copier.quantities import is_same_amount
from controllers.copier.schemas import Schema, Schemas, read_kind
from controllers.copier.values import Number, Plain
from informers import GVR, ObjectRef, RESTMapper, ServerError, patches
from informers.api.kubeconfig import load_kubeconfig
from informers.api.transport import Transport
from informers.testing import FakeClock

if TYPE_CHECKING:
    from informers.testing.servers import Server

DEPLOYMENTS = GVR("apps", "v1", "deployments")
PODS = GVR("", "v1", "pods")
CRDS = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")
POD_SPEC = ("spec", "template", "spec")


@pytest.fixture
def schemas(server: Server) -> Iterator[Schemas]:
    with closing(Transport(load_kubeconfig([server.kubeconfig]))) as transport:
        mapper = RESTMapper(transport)
        yield Schemas(lambda _cluster: mapper, transport.clock)


def test_a_server_tells_merge_keys_and_quantities_of_what_it_has_built_in(schemas: Schemas) -> None:
    schema = schemas.of(ObjectRef(DEPLOYMENTS, "a", "d"))

    schema.check_strategic(locate(None, parse_path("spec.template.spec.containers[name=a].resources.limits.memory")))
    by_name, by_path = patches.MergeRule(merge=True, key="name"), patches.MergeRule(merge=True, key="mountPath")
    rules = {
        (*POD_SPEC, "containers"): by_name,
        (*POD_SPEC, "containers", "env"): by_name,
        (*POD_SPEC, "containers", "volumeMounts"): by_path,
        (*POD_SPEC, "containers", "args"): None,
        ("spec", "strategy"): None,  # retainKeys: for who makes patches, not for who merges them
        ("metadata", "finalizers"): patches.MergeRule(merge=True),
        ("metadata", "ownerReferences"): patches.MergeRule(merge=True, key="uid"),
    }
    assert {fields: schema.merge_rule(fields) for fields in rules} == rules
    quantities = {
        (*POD_SPEC, "containers", "resources", "limits", "memory"): True,
        (*POD_SPEC, "volumes", "emptyDir", "sizeLimit"): True,
        (*POD_SPEC, "containers", "image"): False,
        ("spec", "replicas"): False,
    }
    assert {fields: schema.is_quantity(fields) for fields in quantities} == quantities


def test_a_server_tells_which_kinds_take_a_strategic_merge(schemas: Schemas) -> None:
    for gvr in (DEPLOYMENTS, PODS, CRDS):
        schemas.of(ObjectRef(gvr, "a", "x")).check_strategic(locate(None, parse_path("spec")))

    with pytest.raises(
        RuleError, match=r"SchemaUnavailable: the OpenAPI of no\.such/v1 cannot be read: UnknownKindError"
    ):
        schemas.of(ObjectRef(GVR("no.such", "v1", "things"), "a", "x")).check_strategic(())


# --- what is kept ------------------------------------------------------------------------------------------------


def document_of(*fields: str, accepts: str = "application/strategic-merge-patch+json") -> Mapping[str, Any]:
    """Publish Widgets whose spec has these fields."""
    widget = {"$ref": "#/components/schemas/Widget"}
    spec = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
    patch = {
        "requestBody": {"content": {accepts: {}}},
        "responses": {"200": {"content": {"application/json": {"schema": widget}}}},
    }
    return {
        "paths": {"/apis/example.io/v1/widgets/{name}": {"patch": patch}},
        "components": {"schemas": {"Widget": {"type": "object", "properties": {"spec": spec}}}},
    }


WIDGET = ObjectRef(GVR("example.io", "v1", "widgets"), "", "w", "east")


class FakeMapper:
    """Publishes one document, and counts how often it is read."""

    def __init__(self) -> None:
        self.hash = "1"
        self.document: Mapping[str, Any] = document_of("k")
        self.error: Exception | None = None
        self.asked = 0
        self.read = 0

    def openapi_hash(self, _group: str, _version: str) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.hash

    def openapi(self, _group: str, _version: str) -> Mapping[str, Any]:
        self.read += 1
        return self.document


@pytest.fixture
def mapper() -> FakeMapper:
    return FakeMapper()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def known(mapper: FakeMapper, clock: FakeClock) -> Schemas:
    return Schemas(lambda cluster: cast("RESTMapper", {"east": mapper}[cluster]), clock)


def is_mergeable(schema: Schema, path: str) -> bool:
    try:
        schema.check_strategic(locate(None, parse_path(path)))
    except RuleError as error:
        if error.reason != "StrategicMergeUnsupported":
            raise
        return False
    return True


def test_nothing_is_read_before_it_is_asked_for(known: Schemas, mapper: FakeMapper) -> None:
    known.of(WIDGET)

    assert mapper.asked == 0


def test_a_document_is_read_once_until_there_is_another(known: Schemas, mapper: FakeMapper) -> None:
    assert not is_mergeable(known.of(WIDGET), "spec.new")
    assert not is_mergeable(known.of(WIDGET), "spec.new")
    assert mapper.read == 1

    mapper.hash, mapper.document = "2", document_of("new")

    assert is_mergeable(known.of(WIDGET), "spec.new")
    assert known.of(WIDGET).hash() == "2"
    assert mapper.read == 2


def test_what_cannot_be_read_is_waited_for_and_asked_for_again_after_a_while(
    known: Schemas, mapper: FakeMapper, clock: FakeClock
) -> None:
    mapper.error = ServerError("values of the server", status=503, reason="ServiceUnavailable")
    for _ in range(3):
        with pytest.raises(RuleError) as raised:
            known.of(WIDGET).merge_rule(("spec",))
        assert raised.value.state is State.WAITING
        assert raised.value.text == "the OpenAPI of example.io/v1 cannot be read: 503 ServiceUnavailable"
    assert mapper.asked == 1
    assert known.of(WIDGET).hash() == ""

    mapper.error = None
    clock.advance(5)

    assert is_mergeable(known.of(WIDGET), "spec.k")


def test_a_kind_without_the_media_type_and_one_without_an_entry_are_not_merged_strategically() -> None:
    without = read_kind(document_of("k", accepts="application/merge-patch+json"), WIDGET.gvr)
    unknown = read_kind(document_of("k"), GVR("example.io", "v1", "gadgets"))

    assert [without.is_strategic, unknown.is_strategic] == [False, False]


def test_a_type_may_refer_to_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Widget"}}}
    document = {**document_of(), "components": {"schemas": {"Widget": node}}}

    kind = read_kind(document, WIDGET.gvr)

    assert is_mergeable(Schema(WIDGET.gvr, lambda: kind, str), "next.next.next")
    assert not is_mergeable(Schema(WIDGET.gvr, lambda: kind, str), "next.other")


# --- amounts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2048Mi", "2Gi"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1e3", "1k"),
        ("1E3", "1000"),
        ("1E", "1000000000000000000"),
        (Number("1"), "1"),
        (Number("1.50"), "1500m"),
        ("1.", "1"),
        (".5", "0.50"),
        ("+1", "1"),
    ],
)
def test_one_amount_has_many_texts(one: Plain, other: Plain) -> None:
    assert is_same_amount(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("2G", "2Gi"), ("1", "2"), ("", ""), ("x", "x"), ("1 ", "1"), (None, None), (True, True), ("1e9999", "1e9999")],
)
def test_what_is_no_amount_or_another_is_not_the_same(one: Plain, other: Plain) -> None:
    assert not is_same_amount(one, other)
