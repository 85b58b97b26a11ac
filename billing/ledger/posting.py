"""Step 9, BILL: usage records to ledger entries. Run by `manage.py settler`, beside the sweeper.

Invariants: acknowledged only after PostgreSQL has committed; a record that was posted before is a no-op; one that
differs from what was posted, or whose tenant is unknown, goes to the dead letters instead of into the books.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from billing.customers import known_tenants
from billing.ledger.entries import PostReport, UsageLine, post_usage
from billing.metering.consumer import StoreAway
from billing.metering.faults import fault_point
from billing.metering.meter import Revive, revive
from billing.metering.record import PoisonRecord
from billing.metering.streams import Entry, Poison, UsageStreams
from billing.rating.rate import cost
from contracts.clock import Clock
from contracts.jobs import UsageRecord
from contracts.money import decimal_from_nano

POST_SECONDS = 60.0

log = logging.getLogger("weir.billing")


class LedgerPosting:
    """`billing.metering.consumer.Work` that posts to the ledger."""

    def __init__(self, *, streams: UsageStreams, revive: Revive, clock: Clock) -> None:
        self._streams = streams
        self._revive = revive
        self._clock = clock
        # One thread, so one database connection, whatever the size of the loop's own pool.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self.posted = 0

    async def resume(self) -> None:
        """Nothing to finish: PostgreSQL has a batch whole or not at all."""

    async def handle(self, entries: Sequence[Entry]) -> None:
        lines: list[tuple[Entry, UsageLine]] = []
        poisons: list[Poison] = []
        for entry in entries:
            try:
                lines.append((entry, line_of(revive(self._revive, entry))))
            except PoisonRecord as error:
                poisons.append(Poison(entry=entry, reason=str(error)))
        known, report = await self._post([line for _, line in lines])
        fault_point("ledger.after_commit")
        for entry, line in lines:
            if line.tenant_id not in known:
                poisons.append(Poison(entry=entry, reason=f"unknown tenant {line.tenant_id}"))
            elif line in report.differing:
                poisons.append(Poison(entry=entry, reason="differs from what the ledger has for this request"))
        await self._streams.bury(poisons)
        buried = {(poison.entry.pool, poison.entry.entry_id) for poison in poisons}
        await self._streams.ack([entry for entry in entries if (entry.pool, entry.entry_id) not in buried])
        fault_point("ledger.after_ack")
        self.posted += report.posted

    async def close(self) -> None:
        """Give back the database connection."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(POST_SECONDS):
            await loop.run_in_executor(self._thread, connections.close_all)
        self._thread.shutdown(wait=False)

    async def _post(self, lines: Sequence[UsageLine]) -> tuple[set[uuid.UUID], PostReport]:
        loop = asyncio.get_running_loop()
        at = datetime.fromtimestamp(self._clock.now_ms() / 1_000, tz=UTC)
        try:
            async with asyncio.timeout(POST_SECONDS):
                return await loop.run_in_executor(self._thread, partial(_post_known, lines, at=at))
        except DatabaseError as error:
            raise StoreAway(f"PostgreSQL: {error}") from error


def line_of(record: UsageRecord) -> UsageLine:
    """What the ledger takes of a record. Raises PoisonRecord when the tenant's id is none of ours."""
    try:
        tenant_id = uuid.UUID(record.tenant_id)
    except ValueError as error:
        raise PoisonRecord(f"tenant {record.tenant_id} has no ledger") from error
    return UsageLine(
        request_id=uuid.UUID(record.request_id),
        revision=record.revision,
        tenant_id=tenant_id,
        currency=record.price.currency,
        amount=decimal_from_nano(cost(record.price, record.counts).total_nano),
        billed_at=datetime.fromtimestamp(record.billed_at_ms / 1_000, tz=UTC),
        prompt_tokens=record.counts.prompt,
        cached_tokens=record.counts.cached,
        completion_tokens=record.counts.completion,
    )


def _post_known(lines: Sequence[UsageLine], *, at: datetime) -> tuple[set[uuid.UUID], PostReport]:
    close_old_connections()
    try:
        known = known_tenants(line.tenant_id for line in lines)
        return known, post_usage([line for line in lines if line.tenant_id in known], at=at)
    finally:
        close_old_connections()
