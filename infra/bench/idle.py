"""Part of bench `queue`: what ten thousand idle workers cost the store, and how soon one of them has work.

Called by `queue`. Each worker claims in vain, which makes it idle, and then sleeps as a real one does: a blocking pop
on its own list, by a connection of its own, renewed after `BLOCK_SECONDS_MAX`. The one that is woken claims.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from contracts.jobs import Claim, Timings
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.queue import BLOCK_SECONDS_MAX, FairQueue
from stores.redis import Client

CONNECT_AT_ONCE = 64
SPARE_CLIENTS = 1_000
CALL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """`cpu`: the store's CPU seconds a second while nothing happens; `wakes`: seconds from enqueue to claim."""

    workers: int
    cpu: float
    wakes: list[float]


async def measure(
    redis: Client,
    queue: FairQueue,
    *,
    workers: int,
    seconds: float,
    samples: int,
    enqueue: Callable[[], Awaitable[None]],
) -> Idle:
    """`workers` sleep on an empty pool for `seconds`; then `samples` requests come one by one. Raises RedisError."""
    await redis.config_set("maxclients", workers + SPARE_CLIENTS)
    crowd = _Crowd(redis, queue)
    async with asyncio.TaskGroup() as tasks:
        sleepers = [tasks.create_task(crowd.sleep(f"sleeper{number}")) for number in range(workers)]
        while await _number(redis, "clients", "blocked_clients") < workers:  # noqa: ASYNC110 - only the store knows
            await asyncio.sleep(0.1)
        began, spent = time.perf_counter(), await _cpu(redis)
        await asyncio.sleep(seconds)
        cpu = (await _cpu(redis) - spent) / (time.perf_counter() - began)
        wakes = [await crowd.wake(enqueue) for _ in range(samples)]
        for sleeper in sleepers:
            sleeper.cancel()
    return Idle(workers=workers, cpu=cpu, wakes=wakes)


class _Crowd:
    """The workers that sleep. One at a time has work."""

    def __init__(self, redis: Client, queue: FairQueue) -> None:
        self._redis, self._queue = redis, queue
        self._doors = asyncio.Semaphore(CONNECT_AT_ONCE)
        self._claimed: asyncio.Queue[float] = asyncio.Queue()
        self._asleep_again = asyncio.Event()

    async def wake(self, enqueue: Callable[[], Awaitable[None]]) -> float:
        """Seconds from the call that queues to the claim in the hands of the worker that slept."""
        self._asleep_again.clear()
        began = time.perf_counter()
        await enqueue()
        async with asyncio.timeout(CALL_SECONDS):
            at = await self._claimed.get()
            await self._asleep_again.wait()
        return at - began

    async def sleep(self, name: str) -> None:
        address: dict[str, Any] = self._redis.connection_pool.connection_kwargs
        async with self._doors:
            await self._claim(name)
            reader, writer = await asyncio.open_connection(address["host"], address["port"])
        key, block = self._queue.keys.wake(name).encode(), f"{BLOCK_SECONDS_MAX:g}".encode()
        request = b"*3\r\n$5\r\nBLPOP\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(block), block)
        try:
            while True:
                writer.write(request)
                if await reader.readline() == b"*-1\r\n":  # nothing came
                    continue
                for _ in range(4):  # the list and what was in it, each with its length
                    await reader.readline()
                await self._work(name)
        finally:
            writer.close()

    async def _work(self, name: str) -> None:
        claim = await self._claim(name)
        if claim is None:
            return
        self._claimed.put_nowait(time.perf_counter())
        await self._queue.end(
            worker_id=name, request_id=claim.ticket.request_id, fence=claim.fence, last_seq=0,
            outcome=Outcome.CANCELLED, finish_reason="", error_code="", counts=TokenCounts(), delivered_tokens=0,
            timings=Timings(),
        )  # fmt: skip
        await self._claim(name)
        self._asleep_again.set()

    async def _claim(self, name: str) -> Claim | None:
        claim = await self._queue.claim(worker_id=name, nonce=uuid.uuid4().hex, free_kv_tokens=10**6, free_slots=1)
        return claim if isinstance(claim, Claim) else None


async def _cpu(redis: Client) -> float:
    return await _number(redis, "cpu", "used_cpu_user") + await _number(redis, "cpu", "used_cpu_sys")


async def _number(redis: Client, section: str, field: str) -> float:
    return float((await redis.info(section))[field])
