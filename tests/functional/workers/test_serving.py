"""Tickets through a real worker: claim, start, generate, guard, step, end, settle, ack."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from billing.rating.rate import cost
from contracts.jobs import Endpoint
from contracts.models import ModelCard
from contracts.outcomes import Outcome
from contracts.wire import decode
from fairqueue.messages import usage_from_stream
from fairqueue.queue import FairQueue
from safety.published import PolicyStore
from tests.functional.workers.cast import BAN_PUMPKIN, BAN_REF, MODEL, PRICE, chat, ticket
from workers.attempts import read_attempts


def text_of(frames: list[dict[str, Any]], index: int = 0) -> str:
    deltas = [choice for frame in frames for choice in frame["choices"] if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in deltas)


def finish_of(frames: list[dict[str, Any]], index: int = 0) -> list[str]:
    return [c["finish_reason"] for f in frames for c in f["choices"] if c["index"] == index and c["finish_reason"]]


class TestOneRequest:
    async def test_is_generated_logged_billed_and_settled(self, pool, start, tmp_path):
        asked = ticket(chat("say: The weir holds 🌊 水 back."))
        await pool.submit(asked)
        async with start():
            final = await pool.final(asked.request_id)
        frames = await pool.frames(asked.request_id)

        assert text_of(frames) == "The weir holds 🌊 水 back."
        assert finish_of(frames) == ["stop"]
        assert frames[0]["choices"][0]["delta"]["role"] == "assistant"
        for frame in frames:
            assert frame["id"] == f"chatcmpl-{asked.request_id}"
            assert (frame["model"], frame["created"]) == (MODEL, 1_800_000_000)
            assert "usage" not in frame
            assert "prompt_token_ids" not in frame
            assert all("token_ids" not in choice for choice in frame["choices"])

        assert final.outcome is Outcome.OK
        assert final.finish_reason == "stop"
        assert final.status == 200
        assert final.counts.prompt > 0
        assert final.counts.completion > 0
        assert final.cost_nano == cost(PRICE, final.counts).total_nano > 0
        assert final.timings.ttft_us >= asked.edge_us + final.timings.queue_us
        assert sum(final.timings.itl.values()) == final.counts.completion - 1 or final.timings.itl

        [usage] = [usage_from_stream(fields) for fields in await pool.usage()]
        assert (usage.request_id, usage.counts, usage.outcome) == (asked.request_id, final.counts, "ok")
        assert usage.delivered_tokens == final.counts.completion
        assert await pool.hold_state(asked.request_id) == "settled"
        assert await pool.unsettled() == []
        [line] = read_attempts(tmp_path / "attempts" / "w1.jsonl")
        assert line["request_id"] == asked.request_id
        assert line["counts"]["completion"] == final.counts.completion

    async def test_asks_for_usage_null_in_frames_when_the_client_wants_usage(self, pool, start):
        asked = await pool.submit(ticket(chat("say: hi"), include_usage=True))
        async with start():
            await pool.final(asked.request_id)
        assert {frame["usage"] for frame in await pool.frames(asked.request_id)} == {None}

    async def test_serves_plain_completions_and_choices(self, pool, start):
        body = {"prompt": "Once upon a time", "n": 2}
        asked = await pool.submit(ticket(body, endpoint=Endpoint.COMPLETIONS, max_tokens=12))
        async with start():
            final = await pool.final(asked.request_id)
        frames = await pool.frames(asked.request_id)
        assert {frame["object"] for frame in frames} == {"text_completion"}
        assert frames[0]["id"] == f"cmpl-{asked.request_id}"
        assert text_of(frames, 0)
        assert text_of(frames, 1)
        assert finish_of(frames, 0) == finish_of(frames, 1) == ["length"]
        assert final.counts.completion == 24
        assert final.finish_reason == "length"

    async def test_uses_the_cache_of_its_own_tenant_only(self, pool, start):
        long = "say: " + "the river rises and falls, " * 12
        async with start():
            first = await pool.final((await pool.submit(ticket(chat(long)))).request_id)
            again = await pool.final((await pool.submit(ticket(chat(long)))).request_id)
            other = await pool.final((await pool.submit(ticket(chat(long), cache_salt="salt-of-mallory"))).request_id)
        assert first.counts.cached == 0
        assert again.counts.cached > 0
        assert again.cost_nano < first.cost_nano
        assert other.counts.cached == 0

    async def test_ends_with_the_engines_refusal(self, pool, start):
        asked = await pool.submit(ticket(chat("hello"), max_tokens=100_000))
        async with start():
            final = await pool.final(asked.request_id)
        assert (final.outcome, final.status, final.error_code) == (Outcome.FAILED, 400, "context_length_exceeded")
        assert final.error_param == "max_tokens"
        assert final.error_message == "The prompt and `max_tokens` do not fit into the model's context together."
        assert final.cost_nano == 0
        assert final.counts.total == 0

    async def test_tells_its_client_as_the_record_does_when_the_log_lost_a_frame(self, pool, start, monkeypatch):
        end = FairQueue.end

        async def after_a_failover(queue: FairQueue, **said: Any) -> bool:
            monkeypatch.setattr(FairQueue, "end", end)
            await pool.redis.hincrby(f"{queue.keys.prefix}job:{said['request_id']}", "last_seq", -1)
            return await end(queue, **said)

        monkeypatch.setattr(FairQueue, "end", after_a_failover)
        asked = await pool.submit(ticket(chat("say: lost")))
        async with start():
            final = await pool.final(asked.request_id)
        [fields] = await pool.usage()
        assert (fields[b"outcome"], fields[b"error"]) == (b"failed", b"worker_lost")
        assert (final.outcome, final.error_code, final.status) == (Outcome.FAILED, "worker_lost", 502)
        assert final.finish_reason == ""

    async def test_does_not_generate_on_a_voided_hold(self, pool, start):
        asked = await pool.submit(ticket(chat("say: never")))
        assert await pool.limits.void(tenant_id=asked.tenant_id, request_id=asked.request_id, reason="test")
        async with start():
            final = await pool.final(asked.request_id)
        assert final.outcome is Outcome.CANCELLED
        assert final.counts.total == 0
        assert await pool.frames(asked.request_id) == []


class TestManyRequests:
    async def test_all_end_once_with_their_own_text(self, pool, start):
        texts = {f"marker {number} of many" for number in range(40)}
        asked = {text: await pool.submit(ticket(chat(f"say: {text}"))) for text in texts}
        async with start():
            for text, one in asked.items():
                final = await pool.final(one.request_id)
                assert final.outcome is Outcome.OK
                assert text_of(await pool.frames(one.request_id)) == text
        assert len(await pool.usage()) == 40
        assert (await pool.queue.depths()).running == 0


class TestGuard:
    async def test_stops_a_banned_word_before_the_log(self, pool, start):
        await PolicyStore(pool.redis).put(BAN_PUMPKIN)
        asked = await pool.submit(ticket(chat("say: one green pumpkin for you"), policy=BAN_REF))
        async with start():
            final = await pool.final(asked.request_id)
        frames = await pool.frames(asked.request_id)
        assert text_of(frames) == "one green "
        assert finish_of(frames) == ["content_filter"]
        assert final.outcome is Outcome.GUARDRAIL
        assert final.finish_reason == "content_filter"
        assert final.verdicts

    async def test_lets_everything_else_through_unchanged(self, pool, start):
        await PolicyStore(pool.redis).put(BAN_PUMPKIN)
        asked = await pool.submit(ticket(chat("say: pump up the kin, pump"), policy=BAN_REF))
        async with start():
            final = await pool.final(asked.request_id)
        frames = await pool.frames(asked.request_id)
        assert text_of(frames) == "pump up the kin, pump"
        assert final.outcome is Outcome.OK
        [usage] = [usage_from_stream(fields) for fields in await pool.usage()]
        assert usage.delivered_tokens == final.counts.completion

    async def test_has_compiled_it_before_it_is_asked_for(self, pool, start):
        await PolicyStore(pool.redis).put(BAN_PUMPKIN)
        async with start() as worker:
            policies = worker._ports.policies
            first = await pool.submit(ticket(chat("say: hi")))
            await pool.final(first.request_id)  # it serves
            await pool.redis.delete("w:policy:no-pumpkins:1")
            asked = await pool.submit(ticket(chat("say: one green pumpkin"), policy=BAN_REF))
            final = await pool.final(asked.request_id)
            assert policies._known(BAN_REF) is not None
        assert final.outcome is Outcome.GUARDRAIL

    async def test_fails_closed_without_the_policy(self, pool, start):
        asked = await pool.submit(ticket(chat("say: anything"), policy=BAN_REF))
        async with start():
            final = await pool.final(asked.request_id)
        assert (final.outcome, final.status, final.cost_nano) == (Outcome.FAILED, 503, 0)
        assert await pool.frames(asked.request_id) == []


class TestCancel:
    async def test_t13_stops_the_engine_and_bills_what_was_logged(self, pool, start, sim):
        sim(decode_tokens_per_second=40)
        asked = await pool.submit(ticket(chat("hello", ignore_eos=True), max_tokens=2_000))
        async with start() as worker:
            await pool.until_released(asked.request_id, 5)
            await pool.queue.cancel(request_id=asked.request_id, generation=None, reason="cancelled")
            final = await pool.final(asked.request_id)
            async with asyncio.timeout(10):
                while (await worker._ports.host.adapter.stats()).kv_usage:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
        frames = await pool.frames(asked.request_id)
        assert final.outcome is Outcome.CANCELLED
        assert final.status == 499
        assert finish_of(frames) == []
        assert 0 < final.counts.completion < 2_000
        assert final.cost_nano == cost(PRICE, final.counts).total_nano
        assert final.counts.completion <= len(frames)
        [usage] = await pool.usage()
        assert int(usage[b"completion"]) == int(usage[b"delivered"]) == final.counts.completion
        assert int(usage[b"prompt"]) == final.counts.prompt > 0


class TestRegistration:
    async def test_publishes_the_card_and_a_heartbeat(self, pool, start, redis):
        asked = await pool.submit(ticket(chat("say: hi")))
        async with start():
            await pool.final(asked.request_id)
            beat = orjson.loads(await redis.get("w:workers:w1"))
            card = decode(ModelCard, await redis.hget("w:models", MODEL))
            assert 0 < await redis.pttl("w:workers:w1") <= 6_000
        assert beat["pool"] == card.pool == "toy"
        assert beat["worker_id"] == "w1"
        assert (card.engine, card.block_tokens, card.context_tokens) == ("simulated", 16, 4096)
        assert (card.layers, card.heads, card.kv_heads, card.head_size, card.dtype) == (2, 4, 2, 16, "bfloat16")
        assert await redis.get("w:workers:w1") is None
