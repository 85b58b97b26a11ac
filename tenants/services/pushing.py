"""Raises epochs with a change and brings them to Redis when it commits. Used by the other services.

Invariant: the epoch rises in the transaction of the change; a push that does not arrive is repeated by the beat.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone as clock

from tenants import epochs, selectors
from tenants.models import ApiKey, Tenant, TenantState


def push_now(*, tenant_id: uuid.UUID, key_ids: Sequence[uuid.UUID] = (), revoked: bool = False) -> bool:
    """Bring the epochs of a tenant (and of the keys named) to Redis. False: not reached, the beat repeats it."""
    keys, tenant_epoch = selectors.epochs(str(tenant_id), key_ids=key_ids)
    sent = epochs.push(
        tenant_id=str(tenant_id),
        tenant_epoch=tenant_epoch,
        epochs=keys,
        revoked=[str(key_id) for key_id in key_ids] if revoked else (),
    )
    if sent:
        Tenant.objects.filter(id=tenant_id, epoch=abs(tenant_epoch)).update(epoch_pushed=abs(tenant_epoch))
        for key_id, epoch in keys.items():
            ApiKey.objects.filter(id=key_id, epoch=abs(epoch)).update(epoch_pushed=abs(epoch))
    return sent


def push_on_commit(tenant_id: uuid.UUID, key_ids: Sequence[uuid.UUID] = (), *, revoked: bool = False) -> None:
    """`push_now` once the caller's transaction stands."""
    transaction.on_commit(lambda: push_now(tenant_id=tenant_id, key_ids=key_ids, revoked=revoked), robust=True)


def raise_tenant_epoch(tenant: Tenant) -> None:
    """No cached context of the tenant's keys outlives what the caller changes."""
    Tenant.objects.filter(id=tenant.id).update(epoch=F("epoch") + 1, epoch_changed_at=clock.now())
    tenant.refresh_from_db(fields=["epoch", "epoch_changed_at"])
    push_on_commit(tenant.id)


def raise_epochs_under_policy(policy_id: uuid.UUID) -> None:
    """What a policy says now holds for its tenants from their next request on."""
    for tenant in Tenant.objects.filter(policy_id=policy_id).exclude(state=TenantState.CLOSED).order_by("id"):
        raise_tenant_epoch(tenant)


def raise_key_epoch(key: ApiKey, *, ends: bool = False, **changes: Any) -> None:
    """Change columns of a key together with its epoch. `ends`: its running streams are cut."""
    now = clock.now()
    ApiKey.objects.filter(id=key.id).update(epoch=F("epoch") + 1, epoch_changed_at=now, updated_at=now, **changes)
    key.refresh_from_db()
    push_on_commit(key.tenant_id, [key.id], revoked=ends)
