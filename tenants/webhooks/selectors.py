"""Reads of webhooks. Invariant: every query of a tenant names it, or is made for an operator; nothing here writes."""

from collections.abc import Callable
from datetime import datetime

from django.db.models import Count, Q, QuerySet

from tenants.webhooks import config, signing
from tenants.webhooks.catalogue import EVENTS, TEST
from tenants.webhooks.models import Delivery, DeliveryState, Endpoint, EndpointSecret

STANDINGS: dict[str, Callable[[], Q]] = {
    "on": lambda: Q(enabled=True),
    "failing": lambda: Q(enabled=True, failures__gt=0),
    "off": lambda: Q(enabled=False),
}


def endpoints() -> QuerySet[Endpoint]:
    """Endpoints that were not deleted."""
    return Endpoint.objects.filter(deleted_at=None)


def with_counts(rows: QuerySet[Endpoint]) -> QuerySet[Endpoint]:
    """Endpoints with `waiting_now` and `dead_now`, for lists."""
    return rows.annotate(
        waiting_now=Count("deliveries", filter=Q(deliveries__state=DeliveryState.PENDING)),
        dead_now=Count("deliveries", filter=Q(deliveries__state=DeliveryState.DEAD)),
    )


def deliveries() -> QuerySet[Delivery]:
    """Deliveries with what a list shows of them."""
    return Delivery.objects.select_related("event", "endpoint").defer("event__body")


def wants(endpoint: Endpoint, name: str) -> bool:
    """Whether an endpoint's filter takes an event of this name."""
    return any(pattern in ("*", name) or _in_family(name, pattern) for pattern in endpoint.events)


def is_filter(pattern: str) -> bool:
    """Whether a pattern can ever match: a known name, a family of known names, or everything."""
    sent = [name for name, known in EVENTS.items() if known.sent and name != TEST]
    return pattern in ("*", TEST) or any(pattern == name or _in_family(name, pattern) for name in sent)


def secrets_of(endpoint: Endpoint, *, now: datetime) -> list[str]:
    """Texts of the live secrets, newest first. Raises stores.sealing.Unreadable."""
    keys = config.sealing_keys()
    rows = EndpointSecret.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), endpoint=endpoint)
    return [signing.unseal(bytes(row.sealed), keys=keys, endpoint_id=endpoint.id) for row in rows]


def _in_family(name: str, pattern: str) -> bool:
    return pattern.endswith(".*") and name.startswith(pattern[:-1])
