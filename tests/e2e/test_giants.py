"""What is far too big, or in far too many pieces: refused at the stated limit, and the gateway's memory stays flat.

The peak of its resident memory is the kernel's own (`VmHWM`, proc(5)), set back before each attempt.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed

from gateway.surface import limits
from tests.e2e.conftest import Platform
from tests.e2e.sockets import DEADLINE_SECONDS, event, session

MIB = 1024 * 1024
GIANT = 64 * MIB
FLAT = 24 * MIB  # a body that is taken, whole and in parts, is three times four; keeping a giant would be 64 and more
PIECES = 1_000_000
CHAT, MANAGEMENT = "/v1/chat/completions", "/api/v1/projects"


def of(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@contextmanager
def flat_memory(platform: Platform) -> Iterator[None]:
    """Asserts that the gateway's memory did not grow in the block, not for a moment."""
    pid = platform.instance.pid_of("gateway")
    assert platform.api.get("/models").status_code == 200
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # sets VmHWM back to what is resident now
    before = of(pid, "VmRSS")
    yield
    grown = of(pid, "VmHWM") - before
    assert grown < FLAT, f"the gateway grew by {grown / MIB:.1f} MiB"


async def post(platform: Platform, path: str, *, size: int, piece: int, chunked: bool) -> tuple[int, str]:
    """A body of blanks; nothing is read before it is sent or cannot be. The status, and the error's message."""
    address = urlsplit(platform.base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {platform.demo['api_key']}\r\n{length}\r\n\r\n".encode()
    )
    part = b"%x\r\n%b\r\n" % (piece, b" " * piece) if chunked else b" " * piece
    with suppress(ConnectionError):
        for _ in range(size // piece // 256):
            writer.write(part * 256)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length:"))
    body = await reader.readexactly(int(length))
    writer.close()
    return int(head.split(" ")[1]), str(json.loads(body)["error"]["message"])


class TestBody:
    @pytest.mark.parametrize("chunked", [True, False], ids=["in chunks", "by its length"])
    @pytest.mark.parametrize(
        ("path", "most"), [(CHAT, limits.BODY_BYTES_MAX), (MANAGEMENT, limits.MANAGEMENT_BODY_BYTES_MAX)]
    )
    async def test_t24_of_64_mib_is_refused_at_its_limit(
        self, platform: Platform, path: str, most: int, chunked: bool
    ) -> None:
        with flat_memory(platform):
            async with asyncio.timeout(DEADLINE_SECONDS):
                answer = await post(platform, path, size=GIANT, piece=64 * 1024, chunked=chunked)
        assert answer == (413, f"the request body has more than {most} bytes")

    async def test_t24_in_pieces_of_one_byte_is_refused_at_its_limit(self, platform: Platform) -> None:
        """Four million of them."""
        size = limits.BODY_BYTES_MAX + 256
        with flat_memory(platform):
            async with asyncio.timeout(2 * DEADLINE_SECONDS):
                answer = await post(platform, CHAT, size=size, piece=1, chunked=True)
        assert answer == (413, f"the request body has more than {limits.BODY_BYTES_MAX} bytes")


def frame(head: int, data: bytes) -> bytes:
    """A short one, masked by zeros."""
    return bytes([head, 0x80 | len(data)]) + bytes(4) + data


class TestWebSocketMessage:
    async def test_t24_of_64_mib_in_one_frame_is_closed_with_1009(self, platform: Platform) -> None:
        async with session(platform) as connection:
            await event(connection)
            with flat_memory(platform):
                with suppress(ConnectionClosed):
                    await connection.send(" " * GIANT)
                await connection.wait_closed()
        assert connection.close_code == 1009

    @pytest.mark.parametrize("piece", [b"", b" "], ids=["empty", "of one byte"])
    async def test_t24_of_a_million_pieces_is_closed_with_1009(self, platform: Platform, piece: bytes) -> None:
        """As many as are taken: the connection ends at `realtime_fragments`, while the rest is still sent."""
        async with session(platform) as connection:
            await event(connection)
            transport = connection.transport
            with flat_memory(platform):
                transport.write(frame(0x01, b"{"))
                for _ in range(PIECES // 1_000):
                    transport.write(frame(0x00, piece) * 1_000)
                    await asyncio.sleep(0)
                    if transport.is_closing():
                        break
                await connection.wait_closed()
        assert connection.close_code == 1009
        assert connection.close_reason == f"a message has {limits.REALTIME_FRAGMENTS_MAX} pieces at most"

    def test_t24_pings_whose_answers_nobody_reads_are_read_no_more(self, platform: Platform) -> None:
        address = urlsplit(platform.base_url)
        assert address.hostname is not None
        assert address.port is not None
        with socket.create_connection((address.hostname, address.port), timeout=2) as raw:
            raw.sendall(
                f"GET /v1/realtime HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                f"Authorization: Bearer {platform.demo['api_key']}\r\n\r\n".encode()
            )
            assert raw.recv(12) == b"HTTP/1.1 101"
            pings, sent = memoryview(frame(0x89, bytes(125)) * (GIANT // 131)), 0
            with flat_memory(platform), suppress(TimeoutError):  # nothing was taken for two seconds
                while sent < len(pings):
                    sent += raw.send(pings[sent:])
        assert sent < len(pings)
