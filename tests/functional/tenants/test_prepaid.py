"""Prepaid tenants from the switch to the refusal: the ledger in real PostgreSQL, the counter in real Valkey."""

import asyncio
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pydantic import SecretStr
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings
from redis import Redis

from billing.ledger.credits import burn_credit, expire_credits, grant_credit
from billing.ledger.entries import UsageLine, post_usage
from contracts.errors import BudgetSpent, Rejected
from contracts.tenancy import Metric, Scope, TenantContext
from contracts.tokens import TokenCounts
from controlplane import prepaid
from controlplane.tasks import follow_credit
from stores.redis import open_redis
from stores.system import SystemClock, mint_request_id
from tenants import selectors, services
from tenants.limits import keys
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldGranted, HoldHint, HoldRequest, LimitUse, RateLimited
from tenants.models import LimitSetting, OutboxEvent, Tenant
from tenants.services.keys import digests_of
from tests.functional.tenants.api import Api, manager
from tests.functional.tenants.conftest import Customer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]

UNIT = 10**9
CALL = 1_000  # nano-units that a call may cost at most
Committed = DjangoCaptureOnCommitCallbacks


@pytest.fixture
def operator(db: None) -> Api:
    return Api(user=User.objects.create_superuser("root", password="x"))


def switch(who: Customer, *, on: bool = True) -> None:
    services.change_tenant(tenant=who.tenant, changes={"prepaid": on})


def give(who: Customer, nano: int, *, days: int | None = None) -> None:
    grant_credit(
        key=uuid.uuid4().hex, tenant_id=who.tenant.pk, currency="USD", amount=Decimal(nano).scaleb(-9), paid=True,
        reason="x", actor="user:ada", at=timezone.now(),
        expires_at=None if days is None else timezone.now() + timedelta(days=days),
    )  # fmt: skip


def bill(who: Customer, nano: int) -> None:
    """Usage as the settler posts it."""
    line = UsageLine(
        request_id=uuid.uuid4(), revision=1, tenant_id=who.tenant.pk, currency="USD",
        amount=Decimal(nano).scaleb(-9), billed_at=timezone.now(),
    )  # fmt: skip
    post_usage([line], at=timezone.now())


def row_of(who: Customer) -> LimitSetting | None:
    return LimitSetting.objects.filter(tenant=who.tenant, metric=Metric.PREPAID_CREDIT).first()


def cap_of(who: Customer) -> int | None:
    row = row_of(who)
    return None if row is None else row.cap


def context_of(who: Customer) -> TenantContext:
    context = selectors.load_context(digests_of(who.plaintext))
    assert context is not None
    return context


def asked(context: TenantContext, cost: int = CALL) -> HoldRequest:
    return HoldRequest(
        request_id=mint_request_id(), tenant_id=context.tenant_id, project_id=context.project_id,
        api_key_id=context.api_key_id, key_epoch=context.key_epoch, tenant_epoch=context.tenant_epoch,
        limits=tuple(x for x in context.limits if x.metric is Metric.PREPAID_CREDIT), prompt_tokens=1, timezone="UTC",
        output_tokens_max=1, cost_max_nano=cost, currency="USD", enqueue_deadline_ms=SystemClock().now_ms() + 30_000,
    )  # fmt: skip


def at_the_door(who: Customer, url: str, deed: Callable[[Limits, TenantContext], Any]) -> Any:
    """What `deed` does as a gateway would, with the tenant's context of now."""
    context = context_of(who)
    known, tenant_epoch = selectors.epochs(context.tenant_id)

    async def run() -> Any:
        redis = open_redis(url)
        try:
            limits = Limits(redis)
            await limits.set_epochs(tenant_id=context.tenant_id, keys=known, tenant_epoch=tenant_epoch)
            return await deed(limits, context)
        finally:
            await redis.aclose(close_connection_pool=True)

    return asyncio.run(run())


async def settle(limits: Limits, context: TenantContext, request_id: str, cost: int) -> None:
    hint = HoldHint(project_id=context.project_id, api_key_id=context.api_key_id, admitted_at_ms=SystemClock().now_ms())
    await limits.settle(
        tenant_id=context.tenant_id, request_id=request_id, counts=TokenCounts(prompt=1, completion=1),
        cost_nano=cost, outcome="ok", hint=hint,
    )  # fmt: skip


