"""Write an answer to a connection, shaped by faults: cut, slowed, held back, without chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from typing import Final

from informers.testing.apiserver.connections import Connection, head_of
from informers.testing.apiserver.faults import Fault, Plan
from informers.testing.apiserver.forms import Reply
from informers.testing.apiserver.requestlog import LoggedRequest

_ONE_WRITE: Final = 65536


class Wire:
    """The way of one answer to its client; counts what is sent."""

    def __init__(self, connection: Connection, plan: Plan, entry: LoggedRequest, *, audit_id: str = "") -> None:
        self._connection = connection
        self._plan = plan
        self._entry = entry
        self._audit_id = audit_id or str(uuid.uuid4())
        self._chunked = False
        self.keeps = True
        """Whether the connection can be used for another request afterwards."""

    # --- whole answers ---

    def reply(self, reply: Reply, *, head_only: bool = False) -> None:
        """Send an answer with a body of known length."""
        plain = self._plan.shape("PLAIN") is not None
        headers = self._headers(reply.content_type)
        headers += reply.headers
        if plain:
            headers.append(("Connection", "close"))
            self.keeps = False
        else:
            headers.append(("Content-Length", str(len(reply.body))))
        head = head_of(reply.status, headers)
        body = b"" if head_only else reply.body
        if self._plan.is_empty():
            self._entry.response_bytes = len(body)
            if len(body) <= _ONE_WRITE:
                self._connection.send(head + body)
            else:
                self._connection.send(head)
                self._connection.send(body)
            return
        self._shaped_reply(head, body)

    def _shaped_reply(self, head: bytes, body: bytes) -> None:
        plan = self._plan
        self.hold_answer()
        held = plan.shape("HOLDHDR")
        if held is not None:
            self._connection.pause(float(held.get("seconds", 3600)))
        self._connection.send(head)
        trunc = plan.decides("TRUNC")
        if trunc is not None:
            self.write(body[: int(trunc.get("bytes"))])
            self.end_at(trunc)
            return
        fault = plan.takes("stream")
        if fault is not None:
            whole = fault.word == "FIN" and fault.get("clean", True)
            self.write(body if whole else body[: len(body) // 2])
            self.end_at(fault)
            return
        self.write(body)

    def hold_answer(self) -> None:
        """Wait as long as a DELAY fault holds the answer back."""
        delay = self._plan.shape("DELAY")
        if delay is not None and delay.get("what", "answer") == "answer":
            self._connection.pause(float(delay.get("seconds")))

    # --- streams ---

    def stream_head(self, content_type: str) -> bytes:
        """Build the head of a stream; what is written after it is framed accordingly."""
        headers = self._headers(content_type)
        self._chunked = self._plan.shape("PLAIN") is None
        if self._chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        else:
            headers.append(("Connection", "close"))
            self.keeps = False
        return head_of(200, headers)

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._connection.send(data)

    def frame_all(self, lines: Sequence[bytes]) -> bytes:
        """Frame several lines for one write, each in a chunk of its own."""
        self._entry.response_bytes += sum(map(len, lines))
        if not self._chunked:
            return b"".join(lines)
        return b"".join([b"%x\r\n%b\r\n" % (len(line), line) for line in lines])

    def write(self, data: bytes) -> None:
        """Send a part of the body, cut and slowed as faults want."""
        self._entry.response_bytes += len(data)
        for piece in _pieces(data, self._plan.shape("SPLIT")):
            self._slowly(self._frame(piece))

    def _frame(self, piece: bytes) -> bytes:
        if not self._chunked or not piece:
            return piece
        return b"%x\r\n%b\r\n" % (len(piece), piece)

    def _slowly(self, data: bytes) -> None:
        slow = self._plan.shape("SLOW")
        if slow is None:
            self._connection.send(data)
            return
        rate = float(slow.get("bps"))
        step = max(1, int(rate / 20))
        start, sent = time.monotonic(), 0
        while sent < len(data):
            if not slow.is_active():
                self._connection.send(data[sent:])
                return
            self._connection.send(data[sent : sent + step])
            sent += step
            ahead = start + sent / rate - time.monotonic()
            if ahead > 0:
                self._connection.pause(ahead)

    def finish(self) -> None:
        """End a stream's body cleanly."""
        if self._chunked:
            self._connection.send(b"0\r\n\r\n")

    # --- the ends that faults make ---

    def end_at(self, fault: Fault) -> None:
        """Do what FREEZE, RST, FIN or TRUNC do to the connection."""
        self.keeps = False
        match fault.word:
            case "FREEZE":
                self._connection.freeze()
            case "RST":
                self._connection.abort()
            case "FIN":
                if self._chunked:
                    if fault.get("clean", True):
                        self.finish()
                    else:
                        self._connection.send(b"400\r\n{")  # promises a kilobyte, and stops
                self._connection.finish()
            case _:
                self._connection.finish()

    def end_before_headers(self, fault: Fault) -> None:
        """Do what FREEZE, RST or FIN do when nothing of the answer has been sent."""
        self.keeps = False
        match fault.word:
            case "FREEZE":
                self._connection.freeze()
            case "RST":
                self._connection.abort()
            case _:
                self._connection.finish()

    def _headers(self, content_type: str) -> list[tuple[str, str]]:
        return [
            ("Audit-Id", self._audit_id),
            ("Cache-Control", "no-cache, private"),
            ("Content-Type", content_type),
            ("Date", formatdate(usegmt=True)),
        ]


def _pieces(data: bytes, split: Fault | None) -> Iterator[bytes]:
    if split is None:
        yield data
        return
    every = split.get("every")
    if every is not None:
        size = int(every)
        for start in range(0, len(data), size):
            yield data[start : start + size]
        return
    cut = int(split.get("at"))
    yield from (piece for piece in (data[:cut], data[cut:]) if piece)
