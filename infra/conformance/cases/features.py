"""Tools, idempotency, two tenants, and that the server lives on. Kind `features`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from infra.conformance.build import USER, case, chat, get
from infra.conformance.case import Http, Kind, Seen, Skipped, Wrong
from infra.conformance.checks import (
    REFUSALS,
    answered,
    choices_of,
    error_of,
    names,
    refused,
    supported,
)
from infra.conformance.stream_checks import chunks_of, tool_calls_of

_TOOLS = "OpenAI API reference: function calling"
_IDEMPOTENCY = "draft-ietf-httpapi-idempotency-key-header"
_TENANTS = "OWASP API1:2023"
_BACKGROUND = "OpenAI API reference: background mode"
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
_NAMED = {"type": "function", "function": {"name": "get_weather"}}


def _call_is_whole(name: Any, arguments: Any, call_id: Any) -> None:
    if name != "get_weather" or not isinstance(call_id, str) or not call_id:
        raise Wrong(f"a call of {name!r} with the id {call_id!r}")
    try:
        if not isinstance(json.loads(arguments), dict):
            raise Wrong(f"arguments {arguments!r}")
    except (TypeError, ValueError) as error:
        raise Wrong(f"arguments that are no JSON: {str(arguments)[:60]!r}") from error


def _called(seen: Seen) -> None:
    """A tool that had to be called was, or the server says that it cannot."""
    if seen.answer.status in REFUSALS:
        refused("tool_choice", "tools")(seen)
        raise Skipped(f"not supported, and said so: {seen.summary()}")
    choice = choices_of(seen.answer)[0]
    calls = choice["message"].get("tool_calls")
    if choice["finish_reason"] == "length":
        raise Skipped("the model did not end within its tokens")
    if not calls:
        raise Wrong("a tool that had to be called was not: tool_choice was dropped silently")
    for call in calls:
        function = call.get("function") or {}
        _call_is_whole(function.get("name"), function.get("arguments"), call.get("id"))


def _called_in_stream(seen: Seen) -> None:
    if seen.answer.status in REFUSALS:
        refused("tool_choice", "tools")(seen)
        raise Skipped(f"not supported, and said so: {seen.summary()}")
    chunks = chunks_of(seen.answer)
    reasons = [choice.get("finish_reason") for chunk in chunks for choice in chunk["choices"]]
    calls = tool_calls_of(chunks)
    if "length" in reasons:
        raise Skipped("the model did not end within its tokens")
    if not calls:
        raise Wrong("a tool that had to be called was not: tool_choice was dropped silently")
    for call in calls:
        _call_is_whole(call["name"], call["arguments"], call["id"])


def _no_call(seen: Seen) -> None:
    supported(params=("tools", "tool_choice"))(seen)
    if choices_of(seen.answer)[0]["message"].get("tool_calls"):
        raise Wrong("a tool was called though tool_choice is none")


_FRESH = chat()  # its id makes the keys and prompts behind it new in each run


def _with_key(*, key: str = "own", **changes: Any) -> Callable[[Seen], Http]:
    """A request with an Idempotency-Key that no earlier run has used."""

    def made(seen: Seen) -> Http:
        if key == "other":
            _needs_other(seen)
        return chat(headers=(("Idempotency-Key", f"conformance-{_bare(seen)}"),), key=key, **changes)

    return made


def _marked(*, key: str = "own") -> Callable[[Seen], Http]:
    """A long prompt that begins with what no earlier run has sent."""

    def made(seen: Seen) -> Http:
        if key == "other":
            _needs_other(seen)
        return chat(messages=[{"role": "user", "content": _bare(seen) + " weir lock sluice pond" * 60}], key=key)

    return made


def _ids(seen: Seen) -> list[Any]:
    return [seen.answer_to(index).json().get("id") for index in (1, 2)]


def _repeated(seen: Seen) -> None:
    """The second one is the first one's answer, where the server knows the header."""
    answered()(seen)
    first, second = _ids(seen)
    if first != second:
        raise Skipped("the server does not know Idempotency-Key")
    if seen.answer_to(1).json().get("choices") != seen.answer_to(2).json().get("choices"):
        raise Wrong("one id with two answers")


def _another_body(seen: Seen) -> None:
    if seen.answer.status == 200:
        if len(set(_ids(seen))) == 1:
            raise Wrong("another question got the first one's answer")
        raise Skipped("the server does not know Idempotency-Key")
    if seen.answer.status not in (400, 409, 422):
        raise Wrong(f"{seen.answer.status} for one key with two bodies")
    error_of(seen.answer)


def _needs_other(seen: Seen) -> None:
    if seen.target.other_key is None:
        raise Skipped("needs --other-key")


def _apart(seen: Seen) -> None:
    _needs_other(seen)
    answered()(seen)
    if len(set(_ids(seen))) == 1:
        raise Wrong("another tenant got the answer to the same Idempotency-Key")


def _foreign_request(seen: Seen) -> Http:
    _needs_other(seen)
    return get(f"/requests/{_bare(seen)}", key="other")


def _foreign_cancel(seen: Seen) -> Http:
    _needs_other(seen)
    return Http(path=f"/requests/{_bare(seen)}/cancel", content=b"{}", key="other")


def _own_request(seen: Seen) -> Http:
    return get(f"/requests/{_bare(seen)}")


