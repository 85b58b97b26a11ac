"""Domain events of the organisation: written to the outbox with the change, relayed over kombu, kept as audit trail.

Exchange `weir.events` (topic, durable), routing key = event name, body JSON. `usage.recorded` of billing rides the
same exchange. Delivery is at least once; consumers are idempotent by `id`. Invariant: no secret is ever in a body.
"""

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

from tenants.actors import Actor
from tenants.models import AuditEntry, OutboxEvent

# kombu has no types: its calls are marked.
EXCHANGE = Exchange("weir.events", type="topic", durable=True)  # type: ignore[no-untyped-call]
AUDIT_QUEUE = Queue("weir.audit", exchange=EXCHANGE, routing_key="#", durable=True)  # type: ignore[no-untyped-call]
BATCH = 200
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
    """Send the oldest unsent events; returns how many. Two relays share the work: each row is locked by one.

    An event is marked only after the broker took it, so a crash in between sends it again under the same id.
    """
    with transaction.atomic():
        rows = list(OutboxEvent.objects.select_for_update(skip_locked=True).filter(sent_at=None).order_by("id")[:BATCH])
        if not rows:
            return 0
        # Durable queue first: an event sent before the consumer's first start would find nobody and be lost.
        AUDIT_QUEUE.bind(connection.default_channel).declare()  # type: ignore[no-untyped-call]
        producer = Producer(  # type: ignore[no-untyped-call]
            connection.default_channel, exchange=EXCHANGE, serializer="json"
        )
        for row in rows:
            producer.publish(  # type: ignore[no-untyped-call]
                message_of(row), routing_key=row.name, delivery_mode="persistent", retry=False
            )
        OutboxEvent.objects.filter(id__in=[row.id for row in rows]).update(sent_at=timezone.now())
    return len(rows)


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
