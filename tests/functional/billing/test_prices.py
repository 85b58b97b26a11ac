"""The price book in real PostgreSQL: what the database itself refuses, what is in force when."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from billing.models import PriceVersion
from billing.rating.prices import Meter, PriceError
from billing.selectors import price_card
from billing.services import PriceChangeRefused, approve_price, publish_prices, supersede_price
from contracts.money import PriceCard
from tenants.models import Tenant

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, tzinfo=UTC)
PRICES = {Meter.INPUT: Decimal("0.25"), Meter.CACHED: Decimal("0.025"), Meter.OUTPUT: Decimal(2)}


def publish(
    *, at: datetime = NOW, currency: str = "USD", tenant: Tenant | None = None, prices: dict[Meter, Decimal] = PRICES
) -> list[PriceVersion]:
    tenant_id = str(tenant.pk) if tenant else None
    return publish_prices(model="m", prices=prices, currency=currency, at=at, actor="user:ada", tenant_id=tenant_id)


def card(tenant: Tenant, *, at: datetime = NOW, currency: str | None = None) -> PriceCard | None:
    return price_card(tenant_id=str(tenant.pk), model="m", at_ms=int(at.timestamp() * 1_000), currency=currency)


class TestPriceCard:
    def test_holds_the_prices_in_force_and_names_their_versions(self, tenants: dict[str, Tenant]) -> None:
        versions = publish()
        assert card(tenants["acme"]) == PriceCard(
            card_id="+".join(str(version.pk) for version in versions),
            currency="USD",
            input_nano=250,
            cached_nano=25,
            output_nano=2_000,
        )

    def test_is_none_before_the_price_and_for_another_model(self, tenants: dict[str, Tenant]) -> None:
        publish()
        assert card(tenants["acme"], at=NOW - timedelta(milliseconds=1)) is None
        assert price_card(tenant_id=str(tenants["acme"].pk), model="other", at_ms=10**13) is None

    def test_is_none_when_one_meter_has_no_price(self, tenants: dict[str, Tenant]) -> None:
        publish(prices={Meter.INPUT: Decimal(1), Meter.OUTPUT: Decimal(1)})
        assert card(tenants["acme"]) is None

    def test_prefers_the_tenant_s_own_price_meter_by_meter(self, tenants: dict[str, Tenant]) -> None:
        publish()
        publish(tenant=tenants["acme"], prices={Meter.OUTPUT: Decimal(1)})
        publish(currency="EUR")
        own, general = card(tenants["acme"]), card(tenants["basic"])
        assert own is not None
        assert general is not None
        assert (own.input_nano, own.output_nano) == (250, 1_000)
        assert (general.input_nano, general.output_nano) == (250, 2_000)

    def test_is_in_the_tenant_s_currency_and_no_other(self, tenants: dict[str, Tenant]) -> None:
        publish()
        assert card(tenants["basic"]) is None
        assert card(tenants["basic"], currency="USD") is not None

    def test_changes_at_the_very_moment_of_the_new_price(self, tenants: dict[str, Tenant]) -> None:
        publish()
        publish(at=NOW + timedelta(days=14), prices={Meter.OUTPUT: Decimal(3)})
        before = card(tenants["acme"], at=NOW + timedelta(days=14) - timedelta(milliseconds=1))
        after = card(tenants["acme"], at=NOW + timedelta(days=14))
        assert before is not None
        assert after is not None
        assert (before.output_nano, after.output_nano) == (2_000, 3_000)
        assert before.card_id != after.card_id


class TestPublishPrices:
    def test_keeps_what_already_holds(self) -> None:
        assert publish() == publish(at=NOW + timedelta(days=1))
        assert PriceVersion.objects.count() == 3

    def test_refuses_a_price_that_cannot_be_charged_exactly(self) -> None:
        with pytest.raises(PriceError):
            publish(prices={Meter.INPUT: Decimal("0.0001")})

    def test_ends_before_a_price_that_was_announced(self) -> None:
        publish(at=NOW + timedelta(days=30))
        first = publish()[0]
        assert first.valid_to == NOW + timedelta(days=30)


class TestSupersedePrice:
    def test_ends_the_old_version_and_lets_the_new_one_follow(self) -> None:
        old = publish()[2]
        later = NOW + timedelta(days=1)
        new = supersede_price(price_id=str(old.pk), per_million=Decimal(3), valid_from=later, now=NOW, actor="user:bob")
        old.refresh_from_db()
        assert (old.valid_to, new.valid_from, new.valid_to) == (later, later, None)
        assert (old.per_million, new.per_million) == (2, 3)
        assert (old.created_by, new.created_by) == ("user:ada", "user:bob")

    def test_never_rewrites_the_past(self) -> None:
        old = publish()[0]
        with pytest.raises(PriceChangeRefused, match="from now on"):
            supersede_price(
                price_id=str(old.pk),
                per_million=Decimal(1),
                valid_from=NOW,
                now=NOW + timedelta(seconds=1),
                actor="user:bob",
            )

    def test_stays_within_the_period_of_the_old_one(self) -> None:
        old = publish()[0]
        ends = NOW + timedelta(days=1)
        supersede_price(price_id=str(old.pk), per_million=Decimal(1), valid_from=ends, now=NOW, actor="user:bob")
        with pytest.raises(PriceChangeRefused, match="within"):
            supersede_price(price_id=str(old.pk), per_million=Decimal(1), valid_from=ends, now=NOW, actor="user:bob")


class TestApprovePrice:
    def test_needs_a_second_person_once(self) -> None:
        price = publish()[0]
        with pytest.raises(PriceChangeRefused):
            approve_price(price_id=str(price.pk), actor="user:ada")
        assert approve_price(price_id=str(price.pk), actor="user:bob").approved_by == "user:bob"
        with pytest.raises(PriceChangeRefused):
            approve_price(price_id=str(price.pk), actor="user:eve")


class TestDatabase:
    def test_refuses_two_prices_at_one_time(self) -> None:
        publish()
        with pytest.raises(IntegrityError, match="price_once_for_all"), transaction.atomic():
            PriceVersion.objects.create(
                model="m", meter="input", per_million=1, valid_from=NOW + timedelta(days=9), created_by="user:ada"
            )

    def test_refuses_two_prices_of_one_tenant_at_one_time(self, tenants: dict[str, Tenant]) -> None:
        publish(tenant=tenants["acme"])
        publish(tenant=tenants["basic"])
        with pytest.raises(IntegrityError, match="price_once_per_tenant"), transaction.atomic():
            PriceVersion.objects.create(
                tenant=tenants["acme"], model="m", meter="input", per_million=1, valid_from=NOW, created_by="user:ada"
            )

    def test_tells_a_form_that_periods_overlap(self) -> None:
        publish()
        double = PriceVersion(model="m", meter="input", per_million=Decimal(1), valid_from=NOW, created_by="user:ada")
        with pytest.raises(ValidationError, match="supersede"):
            double.full_clean()

    @pytest.mark.parametrize("change", [{"per_million": 1}, {"model": "x"}, {"valid_from": NOW + timedelta(days=1)}])
    def test_refuses_to_edit_a_price(self, change: dict[str, object]) -> None:
        price = publish()[0]
        with pytest.raises(IntegrityError, match="superseded, never edited"), transaction.atomic():
            PriceVersion.objects.filter(pk=price.pk).update(**change)

    def test_refuses_to_lengthen_or_delete_a_price(self) -> None:
        price = publish()[0]
        PriceVersion.objects.filter(pk=price.pk).update(valid_to=NOW + timedelta(days=1))
        for later in (NOW + timedelta(days=2), None):
            with pytest.raises(IntegrityError, match="moves closer"), transaction.atomic():
                PriceVersion.objects.filter(pk=price.pk).update(valid_to=later)
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            PriceVersion.objects.filter(pk=price.pk).delete()

    @pytest.mark.parametrize(
        "change", [{"per_million": -1}, {"currency": "usd"}, {"valid_to": NOW - timedelta(days=1)}]
    )
    def test_refuses_a_price_that_makes_no_sense(self, change: dict[str, object]) -> None:
        fields: dict[str, object] = {
            "model": "m", "meter": "input", "per_million": 1, "valid_from": NOW, "created_by": "user:ada"
        }  # fmt: skip
        with pytest.raises(IntegrityError, match="price_"), transaction.atomic():
            PriceVersion.objects.create(**{**fields, **change})
