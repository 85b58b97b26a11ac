"""A plain answer put together from the same frames that a stream sends. Step 7; pure; called by `edge/answers.py`.

Invariant: what a client of the plain route gets equals what a client of the stream would have added up: every choice,
content, reasoning, tool calls by index, logprobs, and fields that this release does not know.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from contracts.jobs import Endpoint, Timings
from contracts.money import text_from_nano
from fairqueue.messages import Final
from gateway.surface.verdicts import shown_verdicts

_OBJECTS = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
_CHUNK_OBJECTS = {Endpoint.CHAT: "chat.completion.chunk", Endpoint.COMPLETIONS: "text_completion"}
_ID_PREFIX = {Endpoint.CHAT: "chatcmpl-", Endpoint.COMPLETIONS: "cmpl-"}
_CHUNK_ONLY = frozenset({"id", "object", "created", "model", "choices", "usage"})


def answer(
    frames: Sequence[bytes], *, request_id: str, endpoint: Endpoint, model: str, created_s: int, final: Final
) -> dict[str, Any]:
    """The `chat.completion` or `text_completion` object of a whole request."""
    document: dict[str, Any] = {
        "id": _ID_PREFIX[endpoint] + request_id,
        "object": _OBJECTS[endpoint],
        "created": created_s,
        "model": model,
        "choices": [],
    }
    choices: dict[int, dict[str, Any]] = {}
    for frame in frames:
        chunk = orjson.loads(frame)
        for key, value in chunk.items():
            if key not in _CHUNK_ONLY and value is not None:
                document[key] = value
        for part in chunk.get("choices", ()):
            choice = choices.setdefault(part.get("index", 0), {})
            _add_choice(choice, part)
    finish = _chat_choice if endpoint is Endpoint.CHAT else _text_choice
    document["choices"] = [finish(index, choices[index]) for index in sorted(choices)]
    document["usage"] = usage(final)
    document["weir"] = extension(final)
    return document


def usage_chunk(*, request_id: str, endpoint: Endpoint, model: str, created_s: int, final: Final) -> dict[str, Any]:
    """The last chunk of a stream that asked for usage: no choices."""
    return {
        "id": _ID_PREFIX[endpoint] + request_id,
        "object": _CHUNK_OBJECTS[endpoint],
        "created": created_s,
        "model": model,
        "choices": [],
        "usage": usage(final),
        "weir": extension(final),
    }


def bill(final: Final) -> dict[str, Any]:
    """What stands beside the error of a request that had begun: what it is billed for, asked for or not."""
    return {"usage": usage(final), "weir": extension(final)}


def usage(final: Final) -> dict[str, Any]:
    """OpenAI's usage object, with the exact cost as decimal text of whole currency units."""
    counts = final.counts
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.total,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
        "cost": text_from_nano(final.cost_nano),
        "currency": final.currency,
    }


def extension(final: Final) -> dict[str, Any]:
    """Our own part of an answer: which request this was, how it fared, where its time went, what guardrails did.

    `stopped_by` is there only where the client could not know by itself: the budget, not its `max_tokens`, was reached.
    """
    own: dict[str, Any] = {
        "request_id": final.request_id,
        "attempt": final.attempt,
        "timings": timings_ms(final.timings),
        "verdicts": shown_verdicts(final.verdicts),
    }
    if final.budget_cut and final.finish_reason == "length":
        own["stopped_by"] = "budget"
    return own


def timings_ms(timings: Timings) -> dict[str, float]:
    """Milliseconds by step; those that were not measured are left out."""
    names = ("edge", "guard", "queue", "prefill", "decode", "output_guard", "ttft", "total")
    return {f"{name}_ms": value / 1000 for name in names if (value := getattr(timings, f"{name}_us"))}


def _add_choice(choice: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if key == "delta":
            _add_delta(choice.setdefault("delta", {}), choice.setdefault("texts", {}), value or {})
        elif key == "logprobs":
            if value is not None:
                _extend(choice.setdefault("logprobs", {}), value)
        elif key == "text":
            choice.setdefault("text", []).append(value or "")
        elif key != "index" and (value is not None or key not in choice):
            choice[key] = value


def _add_delta(message: dict[str, Any], texts: dict[str, list[str]], delta: dict[str, Any]) -> None:
    """Strings are pieces of one text; anything else stands for itself."""
    for key, value in delta.items():
        if key == "tool_calls":
            _add_tool_calls(message.setdefault("tool_calls", {}), value or ())
        elif key == "role":
            message["role"] = value or message.get("role", "assistant")
        elif isinstance(value, str):
            texts.setdefault(key, []).append(value)
        elif value is not None:
            message[key] = value


def _add_tool_calls(calls: dict[int, dict[str, Any]], parts: Sequence[dict[str, Any]]) -> None:
    for part in parts:
        call = calls.setdefault(part.get("index", 0), {"id": None, "type": "function", "name": "", "arguments": []})
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["name"] += function.get("name") or ""
        call["arguments"].append(function.get("arguments") or "")


def _extend(into: dict[str, Any], value: dict[str, Any]) -> None:
    """Logprobs of a chunk are lists over its tokens (or null): they are joined."""
    for key, part in value.items():
        if isinstance(part, list):
            known = into.get(key)
            into[key] = [*known, *part] if isinstance(known, list) else list(part)
        elif part is not None or key not in into:
            into[key] = part


def _chat_choice(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    delta, texts = choice.pop("delta", {}), choice.pop("texts", {})
    message: dict[str, Any] = {"role": delta.pop("role", None) or "assistant", "content": None, "refusal": None}
    calls = delta.pop("tool_calls", None)
    message |= delta | {key: "".join(pieces) for key, pieces in texts.items()}
    if calls:
        message["tool_calls"] = [_tool_call(calls[position]) for position in sorted(calls)]
    elif message["content"] is None:
        message["content"] = ""
    finish_reason, logprobs = choice.pop("finish_reason", None), choice.pop("logprobs", None)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason, **choice}


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": "".join(call["arguments"])}
    return {"id": call["id"], "type": call["type"], "function": function}


def _text_choice(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    text = "".join(choice.pop("text", ()))
    finish_reason, logprobs = choice.pop("finish_reason", None), choice.pop("logprobs", None)
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, **choice}
