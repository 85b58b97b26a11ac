"""A pool on a real Valkey with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from contracts.jobs import Claim, Ticket, Timings, UsageRecord
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.keys import PoolKeys
from fairqueue.messages import Enqueued, StepEntry, StepReply, Wait, final_of, pack_ids, usage_from_stream
from fairqueue.queue import FairQueue, QueueBounds
from stores.redis import open_redis
from tests.factories.jobs import make_ticket
from tests.functional.fairqueue.cluster import Cluster

START_US = 1_800_000_000_000_000
BOX = "w:mb:gateway"


@dataclass
class Pool:
    """Short names for the calls that a test is not about; all of them go through `queue`."""

    queue: FairQueue
    redis: Redis
    now: list[int]
    nonces: int = 0
    claims: dict[str, Claim] = field(default_factory=dict)

    @property
    def now_ms(self) -> int:
        return self.now[0] // 1000

    def advance(self, *, ms: int) -> None:
        self.now[0] += ms * 1000

    def ticket(self, request_id: str, **changes: Any) -> Ticket:
        values = {"body": b'{"messages": ["secret prompt"]}', "admitted_at_ms": START_US // 1000, **changes}
        return make_ticket(request_id, **values)

    async def enqueue(
        self,
        request_id: str,
        *,
        mailbox: str = BOX,
        deadline_in: int = 10_000,
        expires_in: int = 60_000,
        weight: int = 1_000,
        queued_max: int = 100_000,
        **changes: Any,
    ) -> Enqueued:
        return await self.queue.enqueue(
            self.ticket(request_id, **changes),
            mailbox=mailbox,
            enqueue_deadline_ms=self.now_ms + deadline_in,
            weight_milli=weight,
            queued_max=queued_max,
            expires_at_ms=self.now_ms + expires_in,
        )

    async def look(
        self, *, worker: str = "worker", nonce: str = "", free_kv: int = 100_000, free_slots: int = 8
    ) -> Claim | Wait:
        self.nonces += 1
        return await self.queue.claim(
            worker_id=worker, nonce=nonce or f"nonce{self.nonces}", free_kv_tokens=free_kv, free_slots=free_slots
        )

    async def claim(self, **options: Any) -> Claim:
        claim = await self.look(**options)
        assert isinstance(claim, Claim), claim
        return claim

    async def step(
        self,
        claim: Claim,
        frames: Sequence[bytes] = (),
        *,
        worker: str = "worker",
        first_seq: int = 1,
        completion: int | None = None,
        cached: int = 0,
        progressed: bool = True,
        holding: Sequence[str] | None = None,
        ids: Sequence[Sequence[int]] = (),
    ) -> StepReply:
        tokens = first_seq - 1 + len(frames) if completion is None else completion
        entry = StepEntry(
            request_id=claim.ticket.request_id,
            fence=claim.fence,
            first_seq=first_seq,
            frames=list(frames),
            counts=TokenCounts(prompt=claim.ticket.prompt_tokens, cached=cached, completion=tokens),
            delivered_tokens=tokens,
            progressed=progressed,
            ids=[pack_ids(those) for those in ids],
        )
        held = [claim.ticket.request_id] if holding is None else holding
        return await self.queue.step(worker_id=worker, entries=[entry], holding=held)

    async def end(
        self, claim: Claim, *, last_seq: int = 0, outcome: Outcome = Outcome.OK, completion: int | None = None
    ) -> bool:
        tokens = last_seq if completion is None else completion
        return await self.queue.end(
            worker_id="worker",
            request_id=claim.ticket.request_id,
            fence=claim.fence,
            last_seq=last_seq,
            outcome=outcome,
            finish_reason="stop",
            error_code="",
            counts=TokenCounts(prompt=claim.ticket.prompt_tokens, completion=tokens),
            delivered_tokens=tokens,
            timings=Timings(total_us=5),
        )

    async def ack(self, record: UsageRecord) -> bool:
        return await self.queue.ack(request_id=record.request_id, final=final_of(record, cost_nano=7))

    async def usage(self) -> list[UsageRecord]:
        return [usage_from_stream(fields) for _, fields in await self.redis.xrange(self.queue.keys.usage)]

    async def state(self, request_id: str) -> str:
        status = await self.queue.status(request_id=request_id)
        return "unknown" if status is None else status.state.value

    async def counter(self, tenant: str) -> int | None:
        for name in ("act", "busy", "rest"):
            score = await self.redis.zscore(PoolKeys("pool").prefix + name, tenant)
            if score is not None:
                return int(score)
        return None

    async def woken(self, worker: str) -> bool:
        return bool(await self.redis.llen(self.queue.keys.wake(worker)))


@pytest.fixture
def bounds() -> QueueBounds:
    return QueueBounds()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, started once and only when a test asks."""
    nodes = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture(params=["one server", "cluster"])
def pool_url(request: pytest.FixtureRequest) -> str:
    """One server, and a node of a cluster that has not the pool's slot: the client must find it."""
    if request.param == "cluster":
        nodes: Cluster = request.getfixturevalue("cluster")
        nodes.empty()
        return nodes.urls_without(PoolKeys("pool").prefix)[0]
    return str(request.getfixturevalue("valkey_url"))


@pytest.fixture
async def pool(pool_url: str, bounds: QueueBounds) -> AsyncIterator[Pool]:
    """An empty pool."""
    redis = open_redis(pool_url)
    await redis.flushall()
    now = [START_US]
    yield Pool(queue=FairQueue(redis, "pool", bounds, now_us=lambda: now[0]), redis=redis, now=now)
    await redis.aclose(close_connection_pool=True)
