"""The console speaks to people: one name for each thing, numbers and moments as a person reads them, no dead ends."""

import asyncio
import html
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command, get_commands
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone
from redis import Redis

from billing.clickhouse.shapes import TimelineStep
from billing.models import PriceVersion
from contracts.wire import encode
from controlplane import views
from controlplane.navigation import GROUPS, items
from controlplane.pages.frame import since
from controlplane.pages.home import CONCERNS, Concern
from controlplane.seed import seed_demo
from safety.models import Policy
from tenants.models import ApiKey, Tenant
from tests.functional.controlplane.test_console import CARD
from workers.registration import Heartbeat

NOW_MS = 1_796_231_757_143
BEAT = Heartbeat(
    worker_id="w-1", pool="toy", model="toy-1", engine="vllm", pid=4711, state="ready", running=3,
    free_kv_tokens=2**40, free_slots=1_061, at_ms=NOW_MS - 3_500, attempt_log_failures=0, evaluation_logs_dropped=0,
)  # fmt: skip


def words(page: str) -> str:
    """What a person reads: the page without its markup."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.S))).strip()


def head(page: str) -> str:
    """The words of the page's h1, its trail."""
    found = re.search(r"<h1.*?</h1>", page, flags=re.S)
    assert found is not None
    return words(found[0]).replace("chevron_right", ">")


def beat(wired: Redis, **changes: Any) -> None:
    document = {name: getattr(replace(BEAT, **changes), name) for name in Heartbeat.__slots__}
    wired.set("w:workers:w-1", orjson.dumps(document))


