"""Whether a pool has a live worker. Step 5's gate; called by `admission.py` before anything is held.

What was accepted waits for its pool; what is new is refused while nobody could run it. The answer is at most
`fresh_seconds` old. Fails closed: when Redis does not answer, `Unavailable`.
"""

import asyncio
from collections.abc import Mapping

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.clock import Clock
from contracts.errors import Unavailable
from contracts.names import WORKERS_PATTERN

SCAN_PAGE = 1_000
SCAN_SECONDS = 3.0
READY = "ready"


class PoolWorkers:
    """Heartbeats of workers by pool, read once per `fresh_seconds` by whoever asks first."""

    def __init__(self, redis: Redis, *, clock: Clock, fresh_seconds: float, retry_after_ms: int) -> None:
        self._redis = redis
        self._clock = clock
        self._fresh_seconds = fresh_seconds
        self._retry_after_ms = retry_after_ms
        self._live: Mapping[str, int] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def require(self, pool: str) -> None:
        """Raises Unavailable when no worker of the pool shows signs of life."""
        if not (await self._counts()).get(pool):
            raise Unavailable(
                "no worker serves this model at the moment", code="no_worker", retry_after_ms=self._retry_after_ms
            )

    async def _counts(self) -> Mapping[str, int]:
        if self._fresh():
            return self._live
        async with self._reading:
            if not self._fresh():
                self._live = await self._scan()
                self._read_at = self._clock.monotonic()
            return self._live

    def _fresh(self) -> bool:
        return self._read_at is not None and self._clock.monotonic() - self._read_at < self._fresh_seconds

    async def _scan(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        try:
            async with asyncio.timeout(SCAN_SECONDS):
                keys = [key async for key in self._redis.scan_iter(WORKERS_PATTERN, count=SCAN_PAGE)]
                beats = await self._redis.mget(keys) if keys else []
        except (RedisError, OSError, TimeoutError) as error:
            raise Unavailable("the queue does not answer", retry_after_ms=self._retry_after_ms) from error
        for beat in beats:
            pool = _pool_of(beat)
            if pool is not None:
                counts[pool] = counts.get(pool, 0) + 1
        return counts


def _pool_of(beat: bytes | str | None) -> str | None:
    """The pool of a worker's heartbeat (JSON); None when it died meanwhile, or its engine is not ready to serve."""
    if beat is None:
        return None
    try:
        fields = orjson.loads(beat)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or fields.get("state") != READY:
        return None
    pool = fields.get("pool")
    return pool if isinstance(pool, str) else None
