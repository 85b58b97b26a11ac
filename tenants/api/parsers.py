"""The only parser of the management API: strict JSON of bounded size and depth. Used by every view of this package.

Invariant: what leaves here can be walked by recursion, holds finite numbers only, names each key once and can be
written as UTF-8; anything else is the client's 400 or 413, never this server's 500.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any

from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

from contracts.text import shown
from tenants.api.words import PARAM_SHOWN_MAX

BODY_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 32
DIGITS_MAX = 100  # of an integer; each field's own bound is far below

# A whole string (or one that never ends), else a bracket. Possessive, so that no text makes it look back.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


class BodyTooLarge(APIException):
    """413: the body is longer than the management API reads."""

    status_code = 413
    default_detail = f"The body is larger than {BODY_BYTES_MAX} bytes."


class StrictJSON(BaseParser):
    """JSON in UTF-8 (RFC 8259), whatever charset the header names."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The value of the body. Raises BodyTooLarge and ParseError."""
        raw = stream.read(BODY_BYTES_MAX + 1)
        if len(raw) > BODY_BYTES_MAX:
            raise BodyTooLarge
        try:
            return read_json(raw.decode("utf-8"))
        except ValueError as error:
            says = f"The body is not the JSON that this API reads: {_why(error)}."
            raise ParseError({getattr(error, "field", None) or "body": says}) from error


class WrongField(ValueError):
    """What JSON leaves open and this API does not take, in `field`: its path as `limits.0.cap`, or empty."""

    def __init__(self, why: str, *, field: str = "") -> None:
        super().__init__(why)
        self.field = field.encode("utf-8", "replace").decode()[:PARAM_SHOWN_MAX]


def read_json(text: str) -> Any:
    """The value of `text`. Raises ValueError for what is not strict JSON, is nested too deep or cannot be stored."""
    _check_depth(text)
    wrongs: list[_Wrong] = []

    def mark(why: str) -> _Wrong:
        wrongs.append(_Wrong(why))
        return wrongs[-1]

    value = json.loads(
        text,
        parse_constant=lambda name: mark(f"{name} is not a number of JSON"),
        parse_float=lambda digits: number if math.isfinite(number := float(digits)) else mark("a number is too large"),
        parse_int=lambda digits: (
            int(digits) if len(digits) <= DIGITS_MAX else mark(f"a number has more than {DIGITS_MAX} digits")
        ),
        object_pairs_hook=_each_key_once,
    )
    if wrongs or "\\u" in text:
        for part, field in _parts(value, ""):
            _check_part(part, field)
    return value


class _Wrong:
    """Stands where a number is none, until its field is known."""

    def __init__(self, why: str) -> None:
        self.why = why


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKENS.finditer(text):
        mark = token[0]
        if mark in ("[", "{"):
            depth += 1
            if depth > DEPTH_MAX:
                raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
        elif mark in ("]", "}"):
            depth -= 1


def _parts(value: Any, field: str) -> Iterator[tuple[Any, str]]:
    """Each text and number, the names of fields too, with the path of where it is. As deep as DEPTH_MAX."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, field
            yield from _parts(inner, f"{field}.{name}" if field else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _parts(inner, f"{field}.{index}" if field else str(index))
    else:
        yield value, field


def _check_part(part: Any, field: str) -> None:
    if isinstance(part, _Wrong):
        raise WrongField(part.why, field=field)
    if isinstance(part, str):
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise WrongField("a text holds half of a surrogate pair", field=field) from error


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise WrongField(f"an object names {shown(twice)} twice", field=twice)
    return found


def _why(error: ValueError) -> str:
    """The reason without the body's own text, which may be anything."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, line {error.lineno} column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return str(error)
