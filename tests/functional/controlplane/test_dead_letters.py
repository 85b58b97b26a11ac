"""Dead letters in the console: what was set aside, the evidence, and a replay on the platform's own bill."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from redis import Redis

from contracts.jobs import Claim
from contracts.tenancy import Metric, ServiceClass
from controlplane.dead_letters.replay import HOUSE
from controlplane.env import environment
from controlplane.seed import seed_demo
from fairqueue.policy import QueueBounds
from fairqueue.queue import FairQueue
from stores.redis import open_redis
from stores.system import SystemClock, mint_nonce, mint_request_id
from tenants.limits.buckets import Limits
from tenants.models import ApiKey, OutboxEvent, Tenant
from tenants.services import set_limits
from tests.factories.jobs import make_ticket
from workers.evidence import Evidence, Held

SECRET = "the customer's own words"
BODY = orjson.dumps({"messages": [{"role": "user", "content": SECRET}], "temperature": 0.5, "seed": 4711})
WORKER = "w1"
DEATHS_MAX = 5  # after fewer, whatever the queue does in between, a request is set aside


@pytest.fixture
def acme(db: None, wired: Redis) -> Tenant:
    seed_demo()
    return Tenant.objects.get(name="Acme")


def on_the_queue(url: str, work: Callable[[FairQueue, Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        redis = open_redis(url)
        try:
            return await work(FairQueue(redis, environment().pool_name, QueueBounds()), redis)
        finally:
            await redis.aclose(close_connection_pool=True)

    return asyncio.run(run())


async def claim(queue: FairQueue) -> Claim:
    found = await queue.claim(worker_id=WORKER, nonce=mint_nonce(), free_kv_tokens=100_000, free_slots=8)
    assert isinstance(found, Claim)
    return found


@pytest.fixture
def letter(acme: Tenant, valkey_url: str, tmp_path: Any) -> str:
    """The id of a request of Acme's at which engines died."""
    key = ApiKey.objects.get(tenant=acme)
    env, log = environment(), tmp_path / "engine.log"
    log.write_text("Traceback of the engine\n<script>alert(1)</script>\n")
    asked = make_ticket(
        mint_request_id(), tenant_id=str(acme.id), project_id=str(key.project_id), api_key_id=str(key.id),
        pool=env.pool_name, model=env.model, body=BODY,
    )  # fmt: skip

    async def die(queue: FairQueue, redis: Any) -> None:
        evidence = Evidence(redis, pool=env.pool_name, worker_id=WORKER, log_file=log, clock=SystemClock())
        soon = SystemClock().now_ms() + 30_000
        await queue.enqueue(
            asked, mailbox="", enqueue_deadline_ms=soon, weight_milli=1000, queued_max=10, expires_at_ms=soon
        )
        for _ in range(DEATHS_MAX):
            if (await queue.depths()).dead_letters:
                return
            running = await claim(queue)
            await evidence._write(SystemClock().now_ms(), [Held(request_id=asked.request_id, attempt=running.attempt)])
            await queue.engine_died(worker_id=WORKER, fences={asked.request_id: running.fence})
        raise AssertionError("it was not set aside")

    on_the_queue(valkey_url, die)
    return asked.request_id


def words(page: bytes) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.decode()))


def page_of(client: Client) -> str:
    """The path of the one dead letter there is."""
    [path] = set(
        re.findall(r"/admin/dead-letters/[^/\"]+/[^/\"]+/", client.get(reverse("dead_letters")).content.decode())
    )
    return path


