"""Each rule of the protocol that the tenant's scripts, the settler and the meter keep: without it, its scenario fails.

The rules of the pool's scripts are in tests/functional/fairqueue/test_rules_bite.py and test_shares_bite.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from redis.asyncio import Redis

from billing.metering.consumer import StoreAway
from billing.metering.meter import Manifest, Meter, Taken
from contracts.errors import AuthFailed, DeadlinePassed, LimitExceeded
from contracts.tenancy import Metric
from fairqueue.queue import FairQueue
from gateway.settlement import Sweeper
from stores.clickhouse_chdb import ChdbOwner
from stores.lua import LuaScript
from tenants.limits import buckets, keys
from tenants.limits.holds import DueHold, HoldExisting, HoldGranted, Idempotency
from tests.functional.billing.test_meter import RAW, Outage, build
from tests.functional.protocol.conftest import Slots
from tests.functional.tenants.cast import ACME, HINT, KEY, NOON, limit, request
from tests.functional.tenants.holding import settle, start, use_of, void

ONE = limit(Metric.CONCURRENT_REQUESTS, 1)
MONEY = limit(Metric.SPEND_PER_DAY, 5_000)
GIVEN = Idempotency(key_digest="k", body_digest="b")
FIRST = request(1).request_id


async def retry_finds_its_first_hold(slots: Slots) -> bool:
    await slots.limits.hold(request(1, ONE, idempotency=GIVEN))
    return await _existing(slots)


async def repeated_hold_holds_once(slots: Slots) -> bool:
    for _ in range(2):
        await slots.limits.hold(request(1, MONEY))
    return await use_of(slots.limits, MONEY) == [(0, 1_000)]


async def full_limit_refuses(slots: Slots) -> bool:
    await slots.limits.hold(request(1, ONE))
    return await _refused(slots, 2)


async def revoked_key_is_refused(slots: Slots) -> bool:
    await slots.limits.set_epochs(tenant_id=ACME, keys={KEY: -2}, tenant_epoch=1)
    try:
        await slots.limits.hold(request(1))
    except AuthFailed:
        return True
    return False


async def voided_hold_never_starts(slots: Slots) -> bool:
    await slots.limits.hold(request(1))
    await void(slots.limits, 1)
    return not await start(slots.limits, 1)


async def older_attempt_never_starts(slots: Slots) -> bool:
    await slots.limits.hold(request(1))
    await start(slots.limits, 1, fence="2-b", attempt=2)
    return not await start(slots.limits, 1, fence="1-a", attempt=1)


async def running_hold_is_not_due_at_its_enqueue_deadline(slots: Slots) -> bool:
    await slots.limits.hold(request(1))
    await start(slots.limits, 1)
    slots.advance(ms=20_000)
    return await _due(slots) == []


async def running_hold_is_never_voided(slots: Slots) -> bool:
    await slots.limits.hold(request(1, ONE))
    await start(slots.limits, 1)
    return not await void(slots.limits, 1) and await use_of(slots.limits, ONE) == [(0, 1)]


async def void_gives_back_what_was_held(slots: Slots) -> bool:
    await slots.limits.hold(request(1, ONE, MONEY))
    await void(slots.limits, 1)
    return await use_of(slots.limits, ONE, MONEY) == [(0, 0), (0, 0)]


async def voided_hold_gives_its_key_back(slots: Slots) -> bool:
    await slots.limits.hold(request(1, idempotency=GIVEN))
    await void(slots.limits, 1)
    record = keys.idempotency(ACME, GIVEN.key_digest)
    said = await slots.pool.redis.hget(record, "st")
    return said == b"voided" and isinstance(await slots.limits.hold(request(2, idempotency=GIVEN)), HoldGranted)


async def first_settlement_stands(slots: Slots) -> bool:
    await slots.limits.hold(request(1, MONEY))
    await settle(slots.limits, 1, cost=300)
    again = await settle(slots.limits, 1, cost=999)
    return not again.first and await use_of(slots.limits, MONEY) == [(300, 0)]


async def voided_hold_costs_nothing(slots: Slots) -> bool:
    await slots.limits.hold(request(1, MONEY))
    await void(slots.limits, 1)
    await settle(slots.limits, 1)
    return await use_of(slots.limits, MONEY) == [(0, 0)]


async def settlement_frees_its_place(slots: Slots) -> bool:
    await slots.limits.hold(request(1, ONE))
    await settle(slots.limits, 1)
    return not await _refused(slots, 2)


async def settlement_takes_the_hold_off_the_sweep(slots: Slots) -> bool:
    await slots.limits.hold(request(1))
    await settle(slots.limits, 1)
    return await slots.pool.redis.zcard(keys.holds(ACME)) == 0


async def lost_hold_is_charged(slots: Slots) -> bool:
    await slots.limits.hold(request(1, MONEY))
    await settle(slots.limits, 1, cost=300)
    await settle(slots.limits, 2, cost=400)
    return await use_of(slots.limits, MONEY) == [(700, 0)]


async def lost_record_is_written_again(slots: Slots) -> bool:
    await slots.limits.hold(request(1, idempotency=GIVEN))
    await slots.pool.redis.delete(keys.idempotency(ACME, GIVEN.key_digest))
    await settle(slots.limits, 1, hint=replace(HINT, idempotency=GIVEN))
    return await _existing(slots)


async def two_sweepers_share_the_work(slots: Slots) -> bool:
    await slots.limits.hold(request(1))
    slots.advance(ms=20_000)
    first, second = await _due(slots), await _due(slots)
    return first == [FIRST] and second == []


async def _existing(slots: Slots) -> bool:
    try:
        found = await slots.limits.hold(request(2, ONE, idempotency=GIVEN))
    except LimitExceeded:
        return False
    return isinstance(found, HoldExisting) and found.request_id == FIRST


async def _refused(slots: Slots, number: int) -> bool:
    try:
        await slots.limits.hold(request(number, ONE))
    except LimitExceeded:
        return True
    return False


async def _due(slots: Slots) -> list[str]:
    return [due.request_id for due in await slots.limits.due(tenant_id=ACME, margin_ms=5_000, limit=9)]


@dataclass(frozen=True)
class Rule:
    """`cut`, a text of the script, is what keeps the rule; `left` stands in its place where the rule is taken out."""

    holds: Callable[[Slots], Awaitable[bool]]
    script: str
    cut: str
    left: str = ""

    def take_out(self, slots: Slots) -> None:
        script = buckets._SCRIPTS[self.script]
        assert script.text.count(self.cut) == 1
        without = LuaScript.parse(name=script.name, text=script.text.replace(self.cut, self.left))
        slots.limits._run[self.script] = without.bind(slots.pool.redis)


RULES = (
    Rule(retry_finds_its_first_hold, "hold", "if ARGV[15] ~= '' then\n  redis.call('HSET', KEYS[5]",
         "if false then\n  redis.call('HSET', KEYS[5]"),
    Rule(repeated_hold_holds_once, "hold", "if known[1] then", "if false then"),
    Rule(full_limit_refuses, "hold", "if limit.fits == 0 then fits_all = false end"),
    Rule(revoked_key_is_refused, "hold", "if key == 'blocked' then return {'epoch', 'key'} end"),
    Rule(voided_hold_never_starts, "start", "if hold[1] ~= 'held' and hold[1] ~= 'running' then return 0 end"),
    Rule(older_attempt_never_starts, "start", "if hold[2] and tonumber(hold[2]) > tonumber(ARGV[4]) then return 0 end"),
    Rule(running_hold_is_not_due_at_its_enqueue_deadline, "start",
         "redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[5])), ARGV[2])"),
    Rule(running_hold_is_never_voided, "void", "if hold[1] ~= 'held' then", "if not hold[1] then"),
    Rule(void_gives_back_what_was_held, "void",
         "give_back(item[2], item[1], tonumber(item[4]), item[5], tonumber(hold[3]), tonumber(item[6]))"),
    Rule(voided_hold_gives_its_key_back, "void", "redis.call('HSET', KEYS[4], 'st', 'voided')"),
    Rule(first_settlement_stands, "settle",
         "if hold[1] == 'settled' then return {'settled', 0, hold[2], hold[3], 0} end",
         "if hold[1] == 'settled' then hold = {} end"),
    Rule(voided_hold_costs_nothing, "settle", "if hold[1] == 'voided' then return {'settled', 0, '0', 'voided', 0} end",
         "if hold[1] == 'voided' then hold = {} end"),
    Rule(settlement_frees_its_place, "settle",
         "elseif kind == 'c' or kind == 'q' then\n    reserved = math.max(0, reserved - held)",
         "elseif kind == 'c' or kind == 'q' then"),
    Rule(settlement_takes_the_hold_off_the_sweep, "settle", "redis.call('ZREM', KEYS[2], ARGV[2])"),
    Rule(lost_hold_is_charged, "settle", "return {'lost'}", "return {'forgotten'}"),
    Rule(lost_record_is_written_again, "settle",
         "redis.call('HSET', KEYS[4], 'rid', ARGV[2], 'body', body, 'st', 'settled')"),
    Rule(two_sweepers_share_the_work, "due", "redis.call('ZADD', KEYS[1], 'XX', again, request_id)"),
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.holds.__name__)
class TestARuleOfTheTenantSlot:
    async def test_holds(self, slots: Slots, rule: Rule) -> None:
        assert await rule.holds(slots)

    async def test_does_not_hold_without_its_line(self, slots: Slots, rule: Rule) -> None:
        rule.take_out(slots)
        assert not await rule.holds(slots)


class VoidsWithoutALook(Sweeper):
    """Goes by the tenant slot's clock alone."""

    async def _void(self, tenant_id: str, due: DueHold) -> None:
        await self.limits.void(tenant_id=tenant_id, request_id=due.request_id, reason="never_enqueued")


