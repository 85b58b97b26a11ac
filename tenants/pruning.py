"""Deletes what is over in short transactions, so that nobody who writes the same table waits for it. Used by the jobs
that keep to stated times.

Invariant: one call deletes a bounded number of rows; what is left is the next call's.
"""

from typing import Any

from django.db.models import QuerySet

ROWS_MAX = 5_000
ROUNDS_MAX = 20


def delete_in_steps(rows: QuerySet[Any]) -> int:
    """Delete at most ROWS_MAX x ROUNDS_MAX of `rows`, lowest key first; returns how many were deleted."""
    total = 0
    for _ in range(ROUNDS_MAX):
        keys = list(rows.order_by("pk").values_list("pk", flat=True)[:ROWS_MAX])
        rows.model._default_manager.filter(pk__in=keys).delete()  # noqa: SLF001 - Django's own API
        total += len(keys)
        if len(keys) < ROWS_MAX:
            break
    return total
