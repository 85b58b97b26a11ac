"""What tests of holds do again and again: settle, start, void, and look."""

from redis.asyncio import Redis

from contracts.tokens import TokenCounts
from tenants.limits.buckets import Limits
from tenants.limits.holds import (
    HoldHint,
)
from tests.functional.tenants.cast import ACME, HINT, KEY, PROJECT, request

USED = TokenCounts(prompt=10, completion=5)


async def use_of(limits: Limits, *wanted: object) -> list[tuple[int, int]]:
    uses = await limits.usage(
        tenant_id=ACME,
        project_id=PROJECT,
        api_key_id=KEY,
        limits=tuple(wanted),
        timezone="UTC",  # type: ignore[arg-type]
    )
    return [(use.used, use.held) for use in uses]


async def settle(limits: Limits, number: int, *, counts: TokenCounts = USED, cost: int = 300, hint: HoldHint = HINT):
    return await limits.settle(
        tenant_id=ACME,
        request_id=request(number).request_id,
        counts=counts,
        cost_nano=cost,
        outcome="ok",
        hint=hint,
    )


async def void(limits: Limits, number: int) -> bool:
    return await limits.void(tenant_id=ACME, request_id=request(number).request_id, reason="queue_full")


async def start(limits: Limits, number: int, *, fence: str = "1-a", attempt: int = 1) -> bool:
    return await limits.start(tenant_id=ACME, request_id=request(number).request_id, fence=fence, attempt=attempt)


async def snapshot(redis: Redis) -> dict[bytes, bytes]:
    return {key: await redis.dump(key) for key in await redis.keys("*") if b":idem:" not in key}
