"""An instance of a client's JSON schema, for an engine that has no grammar to guide it. Pure; called by `dialect`.

Small and always the same: what is optional is there near the root alone, an array has as few items as it may, and of
alternatives the first one counts that ends. Invariant: a keyword that would judge the value and is not known here is
refused by its name, so no schema is obeyed in part.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]

WORD = "river"
ANY_OBJECT: dict[str, Any] = {"answer": WORD}  # what `json_object` asks for
DEPTH_MAX = 64
OPTIONAL_DEPTH = 4  # below, only what must be there: a schema may lead back to itself
NODES_MAX = 10_000

_NOTES = ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples")
_SILENT = frozenset({*_NOTES, "deprecated", "readOnly", "writeOnly", "additionalProperties"})  # true of any instance
_CHOICES = ("anyOf", "oneOf")
_BY_TYPE = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": (),
    "null": (),
    "object": ("properties", "required", "minProperties", "maxProperties"),
    "array": ("items", "minItems", "maxItems"),
}
_JUDGING = frozenset(key for keys in _BY_TYPE.values() for key in keys)
_KNOWN = _SILENT | _JUDGING | {"const", "enum", "type", "$ref", "allOf", *_CHOICES}
_PYTHON: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}


class NoInstance(ValueError):
    """The schema has no instance that is found here; the text names the keyword."""


def instance_of(schema: Schema) -> Any:
    """A value under `schema`. Raises NoInstance."""
    return _Maker(schema).make(schema, 1)


class _Maker:
    """One schema's work: what its references point into, and how many values it may still make."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = NODES_MAX

    def make(self, schema: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_MAX:
            raise NoInstance("JSON schema: its instance is too large or has no end")
        if schema is True:
            return WORD
        if schema is False:
            raise NoInstance("JSON schema `false` takes nothing")
        unknown = sorted(set(schema) - _KNOWN)
        if unknown:
            raise NoInstance(f"JSON schema keyword `{unknown[0]}` is not supported")
        if "$ref" in schema:
            return self.make(_merged(_without(schema, "$ref"), self._pointed(schema["$ref"])), depth + 1)
        if "allOf" in schema:
            whole: Any = _without(schema, "allOf")
            for part in schema["allOf"]:
                whole = _merged(whole, part)
            return self.make(whole, depth + 1)
        for key in _CHOICES:
            if key in schema:
                rest = _without(schema, key)
                return self._first([_merged(rest, one) for one in schema[key]], depth)
        return self._plain(schema, depth)

    def _first(self, alternatives: list[Any], depth: int) -> Any:
        """Of the first alternative that has an instance."""
        said: NoInstance | None = None
        for alternative in alternatives:
            try:
                return self.make(alternative, depth + 1)
            except NoInstance as error:
                said = said or error
        raise said or NoInstance("JSON schema keyword `anyOf` is empty")

    def _pointed(self, reference: str) -> Any:
        """What a pointer into this schema points to (RFC 6901)."""
        target: Any = self._root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                raise NoInstance("JSON schema keyword `$ref` points to nothing")
            target = target[name]
        return target

    def _plain(self, schema: Schema, depth: int) -> Any:
        types = _types(schema)
        if "const" in schema or "enum" in schema:
            listed = schema.get("enum", [schema.get("const")])
            found = [
                value
                for value in listed
                if ("const" not in schema or value == schema["const"]) and any(_PYTHON[kind](value) for kind in types)
            ]
            if not found:
                raise NoInstance("JSON schema keyword `enum` leaves no value")
            return found[0]
        kind = types[0]
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string":
            return _string(schema)
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        return True if kind == "boolean" else None

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        most = schema.get("maxProperties", math.inf)
        made: dict[str, Any] = {}
        names = [name for name in properties if name in required or depth < OPTIONAL_DEPTH]
        room = most - len(set(required))
        for name in [*names, *(name for name in required if name not in properties)]:
            if name not in required:
                if room < 1:
                    continue
                room -= 1
            made[name] = self.make(properties.get(name, True), depth + 1)
        if not schema.get("minProperties", 0) <= len(made) <= most:
            raise NoInstance("JSON schema keywords `minProperties` and `maxProperties` are not met")
        return made

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        items = schema.get("items", True)
        if isinstance(items, list):
            raise NoInstance("JSON schema keyword `items` as a list is not supported")
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        count = max(least, 1 if depth < OPTIONAL_DEPTH and most >= 1 else 0)
        if count > most:
            raise NoInstance("JSON schema keyword `maxItems` is below `minItems`")
        return [self.make(items, depth + 1) for _ in range(count)]


def _types(schema: Schema) -> list[str]:
    """Types that the value may have, the one to make first; without `type` what the other keywords speak of."""
    given = schema.get("type")
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    if "const" in schema or "enum" in schema:
        return list(_BY_TYPE)
    for kind in ("object", "array", "string", "number"):
        if any(key in schema for key in _BY_TYPE[kind]):
            return [kind]
    return ["string"]


def _string(schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    if least > most:
        raise NoInstance("JSON schema keyword `maxLength` is below `minLength`")
    length = int(min(max(len(WORD), least), most))
    return (WORD * (length // len(WORD) + 1))[:length]


def _number(schema: Schema, *, whole: bool) -> int | float:
    """The whole number within the bounds that is nearest to 1; else, for a `number`, the middle between them."""
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    over, under = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    least = max(_up(low), -math.inf if over == -math.inf else math.floor(over) + 1)
    most = min(_down(high), math.inf if under == math.inf else math.ceil(under) - 1)
    step = schema.get("multipleOf", 1)
    if not isinstance(step, int) or step < 1:
        raise NoInstance("JSON schema keyword `multipleOf` is supported for whole numbers only")
    value = int(min(max(1, least), most))
    for candidate in (value, -(-value // step) * step, value // step * step):
        if candidate % step == 0 and least <= candidate <= most:
            return candidate
    bottom, top = max(low, over), min(high, under)
    if whole or step != 1 or bottom > top or (bottom == top and bottom in (over, under)):
        raise NoInstance("JSON schema keywords `minimum` and `maximum` leave no number")
    return float((bottom + top) / 2)


def _up(number: float) -> float:
    return number if math.isinf(number) else math.ceil(number)


def _down(number: float) -> float:
    return number if math.isinf(number) else math.floor(number)


def _without(schema: Schema, key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


def _merged(schema: Any, other: Any) -> Any:
    """One schema that judges as both do. Raises NoInstance where both use a keyword in ways that do not add up."""
    if isinstance(other, bool):
        return schema if other else False
    if isinstance(schema, bool):
        return other if schema else False
    both = {**schema, **{key: value for key, value in other.items() if key not in schema}}
    for key in schema.keys() & other.keys():
        mine, theirs = schema[key], other[key]
        if key in _SILENT or mine == theirs:
            continue
        if key == "required":
            both[key] = [*mine, *(name for name in theirs if name not in mine)]
        elif key == "properties":
            both[key] = {**mine, **{name: _merged(mine.get(name, True), value) for name, value in theirs.items()}}
        else:
            raise NoInstance(f"JSON schema keyword `{key}` is not supported twice for one value")
    return both
