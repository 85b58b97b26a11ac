"""Background requests as rows: written when accepted, told of when queued, ended once, forgotten a day later.

Called by `controlplane.background` (in threads). Invariants: a row ends once, and its prompt is gone with that; what a
tenant's request writes passes row-level security. Bytes are sealed by the caller; nothing here reads them.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction

from tenants.models import BackgroundRequest, BackgroundState
from tenants.pruning import delete_in_steps
from tenants.row_scope import as_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBackground:
    """What is written of a request before it is queued. Digests are empty without an Idempotency-Key."""

    request_id: UUID
    tenant_id: UUID
    api_key_id: UUID
    pool: str
    head: bytes
    body: bytes
    key_digest: str
    body_digest: str
    wait_until: datetime


def accept_background(new: NewBackground) -> None:
    """Write the row; a repeat changes nothing."""
    row = BackgroundRequest(
        id=new.request_id,
        tenant_id=new.tenant_id,
        api_key_id=new.api_key_id,
        pool=new.pool,
        head=new.head,
        body=new.body,
        key_digest=new.key_digest,
        body_digest=new.body_digest,
        wait_until=new.wait_until,
    )
    with transaction.atomic(), as_tenant(new.tenant_id):
        BackgroundRequest.objects.bulk_create([row], ignore_conflicts=True)


def mark_background_queued(*, tenant_id: UUID, request_id: UUID) -> None:
    """From here on it is brought back, whatever Redis loses. A repeat, or one that has ended, changes nothing."""
    with transaction.atomic(), as_tenant(tenant_id):
        rows = BackgroundRequest.objects.filter(id=request_id, state=BackgroundState.ACCEPTED)
        rows.update(state=BackgroundState.QUEUED)


def end_background(*, tenant_id: UUID, request_id: UUID, answer: bytes, at: datetime) -> bool:
    """Keep how it ended and drop its prompt. False: it had ended, and that end stands."""
    with transaction.atomic(), as_tenant(tenant_id):
        rows = BackgroundRequest.objects.filter(id=request_id).exclude(state=BackgroundState.ENDED)
        return bool(rows.update(state=BackgroundState.ENDED, answer=answer, body=None, ended_at=at))


def drop_unqueued_background(*, request_id: UUID, before: datetime) -> bool:
    """Forget one that was refused, or whose gateway died before it was queued: nobody was told of it."""
    rows = BackgroundRequest.objects.filter(id=request_id, state=BackgroundState.ACCEPTED, accepted_at__lt=before)
    return rows.delete()[0] > 0


def forget_background(*, ended_before: datetime) -> int:
    """Delete what ended before then, answers and all; returns how many. Run by the beat."""
    return delete_in_steps(BackgroundRequest.objects.filter(state=BackgroundState.ENDED, ended_at__lt=ended_before))
