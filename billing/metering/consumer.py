"""The loop of a usage consumer: what was left, what is stale, what is new; then wait.

The meter and the ledger's posting run it with their own `Work`. Invariant: it keeps nothing in memory between rounds.
After any failure the records are pending in Redis, and the next round finds them there, as a restarted process does:
one path for an outage and for a crash.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import RedisError

from billing.metering.streams import Entry, UsageStreams
from contracts.clock import Clock
from stores.stopping import stopped_within

log = logging.getLogger("weir.billing")


class StoreAway(Exception):
    """The store behind the work cannot take the batch now. It stays pending and is tried again."""


class Work(Protocol):
    """What a consumer does with records. Each call returns after its records are durable and finished in Redis."""

    async def resume(self) -> None:
        """Finish what an earlier round or process began. Raises StoreAway, RedisError."""

    async def handle(self, entries: Sequence[Entry]) -> None:
        """Take a batch. Raises StoreAway, RedisError; the batch is then seen again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Bounds of the loop. A batch closes at `batch_rows` or after `batch_seconds`."""

    batch_rows: int = 10_000
    batch_seconds: float = 1.0
    discover_seconds: float = 5.0
    stale_seconds: float = 30.0
    stale_idle_ms: int = 60_000
    trim_seconds: float = 30.0
    backoff_seconds: float = 0.5
    backoff_max_seconds: float = 30.0
    redis_seconds: float = 30.0


class UsageConsumer:
    """Runs `work` on `streams` until told to stop."""

    def __init__(
        self, *, streams: UsageStreams, work: Work, clock: Clock, pace: Pace | None = None, trims: bool = False
    ) -> None:
        self._streams = streams
        self._work = work
        self._clock = clock
        self._pace = pace or Pace()
        self._trims = trims
        self._has_pending = True  # a process before this one may have left some
        self._next: dict[str, float] = {}
        self.records = 0
        self.failures = 0

    async def run(self, *, stop: asyncio.Event) -> None:
        """Rounds until `stop`; a round that has begun is finished first."""
        delay = 0.0
        while not stop.is_set():
            try:
                full = await self.round()
                delay = 0.0
            except (StoreAway, RedisError, TimeoutError) as error:
                self.failures += 1
                self._has_pending = True
                self._next.clear()
                delay = min(max(self._pace.backoff_seconds, delay * 2), self._pace.backoff_max_seconds)
                log.warning("%s waits %.1f s: %s", self._streams.group, delay, error or type(error).__name__)
                full = False
            if not full:
                await stopped_within(stop, seconds=max(delay, self._pace.batch_seconds))

    async def round(self) -> bool:
        """One round; whether a full batch was taken, so that more is probably there."""
        async with asyncio.timeout(self._pace.redis_seconds):
            if self._is_due("discover", self._pace.discover_seconds):
                await self._streams.discover()
        await self._work.resume()
        async with asyncio.timeout(self._pace.redis_seconds):
            entries = await self._next_batch()
        if entries:
            await self._work.handle(entries)
            self.records += len(entries)
        if self._trims and self._is_due("trim", self._pace.trim_seconds):
            async with asyncio.timeout(self._pace.redis_seconds):
                await self._streams.trim()
        return len(entries) >= self._pace.batch_rows

    async def _next_batch(self) -> list[Entry]:
        limit = self._pace.batch_rows
        if self._has_pending:
            entries = await self._streams.read_pending(limit=limit)
            self._has_pending = bool(entries)
            if entries:
                return entries
        if self._is_due("stale", self._pace.stale_seconds):
            entries = await self._streams.claim_stale(idle_ms=self._pace.stale_idle_ms, limit=limit)
            if entries:
                return entries
        return await self._streams.read_new(limit=limit)

    def _is_due(self, name: str, every_seconds: float) -> bool:
        now = self._clock.monotonic()
        if now < self._next.get(name, now):
            return False
        self._next[name] = now + every_seconds
        return True
