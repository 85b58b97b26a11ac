"""Background jobs of the billing room, run by the beat. Each is idempotent: its writes have keys."""

import logging

from celery import shared_task
from django.utils import timezone

from billing.ledger import credits as credit_ledger

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
