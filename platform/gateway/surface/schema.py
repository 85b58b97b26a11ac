"""The fields of POST /v1/chat/completions and /v1/completions, as tables. Step 1; called by the inference routes.

Every field that the engine or OpenAI knows stands in a table: checked and passed on, read here, or refused with a
reason. Any other field is refused with its name in `param`. Invariant: nothing a client sends is dropped silently, and
an explicit null means the default. The bounds follow what has killed engines (vLLM's advisories): docs/limits.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts.errors import InvalidRequest
from contracts.jobs import Endpoint
from gateway.surface import limits
from gateway.surface.fields import (
    Check,
    boolean,
    inside,
    integer,
    items,
    mapping,
    needed,
    number,
    object_of,
    one_of,
    only,
    only_keys,
    refused,
    takes,
    text,
    unknown_field,
    wrong,
)
from gateway.surface.json_schema import JSON_SCHEMA, check_schema
from gateway.surface.messages import NAME, check_messages, check_name, check_tool_choice, check_tools

INT64_MAX = 2**63 - 1
_GREEDY_BELOW = 1e-5  # as vLLM: below it sampling is greedy
_TOKEN_MAX = 2**31 - 1  # narrowed to the model's vocabulary in `check_vocabulary`


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request. `sampling` goes to the engine as it is; `prompt` is a text or token ids, for completions."""

    endpoint: Endpoint
    model: str
    stream: bool
    include_usage: bool
    choices: int
    max_tokens: int | None
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    prompt: str | list[int]
    sampling: dict[str, Any]
    end_user: str
    continue_on_disconnect: bool
    background: bool


_STOP = text(limits.STOP_CHARS_MAX, shortest=1)
_STOPS = items(_STOP, most=limits.STOP_MAX)


@takes({"anyOf": [_STOP.schema, _STOPS.schema]})
def _check_stop(value: Any, param: str) -> list[str]:
    if isinstance(value, str):
        return [_STOP(value, param)]
    if not isinstance(value, list):
        raise wrong(param, "must be a string or an array of strings", code="invalid_type")
    stops: list[str] = _STOPS(value, param)
    return stops


_BIAS = number(-100, 100)
_VOCABULARY_ID = "(0|[1-9][0-9]{0,9})"  # one spelling of each: of two, one would be dropped


@takes(
    {
        "type": "object",
        "patternProperties": {f"^{_VOCABULARY_ID}$": _BIAS.schema},
        "additionalProperties": False,
        "maxProperties": limits.LOGIT_BIAS_MAX,
    }
)
def _check_logit_bias(value: Any, param: str) -> dict[str, float]:
    given = mapping(value, param)
    if len(given) > limits.LOGIT_BIAS_MAX:
        raise wrong(param, f"must have at most {limits.LOGIT_BIAS_MAX} entries")
    for token in given:
        if not re.fullmatch(_VOCABULARY_ID, token):
            raise wrong(inside(param, token), "is not a token id" if token else "has a field without a name")
    return {token: _BIAS(amount, f"{param}.{token}") for token, amount in given.items()}


_DESCRIPTION = text(limits.DESCRIPTION_MAX)
_NAMED_SCHEMA = object_of(
    {"name": NAME, "schema": JSON_SCHEMA},
    {"description": _DESCRIPTION.schema, "strict": boolean.schema},
)


@takes(
    {
        "anyOf": [
            object_of({"type": {"type": "string", "enum": ["text", "json_object"]}}),
            object_of({"type": {"type": "string", "enum": ["json_schema"]}, "json_schema": _NAMED_SCHEMA}),
        ]
    }
)
def _check_response_format(value: Any, param: str) -> dict[str, Any]:
    given = mapping(value, param)
    kind = needed(given, "type", one_of("text", "json_object", "json_schema"), param)
    only_keys(given, frozenset({"type", "json_schema"} if kind == "json_schema" else {"type"}), param)
    if kind != "json_schema":
        return {"type": kind}
    where = f"{param}.json_schema"
    inner = {key: item for key, item in needed(given, "json_schema", mapping, param).items() if item is not None}
    only_keys(inner, frozenset({"name", "description", "schema", "strict"}), where)
    checked: dict[str, Any] = {
        "name": needed(inner, "name", check_name, where),
        "schema": needed(inner, "schema", partial(check_schema, generated=True), where),
    }
    if "description" in inner:
        checked["description"] = _DESCRIPTION(inner["description"], f"{where}.description")
    if "strict" in inner:
        checked["strict"] = boolean(inner["strict"], f"{where}.strict")
    return {"type": kind, "json_schema": checked}


