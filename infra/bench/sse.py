"""Reads a recorded HTTP/1.1 answer afterwards: head, body, and Server-Sent Events with the time each was complete.

Called by `load`, which only notes when bytes came, so that nothing is parsed while the clock runs. Pure.
Invariant: the events do not depend on how the network cut the bytes, only their times do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

END_OF_CHUNKS = b"0\r\n\r\n"


class BadAnswer(ValueError):
    """The bytes are not an HTTP/1.1 answer, or not a whole one."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes as the socket gave them, and when (seconds of a monotonic clock)."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers (lower-case names; the last one of a name wins). `length` is that of the head in bytes."""

    status: int
    headers: dict[str, str]
    length: int

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()


@dataclass(frozen=True, slots=True)
class Event:
    """One event with data: when its last byte came, and its data without the field name."""

    at: float
    data: bytes


def read_head(data: bytes) -> Head | None:
    """The head of an answer, or None while it is not whole. Raises BadAnswer."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise BadAnswer(f"not a status line: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    return Head(int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}, end + 4)


def is_whole(*, head: Head, received: int, tail: bytes) -> bool:
    """True when the answer has ended. `received` counts all its bytes, `tail` ends with the newest ones.

    A chunk of an event stream ends with a line feed before its CRLF, so the closing chunk is not to be mistaken.
    """
    if head.is_chunked:
        return tail.endswith(END_OF_CHUNKS)
    return received >= head.length + int(head.headers.get("content-length", "0"))


def read_body(parts: Sequence[Part], *, head: Head) -> list[Part]:
    """The body without its chunk framing, each piece with the time at which it was complete. Raises BadAnswer."""
    data = b"".join(part.data for part in parts)
    ends = list(accumulate(len(part.data) for part in parts))

    def came(offset: int) -> float:
        """When the byte before `offset` came."""
        return parts[bisect_left(ends, offset)].at

    if not head.is_chunked:
        return [Part(parts[-1].at, data[head.length :])] if len(data) > head.length else []
    pieces: list[Part] = []
    at = head.length
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            raise BadAnswer("the answer ends within a chunk")
        try:
            size = int(data[at:line].split(b";")[0], 16)
        except ValueError as error:
            raise BadAnswer(f"not a chunk size: {data[at:line][:40]!r}") from error
        at = line + 2
        if size == 0:
            return pieces
        if at + size + 2 > len(data):
            raise BadAnswer("the answer ends within a chunk")
        pieces.append(Part(came(at + size), data[at : at + size]))
        at += size + 2


def read_events(body: Sequence[Part]) -> list[Event]:
    """The events that carry data; comments (heartbeats, queue positions) are passed over. Lines end in LF or CRLF."""
    events: list[Event] = []
    pending: list[bytes] = []
    rest = b""
    for piece in body:
        *lines, rest = (rest + piece.data).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r")
            if not text and pending:
                events.append(Event(piece.at, b"\n".join(pending)))
                pending = []
            elif text.startswith(b"data:"):
                pending.append(text[5:].removeprefix(b" "))
    return events
