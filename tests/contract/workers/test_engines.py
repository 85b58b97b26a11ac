"""What every engine must do, through the adapter that the worker uses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tokenizers import Tokenizer

from contracts.jobs import Endpoint
from tests.contract.workers.conftest import Engine, request
from workers.engines.base import EngineChunk, EngineRefused

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def texts(chunks: list[EngineChunk], index: int = 0) -> str:
    found = [choice for chunk in chunks for choice in chunk.body["choices"] if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in found)


def finishes(chunks: list[EngineChunk], index: int = 0) -> list[str]:
    return [c["finish_reason"] for k in chunks for c in k.body["choices"] if c["index"] == index and c["finish_reason"]]


def token_ids(chunks: list[EngineChunk], index: int = 0) -> list[int]:
    return [t for k in chunks for c in k.body["choices"] if c["index"] == index for t in c.get("token_ids") or []]


class TestCounts:
    async def test_are_exact_and_grow_with_every_chunk(self, engine: Engine):
        chunks = await engine.all(chat("Tell me about rivers.", ignore_eos=True), max_tokens=16)
        seen = [chunk.counts.completion for chunk in chunks]
        assert seen == sorted(seen)
        assert seen[-1] == 16 == len(token_ids(chunks))
        prompt_ids = next(chunk.body["prompt_token_ids"] for chunk in chunks if chunk.body.get("prompt_token_ids"))
        assert {chunk.counts.prompt for chunk in chunks} == {len(prompt_ids)}

    async def test_of_a_plain_prompt_are_those_of_the_tokenizer(self, engine: Engine):
        prompt = "The level of the river rises in spring, and falls in summer."
        chunks = await engine.all({"prompt": prompt, "temperature": 0}, endpoint=Endpoint.COMPLETIONS, max_tokens=4)
        tokenizer = Tokenizer.from_file(str(engine.model / "tokenizer.json"))
        assert chunks[-1].counts.prompt == len(tokenizer.encode(prompt).ids)

    async def test_take_a_prompt_of_token_ids(self, engine: Engine):
        chunks = await engine.all({"prompt": [40, 41, 42]}, endpoint=Endpoint.COMPLETIONS, max_tokens=4)
        assert chunks[-1].counts.prompt == 3
        assert chunks[-1].counts.completion <= 4

    async def test_of_choices_add_up(self, engine: Engine):
        body = chat("Name a river.", n=2, ignore_eos=True, temperature=0.8, seed=7)
        chunks = await engine.all(body, max_tokens=10)
        assert chunks[-1].counts.completion == 20
        assert len(token_ids(chunks, 0)) == len(token_ids(chunks, 1)) == 10
        seen = [chunk.counts.completion for chunk in chunks]
        assert seen == sorted(seen)
        assert finishes(chunks, 0) == finishes(chunks, 1) == ["length"]


class TestPrefixCache:
    async def test_is_hit_by_the_same_salt_and_missed_by_another(self, engine: Engine):
        long = "The weir keeps the water of the mill at its level. " * 24
        first = await engine.all(chat(long), salt="acme-1", max_tokens=4)
        again = await engine.all(chat(long), salt="acme-1", max_tokens=4)
        other = await engine.all(chat(long), salt="mallory-1", max_tokens=4)
        assert first[-1].counts.cached == 0
        assert 0 < again[-1].counts.cached < again[-1].counts.prompt
        assert other[-1].counts.cached == 0
        facts = await engine.host.adapter.facts()
        assert again[-1].counts.cached % facts.block_tokens == 0

    async def test_gives_the_same_text_cold_and_warm(self, engine: Engine):
        body = chat("Count the stones of the weir. " * 12)
        assert texts(await engine.all(body, salt="x")) == texts(await engine.all(body, salt="x"))


class TestEnds:
    async def test_at_max_tokens_with_length(self, engine: Engine):
        chunks = await engine.all(chat("Tell me a long story.", ignore_eos=True), max_tokens=5)
        assert finishes(chunks) == ["length"]
        assert chunks[-1].counts.completion == 5

    async def test_before_a_stop_string(self, engine: Engine):
        whole = texts(await engine.all(chat("Tell me about the sea."), max_tokens=24))
        stop = whole[6:9]
        chunks = await engine.all(chat("Tell me about the sea.", stop=[stop]), max_tokens=24)
        assert texts(chunks) == whole[: whole.index(stop)]
        assert finishes(chunks) == ["stop"]

    async def test_with_the_engines_own_reason_exactly_once(self, engine: Engine):
        chunks = await engine.all(chat("Hi"), max_tokens=60)
        assert len(finishes(chunks)) == 1


class TestLogprobs:
    async def test_of_a_chat_name_every_token(self, engine: Engine):
        chunks = await engine.all(chat("Hi there", logprobs=True, top_logprobs=2, ignore_eos=True), max_tokens=6)
        entries = [e for k in chunks for c in k.body["choices"] for e in (c.get("logprobs") or {}).get("content") or []]
        assert len(entries) == 6
        assert all(entry["logprob"] <= 0 and entry["top_logprobs"] for entry in entries)


class TestText:
    async def test_never_breaks_a_character(self, engine: Engine):
        """Tokens that end inside a character release nothing; a cut answer drops the incomplete one."""
        wanted = "say: 🌊🌊 水の流れ 👩‍🔬 🏞️ ok"
        whole = texts(await engine.all(chat(wanted, ignore_eos=True), max_tokens=60))
        assert "\ufffd" not in whole
        if engine.kind == "simulated":
            assert whole.startswith(wanted.removeprefix("say: "))
        for length in range(1, 14):
            cut = texts(await engine.all(chat(wanted, ignore_eos=True), max_tokens=length))
            assert "\ufffd" not in cut
            assert whole.startswith(cut)

    async def test_of_emoji_prompts_comes_whole_from_token_ids(self, engine: Engine):
        """Forces tokens that split characters, whatever the model likes to say."""
        tokenizer = Tokenizer.from_file(str(engine.model / "tokenizer.json"))
        ids = tokenizer.encode("🌊 水 👩‍🔬 " * 6, add_special_tokens=False).ids
        chunks = await engine.all(
            {"prompt": ids, "temperature": 0, "ignore_eos": True}, endpoint=Endpoint.COMPLETIONS, max_tokens=40
        )
        for chunk in chunks:
            assert all("\ufffd" not in (choice["text"] or "") for choice in chunk.body["choices"])


class TestTokenIds:
    """What a request needs to go on at another engine."""

    @pytest.mark.parametrize(
        ("endpoint", "body"),
        [
            (Endpoint.CHAT, chat("Tell me about 水 and rivers.", temperature=0)),
            (Endpoint.COMPLETIONS, {"prompt": "The level of the 🌊 rises", "temperature": 0}),
        ],
    )
    async def test_say_the_prompt_and_the_text_that_was_answered(self, engine: Engine, endpoint: Endpoint, body: Any):
        chunks = await engine.all({**body, "ignore_eos": True}, endpoint=endpoint, max_tokens=20)
        given = [chunk.body.get("prompt_token_ids") for chunk in chunks]
        given += [choice.get("prompt_token_ids") for chunk in chunks for choice in chunk.body["choices"]]
        prompt = await engine.host.adapter.tokenize(endpoint=endpoint, body=body)
        assert len(prompt) == chunks[-1].counts.prompt
        assert [ids for ids in given if ids and ids != prompt] == []
        said = await engine.host.adapter.detokenize(token_ids(chunks))
        assert said.rstrip("\ufffd") == texts(chunks)

    async def test_are_gone_on_from_as_if_nothing_had_happened(self, engine: Engine):
        body = chat("Tell me a story of a mill.", temperature=0, ignore_eos=True)
        whole = await engine.all(body, max_tokens=24)
        prompt, ids = await engine.host.adapter.tokenize(endpoint=Endpoint.CHAT, body=body), token_ids(whole)
        for cut in (1, 7, 23):
            sampling = {"temperature": 0, "ignore_eos": True, "prompt": [*prompt, *ids[:cut]]}
            rest = await engine.all(sampling, endpoint=Endpoint.COMPLETIONS, max_tokens=24 - cut)
            assert rest[-1].counts.completion == 24 - cut
            assert rest[-1].counts.prompt == len(prompt) + cut
            assert token_ids(rest) == ids[cut:]
            assert finishes(rest) == ["length"]

    @pytest.mark.parametrize("text", ["Tell me a story of a mill.", "say: 🌊 水の流れ 👩‍🔬"])
    async def test_come_with_each_chunk_that_counts_them(self, engine: Engine, text: str):
        total = 0
        for one in await engine.all(chat(text, ignore_eos=True), max_tokens=40):
            total += len(token_ids([one]))
            assert one.counts.completion == total
        assert total == 40

    async def test_that_no_model_has_are_refused(self, engine: Engine):
        with pytest.raises(EngineRefused):
            await engine.host.adapter.detokenize(["no id"])


class TestAbort:
    async def test_frees_the_cache_within_a_second(self, engine: Engine):
        await engine.until(lambda s: s.running == 0 and s.kv_usage == 0, seconds=30)
        async with engine.host.adapter.generate(
            request(chat("On and on", ignore_eos=True), max_tokens=2_000)
        ) as chunks:
            async for chunk in chunks:
                if chunk.counts.completion >= 3:
                    break
            assert (await engine.host.adapter.stats()).running == 1
        await engine.until(lambda s: s.running == 0 and s.kv_usage == 0, seconds=2)

    async def test_of_one_does_not_disturb_another(self, engine: Engine):
        alone = texts(await engine.all(chat("Describe a mill.", ignore_eos=True), max_tokens=20))

        async def abandon() -> None:
            async with engine.host.adapter.generate(request(chat("Noise", ignore_eos=True), max_tokens=900)) as chunks:
                async for _ in chunks:
                    break

        async with asyncio.TaskGroup() as group:
            kept = group.create_task(engine.all(chat("Describe a mill.", ignore_eos=True), max_tokens=20))
            group.create_task(abandon())
        assert texts(kept.result()) == alone

    async def test_before_the_first_token_leaves_nothing_behind(self, engine: Engine):
        begun = asyncio.ensure_future(engine.all(chat("x " * 500, ignore_eos=True), max_tokens=500))
        await asyncio.wait({begun}, timeout=0.01)
        begun.cancel()
        await asyncio.wait({begun})
        await engine.until(lambda s: s.running == 0 and s.waiting == 0 and s.kv_usage == 0, seconds=15)


class TestRefusals:
    async def test_say_what_is_wrong(self, engine: Engine):
        with pytest.raises(EngineRefused, match=r"max_tokens|context"):
            await engine.all(chat("hello"), max_tokens=1_000_000)


class TestFacts:
    async def test_name_block_size_and_size_of_the_cache(self, engine: Engine):
        facts = await engine.host.adapter.facts()
        assert facts.block_tokens > 0
        assert facts.blocks > 0
        assert facts.context_tokens > 0
        assert facts.served_model == "m"
        assert facts.version

    async def test_show_progress_while_it_works(self, engine: Engine):
        before = (await engine.host.adapter.stats()).progress
        await engine.all(chat("hello"), max_tokens=4)
        assert (await engine.host.adapter.stats()).progress != before
