from typing import Any

import pytest

from informers.meta import errors
from informers.meta.errors import APIError, Cause, api_error, is_expired, is_too_large, printable
from informers.meta.resources import GVR, ObjectRef

CONFIGMAP = ObjectRef(GVR("", "v1", "configmaps"), "a", "t")
SECRET = ObjectRef(GVR("", "v1", "secrets"), "a", "s")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, None, errors.BadRequestError),
        (401, {}, errors.UnauthorizedError),
        (403, {"reason": "Forbidden"}, errors.ForbiddenError),
        (404, None, errors.NotFoundError),
        (409, {"reason": "Conflict"}, errors.ConflictError),
        (409, {"reason": "AlreadyExists"}, errors.AlreadyExistsError),
        (410, {"reason": "Expired"}, errors.ExpiredError),
        (422, {"reason": "Invalid"}, errors.InvalidError),
        (429, None, errors.TooManyRequestsError),
        (500, None, errors.ServerError),
        (503, {"reason": "ServiceUnavailable"}, errors.ServerError),
        (405, {"reason": "MethodNotAllowed"}, APIError),
        (0, {"code": 410, "reason": "Expired"}, errors.ExpiredError),
        (0, {"reason": "Gone"}, errors.ExpiredError),
        (0, {"reason": "TooManyRequests"}, errors.TooManyRequestsError),
        (0, {}, errors.ServerError),
        (0, None, errors.ServerError),
        (500, {"reason": "Expired"}, errors.ExpiredError),
    ],
)
def test_status_and_reason_decide_the_class(status: int, body: dict[str, Any] | None, expected: type[APIError]) -> None:
    assert type(api_error(status, body)) is expected


def test_a_status_without_a_code_gets_the_one_of_its_reason() -> None:
    assert api_error(0, {"reason": "Forbidden"}).status == 403
    assert api_error(0, {}).status == 500


@pytest.mark.parametrize(
    "body",
    [
        {"code": "x", "reason": 5, "message": [], "details": "no"},
        {"details": {"causes": {}}},
        {"details": {"causes": [1]}},
    ],
)
def test_a_malformed_status_still_gives_an_error(body: dict[str, Any]) -> None:
    assert api_error(422, body).status == 422


def test_causes_and_retry_after_are_kept() -> None:
    error = api_error(
        504,
        {
            "reason": "Timeout",
            "message": "Too large resource version: 9, current: 1",
            "details": {
                "retryAfterSeconds": 1,
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            },
        },
        verb="list",
        ref=CONFIGMAP.gvr,
    )

    assert error.retry_after == 1
    assert error.causes == (Cause("ResourceVersionTooLarge", "", "Too large resource version"),)


@pytest.mark.parametrize(
    ("status", "body", "expired", "too_large"),
    [
        (410, None, True, False),
        (0, {"reason": "Expired"}, True, False),
        (504, {"reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}, False, True),
        (504, {"reason": "Timeout", "message": "Too large resource version: 3"}, False, True),
        (504, {"reason": "Timeout", "message": "slow"}, False, False),
        (500, {"message": "Too large resource version: 3"}, False, False),
    ],
)
def test_expired_and_too_large_are_told_apart(status: int, body: Any, expired: bool, too_large: bool) -> None:
    error = api_error(status, body)

    assert (is_expired(error), is_too_large(error)) == (expired, too_large)
    assert not is_expired(ValueError())
    assert not is_too_large(ValueError())


def test_text_says_what_was_wanted_and_what_was_found() -> None:
    error = api_error(404, {"reason": "NotFound", "message": "no such thing"}, verb="get", ref=CONFIGMAP, cluster="hub")

    assert str(error) == "get configmaps.v1 a/t (cluster hub): 404 NotFound: no such thing"


MARK = "U0VOVElORUw"


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 415, 422, 429, 500])
@pytest.mark.parametrize("verb", ["get", "list", "create", "patch", "update", "delete"])
def test_nothing_a_server_says_about_secrets_is_repeated(status: int, verb: str) -> None:
    error = api_error(status, {"reason": "Invalid", "message": f"value {MARK}"}, verb=verb, ref=SECRET)

    assert MARK not in str(error) + repr(error)
    assert MARK in error.message


@pytest.mark.parametrize(
    ("status", "shown"),
    [(401, True), (403, True), (409, True), (429, True), (500, True), (400, False), (422, False), (413, False)],
)
def test_answers_to_writes_are_repeated_only_where_a_server_never_quotes_the_object(status: int, shown: bool) -> None:
    error = api_error(status, {"reason": "X", "message": f"value {MARK}"}, verb="patch", ref=CONFIGMAP)

    assert (MARK in str(error)) is shown


def test_refused_fields_are_named_without_the_servers_words() -> None:
    causes = [
        {"reason": "FieldValueInvalid", "field": "type", "message": f'Invalid value: "{MARK}": field is immutable'},
        {"reason": "FieldValueRequired", "field": "spec.x", "message": MARK},
    ]
    error = api_error(
        422, {"reason": "Invalid", "message": MARK, "details": {"causes": causes}}, verb="patch", ref=SECRET
    )

    assert str(error).endswith("422 Invalid: type: FieldValueInvalid field is immutable, spec.x: FieldValueRequired")
    assert MARK not in str(error)


@pytest.mark.parametrize(
    ("message", "denier"),
    [
        ('admission webhook "check.example.com" denied the request: ' + MARK, "check.example.com"),
        (
            "configmaps \"t\" is forbidden: ValidatingAdmissionPolicy 'limits' with binding 'b' denied request: "
            + MARK,
            "limits",
        ),
    ],
)
def test_who_denied_is_named_and_what_they_said_is_not(message: str, denier: str) -> None:
    error = api_error(403, {"reason": "Forbidden", "message": message}, verb="patch", ref=CONFIGMAP)

    assert error.denied_by == denier
    assert str(error).endswith(f"denied by {denier}")
    assert MARK not in str(error)


def test_a_cached_read_has_no_status() -> None:
    error = errors.NotFoundError("not in the cache", ref=CONFIGMAP, verb="get")

    assert error.status == 0
    assert str(error) == "get configmaps.v1 a/t: not in the cache"


def test_text_of_others_stays_on_one_short_line() -> None:
    assert printable("a\nb\x00c", limit=100) == r"a\nb\x00c"
    assert printable("x" * 50, limit=10) == "x" * 9 + "…"
