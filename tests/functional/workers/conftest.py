"""A real worker on a real Valkey with the simulated engine as its child."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from contracts.jobs import Ticket, UsageRecord
from contracts.outcomes import JobState
from fairqueue.messages import Final
from fairqueue.queue import FairQueue, QueueBounds
from stores.system import SystemClock
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldRequest
from tests.functional.workers.cast import MODEL, POOL, TENANT
from workers.config import WorkerSettings
from workers.engines.base import EngineKind
from workers.engines.settings import EngineSettings
from workers.engines.simulated.toy import write_toy_model
from workers.loop import Worker
from workers.wiring import build_worker

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 75
FAR_MS = 900_000
MAILBOX = "w:mb:test"


@dataclass
class Pool:
    """What a gateway does, without a gateway."""

    redis: Redis
    queue: FairQueue
    limits: Limits
    clock: SystemClock
    news: Redis  # a client for subscriptions

    async def submit(self, ticket: Ticket) -> Ticket:
        """Hold and enqueue."""
        await self.limits.set_epochs(tenant_id=ticket.tenant_id, keys={ticket.api_key_id: 1}, tenant_epoch=1)
        deadline = self.clock.now_ms() + FAR_MS
        await self.limits.hold(
            HoldRequest(
                request_id=ticket.request_id,
                tenant_id=ticket.tenant_id,
                project_id=ticket.project_id,
                api_key_id=ticket.api_key_id,
                key_epoch=1,
                tenant_epoch=1,
                limits=(),
                pool=ticket.pool,
                prompt_tokens=ticket.prompt_tokens,
                output_tokens_max=ticket.max_tokens * ticket.choices,
                choices=ticket.choices,
                cost_max_nano=10**9,
                currency="USD",
                timezone="UTC",
                enqueue_deadline_ms=deadline,
                idempotency=None,
            )
        )
        await self.queue.enqueue(
            ticket,
            mailbox=MAILBOX,
            enqueue_deadline_ms=deadline,
            weight_milli=1000,
            queued_max=1000,
            expires_at_ms=deadline,
        )
        return ticket

    async def frames(self, request_id: str) -> list[dict[str, Any]]:
        log = await self.queue.read_log(request_id=request_id, after_seq=0, limit=10_000)
        return [] if log is None else [orjson.loads(frame) for frame in log.frames]

    async def final(self, request_id: str) -> Final:
        """The final frame; waits for it."""
        async with self.mail() as mail, asyncio.timeout(DEADLINE_SECONDS):
            while True:
                log = await self.queue.read_log(request_id=request_id, after_seq=0, limit=1)
                if log is not None and log.final is not None:
                    assert log.state is JobState.SETTLED
                    return log.final
                await anext(mail)

    async def until_released(self, request_id: str, frames: int = 1) -> None:
        async with self.mail() as mail, asyncio.timeout(DEADLINE_SECONDS):
            while len(await self.frames(request_id)) < frames:
                await anext(mail)

    @asynccontextmanager
    async def mail(self) -> AsyncIterator[AsyncIterator[Any]]:
        """Messages of the mailbox from here on: each may be the frame or the end that a test waits for."""
        async with self.news.pubsub() as subscription:
            await subscription.subscribe(MAILBOX)
            messages = subscription.listen()
            await anext(messages)  # the confirmation: nothing that is published later is missed
            yield messages

    async def until_state(self, request_id: str, state: JobState) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                status = await self.queue.status(request_id=request_id)
                if status is not None and status.state is state:
                    return
                await asyncio.sleep(0.02)

    async def usage(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.redis.xrange(self.queue.keys.usage)]

    async def unsettled(self) -> list[UsageRecord]:
        return await self.queue.unsettled(older_than_ms=0, limit=100)

    async def hold_state(self, request_id: str) -> str:
        state = await self.redis.hget(f"w:{{t:{TENANT}}}:hold:{request_id}", "st")
        return (state or b"").decode()


@pytest.fixture
async def pool(redis: Redis, valkey_url: str) -> AsyncIterator[Pool]:
    clock = SystemClock()
    news = Redis.from_url(valkey_url, protocol=2)
    yield Pool(
        redis=redis,
        queue=FairQueue(redis, POOL, QueueBounds()),
        limits=Limits(redis, clock=clock),
        clock=clock,
        news=news,
    )
    await news.aclose(close_connection_pool=True)


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_model(tmp_path_factory.mktemp("toy-model"))


@pytest.fixture
def settings(tmp_path: Path, toy_model: Path, valkey_url: str) -> WorkerSettings:
    return WorkerSettings(
        home=tmp_path,
        redis_url=valkey_url,
        s3_url="",
        engine=EngineKind.SIMULATED,
        engine_url="",
        model=MODEL,
        model_dir=toy_model,
        pool=POOL,
        worker_id="w1",
        drain_seconds=5,
        reap_seconds=0.5,
    )


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Settings of the simulated engine: `sim(decode_tokens_per_second=50)`."""

    def setting(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"WEIR_SIM_{name.upper()}", str(value))

    return setting


Start = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def start(settings: WorkerSettings, redis: Redis) -> Start:
    """A worker in this process; leaving the block drains it."""

    @asynccontextmanager
    async def started(size: EngineSettings | None = None, /, **changes: Any) -> AsyncIterator[Worker]:
        chosen = settings.model_copy(update=changes)
        stop = asyncio.Event()
        worker = build_worker(settings=chosen, engine=size or EngineSettings(), redis=redis, clock=SystemClock())
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run(stop))
            try:
                yield worker
            finally:
                stop.set()

    return started


@pytest.fixture
def spawn(settings: WorkerSettings) -> Callable[..., Any]:
    """A worker in a process of its own, as it is deployed."""

    @asynccontextmanager
    async def spawned(**environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
            "WEIR_HOME": str(settings.home),
            "REDIS_URL": settings.redis_url,
            "S3_URL": "",
            "WEIR_ENGINE": "simulated",
            "WEIR_MODEL": MODEL,
            "WEIR_MODEL_DIR": str(settings.model_dir),
            "WEIR_POOL": POOL,
            "WEIR_WORKER_ID": settings.worker_id,
            "WEIR_DRAIN_SECONDS": "5",
            "WEIR_REAP_SECONDS": "0.5",
            **environment,
        }
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "workers", env=environment, cwd=ROOT)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await process.wait()

    return spawned
