"""Rating over any card and counts: whole, additive, never above the hold, cached tokens charged once."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.rating.prices import Meter, PriceError, UnitPrice, build_card, nano_per_token, per_million
from billing.rating.rate import cost, worst_case
from contracts.money import PriceCard
from contracts.tokens import TokenCounts

NANO = st.integers(min_value=0, max_value=1_000_000_000)
CARDS = st.builds(
    PriceCard, card_id=st.just("card"), currency=st.just("USD"), input_nano=NANO, cached_nano=NANO, output_nano=NANO
)


@st.composite
def token_counts(draw: st.DrawFn) -> TokenCounts:
    prompt = draw(st.integers(0, 2_000_000))
    completion = draw(st.integers(0, 200_000))
    return TokenCounts(
        prompt=prompt,
        cached=draw(st.integers(0, prompt)),
        completion=completion,
        reasoning=draw(st.integers(0, completion)),
    )


def add(one: TokenCounts, two: TokenCounts) -> TokenCounts:
    return TokenCounts(
        prompt=one.prompt + two.prompt,
        cached=one.cached + two.cached,
        completion=one.completion + two.completion,
        reasoning=one.reasoning + two.reasoning,
    )


class TestCost:
    @given(card=CARDS, counts=token_counts())
    def test_is_whole_and_never_negative(self, card: PriceCard, counts: TokenCounts) -> None:
        parts = cost(card, counts)
        assert min(parts.input_nano, parts.cached_nano, parts.output_nano) >= 0
        assert type(parts.total_nano) is int
        assert parts.total_nano == parts.input_nano + parts.cached_nano + parts.output_nano

    @given(card=CARDS, one=token_counts(), two=token_counts())
    def test_of_two_requests_is_the_cost_of_their_sum(
        self, card: PriceCard, one: TokenCounts, two: TokenCounts
    ) -> None:
        assert cost(card, add(one, two)).total_nano == cost(card, one).total_nano + cost(card, two).total_nano

    @given(card=CARDS, counts=token_counts(), spare=st.integers(0, 10_000))
    def test_never_passes_the_worst_case_that_was_held(self, card: PriceCard, counts: TokenCounts, spare: int) -> None:
        held = worst_case(card, prompt_tokens=counts.prompt, output_tokens_max=counts.completion + spare)
        assert cost(card, counts).total_nano <= held

    @given(card=CARDS, counts=token_counts())
    def test_saves_the_price_difference_for_each_cached_token(self, card: PriceCard, counts: TokenCounts) -> None:
        cold = TokenCounts(prompt=counts.prompt, completion=counts.completion)
        saved = cost(card, cold).total_nano - cost(card, counts).total_nano
        assert saved == counts.cached * (card.input_nano - card.cached_nano)

    @given(card=CARDS, counts=token_counts())
    def test_does_not_charge_reasoning_twice(self, card: PriceCard, counts: TokenCounts) -> None:
        plain = TokenCounts(prompt=counts.prompt, cached=counts.cached, completion=counts.completion)
        assert cost(card, counts) == cost(card, plain)


class TestPrices:
    @given(nano=NANO)
    def test_survive_the_way_to_a_page_and_back(self, nano: int) -> None:
        assert nano_per_token(per_million(nano)) == nano

    @given(amount=st.decimals(min_value=0, max_value=1_000_000, places=6))
    def test_are_whole_or_refused(self, amount: Decimal) -> None:
        if (amount * 1_000) % 1 == 0:
            assert Decimal(nano_per_token(amount)).scaleb(-3) == amount
        else:
            with pytest.raises(PriceError):
                nano_per_token(amount)

    @given(order=st.permutations(list(Meter)))
    def test_make_the_same_card_in_any_order(self, order: list[Meter]) -> None:
        prices = {
            meter: UnitPrice(price_id=meter.value, meter=meter, per_million=Decimal(number), currency="EUR")
            for number, meter in enumerate(Meter, start=1)
        }
        card = build_card(tuple(prices[meter] for meter in order))
        assert card == PriceCard(
            card_id="input+cached+output", currency="EUR", input_nano=1_000, cached_nano=2_000, output_nano=3_000
        )
