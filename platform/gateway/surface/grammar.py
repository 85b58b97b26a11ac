"""What no grammar of the engines is made from, of one schema that an answer must follow. Step 1; for `json_schema.py`.

An engine finds these out when it compiles the schema: late, after the queue, and some of them as a failure of its own.
Invariant: only schemas of `response_format` are judged; the parameters of a tool are shown to the model as they are.
"""

import math
import re
from typing import Any

from gateway.surface import limits
from gateway.surface.fields import wrong

FORMATS = frozenset(("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"))
FORMATS |= {"uri-reference", "uri-template", "json-pointer", "relative-json-pointer", "unknown"}
_UNKNOWN = ("contains", "minContains", "maxContains")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_PAIRS = (
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)
_CODE = "invalid_schema"
# Of what Python's patterns have and grammars have not: flags (but `(?i)` in front), comments, names of characters.
_FLAGS = re.compile(r"(?:[^\\]|\\[^N])*?(?:\\N|\(\?(?:#|(?!i\))[a-zA-Z-]+[:)]))", re.DOTALL)
_LONE_BRACE = re.compile(r"(?:[^\\]|\\.)*?\{(?!\d+(?:,\d*)?\})", re.DOTALL)
_COUNTS = re.compile(r"(?<!\\)\{(\d+)(?:,(\d*))?\}")
_CLASS = re.compile(r"(?<!\\)((?:\\\\)*)\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)


def check_generated(schema: dict[str, Any], path: str) -> None:
    """One schema of known shape. Raises InvalidRequest with the path of what is wrong."""
    of_text = schema.get("type", "string") == "string"
    if of_text and isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
        raise wrong(f"{path}.format", f"must be of {', '.join(sorted(FORMATS))}", code=_CODE)
    if schema.get("uniqueItems") is True:
        raise wrong(f"{path}.uniqueItems", "is not accepted: no grammar remembers items", code=_CODE)
    for key in _UNKNOWN:
        if key in schema:
            raise wrong(f"{path}.{key}", "is not accepted: no grammar counts such items", code=_CODE)
    if isinstance(schema.get("items"), list):
        raise wrong(f"{path}.items", "must be one schema; use prefixItems for several", code=_CODE)
    _check_bounds(schema, path)
    for place, pattern in _patterns(schema, path):
        _check_pattern(pattern, place)


def _check_bounds(schema: dict[str, Any], path: str) -> None:
    for key in _BOUNDS:
        if key in schema and (type(schema[key]) not in (int, float) or not math.isfinite(schema[key])):
            raise wrong(f"{path}.{key}", "must be a number", code=_CODE)
    if "multipleOf" in schema and schema["multipleOf"] <= 0:
        raise wrong(f"{path}.multipleOf", "must be above 0", code=_CODE)
    for low, high in _PAIRS:
        if low in schema and high in schema and schema[low] > schema[high]:
            raise wrong(f"{path}.{low}", f"must be at most {high}", code=_CODE)


def _patterns(schema: dict[str, Any], path: str) -> list[tuple[str, str]]:
    found = [(f"{path}.pattern", schema["pattern"])] if "pattern" in schema else []
    return found + [(f"{path}.patternProperties", pattern) for pattern in schema.get("patternProperties", ())]


def _check_pattern(pattern: str, path: str) -> None:
    plain = _CLASS.sub(r"\1.", pattern)
    if _FLAGS.match(plain):
        raise wrong(path, "must have no flags, comments or names of characters", code=_CODE)
    if _LONE_BRACE.match(plain):
        raise wrong(path, "must write a brace that is no {m,n} as \\{", code=_CODE)
    most = max((int((high or low)[:9]) for low, high in _COUNTS.findall(plain)), default=0)
    if most > limits.SCHEMA_REPEAT_MAX:
        raise wrong(path, f"must repeat nothing more than {limits.SCHEMA_REPEAT_MAX} times", code=_CODE)
