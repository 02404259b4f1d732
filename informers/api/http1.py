"""Write HTTP/1.1 requests and find where answers end. Knows no socket: bytes come from a function.

Chunk framing is read here and not by the standard library's client, for three reasons: an end without the final
chunk must be told from a clean end, a stream must give what has arrived without waiting for more, and thousands of
small chunks a second must cost one scan of their bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# What has arrived, at most one block of it; b"" when the peer has closed its side.
Receive = Callable[[], bytes]
# Bytes start to end of a block. Handing out positions keeps large bodies from being copied on the way.
Span = tuple[bytes, int, int]

_HEAD_LIMIT: Final = 1 << 20
_CHUNK_LINE_LIMIT: Final = 4096
_NO_BODY: Final = frozenset({204, 304})
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class FramingError(Exception):
    """What came is not HTTP, or ended before its framing said so. The text never quotes content."""


class CutError(FramingError):
    """The peer closed the connection before the answer was complete; `at_start` if before its first byte."""

    def __init__(self, message: str, *, at_start: bool = False) -> None:
        super().__init__(message)
        self.at_start = at_start


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer; names are lower-case, values of one name are joined by `, `."""

    status: int
    headers: Mapping[str, str]
    keeps_alive: bool

    @property
    def media_type(self) -> str:
        """The content type without parameters, in lower case; `""` if none is given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def build_head(method: str, target: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """Build a request head. Values must not hold control characters: raises `ValueError`."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    for line in lines:
        if any(char < " " or char == "\x7f" for char in line):
            name = line.partition(":")[0]
            msg = f"control character in the request line or in header {name!r:.60}"
            raise ValueError(msg)
    return "\r\n".join([*lines, "", ""]).encode()


def read_head(receive: Receive) -> tuple[Head, bytes]:
    """Read an answer's head; informational answers before it are skipped.

    Returns it and the bytes that came behind it. Raises `CutError` at an early end, `FramingError` for what is not HTTP.
    """
    rest = b""
    while True:
        block, rest = _read_head_block(receive, rest)
        head = _parse_head(block)
        if head.status >= 200:
            return head, rest
        if head.status == 101:
            msg = "the server switched protocols"
            raise FramingError(msg)


def _read_head_block(receive: Receive, rest: bytes) -> tuple[bytes, bytes]:
    got = bytearray(rest)
    scanned = 0
    while True:
        end = got.find(b"\r\n\r\n", scanned)
        if end >= 0:
            return bytes(got[:end]), bytes(got[end + 4 :])
        if len(got) > _HEAD_LIMIT:
            msg = f"headers of more than {_HEAD_LIMIT} bytes"
            raise FramingError(msg)
        if got and not b"HTTP/1.".startswith(got[:7]):
            msg = "the answer is not HTTP/1"
            raise FramingError(msg)
        scanned = max(0, len(got) - 3)
        block = receive()
        if not block:
            msg = "closed before the answer" if not got else "closed in the middle of the headers"
            raise CutError(msg, at_start=not got)
        got += block


def _parse_head(block: bytes) -> Head:
    first, *lines = block.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    code = status[:3]
    if not version.startswith("HTTP/1.") or not code.isascii() or not code.isdigit() or len(code) != 3:
        msg = "the answer does not start with an HTTP/1 status line"
        raise FramingError(msg)
    found: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            msg = "a header line without a name"
            raise FramingError(msg)
        found.setdefault(name.lower(), []).append(value.strip(" \t"))
    headers = {name: ", ".join(values) for name, values in found.items()}
    words = headers.get("connection", "").lower()
    return Head(
        int(code), headers, keeps_alive="keep-alive" in words if version == "HTTP/1.0" else "close" not in words
    )


