"""The one consumer of domain events: a step of the Celery worker that keeps the audit trail.

Invariant: a message is acknowledged after its entry is written, so a crash writes it again, under the same id: once.
A malformed message is rejected and counted in the log, never redelivered for ever. `usage.recorded` is a feed, not an
act of a person: from it the keys' last use is taken, without a write for each request, and it is not kept.
"""

import logging
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery import bootsteps
from django.db import DatabaseError, DataError, close_old_connections
from kombu.messaging import Consumer

from tenants.events import AUDIT_QUEUE, keep
from tenants.services import record_last_used

PREFETCH = 20
PAUSE_SECONDS = 1.0
_USAGE = "usage.recorded"
_log = logging.getLogger(__name__)


class AuditConsumer(bootsteps.ConsumerStep):  # type: ignore[misc] # celery has no types
    """Added to the worker's consumer steps in `controlplane.celery`."""

    def get_consumers(self, channel: Any) -> list[Consumer]:
        """One consumer on the durable audit queue."""
        consumer = Consumer(  # type: ignore[no-untyped-call]
            channel, queues=[AUDIT_QUEUE], callbacks=[on_event], accept=["json"], prefetch_count=PREFETCH
        )
        return [consumer]


def on_event(body: Any, message: Any) -> None:
    """kombu's callback. No task runs around it, so the database connection is looked after here."""
    close_old_connections()
    take(body, message)


def last_uses(body: Mapping[str, Any]) -> dict[uuid.UUID, datetime]:
    """When each key of a usage feed's message was last used. Raises KeyError, TypeError, ValueError, OverflowError."""
    latest: dict[uuid.UUID, int] = {}
    for record in body["records"]:
        key_id = uuid.UUID(record["api_key_id"])
        latest[key_id] = max(latest.get(key_id, 0), int(record["billed_at_ms"]))
    return {key_id: datetime.fromtimestamp(at / 1000, tz=UTC) for key_id, at in latest.items()}


def take(body: Any, message: Any) -> None:
    """Write one event and acknowledge it, or say what else becomes of it."""
    try:
        if message.delivery_info.get("routing_key") == _USAGE:
            record_last_used(last_uses(body))
        else:
            keep(body)
    except (KeyError, TypeError, ValueError, OverflowError, DataError) as error:
        _log.error("an event that cannot be read was dropped: %s", type(error).__name__)
        message.reject()
        return
    except DatabaseError as error:
        _log.warning("an event waits for the database: %s", type(error).__name__)
        # Everything of this process waits for the database; without a pause the message would come back at once.
        time.sleep(PAUSE_SECONDS)
        message.requeue()
        return
    message.ack()
