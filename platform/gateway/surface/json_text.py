"""A body's JSON, read strictly. Step 1; called by the inference routes and by the realtime consumer. Pure.

Invariants: what JSON leaves open (doubled keys, NaN, unbounded numbers, lone surrogates, depth) is refused here with
400, so that no later step meets it; `param` is the field that it is in, or `body` where the text as a whole is wrong.
"""

import json
import math
import re
from typing import Any

from contracts.errors import InvalidRequest
from gateway.surface import limits

BODY = "body"  # `param` where no field can be named
_PATH_MAX = 256
_Path = tuple[str | int, ...]


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises InvalidRequest with the field, or `body`, in `param`."""
    try:
        source = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_json(f"the body is not UTF-8 at byte {error.start}") from error
    if source.startswith("\ufeff"):
        raise _no_json("the body begins with a byte order mark, which JSON text has not")
    try:
        document, doubled = _decoded(source)
    except json.JSONDecodeError as error:
        raise _no_json(f"the body is not JSON: {error.msg} (line {error.lineno} column {error.colno})") from error
    except RecursionError as error:
        raise _too_deep(_deepest_field(source)) from error
    if not isinstance(document, dict):
        raise _no_json("the body must be a JSON object")
    nests = body.count(b"{") + body.count(b"[") > limits.JSON_DEPTH_MAX
    if doubled or nests or b"\\u" in body or _NUMBERS_TO_SEE.search(body):
        _inspect(document)
    return document


def _decoded(source: str) -> tuple[Any, bool]:
    """The document, and whether an object in it has a field twice: then it is read once more, to find the place."""
    try:
        return _DECODER.decode(source), False
    except _GivenTwice:
        return _MARKING_DECODER.decode(source), True


def _no_json(message: str) -> InvalidRequest:
    return InvalidRequest(message, param=BODY, code="invalid_json")


def _too_deep(param: str) -> InvalidRequest:
    message = f"{param}: nests deeper than {limits.JSON_DEPTH_MAX} levels"
    return InvalidRequest(message, param=param, code="nesting_too_deep")


def _deepest_field(source: str) -> str:
    """The field of the body in which it first nests too deep, in text too deep for the parser."""
    depth, name, last = 0, BODY, ""
    for token in _TOKENS.finditer(source):
        mark = token[0][0]
        if mark == '"':
            last = token[0] if depth == 1 else last
        elif mark == ":":
            name = json.loads(last) if depth == 1 and last else name
        else:
            depth += 1 if mark in "[{" else -1
        if depth > limits.JSON_DEPTH_MAX:
            break
    return _shown(name)


def _shown(name: str) -> str:
    """A field's name in an error: short, never empty, without what no UTF-8 text can hold."""
    return name.encode("utf-8", "replace").decode()[:64] or BODY


class _GivenTwice(Exception):
    """An object has a field twice; which one, the parser cannot tell yet: it reads from the inside out."""


class _Doubled(dict[str, Any]):
    """Stands where an object has the field `twice` twice, until `_inspect` finds its place."""

    twice: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _GivenTwice
    return result


def _marked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = _Doubled(pairs)
    if len(result) == len(pairs):
        return dict(result)
    seen: set[str] = set()
    result.twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return result


class _Oversized(int):
    """Stands where an integer did not fit, until `_inspect` finds the field that it is in."""


class _Infinite(float):
    """Stands where a number passed the range of floats."""


class _NoNumber(str):
    """Stands where NaN or Infinity was written, which JSON has not."""


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > limits.JSON_INTEGER_DIGITS_MAX or not -(2**63) <= int(digits) < 2**63:
        return _Oversized()
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _Infinite(value)


_INSPECTED = (str, dict, list, _Oversized, _Infinite)
_NUMBERS_TO_SEE = re.compile(rb"[0-9]{19}|[0-9][eE]|NaN|Infinity")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:]', re.DOTALL)
_DECODER, _MARKING_DECODER = (
    json.JSONDecoder(
        object_pairs_hook=hook, parse_int=_integer, parse_float=_number, parse_constant=_NoNumber, strict=True
    )
    for hook in (_object, _marked_object)
)


def _inspect(document: dict[str, Any]) -> None:
    """Depth, doubled fields, lone surrogates and numbers that are none; iterative, so that depth costs no stack."""
    pending: list[tuple[Any, _Path]] = [(document, ())]
    while pending:
        value, path = pending.pop()
        if isinstance(value, str | int | float):
            _check_scalar(value, path)
            continue
        if len(path) >= limits.JSON_DEPTH_MAX:
            raise _too_deep(_shown(str(path[0])))
        if isinstance(value, _Doubled):
            raise _given_twice(value.twice, path)
        if isinstance(value, dict):
            for key, item in value.items():
                _check_surrogates(key, path)
                if isinstance(item, _INSPECTED):
                    pending.append((item, (*path, key)))
        else:
            pending += [(item, (*path, index)) for index, item in enumerate(value) if isinstance(item, _INSPECTED)]


def _given_twice(name: str, path: _Path) -> InvalidRequest:
    param = _named((*path, name))
    what = f"the field {param} is given twice" if name else f"{param}: has a field without a name twice"
    return InvalidRequest(what, param=param, code="duplicate_key")


def _named(path: _Path) -> str:
    """A path as `param` has it: messages[0].content. It ends before a field without a name."""
    text = ""
    for part in path:
        if part == "":
            break
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:_PATH_MAX].encode("utf-8", "replace").decode() or BODY


def _check_scalar(value: str | float, path: _Path) -> None:
    if isinstance(value, _NoNumber):
        param = _named(path)
        raise InvalidRequest(f"{param}: {value} is not JSON", param=param, code="invalid_json")
    if isinstance(value, str):
        _check_surrogates(value, path)
    elif isinstance(value, _Oversized):
        param = _named(path)
        raise InvalidRequest(f"{param}: does not fit in 64 bits", param=param, code="integer_out_of_range")
    else:
        param = _named(path)
        raise InvalidRequest(f"{param}: is out of range", param=param, code="number_out_of_range")


def _check_surrogates(value: str, path: _Path) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        param = _named(path)
        raise InvalidRequest(
            f"{param} holds half of a surrogate pair, which no UTF-8 text can", param=param, code="invalid_unicode"
        ) from error
