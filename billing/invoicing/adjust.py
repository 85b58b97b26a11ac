"""What people agree on beside usage. Called by the admin. Invariant: nobody approves what they wrote."""

import uuid

from django.db import transaction

from billing.models import Adjustment


class AdjustmentRefused(ValueError):
    """A second approval, or one's own."""


def approve_adjustment(*, adjustment_id: uuid.UUID, actor: str) -> Adjustment:
    """Record the second person. Raises AdjustmentRefused."""
    with transaction.atomic():
        found = Adjustment.objects.select_for_update().get(pk=adjustment_id)
        if found.approved_by or found.created_by == actor:
            raise AdjustmentRefused("an adjustment is approved once, by somebody else than who wrote it")
        found.approved_by = actor
        found.save(update_fields=["approved_by"])
        return found
