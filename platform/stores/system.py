"""The system's clock and random identifiers: the only place that reads either for the hot path."""

import secrets
import time

import uuid_utils

from contracts.ids import Fence, RequestId


class SystemClock:
    """`contracts.clock.Clock` on this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def mint_request_id() -> RequestId:
    """A UUIDv7 (RFC 9562): sortable by time, unguessable in its last 74 bits."""
    return RequestId(str(uuid_utils.uuid7()))


def mint_nonce() -> str:
    """96 random bits as text: fences, claim nonces, connection ids."""
    return secrets.token_urlsafe(12)


def mint_fence(*, attempt: int, nonce: str) -> Fence:
    return Fence(f"{attempt}-{nonce}")