class SweepsNoHolds(Sweeper):
    async def _sweep_tenant(self, tenant_id: str) -> None:
        del tenant_id


class SettlesNothing(Sweeper):
    async def _sweep_pool(self, queue: FairQueue) -> None:
        await queue.reap(limit=9)


async def voided_request_is_never_queued_later(slots: Slots) -> bool:
    """The pool's clock is behind, so that the deadline alone would let the late enqueue in."""
    await slots.limits.hold(request(1))
    slots.advance(ms=20_000)
    await slots.sweeper.sweep()
    try:
        await slots.pool.enqueue(FIRST, pool="demo", tenant_id=ACME)
    except DeadlinePassed:
        return True
    return False


async def waiting_request_keeps_its_hold(slots: Slots) -> bool:
    await slots.limits.hold(request(1))
    await slots.pool.enqueue(FIRST, pool="demo", tenant_id=ACME)
    slots.advance(ms=20_000)
    await slots.sweeper.sweep()
    return await start(slots.limits, 1)


async def hold_that_nobody_enqueued_is_given_back(slots: Slots) -> bool:
    await slots.limits.hold(request(1, ONE))
    slots.advance(ms=20_000)
    await slots.sweeper.sweep()
    return not await _refused(slots, 2)


async def end_that_nobody_settled_is_settled(slots: Slots) -> bool:
    await slots.limits.hold(request(1, ONE))
    await slots.pool.enqueue(FIRST, pool="demo", tenant_id=ACME, admitted_at_ms=NOON)
    await slots.pool.queue.cancel(request_id=FIRST, generation=None, reason="cancelled")
    slots.pool.advance(ms=3_000)
    await slots.sweeper.sweep()
    return await slots.pool.state(FIRST) == "settled" and not await _refused(slots, 2)


