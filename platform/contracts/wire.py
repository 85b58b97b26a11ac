"""Wire form of the dataclasses: MessagePack of `[version, {field: value}]`. Readers accept v and v-1.

Unknown fields from a newer writer are ignored, missing fields take their defaults; so one release may roll over the
next without a queue drain.
"""

import types
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

VERSION = 1

T = TypeVar("T")

_SCALARS = frozenset({int, str, bytes, bool, type(None)})
_NAMES: dict[type, tuple[str, ...]] = {}  # fields of each dataclass met, so that the hot path looks them up once


class WireError(ValueError):
    """The bytes are not a message that this release can read."""


def encode(message: object) -> bytes:
    """Bytes of a dataclass made of ints, strings, bytes, tuples, frozensets, dicts and further dataclasses."""
    packed: bytes = msgpack.packb([VERSION, _plain(message)], use_bin_type=True)
    return packed


def decode(kind: type[T], data: bytes) -> T:
    """The dataclass `kind` from `data`. Raises WireError for another version or shape."""
    try:
        version, body = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error
    if version not in (VERSION, VERSION - 1):
        raise WireError(f"{kind.__name__} has version {version}; this release reads {VERSION - 1} and {VERSION}")
    result: T = _build(kind, body)
    return result


def _plain(value: object) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    names = _NAMES.get(kind)
    if names is None and is_dataclass(kind):
        names = _NAMES[kind] = tuple(item.name for item in fields(kind))
    if names is not None:
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def _build(kind: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        raise WireError(f"{kind.__name__} is not a map")
    hints = _HINTS.setdefault(kind, get_type_hints(kind))
    values = {}
    for item in fields(kind):
        if item.name in body:
            values[item.name] = _revive(hints[item.name], body[item.name])
        elif item.default is MISSING and item.default_factory is MISSING:
            raise WireError(f"{kind.__name__} lacks {item.name}")
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise WireError(f"{kind.__name__}: {error}") from error


def _revive(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _revive(next(arg for arg in get_args(hint) if arg is not type(None)), value)
    if origin is tuple:
        return tuple(_revive(get_args(hint)[0], item) for item in value)
    if origin is frozenset:
        return frozenset(value)
    if origin is dict:
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        return _build(hint, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    return value
