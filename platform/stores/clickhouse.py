"""The ClickHouse port: one small interface, three adapters, the same rows from each.

Step 8 writes through it, reports read through it. Queries carry parameters as `{name:Type}`, bound by the server itself
and never pasted into the text. Invariants: a row's values have the same Python types whoever answers (int, str,
Decimal, aware datetime, list, dict, None; a UUID is its text); `insert` puts all its rows in one block, so one
`insert_deduplication_token` names exactly that batch; no call waits without a bound.

    chdb+unix:///path/to/meter.sock      the meter process owns an embedded ClickHouse and answers queries
    clickhouse://user:pw@host:9000/db    a server, by the native protocol (`clickhouses://` for TLS)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

Parameter = int | str | Sequence[int] | Sequence[str]
Row = dict[str, Any]

READ_TIMEOUT_SECONDS = 20
WRITE_TIMEOUT_SECONDS = 120
RESULT_BYTES_MAX = 64 << 20  # of one answer; reports page well below it
LOCAL_SCHEME = "chdb+unix"
_SERVER_SCHEMES = ("clickhouse", "clickhouses")


class ClickHouseError(Exception):
    """The store refused or failed a statement. `code` is ClickHouse's own number, 0 when it gave none."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class ClickHouseUnavailable(ClickHouseError):
    """The store cannot be reached, or did not answer in time. A repeated insert needs the same token."""


class Reader(Protocol):
    """What reports need. Blocking: async callers use a thread. Safe to share between threads."""

    def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        """Rows of a query. Raises ClickHouseError, ClickHouseUnavailable."""

    def close(self) -> None:
        """Give back connections and files. Idempotent."""


class ClickHouse(Reader, Protocol):
    """What the meter and the migrations need on top."""

    exclusive: bool  # whether this process is the only one that can write to the store

    def insert(self, *, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], token: str) -> None:
        """All of `rows` in one block, or nothing. The same token again is a no-op.

        Raises ClickHouseError when a row is refused (the whole block is), ClickHouseUnavailable when the result is
        unknown: repeat the same rows, in the same order, with the same token.
        """

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing (DDL). Raises ClickHouseError, ClickHouseUnavailable."""


def open_clickhouse(url: str) -> Reader:
    """A reader for reports and the admin. Raises ValueError for an unknown scheme."""
    # Adapters are imported where they are chosen: they import this port, and chDB is large.
    if is_local(url):
        from stores.clickhouse_socket import ChdbClient

        return ChdbClient(path=socket_path(url))
    return _open_server(url)


def open_writer(url: str, *, directory: Path) -> ClickHouse:
    """The full port, for the meter alone. In local mode it owns the embedded data in `directory`.

    Raises ValueError for an unknown scheme, ClickHouseUnavailable when another process owns the directory.
    """
    if is_local(url):
        from stores.clickhouse_chdb import ChdbOwner

        return ChdbOwner(directory=directory)
    return _open_server(url)


def is_local(url: str) -> bool:
    """Whether the meter is the store's owner and serves it to the others."""
    return urlsplit(url).scheme == LOCAL_SCHEME


def socket_path(url: str) -> Path:
    """Where the meter listens in local mode. Raises ValueError when `url` names no absolute path."""
    path = Path(urlsplit(url).path)
    if not is_local(url) or not path.is_absolute():
        raise ValueError(f"a local CLICKHOUSE_URL is {LOCAL_SCHEME}:///absolute/path/to/meter.sock")
    return path


def _open_server(url: str) -> ClickHouse:
    if urlsplit(url).scheme not in _SERVER_SCHEMES:
        raise ValueError(f"CLICKHOUSE_URL begins with {LOCAL_SCHEME}:// or {':// or '.join(_SERVER_SCHEMES)}://")
    from stores.clickhouse_native import NativeClickHouse

    return NativeClickHouse(url=url)
