"""Rating on numbers that other systems got wrong."""

from decimal import Decimal

import pytest

from billing.rating.prices import Meter, PriceError, UnitPrice, build_card, nano_per_token
from billing.rating.rate import Cost, cost, worst_case
from contracts.money import PriceCard, text_from_nano
from contracts.tokens import TokenCounts

CARD = PriceCard(card_id="c", currency="USD", input_nano=250, cached_nano=25, output_nano=2_000)


def price(meter: Meter, *, currency: str = "USD") -> UnitPrice:
    return UnitPrice(price_id=f"id-{meter}", meter=meter, per_million=Decimal("0.25"), currency=currency)


class TestCost:
    def test_charges_cached_tokens_once_at_their_own_price(self) -> None:
        # A gateway charged this prompt in full and its cached part again: 0.764 instead of what follows.
        parts = cost(CARD, TokenCounts(prompt=262_960, cached=257_955, completion=0))
        assert parts == Cost(input_nano=5_005 * 250, cached_nano=257_955 * 25, output_nano=0)
        assert text_from_nano(parts.total_nano) == "0.007700125"

    def test_counts_reasoning_within_the_completion(self) -> None:
        # Another added 956 reasoning tokens on top of 1,970.
        parts = cost(CARD, TokenCounts(prompt=10, completion=1_970, reasoning=956))
        assert parts.output_nano == 1_970 * 2_000

    def test_is_nothing_for_a_request_that_never_ran(self) -> None:
        assert cost(CARD, TokenCounts()).total_nano == 0


class TestWorstCase:
    def test_takes_the_dearer_of_the_two_input_prices(self) -> None:
        odd = PriceCard(card_id="c", currency="USD", input_nano=1, cached_nano=5, output_nano=0)
        assert worst_case(odd, prompt_tokens=100, output_tokens_max=7) == 500

    def test_refuses_a_negative_size(self) -> None:
        with pytest.raises(ValueError, match="negative"):
            worst_case(CARD, prompt_tokens=-1, output_tokens_max=1)


class TestNanoPerToken:
    @pytest.mark.parametrize(("text", "nano"), [("0", 0), ("0.001", 1), ("1", 1_000), ("15.125", 15_125)])
    def test_is_whole_in_steps_of_a_thousandth(self, text: str, nano: int) -> None:
        assert nano_per_token(Decimal(text)) == nano

    @pytest.mark.parametrize("text", ["-1", "-0.001", "0.0001", "1000000.001", "NaN", "Infinity"])
    def test_refuses_what_cannot_be_charged_exactly(self, text: str) -> None:
        with pytest.raises(PriceError):
            nano_per_token(Decimal(text))


class TestBuildCard:
    def test_needs_every_meter_once(self) -> None:
        with pytest.raises(PriceError, match="one price for each"):
            build_card((price(Meter.INPUT), price(Meter.OUTPUT)))
        with pytest.raises(PriceError, match="one price for each"):
            build_card((price(Meter.INPUT), price(Meter.INPUT), price(Meter.OUTPUT)))

    def test_has_one_currency(self) -> None:
        with pytest.raises(PriceError, match="EUR, USD"):
            build_card((price(Meter.INPUT), price(Meter.CACHED), price(Meter.OUTPUT, currency="EUR")))
