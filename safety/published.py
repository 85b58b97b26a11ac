"""Step 4, GUARDRAIL: published policies in Redis (`w:policy:<id>:<version>`), for gateways and workers. No Django."""

from typing import Any

from redis.asyncio import Redis

from contracts.tenancy import PolicyRef
from safety.policy import CompiledPolicy


class PolicyMissing(LookupError):
    """Redis does not hold this version; the caller fetches the document from the control plane and puts it."""


class PolicyStore:
    def __init__(self, redis: Redis) -> None: ...

    async def get(self, ref: PolicyRef) -> CompiledPolicy:
        """Raises PolicyMissing, PolicyError."""
        ...

    async def put(self, document: dict[str, Any]) -> None:
        """Raises PolicyError."""
        ...
