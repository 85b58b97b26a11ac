"""Background jobs of the billing room, run by the beat. Each is idempotent: its writes have keys."""

import logging
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from billing.closing.close import CloseRefused, open_periods, seal_period
from billing.customers import tenant_names
from billing.invoicing.files import store_files
from billing.ledger import credits as credit_ledger
from billing.management.composition import gather_evidence
from billing.models import Invoice, PeriodState
from stores.objects import Objects

DOCUMENTS_AT_ONCE = 200
GRACE = timedelta(hours=24)  # attempt logs that are replayed still come into their own period

log = logging.getLogger("weir.billing")


@shared_task(name="billing.tasks.expire_credits")  # type: ignore[untyped-decorator] # celery has no types
def expire_credits() -> int:
    """Take credit whose time is over; returns of how many grants."""
    return credit_ledger.expire_credits(now=timezone.now())


@shared_task(name="billing.tasks.tell_of_credit")  # type: ignore[untyped-decorator] # celery has no types
def tell_of_credit() -> int:
    """Fire alerts of credit that runs out, into the log and the admin; returns how many."""
    fired = credit_ledger.fire_alerts(now=timezone.now())
    for alert in fired:
        log.warning("credit of tenant %s is %s", alert.tenant_id, alert)
    return len(fired)


@shared_task(name="billing.tasks.close_due")  # type: ignore[untyped-decorator] # celery has no types
def close_due() -> int:
    """Seal what is over for a day and has no gaps; returns how many. A blocked period keeps its gaps on its page."""
    now = timezone.now()
    evidence = gather_evidence()
    sealed = 0
    for tenant_id in sorted(tenant_names()):
        for period in open_periods(tenant_id=tenant_id, now=now):
            if period.state != PeriodState.DRAFT or period.ends_at + GRACE > now:
                continue
            try:
                seal_period(period, evidence, actor="system:close", now=now)
            except CloseRefused as error:
                log.warning("%s is not closed: %s", period, error)
                break
            sealed += 1
    return sealed


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
