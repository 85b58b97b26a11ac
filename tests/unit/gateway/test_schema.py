"""Every field of a request, and about a hundred odd ones: the code and the field that the client is told."""

import re
from typing import Any

import pytest

from contracts.errors import InvalidRequest
from contracts.jobs import Endpoint
from gateway.surface import limits
from gateway.surface.schema import REFUSED, check_request, check_vocabulary, fields_of

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HELLO, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "Once", **fields}


def message(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": "x", **fields}])


def said(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "assistant", "content": "x", **fields}])


def part(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": [fields]}])


def tool(**function: Any) -> dict[str, Any]:
    return chat(tools=[{"type": "function", "function": {"name": "f", **function}}])


def schema(value: Any) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": value}})


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        value = {"type": "array", "items": value}
    return value


def call(**fields: Any) -> dict[str, Any]:
    one = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}} | fields
    return chat(messages=[{"role": "assistant", "tool_calls": [one]}])


CHOICE_G = {"type": "function", "function": {"name": "g"}}
S = "response_format.json_schema.schema"
CHAT_REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": HELLO}, "model", "missing_field"),
    ({"model": "m"}, "messages", "missing_field"),
    (chat(model=None), "model", "missing_field"),
    (chat(messages=None), "messages", "missing_field"),
    (chat(model=""), "model", "invalid_value"),
    (chat(model=7), "model", "invalid_type"),
    (chat(model="m" * 129), "model", "string_too_long"),
    (chat(messages="hi"), "messages", "invalid_type"),
    (chat(messages=[]), "messages", "array_length"),
    (chat(messages=HELLO * (limits.MESSAGES_MAX + 1)), "messages", "array_length"),
    (chat(messages=["hi"]), "messages[0]", "invalid_type"),
    (chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "invalid_value"),
    (chat(messages=[{"role": ["user"], "content": "x"}]), "messages[0].role", "invalid_type"),
    (chat(messages=[{"content": "x"}]), "messages[0].role", "missing_field"),
    (chat(messages=[{"role": "user"}]), "messages[0].content", "missing_field"),
    (chat(messages=[{"role": "user", "content": None}]), "messages[0].content", "missing_field"),
    (chat(messages=[{"role": "user", "content": 5}]), "messages[0].content", "invalid_type"),
    (chat(messages=[{"role": "user", "content": []}]), "messages[0].content", "array_length"),
    (chat(messages=[{"role": "assistant"}]), "messages[0].content", "missing_field"),
    (chat(messages=[{"role": "tool", "content": "x"}]), "messages[0].tool_call_id", "missing_field"),
    (message(foo=1), "messages[0].foo", "unknown_parameter"),
    (said(tool_calls=0), "messages[0].tool_calls", "invalid_type"),
    (said(tool_calls=""), "messages[0].tool_calls", "invalid_type"),
    (said(tool_calls={}), "messages[0].tool_calls", "invalid_type"),
    (said(tool_calls=False), "messages[0].tool_calls", "invalid_type"),
    (said(content=None, tool_calls=0), "messages[0].tool_calls", "invalid_type"),
    (said(content=None, tool_calls=[]), "messages[0].content", "missing_field"),
    (said(refusal=0), "messages[0].refusal", "invalid_type"),
    (said(refusal="no"), "messages[0].refusal", "unsupported_parameter"),
    (said(annotations={}), "messages[0].annotations", "invalid_type"),
    (said(annotations=[1]), "messages[0].annotations", "unsupported_parameter"),
    (said(audio=False), "messages[0].audio", "invalid_type"),
    (said(function_call=""), "messages[0].function_call", "invalid_type"),
    (call(index="0"), "messages[0].tool_calls[0].index", "invalid_type"),
    (call(index=False), "messages[0].tool_calls[0].index", "invalid_type"),
    (schema({"$ref": "#/$defs/a", "$defs": {"a": {}}, "anyOf": 5}), f"{S}.anyOf", "invalid_schema"),
    (schema({"$ref": "#/$defs/a", "$defs": {"a": {}}, "allOf": ""}), f"{S}.allOf", "invalid_schema"),
    (message(name="n" * 65), "messages[0].name", "string_too_long"),
    (message(tool_calls=[]), "messages[0].tool_calls", "unknown_parameter"),
    (message(role="assistant", audio={"id": "a"}), "messages[0].audio", "unsupported_parameter"),
    (part(type="image_url", image_url={"url": "http://x"}), "messages[0].content[0].type", "unsupported_content"),
    (part(type="input_audio", input_audio={}), "messages[0].content[0].type", "unsupported_content"),
    (part(type="video_url"), "messages[0].content[0].type", "unsupported_content"),
    (part(text="x"), "messages[0].content[0].type", "missing_field"),
    (part(type=5, text="x"), "messages[0].content[0].type", "invalid_type"),
    (part(type="text"), "messages[0].content[0].text", "missing_field"),
    (part(type="text", text=5), "messages[0].content[0].text", "invalid_type"),
    (part(type="text", text="x", image="y"), "messages[0].content[0].image", "unknown_parameter"),
    (call(function={"name": "f", "arguments": "{"}), "messages[0].tool_calls[0].function.arguments", "invalid_value"),
    (call(function={"name": "f f", "arguments": ""}), "messages[0].tool_calls[0].function.name", "invalid_value"),
    (call(id=None), "messages[0].tool_calls[0].id", "missing_field"),
    (call(function=None), "messages[0].tool_calls[0].function", "missing_field"),
    (call(type="code"), "messages[0].tool_calls[0].type", "invalid_value"),
    (chat(temperature=-1), "temperature", "invalid_value"),
    (chat(temperature=2.01), "temperature", "invalid_value"),
    (chat(temperature="1"), "temperature", "invalid_type"),
    (chat(temperature=True), "temperature", "invalid_type"),
    (chat(temperature=[]), "temperature", "invalid_type"),
    (chat(top_p=0), "top_p", "invalid_value"),
    (chat(top_p=1.5), "top_p", "invalid_value"),
    (chat(top_k=-2), "top_k", "invalid_value"),
    (chat(top_k=1.5), "top_k", "invalid_type"),
    (chat(min_p=-0.1), "min_p", "invalid_value"),
    (chat(presence_penalty=2.5), "presence_penalty", "invalid_value"),
    (chat(frequency_penalty=-3), "frequency_penalty", "invalid_value"),
    (chat(repetition_penalty=0), "repetition_penalty", "invalid_value"),
    (chat(seed=2**63), "seed", "invalid_value"),
    (chat(seed=1.0), "seed", "invalid_type"),
    (chat(n=0), "n", "invalid_value"),
    (chat(n=limits.CHOICES_MAX + 1), "n", "invalid_value"),
    (chat(n=2**53), "n", "invalid_value"),
    (chat(n=True), "n", "invalid_type"),
    (chat(n=2, temperature=0), "n", "invalid_value"),
    (chat(best_of=2), "best_of", "unsupported_value"),
    (chat(thinking_token_budget=5), "thinking_token_budget", "unknown_parameter"),
    (chat(max_tokens=0), "max_tokens", "invalid_value"),
    (chat(max_tokens=-5), "max_tokens", "invalid_value"),
    (chat(max_tokens="10"), "max_tokens", "invalid_type"),
    (chat(max_tokens=10.0), "max_tokens", "invalid_type"),
    (chat(max_completion_tokens=0), "max_completion_tokens", "invalid_value"),
    (chat(max_tokens=5, max_completion_tokens=6), "max_tokens", "invalid_value"),
    (chat(max_tokens=5, min_tokens=6), "min_tokens", "invalid_value"),
    (chat(min_tokens=-1), "min_tokens", "invalid_value"),
    (chat(stream="true"), "stream", "invalid_type"),
    (chat(stream_options={"include_usage": True}), "stream_options", "invalid_value"),
    (chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage", "invalid_type"),
    (chat(stream=True, stream_options={"chunk": 1}), "stream_options.chunk", "unknown_parameter"),
    (chat(stop=""), "stop", "invalid_value"),
    (chat(stop=["a"] * (limits.STOP_MAX + 1)), "stop", "array_length"),
    (chat(stop=["ok", "x" * 257]), "stop[1]", "string_too_long"),
    (chat(stop=[7]), "stop[0]", "invalid_type"),
    (chat(stop={"a": 1}), "stop", "invalid_type"),
    (chat(stop_token_ids=[-1]), "stop_token_ids[0]", "invalid_value"),
    (chat(logprobs=1), "logprobs", "invalid_type"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs", "invalid_value"),
    (chat(top_logprobs=2), "top_logprobs", "invalid_value"),
    (chat(logit_bias=[1]), "logit_bias", "invalid_type"),
    (chat(logit_bias={"a": 1}), "logit_bias.a", "invalid_value"),
    (chat(logit_bias={"-1": 1}), "logit_bias.-1", "invalid_value"),
    (chat(logit_bias={"5": 1, "05": 2}), "logit_bias.05", "invalid_value"),
    (chat(logit_bias={"5\n": 1}), "logit_bias.5\n", "invalid_value"),
    (chat(logit_bias={"5": 101}), "logit_bias.5", "invalid_value"),
    (chat(logit_bias={str(i): 1 for i in range(limits.LOGIT_BIAS_MAX + 1)}), "logit_bias", "invalid_value"),
    (chat(allowed_token_ids=[]), "allowed_token_ids", "array_length"),
    (chat(bad_words=[""]), "bad_words[0]", "invalid_value"),
    (chat(user=5), "user", "invalid_type"),
    (chat(user="u", safety_identifier="v"), "safety_identifier", "invalid_value"),
    (chat(reasoning_effort="extreme"), "reasoning_effort", "invalid_value"),
    (chat(tools={}), "tools", "invalid_type"),
    (chat(tools=[{"type": "retrieval"}]), "tools[0].type", "invalid_value"),
    (chat(tools=[{"function": {"name": "f"}}]), "tools[0].type", "missing_field"),
    (chat(tools=[{"type": "function"}]), "tools[0].function", "missing_field"),
    (tool(name=""), "tools[0].function.name", "invalid_value"),
    (tool(parameters=[]), "tools[0].function.parameters", "invalid_type"),
    (tool(parameters={"type": "thing"}), "tools[0].function.parameters.type", "invalid_schema"),
    (tool(extra=1), "tools[0].function.extra", "unknown_parameter"),
    (chat(tools=tool()["tools"] * 2), "tools[1].function.name", "invalid_value"),
    (chat(tool_choice="auto"), "tool_choice", "invalid_value"),
    (tool() | {"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
    (tool() | {"tool_choice": -1}, "tool_choice", "invalid_type"),
    (tool() | {"tool_choice": ["auto"]}, "tool_choice", "invalid_type"),
    (tool() | {"tool_choice": {}}, "tool_choice.type", "missing_field"),
    (tool() | {"tool_choice": {"type": "function"}}, "tool_choice.function", "missing_field"),
    (tool() | {"tool_choice": CHOICE_G}, "tool_choice.function.name", "invalid_value"),
    (chat(parallel_tool_calls=True), "parallel_tool_calls", "invalid_value"),
    (chat(response_format="json"), "response_format", "invalid_type"),
    (chat(response_format={"type": "xml"}), "response_format.type", "invalid_value"),
    (chat(response_format={"type": "json_schema"}), "response_format.json_schema", "missing_field"),
    (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "a b!", "schema": {"type": "object"}}}),
        "response_format.json_schema.name",
        "invalid_value",
    ),
    (chat(response_format={}), "response_format.type", "missing_field"),
    (chat(reasoning_effort=5), "reasoning_effort", "invalid_type"),
    (chat(store="no"), "store", "invalid_type"),
    (chat(modalities="text"), "modalities", "invalid_type"),
    (chat(stream=True, stream_options={"include_obfuscation": True}), "stream_options.include_obfuscation",
     "unsupported_parameter"),
    (schema({"items": 5}), f"{S}.items", "invalid_schema"),
    (chat(response_format={"type": "text", "grammar": "x"}), "response_format.grammar", "unknown_parameter"),
    (schema("string"), S, "invalid_type"),
    (schema(deep(limits.SCHEMA_DEPTH_MAX)), S, "schema_too_deep"),
    (schema({"description": "x" * limits.SCHEMA_BYTES_MAX}), S, "schema_too_large"),
    (schema({"anyOf": [{}] * limits.SCHEMA_NODES_MAX}), S, "schema_too_large"),
    (schema({"enum": []}), f"{S}.enum", "invalid_schema"),
    (schema({"pattern": "("}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "((a{50}){50}){50}"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "(?<=a)b"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "a(?!b)"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "(a)\\1"}), f"{S}.pattern", "invalid_schema"),
    (schema({"patternProperties": {"(?=a)": {}}}), f"{S}.patternProperties", "invalid_schema"),
    (schema({"$ref": "#"}), f"{S}.$ref", "invalid_schema"),
    (schema({"maxLength": 10**9}), f"{S}.maxLength", "invalid_schema"),
    (schema({"$ref": "http://x/y"}), f"{S}.$ref", "invalid_schema"),
    (schema({"$ref": "#/$defs/none"}), f"{S}.$ref", "invalid_schema"),
    (schema({"required": "a"}), f"{S}.required", "invalid_schema"),
    (schema({"anyOf": [{}], "$ref": "#/anyOf"}), f"{S}.$ref", "invalid_schema"),
    (schema({"type": "string", "format": "nonsense"}), f"{S}.format", "invalid_schema"),
    (schema({"format": "regex"}), f"{S}.format", "invalid_schema"),
    (schema({"uniqueItems": True}), f"{S}.uniqueItems", "invalid_schema"),
    (schema({"contains": {}}), f"{S}.contains", "invalid_schema"),
    (schema({"items": [{}]}), f"{S}.items", "invalid_schema"),
    (schema({"exclusiveMinimum": True}), f"{S}.exclusiveMinimum", "invalid_schema"),
    (schema({"multipleOf": 0}), f"{S}.multipleOf", "invalid_schema"),
    (schema({"minLength": 2, "maxLength": 1}), f"{S}.minLength", "invalid_schema"),
    (schema({"minimum": 2.5, "maximum": 1}), f"{S}.minimum", "invalid_schema"),
    (schema({"minProperties": 2, "maxProperties": 1}), f"{S}.minProperties", "invalid_schema"),
    (schema({"pattern": "a{129}"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "[a-z]{2,500}"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "a{,5}"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "{"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "(?s)."}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "(?i:a)"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "(?-i:a)"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "(?#c)a"}), f"{S}.pattern", "invalid_schema"),
    (schema({"pattern": "\\N{DIGIT ONE}"}), f"{S}.pattern", "invalid_schema"),
    (schema({"patternProperties": {"a{200}": {}}}), f"{S}.patternProperties", "invalid_schema"),
    (chat(cache_salt="x"), "cache_salt", "unsupported_parameter"),
    (chat(kv_transfer_params={}), "kv_transfer_params", "unsupported_parameter"),
    (chat(chat_template="{{ x }}"), "chat_template", "unsupported_parameter"),
    (chat(chat_template_kwargs={}), "chat_template_kwargs", "unsupported_parameter"),
    (chat(add_generation_prompt=False), "add_generation_prompt", "unsupported_parameter"),
    (chat(priority=1), "priority", "unsupported_parameter"),
    (chat(request_id="x"), "request_id", "unsupported_parameter"),
    (chat(prompt_logprobs=1), "prompt_logprobs", "unsupported_parameter"),
    (chat(structured_outputs={"grammar": "x"}), "structured_outputs", "unsupported_parameter"),
    (chat(guided_grammar="x"), "guided_grammar", "unsupported_parameter"),
    (chat(functions=[]), "functions", "unsupported_parameter"),
    (chat(store=True), "store", "unsupported_parameter"),
    (chat(service_tier="priority"), "service_tier", "unsupported_parameter"),
    (chat(modalities=["text", "audio"]), "modalities", "unsupported_parameter"),
    (chat(prompt="x"), "prompt", "unknown_parameter"),
    (chat(max_token=5), "max_token", "unknown_parameter"),
    (chat(max_token=None), "max_token", "unknown_parameter"),
    (chat(on_disconnect="maybe"), "on_disconnect", "invalid_value"),
]  # fmt: skip
COMPLETION_REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "m"}, "prompt", "missing_field"),
    (completion(prompt=["a", "b"]), "prompt", "unsupported_value"),
    (completion(prompt=[[1], [2]]), "prompt", "unsupported_value"),
    (completion(prompt=[1, "a"]), "prompt[1]", "invalid_type"),
    (completion(prompt=5), "prompt", "invalid_type"),
    (completion(prompt=[]), "prompt", "array_length"),
    (completion(prompt=[-1]), "prompt[0]", "invalid_value"),
    (completion(prompt=[1.5]), "prompt[0]", "invalid_type"),
    (completion(prompt={}), "prompt", "invalid_type"),
    (completion(prompt_embeds="AAAA"), "prompt_embeds", "unsupported_parameter"),
    (completion(best_of=2), "best_of", "unsupported_value"),
    (completion(echo=True), "echo", "unsupported_parameter"),
    (completion(suffix="x"), "suffix", "unsupported_parameter"),
    (completion(logprobs=True), "logprobs", "invalid_type"),
    (completion(logprobs=21), "logprobs", "invalid_value"),
    (completion(messages=HELLO), "messages", "unknown_parameter"),
    (completion(tools=[]), "tools", "unknown_parameter"),
    (completion(use_beam_search=True), "use_beam_search", "unsupported_parameter"),
]


