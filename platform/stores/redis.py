"""One way to open Redis or Valkey, so that every client has the same timeouts, bounds and protocol.

RESP2: with RESP3 redis-py hands out a connection that the server closed (redis/redis-py#4252). Script calls go over one
connection (`multiplex`) and may be sent twice, therefore every write of ours is a Lua script, idempotent by an id.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from stores.cluster import REDIRECTS_MAX, Node, Nodes, key_of
from stores.multiplex import Command

CONNECT_TIMEOUT_SECONDS = 2.0
REPLY_TIMEOUT_SECONDS = 5.0
CONNECTIONS_MAX = 64


class Client(Redis):
    """redis-py's client, whose script calls share one connection of their own (`multiplex`) to each node (`cluster`).

    The URL may name any node of a cluster: calls follow what the nodes answer, those of redis-py's own methods too.
    """

    def __init__(self, *, connection_pool: BlockingConnectionPool, reply_timeout: float) -> None:
        super().__init__(connection_pool=connection_pool)
        self._nodes = Nodes(connection_pool, reply_seconds=reply_timeout)
        self._calls = self._nodes.seed.calls

    async def run_script(self, text: str, *, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """The reply of a Lua script that is safe to repeat: it is, once, when the connection was lost.

        Its keys are in one slot. Raises redis.exceptions.RedisError.
        """
        command = ("EVALSHA", _digest(text), len(keys), *keys, *args)
        key = keys[0] if keys else None

        async def evaluate(node: Node, asking: bool) -> Any:  # noqa: FBT001 - in the order of `_follow`
            return await _evaluate(node, text, command, asking=asking)

        try:
            return await self._follow(key, evaluate)
        except RedisConnectionError:
            return await self._follow(key, evaluate)  # the server may have closed an idle connection, or be another now

    async def _follow(self, key: str | bytes | None, call: Callable[[Node, bool], Awaitable[Any]]) -> Any:
        """`call` on the node of the key, as far as it is known, and from there where each answer points."""
        node, asking = self._nodes.node_of(key), False
        for last in (*[False] * REDIRECTS_MAX, True):
            try:
                return await call(node, asking)
            except AskError as error:
                if last:
                    raise
                node, asking = self._nodes.told(error), not isinstance(error, MovedError)
            except RedisConnectionError:
                self._nodes.lost(node)
                raise
        raise AssertionError("the last turn returns or raises")

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async def execute(node: Node, asking: bool) -> Any:  # noqa: FBT001 - in the order of `_follow`
            return await self._on(node, args, options, asking=asking)

        return await self._follow(key_of(args), execute)

    async def _on(self, node: Node, args: tuple[Any, ...], options: dict[str, Any], *, asking: bool) -> Any:
        if node is self._nodes.seed and not asking:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        other = Redis(connection_pool=node.pool, single_connection_client=asking)
        other.response_callbacks = self.response_callbacks
        if not asking:
            return await other.execute_command(*args, **options)  # type: ignore[no-untyped-call]
        async with other:  # both on one connection, which goes back to the pool
            await other.execute_command("ASKING")  # type: ignore[no-untyped-call]
            return await other.execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:  # noqa: FBT001, FBT002 - redis-py's signature
        return _Routed(self, self._nodes, transaction=transaction, shard_hint=shard_hint)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 - redis-py's signature
        for node in self._nodes.every():
            await node.calls.close()
            if node is not self._nodes.seed:
                await node.pool.aclose()
        await super().aclose(close_connection_pool=close_connection_pool)


class _Routed(Pipeline):
    """A pipeline on the node of its first key. A transaction is of one slot; other commands follow one by one."""

    def __init__(self, client: Client, nodes: Nodes, *, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client, self._nodes = client, nodes

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - redis-py's signature
        commands = list(self.command_stack)
        if self.connection is None and commands:  # else it watches something already
            self.connection_pool = self._nodes.node_of(key_of(commands[0][0])).pool
        if not self.is_transaction and not self.explicit_transaction:
            return await self._each(commands, raise_on_error=raise_on_error)
        for _ in range(REDIRECTS_MAX):
            try:
                return await super().execute(raise_on_error)
            except MovedError as error:  # nothing of it was done
                self.connection_pool = self._nodes.told(error).pool
                self.command_stack = list(commands)
        return await super().execute(raise_on_error)

    async def _each(self, commands: list[Any], *, raise_on_error: bool) -> list[Any]:
        replies = await super().execute(raise_on_error=False)
        for number, (reply, (args, options)) in enumerate(zip(replies, commands, strict=True)):
            if isinstance(reply, AskError):
                self._nodes.told(reply)
                replies[number] = await self._reply(args, options)
        first = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if raise_on_error and first is not None:
            raise first
        return replies

    async def _reply(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The reply, an error of the server among them: the commands after it are done all the same."""
        try:
            return await self._client.execute_command(*args, **options)
        except ResponseError as error:
            return error


async def _evaluate(node: Node, text: str, command: Command, *, asking: bool) -> Any:
    call = node.calls.call_asking if asking else node.calls.call
    try:
        return await call(*command)
    except NoScriptError:
        await node.calls.call("SCRIPT", "LOAD", text)
        return await call(*command)


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
