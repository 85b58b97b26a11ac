import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.errors import InvalidRequest, LimitExceeded
from contracts.jobs import Endpoint
from contracts.tenancy import Limit, Metric, Scope
from gateway.drafts import content_of, hash_end_user, output_tokens, refuse_hopeless
from gateway.surface.schema import Asked, check_request
from gateway.tokenizer import PromptTokenizer
from tests.functional.gateway.cast import CONTEXT
from tests.unit.gateway.toy import write_model

OF_KEY = "the limit on max_tokens per request of the API key"
BY_CUSTOMERS = "it is raised at /api/v1/limits of the management API, or by an operator under Limits in the console"
BY_OPERATORS = (
    "only an operator raises it, as `max_tokens_cap` at /api/v1/plans of the management API, or under Plans in the "
    "console"
)


def asked(**fields: Any) -> Asked:
    document = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return check_request(document, endpoint=Endpoint.CHAT)


class TestOutputTokens:
    @pytest.mark.parametrize(
        ("max_tokens", "prompt_tokens", "cap", "granted"),
        [
            (None, 10, None, 64), (None, 90, None, 10), (None, 10, 5, 5), (90, 10, None, 90), (5, 10, 5, 5),
            (1, 99, None, 1),
        ],
    )  # fmt: skip
    def test_grants(self, max_tokens: int | None, prompt_tokens: int, cap: int | None, granted: int) -> None:
        context = replace(CONTEXT, max_tokens_cap=cap)
        tokens = output_tokens(
            asked(max_tokens=max_tokens), context, model="m", context_tokens=100, prompt_tokens=prompt_tokens
        )
        assert tokens == granted

    @pytest.mark.parametrize(
        ("fields", "prompt_tokens", "cap", "param", "code"),
        [
            ({}, 100, None, "messages", "context_length_exceeded"),
            ({"max_tokens": 91}, 10, None, "max_tokens", "context_length_exceeded"),
            ({"max_tokens": 6}, 10, 5, "max_tokens", "max_tokens_cap"),
            ({"min_tokens": 65}, 10, None, "min_tokens", "invalid_value"),
        ],
    )
    def test_refuses(self, fields: dict[str, Any], prompt_tokens: int, cap: int | None, param: str, code: str) -> None:
        context = replace(CONTEXT, max_tokens_cap=cap)
        with pytest.raises(InvalidRequest) as caught:
            output_tokens(asked(**fields), context, model="m", context_tokens=100, prompt_tokens=prompt_tokens)
        assert (caught.value.param, caught.value.code) == (param, code)

    def test_the_least_limit_of_the_models_own_and_of_all_stands(self) -> None:
        most = [
            Limit(scope=Scope.TENANT, metric=Metric.MAX_TOKENS_PER_REQUEST, cap=50),
            Limit(scope=Scope.KEY, metric=Metric.MAX_TOKENS_PER_REQUEST, cap=20, model="m"),
        ]
        context = replace(CONTEXT, limits=tuple(most))
        asks = [("m", None), ("other", None), ("other", 50)]
        granted = [
            output_tokens(asked(max_tokens=tokens), context, model=model, context_tokens=100, prompt_tokens=10)
            for model, tokens in asks
        ]
        assert granted == [20, 50, 50]

    @pytest.mark.parametrize(
        ("by_plan", "by_key", "max_tokens", "said"),
        [
            (None, 20, 21, f"max_tokens: 21 asked for, and {OF_KEY} is 20; {BY_CUSTOMERS}"),
            (20, 20, 21, f"max_tokens: 21 asked for, and {OF_KEY} is 20; {BY_CUSTOMERS}"),
            (5, 20, 6, f"max_tokens: 6 asked for, and the plan of the organization allows 5; {BY_OPERATORS}"),
            (5, None, 6, f"max_tokens: 6 asked for, and the plan of the organization allows 5; {BY_OPERATORS}"),
            (0, None, None, f"max_tokens: the plan of the organization allows 0; {BY_OPERATORS}"),
        ],
    )
    def test_says_whose_cap_is_passed_and_where_it_is_raised(
        self, by_plan: int | None, by_key: int | None, max_tokens: int | None, said: str
    ) -> None:
        limit = Limit(scope=Scope.KEY, metric=Metric.MAX_TOKENS_PER_REQUEST, cap=by_key or 0)
        context = replace(CONTEXT, max_tokens_cap=by_plan, limits=(limit,) if by_key else ())
        with pytest.raises(InvalidRequest) as caught:
            output_tokens(asked(max_tokens=max_tokens), context, model="m", context_tokens=100, prompt_tokens=10)
        assert str(caught.value) == said

    def test_a_limit_of_zero_blocks_and_promises_no_waiting(self) -> None:
        context = replace(CONTEXT, limits=(Limit(scope=Scope.PROJECT, metric=Metric.MAX_TOKENS_PER_REQUEST, cap=0),))
        with pytest.raises(
            LimitExceeded, match="Blocked: the limit on max_tokens per request of the project is 0"
        ) as e:
            output_tokens(asked(), context, model="m", context_tokens=100, prompt_tokens=10)
        assert e.value.retry_after_ms is None

    def test_a_completion_has_sixteen_by_default_within_what_there_is(self) -> None:
        prompt = check_request({"model": "m", "prompt": "x"}, endpoint=Endpoint.COMPLETIONS)
        granted = [
            output_tokens(
                prompt, replace(CONTEXT, max_tokens_cap=cap), model="m", context_tokens=100, prompt_tokens=prompt_tokens
            )
            for cap, prompt_tokens in ((None, 10), (5, 10), (None, 95))
        ]
        assert granted == [16, 5, 5]

    def test_refuses_what_cannot_fit_before_it_is_tokenised(self, tmp_path: Path) -> None:
        tokenizer = PromptTokenizer.load(write_model(tmp_path))
        fits = "x" * (10 * tokenizer.longest_token - 1)
        refuse_hopeless(asked(messages=[{"role": "user", "content": fits}]), tokenizer, context_tokens=10)
        with pytest.raises(InvalidRequest) as caught:
            refuse_hopeless(asked(messages=[{"role": "user", "content": fits + "x"}]), tokenizer, context_tokens=10)
        assert caught.value.code == "context_length_exceeded"

    def test_counts_the_arguments_of_tool_calls_as_what_has_to_fit(self, tmp_path: Path) -> None:
        tokenizer = PromptTokenizer.load(write_model(tmp_path))
        function = {"name": "f", "arguments": json.dumps("x" * 10 * tokenizer.longest_token)}
        called = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
        with pytest.raises(InvalidRequest) as caught:
            refuse_hopeless(asked(messages=[called]), tokenizer, context_tokens=10)
        assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


