"""Calendar months and days of an IANA zone as half-open spans of UTC instants. Pure: no clock is read here.

Called by the close, the reports and the tests. Invariants: months follow each other without gap or overlap whatever the
zone does (DST, +05:45, a skipped day, another zone from the next month on); the days of a month are exactly the month.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month by name; which instants it has depends on the zone."""

    year: int
    number: int

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    @property
    def first_day(self) -> date:
        return date(self.year, self.number, 1)

    @property
    def following(self) -> "Month":
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @classmethod
    def read(cls, text: str) -> "Month":
        """Of "2026-11". Raises ValueError."""
        first = date.fromisoformat(f"{text}-01")
        return cls(first.year, first.month)

    @classmethod
    def of(cls, at: datetime, zone: ZoneInfo) -> "Month":
        """The month in which an aware instant lies, in `zone`."""
        local = at.astimezone(zone)
        return cls(local.year, local.month)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """[start, end) in UTC."""

    start: datetime
    end: datetime

    @classmethod
    def of_ms(cls, start_ms: int, end_ms: int) -> "Span":
        """Of milliseconds since the epoch."""
        start, end = (_EPOCH + timedelta(milliseconds=at) for at in (start_ms, end_ms))
        return cls(start=start, end=end)

    @property
    def seconds(self) -> int:
        """Elapsed, not by the wall clock: a day may have 23 hours, or 25."""
        return int((self.end - self.start).total_seconds())

    @property
    def start_ms(self) -> int:
        return round(self.start.timestamp() * 1_000)

    @property
    def end_ms(self) -> int:
        return round(self.end.timestamp() * 1_000)


def day_start(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a local day. Where midnight is skipped it is the moment of the jump; where it comes twice,
    the first (PEP 495, fold 0).
    """
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def month_span(month: Month, zone: ZoneInfo, *, starts_at: datetime | None = None) -> Span:
    """A month in `zone`. `starts_at`: where the period before ended, when that was in another zone."""
    start = day_start(month.first_day, zone) if starts_at is None else starts_at.astimezone(UTC)
    return Span(start=start, end=day_start(month.following.first_day, zone))


def days_of(span: Span, zone: ZoneInfo) -> list[tuple[date, Span]]:
    """The local days of a span in order; the first and the last may be parts. A skipped day has no span."""
    days = []
    day, start = span.start.astimezone(zone).date(), span.start
    while start < span.end:
        end = min(day_start(day + timedelta(days=1), zone), span.end)
        if end > start:
            days.append((day, Span(start=start, end=end)))
            start = end
        day += timedelta(days=1)
    return days


def hour_span(hour_ms: int, *, within: Span) -> Span:
    """An hour of UTC as far as it lies in `within`: a month of +05:45 begins in the middle of one."""
    hour = Span.of_ms(hour_ms, hour_ms + 3_600_000)
    return Span(start=max(hour.start, within.start), end=min(hour.end, within.end))


def utc_days(span: Span) -> list[Span]:
    """A span cut at the midnights of UTC, which are edges of hours too: read day by day, each hour stays whole."""
    cuts = [span.start]
    midnight = span.start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    while midnight < span.end:
        cuts.append(midnight)
        midnight += timedelta(days=1)
    return [Span(start=start, end=end) for start, end in pairwise([*cuts, span.end])]
