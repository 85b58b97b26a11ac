"""Limits as they stand, and why a request was refused."""

import asyncio
import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse
from redis import Redis

from contracts.errors import InvalidRequest
from contracts.tenancy import Metric
from controlplane.pages.limits import duration
from controlplane.pages.refusals import bare
from controlplane.seed import seed_demo
from gateway.refusals import Refusals
from stores.redis import open_redis
from stores.system import SystemClock, mint_request_id
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldRequest
from tenants.models import ApiKey, Tenant
from tenants.selectors import epochs, load_context
from tenants.services import set_limits


@pytest.fixture
def acme(db: None, wired: Redis) -> Tenant:
    seed_demo()
    return Tenant.objects.get(name="Acme")


@pytest.fixture
def key(acme: Tenant) -> ApiKey:
    return ApiKey.objects.get(tenant=acme)


def text_of(page: str) -> str:
    """The page's words."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def hold(url: str, key: ApiKey, *, prompt: int, output: int) -> None:
    """One request under way."""
    context = load_context([key.digest])
    assert context is not None
    known, tenant_epoch = epochs(str(key.tenant_id))

    async def run() -> None:
        redis = open_redis(url)
        limits = Limits(redis)
        await limits.set_epochs(tenant_id=context.tenant_id, keys=known, tenant_epoch=tenant_epoch)
        await limits.hold(
            HoldRequest(
                request_id=mint_request_id(), tenant_id=context.tenant_id, project_id=context.project_id,
                api_key_id=context.api_key_id, key_epoch=context.key_epoch, tenant_epoch=context.tenant_epoch,
                limits=context.limits, prompt_tokens=prompt, output_tokens_max=output, cost_max_nano=25_000_000,
                currency="USD", timezone="UTC", enqueue_deadline_ms=SystemClock().now_ms() + 30_000,
            )
        )  # fmt: skip
        await redis.aclose(close_connection_pool=True)

    asyncio.run(run())


class TestLimitsNow:
    def test_lead_from_the_list_over_the_tenant_to_its_key(self, operator: Client, acme: Tenant, key: ApiKey) -> None:
        assert reverse("tenant_limits", args=[acme.pk]) in operator.get(reverse("limits")).content.decode()
        admin_page = operator.get(reverse("admin:tenants_tenant_change", args=[acme.pk])).content.decode()
        assert "limits-now" in admin_page
        for model, pk, name in (("tenant", acme.pk, "tenant_limits"), ("apikey", key.pk, "key_limits")):
            route = reverse(f"admin:tenants_{model}_limits_now", args=[pk])
            assert operator.get(route)["location"] == reverse(name, args=[pk])

    def test_show_what_is_used_held_and_free(
        self, operator: Client, acme: Tenant, key: ApiKey, valkey_url: str
    ) -> None:
        set_limits(
            api_key=key,
            caps={Metric.CONCURRENT_REQUESTS: 4, Metric.TOKENS_PER_DAY: 1_000, Metric.INPUT_TOKENS_PER_MINUTE: 600},
        )
        set_limits(project=key.project, caps={Metric.SPEND_PER_MONTH: 2 * 10**9})
        hold(valkey_url, key, prompt=100, output=150)
        page = text_of(operator.get(reverse("key_limits", args=[key.pk])).content.decode())
        assert "Concurrent requests 4 0 1 3" in page
        assert "Tokens per day 1,000 0 250 750" in page
        assert "Spend per month 2 USD 0 USD 0.025 USD 1.975 USD" in page
        drained = re.search(r"Input tokens per minute 600 (\d+) 0 (\d+)", page)
        assert drained
        assert int(drained[1]) + int(drained[2]) in (600, 599)
        assert 0 < int(drained[1]) <= 100
        whole = text_of(operator.get(reverse("tenant_limits", args=[acme.pk])).content.decode())
        assert whole.index("Organization") < whole.index("API key Demo key") < whole.index("Project Default")
        assert "Tokens per day 1,000 0 250 750" in whole

    def test_begin_with_the_fullest_limit_of_each_tenant(
        self, operator: Client, acme: Tenant, key: ApiKey, valkey_url: str
    ) -> None:
        set_limits(tenant=acme, caps={Metric.TOKENS_PER_DAY: 1_000})
        set_limits(plan=acme.plan, caps={Metric.TOKENS_PER_MONTH: 10_000})
        hold(valkey_url, key, prompt=100, output=650)
        page = operator.get(reverse("limits")).content.decode()
        assert "Acme Demo Active Tokens per day 0 750 250" in text_of(page)
        assert "0 % used, 75 % held" in page
        set_limits(tenant=Tenant.objects.get(name="Basic Bakery"), caps={Metric.REQUESTS_PER_MINUTE: 0})
        page = text_of(operator.get(reverse("limits")).content.decode())
        assert page.index("Basic Bakery Demo Active Requests per minute 0 0 0") < page.index("Acme Demo")

    def test_begin_with_the_same_queries_for_many_tenants_and_without_redis(
        self,
        operator: Client,
        acme: Tenant,
        django_assert_max_num_queries: Callable[..., object],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from controlplane.pages import standing
        from tenants.services import create_tenant

        for number in range(12):
            create_tenant(name=f"tenant {number}", plan=acme.plan)
        with django_assert_max_num_queries(8):
            assert operator.get(reverse("limits")).status_code == 200

        class Away:
            redis = "redis://127.0.0.1:1/0"

        monkeypatch.setattr(standing, "environment", Away)
        page = operator.get(reverse("limits")).content.decode()
        assert "Redis does not answer" in page
        assert "tenant 11" in page

    def test_a_blocked_limit_is_shown_full(self, operator: Client, key: ApiKey) -> None:
        set_limits(api_key=key, caps={Metric.REQUESTS_PER_MINUTE: 0, Metric.MAX_TOKENS_PER_REQUEST: 512})
        page = operator.get(reverse("key_limits", args=[key.pk])).content.decode()
        assert 'class="weir-meter full" title="nothing is free"' in page
        assert "Max_tokens per request 512" in text_of(page)

    def test_say_that_redis_is_away(self, operator: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
        from controlplane.pages import standing

        class Away:
            redis = "redis://127.0.0.1:1/0"

        monkeypatch.setattr(standing, "environment", Away)
        page = operator.get(reverse("tenant_limits", args=[acme.pk])).content.decode()
        assert "Redis does not answer" in page

    def test_of_nobody_are_not_found(self, operator: Client) -> None:
        for name in ("tenant_limits", "key_limits"):
            assert operator.get(reverse(name, args=[mint_request_id()])).status_code == 404

    @pytest.mark.parametrize("page", ["tenants", "keys"])
    def test_say_what_they_leave_out_and_find_it_by_name(
        self, operator: Client, acme: Tenant, key: ApiKey, monkeypatch: pytest.MonkeyPatch, page: str
    ) -> None:
        from controlplane.pages import limits
        from tenants.services import create_key, create_tenant

        monkeypatch.setattr(limits, "TENANTS_SHOWN", 2)
        monkeypatch.setattr(limits, "PARTS_SHOWN", 2)
        where = reverse("limits") if page == "tenants" else reverse("tenant_limits", args=[acme.pk])
        for name in ("Zoo north", "Zoo south"):
            create_tenant(name=name, plan=acme.plan)
            made, _ = create_key(project=key.project, name=name)
            set_limits(api_key=made, caps={Metric.REQUESTS_PER_MINUTE: 5})
        shown = text_of(operator.get(where).content.decode())
        of = {"tenants": "4 tenants", "keys": "3 projects and keys"}[page]
        assert f"The first 2 of {of} by name are shown" in shown
        assert "Zoo south" not in shown
        found = text_of(operator.get(where, {"name": "zOO s"}).content.decode())
        assert "Zoo south" in found
        assert "Zoo north" not in found
        assert "are shown" not in found
        assert "have this in their name" in operator.get(where, {"name": "nobody"}).content.decode()

    def test_take_the_same_queries_for_many_keys(
        self, operator: Client, acme: Tenant, key: ApiKey, django_assert_max_num_queries: Callable[..., object]
    ) -> None:
        from tenants.services import create_key

        for number in range(12):
            made, _ = create_key(project=key.project, name=f"key {number}", scopes=("inference",))
            set_limits(api_key=made, caps={Metric.REQUESTS_PER_MINUTE: 5})
        with django_assert_max_num_queries(14):  # type: ignore[attr-defined]
            page = operator.get(reverse("tenant_limits", args=[acme.pk])).content.decode()
        assert page.count("API key key ") == 12

    @pytest.mark.parametrize(
        ("ms", "text"),
        [(0, ""), (1, "1 s"), (119_000, "119 s"), (121_000, "3 min"), (7_200_000, "2 h"), (172_800_000, "2 days")],
    )
    def test_durations_are_rounded_up(self, ms: int, text: str) -> None:
        assert duration(ms) == text


class TestWhyRefused:
    def note(self, url: str, request_id: str, key: ApiKey | None, message: str = "Limit on requests reached") -> None:
        context = load_context([key.digest]) if key else None

        async def run() -> None:
            redis = open_redis(url)
            error = InvalidRequest(message, param="temperature")
            await Refusals(redis, clock=SystemClock()).note(error, request_id=request_id, path="/v1/x", caller=context)
            await redis.aclose(close_connection_pool=True)

        asyncio.run(run())

    @pytest.mark.parametrize("prefix", ["", "chatcmpl-", "cmpl-", "resp_", "  "])
    def test_is_answered_by_request_id(self, operator: Client, key: ApiKey, valkey_url: str, prefix: str) -> None:
        request_id = mint_request_id()
        self.note(valkey_url, request_id, key)
        page = text_of(operator.get(reverse("refusals"), {"request": prefix + request_id}).content.decode())
        for told in ("Limit on requests reached", "400 invalid_value", "temperature", "Acme", "Default", "Demo key"):
            assert told in page

    def test_lists_the_newest_of_a_tenant_and_of_strangers(
        self, operator: Client, acme: Tenant, key: ApiKey, valkey_url: str
    ) -> None:
        self.note(valkey_url, mint_request_id(), key, "of acme")
        self.note(valkey_url, mint_request_id(), None, "of a stranger")
        mine = operator.get(reverse("refusals"), {"tenant": str(acme.pk)}).content.decode()
        strangers = operator.get(reverse("refusals")).content.decode()
        assert ("of acme" in mine, "of a stranger" in mine) == (True, False)
        assert ("of acme" in strangers, "of a stranger" in strangers) == (False, True)

    @pytest.mark.parametrize("text", ["x", "0", "chatcmpl-", "%00", "<script>alert(1)</script>", "9" * 500])
    def test_what_is_no_id_is_said(self, operator: Client, text: str) -> None:
        page = operator.get(reverse("refusals"), {"request": text}).content.decode()
        assert "This is no request id" in page
        assert "<script>alert" not in page

    def test_what_nobody_refused_is_said(self, operator: Client) -> None:
        page = operator.get(reverse("refusals"), {"request": mint_request_id()}).content.decode()
        assert "No refusal of this request is known" in page

    def test_words_of_a_client_are_no_markup(self, operator: Client, key: ApiKey, valkey_url: str) -> None:
        request_id = mint_request_id()
        self.note(valkey_url, request_id, key, "<img src=x onerror=alert(1)>")
        for query in ({"request": request_id}, {"tenant": str(key.tenant_id)}):
            page = operator.get(reverse("refusals"), query).content.decode()
            assert "<img src=x" not in page
            assert "&lt;img src=x" in page

    def test_pages_are_never_cached(self, operator: Client) -> None:
        assert operator.get(reverse("refusals"))["cache-control"].startswith("no-store")

    def test_knows_ids_in_every_form(self) -> None:
        request_id = mint_request_id()
        assert bare(f"chatcmpl-{request_id}") == bare(request_id.upper()) == request_id
        assert bare("nothing") is None
