"""Pauses between tries, and when an endpoint is given up."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tenants.webhooks import retries

NOON = datetime(2027, 1, 15, 12, tzinfo=UTC)


class TestPause:
    def test_doubles_its_upper_bound_and_ends_after_twelve_tries(self) -> None:
        bounds = [retries.pause(tries=tries, dice=1.0) for tries in range(1, 13)]
        assert bounds[:3] == [timedelta(seconds=40), timedelta(seconds=80), timedelta(seconds=160)]
        assert bounds[10] == timedelta(seconds=40_960)
        assert bounds[11] is None

    def test_takes_less_than_a_day_in_all(self) -> None:
        assert timedelta(hours=22) < retries.longest() < timedelta(hours=24)

    @given(st.integers(1, 11), st.floats(0, 1, exclude_max=True), st.one_of(st.none(), st.integers(0, 10**9)))
    def test_stays_between_what_was_asked_and_its_bounds(self, tries: int, dice: float, asked: int | None) -> None:
        found = retries.pause(tries=tries, dice=dice, retry_after_s=asked)
        assert found is not None
        assert timedelta() <= found <= max(retries.BASE * 2 ** (tries - 1), retries.RETRY_AFTER_MAX)
        if asked is not None:
            assert found >= min(timedelta(seconds=asked), retries.RETRY_AFTER_MAX)


class TestGivingUp:
    def test_wants_many_failures_over_days(self) -> None:
        for failures, since, expected in (
            (20, NOON - timedelta(days=3), True),
            (19, NOON - timedelta(days=9), False),
            (500, NOON - timedelta(days=2), False),
            (500, None, False),
        ):
            assert retries.failed_for_long(failures=failures, failing_since=since, now=NOON) is expected