SETTLER_RULES = (
    (voided_request_is_never_queued_later, VoidsWithoutALook),
    (waiting_request_keeps_its_hold, VoidsWithoutALook),
    (hold_that_nobody_enqueued_is_given_back, SweepsNoHolds),
    (end_that_nobody_settled_is_settled, SettlesNothing),
)


@pytest.mark.parametrize(("holds", "without"), SETTLER_RULES, ids=lambda item: item.__name__)
class TestARuleOfTheSettler:
    async def test_holds(self, slots: Slots, holds: Callable[[Slots], Awaitable[bool]], without: type[Sweeper]) -> None:
        del without
        assert await holds(slots)

    async def test_does_not_hold_without_it(
        self, slots: Slots, holds: Callable[[Slots], Awaitable[bool]], without: type[Sweeper]
    ) -> None:
        whole = slots.sweeper
        slots.sweeper = without(limits=whole.limits, queue_of=whole.queue_of, pools=whole.pools)
        assert not await holds(slots)


class AcknowledgesFirst(Meter):
    """Takes a batch off the stream before it is in ClickHouse."""

    async def _finish(self, manifest: Manifest, taken: Taken) -> None:
        await self._streams.ack(taken.entries)
        await self._redis.hdel(self._key, manifest.batch_id)
        await super()._finish(manifest, taken)


class NamesEachInsertAnew(Meter):
    """Repeats a batch under another token, so that ClickHouse cannot know it again."""

    async def _insert(self, token: str, rows: Sequence[Sequence[Any]]) -> dict[int, str]:
        return await super()._insert(f"{token}-{uuid.uuid4()}", rows)


async def rows_after(redis: Redis, clickhouse: ChdbOwner, usage: Any, lost: str) -> int:
    """Rows that are there once a meter whose insert failed was followed by one whose insert did not."""
    await usage.add(3)
    with pytest.raises(StoreAway):
        await build(redis, Outage(clickhouse, **{lost: 1})).round()
    await build(redis, clickhouse).round()
    return int(clickhouse.execute(RAW)[0]["rows"])


METER_RULES = (("before", AcknowledgesFirst, 0), ("after", NamesEachInsertAnew, 6))


@pytest.mark.parametrize(("lost", "without", "rows"), METER_RULES, ids=["acknowledged last", "one token for a batch"])
class TestARuleOfTheMeter:
    async def test_holds(
        self, redis: Redis, clickhouse: ChdbOwner, usage: Any, lost: str, without: type[Meter], rows: int
    ) -> None:
        del without, rows
        assert await rows_after(redis, clickhouse, usage, lost) == 3

    async def test_does_not_hold_without_it(
        self,
        redis: Redis,
        clickhouse: ChdbOwner,
        usage: Any,
        monkeypatch: pytest.MonkeyPatch,
        lost: str,
        without: type[Meter],
        rows: int,
    ) -> None:
        monkeypatch.setattr("tests.functional.billing.test_meter.Meter", without)
        assert await rows_after(redis, clickhouse, usage, lost) == rows
