"""How long what a sign-in or a background request leaves behind is kept. Called by the beat once an hour.

Invariant: nothing that still counts is deleted: a wrong password counts for the lock-out's quarter of an hour, which is
far less than it is kept.
"""

from datetime import datetime, timedelta
from typing import Any

from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection
from django.db.models import QuerySet

from gateway.surface.limits import BACKGROUND_KEPT_SECONDS
from tenants.pruning import delete_in_steps
from tenants.services import forget_background

WRONG_SIGN_INS_FOR = timedelta(days=30)
SIGN_INS_FOR = timedelta(days=180)


def forget_sign_ins(*, now: datetime) -> int:
    """Delete sessions and one-time marks that are over, old sign-ins and wrong ones; returns how many rows."""
    over: list[QuerySet[Any]] = [
        Session.objects.filter(expire_date__lt=now),
        AccessAttempt.objects.filter(attempt_time__lt=now - WRONG_SIGN_INS_FOR),
        AccessFailureLog.objects.filter(attempt_time__lt=now - WRONG_SIGN_INS_FOR),
        AccessLog.objects.filter(attempt_time__lt=now - SIGN_INS_FOR),
    ]
    return sum(delete_in_steps(rows) for rows in over) + _forget_marks(now)


def forget_answers(*, now: datetime) -> int:
    """Delete background requests that ended longer ago than their answers are kept; returns how many."""
    return forget_background(ended_before=now - timedelta(seconds=BACKGROUND_KEPT_SECONDS))


def _forget_marks(now: datetime) -> int:
    """Django's cache in PostgreSQL deletes what expired only when it is full; it has no model."""
    table = connection.ops.quote_name(str(settings.CACHES["default"]["LOCATION"]))
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE expires < %s", [now])  # noqa: S608 - a name of our settings
        return int(cursor.rowcount)
