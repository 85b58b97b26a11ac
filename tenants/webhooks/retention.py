"""How long deliveries and events are kept. Called by the beat once an hour.

Invariant: an event outlives its deliveries, and the time in which the exchange or the sweep can bring it again, so
that what was forgotten is never sent anew. Each pass deletes a bounded number of rows.
"""

from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef

from tenants.pruning import delete_in_steps
from tenants.webhooks.models import Delivery, DeliveryState, EndpointSecret, Event

# Attempts go with their delivery.
DELIVERED_FOR = timedelta(days=14)
DEAD_FOR = timedelta(days=60)
EVENTS_FOR = timedelta(days=60)


def forget_old(*, now: datetime) -> int:
    """Delete old deliveries, events without any, and secrets that have ended; returns how many rows."""
    delivered = Delivery.objects.filter(state=DeliveryState.DELIVERED, finished_at__lt=now - DELIVERED_FOR)
    dead = Delivery.objects.filter(state=DeliveryState.DEAD, finished_at__lt=now - DEAD_FOR)
    used = Delivery.objects.filter(event=OuterRef("id"))
    events = Event.objects.filter(~Exists(used), taken_at__lt=now - EVENTS_FOR)
    secrets = EndpointSecret.objects.filter(expires_at__lt=now)
    return sum(delete_in_steps(rows) for rows in (delivered, dead, events, secrets))
