"""Reminders of documents that are overdue: who is told what, when. Called by the beat's job.

Invariants: a level is told once, in order, at most one a run and document; what is paid, void or in the customer's
favour is never reminded of; nothing is switched off by itself: who suspends a tenant is a person.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import transaction

from billing.invoicing.pay import amount_due
from billing.models import DocumentKind, DocumentState, DunningStep, Invoice

# Days after the due day at which each level is told.
LEVELS = (timedelta(days=3), timedelta(days=14), timedelta(days=30))

Tell = Callable[[DunningStep], None]  # writes the event, in the transaction of the step


def dunning_state(document: Invoice, *, at: datetime) -> str:
    """settled, not_due, overdue, or reminded_1 … reminded_3."""
    if document.state != DocumentState.ISSUED or not amount_due(document):
        return "settled"
    last = document.dunning_steps.order_by("-level").first()
    if last is not None:
        return f"reminded_{last.level}"
    return "overdue" if at > document.due_at else "not_due"


def remind_overdue(*, now: datetime, tell: Tell) -> list[DunningStep]:
    """The steps that this run added."""
    overdue = Invoice.objects.filter(state=DocumentState.ISSUED, due_at__lt=now - LEVELS[0]).exclude(
        kind=DocumentKind.CREDIT_NOTE
    )
    made = []
    for invoice_id in list(overdue.order_by("due_at").values_list("pk", flat=True)):
        with transaction.atomic():
            step = _next_step(Invoice.objects.select_for_update().get(pk=invoice_id), now)
            if step is not None:
                tell(step)
                made.append(step)
    return made


def _next_step(document: Invoice, now: datetime) -> DunningStep | None:
    due = amount_due(document)
    told = document.dunning_steps.count()
    if document.state != DocumentState.ISSUED or not due or told >= len(LEVELS):
        return None
    if now < document.due_at + LEVELS[told]:
        return None
    return DunningStep.objects.create(
        tenant_id=document.tenant_id, invoice=document, level=told + 1, due=due, told_at=now
    )
