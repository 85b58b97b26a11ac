"""Counters of limits against metered usage: real Valkey, real chDB, the meter in between."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from billing.metering.streams import METER_GROUP, UsageStreams
from contracts.tenancy import Limit, Metric, Scope
from contracts.tokens import TokenCounts
from controlplane import limits_audit
from controlplane.limits_audit import Auditor, Drift
from fairqueue.keys import PoolKeys
from stores.clickhouse_chdb import ChdbOwner
from stores.lua import load_scripts
from tenants.budgets import CountedLimit
from tenants.limits import buckets, keys
from tenants.limits.audit import Audit
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldGranted
from tests.functional.billing.test_meter import build
from tests.functional.tenants.cast import ACME, HINT, KEY, NOON, PROJECT, limit, request

LONG_AGO_MS = -(2**40)  # before any window, also that of a lifetime
CAPS = tuple(
    replace(each, since_ms=LONG_AGO_MS)
    for each in (
        limit(Metric.SPEND_PER_DAY, 10**12),
        limit(Metric.SPEND_LIFETIME, 10**12, Scope.PROJECT),
        limit(Metric.TOKENS_PER_MONTH, 10**9, Scope.KEY, model="model-a"),
        limit(Metric.CONCURRENT_REQUESTS, 100),
    )
)
TOKENS = 110  # of `usage_fields`
MINUTE_MS = 60_000


@dataclass
class Stage:
    """A tenant whose requests are held, settled and metered as the platform does it."""

    redis: Redis
    limits: Limits
    auditor: Auditor
    clickhouse: ChdbOwner
    fields_of: Callable[..., dict[Any, Any]]
    ticket_of: Callable[..., Any]
    cost: int
    number: int = 0

    async def run(self, count: int, *, caps: tuple[Limit, ...] = CAPS, settled: bool = True) -> None:
        for _ in range(count):
            self.number += 1
            asked = request(self.number, *caps, cost_max_nano=self.cost, prompt_tokens=100, output_tokens_max=10)
            granted = await self.limits.hold(asked)
            assert isinstance(granted, HoldGranted)
            if settled:
                await self.end(asked.request_id, granted.admitted_at_ms)

    async def end(self, request_id: str, admitted_ms: int) -> None:
        ticket = replace(
            self.ticket_of(self.number, pool="pool", tenant_id=ACME),
            request_id=request_id, project_id=PROJECT, api_key_id=KEY, model="model-a", admitted_at_ms=admitted_ms,
        )  # fmt: skip
        await self.redis.xadd(PoolKeys("pool").usage, self.fields_of(ticket, billed_at_ms=self.limits.time_ms))
        await self.limits.settle(
            tenant_id=ACME, request_id=request_id, counts=TokenCounts(prompt=100, cached=60, completion=10),
            cost_nano=self.cost, outcome="ok", hint=replace(HINT, admitted_at_ms=admitted_ms),
        )  # fmt: skip

    async def meter(self) -> None:
        await build(self.redis, self.clickhouse).round()

    def wait(self, milliseconds: int) -> None:
        self.limits.time_ms += milliseconds
        self.auditor.audit.time_ms = self.limits.time_ms

    async def used(self) -> list[int]:
        names = [f"t:{ACME}:spd:u", f"p:{PROJECT}:spl:u", f"k:{KEY}:tpm:model-a:u"]
        return [int(value or 0) for value in await self.redis.hmget(keys.use(ACME), names)]


@pytest.fixture
async def stage(
    redis: Redis,
    clickhouse: ChdbOwner,
    usage: Any,
    fields_of: Callable[..., dict[Any, Any]],
    ticket_of: Callable[..., Any],
    cost_nano: int,
) -> Stage:
    limits = Limits(redis, time_ms=NOON)
    await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)

    async def limits_of(tenant_id: str) -> list[CountedLimit]:
        owners = {Scope.KEY: KEY, Scope.PROJECT: PROJECT, Scope.TENANT: ACME}
        return [
            CountedLimit(
                limit=each, owner_id=owners[each.scope],
                counter=keys.counter(each, tenant_id=ACME, project_id=PROJECT, api_key_id=KEY),
            )
            for each in CAPS
        ]  # fmt: skip

    auditor = Auditor(
        redis=redis,
        audit=Audit(redis, gate=limits.gate, time_ms=NOON),
        reader=clickhouse,
        limits_of=limits_of,
        skew_ms=0,
    )
    stage = Stage(redis, limits, auditor, clickhouse, fields_of, ticket_of, cost_nano)
    await UsageStreams(redis=redis, group=METER_GROUP, consumer="m").discover()
    return stage


class TestCheck:
    async def test_finds_no_drift_while_requests_run_and_settle(self, stage: Stage) -> None:
        await stage.run(3)
        stage.wait(7 * MINUTE_MS)
        await stage.run(2)
        await stage.run(2, settled=False)
        stage.wait(6 * MINUTE_MS)
        await stage.meter()
        found = await stage.auditor.check(tenant_id=ACME)
        assert (found.checked, found.drifts, found.skipped) == (len(CAPS), [], "")
        assert await stage.used() == [5 * stage.cost, 5 * stage.cost, 5 * TOKENS]

    async def test_reports_what_is_too_much_or_too_little(self, stage: Stage) -> None:
        await stage.run(2)
        stage.wait(10 * MINUTE_MS)
        await stage.meter()
        await stage.redis.hincrby(keys.use(ACME), f"t:{ACME}:spd:u", -7)
        await stage.redis.hincrby(keys.use(ACME), f"t:{ACME}:con:h", 1)
        found = await stage.auditor.check(tenant_id=ACME)
        assert found.drifts == [
            Drift(counter=f"t:{ACME}:spd", what="used", found=2 * stage.cost - 7, expected=2 * stage.cost),
            Drift(counter=f"t:{ACME}:con", what="held", found=1, expected=0),
        ]

    async def test_says_that_the_meter_is_behind_in_place_of_a_false_drift(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits_audit, "METER_SECONDS", 0.05)
        await stage.run(1)
        stage.wait(10 * MINUTE_MS)
        found = await stage.auditor.check(tenant_id=ACME)
        assert (found.skipped, found.drifts) == ("the meter is behind", [])

    async def test_a_limit_set_within_its_window_learns_what_was_used_before(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await stage.run(3, caps=CAPS[1:])
        stage.wait(10 * MINUTE_MS)
        young = [replace(CAPS[0], since_ms=stage.limits.time_ms), *CAPS[1:]]
        await stage.run(1)
        stage.wait(10 * MINUTE_MS)
        await stage.meter()
        limits = [replace(each, limit=of) for each, of in zip(await stage.auditor.limits_of(ACME), young, strict=True)]

        async def limits_of(tenant_id: str) -> list[CountedLimit]:
            return limits

        found = await replace(stage.auditor, limits_of=limits_of).check(tenant_id=ACME)
        assert (found.renewed, found.drifts) == (1, [])
        assert (await stage.used())[0] == 4 * stage.cost
        again = await replace(stage.auditor, limits_of=limits_of).check(tenant_id=ACME)
        assert (again.renewed, again.drifts) == (0, [])


class TestBeginning:
    """Limits that begin at 12:10 where three requests have been, one is under way and one was admitted without them
    a little later.
    """

    @pytest.fixture
    async def begun(self, stage: Stage) -> Stage:
        await stage.run(3, caps=())
        stage.wait(9 * MINUTE_MS)
        await stage.run(1, caps=(), settled=False)
        stage.wait(MINUTE_MS)
        young = [
            replace(each, limit=replace(each.limit, since_ms=stage.limits.time_ms))
            for each in await stage.auditor.limits_of(ACME)
        ]

        async def limits_of(tenant_id: str) -> list[CountedLimit]:
            return young

        stage.auditor = replace(stage.auditor, limits_of=limits_of)
        stage.wait(1_000)
        await stage.run(1, caps=())
        await stage.meter()
        return stage

    def counts(self, stage: Stage, requests: int) -> list[int]:
        return [requests * stage.cost, requests * stage.cost, requests * TOKENS]

    async def begin(self, stage: Stage) -> int:
        found = await stage.auditor.begin(tenant_id=ACME, timezone="UTC")
        assert (found.drifts, found.skipped) == ([], "")
        return found.renewed

    async def test_counts_at_once_what_was_used_before(self, begun: Stage) -> None:
        assert await begun.used() == [0, 0, 0]
        assert await self.begin(begun) == 3
        assert await begun.used() == self.counts(begun, 3)

    async def test_keeps_what_was_used_since(self, begun: Stage) -> None:
        await begun.run(2)
        await begun.run(1, settled=False)
        await begun.meter()
        assert await self.begin(begun) == 3
        assert await begun.used() == self.counts(begun, 3 + 2)
        assert int(await begun.redis.hget(keys.use(ACME), f"t:{ACME}:spd:h") or 0) == begun.cost

    async def test_happens_once(self, begun: Stage) -> None:
        await self.begin(begun)
        await begun.run(1)
        await begun.meter()
        await begun.redis.hincrby(keys.use(ACME), f"t:{ACME}:spd:u", 7)
        assert await self.begin(begun) == 0
        assert (await begun.used())[0] == 4 * begun.cost + 7

    async def test_what_was_admitted_without_it_is_brought_in_by_the_check_and_is_no_drift(self, begun: Stage) -> None:
        await self.begin(begun)
        await begun.run(1)
        await begun.end(request(4).request_id, NOON + 9 * MINUTE_MS)
        await begun.meter()
        for waited, renewed in ((30_000, 0), (10 * MINUTE_MS, 3), (MINUTE_MS, 0)):
            begun.wait(waited)
            found = await begun.auditor.check(tenant_id=ACME)
            assert (found.renewed, found.drifts, found.skipped) == (renewed, [], "")
        assert await begun.used() == self.counts(begun, 6)

    async def test_a_counter_of_an_earlier_life_begins_anew(self, begun: Stage) -> None:
        """It was taken away and set again: what it counted then is in the meter's sums."""
        begun.wait(-10 * MINUTE_MS - 1_000)
        await begun.run(1)
        begun.wait(10 * MINUTE_MS + 1_000)
        await begun.meter()
        assert await self.begin(begun) == 3
        assert await begun.used() == self.counts(begun, 4)

    async def test_a_window_that_is_over_is_left_to_the_next_hold(self, begun: Stage) -> None:
        begun.wait(-24 * 60 * MINUTE_MS)
        await begun.run(1)
        begun.wait(24 * 60 * MINUTE_MS)
        await begun.meter()
        await self.begin(begun)
        assert (await begun.used())[0] == begun.cost
        await begun.run(1)
        await begun.meter()
        assert await self.begin(begun) == 1
        assert (await begun.used())[0] == 4 * begun.cost


