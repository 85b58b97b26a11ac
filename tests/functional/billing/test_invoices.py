"""Invoices on real PostgreSQL and S3: numbered without gaps, frozen, posted to the cent, corrected by notes, paid."""

import csv
import hashlib
import io
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import facturx
import pypdf
import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from billing.closing.close import open_periods
from billing.invoicing.files import build_files, store_files
from billing.invoicing.issue import InvoiceRefused, issue_document
from billing.invoicing.pay import PaymentRefused, amount_due, record_payment, void_period
from billing.invoicing.sheet import sheet_of
from billing.ledger.credits import balance_nano, grant_credit
from billing.ledger.entries import UsageLine, post_usage
from billing.models import (
    Adjustment,
    BillingPeriod,
    BillingProfile,
    Invoice,
    InvoiceLine,
    InvoiceSeries,
    Issuer,
    LedgerEntry,
    PeriodHour,
    PeriodUsage,
    TaxRate,
)
from billing.selectors import receivable_nano
from billing.services import approve, propose_terms
from stores.objects import Objects
from tenants.models import Tenant

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
INPUT, CACHED, OUTPUT = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
ADDRESS = {"street": "1 Lock Lane", "postal_code": "10115", "city": "Berlin"}


@pytest.fixture
def acme(tenants: dict[str, Tenant]) -> Tenant:
    """A customer in France of an issuer in Germany, both with all that a document needs."""
    acme = tenants["acme"]
    Tenant.objects.filter(pk=acme.pk).update(timezone="Europe/Paris", created_at=datetime(2026, 11, 3, tzinfo=UTC))
    Issuer.objects.create(
        legal_name="Weir GmbH", country="DE", tax_id="DE129273398", bank_details="DE02 1203", **ADDRESS
    )
    BillingProfile.objects.create(tenant=acme, legal_name="Acme SARL <Paris> & Cie", country="FR", **ADDRESS)
    for country, rate in (("DE", 190_000), ("FR", 200_000)):
        made = TaxRate.objects.create(country=country, rate_ppm=rate, valid_from=LONG_AGO, created_by="user:ada")
        approve(made, actor="user:bob", now=LONG_AGO)
    return acme


def use(period: BillingPeriod, *, revision: int, output: int, at: datetime | None = None) -> None:
    """What a seal stores: one hour with its usage, which the ledger has too."""
    tokens = {
        INPUT: ("input", 1_000, 40_000_000),
        CACHED: ("cached", 100, 60_000_000),
        OUTPUT: ("output", 4_000, output),
    }
    nano = sum(unit * count for _, unit, count in tokens.values())
    before = period.hours.aggregate(total=Sum("cost"))["total"] or Decimal(0)
    PeriodHour.objects.create(
        period=period, revision=revision, hour=at or period.starts_at, requests=1, prompt_tokens=10**8,
        cached_tokens=60_000_000, completion_tokens=output, cost=Decimal(nano).scaleb(-9), fingerprint=7,
    )  # fmt: skip
    for price_id, (meter, unit, count) in tokens.items():
        PeriodUsage.objects.create(
            period=period, revision=revision, segment_at=period.starts_at, model="m", service_class="interactive",
            meter=meter, price_id=price_id, unit_nano=unit, tokens=count,
        )  # fmt: skip
    line = UsageLine(
        request_id=uuid.uuid4(), revision=1, tenant_id=period.tenant_id, currency="USD",
        amount=Decimal(nano).scaleb(-9) - before, billed_at=period.starts_at,
    )  # fmt: skip
    post_usage([line], at=NOW)


@pytest.fixture
def november(acme: Tenant) -> BillingPeriod:
    """Sealed: 40 + 6 + 40.000004 of usage."""
    period = open_periods(tenant_id=acme.pk, now=NOW)[0]
    assert (period.month, period.starts_at) == ("2026-11", datetime(2026, 10, 31, 23, tzinfo=UTC))
    use(period, revision=1, output=10_000_001)
    BillingPeriod.objects.filter(pk=period.pk).update(state="sealed", sealed_at=NOW, sealed_by="user:ada")
    period.refresh_from_db()
    return period


def issue(period: BillingPeriod, *, at: datetime = NOW) -> Invoice:
    made = issue_document(period_id=period.pk, actor="user:ada", now=at)
    assert made is not None
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    return made


def agreed(period: BillingPeriod, amount: str, text: str = "Outage of 9 November") -> None:
    made = Adjustment.objects.create(period=period, amount=Decimal(amount), text=text, created_by="user:ada")
    Adjustment.objects.filter(pk=made.pk).update(approved_by="user:bob")


