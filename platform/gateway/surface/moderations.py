"""The fields of POST /v1/moderations. Step 1; called by `edge/moderations.py`, described by `openapi.py`."""

from typing import Any

from gateway.surface import limits
from gateway.surface.fields import Schema, one_of, only_keys, wrong

MODEL = "weir-guardrails"
MODERATION_MODEL = one_of(MODEL, "omni-moderation-latest")  # the second is what OpenAI's own examples name
_PART: Schema = {
    "type": "object",
    "properties": {"type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
REQUEST: Schema = {
    "type": "object",
    "properties": {
        "input": {
            "oneOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {"oneOf": [{"type": "string"}, _PART]},
                    "minItems": 1,
                    "maxItems": limits.MODERATION_INPUTS_MAX,
                },
            ]
        },
        "model": {"anyOf": [MODERATION_MODEL.schema, {"type": "null"}]},
    },
    "required": ["input"],
    "additionalProperties": False,
}


def texts_of(document: dict[str, Any]) -> list[str]:
    """The texts to judge, in order. Raises InvalidRequest naming the field."""
    only_keys(document, frozenset({"input", "model"}))
    if document.get("model") is not None:
        MODERATION_MODEL(document["model"], "model")
    given = document.get("input")
    if given is None:
        raise wrong("input", "is missing", code="missing_field")
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise wrong("input", "must be a string or an array", code="invalid_type")
    if not 1 <= len(given) <= limits.MODERATION_INPUTS_MAX:
        raise wrong("input", f"must have 1 to {limits.MODERATION_INPUTS_MAX} items", code="array_length")
    return [_text(item, f"input[{index}]") for index, item in enumerate(given)]


def _text(item: Any, param: str) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict) or item.keys() != {"type", "text"} or item["type"] != "text":
        raise wrong(param, 'must be a string or {"type": "text", "text": "…"}: only texts are judged')
    if not isinstance(item["text"], str):
        raise wrong(f"{param}.text", "must be a string", code="invalid_type")
    text: str = item["text"]
    return text
