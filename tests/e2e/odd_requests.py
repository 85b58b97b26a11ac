"""Requests that are wrong in one way each, and what must be answered: the table behind test_bad_input.

One row: a name, the changes to a good chat request (or raw bytes), the status, and the field named in `param`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A good chat request with `changes` (None removes nothing: it is JSON's null), or `raw` bytes in its place."""

    name: str
    changes: dict[str, Any]
    status: int = 400
    param: str | None = None
    path: str = "/chat/completions"


def _chat(name: str, *, param: str | None = None, status: int = 400, **changes: Any) -> Odd:
    return Odd(name=name, changes=changes, status=status, param=param)


def _nested(depth: int) -> Any:
    value: Any = {"type": "object"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


def _schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


USER = {"role": "user", "content": "say: hi"}

FIELDS = (
    _chat("temperature below zero", param="temperature", temperature=-1),
    _chat("temperature too high", param="temperature", temperature=2.01),
    _chat("temperature a string", param="temperature", temperature="0.5"),
    _chat("temperature a boolean", param="temperature", temperature=True),
    _chat("top_p zero", param="top_p", top_p=0),
    _chat("top_p above one", param="top_p", top_p=1.5),
    _chat("top_k below minus one", param="top_k", top_k=-2),
    _chat("top_k over the vocabulary", param="top_k", top_k=2**31 - 1),
    _chat("min_p above one", param="min_p", min_p=1.1),
    _chat("n zero", param="n", n=0),
    _chat("n a hundred", param="n", n=100),
    _chat("n that wraps around", param="n", n=18446744073686646784),
    _chat("n greedy choices, all the same", param="n", n=2, temperature=0),
    _chat("n a fraction", param="n", n=1.5),
    _chat("max_tokens zero", param="max_tokens", max_tokens=0),
    _chat("max_tokens negative", param="max_tokens", max_tokens=-5),
    _chat("max_tokens over the context", param="max_tokens", max_tokens=10_000_000),
    _chat("max_tokens a string", param="max_tokens", max_tokens="16"),
    _chat("max_tokens beside another max", param="max_tokens", max_tokens=5, max_completion_tokens=6),
    _chat("min_tokens over max_tokens", param="min_tokens", max_tokens=4, min_tokens=5),
    _chat("frequency penalty too high", param="frequency_penalty", frequency_penalty=2.5),
    _chat("presence penalty too low", param="presence_penalty", presence_penalty=-2.5),
    _chat("repetition penalty zero", param="repetition_penalty", repetition_penalty=0),
    _chat("seed beyond 64 bits", param="seed", seed=2**63),
    _chat("stop list too long", param="stop", stop=[str(number) for number in range(17)]),
    _chat("stop empty string", param="stop", stop=""),
    _chat("stop too long", param="stop[0]", stop=["x" * 257]),
    _chat("stop a number", param="stop", stop=7),
    _chat("logit_bias out of vocabulary", param="logit_bias.99999999", logit_bias={"99999999": 1}),
    _chat("logit_bias too strong", param="logit_bias.1", logit_bias={"1": 101}),
    _chat("logit_bias of a word", param="logit_bias.word", logit_bias={"word": 1}),
    _chat("allowed_token_ids empty", param="allowed_token_ids", allowed_token_ids=[]),
    _chat("allowed_token_ids unknown", param="allowed_token_ids[0]", allowed_token_ids=[2**30]),
    _chat("stop_token_ids negative", param="stop_token_ids[0]", stop_token_ids=[-1]),
    _chat("top_logprobs without logprobs", param="top_logprobs", top_logprobs=2),
    _chat("top_logprobs too many", param="top_logprobs", logprobs=True, top_logprobs=21),
    _chat("logprobs a number", param="logprobs", logprobs=5),
    _chat("stream a string", param="stream", stream="yes"),
    _chat("stream_options without stream", param="stream_options", stream_options={"include_usage": True}),
    _chat("stream_options unknown", param="stream_options.x", stream=True, stream_options={"x": 1}),
    _chat("client's cache salt", param="cache_salt", cache_salt="mine"),
    _chat("client's chat template", param="chat_template", chat_template="{{ 1 }}"),
    _chat("client's template arguments", param="chat_template_kwargs", chat_template_kwargs={"a": 1}),
    _chat("client's priority", param="priority", priority=-1),
    _chat("client's kv_transfer_params", param="kv_transfer_params", kv_transfer_params={"a": 1}),
    _chat("unknown field", param="no_such_field", no_such_field=1),
    _chat("unknown field named like an attribute", param="__class__", __class__=1),
    _chat("response_format of another type", param="response_format.type", response_format={"type": "xml"}),
    _chat(
        "response_format without a schema", param="response_format.json_schema", response_format={"type": "json_schema"}
    ),
    _chat("schema too deep", response_format=_schema(_nested(17))),
    _chat("tool_choice without tools", param="tool_choice", tool_choice="auto"),
    _chat("tools not a list", param="tools", tools={"type": "function"}),
)

MESSAGES = (
    _chat("messages missing", param="messages", messages=None),
    _chat("messages empty", param="messages", messages=[]),
    _chat("messages a string", param="messages", messages="hi"),
    _chat("messages of strings", param="messages[0]", messages=["hi"]),
    _chat("a role nobody has", param="messages[0].role", messages=[{"role": "king", "content": "hi"}]),
    _chat("no role", param="messages[0].role", messages=[{"content": "hi"}]),
    _chat("no content", param="messages[0].content", messages=[{"role": "user"}]),
    _chat("content a number", param="messages[0].content", messages=[{"role": "user", "content": 7}]),
    _chat(
        "an image",
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}],
    ),
    _chat("an unknown field of a message", param="messages[0].x", messages=[{**USER, "x": 1}]),
    _chat("too many messages", param="messages", messages=[USER] * 2_049),
    _chat("a prompt over the context", messages=[{"role": "user", "content": "word " * 20_000}]),
    _chat("a lone surrogate", messages=[{"role": "user", "content": "\ud800"}]),
)

