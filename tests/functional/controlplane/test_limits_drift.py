"""Who is told when a counter of a limit is wrong: the beat's `check_limits` and `manage.py rebuild_limits`, on real
PostgreSQL, Valkey and chDB. What the audit itself finds is asked about in `tests/functional/billing`.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone
from pydantic import SecretStr
from redis import Redis

from billing.metering.streams import METER_GROUP, UsageStreams
from contracts.tokens import TokenCounts
from controlplane import limits_audit, tasks
from controlplane.env import environment
from fairqueue.keys import PoolKeys
from stores.clickhouse_chdb import ChdbOwner
from stores.redis import open_redis
from stores.system import mint_request_id
from tenants import services
from tenants.budgets import counted_limits
from tenants.limits import keys, policy
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldGranted, HoldHint, HoldRequest
from tenants.models import LimitSetting, Plan, Tenant
from tests.functional.billing.conftest import UsageWriter, clickhouse, cost_nano, fields_of, owner, ticket_of
from tests.functional.billing.test_limits_audit import TOKENS
from tests.functional.billing.test_meter import build
from tests.functional.tenants.conftest import Customer, acme, mallory, plan

__all__ = ["acme", "clickhouse", "cost_nano", "fields_of", "mallory", "owner", "plan", "ticket_of"]

pytestmark = pytest.mark.django_db(transaction=True)

CAPS = {"spend_lifetime": 10**12, "tokens_per_month": 10**9, "concurrent_requests": 100}
LONG_AGO = datetime(1969, 1, 1, tzinfo=UTC)  # before any window, also that of a lifetime
NOWHERE = "redis://127.0.0.1:1/0"


@dataclass
class Books:
    """Requests that are held, settled and metered as the platform does it, at the time of now."""

    url: str
    sync: Redis
    reader: ChdbOwner
    fields_of: Callable[..., dict[Any, Any]]
    ticket_of: Callable[..., Any]
    cost: int

    def serve(self, who: Customer, *, count: int) -> None:
        """Also announces the pool, and meters."""
        who.tenant.refresh_from_db()
        who.key.refresh_from_db()
        asyncio.run(self._serve(who, [each.limit for each in counted_limits(str(who.tenant.id))], count))

    async def _serve(self, who: Customer, limits: list[Any], count: int) -> None:
        redis = open_redis(self.url)
        try:
            await UsageWriter(redis=redis).announce("pool")
            await UsageStreams(redis=redis, group=METER_GROUP, consumer="m").discover()
            for _ in range(count):
                await self._whole(redis, Limits(redis), who, limits)
            await build(redis, self.reader).round()
        finally:
            await redis.aclose(close_connection_pool=True)

    async def _whole(self, redis: Any, holds: Limits, who: Customer, limits: list[Any]) -> None:
        tenant_id, project_id, key_id = str(who.tenant.id), str(who.project.id), str(who.key.id)
        await holds.set_epochs(tenant_id=tenant_id, keys={key_id: who.key.epoch}, tenant_epoch=who.tenant.epoch)
        granted = await holds.hold(
            HoldRequest(
                request_id=mint_request_id(), tenant_id=tenant_id, project_id=project_id, api_key_id=key_id,
                key_epoch=who.key.epoch, tenant_epoch=who.tenant.epoch, limits=policy.counted(limits, model="m"),
                prompt_tokens=100, output_tokens_max=10, cost_max_nano=self.cost, currency="USD",
                timezone=who.tenant.timezone, enqueue_deadline_ms=2**52, pool="pool",
            )
        )  # fmt: skip
        assert isinstance(granted, HoldGranted)
        at_ms = granted.admitted_at_ms
        ticket = replace(
            self.ticket_of(1, pool="pool", tenant_id=tenant_id), request_id=granted.request_id, model="m",
            project_id=project_id, api_key_id=key_id, admitted_at_ms=at_ms,
        )  # fmt: skip
        await redis.xadd(PoolKeys("pool").usage, self.fields_of(ticket, billed_at_ms=at_ms))
        hint = HoldHint(project_id=project_id, api_key_id=key_id, admitted_at_ms=at_ms, model="m")
        await holds.settle(
            tenant_id=tenant_id, request_id=granted.request_id, cost_nano=self.cost, outcome="ok", hint=hint,
            counts=TokenCounts(prompt=100, cached=60, completion=10),
        )  # fmt: skip

    def counters(self, who: Customer) -> dict[bytes, bytes]:
        """All there is of the tenant's counters."""
        return self.sync.hgetall(keys.use(str(who.tenant.id)))

    def shift(self, who: Customer, field: str, amount: int) -> None:
        self.sync.hincrby(keys.use(str(who.tenant.id)), f"t:{who.tenant.id}:{field}", amount)

    def amounts(self, who: Customer) -> dict[str, int]:
        """What is used of the money and the tokens, and what is held of the places."""
        found = self.counters(who)
        names = ("spl:u", "tpm:u", "con:h")
        return {name: int(found.get(f"t:{who.tenant.id}:{name}".encode(), b"0")) for name in names}