class TestEngines:
    @pytest.fixture
    def page(self, operator: Client, wired: Redis, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr("controlplane.pages.engines.SystemClock", lambda: Mock(now_ms=lambda: NOW_MS))
        wired.hset("w:models", "toy-1", encode(replace(CARD, context_tokens=8_192)))
        beat(wired)
        return operator.get("/admin/engines/").content.decode()

    def test_are_told_in_words_and_numbers_of_people(self, page: str) -> None:
        told = words(page)
        assert "w-1, process 4711 Ready toy-1 toy vllm 3 1,061 not limited 3 s ago" in told
        assert "Context 8,192 tokens" in told
        for raw in ("free_kv_tokens", "1099511627776", "worker_id", "at_ms", str(NOW_MS - 3_500)):
            assert raw not in page

    def test_name_the_moment_behind_how_long_ago_it_was(self, page: str) -> None:
        assert '<time datetime="2026-12-02T17:15:53.643000+00:00" title="2026-12-02 17:15:53 UTC">3 s ago' in page

    def test_say_what_a_worker_lost_and_what_it_cannot_do(self, operator: Client, wired: Redis) -> None:
        beat(wired, state="engine_down", attempt_log_failures=2, free_kv_tokens=12_345)
        told = words(operator.get("/admin/engines/").content.decode())
        assert "Engine down: its worker starts it again; 2 attempt logs not written" in told
        assert "12,345 tokens" in told

    @pytest.mark.parametrize("raw", [b"{", b"[1]", b"\xff"])
    def test_of_another_release_are_no_error(self, operator: Client, wired: Redis, raw: bytes) -> None:
        wired.set("w:workers:w-9", raw)
        wired.hset("w:models", "odd", b"\x93")
        told = words(operator.get("/admin/engines/").content.decode())
        assert "Written by another release, and not shown: model odd, worker w-9." in told

    @pytest.mark.parametrize(
        ("ms", "said"),
        [(-5, "just now"), (999, "just now"), (3_999, "3 s ago"), (119_000, "119 s ago"), (7_199_000, "119 min ago"),
         (7_200_000, "2 h ago"), (172_800_000, "2 days ago")],
    )  # fmt: skip
    def test_spans_are_rounded_down(self, ms: int, said: str) -> None:
        assert words(since(NOW_MS - ms, now_ms=NOW_MS)) == said


class TestTimeline:
    LINES = (
        "stage=prompt rule=secrets action=block state=ran hits=0 acted=no us=18",
        "stage=prompt rule=cards action=redact state=ran hits=2 acted=yes us=1800",
        "stage=output rule=words action=flag state=ran hits=1 acted=no shadow=block",
        "stage=output rule=slow action=block state=timed_out hits=0 acted=yes",
        "stage=output rule=late action=block state=stopped hits=0 acted=no",
        "a line of another release",
    )

    @pytest.fixture
    def row(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> Any:
        seed_demo()
        key, policy = ApiKey.objects.select_related("project").earliest("id"), Policy.objects.get()
        steps = (
            TimelineStep(step="AUTH", duration_us=None, detail=f"key {key.id} of project {key.project_id}"),
            TimelineStep(step="GUARDRAIL", duration_us=90, detail="; ".join((f"policy {policy.id} v1", *self.LINES))),
        )
        row = Mock(timeline=steps, api_key_id=str(key.id), tenant_id=str(key.tenant_id), prompt_tokens=1_200,
                   cached_tokens=0, completion_tokens=7, delivered_tokens=7, admitted_at_ms=NOW_MS)  # fmt: skip
        for name in ("model", "endpoint", "outcome", "error_code", "finish_reason", "worker_id", "cost_text",
                     "currency", "price_card_id", "log_key"):  # fmt: skip
            setattr(row, name, "")
        monkeypatch.setattr(views.usage_reports, "request_row", lambda **asked: row)
        return row

    def test_says_that_the_budget_ended_it(self, operator: Client, row: Any) -> None:
        row.finish_reason, row.stopped_by = "length", "budget"
        page = operator.get(reverse("request_timeline", args=["0198a000-0000-7000-8000-000000000001"])).content.decode()
        assert "length: no more was affordable" in words(page)

    def test_says_what_each_rule_did(self, operator: Client, row: Any) -> None:
        page = operator.get(reverse("request_timeline", args=["0198a000-0000-7000-8000-000000000001"])).content.decode()
        told = words(page)
        for line in (
            "secrets the prompt block Nothing found 18 µs",
            "cards the prompt redact 2 matches, redacted 1.80 ms",
            "words the answer block (in shadow: only counts) 1 match, passed: in shadow mode",
            "slow the answer block Did not run: it took too long, so the text was held back (fails closed)",
            "late the answer block Stopped: another rule ended the text before this one saw all of it",
            "a line of another release",
            "version 1 of Demo policy : cards redacted; slow blocked",
            "Demo key (…",
            "of project Default",
        ):
            assert line in told
        assert "state=ran" not in page
        assert "stage=prompt" not in page

    def test_leads_only_where_the_reader_may_go(self, client: Client, row: Any) -> None:
        call_command("migrate", verbosity=0)
        user = User.objects.create_user("fin", password="a long pass phrase", is_staff=True)
        user.groups.set([*user.groups.model.objects.filter(name="finance")])
        client.force_login(user)
        page = client.get(reverse("request_timeline", args=["0198a000-0000-7000-8000-000000000001"])).content.decode()
        assert "Demo key (…" in page
        assert "/admin/tenants/apikey/" not in page
        assert "/admin/safety/policy/" not in page


class TestNames:
    def test_every_list_stands_once_on_the_map(self, operator: Client) -> None:
        listed = [item.page for _, item in items() if item.is_list]
        assert sorted(listed) == sorted(model._meta.label_lower for model in admin.site._registry)

    def test_a_page_is_called_what_the_side_bar_calls_it(self, operator: Client) -> None:
        wrong = {}
        for group, item in items():
            said = head(operator.get(item.link).content.decode())
            if said != f"{group} > {item.name}":
                wrong[item.link] = said
        assert wrong == {}

    def test_buttons_and_titles_speak_of_the_same_things(self, operator: Client) -> None:
        assert "Add role" in operator.get("/admin/auth/group/").content.decode()
        user = operator.get(reverse("admin:auth_user_change", args=[User.objects.get().pk])).content.decode()
        assert "Roles" in words(user)
        assert "Groups" not in words(user)

    def test_a_row_keeps_its_own_name(self, operator: Client) -> None:
        seed_demo()
        key = ApiKey.objects.earliest("id")
        ApiKey.objects.filter(id=key.id).update(name="m-acme")
        page = operator.get(reverse("admin:tenants_apikey_change", args=[key.id])).content.decode()
        assert head(page) == f"Customers > API keys > m-acme (…{key.last4})"

    def test_an_open_request_stands_under_its_list(self, operator: Client) -> None:
        seed_demo()
        tenant = Tenant.objects.get(name="Acme")
        page = operator.get(reverse("tenant_limits", args=[tenant.pk])).content.decode()
        assert head(page) == "Traffic > Limits now > Limits of Acme now"

    def test_no_page_names_a_package(self, operator: Client) -> None:
        for path in ("/admin/", "/admin/axes/accesslog/", "/admin/auth/group/"):
            told = words(operator.get(path).content.decode())
            assert "Axes" not in told
            assert "Authentication and Authorization" not in told

    def test_a_packages_own_index_leads_home(self, operator: Client) -> None:
        for app in ("axes", "auth", "billing", "tenants", "webhooks"):
            assert operator.get(f"/admin/{app}/")["location"] == "/admin/"

    def test_no_migration_follows_from_a_name(self, db: None) -> None:
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)


class TestEmptyLists:
    def test_say_what_fills_them(self, operator: Client) -> None:
        silent = {}
        for model, page in admin.site._registry.items():
            name = f"{model._meta.app_label}_{model._meta.model_name}"
            told = words(operator.get(reverse(f"admin:{name}_changelist")).content.decode())
            hint = getattr(page, "empty_hint", "").replace("`", " ")
            if not hint or (model._default_manager.count() == 0 and " ".join(hint.split()) not in told):
                silent[name] = hint
            if "This page yielded into no results" in told:
                silent[name] = "unfold's own words"
        assert silent == {}

    def test_name_commands_that_there_are(self) -> None:
        hints = " ".join(page.empty_hint for page in admin.site._registry.values())
        named = set(re.findall(r"manage\.py (\w+)", hints))
        assert {"close_period", "invoice", "operator", "credit"} <= named <= set(get_commands())

    def test_offer_nothing_that_cannot_be_done(self, operator: Client) -> None:
        page = operator.get("/admin/billing/invoice/").content.decode()
        assert "No invoices yet" in page
        assert "Add invoice" not in page
        assert "<code>manage.py close_period</code>" in page
        assert "Add credit grant" in operator.get("/admin/billing/creditgrant/").content.decode()

    def test_that_a_search_left_empty_say_so(self, operator: Client) -> None:
        told = words(operator.get("/admin/billing/invoice/?q=nothing").content.decode())
        assert "No invoice fits this search" in told
        assert "Reset filters" in told
        assert "No invoices yet" not in told


class TestHome:
    def test_has_the_groups_of_the_side_bar_with_what_each_page_is_for(self, operator: Client) -> None:
        page = operator.get("/admin/").content.decode()
        for group, members in GROUPS.items():
            assert f'id="{group.lower()}"' in page
            assert all(html.escape(item.hint) in page and f'href="{item.link}"' in page for item in members)

    def test_says_what_needs_a_person(self, operator: Client, wired: Redis) -> None:
        seed_demo()
        PriceVersion.objects.create(
            model="m", meter="input", per_million=2, valid_from=datetime(2027, 1, 1, tzinfo=UTC), created_by="user:x"
        )
        told = words(operator.get("/admin/").content.decode())
        assert "A price waits for a second person's approval." in told
        assert "No worker serves" in told
        assert "Workers ready 0 of 0" in told
        assert "Active tenants 2" in told

    @pytest.mark.parametrize("concern", CONCERNS, ids=lambda concern: concern.permission)
    def test_a_concern_leads_to_a_list_that_takes_its_filter(self, operator: Client, concern: Concern) -> None:
        assert concern.count(timezone.now()) == 0
        assert operator.get(reverse(concern.route) + concern.query).status_code == 200

    def test_shows_a_role_its_own_part_only(self, client: Client, db: None, wired: Redis) -> None:
        client.force_login(User.objects.create_user("sue", is_staff=True))
        page = client.get("/admin/").content.decode()
        assert "My second factor" in page
        for foreign in ("Workers ready", "Active tenants", 'id="money"', "needs approval"):
            assert foreign not in page

    def test_says_that_redis_is_away(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        away = Mock(redis="redis://127.0.0.1:1/0")
        monkeypatch.setattr("controlplane.pages.engines.environment", lambda: away)
        answer = operator.get("/admin/")
        assert answer.status_code == 200
        assert "Redis does not answer" in answer.content.decode()


class TestWaysOut:
    def test_nothing_leads_back_to_where_one_is(self, operator: Client, client: Client) -> None:
        page = operator.get("/admin/").content.decode()
        assert "View site" not in page
        assert reverse("api_docs") in page
        assert reverse("admin:password_change") in page
        assert "Return to site" not in Client().get("/admin/login/").content.decode()


class TestStaticFiles:
    """A warning is an error in these tests: the one of a file that is streamed under ASGI is the fault itself."""

    PATH = "/static/controlplane/console.css"

    def test_are_whole_under_asgi_without_a_warning(self, wired: Redis) -> None:
        async def fetch() -> tuple[int, str, bytes]:
            answer = await AsyncClient().get(self.PATH)
            body = b"".join([part async for part in answer]) if answer.streaming else answer.content
            return answer.status_code, answer["content-type"], body

        status, kind, body = asyncio.run(fetch())
        assert (status, kind) == (200, 'text/css; charset="utf-8"')
        assert b".weir-page" in body

    def test_keep_what_whitenoise_answers(self, wired: Redis, client: Client) -> None:
        whole = client.get(self.PATH)
        assert int(whole["content-length"]) == len(whole.content)
        part = client.get(self.PATH, headers={"range": "bytes=0-9"})
        assert (part.status_code, part.content) == (206, whole.content[:10])
        known = client.get(self.PATH, headers={"if-none-match": whole["etag"]})
        assert (known.status_code, known.content) == (304, b"")
        assert client.head(self.PATH).content == b""
        assert client.post(self.PATH).status_code == 405
