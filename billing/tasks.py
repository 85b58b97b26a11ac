"""Background jobs of the billing room. The beat asks for them; they are run from PostgreSQL (`billing.jobs`).

Each is idempotent: its writes have keys. Run by Celery's workers, which have the receipt key's file as the settler has.
"""

import logging
import os
import socket
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta

from celery import shared_task
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone
from redis.exceptions import RedisError

from billing import jobs
from billing.closing.close import CloseRefused, correct_period, open_periods, seal_period
from billing.customers import tenant_names
from billing.invoicing.dunning import remind_overdue
from billing.invoicing.files import store_files
from billing.invoicing.issue import InvoiceRefused, issue_document
from billing.jobs import JobFailed, Progress
from billing.ledger import credits as credit_ledger
from billing.ledger.journal import LedgerConflict
from billing.management.composition import gather_evidence, tell_of_dunning, tell_of_low_credit
from billing.models import BillingJob, BillingPeriod, Invoice, JobKind, PeriodState
from stores.clickhouse import ClickHouseError
from stores.objects import Objects, ObjectStoreError

DOCUMENTS_AT_ONCE = 200
GRACE = timedelta(hours=24)  # attempt logs that are replayed still come into their own period
SYSTEM = "system:close"
_AGAIN = (DatabaseError, ClickHouseError, RedisError, ObjectStoreError, OSError, TimeoutError)

log = logging.getLogger("weir.billing")


@shared_task(name="billing.tasks.expire_credits")  # type: ignore[untyped-decorator] # celery has no types
def expire_credits() -> int:
    """Take credit whose time is over; returns of how many grants."""
    return credit_ledger.expire_credits(now=timezone.now())


@shared_task(name="billing.tasks.tell_of_credit")  # type: ignore[untyped-decorator] # celery has no types
def tell_of_credit() -> int:
    """Fire alerts of credit that runs out, as events, into the log and the admin; returns how many."""
    fired = credit_ledger.fire_alerts(now=timezone.now(), tell=tell_of_low_credit)
    for alert in fired:
        log.warning("credit of tenant %s is %s", alert.tenant_id, alert)
    return len(fired)


@shared_task(name="billing.tasks.close_due")  # type: ignore[untyped-decorator] # celery has no types
def close_due() -> int:
    """Ask for the close of what is over for a day, for reminders, and run what is due; returns how many were sealed.

    A blocked period keeps its gaps on its page, and is tried again an hour later.
    """
    now = timezone.now()
    for period in _periods_over(now):
        jobs.ask(kind=JobKind.CLOSE, subject=str(period.pk), actor=SYSTEM, now=now)
    jobs.ask(kind=JobKind.DUNNING, actor="system:dunning", now=now)
    jobs.forget_old(now=now)
    return sum(job.kind == JobKind.CLOSE and job.result.startswith("sealed") for job in run_due())


@shared_task(name="billing.tasks.run_billing_jobs")  # type: ignore[untyped-decorator] # celery has no types
def run_billing_jobs() -> int:
    """Run what somebody has asked for; returns how many jobs were run."""
    return len(run_due())


@shared_task(name="billing.tasks.store_documents")  # type: ignore[untyped-decorator] # celery has no types
def store_documents() -> int:
    """Write the files of documents that have none yet; returns how many. Without an object store there are none."""
    if settings.ENV.s3_url is None:
        return 0
    objects = Objects.open(settings.ENV.s3_url.get_secret_value())
    waiting = list(Invoice.objects.filter(files={}).order_by("year", "serial")[:DOCUMENTS_AT_ONCE])
    for document in waiting:
        store_files(invoice_id=document.pk, objects=objects)
    return len(waiting)


def run_due() -> list[BillingJob]:
    """Everything that is due, by this process."""
    owner = f"{socket.gethostname()}:{os.getpid()}"
    return jobs.run_jobs(HANDLERS, owner=owner, clock=timezone.now, errors=_AGAIN)


def _periods_over(now: datetime) -> Iterable[BillingPeriod]:
    """Of each tenant the oldest draft, when it has been over for long enough."""
    for tenant_id in sorted(tenant_names()):
        drafts = [each for each in open_periods(tenant_id=tenant_id, now=now) if each.state == PeriodState.DRAFT]
        if drafts and drafts[0].ends_at + GRACE <= now:
            yield drafts[0]


def _period(job: BillingJob) -> BillingPeriod:
    return BillingPeriod.objects.get(pk=uuid.UUID(job.subject))


def _close(job: BillingJob, progress: Progress) -> str:
    period = _period(job)
    progress(f"comparing the books of {period}")
    try:
        sealed = seal_period(period, gather_evidence(), actor=job.asked_by, now=timezone.now())
    except CloseRefused as error:
        log.warning("%s is not closed: %s", period, error)
        return f"not closed: {error}"
    if settings.ENV.issue_invoices:
        jobs.ask(kind=JobKind.ISSUE, subject=job.subject, actor=job.asked_by, now=timezone.now())
    return f"sealed by {sealed.sealed_by}"


def _correct(job: BillingJob, progress: Progress) -> str:
    period = _period(job)
    progress(f"comparing the books of {period}")
    try:
        revision = correct_period(period, gather_evidence(), now=timezone.now())
    except CloseRefused as error:
        return f"not corrected: {error}"
    return "nothing has changed" if revision is None else f"revision {revision} is stored"


def _issue(job: BillingJob, progress: Progress) -> str:
    try:
        made = issue_document(period_id=uuid.UUID(job.subject), actor=job.asked_by, now=timezone.now())
    except (InvoiceRefused, LedgerConflict) as error:
        raise JobFailed(str(error)) from error
    return "its documents are right as they are" if made is None else f"issued {made}"


def _remind(job: BillingJob, progress: Progress) -> str:
    return f"{len(remind_overdue(now=timezone.now(), tell=tell_of_dunning))} reminders"


HANDLERS: dict[str, jobs.Handler] = {
    JobKind.CLOSE.value: _close,
    JobKind.CORRECT.value: _correct,
    JobKind.ISSUE.value: _issue,
    JobKind.DUNNING.value: _remind,
}
