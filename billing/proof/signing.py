"""The key that signs receipts and seals: Ed25519, made of the root secret for this purpose alone.

Called where receipts are made: the close, proofs and `manage.py receipt`; never by gateway or worker. To change it, set
WEIR_SECRET to a new one and put the old one into WEIR_SECRET_OLD: both public keys are published, the new one signs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from billing.proof.verify import canonical, key_id_of
from stores.secrets import derive

LABEL = "usage-receipts"


@dataclass(frozen=True)
class Signer:
    """Signs with one key; `public_keys` are all that may be trusted."""

    secret: str
    old_secret: str = ""

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(derive(self.secret, LABEL))

    @cached_property
    def key_id(self) -> str:
        return key_id_of(self._key.public_key().public_bytes_raw())

    @cached_property
    def public_keys(self) -> dict[str, bytes]:
        """Key id -> public key, the signing one first."""
        keys = [self._key]
        if self.old_secret:
            keys.append(Ed25519PrivateKey.from_private_bytes(derive(self.old_secret, LABEL)))
        public = [key.public_key().public_bytes_raw() for key in keys]
        return {key_id_of(each): each for each in public}

    def sign(self, value: Mapping[str, Any]) -> str:
        """Hex. Deterministic (RFC 8032): the same value has the same signature."""
        return self._key.sign(canonical(value)).hex()

    def signed_receipt(self, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """As it is handed to a customer."""
        return {"receipt": dict(receipt), "key_id": self.key_id, "signature": self.sign(receipt)}
