"""The native port's wire against whatever server TEST_CLICKHOUSE_WIRE_URL names, be it as old as Debian's 18.16.

Connection, DDL, types, one block, errors. No parameters and no deduplication: such a server has neither, and the
contract suite beside this file tests them on a server of today.
"""

import os
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from stores.clickhouse import ClickHouse, ClickHouseError
from stores.clickhouse_url import open_writer

URL = os.environ.get("TEST_CLICKHOUSE_WIRE_URL", "")

pytestmark = pytest.mark.skipif(
    not URL, reason="no ClickHouse server: set TEST_CLICKHOUSE_WIRE_URL to run the wire's part"
)


@pytest.fixture
def server() -> Iterator[ClickHouse]:
    port = open_writer(URL, directory=Path("unused"))
    port.command("DROP TABLE IF EXISTS wire_rows")
    port.command(
        "CREATE TABLE wire_rows (id UUID, at DateTime, tokens Int32, labels Array(String), cost Decimal(38, 12)) "
        "ENGINE = MergeTree ORDER BY id"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an old server says which settings it does not know
        yield port
        port.command("DROP TABLE wire_rows")
    port.close()


class TestNativeWire:
    def test_carries_a_batch_as_one_block_with_its_types(self, server: ClickHouse) -> None:
        at, cost = datetime(2026, 1, 1, tzinfo=UTC), Decimal("0.000000000123")
        rows = [(f"0192f0c1-0000-7000-8000-{n:012x}", at, n, ["it's"], cost) for n in range(10_000)]
        columns = ("id", "at", "tokens", "labels", "cost")
        server.insert(table="wire_rows", columns=columns, rows=rows, token="wire")
        assert server.execute("SELECT count() AS n FROM wire_rows") == [{"n": 10_000}]
        parts = server.execute("SELECT count() AS n FROM system.parts WHERE active AND table = 'wire_rows'")
        assert parts == [{"n": 1}]
        found = server.execute("SELECT * FROM wire_rows ORDER BY id LIMIT 1")
        assert found == [dict(zip(columns, rows[0], strict=True))]

    def test_names_the_fault_without_the_server_s_stack(self, server: ClickHouse) -> None:
        with pytest.raises(ClickHouseError, match="nowhere") as caught:
            server.execute("SELECT * FROM nowhere")
        assert caught.value.code == 60
        assert "Stack trace" not in str(caught.value)
        assert server.execute("SELECT 1 AS one") == [{"one": 1}]