class TestList:
    def test_says_that_there_are_none(self, operator: Client, acme: Tenant) -> None:
        assert "No request was set aside" in words(operator.get(reverse("dead_letters")).content)

    def test_shows_what_was_set_aside(self, operator: Client, letter: str) -> None:
        page = words(operator.get(reverse("dead_letters")).content)
        assert f"…{letter[-12:]} Acme {environment().pool_name}" in page

    def test_says_that_redis_is_away(self, operator: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
        def away() -> Redis:
            raise OSError

        monkeypatch.setattr("controlplane.pages.dead_letters._client", away)
        assert "Redis does not answer" in words(operator.get(reverse("dead_letters")).content)


class TestOne:
    def test_shows_losses_seed_and_what_the_engine_said_and_never_the_prompt(
        self, operator: Client, letter: str
    ) -> None:
        answer = operator.get(page_of(operator))
        page = words(answer.content)
        assert "no-store" in answer["Cache-Control"]
        for text in (letter, "Acme", "attempt 1: engine died at w1", "attempt 2: engine died at w1", "Seed 4711"):
            assert text in page
        assert "temperature 0.5" in page
        assert "Traceback of the engine" in page
        assert "<script>alert" not in answer.content.decode()
        assert SECRET not in page

    @pytest.mark.parametrize("entry", ["1-1", "nonsense"])
    def test_that_is_not_there_is_404(self, operator: Client, acme: Tenant, entry: str) -> None:
        assert operator.get(f"/admin/dead-letters/p/{entry}/").status_code == 404


class TestReplay:
    def test_runs_as_a_new_request_on_the_platform_s_own_bill(
        self, operator: Client, letter: str, acme: Tenant, valkey_url: str
    ) -> None:
        path = page_of(operator)
        assert operator.post(path).status_code == 302
        house = Tenant.objects.get(name=HOUSE)

        async def look(queue: FairQueue, redis: Any) -> tuple[Claim, bytes | None, int]:
            running = await claim(queue)
            state = await redis.hget(f"w:{{t:{house.id}}}:hold:{running.ticket.request_id}", "st")
            return running, state, await redis.zcard(f"w:{{t:{acme.id}}}:holds")

        running, state, of_acme = on_the_queue(valkey_url, look)
        ticket = running.ticket
        assert ticket.request_id != letter
        assert (ticket.tenant_id, ticket.service_class, ticket.body) == (str(house.id), ServiceClass.BATCH, BODY)
        assert (state, of_acme, running.engine_deaths) == (b"held", 0, 0)
        event = OutboxEvent.objects.get(name="request.replayed")
        assert (event.tenant_id, event.body["subject"]) == (acme.id, f"request:{letter}")
        assert (event.body["actor"], event.body["after"]["replay"]) == ("user:ada", ticket.request_id)
        assert f"Replayed by user:ada {ticket.request_id}" in words(operator.get(path).content)

    def test_again_uses_the_same_account(self, operator: Client, letter: str) -> None:
        path = page_of(operator)
        operator.post(path)
        operator.post(path)
        assert Tenant.objects.filter(name=HOUSE).count() == ApiKey.objects.filter(tenant__name=HOUSE).count() == 1
        assert OutboxEvent.objects.filter(name="request.replayed").count() == 2

    def test_that_the_account_s_limits_refuse_is_said_and_leaves_no_hold(
        self, operator: Client, letter: str, valkey_url: str
    ) -> None:
        path = page_of(operator)
        operator.post(path)
        house = Tenant.objects.get(name=HOUSE)
        set_limits(tenant=house, caps={Metric.REQUESTS_PER_MINUTE: 0})
        page = operator.post(path, follow=True).content
        assert "requests" in words(page)

        async def holds(queue: FairQueue, redis: Any) -> int:
            del queue
            return len([hold async for hold in Limits(redis).open_holds(tenant_id=str(house.id))])

        assert on_the_queue(valkey_url, holds) == 1

    def test_is_refused_to_every_other_role_and_without_the_form_s_token(self, operator: Client, letter: str) -> None:
        path = page_of(operator)
        for role in ("support", "finance"):
            user = User.objects.create_user(f"a-{role}", password="a long pass phrase", is_staff=True)
            user.groups.add(Group.objects.get(name=role))
            other = Client()
            other.force_login(user)
            assert (other.get(path).status_code, other.post(path).status_code) == (403, 403)
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="ada"))
        assert strict.post(path).status_code == 403
        assert not OutboxEvent.objects.filter(name="request.replayed").exists()
