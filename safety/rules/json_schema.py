"""JSON schemas (draft 2020-12) that a tenant writes: what they may say, and whether a text is JSON of one.

Compiled by `safety.policy` to refuse a bad one, and in a validator's process, where texts are judged. Invariant:
nothing is fetched, and a pattern is matched in linear time.
"""

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs

from contracts.text import shown
from safety.rules.port import RuleError

SCHEMA_CHARS_MAX = 20_000
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1_000_000, dfa_size_limit=1_000_000)


def compile_schema(schema: dict[str, Any]) -> Callable[[str], bool]:
    """A test of whether a text is JSON of `schema`. Raises RuleError for a schema that is none, or leads out."""
    if len(json.dumps(schema)) > SCHEMA_CHARS_MAX:
        raise RuleError(f"at most {SCHEMA_CHARS_MAX} characters")
    _check_references(schema)  # first: the library would fetch what it does not know
    try:
        validator = jsonschema_rs.Draft202012Validator(schema, pattern_options=_PATTERNS)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise RuleError(f"not a JSON schema: {shown(str(error).partition(chr(10))[0])}") from error

    def matches(text: str) -> bool:
        try:
            return validator.is_valid(json.loads(text, parse_constant=_refuse))
        except (ValueError, RecursionError):
            return False

    return matches


def _refuse(constant: str) -> None:
    """NaN and Infinity, which Python reads and JSON does not know (RFC 8259, 6)."""
    raise ValueError(f"{constant} is no JSON")


def _check_references(schema: dict[str, Any]) -> None:
    left: list[Any] = [schema]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            if item.get("$schema", _DIALECT) != _DIALECT:
                raise RuleError(f"$schema is {_DIALECT}")
            for name in ("$ref", "$dynamicRef"):
                if isinstance(item.get(name), str) and not item[name].startswith("#"):
                    raise RuleError(f"a {name} stays within the schema (it begins with #)")
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
