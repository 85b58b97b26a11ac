"""From a line of a document down to the requests behind it. Called by `manage.py invoice drill`.

Invariant: the tokens of a period's requests at a price are the tokens of its line, and of its notes' lines, together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from billing.clickhouse.reports import query_text
from billing.clickhouse.usage import LOOKBACK_MS
from billing.models import InvoiceLine
from billing.rating.invoice import LineKind
from billing.rating.periods import Span
from billing.rating.prices import Meter
from contracts.money import nano_from_decimal
from stores.clickhouse import Reader

PAGE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPart:
    """What one request has of a line's meter and price."""

    request_id: str
    revision: int
    tokens: int
    cost_nano: int


def requests_of_line(line: InvoiceLine, *, reader: Reader) -> Iterator[RequestPart]:
    """Nothing for a line that is not of usage. Raises stores.clickhouse.ClickHouseError."""
    if line.kind != LineKind.USAGE:
        return
    model, service_class, meter, price_id = _key_parts(line.key)
    period = line.invoice.period
    span = Span(start=period.starts_at, end=period.ends_at)
    after_id, after_revision = "", 0
    while True:
        rows = reader.execute(
            query_text("line_requests"),
            {
                "tenant_id": str(period.tenant_id),
                "start_ms": span.start_ms,
                "end_ms": span.end_ms,
                "admitted_from_ms": span.start_ms - LOOKBACK_MS,
                "model": model,
                "service_class": service_class,
                "meter": meter,
                "place": list(Meter).index(Meter(meter)) + 1,
                "price_id": price_id,
                "after_id": after_id,
                "after_revision": after_revision,
                "limit": PAGE,
            },
        )
        for row in rows:
            yield RequestPart(
                request_id=str(row["request_id"]),
                revision=row["revision"],
                tokens=row["tokens"],
                cost_nano=nano_from_decimal(row["amount"]),
            )
        if len(rows) < PAGE:
            return
        after_id, after_revision = str(rows[-1]["request_id"]), rows[-1]["revision"]


def _key_parts(key: str) -> tuple[str, str, str, str]:
    """Model, class, meter and price of "usage:model:class:meter:price"; a model's name may have colons."""
    rest = key.removeprefix(f"{LineKind.USAGE}:")
    model, service_class, meter, price_id = rest.rsplit(":", 3)
    return model, service_class, meter, price_id
