"""What a request costs PostgreSQL: nothing. The gateway as `controlplane.wiring` builds it, on real stores."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from redis.asyncio import Redis

from billing.rating.prices import Meter
from billing.services import publish_prices
from contracts.names import MODELS
from contracts.wire import encode
from controlplane.models import ServedModel
from controlplane.wiring import gateway_services
from gateway.services import GatewayServices
from gateway.tokenizer import PromptTokenizer
from safety.defaults import demo_document
from safety.services import create_policy, publish_policy
from tenants import services
from tests.functional.gateway.cast import CARD, MODEL, POOL, HandWorker
from tests.functional.gateway.conftest import serving
from tests.unit.gateway.toy import write_model

pytestmark = pytest.mark.django_db(transaction=True)

REQUESTS = 5
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class Statements:
    """The SQL of every connection that any thread of this process opens while the test runs."""

    seen: list[str] = field(default_factory=list)
    opened: list[BaseDatabaseWrapper] = field(default_factory=list)

    def watch(self, *, connection: BaseDatabaseWrapper, **_: Any) -> None:
        self.opened.append(connection)
        connection.execute_wrappers.append(self._note)

    def _note(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        self.seen.append(sql)
        return execute(sql, params, many, context)

    def close(self) -> None:
        """Whichever thread opened them: the test's database is dropped afterwards."""
        for connection in self.opened:
            connection.inc_thread_sharing()
            connection.close()


@pytest.fixture
def statements(transactional_db: None) -> Iterator[Statements]:
    statements = Statements()
    connection_created.connect(statements.watch)
    yield statements
    connection_created.disconnect(statements.watch)
    statements.close()


def customer(tokenizer_dir: Path) -> str:
    """The key of a tenant with a guardrail policy, a limit and prices; of a model that is offered."""
    try:
        ServedModel.objects.create(name=MODEL, pool=POOL, tokenizer_dir=str(tokenizer_dir))
        prices = {Meter.INPUT: Decimal(1), Meter.CACHED: Decimal(1), Meter.OUTPUT: Decimal(2)}
        at = datetime(2026, 1, 1, tzinfo=UTC)
        publish_prices(model=MODEL, prices=prices, currency="USD", at=at, actor="user:ada", approver="user:bob")
        tenant = services.create_tenant(name="acme", plan=services.create_plan(name="plan"))
        policy = create_policy(name="policy", rules=demo_document(policy_id="-", version=1)["rules"])
        policy = publish_policy(policy_id=str(policy.pk), published_by="ada").policy
        services.change_tenant(tenant=tenant, changes={"policy": policy})
        services.set_limits(tenant=tenant, caps={"requests_per_minute": 1_000})
        return services.create_key(project=services.create_project(tenant=tenant, name="default"), name="key")[1]
    finally:
        connections.close_all()


@dataclass
class Wired:
    """A gateway with the ports that it has in production, without the loops that read off every request's way."""

    http: httpx.AsyncClient
    services: GatewayServices
    worker: HandWorker

    async def chat(self, **headers: str) -> None:
        """One request and its whole answer."""
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self.http.post("/v1/chat/completions", json=BODY, headers=headers))
            await self.worker.serve(["Hi"])
        assert asking.result().status_code == 200, asking.result().text


@pytest.fixture
async def wired(redis: Redis, statements: Statements, tmp_path: Path) -> AsyncIterator[Wired]:
    model = write_model(tmp_path / "toy")
    key = await asyncio.to_thread(customer, model)
    card = replace(CARD, tokenizer_sha256=PromptTokenizer.load(model).sha256)
    await redis.hset(MODELS, MODEL, encode(card))
    services = replace(gateway_services(), background=())
    worker = HandWorker(redis=redis, queue=services.queue_of(POOL), limits=services.limits)
    await worker.beat()
    headers = {"authorization": f"Bearer {key}"}
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=20, headers=headers) as http:
        async with asyncio.timeout(20):
            await services.revocations.subscribed.wait()  # until then each request reads its key
        yield Wired(http, services, worker)
    await services.redis.aclose(close_connection_pool=True)


class TestAWarmKey:
    async def test_asks_postgresql_nothing(self, wired: Wired, statements: Statements) -> None:
        statements.seen.clear()
        await wired.chat()
        assert any("tenants_apikey" in sql for sql in statements.seen)  # the first one is read, and seen here
        statements.seen.clear()
        for number in range(REQUESTS):
            await wired.chat()
            await wired.chat(**{"idempotency-key": f"key-{number}"})
        assert statements.seen == []
