"""Engines and workers that die, hang or drain, on the real queue."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from billing.rating.rate import cost
from contracts.names import MODELS
from contracts.outcomes import JobState, Outcome
from fairqueue.messages import usage_from_stream
from tenants.limits.buckets import Limits
from tests.functional.workers.cast import MODEL, PRICE, chat, ticket
from tests.functional.workers.conftest import DEADLINE_SECONDS
from tests.functional.workers.test_serving import finish_of, text_of
from workers.engines.settings import EngineSettings

pytestmark = pytest.mark.timeout(120)


def engine_of(home: Path, worker: str = "w1") -> dict[str, int]:
    return orjson.loads((home / "run" / f"{worker}.engine.json").read_bytes())


async def follows(home: Path, pid: int) -> None:
    """Wait until another engine is the worker's, whether it serves or not."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with suppress(FileNotFoundError):
                if engine_of(home)["pid"] != pid:
                    return
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    """Wait until no process has this pid (a zombie counts as gone)."""
    async with asyncio.timeout(15):
        while alive(pid):  # noqa: ASYNC110 - another process makes it false
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


ENDLESS = {"ignore_eos": True}
ODD = {**ENDLESS, "seed": 1}  # not plain: no other engine can go on with it


class TestEngineDeath:
    async def test_before_any_output_runs_the_request_again(self, pool, start, sim, tmp_path):
        sim(prefill_tokens_per_second=20)
        asked = await pool.submit(ticket(chat("say: second time lucky")))
        async with start():
            await pool.until_state(asked.request_id, JobState.RUNNING)
            os.kill(engine_of(tmp_path)["pid"], signal.SIGKILL)
            final = await pool.final(asked.request_id)
        assert final.outcome is Outcome.OK
        assert final.attempt == 2
        assert text_of(await pool.frames(asked.request_id)) == "second time lucky"
        status = await pool.queue.status(request_id=asked.request_id)
        assert status.engine_deaths == 1
        assert len(await pool.usage()) == 1

    async def test_between_claim_and_start_hands_the_request_back(
        self, pool, start, sim, tmp_path, monkeypatch: pytest.MonkeyPatch
    ):
        """The engine that follows has no socket yet, and lives: asked now, it would have failed this request alone."""
        begin, killed = Limits.start, []

        async def slowly(limits: Limits, **named: Any) -> bool:
            started = await begin(limits, **named)
            if not killed:
                killed.append(engine_of(tmp_path)["pid"])
                os.kill(killed[0], signal.SIGKILL)
                await follows(tmp_path, killed[0])
            return started

        monkeypatch.setattr(Limits, "start", slowly)
        sim(startup_seconds=1)
        asked = await pool.submit(ticket(chat("say: not asked too soon")))
        async with start():
            final = await pool.final(asked.request_id)
        assert (final.outcome, final.attempt) == (Outcome.OK, 2)
        status = await pool.queue.status(request_id=asked.request_id)
        assert status.engine_deaths == 0  # it never ran at the engine that died

    async def test_after_output_without_a_way_on_ends_with_an_error_billed_by_its_log(self, pool, start, sim, tmp_path):
        sim(decode_tokens_per_second=30)
        asked = await pool.submit(ticket(chat("hello", **ODD), max_tokens=2_000))
        async with start():
            await pool.until_released(asked.request_id, 4)
            os.kill(engine_of(tmp_path)["pid"], signal.SIGKILL)
            final = await pool.final(asked.request_id)
            after = await pool.submit(ticket(chat("say: back again")))
            assert (await pool.final(after.request_id)).outcome is Outcome.OK
        frames = await pool.frames(asked.request_id)
        assert (final.outcome, final.error_code, final.status) == (Outcome.FAILED, "engine_error", 502)
        assert finish_of(frames) == []
        assert 3 <= final.counts.completion <= len(frames)
        assert final.cost_nano == cost(PRICE, final.counts).total_nano
        assert len(await pool.usage()) == 2

    async def test_leaves_nothing_of_it_alive(self, pool, start, tmp_path):
        asked = await pool.submit(ticket(chat("say: hi")))
        async with start():
            await pool.final(asked.request_id)
            engine = engine_of(tmp_path)
            os.kill(engine["keeper"], signal.SIGKILL)
            await gone(engine["pid"])
            again = await pool.submit(ticket(chat("say: hi")))
            assert (await pool.final(again.request_id)).outcome is Outcome.OK


class TestEvidence:
    async def test_of_an_engine_death_names_the_requests_it_hit_and_ends_with_what_the_engine_said(
        self, pool, start, sim, tmp_path
    ):
        sim(prefill_tokens_per_second=20)
        asked = await pool.submit(ticket(chat("say: second time lucky")))
        async with start():
            await pool.until_state(asked.request_id, JobState.RUNNING)
            with (tmp_path / "logs" / "w1.engine.log").open("a") as log:
                log.write("Fatal: block table is gone\n")
            os.kill(engine_of(tmp_path)["pid"], signal.SIGKILL)
            assert (await pool.final(asked.request_id)).outcome is Outcome.OK
        keys = pool.queue.keys
        [death] = await pool.redis.lrange(keys.deaths_of(asked.request_id), 0, -1)
        evidence = orjson.loads(await pool.redis.get(keys.death(death.decode())))
        assert (evidence["worker"], evidence["held"]) == ("w1", [{"request": asked.request_id, "attempt": 1}])
        assert "Fatal: block table is gone\n" in evidence["log"]
        assert 0 < await pool.redis.pttl(keys.death(death.decode())) <= 7 * 86_400_000

    async def test_is_not_kept_of_a_worker_that_stops(self, pool, start):
        asked = await pool.submit(ticket(chat("say: hi")))
        async with start():
            await pool.final(asked.request_id)
        assert await pool.redis.keys("*death*") == []


