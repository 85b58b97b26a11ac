"""What may go on at another engine, and that it goes on from every frame as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from contracts.jobs import Claim, Endpoint
from contracts.outcomes import JobState
from contracts.tokens import TokenCounts
from fairqueue.messages import LogSlice, unpack_ids
from tests.unit.workers.cast import chunk, claim, ticket
from tests.unit.workers.test_frames import guard
from workers.continuation import CannotContinue, Past, as_continued, engine_id, is_plain, plan, read_past
from workers.engines.base import FULL, PLAIN, EngineChunk
from workers.engines.simulated.model import LocalModel
from workers.engines.simulated.toy import write_toy_model
from workers.frames import FrameBuilder
from workers.verdict import GivenBack

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    return LocalModel.load(write_toy_model(tmp_path_factory.mktemp("toy")))


class Engine:
    """Tokens by the model's own files, as the engine's routes give them."""

    def __init__(self, model: LocalModel, capabilities: Any = FULL) -> None:
        self.capabilities = capabilities
        self.model = model

    async def tokenize(self, *, endpoint: Endpoint, body: dict[str, Any]) -> list[int]:
        if endpoint is Endpoint.CHAT:
            return self.model.chat(messages=body["messages"], tools=None)[0]
        return self.model.complete(body["prompt"])[0]

    async def detokenize(self, ids: list[int]) -> str:
        return self.model.tokenizer.decode(ids, skip_special_tokens=False)


class Released:
    """A request's log and ids, as the pool keeps them."""

    def __init__(self, frames: list[bytes], ids: list[int] | None) -> None:
        self.frames, self.ids = frames, ids

    async def read_log(self, *, request_id: str, after_seq: int, limit: int) -> LogSlice:
        frames = self.frames[after_seq : after_seq + min(limit, 3)]
        return LogSlice(frames=frames, first_seq=after_seq + 1, epoch="2-b", state=JobState.RUNNING, final=None)

    async def read_ids(self, *, request_id: str, fence: str) -> list[int] | None:
        return self.ids


class TestPlain:
    @pytest.mark.parametrize(
        "body",
        [
            CHAT,
            {**CHAT, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "ignore_eos": True, "n": 1},
            {**CHAT, "stop": [], "seed": None, "tools": None, "logprobs": False, "presence_penalty": 0},
            {**CHAT, "response_format": {"type": "text"}, "logit_bias": {"5": 1}, "max_completion_tokens": 7},
            {"prompt": "once"},
        ],
    )
    def test_is_what_follows_from_tokens_alone(self, body: dict[str, Any]) -> None:
        assert is_plain(ticket(), body)

    @pytest.mark.parametrize(
        "field",
        [
            {"seed": 0},
            {"stop": ["x"]},
            {"stop": "x"},
            {"tools": [{"type": "function"}]},
            {"tool_choice": "auto"},
            {"response_format": {"type": "json_object"}},
            {"logprobs": True},
            {"logprobs": 0},
            {"min_tokens": 1},
            {"presence_penalty": 0.1},
            {"frequency_penalty": -1},
            {"repetition_penalty": 1.1},
            {"bad_words": ["x"]},
            {"skip_special_tokens": False},
            {"include_reasoning": True},
            {"reasoning_effort": "low"},
            {"a_field_of_tomorrow": 1},
        ],
        ids=lambda field: "=".join(map(str, *field.items())),
    )
    def test_is_nothing_else(self, field: dict[str, Any]) -> None:
        assert not is_plain(ticket(), {**CHAT, **field})

    def test_is_one_choice(self) -> None:
        assert not is_plain(ticket(choices=2), CHAT)


def chunks_of(tokenizer: Tokenizer, text: str, *, step: int, chat: bool, start: int = 0) -> list[EngineChunk]:
    """An engine's chunks of `step` tokens each; text inside of a character waits, as engines hold it back."""
    ids = [token for byte in text for token in tokenizer.encode(byte, add_special_tokens=False).ids]
    made, said = [], len(tokenizer.decode(ids[:start]).rstrip("\ufffd"))
    for at in range(start, len(ids), step):
        upto = min(at + step, len(ids))
        whole = tokenizer.decode(ids[:upto]).rstrip("\ufffd")
        piece, said = whole[said:], len(whole)
        finish = "length" if upto == len(ids) else None
        choice = {"index": 0, "logprobs": None, "finish_reason": finish, "token_ids": ids[at:upto]}
        choice |= {"delta": {"content": piece}} if chat else {"text": piece}
        made.append(chunk(choice, completion=upto))
    return made


TEXT = "The pump, a pumpkin 🎃 in 水 the mill's pumpkins, and one 👩‍🔬 pump."


