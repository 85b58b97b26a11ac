"""What each pool's queue has counted at its ends: requests and tokens by tenant and hour. Blocking Redis, no Django.

Called by `billing.closing.check`. The `close` of every script that ends a request adds to the count in the same step as
it writes the usage record. Invariant: what a queue no longer knows is not compared: hours older than it keeps them, and
what ended before its count began (an earlier release, a Redis that lost its data).
"""

from collections.abc import Iterator
from typing import Any

from redis import Redis

from billing.closing.compare import PoolCount
from billing.metering.keys import KNOWN_POOLS, counted_from, ended_in_hour
from billing.rating.periods import Span

HOUR_MS = 3_600_000
KEPT_MS = 61 * 24 * HOUR_MS  # a day less than the scripts keep an hour's count


class QueueCounts:
    """The counts of all pools. Raises redis.exceptions.RedisError."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def of(self, *, tenant_id: str, span: Span) -> Iterator[PoolCount]:
        """By pool, from where its count can be compared; pools that cannot are left out."""
        clock: Any = self._redis.time()
        oldest_ms = clock[0] * 1_000 - KEPT_MS
        oldest_ms -= oldest_ms % -HOUR_MS  # the next whole hour
        names: Any = self._redis.smembers(KNOWN_POOLS)
        for pool in sorted(name.decode() for name in names):
            began: Any = self._redis.hget(*counted_from(pool))
            if began is None:
                continue
            from_ms = max(span.start_ms, int(began), oldest_ms)
            if from_ms < span.end_ms:
                yield PoolCount(pool=pool, from_ms=from_ms, hours=self._hours(pool, tenant_id, from_ms, span.end_ms))

    def _hours(self, pool: str, tenant_id: str, start_ms: int, end_ms: int) -> dict[int, tuple[int, int]]:
        hours = range(start_ms - start_ms % HOUR_MS, end_ms, HOUR_MS)
        with self._redis.pipeline(transaction=False) as many:
            for hour_ms in hours:
                many.hmget(ended_in_hour(pool, hour_ms // HOUR_MS), tenant_id, f"{tenant_id}:tokens")
            answers = many.execute()
        return {
            hour_ms: (int(requests), int(tokens or 0))
            for hour_ms, (requests, tokens) in zip(hours, answers, strict=True)
            if requests is not None
        }
