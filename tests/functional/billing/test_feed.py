"""Recorded usage over a real broker."""

import socket
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from billing.metering.feed import RECORDS_PER_EVENT, UsageFeed, events
from contracts.clock import FakeClock
from contracts.jobs import UsageRecord

BATCH = "00000000-0000-4000-8000-000000000001"
AT_MS = 1_800_000_000_000


@pytest.fixture
def records(fields_of: Any, ticket_of: Any) -> list[UsageRecord]:
    from fairqueue.messages import usage_from_stream

    fields = fields_of(ticket_of(1, pool="pool", tenant_id="acme"))
    plain = {key.encode(): value if isinstance(value, bytes) else str(value).encode() for key, value in fields.items()}
    return [usage_from_stream(plain)] * (RECORDS_PER_EVENT + 1)


class TestUsageFeed:
    async def test_tells_a_listener_of_a_topic_exchange(
        self, redis: object, valkey_url: str, records: list[UsageRecord]
    ) -> None:
        broker = valkey_url.rsplit("/", 1)[0] + "/1"
        received: list[dict[str, Any]] = []
        exchange = Exchange("weir.events", type="topic", durable=True)
        queue = Queue("test.usage", exchange, routing_key="usage.#")
        feed = UsageFeed(broker_url=broker, clock=FakeClock())
        with Connection(broker) as connection, connection.Consumer(queue, accept=["json"]) as consumer:
            consumer.register_callback(lambda body, message: (received.append(body), message.ack()))
            await feed.publish(batch_id=BATCH, at_ms=AT_MS, records=records)
            while len(received) < 2:
                connection.drain_events(timeout=20)
        feed.close()
        assert [len(body["records"]) for body in received] == [RECORDS_PER_EVENT, 1]
        assert received[0]["name"] == "usage.recorded"
        assert received[0]["happened_at"] == "2027-01-15T08:00:00+00:00"
        assert received[0]["records"][0]["cost"] == "0.0000315"
        assert feed.published == RECORDS_PER_EVENT + 1

    async def test_does_not_hold_up_the_meter_when_the_broker_is_away(self, records: list[UsageRecord]) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound and not listening: refused at once
            clock = FakeClock()
            feed = UsageFeed(broker_url=f"redis://127.0.0.1:{unused.getsockname()[1]}/1", clock=clock)
            await feed.publish(batch_id=BATCH, at_ms=AT_MS, records=records[:2])
            await feed.publish(batch_id=BATCH, at_ms=AT_MS, records=records[:3])
        feed.close()
        assert (feed.published, feed.dropped) == (0, 5)

    def test_gives_a_repeated_batch_the_same_event_ids(self, records: list[UsageRecord]) -> None:
        first, again = (events(BATCH, AT_MS, records) for _ in range(2))
        assert first == again
        assert first[0]["id"] != first[1]["id"]
