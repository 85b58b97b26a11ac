"""The worker over real vLLM: the answer is the engine's own, and a dead engine core is noticed and replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from contracts.jobs import Endpoint
from contracts.outcomes import Outcome
from tests.contract.workers.conftest import real_engine
from tests.functional.workers import conftest
from tests.functional.workers.cast import chat, ticket
from tests.functional.workers.test_faults import engine_of
from tests.functional.workers.test_serving import finish_of, text_of
from workers.engines.base import EngineKind, EngineRequest
from workers.engines.settings import EngineSettings

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]


def core_of(pid: int) -> int:
    """The engine core: the API server's child that is not a helper of multiprocessing; the server if it has none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    named = {int(child): Path(f"/proc/{child}/comm").read_text() for child in children}
    return next((child for child, name in named.items() if "EngineCor" in name), pid)


class TestVllm:
    async def test_answers_as_the_engine_does_and_goes_on_after_the_death_of_its_core(
        self, pool, start, tmp_path, monkeypatch
    ):
        found = real_engine()
        if found is None:
            pytest.skip("the engine environment or the converted model is not there; `make up` makes both")
        monkeypatch.setattr(conftest, "DEADLINE_SECONDS", 540)
        python, model = found
        engine = EngineSettings(python=str(python), cpu_kv_cache_gib=1, max_num_seqs=8)
        body = chat("Name three rivers.", temperature=0)
        asked = await pool.submit(ticket(body, max_tokens=24, prompt_tokens=40))
        async with start(engine, engine=EngineKind.VLLM, model_dir=model) as worker:
            final = await pool.final(asked.request_id)
            frames = await pool.frames(asked.request_id)
            request = EngineRequest(
                request_id="direct", endpoint=Endpoint.CHAT, body=body, max_tokens=24, cache_salt="none"
            )
            async with worker._ports.host.adapter.generate(request) as chunks:
                direct = [chunk async for chunk in chunks]
            assert final.outcome is Outcome.OK
            assert text_of(frames) == text_of([chunk.body for chunk in direct])
            assert finish_of(frames) == finish_of([chunk.body for chunk in direct])
            assert (final.counts.prompt, final.counts.completion) == (
                direct[-1].counts.prompt,
                direct[-1].counts.completion,
            )

            story = chat("Tell me a story of a river.", ignore_eos=True, temperature=0)
            asked = await pool.submit(ticket(story, max_tokens=60, prompt_tokens=40))
            odd = await pool.submit(ticket(chat("Go on.", ignore_eos=True, seed=1), max_tokens=2_000, prompt_tokens=40))
            for one in (asked, odd):
                await pool.until_released(one.request_id, 9)
            os.kill(core_of(engine_of(tmp_path)["pid"]), signal.SIGKILL)
            died, final = await pool.final(odd.request_id), await pool.final(asked.request_id)
            again = await pool.submit(ticket(story, max_tokens=60, prompt_tokens=40))
            whole = await pool.final(again.request_id)
        assert (died.outcome, died.error_code) == (Outcome.FAILED, "engine_error")
        assert died.counts.completion >= 1
        assert (final.outcome, final.attempt, final.counts.completion) == (Outcome.OK, 2, 60)
        assert (final.counts.prompt, whole.attempt) == (whole.counts.prompt, 1)
        frames, undisturbed = await pool.frames(asked.request_id), await pool.frames(again.request_id)
        assert text_of(frames) == text_of(undisturbed)
        assert finish_of(frames) == finish_of(undisturbed) == ["length"]
