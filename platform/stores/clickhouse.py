"""The ClickHouse port: one small interface, three adapters, the same rows from each.

Step 8 writes through it, reports read through it. Queries carry parameters as `{name:Type}`, bound by the server itself
and never pasted into the text. Invariants: a row's values have the same Python types whoever answers (int, str,
Decimal, aware datetime, list, dict, None; a UUID is its text); `insert` puts all its rows in one block, so one
`insert_deduplication_token` names exactly that batch; no call waits without a bound. `clickhouse_url` opens it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Parameter = int | str | Sequence[int] | Sequence[str]
Row = dict[str, Any]

READ_TIMEOUT_SECONDS = 20
WRITE_TIMEOUT_SECONDS = 120
RESULT_BYTES_MAX = 64 << 20  # of one answer; reports page well below it


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
