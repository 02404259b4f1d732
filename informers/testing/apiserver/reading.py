"""Get one object, list many: versions, pages, and what a replica that lags would say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

from informers.testing.apiserver import statuses
from informers.testing.apiserver.calls import Call, forbidden_option, invalid_options, not_one_of
from informers.testing.apiserver.faults import Fault
from informers.testing.apiserver.forms import Reply
from informers.testing.apiserver.selection import Selection
from informers.testing.apiserver.statuses import Cause, StatusError
from informers.testing.apiserver.storage import Bucket, Continuation, ExpiredError, Record, Store, encode, key_of

_PATIENCE: Final = 3.0  # how long a read waits for a version that is not there yet
_INCONSISTENT: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


def parse_rv(text: str) -> int:
    """Read a resourceVersion parameter; `""` is 0. Raises `ValueError` with the server's words."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def lag_point(fault: Fault, bucket: Bucket) -> int:
    """Return the version up to which a lagging replica knows. Needs the store's lock."""
    rv = fault.get("rv")
    return int(rv) if rv is not None else bucket.rv_before_locked(int(fault.get("events")))


def get(store: Store, call: Call) -> Reply:
    """Answer a GET of one object."""
    wanted = _version(call)
    key = key_of(call.target.namespace, call.target.name)
    point = _reach(store, call, wanted)
    if point is None:
        record = store.find(call.kind, key)
    else:
        with store.lock:
            records = _past_locked(store.bucket_locked(call.kind), point)
        record = next((each for each in records if each.key == key), None)
    if record is None:
        raise statuses.not_found(call.kind, call.target.name)
    body = call.form.of_record(record, call.kind)
    return Reply(200, padded(body, call))


def list_objects(store: Store, call: Call, *, watch_cache: bool) -> Reply:
    """Answer a LIST."""
    _check_list_options(call)
    call.integer("timeoutSeconds")
    limit = max(0, call.integer("limit"))
    selection = Selection.parse(
        call.kind, call.target.namespace, call.parameter("labelSelector"), call.parameter("fieldSelector")
    )
    token = call.parameter("continue")
    if token:
        records, rv, start = _continued(store, call, token)
    else:
        records, rv = _present(store, call, limit)
        start = ""
        if call.parameter("resourceVersion") == "0" and watch_cache and call.plan.shape("NOCACHE") is None:
            limit = 0
    meta: dict[str, Any] = {"resourceVersion": str(rv)}
    chosen = _page(selection, records, start, limit, rv, meta)
    raw_items: list[bytes] = []
    poison = call.plan.decides("POISON")
    if poison is not None and "item" in poison.parameters:
        raw_items.append(encode(poison.get("item")))
    body = call.form.of_list(chosen, call.kind, meta, raw_items=raw_items)
    return Reply(200, padded(body, call))


def _page(
    selection: Selection, records: Sequence[Record], start: str, limit: int, rv: int, meta: dict[str, Any]
) -> Sequence[Record]:
    """Choose what goes into this answer, and note in `meta` how to go on."""
    inside = selection.within(records)
    if start:
        inside = inside[bisect_left(inside, start, key=lambda record: record.key) :]
    if limit == 0:
        return selection.select(inside)
    chosen = selection.first(inside, limit)
    if len(chosen) <= limit:
        return chosen
    chosen.pop()
    meta["continue"] = Continuation(rv, f"{chosen[-1].key}\0").token()
    if not selection.is_partial:
        meta["remainingItemCount"] = len(inside) - limit
    return chosen


