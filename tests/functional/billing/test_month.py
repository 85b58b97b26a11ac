"""A month of three tenants in three zones, from their requests to paid documents: DST, a price change, late usage, a
refund, a contract; every document added up again by itself, and what another price list would have made of it.
"""

import csv
import io
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from io import StringIO
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Sum

from billing.closing.check import Evidence
from billing.closing.close import correct_period, open_periods, seal_period
from billing.closing.watermark import Watermark
from billing.invoicing.files import build_files
from billing.invoicing.issue import issue_document
from billing.invoicing.pay import amount_due, record_payment
from billing.invoicing.sheet import sheet_of
from billing.invoicing.whatif import rerate_month
from billing.models import (
    Adjustment,
    BillingPeriod,
    BillingProfile,
    Invoice,
    Issuer,
    LedgerEntry,
    PeriodHour,
    PriceList,
    TaxRate,
    UsagePosting,
)
from billing.proof.pack import proof_of
from billing.proof.verify import faults_of
from billing.rating.periods import Span, days_of
from billing.rating.prices import Meter
from billing.selectors import price_card, receivable_nano
from billing.services import approve, propose_price, propose_terms, publish_prices
from billing.services.prices import PriceScope
from contracts.money import PriceCard
from contracts.tokens import TokenCounts
from stores.clickhouse_chdb import ChdbOwner
from tenants.models import Plan, Tenant
from tests.functional.billing.months import SIGNER, Books

pytestmark = pytest.mark.django_db

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 12, 3, tzinfo=UTC)
DEARER = datetime(2026, 11, 15, 12, tzinfo=UTC)
ZONES = {"Asia/Kathmandu": "NP", "America/New_York": "US", "Pacific/Auckland": "NZ"}
PRICES = {Meter.INPUT: Decimal("1.3"), Meter.CACHED: Decimal("0.13"), Meter.OUTPUT: Decimal("4.7")}
REQUESTS = 40  # of each tenant


@dataclass
class Customer:
    tenant: Tenant
    books: Books
    period: BillingPeriod


@pytest.fixture
def customers(clickhouse: ChdbOwner, db: None, tmp_path: Path) -> list[Customer]:
    """Each with usage all over its own November; New York's first day has 25 hours."""
    plan = Plan.objects.create(name="plan")
    for at, factor in ((LONG_AGO, 1), (DEARER, 2)):
        prices = {meter: price * factor for meter, price in PRICES.items()}
        publish_prices(model="m", prices=prices, currency="USD", at=at, actor="user:ada", approver="user:bob")
    Issuer.objects.create(legal_name="Weir Ltd", country="NZ", street="1", postal_code="1", city="Wellington")
    rate = TaxRate.objects.create(country="NZ", rate_ppm=150_000, valid_from=LONG_AGO, created_by="user:ada")
    approve(rate, actor="user:bob", now=LONG_AGO)
    made = []
    dice = random.Random(5)
    for zone, country in ZONES.items():
        tenant = Tenant.objects.create(name=zone, plan=plan, timezone=zone)
        Tenant.objects.filter(pk=tenant.pk).update(created_at=datetime(2026, 11, 10, tzinfo=UTC))
        BillingProfile.objects.create(
            tenant=tenant, legal_name=f"Customer of {zone}", country=country, street="1", postal_code="1", city="C"
        )
        logs = tmp_path / zone.replace("/", "-")
        logs.mkdir()
        card = price_card(tenant_id=str(tenant.pk), model="m", at_ms=round(LONG_AGO.timestamp() * 1_000))
        assert card is not None
        books = Books(clickhouse=clickhouse, tenant=tenant, card=card, logs=logs)
        customer = Customer(tenant=tenant, books=books, period=open_periods(tenant_id=tenant.pk, now=NOW)[0])
        span = Span(start=customer.period.starts_at, end=customer.period.ends_at)
        moments = [span.start, span.end - timedelta(milliseconds=1)]
        moments += [span.start + timedelta(seconds=dice.randrange(1, span.seconds)) for _ in range(REQUESTS - 2)]
        use(customer, moments, dice)
        made.append(customer)
    return made


