"""How far usage is taken, on a real Valkey: the slowest group decides, and a dead letter names its tenant."""

import uuid
from typing import Any

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from billing.closing.watermark import Watermark, read_watermark
from billing.metering.keys import dead_usage
from billing.metering.streams import LEDGER_GROUP, METER_GROUP, Poison, UsageStreams
from fairqueue.messages import usage_from_stream
from tests.functional.billing.conftest import UsageWriter


def read(url: str) -> Watermark:
    client = BlockingRedis.from_url(url, protocol=2)
    try:
        return read_watermark(client, revive=usage_from_stream)
    finally:
        client.close()


async def joined(redis: Redis, group: str) -> UsageStreams:
    streams = UsageStreams(redis=redis, group=group, consumer="one")
    await streams.discover()
    return streams


async def now_ms(redis: Redis) -> int:
    seconds, micros = await redis.time()
    return int(seconds) * 1_000 + int(micros) // 1_000


class TestWatermark:
    async def test_is_the_present_when_everything_is_taken(
        self, redis: Redis, valkey_url: str, usage: UsageWriter
    ) -> None:
        groups = [await joined(redis, name) for name in (METER_GROUP, LEDGER_GROUP)]
        await usage.add(3)
        for streams in groups:
            await streams.ack(await streams.read_new(limit=10))
        before = await now_ms(redis)
        assert before <= read(valkey_url).low_ms <= await now_ms(redis)

    async def test_is_the_oldest_that_any_group_has_not_finished(
        self, redis: Redis, valkey_url: str, usage: UsageWriter
    ) -> None:
        groups = [await joined(redis, name) for name in (METER_GROUP, LEDGER_GROUP)]
        await usage.add(2)
        first, _ = await groups[0].read_new(limit=10)
        assert read(valkey_url).low_ms == int(first.entry_id.partition("-")[0])
        await groups[0].ack(await groups[0].read_pending(limit=10))
        assert read(valkey_url).low_ms == int(first.entry_id.partition("-")[0])  # the ledger has read nothing

    async def test_waits_for_a_group_that_is_not_there_yet(
        self, redis: Redis, valkey_url: str, usage: UsageWriter
    ) -> None:
        streams = await joined(redis, METER_GROUP)
        await usage.add(1)
        [entry] = await streams.read_new(limit=1)
        await streams.ack([entry])
        mark = read(valkey_url)
        assert mark.low_ms == int(entry.entry_id.partition("-")[0])
        [gap] = mark.gaps(tenant_id="t", start_ms=0, end_ms=mark.low_ms + 5_000)
        assert (gap.kind, gap.detail) == ("lag", "usage is taken up to 5 s before the period's end")
        assert not gap.can_be_waived

    async def test_brings_dead_letters_with_the_time_of_their_request(
        self, redis: Redis, valkey_url: str, usage: UsageWriter
    ) -> None:
        streams = await joined(redis, METER_GROUP)
        tenant_id = str(uuid.uuid4())
        [ticket] = await usage.add(1, tenants=(tenant_id,))
        await streams.bury([Poison(entry=entry, reason="no") for entry in await streams.read_new(limit=1)])
        letter: dict[Any, Any] = {"dead_id": "77-1", "dead_reason": "not a usage record"}
        await redis.xadd(dead_usage("pool"), letter)
        readable, unreadable = read(valkey_url).letters
        assert (readable.tenant_id, readable.request_id) == (tenant_id, ticket.request_id)
        assert readable.ended_at_ms == ticket.admitted_at_ms + 60
        assert (unreadable.tenant_id, unreadable.ended_at_ms, unreadable.reason) == ("", 77, "not a usage record")
