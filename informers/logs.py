"""Log one JSON object a line: set up once by the program, with fields bound for a thread.

Library code takes `logging.getLogger(__name__)`, says constant text, and passes facts as fields::

    log.info("patched", extra=fields(field=path))

`fields()` keeps names like `name` and `module` usable, which `logging` itself would refuse.
Bound fields are read when a line is written, on the thread that writes it; lines that nobody writes cost nothing.
Nothing is set up on import, and the root logger is never touched.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from types import TracebackType
from typing import IO, Any, Final, Literal, Protocol

from cachetools import TTLCache

from informers.meta.errors import ConfigError

_LOGGERS: Final = ("informers", "controllers")
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_FIELDS: Final = "informers_fields"
# What a record has without anybody's `extra`; the rest are fields.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", _FIELDS}

Fields = Mapping[str, object]


def fields(**values: object) -> dict[str, Any]:
    """Return what to pass as `extra=`, so that the line carries these fields, whatever they are called."""
    return {_FIELDS: values}


class _Bound(threading.local):
    """What this thread has bound, outermost first."""

    def __init__(self) -> None:
        self.stack: list[Callable[[], Fields]] = []


_bound: Final = _Bound()


class bind:  # noqa: N801 - reads as a verb: `with bind(cluster=…):`
    """Put these fields on every line that this thread logs inside the block."""

    __slots__ = ("_values",)

    def __init__(self, **values: object) -> None:
        self._values = values

    def __enter__(self) -> None:
        values = self._values
        _bound.stack.append(lambda: values)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        _bound.stack.pop()


class bind_source:  # noqa: N801 - as `bind`
    """Put what `source()` returns on every line of this thread inside the block; asked once a line, when it is written."""

    __slots__ = ("_source",)

    def __init__(self, source: Callable[[], Fields]) -> None:
        self._source = source

    def __enter__(self) -> None:
        _bound.stack.append(self._source)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        _bound.stack.pop()


def bound_fields() -> dict[str, object]:
    """Return the fields that a line of this thread would carry now."""
    found: dict[str, object] = {}
    for source in _bound.stack:
        try:
            found.update(source())
        except Exception as error:  # noqa: BLE001 - a line is written whatever its fields do
            found["field_error"] = type(error).__name__
    return found


def configure_logging(
    *,
    level: str = "info",
    format: Literal["json", "text"] = "json",  # noqa: A002 - the option's name
    utc: bool = True,
    stream: IO[str] | None = None,
) -> None:
    """Write the lines of the framework and the controllers to `stream` (stderr); again replaces what was set up.

    Raises `ConfigError` for an unknown level or format.
    """
    if level not in _LEVELS:
        msg = f"log level: want one of {', '.join(_LEVELS)}, got {level!r}"
        raise ConfigError(msg)
    formatter = _FORMATTERS.get(format)
    if formatter is None:
        msg = f"log format: want one of {', '.join(_FORMATTERS)}, got {format!r}"
        raise ConfigError(msg)

    handler = _Handler(sys.stderr if stream is None else stream)
    handler.setFormatter(formatter(UTC if utc else None))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for old in [found for found in logger.handlers if isinstance(found, _Handler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(_LEVELS[level])
        logger.propagate = False


class _Monotonic(Protocol):
    def monotonic(self) -> float: ...


class Throttle:
    """Let a line through once per key and period; bounded, whatever keys come."""

    def __init__(self, clock: _Monotonic, period: float = 600.0, *, size: int = 4096) -> None:
        self._lock = threading.Lock()  # guards _seen
        self._seen: TTLCache[Hashable, None] = TTLCache(size, period, timer=clock.monotonic)

    def allow(self, key: Hashable) -> bool:
        """Tell whether `key` was not let through within the period, and count it as let through."""
        with self._lock:
            if key in self._seen:
                return False
            self._seen[key] = None
            return True

    def forget(self, key: Hashable) -> None:
        """Let `key` through the next time: its state is over, or its object is gone."""
        with self._lock:
            self._seen.pop(key, None)

    def __len__(self) -> int:
        with self._lock:
            return len(self._seen)


class _Handler(logging.StreamHandler[IO[str]]):
    """Ours, to be told from other people's handlers."""


def _entries(record: logging.LogRecord, zone: tzinfo | None) -> dict[str, object]:
    """Return what a line has, in its order: time, level, logger, msg, then fields, bound ones first."""
    moment = datetime.fromtimestamp(record.created, UTC)
    entries: dict[str, object] = {
        "time": moment.astimezone(zone).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    found = bound_fields()
    found.update((name, value) for name, value in vars(record).items() if name not in _OWN)
    found.update(getattr(record, _FIELDS, {}))
    for name, value in found.items():
        # A field never takes the place of one of the four above.
        entries[f"{name}_" if name in {"time", "level", "logger", "msg"} else name] = _shown(value)
    if record.exc_info and record.exc_info[0] is not None:
        entries["traceback"] = _text.formatException(record.exc_info)
    if record.stack_info:
        entries["stack"] = record.stack_info
    return entries


class _TextFormatter(logging.Formatter):
    """The entries as `key=value` pairs (logfmt), for people."""

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__()
        self._zone = zone

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in _entries(record, self._zone).items())


def _json_formatter(zone: tzinfo | None) -> logging.Formatter:
    """Make what writes the entries as one JSON object; the library is loaded only by who logs JSON."""
    from pythonjsonlogger.json import JsonFormatter

    class Formatter(JsonFormatter):
        # ASCII only, as some readers take U+2028 and U+0085 for ends of lines.
        def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
            del message_dict
            log_data.update(_entries(record, zone))

    return Formatter(json_ensure_ascii=True)


_text: Final = logging.Formatter()
_FORMATTERS: Final[Mapping[str, Callable[[tzinfo | None], logging.Formatter]]] = {
    "json": _json_formatter,
    "text": _TextFormatter,
}


def _shown(value: object) -> object:
    try:
        return _plain(value)
    except Exception as error:  # noqa: BLE001 - a line is written whatever its fields do
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _plain(value: object) -> object:
    """Make a field's value what JSON can hold; never the content of bytes or of an unknown object."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON knows no infinity
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if text and text.isprintable() and not any(char in text for char in ' "='):
        return text
    line = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
