"""From engine chunks to frames: what is rewritten, kept, guarded, left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from contracts.jobs import Endpoint
from safety.policy import CompiledPolicy
from safety.stream import OutputGuard
from tests.unit.workers.cast import TICKET, chunk, said, ticket
from workers.engines.base import EngineBroke
from workers.frames import FrameBuilder


def guard(action: str = "block", *words: str) -> OutputGuard:
    rule = {
        "name": "words",
        "kind": "ban_list",
        "stage": ["output"],
        "action": action,
        "config": {"words": list(words or ("pumpkin",)), "whole_words": False},
    }
    document: dict[str, Any] = {"id": "p", "version": 1, "rules": [rule]}
    return OutputGuard(CompiledPolicy.compile(document), None, monotonic=lambda: 0.0)


@dataclass
class Stream:
    """Feeds chunks and collects what leaves."""

    builder: FrameBuilder
    frames: list[dict[str, Any]] = field(default_factory=list)

    async def feed(self, *chunks: Any) -> list[dict[str, Any]]:
        new = [orjson.loads(frame) for one in chunks for frame in await self.builder.build(one)]
        self.frames += new
        return new

    def text(self, name: str = "content", index: int = 0) -> str:
        choices = [c for frame in self.frames for c in frame["choices"] if c["index"] == index]
        return "".join(c.get("delta", c).get(name) or "" for c in choices)

    def finishes(self, index: int = 0) -> list[str]:
        return [
            c["finish_reason"] for f in self.frames for c in f["choices"] if c["index"] == index and c["finish_reason"]
        ]


def plain(**changes: Any) -> Stream:
    return Stream(FrameBuilder(ticket(**changes), None))


def guarded(output: OutputGuard, **changes: Any) -> Stream:
    return Stream(FrameBuilder(ticket(**changes), output))


class TestRewriting:
    async def test_puts_our_names_in_place_of_the_engines(self):
        [frame] = await plain().feed(chunk(said("hi"), completion=1, usage={"prompt_tokens": 10}, prompt_token_ids=[1]))
        assert frame == {
            "id": f"chatcmpl-{TICKET.request_id}",
            "object": "chat.completion.chunk",
            "created": 1_800_000_000,
            "model": "toy-public",
            "choices": [{"index": 0, "delta": {"content": "hi"}, "logprobs": None, "finish_reason": None}],
        }

    async def test_keeps_fields_that_it_does_not_know(self):
        choice = {**said("hi"), "stop_reason": "x", "novel": {"a": 1}}
        [frame] = await plain().feed(chunk(choice, completion=1, system_fingerprint="fp"))
        assert frame["system_fingerprint"] == "fp"
        assert frame["choices"][0]["novel"] == {"a": 1}

    async def test_writes_a_null_usage_only_when_usage_is_asked_for(self):
        [frame] = await plain(include_usage=True).feed(chunk(said("hi"), completion=1))
        assert frame["usage"] is None

    @pytest.mark.parametrize("usage", [False, True])
    @pytest.mark.parametrize("text", ["hi", ' "\\ \n', "\u00e9\U0001f600\x00"])
    @pytest.mark.parametrize("more", [{}, {"stop_reason": None, "token_ids": [7]}, {"logprobs": {"content": []}}])
    async def test_writes_a_usual_chunk_as_it_writes_any_other(self, more, text, usage):
        choice = {**said(text), **more}
        short, long = plain(include_usage=usage), plain(include_usage=usage)
        [frame] = await short.feed(chunk(choice, completion=1, usage={"prompt_tokens": 10}))
        [other] = await long.feed(chunk(choice, completion=1, usage={"prompt_tokens": 10}, fingerprint="unusual"))
        assert other.pop("fingerprint") == "unusual"
        assert frame == other
        assert short.builder.answer() == long.builder.answer()
        assert short.builder.delivered_tokens == long.builder.delivered_tokens == 1

    async def test_names_plain_completions_differently(self):
        stream = plain(endpoint=Endpoint.COMPLETIONS)
        [frame] = await stream.feed(chunk({"index": 0, "text": "hi", "finish_reason": None}, completion=1))
        assert (frame["id"], frame["object"]) == (f"cmpl-{TICKET.request_id}", "text_completion")


class TestSending:
    async def test_keeps_the_role_and_leaves_out_what_says_nothing(self):
        stream = plain()
        assert len(await stream.feed(chunk(said("", role="assistant")))) == 1
        assert await stream.feed(chunk(said("")), chunk(said()), chunk(usage={})) == []
        assert len(await stream.feed(chunk(said("", finish="stop")))) == 1
        assert stream.builder.finished

    async def test_knows_the_finish_of_every_choice(self):
        stream = plain(choices=2)
        await stream.feed(chunk(said("a", finish="length")))
        assert not stream.builder.finished
        await stream.feed(chunk(said("b", index=1, finish="stop")))
        assert stream.builder.finished
        assert stream.builder.finish_reason == "length"

    async def test_refuses_a_choice_that_nobody_asked_for(self):
        with pytest.raises(EngineBroke, match="choice 1 of 1"):
            await plain().feed(chunk(said("x", index=1)))

    async def test_keeps_logprobs_without_a_guard(self):
        choice = {**said(""), "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}
        [frame] = await plain().feed(chunk(choice, completion=1))
        assert frame["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5


class TestGuard:
    @pytest.mark.parametrize("cut", range(1, len("a pumpkin pie")))
    async def test_lets_no_byte_of_a_match_out_for_any_cut(self, cut):
        text = "a pumpkin pie"
        stream = guarded(guard())
        await stream.feed(chunk(said(text[:cut]), completion=1), chunk(said(text[cut:]), completion=2))
        assert stream.text() == "a "
        assert stream.finishes() == ["content_filter"]
        assert stream.builder.blocked
        assert stream.builder.finish_reason == "content_filter"
        assert await stream.feed(chunk(said("more"), completion=3)) == []

    async def test_flushes_what_it_held_back_with_the_finish(self):
        stream = guarded(guard())
        await stream.feed(chunk(said("a pump"), completion=2))
        assert stream.text() == "a "
        [last] = await stream.feed(chunk(said("", finish="stop"), completion=3))
        assert last["choices"][0]["delta"]["content"] == "pump"
        assert last["choices"][0]["finish_reason"] == "stop"

    async def test_counts_as_delivered_what_it_does_not_hold_back(self):
        stream = guarded(guard())
        await stream.feed(chunk(said("fine "), completion=1))
        assert stream.builder.delivered_tokens == 1
        await stream.feed(chunk(said("pump"), completion=2))
        assert stream.builder.delivered_tokens == 1
        await stream.feed(chunk(said("s"), completion=3))
        assert stream.builder.delivered_tokens == 3

    async def test_redacts_and_goes_on(self):
        stream = guarded(guard("redact"))
        await stream.feed(chunk(said("a pum"), completion=1), chunk(said("pkin pie", finish="stop"), completion=2))
        assert "pumpkin" not in stream.text()
        assert stream.text().startswith("a ")
        assert stream.text().endswith(" pie")
        assert stream.finishes() == ["stop"]

    @pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "refusal", "something_new"])
    async def test_looks_at_every_text_field_of_a_delta(self, name):
        stream = guarded(guard())
        await stream.feed(chunk(said(None, **{name: "a pum"})), chunk(said(None, **{name: "pkin"})))
        assert stream.text(name) == "a "
        assert stream.builder.blocked

    async def test_looks_at_plain_completions(self):
        stream = guarded(guard(), endpoint=Endpoint.COMPLETIONS)
        await stream.feed(chunk({"index": 0, "text": "a pum", "finish_reason": None}))
        await stream.feed(chunk({"index": 0, "text": "pkin", "finish_reason": "stop"}))
        assert stream.text("text") == "a "
        assert stream.finishes() == ["content_filter"]

    async def test_looks_at_tool_calls(self):
        stream = guarded(guard())
        call = {"index": 1, "id": "c", "type": "function", "function": {"name": "cook", "arguments": '{"x":"pum'}}
        await stream.feed(chunk(said(None, tool_calls=[call])))
        sent = stream.frames[0]["choices"][0]["delta"]["tool_calls"][0]
        assert (sent["id"], sent["function"]) == ("c", {"name": "cook", "arguments": '{"x":"'})
        await stream.feed(chunk(said(None, tool_calls=[{"index": 1, "function": {"arguments": 'pkin"}'}}])))
        assert stream.builder.blocked
        assert "pkin" not in orjson.dumps(stream.frames).decode()

    async def test_flushes_held_back_tool_arguments(self):
        stream = guarded(guard())
        await stream.feed(chunk(said(None, tool_calls=[{"index": 0, "function": {"arguments": "pump"}}])))
        [last] = await stream.feed(chunk(said(None, finish="tool_calls")))
        [call] = last["choices"][0]["delta"]["tool_calls"]
        assert call == {"index": 0, "function": {"arguments": "pump"}}

    async def test_blocks_a_tool_by_its_name(self):
        stream = guarded(guard())
        call = {"index": 0, "id": "c", "function": {"name": "pumpkin_pie", "arguments": ""}}
        await stream.feed(chunk(said(None, tool_calls=[call])))
        assert stream.builder.blocked
        assert "pumpkin" not in orjson.dumps(stream.frames).decode()

    async def test_ends_every_open_choice(self):
        stream = guarded(guard(), choices=3)
        await stream.feed(chunk(said("done", index=2, finish="stop")), chunk(said("fine", index=1)))
        await stream.feed(chunk(said("pumpkin", index=0)))
        assert [stream.finishes(index) for index in range(3)] == [["content_filter"], ["content_filter"], ["stop"]]

    async def test_gives_no_logprobs_that_spell_the_text_out(self):
        choice = {**said("a pum"), "logprobs": {"content": [{"token": "pum", "logprob": -1}]}}
        stream = guarded(guard())
        await stream.feed(chunk(choice))
        assert stream.frames[0]["choices"][0]["logprobs"] is None

    async def test_remembers_the_released_answer(self):
        stream = guarded(guard())
        await stream.feed(chunk(said("one ")), chunk(said("two", finish="stop")))
        assert stream.builder.answer() == [{"finish_reason": "stop", "content": "one two"}]
