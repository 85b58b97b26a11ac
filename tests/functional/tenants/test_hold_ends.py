"""How holds end on a real Valkey: settled, voided, swept; and what repeats, cuts and epochs do to them."""

from dataclasses import replace

import pytest
from redis.asyncio import Redis

from contracts.errors import AuthFailed, BudgetSpent, LimitExceeded, PermissionDenied, Unavailable
from contracts.tenancy import Metric, Scope
from contracts.tokens import TokenCounts
from stores.redis import open_redis
from tenants.limits import keys
from tenants.limits.buckets import Limits
from tenants.limits.holds import (
    EpochUnknown,
    HoldExisting,
    HoldGranted,
    HoldState,
    Idempotency,
)
from tenants.limits.policy import RULES, Kind
from tests.functional.tenants.cast import ACME, HINT, KEY, MALLORY, NOON, limit, request
from tests.functional.tenants.holding import settle, start, use_of, void

COUNTED = [metric for metric in Metric if RULES[metric].kind is not Kind.REQUEST]


@pytest.fixture
async def limits(redis: Redis) -> Limits:
    limits = Limits(redis, time_ms=NOON)
    await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
    return limits


class TestSettle:
    async def test_the_first_settlement_stands(self, limits: Limits) -> None:
        caps = (limit(Metric.SPEND_PER_DAY, 5_000), limit(Metric.CONCURRENT_REQUESTS, 2))
        await limits.hold(request(1, *caps))
        await start(limits, 1)
        first = await settle(limits, 1, cost=300)
        again = await settle(limits, 1, cost=999)
        assert (first.first, first.cost_nano, first.outcome) == (True, 300, "ok")
        assert (again.first, again.cost_nano, again.outcome) == (False, 300, "ok")
        assert await use_of(limits, *caps) == [(300, 0), (0, 0)]

    async def test_a_voided_request_costs_nothing_when_settled(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_PER_DAY, 5_000)
        await limits.hold(request(1, cap))
        await void(limits, 1)
        assert (await settle(limits, 1)).cost_nano == 0
        assert await use_of(limits, cap) == [(0, 0)]

    async def test_charges_a_lost_hold_where_its_counters_stand(self, limits: Limits, redis: Redis) -> None:
        caps = (
            limit(Metric.SPEND_PER_DAY, 5_000),
            limit(Metric.SPEND_LIFETIME, 9_000, Scope.PROJECT),
            limit(Metric.CONCURRENT_REQUESTS, 5),
        )
        await limits.hold(request(1, *caps))
        await settle(limits, 1)
        given = Idempotency(key_digest="k", body_digest="b")
        settled = await settle(limits, 2, hint=replace(HINT, idempotency=given))
        assert settled.first
        assert not (await settle(limits, 2)).first
        assert await use_of(limits, *caps) == [(600, 0), (600, 0), (0, 0)]
        retry = await limits.hold(request(3, *caps, idempotency=given))
        assert retry == HoldExisting(
            request_id=request(2).request_id, state=HoldState.SETTLED, body_matches=True, admitted_at_ms=NOON
        )

    async def test_a_lost_hold_of_yesterday_is_not_charged_today(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_PER_DAY, 5_000)
        await limits.hold(request(1, cap))
        await settle(limits, 2, hint=replace(HINT, admitted_at_ms=NOON - 5 * 3_600_000))
        assert await use_of(limits, cap) == [(300, 1_000)]
        limits.time_ms = NOON + 13 * 3_600_000
        await limits.hold(request(3, cap))
        await settle(limits, 4, hint=replace(HINT, admitted_at_ms=NOON + 11 * 3_600_000))
        assert await use_of(limits, cap) == [(0, 1_000)]

    async def test_a_result_that_is_kept_no_longer_was_settled_long_ago(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_LIFETIME, 5_000)
        await limits.hold(request(1, cap))
        settled = await settle(limits, 2, hint=replace(HINT, admitted_at_ms=NOON - 7 * 3_600_000))
        assert not settled.first
        assert await use_of(limits, cap) == [(0, 1_000)]

    async def test_leaves_nothing_open(self, limits: Limits, redis: Redis) -> None:
        await limits.hold(request(1, limit(Metric.TOKENS_PER_DAY, 100)))
        await settle(limits, 1)
        assert await redis.zcard(keys.holds(ACME)) == 0
        assert await redis.pttl(keys.hold(ACME, request(1).request_id)) > 0