def use(customer: Customer, moments: Iterable[datetime], dice: random.Random) -> None:
    cards = {at: card_of(customer, at) for at in (LONG_AGO, DEARER)}
    records = []
    for at in moments:
        admitted_at = at - timedelta(milliseconds=900)
        customer.books.card = cards[DEARER if admitted_at >= DEARER else LONG_AGO]
        prompt = dice.randrange(1, 2_000_000)
        counts = TokenCounts(prompt=prompt, cached=dice.randrange(prompt), completion=dice.randrange(500_000))
        records.append(customer.books.record(at, counts=counts))
    customer.books.write(*records)


def card_of(customer: Customer, at: datetime) -> PriceCard:
    card = price_card(tenant_id=str(customer.tenant.pk), model="m", at_ms=round(at.timestamp() * 1_000))
    assert card is not None
    return card


def evidence(customer: Customer) -> Evidence:
    return customer.books.evidence(Watermark(low_ms=round(NOW.timestamp() * 1_000), letters=(), cut=()))


def close_and_issue(customer: Customer) -> Invoice:
    seal_period(customer.period, evidence(customer), actor="user:ada", now=NOW)
    made = issue_document(period_id=customer.period.pk, actor="user:ada", now=NOW)
    assert made is not None
    return made


def adds_up(document: Invoice) -> None:
    """By the CSV alone."""
    rows = list(csv.DictReader(io.StringIO(build_files(sheet_of(document))["csv"].decode())))
    totals = {row["kind"]: Decimal(row["amount"]) for row in rows if not row["position"]}
    lines = [row for row in rows if row["position"]]
    assert sum(Decimal(row["amount"]) for row in lines) == totals["net"] == document.net
    assert totals["net"] + totals["tax"] == totals["total"] == document.total
    for row in lines:
        if row["tokens"] and row["price_per_million"]:
            exact = Decimal(row["tokens"]) * Decimal(row["price_per_million"]) / 10**6
            assert exact == Decimal(row["amount_exact"])
    if document.sequence == 1:
        exact = sum((Decimal(row["amount_exact"]) for row in lines), Decimal(0))
        assert exact.quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN) == totals["net"]


