"""Money in the admin: added, superseded, approved; never edited."""

import html
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from billing.admin.amounts import percent, plain
from billing.ledger.entries import UsageLine, post_usage
from billing.models import (
    BillingJob,
    BillingPeriod,
    ContractTerms,
    LedgerAccount,
    LedgerTransaction,
    PriceVersion,
    TaxRate,
)
from billing.rating.prices import Meter
from billing.services import publish_prices
from tenants.models import Tenant

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 1, tzinfo=UTC)


def words(answer: Any) -> str:
    """What a person reads of a page."""
    page = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", answer.content.decode(), flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(page))


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
        assert b"0.25 USD" in ada.get(reverse("admin:billing_priceversion_changelist")).content
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
        usage = UsageLine(
            request_id=uuid4(), revision=1, tenant_id=tenants["acme"].pk, currency="USD",
            amount=Decimal("0.0000315"), billed_at=AT,
        )  # fmt: skip
        post_usage([usage], at=AT)
        posted = LedgerTransaction.objects.get()
        page = ada.get(reverse("admin:billing_ledgertransaction_change", args=[posted.pk]))
        assert b"-0.0000315 USD" in page.content
        assert b'name="_save"' not in page.content
        assert b"0.0000315 USD" in ada.get(reverse("admin:billing_ledgeraccount_changelist")).content
        assert ada.get(reverse("admin:billing_usageposting_changelist")).status_code == 200
        for name in ("ledgertransaction_add", "ledgeraccount_add", "usageposting_add"):
            assert ada.get(reverse(f"admin:billing_{name}")).status_code == 403
        account = LedgerAccount.objects.first()
        assert account is not None
        assert ada.post(reverse("admin:billing_ledgeraccount_delete", args=[account.pk])).status_code == 403

    def test_names_whose_money_it_is_and_how_much(self, ada: Client, tenants: dict[str, Tenant]) -> None:
        for name, amount in (("acme", "0.0000315"), ("basic", "12.500000000")):
            usage = UsageLine(
                request_id=uuid4(), revision=1, tenant_id=tenants[name].pk, currency="USD", amount=Decimal(amount),
                billed_at=AT, prompt_tokens=1_200, completion_tokens=7,
            )  # fmt: skip
            post_usage([usage], at=AT)
        booked = words(ada.get(reverse("admin:billing_ledgertransaction_changelist")))
        acme, basic = tenants["acme"].name, tenants["basic"].name
        assert f"{basic} Usage of 1 request 12.5 USD" in booked
        assert f"{acme} Usage of 1 request 0.0000315 USD" in booked
        found = ada.get(reverse("admin:billing_ledgertransaction_changelist"), {"q": basic})
        assert "12.5 USD" in words(found)
        assert "0.0000315 USD" not in words(found)
        posted = words(ada.get(reverse("admin:billing_usageposting_changelist")))
        assert f"{basic} 12.5 USD 1,200" in posted
        assert posted.index(f"{basic} 12.5 USD") < posted.index(f"{acme} 0.0000315 USD")
        assert str(tenants["acme"].pk) not in posted


class TestUnits:
    def test_a_rate_is_a_percentage_and_money_has_its_currency(self, ada: Client, tenants: dict[str, Tenant]) -> None:
        TaxRate.objects.create(country="DE", rate_ppm=190_000, valid_from=AT, created_by="user:a")
        ContractTerms.objects.create(
            tenant=tenants["acme"], currency="EUR", discount_ppm=125_000, minimum=50, valid_from=AT, created_by="user:a"
        )
        assert "DE 19 %" in words(ada.get(reverse("admin:billing_taxrate_changelist")))
        told = words(ada.get(reverse("admin:billing_contractterms_changelist")))
        assert f"{tenants['acme'].name} 12.5 % 0 EUR 0 EUR 50 EUR" in told

    def test_a_version_is_read_in_words_with_who_wrote_it_and_who_agreed(
        self, ada: Client, tenants: dict[str, Tenant]
    ) -> None:
        tier = {"model": "", "meter": "output", "above_tokens": 1_000_000, "discount_ppm": 100_000}
        terms = ContractTerms.objects.create(
            tenant=tenants["acme"], currency="EUR", discount_ppm=125_000, minimum=50, valid_from=AT, tiers=[tier],
            created_by="user:grace",
        )  # fmt: skip
        page = ada.get(reverse("admin:billing_contractterms_change", args=[terms.pk]))
        told = words(page)
        assert "every model output 1,000,000 10 %" in told
        assert "Discount 12.5 %" in told
        assert "At least 50 EUR" in told
        assert "Valid to open State proposed Created by user:grace Approved by nobody yet" in told
        assert b"discount_ppm" not in page.content
        assert b"50.000000000" not in page.content

    def test_buttons_are_for_those_who_may_press_them(self, ada: Client, tenants: dict[str, Tenant]) -> None:
        rate = TaxRate.objects.create(country="DE", rate_ppm=1, valid_from=AT, created_by="user:grace")
        address = reverse("admin:billing_taxrate_change", args=[rate.pk])
        clerk = User.objects.create_user("clerk", password="only-a-test", is_staff=True)
        clerk.user_permissions.add(Permission.objects.get(codename="view_taxrate"))
        looker = Client()
        looker.force_login(clerk)
        button = reverse("admin:billing_taxrate_approve", args=[rate.pk])
        assert button in ada.get(address).content.decode()
        assert button not in looker.get(address).content.decode()
        assert looker.post(button).status_code == 403
        rate.refresh_from_db()
        assert rate.approved_by == ""

    def test_a_list_takes_proposals_alone(self, ada: Client, price: PriceVersion) -> None:
        PriceVersion.objects.create(model="new", meter="input", per_million=2, valid_from=AT, created_by="user:a")
        address = reverse("admin:billing_priceversion_changelist")
        assert "new Every class Input 2 USD" in words(ada.get(address, {"state": "proposed"}))
        assert "0.25 USD" not in words(ada.get(address, {"state": "proposed"}))
        assert "2 USD" not in words(ada.get(address, {"state": "approved"}))

    def test_a_job_names_its_period(self, ada: Client, tenants: dict[str, Tenant]) -> None:
        period = BillingPeriod.objects.create(
            tenant=tenants["acme"],
            month="2026-01",
            zone="UTC",
            currency="USD",
            starts_at=AT,
            ends_at=AT + timedelta(31),
        )
        job = BillingJob.objects.create(kind="close", subject=str(period.pk), asked_by="x", asked_at=AT, due_at=AT)
        for address in (
            reverse("admin:billing_billingjob_changelist"),
            reverse("admin:billing_billingjob_change", args=[job.pk]),
        ):
            assert f"{tenants['acme'].name} 2026-01" in words(ada.get(address))


class TestAmounts:
    @pytest.mark.parametrize(
        ("amount", "said"),
        [("12.500000000", "12.5"), ("100", "100"), ("1E+2", "100"), ("-1E-9", "-0.000000001")],
    )
    def test_are_exact_without_zeros_behind(self, amount: str, said: str) -> None:
        assert plain(Decimal(amount)) == said

    @pytest.mark.parametrize(("millionths", "said"), [(190_000, "19 %"), (1, "0.0001 %"), (0, "0 %"), (10**6, "100 %")])
    def test_millionths_are_percents(self, millionths: int, said: str) -> None:
        assert percent(millionths) == said
