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
from billing.models import LedgerAccount, LedgerTransaction, PriceVersion
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
    return publish_prices(model="m", prices={Meter.INPUT: Decimal("0.25")}, currency="USD", at=AT, actor="user:grace")[
        0
    ]


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
        assert (added.per_million, added.created_by) == (Decimal("2.125"), "user:ada")

    def test_say_that_periods_overlap_instead_of_failing(self, ada: Client, price: PriceVersion) -> None:
        page = ada.post(
            reverse("admin:billing_priceversion_add"),
            {
                "model": "m", "meter": "input", "per_million": "2", "currency": "USD", "tenant": "",
                "valid_from_0": "2027-01-01", "valid_from_1": "00:00:00", "valid_to_0": "", "valid_to_1": "",
            },
        )  # fmt: skip
        assert page.status_code == 200
        assert b"supersede it instead" in page.content

    def test_are_superseded_from_now_on(self, ada: Client, price: PriceVersion) -> None:
        address = reverse("admin:billing_priceversion_supersede", args=[price.pk])
        asked = ada.get(address)
        assert asked.status_code == 200
        assert b"New price" in asked.content
        assert ada.post(address, {"per_million": "0.5"}).status_code == 302
        price.refresh_from_db()
        new = PriceVersion.objects.get(valid_to=None)
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

    def test_are_approved_by_a_second_person_by_post_only(self, ada: Client, price: PriceVersion) -> None:
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