class TestMonth:
    def test_goes_from_requests_to_paid_and_proved_documents(self, customers: list[Customer]) -> None:
        terms = propose_terms(
            tenant_id=str(customers[2].tenant.pk), currency="USD", valid_from=customers[2].period.starts_at,
            actor="user:ada", discount_ppm=100_000, minimum=Decimal(1_000),
            tiers=[{"model": "", "meter": "output", "above_tokens": 1_000_000, "discount_ppm": 333_333}],
        )  # fmt: skip
        approve(terms, actor="user:bob", now=customers[2].period.starts_at)
        invoices = [close_and_issue(customer) for customer in customers]
        assert [each.serial for each in invoices] == [1, 2, 3]
        assert [(each.tax_category, each.tax == 0) for each in invoices] == [("O", True), ("O", True), ("S", False)]
        for customer, invoice in zip(customers, invoices, strict=True):
            adds_up(invoice)
            usage = [line for line in invoice.lines.all() if line.kind == "usage"]
            assert {line.key.rsplit(":", 1)[1] for line in usage} != set()
            assert len(usage) == 6  # three meters, before and after the change of prices
            assert receivable_nano(tenant_id=str(customer.tenant.pk), currency="USD") == invoice.total * 10**9
        assert invoices[2].net == 1_000

        # Late usage of New York, and a refund for Kathmandu: notes on the same month.
        use(customers[1], [customers[1].period.starts_at + timedelta(hours=1)], random.Random(6))
        assert correct_period(customers[1].period, evidence(customers[1]), now=NOW) == 2
        refund = Adjustment.objects.create(
            period=customers[0].period, amount=Decimal("-12.345"), text="Outage", created_by="user:ada"
        )
        Adjustment.objects.filter(pk=refund.pk).update(approved_by="user:bob")
        notes = [issue_document(period_id=each.period.pk, actor="user:ada", now=NOW) for each in customers]
        kinds = [None if note is None else note.kind for note in notes]
        assert kinds == ["credit_note", "debit_note", None]
        for note in filter(None, notes):
            adds_up(note)
        again = [issue_document(period_id=each.period.pk, actor="user:ada", now=NOW) for each in customers]
        assert again == [None] * 3

        for customer in customers:
            documents = list(Invoice.objects.filter(period=customer.period).order_by("sequence"))
            owed = sum((each.total for each in documents), Decimal(0))
            assert receivable_nano(tenant_id=str(customer.tenant.pk), currency="USD") == owed * 10**9
            last = documents[-1]
            lines = map(json.loads, proof_of(last, reader=customer.books.clickhouse, signer=SIGNER))
            assert list(faults_of(lines, keys=SIGNER.public_keys)) == []
            for document in documents:
                if amount_due(document):
                    record_payment(
                        invoice_id=document.pk, key=document.number, amount=amount_due(document), actor="a", at=NOW
                    )
            customer.period.refresh_from_db()
            assert customer.period.state == "paid"
        assert (LedgerEntry.objects.aggregate(sum=Sum("amount"))["sum"] or 0) == 0

    def test_is_the_sum_of_its_days_in_its_zone(self, customers: list[Customer]) -> None:
        for customer in customers:
            seal_period(customer.period, evidence(customer), actor="user:ada", now=NOW)
            span = Span(start=customer.period.starts_at, end=customer.period.ends_at)
            days = days_of(span, ZoneInfo(customer.period.zone))
            assert len(days) == 30
            by_day = [
                UsagePosting.objects.filter(
                    tenant_id=customer.tenant.pk, billed_at__gte=day.start, billed_at__lt=day.end
                ).aggregate(sum=Sum("amount"))["sum"]
                or Decimal(0)
                for _, day in days
            ]
            hours = PeriodHour.objects.filter(period=customer.period).aggregate(sum=Sum("cost"))["sum"]
            assert sum(by_day) == hours
        york = customers[1].period
        assert days_of(Span(start=york.starts_at, end=york.ends_at), ZoneInfo(york.zone))[0][1].seconds == 25 * 3_600


class TestWhatIf:
    def test_shows_nothing_under_the_same_prices_and_the_difference_under_others(
        self, customers: list[Customer]
    ) -> None:
        invoices = [close_and_issue(customer) for customer in customers]
        empty, double = (PriceList.objects.create(name=name) for name in ("same", "double"))
        assert [row.difference_nano for row in rerate_month(month="2026-11", price_list=empty)] == [0, 0, 0]
        for meter, price in PRICES.items():
            scope = PriceScope(model="m", meter=meter, currency="USD", price_list_id=str(double.pk))
            propose_price(scope, per_million=price * 2, valid_from=NOW, actor="user:ada")
        rows = {row.tenant: row for row in rerate_month(month="2026-11", price_list=double)}
        for customer, invoice in zip(customers, invoices, strict=True):
            cheap = invoice.lines.filter(kind="usage", unit_nano__in=(1_300, 130, 4_700)).aggregate(sum=Sum("exact"))
            row = rows[customer.tenant.name]
            assert row.net_nano == invoice.net * 10**9
            assert abs(row.difference_nano - cheap["sum"] * 10**9) <= 10**7  # both nets are rounded to a cent
        out = StringIO()
        call_command("rerate", "--month", "2026-11", "--list", "double", stdout=out)
        assert len(out.getvalue().splitlines()) == 4
        for words in (("--month", "x", "--list", "double"), ("--month", "2026-11", "--list", "none")):
            with pytest.raises(CommandError):
                call_command("rerate", *words)
