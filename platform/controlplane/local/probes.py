"""Local mode: does a server serve? One small question per protocol, over plain sockets.

Called by the supervisor before anything that needs the server is started, and by `doctor`. Invariant: a probe
asks for what its users need (PostgreSQL accepts sessions, S3 can place an object), not for an open port.
Probes raise NotReady, OSError or EOFError; the caller sets the deadline.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from contracts.names import worker_key
from controlplane.local.children import NotReady, Probe

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def _connect(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):  # the other side was faster
        await writer.wait_closed()


def postgres(*, port: int, user: str) -> Probe:
    """Ready when the server asks for a password: it does so only once it accepts sessions."""

    async def probe() -> None:
        body = struct.pack("!i", 196608) + f"user\0{user}\0database\0postgres\0\0".encode()
        async with _connect(port) as (reader, writer):
            writer.write(struct.pack("!i", len(body) + 4) + body)
            if (await reader.readexactly(1)) != b"R":
                raise NotReady("the database system is starting up")

    return probe


def valkey(*, port: int, password: str | None) -> Probe:
    """Ready when PING answers; LOADING while the append-only file is read."""

    async def probe() -> None:
        async with _connect(port) as (reader, writer):
            if password:
                writer.write(f"AUTH {password}\r\n".encode())
                if not (await reader.readline()).startswith(b"+OK"):
                    raise NotReady("another server answers on its port: the password is refused")
            writer.write(b"PING\r\n")
            answer = await reader.readline()
            if not answer.startswith(b"+PONG"):
                raise NotReady(answer.decode(errors="replace").strip() or "closed the connection")

    return probe


async def http_status(*, port: int, path: str) -> tuple[int, bytes]:
    """Status and first bytes of the answer to one GET on 127.0.0.1."""
    async with _connect(port) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), await reader.read(2048)


def http(*, port: int, path: str, accept: frozenset[int] = frozenset({200})) -> Probe:
    """Ready when a GET of `path` answers with one of the statuses in `accept`."""

    async def probe() -> None:
        status, body = await http_status(port=port, path=path)
        if status not in accept:
            said = body.decode(errors="replace").strip()[:200]
            message = f"{path} answers {status} {said}"
            raise NotReady(message)

    return probe


def every(*probes: Probe) -> Probe:
    """Ready when all are, asked in order."""

    async def probe() -> None:
        for one in probes:
            await one()

    return probe


def unix_socket(*, path: Path) -> Probe:
    """Ready when something accepts connections on the Unix socket."""

    async def probe() -> None:
        _, writer = await asyncio.open_unix_connection(str(path))
        await _close(writer)

    return probe


def worker(*, redis_url: str, worker_id: str) -> Probe:
    """Ready when the worker's heartbeat says that its engine serves."""
    parts = urlsplit(redis_url)
    key = worker_key(worker_id)

    async def probe() -> None:
        from redis.exceptions import RedisError

        from stores.redis import open_redis

        client = open_redis(redis_url, connections_max=1)
        try:
            beat = await client.get(key)
        except RedisError as error:
            raise NotReady(f"its store does not answer: {type(error).__name__}") from error
        finally:
            await client.aclose(close_connection_pool=True)
        if beat is None:
            raise NotReady(f"it has not reported to {parts.hostname}:{parts.port} yet")
        state = json.loads(beat).get("state")
        if state != "ready":
            raise NotReady(f"it reports: {state}")

    return probe


def worker_beats(*, redis_url: str, worker_id: str) -> Probe:
    """Alive while its heartbeat has not run out, whatever its engine does; a store that is away says nothing of it."""
    key = worker_key(worker_id)

    async def probe() -> None:
        from redis.exceptions import RedisError

        from stores.redis import open_redis

        client = open_redis(redis_url, connections_max=1)
        try:
            known = await client.exists(key)
        except RedisError:
            return
        finally:
            await client.aclose(close_connection_pool=True)
        if not known:
            raise NotReady("its heartbeat has run out")

    return probe


def file_exists(*, path: Path) -> Probe:
    """Ready when the child has touched its pulse file for the first time."""

    async def probe() -> None:
        if not path.exists():  # noqa: ASYNC240 - one look at a local file
            raise NotReady("it has not begun its work yet")

    return probe


def file_changes(*, path: Path) -> Probe:
    """Alive while the file is touched between two looks. Compared with itself: a clock that jumps changes nothing."""
    seen: list[int] = []

    async def probe() -> None:
        touched = path.stat().st_mtime_ns  # noqa: ASYNC240 - one look at a local file
        if seen and seen[-1] == touched:
            raise NotReady("its pulse has stopped")
        seen[:] = [touched]

    return probe


async def started() -> None:
    """For a child with nothing to ask: running is all that can be known of it."""
