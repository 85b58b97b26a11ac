"""A body's JSON, read strictly. Step 1; called by the inference routes and by the realtime consumer. Pure.

Invariant: what JSON leaves open (doubled keys, NaN, unbounded integers, lone surrogates, depth) is refused here with
400, so that no later step meets it.
"""

import json
import math
import re
from typing import Any

from contracts.errors import InvalidRequest
from gateway.surface import limits


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises InvalidRequest (code invalid_json, or the field in `param`)."""
    try:
        source = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from error
    if source.startswith("\ufeff"):
        raise InvalidRequest("the body begins with a byte order mark, which JSON text has not", code="invalid_json")
    try:
        document = _DECODER.decode(source)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise InvalidRequest(f"the body is not JSON: {error.msg} ({place})", code="invalid_json") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    nests = body.count(b"{") + body.count(b"[") > limits.JSON_DEPTH_MAX
    if nests or b"\\u" in body or _LONG_DIGITS.search(body):
        _inspect(document)
    return document


def _too_deep(param: str | None = None) -> InvalidRequest:
    message = f"the body nests deeper than {limits.JSON_DEPTH_MAX} levels"
    return InvalidRequest(message, param=param, code="nesting_too_deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        shown = twice.encode("utf-8", "replace").decode()[:64]
        raise InvalidRequest(f"the field {shown} is given twice", param=shown, code="duplicate_key")
    return result


class _Oversized(int):
    """Stands where an integer did not fit, until `_inspect` finds the field that it is in."""


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > limits.JSON_INTEGER_DIGITS_MAX or not -(2**63) <= int(digits) < 2**63:
        return _Oversized()
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidRequest("a number in the body is out of range", code="number_out_of_range")
    return value


def _constant(name: str) -> None:
    raise InvalidRequest(f"{name} is not JSON", code="invalid_json")


_INSPECTED = (str, dict, list, _Oversized)
_LONG_DIGITS = re.compile(rb"[0-9]{19}")
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant, strict=True
)


def _inspect(document: dict[str, Any]) -> None:
    """Depth, lone surrogates and oversized integers of the document; iterative, so that depth costs no stack."""
    pending: list[tuple[Any, str, int]] = [(document, "", 1)]
    while pending:
        value, path, depth = pending.pop()
        if isinstance(value, str):
            _check_surrogates(value, path)
            continue
        if isinstance(value, _Oversized):
            raise InvalidRequest(f"{path}: does not fit in 64 bits", param=path, code="integer_out_of_range")
        if depth > limits.JSON_DEPTH_MAX:
            raise _too_deep(path.split(".")[0].split("[")[0] or None)
        if isinstance(value, dict):
            for key, item in value.items():
                _check_surrogates(key, path or "body")
                if isinstance(item, _INSPECTED):
                    pending.append((item, f"{path}.{key}" if path else key, depth + 1))
        else:
            pending += [
                (item, f"{path}[{index}]", depth + 1)
                for index, item in enumerate(value)
                if isinstance(item, _INSPECTED)
            ]


def _check_surrogates(value: str, path: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{path} holds half of a surrogate pair, which no UTF-8 text can", param=path, code="invalid_unicode"
        ) from error
