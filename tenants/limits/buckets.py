"""Step 3, LIMITS: `Limits`, the async door to the {tenant} slot. Called by admission, workers and the settler."""

from collections.abc import AsyncIterator, Mapping

from redis.asyncio import Redis

from contracts.clock import Clock
from contracts.tenancy import Limit
from contracts.tokens import TokenCounts
from tenants.limits.holds import (
    DueHold,
    HoldExisting,
    HoldGranted,
    HoldHint,
    HoldRequest,
    LimitUse,
    Settled,
)


class Limits:
    """Signatures (being filled; do not change)."""

    def __init__(self, redis: Redis, *, clock: Clock | None = None, settled_ttl_ms: int = 6 * 3_600_000) -> None: ...

    async def hold(self, request: HoldRequest) -> HoldGranted | HoldExisting:
        """Raises RateLimited (LimitExceeded), BudgetSpent, AuthFailed (revoked), PermissionDenied (suspended), EpochUnknown, Unavailable."""

    async def start(self, *, tenant_id: str, request_id: str, fence: str, attempt: int) -> bool: ...

    async def settle(
        self,
        *,
        tenant_id: str,
        request_id: str,
        counts: TokenCounts,
        cost_nano: int,
        outcome: str,
        hint: HoldHint,
    ) -> Settled: ...

    async def void(self, *, tenant_id: str, request_id: str, reason: str) -> bool: ...

    async def due(self, *, tenant_id: str, margin_ms: int, limit: int, again_ms: int = 30_000) -> list[DueHold]: ...

    def tenants(self) -> AsyncIterator[str]: ...

    async def set_epochs(self, *, tenant_id: str, keys: Mapping[str, int], tenant_epoch: int) -> None: ...

    async def usage(
        self, *, tenant_id: str, project_id: str, api_key_id: str, limits: tuple[Limit, ...], timezone: str
    ) -> list[LimitUse]: ...
