"""Script calls that share one connection: each gets its own reply, whatever happens to the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from stores.multiplex import PENDING_MAX
from stores.redis import Client, open_redis

ECHO = "return ARGV[1]"


async def echo(redis: Client, text: str) -> bytes:
    reply: bytes = await redis.run_script(ECHO, keys=[], args=[text])
    return reply


@asynccontextmanager
async def mute_server() -> AsyncIterator[str]:
    """Takes connections and never says a word; the URL."""
    server = await asyncio.start_server(lambda _reader, writer: opened.append(writer), "127.0.0.1", 0)
    opened: list[asyncio.StreamWriter] = []
    host, port = server.sockets[0].getsockname()
    try:
        yield f"redis://{host}:{port}/0"
    finally:
        for writer in opened:
            writer.close()
        server.close()


class TestReplies:
    async def test_go_to_their_own_calls(self, redis: Client) -> None:
        async with asyncio.TaskGroup() as calls:
            tasks = [calls.create_task(echo(redis, f"call {number}")) for number in range(500)]
        assert [task.result() for task in tasks] == [b"call %d" % number for number in range(500)]

    async def test_of_every_shape_come_as_redis_py_gives_them(self, redis: Client) -> None:
        text = "return {KEYS[1], ARGV[1], 7, false, {'nested', {}}}"
        by_script = await redis.run_script(text, keys=["k"], args=[b"\x00\xff"])
        assert by_script == await redis.eval(text, 1, "k", b"\x00\xff") == [b"k", b"\x00\xff", 7, None, [b"nested", []]]

    async def test_that_are_errors_are_raised_and_harm_no_other_call(self, redis: Client) -> None:
        async with asyncio.TaskGroup() as calls:
            before = calls.create_task(echo(redis, "before"))
            with pytest.raises(ResponseError, match="no such thing"):
                await redis.run_script("return redis.error_reply('no such thing')", keys=[], args=[])
            after = calls.create_task(echo(redis, "after"))
        assert (before.result(), after.result()) == (b"before", b"after")

    async def test_of_a_call_that_was_cancelled_go_to_nobody(self, redis: Client) -> None:
        await echo(redis, "open")
        given_up = asyncio.ensure_future(echo(redis, "given up"))
        asyncio.get_running_loop().call_soon(given_up.cancel)
        assert await echo(redis, "next") == b"next"
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await echo(redis, "and next") == b"and next"

    async def test_larger_than_one_read_come_whole(self, redis: Client) -> None:
        large = "x" * 3_000_000
        assert await echo(redis, large) == large.encode()


class TestScripts:
    async def test_are_loaded_when_the_server_lost_them(self, redis: Client) -> None:
        assert await echo(redis, "known") == b"known"
        await redis.script_flush()
        async with asyncio.TaskGroup() as calls:
            tasks = [calls.create_task(echo(redis, str(number))) for number in range(20)]
        assert [task.result() for task in tasks] == [str(number).encode() for number in range(20)]


class TestConnections:
    async def test_that_the_server_closed_are_opened_again(self, redis: Client) -> None:
        await echo(redis, "open")
        assert await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") >= 1
        assert await echo(redis, "again") == b"again"

    async def test_are_one_for_all_calls(self, redis: Client) -> None:
        async with asyncio.TaskGroup() as calls:
            for number in range(50):
                calls.create_task(echo(redis, str(number)))
        clients = await redis.execute_command("CLIENT", "LIST", "TYPE", "normal")
        assert clients.count(b"cmd=evalsha") == 1

    async def test_log_in_and_select_their_database(self, redis: Client, valkey_url: str) -> None:
        other = open_redis(valkey_url.rsplit("/", 1)[0] + "/7")
        await other.run_script("return redis.call('SET', KEYS[1], 'seven')", keys=["multiplex"], args=[])
        try:
            assert await other.get("multiplex") == b"seven"
            assert await redis.get("multiplex") is None
        finally:
            await other.aclose(close_connection_pool=True)

    async def test_that_are_refused_raise_redis_errors(self) -> None:
        nobody = open_redis("redis://127.0.0.1:1/0")
        with pytest.raises(RedisConnectionError):
            await echo(nobody, "hello")
        await nobody.aclose(close_connection_pool=True)

    async def test_that_fall_silent_fail_every_call(self) -> None:
        async with mute_server() as url:
            client = open_redis(url, reply_timeout=0.05)
            with pytest.raises((RedisTimeoutError, RedisConnectionError)):
                await echo(client, "hello")
            await client.aclose(close_connection_pool=True)

    async def test_that_stall_after_they_were_opened_fail_every_call(self, redis: Client, valkey_url: str) -> None:
        client = open_redis(valkey_url, reply_timeout=0.1)
        await echo(client, "open")
        await redis.execute_command("CLIENT", "PAUSE", "500", "ALL")
        async with asyncio.TaskGroup() as calls:
            tasks = [calls.create_task(_error_of(client)) for _ in range(2)]
        assert [type(task.result()) for task in tasks] == [RedisTimeoutError, RedisTimeoutError]
        await client.aclose(close_connection_pool=True)

    async def test_take_a_bounded_number_of_calls(self, redis: Client) -> None:
        await echo(redis, "open")
        async with asyncio.TaskGroup() as calls:
            tasks = [calls.create_task(_error_of(redis)) for _ in range(PENDING_MAX + 1)]
        assert sum(task.result() is not None for task in tasks) == 1

    async def test_fail_what_waits_when_the_client_is_closed(self, valkey_url: str) -> None:
        client = open_redis(valkey_url)
        await echo(client, "open")
        waiting = asyncio.ensure_future(client._calls.call("BLPOP", "nothing-comes", 0))
        await asyncio.sleep(0)
        await client.aclose(close_connection_pool=True)
        with pytest.raises(RedisConnectionError, match="closed"):
            await waiting


async def _error_of(redis: Client) -> Exception | None:
    try:
        await redis._calls.call("PING")
    except (RedisConnectionError, RedisTimeoutError) as error:
        return error
    return None