def _check_list_options(call: Call) -> None:
    """Raise the 422 that the real server has for pairs of options that do not go together."""
    causes: list[Cause] = []
    match = call.parameter("resourceVersionMatch")
    version = call.parameter("resourceVersion")
    if match:
        if not version:
            causes.append(_no_match("is forbidden unless resourceVersion is provided"))
        if call.parameter("continue"):
            causes.append(_no_match("is forbidden when continue is provided"))
        if match not in {"Exact", "NotOlderThan"}:
            causes.append(not_one_of("resourceVersionMatch", match, '"Exact", "NotOlderThan", ""'))
        if match == "Exact" and version == "0":
            causes.append(_no_match('"exact" is forbidden for resourceVersion "0"'))
    if call.request.has("sendInitialEvents"):
        causes.append(forbidden_option("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if causes:
        raise invalid_options("ListOptions", causes)
    if call.parameter("continue") and version not in {"", "0"}:
        raise statuses.bad_request("specifying resource version is not allowed when using continue")


def _no_match(why: str) -> Cause:
    return forbidden_option("resourceVersionMatch", f"resourceVersionMatch {why}")


def _version(call: Call) -> int:
    try:
        return parse_rv(call.parameter("resourceVersion"))
    except ValueError as error:
        raise statuses.bad_request(f"invalid resource version: {error}") from None


def _present(store: Store, call: Call, limit: int) -> tuple[Sequence[Record], int]:
    """Choose the state that the first page of a list shows."""
    wanted = _version(call)
    match = call.parameter("resourceVersionMatch")
    exact = wanted > 0 and (match == "Exact" or (match == "" and limit > 0))
    point = _reach(store, call, wanted)
    with store.lock:
        bucket = store.bucket_locked(call.kind)
        if exact:
            try:
                return bucket.snapshot_locked(wanted), wanted
            except ExpiredError:
                raise statuses.expired() from None
        if point is not None:
            return _past_locked(bucket, point), point
        return bucket.snapshot_locked(store.rv), store.rv


def _reach(store: Store, call: Call, wanted: int) -> int | None:
    """Make sure that `wanted` is reached; return the version of a replica that lags, or None for the present.

    Raises the 504 that a server has for versions that it does not know yet.
    """
    lag = call.plan.shape("LAG")
    if lag is not None:
        with store.lock:
            point = lag_point(lag, store.bucket_locked(call.kind))
        if lag.get("mode", "stale") == "toolarge":
            if wanted > point:
                raise statuses.too_large_resource_version(wanted, point)
        elif wanted > point:
            # what a replica does that never catches up
            store.wait_for_rv(2**63, _PATIENCE)
            raise statuses.too_large_resource_version(wanted, point)
        elif call.parameter("resourceVersion"):
            return point
        return None
    if wanted > store.rv and (reached := store.wait_for_rv(wanted, _PATIENCE)) < wanted:
        raise statuses.too_large_resource_version(wanted, reached)
    return None


def _past_locked(bucket: Bucket, point: int) -> Sequence[Record]:
    return bucket.snapshot_locked(max(point, bucket.expired))


def _continued(store: Store, call: Call, token: str) -> tuple[Sequence[Record], int, str]:
    """Choose the state and the place that a continue token stands for."""
    try:
        continuation = Continuation.parse(token)
    except ValueError as error:
        raise statuses.bad_request(f"invalid continue token: {error}") from None
    with store.lock:
        bucket = store.bucket_locked(call.kind)
        rv = store.rv if continuation.rv < 0 else continuation.rv
        try:
            return bucket.snapshot_locked(rv), rv, continuation.start
        except ExpiredError:
            raise _expired_token(continuation) from None


def _expired_token(continuation: Continuation) -> StatusError:
    return statuses.expired(_INCONSISTENT, Continuation(-1, continuation.start).token())


def padded(body: bytes, call: Call) -> bytes:
    """Pad an answer to the size that a HUGE fault wants."""
    huge = call.plan.decides("HUGE")
    return pad(body, float(huge.get("mb", 1.0))) if huge is not None else body


def pad(body: bytes, megabytes: float) -> bytes:
    """Grow a JSON object to a size, by an annotation-like field that no client knows."""
    missing = int(megabytes * 1024 * 1024) - len(body)
    if missing <= 0 or not body.endswith(b"}"):
        return body
    return body[:-1] + b',"padding":"' + b"x" * max(0, missing - len(b',"padding":""')) + b'"}'
