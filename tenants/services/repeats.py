"""How long the answers of POSTs are kept for a repeat (`tenants.api.repeats` writes and reads them)."""

from datetime import timedelta

from django.utils import timezone

from tenants.models import IdempotentWrite
from tenants.pruning import delete_in_steps

KEEP = timedelta(hours=24)


def forget_old() -> int:
    """Delete the records whose time is over; returns how many. Run by the beat."""
    return delete_in_steps(IdempotentWrite.objects.filter(created_at__lt=timezone.now() - KEEP))
