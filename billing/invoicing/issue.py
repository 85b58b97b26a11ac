"""Step 9, BILL: a sealed period becomes an invoice, a changed one a note. Called by `manage.py invoice` and the admin.

Invariants: one database transaction rates, numbers, posts and freezes a document, so a number is used or not given;
a document says the difference between what is right now and what the documents before it said, so the second run says
nothing and is none; after it the ledger's receivable of the period is the sum of its documents.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.db.models import Q, Sum

from billing.closing.check import segments_of, subject_of
from billing.closing.close import latest_revision
from billing.invoicing.documents import rated_before, store_lines
from billing.invoicing.pay import settle_period
from billing.ledger.credits import burn_credit
from billing.ledger.journal import Side, post_once
from billing.models import (
    AccountKind,
    Adjustment,
    BillingPeriod,
    BillingProfile,
    ContractTerms,
    DocumentKind,
    DocumentState,
    Invoice,
    InvoiceSeries,
    Issuer,
    PeriodSeal,
    PeriodState,
    PeriodUsage,
    TaxRate,
    UsagePosting,
)
from billing.rating import invoice as rating
from billing.rating.invoice import Rated, Segment, Usage, difference, rate_period
from billing.rating.prices import Meter
from billing.rating.tax import Tax, TaxUndecided, decide_tax
from billing.rating.terms import Terms, read_tiers
from contracts.money import decimal_from_nano, nano_from_decimal

PriceKey = tuple[str, str, Meter]  # model, class ("" = every), meter
NO_TAX = Tax(category="O", rate_ppm=0, note="")


class InvoiceRefused(ValueError):
    """What a document needs is missing, or the period is not in the state for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A party as the document keeps it."""

    legal_name: str
    street: str
    postal_code: str
    city: str
    country: str
    tax_id: str
    email: str

    @classmethod
    def of(cls, party: "Issuer | BillingProfile") -> "Address":
        return cls(**{name: getattr(party, name) for name in cls.__dataclass_fields__})


def issue_document(*, period_id: uuid.UUID, actor: str, now: datetime) -> Invoice | None:
    """The invoice of a sealed period, or the note that an issued one needs; None when there is nothing to say.

    Less than can be paid is nothing: it stays on the ledger, and a later revision of the period may bring it over.

    Raises InvoiceRefused, naming what is missing (issuer, address, tax rate), and LedgerConflict.
    """
    with transaction.atomic():
        period = BillingPeriod.objects.select_for_update().get(pk=period_id)
        if period.state not in (PeriodState.SEALED, PeriodState.ISSUED, PeriodState.PAID):
            raise InvoiceRefused(f"{period} is {period.state}: only a sealed period has documents")
        earlier = list(Invoice.objects.filter(period=period).order_by("sequence"))
        tax = _kept_tax(earlier[0]) if earlier else _tax(period)
        before = rated_before(earlier, currency=period.currency)
        after = rate_now(period, tax=tax)
        due = difference(after, before) if earlier else after
        if not (due.net_nano or due.tax_nano or any(line.nano for line in due.lines)):
            return None
        made = _create(period, due, tax=tax, earlier=earlier, actor=actor, now=now)
        store_lines(made, due)
        _post(made, earlier)
        if period.state == PeriodState.SEALED:
            period.state = PeriodState.ISSUED
            period.save(update_fields=["state"])
        settle_period(period)
        return made


def rate_now(period: BillingPeriod, *, tax: Tax = NO_TAX, units: Mapping[PriceKey, int] | None = None) -> Rated:
    """The whole period as it is known now: usage of its last revision, contracts, approved adjustments.

    `units`: what if these had been the unit prices (nano-units per token)? What they do not name keeps its own.
    """
    subject = subject_of(
        tenant_id=period.tenant_id, currency=period.currency, starts_at=period.starts_at, ends_at=period.ends_at
    )
    rows = list(period.usage.filter(revision=latest_revision(period)))
    segments = [
        Segment(
            terms=_terms(terms),
            seconds=span.seconds,
            usage=tuple(_usage(row, units or {}) for row in rows if span.start <= row.segment_at < span.end),
        )
        for terms, span in segments_of(subject)
    ]
    agreed = [
        rating.Adjustment(key=str(each.pk), text=each.text, nano=nano_from_decimal(each.amount))
        for each in Adjustment.objects.filter(period=period).exclude(approved_by="")
    ]
    return rate_period(segments, seconds=subject.span.seconds, currency=period.currency, tax=tax, adjustments=agreed)


def _usage(row: PeriodUsage, units: Mapping[PriceKey, int]) -> Usage:
    meter = Meter(row.meter)
    unit = units.get((row.model, row.service_class, meter), units.get((row.model, "", meter), row.unit_nano))
    return Usage(
        model=row.model,
        service_class=row.service_class,
        meter=meter,
        price_id=row.price_id,
        unit_nano=unit,
        tokens=row.tokens,
    )


def _create(
    period: BillingPeriod, due: Rated, *, tax: Tax, earlier: Sequence[Invoice], actor: str, now: datetime
) -> Invoice:
    issuer, profile = _parties(period)
    kind = DocumentKind.INVOICE
    if earlier:
        kind = DocumentKind.CREDIT_NOTE if due.total_nano < 0 else DocumentKind.DEBIT_NOTE
    elif due.total_nano < 0:
        kind = DocumentKind.CREDIT_NOTE
    serial = _next_serial(issuer.series, now.year)
    number = f"{issuer.series}-{now.year}-{serial:06d}"
    # Prepaid credit pays first; a document of nothing, or in the customer's favour, is settled as it stands.
    used = burn_credit(
        key=number,
        tenant_id=period.tenant_id,
        currency=period.currency,
        wanted_nano=max(0, due.total_nano),
        at=now,
    )
    settled = used >= due.total_nano
    return Invoice.objects.create(
        tenant_id=period.tenant_id,
        period=period,
        sequence=len(earlier) + 1,
        kind=kind,
        series=issuer.series,
        year=now.year,
        serial=serial,
        number=number,
        usage_revision=latest_revision(period),
        usage_posted=_usage_posted(period),
        seal_head=_seal_head(period),
        currency=period.currency,
        net=decimal_from_nano(due.net_nano),
        tax=decimal_from_nano(due.tax_nano),
        total=decimal_from_nano(due.total_nano),
        credit_used=decimal_from_nano(used),
        tax_category=tax.category,
        tax_rate_ppm=tax.rate_ppm,
        tax_note=tax.note,
        seller={**asdict(Address.of(issuer)), "bank_details": issuer.bank_details},
        buyer=asdict(Address.of(profile)),
        issued_at=now,
        issued_by=actor,
        due_at=now + timedelta(days=_payment_days(period)),
        state=DocumentState.PAID if settled else DocumentState.ISSUED,
        paid_at=now if settled else None,
    )


def _seal_head(period: BillingPeriod) -> str:
    seal = PeriodSeal.objects.filter(period=period, revision=latest_revision(period)).first()
    return seal.head if seal is not None else ""


def _next_serial(series: str, year: int) -> int:
    """Counted under a lock that the transaction keeps: rolled back with it, so no number is left out."""
    InvoiceSeries.objects.get_or_create(series=series, year=year)
    counter = InvoiceSeries.objects.select_for_update().get(series=series, year=year)
    counter.last += 1
    counter.save(update_fields=["last"])
    return counter.last


def _post(made: Invoice, earlier: Sequence[Invoice]) -> None:
    """Usage was posted request by request when it ended; this brings the receivable to what the documents say."""
    before = earlier[-1].usage_posted if earlier else Decimal(0)
    used = nano_from_decimal(made.usage_posted - before)
    net, tax, total = (nano_from_decimal(amount) for amount in (made.net, made.tax, made.total))
    post_once(
        key=f"invoice:{made.period_id}:{made.sequence}",
        currency=made.currency,
        description=f"{made.get_kind_display()} {made.number}",
        at=made.issued_at,
        sides=[
            Side(tenant_id=made.tenant_id, kind=AccountKind.RECEIVABLE, nano=total - used),
            Side(tenant_id=None, kind=AccountKind.REVENUE, nano=used - net),
            Side(tenant_id=None, kind=AccountKind.TAX, nano=-tax),
        ],
    )


def _usage_posted(period: BillingPeriod) -> Decimal:
    """By the ledger itself: with a waiver it may have other usage than what the document is rated from."""
    posted = UsagePosting.objects.filter(
        tenant_id=period.tenant_id,
        currency=period.currency,
        billed_at__gte=period.starts_at,
        billed_at__lt=period.ends_at,
    )
    return posted.aggregate(total=Sum("amount"))["total"] or Decimal(0)


def _parties(period: BillingPeriod) -> tuple[Issuer, BillingProfile]:
    issuer = Issuer.objects.first()
    profile = BillingProfile.objects.filter(tenant_id=period.tenant_id).first()
    if issuer is None:
        raise InvoiceRefused("there is no issuer yet")
    if profile is None:
        raise InvoiceRefused(f"{period.tenant} has no billing address yet")
    return issuer, profile


def _tax(period: BillingPeriod) -> Tax:
    """By the rates in force when the period ended."""
    issuer, profile = _parties(period)
    held = TaxRate.objects.exclude(approved_by="").filter(
        Q(valid_to=None) | Q(valid_to__gte=period.ends_at), valid_from__lt=period.ends_at
    )
    try:
        return decide_tax(
            seller_country=issuer.country,
            buyer_country=profile.country,
            buyer_tax_id=profile.tax_id,
            rates={rate.country: rate.rate_ppm for rate in held},
        )
    except TaxUndecided as error:
        raise InvoiceRefused(str(error)) from error


def _kept_tax(first: Invoice) -> Tax:
    """A note bears the tax of the document that it corrects."""
    return Tax(category=first.tax_category, rate_ppm=first.tax_rate_ppm, note=first.tax_note)


def _payment_days(period: BillingPeriod) -> int:
    subject = subject_of(
        tenant_id=period.tenant_id, currency=period.currency, starts_at=period.starts_at, ends_at=period.ends_at
    )
    terms = segments_of(subject)[-1][0]
    return terms.payment_days if terms is not None else 30


def _terms(terms: ContractTerms | None) -> Terms:
    if terms is None:
        return Terms()
    return Terms(
        tiers=read_tiers(terms.tiers),
        discount_ppm=terms.discount_ppm,
        commitment_nano=nano_from_decimal(terms.commitment),
        commitment_fee_nano=nano_from_decimal(terms.commitment_fee),
        minimum_nano=nano_from_decimal(terms.minimum),
    )
