"""A WebSocket client of /v1/realtime for tests: every wait has a deadline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.conftest import Platform

DEADLINE_SECONDS = 30.0


@asynccontextmanager
async def session(platform: Platform, *, key: str | None = None) -> AsyncIterator[ClientConnection]:
    """An open connection of the first tenant, after `session.created`."""
    headers = {"Authorization": f"Bearer {key or platform.demo['api_key']}"}
    url = platform.base_url.replace("http", "ws", 1) + "/realtime"
    async with asyncio.timeout(DEADLINE_SECONDS), connect(url, additional_headers=headers) as socket:
        yield socket


async def event(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        found: dict[str, Any] = json.loads(await socket.recv())
        return found


async def until(socket: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    """Events up to and with the first of one of these kinds."""
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["type"] not in kinds:
        seen.append(await event(socket))
    return seen


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def say(socket: ClientConnection, text: str) -> None:
    content = [{"type": "input_text", "text": f"say: {text}"}]
    await send(socket, "conversation.item.create", item={"type": "message", "role": "user", "content": content})


async def ask(socket: ClientConnection, platform: Platform, **fields: Any) -> None:
    await send(socket, "response.create", response={"model": platform.model, **fields})


def text_of(seen: list[dict[str, Any]]) -> str:
    return "".join(item["delta"] for item in seen if item["type"] == "response.output_text.delta")
