"""After a lost Redis: what ended before the loss and was not metered yet, from the workers' attempt logs.

Called by `manage.py rebuild_queue` before anything runs again. A worker writes each end to its own disk before it tells
the queue (`workers.attempts`). Of a line whose request its pool knows, or ClickHouse has, nothing is made: an attempt
log never bills by itself. Any other is settled in the limits and put on the usage stream again, as it was, at the time
of its end. Invariants: each step is idempotent, so a run that was cut short is run again; a request that was settled
otherwise is left to that settlement.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from billing.clickhouse.shapes import RequestRow
from billing.rating.rate import cost
from contracts.jobs import UsageRecord
from fairqueue.queue import FairQueue
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldHint


class UnreadableLog(ValueError):
    """A line that is whole and is no usage record; the text names file and line."""


def read_lines(folders: Iterable[Path], *, since_ms: int) -> dict[str, UsageRecord]:
    """The last end of each request in the attempt logs of some folders, from a time on (Unix milliseconds).

    A line that a crash cut is left out. Raises UnreadableLog, OSError.
    """
    found: dict[str, UsageRecord] = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.jsonl*")):
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    record = msgspec.json.decode(line, type=UsageRecord)
                except msgspec.MsgspecError as error:
                    raise UnreadableLog(f"{path.name}, line {number}: {error}") from error
                known = found.get(record.request_id)
                if record.billed_at_ms >= since_ms and (known is None or known.billed_at_ms <= record.billed_at_ms):
                    found[record.request_id] = record
    return found


@dataclass(kw_only=True)
class Restating:
    """`billed` reads a metered request. `restated` are those that no book had, by id, also of runs before this one."""

    queue_of: Callable[[str], FairQueue]
    limits: Limits
    billed: Callable[[str], Awaitable[RequestRow | None]]
    restated: dict[str, UsageRecord] = field(default_factory=dict)
    fresh: int = 0  # put on the stream by this run
    left: int = 0  # settled otherwise

    async def run(self, records: Iterable[UsageRecord]) -> AsyncIterator[None]:
        """One after the other. Raises Unavailable, RedisError, ClickHouseError, TimeoutError: run it again."""
        for record in records:
            await self._look(record)
            yield

    async def _look(self, record: UsageRecord) -> None:
        queue = self.queue_of(record.pool)
        if await queue.status(request_id=record.request_id) is not None:
            return
        if await self.billed(record.request_id) is not None:
            return
        price = cost(record.price, record.counts).total_nano
        settled = await self.limits.settle(
            tenant_id=record.tenant_id,
            request_id=record.request_id,
            counts=record.counts,
            cost_nano=price,
            outcome=record.outcome,
            hint=HoldHint.of(record),
        )
        if settled.cost_nano != price:
            self.left += 1
            return
        self.fresh += await queue.restate(record)
        self.restated[record.request_id] = record


def row_of(record: UsageRecord) -> RequestRow:
    """A restated request as it will be metered, without its times."""
    counts = record.counts
    return RequestRow(
        request_id=record.request_id,
        revision=record.revision,
        tenant_id=record.tenant_id,
        project_id=record.project_id,
        api_key_id=record.api_key_id,
        model=record.model,
        pool=record.pool,
        endpoint=record.endpoint,
        service_class=record.service_class,
        stream=record.stream,
        admitted_at_ms=record.admitted_at_ms,
        billed_at_ms=record.billed_at_ms,
        prompt_tokens=counts.prompt,
        cached_tokens=counts.cached,
        completion_tokens=counts.completion,
        reasoning_tokens=counts.reasoning,
        delivered_tokens=record.delivered_tokens,
        ttft_ms=record.timings.ttft_us / 1000,
        itl_ms=0.0,
        total_ms=record.timings.total_us / 1000,
        outcome=record.outcome,
        finish_reason=record.finish_reason,
        error_code=record.error_code,
        attempt=record.attempt,
        worker_id=record.worker_id,
        price_card_id=record.price.card_id,
        currency=record.price.currency,
        cost_nano=cost(record.price, counts).total_nano,
        log_key=record.log_key,
        budget_cut=record.budget_cut,
    )
