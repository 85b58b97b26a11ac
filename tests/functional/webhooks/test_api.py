"""The webhook API as a program sees it."""

import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import ProgrammingError, connection, transaction
from django.test import Client
from django.utils import timezone
from redis import Redis

from tenants.models import OutboxEvent
from tenants.row_scope import as_tenant
from tenants.webhooks import dispatch, retries, selectors, services
from tenants.webhooks.models import Delivery, Endpoint, EndpointSecret
from tenants.webhooks.transport import Answer
from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]
URL = "https://hooks.example.com/in"


@pytest.fixture
def acme_api(acme: Customer) -> Api:
    return manager(acme)


def made(api: Api, **more: object) -> dict[str, str]:
    status, body = api("post", "webhooks", {"url": URL, **more})
    assert status == 201, body
    return body


def die(delivery_id: str) -> None:
    """The delivery's last try fails."""
    now = timezone.now()
    Delivery.objects.filter(id=delivery_id).update(attempts=retries.TRIES_MAX - 1)
    [job] = dispatch.claim(most=1, now=now)
    failed = Answer(status=500, body="no", error="", latency_ms=1)
    dispatch.finish(job, failed, now=now, dice=lambda: 0.5)


class TestEndpoints:
    def test_are_made_with_a_secret_that_is_shown_once(self, acme: Customer, acme_api: Api) -> None:
        body = made(acme_api, events=["key.*"], description="ours")
        assert body["secret"].startswith("whsec_")
        assert acme_api.last["Cache-Control"] == "no-store"
        assert (body["tenant"], body["enabled"], body["failures"]) == (str(acme.tenant.id), True, 0)
        status, read = acme_api("get", f"webhooks/{body['id']}")
        assert status == 200
        assert "secret" not in read
        assert body["secret"] not in json.dumps(acme_api("get", "webhooks")[1])
        told = OutboxEvent.objects.get(name="webhook.created")
        assert told.body["actor"].startswith("key:…")
        assert body["secret"] not in json.dumps(told.body)

    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"url": "http://hooks.example.com/"}, "url"),
            ({"url": "https://169.254.169.254/latest/"}, "url"),
            ({"url": "https://localhost/"}, "url"),
            ({"url": 3}, "url"),
            ({"url": "https://hooks.example.com/\u0000"}, "url"),
            ({"events": []}, "events"),
            ({"events": ["kye.revoked"]}, "events"),
            ({"events": "key.*"}, "events"),
            ({"description": "x" * 201}, "description"),
            ({"secret": "whsec_mine"}, "secret"),
        ],
    )
    def test_refuse_what_cannot_work_by_name(self, acme_api: Api, change: dict[str, object], param: str) -> None:
        status, body = acme_api("post", "webhooks", {"url": URL, **change})
        assert (status, body["error"]["param"].split(".")[0]) == (400, param)
        assert not Endpoint.objects.exists()

    def test_are_changed_switched_and_deleted(self, acme_api: Api) -> None:
        path = f"webhooks/{made(acme_api)['id']}"
        assert acme_api("patch", path, {"description": "x"})[0] == 428
        status, body = acme_api.change(path, {"url": "https://hooks.example.com/other", "events": ["key.revoked"]})
        assert (status, body["url"], body["events"]) == (200, "https://hooks.example.com/other", ["key.revoked"])
        status, body = acme_api("post", f"{path}/disable", {})
        assert (status, body["enabled"], body["disabled_reason"]) == (200, False, "person")
        status, refused = acme_api("post", f"{path}/test", {})
        assert (status, refused["error"]["param"], refused["error"]["code"]) == (409, None, "conflict")
        assert [row["id"] for row in acme_api("get", "webhooks?state=off")[1]["data"]] == [body["id"]]
        status, body = acme_api("post", f"{path}/enable", {})
        assert (status, body["enabled"], body["disabled_reason"]) == (200, True, "")
        assert acme_api("delete", path)[0] == 204
        assert acme_api("get", path)[0] == 404

    def test_a_retry_of_the_creation_makes_one(self, acme_api: Api) -> None:
        first = acme_api("post", "webhooks", {"url": URL}, idempotency_key="one")
        again = acme_api("post", "webhooks", {"url": URL}, idempotency_key="one")
        assert first == again
        assert Endpoint.objects.count() == 1

    def test_rotation_overlaps(self, acme_api: Api) -> None:
        body = made(acme_api)
        status, rotated = acme_api("post", f"webhooks/{body['id']}/rotate-secret", {"overlap_hours": 2})
        assert status == 201
        endpoint, now = Endpoint.objects.get(), timezone.now()
        assert selectors.secrets_of(endpoint, now=now) == [rotated["secret"], body["secret"]]
        assert selectors.secrets_of(endpoint, now=now + timedelta(hours=3)) == [rotated["secret"]]
        assert acme_api("post", f"webhooks/{body['id']}/rotate-secret", {"overlap_hours": 169})[0] == 400

    def test_events_are_listed(self, acme_api: Api) -> None:
        status, rows = acme_api("get", "webhooks/events")
        assert status == 200
        names = {row["name"] for row in rows}
        assert {"key.revoked", "tenant.suspended", "webhook.disabled"} <= names
        assert "plan.changed" not in names
        status, refused = acme_api("get", "webhooks/events?zzz=1")
        assert (status, refused["error"]["param"], refused["error"]["code"]) == (400, "zzz", "unknown_parameter")

    def test_viewers_read_and_developers_change(self, acme: Customer, acme_api: Api) -> None:
        path = f"webhooks/{made(acme_api)['id']}"
        viewer, developer = member(acme, "viewer"), member(acme, "developer")
        assert viewer("get", path)[0] == 200
        assert viewer("post", f"{path}/test", {})[0] == 403
        assert developer("post", f"{path}/test", {})[0] == 202


