"""Each guard line of the hold scripts by what would go wrong without it, on a real Valkey.

The state machine meets most of these by chance; here each is met for sure. Raw counters are read where a reader's own
arithmetic would hide the difference.
"""

from dataclasses import replace
from itertools import count

import pytest
from redis.asyncio import Redis

from contracts.clock import FakeClock
from contracts.errors import AuthFailed, BudgetSpent
from contracts.tenancy import Limit, Metric, Scope
from contracts.tokens import TokenCounts
from tenants.limits import calls, keys
from tenants.limits.buckets import Limits
from tenants.limits.holds import EpochUnknown, HoldExisting, HoldGranted, HoldState, Idempotency, RateLimited
from tenants.limits.policy import GRAINS, Window, window_of
from tests.functional.tenants.cast import ACME, HINT, KEY, NOON, PROJECT, limit, request
from tests.functional.tenants.holding import settle, start, use_of, void

DAY_MS = 86_400_000
NOTHING = TokenCounts()
IPM, OPM, RPM = Metric.INPUT_TOKENS_PER_MINUTE, Metric.OUTPUT_TOKENS_PER_MINUTE, Metric.REQUESTS_PER_MINUTE
CON, QUE = limit(Metric.CONCURRENT_REQUESTS, 9), limit(Metric.QUEUED_REQUESTS, 9)
GIVEN = Idempotency(key_digest="k", body_digest="b")


@pytest.fixture
async def limits(redis: Redis) -> Limits:
    limits = Limits(redis, time_ms=NOON)
    await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
    return limits


async def raw(redis: Redis, of: Limit, ending: str) -> str | None:
    """A counter's field as it is stored."""
    name = keys.counter(of, tenant_id=ACME, project_id=PROJECT, api_key_id=KEY)
    value = await redis.hget(keys.use(ACME), f"{name}:{ending}")
    return None if value is None else value.decode()


async def used(redis: Redis, of: Limit) -> float:
    """Tokens in a bucket, as stored."""
    return int(await raw(redis, of, "u") or 0) / GRAINS


async def told(redis: Redis) -> list[tuple[str, str]]:
    return [(f[b"window"].decode(), f[b"told"].decode()) for _, f in await redis.xrange(keys.alerts(ACME))]


async def granted(limits: Limits, number: int, *caps: Limit, **changes: object) -> HoldGranted:
    answer = await limits.hold(request(number, *caps, **changes))
    assert isinstance(answer, HoldGranted)
    return answer


class TestEpochs:
    @pytest.mark.parametrize("lost", ["tenant", KEY])
    async def test_either_of_both_that_is_not_known_is_asked_for(self, limits: Limits, redis: Redis, lost: str) -> None:
        await redis.hdel(keys.epoch(ACME), lost)
        with pytest.raises(EpochUnknown, match="unknown"):
            await limits.hold(request(1))

    async def test_a_newer_tenant_overtakes_the_push(self, limits: Limits) -> None:
        await granted(limits, 1, tenant_epoch=4)
        with pytest.raises(EpochUnknown, match="stale"):
            await limits.hold(request(2, tenant_epoch=3))

    async def test_a_block_stands_over_the_same_epoch_and_a_later_one_over_the_block(self, limits: Limits) -> None:
        await limits.set_epochs(tenant_id=ACME, keys={KEY: 5}, tenant_epoch=1)
        await limits.set_epochs(tenant_id=ACME, keys={KEY: -5}, tenant_epoch=1)
        await limits.set_epochs(tenant_id=ACME, keys={KEY: 5}, tenant_epoch=1)
        with pytest.raises(AuthFailed):
            await limits.hold(request(1, key_epoch=5))
        await limits.set_epochs(tenant_id=ACME, keys={KEY: 6}, tenant_epoch=1)
        await granted(limits, 2, key_epoch=6)


