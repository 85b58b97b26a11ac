"""Background jobs of webhooks, run by the beat. Each is idempotent and bounded."""

from celery import shared_task
from django.utils import timezone

from tenants.webhooks import dispatch, fanout, retention, services


@shared_task(name="tenants.webhooks.tasks.deliver_due")  # type: ignore[untyped-decorator] # celery has no types
def deliver_due() -> int:
    """Send what is due; returns how many tries were made."""
    return dispatch.run()


@shared_task(name="tenants.webhooks.tasks.sweep_lost")  # type: ignore[untyped-decorator] # celery has no types
def sweep_lost() -> int:
    """Fan out what the exchange lost; returns how many events."""
    return fanout.sweep_lost(now=timezone.now())


@shared_task(name="tenants.webhooks.tasks.forget_old")  # type: ignore[untyped-decorator] # celery has no types
def forget_old() -> int:
    """Delete what is older than its stated time, and seal secrets under the root secret of now; returns how many rows
    were deleted."""
    services.reseal_secrets()
    return retention.forget_old(now=timezone.now())
