"""Compares every book of one period and says what is not explained. Reads only; called by `billing.closing.close`.

Invariant: a period without gaps is the same by number, tokens, cost and ids in ClickHouse and ledger, every token of it
was counted by an engine or ended by the queue, and every price on it stands in the price book as it was charged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol
from uuid import UUID

from billing.clickhouse.reports import read_request
from billing.closing import books
from billing.closing.books import PricedUsage
from billing.closing.compare import (
    Gap,
    HourCount,
    NamedLog,
    PoolCount,
    differing_hours,
    explain_engine,
    explain_ledger,
    explain_logs,
    explain_queue,
    explain_unbilled,
)
from billing.closing.watermark import Watermark
from billing.models import ContractTerms, PriceVersion
from billing.proof.signing import Signer
from billing.rating.invoice import Usage
from billing.rating.periods import Span, hour_span, utc_days
from billing.rating.prices import CARD_ID_SEPARATOR, Meter, nano_per_token
from stores.clickhouse import Reader

GAPS_MAX = 1_000  # named one by one; what is beyond is a gap by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose books of which time."""

    tenant_id: UUID
    currency: str
    span: Span


class QueueSide(Protocol):
    """`billing.closing.queue_counts.QueueCounts`."""

    def of(self, *, tenant_id: str, span: Span) -> Iterable[PoolCount]: ...


