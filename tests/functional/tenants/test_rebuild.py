"""Counters made anew after Redis was lost, on real Valkey and chDB: all is counted once, whatever comes late."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from billing.metering.streams import METER_GROUP, UsageStreams
from contracts.errors import BudgetSpent
from contracts.tenancy import Limit, Metric, Scope
from contracts.tokens import TokenCounts
from controlplane.limits_audit import Auditor, Findings
from fairqueue.keys import PoolKeys
from stores.clickhouse_chdb import ChdbOwner
from tenants.budgets import CountedLimit
from tenants.limits import keys
from tenants.limits.audit import READING_MS, Audit
from tenants.limits.buckets import Limits
from tenants.limits.holds import BeingRebuilt, HoldGranted, HoldHint
from tests.functional.billing.conftest import clickhouse, cost_nano, fields_of, owner, ticket_of, usage
from tests.functional.billing.test_limits_audit import CAPS, MINUTE_MS, TOKENS
from tests.functional.billing.test_meter import build
from tests.functional.tenants.cast import ACME, KEY, NOON, PROJECT, limit, request

__all__ = ["clickhouse", "cost_nano", "fields_of", "owner", "ticket_of", "usage"]


class Ground:
    """A tenant whose requests are held, ended, metered and settled, each step by itself."""

    def __init__(self, redis: Redis, reader: ChdbOwner, fields_of: Any, ticket_of: Any, cost: int) -> None:
        self.redis, self.reader, self.cost = redis, reader, cost
        self.limits = Limits(redis, time_ms=NOON)
        self.auditor = Auditor(
            redis=redis,
            audit=Audit(redis, gate=self.limits.gate, time_ms=NOON),
            reader=reader,
            limits_of=limits_of,
            skew_ms=0,
        )
        self.fields_of, self.ticket_of = fields_of, ticket_of
        self.admitted: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    async def begin(self) -> None:
        await self.limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)

    async def hold(self, number: int) -> None:
        asked = request(number, *CAPS, cost_max_nano=self.cost, prompt_tokens=100, output_tokens_max=10)
        granted = await self.limits.hold(asked)
        assert isinstance(granted, HoldGranted)
        self.admitted[number] = granted.admitted_at_ms

    async def end(self, number: int) -> None:
        """In its pool: the usage record is on the stream; it is not settled yet."""
        self.ended[number] = self.limits.time_ms
        ticket = replace(
            self.ticket_of(number, pool="pool", tenant_id=ACME),
            request_id=request(number).request_id, project_id=PROJECT, api_key_id=KEY, model="model-a",
            admitted_at_ms=self.admitted[number],
        )  # fmt: skip
        await self.redis.xadd(PoolKeys("pool").usage, self.fields_of(ticket, billed_at_ms=self.ended[number]))

    async def settle(self, number: int) -> bool:
        """As the settler does, from the record. Whether it was the first."""
        settled = await self.limits.settle(
            tenant_id=ACME, request_id=request(number).request_id, cost_nano=self.cost, outcome="ok",
            counts=TokenCounts(prompt=100, cached=60, completion=10),
            hint=HoldHint(
                project_id=PROJECT, api_key_id=KEY, model="model-a", admitted_at_ms=self.admitted[number],
                ended_at_ms=self.ended[number],
            ),
        )  # fmt: skip
        return settled.first

    async def whole(self, *numbers: int) -> None:
        for number in numbers:
            await self.hold(number)
            await self.end(number)
            await self.settle(number)

    async def lose(self) -> None:
        """Everything of the tenant's slot is gone; its epochs come back with the next push."""
        names = [name async for name in self.redis.scan_iter(f"w:{{t:{ACME}}}:*")]
        await self.redis.delete(*names)
        await self.begin()

    async def rebuild(self) -> Findings:
        await self.meter()
        return await self.auditor.rebuild(tenant_id=ACME, timezone="UTC")

    async def rebuild_while(self, happens: Callable[[], Awaitable[None]]) -> Findings:
        await self.meter()
        reads = replace(self.auditor, reader=Meanwhile(self.reader, happens))
        return await reads.rebuild(tenant_id=ACME, timezone="UTC")

    async def check(self) -> Findings:
        await self.meter()
        return await self.auditor.check(tenant_id=ACME)

    async def meter(self) -> None:
        await build(self.redis, self.reader).round()

    def wait(self, milliseconds: int) -> None:
        self.limits.time_ms += milliseconds
        self.auditor.audit.time_ms = self.limits.time_ms

    async def counts(self, requests: int, *, held: int = 0) -> None:
        """Asserts that the counters hold so many requests, each once."""
        names = [f"t:{ACME}:spd", f"p:{PROJECT}:spl", f"k:{KEY}:tpm:model-a", f"t:{ACME}:con"]
        fields = [f"{name}{ending}" for name in names for ending in (":u", ":h")]
        found = [int(value or 0) for value in await self.redis.hmget(keys.use(ACME), fields)]
        one, open_ = [self.cost, self.cost, TOKENS, 0], [self.cost, self.cost, TOKENS, 1]
        assert found[::2] == [each * requests for each in one]
        assert found[1::2] == [each * held for each in open_]

    async def stays_true(self, requests: int) -> None:
        """Also later, when all of it lies below the watermark."""
        await self.counts(requests)
        for _ in range(2):
            self.wait(6 * MINUTE_MS)
            found = await self.check()
            assert (found.drifts, found.skipped) == ([], "")