class TestHungEngine:
    async def test_is_killed_and_replaced(self, pool, start, sim, tmp_path):
        sim(hang_after_tokens=6)
        asked = await pool.submit(ticket(chat("hello", **ODD), max_tokens=100))
        async with start(EngineSettings(stall_seconds=1.5)):
            await pool.until_released(asked.request_id, 5)
            hung = engine_of(tmp_path)["pid"]
            final = await pool.final(asked.request_id)
            await gone(hung)
        assert (final.outcome, final.error_code) == (Outcome.FAILED, "engine_error")
        assert final.counts.completion <= 6


class TestWorkerDeath:
    async def test_by_kill_loses_no_request_and_leaves_no_engine(self, pool, spawn, tmp_path):
        slow = {"WEIR_SIM_DECODE_TOKENS_PER_SECOND": "30", "WEIR_ENGINE_MAX_NUM_SEQS": "1"}
        running = await pool.submit(ticket(chat("hello", **ODD), max_tokens=2_000))
        waiting = await pool.submit(ticket(chat("say: patience")))
        async with spawn(**slow) as process:
            await pool.until_released(running.request_id, 4)
            engine = engine_of(tmp_path)
            process.kill()
            await process.wait()
            await gone(engine["pid"])
            await gone(engine["keeper"])
        async with spawn(**slow, WEIR_WORKER_ID="w2"):
            final = await pool.final(waiting.request_id)
            assert final.outcome is Outcome.OK
            await pool.until_state(running.request_id, JobState.ENDED)
        assert text_of(await pool.frames(waiting.request_id)) == "patience"
        [ended] = await pool.unsettled()
        assert (ended.request_id, ended.outcome, ended.error_code) == (running.request_id, "failed", "worker_lost")
        assert ended.counts.completion >= 3
        assert len(await pool.usage()) == 2


class TestDrain:
    async def test_finishes_what_runs_and_claims_no_more(self, pool, spawn):
        slow = {"WEIR_SIM_DECODE_TOKENS_PER_SECOND": "20", "WEIR_ENGINE_MAX_NUM_SEQS": "1"}
        running = await pool.submit(ticket(chat("hello", **ENDLESS), max_tokens=40))
        waiting = await pool.submit(ticket(chat("say: later")))
        async with spawn(**slow) as process:
            await pool.until_released(running.request_id, 2)
            process.send_signal(signal.SIGTERM)
            final = await pool.final(running.request_id)
            async with asyncio.timeout(20):
                assert await process.wait() == 0
        assert final.outcome is Outcome.OK
        assert final.counts.completion == 40
        status = await pool.queue.status(request_id=waiting.request_id)
        assert (status.state, status.attempt) == (JobState.QUEUED, 0)

    async def test_hands_back_what_has_no_output_at_its_deadline(self, pool, start, sim):
        sim(prefill_tokens_per_second=1)
        asked = await pool.submit(ticket(chat("say: elsewhere")))
        async with start(drain_seconds=0.1):
            await pool.until_state(asked.request_id, JobState.RUNNING)
        status = await pool.queue.status(request_id=asked.request_id)
        assert (status.state, status.engine_deaths, status.lapses) == (JobState.QUEUED, 0, 0)
        assert await pool.usage() == []

    async def test_ends_what_has_output_that_cannot_be_replayed_at_its_deadline(self, pool, start, sim):
        sim(decode_tokens_per_second=20)
        asked = await pool.submit(ticket(chat("hello", **ODD), max_tokens=2_000))
        async with start(drain_seconds=0.1):
            await pool.until_released(asked.request_id, 3)
        final = await pool.final(asked.request_id)
        assert (final.outcome, final.error_code) == (Outcome.FAILED, "worker_lost")
        assert final.counts.completion > 0


class TestRedisLost:
    async def test_with_all_it_held_the_worker_is_found_again_and_goes_on(self, pool, start):
        async with start(heartbeat_seconds=0.1):
            first = await pool.submit(ticket(chat("say: before")))
            await pool.final(first.request_id)
            card = await pool.redis.hget(MODELS, MODEL)
            await pool.redis.flushall()
            async with asyncio.timeout(10):
                while await pool.redis.hget(MODELS, MODEL) != card:  # noqa: ASYNC110 - the worker's next beat
                    await asyncio.sleep(0.02)
            after = await pool.submit(ticket(chat("say: after")))
            assert (await pool.final(after.request_id)).outcome is Outcome.OK


class TestRedisAway:
    async def test_for_a_moment_goes_unnoticed(self, pool, start, sim):
        sim(decode_tokens_per_second=40)
        asked = await pool.submit(ticket(chat("hello", **ENDLESS), max_tokens=60))
        async with start():
            await pool.until_released(asked.request_id, 5)
            await pool.redis.client_pause(1_000)
            final = await pool.final(asked.request_id)
        assert final.outcome is Outcome.OK
        assert final.counts.completion == 60
        [usage] = [usage_from_stream(fields) for fields in await pool.usage()]
        assert usage.delivered_tokens == 60
