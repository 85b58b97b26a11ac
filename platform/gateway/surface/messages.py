"""Messages and tools of a chat: checked once, brought into one form, which is then guarded, counted and sent. Step 1.

Invariant: text only. A part, role or field that the template or the guard would not see is refused, never dropped; so
what the guard read is what the engine gets. An explicit null is the same as an absent field.
"""

from typing import Any

from gateway.surface import limits
from gateway.surface.fields import (
    Schema,
    boolean,
    integer,
    items,
    listed,
    mapping,
    needed,
    object_of,
    one_of,
    only_keys,
    or_null,
    takes,
    text,
    wrong,
)
from gateway.surface.json_schema import JSON_SCHEMA, check_json_text, check_schema

_ROLES = ("system", "developer", "user", "assistant", "tool")
# What SDKs echo back from an answer, each with what it holds there when it says nothing, beside null.
_EMPTY_ONLY: dict[str, Any] = {"refusal": "", "audio": {}, "function_call": {}, "annotations": []}
_FIELDS: dict[str, frozenset[str]] = {
    role: frozenset({"role", "content", "name"}) for role in ("system", "developer", "user")
} | {
    "assistant": frozenset({"role", "content", "name", "tool_calls", "reasoning", "reasoning_content", *_EMPTY_ONLY}),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
}
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

_role = one_of(*_ROLES)
_body_text = text(limits.BODY_BYTES_MAX)
_short = text(limits.NAME_MAX, shortest=1)
_index = integer(0, limits.TOOL_CALLS_MAX - 1)

NAME = {**_short.schema, "pattern": "^[A-Za-z0-9_-]+$"}
_TEXT_PART = object_of({"type": {"enum": ["text"]}, "text": _body_text.schema})
_CONTENT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": _TEXT_PART, "minItems": 1, "maxItems": limits.PARTS_MAX},
    ]
}
_FUNCTION = {"enum": ["function"]}
_ARGUMENTS = {**_body_text.schema, "contentMediaType": "application/json"}
_CALL: Schema = object_of(
    {"id": _short.schema, "function": object_of({"name": NAME, "arguments": _ARGUMENTS})},
)
_CALL["properties"] |= {"type": or_null(_FUNCTION), "index": or_null(_index.schema)}
_TOOL = object_of(
    {"type": _FUNCTION, "function": object_of(
        {"name": NAME},
        {"description": {"type": "string", "maxLength": limits.DESCRIPTION_MAX}, "parameters": JSON_SCHEMA,
         "strict": boolean.schema},
    )},
)  # fmt: skip
_NAMED_TOOL = object_of({"type": _FUNCTION, "function": object_of({"name": NAME})})
_SAID_BY_ASSISTANT = {
    "content": _CONTENT,
    "name": _short.schema,
    "tool_calls": {"type": "array", "items": _CALL, "maxItems": limits.TOOL_CALLS_MAX},
    "reasoning": _body_text.schema,
    "reasoning_content": _body_text.schema,
    **{key: {"enum": [nothing]} for key, nothing in _EMPTY_ONLY.items()},
}
_MESSAGE = {
    "anyOf": [
        object_of({"role": one_of("system", "developer", "user").schema, "content": _CONTENT}, {"name": _short.schema}),
        object_of({"role": one_of("assistant").schema}, _SAID_BY_ASSISTANT),
        object_of(
            {"role": one_of("tool").schema, "content": _CONTENT, "tool_call_id": _short.schema}, {"name": _short.schema}
        ),
    ]
}


@takes({"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": limits.MESSAGES_MAX})
def check_messages(value: Any, param: str) -> list[dict[str, Any]]:
    """A chat's messages. Raises InvalidRequest with the path of what is wrong."""
    messages: list[dict[str, Any]] = items(_check_message, most=limits.MESSAGES_MAX, least=1)(value, param)
    return messages


@takes(_MESSAGE)
def _check_message(value: Any, param: str) -> dict[str, Any]:
    given = {key: item for key, item in mapping(value, param).items() if item is not None}
    role = needed(given, "role", _role, param)
    only_keys(given, _FIELDS[role], param)
    message: dict[str, Any] = {"role": role}
    if "content" in given:
        message["content"] = _check_content(given["content"], f"{param}.content")
    if "name" in given:
        message["name"] = _short(given["name"], f"{param}.name")
    if role == "assistant":
        _check_assistant(given, message, param)
    elif "content" not in message:
        raise wrong(f"{param}.content", "is missing", code="missing_field")
    if role == "tool":
        message["tool_call_id"] = needed(given, "tool_call_id", _short, param)
    return message


