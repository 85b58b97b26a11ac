"""A ClickHouse server by its native protocol (clickhouse-driver).

Used by readers and the meter where `CLICKHOUSE_URL` names a server. Invariants: a driver client runs one query at a
time, so each call takes one from a small pool; an insert is one synchronous block under its token and is never repeated
here, since only the meter's manifest knows how to repeat it.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Empty, LifoQueue
from typing import Any, TypeVar
from uuid import UUID

from clickhouse_driver import Client
from clickhouse_driver.errors import Error as DriverError
from clickhouse_driver.errors import NetworkError, ServerException, SocketTimeoutError
from clickhouse_driver.util.helpers import parse_url

from stores.clickhouse import (
    READ_TIMEOUT_SECONDS,
    RESULT_BYTES_MAX,
    WRITE_TIMEOUT_SECONDS,
    ClickHouseError,
    ClickHouseUnavailable,
    Parameter,
    Row,
)

T = TypeVar("T")

CLIENTS_MAX = 8
_CONNECT_SECONDS = 5
_PARAMETER = re.compile(r"\{(\w+):")
# Shut down, overloaded, or out of time: the same statement may pass later.
_PASSING_CODES = frozenset({159, 202, 209, 210, 241, 242, 252, 285, 319, 425, 473, 999})
_READ_SETTINGS: dict[str, int] = {
    "max_execution_time": READ_TIMEOUT_SECONDS,
    "max_result_bytes": RESULT_BYTES_MAX,
    "do_not_merge_across_partitions_select_final": 1,
}


class NativeClickHouse:
    """`stores.clickhouse.ClickHouse` on a server."""

    exclusive = False

    def __init__(self, *, url: str, clients_max: int = CLIENTS_MAX) -> None:
        """Nothing is connected before the first call. `url` may set the driver's options in its query."""
        host, options = parse_url(url)
        settings = {**options.pop("settings", {}), "server_side_params": True}
        timeouts = {
            "connect_timeout": _CONNECT_SECONDS,
            "send_receive_timeout": WRITE_TIMEOUT_SECONDS,
            "sync_request_timeout": _CONNECT_SECONDS,
        }
        self._host = host
        self._options: dict[str, Any] = {"compression": "lz4", **timeouts, **options, "settings": settings}
        self._free: LifoQueue[Client] = LifoQueue()
        self._slots = threading.BoundedSemaphore(clients_max)

    def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        given = {name: _parameter(value) for name, value in (params or {}).items()}
        missing = set(_PARAMETER.findall(sql)) - set(given)
        if missing:
            raise ClickHouseError(f"parameters without a value: {', '.join(sorted(missing))}", code=456)

        def run(client: Client) -> list[Row]:
            rows, columns = client.execute(sql, given or None, with_column_types=True, settings=_READ_SETTINGS)
            names = [name for name, _ in columns]
            return [{name: _plain(value) for name, value in zip(names, row, strict=True)} for row in rows]

        return self._with_client(run)

    def insert(self, *, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], token: str) -> None:
        if not rows:
            return
        # One block for the whole batch, else one token would name several.
        settings = {"insert_deduplication_token": token, "async_insert": 0, "insert_block_size": len(rows) + 1}
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES"

        def run(client: Client) -> None:
            client.execute(statement, [list(row) for row in rows], settings=settings)

        self._with_client(run)

    def command(self, sql: str) -> None:
        self._with_client(lambda client: client.execute(sql))

    def close(self) -> None:
        while True:
            try:
                self._free.get_nowait().disconnect()
            except Empty:
                return

    def _with_client(self, run: Callable[[Client], T]) -> T:
        with self._client() as client:
            try:
                return run(client)
            except ServerException as error:
                kind = ClickHouseUnavailable if error.code in _PASSING_CODES else ClickHouseError
                raise kind(error.message.partition("Stack trace:")[0].strip(), code=error.code) from error
            except (NetworkError, SocketTimeoutError, EOFError, OSError) as error:
                raise ClickHouseUnavailable(f"the ClickHouse server does not answer: {error}") from error
            except DriverError as error:
                raise ClickHouseError(str(error), code=error.code or 0) from error

    @contextmanager
    def _client(self) -> Iterator[Client]:
        if not self._slots.acquire(timeout=READ_TIMEOUT_SECONDS):
            raise ClickHouseUnavailable("every connection to ClickHouse is busy")
        try:
            client = self._take()
            try:
                yield client
            except ClickHouseError:
                client.disconnect()  # whatever it still has to say belongs to the failed call
                raise
            self._free.put_nowait(client)
        finally:
            self._slots.release()

    def _take(self) -> Client:
        try:
            return self._free.get_nowait()
        except Empty:
            return Client(self._host, **self._options)


def _parameter(value: Parameter) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """The port's types: a UUID is its text, a time is aware, a tuple is a list."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