class TestRebuild:
    async def test_makes_lost_counters_anew_in_the_window_of_now(self, stage: Stage) -> None:
        await stage.run(3)
        await stage.meter()
        await stage.redis.delete(keys.use(ACME))
        await stage.auditor.rebuild(tenant_id=ACME, timezone="UTC")
        assert await stage.used() == [3 * stage.cost, 3 * stage.cost, 3 * TOKENS]
        stage.wait(10 * MINUTE_MS)
        assert (await stage.auditor.check(tenant_id=ACME)).drifts == []

    async def test_repairs_used_and_held_and_leaves_open_requests_held(self, stage: Stage) -> None:
        await stage.run(2)
        stage.wait(10 * MINUTE_MS)
        await stage.run(1)
        await stage.run(1, settled=False)
        await stage.meter()
        for field in (f"t:{ACME}:spd:u", f"t:{ACME}:spd:h", f"t:{ACME}:con:h"):
            await stage.redis.hset(keys.use(ACME), field, 99)
        assert (await stage.auditor.rebuild(tenant_id=ACME, timezone="UTC")).renewed == 2
        assert await stage.used() == [3 * stage.cost, 3 * stage.cost, 3 * TOKENS]
        held = await stage.redis.hmget(keys.use(ACME), [f"t:{ACME}:spd:h", f"t:{ACME}:con:h"])
        assert [int(value or 0) for value in held] == [stage.cost, 1]
        assert (await stage.auditor.check(tenant_id=ACME)).drifts == []


