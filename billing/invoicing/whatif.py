"""What a closed month would have cost under other prices, tenant by tenant. Reads only. Called by `manage.py rerate`.

Invariant: under the prices that were charged the difference is nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from billing.invoicing.issue import PriceKey, rate_now
from billing.models import BillingPeriod, PeriodState, PriceList
from billing.rating.prices import Meter, nano_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Net amounts before tax, in nano-units, contract and adjustments included."""

    tenant: str
    month: str
    currency: str
    net_nano: int
    other_nano: int

    @property
    def difference_nano(self) -> int:
        return self.other_nano - self.net_nano


def draft_units(price_list: PriceList, *, currency: str) -> dict[PriceKey, int]:
    """The newest price of the list for each model, class and meter: proposals too, withdrawn ones not."""
    found = price_list.prices.filter(currency=currency, withdrawn_by="").order_by("valid_from", "created_at")
    return {
        (price.model, price.service_class, Meter(price.meter)): nano_per_token(price.per_million) for price in found
    }


def rerate_month(*, month: str, price_list: PriceList) -> Iterator[WhatIf]:
    """Every tenant's sealed period of that month, in the order of names."""
    periods = BillingPeriod.objects.select_related("tenant").filter(month=month)
    units: dict[str, Mapping[PriceKey, int]] = {}
    for period in periods.exclude(state__in=(PeriodState.DRAFT, PeriodState.VOID)).order_by("tenant__name"):
        if period.currency not in units:
            units[period.currency] = draft_units(price_list, currency=period.currency)
        yield WhatIf(
            tenant=str(period.tenant),
            month=period.month,
            currency=period.currency,
            net_nano=rate_now(period).net_nano,
            other_nano=rate_now(period, units=units[period.currency]).net_nano,
        )
