"""Money: exact text, exact conversion, never a float."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.money import NANO_MAX, PriceCard, nano_from_decimal, text_from_nano


class TestTextFromNano:
    @pytest.mark.parametrize(
        ("amount", "text"),
        [(0, "0"), (1, "0.000000001"), (1500, "0.0000015"), (10**9, "1"), (10 * 10**9, "10"), (-5, "-0.000000005")],
    )
    def test_shows_every_digit_and_no_exponent(self, amount: int, text: str) -> None:
        assert text_from_nano(amount) == text

    @given(st.integers(min_value=-NANO_MAX, max_value=NANO_MAX))
    def test_loses_nothing_on_the_way_there_and_back(self, amount: int) -> None:
        assert nano_from_decimal(Decimal(text_from_nano(amount))) == amount


class TestNanoFromDecimal:
    def test_refuses_what_is_finer_than_a_nano_unit(self) -> None:
        with pytest.raises(ValueError, match="finer than one nano-unit"):
            nano_from_decimal(Decimal("0.0000000001"))


class TestPriceCard:
    def test_refuses_a_negative_price(self) -> None:
        with pytest.raises(ValueError, match="never negative"):
            PriceCard(card_id="c", currency="USD", input_nano=1, cached_nano=-1, output_nano=1)
