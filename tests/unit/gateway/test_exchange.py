"""One answer's writing: a client that takes a little now and then is not one that takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from contracts.clock import FakeClock
from contracts.errors import SlowReader
from gateway.edge.exchange import Exchange
from gateway.services import GatewaySettings


class Client:
    """A server's side of a connection: `unread` bytes are left, and the window opens once `opens_after` looks."""

    def __init__(self, unread: list[int]) -> None:
        self.unread = unread
        self.window = asyncio.Event()
        self.sent: list[bytes] = []

    def left(self) -> int:
        if len(self.unread) == 1:
            self.window.set()
        return self.unread.pop(0)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.window.wait()
        self.sent.append(message["body"])


def exchange_of(client: Client) -> Exchange:
    state = {"unread": client.left, "paused": lambda: not client.window.is_set()}
    scope = {"method": "GET", "path": "/", "headers": [], "client": ("::1", 1), "state": state}

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError

    settings = GatewaySettings(send_stall_seconds=0.01)
    return Exchange(scope, receive, client.send, clock=FakeClock(), settings=settings)


class TestWrite:
    async def test_waits_while_something_is_taken(self) -> None:
        client = Client([500, 400, 399, 398])
        await exchange_of(client).write(b"frame")
        assert client.sent == [b"frame"]

    async def test_asks_nothing_of_a_connection_that_takes_it_at_once(self) -> None:
        client = Client([])
        client.window.set()
        await exchange_of(client).write(b"frame")
        assert client.sent == [b"frame"]

    async def test_gives_up_a_client_that_takes_nothing(self) -> None:
        client = Client([500, 400, 400, 0])
        with pytest.raises(SlowReader):
            await exchange_of(client).write(b"frame")
        assert client.sent == []