class TestVoid:
    async def test_gives_everything_back_once(self, limits: Limits) -> None:
        caps = tuple(limit(metric, 10_000, scope) for metric in COUNTED for scope in Scope)
        await limits.hold(request(1, *caps))
        assert await void(limits, 1)
        assert await void(limits, 1)
        assert await use_of(limits, *caps) == [(0, 0)] * len(caps)

    async def test_never_touches_what_runs_or_is_unknown(self, limits: Limits) -> None:
        cap = limit(Metric.CONCURRENT_REQUESTS, 1)
        await limits.hold(request(1, cap))
        await start(limits, 1)
        assert not await void(limits, 1)
        assert not await void(limits, 2)
        assert await use_of(limits, cap) == [(0, 1)]

    async def test_gives_back_no_more_than_has_not_drained(self, limits: Limits) -> None:
        cap = limit(Metric.REQUESTS_PER_MINUTE, 1)
        await limits.hold(request(1, cap))
        limits.time_ms = NOON + 60_000
        await limits.hold(request(2, cap))
        await void(limits, 1)
        with pytest.raises(LimitExceeded):
            await limits.hold(request(3, cap))

    async def test_nor_does_a_settlement_with_fewer_tokens(self, limits: Limits) -> None:
        cap = limit(Metric.INPUT_TOKENS_PER_MINUTE, 10)
        await limits.hold(request(1, cap))
        limits.time_ms = NOON + 60_000
        await limits.hold(request(2, cap))
        await settle(limits, 1, counts=TokenCounts())
        with pytest.raises(LimitExceeded):
            await limits.hold(request(3, cap, prompt_tokens=1))
        await settle(limits, 2, counts=TokenCounts())
        assert isinstance(await limits.hold(request(3, cap, prompt_tokens=1)), HoldGranted)


class TestIdempotency:
    given = Idempotency(key_digest="k", body_digest="b")

    async def test_a_retry_finds_the_first_request(self, limits: Limits) -> None:
        cap = limit(Metric.CONCURRENT_REQUESTS, 1)
        await limits.hold(request(1, cap, idempotency=self.given))
        same = await limits.hold(request(2, cap, idempotency=self.given))
        other = await limits.hold(request(3, cap, idempotency=replace(self.given, body_digest="c")))
        first = request(1).request_id
        assert same == HoldExisting(
            request_id=first, state=HoldState.HELD, body_matches=True, admitted_at_ms=NOON, output_tokens=20
        )
        assert other == replace(same, body_matches=False)
        await settle(limits, 1)
        assert await limits.hold(request(4, cap, idempotency=self.given)) == replace(same, state=HoldState.SETTLED)

    async def test_a_voided_request_gives_its_key_back(self, limits: Limits) -> None:
        await limits.hold(request(1, idempotency=self.given))
        assert await void(limits, 1)
        assert isinstance(await limits.hold(request(2, idempotency=self.given)), HoldGranted)
        assert isinstance(await limits.hold(request(3, idempotency=self.given)), HoldExisting)

    async def test_the_record_ends_with_its_time(self, limits: Limits, redis: Redis) -> None:
        await limits.hold(request(1, idempotency=self.given))
        left = await redis.pttl(keys.idempotency(ACME, "k"))
        assert 86_000_000 < left <= 86_400_000

    async def test_settle_writes_a_lost_record_again(self, limits: Limits, redis: Redis) -> None:
        await limits.hold(request(1, idempotency=self.given))
        await redis.delete(keys.idempotency(ACME, "k"))
        await settle(limits, 1)
        again = await limits.hold(request(2, idempotency=self.given))
        assert isinstance(again, HoldExisting)
        assert again.request_id == request(1).request_id


