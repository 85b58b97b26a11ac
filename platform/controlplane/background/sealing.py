"""How the prompt and the answer of a background request lie in PostgreSQL: compressed, then sealed (AES-256-GCM).

Called by `keeping` beside this file. Invariants: the key is of this purpose alone, and what is sealed is bound to its
request and to what it is, so that a dump, or a column moved to another row, is worth nothing; what former root secrets
sealed still opens.
"""

import secrets
from collections.abc import Sequence
from uuid import UUID

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"
_NONCE_BYTES = 12
BYTES_MAX = 64 * 1024 * 1024  # of what is opened: a log has at most a quarter of it


class Unreadable(Exception):
    """It does not open: the root secret is another one, or it is not this request's."""


def seal(data: bytes, *, key: bytes, request_id: UUID, part: str) -> bytes:
    """`key` has 32 bytes; `part` says what it is."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    packed = zstandard.compress(data)
    return _VERSION + nonce + AESGCM(key).encrypt(nonce, packed, _about(request_id, part))


def unseal(sealed: bytes, *, keys: Sequence[bytes], request_id: UUID, part: str) -> bytes:
    """What was sealed, under whichever of these keys. Raises Unreadable."""
    version, nonce, cipher = sealed[:1], sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
    if version != _VERSION:
        raise Unreadable("this version of a sealed request is not known")
    for key in keys:
        try:
            packed = AESGCM(key).decrypt(nonce, cipher, _about(request_id, part))
        except (InvalidTag, ValueError):
            continue
        return zstandard.decompress(packed, max_output_size=BYTES_MAX)
    raise Unreadable(f"request {request_id} cannot be opened with this root secret")


def _about(request_id: UUID, part: str) -> bytes:
    return request_id.bytes + part.encode("ascii")
