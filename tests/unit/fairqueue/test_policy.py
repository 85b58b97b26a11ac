from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.tokens import TokenCounts
from fairqueue import policy
from fairqueue.loading import load_pool_scripts
from fairqueue.policy import Fullness, RateWindow
from fairqueue.prefix import prefix_key
from tests.factories.jobs import make_ticket


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


class TestClasses:
    def test_lead_by_service_before_the_tenants_weight(self) -> None:
        assert policy.led(before=500, after=1_500, weight_milli=2_000, batch=False) == 2_000 * policy.BATCH_SHARE
        assert policy.led(before=0, after=1_500, weight_milli=2_000, batch=True) == -3_000 * policy.INTERACTIVE_SHARE

    def test_keep_debt_and_lose_credit_when_they_begin_to_wait(self) -> None:
        assert [policy.without_credit(lead, batch=True) for lead in (-5, 5)] == [-5, 0]
        assert [policy.without_credit(lead, batch=False) for lead in (-5, 5)] == [0, 5]

    def test_have_the_shares_that_the_scripts_have(self) -> None:
        script = load_pool_scripts()["claim"].text
        shares = f"{policy.INTERACTIVE_SHARE}, {policy.BATCH_SHARE}"
        assert f"local INTERACTIVE_SHARE, BATCH_SHARE = {shares}\n" in script
        assert f"WARM_MAX = {policy.WARM_MAX} " in script
        assert f"DEPTH, NEIGHBOURS = 64, {policy.HEADS_LOOKED_AT}, {policy.NEIGHBOURS}\n" in script


class TestPatience:
    def test_is_what_a_cached_prompt_can_save_and_no_more_than_its_bound(self) -> None:
        assert policy.patience_ms(prompt_tokens=800, most=250) == 100
        assert policy.patience_ms(prompt_tokens=80_000, most=250) == 250


class TestPrefixKey:
    LONG = b'"messages":[{"content":"' + b"x" * 3_000

    def key(self, **changes: Any) -> str:
        values = {"prompt_tokens": 600, "body": b'{"top_p":1,' + self.LONG, **changes}
        return prefix_key(make_ticket("r1", **values))

    def test_is_the_same_for_the_same_beginning(self) -> None:
        assert len(self.key()) == 24
        assert self.key() == self.key(body=b'{"temperature":0.5,' + self.LONG + b"more", prompt_tokens=900)

    def test_differs_by_tenant_and_by_what_the_prompt_begins_with(self) -> None:
        assert len({self.key(), self.key(cache_salt="other"), self.key(body=b'{"messages":["other"]}')}) == 3

    def test_is_none_where_it_is_not_worth_to_wait_or_not_known(self) -> None:
        assert self.key(prompt_tokens=511) == self.key(body=b"{}") == ""


def full(
    *, of_tenant: bool = False, leave_first: int = 1, others: int = 0, parts: int = 4, waiting: int = 4
) -> Fullness:
    return Fullness(
        of_tenant=of_tenant, leave_first=leave_first, tenants_waiting=waiting, parts=parts, parts_of_others=others
    )


class TestWait:
    def test_is_as_many_ends_as_it_is_in_line(self) -> None:
        assert policy.wait_ms(position=3, requests_per_1000s=500) == 6_000

    def test_is_unknown_while_nothing_ends(self) -> None:
        assert policy.wait_ms(position=3, requests_per_1000s=0) is None


class TestRetryAfter:
    def test_is_the_time_in_which_one_request_finishes(self) -> None:
        assert policy.retry_after_ms(window=window(requests=15), full=full()) == 2_000

    def test_is_that_of_as_many_as_must_leave_first(self) -> None:
        assert policy.retry_after_ms(window=window(requests=15), full=full(leave_first=3)) == 6_000

    def test_waits_for_the_tenants_own_turn_when_its_own_bound_was_reached(self) -> None:
        assert policy.retry_after_ms(window=window(requests=15), full=full(of_tenant=True)) == 8_000

    def test_knows_that_a_class_gets_its_share_only(self) -> None:
        batch = full(of_tenant=True, parts=1, others=4)
        assert policy.retry_after_ms(window=window(requests=15), full=batch) == 40_000

    def test_is_a_stated_time_when_nothing_has_finished_yet(self) -> None:
        assert policy.retry_after_ms(window=window(), full=full()) == policy.RETRY_AFTER_UNKNOWN_MS

    def test_is_none_for_what_never_fits(self) -> None:
        assert policy.retry_after_ms(window=window(requests=15), full=full(leave_first=0)) is None

    @given(st.integers(0, 59_999), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
    def test_stays_within_its_limits(self, into_ms: int, requests: int, before: int, tenants: int) -> None:
        figures = window(into_ms=into_ms, requests=requests, before=before)
        wait = policy.retry_after_ms(window=figures, full=full(of_tenant=True, waiting=tenants))
        assert wait is not None
        assert policy.RETRY_AFTER_MIN_MS <= wait <= policy.RETRY_AFTER_MAX_MS

    def test_uses_the_window_before_for_what_the_current_has_not_seen(self) -> None:
        assert policy.per_1000s(current=0, before=60, into_ms=0) == 1_000
        assert policy.per_1000s(current=30, before=60, into_ms=30_000) == 1_000
