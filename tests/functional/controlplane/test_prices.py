"""The gateway's prices: known ones are kept, and a plan that changes is another price for the next request."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from billing.models import PriceList
from billing.rating.prices import Meter
from billing.services import publish_prices
from contracts.tenancy import ServiceClass
from controlplane.reads.keys import KeyLoads
from controlplane.reads.prices import PriceCache
from stores.system import SystemClock
from tenants import services
from tenants.models import Tenant
from tenants.services.keys import digests_of

T = TypeVar("T")
AT = datetime(2026, 1, 1, tzinfo=UTC)


async def ask(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """`call` in a thread that leaves no connection behind: the test's database is dropped afterwards."""

    def once() -> T:
        try:
            return call(*args, **kwargs)
        finally:
            connections.close_all()

    return await sync_to_async(once, thread_sensitive=False)()


@pytest.fixture(autouse=True)
def _no_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("keys", "prices"):
        monkeypatch.setattr(f"controlplane.reads.{module}.from_database", ask)


def publish(output: str, **owner: str) -> None:
    prices = {Meter.INPUT: Decimal(1), Meter.CACHED: Decimal(1), Meter.OUTPUT: Decimal(output)}
    publish_prices(model="m", prices=prices, currency="USD", at=AT, actor="user:ada", approver="user:bob", **owner)


def setting() -> tuple[Tenant, str, PriceList]:
    """A tenant with a key, everybody's price, and a list that no plan has yet."""
    plan = services.create_plan(name="plan")
    tenant = services.create_tenant(name="acme", plan=plan)
    project = services.create_project(tenant=tenant, name="default")
    _, text = services.create_key(project=project, name="key")
    price_list = PriceList.objects.create(name="volume")
    publish("4")
    publish("2", price_list_id=str(price_list.pk))
    return tenant, text, price_list


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("valkey_url")
class TestPriceCache:
    async def test_prices_anew_once_the_changed_plan_is_seen(self) -> None:
        tenant, text, price_list = await ask(setting)
        prices = PriceCache(clock=SystemClock())

        async def output_nano() -> int:
            card = await prices.card(tenant_id=str(tenant.id), model="m", service_class=ServiceClass.INTERACTIVE)
            assert card is not None
            return card.output_nano

        await KeyLoads(prices)(digests_of(text))
        assert await output_nano() == 4_000
        await ask(services.change_plan, plan=tenant.plan, changes={"price_list": price_list})
        assert await output_nano() == 4_000  # nobody has seen the change yet: no query for each request
        await KeyLoads(prices)(digests_of(text))  # as the hold script asks for, whose epoch is newer
        assert await output_nano() == 2_000
        other = await ask(services.create_plan, name="other")
        await ask(services.change_tenant, tenant=tenant, changes={"plan": other})
        await KeyLoads(prices)(digests_of(text))
        assert await output_nano() == 4_000

    async def test_a_context_that_was_read_before_moves_nothing_back(self) -> None:
        tenant, text, price_list = await ask(setting)
        prices = PriceCache(clock=SystemClock())
        await KeyLoads(prices)(digests_of(text))
        await ask(services.change_plan, plan=tenant.plan, changes={"price_list": price_list})
        await KeyLoads(prices)(digests_of(text))
        prices.saw(tenant_id=str(tenant.id), epoch=tenant.epoch)
        card = await prices.card(tenant_id=str(tenant.id), model="m", service_class=ServiceClass.INTERACTIVE)
        assert card is not None
        assert card.output_nano == 2_000
