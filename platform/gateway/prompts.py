"""The texts of a request as the guard reads them, and their way back when a rule redacts. Step 4's input; pure.

Invariant: every string of a request that reaches the model's prompt is among the texts: message contents and parts,
names, reasoning, tool calls and their arguments, tools with their descriptions and schemas.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Place = tuple[Any, Any]  # a dict or list, and the key or index of a string in it

# Named by the API, not written by a person: a redaction here would change what the request is.
_STRUCTURE = frozenset({"role", "type", "id", "tool_call_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptContent:
    """What the model is given: a chat, or the text or token ids of a completion."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    text: str
    token_ids: list[int]

    def texts(self) -> tuple[str, ...]:
        """Every text in a fixed order."""
        return tuple(place[0][place[1]] for place in _places(self._holder()))

    def with_texts(self, texts: Sequence[str]) -> "PromptContent":
        """A copy with each text replaced; `texts` has the order and length of `texts()`."""
        holder = copy.deepcopy(self._holder())
        for (container, key), text in zip(list(_places(holder)), texts, strict=True):
            container[key] = text
        return PromptContent(messages=holder["messages"], tools=holder["tools"], text=holder["text"], token_ids=[])

    def _holder(self) -> dict[str, Any]:
        return {"messages": self.messages, "tools": self.tools, "text": self.text}


def _places(value: Any) -> Iterator[Place]:
    """Depth first; the depth is bounded by the body's."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(item, str):
            if item and key not in _STRUCTURE:
                yield value, key
        elif isinstance(item, dict | list):
            yield from _places(item)
