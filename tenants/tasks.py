"""Background jobs of this room, run by the beat. Each is idempotent and bounded."""

import uuid
from datetime import timedelta

from celery import shared_task
from django.db.models import F, Q
from django.utils import timezone

from tenants import events, services
from tenants.models import ApiKey, Tenant
from tenants.services import repeats

RELAY_ROUNDS_MAX = 20
PUSHES_MAX = 500
# Redis may lose the last second of writes when its machine dies: what changed lately is pushed again.
AGAIN = timedelta(minutes=15)


@shared_task(name="tenants.tasks.relay_outbox")  # type: ignore[untyped-decorator] # celery has no types
def relay_outbox() -> int:
    """Send unsent events to the exchange; returns how many."""
    sent = 0
    with events.open_broker() as connection:
        for _ in range(RELAY_ROUNDS_MAX):
            batch = events.relay(connection)
            sent += batch
            if batch < events.BATCH:
                break
    return sent


@shared_task(name="tenants.tasks.keep_lost_events")  # type: ignore[untyped-decorator] # celery has no types
def keep_lost_events() -> int:
    """Bring what the exchange lost into the audit trail, and drop old outbox rows; returns how many were kept."""
    events.forget_sent(now=timezone.now())
    return events.keep_lost(now=timezone.now())


@shared_task(name="tenants.tasks.push_epochs")  # type: ignore[untyped-decorator] # celery has no types
def push_epochs() -> int:
    """Repeat pushes that failed, and those of the last minutes; returns how many tenants were brought up to date."""
    due = Q(epoch_pushed__lt=F("epoch")) | Q(epoch_changed_at__gte=timezone.now() - AGAIN)
    keys: dict[uuid.UUID, list[ApiKey]] = {}
    for key in ApiKey.objects.filter(due).only("id", "tenant_id", "revoked_at")[:PUSHES_MAX]:
        keys.setdefault(key.tenant_id, []).append(key)
    tenants = [*keys, *Tenant.objects.filter(due).exclude(id__in=list(keys)).values_list("id", flat=True)[:PUSHES_MAX]]
    done = 0
    for tenant_id in tenants:
        mine = keys.get(tenant_id, [])
        live = [key.id for key in mine if key.revoked_at is None]
        gone = [key.id for key in mine if key.revoked_at is not None]
        if live or not gone:
            done += services.push_now(tenant_id=tenant_id, key_ids=live)
        if gone:
            done += services.push_now(tenant_id=tenant_id, key_ids=gone, revoked=True)
    return done


@shared_task(name="tenants.tasks.expire_keys")  # type: ignore[untyped-decorator] # celery has no types
def expire_keys() -> int:
    """End keys whose time is over, and forget answers kept for repeats long ago; returns how many keys ended."""
    repeats.forget_old()
    return services.expire_keys()
