"""Prices as people write them (currency units per million tokens) and as requests carry them (nano-units per token).

Called by the price book (`billing.models`, `billing.selectors`), never on the hot path. Invariant: a price moves in
steps of 0.001 per million tokens, so its nano-units per token are whole and nothing is ever rounded here.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from contracts.money import NANO_PER_TOKEN_AT_ONE_PER_MILLION, PriceCard

PRICE_STEP = Decimal("0.001")
PRICE_MAX = Decimal(1_000_000)  # per million tokens: one unit of currency per token
CARD_ID_SEPARATOR = "+"


class Meter(StrEnum):
    """What a price is for. `cached` is the part of the prompt that the engine found in its prefix cache."""

    INPUT = "input"
    CACHED = "cached"
    OUTPUT = "output"


class PriceError(ValueError):
    """A price that cannot be charged exactly, or a card that lacks one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPrice:
    """One version of the price book as the card needs it."""

    price_id: str
    meter: Meter
    per_million: Decimal
    currency: str


def nano_per_token(per_million: Decimal) -> int:
    """Whole nano-units per token of a price per million. Raises PriceError when negative, too high or too fine."""
    if not per_million.is_finite() or not 0 <= per_million <= PRICE_MAX:
        raise PriceError(f"{per_million} per million tokens is not within 0 and {PRICE_MAX}")
    nano = per_million * NANO_PER_TOKEN_AT_ONE_PER_MILLION
    if nano != nano.to_integral_value():
        raise PriceError(f"{per_million} per million tokens is finer than a step of {PRICE_STEP}")
    return int(nano)


def per_million(nano: int) -> Decimal:
    """The price per million tokens of whole nano-units per token; the inverse of `nano_per_token`."""
    return Decimal(nano) / NANO_PER_TOKEN_AT_ONE_PER_MILLION


def build_card(prices: tuple[UnitPrice, ...]) -> PriceCard:
    """The card of one price for each meter. Its id joins the price ids in the order input, cached, output.

    Raises PriceError when a meter is missing or doubled, or when the currencies differ.
    """
    by_meter = {price.meter: price for price in prices}
    if len(prices) != len(Meter) or set(by_meter) != set(Meter):
        raise PriceError(f"a card needs one price for each of {', '.join(Meter)}")
    currencies = {price.currency for price in prices}
    if len(currencies) != 1:
        raise PriceError(f"a card has one currency, not {', '.join(sorted(currencies))}")
    return PriceCard(
        card_id=CARD_ID_SEPARATOR.join(by_meter[meter].price_id for meter in Meter),
        currency=currencies.pop(),
        input_nano=nano_per_token(by_meter[Meter.INPUT].per_million),
        cached_nano=nano_per_token(by_meter[Meter.CACHED].per_million),
        output_nano=nano_per_token(by_meter[Meter.OUTPUT].per_million),
    )
