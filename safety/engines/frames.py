"""Messages between the pool and its processes: four bytes of length, then MessagePack."""

import asyncio
import struct
from typing import Any, BinaryIO

import msgpack

MESSAGE_BYTES_MAX = 8 << 20
_LENGTH = struct.Struct(">I")


class FrameError(ConnectionError):
    """The other side closed the pipe or sent what is no message."""


def pack(message: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors="surrogatepass")
    return _LENGTH.pack(len(body)) + body


READY = pack({"ready": True})  # a process's first message


def unpack(body: bytes) -> dict[str, Any]:
    """Raises FrameError."""
    try:
        message = msgpack.unpackb(body, raw=False, unicode_errors="surrogatepass")
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError("not a message") from error
    if not isinstance(message, dict):
        raise FrameError("not a message")
    return message


def read_blocking(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, None when the other side has closed. Raises FrameError."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _checked(head)
    body = stream.read(length)
    if len(body) < length:
        return None
    return unpack(body)


async def read(stream: asyncio.StreamReader) -> dict[str, Any]:
    """The next message. Raises FrameError. The caller brings the timeout."""
    try:
        head = await stream.readexactly(_LENGTH.size)
        return unpack(await stream.readexactly(_checked(head)))
    except asyncio.IncompleteReadError as error:
        raise FrameError("the pipe was closed") from error


def _checked(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > MESSAGE_BYTES_MAX:
        raise FrameError(f"a message of {length} bytes")
    return length