class TestPrepaid:
    """Its counter begins with what the ledger had posted; from then on it is a lifetime's as any other."""

    @pytest.fixture
    def beside(self, stage: Stage) -> Stage:
        """The limit begins after 3 requests, while a fourth runs that was admitted without it."""
        own = replace(limit(Metric.PREPAID_CREDIT, 10**12), since_ms=NOON + 10 * MINUTE_MS)

        async def limits_of(tenant_id: str) -> list[CountedLimit]:
            return [CountedLimit(limit=own, owner_id=ACME, counter=f"t:{ACME}:pre")]

        stage.auditor = replace(stage.auditor, limits_of=limits_of)
        return stage

    async def begin(self, stage: Stage) -> str:
        """The id of the request under way."""
        await stage.run(3, caps=())
        stage.wait(9 * MINUTE_MS)
        await stage.run(1, caps=(CAPS[3],), settled=False)
        stage.wait(MINUTE_MS)
        begin = load_scripts(Path(buckets.__file__).parent / "scripts")["begin"].bind(stage.redis)
        await begin(keys=[keys.use(ACME)], args=[stage.limits.time_ms, f"t:{ACME}:pre", 3 * stage.cost])
        return request(4).request_id

    async def used_of(self, stage: Stage) -> int:
        return int(await stage.redis.hget(keys.use(ACME), f"t:{ACME}:pre:u") or 0)

    async def test_learns_of_requests_that_were_under_way_when_it_began(self, beside: Stage) -> None:
        under_way = await self.begin(beside)
        caps = (limit(Metric.PREPAID_CREDIT, 10**12),)
        await beside.run(2, caps=caps)
        await beside.end(under_way, NOON + 9 * MINUTE_MS)
        assert await self.used_of(beside) == 5 * beside.cost
        beside.wait(12 * MINUTE_MS)
        await beside.meter()
        found = await beside.auditor.check(tenant_id=ACME)
        assert (found.renewed, found.drifts, await self.used_of(beside)) == (1, [], 6 * beside.cost)
        await beside.run(1, caps=caps)
        beside.wait(12 * MINUTE_MS)
        await beside.meter()
        found = await beside.auditor.check(tenant_id=ACME)
        assert (found.renewed, found.drifts, await self.used_of(beside)) == (0, [], 7 * beside.cost)

    async def test_a_rebuild_from_the_meter_keeps_it(self, beside: Stage) -> None:
        await beside.end(await self.begin(beside), NOON + 9 * MINUTE_MS)
        await beside.run(2, caps=(limit(Metric.PREPAID_CREDIT, 10**12),))
        await beside.meter()
        await beside.redis.delete(keys.use(ACME))
        await beside.auditor.rebuild(tenant_id=ACME, timezone="UTC")
        assert await self.used_of(beside) == 6 * beside.cost
