"""The usage streams of all pools, read by one consumer group.

Used by the meter (group `meter`) and the ledger's posting (group `ledger`); each group sees every record at least once.
Invariants: a record leaves a group only by `ack` or `bury`, after it was made durable elsewhere; a stream is trimmed
only below what every group has finished; a pool once seen is drained for ever, also when its model is gone.
"""

import logging
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from billing.metering.keys import KNOWN_POOLS, dead_usage, usage_stream
from contracts.models import ModelCard
from contracts.names import MODELS
from contracts.wire import WireError, decode

METER_GROUP = "meter"
LEDGER_GROUP = "ledger"
GROUPS = frozenset({METER_GROUP, LEDGER_GROUP})
_PAGE = 5_000

log = logging.getLogger("weir.billing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stream entry as it stands in Redis."""

    pool: str
    entry_id: str
    fields: dict[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """An entry that can never be taken, and why."""

    entry: Entry
    reason: str


class UsageStreams:
    """One member of one consumer group, over every pool."""

    def __init__(self, *, redis: Redis, group: str, consumer: str) -> None:
        self.group = group
        self.consumer = consumer
        self._redis = redis
        self._pools: list[str] = []

    @property
    def pools(self) -> Sequence[str]:
        return self._pools

    async def discover(self) -> None:
        """Look for pools and make the group where it is missing, from the beginning of the stream."""
        known: Any = await cast("Awaitable[Any]", self._redis.smembers(KNOWN_POOLS))
        cards: Any = await cast("Awaitable[Any]", self._redis.hvals(MODELS))
        found = {_text(pool) for pool in known}
        served = {card.pool for card in map(_card, cards) if card is not None}
        if served - found:
            await cast("Awaitable[Any]", self._redis.sadd(KNOWN_POOLS, *sorted(served - found)))
        for pool in sorted(found | served):
            await self._join(pool)
        self._pools = sorted(found | served)

    async def read_new(self, *, limit: int) -> list[Entry]:
        """Up to `limit` records that nobody of the group has had."""
        return await self._read(after=">", limit=limit)

    async def read_pending(self, *, limit: int) -> list[Entry]:
        """Up to `limit` records that this member has had and not finished: what a crash or an outage left."""
        return await self._read(after="0", limit=limit)

    async def claim_stale(self, *, idle_ms: int, limit: int) -> list[Entry]:
        """Take over records that another member has held for `idle_ms` without finishing them."""
        taken: list[Entry] = []
        for pool in self._pools:
            reply: Any = await self._redis.xautoclaim(
                usage_stream(pool), self.group, self.consumer, min_idle_time=idle_ms, count=limit - len(taken)
            )
            taken += _entries(pool, reply[1])
            if len(taken) >= limit:
                break
        return taken

    async def fetch(self, *, pool: str, ids: Collection[str]) -> list[Entry]:
        """The entries `ids` of one stream in their order, as far as they are still there."""
        wanted = set(ids)
        low, high = (f(wanted, key=_id_order) for f in (min, max))
        found: dict[str, Entry] = {}
        while True:
            items: Any = await self._redis.xrange(usage_stream(pool), min=low, max=high, count=_PAGE)
            page = _entries(pool, items)
            found.update((entry.entry_id, entry) for entry in page if entry.entry_id in wanted)
            if len(page) < _PAGE:
                return [found[entry_id] for entry_id in ids if entry_id in found]
            low = f"({page[-1].entry_id}"

    async def ack(self, entries: Sequence[Entry]) -> None:
        """Finish entries for this group. Repeats are harmless."""
        for pool, ids in by_pool(entries).items():
            for start in range(0, len(ids), _PAGE):
                await self._redis.xack(usage_stream(pool), self.group, *ids[start : start + _PAGE])

    async def bury(self, poisons: Sequence[Poison]) -> None:
        """Move entries to the dead letters and finish them, both or neither. A repeat may leave a double."""
        for poison in poisons:
            entry = poison.entry
            log.error("dead letter: %s of pool %s: %s", entry.entry_id, entry.pool, poison.reason)
            letter: dict[Any, Any] = {
                **entry.fields,
                b"dead_id": entry.entry_id,
                b"dead_group": self.group,
                b"dead_reason": poison.reason[:500],
            }
            async with self._redis.pipeline(transaction=True) as both:
                both.xadd(dead_usage(entry.pool), letter)
                both.xack(usage_stream(entry.pool), self.group, entry.entry_id)
                await both.execute()

    async def trim(self) -> None:
        """Drop what both groups have finished from every stream."""
        for pool in self._pools:
            key = usage_stream(pool)
            groups = {group["name"].decode(): group for group in await self._redis.xinfo_groups(key)}
            if groups.keys() >= GROUPS:
                floors = [await self._floor(key, name, group) for name, group in groups.items()]
                await self._redis.xtrim(key, minid=min(floors, key=_id_order), approximate=False)

    async def lag(self) -> int:
        """Records that this group has not finished, read and unread."""
        total = 0
        for pool in self._pools:
            for group in await self._redis.xinfo_groups(usage_stream(pool)):
                if group["name"].decode() == self.group:
                    total += int(group["pending"]) + int(group["lag"] or 0)
        return total

    async def _join(self, pool: str) -> None:
        try:
            await self._redis.xgroup_create(usage_stream(pool), self.group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _read(self, *, after: str, limit: int) -> list[Entry]:
        taken: list[Entry] = []
        for pool in self._pools:
            # One stream a call: streams of two pools may live on two nodes of a Cluster.
            reply: Any = await self._redis.xreadgroup(
                self.group, self.consumer, {usage_stream(pool): after}, count=limit - len(taken)
            )
            for _, items in reply:
                entries = _entries(pool, items)
                gone = [entry for entry in entries if not entry.fields]
                if gone:
                    log.warning("%d pending records of pool %s are no longer in the stream", len(gone), pool)
                    await self.ack(gone)
                taken += [entry for entry in entries if entry.fields]
            if len(taken) >= limit:
                break
        return taken

    async def _floor(self, key: str, name: str, group: dict[str, Any]) -> str:
        """The oldest id that this group still needs."""
        if not group["pending"]:
            return _text(group["last-delivered-id"])
        summary = await self._redis.xpending(key, name)
        return _text(summary["min"] or group["last-delivered-id"])


def by_pool(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Entry ids by pool, in order."""
    ids: dict[str, list[str]] = {}
    for entry in entries:
        ids.setdefault(entry.pool, []).append(entry.entry_id)
    return ids


def _card(data: bytes) -> ModelCard | None:
    try:
        return decode(ModelCard, data)
    except WireError as error:
        log.warning("a model card that this release cannot read: %s", error)
        return None


def _entries(pool: str, items: Sequence[tuple[bytes, dict[bytes, bytes] | None]]) -> list[Entry]:
    return [Entry(pool=pool, entry_id=_text(entry_id), fields=fields or {}) for entry_id, fields in items]


def _id_order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