class TestDeliveries:
    def test_a_test_event_then_a_dead_letter_then_a_replay(self, acme_api: Api) -> None:
        hook = made(acme_api)
        status, sent = acme_api("post", f"webhooks/{hook['id']}/test", {})
        assert (status, sent["event"], sent["state"], sent["endpoint"]) == (202, "webhook.test", "pending", hook["id"])
        die(sent["id"])
        status, listed = acme_api("get", f"webhooks/deliveries?state=dead&endpoint={hook['id']}&event=webhook.test")
        assert status == 200
        [row] = listed["data"]
        assert (row["id"], row["response_status"], row["response_body"]) == (sent["id"], 500, "no")
        assert acme_api("post", f"webhooks/{hook['id']}/replay", {}) == (202, {"replayed": 1})
        assert acme_api("get", "webhooks/deliveries?state=dead")[1]["data"] == []
        die(sent["id"])
        status, again = acme_api("post", f"webhooks/deliveries/{sent['id']}/replay", {})
        assert (status, again["state"], again["replays"]) == (202, "pending", 2)

    def test_over_ten_tests_a_minute_wait(self, acme_api: Api) -> None:
        path = f"webhooks/{made(acme_api)['id']}/test"
        assert {acme_api("post", path, {})[0] for _ in range(services.TESTS_PER_MINUTE)} == {202}
        status, body = acme_api("post", path, {})
        assert (status, body["error"]["type"]) == (429, "rate_limit_error")

    def test_filters_are_strict(self, acme_api: Api) -> None:
        for query in ("state=lost", "event=kye.revoked", "endpoint=7", "unknown=1"):
            status, body = acme_api("get", f"webhooks/deliveries?{query}")
            assert (status, body["error"]["param"]) == (400, query.split("=")[0])


