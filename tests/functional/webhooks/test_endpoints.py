"""Secrets, places and retention of webhook endpoints. Real stores."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from pydantic import SecretStr
from pytest_django import Settings

from contracts.errors import LimitExceeded
from stores.sealing import Unreadable
from tenants import services as tenants_services
from tenants.models import OutboxEvent
from tenants.webhooks import dispatch, retention, retries, selectors, services
from tenants.webhooks.models import Delivery, DeliveryState, Endpoint, EndpointSecret, Event
from tenants.webhooks.transport import Answer, Sender
from tests.functional.tenants.conftest import Customer
from tests.functional.webhooks.receivers import Receiver

pytestmark = pytest.mark.django_db
TakeAll = Callable[[str], int]


def answer(code: int | None, *, error: str = "", retry_after_s: int | None = None) -> Answer:
    return Answer(status=code, body="", error=error, latency_ms=3, retry_after_s=retry_after_s)


def fail_once(delivery: Delivery, code: int | None = 500, *, now: datetime, dice: float = 0.5, **more: Any) -> Delivery:
    """One claimed try of this delivery, at `now`, that ends like this."""
    Delivery.objects.filter(id=delivery.id, state="pending").update(next_attempt_at=now - timedelta(days=99))
    [job] = dispatch.claim(most=1, now=now)
    assert job.delivery_id == delivery.id
    dispatch.finish(job, answer(code, **more), now=now, dice=lambda: dice)
    delivery.refresh_from_db()
    return delivery


class TestSecrets:
    def test_are_stored_sealed_and_told_to_nobody(self, hook: Endpoint) -> None:
        secret = services.rotate_secret(endpoint=hook)
        rows = EndpointSecret.objects.filter(endpoint=hook)
        assert all(secret.encode() not in bytes(row.sealed) for row in rows)
        assert all(secret not in json.dumps(row.body) for row in OutboxEvent.objects.all())

    def test_overlap_then_end(self, hook: Endpoint) -> None:
        now = timezone.now()
        [first] = selectors.secrets_of(hook, now=now)
        second = services.rotate_secret(endpoint=hook, overlap=timedelta(hours=1))
        assert selectors.secrets_of(hook, now=now) == [second, first]
        assert selectors.secrets_of(hook, now=now + timedelta(hours=2)) == [second]
        third = services.rotate_secret(endpoint=hook, overlap=timedelta())
        assert selectors.secrets_of(hook, now=now) == [third]

    def test_at_most_three_sign_at_once(self, hook: Endpoint) -> None:
        made = [services.rotate_secret(endpoint=hook, overlap=timedelta(days=1)) for _ in range(5)]
        assert selectors.secrets_of(hook, now=timezone.now()) == made[:1:-1]

    def test_survive_the_change_of_the_root_secret(self, hook: Endpoint, settings: Settings) -> None:
        now, before = timezone.now(), settings.ENV
        [secret] = selectors.secrets_of(hook, now=now)
        new, none = SecretStr("another-root-secret-0123456789-0123456789"), SecretStr("")
        settings.ENV = before.model_copy(update={"secret": new})
        with pytest.raises(Unreadable):
            selectors.secrets_of(hook, now=now)
        assert services.reseal_secrets() == 0
        settings.ENV = before.model_copy(update={"secret": new, "secret_old": before.secret})
        assert selectors.secrets_of(hook, now=now) == [secret]
        assert services.reseal_secrets() == 1
        assert services.reseal_secrets() == 0
        settings.ENV = before.model_copy(update={"secret": new, "secret_old": none})
        assert selectors.secrets_of(hook, now=now) == [secret]

    def test_an_event_tells_the_origin_of_a_url_only(self, hook: Endpoint) -> None:
        services.change_endpoint(
            endpoint=hook, changes={"url": "https://hooks.example.com/services/T0/SECRET?k=SECRET"}
        )
        told = OutboxEvent.objects.get(name="webhook.changed")
        assert told.body["after"]["origin"] == "https://hooks.example.com"
        assert "SECRET" not in json.dumps(told.body)


class TestServices:
    def test_refuse_what_cannot_work(self, hook: Endpoint, acme: Customer) -> None:
        for url, wanted in (
            ("http://hooks.example.com/", ["*"]),
            ("https://169.254.169.254/", ["*"]),
            ("https://hooks.example.com/", ["kye.revoked"]),
            ("https://hooks.example.com/", []),
            ("https://hooks.example.com/", ["*"] * 51),
        ):
            with pytest.raises(ValidationError):
                services.create_endpoint(tenant=acme.tenant, url=url, events=wanted)
        with pytest.raises(ValidationError):
            services.rotate_secret(endpoint=hook, overlap=timedelta(days=8))
        for _ in range(services.ENDPOINTS_MAX - 1):
            services.create_endpoint(tenant=acme.tenant, url="https://hooks.example.com/")
        with pytest.raises(ValidationError, match="at most 20"):
            services.create_endpoint(tenant=acme.tenant, url="https://hooks.example.com/")

    def test_a_closed_tenant_makes_no_webhook(self, development: None, acme: Customer) -> None:
        tenants_services.close_tenant(tenant=acme.tenant)
        with pytest.raises(ValidationError, match="closed"):
            services.create_endpoint(tenant=acme.tenant, url="https://hooks.example.com/")

    def test_a_test_event_goes_to_one_endpoint_whatever_its_filter(
        self, hook: Endpoint, there: Receiver, sender: Sender
    ) -> None:
        services.change_endpoint(endpoint=hook, changes={"events": ["member.added"]})
        services.create_endpoint(tenant=hook.tenant, url="https://hooks.example.com/")
        services.send_test(endpoint=hook)
        assert dispatch.run(sender=sender) == 1
        assert json.loads(there.arrived[0][1])["type"] == "webhook.test"
        for _ in range(services.TESTS_PER_MINUTE - 1):
            services.send_test(endpoint=hook)
        with pytest.raises(LimitExceeded):
            services.send_test(endpoint=hook)

    def test_a_deleted_endpoint_gets_nothing_more(
        self, hook: Endpoint, there: Receiver, sender: Sender, take_all: TakeAll
    ) -> None:
        take_all("key.created")
        services.delete_endpoint(endpoint=hook)
        assert dispatch.run(sender=sender) == 0
        assert take_all("project.created") == 0
        assert not EndpointSecret.objects.exists()
        with pytest.raises(ValidationError, match="deleted"):
            services.enable(endpoint=hook)


class TestRetention:
    def test_forgets_delivered_then_dead_then_events_and_never_sends_one_anew(
        self, hook: Endpoint, take_all: TakeAll
    ) -> None:
        for name in ("key.created", "project.created", "tenant.created"):
            take_all(name)
        now = timezone.now()
        fail_once(Delivery.objects.get(event__name="key.created"), 200, now=now)
        dead = Delivery.objects.get(event__name="project.created")
        Delivery.objects.filter(id=dead.id).update(attempts=retries.TRIES_MAX - 1)
        fail_once(dead, now=now)
        left = lambda: set(Delivery.objects.values_list("state", flat=True))  # noqa: E731
        assert retention.forget_old(now=now + retention.DELIVERED_FOR) == 0
        retention.forget_old(now=now + retention.DELIVERED_FOR + timedelta(days=1))
        assert left() == {DeliveryState.DEAD, DeliveryState.PENDING}
        assert take_all("key.created") == 0
        retention.forget_old(now=now + retention.DEAD_FOR + timedelta(days=1))
        assert left() == {DeliveryState.PENDING}
        assert set(Event.objects.values_list("name", flat=True)) == {"tenant.created"}