class Body:
    """The body of one answer, as spans of what arrives. Knows where it ends, and whether that was the true end."""

    def __init__(self, head: Head, receive: Receive, rest: bytes, *, method: str) -> None:
        self._receive = receive
        self._rest = rest
        self._framing = _framing_of(head, method)
        self.is_delimited = self._framing.is_delimited  # else it ends when the connection does
        self._keeps_alive = head.keeps_alive
        self._gunzip = _gunzip_of(head)
        self._is_done = False

    def is_reusable(self) -> bool:
        """Tell whether the connection may carry another request: all was read, and nothing came behind it."""
        framing = self._framing
        return self._is_done and self._keeps_alive and framing.is_delimited and not self._rest

    def spans(self) -> Iterator[Span]:
        """Yield what arrives, decoded, until the body ends; raise `CutError` when it ends too early."""
        gunzip = self._gunzip
        for block, start, end in self._framed():
            if gunzip is None:
                yield block, start, end
            elif plain := gunzip(block[start:end]):
                yield plain, 0, len(plain)
        if gunzip is not None and not gunzip.is_complete():
            msg = "the gzip data is not complete"
            raise CutError(msg)
        self._is_done = True

    def _framed(self) -> Iterator[Span]:
        framing = self._framing
        block, self._rest = self._rest, b""
        while not framing.is_complete:
            if not block:
                block = self._receive()
                if not block:
                    if framing.is_delimited:
                        msg = "closed in the middle of the answer"
                        raise CutError(msg)
                    return
            position = 0
            while position < len(block) and not framing.is_complete:
                position, span = framing.take(block, position)
                if span is not None:
                    yield span
            if position < len(block):
                self._rest = block[position:]
            block = b""
        if block:
            self._rest = block


class _UntilClose:
    """A body that ends when the connection does."""

    is_delimited = False
    is_complete = False

    def take(self, block: bytes, position: int) -> tuple[int, Span | None]:
        return len(block), (block, position, len(block))


class _Counted:
    """A body of a known length."""

    is_delimited = True

    def __init__(self, length: int) -> None:
        self._left = length
        self.is_complete = length == 0

    def take(self, block: bytes, position: int) -> tuple[int, Span | None]:
        end = min(len(block), position + self._left)
        self._left -= end - position
        self.is_complete = self._left == 0
        return end, (block, position, end)


class _Chunked:
    """A body in chunks, which may be cut anywhere, inside their framing too."""

    is_delimited = True

    def __init__(self) -> None:
        self.is_complete = False
        self._left = 0  # of the present chunk's data
        self._line = b""  # the part that has come of a framing line; data of no chunk
        # What comes next, as a plain function: a bound method would hold the object, and only the collector free both.
        self._step = _Chunked._size

    def take(self, block: bytes, position: int) -> tuple[int, Span | None]:
        """Take one step: the next position, and the data found on the way to it, if any."""
        return self._step(self, block, position)

    def _size(self, block: bytes, position: int) -> tuple[int, Span | None]:
        position, line = self._read_line(block, position)
        if line is None:
            return position, None
        size = line.partition(b";")[0].strip()
        if not size or len(size) > 15 or not _HEX.issuperset(size):
            msg = "broken chunk framing"
            raise FramingError(msg)
        self._left = int(size, 16)
        self._step = _Chunked._data if self._left else _Chunked._trailer
        if not self._left or position == len(block):
            return position, None
        return self._data(block, position)

    def _data(self, block: bytes, position: int) -> tuple[int, Span | None]:
        end = min(len(block), position + self._left)
        self._left -= end - position
        if self._left:
            return end, (block, position, end)
        if block.startswith(b"\r\n", end):  # nearly always: spares a step
            self._step = _Chunked._size
            return end + 2, (block, position, end)
        self._step = _Chunked._data_end
        return end, (block, position, end)

    def _data_end(self, block: bytes, position: int) -> tuple[int, Span | None]:
        position, line = self._read_line(block, position)
        if line:
            msg = "broken chunk framing"
            raise FramingError(msg)
        if line is not None:
            self._step = _Chunked._size
        return position, None

    def _trailer(self, block: bytes, position: int) -> tuple[int, Span | None]:
        position, line = self._read_line(block, position)
        if line == b"":
            self.is_complete = True
        return position, None

    def _read_line(self, block: bytes, position: int) -> tuple[int, bytes | None]:
        end = block.find(b"\n", position, position + _CHUNK_LINE_LIMIT)
        if end < 0:
            self._line += block[position:]
            if len(self._line) > _CHUNK_LINE_LIMIT:
                msg = "broken chunk framing"
                raise FramingError(msg)
            return len(block), None
        line = self._line + block[position:end]
        self._line = b""
        return end + 1, line.removesuffix(b"\r")


