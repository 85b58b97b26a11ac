"""One channel of Redis; what is published on it is handed over in the same turn of the event loop. Used by `gateway`.

redis-py's PubSub wakes a task and walks through its retry and timeout wrappers for each message, which was a fifth of
a gateway's time under streams. Here the bytes are parsed as they come, without a task.

Invariants: `on_subscribed` is called once the server has confirmed, so that whatever is published from there on is
heard; messages come in order; a connection that is lost or falls silent is noticed, told, and opened again.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import hiredis
from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from stores.multiplex import take_over

log = logging.getLogger("weir.stores.subscription")

CONNECT_SECONDS = 2.0
SILENCE_PING_SECONDS = 5.0
SILENCE_DEAD_SECONDS = 15.0
BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MOST_SECONDS = 2.0


class Listen(Protocol):
    """`Subscriber.listen`."""

    async def __call__(
        self,
        *,
        channel: str,
        on_subscribed: Callable[[], None],
        on_lost: Callable[[], None],
        on_message: Callable[[bytes], None],
    ) -> NoReturn: ...


class Subscriber:
    """Opens a connection of its own for each `listen`."""

    def __init__(self, url: str) -> None:
        self._pool = ConnectionPool.from_url(
            url, socket_timeout=CONNECT_SECONDS, socket_connect_timeout=CONNECT_SECONDS, protocol=2
        )
        self._jitter = random.Random()  # noqa: S311 - spreads reconnects

    async def listen(
        self,
        *,
        channel: str,
        on_subscribed: Callable[[], None],
        on_lost: Callable[[], None],
        on_message: Callable[[bytes], None],
    ) -> NoReturn:
        """Hear `channel` until cancelled. A lost connection is opened again with growing pauses, for ever.

        `on_subscribed` is called each time the channel is heard again: what was published meanwhile is lost.
        """
        failures = 0

        def subscribed() -> None:
            nonlocal failures
            failures = 0
            on_subscribed()

        while True:
            try:
                await self._hear(channel, subscribed, on_message)
            except (RedisError, OSError, TimeoutError) as error:
                on_lost()
                failures += 1
                pause = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(failures, 8))
                log.warning("subscription to %s lost (%s); again in %.2f s", channel, type(error).__name__, pause)
                await asyncio.sleep(pause * self._jitter.uniform(0.5, 1.0))

    async def _hear(
        self, channel: str, on_subscribed: Callable[[], None], on_message: Callable[[bytes], None]
    ) -> NoReturn:
        """One connection. Raises what ended it."""
        async with asyncio.timeout(CONNECT_SECONDS):
            writer, reply_error = await take_over(self._pool.make_connection())  # type: ignore[no-untyped-call]
        line = _Line(on_message=on_message, reply_error=reply_error)
        try:
            writer.transport.set_protocol(line)
            writer.transport.write(hiredis.pack_command(("SUBSCRIBE", channel)))  # type: ignore[arg-type] # see multiplex
            async with asyncio.timeout(CONNECT_SECONDS):
                await line.subscribed
            on_subscribed()
            await self._watch(line, writer.transport)
            raise line.lost.result()
        finally:
            writer.transport.abort()

    async def _watch(self, line: "_Line", transport: asyncio.WriteTransport) -> None:
        """Until the connection is lost. Raises RedisTimeoutError when the server does not answer for too long."""
        silent = 0.0
        while not line.lost.done():
            line.heard = False
            await asyncio.wait({line.lost}, timeout=SILENCE_PING_SECONDS)
            if line.lost.done():
                return  # uvloop raises RuntimeError for a write to what is closed
            silent = 0.0 if line.heard else silent + SILENCE_PING_SECONDS
            if silent >= SILENCE_DEAD_SECONDS:
                raise RedisTimeoutError("the subscription does not answer")
            if silent:
                transport.write(hiredis.pack_command(("PING",)))


class _Line(asyncio.Protocol):
    """The connection. `lost` holds what ended it."""

    def __init__(self, *, on_message: Callable[[bytes], None], reply_error: Callable[[str], Exception]) -> None:
        self._on_message = on_message
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=reply_error, notEnoughData=_Line)
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception] = loop.create_future()
        self.heard = False

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            self._reader.feed(data)
            while (item := self._reader.gets()) is not _Line:
                self._take(item)
        except Exception as error:  # noqa: BLE001 - ends the connection, and is told
            self._end(error)

    def _take(self, item: Any) -> None:
        match item:
            case [b"message", _, bytes(data)]:
                self._on_message(data)
            case [b"subscribe", *_]:
                if not self.subscribed.done():
                    self.subscribed.set_result(None)
            case [b"pong", *_]:
                pass  # it has been heard
            case RedisError():
                raise item
            case _:
                raise RedisConnectionError("not what a subscription is told")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(RedisConnectionError(f"the connection was lost: {exc or 'closed by the server'}"))

    def _end(self, error: Exception) -> None:
        if not self.subscribed.done():
            self.subscribed.set_exception(error)
        if not self.lost.done():
            self.lost.set_result(error)
