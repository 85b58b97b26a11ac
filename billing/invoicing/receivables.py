"""Who owes what since when, and what was used and not yet billed, checked against the ledger. Reads only.

Called by `manage.py receivables`. Invariant, which the report proves: what documents leave to be paid plus what is not
yet on a document is the tenant's receivable in the ledger, to the nano-unit.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Max, Sum

from billing.models import (
    AccountKind,
    DocumentState,
    Invoice,
    LedgerAccount,
    PeriodState,
    UsagePosting,
)

# Days overdue, up to and including; the last bucket has no end.
BUCKETS = (("not_due", 0), ("days_1_30", 30), ("days_31_60", 60), ("days_61_90", 90), ("days_over_90", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Receivable:
    """One tenant in one currency. `aged` by the names of BUCKETS; credit notes are in `not_due`, negative."""

    tenant_id: uuid.UUID
    currency: str
    aged: dict[str, Decimal]
    unbilled: Decimal
    ledger: Decimal

    @property
    def billed(self) -> Decimal:
        return sum(self.aged.values(), Decimal(0))

    @property
    def reconciles(self) -> bool:
        return self.billed + self.unbilled == self.ledger


def receivables(*, at: datetime) -> list[Receivable]:
    """Of every tenant that has an account, by its id. Ages are those of `at`; amounts are what they are now."""
    accounts = LedgerAccount.objects.filter(kind=AccountKind.RECEIVABLE).annotate(total=Sum("entries__amount"))
    documents = list(Invoice.objects.exclude(period__state=PeriodState.VOID).order_by("tenant_id"))
    posted = {
        (tenant_id, currency): total
        for tenant_id, currency, total in UsagePosting.objects.values_list("tenant_id", "currency").annotate(
            total=Sum("amount")
        )
    }
    billed = _usage_on_documents()
    found = []
    for account in accounts.order_by("tenant_id", "currency"):
        assert account.tenant_id is not None  # a receivable is a tenant's
        key = (account.tenant_id, account.currency)
        mine = [each for each in documents if (each.tenant_id, each.currency) == key]
        found.append(
            Receivable(
                tenant_id=account.tenant_id,
                currency=account.currency,
                aged=_aged(mine, at=at),
                unbilled=posted.get(key, Decimal(0)) - billed.get(key, Decimal(0)),
                ledger=account.total or Decimal(0),
            )
        )
    return found


def _aged(documents: Iterable[Invoice], *, at: datetime) -> dict[str, Decimal]:
    aged = dict.fromkeys((name for name, _ in BUCKETS), Decimal(0))
    for document in documents:
        left = document.total - document.credit_used - document.paid
        days = (at - document.due_at).days + 1 if at >= document.due_at else 0
        if document.state == DocumentState.PAID:
            days = 0  # a note in the customer's favour: it waits for whatever is owed next
        name = next(name for name, most in BUCKETS if most is None or days <= most)
        aged[name] += left
    return aged


def _usage_on_documents() -> dict[tuple[uuid.UUID, str], Decimal]:
    """What the last document of each period says was posted; void periods too, whose usage nobody owes any more."""
    last = Invoice.objects.values("period_id").annotate(sequence=Max("sequence"))
    wanted = {(row["period_id"], row["sequence"]) for row in last}
    totals: dict[tuple[uuid.UUID, str], Decimal] = {}
    for document in Invoice.objects.only("period_id", "sequence", "tenant_id", "currency", "usage_posted"):
        if (document.period_id, document.sequence) in wanted:
            key = (document.tenant_id, document.currency)
            totals[key] = totals.get(key, Decimal(0)) + document.usage_posted
    return totals
