"""Checks of single JSON values. Step 1; called by the field tables of `schema.py`, `messages.py` and `json_schema.py`.

A `Check` takes a value and its path, returns the value as the engine will get it, and raises InvalidRequest with
the path in `param`; it carries the JSON schema that tells a reader the same (`openapi.py`). Invariants: strict types
(true is no number, "1" is no integer), so what passes is what the engine reads; what passes obeys the schema.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contracts.errors import InvalidRequest
from gateway.surface.json_text import BODY

_KEY_SHOWN = 64  # characters of a client's own name for a field
Judge = Callable[[Any, str], Any]
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One field's rule: the function that judges a value, and what it takes as a JSON schema."""

    judge: Judge
    schema: Schema

    def __call__(self, value: Any, param: str) -> Any:
        return self.judge(value, param)


def takes(schema: Schema) -> Callable[[Judge], Check]:
    """A decorator: the function is the rule that `schema` states."""

    def describe(judge: Judge) -> Check:
        return Check(judge, schema)

    return describe


def or_null(schema: Schema) -> Schema:
    """The same or null, which is everywhere the same as no value."""
    return {"anyOf": [schema, {"type": "null"}]}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with these fields and no other."""
    properties = required | {name: or_null(schema) for name, schema in (optional or {}).items()}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def wrong(param: str, message: str, *, code: str = "invalid_value") -> InvalidRequest:
    """The refusal of one field; the message begins with its path."""
    return InvalidRequest(f"{param}: {message}", param=param, code=code)


@takes({"type": "boolean"})
def boolean(value: Any, param: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(param, "must be true or false", code="invalid_type")
    return value


def integer(low: int, high: int) -> Check:
    """An integer within low and high, both included."""

    @takes({"type": "integer", "minimum": low, "maximum": high})
    def check(value: Any, param: str) -> int:
        if type(value) is not int:
            raise wrong(param, "must be an integer", code="invalid_type")
        if not low <= value <= high:
            raise wrong(param, f"must be between {low} and {high}")
        return value

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    """A finite number within low and high; `above` leaves `low` itself out."""

    @takes({"type": "number", "exclusiveMinimum" if above else "minimum": low, "maximum": high})
    def check(value: Any, param: str) -> float:
        if type(value) not in (int, float):
            raise wrong(param, "must be a number", code="invalid_type")
        if not low <= value <= high or not math.isfinite(value) or (above and value == low):
            raise wrong(param, f"must be {'above' if above else 'at least'} {low:g} and at most {high:g}")
        checked: float = value
        return checked

    return check


def text(longest: int, *, shortest: int = 0) -> Check:
    """A string of `shortest` to `longest` characters."""

    @takes({"type": "string", "minLength": shortest, "maxLength": longest})
    def check(value: Any, param: str) -> str:
        if not isinstance(value, str):
            raise wrong(param, "must be a string", code="invalid_type")
        if len(value) < shortest:
            raise wrong(param, "must not be empty" if shortest == 1 else f"must have at least {shortest} characters")
        if len(value) > longest:
            raise wrong(param, f"must have at most {longest} characters, not {len(value)}", code="string_too_long")
        return value

    return check


def one_of(*values: str) -> Check:
    @takes({"type": "string", "enum": [*values]})
    def check(value: Any, param: str) -> str:
        if value not in values:
            code = "invalid_value" if isinstance(value, str) else "invalid_type"
            raise wrong(param, f"must be {listed(*values)}", code=code)
        checked: str = value
        return checked

    return check


def items(check_item: Judge, *, most: int, least: int = 0) -> Check:
    """An array of `least` to `most` items, each checked."""

    inner = check_item.schema if isinstance(check_item, Check) else {}

    @takes({"type": "array", "items": inner, "minItems": least, "maxItems": most})
    def check(value: Any, param: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong(param, "must be an array", code="invalid_type")
        if len(value) < least:
            few = "must not be empty" if least == 1 else f"must have at least {least} items, not {len(value)}"
            raise wrong(param, few, code="array_length")
        if len(value) > most:
            raise wrong(param, f"must have at most {most} items, not {len(value)}", code="array_length")
        return [check_item(item, f"{param}[{index}]") for index, item in enumerate(value)]

    return check


def mapping(value: Any, param: str) -> dict[str, Any]:
    """A JSON object, unchecked inside."""
    if not isinstance(value, dict):
        raise wrong(param, "must be an object", code="invalid_type")
    return value


def needed(given: dict[str, Any], name: str, check: Judge, param: str) -> Any:
    """A field of an object that must be there, checked; null is the same as absent."""
    if given.get(name) is None:
        raise wrong(f"{param}.{name}", "is missing", code="missing_field")
    return check(given[name], f"{param}.{name}")


def listed(*values: Any) -> str:
    """Values as JSON writes them: `"a", "b" or 3`."""
    *first, last = [json.dumps(value) for value in values]
    return f"{', '.join(first)} or {last}" if first else last


def inside(param: str, name: str) -> str:
    """The path of a field of the object at `param` ("": the body). One without a name is told by what holds it."""
    path = f"{param}.{name[:_KEY_SHOWN]}" if param and name else param or name[:_KEY_SHOWN]
    return path or BODY


def unknown_field(name: str, param: str = "", *, message: str = "is not a known field") -> InvalidRequest:
    """The refusal of a field that nothing reads, of the object at `param`."""
    return wrong(inside(param, name), message if name else "has a field without a name", code="unknown_parameter")


def only_keys(value: dict[str, Any], known: frozenset[str], param: str = "") -> None:
    """Refuses keys that nothing here would read: they are never dropped silently."""
    for key in value:
        if key not in known:
            raise unknown_field(key, param)


def refused(reason: str) -> Check:
    """A field of the engine's or OpenAI's API that this platform does not take."""

    @takes({"type": "null", "description": f"Not accepted: {reason}.", "deprecated": True})
    def check(value: Any, param: str) -> Any:
        raise wrong(param, f"is not accepted: {reason}", code="unsupported_parameter")

    return check


def only(values: tuple[Any, ...], *, reason: str) -> Check:
    """A field that is accepted with its harmless values alone."""

    @takes({"enum": [*values], "description": f"Nothing else is accepted: {reason}."})
    def check(value: Any, param: str) -> Any:
        if not any(type(value) is type(allowed) and value == allowed for allowed in values):
            code = "unsupported_parameter" if type(value) in map(type, values) else "invalid_type"
            raise wrong(param, f"must be {listed(*values)}, or left out: {reason}", code=code)
        return value

    return check
