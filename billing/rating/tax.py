"""Which tax an invoice bears, by a table of countries. Pure; the table and both parties are handed in.

Source of the rules: place of supply of services by electronic means, EU directive 2006/112/EC, articles 44, 58 and 196.
They are a starting point that a tax adviser confirms for the issuer; the table decides the rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from billing.rating.rounding import PPM, div_half_even, round_to_minor

EU = frozenset(
    "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK".split()  # noqa: SIM905
)
RATE_MAX_PPM = PPM


class TaxUndecided(ValueError):
    """The table has no rate where one is needed: such an invoice is refused, never issued without tax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tax:
    """`category` by UNCL 5305, as electronic invoices name it: S standard, AE reverse charge, O outside, Z zero."""

    category: str
    rate_ppm: int
    note: str

    def on(self, net_nano: int, *, currency: str) -> int:
        """Tax of a net amount, an amount that can be paid."""
        return round_to_minor(div_half_even(net_nano * self.rate_ppm, PPM), currency=currency)

    @property
    def percent(self) -> str:
        """ "19", "7.7"."""
        whole, rest = divmod(self.rate_ppm, 10_000)
        return f"{whole}.{rest:04d}".rstrip("0").rstrip(".")


def decide_tax(*, seller_country: str, buyer_country: str, buyer_tax_id: str, rates: Mapping[str, int]) -> Tax:
    """`rates`: country -> millionths. Raises TaxUndecided when a country that must have a rate has none."""
    if buyer_country != seller_country:
        if {seller_country, buyer_country} <= EU:
            if buyer_tax_id:
                return Tax(category="AE", rate_ppm=0, note="Reverse charge: VAT is due by the recipient.")
        elif buyer_country not in rates:
            return Tax(category="O", rate_ppm=0, note="Outside the scope of tax: supplied to another country.")
    rate = rates.get(buyer_country)
    if rate is None:
        raise TaxUndecided(f"no tax rate for {buyer_country} in this period")
    return Tax(category="S" if rate else "Z", rate_ppm=rate, note="")
