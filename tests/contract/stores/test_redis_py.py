"""What other people's redis-py did to them, held against our client on a real server, with the connections it has."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from stores.redis import open_redis

CONNECTIONS = 3


@pytest.fixture
async def client(redis: Redis, valkey_url: str) -> AsyncIterator[Redis]:
    """A client with few connections on an emptied server."""
    opened = open_redis(valkey_url, connections_max=CONNECTIONS)
    yield opened
    await opened.aclose(close_connection_pool=True)


async def cancelled_in_flight(redis: Redis, client: Redis, *commands: str) -> None:
    """GETs that were sent and are cancelled before the server, which is held up, answers."""
    await client.ping()
    await redis.client_pause(300, all=True)
    tasks = [asyncio.ensure_future(client.get(name)) for name in commands]
    _, waiting = await asyncio.wait(tasks, timeout=0.1)
    for task in waiting:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


class TestCancelledCommands:
    async def test_leave_their_reply_to_nobody(self, redis: Redis, client: Redis) -> None:
        """redis-py#2624, CVE-2023-28858: the next command got it."""
        await redis.mset({"theirs": "secret", "mine": "1", "other": "2"})
        await cancelled_in_flight(redis, client, "theirs", "theirs")
        assert [await client.get("mine"), await client.get("other")] == [b"1", b"2"]

    async def test_take_no_connection_with_them(self, redis: Redis, client: Redis) -> None:
        """redis-py#4121: each cost the pool a place, until nobody got one."""
        await redis.set("mine", "1")
        for _ in range(CONNECTIONS):
            await cancelled_in_flight(redis, client, *["mine"] * CONNECTIONS)
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(client.get("mine")) for _ in range(CONNECTIONS * 3)]
        assert {task.result() for task in found} == {b"1"}


class TestConnectionsThatTheServerClosed:
    async def test_while_they_were_idle_are_opened_again(self, redis: Redis, client: Redis) -> None:
        """redis-py#4252: a closed one was handed out, and the command failed."""
        await redis.set("mine", "1")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(client.get("mine"))
        mine = int(await redis.client_id())
        for other in await redis.client_list():
            if int(other["id"]) != mine:
                await redis.client_kill_filter(_id=other["id"])
        assert [await client.get("mine") for _ in range(CONNECTIONS + 1)] == [b"1"] * (CONNECTIONS + 1)
