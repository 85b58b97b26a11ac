"""A WebSocket client of a functional gateway's /v1/realtime: every wait has a deadline."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Subprotocol

from tests.functional.gateway.conftest import Gateway

ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


@asynccontextmanager
async def socket(
    gateway: Gateway,
    *,
    key: str | None = None,
    query: str = "",
    origin: str | None = None,
    subprotocols: Sequence[Subprotocol] | None = None,
) -> AsyncIterator[ClientConnection]:
    url = gateway.url.replace("http", "ws") + "/v1/realtime" + query
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with connect(
        url,
        additional_headers=headers,
        origin=origin,  # type: ignore[arg-type]
        subprotocols=subprotocols,
        compression=None,  # what is sent is what is in the buffers
        proxy=None,
    ) as connection:
        yield connection


async def event(connection: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(10):
        received: dict[str, Any] = json.loads(await connection.recv())
    return received


async def close_code(connection: ClientConnection) -> int:
    """The code with which the server closes; events before it are let go."""
    async with asyncio.timeout(10):
        with suppress(ConnectionClosedError):
            async for _ in connection:
                continue
        await connection.wait_closed()
    assert connection.close_code is not None
    return connection.close_code


async def say(connection: ClientConnection, **fields: Any) -> None:
    await connection.send(json.dumps(fields))
