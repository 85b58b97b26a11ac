"""What a client is told of an engine's refusal: our words, its own field, nothing of the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.outcomes import Outcome
from workers.engines.base import EngineRefused
from workers.refusals import explain

CHAT: dict[str, Any] = {"messages": [], "max_tokens": 9, "temperature": 3.5, "response_format": {}, "stop": ["x"]}
SCHEMA = "The provided JSON schema contains features not supported by xgrammar."
CONTEXT = "This model's maximum context length is 8192 tokens."


class TestExplain:
    @pytest.mark.parametrize(
        ("text", "param", "code", "field"),
        [
            (CONTEXT, "", "context_length_exceeded", "max_tokens"),
            (CONTEXT, "input_tokens", "context_length_exceeded", "messages"),
            ("The prompt is longer than the maximum model length of 8.", "", "context_length_exceeded", "max_tokens"),
            ("temperature must be at most 2.0, got 3.5", "", "invalid_value", "temperature"),
            ("bad value", "temperature", "invalid_value", "temperature"),
            ("bad value", "response_format.json_schema", "invalid_value", "response_format"),
            ("bad value", "messages[0].content", "invalid_value", "messages"),
            ("bad value", "prompt_logprobs", "invalid_value", ""),
            (SCHEMA, "", "invalid_value", "response_format"),
            ("TemplateError: Conversation roles must alternate", "", "invalid_value", "messages"),
            ("cannot stop here, the model is /models/secret", "", "invalid_value", ""),
            ("`stop` is too long", "", "invalid_value", "stop"),
            ("", "", "invalid_value", ""),
        ],
    )
    def test_names_the_field_and_says_it_in_our_words(self, text: str, param: str, code: str, field: str) -> None:
        verdict = explain(EngineRefused(text, param=param), CHAT)
        assert (verdict.outcome, verdict.status) == (Outcome.FAILED, 400)
        assert (verdict.error_code, verdict.param) == (code, field)
        assert verdict.message
        assert not text or text not in verdict.message

    def test_never_repeats_the_engine(self) -> None:
        text = "ValueError in /engine/vllm/v1/engine.py: temperature of AsyncLLM is wrong"
        verdict = explain(EngineRefused(text), CHAT)
        assert verdict.message == "The engine does not take this value of `temperature`."

    def test_names_the_limit_that_the_client_set(self) -> None:
        body = {"messages": [], "max_completion_tokens": 10_000}
        verdict = explain(EngineRefused("longer than the maximum model length", param="max_tokens"), body)
        assert verdict.param == "max_completion_tokens"
        assert "`max_completion_tokens`" in verdict.message

    def test_names_no_field_that_was_not_sent(self) -> None:
        verdict = explain(EngineRefused("xgrammar cannot compile the grammar"), {"prompt": "x"})
        assert verdict.param == ""
