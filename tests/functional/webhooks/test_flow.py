"""From a change to a signed request: fan-out, tries, dead letters, replays, switching off. Real stores, real HTTP."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone
from pytest_django import Settings
from standardwebhooks.webhooks import Webhook

from tenants import events, tasks
from tenants.models import AuditEntry, OutboxEvent, new_id
from tenants.webhooks import consumer, dispatch, fanout, retention, retries, services, signing
from tenants.webhooks.destination import Rules
from tenants.webhooks.models import Attempt, Delivery, Endpoint, EndpointSecret, Event
from tenants.webhooks.transport import Answer, Sender
from tests.functional.tenants.api import manager
from tests.functional.tenants.conftest import Customer
from tests.functional.webhooks.receivers import Receiver, status

pytestmark = pytest.mark.django_db
TakeAll = Callable[[str], int]
NOON = datetime(2027, 1, 15, 12, tzinfo=UTC)


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


class TestFanOut:
    def test_makes_one_delivery_however_often_an_event_comes(self, hook: Endpoint, take_all: TakeAll) -> None:
        assert take_all("key.created") == 1
        assert take_all("key.created") == 0
        delivery = Delivery.objects.get(event__name="key.created")
        body = json.loads(delivery.event.body)
        assert body["type"] == "key.created"
        assert body["data"]["after"]["name"] == "first"
        assert "address" not in body["data"]

    def test_goes_to_the_events_own_tenant_and_by_filter(
        self, hook: Endpoint, mallory: Customer, take_all: TakeAll
    ) -> None:
        url = "https://hooks.example.com/"
        other = services.create_endpoint(tenant=mallory.tenant, url=url)[0]
        keys = services.create_endpoint(tenant=hook.tenant, url=url, events=["key.*"])[0]
        nothing = services.create_endpoint(tenant=hook.tenant, url=url, events=["member.added"])[0]
        take_all("key.created")
        take_all("project.created")
        got = {
            row: sorted(Delivery.objects.filter(endpoint=row).values_list("event__name", flat=True))
            for row in (hook, other, keys, nothing)
        }
        both = ["key.created", "project.created"]
        assert got == {hook: both, other: both, keys: ["key.created"], nothing: []}
        assert {(row.tenant_id, row.event.tenant_id) for row in other.deliveries.select_related("event")} == {
            (mallory.tenant.id, mallory.tenant.id)
        }

    def test_leaves_out_events_of_no_tenant_and_endpoints_that_are_off(self, hook: Endpoint, take_all: TakeAll) -> None:
        assert take_all("plan.created") == 0
        services.disable(endpoint=hook)
        assert take_all("key.created") == 0
        assert Event.objects.filter(name="key.created").count() == 1

    def test_an_event_with_a_foreign_or_absent_tenant_makes_nothing(self, hook: Endpoint) -> None:
        message = {"id": str(new_id()), "name": "key.created", "happened_at": NOON.isoformat()}
        assert fanout.fan_out({**message, "tenant_id": str(new_id())}) == 0
        assert Event.objects.count() == 0


class FakeMessage:
    """kombu's message as the consumer sees it."""

    def __init__(self, routing_key: str = "key.created") -> None:
        self.delivery_info = {"routing_key": routing_key}
        self.fate = ""

    def ack(self) -> None:
        self.fate = "ack"

    def reject(self) -> None:
        self.fate = "reject"

    def requeue(self) -> None:
        self.fate = "requeue"