def _name(case: Any) -> str:
    return f"{case[1]}={case[2]}"


class TestRefusals:
    @pytest.mark.parametrize("case", CHAT_REFUSED, ids=_name)
    def test_a_chat_is_refused_with_the_field_in_param(self, case: tuple[dict[str, Any], str, str]) -> None:
        document, param, code = case
        with pytest.raises(InvalidRequest) as caught:
            check_request(document, endpoint=Endpoint.CHAT)
        assert (caught.value.param, caught.value.code) == (param, code)

    @pytest.mark.parametrize("case", COMPLETION_REFUSED, ids=_name)
    def test_a_completion_is_refused_with_the_field_in_param(self, case: tuple[dict[str, Any], str, str]) -> None:
        document, param, code = case
        with pytest.raises(InvalidRequest) as caught:
            check_request(document, endpoint=Endpoint.COMPLETIONS)
        assert (caught.value.param, caught.value.code) == (param, code)

    @pytest.mark.parametrize(
        ("document", "holder"),
        [
            (chat(**{"": 1}), "body"),
            (message(**{"": 1}), "messages[0]"),
            (part(**{"type": "text", "text": "x", "": 1}), "messages[0].content[0]"),
            (call(**{"": 1}), "messages[0].tool_calls[0]"),
            (call(function={"name": "f", "arguments": "", "": 1}), "messages[0].tool_calls[0].function"),
            (tool(**{"": 1}), "tools[0].function"),
            (tool() | {"tool_choice": CHOICE_G | {"": 1}}, "tool_choice"),
            (chat(stream=True, stream_options={"": 1}), "stream_options"),
            (chat(response_format={"type": "text", "": 1}), "response_format"),
            (chat(logit_bias={"": 1}), "logit_bias"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_field_without_a_name_is_told_by_what_holds_it(self, document: dict[str, Any], holder: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            check_request(document, endpoint=Endpoint.CHAT)
        assert (caught.value.param, caught.value.message) == (holder, f"{holder}: has a field without a name")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"logit_bias": {"258": 1}}, "logit_bias.258"),
            ({"stop_token_ids": [1, 258]}, "stop_token_ids[1]"),
            ({"allowed_token_ids": [999]}, "allowed_token_ids[0]"),
            ({"top_k": 300}, "top_k"),
        ],
    )
    def test_a_token_outside_the_vocabulary_is_refused(self, fields: dict[str, Any], param: str) -> None:
        asked = check_request(chat(**fields), endpoint=Endpoint.CHAT)
        with pytest.raises(InvalidRequest) as caught:
            check_vocabulary(asked, vocabulary=258)
        assert caught.value.param == param

    def test_a_prompt_token_outside_the_vocabulary_is_refused(self) -> None:
        asked = check_request(completion(prompt=[0, 258]), endpoint=Endpoint.COMPLETIONS)
        with pytest.raises(InvalidRequest) as caught:
            check_vocabulary(asked, vocabulary=258)
        assert caught.value.param == "prompt[1]"