class TestClocks:
    async def test_one_that_had_been_wrong_by_minutes_is_not_waited_for(self, limits: Limits) -> None:
        cap = limit(RPM, 2)
        limits.time_ms = NOON + 120_000
        await granted(limits, 1, cap)
        limits.time_ms = NOON
        await granted(limits, 2, cap)
        limits.time_ms = NOON + 60_000
        await granted(limits, 3, cap)
        await granted(limits, 4, cap)

    async def test_one_that_went_back_adds_no_debt(self, limits: Limits) -> None:
        cap = limit(RPM, 2)
        await granted(limits, 1, cap)
        limits.time_ms = NOON - 5_000
        await granted(limits, 2, cap)

    async def test_a_long_rest_saves_nothing_up(self, limits: Limits) -> None:
        cap = limit(RPM, 2)
        await granted(limits, 1, cap)
        limits.time_ms = NOON + 600_000
        await granted(limits, 2, cap)
        await granted(limits, 3, cap)
        with pytest.raises(RateLimited):
            await limits.hold(request(4, cap))

    @pytest.mark.parametrize(("start_ms", "end_ms"), [(NOON + 1, NOON + DAY_MS), (NOON - DAY_MS, NOON)])
    async def test_a_window_that_is_not_the_slot_s_is_asked_for_anew(
        self, limits: Limits, start_ms: int, end_ms: int
    ) -> None:
        wrong = Window(label="2027-01-15", start_ms=start_ms, end_ms=end_ms)
        call = calls.hold_call(request(1, limit(Metric.SPEND_PER_DAY, 5_000)), [wrong], NOON)
        assert await limits._call("hold", *call) == [b"stale", NOON]

    async def test_the_slot_s_day_stands_where_the_caller_s_clock_differs(self, redis: Redis) -> None:
        cap, ahead = limit(Metric.SPEND_PER_DAY, 5_000), FakeClock()
        limits = Limits(redis, clock=ahead)
        seconds, _ = await redis.time()
        ahead.advance(ms=seconds * 1000 - ahead.now_ms() + 3 * DAY_MS)
        await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
        await granted(limits, 1, cap)
        first, last = seconds * 1000, (await redis.time())[0] * 1000
        days = {window_of(metric=cap.metric, timezone="UTC", now_ms=at).label for at in (first, last)}
        assert (await raw(redis, cap, "w") or "").split(" ")[0] in days

    async def test_a_day_far_ahead_is_a_wrong_clock_s(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_PER_DAY, 1_000)
        limits.time_ms = NOON + 3 * DAY_MS
        await granted(limits, 1, cap)
        limits.time_ms = NOON
        await granted(limits, 2, cap)
        assert await use_of(limits, cap) == [(0, 1_000)]

    async def test_that_go_back_never_refund_more_than_was_charged(self, limits: Limits, redis: Redis) -> None:
        cap = limit(IPM, 60)
        for number, end in ((1, settle), (3, void)):
            await granted(limits, number, cap)
            await granted(limits, number + 1, cap, prompt_tokens=1)
            before = await used(redis, cap)
            limits.time_ms -= 5_000
            await (end(limits, number, counts=NOTHING) if end is settle else void(limits, number))
            assert await used(redis, cap) == before - 10

    @pytest.mark.parametrize("ends", ["settled", "voided"])
    async def test_that_go_back_leave_no_bucket_below_zero(self, limits: Limits, redis: Redis, ends: str) -> None:
        cap = limit(IPM, 60)
        await granted(limits, 1, cap)
        limits.time_ms = NOON + 9_000
        await granted(limits, 2, cap, prompt_tokens=1)
        limits.time_ms = NOON
        await (settle(limits, 1, counts=NOTHING) if ends == "settled" else void(limits, 1))
        assert await used(redis, cap) == 0


