"""The key that signs receipts and seals: Ed25519, in a file of its own that only the processes which sign can read.

Called where receipts are made: the settler, the jobs that close, and their commands; never by gateway or worker, which
have no such file and ask (`billing.proof.desk`). Invariants: the private key is derived from nothing and kept nowhere
else; a file that others may read is refused; a public key stays published for ever (`billing.proof.publishing`).
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from billing.proof.verify import canonical, key_id_of

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyRefused(ValueError):
    """There is no usable key in the file: missing, readable by others, or no Ed25519 key."""


@dataclass(frozen=True)
class Signer:
    """Signs with one key (32 bytes, RFC 8032); `public_keys` are all that may be trusted."""

    private_key: bytes = field(repr=False)
    earlier: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.private_key)

    @cached_property
    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    @cached_property
    def key_id(self) -> str:
        return key_id_of(self.public_key)

    @cached_property
    def public_keys(self) -> dict[str, bytes]:
        """Key id -> public key, the signing one first."""
        return {self.key_id: self.public_key, **self.earlier}

    def sign(self, value: Mapping[str, Any]) -> str:
        """Hex. Deterministic (RFC 8032): the same value has the same signature."""
        return self._key.sign(canonical(value)).hex()

    def signed_receipt(self, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """As it is handed to a customer."""
        return {"receipt": dict(receipt), "key_id": self.key_id, "signature": self.sign(receipt)}


def load_key(path: Path) -> bytes:
    """The private key in the PEM file (PKCS 8). Raises KeyRefused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise KeyRefused(
            f"no receipt key here ({error.strerror}): the settler makes one, and whoever signs needs its file"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & _OTHERS:
            raise KeyRefused(f"{path.name} can be read by others: chmod 600")
        text = file.read(10_000)
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyRefused(f"{path.name} holds no private key: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyRefused(f"{path.name} holds another kind of key than Ed25519")
    return key.private_bytes_raw()


def make_key(path: Path, *, replace: bool = False) -> bytes:
    """A new key in the file, readable by nobody else. Raises OSError, FileExistsError unless it is to be replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
        if replace:
            fresh.replace(path)
        else:
            os.link(fresh, path)  # refuses where there is one: two that start at once make one key
    finally:
        fresh.unlink(missing_ok=True)
    return key.private_bytes_raw()
