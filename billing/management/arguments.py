"""Months and moments as commands are told them: a wrong one is an error that names its argument.

Used by every command of this room. Invariant: what no calendar has (2026-99, the 31st of June) is refused like any
other word, never a traceback and never an empty answer.
"""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime

from billing.rating.periods import Month


def read_month(text: str, *, option: str) -> str:
    """A month like 2026-11. Raises CommandError."""
    try:
        return str(Month.read(text))
    except ValueError as error:
        raise CommandError(f"{option} is like 2026-11") from error


def read_moment(text: str, *, option: str) -> datetime:
    """An instant with its offset. Raises CommandError."""
    found = _moment(text)
    if found is None:
        raise CommandError(f"{option} is a time with its zone, e.g. 2026-12-31T00:00:00+00:00")
    return found


def read_day_or_moment(text: str, *, option: str, zone: str = "UTC") -> datetime:
    """A day's first moment in `zone`, or an instant with its offset. Raises CommandError."""
    try:
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        found = _moment(text)
    if found is None:
        raise CommandError(f"{option} is a day like 2026-11-01, or a time with its offset")
    return found


def _moment(text: str) -> datetime | None:
    """None for what is no instant, or one that UTC's calendar does not reach."""
    try:
        found = parse_datetime(text)
        return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
