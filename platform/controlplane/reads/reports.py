"""Step 8, what was used: reports from ClickHouse for `/v1/usage` and `/v1/requests/{id}`, within a deadline.

Called by the gateway's edge. Invariant: a report is of one tenant; a store that is away raises Unavailable.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from billing import selectors as billing_reads
from billing.clickhouse.shapes import RequestRow, UsagePage
from contracts.errors import Unavailable
from gateway.services import UsageQuery
from stores.clickhouse import ClickHouseUnavailable

REPORT_SECONDS = 20.0

T = TypeVar("T")


class ClickHouseReports:
    """`gateway.services.UsageReports` over `billing.selectors`."""

    async def buckets(self, *, tenant_id: str, query: UsageQuery) -> UsagePage:
        def ask() -> UsagePage:
            return billing_reads.usage_buckets(
                tenant_id=tenant_id,
                start_ms=query.start_ms,
                end_ms=query.end_ms,
                bucket_width=query.bucket_width,
                group_by=query.group_by,
                models=query.models,
                project_ids=query.project_ids,
                api_key_ids=query.api_key_ids,
                limit=query.limit,
                page=query.page,
            )

        return await _report(ask)

    async def request(self, *, tenant_id: str, request_id: str) -> RequestRow | None:
        return await _report(lambda: billing_reads.request_row(request_id=request_id, tenant_id=tenant_id))


async def _report(ask: Callable[[], T]) -> T:
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            return await asyncio.to_thread(ask)
    except (ClickHouseUnavailable, TimeoutError) as error:
        raise Unavailable("Usage cannot be read right now; nothing is lost.", retry_after_ms=5_000) from error
