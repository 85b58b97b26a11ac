"""The one rounding of money: half to even, whole numbers in and out. Called by the rest of `billing.rating`."""

from contracts.money import NANO_PER_UNIT

PPM = 1_000_000
# ISO 4217: digits after the point where they are not two.
_WHOLE = (
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF",
)  # fmt: skip
_DIGITS = {**dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3), **dict.fromkeys(_WHOLE, 0)}


def div_half_even(dividend: int, divisor: int) -> int:
    """`dividend` / `divisor`, rounded half to even. `divisor` is positive."""
    quotient, rest = divmod(dividend, divisor)
    doubled = 2 * rest
    return quotient + (doubled > divisor or (doubled == divisor and quotient % 2 == 1))


def minor_digits(currency: str) -> int:
    """Digits after the point of an amount that can be paid."""
    return _DIGITS.get(currency, 2)


def minor_nano(currency: str) -> int:
    """Nano-units of the smallest amount that can be paid."""
    return int(NANO_PER_UNIT // 10 ** minor_digits(currency))


def round_to_minor(nano: int, *, currency: str) -> int:
    """The nearest amount that can be paid, in nano-units."""
    step = minor_nano(currency)
    return div_half_even(nano, step) * step