class TestConsumer:
    def test_drops_what_cannot_be_read(self, hook: Endpoint) -> None:
        tenant = str(hook.tenant_id)
        for body in ("text", None, 3, {"tenant_id": tenant}, {"tenant_id": tenant, "id": "x", "name": "y"}):
            message = FakeMessage()
            consumer.take(body, message)
            assert message.fate == "reject"

    def test_leaves_usage_to_the_reports(self, hook: Endpoint) -> None:
        message = FakeMessage("usage.recorded")
        consumer.take({"anything": 1}, message)
        assert message.fate == "ack"

    def test_gives_a_message_back_while_the_database_is_away(
        self, hook: Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(message: object) -> int:
            raise DatabaseError

        monkeypatch.setattr(consumer, "fan_out", away)
        monkeypatch.setattr(consumer, "PAUSE_SECONDS", 0)
        message = FakeMessage()
        consumer.take({}, message)
        assert message.fate == "requeue"


class TestDelivery:
    def test_arrives_signed_and_is_written_down(
        self, hook: Endpoint, there: Receiver, sender: Sender, take_all: TakeAll
    ) -> None:
        secret = services.rotate_secret(endpoint=hook)
        take_all("key.created")
        assert dispatch.run(sender=sender) == 1
        [(headers, body)] = there.arrived
        told = Webhook(secret).verify(body, headers)
        delivery = Delivery.objects.get()
        assert told["type"] == "key.created"
        assert headers["webhook-id"] == str(delivery.event_id) == told["data"]["id"]
        assert (
            delivery.state,
            delivery.attempts,
            delivery.response_status,
            delivery.response_body,
            delivery.error,
        ) == (
            "delivered",
            1,
            200,
            "thanks",
            "",
        )
        hook.refresh_from_db()
        assert hook.last_success_at is not None
        assert dispatch.run(sender=sender) == 0

    def test_a_slow_endpoint_does_not_take_every_place(self, hook: Endpoint, sender: Sender) -> None:
        for name in ("tenant.created", "project.created", "key.created", "webhook.created"):
            for row in OutboxEvent.objects.filter(name=name):
                fanout.fan_out(events.message_of(row))
        for number in range(3):
            event = Event.objects.create(
                id=new_id(), tenant=hook.tenant, name="key.created", body="{}", happened_at=NOON
            )
            Delivery.objects.create(
                tenant=hook.tenant, endpoint=hook, event=event, next_attempt_at=NOON + timedelta(seconds=number)
            )
        now = timezone.now() + timedelta(days=365)
        claimed = dispatch.claim(most=3, now=now) + dispatch.claim(most=32, now=now)
        assert len(claimed) == dispatch.PER_ENDPOINT
        assert dispatch.claim(most=32, now=now) == []
        dispatch.finish(claimed[0], answer(500), now=now, dice=lambda: 0.5)
        assert len(dispatch.claim(most=32, now=now)) == 1

    def test_a_claim_is_nobody_elses_until_its_lease_ends(self, hook: Endpoint, take_all: TakeAll) -> None:
        take_all("key.created")
        now = timezone.now()
        [first] = dispatch.claim(most=9, now=now)
        assert dispatch.claim(most=9, now=now + dispatch.LEASE - timedelta(seconds=1)) == []
        [second] = dispatch.claim(most=9, now=now + dispatch.LEASE)
        assert (first.attempt, second.attempt, first.delivery_id) == (1, 2, second.delivery_id)
        # The first worker lives after all: what it says is of a lease that ended.
        dispatch.finish(first, answer(500), now=now, dice=lambda: 0.5)
        assert Delivery.objects.get().response_status is None
        dispatch.finish(second, answer(204), now=now, dice=lambda: 0.5)
        dispatch.finish(second, answer(500), now=now, dice=lambda: 0.5)
        assert Delivery.objects.get().state == "delivered"

    def test_backs_off_and_becomes_a_dead_letter_after_twelve_tries(self, hook: Endpoint, take_all: TakeAll) -> None:
        take_all("key.created")
        delivery, now = Delivery.objects.get(), timezone.now()
        for number in range(1, retries.TRIES_MAX):
            fail_once(delivery, now=now)
            assert delivery.state == "pending"
            assert delivery.next_attempt_at == now + retries.BASE * 2 ** (number - 1) * 0.5
        fail_once(delivery, now=now)
        assert (delivery.state, delivery.attempts, delivery.error) == ("dead", 12, "The endpoint answered 500.")
        assert dispatch.claim(most=9, now=now + timedelta(days=9)) == []

    def test_a_worker_that_dies_at_the_last_try_leaves_a_dead_letter(self, hook: Endpoint, take_all: TakeAll) -> None:
        take_all("key.created")
        now = timezone.now()
        Delivery.objects.update(attempts=retries.TRIES_MAX, next_attempt_at=now)
        assert dispatch.claim(most=9, now=now) == []
        assert (Delivery.objects.get().state, Delivery.objects.get().error) == ("dead", "The last try was cut off.")

    def test_heeds_retry_after_and_says_that_redirects_are_not_followed(
        self, hook: Endpoint, take_all: TakeAll
    ) -> None:
        take_all("key.created")
        delivery, now = Delivery.objects.get(), timezone.now()
        fail_once(delivery, 429, now=now, retry_after_s=600)
        assert delivery.next_attempt_at == now + timedelta(seconds=600)
        fail_once(delivery, 302, now=now)
        assert delivery.error == "Redirects are not followed."
        fail_once(delivery, None, now=now, error="The host has no public address.")
        assert (delivery.response_status, delivery.error) == (None, "The host has no public address.")

    def test_a_private_destination_is_refused_at_the_connection_too(
        self, hook: Endpoint, there: Receiver, take_all: TakeAll, settings: Settings
    ) -> None:
        """The URL was taken while loopback was allowed; the switch is off again."""
        settings.ENV = settings.ENV.model_copy(update={"webhooks_loopback": False})
        take_all("key.created")
        assert dispatch.run() == 1
        assert there.arrived == []
        assert Delivery.objects.get().error == "This host is not public."

    def test_another_root_secret_is_said_and_sends_nothing(
        self, hook: Endpoint, there: Receiver, sender: Sender, take_all: TakeAll
    ) -> None:
        EndpointSecret.objects.update(sealed=signing.seal(signing.mint(), key=b"x" * 32, endpoint_id=hook.id))
        take_all("key.created")
        assert dispatch.run(sender=sender) == 1
        assert there.arrived == []
        assert Delivery.objects.get().error == "The signing secret cannot be opened; rotate it."

    def test_a_mistake_of_ours_stops_nothing_else(
        self, hook: Endpoint, there: Receiver, take_all: TakeAll, caplog: pytest.LogCaptureFixture
    ) -> None:
        take_all("key.created")
        take_all("project.created")
        broken = Delivery.objects.get(event__name="key.created")

        class Mistaken(Sender):
            async def send(self, *, url: str, headers: Any, body: bytes) -> Answer:
                if headers["webhook-id"] == str(broken.event_id):
                    raise ZeroDivisionError
                return await super().send(url=url, headers=headers, body=body)

        assert dispatch.run(sender=Mistaken(rules=Rules(loopback=True))) == 2
        states = dict(Delivery.objects.values_list("event__name", "state"))
        assert states == {"key.created": "pending", "project.created": "delivered"}
        assert "ZeroDivisionError" in caplog.text


class TestReplay:
    def test_sends_the_same_bytes_under_the_same_id_again(
        self, hook: Endpoint, there: Receiver, sender: Sender, take_all: TakeAll
    ) -> None:
        there.behave = status(500)
        take_all("key.created")
        delivery = Delivery.objects.get()
        Delivery.objects.update(attempts=retries.TRIES_MAX - 1)
        dispatch.run(sender=sender)
        delivery.refresh_from_db()
        assert delivery.state == "dead"
        there.behave = status(200)
        assert services.replay_dead(endpoint=hook) == 1
        assert services.replay_dead(endpoint=hook) == 0
        dispatch.run(sender=sender)
        delivery.refresh_from_db()
        assert (delivery.state, delivery.attempts, delivery.replays) == ("delivered", 1, 1)
        (first, body), (second, body_again) = there.arrived
        assert body == body_again
        assert first["webhook-id"] == second["webhook-id"]
        assert OutboxEvent.objects.get(name="webhook.replayed").body["after"] == {"deliveries": 1}

    def test_one_delivered_can_be_sent_again_and_one_that_waits_is_left(
        self, hook: Endpoint, take_all: TakeAll
    ) -> None:
        take_all("key.created")
        delivery, now = Delivery.objects.get(), timezone.now()
        services.replay(delivery=delivery)
        assert delivery.replays == 0
        fail_once(delivery, 200, now=now)
        services.replay(delivery=delivery)
        assert (delivery.state, delivery.replays) == ("pending", 1)

    def test_wants_an_endpoint_that_is_on(self, hook: Endpoint, take_all: TakeAll) -> None:
        take_all("key.created")
        services.disable(endpoint=hook)
        for act in (
            lambda: services.replay(delivery=Delivery.objects.get()),
            lambda: services.replay_dead(endpoint=hook),
            lambda: services.send_test(endpoint=hook),
        ):
            with pytest.raises(ValidationError, match="switched off"):
                act()


class TestSwitchingOff:
    def failing(self, hook: Endpoint, *, failures: int, since: timedelta) -> Endpoint:
        Endpoint.objects.filter(id=hook.id).update(failures=failures, failing_since=timezone.now() - since)
        fail_once(Delivery.objects.get(event__name="key.created"), now=timezone.now())
        hook.refresh_from_db()
        return hook

    def test_an_endpoint_that_fails_for_long_is_switched_off_and_says_so(
        self, hook: Endpoint, take_all: TakeAll
    ) -> None:
        take_all("key.created")
        take_all("project.created")
        assert self.failing(hook, failures=18, since=timedelta(days=4)).enabled
        self.failing(hook, failures=19, since=timedelta(days=4))
        assert (hook.enabled, hook.disabled_reason) == (False, "failing")
        assert set(Delivery.objects.values_list("state", flat=True)) == {"dead"}
        told = OutboxEvent.objects.get(name="webhook.disabled")
        assert told.body["after"]["reason"] == "failing"
        assert told.body["after"]["failures"] == 20

    def test_is_undone_with_a_clean_record_and_the_dead_letters_go_out(
        self, hook: Endpoint, there: Receiver, sender: Sender, take_all: TakeAll
    ) -> None:
        take_all("key.created")
        self.failing(hook, failures=19, since=timedelta(days=4))
        on = services.enable(endpoint=hook)
        assert (on.enabled, on.failures, on.failing_since, on.disabled_reason) == (True, 0, None, "")
        assert services.replay_dead(endpoint=on) == 1
        assert dispatch.run(sender=sender) == 1
        assert len(there.arrived) == 1
        assert OutboxEvent.objects.filter(name="webhook.enabled").count() == 1

    def test_gone_means_gone_at_once(self, hook: Endpoint, take_all: TakeAll) -> None:
        take_all("key.created")
        fail_once(Delivery.objects.get(), 410, now=timezone.now())
        hook.refresh_from_db()
        assert (hook.enabled, hook.disabled_reason, Delivery.objects.get().state) == (False, "gone", "dead")

    def test_a_success_forgets_the_failures(self, hook: Endpoint, take_all: TakeAll) -> None:
        take_all("key.created")
        delivery, now = Delivery.objects.get(), timezone.now()
        fail_once(delivery, now=now)
        hook.refresh_from_db()
        assert (hook.failures, hook.failing_since) == (1, now)
        fail_once(delivery, 200, now=now)
        hook.refresh_from_db()
        assert (hook.failures, hook.failing_since, hook.last_success_at) == (0, None, now)


class TestWhatTheExchangeLost:
    def test_is_fanned_out_and_audited_from_the_outbox(self, hook: Endpoint) -> None:
        now = timezone.now()
        OutboxEvent.objects.update(sent_at=now)  # the broker said yes, and lost its last second
        assert fanout.sweep_lost(now=now) == 0
        later = now + timedelta(minutes=2)
        of_tenants = OutboxEvent.objects.exclude(tenant_id=None).count()
        assert fanout.sweep_lost(now=later) == of_tenants
        assert fanout.sweep_lost(now=later) == 0
        assert Delivery.objects.filter(endpoint=hook).count() == of_tenants
        assert events.keep_lost(now=later) == OutboxEvent.objects.count() == AuditEntry.objects.count()
        assert events.keep_lost(now=later) == 0

    def test_old_outbox_rows_are_dropped_once_sent(self, hook: Endpoint) -> None:
        now = timezone.now()
        OutboxEvent.objects.filter(name="key.created").update(sent_at=now)
        total = OutboxEvent.objects.count()
        assert events.forget_sent(now=now + timedelta(days=29)) == 0
        assert events.forget_sent(now=now + timedelta(days=31)) == 1
        assert OutboxEvent.objects.count() == total - 1


class TestRelay:
    @pytest.mark.django_db(transaction=True)
    def test_reaches_the_webhook_queue_in_the_order_of_the_outbox(self, hook: Endpoint) -> None:
        written = [str(row) for row in OutboxEvent.objects.order_by("id").values_list("id", flat=True)]
        assert tasks.relay_outbox() == len(written)
        arrived = []
        with events.open_broker() as connection:
            queue = events.WEBHOOK_QUEUE.bind(connection.default_channel)
            while (message := queue.get(accept=["json"])) is not None:
                arrived.append(message.decode()["id"])
                message.ack()
        assert arrived == written

    @pytest.mark.django_db(transaction=True)
    def test_one_relay_works_at_a_time(self, hook: Endpoint) -> None:
        from django.db import connections, transaction

        other = connections["default"].copy()
        try:
            with other.cursor() as cursor, transaction.atomic(), events.open_broker() as broker:
                cursor.execute("BEGIN")
                cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [events._RELAY_LOCK])
                assert events.relay(broker) == 0
                cursor.execute("COMMIT")
                assert events.relay(broker) > 0
        finally:
            other.close()