def accounts() -> dict[str, Decimal]:
    rows = LedgerEntry.objects.values_list("account__kind").annotate(total=Sum("amount"))
    return {kind: total for kind, total in rows if total}


class TestIssue:
    def test_makes_an_invoice_of_a_sealed_period_that_the_ledger_agrees_with(self, november: BillingPeriod) -> None:
        made = issue(november)
        assert (made.number, made.kind, made.state) == ("WEIR-2026-000001", "invoice", "issued")
        assert (made.net, made.tax, made.total) == (86, Decimal("17.20"), Decimal("103.20"))
        assert made.due_at == NOW + timedelta(days=30)
        assert [(line.kind, line.amount) for line in made.lines.all()] == [("usage", 40), ("usage", 6), ("usage", 40)]
        assert accounts() == {"receivable": Decimal("103.2"), "revenue": -86, "tax": Decimal("-17.2")}
        november.refresh_from_db()
        assert november.state == "issued"

    def test_is_a_no_op_the_second_time(self, november: BillingPeriod) -> None:
        issue(november)
        assert issue_document(period_id=november.pk, actor="user:bob", now=NOW) is None
        assert (Invoice.objects.count(), InvoiceSeries.objects.get().last) == (1, 1)

    def test_adds_the_contract(self, november: BillingPeriod) -> None:
        terms = propose_terms(
            tenant_id=str(november.tenant_id), currency="USD", valid_from=november.starts_at, actor="user:ada",
            discount_ppm=500_000, minimum=Decimal(50), payment_days=14,
            tiers=[{"model": "m", "meter": "output", "above_tokens": 5_000_001, "discount_ppm": 250_000}],
        )  # fmt: skip
        approve(terms, actor="user:bob", now=november.starts_at)
        made = issue(november)
        amounts = {line.kind: line.amount for line in made.lines.all() if line.kind != "usage"}
        assert amounts == {"tier": -5, "discount": Decimal("-40.5"), "minimum": Decimal("9.5")}
        assert (made.net, made.due_at) == (50, NOW + timedelta(days=14))
        assert accounts()["receivable"] == 60

    def test_says_what_is_missing_and_gives_no_number_for_it(self, november: BillingPeriod) -> None:
        TaxRate.objects.filter(country="FR").update(valid_to=november.starts_at)
        with pytest.raises(InvoiceRefused, match="no tax rate for FR"):
            issue(november)
        BillingProfile.objects.all().delete()
        with pytest.raises(InvoiceRefused, match="acme has no billing address"):
            issue(november)
        Issuer.objects.all().delete()
        with pytest.raises(InvoiceRefused, match="no issuer"):
            issue(november)
        assert not InvoiceSeries.objects.filter(last__gt=0).exists()

    def test_is_for_sealed_periods_only(self, acme: Tenant) -> None:
        with pytest.raises(InvoiceRefused, match="draft"):
            issue(open_periods(tenant_id=acme.pk, now=NOW)[0])

    def test_numbers_without_gaps_where_a_transaction_fails(self, november: BillingPeriod) -> None:
        def crash() -> None:
            with transaction.atomic():
                issue_document(period_id=november.pk, actor="user:ada", now=NOW)
                raise RuntimeError("crash")

        with pytest.raises(RuntimeError, match="crash"):
            crash()
        assert issue(november).number == "WEIR-2026-000001"
        agreed(november, "-1")
        assert issue(november).number == "WEIR-2026-000002"
        agreed(november, "-1")
        assert issue(november, at=datetime(2027, 1, 2, tzinfo=UTC)).number == "WEIR-2027-000001"

    def test_says_nothing_of_a_month_without_usage(self, acme: Tenant) -> None:
        period = open_periods(tenant_id=acme.pk, now=NOW)[0]
        BillingPeriod.objects.filter(pk=period.pk).update(state="sealed", sealed_at=NOW, sealed_by="user:ada")
        assert issue_document(period_id=period.pk, actor="user:ada", now=NOW) is None
        assert not Invoice.objects.exists()

    def test_charges_no_tax_to_a_company_of_another_member_state(self, november: BillingPeriod) -> None:
        BillingProfile.objects.update(tax_id="FR40303265045")
        made = issue(november)
        assert (made.tax, made.tax_category, made.total) == (0, "AE", 86)
        assert "Reverse charge" in made.tax_note


