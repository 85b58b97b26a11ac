"""The price book in real PostgreSQL: what the database itself refuses, what is in force when."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from billing.models import PriceVersion
from billing.rating.prices import Meter, PriceError
from billing.selectors import price_card
from billing.services import (
    PriceChangeRefused,
    approve_price,
    propose_price,
    publish_prices,
    supersede_price,
    withdraw,
)
from billing.services.prices import PriceScope
from contracts.money import PriceCard
from tenants.models import Tenant

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, tzinfo=UTC)
PRICES = {Meter.INPUT: Decimal("0.25"), Meter.CACHED: Decimal("0.025"), Meter.OUTPUT: Decimal(2)}


def publish(
    *, at: datetime = NOW, currency: str = "USD", tenant: Tenant | None = None, prices: dict[Meter, Decimal] = PRICES
) -> list[PriceVersion]:
    tenant_id = str(tenant.pk) if tenant else None
    return publish_prices(
        model="m", prices=prices, currency=currency, at=at, actor="user:ada", approver="user:bob", tenant_id=tenant_id
    )


def propose(per_million: str, *, at: datetime = NOW, to: datetime | None = None, of: str = "") -> PriceVersion:
    scope = PriceScope(model="m", meter=Meter.OUTPUT, currency="USD", service_class=of)
    return propose_price(scope, per_million=Decimal(per_million), valid_from=at, valid_to=to, actor="user:ada")


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
        assert old.valid_to is None
        new = approve_price(price_id=str(new.pk), actor="user:ada", now=NOW)
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
        new = supersede_price(price_id=str(old.pk), per_million=Decimal(1), valid_from=ends, now=NOW, actor="user:bob")
        with pytest.raises(PriceChangeRefused, match="withdraw"):
            supersede_price(price_id=str(new.pk), per_million=Decimal(1), valid_from=ends, now=NOW, actor="user:bob")
        approve_price(price_id=str(new.pk), actor="user:ada", now=NOW)
        with pytest.raises(PriceChangeRefused, match="within"):
            supersede_price(price_id=str(old.pk), per_million=Decimal(1), valid_from=ends, now=NOW, actor="user:bob")


class TestApprovePrice:
    def test_needs_a_second_person_once(self) -> None:
        price = propose("2")
        with pytest.raises(PriceChangeRefused):
            approve_price(price_id=str(price.pk), actor="user:ada", now=NOW)
        assert approve_price(price_id=str(price.pk), actor="user:bob", now=NOW).approved_by == "user:bob"
        with pytest.raises(PriceChangeRefused):
            approve_price(price_id=str(price.pk), actor="user:eve", now=NOW)

    def test_is_what_a_price_waits_for(self, tenants: dict[str, Tenant]) -> None:
        publish(prices={Meter.INPUT: Decimal(1), Meter.CACHED: Decimal(1)})
        price = propose("2")
        assert card(tenants["acme"]) is None
        approve_price(price_id=str(price.pk), actor="user:bob", now=NOW)
        assert card(tenants["acme"]) is not None

    def test_never_reaches_back(self, tenants: dict[str, Tenant]) -> None:
        publish()
        late = propose("3", at=NOW + timedelta(days=1))
        agreed = NOW + timedelta(days=2)
        assert approve_price(price_id=str(late.pk), actor="user:bob", now=agreed).valid_from == agreed
        cards = [card(tenants["acme"], at=agreed - timedelta(milliseconds=1)), card(tenants["acme"], at=agreed)]
        assert [found.output_nano for found in cards if found] == [2_000, 3_000]
        over = propose("4", to=agreed)
        with pytest.raises(PriceChangeRefused, match="passed"):
            approve_price(price_id=str(over.pk), actor="user:bob", now=agreed)

    def test_lets_what_was_interrupted_go_on_afterwards(self, tenants: dict[str, Tenant]) -> None:
        publish()
        week = NOW + timedelta(days=7)
        sale = propose("1", at=week, to=week + timedelta(days=7))
        approve_price(price_id=str(sale.pk), actor="user:bob", now=NOW)
        moments = (week - timedelta(milliseconds=1), week, week + timedelta(days=7) - timedelta(milliseconds=1))
        prices = [card(tenants["acme"], at=at) for at in (*moments, week + timedelta(days=7))]
        assert [found.output_nano for found in prices if found] == [2_000, 1_000, 1_000, 2_000]
        resumed = PriceVersion.objects.get(meter="output", valid_to=None)
        assert (resumed.created_by, resumed.approved_by) == ("user:ada", "user:bob")

    def test_ends_where_an_announced_price_begins(self) -> None:
        publish(at=NOW + timedelta(days=30))
        price = propose("1")
        ends = approve_price(price_id=str(price.pk), actor="user:bob", now=NOW).valid_to
        assert ends == NOW + timedelta(days=30)

    def test_is_not_for_what_was_withdrawn(self) -> None:
        price = withdraw(propose("1"), actor="user:ada")
        with pytest.raises(PriceChangeRefused):
            approve_price(price_id=str(price.pk), actor="user:bob", now=NOW)
        with pytest.raises(PriceChangeRefused, match="superseded"):
            withdraw(publish()[0], actor="user:ada")


class TestClasses:
    def test_are_priced_by_their_own_price_else_by_every_class_s(self, tenants: dict[str, Tenant]) -> None:
        publish()
        price = propose("1", of="batch")
        approve_price(price_id=str(price.pk), actor="user:bob", now=NOW)
        found = {
            service_class: price_card(
                tenant_id=str(tenants["acme"].pk), model="m", at_ms=int(NOW.timestamp() * 1_000),
                service_class=service_class,
            )
            for service_class in ("interactive", "batch")
        }  # fmt: skip
        assert {name: each.output_nano for name, each in found.items() if each} == {
            "interactive": 2_000,
            "batch": 1_000,
        }

    def test_stand_behind_the_owner(self, tenants: dict[str, Tenant]) -> None:
        publish()
        price = propose("1", of="batch")
        approve_price(price_id=str(price.pk), actor="user:bob", now=NOW)
        publish(tenant=tenants["acme"], prices={Meter.OUTPUT: Decimal(4)})
        found = price_card(
            tenant_id=str(tenants["acme"].pk), model="m", at_ms=int(NOW.timestamp() * 1_000), service_class="batch"
        )
        assert found is not None
        assert found.output_nano == 4_000


class TestDatabase:
    def test_refuses_two_prices_at_one_time(self) -> None:
        publish()
        with pytest.raises(IntegrityError, match="price_once_for_all"), transaction.atomic():
            PriceVersion.objects.create(
                model="m", meter="input", per_million=1, valid_from=NOW + timedelta(days=9), created_by="user:ada",
                approved_by="user:bob",
            )  # fmt: skip

    def test_refuses_two_prices_of_one_tenant_at_one_time(self, tenants: dict[str, Tenant]) -> None:
        publish(tenant=tenants["acme"])
        publish(tenant=tenants["basic"])
        with pytest.raises(IntegrityError, match="price_once_per_tenant"), transaction.atomic():
            PriceVersion.objects.create(
                tenant=tenants["acme"], model="m", meter="input", per_million=1, valid_from=NOW, created_by="user:ada",
                approved_by="user:bob",
            )  # fmt: skip

    def test_tells_a_form_that_periods_overlap(self) -> None:
        publish()
        double = PriceVersion(model="m", meter="input", per_million=Decimal(1), valid_from=NOW, created_by="user:ada")
        double.approved_by = "user:bob"
        with pytest.raises(ValidationError, match="supersede"):
            double.full_clean()

    def test_refuses_one_person_for_both(self) -> None:
        price = propose("1")
        with pytest.raises(IntegrityError, match="price_two_people"), transaction.atomic():
            PriceVersion.objects.filter(pk=price.pk).update(approved_by="user:ada")

    @pytest.mark.parametrize(
        "change", [{"valid_from": NOW - timedelta(days=1)}, {"per_million": 9}, {"meter": "input"}]
    )
    def test_refuses_to_edit_a_proposal(self, change: dict[str, object]) -> None:
        price = propose("1")
        with pytest.raises(IntegrityError, match="superseded, never edited"), transaction.atomic():
            PriceVersion.objects.filter(pk=price.pk).update(**change)

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
