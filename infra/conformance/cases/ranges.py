"""Fields of the right type with a value that nothing can be done with. Kind `ranges`.

Several of these have stopped an engine for everybody (vLLM's advisories on penalties, `n`, `min_tokens`, token ids,
grammars), so they must be refused before the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.conformance.build import CHAT, USER, case, chat, completion, with_fields
from infra.conformance.case import Case, Kind
from infra.conformance.cases.types import request_with
from infra.conformance.checks import any_of, both, refused
from infra.conformance.field_table import HUGE, ON_CHAT, ON_COMPLETIONS, OPENAI, Field

_MUST = "400, and `param` names the field"
_ADVISORIES = "vLLM CVE-2026-34756, -105757, -105922, -114051; GHSA-8r8v-xf7q-rcpr"


def _of(fields: tuple[Field, ...], *, endpoint: str) -> Iterator[Case]:
    label = "chat" if endpoint == CHAT else "completions"
    for field in fields:
        for value in field.bad:
            step = request_with(field, value, endpoint=endpoint)
            source = f"{field.source}; {_ADVISORIES}" if value in (HUGE,) else field.source
            name = f"{label} `{field.name}` = {shown(value)}"
            yield case(name, step, refused(field.name), must=_MUST, source=source)


def shown(value: Any) -> str:
    """A value in a few characters, unique enough for a title."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "10^400" if value == 10**400 else "10^30"
    text = repr(value).replace("'", '"').replace("True", "true").replace("None", "null").replace("|", "\\|")
    text = text.replace(str(10**400), "10^400").replace(str(10**30), "10^30")
    return text if len(text) <= 110 else f"{text[:40]}… ({len(text)} characters)"


def _together(name: str, param: str, **changes: Any) -> Case:
    return case(name, chat(**changes), refused(param), must=_MUST, source=OPENAI)


_TOGETHER = (
    _together("`stream_options` without `stream`", "stream_options", stream_options={"include_usage": True}),
    _together("`top_logprobs` without `logprobs`", "top_logprobs", top_logprobs=2),
    _together("`top_logprobs` with `logprobs` off", "top_logprobs", top_logprobs=2, logprobs=False),
    _together("`tool_choice` required without `tools`", "tool_choice", tool_choice="required"),
    _together("`max_tokens` and `max_completion_tokens` apart", "max_tokens", max_tokens=4, max_completion_tokens=5),
    case(
        "`max_tokens` over the context",
        chat(max_tokens=100_000_000),
        refused("max_tokens"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "prompt token ids out of the vocabulary",
        completion(prompt=[2**30]),
        refused("prompt"),
        must="400 before the queue, `param` names the place",
        source="vLLM PR #16529, CVE-2026-105757 (class: a request stops the engine)",
    ),
    case(
        "a list of many prompts",
        completion(prompt=["a"] * 20_000),
        refused("prompt"),
        must="400: a bound on the work of one request",
        source="vLLM CVE-2026-73559",
    ),
    case(
        "`min_tokens` over `max_tokens`",
        chat(max_tokens=2, min_tokens=3),
        refused("min_tokens"),
        must=_MUST,
        source="vLLM CVE-2026-114051",
    ),
    case(
        "a message with an unknown role",
        chat(messages=[{"role": "king", "content": "hi"}]),
        refused("messages[0].role"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "a message without a role",
        chat(messages=[{"content": "hi"}]),
        refused("messages[0]"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "a message without content",
        chat(messages=[{"role": "user"}]),
        refused("messages[0]"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "a message whose content is null",
        chat(messages=[{"role": "user", "content": None}]),
        refused("messages[0]"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "a message with no parts",
        chat(messages=[{"role": "user", "content": []}]),
        refused("messages[0]"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "an empty message",
        chat(messages=[{}]),
        refused("messages[0]"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "a tool's answer without its call id",
        chat(messages=[USER, {"role": "tool", "content": "1"}]),
        refused("messages[1]"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "two tools of one name",
        chat(tools=[{"type": "function", "function": {"name": "same"}}] * 2),
        refused("tools"),
        must=_MUST,
        source=OPENAI,
    ),
    case(
        "`echo` of an unknown field of a message",
        chat(messages=[{**USER, "no_such_field": 1}]),
        refused("messages[0]"),
        must="400 naming it: nothing is dropped silently",
        source=OPENAI,
    ),
)


def _unknown(name: str) -> Case:
    return case(
        f"unknown field `{name[:20]}`{' and so on' if len(name) > 20 else ''}",
        with_fields({name: 1}),
        refused(),
        must="400: never dropped silently",
        source="OpenAI: `Unrecognized request argument supplied`",
    )


_UNKNOWN = (
    *(_unknown(name) for name in ("no_such_field", "__class__", "", "Model", "max-tokens", "x" * 10_000, "temp\u2603")),
    case(
        "completions: unknown field",
        completion(no_such_field=1),
        refused("no_such_field"),
        must="400 naming it",
        source=OPENAI,
    ),
    case("completions with `messages`", completion(messages=[USER]), refused("messages"), must=_MUST, source=OPENAI),
    case("chat with `prompt`", chat(prompt="a"), refused("prompt"), must=_MUST, source=OPENAI),
    case(
        "`top_p` zero",
        chat(top_p=0),
        any_of(200, 400, 422),
        must="taken as the most likely token alone (OpenAI: between 0 and 1), or 400",
        source=OPENAI,
    ),
    case(
        "ten thousand unknown fields",
        with_fields({f"field_{number}": number for number in range(10_000)}),
        both(refused()),
        must="400 at once, with a short message",
        source="vLLM advisories: unbounded work",
    ),
)

KIND = Kind(
    name="ranges",
    group="odd",
    about="values out of range, fields that contradict each other, unknown fields",
    cases=(
        *_of(ON_CHAT, endpoint=CHAT),
        *_of(ON_COMPLETIONS, endpoint="/completions"),
        *_TOGETHER,
        *_UNKNOWN,
    ),
)
