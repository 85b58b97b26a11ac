"""A raw socket to the gateway, for what no client library sends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.functional.gateway.conftest import Gateway

PATIENCE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer as it stood on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        """OpenAI's error object, or the test fails."""
        assert self.headers["content-type"] == "application/json"
        document = json.loads(self.body)
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
        error: dict[str, Any] = document["error"]
        return error


@dataclass
class Wire:
    """A plain TCP connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> Reply:
        """The next answer that carries its length."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(int(first.split(" ")[1]), headers, body)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read()


@asynccontextmanager
async def wire(gateway: Gateway) -> AsyncIterator[Wire]:
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def head(method: str, path: str, *lines: str, host: str = "x") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode("latin-1")
