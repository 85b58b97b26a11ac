"""Money in the admin: added, superseded, approved; never edited."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from billing.ledger.entries import UsageLine, post_usage
from billing.models import ContractTerms, LedgerAccount, LedgerTransaction, PriceVersion
from billing.rating.prices import Meter
from billing.services import publish_prices
from tenants.models import Tenant

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def ada(db: None, settings: Settings, tmp_path: Path) -> Client:
    settings.STATIC_ROOT = tmp_path  # whitenoise warns of a folder that is not there yet
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="only-a-test"))
    return client


@pytest.fixture
def price(db: None) -> PriceVersion:
    return publish_prices(
        model="m", prices={Meter.INPUT: Decimal("0.25")}, currency="USD", at=AT, actor="user:grace",
        approver="user:bob",
    )[0]  # fmt: skip


class TestPrices:
    def test_are_listed_and_shown_without_a_save_button(self, ada: Client, price: PriceVersion) -> None:
        assert b"0.250" in ada.get(reverse("admin:billing_priceversion_changelist")).content
        page = ada.get(reverse("admin:billing_priceversion_change", args=[price.pk]))
        assert page.status_code == 200
        assert b"Supersede" in page.content
        assert b'name="_save"' not in page.content

    def test_are_added_under_the_name_of_who_wrote_them(self, ada: Client) -> None:
        done = ada.post(
            reverse("admin:billing_priceversion_add"),
            {
                "model": "m", "meter": "output", "per_million": "2.125", "currency": "USD", "tenant": "",
                "valid_from_0": "2027-01-01", "valid_from_1": "00:00:00", "valid_to_0": "", "valid_to_1": "",
            },
        )  # fmt: skip
        assert done.status_code == 302, done.content
        added = PriceVersion.objects.get()
        assert (added.per_million, added.created_by, added.state) == (Decimal("2.125"), "user:ada", "proposed")

    def test_are_withdrawn_while_nobody_has_approved_them(self, ada: Client, price: PriceVersion) -> None:
        proposed = PriceVersion.objects.create(
            model="m", meter="input", per_million=2, valid_from=AT, created_by="user:ada"
        )
        for each, state in ((proposed, "withdrawn"), (price, "approved")):
            address = reverse("admin:billing_priceversion_withdraw", args=[each.pk])
            assert ada.get(address).status_code == 200
            assert ada.post(address).status_code == 302
            each.refresh_from_db()
            assert each.state == state

    def test_are_superseded_once_a_second_person_agrees(self, ada: Client, price: PriceVersion) -> None:
        address = reverse("admin:billing_priceversion_supersede", args=[price.pk])
        asked = ada.get(address)
        assert asked.status_code == 200
        assert b"New price" in asked.content
        assert ada.post(address, {"per_million": "0.5"}).status_code == 302
        new = PriceVersion.objects.get(approved_by="")
        price.refresh_from_db()
        assert price.valid_to is None
        approve_address = reverse("admin:billing_priceversion_approve", args=[new.pk])
        assert ada.post(approve_address).status_code == 302
        new.refresh_from_db()
        assert new.state == "proposed"
        grace = Client()
        grace.force_login(User.objects.create_superuser("grace", password="only-a-test"))
        assert grace.post(approve_address).status_code == 302
        price.refresh_from_db()
        new.refresh_from_db()
        assert (price.per_million, new.per_million) == (Decimal("0.250"), Decimal("0.500"))
        assert price.valid_to == new.valid_from
        assert new.created_by == "user:ada"

    def test_name_what_is_wrong_with_a_new_price(self, ada: Client, price: PriceVersion) -> None:
        address = reverse("admin:billing_priceversion_supersede", args=[price.pk])
        for wrong in ("-1", "0.0001", ""):
            assert ada.post(address, {"per_million": wrong}).status_code == 200
        past = {"per_million": "1", "valid_from_0": "2026-01-02", "valid_from_1": "00:00:00"}
        assert b"from now on" in ada.post(address, past).content
        assert PriceVersion.objects.count() == 1

    def test_are_approved_by_a_second_person_by_post_only(self, ada: Client) -> None:
        price = PriceVersion.objects.create(
            model="m", meter="input", per_million=2, valid_from=AT, created_by="user:grace"
        )
        address = reverse("admin:billing_priceversion_approve", args=[price.pk])
        assert ada.get(address).status_code == 200
        price.refresh_from_db()
        assert price.approved_by == ""
        assert ada.post(address).status_code == 302
        price.refresh_from_db()
        assert price.approved_by == "user:ada"

    def test_are_closed_to_who_is_not_staff(self, ada: Client, price: PriceVersion) -> None:
        assert Client().get(reverse("admin:billing_priceversion_supersede", args=[price.pk])).status_code == 302
        clerk = Client()
        clerk.force_login(User.objects.create_user("clerk", password="only-a-test", is_staff=True))
        clerk.post(reverse("admin:billing_priceversion_supersede", args=[price.pk]), {"per_million": "9"})
        assert PriceVersion.objects.count() == 1


class TestTerms:
    def test_are_proposed_and_tell_what_is_wrong_with_a_tier(self, ada: Client, tenants: dict[str, Tenant]) -> None:
        address = reverse("admin:billing_contractterms_add")
        form = {
            "tenant": str(tenants["acme"].pk), "currency": "USD", "discount_ppm": "100000", "commitment": "0",
            "commitment_fee": "0", "minimum": "50", "payment_days": "14", "valid_from_0": "2027-01-01",
            "valid_from_1": "00:00:00", "valid_to_0": "", "valid_to_1": "",
        }  # fmt: skip
        wrong = ada.post(address, {**form, "tiers": '[{"model": "", "meter": "input", "above_tokens": -1}]'})
        assert b"tier 1 has model, meter, above_tokens and discount_ppm" in wrong.content
        tier = '[{"model": "", "meter": "input", "above_tokens": 10, "discount_ppm": 5}]'
        assert ada.post(address, {**form, "tiers": tier}).status_code == 302
        made = ContractTerms.objects.get()
        assert (made.minimum, made.created_by, made.state) == (50, "user:ada", "proposed")
        assert ada.get(reverse("admin:billing_contractterms_changelist")).status_code == 200


class TestTax:
    def test_has_one_issuer_and_a_table_of_countries(self, ada: Client) -> None:
        party = {
            "legal_name": "Weir Ltd", "street": "1 Lock", "postal_code": "1", "city": "Berlin", "country": "DE",
            "tax_id": "DE123456789", "email": "", "series": "WEIR", "bank_details": "",
        }  # fmt: skip
        address = reverse("admin:billing_issuer_add")
        assert ada.post(address, party).status_code == 302
        assert ada.get(address).status_code == 403
        rate = {"country": "DE", "rate_ppm": "190000", "valid_from_0": "2026-01-01", "valid_from_1": "00:00:00",
                "valid_to_0": "", "valid_to_1": ""}  # fmt: skip
        assert ada.post(reverse("admin:billing_taxrate_add"), rate).status_code == 302
        for name in ("taxrate", "billingprofile", "issuer"):
            assert ada.get(reverse(f"admin:billing_{name}_changelist")).status_code == 200


class TestLedger:
    def test_is_for_looking_only(self, ada: Client, tenants: dict[str, Tenant]) -> None:
        from uuid import uuid4

        usage = UsageLine(
            request_id=uuid4(), revision=1, tenant_id=tenants["acme"].pk, currency="USD",
            amount=Decimal("0.0000315"), billed_at=AT,
        )  # fmt: skip
        post_usage([usage], at=AT)
        posted = LedgerTransaction.objects.get()
        page = ada.get(reverse("admin:billing_ledgertransaction_change", args=[posted.pk]))
        assert b"-0.000031500" in page.content
        assert b'name="_save"' not in page.content
        assert b"0.000031500" in ada.get(reverse("admin:billing_ledgeraccount_changelist")).content
        assert ada.get(reverse("admin:billing_usageposting_changelist")).status_code == 200
        for name in ("ledgertransaction_add", "ledgeraccount_add", "usageposting_add"):
            assert ada.get(reverse(f"admin:billing_{name}")).status_code == 403
        account = LedgerAccount.objects.first()
        assert account is not None
        assert ada.post(reverse("admin:billing_ledgeraccount_delete", args=[account.pk])).status_code == 403
