"""Domain events of the organisation: written to the outbox with the change, relayed over kombu, kept as audit trail.

Exchange `weir.events` (topic, durable), routing key = event name, body JSON. `usage.recorded` of billing rides the
same exchange. Delivery is at least once; consumers are idempotent by `id`. Invariants: no secret is ever in a body; the
events of a tenant are sent in the order of their ids, by one relay at a time; what the exchange loses is taken from the
outbox itself a minute later.
"""

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DataError, transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

from tenants.actors import Actor
from tenants.models import AuditEntry, OutboxEvent
from tenants.pruning import delete_in_steps

# kombu has no types: its calls are marked.
EXCHANGE = Exchange("weir.events", type="topic", durable=True)  # type: ignore[no-untyped-call]
AUDIT_QUEUE = Queue("weir.audit", exchange=EXCHANGE, routing_key="#", durable=True)  # type: ignore[no-untyped-call]
WEBHOOK_QUEUE = Queue("weir.webhooks", exchange=EXCHANGE, routing_key="#", durable=True)  # type: ignore[no-untyped-call]
QUEUES = (AUDIT_QUEUE, WEBHOOK_QUEUE)
BATCH = 200
LOST_AFTER = timedelta(minutes=1)
LOST_BACK = timedelta(days=2)
SENT_KEPT_FOR = timedelta(days=30)
_RELAY_LOCK = 0x57454952  # PostgreSQL advisory lock, "WEIR"
_log = logging.getLogger(__name__)


def record(
    name: str,
    *,
    tenant_id: uuid.UUID | None,
    subject: str,
    actor: Actor,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Write an event in the caller's transaction. Raises RuntimeError outside of one."""
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError(f"{name} must be recorded in the transaction that it tells of")
    body = {
        "subject": subject,
        "actor": actor.name,
        "address": actor.address,
        "before": dict(before or {}),
        "after": dict(after or {}),
        "happened_at": timezone.now().isoformat(),
    }
    OutboxEvent.objects.create(name=name, tenant_id=tenant_id, body=body)


def open_broker() -> Connection:
    """The broker of Celery and events, with bounded waits."""
    options = dict(settings.CELERY_BROKER_TRANSPORT_OPTIONS)
    return Connection(  # type: ignore[no-untyped-call]
        settings.CELERY_BROKER_URL, connect_timeout=3, transport_options=options
    )


def relay(connection: Connection) -> int:
    """Send the oldest unsent events; returns how many, 0 while another relay is at work (two would mix the order).

    An event is marked only after the broker took it, so a crash in between sends it again under the same id.
    """
    with transaction.atomic():
        if not _alone():
            return 0
        rows = list(OutboxEvent.objects.filter(sent_at=None).order_by("id")[:BATCH])
        if not rows:
            return 0
        # Durable queues first: an event sent before a consumer's first start would find nobody and be lost.
        for queue in QUEUES:
            queue.bind(connection.default_channel).declare()  # type: ignore[no-untyped-call]
        producer = Producer(  # type: ignore[no-untyped-call]
            connection.default_channel, exchange=EXCHANGE, serializer="json"
        )
        for row in rows:
            producer.publish(  # type: ignore[no-untyped-call]
                message_of(row), routing_key=row.name, delivery_mode="persistent", retry=False
            )
        OutboxEvent.objects.filter(id__in=[row.id for row in rows]).update(sent_at=timezone.now())
    return len(rows)


def _alone() -> bool:
    """Whether this transaction is the only relay; the lock ends with it."""
    with transaction.get_connection().cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_RELAY_LOCK])
        return bool(cursor.fetchone()[0])


def message_of(row: OutboxEvent) -> dict[str, Any]:
    """Body of an event on the wire, version 1."""
    tenant_id = str(row.tenant_id) if row.tenant_id else None
    return {"v": 1, "id": str(row.id), "name": row.name, "tenant_id": tenant_id, **row.body}


def keep(message: Mapping[str, Any]) -> bool:
    """Write an event into the audit trail; False when it is there. Raises KeyError, ValueError or DataError."""
    entry_id = uuid.UUID(str(message["id"]))
    tenant_id = message.get("tenant_id")
    entry = AuditEntry(
        id=entry_id,
        name=str(message["name"])[:60],
        tenant_id=uuid.UUID(str(tenant_id)) if tenant_id else None,
        actor=str(message.get("actor") or "system")[:200],
        address=message.get("address"),
        subject=str(message.get("subject") or "")[:200],
        before=message.get("before") or {},
        after=message.get("after") or {},
        happened_at=datetime.fromisoformat(message["happened_at"]),
    )
    with transaction.atomic():
        if AuditEntry.objects.filter(id=entry_id).exists():
            return False
        AuditEntry.objects.bulk_create([entry], ignore_conflicts=True)
    return True


def keep_lost(*, now: datetime, after: timedelta = LOST_AFTER) -> int:
    """Keep events that were sent to the exchange and never came back; returns how many.

    A broker that lost its last second, or a worker killed with messages in hand, delays an entry, never loses it.
    """
    kept = AuditEntry.objects.filter(id=OuterRef("id"))
    lost = OutboxEvent.objects.filter(~Exists(kept), sent_at__lt=now - after, sent_at__gt=now - LOST_BACK)
    found = 0
    for row in lost.order_by("id")[:BATCH]:
        try:
            found += keep(message_of(row))
        except (KeyError, TypeError, ValueError, DataError) as error:
            _log.error("event %s cannot be read: %s", row.id, type(error).__name__)
    return found


def forget_sent(*, now: datetime) -> int:
    """Delete outbox rows sent long ago (their audit entries stay); returns how many."""
    return delete_in_steps(OutboxEvent.objects.filter(sent_at__lt=now - SENT_KEPT_FOR))
