"""What lies sealed in a database (AES-256-GCM): a version, a nonce, the cipher text.

Invariant: what is sealed is bound to what it is about, so that moved to another row it does not open.
"""

import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"
_NONCE_BYTES = 12


class Unreadable(Exception):
    """It does not open: the root secret is another one, or it is about something else."""


def seal(data: bytes, *, key: bytes, about: bytes) -> bytes:
    """`key` has 32 bytes, of this purpose alone (`stores.secrets.derive`)."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _VERSION + nonce + AESGCM(key).encrypt(nonce, data, about)


def unseal(sealed: bytes, *, keys: Sequence[bytes], about: bytes, what: str) -> bytes:
    """What was sealed, under whichever of these keys. Raises Unreadable, whose text names `what`."""
    version, nonce, cipher = sealed[:1], sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
    if version != _VERSION:
        raise Unreadable(f"{what} is sealed in a version that is not known")
    for key in keys:
        try:
            return AESGCM(key).decrypt(nonce, cipher, about)
        except (InvalidTag, ValueError):
            continue
    raise Unreadable(f"{what} cannot be opened with this root secret")
