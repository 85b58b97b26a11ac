"""Step 9, receipts: asked of the settler, who signs; public keys from PostgreSQL. Called by the gateway's edge.

Invariant: this process has no private key.
"""

from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from billing.proof.desk import ReceiptDesk
from billing.proof.publishing import published_keys
from contracts.clock import Clock
from controlplane.reads.database import from_database
from stores.system import mint_nonce

KEYS_FRESH_SECONDS = 60.0
WAIT_SECONDS = 5.0


@dataclass(slots=True)
class SettlersReceipts:
    """`gateway.services.Receipts`."""

    redis: Redis
    clock: Clock
    _keys: dict[str, bytes] = field(default_factory=dict)
    _read_at: float | None = None

    async def receipt(self, *, request_id: str, tenant_id: str) -> dict[str, Any] | None:
        desk = ReceiptDesk(self.redis, mint_nonce=mint_nonce)
        return await desk.receipt(request_id=request_id, tenant_id=tenant_id, seconds=WAIT_SECONDS)

    async def keys(self) -> dict[str, bytes]:
        now = self.clock.monotonic()
        if self._read_at is None or now - self._read_at > KEYS_FRESH_SECONDS:
            self._keys = await from_database(published_keys)
            self._read_at = now
        return self._keys