@pytest.fixture
def books(
    wired: Redis,
    valkey_url: str,
    clickhouse: ChdbOwner,
    fields_of: Callable[..., dict[Any, Any]],
    ticket_of: Callable[..., Any],
    cost_nano: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Books]:
    monkeypatch.setattr(limits_audit, "usage_reader", lambda: clickhouse)
    yield Books(valkey_url, wired, clickhouse, fields_of, ticket_of, cost_nano)
    # Limits are read in the one thread that Django's asynchronous code asks: its connection must not outlast the test.
    asyncio.run(sync_to_async(connections.close_all)())


@pytest.fixture
def two(books: Books, plan: Plan, acme: Customer, mallory: Customer) -> tuple[Customer, Customer]:
    """With limits that were set before their windows began, and two and three requests; in the order of their ids."""
    for who, count in ((acme, 2), (mallory, 3)):
        services.set_limits(tenant=who.tenant, caps=CAPS)
        LimitSetting.objects.update(since=LONG_AGO)
        books.serve(who, count=count)
    return acme, mallory


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("rebuild_limits", *arguments, stdout=out)
    return out.getvalue()


def failing(*arguments: str) -> tuple[str, str]:
    """What it printed, and what it failed with; the exit code is 1."""
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("rebuild_limits", *arguments, stdout=out)
    assert caught.value.returncode == 1
    return out.getvalue(), str(caught.value)


