"""Opens, checks, waives, seals and corrects periods. Called by `manage.py close_period` and the admin.

Invariants: a period is sealed only without gaps, or with a waiver signed for exactly its gaps; what is sealed is only
added to, as a further revision of the same period; stores are read before the database transaction, never in it.
"""

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Max

from billing.closing.check import Comparison, Evidence, compare_books, subject_of
from billing.closing.compare import Gap, HourCount
from billing.customers import find_calendar
from billing.models import BillingPeriod, CloseGap, CloseWaiver, PeriodHour, PeriodState, PeriodUsage
from billing.proof.seal import HourRoot, SealDiffers, hour_roots, store_seal
from billing.proof.signing import Signer
from billing.rating.invoice import Usage
from billing.rating.periods import Month, Span, month_span
from contracts.money import decimal_from_nano, nano_from_decimal

FIRST_REVISION = 1


class CloseRefused(ValueError):
    """The period is not in the state for this, or there is no such tenant."""


class CloseBlocked(CloseRefused):
    """The books differ. `gaps` are stored on the period, each with its explanation."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        tokens = sum(gap.tokens for gap in gaps)
        super().__init__(f"{len(gaps)} gaps, unexplained tokens: {tokens}")
        self.gaps = tuple(gaps)


def open_periods(*, tenant_id: uuid.UUID, now: datetime) -> list[BillingPeriod]:
    """The tenant's periods up to the one in which `now` lies, or its closing; made where missing, oldest first.

    Each begins where the one before ended. Its zone and currency are the tenant's when it is opened: another zone is
    in force from the next period on.
    """
    calendar = find_calendar(tenant_id=tenant_id)
    if calendar is None:
        raise CloseRefused("there is no such tenant")
    zone = ZoneInfo(calendar.zone)
    with transaction.atomic():
        periods = list(BillingPeriod.objects.filter(tenant_id=tenant_id).order_by("starts_at"))
        month = Month.read(periods[-1].month).following if periods else Month.of(calendar.since, zone)
        starts_at = periods[-1].ends_at if periods else None
        while True:
            span = month_span(month, zone, starts_at=starts_at)
            if span.start > (now if calendar.closed_at is None else min(now, calendar.closed_at)):
                return periods
            made, _ = BillingPeriod.objects.get_or_create(
                tenant_id=tenant_id,
                month=str(month),
                defaults={
                    "zone": calendar.zone,
                    "currency": calendar.currency,
                    "starts_at": span.start,
                    "ends_at": span.end,
                },
            )
            periods.append(made)
            month, starts_at = month.following, made.ends_at


def check_period(period: BillingPeriod, evidence: Evidence, *, now: datetime) -> Comparison:
    """Compare the books of a draft and store what differs, in place of what the check before had found."""
    comparison = _compare(period, evidence, now=now)
    with transaction.atomic():
        locked = BillingPeriod.objects.select_for_update().get(pk=period.pk)
        if locked.state != PeriodState.DRAFT:
            raise CloseRefused(f"{locked} is {locked.state}: only a draft is checked")
        locked.gaps.all().delete()
        CloseGap.objects.bulk_create(_row(locked, gap) for gap in comparison.gaps)
        locked.checked_at = now
        locked.save(update_fields=["checked_at"])
    return comparison


def waive_gaps(period: BillingPeriod, *, reason: str, actor: str, now: datetime) -> CloseWaiver:
    """Sign for the gaps that the last check has stored. Raises CloseRefused: no reason, no gaps, or one that stands."""
    with transaction.atomic():
        locked = BillingPeriod.objects.select_for_update().get(pk=period.pk)
        gaps = [_gap(row) for row in locked.gaps.all()]
        if locked.state != PeriodState.DRAFT or not gaps:
            raise CloseRefused("only the gaps of a checked draft are waived")
        if not reason.strip() or not all(gap.can_be_waived for gap in gaps):
            raise CloseRefused("a waiver has a reason; a period that is not over, or not taken, is waited for")
        return CloseWaiver.objects.create(
            period=locked,
            gaps=len(gaps),
            gaps_sha256=_digest(gaps),
            reason=reason.strip(),
            signed_by=actor,
            signed_at=now,
        )


def seal_period(period: BillingPeriod, evidence: Evidence, *, actor: str, now: datetime) -> BillingPeriod:
    """Check a draft once more and freeze what it has. Sealed already: a no-op.

    Raises CloseBlocked with the gaps, CloseRefused while an earlier period is a draft.
    """
    if BillingPeriod.objects.get(pk=period.pk).state != PeriodState.DRAFT:
        return BillingPeriod.objects.get(pk=period.pk)
    earlier = BillingPeriod.objects.filter(
        tenant_id=period.tenant_id, starts_at__lt=period.starts_at, state=PeriodState.DRAFT
    )
    if earlier.exists():
        raise CloseRefused("an earlier period of this tenant is still a draft")
    signer = _signer(evidence)
    comparison = check_period(period, evidence, now=now)
    gaps = list(comparison.gaps)
    if gaps and not CloseWaiver.objects.filter(period=period, gaps_sha256=_digest(gaps)).exists():
        raise CloseBlocked(gaps)
    roots = _roots(period, comparison, evidence)
    with transaction.atomic():
        locked = BillingPeriod.objects.select_for_update().get(pk=period.pk)
        if locked.state == PeriodState.DRAFT:
            _store(locked, comparison, roots, revision=FIRST_REVISION)
            store_seal(locked, roots, revision=FIRST_REVISION, signer=signer)
            locked.state, locked.sealed_at, locked.sealed_by = PeriodState.SEALED, now, actor
            locked.save(update_fields=["state", "sealed_at", "sealed_by"])
    return locked


def correct_period(period: BillingPeriod, evidence: Evidence, *, now: datetime) -> int | None:
    """A further revision of a sealed period whose books have changed since; its number, None when nothing has.

    Late usage belongs to the period in which it ended. Raises CloseBlocked when the books now differ from each other.
    """
    current = BillingPeriod.objects.get(pk=period.pk)
    if current.state not in (PeriodState.SEALED, PeriodState.ISSUED, PeriodState.PAID):
        raise CloseRefused(f"{current} is {current.state}: only what was sealed is corrected")
    signer = _signer(evidence)
    comparison = _compare(period, evidence, now=now)
    roots = _roots(period, comparison, evidence)
    with transaction.atomic():
        locked = BillingPeriod.objects.select_for_update().get(pk=period.pk)
        last = latest_revision(locked)
        if _stored_hours(locked, last) == {(hour.hour_ms, hour.currency): hour for hour in comparison.hours}:
            return None
        if comparison.gaps:
            raise CloseBlocked(comparison.gaps)
        _store(locked, comparison, roots, revision=last + 1)
        store_seal(locked, roots, revision=last + 1, signer=signer)
        return last + 1


def latest_revision(period: BillingPeriod) -> int:
    """0 before the seal."""
    found: int | None = period.hours.aggregate(last=Max("revision"))["last"]
    usage: int | None = period.usage.aggregate(last=Max("revision"))["last"]
    return max(found or 0, usage or 0, FIRST_REVISION if period.sealed_at else 0)


def unexplained_tokens(period: BillingPeriod) -> int:
    """Of the last check; 0 is what we promise."""
    return sum(period.gaps.values_list("tokens", flat=True))


def _compare(period: BillingPeriod, evidence: Evidence, *, now: datetime) -> Comparison:
    subject = subject_of(
        tenant_id=period.tenant_id, currency=period.currency, starts_at=period.starts_at, ends_at=period.ends_at
    )
    return compare_books(subject, evidence, now=now)


def _signer(evidence: Evidence) -> Signer:
    if evidence.signer is None:
        raise CloseRefused("this process has no receipt key, so it cannot seal: ask for it as a job")
    return evidence.signer


def _roots(period: BillingPeriod, comparison: Comparison, evidence: Evidence) -> list[HourRoot]:
    span = Span(start=period.starts_at.astimezone(UTC), end=period.ends_at.astimezone(UTC))
    counted: dict[int, int] = {}
    for hour in comparison.hours:
        counted[hour.hour_ms] = counted.get(hour.hour_ms, 0) + hour.requests
    try:
        return hour_roots(evidence.reader, tenant_id=str(period.tenant_id), span=span, counted=counted)
    except SealDiffers as error:
        raise CloseRefused(f"usage came in meanwhile, run it again: {error}") from error


def _store(period: BillingPeriod, comparison: Comparison, roots: Sequence[HourRoot], *, revision: int) -> None:
    by_hour = {root.hour_ms: root.root for root in roots}
    PeriodHour.objects.bulk_create(
        PeriodHour(
            period=period,
            revision=revision,
            hour=datetime.fromtimestamp(count.hour_ms / 1_000, tz=UTC),
            requests=count.requests,
            prompt_tokens=count.prompt_tokens,
            cached_tokens=count.cached_tokens,
            completion_tokens=count.completion_tokens,
            cost=decimal_from_nano(count.cost_nano),
            fingerprint=count.fingerprint,
            merkle_root=by_hour[count.hour_ms],
        )
        for count in comparison.hours
        if count.currency == period.currency
    )
    PeriodUsage.objects.bulk_create(_usage_rows(period, comparison.usage, revision))


def _usage_rows(period: BillingPeriod, usage: Iterable[tuple[datetime, Usage]], revision: int) -> Iterable[PeriodUsage]:
    for segment_at, each in usage:
        yield PeriodUsage(
            period=period,
            revision=revision,
            segment_at=segment_at,
            model=each.model,
            service_class=each.service_class,
            meter=each.meter.value,
            price_id=each.price_id,
            unit_nano=each.unit_nano,
            tokens=each.tokens,
        )


def _stored_hours(period: BillingPeriod, revision: int) -> dict[tuple[int, str], HourCount]:
    counts = [
        HourCount(
            hour_ms=round(row.hour.timestamp() * 1_000),
            currency=period.currency,
            requests=row.requests,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
            cost_nano=nano_from_decimal(row.cost),
            fingerprint=row.fingerprint,
        )
        for row in period.hours.filter(revision=revision)
    ]
    return {(count.hour_ms, count.currency): count for count in counts}


def _row(period: BillingPeriod, gap: Gap) -> CloseGap:
    return CloseGap(
        period=period,
        kind=gap.kind,
        at=None if gap.at_ms is None else datetime.fromtimestamp(gap.at_ms / 1_000, tz=UTC),
        request_id=gap.request_id,
        detail=gap.detail[:500],
        tokens=gap.tokens,
    )


def _gap(row: CloseGap) -> Gap:
    at_ms = None if row.at is None else round(row.at.timestamp() * 1_000)
    return Gap(kind=row.kind, detail=row.detail, at_ms=at_ms, request_id=row.request_id, tokens=row.tokens)


def _digest(gaps: Iterable[Gap]) -> str:
    lines = sorted(f"{gap.kind}|{gap.at_ms}|{gap.request_id}|{gap.detail[:500]}|{gap.tokens}" for gap in gaps)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
