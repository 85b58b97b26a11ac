"""Messages of every role and form that a client sends, and text of every script. Kind `messages`."""

from __future__ import annotations

from typing import Any

from infra.conformance.build import USER, case, chat
from infra.conformance.case import Answer, Case, Check, Http, Kind, Step, Wrong
from infra.conformance.cases.answers import equal_prompts, shape
from infra.conformance.checks import answered, any_of, content_of, supported, usage_of
from infra.conformance.target import QUESTION

_UTF8 = '{"model":"<MODEL>","messages":[{"role":"user","content":"\u6cb3 \U0001f30a"}],"max_tokens":4}'
_ASK = "OpenAI API reference: create chat completion"
_CALL = {"id": "call_1", "type": "function", "function": {"name": "river", "arguments": '{"a": "b"}'}}


def _valid_text(answer: Answer) -> None:
    text = content_of(answer)
    if "\ufffd" in text:
        raise Wrong(f"a broken character in {text[:60]!r}")
    usage_of(answer)


def _greets(*messages: dict[str, Any]) -> Http:
    return chat(messages=list(messages))


def _ask(name: str, step: Step | tuple[Step, ...], check: Check, *, must: str, source: str = _ASK) -> Case:
    return case(name, step, check, must=must, source=source)


_MESSAGES = (
    _ask("a system message", _greets({"role": "system", "content": "Be brief."}, USER), answered(shape), must="200"),
    _ask(
        "a developer message",
        _greets({"role": "developer", "content": "Be brief."}, USER),
        supported(shape, params=("messages[0].role",)),
        must="200",
    ),
    _ask(
        "an assistant's turn",
        _greets(USER, {"role": "assistant", "content": "Rhine."}, USER),
        answered(shape),
        must="200",
    ),
    _ask(
        "an assistant's turn last",
        _greets(USER, {"role": "assistant", "content": "The"}),
        any_of(200, 400),
        must="200, or 400",
    ),
    _ask("two turns of the user", _greets(USER, USER), any_of(200, 400), must="200, or 400"),
    _ask(
        "a system message alone",
        _greets({"role": "system", "content": "Be brief."}),
        any_of(200, 400),
        must="200, or 400",
    ),
    _ask("an empty content", _greets({"role": "user", "content": ""}), any_of(200, 400), must="200, or 400"),
    _ask(
        "white space as content", _greets({"role": "user", "content": " \n\t "}), any_of(200, 400), must="200, or 400"
    ),
    _ask(
        "an empty answer of the assistant",
        _greets(USER, {"role": "assistant", "content": ""}, USER),
        any_of(200, 400),
        must="200, or 400",
        source="litellm#13355",
    ),
    _ask(
        "tool calls with content null",
        _greets(
            USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rhine"},
        ),
        supported(shape, params=("messages",)),
        must="200: null content beside tool_calls",
        source="litellm#37711",
    ),
    _ask(
        "tool calls without content",
        _greets(
            USER,
            {"role": "assistant", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rhine"},
        ),
        supported(shape, params=("messages",)),
        must="200: content is optional beside tool_calls",
        source="litellm#37711",
    ),
    _ask(
        "a tool's answer in parts",
        _greets(
            USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Rhine"}]},
        ),
        supported(shape, params=("messages",)),
        must="200",
    ),
    _ask(
        "an SDK's own answer sent back",
        _greets(
            USER,
            {
                "role": "assistant",
                "content": "Rhine.",
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "tool_calls": None,
            },
            USER,
        ),
        answered(shape),
        must="200: SDKs echo these",
        source="OpenAI SDKs: message.model_dump()",
    ),
    _ask("a name", _greets({**USER, "name": "ada"}), answered(shape), must="200"),
    _ask(
        "content in parts",
        _greets({"role": "user", "content": [{"type": "text", "text": QUESTION}]}),
        answered(shape),
        must="200",
        source="Kong/kong#13445",
    ),
    _ask(
        "content in two parts",
        _greets({"role": "user", "content": [{"type": "text", "text": "Name a"}, {"type": "text", "text": "river."}]}),
        answered(shape),
        must="200",
        source="Kong/kong#13445",
    ),
    _ask(
        "one part counts as its text",
        (chat(), _greets({"role": "user", "content": [{"type": "text", "text": QUESTION}]})),
        equal_prompts,
        must="equal prompt_tokens",
        source="Kong/kong#13445",
    ),
    *(
        _ask(
            f"text in {name}",
            _greets({"role": "user", "content": text}),
            answered(_valid_text),
            must="200, whole characters",
            source="RFC 8259 8.1; api7/aisix#111",
        )
        for name, text in (
            ("emoji", "Say \U0001f30a\U0001f468\u200d\U0001f469\u200d\U0001f467 again."),
            ("Chinese", "\u8bf4\u4e00\u6761\u6cb3\u3002"),
            ("Arabic", "\u0627\u0630\u0643\u0631 \u0646\u0647\u0631\u0627"),
            ("combining marks", "Re\u0301pe\u0300te, s\u2019il te plai\u0302t."),
            ("line ends of all kinds", "a\nb\r\nc\rd\u2028e\u2029f\x85g"),
            ("quotes and backslashes", '"\'\\"\\\\n{}[]</script>&amp;'),
        )
    ),
    _ask(
        "raw UTF-8 and escapes count the same",
        (
            chat(messages=[{"role": "user", "content": "\u6cb3 \U0001f30a"}]),
            Http(content=_UTF8.encode()),
        ),
        equal_prompts,
        must="equal prompt_tokens",
        source="RFC 8259 7",
    ),
)


KIND = Kind(
    name="messages",
    group="openai",
    about="messages of every role and form, text of every script",
    cases=_MESSAGES,
)