class LogStore(Protocol):
    """`stores.objects.Objects`, as far as evaluation logs are looked for."""

    def keys(self, *, prefix: str) -> Iterable[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where the books are. `attempt_logs`: folders of machines whose logs nothing collects.

    `objects` None: no object store is set. `signer` None: this process may compare, and not seal.
    """

    reader: Reader
    watermark: Watermark
    queue: QueueSide
    objects: LogStore | None
    attempt_logs: Sequence[Path]
    signer: Signer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`usage` by the moment at which its contract began in the period."""

    hours: tuple[HourCount, ...]
    usage: tuple[tuple[datetime, Usage], ...]
    gaps: tuple[Gap, ...]


def compare_books(subject: Subject, evidence: Evidence, *, now: datetime) -> Comparison:
    """Raises stores.clickhouse.ClickHouseError, django.db.Error, redis.exceptions.RedisError, OSError,
    stores.objects.ObjectStoreError when a book cannot be read.
    """
    tenant_id, span = str(subject.tenant_id), subject.span
    hours = books.metered_hours(evidence.reader, tenant_id=tenant_id, span=span)
    usage, gaps = _usage(subject, evidence.reader)
    if now < span.end:
        gaps.append(Gap(kind="not_over", detail=f"the period ends at {span.end:%Y-%m-%d %H:%M} UTC"))
    gaps += evidence.watermark.gaps(tenant_id=tenant_id, start_ms=span.start_ms, end_ms=span.end_ms)
    gaps += _ledger_gaps(subject, evidence.reader, hours)
    gaps += _engine_gaps(subject, evidence)
    gaps += _queue_gaps(subject, evidence)
    gaps += _log_gaps(subject, evidence)
    if len(gaps) > GAPS_MAX:
        rest = len(gaps) - GAPS_MAX
        gaps = [*gaps[:GAPS_MAX], Gap(kind="more", detail=f"{rest} more gaps are not listed")]
    return Comparison(hours=tuple(hours), usage=tuple(usage), gaps=tuple(gaps))


def segments_of(subject: Subject) -> list[tuple[ContractTerms | None, Span]]:
    """The period cut where the tenant's contract begins or ends."""
    span = subject.span
    held = list(
        ContractTerms.objects.exclude(approved_by="")
        .filter(tenant_id=subject.tenant_id, currency=subject.currency, valid_from__lt=span.end)
        .exclude(valid_to__lte=span.start)
    )
    held = [terms for terms in held if terms.valid_to is None or terms.valid_to > terms.valid_from]
    cuts = {span.start, span.end}
    for terms in held:
        cuts |= {at for at in (terms.valid_from, terms.valid_to) if at is not None and span.start < at < span.end}
    moments = sorted(cuts)
    found = []
    for start, end in pairwise(moments):
        mine = [each for each in held if each.valid_from <= start and (each.valid_to is None or each.valid_to > start)]
        found.append((mine[0] if mine else None, Span(start=start, end=end)))
    return found


def _ledger_gaps(subject: Subject, reader: Reader, hours: Sequence[HourCount]) -> list[Gap]:
    tenant_id = str(subject.tenant_id)
    posted = books.posted_hours(tenant_id=tenant_id, span=subject.span)
    gaps = []
    for hour_ms in differing_hours(hours, posted):
        hour = hour_span(hour_ms, within=subject.span)
        metered = books.metered_requests(reader, tenant_id=tenant_id, span=hour)
        gaps += explain_ledger(metered, books.posted_requests(tenant_id=tenant_id, span=hour), hour_ms=hour_ms)
    return gaps


def _queue_gaps(subject: Subject, evidence: Evidence) -> list[Gap]:
    tenant_id = str(subject.tenant_id)
    gaps = []
    for count in evidence.queue.of(tenant_id=tenant_id, span=subject.span):
        span = Span.of_ms(count.from_ms, subject.span.end_ms)
        gaps += explain_queue(count, books.pool_hours(evidence.reader, tenant_id=tenant_id, pool=count.pool, span=span))
    return gaps


def _log_gaps(subject: Subject, evidence: Evidence) -> list[Gap]:
    """Evaluation logs, folder by folder of the store: a day of the tenant each."""
    folders: dict[str, list[NamedLog]] = {}
    for log in books.named_logs(evidence.reader, tenant_id=str(subject.tenant_id), span=subject.span):
        folders.setdefault(log.key.rpartition("/")[0] + "/", []).append(log)
    if folders and evidence.objects is None:
        named = sum(map(len, folders.values()))
        return [Gap(kind="evaluation_log", detail=f"{named} rows name logs, and no object store is set")]
    gaps = []
    for folder, named_logs in sorted(folders.items()):
        assert evidence.objects is not None
        gaps += explain_logs(named_logs, frozenset(evidence.objects.keys(prefix=folder)))
    return gaps


def _engine_gaps(subject: Subject, evidence: Evidence) -> list[Gap]:
    """Rows without their attempt, and attempts without any row; a day at a time, as a month may not fit in memory."""
    tenant_id, reader = str(subject.tenant_id), evidence.reader
    given = books.logged_attempts(evidence.attempt_logs, tenant_id=tenant_id, span=subject.span)
    gaps = []
    for day in utc_days(subject.span):
        logged = [*books.collected_attempts(reader, tenant_id=tenant_id, span=day), *given]
        attempts = {(each.request_id, each.attempt): each for _, each in logged}
        rows = list(books.metered_requests(reader, tenant_id=tenant_id, span=day))
        gaps += explain_engine(rows, attempts)
        waiting = {each.request_id for at_ms, each in logged if day.start_ms <= at_ms < day.end_ms}
        waiting -= {row.request_id for row in rows}
        # What remains ended in another day's books, by the worker's clock or another attempt's end, or is in none.
        elsewhere = {each for each in waiting if read_request(reader, request_id=each, tenant_id=tenant_id) is not None}
        gaps += explain_unbilled((each for _, each in logged if each.request_id in waiting), billed=elsewhere)
    return gaps


def _usage(subject: Subject, reader: Reader) -> tuple[list[tuple[datetime, Usage]], list[Gap]]:
    """The period's tokens by price and contract, with what does not stand in the price book."""
    found: list[tuple[datetime, Usage]] = []
    gaps: list[Gap] = []
    for _, span in segments_of(subject):
        for row in books.metered_usage(reader, tenant_id=str(subject.tenant_id), span=span):
            if row.currency != subject.currency:
                wrong = f"usage of {row.model} in {row.currency}, the period is in {subject.currency}"
                gaps.append(Gap(kind="currency", detail=wrong, tokens=sum(row.tokens)))
                continue
            priced = list(_priced(row))
            wrong = _wrong_price(row, priced)
            if wrong:
                gaps.append(Gap(kind="price", detail=f"{row.model}: {wrong}", tokens=sum(row.tokens)))
            found += [(span.start, each) for each in priced if each.tokens]
    return _merged(found), gaps


def _priced(row: PricedUsage) -> Iterable[Usage]:
    ids = row.card_id.split(CARD_ID_SEPARATOR)
    for index, meter in enumerate(Meter):
        yield Usage(
            model=row.model,
            service_class=row.service_class,
            meter=meter,
            price_id=ids[index] if len(ids) == len(Meter) else row.card_id,
            unit_nano=row.units[index],
            tokens=row.tokens[index],
        )


def _merged(usage: Iterable[tuple[datetime, Usage]]) -> list[tuple[datetime, Usage]]:
    """One price may stand on several cards: its tokens are one line."""
    totals: dict[tuple[datetime, Usage], int] = {}
    for at, each in usage:
        key = at, replace(each, tokens=0)
        totals[key] = totals.get(key, 0) + each.tokens
    return [(at, replace(each, tokens=tokens)) for (at, each), tokens in totals.items()]


def _wrong_price(row: PricedUsage, priced: Sequence[Usage]) -> str:
    """Why this usage was not charged by the price book; "" when it was."""
    if any(each.nano != cost for each, cost in zip(priced, row.costs, strict=True)):
        return "cost is not tokens times price"
    try:
        ids = [UUID(each.price_id) for each in priced]
    except ValueError:
        return f"{row.card_id} names no prices of the price book"
    known = {price.pk: price for price in PriceVersion.objects.filter(pk__in=ids).exclude(approved_by="")}
    for price_id, each in zip(ids, priced, strict=True):
        price = known.get(price_id)
        if price is None or (price.model, price.meter, price.currency) != (row.model, each.meter, row.currency):
            return f"price {price_id} is not this model's {each.meter} price"
        if nano_per_token(price.per_million) != each.unit_nano:
            return f"price {price_id} is {price.per_million} per million, charged were {each.unit_nano} nano a token"
    return ""


def subject_of(*, tenant_id: UUID, currency: str, starts_at: datetime, ends_at: datetime) -> Subject:
    """A period as the comparison takes it."""
    span = Span(start=starts_at.astimezone(UTC), end=ends_at.astimezone(UTC))
    return Subject(tenant_id=tenant_id, currency=currency, span=span)