class TestRepeats:
    async def test_of_the_same_request_with_its_key_are_the_same_hold(self, limits: Limits) -> None:
        first = await granted(limits, 1, CON, idempotency=GIVEN)
        assert await limits.hold(request(1, CON, idempotency=GIVEN)) == first
        assert await use_of(limits, CON) == [(0, 1)]

    async def test_of_what_runs_or_has_ended_say_so(self, limits: Limits) -> None:
        for number in (1, 2, 3):
            await granted(limits, number)
        await start(limits, 1)
        await settle(limits, 2)
        await void(limits, 3)
        answers = [await limits.hold(request(number)) for number in (1, 2, 3)]
        assert all(isinstance(answer, HoldExisting) for answer in answers)
        assert [answer.state for answer in answers if isinstance(answer, HoldExisting)] == [
            HoldState.RUNNING, HoldState.SETTLED, HoldState.VOIDED,
        ]  # fmt: skip

    @pytest.mark.parametrize("ends", ["settled", "voided"])
    async def test_a_key_that_another_request_has_now_stays_with_it(
        self, limits: Limits, redis: Redis, ends: str
    ) -> None:
        await granted(limits, 1, idempotency=GIVEN)
        await redis.delete(keys.idempotency(ACME, "k"))
        await granted(limits, 2, idempotency=GIVEN)
        await (settle(limits, 1) if ends == "settled" else void(limits, 1))
        record = await redis.hmget(keys.idempotency(ACME, "k"), "rid", "st")
        assert record == [request(2).request_id.encode(), b"held"]

    async def test_a_record_that_settlement_writes_anew_ends_in_its_time(self, limits: Limits, redis: Redis) -> None:
        await granted(limits, 1, idempotency=GIVEN)
        await redis.delete(keys.idempotency(ACME, "k"))
        await settle(limits, 1)
        assert await redis.pttl(keys.idempotency(ACME, "k")) > 0

    async def test_results_keep_nothing_of_the_hold_and_end_in_their_time(self, limits: Limits, redis: Redis) -> None:
        for number in (1, 2):
            await granted(limits, number, CON)
        await settle(limits, 1)
        await void(limits, 2)
        names = [keys.hold(ACME, request(number).request_id) for number in (1, 2)]
        assert [set(await redis.hgetall(name)) for name in names] == [{b"st", b"cost", b"outcome"}, {b"st", b"reason"}]
        assert all([await redis.pttl(name) > 0 for name in names])
        assert await redis.zcard(keys.holds(ACME)) == 0


class TestCut:
    money = limit(Metric.SPEND_LIFETIME, 700)

    async def cut(self, limits: Limits, number: int, *caps: Limit, **changes: object) -> tuple[int, bool]:
        """1,000 = 200 for the prompt + 20 x 40 at worst."""
        answer = await granted(limits, number, *caps, output_nano_per_token=40, cut_to_affordable=True, **changes)
        return answer.output_tokens, answer.cut

    async def test_is_by_money_only(self, limits: Limits) -> None:
        assert await self.cut(limits, 1, self.money, CON) == (12, True)

    @pytest.mark.parametrize("turn", [1, -1])
    async def test_is_to_the_tightest_of_several(self, limits: Limits, turn: int) -> None:
        caps = (self.money, limit(Metric.SPEND_PER_DAY, 900))[::turn]
        assert await self.cut(limits, 1, *caps) == (12, True)

    async def test_is_whole_for_every_choice(self, limits: Limits) -> None:
        assert await self.cut(limits, 1, replace(self.money, cap=720), choices=2) == (12, True)

    async def test_leaves_what_is_affordable_alone(self, limits: Limits) -> None:
        assert await self.cut(limits, 1, replace(self.money, cap=1_000)) == (20, False)

    async def test_leaves_one_token_for_each_choice_or_refuses(self, limits: Limits) -> None:
        cap = replace(self.money, cap=280)
        assert await self.cut(limits, 1, cap, choices=2) == (2, True)
        await void(limits, 1)
        with pytest.raises(BudgetSpent):
            await self.cut(limits, 2, replace(cap, cap=279), choices=2)

    async def test_counts_what_is_held_and_what_is_used(self, limits: Limits) -> None:
        cap = replace(self.money, cap=1_500)
        await granted(limits, 1, cap)
        assert await self.cut(limits, 2, cap) == (7, True)
        await void(limits, 2)
        await settle(limits, 1, cost=900)
        assert await self.cut(limits, 3, cap) == (10, True)


class TestFit:
    async def test_what_may_still_be_written_counts(self, limits: Limits) -> None:
        cap = limit(OPM, 25)
        await granted(limits, 1, cap)
        with pytest.raises(RateLimited):
            await limits.hold(request(2, cap, output_tokens_max=6))
        await granted(limits, 3, cap, output_tokens_max=5)

    async def test_one_that_does_not_is_enough_wherever_it_stands(self, limits: Limits) -> None:
        small = limit(Metric.TOKENS_PER_DAY, 29)
        for number, caps in enumerate([(small, CON, QUE), (CON, small, QUE), (CON, QUE, small)], start=1):
            with pytest.raises(RateLimited):
                await limits.hold(request(number, *caps))
        assert await use_of(limits, CON, QUE) == [(0, 0)] * 2

    async def test_one_that_is_asked_for_nothing_stands_in_no_other_s_place(self, limits: Limits) -> None:
        one, money = limit(Metric.CONCURRENT_REQUESTS, 1), limit(Metric.SPEND_LIFETIME, 1_000)
        await granted(limits, 1, one)
        with pytest.raises(RateLimited, match="concurrent requests of the organization"):
            await limits.hold(request(2, money, one, QUE, cost_max_nano=0))

    async def test_what_asks_nothing_passes_an_overdrawn_budget(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_LIFETIME, 1_000)
        await granted(limits, 1, cap)
        await settle(limits, 1, cost=1_000)
        await granted(limits, 2, replace(cap, cap=500), cost_max_nano=0)


