"""Every field with a value of every JSON type that it does not take: one case for each. Kind `types`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.conformance.build import CHAT, USER, case, chat, completion
from infra.conformance.case import ABSENT, Case, Http, Kind
from infra.conformance.checks import refused
from infra.conformance.field_table import ON_CHAT, ON_COMPLETIONS, OPENAI, SAMPLES, TOOL, Field, wrong_types

_MUST = "400, and `param` names the field"


def request_with(field: Field, value: Any, *, endpoint: str) -> Http:
    """A good request in which only this field is as given."""
    changes = {**field.beside, field.name: value}
    if field.name == "max_completion_tokens":
        changes["max_tokens"] = ABSENT
    return chat(**changes) if endpoint == CHAT else completion(**changes)


def _of(fields: tuple[Field, ...], *, endpoint: str) -> Iterator[Case]:
    label = "chat" if endpoint == CHAT else "completions"
    for field in fields:
        for what, value in wrong_types(field):
            step = request_with(field, value, endpoint=endpoint)
            yield case(f"{label} `{field.name}` {what}", step, refused(field.name), must=_MUST, source=field.source)


def _message(**changes: Any) -> dict[str, Any]:
    return {"messages": [{**USER, **changes}]}


def _tool(**changes: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {**TOOL["function"], **changes}}]}  # type: ignore[dict-item]


def _call(**changes: Any) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "river", "arguments": "{}"}, **changes}
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]}


def _format(**changes: Any) -> dict[str, Any]:
    inner = {"name": "x", "schema": {"type": "object"}, **changes}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


# Fields inside fields: the path in `param`, the types that it takes, and how a value gets there.
_INNER: tuple[tuple[str, str, Any], ...] = (
    ("messages[0].role", "string", lambda value: _message(role=value)),
    ("messages[0].content", "string array", lambda value: _message(content=value)),
    ("messages[0].name", "string", lambda value: _message(name=value)),
    ("messages[0].content[0]", "object", lambda value: _message(content=[value])),
    ("messages[0].content[0].type", "string", lambda value: _message(content=[{"type": value, "text": "a"}])),
    ("messages[0].content[0].text", "string", lambda value: _message(content=[{"type": "text", "text": value}])),
    ("messages[1].tool_calls[0].id", "string", lambda value: _call(id=value)),
    ("messages[1].tool_calls[0].type", "string", lambda value: _call(type=value)),
    ("messages[1].tool_calls[0].function", "object", lambda value: _call(function=value)),
    (
        "messages[1].tool_calls[0].function.name",
        "string",
        lambda value: _call(function={"name": value, "arguments": "{}"}),
    ),
    (
        "messages[1].tool_calls[0].function.arguments",
        "string",
        lambda value: _call(function={"name": "river", "arguments": value}),
    ),
    ("tools[0].type", "string", lambda value: {"tools": [{**TOOL, "type": value}]}),
    ("tools[0].function", "object", lambda value: {"tools": [{"type": "function", "function": value}]}),
    ("tools[0].function.name", "string", lambda value: _tool(name=value)),
    ("tools[0].function.description", "string", lambda value: _tool(description=value)),
    ("tools[0].function.parameters", "object", lambda value: _tool(parameters=value)),
    ("tools[0].function.strict", "boolean", lambda value: _tool(strict=value)),
    ("response_format.type", "string", lambda value: {"response_format": {"type": value}}),
    (
        "response_format.json_schema",
        "object",
        lambda value: {"response_format": {"type": "json_schema", "json_schema": value}},
    ),
    ("response_format.json_schema.name", "string", lambda value: _format(name=value)),
    ("response_format.json_schema.schema", "object", lambda value: _format(schema=value)),
    ("response_format.json_schema.strict", "boolean", lambda value: _format(strict=value)),
    (
        "stream_options.include_usage",
        "boolean",
        lambda value: {"stream": True, "stream_options": {"include_usage": value}},
    ),
)


def _inner() -> Iterator[Case]:
    for path, takes, place in _INNER:
        for kind, value in SAMPLES.items():
            if kind not in takes.split():
                name = f"chat `{path}` of type {kind}"
                yield case(name, chat(**place(value)), refused(path), must=_MUST, source=OPENAI)


KIND = Kind(
    name="types",
    group="odd",
    about="every field with a value of every JSON type that it does not take",
    cases=(
        *_of(ON_CHAT, endpoint=CHAT),
        *_inner(),
        *_of(ON_COMPLETIONS, endpoint="/completions"),
    ),
)
