"""Announces recorded usage to whoever listens: `usage.recorded` on the topic exchange `weir.events`, in batches.

Called by the meter after the insert. Best effort, and said so: a broker that is away costs listeners events, never the
bill or the meter's pace. Invariant: a batch that is announced twice (a crash before its acknowledgement) carries the
same event ids.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange
from kombu.exceptions import OperationalError

from billing.rating.rate import cost
from contracts.clock import Clock
from contracts.jobs import UsageRecord
from contracts.money import text_from_nano

EVENT = "usage.recorded"
RECORDS_PER_EVENT = 500
PUBLISH_SECONDS = 10.0
QUIET_SECONDS = 30.0  # after a failure, so that an absent broker does not slow every batch
_SOCKET_SECONDS = 3

log = logging.getLogger("weir.billing")


class UsageFeed:
    """A `billing.metering.meter.Feed` by kombu."""

    def __init__(self, *, broker_url: str, clock: Clock) -> None:
        options = {"socket_timeout": _SOCKET_SECONDS, "socket_connect_timeout": _SOCKET_SECONDS}
        # kombu has no types
        self._broker: Any = Connection(  # type: ignore[no-untyped-call]
            broker_url, connect_timeout=_SOCKET_SECONDS, transport_options=options
        )
        self._exchange: Any = Exchange("weir.events", type="topic", durable=True)  # type: ignore[no-untyped-call]
        self._clock = clock
        self._quiet_until = 0.0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage-feed")
        self.published = 0
        self.dropped = 0

    async def publish(self, *, batch_id: str, at_ms: int, records: Sequence[UsageRecord]) -> None:
        """Send the records of a batch; a failure is counted and logged."""
        if self._clock.monotonic() < self._quiet_until:
            self.dropped += len(records)
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await loop.run_in_executor(self._thread, self._send, events(batch_id, at_ms, records))
            self.published += len(records)
        except (OperationalError, OSError, TimeoutError) as error:
            self.dropped += len(records)
            self._quiet_until = self._clock.monotonic() + QUIET_SECONDS
            log.warning("usage feed: %d records were not announced: %s", len(records), error or type(error).__name__)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._broker.release()

    def _send(self, messages: Sequence[dict[str, Any]]) -> None:
        try:
            producer = self._broker.Producer(serializer="json")
            for message in messages:
                producer.publish(
                    message, exchange=self._exchange, routing_key=EVENT, declare=[self._exchange], retry=False
                )
        except self._broker.connection_errors + self._broker.channel_errors as error:
            self._broker.release()  # the next batch connects anew
            raise OperationalError(str(error)) from error


def events(batch_id: str, at_ms: int, records: Sequence[UsageRecord]) -> list[dict[str, Any]]:
    """The batch as event bodies, with ids that a repeat makes again."""
    return [
        {
            "v": 1,
            "id": str(uuid.uuid5(uuid.UUID(batch_id), str(start))),
            "name": EVENT,
            "tenant_id": None,
            "happened_at": datetime.fromtimestamp(at_ms / 1_000, tz=UTC).isoformat(),
            "records": [_body(record) for record in records[start : start + RECORDS_PER_EVENT]],
        }
        for start in range(0, len(records), RECORDS_PER_EVENT)
    ]


def _body(record: UsageRecord) -> dict[str, Any]:
    return {
        "request_id": record.request_id,
        "revision": record.revision,
        "tenant_id": record.tenant_id,
        "project_id": record.project_id,
        "api_key_id": record.api_key_id,
        "model": record.model,
        "outcome": record.outcome,
        "prompt_tokens": record.counts.prompt,
        "cached_tokens": record.counts.cached,
        "completion_tokens": record.counts.completion,
        "cost": text_from_nano(cost(record.price, record.counts).total_nano),
        "currency": record.price.currency,
        "billed_at_ms": record.billed_at_ms,
    }
