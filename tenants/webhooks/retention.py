"""How long deliveries and events are kept. Called by the beat once an hour.

Invariant: an event outlives its deliveries, and the time in which the exchange or the sweep can bring it again, so
that what was forgotten is never sent anew. Each pass deletes a bounded number of rows.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from tenants.webhooks.models import Delivery, DeliveryState, EndpointSecret, Event

DELIVERED_FOR = timedelta(days=14)
DEAD_FOR = timedelta(days=60)
EVENTS_FOR = timedelta(days=60)
ROWS_MAX = 5_000
ROUNDS_MAX = 20


def forget_old(*, now: datetime) -> int:
    """Delete old deliveries, events without any, and secrets that have ended; returns how many rows."""
    delivered = Delivery.objects.filter(state=DeliveryState.DELIVERED, finished_at__lt=now - DELIVERED_FOR)
    dead = Delivery.objects.filter(state=DeliveryState.DEAD, finished_at__lt=now - DEAD_FOR)
    used = Delivery.objects.filter(event=OuterRef("id"))
    events = Event.objects.filter(~Exists(used), taken_at__lt=now - EVENTS_FOR)
    secrets = EndpointSecret.objects.filter(expires_at__lt=now)
    return sum(_delete_old(rows) for rows in (delivered, dead, events, secrets))


def _delete_old(rows: QuerySet[Any]) -> int:
    """In short transactions, so that deliveries under way wait for none."""
    total = 0
    for _ in range(ROUNDS_MAX):
        deleted = _delete_some(rows)
        total += deleted
        if deleted < ROWS_MAX:
            break
    return total


def _delete_some(rows: QuerySet[Any]) -> int:
    ids = list(rows.order_by("id").values_list("id", flat=True)[:ROWS_MAX])
    deleted: int
    deleted, _ = rows.model._default_manager.filter(id__in=ids).delete()  # noqa: SLF001 - Django's own API
    return deleted
