"""WebSocket frames as bytes (RFC 6455, section 5): written wrong on purpose, and read back. Pure.

Called by `cases/realtime.py` and `socket_checks.py`. Invariant: what is no frame is shown, not guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.conformance.case import Wrong

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
_MASK = b"\x37\xfa\x21\x3d"  # of the RFC's own example


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    masked: bool = True,
    length: bytes | None = None,
) -> bytes:
    """One frame of a client. `length`: the length's bytes, where they are to be others than those of the payload."""
    first = (0x80 if fin else 0) | reserved << 4 | opcode
    size = _length(len(payload)) if length is None else length
    head = bytes([first, size[0] | (0x80 if masked else 0)]) + size[1:]
    if not masked:
        return head + payload
    return head + _MASK + bytes(byte ^ _MASK[index % 4] for index, byte in enumerate(payload))


def _length(size: int) -> bytes:
    if size < 126:
        return bytes([size])
    return b"\x7e" + size.to_bytes(2, "big") if size < 65_536 else b"\x7f" + size.to_bytes(8, "big")


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


def event(kind: str, **fields: Any) -> bytes:
    """A text message of JSON."""
    return frame(TEXT, json.dumps({"type": kind, **fields}).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame of the server's."""

    opcode: int
    payload: bytes

    @property
    def code(self) -> int:
        """The close code; 1005 where there is none."""
        return int.from_bytes(self.payload[:2], "big") if len(self.payload) >= 2 else 1005


def parse_frames(data: bytes) -> Iterator[Frame]:
    """Whole frames. Raises Wrong for what no server may send: masks, reserved bits and opcodes, long control frames."""
    while len(data) >= 2:
        first, second = data[0], data[1]
        size, start = second & 0x7F, 2
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        if second & 0x80:
            raise Wrong("the server masks its frames")
        if first & 0x70 or first & 0x0F not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise Wrong(f"the server sent a frame that begins with {first:#x}")
        if first & 0x08 and (size > 125 or not first & 0x80):
            raise Wrong("the server sent a control frame that is long or in pieces")
        if len(data) < start + size:
            return
        yield Frame(opcode=first & 0x0F, payload=data[start : start + size])
        data = data[start + size :]
