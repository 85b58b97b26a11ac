"""Writes of the price book: proposed by one person, approved by another, superseded and never edited.

Invariant: nothing that has begun is rewritten, so what was priced stays explained by the version whose id it carries.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.db.models import Q

from billing.models import PriceVersion
from billing.rating.prices import Meter, nano_per_token
from billing.services.versions import PriceChangeRefused, approve


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceScope:
    """Of what and of whom a price is: a tenant's, a price list's, or everybody else's. `service_class` "" = every."""

    model: str
    meter: Meter
    currency: str
    tenant_id: str | None = None
    price_list_id: str | None = None
    service_class: str = ""


def propose_price(
    scope: PriceScope, *, per_million: Decimal, valid_from: datetime, actor: str, valid_to: datetime | None = None
) -> PriceVersion:
    """Write down a price (currency units per million tokens) that holds once somebody else approves it.

    Raises PriceError for a price that cannot be charged exactly.
    """
    nano_per_token(per_million)
    return PriceVersion.objects.create(
        tenant_id=scope.tenant_id,
        price_list_id=scope.price_list_id,
        model=scope.model,
        service_class=scope.service_class,
        meter=scope.meter.value,
        per_million=per_million,
        currency=scope.currency,
        valid_from=valid_from,
        valid_to=valid_to,
        created_by=actor,
    )


def publish_prices(
    *,
    model: str,
    prices: dict[Meter, Decimal],
    currency: str,
    at: datetime,
    actor: str,
    approver: str,
    tenant_id: str | None = None,
    price_list_id: str | None = None,
    service_class: str = "",
) -> list[PriceVersion]:
    """Make `prices` hold from `at` on, in one step; the versions in force then. For programs that know both names.

    A price that already holds is kept, so a repeat changes nothing. Raises PriceError for a price that cannot be
    charged exactly, PriceChangeRefused where `actor` and `approver` are one.
    """
    for per_million in prices.values():
        nano_per_token(per_million)
    with transaction.atomic():
        return [
            _publish(
                PriceScope(
                    model=model,
                    meter=meter,
                    currency=currency,
                    tenant_id=tenant_id,
                    price_list_id=price_list_id,
                    service_class=service_class,
                ),
                per_million=per_million,
                at=at,
                names=(actor, approver),
            )
            for meter, per_million in prices.items()
        ]


def supersede_price(
    *, price_id: str, per_million: Decimal, valid_from: datetime, now: datetime, actor: str
) -> PriceVersion:
    """Propose what follows a price at `valid_from`, up to where the old one would have ended.

    Raises PriceChangeRefused for a time before `now` or outside of the price's period, PriceError for the amount.
    """
    old = PriceVersion.objects.get(pk=price_id)
    if old.state != "approved":
        raise PriceChangeRefused("only a price in force is superseded; withdraw the proposal")
    if valid_from < now:
        raise PriceChangeRefused("a price holds from now on, or later")
    if valid_from < old.valid_from or (old.valid_to is not None and valid_from >= old.valid_to):
        raise PriceChangeRefused("the new price begins within the period of the old one")
    scope = PriceScope(
        model=old.model,
        meter=Meter(old.meter),
        currency=old.currency,
        tenant_id=None if old.tenant_id is None else str(old.tenant_id),
        price_list_id=None if old.price_list_id is None else str(old.price_list_id),
        service_class=old.service_class,
    )
    return propose_price(scope, per_million=per_million, valid_from=valid_from, valid_to=old.valid_to, actor=actor)


def _publish(scope: PriceScope, *, per_million: Decimal, at: datetime, names: tuple[str, str]) -> PriceVersion:
    current = (
        PriceVersion.objects.select_for_update()
        .exclude(approved_by="")
        .filter(
            Q(valid_to=None) | Q(valid_to__gt=at),
            Q(tenant=scope.tenant_id),
            Q(price_list=scope.price_list_id),
            model=scope.model,
            service_class=scope.service_class,
            meter=scope.meter.value,
            currency=scope.currency,
            valid_from__lte=at,
        )
        .first()
    )
    if current is not None and current.per_million == per_million:
        return current
    proposed = propose_price(scope, per_million=per_million, valid_from=at, actor=names[0])
    return approve(proposed, actor=names[1], now=at)
