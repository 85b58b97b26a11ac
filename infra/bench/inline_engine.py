"""A simulated engine inside the worker's own process, which costs next to nothing.

Run by bench `stream` as `python -m infra.bench.inline_engine`, so that what is measured is the platform's way and not
an engine's: the whole production worker (`workers.wiring`), with an engine that steps all its sequences together, one
token each, as real ones do. `seed` of a request is its pace in tokens a second; without one the engine steps as fast as
the worker takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from contracts.tokens import TokenCounts
from stores.redis import open_redis
from stores.system import SystemClock
from workers.config import WorkerSettings
from workers.drain import stop_on_signals
from workers.engines.base import FULL, EngineChunk, EngineFacts, EngineRequest, EngineStats, Health
from workers.engines.child import RemoteEngine
from workers.engines.settings import EngineSettings
from workers.wiring import build_worker

PROMPT_TOKENS = 40
WORDS = (" a", " stream", " of", " words", " that", " mean", " nothing", " at", " all", ",")
_BLOCKS = 10**6


def _body(delta: dict[str, Any], *, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return {"choices": [choice]}


def _edge(*, first: bool, last: bool) -> dict[str, Any]:
    """The first chunk has the role, the last the finish reason."""
    role = {"role": "assistant"} if first else {}
    return _body({**role, "content": WORDS[0]}, finish="length" if last else None)


_BODIES = [_body({"content": word}) for word in WORDS]  # read only by whoever gets them


class Steps:
    """Wakes all that wait for the engine's next step, at one pace (steps a second)."""

    def __init__(self, pace: int) -> None:
        self._seconds = 1 / pace
        self._waiting: list[asyncio.Future[None]] = []
        self._due = 0.0

    async def next(self) -> None:
        """The next step; the first that waits for it brings it about."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self._waiting:
            self._due = max(self._due + self._seconds, loop.time())
            loop.call_at(self._due, self._step)
        self._waiting.append(future)
        await future

    def _step(self) -> None:
        woken, self._waiting = self._waiting, []
        for future in woken:
            if not future.done():  # its reader left
                future.set_result(None)


class InlineEngine:
    """`workers.engines.base.EngineAdapter` without a process."""

    capabilities = FULL

    def __init__(self, model: str) -> None:
        self._model = model
        self._steps: dict[int, Steps] = {}
        self._running = 0
        self._made = 0

    @asynccontextmanager
    async def generate(self, request: EngineRequest) -> AsyncIterator[AsyncIterator[EngineChunk]]:
        """The stream of one request; nothing of it outlives the block."""
        self._running += 1
        try:
            yield self._chunks(request)
        finally:
            self._running -= 1

    async def _chunks(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        pace = int(request.body.get("seed") or 0)
        steps = self._steps.setdefault(pace, Steps(pace)) if pace else None
        last = request.max_tokens
        for number in range(1, last + 1):
            await (steps.next() if steps is not None else asyncio.sleep(0))
            self._made += 1
            body = (
                _BODIES[number % len(_BODIES)] if 1 < number < last else _edge(first=number == 1, last=number == last)
            )
            yield EngineChunk(body=body, counts=TokenCounts(prompt=PROMPT_TOKENS, completion=number))

    async def health(self) -> Health:
        return Health.WELL

    async def facts(self) -> EngineFacts:
        return EngineFacts(
            served_model=self._model, context_tokens=8_192, block_tokens=16, blocks=_BLOCKS, cache_dtype="none",
            version="inline-1",
        )  # fmt: skip

    async def stats(self) -> EngineStats:
        return EngineStats(running=self._running, waiting=0, kv_usage=0.0, progress=(float(self._made),))

    async def aclose(self) -> None:
        """Nothing is open."""


async def serve() -> None:
    """A worker with this engine until SIGTERM. Its settings are a worker's, from the environment."""
    settings = WorkerSettings()
    poke = asyncio.Event()
    redis = open_redis(settings.redis_url)
    stop = asyncio.Event()
    stop_on_signals(stop)
    host = RemoteEngine(adapter=InlineEngine(settings.model), on_change=poke.set)
    try:
        worker = build_worker(settings=settings, engine=EngineSettings(), redis=redis, clock=SystemClock(), host=host)
        async with asyncio.TaskGroup() as tasks:
            poking = tasks.create_task(_poke(poke, worker.poke))
            await worker.run(stop)
            poking.cancel()
    finally:
        await redis.aclose(close_connection_pool=True)


async def _poke(event: asyncio.Event, poke: Any) -> None:
    while True:
        await event.wait()
        event.clear()
        poke()


if __name__ == "__main__":
    uvloop.run(serve())
