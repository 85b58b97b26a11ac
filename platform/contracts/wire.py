"""Wire form of the dataclasses: MessagePack of `[version, {field: value}]`. Readers accept v and v-1.

Unknown fields from a newer writer are ignored, missing fields take their defaults; so one release may roll over the
next without a queue drain.
"""

from typing import Any, TypeVar

import msgspec

VERSION = 1

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE = msgspec.msgpack.Decoder(tuple[Any, msgspec.Raw])
_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {}  # building one costs far more than using it


class WireError(ValueError):
    """The bytes are not a message that this release can read."""


def encode(message: object) -> bytes:
    """Bytes of a dataclass made of ints, strings, bytes, tuples, frozensets, dicts and further dataclasses."""
    return _ENCODER.encode((VERSION, message))


def decode(kind: type[T], data: bytes) -> T:
    """The dataclass `kind` from `data`. Raises WireError for another version or shape."""
    try:
        version, body = _ENVELOPE.decode(data)
        if version not in (VERSION, VERSION - 1):
            raise WireError(f"{kind.__name__} has version {version}; this release reads {VERSION - 1} and {VERSION}")
        decoder = _DECODERS.get(kind) or _DECODERS.setdefault(kind, msgspec.msgpack.Decoder(kind))
        message: T = decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error
    return message
