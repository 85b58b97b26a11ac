"""Payments and voids of issued documents. Called by the admin and `manage.py invoice`.

Invariants: a payment has a key, so a provider that tells twice books once; a document is paid by exactly what it is
due; void takes a document back whole, in the ledger too, and never one that money or credit was used for.
"""

import uuid
from datetime import datetime
from decimal import Decimal

from django.db import transaction

from billing.ledger.journal import Side, post_once, transfer
from billing.models import AccountKind, BillingPeriod, DocumentState, Invoice, Payment, PeriodState
from contracts.money import nano_from_decimal


class PaymentRefused(ValueError):
    """Not an amount that this document is due, or not a document that this can be done to."""


def amount_due(document: Invoice) -> Decimal:
    """What is still to be paid; never negative."""
    return max(Decimal(0), document.total - document.credit_used - document.paid)


def record_payment(
    *, invoice_id: uuid.UUID, key: str, amount: Decimal, actor: str, at: datetime
) -> tuple[Payment, bool]:
    """The payment of `key` and whether this call booked it. Raises PaymentRefused, LedgerConflict."""
    with transaction.atomic():
        document = Invoice.objects.select_for_update().get(pk=invoice_id)
        known = Payment.objects.filter(key=key).first()
        if known is not None:
            if (known.invoice_id, known.amount) != (document.pk, amount):
                raise PaymentRefused(f"{key} was booked for something else")
            return known, False
        if document.state != DocumentState.ISSUED or not key or not 0 < amount <= amount_due(document):
            raise PaymentRefused(f"{document} is {document.state} and due {amount_due(document).normalize():f}")
        posted, _ = post_once(
            key=f"payment:{key}",
            currency=document.currency,
            description=f"Payment of {document}",
            at=at,
            sides=transfer(
                debit=(None, AccountKind.CASH),
                credit=(document.tenant_id, AccountKind.RECEIVABLE),
                nano=nano_from_decimal(amount),
            ),
        )
        payment = Payment.objects.create(
            invoice=document, key=key, amount=amount, paid_at=at, recorded_by=actor, transaction=posted
        )
        document.paid += amount
        if not amount_due(document):
            document.state, document.paid_at = DocumentState.PAID, at
        document.save(update_fields=["paid", "state", "paid_at"])
        settle_period(BillingPeriod.objects.select_for_update().get(pk=document.period_id))
        return payment, True


def void_period(*, period_id: uuid.UUID, actor: str, at: datetime, reason: str) -> BillingPeriod:
    """Take back every document of an issued period: nothing of it is owed. The numbers stay. Void already: a no-op.

    Raises PaymentRefused once money or credit was used for one of them: those are corrected by a note instead.
    """
    with transaction.atomic():
        period = BillingPeriod.objects.select_for_update().get(pk=period_id)
        if period.state == PeriodState.VOID:
            return period
        documents = list(Invoice.objects.select_for_update().filter(period=period))
        used = any(document.credit_used or document.paid for document in documents)
        if period.state != PeriodState.ISSUED or used or not reason.strip():
            raise PaymentRefused(
                f"{period} is {period.state}; only issued and unpaid documents are void, with a reason"
            )
        totals = {name: sum(nano_from_decimal(getattr(each, name)) for each in documents) for name in ("net", "tax")}
        post_once(
            key=f"void:{period.pk}",
            currency=period.currency,
            description=f"Void by {actor}: {reason.strip()}"[:500],
            at=at,
            sides=[
                Side(tenant_id=period.tenant_id, kind=AccountKind.RECEIVABLE, nano=-totals["net"] - totals["tax"]),
                Side(tenant_id=None, kind=AccountKind.REVENUE, nano=totals["net"]),
                Side(tenant_id=None, kind=AccountKind.TAX, nano=totals["tax"]),
            ],
        )
        for document in documents:
            if document.state == DocumentState.ISSUED:
                document.state = DocumentState.VOID
                document.save(update_fields=["state"])
        period.state = PeriodState.VOID
        period.save(update_fields=["state"])
        return period


def settle_period(period: BillingPeriod) -> None:
    """An issued period whose documents are all paid is paid. The caller holds its lock."""
    unpaid = Invoice.objects.filter(period=period).exclude(state=DocumentState.PAID)
    if period.state == PeriodState.ISSUED and not unpaid.exists():
        period.state = PeriodState.PAID
        period.save(update_fields=["state"])
