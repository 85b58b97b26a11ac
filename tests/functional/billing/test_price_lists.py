"""Whose price holds: the tenant's own, its plan's list, or everybody's, meter by meter, each at its own time."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction

from billing.models import PriceList, PriceVersion
from billing.rating.prices import Meter
from billing.selectors import price_card
from billing.services import approve_price, publish_prices, supersede_price
from contracts.money import PriceCard
from tenants.models import Plan, Tenant

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=30)
GENERAL = {Meter.INPUT: Decimal(1), Meter.CACHED: Decimal("0.1"), Meter.OUTPUT: Decimal(4)}


def publish(prices: dict[Meter, Decimal], *, at: datetime = NOW, currency: str = "USD", **owner: str) -> None:
    publish_prices(model="m", prices=prices, currency=currency, at=at, actor="user:ada", approver="user:bob", **owner)


def nano(tenant: Tenant, *, at: datetime = NOW) -> tuple[int, int, int] | None:
    card = price_card(tenant_id=str(tenant.pk), model="m", at_ms=int(at.timestamp() * 1_000))
    return (card.input_nano, card.cached_nano, card.output_nano) if isinstance(card, PriceCard) else None


@pytest.fixture
def listed(tenants: dict[str, Tenant]) -> PriceList:
    """A list on the plan of both tenants."""
    made = PriceList.objects.create(name="volume")
    Plan.objects.filter(name="plan").update(price_list=made)
    return made


class TestResolution:
    def test_takes_the_list_before_everybodys_and_the_tenants_own_before_both(
        self, tenants: dict[str, Tenant], listed: PriceList
    ) -> None:
        publish(GENERAL)
        publish({Meter.INPUT: Decimal("0.5"), Meter.OUTPUT: Decimal(2)}, price_list_id=str(listed.pk))
        assert nano(tenants["acme"]) == (500, 100, 2_000)
        publish({Meter.OUTPUT: Decimal(3)}, tenant_id=str(tenants["acme"].pk))
        assert nano(tenants["acme"]) == (500, 100, 3_000)

    def test_leaves_out_lists_that_the_plan_has_not(self, tenants: dict[str, Tenant], listed: PriceList) -> None:
        other = PriceList.objects.create(name="other")
        publish(GENERAL)
        publish({Meter.INPUT: Decimal("0.001")}, price_list_id=str(other.pk))
        assert nano(tenants["acme"]) == (1_000, 100, 4_000)
        plain = Tenant.objects.create(name="plain", plan=Plan.objects.create(name="without"))
        publish({Meter.INPUT: Decimal("0.002")}, price_list_id=str(listed.pk))
        assert nano(plain) == (1_000, 100, 4_000)

    def test_prices_a_model_by_its_list_alone(self, tenants: dict[str, Tenant], listed: PriceList) -> None:
        publish(GENERAL, price_list_id=str(listed.pk))
        assert nano(tenants["acme"]) == (1_000, 100, 4_000)
        assert nano(tenants["basic"]) is None  # pays in euros, and the list has none

    def test_keeps_each_price_to_its_time(self, tenants: dict[str, Tenant], listed: PriceList) -> None:
        publish(GENERAL)
        publish({Meter.INPUT: Decimal("0.5")}, at=LATER, price_list_id=str(listed.pk))
        assert nano(tenants["acme"], at=LATER - timedelta(milliseconds=1)) == (1_000, 100, 4_000)
        assert nano(tenants["acme"], at=LATER) == (500, 100, 4_000)
        row = PriceVersion.objects.get(price_list=listed)
        end = LATER + timedelta(days=1)
        new = supersede_price(
            price_id=str(row.pk), per_million=Decimal("0.25"), valid_from=end, now=LATER, actor="user:ada"
        )
        assert str(new.price_list_id) == str(listed.pk)
        approve_price(price_id=str(new.pk), actor="user:bob", now=LATER)
        assert nano(tenants["acme"], at=end - timedelta(milliseconds=1)) == (500, 100, 4_000)
        assert nano(tenants["acme"], at=end) == (250, 100, 4_000)

    def test_publishing_for_a_list_touches_nobody_elses_price(
        self, tenants: dict[str, Tenant], listed: PriceList
    ) -> None:
        publish(GENERAL)
        publish(GENERAL, price_list_id=str(listed.pk))
        publish({Meter.INPUT: Decimal(2)}, at=LATER, price_list_id=str(listed.pk))
        assert PriceVersion.objects.get(price_list=None, meter="input").valid_to is None
        publish(GENERAL, at=LATER, price_list_id=str(PriceList.objects.create(name="third").pk))
        assert PriceVersion.objects.count() == 3 + 4 + 3


class TestDatabase:
    def make(self, **owner: object) -> PriceVersion:
        return PriceVersion.objects.create(
            model="m", meter="input", per_million=1, currency="USD", valid_from=NOW, created_by="user:ada",
            approved_by="user:bob", **owner
        )  # fmt: skip

    def test_refuses_a_price_of_both_a_tenant_and_a_list(self, tenants: dict[str, Tenant], listed: PriceList) -> None:
        with pytest.raises(IntegrityError, match="price_has_one_owner"), transaction.atomic():
            self.make(tenant=tenants["acme"], price_list=listed)

    def test_refuses_two_prices_of_a_list_at_one_time(self, listed: PriceList) -> None:
        self.make(price_list=listed)
        self.make(price_list=PriceList.objects.create(name="other"))
        self.make()
        with pytest.raises(IntegrityError, match="price_once_per_list"), transaction.atomic():
            self.make(price_list=listed)
