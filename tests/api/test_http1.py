from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from informers.api.http1 import Body, CutError, FramingError, LineSplitter, LineTooLongError, build_head, read_head

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def receiver(blocks: Iterable[bytes]) -> Callable[[], bytes]:
    """What a socket would give: these blocks, then the end."""
    left = iter([block for block in blocks if block])
    return lambda: next(left, b"")


def cut_at(data: bytes, positions: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({min(position, len(data)) for position in positions}), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def body_of(data: bytes, *, method: str = "GET", cuts: Iterable[int] = ()) -> tuple[bytes, Body]:
    receive = receiver(cut_at(data, cuts))
    head, rest = read_head(receive)
    body = Body(head, receive, rest, method=method)
    return b"".join(block[start:end] for block, start, end in body.spans()), body


def chunked(pieces: Iterable[bytes]) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def test_head_gives_status_and_joined_lower_case_headers() -> None:
    head, rest = read_head(receiver([b"HTTP/1.1 404 Not Found\r\nWarning: a\r\nWARNING:b \r\nX-Y: z\r\n\r\nrest"]))

    assert head.status == 404
    assert head.headers == {"warning": "a, b", "x-y": "z"}
    assert rest == b"rest"


def test_head_may_be_cut_anywhere() -> None:
    data = HEAD + b"\r\n"

    for at in range(1, len(data)):
        assert read_head(receiver([data[:at], data[at:]]))[0].media_type == "application/json"


def test_informational_answers_are_skipped() -> None:
    head, _ = read_head(receiver([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n" + HEAD + b"\r\n"]))

    assert head.status == 200


def test_end_before_the_first_byte_is_told_from_one_in_the_headers() -> None:
    with pytest.raises(CutError) as at_start:
        read_head(receiver([]))
    with pytest.raises(CutError) as inside:
        read_head(receiver([b"HTTP/1.1 200 OK\r\nA"]))

    assert (at_start.value.at_start, inside.value.at_start) == (True, False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/1.1 abc X\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nfolded: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * (1 << 21),
    ],
)
def test_what_is_not_http_is_a_framing_error(data: bytes) -> None:
    with pytest.raises(FramingError):
        read_head(receiver(cut_at(data, range(0, len(data), 65536))))


@settings(deadline=None)  # the machine may be busy
@given(
    pieces=st.lists(st.binary(max_size=40)),
    cuts=st.lists(st.integers(0, 400)),
)
def test_chunks_may_be_cut_anywhere(pieces: list[bytes], cuts: list[int]) -> None:
    data, body = body_of(chunked(pieces), cuts=cuts)

    assert data == b"".join(pieces)
    assert body.is_reusable()


@settings(deadline=None)  # the machine may be busy
@given(pieces=st.lists(st.binary(min_size=1, max_size=40), min_size=1), missing=st.integers(1, 400))
def test_missing_end_of_chunks_is_a_cut_wherever_it_falls(pieces: list[bytes], missing: int) -> None:
    whole = chunked(pieces)
    body_start = whole.index(b"\r\n\r\n") + 4

    with pytest.raises(CutError):
        body_of(whole[: max(body_start, len(whole) - missing)])


@pytest.mark.parametrize("framed", [b"zz\r\nabc\r\n", b"3\r\nabcd\r\n", b"\r\n", b"-1\r\n", b"f" * 20, b"3" * 5000])
def test_broken_chunk_framing_is_an_error(framed: bytes) -> None:
    with pytest.raises(FramingError):
        body_of(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed)


def test_chunk_extensions_and_trailers_are_read_over() -> None:
    data, body = body_of(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n")

    assert data == b"abc"
    assert body.is_reusable()


def test_counted_body_ends_at_its_length() -> None:
    data, body = body_of(HEAD + b"Content-Length: 3\r\n\r\nabc", cuts=[90, 91])

    assert data == b"abc"
    assert body.is_reusable()


def test_counted_body_that_ends_early_is_a_cut() -> None:
    with pytest.raises(CutError):
        body_of(HEAD + b"Content-Length: 4\r\n\r\nabc")


def test_body_without_a_length_ends_with_the_connection_and_is_never_reused() -> None:
    data, body = body_of(HEAD + b"\r\nabc")

    assert data == b"abc"
    assert not body.is_reusable()


@pytest.mark.parametrize(
    ("headers", "method"),
    [
        (b"Content-Length: 3\r\n\r\nabcX", "GET"),
        (b"Content-Length: 3\r\nConnection: close\r\n\r\nabc", "GET"),
    ],
)
def test_connection_with_bytes_behind_the_answer_or_told_to_close_is_not_reused(headers: bytes, method: str) -> None:
    assert not body_of(HEAD + headers, method=method)[1].is_reusable()


def test_answer_to_head_has_no_body_whatever_its_length_says() -> None:
    data, body = body_of(HEAD + b"Content-Length: 3\r\n\r\n", method="HEAD")

    assert data == b""
    assert body.is_reusable()


@pytest.mark.parametrize(
    "headers", [b"Content-Length: x", b"Content-Length: 3, 4", b"Transfer-Encoding: br", b"Content-Encoding: br"]
)
def test_framing_that_is_not_known_is_an_error(headers: bytes) -> None:
    with pytest.raises(FramingError):
        body_of(HEAD + headers + b"\r\n\r\nabc")


@settings(deadline=None)  # the machine may be busy
@given(members=st.lists(st.binary(max_size=200), min_size=1, max_size=3), cuts=st.lists(st.integers(0, 600)))
def test_gzip_is_unpacked_however_it_is_cut(members: list[bytes], cuts: list[int]) -> None:
    packed = b"".join(gzip.compress(member) for member in members)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)

    assert body_of(head + packed, cuts=cuts)[0] == b"".join(members)


def test_gzip_that_is_cut_or_broken_is_an_error() -> None:
    packed = gzip.compress(b"x" * 1000)[:-9]

    with pytest.raises(CutError):
        body_of(HEAD + b"Content-Encoding: gzip\r\n\r\n" + packed)
    with pytest.raises(FramingError):
        body_of(HEAD + b"Content-Encoding: gzip\r\n\r\nnot gzip")


def test_control_characters_do_not_get_into_a_request() -> None:
    with pytest.raises(ValueError, match="Accept"):
        build_head("GET", "/", [("Accept", "a\r\nX: y")])
    with pytest.raises(ValueError, match="request line"):
        build_head("GET", "/\n", [])


EVENTS = st.lists(st.dictionaries(st.text(), st.text(), max_size=3), max_size=8)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n \t\r\n\n"])


@settings(deadline=None)  # the machine may be busy
@given(
    events=EVENTS, ends=st.lists(ENDS, min_size=8, max_size=8), cuts=st.lists(st.integers(0, 500)), raw=st.booleans()
)
def test_any_cut_and_any_line_end_give_the_same_lines(
    events: list[dict[str, str]], ends: list[bytes], cuts: list[int], raw: bool
) -> None:
    lines = [json.dumps(event, ensure_ascii=not raw).encode("utf-8", "surrogatepass") for event in events]
    stream = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    splitter = LineSplitter()

    got = [line for block in cut_at(stream, cuts) for line in splitter.feed(block, 0, len(block))]

    assert got == lines
    assert splitter.fragment() == b""


def test_character_cut_at_every_offset_arrives_whole() -> None:
    line = '{"a": "é€😀"}'.encode()

    for at in range(len(line) + 1):
        splitter = LineSplitter()
        first, second = splitter.feed(line[:at], 0, at), splitter.feed(line[at:] + b"\n", 0, len(line) - at + 1)
        assert [*first, *second] == [line]


def test_only_the_given_part_of_a_block_counts() -> None:
    splitter = LineSplitter()

    assert splitter.feed(b"xxab\ncdyy\n", 2, 7) == [b"ab"]
    assert splitter.fragment() == b"cd"


def test_line_over_the_limit_is_refused_and_one_of_the_limit_is_not() -> None:
    splitter = LineSplitter(limit=8)

    assert splitter.feed(b"1234", 0, 4) == []
    assert splitter.feed(b"5678\n", 0, 5) == [b"12345678"]
    splitter.feed(b"12345678", 0, 8)
    with pytest.raises(LineTooLongError):
        splitter.feed(b"9", 0, 1)


def test_any_number_of_equal_headers_is_read_in_linear_time() -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 150_000 + b"\r\n"
    blocks = iter([head])

    found, _ = read_head(lambda: next(blocks, b""))

    assert len(found.headers["a"]) == 150_000 * 3 - 2


@pytest.mark.parametrize("length", ["-1", "+5", "5, 6", "0x5", "5 5", "", "9" * 16, "\xb2"])
def test_length_that_is_none_is_an_error(length: str) -> None:
    head, _ = read_head(iter([f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode("latin-1")]).__next__)

    with pytest.raises(FramingError):
        Body(head, lambda: b"", b"", method="GET")


@pytest.mark.parametrize(
    "chunks", [b"2\r\nabc\r\n0\r\n\r\n", b"-2\r\nab\r\n", b"f" * 16 + b"\r\n", b"\r\n", b"x" * 5000]
)
def test_wrong_chunk_size_is_an_error(chunks: bytes) -> None:
    head, _ = read_head(iter([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]).__next__)
    blocks = iter([chunks])

    with pytest.raises(FramingError):
        list(Body(head, lambda: next(blocks, b""), b"", method="GET").spans())
