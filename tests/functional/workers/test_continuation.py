"""Requests that lose their worker or engine in mid-stream: plain ones go on elsewhere, as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from billing.rating.rate import cost
from contracts.jobs import Endpoint, Ticket
from contracts.outcomes import JobState, Outcome
from contracts.tenancy import PolicyRef
from fairqueue.messages import usage_from_stream
from safety.published import PolicyStore
from stores.system import mint_request_id
from tests.functional.workers.cast import PRICE, chat, ticket
from tests.functional.workers.conftest import Pool
from tests.functional.workers.test_faults import ENDLESS, engine_of
from tests.functional.workers.test_serving import finish_of, text_of
from workers.attempts import read_attempts
from workers.closing import Closing
from workers.verdict import GivenBack

pytestmark = pytest.mark.timeout(120)

REDACT: dict[str, Any] = {
    "id": "no-mountains",
    "version": 1,
    "rules": [
        {
            "name": "mountains",
            "kind": "ban_list",
            "stage": ["output"],
            "action": "redact",
            "config": {"words": ["mountain", "lost between"]},
        }
    ],
}


KINDS = {
    "a chat": ticket(chat("Tell me of rivers", **ENDLESS, temperature=0.7, stop=[]), max_tokens=120),
    "characters of many tokens": ticket(chat("say: " + "🌊 水の流れ 👩‍🔬 " * 6)),
    "a prompt": ticket({"prompt": "Once upon a time", **ENDLESS}, endpoint=Endpoint.COMPLETIONS, max_tokens=120),
    "a redacted chat": ticket(chat("say: " + "Nothing is lost between the mountain and the mill. " * 3)),
}


def again(asked: Ticket) -> Ticket:
    """The same request anew."""
    return replace(asked, request_id=mint_request_id())


async def submitted(pool: Pool) -> dict[str, Ticket]:
    """One request of each kind."""
    await PolicyStore(pool.redis).put(REDACT)
    policy = PolicyRef(policy_id="no-mountains", version=1)
    kinds = KINDS | {"a redacted chat": replace(KINDS["a redacted chat"], policy=policy)}
    return {kind: await pool.submit(again(asked)) for kind, asked in kinds.items()}


def roles_of(frames: list[dict[str, Any]]) -> int:
    return sum(bool(choice.get("delta", {}).get("role")) for frame in frames for choice in frame["choices"])


class TestAWorkerThatIsKilled:
    async def test_loses_doubles_and_bills_twice_no_token_of_a_plain_request(self, pool, start, spawn, sim, tmp_path):
        sim(bytewise=True, decode_tokens_per_second=60)
        asked = await submitted(pool)
        async with spawn() as process:
            for one in asked.values():
                await pool.until_released(one.request_id, 9)
            async with start(worker_id="w2"):  # idle beside it
                process.kill()
                await process.wait()
                finals = {kind: await pool.final(one.request_id) for kind, one in asked.items()}
                calm = await submitted(pool)  # the same, and nothing dies
                wanted = {kind: await pool.final(one.request_id) for kind, one in calm.items()}
        lines = {line["request_id"]: line for line in read_attempts(tmp_path / "attempts" / "w2.jsonl")}
        billed = {one.request_id: one for one in (usage_from_stream(fields) for fields in await pool.usage())}
        assert read_attempts(tmp_path / "attempts" / "w1.jsonl") == []
        assert len(lines) == len(billed) == len(await pool.usage()) == 2 * len(KINDS)
        for kind, one in asked.items():
            frames, undisturbed = await pool.frames(one.request_id), await pool.frames(calm[kind].request_id)
            assert text_of(frames) == text_of(undisturbed), kind
            assert finish_of(frames) == finish_of(undisturbed)
            assert roles_of(frames) == roles_of(undisturbed)
            final = finals[kind]
            assert (final.outcome, final.attempt, wanted[kind].attempt) == (Outcome.OK, 2, 1)
            assert (final.counts.prompt, final.counts.completion) == (
                wanted[kind].counts.prompt,
                wanted[kind].counts.completion,
            )
            assert final.cost_nano == cost(PRICE, final.counts).total_nano
            assert final.timings.ttft_us == 0  # the first attempt's, which took it with it
            record, line = billed[one.request_id], lines[one.request_id]
            assert (record.counts, record.delivered_tokens) == (final.counts, final.counts.completion)
            assert (line["attempt"], line["counts"]["completion"]) == (2, final.counts.completion)
            assert await pool.hold_state(one.request_id) == "settled"
        redacted = text_of(await pool.frames(asked["a redacted chat"].request_id))
        assert "Nothing is" in redacted
        assert "mountain" not in redacted
        assert "lost" not in redacted

    async def test_ends_what_is_not_plain_with_an_error(self, pool, start, spawn, sim):
        sim(decode_tokens_per_second=60)
        odd = {"seed": 7, "n": 2, "stop": ["never said"], "min_tokens": 3, "logprobs": True, "presence_penalty": 0.5}
        asked = [
            await pool.submit(ticket(chat("hello", **ENDLESS, **{name: value}), max_tokens=900))
            for name, value in odd.items()
        ]
        async with spawn() as process:
            for one in asked:
                await pool.until_released(one.request_id, 6)
            process.kill()
            await process.wait()
        await pool.queue.register(worker_id="w1")
        ended = {record.request_id: record for record in await pool.unsettled()}
        assert {(ended[one.request_id].outcome, ended[one.request_id].error_code) for one in asked} == {
            ("failed", "worker_lost")
        }
        assert all(record.counts.completion >= 3 for record in ended.values())


class TestAnEngineThatDies:
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR1], ids=["whole", "behind a server that lives on"])
    async def test_loses_no_token(self, pool, start, sim, tmp_path, how):
        sim(decode_tokens_per_second=60)
        asked = await pool.submit(again(KINDS["a chat"]))
        async with start():
            await pool.until_released(asked.request_id, 9)
            os.kill(engine_of(tmp_path)["pid"], how)
            final = await pool.final(asked.request_id)
            calm = await pool.submit(again(KINDS["a chat"]))
            await pool.final(calm.request_id)
        assert (final.outcome, final.attempt, final.counts.completion) == (Outcome.OK, 2, 120)
        assert text_of(await pool.frames(asked.request_id)) == text_of(await pool.frames(calm.request_id))
        assert len(await pool.usage()) == 2

    async def test_again_and_again_sets_the_request_aside_billed_for_what_was_released(self, pool, start, sim):
        sim(die_after_tokens=30)
        asked = await pool.submit(again(KINDS["a chat"]))
        async with start():
            await pool.until_state(asked.request_id, JobState.ENDED)
        [record] = await pool.unsettled()
        assert (record.outcome, record.error_code, record.attempt) == ("failed", "dead_letter", 3)
        assert 60 < record.counts.completion == record.delivered_tokens <= 90
        assert finish_of(await pool.frames(asked.request_id)) == []
        assert (await pool.queue.depths()).dead_letters == 1


class TestADrain:
    async def test_hands_a_running_answer_to_the_next_worker(self, pool, start, sim):
        sim(decode_tokens_per_second=60)
        asked = await pool.submit(again(KINDS["a chat"]))
        async with start(drain_seconds=0.1):
            await pool.until_released(asked.request_id, 9)
        async with start(worker_id="w2"):
            final = await pool.final(asked.request_id)
        assert (final.outcome, final.attempt, final.counts.completion) == (Outcome.OK, 2, 120)
        status = await pool.queue.status(request_id=asked.request_id)
        assert (status.engine_deaths, status.lapses) == (0, 0)


class TestAWholeAnswerWithoutAnEnd:
    @pytest.mark.parametrize("kind", ["characters of many tokens", "a redacted chat", "a prompt"])
    async def test_is_ended_by_the_next_worker_which_generates_nothing(self, pool, start, monkeypatch, kind):
        """The worker died between its last frame and the end."""
        asked = (await submitted(pool))[kind]
        died = asyncio.Event()

        async def die(*_: object) -> None:
            died.set()
            raise GivenBack("its process is gone")

        with monkeypatch.context() as patched:
            patched.setattr(Closing, "close", die)
            async with start(), asyncio.timeout(60):
                while not finish_of(await pool.frames(asked.request_id)):
                    await died.wait()
                    died.clear()
        frames = await pool.frames(asked.request_id)
        await pool.queue.register(worker_id="w1")
        async with start(worker_id="w2"):
            final = await pool.final(asked.request_id)
        assert (final.outcome, final.finish_reason, final.attempt) == (Outcome.OK, finish_of(frames)[0], 2)
        assert await pool.frames(asked.request_id) == frames
        assert final.counts.completion == (120 if kind == "a prompt" else final.counts.completion) > 12
