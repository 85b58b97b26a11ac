"""What a contract adds to unit prices, as numbers. Called by the price book (to check a form) and `rating.invoice`.

Invariant: a tier, a discount and a share of time take off or charge no more than they name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from billing.rating.prices import Meter
from billing.rating.rounding import PPM, div_half_even

TIERS_MAX = 100


class TermsError(ValueError):
    """Terms that cannot be charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A period's tokens above `above_tokens` cost `discount_ppm` millionths less. `model` "" = each by itself."""

    model: str
    meter: Meter
    above_tokens: int
    discount_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Amounts are nano-units for one whole period."""

    tiers: tuple[Tier, ...] = ()
    discount_ppm: int = 0
    commitment_nano: int = 0
    commitment_fee_nano: int = 0
    minimum_nano: int = 0


def read_tiers(value: object) -> tuple[Tier, ...]:
    """Tiers of their JSON form. Raises TermsError, saying what is wrong with which."""
    if not isinstance(value, list) or len(value) > TIERS_MAX:
        raise TermsError(f"tiers are a list of at most {TIERS_MAX}")
    tiers = tuple(_read_tier(number, item) for number, item in enumerate(value, start=1))
    places = {(tier.model, tier.meter, tier.above_tokens) for tier in tiers}
    if len(places) != len(tiers):
        raise TermsError("two tiers begin at one place")
    return tiers


def tiers_of(tiers: Iterable[Tier], *, model: str, meter: Meter) -> Sequence[Tier]:
    """The model's own tiers, else those of every model; by where they begin."""
    of_meter = [tier for tier in tiers if tier.meter is meter and tier.model in (model, "")]
    own = [tier for tier in of_meter if tier.model]
    return sorted(own or of_meter, key=lambda tier: tier.above_tokens)


def discounted(tiers: Sequence[Tier], *, start: int, tokens: int) -> list[tuple[Tier, int]]:
    """Which tier takes how many of a period's tokens [start, start + tokens). Graduated: each token has one tier."""
    ends = [tier.above_tokens for tier in tiers[1:]]
    found = []
    for index, tier in enumerate(tiers):
        low = max(start, tier.above_tokens)
        high = min(start + tokens, ends[index]) if index < len(ends) else start + tokens
        if high > low:
            found.append((tier, high - low))
    return found


def part_of(nano: int, *, ppm: int) -> int:
    """Millionths of an amount, rounded half to even to a nano-unit."""
    return div_half_even(nano * ppm, PPM)


def for_seconds(nano: int, *, seconds: int, of_seconds: int) -> int:
    """What an amount for `of_seconds` is for `seconds` of them, rounded half to even to a nano-unit."""
    return div_half_even(nano * seconds, of_seconds)


def _read_tier(number: int, item: object) -> Tier:
    if not isinstance(item, dict) or set(item) != {"model", "meter", "above_tokens", "discount_ppm"}:
        raise TermsError(f"tier {number} has model, meter, above_tokens and discount_ppm")
    model, meter, above, ppm = item["model"], item["meter"], item["above_tokens"], item["discount_ppm"]
    if not isinstance(model, str) or not isinstance(meter, str) or meter not in {each.value for each in Meter}:
        raise TermsError(f"tier {number}: model is a text, meter is one of {', '.join(Meter)}")
    if type(above) is not int or not 0 <= above <= 10**15:
        raise TermsError(f"tier {number}: above_tokens is a whole number from 0")
    if type(ppm) is not int or not 0 <= ppm <= PPM:
        raise TermsError(f"tier {number}: discount_ppm is a whole number from 0 to {PPM}")
    return Tier(model=model, meter=Meter(meter), above_tokens=above, discount_ppm=ppm)