class TestNotes:
    def test_say_the_difference_of_late_usage_on_its_own_period(self, november: BillingPeriod) -> None:
        issue(november)
        use(november, revision=2, output=10_500_000)
        note = issue(november)
        assert (note.kind, note.sequence, note.net, note.tax) == ("debit_note", 2, 2, Decimal("0.40"))
        assert [(line.tokens, line.amount) for line in note.lines.all()] == [(499_999, 2)]
        assert accounts() == {"receivable": Decimal("105.6"), "revenue": -88, "tax": Decimal("-17.6")}
        assert issue_document(period_id=november.pk, actor="user:ada", now=NOW) is None

    def test_give_back_what_two_people_agreed_on(self, november: BillingPeriod) -> None:
        issue(november)
        Adjustment.objects.create(period=november, amount=-9, text="not agreed yet", created_by="user:ada")
        assert issue_document(period_id=november.pk, actor="user:ada", now=NOW) is None
        agreed(november, "-10")
        note = issue(november)
        assert (note.kind, note.total, note.state) == ("credit_note", -12, "paid")
        assert receivable_nano(tenant_id=str(november.tenant_id), currency="USD") == 91_200_000_000

    def test_are_not_written_for_less_than_can_be_paid(self, november: BillingPeriod) -> None:
        issue(november)
        use(november, revision=2, output=10_000_002)
        assert issue_document(period_id=november.pk, actor="user:ada", now=NOW) is None


class TestCredit:
    def grant(self, tenant_id: uuid.UUID, amount: int) -> None:
        grant_credit(
            key=uuid.uuid4().hex, tenant_id=tenant_id, currency="USD", amount=Decimal(amount), paid=True, reason="x",
            actor="user:ada", at=NOW,
        )  # fmt: skip

    def test_pays_first(self, november: BillingPeriod) -> None:
        self.grant(november.tenant_id, 100)
        made = issue(november)
        assert (made.credit_used, amount_due(made), made.state) == (100, Decimal("3.20"), "issued")
        assert accounts()["receivable"] == Decimal("3.2")

    def test_pays_a_whole_period(self, november: BillingPeriod) -> None:
        self.grant(november.tenant_id, 104)
        assert issue(november).state == "paid"
        november.refresh_from_db()
        assert november.state == "paid"
        assert balance_nano(tenant_id=november.tenant_id, currency="USD") == 800_000_000
        agreed(november, "1")
        assert issue(november).credit_used == Decimal("0.8")


class TestPay:
    def pay(self, made: Invoice, amount: str, key: str = "pi_1") -> bool:
        return record_payment(invoice_id=made.pk, key=key, amount=Decimal(amount), actor="user:ada", at=NOW)[1]

    def test_books_each_payment_once(self, november: BillingPeriod) -> None:
        made = issue(november)
        assert [self.pay(made, "100"), self.pay(made, "100")] == [True, False]
        with pytest.raises(PaymentRefused, match="something else"):
            self.pay(made, "3.20")
        with pytest.raises(PaymentRefused, match=r"due 3\.2"):
            self.pay(made, "3.21", "pi_2")
        assert self.pay(made, "3.20", "pi_2")
        made.refresh_from_db()
        november.refresh_from_db()
        assert (made.state, november.state) == ("paid", "paid")
        assert accounts() == {"cash": Decimal("103.2"), "revenue": -86, "tax": Decimal("-17.2")}

    def test_void_takes_everything_back_once(self, november: BillingPeriod) -> None:
        issue(november)
        agreed(november, "-10")
        issue(november)
        for _ in range(2):
            assert void_period(period_id=november.pk, actor="user:ada", at=NOW, reason="wrong buyer").state == "void"
        assert accounts() == {}
        assert [each.state for each in Invoice.objects.order_by("serial")] == ["void", "paid"]
        with pytest.raises(InvoiceRefused):
            issue(november)

    def test_void_is_refused_once_money_came(self, november: BillingPeriod) -> None:
        self.pay(issue(november), "1")
        with pytest.raises(PaymentRefused):
            void_period(period_id=november.pk, actor="user:ada", at=NOW, reason="late")


class TestDatabase:
    def test_freezes_what_was_issued(self, november: BillingPeriod) -> None:
        made = issue(november)
        for change in ({"net": 1, "total": Decimal("18.2")}, {"number": "X"}, {"buyer": {}}, {"state": "draft"}):
            with pytest.raises(IntegrityError), transaction.atomic():
                Invoice.objects.filter(pk=made.pk).update(**change)
        for rows in (InvoiceLine.objects.all(), Invoice.objects.all(), InvoiceSeries.objects.all()):
            with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"DELETE FROM {rows.model._meta.db_table}")
        with pytest.raises(IntegrityError, match="one after the other"), transaction.atomic():
            InvoiceSeries.objects.update(last=5)

    def test_refuses_lines_that_do_not_sum_to_the_net_amount(self, november: BillingPeriod) -> None:
        made = issue(november)

        def add() -> None:
            with transaction.atomic(), connection.cursor() as cursor:
                InvoiceLine.objects.create(
                    invoice=made, position=9, key="x", kind="usage", text="x", exact=0, amount=Decimal("0.01")
                )
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

        with pytest.raises(IntegrityError, match=r"sum to 86\.01"):
            add()