class TestCheckOfTheBeat:
    def test_finds_nothing_where_nothing_drifted(
        self, two: tuple[Customer, Customer], books: Books, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert books.amounts(two[1]) == {"spl:u": 3 * books.cost, "tpm:u": 3 * TOKENS, "con:h": 0}
        assert tasks.check_limits() == 0
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []

    def test_counts_what_drifted_and_tells_of_each_with_its_figures(
        self, two: tuple[Customer, Customer], books: Books, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, mallory = two
        books.shift(mallory, "spl:u", -7)
        books.shift(mallory, "con:h", 1)
        before = books.counters(mallory)
        assert tasks.check_limits() == 2
        told, name = f"limits of tenant {mallory.tenant.id} drifted: ", f"t:{mallory.tenant.id}"
        spent = 3 * books.cost
        assert sorted(record.message for record in caplog.records if record.levelno == logging.ERROR) == sorted(
            [
                f"{told}Drift(counter='{name}:spl', what='used', found={spent - 7}, expected={spent})",
                f"{told}Drift(counter='{name}:con', what='held', found=1, expected=0)",
            ]
        )
        assert books.counters(mallory) == before

    def test_goes_on_behind_the_tenants_of_one_round(
        self, two: tuple[Customer, Customer], books: Books, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds: list[dict[str, str]] = []
        monkeypatch.setattr(tasks, "TENANTS_MAX", 1)
        monkeypatch.setattr(tasks.check_limits, "delay", lambda **arguments: rounds.append(arguments))
        first, second = sorted(two, key=lambda who: str(who.tenant.id))
        books.shift(second, "con:h", 1)
        assert (tasks.check_limits(), rounds) == (0, [{"after": str(first.tenant.id)}])
        assert (tasks.check_limits(**rounds.pop()), rounds) == (1, [])

    def test_brings_a_limit_that_is_younger_than_its_window_up_to_date(
        self, two: tuple[Customer, Customer], books: Books, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acme, _ = two
        monkeypatch.setattr(limits_audit, "SETTLED_AFTER_MS", -60_000)
        make_young(books, acme)
        assert tasks.check_limits() == 0
        assert books.amounts(acme)["spl:u"] == 2 * books.cost

    @pytest.mark.parametrize("away", ["the meter", "the store"])
    def test_says_of_whom_it_could_not_tell(
        self,
        two: tuple[Customer, Customer],
        books: Books,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        away: str,
    ) -> None:
        if away == "the meter":
            monkeypatch.setattr(limits_audit, "METER_SECONDS", 0.05)
            books.sync.xadd(PoolKeys("pool").usage, {"a record": "nobody metered"})
        else:
            gone = environment().model_copy(update={"redis_url": SecretStr(NOWHERE)})
            monkeypatch.setattr(limits_audit, "environment", lambda: gone)
        assert tasks.check_limits() == 0
        why = {"the meter": "the meter is behind", "the store": "Unavailable"}[away]
        told = [record.message for record in caplog.records if record.name == "weir.limits"]
        missed = [
            f"limits of tenant {who} were not checked ({why})" for who in sorted(str(each.tenant.id) for each in two)
        ]
        # A meter that is behind is waited for once a round, and not at each tenant.
        assert sorted(told) == (missed[:1] if away == "the meter" else missed)


class TestBeginningOfTheBeat:
    """What was used before a limit began counts in it within one round, whoever's limit it is."""

    def test_counts_what_was_used_before_a_cap_was_set(self, two: tuple[Customer, Customer], books: Books) -> None:
        _, mallory = two
        services.set_limits(project=mallory.project, caps={"spend_per_day": 10**12})
        assert tasks.begin_limits() == 1
        assert int(books.counters(mallory)[f"p:{mallory.project.id}:spd:u".encode()]) == 3 * books.cost
        assert (tasks.begin_limits(), tasks.check_limits()) == (0, 0)

    def test_counts_what_was_used_before_the_tenant_came_to_a_plan(
        self, two: tuple[Customer, Customer], books: Books
    ) -> None:
        """The plan's limit is older than the day that it counts."""
        acme, mallory = two
        other = services.create_plan(name="other")
        services.set_limits(plan=other, caps={"spend_per_day": 10**12})
        LimitSetting.objects.update(since=LONG_AGO)
        for each in (acme, mallory):
            each.tenant.refresh_from_db()
        services.change_tenant(tenant=acme.tenant, changes={"plan": other})
        books.serve(acme, count=1)
        assert tasks.begin_limits() == 1
        assert int(books.counters(acme)[f"t:{acme.tenant.id}:spd:u".encode()]) == 3 * books.cost
        assert (tasks.begin_limits(), tasks.check_limits()) == (0, 0)

    def test_looks_at_nobody_whose_limits_stand(
        self, two: tuple[Customer, Customer], books: Books, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Tenant.objects.update(plan_since=LONG_AGO)
        monkeypatch.setattr(tasks, "open_auditor", lambda: pytest.fail("somebody was looked at"))
        assert tasks.begin_limits() == 0


class TestCommandThatChecks:
    def test_says_that_nothing_drifted(self, two: tuple[Customer, Customer]) -> None:
        lines = [f"{who.tenant.id}  5 counters, 0 drifted, 0 renewed" for who in two]
        assert sorted(command("--check").splitlines()) == sorted(lines)

    def test_fails_and_says_what_drifted_and_changes_nothing(
        self, two: tuple[Customer, Customer], books: Books
    ) -> None:
        acme, mallory = two
        books.shift(acme, "tpm:u", 9)
        before = [books.counters(who) for who in two]
        said, error = failing("--check")
        assert error == "1 of 2 tenants drifted or could not be told about"
        assert sorted(said.splitlines()) == sorted(
            [
                f"{acme.tenant.id}  5 counters, 1 drifted, 0 renewed",
                f"  Drift(counter='t:{acme.tenant.id}:tpm', what='used', found={2 * TOKENS + 9}, "
                f"expected={2 * TOKENS})",
                f"{mallory.tenant.id}  5 counters, 0 drifted, 0 renewed",
            ]
        )
        assert [books.counters(who) for who in two] == before

    def test_tells_programs_the_same(self, two: tuple[Customer, Customer], books: Books) -> None:
        acme, mallory = two
        books.shift(acme, "con:h", 2)
        said, _ = failing("--check", "--json", "--tenant", str(acme.tenant.id))
        drift = {"counter": f"t:{acme.tenant.id}:con", "what": "held", "found": 2, "expected": 0}
        one = {"tenant_id": str(acme.tenant.id), "checked": 5, "renewed": 0, "drifts": [drift], "skipped": ""}
        assert [json.loads(line) for line in said.splitlines()] == [one]
        whole = command("--check", "--json", "--tenant", str(mallory.tenant.id))
        assert json.loads(whole) == one | {"tenant_id": str(mallory.tenant.id), "drifts": []}

    def test_leaves_also_a_limit_alone_that_is_younger_than_its_window(
        self, two: tuple[Customer, Customer], books: Books, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acme, _ = two
        monkeypatch.setattr(limits_audit, "SETTLED_AFTER_MS", -60_000)
        make_young(books, acme)
        before = books.counters(acme)
        assert "5 counters, 0 drifted, 0 renewed" in command("--check", "--tenant", str(acme.tenant.id))
        assert books.counters(acme) == before

    def test_fails_where_it_cannot_tell(
        self, two: tuple[Customer, Customer], books: Books, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits_audit, "METER_SECONDS", 0.05)
        books.sync.xadd(PoolKeys("pool").usage, {"a record": "nobody metered"})
        said, error = failing("--check")
        assert error == "2 of 2 tenants drifted or could not be told about"
        assert said.count("skipped: the meter is behind, 0 renewed") == 2


class TestCommandThatRebuilds:
    def test_makes_the_counters_right_again(self, two: tuple[Customer, Customer], books: Books) -> None:
        acme, mallory = two
        right = [books.amounts(who) for who in two]
        books.shift(acme, "spl:u", 5)
        books.shift(acme, "tpm:u", -5)
        books.shift(acme, "con:h", 1)
        assert sorted(command().splitlines()) == sorted(
            [
                f"{acme.tenant.id}  4 counters, 0 drifted, 3 renewed",
                f"{mallory.tenant.id}  4 counters, 0 drifted, 0 renewed",
            ]
        )
        assert [books.amounts(who) for who in two] == right
        assert command("--check").count(", 0 drifted") == 2

    def test_makes_lost_counters_anew_and_only_of_the_tenant_that_is_named(
        self, two: tuple[Customer, Customer], books: Books
    ) -> None:
        right = [books.amounts(who) for who in two]
        for who in two:
            books.sync.delete(keys.use(str(who.tenant.id)))
        command("--tenant", str(two[0].tenant.id))
        assert books.amounts(two[0]) == right[0]
        assert books.counters(two[1]) == {}
        command()
        assert [books.amounts(who) for who in two] == right

    def test_knows_no_tenant_that_is_not_there(self, two: tuple[Customer, Customer]) -> None:
        assert failing("--tenant", "0198a000-0000-7000-8000-0000000000ff") == ("", "no such tenant")

    def test_says_which_store_does_not_answer(
        self, two: tuple[Customer, Customer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = environment().model_copy(update={"redis_url": SecretStr(NOWHERE)})
        monkeypatch.setattr(limits_audit, "environment", lambda: gone)
        said, error = failing()
        assert (said, error.startswith("a store does not answer: ")) == ("", True)


def make_young(books: Books, who: Customer) -> None:
    """As if the cap on the lifetime's spend were set after the requests: none of them was counted in it."""
    LimitSetting.objects.filter(tenant=who.tenant, metric="spend_lifetime").update(since=timezone.now())
    books.sync.hdel(keys.use(str(who.tenant.id)), *[name for name in books.counters(who) if b":spl:" in name])
