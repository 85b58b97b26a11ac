"""A client that waits as long as it was told gets in, for every kind of limit; where it is told nothing, none would."""

import pytest
from redis.asyncio import Redis

from contracts.errors import BudgetSpent, LimitExceeded
from contracts.tenancy import Metric, Scope
from contracts.tokens import TokenCounts
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldGranted, RateLimited
from tenants.limits.policy import RULES, Amount, Kind
from tests.functional.tenants.cast import ACME, KEY, NOON, limit, request
from tests.functional.tenants.holding import settle, start, void

USED = TokenCounts(prompt=10, completion=20)  # all that `request` may use
EXACT = [metric for metric, rule in RULES.items() if rule.kind in (Kind.RATE, Kind.OUTPUT)]
EXACT += [Metric.TOKENS_PER_DAY, Metric.TOKENS_PER_MONTH]
MONEY = [Metric.SPEND_PER_DAY, Metric.SPEND_PER_MONTH, Metric.SPEND_LIFETIME]
UNDER_WAY = [Metric.CONCURRENT_REQUESTS, Metric.QUEUED_REQUESTS]
UNEVEN = 77  # no divisor of a minute: a wait that is rounded down would be too short


@pytest.fixture
async def limits(redis: Redis) -> Limits:
    limits = Limits(redis, time_ms=NOON)
    await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
    return limits


async def fill(limits: Limits, *caps: object, step_ms: int = 0) -> tuple[int, RateLimited]:
    """Lets requests in, each whole, until one is refused; how many, and what that one is told."""
    for number in range(1, 200):
        try:
            await limits.hold(request(number, *caps))  # type: ignore[arg-type]
        except RateLimited as error:
            return number - 1, error
        await settle(limits, number, counts=USED, cost=1_000)
        limits.time_ms += step_ms
    raise AssertionError("nobody was refused")


class TestWait:
    @pytest.mark.parametrize("step_ms", [0, 17, 333])
    @pytest.mark.parametrize("scope", Scope)
    @pytest.mark.parametrize("metric", EXACT)
    async def test_is_exact_for_buckets_and_windows(
        self, limits: Limits, metric: Metric, scope: Scope, step_ms: int
    ) -> None:
        cap = limit(metric, UNEVEN, scope)
        _, told = await fill(limits, cap, step_ms=step_ms)
        assert told.retry_after_ms is not None
        limits.time_ms += told.retry_after_ms - 1
        with pytest.raises(RateLimited):
            await limits.hold(request(900, cap))
        limits.time_ms += 1
        assert isinstance(await limits.hold(request(901, cap)), HoldGranted)

    @pytest.mark.parametrize("metric", EXACT)
    async def test_of_a_limit_of_one_model_is_exact_too(self, limits: Limits, metric: Metric) -> None:
        cap = limit(metric, UNEVEN, model="a")
        _, told = await fill(limits, cap)
        limits.time_ms += told.retry_after_ms or 0
        assert isinstance(await limits.hold(request(901, cap)), HoldGranted)

    async def test_is_enough_for_all_limits_that_refuse(self, limits: Limits) -> None:
        caps = tuple(limit(metric, UNEVEN, scope) for metric in EXACT for scope in Scope)
        _, told = await fill(limits, *caps)
        assert told.retry_after_ms is not None
        limits.time_ms += told.retry_after_ms
        assert isinstance(await limits.hold(request(901, *caps)), HoldGranted)

    @pytest.mark.parametrize("metric", UNDER_WAY)
    async def test_for_what_is_under_way_is_short_and_asked_again(self, limits: Limits, metric: Metric) -> None:
        cap = limit(metric, 1)
        await limits.hold(request(1, cap))
        for _ in range(3):
            with pytest.raises(RateLimited) as told:
                await limits.hold(request(2, cap))
            assert told.value.retry_after_ms == 1_000
            limits.time_ms += 1_000
        await start(limits, 1)
        if metric is Metric.CONCURRENT_REQUESTS:
            await settle(limits, 1)
        assert isinstance(await limits.hold(request(2, cap)), HoldGranted)

    @pytest.mark.parametrize("metric", MONEY)
    async def test_for_money_that_is_only_held_is_short(self, limits: Limits, metric: Metric) -> None:
        cap = limit(metric, 1_000)
        await limits.hold(request(1, cap))
        with pytest.raises(LimitExceeded) as told:
            await limits.hold(request(2, cap))
        assert not isinstance(told.value, BudgetSpent)
        assert told.value.retry_after_ms == 1_000
        await void(limits, 1)
        limits.time_ms += 1_000
        assert isinstance(await limits.hold(request(2, cap)), HoldGranted)


class TestNoWait:
    @pytest.mark.parametrize("metric", MONEY)
    async def test_is_promised_for_money_that_is_spent(self, limits: Limits, metric: Metric) -> None:
        cap = limit(metric, 1_500)
        await limits.hold(request(1, cap))
        await settle(limits, 1, cost=1_000)
        with pytest.raises(BudgetSpent):
            await limits.hold(request(2, cap))

    @pytest.mark.parametrize("metric", EXACT)
    async def test_is_promised_to_one_that_asks_for_more_than_the_cap(self, limits: Limits, metric: Metric) -> None:
        cap = limit(metric, 0 if RULES[metric].amount is Amount.REQUESTS else 9)
        with pytest.raises(RateLimited) as told:
            await limits.hold(request(1, cap))
        assert told.value.retry_after_ms is None
