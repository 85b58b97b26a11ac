"""What a WebSocket session remembers: its defaults and its items. Step 7; pure; used by the consumer and its responses.

Invariants: bounded by items and by bytes of text; a `response.create` becomes the same checked request that POST
/v1/chat/completions would make of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contracts.errors import InvalidRequest
from contracts.jobs import Endpoint
from gateway.realtime.places import INPUT, placed
from gateway.surface import limits
from gateway.surface.fields import integer, items, mapping, needed, one_of, only, only_keys, text, wrong
from gateway.surface.schema import Asked, check_request

# Fields of a chat request that a session or a response may set; messages come from the conversation.
_NOT_HERE = frozenset(
    {"messages", "stream", "stream_options", "n", "tools", "tool_choice", "on_disconnect", "background"}
)
_MAX_TOKENS = ("max_output_tokens", "max_response_output_tokens", "max_completion_tokens", "max_tokens")
_PART_TYPES = {"user": "input_text", "system": "input_text", "assistant": "output_text"}


@dataclass(slots=True)
class Conversation:
    """`defaults` are fields of the chat request; `messages` are the items so far."""

    defaults: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    _bytes: int = 0

    def updated(self, session: Any) -> dict[str, Any]:
        """The defaults as a `session.update` would have them: all checked, nothing changed. Raises InvalidRequest."""
        given, names = _settings(session, "session")
        merged = {**self.defaults, **given}
        probe = {"model": "probe", **merged, "messages": [{"role": "user", "content": "probe"}]}
        probe.pop("instructions", None)
        with placed("session", names):
            check_request(probe, endpoint=Endpoint.CHAT)
        return merged

    def update(self, session: Any) -> dict[str, Any]:
        """The same, and it is so from now on. Returns the session as it is then."""
        self.defaults = self.updated(session)
        return dict(self.defaults)

    def add(self, item: Any) -> dict[str, Any]:
        """`conversation.item.create`: a text message of user, system or assistant."""
        if len(self.messages) >= limits.REALTIME_ITEMS_MAX:
            raise wrong(
                "item", f"a conversation has at most {limits.REALTIME_ITEMS_MAX} items", code="conversation_full"
            )
        message = _message(item, "item")
        if not self._has_room(message["content"]):
            raise wrong(
                "item",
                f"a conversation has at most {limits.REALTIME_BYTES_MAX} bytes of text; open a new connection",
                code="conversation_full",
            )
        self._keep(message)
        return message

    def ask(self, response: Any) -> tuple[Asked, Mapping[str, str]]:
        """`response.create`: the chat request of this turn, and the names of its fields that are others in the event.

        `input` replaces the conversation for this response.
        """
        settings, names = _settings({} if response is None else response, "response")
        given = {**self.defaults, **settings}
        instructions = given.pop("instructions", None)
        own = given.pop("input", None)
        check = items(_message, most=limits.MESSAGES_MAX, least=1)
        messages = self.messages if own is None else check(own, "response.input")
        if instructions is not None:
            messages = [{"role": "system", "content": instructions}, *messages]
        if not messages:
            about = "there is nothing to answer: create an item first"
            raise InvalidRequest(about, param="response.input", code="missing_field")
        with placed("response", names):
            asked = check_request({**given, "messages": messages}, endpoint=Endpoint.CHAT)
        return replace(asked, stream=True, include_usage=False), names

    def answered(self, content: str) -> bool:
        """The assistant's text becomes part of the conversation. False: there is no room for it."""
        if len(self.messages) >= limits.REALTIME_ITEMS_MAX or not self._has_room(content):
            return False
        if content:
            self._keep({"role": "assistant", "content": content})
        return True

    def _has_room(self, content: str) -> bool:
        return self._bytes + len(content.encode()) <= limits.REALTIME_BYTES_MAX

    def _keep(self, message: dict[str, Any]) -> None:
        self._bytes += len(message["content"].encode())
        self.messages.append(message)


def _settings(value: Any, param: str) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Fields of a session or a response under the names of the chat request; and what those were called here."""
    given = dict(mapping(value, param))
    names = dict(INPUT)
    for name in given:
        if name in _NOT_HERE:
            raise wrong(f"{param}.{name}"[:80], "is not taken over WebSocket", code="unsupported_parameter")
    if given.get("instructions") is not None:
        text(limits.BODY_BYTES_MAX)(given["instructions"], f"{param}.instructions")
    if param == "session":
        _check_session(given)
    if "output_modalities" in given:
        if "modalities" in given:
            raise wrong(f"{param}.output_modalities", "says the same as modalities")
        given["modalities"] = given.pop("output_modalities")
        names["modalities"] = "output_modalities"
    named = [name for name in _MAX_TOKENS if name in given]
    if len(named) > 1:
        raise wrong(f"{param}.{named[1]}", f"says the same as {named[0]}")
    for name in named:
        given["max_tokens"] = _max_tokens(given.pop(name), f"{param}.{name}")
        names["max_tokens"] = name
    return given, names


def _check_session(given: dict[str, Any]) -> None:
    """What a session alone may say, and a response alone; its type is read here."""
    if "input" in given:
        raise wrong("session.input", "belongs to a response", code="unsupported_parameter")
    kind = given.pop("type", None)
    if kind is not None:
        only(("realtime",), reason="there is one type of session")(kind, "session.type")


def _max_tokens(value: Any, param: str) -> int | None:
    """The realtime API writes "inf" for no bound of its own."""
    if value is None or value == "inf":
        return None
    most: int = integer(1, 2**31 - 1)(value, param)
    return most


def _message(item: Any, param: str) -> dict[str, Any]:
    given = mapping(item, param)
    only_keys(given, frozenset({"id", "type", "role", "content"}), param)
    if given.get("id") is not None:
        text(limits.NAME_MAX)(given["id"], f"{param}.id")
    if given.get("type") is not None:
        one_of("message")(given["type"], f"{param}.type")
    role = needed(given, "role", one_of(*_PART_TYPES), param)
    content = needed(given, "content", _text_or_parts, param)
    if isinstance(content, str):
        return {"role": role, "content": content}
    parts = items(mapping, most=limits.PARTS_MAX, least=1)(content, f"{param}.content")
    pieces = []
    for index, part in enumerate(parts):
        where = f"{param}.content[{index}]"
        if needed(part, "type", text(limits.BODY_BYTES_MAX), where) not in ("text", "input_text", "output_text"):
            raise wrong(f"{where}.type", "is not accepted: this platform serves text only", code="unsupported_content")
        only_keys(part, frozenset({"type", "text"}), where)
        pieces.append(needed(part, "text", text(limits.BODY_BYTES_MAX), where))
    return {"role": role, "content": "\n".join(pieces)}


def _text_or_parts(value: Any, param: str) -> str | list[Any]:
    if not isinstance(value, str | list):
        raise wrong(param, "must be a string or an array of text parts", code="invalid_type")
    return value
