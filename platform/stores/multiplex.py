"""One connection to Redis that carries every script call of a process at once.

Called by `redis.Client`. redis-py takes a connection of the pool for each command and wakes twice for its reply: about
a quarter of a millisecond of Python a call, and a request makes ten. Here calls are written as they come, and replies
are matched to them in order, as RESP promises (redis.io/docs/latest/develop/reference/protocol-spec), without a task.

Invariants: replies go to calls in order; a connection that fails or falls silent fails every call on it; a call is
sent once (`redis.Client` repeats what may be repeated: every script of ours is idempotent).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

PENDING_MAX = 10_000  # calls without a reply yet; far more than a process has requests

Command = tuple[str | bytes | int, ...]


class Multiplexer:
    """Calls over one connection, opened at the first call and again after it was lost."""

    def __init__(self, *, make_connection: Callable[[], AbstractConnection], reply_seconds: float) -> None:
        self._make_connection = make_connection
        self._reply_seconds = reply_seconds
        self._line: _Line | None = None
        self._opening = asyncio.Lock()

    async def call(self, *command: str | bytes | int) -> Any:
        """The reply to one command. Raises redis.exceptions.RedisError: the server's, or that none came in time."""
        line = self._line
        if line is None or line.closed:
            line = await self._open()
        return await line.send(command)

    async def call_asking(self, *command: str | bytes | int) -> Any:
        """As `call`, behind an ASKING of its own, for a slot that moves to this server now. Nothing comes between."""
        line = self._line
        if line is None or line.closed:
            line = await self._open()
        asked, reply = line.send(("ASKING",)), line.send(command)
        try:
            await asyncio.wait({asked, reply})
        finally:
            asked.cancel()
            reply.cancel()  # does nothing to what has come
        asked.exception()
        return reply.result()

    async def _open(self) -> "_Line":
        async with self._opening:
            if self._line is None or self._line.closed:
                self._line = await _connect(self._make_connection(), reply_seconds=self._reply_seconds)
            return self._line

    async def close(self) -> None:
        """Fails what still waits. The next call opens a connection again."""
        if self._line is not None:
            await self._line.close()


async def _connect(connection: AbstractConnection, *, reply_seconds: float) -> "_Line":
    writer, reply_error = await take_over(connection)
    line = _Line(writer, reply_error=reply_error, reply_seconds=reply_seconds)
    writer.transport.set_protocol(line)
    return line


async def take_over(connection: AbstractConnection) -> tuple[asyncio.StreamWriter, Callable[[str], Exception]]:
    """redis-py connects (TLS, AUTH, SELECT); the writer, whose transport may change hands, and what makes errors.

    There is no public way to the transport: tests/contract/stores pins what is used here. The writer closes its
    transport when it is collected: keep it. Raises RedisError, OSError.
    """
    await connection.connect()  # type: ignore[no-untyped-call]
    writer, parser = connection._writer, connection._parser  # noqa: SLF001
    if writer is None:
        raise RedisConnectionError("the connection was lost while it was opened")
    connection._reader = connection._writer = None  # noqa: SLF001
    return writer, parser.parse_error


class _Line(asyncio.Protocol):
    """An open connection and the calls on it."""

    def __init__(
        self, writer: asyncio.StreamWriter, *, reply_error: Callable[[str], Exception], reply_seconds: float
    ) -> None:
        self._writer = writer  # kept, because it closes its transport when it is collected
        self._transport = writer.transport
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=reply_error, notEnoughData=_Line)
        self._reply_seconds = reply_seconds
        self._loop = asyncio.get_running_loop()
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._overdue: asyncio.Future[Any] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def closed(self) -> bool:
        return self._transport.is_closing() or self._loop.is_closed()

    def send(self, command: Command) -> asyncio.Future[Any]:
        if self._transport.is_closing():
            raise RedisConnectionError("the connection was lost")
        if len(self._pending) >= PENDING_MAX:
            raise RedisConnectionError(f"{PENDING_MAX} calls wait for a reply already")
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append(reply)
        self._unsent.append(hiredis.pack_command(command))  # type: ignore[arg-type] # the stub wants a tuple of one
        if len(self._unsent) == 1:
            self._loop.call_soon(self._flush)
        if self._watch is None:
            self._watch = self._loop.call_later(self._reply_seconds, self._look)
        return reply

    def _flush(self) -> None:
        """What one turn of the loop asked goes in one write: a write is a sixth of what a request costs a gateway."""
        unsent, self._unsent = self._unsent, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(unsent))

    def _look(self) -> None:
        """The oldest call was there at the last look: at least so long without a reply."""
        self._watch = None
        if not self._pending:
            return
        if self._pending[0] is self._overdue:
            self._fail(RedisTimeoutError(f"no reply within {self._reply_seconds:g} s"))
            return
        self._overdue = self._pending[0]
        self._watch = self._loop.call_later(self._reply_seconds, self._look)

    async def close(self) -> None:
        self._fail(RedisConnectionError("the client was closed"))
        if not self._loop.is_closed():
            await self._lost

    def _fail(self, error: RedisError) -> None:
        self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._pending:
            reply = self._pending.popleft()
            if not reply.done():
                reply.set_exception(error)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not _Line:
                reply = self._pending.popleft()
                if reply.done():
                    continue  # its caller was cancelled meanwhile
                if isinstance(answer, Exception):
                    reply.set_exception(answer)
                else:
                    reply.set_result(answer)
        except (InvalidResponse, IndexError) as error:
            self._fail(RedisConnectionError(f"not an answer of Redis: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(RedisConnectionError(f"the connection was lost: {exc or 'closed by the server'}"))
        if not self._lost.done():
            self._lost.set_result(None)
