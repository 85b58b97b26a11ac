"""hold, start, settle and void on a real Valkey, at a time that the tests set."""

import asyncio
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from contracts.errors import BudgetSpent, LimitExceeded
from contracts.tenancy import Metric, Scope
from contracts.tokens import TokenCounts
from tenants.limits import keys
from tenants.limits.buckets import Limits
from tenants.limits.holds import (
    HoldGranted,
    Idempotency,
    RateLimited,
)
from tests.functional.tenants.cast import ACME, HINT, KEY, MALLORY, NOON, limit, request
from tests.functional.tenants.holding import settle, snapshot, start, use_of, void

DAY_MS = 86_400_000


@pytest.fixture
async def limits(redis: Redis) -> Limits:
    limits = Limits(redis, time_ms=NOON)
    await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
    return limits


class TestHold:
    async def test_holds_the_worst_case_in_every_scope(self, limits: Limits) -> None:
        caps = [limit(Metric.TOKENS_PER_DAY, 100, scope) for scope in Scope]
        granted = await limits.hold(request(1, *caps))
        assert isinstance(granted, HoldGranted)
        assert (granted.output_tokens, granted.cut, granted.admitted_at_ms) == (20, False, NOON)
        assert await use_of(limits, *caps) == [(0, 30)] * 3

    async def test_refuses_in_one_scope_and_changes_no_counter(self, limits: Limits, redis: Redis) -> None:
        caps = [limit(Metric.TOKENS_PER_DAY, 1_000), limit(Metric.TOKENS_PER_DAY, 29, Scope.KEY)]
        before = await snapshot(redis)
        with pytest.raises(RateLimited, match="tokens per day of the API key reached: limit 29, used 0"):
            await limits.hold(request(1, *caps, idempotency=Idempotency(key_digest="k", body_digest="b")))
        assert await snapshot(redis) == before
        assert await redis.keys("*idem*") == []

    async def test_lets_exactly_the_cap_through_when_all_come_at_once(self, limits: Limits) -> None:
        caps = (limit(Metric.SPEND_PER_DAY, 10_000),)

        async def one(number: int) -> bool:
            try:
                await limits.hold(request(number, *caps))
            except LimitExceeded:
                return False
            return True

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in range(60)]
        assert sum(task.result() for task in tasks) == 10
        assert await use_of(limits, *caps) == [(0, 10_000)]

    async def test_answers_a_repeat_of_the_same_request_without_holding_twice(self, limits: Limits) -> None:
        cap = limit(Metric.CONCURRENT_REQUESTS, 5)
        first = await limits.hold(request(1, cap))
        assert await limits.hold(request(1, cap)) == first
        assert await use_of(limits, cap) == [(0, 1)]

    async def test_a_cap_of_zero_blocks_and_no_waiting_is_promised(self, limits: Limits) -> None:
        with pytest.raises(RateLimited, match="Blocked: the limit on requests per minute") as caught:
            await limits.hold(request(1, limit(Metric.REQUESTS_PER_MINUTE, 0)))
        assert caught.value.retry_after_ms is None
        with pytest.raises(BudgetSpent):
            await limits.hold(request(2, limit(Metric.SPEND_PER_DAY, 0), cost_max_nano=0))

    async def test_a_request_without_cost_passes_a_spent_budget(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_LIFETIME, 1_000)
        await limits.hold(request(1, cap))
        await settle(limits, 1, cost=1_000)
        assert isinstance(await limits.hold(request(2, cap, cost_max_nano=0)), HoldGranted)

    async def test_refuses_amounts_that_would_lose_digits(self, limits: Limits) -> None:
        for changes in ({"prompt_tokens": -1}, {"output_tokens_max": 2**64}, {"cost_max_nano": -1}, {"choices": 0}):
            with pytest.raises(ValueError, match="must"):
                await limits.hold(request(1, **changes))

    async def test_keeps_every_digit_of_a_large_amount(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_LIFETIME, 9_000_000_000_000_000)
        await limits.hold(request(1, cap, cost_max_nano=8_999_999_999_999_999))
        settled = await settle(limits, 1, cost=8_999_999_999_999_998)
        assert settled.cost_nano == 8_999_999_999_999_998
        assert await use_of(limits, cap) == [(8_999_999_999_999_998, 0)]
        await limits.hold(request(2, cap, cost_max_nano=2))
        with pytest.raises(LimitExceeded):
            await limits.hold(request(3, cap, cost_max_nano=1))

    async def test_tenants_do_not_share_counters(self, limits: Limits) -> None:
        cap = limit(Metric.REQUESTS_PER_MINUTE, 1)
        await limits.set_epochs(tenant_id=MALLORY, keys={KEY: 1}, tenant_epoch=1)
        await limits.hold(request(1, cap))
        assert isinstance(await limits.hold(request(2, cap, tenant_id=MALLORY)), HoldGranted)


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("metric", "cap"),
        [(Metric.REQUESTS_PER_MINUTE, 7), (Metric.INPUT_TOKENS_PER_MINUTE, 77), (Metric.TOKENS_PER_DAY, 100)],
    )
    async def test_a_client_that_waits_so_long_gets_in_and_not_before(
        self, limits: Limits, metric: Metric, cap: int
    ) -> None:
        wait = None
        for number in range(1, 20):
            try:
                await limits.hold(request(number, limit(metric, cap)))
            except RateLimited as error:
                wait = error.retry_after_ms
                break
            await settle(limits, number)
        assert wait is not None
        limits.time_ms = NOON + wait - 1
        with pytest.raises(RateLimited):
            await limits.hold(request(900, limit(metric, cap)))
        limits.time_ms = NOON + wait
        assert isinstance(await limits.hold(request(901, limit(metric, cap))), HoldGranted)

    async def test_output_tokens_that_were_written_drain_by_the_minute(self, limits: Limits) -> None:
        cap = limit(Metric.OUTPUT_TOKENS_PER_MINUTE, 25)
        await limits.hold(request(1, cap))
        await settle(limits, 1, counts=TokenCounts(prompt=10, completion=20))
        with pytest.raises(RateLimited) as caught:
            await limits.hold(request(2, cap))
        assert caught.value.retry_after_ms == 36_000  # 15 of 25 tokens per minute
        limits.time_ms = NOON + 36_000
        assert isinstance(await limits.hold(request(2, cap)), HoldGranted)

    async def test_names_the_longest_wait_of_all_that_refuse(self, limits: Limits) -> None:
        caps = (limit(Metric.REQUESTS_PER_MINUTE, 60), limit(Metric.TOKENS_PER_DAY, 40))
        await limits.hold(request(1, *caps))
        await settle(limits, 1, counts=TokenCounts(prompt=10, completion=20))
        with pytest.raises(RateLimited, match="tokens per day of the organization") as caught:
            await limits.hold(request(2, *caps))
        assert caught.value.retry_after_ms == 12 * 3_600_000

    async def test_money_held_by_requests_under_way_is_not_called_spent(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_PER_MONTH, 1_500)
        await limits.hold(request(1, cap))
        with pytest.raises(RateLimited) as caught:
            await limits.hold(request(2, cap))
        assert caught.value.retry_after_ms == 1_000
        await settle(limits, 1, cost=900)
        with pytest.raises(BudgetSpent, match=r"limit 0\.0000015 USD, used 0\.0000009 USD"):
            await limits.hold(request(2, cap))


