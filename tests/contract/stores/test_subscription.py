"""A subscription on real servers: its messages, a connection that is cut, and a server that falls silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from stores import subscription
from stores.redis import Client
from stores.subscription import Subscriber

CHANNEL = "w:test:channel"


class Ear:
    """What one subscription was told, in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[str | bytes] = asyncio.Queue()

    async def next(self) -> str | bytes:
        async with asyncio.timeout(20):
            return await self.told.get()

    @asynccontextmanager
    async def on(self, url: str) -> AsyncIterator["Ear"]:
        listening = asyncio.ensure_future(
            Subscriber(url).listen(
                channel=CHANNEL,
                on_subscribed=lambda: self.told.put_nowait("subscribed"),
                on_lost=lambda: self.told.put_nowait("lost"),
                on_message=self.told.put_nowait,
            )
        )
        try:
            yield self
        finally:
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening


class TestSubscriber:
    async def test_hears_every_message_in_order_whatever_its_bytes(self, redis: Client, valkey_url: str) -> None:
        messages = [b"", b"\x00\xff\r\n", b"x" * 300_000, *(str(number).encode() for number in range(300))]
        async with Ear().on(valkey_url) as ear:
            assert await ear.next() == "subscribed"
            for message in messages:
                await redis.publish(CHANNEL, message)
            assert [await ear.next() for _ in messages] == messages

    async def test_comes_back_when_its_connection_is_cut(self, redis: Client, valkey_url: str) -> None:
        async with Ear().on(valkey_url) as ear:
            assert await ear.next() == "subscribed"
            await redis.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
            assert [await ear.next(), await ear.next()] == ["lost", "subscribed"]
            await redis.publish(CHANNEL, b"again")
            assert await ear.next() == b"again"

    async def test_lets_its_connection_go_when_it_is_cancelled(self, redis: Client, valkey_url: str) -> None:
        async with Ear().on(valkey_url) as ear:
            assert await ear.next() == "subscribed"
        async with asyncio.timeout(20):
            while await redis.client_list(_type="pubsub"):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)

    async def test_takes_a_server_that_falls_silent_for_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subscription, "SILENCE_PING_SECONDS", 0.05)
        monkeypatch.setattr(subscription, "SILENCE_DEAD_SECONDS", 0.15)

        left = asyncio.Semaphore(0)

        async def confirm_and_fall_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while b"SUBSCRIBE" not in (line := await reader.readline()):
                if b"CLIENT" in line or b"SELECT" in line:
                    writer.write(b"+OK\r\n")
            writer.write(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
            await reader.read()
            writer.close()
            left.release()

        server = await asyncio.start_server(confirm_and_fall_silent, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with Ear().on(f"redis://{host}:{port}/0") as ear:
            assert [await ear.next(), await ear.next(), await ear.next()] == ["subscribed", "lost", "subscribed"]
        server.close()
        async with asyncio.timeout(20):
            await left.acquire()
            await left.acquire()

    def test_outlives_a_connection_that_is_closed_while_it_is_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On the loop that gateways have, which raises for a write to a closed connection."""
        monkeypatch.setattr(subscription, "SILENCE_PING_SECONDS", 0.05)

        async def confirm_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while b"SUBSCRIBE" not in (line := await reader.readline()):
                if b"CLIENT" in line or b"SELECT" in line:
                    writer.write(b"+OK\r\n")
            writer.write(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
            while b"PING" not in await reader.readline():
                pass
            writer.close()

        async def scene() -> list[str | bytes]:
            server = await asyncio.start_server(confirm_and_close, "127.0.0.1", 0)
            host, port = server.sockets[0].getsockname()
            async with server, Ear().on(f"redis://{host}:{port}/0") as ear:
                return [await ear.next() for _ in range(4)]

        assert uvloop.run(scene()) == ["subscribed", "lost", "subscribed", "lost"]

    async def test_tries_on_while_nobody_listens_there(self, unused_tcp_port: int) -> None:
        async with Ear().on(f"redis://127.0.0.1:{unused_tcp_port}/0") as ear:
            assert [await ear.next(), await ear.next()] == ["lost", "lost"]