class TestTenantsApart:
    def test_a_foreign_id_is_not_there(self, acme_api: Api, mallory: Customer) -> None:
        theirs = manager(mallory)
        hook = made(theirs)
        sent = theirs("post", f"webhooks/{hook['id']}/test", {})[1]
        path = f"webhooks/{hook['id']}"
        for method, place in (
            ("get", path),
            ("patch", path),
            ("delete", path),
            *(("post", f"{path}/{act}") for act in ("test", "enable", "disable", "replay", "rotate-secret")),
            ("get", f"webhooks/deliveries/{sent['id']}"),
            ("post", f"webhooks/deliveries/{sent['id']}/replay"),
        ):
            body = None if method in ("get", "delete") else {}
            assert acme_api(method, place, body)[0] == 404, place
        assert acme_api("post", "webhooks", {"url": URL, "tenant": str(mallory.tenant.id)})[0] == 404
        assert acme_api("get", f"webhooks/deliveries?endpoint={hook['id']}")[1]["data"] == []
        assert Endpoint.objects.get().tenant_id == mallory.tenant.id

    def test_the_database_itself_keeps_them_apart(self, acme: Customer, acme_api: Api, mallory: Customer) -> None:
        for api in (acme_api, manager(mallory)):
            api("post", f"webhooks/{made(api)['id']}/test", {})
        tables = [model._meta.db_table for model in (Endpoint, EndpointSecret, Delivery)] + ["webhooks_event"]
        with transaction.atomic(), as_tenant(acme.tenant.id), connection.cursor() as cursor:
            for table in tables:
                cursor.execute(f"SELECT tenant_id FROM {table}")
                assert cursor.fetchall() == [(acme.tenant.id,)], table
        with (
            pytest.raises(ProgrammingError, match="row-level security"),
            transaction.atomic(),
            as_tenant(acme.tenant.id),
        ):
            Endpoint.objects.create(tenant=mallory.tenant, url=URL)


class TestConsole:
    @pytest.fixture
    def operator(self, client: Client) -> Client:
        client.force_login(User.objects.create_superuser("ada", password="x"))
        return client

    def test_makes_a_webhook_and_shows_its_secret_once(self, operator: Client, acme: Customer, wired: Redis) -> None:
        form = {"tenant": str(acme.tenant.id), "url": URL, "events": "key.*,member.added", "description": ""}
        answer = operator.post("/admin/webhooks/endpoint/add/", form)
        assert answer.status_code == 200, answer.content.decode()[:2000]
        [secret] = selectors.secrets_of(Endpoint.objects.get(), now=timezone.now())
        assert secret in answer.content.decode()
        assert "no-store" in answer["Cache-Control"]
        endpoint = Endpoint.objects.get()
        assert endpoint.events == ["key.*", "member.added"]
        for page in ("/admin/webhooks/endpoint/", f"/admin/webhooks/endpoint/{endpoint.id}/change/"):
            shown = operator.get(page)
            assert shown.status_code == 200
            assert secret not in shown.content.decode()

    def test_says_what_cannot_be(self, operator: Client, acme: Customer) -> None:
        form = {"tenant": str(acme.tenant.id), "url": "https://10.0.0.1/", "events": "*", "description": ""}
        answer = operator.post("/admin/webhooks/endpoint/add/", form, follow=True)
        assert "an address is not accepted" in answer.content.decode()
        assert not Endpoint.objects.exists()

    def test_changes_switches_tests_and_replays(self, operator: Client, acme: Customer) -> None:
        hook, _ = services.create_endpoint(tenant=acme.tenant, url=URL)

        def act(name: str, model: str = "endpoint", row: object = hook.id) -> str:
            data = {"action": name, "_selected_action": str(row)}
            return operator.post(f"/admin/webhooks/{model}/", data, follow=True).content.decode()

        change = {"url": f"{URL}/2", "events": "*", "description": "new"}
        assert operator.post(f"/admin/webhooks/endpoint/{hook.id}/change/", change).status_code == 302
        assert OutboxEvent.objects.get(name="webhook.changed").body["actor"] == "user:ada"
        assert "1 test events are sent" in act("send_test")
        delivery = Delivery.objects.get()
        die(str(delivery.id))
        page = operator.get("/admin/webhooks/delivery/?state__exact=dead").content.decode()
        assert "webhook.test" in page
        assert operator.get(f"/admin/webhooks/delivery/{delivery.id}/change/").status_code == 200
        assert "1 deliveries are replayed" in act("replay", "delivery", delivery.id)
        die(str(delivery.id))
        assert "1 webhooks are replayed" in act("replay_dead")
        assert "1 webhooks are off" in act("switch_off")
        assert "switched off; switch it on first" in act("send_test")
        assert "1 webhooks are on" in act("switch_on")
        assert "1 webhooks deleted" in act("remove")
        assert not selectors.endpoints().exists()