class TestAlerts:
    dear = {"cost_max_nano": 1_200, "output_nano_per_token": 50}  # 200 for the prompt: 250 for the shortest answer

    async def test_a_blocked_budget_is_not_told_as_spent(self, limits: Limits, redis: Redis) -> None:
        with pytest.raises(BudgetSpent):
            await limits.hold(request(1, limit(Metric.SPEND_PER_DAY, 0)))
        assert await told(redis) == []

    async def test_a_refusal_tells_anew_in_the_next_window_and_under_another_cap(
        self, limits: Limits, redis: Redis
    ) -> None:
        cap, number = limit(Metric.SPEND_PER_DAY, 1_100), count(1)

        async def refuse_twice(cap: Limit) -> None:
            for _ in range(2):
                with pytest.raises(BudgetSpent):
                    await limits.hold(request(next(number), cap, **self.dear))

        for day in (0, 1):
            limits.time_ms = NOON + day * DAY_MS
            spent = next(number)
            await granted(limits, spent, cap)
            await settle(limits, spent, cost=1_000)
            await refuse_twice(cap)
        assert await told(redis) == [("2027-01-15", "spent"), ("2027-01-16", "spent")]
        await refuse_twice(replace(cap, cap=1_150))
        assert (await told(redis))[2:] == [("2027-01-16", "spent")]

    @pytest.mark.parametrize(("cap", "seen"), [(1_150, []), (1_149, [("2027-01-15", "spent")])])
    async def test_a_budget_is_spent_when_not_even_the_shortest_answer_fits(
        self, limits: Limits, redis: Redis, cap: int, seen: list[tuple[str, str]]
    ) -> None:
        budget = limit(Metric.SPEND_PER_DAY, cap)
        await granted(limits, 1, budget)
        await settle(limits, 1, cost=900)
        with pytest.raises(BudgetSpent):
            await limits.hold(request(2, budget, **self.dear))
        assert await told(redis) == seen

    async def test_a_spent_budget_is_told_once_by_settlements(self, limits: Limits, redis: Redis) -> None:
        cap = limit(Metric.SPEND_PER_DAY, 1_000)
        await granted(limits, 1, cap)
        await settle(limits, 1, cost=1_000)
        await granted(limits, 2, cap, cost_max_nano=0)
        await settle(limits, 2, cost=0)
        assert await told(redis) == [("2027-01-15", "spent")]

    async def test_tokens_are_told_by_nobody(self, limits: Limits, redis: Redis) -> None:
        cap = limit(Metric.TOKENS_PER_DAY, 30)
        await granted(limits, 1, cap)
        await settle(limits, 1, counts=TokenCounts(prompt=10, completion=20))
        assert await told(redis) == []


