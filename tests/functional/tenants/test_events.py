"""From the outbox over the exchange to the audit trail: real PostgreSQL, real broker."""

from datetime import UTC, datetime
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from pytest_django import Settings
from redis import Redis

from tenants import events, tasks
from tenants.actors import SYSTEM
from tenants.consumer import AuditConsumer, take
from tenants.models import AuditEntry, OutboxEvent, new_id
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db


def receive() -> list[dict[str, Any]]:
    """Everything that waits in the audit queue."""
    found = []
    with events.open_broker() as connection:
        queue = events.AUDIT_QUEUE.bind(connection.default_channel)
        while (message := queue.get(accept=["json"])) is not None:
            found.append(message.decode())
            message.ack()
    return found


@pytest.fixture(autouse=True)
def empty_broker(wired: Redis) -> None:
    """`wired` flushed every database of the server, the broker's too."""


class TestRelay:
    @pytest.mark.django_db(transaction=True)
    def test_brings_every_event_to_the_audit_trail_once(self, acme: Customer) -> None:
        written = OutboxEvent.objects.count()
        assert tasks.relay_outbox() == written
        assert tasks.relay_outbox() == 0
        with events.open_broker() as connection:
            [consumer] = AuditConsumer.get_consumers(None, connection.default_channel)
            with consumer:
                for _ in range(written):
                    connection.drain_events(timeout=10)
        assert AuditEntry.objects.count() == written
        entry = AuditEntry.objects.get(name="key.created")
        assert (entry.tenant_id, entry.subject, entry.actor) == (
            acme.tenant.id,
            f"apikey:{acme.key.id}",
            "system",
        )
        assert entry.after["last4"] == acme.key.last4
        assert receive() == []

    def test_an_event_delivered_twice_is_written_once(self, acme: Customer) -> None:
        row = OutboxEvent.objects.get(name="tenant.created")
        assert events.keep(events.message_of(row))
        assert not events.keep(events.message_of(row))
        assert AuditEntry.objects.filter(id=row.id).count() == 1

    def test_nothing_is_marked_as_sent_while_the_broker_is_away(self, acme: Customer, settings: Settings) -> None:
        working = settings.CELERY_BROKER_URL
        settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/1"
        with pytest.raises((OperationalError, ConnectionError, OSError)):
            tasks.relay_outbox()
        assert not OutboxEvent.objects.exclude(sent_at=None).exists()
        settings.CELERY_BROKER_URL = working
        assert tasks.relay_outbox() == OutboxEvent.objects.count()

    def test_an_event_waits_in_the_queue_before_the_first_consumer_starts(self, acme: Customer) -> None:
        tasks.relay_outbox()
        names = [body["name"] for body in receive()]
        assert names[-3:] == ["tenant.created", "project.created", "key.created"]


class FakeMessage:
    """kombu's message as the consumer sees it."""

    def __init__(self, routing_key: str) -> None:
        self.delivery_info = {"routing_key": routing_key}
        self.fate = ""

    def ack(self) -> None:
        self.fate = "ack"

    def reject(self) -> None:
        self.fate = "reject"

    def requeue(self) -> None:
        self.fate = "requeue"


class TestConsumer:
    def test_drops_what_cannot_be_read_and_goes_on(self, db: None) -> None:
        whole = {"id": str(new_id()), "name": "tenant.created", "happened_at": "2027-01-15T12:00:00+00:00"}
        for body in ({}, {"id": "x", "name": "y"}, "text", None, {"id": 3}, {**whole, "address": "nowhere"}):
            message = FakeMessage("tenant.created")
            take(body, message)
            assert message.fate == "reject"
        assert AuditEntry.objects.count() == 0

    def test_takes_the_keys_last_use_from_usage_and_keeps_no_entry_of_it(self, acme: Customer) -> None:
        kept = AuditEntry.objects.count()
        at = 1_800_000_000_000
        records = [{"api_key_id": str(acme.key.id), "billed_at_ms": at + step} for step in (0, 5_000, 1_000)]
        message = FakeMessage("usage.recorded")
        take({"records": [*records, {"api_key_id": str(new_id()), "billed_at_ms": at}]}, message)
        assert message.fate == "ack"
        acme.key.refresh_from_db()
        assert acme.key.last_used_at == datetime.fromtimestamp(at / 1000 + 5, tz=UTC)
        assert AuditEntry.objects.count() == kept

    def test_drops_usage_that_cannot_be_read(self, db: None) -> None:
        for body in ({}, {"records": [{}]}, {"records": [{"api_key_id": "x", "billed_at_ms": 1}]}, {"records": [3]}, 7):
            message = FakeMessage("usage.recorded")
            take(body, message)
            assert message.fate == "reject", body


class TestRecord:
    @pytest.mark.django_db(transaction=True)
    def test_is_refused_outside_of_a_transaction(self) -> None:
        with pytest.raises(RuntimeError, match="in the transaction"):
            events.record("tenant.created", tenant_id=None, subject="tenant:1", actor=SYSTEM)
