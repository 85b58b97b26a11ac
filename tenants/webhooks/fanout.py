"""From an event to deliveries. Called by the consumer of the exchange, and by the sweep for what the exchange lost.

Invariant: an event is fanned out once. Its row in `Event` is written in the same transaction as its deliveries, so a
message that comes twice, or a worker killed at any point, makes each delivery once; (endpoint, event) is unique too.
"""

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from tenants.events import message_of
from tenants.models import OutboxEvent, Tenant
from tenants.webhooks import selectors
from tenants.webhooks.models import Delivery, Event
from tenants.webhooks.services import body_of

SWEEP_AFTER = timedelta(minutes=1)
SWEEP_BACK = timedelta(days=2)
SWEEP_MAX = 500
_log = logging.getLogger(__name__)


def fan_out(message: Mapping[str, Any]) -> int:
    """Make the deliveries of an event; returns how many. Raises KeyError, TypeError, ValueError or DataError."""
    if message.get("tenant_id") is None:
        return 0  # of the platform, not of a tenant
    event_id, tenant_id = uuid.UUID(str(message["id"])), uuid.UUID(str(message["tenant_id"]))
    event = Event(
        id=event_id,
        tenant_id=tenant_id,
        name=str(message["name"])[:60],
        happened_at=datetime.fromisoformat(message["happened_at"]),
    )
    event.body = body_of(
        event_id=event_id,
        name=event.name,
        tenant_id=tenant_id,
        happened_at=message["happened_at"],
        subject=str(message.get("subject") or ""),
        actor=str(message.get("actor") or "system"),
        before=message.get("before"),
        after=message.get("after"),
    )
    with transaction.atomic():
        if Event.objects.filter(id=event_id).exists() or not Tenant.objects.filter(id=tenant_id).exists():
            return 0
        # Two that take the same message at once: the second waits here for the first, then finds the conflict.
        Event.objects.bulk_create([event], ignore_conflicts=True)
        return _deliver_to_all(event)


def _deliver_to_all(event: Event) -> int:
    now = timezone.now()
    wanting = [
        endpoint
        for endpoint in selectors.endpoints().filter(tenant_id=event.tenant_id, enabled=True)
        if selectors.wants(endpoint, event.name)
    ]
    rows = [
        Delivery(tenant_id=event.tenant_id, endpoint=endpoint, event=event, next_attempt_at=now) for endpoint in wanting
    ]
    Delivery.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def sweep_lost(*, now: datetime, after: timedelta = SWEEP_AFTER) -> int:
    """Fan out what was sent to the exchange and never came back; returns how many events.

    A broker that lost its last second, or a worker killed with messages in hand, holds an event up for this long, not
    for ever: the outbox in PostgreSQL is the truth, the exchange only the fast way.
    """
    taken = Event.objects.filter(id=OuterRef("id"))
    lost = (
        OutboxEvent.objects.filter(sent_at__lt=now - after, sent_at__gt=now - SWEEP_BACK, tenant_id__isnull=False)
        .filter(~Exists(taken))
        .order_by("id")[:SWEEP_MAX]
    )
    found = 0
    for row in lost:
        try:
            fan_out(message_of(row))
        except (KeyError, TypeError, ValueError) as error:
            _log.error("event %s cannot be read: %s", row.id, type(error).__name__)
        found += 1
    return found