_token_ids = integer(0, _TOKEN_MAX)
_tokens = integer(1, _TOKEN_MAX)
_PROMPT_IDS = items(_token_ids, most=limits.PROMPT_TOKEN_IDS_MAX, least=1)
_ONE_PROMPT = [{"type": "string"}, _PROMPT_IDS.schema]


@takes(
    {"anyOf": [*_ONE_PROMPT, {"type": "array", "items": {"anyOf": _ONE_PROMPT}, "minItems": 1, "maxItems": 1}]},
)
def _check_prompt(value: Any, param: str) -> str | list[int]:
    """One prompt: a string, token ids, or an array that holds one of these."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value, param = value[0], f"{param}[0]"
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(param, "must be a string or an array of token ids", code="invalid_type")
    if value and all(isinstance(item, str | list) for item in value):
        raise wrong(param, "must be one prompt; send one request for each", code="unsupported_value")
    ids: list[int] = _PROMPT_IDS(value, param)
    return ids


@takes(object_of({}, {"include_usage": boolean.schema, "include_obfuscation": {"enum": [False]}}))
def _check_stream_options(value: Any, param: str) -> dict[str, Any]:
    given = mapping(value, param)
    only_keys(given, frozenset({"include_usage", "include_obfuscation"}), param)
    if given.get("include_obfuscation") is not None:
        check = only((False,), reason="streams are not padded here")
        check(given["include_obfuscation"], f"{param}.include_obfuscation")
    if given.get("include_usage") is not None:
        boolean(given["include_usage"], f"{param}.include_usage")
    return given


# Checked, then passed to the engine under the same name.
_SAMPLING: dict[str, Check] = {
    "temperature": number(0, 2),
    "top_p": number(0, 1, above=True),
    "top_k": integer(-1, _TOKEN_MAX),
    "min_p": number(0, 1),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "repetition_penalty": number(0, 10, above=True),
    "seed": integer(-(2**63), INT64_MAX),
    "stop": _check_stop,
    "stop_token_ids": items(_token_ids, most=limits.STOP_TOKEN_IDS_MAX),
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "min_tokens": integer(0, _TOKEN_MAX),
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "logit_bias": _check_logit_bias,
    "allowed_token_ids": items(_token_ids, most=limits.ALLOWED_TOKEN_IDS_MAX, least=1),
    "bad_words": items(text(limits.BAD_WORD_CHARS_MAX, shortest=1), most=limits.BAD_WORDS_MAX),
    "response_format": _check_response_format,
}
_CHAT_SAMPLING: dict[str, Check] = {
    **_SAMPLING,
    "logprobs": boolean,
    "top_logprobs": integer(0, limits.TOP_LOGPROBS_MAX),
    "tool_choice": check_tool_choice,
    "parallel_tool_calls": boolean,
    "reasoning_effort": one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "include_reasoning": boolean,
}
_COMPLETION_SAMPLING: dict[str, Check] = {**_SAMPLING, "logprobs": integer(0, limits.TOP_LOGPROBS_MAX)}

# Read here and not passed on under their own names.
_READ: dict[str, Check] = {
    "model": text(limits.MODEL_NAME_MAX, shortest=1),
    "stream": boolean,
    "stream_options": _check_stream_options,
    "n": integer(1, limits.CHOICES_MAX),
    "best_of": integer(1, limits.CHOICES_MAX),
    "max_tokens": _tokens,
    "user": text(limits.END_USER_MAX, shortest=1),
    "safety_identifier": text(limits.END_USER_MAX, shortest=1),
    "on_disconnect": one_of("cancel", "continue"),
    "background": boolean,
    "store": only((False,), reason="answers are not stored for the client"),
    "service_tier": only(("auto", "default"), reason="the tier follows from the API key's plan"),
}
_CHAT_READ: dict[str, Check] = {
    **_READ,
    "messages": check_messages,
    "tools": check_tools,
    "max_completion_tokens": _tokens,
    "modalities": only((["text"],), reason="this platform serves text only"),
}
_COMPLETION_READ: dict[str, Check] = {
    **_READ,
    "prompt": _check_prompt,
    "echo": only((False,), reason="the prompt is not sent back"),
}

_SERVER_SIDE = "the server sets it"
_TEMPLATE = "prompts are rendered with the model's own template"
_TEXT_ONLY = "this platform serves text only"
_REFUSED: dict[str, str] = {
    "cache_salt": f"{_SERVER_SIDE}, one for each tenant",
    "kv_transfer_params": _SERVER_SIDE,
    "priority": "the order follows from fair shares between tenants",
    "request_id": _SERVER_SIDE,
    "prompt_embeds": "prompts are text or token ids",
    "chat_template": _TEMPLATE,
    "chat_template_kwargs": _TEMPLATE,
    "add_generation_prompt": _TEMPLATE,
    "continue_final_message": _TEMPLATE,
    "add_special_tokens": _TEMPLATE,
    "documents": _TEMPLATE,
    "truncate_prompt_tokens": "a prompt is never cut silently",
    "truncation_side": "a prompt is never cut silently",
    "prompt_logprobs": "its work has no bound",
    "prompt_logprobs_token_ids": "its work has no bound",
    "logprob_token_ids": "ask for top_logprobs",
    "use_beam_search": "sampling only",
    "length_penalty": "sampling only",
    "logits_processors": "no code runs in the engine for a client",
    "vllm_xargs": "no code runs in the engine for a client",
    "structured_outputs": "use response_format",
    "guided_json": "use response_format",
    "guided_regex": "use response_format",
    "guided_choice": "use response_format",
    "guided_grammar": "use response_format",
    "return_tokens_as_token_ids": "answers carry text",
    "return_token_ids": "answers carry text",
    "suffix": "the served models do not fill in the middle",
    "mm_processor_kwargs": _TEXT_ONLY,
    "media_io_kwargs": _TEXT_ONLY,
    "audio": _TEXT_ONLY,
    "functions": "use tools",
    "function_call": "use tool_choice",
    "prediction": "decoding is the server's",
    "web_search_options": "no tool runs on the server",
    "metadata": "answers are not stored for the client",
    "verbosity": "the served models do not know it",
    "prompt_cache_key": "prefixes are found by their content",
}

REFUSED: dict[str, Check] = {name: refused(reason) for name, reason in _REFUSED.items()}
_READERS = {Endpoint.CHAT: _CHAT_READ, Endpoint.COMPLETIONS: _COMPLETION_READ}
_PASSED = {Endpoint.CHAT: _CHAT_SAMPLING, Endpoint.COMPLETIONS: _COMPLETION_SAMPLING}


def fields_of(endpoint: Endpoint) -> dict[str, Check]:
    """Every field of an endpoint by its name; those that are taken come before those that are refused."""
    taken = _READERS[endpoint] | _PASSED[endpoint]
    return taken | {name: check for name, check in REFUSED.items() if name not in taken}


def required_of(endpoint: Endpoint) -> tuple[str, str]:
    return "model", "messages" if endpoint is Endpoint.CHAT else "prompt"


def check_request(document: dict[str, Any], *, endpoint: Endpoint) -> Asked:
    """The request, checked field by field. Raises InvalidRequest with the field in `param`."""
    readers, passed = _READERS[endpoint], _PASSED[endpoint]
    read: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    for name, value in document.items():
        if value is None and (name in readers or name in passed or name in REFUSED):
            continue
        if name in passed:
            sampling[name] = passed[name](value, name)
        elif name in readers:
            read[name] = readers[name](value, name)
        elif name in REFUSED:
            REFUSED[name](value, name)
        else:
            raise unknown_field(name, message="is not a field of this endpoint")
    for name in required_of(endpoint):
        if name not in read:
            raise wrong(name, "is missing", code="missing_field")
    _check_together(read, sampling, endpoint=endpoint)
    options = read.get("stream_options") or {}
    return Asked(
        endpoint=endpoint,
        model=read["model"],
        stream=read.get("stream", False),
        include_usage=bool(options.get("include_usage")),
        choices=read.get("n", 1),
        max_tokens=read.get("max_completion_tokens", read.get("max_tokens")),
        messages=read.get("messages", []),
        tools=read.get("tools", []),
        prompt=read.get("prompt", ""),
        sampling=sampling,
        end_user=read.get("user") or read.get("safety_identifier") or "",
        continue_on_disconnect=read.get("on_disconnect") == "continue",
        background=read.get("background", False),
    )


def _check_together(read: dict[str, Any], sampling: dict[str, Any], *, endpoint: Endpoint) -> None:
    """Rules over two fields."""
    if read.get("background"):
        _check_background(read)
    if "stream_options" in read and not read.get("stream"):
        raise wrong("stream_options", "needs stream: true")
    if read.get("best_of", read.get("n", 1)) != read.get("n", 1):
        raise wrong("best_of", "must equal n: every choice is sent", code="unsupported_value")
    if read.get("n", 1) > 1 and sampling.get("temperature", 1.0) < _GREEDY_BELOW:
        raise wrong("n", "must be 1 at temperature 0: greedy choices would all be the same")
    if len({read[name] for name in ("max_tokens", "max_completion_tokens") if name in read}) > 1:
        raise wrong("max_tokens", "differs from max_completion_tokens; send one of them")
    if len({read[name] for name in ("user", "safety_identifier") if name in read}) > 1:
        raise wrong("safety_identifier", "differs from user; send one of them")
    most = read.get("max_completion_tokens", read.get("max_tokens"))
    if most is not None and sampling.get("min_tokens", 0) > most:
        raise wrong("min_tokens", f"must be at most max_tokens ({most})")
    if endpoint is Endpoint.CHAT:
        _check_chat_together(read, sampling)


def _check_background(read: dict[str, Any]) -> None:
    if read.get("stream"):
        about = "must be false with background: its events are at /v1/requests/{id}/events"
        raise wrong("stream", about, code="unsupported_value")
    if read.get("on_disconnect") == "cancel":
        raise wrong("on_disconnect", 'must be "continue" with background, or absent: no connection is waited for')


def _check_chat_together(read: dict[str, Any], sampling: dict[str, Any]) -> None:
    if sampling.get("top_logprobs") and not sampling.get("logprobs"):
        raise wrong("top_logprobs", "needs logprobs: true")
    names = {tool["function"]["name"] for tool in read.get("tools", ())}
    choice = sampling.get("tool_choice")
    if choice is not None and choice != "none" and not names:
        raise wrong("tool_choice", "needs tools")
    if isinstance(choice, dict) and choice["function"]["name"] not in names:
        raise wrong("tool_choice.function.name", "names no tool of this request")
    if "parallel_tool_calls" in sampling and not names:
        raise wrong("parallel_tool_calls", "needs tools")


def check_vocabulary(asked: Asked, *, vocabulary: int) -> None:
    """That every token id the client named exists in the model. Raises InvalidRequest."""
    _within(vocabulary, "stop_token_ids", asked.sampling.get("stop_token_ids", ()))
    _within(vocabulary, "allowed_token_ids", asked.sampling.get("allowed_token_ids", ()))
    if isinstance(asked.prompt, list):
        _within(vocabulary, "prompt", asked.prompt)
    for token in asked.sampling.get("logit_bias", ()):
        if int(token) >= vocabulary:
            raise _unknown_token(vocabulary, f"logit_bias.{token}")
    if asked.sampling.get("top_k", 0) > vocabulary:
        raise wrong("top_k", f"must be at most {vocabulary}, the model's vocabulary")


def _within(vocabulary: int, param: str, tokens: Iterable[int]) -> None:
    for index, token in enumerate(tokens):
        if token >= vocabulary:
            raise _unknown_token(vocabulary, f"{param}[{index}]")


def _unknown_token(vocabulary: int, param: str) -> InvalidRequest:
    return wrong(param, f"is not in the model's vocabulary of {vocabulary} tokens", code="unknown_token")