def _accepted(seen: Seen) -> None:
    """At once, under an id by which it is then found; a server that does not do this says so by the field."""
    accepted, found = seen.answer_to(0), seen.answer_to(1)
    if accepted.status in REFUSALS:
        if not names(error_of(accepted)["param"], "background"):
            raise Wrong(f"refused for something else: {accepted.text(80)}")
        raise Skipped("not supported, and said so")
    request_id = accepted.json().get("id") if accepted.status == 202 else None
    if not isinstance(request_id, str):
        raise Wrong(f"{accepted.status} where 202 with an id must be: {accepted.text(80)}")
    if found.status != 200 or found.json().get("id") != request_id:
        raise Wrong(f"{found.status} where the accepted request must be: {found.text(80)}")


def _bare(seen: Seen) -> str:
    """The request's id, with what OpenAI's objects put in front of it cut off."""
    found = str(seen.answer_to(0).json().get("id"))
    return found.partition("-")[2] if found.startswith(("chatcmpl-", "cmpl-")) else found


def _hidden(seen: Seen) -> None:
    """Where requests can be looked up, another tenant's is not there."""
    if seen.answer_to(1).status != 200:
        raise Skipped("requests cannot be looked up")
    refused(statuses=(404,))(seen)


def _cached_apart(seen: Seen) -> None:
    """What one tenant asked is not in the cache for another: less is cached for it than for the one who asked."""
    _needs_other(seen)
    own, other = _cached(seen, 2), _cached(seen, 3)
    if own == 0:
        raise Skipped("nothing is told of a cache")
    if other >= own:
        raise Wrong(f"{other} tokens cached from another tenant's prompt")


def _cached(seen: Seen, index: int) -> int:
    details = (seen.answer_to(index).json().get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


KIND = Kind(
    name="features",
    group="openai",
    about="tools, idempotency, two tenants, and that the server lives on",
    cases=(
        case(
            "a tool that must be called",
            chat(messages=_ASK, tools=[_WEATHER], tool_choice="required", max_tokens=128),
            _called,
            must="tool_calls with id, name and JSON arguments; or 400",
            source=_TOOLS,
        ),
        case(
            "a named tool",
            chat(messages=_ASK, tools=[_WEATHER], tool_choice=_NAMED, max_tokens=128),
            _called,
            must="tool_calls with id, name and JSON arguments; or 400",
            source=_TOOLS,
        ),
        case(
            "a tool that must be called, streamed",
            chat(messages=_ASK, tools=[_WEATHER], tool_choice="required", max_tokens=128, stream=True),
            _called_in_stream,
            must="put together by index: id, name, JSON arguments",
            source="litellm#39796; Kong/kong#13760",
        ),
        case(
            "a named tool, streamed",
            chat(messages=_ASK, tools=[_WEATHER], tool_choice=_NAMED, max_tokens=128, stream=True),
            _called_in_stream,
            must="put together by index: id, name, JSON arguments",
            source="litellm#39796",
        ),
        case(
            "tool_choice none",
            chat(messages=_ASK, tools=[_WEATHER], tool_choice="none"),
            _no_call,
            must="no tool call",
            source=_TOOLS,
        ),
        case(
            "tool_choice auto",
            chat(messages=_ASK, tools=[_WEATHER], tool_choice="auto"),
            supported(params=("tools", "tool_choice")),
            must="200, or 400 naming it",
            source=_TOOLS,
        ),
        case(
            "tools without tool_choice",
            chat(messages=_ASK, tools=[_WEATHER]),
            supported(params=("tools",)),
            must="200, or 400 naming it",
            source=_TOOLS,
        ),
        case(
            "an Idempotency-Key twice",
            (_FRESH, _with_key(), _with_key()),
            _repeated,
            must="one answer for both, where known",
            source=_IDEMPOTENCY,
            alone=True,
        ),
        case(
            "an Idempotency-Key with another body",
            (_FRESH, _with_key(), _with_key(messages=[USER, USER])),
            _another_body,
            must="refused, never the first one's answer",
            source=_IDEMPOTENCY,
            alone=True,
        ),
        case(
            "an Idempotency-Key of another tenant",
            (_FRESH, _with_key(), _with_key(key="other")),
            _apart,
            must="an answer of its own",
            source=_TENANTS,
            alone=True,
        ),
        case(
            "a background request",
            (chat(background=True), _own_request),
            _accepted,
            must="202 with an id, by which it is found; or 400 naming it",
            source=_BACKGROUND,
        ),
        case(
            "a background request that is to stream",
            chat(background=True, stream=True),
            refused("stream", "background"),
            must="400 naming one of them: never a stream that a lost client ends",
            source=_BACKGROUND,
        ),
        case(
            "background that is a word",
            chat(background="yes"),
            refused("background"),
            must="400 naming it",
            source=_BACKGROUND,
        ),
        case(
            "another tenant's request",
            (chat(), _own_request, _foreign_request),
            _hidden,
            must="404, as if it were not there",
            source=_TENANTS,
        ),
        case(
            "another tenant's cancel",
            (chat(), _own_request, _foreign_cancel),
            _hidden,
            must="404, as if it were not there",
            source=_TENANTS,
        ),
        case(
            "another tenant's cached prompt",
            (_FRESH, _marked(), _marked(), _marked(key="other")),
            _cached_apart,
            must="no cached tokens",
            source="CVE-2025-46570",
            alone=True,
        ),
        case(
            "a hundred requests on one connection",
            tuple(get("/models") for _ in range(100)),
            answered(),
            must="200 each time",
            source="RFC 9112 9.3",
        ),
    ),
)