def _check_assistant(given: dict[str, Any], message: dict[str, Any], param: str) -> None:
    for key, nothing in _EMPTY_ONLY.items():
        if key in given and (type(given[key]) is not type(nothing) or given[key]):
            code = "unsupported_parameter" if type(given[key]) is type(nothing) else "invalid_type"
            raise wrong(f"{param}.{key}", "is not accepted: text and tool calls only", code=code)
    if "tool_calls" in given:
        calls = items(_check_call, most=limits.TOOL_CALLS_MAX)(given["tool_calls"], f"{param}.tool_calls")
        if calls:  # none is the same as no field, as an answer without calls is dumped
            message["tool_calls"] = calls
    for key in ("reasoning", "reasoning_content"):
        if key in given:
            message[key] = _body_text(given[key], f"{param}.{key}")
    if "content" not in message and "tool_calls" not in message:
        raise wrong(f"{param}.content", "is missing (only a message with tool_calls may lack it)", code="missing_field")


def _check_content(value: Any, param: str) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(param, "must be a string or an array of text parts", code="invalid_type")
    parts: list[dict[str, Any]] = items(_check_part, most=limits.PARTS_MAX, least=1)(value, param)
    return parts


@takes(_TEXT_PART)
def _check_part(value: Any, param: str) -> dict[str, Any]:
    part = mapping(value, param)
    kind = needed(part, "type", text(limits.BODY_BYTES_MAX), param)
    if kind != "text":
        message = f"content of type {kind[:32]} is not accepted: this platform serves text only"
        raise wrong(f"{param}.type", message, code="unsupported_content")
    only_keys(part, frozenset({"type", "text"}), param)
    return {"type": "text", "text": needed(part, "text", _body_text, param)}


@takes(_CALL)
def _check_call(value: Any, param: str) -> dict[str, Any]:
    call = mapping(value, param)
    only_keys(call, frozenset({"id", "type", "function", "index"}), param)
    function = needed(call, "function", mapping, param)
    where = f"{param}.function"
    only_keys(function, frozenset({"name", "arguments"}), where)
    arguments = needed(function, "arguments", _body_text, where)
    if arguments:
        check_json_text(arguments, f"{where}.arguments")
    if call.get("type") is not None:
        one_of("function")(call["type"], f"{param}.type")
    if call.get("index") is not None:
        _index(call["index"], f"{param}.index")
    return {
        "id": needed(call, "id", _short, param),
        "type": "function",
        "function": {"name": needed(function, "name", check_name, where), "arguments": arguments},
    }


def check_name(value: Any, param: str) -> str:
    """The name of a function or of a schema, as OpenAI takes it."""
    name = _short(value, param)
    if not _NAME_CHARACTERS.issuperset(name):
        raise wrong(param, "may hold letters, digits, _ and - only")
    checked: str = name
    return checked


@takes({"type": "array", "items": _TOOL, "maxItems": limits.TOOLS_MAX})
def check_tools(value: Any, param: str) -> list[dict[str, Any]]:
    """Function tools in the field order in which the engine shows them to the template; names are unique."""
    tools: list[dict[str, Any]] = items(_check_tool, most=limits.TOOLS_MAX)(value, param)
    names = [tool["function"]["name"] for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise wrong(f"{param}[{index}].function.name", "is given twice")
    return tools


@takes(_TOOL)
def _check_tool(value: Any, param: str) -> dict[str, Any]:
    tool = mapping(value, param)
    only_keys(tool, frozenset({"type", "function"}), param)
    needed(tool, "type", one_of("function"), param)
    given = needed(tool, "function", mapping, param)
    only_keys(given, frozenset({"name", "description", "parameters", "strict"}), f"{param}.function")
    function: dict[str, Any] = {
        "name": needed(given, "name", check_name, f"{param}.function"),
        "description": None,
        "parameters": None,
    }
    if given.get("description") is not None:
        check = text(limits.DESCRIPTION_MAX)
        function["description"] = check(given["description"], f"{param}.function.description")
    if given.get("parameters") is not None:
        function["parameters"] = check_schema(given["parameters"], f"{param}.function.parameters")
    if given.get("strict") is not None:
        function["strict"] = boolean(given["strict"], f"{param}.function.strict")
    return {"type": "function", "function": function}


_CHOICES = ("none", "auto", "required")


@takes({"anyOf": [{"enum": [*_CHOICES]}, _NAMED_TOOL]})
def check_tool_choice(value: Any, param: str) -> str | dict[str, Any]:
    """none, auto, required, or one named function; that it exists is checked against the tools."""
    if not isinstance(value, dict):
        if isinstance(value, str) and value in _CHOICES:
            return value
        code = "invalid_value" if isinstance(value, str) else "invalid_type"
        raise wrong(param, f"must be {listed(*_CHOICES)}, or an object that names one function", code=code)
    only_keys(value, frozenset({"type", "function"}), param)
    needed(value, "type", one_of("function"), param)
    function = needed(value, "function", mapping, param)
    only_keys(function, frozenset({"name"}), f"{param}.function")
    name = needed(function, "name", check_name, f"{param}.function")
    return {"type": "function", "function": {"name": name}}


def flatten(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Text parts as one string joined by line ends, as vLLM does for templates that want a string."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