async def tried(limits: Limits, request: HoldRequest) -> str | Rejected:
    """The id of a request that was let in, else why it was not."""
    try:
        granted = await limits.hold(request)
    except Rejected as error:
        return error
    assert isinstance(granted, HoldGranted)
    return granted.request_id


def call(who: Customer, url: str, *, cost: int = CALL, real: int | None = None) -> str | Rejected:
    """One request from admission to its settlement."""

    async def deed(limits: Limits, context: TenantContext) -> str | Rejected:
        made = await tried(limits, asked(context, cost))
        if isinstance(made, str):
            await settle(limits, context, made, cost if real is None else real)
        return made

    made: str | Rejected = at_the_door(who, url, deed)
    return made


def use_of(who: Customer, url: str) -> LimitUse:
    async def deed(limits: Limits, context: TenantContext) -> list[LimitUse]:
        return await limits.usage(
            tenant_id=context.tenant_id, project_id="", api_key_id="", limits=asked(context).limits, timezone="UTC"
        )

    [use] = at_the_door(who, url, deed)
    assert isinstance(use, LimitUse)
    return use


class TestSwitch:
    def test_is_off_by_default_and_a_tenant_with_credit_has_no_limit(
        self, acme: Customer, django_capture_on_commit_callbacks: Committed
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            give(acme, 5 * CALL)
        assert (acme.tenant.prepaid, row_of(acme)) == (False, None)
        assert follow_credit() == 0

    def test_brings_the_limit_and_takes_it_away_with_an_event_each(self, acme: Customer) -> None:
        give(acme, 5 * CALL)
        epoch = context_of(acme).tenant_epoch
        switch(acme)
        row = row_of(acme)
        assert row is not None
        assert (row.scope, row.model, row.cap, row.alerts) == ("tenant", "", 5 * CALL, [])
        assert context_of(acme).tenant_epoch > epoch
        switch(acme)
        switch(acme, on=False)
        assert row_of(acme) is None
        events = OutboxEvent.objects.filter(name="limit.changed", tenant_id=acme.tenant.pk).order_by("id")
        assert [(each.body["before"], each.body["after"]) for each in events] == [
            ({}, {"prepaid_credit": 5 * CALL}), ({"prepaid_credit": 5 * CALL}, {"prepaid_credit": None}),
        ]  # fmt: skip

    def test_may_be_on_from_the_first_moment(self, acme: Customer) -> None:
        made = services.create_tenant(name="new", plan=acme.tenant.plan, prepaid=True)
        assert LimitSetting.objects.get(tenant=made).cap == 0

    def test_counts_what_was_spent_before(self, acme: Customer, valkey_url: str) -> None:
        give(acme, 5 * CALL)
        bill(acme, 3 * CALL)
        switch(acme)
        use = use_of(acme, valkey_url)
        assert (use.used, use.held, use.free) == (3 * CALL, 0, 2 * CALL)
        switch(acme, on=False)
        bill(acme, CALL)  # nobody counts it meanwhile
        switch(acme)
        assert use_of(acme, valkey_url).free == CALL

    def test_is_refused_where_the_counter_cannot_begin(self, acme: Customer, operator: Api, settings: Settings) -> None:
        settings.ENV = settings.ENV.model_copy(update={"redis_url": SecretStr("redis://127.0.0.1:1/0")})
        status, answer = operator.change(f"tenants/{acme.tenant.pk}", {"prepaid": True})
        assert (status, answer["error"]["code"]) == (503, "service_unavailable")
        acme.tenant.refresh_from_db()
        assert (acme.tenant.prepaid, row_of(acme)) == (False, None)

    def test_is_an_operators(self, acme: Customer, operator: Api) -> None:
        path = f"tenants/{acme.tenant.pk}"
        status, answer = manager(acme).change(path, {"prepaid": True})
        assert (status, answer["error"]["param"]) == (403, "prepaid")
        assert operator.change(path, {"prepaid": True})[1]["prepaid"] is True
        assert cap_of(acme) == 0
        assert manager(acme).change(path, {"name": "other"})[0] == 200
        assert operator.change(path, {"prepaid": False})[1]["prepaid"] is False
        assert row_of(acme) is None

    def test_stands_in_the_console(self, acme: Customer, client: Client) -> None:
        client.force_login(User.objects.create_superuser("ada", password="x"))
        give(acme, 5 * UNIT)
        page = reverse("admin:tenants_tenant_change", args=[acme.tenant.pk])
        form = {
            "name": "acme", "plan": str(acme.tenant.plan_id), "timezone": "UTC", "policy": "", "queued_max": "",
            "prepaid": "on", "limits-TOTAL_FORMS": "0", "limits-INITIAL_FORMS": "0",
            "projects-TOTAL_FORMS": "0", "projects-INITIAL_FORMS": "0",
        }  # fmt: skip
        answer = client.post(page, form)
        assert answer.status_code == 302, answer.content.decode()
        assert cap_of(acme) == 5 * UNIT
        assert 'value="prepaid_credit"' not in client.get(page).content.decode()


class TestByHand:
    def test_is_refused_by_name_wherever_limits_are_set(self, acme: Customer, operator: Api) -> None:
        switch(acme)
        limits = [{"metric": "prepaid_credit", "cap": 10**15}]
        for scope, owner in (("tenant", acme.tenant), ("project", acme.project), ("key", acme.key)):
            status, answer = operator("post", "limits", {"scope": scope, "id": str(owner.pk), "limits": limits})
            assert (status, answer["error"]["param"]) == (400, "limits.0.metric")
            assert "follows the tenant's credit" in answer["error"]["message"]
        status, answer = operator("post", f"plans/{acme.tenant.plan_id}/limits", {"limits": limits})
        assert (status, answer["error"]["param"]) == (400, "limits.0.metric")
        for cap in (5, None):
            with pytest.raises(ValidationError, match="set by nobody"):
                services.set_limits(tenant=acme.tenant, caps={"prepaid_credit": cap})
        assert cap_of(acme) == 0

    def test_is_shown_in_lists_for_looking(self, acme: Customer, operator: Api) -> None:
        give(acme, 5 * CALL)
        switch(acme)
        for api in (operator, manager(acme)):
            [shown] = api("get", "limits?metric=prepaid_credit")[1]["data"]
            assert (shown["scope"], shown["cap"], shown["tenant"]) == ("tenant", 5 * CALL, str(acme.tenant.pk))

    def test_cannot_be_done_in_the_console(self, acme: Customer, client: Client) -> None:
        client.force_login(User.objects.create_superuser("ada", password="x"))
        give(acme, 5 * UNIT)
        switch(acme)
        row = row_of(acme)
        assert row is not None
        page = reverse("admin:tenants_limitsetting_change", args=[row.pk])
        assert b'name="_save"' not in client.get(page).content
        assert client.post(page, {"cap": "9"}).status_code == 403
        assert (
            client.post(reverse("admin:tenants_limitsetting_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
        )
        everything = reverse("admin:tenants_limitsetting_changelist")
        client.post(everything, {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"})
        assert cap_of(acme) == 5 * UNIT
        assert "5 USD" in client.get(everything).content.decode()
        adding = {"tenant": str(acme.tenant.pk), "metric": "prepaid_credit", "model": "", "cap": "9"}
        assert (
            "Select a valid choice" in client.post(reverse("admin:tenants_limitsetting_add"), adding).content.decode()
        )


class TestFollowing:
    @pytest.fixture(autouse=True)
    def _prepaid(self, acme: Customer) -> None:
        switch(acme)

    def test_follows_each_posting_right_after_its_commit(
        self, acme: Customer, django_capture_on_commit_callbacks: Committed
    ) -> None:
        caps = []
        for deed in (
            lambda: give(acme, 7 * CALL),
            lambda: give(acme, 2 * CALL, days=1),
            lambda: bill(acme, 3 * CALL),
            lambda: burn_credit(key="b", tenant_id=acme.tenant.pk, currency="USD", wanted_nano=CALL, at=timezone.now()),
            lambda: expire_credits(now=timezone.now() + timedelta(days=1)),
        ):
            with django_capture_on_commit_callbacks(execute=True):
                deed()
            caps.append(cap_of(acme))
        # The invoice took its 1 from the 2 that expire.
        assert caps == [7 * CALL, 9 * CALL, 9 * CALL, 9 * CALL, 8 * CALL]

    def test_the_beat_finds_what_was_missed_and_changes_nothing_else(
        self, acme: Customer, mallory: Customer, monkeypatch: pytest.MonkeyPatch,
        django_capture_on_commit_callbacks: Committed,
    ) -> None:  # fmt: skip
        with monkeypatch.context() as patch, django_capture_on_commit_callbacks(execute=True):
            patch.setattr(prepaid, "_follow", lambda tenant_id: False)
            give(acme, 7 * CALL)
            give(mallory, 7 * CALL)
        assert cap_of(acme) == 0
        events = OutboxEvent.objects.count()
        assert [follow_credit(), follow_credit()] == [1, 0]
        assert (cap_of(acme), cap_of(mallory), OutboxEvent.objects.count()) == (7 * CALL, None, events + 1)

    def test_is_bounded_by_what_a_counter_can_hold(
        self, acme: Customer, django_capture_on_commit_callbacks: Committed
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            give(acme, 10**17)
        assert cap_of(acme) == 9_000_000 * UNIT


class TestRefusal:
    def test_tells_of_the_credit_and_where_there_is_more(self, acme: Customer, valkey_url: str) -> None:
        give(acme, 2 * UNIT)
        switch(acme)
        assert isinstance(call(acme, valkey_url, cost=2 * UNIT, real=UNIT), str)
        refused = call(acme, valkey_url, cost=2 * UNIT)
        assert isinstance(refused, BudgetSpent)
        assert (refused.status, refused.code, refused.retry_after_ms) == (402, "budget_exceeded", None)
        assert refused.message == (
            "Limit on prepaid credit of the organization reached: limit 2 USD, used 1 USD, held by requests under "
            "way 0 USD, requested at most 2 USD; "
            "more credit raises it: an operator books it under Credit grants in the console."
        )

    def test_tells_of_no_credit_at_all(self, acme: Customer, valkey_url: str) -> None:
        switch(acme)
        refused = call(acme, valkey_url)
        assert isinstance(refused, BudgetSpent)
        assert refused.message.startswith("Blocked: the limit on prepaid credit of the organization is 0; more credit")

    def test_of_what_is_only_held_asks_to_come_again(self, acme: Customer, valkey_url: str) -> None:
        give(acme, CALL)
        switch(acme)

        async def deed(limits: Limits, context: TenantContext) -> Any:
            return [await tried(limits, asked(context)) for _ in range(2)]

        first, second = at_the_door(acme, valkey_url, deed)
        assert isinstance(first, str)
        assert isinstance(second, RateLimited)
        assert second.status == 429


class TestBalance:
    def test_a_top_up_lets_the_next_request_in(
        self, acme: Customer, valkey_url: str, django_capture_on_commit_callbacks: Committed
    ) -> None:
        give(acme, CALL)
        switch(acme)
        assert isinstance(call(acme, valkey_url), str)
        assert isinstance(call(acme, valkey_url), BudgetSpent)
        with django_capture_on_commit_callbacks(execute=True):
            give(acme, CALL)
        assert isinstance(call(acme, valkey_url), str)
        assert isinstance(call(acme, valkey_url), BudgetSpent)

    def test_an_invoice_does_not_give_the_money_a_second_time(
        self, acme: Customer, valkey_url: str, django_capture_on_commit_callbacks: Committed
    ) -> None:
        give(acme, 3 * CALL)
        switch(acme)
        for number in range(3):
            assert isinstance(call(acme, valkey_url), str)
            with django_capture_on_commit_callbacks(execute=True):
                bill(acme, CALL)
                burn_credit(
                    key=f"i{number}", tenant_id=acme.tenant.pk, currency="USD", wanted_nano=CALL, at=timezone.now()
                )
        assert isinstance(call(acme, valkey_url), BudgetSpent)
        use = use_of(acme, valkey_url)
        assert (use.used, use.free, cap_of(acme)) == (3 * CALL, 0, 3 * CALL)

    def test_is_told_by_the_command(self, acme: Customer, valkey_url: str) -> None:
        give(acme, 3 * CALL)
        switch(acme)
        call(acme, valkey_url, real=400)
        out = StringIO()
        call_command("credit", "balance", "--tenant", "acme", stdout=out)
        assert out.getvalue() == "credit left: 0.000003 USD\nprepaid: may still spend 0.0000026 USD\n"

    def test_is_not_told_wrongly_while_redis_is_away(
        self, acme: Customer, wired: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        switch(acme)

        def away(tenant_id: uuid.UUID) -> int:
            raise prepaid.Unavailable("the counters cannot be read right now")

        monkeypatch.setattr(prepaid, "spendable_nano", away)
        with pytest.raises(CommandError, match="cannot be read"):
            call_command("credit", "balance", "--tenant", "acme", stdout=StringIO())

    @pytest.mark.parametrize("seed", range(3))
    def test_of_so_many_calls_lets_exactly_so_many_in_at_once(self, acme: Customer, valkey_url: str, seed: int) -> None:
        calls = random.Random(seed).randrange(5, 40)
        give(acme, calls * CALL + CALL - 1)
        switch(acme)

        async def deed(limits: Limits, context: TenantContext) -> list[Any]:
            other = open_redis(valkey_url)
            doors = [limits, Limits(other)]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(tried(doors[i % 2], asked(context))) for i in range(4 * calls)]
                return [task.result() for task in tasks]
            finally:
                await other.aclose(close_connection_pool=True)

        results = at_the_door(acme, valkey_url, deed)
        assert sum(isinstance(each, str) for each in results) == calls
        assert {type(each) for each in results if not isinstance(each, str)} == {RateLimited}
        use = use_of(acme, valkey_url)
        assert (use.used, use.held, use.free) == (0, calls * CALL, CALL - 1)

    @pytest.mark.parametrize("seed", range(3))
    def test_is_never_passed_while_calls_end_for_less_than_they_held(
        self, acme: Customer, valkey_url: str, seed: int
    ) -> None:
        """Requests of any cost, let in, settled and voided in any order: all credit is spent, and no more."""
        dice = random.Random(seed)
        credit = 50 * CALL
        give(acme, credit)
        switch(acme)
        spent = held = 0

        async def one(limits: Limits, context: TenantContext) -> bool:
            nonlocal spent, held
            cost = dice.randrange(1, 5 * CALL)
            made = await tried(limits, asked(context, cost))
            if not isinstance(made, str):
                return False
            held += cost
            assert spent + held <= credit
            await asyncio.sleep(dice.random() / 200)
            real = dice.randrange(cost + 1)
            if dice.random() < 0.2:
                await limits.void(tenant_id=context.tenant_id, request_id=made, reason="queue_full")
                real = 0
            else:
                await settle(limits, context, made, real)
            spent, held = spent + real, held - cost
            return True

        async def deed(limits: Limits, context: TenantContext) -> None:
            for _ in range(12):
                async with asyncio.TaskGroup() as group:
                    for _ in range(25):
                        group.create_task(one(limits, context))

        at_the_door(acme, valkey_url, deed)
        use = use_of(acme, valkey_url)
        assert (use.used, use.held) == (spent, 0)
        assert credit - 5 * CALL < spent <= credit


class TestAtOnce:
    @pytest.mark.django_db(transaction=True)
    def test_of_postings_at_once_the_last_state_of_the_ledger_stands(self, acme: Customer, wired: Redis) -> None:
        switch(acme)
        give(acme, 100 * CALL, days=1)

        def run(deed: Callable[[], Any]) -> None:
            try:
                deed()
            finally:
                connection.close()

        deeds: list[Callable[[], Any]] = [lambda: give(acme, CALL)] * 6
        deeds += [lambda: expire_credits(now=timezone.now() + timedelta(days=1)), follow_credit, follow_credit]
        threads = [threading.Thread(target=run, args=(deed,)) for deed in deeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert cap_of(acme) == 6 * CALL
        pushed = int(wired.hget(keys.epoch(str(acme.tenant.pk)), "tenant") or 0)
        assert pushed == Tenant.objects.get(pk=acme.tenant.pk).epoch  # gateways know: no context of before is good

    def test_the_limit_is_one_of_all_that_are_held_together(self, acme: Customer, valkey_url: str) -> None:
        """A request that another limit refuses holds nothing of the credit."""
        give(acme, CALL)
        switch(acme)
        services.set_limits(api_key=acme.key, caps={"requests_per_minute": 0})

        async def deed(limits: Limits, context: TenantContext) -> Any:
            every = tuple(x for x in context.limits if x.metric in (Metric.PREPAID_CREDIT, Metric.REQUESTS_PER_MINUTE))
            assert {x.scope for x in every} == {Scope.TENANT, Scope.KEY}
            return await tried(limits, replace(asked(context), limits=every))

        assert isinstance(at_the_door(acme, valkey_url, deed), RateLimited)
        use = use_of(acme, valkey_url)
        assert (use.used, use.held) == (0, 0)
