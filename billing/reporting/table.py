"""Finance lines as rows of a table, and the table as CSV or Parquet. Pure.

Called by `manage.py finance_report` and the management API. Invariant: amounts are exact: text in CSV and JSON,
a decimal in Parquet.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from billing.reporting.finance import SUMMED, FinanceLine
from contracts.money import decimal_from_nano, text_from_nano

Rows = Sequence[Mapping[str, Any]]

_LATENCIES = ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def rows_of(lines: Sequence[FinanceLine], *, by: Sequence[str], sequence_hour_nano: int | None) -> list[dict[str, Any]]:
    """A row for each line: its groups, what adds up, and, where an hour of a sequence has a price, the margin.

    Amounts are Decimal.
    """
    rows = []
    for line in lines:
        row: dict[str, Any] = {**dict(zip(by, line.groups, strict=True)), "currency": line.currency}
        for name in SUMMED:
            value = getattr(line.sums, name)
            row[name.removesuffix("_nano")] = decimal_from_nano(value) if name.endswith("_nano") else value
        if sequence_hour_nano is not None:
            cost = line.sums.engine_cost_nano(sequence_hour_nano)
            row["engine_cost"] = decimal_from_nano(cost)
            row["margin"] = decimal_from_nano(line.sums.revenue_nano - cost)
        rows.append({**row, **dict(zip(_LATENCIES, (*line.ttft_ms, *line.itl_ms), strict=True))})
    return rows


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON: amounts as exact text."""
    return {
        name: text_from_nano(int(value.scaleb(9))) if isinstance(value, Decimal) else value
        for name, value in row.items()
    }


def as_csv(rows: Rows) -> bytes:
    """With a line of names; empty where there are no rows. What a spreadsheet took for a formula is quoted."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in plain(row).items()})
    return out.getvalue().encode()


def as_parquet(rows: Rows) -> bytes:
    """Amounts as decimal(38, 9), counts as 64-bit integers."""
    import pyarrow as pa  # type: ignore[import-untyped]  # large, and only this form needs it
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    names = list(rows[0]) if rows else []
    kinds = {Decimal: pa.decimal128(38, 9), int: pa.int64(), str: pa.string()}
    schema = pa.schema([(name, kinds.get(type(rows[0][name]), pa.float64())) for name in names])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), out)
    return out.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value) else value


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdigit()