class TestHeaders:
    async def test_carry_the_tightest_limit(self, limits: Limits) -> None:
        granted = await limits.hold(
            request(
                1,
                limit(Metric.REQUESTS_PER_MINUTE, 60),
                limit(Metric.REQUESTS_PER_MINUTE, 30, Scope.KEY),
                limit(Metric.TOKENS_PER_DAY, 1_000),
                limit(Metric.OUTPUT_TOKENS_PER_MINUTE, 100),
            )
        )
        assert isinstance(granted, HoldGranted)
        assert granted.requests is not None
        assert granted.tokens is not None
        assert (granted.requests.limit, granted.requests.remaining, granted.requests.reset_ms) == (30, 29, 2_000)
        assert (granted.tokens.limit, granted.tokens.remaining) == (100, 80)

    async def test_are_on_a_refusal_too(self, limits: Limits) -> None:
        cap = limit(Metric.REQUESTS_PER_MINUTE, 1)
        await limits.hold(request(1, cap))
        with pytest.raises(RateLimited) as caught:
            await limits.hold(request(2, cap))
        assert caught.value.requests is not None
        assert (caught.value.requests.remaining, caught.value.requests.reset_ms) == (0, 60_000)
        assert caught.value.retry_after_ms == 60_000


class TestWindows:
    async def test_a_request_counts_in_the_window_of_its_admission_only(self, limits: Limits) -> None:
        cap = limit(Metric.TOKENS_PER_DAY, 100)
        await limits.hold(request(1, cap))
        limits.time_ms = NOON + DAY_MS
        await limits.hold(request(2, cap))
        assert await use_of(limits, cap) == [(0, 30)]
        await settle(limits, 1)
        assert await use_of(limits, cap) == [(0, 30)]
        await settle(limits, 2)
        assert await use_of(limits, cap) == [(15, 0)]

    async def test_midnight_is_the_tenants(self, limits: Limits) -> None:
        cap = limit(Metric.TOKENS_PER_DAY, 30)
        limits.time_ms = 1_800_037_799_999  # 23:59:59.999 in Kolkata, 18:29:59.999 UTC
        await limits.hold(request(1, cap, timezone="Asia/Kolkata"))
        with pytest.raises(LimitExceeded):
            await limits.hold(request(2, cap, timezone="Asia/Kolkata"))
        limits.time_ms += 1
        assert isinstance(await limits.hold(request(2, cap, timezone="Asia/Kolkata")), HoldGranted)

    async def test_the_slots_clock_stands_where_ours_is_wrong(self, redis: Redis) -> None:
        class WrongClock:
            def now_ms(self) -> int:
                return 946_684_800_000

            def monotonic(self) -> float:
                return 0.0

        limits = Limits(redis, clock=WrongClock())
        await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
        cap = limit(Metric.TOKENS_PER_DAY, 30)
        granted = await limits.hold(request(1, cap))
        assert isinstance(granted, HoldGranted)
        assert granted.admitted_at_ms > 1_700_000_000_000
        assert await use_of(limits, cap) == [(0, 30)]

    async def test_moving_west_does_not_empty_the_day(self, limits: Limits) -> None:
        cap = limit(Metric.TOKENS_PER_DAY, 30)
        await limits.hold(request(1, cap, timezone="Pacific/Kiritimati"))
        with pytest.raises(LimitExceeded):
            await limits.hold(request(2, cap, timezone="America/Adak"))


