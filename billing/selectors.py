"""Reads of the billing room: the price of a model (PostgreSQL) and the usage behind bills (ClickHouse).

Called by the gateway's wiring, the admin and management commands. All functions block: async callers cross by a thread.
"""

from collections.abc import Sequence

from billing.clickhouse.shapes import LatencyPercentiles, RequestRow, UsagePage
from contracts.money import PriceCard


def price_card(*, tenant_id: str, model: str, at_ms: int) -> PriceCard | None:
    """The prices in force at `at_ms` for this tenant and model: the tenant's own before the general ones, per meter.

    None when one of the three meters has no price: such a model is refused, never served free.
    """
    raise NotImplementedError


def usage_buckets(
    *,
    tenant_id: str,
    start_ms: int,
    end_ms: int,
    bucket_width: str = "1d",
    group_by: Sequence[str] = (),
    models: Sequence[str] = (),
    project_ids: Sequence[str] = (),
    api_key_ids: Sequence[str] = (),
    limit: int | None = None,
    page: str | None = None,
) -> UsagePage:
    """Usage in [start_ms, end_ms) by time bucket, in OpenAI's shape (`UsagePage.as_json()`).

    Raises contracts.errors.InvalidRequest naming the field (bucket_width 1m|1h|1d; group_by model|project_id|api_key_id),
    stores.clickhouse.ClickHouseUnavailable.
    """
    raise NotImplementedError


def request_row(*, request_id: str, tenant_id: str | None = None) -> RequestRow | None:
    """One metered request with its nine-step timeline; None when unknown here or another tenant's."""
    raise NotImplementedError


def recent_requests(
    *, tenant_id: str | None = None, limit: int = 50, before: str | None = None
) -> list[RequestRow]:
    """Newest first, at most 500. `before` = `RequestRow.cursor` of the last row of the page before."""
    raise NotImplementedError


def latency_percentiles(
    *, start_ms: int, end_ms: int, tenant_id: str | None = None, model: str | None = None
) -> LatencyPercentiles:
    """Percentiles 50, 90 and 99 of TTFT and of the time between tokens, over requests admitted in [start_ms, end_ms)."""
    raise NotImplementedError
