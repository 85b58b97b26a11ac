"""The meter on real Valkey and chDB, in this process: outages, poison, take-over, doubles, trimming."""

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from billing.metering.consumer import Pace, StoreAway, UsageConsumer
from billing.metering.meter import Meter
from billing.metering.streams import GROUPS, LEDGER_GROUP, METER_GROUP, UsageStreams
from contracts.clock import FakeClock
from contracts.jobs import UsageRecord
from fairqueue.keys import PoolKeys
from fairqueue.messages import usage_from_stream
from stores.clickhouse import ClickHouse, ClickHouseError, ClickHouseUnavailable
from stores.clickhouse_chdb import ChdbOwner

COUNT = "SELECT count() AS rows, uniqExact(request_id) AS requests, toString(sum(cost)) AS cost FROM {table}"
RAW = COUNT.format(table="inference_requests_audit")


class Quiet:
    """A feed with a memory."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []

    async def publish(self, *, batch_id: str, at_ms: int, records: Sequence[UsageRecord]) -> None:
        self.batches.append((batch_id, [record.request_id for record in records]))


class Outage:
    """The real store behind a wire that fails before or after the statement, as often as told."""

    def __init__(self, inner: ClickHouse, *, before: int = 0, after: int = 0) -> None:
        self.inner = inner
        self.before = before
        self.after = after
        self.exclusive = inner.exclusive

    def insert(self, **statement: Any) -> None:
        if self.before:
            self.before -= 1
            raise ClickHouseUnavailable("connection refused")
        self.inner.insert(**statement)
        if self.after:
            self.after -= 1
            raise ClickHouseUnavailable("the answer was lost")

    def execute(self, sql: str, params: Any = None) -> list[dict[str, Any]]:
        return self.inner.execute(sql, params)

    def command(self, sql: str) -> None:
        self.inner.command(sql)

    def close(self) -> None:
        self.inner.close()


def build(
    redis: Redis,
    clickhouse: ClickHouse,
    *,
    name: str = "meter",
    clock: FakeClock | None = None,
    feed: Quiet | None = None,
    rows: int = 10_000,
    trims: bool = False,
) -> UsageConsumer:
    clock = clock or FakeClock()
    streams = UsageStreams(redis=redis, group=METER_GROUP, consumer=name)
    meter = Meter(
        redis=redis,
        streams=streams,
        clickhouse=clickhouse,
        revive=usage_from_stream,
        feed=feed or Quiet(),
        clock=clock,
        mint_batch_id=lambda: str(uuid.uuid4()),
    )
    return UsageConsumer(streams=streams, work=meter, clock=clock, pace=Pace(batch_rows=rows), trims=trims)


class TestMeter:
    async def test_writes_each_record_once_with_its_exact_cost(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any, cost_nano: int
    ) -> None:
        await usage.announce("other")
        await usage.add(7)
        await usage.add(3, pool="other")
        await build(redis, clickhouse).round()
        assert clickhouse.execute(RAW) == [{"rows": 10, "requests": 10, "cost": f"0.{10 * cost_nano:09d}".rstrip("0")}]
        assert await usage.unfinished(group=METER_GROUP) == 0
        assert await usage.unfinished(group=METER_GROUP, pool="other") == 0
        assert await redis.exists("w:usage:manifests:meter") == 0

    async def test_keeps_every_field_of_the_record(self, redis: Redis, clickhouse: ChdbOwner, usage: Any) -> None:
        (ticket,) = await usage.add(1)
        await build(redis, clickhouse).round()
        (row,) = clickhouse.execute("SELECT *, ttft_ms, itl_ms, itl_count FROM inference_requests_audit")
        assert row["request_id"] == ticket.request_id
        assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (100, 60, 10)
        assert (row["ttft_ms"], row["itl_ms"], row["itl_count"], row["itl"]) == (5.0, 10.0, 9, {80: 9})
        assert row["verdicts"] == ["regex: flagged"]
        assert row["stream"] is True
        assert row["admitted_at"].timestamp() * 1_000 == ticket.admitted_at_ms

    async def test_takes_a_full_batch_at_once_and_says_that_there_is_more(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        await usage.add(5)
        consumer = build(redis, clickhouse, rows=3)
        assert await consumer.round() is True
        assert await consumer.round() is False
        assert clickhouse.execute(RAW)[0]["rows"] == 5

    @pytest.mark.parametrize("lost", ["before", "after"])
    async def test_waits_for_clickhouse_and_loses_and_doubles_nothing(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any, lost: str
    ) -> None:
        await usage.add(4)
        consumer = build(redis, Outage(clickhouse, **{lost: 2}))
        for _ in range(2):
            with pytest.raises(StoreAway):
                await consumer.round()
            await usage.add(1)
        await consumer.round()
        found = clickhouse.execute(RAW)[0]
        assert (found["rows"], found["requests"]) == (6, 6)
        assert await redis.exists("w:usage:manifests:meter") == 0

    async def test_buries_what_can_never_be_a_row_and_takes_the_rest(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        await usage.add(2)
        await redis.xadd(PoolKeys("pool").usage, {"ticket": b"junk"})
        await usage.add(1, outcome="vanished")
        await usage.add(1, cached=101)
        await build(redis, clickhouse).round()
        assert clickhouse.execute(RAW)[0]["rows"] == 2
        letters = [fields for _, fields in await redis.xrange(PoolKeys("pool").usage + ":dead")]
        assert [letter[b"dead_group"] for letter in letters] == [b"meter"] * 3
        assert b"vanished" in letters[1][b"dead_reason"]
        assert letters[0][b"ticket"] == b"junk"
        assert await usage.unfinished(group=METER_GROUP) == 0

    async def test_buries_only_the_rows_that_clickhouse_itself_refuses(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        clickhouse.command("ALTER TABLE inference_requests_audit ADD CONSTRAINT cursed CHECK finish_reason != 'cursed'")
        try:
            await usage.add(3)
            await usage.add(1, finish="cursed")
            await build(redis, clickhouse).round()
        finally:
            clickhouse.command("ALTER TABLE inference_requests_audit DROP CONSTRAINT cursed")
        assert clickhouse.execute(RAW)[0]["rows"] == 3
        ((_, letter),) = await redis.xrange(PoolKeys("pool").usage + ":dead")
        assert b"cursed" in letter[b"dead_reason"]
        assert await usage.unfinished(group=METER_GROUP) == 0

    async def test_does_not_bury_rows_for_a_store_that_is_in_trouble(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        class Full(Outage):
            def insert(self, **statement: Any) -> None:
                raise ClickHouseError("Code: 243. NOT_ENOUGH_SPACE", code=243)

        await usage.add(2)
        with pytest.raises(StoreAway, match="NOT_ENOUGH_SPACE"):
            await build(redis, Full(clickhouse)).round()
        await build(redis, clickhouse).round()
        assert clickhouse.execute(RAW)[0]["rows"] == 2

    async def test_finishes_the_batch_of_a_meter_that_is_gone(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        clock = FakeClock()
        await usage.add(3)
        with pytest.raises(StoreAway):
            await build(redis, Outage(clickhouse, after=1), name="one", clock=clock).round()
        other = build(redis, clickhouse, name="two", clock=clock)
        await other.round()
        assert await redis.hlen("w:usage:manifests:meter") == 1  # it may still be at it
        clock.advance(ms=60_001)
        await other.round()
        assert clickhouse.execute(RAW)[0]["rows"] == 3
        assert await usage.unfinished(group=METER_GROUP) == 0
        assert await redis.exists("w:usage:manifests:meter") == 0

    async def test_collapses_a_record_that_came_twice_to_its_lowest_attempt(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any, fields_of: Any, cost_nano: int
    ) -> None:
        (ticket,) = await usage.add(1, attempt=1)
        consumer = build(redis, clickhouse)
        await consumer.round()
        await redis.xadd(PoolKeys("pool").usage, fields_of(ticket, attempt=2, completion=50))
        await consumer.round()
        assert clickhouse.execute(RAW)[0]["rows"] == 2
        (final,) = clickhouse.execute("SELECT attempt, completion_tokens AS tokens FROM inference_requests_audit FINAL")
        assert final == {"attempt": 1, "tokens": 10}

    async def test_announces_what_it_recorded_once_per_batch(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        feed = Quiet()
        tickets = await usage.add(2)
        consumer = build(redis, clickhouse, feed=feed)
        await consumer.round()
        await consumer.round()
        assert [ids for _, ids in feed.batches] == [[ticket.request_id for ticket in tickets]]

    async def test_trims_only_what_every_group_has_finished(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        clock = FakeClock()
        consumer = build(redis, clickhouse, clock=clock, trims=True)
        await usage.add(4)
        await consumer.round()
        assert await redis.xlen(PoolKeys("pool").usage) == 4  # the ledger's group is not even there
        ledger = UsageStreams(redis=redis, group=LEDGER_GROUP, consumer="settler")
        await ledger.discover()
        entries = await ledger.read_new(limit=10)
        await ledger.ack(entries[:1] + entries[2:])
        clock.advance(ms=60_000)
        await consumer.round()
        assert await redis.xlen(PoolKeys("pool").usage) == 3
        await ledger.ack(entries)
        clock.advance(ms=60_000)
        await consumer.round()
        assert await redis.xlen(PoolKeys("pool").usage) == 1  # the last one marks the place
        assert {group["name"].decode() for group in await redis.xinfo_groups(PoolKeys("pool").usage)} == GROUPS

    async def test_starts_again_after_redis_lost_its_data(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any
    ) -> None:
        clock = FakeClock()
        consumer = build(redis, clickhouse, clock=clock)
        await usage.add(1)
        await consumer.round()
        await redis.flushall()
        await usage.announce("pool")
        await usage.add(2)
        clock.advance(ms=60_000)
        await consumer.round()
        assert clickhouse.execute(RAW)[0]["rows"] == 3
