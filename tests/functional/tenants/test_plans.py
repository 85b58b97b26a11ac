"""Plans by the management API: weight, limits and price list; what a tenant sees, what an operator changes."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction

from billing.models import PriceList, PriceVersion
from billing.rating.prices import Meter
from billing.services import publish_prices
from contracts.tenancy import ServiceClass
from safety.defaults import demo_document
from safety.services import create_policy, publish_policy
from tenants import selectors, services
from tenants.models import AuditEntry, OutboxEvent, Plan
from tenants.row_scope import as_tenant
from tenants.services.keys import digests_of
from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db

AT = datetime(2027, 1, 1, tzinfo=UTC)
RULES = demo_document(policy_id="draft", version=1)["rules"]


@pytest.fixture
def operator(db: None) -> Api:
    return Api(user=User.objects.create_superuser("root"))


def staff(name: str, *permissions: str) -> Api:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return Api(user=user)


def own_prices() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT model FROM billing_priceversion")
        return {model for (model,) in cursor.fetchall()}


class TestRead:
    def test_shows_a_tenant_its_own_plan_with_its_limits_and_no_other(self, acme: Customer) -> None:
        Plan.objects.create(name="secret deal")
        for api in (manager(acme), member(acme, "viewer")):
            status, page = api("get", "plans")
            assert status == 200
            [shown] = page["data"]
            assert (shown["name"], shown["weight_milli"], shown["queued_max"]) == ("basic", 2_000, 50)
            assert shown["price_list"] is None
            caps = {one["metric"]: one["cap"] for one in shown["limits"]}
            assert caps == {"requests_per_minute": 60, "tokens_per_day": 1_000}
            assert api("get", f"plans/{shown['id']}")[1] == shown

    def test_of_all_plans_is_for_staff_who_may_look_at_plans(self, acme: Customer) -> None:
        Plan.objects.create(name="other")
        status, page = staff("sue", "view_plan")("get", "plans")
        assert (status, [one["name"] for one in page["data"]]) == (200, ["other", "basic"])
        assert staff("tim", "view_tenant")("get", "plans")[0] == 403

    def test_is_the_own_plans_in_the_database_too(self, acme: Customer, mallory: Customer) -> None:
        lists = {name: PriceList.objects.create(name=name) for name in ("ours", "theirs")}
        services.change_plan(plan=acme.tenant.plan, changes={"price_list": lists["ours"]})
        other = services.create_plan(name="theirs", price_list=lists["theirs"])
        services.set_limits(plan=other, caps={"requests_per_minute": 1})
        services.change_tenant(tenant=mallory.tenant, changes={"plan": other})
        price = {"prices": {Meter.INPUT: Decimal(1)}, "currency": "USD", "at": AT, "actor": "user:ada",
                 "approver": "user:bob"}  # fmt: skip
        publish_prices(model="general", **price)
        for name, one in lists.items():
            publish_prices(model=name, price_list_id=str(one.pk), **price)
        for who, own, rows in ((acme, "ours", 2), (mallory, "theirs", 1)):
            with transaction.atomic(), as_tenant(who.tenant.id):
                assert own_prices() == {"general", own}
                assert [one.name for one in PriceList.objects.all()] == [own]
                assert [one.limits.count() for one in Plan.objects.all()] == [rows]
        assert PriceVersion.objects.count() == 3


class TestWrite:
    def test_is_an_operators_alone(self, acme: Customer) -> None:
        path = f"plans/{acme.tenant.plan_id}"
        before = Plan.objects.values().get()
        looker = staff("sue", "view_plan")
        for api in (manager(acme), member(acme, "owner"), looker):
            assert api("post", "plans", {"name": "mine"})[0] == 403
            assert api("patch", path, {"weight_milli": 9_000}, if_match="*")[0] == 403
            assert api("post", f"{path}/limits", {"limits": [{"metric": "tokens_per_day", "cap": None}]})[0] == 403
        assert Plan.objects.values().get() == before
        assert acme.tenant.plan.limits.count() == 2

    def test_makes_a_plan_with_weight_limits_and_price_list(self, operator: Api, acme: Customer) -> None:
        PriceList.objects.create(name="volume")
        status, plan = operator("post", "plans", {"name": "big", "weight_milli": 4_000, "price_list": "volume"})
        assert (status, plan["price_list"], plan["max_tokens_cap"], plan["limits"]) == (201, "volume", None, [])
        caps = [{"metric": "spend_per_month", "cap": 5_000_000_000}, {"metric": "concurrent_requests", "cap": 4}]
        status, plan = operator("post", f"plans/{plan['id']}/limits", {"limits": caps})
        assert status == 200
        assert {one["metric"]: one["cap"] for one in plan["limits"]} == {
            "spend_per_month": 5_000_000_000,
            "concurrent_requests": 4,
        }
        status, plan = operator.change(f"plans/{plan['id']}", {"price_list": None, "name": "bigger"})
        assert (status, plan["price_list"], plan["name"]) == (200, None, "bigger")
        event = OutboxEvent.objects.filter(name="plan.changed").latest("id")
        assert event.body["before"]["price_list"] == str(PriceList.objects.get().pk)
        assert event.body["after"]["price_list"] is None
        assert not AuditEntry.objects.exists()

    def test_gives_its_tenants_a_class_in_a_busy_pool(self, operator: Api, acme: Customer) -> None:
        assert operator("get", f"plans/{acme.tenant.plan_id}")[1]["service_class"] == "interactive"
        status, plan = operator.change(f"plans/{acme.tenant.plan_id}", {"service_class": "batch"})
        assert (status, plan["service_class"]) == (200, "batch")
        context = selectors.load_context(digests_of(acme.plaintext))
        assert context is not None
        assert context.service_class is ServiceClass.BATCH
        event = OutboxEvent.objects.filter(name="plan.changed").latest("id")
        assert [event.body[side]["service_class"] for side in ("before", "after")] == ["interactive", "batch"]

    def test_refuses_what_no_plan_can_be_and_names_the_field(self, operator: Api, acme: Customer) -> None:
        for body, param in (
            ({}, "name"),
            ({"name": "basic"}, "name"),
            ({"name": "x", "weight_milli": 0}, "weight_milli"),
            ({"name": "x", "price_list": "no such"}, "price_list"),
            ({"name": "x", "price_list": 5}, "price_list"),
            ({"name": "x", "max_tokens_default": 0}, "max_tokens_default"),
            ({"name": "x", "service_class": "express"}, "service_class"),
            ({"name": "x", "service_class": None}, "service_class"),
            ({"name": "x", "prices": []}, "prices"),
        ):
            status, answer = operator("post", "plans", body)
            assert (status, answer["error"]["param"]) == (409 if body == {"name": "basic"} else 400, param), body
        assert Plan.objects.count() == 1

    def test_raises_the_epoch_of_each_tenant_of_the_plan_and_of_no_other(
        self, operator: Api, acme: Customer, mallory: Customer
    ) -> None:
        services.change_tenant(tenant=mallory.tenant, changes={"plan": services.create_plan(name="other")})
        PriceList.objects.create(name="volume")
        for change in (
            lambda: operator.change(f"plans/{acme.tenant.plan_id}", {"price_list": "volume"}),
            lambda: operator(
                "post", f"plans/{acme.tenant.plan_id}/limits", {"limits": [{"metric": "tokens_per_day", "cap": 9}]}
            ),
        ):
            acme.tenant.refresh_from_db()
            mallory.tenant.refresh_from_db()
            before = acme.tenant.epoch, mallory.tenant.epoch
            assert change()[0] == 200
            acme.tenant.refresh_from_db()
            mallory.tenant.refresh_from_db()
            assert (acme.tenant.epoch, mallory.tenant.epoch) == (before[0] + 1, before[1])


class TestPolicy:
    @pytest.mark.django_db(transaction=True)
    def test_published_raises_the_epochs_of_its_tenants_at_once(
        self, acme: Customer, mallory: Customer, wired: object
    ) -> None:
        policy = create_policy(name="strict", rules=RULES)
        publish_policy(policy_id=str(policy.pk), published_by="ada")
        services.change_tenant(tenant=acme.tenant, changes={"policy": type(policy).objects.get(pk=policy.pk)})
        acme.tenant.refresh_from_db()
        mallory.tenant.refresh_from_db()
        before = acme.tenant.epoch, mallory.tenant.epoch
        type(policy).objects.filter(pk=policy.pk).update(draft_rules=RULES[:1])
        publish_policy(policy_id=str(policy.pk), published_by="ada")
        acme.tenant.refresh_from_db()
        mallory.tenant.refresh_from_db()
        assert (acme.tenant.epoch, mallory.tenant.epoch) == (before[0] + 1, before[1])
        assert acme.tenant.epoch_pushed == acme.tenant.epoch
        context = selectors.load_context(digests_of(acme.plaintext))
        assert context is not None
        assert context.policy is not None
        assert (context.policy.version, context.tenant_epoch) == (2, acme.tenant.epoch)
