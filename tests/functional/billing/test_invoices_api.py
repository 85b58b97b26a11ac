"""Documents by the management API: list, detail and files, on a real month that was sealed and issued."""

import csv
import hashlib
import io
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from pydantic import SecretStr
from pytest_django import Settings

from billing.closing.close import seal_period
from billing.invoicing.files import build_files, store_files
from billing.invoicing.issue import issue_document
from billing.invoicing.sheet import sheet_of
from billing.models import BillingPeriod, BillingProfile, Invoice, Issuer
from controlplane.env import environment
from stores.objects import Objects
from tenants import services
from tests.functional.billing.months import LARGE, NOW, START, Books
from tests.functional.tenants.api import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def document(books: Books, november: BillingPeriod, settings: Settings) -> Invoice:
    settings.ENV = environment().model_copy(update={"s3_url": None})
    books.use(START, counts=LARGE)
    seal_period(november, books.evidence(), actor="user:ada", now=NOW)
    Issuer.objects.create(legal_name="Weir", country="NZ", street="1", postal_code="1", city="Wellington")
    BillingProfile.objects.create(
        tenant=books.tenant, legal_name="Acme", country="NP", street="1", postal_code="1", city="Kathmandu"
    )
    made = issue_document(period_id=november.pk, actor="user:ada", now=NOW)
    assert made is not None
    return made


@pytest.fixture
def accountant(books: Books) -> Api:
    user = User.objects.create_user("bill")
    services.add_member(tenant=books.tenant, user=user, role="billing")
    return Api(user=user)


class TestInvoices:
    def test_are_listed_and_read_with_lines_that_add_up(self, document: Invoice, accountant: Api) -> None:
        status, page = accountant("get", "invoices?month=2026-11&state=issued")
        assert status == 200
        [listed] = page["data"]
        assert (listed["number"], listed["total"], listed["currency"]) == (document.number, "0.86", "USD")
        assert "lines" not in listed
        _, one = accountant("get", f"invoices/{document.pk}")
        assert sum(Decimal(line["amount"]) for line in one["lines"]) == Decimal(one["net"])
        assert [(line["tokens"], line["unit"]) for line in one["lines"]] == [
            (400_000, "0.000001"), (600_000, "0.0000001"), (100_000, "0.000004"),
        ]  # fmt: skip
        assert accountant("get", "invoices?month=2026-10")[1]["data"] == []

    def test_are_downloaded_in_each_form(self, document: Invoice, accountant: Api) -> None:
        made = build_files(sheet_of(document))
        for ending, body in made.items():
            status, _ = accountant("get", f"invoices/{document.pk}/file?as={ending}")
            assert (status, accountant.last.content) == (200, body)
            assert accountant.last["Content-Disposition"] == f'attachment; filename="{document.number}.{ending}"'
        rows = list(csv.DictReader(io.StringIO(made["csv"].decode())))
        assert rows[-1]["amount"] == "0.86"
        assert accountant("get", f"invoices/{document.pk}/file?as=exe")[0] == 400

    def test_hand_out_what_was_stored_and_nothing_else(
        self, document: Invoice, accountant: Api, settings: Settings, s3_url: str
    ) -> None:
        settings.ENV = settings.ENV.model_copy(update={"s3_url": SecretStr(s3_url)})
        objects = Objects.open(s3_url)
        noted = store_files(invoice_id=document.pk, objects=objects).files["pdf"]
        assert accountant("get", f"invoices/{document.pk}/file")[0] == 200
        assert hashlib.sha256(accountant.last.content).hexdigest() == noted["sha256"]
        objects.put(key=noted["key"], body=b"forged", content_type="application/pdf")
        assert accountant("get", f"invoices/{document.pk}/file")[0] == 503
