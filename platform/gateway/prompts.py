"""The texts of a request as the guard reads them, and their way back when a rule redacts. Step 4's input; pure.

Invariant: every string of a request that reaches the model's prompt is among the texts: message contents and parts,
names, reasoning, tool calls and their arguments, tools with their descriptions and schemas, the names of properties
included.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Place = tuple[Any, Any]  # what holds a string (a dict, a list, the names of a dict), and its key or index there

# Named by the API, not written by a person: a redaction here would change what the request is.
_STRUCTURE = frozenset({"role", "type", "id", "tool_call_id"})
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
# The words of JSON Schema (2020-12, and of older drafts); every other key in a schema is somebody's own.
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired"})
_KEYWORDS = _MAPS | frozenset(
    "$schema $id $ref $anchor $dynamicRef $dynamicAnchor $vocabulary $comment type enum const default examples title "  # noqa: SIM905
    "description format pattern items prefixItems additionalItems unevaluatedItems contains minContains maxContains "
    "minItems maxItems uniqueItems additionalProperties unevaluatedProperties propertyNames required minProperties "
    "maxProperties minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum multipleOf allOf anyOf oneOf "
    "not if then else deprecated readOnly writeOnly contentEncoding contentMediaType contentSchema nullable".split()
)


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


class _Names:
    """The keys of a dict as places: `names[key]` is the key itself, and setting it renames, in its place."""

    def __init__(self, holder: dict[str, Any]) -> None:
        self._holder = holder

    def __getitem__(self, key: str) -> str:
        return key

    def __setitem__(self, key: str, text: str) -> None:
        items = [(text if name == key else name, item) for name, item in self._holder.items()]
        self._holder.clear()
        self._holder.update(items)


def _places(value: Any, *, in_schema: bool = False, is_map: bool = False) -> Iterator[Place]:
    """Depth first, and the names of a schema's dict after all in it; the depth is bounded by the body's.

    `is_map`: the keys of this dict are names, whatever they say.
    """
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(item, str):
            if item and (item not in _TYPES if in_schema and key == "type" else in_schema or key not in _STRUCTURE):
                yield value, key
        elif isinstance(item, dict | list):
            inside = in_schema or key == "parameters"
            yield from _places(item, in_schema=inside, is_map=in_schema and not is_map and key in _MAPS)
    if in_schema and isinstance(value, dict):
        names = _Names(value)
        yield from ((names, key) for key in value if key and (is_map or key not in _KEYWORDS))
