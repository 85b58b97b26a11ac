"""Server-Sent Events exactly as OpenAI sends them, plus event ids. Step 7; pure.

Grammar: WHATWG HTML, section 9.2. Invariants: no block without `data:` (a heartbeat is a comment of one line with one
line end, because the OpenAI SDK's decoder dies on an event without data); `[DONE]` only after an answer that is whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from fairqueue.messages import Place

HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"content-encoding", b"identity"),
    (b"x-accel-buffering", b"no"),
)
QUEUED = b": queued\n"
PING = b": ping\n"
DONE = b"data: [DONE]\n\n"


def events(*, epoch: str, first_seq: int, frames: Sequence[bytes]) -> bytes:
    """Frames as events with their ids `<epoch>-<seq>`; one write for all of them."""
    prefix = b"id: " + epoch.encode("ascii") + b"-"
    return b"".join(b"%b%d\ndata: %b\n\n" % (prefix, seq, frame) for seq, frame in enumerate(frames, start=first_seq))


def waiting(place: Place) -> bytes:
    """The heartbeat of a request that waits: a comment that says where it stands."""
    estimate = "" if place.wait_ms is None else f" wait_ms={place.wait_ms}"
    return f": queued position={place.position} waited_ms={place.waited_ms}{estimate}\n".encode()


def data(document: dict[str, Any]) -> bytes:
    """An event without an id: the usage chunk, or an error."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


def parse_event_id(value: str) -> tuple[str, int] | None:
    """(epoch, seq) of an event id; None when it is not one of ours."""
    epoch, dash, seq = value.rpartition("-")
    if not dash or not epoch or not seq.isascii() or not seq.isdigit() or len(seq) > 9 or len(epoch) > 64:
        return None
    return epoch, int(seq)


def last_seq_of(epoch: str, *, current: str, last_seq: int, writers: Mapping[str, int]) -> int | None:
    """The last event that ids of an epoch may name; None for an epoch that this log never had. "" = any epoch.

    Whatever an attempt of before had read or written is in the log still, up to where the next one took over: an id
    past that is of an event that a failover lost, and what stands there now is another's.
    """
    return last_seq if epoch in ("", current) else writers.get(epoch)
