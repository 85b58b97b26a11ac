"""Background requests as the edge knows them: kept in PostgreSQL from before their place in the queue to a day past
their end. The port; `controlplane.background` is what stands behind it.

Invariant: frames and final are what the pool's log and its end said; nothing is made up here but for a request that
ended without a worker and without a pool (`ended_without`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from contracts.jobs import Ticket, Timings
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import Final
from tenants.limits.holds import Idempotency


class KeptState(StrEnum):
    ACCEPTED = "accepted"  # written, and not yet told: it may still be refused
    QUEUED = "queued"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """How a background request ended. `frames` None: what it released was lost before it was kept."""

    epoch: str
    final: Final
    frames: list[bytes] | None
    writers: Mapping[str, int] = field(default_factory=dict)  # as in `fairqueue.messages.LogSlice`


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One background request as it is kept. The ticket has no body. Times in milliseconds since the Unix epoch."""

    ticket: Ticket
    state: KeptState
    body_digest: str
    ended_at_ms: int | None = None
    answer: KeptAnswer | None = None


class KeptRequests(Protocol):
    """All raise contracts.errors.Unavailable when PostgreSQL does not answer."""

    async def accept(self, ticket: Ticket, *, idempotency: Idempotency | None, wait_ms: int) -> None:
        """Before it is queued. `wait_ms`: how long it may wait for a worker. A repeat changes nothing."""

    async def mark_queued(self, ticket: Ticket) -> None:
        """Before its client is told that it is accepted."""

    async def find(self, *, tenant_id: str, request_id: str) -> Kept | None:
        """A tenant's request by its id; None for one that is not kept (not in the background, or no longer)."""

    async def find_key(self, *, tenant_id: str, key_digest: str) -> Kept | None:
        """The one that an Idempotency-Key named, as long as it is kept."""

    async def end(self, ticket: Ticket, answer: KeptAnswer) -> bool:
        """Once. False: it had ended, and that end stands."""


def ended_without(ticket: Ticket, *, outcome: Outcome, code: str, status: int, message: str) -> KeptAnswer:
    """The end of a request that no worker and no pool ended: it released nothing, and nothing is billed."""
    final = Final(
        request_id=ticket.request_id,
        outcome=outcome,
        finish_reason="",
        error_code=code,
        error_message=message,
        status=status,
        counts=TokenCounts(),
        cost_nano=0,
        currency=ticket.price.currency,
        attempt=0,
        timings=Timings(),
        verdicts=ticket.guard_prompt,
    )
    return KeptAnswer(epoch="", final=final, frames=[])
