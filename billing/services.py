"""Writes of the price book. Called by the admin, the seed and commands; the caller opens the transaction.

Invariants: a price in force is ended and followed by a new version, never changed; nothing that has begun is rewritten,
so what was priced stays explained by the version whose id it carries.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.db.models import Q

from billing.models import PriceVersion
from billing.rating.prices import Meter, nano_per_token


class PriceChangeRefused(ValueError):
    """The change would rewrite history or leave a price out of the exact range."""


def publish_prices(
    *,
    model: str,
    prices: dict[Meter, Decimal],
    currency: str,
    at: datetime,
    actor: str,
    tenant_id: str | None = None,
    price_list_id: str | None = None,
) -> list[PriceVersion]:
    """Make `prices` (currency units per million tokens) hold from `at` on; the versions in force then.

    For one tenant, for a price list, or, where neither is named, for everybody else.

    A price that already holds is kept, so a repeat changes nothing. Raises PriceError for a price that cannot be
    charged exactly.
    """
    for per_million in prices.values():
        nano_per_token(per_million)
    owner = _Owner(tenant_id=tenant_id, price_list_id=price_list_id)
    with transaction.atomic():
        return [
            _publish(owner, model=model, meter=meter, per_million=per_million, currency=currency, at=at, actor=actor)
            for meter, per_million in prices.items()
        ]


def supersede_price(
    *, price_id: str, per_million: Decimal, valid_from: datetime, now: datetime, actor: str
) -> PriceVersion:
    """End a price at `valid_from` and let a new version follow, up to where the old one would have ended.

    Raises PriceChangeRefused for a time before `now` or outside of the price's period, PriceError for the amount.
    """
    nano_per_token(per_million)
    with transaction.atomic():
        old = PriceVersion.objects.select_for_update().get(pk=price_id)
        if valid_from < now:
            raise PriceChangeRefused("a price holds from now on, or later")
        if valid_from < old.valid_from or (old.valid_to is not None and valid_from >= old.valid_to):
            raise PriceChangeRefused("the new price begins within the period of the old one")
        return _follow(old, per_million=per_million, valid_from=valid_from, actor=actor)


def approve_price(*, price_id: str, actor: str) -> PriceVersion:
    """Record the second person. Raises PriceChangeRefused for the one who wrote it, or a second time."""
    with transaction.atomic():
        price = PriceVersion.objects.select_for_update().get(pk=price_id)
        if price.approved_by or price.created_by == actor:
            raise PriceChangeRefused("a price is approved once, by somebody else than who wrote it")
        price.approved_by = actor
        price.save(update_fields=["approved_by"])
        return price


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    """Whose price: a tenant's, a list's, or everybody's."""

    tenant_id: str | None
    price_list_id: str | None


def _publish(
    owner: _Owner, *, model: str, meter: Meter, per_million: Decimal, currency: str, at: datetime, actor: str
) -> PriceVersion:
    named = {"model": model, "meter": meter.value, "currency": currency}
    scope = PriceVersion.objects.select_for_update().filter(
        Q(tenant=owner.tenant_id), Q(price_list=owner.price_list_id), **named
    )
    current = scope.filter(Q(valid_to=None) | Q(valid_to__gt=at), valid_from__lte=at).first()
    if current is not None:
        if current.per_million == per_million:
            return current
        return _follow(current, per_million=per_million, valid_from=at, actor=actor)
    later = scope.filter(valid_from__gt=at).order_by("valid_from").first()
    return PriceVersion.objects.create(
        tenant_id=owner.tenant_id,
        price_list_id=owner.price_list_id,
        per_million=per_million,
        valid_from=at,
        valid_to=later.valid_from if later else None,
        created_by=actor,
        **named,
    )


def _follow(old: PriceVersion, *, per_million: Decimal, valid_from: datetime, actor: str) -> PriceVersion:
    ends = old.valid_to
    old.valid_to = valid_from
    old.save(update_fields=["valid_to"])
    return PriceVersion.objects.create(
        tenant_id=old.tenant_id,
        price_list_id=old.price_list_id,
        model=old.model,
        meter=old.meter,
        per_million=per_million,
        currency=old.currency,
        valid_from=valid_from,
        valid_to=ends,
        created_by=actor,
    )
