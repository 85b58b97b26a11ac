"""Step 8, METER: batches of usage records into ClickHouse, each row once as any reader sees it.

Run by `manage.py meter`. The order is the invariant: manifest (batch id -> stream ids) stored, then one synchronous
insert of exactly those rows under the batch id as deduplication token, then the feed, then acknowledged, then the
manifest dropped. Killed anywhere, the next process finds the manifest and repeats the same rows with the same token,
which ClickHouse drops if it had them; ReplacingMergeTree with FINAL is the second net.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from redis.asyncio import Redis

from billing.metering.consumer import StoreAway
from billing.metering.faults import fault_point
from billing.metering.keys import manifests
from billing.metering.record import COLUMNS, TABLE, Batch, PoisonRecord, check, row_of
from billing.metering.streams import Entry, Poison, UsageStreams, by_pool
from contracts.clock import Clock
from contracts.jobs import UsageRecord
from contracts.wire import WireError, decode, encode
from stores.clickhouse import WRITE_TIMEOUT_SECONDS, ClickHouse, ClickHouseError, ClickHouseUnavailable

Revive = Callable[[Mapping[bytes, bytes]], UsageRecord]

MANIFEST_TAKEOVER_MS = 60_000
_INSERT_SECONDS = WRITE_TIMEOUT_SECONDS + 10.0
# The rows are at fault, not the store: bad value, type, constraint, too large.
_REFUSED_ROWS_CODES = frozenset({6, 26, 27, 38, 41, 53, 69, 70, 72, 131, 321, 349, 376, 407, 469, 691})

log = logging.getLogger("weir.billing")


class Feed(Protocol):
    """Where recorded usage is announced, best effort: a bill never waits for it."""

    async def publish(self, *, batch_id: str, at_ms: int, records: Sequence[UsageRecord]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIds:
    pool: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A batch by name: what makes a repeated insert the same insert."""

    batch_id: str
    consumer: str
    created_at_ms: int
    pools: tuple[PoolIds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Entries of a batch that became records, and those that cannot."""

    entries: list[Entry]
    records: list[UsageRecord]
    poisons: list[Poison]


class Meter:
    """`billing.metering.consumer.Work` that writes rows."""

    def __init__(
        self,
        *,
        redis: Redis,
        streams: UsageStreams,
        clickhouse: ClickHouse,
        revive: Revive,
        feed: Feed,
        clock: Clock,
        mint_batch_id: Callable[[], str],
    ) -> None:
        self._redis = redis
        self._streams = streams
        self._clickhouse = clickhouse
        self._revive = revive
        self._feed = feed
        self._clock = clock
        self._mint_batch_id = mint_batch_id
        self._key = manifests(streams.group)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clickhouse-insert")

    async def resume(self) -> None:
        """Finish own manifests, and those that another meter has left for long."""
        before_ms = self._clock.now_ms() - MANIFEST_TAKEOVER_MS
        left: dict[bytes, bytes] = await cast("Awaitable[Any]", self._redis.hgetall(self._key))
        for data in left.values():
            try:
                manifest = decode(Manifest, data)
            except WireError as error:
                # Of a release that this one cannot read: its records stay pending, FINAL keeps them single.
                log.error("a manifest that this release cannot read: %s", error)  # noqa: TRY400 - one line
                continue
            if manifest.consumer == self._streams.consumer or manifest.created_at_ms <= before_ms:
                log.info("finishing batch %s, which was left unfinished", manifest.batch_id)
                entries = [
                    entry
                    for part in manifest.pools
                    for entry in await self._streams.fetch(pool=part.pool, ids=part.ids)
                ]
                await self._finish(manifest, self._take(entries))

    async def handle(self, entries: Sequence[Entry]) -> None:
        fault_point("meter.before_manifest")
        taken = self._take(entries)
        await self._streams.bury(taken.poisons)
        if not taken.entries:
            return
        manifest = Manifest(
            batch_id=self._mint_batch_id(),
            consumer=self._streams.consumer,
            created_at_ms=self._clock.now_ms(),
            pools=tuple(PoolIds(pool=pool, ids=tuple(ids)) for pool, ids in by_pool(taken.entries).items()),
        )
        await self._redis.hset(self._key, manifest.batch_id, encode(manifest))
        fault_point("meter.after_manifest")
        await self._finish(manifest, replace(taken, poisons=[]))

    async def _finish(self, manifest: Manifest, taken: Taken) -> None:
        batch = Batch(batch_id=manifest.batch_id, created_at_ms=manifest.created_at_ms)
        rows = [row_of(record, batch=batch) for record in taken.records]
        refused = await self._insert(manifest.batch_id, rows)
        fault_point("meter.after_insert")
        poisons = taken.poisons + [Poison(entry=taken.entries[n], reason=reason) for n, reason in refused.items()]
        kept = [n for n in range(len(rows)) if n not in refused]
        await self._feed.publish(
            batch_id=manifest.batch_id, at_ms=manifest.created_at_ms, records=[taken.records[n] for n in kept]
        )
        fault_point("meter.after_feed")
        await self._streams.bury(poisons)
        await self._streams.ack([taken.entries[n] for n in kept])
        fault_point("meter.after_ack")
        await self._redis.hdel(self._key, manifest.batch_id)

    async def _insert(self, token: str, rows: Sequence[Sequence[Any]]) -> dict[int, str]:
        """Insert all rows; the index and reason of each that ClickHouse itself refused. Raises StoreAway."""
        try:
            await self._insert_block(token, rows)
        except ClickHouseError as error:
            if error.code not in _REFUSED_ROWS_CODES:
                raise StoreAway(f"ClickHouse: {error}") from error
            log.error("ClickHouse refused batch %s, going row by row: %s", token, error)  # noqa: TRY400 - one line
        else:
            return {}
        refused: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                await self._insert_block(f"{token}/{index}", [row])
            except ClickHouseUnavailable as error:
                raise StoreAway(f"ClickHouse: {error}") from error
            except ClickHouseError as error:
                refused[index] = str(error)
        return refused

    async def _insert_block(self, token: str, rows: Sequence[Sequence[Any]]) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_INSERT_SECONDS):
            await loop.run_in_executor(
                self._thread,
                lambda: self._clickhouse.insert(table=TABLE, columns=COLUMNS, rows=rows, token=token),
            )

    def _take(self, entries: Sequence[Entry]) -> Taken:
        taken = Taken(entries=[], records=[], poisons=[])
        for entry in entries:
            try:
                record = revive(self._revive, entry)
            except PoisonRecord as error:
                taken.poisons.append(Poison(entry=entry, reason=str(error)))
            else:
                taken.entries.append(entry)
                taken.records.append(record)
        return taken


def revive(reviver: Revive, entry: Entry) -> UsageRecord:
    """The checked record of an entry. Raises PoisonRecord."""
    try:
        record = reviver(entry.fields)
    except (WireError, KeyError, ValueError, TypeError) as error:
        raise PoisonRecord(f"not a usage record: {error!r}") from error
    check(record)
    return record
