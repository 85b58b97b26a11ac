"""Bounds on a client's JSON schema before a grammar is compiled from it. Step 1; called by `schema.py`, `messages.py`.

A schema turns into an automaton inside the engine: size, depth, counts and patterns are what can make one explode or
crash (vLLM's advisories on structured output). Invariant: what passes is a finite tree of known shape with local
references that resolve. It is not a full check of JSON Schema; the engine refuses what its grammar cannot do.
"""

import re
from typing import Any

import orjson

from contracts.errors import InvalidRequest
from gateway.surface import limits
from gateway.surface.fields import inside, mapping, wrong
from gateway.surface.grammar import check_generated

# What OpenAPI says of such a schema: its shape is JSON Schema's own, its bounds are in docs/limits.md.
JSON_SCHEMA = {"type": "object", "description": "A JSON schema with local references alone, within the stated limits."}
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_ONE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
# Look-around, back references, conditions: no automaton has them, and an engine fails on them late.
_BEYOND = re.compile(r"(?:[^\\]|\\[^1-9kbB])*?(?:\\[1-9kbB]|\(\?(?:<?[=!]|P=|\(|>))", re.DOTALL)
_CLASS = re.compile(r"(?<!\\)((?:\\\\)*)\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_SAME_PLACE_MAX = 256
_REPEAT = re.compile(r"\{(\d+)?(?:,(\d+)?)?\}")


def check_schema(value: Any, param: str, *, generated: bool = False) -> dict[str, Any]:
    """The schema unchanged. `generated`: an answer must follow it. Raises InvalidRequest with the path of the fault."""
    root = mapping(value, param)
    if len(orjson.dumps(root)) > limits.SCHEMA_BYTES_MAX:
        raise wrong(param, f"must have at most {limits.SCHEMA_BYTES_MAX} bytes", code="schema_too_large")
    pending: list[tuple[Any, str, int]] = [(root, param, 1)]
    nodes = 0
    while pending:
        schema, path, depth = pending.pop()
        nodes += 1
        if nodes > limits.SCHEMA_NODES_MAX:
            raise wrong(param, f"must have at most {limits.SCHEMA_NODES_MAX} schemas", code="schema_too_large")
        if depth > limits.SCHEMA_DEPTH_MAX:
            raise wrong(param, f"must nest at most {limits.SCHEMA_DEPTH_MAX} levels", code="schema_too_deep")
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise wrong(path, "must be a schema: an object, true or false", code="invalid_schema")
        _check_node(schema, path, root)
        if generated:
            check_generated(schema, path)
        pending += [(child, where, depth + 1) for child, where in _children(schema, path)]
    return root


def _children(schema: dict[str, Any], path: str) -> list[tuple[Any, str]]:
    found = []
    for key in _ONE:
        if key in schema:
            child = schema[key]
            many = isinstance(child, list)  # `items` as a list, from older drafts
            found += (
                [(item, f"{path}.{key}[{i}]") for i, item in enumerate(child)] if many else [(child, f"{path}.{key}")]
            )
    for key in _LISTS:
        if key in schema:
            if not isinstance(schema[key], list) or not schema[key]:
                raise wrong(f"{path}.{key}", "must be an array of schemas", code="invalid_schema")
            found += [(item, f"{path}.{key}[{i}]") for i, item in enumerate(schema[key])]
    for key in _MAPS:
        if key in schema:
            found += [
                (item, inside(f"{path}.{key}", name)) for name, item in mapping(schema[key], f"{path}.{key}").items()
            ]
    return found


def _check_node(schema: dict[str, Any], path: str, root: dict[str, Any]) -> None:
    _check_type(schema.get("type"), path)
    _check_enum(schema, path)
    for key in _COUNTS:
        if key in schema and (type(schema[key]) is not int or not 0 <= schema[key] <= limits.SCHEMA_COUNT_MAX):
            raise wrong(
                f"{path}.{key}", f"must be an integer between 0 and {limits.SCHEMA_COUNT_MAX}", code="invalid_schema"
            )
    if "pattern" in schema:
        _check_pattern(schema["pattern"], f"{path}.pattern")
    for pattern in mapping(schema.get("patternProperties", {}), f"{path}.patternProperties"):
        _check_pattern(pattern, f"{path}.patternProperties")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise wrong(f"{path}.required", "must be an array of strings", code="invalid_schema")
    if "$ref" in schema:
        _check_reference(schema["$ref"], f"{path}.$ref", root)
        _check_ends(schema, f"{path}.$ref", root)
    for key in ("$dynamicRef", "$recursiveRef"):
        if key in schema:
            raise wrong(f"{path}.{key}", "is not accepted; use $ref", code="invalid_schema")


def _check_type(kind: Any, path: str) -> None:
    kinds = kind if isinstance(kind, list) else [] if kind is None else [kind]
    if (isinstance(kind, list) and not kind) or not all(isinstance(item, str) and item in _TYPES for item in kinds):
        raise wrong(f"{path}.type", f"must be one or several of {', '.join(sorted(_TYPES))}", code="invalid_schema")


def _check_enum(schema: dict[str, Any], path: str) -> None:
    if "enum" not in schema:
        return
    values = schema["enum"]
    if not isinstance(values, list) or not 1 <= len(values) <= limits.SCHEMA_ENUM_MAX:
        raise wrong(f"{path}.enum", f"must be an array of 1 to {limits.SCHEMA_ENUM_MAX} values", code="invalid_schema")


def _check_pattern(pattern: Any, path: str) -> None:
    if not isinstance(pattern, str) or len(pattern) > limits.SCHEMA_PATTERN_MAX:
        raise wrong(path, f"must be a string of at most {limits.SCHEMA_PATTERN_MAX} characters", code="invalid_schema")
    product = 1
    for low, high in _REPEAT.findall(pattern):
        product *= max(1, int((high or low or "1")[:9]))
    if product > limits.SCHEMA_COUNT_MAX:
        raise wrong(path, f"must not repeat more than {limits.SCHEMA_COUNT_MAX} times in all", code="invalid_schema")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise wrong(path, "is not a regular expression", code="invalid_schema") from error
    if _BEYOND.match(_CLASS.sub(r"\1.", pattern)):
        raise wrong(path, "must have no look-around, back reference or word boundary", code="invalid_schema")


def _check_ends(schema: dict[str, Any], path: str, root: dict[str, Any]) -> None:
    """That references and alternatives alone never lead back: such a schema describes no finite text."""
    pending, seen = [schema], set[int]()
    while pending:
        for following in _same_place(pending.pop(), root):
            if following is schema:
                raise wrong(path, "leads back to itself through nothing", code="invalid_schema")
            if id(following) not in seen:
                if len(seen) == _SAME_PLACE_MAX:
                    raise wrong(path, f"must lead to at most {_SAME_PLACE_MAX} alternatives", code="invalid_schema")
                seen.add(id(following))
                pending.append(following)


def _same_place(schema: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    """Schemas that judge the very value which this one does."""
    lists = [schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)]
    found: list[Any] = [item for alternatives in lists for item in alternatives]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target: Any = root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        found.append(target)
    return [item for item in found if isinstance(item, dict)]


def _check_reference(reference: Any, path: str, root: dict[str, Any]) -> None:
    """Only `#/…` pointers into the same schema (RFC 6901), so that nothing is ever fetched."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise wrong(path, "must point into this schema (#/…)", code="invalid_schema")
    target: Any = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            raise wrong(path, "points to nothing in this schema", code="invalid_schema")
        target = target[name]
    if not isinstance(target, dict | bool):
        raise wrong(path, "points to no schema", code="invalid_schema")


def check_json_text(value: str, param: str) -> None:
    """That a tool call's arguments are JSON text; the template and the engine parse them."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{param}: must be JSON text", param=param, code="invalid_value") from error
