"""After a lost Redis: background requests that had not ended go back into their queues, from PostgreSQL.

Called by `manage.py rebuild_queue`. For each row, oldest first: one that its pool knows is left alone; one whose usage
is on record had ended, and its answer is lost; one whose key, tenant or time is gone ends as that; any other is held
anew in today's limits of its key and queued under its own id. Invariants: each step is idempotent, so a run that was
cut short is run again; the same request id is never billed twice (the ledger and ClickHouse count it once); a request
that its limits refuse now keeps waiting; nothing runs without a hold. Bounds of the queue do not refuse what was
accepted before: `OPEN_BOUNDS`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from billing.clickhouse.shapes import RequestRow
from contracts.clock import Clock
from contracts.errors import AuthFailed, BudgetSpent, DeadlinePassed, LimitExceeded, PermissionDenied, QueueFull
from contracts.jobs import Ticket
from contracts.outcomes import Outcome
from contracts.tenancy import TenantContext
from contracts.tokens import TokenCounts
from controlplane.background.keeping import KeptInDatabase, OpenRequest
from fairqueue.policy import QueueBounds
from fairqueue.queue import FairQueue
from gateway.drafts import hold_of_ticket
from gateway.kept import KeptAnswer, KeptState, ended_without
from gateway.services import EpochSource, Policies
from tenants.limits.buckets import Limits
from tenants.limits.holds import EpochUnknown, HoldExisting, HoldGranted, HoldRequest, HoldState, Idempotency

PAGE = 200
_NO_BOUND = 2**52  # a whole number for Lua
OPEN_BOUNDS = QueueBounds(
    queued_total_max=_NO_BOUND,
    queued_bytes_max=_NO_BOUND,
    queued_tokens_max=_NO_BOUND,
    tenant_bytes_max=_NO_BOUND,
    tenant_tokens_max=_NO_BOUND,
)
# As far ahead as tombstones allow: a run that died between hold and queue is run again within it.
ENQUEUE_MS = OPEN_BOUNDS.tombstone_ms * 3 // 4


class Fate(StrEnum):
    """What became of one row; the sums are what the command prints."""

    THERE = "there"  # its pool knows it
    BACK = "back"
    ENDED = "ended"  # it had ended, or could not go on; its row says how
    WAITS = "waits"  # its limits refuse it now
    REFUSED = "refused"  # its hold was given up, or its queue has its tombstone: for an hour, six at most
    UNTOLD = "untold"  # its client was never told of it


@dataclass(slots=True)
class Rebuilt:
    """Counts by fate. `retry_after_ms`: when the first of those that wait may fit their limits."""

    fates: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    retry_after_ms: int | None = None

    def add(self, fate: Fate) -> None:
        self.fates[fate] += 1

    @property
    def complete(self) -> bool:
        return not self.fates[Fate.WAITS] and not self.fates[Fate.REFUSED]


@dataclass(kw_only=True)
class Rebuild:
    """`queue_of` opens a pool's queue with `OPEN_BOUNDS`. `context_of` and `billed` read what is known of a key and of
    a metered request; PermissionDenied: its tenant is suspended."""

    kept: KeptInDatabase
    queue_of: Callable[[str], FairQueue]
    limits: Limits
    epochs: EpochSource
    policies: Policies
    context_of: Callable[[str], Awaitable[TenantContext | PermissionDenied | None]]
    billed: Callable[[str], Awaitable[RequestRow | None]]
    clock: Clock
    report: Rebuilt = field(default_factory=Rebuilt)

    async def run(self) -> AsyncIterator[Fate]:
        """One row after the other. Raises Unavailable, RedisError, TimeoutError: run it again."""
        after = ""
        while True:
            rows = await self.kept.open_requests(after=after, limit=PAGE)
            for row in rows:
                fate = await self._bring_back(row)
                self.report.add(fate)
                yield fate
            if len(rows) < PAGE:
                return
            after = rows[-1].ticket.request_id

    async def _bring_back(self, row: OpenRequest) -> Fate:
        if await self.queue_of(row.ticket.pool).status(request_id=row.ticket.request_id) is not None:
            return Fate.THERE
        if row.state is KeptState.ACCEPTED:
            return Fate.UNTOLD
        ended = await self._ended(row)
        if ended is not None:
            await self.kept.end(row.ticket, ended)
            return Fate.ENDED
        context = await self.context_of(str(row.api_key_id))
        if context is None or isinstance(context, PermissionDenied):
            return await self._end_revoked(row.ticket)
        ticket = await self.kept.prompt(row.ticket)
        if ticket is None:
            return Fate.ENDED
        if ticket.policy is not None:  # workers read guardrails from Redis: what it lost is put there again
            await self.policies.get(ticket.policy)
        return await self._queue(ticket, row, context)

    async def _ended(self, row: OpenRequest) -> KeptAnswer | None:
        """How it ended before the loss, or by now; None when it did not."""
        metered = await self.billed(row.ticket.request_id)
        if metered is not None:
            return _lost_answer(row.ticket, metered)
        if self.clock.now_ms() < row.wait_until_ms:
            return None
        return ended_without(
            row.ticket,
            outcome=Outcome.EXPIRED,
            code="deadline_exceeded",
            status=504,
            message="The request's deadline passed while it waited in the queue.",
        )

    async def _end_revoked(self, ticket: Ticket) -> Fate:
        answer = ended_without(
            ticket,
            outcome=Outcome.CANCELLED,
            code="key_revoked",
            status=401,
            message="The API key was revoked, or its organization suspended, before the request ran.",
        )
        await self.kept.end(ticket, answer)
        return Fate.ENDED

    async def _queue(self, ticket: Ticket, row: OpenRequest, context: TenantContext) -> Fate:
        deadline_ms = self.clock.now_ms() + ENQUEUE_MS
        try:
            given = Idempotency(key_digest=row.key_digest, body_digest=row.body_digest) if row.key_digest else None
            request = hold_of_ticket(ticket, context, enqueue_deadline_ms=deadline_ms, idempotency=given)
            hold = await self._hold(request)
        except (LimitExceeded, BudgetSpent) as error:
            waits = [ms for ms in (error.retry_after_ms, self.report.retry_after_ms) if ms is not None]
            self.report.retry_after_ms = min(waits, default=None)
            return Fate.WAITS
        except (AuthFailed, PermissionDenied):
            return await self._end_revoked(ticket)
        if isinstance(hold, HoldExisting) and hold.state in (HoldState.VOIDED, HoldState.SETTLED):
            return Fate.REFUSED
        try:
            await self.queue_of(ticket.pool).enqueue(
                ticket,
                mailbox="",
                enqueue_deadline_ms=deadline_ms,
                weight_milli=context.weight_milli,
                queued_max=_NO_BOUND,
                expires_at_ms=row.wait_until_ms,
            )
        except (DeadlinePassed, QueueFull):
            await self.limits.void(tenant_id=ticket.tenant_id, request_id=ticket.request_id, reason="not_brought_back")
            return Fate.REFUSED
        return Fate.BACK

    async def _hold(self, request: HoldRequest) -> HoldGranted | HoldExisting:
        """Epochs that Redis lost are read from PostgreSQL once."""
        try:
            return await self.limits.hold(request)
        except EpochUnknown:
            epochs = await self.epochs.load(tenant_id=request.tenant_id)
            await self.limits.set_epochs(tenant_id=request.tenant_id, keys=epochs.keys, tenant_epoch=epochs.tenant)
            return await self.limits.hold(request)


def _lost_answer(ticket: Ticket, metered: RequestRow) -> KeptAnswer:
    """It ended and is billed, and what it released was lost with the log: it is never run again."""
    counts = TokenCounts(
        prompt=metered.prompt_tokens,
        cached=metered.cached_tokens,
        completion=metered.completion_tokens,
        reasoning=metered.reasoning_tokens,
    )
    outcome = Outcome(metered.outcome)
    lost = ended_without(ticket, outcome=outcome, code=metered.error_code, status=502, message="")
    final = replace(
        lost.final,
        finish_reason=metered.finish_reason,
        counts=counts,
        cost_nano=metered.cost_nano,
        currency=metered.currency,
        attempt=metered.attempt,
        budget_cut=metered.budget_cut,
    )
    return KeptAnswer(epoch="", final=final, frames=None)
