"""Money is an integer count of nano-units (1e-9) of a currency; it is never a float and never rounded here.

Prices move in steps of 0.001 per million tokens, so the price of one token is a whole number of nano-units:
1.00 per million tokens = 1,000 nano-units per token. Rounding happens once, at an invoice line.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import NewType

Nano = NewType("Nano", int)

NANO_PER_UNIT = 1_000_000_000
NANO_PER_TOKEN_AT_ONE_PER_MILLION = 1_000
# Lua numbers are doubles: whole up to 2**53. Everything a script adds up stays below.
NANO_MAX = 9_000_000 * NANO_PER_UNIT


def decimal_from_nano(amount: int) -> Decimal:
    """Exact amount in whole currency units, with nine decimals."""
    return Decimal(amount).scaleb(-9)


def text_from_nano(amount: int) -> str:
    """Exact decimal text of an amount, without an exponent: 1500 -> "0.0000015"."""
    text = f"{decimal_from_nano(amount):.9f}".rstrip("0").rstrip(".")
    return text or "0"


def nano_from_decimal(amount: Decimal) -> Nano:
    """Exact nano-units of `amount` in currency units. Raises ValueError when it is not whole."""
    scaled = amount.scaleb(9)
    if scaled != scaled.to_integral_value():
        raise ValueError(f"{amount} is finer than one nano-unit")
    return Nano(int(scaled))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCard:
    """The prices chosen for one request at admission; its ids stay on every row that it prices.

    Amounts are nano-units per token. `card_id` names the price version(s) it was made from.
    """

    card_id: str
    currency: str
    input_nano: int
    cached_nano: int
    output_nano: int

    def __post_init__(self) -> None:
        if min(self.input_nano, self.cached_nano, self.output_nano) < 0:
            raise ValueError("a price is never negative")
