"""Each guard line of the scripts that compare counters and make them anew, by what would go wrong without it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from contracts.tenancy import Limit, Metric
from contracts.tokens import TokenCounts
from tenants.limits import audit as module
from tenants.limits import keys
from tenants.limits.audit import READING_MS, Audit, Rebuilt, Snapshot, Standing
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldGranted, HoldHint
from tenants.limits.policy import RULES
from tests.functional.tenants.cast import ACME, HINT, KEY, NOON, PROJECT, limit, request

MINUTE_MS, SLOT_MS = 60_000, 300_000
DAY_ENDS = NOON + 12 * 60 * MINUTE_MS
DAY, EVER = limit(Metric.SPEND_PER_DAY, 10**9), limit(Metric.SPEND_LIFETIME, 10**9)
CON, QUE, RPM = (
    limit(metric, 99) for metric in (Metric.CONCURRENT_REQUESTS, Metric.QUEUED_REQUESTS, Metric.REQUESTS_PER_MINUTE)
)
EACH = (DAY, EVER, CON, QUE, RPM)
HELD, COST = 1_000, 300


class Ledger:
    """Holds of acme under all of `EACH`, and what the scripts say of them."""

    def __init__(self, redis: Redis) -> None:
        self.redis, self.number = redis, 0
        self.limits = Limits(redis, time_ms=NOON)
        self.audit = Audit(redis, gate=self.limits.gate, time_ms=NOON)

    def at(self, milliseconds: int) -> "Ledger":
        self.limits.time_ms = self.audit.time_ms = milliseconds
        return self

    async def open(self, *, caps: Sequence[Limit] = EACH) -> int:
        self.number += 1
        at = self.limits.time_ms or NOON
        asked = request(self.number, *caps, enqueue_deadline_ms=at + 10_000 - self.number)
        assert isinstance(await self.limits.hold(asked), HoldGranted)
        return self.number

    async def settled(self, number: int | None = None, *, caps: Sequence[Limit] = EACH) -> None:
        await self.settle(number or await self.open(caps=caps), HINT)

    async def settle(self, number: int, hint: HoldHint) -> bool:
        settled = await self.limits.settle(
            tenant_id=ACME, request_id=request(number).request_id, counts=TokenCounts(prompt=10, completion=5),
            cost_nano=COST, outcome="ok", hint=hint,
        )  # fmt: skip
        return settled.first

    async def start(self, number: int) -> None:
        assert await self.limits.start(tenant_id=ACME, request_id=request(number).request_id, fence="1-a", attempt=1)

    async def look(self, *of: Limit, reading: bool = False) -> Snapshot:
        return await self.audit.snapshot(tenant_id=ACME, counters=[name_of(each) for each in of], reading=reading)

    async def standing(self, of: Limit) -> Standing:
        return (await self.look(of)).standings[0]

    async def rebuild(self, of: Limit, *, below: int = 0, window: str | None = None, metered_ms: int = NOON) -> int:
        found = await self.look(of, reading=True)
        mark = found.standings[0].window if window is None else window
        changed = await self.audit.rebuild(
            tenant_id=ACME, snapshot=found, metered_ms=metered_ms, counters=[rebuilt(of, found, below, mark)]
        )
        assert changed is not None
        return changed

    async def raw(self, field: str) -> str | None:
        value = await self.redis.hget(keys.use(ACME), field)
        return None if value is None else value.decode()

    async def write(self, field: str, value: object) -> None:
        await self.redis.hset(keys.use(ACME), field, str(value))


def name_of(of: Limit) -> str:
    return keys.counter(of, tenant_id=ACME, project_id=PROJECT, api_key_id=KEY)


def rebuilt(of: Limit, found: Snapshot, below: int, window: str) -> Rebuilt:
    return Rebuilt(
        counter=name_of(of), kind=RULES[of.metric].kind, below=below, below_ms=found.watermark_ms or 0, window=window
    )


@pytest.fixture
async def ledger(redis: Redis) -> Ledger:
    ledger = Ledger(redis)
    await ledger.limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
    return ledger


class TestClock:
    async def test_is_the_slot_s_own_in_milliseconds(self, ledger: Ledger) -> None:
        async def now() -> int:
            seconds, micros = await ledger.redis.time()
            return int(seconds) * 1000 + int(micros) // 1000

        ledger.audit.time_ms = 0
        before, found, after = await now(), await ledger.look(CON, reading=True), await now()
        assert before <= found.now_ms <= after
        late = replace(found, until_ms=found.now_ms - 1)
        await ledger.write("reading", late.until_ms)
        assert await ledger.audit.rebuild(tenant_id=ACME, snapshot=late, metered_ms=0, counters=[]) is None
        await ledger.write("reading", found.until_ms)
        assert await ledger.audit.rebuild(tenant_id=ACME, snapshot=found, metered_ms=0, counters=[]) == 0


class TestWatermark:
    @pytest.mark.parametrize("turn", [1, -1])
    async def test_is_the_slot_of_the_oldest_that_is_open(self, ledger: Ledger, turn: int) -> None:
        for minutes in (7, 18)[::turn]:
            await ledger.at(NOON + minutes * MINUTE_MS).open()
        await ledger.redis.hdel(keys.use(ACME), "born")
        assert (await ledger.at(NOON + 20 * MINUTE_MS).look(EVER)).watermark_ms == NOON + SLOT_MS

    async def test_is_the_slot_of_now_when_none_is(self, ledger: Ledger) -> None:
        await ledger.settled()
        assert (await ledger.at(NOON + 7 * MINUTE_MS).look(EVER)).watermark_ms == NOON + SLOT_MS

    async def test_is_not_before_the_counters_began(self, ledger: Ledger) -> None:
        await ledger.at(NOON + 1_234).open()
        assert (await ledger.look(EVER)).watermark_ms == NOON + 1_234

    async def test_is_behind_now_where_no_counter_is(self, ledger: Ledger) -> None:
        assert (await ledger.look(EVER)).watermark_ms == NOON + 1

    @pytest.mark.parametrize(("slots", "told"), [(30, True), (31, False)])
    async def test_cannot_be_told_when_the_slots_have_come_round(self, ledger: Ledger, slots: int, told: bool) -> None:
        await ledger.open()
        found = await ledger.at(NOON + slots * SLOT_MS).look(EVER, reading=True)
        assert found.watermark_ms == (NOON if told else None)
        assert (await ledger.raw("reading") is not None) is told

    async def test_is_told_of_as_many_open_ones_as_are_looked_at_and_no_more(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "OPEN_MAX", 2)
        await ledger.open()
        await ledger.open()
        assert (await ledger.look(CON)).standings[0].held_by_open == 2
        await ledger.open()
        found = await ledger.look(CON, reading=True)
        assert (found.watermark_ms, found.standings, await ledger.raw("reading")) == (None, (), None)

    async def test_one_that_is_listed_and_gone_is_passed_over(self, ledger: Ledger) -> None:
        await ledger.open()
        await ledger.redis.zadd(keys.holds(ACME), {"gone": NOON})
        assert (await ledger.standing(CON)).held_by_open == 1
        assert await ledger.rebuild(CON) == 0


class TestBirth:
    async def test_is_the_first_hold_and_no_later_one(self, ledger: Ledger) -> None:
        for later in (0, 1_000):
            await ledger.at(NOON + later).open()
        assert await ledger.raw("born") == str(NOON)

    async def test_is_not_told_where_it_is_not_known(self, ledger: Ledger) -> None:
        """Counters of an older version, or of a hold without one: what they know is all."""
        await ledger.write("other", 1)
        await ledger.open()
        await ledger.look(EVER, reading=True)
        assert await ledger.raw("born") is None

    async def test_a_hold_under_no_limit_is_none(self, ledger: Ledger) -> None:
        await ledger.open(caps=())
        assert await ledger.redis.exists(keys.use(ACME)) == 0

    async def test_is_a_rebuild_s_reading_where_nothing_was(self, ledger: Ledger) -> None:
        await ledger.look(EVER)
        assert await ledger.redis.exists(keys.use(ACME)) == 0
        await ledger.look(EVER, reading=True)
        assert [await ledger.raw(field) for field in ("born", "reading")] == [str(NOON + 1), str(NOON + READING_MS)]
        await ledger.at(NOON + 5).open()
        assert await ledger.raw("born") == str(NOON + 1)

    @pytest.mark.parametrize(("born", "late"), [(NOON + 1, 0), (NOON, COST)])
    async def test_what_was_admitted_before_it_is_in_no_slot(self, ledger: Ledger, born: int, late: int) -> None:
        number = await ledger.open()
        await ledger.write("born", born)
        await ledger.settle(number, HINT)
        await ledger.write("born", 0)
        assert (await ledger.standing(EVER)).late == late


class TestHeld:
    async def test_is_what_open_ones_hold_of_each_kind(self, ledger: Ledger) -> None:
        for _ in range(4):
            await ledger.open()
        await ledger.start(2)
        await ledger.settled(3)
        found = (await ledger.look(*EACH)).standings
        assert [each.held_by_open for each in found] == [3 * HELD, 3 * HELD, 3, 2, 0]
        assert [each.held_drift for each in found] == [0] * 5

    @pytest.mark.parametrize("of", [DAY, EVER, CON, QUE], ids=lambda of: of.metric.value)
    async def test_is_written_anew(self, ledger: Ledger, of: Limit) -> None:
        for _ in range(3):
            await ledger.open()
        await ledger.start(2)
        expected = (await ledger.standing(of)).held
        assert expected > 0
        await ledger.write(f"{name_of(of)}:h", 99)
        await ledger.rebuild(of)
        assert (await ledger.standing(of)).held == expected

    async def test_counts_as_changed_where_it_changed(self, ledger: Ledger) -> None:
        await ledger.open()
        assert await ledger.rebuild(CON) == 0
        await ledger.write(f"{name_of(CON)}:h", 2)
        assert await ledger.rebuild(CON) == 1
        assert await ledger.rebuild(replace(CON, model="other")) == 0

    async def test_of_a_window_that_is_over_is_nobody_s(self, ledger: Ledger) -> None:
        await ledger.at(DAY_ENDS - 1).open()
        await ledger.at(DAY_ENDS).open()
        assert (await ledger.standing(DAY)).held_by_open == HELD
        await ledger.rebuild(DAY)
        assert await ledger.raw(f"{name_of(DAY)}:h") == str(HELD)


class TestLate:
    @pytest.mark.parametrize("of", [DAY, EVER], ids=["day", "ever"])
    async def test_is_of_admissions_from_the_watermark_on(self, ledger: Ledger, of: Limit) -> None:
        await ledger.settled()
        await ledger.at(NOON + SLOT_MS).settled()
        await ledger.settled()
        await ledger.open()
        found = await ledger.at(NOON + 2 * SLOT_MS).standing(of)
        assert (found.used, found.late) == (3 * COST, 2 * COST)
        assert await ledger.rebuild(of, below=7) == 1
        assert (await ledger.standing(of)).used == 7 + 2 * COST
        assert await ledger.rebuild(of, below=7) == 0

    @pytest.mark.parametrize("slots", [0, 1])
    async def test_is_of_its_window(self, ledger: Ledger, slots: int) -> None:
        """The open one of yesterday holds the watermark back; a slot of tomorrow is what a wrong clock left."""
        await ledger.at(DAY_ENDS - 2 * SLOT_MS).open()
        await ledger.at(DAY_ENDS - SLOT_MS).settled()
        await ledger.at(DAY_ENDS + slots * SLOT_MS).settled()
        tomorrow = DAY_ENDS // SLOT_MS + 288 + 1 - slots
        await ledger.write(f"{name_of(DAY)}:s{tomorrow % 32}", f"{tomorrow} 9")
        assert [(await ledger.standing(of)).late for of in (DAY, EVER)] == [COST, 2 * COST]
        for of, used in ((DAY, COST), (EVER, 2 * COST)):
            await ledger.rebuild(of)
            assert (await ledger.standing(of)).used == used

    async def test_of_every_slot_that_there_is(self, ledger: Ledger) -> None:
        await ledger.open()
        for number in range(30):
            await ledger.at(NOON + number * SLOT_MS).settled()
        assert (await ledger.standing(EVER)).late == 30 * COST
        await ledger.rebuild(EVER)
        assert (await ledger.standing(EVER)).used == 30 * COST


class TestWindow:
    async def test_that_has_begun_since_is_left_as_it_stands(self, ledger: Ledger) -> None:
        await ledger.settled()
        before = (await ledger.standing(DAY)).window
        await ledger.at(DAY_ENDS).settled()
        assert await ledger.rebuild(DAY, below=99, window=before) == 0
        assert (await ledger.standing(DAY)).used == COST

    async def test_that_was_lost_is_written(self, ledger: Ledger) -> None:
        window = f"2027-01-15 {NOON} {DAY_ENDS}"
        assert await ledger.rebuild(DAY, below=99, window=window) == 1
        found = await ledger.standing(DAY)
        assert (found.used, found.held, found.window, found.rebuilt_ms) == (99, 0, window, NOON + 1)


class TestReading:
    async def test_ends_when_its_time_does(self, ledger: Ledger) -> None:
        found = await ledger.look(CON, reading=True)
        for later, changed in ((READING_MS, None), (READING_MS - 1, 0)):
            ledger.at(NOON + later)
            assert await ledger.audit.rebuild(tenant_id=ACME, snapshot=found, metered_ms=0, counters=[]) == changed
        assert await ledger.audit.rebuild(tenant_id=ACME, snapshot=found, metered_ms=0, counters=[]) is None

    async def test_is_of_the_one_that_began_last(self, ledger: Ledger) -> None:
        first = await ledger.look(CON, reading=True)
        second = await ledger.at(NOON + 1).look(CON, reading=True)
        for found, changed in ((first, None), (second, 0)):
            assert await ledger.audit.rebuild(tenant_id=ACME, snapshot=found, metered_ms=0, counters=[]) == changed

    async def test_is_needed(self, ledger: Ledger) -> None:
        found = await ledger.look(CON)
        assert await ledger.audit.rebuild(tenant_id=ACME, snapshot=found, metered_ms=0, counters=[]) is None
        with pytest.raises(ValueError, match="cannot be told"):
            await ledger.audit.rebuild(
                tenant_id=ACME, snapshot=replace(found, watermark_ms=None), metered_ms=0, counters=[]
            )


class TestLostHolds:
    """After a rebuild that counted what was admitted before NOON and recorded until NOON + 9."""

    @pytest.mark.parametrize(
        ("admitted", "ended", "counted"),
        [
            (NOON - 1, NOON + 9, False),
            (NOON - 1, NOON + 10, True),
            (NOON - 1, 0, True),  # not known
            (NOON, NOON + 9, True),
        ],
    )
    @pytest.mark.parametrize("of", [DAY, EVER], ids=["day", "ever"])
    async def test_are_charged_when_it_has_not_counted_them(
        self, ledger: Ledger, of: Limit, admitted: int, ended: int, counted: bool
    ) -> None:
        await ledger.settled()
        await ledger.rebuild(of, below=0, metered_ms=NOON + 9)
        assert await ledger.raw(f"{name_of(of)}:f") == f"{NOON} {NOON + 9}"
        assert await ledger.settle(77, replace(HINT, admitted_at_ms=admitted, ended_at_ms=ended))
        assert (await ledger.standing(of)).used == COST + (COST if counted else 0)

    @pytest.mark.parametrize(("ended", "counted"), [(NOON, False), (NOON + 1, True)])
    async def test_after_one_of_an_older_version_are_told_by_its_watermark(
        self, ledger: Ledger, ended: int, counted: bool
    ) -> None:
        await ledger.settled()
        await ledger.write(f"{name_of(EVER)}:f", NOON)
        await ledger.settle(77, replace(HINT, admitted_at_ms=NOON - 1, ended_at_ms=ended))
        assert (await ledger.standing(EVER)).used == COST + (COST if counted else 0)
