"""Reads one request body. Step 1; called by the routes of `app.py`; `surface/json_text.py` parses it.

Invariants: the size is counted after decompression and never passed in memory; the body arrives before a deadline.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from contracts.errors import InvalidRequest, TooLarge, UnsupportedMedia, WeirError
from gateway.surface import limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_GZIP = 31  # zlib's window bits for a gzip container


class ClientGone(Exception):
    """The client closed its connection; nobody is left to answer."""


class BodyTimeout(WeirError):
    """The body did not arrive in time."""

    status, type, code = 408, "timeout_error", "request_timeout"


async def read_body(receive: Receive, headers: dict[bytes, bytes], *, deadline_seconds: float) -> bytes:
    """The decompressed body. Raises TooLarge, UnsupportedMedia, InvalidRequest, BodyTimeout, ClientGone."""
    _check_content_type(headers.get(b"content-type", b""))
    decoder = _decoder(headers.get(b"content-encoding", b""))
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limits.BODY_BYTES_MAX:
        raise _too_large()
    try:
        async with asyncio.timeout(deadline_seconds):
            return await _collect(receive, decoder)
    except TimeoutError as error:
        raise BodyTimeout(f"the request body did not arrive within {deadline_seconds:g} seconds") from error


async def _collect(receive: Receive, decoder: "_Gzip | None") -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        if decoder is not None:
            chunk = decoder.feed(chunk, room=limits.BODY_BYTES_MAX - size)
        size += len(chunk)
        if size > limits.BODY_BYTES_MAX:
            raise _too_large()
        parts.append(chunk)
        if not message.get("more_body", False):
            if decoder is not None:
                decoder.finish()
            return b"".join(parts)


def _too_large() -> TooLarge:
    return TooLarge(f"the request body has more than {limits.BODY_BYTES_MAX} bytes")


def _check_content_type(value: bytes) -> None:
    kind, _, parameters = value.decode("latin-1").partition(";")
    kind = kind.strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMedia("Content-Type must be application/json")
    charset = parameters.strip().lower().replace('"', "").removeprefix("charset=")
    if parameters.strip().lower().startswith("charset") and charset not in ("utf-8", "utf8"):
        raise UnsupportedMedia("the body must be UTF-8")


def _decoder(encoding: bytes) -> "_Gzip | None":
    name = encoding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip"):
        return _Gzip()
    raise UnsupportedMedia("Content-Encoding must be identity or gzip")


class _Gzip:
    """One gzip member, inflated at most one byte past the room that is left."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP)

    def feed(self, data: bytes, *, room: int) -> bytes:
        try:
            return self._inflate.decompress(data, room + 1)
        except zlib.error as error:
            raise InvalidRequest("the body is not valid gzip", code="invalid_body") from error

    def finish(self) -> None:
        if not self._inflate.eof or self._inflate.unused_data:
            raise InvalidRequest("the body is not one whole gzip member", code="invalid_body")
