"""Prepaid credit in the books: granted, topped up, burned for invoices, expired, and told of when it runs out.

Called by the admin, `manage.py credit`, the invoices and the beat. Invariants: credit left = the tenant's account of
prepaid credit; every posting has a key, so a repeat moves nothing; a grant never gives more than it has (trigger).
"""

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.db.models import F, Q, Sum
from django.db.models.functions import Coalesce

from billing.ledger.journal import post_once, transfer
from billing.models import (
    AccountKind,
    CreditAlert,
    CreditGrant,
    CreditMovement,
    LedgerAccount,
    LedgerTransaction,
    MovementKind,
)
from billing.rating.credits import Remaining, plan_burn
from contracts.money import decimal_from_nano, nano_from_decimal

EXPIRED_AT_ONCE = 500


class CreditRefused(ValueError):
    """Credit that cannot be granted as asked."""


def grant_credit(
    *,
    key: str,
    tenant_id: uuid.UUID,
    currency: str,
    amount: Decimal,
    paid: bool,
    reason: str,
    actor: str,
    at: datetime,
    expires_at: datetime | None = None,
) -> tuple[CreditGrant, bool]:
    """The grant of `key` and whether this call made it. `paid`: a top-up, cash against prepaid credit; else a gift.

    Raises CreditRefused, LedgerConflict for the same key with another amount.
    """
    nano = nano_from_decimal(amount)
    if nano <= 0 or not key or (expires_at is not None and expires_at <= at):
        raise CreditRefused("credit is more than nothing, has a key and expires later than it is granted")
    source = AccountKind.CASH if paid else AccountKind.PROMOTION
    with transaction.atomic():
        posted, created = post_once(
            key=f"credit:{key}",
            currency=currency,
            description=f"{'Top-up' if paid else 'Credit'}: {reason}"[:500],
            at=at,
            sides=transfer(debit=(None, source), credit=(tenant_id, AccountKind.PREPAID_CREDIT), nano=nano),
        )
        if not created:
            return CreditGrant.objects.get(transaction=posted), False
        grant = CreditGrant.objects.create(
            tenant_id=tenant_id,
            currency=currency,
            amount=amount,
            paid=paid,
            granted_at=at,
            expires_at=expires_at,
            reason=reason,
            created_by=actor,
            transaction=posted,
        )
        return grant, True


def burn_credit(*, key: str, tenant_id: uuid.UUID, currency: str, wanted_nano: int, at: datetime) -> int:
    """Pay up to `wanted_nano` of what the tenant owes from its credit; the nano-units that this key has paid.

    Repeated with its key it moves nothing and says the same.
    """
    with transaction.atomic():
        found = LedgerTransaction.objects.filter(idempotency_key=f"burn:{key}").first()
        if found is not None:
            return nano_from_decimal(found.credit_movements.aggregate(total=Sum("amount"))["total"] or Decimal(0))
        burns = plan_burn(_remaining(tenant_id, currency), wanted_nano=wanted_nano, at=at)
        total = sum(nano for _, nano in burns)
        posted, _ = post_once(
            key=f"burn:{key}",
            currency=currency,
            description=f"Credit used for {key}",
            at=at,
            sides=transfer(
                debit=(tenant_id, AccountKind.PREPAID_CREDIT), credit=(tenant_id, AccountKind.RECEIVABLE), nano=total
            ),
        )
        CreditMovement.objects.bulk_create(
            CreditMovement(
                grant_id=grant_id,
                kind=MovementKind.BURN,
                amount=decimal_from_nano(nano),
                moved_at=at,
                transaction=posted,
            )
            for grant_id, nano in burns
        )
        return total


def expire_credits(*, now: datetime, limit: int = EXPIRED_AT_ONCE) -> int:
    """Take what is left of grants whose time is over; how many. Bought credit is breakage, a gift is taken back."""
    used = Coalesce(Sum("movements__amount"), Decimal(0))
    over = CreditGrant.objects.filter(expires_at__lte=now).annotate(used=used).filter(amount__gt=F("used"))
    ids = list(over.order_by("expires_at", "id").values_list("pk", flat=True)[:limit])
    return sum(_expire(grant_id, now=now) for grant_id in ids)


def fire_alerts(*, now: datetime, tell: Callable[[CreditAlert, int], None]) -> list[CreditAlert]:
    """Alerts whose tenant has fallen below their amount, each told once; those that no longer are below are armed.

    `tell` gets the alert and what is left (nano-units), in the transaction that says that it was told.
    """
    fired = []
    for alert_id in list(CreditAlert.objects.values_list("pk", flat=True)):
        with transaction.atomic():
            alert = CreditAlert.objects.select_for_update().filter(pk=alert_id).first()
            if alert is None:
                continue
            left = balance_nano(tenant_id=alert.tenant_id, currency=alert.currency)
            is_below = left < nano_from_decimal(alert.below)
            if is_below == (alert.fired_at is not None):
                continue
            alert.fired_at = now if is_below else None
            alert.save(update_fields=["fired_at"])
            if is_below:
                tell(alert, left)
                fired.append(alert)
    return fired


def balance_nano(*, tenant_id: uuid.UUID, currency: str) -> int:
    """Credit left by the ledger, also what has expired and was not taken yet."""
    account = LedgerAccount.objects.filter(tenant_id=tenant_id, kind=AccountKind.PREPAID_CREDIT, currency=currency)
    total = account.aggregate(total=Sum("entries__amount"))["total"]
    return -nano_from_decimal(total or Decimal(0))


def _expire(grant_id: uuid.UUID, *, now: datetime) -> bool:
    with transaction.atomic():
        grant = CreditGrant.objects.select_for_update().get(pk=grant_id)
        used = grant.movements.aggregate(total=Sum("amount"))["total"] or Decimal(0)
        left = grant.amount - used
        if not left:
            return False  # another run was quicker
        taker = AccountKind.BREAKAGE if grant.paid else AccountKind.PROMOTION
        posted, created = post_once(
            key=f"expire:{grant.pk}",
            currency=grant.currency,
            description=f"Expired: {grant.reason}"[:500],
            at=now,
            sides=transfer(
                debit=(grant.tenant_id, AccountKind.PREPAID_CREDIT),
                credit=(None, taker),
                nano=nano_from_decimal(left),
            ),
        )
        if created:
            CreditMovement.objects.create(
                grant=grant, kind=MovementKind.EXPIRE, amount=left, moved_at=now, transaction=posted
            )
        return created


def _remaining(tenant_id: uuid.UUID, currency: str) -> Iterable[Remaining]:
    """Of the tenant's grants, locked: two invoices at once do not burn one amount."""
    grants = list(
        CreditGrant.objects.select_for_update().filter(Q(tenant_id=tenant_id), currency=currency).order_by("id")
    )
    used = dict(CreditMovement.objects.filter(grant__in=grants).values_list("grant_id").annotate(total=Sum("amount")))
    return [
        Remaining(
            grant_id=grant.pk,
            left_nano=nano_from_decimal(grant.amount - used.get(grant.pk, Decimal(0))),
            paid=grant.paid,
            granted_at=grant.granted_at,
            expires_at=grant.expires_at,
        )
        for grant in grants
    ]