class TestCutToAffordable:
    caps = (limit(Metric.SPEND_PER_DAY, 700),)

    async def test_grants_what_money_leaves_only_when_asked(self, limits: Limits) -> None:
        with pytest.raises(BudgetSpent):
            await limits.hold(request(1, *self.caps, output_nano_per_token=40))
        granted = await limits.hold(request(2, *self.caps, output_nano_per_token=40, cut_to_affordable=True, choices=2))
        assert isinstance(granted, HoldGranted)
        # 1,000 = 200 for the prompt + 20 x 40; 500 are left: 12 tokens
        assert (granted.output_tokens, granted.cut) == (12, True)
        assert await use_of(limits, *self.caps) == [(0, 680)]

    async def test_refuses_where_not_one_token_is_affordable(self, limits: Limits) -> None:
        with pytest.raises(BudgetSpent):
            await limits.hold(
                request(1, limit(Metric.SPEND_PER_DAY, 239), output_nano_per_token=40, cut_to_affordable=True)
            )


class TestEpochs:
    async def test_unknown_epochs_are_told_apart_from_revoked_ones(self, limits: Limits) -> None:
        with pytest.raises(EpochUnknown, match="unknown"):
            await limits.hold(request(1, tenant_id=MALLORY))
        await limits.set_epochs(tenant_id=ACME, keys={KEY: -2}, tenant_epoch=1)
        with pytest.raises(AuthFailed):
            await limits.hold(request(1))

    async def test_a_suspended_tenant_is_refused_until_it_returns(self, limits: Limits) -> None:
        await limits.set_epochs(tenant_id=ACME, keys={}, tenant_epoch=-2)
        with pytest.raises(PermissionDenied):
            await limits.hold(request(1))
        await limits.set_epochs(tenant_id=ACME, keys={}, tenant_epoch=3)
        with pytest.raises(EpochUnknown, match="stale"):
            await limits.hold(request(1))
        assert isinstance(await limits.hold(request(1, tenant_epoch=3)), HoldGranted)

    async def test_an_older_reload_never_undoes_a_revocation(self, limits: Limits) -> None:
        await limits.set_epochs(tenant_id=ACME, keys={KEY: -2}, tenant_epoch=1)
        await limits.set_epochs(tenant_id=ACME, keys={KEY: 2}, tenant_epoch=1)
        await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
        with pytest.raises(AuthFailed):
            await limits.hold(request(1))

    async def test_a_newer_context_overtakes_a_push_that_has_not_come(self, limits: Limits) -> None:
        assert isinstance(await limits.hold(request(1, key_epoch=4)), HoldGranted)
        with pytest.raises(EpochUnknown, match="stale"):
            await limits.hold(request(2, key_epoch=3))


class TestSweep:
    async def test_lists_open_holds_past_their_deadline_and_shares_the_work(self, limits: Limits) -> None:
        for number in (1, 2, 3):
            await limits.hold(request(number))
        await start(limits, 2)
        await settle(limits, 3)
        assert await limits.due(tenant_id=ACME, margin_ms=0, limit=10) == []
        limits.time_ms = NOON + 11_000
        due = await limits.due(tenant_id=ACME, margin_ms=500, limit=10)
        assert [(hold.request_id, hold.pool, hold.state) for hold in due] == [
            (request(1).request_id, "demo", HoldState.HELD)
        ]
        assert await limits.due(tenant_id=ACME, margin_ms=500, limit=10) == []
        limits.time_ms = NOON + 700_000
        assert {hold.state for hold in await limits.due(tenant_id=ACME, margin_ms=0, limit=10)} == {
            HoldState.HELD,
            HoldState.RUNNING,
        }

    async def test_knows_every_tenant_that_may_hold(self, limits: Limits) -> None:
        await limits.set_epochs(tenant_id=MALLORY, keys={}, tenant_epoch=1)
        assert {tenant async for tenant in limits.tenants()} == {ACME, MALLORY}


class TestFailure:
    async def test_fails_closed_when_redis_is_away(self) -> None:
        client = open_redis("redis://127.0.0.1:1/0")
        with pytest.raises(Unavailable) as caught:
            await Limits(client).hold(request(1))
        assert caught.value.retry_after_ms == 1_000
        await client.aclose(close_connection_pool=True)