class TestStart:
    async def test_marks_running_and_may_be_repeated(self, limits: Limits) -> None:
        await limits.hold(request(1))
        assert await start(limits, 1)
        assert await start(limits, 1)
        assert await start(limits, 1, fence="2-b", attempt=2)
        assert not await start(limits, 1, fence="1-a", attempt=1)

    async def test_is_refused_after_the_end_and_for_an_unknown_hold(self, limits: Limits) -> None:
        await limits.hold(request(1))
        await limits.hold(request(2))
        assert await void(limits, 1)
        await settle(limits, 2)
        assert [await start(limits, number) for number in (1, 2, 3)] == [False, False, False]


class TestQueuedRequests:
    cap = limit(Metric.QUEUED_REQUESTS, 1, Scope.PROJECT)

    async def test_count_until_they_first_run(self, limits: Limits) -> None:
        await limits.hold(request(1, self.cap))
        with pytest.raises(RateLimited, match="queued requests of the project reached: limit 1") as caught:
            await limits.hold(request(2, self.cap))
        assert caught.value.retry_after_ms == 1_000
        assert await start(limits, 1)
        assert await start(limits, 1, fence="2-b", attempt=2)
        assert await use_of(limits, self.cap) == [(0, 0)]
        assert isinstance(await limits.hold(request(2, self.cap)), HoldGranted)

    async def test_are_given_back_once_however_they_end(self, limits: Limits) -> None:
        cap = replace(self.cap, cap=5)
        for number in (1, 2, 3, 4):
            await limits.hold(request(number, cap))
        await start(limits, 1)
        await settle(limits, 1)
        await settle(limits, 2)
        await void(limits, 3)
        assert await use_of(limits, cap) == [(0, 1)]


class TestModels:
    async def test_a_limit_of_one_model_counts_apart(self, limits: Limits) -> None:
        mine, other = limit(Metric.TOKENS_PER_DAY, 40, model="a"), limit(Metric.TOKENS_PER_DAY, 40, model="b")
        both = limit(Metric.TOKENS_PER_DAY, 100)
        await limits.hold(request(1, both, mine))
        with pytest.raises(RateLimited, match="tokens per day of the organization for the model a reached"):
            await limits.hold(request(2, both, mine))
        await limits.hold(request(3, both, other))
        await settle(limits, 1)
        assert await use_of(limits, both, mine, other) == [(15, 30), (15, 0), (0, 30)]

    async def test_a_lost_hold_is_charged_to_its_model_too(self, limits: Limits) -> None:
        mine = limit(Metric.SPEND_LIFETIME, 10_000, model="a")
        await limits.hold(request(1, mine))
        await settle(limits, 2, hint=replace(HINT, model="a"))
        await settle(limits, 3, hint=replace(HINT, model="b"))
        assert await use_of(limits, mine) == [(300, 1_000)]


