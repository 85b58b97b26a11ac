"""Secrets of endpoints and the signature of a delivery, after the Standard Webhooks specification (version 1).

Signed text: `{webhook-id}.{webhook-timestamp}.{body}`, HMAC-SHA256, `v1,` and base64; one signature for each live
secret, with a blank between. Tests verify with the specification's own library. Invariants: a secret lies in the
database only sealed (AES-256-GCM under a key of its own purpose, bound to its endpoint), so that a dump, or a row moved
to another endpoint, is worth nothing; its text is returned once.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from stores import sealing

PREFIX = "whsec_"
SECRET_BYTES = 32
USER_AGENT = "weir-webhooks/1"


def mint() -> str:
    """A new secret of 256 bits in its text form."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def seal(text: str, *, key: bytes, endpoint_id: UUID) -> bytes:
    """A secret as it is stored. `key` has 32 bytes."""
    return sealing.seal(text.encode(), key=key, about=endpoint_id.bytes)


def unseal(sealed: bytes, *, keys: Sequence[bytes], endpoint_id: UUID) -> str:
    """The text of a stored secret, under whichever of these keys it was sealed. Raises stores.sealing.Unreadable."""
    return sealing.unseal(sealed, keys=keys, about=endpoint_id.bytes, what="the signing secret").decode()


def headers(*, event_id: UUID, body: str, at: datetime, secrets_live: Sequence[str]) -> dict[str, str]:
    """Headers of one attempt. `at` is the attempt's instant, so that a retry passes the receiver's replay window."""
    seconds = int(at.timestamp())
    signed = f"{event_id}.{seconds}.{body}".encode()
    return {
        "content-type": "application/json",
        "user-agent": USER_AGENT,
        "webhook-id": str(event_id),
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(_sign(secret, signed) for secret in secrets_live),
    }


def _sign(secret: str, text: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
