"""Too much of everything, within 20 MB. Kind `sizes`. A server has limits, says so with 4xx, and lives on."""

from __future__ import annotations

from typing import Any

from infra.conformance.build import CHAT, COMPLETIONS, USER, case, chat, completion, message, raw, wire, with_fields
from infra.conformance.case import Case, Check, Kind, Step
from infra.conformance.checks import any_of, refused, turned_away
from infra.conformance.field_table import TOOL

_BODY = "RFC 9110 15.5.14; envoyproxy/ai-gateway#827, mnfst/llm-gateway#2126"
_WORK = "vLLM advisories: unbounded work (CVE-2026-34756, -73559)"
_MB = 1024 * 1024
_TOO_MUCH = "4xx in OpenAI's shape, in time"
_START = b'{"model":"<MODEL>","messages":[{"role":"user","content":"'


def _big(name: str, step: Step, *, check: Check | None = None, must: str = _TOO_MUCH, source: str = _WORK) -> Case:
    return case(name, step, check or refused(statuses=(400, 413, 422)), must=must, source=source)


_BODIES = (
    _big("a body of 19 MB", raw(_START + b"a" * 19 * _MB + b'"}]}'), must="413 (or 400)", source=_BODY),
    _big("a body of 19 MB of white space", raw(b" " * 19 * _MB), must="413 (or 400)", source=_BODY),
    _big(
        "a body of 19 MB for completions",
        raw(b'{"model":"<MODEL>","prompt":"' + b"a" * 19 * _MB + b'"}', path=COMPLETIONS),
        must="413 (or 400)",
        source=_BODY,
    ),
    _big("a body of 6 MB", raw(_START + b"\\u0061" * _MB + b'"}]}'), must="413, or 400 for its context", source=_BODY),
    case(
        "a chunked body of 10 MB",
        wire(
            message("POST <V1>/chat/completions HTTP/1.1", "Transfer-Encoding: chunked", body=b""),
            (b"100000\r\n" + b" " * _MB + b"\r\n") * 10 + b"0\r\n\r\n",
        ),
        turned_away(400, 413),
        must="413 (or 400): counted while it comes",
        source=_BODY,
    ),
    case(
        "200,000 chunks of one byte",
        wire(
            message("POST <V1>/chat/completions HTTP/1.1", "Transfer-Encoding: chunked", body=b""),
            b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n",
        ),
        turned_away(400, 413),
        must="400 or 413, in time",
        source="RFC 9112 7.1; CWE-770",
    ),
    _big(
        "a body of 19 MB without a key",
        raw(b" " * 19 * _MB, key=None),
        check=any_of(401, 413),
        must="401 or 413",
        source=_BODY,
    ),
    _big(
        "a body of 5 MB to a path that is not there",
        raw(b" " * 5 * _MB, path="/no-such-path"),
        check=any_of(404, 413),
        must="404 or 413",
        source=_BODY,
    ),
)


def _part(count: int) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "a"}] * count


def _tools(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {**TOOL["function"], "name": f"t{number}"}} for number in range(count)]  # type: ignore[dict-item]


_COUNTS = (
    _big(
        "a prompt over the context",
        chat(messages=[{"role": "user", "content": "word " * 400_000}]),
        source="OpenAI: context_length_exceeded",
    ),
    _big(
        "a completion over the context", completion(prompt="word " * 400_000), source="OpenAI: context_length_exceeded"
    ),
    _big(
        "a word of 2,000,000 letters",
        chat(messages=[{"role": "user", "content": "a" * 2_000_000}]),
        source="CWE-400: quadratic tokenizers",
    ),
    _big(
        "1,000,000 spaces",
        chat(messages=[{"role": "user", "content": " " * 1_000_000}]),
        source="CWE-400: quadratic tokenizers",
        check=any_of(200, 400, 413),
    ),
    _big("500,000 emoji", chat(messages=[{"role": "user", "content": "\U0001f30a" * 200_000}])),
    _big("60,000 messages", chat(messages=[USER] * 60_000)),
    _big("30,000 empty messages", chat(messages=[{"role": "user", "content": ""}] * 30_000)),
    _big("50,000 parts in one message", chat(messages=[{"role": "user", "content": _part(50_000)}])),
    _big("10,000 tools", chat(tools=_tools(10_000))),
    _big(
        "a tool with a description of 3 MB",
        chat(tools=[{"type": "function", "function": {"name": "a", "description": "d" * 3 * _MB}}]),
    ),
    _big(
        "10,000 tool calls",
        chat(
            messages=[
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": f"c{n}", "type": "function", "function": {"name": "a", "arguments": "{}"}}
                        for n in range(10_000)
                    ],
                },
            ]
        ),
    ),
    _big(
        "a tool call with arguments of 3 MB",
        chat(
            messages=[
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "a", "arguments": '{"a": "' + "b" * 3 * _MB + '"}'},
                        }
                    ],
                },
            ]
        ),
    ),
    _big("20,000 stop strings", chat(stop=[f"s{number}" for number in range(20_000)])),
    _big("a stop string of 1 MB", chat(stop=["s" * _MB])),
    _big("200,000 entries of logit_bias", chat(logit_bias={str(number): 1 for number in range(200_000)})),
    _big("1,000,000 token ids", completion(prompt=[1] * 1_000_000)),
    _big(
        "a model's name of 1 MB",
        chat(model="m" * _MB),
        check=refused("model", statuses=(400, 404, 413, 422)),
        source=CHAT,
    ),
    _big("a user of 1 MB", chat(user="u" * _MB)),
    _big("a name of 1 MB", chat(messages=[{**USER, "name": "n" * _MB}])),
    _big("a role of 1 MB", chat(messages=[{"role": "r" * _MB, "content": "a"}])),
    _big("100,000 metadata entries", chat(metadata={f"k{number}": "v" for number in range(100_000)})),
    _big("a field's name of 1 MB", with_fields({"f" * _MB: 1}), must="4xx with a short message"),
)

KIND = Kind(
    name="sizes",
    group="odd",
    about="too much of everything, within 20 MB",
    cases=(*_BODIES, *_COUNTS),
)
