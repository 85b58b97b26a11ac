"""The arithmetic of limits."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.tenancy import Metric
from tenants.limits import policy
from tenants.limits.holds import Headroom
from tenants.limits.policy import EVER, GRAINS, RULES, Reading

ZONES = [
    "UTC",
    "Asia/Kolkata",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "Pacific/Apia",
    "Europe/Berlin",
    "America/Scoresbysund",
    "Asia/Beirut",
    "America/Havana",
]
INSTANTS = st.integers(1_000_000_000_000, 2_200_000_000_000)
CALENDAR = st.sampled_from([Metric.TOKENS_PER_DAY, Metric.SPEND_PER_MONTH])


def ms(text: str, zone: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


class TestRules:
    def test_name_every_metric(self) -> None:
        assert set(RULES) == set(Metric)
        assert len({rule.code for rule in RULES.values()}) == len(RULES)


class TestWindows:
    @given(metric=CALENDAR, zone=st.sampled_from(ZONES), now=INSTANTS)
    def test_hold_the_instant_and_meet_without_gap_or_overlap(self, metric: Metric, zone: str, now: int) -> None:
        window = policy.window_of(metric=metric, timezone=zone, now_ms=now)
        assert window.start_ms <= now < window.end_ms
        after = policy.window_of(metric=metric, timezone=zone, now_ms=window.end_ms)
        before = policy.window_of(metric=metric, timezone=zone, now_ms=window.start_ms - 1)
        assert (after.start_ms, before.end_ms) == (window.end_ms, window.start_ms)
        assert before.label < window.label < after.label
        assert policy.window_of(metric=metric, timezone=zone, now_ms=window.end_ms - 1) == window
        assert policy.window_of(metric=metric, timezone=zone, now_ms=window.start_ms) == window

    def test_a_day_is_the_tenants(self) -> None:
        noon = int(datetime(2027, 1, 15, 20, tzinfo=UTC).timestamp()) * 1000
        window = policy.window_of(metric=Metric.TOKENS_PER_DAY, timezone="Asia/Kolkata", now_ms=noon)
        assert window.label == "2027-01-16"
        assert window.start_ms == ms("2027-01-16T00:00", "Asia/Kolkata")

    @pytest.mark.parametrize(("date", "hours"), [("2027-03-28", 23), ("2027-10-31", 25), ("2027-07-01", 24)])
    def test_a_day_is_as_long_as_the_clock_change_makes_it(self, date: str, hours: int) -> None:
        now = ms(f"{date}T12:00", "Europe/Berlin")
        window = policy.window_of(metric=Metric.SPEND_PER_DAY, timezone="Europe/Berlin", now_ms=now)
        assert window.end_ms - window.start_ms == hours * 3_600_000

    def test_a_day_without_midnight_begins_at_the_change(self) -> None:
        now = ms("2018-11-04T12:00", "America/Sao_Paulo")
        window = policy.window_of(metric=Metric.SPEND_PER_DAY, timezone="America/Sao_Paulo", now_ms=now)
        assert datetime.fromtimestamp(window.start_ms / 1000, tz=UTC) == datetime(2018, 11, 4, 3, tzinfo=UTC)

    def test_a_month_ends_with_the_year(self) -> None:
        now = ms("2027-12-31T23:59", "Europe/Berlin")
        window = policy.window_of(metric=Metric.SPEND_PER_MONTH, timezone="Europe/Berlin", now_ms=now)
        assert (window.label, window.end_ms) == ("2027-12", ms("2028-01-01T00:00", "Europe/Berlin"))


class TestBuckets:
    @given(
        debt=st.integers(0, 10**15), cap=st.integers(0, 10**9), gone=st.integers(0, 10**7), more=st.integers(0, 10**7)
    )
    def test_drain_the_same_in_one_step_as_in_two(self, debt: int, cap: int, gone: int, more: int) -> None:
        once = policy.drained(debt=debt, cap=cap, since_ms=0, now_ms=gone + more)
        half = policy.drained(debt=debt, cap=cap, since_ms=0, now_ms=gone)
        assert policy.drained(debt=half, cap=cap, since_ms=gone, now_ms=gone + more) == once

    def test_a_full_minute_gives_the_whole_cap(self) -> None:
        for cap in (1, 7, 60, 99_991):
            assert policy.drained(debt=cap * GRAINS, cap=cap, since_ms=0, now_ms=60_000) == 0
            assert policy.drained(debt=cap * GRAINS, cap=cap, since_ms=0, now_ms=59_999) == cap

    def test_a_clock_that_goes_back_drains_nothing(self) -> None:
        assert policy.drained(debt=5, cap=100, since_ms=50, now_ms=10) == 5

    @given(
        cap=st.integers(1, 10**6), used=st.integers(0, 10**6), held=st.integers(0, 10**6), need=st.integers(1, 10**6)
    )
    def test_retry_after_is_the_first_instant_that_fits(self, cap: int, used: int, held: int, need: int) -> None:
        used = min(used, cap)
        reading = Reading(used=used * GRAINS, held=min(held, cap))
        metric = Metric.OUTPUT_TOKENS_PER_MINUTE
        if need <= policy.free(metric=metric, cap=cap, reading=reading):
            return
        wait = policy.retry_after_ms(metric=metric, cap=cap, need=need, reading=reading, window=EVER, now_ms=0)
        if need > cap:
            assert wait is None
            return
        assert wait is not None
        if need > cap - reading.held:
            assert wait == policy.IN_FLIGHT_RETRY_MS
            return

        def room(at: int) -> int:
            left = policy.drained(debt=reading.used, cap=cap, since_ms=0, now_ms=at)
            return policy.free(metric=metric, cap=cap, reading=Reading(used=left, held=reading.held))

        assert room(wait - 1) < need <= room(wait)


class TestRetryAfter:
    def test_is_none_where_no_waiting_helps(self) -> None:
        nothing = Reading(used=0, held=0)
        for metric in Metric:
            assert policy.retry_after_ms(metric=metric, cap=0, need=1, reading=nothing, window=EVER, now_ms=0) is None
            assert policy.retry_after_ms(metric=metric, cap=5, need=6, reading=nothing, window=EVER, now_ms=0) is None
        spent = Reading(used=5, held=0)
        assert (
            policy.retry_after_ms(metric=Metric.SPEND_LIFETIME, cap=5, need=1, reading=spent, window=EVER, now_ms=0)
            is None
        )


class TestTightest:
    def test_is_the_least_remaining_then_the_longest_reset(self) -> None:
        rooms = [Headroom(limit=9, remaining=3, reset_ms=1), Headroom(limit=9, remaining=3, reset_ms=5)]
        assert policy.tightest([*rooms, Headroom(limit=4, remaining=4, reset_ms=9)]) == rooms[1]
        assert policy.tightest([]) is None