MODELS = (
    _chat("model missing", param="model", model=None),
    _chat("model empty", param="model", model=""),
    _chat("model a number", param="model", model=7),
    _chat("model unknown", param="model", status=404, model="no-such-model"),
    _chat("model named null", param="model", status=404, model="null"),
    _chat("model with a path", param="model", status=404, model="../../etc/passwd"),
    _chat("model too long", param="model", model="m" * 129),
)

COMPLETIONS = tuple(
    Odd(name=f"completion: {name}", path="/completions", changes=changes, param=param)
    for name, param, changes in (
        ("prompt missing", "prompt", {"prompt": None}),
        ("prompt an object", "prompt", {"prompt": {"a": 1}}),
        ("two prompts", "prompt", {"prompt": ["a", "b"]}),
        ("token ids out of vocabulary", "prompt[0]", {"prompt": [2**30]}),
        ("no token ids", "prompt", {"prompt": []}),
        ("echo", "echo", {"echo": True}),
        ("best_of over n", "best_of", {"best_of": 3}),
        ("messages", "messages", {"messages": [USER]}),
        ("suffix", "suffix", {"suffix": "x"}),
    )
)

ODD = (*FIELDS, *MESSAGES, *MODELS, *COMPLETIONS)

# Bodies that are no good request as bytes: name, bytes, content type, statuses.
RAW: tuple[tuple[str, bytes, str | None, tuple[int, ...]], ...] = (
    ("empty", b"", "application/json", (400,)),
    ("not JSON", b"hello", "application/json", (400,)),
    ("cut off", b'{"model": "x", "messages": [', "application/json", (400,)),
    ("trailing comma", b'{"model": "x",}', "application/json", (400,)),
    ("a list", b"[]", "application/json", (400,)),
    ("a number", b"7", "application/json", (400,)),
    ("null", b"null", "application/json", (400,)),
    ("NaN", b'{"model": "x", "temperature": NaN}', "application/json", (400,)),
    ("infinite", b'{"model": "x", "temperature": 1e999}', "application/json", (400, 404)),
    ("a field twice", b'{"model": "x", "model": "y"}', "application/json", (400, 404)),
    ("not UTF-8", b'{"model": "\xff\xfe"}', "application/json", (400,)),
    ("a byte order mark", b'\xef\xbb\xbf{"model": "x"}', "application/json", (400, 404)),
    ("nested without end", b'{"model":' + b"[" * 100_000, "application/json", (400,)),
    ("a number with a million digits", b'{"seed": ' + b"9" * 1_000_000 + b"}", "application/json", (400,)),
    ("no content type", b"{}", None, (400, 415)),
    ("plain text", b"{}", "text/plain", (415,)),
    ("a form", b"model=x", "application/x-www-form-urlencoded", (415,)),
    ("over the limit", b" " * (4 * 1024 * 1024 + 1), "application/json", (413,)),
)
