"""A ledger transaction by its key: posted once, whoever asks how often. Called by credit, invoices and payments.

Invariant: the key stands for the entries. The same key with other entries is a fault and is refused, never posted.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import transaction

from billing.models import AccountKind, LedgerAccount, LedgerEntry, LedgerTransaction
from contracts.money import decimal_from_nano


class LedgerConflict(ValueError):
    """The key was posted with other entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One entry to be. Debit positive; `tenant_id` None = the platform's own account."""

    tenant_id: uuid.UUID | None
    kind: AccountKind
    nano: int


def transfer(
    *, debit: tuple[uuid.UUID | None, AccountKind], credit: tuple[uuid.UUID | None, AccountKind], nano: int
) -> list[Side]:
    """Two sides of one amount."""
    return [
        Side(tenant_id=debit[0], kind=debit[1], nano=nano),
        Side(tenant_id=credit[0], kind=credit[1], nano=-nano),
    ]


def post_once(
    *, key: str, currency: str, description: str, at: datetime, sides: Sequence[Side]
) -> tuple[LedgerTransaction, bool]:
    """The transaction of `key`, and whether this call posted it. Sides of nothing are left out.

    Raises LedgerConflict, ValueError for sides that do not sum to zero, django.db.Error.
    """
    if sum(side.nano for side in sides):
        raise ValueError(f"the sides of {key} do not sum to zero")
    kept = [side for side in sides if side.nano]
    with transaction.atomic():
        # The unique key makes the second of two at once wait here, and then find the first one's row.
        posted, created = LedgerTransaction.objects.get_or_create(
            idempotency_key=key, defaults={"currency": currency, "description": description, "posted_at": at}
        )
        if created:
            LedgerEntry.objects.bulk_create(
                LedgerEntry(
                    transaction=posted, account_id=_account(side, currency), amount=decimal_from_nano(side.nano)
                )
                for side in kept
            )
        elif _entries(posted) != _wanted(kept, currency):
            raise LedgerConflict(f"{key} was posted with other entries")
    return posted, created


def _account(side: Side, currency: str) -> uuid.UUID:
    account, _ = LedgerAccount.objects.get_or_create(
        tenant_id=side.tenant_id,  # type: ignore[misc]  # None is IS NULL: the platform's own
        kind=side.kind,
        currency=currency,
    )
    return account.pk


def _entries(posted: LedgerTransaction) -> list[tuple[str, str, str, Decimal]]:
    rows = posted.entries.values_list("account__tenant_id", "account__kind", "account__currency", "amount")
    return sorted((str(tenant_id), kind, currency, amount) for tenant_id, kind, currency, amount in rows)


def _wanted(sides: Sequence[Side], currency: str) -> list[tuple[str, str, str, Decimal]]:
    return sorted((str(side.tenant_id), str(side.kind.value), currency, decimal_from_nano(side.nano)) for side in sides)
