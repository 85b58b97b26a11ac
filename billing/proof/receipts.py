"""What the platform says about one request, and signs: the counts, the prices and the cost of its row.

Called when a period is sealed, for the proof of an invoice and by `manage.py receipt`. Invariant: a receipt depends on
its row alone, so it is the same text whenever it is asked for, and its leaf in the hour's Merkle tree stays.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from billing.clickhouse.reports import query_text, read_request
from billing.clickhouse.usage import LOOKBACK_MS
from billing.rating.periods import Span, utc_days
from billing.rating.prices import CARD_ID_SEPARATOR
from contracts.money import nano_from_decimal, text_from_nano
from stores.clickhouse import Reader, Row

PAGE = 20_000
VERSION = 1

Receipt = dict[str, Any]


def receipts_of(reader: Reader, *, tenant_id: str, span: Span) -> Iterator[Receipt]:
    """Of requests that ended in the span: those of an hour by admission and id, the order of its leaves.

    Read day by day, since each question looks at all that was admitted shortly before. Raises ClickHouseError.
    """
    for day in utc_days(span):
        yield from _receipts_of_day(reader, tenant_id=tenant_id, span=day)


def _receipts_of_day(reader: Reader, *, tenant_id: str, span: Span) -> Iterator[Receipt]:
    after: tuple[int, str, int] = (0, "", 0)
    while True:
        rows = reader.execute(
            query_text("receipts"),
            {
                "tenant_id": tenant_id,
                "start_ms": span.start_ms,
                "end_ms": span.end_ms,
                "admitted_from_ms": span.start_ms - LOOKBACK_MS,
                "after_ms": after[0],
                "after_id": after[1],
                "after_revision": after[2],
                "limit": PAGE,
            },
        )
        yield from map(_receipt, rows)
        if len(rows) < PAGE:
            return
        after = rows[-1]["admitted_ms"], str(rows[-1]["request_id"]), rows[-1]["revision"]


def find_receipt(reader: Reader, *, request_id: str, tenant_id: str = "") -> Receipt | None:
    """The receipt of one request; None when it is unknown, or another tenant's. `tenant_id` "" = whichever."""
    found = read_request(reader, request_id=request_id, tenant_id=tenant_id)
    if found is None:
        return None
    at = found.billed_at_ms
    hour = Span.of_ms(at, at + 1)
    of_moment = receipts_of(reader, tenant_id=found.tenant_id, span=hour)
    return next((each for each in of_moment if each["request_id"] == found.request_id), None)


def _receipt(row: Row | Mapping[str, Any]) -> Receipt:
    return {
        "v": VERSION,
        "request_id": str(row["request_id"]),
        "revision": row["revision"],
        "tenant_id": row["tenant_id"],
        "project_id": row["project_id"],
        "api_key_id": row["api_key_id"],
        "model": row["model_name"],
        "service_class": row["service_class"],
        "admitted_at_ms": row["admitted_ms"],
        "billed_at_ms": row["billed_ms"],
        "prompt_tokens": row["prompt_tokens"],
        "cached_tokens": row["cached_tokens"],
        "completion_tokens": row["completion_tokens"],
        "reasoning_tokens": row["reasoning_tokens"],
        "outcome": row["outcome"],
        "price_ids": row["price_card_id"].split(CARD_ID_SEPARATOR),
        "unit_nano": [row["price_input_nano"], row["price_cached_nano"], row["price_output_nano"]],
        "currency": row["currency"],
        "cost": text_from_nano(nano_from_decimal(row["cost"])),
    }