# What each field says of a value that no field takes.
EACH_SAYS = {
    "model": "must be a string",
    "messages": "must be an array",
    "stream": "must be true or false",
    "stream_options": "must be an object",
    "n": "must be an integer",
    "max_tokens": "must be an integer",
    "user": "must be a string",
    "on_disconnect": 'must be "cancel" or "continue"',
    "store": "must be false, or left out: answers are not stored for the client",
    "service_tier": 'must be "auto" or "default", or left out: the tier follows from the API key\'s plan',
    "modalities": 'must be ["text"], or left out: this platform serves text only',
    "temperature": "must be a number",
    "top_k": "must be an integer",
    "stop": "must be a string or an array of strings",
    "stop_token_ids": "must be an array",
    "logit_bias": "must be an object",
    "response_format": "must be an object",
    "tools": "must be an array",
    "tool_choice": 'must be "none", "auto" or "required", or an object that names one function',
    "reasoning_effort": 'must be "none", "minimal", "low", "medium", "high", "xhigh" or "max"',
}


class Nothing:
    """Of no JSON type, so of a wrong one for every field."""


class TestWords:
    @pytest.mark.parametrize("field", EACH_SAYS)
    def test_a_value_of_a_wrong_type_is_told_what_would_be_right(self, field: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            check_request(tool() | {field: Nothing()}, endpoint=Endpoint.CHAT)
        assert (caught.value.message, caught.value.code) == (f"{field}: {EACH_SAYS[field]}", "invalid_type")

    @pytest.mark.parametrize("endpoint", Endpoint)
    def test_no_field_that_is_taken_blames_the_value_for_a_wrong_type(self, endpoint: Endpoint) -> None:
        for field, check in fields_of(endpoint).items():
            with pytest.raises(InvalidRequest) as caught:
                check(Nothing(), field)
            assert caught.value.code == ("unsupported_parameter" if field in REFUSED else "invalid_type"), field

    def test_a_prompt_may_be_a_string_or_token_ids(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            check_request(completion(prompt=5), endpoint=Endpoint.COMPLETIONS)
        assert caught.value.message == "prompt: must be a string or an array of token ids"

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"stop": ["a"] * (limits.STOP_MAX + 1)}, f"stop: must have at most {limits.STOP_MAX} items"),
            ({"messages": []}, "messages: must not be empty"),
            ({"messages": [{"content": "x"}]}, "messages[0].role: is missing"),
        ],
    )
    def test_a_bound_is_told_as_the_one_that_was_passed(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(InvalidRequest, match=re.escape(said)):
            check_request(chat(**fields), endpoint=Endpoint.CHAT)


class TestAcceptance:
    def test_null_is_the_default_of_every_known_field(self) -> None:
        nulls = dict.fromkeys(("temperature", "max_tokens", "n", "stop", "tools", "stream", "logit_bias", "cache_salt"))
        asked = check_request(chat(**nulls), endpoint=Endpoint.CHAT)
        assert (asked.sampling, asked.max_tokens, asked.choices, asked.stream, asked.tools) == ({}, None, 1, False, [])

    def test_passes_sampling_fields_on_as_they_came(self) -> None:
        fields = {
            "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": -7, "ignore_eos": True, "min_tokens": 2,
            "logit_bias": {"5": -100}, "stop": ["a", "b"], "presence_penalty": 1.5, "logprobs": True, "top_logprobs": 3,
        }  # fmt: skip
        assert check_request(chat(**fields), endpoint=Endpoint.CHAT).sampling == fields

    def test_brings_one_stop_string_into_a_list(self) -> None:
        assert check_request(chat(stop="END"), endpoint=Endpoint.CHAT).sampling["stop"] == ["END"]

    def test_reads_what_it_does_not_pass_on(self) -> None:
        asked = check_request(
            chat(
                stream=True, stream_options={"include_usage": True}, n=2, max_completion_tokens=9, user="u1",
                on_disconnect="continue", store=False, service_tier="auto", modalities=["text"],
            ),
            endpoint=Endpoint.CHAT,
        )  # fmt: skip
        assert (asked.stream, asked.include_usage, asked.choices, asked.max_tokens) == (True, True, 2, 9)
        assert (asked.end_user, asked.continue_on_disconnect, asked.sampling) == ("u1", True, {})

    @pytest.mark.parametrize(
        "nothing",
        [
            {"tool_calls": []},
            {"refusal": "", "annotations": [], "audio": {}, "function_call": {}},
            dict.fromkeys(("tool_calls", "refusal", "annotations", "audio", "function_call", "name", "reasoning")),
        ],
    )
    def test_takes_null_and_what_says_nothing_in_an_answer(self, nothing: dict[str, Any]) -> None:
        kept = check_request(said(**nothing), endpoint=Endpoint.CHAT).messages
        assert kept == [{"role": "assistant", "content": "x"}]

    def test_takes_a_property_without_a_name_in_a_schema(self) -> None:
        given = {"type": "object", "properties": {"": {"type": "string"}}}
        asked = check_request(schema(given), endpoint=Endpoint.CHAT)
        assert asked.sampling["response_format"]["json_schema"]["schema"] == given

    def test_takes_back_an_answer_as_the_sdk_dumps_it(self) -> None:
        answer = {
            "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
            "function_call": None, "tool_calls": [
                {"id": "c1", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}
            ],
        }  # fmt: skip
        result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]}
        messages = check_request(chat(messages=[*HELLO, answer, result]), endpoint=Endpoint.CHAT).messages
        assert messages[1] == {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        }
        assert messages[2]["content"] == [{"type": "text", "text": "ok"}]

    @pytest.mark.parametrize(("prompt", "kept"), [("a", "a"), (["a"], "a"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])])
    def test_takes_one_prompt_in_each_of_its_forms(self, prompt: Any, kept: Any) -> None:
        assert check_request(completion(prompt=prompt), endpoint=Endpoint.COMPLETIONS).prompt == kept

    @pytest.mark.parametrize(
        "body",
        [
            {"type": "string", "pattern": "(?i)a{128}[{]\\{x"},
            {"type": "string", "format": "date-time"},
            {"type": "integer", "format": "int32", "minimum": 1, "maximum": 1, "multipleOf": 7},
            {"uniqueItems": False, "prefixItems": [{}], "items": False},
        ],
    )
    def test_takes_a_schema_that_grammars_are_made_from(self, body: dict[str, Any]) -> None:
        check_request(schema(body), endpoint=Endpoint.CHAT)

    def test_leaves_what_no_answer_must_follow_to_the_model(self) -> None:
        parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "format": "x"}}}
        told = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        assert (
            check_request(chat(tools=[told]), endpoint=Endpoint.CHAT).tools[0]["function"]["parameters"] == parameters
        )

    @pytest.mark.parametrize("pattern", [r"^a\\1$", r"\\\d+", "[(?=]", r"[\]\1]", "(?:a|b)+", "(?P<n>a)", r"\(?=x"])
    def test_takes_a_pattern_that_only_looks_like_a_look_around(self, pattern: str) -> None:
        check_request(schema({"type": "string", "pattern": pattern}), endpoint=Endpoint.CHAT)

    def test_takes_a_recursive_schema(self) -> None:
        node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": ["integer", "null"]}}}
        tree = {"$ref": "#/$defs/node", "$defs": {"node": node}}
        sampling = check_request(schema(tree), endpoint=Endpoint.CHAT).sampling
        assert sampling["response_format"]["json_schema"]["schema"] == tree
