"""Real Valkey, real chDB, and usage records as the fair queue writes them."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pytest
from redis.asyncio import Redis

from billing.clickhouse.migrate import Topology, migrate
from billing.closing.close import open_periods
from billing.models import BillingPeriod
from billing.rating.prices import Meter
from billing.selectors import price_card
from billing.services import publish_prices
from contracts.jobs import Ticket, Timings
from contracts.models import ModelCard
from contracts.money import PriceCard
from contracts.wire import encode
from fairqueue.keys import PoolKeys
from stores.clickhouse_chdb import ChdbOwner
from tenants.models import Plan, Tenant
from tests.factories import jobs
from tests.functional.billing.months import END, NOW, START, Books

PRICE = PriceCard(card_id="in+cached+out", currency="USD", input_nano=250, cached_nano=25, output_nano=2_000)
ADMITTED_MS = 1_800_000_000_000


def make_ticket(number: int, *, pool: str, tenant_id: str) -> Ticket:
    return jobs.make_ticket(
        str(uuid.UUID(int=((ADMITTED_MS + number) << 80) | (0x7 << 76) | (0b10 << 62) | number)),
        tenant_id=tenant_id,
        api_key_id=f"key-{number % 2}",
        pool=pool,
        prompt_tokens=100,
        max_tokens=50,
        price=PRICE,
        admitted_at_ms=ADMITTED_MS + number,
        edge_us=100,
        guard_us=200,
    )


def usage_fields(ticket: Ticket, **changes: Any) -> dict[Any, Any]:
    """A usage stream entry, field by field as the queue's `end` script writes it."""
    timings = Timings(
        edge_us=100, guard_us=200, queue_us=300, prefill_us=4_000, decode_us=50_000, ttft_us=5_000, total_us=60_000,
        itl={80: 9}, itl_sum_us=90_000,
    )  # fmt: skip
    return {
        "ticket": encode(ticket),
        "prompt": 100,
        "cached": 60,
        "completion": 10,
        "reasoning": 0,
        "delivered": 10,
        "outcome": "ok",
        "finish": "stop",
        "error": "",
        "attempt": 1,
        "worker": "worker-1",
        "billed_at_ms": ticket.admitted_at_ms + 60,
        "timings": encode(timings),
        "verdicts": msgpack.packb(["regex: flagged"]),
        "log_key": "",
        **changes,
    }


COST_NANO = 40 * 250 + 60 * 25 + 10 * 2_000  # of `usage_fields`


@dataclass
class UsageWriter:
    """Plays the fair queue: announces pools and adds usage records."""

    redis: Redis
    number: int = 0

    async def announce(self, *pools: str) -> None:
        for pool in pools:
            await self.redis.hset("w:models", pool, encode(replace(_CARD, model=pool, pool=pool)))

    async def add(
        self, count: int, *, pool: str = "pool", tenants: Sequence[str] = ("acme",), **changes: Any
    ) -> list[Ticket]:
        tickets = []
        for _ in range(count):
            self.number += 1
            tenant_id = tenants[self.number % len(tenants)]
            tickets.append(make_ticket(self.number, pool=pool, tenant_id=tenant_id))
            await self.redis.xadd(PoolKeys(pool).usage, usage_fields(tickets[-1], **changes))
        return tickets

    async def unfinished(self, *, group: str, pool: str = "pool") -> int:
        """Records that the group has not finished, read or not; -1 before the group is there."""
        if not await self.redis.exists(PoolKeys(pool).usage):
            return -1
        for info in await self.redis.xinfo_groups(PoolKeys(pool).usage):
            if info["name"].decode() == group:
                return int(info["pending"]) + int(info["lag"] or 0)
        return -1


_CARD = ModelCard(
    model="model", pool="pool", repository="r", revision="v", weights_sha256="", tokenizer_sha256="", dtype="bfloat16",
    kv_cache_dtype="auto", layers=1, heads=1, kv_heads=1, head_size=1, vocabulary=1, context_tokens=1, block_tokens=1,
    engine="simulated", engine_version="1", created_at_ms=0,
)  # fmt: skip


@pytest.fixture
async def usage(redis: Redis) -> UsageWriter:
    writer = UsageWriter(redis=redis)
    await writer.announce("pool")
    return writer


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChdbOwner]:
    """chDB holds one directory of a process at a time; each module opens and closes its own."""
    opened = ChdbOwner(directory=tmp_path_factory.mktemp("clickhouse"))
    migrate(clickhouse=opened, topology=Topology(), pause=_never)
    yield opened
    opened.close()


@pytest.fixture
def clickhouse(owner: ChdbOwner) -> ChdbOwner:
    """The owner with empty tables."""
    owner.command("TRUNCATE TABLE inference_requests_audit")
    owner.command("TRUNCATE TABLE attempt_raw")
    return owner


@pytest.fixture
def tenants(db: None) -> dict[str, Tenant]:
    """acme pays in dollars, basic in euros."""
    plan = Plan.objects.create(name="plan")
    return {
        name: Tenant.objects.create(name=name, plan=plan, currency=currency)
        for name, currency in (("acme", "USD"), ("basic", "EUR"))
    }


@pytest.fixture
def cost_nano() -> int:
    return COST_NANO


@pytest.fixture
def fields_of() -> Callable[..., dict[Any, Any]]:
    return usage_fields


def _never(seconds: float) -> None:
    raise AssertionError(f"nobody else migrates here, yet the lock makes us wait {seconds} s")


@pytest.fixture
def ticket_of() -> Callable[..., Ticket]:
    return make_ticket


@pytest.fixture
def books(clickhouse: ChdbOwner, tenants: dict[str, Tenant], tmp_path: Path) -> Books:
    acme = tenants["acme"]
    Tenant.objects.filter(pk=acme.pk).update(timezone="Asia/Kathmandu", created_at=START + timedelta(days=3))
    prices = {Meter.INPUT: Decimal(1), Meter.CACHED: Decimal("0.1"), Meter.OUTPUT: Decimal(4)}
    publish_prices(
        model="m", prices=prices, currency="USD", at=START - timedelta(days=90), actor="user:ada", approver="user:bob"
    )
    card = price_card(tenant_id=str(acme.pk), model="m", at_ms=round(START.timestamp() * 1_000))
    assert card is not None
    return Books(clickhouse=clickhouse, tenant=acme, card=card, logs=tmp_path)


@pytest.fixture
def november(books: Books) -> BillingPeriod:
    first = open_periods(tenant_id=books.tenant.pk, now=NOW)[0]
    assert (first.month, first.starts_at, first.ends_at) == ("2026-11", START, END)
    return first