_Framing = _UntilClose | _Counted | _Chunked


def _framing_of(head: Head, method: str) -> _Framing:
    if method == "HEAD" or head.status in _NO_BODY:
        return _Counted(0)
    coding = head.headers.get("transfer-encoding", "identity").strip().lower()
    if coding == "chunked":
        return _Chunked()
    if coding != "identity":
        msg = f"transfer encoding {coding!r:.60} is not known"
        raise FramingError(msg)
    length = head.headers.get("content-length")
    if length is None:
        return _UntilClose()
    lengths = {part.strip() for part in length.split(",")}
    text = lengths.pop()
    if lengths or not text.isascii() or not text.isdigit() or len(text) > 15:
        msg = "a broken Content-Length header"
        raise FramingError(msg)
    return _Counted(int(text))


class _Gunzip:
    """Unpack a gzip body as it arrives; several members in a row count as one."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._has_begun = False

    def __call__(self, packed: bytes) -> bytes:
        plain = []
        while packed:
            if self._member.eof:
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                plain.append(self._member.decompress(packed))
            except zlib.error:
                msg = "broken gzip data"
                raise FramingError(msg) from None
            self._has_begun = True
            packed = self._member.unused_data
        return b"".join(plain) if len(plain) > 1 else plain[0] if plain else b""

    def is_complete(self) -> bool:
        return self._member.eof or not self._has_begun


def _gunzip_of(head: Head) -> _Gunzip | None:
    coding = head.headers.get("content-encoding", "identity").strip().lower()
    if coding in {"", "identity"}:
        return None
    if coding in {"gzip", "x-gzip"}:
        return _Gunzip()
    msg = "the content encoding is neither gzip nor identity"
    raise FramingError(msg)


class LineTooLongError(FramingError):
    """A line has more bytes than it may have."""


class LineSplitter:
    r"""Split a stream at the byte `\n`, however it is cut; `\r` before it and blank lines are left out.

    No byte is looked at twice: what waits for its end is known to hold no `\n`.
    """

    def __init__(self, *, limit: int = 64 << 20) -> None:
        self._limit = limit
        self._pending = bytearray()  # holds no \n

    def feed(self, block: bytes, start: int, end: int) -> Sequence[bytes]:
        """Take bytes `start` to `end` of `block`; return the lines that they complete."""
        lines: list[bytes] = []
        while (found := block.find(b"\n", start, end)) >= 0:
            if self._pending:
                self._append(block, start, found)
                line = bytes(self._pending)
                self._pending = bytearray()
            else:
                line = block[start:found]
            start = found + 1
            if line.endswith(b"\r"):
                line = line[:-1]
            if line and not line.isspace():
                lines.append(line)
        if start < end:
            self._append(block, start, end)
        return lines

    def fragment(self) -> bytes:
        """Return what came after the last line; `b""` if that is nothing or blank."""
        rest = bytes(self._pending)
        return b"" if rest.isspace() else rest

    def _append(self, block: bytes, start: int, end: int) -> None:
        if len(self._pending) + end - start > self._limit:
            msg = f"a line of more than {self._limit} bytes"
            raise LineTooLongError(msg)
        self._pending += memoryview(block)[start:end]
