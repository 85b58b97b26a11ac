"""The operator's pages: what a store does not answer is said on the page; nobody else sees them."""

import re
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client
from redis import Redis

from contracts.models import ModelCard
from contracts.wire import encode
from controlplane import views
from controlplane.seed import seed_demo
from tenants.models import ApiKey

CARD = ModelCard(
    model="toy-1", pool="toy", repository="example/toy", revision="r1", weights_sha256="ab" * 32, tokenizer_sha256="cd",
    dtype="bfloat16", kv_cache_dtype="fp8", layers=2, heads=4, kv_heads=2, head_size=16, vocabulary=300,
    context_tokens=512, block_tokens=16, engine="vllm", engine_version="0.32.0", created_at_ms=1,
)  # fmt: skip
PAGES = ["/admin/requests/", "/admin/usage/", "/admin/engines/"]


class TestOperatorPages:
    @pytest.mark.parametrize("path", PAGES)
    def test_send_a_stranger_to_the_login(self, path: str, db: None, wired: Redis, client: Client) -> None:
        answer = client.get(path)
        assert (answer.status_code, answer["location"].startswith("/admin/login/")) == (302, True)

    @pytest.mark.parametrize("path", PAGES)
    def test_are_not_for_staff_without_the_permission(self, path: str, db: None, wired: Redis, client: Client) -> None:
        client.force_login(User.objects.create_user("bob", password="another long phrase", is_staff=True))
        assert client.get(path).status_code == 403

    @pytest.mark.parametrize("path", ["/admin/requests/", "/admin/usage/"])
    def test_say_that_usage_cannot_be_read(self, path: str, operator: Client) -> None:
        answer = operator.get(path)
        assert answer.status_code == 200
        assert "Usage cannot be read right now" in answer.content.decode()

    @pytest.mark.parametrize("before", ["x", "%00", "9999", "1:"])
    def test_say_what_is_wrong_with_a_place_in_the_list(self, before: str, operator: Client) -> None:
        answer = operator.get(f"/admin/requests/?before={before}")
        assert answer.status_code == 200
        assert "before" in answer.content.decode()

    def test_show_what_runs_as_it_registered(self, operator: Client, wired: Redis) -> None:
        wired.hset("w:models", "toy-1", encode(CARD))
        wired.set("w:workers:worker-7", b'{"pool": "toy", "state": "ready", "running": 3}')
        page = operator.get("/admin/engines/").content.decode()
        for told in ("toy-1", "vllm 0.32.0", "ab" * 32, "bfloat16 / fp8", "worker-7", "Ready"):
            assert told in page

    def test_say_that_nothing_runs(self, operator: Client) -> None:
        assert "No engine has registered yet" in operator.get("/admin/engines/").content.decode()

    def test_every_link_of_the_sidebar_opens(self, operator: Client) -> None:
        from controlplane.navigation import sidebar

        links = [item["link"] for group in sidebar(None) for item in group["items"]]
        assert len(links) >= 12
        assert {link: operator.get(link).status_code for link in links} == dict.fromkeys(links, 200)


class TestUnknownPaths:
    def test_are_404_in_the_api_s_own_words(self, db: None, wired: Redis, client: Client) -> None:
        answer = client.get("/no/such/path")
        assert answer.status_code == 404
        assert answer.json()["error"] == {
            "message": "No such path: `/no/such/path`", "type": "invalid_request_error",
            "param": "path", "code": "not_found",
        }  # fmt: skip

    def test_the_root_leads_to_the_console(self, db: None, wired: Redis, client: Client) -> None:
        assert client.get("/")["location"] == "/admin/"


class TestLooks:
    def test_the_console_s_name_leads_there_too(self, db: None, wired: Redis, client: Client) -> None:
        answer = client.get("/admin")
        assert (answer.status_code, answer["location"]) == (302, "/admin/")

    @pytest.mark.parametrize(
        "path",
        ["/admin/tenants/tenant/?_to_field=x", f"/admin/tenants/tenant/?{'a=1&' * 1_001}"],
        ids=["field", "many"],
    )
    def test_what_django_does_not_read_is_a_plain_page(self, path: str, operator: Client) -> None:
        answer = operator.get(path)
        assert (answer.status_code, answer["content-type"]) == (400, "text/html; charset=utf-8")
        page = answer.content.decode()
        assert page.startswith("<!doctype html><html lang=en><title>Weir</title>")
        assert "This address, or the form sent to it, cannot be read here." in page
        assert "Bad Request" not in page

    def test_every_instant_names_its_zone(self, operator: Client) -> None:
        seed_demo()
        for path in ("/admin/tenants/apikey/", "/admin/tenants/tenant/", "/admin/billing/priceversion/"):
            page = operator.get(path).content.decode()
            assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page), path
            assert not re.search(r"\d [ap]\.m\.", page), path

    def test_the_list_of_keys_says_when_each_was_used(self, operator: Client) -> None:
        seed_demo()
        key = ApiKey.objects.order_by("id").first()
        assert key is not None
        ApiKey.objects.filter(id=key.id).update(last_used_at=datetime(2027, 1, 15, 12, 30, tzinfo=UTC))
        page = operator.get("/admin/tenants/apikey/").content.decode()
        assert "2027-01-15 12:30:00 UTC" in page
        assert "never" in page

    def test_nothing_spent_is_nothing_of_the_tenants_currency(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seed_demo()
        monkeypatch.setattr(views.usage_reports, "usage_buckets", lambda **asked: SimpleNamespace(buckets=[]))
        monkeypatch.setattr(views.usage_reports, "latency_percentiles", lambda **asked: None)
        page = operator.get("/admin/usage/").content.decode()
        assert page.count("0 USD") == 2

    def test_the_icon_has_the_consoles_colour(self, client: Client) -> None:
        assert 'fill="#9810fa"' in client.get("/favicon.ico").content.decode()

    def test_a_page_that_a_role_does_not_open_says_so_in_the_consoles_frame(
        self, db: None, wired: Redis, client: Client
    ) -> None:
        client.force_login(User.objects.create_user("sue", is_staff=True))
        answer = client.get("/admin/limits/")
        page = answer.content.decode()
        assert answer.status_code == 403
        assert "Your role does not open this page" in page
        assert "My second factor" in page
