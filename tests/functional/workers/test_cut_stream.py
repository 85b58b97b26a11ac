"""An engine whose stream ends cleanly in the middle of an answer: no finish reason is made up for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from stores.system import SystemClock
from tests.functional.workers.cast import chat, ticket
from tests.functional.workers.test_serving import finish_of, text_of
from workers.engines.base import PLAIN, EngineChunk, EngineFacts, EngineRequest, EngineStats
from workers.engines.settings import EngineSettings
from workers.wiring import build_worker

WORDS = ("one", " two", " three")


class CutEngine:
    """Host and adapter in one: says three words and ends its stream, alive and well."""

    capabilities = PLAIN
    ready = True
    incarnation = 1

    def __init__(self) -> None:
        self.adapter = self
        self.ends = asyncio.Event()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def wait_ready(self) -> None:
        return

    def note_progress(self) -> None:
        return

    def progressing(self) -> bool:
        return True

    async def has_died(self, *, incarnation: int) -> bool:
        return False

    async def health(self) -> bool:
        return True

    async def facts(self) -> EngineFacts:
        return EngineFacts(
            served_model="toy", context_tokens=512, block_tokens=16, blocks=64, cache_dtype="auto", version="1"
        )

    async def stats(self) -> EngineStats:
        return EngineStats(running=0, waiting=0, kv_usage=0.0, progress=(0.0,))

    async def aclose(self) -> None:
        return

    @asynccontextmanager
    async def generate(self, request: EngineRequest) -> AsyncIterator[AsyncIterator[EngineChunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncIterator[EngineChunk]:
        for number, word in enumerate(WORDS, start=1):
            choice: dict[str, Any] = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            yield EngineChunk(body={"choices": [choice]}, counts=TokenCounts(prompt=20, completion=number))
        await self.ends.wait()


class TestCutStream:
    async def test_is_an_error_billed_for_what_was_said_and_no_invented_stop(self, pool, settings, redis):
        """litellm#40260: it was reported as `stop`."""
        asked = await pool.submit(ticket(chat("count")))
        engine, stop = CutEngine(), asyncio.Event()
        worker = build_worker(settings=settings, engine=EngineSettings(), redis=redis, clock=SystemClock(), host=engine)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run(stop))
            await pool.until_released(asked.request_id, len(WORDS))
            engine.ends.set()
            final = await pool.final(asked.request_id)
            stop.set()
        frames = await pool.frames(asked.request_id)
        assert (text_of(frames), finish_of(frames)) == ("one two three", [])
        assert (final.outcome, final.finish_reason, final.error_code) == (Outcome.FAILED, "", "engine_error")
        assert final.counts.completion == 3
