"""Reads one request body. Step 1; called by the routes of `app.py` and before Django; `surface/json_text.py` parses it.

Invariants: the size is counted after decompression and never passed in memory; the body arrives before a deadline.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from contracts.errors import InvalidRequest, TooLarge, UnsupportedMedia
from gateway.surface import limits
from gateway.surface.errors import ReadTimeout

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

DRAIN_BYTES_MAX = 64 * 1024 * 1024  # clients send all before they read; nothing of it is kept
DRAIN_SECONDS = 2.0
_GZIP = 31  # zlib's window bits for a gzip container


class ClientGone(Exception):
    """The client closed its connection; nobody is left to answer."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], *, deadline_seconds: float) -> bytes:
    """A JSON request's body, decompressed. Raises UnsupportedMedia, InvalidRequest, and what `read_bounded` raises."""
    _check_content_type(headers.get(b"content-type", b""))
    decoder = _decoder(headers.get(b"content-encoding", b""))
    return await read_bounded(
        receive, headers, bytes_max=limits.BODY_BYTES_MAX, deadline_seconds=deadline_seconds, decoder=decoder
    )


async def read_bounded(
    receive: Receive,
    headers: dict[bytes, bytes],
    *,
    bytes_max: int,
    deadline_seconds: float,
    decoder: "_Gzip | None" = None,
) -> bytes:
    """A body of any kind, whole. Raises TooLarge (unread, where its length says so), ReadTimeout, ClientGone."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > bytes_max:
        raise _too_large(bytes_max)
    try:
        async with asyncio.timeout(deadline_seconds):
            return await _collect(receive, decoder, bytes_max)
    except TimeoutError as error:
        raise ReadTimeout(f"the request body did not arrive within {deadline_seconds:g} seconds") from error


async def drain(receive: Receive) -> bool:
    """Takes what is left of a body, within bounds, so that a client still sending gets to read its refusal.

    False: it does not end; the connection must be closed.
    """
    left = DRAIN_BYTES_MAX
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return True
                left -= len(message.get("body", b""))
    except TimeoutError:
        return False
    return False


async def _collect(receive: Receive, decoder: "_Gzip | None", bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        if decoder is not None:
            chunk = decoder.feed(chunk, room=bytes_max - size)
        size += len(chunk)
        if size > bytes_max:
            raise _too_large(bytes_max)
        parts.append(chunk)
        if not message.get("more_body", False):
            if decoder is not None:
                decoder.finish()
            return b"".join(parts)


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"the request body has more than {bytes_max} bytes")


def _check_content_type(value: bytes) -> None:
    kind, *parameters = (part.strip() for part in value.decode("latin-1").lower().split(";"))
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMedia("Content-Type must be application/json")
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip() == "charset" and charset.strip(' "') not in ("utf-8", "utf8"):
            raise UnsupportedMedia("Content-Type: the charset must be UTF-8")


def _decoder(encoding: bytes) -> "_Gzip | None":
    name = encoding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip"):
        return _Gzip()
    raise UnsupportedMedia("Content-Encoding must be identity or gzip", param="Content-Encoding")


class _Gzip:
    """One gzip member, inflated at most one byte past the room that is left."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP)

    def feed(self, data: bytes, *, room: int) -> bytes:
        try:
            return self._inflate.decompress(data, room + 1)
        except zlib.error as error:
            raise InvalidRequest("the body is not valid gzip", param="body", code="invalid_body") from error

    def finish(self) -> None:
        if not self._inflate.eof or self._inflate.unused_data:
            raise InvalidRequest("the body is not one whole gzip member", param="body", code="invalid_body")
