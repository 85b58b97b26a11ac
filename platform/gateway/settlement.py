"""Step 8 for what a crash left: ended requests are settled, dead holds are voided, lapsed leases are taken back.

Run by `manage.py settler`, one or several at once: every step is idempotent. Invariants: a hold is voided only after
its pool has said, for ever, that it does not know the request; every loop has a bound; one tenant's or pool's failure
does not keep the others from being swept.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from redis.exceptions import RedisError

from billing.rating.rate import cost
from contracts.errors import Unavailable
from contracts.jobs import UsageRecord
from contracts.outcomes import Outcome
from fairqueue.messages import Final, final_of
from fairqueue.queue import FairQueue
from stores.stopping import stopped_within
from tenants.limits.buckets import Limits
from tenants.limits.holds import BeingRebuilt, DueHold, HoldHint, HoldState

log = logging.getLogger("weir.settler")

# What a worker ends a request with besides a broken engine, and would have told its client: status and text.
_OF_CODE = {
    "invalid_value": (400, "The engine does not take this request as it is."),
    "context_length_exceeded": (400, "The prompt and the output asked for do not fit into the model's context."),
    "service_unavailable": (503, "What the request needs could not be read."),
}
SWEEP_SECONDS = 30.0
BATCH = 256


def told(record: UsageRecord, *, cost_nano: int) -> Final:
    """The final frame of a request whose worker died before it could send it; a refusal stays the client's to mend."""
    final = final_of(record, cost_nano=cost_nano)
    known = _OF_CODE.get(record.error_code) if final.outcome is Outcome.FAILED else None
    if known is None:
        return final
    status, message = known
    if record.error_code == "invalid_value" and record.error_param:
        message = f"The engine does not take this value of `{record.error_param}`."
    return replace(final, status=status, error_message=message)


@dataclass(slots=True)
class SweepReport:
    """What the sweeps of this process did; `failures` are steps that a store's error cut short."""

    settled: int = 0
    voided: int = 0
    reaped: int = 0
    failures: int = 0


@dataclass(kw_only=True)
class Sweeper:
    """`pools` names the pools to sweep and `queue_of` opens one; both are asked at each sweep."""

    limits: Limits
    queue_of: Callable[[str], FairQueue]
    pools: Callable[[], Awaitable[list[str]]]
    older_than_ms: int = 2_000  # workers settle at once; this is for what they did not
    margin_ms: int = 5_000  # past a hold's enqueue deadline
    report: SweepReport = field(default_factory=SweepReport)

    async def run(self, *, stopping: asyncio.Event, every_seconds: float = 1.0) -> None:
        """Sweeps until `stopping` is set."""
        while not stopping.is_set():
            await self.sweep()
            await stopped_within(stopping, seconds=every_seconds)

    async def sweep(self) -> None:
        """One pass over all pools and tenants, added to `report`."""
        async with self._counted("pools"):
            for pool in await self.pools():
                await self._sweep_pool(self.queue_of(pool))
        async with self._counted("tenants"):
            async for tenant_id in self.limits.tenants():
                await self._sweep_tenant(tenant_id)

    async def _sweep_pool(self, queue: FairQueue) -> None:
        async with self._counted("reap"):
            reaped = await queue.reap(limit=BATCH)
            self.report.reaped += reaped.requeued + reaped.ended + reaped.expired + reaped.dead_lettered
        async with self._counted("settle"):
            for record in await queue.unsettled(older_than_ms=self.older_than_ms, limit=BATCH):
                with suppress(BeingRebuilt):  # of one tenant, and not for long: the others' are not kept waiting
                    await self.settle(queue, record)

    async def settle(self, queue: FairQueue, record: UsageRecord) -> None:
        """Settles one ended request with its actual cost, then lets its final frame out."""
        settled = await self.limits.settle(
            tenant_id=record.tenant_id,
            request_id=record.request_id,
            counts=record.counts,
            cost_nano=cost(record.price, record.counts).total_nano,
            outcome=record.outcome,
            hint=HoldHint.of(record),
        )
        await queue.ack(request_id=record.request_id, final=told(record, cost_nano=settled.cost_nano))
        self.report.settled += 1

    async def _sweep_tenant(self, tenant_id: str) -> None:
        async with self._counted("holds"):
            for due in await self.limits.due(tenant_id=tenant_id, margin_ms=self.margin_ms, limit=BATCH):
                await self._void(tenant_id, due)

    async def _void(self, tenant_id: str, due: DueHold) -> None:
        """The look comes first and leaves a tombstone, so that a late enqueue cannot run on a voided hold."""
        if due.state is not HoldState.HELD or not due.pool:
            return
        if await self.queue_of(due.pool).look(request_id=due.request_id):
            return
        if await self.limits.void(tenant_id=tenant_id, request_id=due.request_id, reason="never_enqueued"):
            self.report.voided += 1

    @asynccontextmanager
    async def _counted(self, step: str) -> AsyncIterator[None]:
        """Bounds one step of a sweep; a store's failure is counted and ends this step only."""
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                yield
        except (Unavailable, RedisError, OSError, TimeoutError) as error:
            self.report.failures += 1
            log.warning("sweep: %s failed (%s); it comes again", step, type(error).__name__)