class Meanwhile:
    """A reader of metered usage; something happens, once, after a rebuild began to read and before its first sum."""

    def __init__(self, reader: ChdbOwner, happens: Callable[[], Awaitable[None]]) -> None:
        self._reader, self._happens = reader, happens
        self._loop, self._waits = asyncio.get_running_loop(), True

    def execute(self, statement: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """In a thread of its own, as the auditor calls it."""
        if self._waits:
            self._waits = False
            asyncio.run_coroutine_threadsafe(self._happen(), self._loop).result()
        return self._reader.execute(statement, parameters)

    async def _happen(self) -> None:
        await self._happens()


async def limits_of(tenant_id: str) -> list[CountedLimit]:
    owners = {Scope.KEY: KEY, Scope.PROJECT: PROJECT, Scope.TENANT: ACME}

    def counter(limit: Limit) -> str:
        return keys.counter(limit, tenant_id=ACME, project_id=PROJECT, api_key_id=KEY)

    return [CountedLimit(limit=each, owner_id=owners[each.scope], counter=counter(each)) for each in CAPS]


@pytest.fixture
async def ground(
    redis: Redis,
    clickhouse: ChdbOwner,
    usage: Any,
    fields_of: Callable[..., dict[Any, Any]],
    ticket_of: Callable[..., Any],
    cost_nano: int,
) -> Ground:
    await UsageStreams(redis=redis, group=METER_GROUP, consumer="m").discover()
    ground = Ground(redis, clickhouse, fields_of, ticket_of, cost_nano)
    await ground.begin()
    return ground


class TestAfterALoss:
    async def test_counts_what_was_used_before_it(self, ground: Ground) -> None:
        await ground.whole(1, 2)
        ground.wait(7 * MINUTE_MS)
        await ground.whole(3)
        await ground.lose()
        ground.wait(1_000)
        await ground.rebuild()
        await ground.stays_true(3)

    async def test_counts_what_was_used_before_and_since(self, ground: Ground) -> None:
        """In the same five minutes, too: their settlements before the loss are in no slot any more."""
        await ground.whole(1, 2)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(3)
        ground.wait(1_000)
        await ground.rebuild()
        await ground.stays_true(3)

    async def test_a_second_rebuild_changes_nothing(self, ground: Ground) -> None:
        await ground.whole(1)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(2)
        ground.wait(1_000)
        await ground.rebuild()
        await ground.whole(3)
        ground.wait(1_000)
        assert (await ground.rebuild()).renewed == 0
        await ground.stays_true(3)

    async def test_a_second_loss_is_a_loss_like_the_first(self, ground: Ground) -> None:
        for number in (1, 3):
            await ground.whole(number)
            ground.wait(1_000)
            await ground.lose()
            await ground.whole(number + 1)
            ground.wait(1_000)
            await ground.rebuild()
        await ground.stays_true(4)

    async def test_a_refusal_that_came_first_is_the_beginning_too(self, ground: Ground) -> None:
        """It tells that a budget is spent, and so writes before any hold does."""
        await ground.whole(1)
        ground.wait(1_000)
        await ground.lose()
        with pytest.raises(BudgetSpent):
            await ground.limits.hold(request(5, limit(Metric.SPEND_PER_MONTH, 1)))
        await ground.whole(2)
        ground.wait(1_000)
        await ground.rebuild()
        await ground.stays_true(2)

    async def test_leaves_what_is_open_since_held(self, ground: Ground) -> None:
        await ground.whole(1)
        ground.wait(1_000)
        await ground.lose()
        await ground.hold(2)
        ground.wait(1_000)
        await ground.rebuild()
        await ground.counts(1, held=1)
        await ground.end(2)
        await ground.settle(2)
        await ground.stays_true(2)


class TestSlots:
    async def test_one_that_lasts_counts_in_that_of_its_admission(self, ground: Ground) -> None:
        await ground.hold(1)
        ground.wait(6 * MINUTE_MS)
        await ground.end(1)
        await ground.settle(1)
        assert (await ground.check()).drifts == []

    async def test_are_used_again_when_their_time_comes_round(self, ground: Ground) -> None:
        await ground.whole(1)
        ground.wait(32 * 5 * MINUTE_MS)
        await ground.whole(2)
        assert (await ground.check()).drifts == []


class TestSettlementsThatComeLate:
    @pytest.mark.parametrize("since", [(), (9,)], ids=["quiet", "others since"])
    async def test_one_that_comes_again_after_the_rebuild_is_not_counted_again(
        self, ground: Ground, since: tuple[int, ...]
    ) -> None:
        await ground.whole(1)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(*since)
        ground.wait(1_000)
        await ground.rebuild()
        await ground.settle(1)
        await ground.settle(1)
        await ground.stays_true(1 + len(since))

    @pytest.mark.parametrize("since", [(), (9,)], ids=["quiet", "others since"])
    async def test_one_that_the_loss_overtook_is_counted_by_the_rebuild_alone(
        self, ground: Ground, since: tuple[int, ...]
    ) -> None:
        await ground.hold(1)
        await ground.end(1)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(*since)
        ground.wait(1_000)
        await ground.rebuild()
        assert await ground.settle(1)
        await ground.stays_true(1 + len(since))

    @pytest.mark.parametrize("since", [(), (9,)], ids=["quiet", "others since"])
    async def test_one_that_comes_between_loss_and_rebuild_is_counted_once(
        self, ground: Ground, since: tuple[int, ...]
    ) -> None:
        await ground.hold(1)
        await ground.end(1)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(*since)
        await ground.settle(1)
        ground.wait(1_000)
        await ground.rebuild()
        await ground.settle(1)
        await ground.stays_true(1 + len(since))

    @pytest.mark.parametrize("since", [(), (9,)], ids=["quiet", "others since"])
    async def test_a_request_that_ran_through_the_loss_is_counted_when_it_ends(
        self, ground: Ground, since: tuple[int, ...]
    ) -> None:
        await ground.whole(1)
        await ground.hold(2)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(*since)
        ground.wait(1_000)
        await ground.rebuild()
        await ground.counts(1 + len(since))
        ground.wait(1_000)
        await ground.end(2)
        assert await ground.settle(2)
        assert not await ground.settle(2)
        await ground.stays_true(2 + len(since))


class TestWhileARebuildReads:
    """A request that ran through a loss ends between the snapshot and the sums of what was metered."""

    @pytest.mark.parametrize("since", [(), (9,)], ids=["quiet", "others since"])
    @pytest.mark.parametrize("later_ms", [0, 1], ids=["at the snapshot", "after it"])
    async def test_one_that_ends_is_settled_afterwards_and_counted_once(
        self, ground: Ground, since: tuple[int, ...], later_ms: int
    ) -> None:
        await ground.whole(1)
        await ground.hold(2)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(*since)
        ground.wait(1_000)

        async def ends() -> None:
            ground.wait(later_ms)
            await ground.end(2)
            await ground.meter()
            with pytest.raises(BeingRebuilt):
                await ground.settle(2)

        assert (await ground.rebuild_while(ends)).skipped == ""
        assert await ground.settle(2)
        await ground.stays_true(2 + len(since))

    async def test_one_that_ended_later_than_an_open_one_began_is_counted_once(self, ground: Ground) -> None:
        """The open one holds the watermark back, behind the end of the lost one, which the meter has told of."""
        await ground.hold(2)
        ground.wait(1_000)
        await ground.lose()
        await ground.hold(8)
        ground.wait(1_000)
        await ground.end(2)
        await ground.rebuild()
        assert await ground.settle(2)
        await ground.counts(1, held=1)
        await ground.end(8)
        await ground.settle(8)
        await ground.stays_true(2)

    async def test_what_a_request_of_since_settles_stays(self, ground: Ground) -> None:
        ground.wait(1_000)
        await ground.hold(2)

        async def ends() -> None:
            await ground.end(2)
            await ground.settle(2)

        await ground.rebuild_while(ends)
        await ground.stays_true(1)

    async def test_it_writes_nothing_when_it_took_too_long_and_lost_ones_are_settled_then(self, ground: Ground) -> None:
        await ground.hold(2)
        ground.wait(1_000)
        await ground.lose()
        await ground.whole(9)

        async def hangs() -> None:
            await ground.end(2)
            ground.wait(READING_MS - 1)
            with pytest.raises(BeingRebuilt):
                await ground.settle(2)
            ground.wait(1)

        found = await ground.rebuild_while(hangs)
        assert (found.renewed, found.skipped) == (0, "it took too long, or another rebuild began")
        assert await ground.settle(2)
        await ground.rebuild()
        await ground.stays_true(2)

    async def test_the_last_of_two_writes_and_the_first_does_not(self, ground: Ground) -> None:
        await ground.whole(1)
        ground.wait(1_000)
        await ground.lose()

        async def another() -> None:
            assert (await ground.rebuild()).skipped == ""
            await ground.whole(2)

        found = await ground.rebuild_while(another)
        assert (found.renewed, found.skipped) == (0, "it took too long, or another rebuild began")
        await ground.stays_true(2)

    async def test_a_clock_that_was_wrong_keeps_nobody_waiting(self, ground: Ground) -> None:
        await ground.hold(2)
        ground.wait(1_000)
        await ground.lose()
        await ground.end(2)
        ground.wait(10 * MINUTE_MS)
        await ground.auditor.audit.snapshot(tenant_id=ACME, counters=[], reading=True)
        ground.wait(-10 * MINUTE_MS)
        assert await ground.settle(2)