class TestTools:
    TOOL: ClassVar = {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}

    def test_are_refused_where_the_template_shows_none(self, tmp_path: Path) -> None:
        tokenizer = replace(PromptTokenizer.load(write_model(tmp_path)), shows_tools=False)
        with pytest.raises(InvalidRequest) as caught:
            content_of(asked(tools=[self.TOOL]), tokenizer)
        assert (caught.value.param, caught.value.code) == ("tools", "unsupported_value")
        assert content_of(asked(tools=[self.TOOL], tool_choice="none"), tokenizer).tools == [self.TOOL]
        shown = replace(tokenizer, shows_tools=True)
        assert content_of(asked(tools=[self.TOOL]), shown).tools == [self.TOOL]

    @pytest.mark.parametrize(
        ("choice", "param"), [(None, "tools"), ("auto", "tool_choice"), ("required", "tool_choice")]
    )
    def test_are_refused_by_name_where_the_engine_makes_out_no_calls(
        self, tmp_path: Path, choice: str | None, param: str
    ) -> None:
        shown = replace(PromptTokenizer.load(write_model(tmp_path)), shows_tools=True)
        with pytest.raises(InvalidRequest) as caught:
            content_of(asked(tools=[self.TOOL], tool_choice=choice), shown, calls_tools=False)
        assert (caught.value.param, caught.value.code) == (param, "unsupported_value")
        silent = asked(tools=[self.TOOL], tool_choice="none")
        assert content_of(silent, shown, calls_tools=False).tools == [self.TOOL]


class TestEndUser:
    def test_is_kept_as_a_hash_of_its_tenant(self) -> None:
        ours, theirs = (hash_end_user(b"s", tenant_id=tenant, user="ann@example.org") for tenant in ("acme", "mallory"))
        assert (len(ours), ours == theirs, hash_end_user(b"s", tenant_id="acme", user="")) == (32, False, "")
