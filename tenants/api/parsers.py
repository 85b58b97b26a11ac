"""The only parser of the management API: strict JSON of bounded size and depth. Used by every view of this package.

Invariant: what leaves here can be walked by recursion, holds finite numbers only, names each key once and can be
written as UTF-8; anything else is the client's 400 or 413, never this server's 500.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import IO, Any, NoReturn

from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

BODY_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 32

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
            raise ParseError(f"The body is not the JSON that this API reads: {_why(error)}.") from error


def read_json(text: str) -> Any:
    """The value of `text`. Raises ValueError for what is not strict JSON, is nested too deep or cannot be stored."""
    _check_depth(text)
    value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_each_key_once)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


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


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _why(error: ValueError) -> str:
    """The reason without the body's own text, which may be anything."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, line {error.lineno} column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "a text holds half of a surrogate pair"
    return str(error)
