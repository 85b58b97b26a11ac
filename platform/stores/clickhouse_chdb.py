"""An embedded ClickHouse (chDB): its one owner, and the client by which every other process asks it.

chDB locks its directory, so exactly one process, the meter, holds a `ChdbOwner`; it serves queries to the others by
`stores.clickhouse_socket`. Invariants: opened after the fork, used by the process that opened it; readers go through a
session that is read-only for its whole life (no write, no table function, no setting can be changed); statements of one
session run one after the other, and a long read never delays an insert.
"""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stores.clickhouse import (
    READ_TIMEOUT_SECONDS,
    RESULT_BYTES_MAX,
    ClickHouseError,
    ClickHouseUnavailable,
    Parameter,
    Row,
)
from stores.clickhouse_text import INSERT_FORMAT, RESULT_FORMAT, parameter_text, read_result, rows_text

_CODE = re.compile(r"Code: (\d+)\.")
_READER_SETTINGS = (
    "output_format_json_quote_decimals = 1",
    f"max_execution_time = {READ_TIMEOUT_SECONDS}",
    f"max_result_bytes = {RESULT_BYTES_MAX}",
    "do_not_merge_across_partitions_select_final = 1",
    "readonly = 1",  # last: nothing can be set after it
)
_TIMEOUT_EXCEEDED = 159


class ChdbOwner:
    """`stores.clickhouse.ClickHouse` on a directory that this process alone opens."""

    exclusive = True

    def __init__(self, *, directory: Path) -> None:
        """Open or create the data. Raises ClickHouseUnavailable when another process holds the directory."""
        # Imported here: half a gigabyte of library that only the meter needs.
        from chdb.session import Session

        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._pid = os.getpid()
        open_session: Callable[[str], Any] = Session
        try:
            self._writer = open_session(str(directory))
            self._reader = open_session(str(directory))
        except RuntimeError as error:
            raise ClickHouseUnavailable(
                f"chDB cannot open {directory.name}; a directory has one owner, is another meter running? {error}"
            ) from error
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        for setting in _READER_SETTINGS:
            self._run(self._reader, f"SET {setting}")

    def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        return read_result(
            self.execute_raw(sql, {name: parameter_text(value) for name, value in (params or {}).items()})
        )

    def execute_raw(self, sql: str, params: Mapping[str, str]) -> bytes:
        """The answer as ClickHouse wrote it in RESULT_FORMAT; parameters already as text."""
        with self._read_lock:
            return self._run(self._reader, sql, params)

    def insert(self, *, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], token: str) -> None:
        if not rows:
            return
        # One parsing thread and a block as large as the batch: the token then names all of it.
        statement = (
            f"INSERT INTO {table} ({', '.join(columns)}) "
            f"SETTINGS insert_deduplication_token = '{_token(token)}', async_insert = 0, "
            f"input_format_parallel_parsing = 0, max_insert_block_size = {len(rows) + 1} "
            f"FORMAT {INSERT_FORMAT}\n{rows_text(rows)}"
        )
        with self._write_lock:
            self._run(self._writer, statement)

    def command(self, sql: str) -> None:
        with self._write_lock:
            self._run(self._writer, sql)

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._reader.close()
            self._writer.close()

    def _run(self, session: Any, sql: str, params: Mapping[str, str] | None = None) -> bytes:
        if os.getpid() != self._pid:
            raise ClickHouseError("chDB was opened before a fork; open it in the process that uses it")
        try:
            answer = session.query(sql, RESULT_FORMAT, params=dict(params or {}))
        except RuntimeError as error:
            raise error_from_text(str(error)) from error
        return bytes(answer.bytes()) if answer is not None else b""


def error_from_text(text: str) -> ClickHouseError:
    """ClickHouse's message with its number; a time-out is a store that did not answer in time."""
    found = _CODE.search(text)
    code = int(found[1]) if found else 0
    kind = ClickHouseUnavailable if code == _TIMEOUT_EXCEEDED else ClickHouseError
    return kind(text, code=code)


def _token(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:/-]{1,200}", text):
        raise ValueError("a deduplication token is made of letters, digits and _.:/-")
    return text
