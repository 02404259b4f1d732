"""One line each, constant text, facts as fields."""

from __future__ import annotations

import io
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from informers import logs
from informers.meta.errors import ConfigError
from informers.testing.clock import FakeClock

log = logging.getLogger("informers.some.part")


@pytest.fixture(autouse=True)
def restored_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("informers", "controllers")]
    before = [(one.level, one.propagate, list(one.handlers)) for one in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


def written(act: Callable[[], object], **options: Any) -> list[str]:
    stream = io.StringIO()
    logs.configure_logging(stream=stream, **options)
    act()
    return stream.getvalue().splitlines()


def test_a_line_is_one_json_object_with_time_level_logger_and_text_first() -> None:
    (line,) = written(lambda: log.warning("object kept", extra=logs.fields(count=3)))

    entry = json.loads(line)
    assert list(entry) == ["time", "level", "logger", "msg", "count"]
    assert entry["level"] == "warning"
    assert entry["logger"] == "informers.some.part"
    assert entry["msg"] == "object kept"
    assert entry["count"] == 3


def test_time_is_utc_with_milliseconds() -> None:
    record = logging.makeLogRecord(
        {"name": "informers", "levelno": logging.INFO, "msg": "x", "created": 1715947200.0125}
    )

    (line,) = written(lambda: log.handle(record))

    assert json.loads(line)["time"] == "2024-05-17T12:00:00.012Z"


def test_time_can_be_local() -> None:
    record = logging.makeLogRecord(
        {"name": "informers", "levelno": logging.INFO, "msg": "x", "created": 1715947200.0125}
    )

    (line,) = written(lambda: log.handle(record), utc=False)

    assert json.loads(line)["time"].startswith("2024-05-17T")


@pytest.mark.parametrize("name", ["name", "module", "args", "msg", "message", "asctime", "level", "exc_info", "time"])
def test_fields_may_have_names_that_logging_uses_itself(name: str) -> None:
    (line,) = written(lambda: log.info("text", extra=logs.fields(**{name: "value"})))

    entry = json.loads(line)
    assert "value" in entry.values()
    assert entry["logger"] == "informers.some.part"
    assert entry["msg"] == "text"
    assert entry["level"] == "info"


def test_plain_extra_is_taken_as_fields_too() -> None:
    (line,) = written(lambda: log.info("patched", extra={"field": "spec.data"}))

    assert json.loads(line)["field"] == "spec.data"


def test_both_name_spaces_log_and_others_do_not() -> None:
    def act() -> None:
        for name in ("informers.a", "controllers.b", "elsewhere"):
            logging.getLogger(name).error("x")

    lines = written(act)

    assert [json.loads(line)["logger"] for line in lines] == ["informers.a", "controllers.b"]


def test_the_root_logger_is_left_alone() -> None:
    before = list(logging.getLogger().handlers), logging.getLogger().level

    written(lambda: None)

    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before


def test_setting_up_again_replaces_the_first_set_up() -> None:
    first = written(lambda: None)

    second = written(lambda: log.info("once"))

    assert first == []
    assert len(second) == 1


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_a_level_hides_what_is_below_it(level: str, count: int) -> None:
    def act() -> None:
        for write in (log.debug, log.info, log.warning, log.error):
            write("x")

    assert len(written(act, level=level)) == count


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"level": "loud"}, "log level: want one of debug, .* got 'loud'"),
        ({"format": "xml"}, "log format: want .*'xml'"),
    ],
)
def test_an_unknown_level_or_format_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        logs.configure_logging(**options)


def test_bound_fields_are_on_every_line_inside_and_on_none_after() -> None:
    def act() -> None:
        with logs.bind(cluster="b", resource="secrets.v1"), logs.bind(name="web"):
            log.info("in")
        log.info("out")

    inside, outside = map(json.loads, written(act))

    assert (inside["cluster"], inside["resource"], inside["name"]) == ("b", "secrets.v1", "web")
    assert set(outside) == {"time", "level", "logger", "msg"}


def test_bound_fields_belong_to_their_thread() -> None:
    def act() -> None:
        with logs.bind(name="web"):
            thread = threading.Thread(target=lambda: log.info("elsewhere"))
            thread.start()
            thread.join()

    (line,) = written(act)

    assert "name" not in json.loads(line)


def test_bound_fields_are_taken_off_by_an_exception_too() -> None:
    with pytest.raises(KeyError), logs.bind(name="web"):
        raise KeyError

    assert logs.bound_fields() == {}


def test_a_field_of_the_line_wins_over_a_bound_one() -> None:
    def act() -> None:
        with logs.bind(name="outer"):
            log.info("x", extra=logs.fields(name="inner"))

    assert json.loads(written(act)[0])["name"] == "inner"


