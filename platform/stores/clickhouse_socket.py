"""Queries over a Unix socket: the meter answers what other processes ask its embedded ClickHouse.

A frame is four bytes of length (big endian) and a MessagePack map. Request `{"sql", "params"}`, answer `{"rows"}`
(bytes as ClickHouse wrote them) or `{"error", "code", "unavailable"}`. Invariants: queries only (the owner's read
session refuses the rest); the socket's mode is 0600; connections, frames and every wait are bounded.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack

from stores.clickhouse import (
    READ_TIMEOUT_SECONDS,
    RESULT_BYTES_MAX,
    ClickHouseError,
    ClickHouseUnavailable,
    Parameter,
    Row,
)
from stores.clickhouse_chdb import ChdbOwner
from stores.clickhouse_text import parameter_text, read_result

CONNECTIONS_MAX = 16
REQUEST_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = RESULT_BYTES_MAX * 4  # max_result_bytes counts the columns in memory, text can be longer
_HEAD = 4
_ADDRESS_BYTES_MAX = 100
_IO_SECONDS = 5.0
# A query may wait for others before it; the owner's session ends each after READ_TIMEOUT_SECONDS.
_ANSWER_SECONDS = READ_TIMEOUT_SECONDS + 10.0

log = logging.getLogger("weir.clickhouse")


class ChdbServer:
    """Serves an owner's queries. `async with ChdbServer(...)`: listening inside the block, gone after it."""

    def __init__(self, *, owner: ChdbOwner, path: Path) -> None:
        self._owner = owner
        self._path = path
        self._writers: set[asyncio.StreamWriter] = set()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chdb-read")
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "ChdbServer":
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The owner holds the directory's lock, so a socket left here belongs to a dead meter.
        if self._path.is_socket():
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(self._path) as name:
            listener.bind(name)
        self._path.chmod(0o600)  # before listen: nobody connects in between
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, backlog=CONNECTIONS_MAX)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.close()
        self._path.unlink(missing_ok=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if len(self._writers) > CONNECTIONS_MAX:
                await _send(writer, {"error": "too many readers at once", "code": 0, "unavailable": True})
                return
            async with asyncio.timeout(_IO_SECONDS):
                request = await _receive(reader)
            await _send(writer, await self._answer(request))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            log.info("a reader went away: %s", error or type(error).__name__)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                rows = await loop.run_in_executor(
                    self._pool, self._owner.execute_raw, str(request["sql"]), dict(request["params"])
                )
        except TimeoutError:
            return {"error": "the query waited too long behind others", "code": 0, "unavailable": True}
        except ClickHouseError as error:
            return {"error": str(error), "code": error.code, "unavailable": isinstance(error, ClickHouseUnavailable)}
        return {"rows": rows}


class ChdbClient:
    """`stores.clickhouse.Reader` by the meter's socket; one connection for each query, so nothing grows stale."""

    def __init__(self, *, path: Path) -> None:
        self._path = path

    def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        request = {"sql": sql, "params": {name: parameter_text(value) for name, value in (params or {}).items()}}
        try:
            answer = self._ask(_pack(request))
        except (OSError, EOFError) as error:
            raise ClickHouseUnavailable(f"the meter does not answer at {self._path.name}: {error}") from error
        if "error" in answer:
            kind = ClickHouseUnavailable if answer["unavailable"] else ClickHouseError
            raise kind(answer["error"], code=answer["code"])
        return read_result(answer["rows"])

    def close(self) -> None:
        """Nothing stays open between queries."""

    def _ask(self, frame: bytes) -> dict[str, Any]:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            connection.settimeout(_IO_SECONDS)
            with _short(self._path) as name:
                connection.connect(name)
            connection.sendall(frame)
            connection.settimeout(_ANSWER_SECONDS + _IO_SECONDS)
            with connection.makefile("rb") as stream:
                length = _length(_exactly(stream.read(_HEAD), _HEAD), ANSWER_BYTES_MAX)
                return _unpack(_exactly(stream.read(length), length))


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the socket that fits the 108 bytes of a Unix address, however deep its directory is."""
    if len(os.fsencode(path)) < _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise EOFError("closed within a frame")
    return data


def _length(head: bytes, limit: int) -> int:
    length = int.from_bytes(head, "big")
    if length > limit:
        raise OSError(f"a frame of {length} bytes passes {limit}")
    return length


def _pack(message: Mapping[str, Any]) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return len(body).to_bytes(_HEAD, "big") + body


def _unpack(body: bytes) -> dict[str, Any]:
    return dict(msgpack.unpackb(body, raw=False, max_bin_len=ANSWER_BYTES_MAX))


async def _receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readexactly(_HEAD)
    request = _unpack(await reader.readexactly(_length(head, REQUEST_BYTES_MAX)))
    if set(request) != {"sql", "params"}:
        raise ValueError("a request holds sql and params")
    return request


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(_pack(message))
    async with asyncio.timeout(_IO_SECONDS):
        await writer.drain()