class TestRefunds:
    """Ten tokens held under one cap, a token under the next, and five seconds later the ten are given back."""

    @pytest.mark.parametrize("ends", ["settled", "voided"])
    @pytest.mark.parametrize("caps", [(60, 20), (20, 60)], ids=["lowered", "raised"])
    async def test_are_by_the_larger_of_both_caps(
        self, limits: Limits, redis: Redis, ends: str, caps: tuple[int, int]
    ) -> None:
        before, after = (limit(IPM, cap) for cap in caps)
        await granted(limits, 1, before)
        await granted(limits, 2, after, prompt_tokens=1)
        limits.time_ms = NOON + 5_000
        await (settle(limits, 1, counts=NOTHING) if ends == "settled" else void(limits, 1))
        assert await used(redis, before) == 6

    @pytest.mark.parametrize("ends", ["settled", "voided"])
    async def test_that_come_too_late_change_nothing(self, limits: Limits, redis: Redis, ends: str) -> None:
        cap = limit(IPM, 60)
        await granted(limits, 1, cap)
        limits.time_ms = NOON + 60_000
        await (settle(limits, 1, counts=NOTHING) if ends == "settled" else void(limits, 1))
        assert await used(redis, cap) == 10

    async def test_are_of_what_was_held_and_not_used(self, limits: Limits, redis: Redis) -> None:
        cap = limit(IPM, 60)
        await granted(limits, 1, cap)
        await settle(limits, 1, counts=TokenCounts(prompt=4))
        assert await used(redis, cap) == 4

    async def test_leave_the_bucket_its_own_time(self, limits: Limits) -> None:
        """Else what drained until a settlement would be forgotten by it."""
        cap = limit(IPM, 60)
        await granted(limits, 1, cap)
        limits.time_ms = NOON + 5_000
        await settle(limits, 1, counts=TokenCounts(prompt=10))
        assert await use_of(limits, cap) == [(5, 0)]

    async def test_a_prompt_longer_than_held_is_charged_whole(self, limits: Limits, redis: Redis) -> None:
        cap = limit(IPM, 60)
        await granted(limits, 1, cap)
        await settle(limits, 1, counts=TokenCounts(prompt=15))
        assert await used(redis, cap) == 15

    async def test_of_a_day_that_is_over_leave_the_new_day_alone(self, limits: Limits) -> None:
        cap = limit(Metric.SPEND_PER_DAY, 5_000)
        for number in (1, 2):
            await granted(limits, number, cap)
        limits.time_ms = NOON + DAY_MS
        await granted(limits, 3, cap)
        await void(limits, 1)
        await settle(limits, 2, cost=700)
        assert await use_of(limits, cap) == [(0, 1_000)]


class TestWritten:
    cap = limit(OPM, 40)

    async def both(self, limits: Limits, redis: Redis, *, later_ms: int) -> tuple[float, int]:
        """Twenty tokens written at noon, ten by a request that ends later: what the bucket has, and its time."""
        for number in (1, 2):
            await granted(limits, number, self.cap)
        await settle(limits, 1, counts=TokenCounts(completion=20))
        limits.time_ms = NOON + later_ms
        await settle(limits, 2, counts=TokenCounts(completion=10))
        assert await raw(redis, self.cap, "h") == "0"
        return await used(redis, self.cap), int(await raw(redis, self.cap, "w") or 0) - NOON

    async def test_drains_before_more_is_charged(self, limits: Limits, redis: Redis) -> None:
        assert await self.both(limits, redis, later_ms=15_000) == (20, 15_000)

    async def test_drains_to_nothing_and_no_further(self, limits: Limits, redis: Redis) -> None:
        assert await self.both(limits, redis, later_ms=60_000) == (10, 60_000)

    async def test_a_clock_that_went_back_drains_nothing(self, limits: Limits, redis: Redis) -> None:
        assert await self.both(limits, redis, later_ms=-30_000) == (30, 0)

    async def test_drains_by_the_cap_that_stands_now(self, limits: Limits, redis: Redis) -> None:
        before, after = limit(OPM, 20), limit(OPM, 60)
        for number in (1, 2):
            await granted(limits, number, before, output_tokens_max=10)
        await settle(limits, 1, counts=TokenCounts(completion=10))
        await granted(limits, 3, after, output_tokens_max=1)
        limits.time_ms = NOON + 10_000
        await settle(limits, 2, counts=TokenCounts(completion=10))
        assert await used(redis, after) == 10


