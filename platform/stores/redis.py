"""One way to open Redis or Valkey, so that every client has the same timeouts, bounds and protocol.

RESP2: with RESP3 redis-py hands out a connection that the server closed (redis/redis-py#4252). Script calls go over one
connection (`multiplex`) and may be sent twice, therefore every write of ours is a Lua script, idempotent by an id.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from stores.multiplex import Command, Multiplexer

CONNECT_TIMEOUT_SECONDS = 2.0
REPLY_TIMEOUT_SECONDS = 5.0
CONNECTIONS_MAX = 64


class Client(Redis):
    """redis-py's client, whose script calls share one connection of their own (`multiplex`)."""

    def __init__(self, *, connection_pool: BlockingConnectionPool, reply_timeout: float) -> None:
        super().__init__(connection_pool=connection_pool)
        self._calls = Multiplexer(make_connection=connection_pool.make_connection, reply_seconds=reply_timeout)

    async def run_script(self, text: str, *, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """The reply of a Lua script that is safe to repeat: it is, once, when the connection was lost.

        Raises redis.exceptions.RedisError.
        """
        command = ("EVALSHA", _digest(text), len(keys), *keys, *args)
        try:
            return await self._evaluate(text, command)
        except RedisConnectionError:
            return await self._evaluate(text, command)  # the server may have closed an idle connection

    async def _evaluate(self, text: str, command: Command) -> Any:
        try:
            return await self._calls.call(*command)
        except NoScriptError:
            await self._calls.call("SCRIPT", "LOAD", text)
            return await self._calls.call(*command)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 - redis-py's signature
        await self._calls.close()
        await super().aclose(close_connection_pool=close_connection_pool)


@cache
def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def open_redis(url: str, *, connections_max: int = CONNECTIONS_MAX, reply_timeout: float | None = None) -> Client:
    """A client on `url`, answers as bytes. Waits for a free connection up to the reply timeout (seconds)."""
    timeout = REPLY_TIMEOUT_SECONDS if reply_timeout is None else reply_timeout
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections_max,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        health_check_interval=30,
        protocol=2,
        decode_responses=False,
    )
    return Client(connection_pool=pool, reply_timeout=timeout)
