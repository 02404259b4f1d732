from __future__ import annotations

import json
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from informers import metrics
from informers.cache.entries import Keeper, without_managed_fields
from informers.cache.listwatch import read_item
from informers.cache.store import Received, Store, StoreWriter
from informers.logs import Throttle
from informers.meta.objects import Object
from informers.meta.resources import GVR
from informers.testing.clock import FakeClock

SECRETS = GVR("", "v1", "secrets")

texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    [
        "managedFields",
        '"managedFields":',
        'a\\"managedFields":[]',
        "metadata",
        "items",
        "\\",
        '"',
        "é😀",
    ]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """Write a value as JSON in one of the ways in which it can be written."""
    space = draw(st.sampled_from(["", " ", "\n\t", "\r\n"]))
    if isinstance(value, dict):
        members = [f"{draw(spelled(key))}{space}:{space}{draw(written(item))}" for key, item in value.items()]
        return "{" + space + f"{space},{space}".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + space + f"{space},{space}".join(draw(written(item)) for item in value) + space + "]"
    if isinstance(value, str):
        return draw(spelled(value))
    return json.dumps(value)


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    match draw(st.sampled_from(["plain", "ascii", "escaped"])):
        case "plain":
            return json.dumps(text, ensure_ascii=False)
        case "ascii":
            return json.dumps(text)
        case _:
            return '"' + "".join(f"\\u{unit:04x}" for unit in _utf16(text)) + '"'


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]


@st.composite
def objects(draw: st.DrawFn) -> str:
    """Write an object whose metadata may hold managedFields anywhere, more than once, in any spelling."""
    members = [f"{draw(spelled(draw(texts)))}:{draw(written(draw(values)))}" for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 2))):
        metadata = draw(st.dictionaries(texts, values, max_size=3))
        inside = [f"{draw(spelled(key))}:{draw(written(value))}" for key, value in metadata.items()]
        for _ in range(draw(st.integers(0, 2))):
            managed = f"{draw(spelled('managedFields'))}:{draw(written(draw(values)))}"
            inside.insert(draw(st.integers(0, len(inside))), managed)
        members.insert(draw(st.integers(0, len(members))), f"{draw(spelled('metadata'))}:{{{','.join(inside)}}}")
    return "{" + ",".join(members) + "}"


def without(value: Any) -> Any:
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        value = {**value, "metadata": {key: item for key, item in metadata.items() if key != "managedFields"}}
    return value


def is_object(text: str) -> bool:
    """Tell whether this is something that is kept at all."""
    return read_item(msgspec.Raw(text.encode())).envelope is not None


def stripped(text: str) -> bytes:
    envelope = read_item(msgspec.Raw(text.encode())).envelope
    assert envelope is not None
    managed = envelope.metadata.managed_fields
    return text.encode() if managed is msgspec.UNSET else without_managed_fields(text.encode(), bytes(managed))


# Making the objects is what takes long on a busy machine, so both facts are told of the same ones.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(objects())
@example('{"metadata":{"managedFields":[{"a":1}],"name":"x"},"spec":{"managedFields":[{"a":1}]}}')
@example('{"spec":{"managedFields":[]},"metadata":{"name":"x","managedFields" : []}}')
@example('{"metadata":{"name":"x","\\u006danagedFields":[]},"spec":{"managedFields":[]}}')
@example('{"metadata":{"managedFields":[],"managedFields":[]}}')
@example('{"metadata":{"a\\"managedFields":[],"managedFields":[]}}')
@example('{"metadata": { "managedFields" : [ "]" ] } }')
def test_what_is_left_is_the_object_minus_managed_fields_in_the_same_bytes(text: str) -> None:
    if not is_object(text):
        return

    left = stripped(text)

    assert repr(json.loads(left)) == repr(without(json.loads(text)))
    rest = iter(text.encode())
    assert all(byte in rest for byte in left)  # a subsequence: nothing is written anew


def keeper(**options: Any) -> Keeper:
    throttle = Throttle(FakeClock())
    return Keeper(
        SECRETS, cluster="", bodies=Store(SECRETS, throttle=throttle), throttle=throttle, kind="Secret", **options
    )


def keep(text: bytes, **options: Any) -> Object:
    item = read_item(msgspec.Raw(text))
    assert item.envelope is not None
    return keeper(**options).keep(item)


ITEM = (
    b'{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7",'
    b'"managedFields":[{"manager":"m"}]},"data":{"k":"djE=", "f": 1.0}}'
)


def test_an_item_gets_the_kind_that_its_list_tells_and_keeps_every_other_byte() -> None:
    obj = keep(ITEM)

    assert obj.raw == (
        b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"}'
        b',"data":{"k":"djE=", "f": 1.0}}'
    )
    assert (obj.api_version, obj.kind) == ("v1", "Secret")


def test_managed_fields_are_kept_when_asked_for() -> None:
    assert keep(ITEM, keep_managed_fields=True).get("metadata", "managedFields") == [{"manager": "m"}]


def test_metadata_only_drops_the_rest_also_of_a_full_object() -> None:
    obj = keep(ITEM, metadata_only=True)

    assert obj.raw == (
        b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"}}'
    )