def test_a_bound_source_is_asked_when_a_line_is_written_and_only_then() -> None:
    asked: list[int] = []

    def source() -> dict[str, object]:
        asked.append(1)
        return {"attempt": len(asked)}

    def act() -> None:
        with logs.bind_source(source):
            log.debug("hidden")
            log.info("shown")

    (line,) = written(act)

    assert json.loads(line)["attempt"] == 1
    assert len(asked) == 1


def test_a_bound_source_that_fails_does_not_lose_the_line() -> None:
    def source() -> dict[str, object]:
        raise LookupError

    def act() -> None:
        with logs.bind_source(source):
            log.info("shown")

    assert json.loads(written(act)[0])["field_error"] == "LookupError"


@pytest.mark.parametrize("shape", ["json", "text"])
def test_no_field_can_break_the_line_or_hide_control_characters(shape: str) -> None:
    nasty = "a\nb\r\x1b[31m\x00\x85\u2028\u202ec"

    lines = written(lambda: log.info("x", extra=logs.fields(field=nasty)), format=shape)

    assert len(lines) == 1
    assert lines[0].isprintable()


@pytest.mark.parametrize("shape", ["json", "text"])
def test_the_content_of_bytes_is_never_shown(shape: str) -> None:
    (line,) = written(lambda: log.info("x", extra=logs.fields(body=b"hunter2", list=[b"hunter2"])), format=shape)

    assert "hunter2" not in line
    assert "7 bytes" in line


def test_fields_keep_their_types() -> None:
    values = {"a": None, "b": True, "c": 1, "d": 1.5, "e": ["x", 1], "f": {"g": 2}}

    (line,) = written(lambda: log.info("x", extra=logs.fields(**values)))

    assert {name: json.loads(line)[name] for name in values} == values


def test_other_values_are_shown_as_their_text() -> None:
    class Shown:
        def __str__(self) -> str:
            return "configmaps.v1 default/web"

    (line,) = written(lambda: log.info("x", extra=logs.fields(ref=Shown())))

    assert json.loads(line)["ref"] == "configmaps.v1 default/web"


@pytest.mark.parametrize("shape", ["json", "text"])
def test_a_traceback_is_kept_without_its_locals(shape: str) -> None:
    def fail() -> None:
        password = "hunter" + str(2)
        raise RuntimeError(len(password))

    def act() -> None:
        try:
            fail()
        except RuntimeError:
            log.exception("it failed")

    (line,) = written(act, format=shape)

    assert "RuntimeError: 7" in line
    assert "in fail" in line
    assert "hunter2" not in line


def test_text_is_key_value_pairs_for_people() -> None:
    (line,) = written(
        lambda: log.info("object patched", extra=logs.fields(name="web", note='say "a=b"', none=None)), format="text"
    )

    assert line.split(" level=")[1] == (
        'info logger=informers.some.part msg="object patched" name=web note="say \\"a=b\\"" none=null'
    )


def test_text_shows_an_empty_field_as_such() -> None:
    (line,) = written(lambda: log.info("x", extra=logs.fields(cluster="")), format="text")

    assert line.endswith('cluster=""')


def test_a_throttle_lets_a_key_through_once_a_period(clock: FakeClock) -> None:
    throttle = logs.Throttle(clock, 600.0)

    first, again, other = throttle.allow("a"), throttle.allow("a"), throttle.allow("b")
    clock.advance(599.0)
    still = throttle.allow("a")
    clock.advance(1.5)
    later = throttle.allow("a")

    assert (first, again, other, still, later) == (True, False, True, False, True)


def test_a_throttle_forgets_when_told(clock: FakeClock) -> None:
    throttle = logs.Throttle(clock)
    throttle.allow("a")

    throttle.forget("a")
    throttle.forget("never seen")

    assert len(throttle) == 0
    assert throttle.allow("a")


def test_a_throttle_is_bounded(clock: FakeClock) -> None:
    throttle = logs.Throttle(clock, size=10)

    for number in range(1000):
        throttle.allow(number)

    assert len(throttle) == 10


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_does_not_know_is_written_as_text(value: float) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    (line,) = written(lambda: log.info("x", extra=logs.fields(wait=value, many=[value])))

    found = json.loads(line, parse_constant=refuse)
    assert (found["wait"], found["many"]) == (str(value), [str(value)])


@pytest.mark.parametrize("shape", ["json", "text"])
def test_a_field_that_cannot_be_shown_does_not_lose_the_line(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def __str__(self) -> str:
            raise LookupError("hunter2")

    (line,) = written(lambda: log.info("x", extra=logs.fields(bad=Broken(), good=1)), format=shape)

    assert "<Broken: LookupError>" in line
    assert "good" in line
    assert "hunter2" not in line
    assert capsys.readouterr().err == ""


def test_a_handler_of_the_root_logger_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Another library that sets the root logger up would else write every line a second time."""
    lines = written(lambda: log.warning("once"))

    assert len(lines) == 1
    assert caplog.records == []