@pytest.fixture
def objects(s3_url: str) -> Objects:
    return Objects.open(s3_url)


class TestFiles:
    def test_are_stored_once_with_their_hashes(self, november: BillingPeriod, objects: Objects) -> None:
        made = issue(november)
        stored = store_files(invoice_id=made.pk, objects=objects)
        assert set(stored.files) == {"csv", "xml", "html", "pdf"}
        for each in stored.files.values():
            assert hashlib.sha256(objects.get(key=each["key"])).hexdigest() == each["sha256"]
        assert store_files(invoice_id=made.pk, objects=objects).files == stored.files
        assert build_files(sheet_of(made)) == build_files(sheet_of(Invoice.objects.get(pk=made.pk)))
        with pytest.raises(IntegrityError, match="stored once"), transaction.atomic():
            Invoice.objects.filter(pk=made.pk).update(files={"pdf": {}})

    def test_carry_csv_and_xml_inside_a_pdf_for_archives(self, november: BillingPeriod) -> None:
        files = build_files(sheet_of(issue(november)))
        reader = pypdf.PdfReader(io.BytesIO(files["pdf"]))
        attached = {name: content[0] for name, content in reader.attachments.items()}
        assert attached == {"factur-x.xml": files["xml"], "lines.csv": files["csv"]}
        assert b"<pdfaid:part>3</pdfaid:part>" in files["pdf"]
        text = "".join(page.extract_text() for page in reader.pages)
        for shown in ("WEIR-2026-000001", "103.20", "17.20", "Acme SARL <Paris> & Cie", "2026-11", "Europe/Paris"):
            assert shown in text
        html = files["html"].decode()
        assert "Acme SARL &lt;Paris&gt; &amp; Cie" in html
        assert "103.20" in html

    def test_csv_adds_up_by_itself(self, november: BillingPeriod) -> None:
        rows = list(csv.DictReader(io.StringIO(build_files(sheet_of(issue(november)))["csv"].decode())))
        lines = [row for row in rows if row["position"]]
        totals = {row["kind"]: Decimal(row["amount"]) for row in rows if not row["position"]}
        assert sum(Decimal(row["amount"]) for row in lines) == totals["net"]
        assert totals["net"] + totals["tax"] == totals["total"]
        for row in lines:
            exact = Decimal(row["tokens"]) * Decimal(row["price_per_million"]) / 10**6
            assert exact == Decimal(row["amount_exact"])
            assert exact.quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN) == Decimal(row["amount"])

    def test_xml_is_valid_by_the_schema_for_invoice_and_notes(self, november: BillingPeriod) -> None:
        documents = [issue(november)]
        agreed(november, "-10")
        documents.append(issue(november))
        BillingProfile.objects.update(tax_id="FR40303265045")
        for document in documents:
            sheet = sheet_of(document)
            for each in (sheet, replace(sheet, tax_category="AE", tax_percent="0", tax_note="Reverse charge")):
                xml = build_files(each)["xml"]
                assert facturx.xml_check_xsd(xml, flavor="factur-x", level="en16931")
        names = {"ram": "urn:un:unece:uncefact:data:standard:ReusableAggregateBusinessInformationEntity:100"}
        note = ET.fromstring(build_files(sheet_of(documents[1]))["xml"])
        found = {path: note.findtext(f".//ram:{path}", namespaces=names) for path in ("TypeCode", "GrandTotalAmount")}
        assert found == {"TypeCode": "381", "GrandTotalAmount": "12.00"}

    def test_print_the_currency_s_own_digits(self, november: BillingPeriod) -> None:
        sheet = replace(sheet_of(issue(november)), currency="JPY", digits=0)
        assert b"103\r\n" in build_files(replace(sheet, total=Decimal(103)))["csv"].replace(b",JPY", b"")