def test_no_reader_sees_the_kind_of_a_partial_object() -> None:
    partial = ITEM.replace(b'{"metadata"', b'{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata"')

    obj = keep(partial, metadata_only=True)

    assert (obj.api_version, obj.kind, obj.body["kind"], obj.body["apiVersion"]) == ("v1", "Secret", "Secret", "v1")


def test_a_transform_decides_what_is_stored_and_cannot_change_what_names_the_object() -> None:
    obj = keep(
        ITEM, transform=lambda obj: {"metadata": {"labels": {"x": "y"}, "uid": "other"}, "n": obj.get("data", "f")}
    )

    assert obj.body == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"labels": {"x": "y"}, "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7"},
        "n": 1.0,
    }
    assert obj.labels == {"x": "y"}


def test_a_transform_cannot_put_an_object_into_a_namespace() -> None:
    obj = keep(ITEM.replace(b'"namespace":"n",', b""), transform=lambda obj: {"metadata": {"namespace": "other"}})

    assert (obj.namespace, obj.ref.key) == ("", "a")
    assert "namespace" not in obj.thaw()["metadata"]


def test_a_transform_is_asked_about_metadata_too_where_nothing_else_is_kept() -> None:
    seen: list[dict[str, Any]] = []

    def transform(obj: Object) -> dict[str, Any]:
        seen.append(obj.thaw())
        return {"metadata": {"labels": {"x": "y"}}}

    obj = keep(ITEM, metadata_only=True, transform=transform)

    assert [each.keys() for each in seen] == [{"apiVersion", "kind", "metadata"}]
    assert (obj.name, obj.namespace, obj.labels) == ("a", "n", {"x": "y"})


def test_a_transform_that_returns_the_body_itself_keeps_every_byte_but_managed_fields() -> None:
    data = rb'{ "metadata":{"name":"a","managedFields":[{}],"uid":"u"}, "n":1e3,"big":123456789012345678901234567890,"s":"\u0041"}'

    obj = keep(data, transform=lambda obj: obj.body)

    assert obj.raw == keep(data).raw
    assert b'"n":1e3,"big":123456789012345678901234567890,"s":"\\u0041"' in obj.raw


@pytest.mark.parametrize("result", [None, "raises", {"metadata": object()}, {"x": object()}])
def test_a_transform_that_fails_or_wants_nothing_leaves_the_metadata(result: Any) -> None:
    def transform(obj: Object) -> Any:
        if result == "raises":
            raise KeyError("x")
        return result

    obj = keep(ITEM, transform=transform)

    assert dict(obj.body).keys() == {"apiVersion", "kind", "metadata"}
    assert (obj.name, obj.namespace, obj.uid, obj.resource_version) == ("a", "n", "u", "7")


def test_nothing_that_is_kept_keeps_the_answer_alive() -> None:
    answer = b'{"items":[' + b",".join([ITEM] * 50) + b"]}"
    before = sys.getrefcount(answer)
    kept: list[Object] = []
    for options in ({}, {"metadata_only": True}, {"keep_managed_fields": True}, {"transform": lambda obj: obj.body}):
        items = msgspec.json.decode(answer, type=dict[str, list[msgspec.Raw]])["items"]
        assert sys.getrefcount(answer) > before
        kept.extend(keeper(**options).keep(read_item(raw)) for raw in items)
    del items

    assert len(kept) == 200
    assert sys.getrefcount(answer) == before


def test_an_entry_of_metadata_costs_little() -> None:
    made = keeper(metadata_only=True)
    store = Store(SECRETS, throttle=Throttle(FakeClock()))
    writer = StoreWriter(store)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        replacement = writer.replacement()
        for number in range(300):
            item = read_item(msgspec.Raw(typical(number)))
            replacement.add(Received(made.keep(item)))
        writer.replace(replacement, "5000")
        del replacement, item
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert len(store) == 300
    assert grown / 300 < 2500


def typical(number: int) -> bytes:
    """A Secret as cert-manager makes them, with 4 kB of data."""
    metadata = {
        "name": f"certificate-of-service-{number}",
        "namespace": f"team-{number % 20}",
        "uid": f"0d8e7f6a-1111-2222-3333-{number:012}",
        "resourceVersion": str(900000 + number),
        "creationTimestamp": "2024-01-01T00:00:00Z",
        "labels": {"app.kubernetes.io/name": f"service-{number}", "controller.cert-manager.io/fao": "true"},
        "annotations": {
            f"cert-manager.io/{word}": f"value-of-{word}" for word in ("alt-names", "issuer", "common-name")
        },
        "managedFields": [{"manager": "controller", "fieldsV1": {f"f:{n}": {} for n in range(60)}}],
    }
    return json.dumps({"metadata": metadata, "data": {"tls.crt": "x" * 4000}, "type": "kubernetes.io/tls"}).encode()


def test_a_transform_that_fails_is_counted_each_time_and_told_once_for_each_object(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def transform(obj: Object) -> Any:
        raise KeyError(obj.name)

    count = metrics.counter("informers_transform_errors_total", "", ("cluster", "resource"))
    before = count.total()
    keeping = keeper(transform=transform)

    for _ in range(3):
        keeping.keep(read_item(msgspec.Raw(ITEM)))

    assert count.total() == before + 3
    assert [record.message for record in caplog.records] == ["transform failed, keeping metadata only"]