class TestAContinuedRequest:
    @pytest.mark.parametrize("step", [1, 3])
    @pytest.mark.parametrize("guarded", [False, True])
    @pytest.mark.parametrize("endpoint", list(Endpoint))
    async def test_says_the_same_from_wherever_it_was_lost(
        self, model: LocalModel, step: int, guarded: bool, endpoint: Endpoint
    ) -> None:
        asked = ticket(endpoint=endpoint, max_tokens=500)
        body = CHAT if endpoint is Endpoint.CHAT else {"prompt": "hi"}
        chat = endpoint is Endpoint.CHAT
        whole = chunks_of(model.tokenizer, TEXT, step=step, chat=chat)

        def output() -> Any:
            return guard("redact") if guarded else None

        async def go(builder: FrameBuilder, chunks: list[EngineChunk]) -> tuple[list[bytes], list[int], list[int]]:
            """Frames, ids, and how many ids there were at each frame."""
            frames: list[bytes] = []
            ids: list[int] = []
            upto: list[int] = []
            for one in chunks:
                fresh = await builder.build(one)
                packed = builder.take_ids(frames=len(fresh))
                assert packed is not None
                for frame, its in zip(fresh, packed, strict=True):
                    frames.append(frame)
                    ids += unpack_ids(its)
                    upto.append(len(ids))
            return frames, ids, upto

        frames, ids, upto = await go(FrameBuilder(asked, output(), keeps_ids=True), whole)
        wanted = shown(frames)
        assert ("pumpkin" in wanted) is not guarded
        prompt = await Engine(model).tokenize(endpoint=endpoint, body=body)
        for lost in range(1, len(frames)):
            billed = TokenCounts(prompt=len(prompt), cached=2, completion=upto[lost - 1])
            held = claim(log_length=lost, counts=billed, attempt=2)
            held = replace(held, ticket=asked)
            past = await read_past(Released(frames[:lost], ids[: upto[lost - 1]]), held)
            request, past = await plan(Engine(model), ticket=asked, claim=held, past=past, body=body)  # type: ignore[arg-type]
            assert request.body == {"prompt": [*prompt, *past.ids]}
            assert request.max_tokens == 500 - len(past.ids)
            builder = FrameBuilder(asked, output(), keeps_ids=True)
            assert await resumed(builder, past)
            rest = chunks_of(model.tokenizer, TEXT, step=1, chat=False, start=len(past.ids))
            own = [replace(one, counts=TokenCounts(prompt=9, completion=n + 1)) for n, one in enumerate(rest)]
            more: list[bytes] = []
            for one in own:
                known = as_continued(one, chat=chat, before=billed, tokens=len(past.ids))
                assert (known.counts.prompt, known.counts.cached) == (len(prompt), 2)
                assert known.counts.completion >= billed.completion
                more += await builder.build(known)
                if not past.is_cut:
                    assert builder.take_ids(frames=1) is not None
            assert shown(frames[:lost]) + shown(more) == wanted
            assert known.counts.completion == len(ids)
            assert builder.delivered_tokens == len(ids) or guarded
            assert builder.finished

    async def test_that_has_only_begun_asks_for_the_whole_answer(self, model: LocalModel) -> None:
        """Its role is out; with a guard that waits for the end that is all for long."""
        held = begun(counts=TokenCounts(prompt=0))
        past = await read_past(Released([frame("")], []), held)
        request, past = await plan(Engine(model), ticket=ticket(), claim=held, past=past, body=CHAT)  # type: ignore[arg-type]
        assert request.body["prompt"] == await Engine(model).tokenize(endpoint=Endpoint.CHAT, body=CHAT)
        assert request.max_tokens == ticket().max_tokens
        assert await resumed(FrameBuilder(ticket(), guard(), keeps_ids=True), past)

    async def test_that_released_its_end_has_nothing_left(self, model: LocalModel) -> None:
        ids = [*model.tokenizer.encode("all of it").ids, model.eos or 0]
        frames = [frame("all of"), frame(" it", finish="stop")]
        held = claim(log_length=2, counts=TokenCounts(completion=len(ids)))
        past = await read_past(Released(frames, ids), held)
        _, past = await plan(Engine(model), ticket=ticket(), claim=held, past=past, body=CHAT)  # type: ignore[arg-type]
        builder = FrameBuilder(ticket(), None)
        assert await resumed(builder, past)
        assert (builder.finish_reason, builder.answer()) == (
            "stop",
            [{"finish_reason": "stop", "content": "all of it"}],
        )

    async def test_stops_where_the_ids_say_another_text(self, model: LocalModel) -> None:
        ids = model.tokenizer.encode("one text").ids
        past = Past(ids=ids, shown="another", finish_reason="")
        _, past = await plan(Engine(model), ticket=ticket(), claim=begun(), past=past, body=CHAT)  # type: ignore[arg-type]
        assert not await resumed(FrameBuilder(ticket(), None, keeps_ids=True), past)

    async def test_stops_where_the_prompt_is_another(self, model: LocalModel) -> None:
        past = Past(ids=[300], shown="x", finish_reason="")
        held = begun(counts=TokenCounts(prompt=3))
        with pytest.raises(CannotContinue, match="prompt"):
            await plan(Engine(model), ticket=ticket(), claim=held, past=past, body=CHAT)  # type: ignore[arg-type]

    async def test_stops_at_an_engine_that_takes_no_ids(self, model: LocalModel) -> None:
        past = Past(ids=[300], shown="x", finish_reason="")
        with pytest.raises(CannotContinue, match="token ids"):
            await plan(Engine(model, PLAIN), ticket=ticket(), claim=begun(), past=past, body=CHAT)  # type: ignore[arg-type]

    @pytest.mark.parametrize("reason", ["content_filter", "tool_calls"])
    async def test_stops_at_an_end_that_is_not_the_answers(self, reason: str) -> None:
        with pytest.raises(CannotContinue, match=reason):
            await read_past(Released([frame("x", finish=reason)], [1]), begun())

    async def test_stops_at_a_log_that_lacks_frames(self) -> None:
        with pytest.raises(CannotContinue, match="0 of 1 frames"):
            await read_past(Released([], [1]), begun())

    async def test_is_given_back_when_it_is_another_workers(self) -> None:
        with pytest.raises(GivenBack):
            await read_past(Released([], None), begun())