async def told(redis: Redis) -> list[tuple[str, str, str]]:
    """(counter code, window, what) of the alerts so far, oldest first."""
    entries = await redis.xrange(keys.alerts(ACME))
    return [(f[b"counter"].decode(), f[b"window"].decode(), f[b"told"].decode()) for _, f in entries]


class TestAlerts:
    cap = limit(Metric.SPEND_PER_DAY, 2_000, alerts=(50, 80, 100))
    name = f"t:{ACME}:spd"

    async def test_each_threshold_is_told_once_in_its_window(self, limits: Limits, redis: Redis) -> None:
        for number, cost in enumerate((900, 100, 100, 700, 200), start=1):
            await limits.hold(request(number, self.cap, cost_max_nano=cost))
            await settle(limits, number, cost=cost)
            await settle(limits, number, cost=cost)
        day = "2027-01-15"
        assert await told(redis) == [
            (self.name, day, "50"), (self.name, day, "80"), (self.name, day, "100"), (self.name, day, "spent"),
        ]  # fmt: skip
        assert await redis.smembers(keys.ALERTED) == {ACME.encode()}
        limits.time_ms = NOON + DAY_MS
        await limits.hold(request(9, self.cap))
        await settle(limits, 9, cost=1_000)
        assert (await told(redis))[4:] == [(self.name, "2027-01-16", "50")]

    async def test_one_settlement_may_cross_several(self, limits: Limits, redis: Redis) -> None:
        await limits.hold(request(1, self.cap, cost_max_nano=1_900))
        await settle(limits, 1, cost=1_900)
        assert [what for _, _, what in await told(redis)] == ["50", "80"]

    async def test_a_refusal_says_spent_only_where_the_shortest_answer_does_not_fit(
        self, limits: Limits, redis: Redis
    ) -> None:
        cap = limit(Metric.SPEND_LIFETIME, 1_500)
        await limits.hold(request(1, cap))
        await settle(limits, 1, cost=1_000)
        dear = {"cost_max_nano": 1_200, "output_nano_per_token": 50}  # 200 for the prompt, 250 for the shortest answer
        with pytest.raises(BudgetSpent):
            await limits.hold(request(2, cap, **dear))
        assert await told(redis) == []
        await limits.hold(request(3, cap, cost_max_nano=300))
        await settle(limits, 3, cost=300)
        for number in (4, 5):
            with pytest.raises(BudgetSpent):
                await limits.hold(request(number, cap, **dear))
        assert await told(redis) == [(f"t:{ACME}:spl", "ever", "spent")]

    async def test_a_raised_cap_is_watched_anew(self, limits: Limits, redis: Redis) -> None:
        await limits.hold(request(1, self.cap))
        await settle(limits, 1, cost=1_000)
        raised = replace(self.cap, cap=4_000)
        await limits.hold(request(2, raised))
        await settle(limits, 2, cost=1_000)
        assert [what for _, _, what in await told(redis)] == ["50", "50"]


class TestOpenHolds:
    async def test_are_listed_with_their_key_for_a_revocation(self, limits: Limits) -> None:
        for number in (1, 2, 3):
            await limits.hold(request(number))
        await start(limits, 2)
        await settle(limits, 3)
        found = {hold.request_id: (hold.api_key_id, hold.pool) async for hold in limits.open_holds(tenant_id=ACME)}
        assert found == {request(number).request_id: (KEY, "demo") for number in (1, 2)}

    async def test_blocked_keys_are_told_from_the_others(self, limits: Limits) -> None:
        await limits.set_epochs(tenant_id=ACME, keys={KEY: -2, "other": 1}, tenant_epoch=1)
        assert await limits.blocked_keys(tenant_id=ACME, key_ids=[KEY, "other", "unknown"]) == {KEY}
        await limits.set_epochs(tenant_id=ACME, keys={}, tenant_epoch=-2)
        assert await limits.blocked_keys(tenant_id=ACME, key_ids=[KEY, "other"]) == {KEY, "other"}
