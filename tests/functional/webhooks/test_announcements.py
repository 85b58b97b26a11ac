"""Policies and prices reach the outbox, though their rooms do not know it."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import transaction
from django.utils import timezone

from billing.rating.prices import Meter
from billing.services import publish_prices, supersede_price
from safety.models import Policy
from safety.services import create_policy, publish_policy
from tenants.models import OutboxEvent
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db
RULES = [{"name": "words", "kind": "ban_list", "stage": ["prompt"], "action": "block", "fail": "closed",
          "config": {"words": ["a banned phrase"]}}]  # fmt: skip


def told(name: str) -> list[OutboxEvent]:
    return list(OutboxEvent.objects.filter(name=name).order_by("id"))


class TestPolicies:
    def test_a_published_version_is_told_without_its_text(self, wired: object) -> None:
        policy = create_policy(name="house", rules=RULES)
        publish_policy(policy_id=str(policy.id), published_by="ada")
        publish_policy(policy_id=str(policy.id), published_by="ada")
        [event] = told("policy.published")
        assert event.tenant_id is None
        assert event.body["actor"] == "user:ada"
        assert event.body["after"] == {"name": "house", "version": 1, "rules": 1}
        assert "banned phrase" not in str(event.body)

    def test_one_that_is_rolled_back_is_not_told(self, wired: object) -> None:
        policy = create_policy(name="house", rules=RULES)
        with transaction.atomic():
            publish_policy(policy_id=str(policy.id), published_by="ada")
            transaction.set_rollback(True)
        assert told("policy.published") == []
        assert Policy.objects.get().published_version == 0


class TestPrices:
    def test_are_told_when_set_followed_and_approved(self, acme: Customer) -> None:
        now = timezone.now()
        [price] = publish_prices(
            model="m", prices={Meter.INPUT: Decimal("1.5")}, currency="USD", at=now, actor="ada",
            approver="bob", tenant_id=str(acme.tenant.id),
        )  # fmt: skip
        later = now + timedelta(days=1)
        supersede_price(price_id=str(price.id), per_million=Decimal(2), valid_from=later, now=now, actor="ada")
        first, second = told("price.set")
        [approved] = told("price.approved")
        assert {event.tenant_id for event in (first, second, approved)} == {acme.tenant.id}
        assert first.body["after"]["per_million"] == "1.5"
        assert second.body["after"]["valid_from"] == later.isoformat()
        assert (first.body["actor"], approved.body["actor"]) == ("user:ada", "user:bob")