class TestIds:
    async def test_are_not_kept_of_a_text_beside_the_content(self) -> None:
        builder = FrameBuilder(ticket(), None, keeps_ids=True)
        delta = {"content": "", "reasoning": "hm"}
        await builder.build(chunk({"index": 0, "delta": delta, "token_ids": [1]}, completion=1))
        assert builder.take_ids(frames=1) is None

    async def test_are_not_kept_when_a_token_has_none(self) -> None:
        builder = FrameBuilder(ticket(), None, keeps_ids=True)
        await builder.build(chunk({"index": 0, "delta": {"content": "a"}, "token_ids": [1]}, completion=2))
        assert builder.take_ids(frames=1) is None

    async def test_are_not_kept_past_a_block(self) -> None:
        builder = FrameBuilder(ticket(), guard(), keeps_ids=True)
        await builder.build(chunk({"index": 0, "delta": {"content": "a pumpkin"}, "token_ids": [1]}, completion=1))
        assert builder.blocked
        assert builder.take_ids(frames=1) is None


def begun(**changes: Any) -> Claim:
    return claim(**{"log_length": 1, "attempt": 2, **changes})


async def resumed(builder: FrameBuilder, past: Past) -> bool:
    return await builder.resume(
        text=past.text,
        shown=past.shown,
        tokens=len(past.ids),
        finish_reason=past.finish_reason,
        is_cut=past.is_cut,
    )


def frame(text: str, *, finish: str | None = None) -> bytes:
    return orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def shown(frames: list[bytes]) -> str:
    choices = [choice for one in frames for choice in orjson.loads(one)["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


class TestCounts:
    @pytest.mark.parametrize(
        ("before", "found", "cached"),
        [
            (TokenCounts(prompt=40, cached=16, completion=3), 32, 16),  # the first attempt told it
            (TokenCounts(prompt=40, completion=3), 32, 32),  # it had not: what this one found
            (TokenCounts(prompt=40, completion=3), 48, 40),  # of the prompt, not of the answer that is read again
            (TokenCounts(), 32, 32),  # nothing was counted before
        ],
    )
    def test_of_the_prompt_are_the_first_attempts_where_it_told_them(
        self, before: TokenCounts, found: int, cached: int
    ) -> None:
        last = EngineChunk(body={"choices": []}, counts=TokenCounts(prompt=48, cached=found, completion=5))
        counts = as_continued(last, chat=True, before=before, tokens=8).counts
        assert (counts.prompt, counts.cached, counts.completion) == (40, cached, 13)


class TestName:
    def test_at_the_engine_is_never_another_attempts(self) -> None:
        """After a lost queue a request's first attempt comes again, perhaps while the engine still has the old one."""
        lives = [replace(claim(), fence=fence) for fence in ("1-aaaa", "1-bbbb", "2-aaaa")]
        assert len({engine_id(each) for each in lives}) == 3