class TestCommand:
    def run(self, *words: str) -> str:
        out = StringIO()
        call_command("invoice", *words, stdout=out, stderr=StringIO())
        return out.getvalue()

    @pytest.fixture(autouse=True)
    def _bucket(self, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("billing.management.commands.invoice._objects", lambda: Objects.open(s3_url))
        monkeypatch.setattr("billing.management.commands.invoice.timezone.now", lambda: NOW)

    def test_issues_stores_and_books(self, november: BillingPeriod, tmp_path: Path) -> None:
        assert self.run("issue") == "acme 2026-11: Invoice WEIR-2026-000001, 103.2 USD, due 103.2\n"
        assert self.run("issue", "--tenant", "acme") == "nothing to issue: every sealed period has its documents\n"
        assert self.run("files") == "WEIR-2026-000001: stored\n"
        assert self.run("files") == "nothing to store: every document has its files\n"
        self.run("get", "WEIR-2026-000001", "--to", str(tmp_path / "a.pdf"))
        assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF-1.7")
        words = ("pay", "WEIR-2026-000001", "--amount", "103.20", "--key", "wire-1")
        assert self.run(*words) == "WEIR-2026-000001: booked, paid, due 0\n"
        assert "booked before" in self.run(*words)
        with pytest.raises(CommandError, match="paid"):
            self.run("void", "WEIR-2026-000001", "--reason", "late")

    def test_names_what_is_wrong(self, november: BillingPeriod) -> None:
        for words in (("get", "X", "--to", "a"), ("issue", "--tenant", "nobody"), ("drill", "X", "--line", "1")):
            with pytest.raises(CommandError, match=r"no document X|no tenant"):
                self.run(*words)
        Issuer.objects.all().delete()
        with pytest.raises(CommandError, match="1 periods have no document"):
            self.run("issue")

    def test_voids(self, november: BillingPeriod) -> None:
        self.run("issue")
        assert self.run("void", "WEIR-2026-000001", "--reason", "wrong buyer") == "acme 2026-11: void\n"


class TestAdmin:
    @pytest.fixture
    def ada(self, settings: Settings, tmp_path: Path) -> Client:
        settings.STATIC_ROOT = tmp_path
        client = Client()
        client.force_login(User.objects.create_superuser("ada", password="only-a-test"))
        return client

    def test_issues_shows_and_books(self, ada: Client, november: BillingPeriod) -> None:
        address = reverse("admin:billing_billingperiod_issue", args=[november.pk])
        assert ada.get(address).status_code == 200
        assert Invoice.objects.count() == 0
        ada.post(address)
        made = Invoice.objects.get()
        assert made.issued_by == "user:ada"
        page = ada.get(reverse("admin:billing_invoice_change", args=[made.pk]))
        assert b"output tokens at 4 per million" in page.content
        assert b'name="_save"' not in page.content
        pdf = ada.get(reverse("admin:billing_invoice_pdf", args=[made.pk]))
        assert pdf.content == build_files(sheet_of(made))["pdf"]
        assert pdf["Content-Disposition"] == 'attachment; filename="WEIR-2026-000001.pdf"'
        assert ada.get(reverse("admin:billing_invoice_csv", args=[made.pk])).content.startswith(b"position,")
        pay = reverse("admin:billing_invoice_pay", args=[made.pk])
        ada.post(pay, {"amount": "200", "key": "wire-1"})
        assert amount_due(Invoice.objects.get()) == Decimal("103.2")
        ada.post(pay, {"amount": "103.20", "key": "wire-1"})
        assert Invoice.objects.get().state == "paid"
        assert b"WEIR-2026-000001" in ada.get(reverse("admin:billing_invoice_changelist")).content

    def test_voids_and_stores_by_post_alone(self, ada: Client, november: BillingPeriod) -> None:
        made = issue(november)
        for name in ("void", "store"):
            assert ada.get(reverse(f"admin:billing_invoice_{name}", args=[made.pk])).status_code == 200
        ada.post(reverse("admin:billing_invoice_store", args=[made.pk]))
        ada.post(reverse("admin:billing_invoice_void", args=[made.pk]), {"reason": "wrong buyer"})
        assert Invoice.objects.get().state == "void"

    def test_adjusts_by_two_people(self, ada: Client, november: BillingPeriod) -> None:
        form = {"period": str(november.pk), "amount": "-10", "text": "Outage"}
        assert ada.post(reverse("admin:billing_adjustment_add"), form).status_code == 302
        address = reverse("admin:billing_adjustment_approve", args=[Adjustment.objects.get().pk])
        ada.post(address)
        assert Adjustment.objects.get().approved_by == ""
        bob = Client()
        bob.force_login(User.objects.create_superuser("bob", password="only-a-test"))
        bob.post(address)
        assert Adjustment.objects.get().approved_by == "user:bob"
        assert issue(november).net == 76
        with pytest.raises(IntegrityError, match="never edited"), transaction.atomic():
            Adjustment.objects.update(amount=5)
