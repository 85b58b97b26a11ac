"""What finance reads: ageing and accrual that reconcile with the ledger, and FOCUS rows that pass its rules."""

import csv
import io
from datetime import datetime, timedelta
from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from billing.closing.close import seal_period
from billing.invoicing.focus import COLUMNS, focus_csv
from billing.invoicing.issue import issue_document
from billing.invoicing.pay import record_payment, void_period
from billing.invoicing.receivables import Receivable, receivables
from billing.ledger.credits import grant_credit
from billing.models import Adjustment, BillingPeriod, BillingProfile, Invoice, Issuer, TaxRate
from billing.services import approve, propose_terms
from tests.functional.billing.months import END, LARGE, NOW, START, Books

pytestmark = pytest.mark.django_db


@pytest.fixture
def issued(books: Books, november: BillingPeriod) -> Invoice:
    """Of 1.72 of usage under a contract with a fee, at 13 % tax; 0.86 came after the month."""
    address = {"street": "1", "postal_code": "1", "city": "Kathmandu", "country": "NP"}
    Issuer.objects.create(legal_name="Weir", **address)
    BillingProfile.objects.create(tenant=books.tenant, legal_name="Acme", **address)
    rate = TaxRate.objects.create(country="NP", rate_ppm=130_000, valid_from=START, created_by="a")
    approve(rate, actor="b", now=START)
    terms = propose_terms(
        tenant_id=str(books.tenant.pk), currency="USD", valid_from=START, actor="a", discount_ppm=250_000,
        commitment=Decimal(1), commitment_fee=Decimal("0.9"), minimum=Decimal(5),
    )  # fmt: skip
    approve(terms, actor="b", now=START)
    for at in (START, START + timedelta(days=3), END):
        books.use(at, counts=LARGE)
    seal_period(november, books.evidence(), actor="user:ada", now=NOW)
    made = issue_document(period_id=november.pk, actor="user:ada", now=NOW)
    assert made is not None
    return made


def only(at: datetime = NOW) -> Receivable:
    [found] = receivables(at=at)
    assert found.reconciles
    return found


class TestReceivables:
    def test_age_by_days_overdue_and_tell_what_is_not_billed(self, issued: Invoice) -> None:
        due = issued.due_at
        for days, name in ((-1, "not_due"), (0, "days_1_30"), (29, "days_1_30"), (30, "days_31_60"), (60, "days_61_90"),
                           (90, "days_over_90")):  # fmt: skip
            found = only(due + timedelta(days=days))
            assert {bucket for bucket, amount in found.aged.items() if amount} == {name}
        assert (found.billed, found.unbilled) == (Decimal("5.65"), Decimal("0.86"))

    def test_reconcile_through_credit_payment_refund_and_void(self, issued: Invoice, books: Books) -> None:
        record_payment(invoice_id=issued.pk, key="wire", amount=Decimal("5.65"), actor="a", at=NOW)
        assert only().ledger == Decimal("0.86")
        grant_credit(
            key="gift", tenant_id=books.tenant.pk, currency="USD", amount=Decimal(1), paid=False, reason="x", actor="a",
            at=NOW,
        )  # fmt: skip
        for amount in ("-1", "3"):
            made = Adjustment.objects.create(
                period=issued.period, amount=Decimal(amount), text="agreed", created_by="a"
            )
            Adjustment.objects.filter(pk=made.pk).update(approved_by="b")
            assert issue_document(period_id=issued.period_id, actor="a", now=NOW) is not None
            only()

    def test_owe_nothing_for_a_void_month(self, issued: Invoice) -> None:
        void_period(period_id=issued.period_id, actor="a", at=NOW, reason="wrong buyer")
        assert (only().billed, only().ledger) == (0, Decimal("0.86"))

    def test_are_printed_by_a_command(self, issued: Invoice) -> None:
        out = StringIO()
        call_command("receivables", "--at", "2026-12-31T00:00:00+00:00", stdout=out)
        [row] = csv.DictReader(io.StringIO(out.getvalue()))
        assert (row["tenant"], row["not_due"], row["unbilled"], row["reconciles"]) == (
            "acme", "5.650000000", "0.860000000", "True",
        )  # fmt: skip
        for wrong in ("2027-01-01T00:00:00", "2027-13-01T00:00:00Z", "garbage", "", "0001-01-01T00:00:00+14:00"):
            with pytest.raises(CommandError, match="--at is a time with its zone"):
                call_command("receivables", "--at", wrong)


class TestFocus:
    def rows(self, document: Invoice) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(focus_csv(document))))

    def test_bill_what_is_payable(self, issued: Invoice) -> None:
        rows = self.rows(issued)
        assert sum(Decimal(row["BilledCost"]) for row in rows) == issued.total
        assert {row["InvoiceId"] for row in rows} == {issued.number}

    def test_pass_the_rules_of_the_columns(self, issued: Invoice) -> None:
        rows = self.rows(issued)
        assert set(rows[0]) == set(COLUMNS)
        nullable = {
            "ChargeClass", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice",
            "PricingCategory", "PricingQuantity", "PricingUnit", "SkuId", "SkuMeter", "SkuPriceId",
        }  # fmt: skip
        for row in rows:
            assert [name for name in COLUMNS if not row[name] and name not in nullable] == []
            assert row["ChargeCategory"] in {"Usage", "Purchase", "Tax", "Credit", "Adjustment"}
            assert row["ChargeFrequency"] in {"One-Time", "Recurring", "Usage-Based"}
            assert row["ChargeClass"] in {"", "Correction"}
            assert (row["ChargeCategory"] == "Purchase") <= (row["ChargeFrequency"] != "Usage-Based")
            assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["ChargePeriodEnd"]
            assert row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]
            priced = row["ChargeCategory"] == "Usage"
            for name in ("PricingQuantity", "PricingUnit", "ListUnitPrice", "ConsumedQuantity", "SkuPriceId"):
                assert bool(row[name]) == priced
            if priced:
                assert Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) == Decimal(row["ListCost"])
                assert Decimal(row["PricingQuantity"]) * 10**6 == Decimal(row["ConsumedQuantity"])
        assert [row["ChargeCategory"] for row in rows] == [
            *["Usage"] * 3, "Adjustment", "Purchase", "Credit", "Adjustment", "Tax",
        ]  # fmt: skip

    def test_call_a_note_a_correction(self, issued: Invoice, books: Books) -> None:
        made = Adjustment.objects.create(period=issued.period, amount=Decimal(1), text="agreed", created_by="a")
        Adjustment.objects.filter(pk=made.pk).update(approved_by="b")
        note = issue_document(period_id=issued.period_id, actor="a", now=NOW)
        assert note is not None
        assert {row["ChargeClass"] for row in self.rows(note)} == {"Correction"}
