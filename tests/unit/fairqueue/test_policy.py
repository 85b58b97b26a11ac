from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contracts.tokens import TokenCounts
from fairqueue import policy
from fairqueue.policy import RateWindow


def window(*, into_ms: int = 30_000, requests: int = 0, before: int = 0) -> RateWindow:
    return RateWindow(into_ms=into_ms, requests=requests, tokens=0, requests_before=before, tokens_before=0)


class TestService:
    def test_discounts_what_was_in_the_prefix_cache(self) -> None:
        assert policy.input_service(TokenCounts(prompt=100, cached=60)) == 40 * 1_000 + 60 * 250

    def test_costs_twice_as_much_for_output(self) -> None:
        assert policy.output_service(3) == 6_000

    def test_is_prepaid_for_one_tick_of_output_at_most(self) -> None:
        assert policy.prepaid_output(10, 2) == policy.output_service(20)
        assert policy.prepaid_output(10, 4) == policy.output_service(policy.TICK_TOKENS)

    @given(st.lists(st.integers(0, 10**6), max_size=30), st.integers(1, 10_000))
    def test_charged_in_parts_adds_up_to_the_whole(self, parts: list[int], weight: int) -> None:
        paid = total = 0
        for part in parts:
            total += part
            paid += policy.virtual(total, weight) - paid
        assert paid == policy.virtual(sum(parts), weight)

    def test_of_a_request_needs_room_for_every_choice(self) -> None:
        assert policy.kv_need(prompt_tokens=7, max_tokens=5, choices=3) == 22


class TestLift:
    def test_takes_idle_credit_away_and_leaves_debt(self) -> None:
        assert policy.lifted(5, 9) == 9
        assert policy.lifted(12, 9) == 12


class TestRetryAfter:
    def test_is_the_time_in_which_one_request_finishes(self) -> None:
        assert policy.retry_after_ms(window=window(requests=15), tenants_waiting=4, bound="pool") == 2_000

    def test_waits_for_the_tenants_own_turn_when_its_own_bound_was_reached(self) -> None:
        assert policy.retry_after_ms(window=window(requests=15), tenants_waiting=4, bound="tenant") == 8_000

    def test_is_a_stated_time_when_nothing_has_finished_yet(self) -> None:
        assert policy.retry_after_ms(window=window(), tenants_waiting=1, bound="pool") == policy.RETRY_AFTER_UNKNOWN_MS

    @given(st.integers(0, 59_999), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
    def test_stays_within_its_limits(self, into_ms: int, requests: int, before: int, tenants: int) -> None:
        figures = window(into_ms=into_ms, requests=requests, before=before)
        wait = policy.retry_after_ms(window=figures, tenants_waiting=tenants, bound="tenant")
        assert policy.RETRY_AFTER_MIN_MS <= wait <= policy.RETRY_AFTER_MAX_MS

    def test_uses_the_window_before_for_what_the_current_has_not_seen(self) -> None:
        assert policy.per_1000s(current=0, before=60, into_ms=0) == 1_000
        assert policy.per_1000s(current=30, before=60, into_ms=30_000) == 1_000
