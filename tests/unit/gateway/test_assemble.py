from typing import Any

import pytest

from contracts.jobs import Endpoint
from gateway.stream import assemble
from tests.unit.gateway.frames import REQUEST, content, final, frame


def chat(*frames: bytes) -> dict[str, Any]:
    return assemble.answer(
        frames, request_id=REQUEST, endpoint=Endpoint.CHAT, model="m", created_s=1_800_000_000, final=final()
    )


class TestAnswer:
    def test_joins_content_reasoning_and_the_finish_reason(self) -> None:
        answer = chat(
            frame({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}),
            frame({"index": 0, "delta": {"reasoning": "Hm"}, "finish_reason": None}),
            frame({"index": 0, "delta": {"reasoning": "m."}, "finish_reason": None}),
            frame(content("Grü")),
            frame(content("ße 🦊")),
            frame({"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": None}),
        )
        choice = answer["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "Grüße 🦊", "refusal": None, "reasoning": "Hmm."}
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        assert (answer["id"], answer["object"], answer["created"]) == (
            f"chatcmpl-{REQUEST}",
            "chat.completion",
            1_800_000_000,
        )

    def test_keeps_interleaved_choices_apart(self) -> None:
        answer = chat(
            frame(content("B", index=1)), frame(content("A", index=0)),
            frame(content("b", index=1, finish="length")), frame(content("a", index=0, finish="stop")),
        )  # fmt: skip
        assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
            (0, "Aa", "stop"),
            (1, "Bb", "length"),
        ]

    def test_joins_parallel_tool_calls_by_index(self) -> None:
        def calls(*parts: dict[str, Any]) -> bytes:
            return frame({"index": 0, "delta": {"tool_calls": list(parts)}, "finish_reason": None})

        answer = chat(
            calls({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}),
            calls({"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": '{"x"'}}),
            calls({"index": 0, "function": {"arguments": "{}"}}, {"index": 1, "function": {"arguments": ":1}"}}),
            frame({"index": 0, "delta": {}, "finish_reason": "tool_calls"}),
        )
        message = answer["choices"][0]["message"]
        assert message["content"] is None
        assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
            ("a", "f", "{}"),
            ("b", "g", '{"x":1}'),
        ]

    def test_joins_logprobs_of_a_chat(self) -> None:
        def logprobs(token: str) -> bytes:
            entry = {"token": token, "logprob": -0.5, "top_logprobs": []}
            return frame({"index": 0, "delta": {"content": token}, "logprobs": {"content": [entry]}})

        choice = chat(logprobs("a"), logprobs("b"), frame(content("", finish="stop")))["choices"][0]
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a", "b"]

    def test_joins_a_text_completion_with_its_logprobs(self) -> None:
        def chunk(text: str, offset: int, finish: str | None = None) -> bytes:
            logprobs = {"tokens": [text], "token_logprobs": [-1.0], "text_offset": [offset], "top_logprobs": None}
            return frame({"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish})

        answer = assemble.answer(
            [chunk("Once", 0), chunk(" more", 4, "length")],
            request_id=REQUEST, endpoint=Endpoint.COMPLETIONS, model="m", created_s=1, final=final(),
        )  # fmt: skip
        choice = answer["choices"][0]
        assert (answer["id"], answer["object"]) == (f"cmpl-{REQUEST}", "text_completion")
        assert (choice["text"], choice["logprobs"]["tokens"]) == ("Once more", ["Once", " more"])
        assert (choice["logprobs"]["text_offset"], choice["finish_reason"]) == ([0, 4], "length")

    def test_keeps_fields_that_it_does_not_know(self) -> None:
        answer = chat(
            frame(
                {"index": 0, "delta": {"content": "x", "mood": {"joy": 1}}, "beam": 3},
                system_fingerprint="fp",
                usage=None,
            ),
            frame(content("", finish="stop")),
        )
        assert answer["system_fingerprint"] == "fp"
        assert answer["choices"][0]["beam"] == 3
        assert answer["choices"][0]["message"]["mood"] == {"joy": 1}

    def test_never_invents_a_finish_reason(self) -> None:
        assert chat(frame(content("x")))["choices"][0]["finish_reason"] is None

    def test_tells_usage_cost_and_timings(self) -> None:
        answer = chat(frame(content("x", finish="stop")))
        assert answer["usage"] == {
            "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2},
            "cost": "0.0000165", "currency": "USD",
        }  # fmt: skip
        assert answer["weir"] == {
            "request_id": REQUEST, "attempt": 1, "timings": {"queue_ms": 1.5, "ttft_ms": 20.0}, "verdicts": [],
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("cut", "finish", "stopped_by"),
        [(True, "length", "budget"), (True, "stop", None), (False, "length", None)],
    )
    def test_names_the_budget_where_it_ended_the_answer(self, cut: bool, finish: str, stopped_by: str | None) -> None:
        own = assemble.extension(final(budget_cut=cut, finish_reason=finish))
        assert own.get("stopped_by") == stopped_by


class TestUsageChunk:
    def test_has_no_choices(self) -> None:
        chunk = assemble.usage_chunk(request_id=REQUEST, endpoint=Endpoint.CHAT, model="m", created_s=1, final=final())
        assert (chunk["choices"], chunk["object"]) == ([], "chat.completion.chunk")
        assert chunk["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
