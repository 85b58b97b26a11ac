"""The consumer of domain events for webhooks: a step of the Celery worker, beside the audit trail's.

Invariant: a message is acknowledged after its deliveries are written, so a crash makes them again, under the same
event id: once. A malformed message is rejected and said in the log, never redelivered for ever.
"""

import logging
import time
from typing import Any

from celery import bootsteps
from django.db import DatabaseError, DataError, close_old_connections
from kombu.messaging import Consumer

from tenants.events import WEBHOOK_QUEUE
from tenants.webhooks.catalogue import NOT_SENT
from tenants.webhooks.fanout import fan_out

PREFETCH = 20
PAUSE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class WebhookConsumer(bootsteps.ConsumerStep):  # type: ignore[misc] # celery has no types
    """Added to the worker's consumer steps in `controlplane.celery`."""

    def get_consumers(self, channel: Any) -> list[Consumer]:
        """One consumer on the durable webhook queue."""
        consumer = Consumer(  # type: ignore[no-untyped-call]
            channel, queues=[WEBHOOK_QUEUE], callbacks=[on_event], accept=["json"], prefetch_count=PREFETCH
        )
        return [consumer]


def on_event(body: Any, message: Any) -> None:
    """kombu's callback. No task runs around it, so the database connection is looked after here."""
    close_old_connections()
    take(body, message)


def take(body: Any, message: Any) -> None:
    """Fan one event out and acknowledge it, or say what else becomes of it."""
    if message.delivery_info.get("routing_key") in NOT_SENT:
        message.ack()
        return
    try:
        fan_out(body)
    except (AttributeError, KeyError, TypeError, ValueError, DataError) as error:
        _log.error("an event that cannot be read was dropped: %s", type(error).__name__)
        message.reject()
        return
    except DatabaseError as error:
        _log.warning("an event waits for the database: %s", type(error).__name__)
        time.sleep(PAUSE_SECONDS)  # without a pause the message would come back at once
        message.requeue()
        return
    message.ack()