class TestHistory:
    def made(self, hook: Endpoint) -> Delivery:
        return services.send_test(endpoint=hook)

    def test_keeps_each_try_with_what_came_of_it(self, hook: Endpoint) -> None:
        delivery = self.made(hook)
        for turn, code in enumerate((500, None, 302)):
            fail_once(
                delivery, code, now=NOON + timedelta(hours=turn), error="" if code else "The name has no address."
            )
        Delivery.objects.filter(id=delivery.id).update(next_attempt_at=NOON)
        [job] = dispatch.claim(most=1, now=NOON + timedelta(hours=3))
        dispatch.finish(job, answer(204), now=NOON + timedelta(hours=3), dice=lambda: 0.5)
        kept = [(row.replay, row.number, row.response_status, row.error) for row in delivery.history.order_by("id")]
        assert kept == [
            (0, 1, 500, "The endpoint answered 500."),
            (0, 2, None, "The name has no address."),
            (0, 3, 302, "Redirects are not followed."),
            (0, 4, 204, ""),
        ]
        assert {row.tenant_id for row in delivery.history.all()} == {hook.tenant_id}

    def test_tells_a_replay_from_the_first_round(self, hook: Endpoint) -> None:
        delivery = fail_once(self.made(hook), 410, now=NOON)
        hook.refresh_from_db()
        services.enable(endpoint=hook)
        services.replay(delivery=delivery)
        fail_once(delivery, 500, now=NOON + timedelta(hours=1))
        assert [(row.replay, row.number) for row in delivery.history.order_by("id")] == [(0, 1), (1, 1)]

    def test_of_a_delivery_is_bounded_and_keeps_the_newest(
        self, hook: Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dispatch, "ATTEMPTS_KEPT", 2)
        delivery = self.made(hook)
        for turn in range(4):
            fail_once(delivery, 500, now=NOON + timedelta(hours=turn))
        assert sorted(row.number for row in delivery.history.all()) == [3, 4]

    def test_says_nothing_of_a_try_whose_lease_another_took_over(self, hook: Endpoint) -> None:
        delivery = self.made(hook)
        Delivery.objects.filter(id=delivery.id).update(next_attempt_at=NOON)
        [late] = dispatch.claim(most=1, now=NOON)
        fail_once(delivery, 500, now=NOON + timedelta(hours=1))
        dispatch.finish(late, answer(200), now=NOON + timedelta(hours=2), dice=lambda: 0.5)
        assert [(row.number, row.response_status) for row in delivery.history.all()] == [(2, 500)]

    def test_goes_with_its_delivery(self, hook: Endpoint) -> None:
        delivery = fail_once(self.made(hook), 410, now=NOON)
        assert delivery.history.count() == 1
        retention.forget_old(now=NOON + retention.DEAD_FOR + timedelta(seconds=1))
        assert not Attempt.objects.exists()
        assert not Delivery.objects.filter(id=delivery.id).exists()

    def test_is_read_by_the_api_and_the_console_and_moves_no_etag(self, hook: Endpoint, acme: Customer) -> None:
        api = manager(acme)
        delivery = self.made(hook)
        api("get", f"webhooks/{hook.id}")
        before = api.last["ETag"]
        fail_once(delivery, 500, now=NOON)
        hook.refresh_from_db()
        assert hook.failures == 1
        status, shown = api("get", f"webhooks/{hook.id}")
        assert (status, shown["failures"], api.last["ETag"]) == (200, 1, before)
        status, page = api("get", f"webhooks/attempts?delivery={delivery.id}")
        assert (status, [(row["number"], row["response_status"]) for row in page["data"]]) == (200, [(1, 500)])
        assert api("get", f"webhooks/attempts?delivery={new_id()}")[1]["data"] == []
        console = Client()
        console.force_login(User.objects.create_superuser("root"))
        page = console.get(f"/admin/webhooks/delivery/{delivery.id}/change/")
        assert page.status_code == 200
        assert "The endpoint answered 500." in page.content.decode()