class TestLost:
    every = (CON, QUE, limit(OPM, 90), limit(Metric.TOKENS_PER_DAY, 90), limit(Metric.SPEND_LIFETIME, 9_000))

    @pytest.mark.parametrize("ends", ["settled", "voided", "started"])
    async def test_counters_begin_anew_and_never_go_below_zero(self, limits: Limits, redis: Redis, ends: str) -> None:
        await granted(limits, 1, *self.every)
        await redis.delete(keys.use(ACME))
        if ends == "settled":
            await settle(limits, 1)
        elif ends == "voided":
            await void(limits, 1)
        else:
            await start(limits, 1)
        assert [await raw(redis, each, "h") or "0" for each in self.every] == ["0"] * len(self.every)

    async def test_a_void_that_gives_nothing_back_leaves_nothing_in_them(self, limits: Limits, redis: Redis) -> None:
        bucket, money = limit(IPM, 60), limit(Metric.SPEND_LIFETIME, 9_000)
        await granted(limits, 1, bucket, money, cost_max_nano=0)
        await redis.delete(keys.use(ACME))
        limits.time_ms = NOON + 60_000
        await void(limits, 1)
        assert (await raw(redis, bucket, "u"), await raw(redis, money, "h")) == ("0", "0")

    async def test_a_bucket_that_is_settled_first_takes_holds_again(self, limits: Limits, redis: Redis) -> None:
        cap = limit(IPM, 60)
        await granted(limits, 1, cap)
        await redis.delete(keys.use(ACME))
        await settle(limits, 1)
        await granted(limits, 2, cap)
        assert await used(redis, cap) == 10

    @pytest.mark.parametrize(("admitted_ms", "charged"), [(-1, 0), (0, 300), (DAY_MS - 1, 300), (DAY_MS, 0)])
    async def test_one_counts_in_the_day_that_its_admission_lies_in(
        self, limits: Limits, redis: Redis, admitted_ms: int, charged: int
    ) -> None:
        cap = limit(Metric.SPEND_PER_DAY, 5_000)
        await granted(limits, 1, cap)
        await void(limits, 1)
        midnight = NOON - DAY_MS // 2
        later = Limits(redis, time_ms=midnight + DAY_MS, settled_ttl_ms=2 * DAY_MS)
        await settle(later, 2, hint=replace(HINT, admitted_at_ms=midnight + admitted_ms))
        assert await raw(redis, cap, "u") == str(charged)

    async def test_settlement_makes_no_counter_that_nobody_counts(self, limits: Limits, redis: Redis) -> None:
        await granted(limits, 1, limit(Metric.TOKENS_PER_DAY, 90))
        await settle(limits, 2, hint=HINT)
        assert await raw(redis, limit(Metric.SPEND_LIFETIME, 1), "u") is None
        assert await raw(redis, limit(Metric.TOKENS_PER_DAY, 1, Scope.KEY), "u") is None

    async def test_one_of_today_is_not_charged_to_yesterday(self, limits: Limits, redis: Redis) -> None:
        cap = limit(Metric.SPEND_PER_DAY, 5_000)
        await granted(limits, 1, cap)
        limits.time_ms = NOON + DAY_MS
        await settle(limits, 2, hint=replace(HINT, admitted_at_ms=NOON + DAY_MS))
        assert (await raw(redis, cap, "u"), await raw(redis, cap, "h")) == ("0", "1000")

    @pytest.mark.parametrize(("ago_ms", "charged"), [(59_999, 2), (60_000, 1)])
    async def test_a_bucket_remembers_a_minute(self, limits: Limits, redis: Redis, ago_ms: int, charged: int) -> None:
        cap = limit(RPM, 9)
        await granted(limits, 1, cap)
        limits.time_ms = NOON + ago_ms
        await settle(limits, 2)
        assert await used(redis, cap) == charged


class TestStart:
    async def test_takes_a_request_out_of_the_queue_once_and_touches_nothing_else(self, limits: Limits) -> None:
        for number in (1, 2):
            await granted(limits, number, CON, QUE)
        await start(limits, 1)
        await start(limits, 1, fence="2-b", attempt=2)
        assert await use_of(limits, CON, QUE) == [(0, 2), (0, 1)]

    async def test_puts_the_next_look_off(self, limits: Limits) -> None:
        await granted(limits, 1)
        await start(limits, 1)
        limits.time_ms = NOON + 60_000
        assert await limits.due(tenant_id=ACME, margin_ms=0, limit=9) == []


class TestDue:
    async def test_lists_no_more_than_asked_and_nothing_within_the_margin(self, limits: Limits) -> None:
        for number in (1, 2, 3):
            await granted(limits, number, enqueue_deadline_ms=NOON + number)
        limits.time_ms = NOON + 1_002
        found = [hold.request_id for hold in await limits.due(tenant_id=ACME, margin_ms=1_000, limit=1)]
        found += [hold.request_id for hold in await limits.due(tenant_id=ACME, margin_ms=1_000, limit=9)]
        assert found == [request(number).request_id for number in (1, 2)]
